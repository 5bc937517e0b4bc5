"""`finelu warmup`: compile the kernels of the CPU before they are needed, into the user's cache folder."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, tril

from finelu import gallery, krylov
from finelu.auto.solve import solve
from finelu.compiling import compile_clock, kept, quietly, waiting
from finelu.errors import ParameterError
from finelu.kernels import kernels_for
from finelu.machine_code import folder
from finelu.matrix import CSR, as_csr, without_zeros
from finelu.matrix.batch import Batch
from finelu.matrix.blocks import BlockMatrix
from finelu.matrix.stencil import StencilMatrix
from finelu.partition import partition
from finelu.preconditioners import IC0, OWN, BlockILU0, BlockJacobi, Jacobi, MultilevelILU, Recipe, Schwarz, SparseLU
from finelu.properties import properties
from finelu.recent import RECENT
from finelu.scaling import matching
from finelu.selection import threshold
from finelu.triangular import TriangularSolver

DTYPES = ("float64", "float32", "complex128", "complex64")
SIZE = 12  # of the cube: it has enough rows for plans for several threads
LARGER = 20  # of a cube whose rows are enough for several threads to inspect
SETTINGS = {"block_size": 4, "dense_size": 20}  # of the recipes with such a parameter, for matrices as small as these
# Values of parameters that need other kernels than the defaults. Recipes that do not take one raise an error.
OTHERS: dict[str, tuple[object, ...]] = {
    "triangular": ("jacobi", "isai"),
    "form": ("crout",),
    "sweep": ("synchronous", "asynchronous"),
    "asynchronous": (True,),
    "pivots": ("new",),
}


def warmup(
    dtypes: Sequence[str] = DTYPES[:1], tell: Callable[[str, int, int], Any] = lambda *_: None
) -> dict[str, Any]:
    """Run once, for each dtype, the kernels that `solve`, the recipes and the Krylov methods compile at first use.

    dtypes : of "float64", "float32", "complex128", "complex64".  tell(what, done, of) is called before each piece.
    Returns seconds, compile_seconds (the part for compiling kernels) and folder, where
    the kernels are kept, or None if one could not be kept: then every process compiles it anew. Indices are int32, as
    they are up to 2^31 entries. Cost: one to some minutes a dtype, on one core.
    """
    start = perf_counter()
    with compile_clock() as compiling, quietly(), np.errstate(all="ignore"):
        work = [piece for dtype in dtypes for piece in pieces(dtype)]
        for done, (what, run) in enumerate(work):
            tell(what, done, len(work))
            run()
    return {"seconds": perf_counter() - start, "compile_seconds": compiling(), "folder": kernel_folder()}


def kernel_folder() -> str | None:
    """The folder of compiled kernels; None if no folder can be written."""
    where = folder()
    return str(where) if where is not None and kept() else None


@contextmanager
def long_indices() -> Iterator[None]:
    """Matrices made in the block have int64 indices, as those with more than 2^31 entries have."""
    modules = [module for name, module in sys.modules.items() if name.startswith("finelu.matrix.")]
    limits = [(module, module.INT32_LIMIT) for module in modules if hasattr(module, "INT32_LIMIT")]
    try:
        for module, _ in limits:
            vars(module)["INT32_LIMIT"] = 0
        yield
    finally:
        for module, limit in limits:
            vars(module)["INT32_LIMIT"] = limit


def pieces(name: str, blocks: Sequence[int] = (4,)) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The pieces of work for the dtype of this name, each with a name of its own, those of `usual_pieces` first.

    blocks : their sizes in block matrices; up to 8 rows each has kernels of its own.
    A piece finds no results of another one for its patterns: the same kernels run in every dtype and order.
    """
    yield from ((what, partial(_anew, run)) for what, run in (*usual_pieces(name), *_other_pieces(name, blocks)))


def _anew(run: Callable[[], Any]) -> None:
    RECENT.forget()
    run()


def _other_pieces(name: str, blocks: Sequence[int]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The pieces for recipes as they are by other parameters, and for blocks."""
    dtype = np.dtype(name)
    symmetric, general = _matrices(dtype)
    b = np.ones(symmetric.n, dtype)
    for recipe in OWN:
        matrix = symmetric if recipe.hermitian else general
        yield f"{recipe.name} by other means, {dtype}", partial(_factor_otherwise, recipe, matrix, b)
    for size in blocks:
        yield f"blocks of {size} rows, {dtype}", partial(_blocks, dtype, size)


def usual_pieces(name: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The pieces for `solve`, and for all recipes and methods as they are by default."""
    dtype = np.dtype(name)
    symmetric, general = _matrices(dtype)
    saddle = _of(gallery.stokes(SIZE), dtype)
    b = np.ones(symmetric.n, dtype)
    for A, kind in ((symmetric, "symmetric"), (general, "general"), (saddle, "saddle point")):
        yield f"solve, {kind}, {dtype}", partial(_solve, A)
    yield f"solve, larger, {dtype}", partial(_solve, _of(gallery.poisson7(LARGER), dtype))
    yield f"solve, unsymmetric pattern, {dtype}", partial(_solve, _of(gallery.random_dominant(SIZE**3), dtype))
    for recipe in OWN:
        matrices = [symmetric] if recipe.hermitian else [symmetric, general]
        yield f"{recipe.name}, {dtype}", partial(_factor, recipe, matrices, b)
    yield f"subdomains, {dtype}", partial(_subdomains, dtype)
    yield f"batches, {dtype}", partial(_batches, dtype)
    yield f"orderings and other tools, {dtype}", partial(_use_tools, symmetric, general)
    yield f"several columns, {dtype}", partial(krylov.cg, symmetric, np.ones((symmetric.n, 8), dtype), maxiter=2)
    yield f"long vectors, {dtype}", partial(_shared, dtype)
    for method in krylov.OWN:
        yield f"{method.name}, {dtype}", partial(_iterate, method, symmetric, b)


def _matrices(dtype: np.dtype[Any]) -> tuple[CSR, CSR]:
    """A symmetric matrix and one that is not, of the same size."""
    return _of(gallery.poisson7(SIZE), dtype), _of(gallery.convection_diffusion(SIZE), dtype)


def _of(A: Any, dtype: np.dtype[Any]) -> CSR:
    return as_csr(A.astype(dtype), diagonal=False)


def _shared(dtype: np.dtype[Any]) -> None:
    """Methods with vectors that threads share, which have kernels of their own; and the pool of these threads."""
    from finelu.kernels.cpu import vectors
    from finelu.kernels.cpu.runtime import workers

    n = vectors.SHARED
    diagonal = csr_array((np.ones(n, dtype), np.arange(n), np.arange(n + 1)), shape=(n, n))
    for method in (krylov.cg, krylov.bicgstab):
        method(diagonal, np.ones(n, dtype), x0=np.full(n, 0.5, dtype))
    workers.compile_kernels()  # which calls ask for once they have lost as much time


def _solve(A: CSR) -> None:
    properties(A)
    with waiting():
        for certify in (False, True):
            solve(A, np.ones(A.n, A.dtype), rtol=1e-4, certify=certify)


def _factor(kind: type[Recipe], matrices: Sequence[CSR], b: NDArray[Any]) -> None:
    known = {field.name for field in fields(kind)}
    settings = {name: value for name, value in SETTINGS.items() if name in known}
    for F in [kind(**settings).factor(A) for A in matrices]:
        F.update(F.pattern)
        for trans in "NT":
            F.solve(b, trans), F.solve(np.ones((b.size, 2), b.dtype), trans)
    for A in matrices:  # the kernels that "auto" changes to after some solves and updates
        S = A.tosparse().copy()
        later = {name: "levels" for name in ("variant", "triangular") if name in known}
        if later:
            F = kind(**settings, **later).factor(S).update(S.copy())
            for R in (b, np.ones((b.size, 2), b.dtype)):
                F.solve(R)


def _factor_otherwise(kind: type[Recipe], A: CSR, b: NDArray[Any]) -> None:
    known = {field.name for field in fields(kind)}
    for name, values in OTHERS.items():
        for value in values if name in known else ():
            with suppress(ParameterError):
                F = kind(**{name: value}).factor(A).update(A)
                for trans in "NT":
                    F.solve(b, trans)
                F.solve(np.ones((b.size, 2), b.dtype))


def _iterate(method: type[krylov.Method], A: CSR, b: NDArray[Any]) -> None:
    for M in (None, Jacobi().factor(A)):
        method.solve(A, b, M=M, maxiter=60, rtol=1e-3)


def _subdomains(dtype: np.dtype[Any]) -> None:
    """cg with subdomains of a square: one coarse vector each, not four as in a cube, or none; and the transposed solves
    of a general matrix, which read the factors in double precision."""
    A, general = _of(gallery.poisson5(5 * SIZE), dtype), _of(gallery.convection_diffusion(SIZE), dtype)
    for coarse in ("constant", None):
        F = Schwarz(coarse=coarse).factor(A)
        krylov.cg(A, np.ones(A.n, dtype), M=F, rtol=1e-3)
        F.solve(np.ones((A.n, 2), dtype))
        G = Schwarz(coarse=coarse).factor(general)
        for shape in ((general.n,), (general.n, 2)):
            G.solve(np.ones(shape, dtype), "T")


def _batches(dtype: np.dtype[Any]) -> None:
    """Systems of one pattern. Rounding decides whether calls form norms in twice the precision: these ask for them."""
    A = _of(gallery.poisson5(SIZE), dtype)
    batch, b = Batch(A.tosparse(), np.stack([A.data, A.data])), np.ones(A.n, dtype)
    solve(batch, b, rtol=1e-4)
    for method in (krylov.cg, krylov.bicgstab, krylov.gmres):
        method(batch, b, M=IC0().factor(batch), rtol=1e-3)
    x = SparseLU().factor(batch).solve(np.stack([b, b]))
    kernels_for(x).batch.residual_twice(batch.pattern, batch.values, b[None], x, np.arange(2), np.empty(2))


def _blocks(dtype: np.dtype[Any], size: int) -> None:
    """Block ILU and block Jacobi of a grid, and of the same matrix without its grid."""
    grid = np.zeros((7, 3, 3, 3, size, size), dtype)
    grid[3] = 2 * size * np.eye(size)
    S = StencilMatrix(grid)
    b = np.ones(S.shape[0], dtype)
    for A in (S, BlockMatrix.from_bsr(S.to_bsr())):
        for recipe in (BlockILU0(), BlockJacobi()):
            F = recipe.factor(A)
            F.update(A)
            for trans in "NTH":
                F.solve(b, trans), A.T @ b
            F.solve(np.stack([b, b], axis=1))
            krylov.richardson(A, b, M=F, maxiter=2)


def _use_tools(symmetric: CSR, general: CSR) -> None:
    IC0().factor(_of(gallery.poisson27(SIZE), symmetric.dtype))  # rows long enough for a copy by columns
    kernels_for(general.data).products.Product(general)(np.ones((general.n, 3), general.dtype))
    partition(general, 64, "aggregate")  # bricks are what Schwarz takes here
    SparseLU(ordering="amd").factor(general)  # by default systems as small as these are ordered by SuperLU
    matching(general)
    matching(symmetric, symmetric=True)
    threshold(general.data, general.nnz // 2)
    without_zeros(general.with_values(np.where(general.indices % 7 == 1, 0, general.data)))
    small = np.where(general.indices % 7 == 1, 1e-9, 1).astype(general.dtype)
    MultilevelILU(dense_size=20).factor(general.with_values(small * general.data))  # which leaves small entries out
    TriangularSolver(tril(general.tosparse(), format="csr")).solve(np.ones(general.n, general.dtype))
    order, scale = np.arange(general.n), np.ones(general.n, general.data.real.dtype)  # as a matching makes them
    kernels_for(general.data).vectors.gather_scaled(order, scale, np.ones((general.n, 2), general.dtype))
