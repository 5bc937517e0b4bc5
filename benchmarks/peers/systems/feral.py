"""feral: L D Lᵀ of symmetric matrices, all threads."""

import feral
import numpy as np
import scipy.sparse as sp

PACKAGES = ("feral-solver",)


def solve(A, b, rtol, symmetric):
    if not symmetric:
        return None  # not for such a matrix
    lower = sp.tril(A, format="csc")
    solver = feral.Solver(ordering="auto", parallel=True)
    starts, rows = lower.indptr.astype(np.int64), lower.indices.astype(np.int64)
    solver.factor(feral.CscMatrix(A.shape[0], starts, rows, lower.data))
    return solver.solve(b)


SETTINGS = {"ordering auto": solve}
