"""What ILUT and ICT have in common: thresholds from norms, and the search for a wanted number of entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np

from finelu.device import namespace
from finelu.errors import ZeroPivot
from finelu.factors.report import TriangularReport
from finelu.kernels.operands import CSR, INT32_LIMIT
from finelu.matrix.traits import require_hermitian
from finelu.preconditioners.recipe import checked, on_host
from finelu.validation import count, number

CLOSE = 0.01  # a wanted number of entries counts as met up to this fraction of it
TOO_FAR = 0.1  # where breakdowns keep the search farther away than this, there are no such factors
ATTEMPTS = 20
EDGE = 6  # attempts at either end of a range of thresholds that break down
LARGEST = 2**62
ADVICE = "Try shift=1e-3 (or larger), a smaller drop_tol, a reordering of A, or another recipe."


@dataclass(frozen=True)
class Attempt:
    """A factorization with the threshold drop_tol.

    result : Factored, see kernels/cpu/threshold.py.  good : it is complete.  broken : it has a bad pivot.
    count : entries of L + U, the diagonal once; extrapolated from the rows that were finished where it is not complete.
    """

    drop_tol: float
    result: Any
    good: bool
    broken: bool
    count: int


@dataclass(eq=False, repr=False)
class ThresholdReport(TriangularReport):
    """drop_tol : that of the factors.  nnz : entries of L + U, the diagonal once.  factorizations : how many it took.

    nnz_wanted : where a number was wanted; a warning if it was missed by more than 1%.
    """

    drop_tol: float | None = None
    nnz: int | None = None
    nnz_wanted: int | None = None
    factorizations: int | None = None


def checked_threshold(recipe: Any, A: Any) -> CSR:
    """As `checked`, and drop_tol, fill and nnz."""
    number("drop_tol", recipe.drop_tol, of=recipe)
    number("fill", recipe.fill, open_low=True, infinite=True, of=recipe)
    matrix = checked(recipe, A)
    if recipe.nnz is not None:
        count("nnz", recipe.nnz, matrix.n, of=recipe)  # what the diagonal takes
    return matrix


def row_norms(A: CSR) -> np.ndarray[Any, Any]:
    """The 2-norm of each row (n,) float64, without overflow or underflow on the way. No row of A may be empty."""
    size = abs(A.data).astype(np.float64)
    largest = np.maximum.reduceat(size, A.indptr[:-1])
    scale = np.where(largest > 0, largest, 1.0)
    size /= np.repeat(scale, np.diff(A.indptr))
    return scale * np.sqrt(np.add.reduceat(size * size, A.indptr[:-1]))


def column_norms(A: CSR) -> np.ndarray[Any, Any]:
    """The 2-norm of each column (n,) float64. No column of A may be empty."""
    T = A.tosparse().tocsc()
    return row_norms(CSR(T.indptr, T.indices, T.data, None))


Trial = Callable[[float, int], Attempt]  # of a threshold, and the most entries that may be stored


class Threshold:
    """The numeric part of ILUT and ICT: a factorization from scratch each time, since the pattern follows the values.

    runs(recipe, host) : the kernel as a function of a threshold and of the most entries that may be stored.
    chosen(recipe, trial, guess) : the attempt that is kept, or broke down, and how many there were.
    The factors are made on the CPU, and moved to where A is. In a search, update begins with the threshold found last.
    """

    def __init__(
        self,
        recipe: Any,
        runs: Callable[[Any, CSR], Callable[[float, int], Any]],
        chosen: Callable[[Any, Trial, float], tuple[Attempt, int]] | None = None,
    ):
        self.recipe, self._runs, self._chosen = recipe, runs, chosen or search_if_wanted
        self.report = ThresholdReport(variant=getattr(recipe, "form", "crout"))
        self._guess = recipe.drop_tol

    def factorize(self, A: CSR) -> CSR:
        start = perf_counter()
        recipe, cholesky, report = self.recipe, self.recipe.hermitian, self.report
        unlike = require_hermitian(recipe, A) if cholesky else ""
        host = on_host(A, recipe.shift)
        run = self._runs(recipe, host)

        def trial(drop_tol: float, most: int) -> Attempt:
            limit = (most + A.n) // 2 if cholesky else most
            result = run(drop_tol, limit)
            good = result.rows == A.n
            count = 2 * result.stored - result.rows if cholesky else result.stored
            if not good:  # the rows that are left may come to as many for each entry of A
                count = int(count * max(1.0, host.nnz / max(int(host.indptr[result.rows]), 1)))
            return Attempt(drop_tol, result, good, not good and result.stored <= limit, count)

        made, report.factorizations = self._chosen(recipe, trial, self._guess)
        if not made.good:
            raise _no_factors(recipe, made)
        self._guess = report.drop_tol = made.drop_tol
        report.warning, report.nnz = unlike or None, made.count
        if recipe.nnz is not None:
            report.nnz_wanted = int(recipe.nnz)
            if not meets(made, recipe.nnz):
                why = "fill allows no more" if made.drop_tol == 0 else "no threshold that was tried came nearer"
                report.warn(f"nnz={recipe.nnz} was wanted, {made.count} came out: {why}")
        triangles = _moved(made.result, A)
        report.numeric_seconds = perf_counter() - start
        return triangles


def _no_factors(recipe: Any, made: Attempt) -> ZeroPivot:
    pivot = made.result.pivot
    usable = np.isfinite(pivot) and (pivot > 0 if recipe.hermitian else pivot != 0)
    what = "has an entry in its row or column that is not finite" if usable else "is zero or not finite"
    if recipe.hermitian and not usable:
        what = "is not a positive number"
    with_tol = "" if recipe.nnz is None else f" with drop_tol={made.drop_tol:.3g}"
    return ZeroPivot(recipe, made.result.rows, pivot, what + with_tol, ADVICE)


def _moved(result: Any, A: CSR) -> CSR:
    """The factors as a CSR on the device of A, with int32 indices where they hold them, else int64."""
    xp = namespace(A.data)
    index = A.indices.dtype if result.stored <= INT32_LIMIT else np.dtype(np.int64)
    indptr, indices, diag = (
        xp.asarray(v.astype(index, copy=False)) for v in (result.indptr, result.indices, result.diag)
    )
    return CSR(indptr, indices, xp.asarray(result.data), diag)


def meets(made: Attempt, wanted: int) -> bool:
    return made.good and abs(made.count - wanted) <= CLOSE * wanted


def search_if_wanted(recipe: Any, trial: Trial, guess: float) -> tuple[Attempt, int]:
    """The one attempt with drop_tol, or a search for the number of entries that is wanted."""
    return (trial(recipe.drop_tol, LARGEST), 1) if recipe.nnz is None else search(trial, recipe.nnz, guess)


def search(attempt: Trial, wanted: int, guess: float) -> tuple[Attempt, int]:
    """The threshold that gives the wanted number of entries within 1%, or comes closest: the attempt, and how many.

    attempt(drop_tol, most) factors, and stops a little beyond the wanted number, so that none takes much longer than
    the last. First the count alone decides where to go on, also that of a breakdown. If this leads to a breakdown, the
    complete factorizations next to it are looked for; if all are far from the wanted number, the breakdown is returned.
    """
    beyond = wanted // 4 + 1
    tried: list[Attempt] = []
    best: Attempt | None = None  # of the complete ones; the only one whose factors are kept

    def distance(made: Attempt) -> int:
        return abs(made.count - wanted)

    def take(drop_tol: float, beyond: int = beyond) -> Attempt:
        nonlocal best
        made = attempt(drop_tol, wanted + beyond)
        if made.good and (best is None or distance(made) < distance(best)):
            best = made
        tried.append(replace(made, result=None) if made.good else made)
        return tried[-1]

    for drop_tol in _towards(wanted, guess, tried):
        take(drop_tol)
        if best is not None and meets(best, wanted):
            return best, len(tried)
    stopped = [made for made in tried if not made.good and not made.broken]
    if stopped:  # the last of them may be closer than the best, beyond a jump of the count
        take(max(made.drop_tol for made in stopped), wanted if best is None else distance(best))
    nearest = min((made for made in tried if made.good or made.broken), key=distance)
    if nearest.broken:
        for few in (True, False):
            side = [made for made in tried if made.good and (made.count < wanted) == few]
            if not side:
                continue
            edge, broken = min(side, key=distance), nearest.drop_tol
            for _ in range(EDGE):
                made = take(float(np.sqrt(edge.drop_tol * broken)))
                if made.good:
                    edge = made
                else:
                    broken = made.drop_tol
    if best is None or (nearest.broken and distance(best) > TOO_FAR * wanted):
        return nearest, len(tried)
    return best, len(tried)


def _towards(wanted: int, guess: float, tried: list[Attempt]) -> Iterator[float]:
    """Thresholds to try, one after the other: bisection of log(drop_tol), and interpolation of log(count)."""
    yield guess if 0 < guess < 1 else 1e-3
    step = 10.0
    while len(tried) < ATTEMPTS:
        tried_in_order = sorted(tried, key=lambda made: made.drop_tol)
        finest, coarsest = tried_in_order[0], tried_in_order[-1]
        brackets = [
            (fine, coarse)
            for fine, coarse in pairwise(tried_in_order)
            if fine.count > wanted >= coarse.count and coarse.drop_tol > max(fine.drop_tol * 1.001, 1e-100)
        ]
        if coarsest.count > wanted:
            yield coarsest.drop_tol * step
            step *= step
        elif finest.count <= wanted and finest.drop_tol > 0:
            yield 0.0  # all that fill allows
        elif not brackets:
            return
        elif brackets[0][0].drop_tol == 0:
            yield brackets[0][1].drop_tol / step
            step *= step
        else:  # there may be more than one, since breakdowns make the count jump
            fine, coarse = brackets[0]
            share = 0.5
            if len(tried) % 3 and fine.count > coarse.count > 0:
                share = np.log(fine.count / wanted) / np.log(fine.count / coarse.count)
            ratio = coarse.drop_tol / fine.drop_tol
            yield float(fine.drop_tol * ratio ** min(max(share, 0.05), 0.95))
