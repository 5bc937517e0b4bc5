"""Jacobi and block Jacobi: the baselines that every other recipe has to beat."""

from __future__ import annotations

from dataclasses import dataclass

from finelu.errors import ParameterError, ZeroPivot
from finelu.factors import Factors
from finelu.kernels import namespace
from finelu.matrix import CSR, as_csr
from finelu.preconditioners.recipe import Recipe


@dataclass(frozen=True, kw_only=True, repr=False)
class Jacobi(Recipe):
    """M = diag(A). Cost: O(n), fully parallel. Source: Saad 2003, section 4.1."""

    def factor(self, A) -> JacobiFactors:
        """Raises MatrixError where A has no full diagonal, ZeroPivot, naming the row, where an entry of it is 0."""
        return JacobiFactors(self, as_csr(A))


class JacobiFactors(Factors):
    """M = diag(A), kept as its reciprocal."""

    def __init__(self, recipe: Jacobi, A: CSR):
        super().__init__(recipe, A)
        self._refresh(A)

    def _refresh(self, A: CSR) -> None:
        xp = namespace(A.data)
        d = A.data[A.diag]
        bad = xp.flatnonzero(abs(d) < xp.finfo(A.dtype).tiny)
        if bad.size:
            raise ZeroPivot(self.recipe, int(bad[0]), d[bad[0]])
        self._inverse = 1 / d

    def _apply(self, R, trans: str):
        inverse = self._inverse.conj() if trans == "H" else self._inverse
        return (R.T * inverse).T

    @property
    def nnz(self) -> int:
        return self.shape[0]


@dataclass(frozen=True, kw_only=True, repr=False)
class BlockJacobi(Recipe):
    """M = the diagonal blocks of A, `block_size` rows each (the last may have fewer), inverted by LAPACK or cuSOLVER.

    Cost: O(n block_size^2) work and O(n block_size) memory. Source: Saad 2003, section 4.1.1.
    """

    block_size: int = 4

    def factor(self, A) -> BlockJacobiFactors:
        """Raises MatrixError where A has no full diagonal, ZeroPivot, naming the first row of a singular block."""
        if not isinstance(self.block_size, int) or self.block_size < 1:
            raise ParameterError(f"{self!r}: block_size must be an integer >= 1.")
        return BlockJacobiFactors(self, as_csr(A))


class BlockJacobiFactors(Factors):
    """M = diag(B_0, B_1, ...), kept as the inverses (blocks, size, size); the last block is filled up by ones."""

    def __init__(self, recipe: BlockJacobi, A: CSR):
        super().__init__(recipe, A)
        xp, size = namespace(A.data), recipe.block_size
        rows = xp.searchsorted(A.indptr, xp.arange(A.nnz, dtype=A.indptr.dtype), side="right") - 1
        inside = rows // size == A.indices // size
        self._places = xp.flatnonzero(inside)
        rows, columns = rows[inside], A.indices[inside]
        self._where = (rows // size, rows % size, columns % size)
        self._refresh(A)

    def _refresh(self, A: CSR) -> None:
        xp, size = namespace(A.data), self.recipe.block_size
        count = -(-A.n // size)
        blocks = xp.zeros((count, size, size), A.dtype)
        blocks[self._where] = A.data[self._places]
        fill = xp.arange(A.n, count * size) - (count - 1) * size
        blocks[-1, fill, fill] = 1
        # Scaled by rows, for good pivots and a determinant whose size says something: LAPACK stops at exact zeros only.
        scale = abs(blocks).max(axis=2)
        empty = scale < xp.finfo(A.dtype).tiny
        scaled = blocks / xp.where(empty, 1, scale)[:, :, None]
        determinant = xp.linalg.slogdet(scaled)[1]
        singular = empty.any(axis=1) | ~(determinant > size * xp.log(xp.finfo(A.dtype).eps))
        bad = xp.flatnonzero(singular)
        if bad.size:
            raise ZeroPivot(self.recipe, int(bad[0]) * size, "of a block that", "is singular to working precision")
        self._inverse = xp.linalg.inv(scaled) / scale[:, None, :]

    def _apply(self, R, trans: str):
        xp, size = namespace(R), self.recipe.block_size
        count = self._inverse.shape[0]
        inverse = self._inverse
        if trans != "N":
            inverse = inverse.transpose(0, 2, 1)
        if trans == "H":
            inverse = inverse.conj()
        padded = xp.zeros((count * size, R.size // R.shape[0]), R.dtype)
        padded[: R.shape[0]] = R.reshape(R.shape[0], -1)
        return (inverse @ padded.reshape(count, size, -1)).reshape(count * size, -1)[: R.shape[0]].reshape(R.shape)

    @property
    def nnz(self) -> int:
        return int(self._places.size)
