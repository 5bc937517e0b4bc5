"""Patterns that are easy or hard to solve in parallel."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from finelu.device import Dtype
from finelu.errors import ParameterError, meant
from finelu.gallery.building import positive, sorted_csr, stencil
from finelu.matrix import DTYPES


def random_dominant(
    n: int, density: float = 0.01, seed: int = 0, dtype: Dtype = "float64", hermitian: bool = False
) -> sp.csr_matrix:
    """A random strictly diagonally dominant matrix: a_ii = 1 + sum of |a_ij|, so every ILU(0) of it exists.

    density : number of places that are drawn, as a part of n^2, 0 to 1 (some coincide, so a little fewer are filled).
    Off-diagonal values are uniform in (-1, 1), real and imaginary part each; values at one place are summed.
    dtype : float32, float64, complex64 or complex128. hermitian : A = A^H, positive definite.
    Source: Meijerink and van der Vorst 1977; Manteuffel 1980 (H-matrices have an incomplete factorization).
    """
    positive(n=n)
    if not 0 <= density <= 1:
        raise ParameterError(f"density = {density} is outside 0..1.")
    if dtype not in DTYPES:
        raise ParameterError(f"dtype = {dtype!r} is not one of {', '.join(DTYPES)}." + meant(dtype, DTYPES))
    rng = np.random.default_rng(seed)
    i, j = rng.integers(0, n, (2, round(density * n * n)))
    i, j = i[i != j], j[i != j]
    data = rng.uniform(-1, 1, i.size)
    if np.dtype(dtype).kind == "c":
        data = data + 1j * rng.uniform(-1, 1, i.size)
    R = sp.coo_matrix((data, (i, j)), shape=(n, n)).tocsr()
    if hermitian:
        R = 0.5 * (R + R.conj().T)
    return sorted_csr(R + sp.diags(1.0 + np.asarray(abs(R).sum(axis=1)).ravel())).astype(dtype)


def tridiagonal(n: int, lower: float = -1.0, diagonal: float = 2.0, upper: float = -1.0) -> sp.csr_matrix:
    """Constant entries on the diagonal and next to it; by default -u'' on n inner points, symmetric positive definite.

    The worst case for level sets: n levels of one row. Source: Golub and Van Loan 2013, section 4.8.
    """
    return stencil(n, 1, 1, {(-1, 0, 0): lower, (0, 0, 0): diagonal, (1, 0, 0): upper})


def bidiagonal(n: int, lower: float = -1.0, diagonal: float = 2.0) -> sp.csr_matrix:
    """Lower bidiagonal with constant entries: a triangular matrix whose solve is a chain of n steps."""
    return stencil(n, 1, 1, {(-1, 0, 0): lower, (0, 0, 0): diagonal})


def arrow(n: int) -> sp.csr_matrix:
    """Dense last row and column of -1, elsewhere diagonal: 2 levels, and one row as long as the matrix.

    The diagonal is 2, and n in the last row: symmetric positive definite, and without fill: ILU(0) is the full LU.
    Source: Davis, Direct Methods for Sparse Linear Systems, 2006, chapter 7 (fill-reducing orders).
    """
    positive(n=n)
    rest, last = np.arange(n - 1), np.full(n - 1, n - 1)
    i, j = np.concatenate([rest, last, rest, [n - 1]]), np.concatenate([last, rest, rest, [n - 1]])
    data = np.concatenate([np.full(2 * (n - 1), -1.0), np.full(n - 1, 2.0), [float(n)]])
    return sorted_csr(sp.coo_matrix((data, (i, j)), shape=(n, n)))
