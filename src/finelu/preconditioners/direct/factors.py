"""Complete factors on the host: made, tested by solves, refined, and made again by another library if that helps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from finelu import deadline
from finelu.device import ALWAYS_FREE, USABLE, free_memory, namespace, to_host
from finelu.errors import (
    FineluError,
    MatrixError,
    OutOfTime,
    SingularMatrix,
    StructurallySingular,
    UnstableFactors,
)
from finelu.factors import Columns, Report, by_columns_in_memory
from finelu.factors.arranged import transposed
from finelu.factors.base import USELESS, backward_error, trial_vector, unstable
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.matrix import norm
from finelu.matrix.traits import is_hermitian
from finelu.preconditioners.direct.analysis import (
    COLAMD,
    MMD,
    REPLACED,
    SHORT,
    Analysis,
    analyse,
    columns_of,
    fits_feral,
    require_indices,
)
from finelu.preconditioners.direct.klu import KLU
from finelu.preconditioners.direct.library import INDEX, PIVOT, Library, RefinedFactors, symmetry
from finelu.preconditioners.direct.prepared import Prepared, largest_of_columns, prepared
from finelu.preconditioners.direct.superlu import SuperLU, structurally_singular
from finelu.recent import RECENT
from finelu.scaling import require_matching

RELAX = 2  # columns of a subtree that are taken together though they differ: up to 25% less time, hardly more entries
PANELS = ((150.0, 1), (400.0, 4))  # flops an entry of L and U, up to which this many columns take up to 30% less time
ENOUGH = 100.0  # roundings of the sums of a row, up to which residuals do as they are: refined ones have 1 or less
UNEVEN = 16.0  # ratio of the largest entries of columns, from which on a right-hand side is in proportion to them


@dataclass(eq=False, repr=False)
class DirectReport(Report):
    """Facts about a factorization by `SparseLU` on the host.

    backend : "superlu", "klu", "feral" or "pardiso".
    expected_nnz, expected_flops : entries and flops of L and U, counted before the factorization (for feral and PARDISO
        by minimum degree). They are None if SuperLU uses its own order, if KLU does not use its own, and if PARDISO was
        asked for.
    matched : whether rows were permuted.
    analysis_seconds : seconds of matching and ordering; those of PARDISO are a part of numeric_seconds.
    trial_residual : see `finelu.factors.trial_residual`; a value above 10 gives a warning.
    backward_error : the largest |b - A x|_i / (|A| |x| + |b|)_i of `solve` for one or two random right-hand sides; a
        value far beyond rounding gives a warning.
    refinements : steps of refinement in each solve: 1 if the backward error would be far beyond rounding without it.
    scaled : whether A was scaled by powers of two and factored in double precision, since it has numbers near the ends
        of their range, or since other factors were worse.
    tried : the backends whose factors "auto" replaced by others, and why.
    reason : why "auto" did not factor a matrix on a GPU there.
    """

    backend: str = "superlu"
    expected_nnz: int | None = None
    expected_flops: float | None = None
    matched: bool | None = None
    analysis_seconds: float | None = None
    trial_residual: float | None = None
    backward_error: float | None = None
    refinements: int | None = None
    scaled: bool | None = None
    tried: list[str] | None = None
    reason: str | None = None


class SparseLUFactors(RefinedFactors):
    """M = A up to rounding.

    The factors of the libraries cannot leave the process: a copy factors the same matrix from nothing. It has the same
    bits, unless these factors began from earlier values, see `Library.from_earlier`, or are those of PARDISO on several
    threads, whose bits differ from run to run.
    """

    well_formed = True
    _stays = False  # whether A is known to have the pattern of the analysis, in its order
    _places: Any = None  # then those of the entries by columns among those of A, once they are needed
    _columns: Columns | None = None  # the matrix that `_compute` factors next, if it was made already
    _bound = ("_lock", "_lu", "_library")
    _made_of = (
        "_by_itself",
        "_arranged",
        "_library",
        "_how",
        "_symmetry",
        "_factored",
        "_lu",
        "_steps",
        "_S",
        "_prepared",
        "_scaled",
    )
    report: DirectReport

    def __init__(
        self,
        recipe: Any,
        A: CSR,
        known: Analysis | None = None,
        most: float | None = None,
        trial: bool | None = False,
        anew: bool = False,
    ):
        """Factor A.

        known : the result of `analysed` for A and this recipe, None to compute it.
        most : the largest number of entries of the factors; MemoryError if the counted number is larger. None for what
            a part of the free memory holds.
        trial : whether factors are tested by solves, here and in `update`, refined, and made again by another library.
            It is not needed if the caller looks at residuals anyway, and lets go of bad factors. None: only updates
            that began from earlier values are tested, and made from nothing if they are bad.
        anew : whether nothing of earlier values may have a part in the first factors.
        """
        super().__init__(recipe, A, report=DirectReport())
        self._trial, self._most, self._anew = trial, most, anew
        self._prepared, self._scaled = (known and known.prepared) or prepared(A), False
        self._take(known or analyse(recipe, self._prepared.matrix))
        self._refresh(A)

    def _take(self, known: Analysis) -> None:
        """Store an analysis. Raises MemoryError if the factors do not fit in memory."""
        fill = known.fill
        if fill is not None:
            require_indices(self.recipe, "the factors", fill.nnz)
            self._require_room(fill.nnz)
        self._by_itself, self._arranged, self._library = known.by_itself, known.arranged, known.library
        self._columns, self._full_rank = known.columns, known.full_rank
        self._stays, self._places = False, None
        self._how = None if known.library is None else (type(known.library), known.library.how)
        self._symmetry = "" if known.library is None else known.library.symmetry
        self.report.backend = "superlu" if known.library is None else known.library.name
        self.report.matched = known.matched
        self.report.expected_nnz, self.report.expected_flops = (fill.nnz, fill.flops) if fill else (None, None)
        self.report.analysis_seconds = known.seconds

    def _require_room(self, entries: int) -> None:
        """Raise MemoryError if factors with that many entries do not fit in memory."""
        most, entry = self._most, self.dtype.itemsize + INDEX
        if most is None:
            most = np.inf if entry * entries <= ALWAYS_FREE else USABLE * free_memory(np.empty(0)) / entry
        if entries > most:
            raise MemoryError(
                f"{self.recipe!r}: the factors would have {entries} entries; the memory holds {most:.3g}."
            )

    def _refresh(self, A: CSR) -> None:
        try:
            self._renew(A)
        except BaseException as error:
            self.let_go()
            self._library = self._columns = None  # an analysis keeps facts of these values, useless for others
            self._full_rank = False
            if isinstance(error, UnstableFactors):
                require_matching(A)  # says which rows
            raise

    def renew(self, A: CSR) -> None:
        """`update` for a caller that looks at residuals, and an A of this pattern and dtype: nothing is tested."""
        self._trial = False
        if self._prepared.kept is None and self._prepared.row_scale is None:
            self._prepared = Prepared(A, None)  # so that A is known to have the pattern of the analysis
            self._stays = self._arranged.rows is None
        self._update_values(A)

    @property
    def from_earlier(self) -> bool:
        """Whether they began from earlier values, see `Library.from_earlier`."""
        return self._lu.from_earlier

    def let_go(self) -> None:
        """Keep nothing of these factors for others, since they are bad."""
        if self._library is not None:
            self._library.let_go()

    def _renew(self, A: CSR) -> None:
        start = perf_counter()
        if self.recipe.backend == "feral" and not is_hermitian(A):
            raise MatrixError(f"{self.recipe!r}: A is not symmetric; backend='superlu' takes any matrix.")
        if self.updates:
            before, self._prepared = self._prepared, prepared(A, self._prepared, scaled=self._scaled)
            half = "" if self.recipe.backend == "feral" else self._symmetry  # of whose symmetry only the analysis knew
            if not self._prepared.like(before) or (half and symmetry(self._prepared.matrix) != half):
                self._take(analyse(self.recipe, self._prepared.matrix))
        S = self._prepared.matrix
        report = self.report
        report.warning = report.tried = report.backward_error = report.refinements = None
        self._steps, self._S, self._transposed = 0, None, None
        self._compute_any(S)
        shifted, earlier = bool(self.recipe.shift), self._trial is None and bool(self.updates) and self.from_earlier
        found = self._judged_or_new(S) if not shifted and (self._trial or earlier) else None
        report.numeric_seconds = perf_counter() - start
        if self._lu.replaced:
            report.warn(f"PARDISO replaced {self._lu.replaced} pivots; backend='superlu' exchanges rows instead")
        if self._trial and shifted:  # the factors are those of a shifted matrix
            self._try_solve(S, lambda v: self._solved(v, "N"))
        elif self._trial and found is not None:
            self._judge(A, found)
        report.scaled = self._prepared.row_scale is not None

    def _compute_any(self, S: CSR) -> None:
        """Compute the factors, or those of another library that take their place."""
        failed = self._failed(S)
        if failed:
            self._compute_instead(S, failed)

    def _compute_instead(self, S: CSR, failed: str) -> None:
        """Compute other factors than those that failed: by feral, if it is expected to take less time than SuperLU.

        failed : the backend, and why it failed.
        """
        report = self.report
        report.tried = [failed]
        work = (report.expected_flops or 0.0) / max(S.n, 1)
        if report.backend == "pardiso" and fits_feral(S.dtype, self._symmetry, work):
            self._take(analyse(replace(self.recipe, backend="feral"), S))
            failed = self._failed(S)
            if not failed:
                return
            report.tried.append(failed)
        self._take(analyse(replace(self.recipe, backend="superlu"), S))
        self._compute(S)

    def _failed(self, S: CSR) -> str:
        """Compute the factors. Returns "", or why the library that "auto" chose is to be replaced by another."""
        other = self.recipe.backend == "auto" and self._how is not None
        try:
            self._compute(S)
        except (MemoryError, StructurallySingular):
            raise
        except FineluError as error:
            deadline.check()  # if time is left, OutOfTime means only that a library that cannot be left did not begin
            if not other or (self._how is not None and self._how[0] is KLU and isinstance(error, SingularMatrix)):
                raise
            if isinstance(error, OutOfTime):
                return f"{self.report.backend}: it is expected to take longer than the time limit leaves"
            return f"{self.report.backend}: {str(error).split(': ', 1)[-1].rstrip('.')}"
        if self._lu.replaced:
            require_matching(S)
            if other:
                RECENT.keep(REPLACED, S.indptr, S.indices, True, 0)
                return f"{self.report.backend}: it replaced {self._lu.replaced} pivots"
        return ""

    def _judged_or_new(self, S: CSR) -> tuple[float, float, float]:
        """The errors of the factors of S, as `_judged` finds them. Factors that began from earlier values give way to
        new ones if they are bad."""
        found = self._judged()
        if found[1] > ENOUGH and self._lu.from_earlier:
            self.let_go()
            self._compute_any(S)
            found = self._judged()
        return found

    def _judge(self, A: CSR, found: tuple[float, float, float]) -> None:
        """If the backward error is too large, scale A, make other factors if the recipe allows them, or warn.

        found : the errors of the present factors, as `_judged` finds them.
        Raises UnstableFactors if no factors give finite solutions.
        """
        if found[1] > ENOUGH:
            self.let_go()
            found = self._bettered(A, found)
        self._tell(found)

    def _tell(self, found: tuple[float, float, float]) -> None:
        """Store the errors of the factors in the report, with a warning if they are large."""
        report = self.report
        report.backward_error, roundings, report.trial_residual = found
        report.refinements = self._steps
        if report.trial_residual is not None and report.trial_residual > USELESS:
            report.warn(
                f"{unstable(report.trial_residual)}; check A for dependent rows, try a shift, or another recipe"
            )
        elif roundings > ENOUGH:
            refined = ", with a step of refinement" if self._steps else ""
            advice = "A may be singular" if self.recipe.backend == "auto" else "backend='auto' tries others"
            report.warn(f"solves have a backward error of {report.backward_error:.1e} by rows{refined}; {advice}")

    def _bettered(self, A: CSR, found: tuple[float, float, float]) -> tuple[float, float, float]:
        """Make other factors if the recipe allows them, and keep the best. Returns their errors, as `_judged` does.

        found : the errors of the present factors.
        """
        report, start = self.report, perf_counter()
        best, others = (found, self._state()), [(report.backend, found)]
        for recipe, scaled in self._others():
            try:
                self._prepared, self._scaled = prepared(A, scaled=scaled), scaled
                self._take(analyse(recipe, self._prepared.matrix))
                self._compute(self._prepared.matrix)
                found = self._judged_or_new(self._prepared.matrix)
            except (FineluError, MemoryError):
                deadline.check()
                continue
            others.append((f"{report.backend}{', scaled' if scaled else ''}", found))
            if found[1] < best[0][1]:
                best = (found, self._state())
            if found[1] <= ENOUGH:
                break
        if not best[0][1] < np.inf:
            raise UnstableFactors(self.recipe)
        found, (attributes, facts) = best  # restores these factors, whatever was made or begun after them
        vars(self).update(attributes)
        vars(report).update(facts)
        self._transposed = None
        if len(others) > 1:
            left = [f"{name}: backward error {other[0]:.1e}" for name, other in others if other is not found]
            report.tried = [*(report.tried or ()), *left]
            report.numeric_seconds = (report.numeric_seconds or 0.0) + perf_counter() - start
        return found

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The attributes that hold these factors, and the facts of the report about them."""
        facts = ("backend", "matched", "expected_nnz", "expected_flops", "analysis_seconds")
        report = vars(self.report)
        return {name: getattr(self, name) for name in self._made_of}, {name: report[name] for name in facts}

    def _others(self) -> list[tuple[Any, bool]]:
        """(recipe, whether A is scaled) for other factors; another library only if the caller did not name one."""
        recipe, first = self.recipe, replace(self.recipe, backend="superlu")
        found = [] if self._scaled else [(recipe, True)]
        if recipe.backend == "auto" and self._how is not None:
            found.append((first, False))
        if recipe.backend in ("auto", "superlu") and recipe.matching is None and recipe.ordering != COLAMD:
            found += [] if self.report.matched else [(replace(first, matching=True), False)]
        return found

    def _judged(self) -> tuple[float, float, float]:
        """(backward error, the same in roundings, trial residual) of solves with right-hand sides S y.

        S is the prepared matrix, and y is random. If columns differ in size, a second y is inversely proportional to
        their largest entries, so that all columns count. The errors are the largest, as in `backward_error`; the
        residual is that of `finelu.factors.trial_residual`. All are Inf if a solve is not finite.
        From now on each solve takes a step of refinement if the error is beyond ENOUGH without it, and the step helps.
        """
        S = self._prepared.matrix
        product, y = kernels_for(S.data).products.subtract_product, trial_vector(S)
        others, (_, least, most) = [], kernels_for(S.data).inspection.extremes(S.data)
        if most > UNEVEN * least:
            largest = largest_of_columns(S)
            largest[largest == 0] = 1
            if largest.max() > UNEVEN * largest.min():
                others = [y / largest]
        right = [product(S, v.astype(S.dtype, copy=False)) for v in (y, *others)]
        B = np.asfortranarray(np.stack(right, axis=1)) if others else right[0]  # all columns in one call of the library
        self._steps, self._S, self._transposed = 0, S, None
        found: list[tuple[float, float, float]] = []
        while True:
            X = np.asfortranarray(self._solve_refined(B, "N"))
            if not np.isfinite(X).all():
                break
            columns = X.T if others else (X,)
            errors, roundings, residuals = zip(
                *(backward_error(S, x, b) for x, b in zip(columns, right, strict=True)), strict=True
            )
            size = norm(right[0])
            residual = norm(residuals[0]) / size if size > 0 else 0.0
            found.append((max(errors), max(roundings), residual if residual < np.inf else np.inf))
            if self._steps or found[0][1] <= ENOUGH:
                break
            self._steps = 1
        found = found or [(np.inf, np.inf, np.inf)]
        self._steps = int(len(found) > 1 and found[1][1] < found[0][1])
        self._S = S.copy() if self._steps else None  # S may share arrays with A, to which a caller may write
        return found[self._steps]

    def _compute(self, A: CSR) -> None:
        """The factors, with the known order and library."""
        made, full_rank = self._columns, self._full_rank
        self._columns, self._full_rank = None, False  # the next values are others
        anew = self._anew and not self.updates
        if made is None and self._library is not None and self._stays:
            made = Columns(*self._library.pattern, self._by_columns(A), A.shape)
        columns: Any = columns_of(self.recipe, self._arranged, A) if made is None else made
        if self._how is None:
            columns = columns.tosparse()
            columns.eliminate_zeros()
            if not full_rank and structurally_singular(columns):
                if self._by_itself == COLAMD and self.recipe.ordering == "auto":  # instead of a matching
                    require_matching(A)  # says which rows
                raise SingularMatrix(self._singular())
        self._factored = columns
        uncounted = self._most is not None and self.report.expected_nnz is None and not self._symmetry
        if uncounted and columns.nnz > self._most:  # of which none is left out
            raise MemoryError(
                f"{self.recipe!r}: the factors have at least the {columns.nnz} entries of A; the memory holds "
                f"{self._most:.3g}."
            )
        lu = self._made(anew=anew or self.recipe.shift > 0)  # solves with factors of a shifted matrix show no errors
        if self._most is not None and lu.nnz > self._most:  # an order of columns alone was not counted before
            raise MemoryError(f"{self.recipe!r}: the factors have {lu.nnz} entries; the memory holds {self._most:.3g}.")
        self._lu = lu

    def _by_columns(self, A: CSR) -> Any:
        """The values of an A with the pattern and the order of the analysis, by columns."""
        if A.is_known_to_be_symmetric:
            return A.data.copy()
        if self._places is None:
            self._places = transposed(A.indptr, A.indices).places
        return A.data.take(self._places)

    def __getstate__(self) -> dict[str, Any]:
        others = self._valid and self._lu.from_earlier  # whether the copy, made from nothing, has other factors
        return super().__getstate__() | {"_differs": others}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._library, differs = None, vars(self).pop("_differs")
        if self._valid:
            self._lu = self._made(anew=True)
        if differs and self._trial is not False:
            self._tell(self._judged())

    def _singular(self) -> str:
        return f"{self.recipe!r}: A is singular; its complete L U has a pivot that is 0."

    def _made(self, *, anew: bool) -> SuperLU | Library:
        """The factors of the kept matrix.  anew : whether nothing of earlier values may have a part in them."""
        if self._how is None:
            return self._superlu()
        if self._library is None or not self._library.holds_for(self._factored):
            library, how = self._how
            self._library = library(self._factored, *how)
        if anew:
            self._library.let_go()
        return self._library.factor(self._factored, self._singular, self._require_room)

    def _superlu(self) -> SuperLU:
        columns = self._factored
        symmetric = {"options": {"SymmetricMode": True}, "diag_pivot_thresh": PIVOT}  # SuperLU adds no postorder
        if self._by_itself == MMD:
            how: dict[str, Any] = symmetric | {"permc_spec": "MMD_AT_PLUS_A", "relax": 1, "panel_size": 1}
        elif not self._by_itself:  # relax=1: SuperLU's relaxed subtrees need a postorder, which this order may not be
            relax = 1 if self.recipe.ordering is None else RELAX
            how = symmetric | {"permc_spec": "NATURAL", "relax": relax, "panel_size": self._panel()}
        else:
            how = {"permc_spec": "COLAMD"}
            if columns.nnz <= SHORT * columns.shape[0]:  # columns have little in common
                how |= {"relax": 1, "panel_size": 1}
        return SuperLU(columns, self._singular, self.report.expected_flops, **how)

    def _panel(self) -> int | None:
        """The number of columns that SuperLU works on at once: few if each entry takes little work; None for its
        default."""
        work = self.report["expected_flops"] / max(self.report["expected_nnz"], 1)
        return next((columns for limit, columns in PANELS if work <= limit), None)

    @property
    def nnz(self) -> int:
        return self._lu.nnz

    def _apply(self, R: Any, trans: str) -> Any:
        r, known = to_host(R), self._prepared
        if known.row_scale is None:
            return namespace(R).asarray(self._solve_refined(r, trans))
        scales = known.row_scale, known.column_scale
        before, after = scales if trans == "N" else scales[::-1]
        x = _rows_times(after, self._solve_refined(_rows_times(before, r), trans))
        return namespace(R).asarray(x.astype(self.dtype, copy=False))

    def _solved(self, r: Any, trans: str) -> Any:
        known = self._arranged  # several columns are in the order of Fortran, as all libraries take them
        if known.row_scale is None:
            r = by_columns_in_memory(r, known.rows if trans == "N" else known.columns)
        else:
            r = by_columns_in_memory(known.gather_scaled(r, trans))
        return known.scatter_scaled(self._lu.solve(r, trans), trans)


def _rows_times(scale: Any, v: Any) -> Any:
    return (scale if v.ndim == 1 else scale[:, None]) * v
