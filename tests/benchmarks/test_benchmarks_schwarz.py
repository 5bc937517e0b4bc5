"""The benchmark of Schwarz methods: what it measures, and what its tables say."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.claims import schwarz  # noqa: E402
from benchmarks.harness.record import Record, Run  # noqa: E402
from benchmarks.peers import mkl  # noqa: E402

needs_mkl = pytest.mark.skipif(not mkl.available(), reason="MKL is not installed (pip install mkl)")


def test_every_recipe_solves_and_the_best_peer_is_compared(tmp_path):
    arguments = ["--cpu", "--matrices", "poisson5:20,20", "--machine", "box", "--out", str(tmp_path)]
    assert schwarz.main(arguments) == 0
    run = Run.load(next(tmp_path.glob("schwarz-cpu-box-*.json.gz")))
    assert {r.variant for r in run.find(who="finelu")} == {"Schwarz", "exact", "MILU0", "adapted"} and not run.failures
    assert all(r.detail["converged"] for r in run.records)
    ((ratio, name),) = schwarz.ratios(run, "Schwarz", ["poisson5:20,20"])
    best = min(r.numeric_ms for r in run.find(who="finelu") if r.variant != "Schwarz")
    assert name == "poisson5:20,20" and ratio == best / run.one(variant="Schwarz").numeric_ms
    page = next(tmp_path.glob("*.md")).read_text()
    assert "all others" in page and f"{ratio:.2f}" in page


@needs_mkl
def test_mkl_solves_in_every_setting_and_the_fastest_is_compared(tmp_path):
    arguments = ["--cpu", "--matrices", "poisson7:9", "--machine", "box", "--out", str(tmp_path)]
    assert schwarz.main(arguments) == 0
    run = Run.load(next(tmp_path.glob("*.json.gz")))
    found = run.find(who="mkl")
    assert len(found) >= 5 and not run.failures and not run.left_out
    assert all(r.detail["converged"] and r.error < 2e-8 for r in found)
    assert len({r.detail["iterations"] for r in found}) == 1  # the same method with the same preconditioner
    assert [line.count("poisson7:9") for line in schwarz.mkl_claims(run).splitlines()] == [0, 0, 0, 1, 1]


def test_the_fastest_setting_of_mkl_that_converged_is_compared():
    def record(who, variant, ms, converged=True):
        return Record("A", "solution", "cpu", who, variant, ms, detail={"converged": converged})

    ours, driver = record("finelu", "Schwarz", 2.0), schwarz.MKL_CG
    run = Run("schwarz", {}, "2026-01-02", matrices={"A": {}}, records=[ours])
    assert schwarz.mkl_claims(run) == ""
    run.records += [
        record("mkl", f"{driver}, {k}", ms, k != "none") for k, ms in (("a", 9.0), ("b", 8.0), ("none", 1.0))
    ]
    line = schwarz.mkl_claims(run).splitlines()[-1]
    assert [cell.strip() for cell in line.split("|")[1:-1]] == ["A", driver, "2", "8", "4", "b"]
    run.records[2].detail["converged"] = run.records[1].detail["converged"] = False
    assert "none converged" in schwarz.mkl_claims(run)


def test_what_does_not_converge_counts_as_lost_or_won():
    def record(variant, ms, converged):
        return Record("A", "solution", "gpu", "finelu", variant, ms, detail={"converged": converged})

    def found(*records):
        run = Run("schwarz", {}, "2026-01-02", records=[*records])
        return schwarz.ratios(run, "Schwarz", ["A"])

    fast, slow = record("Schwarz", 2.0, True), record("exact", 8.0, True)
    assert found(fast, slow, record("MILU0", 1.0, False)) == [(4.0, "A")]
    assert found(record("Schwarz", 1.0, False), slow) == [(0.0, "A")]
    assert found(fast, record("exact", 1.0, False)) == [(float("inf"), "A")]
    assert found(record("Schwarz", 1.0, False), record("exact", 1.0, False)) == []
