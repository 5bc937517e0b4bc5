"""Methods for A = A^H and A = A^T: by the paper's formulas, by limit, by behaviour, by breakdown."""

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from krylov_cases import DTYPES, complex_symmetric, name, residual, system

from finelu.errors import ParameterError
from finelu.kernels import kernels_for
from finelu.kernels.monitor import DRIFT, PHI_BAR
from finelu.krylov import cg, gmres, minres, sqmr
from finelu.krylov.columns import Columns
from finelu.krylov.loop import Loop
from finelu.krylov.minres import begin
from finelu.krylov.rows import ColumnsInRows
from finelu.preconditioners import ILU0, SparseLU
from finelu.result import Status

# Conjugate gradients


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


def test_cg_says_that_a_matrix_or_a_preconditioner_is_indefinite(every):
    A, b = system("indefinite")
    assert cg(A, b).status is Status.INDEFINITE
    A, b = system("spd")
    sign = np.where(np.arange(b.size) % 2, 1.0, -5.0)
    solution = cg(A, b, M=sp.diags(sign))
    assert solution.status is Status.INDEFINITE_PRECONDITIONER and "M is not positive definite" in repr(solution)


# MINRES


def test_preconditioned_minres_knows_the_two_norm_of_its_residual():
    A, b = system("indefinite")
    M = sp.diags(np.linspace(0.1, 3, b.size))
    for k in (1, 5, 20):
        solution = minres(A, b, M=M, rtol=0, maxiter=k)
        iterate = []
        minres(A, b, M=M, rtol=0, maxiter=k, callback=lambda x, iterate=iterate: iterate.append(x.copy()))
        assert solution.history[k] == pytest.approx(residual(A, b, iterate[-1]), rel=1e-9)


def test_minres_says_what_is_not_symmetric_or_not_definite():
    A, b = system("indefinite")
    N = sp.diags([0.7, 1.0, -0.2], [-3, 0, 1], shape=A.shape)
    assert minres(A + N, b).status is Status.NOT_SYMMETRIC
    assert minres(A, b, M=N).status is Status.NOT_SYMMETRIC
    assert minres(A, b, M=-sp.eye(b.size)).status is Status.INDEFINITE_PRECONDITIONER
    assert np.isfinite(minres(A + N, b).x).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("case", ["multiple of I", "eigenvector", "exact M", "large x0"])
def test_minres_takes_a_symmetric_operator_that_the_first_iteration_nearly_solves(case, dtype):
    A, b = system("indefinite", dtype)
    b, x0, M = b.astype(dtype), None, None
    if case in ("multiple of I", "large x0"):
        A = (2.5 * sp.eye(b.size, dtype=dtype)).tocsr()
    if case == "eigenvector":
        b = np.linalg.eigh(A.toarray())[1][:, b.size // 2].astype(dtype)
    if case == "exact M":
        A, b = system("spd", dtype)
        M = SparseLU().factor(A)
    if case == "large x0":
        x0 = (1e9 if np.finfo(dtype).eps < 1e-10 else 1e3) * np.random.default_rng(1).standard_normal(b.size)
        x0 = x0.astype(dtype)
    for rtol in (0.1, 8, 64):  # the first below what the precision can reach, so that a second iteration follows
        solution = minres(spla.aslinearoperator(A), b, x0=x0, M=M, rtol=rtol * np.finfo(dtype).eps)
        assert solution.status in (Status.CONVERGED, Status.STAGNATED) and solution.iterations > 0
    assert minres(spla.aslinearoperator(A), b, M=M, rtol=1e-4).converged


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
@pytest.mark.parametrize("seed", range(3))
def test_minres_judges_the_symmetry_of_an_operator_as_that_of_its_matrix(dtype, seed):
    n = 50
    A = sp.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(n, n)).astype(dtype)
    b = np.random.default_rng(seed).standard_normal(n).astype(dtype)
    changes = [sp.eye(n, k=1, dtype=dtype)]
    if np.issubdtype(dtype, np.complexfloating):
        changes.append(1j * sp.eye(n, dtype=dtype))
    for change in changes:
        verdicts = []
        for size in 10.0 ** np.arange(-16, 1):
            B = (A + size * change).tocsr()
            pair = [minres(form, b, rtol=100 * np.finfo(dtype).eps).status for form in (B, spla.aslinearoperator(B))]
            matrix, operator = (status is Status.NOT_SYMMETRIC for status in pair)
            assert matrix == operator
            verdicts.append(matrix)
        assert not verdicts[0] and verdicts[-1]


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
    x = solution.x  # of a norm of 10^10 now and then, so that another order of the sums shows
    rounding = n * np.finfo(float).eps * float(np.linalg.norm(abs(A) @ abs(x) + abs(b)))
    assert solution.residual_norm == pytest.approx(residual(A, b, x), rel=1e-6, abs=rounding)
    assert residual(A, b, x) <= 1.05 * least


@pytest.mark.parametrize("far", [0, -300, 300])
def test_the_drift_of_minres_is_the_rounding_of_x_over_the_residual(backend, far):
    rng = np.random.default_rng(0)
    m = 12
    alpha, beta = rng.standard_normal(m), rng.random(m + 1) + 0.3
    T = np.diag(alpha) + np.diag(beta[1:m], 1) + np.diag(beta[1:m], -1)
    T = np.vstack([T, beta[m] * np.eye(m)[-1]])
    lanczos, state, norms = backend.xp.zeros(21), backend.xp.zeros(4, np.int32), backend.xp.zeros(7)
    kernels = kernels_for(lanczos)
    assert begin(lanczos, beta[0] ** 2 * 4.0**-far, 1.0) is None
    for k in range(1, m + 1):
        scaled = alpha[k - 1] * 2.0**far, beta[k] ** 2 * 4.0**far
        kernels.recurrences.minres_rotation(state, norms, lanczos, *(backend.move(np.array([v])) for v in scaled))
        rhs = beta[0] * np.eye(k + 1)[0]
        x = np.linalg.lstsq(T[: k + 1, :k], rhs, rcond=None)[0]  # in a basis that is orthonormal
        drift = np.linalg.norm(T[:, :k], axis=0).max() * np.linalg.norm(x) / np.linalg.norm(rhs - T[: k + 1, :k] @ x)
        assert float(norms[DRIFT]) == pytest.approx(np.finfo(float).eps * drift, rel=1e-9)


@pytest.mark.parametrize(
    ("square", "failure"),
    [(1.0, None), (0.0, Status.INDEFINITE_PRECONDITIONER), (-1.0, Status.INDEFINITE_PRECONDITIONER)]
    + [(bad, Status.NOT_FINITE) for bad in (float("nan"), float("inf"), complex(1, float("nan")))],
)
def test_minres_begins_where_the_norm_by_the_preconditioner_is_positive(backend, square, failure):
    lanczos = backend.xp.zeros(21, np.float32)
    assert begin(lanczos, square, 1.0) is failure and float(lanczos[PHI_BAR]) == (failure is None)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("dtype", "far"), [(np.float64, 300), (np.complex128, 300), (np.complex64, 35), (np.float32, 35)], ids=str
)
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


@pytest.mark.parametrize("spared", [False, True])
@pytest.mark.parametrize("columns", [1, 3])
def test_minres_forms_the_factor_of_products_once(monkeypatch, columns, spared):
    A, b = system("hermitian")
    A, b = sp.csr_matrix(A) * 2.0**600, np.stack([b * (j + 1) for j in range(columns)], axis=1)
    made = []

    def counted(kind, attribute):
        form = getattr(kind, attribute)
        monkeypatch.setattr(kind, attribute, lambda self: made.append(attribute) or form(self))

    for kind in (Loop, Columns, ColumnsInRows):
        for attribute in ("real_scalar", "real_factor"):
            counted(kind, attribute)
    operator = spla.aslinearoperator(A) if spared else A
    counts = []
    for steps in (4, 12):
        made.clear()
        found = minres(operator, b, rtol=1e-14, maxiter=steps, criterion="residual")
        assert found.iterations == steps * columns
        counts.append(len(made))
    assert counts[0] == counts[1]


# Simplified QMR


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


def test_minres_does_not_call_a_symmetric_matrix_asymmetric_for_a_null_vector():
    k = np.random.default_rng(0).uniform(0.1, 10, 399)
    A = sp.csr_matrix(sp.diags([-k, np.r_[k, 0] + np.r_[0, k], -k], [-1, 0, 1]))  # row sums of 0 up to rounding
    for given in (A, spla.aslinearoperator(A)):
        assert minres(given, np.ones(400)).status is Status.STAGNATED
