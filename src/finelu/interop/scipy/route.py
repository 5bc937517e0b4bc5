"""The way from A, b to x for `spsolve`: by the library that takes least time, always to a direct method's accuracy."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from scipy.linalg import lapack
from scipy.sparse import SparseEfficiencyWarning

from finelu import foreign
from finelu.auto.cost import ALWAYS_FREE, INDEX, USABLE
from finelu.auto.solve import solve
from finelu.device import free_memory
from finelu.errors import MatrixError, NotConverged, SingularMatrix, UnstableFactors, counted
from finelu.factors import Columns
from finelu.foreign import MatrixRankWarning
from finelu.interop.scipy.system import Equation, System, longest_row
from finelu.kernels.operands import INT32_LIMIT
from finelu.matrix import as_csr
from finelu.matrix.traits import dense_row
from finelu.preconditioners.direct import SparseLU, klu
from finelu.preconditioners.direct.analysis import (
    KLU_WORK,
    QUICK,
    QUICK_ENTRIES,
    SHORT,
    SYMMETRIC_WORK,
    TINY,
    analysed,
)
from finelu.preconditioners.direct.factors import ENOUGH, SparseLUFactors
from finelu.recent import RECENT

SINGULAR = "Factor is exactly singular"
DENSE = 64  # rows up to which a dense L U takes less time than the analysis of a pattern
SINGULARITIES = (SingularMatrix, MatrixError, UnstableFactors)  # a MatrixError names NaN, Inf, or an empty row
RECIPE = SparseLU()
PLAN, FACTORS = "spsolve: plan", "spsolve: factors"  # names of the kept results


@dataclass(eq=False)
class Plan:
    """The analysis of a pattern, and the factors of the last values with it.

    library : KLU's analysis; None if another library is expected to take less time.
    longest : the largest number of entries in a row.
    values : those that `library` has factored; None if it has no factors.
    turn : held from a factorization to the last solve with its factors.
    """

    library: klu.KLU | None
    longest: int
    values: Any = None
    turn: threading.Lock = field(default_factory=threading.Lock)


def solved(system: System, b: Any, permc_spec: str | None) -> Any:
    """x (n,) or (n, k) in double precision; b is real if A is, and in double precision.

    Warns of an x whose backward error stays far above rounding. Raises one of SINGULARITIES, NotConverged.
    """
    A = system.in_double()
    if A.nnz > INT32_LIMIT:
        return _by_iterations(system, b, system.n, "A has more entries than the 32-bit indices of the libraries count")
    if permc_spec is not None or system.n <= DENSE:
        equation = Equation(A, system.by_rows, b, longest_row(A, system.by_rows))
        x, error = _by_lapack(equation) if permc_spec is None else _by_superlu(system, equation, permc_spec)
    else:
        plan = RECENT.get((PLAN, A.dtype.kind), A.indptr, A.indices) or _planned(A, system.by_rows)
        equation = Equation(A, system.by_rows, b, plan.longest)
        if plan.library is not None:
            x, error = _by_klu(plan, plan.library, equation)
        elif system.n <= TINY:
            x, error = _by_superlu(system, equation, None)
        else:
            x, error = _by_recipe(system, equation)
    if error <= ENOUGH or not np.isfinite(b).all():
        return x
    other, smaller = _by_recipe(system, equation, trial=True)
    if smaller <= ENOUGH:
        return other
    text = f"x has a backward error of {min(error, smaller):.0f} roundings in a row; A may be singular"
    warnings.warn(text, MatrixRankWarning, stacklevel=4)
    return x if error <= smaller else other


def _by_lapack(equation: Equation) -> tuple[Any, float]:
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
    if short and klu.nbklu() is not None and A.nnz and int(A.indices.max()) < n:
        library = klu.KLU(Columns(A.indptr.copy(), A.indices.copy(), A.data, A.shape), klu.AMD)
        fill = library.expected
        assert fill is not None  # KLU counts the fill of its own AMD
        few = quick or fill.flops < SYMMETRIC_WORK * n  # else a library that works by blocks may take less
        light = few and fill.flops <= KLU_WORK * fill.nnz
        library, size = (library, (A.dtype.itemsize + INDEX) * fill.nnz + A.data.nbytes) if light else (None, 0)
    return RECENT.keep((PLAN, A.dtype.kind), A.indptr, A.indices, Plan(library, longest), size)


def _by_klu(plan: Plan, library: klu.KLU, equation: Equation) -> tuple[Any, float]:
    A, trans = equation.columns, "T" if equation.by_rows else "N"
    if not plan.turn.acquire(blocking=False):  # another thread solves with it
        another = klu.KLU(A, klu.AMD).factor(A, lambda: SINGULAR)
        return equation.refined(partial(another.solve, trans=trans))
    try:
        if plan.values is None or not np.array_equal(plan.values, A.data):
            plan.values = None
            library.factor(A, lambda: SINGULAR)
            plan.values = A.data.copy()
        return equation.refined(partial(library.solve, trans=trans))
    finally:
        plan.turn.release()


def _by_superlu(system: System, equation: Equation, permc_spec: str | None) -> tuple[Any, float]:
    S: Any = system.S.T if system.by_rows else system.S
    try:
        lu = foreign.splu(S.astype(equation.columns.dtype, copy=False), permc_spec=permc_spec)  # type: ignore[arg-type]
    except RecursionError:
        raise
    except RuntimeError as error:
        raise SingularMatrix(f"{error}") from error
    return equation.refined(partial(lu.solve, trans="T" if system.by_rows else "N"))


def _by_recipe(system: System, equation: Equation, *, trial: bool = False) -> tuple[Any, float]:
    """By `SparseLU`, or by iterations if its factors do not fit.

    trial : whether the factors are tested when they are made, so that others replace them if they are bad. Without it
        they are kept for the same values.
    """
    columns = equation.columns
    key = (FACTORS, columns.dtype.kind), columns.indptr, columns.indices
    values, factors = (None if trial else RECENT.get(*key)) or (np.empty(0), None)
    if factors is None or not np.array_equal(columns.data, values):
        A = as_csr(system.S.astype(columns.dtype, copy=False), diagonal=False)
        entry = A.dtype.itemsize + INDEX
        try:
            known = analysed(RECIPE, A)
            few = known.fill is None or entry * known.fill.nnz <= ALWAYS_FREE
            most = np.inf if few else USABLE * free_memory(A.data) / entry
            factors = SparseLUFactors(RECIPE, A, known, most, trial)
        except MemoryError as error:
            x = _by_iterations(system, equation.b, equation.longest, str(error))
            return x, equation.error(x)[0]
        if not trial and factors.report.backend != "superlu":  # SciPy frees SuperLU's factors on one thread only
            RECENT.keep(*key, (columns.data.copy(), factors), entry * factors.nnz + columns.data.nbytes)
    return equation.refined(factors.solve)


def _by_iterations(system: System, b: Any, longest: int, why: str) -> Any:
    """By iterations to the accuracy that is asked of factors. Raises NotConverged."""
    A = as_csr(system.S, diagonal=False, dtype=b.dtype)
    rtol = ENOUGH * (longest + 1) * float(np.finfo(np.float64).eps)
    solution = solve(A, b, rtol=min(rtol, 1e-10), criterion="backward", verbose=False)
    if not solution.converged:
        raise NotConverged(f"spsolve, by iterations since {why.rstrip('.')},", solution, rtol)
    text = (
        f"spsolve took {counted(solution.iterations, 'iteration')} of {solution.method}, to a backward error of "
        f"{rtol:.1e} in each row, since complete factors do not fit: {why}"
    )
    warnings.warn(text, SparseEfficiencyWarning, stacklevel=6)
    return solution.x
