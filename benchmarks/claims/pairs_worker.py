"""The process in which `benchmarks.claims.pairs` measures one source tree: only public names of finelu are used here.

It runs from the tree that compares, with the `src` of the tree that is measured in PYTHONPATH: so neither knows where
the other keeps its benchmarks. It receives ("open", part, case, path) and answers with the calls of that case, what
each gave, and the ms it took when warm; ("time", call, repeats) and answers with the median ms of that many calls,
and of the processor's time.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu as fl
from benchmarks.harness.clock import cpu_time, gpu_time

SEED, RTOL, BUFFERS = 0, 1e-8, 3
RESTART = 30
SYMMETRIC = 1e-12  # relative; with a positive diagonal, what a Cholesky factorization is tried on


@dataclass
class Call:
    """A call that is timed.

    queued : on a GPU it is timed as in the loop of a Krylov method, where launches overlap with work; else from an idle
    device to an idle device, so that the work of the host counts.  b : factors are compared by their solve of it.
    """

    name: str
    call: Callable[[int], Any]
    queued: bool = False
    b: Any = None

    def answer(self) -> tuple[str, np.ndarray]:
        """(status and iterations, or entries; numbers on the host) of the result of the call."""
        found = self.call(0)
        if isinstance(found, fl.Solution):
            return f"{found.status.name.lower()} after {found.iterations}", host(found.x)
        if isinstance(found, fl.Factors):
            return f"{found.nnz} entries", host(found.solve(self.b))
        if isinstance(found, fl.TriangularSolver):
            return str(found.method), host(found.solve(self.b))
        return "", np.asarray(host(found))


def host(array: Any) -> Any:
    return array.get() if hasattr(array, "get") else array


def vectors(xp: Any, n: int) -> list[Any]:
    rng = np.random.default_rng(SEED)
    return [xp.asarray(rng.uniform(-0.5, 0.5, n)) for _ in range(BUFFERS)]


def positive(S: sp.csr_matrix) -> bool:
    """Whether S is symmetric to rounding with a positive diagonal."""
    difference = abs(S - S.T)
    return (difference.nnz == 0 or difference.max() <= SYMMETRIC * abs(S).max()) and bool((S.diagonal() > 0).all())


def of_factors(recipe: Any, A: Any, right: list[Any]) -> Iterator[Call]:
    """factor, update and solve of a recipe."""
    name, b = type(recipe).__name__, right[0]
    F = recipe.factor(A)
    yield Call(f"{name}().factor(A)", lambda i: recipe.factor(A), b=b)
    yield Call(f"{name} F.update(A)", lambda i: F.update(A), queued=True, b=b)
    yield Call(f"{name} F.solve(b)", lambda i: F.solve(right[i % BUFFERS]), queued=True)


# The parts ------------------------------------------------------------------------------------------------------------


def spine(S: sp.csr_matrix, A: Any, right: list[Any]) -> Iterator[Call]:
    """ILU(0), IC(0), a triangular solve and GMRES."""
    recipe, lower, b = fl.ILU0(), triangle(A), right[0]
    yield from of_factors(recipe, A, right)
    if positive(S):
        yield from of_factors(fl.IC0(), A, right)
    solver = fl.TriangularSolver(lower, lower=True)
    yield Call("TriangularSolver(L)", lambda i: fl.TriangularSolver(lower, lower=True), b=b)
    yield Call("TriangularSolver.solve(b)", lambda i: solver.solve(right[i % BUFFERS]), queued=True)
    F = recipe.factor(A)
    yield Call(
        f"gmres, {RESTART} iterations", lambda i: fl.gmres(A, b, M=F, rtol=1e-15, restart=RESTART, maxiter=RESTART)
    )


def triangle(A: Any) -> Any:
    """The lower triangle of a sparse matrix, where it lives."""
    if sp.issparse(A):
        return sp.tril(A, format="csr")
    import cupyx.scipy.sparse as csp

    return csp.csr_matrix(sp.tril(A.get(), format="csr"))


def parilut(S: sp.csr_matrix, A: Any, right: list[Any]) -> Iterator[Call]:
    """The factorizations by fixed-point sweeps."""
    for recipe in (fl.ParILU(), fl.ParILUT(), *([fl.ParICT()] if positive(S) else [])):
        yield from of_factors(recipe, A, right)


def ilupack(S: sp.csr_matrix, A: Any, right: list[Any]) -> Iterator[Call]:
    """The multilevel factorization, and GMRES with it."""
    recipe = fl.MultilevelILU()
    yield from of_factors(recipe, A, right)
    F, b = recipe.factor(A), right[0]
    yield Call("gmres with it", lambda i: fl.gmres(A, b, M=F, rtol=RTOL, restart=RESTART))


def solve(S: sp.csr_matrix, A: Any, right: list[Any]) -> Iterator[Call]:
    yield Call("solve(A, b)", lambda i: fl.solve(A, right[i % BUFFERS], rtol=RTOL))


def selection(case: str, xp: Any) -> Iterator[Call]:
    """Thresholds among 2^k numbers."""
    x = xp.asarray(np.random.default_rng(SEED).standard_normal(2 ** int(case.removeprefix("2^"))))
    k = x.size // 3
    yield Call("threshold, exact", lambda i: fl.selection.threshold(x, k), queued=True)
    yield Call("threshold, approximate", lambda i: fl.selection.threshold(x, k, exact=False), queued=True)
    yield Call("kth_smallest", lambda i: fl.selection.kth_smallest(x, k), queued=True)


def fgbilu(case: str, xp: Any) -> Iterator[Call]:
    """Block ILU(0) on a grid, "EDGE^3, n", and of the same matrix as BSR."""
    edge, n = (int(part) for part in case.split("^3, "))
    rng = np.random.default_rng(SEED)
    blocks = rng.standard_normal((7, edge, edge, edge, n, n)) / (8 * n)
    blocks[3] += 2 * np.eye(n)
    A, right = fl.StencilMatrix(xp.asarray(blocks)), vectors(xp, edge**3 * n)
    bsr = fl.StencilMatrix(blocks).to_bsr()
    B = fl.BlockMatrix(*(xp.asarray(array) for array in (bsr.data, bsr.indices, bsr.indptr)))
    for matrix, kind in ((A, "grid"), (B, "BSR")):
        for call in of_factors(fl.BlockILU0(), matrix, right):
            call.name += f", {kind}"
            yield call
    bare = fl.BlockILU0(pivoting=False)
    yield Call("BlockILU0(pivoting=False).factor(A), grid", lambda i: bare.factor(A), b=right[0])
    yield Call("A @ x, grid", lambda i: A @ right[i % BUFFERS], queued=True)
    F = bare.factor(A)
    yield Call("richardson, 3 steps", lambda i: fl.richardson(A, right[0], M=F, maxiter=3, rtol=0.0))


OF_MATRICES = {"spine": spine, "parilut": parilut, "ilupack": ilupack, "solve": solve}
GENERATED = {"selection": selection, "fgbilu": fgbilu}


def calls_of(part: str, case: str, path: str, gpu: bool) -> Iterator[Call]:
    """The calls of a part for a case.  path : of its matrix as .npz; "" where the part makes its own."""
    if gpu:
        import cupy as xp
        import cupyx.scipy.sparse as csp
    else:
        xp, csp = np, sp
    if part in GENERATED:
        return GENERATED[part](case, xp)
    S = sp.csr_matrix(sp.load_npz(path))
    return OF_MATRICES[part](S, csp.csr_matrix(S), vectors(xp, S.shape[0]))


def timed(call: Call, repeats: int, gpu: bool) -> tuple[float, float]:
    """Median ms of the call, and of the processor's time in all threads (on a GPU: until the call returned)."""
    if gpu:
        found = gpu_time(call.call, repeats, host=not call.queued, warm=1)
        return found.ms, found.host_ms
    processor: list[float] = []

    def counted(i: int) -> None:
        begin = time.process_time()
        call.call(i)
        processor.append(1e3 * (time.process_time() - begin))

    found = cpu_time(counted, repeats, warm=1)
    return found.ms, median(processor[-repeats:])


def serve(pipe: Connection, threads: int, gpu: bool) -> None:
    """The loop of the process, until the other end of the pipe is closed."""
    warnings.simplefilter("ignore")  # the two trees may warn differently
    fl.set_num_threads(threads)
    pipe.send(fl.__file__)
    calls: dict[str, Call] = {}
    while True:
        try:
            what, *wanted = pipe.recv()
        except EOFError:
            return
        if what == "time":
            name, repeats = wanted
            pipe.send(timed(calls[name], repeats, gpu))
            continue
        calls.clear()
        answers = {}
        try:
            for call in calls_of(*wanted, gpu):
                calls[call.name] = call
                answers[call.name] = (*call.answer(), timed(call, 1, gpu)[0])
        except (fl.FineluError, MemoryError) as error:
            answers = {"": (f"{type(error).__name__}: {error}", np.zeros(0), 0.0)}
        pipe.send(answers)


if __name__ == "__main__":
    serve(Connection(int(sys.argv[1])), int(sys.argv[2]), sys.argv[3] == "gpu")
