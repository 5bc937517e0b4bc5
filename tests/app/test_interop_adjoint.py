"""finelu.interop.adjoint: a system and its transpose by one factorization; recipe="auto" falls back as `solve` does."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import one_line, values

import finelu as fl
from finelu import gallery
from finelu.auto import ladder
from finelu.errors import NotConverged, ParameterError
from finelu.interop import adjoint
from finelu.interop.adjoint import Options, System
from finelu.matrix import as_csr

pytestmark = pytest.mark.usefixtures("patient")

POISSON = gallery.poisson5(34, 33)
N = POISSON.shape[0]


def no_pivot():
    """ILU0 has no factors: the second pivot is 1 - 1. Signs are mixed, so that MILU0 is not tried."""
    A = sp.lil_matrix(gallery.convection_diffusion(34, 33, 1, peclet=5.0))
    A[:2, :2] = [[1.0, 1.0], [1.0, 1.0]]
    return sp.csr_matrix(A @ sp.diags((-1.0) ** np.arange(N)))


def hermitian():
    D = sp.diags(np.exp(1j * np.arange(N)))
    return sp.csr_matrix(D @ POISSON @ D.conj())


PROBLEMS = {
    "SPD": POISSON,
    "small": gallery.poisson5(5, 4),
    "convection": gallery.convection_diffusion(34, 33, 1, peclet=50.0),
    "no pivot": no_pivot(),
    "no diagonal": gallery.kkt(400, 100),
    "indefinite": sp.csr_matrix(POISSON - 1.03 * sp.identity(N)),
    "complex Hermitian": hermitian(),
    "complex general": sp.csr_matrix(hermitian() + 0.5j * sp.eye(N, k=3)),
}


def of(A, trans):
    return {"N": A, "T": A.T, "H": A.conj().T}[trans]


@pytest.fixture
def factored(calls_of):
    """[(ladder, rung)] of all ladders for which factors were looked for, one after the other."""
    return calls_of(ladder.Ladder, "_factor")


@pytest.mark.parametrize("trans", ["T", "H"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_what_solved_the_system_solves_its_adjoint(backend, factored, name, trans):
    A = PROBLEMS[name]
    system = System(as_csr(backend.move(A), diagonal=False), Options())
    B = values((A.shape[0], 2), A.dtype)
    X = backend.fetch(system.solve(backend.move(B)))
    made = list(factored)
    Y = backend.fetch(system.solve(backend.move(B), trans))
    assert factored == made
    for matrix, Z in ((A, X), (of(A, trans), Y)):
        assert (np.linalg.norm(B - matrix @ Z, axis=0) <= 1.01e-10 * np.linalg.norm(B, axis=0)).all()


def test_a_recipe_without_factors_is_an_error_if_it_was_asked_for_and_not_else(factored):
    A = as_csr(no_pivot())
    with pytest.raises(fl.ZeroPivot):
        System(A, Options(recipe=fl.ILU0()))
    x = System(A, Options()).solve(np.ones(N))
    assert np.linalg.norm(np.ones(N) - no_pivot() @ x) <= 1e-8
    assert factored[0][1] == "cheap" and len(factored) > 1


def test_an_adjoint_that_the_factors_do_not_solve_is_tried_anew(meanwhile, factored):
    A = PROBLEMS["convection"]
    system = System(as_csr(A), Options())
    b = values(N, "float64")
    x = system.solve(b)
    meanwhile(adjoint, MAXITER=1)
    y = system.solve(b, "H")
    assert [rung for _, rung in factored] == ["cheap", "cheap"]
    assert system.solve(b, "H").tolist() == y.tolist() and len(factored) == 2
    assert np.linalg.norm(b - A @ x) <= 1e-9 and np.linalg.norm(b - A.T @ y) <= 1e-9


def test_the_adjoint_may_come_first():
    A = PROBLEMS["complex general"]
    system = System(as_csr(A), Options(rtol=1e-9))
    b = values(N, A.dtype)
    for trans in ("T", "N", "H"):
        assert np.linalg.norm(b - of(A, trans) @ system.solve(b, trans)) <= 1.01e-9 * np.linalg.norm(b)
    assert not system.solve(np.zeros(N)).any()


@pytest.mark.parametrize("method", ["gmres", "bicgstab", "bicg"])
def test_a_method_that_was_asked_for_is_the_one(method):
    system = System(as_csr(POISSON), Options(method=method))
    assert np.linalg.norm(np.ones(N) - POISSON @ system.solve(np.ones(N))) <= 1e-8
    assert system._solved["N"][1] == method
    assert Options(method=getattr(fl, method)) == Options(method=method)


def test_single_precision_stays_single():
    A = as_csr(POISSON.astype(np.float32))
    b = values(N, "float32")
    x = System(A, Options()).solve(b)
    assert x.dtype == np.float32
    assert np.linalg.norm(b - POISSON @ x) <= 1.1e-5 * np.linalg.norm(b)
    with pytest.raises(NotConverged):
        System(A, Options(rtol=1e-12)).solve(b)


def test_what_has_no_solution_is_an_error():
    A = sp.csr_matrix(POISSON - sp.diags(np.asarray(POISSON.sum(axis=1)).ravel()))
    with pytest.raises(NotConverged, match="A is singular, and no x was found") as error:
        System(as_csr(A), Options()).solve(np.ones(N))
    one_line(error)


def test_cg_is_for_recipes_that_keep_a_matrix_definite():
    assert System(as_csr(POISSON), Options(recipe=fl.IC0()))._methods[0] == "cg"
    assert System(as_csr(POISSON), Options(recipe=fl.ILUT()))._methods == ("gmres",)
    assert System(as_csr(PROBLEMS["convection"]), Options(recipe=fl.Jacobi()))._methods == ("gmres",)


OTHER = {"method": lambda A, b, **options: fl.cg(A, b, **options)}


@pytest.mark.parametrize(("options", "match"), [({"maxiter": 5}, "maxiter needs"), (OTHER, "a function")])
def test_what_needs_a_recipe_is_refused_without(options, match):
    with pytest.raises(ParameterError, match=match) as error:
        Options(**options)
    one_line(error)
    assert Options(recipe=fl.ILU0(), **options)
