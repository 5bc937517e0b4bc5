"""PARDISO of oneMKL, by pypardiso: complete factors, all threads."""

import pypardiso
import scipy.sparse as sp

PACKAGES = ("pypardiso", "mkl")


def factored(kind, A, b):
    solver = pypardiso.PyPardisoSolver(mtype=kind)
    x = solver.solve(A, b)
    solver.free_memory(everything=True)
    return x


def general(A, b, rtol):
    return factored(11, A, b)


def indefinite(A, b, rtol, symmetric):
    return factored(-2, sp.csr_matrix(sp.triu(A)), b) if symmetric else None


SETTINGS = {"general": general, "symmetric": indefinite}
