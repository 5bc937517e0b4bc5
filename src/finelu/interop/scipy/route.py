"""The way from A, b to x for `spsolve`: by the library that takes least time, always to a direct method's accuracy."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.linalg import lapack
from scipy.sparse import SparseEfficiencyWarning

from finelu.errors import MatrixError, NotConverged, SingularMatrix, UnstableFactors, counted
from finelu.factors import Columns
from finelu.foreign import MatrixRankWarning
from finelu.interop.scipy.system import CACHED, EPS, Corrupt, Equation, System, longest_row
from finelu.kernels.operands import INT32_LIMIT
from finelu.matrix import as_csr
from finelu.matrix.traits import dense_row
from finelu.preconditioners.direct import SparseLU, klu, superlu
from finelu.preconditioners.direct.analysis import (
    QUICK,
    QUICK_ENTRIES,
    SHORT,
    SYMMETRIC_WORK,
    TINY,
    is_light,
)
from finelu.preconditioners.direct.factors import ENOUGH, SparseLUFactors
from finelu.preconditioners.direct.library import INDEX
from finelu.recent import RECENT, equal

SINGULAR = "Factor is exactly singular"
# Rows up to which a dense L U takes less processor time than KLU: a call for new values takes 0.64 of KLU's time, for a
# new pattern 0.34, with nothing new 0.98; and 0.28 of SuperLU's time (means: four patterns each of 9, 20, 40, 64 rows).
DENSE = 64

SINGULARITIES = (SingularMatrix, MatrixError, UnstableFactors)  # a MatrixError names NaN, Inf, or an empty row
RECIPE = SparseLU()
LARGEST_RTOL = 1e-10  # of iterations instead of factors, for rows of any length


@dataclass(eq=False)
class Plan:
    """The analysis of a pattern, and the factors of the last values with it.

    library : KLU's analysis; None if another library is expected to take less time.
    longest : the largest number of entries in a row.
    values : those of the kept factors; None if there are none.
    factors : of `values` by another library than KLU.
    """

    library: klu.KLU | None
    longest: int
    values: Any = None
    factors: SparseLUFactors | None = None

    def __post_init__(self) -> None:
        self._turn = threading.Lock()

    def has(self, values: Any) -> bool:
        """Whether the kept factors are those of these values."""
        return self.values is not None and equal(self.values, values)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """True if no other thread uses the kept factors until the end of the `with`; no thread waits for another."""
        mine = self._turn.acquire(blocking=False)
        try:
            yield mine
        finally:
            if mine:
                self._turn.release()


def solved(system: System, b: Any, permc_spec: str | None) -> Any:
    """x in double precision, of b's shape, and sparse if b is.

    b : (n,) or (n, k), or CSC (n, k), in double precision, and real if A is.

    Warns of an x whose backward error stays far above rounding. Raises one of SINGULARITIES, NotConverged.
    """
    if system.S.nnz > INT32_LIMIT:
        why = "A has more entries than the 32-bit indices of the libraries count"
        return _by_iterations(system, b, system.n, why, depth=5)
    A = system.in_double()
    if permc_spec is not None or system.n <= DENSE:
        if int(A.indices.view(np.uint32).max(initial=0)) >= system.n:  # a negative one, too
            raise Corrupt
        equation = Equation(A, system.by_rows, b, longest_row(A, system.by_rows))
        x, errors = _by_lapack(equation) if permc_spec is None else _by_superlu(system, equation, permc_spec)
    else:
        plan = RECENT.get(_kind(A, system.by_rows), A.indptr, A.indices)
        if plan is None:
            system.require_indices()
            plan = _planned(A, system.by_rows)
        equation = Equation(A, system.by_rows, b, plan.longest)
        if plan.library is not None:
            x, errors = _by_klu(plan, plan.library, equation)
        elif system.n <= TINY:
            x, errors = _by_superlu(system, equation, None)
        else:
            x, errors = _by_recipe(system, equation, plan)
    if (errors.max() if np.ndim(errors) else errors) <= ENOUGH:
        return x
    bad = np.flatnonzero(equation.finite & ~(errors <= ENOUGH))  # columns
    if not bad.size:
        return x
    b_of_bad = b if b.ndim == 1 else b[:, bad]
    other, others = _by_recipe(system, Equation(A, system.by_rows, b_of_bad, equation.longest))
    before = np.nan_to_num(np.broadcast_to(errors, b.shape[1:]).reshape(-1)[bad], nan=np.inf)
    after = np.nan_to_num(np.broadcast_to(others, bad.shape), nan=np.inf)
    replaced = after < before
    left = float(np.minimum(before, after).max())
    if left == np.inf:
        text = "overflow: x is not finite, though no pivot is 0; scale A or b"
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    elif left > ENOUGH:
        text = f"x has a backward error of {left:.0f} roundings in a row; A may be singular"
        warnings.warn(text, MatrixRankWarning, stacklevel=4)
    if b.ndim == 1:
        return other if replaced[0] else x
    if sp.issparse(x):
        columns = np.arange(b.shape[1])
        columns[bad[replaced]] = b.shape[1] + np.flatnonzero(replaced)
        both: list[Any] = [x, other]
        return sp.hstack(both, format="csc")[:, columns]
    x[:, bad[replaced]] = other[:, replaced]
    return x


def _kind(A: Columns, by_rows: bool) -> tuple[str, str, bool]:
    """The kind of a plan among the kept results: the same arrays are another matrix by rows than by columns."""
    return "spsolve", A.dtype.kind, by_rows


def _by_lapack(equation: Equation) -> tuple[Any, Any]:
    """By a dense L U with partial pivoting."""
    dense = equation.dense()
    factor, again = (lapack.dgetrf, lapack.dgetrs) if dense.dtype.kind == "f" else (lapack.zgetrf, lapack.zgetrs)
    lu, pivots, zero = factor(dense, overwrite_a=True)
    if zero:
        raise SingularMatrix(f"A is singular: pivot {zero - 1} of its dense L U is 0.")
    return equation.refined(lambda r: again(lu, pivots, r, trans=equation.by_rows)[0])


def _planned(A: Columns, by_rows: bool) -> Plan:
    """The plan for a pattern, which is kept. Raises SingularMatrix if the pattern is singular."""
    n, longest = A.shape[0], longest_row(A, by_rows)
    library, size = None, 0
    quick = n <= QUICK and A.nnz <= QUICK_ENTRIES
    short = quick or (A.nnz <= SHORT * n and max(longest, longest_row(A, not by_rows)) <= dense_row(n))
    if short and klu.nbklu() is not None and A.nnz:
        library = klu.KLU(Columns(A.indptr.copy(), A.indices.copy(), A.data, A.shape), klu.AMD)
        fill = library.expected
        assert fill is not None  # KLU counts the fill of its own AMD
        few = quick or fill.flops < SYMMETRIC_WORK * n  # else a library that works by blocks may take less
        light = few and is_light(fill)
        library, size = (library, klu.ENTRY * fill.nnz + A.data.nbytes) if light else (None, 0)
    return RECENT.keep(_kind(A, by_rows), A.indptr, A.indices, Plan(library, longest), size)


def _by_klu(plan: Plan, library: klu.KLU, equation: Equation) -> tuple[Any, Any]:
    A = equation.columns
    with plan.alone() as mine:
        if not mine:
            library = klu.KLU(A, klu.AMD, owned=False).factor(A, _zero_pivot)
        elif not plan.has(A.data):
            plan.values = None
            library.factor(A, _zero_pivot)
            plan.values = A.data.copy()
        solve = partial(library.solve, trans="T" if equation.by_rows else "N")
        found = equation.refined(solve, CACHED)
        if library.from_earlier and not _good(equation, found[1]):
            if mine:
                plan.values = None
            library.let_go()
            library.factor(A, _zero_pivot)
            if mine:
                plan.values = A.data.copy()
            found = equation.refined(solve, CACHED)
        return found


def _good(equation: Equation, errors: Any) -> bool:
    """Whether no column of x has a large error, those apart whose b is not finite."""
    return not np.any(equation.finite & ~(errors <= ENOUGH))


def _zero_pivot() -> str:
    return "a pivot of its complete L U is 0."


def _by_superlu(system: System, equation: Equation, permc_spec: str | None) -> tuple[Any, Any]:
    S: Any = system.S.T if system.by_rows else system.S
    S = S.astype(equation.columns.dtype, copy=False)
    if superlu.structurally_singular(S):
        raise SingularMatrix("A is singular, as its pattern shows.")
    lu = superlu.SuperLU(S, _zero_pivot, permc_spec=permc_spec)
    return equation.refined(partial(lu.solve, trans="T" if system.by_rows else "N"))


def _by_recipe(system: System, equation: Equation, plan: Plan | None = None) -> tuple[Any, Any]:
    """By `SparseLU`, or by iterations if its factors do not fit.

    plan : keeps the factors for the same values. Without it the factors are tested when they are made, so that others
        replace them if they are bad.
    """
    if plan is None:
        return _by_new_factors(system, equation)[0]
    values = equation.columns.data
    with plan.alone() as mine:
        if mine and plan.factors is not None and plan.has(values):
            found = equation.refined(plan.factors.solved)
            if not _good(equation, found[1]):
                plan.factors.let_go()
                plan.values = plan.factors = None
            return found
        if mine:
            plan.values = plan.factors = None  # the next factors take what their libraries keep of an analysis
        found, factors = _by_new_factors(system, equation, trial=False)
        if factors is not None and not _good(equation, found[1]):
            factors.let_go()
        elif mine and factors is not None and factors.report.backend != "superlu":  # freed on the same thread only
            A = equation.columns
            if RECENT.keeps(_kind(A, system.by_rows), A.indptr, A.indices, plan, _bytes(factors, A)):
                plan.values, plan.factors = values.copy(), factors
        return found


def _bytes(factors: SparseLUFactors, A: Columns) -> int:
    """The bytes that kept factors of A hold: L and U; A as it was given and as its library takes it; its values."""
    own = factors.pattern
    matrix = own.data.nbytes + own.indices.nbytes + own.indptr.nbytes + own.diag.nbytes
    return (A.data.itemsize + INDEX) * int(factors.nnz) + 2 * int(matrix) + A.data.nbytes


def _by_new_factors(
    system: System, equation: Equation, *, trial: bool = True
) -> tuple[tuple[Any, Any], SparseLUFactors | None]:
    """x with its errors, and the factors; None if iterations took their place.

    trial : as in `SparseLUFactors`; without it the factors share no array with the caller, so that they can be kept.
    """
    A = as_csr(system.S.astype(equation.columns.dtype, copy=False), diagonal=False)
    try:
        factors = SparseLUFactors(RECIPE, A.copy() if system.by_rows and not trial else A, trial=trial)
    except MemoryError as error:
        x = _by_iterations(system, equation.b, equation.longest, str(error), depth=7)
        return (x, equation.tested(x)), None
    return equation.refined(factors.solved), factors


def _by_iterations(system: System, b: Any, longest: int, why: str, depth: int) -> Any:
    """By iterations to the accuracy that is asked of factors; NaN for a column of b that is not finite.

    depth : the number of calls from the caller of the public function to here, that one counted.
    Raises NotConverged.
    """
    from finelu.auto.solve import solve  # only here: its import takes 0.1 s

    A = as_csr(system.S, diagonal=False, dtype=b.dtype)
    rtol = min(ENOUGH * longest * EPS, LARGEST_RTOL)  # `Equation.errors` allows a rounding more
    given: Any = b
    dense = given.toarray() if sp.issparse(b) else given
    finite = np.isfinite(dense).all(axis=0)
    solution = solve(A, np.where(finite, dense, 0), rtol=rtol, criterion="backward", verbose=False)
    if not solution.converged:
        raise NotConverged(f"spsolve, by iterations since {why.rstrip('.')},", solution, rtol)
    if solution.iterations:
        text = (
            f"spsolve took {counted(solution.iterations, 'iteration')} of {solution.method}, to a backward error of "
            f"{rtol:.1e} in each row, since complete factors do not fit: {why}"
        )
        warnings.warn(text, SparseEfficiencyWarning, stacklevel=depth)
    x = np.where(finite, solution.x, np.nan)
    return sp.csc_array(x) if sp.issparse(b) else x
