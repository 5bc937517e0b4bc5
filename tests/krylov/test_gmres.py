"""GMRES and flexible GMRES: by definition, by behaviour, their orthogonalization by the paper's Figure 2."""

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg
from krylov_cases import DTYPES, name, residual, system

from finelu import ILU0, gallery
from finelu.errors import ParameterError
from finelu.kernels import kernels_for, monitor
from finelu.krylov import fgmres, gmres, minres
from finelu.result import Status


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


def preconditioned():
    A, b = system("general")
    return A, b, sp.diags(1 / (A.diagonal() * np.linspace(1, 30, b.size))).tocsr()


def test_on_the_left_the_preconditioned_residual_is_minimized():
    A, b, M = preconditioned()
    B, c = M @ A, M @ b
    space = np.linalg.qr(np.stack([c, B @ c, B @ (B @ c), B @ (B @ (B @ c))], axis=1))[0]
    best = space @ np.linalg.lstsq(B @ space, c, rcond=None)[0]
    left, right = (gmres(A, b, M=M, rtol=0, maxiter=4, side=side) for side in ("left", "right"))
    np.testing.assert_allclose(left.x, best, rtol=1e-9, atol=1e-12 * abs(best).max())
    assert np.linalg.norm(c - B @ left.x) < 0.99 * np.linalg.norm(c - B @ right.x)
    assert residual(A, b, right.x) < 0.99 * residual(A, b, left.x)
    # in the unit of the recurrence the first norm is that of b
    unit = np.linalg.norm(c) / np.linalg.norm(b)
    assert left.recurrence[-1] == pytest.approx(np.linalg.norm(c - B @ left.x) / unit, rel=1e-9)
    assert left.residual_norm == pytest.approx(residual(A, b, left.x), rel=1e-9)


def test_scipy_preconditions_on_the_left():
    A, b, M = preconditioned()
    theirs, _ = scipy.sparse.linalg.gmres(A, b, M=M, rtol=0, restart=5, maxiter=1)
    np.testing.assert_allclose(gmres(A, b, M=M, rtol=0, maxiter=5, side="left").x, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("restart", [5, 40])
def test_convergence_on_the_left_is_that_of_the_true_residual(backend, dtype, restart):
    A, b, M = preconditioned()
    A, M, b = (backend.move(sp.csr_matrix(x)) if sp.issparse(x) else backend.xp.asarray(x) for x in (A, M, b))
    A, M, b = A.astype(dtype), M.astype(dtype), b.astype(dtype)
    solution = gmres(A, b, M=M, rtol=1e-4, restart=restart, maxiter=2000, side="left")
    assert solution.converged and solution.x.dtype == dtype
    assert float(backend.xp.linalg.norm(b - A @ solution.x)) <= 1.01e-4 * float(backend.xp.linalg.norm(b))


def rows_hidden_by_m(backend, n=20):
    A = sp.diags([np.full(n - 1, -0.4), np.linspace(1, 3, n), np.full(n - 1, -0.3)], [-1, 0, 1])
    M = sp.diags(np.where(np.arange(n) % 2, 1, 1e-6))
    return backend.move(A.tocsr()), backend.move(M.tocsr()), backend.xp.ones(n)


def rows_of_two_sizes(backend, n=400):
    A = backend.move((sp.diags(np.where(np.arange(n) < n // 2, 1, 1e6)) @ gallery.poisson5(20)).tocsr())
    return A, ILU0().factor(A), backend.xp.ones(n)


@pytest.mark.parametrize("case", [rows_hidden_by_m, rows_of_two_sizes], ids=name)
@pytest.mark.parametrize("rtol", [1e-2, 1e-5])
def test_on_the_left_a_claim_that_leaves_the_true_residual_large_is_followed_by_another_cycle(backend, case, rtol):
    A, M, b = case(backend)
    solution = gmres(A, b, M=M, rtol=rtol, side="left")
    assert solution.converged
    assert float(backend.xp.linalg.norm(b - A @ solution.x)) <= 1.01 * rtol * float(backend.xp.linalg.norm(b))
    for maxiter in range(1, 20):  # also where the first claim is the last iteration
        assert gmres(A, b, M=M, rtol=rtol, side="left", maxiter=maxiter).status is Status.MAX_ITERATIONS


@pytest.mark.parametrize("case", [rows_hidden_by_m, rows_of_two_sizes], ids=name)
def test_on_the_left_a_tolerance_of_0_meets_the_end_of_the_precision(backend, case):
    A, M, b = case(backend)
    solution = gmres(A, b, M=M, rtol=0, side="left")
    assert solution.status in (Status.STAGNATED, Status.PRECISION_LIMIT) and solution.iterations < 150


def test_the_side_does_not_matter_without_a_preconditioner_and_a_singular_one_breaks_down():
    A, b = system("general")
    left, right = (gmres(A, b, rtol=1e-9, side=side) for side in ("left", "right"))
    assert left.iterations == right.iterations
    np.testing.assert_allclose(left.x, right.x, rtol=1e-9, atol=1e-12)
    found = gmres(A, b, M=sp.csr_matrix(A.shape), rtol=1e-9, side="left")
    assert found.status is Status.BREAKDOWN and not found.x.any()


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


@pytest.mark.parametrize("method", [gmres, fgmres], ids=name)
def test_bad_arguments_of_gmres_are_named(method):
    A, b = system("general")
    with pytest.raises(ParameterError, match="restart=0; at least 1"):
        method(A, b, restart=0)
    with pytest.raises(ParameterError, match="orthogonalization='qr'; one of mgs, cgs2"):
        method(A, b, orthogonalization="qr")
    with pytest.raises(ParameterError, match="side='lift'"):
        gmres(A, b, side="lift")


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


def at_column(backend, j):
    """The state of a step for column j."""
    return backend.move(np.array([monitor.RUNNING, j, j, 0], np.int32))


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
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
        Q[:, : j + 1] = basis
        Q, H = (backend.xp.asfortranarray(backend.move(a)) for a in (Q, np.zeros((j + 3, j + 2), dtype, order="F")))
        w, v = backend.move(z), backend.xp.zeros(n, dtype)
        kernels_for(Q).arnoldi.mgs_step(at_column(backend, j), Q, w, H, v)
        np.testing.assert_allclose(backend.fetch(H)[: j + 2, j], h, atol=tol)
        np.testing.assert_allclose(backend.fetch(Q)[:, j + 1], expected, atol=1e3 * tol)
        np.testing.assert_array_equal(backend.fetch(v), backend.fetch(Q)[:, j + 1])
        np.testing.assert_array_equal(backend.fetch(w), z)
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
        Q[:, : j + 1] = basis
        w = backend.move(z.astype(dtype) * np.empty(0, dtype).real.dtype.type(2.0**power))
        Q, H = (backend.xp.asfortranarray(backend.move(v)) for v in (Q, np.zeros((j + 3, j + 2), dtype, order="F")))
        step = getattr(kernels_for(Q).arnoldi, f"{orthogonalization}_step")
        step(at_column(backend, j), Q, w, H, w)
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
        v = backend.xp.full(n, n**-0.5, dtype)
        Q[:, 0] = v
        moved = backend.move(A)
        step = getattr(kernels_for(Q).arnoldi, f"{which}_step")
        for j in range(m):
            step(at_column(backend, j), Q, moved @ v, H, v)
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
    step = getattr(kernels_for(Q).arnoldi, f"{orthogonalization}_step")
    v = backend.xp.ones(n)
    step(at_column(backend, 0), Q, Q[:, 1].copy(), H, v)
    np.testing.assert_allclose(backend.fetch(H)[:2, 0], [3, 0], atol=1e-14)
    np.testing.assert_array_equal(backend.fetch(Q)[:, 1], np.zeros(n))
    np.testing.assert_array_equal(backend.fetch(v), np.zeros(n))


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
        kernels.arnoldi.givens_step(state, norms, history, H, c, s, g)
        kernels.arnoldi.hessenberg_solve(state, H, g, y)
        k = j + 1
        expected = np.linalg.lstsq(hessenberg[: k + 1, :k], rhs[: k + 1], rcond=None)[0]
        smallest = np.linalg.norm(rhs[: k + 1] - hessenberg[: k + 1, :k] @ expected)
        np.testing.assert_allclose(backend.fetch(y)[:k], expected, atol=30 * tol)
        np.testing.assert_array_equal(backend.fetch(y)[k:], 0)
        assert float(backend.fetch(norms)[monitor.NORM]) == pytest.approx(smallest, abs=tol)
        assert float(backend.fetch(history)[k]) == float(backend.fetch(norms)[monitor.NORM])
    assert int(backend.fetch(state)[monitor.COLUMNS]) == m


@pytest.mark.parametrize("method", [gmres, fgmres])
@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize(("shift", "restart"), [(1e-8, 5), (1e-8, 30), (1e-3, 30)])
def test_x_does_not_grow_along_the_null_vector_of_a_singular_matrix(backend, method, columns, shift, restart):
    """b is the null vector of A^T, so that x = 0 has the least residual; M is exact except for the null vector, whose
    image it makes 1e8 times as long."""
    n = 30
    A = sp.diags([-np.ones(n - 1), np.r_[1.0, 2 * np.ones(n - 2), 1.0], -np.ones(n - 1)], [-1, 0, 1]).tocsr()
    M = ILU0(shift=shift).factor(backend.move(A))
    b = np.ones(n) if columns == 1 else np.outer(np.ones(n), [1.0, -2.0, 5.0])
    found = method(backend.move(A), backend.move(b), M=M, rtol=1e-8, restart=restart)
    x = backend.fetch(found.x)
    assert np.linalg.norm(x) <= 1e12 * np.linalg.norm(b)
    for solution in [found] if columns == 1 else list(found.columns):
        assert solution.status is Status.STAGNATED and solution.iterations <= 3 * restart
    assert (np.linalg.norm(b - A @ x, axis=0) <= (1 + 1e-12) * np.linalg.norm(b, axis=0)).all()
