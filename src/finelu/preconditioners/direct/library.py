"""The base classes of the libraries that make a complete L U or L D L^T, and of their factors."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from finelu import foreign
from finelu.device import synchronize
from finelu.errors import ParameterError
from finelu.factors import Columns, Factors
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.ordering import Fill

PIVOT = 0.01  # of the largest entry of its column that a diagonal entry must have to be the pivot
HERMITIAN, TRANSPOSED = "hermitian", "transposed"  # kinds of symmetry
ALIKE = 32  # roundings by which the two entries of a symmetric matrix may differ where one of them is left out
INDEX = 8  # bytes that an entry of factors takes in addition to its value
LONG_WORK = 1e7  # flops from which on a factorization can be left, which takes 0.1 ms; as many as a core does in 3 ms
LONG_ENTRIES = 10_000  # of A, likewise, where the work is not counted


class Library:
    """The analysis of a pattern by columns, and the factors of a matrix with that pattern.

    how : the arguments of the constructor after the matrix.
    pattern : its arrays (n + 1,) and (nnz,).
    expected : the expected fill, None if it is not counted.
    symmetry : as `symmetry` has it, if only one triangle is read; else "".
    replaced : the number of pivots that the library replaced by larger ones.
    nnz : the number of entries of the factors without a unit diagonal.
    from_earlier : whether the present factors began from scaling, matching or pivots of earlier values. They may be
        bad, though new ones are good: only a caller that looks at the error of solves may use them. If it is too large,
        `let_go` and `factor` make them from nothing.
    `factor(columns, singular, require_room)` may be called again; `singular()` is the text of the error for a singular
    A. A library without `expected` that counts the entries of the factors itself calls `require_room(entries)` before
    it makes them, which raises MemoryError if they do not fit.
    `solve(r, trans)` expects r (n,) or (n, k) on the host.
    """

    name: ClassVar[str]
    expected: Fill | None = None
    symmetry = ""
    replaced = 0
    from_earlier = False
    nnz: int

    def __init__(self, columns: Columns, *how: Any):
        self.how, self.pattern = how, (columns.indptr, columns.indices)
        self._complex = columns.dtype.kind == "c"

    def holds_for(self, columns: Columns) -> bool:
        """Whether the analysis is valid for this pattern, and for real or complex values."""
        same = zip(self.pattern, (columns.indptr, columns.indices), strict=True)
        return self._complex == (columns.dtype.kind == "c") and all(a is b or np.array_equal(a, b) for a, b in same)

    def factor(
        self, columns: Columns, singular: Callable[[], str], require_room: Callable[[int], None] | None = None
    ) -> Library:
        raise NotImplementedError

    def solve(self, r: Any, trans: str) -> Any:
        raise NotImplementedError

    def let_go(self) -> None:
        """Keep nothing of these factors that depends on values: neither for the next `factor`, nor in `RECENT`."""
        raise NotImplementedError


class RefinedFactors(Factors):
    """Factors of a matrix S, which is kept, with `_steps` steps of refinement in each solve.

    Subclasses define `_solved(r, trans)`, a solve without refinement, whose result is a new array.
    """

    _steps = 0
    _S: Any = None  # a CSR
    _transposed: Any = None  # S^T by rows, made when first needed

    def _solve_refined(self, r: Any, trans: str) -> Any:
        x = self._solved(r, trans)
        for _ in range(self._steps):
            x += self._solved(self._residual(r, x, trans), trans)
        return x

    def _solved(self, r: Any, trans: str) -> Any:
        raise NotImplementedError

    def _residual(self, r: Any, x: Any, trans: str) -> Any:
        """r - S x, r - S^T x or r - S^H x."""
        subtract = kernels_for(r).products.subtract_product
        if trans == "N":
            return subtract(self._S, x, r)
        if self._transposed is None and self._S is not None:
            transposed = self._S.tosparse().T.tocsr()
            synchronize(transposed.data)  # another thread may use it on another stream
            self._transposed = transposed
        if trans == "H" and r.dtype.kind == "c":
            return subtract(self._transposed, x.conj(), r.conj()).conj()
        return subtract(self._transposed, x, r)


class Spare:
    """A state of a library that no factors use any more, for the next ones: `take` gives it to one caller. It is freed
    if no caller takes it, when this object is gone."""

    def __init__(self, state: Any, free: Callable[[], None]):
        self._state = state
        self._freed = weakref.finalize(self, free)
        self._freed.atexit = False

    def take(self) -> Any:
        """The state, None if another caller has it."""
        return self._state if self._freed.detach() else None


def required(library: Any, backend: str, needs: str, extra: str) -> Any:
    """The library. Raises ParameterError if it is None, since it is not installed."""
    if library is None:
        raise ParameterError(f"backend='{backend}' needs {needs}: pip install 'finelu[{extra}]', or use 'superlu'.")
    return library


def installed(package: str, solver: str) -> Any:
    """The package, or None if it is not installed or has no such solver."""
    try:
        library = foreign.with_own_symbols(package)
        return library if callable(getattr(library, solver)) else None
    except (ImportError, OSError, AttributeError):
        return None


def symmetry(A: CSR) -> str:
    """HERMITIAN for A = A^H, TRANSPOSED for a complex A = A^T, up to the rounding of each entry; else ""."""
    most = _rounding(A)
    *_, hermitian, transposed = A.mirrored()[:5]
    return HERMITIAN if hermitian <= most else TRANSPOSED if transposed <= most else ""


def is_mirrored(A: CSR, *, conjugated: bool = True) -> bool:
    """Whether A = A^H, or A = A^T without `conjugated`, up to the rounding of each entry."""
    return A.mirrored()[3 if conjugated else 4] <= _rounding(A)


def _rounding(A: CSR) -> float:
    return ALIKE * float(np.finfo(A.dtype).eps)
