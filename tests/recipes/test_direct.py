"""SparseLU: right against dense solves, in every dtype and direction; and what its ordering is said to fill in."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import (
    DTYPES,
    ON_GPU,
    PATTERNS,
    assert_close,
    dominant_matrices,
    in_dtype,
    one_line,
    perturbed,
    refused,
    values,
)
from hypothesis import given
from hypothesis import strategies as st

import finelu
from finelu import SparseLU, foreign, gallery
from finelu.errors import ParameterError, SingularMatrix, StructurallySingular
from finelu.kernels import cpu, reference
from finelu.ordering import complete_fill, with_little_fill
from finelu.preconditioners.direct import analysis, factors
from finelu.scaling import by_largest

ORDERINGS = ("auto", "mmd", "rcm", None, "colamd")


def unsymmetric(n=60, dtype="float64", seed=0):
    rng = np.random.default_rng(seed)
    A = sp.random(n, n, 0.08, random_state=rng, data_rvs=rng.standard_normal) + sp.diags(rng.uniform(1, 2, n))
    return in_dtype(sp.csr_matrix(A), dtype)


def zero_diagonal(n=40):
    """A cyclic shift with a little more: nothing on the diagonal."""
    A = sp.lil_matrix((n, n))
    A[np.arange(n), (np.arange(n) + 1) % n] = np.linspace(1, 2, n)
    A[np.arange(n), (np.arange(n) + 7) % n] = 0.3
    return sp.csr_matrix(A)


def transposed(A, trans):
    return {"N": A, "T": A.T, "H": A.conj().T}[trans].toarray()


@pytest.mark.parametrize("trans", ["N", "T", "H"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_solves_with_A_its_transpose_and_its_adjoint(dtype, trans):
    A = unsymmetric(dtype=dtype)
    F = SparseLU().factor(A)
    B = values((60, 3), dtype)
    want = np.linalg.solve(transposed(A, trans), B)
    assert F.dtype == dtype and F.solve(B, trans).dtype == dtype
    assert_close(F.solve(B, trans), want, ulps=1e5)
    assert_close(F.solve(B[:, 0], trans), want[:, 0], ulps=1e5)
    assert F.solve(B[:, :0], trans).shape == (60, 0)


@pytest.mark.parametrize("trans", ["N", "T", "H"])
@pytest.mark.parametrize("ordering", ORDERINGS)
@pytest.mark.parametrize("matching", [None, True, False])
def test_every_ordering_with_and_without_matching(ordering, matching, trans):
    A, b = unsymmetric(), values(60, "float64")
    F = SparseLU(ordering=ordering, matching=matching).factor(A)
    assert F.report["matched"] is bool(matching)
    assert_close(F.solve(b, trans), np.linalg.solve(transposed(A, trans), b), ulps=1e5)


def saddle_point(group):
    """A Stokes system of which each pressure is that of `group` cells; the first block is not symmetric."""
    S = gallery.stokes(40)
    flows = S.diagonal() != 0
    K, B = S[flows][:, flows], S[flows][:, ~flows]
    cells = np.arange(B.shape[1])
    B = B @ sp.csr_matrix((np.ones(cells.size), (cells, cells // group)))
    return sp.csr_matrix(sp.bmat([[K + 0.25 * sp.triu(K, 1), B], [B.T, None]]))


@pytest.mark.parametrize(("group", "matched"), [(1, True), (10, False)], ids=["few unknowns", "many unknowns"])
def test_gaps_that_elimination_fills_before_they_are_pivots_need_no_matching(without, group, matched):
    """A pressure with few unknowns is eliminated before them, one with many after them."""
    without("klu", "feral", "pardiso")
    A = saddle_point(group)
    F, weak = (SparseLU().factor(matrix) for matrix in (A, A - 0.999 * sp.diags(A.diagonal())))
    assert F.report.matched is matched and weak.report.matched
    x = values(A.shape[0], "float64")
    assert np.linalg.norm(F.solve(A @ x) - x) <= 1e-9 * np.linalg.norm(x)


@pytest.mark.parametrize(("signs", "matched"), [((1.0, 1.0), False), ((1.0, -1.0), True)], ids=["filled", "cancelled"])
def test_gaps_whose_sums_cancel_are_matched(without, signs, matched):
    """Such gaps are filled in the pattern only, so that pivots off the diagonal fill in more than was counted."""
    without("klu", "feral", "pardiso")
    cells = 44
    N = sp.diags([1.0, 1.0], [-1, 1], shape=(cells, cells))
    C = sp.kron(N, sp.identity(cells)) + 0.3711 * sp.kron(sp.identity(cells), N)
    each, n = 4, 4 * cells**2
    B = sp.csr_matrix((np.ones(n), (np.arange(n) // each, np.arange(n))))
    A = sp.csr_matrix(sp.bmat([[sp.diags(np.tile(signs, n // 2)), B.T], [B, C]]))
    F = SparseLU().factor(A)
    assert F.report.matched is matched and F.nnz <= 1.2 * F.report.expected_nnz
    x = values(A.shape[0], "float64")
    assert np.linalg.norm(F.solve(A @ x) - x) <= 1e-9 * np.linalg.norm(x)


@pytest.mark.parametrize("trans", ["N", "T"])
def test_a_missing_diagonal_is_matched_but_where_exchanges_take_less_time(monkeypatch, trans):
    A, b = zero_diagonal(), values(40, "float64")
    for most, matched in ((analysis.MODERATE, False), (0, True)):
        monkeypatch.setattr(analysis, "MODERATE", most)
        for stored in (A, A + sp.diags(np.zeros(40))):
            F = SparseLU().factor(stored)
            assert F.report["matched"] is matched
            assert_close(F.solve(b, trans), np.linalg.solve(transposed(A, trans), b), ulps=1e4)
            singular = sp.csr_matrix(stored, copy=True)
            singular.data[singular.indptr[3] : singular.indptr[4]] = 0
            with pytest.raises(StructurallySingular, match="row 3"):
                SparseLU().factor(singular)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_exchanges_in_few_rows_work_on_scaled_ones(dtype):
    rng = np.random.default_rng(0)
    n = 200
    B = sp.random(n, n, 4 / n, rng=rng) + 2 * sp.csr_matrix(sp.identity(n))[rng.permutation(n)]
    A = sp.csr_matrix(sp.diags(10.0 ** rng.uniform(-6, 6, n)) @ B).astype(dtype)
    x = rng.standard_normal(n)
    b = (A.astype(float) @ x).astype(dtype)
    F = SparseLU().factor(A)
    assert not F.report.matched and F.report.backend == "superlu"
    assert np.linalg.norm(F.solve(b) - x) <= 100 * np.finfo(dtype).eps * np.linalg.norm(x)
    assert SparseLU(shift=1e-6).factor(A).report.matched  # a shift is one of the matched diagonal


@PATTERNS
@given(A=dominant_matrices(), seed=st.integers(0, 99))
def test_scales_by_the_largest_entries(A, seed):
    rng = np.random.default_rng(seed)
    n = A.shape[0]
    S = sp.csr_matrix(sp.diags(10.0 ** rng.uniform(-100, 100, n)) @ A @ sp.diags(rng.integers(0, 2, n).astype(float)))
    S.eliminate_zeros()
    rows, columns = by_largest(finelu.as_csr(S, diagonal=False))
    scaled = abs(np.diag(rows) @ S.toarray() @ np.diag(columns))
    assert scaled.max() <= 1 and (np.frexp(np.concatenate([rows, columns]))[0] == 0.5).all()
    assert ((scaled.max(axis=0) >= 0.5) | ~S.toarray().any(axis=0)).all()
    assert (columns[~S.toarray().any(axis=0)] == 1).all() and (rows[~S.toarray().any(axis=1)] == 1).all()


def test_scales_of_many_magnitudes():
    s = 10.0 ** np.linspace(-80, 80, 60)
    A = sp.csr_matrix(sp.diags(s) @ unsymmetric() @ sp.diags(s[::-1] ** 0.5))
    x = values(60, "float64") / s[::-1] ** 0.5
    got = SparseLU(matching=True).factor(A).solve(A @ x)
    np.testing.assert_allclose(got, x, rtol=1e-9)


def test_the_report_expects_the_fill_of_a_symmetric_pattern():
    A = gallery.poisson5(46)  # from 2000 rows on it is counted
    F = SparseLU().factor(A)
    assert F.report["expected_nnz"] == with_little_fill(A)[1].nnz
    assert F.nnz == pytest.approx(F.report["expected_nnz"], rel=0.02)


def test_shift_factors_the_shifted_matrix():
    A = sp.csr_matrix(np.array([[2.0, 1.0], [1.0, 0.0]]))
    shifted = np.array([[2.2, 1.0], [1.0, 0.2]])  # a zero one: by the largest entry of all
    F = SparseLU(matching=False, shift=0.1).factor(A)
    assert_close(F.solve(np.eye(2)), np.linalg.inv(shifted), ulps=16)


@pytest.mark.parametrize("ordering", ["auto", "colamd"])
def test_singular_matrices(ordering):
    A = sp.csr_matrix(np.array([[1.0, 1.0], [1.0, 1.0]]))
    with pytest.raises(SingularMatrix) as error:
        SparseLU(ordering=ordering).factor(A)
    assert "singular" in one_line(error)
    F = SparseLU(ordering=ordering, matching=False, shift=1e-10).factor(sp.csr_matrix((3, 3)))
    assert_close(F.solve(np.ones(3)), np.full(3, 1e10), ulps=4)


def test_a_structurally_singular_matrix():
    A = sp.csr_matrix(np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 0.0], [2.0, 0.0, 0.0]]))
    with pytest.raises(StructurallySingular) as error:
        SparseLU().factor(A)
    assert "structurally singular" in one_line(error)
    with pytest.raises(SingularMatrix):
        SparseLU(ordering="colamd").factor(A)


@pytest.mark.parametrize("ordering", ["auto", "colamd"])
def test_empty_rows_and_columns_are_singular(ordering):
    """SuperLU itself fails in other ways on some of them."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        A = sp.random(12, 12, 0.08, random_state=rng)
        with pytest.raises(SingularMatrix):
            SparseLU(ordering=ordering, matching=False).factor(A)


def test_a_partial_matching_and_a_shift_for_the_rest():
    A = sp.csr_matrix(np.array([[0.0, 0.0, 2.0], [0.0, 3.0, 0.0], [0.0, 0.0, 1.0]]))
    F = SparseLU(matching=True, shift=1e-10).factor(A)
    x = F.solve(A @ np.array([0.0, 1.0, 5.0]))
    np.testing.assert_allclose((A @ x), [10.0, 3.0, 5.0], rtol=1e-8)
    with pytest.raises(StructurallySingular):
        SparseLU(matching=True).factor(A)


def test_more_entries_than_32_bits_count(everywhere):
    A = gallery.poisson5(10)
    everywhere("INT32_LIMIT", A.nnz + 10)
    SparseLU(ordering="colamd").factor(A)
    with refused(MemoryError, match="incomplete"):
        SparseLU(ordering="mmd").factor(A)
    everywhere("INT32_LIMIT", A.nnz - 1)
    with pytest.raises(MemoryError, match="incomplete"):
        SparseLU(ordering="colamd").factor(A)


@ON_GPU
def test_factors_of_a_matrix_on_the_gpu(backend):
    A, b = unsymmetric(), values((60, 2), "float64")
    F = SparseLU().factor(backend.move(A))
    x = F.solve(backend.move(b), "T")
    assert_close(backend.fetch(x), np.linalg.solve(A.T.toarray(), b), ulps=1e5)
    F.update(backend.move(perturbed(A)))
    assert_close(backend.fetch(F.solve(backend.move(b))), np.linalg.solve(perturbed(A).toarray(), b), ulps=1e5)


@PATTERNS
@given(A=dominant_matrices(hermitian=True))
def test_elimination_tree_and_column_counts_are_those_of_an_elimination(A):
    found, want = np.empty((3, A.shape[0]), np.int64), np.empty((3, A.shape[0]), np.int64)
    for kernels, (parent, post, count) in ((cpu, found), (reference, want)):
        kernels.fill.elimination_tree(A.indptr, A.indices, parent)
        kernels.fill.postorder(parent, post)
        kernels.fill.column_counts(A.indptr, A.indices, parent, post, count)
    np.testing.assert_array_equal(found, want)


@PATTERNS
@given(
    A=dominant_matrices(hermitian=True, largest=40),
    small=st.sampled_from([0.0, 0.05, 0.1, 0.3, 1.0]),
    large=st.sampled_from([0.1, 0.3, 0.6]),
    seed=st.integers(0, 99),
)
def test_subtrees_of_an_elimination_tree(A, small, large, seed):
    n, graph = A.shape[0], cpu.fill
    parent, post = np.empty((2, n), np.int64)
    graph.elimination_tree(A.indptr, A.indices, parent)
    graph.postorder(parent, post)
    place = np.argsort(post)
    parent = np.where(parent >= 0, place[parent], -1)[post]
    work = np.random.default_rng(seed).integers(1, 4, n).astype(float)
    small = small * work.sum()
    large = max(small, large * work.sum())
    (part, above), want = np.empty((2, n), np.int64), np.empty((2, n), np.int64)
    count = graph.subtrees(parent, work, small, large, part, above)
    assert reference.fill.subtrees(parent, work, small, large, *want) == count
    np.testing.assert_array_equal(part, want[0])
    np.testing.assert_array_equal(above[:count], want[1, :count])
    assert set(part) == set(range(count)) and all(above[t] == -1 or above[t] > t for t in range(count))
    for k in np.flatnonzero(parent >= 0):  # what is above a row is in its part, or in one above that
        t = part[k]
        while t not in (-1, part[parent[k]]):
            t = above[t]
        assert t == part[parent[k]]


@PATTERNS
@given(A=dominant_matrices(hermitian=True), seed=st.integers(0, 99))
def test_a_graph_in_another_order(A, seed):
    order, found = np.random.default_rng(seed).permutation(A.shape[0]), []
    for kernels in (cpu, reference):
        starts, columns = np.empty_like(A.indptr), np.empty_like(A.indices)
        kernels.graph.permuted_graph(A.indptr, A.indices, order, starts, columns)
        found.append((starts, columns))
    np.testing.assert_array_equal(*(starts for starts, _ in found))
    np.testing.assert_array_equal(*(columns for _, columns in found))
    ones = sp.csr_matrix((np.ones(A.nnz), A.indices, A.indptr), shape=A.shape)
    starts, columns = found[0]
    assert (sp.csr_matrix((np.ones(A.nnz), columns, starts), shape=A.shape) != ones[order][:, order]).nnz == 0


@pytest.mark.parametrize("ordering", ["auto", "mmd", "nd", "rcm"])
def test_an_order_for_a_complete_lu_is_a_postorder_with_the_fill_of_its_ordering(ordering):
    if ordering == "nd":
        pytest.importorskip("pymetis")
    A = finelu.as_csr(gallery.poisson7(9, 8, 7))
    order, fill = with_little_fill(A, ordering)
    assert fill == complete_fill(A, order)
    if ordering != "auto":
        assert fill == complete_fill(A, finelu.ordering.ORDERS[ordering](A))
    S = A.tosparse()[order][:, order]
    parent, post = np.empty(A.n, np.int64), np.empty(A.n, np.int64)
    cpu.fill.elimination_tree(S.indptr, S.indices, parent)
    cpu.fill.postorder(parent, post)
    np.testing.assert_array_equal(post, np.arange(A.n))


def test_nested_dissection_is_taken_where_it_pays_and_is_installed(monkeypatch):
    pytest.importorskip("pymetis")
    A = gallery.poisson7(20, 20, 20)
    dissected, degree = with_little_fill(A, "nd")[1], with_little_fill(A, "amd")[1]
    assert dissected.flops < degree.flops  # what makes the rest say something
    assert with_little_fill(A)[1] == dissected
    assert SparseLU(backend="superlu").factor(A).report.expected_nnz == dissected.nnz
    monkeypatch.setattr(finelu.ordering, "_installed", lambda module: None)
    assert with_little_fill(A)[1] == degree
    small = gallery.poisson5(20, 20)  # is done before METIS would be
    assert with_little_fill(small)[1] == with_little_fill(small, "amd")[1]


def test_fill_by_definition():
    A = gallery.poisson5(6, 5)
    L = np.linalg.cholesky(A.toarray())
    below = (abs(L) > 1e-14).sum(axis=0) - 1
    fill = complete_fill(A)
    assert fill.nnz == 2 * below.sum() + 30
    assert fill.flops == (below + 2 * below**2).sum()
    assert complete_fill(gallery.tridiagonal(9)).nnz == 9 + 2 * 8
    assert complete_fill(sp.csr_matrix((4, 4))) == finelu.ordering.Fill(4, 0.0)


def test_fill_of_an_order():
    A = gallery.arrow(12)
    first, last = complete_fill(A, np.arange(12)).nnz, complete_fill(A, np.arange(12)[::-1]).nnz
    assert sorted((first, last)) == [12 + 2 * 11, 144]
    order, fill = with_little_fill(A)
    assert fill == complete_fill(A, order) and fill.nnz == 12 + 2 * 11
    for wrong in (np.arange(11), np.zeros(12, int), np.arange(12) + 1):
        with pytest.raises(ParameterError) as error:
            complete_fill(A, wrong)
        assert "permutation" in one_line(error)


def test_superlu_works_on_few_columns_at_once_where_an_entry_takes_little_work(splu_is):
    """Measured: up to 30% less time; the factors are the same to rounding, whatever the number."""
    seen = []
    own = foreign.splu
    splu_is(lambda A, **given: seen.append(given) or own(A, **given))
    chain, box = gallery.poisson5(1, 400), gallery.poisson7(16)
    cases = [
        (chain, "auto", 1),
        (box, "auto", 4),
        (chain, "colamd", 1),
        (sp.csr_matrix(np.eye(30) + 1.0), "colamd", None),
    ]
    for A, ordering, columns in cases:
        b = values(A.shape[0], "float64")
        x = SparseLU(ordering=ordering, backend="superlu").factor(A).solve(b)
        assert seen[-1].get("panel_size") == columns
        assert_close(A @ x, b, ulps=1e5)
    b = values(box.shape[0], "float64")
    assert_close(SparseLU().factor(box).solve(b), own(box.tocsc()).solve(b), ulps=1e5)


@pytest.mark.parametrize("trans", ["N", "T", "H"])
def test_factors_stay_whole_where_others_cannot_be_made(trans, monkeypatch):
    A, b = in_dtype(gallery.poisson5(6), "complex64"), values(36, "complex64")
    expected = SparseLU(backend="superlu").factor(A).solve(b, trans)
    compute, made = factors.SparseLUFactors._compute, []

    def fails_again(factors, S):
        made.append(S.dtype)
        if len(made) > 1:
            raise SingularMatrix("another scale")
        compute(factors, S)

    monkeypatch.setattr(factors.SparseLUFactors, "_compute", fails_again)
    monkeypatch.setattr(factors, "ENOUGH", 0.0)
    F = SparseLU(backend="superlu").factor(A)
    assert made[0] == np.complex64 and np.complex128 in made[1:]  # a scaled A is wider
    x = F.solve(b, trans)
    assert x.dtype == np.complex64
    np.testing.assert_allclose(x, expected, rtol=1e-5)
