"""Dense rows of a matrix are moved last if a recipe's factors would fill in because of them."""

from __future__ import annotations

from finelu.factors import Arrangement
from finelu.kernels.operands import CSR
from finelu.ordering import Permutation, dense_last, permuted


class DenseLast:
    """The order in which A is factored: its own, or with dense rows last; see `finelu.ordering.dense_last`.

    arranged : the Arrangement of the factors; None for A's own order.  moved : the number of moved rows, or None.
    """

    arranged: Arrangement | None = None
    moved: int | None = None
    _permuted: Permutation | None = None

    def __init__(self, A: CSR):
        found = dense_last(A)
        if found is not None:
            order, self.moved = found
            self._permuted = permuted(A, order)
            self.arranged = Arrangement(self._permuted.order, self._permuted.order)

    def matrix(self, A: CSR) -> CSR:
        """An A of the analysed pattern in the order of the factors."""
        return A if self._permuted is None else self._permuted.matrix(A)

    def row(self, i: int) -> int:
        """The row of A that is row i of the factors."""
        return i if self.arranged is None else self.arranged.row(i)
