"""Factors as M in the solvers of SciPy and CuPy."""

import inspect

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from checks import ON_GPU, in_dtype, values

import finelu as fl

SPD, GENERAL = "poisson5:30", "convection_diffusion:9"
RECIPES = [fl.ILU0(), fl.ILUT(), fl.ParILU(), fl.MultilevelILU(), fl.Jacobi()]
FOR_SPD = [fl.IC0(), fl.ICT(), fl.ParIC(), fl.MultilevelILU(symmetric=True)]


def residual(A, x, b):
    return np.linalg.norm(b - A @ x) / np.linalg.norm(b)


def products(solver, A, b, M):
    """Products with A that a SciPy solver takes until it says that it has converged, which is looked at."""
    calls = []

    def counting(A):
        return lambda v: calls.append(1) or A @ v

    operator = sla.LinearOperator(A.shape, counting(A), counting(A.conj().T), dtype=A.dtype)
    x, info = solver(operator, b, M=M, rtol=1e-8)
    assert info == 0
    assert residual(A, x, b) <= (1e-5 if solver is sla.minres else 1.01e-8)  # minres judges by another norm
    return len(calls)


@pytest.mark.parametrize("dtype", ["float64", pytest.param("complex128", marks=pytest.mark.slow)])
@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
@pytest.mark.parametrize("name", ["gmres", "lgmres", "gcrotmk", "bicgstab", "bicg", "cgs"])
def test_general_solvers_of_scipy(name, recipe, dtype):
    A = fl.gallery.problem(GENERAL)
    A = in_dtype(sp.diags(np.linspace(1, 9, A.shape[0])) @ A, dtype)  # Jacobi mends the rows
    b = values(A.shape[0], dtype)
    solver = getattr(sla, name)
    assert products(solver, A, b, recipe.factor(A)) < products(solver, A, b, None)


@pytest.mark.parametrize("recipe", FOR_SPD, ids=repr)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [("cg", "float64"), pytest.param("cg", "complex128", marks=pytest.mark.slow), ("minres", "float64")],
)
def test_solvers_of_scipy_for_hermitian_systems(name, recipe, dtype):
    A = in_dtype(fl.gallery.problem(SPD), dtype)
    b = values(A.shape[0], dtype)
    solver = getattr(sla, name)
    assert products(solver, A, b, recipe.factor(A)) < products(solver, A, b, None)


def test_qmr_takes_them_from_the_left_and_uses_the_adjoint():
    A = fl.gallery.problem(GENERAL)
    b = values(A.shape[0], "float64")
    calls = []
    M, identity = sla.aslinearoperator(fl.ILU0().factor(A)), sla.aslinearoperator(sp.identity(A.shape[0]))
    x, info = sla.qmr(A, b, M1=M, M2=identity, rtol=1e-8, callback=calls.append)
    assert info == 0 and residual(A, x, b) < 1e-6
    plain = []
    sla.qmr(A, b, rtol=1e-8, callback=plain.append)
    assert len(calls) < len(plain)


def test_they_precondition_an_eigenvalue_solver():
    A = fl.gallery.problem("poisson5:20")
    X = np.random.default_rng(0).standard_normal((A.shape[0], 3))
    found, _ = sla.lobpcg(A, X, M=sla.aslinearoperator(fl.IC0().factor(A)), largest=False, tol=1e-8, maxiter=100)
    np.testing.assert_allclose(np.sort(found), np.sort(sla.eigsh(A, 3, sigma=0)[0]), rtol=1e-8)


@ON_GPU
@pytest.mark.parametrize(
    ("name", "problem", "recipe"),
    [
        ("gmres", GENERAL, fl.ILU0()),
        ("gmres", GENERAL, fl.MultilevelILU()),
        ("gmres", GENERAL, fl.ParILUT()),
        ("cgs", GENERAL, fl.ILU0()),
        ("bicgstab", GENERAL, fl.ILU0()),
        ("cg", SPD, fl.IC0()),
        ("cg", SPD, fl.ParIC()),
        ("minres", SPD, fl.IC0()),
    ],
)
def test_solvers_of_cupy(backend, name, problem, recipe):
    import cupyx.scipy.sparse.linalg as csla

    if not hasattr(csla, name):
        pytest.skip(f"this CuPy has no {name}")
    host = fl.gallery.problem(problem)
    A, b = backend.move(host), backend.move(values(host.shape[0], "float64"))
    solver, counts = getattr(csla, name), []
    tolerance = "rtol" if "rtol" in inspect.signature(solver).parameters else "tol"  # as CuPy 13 calls it
    options = {tolerance: 1e-8, "maxiter": 2000} | ({"restart": 10} if name == "gmres" else {})
    for M in (recipe.factor(A), None):
        calls = []
        x, info = solver(A, b, M=M, callback=calls.append, **options)
        assert info == 0
        # minres compares with its estimate of norm(A) norm(x), which is larger than norm(b)
        assert residual(host, x.get(), b.get()) < (1e-5 if name == "minres" else 1e-6)
        counts.append(len(calls))
    assert counts[0] < counts[1]
