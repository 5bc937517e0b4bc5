"""ICT: by definition, by limit, by twin, by effect, by behaviour, by bad input."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import (
    DTYPES,
    IN_TYPES,
    PATTERNS,
    assert_close,
    compared,
    dominant_matrices,
    full,
    in_dtype,
    iterations,
    one_line,
    refused,
    with_index,
)
from conftest import real_matrix
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import breadth_first_order

import finelu as fl
from finelu import IC0, ICT, ILUT, ZeroPivot, gallery
from finelu.kernels import cpu, reference
from finelu.matrix import as_csr, lower_triangle
from finelu.preconditioners.threshold import row_norms

UNLIMITED = 2**62
NEVER = float("inf")
SPREAD = ("poisson7:5,4,3", "anisotropic_triangles:2", "arrow:70", "random_dominant:60,0.08,3,hermitian=True")


def fetched(backend, F):
    return sp.csr_matrix(backend.fetch(F.L))


def assert_same_bits_as_the_reference(A, drop_tol, fill):
    L, _ = lower_triangle(as_csr(A))
    tau = drop_tol * row_norms(L)
    columns = reference.threshold.ict(L, tau, fill)
    assert len(columns) == L.n
    i, j, v = zip(*((i, j, v) for j, column in enumerate(columns) for i, v in column.items()))
    want = sp.csr_matrix((np.array(v, L.dtype), (i, j)), shape=L.shape)
    want.sort_indices()
    made = cpu.threshold.ict(L, tau, fill, UNLIMITED)
    assert made.rows == L.n and made.stored == want.nnz
    np.testing.assert_array_equal(made.indptr, want.indptr)
    np.testing.assert_array_equal(made.indices, want.indices)
    np.testing.assert_array_equal(made.data, want.data)
    np.testing.assert_array_equal(made.indices[made.diag], np.arange(L.n))
    assert made.data.dtype == L.dtype and made.indices.dtype == L.indices.dtype


# By definition


@pytest.mark.parametrize("problem", gallery.small_spd(), ids=str)
def test_l_lh_is_near_a_by_what_was_dropped(backend, problem):
    A, drop_tol = problem.A, 0.01
    L = fetched(backend, ICT(drop_tol=drop_tol, fill=NEVER).factor(backend.move(A)))
    assert sp.triu(L, 1).nnz == 0
    diagonal = L.diagonal()
    assert (diagonal.real > 0).all() and (diagonal.imag == 0).all()
    columns = row_norms(as_csr(A))  # of a Hermitian matrix
    off = abs(sp.csc_matrix(sp.tril(L, -1)))
    assert (
        off.data * np.repeat(diagonal.real, np.diff(off.indptr))
        > 0.999 * drop_tol * np.repeat(columns, np.diff(off.indptr))
    ).all()
    noise = 64 * np.finfo(A.dtype).eps * (abs(L) @ abs(L).T).toarray()
    gap = np.tril(abs((L @ L.conj().T - A).toarray()))
    assert (gap <= drop_tol * columns * 1.001 + noise).all()
    np.testing.assert_array_less(gap.diagonal(), noise.diagonal())


def test_no_column_is_longer_than_fill_allows():
    A = gallery.random_dominant(200, 0.03, 5, hermitian=True)
    own = np.diff(sp.tril(A, -1, format="csc").indptr)
    for fill in (0.5, 1.0, 2.0):
        length = np.diff(sp.tril(ICT(drop_tol=0.0, fill=fill).factor(A).L, -1, format="csc").indptr)
        most = np.maximum(1, (fill * own).astype(int))
        assert (length <= most).all() and (length == most).sum() > 100


def test_it_has_the_pattern_of_crouts_form_of_ilut():
    A = gallery.anisotropic_triangles(3)
    for drop_tol, fill in ((3e-3, 10.0), (1e-4, 1.5)):
        F = ICT(drop_tol=drop_tol, fill=fill).factor(A)
        G = ILUT(drop_tol=drop_tol, fill=fill, form="crout").factor(A)
        root = sp.diags(np.sqrt(G.U.diagonal()))
        assert_close((G.L @ root).toarray(), F.L.toarray(), 1e5, scale=1.0)
        np.testing.assert_array_equal(F.L.indices, G.L.indices)
        assert F.report["nnz"] == G.nnz == 2 * F.nnz - A.shape[0]


# By limit


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPREAD)
def test_without_dropping_it_is_the_complete_factor(backend, name, dtype):
    A = in_dtype(gallery.problem(name), dtype)
    L = fetched(backend, ICT(drop_tol=0.0, fill=NEVER).factor(backend.move(A)))
    assert L.dtype == dtype
    want = np.linalg.cholesky(A.toarray().astype("complex128" if np.dtype(dtype).kind == "c" else "float64"))
    assert_close(L.toarray(), want.astype(dtype), 256, scale=abs(want).max())


def test_where_there_is_no_fill_it_is_ic0():
    for A in (gallery.tridiagonal(60), gallery.arrow(40), full(20, hermitian=True)):
        F, G = ICT(drop_tol=0.0).factor(A), IC0().factor(A)
        np.testing.assert_array_equal(F.L.toarray(), G.L.toarray())


# By twin


@pytest.mark.parametrize("problem", gallery.small_spd(), ids=str)
def test_the_bits_are_those_of_the_reference(problem):
    assert_same_bits_as_the_reference(problem.A, 1e-3, 1.0)
    assert_same_bits_as_the_reference(problem.A, 5e-3, 10.0)


@IN_TYPES
def test_the_bits_are_those_of_the_reference_in_every_dtype(dtype, index):
    for name in SPREAD:
        assert_same_bits_as_the_reference(with_index(in_dtype(gallery.problem(name), dtype), index), 5e-3, 1.5)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@PATTERNS
@given(
    A=dominant_matrices(hermitian=True),
    drop_tol=st.sampled_from([0.0, 1e-3, 0.05]),
    fill=st.sampled_from([0.4, 1.0, 3.0, NEVER]),
)
def test_the_bits_are_those_of_the_reference_for_any_pattern(dtype, A, drop_tol, fill):
    assert_same_bits_as_the_reference(in_dtype(A, dtype), drop_tol, fill)


def test_kernel_and_reference_stop_at_the_same_column():
    stopped = set()
    for seed in range(30):
        rng = np.random.default_rng(seed)
        R = rng.uniform(-1, 1, (14, 14)) * (rng.random((14, 14)) < 0.5)
        L, _ = lower_triangle(as_csr(sp.csr_matrix(R + R.T - np.diag(np.diag(R)) * 2 + 1.5 * np.eye(14))))
        tau = 0.01 * row_norms(L)
        made = cpu.threshold.ict(L, tau, 2.0, UNLIMITED)
        assert made.rows == len(reference.threshold.ict(L, tau, 2.0))
        assert made.rows == 14 or (made.pivot <= 0 and made.stored >= made.rows and made.data.size == 0)
        stopped.add(made.rows)
    assert len(stopped) > 4


# The effect of each parameter


def test_a_smaller_threshold_gives_more_entries_and_fewer_iterations():
    A = gallery.elasticity(4, 3, 3)
    made = [ICT(drop_tol=drop_tol).factor(A) for drop_tol in (0.1, 0.01, 1e-3, 1e-5)]
    entries, needed = [F.nnz for F in made], [iterations(A, F, fl.cg) for F in made]
    assert entries == sorted(entries) and len(set(entries)) == 4
    assert needed == sorted(needed, reverse=True) and needed[0] > 3 * needed[3]


@pytest.mark.parametrize("name", ["poisson5:40,31", "random_dominant:400,0.02,3,hermitian=True", "elasticity:4,3,3"])
def test_the_wanted_number_of_entries_counts_both_factors(name):
    A = gallery.problem(name)
    d = np.random.default_rng(0).uniform(0.9, 1.1, A.shape[0])  # fewer equal magnitudes
    A = sp.csr_matrix(sp.diags(d) @ A @ sp.diags(d))
    for wanted in (A.nnz, int(1.6 * A.nnz)):
        F = ICT(nnz=wanted).factor(A)
        assert F.report["nnz"] == F.L.nnz + F.U.nnz - A.shape[0] == 2 * F.nnz - A.shape[0]
        assert wanted - 1 <= F.report["nnz"] <= wanted and "warning" not in F.report
        G = ICT(drop_tol=F.report["drop_tol"]).factor(A)
        kept, whole = sp.tril(F.L, -1), sp.csr_matrix(G.L)
        places = sp.csr_matrix((np.ones(kept.nnz), kept.nonzero()), shape=A.shape)
        assert (sp.csr_matrix(sp.tril(whole, -1)).multiply(places) != kept).nnz == 0
        size, _ = compared(G.L, G.U, A.diagonal(), cholesky=True)
        left, gone = size.multiply(places).tocsr(), size - size.multiply(places)
        assert left.nnz == kept.nnz < size.nnz and left.data.min() >= gone.max() * (1 - 1e-12)


def test_a_search_goes_on_beyond_breakdowns():
    A = gallery.anisotropic_triangles(3, rcm=False)  # with rcm the order depends on how NumPy sorts equal numbers
    order = breadth_first_order(A, 0, return_predecessors=False)
    A = A[order][:, order]
    with pytest.raises(ZeroPivot):
        ICT(drop_tol=0.07).factor(A)
    F = ICT(nnz=A.nnz, drop_tol=0.07).factor(A)
    assert F.report["factorizations"] > 1 and A.nnz - 1 <= F.report["nnz"] <= A.nnz
    assert F.report["drop_tol"] < 0.07 and "warning" not in F.report


def test_a_search_that_finds_no_factors_says_which_pivot_failed():
    A = sp.csr_matrix(gallery.poisson5(14, 14) - 3 * sp.eye(196))
    with refused(ZeroPivot, match=r"which is not a positive number with drop_tol="):
        ICT(nnz=A.nnz).factor(A)
    F = ICT(nnz=A.nnz, shift=4.0).factor(A)
    assert A.nnz - 1 <= F.report["nnz"] <= A.nnz


# By behaviour


def test_with_as_many_entries_ict_needs_fewer_iterations_than_ic0():
    A = gallery.anisotropic_triangles(3)
    F = ICT(nnz=A.nnz).factor(A)
    assert F.nnz <= IC0().factor(A).nnz
    assert iterations(A, F, fl.cg) <= 0.7 * iterations(A, IC0().factor(A), fl.cg)
    B = gallery.anisotropic_triangles(4)
    G = ICT(nnz=B.nnz).factor(B)
    assert abs(G.report["nnz"] - B.nnz) <= 0.01 * B.nnz
    assert iterations(B, G, fl.cg) <= 0.7 * iterations(B, IC0().factor(B), fl.cg)


@pytest.mark.parametrize("name", ["fv2", "662_bus", "of_pitzDaily_p"])
def test_ict_preconditions_real_matrices(name):
    A = real_matrix(name)
    F = ICT(drop_tol=1e-4, fill=20.0).factor(A)
    assert iterations(A, F, fl.cg) <= 0.6 * iterations(A, IC0().factor(A), fl.cg)


# By bad input


@pytest.mark.parametrize("diagonal", [-1.0, 0.0])
def test_a_pivot_that_is_not_positive_names_its_row(backend, diagonal):
    A = sp.csr_matrix(np.array([[4.0, 2, 0], [2, 1 + diagonal, 0], [0, 0, 1]]) + 0.0)
    A = sp.csr_matrix((np.array([4.0, 2, 2, 1 + diagonal, 1]), [0, 1, 0, 1, 2], [0, 2, 4, 5]), shape=(3, 3))
    with pytest.raises(ZeroPivot, match=r"the pivot of row 1 is (0\.0|-1\.0), which is not a positive.*shift") as error:
        ICT().factor(backend.move(A))
    assert error.value.row == 1 and error.value.recipe == ICT()
    one_line(error)


@pytest.mark.parametrize(
    ("rows", "dtype", "row"),
    [([[1e-300, 1e200], [1e200, 1.0]], "float64", 0), ([[1.0, 1e30], [1e30, 1.0]], "float32", 1)],
)
def test_values_that_overflow_are_found(rows, dtype, row):
    with pytest.raises(ZeroPivot) as error:
        ICT(drop_tol=0.0).factor(sp.csr_matrix(np.array(rows, dtype)))
    assert error.value.row == row
    one_line(error)


def test_threads_share_diagonal_blocks_without_a_change_of_bits(monkeypatch, threads):
    """Also the first bad column is the same; where entries are limited, they are counted in order."""
    monkeypatch.setattr(cpu.threshold, "RANGE", 100)
    block = gallery.poisson5(9, 8)
    A = as_csr(sp.csr_matrix(sp.block_diag([block * (k + 1) for k in range(12)])))
    bad = A.with_values(A.data.copy())
    bad.data[bad.diag[[300, 700]]] = -1
    found = []
    for number in (1, 3):
        fl.set_num_threads(number)
        assert (cpu.threshold._ranges(A, UNLIMITED).size > 3) == (number > 1)
        assert (cpu.threshold._ranges(A, UNLIMITED)[:-1] % 72 == 0).all()
        assert cpu.threshold._ranges(A, 5000).size == 2
        tau = 1e-2 * row_norms(A)
        good, stopped = (cpu.threshold.ict(S, tau, NEVER, UNLIMITED) for S in (A, bad))
        assert good.stored == good.indices.size == good.data.size and stopped.rows == 300
        found.append((*good[3:], good.stored, stopped.stored, stopped.pivot))
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)
