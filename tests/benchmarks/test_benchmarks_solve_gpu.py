"""The benchmark of `solve` on a GPU against the CPU of the machine: what it measures, and what its tables say."""

import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from checks import without_gpu

import finelu

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.claims import solve_gpu  # noqa: E402
from benchmarks.claims.solve_gpu import CPU, CUDSS, GPU, SPLU  # noqa: E402
from benchmarks.harness.record import Record, Run  # noqa: E402
from benchmarks.peers import PeerError  # noqa: E402


def record(name, variant, ms, error=1e-9, converged=True):
    detail = {"first": 9.0, "converged": converged, "recipes": ["IC0"], "method": "cg", "iterations": 3, "status": "X"}
    detail = detail if variant in (GPU, CPU) else {}
    return Record(name, "solution", "gpu", variant, variant, ms, None, error, detail=detail)


def test_only_right_answers_are_compared():
    run = Run("solve-gpu", {}, "2026-01-02", matrices={k: {"n": n, "nnz": 9} for k, n in (("A", 10), ("B", 10**6))})
    run.records = [record("A", GPU, 2.0), record("A", CPU, 4.0), record("B", GPU, 1.0), record("B", CPU, 8.0)]
    assert solve_gpu.ratios(run, (CPU,), ["A", "B"]) == [(2.0, "A"), (8.0, "B")]
    run.records += [record("A", SPLU, 1.0, error=1e-3), record("A", CUDSS, 3.0), record("B", SPLU, 0.5)]
    assert solve_gpu.ratios(run, (CUDSS, SPLU), ["A", "B"]) == [(0.5, "B"), (1.5, "A")]
    text = solve_gpu.claims(run)
    assert "4.00" in text and "0.50 B" in text and "2 on the GPU, 2 on the CPU" in text and "none" in text
    run.records[0].error = 1e-3  # claims to have converged
    assert solve_gpu.ratios(run, (CPU,), ["A"]) == [(0.0, "A")]
    assert "Claims that are false: A." in solve_gpu.claims(run)
    assert "IC0: cg, 3, X" in solve_gpu.times(run)


def test_calls_are_repeated_while_they_are_short():
    calls = []
    first, ms, last = solve_gpu.timed(lambda: calls.append(0) or len(calls), gpu=False)
    assert len(calls) == last == solve_gpu.MOST + 1 and first >= 0 and ms >= 0


def test_a_peer_that_takes_too_long_is_stopped():
    A = sp.csr_matrix(finelu.gallery.poisson7(6))
    b = np.ones(A.shape[0])
    seconds, x = solve_gpu.splu_apart(A, b, 60.0, {})
    assert seconds > 0 and np.linalg.norm(A @ x - b) < 1e-10
    assert solve_gpu.splu_apart(sp.csr_matrix(finelu.gallery.poisson7(60)), np.ones(60**3), 0.01, {}) is None
    with pytest.raises(PeerError, match=r"stopped after 0\.05 s"), solve_gpu.ended_after(0.05):
        threading.Event().wait(60)


@pytest.mark.gpu
@pytest.mark.skipif(bool(without_gpu()), reason=without_gpu())
def test_a_small_system_on_both(tmp_path):
    arguments = ["--matrices", "poisson5:20,20", "--machine", "box", "--out", str(tmp_path)]
    assert solve_gpu.main(arguments) == 0
    run = Run.load(next(tmp_path.glob("solve-gpu-box-*.json.gz")))
    assert {r.variant for r in run.records} == {GPU, CPU} and not run.failures
    assert all(r.error <= solve_gpu.TWICE for r in run.records)
