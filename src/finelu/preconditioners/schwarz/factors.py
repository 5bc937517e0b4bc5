"""The factors of a Schwarz recipe: those of the parts, the coarse space, and the forms in which both are applied."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from time import perf_counter
from typing import Any

import numpy as np

from finelu.device import namespace, on_gpu
from finelu.errors import ParameterError, ZeroPivot
from finelu.factors import Factors
from finelu.factors.recorded import Applications
from finelu.factors.report import Report
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR, Sums
from finelu.matrix.hermitian import require_hermitian
from finelu.matrix.looks import has_strong_pairs
from finelu.matrix.traits import symmetry
from finelu.preconditioners.ict import ICT
from finelu.preconditioners.ilu0 import ILU0
from finelu.preconditioners.schwarz.adaptive import ADDED, SLOW, Nodes, constants, nodes_of, smoothed, smoothed_together
from finelu.preconditioners.schwarz.coarse import CoarseSpace
from finelu.preconditioners.schwarz.deflation import Deflated
from finelu.preconditioners.schwarz.levels import has_levels
from finelu.preconditioners.schwarz.parts import AUTO, MOST_COARSE, cut_entries, near_of, parts_of, usual_size
from finelu.preconditioners.schwarz.subdomains import LocalFactors, Subdomains

# Coarse vectors above which levels="auto" solves a definite coarse matrix on levels, on a GPU and on the CPU. With 8000
# parts of a 7-point grid a solve with the factors of the coarse matrix takes 2.0 ms on the CPU, on levels 1.5.
MOST_INVERTED, MOST_FACTORED = 4096, 8192
# The threshold of ICT where strong couplings are scattered. On 60^3 cells of 10^-3 to 10^3 at random, 642 parts, cg
# takes 128 iterations with ILU0, 81 with 1e-2, where L has an eighth more entries, and 79 with 1e-3, where it has two
# thirds more.
DROPPED = 1e-2
# Columns from which on the CPU an application to all of them at once takes less time than one to each. On one thread
# grids of 90,000 and 110,592 cells, a mesh of 70,371 rows and jumps on 110,592 took 1.4 to 1.9 times as long for two at
# once, 1.0 to 1.3 for three, 0.8 to 1.1 for four, and 0.7 to 0.9 for five.
TOGETHER = 4
# The same of all methods on a GPU; cg has a form for one column with one product with E^-1 less. On an H200 4, 8 and 16
# columns took 1.13, 1.02 and 0.85 of the time of one after the other for poisson7:64, 1.05, 0.80 and 0.66 for
# poisson27:40, 0.89, 0.70 and 0.70 for poisson5:300,300, each in a `solve` of all.
TOGETHER_IN_METHODS = 8
MOST_TOGETHER = 65_535  # on a GPU: blocks along a dimension of a grid
PAYS = 8  # applications on a GPU after which one is recorded; a Krylov method has recorded its step earlier


@dataclass(eq=False, repr=False)
class SchwarzReport(Report):
    """local : the recipe of the parts.
    partition : the method that found the parts.
    parts, smallest, largest : number and sizes of the parts, with overlap.
    cut : the part of A's entries that couple rows of different parts.
    levels : the most level sets of a triangle of a part.
    rows_of_levels : the number of rows of A, of its coarse matrix, of that one's coarse matrix, ...
    coarse_steps : steps of Chebyshev of a solve with the coarse matrix; None if that is inverted or factored.
    expected_iterations : of cg before any vectors were added, from a few steps of it; None unless near_nullspace="auto"
        took these.
    near_null_vectors : the number of vectors of the near null space.
    coarse_rank, coarse_dropped : the number of coarse vectors, and of those left out since they, or A Z, are dependent.
    stored, stored_since : the dtype in which a solve reads the factors of the parts; why it is double precision where
        single precision was possible, in words.
    partition_seconds, analysis_seconds : of finding the parts, and of analysing their blocks.
    """

    local: str | None = None
    partition: str | None = None
    parts: int = 0
    smallest: int = 0
    largest: int = 0
    cut: float = 0.0
    levels: int | None = None
    rows_of_levels: tuple[int, ...] = ()
    coarse_steps: int | None = None
    near_null_vectors: int = 1
    expected_iterations: float | None = None
    coarse_rank: int | None = None
    coarse_dropped: int | None = None
    stored: str | None = None
    stored_since: str | None = None
    partition_seconds: float = 0.0
    analysis_seconds: float = 0.0


class SchwarzFactors(Factors):
    """M, see `Schwarz`.  parts (n,) : the part of each row.  local : the factors of the diagonal blocks, which are one
    block-diagonal matrix whose row t is row `rows[t]` of A."""

    well_formed = True
    _bound = ("_lock", "_recorded")

    def __init__(self, recipe: Any, A: CSR, block_size: int = 1):
        self._local: Any = None
        self._form: tuple[str, bool] | None = None  # kind and definiteness of the A of these factors
        self._enriched = False  # whether smoothed vectors were added, which are too rough for a coarse matrix on levels
        self._recorded = Applications(PAYS)
        super().__init__(recipe, A, report=SchwarzReport())
        finds = recipe.near_nullspace == AUTO
        nodes = nodes_of(A, block_size) if finds else None
        self._near = near_of(recipe, A) if nodes is None else constants(nodes, A)
        self._look_at(A)
        self._divide(A, nodes)
        self._make(A)
        if finds and self._definite:
            self._enrich(A, nodes)

    def _divide(self, A: CSR, nodes: Nodes | None, size: int | None = None) -> None:
        """Find the parts, of about `size` rows."""
        report, start = self._report, perf_counter()
        found = parts_of(self.recipe, A, self._near, self._kind, self._definite, nodes, size)
        self.parts, self._number, report.partition = found
        report.parts, report.partition_seconds = self._number, perf_counter() - start

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._recorded = Applications(PAYS)

    def _make(self, A: CSR) -> None:
        """The factors of the parts and the coarse space."""
        recipe, report, start = self.recipe, self._report, perf_counter()
        domains = Subdomains(A, self.parts, self._number, recipe.overlap)
        sizes = domains.sizes()
        if recipe.overlap and self._number > 1 and int(sizes.max()) == A.n:
            raise ParameterError(
                f"{recipe!r}: with overlap={recipe.overlap} part {int(sizes.argmax())} of {self._number} is "
                "all of A; take less overlap, or larger parts."
            )
        self.rows = domains.rows
        self._local = self._local_factors(A, domains)
        report.smallest, report.largest = int(sizes.min()), int(sizes.max())
        cut = A.nnz - self._local.entries if domains.rows.size == A.n else cut_entries(A, self.parts)
        report.cut = cut / A.nnz
        report.analysis_seconds = perf_counter() - start
        start = perf_counter()
        self.coarse: CoarseSpace | None = None
        if recipe.coarse is not None:
            self.coarse = self._coarse_space(A, domains.own_starts, domains.own_rows)
        self._tell()
        self._form = self._kind, self._definite
        report.numeric_seconds = perf_counter() - start

    def _local_factors(self, A: CSR, domains: Subdomains) -> LocalFactors:
        """The factors of the parts, by the recipe that suits A if that is left open."""
        recipe, report = self.recipe, self._report
        auto = recipe.local == AUTO
        form: dict[str, Any] = {
            "symmetric": self._kind != "general",
            "narrow": self._narrow(A) if auto and recipe.precision is None else "",
        }
        self._instead, self._by_threshold = "", auto and self._definite and not on_gpu(A.data) and has_strong_pairs(A)
        if self._by_threshold:
            local: Any = ICT(drop_tol=DROPPED)
            try:
                made = LocalFactors(recipe, local, A, domains, **form)
                report.local = repr(local)
                return made
            except ZeroPivot as error:
                why = str(error)
            except ParameterError:
                why = f"{local!r} would move dense rows to the end of their part."
            self._instead, self._by_threshold = f"the parts have the factors of ILU0 instead: {why}", False
        local = ILU0() if auto else recipe.local
        report.local = repr(local)
        return LocalFactors(recipe, local, A, domains, **form)

    def _narrow(self, A: CSR) -> str:
        """How solves may read the factors of ILU0 in single precision, as `LocalFactors` has it; "" if they may not."""
        if self._definite:
            return "adjoint"
        return "each" if self._kind == "general" and not on_gpu(A.data) else ""

    def _coarse_space(self, A: CSR, starts: Any, rows: Any) -> CoarseSpace:
        adjoint = {"hermitian": "H", "symmetric": "T"}.get(self._kind)
        return CoarseSpace(
            *(A, self.parts, starts, rows, self._near, adjoint, self._definite),
            balanced=self.recipe.combine == "balanced",
            overlaps=self.overlaps,
            coarser=self._coarser(),
            required=self.recipe.levels != AUTO,
        )

    def _enrich(self, A: CSR, nodes: Nodes | None) -> None:
        """Add smoothed random vectors to the near null space if cg with these factors converges slowly."""
        start, recipe, xp = perf_counter(), self.recipe, namespace(A.data)
        first, self._report.expected_iterations = smoothed(self, A, 0)
        if SLOW < self._report.expected_iterations < inf:
            self._enriched = True
            known = constants(nodes, A) if self._near is None else self._near
            added = [first, *smoothed_together(self, A, range(1, ADDED))]
            self._near = xp.column_stack([known, *added])
            vectors = known.shape[1] + 2 * ADDED
            if self._number * vectors > MOST_COARSE and recipe.levels == AUTO and recipe.size is recipe.parts is None:
                self._divide(A, nodes, usual_size(A, vectors, levels=False))
                self._make(A)
            else:
                self._couple_again(A)
            added = smoothed_together(self, A, range(ADDED, 2 * ADDED))
            self._near = xp.column_stack([self._near, *added])
            self._couple_again(A)
        self._report.numeric_seconds = (self._report.numeric_seconds or 0.0) + perf_counter() - start

    def _couple_again(self, A: CSR) -> None:
        """The coarse space of another near null space."""
        coarse: Any = self.coarse
        self.coarse = self._coarse_space(A, coarse.starts, coarse.rows)
        self._tell()

    def _coarser(self) -> Any:
        """The recipe of the coarse matrix, None if that is inverted or factored."""
        recipe, vectors = self.recipe, 1 if self._near is None else self._near.shape[1]
        size = self._number * vectors
        if recipe.levels == AUTO:
            most = MOST_INVERTED if on_gpu(self.parts) else MOST_FACTORED
            wanted = self._definite and size > most and not self._enriched
        else:
            wanted = recipe.levels > 2
        if not (wanted and has_levels(self._number, vectors)):
            return None
        levels = AUTO if recipe.levels == AUTO else recipe.levels - 1
        local = ILU0() if recipe.local == AUTO and not self._definite else recipe.local  # "auto" needs positive pivots
        own: dict[str, Any] = {"size": None, "partition": AUTO, "overlap": 0, "combine": "balanced"}
        return replace(recipe, local=local, levels=levels, **own)

    def _look_at(self, A: CSR) -> None:
        """Set the properties of A on which the form of M depends."""
        self._warning = ""
        if self.recipe.hermitian:
            self._warning, self._kind = require_hermitian(self.recipe, A), "hermitian"
        else:
            self._kind = symmetry(A)
        not_positive = kernels_for(A.data).vectors.first_not_positive
        self._definite = self._kind == "hermitian" and not_positive(A.data, A.diag) < 0

    def _tell(self) -> None:
        """Write the report. If ILU0 replaces IC0, its pivots must be positive."""
        report = self._report
        if self.recipe.local == AUTO and self._definite:
            self._local.require_positive_pivots()
        report.levels, report.warning = None, self._warning or None
        if self._instead:
            report.warn(self._instead)
        report.near_null_vectors = 1 if self._near is None else self._near.shape[1]
        report.stored, report.stored_since = str(self._local.stored), self._local.not_narrow or None
        if of_parts := self._local.factors.report.get("warning"):
            report.warn(f"of the factors of the parts, rows counted part by part: {of_parts}")
        report.rows_of_levels, report.coarse_steps = (self.pattern.n,), None
        if self.coarse is not None:
            levels = self.coarse.levels
            report.coarse_rank, report.coarse_dropped = self.coarse.rank, self.coarse.size - self.coarse.rank
            report.rows_of_levels += levels.factors.report.rows_of_levels if levels else (self.coarse.size,)
            report.coarse_steps = levels.steps if levels else None
            if self.coarse.warning:
                report.warn(self.coarse.warning)

    def _refresh(self, A: CSR) -> None:
        self._recorded.forget()
        start, made = perf_counter(), self._form
        self._form = None  # until this has succeeded
        self._look_at(A)
        if (self._kind, self._definite) != made:
            self._make(A)
            return
        try:
            self._local.update(A)
        except ZeroPivot:
            if not self._by_threshold:
                raise
            self._make(A)  # with ILU0 instead
            return
        if self.coarse is not None:
            self.coarse.update(A, self._definite)
        self._tell()
        self._form = made
        self._report.numeric_seconds = perf_counter() - start

    @property  # type: ignore[override]
    def report(self) -> SchwarzReport:
        """The report; its levels are counted at the first access."""
        if self._report.levels is None and self._local is not None:
            self._report.levels = self._local.levels()
        return self._report

    @report.setter
    def report(self, report: Any) -> None:
        self._report: SchwarzReport = report

    @property
    def local(self) -> Factors:
        """The factors of the diagonal blocks of all parts, with `L` and `U` if the local recipe has them."""
        factors: Factors = self._local.factors
        return factors

    @property
    def nnz(self) -> int:
        """Stored entries of the parts' factors, on all levels."""
        levels = None if self.coarse is None else self.coarse.levels
        return self.local.nnz + (levels.factors.nnz if levels else 0)

    @property
    def capturable(self) -> bool:
        return on_gpu(self.pattern.data)

    @property
    def together(self) -> bool:  # type: ignore[override]
        if not on_gpu(self.pattern.data):
            return True
        return not self.overlaps and (self.coarse is None or self.coarse.levels is None)

    @property
    def together_from(self) -> int:  # type: ignore[override]
        return TOGETHER_IN_METHODS if on_gpu(self.pattern.data) else 2

    @property
    def deflated(self) -> Deflated | None:
        """The cheaper form of M in cg, if A is Hermitian and M is balanced."""
        balanced = self.coarse is not None and self.recipe.combine == "balanced"
        return Deflated(self) if balanced and self._kind == "hermitian" else None

    @property
    def overlaps(self) -> bool:
        """Whether rows are in several parts."""
        return bool(self.rows.size > self.pattern.n)

    def local_solve(self, r: Any, x: Any, sums: Sums | None = None) -> None:
        """x = the sum of the solves with the parts, for r (n,)."""
        self._local.apply(r, "N", x, sums=sums)

    def _apply(self, R: Any, trans: str) -> Any:
        if self._records(R):
            return self._recorded(self._one, R, trans)
        X = namespace(R).empty_like(R)
        self._apply_into(R, trans, X)
        return X

    def _records(self, R: Any) -> bool:
        """Whether the application is one of many kernels, which may be recorded."""
        return self.coarse is not None and R.ndim == 1 and on_gpu(R)

    def _one(self, r: Any, trans: str) -> Any:
        x = namespace(r).empty_like(r)
        self._apply_one(namespace(r).ascontiguousarray(r), trans, x)
        return x

    def _apply_into(self, R: Any, trans: str, out: Any) -> None:
        if self._records(R):
            self._recorded(self._one, R, trans, out)
            return
        if R.ndim == 1 and out.flags.c_contiguous and not namespace(R).may_share_memory(R, out):
            self._apply_one(namespace(R).ascontiguousarray(R), trans, out)
            return
        if R.ndim == 2 and R.shape[1] >= TOGETHER and not on_gpu(R):
            direct = out.flags.c_contiguous and not np.may_share_memory(R, out)
            X = out if direct else np.empty(R.shape, R.dtype)
            self._apply_one(np.ascontiguousarray(R), trans, X)
            if not direct:
                out[...] = X
            return
        columns = namespace(R).ascontiguousarray(R.reshape(R.shape[0], -1).T)
        if on_gpu(R) and R.ndim == 2 and TOGETHER <= R.shape[1] <= MOST_TOGETHER and self.together:
            direct = out.flags.f_contiguous and not namespace(R).may_share_memory(R, out)
            X = out.T if direct else namespace(R).empty_like(columns)
            self._apply_one(columns.T, trans, X.T)
            if not direct:
                out[...] = X.T
            return
        X = namespace(R).empty_like(columns)
        for r, x in zip(columns, X, strict=True):
            self._apply_into(r, trans, x)
        out[...] = X.T.reshape(R.shape)

    def _apply_one(self, r: Any, trans: str, x: Any) -> None:
        """x = M^-1 r, or with a transpose; r and x may be (n, k), on the CPU row-major, on a GPU column-major, without
        overlap. Of T and H the one that the coarse space computes, `adjoint`, is taken directly, and the other by
        complex conjugation."""
        adjoint = "H" if self.coarse is None else self.coarse.adjoint
        if trans not in ("N", adjoint) and self.dtype.kind == "c":
            self._apply_one(r.T.conj().T, adjoint, x)  # in the order of r, in which CuPy does not conjugate
            namespace(x).conj(x, out=x)
        elif self.coarse is None:
            self._local.apply(r, trans, x)
        elif self.recipe.combine == "additive":
            self._additive(r, trans, x)
        else:
            self._balanced(r, trans, x)

    def _additive(self, r: Any, trans: str, x: Any) -> None:
        coarse: Any = self.coarse
        self._local.apply(r, trans, x)
        coarse.prolong(coarse.solve(coarse.restrict(r), trans != "N"), x)  # x = M^-1 r + Q r

    def _balanced(self, r: Any, trans: str, x: Any) -> None:
        """x = P^H M^-1 P r + Q r; for a general A without P^H, so that its adjoint is without P."""
        coarse: Any = self.coarse
        transposed, general = trans != "N", self._kind == "general"
        q = coarse.solve(coarse.restrict(r), transposed)
        before, after = not (transposed and general), transposed or not general
        sums = coarse.sums(self.dtype, x.size // x.shape[0]) if after and not self.overlaps else None
        at_once = before and not (after or self.overlaps)
        correction = coarse.correction(q, at_once) if before else None
        self._local.apply(r, trans, x, correction, sums)  # P r = r - A Z q
        if at_once:
            return
        moments = coarse.moments(sums) if sums else coarse.moments_of(x) if after else None
        coarse.prolong(q, x, coarse.solve(moments, True) if after else None)  # P^H x = x - Z E^-H (A Z)^H x
