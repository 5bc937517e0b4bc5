"""ParILUT and ParICT: incomplete factorizations whose pattern follows the values, by fixed-point sweeps.

H. Anzt, E. Chow, J. Dongarra: ParILUT - a new parallel threshold ILU factorization, 2018 (the algorithm, "2018" below);
H. Anzt, T. Ribizel, G. Flegar, E. Chow, J. Dongarra: ParILUT - a parallel threshold ILU for GPUs, 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from finelu.device import namespace, on_gpu
from finelu.errors import MatrixError, ParameterError, meant
from finelu.factors import Factors, TriangularFactors
from finelu.kernels import kernels_for
from finelu.matrix import CSR
from finelu.preconditioners.fixed_point import FixedPointFactors, checked_fixed_point, fraction, whole_number
from finelu.preconditioners.ic0 import IC0Factors
from finelu.preconditioners.ilu0 import ILU0Factors
from finelu.preconditioners.recipe import Recipe

SELECTIONS = ("approximate", "exact")
INITIAL = ("residual", "scaled")
NOT_FINITE = "the residual is not finite; the factors before that were taken"
GREW = "the residual grew; the factors before that were taken"
STAGNATES = "the residual stagnates"
ROOM = 1.05  # factors are of the wanted size if they have at most so many times the wanted entries
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

    def factor(self, A) -> ParILUTFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes, where it lives. A is not written.

        Raises MatrixError where A has no full diagonal, ZeroPivot, naming the row, where it is zero. Updates that would
        not be finite are refused and counted in the report.
        """
        return ParILUTFactors(self, _checked(self, A))


@dataclass(frozen=True, kw_only=True, repr=False)
class ParICT(_Adapting):
    """Incomplete Cholesky whose pattern is adapted to the values, for Hermitian positive definite matrices.

    A is Hermitian; see IC0. Parameters as in ParILUT; about half its cost.
    """

    def factor(self, A) -> ParICTFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes, where it lives. A is not written.

        Raises MatrixError where A has no full diagonal or is not Hermitian, ZeroPivot, naming the row, where the
        diagonal is not positive. Updates that would not be finite, and pivots that would not be positive, are refused
        and counted in the report.
        """
        return ParICTFactors(self, _checked(self, A))


def _checked(recipe, A) -> CSR:
    for name in ("steps", "update_sweeps", "update_steps"):
        whole_number(recipe, name, 0)
    fraction(recipe, "fill", 0, 1e6, open_low=True)
    fraction(recipe, "add_fraction", 0, 1, open_low=True)
    fraction(recipe, "stagnation", 0, 1)
    if not isinstance(recipe.progressive, bool):
        raise ParameterError(f"{recipe!r}: progressive must be True or False.")
    for name, offered in (("select", SELECTIONS), ("initial", INITIAL)):
        if getattr(recipe, name) not in offered:
            raise ParameterError(
                f"{recipe!r}: {name} must be one of {', '.join(offered)}." + meant(getattr(recipe, name), offered)
            )
    if recipe.memory_limit is not None:
        whole_number(recipe, "memory_limit", 1)
    if not isinstance(recipe.start, ILU0Factors | IC0Factors):
        if isinstance(recipe.start, Factors):
            raise ParameterError(f"start={recipe.start!r} has no two triangles to begin with; a level or others do.")
        whole_number(recipe, "start", 0)
    return checked_fixed_point(recipe, A)


class _AdaptedFactors(FixedPointFactors):
    """`update` keeps the pattern that was found and improves its values; see update_sweeps and update_steps.

    report : steps, how many were done; residual_norms, ||A - L U||_F before each step, relative to ||A||_F, of the
    scaled matrix: on the candidates and the pattern; candidates, left_out and nnz of each step; stopped, why; refused,
    how many updates were not finite, and then refused_row and warning; pattern_residual, the residual norm on the
    pattern before the last sweep (of asynchronous ones, and of the best factors where steps ended early, after it), and
    a warning where that of an update is much larger than that of the factorization was.
    """

    _found: CSR | None = None  # the factors of B
    _found_diagonal: Any = None
    _squares: Any = None
    _plans: list[Any]

    def _factorize(self, A: CSR) -> None:
        self.report.pop("pattern_residual", None)
        B, d = self._scaled(A)
        recipe = self.recipe
        self.report |= {"residual_norms": [], "candidates": [], "left_out": [], "nnz": [], "stopped": "all steps done"}
        if self._found is None:
            self._wanted = [round(recipe.fill * size) for size in _sizes(B)]
            sweeps, steps, F = 0, recipe.steps, self._first(B, d)
        else:
            sweeps, steps, F = recipe.update_sweeps, recipe.update_steps, self._found
            if not recipe.scale:  # what the old diagonal has done to their size
                F = self._rescaled(F, self._found_diagonal / self._diagonal)
            elif recipe.asynchronous:
                F = F.copy()  # should this update fail, the next begins where it did
        self._squares = None  # of the residual on the pattern, as far as it is known
        with kernels_for(B.data).memory.reusing_memory():
            for left in range(sweeps, 0, -1):
                if left == 1 and not recipe.asynchronous:
                    self._squares = namespace(B.data).empty(F.n, np.float64)
                F = self._sweep(B, F, self._columns(F), self._squares)
            F = self._adapted(B, F, steps)
            squares = self._residual(B, F, self._columns(F)) if self._squares is None else self._squares
            self._plans, self._last_columns = [None, None], None
            F = F if on_gpu(F.data) else F.copy()  # out of the memory that is reused
        self._count_refused()
        self._compare(float(squares.sum() / self._norm_squared(B)) ** 0.5)
        self._set(F, d)
        self._found, self._found_diagonal = F, self._diagonal

    def _adapted(self, B: CSR, F: CSR, steps: int) -> CSR:
        """2018, Algorithm 2: add, sweep, remove, sweep, until the residual says that it is enough."""
        kernels, recipe, report = kernels_for(B.data), self.recipe, self.report
        xp, first = namespace(B.data), _sizes(F)
        best, norms, squares = F, [], None  # norms: of the factors that are no larger than wanted
        size_of_B, most = (float(self._norm_squared(B)) ** 0.5, self._most(F)) if steps else (1.0, 1)
        self._plans = [None, None]
        report["steps"] = 0
        for step in range(1, steps + 1):
            *found, squares, left_out = kernels.candidates.candidates(B, F, self._columns(F), most=most)
            norm = float(squares.sum()) ** 0.5 / size_of_B
            report["residual_norms"].append(norm)
            if all(size <= ROOM * wanted for size, wanted in zip(_sizes(F), self._wanted, strict=True)):
                norms.append(norm)
                best = F if norm <= min(norms) else best
            verdict = self._verdict(norm, norms)
            if verdict:
                report["stopped"] = verdict
                return best
            if recipe.add_fraction < 1:
                found = _largest(F, found, recipe.add_fraction)
            report["candidates"].append(int(found[1].size))
            report["left_out"].append(int(left_out))
            F = kernels.pattern.add(F, *found, scaled=recipe.initial == "scaled")
            del found
            if F.indices.dtype != B.indices.dtype:  # 32 bits count no longer what F has
                B = _with_indices(B, F.indices.dtype)
            F = self._sweep(B, F, self._columns(F))
            part = step / steps if recipe.progressive else 1.0
            sizes = [round(a + part * (z - a)) for a, z in zip(first, self._wanted, strict=True)]
            F = kernels.pattern.remove(F, *self._thresholds(F, sizes))
            squares = None if step < steps or recipe.asynchronous else xp.empty(F.n, np.float64)
            F = self._sweep(B, F, self._columns(F), squares)
            self._squares = squares
            report["nnz"].append(F.nnz)
            report["steps"] = step
        if squares is not None:  # on the pattern alone, and before the last sweep: no step is made to know more
            verdict = self._verdict(float(squares.sum()) ** 0.5 / size_of_B, norms)
            if verdict in (NOT_FINITE, GREW):
                report["stopped"], self._squares = verdict, None  # which are not those of the best
                return best
        return F

    def _verdict(self, norm: float, norms: list[float]) -> str:
        """Why to stop, or nothing.  norms : those of factors of the wanted size, `norm` too if it is of such."""
        if not np.isfinite(norm):
            return NOT_FINITE
        if norms and norm > DIVERGED * min(norms):
            return GREW
        if len(norms) > 1 and norm > (1 - self.recipe.stagnation) * norms[-2] and self.recipe.stagnation > 0:
            return STAGNATES
        return ""

    def _thresholds(self, F: CSR, sizes):
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

    def _selection(self, side: int, values):
        """A plan that is large enough for `values`; kept for the next step."""
        if self._plans[side] is None or self._plans[side].n_max < values.size:
            kernels, exact = kernels_for(values), self.recipe.select == "exact"
            room = values.size + values.size // 4  # the next step may have more
            self._plans[side] = kernels.selection.Selection(room, values.dtype, exact=exact)
        return self._plans[side]

    def _most(self, F: CSR) -> int:
        """How many candidates there may be."""
        limit = self.recipe.memory_limit
        if limit is None:
            return max(CANDIDATES * self.pattern.nnz, LEAST_CANDIDATES)
        return max(limit // (F.data.itemsize + F.indices.itemsize), 1)

    def _first(self, B: CSR, d) -> CSR:
        """The factors of B to begin with."""
        start = self.recipe.start
        if not isinstance(start, TriangularFactors):
            return self._initial(*self._pattern(B, start), B)
        start._require_valid()
        given = start._triangles
        if given.dtype.kind == "c" and B.dtype.kind != "c":
            raise MatrixError(f"start={start!r} is complex; the matrix is {B.dtype}.")
        if start.shape != self.shape or on_gpu(given.data) != on_gpu(B.data):
            raise MatrixError(f"start has shape {start.shape} or another device; the matrix has {self.shape[0]} rows.")
        if isinstance(start, IC0Factors) != self.cholesky:
            raise ParameterError(f"start={start!r} has not the two triangles that {type(self.recipe).__name__} makes.")
        ordered = getattr(start, "permutation", None)
        same = ordered is self.permutation or (
            ordered is not None and self.permutation is not None and bool((ordered == self.permutation).all())
        )
        if not same:
            raise ParameterError(f"start={start!r} was made with another ordering of the rows.")
        return self._rescaled(given.with_values(given.data.astype(B.dtype)), d)


class ParILUTFactors(_AdaptedFactors, ILU0Factors):
    """M = L U; L and U share one array, in A's order or, permuted, in that of `permutation`."""


class ParICTFactors(_AdaptedFactors, IC0Factors):
    """M = L L^H."""

    cholesky = True


def _with_indices(B: CSR, index) -> CSR:
    return CSR(B.indptr.astype(index), B.indices.astype(index), B.data, B.diag.astype(index))


def _sizes(F: CSR) -> tuple[int, int]:
    """Entries below and above the diagonal."""
    return F.below, F.nnz - F.n - F.below


def _largest(F: CSR, found, part: float):
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
