"""The baseline of the paper on ILUPACK's GMRES, cuSPARSE under M^-1, and GMRES with a clock around each stage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.harness.clock import elapsed, mark
from finelu.device import namespace, on_gpu, to_host
from finelu.kernels import kernels_for, monitor

SEED, RTOL, RESTART, MAXITER = 0, 1e-8, 30, 500
SPMV, PREC, MGSO, COPIES, OTHER = "SpMV", "M^-1", "MGSO", "copies", "other"
STAGES = (SPMV, PREC, MGSO, COPIES, OTHER)


# M^-1 -----------------------------------------------------------------------------------------------------------------


class Parts:
    """What MultilevelFactors keeps, on the host: the one place here that knows its attributes.

    low_memory : F and G are parts of A and are applied by equation (11); else D_B U_F and L_G, by (6) to (8).
    levels : L (strictly lower, unit) and U of B; D, the inverse of D_B, where U is unit, else None and U is D_B U_B;
        F, G; rows, columns, row_scale, column_scale; n_B.  last : the inverse of the rest, dense.
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
        r, (t, f, h, s) = xp.zeros(n), (xp.zeros(n_B) for _ in range(4))  # zeros: 0 times the old values is 0
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


# GMRES by stages ------------------------------------------------------------------------------------------------------


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
        first = mark(self.gpu)
        yield
        self._marks.append((self.iteration, stage, first, mark(self.gpu)))

    def forget(self, reached: int) -> None:
        """Iterations from `reached` on were queued after the last that counts."""
        self._marks = [m for m in self._marks if m[0] < reached]

    def ms(self) -> dict[str, float]:
        """Milliseconds of each stage; waits for the device."""
        totals = dict.fromkeys(STAGES, 0.0)
        for _, stage, first, last in self._marks:
            totals[stage] += elapsed(first, last)
        return totals


def staged(
    A: Any,
    apply: Callable[[Any], Any],
    b: Any,
    clock: Clock,
    *,
    on_host: bool = False,
    by_blas: bool = False,
    rtol: float = RTOL,
    restart: int = RESTART,
    maxiter: int = MAXITER,
) -> tuple[Any, int]:
    """(x, iterations) by the steps of `finelu.gmres`, each under its stage of `clock`.

    A : `A @ x`; apply(x) : M^-1 x; both where b lives.  on_host : with the basis, Gram-Schmidt and the small problem on
    the CPU wherever b lives, each vector copied there and back, as in the paper's baseline.  by_blas : Gram-Schmidt by
    `mgs_by_blas`, as in the paper's own version, where b lives.
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
    x, r, q, u, v = xp.zeros_like(b), b.copy(), xp.empty_like(b), home.empty(n), home.empty(n)
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
            k.arnoldi.arnoldi_begin(state, norms, u if on_host else r, Q, g, v)
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
            if on_host:
                with clock(COPIES):
                    copy(w, Q[:, j + 1])
                w = Q[:, j + 1]
            with clock(MGSO):
                if by_blas:
                    mgs_by_blas(Q, j, w, H, v)
                else:
                    k.arnoldi.mgs_step(state, Q, w, H, v)
            with clock(OTHER):
                k.arnoldi.givens_step(state, norms, history, H, c, s, g)
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


def mgs_by_blas(Q: Any, j: int, w: Any, H: Any, v: Any) -> None:
    """v = Q[:, j + 1] is w, orthogonalized and normalized, by the calls of a BLAS: dot and axpy a column, a norm."""
    Q[:, j + 1] = w
    w = Q[:, j + 1]
    if on_gpu(w):
        from cupy import cublas

        for i in range(j + 1):
            h = cublas.dot(Q[:, i], w)
            cublas.axpy(-h, Q[:, i], w)
            H[i, j] = h
        h = cublas.nrm2(w)
    else:
        for i in range(j + 1):
            h = Q[:, i] @ w
            w -= h * Q[:, i]
            H[i, j] = h
        h = np.linalg.norm(w)
    H[j + 1, j] = h
    w /= h
    v[:] = w


def _basis(n: int, columns: int, home, *, pinned: bool):
    """Room for (n, columns), by columns; if pinned, in memory to which a GPU copies at full speed."""
    if not pinned:
        return home.zeros((n, columns), order="F")
    from cupyx import empty_pinned

    return empty_pinned((n, columns), np.float64, order="F")


def copy(source: Any, target: Any) -> None:
    """Between host and device, or on one of them; waits for a copy to the host."""
    if on_gpu(source) and not on_gpu(target):
        source.get(out=target)
    elif on_gpu(target) and not on_gpu(source):
        target.set(source)
    else:
        target[...] = source
