"""ParILUT and ParICT: incomplete factorizations whose pattern follows the values, by eliminations or by sweeps.

H. Anzt, E. Chow, J. Dongarra: ParILUT - a new parallel threshold ILU factorization, 2018 (the algorithm, "2018" below);
H. Anzt, T. Ribizel, G. Flegar, E. Chow, J. Dongarra: ParILUT - a parallel threshold ILU for GPUs, 2019.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from finelu import deadline
from finelu.device import on_gpu, to_host
from finelu.errors import MatrixError, ParameterError, ZeroPivot
from finelu.factors import CholeskyFactors, Factors, LUFactors, TriangularFactors
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.matrix.traits import is_hermitian
from finelu.preconditioners.dropping import Dropping, sizes_of
from finelu.preconditioners.fixed_point import (
    FixedPoint,
    SweepReport,
    check_fixed_point,
    checked_fixed_point,
    norm_squared,
)
from finelu.preconditioners.pattern_elimination import SHIFTS, Eliminated, NoPivots, PatternElimination
from finelu.preconditioners.recipe import Recipe
from finelu.preconditioners.sweeps import Sweeps, leaders
from finelu.validation import STORED, choice, count, number

SWEEPS = ("exact", "synchronous", "asynchronous", "paper")
NO_PIVOTS = "pivots fail with the candidates; the factors of the step before were taken"
NOT_FINITE = "the residual is not finite; the factors of the step before were taken"
AS_ILU0 = "{}; since no step was better, the first pattern was eliminated"
GREW = "the residual grew; the factors of the step before were taken"
STAGNATES = "the residual stagnates"
ROOM = 1.05  # factors are of the wanted size if they have at most this many times the wanted entries
DIVERGED = 1.5  # times the smallest residual norm that such factors had: the steps make the factors worse
LAST_DIVERGED = 1.6  # the same after an exact last step, since values of a larger pattern are not exact on their own
CANDIDATES, LEAST_CANDIDATES = 8, 2**20  # allowed for each entry of A, and in total, if no limit is given


@dataclass(frozen=True, kw_only=True, repr=False)
class _Adapting(Recipe):
    """The parameters of ParILUT and ParICT."""

    precisions = STORED

    steps: int = 3
    fill: float = 1.0
    nnz: int | None = None
    sweep: str = "exact"
    sweeps: Sweeps | None = None
    start: int | TriangularFactors = 0
    memory_limit: int | None = None
    update_steps: int = 0
    ordering: str | None = None
    scale: bool = True
    shift: float = 0.0
    triangular: str = "auto"
    triangular_sweeps: int | None = None
    precision: str | None = None

    @property
    def asynchronous(self) -> bool:
        return self.sweep == "asynchronous"

    def check(self) -> None:
        super().check()
        check_fixed_point(self)
        for name in ("steps", "update_steps"):
            count(name, getattr(self, name), 0, of=self)
        choice("sweep", self.sweep, SWEEPS, of=self)
        if self.sweeps is not None:
            if not isinstance(self.sweeps, Sweeps):
                raise ParameterError(f"{self!r}: sweeps must be finelu.Sweeps(...) or None.")
            if self.sweep == "exact":
                raise ParameterError(f"{self!r}: sweeps has no effect on exact values; give sweep='synchronous', too.")
        number("fill", self.fill, 0, 1e6, open_low=True, of=self)
        if self.nnz is not None and self.fill != 1.0:
            raise ParameterError(f"{self!r}: fill and nnz say the same; leave one of them out.")
        if self.memory_limit is not None:
            count("memory_limit", self.memory_limit, 1, of=self)
        if not isinstance(self.start, TriangularFactors):
            if isinstance(self.start, Factors):
                raise ParameterError(f"start={self.start!r} has no two triangles to begin with; a level or others do.")
            count("start", self.start, 0, of=self)


@dataclass(frozen=True, kw_only=True, repr=False)
class ParILUT(_Adapting):
    """Incomplete LU whose pattern is adapted to the values, step by step; L has a unit diagonal.

    A step adds entries where A - L U is not zero, drops the smallest entries of L and of U, and computes the values on
    the remaining pattern; the last step computes them before it drops. Entries are compared as
    |l_ij| sqrt|u_jj| / w_i and |u_ij| / (sqrt|u_ii| w_j), where w_i is the fourth root of |u_ii| max(|u_ii|, |a_ii|);
    no symmetric scaling of A changes these numbers.

    steps : number of steps. With exact values two or three bring most of the improvement, with sweeps five do.
    fill : entries of L, and of U, at the end, relative to those of the first pattern (A's, or that of ILU(start)); if
        `start` is factors, relative to A's.
    nnz : instead of fill, the number of entries of L + U at the end, the diagonal counted once, as in ILUT. L and U
        share the entries off the diagonal in the ratio of the first pattern.
    sweep : computation of the values. "exact": by the elimination of ILU(0); the diagonal is raised if pivots fail or
        lose their signs, see `shifts` in the report. The others make one fixed-point sweep before entries are dropped,
        and one after. They may diverge if A is far from diagonally dominant. "synchronous": each sweep computes U
        first, then L with the new U and its pivots. "asynchronous": sweeps read the newest values, so that the result
        depends on the timing; the others give the same bits in every run. "paper": the algorithm of 2018. Each sweep
        computes L from the old U, then U with the new L, for Cholesky all entries from the old ones; entries are
        compared as |l_ij| and |u_ij|.
    sweeps : `Sweeps`, further options for values that are computed by sweeps.
    start : the first pattern: a level k for that of ILU(k), where 0 is A's own; or factors, with their values, of a
        matrix with the same rows (any with L and U, made with the same ordering).
    memory_limit : bytes for the candidates. If they take more, those with small products l_ik u_kj are left out (2018,
        section 4.4); the report has their number. None allows 8 candidates for each entry of A, and at least 2^20,
        whatever memory is free; MemoryError gives the bytes if they do not fit.
    update_steps : number of steps that `update` makes after it has computed the values on the present pattern. With
        exact values these come of one elimination on the larger pattern of the last step, which is kept, or on the
        factors' own pattern if the steps ended early.
    ordering : "rcm" orders A by reverse Cuthill-McKee first, as in the papers. None keeps the order, except that dense
        rows that would fill in are moved to the end, see `finelu.ordering.dense_last`.
    scale : symmetric scaling to a unit diagonal, undone in the factors. Sweeps and residuals refer to the scaled
        matrix.
    shift, triangular, triangular_sweeps, precision : as in ParILU.
    The steps stop if the residual norm grows to 1.5 times the smallest norm of factors of the wanted size (1.6 times in
    an exact last step); the factors with the smallest norm are then taken.
    Cost: a step takes the products L U, and an elimination on the remaining pattern, or two sweeps. The last step takes
    an elimination on two to six times the final pattern. Memory: that pattern with its values, and the data kept for
    `update`.
    """

    def factor(self, A: Any) -> LUFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes, where it lives. A is not written.

        Raises MatrixError if A has no full diagonal; ZeroPivot, naming the row, if a diagonal entry is zero, or if the
        elimination on the first pattern fails. Sweeps refuse updates that would not be finite; the report counts them.
        """
        A = _checked(self, A)
        numeric = _Adaption(self, A)
        return LUFactors(
            self, A, numeric, numeric.factorize(A), sweeps=self.triangular_sweeps, arranged=numeric.arranged
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ParICT(_Adapting):
    """Incomplete Cholesky whose pattern is adapted to the values, for Hermitian positive definite matrices.

    A is Hermitian; see IC0. Parameters as in ParILUT. It has half the candidates and entries, but an elimination has as
    many multiplications, and each row has its fixed costs: it takes less time than ParILUT, but more than half.
    """

    hermitian = keeps_symmetry = keeps_definite = True

    def factor(self, A: Any) -> CholeskyFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes, where it lives. A is not written.

        Raises MatrixError if A has no full diagonal or is not Hermitian; ZeroPivot, naming the row, if a diagonal entry
        is not positive. Sweeps refuse updates that would not be finite and pivots that would not be positive; the
        report counts them.
        """
        A = _checked(self, A)
        numeric = _Adaption(self, A)
        return CholeskyFactors(
            self, A, numeric, numeric.factorize(A), sweeps=self.triangular_sweeps, arranged=numeric.arranged
        )


def _checked(recipe: _Adapting, A: Any) -> CSR:
    matrix = checked_fixed_point(recipe, A)
    if recipe.nnz is not None:
        count("nnz", recipe.nnz, matrix.n, of=recipe)  # what the diagonal takes
    return matrix


@dataclass(eq=False, repr=False)
class _AdaptionReport(SweepReport):
    """steps : number of steps that were done.
    stopped : why they ended.
    residual_norms : ||A - L U||_F before each step and after the last, relative to ||A||_F, of the scaled matrix.
    candidates, left_out, nnz : of each step.
    shifts : the part of itself by which the diagonal was raised, for the elimination of the first pattern and of each
        step; there is a warning if that of the factors that are kept is not 0: of the last, or an earlier one if
        steps end early.
    """

    steps: int = 0
    residual_norms: list[float] = field(default_factory=list)
    shifts: list[float] = field(default_factory=list)
    candidates: list[int] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)
    nnz: list[int] = field(default_factory=list)
    stopped: str = "all steps done"


@dataclass(frozen=True, eq=False)
class _Factors:
    """F : factors of B.  eliminated : for exact values, the elimination that made them, on F's pattern or a larger
    one."""

    F: CSR
    eliminated: Eliminated | None = None


class _Norms:
    """The residual norms at the beginning of the steps; they decide whether to stop, and with which factors.

    wanted : entries below and above the diagonal that factors should have in the end.
    best : the factors with the smallest norm among those of at most the wanted size.
    is_first : whether `best` is the factors that the steps began with.
    """

    def __init__(self, stagnation: float, wanted: list[int], first: _Factors):
        self._stagnation, self._wanted = stagnation, wanted
        self._norms: list[float] = []  # of factors that are no larger than wanted
        self.best, self.is_first = first, True

    def stop(self, norm: float, made: _Factors) -> str:
        """Why to stop before a step from these factors of this residual norm, or ""."""
        if all(size <= ROOM * wanted for size, wanted in zip(sizes_of(made.F), self._wanted, strict=True)):
            self._norms.append(norm)
            if norm <= min(self._norms):
                self.best, self.is_first = made, self.is_first and made is self.best
        before = self._norms[-2] if len(self._norms) > 1 and self._stagnation > 0 else np.inf
        return self.failed(norm, DIVERGED) or (STAGNATES if norm > (1 - self._stagnation) * before else "")

    def failed(self, norm: float, most: float) -> str:
        """Why factors of this residual norm, allowed `most` times the smallest one, are not good enough, or ""."""
        if not np.isfinite(norm):
            return NOT_FINITE
        return GREW if self._norms and norm > most * min(self._norms) else ""


class _Adaption(FixedPoint):
    """`update` keeps the pattern, and improves its values or computes them anew; see update_steps and `Sweeps`."""

    report: _AdaptionReport
    _found: _Factors | None = None  # the factors of B
    _found_diagonal: Any = None

    def __init__(self, recipe: _Adapting, A: CSR):
        given = recipe.start if isinstance(recipe.start, TriangularFactors) else None
        fills = given is None or given.permutation is not None
        super().__init__(recipe, A, _AdaptionReport(variant=recipe.sweep), fills=fills)
        self._exact, self._paper = recipe.sweep == "exact", recipe.sweep == "paper"
        self._options = options = recipe.sweeps or Sweeps()
        self._dropping = Dropping(self.cholesky, exact=options.select == "exact", weighted=not self._paper)
        if recipe.memory_limit is None:  # how many candidates there may be
            self._most = max(CANDIDATES * A.nnz, LEAST_CANDIDATES)
        else:
            self._most = max(int(recipe.memory_limit) // int(A.data.itemsize + A.indices.itemsize), 1)

    def factorize(self, A: CSR) -> CSR:
        start = perf_counter()
        recipe, report = self.recipe, self.report
        report.stopped, report.steps, report.shifts = "all steps done", 0, []
        report.residual_norms, report.candidates, report.left_out, report.nnz = [], [], [], []
        B, d = self.scaled(A)
        size_of_B = float(norm_squared(B, self.cholesky)) ** 0.5
        if size_of_B == 0:
            raise ParameterError(f"{recipe!r}: the squares of A's entries underflow; leave scale at True.")
        found = self._found
        steps = recipe.steps if found is None else recipe.update_steps
        made = self._begin(B, d) if found is None else self._again(B, found)
        B, made, residual = self._adapted(B, made, steps, size_of_B)
        F = made.F
        if residual is None:
            residual = float(self.residual(B.with_index(F.indices.dtype), F).sum()) ** 0.5
        self._last_columns = None
        self.report_refused()
        self.report_residual(residual / size_of_B)
        if made.eliminated is not None and made.eliminated.shift > 0:
            what = "positive" if self.cholesky else "usable or has lost its sign"
            report.warn(
                f"the diagonal was raised by {SHIFTS[made.eliminated.shift]:.2g} of itself, since without that the "
                f"pivot of row {self._row(made.eliminated.row)} is not {what}. Where that is much, try another recipe, "
                "or an ordering of A"
            )
        if made.eliminated is not None and made.eliminated.lost >= 0 and is_hermitian(B):
            report.warn(
                f"the pivot of row {self._row(made.eliminated.lost)} and the diagonal entry of A there differ in sign, "
                "and a slightly larger diagonal did not help: A is indefinite, or too many entries were dropped. If A "
                "is definite, try ParICT, or a larger fill"
            )
        factors = self.finished(F, d)
        self._found, self._found_diagonal = _Factors(F, made.eliminated), self.diagonal
        report.numeric_seconds = perf_counter() - start
        return factors

    def _begin(self, B: CSR, d: Any) -> _Factors:
        """The first factors; also sets the wanted sizes."""
        given = isinstance(self.recipe.start, TriangularFactors)
        exact = self._exact and not given
        F = self.pattern(B, self.recipe.start)[0] if exact else self._first(B, d)
        sizes = sizes_of(B if given else F)
        fill = self.recipe.fill
        if self.recipe.nnz is not None:
            fill = (self.recipe.nnz - B.n) / max((2 if self.cholesky else 1) * sum(sizes), 1)
        self._wanted = [round(fill * size) for size in sizes]
        return self._eliminated(B, PatternElimination(F, self.cholesky)) if exact else _Factors(F)

    def _again(self, B: CSR, found: _Factors) -> _Factors:
        """The factors of new values on the pattern of `found`."""
        F, recipe, before = found.F, self.recipe, found.eliminated
        B = B.with_index(F.indices.dtype)
        if self._exact:
            if before is None:  # factors that were given
                return self._eliminated(B, PatternElimination(F, self.cholesky))
            made = self._eliminated(B, before.elimination, (before.begin, before.signs))
            if made.F.nnz == F.nnz:
                return _Factors(F.with_values(made.F.data), made.eliminated)
            return _Factors(F.with_values(kernels_for(F.data).pattern.values_at(made.F, F)), made.eliminated)
        if not recipe.scale:  # the size of the factors depends on the old diagonal
            F = self.rescaled(F, self._found_diagonal / self.diagonal)
        elif recipe.asynchronous:
            F = F.copy()  # if this update fails, the next begins from the same values
        for _ in range(self._options.update):
            F = self.sweep(B, F)
        return _Factors(F)

    def _adapted(self, B: CSR, made: _Factors, steps: int, size_of_B: float) -> tuple[CSR, _Factors, float | None]:
        """B, the factors after the steps (2018, Algorithm 2), and their residual norm on the pattern, if known."""
        if steps == 0:
            return B, made, None
        B = B.with_index(made.F.indices.dtype)
        first, norms = sizes_of(made.F), _Norms(self._options.stagnation, self._wanted, made)
        for step in range(1, steps + 1):
            part = step / steps if self._options.progressive else 1.0
            sizes = [round(a + part * (z - a)) for a, z in zip(first, self._wanted, strict=True)]
            found, _, norm = self._candidates(B, made.F, size_of_B)
            failed = norms.stop(norm, made)
            if not failed:
                B, made, failed = self._step(B, made, found, sizes, last=step == steps)
            if failed:
                return B, self._best(B, norms, failed), None
            self.report.steps = step
        *_, on_pattern, norm = self._candidates(B, made.F, size_of_B)
        failed = norms.failed(norm, LAST_DIVERGED if self._exact else DIVERGED)
        return (B, self._best(B, norms, failed), None) if failed else (B, made, on_pattern)

    def _best(self, B: CSR, norms: _Norms, stopped: str) -> _Factors:
        """The factors that are taken when steps end early; if these are the first ones of sweeps, exact ones
        instead."""
        self.report.stopped = stopped
        given = isinstance(self.recipe.start, TriangularFactors)
        if stopped != STAGNATES and norms.is_first and not (self._exact or given):
            first = norms.best.F
            with suppress(ZeroPivot):
                F = self._eliminated(B.with_index(first.indices.dtype), PatternElimination(first, self.cholesky)).F
                self.report.stopped = AS_ILU0.format(stopped)
                return _Factors(first.with_values(F.data))
        return norms.best

    def sweep(self, B: CSR, F: CSR) -> CSR:
        if not self._paper:
            return super().sweep(B, F)
        return self.swept(B, F, ("whole",) if self.cholesky else ("lower", "upper"))

    def _candidates(self, B: CSR, F: CSR, size_of_B: float) -> tuple[list[Any], float, float]:
        """The candidates [indptr, indices, values, number left out], the norm of the residual on F's pattern, and that
        of the whole residual, relative to B's norm, which is also reported."""
        deadline.check()
        columns, kernels = self.columns(F) if self.cholesky else None, kernels_for(B.data).candidates
        indptr, indices, values, squares, left_out = kernels.candidates(B, F, columns, most=self._most)
        here, others = (float(v) for v in to_host(squares.sum(axis=1)))
        norm = (here + others) ** 0.5 / size_of_B
        self.report.residual_norms.append(norm)
        return [indptr, indices, values, int(left_out)], here**0.5, norm

    def _step(
        self, B: CSR, made: _Factors, found: list[Any], sizes: list[int], last: bool
    ) -> tuple[CSR, _Factors, str]:
        """B and the factors after a step, of `sizes` below and above the diagonal; or those before it, and why.

        `found` is emptied, so that memory is free as soon as it is not needed.
        """
        *candidates, left_out = found
        found.clear()
        kernels, report = kernels_for(B.data), self.report
        pattern, diagonal = kernels.pattern, kernels.vectors.gather(B.data, B.diag)
        options = self._options
        if options.add_fraction is not None:
            candidates = leaders(made.F, candidates, options.add_fraction)
        B, larger = pattern.add(B, made.F, *candidates, scaled=self._exact or options.initial == "scaled")
        considered = int(candidates[1].size)
        del candidates
        if self._exact:
            begin = (0, True) if made.eliminated is None else made.eliminated.next
            chosen = larger if last else self._dropping.reduced_pattern(larger, sizes, diagonal)
            elimination = PatternElimination(chosen, self.cholesky)
            del larger, chosen
            try:
                made = self._eliminated(B, elimination, begin)
            except ZeroPivot:
                return B, made, NO_PIVOTS
            if last:
                made = _Factors(self._dropping.reduced(made.F, sizes, diagonal), made.eliminated)
        else:
            larger = self.sweep(B, larger)
            larger = self._dropping.reduced(larger, sizes, diagonal)
            made = _Factors(self.sweep(B, larger))
        report.candidates.append(considered)
        report.left_out.append(left_out)
        report.nnz.append(made.F.nnz)
        return B, made, ""

    def _eliminated(self, B: CSR, elimination: PatternElimination, begin: tuple[int, bool] = (0, True)) -> _Factors:
        """The factors of B on the pattern of `elimination`, with the shift that they need. Raises ZeroPivot."""
        try:
            F, how = elimination.factor(B, *begin)
        except NoPivots as failed:
            what = "is not a positive number" if self.cholesky else "is zero or not finite"
            raise ZeroPivot(self.recipe, self._row(failed.row), failed.pivot, what) from None
        self.report.shifts.append(SHIFTS[how.shift])
        return _Factors(F, how)

    def _first(self, B: CSR, d: Any) -> CSR:
        """The first factors of B."""
        start = self.recipe.start
        if not isinstance(start, TriangularFactors):
            return self.initial(*self.pattern(B, start), B)
        start._require_valid()
        given = start._triangles
        if given.dtype.kind == "c" and B.dtype.kind != "c":
            raise MatrixError(f"start={start!r} is complex; the matrix is {B.dtype}.")
        if start.shape != B.shape or on_gpu(given.data) != on_gpu(B.data):
            raise MatrixError(f"start has shape {start.shape} or another device; the matrix has {B.n} rows.")
        if isinstance(start, CholeskyFactors) != self.cholesky:
            raise ParameterError(f"start={start!r} does not have the two triangles of {type(self.recipe).__name__}.")
        theirs, ours = start.permutation, None if self.arranged is None else self.arranged.rows
        same = theirs is ours or (theirs is not None and ours is not None and bool((theirs == ours).all()))
        if not same:
            raise ParameterError(f"start={start!r} was made with another ordering of the rows.")
        return self.rescaled(given.with_values(given.data.astype(B.dtype)), d)
