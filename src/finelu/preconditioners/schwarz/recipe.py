"""Additive Schwarz methods with incomplete factorizations of the subdomains and a coarse space.

M. Dryja, O. B. Widlund, 1990; the restricted form: X.-C. Cai, M. Sarkis, 1999; the coarse space of one constant a part:
R. A. Nicolaides, 1987; its balanced combination: J. Mandel, 1993, and as an abstract preconditioner J. M. Tang,
R. Nabben, C. Vuik, Y. A. Erlangga, 2009 (BNN, A-DEF1 and, in cg, A-DEF2).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf
from time import perf_counter
from typing import Any

import numpy as np

from finelu.device import namespace, on_gpu, to_host
from finelu.errors import ParameterError, ZeroPivot
from finelu.factors import Factors
from finelu.factors.recorded import Applications
from finelu.factors.report import Report
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR, Sums
from finelu.matrix import dense_numbers
from finelu.matrix.blocks import BlockMatrix
from finelu.matrix.traits import has_strong_pairs, require_hermitian, symmetry, uneven
from finelu.partition import METHODS, bricks, partition
from finelu.preconditioners.ict import ICT
from finelu.preconditioners.ilu0 import ILU0
from finelu.preconditioners.milu0 import MILU0
from finelu.preconditioners.recipe import ArrayParameter, Recipe, checked
from finelu.preconditioners.registry import recipe_of
from finelu.preconditioners.schwarz.adaptive import ADDED, SLOW, Nodes, constants, nodes_of, smoothed, smoothed_together
from finelu.preconditioners.schwarz.coarse import CoarseSpace
from finelu.preconditioners.schwarz.deflation import Deflated
from finelu.preconditioners.schwarz.levels import has_levels, size_in_space
from finelu.preconditioners.schwarz.subdomains import LocalFactors, Subdomains, no_triangles
from finelu.validation import choice, count

# The default size of a part. On a GPU two or three parts should share a multiprocessor: ROOM bytes hold the factors of
# one part, with ENTRY bytes for each of A's entries and ROW bytes for each row. There are at most MOST_COARSE coarse
# vectors, since their matrix has a dense inverse on a GPU, and several vectors a part fill its sparse factors. With one
# vector a part they are sparse enough for MOST_SPARSE: on a 7-point grid a solve with them takes 6 ms.
SMALLEST, LARGEST, ROOM, ROW, ENTRY, MOST_COARSE, MOST_SPARSE = 128, 448, 56_000, 26, 10, 4096, 16_384
# Coarse vectors above which levels="auto" solves a definite coarse matrix on levels, on a GPU and on the CPU. With 8000
# parts of a 7-point grid a solve with the factors of the coarse matrix takes 2.0 ms on the CPU, on levels 1.5.
MOST_INVERTED, MOST_FACTORED = 4096, 8192
# The rows of A over the size of its aggregates on a GPU; as these fill 0.7 of it, there are about 2000. On an H100
# ani7, 203,841 rows, takes 77 ms with 1941 aggregates and 101 with 636; a heat sink, 70,371 rows, 16 with 791 and 21
# with 223; 512,000 cells of 10^-3 to 10^3 at random 36 ms with 1852 and 34 with 1520.
AGGREGATES = 1400
ROWS = 64  # of a part, for each of its coarse vectors, on the CPU, where a larger coarse matrix has further levels
# The threshold of ICT where strong couplings are scattered. On 60^3 cells of 10^-3 to 10^3 at random, 642 parts, cg
# takes 128 iterations with ILU0, 81 with 1e-2, where L has an eighth more entries, and 79 with 1e-3, where it has two
# thirds more.
DROPPED = 1e-2
PAYS = 8  # applications on a GPU after which one is recorded; a Krylov method has recorded its step earlier
COARSE = ("constant", None)
COMBINE = ("balanced", "additive")
AUTO = "auto"


@dataclass(frozen=True, kw_only=True, repr=False)
class Schwarz(Recipe):
    """Incomplete factors of the diagonal blocks of subdomains, and a coarse space that couples them.

    M^-1 = sum_p R_p^T W B_p^-1 W R_p, and Q = Z E^-1 Z^H with E = Z^H A Z: B_p are the factors of part p by `local`,
    and Z has a vector for each part. No part waits for another in a solve: on a GPU a block of threads solves a part,
    with its unknowns in shared memory; on the CPU a thread solves eight parts at a time in vector registers,
    or one, if there are few or they differ in size.

    local : the recipe of the parts, or its name; its factors must be two triangles (ILU0(), IC0(), ILUK(level=1),
        ILUT(), ICT(), MILU0(), ...). "auto" is ILU0, whose factors of a Hermitian part are those of IC0, U = D L^H, and
        need no transpose. If A is Hermitian with a positive diagonal, D must be positive, so that cg can take M. On the
        CPU "auto" is ICT(drop_tol=1e-2) for such an A if in one of 50 rows a coupling is more than ten times all others
        together; ILU0, with a warning in the report, if ICT meets a pivot that is not positive.
    size : rows of a part. None: 128 to 448, fewer if rows are long; on a GPU, if A is Hermitian with a positive
        diagonal, aggregates with one vector a part have n / 1400, if that is less, but at least 128. On the CPU, where
        levels may be more than 2, 64 for each vector of the coarse space, at most 448; not if couplings jump from cell
        to cell; and on four threads or more for a grid in space the size that gives 4096 vectors, if that is larger and
        at most 448. With levels=2, which "auto" means for an A that is not Hermitian with a positive diagonal, they are
        more if the coarse space would otherwise have more than 4096 vectors, or with one vector a part on the CPU more
        than 16,384. On the CPU, for an A that is neither Hermitian nor symmetric, and one vector a part: 64, or more so
        that there are 4096 vectors.
    parts : the approximate number of parts, or the part of each row (n,), integers from 0 on without gaps; None: by
        `size`.
    partition : the method that finds the parts, see `finelu.partition`: "aggregate" (strong couplings stay inside),
        "geometric" (bricks of a grid that A's pattern shows), "metis", "natural" (consecutive rows), "auto" (bricks, if
        there is a grid, its couplings are alike and do not jump from cell to cell, else aggregates).
    overlap : layers of rows that neighbouring parts share: restricted additive Schwarz, with symmetric weights if A is
        Hermitian or symmetric.
    coarse : "constant", or None for no coarse space.
    near_nullspace : (n, m) instead of the constant, vectors that A nearly annihilates, such as the rigid body modes of
        elasticity. Each is restricted to each part and made orthonormal; linearly dependent ones are left out.
        "auto": they are found, the same in every run. Consecutive rows with entries in the same columns, or the block
        rows of a BSR or BlockMatrix, are the unknowns of a node; parts consist of nodes, and there is a constant for
        each unknown of a node. If A is Hermitian with a positive diagonal, 16 steps of cg for A x = 0 from a random x
        show whether more is needed: then x and five more such vectors are added.
    levels : 2: the coarse matrix E is inverted, or factored on the CPU. More: E is solved by Schwarz again, with parts
        of 64 rows, and so on, up to this number of levels and while a coarse matrix has more than 512 rows, and vectors
        of at least 64 parts: for a Hermitian A with a positive diagonal by a fixed number of steps of Chebyshev, which
        leave about 0.1% of an error, else by one application. "auto": more than 2 while a coarse matrix has more than
        4096 rows on a GPU, or 8192 on the CPU, if A is Hermitian with a positive diagonal; else 2. On the CPU a coarse
        matrix of up to 32,768 rows is factored if its factors have at most 100 entries a row, as in the plane.
    combine : "balanced": P^H M^-1 P + Q with P = I - A Q (for an A that is neither Hermitian nor symmetric M^-1 P + Q);
        "additive": M^-1 + Q.
    precision : "float32" or "float64" for the factors, None for A's own. With None, local="auto" and a Hermitian A of
        double precision with a positive diagonal, L and D^-1 U of the parts (of ICT's L L^H those of the same product
        with a unit diagonal of L) are stored in single precision, and the solves compute with them in double: M changes
        by about 1e-7 of itself, and stays Hermitian.
    Facts: M is Hermitian, or definite, if the factors of `local` are.
    Cost: that of `local`; on the CPU a copy of the factors for the solves, of 6 bytes a real entry in single precision
    and 10 in double, and at most twice that, zeros included, where parts of different patterns are solved together; for
    the coarse space of K = m times parts vectors a factorization of the sparse E on the CPU,
    or K^3 operations and 8 K^2 bytes on a GPU.
    """

    arrays = ("parts", "near_nullspace")
    keeps_symmetry = keeps_hermitian = keeps_definite = True

    local: Recipe | str = AUTO
    size: int | None = None
    parts: int | Any | None = None
    partition: str = AUTO
    overlap: int = 0
    coarse: str | None = "constant"
    near_nullspace: str | Any | None = None
    levels: int | str = AUTO
    combine: str = "balanced"
    precision: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.local, str) and self.local.lower() == AUTO:
            object.__setattr__(self, "local", AUTO)
        else:
            local = recipe_of(self.local)
            object.__setattr__(self, "local", local)
            for fact in ("keeps_symmetry", "keeps_hermitian", "keeps_definite", "hermitian", "factored_on"):
                object.__setattr__(self, fact, getattr(local, fact))
        super().__post_init__()

    def factor(self, A: Any) -> SchwarzFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes, where it lives. A is not written.

        Raises MatrixError if A has no full diagonal or does not suit `local`, or if the coarse matrix has rank 0;
        ParameterError if `parts` or `near_nullspace` do not fit; ZeroPivot, naming part and row, if a part has no
        factors.
        """
        size = A.n_block if isinstance(A, BlockMatrix) else max(getattr(A, "blocksize", (1,)))
        given = checked(self, A)
        own = given.with_own_pattern()
        with own.unchanged(given.mirrored()):  # a solve may know it already
            return SchwarzFactors(self, own, size)

    def check(self) -> None:
        super().check()
        if self.size is not None:
            count("size", self.size, 1, of=self)
            if self.parts is not None:
                raise ParameterError(f"{self!r}: size and parts say the same thing twice; give one of them.")
        count("overlap", self.overlap, 0, of=self)
        choice("partition", self.partition, METHODS, of=self)
        choice("coarse", self.coarse, COARSE, of=self)
        choice("combine", self.combine, COMBINE, of=self)
        if self.levels != AUTO:
            count("levels", self.levels, 2, of=self)
        if self.coarse is None and self.levels not in (AUTO, 2):
            raise ParameterError(f"{self!r}: levels are those of a coarse space; leave coarse as it is.")
        local: Any = self.local
        if local != AUTO and not hasattr(local, "triangular"):
            raise ParameterError(no_triangles(self, local))
        if local != AUTO and local.normal:
            raise ParameterError(
                f"{self!r}: the factors of local={local!r} are those of A^H A, for least squares; take ILU0, IC0, "
                "ILUK, ILUT, ICT or another such recipe."
            )
        if local != AUTO and (local.triangular != "auto" or local.precision is not None):
            raise ParameterError(
                f"{self!r}: the parts are solved with in a way of their own, in the precision of Schwarz; leave "
                "triangular and precision of the local recipe as they are, and set Schwarz(precision=...)."
            )
        if self.near_nullspace not in (None, AUTO) and not isinstance(self.near_nullspace, ArrayParameter):
            raise ParameterError(f'{self!r}: near_nullspace must be an array (n, m), "auto", or None.')
        if self.coarse is None and self.near_nullspace is not None:
            raise ParameterError(f"{self!r}: a near null space is for a coarse space; leave coarse as it is.")
        if isinstance(self.local, MILU0) and self.coarse is not None:
            raise ParameterError(
                f"{self!r}: MILU0 keeps row sums, as the coarse space does, and both together correct twice; take "
                "coarse=None, or local=ILU0()."
            )


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

    def __init__(self, recipe: Schwarz, A: CSR, block_size: int = 1):
        self._local: Any = None
        self._form: tuple[str, bool] | None = None  # kind and definiteness of the A of these factors
        self._enriched = False  # whether smoothed vectors were added, which are too rough for a coarse matrix on levels
        self._recorded = Applications(PAYS)
        super().__init__(recipe, A, report=SchwarzReport())
        finds = recipe.near_nullspace == AUTO
        nodes = nodes_of(A, block_size) if finds else None
        self._near = _near(recipe, A) if nodes is None else constants(nodes, A)
        self._look_at(A)
        self._divide(A, nodes)
        self._make(A)
        if finds and self._definite:
            self._enrich(A, nodes)

    def _divide(self, A: CSR, nodes: Nodes | None, size: int | None = None) -> None:
        """Find the parts, of about `size` rows."""
        report, start = self._report, perf_counter()
        found = _parts(self.recipe, A, self._near, self._kind, self._definite, nodes, size)
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
        cut = A.nnz - self._local.entries if domains.rows.size == A.n else _cut(A, self.parts)
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
            "narrow": self._definite and auto and recipe.precision is None,
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

    def _coarse_space(self, A: CSR, starts: Any, rows: Any) -> CoarseSpace:
        adjoint = {"hermitian": "H", "symmetric": "T"}.get(self._kind)
        return CoarseSpace(
            *(A, self.parts, starts, rows, self._near, adjoint, self._definite),
            balanced=self.recipe.combine == "balanced",
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

    def _coarser(self) -> Schwarz | None:
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
        coarser: Schwarz = replace(recipe, local=local, levels=levels, **own)
        return coarser

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
        return not on_gpu(self.pattern.data)

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
        if R.ndim == 2 and R.shape[1] > 1 and not on_gpu(R):
            direct = out.flags.c_contiguous and not np.may_share_memory(R, out)
            X = out if direct else np.empty(R.shape, R.dtype)
            self._apply_one(np.ascontiguousarray(R), trans, X)
            if not direct:
                out[...] = X
            return
        columns = namespace(R).ascontiguousarray(R.reshape(R.shape[0], -1).T)
        X = namespace(R).empty_like(columns)
        for r, x in zip(columns, X, strict=True):
            self._apply_into(r, trans, x)
        out[...] = X.T.reshape(R.shape)

    def _apply_one(self, r: Any, trans: str, x: Any) -> None:
        """x = M^-1 r, or with a transpose; on the CPU r and x may be (n, k), row-major. Of T and H the one that the
        coarse space computes, `adjoint`, is taken directly, and the other by complex conjugation."""
        adjoint = "H" if self.coarse is None else self.coarse.adjoint
        if trans not in ("N", adjoint) and self.dtype.kind == "c":
            self._apply_one(r.conj(), adjoint, x)
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


def _cut(A: CSR, parts: Any) -> int:
    """The number of A's entries that couple rows of different parts."""
    rows = kernels_for(A.data).indices.rows_of_entries(A.indptr, A.nnz)
    return int((parts[rows] != parts[A.indices]).sum())


def usual_size(A: CSR, vectors: int, levels: bool, n: int | None = None, general: bool = False) -> int:
    """The default number of rows of a part, for this many coarse vectors a part.  levels : whether these may be any
    number, since they are solved on levels.  n : the rows that share the coarse space, if A is not all of them.
    general : whether A is neither Hermitian nor symmetric. bicgstab for flows that turn then took half of the
    iterations with 64 rows that it took with 448, on the CPU in 0.35 to 1 of the time."""
    if general and not on_gpu(A.data) and vectors == 1 and not levels:
        return max(ROWS, -(-(n or A.n) // MOST_COARSE))
    if levels and not on_gpu(A.data) and (vectors > 1 or not uneven(A)):
        return min(ROWS * vectors, LARGEST)
    fits = int(ROOM / (ROW + ENTRY * A.nnz / A.n))
    if levels:
        return max(min(fits, LARGEST), SMALLEST)
    most = MOST_COARSE if on_gpu(A.data) or vectors > 1 else MOST_SPARSE
    return max(min(max(fits, SMALLEST), LARGEST), -(-(n or A.n) * vectors // most))


def size_of_aggregates(A: CSR, usual: int) -> int:
    """The default number of rows of an aggregate on a GPU, for a definite A and one vector a part.  usual : that of
    other parts."""
    return min(usual, max(SMALLEST, A.n // AGGREGATES))


def _parts(
    recipe: Schwarz, A: CSR, near: Any, kind: str, definite: bool, nodes: Nodes | None, size: int | None
) -> tuple[Any, int, str]:
    """The part of each row (n,) int32, the number of parts, and the method that found them."""
    xp = namespace(A.data)
    if isinstance(recipe.parts, ArrayParameter):
        return *_checked_parts(recipe.parts.array, A), "given"
    free, aggregates = False, None  # whether the bricks of a grid may be larger than usual; the size of aggregates
    if recipe.parts is None:
        levels = recipe.coarse is not None and (definite if recipe.levels == AUTO else recipe.levels != 2)
        usual, vectors = not (size or recipe.size), 1 if near is None else near.shape[1]
        free = levels and near is None and recipe.levels == AUTO and usual
        general = kind == "general" and recipe.coarse is not None
        size = size or recipe.size or usual_size(A, vectors, levels, general=general)
        if on_gpu(A.data) and usual and vectors == 1 and definite and recipe.coarse is not None:
            aggregates = size_of_aggregates(A, size)
    else:
        number = count("parts", recipe.parts, 1, A.n, of=recipe)
        size = -(-A.n // number)
    if nodes is None:
        found = partition(A, size, recipe.partition, of_aggregates=aggregates)
        if free and found.grid is not None and (larger := size_in_space(A, found, LARGEST)):
            found = bricks(A, found.grid, larger)
        return xp.asarray(found.parts), found.count, found.method
    found = partition(nodes.matrix(A), max(size // nodes.size, 1), recipe.partition)
    return xp.asarray(found.parts)[nodes.of_rows(A)], found.count, found.method


def _checked_parts(parts: Any, A: CSR) -> tuple[Any, int]:
    host = to_host(parts)
    if host.shape != (A.n,) or host.dtype.kind not in "iu":
        raise ParameterError(
            f"parts has shape {host.shape} and dtype {host.dtype}; an integer for each of A's {A.n} rows is needed."
        )
    if host.min() < 0:
        raise ParameterError(f"parts[{int(host.argmin())}] is {host.min()}; parts are counted from 0 on.")
    number = int(host.max()) + 1
    if number > A.n or (gaps := np.flatnonzero(np.bincount(host, minlength=number) == 0)).size:
        first = f"part {gaps[0]} has no row" if number <= A.n else f"there are more parts, {number}, than rows"
        raise ParameterError(f"parts has gaps: {first}; number them 0, 1, ... without gaps.")
    return namespace(A.data).asarray(host.astype(np.int32)), number


def _near(recipe: Schwarz, A: CSR) -> Any:
    """The near null space on the device of A, checked; None for the constant."""
    if not isinstance(recipe.near_nullspace, ArrayParameter):
        return None
    B = dense_numbers(recipe.near_nullspace.array, "near_nullspace")
    B = B.reshape(-1, 1) if B.ndim == 1 else B
    if B.ndim != 2 or B.shape[0] != A.n or B.shape[1] == 0:
        raise ParameterError(f"near_nullspace has shape {B.shape}; ({A.n}, m) is needed: a row for each row of A.")
    if B.dtype.kind == "c" and A.dtype.kind != "c":
        raise ParameterError("near_nullspace is complex, but A is real; give its real and imaginary parts as columns.")
    host = to_host(B)
    if host.dtype.kind not in "fc":
        host = host.astype(np.float64)
    if not np.isfinite(host).all():
        raise ParameterError(f"near_nullspace holds NaN or Inf in row {int(np.argmin(np.isfinite(host).all(axis=1)))}.")
    if not host.any():
        raise ParameterError("near_nullspace is 0: no vector is left; give vectors that A nearly annihilates.")
    largest = abs(host).max(axis=0)
    host = host / np.where(largest > 0, largest, 1)  # their squares are numbers of A's dtype, too
    return namespace(A.data).asarray(host)
