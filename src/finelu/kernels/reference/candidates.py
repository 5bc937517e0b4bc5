"""What ParILUT may add to its factors. The specification."""

from __future__ import annotations

import numpy as np

from finelu.kernels.reference.sweeps import product_row, row_of


def candidates(A, F, columns=None, least=0.0):
    """The candidates of F, row by row: the places of A and of the product L U that F has not, with R = A - L U there.

    Products l_ik u_kj of magnitude below `least` make no candidate of (i, j), but count in r_ij if another does. Of
    Cholesky (columns given) the lower triangle. Returns indptr (n + 1,), indices ascending in a row, values; squares
    (2, n) float64: sums of |r_ij|^2 in row i over the pattern of F, and over the candidates.
    """
    indptr, indices, values, squares = [0], [], [], np.zeros((2, F.n))
    for i in range(F.n):
        mine = {int(j) for j in F.indices[F.indptr[i] : F.indptr[i + 1]]}
        r = row_of(A, i)
        wanted = set(r) - mine
        for (_, j), product in product_row(F, i, columns):
            r[j] = r.get(j, F.data.dtype.type(0)) - product
            if j not in mine and abs(product) >= least:
                wanted.add(j)
        for p in range(F.indptr[i], F.indptr[i + 1]):
            j = int(F.indices[p])
            held = F.data[p] * F.data[F.diag[j]] if j < i else F.data[p] if columns is None else abs(F.data[p]) ** 2
            squares[0, i] += abs(r.get(j, 0) - held) ** 2
        for j in sorted(wanted):
            indices.append(j)
            values.append(r[j])
            squares[1, i] += abs(r[j]) ** 2
        indptr.append(len(indices))
    types = F.indptr.dtype, F.indices.dtype, F.data.dtype
    return *(np.array(a, t) for a, t in zip((indptr, indices, values), types, strict=True)), squares
