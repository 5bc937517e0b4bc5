"""The elimination of ILU(0) and IC(0) on any pattern, with a diagonal that is moved where pivots fail.

Y. Saad, Iterative Methods for Sparse Linear Systems, 2003, Algorithm 10.4; for the shift T. A. Manteuffel, An
incomplete factorization technique for positive definite linear systems, 1980.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from finelu.device import namespace
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR

SHIFTS = (0.0, *(1e-3 * 4.0**k for k in range(10)))  # times the diagonal; tried one after the other
SMALL_SHIFTS = 6  # of them that LU tries for the signs of its pivots: with a larger one M is too far from A


@dataclass(frozen=True)
class Eliminated:
    """F, or None where no shift gave factors.

    shift : number of the shift in SHIFTS.  signs : each pivot has the sign of its diagonal entry.
    row, pivot : the first pivot that failed, or lost its sign, with the first shift that was tried; -1: none did.
    """

    F: CSR | None
    shift: int
    signs: bool
    row: int = -1
    pivot: Any = None


class PatternElimination:
    """(L U)_ij = b_ij, or (L L^H)_ij = b_ij, on a pattern that is given; factored as often as there are values.

    pattern : a CSR with a full diagonal, of Cholesky a lower triangle; its values are not read.
    """

    def __init__(self, pattern: CSR, cholesky: bool):
        self.pattern, self._cholesky, self._plan = pattern, cholesky, None

    def factor(self, B: CSR, shift: int = 0, signs: bool = True) -> Eliminated:
        """Factors of B with its diagonal times 1 + the first shift that does, from SHIFTS[shift] on.

        It does where Cholesky has positive pivots; where LU has pivots that can be divided by and, with `signs`, have
        the sign (if complex, are in the half plane) of their diagonal entries, as those of the complete factorization
        have if A is definite. If no small shift keeps the signs, the first factors that were found are taken.
        """
        G, diag, kernels = self.pattern, self.pattern.diag, kernels_for(self.pattern.data)
        if self._plan is None or self._plan.provisional:
            analysis = kernels.elimination.ic0_analysis if self._cholesky else kernels.elimination.ilu0_analysis
            once, self._plan = self._plan is None, None
            self._plan = analysis(G, "auto", once)
        eliminate = kernels.elimination.ic0 if self._cholesky else kernels.elimination.ilu0
        values: Any = kernels.pattern.values_at(B, G)
        b, usable = values[diag], None
        row, pivot = -1, None
        for number in range(shift, len(SHIFTS)):
            if usable is not None and number >= SMALL_SHIFTS:
                break
            if number > 0:
                values[diag] = b * b.real.dtype.type(1 + SHIFTS[number])
            data = namespace(values).empty(G.nnz, values.dtype)
            bad = kernels.vectors.first_bad(eliminate(self._plan, values, data))
            lost = -1 if bad >= 0 or self._cholesky or not signs else _first_lost(data[diag], b)
            if bad < 0 and lost < 0:
                return Eliminated(G.with_values(data), number, signs, row, pivot)
            if row < 0:
                row = max(bad, lost)
                pivot = data[int(diag[row])]
            if bad < 0 and usable is None:
                usable = Eliminated(G.with_values(data), number, False, row, pivot)
        return Eliminated(None, 0, signs, row, pivot) if usable is None else usable


def _first_lost(pivots: Any, b: Any) -> int:
    """The first row whose pivot is not on the side of zero where its diagonal entry is, or -1."""
    lost = (pivots * b.conj()).real <= 0
    return int(lost.argmax()) if bool(lost.any()) else -1
