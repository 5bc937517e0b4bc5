"""Complete factors of small matrices, kept for the next `solve` with their pattern: with the same entries it neither
looks at its matrix nor factors it, and with others it updates them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from finelu.auto.choose import IS_SMALL
from finelu.auto.ladder import Ladder
from finelu.device import on_gpu
from finelu.errors import FineluError
from finelu.matrix import CSR
from finelu.matrix.traits import MatrixTraits
from finelu.preconditioners.direct.klu import ENTRY, KLU
from finelu.recent import RECENT, equal
from finelu.result import Solution

KIND = "factors of solve"  # of a pattern, in RECENT: a list of at most one `Kept`


class Kept(NamedTuple):
    """A matrix of some pattern: its values, traits and factors. One call has them at a time."""

    data: Any
    traits: MatrixTraits
    factors: Any

    def has_values_of(self, A: CSR) -> bool:
        return self.data.dtype == A.dtype and equal(self.data, A.data)


def place_for(A: CSR) -> list[Kept] | None:
    """The list for factors of matrices with the pattern of A; None if there is none. Cost: one pass over the
    pattern."""
    return None if on_gpu(A.data) else RECENT.get(KIND, A.indptr, A.indices)


def taken(place: list[Kept]) -> Kept | None:
    """The factors that are there, which no other call then takes."""
    try:
        return place.pop()
    except IndexError:
        return None


def give(kept: Kept, A: CSR, ladder: Ladder) -> None:
    """Give the factors to the ladder of A. For other values they are updated, if the ladder begins with such factors;
    if A has none, the ladder finds that out by itself."""
    F, direct = kept.factors, ladder.rungs["direct"]
    if kept.traits is not ladder.traits:
        alike = direct.reason == IS_SMALL and direct.recipes[0] == F.recipe and kept.traits.kind == ladder.traits.kind
        limited = min(ladder.most, ladder.costs.deadline) < math.inf
        if not alike or kept.data.dtype != A.dtype or limited or F.recipe.shift or not A.data.all():
            return
        try:
            with A.unchanged(ladder.traits.mirrored):
                F.renew(A)
        except (FineluError, ArithmeticError, np.linalg.LinAlgError, MemoryError):
            return
    if not F.from_earlier or ladder.most == math.inf:
        ladder.factors["direct"] = F


def keep(A: CSR, ladder: Ladder, solution: Solution, place: list[Kept] | None) -> None:
    """Keep the factors that solved a system with A, if the direct rung came first, as for all right-hand sides, and if
    they are KLU's.  place : as `place_for` gave it."""
    F = ladder.factors.get("direct")
    first = solution.converged and len(solution.attempts) == 1 and ladder.rungs["direct"].reason == IS_SMALL
    if not first or F is None or not isinstance(F._lu, KLU) or F.recipe.shift:
        return
    kept = Kept(A.data.copy(), ladder.traits, F)
    if place is None:
        RECENT.keep(KIND, A.indptr, A.indices, [kept], kept.data.nbytes + ENTRY * F.nnz)
    else:
        place[:] = [kept]
