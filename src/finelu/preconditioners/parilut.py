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
from finelu.device import namespace, on_gpu, to_host
from finelu.errors import MatrixError, ParameterError, ZeroPivot
from finelu.factors import CholeskyFactors, Factors, LUFactors, TriangularFactors
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.preconditioners.dropping import Dropping, sizes_of
from finelu.preconditioners.fixed_point import FixedPoint, SweepReport, checked_fixed_point, norm_squared
from finelu.preconditioners.pattern_elimination import SHIFTS, Eliminated, NoPivots, PatternElimination
from finelu.preconditioners.recipe import Recipe
from finelu.validation import choice, count, flag, number

SWEEPS = ("exact", "synchronous", "asynchronous")
SELECTIONS = ("approximate", "exact")
INITIAL = ("residual", "scaled")
NO_PIVOTS = "with the candidates there are no pivots; the factors before that were taken"
NOT_FINITE = "the residual is not finite; the factors before that were taken"
AS_ILU0 = "{}; since no step was better, those on the first pattern, eliminated"
GREW = "the residual grew; the factors before that were taken"
STAGNATES = "the residual stagnates"
ROOM = 1.05  # factors are of the wanted size if they have at most this many times the wanted entries
DIVERGED = 1.5  # times the smallest residual norm that such factors had: the steps make the factors worse
LAST_DIVERGED = 1.6  # the same after an exact last step, since values of a larger pattern are not exact on their own
UPDATE_SWEEPS = 3
CANDIDATES, LEAST_CANDIDATES = 8, 2**20  # for each entry of A, and of all, where no limit is given


@dataclass(frozen=True, kw_only=True, repr=False)
class _Adapting(Recipe):
    """The parameters of ParILUT and ParICT."""

    steps: int = 3
    fill: float = 1.0
    nnz: int | None = None
    sweep: str = "exact"
    progressive: bool = False
    select: str = "exact"
    add_fraction: float = 1.0
    initial: str | None = None
    start: int | TriangularFactors = 0
    stagnation: float = 0.0
    memory_limit: int | None = None
    update_sweeps: int | None = None
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


@dataclass(frozen=True, kw_only=True, repr=False)
class ParILUT(_Adapting):
    """Incomplete LU whose pattern is adapted to the values, step by step; L has a unit diagonal.

    A step adds the places where A - L U is not zero, drops the smallest entries of L and of U, and finds the values on
    the pattern that is left; the last step finds them before it drops. Compared are |l_ij| sqrt|u_jj| / w_i and
    |u_ij| / (sqrt|u_ii| w_j), w_i the fourth root of |u_ii| max(|u_ii|, |a_ii|), which no symmetric scaling of A
    changes.

    steps : of the adaption. With exact values two or three bring most of what can be had, with sweeps five.
    fill : entries of L + U at the end, relative to those of the first pattern (A's, or that of ILU(start)), L and U
        apart; to A's where start is factors.
    nnz : in place of fill, entries of L + U at the end, the diagonal once, as in ILUT; of those off the diagonal L and
        U get shares as they have in that pattern.
    sweep : how the values are found. "exact": by the elimination of ILU(0), with a diagonal that is raised where
        pivots fail or lose their signs; see `shifts` in the report. "synchronous": as in the papers, in every step by a
        fixed-point sweep before the entries are dropped, and one after; each takes U first, then L with the new U.
        "asynchronous": by sweeps that read values as soon as they are there, so that they depend on the timing; the
        others give the same bits in every run. Sweeps may diverge where A is far from diagonally dominant.
    progressive : the fill changes in equal parts from step to step; else it is reached in the first.
    select : "exact" thresholds meet the fill; "approximate" ones miss it by a percent or so, and are found faster on
        the GPU (on the CPU the exact ones are, and the others may miss it by 20% where some rows fill much more than
        others). Of entries that are equal in magnitude as many are dropped as it takes, evenly spread.
    add_fraction : below 1, only the largest candidate of each row of L and of each column of U is considered, and of
        these that fraction, the largest (2018, section 4.1, δ).
    initial : what candidates start from before sweeps: their residual ("residual", 2018, equation 5, in L divided by
        the sign or phase of u_jj; None is that), or, "scaled", l_ij = r_ij / u_jj, as exact steps do.
    start : the pattern to begin with: a level k for that of ILU(k), 0 being A's own; or factors of a matrix with the
        same rows (any with L and U; made with the same ordering), with their values.
    stagnation : stop when a step has lowered the residual norm by less than this part of it; 0: never. Exact steps
        then end with a last one.
    memory_limit : bytes that the candidates may take. Beyond, those that come of small products l_ik u_kj only are left
        out (2018, section 4.4); the report says how many. None: room for 8 candidates for each entry of A, and for
        2^20 in any case, whatever is free; MemoryError names what they take where that is more than there is.
    update_sweeps, update_steps : what `update` does: sweeps on the pattern that was found (None: 3), then steps. Exact
        values need no sweeps: they come of one elimination on the larger pattern of the last step, which is kept, or
        on the factors' own where steps ended early.
    ordering : "rcm" orders A by reverse Cuthill-McKee first, as in the papers; None takes it as it is, but with dense
        rows that would fill in last, see `finelu.ordering.dense_last`.
    scale : symmetric scaling to a unit diagonal, undone in the factors. Sweeps begin, add_fraction compares, and
        residuals are measured, after it.
    shift, triangular, triangular_sweeps, precision : as in ParILU.
    If the residual norm grows to 1.5 times the smallest that factors of the wanted size had (1.6 times in an exact last
    step), those are taken, and it stops.
    Cost: a step takes the products L U, an elimination on the pattern that is left, or two sweeps; the last one an
    elimination on two to six times the final pattern. Memory: that pattern with its values, and what `update` keeps.
    """

    def factor(self, A: Any) -> LUFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes, where it lives. A is not written.

        Raises MatrixError where A has no full diagonal, ZeroPivot, naming the row, where it is zero, or where there is
        no elimination on the first pattern. Sweeps refuse updates that would not be finite; the report counts them.
        """
        A = _checked(self, A)
        numeric = _Adaption(self, A)
        return LUFactors(
            self, A, numeric, numeric.factorize(A), sweeps=self.triangular_sweeps, arranged=numeric.arranged
        )


@dataclass(frozen=True, kw_only=True, repr=False)
class ParICT(_Adapting):
    """Incomplete Cholesky whose pattern is adapted to the values, for Hermitian positive definite matrices.

    A is Hermitian; see IC0. Parameters as in ParILUT; about half its cost.
    """

    hermitian = keeps_symmetry = keeps_definite = True

    def factor(self, A: Any) -> CholeskyFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes, where it lives. A is not written.

        Raises MatrixError where A has no full diagonal or is not Hermitian, ZeroPivot, naming the row, where the
        diagonal is not positive. Sweeps refuse updates that would not be finite and pivots that would not be positive;
        the report counts them.
        """
        A = _checked(self, A)
        numeric = _Adaption(self, A)
        return CholeskyFactors(
            self, A, numeric, numeric.factorize(A), sweeps=self.triangular_sweeps, arranged=numeric.arranged
        )


def _checked(recipe: _Adapting, A: Any) -> CSR:
    for name in ("steps", "update_steps"):
        count(name, getattr(recipe, name), 0, of=recipe)
    choice("sweep", recipe.sweep, SWEEPS, of=recipe)
    if recipe.sweep == "exact":
        for name in ("initial", "update_sweeps"):
            if getattr(recipe, name) is not None:
                raise ParameterError(f"{recipe!r}: {name} is for sweeps; leave it out, or give sweep='synchronous'.")
    if recipe.update_sweeps is not None:
        count("update_sweeps", recipe.update_sweeps, 0, of=recipe)
    number("fill", recipe.fill, 0, 1e6, open_low=True, of=recipe)
    if recipe.nnz is not None and recipe.fill != 1.0:
        raise ParameterError(f"{recipe!r}: fill and nnz say the same; leave one of them out.")
    number("add_fraction", recipe.add_fraction, 0, 1, open_low=True, of=recipe)
    number("stagnation", recipe.stagnation, 0, 1, of=recipe)
    flag("progressive", recipe.progressive, of=recipe)
    choice("select", recipe.select, SELECTIONS, of=recipe)
    choice("initial", recipe.initial, (*INITIAL, None), of=recipe)
    if recipe.memory_limit is not None:
        count("memory_limit", recipe.memory_limit, 1, of=recipe)
    if not isinstance(recipe.start, TriangularFactors):
        if isinstance(recipe.start, Factors):
            raise ParameterError(f"start={recipe.start!r} has no two triangles to begin with; a level or others do.")
        count("start", recipe.start, 0, of=recipe)
    matrix = checked_fixed_point(recipe, A)
    if recipe.nnz is not None:
        count("nnz", recipe.nnz, matrix.n, of=recipe)  # what the diagonal takes
    return matrix


@dataclass(eq=False, repr=False)
class _AdaptionReport(SweepReport):
    """steps, how many were done; residual_norms, ||A - L U||_F before each step and after the last, relative to
    ||A||_F, of the scaled matrix; candidates, left_out and nnz of each step; stopped, why.

    shifts : by what part of itself the diagonal was raised for the elimination of the first pattern, and of each step;
    a warning where it was at last.
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
    """F, of B; eliminated : if exact, how its values were made, on its pattern or on a larger one."""

    F: CSR
    eliminated: Eliminated | None = None


class _Norms:
    """The residual norms that steps begin with, and what they say: whether to stop, and with which factors.

    wanted : entries below and above the diagonal that factors should have in the end.
    best : of the factors of at most the wanted size those with the smallest norm.  is_first : they are those that the
        steps began with.
    """

    def __init__(self, stagnation: float, wanted: list[int], first: _Factors):
        self._stagnation, self._wanted = stagnation, wanted
        self._norms: list[float] = []  # of factors that are no larger than wanted
        self.best, self.is_first = first, True

    def stop(self, norm: float, made: _Factors) -> str:
        """Why to stop before a step from these factors, of this residual norm, or nothing."""
        if all(size <= ROOM * wanted for size, wanted in zip(sizes_of(made.F), self._wanted, strict=True)):
            self._norms.append(norm)
            if norm <= min(self._norms):
                self.best, self.is_first = made, self.is_first and made is self.best
        before = self._norms[-2] if len(self._norms) > 1 and self._stagnation > 0 else np.inf
        return self.failed(norm, DIVERGED) or (STAGNATES if norm > (1 - self._stagnation) * before else "")

    def failed(self, norm: float, most: float) -> str:
        """Why factors of this residual norm, at most `most` times the smallest, are not as good, or nothing."""
        if not np.isfinite(norm):
            return NOT_FINITE
        return GREW if self._norms and norm > most * min(self._norms) else ""


class _Adaption(FixedPoint):
    """`update` keeps the pattern that was found, and improves its values or finds them anew; see update_sweeps and
    update_steps."""

    report: _AdaptionReport
    _found: _Factors | None = None  # the factors of B
    _found_diagonal: Any = None

    def __init__(self, recipe: _Adapting, A: CSR):
        given = recipe.start if isinstance(recipe.start, TriangularFactors) else None
        fills = given is None or given.permutation is not None
        super().__init__(recipe, A, _AdaptionReport(variant=recipe.sweep), fills=fills)
        self._exact = recipe.sweep == "exact"
        self._dropping = Dropping(self.cholesky, exact=recipe.select == "exact")
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
        factors = self.finished(F, d)
        self._found, self._found_diagonal = _Factors(F, made.eliminated), self.diagonal
        report.numeric_seconds = perf_counter() - start
        return factors

    def _begin(self, B: CSR, d: Any) -> _Factors:
        """The factors to begin with; the sizes that are wanted."""
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
        """The factors of new values on the pattern that was found."""
        F, recipe, before = found.F, self.recipe, found.eliminated
        B = B.with_index(F.indices.dtype)
        if self._exact:
            if before is None:  # factors that were given
                return self._eliminated(B, PatternElimination(F, self.cholesky))
            made = self._eliminated(B, before.elimination, (before.begin, before.signs))
            if made.F.nnz == F.nnz:
                return _Factors(F.with_values(made.F.data), made.eliminated)
            return _Factors(F.with_values(kernels_for(F.data).pattern.values_at(made.F, F)), made.eliminated)
        if not recipe.scale:  # what the old diagonal has done to their size
            F = self.rescaled(F, self._found_diagonal / self.diagonal)
        elif recipe.asynchronous:
            F = F.copy()  # should this update fail, the next begins where it did
        for _ in range(UPDATE_SWEEPS if recipe.update_sweeps is None else recipe.update_sweeps):
            F = self.sweep(B, F)
        return _Factors(F)

    def _adapted(self, B: CSR, made: _Factors, steps: int, size_of_B: float) -> tuple[CSR, _Factors, float | None]:
        """B, the factors after the steps (2018, Algorithm 2), and their residual norm on the pattern, if known."""
        if steps == 0:
            return B, made, None
        B = B.with_index(made.F.indices.dtype)
        first, norms = sizes_of(made.F), _Norms(self.recipe.stagnation, self._wanted, made)
        for step in range(1, steps + 1):
            part = step / steps if self.recipe.progressive else 1.0
            sizes = [round(a + part * (z - a)) for a, z in zip(first, self._wanted, strict=True)]
            found, _, norm = self._candidates(B, made.F, size_of_B)
            stopped = norms.stop(norm, made)
            settled = self._exact and stopped == STAGNATES  # what follows is a last step
            if settled:
                sizes = self._wanted
            if not stopped or settled:
                B, made, failed = self._step(B, made, found, sizes, last=settled or step == steps)
            else:
                failed = stopped
            if failed:
                return B, self._best(B, norms, failed), None
            self.report.steps = step
            if settled:
                self.report.stopped = stopped
                break
        *_, on_pattern, norm = self._candidates(B, made.F, size_of_B)
        failed = norms.failed(norm, LAST_DIVERGED if self._exact else DIVERGED)
        return (B, self._best(B, norms, failed), None) if failed else (B, made, on_pattern)

    def _best(self, B: CSR, norms: _Norms, stopped: str) -> _Factors:
        """The factors that are taken when steps end early; the first ones, if of sweeps, are exact instead."""
        self.report.stopped = stopped
        given = isinstance(self.recipe.start, TriangularFactors)
        if stopped != STAGNATES and norms.is_first and not (self._exact or given):
            first = norms.best.F
            with suppress(ZeroPivot):
                F = self._eliminated(B.with_index(first.indices.dtype), PatternElimination(first, self.cholesky)).F
                self.report.stopped = AS_ILU0.format(stopped)
                return _Factors(first.with_values(F.data))
        return norms.best

    def _candidates(self, B: CSR, F: CSR, size_of_B: float) -> tuple[list[Any], float, float]:
        """The candidates [indptr, indices, values, how many were left out], the norm of the residual on F's pattern,
        and that of all of it, relative to B's; the report has the latter."""
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
        """B and the factors after a step, of `sizes` below and above the diagonal; or before it, and why.

        What is not needed any more is let go at once; so `found` is emptied.
        """
        *candidates, left_out = found
        found.clear()
        kernels, report = kernels_for(B.data), self.report
        pattern, diagonal = kernels.pattern, kernels.vectors.gather(B.data, B.diag)
        if self.recipe.add_fraction < 1:
            candidates = _largest(made.F, candidates, self.recipe.add_fraction)
        B, larger = pattern.add(B, made.F, *candidates, scaled=self._exact or self.recipe.initial == "scaled")
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
        """The factors of B on the pattern of `elimination`, with the shift that they take. Raises ZeroPivot."""
        try:
            F, how = elimination.factor(B, *begin)
        except NoPivots as failed:
            what = "is not a positive number" if self.cholesky else "is zero or not finite"
            raise ZeroPivot(self.recipe, self._row(failed.row), failed.pivot, what) from None
        self.report.shifts.append(SHIFTS[how.shift])
        return _Factors(F, how)

    def _first(self, B: CSR, d: Any) -> CSR:
        """The factors of B to begin with."""
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
            raise ParameterError(f"start={start!r} has not the two triangles that {type(self.recipe).__name__} makes.")
        theirs, ours = start.permutation, None if self.arranged is None else self.arranged.rows
        same = theirs is ours or (theirs is not None and ours is not None and bool((theirs == ours).all()))
        if not same:
            raise ParameterError(f"start={start!r} was made with another ordering of the rows.")
        return self.rescaled(given.with_values(given.data.astype(B.dtype)), d)


def _largest(F: CSR, found: list[Any], part: float) -> list[Any]:
    """Of the candidates (indptr, indices, values) the largest of each row of L and each column of U, and of those the
    part with the largest magnitudes: 2018, section 4.1."""
    xp = namespace(F.data)
    indptr, indices, values = found
    rows = (xp.searchsorted(indptr, xp.arange(values.size), side="right") - 1).astype(indices.dtype)
    size, keep = abs(values), xp.zeros(values.size, bool)
    for here, group in ((indices < rows, rows), (indices > rows, indices)):
        places = xp.flatnonzero(here)
        if places.size == 0:
            continue
        # by group, then by magnitude: the last of each group is its largest (of equal ones the last in the matrix)
        keys = xp.stack((size[places].astype(np.float64), group[places].astype(np.float64)))
        places = places[xp.lexsort(keys)]
        last = xp.concatenate([group[places[1:]] != group[places[:-1]], xp.ones(1, bool)])
        leaders = xp.sort(places[last])
        wanted = max(round(part * leaders.size), 1)
        keep[leaders[xp.argsort(-size[leaders], kind="stable")[:wanted]]] = True
    kept = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(keep)])
    return [kept[indptr].astype(indptr.dtype), indices[keep], values[keep]]
