"""One pass over a CSR matrix: is it sound, and where is its diagonal?"""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.recurrences import compiled


@compiled
def inspect(indptr, indices, data, diag):
    """Soundness of a CSR matrix, and its diagonal; see kernels/reference.py. Stops at the first corrupt row."""
    n = indptr.size - 1
    unsorted = not_finite = missing = 0
    first_not_finite = first_missing = -1
    if indptr[0] != 0 or indptr[n] != indices.size:
        return 0, unsorted, not_finite, first_not_finite, missing, first_missing
    for i in range(n):
        diag[i] = -1
        previous = -1
        if indptr[i] < 0 or indptr[i] > indptr[i + 1] or indptr[i + 1] > indices.size:
            return i, unsorted, not_finite, first_not_finite, missing, first_missing
        for p in range(indptr[i], indptr[i + 1]):
            j = indices[p]
            if j < 0 or j >= n:
                return i, unsorted, not_finite, first_not_finite, missing, first_missing
            if j <= previous:
                unsorted += 1
            previous = j
            if j == i:
                diag[i] = p
            if not np.isfinite(data[p]):
                not_finite += 1
                if first_not_finite < 0:
                    first_not_finite = i
        if diag[i] < 0:
            missing += 1
            if first_missing < 0:
                first_missing = i
    return -1, unsorted, not_finite, first_not_finite, missing, first_missing


def facts(A) -> tuple[int, int, int, int]:
    """What CSR.facts says. Cost: a few passes over indptr and diag."""
    below, above = A.diag - A.indptr[:-1], A.indptr[1:] - A.diag - 1
    return int((below + above).max()) + 1, int(below.max()), int(above.max()), int(below.sum(dtype=np.int64))
