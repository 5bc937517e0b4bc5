"""nullspace=: x without a part along null vectors, the least-squares solution, and the part of b that no x reaches."""

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from checks import PATTERNS, refused, values
from hypothesis import given
from hypothesis import strategies as st

import finelu as fl
from finelu.errors import ParameterError
from finelu.result import Status

HERMITIAN = [fl.cg, fl.minres, fl.solve]
METHODS = [*HERMITIAN, fl.sqmr, fl.gmres, fl.fgmres, fl.bicg, fl.bicgstab]
by_name = {"ids": lambda f: f.__name__}


def neumann(n=20, dtype=np.float64):
    """The 5-point equation without boundary values, which takes the constant vector to 0."""
    T = sp.diags([-np.ones(n - 1), np.r_[1.0, np.full(n - 2, 2.0), 1.0], -np.ones(n - 1)], [-1, 0, 1])
    A = sp.csr_matrix(sp.kron(T, sp.eye(n)) + sp.kron(sp.eye(n), T)).astype(dtype)
    if A.dtype.kind == "c":  # D A D^H takes D 1 to 0
        D = sp.diags(np.exp(1j * np.arange(n * n)))
        A = sp.csr_matrix(D @ A @ D.conj()).astype(dtype)
    return A


def null_vector(A):
    v = np.ones(A.shape[0])
    return v if A.dtype.kind != "c" else np.exp(1j * np.arange(A.shape[0])).astype(A.dtype)


def least_squares(A, b):
    return np.linalg.lstsq(A.toarray(), b, rcond=1e-10)[0]


@pytest.mark.parametrize("method", METHODS, **by_name)
@pytest.mark.parametrize("dtype", [np.float64, np.complex128], ids=lambda d: d.__name__)
@pytest.mark.parametrize("inside", [True, False], ids=["consistent", "inconsistent"])
def test_x_is_the_least_squares_solution_of_least_norm(backend, method, dtype, inside):
    A, v = neumann(dtype=dtype), null_vector(neumann(dtype=dtype))
    b = A @ values(400, dtype) if inside else values(400, dtype)
    found = method(backend.move(A), backend.move(b), rtol=1e-9, nullspace=backend.move(v))
    x, expected = backend.fetch(found.x), least_squares(A, b)
    assert found.converged and np.linalg.norm(x - expected) <= 1e-5 * np.linalg.norm(expected)
    assert abs(v.conj() @ x) <= 1e-12 * np.linalg.norm(x) * 20
    part = abs(v.conj() @ b) / 20
    assert abs(found.outside - part) <= 1e-10 * np.linalg.norm(b)
    assert found.residual_norm <= 1e-9 * np.linalg.norm(b) and found.history[-1] == found.residual_norm
    assert abs(np.hypot(found.residual_norm, part) - np.linalg.norm(b - A @ x)) <= 1e-9 * np.linalg.norm(b)
    assert ("no x reaches this part" in found.explain()) == (not inside)


@pytest.mark.parametrize("method", METHODS, **by_name)
def test_without_the_null_vectors_there_is_no_such_solution(method):
    A, b = neumann(), values(400, float)
    assert not method(A, b, rtol=1e-9, maxiter=2000).converged
    found = method(A, b, rtol=1e-9, maxiter=2000, nullspace="constant")
    assert found.converged and abs(found.x.sum()) <= 1e-9 * abs(found.x).sum()


@pytest.mark.parametrize("method", [fl.cg, fl.minres], **by_name)
def test_a_preconditioner_and_a_first_guess_are_kept_orthogonal(backend, method):
    A, b = backend.move(neumann()), backend.move(values(400, float))
    F = fl.IC0(shift=1e-6).factor(A)
    found = method(A, b, M=F, rtol=1e-9, nullspace="constant", x0=backend.move(np.full(400, 1e8)))
    alone = method(A, b, rtol=1e-9, nullspace="constant")
    assert found.converged and found.iterations < alone.iterations and found.recipe == "IC0(shift=1e-06)"
    assert abs(float(found.x.sum())) <= 1e-9 * float(abs(found.x).sum())


def test_several_vectors_and_what_they_span():
    A = sp.block_diag([neumann(8), neumann(9)]).tocsr()
    b = values(A.shape[0], float)
    V = np.zeros((A.shape[0], 3))
    V[:64, 0] = V[64:, 1] = 1
    V[:, 2] = 5  # depends on the others
    expected = least_squares(A, b)
    for given_V in (V, V[:, :2], V[:, 1:]):
        for method in (fl.cg, fl.solve):
            found = method(A, b, rtol=1e-9, nullspace=given_V)
            assert found.converged and np.linalg.norm(found.x - expected) <= 1e-6 * np.linalg.norm(expected)
    assert fl.cg(A, b, nullspace=V[:, :0], maxiter=5).outside is None


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda d: d.__name__)
@pytest.mark.parametrize("seed", range(4))
def test_dependent_vectors_make_no_new_one(dtype, seed):
    rng = np.random.default_rng(seed)
    L = sp.block_diag([neumann(6), neumann(7), neumann(8)]).tocsr()
    E = np.repeat(np.eye(3), [36, 49, 64], axis=0)
    weights = rng.uniform(0.5, 2, 149)
    A, N = sp.csr_matrix(sp.diags(weights) @ L @ sp.diags(weights)).astype(dtype), E / weights[:, None]
    b = A @ values(149, dtype)
    tol = 1e3 * float(np.finfo(dtype).eps)
    found = fl.minres(A, b, rtol=tol, maxiter=900, nullspace=(N @ rng.standard_normal((3, 5))).astype(dtype))
    assert found.converged and "the 3 null vectors" in found.explain() and "neither has b" in found.explain()


def test_nearly_dependent_vectors_whose_difference_is_no_null_vector():
    A, v = neumann(), np.ones(400)
    with refused(fl.ParameterError, match="nearly dependent, and A does not take to 0 what they differ by"):
        fl.cg(A, values(400, float), nullspace=np.c_[v, v + 1e-9 * values(400, float)])


def test_an_A_that_is_only_nearly_singular_is_not_called_singular():
    A = sp.csr_matrix(neumann() + 1e-9 * sp.eye(400))
    found = fl.cg(A, values(400, float), nullspace="constant")
    assert "If the given vectors are null vectors, no x reaches" in found.explain()


def test_the_null_space_of_factors():
    A, b = neumann(), values(400, float)
    F = fl.MultilevelILU().factor(A)
    assert F.null_space.shape[1] == 1
    found = fl.solve(A, b, nullspace=F.null_space)
    assert found.converged and np.linalg.norm(found.x - least_squares(A, b)) <= 1e-6 * np.linalg.norm(found.x)


def test_of_an_A_that_is_not_hermitian_b_has_to_be_in_the_range():
    A = sp.csr_matrix(sp.diags(np.linspace(1, 2, 400)) @ neumann())  # A^H takes another vector to 0
    inside = A @ values(400, float)
    for method in (fl.gmres, fl.bicgstab, fl.solve):
        found = method(A, inside, rtol=1e-9, nullspace="constant")
        assert found.converged and found.outside is None and "b is as it was given" in found.explain()
        assert abs(found.x.sum()) <= 1e-9 * abs(found.x).sum()
        assert np.linalg.norm(inside - A @ found.x) <= 2e-9 * np.linalg.norm(inside)
    assert not fl.gmres(A, values(400, float), rtol=1e-9, nullspace="constant", maxiter=900).converged


@pytest.mark.parametrize("method", [fl.gmres, fl.bicgstab, fl.solve], **by_name)
@pytest.mark.parametrize("dtype", [np.float64, np.complex128], ids=lambda d: d.__name__)
def test_null_vectors_of_the_adjoint_give_the_least_squares_solution_of_any_A(backend, method, dtype):
    D, S, v = np.linspace(1, 2, 400), neumann(dtype=dtype), null_vector(neumann(dtype=dtype))
    A, u, b = sp.csr_matrix(sp.diags(D) @ S), v / D, values(400, dtype)
    pair = tuple(map(backend.move, (v, u)))
    found = method(backend.move(A), backend.move(b), rtol=1e-9, nullspace=pair)
    x, expected = backend.fetch(found.x), least_squares(A, b)
    assert found.converged and np.linalg.norm(x - expected) <= 1e-5 * np.linalg.norm(expected)
    assert abs(found.outside - abs(u.conj() @ b) / np.linalg.norm(u)) <= 1e-10 * np.linalg.norm(b)
    assert "along the null vector of A^H" in found.explain() and "no x reaches" in found.explain()
    inside = A @ b
    again = method(backend.move(A), backend.move(inside), rtol=1e-9, nullspace=pair)
    assert again.converged and "neither has b one along the null vector of A^H" in again.explain()


def test_null_vectors_of_the_adjoint_in_steps_of_a_sequence():
    A, b = neumann(), values(400, float)
    A = sp.csr_matrix(sp.diags(np.linspace(1, 2, 400)) @ A)
    sequence = fl.Sequence(A, nullspace=("constant", 1 / np.linspace(1, 2, 400)))
    for k in (1, 2):
        found = sequence.step(k * A, b)
        assert found.converged and found.outside > 0
        assert np.linalg.norm(found.x - least_squares(k * A, b)) <= 1e-6 * np.linalg.norm(found.x)


def test_an_operator_and_several_columns():
    A, B = neumann(), values((400, 2), float)
    found = fl.cg(spla.aslinearoperator(A), B[:, 0], rtol=1e-9, nullspace="constant")
    assert found.converged and np.linalg.norm(found.x - least_squares(A, B[:, 0])) <= 1e-6 * np.linalg.norm(found.x)
    both = fl.solve(A, B, nullspace="constant")
    assert both.converged and np.linalg.norm(both.x - least_squares(A, B)) <= 1e-6 * np.linalg.norm(both.x)


def test_of_several_columns_the_largest_part_outside_is_named():
    A = neumann()
    inside = A @ values(400, float)
    for B in (np.stack([inside + 1.5, inside], 1), np.stack([inside, inside + 1.5], 1)):
        found = fl.solve(A, B, nullspace="constant")
        assert abs(found.outside - 30) <= 1e-9 and "no x reaches" in found.explain()


def test_a_right_hand_side_that_no_x_reaches_at_all():
    A = neumann()
    for method in (fl.cg, fl.gmres, fl.solve):
        found = method(A, np.ones(400), nullspace="constant")
        assert found.converged and not found.x.any() and abs(found.outside - 20) <= 1e-10


def test_single_precision():
    A, b = neumann(dtype=np.float32), values(400, np.float32)
    for method in (fl.cg, fl.solve):
        found = method(A, b, rtol=1e-4, nullspace="constant")
        assert found.converged and found.x.dtype == np.float32
        assert np.linalg.norm(found.x - least_squares(A.astype(float), b)) <= 1e-2 * np.linalg.norm(found.x)


def test_steps_of_a_sequence():
    A = neumann()
    sequence = fl.Sequence(A, nullspace="constant")
    for k in range(4):
        b = values(400, float, k)
        found = sequence.step((1 + k) * A, b)
        assert found.converged and abs(found.x.sum()) <= 1e-9 * abs(found.x).sum()
        assert np.linalg.norm(found.x - least_squares((1 + k) * A, b)) <= 1e-6 * np.linalg.norm(found.x)
        assert found.outside > 0
    assert "update" in sequence.decisions or "reuse" in sequence.decisions


def test_a_singular_system_without_null_vectors_says_that_x_is_not_unique():
    A = neumann()
    assert "x is not unique" in fl.solve(A, A @ values(400, float)).explain()
    assert "nullspace=" in fl.solve(A, A @ values(400, float)).explain()


def test_the_status_is_of_the_x_without_a_part_along_them():
    A, b = neumann(), values(400, float)
    found = fl.cg(A, b, rtol=1e-9, nullspace="constant", maxiter=3)
    assert found.status is Status.MAX_ITERATIONS
    with pytest.raises(fl.errors.NotConverged):
        fl.cg(A, b, rtol=1e-9, nullspace="constant", maxiter=3, raise_on_failure=True)


@PATTERNS
@given(st.integers(2, 12), st.floats(0, 1), st.integers(0, 2**31))
def test_random_graphs_with_any_number_of_parts(n, density, seed):
    rng = np.random.default_rng(seed)
    W = np.triu(rng.integers(1, 4, (n, n)) * (rng.random((n, n)) < density), 1).astype(float)
    W = W + W.T
    A, b = sp.csr_matrix(np.diag(W.sum(axis=1)) - W), rng.integers(-5, 6, n).astype(float)
    count, labels = sp.csgraph.connected_components(sp.csr_matrix(W))
    V = (labels[:, None] == np.arange(count)).astype(float)
    for method in (fl.cg, fl.solve):
        found = method(A, b, rtol=1e-10, nullspace=V)
        assert found.converged
        assert np.linalg.norm(found.x - least_squares(A, b)) <= 1e-7 * max(np.linalg.norm(b), 1)


A, b = neumann(5), np.ones(25)
WRONG = {
    "no null vector": (lambda f: f(A, b, nullspace=np.arange(25.0)), "for vector 0, which is no null vector of A"),
    "one of two": (lambda f: f(A, b, nullspace=np.c_[b, np.arange(25)]), "for vector 1"),
    "zeros": (lambda f: f(A, b, nullspace=np.zeros(25)), "nullspace: vector 0 is 0"),
    "a wrong length": (lambda f: f(A, b, nullspace=np.ones(7)), r"nullspace has shape \(7,\), but A has 25 rows"),
    "a misspelt word": (lambda f: f(A, b, nullspace="constnat"), "Did you mean 'constant'"),
    "NaN": (lambda f: f(A, b, nullspace=b * np.nan), "nullspace holds NaN or Inf"),
    "no null vector of A^H": (
        lambda f: f(A, b, nullspace=("constant", np.arange(25.0))),
        r"\|\|A\^H u\|\| is .* for vector 0, which is no null vector of A\^H",
    ),
    "complex for real": (lambda f: f(A, b, nullspace=b * 1j), "nullspace is complex, but A and b are real"),
}


@pytest.mark.parametrize("method", [fl.cg, fl.gmres, fl.solve], **by_name)
@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named_in_one_line(method, what):
    call, match = WRONG[what]
    with refused(fl.FineluError, match=match):
        call(method)


def test_a_pair_with_nothing_in_it():
    A = fl.gallery.poisson5(8)
    A = sp.csr_matrix(A - sp.diags_array(np.asarray(A.sum(axis=1)).ravel()))
    b, v = A @ values(64, float), np.ones(64)
    assert fl.solve(A, b, nullspace=(v, np.zeros((64, 0)))).converged
    with pytest.raises(ParameterError, match="V or U is None"):
        fl.solve(A, b, nullspace=(v, None))
    with pytest.raises(ParameterError, match="V has no column"):
        fl.solve(A, b, nullspace=(np.zeros((64, 0)), v))
