"""Krylov methods: by definition (the true residual), by limit, by the paper's formulas, by behaviour, by bad input."""

import re
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from conftest import real_matrix
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import finelu.kernels
from finelu import gallery
from finelu.errors import MatrixError, ParameterError
from finelu.kernels import kernels_for, monitor
from finelu.kernels.cpu import products
from finelu.kernels.cpu.runtime import sharing
from finelu.kernels.monitor import DRIFT
from finelu.krylov import bicg, bicgstab, cg, fgmres, gmres, minres, progress, sqmr
from finelu.matrix import as_csr
from finelu.preconditioners import ILU0
from finelu.krylov.residual import PROBES
from finelu.result import Status

METHODS = (cg, minres, sqmr, gmres, fgmres, bicg, bicgstab)
GENERAL = (gmres, fgmres, bicg, bicgstab)
DTYPES = (np.float32, np.float64, np.complex64, np.complex128)


def name(value):
    return getattr(value, "__name__", None)


def poisson(m, dtype=np.float64):
    T = sp.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(m, m))
    return (sp.kron(T, sp.eye(m)) + sp.kron(sp.eye(m), T)).tocsr().astype(dtype)


def system(kind, dtype=np.float64, m=12):
    """A and b of one kind: "spd", "indefinite" (both Hermitian), "general" (positive definite, not normal)."""
    A = poisson(m, dtype)
    n = A.shape[0]
    skew = sp.diags([0.4, -0.4], [1, -1], shape=(n, n))
    if np.dtype(dtype).kind == "c" and kind != "general":
        A = A + 0.5j * skew + 0.5 * sp.eye(n)
    if kind == "indefinite":
        A = A - 1.3 * sp.eye(n)
    if kind == "general":
        A = A + skew * (1 + 0.5j if np.dtype(dtype).kind == "c" else 1)
    rng = np.random.default_rng(7)
    b = rng.standard_normal(n) + (1j * rng.standard_normal(n) if np.dtype(dtype).kind == "c" else 0)
    return A.tocsr().astype(dtype), b.astype(dtype)


def kind_for(method):
    return {"cg": "spd", "minres": "indefinite", "sqmr": "indefinite"}.get(method.__name__, "general")


def operator(A, product):
    """A LinearOperator that multiplies by `product`, and by A^H as it is: only bicg needs that."""
    return spla.LinearOperator(A.shape, matvec=product, rmatvec=lambda v: A.conj().T @ v, dtype=A.dtype)


def residual(A, b, x):
    """||b - A x||, formed here in extended precision."""
    wide = np.clongdouble if np.result_type(A.dtype, x.dtype).kind == "c" else np.longdouble
    S = sp.coo_matrix(A)
    r = b.astype(wide)
    np.subtract.at(r, S.row, S.data.astype(wide) * x.astype(wide)[S.col])
    return float(np.sqrt(np.sum(abs(r) ** 2)))


@pytest.fixture(params=[1, 4])
def every(request, monkeypatch):
    """How often the host looks: at each iteration, or as on a GPU, every few and at something older."""
    monkeypatch.setitem(progress.LOOK_EVERY, "numpy", request.param)
    return request.param


# The true residual


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("method", METHODS, ids=name)
def test_the_true_residual_meets_the_tolerance(backend, method, dtype, every):
    A, b = system(kind_for(method), dtype)
    rtol = 1e-10 if np.finfo(dtype).eps < 1e-10 else 1e-4
    solution = method(backend.move(A), backend.move(b), rtol=rtol)
    x = backend.fetch(solution.x)
    assert solution.status is Status.CONVERGED
    assert x.dtype == dtype and x.shape == b.shape
    size = residual(A, b, x)
    assert size <= rtol * np.linalg.norm(b) * (1 + 100 * np.finfo(dtype).eps / rtol)
    assert solution.residual_norm == pytest.approx(size, rel=1e-3)
    assert solution.history.shape == (solution.iterations + 1,)
    assert solution.history[-1] == pytest.approx(solution.residual_norm, rel=1e-2)


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_the_answer_does_not_depend_on_how_often_the_host_looks(method, monkeypatch):
    A, b = system(kind_for(method))
    answers = []
    for interval in (1, 3, 8, 1000):
        monkeypatch.setitem(progress.LOOK_EVERY, "numpy", interval)
        answers.append(method(A, b, rtol=1e-9, maxiter=500))
    for answer in answers[1:]:
        assert answer.iterations == answers[0].iterations
        np.testing.assert_array_equal(answer.x, answers[0].x)
        np.testing.assert_array_equal(answer.history, answers[0].history)


@pytest.mark.parametrize("behind", [True, False])
def test_the_host_looks_the_more_often_the_further_the_device_is_behind(behind, monkeypatch):
    A, b = system("spd")
    monkeypatch.setitem(progress.LOOK_EVERY, "numpy", 8)
    monkeypatch.setattr(kernels_for(b).cycle.Snapshot, "ready", lambda self: not behind)
    products = []
    solution = cg(operator(A, lambda v: (products.append(1), A @ v)[1]), b, rtol=1e-9)
    wasted = len(products) - solution.iterations - PROBES
    assert solution.converged and (wasted <= 4 if behind else 4 < wasted <= 2 * 8 + 1)


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_looking_rarely_queues_a_bounded_number_of_iterations_too_many(method, monkeypatch):
    A, b = system(kind_for(method))
    products = []

    def counted():
        seen = []
        products.append(seen)
        return operator(A, lambda v: (seen.append(1), A @ v)[1])

    for interval in (1, 4):
        monkeypatch.setitem(progress.LOOK_EVERY, "numpy", interval)
        method(counted(), b, rtol=1e-9)
    per_iteration = 2 if method is bicgstab else 1
    restart_check = 1  # gmres may learn of its end one cycle later
    assert len(products[0]) <= len(products[1]) <= len(products[0]) + per_iteration * 2 * 4 + restart_check


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_atol_and_rtol_each_decide(method):
    A, b = system(kind_for(method))
    loose = method(A, b, rtol=0, atol=1e-2 * np.linalg.norm(b))
    tight = method(A, b, rtol=1e-9, atol=0)
    both = method(A, b, rtol=1e-9, atol=1e-2 * np.linalg.norm(b))
    assert loose.converged and tight.converged
    assert loose.iterations == both.iterations < tight.iterations
    assert residual(A, b, loose.x) <= 1e-2 * np.linalg.norm(b)


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_a_tolerance_below_rounding_stagnates_and_says_so(method, every):
    A, b = system(kind_for(method))
    solution = method(A, b, rtol=1e-30, maxiter=5000)
    assert solution.status is Status.STAGNATED
    assert solution.info > 0
    assert residual(A, b, solution.x) <= 1e-12 * np.linalg.norm(b)


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_the_exact_operator_inverse_takes_one_iteration(method):
    A, b = system("spd")
    inverse = spla.splu(A.tocsc())
    M = operator(A, inverse.solve)
    M.rmatvec = lambda r: inverse.solve(r, "H")
    assert method(A, b, M=M, rtol=1e-10).iterations <= 2
    assert method(A, b, rtol=1e-10).iterations > 10


def test_cg_matches_the_bound_by_chebyshev_polynomials():
    A, b = system("spd")
    eigenvalues = np.linalg.eigvalsh(A.toarray())
    kappa = eigenvalues[-1] / eigenvalues[0]
    exact = spla.spsolve(A.tocsc(), b)
    errors = []
    cg(A, b, rtol=1e-10, callback=lambda x: errors.append(np.sqrt((x - exact) @ (A @ (x - exact)))))
    rate = (np.sqrt(kappa) - 1) / (np.sqrt(kappa) + 1)
    bound = 2 * rate ** np.arange(1, len(errors) + 1) * np.sqrt(exact @ (A @ exact))
    assert len(errors) > 10
    assert np.all(np.array(errors) <= bound * (1 + 1e-6))


@pytest.mark.parametrize("orthogonalization", ["mgs", "cgs2"])
def test_gmres_and_minres_minimize_the_residual_over_the_krylov_space(orthogonalization):
    A, b = system("indefinite", m=6)
    space = np.linalg.qr(np.stack([b, A @ b, A @ (A @ b), A @ (A @ (A @ b))], axis=1))[0]
    coefficients = np.linalg.lstsq(A @ space, b, rcond=None)[0]
    smallest = np.linalg.norm(b - A @ space @ coefficients)
    solutions = [
        gmres(A, b, rtol=0, maxiter=4, orthogonalization=orthogonalization),
        minres(A, b, rtol=0, maxiter=4),
    ]
    for solution in solutions:
        assert solution.status is Status.MAX_ITERATIONS
        assert residual(A, b, solution.x) == pytest.approx(smallest, rel=1e-10)


def test_preconditioned_minres_knows_the_two_norm_of_its_residual():
    A, b = system("indefinite")
    M = sp.diags(np.linspace(0.1, 3, b.size))
    for k in (1, 5, 20):
        solution = minres(A, b, M=M, rtol=0, maxiter=k)
        iterate = []
        minres(A, b, M=M, rtol=0, maxiter=k, callback=lambda x, iterate=iterate: iterate.append(x.copy()))
        assert solution.history[k] == pytest.approx(residual(A, b, iterate[-1]), rel=1e-9)


# The cases of SciPy's own tests


@pytest.mark.parametrize("shape", [(144,), (144, 1)])
@pytest.mark.parametrize("method", METHODS, ids=name)
def test_zero_b_gives_zero_and_not_b_itself(method, shape, every):
    A, _ = system(kind_for(method))
    b = np.zeros(shape)
    for x0 in (None, np.ones(shape)):
        solution = method(A, b, x0)
        assert solution.status is Status.CONVERGED and solution.iterations == 0 and solution.residual_norm == 0
        assert solution.x is not b and solution.x is not x0 and not np.shares_memory(solution.x, b)
        np.testing.assert_array_equal(solution.x, np.zeros(shape))


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_an_exact_x0_takes_no_iteration_and_is_not_returned_itself(method, every):
    rhs = np.array([-1.0, -1.0])
    solution = method(np.eye(2), rhs, rhs)
    assert solution.iterations == 0 and solution.converged
    assert not np.shares_memory(solution.x, rhs)
    np.testing.assert_array_equal(solution.x, rhs)


@pytest.mark.parametrize("method", METHODS, ids=name)
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


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_maxiter_counts_products_and_ends_with_the_best_iterate(method, every):
    A, b = system(kind_for(method))
    for maxiter in (0, 1, 7, 30):
        x, info = solution = method(A, b, rtol=1e-14, maxiter=maxiter)
        assert solution.status is Status.MAX_ITERATIONS and solution.iterations == maxiter
        assert info == max(maxiter, 1)
        assert x is solution.x
        assert solution.residual_norm == pytest.approx(residual(A, b, x))
        assert solution.residual_norm <= np.min(solution.history) * (1 + 1e-6)


@pytest.mark.parametrize("method", GENERAL, ids=name)
def test_a_defective_preconditioner_neither_lies_nor_gives_nan(method):
    A, M = np.diag([2.0, 3.0, 4.0]), np.diag([1.0, 1.0, 0.0])
    b, x0 = np.array([0.0, 1.0, 1.0]), np.array([1.0, 0.0, 0.0])
    solution = method(A, b, x0, M=M, rtol=1e-15)
    assert np.isfinite(solution.x).all()
    assert not solution.converged  # the third unknown cannot be reached
    assert residual(A, b, solution.x) <= residual(A, b, x0)
    if method is not bicgstab:
        assert solution.status is Status.BREAKDOWN and solution.info == -1
        np.testing.assert_allclose(M @ (A @ solution.x), M @ b, atol=1e-14)


@pytest.mark.parametrize("method", GENERAL, ids=name)
def test_a_defective_matrix_neither_lies_nor_gives_nan(method):
    A, b = np.array([[0.0, 1, 0], [1, 0, 0], [0, 0, 0]]), np.array([1.0, 0, 1])
    solution = method(A, b, rtol=1e-8)
    assert np.isfinite(solution.x).all() and not solution.converged
    if method not in (bicg, bicgstab):
        np.testing.assert_allclose(A @ (A @ solution.x), A @ b, atol=1e-14)


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_a_singular_but_consistent_system_is_solved(method, every):
    T = sp.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(30, 30)).tolil()
    T[0, 0] = T[-1, -1] = 1  # Neumann: constants are in the kernel
    A = T.tocsr()
    b = A @ np.random.default_rng(2).standard_normal(30)
    solution = method(A, b, rtol=1e-8, maxiter=300)
    assert residual(A, b, solution.x) <= 1e-8 * np.linalg.norm(b)


def test_the_worsening_of_scipy_9100_does_not_happen():
    A = np.array(
        [
            [-0.1112795288033378, 0, 0, 0.16127952880333685],
            [0, -0.13627952880333782 + 6.283185307179586j, 0, 0],
            [0, 0, -0.13627952880333782 - 6.283185307179586j, 0],
            [0.1112795288033368, 0j, 0j, -0.16127952880333785],
        ]
    )
    b = np.ones(4)
    best = np.inf
    for maxiter in range(1, 20):
        x, _ = gmres(A, b, maxiter=maxiter, rtol=1e-8)
        error = residual(A, b, x)
        best = min(best, error)
        # A is singular to rounding and x grows to 1e15: no worse than the rounding of A x
        assert error <= best + 8 * np.finfo(float).eps * np.linalg.norm(A) * np.linalg.norm(x)


def test_gmres_tests_inside_the_cycle_and_takes_a_lucky_breakdown():
    A = sp.diags(np.repeat([1.0, 2.0, 5.0], 40)).tocsr()  # three eigenvalues: three iterations, then the basis ends
    solution = gmres(A, np.ones(120), rtol=1e-12, restart=50)
    assert solution.converged and solution.iterations == 3


def test_restart_has_its_effect():
    A, b = system("general", m=20)
    counts = [gmres(A, b, rtol=1e-8, restart=m).iterations for m in (5, 30, 200)]
    assert counts[0] > counts[1] > counts[2]
    assert counts[2] <= 200
    assert gmres(A, b, rtol=1e-8).iterations == counts[1]  # the default is 30


def test_gmres_history_decreases_over_restarts():
    A, b = system("general")
    history = gmres(A, b, rtol=1e-10, restart=4).history
    assert np.all(np.diff(history) <= 1e-10 * history[0])


def test_the_callback_of_gmres_sees_one_iterate_a_cycle():
    A, b = system("general")
    seen = []
    solution = gmres(A, b, rtol=1e-8, restart=10, callback=lambda x: seen.append(residual(A, b, x)))
    assert len(seen) == -(-solution.iterations // 10)
    assert all(after <= before for before, after in pairwise(seen))


@pytest.mark.parametrize("method", [gmres, fgmres], ids=name)
def test_convergence_in_the_last_column_of_a_cycle_is_the_end_of_it(method):
    A, b = system("general")
    full = method(A, b, rtol=1e-8, restart=200).iterations
    seen, zeros = [], []

    def M(r):
        zeros.append(not r.any())
        return r.copy()

    solution = method(A, b, rtol=1e-8, restart=full, M=M, callback=lambda x: seen.append(x.copy()))
    assert solution.converged and solution.iterations == full
    assert len(seen) == 1 and not any(zeros)
    np.testing.assert_array_equal(seen[0], solution.x)


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_the_callback_sees_each_iterate_once(method, every):
    A, b = system(kind_for(method))
    seen = []
    options = {"restart": 7} if method in (gmres, fgmres) else {}
    solution = method(A, b, rtol=1e-9, callback=lambda x: seen.append(x.copy()), **options)
    assert solution.converged
    assert len(seen) == (-(-solution.iterations // 7) if options else solution.iterations)
    assert all((before != after).any() for before, after in pairwise(seen))
    np.testing.assert_array_equal(seen[-1], solution.x)


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_callback_and_watch_see_and_stop_the_solve(method):
    A, b = system(kind_for(method))
    seen = []
    assert method(A, b, watch=lambda k, size: seen.append((k, size))).converged
    assert [k for k, _ in seen] == list(range(len(seen)))
    restart = {"restart": 1} if method in (gmres, fgmres) else {}

    def stop_iteration(*_):
        raise StopIteration

    for options in ({"watch": lambda k, size: k == 3}, {"callback": stop_iteration}, {"watch": stop_iteration}):
        solution = method(A, b, rtol=1e-12, **options, **restart)
        assert solution.status is Status.INTERRUPTED
        assert solution.iterations <= 3 and solution.info > 0
        assert solution.residual_norm == pytest.approx(residual(A, b, solution.x))
        assert solution.residual_norm <= np.linalg.norm(b)


def test_a_keyboard_interrupt_goes_through():
    A, b = system("spd")

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cg(A, b, watch=interrupt)


# Breakdowns are a status and never NaN


@pytest.mark.parametrize("method", METHODS, ids=name)
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


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_an_operator_that_stays_nan_leaves_what_the_recurrence_thinks_best(method, every):
    A, b = system(kind_for(method))
    calls = []

    def product(v):
        calls.append(1)
        return A @ v if len(calls) < 20 else np.full(v.size, np.nan)

    solution = method(operator(A, product), b, rtol=1e-14)
    assert solution.status is Status.NOT_FINITE and np.isnan(solution.residual_norm)
    assert residual(A, b, solution.x) == pytest.approx(np.min(solution.history))


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_a_preconditioner_of_nothing_but_nan_gives_x0_back(method, every):
    A, b = system(kind_for(method))
    M = operator(A, lambda v: v * np.nan)
    x0 = np.ones(b.size)
    solution = method(A, b, x0, M=M)
    assert solution.status is Status.NOT_FINITE
    np.testing.assert_array_equal(solution.x, x0)
    assert solution.residual_norm == pytest.approx(residual(A, b, x0))


def test_cg_says_that_a_matrix_or_a_preconditioner_is_indefinite(every):
    A, b = system("indefinite")
    assert cg(A, b).status is Status.INDEFINITE
    A, b = system("spd")
    sign = np.where(np.arange(b.size) % 2, 1.0, -5.0)
    solution = cg(A, b, M=sp.diags(sign))
    assert solution.status is Status.INDEFINITE_PRECONDITIONER and "M is not positive definite" in repr(solution)


def test_minres_says_what_is_not_symmetric_or_not_definite():
    A, b = system("indefinite")
    N = sp.diags([0.7, 1.0, -0.2], [-3, 0, 1], shape=A.shape)
    assert minres(A + N, b).status is Status.NOT_SYMMETRIC
    assert minres(A, b, M=N).status is Status.NOT_SYMMETRIC
    assert minres(A, b, M=-sp.eye(b.size)).status is Status.INDEFINITE_PRECONDITIONER
    assert np.isfinite(minres(A + N, b).x).all()


def test_bicgstab_starts_again_where_its_recurrence_breaks_down():
    A = np.array([[0.0, 1.0], [-1.0, 0.0]])  # shadow^H A r = 0 in the first step, whatever r is
    solution = bicgstab(A, np.array([1.0, 1.0]))
    assert solution.status is Status.BREAKDOWN and np.isfinite(solution.x).all()
    B = np.array([[1.0, 2.0, 0.0], [-2.0, 1.0, 1.0], [0.0, 3.0, -1.0]])
    assert bicgstab(B, np.array([1.0, 0.0, 0.0]), rtol=1e-12, maxiter=50).converged


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_bicgstab_is_broken_where_omega_is_too_small_to_divide_by(backend, dtype):
    xp, real = backend.xp, np.empty(0, dtype).real.dtype
    root = float(np.finfo(real).max) ** 0.5
    outcomes = {
        (1.0, 1.0): monitor.RUNNING,
        (1.0, root / 4): monitor.RUNNING,
        (0.0, 1.0): monitor.BROKEN,  # t is orthogonal to s
        (0.0, 0.0): monitor.BROKEN,  # t is 0
        (1.0, 2 * root): monitor.BROKEN,  # omega is a number yet, but beta is not
        (1.0, 1e10 * root): monitor.BROKEN,  # omega underflows to 0
    }
    for (ts, t_norm), code in outcomes.items():
        state, history = xp.zeros(4, np.int32), xp.zeros(2, real)
        norms = backend.move(np.array([0.5, 0, 0, np.inf, np.inf], real))
        rho, sigma, ts_, p = (backend.move(np.array([v], dtype)) for v in (0.5, 1.0, ts, 3.0))
        t_norm_, shadow_norm = (backend.move(np.array([v], real)) for v in (t_norm, 1.0))
        kernels = kernels_for(p)
        kernels.recurrences.bicgstab_record(state, norms, history, rho, sigma, ts_, t_norm_, shadow_norm)
        assert int(state[monitor.CODE]) == code, (ts, t_norm)
        assert int(state[monitor.ITERATIONS]) == 1 and float(history[1]) == 0.5  # x has made the step by alpha p
        kernels.recurrences.bicgstab_direction(state, rho, sigma, ts_, t_norm_, rho, rho, p)
        p = backend.fetch(p)
        assert np.isfinite(p).all() and (p[0] == 3) == (code == monitor.BROKEN)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_bicgstab_starts_again_where_omega_underflows(backend, dtype, every):
    n, huge = 50, 1e30 if np.finfo(dtype).eps > 1e-10 else 1e170
    rng = np.random.default_rng(5)
    A = sp.diags(np.linspace(1, 1.1, n).astype(dtype)).tocsr()
    b = rng.standard_normal(n).astype(dtype)
    b[-1] = 0
    calls = []

    def M(r):
        calls.append(1)
        z = r.copy()
        if len(calls) == 2:  # A z is all but orthogonal to s = r, whose last entry is 0, and omega about 1 / huge^2
            z[-1] = huge
        return z

    solution = bicgstab(backend.move(A), backend.move(b), M=M, rtol=1e-6 if huge == 1e170 else 1e-4)
    assert solution.status is Status.CONVERGED, solution
    assert residual(A, b, backend.fetch(solution.x)) <= 1.001 * solution.residual_norm + 1e-6 * np.linalg.norm(b)
    assert solution.history[1] < 0.5 * solution.history[0]  # the step by alpha p was kept


# Biconjugate gradients


@pytest.mark.parametrize("preconditioned", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128], ids=name)
def test_bicg_makes_the_residual_orthogonal_to_the_krylov_space_of_the_adjoint(backend, dtype, preconditioned):
    A, b = system("general", dtype, m=6)
    M = sp.diags(np.linspace(0.2, 0.3, b.size) * (1 + 0.3j if np.dtype(dtype).kind == "c" else 1)).tocsr()
    M = M if preconditioned else sp.eye(b.size, format="csr")
    AH, MH = A.conj().T, M.conj().T
    space, shadow = [M @ b], [MH @ b]
    for _ in range(4):
        space.append(M @ (A @ space[-1]))
        shadow.append(MH @ (AH @ shadow[-1]))
    V, W = (np.linalg.qr(np.stack(vectors, axis=1))[0] for vectors in (space, shadow))
    exact = V @ np.linalg.solve(W.conj().T @ (A @ V), W.conj().T @ b)
    seen = []
    bicg(
        *(backend.move(v) for v in (A, b)), M=backend.move(M) if preconditioned else None, rtol=0, maxiter=5,
        callback=lambda x: seen.append(backend.fetch(x).copy()),
    )  # fmt: skip
    assert len(seen) == 5
    np.testing.assert_allclose(seen[-1], exact, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128], ids=name)
@pytest.mark.parametrize("kind", ["spd", "indefinite", "general"])
@pytest.mark.parametrize("preconditioned", [False, True])
def test_bicg_takes_as_many_iterations_as_that_of_scipy(kind, dtype, preconditioned):
    A, b = system(kind, dtype)
    M = sp.diags(np.linspace(0.1, 0.3, b.size)) if preconditioned else None
    peer = []
    _, info = spla.bicg(A, b, M=M, rtol=1e-9, callback=lambda x: peer.append(residual(A, b, x)))
    solution = bicg(A, b, M=M, rtol=1e-9)
    assert info == 0 and solution.converged
    assert abs(solution.iterations - len(peer)) <= 2
    np.testing.assert_allclose(solution.history[1:11], peer[:10], rtol=1e-6)


def test_bicg_with_factors_is_bicg_with_their_dense_inverse():
    A, b = system("general", np.complex128, m=6)
    F = ILU0().factor(A)
    one, other = bicg(A, b, M=F, rtol=1e-10), bicg(A, b, M=F.solve(np.eye(b.size)), rtol=1e-10)
    assert one.converged and one.iterations == other.iterations < bicg(A, b, rtol=1e-10).iterations
    np.testing.assert_allclose(one.history, other.history, rtol=1e-5, atol=1e-9 * one.history[0])


@pytest.mark.parametrize("which", ["A", "M"])
def test_bicg_names_an_operator_that_cannot_be_transposed(which):
    A, b = system("general")
    one_way = spla.LinearOperator(A.shape, matvec=lambda v: A @ v, dtype=A.dtype)

    class OnlyMatvec:
        shape, dtype, matvec = A.shape, A.dtype, staticmethod(lambda v: A @ v)

    for op in (one_way, OnlyMatvec(), *([lambda v: v.copy()] if which == "M" else [])):
        with pytest.raises(
            MatrixError, match=f"{which} has no rmatvec, but this method multiplies by {which}\\^H"
        ) as e:
            bicg(*((op, b) if which == "A" else (A, b)), M=op if which == "M" else None)
        assert "\n" not in str(e.value)


def test_bicg_names_an_adjoint_that_answers_wrongly():
    A, b = system("general")
    short = spla.LinearOperator(A.shape, matvec=lambda v: A @ v, rmatvec=lambda v: v * 1j, dtype=A.dtype)
    with pytest.raises(MatrixError, match=r"A\^H gave complex numbers for a real vector"):
        bicg(short, b)


def test_bicg_starts_again_where_its_recurrence_breaks_down():
    A = np.array([[0.0, 1.0], [-1.0, 0.0]])  # p_shadow^H A p = 0 in the first step, whatever r is
    solution = bicg(A, np.array([1.0, 1.0]))
    assert solution.status is Status.BREAKDOWN and np.isfinite(solution.x).all()
    B = np.array([[1.0, 2.0, 0.0], [-2.0, 1.0, 1.0], [0.0, 3.0, -1.0]])
    assert bicg(B, np.array([1.0, 0.0, 0.0]), rtol=1e-12, maxiter=50).converged


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_the_step_of_bicg_is_broken_where_there_is_nothing_to_divide_by(backend, dtype):
    xp, real = backend.xp, np.empty(0, dtype).real.dtype
    finfo = np.finfo(real)
    eps, tiny, huge = float(finfo.eps), float(finfo.tiny), float(finfo.max)
    outcomes = {
        (1.0, 2.0): monitor.RUNNING,
        (2 * eps, 1.0): monitor.RUNNING,
        (eps, 1.0): monitor.BROKEN,  # rho: its terms cancel to rounding
        (0.0, 1.0): monitor.BROKEN,
        (1.0, 0.0): monitor.BROKEN,  # sigma
        (1.0, tiny / 4): monitor.BROKEN,  # alpha overflows
        (float("nan"), 1.0): monitor.NOT_FINITE,
        (1.0, float("inf")): monitor.NOT_FINITE,
        (1.0, huge): monitor.RUNNING,
    }
    for (rho, sigma), code in outcomes.items():
        state, alpha = xp.zeros(4, np.int32), xp.zeros(1, dtype)
        rho_, sigma_ = (backend.move(np.array([v], dtype)) for v in (rho, sigma))
        kernels_for(alpha).recurrences.bicg_alpha(state, rho_, sigma_, xp.ones(1, real), alpha)
        assert int(state[monitor.CODE]) == code, (rho, sigma)
        assert complex(alpha[0]) == pytest.approx(rho / sigma if code == monitor.RUNNING else 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=name)
def test_a_residual_that_outgrows_the_precision_ends_the_cycle(backend, dtype):
    eps = float(np.finfo(dtype).eps)
    for size, code in ((0.4 / eps, monitor.RUNNING), (0.6 / eps, monitor.BROKEN)):
        state, history = backend.xp.zeros(4, np.int32), backend.xp.zeros(2, dtype)
        norms = backend.move(np.array([size, 0, 0, 1, 0.5], dtype))
        kernels_for(norms).recurrences.bicg_record(state, norms, history, norms[:1])
        assert int(state[monitor.CODE]) == code
        assert int(state[monitor.ITERATIONS]) == 1 and float(history[1]) == pytest.approx(size)


@pytest.mark.parametrize("method", [bicg, sqmr], ids=name)
def test_a_spike_of_the_residual_leaves_the_iterate_before_it(method, every):
    d = np.linspace(1, 3, 40) * np.where(np.arange(40) % 2, 1, -1)
    b = np.ones(40)
    d[0] -= d.sum() - 1e-15
    A = sp.diags(d).tocsr()
    assert 0 < abs(b @ (A @ b)) < 1e-13  # p^T A p in the first step: no digit of it is true
    solution = method(A, b, rtol=1e-9)
    assert solution.status is Status.BREAKDOWN and solution.iterations == 1
    np.testing.assert_array_equal(solution.x, 0)
    assert solution.residual_norm == pytest.approx(np.linalg.norm(b))
    elsewhere = method(A, b, 0.01 * b, rtol=1e-9)
    assert elsewhere.converged and residual(A, b, elsewhere.x) <= 1e-9 * np.linalg.norm(b)


# Simplified QMR


def complex_symmetric(m=12):
    """A complex symmetric system with a point source, and diagonal complex M; A is complex on the boundary only."""
    A = gallery.helmholtz(m, 5.0)
    b = np.zeros(A.shape[0], complex)
    b[A.shape[0] // 2 + m // 3] = 1
    return A.tocsr(), b, sp.diags(1 / A.diagonal()).tocsr()


def test_sqmr_is_the_mean_of_the_iterates_of_cg_weighted_by_their_residuals(backend):
    A, b = system("spd")
    M = sp.diags(np.linspace(0.2, 0.4, b.size)).tocsr()
    iterates = [np.zeros(b.size)]
    cg(A, b, M=M, rtol=0, maxiter=12, callback=lambda x: iterates.append(x.copy()))
    seen = []
    solution = sqmr(
        *(backend.move(v) for v in (A, b)), M=backend.move(M), rtol=0, maxiter=12,
        callback=lambda x: seen.append(backend.fetch(x).copy()),
    )  # fmt: skip
    weights = np.array([residual(A, b, x) ** -2 for x in iterates])
    for k in range(1, 13):
        mean = weights[: k + 1] @ np.array(iterates[: k + 1]) / weights[: k + 1].sum()
        np.testing.assert_allclose(seen[k - 1], mean, rtol=1e-9, atol=1e-12)
        assert solution.history[k] == pytest.approx(residual(A, b, mean), rel=1e-9)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_sqmr_takes_the_iterations_of_minres_and_cg_where_these_can_be_used(dtype):
    A, b = system("spd", dtype)
    M = sp.diags(np.linspace(0.2, 0.3, b.size).astype(dtype))
    rtol = 1e-9 if np.finfo(dtype).eps < 1e-10 else 1e-4
    one, other, third = (method(A, b, M=M, rtol=rtol) for method in (sqmr, minres, cg))
    assert one.converged and abs(one.iterations - other.iterations) <= 3 and abs(one.iterations - third.iterations) <= 3


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_sqmr_bears_an_indefinite_preconditioner(backend, dtype):
    A, b = system("indefinite", dtype)
    d = np.linspace(1, 30, b.size) * np.where(np.arange(b.size) % 3, 1.0, -1.0)
    A = (A + sp.diags(d.astype(dtype))).tocsr()
    M = sp.diags((1 / A.diagonal().real).astype(dtype)).tocsr()
    moved = backend.move(A), backend.move(b), backend.move(M)
    rtol = 1e-9 if np.finfo(dtype).eps < 1e-10 else 1e-4
    assert minres(*moved[:2], M=moved[2]).status is Status.INDEFINITE_PRECONDITIONER
    solution, plain = sqmr(*moved[:2], M=moved[2], rtol=rtol), sqmr(*moved[:2], rtol=rtol)
    assert solution.converged and solution.iterations < 0.5 * plain.iterations
    assert residual(A, b, backend.fetch(solution.x)) <= 1.01 * rtol * np.linalg.norm(b)
    seen = []
    sqmr(*moved[:2], M=moved[2], rtol=0, maxiter=5, callback=lambda x: seen.append(backend.fetch(x).copy()))
    sizes = [residual(A, b, x) for x in seen]
    np.testing.assert_allclose(solution.history[1:6], sizes, rtol=1e-4 if rtol == 1e-4 else 1e-9)


@pytest.mark.parametrize("preconditioned", [False, True])
def test_sqmr_solves_a_complex_symmetric_system_in_about_the_iterations_of_gmres(backend, preconditioned):
    A, b, M = complex_symmetric()
    M = backend.move(M) if preconditioned else None
    solution = sqmr(backend.move(A), backend.move(b), M=M, rtol=1e-8)
    assert solution.converged and residual(A, b, backend.fetch(solution.x)) <= 1.001e-8 * np.linalg.norm(b)
    full = gmres(backend.move(A), backend.move(b), M=M, rtol=1e-8, restart=b.size)
    assert full.iterations <= solution.iterations <= 1.3 * full.iterations
    same = sqmr(backend.move(A), backend.move(b), M=M, rtol=1e-8, hermitian=False)
    np.testing.assert_array_equal(backend.fetch(solution.x), backend.fetch(same.x))


@pytest.mark.parametrize("kind", ["real", "complex symmetric", "Hermitian"])
def test_sqmr_takes_the_indefinite_ilu0_of_an_indefinite_matrix(backend, kind):
    A, b = system("indefinite", np.complex128 if kind == "Hermitian" else np.float64, m=20)
    A = (A + sp.diags(np.where(np.arange(b.size) % 5, 1.0, -9.0))).tocsr()
    if kind == "complex symmetric":
        A = (A + 0.5j * sp.diags(np.linspace(0, 1, b.size))).tocsr()
    moved = backend.move(A), backend.move(b)
    F = ILU0().factor(moved[0])
    assert kind == "complex symmetric" or minres(*moved, M=F).status is Status.INDEFINITE_PRECONDITIONER
    solution, plain, full = sqmr(*moved, M=F, rtol=1e-8), sqmr(*moved, rtol=1e-8), gmres(*moved, M=F, restart=200)
    assert solution.converged and residual(A, b, backend.fetch(solution.x)) <= 1.001e-8 * np.linalg.norm(b)
    assert solution.iterations < 0.6 * plain.iterations
    assert sqmr(*moved, M=F).iterations <= 1.3 * full.iterations


def test_hermitian_decides_between_the_two_products_of_vectors():
    A, b, _ = complex_symmetric()
    dense = b + np.exp(1j * np.arange(b.size))
    assert sqmr(A, dense, hermitian=False).converged
    assert sqmr(A, dense, hermitian=True).status is Status.NOT_SYMMETRIC
    A, dense = system("indefinite", np.complex128)
    assert sqmr(A, dense, hermitian=True).converged and sqmr(A, dense).converged
    assert sqmr(A, dense, hermitian=False).status is Status.NOT_SYMMETRIC
    real = [sqmr(A.real, dense.real, hermitian=h) for h in (None, True, False)]
    assert all(s.converged and (s.x == real[0].x).all() for s in real)
    with pytest.raises(ParameterError, match="hermitian='yes'; True, False or None is needed"):
        sqmr(A, dense, hermitian="yes")


def test_sqmr_says_what_is_not_symmetric():
    A, b = system("indefinite")
    N = sp.diags([0.7, 1.0, -0.2], [-3, 0, 1], shape=A.shape)
    assert sqmr(A + N, b).status is Status.NOT_SYMMETRIC
    assert sqmr(A, b, M=N).status is Status.NOT_SYMMETRIC
    C, c, _ = complex_symmetric()
    hermitian = sp.diags([-0.3j, 1.0, 0.3j], [-1, 0, 1], shape=C.shape)
    assert sqmr(C, c + np.exp(1j * np.arange(c.size)), M=hermitian).status is Status.NOT_SYMMETRIC


def test_sqmr_breaks_down_with_a_status_and_starts_again():
    swap = np.array([[0.0, 1.0], [1.0, 0.0]])
    solution = sqmr(swap, np.array([1.0, 0.0]))  # sigma = b^T A b = 0
    assert solution.status is Status.BREAKDOWN and np.isfinite(solution.x).all()
    assert sqmr(swap, np.array([1.0, 0.0]), np.array([0.1, 0.2]), rtol=1e-12).converged
    isotropic = sqmr(np.diag([1.0 + 1j, 2.0 + 1j]), np.array([1.0, 1j]), hermitian=False)  # rho = b^T b = 0
    assert isotropic.status is Status.BREAKDOWN


def test_sqmr_starts_again_after_a_breakdown_on_the_way(every):
    A, b = system("indefinite")
    calls = []

    def M(r):
        calls.append(1)
        return 0 * r if len(calls) == 62 else r.copy()  # rho = 0 on the way

    plain = sqmr(A, b, rtol=1e-10)
    solution = sqmr(A, b, M=M, rtol=1e-10, maxiter=1000)
    assert solution.converged and len(calls) > 62
    assert solution.iterations > plain.iterations  # what the new cycle had to learn again
    assert residual(A, b, solution.x) <= 1e-10 * np.linalg.norm(b)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("n", [1, 7, 5000])
def test_dotu_does_not_conjugate_and_dot_does(backend, dtype, n):
    rng = np.random.default_rng(n)
    x, y = (rng.standard_normal(n) + 1j * rng.standard_normal(n) for _ in range(2))
    x, y = ((v if np.dtype(dtype).kind == "c" else v.real).astype(dtype) for v in (x, y))
    out = backend.xp.zeros(1, dtype)
    tolerance = 10 * n**0.5 * float(np.finfo(dtype).eps)
    for form, expected in (("dotu", np.sum(x * y)), ("dot", np.sum(x.conj() * y))):
        getattr(kernels_for(out), form)(backend.move(x), backend.move(y), out)
        assert complex(out[0]) == pytest.approx(complex(expected), abs=tolerance * n**0.5)


# The true residual decides, whatever the recurrence says


@pytest.mark.parametrize("seed", range(12))
def test_minres_ends_at_the_least_residual_where_no_x_solves_a_singular_system(seed, every):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(8, 50))
    rank = int(rng.integers(2, n))
    values = np.zeros(n)
    values[:rank] = 10.0 ** rng.uniform(-3, 0, rank) * rng.choice([-1, 1], rank)
    V = np.linalg.qr(rng.standard_normal((n, n)))[0]
    A, b = (V * values) @ V.T, rng.standard_normal(n)
    A = (A + A.T) / 2
    least = np.linalg.norm(V[:, rank:].T @ b)  # the part of b outside the range of A
    solution = minres(A, b, rtol=1e-10)
    assert solution.status in (Status.STAGNATED, Status.BREAKDOWN) and solution.iterations < 10 * n
    assert solution.residual_norm == pytest.approx(residual(A, b, solution.x), rel=1e-6)
    assert residual(A, b, solution.x) <= 1.05 * least


def test_an_iterate_that_was_verified_is_not_lost_to_a_recurrence_that_drifts(every):
    A, b = np.diag(np.repeat([1.0, 2.0, 5.0], 3)), np.linspace(1, 2, 9)  # a cycle of cg takes three iterations
    untrue = {
        2: 1.25,
        4: 0.05,
        5: 0.05,
    }  # iteration -> its product is too large by this factor: x drifts off, r does not
    done = []
    product = lambda v: (A @ v) * untrue.get(len(done), 1)  # noqa: E731
    operator = spla.LinearOperator(A.shape, matvec=product, dtype=A.dtype)
    solution = cg(operator, b, rtol=1e-12, callback=lambda x: done.append(residual(A, b, x)))
    assert solution.status is Status.STAGNATED and len(done) == 6
    assert done[2] < 0.5 * np.linalg.norm(b) and min(done[4:]) > 1.5 * done[2]  # what ended each of the two cycles
    assert residual(A, b, solution.x) == pytest.approx(done[2])
    assert solution.residual_norm == pytest.approx(done[2])


def test_a_new_cycle_begins_from_the_better_of_the_last_and_the_best_iterate(backend):
    A, b = 2 * np.eye(4), np.arange(1.0, 5.0)
    exact = b / 2
    solve = progress.Progress(
        "cg", backend.move(sp.csr_matrix(A)), backend.move(b), None, rtol=1e-9, atol=0.0, maxiter=99, M=None,
        callback=None, watch=None,
    )  # fmt: skip
    best, (r,) = solve.keeps_best(), solve.vectors(1)

    def reach(last, kept, code):
        solve.x[:], best[:] = backend.move(last), backend.move(kept)
        solve.state[monitor.CODE] = code
        solve._look(wait=True)

    assert solve.cycle(r)
    reach(6 * exact, 0.7 * exact, monitor.BROKEN)
    assert solve.cycle(r)  # 0.7 exact halves the residual, 6 exact does not
    np.testing.assert_array_equal(backend.fetch(solve.x), 0.7 * exact)
    np.testing.assert_allclose(backend.fetch(r), 0.3 * b)
    reach(0.8 * exact, 0.1 * exact, monitor.BROKEN)
    assert not solve.cycle(r)  # the last one is the better of these, but far from half of what there was
    np.testing.assert_array_equal(backend.fetch(solve.x), 0.8 * exact)
    reach(9 * exact, -exact, monitor.BREAKDOWN)
    solution = solve.end()
    np.testing.assert_array_equal(backend.fetch(solution.x), 0.8 * exact)
    assert solution.residual_norm == pytest.approx(0.2 * np.linalg.norm(b))


# Sizes at the ends of the range


EXTREMES = [
    (dtype, a, c)
    for dtype, far, half in (
        (np.float64, 600, 300),
        (np.complex128, 600, 300),
        (np.float32, 70, 34),
        (np.complex64, 70, 34),
    )
    for a, c in ((-far, -far), (far, far), (-far, 0), (far, 0), (0, -far), (0, far), (-half, half))
]


@pytest.mark.parametrize(("dtype", "a", "c"), EXTREMES, ids=str)
@pytest.mark.parametrize("preconditioned", [False, True])
@pytest.mark.parametrize("method", METHODS, ids=name)
def test_a_system_times_powers_of_two_takes_the_same_steps(backend, method, preconditioned, dtype, a, c):
    A, b = system(kind_for(method), dtype, m=7)
    real = np.empty(0, dtype).real.dtype.type
    x0 = (np.random.default_rng(1).standard_normal(b.size) / 8).astype(dtype)
    M = sp.diags(np.linspace(0.2, 0.3, b.size).astype(dtype)).tocsr() if preconditioned else None

    def solved(a, c):
        system = (A * real(2.0**a), b * real(2.0**c), x0 * real(2.0 ** (c - a)))
        preconditioner = None if M is None else backend.move((M * real(2.0**-a)).tocsr())
        return method(*(backend.move(v) for v in system), M=preconditioner, rtol=1e-5, maxiter=300)

    plain, scaled = solved(0, 0), solved(a, c)
    assert scaled.converged, scaled
    assert abs(scaled.iterations - plain.iterations) <= 1
    tol = 1e-4 if real is np.float32 else 1e-9
    np.testing.assert_allclose(backend.fetch(scaled.x) / real(2.0 ** (c - a)), backend.fetch(plain.x), atol=tol)
    both = min(len(scaled.history), len(plain.history))
    norms = scaled.history[:both] / real(2.0**c)
    np.testing.assert_allclose(norms, plain.history[:both], rtol=100 * tol, atol=10 * tol * plain.history[0])


@pytest.mark.parametrize("far", [0, -300, 300])
def test_the_drift_of_minres_is_the_rounding_of_x_over_the_residual(backend, far):
    rng = np.random.default_rng(0)
    m = 12
    alpha, beta = rng.standard_normal(m), rng.random(m + 1) + 0.3
    T = np.diag(alpha) + np.diag(beta[1:m], 1) + np.diag(beta[1:m], -1)
    T = np.vstack([T, beta[m] * np.eye(m)[-1]])
    lanczos, state = backend.xp.zeros(22), backend.xp.zeros(4, np.int32)
    kernels = kernels_for(lanczos)
    kernels.recurrences.minres_begin(state, lanczos, backend.move(np.array([beta[0] ** 2 * 4.0**-far])), 1.0)
    for k in range(1, m + 1):
        scaled = alpha[k - 1] * 2.0**far, beta[k] ** 2 * 4.0**far
        kernels.recurrences.minres_rotation(state, lanczos, *(backend.move(np.array([v])) for v in scaled))
        rhs = beta[0] * np.eye(k + 1)[0]
        x = np.linalg.lstsq(T[: k + 1, :k], rhs, rcond=None)[0]  # in a basis that is orthonormal
        drift = np.linalg.norm(T[:, :k], axis=0).max() * np.linalg.norm(x) / np.linalg.norm(rhs - T[: k + 1, :k] @ x)
        assert float(lanczos[DRIFT]) == pytest.approx(np.finfo(float).eps * drift, rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("dtype", "far"), [(np.float64, 300), (np.complex128, 300), (np.float32, 35)], ids=str)
def test_minres_sees_its_x_outgrow_the_precision_in_any_units(backend, dtype, far, seed):
    rng = np.random.default_rng(seed)
    n, rank = 40, 25
    values = np.where(np.arange(n) < rank, 10.0 ** rng.uniform(-2, 0, n) * rng.choice([-1, 1], n), 0)
    V = np.linalg.qr(rng.standard_normal((n, n)))[0]
    A, b = (V * values) @ V.T, rng.standard_normal(n)
    A, b = ((A + A.T) / 2).astype(dtype), b.astype(dtype)
    real = np.empty(0, dtype).real.dtype.type
    plain, *scaled = (
        minres(backend.move(A * real(2.0**a)), backend.move(b * real(2.0**-a)), rtol=1e-10, maxiter=1000)
        for a in (0, -far, far)
    )
    assert plain.status in (Status.STAGNATED, Status.BREAKDOWN)
    for a, solution in zip((-far, far), scaled, strict=True):
        assert solution.status is plain.status and abs(solution.iterations - plain.iterations) <= 1
        x = backend.fetch(solution.x).astype(np.complex128) * 2.0 ** (2 * a)
        assert residual(A, b, x) <= 1.01 * residual(A, b, backend.fetch(plain.x))


@pytest.mark.parametrize("method", METHODS, ids=name)
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
    far = method(A, b, np.ones(b.size), rtol=0, atol=1e-6)  # x0 is enormous beside this b
    assert far.converged and residual(A, b, far.x) <= 1e-6


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_a_norm_of_b_that_overflows_is_named(backend, method):
    for dtype in (np.float32, np.float64):
        A, b = backend.move(sp.eye(4, dtype=dtype, format="csr")), np.full(4, np.finfo(dtype).max)
        with pytest.raises(MatrixError, match=f"the norm of b overflows in {np.dtype(dtype).name}; scale"):
            method(A, backend.move(b))


@pytest.mark.parametrize("options", [{"atol": 1e300}, {"rtol": 1e300}], ids=str)
@pytest.mark.parametrize("method", METHODS, ids=name)
def test_a_tolerance_beyond_the_precision_is_met_by_any_finite_residual(backend, method, options):
    A, b = system("spd", np.float32, m=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = method(backend.move(A), backend.move(b), **options)
    assert solution.converged and solution.iterations == 0
    assert solution.residual_norm == pytest.approx(np.linalg.norm(b), rel=1e-6)
    nan = spla.LinearOperator(A.shape, matvec=lambda v: v * np.nan, dtype=A.dtype)
    assert method(nan, b, np.ones_like(b), **options).status is Status.NOT_FINITE


# Orthogonalization


def figure_2(Q, z):
    """The paper's Figure 2, line by line; also how often it orthogonalized again."""
    omega, tau, again = np.linalg.norm(z) ** 2, 0.99, 0
    h = np.zeros(Q.shape[1] + 1, Q.dtype)
    for i in range(Q.shape[1]):
        h[i] = np.vdot(Q[:, i], z)
        z = z - h[i] * Q[:, i]
        if abs(h[i]) ** 2 > omega * tau:
            beta = np.vdot(Q[:, i], z)
            h[i] += beta
            z = z - beta * Q[:, i]
            again += 1
        omega = max(omega - abs(h[i]) ** 2, 0)
    h[-1] = np.linalg.norm(z)
    return z / h[-1], h, again


@pytest.mark.parametrize("dtype", [np.float64, np.complex128, np.float32], ids=name)
@pytest.mark.parametrize("n", [9, 5000])
def test_mgs_step_is_figure_2(backend, dtype, n):
    rng = np.random.default_rng(3)
    j = 5
    basis = np.linalg.qr(rng.standard_normal((n, j + 1)) + (1j * rng.standard_normal((n, j + 1))))[0]
    basis = (basis if np.dtype(dtype).kind == "c" else np.linalg.qr(basis.real)[0]).astype(dtype)
    tol = 200 * np.finfo(dtype).eps
    repeats = 0
    for nearly in (0, 3, 5):  # z nearly along this vector of the basis: it is orthogonalized again there
        z = (basis[:, nearly] + 1e-3 * rng.standard_normal(n) / np.sqrt(n)).astype(dtype)
        expected, h, again = figure_2(basis, z)
        repeats += again
        Q = np.zeros((n, j + 2), dtype, order="F")
        Q[:, : j + 1], Q[:, j + 1] = basis, z
        Q, H = (backend.xp.asfortranarray(backend.move(a)) for a in (Q, np.zeros((j + 3, j + 2), dtype, order="F")))
        kernels_for(Q).arnoldi.mgs_step(backend.xp.zeros(4, np.int32), Q, j, H)
        np.testing.assert_allclose(backend.fetch(H)[: j + 2, j], h, atol=tol)
        np.testing.assert_allclose(backend.fetch(Q)[:, j + 1], expected, atol=1e3 * tol)
    assert repeats >= 3


@pytest.mark.parametrize("orthogonalization", ["mgs", "cgs2"])
@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("n", [9, 5000])
def test_orthogonalization_of_vectors_whose_squares_leave_the_range(backend, n, dtype, orthogonalization):
    rng = np.random.default_rng(4)
    j, far = 2, 600 if np.finfo(dtype).eps < 1e-10 else 80
    basis = np.linalg.qr(rng.standard_normal((n, j + 1)))[0]
    z = basis[:, 1] + rng.standard_normal(n) / np.sqrt(n)
    results = []
    for power in (0, -far, far):
        Q = np.zeros((n, j + 2), dtype, order="F")
        Q[:, : j + 1], Q[:, j + 1] = basis, z.astype(dtype) * np.empty(0, dtype).real.dtype.type(2.0**power)
        Q, H = (backend.xp.asfortranarray(backend.move(v)) for v in (Q, np.zeros((j + 3, j + 2), dtype, order="F")))
        state = backend.xp.zeros(4, np.int32)
        if orthogonalization == "mgs":
            kernels_for(Q).arnoldi.mgs_step(state, Q, j, H)
        else:
            kernels_for(Q).arnoldi.cgs2_step(state, Q, j, H, backend.xp.zeros(j + 2, dtype))
        results.append((backend.fetch(Q)[:, j + 1], backend.fetch(H)[: j + 2, j].astype(complex) / 2.0**power))
    tol = 100 * float(np.finfo(dtype).eps)
    for q, h in results:
        np.testing.assert_allclose(q, results[0][0], atol=tol)
        np.testing.assert_allclose(h, results[0][1], atol=tol)
    assert np.linalg.norm(results[1][0]) == pytest.approx(1, abs=tol)


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("size", [0.0, 1e-310, 1e-200, 1e-40, 1.0, 1e30, 1e200, 1e307])
def test_norm_has_the_range_of_its_type(backend, dtype, size):
    with np.errstate(over="ignore"):
        v = (np.array([3.0, -4.0, 12.0]) * size).astype(dtype)
    out = backend.xp.zeros(1, v.real.dtype)
    kernels_for(out).vectors.norm(backend.move(v), out)
    if not np.isfinite(v).all():
        assert not np.isfinite(float(out[0]))
        return
    with np.errstate(over="ignore"):
        expected = np.hypot(np.hypot(v[0].real, v[1].real), v[2].real)
    assert float(out[0]) == pytest.approx(float(expected), rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128], ids=name)
def test_twice_classical_is_orthogonal_to_rounding_on_an_ill_conditioned_krylov_basis(backend, dtype):
    n, m = 200, 40
    A = np.diag(np.logspace(0, -14, n))
    A[np.arange(n - 1), np.arange(1, n)] = 1e-3
    A = A.astype(dtype)
    loss = {}
    for which in ("mgs", "cgs2"):
        Q = backend.xp.zeros((n, m + 1), dtype, order="F")
        H = backend.xp.zeros((m + 1, m), dtype, order="F")
        state, work = backend.xp.zeros(4, np.int32), backend.xp.zeros(m, dtype)
        Q[:, 0] = n**-0.5
        moved = backend.move(A)
        kernels = kernels_for(Q)
        for j in range(m):
            Q[:, j + 1] = moved @ Q[:, j]
            if which == "mgs":
                kernels.arnoldi.mgs_step(state, Q, j, H)
            else:
                kernels.arnoldi.cgs2_step(state, Q, j, H, work)
        q, h = backend.fetch(Q), backend.fetch(H)
        loss[which] = np.linalg.norm(np.eye(m + 1) - q.conj().T @ q)
        assert np.linalg.norm(A @ q[:, :m] - q @ h) <= 1e-13  # A Q_m = Q_{m+1} H
    assert loss["cgs2"] <= 1e-13
    assert loss["cgs2"] < loss["mgs"] <= 1e-4


@pytest.mark.parametrize("orthogonalization", ["mgs", "cgs2"])
def test_a_dependent_vector_leaves_zero_and_not_noise(backend, orthogonalization):
    n = 50
    Q = np.zeros((n, 3), order="F")
    Q[:20, 0] = 20**-0.5
    Q[:, 1] = 3 * Q[:, 0]
    Q, H = backend.xp.asfortranarray(backend.move(Q)), backend.xp.zeros((3, 2), order="F")
    kernels = kernels_for(Q)
    state = backend.xp.zeros(4, np.int32)
    if orthogonalization == "mgs":
        kernels.arnoldi.mgs_step(state, Q, 0, H)
    else:
        kernels.arnoldi.cgs2_step(state, Q, 0, H, backend.xp.zeros(2))
    np.testing.assert_allclose(backend.fetch(H)[:2, 0], [3, 0], atol=1e-14)
    np.testing.assert_array_equal(backend.fetch(Q)[:, 1], np.zeros(n))


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_givens_steps_and_the_triangular_solve_are_least_squares(backend, dtype):
    m = 6
    rng = np.random.default_rng(5)
    hessenberg = np.triu(rng.standard_normal((m + 1, m)), -1)
    if np.dtype(dtype).kind == "c":
        hessenberg = hessenberg + 1j * np.triu(rng.standard_normal((m + 1, m)), 0)
    beta = 2.5
    rhs = np.zeros(m + 1)
    rhs[0] = beta
    xp, real = backend.xp, np.empty(0, dtype).real.dtype
    H = xp.asfortranarray(backend.move(hessenberg.astype(dtype)))
    state, norms = xp.zeros(4, np.int32), backend.move(np.array([beta, 0, 0, np.inf, np.inf], real))
    history, c = xp.zeros(m + 1, real), xp.zeros(m, real)
    s, y, g = xp.zeros(m, dtype), xp.zeros(m, dtype), backend.move(rhs.astype(dtype))
    kernels = kernels_for(H)
    tol = 100 * float(np.finfo(dtype).eps)
    for j in range(m):
        kernels.arnoldi.givens_step(state, norms, history, H, c, s, g, j)
        kernels.arnoldi.hessenberg_solve(state, H, g, y)
        k = j + 1
        expected = np.linalg.lstsq(hessenberg[: k + 1, :k], rhs[: k + 1], rcond=None)[0]
        smallest = np.linalg.norm(rhs[: k + 1] - hessenberg[: k + 1, :k] @ expected)
        np.testing.assert_allclose(backend.fetch(y)[:k], expected, atol=30 * tol)
        np.testing.assert_array_equal(backend.fetch(y)[k:], 0)
        assert float(backend.fetch(norms)[monitor.NORM]) == pytest.approx(smallest, abs=tol)
        assert float(backend.fetch(history)[k]) == float(backend.fetch(norms)[monitor.NORM])
    assert int(backend.fetch(state)[monitor.COLUMNS]) == m


# Flexible GMRES


def test_fgmres_bears_a_preconditioner_that_changes():
    A, b = system("general")
    rng = np.random.default_rng(11)

    def inner(r):
        return gmres(A, r, rtol=rng.uniform(0.05, 0.5), maxiter=15).x

    flexible = fgmres(A, b, M=inner, rtol=1e-10, maxiter=60)
    assert flexible.converged
    assert residual(A, b, flexible.x) <= 1e-10 * np.linalg.norm(b)
    assert flexible.iterations < fgmres(A, b, rtol=1e-10).iterations
    # a fixed M is what gmres needs: with this one its recurrence is not the residual
    fixed = gmres(A, b, M=inner, rtol=1e-10, restart=60, maxiter=flexible.iterations)
    assert residual(A, b, fixed.x) > 1e-10 * np.linalg.norm(b)


def test_fgmres_with_a_fixed_preconditioner_is_gmres():
    A, b = system("general")
    M = sp.diags(1 / (A.diagonal() + np.linspace(0, 2, b.size)))
    one, other = gmres(A, b, M=M, rtol=1e-9), fgmres(A, b, M=M, rtol=1e-9)
    assert one.iterations == other.iterations
    np.testing.assert_allclose(one.x, other.x, rtol=1e-6, atol=1e-9)


# What A, b, M and x0 may be


FORMS = {
    "csc": sp.csc_matrix,
    "coo array": sp.coo_array,
    "dense": lambda A: A.toarray(),
    "list": lambda A: A.toarray().tolist(),
    "operator": spla.aslinearoperator,
    "finelu": lambda A: as_csr(A),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("method", METHODS, ids=name)
def test_every_form_of_A_and_M_gives_the_same(method, form):
    A, b = system(kind_for(method), m=6)
    M = sp.diags(np.linspace(0.2, 0.3, b.size)).tocsr()
    plain = method(A, b, M=M, rtol=1e-9)
    preconditioner = M.toarray() if form == "list" else FORMS[form](M)
    formed = method(FORMS[form](A), b.tolist() if form == "list" else b, M=preconditioner, rtol=1e-9)
    np.testing.assert_allclose(formed.x, plain.x, rtol=1e-6, atol=1e-9)
    assert abs(formed.iterations - plain.iterations) <= 1


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_the_working_precision_is_the_widest_of_the_system(method):
    A, b = system("spd", np.float32, m=5)
    assert method(A, b).x.dtype == np.float32
    assert method(A, b.astype(np.float64)).x.dtype == np.float64
    assert method(A, b.astype(np.complex64)).x.dtype == np.complex64
    assert method((A * 10).astype(np.int64), b).x.dtype == np.float64
    assert method(A, b, M=sp.eye(b.size)).x.dtype == np.float32  # M is only an approximation
    assert method(A, b, M=sp.eye(b.size, dtype=np.complex128)).x.dtype == np.complex64


def test_a_column_gives_a_column():
    A, b = system("spd")
    x, info = cg(A, b[:, None], b[:, None] * 0)
    assert x.shape == (b.size, 1) and info == 0
    with pytest.raises(MatrixError, match="2 columns; a Krylov method solves for one"):
        cg(A, np.stack([b, b], axis=1))


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"rtol": -1e-3}, ParameterError, "rtol=-0.001; a finite number, zero or larger"),
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
        ({"x0": "Mb"}, MatrixError, "x0 has dtype"),
    ],
    ids=str,
)
@pytest.mark.parametrize("method", METHODS, ids=name)
def test_bad_arguments_are_named(method, options, error, match):
    A, b = system("spd")
    with pytest.raises(error, match=match) as caught:
        method(A, b, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("A", "b", "match"),
    [
        (np.ones((3, 2)), np.ones(3), r"A has shape \(3, 2\); a square matrix"),
        (np.zeros((0, 0)), np.zeros(0), "A is empty"),
        (np.diag([1.0, np.nan]), np.ones(2), "A holds NaN or Inf in row 1"),
        (sp.diags([1.0, np.inf]), np.ones(2), "A holds NaN or Inf in row 1"),
        (np.eye(2), np.ones(3), r"b has shape \(3,\), but A has 2 rows"),
        (np.eye(2), np.array([1.0, np.nan]), "b holds NaN or Inf in row 1"),
        (lambda v: v, np.ones(2), "A is a function without a shape"),
    ],
    ids=["rectangular", "empty", "nan", "inf", "length", "b", "function"],
)
@pytest.mark.parametrize("method", METHODS, ids=name)
def test_bad_systems_are_named(method, A, b, match):
    with pytest.raises(MatrixError, match=match):
        method(A, b)


@pytest.mark.parametrize("method", [gmres, fgmres], ids=name)
def test_bad_arguments_of_gmres_are_named(method):
    A, b = system("general")
    with pytest.raises(ParameterError, match="restart=0; at least 1"):
        method(A, b, restart=0)
    with pytest.raises(ParameterError, match="orthogonalization='qr'; one of mgs, cgs2"):
        method(A, b, orthogonalization="qr")


def test_an_operator_that_answers_wrongly_is_named():
    b = np.ones(4)
    with pytest.raises(MatrixError, match="M gave complex numbers for a real vector"):
        gmres(np.eye(4) * 2, b, M=lambda r: r * 1j)
    with pytest.raises(MatrixError, match=r"M gave an array of shape \(2,\) for a vector of length 4"):
        gmres(np.eye(4) * 2, b, M=lambda r: r[:2])


# Random and real systems


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 40), st.floats(0.0, 0.5), st.integers(0, 2**31), st.sampled_from(METHODS), st.booleans())
def test_diagonally_dominant_systems_are_solved(n, density, seed, method, complex_values):
    rng = np.random.default_rng(seed)
    mask = rng.random((n, n)) < density
    B = mask * rng.uniform(-0.3, 1, (n, n)) + (1j * mask * rng.random((n, n)) if complex_values else 0)
    if method in (cg, minres, sqmr):
        B = B + B.conj().T
    A = B + np.diag(np.abs(B).sum(axis=1) + 1)
    b = rng.standard_normal(n)
    kept = A.copy()
    solution = method(sp.csr_matrix(A), b, rtol=1e-9, M=sp.diags(1 / A.diagonal().real))
    assert solution.converged
    assert residual(A, b, solution.x) <= 1.001e-9 * np.linalg.norm(b)
    np.testing.assert_array_equal(A, kept)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 8), st.integers(0, 2**31), st.integers(0, 8), st.sampled_from(METHODS), st.integers(0, 30))
def test_whatever_the_matrix_the_answer_is_finite_and_no_worse_than_x0(n, seed, rank, method, maxiter):
    rng = np.random.default_rng(seed)
    A = rng.integers(-2, 3, (n, min(rank, n))) @ rng.integers(-2, 3, (min(rank, n), n)) * 1.0
    b, x0 = rng.integers(-2, 3, n) * 1.0, rng.integers(-1, 2, n) * 1.0
    solution = method(A, b, x0, maxiter=maxiter)
    size = residual(A, b, solution.x)
    assert np.isfinite(solution.x).all()
    assert size <= residual(A, b, x0) * (1 + 1e-12) + 1e-14
    assert size == pytest.approx(solution.residual_norm, rel=1e-6, abs=1e-12)
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


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_two_runs_give_the_same_bits(backend, method):
    A, b = (backend.move(v) for v in system(kind_for(method)))
    one, other = method(A, b, rtol=1e-9), method(A, b, rtol=1e-9)
    np.testing.assert_array_equal(backend.fetch(one.x), backend.fetch(other.x))
    np.testing.assert_array_equal(one.history, other.history)


def test_the_cuda_header_numbers_the_monitor_as_python_does():
    from finelu.kernels.cuda.runtime.constants import header

    (names,) = re.findall(r"^enum \{ ([^}]+) \};$", header(vars(monitor)), re.MULTILINE)
    numbers = dict(entry.split(" = ") for entry in names.split(", "))
    assert {name: int(value) for name, value in numbers.items()} == {
        name: value for name, value in vars(monitor).items() if name.isupper()
    }
    for stem in ("recurrences", "cycle", "arnoldi"):
        text = (Path(finelu.kernels.__file__).parent / "cuda" / f"{stem}.cu").read_text()
        assert '#include "runtime/constants.cuh"' in text and "enum {" not in text


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_a_product_shared_by_threads_has_the_bits_of_one_thread(threads, monkeypatch, count, dtype):
    monkeypatch.setattr(sharing, "CALL", 0.0)  # so small products are shared, too
    monkeypatch.setattr(sharing, "GRAIN", 50.0)
    threads(count)
    A = sp.random(300, 300, 0.03, format="csr", random_state=3)
    A = sp.csr_matrix(sp.vstack([A[:299], np.ones((1, 300))])).astype(dtype)  # rows without entries, and a long one
    if A.dtype.kind == "c":
        A.data *= np.exp(1j * np.arange(A.nnz)).astype(dtype)
    A.sort_indices()
    x = np.random.default_rng(0).standard_normal(600).astype(dtype)[::2]
    product = products.Product(A)
    assert product.threads == count and product.items[0] == 0 and product.items[-1] == 300
    for _ in range(5):
        np.testing.assert_array_equal(product(x), A @ x)
