"""KLU of SuiteSparse, by nbklu: complete factors for circuits, one thread."""

import nbklu

PACKAGES = ("nbklu",)


def solve(A, b, rtol):
    columns = A.tocsc()
    with nbklu.KLUSolver(index_bits=32, complex_values=False, singular_as_error=True) as solver:
        solver.analyze(A.shape[0], columns.indptr, columns.indices)
        solver.factor(columns.data)
        return solver.solve_(b.copy())


SETTINGS = {"defaults": solve}
