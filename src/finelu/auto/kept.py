"""Complete factors of small matrices, kept for the next `solve` with the same entries, which then neither looks at its
matrix nor factors it. x has the same bits, since nothing of other values has a part in these factors."""

from __future__ import annotations

from typing import Any, NamedTuple

from finelu.auto.choose import IS_SMALL
from finelu.auto.ladder import Ladder
from finelu.device import on_gpu
from finelu.matrix import CSR
from finelu.matrix.traits import MatrixTraits
from finelu.preconditioners.direct.klu import ENTRY, KLU, WORTH
from finelu.recent import RECENT, equal
from finelu.result import Solution

KIND = "factors of solve"  # of a pattern, in RECENT


class Kept(NamedTuple):
    """A matrix of some pattern: its values, traits and factors."""

    data: Any
    traits: MatrixTraits
    factors: Any


def kept_for(A: CSR) -> Kept | None:
    """The factors of a matrix with the entries of A, and its traits; None if there are none. Factors of other values with
    its pattern are dropped. Cost: a comparison of its entries."""
    if on_gpu(A.data):
        return None
    found: Kept | None = RECENT.get(KIND, A.indptr, A.indices)
    if found is None or (found.data.dtype == A.dtype and equal(found.data, A.data)):
        return found
    RECENT.drop(KIND, A.indptr, A.indices)
    return None


def keep(A: CSR, ladder: Ladder, solution: Solution) -> None:
    """Keep the factors that solved a system with A, if the direct rung came first, as for all right-hand sides, and if
    they are KLU's, with fewer entries than those that serve for other values."""
    F = ladder.factors.get("direct")
    first = solution.converged and len(solution.attempts) == 1 and ladder.rungs["direct"].reason == IS_SMALL
    if first and F is not None and isinstance(F._lu, KLU) and F.nnz < WORTH and not F.recipe.shift:
        kept = Kept(A.data.copy(), ladder.traits, F)
        RECENT.keep(KIND, A.indptr, A.indices, kept, kept.data.nbytes + ENTRY * F.nnz)
