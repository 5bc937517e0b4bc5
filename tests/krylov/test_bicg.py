"""BiCG and BiCGSTAB: by the paper's formulas, by limit, by breakdown."""

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from krylov_cases import DTYPES, GENERAL, name, residual, system

from finelu.errors import MatrixError
from finelu.kernels import kernels_for, monitor
from finelu.krylov import bicg, bicgstab, bicgstabl, idrs, sqmr
from finelu.preconditioners import ILU0
from finelu.result import Status

# Both


@pytest.mark.parametrize("method", GENERAL, ids=name)
def test_a_defective_preconditioner_neither_lies_nor_gives_nan(method):
    A, M = np.diag([2.0, 3.0, 4.0]), np.diag([1.0, 1.0, 0.0])
    b, x0 = np.array([0.0, 1.0, 1.0]), np.array([1.0, 0.0, 0.0])
    solution = method(A, b, x0, M=M, rtol=1e-15)
    assert np.isfinite(solution.x).all()
    assert not solution.converged  # the third unknown cannot be reached
    assert residual(A, b, solution.x) <= residual(A, b, x0)
    if method not in (bicgstab, bicgstabl, idrs):
        assert solution.status is Status.BREAKDOWN and solution.info == -1
        np.testing.assert_allclose(M @ (A @ solution.x), M @ b, atol=1e-14)


@pytest.mark.parametrize("method", GENERAL, ids=name)
def test_a_defective_matrix_neither_lies_nor_gives_nan(method):
    A, b = np.array([[0.0, 1, 0], [1, 0, 0], [0, 0, 0]]), np.array([1.0, 0, 1])
    solution = method(A, b, rtol=1e-8)
    assert np.isfinite(solution.x).all() and not solution.converged
    if method not in (bicg, bicgstab, bicgstabl, idrs):
        np.testing.assert_allclose(A @ (A @ solution.x), A @ b, atol=1e-14)


@pytest.mark.parametrize("method", [bicg, sqmr], ids=name)
def test_a_spike_of_the_residual_leaves_the_iterate_before_it(method, every):
    last = 2.0**-47  # all sums of multiples of it are exact, in any order
    d = np.round(np.linspace(1, 3, 40) / last) * last * np.where(np.arange(40) % 2, 1, -1)
    b = np.ones(40)
    d[0] -= d.sum() - last
    A = sp.diags(d).tocsr()
    assert b @ (A @ b) == last  # p^T A p in the first step: the residual after it is rounding
    solution = method(A, b, rtol=1e-9)
    assert solution.status is Status.BREAKDOWN and solution.iterations == 1
    np.testing.assert_array_equal(solution.x, 0)
    assert solution.residual_norm == pytest.approx(np.linalg.norm(b))
    elsewhere = method(A, b, 0.01 * b, rtol=1e-9)
    assert elsewhere.converged and residual(A, b, elsewhere.x) <= 1e-9 * np.linalg.norm(b)


@pytest.mark.parametrize("method", [bicgstab, bicg], ids=name)
def test_a_recurrence_that_breaks_down_starts_again(method):
    A = np.array([[0.0, 1.0], [-1.0, 0.0]])  # shadow^H A r, or p_shadow^H A p, is 0 in the first step, whatever r is
    solution = method(A, np.array([1.0, 1.0]))
    assert solution.status is Status.BREAKDOWN and np.isfinite(solution.x).all()
    B = np.array([[1.0, 2.0, 0.0], [-2.0, 1.0, 1.0], [0.0, 3.0, -1.0]])
    assert method(B, np.array([1.0, 0.0, 0.0]), rtol=1e-12, maxiter=50).converged


# BiCGSTAB


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
        norms = backend.move(np.array([0.0, 0, 0, np.inf, np.inf, 0, np.inf], real))
        rho, sigma, ts_, p, r = (backend.move(np.array([v], dtype)) for v in (0.5, 1.0, ts, 3.0, 0.5))
        x, zero, one = (backend.move(np.array([v], dtype)) for v in (0.0, 0.0, 1.0))
        t_norm_, shadow_norm = (backend.move(np.array([v], real)) for v in (t_norm, 1.0))
        kernels = kernels_for(p)
        scalars = rho, sigma, ts_, t_norm_, one, shadow_norm
        kernels.recurrences.bicgstab_step(state, norms, history, *scalars, one, zero, zero, x, zero.copy(), r)
        assert int(state[monitor.CODE]) == code, (ts, t_norm)
        assert int(state[monitor.ITERATIONS]) == 1 and float(history[1]) == 0.5
        assert complex(x[0]) == 0.5  # it has made the step by alpha p
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


# BiCG


@pytest.mark.parametrize("preconditioned", [False, True])
@pytest.mark.parametrize("dtype", [np.float64, np.complex64, np.complex128], ids=name)
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
    tol = 1e-9 if np.finfo(dtype).eps < 1e-10 else 1e-3
    np.testing.assert_allclose(seen[-1], exact, rtol=tol, atol=tol / 100)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128], ids=name)
@pytest.mark.parametrize("kind", ["spd", "indefinite", "general"])
@pytest.mark.parametrize("preconditioned", [False, True])
def test_bicg_takes_as_many_iterations_as_that_of_scipy(kind, dtype, preconditioned):
    A, b = system(kind, dtype)
    M = sp.diags(np.linspace(0.1, 0.3, b.size)) if preconditioned else None

    def peer(p):
        """The residual norms of SciPy's bicg for the system with its rows and columns in the order p."""
        norms, P = [], sp.eye(b.size).tocsr()[p]
        N = P @ M @ P.T if preconditioned else None
        _, info = spla.bicg(P @ A @ P.T, b[p], M=N, rtol=1e-9, callback=lambda x: norms.append(residual(A, b, P.T @ x)))
        assert info == 0
        return norms

    solution = bicg(A, b, M=M, rtol=1e-9)
    orders = [np.arange(b.size), *(np.random.default_rng(seed).permutation(b.size) for seed in range(1, 5))]
    peers = [peer(p) for p in orders]  # by rounding alone the last of some 140 iterations vary with the order
    assert solution.converged
    for norms in peers:
        np.testing.assert_allclose(solution.history[1:11], norms[:10], rtol=1e-6)
    assert min(map(len, peers)) - 2 <= solution.iterations <= max(map(len, peers)) + 2


def test_bicg_with_factors_is_bicg_with_their_dense_inverse():
    A, b = system("general", np.complex64, m=6)
    F = ILU0().factor(A)
    inverse = F.solve(np.eye(b.size, dtype=np.complex64))
    one, other = bicg(A, b, M=F, rtol=1e-4), bicg(A, b, M=inverse, rtol=1e-4)
    assert one.converged and one.iterations == other.iterations < bicg(A, b, rtol=1e-4).iterations
    np.testing.assert_allclose(one.history, other.history, rtol=1e-2, atol=1e-5 * one.history[0])


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
