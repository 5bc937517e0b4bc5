"""Block matrices of random patterns, and the matrices that they mean."""

import numpy as np
from checks import values


def block_arrays(rows, n, density=0.3, dtype="float64", seed=0):
    """(data, indices, indptr) of a random pattern with a full and dominant block diagonal."""
    rng = np.random.default_rng(seed)
    pattern = (rng.random((rows, rows)) < density) | np.eye(rows, dtype=bool)
    row, indices = np.nonzero(pattern)
    data = values((row.size, n, n), dtype, seed)
    data[row == indices] += (4 * n * np.sqrt(1 + density * rows) * np.eye(n)).astype(dtype)
    return data, indices.astype(np.int32), np.searchsorted(row, np.arange(rows + 1)).astype(np.int32)


def dense(data, indices, indptr):
    """A by its definition, as a dense array; blocks that fall on the same place are added."""
    rows, n = indptr.size - 1, data.shape[1]
    A = np.zeros((rows, n, rows, n), data.dtype)
    for i in range(rows):
        for p in range(indptr[i], indptr[i + 1]):
            A[i, :, indices[p], :] += data[p]
    return A.reshape(rows * n, -1)
