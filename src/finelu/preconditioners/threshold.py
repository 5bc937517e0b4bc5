"""The base of ILUT and ICT: thresholds from norms, and the search for a wanted number of entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter
from typing import Any

import numpy as np

from finelu import deadline
from finelu.device import namespace
from finelu.errors import ZeroPivot
from finelu.factors.report import TriangularReport
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR, INT32_LIMIT
from finelu.matrix.traits import require_hermitian
from finelu.preconditioners.dense_rows import DenseLast
from finelu.preconditioners.dropping import Dropping, sizes_of
from finelu.preconditioners.recipe import checked, on_host, shifted
from finelu.triangular import DEFAULT_SWEEPS
from finelu.validation import count, number

SPARE, AIM, MOST = 1.2, 1.7, 3  # times the wanted entries, of the factors whose smallest entries are dropped
JUMP = 16  # as MOST, if no threshold gives a number between too few and too many
FEW = 3  # attempts after which less than SPARE is enough
ATTEMPTS = 20  # the most attempts of a search for a threshold
TOO_FAR = 0.1  # the search fails if breakdowns keep it farther below the wanted number than this
FIRST, SMALLEST, LARGEST_TOL, CLOSE_TOLS = 1e-3, 1e-14, 10.0, 1.1  # thresholds: to begin with, and where a search ends
POWER = 0.4  # the entries grow about like drop_tol to minus this power; to begin with
LARGEST = 2**62  # entries that no factors have: no limit
ADVICE = "Try shift=1e-3 (or larger), a smaller drop_tol, a reordering of A, or another recipe."


@dataclass(frozen=True)
class Attempt:
    """A factorization with the threshold drop_tol.

    result : Factored, see kernels/operands.py.  good : it is complete.  broken : it has a bad pivot.
    count : entries of L + U, the diagonal once; extrapolated from the finished rows if it is not complete.
    """

    drop_tol: float
    result: Any
    good: bool
    broken: bool
    count: int


@dataclass(eq=False, repr=False)
class ThresholdReport(TriangularReport):
    """drop_tol : of the factors.
    nnz : entries of L + U, the diagonal once.
    factorizations : their number.
    nnz_wanted : the wanted number, if one was given; a warning if there are fewer.
    """

    drop_tol: float | None = None
    nnz: int | None = None
    nnz_wanted: int | None = None
    factorizations: int | None = None


def check_threshold(recipe: Any) -> None:
    """A ParameterError for a drop_tol or fill that has no meaning."""
    number("drop_tol", recipe.drop_tol, of=recipe)
    number("fill", recipe.fill, open_low=True, infinite=True, of=recipe)


def checked_threshold(recipe: Any, A: Any) -> CSR:
    """As `checked`; a ParameterError if nnz has no room for the diagonal."""
    matrix = checked(recipe, A)
    if recipe.nnz is not None:
        count("nnz", recipe.nnz, matrix.n, of=recipe)  # what the diagonal takes
    return matrix


def keeps_all(recipe: Any) -> bool:
    """Whether the factors are those of A up to rounding, and solves with them exact."""
    limited = recipe.drop_tol > 0 or recipe.fill < np.inf or recipe.nnz is not None
    approximate = recipe.triangular in DEFAULT_SWEEPS or recipe.precision in ("auto", "half")
    return not (limited or recipe.shift or approximate)


def row_norms(A: CSR) -> Any:
    """The 2-norm of each row (n,) float64, without overflow or underflow on the way. No row of A may be empty."""
    return kernels_for(A.data).scaling.row_norms(A.indptr, A.data)


def column_norms(A: CSR) -> np.ndarray[Any, Any]:
    """The 2-norm of each column (n,) float64. No column of A may be empty."""
    T = A.tosparse().tocsc()
    norms: np.ndarray[Any, Any] = row_norms(CSR(T.indptr, T.indices, T.data, None))
    return norms


Trial = Callable[[float, int], Attempt]  # of a threshold, and the most entries that may be stored


class Threshold:
    """The numeric part of ILUT and ICT: a factorization from scratch each time, since the pattern follows the values.

    runs(recipe, A) : the kernel as a function of a threshold and of the most entries that may be stored.
    chosen(recipe, trial, guess) : the attempt that is kept, or broke down, and the number of attempts.
    order : None for A's own.
    on_host : True makes the factors on the CPU and moves them to the device of A; False makes them there.
    With a search, `update` begins with the threshold found last.
    """

    def __init__(
        self,
        recipe: Any,
        runs: Callable[[Any, CSR], Callable[[float, int], Any]],
        chosen: Callable[[Any, Trial, float], tuple[Attempt, int]] | None = None,
        *,
        order: DenseLast | None = None,
        on_host: bool = False,
    ):
        self.recipe, self._runs, self._chosen, self._on_host = recipe, runs, chosen or search_if_wanted, on_host
        self._order = order
        moved = None if order is None else order.moved
        self.report = ThresholdReport(variant=getattr(recipe, "form", "crout"), dense_last=moved)
        self._guess = recipe.drop_tol

    def factorize(self, A: CSR) -> CSR:
        start = perf_counter()
        recipe, cholesky, report = self.recipe, self.recipe.hermitian, self.report
        unlike = require_hermitian(recipe, A) if cholesky else ""
        if self._order is not None:
            A = self._order.matrix(A)
        given = on_host(A, recipe.shift) if self._on_host else A.with_values(shifted(A, recipe.shift))
        run = self._runs(recipe, given)

        def trial(drop_tol: float, most: int) -> Attempt:
            deadline.check()
            limit = (most + A.n) // 2 if cholesky else most
            result = run(drop_tol, limit)
            good = result.rows == A.n
            count = 2 * result.stored - result.rows if cholesky else result.stored
            if not good:  # the rows that are left may come to as many for each entry of A
                count = int(count * max(1.0, given.nnz / max(int(given.indptr[result.rows]), 1)))
            return Attempt(drop_tol, result, good, not good and result.stored <= limit, count)

        made, report.factorizations = self._chosen(recipe, trial, self._guess)
        if not made.good:
            raise self._no_factors(made)
        report.drop_tol = made.drop_tol
        self._guess = made.drop_tol or self._guess
        report.warning, report.nnz = unlike or None, made.count
        factors = _as_csr(made.result, A.indices.dtype)
        if recipe.nnz is not None:
            report.nnz_wanted = int(recipe.nnz)
            if made.count < recipe.nnz:
                all_there = "the complete factors have no more" if np.isinf(recipe.fill) else "fill allows no more"
                why = all_there if made.drop_tol == 0 else "no threshold that was tried leaves as many"
                report.warn(f"nnz={recipe.nnz} was wanted, {made.count} came out: {why}")
            factors, report.nnz = self._reduced(
                factors, int(recipe.nnz), kernels_for(given.data).vectors.gather(given.data, given.diag)
            )
        triangles = factors.on(namespace(A.data))
        report.numeric_seconds = perf_counter() - start
        return triangles

    def _reduced(self, F: CSR, wanted: int, diagonal: Any) -> tuple[CSR, int]:
        """F without its smallest entries, and the number of entries of L + U: `wanted` (or one less), or all."""
        below, above = sizes_of(F)
        times = 2 if self.recipe.hermitian else 1
        if F.n + times * (below + above) > wanted:
            kept = (wanted - F.n) // times  # L and U get shares as they have
            sizes = [kept, 0] if self.recipe.hermitian else [round(kept * below / (below + above)), 0]
            sizes[1] = kept - sizes[0]
            F = Dropping(self.recipe.hermitian).reduced(F, sizes, diagonal)
        return F, F.n + times * sum(sizes_of(F))

    def _no_factors(self, made: Attempt) -> ZeroPivot:
        recipe, pivot = self.recipe, made.result.pivot
        usable = np.isfinite(pivot) and (pivot > 0 if recipe.hermitian else pivot != 0)
        what = "has an entry in its row or column that is not finite" if usable else "is zero or not finite"
        if recipe.hermitian and not usable:
            what = "is not a positive number"
        with_tol = "" if recipe.nnz is None else f" with drop_tol={made.drop_tol:.3g}"
        row = made.result.rows if self._order is None else self._order.row(made.result.rows)
        return ZeroPivot(recipe, row, pivot, what + with_tol, ADVICE)


def _as_csr(made: Any, index: Any) -> CSR:
    """The factors with indices of the dtype `index` where it holds them, else int64."""
    index = index if made.stored <= INT32_LIMIT else np.dtype(np.int64)
    indptr, indices, diag = (v.astype(index, copy=False) for v in (made.indptr, made.indices, made.diag))
    return CSR(indptr, indices, made.data, diag)


def search_if_wanted(recipe: Any, trial: Trial, guess: float) -> tuple[Attempt, int]:
    """The one attempt with drop_tol, or a search for one that has more entries than are wanted."""
    return (trial(recipe.drop_tol, LARGEST), 1) if recipe.nnz is None else search(trial, int(recipe.nnz), guess)


def search(attempt: Trial, wanted: int, guess: float) -> tuple[Attempt, int]:
    """The attempt with SPARE to MOST times the wanted entries, or closest to AIM times; and the number of attempts.

    attempt(drop_tol, most) factors, and stops beyond `most` entries, so that none takes much longer than the last.
    From the third on, any attempt with enough entries is accepted. If pivots fail, smaller thresholds are tried, which
    seldom break down, until they leave too many entries; then larger ones. If no factors have about the wanted number
    of entries, and some attempts broke down, one of these is returned.
    """
    tried: list[Attempt] = []
    best: Attempt | None = None  # of the complete ones; the only one whose factors are kept
    drop_tol, most = guess if 0 < guess < 1 else FIRST, MOST * wanted
    while True:
        made = attempt(drop_tol, most)
        if made.good and (best is None or _off(made, wanted) <= _off(best, wanted)):
            best = made
        tried.append(replace(made, result=None) if made.good else made)
        if best is not None and best.count >= (SPARE if len(tried) < FEW else 1) * wanted:
            break
        if len(tried) == ATTEMPTS or most > MOST * wanted:
            break
        following = _next(tried, wanted)
        if following is None:  # the number jumps: from too few to far too many
            stopped = [made.drop_tol for made in tried if not made.good and not made.broken]
            if not stopped:
                break
            following, most = max(stopped), JUMP * wanted
        drop_tol = following
    broken = [made for made in tried if made.broken]
    if best is None or (broken and best.count < (1 - TOO_FAR) * wanted):
        return (broken or [made])[-1], len(tried)
    return best, len(tried)


def _off(made: Attempt, wanted: int) -> tuple[bool, float]:
    """Whether the attempt has too few entries, and its distance from AIM times the wanted number."""
    return made.count < wanted, abs(np.log(max(made.count, 1) / (AIM * wanted)))


def _next(tried: list[Attempt], wanted: int) -> float | None:
    """The threshold to try next: log(count) is interpolated over log(drop_tol). None: there is none between."""
    in_order = sorted(tried, key=lambda made: made.drop_tol)
    finest, coarsest = in_order[0], in_order[-1]
    many = [not made.good and not made.broken for made in in_order]
    for finer, coarser in pairwise(in_order):  # between a breakdown and too few entries
        ratio = coarser.drop_tol / max(finer.drop_tol, SMALLEST)
        if finer.broken and coarser.good and ratio >= CLOSE_TOLS:
            return float(coarser.drop_tol / np.sqrt(ratio))
    if not many[0]:
        if finest.drop_tol == 0:  # all that fill allows
            return _coarser(coarsest) if finest.broken else None
        if len(tried) > 1 and finest.good and in_order[1].good and finest.count <= 1.01 * in_order[1].count:
            return 0.0  # it hardly grows any more
        step = 10.0 if finest.broken else _step(AIM * wanted / finest.count)
        return finest.drop_tol / step if finest.drop_tol > SMALLEST else 0.0
    if many[-1]:
        return coarsest.drop_tol * _step(coarsest.count / (AIM * wanted))
    at = max(i for i in range(len(many) - 1) if many[i] and not many[i + 1])
    fine, coarse = in_order[at], in_order[at + 1]
    if fine.drop_tol == 0:
        return coarse.drop_tol / 100 if coarse.drop_tol > SMALLEST else None
    ratio = coarse.drop_tol / fine.drop_tol
    if ratio < CLOSE_TOLS:
        return _coarser(coarsest) if coarse.broken else None
    share = 0.5
    if coarse.good and fine.count > coarse.count:
        share = float(np.log(fine.count / (AIM * wanted)) / np.log(fine.count / coarse.count))
    return float(fine.drop_tol * ratio ** min(max(share, 0.2), 0.8))


def _step(growth: float) -> float:
    """The divisor of the threshold that gives about `growth` times as many entries."""
    return float(min(max(growth ** (1 / POWER), 3.0), 100.0))


def _coarser(coarsest: Attempt) -> float | None:
    """A larger threshold, in the hope that it does not break down, too."""
    larger = max(4 * coarsest.drop_tol, FIRST)
    return larger if larger <= LARGEST_TOL else None
