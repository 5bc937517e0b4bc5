"""cg, bicgstab and gmres of a Batch."""

import re

import numpy as np
import pytest
import scipy.sparse as sp
from checks import values

import finelu as fl
from finelu import gallery
from finelu.errors import MatrixError, NotConverged, ParameterError
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
        (lambda: fl.gmres(BATCH, ONES, side="left"), "side='left': for a Batch gmres takes"),
        (lambda: fl.gmres(BATCH, np.ones((6, 3))), "It seems to be transposed"),
    ],
)
def test_bad_input_is_one_line(call, text):
    with pytest.raises((MatrixError, ParameterError), match=re.escape(text)) as caught:
        call()
    assert "\n" not in str(caught.value)
