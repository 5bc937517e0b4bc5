"""ILUT, ICT and the pattern of ILU(k) on the GPU: by twin, with too little room, where they stop, the same bits."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import IN_TYPES, PATTERNS, assert_close, dominant_matrices, full, in_dtype, long_rows, with_index
from hypothesis import given
from hypothesis import strategies as st

from finelu import ICT, ILUT, gallery
from finelu.kernels import cpu, reference
from finelu.matrix import as_csr, lower_triangle

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cupy")]

UNLIMITED, NEVER = 2**62, float("inf")
SPREAD = ("poisson7:5,4,3", "convection_diffusion:8,7,1,peclet=50", "arrow:70", "random_dominant:60,0.08,3")
HERMITIAN = ("poisson7:5,4,3", "anisotropic_triangles:2", "arrow:70", "random_dominant:60,0.08,3,hermitian=True")


def norms(A):
    return cpu.scaling.row_norms(A.indptr, A.data)


def thresholds(A, drop_tol):
    """The threshold of each row, moved by a part in 10^4, so that no entry lies on one."""
    return drop_tol * norms(A) * np.random.default_rng(A.n).uniform(1, 1.0001, A.n)


def operand(kernel, A):
    """What this kernel factors of A."""
    return A if kernel == "ilut" else lower_triangle(A)[0]


def both(cupy, cuda, name, A, drop_tol, fill, most=UNLIMITED):
    tau = thresholds(A, drop_tol)
    want = getattr(cpu.threshold, name)(A, tau, fill, most)
    return want, getattr(cuda.threshold, name)(A.on(cupy), cupy.asarray(tau), fill, most)


def assert_same(made, want, ulps=1e3):
    assert (made.rows, made.stored) == (want.rows, want.stored)
    for part in ("indptr", "indices", "diag"):
        np.testing.assert_array_equal(getattr(made, part).get(), getattr(want, part))
    assert made.data.dtype == want.data.dtype and made.indices.dtype == want.indices.dtype
    assert_close(made.data.get(), want.data, ulps)


@IN_TYPES
@pytest.mark.parametrize("fill", [1.0, NEVER])
@pytest.mark.parametrize(
    ("kernel", "name"), [*(("ilut", name) for name in SPREAD), *(("ict", name) for name in HERMITIAN)]
)
def test_the_kernels_are_their_twins(cupy, cuda, kernel, name, fill, dtype, index):
    A = with_index(as_csr(in_dtype(gallery.problem(name), dtype)), index)
    want, made = both(cupy, cuda, kernel, operand(kernel, A), 0.01, fill)
    assert want.rows == A.n and want.stored > A.n
    assert_same(made, want)


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("kernel", ["ilut", "ict"])
def test_rows_of_diagonal_blocks_take_turns(cupy, cuda, kernel, index):
    """The first row of each block, the second of each, ...; the factors are those of any other order."""
    parts = gallery.poisson7(4, 3, 2), sp.csr_matrix([[2.0]]), gallery.poisson5(30), gallery.poisson7(9), sp.eye(3)
    A = operand(kernel, with_index(as_csr(sp.csr_matrix(sp.block_diag(parts))), index))
    want, made = both(cupy, cuda, kernel, A, 1e-3, NEVER)
    assert_same(made, want)
    sizes = [24, 1, 900, 729, 1, 1, 1]
    firsts, places = np.repeat(np.cumsum([0, *sizes[:-1]]), sizes), np.concatenate([np.arange(n) for n in sizes])
    np.testing.assert_array_equal(firsts + places, np.arange(A.n))
    turns = cuda.threshold._turns(*(cupy.asarray(v) for v in (A.indptr, A.indices)))
    np.testing.assert_array_equal(turns.get(), np.argsort(places, kind="stable"))


def test_the_rows_of_one_block_have_their_own_order(cupy, cuda):
    A = as_csr(gallery.poisson5(8))
    assert cuda.threshold._turns(cupy.asarray(A.indptr), cupy.asarray(A.indices)) is None


@pytest.mark.parametrize("kernel", ["ilut", "ict"])
@PATTERNS
@given(data=st.data(), drop_tol=st.sampled_from([0.0, 1e-3, 0.1]), fill=st.sampled_from([0.5, 2.0, NEVER]))
def test_the_kernels_on_any_pattern(cupy, cuda, kernel, data, drop_tol, fill):
    A = operand(kernel, as_csr(data.draw(dominant_matrices(hermitian=kernel == "ict"))))
    want, made = both(cupy, cuda, kernel, A, drop_tol, fill)
    assert_same(made, want)


@PATTERNS
@given(A=dominant_matrices(), level=st.integers(0, 30))
def test_the_pattern_of_iluk_of_any_pattern(cupy, cuda, A, level):
    A = as_csr(A)
    indptr, indices = reference.fill.pattern_iluk(A.indptr, A.indices, level)
    made = cuda.fill.pattern_iluk(cupy.asarray(A.indptr), cupy.asarray(A.indices), level)
    np.testing.assert_array_equal(made[0].get(), indptr)
    np.testing.assert_array_equal(made[1].get(), indices)
    np.testing.assert_array_equal(made[1][made[2]].get(), A.indices)


@pytest.mark.parametrize("index", ["int32", "int64"])
@pytest.mark.parametrize("level", [0, 1, 2, 5])
def test_the_pattern_of_iluk_of_larger_ones(cupy, cuda, level, index):
    for name in ("poisson7:20", "anisotropic_triangles:3", "arrow:300"):
        A = with_index(as_csr(gallery.problem(name)), index)
        want = cpu.fill.pattern_iluk(A.indptr, A.indices, level)
        made = cuda.fill.pattern_iluk(cupy.asarray(A.indptr), cupy.asarray(A.indices), level)
        assert all(part.dtype == A.indices.dtype for part in made)
        for got, part in zip(made, want, strict=True):
            np.testing.assert_array_equal(got.get(), part)


@pytest.mark.parametrize("n", [150, 300, 700, 1500])
def test_tables_grow_with_the_rows(cupy, cuda, n):
    """150 columns fit the first table, 300 and 700 a larger one of shared memory, 1500 one outside of it."""
    A = as_csr(full(n))
    assert_same(*reversed(both(cupy, cuda, "ilut", A, 1e-4, NEVER)), ulps=1e4)
    L = lower_triangle(as_csr(sp.csr_matrix(full(n, hermitian=True))))[0]
    assert_same(*reversed(both(cupy, cuda, "ict", L, 1e-4, NEVER)), ulps=1e4)


def test_rows_of_all_lengths(cupy, cuda):
    A = as_csr(long_rows(3000))
    assert_same(*reversed(both(cupy, cuda, "ilut", A, 0.01, 1.0)), ulps=1e4)


def test_the_pool_grows_with_the_fill(cupy, cuda):
    A = as_csr(gallery.poisson5(40))
    want, made = both(cupy, cuda, "ilut", A, 0.0, NEVER)
    assert want.stored > 8 * A.nnz
    assert_same(made, want, ulps=1e4)


@pytest.mark.parametrize("name", ["ilut", "ict"])
def test_it_stops_where_there_would_be_too_many_entries(cupy, cuda, name):
    A = operand(name, as_csr(gallery.poisson7(12)))
    whole, _ = both(cupy, cuda, name, A, 1e-3, NEVER)
    _, made = both(cupy, cuda, name, A, 1e-3, NEVER, whole.stored)
    assert made.rows == A.n and made.stored == whole.stored
    _, made = both(cupy, cuda, name, A, 1e-3, NEVER, whole.stored - 1)
    assert made.rows < A.n and made.stored == whole.stored


@pytest.mark.parametrize("row", [0, 7, 500])
def test_the_first_bad_row_is_named(cupy, cuda, row):
    A = gallery.poisson7(9).tolil()
    for i in (row, 600, 700):
        A[i, i] = -5.0
    L = lower_triangle(as_csr(A.tocsr()))[0]
    want, made = both(cupy, cuda, "ict", L, 1e-3, NEVER)
    assert made.rows == want.rows == row
    assert made.pivot == pytest.approx(want.pivot, rel=1e-10)
    B = sp.csr_matrix(sp.block_diag([gallery.poisson5(10), sp.csr_matrix([[1.0, 2], [2, 4]]), gallery.poisson5(10)]))
    want, made = both(cupy, cuda, "ilut", as_csr(B), 0.0, NEVER)
    assert made.rows == want.rows == 101 and made.pivot == want.pivot == 0


def test_the_bits_are_the_same_in_every_run(cupy, cuda):
    A = as_csr(gallery.convection_diffusion(14)).on(cupy)
    tau = cupy.asarray(1e-4 * norms(A.on(np)))
    first = cuda.threshold.ilut(A, tau, 5.0, UNLIMITED)
    for _ in range(4):
        again = cuda.threshold.ilut(A, tau, 5.0, UNLIMITED)
        for part in ("indptr", "indices", "data", "diag"):
            assert (getattr(again, part) == getattr(first, part)).all()


@pytest.mark.parametrize("name", ["poisson7:30", "random_dominant:6000,0.001,1"])
def test_what_is_finished_stays_where_there_was_too_little_room(cupy, cuda, name):
    A = as_csr(gallery.problem(name))
    want = cpu.fill.pattern_iluk(A.indptr, A.indices, 3)
    assert want[1].size > 4 * A.nnz  # for which there was room at first
    for _ in range(5):
        made = cuda.fill.pattern_iluk(cupy.asarray(A.indptr), cupy.asarray(A.indices), 3)
        for got, part in zip(made, want, strict=True):
            np.testing.assert_array_equal(got.get(), part)


def test_a_wanted_number_of_entries_is_reached(cupy):
    import cupyx.scipy.sparse as csp

    for recipe, name in ((ILUT, "convection_diffusion:12"), (ICT, "poisson7:12")):
        A = sp.csr_matrix(gallery.problem(name))
        on_gpu = csp.csr_matrix(tuple(cupy.asarray(v) for v in (A.data, A.indices, A.indptr)), shape=A.shape)
        F, G = (recipe(nnz=A.nnz).factor(S) for S in (A, on_gpu))
        assert A.nnz - 1 <= G.report["nnz"] <= A.nnz and A.nnz - 1 <= F.report["nnz"] <= A.nnz
        again = recipe(nnz=A.nnz).factor(on_gpu)
        triangle = "U" if recipe is ILUT else "L"
        assert (getattr(again, triangle).data == getattr(G, triangle).data).all()
