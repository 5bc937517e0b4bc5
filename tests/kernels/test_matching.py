"""Matchings, their scalings and equilibration: by definition, against dense optima, at the ends of the number range."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, PATTERNS, in_dtype, one_line, own_types, refused, with_index
from conftest import MATRICES
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from finelu import MatrixError, ParameterError, gallery, io
from finelu.errors import StructurallySingular
from finelu.kernels.cpu.matching import cut_cycles
from finelu.matrix import as_csr
from finelu.scaling import dual_exponents, equilibrate, even_exponents, matching, with_columns_times


@st.composite
def matrices(draw, symmetric=False, decades=3, largest=14):
    """CSR matrices of any pattern, some singular, some with ties or stored zeros; 10^-decades to 10^decades."""
    n = draw(st.integers(1, largest))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    pattern = rng.random((n, n)) < draw(st.sampled_from([0.0, 0.15, 0.4, 1.0]))
    if draw(st.booleans()):
        pattern[np.arange(n), rng.permutation(n)] = True
    exponents = rng.uniform(-decades, decades, (n, n))
    if draw(st.booleans()):
        exponents = np.round(exponents / decades) * decades  # few sizes: ties
    dense = np.where(pattern, 10.0**exponents * rng.choice([-1, 1], (n, n)), 0)
    if symmetric:
        dense = np.triu(dense) + np.triu(dense, 1).T
    A = sp.csr_matrix(dense)
    if A.nnz and draw(st.booleans()):
        A = sp.csr_matrix((np.append(A.data, 0.0), (np.append(A.nonzero()[0], n - 1), np.append(A.nonzero()[1], 0))))
        A.resize((n, n))
    return A


def logarithms(A):
    with np.errstate(divide="ignore"):
        return np.log2(abs(A.toarray().astype(np.result_type(A.dtype, np.float64))))


def scaled(A, M):
    """log2 of the magnitudes of the scaled matrix, -inf where there is no entry."""
    return logarithms(A) + np.log2(M.row_scale.astype(float))[:, None] + np.log2(M.column_scale.astype(float))


def optimum(A):
    """The largest log2 product of a matching, or None if there is none."""
    L = logarithms(A)
    big = 1e7
    i, j = linear_sum_assignment(np.where(np.isfinite(L), -L, big))
    total = L[i, j].sum()
    return total if np.isfinite(total) else None


def check_matching(A, M, rounding=1e-9):
    n = A.shape[0]
    np.testing.assert_array_equal(np.sort(M.columns), np.arange(n))
    S = scaled(A, M)
    assert S.max() <= rounding
    np.testing.assert_allclose(S[np.arange(n), M.columns], 0, atol=rounding)


def check_pairs(A, M):
    """Every pair is matched one way at least; a cycle of the matching has at most one single row, an odd one only."""
    n = A.shape[0]
    np.testing.assert_array_equal(np.sort(M.order), np.arange(n))
    starts = np.flatnonzero(M.first)
    assert not M.first[-1] and not M.first[starts + 1].any()
    i, j = M.order[starts], M.order[starts + 1]
    assert ((M.columns[i] == j) | (M.columns[j] == i)).all()
    assert (i < j).all()
    alone = np.ones(n, bool)
    alone[i] = alone[j] = False
    seen = np.zeros(n, bool)
    for start in range(n):
        cycle, k = [], start
        while not seen[k]:
            seen[k] = True
            cycle.append(k)
            k = M.columns[k]
        assert alone[cycle].sum() == len(cycle) % 2
    heads = M.order[np.concatenate([[True], ~M.first[:-1]])]
    assert (np.diff(heads) > 0).all()  # A's order, except for the partners


@PATTERNS
@given(A=matrices())
def test_a_matching_has_the_largest_product_and_its_scaling_bounds_all_entries_by_those(A):
    best = optimum(A)
    if best is None:
        with pytest.raises(StructurallySingular, match="structurally singular") as error:
            matching(A)
        missing = A.shape[0] - sp.csgraph.structural_rank(sp.csr_matrix(A.toarray()))
        assert error.value.count == missing and str(missing) in one_line(error)
        return
    M = matching(A)
    check_matching(A, M)
    assert logarithms(A)[np.arange(A.shape[0]), M.columns].sum() == pytest.approx(best, abs=1e-9)
    assert M.order is None and M.first is None


@PATTERNS
@given(A=matrices(symmetric=True))
def test_of_a_symmetric_matrix_there_is_one_scale_and_pairs(A):
    if optimum(A) is None:
        with pytest.raises(StructurallySingular):
            matching(A, symmetric=True)
        return
    M = matching(A, symmetric=True)
    np.testing.assert_array_equal(M.row_scale, M.column_scale)
    check_matching(A, M)
    check_pairs(A, M)


@PATTERNS
@given(A=matrices(decades=150, largest=8))
def test_entries_over_300_decades_are_bounded_by_1_and_scales_are_numbers(A):
    if optimum(A) is None:
        return
    for power_of_two in (False, True):
        M = matching(A, power_of_two=power_of_two)
        assert scaled(A, M).max() <= 1e-9
        for scale in (M.row_scale, M.column_scale):
            assert (scale >= np.finfo(float).tiny).all() and np.isfinite(scale).all()
        inside = min(M.row_scale.min(), M.column_scale.min()) > np.finfo(float).tiny
        if inside and max(M.row_scale.max(), M.column_scale.max()) < 2.0**1023:
            matched = scaled(A, M)[np.arange(A.shape[0]), M.columns]
            assert matched.min() > (-2 - 1e-9 if power_of_two else -1e-9)


@PATTERNS
@given(data=st.data(), symmetric=st.booleans())
def test_dual_exponents_bring_the_largest_product_to_1_in_any_range(data, symmetric):
    A = data.draw(matrices(symmetric=symmetric, decades=150, largest=8))
    best = optimum(A)
    if best is None:
        with pytest.raises(StructurallySingular):
            dual_exponents(A, symmetric=symmetric)
        return
    u, v = dual_exponents(A, symmetric=symmetric)
    assert (logarithms(A) + u[:, None] + v).max() <= 1e-9
    assert best + u.sum() + v.sum() >= -2 * A.shape[0] - 1e-9
    assert not symmetric or (u == v).all()


def test_dual_exponents_are_no_numbers_that_scale():
    A = sp.csr_matrix(sp.diags([np.ones(400), np.full(399, -1000.0)], [0, -1]))
    u, v = dual_exponents(A)
    assert np.ptp(v) > 3000 and (u + v >= -2).all() and (u[1:] + v[:-1] + 10 <= 1).all()


@pytest.mark.parametrize("symmetric", [False, True])
def test_a_well_mixed_matrix_of_300_decades_is_scaled_to_1(symmetric):
    rng = np.random.default_rng(3)
    core = rng.uniform(0.1, 0.9, (30, 30)) + 2 * np.eye(30)[:, rng.permutation(30)]
    left, right = 10.0 ** rng.uniform(-150, 150, (2, 30))
    if symmetric:
        core, left = np.tril(core) + np.tril(core, -1).T, right
    A = sp.csr_matrix(left[:, None] * core * right)
    M = matching(A, symmetric=symmetric)
    check_matching(A, M)
    assert np.array_equal(matching(core, symmetric=symmetric).columns, M.columns)
    B = M.row_scale[:, None] * A.toarray() * M.column_scale  # in floating point, not in logarithms
    assert abs(B).max() <= 1 + 1e-9


def test_entries_as_large_and_as_small_as_numbers_are():
    tiny, huge = 5e-324, np.finfo(float).max
    for entries in (
        [[tiny]],
        [[huge]],
        [[0, huge], [tiny, 0]],
        [[tiny, huge], [0, tiny]],
        [[huge, huge], [tiny, huge]],
    ):
        A = sp.csr_matrix(np.array(entries))
        for M in (matching(A), matching(A, power_of_two=True)):
            assert scaled(A, M).max() <= 1e-9
    check_matching(sp.csr_matrix([[huge]]), matching([[huge]]))
    # One that no scales fit: in powers of two u_1 + v_1 = u_2 + v_2 = 1074 and u_1 + v_2 <= -1024.
    M = matching(np.array([[tiny, huge], [0, tiny]]))
    assert scaled(sp.csr_matrix([[tiny, huge], [0, tiny]]), M)[[0, 1], [0, 1]].min() < -100
    assert {M.row_scale.max(), M.column_scale.max()} <= {2.0**1023}


@pytest.mark.parametrize("symmetric", [False, True])
def test_scales_that_do_not_fit_single_precision_are_clipped_and_all_stays_bounded(symmetric):
    rng = np.random.default_rng(1)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        dense = np.where(rng.random((9, 9)) < 0.4, 10.0 ** rng.uniform(-44, 38, (9, 9)), 0) + np.diag([1e-44] * 9)
        dense = np.maximum(dense, dense.T) if symmetric else dense
        A = sp.csr_matrix(dense.astype(np.float32))
        for power_of_two in (False, True):
            M = matching(A, symmetric=symmetric, power_of_two=power_of_two)
            assert M.row_scale.dtype == M.column_scale.dtype == np.float32
            assert scaled(A, M).max() <= 1e-6
            for scale in (M.row_scale, M.column_scale):
                assert (scale >= np.finfo(np.float32).tiny).all() and np.isfinite(scale).all()


def test_a_symmetric_clip_lowers_the_neighbours_of_what_was_raised():
    # s_1 = -512 + ..., so large a first entry and so small a second that s of the third would leave the range
    huge, tiny = 1e300, 1e-300
    A = sp.csr_matrix(np.array([[tiny, huge, 0], [huge, tiny, huge], [0, huge, tiny]]))
    for power_of_two in (False, True):
        M = matching(A, symmetric=True, power_of_two=power_of_two)
        assert scaled(A, M).max() <= 1e-9
        assert np.isfinite(M.row_scale).all() and (M.row_scale > 0).all()


@PATTERNS
@given(A=matrices())
def test_powers_of_two_lose_at_most_a_factor_of_4(A):
    if optimum(A) is None:
        return
    M = matching(A, power_of_two=True)
    for scale in (M.row_scale, M.column_scale):
        np.testing.assert_array_equal(np.frexp(scale)[0], 0.5)
    S = scaled(A, M)
    assert S.max() <= 1e-9 and S[np.arange(A.shape[0]), M.columns].min() > -2 - 1e-9
    assert S.max(axis=0).min() > -1 - 1e-9


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_and_index_type_and_a_hermitian_matrix(backend, dtype, index):
    own_types(backend, dtype, index)
    A = gallery.random_dominant(40, 0.1, 1)
    H = in_dtype(sp.csr_matrix(A + A.T), dtype)
    for symmetric in (False, True):
        M = matching(with_index(backend.fetch(H), index), symmetric=symmetric)
        check_matching(H, M, 2e-6 if M.row_scale.dtype == np.float32 else 1e-12)
        assert M.row_scale.dtype == H.data.real.dtype
        np.testing.assert_array_equal(matching(backend.move(H), symmetric=symmetric).columns, M.columns)


def test_magnitudes_of_complex_entries_do_not_overflow():
    A = sp.csr_matrix(np.array([[1.7e308 * (1 + 1j), 0], [0, 1e-308j]]))
    M = matching(A)
    B = (M.row_scale[:, None] * (A.toarray() / 4)) * M.column_scale
    np.testing.assert_allclose(abs(np.diag(B)), 0.25, rtol=1e-12)


def test_the_singles_of_odd_cycles_have_the_largest_diagonal():
    columns = np.array([2, 0, 4, 3, 1, 6, 5])  # 0 2 4 1, 3, 5 6
    order, first = np.empty(7, np.int64), np.empty(7, bool)
    cut_cycles(columns, np.zeros(7), order, first)
    np.testing.assert_array_equal(order, [0, 2, 1, 4, 3, 5, 6])
    np.testing.assert_array_equal(first, [1, 0, 1, 0, 0, 1, 0])
    columns = np.array([1, 2, 3, 4, 0])
    order, first = np.empty(5, np.int64), np.empty(5, bool)
    cut_cycles(columns, np.array([0.1, 0.2, 0.9, -np.inf, 0.9]), order, first)
    np.testing.assert_array_equal(order, [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(first, [1, 0, 0, 1, 0])


def test_a_saddle_point_matrix_is_matched_in_pairs():
    n = 20
    B = sp.random(n, n, 0.2, random_state=np.random.default_rng(0)) + 2 * sp.identity(n)
    A = sp.csr_matrix(sp.bmat([[1e-3 * sp.identity(n), B.T], [B, None]]))
    M = matching(A, symmetric=True)
    check_matching(A, M)
    check_pairs(A, M)
    assert M.first.sum() == n


def test_a_long_chain_of_entries_above_the_diagonal():
    n = 100_000
    rng = np.random.default_rng(0)
    order = rng.permutation(n)
    A = sp.csr_matrix(sp.diags([np.ones(n), np.full(n - 1, 1.001)], [0, 1]))[order][:, order]
    M = matching(sp.csr_matrix(A))
    B = abs(sp.diags(M.row_scale) @ A @ sp.diags(M.column_scale)).tocsr()
    assert B.max() <= 1 + 1e-9 and abs(B.diagonal() - 1).max() < 1e-9
    np.testing.assert_array_equal(M.columns, np.arange(n))


def test_layers_in_which_paths_multiply_are_matched_at_once():
    # Layers of two rows, each coupled to the next in all ways: 2^40 paths, and no free column at their end.
    depth = 40
    A = sp.lil_matrix((2 * depth + 1, 2 * depth + 1))
    for layer in range(depth):
        A[2 * layer : 2 * layer + 2, 2 * layer : 2 * layer + 4] = 1.0
    A = sp.csr_matrix(A[:, : 2 * depth + 1])
    with pytest.raises(StructurallySingular, match="1 row"):
        matching(A)


def test_what_cannot_be_matched_is_named():
    A = sp.csr_matrix(np.array([[1.0, 1, 1], [0, 1, 0], [0, 1, 0]]))
    with pytest.raises(StructurallySingular, match=r"1 row is not independent, row [12]: ") as error:
        matching(A)
    assert one_line(error) and isinstance(error.value, MatrixError)
    with pytest.raises(StructurallySingular, match="3 rows are not independent, rows 0, 1, 2"):
        matching(sp.csr_matrix((3, 3)))
    A.data[:] = 0
    with pytest.raises(StructurallySingular, match="3 rows"):  # stored zeros are no entries
        matching(A, symmetric=True)


def test_bad_input_is_one_line():
    A = sp.csr_matrix(np.array([[1.0, 2], [3, 1]]))
    with refused(MatrixError, match=r"\((0, 1|1, 0)\).*differ in magnitude"):
        matching(A, symmetric=True)
    with pytest.raises(MatrixError, match="square"):
        matching(np.ones((2, 3)))
    with pytest.raises(MatrixError, match="NaN or Inf in row 1"):
        equilibrate(np.array([[1, 2], [np.inf, 1]]))
    for sweeps in (0, -1, 1.5, True):
        with pytest.raises(ParameterError, match="sweeps="):
            equilibrate(A, sweeps=sweeps)


def test_symmetric_up_to_rounding_is_symmetric():
    A = gallery.anisotropic_triangles(1).tocsr().copy()
    A.data *= 1 + 1e-15 * np.random.default_rng(0).uniform(-1, 1, A.nnz)
    assert abs(A - A.T).max() > 0
    check_matching(A, matching(A, symmetric=True))


# Equilibration


def norms(A, r, c):
    L = logarithms(A) + np.log2(r.astype(float))[:, None] + np.log2(c.astype(float))
    return np.concatenate([L.max(axis=0), L.max(axis=1)])


@PATTERNS
@given(A=matrices(decades=150), symmetric=st.booleans())
def test_equilibration_brings_all_norms_near_1(A, symmetric):
    A = sp.csr_matrix(np.triu(A.toarray()) + np.triu(A.toarray(), 1).T) if symmetric else A
    r, c = equilibrate(A, symmetric=symmetric)
    for scale in (r, c):
        np.testing.assert_array_equal(np.frexp(scale)[0], 0.5)
    if symmetric:
        np.testing.assert_array_equal(r, c)
    found = norms(A, r, c)
    outside = (np.concatenate([c, r]) <= np.finfo(float).tiny) | (np.concatenate([c, r]) >= 2.0**1023)
    if not outside.any():
        found = found[np.isfinite(found)]
        assert (2**found >= 0.45).all() and (2**found <= 2.2).all()
    D = A.toarray()
    assert (r[~D.any(axis=1) & (~D.any(axis=0) if symmetric else True)] == 1).all()
    assert (c[~D.any(axis=0) & (~D.any(axis=1) if symmetric else True)] == 1).all()


def test_sweeps_of_the_equilibration_halve_what_is_left():
    d = 2.0 ** np.random.default_rng(0).uniform(-300, 300, 30)
    A = sp.csr_matrix(sp.diags(d) @ gallery.random_dominant(30, 0.2, 0) @ sp.diags(1 / d[::-1]))
    left = [abs(norms(A, *equilibrate(A, sweeps=k))).max() for k in (1, 3, 5, 20)]
    assert left[0] > 2 * left[1] > 4 * left[2] and left[3] < 1.2


def test_one_scale_for_a_matrix_that_is_not_symmetric():
    A = sp.csr_matrix(np.array([[1.0, 1e8], [1e-8, 1e4]]))
    r, c = equilibrate(A, symmetric=True)
    np.testing.assert_array_equal(r, c)
    assert abs(sp.diags(r) @ A @ sp.diags(c)).max() <= 2.2


@pytest.mark.parametrize("dtype", DTYPES)
def test_equilibration_keeps_the_dtype_and_takes_arrays_of_either_device(backend, dtype):
    A = in_dtype(gallery.random_dominant(50, 0.1, 1), dtype)
    r, c = equilibrate(backend.move(A))
    assert r.dtype == c.dtype == A.data.real.dtype
    assert (2 ** norms(A, r, c) <= 2.2).all() and (2 ** norms(A, r, c) >= 0.45).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_even_exponents_bring_each_column_to_a_largest_part_of_at_least_one_half(backend, dtype):
    smallest = np.finfo(dtype).smallest_subnormal
    A = np.array([[3, 0, smallest, 1e30], [0, 0, 0, -1e-30], [-0.75, 0, 0, 2]], dtype)
    if A.dtype.kind == "c":
        A[0, 3] *= 0.25 - 8j
    S = backend.move(sp.csr_matrix(A))
    exponents = even_exponents(S)
    assert type(exponents) is type(S.data) and exponents.dtype == np.int32
    scaled = with_columns_times(backend.move(sp.csr_matrix(A[:, [0, 3]])), exponents[backend.move(np.array([0, 3]))])
    parts = backend.fetch(scaled.toarray())
    largest = np.maximum(abs(parts.real), abs(parts.imag)).max(axis=0)
    exponents = backend.fetch(exponents)
    assert exponents[1] == 0 and np.ldexp(smallest, exponents[2]) == 0.5
    assert (largest >= 0.5).all() and (largest < 1).all()


@pytest.mark.skipif(not MATRICES.exists(), reason="the real matrices are not here")
@pytest.mark.parametrize("name", ["memplus", "west0497", "lhr01", "opm_egg_3ph", "pf_ACTIVSg70k", "lns_131"])
def test_real_matrices(name):
    A = sp.csr_matrix(io.read_matrix(MATRICES / f"{name}.mtx.gz"))
    M = matching(A)
    B = abs(sp.diags(M.row_scale) @ A @ sp.diags(M.column_scale)).tocsr()
    assert B.max() <= 1 + 1e-11
    np.testing.assert_allclose(B[np.arange(A.shape[0]), M.columns], 1, rtol=1e-11)
    r, c = equilibrate(as_csr(A, diagonal=False))
    B = abs(sp.diags(r) @ A @ sp.diags(c))
    for axis in (0, 1):
        largest = B.max(axis=axis).toarray()
        assert largest.max() <= 2.2 and largest.min() >= 0.45
