"""ParILUT and ParICT: incomplete factorizations whose pattern follows the values, by fixed-point sweeps.

H. Anzt, E. Chow, J. Dongarra: ParILUT - a new parallel threshold ILU factorization, 2018 (the algorithm, "2018" below);
H. Anzt, T. Ribizel, G. Flegar, E. Chow, J. Dongarra: ParILUT - a parallel threshold ILU for GPUs, 2019.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from finelu.device import namespace, on_gpu
from finelu.errors import MatrixError, ParameterError
from finelu.factors import CholeskyFactors, Factors, LUFactors, TriangularFactors
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.preconditioners.fixed_point import FixedPoint, SweepReport, checked_fixed_point, norm_squared
from finelu.preconditioners.recipe import Recipe
from finelu.validation import choice, count, flag, number

SELECTIONS = ("approximate", "exact")
INITIAL = ("residual", "scaled")
NOT_FINITE = "the residual is not finite; the factors before that were taken"
GREW = "the residual grew; the factors before that were taken"
STAGNATES = "the residual stagnates"
ROOM = 1.05  # factors are of the wanted size if they have at most this many times the wanted entries
DIVERGED = 1.5  # times the smallest residual norm that such factors had: the steps make the factors worse
CANDIDATES, LEAST_CANDIDATES = 64, 2**20  # for each entry of A, and of all, where no limit is given


@dataclass(frozen=True, kw_only=True, repr=False)
class _Adapting(Recipe):
    """The parameters of ParILUT and ParICT."""

    steps: int = 5
    fill: float = 1.0
    progressive: bool = False
    asynchronous: bool = False
    select: str = "exact"
    add_fraction: float = 1.0
    initial: str = "residual"
    start: int | TriangularFactors = 0
    stagnation: float = 0.0
    memory_limit: int | None = None
    update_sweeps: int = 3
    update_steps: int = 0
    pivots: str = "old"
    ordering: str | None = None
    scale: bool = True
    shift: float = 0.0
    triangular: str = "auto"
    triangular_sweeps: int | None = None
    precision: str | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class ParILUT(_Adapting):
    """Incomplete LU whose pattern is adapted to the values, step by step; L has a unit diagonal.

    A step adds the places where A - L U is not zero, improves the values by a sweep, drops the smallest entries of L
    and of U, and improves the values by another sweep.

    steps : of the adaption. Three to five bring most of what can be had.
    fill : entries of L + U at the end, relative to those of A, L and U apart.
    progressive : the fill changes in equal parts from step to step; else it is reached in the first.
    asynchronous : sweeps read values as soon as they are there: better values, but they depend on the timing. Without
        it the bits are the same in every run.
    select : "exact" thresholds meet the fill; "approximate" ones miss it by a percent or so, and are found faster on
        the GPU (on the CPU the exact ones are, and the others may miss it by 20% where some rows fill much more than
        others). Of entries that are equal in magnitude as many are dropped as it takes, evenly spread.
    add_fraction : below 1, only the largest candidate of each row of L and of each column of U is considered, and of
        these that fraction, the largest (2018, section 4.1, δ).
    initial : what candidates start from: their residual (2018, equation 5), or, "scaled", l_ij = r_ij / u_jj.
    start : the pattern to begin with: a level k for that of ILU(k), 0 being A's own; or factors of a matrix with the
        same rows (any with L and U; made with the same ordering), with their values.
    stagnation : stop when a step has lowered the residual norm by less than this part of it; 0: never.
    memory_limit : bytes that the candidates may take. Beyond, those that come of small products l_ik u_kj only are left
        out (2018, section 4.4); the report says how many. None: room for 64 candidates for each entry of A, and for
        2^20 in any case, whatever is free; MemoryError names what they take where that is more than there is.
    update_sweeps, update_steps : what `update` does: sweeps on the pattern that was found, then steps.
    ordering : "rcm" orders A by reverse Cuthill-McKee first, as in the papers; None takes it as it is.
    scale : symmetric scaling to a unit diagonal, undone in the factors. Magnitudes are compared, and residuals are
        measured, after it.
    pivots, shift, triangular, triangular_sweeps, precision : as in ParILU.
    If the residual norm grows to 1.5 times the smallest that factors of the wanted size had, those are taken, and it
    stops.
    Cost: a step takes two sweeps on two to six times the final pattern, and no dependencies.
    """

    def factor(self, A: Any) -> LUFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes, where it lives. A is not written.

        Raises MatrixError where A has no full diagonal, ZeroPivot, naming the row, where it is zero. Updates that would
        not be finite are refused and counted in the report.
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
        diagonal is not positive. Updates that would not be finite, and pivots that would not be positive, are refused
        and counted in the report.
        """
        A = _checked(self, A)
        numeric = _Adaption(self, A)
        return CholeskyFactors(
            self, A, numeric, numeric.factorize(A), sweeps=self.triangular_sweeps, arranged=numeric.arranged
        )


def _checked(recipe: _Adapting, A: Any) -> CSR:
    for name in ("steps", "update_sweeps", "update_steps"):
        count(name, getattr(recipe, name), 0, of=recipe)
    number("fill", recipe.fill, 0, 1e6, open_low=True, of=recipe)
    number("add_fraction", recipe.add_fraction, 0, 1, open_low=True, of=recipe)
    number("stagnation", recipe.stagnation, 0, 1, of=recipe)
    flag("progressive", recipe.progressive, of=recipe)
    choice("select", recipe.select, SELECTIONS, of=recipe)
    choice("initial", recipe.initial, INITIAL, of=recipe)
    if recipe.memory_limit is not None:
        count("memory_limit", recipe.memory_limit, 1, of=recipe)
    if not isinstance(recipe.start, TriangularFactors):
        if isinstance(recipe.start, Factors):
            raise ParameterError(f"start={recipe.start!r} has no two triangles to begin with; a level or others do.")
        count("start", recipe.start, 0, of=recipe)
    return checked_fixed_point(recipe, A)


@dataclass(eq=False, repr=False)
class _AdaptionReport(SweepReport):
    """steps, how many were done; residual_norms, ||A - L U||_F before each step, relative to ||A||_F, of the scaled
    matrix: on the candidates and the pattern; candidates, left_out and nnz of each step; stopped, why.

    pattern_residual : before the last sweep; of asynchronous ones, and of the best factors where steps ended early,
    after it.
    """

    steps: int = 0
    residual_norms: list[float] = field(default_factory=list)
    candidates: list[int] = field(default_factory=list)
    left_out: list[int] = field(default_factory=list)
    nnz: list[int] = field(default_factory=list)
    stopped: str = "all steps done"


class _Norms:
    """The residual norms that steps begin with, and what they say: whether to stop, and with which factors.

    wanted : entries below and above the diagonal that factors should have in the end.
    best : of the factors of at most the wanted size those with the smallest norm.
    """

    def __init__(self, stagnation: float, wanted: list[int], F: CSR):
        self._stagnation, self._wanted = stagnation, wanted
        self._norms: list[float] = []  # of factors that are no larger than wanted
        self.best = F

    def stop(self, norm: float, F: CSR) -> str:
        """Why to stop before a step from F, of this residual norm, or nothing."""
        if all(size <= ROOM * wanted for size, wanted in zip(_sizes(F), self._wanted, strict=True)):
            self._norms.append(norm)
            self.best = F if norm <= min(self._norms) else self.best
        before = self._norms[-2] if len(self._norms) > 1 and self._stagnation > 0 else np.inf
        return self.failed(norm) or (STAGNATES if norm > (1 - self._stagnation) * before else "")

    def failed(self, norm: float) -> str:
        """Why factors of this residual norm are not as good as the best, or nothing."""
        if not np.isfinite(norm):
            return NOT_FINITE
        return GREW if self._norms and norm > DIVERGED * min(self._norms) else ""


class _Adaption(FixedPoint):
    """`update` keeps the pattern that was found and improves its values; see update_sweeps and update_steps."""

    report: _AdaptionReport
    _found: CSR | None = None  # the factors of B
    _found_diagonal: Any = None
    _plans: list[Any]  # of the selection below and above the diagonal
    _squares: Any = None  # of the residual on the pattern, a sum a row, as far as it is known

    def __init__(self, recipe: _Adapting, A: CSR):
        super().__init__(recipe, A, _AdaptionReport())
        if recipe.memory_limit is None:  # how many candidates there may be
            self._most = max(CANDIDATES * A.nnz, LEAST_CANDIDATES)
        else:
            self._most = max(int(recipe.memory_limit) // int(A.data.itemsize + A.indices.itemsize), 1)

    def factorize(self, A: CSR) -> CSR:
        start = perf_counter()
        recipe, report = self.recipe, self.report
        report.pattern_residual, report.stopped, report.steps = None, "all steps done", 0
        report.residual_norms, report.candidates, report.left_out, report.nnz = [], [], [], []
        B, d = self.scaled(A)
        squares_of_B = norm_squared(B)
        if self._found is None:
            self._wanted = [round(recipe.fill * size) for size in _sizes(B)]
            sweeps, steps, F = 0, recipe.steps, self._first(B, d)
        else:
            sweeps, steps, F = recipe.update_sweeps, recipe.update_steps, self._found
            if not recipe.scale:  # what the old diagonal has done to their size
                F = self.rescaled(F, self._found_diagonal / self.diagonal)
            elif recipe.asynchronous:
                F = F.copy()  # should this update fail, the next begins where it did
        self._squares, self._plans = None, [None, None]
        with kernels_for(B.data).memory.reusing_memory():
            for left in range(sweeps, 0, -1):
                F = self.sweep(B, F, self._to_be_known(F, left == 1))
            B, F = self._adapted(B, F, steps, squares_of_B)
            squares = self.residual(B, F) if self._squares is None else self._squares
            self._plans, self._last_columns = [None, None], None
            F = F if on_gpu(F.data) else F.copy()  # out of the memory that is reused
        self.report_refused()
        self.report_residual(float(squares.sum() / squares_of_B) ** 0.5)
        factors = self.finished(F, d)
        self._found, self._found_diagonal = F, self.diagonal
        report.numeric_seconds = perf_counter() - start
        return factors

    def _adapted(self, B: CSR, F: CSR, steps: int, squares_of_B: Any) -> tuple[CSR, CSR]:
        """B, and F after the steps: 2018, Algorithm 2."""
        if steps == 0:
            return B, F
        size_of_B, first = float(squares_of_B) ** 0.5, _sizes(F)
        norms = _Norms(self.recipe.stagnation, self._wanted, F)
        for step in range(1, steps + 1):
            part = step / steps if self.recipe.progressive else 1.0
            sizes = [round(a + part * (z - a)) for a, z in zip(first, self._wanted, strict=True)]
            B, F, stopped = self._step(B, F, norms, size_of_B, sizes, last=step == steps)
            if stopped:
                self.report.stopped = stopped
                return B, norms.best
            self.report.steps = step
        if self._squares is not None:  # on the pattern alone, and before the last sweep: no step is made to know more
            failed = norms.failed(float(self._squares.sum()) ** 0.5 / size_of_B)
            if failed:
                self.report.stopped, self._squares = failed, None  # which are not those of the best
                return B, norms.best
        return B, F

    def _step(
        self, B: CSR, F: CSR, norms: _Norms, size_of_B: float, sizes: list[int], last: bool
    ) -> tuple[CSR, CSR, str]:
        """B and F after a step, of `sizes` below and above the diagonal; or before it, and why there is none."""
        kernels, report = kernels_for(B.data), self.report
        columns = self.columns(F) if self.cholesky else None
        *found, squares, left_out = kernels.candidates.candidates(B, F, columns, most=self._most)
        norm = float(squares.sum()) ** 0.5 / size_of_B
        report.residual_norms.append(norm)
        stopped = norms.stop(norm, F)
        if stopped:
            return B, F, stopped
        if self.recipe.add_fraction < 1:
            found = _largest(F, found, self.recipe.add_fraction)
        report.candidates.append(int(found[1].size))
        report.left_out.append(int(left_out))
        B, F = kernels.pattern.add(B, F, *found, scaled=self.recipe.initial == "scaled")
        del found
        F = self.sweep(B, F)
        F = kernels.pattern.remove(F, *self._thresholds(F, sizes))
        F = self.sweep(B, F, self._to_be_known(F, last))
        report.nnz.append(F.nnz)
        return B, F, ""

    def _to_be_known(self, F: CSR, last: bool) -> Any:
        """Where the last of several sweeps writes the squares of the residual; asynchronous ones do not know it."""
        self._squares = namespace(F.data).empty(F.n, np.float64) if last and not self.recipe.asynchronous else None
        return self._squares

    def _thresholds(self, F: CSR, sizes: list[int]) -> tuple[Any, list[int]]:
        """(least, drop) for `remove`: thresholds that leave about `sizes` entries below and above the diagonal."""
        xp, kernels = namespace(F.data), kernels_for(F.data)
        least, drop = xp.zeros(2, F.data.real.dtype), [0, 0]
        for side, (values, size) in enumerate(zip(kernels.pattern.magnitudes(F), sizes, strict=True)):
            if values.size > size:
                drop[side] = values.size - size
                selection = self._selection(side, values)
                selection.out = least[side : side + 1]
                selection.select(values, drop[side])
        return least, drop

    def _selection(self, side: int, values: Any) -> Any:
        """A plan that is large enough for `values`; kept for the next step."""
        if self._plans[side] is None or self._plans[side].n_max < values.size:
            kernels, exact = kernels_for(values), self.recipe.select == "exact"
            room = values.size + values.size // 4  # the next step may have more
            self._plans[side] = kernels.selection.Selection(room, values.dtype, exact=exact)
        return self._plans[side]

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


def _sizes(F: CSR) -> tuple[int, int]:
    """Entries below and above the diagonal."""
    return F.below, F.nnz - F.n - F.below


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
