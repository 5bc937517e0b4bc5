"""Factors without their smallest entries, so that a wanted number remains.

H. Anzt, E. Chow, J. Dongarra: ParILUT - a new parallel threshold ILU factorization, 2018, section 3.3; entries of L and
of U are weighted, which that paper does not do.
"""

from __future__ import annotations

from typing import Any

from finelu.device import namespace
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR


def sizes_of(F: CSR) -> tuple[int, int]:
    """Entries below and above the diagonal."""
    return F.below, F.nnz - F.n - F.below


class Dropping:
    """Drops the smallest entries of L and U, or of a Cholesky factor.

    Entries are compared as |l_ij| sqrt|u_jj| / w_i and |u_ij| / (sqrt|u_ii| w_j) with w_i = (|u_ii| max(|u_ii|,
    |a_ii|))^(1/4), for Cholesky as |l_ij| / w_i with u_ii = l_ii^2. For a Hermitian A with a positive diagonal the
    three are the same, and no symmetric scaling of A changes them. With w_i = sqrt|u_ii| they would be, in first order,
    the change of L^-1 A U^-1 by a dropped entry; a larger a_ii, the pivot before fill, prevents that one small pivot
    keeps all entries of its row.
    weighted : if not, entries are compared as |l_ij| and |u_ij|, as in that paper.
    """

    def __init__(self, cholesky: bool, exact: bool = True, weighted: bool = True):
        self._cholesky, self._exact, self._weighted = cholesky, exact, weighted

    def reduced(self, F: CSR, sizes: list[int], diagonal: Any) -> CSR:
        """F without its smallest entries, of `sizes` below and above the diagonal; diagonal (n,) : that of A."""
        compared = self._compared(F, diagonal, namespace(F.data).empty(F.nnz, F.dtype)) if self._weighted else F
        smaller: CSR = kernels_for(F.data).pattern.remove(compared, *self._thresholds(compared, sizes), F.data)
        return smaller

    def reduced_pattern(self, F: CSR, sizes: list[int], diagonal: Any) -> CSR:
        """As `reduced`, if only the pattern is wanted: F's values are overwritten, and the result has other values."""
        compared = self._compared(F, diagonal, F.data)
        smaller: CSR = kernels_for(F.data).pattern.remove(compared, *self._thresholds(compared, sizes))
        return smaller

    def _compared(self, F: CSR, diagonal: Any, out: Any) -> CSR:
        """The numbers by which F's entries are compared, in `out` (nnz,), which may be F's own values."""
        scaling = kernels_for(F.data).scaling
        roots, by_weights, by_roots = scaling.dropping_weights(F, diagonal, self._cholesky)
        below, above = (by_weights, None if self._cholesky else roots), (by_roots, by_weights)
        return F.with_values(scaling.scale(F, out, below, above))

    def _thresholds(self, F: CSR, sizes: list[int]) -> tuple[Any, list[int]]:
        """(least, drop) for `remove`: thresholds that leave about `sizes` entries below and above the diagonal."""
        xp, kernels = namespace(F.data), kernels_for(F.data)
        least, drop = xp.zeros(2, F.data.real.dtype), [0, 0]
        sides = kernels.pattern.magnitudes(F)
        selection = kernels.selection.Selection(max(v.size for v in sides), least.dtype, exact=self._exact)
        for side, (values, size) in enumerate(zip(sides, sizes, strict=True)):
            if values.size > size:
                drop[side] = values.size - size
                selection.out = least[side : side + 1]
                selection.select(values, drop[side])
        return least, drop
