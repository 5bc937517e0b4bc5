"""`finelu warmup`: compile the kernels of the CPU before they are needed, into Numba's cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from finelu import gallery, krylov
from finelu.kernels.compiling import compile_clock, kept, quietly
from finelu.matrix import CSR, as_csr
from finelu.ordering import automatic
from finelu.preconditioners import OWN, MultilevelILU, Recipe
from finelu.properties import properties
from finelu.scaling import matching
from finelu.solver import solve

DTYPES = ("float64", "float32", "complex128", "complex64")
SIZE = 12  # of the cube: so many rows that plans for several threads are made


def warmup(dtypes=DTYPES[:1], tell: Callable[[str, int, int], Any] = lambda *_: None) -> dict[str, Any]:
    """Use once, for each dtype, what `solve`, the recipes and the Krylov methods compile at their first use.

    dtypes : of "float64", "float32", "complex128", "complex64".  tell(what, done, of) is called before each piece.
    Returns seconds, compile_seconds (those of them that went into compiling kernels or loading them from the disk) and
    folder, where the kernels are kept, or None where one could not be kept: then every process compiles it anew.
    Indices are int32, as they are up to 2^31 entries. Cost: one to some minutes a dtype, on one core.
    """
    start = perf_counter()
    work = [piece for dtype in dtypes for piece in _pieces(np.dtype(dtype))]
    with compile_clock() as compiling, quietly(), np.errstate(all="ignore"):
        for done, (what, run) in enumerate(work):
            tell(what, done, len(work))
            run()
    return {"seconds": perf_counter() - start, "compile_seconds": compiling(), "folder": _folder()}


def _folder() -> str | None:
    from finelu.kernels.cpu import recurrences

    kernel: Any = recurrences.norm
    return kernel._cache.cache_path if kept() else None


def _pieces(dtype: np.dtype) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is to be run, and what it is called."""
    symmetric, general = _of(gallery.poisson7(SIZE), dtype), _of(gallery.convection_diffusion(SIZE), dtype)
    saddle = _of(gallery.stokes(SIZE), dtype)
    b = np.ones(symmetric.n, dtype)
    for A, kind in ((symmetric, "symmetric"), (general, "general"), (saddle, "saddle point")):
        yield f"solve, {kind}, {dtype}", partial(_solved, A)
    for kind in OWN:
        yield f"{kind.name}, {dtype}", partial(_factored, kind, symmetric, general, b)
    yield f"orderings, {dtype}", partial(_ordered, symmetric, general)
    for name in krylov.METHODS:
        yield f"{name}, {dtype}", partial(getattr(krylov, name), symmetric, b, maxiter=60, rtol=1e-3)


def _solved(A: CSR) -> None:
    properties(A)
    solve(A, np.ones(A.n, A.dtype), rtol=1e-4)


def _ordered(symmetric: CSR, general: CSR) -> None:
    automatic(general)
    matching(general)
    matching(symmetric, symmetric=True)


def _of(A, dtype: np.dtype) -> CSR:
    return as_csr(A.astype(dtype), diagonal=False)


def _factored(kind: type[Recipe], symmetric: CSR, general: CSR, b) -> None:
    if kind is MultilevelILU:  # whose factors have a form of their own for symmetric matrices
        made = [MultilevelILU(dense_size=20).factor(A) for A in (symmetric, general)]
    else:
        options: dict[str, Any] = {} if "CSR" in kind.matrices else {"block_size": 4}
        made = [kind(**options).factor(symmetric)]
    for F in made:
        F.update(F.pattern)
        for trans in "NT":
            F.solve(b, trans)
