"""The benchmark of grids of several blocks: how it cuts, what its efficiencies mean, its page, a run of one process."""

import math

import pytest

from benchmarks.claims import multiblock_scaling as scaling
from benchmarks.harness.record import page_of, read


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 8, 12, 16, 27])
def test_a_grid_is_cut_as_near_to_a_cube_as_can_be(ranks):
    parts = scaling.cuts(ranks)
    assert math.prod(parts) == ranks and list(parts) == sorted(parts, reverse=True)
    if ranks in (8, 27):
        assert len(set(parts)) == 1


def lines(*rows):
    names = ("ranks", "correction_ms", "factor_ms", "triad_gbs")
    return [dict(zip(names, row, strict=True)) for row in rows]


def test_efficiencies():
    found = lines((1, 10.0, 20.0, 5.0), (4, 12.5, 20.0, 10.0))
    assert scaling.efficiencies(found, "weak")[1] == pytest.approx((0.8, 1.0, 0.5))
    found = lines((1, 10.0, 20.0, 5.0), (4, 5.0, 5.0, 10.0))
    assert scaling.efficiencies(found, "strong")[1] == pytest.approx((0.5, 1.0, 0.5))


def test_a_run_of_one_process_and_its_page(tmp_path, monkeypatch):
    pytest.importorskip("mpi4py")
    monkeypatch.setattr(scaling, "REPEATS", 1)
    monkeypatch.setattr(scaling, "TRIAD", 1000)
    monkeypatch.setattr(scaling, "started", lambda ranks, task: scaling.worker(task))
    words = ["--ranks", "1", "--edge", "6", "--whole", "5", "--n", "2", "--machine", "here", "--out", str(tmp_path)]
    assert scaling.main(words) == 0
    (record,) = tmp_path.glob("multiblock-scaling-here-*.json.gz")
    results = read(record)["results"]
    assert results["weak"][0]["cells"] == 216 and results["strong"][0]["cells"] == 125
    assert results["strong"][0]["status"] == "CONVERGED"
    page = page_of(record)
    text = page.read_text()
    assert "## weak, 6^3 cells a process" in text and "corrections to 1e-8" in text
    page.unlink()
    assert scaling.main(["--from", str(record)]) == 0
    assert page.read_text() == text
