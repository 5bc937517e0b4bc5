"""What every Krylov method does alike, by the true residual: the cases of SciPy's own tests and some more."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from checks import PATTERNS
from conftest import real_matrix
from contract_cases import EVERY_METHOD, EVERY_METHOD_AND_SYSTEM, registered_methods
from hypothesis import given
from hypothesis import strategies as st
from krylov_cases import DTYPES, kind_for, name, operator, residual, system

import finelu
from finelu.errors import MatrixError, ParameterError
from finelu.krylov import bicg, bicgstab, cg, fgmres, gmres, minres, sqmr
from finelu.result import Status

METHODS = list(registered_methods().values())

# The true residual


@EVERY_METHOD_AND_SYSTEM
def test_the_true_residual_meets_the_tolerance(backend, method, case, every):
    A, b, dtype = case.A, case.b, case.A.dtype
    rtol = 1e-10 if np.finfo(dtype).eps < 1e-10 else 1e-4
    plain = method(backend.move(A), backend.move(b), rtol=rtol)
    M = sp.csr_matrix(sp.diags(1 / abs(A.diagonal())).astype(A.real.dtype))
    for solution in (plain, method(backend.move(A), backend.move(b), rtol=rtol, M=backend.move(M))):
        x = backend.fetch(solution.x)
        assert solution.status is Status.CONVERGED
        assert x.dtype == dtype and x.shape == b.shape
        size = residual(A, b, x)
        assert size <= rtol * np.linalg.norm(b) * (1 + 100 * np.finfo(dtype).eps / rtol)
        # up to a hundredth of it, rounding is not taken out of it
        assert solution.residual_norm == pytest.approx(size, rel=1e-3 if rtol == 1e-10 else 1e-2)
        assert solution.history.shape == (solution.iterations + 1,)
        assert solution.history[-1] == pytest.approx(solution.residual_norm, rel=1e-2)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@EVERY_METHOD
def test_every_dtype_is_worked_in(backend, method, dtype):
    A, b = system(kind_for(method), dtype)
    rtol = 1e-10 if np.finfo(dtype).eps < 1e-10 else 1e-4
    solution = method(backend.move(A), backend.move(b), rtol=rtol)
    assert solution.converged and solution.x.dtype == dtype
    assert residual(A, b, backend.fetch(solution.x)) <= rtol * np.linalg.norm(b) * (
        1 + 100 * np.finfo(dtype).eps / rtol
    )


@EVERY_METHOD
def test_atol_and_rtol_each_decide(method):
    A, b = system(kind_for(method))
    loose = method(A, b, rtol=0, atol=1e-2 * np.linalg.norm(b))
    tight = method(A, b, rtol=1e-9, atol=0)
    both = method(A, b, rtol=1e-9, atol=1e-2 * np.linalg.norm(b))
    assert loose.converged and tight.converged
    assert loose.iterations == both.iterations < tight.iterations
    assert residual(A, b, loose.x) <= 1e-2 * np.linalg.norm(b)


@EVERY_METHOD
def test_a_tolerance_below_rounding_is_beyond_the_precision_and_says_so(method, every):
    A, b = system(kind_for(method))
    solution = method(A, b, rtol=1e-30, maxiter=5000)
    assert solution.status is Status.PRECISION_LIMIT
    assert solution.info > 0
    assert residual(A, b, solution.x) <= 1e-12 * np.linalg.norm(b)


@EVERY_METHOD
def test_the_exact_operator_inverse_takes_one_iteration(method):
    A, b = system("spd")
    inverse = spla.splu(A.tocsc())
    M = operator(A, inverse.solve)
    M.rmatvec = lambda r: inverse.solve(r, "H")
    assert method(A, b, M=M, rtol=1e-10).iterations <= 2
    assert method(A, b, rtol=1e-10).iterations > 10


@PATTERNS
@given(st.integers(1, 40), st.floats(0.0, 0.5), st.integers(0, 2**31), st.sampled_from(METHODS), st.booleans())
def test_diagonally_dominant_systems_are_solved(n, density, seed, method, complex_values):
    rng = np.random.default_rng(seed)
    mask = rng.random((n, n)) < density
    B = mask * rng.uniform(-0.3, 1, (n, n)) + (1j * mask * rng.random((n, n)) if complex_values else 0)
    if method.method.needs != "any":
        B = B + B.conj().T
    A = B + np.diag(np.abs(B).sum(axis=1) + 1)
    dtype, rtol = (np.complex64, 1e-4) if complex_values else (np.float64, 1e-9)
    A, b = A.astype(dtype), rng.standard_normal(n).astype(dtype)
    kept = A.copy()
    solution = method(sp.csr_matrix(A), b, rtol=rtol, M=sp.diags(1 / A.diagonal().real))
    assert solution.converged
    assert residual(A, b, solution.x) <= 1.001 * rtol * np.linalg.norm(b)
    np.testing.assert_array_equal(A, kept)


@PATTERNS
@given(st.integers(1, 8), st.integers(0, 2**31), st.integers(0, 8), st.sampled_from(METHODS), st.integers(0, 30))
def test_whatever_the_matrix_the_answer_is_finite_and_no_worse_than_x0(n, seed, rank, method, maxiter):
    rng = np.random.default_rng(seed)
    A = rng.integers(-2, 3, (n, min(rank, n))) @ rng.integers(-2, 3, (min(rank, n), n)) * 1.0
    b, x0 = rng.integers(-2, 3, n) * 1.0, rng.integers(-1, 2, n) * 1.0
    solution = method(A, b, x0, maxiter=maxiter)
    size = residual(A, b, solution.x)
    assert np.isfinite(solution.x).all()
    assert size <= residual(A, b, x0) * (1 + 1e-12) + 1e-14
    rounding = (n + 1) * 2.0**-52 * np.linalg.norm(np.abs(A) @ np.abs(solution.x) + np.abs(b))  # of either residual
    assert size == pytest.approx(solution.residual_norm, rel=1e-6, abs=1e-12 + rounding)
    assert solution.converged == (solution.residual_norm <= 1e-5 * np.linalg.norm(b))
    assert solution.iterations <= maxiter and solution.history.size == solution.iterations + 1


@pytest.mark.parametrize(
    ("matrix", "method"),
    [("fv2", cg), ("sherman3", gmres), ("watt_1", bicgstab), ("watt_1", bicg), ("plat362", minres), ("plat362", sqmr)],
)
def test_real_matrices(backend, matrix, method):
    A = real_matrix(matrix)
    b = A @ np.ones(A.shape[0])
    M = sp.diags(1 / np.abs(A.diagonal()))
    options = {"restart": 200} if method is gmres else {}
    solution = method(backend.move(A), backend.move(b), M=backend.move(M.tocsr()), rtol=1e-6, maxiter=20000, **options)
    assert solution.converged
    assert residual(A, b, backend.fetch(solution.x)) <= 1.0001e-6 * np.linalg.norm(b)


@EVERY_METHOD
def test_two_runs_give_the_same_bits(backend, method):
    A, b = (backend.move(v) for v in system(kind_for(method)))
    one, other = method(A, b, rtol=1e-9), method(A, b, rtol=1e-9)
    np.testing.assert_array_equal(backend.fetch(one.x), backend.fetch(other.x))
    np.testing.assert_array_equal(one.history, other.history)


# The facts of a method


@EVERY_METHOD
def test_an_iteration_takes_the_products_that_the_method_states(method):
    A, b = system(kind_for(method))
    done = []

    def counted(product):
        return lambda v: (done.append(1), product(v))[1]

    adjoint = {"rmatvec": counted(lambda v: A.conj().T @ v)} if method is bicg else {}
    op = spla.LinearOperator(A.shape, matvec=counted(lambda v: A @ v), dtype=A.dtype, **adjoint)
    counts = []
    for maxiter in (5, 9):
        done.clear()
        assert method(op, b, rtol=1e-14, maxiter=maxiter).iterations == maxiter
        counts.append(len(done))
    assert counts[1] - counts[0] == 4 * method.method.products


@EVERY_METHOD
def test_only_bicg_needs_products_with_the_adjoint(method):
    A, b = system("spd")
    op = spla.LinearOperator(A.shape, matvec=lambda v: A @ v, dtype=A.dtype)
    if method is not bicg:
        assert method(op, b).converged
        return
    with pytest.raises(MatrixError, match="A has no rmatvec"):
        method(op, b)


@pytest.mark.parametrize("method", [minres, gmres, fgmres])
def test_the_residual_of_a_method_that_minimizes_it_never_grows(method):
    A, b = system(kind_for(method))
    norms = method(A, b, rtol=1e-10).recurrence
    assert (norms[1:] <= norms[:-1] * (1 + 1e-12)).all()


@EVERY_METHOD
def test_a_method_that_restarts_takes_the_length_of_its_cycles(method):
    A, b = system(kind_for(method))
    if not method.method.restarts:
        with pytest.raises(ParameterError, match="unexpected keyword argument 'restart'"):
            method(A, b, restart=3)
        return
    assert method(A, b, restart=3, rtol=1e-9).iterations > method(A, b, restart=60, rtol=1e-9).iterations


@EVERY_METHOD
def test_solve_refuses_a_matrix_that_is_not_what_the_method_needs(method, own_methods):
    own_methods(method.method)
    A, b = system("general")
    solution = finelu.solve(A, b, method=method.__name__)
    if method.method.needs == "any":
        assert solution.converged and solution.method == method.__name__
    else:
        assert solution.status is Status.NOT_SYMMETRIC and "needs A = A^H" in solution.explain()


# b, x0, maxiter, callback and watch


@pytest.mark.parametrize("shape", [(144,), (144, 1)])
@EVERY_METHOD
def test_zero_b_gives_zero_and_not_b_itself(method, shape, every):
    A, _ = system(kind_for(method))
    b = np.zeros(shape)
    for x0 in (None, np.ones(shape)):
        solution = method(A, b, x0)
        assert solution.status is Status.CONVERGED and solution.iterations == 0 and solution.residual_norm == 0
        assert solution.x is not b and solution.x is not x0 and not np.shares_memory(solution.x, b)
        np.testing.assert_array_equal(solution.x, np.zeros(144))


@EVERY_METHOD
def test_an_exact_x0_takes_no_iteration_and_is_not_returned_itself(method, every):
    rhs = np.array([-1.0, -1.0])
    solution = method(np.eye(2), rhs, rhs)
    assert solution.iterations == 0 and solution.converged
    assert not np.shares_memory(solution.x, rhs)
    np.testing.assert_array_equal(solution.x, rhs)


@EVERY_METHOD
def test_x0_is_where_the_iteration_starts_and_is_never_written(method, every):
    A, b = system(kind_for(method))
    exact = spla.spsolve(A.tocsc(), b)
    x0 = exact + 1e-6 * np.random.default_rng(1).standard_normal(b.size)
    kept_x0, kept_b = x0.copy(), b.copy()
    near, far = method(A, b, x0, rtol=1e-10), method(A, b, rtol=1e-10)
    assert near.history[0] == pytest.approx(residual(A, b, kept_x0), rel=1e-6)
    assert near.iterations < far.iterations
    np.testing.assert_array_equal(x0, kept_x0)
    np.testing.assert_array_equal(b, kept_b)


@EVERY_METHOD
def test_maxiter_counts_products_and_ends_with_the_best_iterate(method, every):
    A, b = system(kind_for(method))
    for maxiter in (0, 1, 7, 20):
        x, info = solution = method(A, b, rtol=1e-14, maxiter=maxiter)
        assert solution.status is Status.MAX_ITERATIONS and solution.iterations == maxiter
        assert info == max(maxiter, 1)
        assert x is solution.x
        assert solution.residual_norm == pytest.approx(residual(A, b, x))
        assert solution.residual_norm <= np.min(solution.history) * (1 + 1e-6)


@EVERY_METHOD
def test_the_callback_sees_each_iterate_once(method, every):
    A, b = system(kind_for(method))
    seen = []
    options = {"restart": 7} if method.method.restarts else {}
    solution = method(A, b, rtol=1e-9, callback=lambda x: seen.append(x.copy()), **options)
    assert solution.converged
    assert len(seen) == (-(-solution.iterations // 7) if options else solution.iterations)
    assert all((before != after).any() for before, after in pairwise(seen))
    np.testing.assert_array_equal(seen[-1], solution.x)


@EVERY_METHOD
def test_callback_and_watch_see_and_stop_the_solve(method):
    A, b = system(kind_for(method))
    seen = []
    assert method(A, b, watch=lambda k, size: seen.append((k, size))).converged
    assert [k for k, _ in seen] == list(range(len(seen)))
    restart = {"restart": 1} if method.method.restarts else {}

    def stop_iteration(*_):
        raise StopIteration

    for options in ({"watch": lambda k, size: k == 3}, {"callback": stop_iteration}, {"watch": stop_iteration}):
        solution = method(A, b, rtol=1e-12, **options, **restart)
        assert solution.status is Status.INTERRUPTED
        assert solution.iterations <= 3 and solution.info > 0
        assert solution.residual_norm == pytest.approx(residual(A, b, solution.x))
        assert solution.residual_norm <= np.linalg.norm(b)


# NaN on the way


@EVERY_METHOD
def test_an_operator_that_turns_to_nan_leaves_the_best_iterate(method, every):
    A, b = system(kind_for(method))
    calls = []

    def product(v):
        calls.append(1)
        return A @ v if len(calls) != 20 else np.full(v.size, np.nan)

    solution = method(operator(A, product), b, rtol=1e-14)
    assert solution.status is Status.NOT_FINITE and solution.info == -1
    assert np.isfinite(solution.x).all() and np.isfinite(solution.history).all()
    assert 0 < solution.iterations < 20
    assert residual(A, b, solution.x) == pytest.approx(solution.residual_norm)
    assert solution.residual_norm <= np.min(solution.history) * (1 + 1e-9) < np.linalg.norm(b)


@EVERY_METHOD
def test_an_operator_that_stays_nan_leaves_what_the_recurrence_thinks_best(method, every):
    A, b = system(kind_for(method))
    calls = []

    def product(v):
        calls.append(1)
        return A @ v if len(calls) < 20 else np.full(v.size, np.nan)

    solution = method(operator(A, product), b, rtol=1e-14)
    assert solution.status is Status.NOT_FINITE and np.isnan(solution.residual_norm)
    assert residual(A, b, solution.x) == pytest.approx(np.min(solution.history))


@EVERY_METHOD
def test_a_preconditioner_of_nothing_but_nan_gives_x0_back(method, every):
    A, b = system(kind_for(method))
    M = operator(A, lambda v: v * np.nan)
    x0 = np.ones(b.size)
    solution = method(A, b, x0, M=M)
    assert solution.status is Status.NOT_FINITE
    np.testing.assert_array_equal(solution.x, x0)
    assert solution.residual_norm == pytest.approx(residual(A, b, x0))


# Sizes at the ends of the range


FAR = {np.float64: (600, 300), np.complex128: (600, 300), np.float32: (70, 34), np.complex64: (70, 34)}


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("preconditioned", [False, True])
@EVERY_METHOD
def test_a_system_times_powers_of_two_takes_the_same_steps(backend, method, preconditioned, dtype):
    A, b = system(kind_for(method), dtype, m=7)
    real = np.empty(0, dtype).real.dtype.type
    x0 = (np.random.default_rng(1).standard_normal(b.size) / 8).astype(dtype)
    M = sp.diags(np.linspace(0.2, 0.3, b.size).astype(dtype)).tocsr() if preconditioned else None

    def solved(a, c):
        system = (A * real(2.0**a), b * real(2.0**c), x0 * real(2.0 ** (c - a)))
        preconditioner = None if M is None else backend.move((M * real(2.0**-a)).tocsr())
        return method(*(backend.move(v) for v in system), M=preconditioner, rtol=1e-5, maxiter=300)

    plain, (far, half) = solved(0, 0), FAR[dtype]
    tol = 1e-4 if real is np.float32 else 1e-9
    for a, c in ((-far, -far), (far, far), (-far, 0), (far, 0), (0, -far), (0, far), (-half, half)):
        scaled = solved(a, c)
        assert scaled.converged, (a, c, scaled)
        assert abs(scaled.iterations - plain.iterations) <= 1
        np.testing.assert_allclose(backend.fetch(scaled.x) / real(2.0 ** (c - a)), backend.fetch(plain.x), atol=tol)
        both = min(len(scaled.history), len(plain.history))
        norms = scaled.history[:both] / real(2.0**c)
        np.testing.assert_allclose(norms, plain.history[:both], rtol=100 * tol, atol=10 * tol * plain.history[0])


@EVERY_METHOD
def test_what_the_caller_sees_of_an_extreme_system_is_in_its_own_units(method):
    A, b = system(kind_for(method), m=7)
    b = b * 2.0**-700
    seen, watched = [], []
    solution = method(
        A, b, rtol=1e-8, callback=lambda x: seen.append(x.copy()), watch=lambda k, size: watched.append(size)
    )
    assert solution.converged
    np.testing.assert_array_equal(seen[-1], solution.x)
    assert watched[0] * 2.0**700 == pytest.approx(np.linalg.norm(b * 2.0**700))
    assert solution.residual_norm * 2.0**700 <= 1e-8 * np.linalg.norm(b * 2.0**700)
    assert method(A, b, atol=2.0**-700, rtol=0).iterations < solution.iterations
    far = method(A, b, np.ones(b.size), rtol=0, atol=1e-6)  # x0 is enormous compared with this b
    assert far.converged and residual(A, b, far.x) <= 1e-6


@EVERY_METHOD
def test_a_b_whose_norm_overflows_is_solved(backend, method):
    for dtype in (np.float32, np.float64):
        A, b = backend.move(sp.eye(4, dtype=dtype, format="csr")), np.full(4, np.finfo(dtype).max)
        solution = method(A, backend.move(b))
        assert solution.converged and np.isfinite(solution.history).all()
        np.testing.assert_allclose(backend.fetch(solution.x) / b, 1, rtol=1e-5)


@pytest.mark.parametrize("options", [{"atol": 1e300}, {"rtol": 1e300}], ids=str)
@EVERY_METHOD
def test_a_tolerance_beyond_the_precision_is_met_by_any_finite_residual(backend, method, options):
    A, b = system("spd", np.float32, m=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = method(backend.move(A), backend.move(b), **options)
    assert solution.converged and solution.iterations == 0
    assert solution.residual_norm == pytest.approx(np.linalg.norm(b), rel=1e-6)
    nan = spla.LinearOperator(A.shape, matvec=lambda v: v * np.nan, dtype=A.dtype)
    assert method(nan, b, np.ones_like(b), **options).status is Status.NOT_FINITE


# What A, b, M and x0 may be


def test_the_working_precision_is_the_widest_of_the_system():
    """The door decides, which all methods share."""
    A, b = system("spd", np.float32, m=5)
    assert cg(A, b).x.dtype == np.float32
    assert cg(A, b.astype(np.float64)).x.dtype == np.float64
    assert cg(A, b.astype(np.complex64)).x.dtype == np.complex64
    assert cg((A * 10).astype(np.int64), b).x.dtype == np.float64
    assert cg(A, b, M=sp.eye(b.size)).x.dtype == np.float32  # M is only an approximation
    assert cg(A, b, M=sp.eye(b.size, dtype=np.complex128)).x.dtype == np.complex64


def test_a_column_gives_a_vector():
    A, b = system("spd")
    x, info = cg(A, b[:, None], b[:, None] * 0)
    assert x.shape == b.shape and info == 0
    assert cg(A, np.stack([b, b], axis=1)).x.shape == (b.size, 2)


BAD_ARGUMENTS = [
    ({"rtol": -1e-3}, ParameterError, "rtol=-0.001; a number, zero or larger"),
    ({"rtol": float("nan")}, ParameterError, "rtol=nan"),
    ({"atol": -1}, ParameterError, r"atol=-1\.0"),
    ({"atol": "legacy"}, ParameterError, "atol='legacy'; a number is needed"),
    ({"atol": None}, ParameterError, "atol=None"),
    ({"maxiter": -1}, ParameterError, "maxiter=-1; at least 0"),
    ({"maxiter": 2.5}, ParameterError, "maxiter=2.5; an integer"),
    ({"M": np.eye(3)}, MatrixError, r"M has shape \(3, 3\), but the system needs \(144, 144\)"),
    ({"M": np.full((144, 144), np.inf)}, MatrixError, "M holds NaN or Inf in row 0"),
    ({"M": sp.eye(144) * np.nan}, MatrixError, "M cannot be used; .* NaN or Inf in row 0"),
    ({"M": "ilu"}, MatrixError, "M has shape|M is a str"),
    ({"x0": np.zeros(143)}, MatrixError, r"x0 has shape \(143,\)"),
    ({"x0": np.full(144, np.nan)}, MatrixError, "x0 holds NaN or Inf in row 0"),
    ({"x0": "M b"}, ParameterError, "x0='M b'; one of Mb is needed"),
]


@EVERY_METHOD
def test_bad_arguments_are_named(method):
    A, b = system("spd")
    for options, error, match in BAD_ARGUMENTS:
        with pytest.raises(error, match=match) as caught:
            method(A, b, **options)
        assert "\n" not in str(caught.value)


BAD_SYSTEMS = [
    (np.ones((3, 2)), np.ones(3), r"A has shape \(3, 2\); a square matrix"),
    (np.zeros((0, 0)), np.zeros(0), "A is empty"),
    (np.diag([1.0, np.nan]), np.ones(2), "A holds NaN or Inf in row 1"),
    (sp.diags([1.0, np.inf]), np.ones(2), "A holds NaN or Inf in row 1"),
    (np.eye(2), np.ones(3), r"b has shape \(3,\), but A has 2 rows"),
    (np.eye(2), np.array([1.0, np.nan]), "b holds NaN or Inf in row 1"),
    (lambda v: v, np.ones(2), "A is a function without a shape"),
]


@EVERY_METHOD
def test_bad_systems_are_named(method):
    for A, b, match in BAD_SYSTEMS:
        with pytest.raises(MatrixError, match=match):
            method(A, b)


@EVERY_METHOD
def test_a_misspelt_argument_is_a_type_error(method):
    with pytest.raises(TypeError, match="max_iter"):
        method(*system("spd"), max_iter=3)
