"""IC(0): special cases, and what test_eliminations.py does not ask."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, assert_is_ic0_of, fetched, in_dtype, iterations, one_line
from conftest import real_matrix

import finelu as fl
from finelu import IC0, ZeroPivot, gallery
from finelu.kernels import reference
from finelu.kernels.cpu.elimination import ic0, ic0_analysis
from finelu.matrix import as_csr, lower_triangle

# By definition


@pytest.mark.parametrize("name", ["of_pitzDaily_p", "fv2", "1138_bus", "ibmpg1_spd", "Trefethen_20000", "ani4"])
def test_ic0_reproduces_real_matrices(backend, name):
    A = real_matrix(name)
    assert_is_ic0_of(A, *fetched(backend, IC0().factor(backend.move(A))))


def test_ic0_of_a_matrix_that_has_none_exists_with_a_shift(backend):
    A = real_matrix("bcsstk14")  # positive definite, but its IC(0) breaks down
    with pytest.raises(ZeroPivot, match="Try shift=1e-3") as error:
        IC0().factor(backend.move(A))
    lower, _ = lower_triangle(as_csr(A))
    assert error.value.row == reference.elimination.ic0(
        lower.indptr, lower.indices, lower.data, np.empty_like(lower.data)
    )
    shifted = A.copy()
    shifted.setdiag(A.diagonal() * 1.5)
    assert_is_ic0_of(shifted, *fetched(backend, IC0(shift=0.5).factor(backend.move(A))))


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_finished_rows_by_columns_give_the_bits_of_finished_rows(threads, everywhere, dtype):
    threads(1)
    A = as_csr(in_dtype(gallery.poisson27(7), dtype))
    L, places = lower_triangle(A)
    values, l = A.data[places], np.empty((2, L.nnz), dtype)
    bad = values.copy()
    bad[L.diag[A.n // 2]] = -1
    for least, out in zip((1, A.n), l, strict=True):
        everywhere("COLUMNS_PAY", least)
        plan = ic0_analysis(L, once=True)
        assert (plan.columns is not None) is (least == 1)
        assert ic0(plan, values, out) == -1
        assert ic0(plan, bad, np.empty_like(out)) == A.n // 2
    np.testing.assert_array_equal(*l)


def test_long_rows_that_come_early_are_no_columns(threads, everywhere):
    """A first row that all others meet would be looked at n^2 / 2 times by columns."""
    threads(1)
    everywhere("COLUMNS_PAY", 1)
    for dense, by_columns in ((False, True), (True, False)):
        S = sp.lil_matrix(gallery.poisson27(8))
        if dense:
            S[0], S[:, 0] = 0.01, 0.01
            S[0, 0] = 30.0
        L, _ = lower_triangle(as_csr(sp.csr_matrix(S)))
        assert (ic0_analysis(L, once=True).columns is not None) is by_columns


# By behaviour


def test_ic0_makes_cg_converge_in_far_fewer_iterations():
    A = gallery.poisson7(20)
    plain, jacobi = iterations(A, None, method=fl.cg), iterations(A, fl.Jacobi().factor(A), method=fl.cg)
    with_ic0 = iterations(A, IC0().factor(A), method=fl.cg)
    assert with_ic0 <= 25
    assert with_ic0 <= 0.55 * min(plain, jacobi)


def test_float32_factors_serve_a_float64_method():
    A = gallery.poisson7(20)
    assert (
        iterations(A, IC0(precision="float32").factor(A), method=fl.cg)
        <= iterations(A, IC0().factor(A), method=fl.cg) + 1
    )


@pytest.mark.parametrize(("name", "most"), [("of_pitzDaily_p", 290), ("fv2", 10), ("ani4", 95), ("1138_bus", 165)])
def test_ic0_preconditions_real_matrices(name, most):
    A = real_matrix(name)
    assert iterations(A, IC0().factor(A), method=fl.cg) <= most


# By bad input


@pytest.mark.parametrize("value", [-3.0, 0.0, -0.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("row", [0, 41])
def test_a_pivot_that_is_not_positive_names_its_row_and_what_to_try(backend, row, value, dtype):
    A = sp.csr_matrix(sp.identity(60), dtype=dtype)
    A.data[row] = value
    with pytest.raises(ZeroPivot, match=rf"the pivot of row {row} .*not a positive number.*shift=1e-3") as error:
        IC0().factor(backend.move(A))
    assert error.value.row == row and error.value.recipe == IC0()
    one_line(error)
