"""CuPy's own way to solve A x = b on a GPU: spilu(fill_factor=1) and gmres(restart=30) to 1e-8, in a child process.

`python -m benchmarks.peers.cupy_spilu NAME [--path FILE] [--limit SECONDS]` prints one JSON object. In a process of
its own, because a solve may take minutes: it stops at the first restart past the limit, and is killed if it does not.
With fill_factor=1 CuPy factors on the GPU by csrilu02; its `solve` repeats SpSM's analysis at each call.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.harness import ROOT
from benchmarks.harness.suite import Problem
from benchmarks.peers import PeerError

RTOL, RESTART, MAXITER = 1e-8, 30, 3000
START_UP = 90.0  # seconds for imports, the matrix and a small solve that compiles the kernels
ENOUGH = 5.0  # seconds after which a solve is not repeated


class _OutOfTime(Exception):
    pass


def right_hand_side(S: Any) -> np.ndarray:
    """b = A x for a random x, the same for every solver of this matrix."""
    return S @ np.random.default_rng(7).standard_normal(S.shape[0])


def run_apart(problem: Problem, limit: float) -> dict[str, Any]:
    """Solve in a child process; returns ms, relative_residual, iterations, converged, stopped (after `limit` s)."""
    command = [sys.executable, "-m", "benchmarks.peers.cupy_spilu", problem.name, "--limit", str(limit)]
    if problem.path:
        command += ["--path", str(problem.path.resolve())]
    try:
        child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit + START_UP, check=False)
    except subprocess.TimeoutExpired:
        return {"ms": 1e3 * limit, "stopped": True, "converged": False}
    if child.returncode:
        raise PeerError(f"CuPy's spilu and gmres: {(child.stderr.strip().splitlines() or ['no message'])[-1]}")
    return json.loads(child.stdout.splitlines()[-1])


def solve(A: Any, b: Any, limit: float) -> dict[str, Any]:
    """One solve from the matrix to x on the GPU, timed from an idle device to an idle device."""
    import cupy
    import cupyx.scipy.sparse.linalg as splinalg

    restarts = 0

    def watch(_):
        nonlocal restarts
        restarts += 1
        if time.perf_counter() - start > limit:
            raise _OutOfTime

    stream = cupy.cuda.get_current_stream()
    stream.synchronize()
    start = time.perf_counter()
    x, info, stopped = None, -1, False
    try:
        M = splinalg.LinearOperator(A.shape, splinalg.spilu(A, fill_factor=1).solve, dtype=A.dtype)
        x, info = splinalg.gmres(
            A, b, rtol=RTOL, restart=RESTART, maxiter=MAXITER, M=M, callback=watch, callback_type="pr_norm"
        )
    except _OutOfTime:
        stopped = True
    stream.synchronize()
    ms = 1e3 * (time.perf_counter() - start)
    residual = None if x is None else float(cupy.linalg.norm(b - A @ x) / cupy.linalg.norm(b))
    return {
        "ms": ms,
        "iterations": restarts * RESTART,
        "converged": info == 0,
        "stopped": stopped,
        "relative_residual": residual,
    }


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.cupy_spilu", description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--path", type=Path)
    parser.add_argument("--limit", type=float, default=60.0)
    options = parser.parse_args(argv)

    import cupy
    import cupyx.scipy.sparse as csp

    def on_gpu(problem):
        S = problem.load()
        return csp.csr_matrix(S), cupy.asarray(right_hand_side(S))

    solve(*on_gpu(Problem("poisson5:40")), options.limit)
    A, b = on_gpu(Problem(options.name, options.path))
    results = [solve(A, b, options.limit)]
    while len(results) < 3 and sum(r["ms"] for r in results) < 1e3 * ENOUGH:
        results.append(solve(A, b, options.limit))
    print(json.dumps(results[0] | {"ms": median(r["ms"] for r in results), "repeats": len(results)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
