"""Odd input has one clear line or the usual answer, and what is returned does not keep A alive."""

import gc
import weakref

import numpy as np
import pytest
import scipy.sparse as sp

import finelu as fl
from finelu import gallery, preconditioners

P = sp.csr_matrix(gallery.poisson5(8))
B = np.arange(64.0)
CALLS = {
    "solve": fl.solve,
    "spsolve": fl.spsolve,
    "cg": fl.cg,
    "lstsq": fl.lstsq,
    "sequence": lambda A, b: fl.Sequence().step(A, b),
    "factors": lambda A, b: fl.ILU0().factor(A).solve(b),
    "splu": lambda A, b: fl.splu(sp.csc_matrix(A) if sp.issparse(A) else A).solve(b),
}


@pytest.mark.filterwarnings("ignore:splu converted", "ignore:spsolve requires")
@pytest.mark.parametrize("name", CALLS)
def test_what_lies_under_a_mask_is_not_read(name):
    masked = np.ma.masked_array(B, mask=B == 3)
    with pytest.raises(fl.errors.MatrixError, match=r"masked array with 1 masked element, the first at \(3,\)"):
        CALLS[name](P, masked)
    A = np.ma.masked_array(P.toarray(), mask=P.toarray() == 0)
    with pytest.raises(fl.errors.MatrixError, match=r"A is a masked array with 3808 masked elements, .* \(0, 2\)"):
        CALLS[name](A, B)
    assert CALLS[name](P, np.ma.masked_array(B)) is not None  # nothing is masked


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
def test_numbers_of_more_than_double_precision_become_double(dtype):
    b, double = B.astype(dtype), np.complex128 if dtype is np.clongdouble else np.float64
    assert fl.ILU0().factor(P).solve(b).dtype == double
    batch = fl.Batch(P, np.stack([P.data, 2 * P.data]))
    solution = fl.solve(batch, b)
    assert solution.all_converged and solution.x.dtype == double
    assert fl.solve(P, b).x.dtype == double


@pytest.mark.parametrize("n", [8, 9, 40])
@pytest.mark.parametrize("format", ["csr", "csc"])
def test_indices_that_do_not_fit_are_not_read(n, format):
    A = sp.csr_matrix(gallery.poisson5(n)).asformat(format)
    for index in (n * n, -1, 2**31 - 1):
        bad = A.copy()
        bad.indices[3] = index
        bad.has_canonical_format = True  # as where SciPy has looked at it before
        for call in (fl.spsolve, lambda A, b: fl.splu(A).solve(b), lambda A, b: fl.factorized(A)(b)):
            with pytest.raises(fl.errors.MatrixError, match="the arrays are corrupt"):
                call(bad, np.ones(n * n))


def kept_by(name, A, b):
    """What a user keeps of a call."""
    if name == "certificate":
        return fl.solve(A, b, certify=True)
    if name == "step":
        return fl.Sequence().step(A, b)
    return (
        CALLS[name](A, b)
        if name in CALLS
        else next(kind for kind in preconditioners.OWN if kind.name == name)().factor(A)
    )


@pytest.mark.parametrize("name", ["solve", "certificate", "step", "cg", "lstsq", "spsolve", "ilu0", "ilut", "schwarz"])
@pytest.mark.parametrize("size", [8, 20, 90])
def test_what_is_kept_of_a_call_does_not_hold_the_values_of_A(name, size):
    threads = fl.get_num_threads()
    fl.set_num_threads(1)  # another thread of a kernel holds its arguments until it has left the kernel
    try:
        A = sp.csr_matrix(gallery.poisson5(size))
        values, b = weakref.ref(A.data), np.ones(A.shape[0])
        kept = [kept_by(name, A, b) for _ in range(2)]
        del A
        gc.collect()
        assert values() is None and len(kept) == 2
    finally:
        fl.set_num_threads(threads)
