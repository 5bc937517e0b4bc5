"""certify=True: figures against exact ones, on systems small enough for dense arithmetic."""

import numpy as np
import pytest
import scipy.sparse as sp
from conftest import real_matrix

import finelu as fl
from finelu.auto.certify import one_norm
from finelu.errors import ParameterError


def hilbert(n):
    i = np.arange(n)
    return sp.csr_matrix(1.0 / (i[:, None] + i + 1))


def systems():
    random = np.random.default_rng(5)
    R = sp.csr_matrix(random.standard_normal((40, 40)) + 3 * np.eye(40))
    yield "random", R, random.standard_normal(40)
    yield "complex", (R + 1j * R.T).tocsr(), random.standard_normal(40) + 1j
    yield "hilbert", hilbert(8), np.ones(8)
    yield "poisson", fl.gallery.problem("poisson5:25"), random.standard_normal(625)
    yield "graded", sp.csr_matrix(np.diag(10.0 ** -np.arange(12)) + np.triu(np.ones((12, 12)), 1) * 1e-3), np.ones(12)


@pytest.mark.parametrize(("name", "A", "b"), list(systems()), ids=[s[0] for s in systems()])
@pytest.mark.parametrize("recipe", ["auto", "ilu0"])
def test_figures_are_those_of_dense_arithmetic(name, A, b, recipe):
    solution = fl.solve(A, b, rtol=1e-10, recipe=recipe, certify=True)
    found, x = solution.certificate, solution.x
    dense = A.toarray()
    inverse = np.linalg.inv(dense)
    r = (b.astype(np.clongdouble) - dense.astype(np.clongdouble) @ x.astype(np.clongdouble)).astype(complex)
    size = np.linalg.norm(dense, np.inf)
    assert found.normwise == pytest.approx(abs(r).max() / (size * abs(x).max() + abs(b).max()), rel=0.02)
    terms = abs(dense) @ abs(x) + abs(b)
    assert found.componentwise == pytest.approx((abs(r) / terms).max(), rel=0.5)  # sizes of complex numbers differ
    true = size * np.linalg.norm(inverse, np.inf)
    if recipe == "auto" or name not in ("hilbert", "graded"):  # where incomplete factors do not lead to the estimate
        assert true / 5 <= found.condition <= true * (1.5 if name == "complex" else 1.01)
    exact = np.linalg.solve(dense.astype(complex), b.astype(complex))  # corrected twice with long residuals
    for _ in range(3):
        rest = b.astype(np.clongdouble) - dense.astype(np.clongdouble) @ exact.astype(np.clongdouble)
        exact = exact + np.linalg.solve(dense.astype(complex), rest.astype(complex))
    if name == "graded" and recipe == "ilu0":
        assert found.condition == found.error == np.inf and not solution.converged
        return
    assert abs(x - exact).max() <= 3 * found.error * abs(x).max()
    assert found.error <= 100 * true * max(found.componentwise, 1e-15) * len(b)
    rounding = np.finfo(float).eps / 2 * np.linalg.norm(abs(dense) @ abs(x)) / np.linalg.norm(b)
    assert found.least_residual == pytest.approx(rounding, rel=0.5)
    assert f"{found.condition:.1e}" in solution.explain()


@pytest.mark.parametrize("factor", [1.0, 1j])
def test_columns_that_are_not_contiguous(factor):
    A, b = fl.gallery.problem("poisson5:4"), np.ones((16, 2))[:, 0] * factor
    B = np.ones((16, 2)) * factor
    assert fl.solve(A, B[:, 1], certify=True).certificate == fl.solve(A, b, certify=True).certificate
    assert fl.solve(A, B, certify=True).certificate is not None


def test_no_residual_below_the_least_is_reached():
    A, b = hilbert(8), np.ones(8)
    least = fl.solve(A, b, certify=True).certificate.least_residual
    assert fl.solve(A, b, rtol=least * 1e-3).status is fl.Status.PRECISION_LIMIT
    assert fl.solve(A, b, rtol=least * 10).converged


def test_a_singular_system_has_no_error_bound():
    A = sp.csr_matrix(np.ones((3, 3)))
    solution = fl.solve(A, np.array([1.0, 2, 3]), certify=True)
    assert not solution.converged and solution.certificate.condition > 1e12 and solution.certificate.error > 1e-3


@pytest.mark.parametrize("dtype", [np.float64, np.complex128, np.float32])
@pytest.mark.parametrize("recipe", ["auto", "ilu0"])
def test_with_null_vectors_the_figures_are_those_of_the_pseudoinverse(dtype, recipe):
    n, phases = 15, np.exp(1j * np.arange(225)) if dtype == np.complex128 else np.ones(225)
    T = sp.diags([-np.ones(n - 1), np.r_[1.0, np.full(n - 2, 2.0), 1.0], -np.ones(n - 1)], [-1, 0, 1])
    D = sp.diags(phases)
    A = sp.csr_matrix(D @ (sp.kron(T, sp.eye(n)) + sp.kron(sp.eye(n), T)) @ D.conj()).astype(dtype)
    b, inverse = np.random.default_rng(0).standard_normal(225).astype(dtype), np.linalg.pinv(A.toarray(), rcond=1e-5)
    solution = fl.solve(A, b, rtol=1e-5, recipe=recipe, nullspace=phases.astype(dtype), certify=True)
    found, exact = solution.certificate, inverse @ b
    true = np.linalg.norm(A.toarray(), np.inf) * np.linalg.norm(inverse, np.inf)
    assert solution.converged and true / 5 <= found.condition <= 1.5 * true
    assert 0.3 * abs(solution.x - exact).max() <= found.error * abs(exact).max() <= 1e-2 * abs(exact).max()


def test_without_the_null_vectors_of_the_adjoint_there_is_no_error_bound():
    A = sp.csr_matrix(sp.diags(np.linspace(1, 2, 50)) @ (sp.eye(50) - sp.eye(50, k=1) - sp.eye(50, k=-49)))
    solution = fl.solve(A, A @ np.random.default_rng(0).standard_normal(50), nullspace="constant", certify=True)
    assert solution.converged and solution.outside is None
    assert solution.certificate.condition == solution.certificate.error == np.inf
    assert "No bound on the error of x is known" in solution.explain()


def test_many_columns_and_none():
    A = fl.gallery.problem("poisson5:10")
    B = np.random.default_rng(0).standard_normal((100, 3))
    together = fl.solve(A, B, certify=True).certificate
    apart = [fl.solve(A, B[:, c], certify=True).certificate for c in range(3)]
    assert together.componentwise == pytest.approx(max(c.componentwise for c in apart), rel=1)
    assert fl.solve(A, B).certificate is None
    assert fl.solve(A, np.zeros(100), certify=True).certificate.error >= 0
    with pytest.raises(ParameterError, match="certify"):
        fl.solve(A, B, certify="yes")


REAL = ["west0479", "bcsstk16", "lns_131", "plat362", "cryg2500", "mcca", "ng_maxwell_eddy", "trilinos_nsjac_1"]


@pytest.mark.parametrize("name", REAL)
@pytest.mark.parametrize("kind", ["range", "random"])
def test_real_systems_end_converged_singular_or_at_the_limit_of_the_precision(name, kind):
    """For all systems see benchmarks/claims/certified.py."""
    A = real_matrix(name)
    b = A @ np.ones(A.shape[0]) if kind == "range" else np.random.default_rng(0).standard_normal(A.shape[0])
    solution = fl.solve(A, b, certify=True)
    ended = (fl.Status.CONVERGED, fl.Status.SINGULAR, fl.Status.NUMERICALLY_SINGULAR, fl.Status.PRECISION_LIMIT)
    assert solution.status in ended
    if solution.converged:
        assert np.linalg.norm(b - A @ solution.x) <= 1.01e-8 * np.linalg.norm(b)
    if solution.status is fl.Status.PRECISION_LIMIT:
        assert solution.certificate.least_residual <= 10 * solution.residual_norm / np.linalg.norm(b)
    if kind == "range" and solution.converged and solution.certificate.error < 1:
        assert abs(solution.x - 1).max() <= 10 * solution.certificate.error + 1e-10


def test_a_deadline_ends_the_estimates():
    A = fl.gallery.problem("poisson5:60")
    found = fl.auto.certify.certificate(
        fl.as_csr(A), np.ones(3600), fl.solve(A, np.ones(3600)).x, None, complete=False, deadline=0.0
    )
    assert found.condition == np.inf and found.error == np.inf and found.componentwise < 1e-6


@pytest.mark.parametrize("n", [1, 2, 5, 30])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_one_norm_is_estimated_from_below(n, dtype):
    random = np.random.default_rng(n)
    for _ in range(20):
        B = random.standard_normal((n, n)).astype(dtype)
        if dtype == np.complex128:
            B = B + 1j * random.standard_normal((n, n))
        found = one_norm(B.__matmul__, B.conj().T.__matmul__, n, np.dtype(dtype))
        true = np.linalg.norm(B, 1)
        assert true / 3 <= found <= true * (1 + 1e-12)
