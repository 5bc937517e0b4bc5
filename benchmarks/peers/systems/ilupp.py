"""ilupp: multilevel ILU with its defaults, and SciPy's GMRES."""

import ilupp
import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as sla

PACKAGES = ("ilupp",)


def multilevel(A, b, rtol):
    given = sp.csr_matrix((A.data, A.indices.astype(np.int32), A.indptr.astype(np.int32)), shape=A.shape)
    return sla.gmres(A, b, M=ilupp.ILUppPreconditioner(given), rtol=rtol, restart=50, maxiter=40)[0]


SETTINGS = {"multilevel, gmres(50)": multilevel}
