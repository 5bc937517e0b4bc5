"""The benchmark of calls on a GPU against cuSPARSE: what its tables say."""

import sys
from pathlib import Path

import pytest
from checks import without_gpu

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.claims import calls_gpu  # noqa: E402
from benchmarks.harness.record import Record, Run  # noqa: E402


def record(name, work, variant, ms, error=1e-15):
    return Record(name, work, "gpu", "finelu" if variant == "ILU0" else "cusparse", variant, ms, error=error)


def test_the_better_policy_counts_and_only_right_results_do():
    facts = {"n": 10, "nnz": 28, "apart": False}
    run = Run(
        "calls-gpu",
        {"name": "box", "commit": "0"},
        "2026-01-02",
        matrices={"A": facts, "B": facts, "T": facts | {"apart": True}},
    )
    for name in run.matrices:
        run.records += [record(name, "solve", "ILU0", 2.0), record(name, "solve", "USE_LEVEL", 4.0)]
    run.records += [record("A", "solve", "NO_LEVEL", 3.0), record("B", "solve", "NO_LEVEL", 1.0, error=1e-3)]
    assert calls_gpu.ratios(run, "solve") == {"A": 1.5, "B": 2.0} and calls_gpu.ratios(run, "factor") == {}
    assert "1.73" in calls_gpu.summary(run)
    text = calls_gpu.page(run)
    assert "Wrong results" in text and "NO_LEVEL" in text and text.count("| B ") == 4


@pytest.mark.gpu
@pytest.mark.skipif(bool(without_gpu()), reason=without_gpu())
def test_a_small_matrix_against_cusparse(tmp_path):
    arguments = ["--matrices", "poisson5:20,20", "--machine", "box", "--out", str(tmp_path)]
    assert calls_gpu.main(arguments) == 0
    run = Run.load(next(tmp_path.glob("calls-gpu-box-*.json.gz")))
    assert len(run.records) == 9 and not run.failures and all(r.error < 1e-10 for r in run.records)
