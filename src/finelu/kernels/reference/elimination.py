"""ILU(0), IC(0) and MILU(0). The specification."""

from __future__ import annotations

import numpy as np


def ilu0(indptr, indices, diag, a, lu):
    """ILU(0): (L U)_ij = A_ij wherever A stores an entry, L with a unit diagonal. Saad 2003, Algorithm 10.4.

    a (nnz,) is read, lu (nnz,) receives L below and U on and above the diagonal, places as in A. Returns -1, or the
    first row with a zero pivot or a value that is not finite; rows from there on are then worth nothing.
    """
    return milu0(indptr, indices, diag, a, None, lu)


def ic0(indptr, indices, a, l):
    """IC(0): (L L^H)_ij = A_ij wherever the lower triangle of A stores an entry; by rows, the diagonal last.

    a (nnz,) is read, l (nnz,) receives L. Returns -1, or the first row whose pivot is not finite or has a real part
    <= 0; rows from there on are then worth nothing. An imaginary part of the diagonal is not read.
    """
    for i in range(indptr.size - 1):
        row = {}
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            s = a[p]
            for q in range(indptr[j], indptr[j + 1] - 1):
                if j == i:
                    s -= l[q] * np.conj(l[q])
                elif indices[q] in row:
                    s -= row[indices[q]] * np.conj(l[q])
            if j < i:
                row[j] = l[p] = s / l[indptr[j + 1] - 1]
            elif not np.isfinite(s.real) or s.real <= 0:
                return i
            else:
                l[p] = np.sqrt(s.real)
    return -1


def milu0(indptr, indices, diag, a, relax, lu):
    """MILU(0): ILU(0), and `relax` times the updates outside of the pattern of a row are added to its diagonal.

    With relax = 1 the rows of L U have the sums of the rows of A. Arguments and result as in `ilu0`; relax is a number
    of a's dtype, or None for ILU(0). Saad 2003, section 10.3.5.
    """
    for i in range(diag.size):
        row = {indices[p]: a[p] for p in range(indptr[i], indptr[i + 1])}
        dropped = a.dtype.type(0)
        for p in range(indptr[i], diag[i]):
            k = indices[p]
            row[k] = row[k] / lu[diag[k]]
            for q in range(diag[k] + 1, indptr[k + 1]):
                if indices[q] in row:
                    row[indices[q]] -= row[k] * lu[q]
                elif relax is not None:
                    dropped -= row[k] * lu[q]
        if relax is not None:
            row[i] += relax * dropped
        lu[indptr[i] : indptr[i + 1]] = list(row.values())
        if not np.isfinite(lu[indptr[i] : indptr[i + 1]]).all() or lu[diag[i]] == 0:
            return i
    return -1
