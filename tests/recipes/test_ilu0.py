"""ILU(0): special cases, and what test_eliminations.py does not ask."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import (
    DTYPES,
    PATTERNS,
    assert_is_ilu0_of,
    fetched,
    in_dtype,
    iterations,
    one_line,
    refused,
    values,
)
from conftest import real_matrix
from hypothesis import given
from hypothesis import strategies as st

import finelu as fl
from finelu import ILU0, MatrixError, ZeroPivot, gallery
from finelu.kernels.cpu import _waiting
from finelu.kernels.cpu._waiting import Waiting, waiting
from finelu.kernels.cpu.elimination import _cut_apart, ic0, ic0_analysis, ilu0, ilu0_analysis
from finelu.kernels.cpu.runtime.row_blocks import COPY
from finelu.matrix import as_csr, lower_triangle

# By definition


REAL = ("of_pitzDaily_p", "orsirr_1", "memplus", "cage10", "sherman3", "mcca", "fv2", "watt_1")


@pytest.mark.parametrize("name", REAL)
def test_ilu0_reproduces_real_matrices(backend, name):
    A = real_matrix(name)
    F = ILU0().factor(backend.move(A))
    assert_is_ilu0_of(A, *fetched(backend, F))


# By twin: the CPU gives the reference's bits


def blocks(sizes, seed=0):
    """Dense blocks, some of which are triangular, so that rows of a block need nothing of each other."""
    rng = np.random.default_rng(seed)
    made = [rng.uniform(-1, 1, (m, m)) + 2 * m * np.eye(m) for m in sizes]
    return sp.csr_matrix(sp.block_diag([np.triu(b) if k % 3 == 2 else b for k, b in enumerate(made)], "csr"))


@PATTERNS
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 40))
def test_items_of_rows_that_need_nothing_of_each_other(sizes, least):
    """No row of an item has a column before it, and they are as many as can be where the last is short enough."""
    A = as_csr(blocks(sizes))
    items = np.zeros(A.n + 2, np.int64)
    count = _cut_apart(A.indptr.view("u4"), A.indices.view("u4"), least, A.n - A.n // 8, items)
    found, nearest = items[: count + 1], np.minimum.accumulate(A.indices[A.indptr[:-1]][::-1])[::-1]
    assert found[0] == A.n and found[-1] == 0 and (np.diff(found) < 0).all()
    assert (nearest[found[1:]] == found[1:]).all()
    assert (A.indptr[found[:-2]] - A.indptr[found[1:-1]] >= least).all()
    apart = np.flatnonzero(nearest == np.arange(A.n))
    if least == 1 and apart[-1] >= A.n - A.n // 8:
        np.testing.assert_array_equal(found[:0:-1], apart)


@pytest.fixture
def many_cores(monkeypatch):
    """Rows wait for each other as on a machine with many cores."""
    monkeypatch.setattr(_waiting, "available_cores", lambda: 64)


@pytest.mark.usefixtures("many_cores")
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("largest", [30, 45])
def test_blocks_of_rows_are_shared_out_as_they_are(threads, dtype, largest):
    """From the first factorization on, with the bits, and the first bad row, of one thread."""
    sizes = np.random.default_rng(2).integers(1, largest + 1, 500)
    A = as_csr(in_dtype(blocks(sizes), dtype))
    assert A.nnz > 8 * COPY
    zero = np.sort(np.random.default_rng(3).integers(0, A.n, 5))
    bad = A.data.copy()
    for i in zero:
        bad[A.indptr[i] : A.indptr[i + 1]] = 0
    want, lu = np.empty_like(A.data), np.empty_like(A.data)
    assert ilu0(ilu0_analysis(A, "sequential"), A.data, want) == -1
    L, l = lower_triangle(A)[0], {}
    for count in (1, 2, 3):
        threads(count)
        plan, other = ilu0_analysis(A, once=True), ic0_analysis(L, once=True)
        assert (plan.variant, plan.schedule.threads) == ("levels" if count > 1 else "sequential", count)
        assert (other.variant == "levels") == (count > 1)
        for _ in range(3):
            assert ilu0(plan, A.data, lu) == -1
            np.testing.assert_array_equal(lu, want)
            assert ilu0(plan, bad, lu) == zero[0]
        l[count] = np.empty_like(L.data)
        assert ic0(other, L.data, l[count]) == -1
        np.testing.assert_array_equal(l[count], l[1])
        with pytest.raises(ZeroPivot, match=f"row {zero[0]} "):
            ILU0().factor(sp.csr_matrix((bad, A.indices, A.indptr)))
    assert ilu0_analysis(as_csr(gallery.poisson5(120)), once=True).variant == "sequential"
    for count in (3, 8):  # few threads do not wait for each other
        threads(count)
        plan = ilu0_analysis(as_csr(blocks([100, 100, 200])), once=True)
        assert isinstance(plan.schedule, Waiting) == (count == 8)


@pytest.mark.usefixtures("many_cores")
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("overlap", [4, 16])
def test_rows_that_wait_for_each_other_give_the_bits_of_one_thread(threads, everywhere, monkeypatch, dtype, overlap):
    """One by one, and in blocks, whatever these begin with."""
    A = as_csr(in_dtype(gallery.poisson27(17), dtype))
    L, places = lower_triangle(A)
    L = L.with_values(A.data[places])
    everywhere("_forgone", np.inf)
    everywhere("_done_alone", np.inf)
    monkeypatch.setattr(_waiting, "OVERLAP", overlap)
    monkeypatch.setattr(_waiting, "MANY_THREADS", 2)
    monkeypatch.setattr(_waiting, "GAIN", 10.0)
    row = A.n // 2
    bad, worse = A.data.copy(), L.data.copy()
    bad[A.indptr[row] : A.indptr[row + 1]] = 0
    worse[L.diag[row]] = -1
    threads(1)
    want = [np.empty_like(A.data), np.empty_like(L.data)]
    assert ilu0(ilu0_analysis(A, "sequential"), A.data, want[0]) == ic0(ic0_analysis(L, "sequential"), L.data, want[1])
    for count in (2, 3, 5):
        threads(count)
        plan, other = ilu0_analysis(A, once=True), ic0_analysis(L, once=True)
        for found in (plan.schedule, other.schedule):
            assert isinstance(found, Waiting) and found.threads == count
            assert (found.order.size == A.n) == (overlap == 4)
        lu, l = np.empty_like(A.data), np.empty_like(L.data)
        assert ilu0(plan, A.data, lu) == ic0(other, L.data, l) == -1
        np.testing.assert_array_equal(lu, want[0])
        np.testing.assert_array_equal(l, want[1])
        assert ilu0(plan, bad, lu) == ic0(other, worse, l) == row


@pytest.mark.usefixtures("many_cores")
def test_blocks_of_rows_begin_with_lines_of_a_grid_and_come_after_all_that_they_need(threads, everywhere):
    threads(8)
    everywhere("_done_alone", np.inf)
    A = as_csr(gallery.poisson7(40))
    below = A.facts[3]
    found = waiting(A, A.diag, below, 1e6)
    first, order = found.first, found.order
    assert (first[:-1] % 40 == 0).all() and first[-1] == A.n and (np.diff(first) > 0).all()
    place = np.argsort(order)
    np.testing.assert_array_equal(np.sort(order), np.arange(first.size - 1))
    block = np.searchsorted(first, np.arange(A.n), side="right") - 1
    rows = np.repeat(np.arange(A.n), np.diff(A.indptr))
    earlier = A.indices < rows
    mine, needed = block[rows[earlier]], block[A.indices[earlier]]
    assert (place[needed] <= place[mine]).all()
    assert (order != np.arange(order.size)).any()  # a plane begins before the one before it ends
    chain = as_csr(gallery.tridiagonal(64_000))
    assert waiting(chain, chain.diag, chain.n - 1, 1e6) is None
    threads(7)
    assert waiting(A, A.diag, below, 1e6) is None


# The effect of each parameter


def test_shift_replaces_a_zero_on_the_diagonal_by_a_share_of_its_row(backend):
    A = sp.csr_matrix(np.array([[1.0, -8, 3], [0, 5, 0], [0, 0, 2]]))
    A = sp.csr_matrix((A.data, A.indices, A.indptr), shape=A.shape)
    A.data[0] = 0.0
    U = fetched(backend, ILU0(shift=0.5).factor(backend.move(A)))[1]
    np.testing.assert_allclose(U.diagonal(), [4.0, 7.5, 3.0])
    assert A.data[0] == 0.0


# Update


@pytest.mark.parametrize("columns", [None, 1, 3, 7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_solve_into_its_right_hand_side(backend, columns, dtype):
    A = in_dtype(gallery.poisson7(5, 4, 3), dtype)
    n = A.shape[0]
    r = values(n, dtype) if columns is None else values(n * columns, dtype).reshape(n, columns)
    for method in ("auto", *(["sync_free", "level_packed", "one_block"] if backend.name != "cpu" else ["levels"])):
        F = ILU0(triangular=method).factor(backend.move(A))
        for trans in "NTH":
            want, b = backend.fetch(F.solve(backend.move(r), trans)), backend.move(r.copy())
            assert F.solve(b, trans, out=b) is b
            np.testing.assert_array_equal(backend.fetch(b), want)


# By behaviour


def test_ilu0_needs_far_fewer_iterations_than_jacobi():
    A = gallery.convection_diffusion(12, 12, 12, peclet=20)
    with_ilu0 = iterations(A, ILU0().factor(A), restart=100)
    with_jacobi = iterations(A, fl.Jacobi().factor(A), restart=100)
    assert with_ilu0 <= 25
    assert with_ilu0 <= 0.5 * with_jacobi


def test_ilu0_preconditions_real_matrices():
    for name, most in (("orsirr_1", 60), ("sherman3", 110), ("of_pitzDaily_U", 22)):
        A = real_matrix(name)
        assert iterations(A, ILU0().factor(A), restart=200) <= most


# By bad input


@pytest.mark.parametrize("row", [0, 1, 37])
def test_a_zero_pivot_names_its_row_and_what_to_try(backend, row):
    A = gallery.tridiagonal(60).tolil()
    A[row] = 0
    if row:
        A[row, row - 1], A[row - 1, row - 1], A[row - 1, row], A[row, row] = 1, 1, 1, 1
        if row > 1:
            A[row - 1, row - 2] = 0
    else:
        A[0, 1] = 1
    A = sp.csr_matrix(A)
    A = sp.csr_matrix(A + sp.diags(np.full(60, 1e-300)))  # every diagonal entry is stored
    A.data[abs(A.data) < 1e-200] = 0
    with pytest.raises(ZeroPivot, match=rf"the pivot of row {row} is 0.*shift=1e-3") as error:
        ILU0().factor(backend.move(A))
    assert error.value.row == row and error.value.recipe == ILU0()
    one_line(error)


def test_values_that_overflow_are_found(backend):
    A = sp.csr_matrix(np.array([[1e-300, 1e300], [1e300, 1.0]]))
    with refused(ZeroPivot, match="row 1 "):
        ILU0().factor(backend.move(A))


@pytest.mark.parametrize("name", ["lhr01", "west0479", "bayer10"])
def test_real_matrices_without_a_diagonal_are_refused_by_name(backend, name):
    A = real_matrix(name)
    missing = np.flatnonzero([i not in A.indices[A.indptr[i] : A.indptr[i + 1]] for i in range(A.shape[0])])
    with pytest.raises(MatrixError, match=rf"row {missing[0]} \({missing.size} such rows\)"):
        ILU0().factor(backend.move(A))


def test_fidapex6_has_zero_pivots_until_it_is_shifted(backend):
    A = real_matrix("fidapex6")
    first = int(np.flatnonzero(A.diagonal() == 0)[0])
    with pytest.raises(ZeroPivot) as error:
        ILU0().factor(backend.move(sp.csr_matrix(A)[first : first + 1, first : first + 1]))
    assert error.value.row == 0
