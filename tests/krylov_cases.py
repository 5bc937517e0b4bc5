"""Systems for Krylov methods, and the true residual."""

from functools import cache

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from checks import method_in_one_file

from finelu import gallery
from finelu.krylov import METHODS as REGISTERED
from finelu.krylov import OWN

METHODS = tuple(kind.solve for kind in OWN)
GENERAL = tuple(kind.solve for kind in OWN if kind.needs == "any")
KINDS = {"spd": "spd", "hermitian": "indefinite", "symmetric": "indefinite", "any": "general"}
DTYPES = (np.float32, np.float64, np.complex64, np.complex128)


@cache
def stranger() -> type:
    """The class of docs/extend.md, as if from another package: it is not registered after this."""
    before = dict(REGISTERED.registered)
    module = {"__name__": "stranger"}
    exec(method_in_one_file(), module)
    REGISTERED.registered = before
    return module["HybridBiCG"]


def name(value):
    return getattr(value, "__name__", None)


def poisson(m, dtype=np.float64):
    T = sp.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(m, m))
    return (sp.kron(T, sp.eye(m)) + sp.kron(sp.eye(m), T)).tocsr().astype(dtype)


def system(kind, dtype=np.float64, m=12):
    """A and b of one kind: "spd", "indefinite" (both Hermitian), "general" (positive definite, not normal)."""
    A = poisson(m, dtype)
    n = A.shape[0]
    skew = sp.diags([0.4, -0.4], [1, -1], shape=(n, n))
    if np.dtype(dtype).kind == "c" and kind != "general":
        A = A + 0.5j * skew + 0.5 * sp.eye(n)
    if kind == "indefinite":
        A = A - 1.3 * sp.eye(n)
    if kind == "general":
        A = A + skew * (1 + 0.5j if np.dtype(dtype).kind == "c" else 1)
    rng = np.random.default_rng(7)
    b = rng.standard_normal(n) + (1j * rng.standard_normal(n) if np.dtype(dtype).kind == "c" else 0)
    return A.tocsr().astype(dtype), b.astype(dtype)


def kind_for(method):
    return KINDS[method.method.needs]


def operator(A, product):
    """A LinearOperator that multiplies by `product`, and by A^H as it is: only bicg needs that."""
    return spla.LinearOperator(A.shape, matvec=product, rmatvec=lambda v: A.conj().T @ v, dtype=A.dtype)


def residual(A, b, x):
    """||b - A x||, formed here in extended precision."""
    wide = np.clongdouble if np.result_type(A.dtype, x.dtype).kind == "c" else np.longdouble
    S = sp.coo_matrix(A)
    r = b.astype(wide)
    np.subtract.at(r, S.row, S.data.astype(wide) * x.astype(wide)[S.col])
    return float(np.sqrt(np.sum(abs(r) ** 2)))


def complex_symmetric(m=12):
    """A complex symmetric system with a point source, and diagonal complex M; A is complex on the boundary only."""
    A = gallery.helmholtz(m, 5.0)
    b = np.zeros(A.shape[0], complex)
    b[A.shape[0] // 2 + m // 3] = 1
    return A.tocsr(), b, sp.diags(1 / A.diagonal()).tocsr()
