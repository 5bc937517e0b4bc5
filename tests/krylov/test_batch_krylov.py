"""cg, bicgstab and gmres of a Batch."""

import re

import numpy as np
import pytest
import scipy.sparse as sp
from checks import values

import finelu as fl
from finelu import gallery
from finelu.errors import MatrixError, NotConverged, ParameterError
from finelu.krylov.residual import batch_norms
from finelu.result import Status

K = 20
METHODS = {"cg": fl.cg, "bicgstab": fl.bicgstab, "gmres": fl.gmres}


def problem(backend, symmetric, k=K):
    """(Batch, its matrices, b) of systems that are ever more dominant."""
    A = sp.csr_matrix(gallery.poisson5(7, 6) if symmetric else gallery.convection_diffusion(7, 6, 1, peclet=9))
    data = np.tile(A.data, (k, 1))
    data[:, A.indices == np.repeat(np.arange(42), np.diff(A.indptr))] *= np.geomspace(1, 20, k)[:, None]
    b = values((k, 42), float, 3)
    matrices = [sp.csr_matrix((v, A.indices, A.indptr)) for v in data]
    return fl.Batch(backend.move(A), backend.move(data)), matrices, b


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("recipe", [None, fl.Jacobi(), fl.BlockJacobi(), fl.ILU0(), fl.IC0(), fl.SparseLU()], ids=repr)
def test_the_iterations_of_a_batch_are_those_of_its_systems(backend, method, recipe):
    symmetric = method == "cg" or recipe == fl.IC0()
    batch, matrices, b = problem(backend, symmetric)
    M = None if recipe is None else recipe.factor(batch)
    solution = METHODS[method](batch, backend.move(b), M=M, rtol=1e-9)
    assert solution.all_converged
    x = backend.fetch(solution.x)
    for s, A in enumerate(matrices):
        assert np.linalg.norm(b[s] - A @ x[s]) <= 1.01e-9 * np.linalg.norm(b[s])
        alone = METHODS[method](A, b[s], M=None if recipe is None else recipe.factor(A), rtol=1e-9)
        assert abs(alone.iterations - solution.iterations[s]) <= 1 + alone.iterations // 10
    assert solution.method == method and solution[2].iterations == solution.iterations[2]


def test_restart_and_maxiter_have_their_effect(backend):
    batch, _, b = problem(backend, symmetric=False)
    b = backend.move(b)
    short, long = (fl.gmres(batch, b, rtol=1e-9, restart=m) for m in (3, 40))
    assert short.all_converged and long.all_converged and short.iterations.sum() > long.iterations.sum()
    few = fl.bicgstab(batch, b, rtol=1e-12, maxiter=2)
    assert (few.iterations == 2).all() and (few.status == Status.MAX_ITERATIONS).all()
    none = fl.cg(batch, b, maxiter=0)
    assert not none.iterations.any() and not backend.fetch(none.x).any()
    assert fl.cg(batch, b, maxiter=0, rtol=1.001).all_converged and fl.cg(batch, b, maxiter=0, atol=1e9).all_converged


def test_one_right_hand_side_for_all(backend):
    batch, _, b = problem(backend, symmetric=True)
    F = fl.IC0().factor(batch)
    one, many = (fl.cg(batch, backend.move(v), M=F, rtol=1e-9) for v in (b[0], np.tile(b[0], (K, 1))))
    np.testing.assert_array_equal(backend.fetch(one.x), backend.fetch(many.x))


@pytest.mark.parametrize("method", METHODS)
def test_systems_that_fail_are_named(backend, method):
    batch, _, b = problem(backend, symmetric=True)
    data = batch.values.copy()
    data[4, 7] = np.nan
    data[9] = 0
    data[13] *= -1
    b[15, 0] = np.inf
    batch = batch.with_values(data)
    F = fl.ILU0().factor(batch)
    solution = METHODS[method](batch, backend.move(b), M=F, rtol=1e-9)
    assert set(np.flatnonzero(~solution.converged)) == {4, 9, 15} | ({13} if method == "cg" else set())
    assert solution.status[4] is solution.status[15] is Status.NOT_FINITE
    text = solution.explain()
    assert "system 4: its values hold NaN" in text and "system 15: its right-hand side" in text
    assert "system 9: ILU0() has no factors of it" in text
    if method == "cg":
        assert solution.status[13] is Status.INDEFINITE_PRECONDITIONER
        assert fl.cg(batch, backend.move(b), rtol=1e-9).status[13] is Status.INDEFINITE
    with pytest.raises(NotConverged, match="system 4 of the Batch did not converge to rtol=1e-09"):
        METHODS[method](batch, backend.move(b), M=F, rtol=1e-9, raise_on_failure=True)
    assert np.isfinite(backend.fetch(solution.x)).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("dtype", "scale"),
    [
        (np.float32, 1e20),
        (np.float32, 1e-20),
        (np.float32, 1e-30),
        (np.complex64, 1e30),
        (float, 1e160),
        (float, 1e-160),
        (complex, 1e-250),
        (float, 1e300),
    ],
)
def test_sizes_whose_squares_leave_the_range_change_nothing(backend, method, dtype, scale):
    """Every second right-hand side is of another size: the claims hold for both, and are those of b near 1."""
    batch, matrices, b = problem(backend, symmetric=True)
    b = b.astype(dtype)
    sizes = np.where(np.arange(K) % 2, scale, 1).astype(b.real.dtype)
    batch, b = batch.in_dtype(b.real.dtype), b * sizes[:, None]
    solution = METHODS[method](batch, backend.move(b), rtol=1e-4)
    assert solution.all_converged and (solution.iterations > 0).all()
    x = backend.fetch(solution.x)
    wide = np.result_type(dtype, np.float64)
    for s, A in enumerate(matrices):
        scaled = b[s].astype(wide) / float(sizes[s])
        norm = np.linalg.norm(scaled - A @ (x[s].astype(wide) / float(sizes[s])))
        assert norm <= 1.001e-4 * np.linalg.norm(scaled)
        np.testing.assert_allclose(solution.residual_norm[s] / float(sizes[s]), norm, rtol=2e-2)
        np.testing.assert_allclose(solution.tolerance[s] / float(sizes[s]), 1e-4 * np.linalg.norm(scaled), rtol=1e-5)


@pytest.mark.parametrize("method", METHODS)
def test_the_absolute_tolerance_is_that_of_the_given_right_hand_side(backend, method):
    batch, _, b = problem(backend, symmetric=True)
    b *= 1e160 / np.linalg.norm(b, axis=1)[:, None]
    for atol in (1e153, 1e-300):
        solution = METHODS[method](batch, backend.move(b), rtol=1e-9, atol=atol)
        assert solution.all_converged and (solution.iterations > 0).all()
        np.testing.assert_allclose(solution.tolerance, max(atol, 1e151), rtol=1e-12)
        assert (solution.residual_norm > 1e-4 * solution.tolerance).all()
    for size, atol in ((1e160, 1e161), (1e-140, 1e300)):
        solution = METHODS[method](batch, backend.move(b / 1e160 * size), atol=atol)
        assert solution.all_converged and not solution.iterations.any() and (solution.tolerance == atol).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [1.0, 1e155, 1e170, 1e-170])
def test_singular_systems_are_never_claimed(backend, method, size):
    """b has a part along the null vector of ones, which no x reaches."""
    A = sp.diags_array([-np.ones(29), np.r_[1.0, 2 * np.ones(28), 1.0], -np.ones(29)], offsets=[-1, 0, 1]).tocsr()
    batch = fl.Batch(backend.move(sp.csr_matrix(A)), backend.move(np.tile(A.data, (2, 1))))
    b = (1 + values((2, 30), float, 5)) * size
    solution = METHODS[method](batch, backend.move(b))
    assert not solution.converged.any() and np.isfinite(backend.fetch(solution.x)).all()
    assert (solution.residual_norm > 0.1 * size).all() and np.isfinite(solution.residual_norm).all()


def test_what_twice_the_precision_hides_is_not_claimed(backend):
    """x is 1e40 null vectors: 0.1 x has an error of 1e23, whose own rounding is more than b."""
    A = sp.csr_matrix(np.array([[0.1, -0.1], [-0.1, 0.1]]))
    batch = fl.Batch(backend.move(A), backend.move(A.data[None]))
    b, x = backend.move(np.ones((1, 2))), backend.move(np.full((1, 2), 1e40))
    assert batch_norms(batch, b, x, np.zeros(1), np.full(1, 1e24), np.full(1, 0.5))[0] > 0.5
    small = backend.move(np.full((1, 2), 1e4))  # A x is 0, and nothing is hidden
    assert batch_norms(batch, 0 * b, small, np.zeros(1), np.full(1, 1.0), np.full(1, 0.5))[0] < 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_a_solution_out_of_range_is_told(backend, method):
    """x is 1e350 first, and then 1e-321, a number of three digits."""
    batch, _, b = problem(backend, symmetric=True)
    b /= np.linalg.norm(b, axis=1)[:, None]
    large = METHODS[method](batch.with_values(1e-100 * batch.values), backend.move(1e250 * b))
    assert (large.status == Status.NOT_FINITE).all() and not backend.fetch(large.x).any()
    assert "its solution is out of the range of numbers" in large.explain()
    np.testing.assert_allclose(large.residual_norm, 1e250)
    small = METHODS[method](batch.with_values(1e100 * batch.values), backend.move(1e-221 * b), rtol=1e-9)
    assert not small.converged.any() and (small.residual_norm > small.tolerance).all()


def test_gmres_goes_on_while_a_full_basis_lowers_the_norm(backend):
    """Restarts make it slow: no cycle of ten iterations halves the norm, and as for one system hundreds are needed."""
    A = sp.csr_matrix(gallery.poisson5(30, 30))
    b = np.vstack([np.ones(900), values((1, 900), float, 4)])
    batch = fl.Batch(backend.move(A), backend.move(np.tile(A.data, (2, 1))))
    solution = fl.gmres(batch, backend.move(b), rtol=1e-8, restart=10)
    assert solution.all_converged
    for s in range(2):
        alone = fl.gmres(A, b[s], rtol=1e-8, restart=10)
        assert alone.converged and abs(alone.iterations - solution.iterations[s]) <= alone.iterations // 10


def test_more_iterations_than_an_integer_of_the_device_can_count(backend):
    batch, _, b = problem(backend, symmetric=True)
    for method in METHODS.values():
        assert method(batch, backend.move(b), rtol=1e-9, maxiter=10**10).all_converged


A = sp.csr_matrix(gallery.poisson5(3, 2))
BATCH = fl.Batch(A, np.tile(A.data, (3, 1)))
ONES = np.ones(6)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: fl.minres(BATCH, ONES), "minres does not take a Batch; cg, bicgstab, gmres do."),
        (lambda: fl.cg(BATCH, ONES, x0=ONES), "for a Batch cg takes rtol, atol, maxiter, M, raise_on_failure."),
        (lambda: fl.cg(BATCH, ONES, M=fl.ILU0().factor(A)), "M is a LUFactors; for a Batch M is recipe.factor(batch)"),
        (
            lambda: fl.cg(BATCH.with_values(BATCH.values[:2]), ONES, M=fl.ILU0().factor(BATCH)),
            "recipe.factor(batch), of 2 systems",
        ),
        (lambda: fl.cg(BATCH, 1j * ONES, M=fl.ILU0().factor(BATCH)), "M is float64, but A and b are complex128"),
        (lambda: fl.gmres(BATCH, ONES, restart=0), "restart=0"),
        (
            lambda: fl.gmres(BATCH, ONES, side="left"),
            "side='left': for a Batch gmres takes rtol, atol, maxiter, M, raise_on_failure, restart.",
        ),
        (lambda: fl.gmres(BATCH, np.ones((6, 3))), "It seems to be transposed"),
    ],
)
def test_bad_input_is_one_line(call, text):
    with pytest.raises((MatrixError, ParameterError), match=re.escape(text)) as caught:
        call()
    assert "\n" not in str(caught.value)
