"""The recipe of a complete sparse L U, for systems that are small enough."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from finelu.device import on_gpu
from finelu.errors import (
    FineluError,
    ParameterError,
)
from finelu.matrix.batch import Batch
from finelu.ordering import ORDERINGS
from finelu.preconditioners.batch import Prepared, complete_plan
from finelu.preconditioners.direct import cudss
from finelu.preconditioners.direct.analysis import COLAMD
from finelu.preconditioners.direct.factors import SparseLUFactors
from finelu.preconditioners.recipe import ON_CPU, Recipe, checked
from finelu.validation import choice, flag

BACKENDS = ("auto", "superlu", "klu", "feral", "pardiso", "cudss")


@dataclass(frozen=True, kw_only=True, repr=False)
class SparseLU(Recipe):
    """Complete L U of A, or L D L^T of a symmetric A, by a library, in a fill-reducing order.

    backend : "auto", or one of these:

        backend     for                                      installed by               orderings       matching
        "superlu"   any matrix                               SciPy                      all, "colamd"   any
        "klu"       sparse factors, as in circuits           finelu[direct]             all, "colamd"   only True
        "feral"     real symmetric, factors with much fill   finelu[direct]             amd, nd         never
        "pardiso"   any matrix, factors with much fill       finelu[mkl]                nd, mmd         if indefinite
        "cudss"     a matrix on a GPU, kept there            finelu[cudss12], [cudss13] nd, amd, None   any

        KLU, feral and PARDISO compute in double precision. With ordering="auto" each library uses its own best order,
        and KLU uses AMD. "auto" is the first of these that is installed and whose row holds. For a matrix on the host
        the rows count only with the default matching, shift and ordering; otherwise "auto" is SuperLU:

        "cudss"     A is on a GPU, cuDSS takes the ordering, and its factors are good
        "pardiso"   at least 1000 flops a row are counted, and A is symmetric, also a complex A = A^T; or 20000, and no
                    matching is needed
        "feral"     without PARDISO: at least 10000 flops a row are counted, and A is real and symmetric
        "klu"       at most 65 flops are counted for each entry of the factors
        "superlu"   otherwise

        PARDISO then uses the order by which the flops were counted, unless a dissection pays or a weak diagonal is
        matched. It matches only if pivots are too small without a matching. If it still has to replace pivots, "auto"
        uses feral or SuperLU instead; if PARDISO was asked for, `F.report` warns.
    matching : whether rows are permuted, and A is scaled, so that the diagonal holds the largest entries. None matches
        if the diagonal has gaps or zeros, or if in one of a hundred columns its entry is less than a tenth of the
        largest: SuperLU would then exchange rows, which fills in more than was counted.
        Exception: if shift = 0, such an A with up to 2000 rows and 30000 entries, and at most 20 entries per row in the
        mean, is not matched. It is scaled by its largest entries and factored with SuperLU's COLAMD and row exchanges,
        which takes less time.
        Another exception: if A has a symmetric pattern, and elimination in the order "auto" fills the gaps and zeros
        before they are pivots, as those of saddle points whose multipliers have many unknowns each, nothing is matched.
        If no matching is complete, and shift > 0, the matching is as large as possible, and nothing is scaled.
    ordering : the order of the rows and columns, one of:
        a name of `finelu.ordering`: that order of rows and columns together.
        "auto": the order of `finelu.ordering.with_little_fill`; in SuperLU, for up to 400 rows, its own minimum
        degree of A + A^T, without a count.
        "colamd": SuperLU's own order of the columns alone, with partial pivoting, for patterns that are far from
        symmetric.
    shift : moves the diagonal of the permuted and scaled A away from zero by this fraction of it; a zero entry there
        becomes this fraction of the largest entry of all.
    precision : "float32" or "float64" for the factored matrix, None for the precision of A.
    deterministic : for backend "cudss": the same bits each time. It then solves for one right-hand side after the
        other.

    Stored zeros are dropped, and numbers near the ends of the range are scaled by powers of two, in double precision.
    `factor` and `update` try solves with the factors. If these leave more than rounding in a row, the first of these
    remedies that helps is used, and `F.report` says so; if none helps, it warns:
    - a step of refinement in each solve;
    - factors from nothing, if these began from those of earlier matrices with this pattern;
    - factors of a scaled A;
    - with "auto", SuperLU;
    - a matching.
    A Krylov method with these factors removes the errors of rounding and small pivots in one or two iterations.
    Factors made by cuDSS are on the GPU. All others are on the host, and are applied there: a right-hand side on the
    GPU is copied to the host, and its solution back.
    Cost: `finelu.ordering.complete_fill` counts it beforehand. Source: X. S. Li: An overview of SuperLU, 2005; X. Li,
    J. W. Demmel: Making sparse Gaussian elimination scalable by static pivoting, 1998.
    """

    name = "sparse_lu"
    batched = ()
    full_diagonal = False
    factored_on = applied_on = ON_CPU

    matching: bool | None = None
    ordering: str | None = "auto"
    backend: str = "auto"
    shift: float = 0.0
    precision: str | None = None
    deterministic: bool = False

    @property
    def complete(self) -> bool:
        return self.shift == 0

    def check(self) -> None:
        super().check()
        flag("matching", self.matching, optional=True, of=self)
        choice("ordering", self.ordering, (*ORDERINGS, COLAMD), of=self)
        choice("backend", self.backend, BACKENDS, of=self)
        flag("deterministic", self.deterministic, of=self)
        if self.deterministic and self.backend != "cudss":
            raise ParameterError(f"{self!r}: deterministic=True is for backend='cudss'.")

    def prepared(self, batch: Batch) -> Prepared:
        """A matching, a scaling and an order with little fill, chosen once; the rows of no matrix are exchanged."""
        return complete_plan(batch)

    def factor(self, A: Any) -> SparseLUFactors | cudss.CudssFactors:
        """Factor A (n, n), any matrix that `finelu.as_csr` accepts; its diagonal may have gaps. A is not written.

        Raises StructurallySingular or SingularMatrix if A is singular, MemoryError if the factors do not fit in 80% of
        the free memory, OutOfTime if they take longer than the time limit. What libraries allow of that:

        backend     time                                          entries are counted before they are made
        "superlu"   its call is abandoned, and ends by itself     yes, unless the order is that of columns alone
        "klu"       it blocks all other threads, so it does not   yes, likewise, or that of A
                    begin if, at a rate that it hardly exceeds,
                    it is expected to take longer; with
                    "colamd" as counted for its "auto"
        "feral"     its call is abandoned, and ends by itself     yes, by minimum degree
        "pardiso"   its call is abandoned, and ends by itself     yes, by itself once it has ordered
        "cudss"     it is waited for                              yes, likewise

        A count is that of pivots on the diagonal: others may fill in more. If `within`, or the memory_limit of `solve`,
        sets a limit, factors with more entries are dropped once they are made, and a MemoryError says so. A Ctrl-C
        takes effect as the end of the time does; in KLU after its call.
        """
        return self.within(A, None)

    def within(self, A: Any, most: float | None) -> SparseLUFactors | cudss.CudssFactors:
        """`factor` with at most that many entries of the factors; None: what 80% of the free memory holds."""
        A = checked(self, A)
        if self.backend == "cudss":
            return cudss.CudssFactors(self, A, np.inf if most is None else most)
        if self.backend != "auto" or not on_gpu(A.data):
            return SparseLUFactors(self, A, most=most, trial=True)
        try:
            return cudss.CudssFactors(self, A, np.inf if most is None else most)
        except (FineluError, MemoryError) as error:
            reason = str(error)
        factors = SparseLUFactors(self, A, most=most, trial=True)
        factors.report.reason = f"on the CPU: {reason}"
        return factors
