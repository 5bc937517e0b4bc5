"""finelu.interop.pyamg: smoothers and coarse solvers in PyAMG's hierarchies, by definition and by behaviour."""

import gc

import numpy as np
import pytest
import scipy.sparse as sp
from checks import documented, values

import finelu as fl
from finelu.errors import MatrixError, ParameterError
from finelu.interop import pyamg as methods
from finelu.interop.pyamg import change_smoothers, coarse_solver, smoother

pyamg = pytest.importorskip("pyamg")


def poisson():
    A = pyamg.gallery.poisson((40, 40), format="csr")
    return A, values(A.shape[0], "float64")


@pytest.mark.parametrize("trans", ["N", "T", "H"])
def test_a_smoother_is_the_iteration_with_M(trans):
    A = fl.gallery.problem("convection_diffusion:6")
    x, b = values((2, A.shape[0]), "float64")
    F, want = fl.ILU0().factor(A), x.copy()
    for _ in range(3):
        want = want + F.solve(b - A @ want, trans)
    got = x.copy()
    assert smoother(fl.ILU0(), iterations=3, trans=trans)(A, got, b) is None
    np.testing.assert_allclose(got, want, rtol=1e-12)


@pytest.mark.parametrize("recipe", [fl.IC0(), fl.ILU0(), fl.ILUT(fill=2.0), fl.ParILU()], ids=repr)
@pytest.mark.parametrize("build", ["smoothed_aggregation_solver", "ruge_stuben_solver"])
def test_a_hierarchy_converges_with_them_faster_than_without_smoothing_and_than_with_jacobi(build, recipe):
    A, b = poisson()

    def iterations(ml, accel=None):
        residuals = []
        x = ml.solve(b, tol=1e-8, maxiter=100, residuals=residuals, accel=accel)
        assert np.linalg.norm(b - A @ x) <= 2e-8 * np.linalg.norm(b)
        return len(residuals)

    make = getattr(pyamg, build)
    jacobi = iterations(make(A, presmoother="jacobi", postsmoother="jacobi"))
    ml = change_smoothers(make(A), recipe)
    assert iterations(ml) < jacobi
    assert iterations(ml, "cg") <= iterations(ml)


def test_with_M_before_and_its_adjoint_after_a_cycle_is_symmetric():
    A, _ = poisson()
    recipe = fl.ILUT(fill=1.0, drop_tol=0.05)  # of which L U is not symmetric
    u, v = values((2, A.shape[0]), "float64")

    def asymmetry(ml):
        M = ml.aspreconditioner()
        return abs(u @ (M @ v) - v @ (M @ u)) / abs(u @ (M @ v))

    assert asymmetry(change_smoothers(pyamg.smoothed_aggregation_solver(A), recipe)) < 1e-12
    ml = pyamg.smoothed_aggregation_solver(A)
    for level in ml.levels[:-1]:
        level.presmoother = level.postsmoother = smoother(recipe)
    assert asymmetry(ml) > 1e-8


def test_iterations_take_effect():
    A, b = poisson()
    counts = []
    for iterations in (1, 4):
        residuals = []
        ml = change_smoothers(pyamg.smoothed_aggregation_solver(A), fl.IC0(), iterations=iterations)
        ml.solve(b, tol=1e-8, residuals=residuals)
        counts.append(len(residuals))
    assert counts[1] < counts[0]


def test_factors_are_made_once_a_matrix_and_go_with_it():
    made = []

    class Counting(fl.IC0):
        def factor(self, A):
            made.append(A.shape)
            return super().factor(A)

    A, b = poisson()
    ml = change_smoothers(pyamg.smoothed_aggregation_solver(A, max_coarse=30), Counting())
    assert made == [level.A.shape for level in ml.levels[:-1]]
    ml.solve(b, tol=1e-8)
    assert len(made) == len(ml.levels) - 1
    smooth = smoother(Counting())
    B, x = A.copy(), np.zeros_like(b)
    smooth(B, x, b)
    known = smooth.__closure__[0].cell_contents._known
    assert len(known) == 1
    del B
    gc.collect()
    assert not known


def test_a_coarse_solver_is_as_good_as_the_exact_one():
    A, b = poisson()
    counts = []
    ml = pyamg.smoothed_aggregation_solver(A, max_coarse=300)  # one, since random vectors go into its prolongation
    assert ml.levels[-1].A.shape[0] > 100
    for solver in ("splu", coarse_solver(), coarse_solver(fl.ILUT(drop_tol=0, fill=float("inf")))):
        residuals = []
        ml.coarse_solver = pyamg.coarse_grid_solver(solver)
        ml.solve(b, tol=1e-8, residuals=residuals)
        counts.append(residuals)
    for residuals in counts[1:]:
        np.testing.assert_allclose(residuals, counts[0], rtol=1e-6)


def test_a_coarse_solver_of_another_recipe_is_another():
    A, _ = poisson()
    r = values(A.shape[0], "float64")
    assert (coarse_solver(fl.IC0())(A, r) == fl.IC0().factor(A).solve(r)).all()


def test_bad_input_is_refused():
    with pytest.raises(ParameterError, match="no recipe 'ilu9'"):
        smoother("ilu9")
    with pytest.raises(ParameterError, match="recipe is of type int"):
        coarse_solver(3)
    with pytest.raises(ParameterError, match="iterations=0"):
        smoother(fl.ILU0(), iterations=0)
    with pytest.raises(ParameterError, match="trans='C'"):
        smoother(fl.ILU0(), trans="C")
    ml = pyamg.smoothed_aggregation_solver(poisson()[0])
    ml.levels[0].A = sp.csr_array(sp.diags([1.0, 1.0], [-1, 1], shape=ml.levels[0].A.shape))
    with pytest.raises(MatrixError, match="stores no diagonal entry in row 0"):
        change_smoothers(ml, fl.ILU0())


@pytest.mark.parametrize("code", documented("interop", "pyamg"))
def test_documented_examples_run(code):
    exec(code, {})


# Krylov methods as PyAMG calls them


@pytest.mark.parametrize("name", ["cg", "bicgstab", "gmres", "fgmres"])
def test_a_method_accelerates_a_hierarchy(name):
    A, b = poisson()
    ml, residuals, own = pyamg.smoothed_aggregation_solver(A), [], []
    x, info = ml.solve(b, tol=1e-8, accel=getattr(methods, name), residuals=residuals, return_info=True)
    ml.solve(b, tol=1e-8, accel=getattr(pyamg.krylov, name), residuals=own)
    assert info == 0 and residuals[0] == pytest.approx(np.linalg.norm(b))
    assert residuals[-1] == pytest.approx(np.linalg.norm(b - A @ x)) and residuals[-1] <= 1e-8 * residuals[0]
    assert abs(len(residuals) - len(own)) <= 2


@pytest.mark.parametrize("name", ["cg", "bicgstab", "gmres", "fgmres"])
def test_a_method_counts_as_pyamg_does(name):
    A, b = poisson()
    method, seen = getattr(methods, name), []
    _, info = method(A, b, tol=1e-12, maxiter=3, callback=seen.append)
    cycles = name.endswith("gmres")
    assert info == 3 and len(seen) == (1 if cycles else 3)
    refusals = ({"restart": 0}, {"maxiter": 0})
    if not cycles:
        refusals = ({"criteria": "r"}, {"criteria": "MrMr"}, {"criteria": "rMr"}, {"maxiter": -1})
    for wrong in refusals:
        with pytest.raises(ParameterError, match=next(iter(wrong))):
            method(A, b, **wrong)
    if cycles:
        assert method(A, b, tol=1e-12, maxiter=3, restart=5)[1] == 15
        assert method(A, b, tol=1e-12)[1] == 40
