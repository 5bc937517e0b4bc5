"""SciPy: SuperLU's complete factors, and its incomplete ones with GMRES."""

import scipy.sparse.linalg as sla

PACKAGES = ("scipy",)


def splu(A, b, rtol):
    return sla.splu(A.tocsc()).solve(b)


def splu_symmetric(A, b, rtol):
    return sla.splu(A.tocsc(), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True}).solve(b)


def spilu_gmres(A, b, rtol):
    M = sla.LinearOperator(A.shape, sla.spilu(A.tocsc()).solve)
    return sla.gmres(A, b, M=M, rtol=rtol, restart=50, maxiter=40)[0]


SETTINGS = {"splu": splu, "splu, MMD_AT_PLUS_A, SymmetricMode": splu_symmetric, "spilu, gmres(50)": spilu_gmres}
