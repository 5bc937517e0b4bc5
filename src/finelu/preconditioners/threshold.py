"""What ILUT and ICT have in common: thresholds from norms, and the search for a wanted number of entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from finelu.device import namespace, on_gpu
from finelu.errors import ParameterError, ZeroPivot
from finelu.factors import TriangularFactors, checked, on_host
from finelu.matrix import CSR, INT32_LIMIT, is_number
from finelu.matrix.traits import require_hermitian

CLOSE = 0.01  # a wanted number of entries counts as met up to this fraction of it
TOO_FAR = 0.1  # where breakdowns keep the search farther away than this, there are no such factors
ATTEMPTS = 20
EDGE = 6  # attempts at either end of a range of thresholds that break down
LARGEST = 2**62
ADVICE = "Try shift=1e-3 (or larger), a smaller drop_tol, a reordering of A, or another recipe."


@dataclass(frozen=True)
class Chosen:
    """In place of an analysis, of which there is none where the pattern comes out of the values."""

    variant: str
    provisional: bool = False


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


def checked_threshold(recipe, A) -> CSR:
    """As `checked`, and drop_tol, fill and nnz."""
    if not (is_number(recipe.drop_tol) and 0 <= recipe.drop_tol < np.inf):
        raise ParameterError(f"{recipe!r}: drop_tol must be a finite number >= 0.")
    if not (is_number(recipe.fill) and recipe.fill > 0):
        raise ParameterError(f"{recipe!r}: fill must be a number > 0 (float('inf'): no limit).")
    A = checked(recipe, A)
    if recipe.nnz is not None and not (isinstance(recipe.nnz, int | np.integer) and recipe.nnz >= A.n):
        raise ParameterError(f"{recipe!r}: nnz must be an integer of at least {A.n}, which the diagonal takes.")
    return A


def row_norms(A: CSR) -> np.ndarray:
    """The 2-norm of each row (n,) float64, without overflow or underflow on the way. No row of A may be empty."""
    size = abs(A.data).astype(np.float64)
    largest = np.maximum.reduceat(size, A.indptr[:-1])
    scale = np.where(largest > 0, largest, 1.0)
    size /= np.repeat(scale, np.diff(A.indptr))
    return scale * np.sqrt(np.add.reduceat(size * size, A.indptr[:-1]))


def column_norms(A: CSR) -> np.ndarray:
    """The 2-norm of each column (n,) float64. No column of A may be empty."""
    T = A.tosparse().tocsc()
    return row_norms(CSR(T.indptr, T.indices, T.data, None))


class ThresholdFactors(TriangularFactors):
    """Factors whose pattern comes out of the values, so that `update` is a factorization from scratch.

    Subclasses give `_runs(host)`: the kernel as a function of a threshold and of the most entries that may be stored.
    They are made on the CPU and applied where A is. In a search, update begins with the threshold found last.
    report : besides the times drop_tol; nnz, entries of L + U, the diagonal once; factorizations, how many it took;
    where a number was wanted nnz_wanted, and a warning if it was missed by more than 1%; factored_on, applied_on;
    probe, see `finelu.factors.probe`, and a warning where it is beyond 10.
    """

    cholesky = False

    def __init__(self, recipe, A: CSR):
        TriangularFactors.__init__(self, recipe, A)
        self._guess = recipe.drop_tol
        self._refresh(A)

    def _runs(self, host: CSR) -> Callable[[float, int], Any]:
        raise NotImplementedError

    def _refresh(self, A: CSR) -> None:
        super()._refresh(A)
        self._probe(A, lambda v: self._apply(v, "N"))

    def _analyse(self, once: bool):
        return Chosen(getattr(self.recipe, "form", "crout"))

    def _factorize(self, A: CSR) -> None:
        unlike = require_hermitian(self.recipe, A) if self.cholesky else ""
        recipe, host = self.recipe, on_host(A, self.recipe.shift)
        run = self._runs(host)

        def attempt(drop_tol: float, most: int) -> Attempt:
            limit = (most + A.n) // 2 if self.cholesky else most
            result = run(drop_tol, limit)
            good = result.rows == A.n
            count = 2 * result.stored - result.rows if self.cholesky else result.stored
            if not good:  # the rows that are left may come to as many for each entry of A
                count = int(count * max(1.0, host.nnz / max(int(host.indptr[result.rows]), 1)))
            return Attempt(drop_tol, result, good, not good and result.stored <= limit, count)

        self._solvers = {}  # of another pattern
        made, attempts = self._chosen(attempt)
        if not made.good:
            raise self._no_factors(made)
        self._guess = made.drop_tol
        self._triangles = _moved(made.result, A)
        self.report.pop("warning", None)
        if unlike:
            self._warn(unlike)
        self.report |= {"drop_tol": made.drop_tol, "nnz": made.count, "factorizations": attempts}
        self.report |= {"factored_on": "CPU", "applied_on": "GPU" if on_gpu(A.data) else "CPU"}
        if recipe.nnz is not None:
            self.report["nnz_wanted"] = int(recipe.nnz)
            if not meets(made, recipe.nnz):
                why = "fill allows no more" if made.drop_tol == 0 else "no threshold that was tried came nearer"
                self._warn(f"nnz={recipe.nnz} was wanted, {made.count} came out: {why}")

    def _chosen(self, attempt: Callable[[float, int], Attempt]) -> tuple[Attempt, int]:
        """What is kept, or broke down, and how many attempts it took."""
        if self.recipe.nnz is None:
            return attempt(self.recipe.drop_tol, LARGEST), 1
        return search(attempt, self.recipe.nnz, self._guess)

    def _no_factors(self, made: Attempt) -> ZeroPivot:
        pivot = made.result.pivot
        usable = np.isfinite(pivot) and (pivot > 0 if self.cholesky else pivot != 0)
        what = "has an entry beside it that is not finite" if usable else "is zero or not finite"
        if self.cholesky and not usable:
            what = "is not a positive number"
        with_tol = "" if self.recipe.nnz is None else f" with drop_tol={made.drop_tol:.3g}"
        return ZeroPivot(self.recipe, made.result.rows, pivot, what + with_tol, ADVICE)

    @property
    def nnz(self) -> int:
        return self._triangles.nnz


def _moved(result, A: CSR) -> CSR:
    """The factors as a CSR on the device of A, with indices of the smallest type of the house that holds them."""
    xp = namespace(A.data)
    index = A.indices.dtype if result.stored <= INT32_LIMIT else np.dtype(np.int64)
    indptr, indices, diag = (
        xp.asarray(v.astype(index, copy=False)) for v in (result.indptr, result.indices, result.diag)
    )
    return CSR(indptr, indices, xp.asarray(result.data), diag)


def meets(made: Attempt, wanted: int) -> bool:
    return made.good and abs(made.count - wanted) <= CLOSE * wanted


def search(attempt: Callable[[float, int], Attempt], wanted: int, guess: float) -> tuple[Attempt, int]:
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
