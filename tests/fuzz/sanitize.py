"""Every CUDA kernel of finelu at least once, on small systems: a program for compute-sanitizer.

Usage: compute-sanitizer --tool memcheck|racecheck|initcheck|synccheck --error-exitcode 9
           python tests/fuzz/sanitize.py [PART ...]
           [--by-swap] [--launched FILE] [--device cpu]

The parts, each some calls of recipes, methods and launchers, are those of PARTS; all of them without any name. Every
array has memory of its own, taken and given back by the driver, so that the tools see where each one ends. Results are
compared with NumPy's and SciPy's. float64 and complex64, with 32-bit indices: values of one word of 64 bits and of two
of 32.

--by-swap : the kernels that racecheck does not understand as they are, as threads wait for values in shared memory or
    only some warps for each other, are compiled with FINELU_RACECHECK, see runtime/finelu.cuh and subdomains.cu.
--launched : a JSON file for the kernels that were launched, by file, and how often.
--device cpu : the same calls on the CPU, where the names of launchers and their arguments are the same: what can be
    seen of this program without a GPU.

Ends with status 1 if a result is wrong or a part raises, else with 3 if all parts ran and a kernel was not launched.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools"), str(ROOT / "tests")]

import numpy as np  # noqa: E402
import scipy.sparse as sp  # noqa: E402
from block_cases import block_arrays  # noqa: E402
from checks import full, in_dtype, values  # noqa: E402
from stencil_cases import random_blocks  # noqa: E402

import finelu as fl  # noqa: E402
from finelu import gallery  # noqa: E402
from finelu.kernels import kernels_for  # noqa: E402
from finelu.kernels import reference as specification  # noqa: E402
from finelu.kernels.operands import CSR  # noqa: E402
from finelu.matrix import as_csr, lower_triangle  # noqa: E402
from finelu.triangular import triangle  # noqa: E402

DTYPES = ("float64", "complex64")
NEVER, UNLIMITED = float("inf"), 2**62
PARTS: dict[str, Callable[[Device], None]] = {}


def part(function):
    PARTS[function.__name__] = function
    return function


class Device:
    """Where the calls run: `move` brings arrays and matrices there, `fetch` brings them back."""

    def __init__(self, name: str):
        self.gpu = name == "cuda"
        if self.gpu:
            import cupy

            cupy.cuda.set_allocator(None)
            cupy.cuda.set_pinned_memory_allocator(None)
            self.xp = cupy
        else:
            self.xp = np

    @property
    def kernels(self):
        return kernels_for(self.xp.empty(0))

    def move(self, A: Any) -> Any:
        if A is None or not self.gpu:
            return A
        if isinstance(A, CSR):
            return CSR(*(None if v is None else self.xp.asarray(v) for v in (A.indptr, A.indices, A.data, A.diag)))
        if sp.issparse(A):
            import cupyx.scipy.sparse as csp

            A = A.tocsr()
            return csp.csr_matrix(tuple(self.xp.asarray(v) for v in (A.data, A.indices, A.indptr)), shape=A.shape)
        return self.xp.asarray(A)

    def fetch(self, A: Any) -> Any:
        return A.get() if hasattr(A, "get") else A

    def new(self, shape, dtype="float64") -> Any:
        """Zeros, written by the driver and not by a kernel of CuPy's, which would have to be compiled."""
        return self.move(np.zeros(shape, dtype))

    def synchronize(self) -> None:
        if self.gpu:
            self.xp.cuda.Device().synchronize()


# Matrices ------------------------------------------------------------------------------------------------------------


def typed(A, dtype):
    """A real A in `dtype`, Hermitian where A is symmetric, with sorted rows."""
    A = in_dtype(sp.csr_matrix(A), dtype)
    A.sort_indices()
    return A


def long_rows(n, dense=3):
    """Diagonally dominant, some rows and columns of it full: symmetric."""
    rng = np.random.default_rng(n)
    A = sp.random(n, n, 4 / n, random_state=rng, format="lil")
    for i in np.linspace(0, n - 1, dense).astype(int):
        A[i, :] = rng.uniform(-1, 1, n)
    A = sp.csr_matrix(A + A.T)
    A = A - sp.diags(A.diagonal())
    return sp.csr_matrix(A + sp.diags(1.0 + np.asarray(abs(A).sum(axis=1)).ravel()))


def close(d: Device, got, want, what: str, ulps: float = 1e4) -> None:
    got, want = np.asarray(d.fetch(got)), np.asarray(d.fetch(want))
    real = np.finfo(want.dtype).eps if want.dtype.kind in "fc" else 0.0
    bound = ulps * real * max(float(abs(want).max(initial=0.0)), 1e-300)
    wrong = abs(got - want).max(initial=0.0)
    if got.shape != want.shape or not wrong <= bound:
        raise AssertionError(f"{what}: off by {wrong:.3g} where {bound:.3g} is allowed")


def solved(d: Device, A, solution, b, what: str, rtol=1e-6) -> None:
    """A claim of a method is true. A, b : on the host."""
    x = np.asarray(d.fetch(solution.x))
    r = np.linalg.norm(b - A @ x) / np.linalg.norm(b)
    if not solution.converged or not r <= 10 * rtol:
        raise AssertionError(f"{what}: {solution.status.name}, relative residual {r:.3g}")


# Elimination and triangular solves -----------------------------------------------------------------------------------


def eliminated(d: Device, kind: type, variants: tuple[str, ...], kinds: dict[str, Any]) -> None:
    for dtype in DTYPES:
        for name, S in kinds.items():
            A = typed(S, dtype)
            b = values(A.shape[0], dtype)
            want = kind().factor(A).solve(b)
            for variant in variants if d.gpu else ("auto",):
                F = kind(variant=variant).factor(d.move(A))
                close(d, F.solve(d.move(b)), want, f"{kind.__name__} {variant} {name} {dtype}")
                F.update(d.move(A))
                F.update(d.move(A))
                close(d, F.solve(d.move(b)), want, f"{kind.__name__} {variant} {name} {dtype} after updates")


SHORT = {"grid": gallery.poisson7(7, 6, 5)}
SOME_LONG = {"long rows": long_rows(300), "grid of 27 points": gallery.poisson27(6)}
VERY_LONG = {"arrow": gallery.arrow(1100)}


@part
def ilu0(d):
    eliminated(d, fl.ILU0, ("shared", "vect", "adapt", "natural", "levs", "table"), SHORT)


@part
def ilu0_of_long_rows(d):
    eliminated(d, fl.ILU0, ("shared", "vect", "adapt", "natural", "table"), SOME_LONG)
    eliminated(d, fl.ILU0, ("adapt", "natural", "table"), VERY_LONG)


@part
def ic0(d):
    eliminated(d, fl.IC0, ("adapt", "natural", "levs", "table"), SHORT)


@part
def ic0_of_long_rows(d):
    eliminated(d, fl.IC0, ("adapt", "natural", "table"), SOME_LONG | VERY_LONG)


@part
def milu0(d):
    eliminated(d, fl.MILU0, ("adapt", "natural", "levs", "table"), SHORT | SOME_LONG)


def triangles_of(d, S):
    exact = ("sync_free", "level_packed", "one_block") if d.gpu else ("auto",)
    for dtype in DTYPES:
        A = typed(S, dtype)
        moved = as_csr(d.move(A))
        for lower, trans in ((True, "N"), (False, "N"), (True, "T"), (False, "H")):
            T = sp.tril(A) if lower else sp.triu(A)
            T = (T if trans == "N" else T.T if trans == "T" else T.conj().T).toarray()
            solvers = {m: fl.TriangularSolver(moved, lower=lower, trans=trans, method=m) for m in exact}
            for shape in ((), (3,)):
                b = values((A.shape[0], *shape), dtype)
                want = np.linalg.solve(T, b)
                for method, solver in solvers.items():
                    close(d, solver.solve(d.move(b)), want, f"{method} {lower} {trans} {dtype}")


@part
def triangular(d):
    triangles_of(d, gallery.poisson7(5, 5, 4))


@part
def triangular_of_long_rows(d):
    triangles_of(d, long_rows(150))


@part
def triangular_of_a_chain(d):
    triangles_of(d, gallery.tridiagonal(200, diagonal=4.0))


@part
def triangular_by_iteration(d):
    A = typed(gallery.poisson7(7, 6, 5), "float64")
    b = values(A.shape[0], "float64")
    want = np.linalg.solve(sp.tril(A).toarray(), b)
    for method, sweeps in (("jacobi", 40), ("isai", 40)):
        for trans in ("N", "T"):
            solver = fl.TriangularSolver(as_csr(d.move(A)), trans=trans, method=method, sweeps=sweeps)
            x = solver.solve(d.move(b))
            if trans == "N":
                close(d, x, want, method, 1e8)


@part
def levels(d):
    for S in (gallery.poisson7(7, 6, 5), long_rows(300), gallery.tridiagonal(3000)):
        A = as_csr(sp.csr_matrix(S))
        for lower, trans in ((True, "N"), (False, "N"), (True, "T")):
            want, depth = kernels_for(A.data).levels.levels(triangle(A, lower, True, trans))
            level, found = d.kernels.levels.levels(triangle(d.move(A), lower, True, trans))
            close(d, level, want, "levels")
            assert found == depth


# Krylov methods ------------------------------------------------------------------------------------------------------


RTOL = {"float64": 1e-8, "complex64": 1e-4}


def solved_by(d, name, A, dtype):
    b, moved = values(A.shape[0], dtype), d.move(A)
    M = None if name in ("minres", "sqmr") else fl.Jacobi().factor(moved)
    solution = getattr(fl, name)(moved, d.move(b), M=M, rtol=RTOL[dtype], maxiter=1500)
    solved(d, A, solution, b, f"{name} {dtype}", RTOL[dtype])


@part
def methods_for_symmetric(d):
    for dtype in DTYPES:
        shifted = typed(gallery.poisson5(13, 12) - 0.3 * sp.eye(13 * 12), dtype)
        symmetric = shifted if dtype == "float64" else sp.csr_matrix(gallery.helmholtz(12, 5.0).astype(dtype))
        solved_by(d, "cg", typed(gallery.poisson7(9, 8, 7), dtype), dtype)
        solved_by(d, "minres", shifted, dtype)
        solved_by(d, "sqmr", symmetric, dtype)


@part
def methods(d):
    for dtype in DTYPES:
        rtol = RTOL[dtype]
        wind = typed(gallery.convection_diffusion(9, 8, 7, peclet=20), dtype)
        for name in ("bicg", "bicgstab", "gmres", "fgmres"):
            solved_by(d, name, wind, dtype)
        b = values(wind.shape[0], dtype)
        M = fl.ILU0().factor(d.move(wind))
        solution = fl.gmres(d.move(wind), d.move(b), M=M, rtol=rtol, restart=7, orthogonalization="cgs2")
        solved(d, wind, solution, b, f"cgs2 {dtype}", rtol)
        solution = fl.richardson(d.move(wind), d.move(b), M=M, rtol=rtol, maxiter=500)
        solved(d, wind, solution, b, f"richardson {dtype}", rtol)


@part
def long_vectors(d):
    """The form of modified Gram-Schmidt that does not keep its vector in registers."""
    n = 300_000 if d.gpu else 3000
    A = typed(sp.diags([np.full(n - 1, -1.0), np.full(n, 4.0), np.full(n - 1, -1.0)], [-1, 0, 1]), "float64")
    b = values(n, "float64")
    solved(d, A, fl.gmres(d.move(A), d.move(b), rtol=1e-3, restart=5), b, "gmres", 1e-3)


@part
def whole_solves(d):
    for dtype in DTYPES:
        for S in (gallery.poisson5(20), gallery.convection_diffusion(9, 8, 7, peclet=20), long_rows(300)):
            A = typed(S, dtype)
            b = values(A.shape[0], dtype)
            rtol = 1e-10 if dtype == "float64" else 1e-4
            solved(d, A, fl.solve(d.move(A), d.move(b), rtol=rtol), b, f"solve {dtype}", rtol)


# Vectors, lists, matrices --------------------------------------------------------------------------------------------


@part
def vectors(d):
    k, n, rng = d.kernels.vectors, 3000, np.random.default_rng(0)
    for dtype in DTYPES:
        x, y, real = values(n, dtype, 1), values(n, dtype, 2), np.dtype(dtype.replace("complex64", "float32"))
        X, Y, out, size = d.move(x), d.move(y), d.new(1, dtype), d.new(1, real)
        for function, want in ((k.dot, np.vdot(x, y)), (k.dotu, x @ y)):
            function(X, Y, out)
            close(d, out, np.array([want]), f"a product {dtype}", 1e6)
        for factor in (1.0, 1e30 if real == "float32" else 1e200):
            k.norm(d.move(x * np.dtype(real).type(factor)), size)
            close(d, size, np.array([np.linalg.norm(x)], real) * np.dtype(real).type(factor), "a norm", 1e6)
        k.dot_and_norm(X, Y, out, size)
        close(d, size, np.array([np.linalg.norm(x)], real), "a norm", 1e6)
        k.size_of_dot(X, Y, size)
        close(d, k.added(X, Y), x + y, "added", 4)
        half = d.new(n, dtype)
        k.scaled(d.move(np.full(1, 0.5, real)), X, half)
        close(d, half, 0.5 * x, "scaled", 0)
        close(d, np.array([k.largest(X)], real), np.array([abs(x).max()], real), "largest", 4)
        r = d.new(n, dtype)
        k.difference(X, Y, r)
        close(d, r, x - y, "difference", 4)
        places = rng.permutation(n)[:1500].astype(np.int32)
        close(d, k.gather(X, d.move(places)), x[places], "gather", 0)
        columns = values((n, 3), dtype)
        close(d, k.gather(d.move(columns), d.move(places)), columns[places], "gather", 0)
        scale = (abs(values(1500, "float64")) + 1).astype(real)
        close(d, k.gather_scaled(d.move(places), d.move(scale), X), scale * x[places], "gather_scaled", 4)
        order = rng.permutation(n).astype(np.int32)
        whole = (abs(values(n, "float64")) + 1).astype(real)
        for t in (None, Y):
            k.scatter_scaled(d.move(order), d.move(whole), X, t, None)
        assert k.first_not_finite(X) == -1
        positive = (abs(x) + 1).astype(dtype)
        assert k.first_not_positive(d.move(positive), d.move(places)) == -1
        if real == dtype:
            assert k.first_of_other_sign(d.move(positive), d.move(places), d.move(np.ones(1500))) == -1
        for words in (np.uint8, np.uint16, np.int32, np.int64):
            z = rng.integers(0, 100, n).astype(words)
            close(d, k.gather(d.move(z), d.move(places)), z[places], "gather", 0)


@part
def indices(d):
    k, n, rng = d.kernels.indices, 5000, np.random.default_rng(0)
    counts = rng.integers(0, 7, n).astype(np.int32)
    pointers, total = k.pointers(d.move(counts))
    close(d, pointers, np.r_[0, np.cumsum(counts)], "pointers")
    assert total == counts.sum() and k.longest(pointers) == counts.max()
    rows = np.repeat(np.arange(n), counts)
    close(d, k.rows_of_entries(pointers, total), rows, "rows")
    close(d, k.entries(pointers, total, d.move(rng.integers(0, 9, n).astype(np.int32)))[0], rows, "rows")
    order = rng.permutation(n).astype(np.int32)
    close(d, k.inverse(d.move(order)), np.argsort(order), "inverse")
    numbers = np.sort(rng.integers(0, n, 2 * n)).astype(np.int32)
    close(d, k.starts(d.move(numbers), n), np.searchsorted(numbers, np.arange(n + 1)), "starts")
    close(d, k.lengths(d.move(order), d.move(order + counts)), counts, "lengths")
    close(d, k.shifted(d.move(order), 1, np.int64), order + 1, "shifted")
    close(d, k.progression(n, 3, 2, np.int32, pointers), 3 + 2 * np.arange(n), "progression")


@part
def inspection(d):
    k = d.kernels.inspection
    for dtype in DTYPES:
        for S in (gallery.poisson7(8), long_rows(300)):
            A = as_csr(typed(S, dtype))
            M = d.move(A)
            fl.properties.properties(d.move(typed(S, dtype)))
            assert k.inspect(M.indptr, M.indices, M.data, d.new(A.n, np.int32))[0] == -1
            assert k.mirrored(M.indptr, M.indices, M.data, M.diag)[-1] > 0
            assert k.diagonal(M.data, M.diag)[0] == 0
            if dtype == "float64":
                assert len(k.signs(M.indptr, M.indices, M.data, M.diag, 0.5, 0.8)) == 5
            assert k.same(M.indices, d.move(A.indices.copy()))
            assert k.alike(M.indptr, M.indices, M.data, M.indptr, M.indices)
            shuffled = sp.coo_matrix(typed(S, dtype))
            order = np.random.default_rng(0).permutation(shuffled.nnz)
            rows, columns, data = (v[order] for v in (shuffled.row, shuffled.col, shuffled.data))
            unsorted = sp.coo_matrix((data, (rows, columns)), shape=S.shape).tocsr()
            close(d, as_csr(d.move(unsorted)).data, A.data, "sorted", 0)


@part
def products(d):
    k = d.kernels.products
    for dtype in DTYPES:
        real = "float64" if dtype == "float64" else "float32"
        for S in (gallery.poisson7(9), long_rows(400), full(300, hermitian=True)):
            A = typed(S, dtype)
            n, x, b, M = A.shape[0], values(A.shape[0], dtype, 1), values(A.shape[0], dtype, 2), d.move(as_csr(A))
            product, total = k.Product(M), d.new(1, dtype)
            close(d, product(d.move(x)), A @ x, "product")
            close(d, product.with_dot(d.move(x), d.move(b), total), A @ x, "product and dot")
            r, bound = d.new(n, dtype), d.new(n, real)
            given = M.indptr, M.indices, M.data, d.move(x), d.move(b)
            k.residual(*given, 1.0, r, bound)
            close(d, r, b - A @ x, "residual", 1e6)
            terms = k.magnitudes_of_terms(M.indptr, bound, 1.0)
            lengths = np.diff(A.indptr) + 1
            close(d, terms, d.fetch(bound).astype(np.float64) / lengths, "the magnitudes of terms", 4)
            k.residual_twice(*given, 1.0, r)
            close(d, r, b - A @ x, "residual in twice the precision", 1e6)
            for y in (None, b):
                close(d, k.subtract_product(M, d.move(x), d.move(y)), A @ x if y is None else b - A @ x, "y - M x", 1e6)
            X = values((n, 3), dtype)
            close(d, k.subtract_product(M, d.move(X)), A @ X, "M X")
        D = values((300, 300), dtype)
        for X in (values(300, dtype), values((300, 3), dtype)):
            close(d, k.dense_product(d.move(D), d.move(X)), D @ X, "a dense product", 1e6)


@part
def scaling(d):
    k = d.kernels.scaling
    for dtype in DTYPES:
        real = "float64" if dtype == "float64" else "float32"
        A = as_csr(typed(gallery.poisson7(8), dtype))
        M, v = d.move(A), d.move(np.linspace(1, 2, A.n).astype(real))
        k.scale(M, d.new(A.nnz, dtype), (v, v), (v, v))
        k.scale(M, d.new(A.nnz, dtype), (v, None), (None, v))
        k.divide_by_pivots(M, d.move(A.data.copy()), d.move(np.array([0, A.n], np.int64)))
        for cholesky in (False, True):
            assert k.pivots(M, cholesky)[1] == -1
            k.dropping_weights(M, d.move(A.data[A.diag]), cholesky)
        assert k.first_unusable(M) == -1
        norms = np.sqrt(np.asarray(abs(A.tosparse()).power(2).sum(axis=1)).ravel())
        close(d, k.row_norms(M.indptr, M.data), norms.astype(np.float64), "norms of rows", 1e10)
        k.definite_scale(M, d.new(A.n, real))


@part
def pattern(d):
    k = d.kernels.pattern
    for dtype in DTYPES:
        real = "float64" if dtype == "float64" else "float32"
        for S in (gallery.poisson7(27), long_rows(300)):  # more rows than FEW_ROWS, and less
            A = as_csr(typed(S, dtype))
            F = d.move(A)
            assert k.facts(F)[0] == np.diff(A.indptr).max()
            below, above = k.magnitudes(F)
            assert below.size + above.size == A.nnz - A.n
            k.remove(F, d.move(np.full(2, 0.5, real)), (10, 20))
            k.values_at(F, F)
            L = d.move(lower_triangle(A)[0])
            indptr, rows, places = k.columns_of(L)
            assert int(d.fetch(indptr)[-1]) == L.nnz == rows.size == places.size
            found = d.kernels.candidates.candidates(F, F)
            for scaled in (False, True):
                k.add(F, F, *found[:3], scaled)


@part
def candidates(d):
    for dtype in DTYPES:
        for S in (gallery.poisson7(8), long_rows(300), full(160, hermitian=True), gallery.arrow(1500)):
            A = as_csr(typed(S, dtype))
            F, k = d.move(A), d.kernels.candidates
            found = k.candidates(F, F)
            want = kernels_for(A.data).candidates.candidates(A, A)
            close(d, found[0], want[0], "how many candidates", 0)
            close(d, found[2], want[2], "candidates", 1e6)
            L = lower_triangle(A)[0]
            moved = d.move(L)
            found = k.candidates(moved, moved, d.kernels.pattern.columns_of(moved))
            want = kernels_for(L.data).candidates.candidates(L, L, kernels_for(L.data).pattern.columns_of(L))
            close(d, found[0], want[0], "how many candidates of Cholesky", 0)
        few = as_csr(typed(long_rows(300), dtype))
        d.kernels.candidates.candidates(d.move(few), d.move(few), None, 0.0, 500)


def swept(d, S, dtype):
    A = as_csr(typed(S, dtype))
    L = lower_triangle(A)[0]
    for kind, T in (("LU", A), ("Cholesky", L)):
        F, k = d.move(T), d.kernels.sweeps
        columns = d.kernels.pattern.columns_of(F) if kind == "Cholesky" else None
        own = kernels_for(T.data).pattern.columns_of(T) if kind == "Cholesky" else None
        refused = d.move(np.array([0, T.n], np.int64))
        squares, out, host = d.new(T.n), d.new(T.nnz, dtype), np.empty(T.nnz, dtype)
        k.sweep(F, F, out, squares, refused, columns)
        of_host = np.zeros(T.n), np.array([0, T.n], np.int64)
        kernels_for(T.data).sweeps.sweep(T, T, host, *of_host, own)
        close(d, out, host, f"a sweep {kind} {dtype}", 1e6)
        k.sweeps(F, F, 3, d.new((3, T.n)), refused, columns)
        k.sweep_in_place(F, F.with_values(out), refused, columns)


@part
def sweeps(d):
    for dtype in DTYPES:
        for S in (gallery.poisson5(25), gallery.poisson7(6)):
            swept(d, S, dtype)


@part
def sweeps_of_long_rows(d):
    for dtype in DTYPES:
        for S in (gallery.poisson27(5), full(100, hermitian=True)):
            swept(d, S, dtype)


@part
def sweeps_of_very_long_rows(d):
    """Rows that no table has room for."""
    for dtype in DTYPES:
        swept(d, long_rows(600, dense=2), dtype)


def select(d, n, dtype, **options):
    x = values(n, dtype)
    plan = d.kernels.selection.Selection(n, dtype, **options)
    plan.select(d.move(x), n // 3)
    size = np.sort(abs(x) if options.get("order", "magnitudes") == "magnitudes" else x)
    got = float(plan.result())
    if options.get("exact", True):
        close(d, np.array([got]), np.array([float(size[n // 3])]), f"rank {n // 3} of {n} {dtype} {options}", 1e9)


@part
def selection(d):
    for dtype in DTYPES:
        for n in (5, 1000, 1025, 20_000):
            select(d, n, dtype)
            select(d, n, dtype, exact=False)
        select(d, 20_000, dtype, method="quickselect")
        if d.gpu:
            for counting in ("shared", "shared_aggregated", "global", "global_aggregated"):
                if dtype == "float64":
                    select(d, 20_000, dtype, counting=counting)
                select(d, 20_000, dtype, method="quickselect", counting=counting)
    select(d, 20_000, "float64", order="values")


@part
def selection_of_many(d):
    """What two levels of sampleselect take."""
    select(d, 2**22 + 5 if d.gpu else 2**15, "float64")


# Thresholds, patterns, fixed points ----------------------------------------------------------------------------------


def preconditions(d, recipe, S, dtype, method="gmres"):
    A = typed(S, dtype)
    b, rtol = values(A.shape[0], dtype), 1e-8 if dtype == "float64" else 1e-4
    F = recipe.factor(d.move(A))
    solution = getattr(fl, method)(d.move(A), d.move(b), M=F, rtol=rtol, maxiter=2000)
    solved(d, A, solution, b, f"{method} with {recipe!r} {dtype}", rtol)
    F.update(d.move(A))
    return F


@part
def thresholds(d):
    for dtype in DTYPES:
        for S in (gallery.convection_diffusion(9, 8, 7, peclet=20), long_rows(300)):
            preconditions(d, fl.ILUT(drop_tol=1e-3), S, dtype)


@part
def thresholds_of_columns(d):
    for dtype in DTYPES:
        for S in (gallery.poisson7(8), long_rows(300)):
            preconditions(d, fl.ICT(drop_tol=1e-3), S, dtype, "cg")


@part
def thresholds_of_long_rows(d):
    """Tables that grow, in shared memory and elsewhere."""
    preconditions(d, fl.ILUT(drop_tol=1e-4, fill=1e9), full(200, hermitian=True), "float64")
    preconditions(d, fl.ILUT(drop_tol=1e-4, fill=1e9), gallery.arrow(1500), "float64")
    first = gallery.arrow(1100)[::-1, ::-1]
    preconditions(d, fl.ICT(drop_tol=5e-4, fill=1e9), first, "float64", "cg")


@part
def levels_of_fill(d):
    for dtype in DTYPES:
        for S in (gallery.convection_diffusion(9, 8, 7, peclet=20), long_rows(300)):
            preconditions(d, fl.ILUK(level=2), S, dtype)


@part
def fixed_points(d):
    for dtype in DTYPES:
        for recipe in (fl.ParILU(), fl.ParILU(asynchronous=True), fl.ParILU(pivots="new", level=1)):
            preconditions(d, recipe, gallery.convection_diffusion(9, 8, 7, peclet=20), dtype)
        for recipe in (fl.ParIC(), fl.ParIC(asynchronous=True), fl.ParIC(pivots="new", track=True)):
            preconditions(d, recipe, gallery.poisson7(8), dtype, "cg")
    preconditions(d, fl.ParILU(sweeps=8), long_rows(300), "float64")


@part
def adapted(d):
    for dtype in DTYPES:
        S, T = gallery.convection_diffusion(9, 8, 7, peclet=20), gallery.poisson7(8)
        by_sweeps = {"sweep": "synchronous"}
        for options in ({}, by_sweeps, {**by_sweeps, "sweeps": fl.Sweeps(select="approximate")}):
            preconditions(d, fl.ParILUT(steps=2, **options), S, dtype)
            preconditions(d, fl.ParICT(steps=2, **options), T, dtype, "cg")
    preconditions(d, fl.ParILUT(steps=2, sweep="asynchronous"), S, "float64")
    preconditions(d, fl.ParILUT(steps=2, sweep="paper", sweeps=fl.Sweeps(add_fraction=0.5)), long_rows(300), "float64")


# Blocks --------------------------------------------------------------------------------------------------------------


@part
def blocks(d):
    for dtype in DTYPES:
        for n in (1, 2, 6, 9, 32) if dtype == "float64" else (3, 9):
            if not d.gpu and n not in (3, 9):
                continue
            rows = 23
            arrays = block_arrays(rows, n, dtype=dtype)
            A = fl.BlockMatrix(*(d.move(v) for v in arrays))
            dense = sp.bsr_matrix(arrays, shape=(rows * n, rows * n)).toarray()
            b = values(rows * n, dtype)
            close(d, A @ d.move(b), dense @ b, f"blocks of {n} {dtype}")
            for pivoting in (False, True):
                F = fl.BlockILU0(pivoting=pivoting).factor(A)
                solution = fl.gmres(A, d.move(b), M=F, rtol=1e-5)
                solved(d, dense, solution, b, f"BlockILU0 {n} {dtype}", 1e-5)
                for trans in "NTH":
                    F.solve(d.move(b), trans)
            F = fl.BlockJacobi().factor(A)
            for trans, M in (("N", dense), ("T", dense.T), ("H", dense.conj().T)):
                diagonal = np.zeros_like(M)
                for i in range(0, rows * n, n):
                    diagonal[i : i + n, i : i + n] = M[i : i + n, i : i + n]
                close(d, F.solve(d.move(b), trans), np.linalg.solve(diagonal, b), f"BlockJacobi {n} {dtype}", 1e5)
            k, own = d.kernels.blocks, d.move(np.arange(rows, dtype=np.int64)[::-1].copy())
            for subtract in (False, True):
                out = d.new(rows * n, dtype)
                k.bsr_accumulate(own, A.indptr, A.indices, A.data, d.move(b), out, subtract)
                want = (dense @ b).reshape(rows, n)[::-1].reshape(-1)
                close(d, out, -want if subtract else want, "bsr_accumulate")
            inverses = d.new((rows, n, n), dtype)
            for pivoting in (False, True):
                k.invert_blocks(d.move(arrays[0][:rows].copy()), inverses, pivoting)


def inside_blocks(shape, n, dtype="float64"):
    """Dominant blocks (7, I, J, K, n, n), zero where they point out of the grid."""
    return fl.StencilMatrix(random_blocks(shape, n, dtype)).blocks.copy()


def of_stencil(d, shape, n, dtype):
    """Against the specification, whose inverses NumPy makes: the CPU's kernels are compiled for each size of block."""
    reference, blocks = specification.stencil, inside_blocks(shape, n, dtype)
    size = int(np.prod(shape)) * n
    A, b, x, want = fl.StencilMatrix(d.move(blocks)), values(size, dtype), values(size, dtype, 1), np.empty(size, dtype)
    for right in (None, b):
        reference.stencil_residual(blocks, (False,) * 3, x, right, want)
        got = A @ d.move(x) if right is None else A.residual(d.move(b), d.move(x))
        close(d, got, want, f"a stencil of {n} {dtype}", 1e5)
    if n > 128:
        return
    inverses = blocks[3].copy()
    for cell in np.ndindex(shape):
        for place in range(3):
            other = reference.neighbour(cell, reference.STENCIL[place], shape)
            if other is not None:
                inverses[cell] -= blocks[place][cell] @ inverses[other] @ blocks[6 - place][other]
        inverses[cell] = np.linalg.inv(inverses[cell])
    for pivoting in (False, True):
        F = fl.BlockILU0(pivoting=pivoting).factor(A)
        for trans in "NTH":
            reference.block_ilu_solve(blocks, inverses, b, want, trans)
            close(d, F.solve(d.move(b), trans), want, f"BlockILU0 on a grid, {n} {dtype} {trans}", 1e6)


@part
def stencil(d):
    sizes = {"float64": (1, 2, 3, 4, 5, 6, 7, 8, 9, 16), "complex64": (1, 3, 6)}
    for dtype in DTYPES:
        for n in sizes[dtype] if d.gpu else (3,):
            of_stencil(d, (3, 4, 5), n, dtype)
    if d.gpu:  # without warps of their own, and rows of lower blocks in registers or not
        k = d.kernels.stencil
        blocks, b = d.move(inside_blocks((7, 5, 6), 6)), d.move(values(1260, "float64"))
        for options in ({}, {"preload": False}, {"by_warps": True, "cells_per_block": 3}):
            plan = k.StencilPlan((7, 5, 6), 6, **options)
            inverses, x = d.new((7, 5, 6, 6, 6)), d.new(1260)
            for pivoting in (False, True):
                assert int(k.block_ilu_factor(blocks, inverses, pivoting, plan).get()[0]) == -1
                for trans in "NT":
                    k.block_ilu_solve(blocks, inverses, b, x, trans, plan)


@part
def stencil_of_large_blocks(d):
    for n in (32, 33) if d.gpu else (33,):
        of_stencil(d, (2, 2, 2), n, "float64")
    if d.gpu:
        of_stencil(d, (2, 2, 1), 33, "complex64")


@part
def stencil_of_larger_blocks(d):
    for n in (65, 97, 129) if d.gpu else (65,):
        of_stencil(d, (2, 1, 1), n, "float64")


# Parts and levels ----------------------------------------------------------------------------------------------------


@part
def partition(d):
    from finelu.partition import partition as parts_of

    n, rng = 3000, np.random.default_rng(1)
    one_sided = sp.csr_matrix(sp.random(n, n, 3 / n, random_state=rng) + sp.diags(np.where(np.arange(n) % 3, 2.0, 0)))
    for dtype in DTYPES:
        for S in (gallery.poisson7(13, 11, 12), one_sided, gallery.arrow(2000), long_rows(1200)):
            A = as_csr(typed(S, dtype), diagonal=False)
            got, want = (parts_of(M, 100, "aggregate") for M in (d.move(A), A))
            close(d, got.parts, want.parts, "parts", 0)
        A = as_csr(typed(gallery.poisson7(13, 11, 12), dtype))
        close(d, parts_of(d.move(A), 100, "geometric").parts, parts_of(A, 100, "geometric").parts, "bricks", 0)
    k, W = d.kernels.partition, sp.csr_matrix(sp.random(600, 600, 0.1, random_state=rng))
    W = sp.csr_matrix(W + W.T)
    W.setdiag(0)
    W.eliminate_zeros()
    W.data = np.ceil(1e6 * W.data)
    starts = W.indptr.astype(np.int64)
    graph = starts[:-1].copy(), starts[1:].copy(), W.indices.astype(np.int32), W.data.astype(np.int64)
    given = [d.move(v) for v in (*graph, np.ones(600, np.int32))]
    wish, after = d.move(np.arange(600, dtype=np.int32)), d.new(600, np.int32)
    k.propose(*given, 100, wish, after)  # lists that are long on average
    owner, totals, begins, stops = d.new(600, "int32"), d.new(600, "int32"), d.new(600, "int64"), d.new(600, "int64")
    k.contract(*given, after, 100, owner, begins, stops, d.new(W.nnz, "int32"), d.new(W.nnz, "int64"), totals)


@part
def schwarz(d):
    for dtype in DTYPES:
        for options in ({}, {"overlap": 1}, {"combine": "additive"}, {"coarse": None}):
            preconditions(d, fl.Schwarz(size=100, **options), gallery.poisson7(12, 11, 10), dtype, "cg")


@part
def schwarz_of_others(d):
    S, T = gallery.poisson7(12, 11, 10), gallery.convection_diffusion(12, 11, 10, peclet=5)
    for dtype in DTYPES:
        preconditions(d, fl.Schwarz(size=100), T, dtype)
    Z = np.c_[np.ones(S.shape[0]), np.linspace(-1, 1, S.shape[0])]
    preconditions(d, fl.Schwarz(size=100, near_nullspace=d.move(Z)), S, "float64", "cg")
    preconditions(d, fl.Schwarz(size=100, local=fl.ILU0(), precision="float32"), S, "float64", "cg")
    preconditions(d, fl.Schwarz(size=100, partition="natural"), long_rows(700), "float64", "cg")


@part
def subdomains(d):
    """The launchers by themselves: parts of few rows, long rows of A Z, larger dense matrices."""
    from finelu.kernels import monitor

    k = d.kernels.subdomains
    for dtype in DTYPES:
        A = as_csr(typed(gallery.arrow(1500), dtype))
        parts = (np.arange(A.n) // 70).astype(np.int32)
        count = int(parts[-1]) + 1
        starts = np.searchsorted(parts, np.arange(count + 1)).astype(np.int32)
        rows = np.arange(A.n, dtype=np.int32)
        M, P, starts, rows = d.move(A), d.move(parts), d.move(starts), d.move(rows)
        k.inside(starts, rows, M.indptr, M.indices)
        for Z in (None, values((A.n, 2), dtype, 5)):
            m, Z = 1 if Z is None else 2, d.move(Z)
            products = k.coarse_products(M.indptr, M.indices, M.data, P, count, Z)
            of = d.kernels.indices.rows_of_entries(products[0], products[1].size)
            couplings = k.couple(products, d.kernels.indices.shifted(of, 0, np.int32), P, starts, rows)
            for conjugate in (True, False):
                k.coarse_matrix(products, of, P, count, Z, conjugate, *couplings)
                g = k.restrict(starts, rows, Z, d.move(values(A.n, dtype)), conjugate)
            x = d.move(values(A.n, dtype))
            for less in (None, d.move(values(count * m, dtype, 3))):
                k.prolong(P, Z, g, x, less)
                sums = d.move(values((couplings[0].members.size, m), dtype))
                k.sum_couplings(couplings[0], sums, less)
            state = d.move(np.full(4, monitor.RUNNING, np.int32))
            one, two = d.move(np.full(1, 0.75, dtype)), d.move(np.full(1, 0.5, dtype))
            k.direction_with_coarse(state, one, two, P, Z, g, x, d.move(values(A.n, dtype)))
        if d.gpu:
            D, g, v, dots = (d.move(values(s, dtype)) for s in ((300, 300), 300, 300, 37))
            k.product_with_dot(D, g, v, dots, d.new(1, dtype))
    if d.gpu:
        for dtype in ("float64", "complex128"):
            B = values((400, 400), dtype)
            S = B @ B.conj().T + 400 * np.eye(400)
            X, _ = k.hermitian_inverse(d.move(S), d.move(1 / np.sqrt(S.diagonal().real)), 1e-9)
            close(d, X, np.linalg.inv(S), "an inverse", 1e6)
            k.coarse_weights(d.move(S), d.move(np.zeros(400, bool)))
            factored, _, finite = k.lu(d.move(B), np.ones(400), np.zeros(400))
            close(d, k.inverse_by_lu(factored, np.ones(400), B.dtype), np.linalg.inv(B), "an inverse", 1e8)
            assert finite


@part
def multilevel(d):
    for dtype in DTYPES:
        for S in (gallery.poisson7(9), gallery.convection_diffusion(9, 8, 7, peclet=20), long_rows(300)):
            preconditions(d, fl.MultilevelILU(drop_tol=1e-2, dense_size=30), S, dtype, "fgmres")


@part
def independent(d):
    k = d.kernels.independent if d.gpu else None
    if k is None:
        from finelu.kernels.reference import independent as k
    for dtype in DTYPES:
        for S in (gallery.poisson7(6, 6, 5), full(150, hermitian=True), long_rows(300)):
            T = typed(S, dtype)
            A = d.move(CSR(T.indptr, T.indices, T.data, None))
            nu = d.move(np.zeros(T.shape[0], dtype))
            C = k.transposed(A)
            for symmetric in (True, False):
                state, pivots = k.choose(A, C, nu, nu, NEVER, 0.01, 1e-6)
                number, _, _ = k.split(state, A.indices.dtype)
                U, _ = k.pivot_rows(A, state, pivots, nu, 1e-3, UNLIMITED)
                V, _ = k.pivot_rows(C, state, pivots, nu, 1e-3, UNLIMITED)
                k.signs(U, state, nu)
                k.remainder(A, k.transposed(V), U, pivots, state, number, 1e-3, symmetric)


# The program ---------------------------------------------------------------------------------------------------------


def record_launches(by_swap: bool) -> Counter[str]:
    """How often each kernel is launched from now on, by `file:kernel`."""
    from compile_cuda import kernel_names

    from finelu.kernels.cuda.runtime import launch
    from finelu.kernels.cuda.runtime.sources import OPTIONS, source

    counts: Counter[str] = Counter()
    made, cupy = launch._made, launch.cupy

    class Launched:
        def __init__(self, function, name):
            self._function, self._name = function, name

        def __call__(self, *arguments, **options):
            counts[self._name] += 1
            return self._function(*arguments, **options)

        def __getattr__(self, name):
            return getattr(self._function, name)

    def compiled(stem: str, template_id: str):
        own = source(stem).replace(header, "")
        waits = "peek_shared(" in own or "FINELU_RACECHECK" in own
        options = (*OPTIONS, "-DFINELU_RACECHECK") if by_swap and waits else OPTIONS
        module = cupy.RawModule(code=source(stem), options=options, name_expressions=(template_id,))
        return module.get_function(template_id).kernel

    def recorded(stem: str, template_id: str):
        name = template_id.partition("<")[0]
        assert name in kernel_names(stem), name
        return Launched(made(stem, template_id), f"{stem}:{name}")

    folder = Path(launch.__file__).parent
    header = (folder / "finelu.cuh").read_text().replace("#pragma once", "")
    launch._compiled, launch._made = compiled, recorded
    return counts


def wait_for_graphs() -> None:
    """The host waits for each launch of a graph: initcheck looks at what a copy reads when the copy is asked for, and
    for single kernels it waits by itself."""
    from finelu.kernels.cuda import recording

    launch = recording._Graph.launch

    def launched(graph, stream):
        launch(graph, stream)
        stream.synchronize()

    recording._Graph.launch = launched


def every_kernel() -> set[str]:
    from compile_cuda import KERNELS, kernel_names

    stems = [str(path.relative_to(KERNELS).with_suffix("")) for path in KERNELS.rglob("*.cu")]
    return {f"{stem}:{name}" for stem in stems for name in kernel_names(stem)}


def main() -> int:
    parser = argparse.ArgumentParser(description="Every CUDA kernel of finelu at least once.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--by-swap", action="store_true", help="compile with FINELU_RACECHECK")
    parser.add_argument("--launched", type=Path, help="a JSON file for the kernels that were launched")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    unknown = set(options.parts) - set(PARTS)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    os.environ["FINELU_KERNELS"] = "compile"  # the sources as they are
    os.environ["FINELU_RATES"] = os.devnull
    counts: Counter[str] = Counter()
    if options.device == "cuda":
        counts = record_launches(options.by_swap)
        wait_for_graphs()
    device, failed = Device(options.device), []
    for name in options.parts or PARTS:
        start = perf_counter()
        try:
            PARTS[name](device)
            device.synchronize()
            outcome = "done"
        except Exception as error:  # of a part; the others are still worth running
            traceback.print_exc()
            outcome = f"FAILED: {type(error).__name__}: {error}"
            failed.append(name)
        print(f"{name}: {outcome}, {perf_counter() - start:.1f} s", flush=True)
    if options.launched:
        options.launched.write_text(json.dumps(counts))
    if options.device == "cpu":
        return 1 if failed else 0
    print("launched:", ", ".join(f"{name} {count}" for name, count in sorted(counts.items())))
    missing = set() if options.parts else every_kernel() - set(counts)
    if missing:
        print("NOT LAUNCHED:", ", ".join(sorted(missing)))
    return 1 if failed else 3 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
