"""Orderings and scalings, and the kernels that scale: by definition, by twin, by bad input."""

import os
import threading
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from checks import (
    DTYPES,
    PATTERNS,
    assert_close,
    dominant_matrices,
    in_dtype,
    long_rows,
    one_line,
    own_types,
    perturbed,
    refused,
    values,
    with_index,
)
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.linalg import splu

from finelu import ParameterError, gallery
from finelu import ordering as module
from finelu.kernels import kernels_for, reference
from finelu.matrix import CSR, as_csr, lower_triangle
from finelu.ordering import (
    OrderingJob,
    _amd,
    _graph,
    _separator,
    adjacency,
    amd,
    by_subtrees,
    complete_fill,
    hermitian_pattern,
    mean_distance,
    minimum_degree,
    nested_dissection,
    parts,
    permutation,
    rcm,
    repeated_rcm,
    with_little_fill,
)
from finelu.recent import Recent

NO_ROW = 2**62


def dense(backend, A):
    return sp.csr_matrix(tuple(backend.fetch(v) for v in (A.data, A.indices, A.indptr)), shape=A.shape).toarray()


def bandwidth(A):
    i, j = A.nonzero()
    return int(abs(i - j).max(initial=0))


def shuffled(A, seed=0):
    p = np.random.default_rng(seed).permutation(A.shape[0])
    return sp.csr_matrix(A[p][:, p])


# Orderings


@PATTERNS
@given(A=dominant_matrices())
def test_rcm_is_an_order_of_all_rows(A):
    order = rcm(as_csr(A))
    np.testing.assert_array_equal(np.sort(order), np.arange(A.shape[0]))


@PATTERNS
@given(A=dominant_matrices())
def test_a_repeated_rcm_is_an_order_and_no_further_one_is_closer_to_the_diagonal(A):
    A = as_csr(A)
    S, order = adjacency(A), repeated_rcm(A)
    np.testing.assert_array_equal(np.sort(order), np.arange(A.n))
    best, again = S[order][:, order], as_csr(S[order][:, order])
    assert mean_distance(best) <= mean_distance(S[rcm(A)][:, rcm(A)])
    assert mean_distance(best[rcm(again)][:, rcm(again)]) >= mean_distance(best)


def test_a_repeated_rcm_of_a_random_pattern_is_another_one():
    A = as_csr(sp.random(3000, 3000, 0.001, random_state=0, format="csr") + sp.identity(3000))
    S = adjacency(A)
    distances = [mean_distance(S[order][:, order]) for order in (rcm(A), repeated_rcm(A))]
    assert distances[1] < distances[0] < mean_distance(S)


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_rcm_brings_entries_to_the_diagonal(index):
    for A in (gallery.poisson5(20), gallery.tridiagonal(100), gallery.convection_diffusion(30, 12, 1)):
        mixed = shuffled(A)
        order = rcm(with_index(mixed, index))
        assert bandwidth(mixed[order][:, order]) <= 1.5 * bandwidth(A) < bandwidth(mixed) / 2


def test_rcm_takes_a_pattern_that_is_not_symmetric_and_one_in_parts():
    A = sp.csr_matrix(sp.block_diag([gallery.bidiagonal(40), gallery.poisson5(5), sp.identity(3)]))
    mixed = shuffled(A)
    order = rcm(as_csr(mixed))
    assert bandwidth(mixed[order][:, order]) <= 7


@PATTERNS
@given(A=dominant_matrices(dtype="complex128"))
def test_a_permutation_is_p_a_pt_and_follows_new_values(backend, A):
    P = permutation(backend.move(as_csr(A)), "rcm")
    order, inverse = (backend.fetch(v) for v in (P.order, P.inverse))
    np.testing.assert_array_equal(order[inverse], np.arange(A.shape[0]))
    for B in (A, perturbed(A)):
        B_permuted = P.matrix(backend.move(as_csr(B)))
        np.testing.assert_array_equal(dense(backend, B_permuted), B.toarray()[np.ix_(order, order)])
        np.testing.assert_array_equal(backend.fetch(B_permuted.data[B_permuted.diag]), B.diagonal()[order])
        indptr, indices = backend.fetch(B_permuted.indptr), backend.fetch(B_permuted.indices)
        assert all((np.diff(indices[a:b]) > 0).all() for a, b in pairwise(indptr))


@PATTERNS
@given(A=dominant_matrices(hermitian=True))
def test_of_a_lower_triangle_the_lower_triangle_of_p_a_pt_comes_out(backend, A):
    A = sp.csr_matrix(A + 1j * (sp.tril(A, -1) - sp.triu(A, 1)))  # Hermitian, and not symmetric
    for B in (A, sp.csr_matrix(A.multiply(A.real))):
        half, _ = lower_triangle(as_csr(B))
        P = permutation(backend.move(half), "rcm", hermitian=True)
        order = backend.fetch(P.order)
        want = np.tril(B.toarray()[np.ix_(order, order)])
        np.testing.assert_array_equal(dense(backend, P.matrix(backend.move(half))), want)
        np.testing.assert_array_equal(backend.fetch(P.pattern.diag) + 1, backend.fetch(P.pattern.indptr)[1:])


def test_the_index_type_is_kept(backend):
    for index in (np.int32, np.int64):
        P = permutation(backend.move(with_index(gallery.poisson5(5), index)), "rcm")
        assert {v.dtype for v in (P.order, P.inverse, P.places, P.pattern.indptr, P.pattern.diag)} == {np.dtype(index)}


def test_the_pattern_of_both_triangles():
    A = gallery.anisotropic_triangles(1)
    half, _ = lower_triangle(as_csr(A))
    whole = hermitian_pattern(half)
    np.testing.assert_array_equal(whole.indptr, A.indptr)
    np.testing.assert_array_equal(whole.indices, A.indices)


def test_no_ordering_and_one_that_there_is_not():
    A = as_csr(gallery.poisson5(3))
    assert permutation(A, None) is None
    with pytest.raises(ParameterError, match="ordering='colour'") as error:
        permutation(A, "colour")
    assert "None, 'rcm', 'mmd', 'amd', 'nd'" in one_line(error)


def fill(A, order):
    """Entries of L in the LU factorization of A without pivoting, rows and columns eliminated in this order."""
    B = sp.csc_matrix(A[order][:, order])
    return splu(B, permc_spec="NATURAL", diag_pivot_thresh=0, options={"SymmetricMode": True}).L.nnz


def fill_reducing():
    """The orderings that keep fill low and can be tried here."""
    return [minimum_degree, amd] + ([nested_dissection] if find_spec("pymetis") else [])


@PATTERNS
@given(A=dominant_matrices())
def test_fill_reducing_orders_are_orders_of_all_rows(A):
    for ordering in fill_reducing():
        order = ordering(A)
        assert order.dtype == np.int64
        np.testing.assert_array_equal(np.sort(order), np.arange(A.shape[0]))
        np.testing.assert_array_equal(ordering(A), order)


def test_fill_reducing_orders_reduce_fill():
    for A, most in ((gallery.poisson5(40), 0.4), (gallery.poisson7(12), 0.6), (shuffled(gallery.poisson5(40)), 0.2)):
        for ordering in fill_reducing():
            assert fill(A, ordering(A)) < most * fill(A, np.arange(A.shape[0]))


def test_an_arrow_is_eliminated_without_fill():
    n = 30
    A = sp.lil_matrix(4.0 * sp.identity(n))
    A[0, :] = A[:, 0] = 1.0
    A[0, 0] = n
    A = sp.csr_matrix(A)
    assert fill(A, minimum_degree(A)) == 2 * n - 1
    A[0, 1:] = 0  # one triangle is enough to see the other
    A.eliminate_zeros()
    assert list(minimum_degree(A)).index(0) >= n - 2


def test_orders_look_at_the_pattern_only():
    A = gallery.poisson5(15)
    for ordering in fill_reducing():
        want = ordering(A)
        for B in (1e300 * A, 1j * A, with_index(A, np.int64), A - 4 * sp.identity(A.shape[0])):
            np.testing.assert_array_equal(ordering(B), want)


def powers_of_two_apart(n):
    """Rows i and j are neighbours where |i - j| is a power of 2, as in Trefethen_20000: no small separator."""
    offsets = 2 ** np.arange(int(n - 1).bit_length())
    half = sp.diags([np.ones(n - k) for k in offsets], offsets)
    return sp.csr_matrix(half + half.T + sp.identity(n))


def cube(n):
    """A grid of n^3 points, each a neighbour of the 26 around it."""
    line = sp.diags([np.ones(n - 1), np.ones(n), np.ones(n - 1)], [-1, 0, 1])
    return sp.csr_matrix(sp.kron(line, sp.kron(line, line)))


def bordered(A, borders):
    return sp.csr_matrix(sp.block_array([[A, borders.T], [borders, sp.identity(borders.shape[0])]]))


def hubs(leaves):
    """30 rows that know each other, and rows that know one of these only, as in a circuit."""
    borders = sp.csr_matrix((np.ones(leaves), (np.arange(leaves) % 30, np.arange(leaves))), shape=(30, leaves))
    A = bordered(sp.identity(leaves), borders).tolil()
    A[-30:, -30:] = 1
    return sp.csr_matrix(A)


GRAPHS = [
    pytest.param(gallery.poisson7(18), 1.1, id="poisson7"),
    pytest.param(cube(16), 1.15, id="cube"),
    pytest.param(shuffled(cube(16)), 1.15, id="shuffled cube"),
    pytest.param(bordered(cube(14), sp.csr_matrix(np.ones((2, 14**3)))), 1.3, id="dense borders"),
    pytest.param(hubs(6000), 1.0, id="circuit"),
    pytest.param(powers_of_two_apart(300), 1.2, id="no small separators"),
]


@pytest.mark.parametrize(("A", "times"), GRAPHS)
def test_an_approximate_minimum_degree_fills_in_as_little_as_an_exact_one(A, times):
    assert complete_fill(A, amd(A)).nnz <= times * complete_fill(A, minimum_degree(A)).nnz


def test_an_order_is_begun_by_another_thread_and_ended(monkeypatch):
    A = as_csr(gallery.poisson7(12))
    want = with_little_fill(A)
    job = OrderingJob(A)
    order, fill = with_little_fill(A, job=job)
    assert job.over
    np.testing.assert_array_equal(order, want[0])
    assert fill == want[1]
    begins, goes_on = threading.Event(), threading.Event()
    monkeypatch.setattr(module, "RECENT", Recent())
    monkeypatch.setattr("finelu.ordering._amd", lambda S, halt: begins.set() or (goes_on.wait(60) and want[0]))
    busy = OrderingJob(A)
    assert begins.wait(60)
    threading.Timer(0.1, goes_on.set).start()
    busy.end()
    assert busy.over and busy.found() is None  # after a halt


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_orders_by_itself(monkeypatch):
    A = as_csr(gallery.poisson7(9))
    want, own = with_little_fill(A)[0], _amd
    monkeypatch.setattr(module, "RECENT", Recent())
    begins, goes_on = threading.Event(), threading.Event()
    monkeypatch.setattr("finelu.ordering._amd", lambda *given: begins.set() or (goes_on.wait(60) and own(*given)))
    job = OrderingJob(A)
    assert begins.wait(60)
    child = os.fork()
    if child == 0:
        goes_on.set()
        order = job.found()[1]
        job.end()
        os._exit(0 if np.array_equal(order, want) else 1)
    assert os.waitpid(child, 0)[1] == 0
    goes_on.set()
    np.testing.assert_array_equal(job.found()[1], want)


@PATTERNS
@given(
    n=st.integers(1, 30), mean=st.floats(0, 8), limit=st.sampled_from([0, 2**31]), seed=st.integers(0, 9999)
)  # limit: 0 as if there were too many entries for 32-bit indices
def test_the_graph_is_the_pattern_of_a_and_its_transpose_without_the_diagonal(n, mean, limit, seed):
    A = sp.random(n, n, min(mean / max(n, 1), 1.0), random_state=seed, format="csr")
    M = as_csr(A, diagonal=False)
    index = np.int64 if limit == 0 else np.int32
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("finelu.ordering.INT32_LIMIT", limit)
        S = _graph(CSR(M.indptr.astype(index), M.indices.astype(index), M.data, M.diag))
    want = ((A != 0) + (A.T != 0)).toarray()
    np.fill_diagonal(want, False)
    np.testing.assert_array_equal(S.toarray(), want)
    assert S.has_sorted_indices and S.has_canonical_format


def test_more_entries_than_superlu_counts(everywhere):
    everywhere("INT32_LIMIT", 12)
    minimum_degree(gallery.poisson5(2))
    with refused(ParameterError, match=r"33 entries; SuperLU takes up to 12"):
        minimum_degree(gallery.poisson5(3))


@pytest.mark.parametrize("ordering", ["mmd", "amd", "nd"])
def test_a_permutation_by_another_order(backend, ordering):
    if ordering == "nd":
        pytest.importorskip("pymetis")
    A = gallery.convection_diffusion(9, 8, 1)
    P = permutation(backend.move(as_csr(A)), ordering)
    order = backend.fetch(P.order)
    np.testing.assert_array_equal(order, {"mmd": minimum_degree, "amd": amd, "nd": nested_dissection}[ordering](A))
    np.testing.assert_array_equal(dense(backend, P.matrix(backend.move(as_csr(A)))), A.toarray()[np.ix_(order, order)])


def test_what_is_not_installed_is_named_with_its_command(not_installed):
    not_installed("pymetis")
    A = gallery.poisson5(3)
    for call, command in (
        (lambda: nested_dissection(A), "pip install 'finelu[metis]'"),
        (lambda: parts(A, 2), "pip install 'finelu[metis]'"),
    ):
        with pytest.raises(ParameterError, match="not installed") as error:
            call()
        assert command in one_line(error) and "mmd" in one_line(error)
    np.testing.assert_array_equal(parts(A, 1)[0], np.arange(9))  # nothing to cut


# Parts


def check_parts(A, count, order, starts):
    """Every row once, in A's order inside a part and in the separator; no entry between two parts."""
    n = A.shape[0]
    np.testing.assert_array_equal(np.sort(order), np.arange(n))
    assert starts.shape == (count + 1,) and starts[0] == 0 and starts[-1] <= n and (np.diff(starts) >= 0).all()
    for a, b in pairwise([*starts, n]):
        assert (np.diff(order[a:b]) > 0).all()
    part = np.empty(n, int)
    part[order] = np.searchsorted(starts, np.arange(n), side="right") - 1
    i, j = A.nonzero()
    inside = (part[i] < count) & (part[j] < count)
    np.testing.assert_array_equal(part[i[inside]], part[j[inside]])


@PATTERNS
@given(A=dominant_matrices(), share=st.floats(0, 1))
def test_parts_are_not_coupled(A, share):
    pytest.importorskip("pymetis")
    count = 1 + int(share * (A.shape[0] - 1))
    check_parts(A, count, *parts(A, count))


@pytest.mark.parametrize(("count", "planes"), [(2, 1), (4, 2.2), (8, 3.3)])
def test_separators_of_a_cube_are_about_planes_and_its_parts_about_as_large_as_each_other(count, planes):
    pytest.importorskip("pymetis")
    A = gallery.poisson7(20)
    order, starts = parts(with_index(A, np.int64), count)
    check_parts(A, count, order, starts)
    assert A.shape[0] - starts[-1] <= 1.1 * planes * 20**2
    sizes = np.diff(starts)
    assert sizes.max() <= 1.4 * sizes.min()  # each cut takes a plane of one side
    np.testing.assert_array_equal(parts(A, count)[0], order)


def test_a_count_that_is_no_power_of_two_and_a_pattern_that_is_not_symmetric():
    pytest.importorskip("pymetis")
    A = shuffled(sp.csr_matrix(sp.triu(gallery.poisson5(30))))
    for count in (3, 7):
        order, starts = parts(A, count)
        check_parts(A, count, order, starts)
        assert np.diff(starts).max() <= 1.35 * np.diff(starts).min()


def test_matrices_in_parts_need_no_separator():
    pytest.importorskip("pymetis")
    A = sp.csr_matrix(sp.block_diag([gallery.poisson5(12)] * 2))
    order, starts = parts(A, 2)
    np.testing.assert_array_equal(starts, [0, 144, 288])
    check_parts(A, 2, order, starts)


def test_a_full_matrix_is_all_separator_but_one_part():
    pytest.importorskip("pymetis")
    order, starts = parts(np.ones((8, 8)), 4)
    check_parts(np.ones((8, 8)), 4, order, starts)
    assert (np.diff(starts) > 0).sum() == 1


@PATTERNS
@given(seed=st.integers(0, 2**16), n=st.integers(2, 10), density=st.floats(0, 1))
def test_a_separator_is_a_smallest_cover_of_the_cut(seed, n, density):
    rng = np.random.default_rng(seed)
    dense = np.triu(rng.random((n, n)) < density, 1)
    S, side = sp.csr_matrix((dense | dense.T).astype(float)), rng.integers(0, 2, n)
    cover = _separator(S, side)
    i, j = S.nonzero()
    cut = side[i] != side[j]
    assert (np.isin(i[cut], cover) | np.isin(j[cut], cover)).all()
    between = S[side == 0][:, side == 1]
    assert np.unique(cover).size == cover.size
    assert cover.size == (sp.csgraph.structural_rank(between) if between.nnz else 0)  # Koenig


def fill_stays_below(A, order, starts, above):
    """Whether no entry of the complete factors couples two parts of which neither is above the other."""
    part = np.repeat(np.arange(above.size), np.diff(starts))
    parent, _, _ = module._tree(_graph(A), order)
    for k in np.flatnonzero(parent >= 0):  # the rows above k are those on its way to the root
        t = part[k]
        while t not in (-1, part[parent[k]]):
            t = above[t]
        if t != part[parent[k]]:
            return False
    return True


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("name", ["poisson7:15", "convection_diffusion:30,30", "poisson27:12", "stokes:12"])
def test_parts_of_an_order_change_those_above_them_alone(monkeypatch, name, cut):
    monkeypatch.setattr(module, "LEAST_ROWS", 30)
    monkeypatch.setattr(module, "MANY", 100 if cut else 10**9)
    monkeypatch.setattr(module, "LEAST_CUT", 60)
    monkeypatch.setattr(module, "SEPARATING", 1.0)
    A = as_csr(shuffled(gallery.problem(name)), diagonal=False)
    order, starts, above, _ = by_subtrees(A, "amd")
    np.testing.assert_array_equal(np.sort(order), np.arange(A.n))
    assert above.size >= 7 and starts[0] == 0 and starts[-1] == A.n and (np.diff(starts) >= 0).all()
    assert all(t < above[t] < above.size or above[t] == -1 for t in range(above.size))
    assert fill_stays_below(A, order, starts, above)
    if not cut:
        assert complete_fill(A, order) == complete_fill(A, amd(A))
    else:  # as many regions as 2^cuts, whose fill is not much more
        assert (above.size + 1) & above.size == 0
        assert complete_fill(A, order).nnz < 1.6 * complete_fill(A, amd(A)).nnz


def test_parts_of_an_order_do_not_depend_on_threads(threads, monkeypatch):
    monkeypatch.setattr(module, "MANY", 100)
    monkeypatch.setattr(module, "LEAST_CUT", 200)
    A, found = gallery.poisson7(18), []
    for count in (1, 2, 4):
        threads(count)
        found.append(by_subtrees(A, "amd"))
    for other in found[1:]:
        for mine, its in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(mine, its)


def test_what_no_small_sets_separate_is_not_cut(monkeypatch):
    monkeypatch.setattr(module, "MANY", 100)
    calls = []
    monkeypatch.setattr(module, "_cut", lambda *given, cut=module._cut: calls.append(cut(*given)) or calls[-1])
    by_subtrees(gallery.poisson27(6), "amd")  # of 216 rows many are in the middle
    by_subtrees(gallery.arrow(2000), "amd")  # its last row is long
    by_subtrees(sp.block_diag([gallery.poisson5(30)] * 3), "amd")
    assert [found is None for found in calls] == [True, False]


@pytest.mark.parametrize("cut", [False, True])
def test_minimum_degree_ends_where_all_rows_would_have_more_than_the_fill(monkeypatch, cut):
    monkeypatch.setattr(module, "MANY", 100 if cut else 10**9)
    monkeypatch.setattr(module, "LEAST_CUT", 1000)
    monkeypatch.setattr(module, "SEPARATING", 1.0)
    A = as_csr(gallery.poisson7(12))
    whole = by_subtrees(A, "amd")
    assert not whole.bounded
    for mine, its in zip(whole, by_subtrees(A, "amd", 1e3), strict=True):
        np.testing.assert_array_equal(mine, its)
    found = by_subtrees(A, "amd", 2.0)
    assert found.bounded and not np.array_equal(found.order, whole.order)
    np.testing.assert_array_equal(np.sort(found.order), np.arange(A.n))
    assert fill_stays_below(A, *found[:3])
    uneven = as_csr(gallery.arrow(200))
    assert not by_subtrees(uneven, "amd", 0.5).bounded  # rows of any length are cut by it
    assert not by_subtrees(A, "rcm", 0.5).bounded


def binary_tree(n):
    children = np.arange(1, n)
    return sp.csr_matrix((np.ones(n - 1), (children, (children - 1) // 2)), shape=(n, n)) + sp.identity(n)


def test_large_sets_separate_regions_that_fill_in_anyway(monkeypatch):
    monkeypatch.setattr(module, "MANY", 100)
    monkeypatch.setattr(module, "LEAST_CUT", 1000)
    monkeypatch.setattr(module, "SEPARATING", 0.0)
    cube, tree = as_csr(gallery.poisson7(16)), as_csr(binary_tree(4095), diagonal=False)
    assert module._cut(_graph(cube), cube.n) is not None
    assert module._cut(_graph(tree), tree.n) is None
    assert complete_fill(tree, by_subtrees(tree, "amd")[0]).nnz == 2 * 4094 + 4095  # no fill
    monkeypatch.setattr(module, "SEPARATING_FILLED", 0.05)
    assert module._cut(_graph(cube), cube.n) is None  # a level set through the middle has more rows than that


def test_counts_that_make_no_parts():
    for count in (0, 10, -1, 2.0, True):
        with refused(ParameterError, match="from 1 to 9"):
            parts(gallery.poisson5(3), count)


# Scalings


def backend_pivots(A):
    """The scaling to a unit diagonal, on the device of A."""
    return kernels_for(A.data).scaling.pivots(A, False)[0]


@pytest.mark.parametrize("dtype", DTYPES)
def test_unit_diagonal_makes_pivots_of_magnitude_one(backend, dtype):
    A = in_dtype(gallery.random_dominant(60, 0.1, 1), dtype)
    A = as_csr(sp.csr_matrix(sp.diags(np.where(np.arange(60) % 2, -1e4, 1e-3)).astype(dtype) @ A))
    d = backend.fetch(backend_pivots(backend.move(A)))
    assert d.dtype == A.data.real.dtype
    assert_close(d * d * abs(A.data[A.diag]), np.ones(60, d.dtype), 4)


def test_unit_diagonal_leaves_a_zero_alone(backend):
    A = as_csr(sp.csr_matrix(np.array([[4.0, 1], [1, 3]])))
    A.data[A.diag[1]] = 0
    np.testing.assert_array_equal(backend.fetch(backend_pivots(backend.move(A))), [0.5, 1])


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_scale_is_its_twin_and_by_definition(backend, dtype, index):
    own_types(backend, dtype, index)
    A = with_index(in_dtype(long_rows(150), dtype), index)
    real = A.data.real.dtype
    a, b, c, d = (values(A.n, real, seed) for seed in range(4))
    for below, above in (
        ((a, b), (c, d)),
        ((a, None), (None, d)),
        ((None, b), (c, None)),
        ((None, None), (None, None)),
    ):
        want = reference.scaling.scale(A, np.empty_like(A.data), below, above)
        sides = [tuple(v if v is None else backend.move(v) for v in side) for side in (below, above)]
        out = backend.xp.empty(A.nnz, dtype)
        assert kernels_for(out).scaling.scale(backend.move(A), out, *sides) is out
        np.testing.assert_array_equal(backend.fetch(out), want)
    M = A.tosparse().toarray()
    by_definition = np.tril(a[:, None] * M * b, -1) + np.triu(c[:, None] * M * d)
    scaled = reference.scaling.scale(A, np.empty_like(A.data), (a, b), (c, d))
    assert_close(A.with_values(scaled).tosparse().toarray(), by_definition.astype(dtype), 4, scale=abs(by_definition))


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_divide_by_pivots_is_its_twin(backend, dtype, index):
    own_types(backend, dtype, index)
    F = with_index(in_dtype(long_rows(150), dtype), index)
    new = values(F.nnz, dtype)
    new[F.diag] += 3
    want, counted = new.copy(), np.array([0, NO_ROW])
    reference.scaling.divide_by_pivots(F, want, counted)
    out, refused = backend.move(new.copy()), backend.move(np.array([0, NO_ROW]))
    assert kernels_for(out).scaling.divide_by_pivots(backend.move(F), out, refused) is out
    assert_close(backend.fetch(out), want, 0 if backend.name == "cpu" else 8, scale=abs(want))
    np.testing.assert_array_equal(backend.fetch(refused), [0, NO_ROW])
    above = F.tosparse().indices >= np.repeat(np.arange(F.n), np.diff(F.indptr))
    np.testing.assert_array_equal(backend.fetch(out)[above], new[above])
    assert not np.array_equal(backend.fetch(out)[~above], new[~above])


def test_what_a_pivot_would_make_infinite_stays_and_is_counted(backend):
    F = as_csr(sp.csr_matrix(np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1.0]])))
    new = np.array([1e-200, 1e200, 1, 1e200, 3, 1])
    want, counted = new.copy(), np.array([0, NO_ROW])
    reference.scaling.divide_by_pivots(F, want, counted)
    out, refused = backend.move(new.copy()), backend.move(np.array([0, NO_ROW]))
    kernels_for(out).scaling.divide_by_pivots(backend.move(F), out, refused)
    for got, count in ((want, counted), (backend.fetch(out), backend.fetch(refused))):
        np.testing.assert_array_equal(got, new)
        np.testing.assert_array_equal(count, [2, 1])


def test_scaling_is_the_same_on_any_number_of_threads(threads):
    A = as_csr(gallery.poisson7(25))  # more rows than a block has
    d = values(A.n, "float64") + 5
    new = A.data + values(A.nnz, "float64") / 8
    made = []
    for count in (1, 2, 4):
        threads(count)
        kernels = kernels_for(d)
        refused = np.array([0, NO_ROW])
        scaled = kernels.scaling.scale(A, np.empty_like(A.data), (d, None), (d, d))
        made.append((scaled, kernels.scaling.divide_by_pivots(A, new.copy(), refused)))
    rows = np.repeat(np.arange(A.n), np.diff(A.indptr))
    want = A.data * d[rows] * np.where(A.indices < rows, 1, d[A.indices])
    for scaled, pivoted in made:
        np.testing.assert_array_equal(scaled, want)
        np.testing.assert_array_equal(pivoted, made[0][1])
