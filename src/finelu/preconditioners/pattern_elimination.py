"""The elimination of ILU(0) and IC(0) on any pattern, with a diagonal that is shifted if pivots fail.

Y. Saad, Iterative Methods for Sparse Linear Systems, 2003, Algorithm 10.4; for the shift T. A. Manteuffel, An
incomplete factorization technique for positive definite linear systems, 1980.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from finelu import deadline
from finelu.device import copied, namespace
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR

SHIFTS = (0.0, *(1e-3 * 4.0**k for k in range(10)))  # times the diagonal; tried one after the other
SMALL_SHIFTS = 6  # the number of these that LU tries for the signs of its pivots: larger ones move M too far from A


@dataclass(frozen=True, eq=False)
class Eliminated:
    """The elimination that made factors: elimination.factor(B, begin, signs).

    shift : index of the shift in SHIFTS.  kept : each pivot has the sign of its diagonal entry.
    row : the first row whose pivot failed, or lost its sign, without a shift; -1 if there was none.
    lost : the first row of the factors whose real pivot does not have the sign of its diagonal entry; -1 if there is
        none.
    """

    elimination: PatternElimination
    begin: int
    signs: bool
    shift: int
    kept: bool
    row: int = -1
    lost: int = -1

    @property
    def next(self) -> tuple[int, bool]:
        """(shift, signs) with which the elimination of a similar matrix should begin."""
        return max(self.shift - 1, 0), self.kept


class NoPivots(Exception):
    """No shift gave factors; row, pivot: of the first failure without a shift."""

    def __init__(self, row: int, pivot: Any):
        super().__init__(row)
        self.row, self.pivot = row, pivot


class PatternElimination:
    """(L U)_ij = b_ij, or (L L^H)_ij = b_ij, on a pattern that is given; factored as often as there are values.

    pattern : a CSR with a full diagonal, of Cholesky a lower triangle; its values are not read.
    """

    def __init__(self, pattern: CSR, cholesky: bool):
        no_values = namespace(pattern.data).broadcast_to(copied(pattern.data[:1]), (pattern.nnz,))  # one for all
        self.pattern = pattern.with_values(no_values)
        self._cholesky, self._plan, self._factorizations = cholesky, None, 0

    def factor(self, B: CSR, begin: int = 0, signs: bool = True) -> tuple[CSR, Eliminated]:
        """Factors of B with its diagonal times 1 + the first successful shift: 0, then SHIFTS[begin] and those after.

        A shift is successful if Cholesky has positive pivots, or if LU has usable pivots which, for real values and
        with `signs`, have the signs of their diagonal entries, as in the complete factorization of a definite A. If no
        small shift keeps the signs, the first factors that were found are taken. Raises NoPivots.
        """
        G, diag, kernels = self.pattern, self.pattern.diag, kernels_for(self.pattern.data)
        if self._plan is None or 0 < self._plan.provisional <= self._factorizations:
            analysis = kernels.elimination.ic0_analysis if self._cholesky else kernels.elimination.ilu0_analysis
            once, self._plan = self._plan is None, None
            self._plan = analysis(G, "auto", once)
        self._factorizations += 1
        eliminate = kernels.elimination.ic0 if self._cholesky else kernels.elimination.ilu0
        values: Any = kernels.pattern.values_at(B, G)
        look = not self._cholesky and values.dtype.kind != "c"
        b, usable = kernels.vectors.gather(values, diag), None
        row, pivot = -1, None
        for number in (0, *range(max(begin, 1), len(SHIFTS))):
            if usable is not None and number >= SMALL_SHIFTS:
                break
            deadline.check()
            if number > 0:
                values[diag] = b * b.real.dtype.type(1 + SHIFTS[number])
            data = namespace(values).empty(G.nnz, values.dtype)
            bad = kernels.vectors.first_bad(eliminate(self._plan, values, data))
            lost = kernels.vectors.first_of_other_sign(data, diag, b) if look and bad < 0 else -1
            if bad < 0 and (lost < 0 or not signs):
                return G.with_values(data), Eliminated(self, begin, signs, number, signs, row, lost)
            if row < 0:
                row = max(bad, lost)
                pivot = data[int(diag[row])]
            if bad < 0 and usable is None:
                usable = G.with_values(data), Eliminated(self, begin, signs, number, False, row, lost)
        if usable is None:
            raise NoPivots(row, pivot)
        return usable
