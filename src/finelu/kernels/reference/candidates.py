"""The candidates that ParILUT may add to its factors. The specification."""

from __future__ import annotations

import numpy as np

from finelu.kernels.reference.sweeps import product_row, row_of


def candidates(A, F, columns=None, least=0.0, most=None):
    """The candidates of F, row by row: the places of A and of the product L U outside of F, with R = A - L U there.

    Places outside of A are left out if all products l_ik u_kj there are smaller in magnitude than `least`. most : if
    there would be more candidates, `least` is raised until there are not; those of A stay. (Here it is raised to the
    smallest sufficient value; the other forms stop at a somewhat larger one.) For Cholesky (columns given) only the
    lower triangle counts.
    Returns indptr (n + 1,), indices ascending in a row, values; squares (2, n) float64, the sums of |r_ij|^2 in row i
    over the pattern of F, and over all candidates, also those left out (for Cholesky r_ij counts twice, for r_ji, too);
    and the number of candidates left out.
    """
    squares, rows = np.zeros((2, F.n)), []
    for i in range(F.n):
        mine = {int(j) for j in F.indices[F.indptr[i] : F.indptr[i + 1]]}
        r = row_of(A, i)
        largest = dict.fromkeys(r.keys() - mine, np.inf)  # product, at each candidate; those of A are all wanted
        for (_, j), product in product_row(F, i, columns):
            r[j] = r.get(j, F.data.dtype.type(0)) - product
            if j not in mine:
                largest[j] = max(largest.get(j, 0.0), float(abs(product)))
        for p in range(F.indptr[i], F.indptr[i + 1]):
            j = int(F.indices[p])
            held = F.data[p] * F.data[F.diag[j]] if j < i else F.data[p] if columns is None else abs(F.data[p]) ** 2
            squares[0, i] += (2 if columns is not None and j < i else 1) * abs(r.get(j, 0) - held) ** 2
        squares[1, i] = (1 if columns is None else 2) * sum(abs(r[j]) ** 2 for j in largest)
        rows.append((r, largest))
    products = sorted((v for _, largest in rows for v in largest.values()), reverse=True)
    if most is not None and most < len(products) and products[most] >= least:
        least = np.nextafter(products[most], np.inf)
    indptr, indices, values = [0], [], []
    for r, largest in rows:
        for j in sorted(j for j in largest if largest[j] >= least):
            indices.append(j)
            values.append(r[j])
        indptr.append(len(indices))
    types = F.indptr.dtype, F.indices.dtype, F.data.dtype
    found = (np.array(a, t) for a, t in zip((indptr, indices, values), types, strict=True))
    return *found, squares, len(products) - len(indices)
