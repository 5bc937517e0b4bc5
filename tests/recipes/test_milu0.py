"""MILU(0): by definition, by limit, by twin, by effect, by behaviour, by bad input."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import (
    DTYPES,
    IN_TYPES,
    ON_GPU,
    PATTERNS,
    assert_close,
    dominant_matrices,
    fetched,
    full,
    in_dtype,
    iterations,
    long_rows,
    longest_chain,
    one_line,
    perturbed,
    values,
    with_index,
)
from hypothesis import given
from hypothesis import strategies as st

import finelu as fl
from finelu import ILU0, MILU0, ParameterError, ZeroPivot, gallery
from finelu.kernels import reference
from finelu.kernels.cpu.elimination import milu0, milu0_analysis
from finelu.kernels.operands import CSR
from finelu.matrix import as_csr

VARIANTS = ("sequential", "levels", "auto")


def reference_factors(A, relax):
    A = as_csr(A)
    lu = np.empty_like(A.data)
    assert reference.elimination.milu0(A.indptr, A.indices, A.diag, A.data, A.dtype.type(relax), lu) == -1
    return lu


def assert_is_milu0_of(A, L, U, relax=1.0, ulps=256):
    """L U has A's entries off the diagonal of A's pattern, and A's row sums after `relax` of the fill is taken away."""
    n = A.shape[0]
    product, size = L @ U, abs(L) @ abs(U)
    rows = np.repeat(np.arange(n), np.diff(A.indptr))
    off = rows != A.indices
    got = np.asarray(product[rows, A.indices]).ravel()[off]
    assert_close(got, A.data[off], ulps, scale=np.asarray(size[rows, A.indices]).ravel()[off])
    pattern = sp.csr_matrix((np.ones(A.nnz), A.indices, A.indptr), shape=A.shape)
    fill = product - product.multiply(pattern)  # what L U has and A has not
    want = A.diagonal() - relax * np.asarray(fill.sum(axis=1)).ravel()
    scale = np.asarray(size.sum(axis=1)).ravel()
    assert_close(product.diagonal(), want.astype(A.dtype), ulps, scale=scale)
    if relax == 1:
        assert_close(L @ (U @ np.ones(n, A.dtype)), A @ np.ones(n, A.dtype), ulps, scale=scale)
    return fill


# By definition: (L U) e = A e


@pytest.mark.parametrize("problem", gallery.small(), ids=str)
def test_l_u_has_the_row_sums_of_a(backend, problem):
    F = MILU0().factor(backend.move(problem.A))
    assert_is_milu0_of(problem.A, *fetched(backend, F))
    assert F.nnz == problem.A.nnz and F.dtype == problem.A.dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["poisson7:5,4,3", "convection_diffusion:8,7,1,peclet=50"])
def test_l_u_has_the_row_sums_of_a_in_every_dtype(backend, name, dtype):
    A = in_dtype(gallery.problem(name), dtype)
    F = MILU0(shift=0.05).factor(backend.move(A))
    assert F.dtype == F.L.dtype == F.U.dtype == dtype
    moved = A.copy()
    moved.setdiag((A.diagonal() * (1 + 0.05)).astype(dtype))
    fill = assert_is_milu0_of(sp.csr_matrix(moved), *fetched(backend, F))
    assert abs(fill).max() > 0.1  # there was something to drop


@PATTERNS
@given(A=dominant_matrices(), relax=st.sampled_from([0.0, 0.5, 1.0]))
def test_any_pattern_and_relaxation(backend, A, relax):
    F = MILU0(relax=relax).factor(backend.move(A))
    assert_is_milu0_of(A, *fetched(backend, F), relax)


GPU_MATRICES = {
    "poisson7": sp.csr_matrix(gallery.poisson7(24) + sp.identity(24**3)),
    "27 points": sp.csr_matrix(gallery.poisson27(12) + sp.identity(12**3)),
    "long rows": long_rows(2500),
    "chain": longest_chain(3000),
    "arrow": gallery.arrow(3000),
    "random": gallery.random_dominant(5000, density=0.004, seed=1),
}


@ON_GPU
@pytest.mark.parametrize("variant", ["adapt", "levs", "table", "auto"])
@pytest.mark.parametrize("name", GPU_MATRICES)
def test_on_a_gpu_it_is_that_of_the_cpu(backend, name, variant):
    for dtype, index in (("float64", "int32"), ("complex64", "int32"), ("float64", "int64")):
        A = with_index(in_dtype(GPU_MATRICES[name], dtype), index)
        eps = np.finfo(A.data.real.dtype).eps
        for relax in (1.0, 0.7):
            want = np.empty_like(A.data)
            assert milu0(milu0_analysis(A, "sequential"), A.data, relax, want) == -1
            on_gpu = CSR(*(backend.move(part) for part in (A.indptr, A.indices, A.data, A.diag)))
            F = MILU0(relax=relax, variant=variant).factor(on_gpu)
            for again in (F, F.update(on_gpu), MILU0(relax=relax, variant=variant).factor(on_gpu)):
                got = backend.fetch(again.triangles.data)
                np.testing.assert_allclose(got, want, rtol=1e5 * eps, atol=1e4 * eps * abs(want).max())
            assert F.report.variant == variant or variant == "auto"


# By limit


@pytest.mark.parametrize("problem", gallery.small(), ids=str)
def test_with_relax_0_it_is_ilu0(problem):
    F, G = MILU0(relax=0).factor(problem.A), ILU0().factor(problem.A)
    np.testing.assert_array_equal(F.U.data, G.U.data)
    np.testing.assert_array_equal(F.L.data, G.L.data)


@pytest.mark.parametrize("A", [gallery.tridiagonal(50), gallery.arrow(50), full(30)], ids=["chain", "arrow", "full"])
def test_where_there_is_no_fill_it_is_ilu0(A):
    np.testing.assert_array_equal(MILU0().factor(A).U.data, ILU0().factor(A).U.data)


# By twin: the reference's bits, on any number of threads


@pytest.mark.parametrize("relax", [1.0, 0.7])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("problem", gallery.small(), ids=str)
def test_the_bits_are_those_of_the_reference(problem, variant, relax):
    A = as_csr(problem.A)
    lu = np.full_like(A.data, np.nan)
    assert milu0(milu0_analysis(A, variant), A.data, relax, lu) == -1
    np.testing.assert_array_equal(lu, reference_factors(A, relax))


@IN_TYPES
def test_the_bits_are_those_of_the_reference_in_every_dtype(dtype, index):
    for name in ("poisson7:5,4,3", "random_dominant:60,0.08,3"):
        A = with_index(in_dtype(gallery.problem(name), dtype), index)
        lu = np.full_like(A.data, np.nan)
        assert milu0(milu0_analysis(A), A.data, 0.9, lu) == -1
        np.testing.assert_array_equal(lu, reference_factors(A, 0.9))


@pytest.mark.parametrize(
    "A",
    [
        sp.csr_matrix(gallery.poisson7(24) + sp.identity(24**3)),
        long_rows(2500),
        longest_chain(3000),
        gallery.arrow(3000),
    ],
    ids=["poisson7", "long rows", "chain", "arrow"],
)
def test_the_bits_do_not_depend_on_the_number_of_threads(A, threads):
    A = as_csr(A)
    want = np.empty_like(A.data)
    assert milu0(milu0_analysis(A, "sequential"), A.data, 1.0, want) == -1
    for count in (1, 2, 3):
        threads(count)
        plan = milu0_analysis(A, "levels")
        assert plan.schedule.threads == count
        for _ in range(3):
            lu = np.full_like(A.data, np.nan)
            assert milu0(plan, A.data, 1.0, lu) == -1
            np.testing.assert_array_equal(lu, want)


# The effect of each parameter


def test_relax_moves_the_diagonal_between_ilu0_and_milu0():
    A = gallery.poisson7(6)
    diagonals = [MILU0(relax=relax).factor(A).U.diagonal() for relax in (0.0, 0.5, 1.0)]
    assert (diagonals[0] >= diagonals[1]).all() and (diagonals[1] >= diagonals[2]).all()
    assert abs(diagonals[0] - diagonals[1]).max() > 0.1 < abs(diagonals[1] - diagonals[2]).max()


def test_precision_float32_gives_the_factors_of_the_rounded_matrix(backend):
    A = gallery.poisson7(5, 4, 3)
    F, G = MILU0(precision="float32").factor(backend.move(A)), MILU0().factor(backend.move(A.astype("float32")))
    assert F.dtype == F.U.dtype == np.float32
    np.testing.assert_array_equal(backend.fetch(F.U.data), backend.fetch(G.U.data))


def test_variant_and_triangular_are_those_asked_for():
    A = gallery.poisson7(5)
    assert [MILU0(variant=v).factor(A).report["variant"] for v in ("sequential", "levels")] == ["sequential", "levels"]
    F = MILU0(triangular="jacobi", sweeps=4).factor(A)
    assert {part["method"] for part in F.report["triangular"].values()} == {"jacobi"}


def test_the_report_says_what_ran_where(backend):
    F = MILU0().factor(backend.move(gallery.poisson7(5, 4, 3)))
    assert F.report["factored_on"] == F.report["applied_on"] == ("CPU" if backend.name == "cpu" else "GPU")


# Update


@pytest.mark.parametrize("problem", gallery.small()[:24:8], ids=str)
def test_update_is_a_fresh_factorization(backend, problem):
    B = perturbed(problem.A)
    F, G = (MILU0(relax=0.9).factor(backend.move(A)) for A in (problem.A, B))
    plan, storage = F._numeric.plan, F._triangles.data
    r = backend.move(values((B.shape[0], 2), B.dtype))
    F.solve(r, trans="H")
    assert F.update(backend.move(B)) is F
    assert (F._numeric.plan is plan or plan.provisional) and F._triangles.data is storage
    np.testing.assert_array_equal(backend.fetch(F.U.data), backend.fetch(G.U.data))
    for trans in ("N", "T", "H"):
        np.testing.assert_array_equal(backend.fetch(F.solve(r, trans=trans)), backend.fetch(G.solve(r, trans=trans)))


# By behaviour


def test_on_fine_grids_milu0_needs_fewer_iterations_than_ilu0():
    A = gallery.poisson5(100)
    b = values(A.shape[0], "float64")
    needed = [fl.gmres(A, b, M=recipe.factor(A), restart=200).iterations for recipe in (ILU0(), MILU0(relax=0.99))]
    assert needed[1] <= 0.7 * needed[0]


def test_milu0_solves_convection():
    A = gallery.convection_diffusion(12, 12, 12, peclet=20)
    assert iterations(A, MILU0().factor(A), restart=100) <= 25


# By bad input


def test_a_zero_pivot_names_its_row_and_what_to_try(backend):
    A = sp.csr_matrix(np.array([[1.0, 1, 0], [1, 2, 1], [0, 0, 1]]) + 0.0)
    A[1, 1] = 1.0
    with pytest.raises(ZeroPivot, match=r"the pivot of row 1 is 0.*relax=0\.95.*shift=1e-3") as error:
        MILU0().factor(backend.move(A))
    assert error.value.row == 1 and error.value.recipe == MILU0()
    one_line(error)


def test_a_pivot_that_the_dropped_fill_takes_away_names_its_row(backend):
    A = sp.csr_matrix(np.array([[1.0, 0, 1, 1], [0, 1, 0, 0], [1, 0, 3, 0], [0, 0, 0, 1]]))  # 3 - 1, and fill of -2
    A[0, 3] = 2.0
    with pytest.raises(ZeroPivot, match="the pivot of row 2 is 0"):
        MILU0().factor(backend.move(A))
    U = fetched(backend, MILU0(relax=0.5).factor(backend.move(A)))[1]
    np.testing.assert_array_equal(U.diagonal(), [1, 1, 1, 1])


def test_values_that_overflow_are_found():
    with pytest.raises(ZeroPivot, match="row 1 ") as error:
        MILU0().factor(sp.csr_matrix(np.array([[1e-300, 1e300], [1e300, 1.0]])))
    one_line(error)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"relax": -0.1}, "relax"),
        ({"relax": 1.1}, "relax"),
        ({"relax": np.nan}, "relax"),
        ({"relax": True}, "relax"),
        ({"relax": "half"}, "relax"),
        ({"shift": -1.0}, "shift"),
        ({"precision": "float16"}, "precision"),
        ({"variant": "vect"}, "variant"),
        ({"triangular": "direct"}, "direct"),
    ],
    ids=str,
)
def test_parameters_without_a_meaning_are_refused(backend, options, named):
    with pytest.raises(ParameterError, match=named) as error:
        MILU0(**options).factor(backend.move(gallery.poisson7(3)))
    one_line(error)
