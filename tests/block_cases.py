"""Block matrices of random patterns, and the matrices that they mean."""

import numpy as np
import pytest
from checks import SOME_DTYPES, values

# (n, dtype) with a path of their own through the CPU's code, which is compiled for each n up to 8 and each dtype.
INSTANCES = [
    *((n, dtype) for n in (3, 9) for dtype in SOME_DTYPES),
    (1, "float64"),
    (2, "float64"),
    (6, "float64"),
    (8, "float64"),
]


def own_path(backend, n, dtype="float64"):
    """Skips what the CPU would compile for seconds to take the path that another n, or another dtype, takes, too."""
    if backend.name == "cpu" and n <= 8 and n != 3 and (dtype != "float64" or n in (5, 7)):
        pytest.skip(f"on the CPU n = 3 takes the same path in {dtype}")


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
