"""Claim: beside the paper's GPU version, M^-1 and all of GMRES are 3 times faster and Gram-Schmidt 10 times.

Tables 2 to 5 of J. I. Aliaga, E. Dufrechou, P. Ezzatti, E. S. Quintana-Ortí, "An efficient GPU version of the
preconditioned GMRES method", 2019, for the matrices at hand, the paper's numbers beside ours. GMRES(30), float64, with
MultilevelILU; right-hand side, tolerance and drop tolerance are not in the paper: b = A x, x standard normal, 1e-8 and
our default (`--drop-tol`). M stands on the right of A here, on the left there.

(a) CPU      finelu on the CPU.
(b) baseline the paper's: A and M^-1 on the GPU, by cuSPARSE's SpMV and SpSV and equation (11); modified Gram-Schmidt
             and the basis on the CPU, to and from which each vector is copied (pinned memory; a column of its own).
(c) finelu   everything on the GPU.

A stage is the time between events around it, in a loop of this file that takes the very steps of `finelu.gmres`; the
total of (a) and (c) is that of `finelu.gmres` itself, of (b) that of the loop without events.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks import measure
from benchmarks.common import (
    WORST_CASE,
    Budget,
    Problem,
    Record,
    Run,
    RunEnded,
    add_options,
    command,
    cpu_time,
    gpu_time,
    mean,
    names_of,
    new_run,
    ratio,
    suite,
    table,
)
from benchmarks.spine import have_gpu
from finelu.device import namespace, on_gpu, to_host
from finelu.kernels import kernels_for, monitor
from finelu.krylov.operators import as_operator

SEED, RTOL, RESTART, MAXITER = 0, 1e-8, 30, 500
ROUNDING = 1.01  # the residual here and that of finelu are rounded differently
AGREE = 1e-6  # relative: how far two ways to apply the same M may be apart
ENOUGH = 2.0  # seconds after which a solve is not repeated
SPMV, PREC, MGSO, COPIES, OTHER = "SpMV", "M^-1", "MGSO", "copies", "other"
STAGES = (SPMV, PREC, MGSO, COPIES, OTHER)
VARIANTS = {"a": "(a) CPU", "b": "(b) baseline", "c": "(c) finelu"}

TABLE_2 = {  # n and nnz, which counts one triangle of a symmetric matrix
    "apache2": (715176, 2766523),
    "ASIC_320ks": (321671, 1827807),
    "atmosmodd": (1270432, 8814880),
    "cage13": (445315, 7479343),
    "ecology2": (999999, 2997995),
    "G3_circuit": (1585478, 4623152),
    "lung2": (109460, 492564),
    "parabolic_fem": (525825, 2100225),
    "ship_003": (121728, 4103881),
    "thermomech_dK": (204316, 2846228),
}
# Seconds of SpMV, application of M^-1, MGSO, other, total. Table 3, CPU (an i7-6700; "other" is what is left of the
# total); Tables 4 and 5, the baseline and the paper's own, with a TITAN X (Maxwell) and a GTX 1080 Ti (Pascal).
ITERATIONS = {
    "apache2": 5,
    "ASIC_320ks": 2,
    "atmosmodd": 46,
    "cage13": 7,
    "ecology2": 5,
    "G3_circuit": 5,
    "lung2": 4,
    "parabolic_fem": 3,
    "ship_003": 5,
    "thermomech_dK": 500,
}
TABLE_3 = {
    "apache2": (0.016, 0.072, 0.026, 0.018, 0.132),
    "ASIC_320ks": (0.006, 0.015, 0.002, 0.007, 0.030),
    "atmosmodd": (0.388, 5.003, 1.561, 0.083, 7.035),
    "cage13": (0.058, 0.122, 0.029, 0.012, 0.221),
    "ecology2": (0.020, 0.097, 0.042, 0.025, 0.184),
    "G3_circuit": (0.034, 0.165, 0.067, 0.041, 0.307),
    "lung2": (0.002, 0.011, 0.002, 0.003, 0.018),
    "parabolic_fem": (0.008, 0.032, 0.007, 0.013, 0.060),
    "ship_003": (0.021, 0.041, 0.004, 0.003, 0.069),
    "thermomech_dK": (1.630, 10.312, 2.697, 0.078, 14.717),
}
TABLE_4 = {
    "apache2": ((0.007, 0.020, 0.025, 0.018, 0.070), (0.007, 0.018, 0.005, 0.018, 0.048)),
    "ASIC_320ks": ((0.002, 0.005, 0.002, 0.007, 0.016), (0.002, 0.003, 0.001, 0.007, 0.013)),
    "atmosmodd": ((0.130, 2.338, 1.564, 0.082, 4.115), (0.131, 1.064, 0.177, 0.082, 1.454)),
    "cage13": ((0.008, 0.063, 0.026, 0.011, 0.108), (0.008, 0.027, 0.006, 0.011, 0.052)),
    "ecology2": ((0.009, 0.025, 0.037, 0.025, 0.096), (0.009, 0.026, 0.006, 0.025, 0.067)),
    "G3_circuit": ((0.014, 0.042, 0.060, 0.040, 0.156), (0.014, 0.043, 0.009, 0.040, 0.106)),
    "lung2": ((0.001, 0.011, 0.002, 0.003, 0.017), (0.001, 0.005, 0.002, 0.003, 0.011)),
    "parabolic_fem": ((0.003, 0.008, 0.008, 0.012, 0.031), (0.003, 0.007, 0.002, 0.012, 0.024)),
    "ship_003": ((0.003, 0.026, 0.004, 0.003, 0.035), (0.003, 0.010, 0.002, 0.003, 0.017)),
    "thermomech_dK": ((0.308, 10.856, 2.692, 0.078, 13.934), (0.311, 3.650, 0.537, 0.078, 4.576)),
}
TABLE_5 = {
    "apache2": ((0.008, 0.017, 0.025, 0.049, 0.098), (0.008, 0.017, 0.004, 0.049, 0.078)),
    "ASIC_320ks": ((0.002, 0.004, 0.001, 0.021, 0.027), (0.002, 0.003, 0.001, 0.021, 0.026)),
    "atmosmodd": ((0.176, 1.507, 1.779, 0.164, 3.625), (0.169, 0.861, 0.173, 0.165, 1.368)),
    "cage13": ((0.010, 0.047, 0.022, 0.030, 0.108), (0.010, 0.023, 0.005, 0.031, 0.069)),
    "ecology2": ((0.010, 0.023, 0.038, 0.069, 0.140), (0.010, 0.025, 0.005, 0.068, 0.109)),
    "G3_circuit": ((0.016, 0.036, 0.066, 0.110, 0.229), (0.016, 0.040, 0.008, 0.109, 0.174)),
    "lung2": ((0.001, 0.007, 0.002, 0.007, 0.017), (0.001, 0.004, 0.001, 0.007, 0.014)),
    "parabolic_fem": ((0.003, 0.006, 0.007, 0.034, 0.051), (0.003, 0.006, 0.002, 0.034, 0.046)),
    "ship_003": ((0.002, 0.015, 0.003, 0.008, 0.028), (0.002, 0.007, 0.001, 0.008, 0.019)),
    "thermomech_dK": ((0.367, 7.015, 2.102, 0.100, 9.584), (0.366, 2.429, 0.487, 0.099, 3.381)),
}

# The paper's own matrices among ours (parabolic_fem in another order of its nodes), and others of their kind.
OWN = {"parabolic_fem_nat": "parabolic_fem", "cage13": "cage13"}
LIKE = {
    "apache2_like": "apache2",
    "atmosmodd_like": "atmosmodd",
    "ecology2_like": "ecology2",
    "g3_circuit_like": "G3_circuit",
    "cage10": "cage13",
    "cage11": "cage13",
}
FIRST = ("parabolic_fem_nat", "cage11", "apache2_like", "ecology2_like", "atmosmodd_like", "g3_circuit_like")


def theirs(name: str) -> str:
    """The paper's name of a matrix that is its own or of its kind, "" for others."""
    return OWN.get(name) or LIKE.get(name, "")


def marked(name: str) -> str:
    """The name, with that of the paper: "=" for its matrix, "~" for one of its kind."""
    return f"{name} {'=' if name in OWN else '~'} {theirs(name)}" if theirs(name) else name


# The baseline -------------------------------------------------------------------------------------------------------


class Parts:
    """What MultilevelFactors keeps, on the host: the one place here that knows its attributes.

    low_memory : F and G are parts of A and are applied by equation (11); else D_B U_F and L_G, by (6) to (8).
    levels : L (strictly lower, unit) and U of B; D, the inverse of D_B, where U is unit, else None and U is D_B U_B;
        F, G; rows, columns, row_scale, column_scale; n_B.  last : the inverse of what is left, dense.
    """

    def __init__(self, factors):
        self.low_memory = factors._low_memory
        self.levels = [self._level(level) for level in factors._levels]
        self.last = to_host(factors._last["N"])

    @staticmethod
    def _level(level) -> SimpleNamespace:
        B, n_B = sp.csr_matrix(to_host(level.B)), level.pivots
        F, G = (sp.csr_matrix(to_host(part["N"])) for part in (level._F, level._G))
        D = None if level.D is None else sp.csr_matrix(to_host(level.D))
        U = sp.triu(B, 0 if D is None else 1, format="csr")
        L = sp.tril(B, -1, format="csr") if D is None else sp.csr_matrix(U.conj().T)
        names = ("rows", "columns", "row_scale", "column_scale")
        vectors = {name: to_host(getattr(level.arranged, name)) for name in names}
        return SimpleNamespace(n_B=n_B, L=L, U=U, D=D, F=F, G=G, **vectors)


class Baseline:
    """M^-1 as the paper's first version applies it: cuSPARSE's SpSV and SpMV, vectors kept, on the GPU.

    Made of the factors' own parts, so that M is the same. SpSV, here : the solver of a triangle, and what moves a
    matrix to where it works; others than cuSPARSE's for a test without a GPU.
    """

    def __init__(self, factors, xp, SpSV=None, here: Callable | None = None):
        if SpSV is None:
            import cupyx.scipy.sparse as csp

            from benchmarks.peers import cusparse

            SpSV, here = cusparse.SpSV, csp.csr_matrix
        parts = Parts(factors)
        self.xp, self.low_memory, self.last = xp, parts.low_memory, xp.asarray(parts.last)
        self.levels = [self._level(part, SpSV, here) for part in parts.levels]

    def _level(self, part, SpSV, here) -> SimpleNamespace:
        xp, n_B, n = self.xp, part.n_B, part.rows.size
        r, (t, f, h, s) = xp.zeros(n), (xp.zeros(n_B) for _ in range(4))  # zeros: 0 times what was there is 0
        d = t if part.D is None else xp.zeros(n_B)
        for matrix in (part.L, part.U, part.F, part.G):
            matrix.sum_duplicates()
        into, out, unit = [(r[:n_B], t), (f, t)], [(d, s), (d, h)], part.D is not None
        lower = SpSV(_arrays(here(part.L)), into, lower=True, unit=True) if part.L.nnz else _Identity(into)
        upper = SpSV(_arrays(here(part.U)), out, lower=False, unit=unit) if part.U.nnz else _Identity(out)
        for triangle in (lower, upper):
            triangle.analyse()
        F, G, D = (here(m) if m is not None and m.nnz else None for m in (part.F, part.G, part.D))
        vectors = {name: xp.asarray(getattr(part, name)) for name in ("rows", "columns", "row_scale", "column_scale")}
        return SimpleNamespace(
            n_B=n_B, r=r, t=t, d=d, f=f, s=s, h=h, lower=lower, upper=upper, F=F, G=G, D=D, **vectors
        )

    def __call__(self, R):
        return self._solve(R, 0)

    def _solve(self, R, depth: int):
        if depth == len(self.levels):
            return self.last @ R
        level, xp = self.levels[depth], self.xp
        xp.take(R, level.rows, out=level.r)
        level.r *= level.row_scale
        y = level.r[level.n_B :]
        level.lower.solve(0)
        if self.low_memory or y.size == 0:
            self._last(level, 0)
        if y.size == 0:
            w = level.s
        else:
            _product(level.G, level.s if self.low_memory else level.t, y, -1.0, 1.0)
            w_C = self._solve(y, depth + 1)
            if self.low_memory:
                _product(level.F, w_C, level.f)
                level.lower.solve(1)
                self._last(level, 1)
                level.s -= level.h
            else:
                _product(level.F, w_C, level.t, -1.0, 1.0)
                self._last(level, 0)
            w = xp.concatenate([level.s, w_C])
        out = xp.empty_like(R)
        out[level.columns] = w * level.column_scale
        return out

    @staticmethod
    def _last(level, pair: int) -> None:
        """s (pair 0) or h (pair 1) = (D_B U_B)^-1 t."""
        if level.D is not None:
            _product(level.D, level.t, level.d)
        level.upper.solve(pair)

    def close(self) -> None:
        """Free the descriptors of cuSPARSE; the device must be idle."""
        for level in self.levels:
            level.lower.close()
            level.upper.close()


class _Identity:
    """A unit triangle without an entry, of which cuSPARSE makes no matrix; used as SpSV is."""

    def __init__(self, pairs):
        self._pairs = pairs

    def analyse(self) -> None:
        """There is nothing to find out."""

    def solve(self, i: int = 0) -> None:
        b, y = self._pairs[i % len(self._pairs)]
        y[:] = b

    def close(self) -> None:
        """There is nothing to free."""


def _arrays(matrix) -> SimpleNamespace:
    return SimpleNamespace(indptr=matrix.indptr, indices=matrix.indices, data=matrix.data)


def _product(A, x, y, alpha: float = 1.0, beta: float = 0.0) -> None:
    """y = alpha A x + beta y, on the GPU in one call of cuSPARSE's SpMV; A is None where it has no entry."""
    if A is not None and on_gpu(y):
        from cupyx import cusparse

        cusparse.spmv(A, x, y=y, alpha=alpha, beta=beta)
    else:
        y *= beta
        if A is not None:
            y += alpha * (A @ x)


# GMRES by stages ----------------------------------------------------------------------------------------------------


class Clock:
    """Where the time goes: `with clock(stage)`; on a GPU by events, on the CPU by its clock.

    off : nothing is recorded.  iteration : the one that is under way.
    """

    def __init__(self, gpu: bool, *, off: bool = False):
        self.gpu, self.off, self.iteration = gpu, off, 0
        self._marks: list[tuple[int, str, Any, Any]] = []

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        if self.off:
            yield
            return
        first = self._now()
        yield
        self._marks.append((self.iteration, stage, first, self._now()))

    def _now(self):
        if not self.gpu:
            return time.perf_counter()
        import cupy

        event = cupy.cuda.Event()
        event.record()
        return event

    def forget(self, reached: int) -> None:
        """Iterations from `reached` on were queued after the last that counts."""
        self._marks = [mark for mark in self._marks if mark[0] < reached]

    def ms(self) -> dict[str, float]:
        """Milliseconds of each stage; waits for the device."""
        totals = dict.fromkeys(STAGES, 0.0)
        elapsed = _on_cpu
        if self.gpu:
            import cupy

            cupy.cuda.get_current_stream().synchronize()
            elapsed = cupy.cuda.get_elapsed_time
        for _, stage, first, last in self._marks:
            totals[stage] += elapsed(first, last)
        return totals


def _on_cpu(first: float, last: float) -> float:
    return 1e3 * (last - first)


def staged(A, apply, b, clock: Clock, *, on_host: bool = False, rtol=RTOL, restart=RESTART, maxiter=MAXITER):
    """(x, iterations) by the steps of `finelu.gmres`, each under its stage of `clock`.

    A : `A @ x`; apply(x) : M^-1 x; both where b lives.  on_host : with the basis, Gram-Schmidt and the small problem on
    the CPU wherever b lives, each vector copied there and back, as in the paper's baseline.
    """
    xp, home = namespace(b), np if on_host else namespace(b)
    k = kernels_for(home.empty(0))
    n, m = b.size, min(restart, maxiter, b.size)
    Q = _basis(n, m + 1, home, pinned=on_host and on_gpu(b))
    H, g, history = home.zeros((m + 1, m), order="F"), home.zeros(m + 1), home.zeros(maxiter + 1)
    c, s, y = (home.zeros(m) for _ in range(3))
    state, norms = home.zeros(4, np.int32), home.zeros(5)
    tolerance = rtol * float(xp.linalg.norm(b))
    norms[[monitor.TOLERANCE, monitor.CLAIM]] = tolerance
    x, r, q, u = xp.zeros_like(b), b.copy(), xp.empty_like(b), home.empty(n)
    done, before = 0, -1
    while True:
        clock.iteration = done
        with clock(OTHER):
            norm = float(xp.linalg.norm(r))
        if norm <= tolerance or done >= maxiter or done == before:
            return x, done
        before = done
        state[:] = home.asarray([monitor.RUNNING, done, 0, 0], np.int32)
        norms[monitor.NORM] = norm
        if on_host:
            with clock(COPIES):
                copy(r, u)
        with clock(OTHER):
            k.arnoldi.arnoldi_begin(state, norms, u if on_host else r, Q, g)
        for j in range(min(m, maxiter - done)):
            if int(state[monitor.CODE]) != monitor.RUNNING:  # a wait, outside of the stages
                break
            clock.iteration = done + j
            if on_host:
                with clock(COPIES):
                    copy(Q[:, j], q)
            with clock(PREC):
                z = apply(q if on_host else Q[:, j])
            with clock(SPMV):
                w = A @ z
                if not on_host:
                    Q[:, j + 1] = w
            if on_host:
                with clock(COPIES):
                    copy(w, Q[:, j + 1])
            with clock(MGSO):
                k.arnoldi.mgs_step(state, Q, j, H)
            with clock(OTHER):
                k.arnoldi.givens_step(state, norms, history, H, c, s, g, j)
        done = int(state[monitor.ITERATIONS])
        clock.forget(done)
        clock.iteration = done - 1
        with clock(OTHER):
            k.arnoldi.hessenberg_solve(state, H, g, y)
            k.arnoldi.combine(state, Q, y, u)
        if on_host:
            with clock(COPIES):
                copy(u, q)
        with clock(PREC):
            z = apply(q if on_host else u)
        with clock(OTHER):
            x += z
        with clock(SPMV):
            r = b - A @ x


def _basis(n: int, columns: int, home, *, pinned: bool):
    """Room for (n, columns), by columns; if pinned, in memory to which a GPU copies at full speed."""
    if not pinned:
        return home.zeros((n, columns), order="F")
    from cupyx import empty_pinned

    return empty_pinned((n, columns), np.float64, order="F")


def copy(source, target) -> None:
    """Between host and device, or on one of them; waits for a copy to the host."""
    if on_gpu(source) and not on_gpu(target):
        source.get(out=target)
    elif on_gpu(target) and not on_gpu(source):
        target.set(source)
    else:
        target[...] = source


# Measuring ----------------------------------------------------------------------------------------------------------


def load(problem: Problem) -> sp.csr_matrix:
    """The matrix; unlike `Problem.load` with zeros on its diagonal, if it has them."""
    S = finelu.read_matrix(problem.path) if problem.path else finelu.gallery.problem(problem.name)
    S = sp.csr_matrix(S, dtype=np.float64)
    S.sort_indices()
    return S


def repeated(call: Callable[[], Any], *, warm: bool) -> list[tuple[float, Any]]:
    """(ms, what call() gave), up to five times or until ENOUGH seconds are spent; warm=False: after one for itself."""
    if not warm:
        call()
    found: list[tuple[float, Any]] = []
    while not found or (len(found) < 5 and sum(ms for ms, _ in found) < 1e3 * ENOUGH):
        begin = time.perf_counter()
        result = call()
        found.append((1e3 * (time.perf_counter() - begin), result))
    return found


def measure_variant(run: Run, name: str, S, b, variant: str, F, apply=None) -> Record:
    """One variant on one matrix.  F : the factors where it works (those of the host for (b)).  apply : (b)'s M^-1."""
    gpu, on_host = variant != "a", variant == "b"
    A_here, b_here, elsewhere = S, b, lambda: None
    if gpu:
        import cupy
        import cupyx.scipy.sparse as csp

        A_here, b_here = csp.csr_matrix(S), cupy.asarray(b)
        elsewhere = cupy.cuda.get_current_stream().synchronize
    apply = apply or F.solve
    A = A_here if on_host else as_operator(A_here, "A", b_here, b_here.dtype)  # cuSPARSE's product; finelu's

    def whole():
        if on_host:
            found = staged(A, apply, b_here, Clock(gpu, off=True), on_host=True)
        else:
            solution = finelu.gmres(A_here, b_here, M=F, rtol=RTOL, restart=RESTART, maxiter=MAXITER)
            found = solution.x, solution.iterations
        elsewhere()
        return found

    def by_stages():
        clock = Clock(gpu)
        staged(A, apply, b_here, clock, on_host=on_host)
        return clock.ms()

    solves = repeated(whole, warm=False)
    clocks = [ms for _, ms in repeated(by_stages, warm=True)]
    x, iterations = solves[-1][1]
    residual = float(np.linalg.norm(b - S @ to_host(x)) / np.linalg.norm(b))
    one = (gpu_time if gpu else cpu_time)(lambda i: apply(b_here))
    detail = {
        "iterations": iterations,
        "converged": residual <= ROUNDING * RTOL,
        "stages": {stage: median(ms[stage] for ms in clocks) for stage in STAGES},
        "application": vars(one),
        "repeats": len(solves),
    }
    record = Record(name, "gmres", "gpu" if gpu else "cpu", "finelu" if variant != "b" else "cusparse", variant,
                    median(ms for ms, _ in solves), error=residual, detail=detail)  # fmt: skip
    record.threads = 0 if gpu else run.options["threads"]
    return record


def agreement(apply, F, b) -> float:
    """How far the baseline's M^-1 b is from the factors' own, relative; RuntimeError if it is another M."""
    ours, other = to_host(F.solve(b)), to_host(apply(b if not on_gpu(apply.last) else apply.xp.asarray(b)))
    apart = float(np.linalg.norm(ours - other) / np.linalg.norm(ours))
    if not apart <= AGREE:
        raise RuntimeError(f"the baseline applies another M: {apart:.2g} apart")
    return apart


def measure_one(run: Run, name: str, S, recipe, gpu: bool) -> None:
    """All variants on one matrix."""
    b = S @ np.random.default_rng(SEED).standard_normal(S.shape[0])
    begin = time.perf_counter()
    F = recipe.factor(S)
    seconds = time.perf_counter() - begin
    levels = [level["n"] for level in F.report["levels"] if level["n"]]
    run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz, "levels": levels, "fill": F.report["fill"]}
    run.matrices[name] |= {"kind": F.report["kind"], "seconds": seconds}
    with run.attempt(name, VARIANTS["a"]):
        run.records.append(measure_variant(run, name, S, b, "a", F))
    if not gpu:
        return
    import cupy
    import cupyx.scipy.sparse as csp

    with run.attempt(name, VARIANTS["b"]):
        baseline = Baseline(F, cupy)
        apart = agreement(baseline, F, b)
        record = measure_variant(run, name, S, b, "b", F, baseline)
        record.detail["apart"] = apart
        run.records.append(record)
        measure.release_gpu()
        baseline.close()
        del baseline
    with run.attempt(name, VARIANTS["c"]):
        F = recipe.factor(csp.csr_matrix(S))
        record = measure_variant(run, name, S, b, "c", F)
        run.records.append(record)
        record.detail["fill"] = F.report["fill"]
        # the same parts by SpSV, so that what the kernels gain stands apart from what another formula does
        baseline = Baseline(F, cupy)
        record.detail["apart"] = agreement(baseline, F, cupy.asarray(b))
        R = cupy.asarray(b)
        record.detail["application by SpSV"] = vars(gpu_time(lambda i: baseline(R)))
        measure.release_gpu()
        baseline.close()


# Tables -------------------------------------------------------------------------------------------------------------


def stage(record: Record | None, name: str) -> float | None:
    """Milliseconds of a stage, or of "total"; None if there is no record."""
    return record and (record.numeric_ms if name == "total" else record.detail["stages"][name])


def comparable(run: Run, matrix: str) -> tuple[Record, Record] | None:
    """(b) and (c), if both converged or both did not within MAXITER iterations."""
    b, c = (run.one(matrix=matrix, variant=v) for v in "bc")
    return (b, c) if b and c and b.detail["converged"] == c.detail["converged"] else None


def gain(run: Run, matrix: str, name: str) -> float | None:
    """How many times faster (c) is than (b) in a stage, in Gram-Schmidt with its copies, or in "total"."""
    pair = comparable(run, matrix)
    if pair is None:
        return None
    if name == "MGSO with copies":
        return ratio(stage(pair[0], MGSO) + stage(pair[0], COPIES), stage(pair[1], MGSO))
    return ratio(stage(pair[0], name), stage(pair[1], name))


def claim_table(run: Run) -> str:
    """The three claims over all matrices; and over the paper's and those of their kind."""
    lines = []
    for label, name, bar in (
        ("application of M^-1", PREC, 3),
        ("Gram-Schmidt, copies not counted", MGSO, 10),
        ("Gram-Schmidt with its copies", "MGSO with copies", None),
        ("whole GMRES", "total", 3),
    ):
        for who, names in (("all", list(run.matrices)), ("the paper's", [m for m in run.matrices if theirs(m)])):
            gains = {m: s for m in names if (s := gain(run, m, name))}
            average = mean(gains.values())
            worst = min(gains, key=lambda m: gains[m]) if gains else None
            holds = "not measured" if average is None else "" if bar is None else "yes" if average >= bar else "no"
            lines.append((label, who, len(gains), bar, average, worst and gains[worst], worst, holds))
    header = ("(c) over (b)", "matrices", "of them", "at least", "geometric mean", "worst", "on", "holds")
    return table(header, lines)


def matrix_table(run: Run) -> str:
    """Table 2."""
    lines: list[tuple] = []
    for name, f in run.matrices.items():
        sizes = ", ".join(map(str, f["levels"]))
        lines.append((marked(name), f["n"], f["nnz"], f["nnz"] / f["n"], f["kind"], sizes, f["fill"], f["seconds"]))
        if theirs(name):
            n, nnz = TABLE_2[theirs(name)]
            lines.append(("paper", n, nnz, nnz / n, "", "", None, None))
    header = ("matrix", "n", "nnz", "nnz/n", "kind", "rows of the levels", "fill", "set-up s")
    return table(header, lines)


def stage_table(run: Run) -> str:
    """Table 3: milliseconds and shares of the stages, of (a) and (b), and of (c) too; the paper's below."""
    lines: list[tuple] = []

    def line(name, variant, iterations, times, copies, other, total, residual):
        shares = [part for ms in times for part in (ms, f"{100 * ms / total:.1f}")]
        lines.append((name, variant, iterations, *shares, copies, other, total, residual))

    for name in run.matrices:
        for variant, label in VARIANTS.items():
            record = run.one(matrix=name, variant=variant)
            if record is None:
                continue
            iterations = record.detail["iterations"]
            shown = str(iterations) if record.detail["converged"] else f">{iterations}"
            times = [stage(record, s) for s in (SPMV, PREC, MGSO)]
            copies = stage(record, COPIES) if variant == "b" else None
            line(marked(name), label, shown, times, copies, stage(record, OTHER), record.numeric_ms, record.error)
        if paper := theirs(name):
            for label, row in (("CPU, i7-6700", TABLE_3[paper]), ("baseline, TITAN X", TABLE_4[paper][0])):
                *times, other, total = (1e3 * seconds for seconds in row)
                line("paper", label, ITERATIONS[paper], times, None, other, total, None)
    header = (
        "matrix",
        "variant",
        "#It.",
        "SpMV",
        "%",
        "M^-1",
        "%",
        "MGSO",
        "%",
        "copies",
        "other",
        "total",
        "residual",
    )
    return table(header, lines) if lines else "Absent: not measured in this run.\n"


def gain_table(run: Run) -> str | None:
    """Tables 4 and 5: milliseconds of (b) and (c), and how many times faster (c) is."""
    lines: list[tuple] = []

    def line(name, where, iterations, pairs):
        lines.append((name, where, iterations, *(v for b, c in pairs for v in (b, c, ratio(b, c)))))

    for name in run.matrices:
        pair = comparable(run, name)
        if pair is None:
            continue
        iterations = "/".join(str(record.detail["iterations"]) for record in pair)
        stages = [tuple(stage(record, s) for record in pair) for s in (SPMV, PREC, MGSO, OTHER, "total")]
        line(marked(name), "here", iterations, stages)
        if paper := theirs(name):
            for where, (b, c) in (("Maxwell", TABLE_4[paper]), ("Pascal", TABLE_5[paper])):
                pairs = [(1e3 * x, 1e3 * y) for x, y in zip(b, c, strict=True)]
                line("paper", where, ITERATIONS[paper], pairs)
    columns = [f"{s} {v}" for s in (SPMV, PREC, MGSO, OTHER, "total") for v in ("(b)", "(c)", "(b)/(c)")]
    return table(("matrix", "where", "#It. (b)/(c)", *columns), lines) if lines else None


def application_table(run: Run) -> str | None:
    """One application of M^-1 by itself: every way of it."""
    lines = []
    for name in run.matrices:
        a, b, c = (run.one(matrix=name, variant=v) for v in "abc")
        ms = [r and r.detail["application"]["ms"] for r in (a, b, c)]
        spsv = c.detail.get("application by SpSV", {}).get("ms") if c else None
        if any(ms):
            apart = max((r.detail.get("apart", 0.0) for r in (b, c) if r), default=None)
            lines.append((marked(name), ms[0], ms[1], spsv, ms[2], ratio(ms[1], ms[2]), ratio(spsv, ms[2]), apart))
    header = ("matrix", "(a) CPU", "(b) SpSV", "SpSV, (c)'s parts", "(c)", "(b)/(c)", "SpSV/(c), same parts", "apart")
    return table(header, lines) if lines else None


def page(run: Run) -> str:
    absent = "Absent: not measured in this run, which had no GPU.\n"
    text = run.heading()
    text += (
        "\n`=`: the paper's matrix (parabolic_fem in another order of its nodes). `~`: of its kind, other entries. "
        f"Milliseconds, the paper's too. GMRES({RESTART}), b = A x with x standard normal (seed {SEED}), "
        f"||b - A x|| <= {RTOL:g} ||b||, computed apart, at most {MAXITER} iterations (`>`: not converged); the paper "
        "does not give its right-hand side and tolerance. Its nnz is that of one triangle where A is symmetric. "
        f"Its matrices that are not at hand: {', '.join(sorted(set(TABLE_2) - {theirs(m) for m in run.matrices}))}. "
        "Stages come from a run with a clock around each, the total from one without, so that they do not quite add "
        "up. Copies are those of the basis vectors of (b), a column of their own.\n"
    )
    text += f"\n## Claims\n\n{claim_table(run)}"
    text += f"\n## Table 2: the matrices\n\n{matrix_table(run)}"
    text += f"\n## Table 3: the stages of GMRES, ms and % of the total\n\n{stage_table(run)}"
    text += f"\n## Tables 4 and 5: (b), (c) and their ratio, ms\n\n{gain_table(run) or absent}"
    text += f"\n## One application of M^-1, ms\n\n{application_table(run) or absent}"
    text += (
        "\n(b) applies equation (11), with two solves each with L_B and U_B a level; (c) keeps L_G and U_F on the GPU, "
        "for one each. `SpSV, (c)'s parts`: cuSPARSE's with the same formula as (c). apart: the largest relative "
        "difference between SpSV's result and that of the factors with the same parts.\n"
    )
    return text + run.footing()


# The run ------------------------------------------------------------------------------------------------------------


def chosen(options) -> list[Problem]:
    """The problems asked for; else the paper's and its kind first, then the real matrices, small files first."""
    if options.matrices or options.quick:
        return suite(options.matrix_folder, names_of(options.matrices), quick=options.quick)
    everything = suite(options.matrix_folder)
    real = sorted((p for p in everything if p.path), key=lambda p: p.path.stat().st_size)
    by_name = {p.name: p for p in everything} | {n: Problem(n) for n in FIRST if n.endswith("_like")}
    first = [by_name[n] for n in (*FIRST, "cage13") if n in by_name]
    taken = {p.name for p in first}
    return first + [p for p in real if p.name not in taken and p.name != WORST_CASE]


def measured(options) -> Run:
    gpu = options.gpu or (not options.cpu and have_gpu())
    run = new_run("ilupack", gpu=gpu, machine_name=options.machine)
    recipe = finelu.MultilevelILU(**({} if options.drop_tol is None else {"drop_tol": options.drop_tol}))
    run.options = {"threads": options.threads, "recipe": repr(recipe)}
    finelu.set_num_threads(options.threads)
    if not gpu:
        run.left_out["(b) and (c)"] = "no GPU here, or not asked for: Tables 4 and 5 are absent"
        print(run.left_out["(b) and (c)"], flush=True)
    problems, budget = chosen(options), Budget(options.budget)
    measure_one(Run("", {}, "", run.options), "warm-up", finelu.gallery.problem("poisson5:40,40"), recipe, gpu)
    try:
        for problem in problems:
            if budget.over():
                run.left_out[problem.name] = "the budget was spent"
                continue
            S = load(problem)
            if options.rows and S.shape[0] > options.rows:
                run.left_out[problem.name] = f"{S.shape[0]} rows"
                continue
            with run.attempt(problem.name, "the factorization"):
                measure_one(run, problem.name, S, recipe, gpu)
            if gpu:
                with run.attempt(problem.name, "the rest of the run", fatal=True):
                    measure.release_gpu()
            run.save(options.out)
            print(f"{budget.spent():5.0f} s  {problem.name}: {S.shape[0]} rows", flush=True)
    except (RunEnded, KeyboardInterrupt) as end:
        run.left_out["the rest"] = f"the run ended early ({type(end).__name__})"
    run.options["seconds"] = round(budget.spent())
    return run


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="finelu bench ilupack", description=__doc__)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--gpu", action="store_true", help="all variants (default if there is a GPU)")
    where.add_argument("--cpu", action="store_true", help="variant (a) only")
    parser.add_argument("--from", dest="source", type=Path, metavar="JSON", help="the tables of what was measured")
    parser.add_argument("--drop-tol", type=float, help="of MultilevelILU (default: its own)")
    parser.add_argument("--threads", type=int, default=2, help="on the CPU (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=0, help="leave out matrices with more rows")
    add_options(parser)
    options = parser.parse_args(argv)
    run = Run.load(options.source) if options.source else measured(options)
    target = run.save(options.out, page(run)).with_suffix(".md")
    print(f"\nTable 3, ms\n{stage_table(run)}\nTables 4 and 5, ms\n{gain_table(run) or 'absent'}")
    print(f"Claims\n{claim_table(run)}\n{len(run.matrices)} matrices, {len(run.failures)} failures; {target}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    command(main)
