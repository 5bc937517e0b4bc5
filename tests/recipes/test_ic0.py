"""IC(0): by definition, by limit, by twin, by the effect of each parameter, by behaviour, by bad input."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import (
    DTYPES,
    IN_TYPES,
    PATTERNS,
    assert_close,
    dominant_matrices,
    full,
    in_dtype,
    long_rows,
    one_line,
    perturbed,
    values,
    with_index,
)
from conftest import real_matrix
from hypothesis import given
from hypothesis import strategies as st

import finelu as fl
from finelu import IC0, ParameterError, ZeroPivot, gallery
from finelu.kernels import kernels_for, reference
from finelu.kernels.cpu.elimination import ic0, ic0_analysis
from finelu.matrix import as_csr, lower_triangle

VARIANTS = ("sequential", "levels", "auto")
SPREAD = ("poisson7:5,4,3", "anisotropic_triangles:2", "arrow:70")  # taken through all dtypes


def reference_factor(A):
    """The lower triangle of A as a checked CSR, and the values of L by kernels/reference."""
    lower, _ = lower_triangle(as_csr(A))
    l = np.empty_like(lower.data)
    assert reference.elimination.ic0(lower.indptr, lower.indices, lower.data, l) == -1
    return lower, l


def assert_is_ic0_of(A, L, ulps=64):
    """L has the pattern of A's lower triangle, a positive diagonal, and (L L^H)_ij = A_ij to some ulps of |L| |L|^T."""
    lower = sp.tril(A, format="csr")
    np.testing.assert_array_equal(L.indptr, lower.indptr)
    np.testing.assert_array_equal(L.indices, lower.indices)
    assert (L.diagonal().real > 0).all() and (L.diagonal().imag == 0).all()
    rows = np.repeat(np.arange(A.shape[0]), np.diff(lower.indptr))
    product = np.asarray((L @ L.conj().T)[rows, lower.indices]).ravel()
    size = np.asarray((abs(L) @ abs(L).T)[rows, lower.indices]).ravel()
    assert_close(product, lower.data, ulps, scale=size)


def fetched(backend, F):
    return sp.csr_matrix(backend.fetch(F.L))


# By definition


@pytest.mark.parametrize("problem", gallery.small_spd(), ids=str)
def test_ic0_reproduces_a_where_a_has_entries(backend, problem):
    F = IC0().factor(backend.move(problem.A))
    L = fetched(backend, F)
    assert_is_ic0_of(problem.A, L)
    assert F.nnz == L.nnz and F.shape == problem.A.shape and F.dtype == problem.A.dtype
    assert abs(backend.fetch(F.U) - L.conj().T).max() == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPREAD)
def test_ic0_reproduces_a_in_every_dtype(backend, name, dtype):
    A = in_dtype(gallery.problem(name), dtype)
    F = IC0().factor(backend.move(A))
    assert F.dtype == F.L.dtype == dtype
    assert_is_ic0_of(A, fetched(backend, F))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@PATTERNS
@given(data=st.data())
def test_ic0_reproduces_a_of_any_pattern(backend, dtype, data):
    A = data.draw(dominant_matrices(hermitian=True, dtype=dtype))
    assert_is_ic0_of(A, fetched(backend, IC0().factor(backend.move(A))))


@pytest.mark.parametrize("name", ["of_pitzDaily_p", "fv2", "1138_bus", "ibmpg1_spd", "Trefethen_20000", "ani4"])
def test_ic0_reproduces_real_matrices(backend, name):
    A = real_matrix(name)
    assert_is_ic0_of(A, fetched(backend, IC0().factor(backend.move(A))))


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
    assert_is_ic0_of(shifted, fetched(backend, IC0(shift=0.5).factor(backend.move(A))))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_solve_is_that_with_l_and_its_adjoint(backend, dtype):
    A = in_dtype(gallery.problem("poisson5:9,7"), dtype)
    F = IC0().factor(backend.move(A))
    L = fetched(backend, F).toarray()
    r = values((A.shape[0], 3), dtype)
    for trans, M in (("N", L @ L.conj().T), ("T", (L @ L.conj().T).T), ("H", L @ L.conj().T)):
        assert_close(M @ backend.fetch(F.solve(backend.move(r), trans=trans)), r, 256)


# By limit: without fill the incomplete factor is the Cholesky factor


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "A",
    [
        gallery.tridiagonal(50),
        gallery.arrow(50),
        full(30, hermitian=True),
        sp.csr_matrix(np.diag(np.arange(1.0, 9))),
        sp.csr_matrix([[2.0]]),
    ],
    ids=["tridiagonal", "arrow", "dense", "diagonal", "one row"],
)
def test_where_there_is_no_fill_one_solve_is_exact(backend, A, dtype):
    A = in_dtype(A, dtype)
    F = IC0().factor(backend.move(A))
    assert_close(fetched(backend, F).toarray(), np.linalg.cholesky(A.toarray()), 64, scale=np.sqrt(abs(A).max()))
    x = values(A.shape[0], dtype)
    assert_close(backend.fetch(F.solve(backend.move(A @ x))), x, 2000)


# By twin: the CPU gives the reference's bits


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("problem", gallery.small_spd(), ids=str)
def test_the_bits_are_those_of_the_reference(problem, variant):
    F = IC0(variant=variant).factor(problem.A)
    np.testing.assert_array_equal(F.L.data, reference_factor(problem.A)[1])


@IN_TYPES
@pytest.mark.parametrize("name", SPREAD)
def test_the_bits_are_those_of_the_reference_in_every_dtype(name, dtype, index):
    lower, want = reference_factor(with_index(in_dtype(gallery.problem(name), dtype), index))
    assert lower.indices.dtype == index
    for variant in VARIANTS:
        l = np.full_like(lower.data, np.nan)
        assert ic0(ic0_analysis(lower, variant), lower.data, l) == -1
        np.testing.assert_array_equal(l, want)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("A", [full(130, hermitian=True), gallery.arrow(70_000)], ids=["full", "arrow"])
def test_the_bits_are_those_of_the_reference_however_rows_meet(A, variant):
    lower, want = reference_factor(A)  # nearly all entries of two rows meet; a row has more than 2^16 entries
    l = np.full_like(lower.data, np.nan)
    assert ic0(ic0_analysis(lower, variant), lower.data, l) == -1
    np.testing.assert_array_equal(l, want)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@PATTERNS
@given(data=st.data())
def test_the_bits_are_those_of_the_reference_for_any_pattern(dtype, data):
    lower, want = reference_factor(data.draw(dominant_matrices(hermitian=True, dtype=dtype)))
    for variant in ("sequential", "levels"):
        l = np.full_like(lower.data, np.nan)
        assert ic0(ic0_analysis(lower, variant), lower.data, l) == -1
        np.testing.assert_array_equal(l, want)


@pytest.mark.parametrize(
    "A",
    [
        gallery.poisson7(24),
        gallery.random_dominant(4000, 0.001, 3, hermitian=True),
        sp.csr_matrix(long_rows(2500) + long_rows(2500).T),
        gallery.tridiagonal(3000),
        gallery.arrow(3000),
        sp.csr_matrix(sp.identity(6000)),
        full(200, hermitian=True),
    ],
    ids=["poisson7", "random", "long rows", "chain", "arrow", "diagonal", "full"],
)
def test_the_bits_do_not_depend_on_the_number_of_threads(A, threads):
    lower, _ = lower_triangle(as_csr(A))
    want = np.empty_like(lower.data)
    assert ic0(ic0_analysis(lower, "sequential"), lower.data, want) == -1
    for count in (1, 2, 3):
        threads(count)
        for variant in ("levels", "auto"):
            plan = ic0_analysis(lower, variant)
            assert variant == "auto" or plan.schedule.threads == count
            for _ in range(3):
                l = np.full_like(lower.data, np.nan)
                assert ic0(plan, lower.data, l) == -1
                np.testing.assert_array_equal(l, want)


# The effect of each parameter


@pytest.mark.parametrize("problem", gallery.small_spd(), ids=str)
def test_shift_moves_the_diagonal_by_a_share_of_itself(backend, problem):
    A = problem.A
    F = IC0(shift=0.25).factor(backend.move(A))
    moved = A.copy()
    moved.setdiag(A.diagonal() * np.asarray(1.25, A.real.dtype))
    assert_is_ic0_of(sp.csr_matrix(moved), fetched(backend, F))


@pytest.mark.parametrize(("dtype", "single"), [("float64", "float32"), ("complex128", "complex64")])
def test_precision_float32_gives_the_factor_of_the_rounded_matrix(backend, dtype, single):
    A = in_dtype(gallery.poisson7(5, 4, 3), dtype)
    F = IC0(precision="float32").factor(backend.move(A))
    G = IC0().factor(backend.move(A.astype(single)))
    assert F.dtype == F.L.dtype == single
    np.testing.assert_array_equal(backend.fetch(F.L.data), backend.fetch(G.L.data))
    r = values(A.shape[0], dtype)
    z = backend.fetch(F.solve(backend.move(r)))
    assert z.dtype == dtype
    exact = backend.fetch(IC0().factor(backend.move(A)).solve(backend.move(r)))
    assert 0 < abs(z - exact).max() < 1e-5 * abs(exact).max()


def test_every_exact_triangular_method_gives_the_same_solution(backend):
    A = gallery.poisson7(5, 4, 3)
    r = values(A.shape[0], "float64")
    L = fetched(backend, IC0().factor(backend.move(A))).toarray()
    want = np.linalg.solve(L.T, np.linalg.solve(L, r))
    for method in kernels_for(backend.move(r)).triangular.TRIANGULAR_METHODS:
        if method in ("jacobi", "isai"):
            continue
        F = IC0(triangular=method).factor(backend.move(A))
        assert {part["method"] for part in F.report["triangular"].values()} == {method}
        assert_close(backend.fetch(F.solve(backend.move(r))), want, 64)


@pytest.mark.parametrize("method", ["jacobi", "isai"])
def test_sweeps_bring_an_iterative_triangular_method_nearer(backend, method):
    A = gallery.poisson7(6)
    r = values(A.shape[0], "float64")
    exact = backend.fetch(IC0().factor(backend.move(A)).solve(backend.move(r)))
    errors = []
    for sweeps in (1, 3, 6, 40):
        F = IC0(triangular=method, sweeps=sweeps).factor(backend.move(A))
        errors.append(abs(backend.fetch(F.solve(backend.move(r))) - exact).max())
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[0] > 1e-3 and errors[3] < 1e-12


def test_the_variant_asked_for_is_the_one_that_runs():
    A = gallery.poisson7(5)
    assert [IC0(variant=v).factor(A).report["variant"] for v in ("sequential", "levels")] == ["sequential", "levels"]
    assert IC0().factor(A).report["variant"] in ("sequential", "levels")


# Update


@pytest.mark.parametrize("variant", ["auto", "levels or levs"])
def test_update_keeps_the_analysis_and_the_storage(backend, variant):
    A = gallery.poisson7(5, 4, 3)
    if variant == "auto":
        F = IC0().factor(backend.move(A))
        F.update(backend.move(A))  # makes the plan for all later ones
    else:
        F = IC0(variant="levels" if backend.name == "cpu" else "levs").factor(backend.move(A))
    plan, storage, solvers = F._numeric.plan, F._triangles.data, dict(F._solvers)
    plans = {key: solver._plan for key, solver in solvers.items()}
    F.update(backend.move(perturbed(A)))
    assert F._numeric.plan is plan and F._triangles.data is storage and F._solvers == solvers
    assert all(F._solvers[key]._plan is plans[key] for key in plans)


# By behaviour


def iterations(A, M, **options):
    solution = fl.cg(A, np.ones(A.shape[0]), M=M, rtol=1e-8, **options)
    assert solution.converged
    return solution.iterations


def test_ic0_makes_cg_converge_in_far_fewer_iterations():
    A = gallery.poisson7(20)
    plain, jacobi = iterations(A, None), iterations(A, fl.Jacobi().factor(A))
    with_ic0 = iterations(A, IC0().factor(A))
    assert with_ic0 <= 25
    assert with_ic0 <= 0.55 * min(plain, jacobi)


def test_float32_factors_serve_a_float64_method():
    A = gallery.poisson7(20)
    assert iterations(A, IC0(precision="float32").factor(A)) <= iterations(A, IC0().factor(A)) + 1


@pytest.mark.parametrize(("name", "most"), [("of_pitzDaily_p", 290), ("fv2", 10), ("ani4", 95), ("1138_bus", 165)])
def test_ic0_preconditions_real_matrices(name, most):
    A = real_matrix(name)
    assert iterations(A, IC0().factor(A)) <= most


def test_cg_with_the_exact_factor_needs_one_iteration():
    A = gallery.arrow(200)
    assert iterations(A, IC0().factor(A)) == 1


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


def test_an_indefinite_matrix_names_the_first_bad_row(backend):
    A = sp.block_diag([np.eye(3)] + [np.array([[1.0, 2], [2, 1]])] * 200, format="csr")
    variants = VARIANTS if backend.name == "cpu" else ("auto", "adapt", "levs")
    for variant in variants:
        with pytest.raises(ZeroPivot) as error:
            IC0(variant=variant).factor(backend.move(A))
        assert error.value.row == 4


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"shift": -0.1}, "shift"),
        ({"shift": np.nan}, "shift"),
        ({"precision": "float16"}, "precision"),
        ({"variant": "fastest"}, "variant"),
        ({"variant": "shared"}, "variant"),
        ({"triangular": "direct"}, "direct"),
        ({"sweeps": 3}, "sweeps"),
        ({"triangular": "jacobi", "sweeps": 0}, "sweeps"),
    ],
    ids=str,
)
def test_parameters_without_a_meaning_are_refused(backend, options, named):
    with pytest.raises(ParameterError, match=named) as error:
        IC0(**options).factor(backend.move(gallery.poisson7(3)))
    one_line(error)
