"""Numbers out of range are judged by finelu, whatever the caller's np.errstate is and whether warnings are errors."""

import contextlib
import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import finelu as fl
from finelu.auto.choose import choose
from finelu.krylov import METHODS
from finelu.matrix.traits import traits
from finelu.preconditioners import RECIPES

pytestmark = pytest.mark.usefixtures("patient")


def _systems():
    laplace = fl.gallery.problem("poisson7:3").tocsr()
    flow = fl.gallery.problem("convection_diffusion:3").tocsr()
    n, m = laplace.shape[0], flow.shape[0]
    grading = sp.diags(10.0 ** np.linspace(-150, 150, m))
    singular = laplace.tolil()
    singular[0, :] = 0
    singular[:, 0] = 0
    singular[0, 0] = 0
    zeros = laplace.copy()
    zeros.data[:] = 0
    yield "tiny", laplace * 1e-200, np.full(n, 1e-200)
    yield "huge", flow * 1e300, np.full(m, 1e150)
    yield "graded", (grading @ flow @ grading).tocsr(), np.ones(m)
    yield "graded rows", (grading @ flow).tocsr(), np.ones(m)
    yield "denormal", laplace * 5e-323, np.full(n, 1e-320)
    yield "denormal b", laplace, np.full(n, 5e-324)
    yield "b = 0", laplace, np.zeros(n)
    yield "singular", singular.tocsr(), np.ones(n)
    yield "zeros", zeros, np.ones(n)
    yield "float32", (laplace * 1e30).astype(np.float32), np.full(n, 1e-30, np.float32)
    yield "float32, large x", (laplace * 1e-30).astype(np.float32), np.full(n, 1e30, np.float32)
    yield "complex64", (laplace * (1 + 1e-30j)).astype(np.complex64), np.full(n, 1e-25 + 1j, np.complex64)
    yield "complex128", laplace * (1 + 1e-200j), np.full(n, 1e-160 + 1j)
    yield "x overflows", sp.csr_matrix([[1e-300]]), np.array([1e300])


LATER = [pytest.mark.slow]  # other dtypes, which are compiled anew
SYSTEMS = [
    pytest.param(A, b, id=name, marks=LATER if name.startswith(("float32", "complex128")) else [])
    for name, A, b in _systems()
]


def outcome(work):
    """Status and x, or the error on purpose; other exceptions pass."""
    try:
        result = work()
    except fl.FineluError as error:
        return type(error).__name__, str(error)
    return result.status.name, result.x.tobytes()


def recipe(name, n):
    return RECIPES[name](block_size=3 if n % 3 == 0 else 1) if "block" in name else RECIPES[name]()


def same_everywhere(work):
    with np.errstate(all="warn"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = outcome(work)
    with np.errstate(all="raise"):
        assert outcome(work) == expected
    with np.errstate(all="warn"), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert outcome(work) == expected


@pytest.mark.parametrize(("A", "b"), SYSTEMS)
@pytest.mark.parametrize("method", METHODS)
def test_methods_are_the_same_where_numpy_would_raise(method, A, b):
    same_everywhere(lambda: getattr(fl, method)(A, b, maxiter=60))
    same_everywhere(lambda: getattr(fl, method)(A, b, x0=np.ones_like(b), maxiter=5))


@pytest.mark.parametrize(("A", "b"), SYSTEMS)
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_the_same_where_numpy_would_raise(name, A, b):
    def work():
        F = recipe(name, A.shape[0]).factor(A)
        first = F.solve(b)
        F.update(A)
        assert F.solve(b, "H").shape == first.shape
        return fl.gmres(A, b, M=F, maxiter=40)

    same_everywhere(work)


@pytest.mark.parametrize(("A", "b"), SYSTEMS)
@pytest.mark.parametrize("name", ["auto", "ilu0", "multilevel", "sparse_lu"])
def test_solve_is_the_same_where_numpy_would_raise(name, A, b):
    same_everywhere(lambda: fl.solve(A, b, recipe=name))


@pytest.mark.parametrize(("A", "b"), SYSTEMS)
def test_sequences_are_the_same_where_numpy_would_raise(A, b):
    def work():
        steps = fl.Sequence(A)
        steps.step(b=b)
        return steps.step(A, b)

    same_everywhere(work)


@pytest.mark.parametrize(("A", "b"), SYSTEMS)
def test_what_looks_at_a_matrix_does_not_mind_where_numpy_would_raise(A, b):
    checked = fl.as_csr(A, diagonal=False)
    calls = [
        lambda: fl.properties.properties(A),
        lambda: choose(traits(checked)),
        lambda: fl.scaling.matching(A).order,
        lambda: fl.scaling.equilibrate(A)[0],
        lambda: fl.TriangularSolver(A).solve(b),
        lambda: fl.spilu(A).solve(b),
        lambda: fl.BlockMatrix.from_csr(checked, 1) @ b,
    ]
    for call in calls:
        with np.errstate(all="raise"), warnings.catch_warnings():
            warnings.simplefilter("error")
            with contextlib.suppress(fl.FineluError):  # which ones are due is for the tests of these functions
                call()


@pytest.mark.parametrize("name", sorted(fl.gallery.PAPER_SIZES))
def test_problems_of_the_gallery_are_made_where_numpy_would_raise(name):
    problem = fl.gallery.PAPER_SIZES[name].partition(":")[0]
    with np.errstate(all="raise"):
        assert fl.gallery.problem(f"{problem}:4").nnz


def test_what_the_caller_gives_is_called_with_finelus_own_rules_and_the_callers_come_back():
    A = sp.csr_matrix(np.diag([1.0, 2.0]))
    seen = []

    def M(r):
        seen.append(np.geterr()["over"])
        return r

    with np.errstate(over="raise"):
        assert fl.cg(A, np.ones(2), M=M).converged
        assert np.geterr()["over"] == "raise"
    assert set(seen) == {"ignore"}
