"""A complete sparse L U, for systems that are small enough, by a library behind the face of the other recipes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components, maximum_bipartite_matching, structural_rank

from finelu import deadline
from finelu.device import namespace, on_gpu, to_host
from finelu.errors import (
    FineluError,
    MatrixError,
    OutOfTime,
    ParameterError,
    SingularMatrix,
    StructurallySingular,
    UnstableFactors,
)
from finelu.factors import Arrangement, Factors, Report
from finelu.factors.base import USELESS, backward_error, probing, unstable
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR, INT32_LIMIT
from finelu.matrix import norm, without_zeros
from finelu.matrix.traits import MatrixTraits, dense_row, is_hermitian
from finelu.ordering import ORDERINGS, Fill, OrderingJob, complete_fill, with_little_fill
from finelu.preconditioners import complete, cudss, pardiso
from finelu.preconditioners.complete import AMD, COLUMNS, GIVEN, KLU, LDL, PIVOT, SuperLU, is_mirrored
from finelu.preconditioners.pardiso import DISSECTION, MINIMUM_DEGREE, Pardiso
from finelu.preconditioners.recipe import ON_CPU, Recipe, checked
from finelu.scaling import by_largest, equilibrate, matching, require_matching, times_power
from finelu.validation import choice, flag

COLAMD, MMD = "colamd", "mmd"
BACKENDS = ("auto", "superlu", "klu", "feral", "pardiso", "cudss")
QUICK, QUICK_ENTRIES = 2000, 30_000  # rows and entries up to which SuperLU orders by itself, as a count takes longer
KLU_WORK = 65.0  # flops an entry of L and U, up to which KLU takes less time than SuperLU does
Library = KLU | LDL | Pardiso
LDL_WORK = 1e4  # flops a row of L and U, from which on feral takes less time than SuperLU does
PARDISO_WORK, SYMMETRIC_WORK = 3.5e3, 1e3  # likewise of PARDISO, and where A is symmetric, so that it works on a half
SHORT = 12  # mean entries a row, up to which factors with columns ordered alone stay sparse, as experience has it
FERAL_ORDERINGS = {"auto": "auto", "amd": "amd", "nd": "metis"}
PARDISO_ORDERINGS = {"auto": DISSECTION, "mmd": MINIMUM_DEGREE, "nd": DISSECTION}
RELAX = 2  # columns of a subtree that are taken together though they differ: up to 25% less time, hardly more entries
PANELS = ((150.0, 1), (400.0, 4))  # flops an entry of L and U, up to which this many columns take up to 30% less time
WEAK = 0.1  # of the largest entry of its column: a smaller diagonal entry is weak
MODERATE = 20  # mean entries of few rows, up to which exchanges of rows take less time than a matching
ENOUGH = 100.0  # roundings of the sums of a row, up to which residuals do as they are: refined ones have 1 or less
UNEVEN = 16.0  # ratio of the largest entries of columns, from which on a right-hand side is in proportion to them
FITTING = 8  # powers of two that the largest entries of rows and columns may be from 1 for scales to be kept
WIDE = 0.5  # of the exponents of a dtype: a product of two numbers beyond may be none
FEW = 0.01  # of all columns: from that many weak ones on rows are matched, as pivots off the diagonal fill in more


@dataclass(frozen=True, kw_only=True, repr=False)
class SparseLU(Recipe):
    """Complete L U of A by SuperLU, KLU or PARDISO, after a maximum product matching, its scaling and a fill-reducing
    ordering; or L D L^T by feral or PARDISO; or either by cuDSS, on a GPU.

    backend : "superlu", which comes with SciPy; "klu", for circuits, networks and other matrices whose factors stay
        sparse, and "feral", for real symmetric matrices, definite or not, whose factors do not (`pip install
        'finelu[direct]'` brings nbklu and feral-solver); "pardiso", MKL's, for all whose factors do not (`pip install
        'finelu[mkl]'` brings pypardiso); these three in double precision; "cudss", NVIDIA's, on the GPU (`pip install
        'finelu[cudss13]'`, or 'finelu[cudss12]' for CUDA 12); or "auto". For a matrix on a GPU "auto" is cuDSS, where
        it is installed, takes the ordering, and its factors are good. Else, and on the host, where neither matching,
        shift nor an ordering is asked for, "auto" is, of what is installed, KLU, if it counts at most 65 flops for each
        entry of the factors; but PARDISO, if at least 3500 flops a row are counted, and A's diagonal needs no
        matching, or if at least 1000 are, and A is symmetric; else feral, if A is real and symmetric, and at
        least 10000 are; in all other cases SuperLU. KLU takes its order from AMD, or from COLAMD, if `ordering`
        says nothing else, feral the one that it finds the best, "amd" or "nd", PARDISO its own nested
        dissection, or for "mmd" minimum degree, but with "auto" the order by which the flops were counted,
        unless a dissection pays, or a weak diagonal is matched. KLU matches rows only where matching is True,
        feral never, PARDISO whatever is not definite, but with "auto" only what has pivots that are too small
        without. Where PARDISO has to replace pivots even so, "auto" leaves A to SuperLU, and `F.report` warns
        if PARDISO was asked for. cuDSS takes "auto", its own nested dissection, "nd", "amd" or None, and any
        `matching`, None being its own choice.
    No library gets stored zeros, nor numbers so large or small that products of two may be none: of such A, in double
    precision and scaled by powers of two, factors are made. `factor` and `update` look at solves with them: where these
    leave more than rounding in a row, each solve takes a step of refinement; where that does not help, factors are made
    again of a scaled A, then, with "auto", by SuperLU, at last with a matching; `F.report` says so, or warns.
    With a Krylov method around it, one or two iterations refine what rounding and small pivots have left.
    matching : whether rows are permuted, and A is scaled, so that the diagonal holds the largest entries; None: where
        the diagonal has gaps or zeros, or where in one of a hundred columns it holds less than a tenth of the largest
        entry, since SuperLU would exchange rows then, which fills in more than was counted; but up to 2000 rows with
        30000 entries, of at most 20 in the mean, if shift is 0, are scaled by their largest entries and left to its
        COLAMD and its exchanges, which takes less time. Where no matching is complete, and shift > 0, it is as large
        as can be, and nothing is scaled.
    ordering : of the rows and columns together, as `finelu.ordering` names them, "auto" being the one of
        `finelu.ordering.with_little_fill`, but of SuperLU, for up to 2000 rows with 30000 entries, its own minimum
        degree of A + A^T, without a count; or "colamd", SuperLU's own of the columns alone, with partial pivoting: for
        patterns that are far from symmetric.
    shift : moves the diagonal of the permuted and scaled A away from zero by this fraction of it; a zero one becomes
        this fraction of the largest entry of all.
    precision : "float32" or "float64" for what is factored, None for A's own.
    deterministic : of backend "cudss", the same bits each time; it then solves for one right-hand side after the other.
    Unless cuDSS has made them, the factors live, and are applied, on the host: a right-hand side on the GPU is copied
    there, its solution back.
    Cost: `finelu.ordering.complete_fill` counts it beforehand. Source: X. S. Li: An overview of SuperLU, 2005; X. Li,
    J. W. Demmel: Making sparse Gaussian elimination scalable by static pivoting, 1998.
    """

    name = "sparse_lu"
    full_diagonal = False
    factored_on = applied_on = ON_CPU

    matching: bool | None = None
    ordering: str | None = "auto"
    backend: str = "auto"
    shift: float = 0.0
    precision: str | None = None
    deterministic: bool = False

    def factor(self, A: Any) -> SparseLUFactors | cudss.CudssFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes; its diagonal may have gaps. A is not written.

        Raises StructurallySingular or SingularMatrix where A is singular, MemoryError where the factors find no room,
        OutOfTime where they take longer than the caller has; a Ctrl-C is heard while a library works, except
        KLU, which lets nothing else run: it does not begin where it is expected to take longer, at a rate that it
        hardly exceeds. With ordering="colamd" that is not known, and a time limit may not be kept.
        """
        flag("matching", self.matching, optional=True, of=self)
        choice("ordering", self.ordering, (*ORDERINGS, COLAMD), of=self)
        choice("backend", self.backend, BACKENDS, of=self)
        flag("deterministic", self.deterministic, of=self)
        if self.deterministic and self.backend != "cudss":
            raise ParameterError(f"{self!r}: deterministic=True is for backend='cudss'.")
        A = checked(self, A)
        if self.backend == "cudss":
            return cudss.CudssFactors(self, A)
        if self.backend != "auto" or not on_gpu(A.data):
            return SparseLUFactors(self, A, probed=True)
        try:
            return cudss.CudssFactors(self, A)
        except (FineluError, MemoryError) as error:
            reason = str(error)
        factors = SparseLUFactors(self, A, probed=True)
        factors.report.reason = f"on the CPU: {reason}"
        return factors


@dataclass(eq=False, repr=False)
class DirectReport(Report):
    """backend : "superlu", "klu", "feral" or "pardiso".  expected_nnz, expected_flops : of L and U, counted before the
    factorization (for feral and PARDISO by minimum degree); None where SuperLU takes its own order, where KLU does
    not, and where PARDISO was asked for.

    matched : whether rows were permuted.  analysis_seconds : of matching and ordering; those
    of PARDISO are a part of numeric_seconds.  probe : see
    `finelu.factors.probe`; a warning where it is beyond 10.  backward_error : of what `solve` gives for one or two
    random right-hand sides, the largest of |b - A x|_i / (|A| |x| + |b|)_i; a warning where it is far beyond rounding.
    refinements : steps of refinement that each solve takes, 1 where without it this would be.
    scaled : whether A was scaled by powers of two and factored in double precision, as numbers are near the ends of
    their range, or as other factors were worse.
    tried : the backends whose factors "auto" has left for others, and why.
    reason : why a matrix that is on a GPU was not factored there by "auto".
    """

    backend: str = "superlu"
    expected_nnz: int | None = None
    expected_flops: float | None = None
    matched: bool | None = None
    analysis_seconds: float | None = None
    probe: float | None = None
    backward_error: float | None = None
    refinements: int | None = None
    scaled: bool | None = None
    tried: list[str] | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Prepared:
    """A as the libraries get it: `matrix`, on the host, without stored zeros; where A has magnitudes so far from 1 that
    a library could meet numbers beyond its range, in double precision and scaled.

    kept : the places of its entries among those of A, None for all.
    row_scale, column_scale (n,) : powers of two, so that nothing is rounded; None without a scaling.
    """

    matrix: CSR
    kept: np.ndarray | None
    row_scale: np.ndarray | None = None
    column_scale: np.ndarray | None = None

    def like(self, other: Prepared) -> bool:
        """Whether what was analysed of the other holds for this one."""
        same = self.matrix.indices is other.matrix.indices or self.matrix.same_pattern(other.matrix)
        return same and self.matrix.dtype == other.matrix.dtype


def prepared(A: CSR, before: Prepared | None = None, *, scaled: bool = False) -> Prepared:
    """before : of other values, whose entries are taken if there are no more, and whose scales, if they fit.
    scaled : in any case. Cost: some passes over the values."""
    A = A.on(np)
    if before is not None and before.kept is not None and A.nnz >= before.kept.size:
        data = A.data[before.kept]
        if np.count_nonzero(data) == np.count_nonzero(A.data):
            return _in_range(before.matrix.with_values(data), before.kept, before, scaled)
    S = without_zeros(A)
    if before is None or before.kept is not None or S is A:
        return _in_range(S, None if S is A else np.flatnonzero(A.data), before, scaled)
    return _in_range(A, None, before, scaled)  # more zeros than before are kept as entries


def _in_range(S: CSR, kept: np.ndarray | None, before: Prepared | None, scaled: bool) -> Prepared:
    if not scaled and _is_in_range(S):
        return Prepared(S, kept)
    symmetric = is_mirrored(S) or is_mirrored(S, conjugated=False)
    S = S.with_values(S.data.astype(np.result_type(S.dtype, np.float64)))
    if before is not None and before.row_scale is not None and before.column_scale is not None:
        scales = before.row_scale, before.column_scale
        found = Prepared(_scaled(S, *scales), kept, *scales)
        fits = all(abs(np.log2(sizes[sizes > 0])).max(initial=0.0) <= FITTING for sizes in _largest(found.matrix))
        if fits and (not symmetric or np.array_equal(*scales)):
            return found
    scales = equilibrate(S, symmetric=symmetric)
    return Prepared(_scaled(S, *scales), kept, *scales)


def _is_in_range(S: CSR) -> bool:
    """Whether S has no numbers near the ends of the range; small ones do no harm next to larger ones in their row and
    their column, as long as they are normal."""
    sizes, limits = _sizes(S), np.finfo(S.dtype)
    low, high = 2.0 ** (WIDE * limits.minexp), 2.0 ** (WIDE * limits.maxexp)
    least = sizes.min(initial=np.inf)
    if least == 0:
        least = sizes[sizes > 0].min(initial=np.inf)
    if sizes.max(initial=0.0) > high or least < limits.tiny:
        return False
    return bool(least >= low or not any(((largest > 0) & (largest < low)).any() for largest in _largest(S)))


def _sizes(S: CSR) -> Any:
    """(nnz,) : the larger part of each entry, whose magnitude may be no number."""
    sizes = abs(S.data.view(S.data.real.dtype))
    return np.maximum(sizes[::2], sizes[1::2]) if S.dtype.kind == "c" else sizes


def _largest(S: CSR) -> tuple[Any, Any]:
    """The largest of `_sizes` in each row (n,), and in each column (n,); 0 where there is no entry."""
    sizes = _sizes(S)
    by_row = np.where(
        np.diff(S.indptr) > 0, np.maximum.reduceat(np.append(sizes, sizes.dtype.type(0)), S.indptr[:-1]), 0
    )
    return by_row, _largest_of_columns(S, sizes)


def _largest_of_columns(S: CSR, sizes: Any) -> Any:
    largest = np.zeros(S.n, sizes.dtype)
    np.maximum.at(largest, S.indices, sizes)
    return largest


def _scaled(S: CSR, row_scale: Any, column_scale: Any) -> CSR:
    of_rows, of_columns = (np.log2(scale).astype(np.int32) for scale in (row_scale, column_scale))
    exponents = np.repeat(of_rows, np.diff(S.indptr)) + of_columns[S.indices]
    return S.with_values(times_power(S.data, exponents))


@dataclass(frozen=True)
class Analysis:
    """What precedes a factorization.

    arranged : order and scaling of the rows and columns.  matched : whether rows were permuted to the diagonal.
    fill : counted, or None.  seconds : that it took.
    library : the analysis of KLU, feral or PARDISO, where one of them is used.
    by_itself : the order that SuperLU finds as it factors, COLAMD, of the columns, or MMD, of A + A^T; "" if none.
    prepared : the matrix that was analysed, None where whoever asked has it.
    """

    arranged: Arrangement
    matched: bool
    fill: Fill | None
    seconds: float
    library: KLU | LDL | Pardiso | None = None
    by_itself: str = ""
    prepared: Prepared | None = None


class SparseLUFactors(Factors):
    """M = A up to rounding.

    The factors of the libraries cannot leave the process: a copy factors anew what was factored, with the same bits but
    for PARDISO's, which differ from time to time, and which keeps kind, scaling and matching from before an update.
    """

    well_formed = True
    _bound = ("_lock", "_lu", "_library")
    _made_of = (
        "_by_itself",
        "_arranged",
        "_library",
        "_how",
        "_symmetric",
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
        recipe: SparseLU,
        A: CSR,
        known: Analysis | None = None,
        most: float = np.inf,
        probed: bool = False,
    ):
        """known : what `analysed` finds for A and this recipe.

        most : entries that the factors may have; MemoryError if, counted before, they would have more.
        probed : whether factors are judged by solves, here and in `update`, refined, and made again by another library;
        needless where residuals are looked at anyway.
        """
        super().__init__(recipe, A, report=DirectReport())
        self._probed, self._most = probed, most
        self._steps = 0  # of refinement
        self._S: CSR | None = None  # the matrix for it, as it is prepared
        self._transposed: Any = None
        self._prepared, self._scaled = (known and known.prepared) or prepared(A), False
        self._take(known or _analysed(recipe, self._prepared.matrix))
        self._refresh(A)

    def _take(self, known: Analysis) -> None:
        """Raises MemoryError where the factors find no room."""
        fill = known.fill
        if fill is not None:
            _require_room(self.recipe, "the factors", fill.nnz)
            if fill.nnz > self._most:
                raise MemoryError(
                    f"{self.recipe!r}: the factors would have {fill.nnz} entries; there is room for {self._most:.3g}."
                )
        self._by_itself, self._arranged, self._library = known.by_itself, known.arranged, known.library
        self._how = None if known.library is None else (type(known.library), known.library.how)
        self._symmetric = known.library is not None and known.library.symmetric
        self.report.backend = "superlu" if known.library is None else known.library.name
        self.report.matched = known.matched
        self.report.expected_nnz, self.report.expected_flops = (fill.nnz, fill.flops) if fill else (None, None)
        self.report.analysis_seconds = known.seconds

    def _refresh(self, A: CSR) -> None:
        try:
            self._renew(A)
        except BaseException as error:
            self._library = None  # what an analysis has kept of such values is of no use for others
            if isinstance(error, UnstableFactors):
                require_matching(A)  # says which rows
            raise

    def _renew(self, A: CSR) -> None:
        start = perf_counter()
        if self.recipe.backend == "feral" and not is_hermitian(A):
            raise MatrixError(f"{self.recipe!r}: A is not symmetric; backend='superlu' takes any matrix.")
        if self.updates:
            before, self._prepared = self._prepared, prepared(A, self._prepared, scaled=self._scaled)
            if not self._prepared.like(before):
                self._take(_analysed(self.recipe, self._prepared.matrix))
        S = self._prepared.matrix
        if self._symmetric and self.recipe.backend != "feral" and not is_mirrored(S):
            self._take(_analysed(self.recipe, S))
        report = self.report
        report.warning = report.tried = report.backward_error = report.refinements = None
        self._steps, self._S, self._transposed = 0, None, None
        failed = self._failed(S)
        if failed:
            report.tried = [failed]
            self._take(_analysed(replace(self.recipe, backend="superlu"), S))
            self._compute(S)
        report.numeric_seconds = perf_counter() - start
        if self._lu.replaced:
            report.warn(f"PARDISO replaced {self._lu.replaced} pivots; backend='superlu' exchanges rows instead")
        if self._probed and self.recipe.shift:  # these are factors of another matrix
            self._probe(S, lambda v: self._solved(v, "N"))
        elif self._probed:
            self._judge(A)
        report.scaled = self._prepared.row_scale is not None

    def _failed(self, S: CSR) -> str:
        """Compute the factors; "", or why others than those of a library that "auto" has chosen are to be computed."""
        other = self.recipe.backend == "auto" and self._how is not None
        try:
            self._compute(S)
        except (MemoryError, StructurallySingular):
            raise
        except FineluError as error:
            deadline.check()  # else a library was not begun that could not be left
            if not other or (self._how is not None and self._how[0] is KLU and isinstance(error, SingularMatrix)):
                raise
            if isinstance(error, OutOfTime):
                return f"{self.report.backend}: it is expected to take longer than the time limit leaves"
            return f"{self.report.backend}: {str(error).split(': ', 1)[-1].rstrip('.')}"
        if self._lu.replaced:
            require_matching(S)
            if other:
                return f"{self.report.backend}: it replaced {self._lu.replaced} pivots"
        return ""

    def _judge(self, A: CSR) -> None:
        """Look at what solves with these factors leave of two right-hand sides: take a step of refinement into all
        solves, scale A, or take other factors where "auto" allows for them, or warn.

        Raises UnstableFactors where none solve for finite numbers."""
        report = self.report
        start, found = perf_counter(), self._judged()
        best, others = (found, self._state()), [(report.backend, found)]
        for recipe, scaled in self._others() if found[1] > ENOUGH else ():
            try:
                self._prepared, self._scaled = prepared(A, scaled=scaled), scaled
                self._take(_analysed(recipe, self._prepared.matrix))
                self._compute(self._prepared.matrix)
                found = self._judged()
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
        found, (attributes, facts) = best  # whatever was made, or begun, after these
        vars(self).update(attributes)
        vars(report).update(facts)
        self._transposed = None
        if len(others) > 1:
            left = [f"{name}: backward error {other[0]:.1e}" for name, other in others if other is not found]
            report.tried = [*(report.tried or ()), *left]
            report.numeric_seconds = (report.numeric_seconds or 0.0) + perf_counter() - start
        report.backward_error, roundings, report.probe = found
        report.refinements = self._steps
        if report.probe is not None and report.probe > USELESS:
            report.warn(f"{unstable(report.probe)}; check A for dependent rows, try a shift, or another recipe")
        elif roundings > ENOUGH:
            refined = ", with a step of refinement" if self._steps else ""
            advice = "A may be singular" if self.recipe.backend == "auto" else "backend='auto' tries others"
            report.warn(f"solves have a backward error of {report.backward_error:.1e} by rows{refined}; {advice}")

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """These factors, and what the report says of them."""
        facts = ("backend", "matched", "expected_nnz", "expected_flops", "analysis_seconds")
        report = vars(self.report)
        return {name: getattr(self, name) for name in self._made_of}, {name: report[name] for name in facts}

    def _others(self) -> list[tuple[SparseLU, bool]]:
        """Recipes for other factors, and whether A is scaled for them: by another library only where none was asked
        for."""
        recipe, first = self.recipe, replace(self.recipe, backend="superlu")
        found = [] if self._scaled else [(recipe, True)]
        if recipe.backend == "auto" and self._how is not None:
            found.append((first, False))
        if recipe.backend in ("auto", "superlu") and recipe.matching is None and recipe.ordering != COLAMD:
            found += [] if self.report.matched else [(replace(first, matching=True), False)]
        return found

    def _judged(self) -> tuple[float, float, float]:
        """The largest backward error, as in `backward_error`, twice, of solves with a right-hand side S y, and what
        `finelu.factors.probe` finds; S is what is prepared, y random. Where columns differ in size, another y is in
        proportion to these, so that all of them count.

        A step of refinement is taken from now on where the error is beyond ENOUGH without it, and it helps. Inf where a
        solve is not finite.
        """
        S = self._prepared.matrix
        product, y = kernels_for(S.data).products.subtract_product, probing(S)
        others, sizes = [], _sizes(S)
        if sizes.max(initial=0.0) > UNEVEN * sizes.min(initial=np.inf):
            largest = _largest_of_columns(S, sizes)
            largest[largest == 0] = 1
            if largest.max() > UNEVEN * largest.min():
                others = [y / largest]
        y = np.stack([y, *others], axis=1).astype(S.dtype)
        B = np.asfortranarray(product(S, y))
        self._steps, self._S, self._transposed = 0, S, None
        found: list[tuple[float, float, float]] = []
        while True:
            X = np.asfortranarray(self._refined(B, "N"))
            if not np.isfinite(X).all():
                break
            errors, roundings, residuals = zip(
                *(backward_error(S, *xb) for xb in zip(X.T, B.T, strict=True)), strict=True
            )
            size = abs(B[:, 0]).max()
            probed = norm(residuals[0] / size) / norm(B[:, 0] / size) if size > 0 else 0.0
            found.append((max(errors), max(roundings), probed if probed < np.inf else np.inf))
            if self._steps or found[0][1] <= ENOUGH:
                break
            self._steps = 1
        found = found or [(np.inf, np.inf, np.inf)]
        self._steps = int(len(found) > 1 and found[1][1] < found[0][1])
        self._S = S.copy() if self._steps else None  # a caller may write to what A shares with it
        return found[self._steps]

    def _compute(self, A: CSR) -> None:
        """The factors, with what is known of order and library."""
        columns = _columns(self.recipe, self._arranged, A)
        if self._how is None:
            columns.eliminate_zeros()
            if not columns.diagonal().all() and structural_rank(columns.T) < A.n:  # SuperLU stumbles over such
                if self._by_itself == COLAMD and self.recipe.ordering == "auto":  # in the place of a matching
                    require_matching(A)  # says which rows
                raise SingularMatrix(self._singular())
        self._factored = columns
        self._lu = self._made()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._library = None
        if self._valid:
            self._lu = self._made()

    def _singular(self) -> str:
        return f"{self.recipe!r}: A is singular; its complete L U has a pivot that is 0."

    def _made(self) -> SuperLU | KLU | LDL | Pardiso:
        """The factors of what is kept as factored."""
        if self._how is None:
            return self._superlu()
        if self._library is None or not self._library.holds_for(self._factored):
            library, how = self._how
            self._library = library(self._factored, *how)
        return self._library.factor(self._factored, self._singular())

    def _superlu(self) -> SuperLU:
        columns = self._factored
        symmetric = {"options": {"SymmetricMode": True}, "diag_pivot_thresh": PIVOT}  # no postorder of SuperLU's own
        if self._by_itself == MMD:
            how: dict[str, Any] = symmetric | {"permc_spec": "MMD_AT_PLUS_A", "relax": 1, "panel_size": 1}
        elif not self._by_itself:  # relax=1: what SuperLU takes for subtrees is none where this order is no postorder
            relax = 1 if self.recipe.ordering is None else RELAX
            how = symmetric | {"permc_spec": "NATURAL", "relax": relax, "panel_size": self._panel()}
        else:
            how = {"permc_spec": "COLAMD"}
            if columns.nnz <= SHORT * columns.shape[0]:  # columns have little in common
                how |= {"relax": 1, "panel_size": 1}
        return SuperLU(columns, self._singular(), self.report.expected_flops, **how)

    def _panel(self) -> int | None:
        """How many columns SuperLU works on at once, None for its default: few, where each entry takes little work."""
        work = self.report["expected_flops"] / max(self.report["expected_nnz"], 1)
        return next((columns for limit, columns in PANELS if work <= limit), None)

    @property
    def nnz(self) -> int:
        return self._lu.nnz

    def _apply(self, R: Any, trans: str) -> Any:
        r, known = to_host(R), self._prepared
        if known.row_scale is None:
            return namespace(R).asarray(self._refined(r, trans))
        scales = known.row_scale, known.column_scale
        before, after = scales if trans == "N" else scales[::-1]
        x = _rows_times(after, self._refined(_rows_times(before, r), trans))
        return namespace(R).asarray(x.astype(self.dtype, copy=False))

    def _refined(self, r: Any, trans: str) -> Any:
        """The solution with what is prepared, as many steps of refinement as these factors need taken."""
        x = self._solved(r, trans)
        for _ in range(self._steps):
            x = x + self._solved(self._residual(r, x, trans), trans)
        return x

    def _solved(self, r: Any, trans: str) -> Any:
        r = np.ascontiguousarray(self._arranged.gather_scaled(r, trans))
        return self._arranged.scatter_scaled(self._lu.solve(r, trans), trans)

    def _residual(self, r: Any, x: Any, trans: str) -> Any:
        """r - S x, r - S^T x or r - S^H x, for the S that is prepared."""
        subtract = kernels_for(r).products.subtract_product
        if trans == "N":
            return subtract(self._S, x, r)
        if self._transposed is None and self._S is not None:
            self._transposed = self._S.tosparse().T.tocsr()
        if trans == "H" and r.dtype.kind == "c":
            return subtract(self._transposed, x.conj(), r.conj()).conj()
        return subtract(self._transposed, x, r)


def _rows_times(scale: Any, v: Any) -> Any:
    return (scale if v.ndim == 1 else scale[:, None]) * v


def analysed(recipe: SparseLU, A: CSR, *, counted: bool = False, job: OrderingJob | None = None) -> Analysis:
    """Matching and ordering of A, wherever it is, and the fill that they lead to, as A is prepared for the libraries.

    counted : whether the fill of few rows, too, is counted.  job : an order that was started for A, for "auto".
    Raises StructurallySingular where no matching is complete, and the recipe has no shift.
    """
    found = prepared(A)
    return replace(_analysed(recipe, found.matrix, counted=counted, job=job), prepared=found)


def _analysed(recipe: SparseLU, A: CSR, *, counted: bool = False, job: OrderingJob | None = None) -> Analysis:
    start = perf_counter()
    _require_room(recipe, "A", A.nnz)
    rows = columns = np.arange(A.n)
    row_scale = column_scale = np.ones(A.n, A.data.real.dtype)
    by_itself, matched = COLAMD if recipe.ordering == COLAMD else "", recipe.matching
    plain = _plain(A)
    if recipe.backend == "auto" and recipe.ordering == "auto" and matched is None and not recipe.shift:
        library, fill, job = _library_if_better(A, job)
        if library is not None:
            return Analysis(plain, False, fill, perf_counter() - start, library)
    if recipe.backend == "feral":
        ldl, fill = LDL(_columns(recipe, plain, A), _of_feral(recipe)), with_little_fill(A, "amd")[1]
        return Analysis(plain, False, fill, perf_counter() - start, ldl)
    if recipe.backend == "pardiso":
        if not np.diff(A.indptr).all():
            require_matching(A)  # says which rows
        blocks = Pardiso(_columns(recipe, plain, A), _of_pardiso(recipe), is_mirrored(A))
        return Analysis(plain, False, None, perf_counter() - start, blocks)
    by_klu = recipe.backend == "klu"
    few = recipe.ordering == "auto" and not by_klu and is_quick(A) and not counted
    if matched is None and not by_klu:
        matched = not by_itself and needs_matching(A)
        if matched and few and not recipe.shift and A.nnz <= MODERATE * A.n:
            matched, by_itself = False, COLAMD
            row_scale, column_scale = by_largest(A)
    if matched:
        try:
            found = matching(A)
        except StructurallySingular:
            if not recipe.shift:
                raise
            rows = _partial_matching(A)
        else:
            rows = np.argsort(found.columns)  # row of A that is matched to each column
            row_scale, column_scale = found.row_scale, found.column_scale
    elif not by_itself and not by_klu and (scale := _dense_rows_scaled(A)) is not None:
        row_scale = scale  # else they become pivots before the others, and fill these in
    arranged, fill = Arrangement(rows, columns, row_scale[rows], column_scale), None
    if few:
        return Analysis(arranged, bool(matched), None, perf_counter() - start, by_itself=by_itself or MMD)
    if not by_itself and not (by_klu and recipe.ordering in ("auto", None)):
        order, fill = _ordered(recipe, arranged.matrix(A), None) if matched else _ordered(recipe, A, job)
        arranged = Arrangement(rows[order], columns[order], row_scale[rows][order], column_scale[order])
    klu = None
    if by_klu:
        how = {"auto": AMD, COLAMD: COLUMNS}.get(recipe.ordering or "", GIVEN)
        try:
            klu = KLU(_columns(recipe, arranged, A), how, fill)
        except SingularMatrix:
            require_matching(A)  # says which rows
            raise
        fill = klu.expected
    return Analysis(arranged, bool(matched), fill, perf_counter() - start, klu, by_itself)


def _library_if_better(
    A: CSR, job: OrderingJob | None, *, light: bool = False
) -> tuple[Library | None, Fill | None, OrderingJob | None]:
    """The analysis by the library that is expected to take less time than SuperLU does, if any; the fill, if counted;
    the job of an order. light : only KLU is asked."""
    symmetric = is_mirrored(A)
    real = symmetric and A.dtype.kind != "c"
    wanted = not is_quick(A) and (symmetric or not needs_matching(A))  # of PARDISO or feral
    if job is None and symmetric and wanted and may_be_by_blocks(A, symmetric=symmetric, real=real):
        job = OrderingJob(A, aside=False)
    fill = job.found()[2] if job else None
    wanted = wanted and may_be_by_blocks(A, symmetric=symmetric, real=real, fill=fill)
    if complete.nbklu() is not None and _fits_klu(A, fill, symmetric=symmetric, wanted=job is not None and wanted):
        try:
            klu = KLU(_narrow(A.tosparse().tocsc()), AMD)
        except (FineluError, MemoryError):  # SuperLU says what is wrong, or takes less
            return None, None, job
        fill = klu.expected
        wanted = wanted and may_be_by_blocks(A, symmetric=symmetric, real=real, fill=fill)
        if fill is not None and fill.flops <= KLU_WORK * fill.nnz and not wanted and klu.has_time:
            return klu, fill, job
    if not wanted or light:
        return None, None, job
    job = job or OrderingJob(A, aside=False)
    _, order, fill = job.found()
    if not may_be_by_blocks(A, symmetric=symmetric, real=real, fill=fill):
        return None, None, job
    columns = _narrow(A.tosparse().tocsc())
    if pardiso.mkl() is not None:
        if job.is_long:
            return Pardiso(columns, DISSECTION, symmetric), fill, job
        matched = symmetric and needs_matching(A)  # which no given order allows for
        return Pardiso(columns, MINIMUM_DEGREE, symmetric, None if matched else order), fill, job
    return LDL(columns, "auto"), fill, job


def light_by_klu(A: CSR) -> Analysis | None:
    """The analysis of an A like a circuit or a network, whose rows are short and which is not symmetric: by KLU, where
    that takes less time than others, and is there."""
    if complete.nbklu() is None or A.nnz > SHORT * A.n:
        return None
    start = perf_counter()
    found = prepared(A)
    A = found.matrix
    if is_mirrored(A):
        return None
    library, fill, _ = _library_if_better(A, None, light=True)
    if library is None:
        return None
    return Analysis(_plain(A), False, fill, perf_counter() - start, library, prepared=found)


def _plain(A: CSR) -> Arrangement:
    """A's own order, without a scaling."""
    rows, ones = np.arange(A.n), np.ones(A.n, A.data.real.dtype)
    return Arrangement(rows, rows, ones, ones)


def _fits_klu(A: CSR, fill: Fill | None, *, symmetric: bool, wanted: bool) -> bool:
    """Whether KLU is to be asked. fill : as the whole pattern has it, None where that is not counted.  wanted : whether
    another library takes less time for that."""
    if _has_border(A):  # KLU exchanges its rows with others, and fills in far more than it counts
        return False
    light = not wanted and (fill is None or fill.flops <= KLU_WORK * fill.nnz)
    return light or (not symmetric and _has_blocks(A))


def _has_border(A: CSR) -> bool:
    """Whether dense rows of A have no entry on the diagonal."""
    return A.missing > 0 and (scale := _dense_rows_scaled(A)) is not None and bool((A.diag[scale != 1] < 0).any())


def _has_blocks(A: CSR) -> bool:
    """Whether rows and columns can be permuted to a block triangular form, by which KLU goes, with a full diagonal."""
    pattern = sp.csr_matrix((np.ones(A.nnz), A.indices, A.indptr), shape=A.shape)  # SciPy takes no complex numbers
    return bool(connected_components(pattern, connection="strong")[0] > 1)


def is_quick(A: CSR | MatrixTraits) -> bool:
    """Whether A is factored without a count, which would take longer."""
    return A.n <= QUICK and A.nnz <= QUICK_ENTRIES


def may_be_by_blocks(A: CSR | MatrixTraits, *, symmetric: bool, real: bool, fill: Fill | None = None) -> bool:
    """Whether "auto" is PARDISO or feral for a matrix with this fill, None for any.  real : and symmetric."""
    if pardiso.mkl() is None:
        return complete.feral() is not None and real and (fill is None or fill.flops >= LDL_WORK * A.n)
    return fill is None or fill.flops >= (SYMMETRIC_WORK if symmetric else PARDISO_WORK) * A.n


def _of_feral(recipe: SparseLU) -> str:
    """The ordering, by the name that feral has for it."""
    ordering = recipe.ordering or ""
    if recipe.matching or ordering not in FERAL_ORDERINGS:
        given = "matching=True" if recipe.matching else f"ordering={recipe.ordering!r}"
        raise ParameterError(
            f"{recipe!r}: backend='feral' takes no {given}; it orders by {', '.join(map(repr, FERAL_ORDERINGS))}, and "
            "chooses its pivots by itself."
        )
    return FERAL_ORDERINGS[ordering]


def _of_pardiso(recipe: SparseLU) -> int:
    """The ordering, by the number that PARDISO has for it."""
    if recipe.ordering not in PARDISO_ORDERINGS or recipe.matching is not None:
        given = f"ordering={recipe.ordering!r}" if recipe.matching is None else f"matching={recipe.matching}"
        raise ParameterError(
            f"{recipe!r}: backend='pardiso' takes no {given}; it orders by "
            f"{', '.join(map(repr, PARDISO_ORDERINGS))}, and matches what is not definite."
        )
    return PARDISO_ORDERINGS[recipe.ordering]


def needs_matching(A: CSR) -> bool:
    """Whether the diagonal of an A on the host has gaps, zeros, or many entries that are small in their columns.

    Those of dense rows do not count: they come last, where elimination has filled them, see `_dense_rows_scaled`.
    """
    scale = _dense_rows_scaled(A)
    if A.missing > 0 and (scale is None or (A.diag[scale == 1] < 0).any()):
        return True
    sizes, diagonal, largest = abs(A.data), np.ones(A.n, A.data.real.dtype), np.zeros(A.n, A.data.real.dtype)
    if scale is not None:
        sizes = sizes * np.repeat(scale, np.diff(A.indptr))
    np.maximum.at(largest, A.indices, sizes)
    if scale is None:
        diagonal = sizes[A.diag]
    else:
        diagonal, largest = sizes[A.diag[scale == 1]], largest[scale == 1]
    return bool(not diagonal.all() or np.count_nonzero(diagonal < WEAK * largest) > FEW * A.n)


def _dense_rows_scaled(A: CSR) -> Any:
    """Scales of the rows (n,): of dense ones the power of two next below 1 / entries, so that what elimination sums up
    there exceeds no pivot before its turn, else 1; None without dense rows."""
    lengths = np.diff(A.indptr)
    dense = lengths > dense_row(A.n)
    if not dense.any() or dense.all():
        return None
    return np.where(dense, np.exp2(-np.ceil(np.log2(np.maximum(lengths, 1)))), 1).astype(A.data.real.dtype)


def _ordered(recipe: SparseLU, A: Any, job: OrderingJob | None) -> tuple[np.ndarray, Fill]:
    if recipe.ordering is None:
        return np.arange(A.shape[0]), complete_fill(A)
    return with_little_fill(A, recipe.ordering, job)


def _require_room(recipe: SparseLU, what: str, nnz: int) -> None:
    if nnz > INT32_LIMIT:
        raise MemoryError(
            f"{recipe!r}: {what} would have about {nnz} entries, more than the 32-bit indices of its library count; "
            "use an incomplete factorization."
        )


def _partial_matching(A: CSR) -> np.ndarray:
    """The row for each column (n,), of a matching with as many entries other than zero as can be."""
    S = A.tosparse().copy()
    S.eliminate_zeros()
    rows = maximum_bipartite_matching(S, perm_type="row").astype(np.int64)
    rows[rows < 0] = np.setdiff1d(np.arange(A.n), rows)
    return rows


def _columns(recipe: SparseLU, arranged: Arrangement, A: CSR) -> Any:
    """What is factored: A in its order, scaled and shifted, by columns."""
    S = arranged.by_columns(A)
    if recipe.shift:
        d, largest = S.diagonal(), abs(S.data).max(initial=0.0) or 1.0
        S = _narrow(S + recipe.shift * sp.diags(np.where(d == 0, largest, d).astype(S.dtype), format="csc"))
    return S


def _narrow(S: Any) -> Any:
    """S with the 32-bit indices that the libraries take."""
    return sp.csc_matrix((S.data, S.indices.astype(np.int32), S.indptr.astype(np.int32)), shape=S.shape)
