"""scikit-fem: direct solves, Krylov methods with a preconditioner, and eigenvalues."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import scipy.sparse.linalg
import skfem
from harness import Example, watch
from skfem.helpers import ddot, div, dot, grad, sym_grad
from skfem.models.elasticity import linear_elasticity
from skfem.models.poisson import laplace, mass
from skfem.utils import solver_eigen_scipy_sym, solver_iter_krylov

import finelu


@skfem.BilinearForm
def divergence(u, q, w):
    return -div(u) * q


@skfem.BilinearForm
def viscosity(u, v, w):
    return ddot(sym_grad(u), sym_grad(v))


@skfem.BilinearForm
def convection(u, v, w):
    return 0.05 * dot(grad(u), grad(v)) + grad(u)[0] * v + grad(u)[1] * v


def system(mesh: Any, element: Any, *forms: Any) -> list[Any]:
    """The matrices of the forms, without the unknowns of the boundary."""
    basis = skfem.Basis(mesh, element)
    fixed = basis.get_dofs()
    return [skfem.condense(form.assemble(basis), D=fixed, expand=False) for form in forms]


def stokes(refinements: int) -> Any:
    velocity = skfem.Basis(skfem.MeshTri().refined(refinements), skfem.ElementVector(skfem.ElementTriP2()), intorder=3)
    pressure = velocity.with_element(skfem.ElementTriP1())
    B = divergence.assemble(velocity, pressure)
    S = skfem.bmat([[viscosity.assemble(velocity), B.T], [B, -1e-6 * mass.assemble(pressure)]], "csr")
    return skfem.condense(S, D=velocity.get_dofs().all(), expand=False)


def direct(A: Any) -> Any:
    """By the client's default solver: `spsolve`."""
    return skfem.solve(A, np.ones(A.shape[0], A.dtype))


def iterated(A: Any, method: Any, recipe: Any) -> Any:
    """By `solver_iter_krylov`. recipe : None: the client's preconditioner, the diagonal."""
    M = {} if recipe is None else {"M": watch(recipe.factor)(A)}
    return skfem.solve(A, np.ones(A.shape[0]), solver=solver_iter_krylov(watch(method), rtol=1e-11, **M))


def eigenvalues(K: Any, M: Any, recipe: Any) -> Any:
    """Those next to 1. recipe : None: the client's way, SuperLU's factors of K - M."""
    options = {} if recipe is None else {"OPinv": watch(recipe.factor)(K - M)}
    solver = solver_eigen_scipy_sym(k=6, sigma=1.0, v0=np.ones(K.shape[0]), **options)
    return np.sort(skfem.solve(K, M, solver=solver)[0])


def examples() -> list[Example]:
    triangles, tetrahedra = skfem.MeshTri(), skfem.MeshTet()
    quadratic, linear = skfem.ElementTriP2(), skfem.ElementTetP1()
    K, M = system(triangles.refined(5), quadratic, laplace, mass)
    (cube,) = system(tetrahedra.refined(4), linear, laplace)
    (solid,) = system(tetrahedra.refined(4), skfem.ElementVector(linear), linear_elasticity(1.0, 1.0))
    matrices = {
        "Poisson, P2, coarse": system(triangles.refined(3), quadratic, laplace)[0],
        "Poisson, P2": system(triangles.refined(6), quadratic, laplace)[0],
        "convection, P2": system(triangles.refined(5), quadratic, convection)[0],
        "Helmholtz, P2, complex": (K - (30.0 + 1j) * M).tocsr(),
        "Stokes, P2-P1": stokes(4),
        "Poisson, 3D": cube,
        "elasticity, 3D": solid,
    }
    found = [Example(name, partial(direct, A)) for name, A in matrices.items()]
    for name, A in (("Poisson, 3D", cube), ("elasticity, 3D", solid)):
        own = partial(iterated, A, scipy.sparse.linalg.cg, None)
        found.append(Example(f"cg, {name}", own, partial(iterated, A, finelu.cg, finelu.IC0())))
    own, other = partial(eigenvalues, K, M, None), partial(eigenvalues, K, M, finelu.SparseLU())
    return [*found, Example("6 eigenvalues, P2", own, other)]
