"""Recycled spaces: deflated cg and GCRO-DR, by definition, by limit, by behaviour, by bad input."""

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from krylov_cases import DTYPES, residual, system

from finelu import IC0, ILU0, RecycledSpace, gallery
from finelu.errors import MatrixError, ParameterError
from finelu.krylov import cg, gmres
from finelu.krylov.gcrodr import smallest
from finelu.krylov.loop import Loop
from finelu.result import Status


def outliers(n=200, few=4, seed=0):
    """A Hermitian positive definite A with `few` small eigenvalues, its eigenvectors, and b."""
    rng = np.random.default_rng(seed)
    V = np.linalg.qr(rng.standard_normal((n, n)))[0]
    values = np.concatenate([np.geomspace(1e-4, 1e-3, few), np.linspace(1, 3, n - few)])
    A = (V * values) @ V.T
    return (A + A.T) / 2, V, rng.standard_normal(n)


def drifting(A, steps, change=0.01):
    rng, phase = np.random.default_rng(3), 0.0
    phase = rng.uniform(0, 2 * np.pi, A.shape[0])
    for k in range(steps):
        D = sp.diags(1 + change / 2 * np.sin(k + phase))
        yield sp.csr_matrix(D @ A @ D), rng.standard_normal(A.shape[0])


@pytest.mark.parametrize("dtype", DTYPES)
def test_residuals_stay_orthogonal_to_the_space_and_directions_conjugate(dtype):
    """W^H r = 0 and, as x moves by a multiple of p, W^H A p = 0."""
    A, b = system("spd", dtype)
    space = RecycledSpace(5, W=system("spd", dtype)[1][:, None] ** np.arange(1, 6), renew=False)
    iterates = []
    found = cg(A, b, rtol=1e-5, recycle=space, callback=lambda x: iterates.append(x.copy()))
    assert found.converged and space.size >= 4 and len(iterates) > 4
    W, rounding = space.W, 1e3 * np.finfo(dtype).eps * np.linalg.norm(b)
    np.testing.assert_allclose(W.conj().T @ (A @ W), np.eye(space.size), atol=1e3 * np.finfo(dtype).eps)
    for x in iterates:
        assert np.linalg.norm(W.conj().T @ (b - A @ x)) <= rounding * np.linalg.norm(W, 2)
    for x, y in itertools.pairwise(iterates):
        assert np.linalg.norm(space.image.conj().T @ (y - x)) <= rounding * np.linalg.norm(space.image, 2)


def test_with_exact_eigenvectors_the_small_eigenvalues_are_gone():
    """cg takes the iterations of the other eigenvalues, whose condition is 3: those of a system that has no others."""
    A, V, b = outliers()
    without = cg(A, b, rtol=1e-10).iterations
    found = cg(A, b, rtol=1e-10, recycle=RecycledSpace(4, W=V[:, :4], renew=False))
    rest = V[:, 4:] @ (V[:, 4:].T @ b)
    alone = cg(A, rest, rtol=1e-10 * np.linalg.norm(b) / np.linalg.norm(rest)).iterations
    assert found.converged and abs(found.iterations - alone) <= 1 and without > 1.5 * alone


def test_the_space_that_cg_leaves_is_that_of_the_smallest_eigenvalues():
    A, V, b = outliers()
    space = RecycledSpace(4, directions=200)
    first = cg(A, b, rtol=1e-12, recycle=space)
    angles = np.linalg.svd(V[:, :4].T @ np.linalg.qr(space.W)[0])[1]
    assert first.converged and angles.min() > 1 - 1e-6
    second = cg(A, np.roll(b, 7), rtol=1e-12, recycle=space)
    assert second.iterations < 0.7 * first.iterations
    assert space.products == 5 and space.solves == 4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("preconditioned", [False, True])
def test_gmres_leaves_harmonic_ritz_vectors(dtype, preconditioned):
    """A W = C with orthonormal C, W = M^-1 origin, and after a cycle as long as n they span an invariant space."""
    A, b = system("general", dtype, m=5)
    A = sp.csr_matrix(A + sp.diags(np.where(np.arange(25) < 3, 1e-2, 1).astype(dtype)))
    M = ILU0().factor(A) if preconditioned else None
    space = RecycledSpace(3)
    found = gmres(A, b, rtol=1e-7 if np.finfo(dtype).eps < 1e-10 else 1e-4, restart=20, M=M, recycle=space)
    assert found.converged and 2 <= space.size <= 3
    few = 1e4 * np.finfo(dtype).eps
    np.testing.assert_allclose(A @ space.W, space.image, atol=few * abs(space.image).max())
    np.testing.assert_allclose(space.image.conj().T @ space.image, np.eye(space.size), atol=few)
    applied = (
        space.origin if M is None else np.stack([M.solve(np.ascontiguousarray(t)) for t in space.origin.T], axis=1)
    )
    np.testing.assert_allclose(applied, space.W, atol=few * abs(space.W).max())


def test_harmonic_ritz_vectors_are_those_of_the_smallest_values():
    """For an invariant space, G = [H; 0], they are the eigenvectors of H; a complex pair spans two real columns."""
    H = np.diag([5.0, 1.0, 0.5, 4.0])
    H[1:3, 1:3] = [[0.1, 0.2], [-0.2, 0.1]]
    G = np.vstack([H, np.zeros((1, 4))])
    y = smallest(G, np.eye(5, 4), 3)
    projector = y @ y.T
    np.testing.assert_allclose(projector @ np.eye(4)[:, 1:4], np.eye(4)[:, 1:4], atol=1e-12)
    assert smallest(G, np.eye(5, 4), 2).shape == (4, 2)


def test_restarts_forget_less_with_a_space():
    A = gallery.poisson5(30)
    b = np.random.default_rng(0).standard_normal(A.shape[0])
    plain, kept = (gmres(A, b, rtol=1e-8, restart=10, recycle=r, maxiter=4000) for r in (None, RecycledSpace(8)))
    assert plain.converged and kept.converged and kept.iterations < 0.8 * plain.iterations


@pytest.mark.parametrize("every", [True, False])
def test_a_sequence_of_systems_takes_fewer_iterations(every):
    A = gallery.elasticity(12, 4, 4)
    plain, kept, space = [], [], RecycledSpace(8)
    for B, b in drifting(A, 5):
        F = IC0().factor(B)
        plain.append(cg(B, b, M=F, rtol=1e-8).iterations)
        space.renew = every or space.size == 0
        found = cg(B, b, M=F, rtol=1e-8, recycle=space)
        assert found.converged and residual(B, b, found.x) <= 1.0001e-8 * np.linalg.norm(b)
        kept.append(found.iterations)
    assert kept[0] == plain[0] and sum(kept[2:]) < 0.75 * sum(plain[2:])
    assert (space.solves > 0) is every


@pytest.mark.parametrize("method", [cg, gmres])
def test_vectors_that_depend_on_each_other_are_dropped(method):
    A, b = system("spd")
    W = np.random.default_rng(0).standard_normal((b.size, 3))
    space = RecycledSpace(8, W=np.concatenate([W, W @ np.ones((3, 2)), 0 * W[:, :1]], axis=1), renew=False)
    found = method(A, b, rtol=1e-10, recycle=space)
    assert found.converged and space.size == 3 and np.isfinite(space.W).all()


@pytest.mark.parametrize("method", [cg, gmres])
def test_b_inside_the_image_needs_no_iterations(method):
    A, b = system("spd")
    exact = np.linalg.solve(A.toarray(), b)
    found = method(A, b, rtol=1e-8, recycle=RecycledSpace(2, W=exact[:, None], renew=False))
    assert found.converged and found.iterations == 0 and residual(A, b, found.x) <= 1.0001e-8 * np.linalg.norm(b)
    axis = np.eye(9)[:, 3:4]
    hit = method(sp.identity(9, format="csr"), 2 * axis[:, 0], axis[:, 0], recycle=RecycledSpace(4, W=axis))
    assert hit.converged and hit.iterations == 0 and hit.residual_norm == 0


@pytest.mark.parametrize("method", [cg, gmres])
@pytest.mark.parametrize("n", [2, 3, 5, 8, 10])
def test_a_space_as_large_as_the_system_leaves_nothing_to_iterate(method, n):
    A = sp.diags([-np.ones(n - 1), np.full(n, 3.0), -np.ones(n - 1)], [-1, 0, 1], format="csr")
    space = RecycledSpace()
    for seed in range(4):
        b = np.random.default_rng(seed).standard_normal(n)
        found = method(A, b, rtol=1e-8, recycle=space)
        assert found.converged and residual(A, b, found.x) <= 1.0001e-8 * np.linalg.norm(b)
        assert len(found.history) == found.iterations + 1
    assert found.iterations <= n - space.size + 1


@pytest.mark.parametrize("method", [cg, gmres])
def test_images_that_overflow_leave_a_plain_solve(method):
    A, b = system("spd")
    space = RecycledSpace(2, W=np.full((b.size, 2), 1e300) * [1, -1], renew=False)
    with np.errstate(all="ignore"):
        found = method(A * 1e10, b, rtol=1e-8, recycle=space)
    assert found.converged and space.size == 0


def test_a_negative_curvature_in_the_space_is_said():
    A, b = system("indefinite")
    lowest = np.linalg.eigh(A.toarray())[1][:, :1]
    assert cg(A, b, recycle=RecycledSpace(1, W=lowest)).status is Status.INDEFINITE


def test_columns_are_solved_in_turn_and_b_is_scaled_as_ever():
    A, b = system("spd")
    B, space = np.stack([b, np.roll(b, 5)], axis=1), RecycledSpace(6)
    found = cg(A, B, rtol=1e-8, recycle=space)
    assert found.all_converged and space.size == 6
    plain = cg(A, B, rtol=1e-8)
    assert found[1].iterations < plain[1].iterations
    tiny = cg(A, b * 1e-200, rtol=1e-8, recycle=space)
    assert tiny.converged and residual(A, b * 1e-200, tiny.x) <= 1.0001e-208 * np.linalg.norm(b)


def test_more_directions_and_more_vectors_have_their_effect():
    A, _, b = outliers()
    found = {}
    for k, directions in ((2, 100), (4, 100), (4, 6)):
        space = RecycledSpace(k, directions=directions)
        for shift in (0, 3):
            found[k, directions] = cg(A, np.roll(b, shift), rtol=1e-10, recycle=space).iterations
    assert found[4, 100] < found[2, 100] and found[4, 100] < found[4, 6]
    assert "4 vectors, n=200" in repr(space)
    space.drop()
    assert space.size == 0


@pytest.mark.parametrize(
    ("given", "wrong", "text"),
    [
        ({"W": np.ones((9, 2))}, MatrixError, "length 9, but the system has 144 rows"),
        ({"W": np.ones((144, 1)) * 1j}, MatrixError, "complex vectors, but the system is real"),
    ],
)
def test_a_space_of_another_system(given, wrong, text):
    A, b = system("spd")
    with pytest.raises(wrong, match=text):
        cg(A, b, recycle=RecycledSpace(3, **given))


@pytest.mark.parametrize(
    ("call", "wrong", "text"),
    [
        (lambda A, b: RecycledSpace(0), ParameterError, "k"),
        (lambda A, b: RecycledSpace(3, directions=0), ParameterError, "directions"),
        (lambda A, b: RecycledSpace(3, renew=2), ParameterError, "renew"),
        (lambda A, b: RecycledSpace(3, W=np.ones(4)), MatrixError, r"W has shape \(4,\)"),
        (lambda A, b: RecycledSpace(3, W=np.full((4, 1), np.nan)), MatrixError, "W holds NaN"),
        (lambda A, b: cg(A, b, recycle=5), ParameterError, "recycle is a int; a finelu.RecycledSpace"),
        (lambda A, b: gmres(A, b, recycle="yes"), ParameterError, "recycle is a str"),
        (lambda A, b: cg(A, np.stack([b, b], 1), block=True, recycle=RecycledSpace(2)), ParameterError, "block=True"),
        (lambda A, b: gmres(A, b, side="left", recycle=RecycledSpace(2)), ParameterError, "side='left'"),
    ],
)
def test_wrong_arguments(call, wrong, text):
    with pytest.raises(wrong, match=text):
        call(*system("spd"))


def test_rounding_does_not_make_a_solve_with_a_space_worse_than_one_without():
    """In single precision, with a condition of a third of its digits."""
    n = 3000
    A = sp.diags([-np.ones(n - 1), np.full(n, 2.0), -np.ones(n - 1)], [-1, 0, 1], format="csr").astype(np.float32)
    b = np.ones(n, np.float32)
    W = np.sin(np.pi / (n + 1) * np.outer(np.arange(1, n + 1), np.arange(1, 7))).astype(np.float32)
    assert cg(A, b, rtol=1e-4).converged
    for space in (RecycledSpace(6, W=W, renew=False), RecycledSpace(6, W=W), RecycledSpace(6)):
        for k in range(3):
            change = 0.01 * k * np.random.default_rng(k).standard_normal(n).astype(np.float32)
            plain, found = cg(A, b + change, rtol=1e-4), cg(A, b + change, rtol=1e-4, recycle=space)
            assert found.converged or not plain.converged
            assert len(found.history) == found.iterations + 1


@pytest.mark.parametrize("method", [cg, gmres])
@pytest.mark.parametrize("renew", [True, False])
def test_after_a_failure_the_method_goes_on_without_the_space(method, renew, monkeypatch):
    """The images are spoiled: the residuals of the recurrence are then wrong."""
    A, b = system("spd")
    space = RecycledSpace(3, W=np.random.default_rng(0).standard_normal((b.size, 3)), renew=renew)
    fit = RecycledSpace.fit

    def spoiled(self, A, like, **how):
        definite = fit(self, A, like, **how)
        self.image *= np.nan
        return definite

    monkeypatch.setattr(RecycledSpace, "fit", spoiled)
    found = method(A, b, rtol=1e-8, recycle=space)
    assert found.converged and residual(A, b, found.x) <= 1.0001e-8 * np.linalg.norm(b)
    assert space.size == (0 if renew else 3)


def test_images_that_are_wrong_do_not_keep_gmres_from_the_solution(monkeypatch):
    A, b = system("general")
    space = RecycledSpace(3, W=np.random.default_rng(0).standard_normal((b.size, 3)), renew=False)
    fit = RecycledSpace.fit

    def spoiled(self, A, like, **how):
        definite = fit(self, A, like, **how)
        self.W = 1e3 * self.W[:, ::-1]
        return definite

    monkeypatch.setattr(RecycledSpace, "fit", spoiled)
    assert gmres(A, b, rtol=1e-8, recycle=space).converged


@pytest.mark.parametrize("k", [5, 10, 20])
def test_in_single_precision_iterations_with_the_space_are_bounded_by_those_without(k):
    """1e-5 is beyond what this condition leaves of the precision: with W the residual may stay above it, at up to 5.2
    times that without."""
    n = 300
    A = sp.diags([-np.ones(n - 1), np.full(n, 2.0), -np.ones(n - 1)], [-1, 0, 1], format="csr")
    space = RecycledSpace(k)
    most = 0
    for S, b in drifting(A, 4):
        S, b = S.astype(np.float32), b.astype(np.float32)
        plain, found = cg(S, b, rtol=1e-5), cg(S, b, rtol=1e-5, recycle=space)
        most = max(most, plain.iterations)
        assert found.iterations <= 2.6 * most
        assert residual(S, b, found.x) <= 10 * max(residual(S, b, plain.x), 1e-5 * np.linalg.norm(b))


def test_a_space_that_gmres_and_cg_use_in_turn():
    A, b = system("spd")
    space = RecycledSpace(4)
    for k, method in enumerate((gmres, cg, gmres, cg, gmres)):
        c = np.roll(b, k)
        limit = {"maxiter": 3} if k == 0 else {}
        found = method(A, c, rtol=1e-8, recycle=space, **limit)
        assert k == 0 or (found.converged and residual(A, c, found.x) <= 1.0001e-8 * np.linalg.norm(b))
        assert (space.origin is None) if method is cg else space.origin.shape == space.W.shape


def neumann(n=60):
    """A singular A with uneven coefficients, whose null vector is constant, and b in its range."""
    rng = np.random.default_rng(3)
    k = np.exp(rng.standard_normal(n + 1))
    k[0] = k[-1] = 0
    b = rng.standard_normal(n)
    return sp.diags([-k[1:-1], k[:-1] + k[1:], -k[1:-1]], [-1, 0, 1], format="csr"), b - b.mean()


@pytest.mark.parametrize("method", [cg, gmres])
@pytest.mark.parametrize("nullspace", [None, "constant"])
@pytest.mark.parametrize("others", [0, 2])
def test_a_vector_that_A_takes_to_rounding_is_dropped(method, nullspace, others):
    A, b = neumann()
    limits = {"rtol": 1e-8, "maxiter": 600, "nullspace": nullspace, **({"restart": 60} if method is gmres else {})}
    plain = method(A, b, **limits)
    W = np.linspace(0, 1, 60)[:, None] ** np.arange(others + 1)
    space = RecycledSpace(4, W=W, renew=False)
    found = method(A, b, recycle=space, **limits)
    assert found.converged or not plain.converged
    assert space.size == others and abs(found.x).max() < 1e3 * abs(plain.x).max()


def test_only_curvature_above_rounding_shows_an_indefinite_matrix():
    A, b = neumann()
    for sign in (1, -1):
        shifted = sp.csr_matrix(A + sign * 1e-17 * sp.eye(60))
        space = RecycledSpace(1, W=np.ones((60, 1)), renew=False)
        assert cg(shifted, b, rtol=1e-8, recycle=space, nullspace="constant").converged
    below = sp.csr_matrix(A - 1e-6 * sp.eye(60))
    space = RecycledSpace(1, W=np.ones((60, 1)), renew=False)
    assert cg(below, b, rtol=1e-8, recycle=space).status is Status.INDEFINITE


def test_the_vectors_lose_their_part_along_null_vectors():
    A, b = neumann()
    W = 1 + np.random.default_rng(0).standard_normal((60, 2))
    space = RecycledSpace(3, W=np.hstack([W, np.ones((60, 1))]), renew=False)
    assert cg(A, b, rtol=1e-8, recycle=space, nullspace="constant").converged
    assert space.size == 2
    np.testing.assert_allclose(space.W.sum(axis=0), 0, atol=1e-11 * abs(space.W).max())


def test_beyond_the_precision_a_solve_with_a_space_leaves_as_little_as_one_without():
    """cg with the vectors takes too long, and begins anew from x0: the smallest residual of both counts."""
    A = gallery.poisson5(40)
    for b in (np.ones(1600), np.random.default_rng(0).standard_normal(1600)):
        space = RecycledSpace(8)
        assert cg(A, b, rtol=1e-8, recycle=space).converged
        plain, found = cg(A, b + 0.1, rtol=3e-17), cg(A, b + 0.1, rtol=3e-17, recycle=space)
        assert found.residual_norm <= 2 * plain.residual_norm
        assert found.status is plain.status is Status.PRECISION_LIMIT


@pytest.mark.parametrize("most", [5, 20, 60])
def test_a_solve_that_was_cut_short_says_nothing_of_what_one_without_vectors_takes(most):
    """Its few iterations are far less than a solve takes: by them the next would give its vectors up at once."""
    A, b = gallery.poisson5(40), np.random.default_rng(0).standard_normal(1600)
    space = RecycledSpace(8)
    assert not cg(A, b, rtol=1e-8, recycle=space, maxiter=most).converged
    assert cg(A, np.roll(b, 5), rtol=1e-8, recycle=space).converged and space.size == 8
    space = RecycledSpace(8)  # an exact solution takes the residual down by no number of decades
    assert cg(sp.identity(9, format="csr"), np.eye(9)[0], rtol=0, recycle=space).converged
    assert space.usual > 0


@pytest.mark.parametrize("method", [cg, gmres])
def test_vectors_that_are_not_at_fault_for_the_end_of_the_precision_are_kept(method):
    A, rng, space = gallery.poisson5(30), np.random.default_rng(0), RecycledSpace(8)
    assert method(A, rng.standard_normal(900), rtol=1e-8, recycle=space).converged
    b = rng.standard_normal(900)
    plain, found = method(A, b, rtol=3e-17), method(A, b, rtol=3e-17, recycle=space)
    assert not plain.converged and found.residual_norm <= 2 * plain.residual_norm
    assert space.size == 8
    assert method(A, b[::-1], rtol=1e-8, recycle=space).iterations < method(A, b[::-1], rtol=1e-8).iterations


@pytest.mark.parametrize("method", [cg, gmres])
def test_a_solution_inside_the_space_is_tested_once(method, monkeypatch):
    A, b = system("spd")
    doubts, calls = Loop._doubts, []
    monkeypatch.setattr(Loop, "_doubts", lambda self, r: calls.append(self.code) or doubts(self, r))
    space = RecycledSpace(2, W=np.linalg.solve(A.toarray(), b)[:, None], renew=False)
    assert method(A, b, rtol=1e-8, recycle=space).converged and len(calls) == 1


def test_the_steps_before_one_that_overflows_count():
    A, b = system("spd")
    calls = []

    def overflows(v):
        calls.append(1)
        return v * (np.inf if len(calls) > 5 else 1)

    def found(M, most):
        space = RecycledSpace(2, W=np.random.default_rng(0).standard_normal((b.size, 2)), renew=False)
        return gmres(A, b, rtol=1e-12, recycle=space, M=M, restart=20, maxiter=most)

    with np.errstate(all="ignore"):
        broken = found(spla.LinearOperator(A.shape, matvec=overflows, dtype=float), 100)
    assert broken.residual_norm <= 1.01 * found(None, 5).residual_norm


@pytest.mark.parametrize(("dtype", "size"), [("float64", 1e145), ("float32", 1e14)])
def test_shifts_of_systems_with_a_large_b_keep_the_vectors(dtype, size):
    """Each solve multiplies A by a small factor, which the estimate of its norm follows only once."""
    A = np.diag(np.concatenate([[0.01, 0.02], np.linspace(1, 3, 98)])).astype(dtype)
    b = (np.random.default_rng(0).standard_normal(100) * size).astype(dtype)
    space, least = RecycledSpace(4), np.linalg.norm(A, 2)
    for k in range(5):
        S = A + (k * np.eye(100) / 100).astype(dtype)
        assert gmres(S, b, rtol=1e-4, restart=20, recycle=space).converged
        space.shift(0.01)
        assert space.size == 4 and 0.1 * least <= space.length <= 10 * least


def test_after_a_large_shift_and_its_return_the_images_are_formed_anew():
    A = np.diag(np.concatenate([[1e-6, 1e-3], np.linspace(1, 3, 98)])) + 0.01 * np.triu(np.ones((100, 100)), 1)
    b, at, space = np.random.default_rng(0).standard_normal(100), 0.0, RecycledSpace(6)
    for shift in (0.0, 1e-3, 1e12, 1e-9):
        space.shift(shift - at)
        S, at, products = A + shift * np.eye(100), shift, space.products
        found = gmres(S, b, rtol=1e-8, restart=10, maxiter=300, recycle=space)
        assert found.converged
        assert (space.products > products) == (shift == 1e-9)
    assert found.iterations < 60
    np.testing.assert_allclose(S @ space.W, space.image, atol=1e-8)


@pytest.mark.parametrize("method", [cg, gmres])
@pytest.mark.parametrize("scales", [(1.0,) * 3, (1e15,) * 3, (1e20,) * 3, (1e30,) * 3, (1e20, 1.0, 1e25)], ids=str)
def test_the_space_serves_right_hand_sides_of_any_size_in_single_precision(method, scales):
    """Beyond 1e19 squares of b's entries overflow."""
    A = sp.csr_matrix(gallery.problem("elasticity:8,4,4")).astype(np.float32)
    F, space, found = IC0().factor(A), RecycledSpace(k=8), []
    for seed, scale in enumerate(scales):
        b = np.float32(scale) * np.random.default_rng(seed).uniform(-0.5, 0.5, A.shape[0]).astype(np.float32)
        solution = method(A, b, M=F, rtol=1e-4, recycle=space)
        assert solution.converged and space.size == 8
        found.append(solution.iterations)
    assert max(found[1:]) < 0.6 * found[0]


@pytest.mark.parametrize(
    ("dtype", "scales"),
    [("float32", (1.0, 1e-20, 1.0, 1e20)), ("float32", (1e-30, 1e30, 1e-30)), ("float64", (1.0, 1e-200, 1e200))],
    ids=str,
)
def test_the_space_serves_where_the_matrix_and_the_right_hand_side_change_their_size(dtype, scales):
    A = sp.csr_matrix(gallery.poisson5(30)).astype(dtype)
    space, found = RecycledSpace(k=10), []
    for seed, scale in enumerate(scales):
        S = A * A.dtype.type(scale)
        b = A.dtype.type(scale) * np.random.default_rng(seed).uniform(-0.5, 0.5, A.shape[0]).astype(dtype)
        solution = gmres(S, b, rtol=1e-4, restart=20, recycle=space)
        assert solution.converged and space.size == 10
        found.append(solution.iterations)
    assert max(found[1:]) < 0.9 * found[0]
