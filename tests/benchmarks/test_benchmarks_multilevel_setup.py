"""The benchmark of the set-up of MultilevelILU: what it measures, and what its tables say."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.claims import multilevel_setup  # noqa: E402
from benchmarks.claims.multilevel_setup import CROUT, INDEPENDENT  # noqa: E402
from benchmarks.harness.record import Record, Run  # noqa: E402


def test_only_what_both_solve_is_compared():
    def record(name, form, setup, solve, solved=True):
        detail = {"iterations": 9, "solved": solved, "fill": 2.0}
        return Record(name, "setup", "gpu", "finelu", form, solve, setup, 1e-9, detail=detail)

    run = Run("multilevel-setup", {"name": "box"}, "2026-01-02", matrices={k: {"n": 9, "nnz": 33} for k in "ABC"})
    run.records = [record("A", INDEPENDENT, 100.0, 2.0), record("A", CROUT, 400.0, 4.0)]
    run.records += [record("B", INDEPENDENT, 100.0, 2.0), record("B", CROUT, 100.0, 16.0)]
    run.records += [record("C", INDEPENDENT, 100.0, 1.0, solved=False), record("C", CROUT, 9e5, 1.0)]
    text = multilevel_setup.page(run)
    assert "Of 2 matrices" in text and "2.00 times as fast as Crout's (worst 1.00)" in text
    assert "4.00 times (worst 2.00)" in text and "not solved" in text


@pytest.mark.parametrize("device", ["--cpu", pytest.param("--gpu", marks=pytest.mark.gpu)])
def test_a_small_matrix(tmp_path, request, device):
    if device == "--gpu":
        request.getfixturevalue("cupy")
    arguments = [device, "--matrices", "poisson5:20,20", "--machine", "box", "--out", str(tmp_path)]
    assert multilevel_setup.main(arguments) == 0
    run = Run.load(next(tmp_path.glob("multilevel-setup-box-*.json.gz")))
    assert {r.variant for r in run.records} == ({CROUT} if device == "--cpu" else {INDEPENDENT, CROUT})
    assert all(r.detail["solved"] for r in run.records) and not run.failures
