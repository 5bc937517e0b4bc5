"""FiPy: diffusion, convection and phase separation, by its LU and by GMRES with a preconditioner."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

os.environ["FIPY_SOLVERS"] = "scipy"

import fipy
import numpy as np
from fipy.solvers.scipy import LinearGMRESSolver, LinearLUSolver
from fipy.solvers.scipy.preconditioners import ILUPreconditioner
from harness import Example, watch

import finelu
from finelu.interop import fipy as adapters


def timed(solver: Any) -> Any:
    solver._solve_ = watch(solver._solve_)
    return solver


def diffusion(make: Any, mesh: Any, steps: int = 5) -> Any:
    phi = fipy.CellVariable(mesh=mesh, value=0.0)
    phi.constrain(1.0, mesh.facesLeft)
    phi.constrain(0.0, mesh.facesRight)
    equation = fipy.TransientTerm() == fipy.DiffusionTerm(coeff=1.0 + mesh.x)
    solver = timed(make(tolerance=1e-12))
    for _ in range(steps):
        equation.solve(var=phi, dt=0.05, solver=solver)
    return phi.value.copy()


def convection(make: Any, side: int) -> Any:
    mesh = fipy.Grid2D(nx=side, ny=side, dx=1.0 / side, dy=1.0 / side)
    phi = fipy.CellVariable(mesh=mesh, value=0.0)
    phi.constrain(1.0, mesh.facesLeft)
    phi.constrain(0.0, mesh.facesTop)
    equation = fipy.DiffusionTerm(coeff=0.02) - fipy.PowerLawConvectionTerm(coeff=(1.0, 0.5)) + mesh.x
    equation.solve(var=phi, solver=timed(make(tolerance=1e-12)))
    return phi.value.copy()


def phase_separation(make: Any, side: int, steps: int = 5) -> Any:
    """Cahn and Hilliard's equation, as FiPy's manual couples it."""
    mesh = fipy.Grid2D(nx=side, ny=side, dx=0.5, dy=0.5)
    phi = fipy.CellVariable(mesh=mesh, value=0.5 + 0.1 * np.random.default_rng(0).standard_normal(mesh.numberOfCells))
    psi = fipy.CellVariable(mesh=mesh)
    slope = 1 - 6 * phi * (1 - phi)
    first = fipy.TransientTerm(var=phi) == fipy.DiffusionTerm(coeff=1.0, var=psi)
    second = fipy.ImplicitSourceTerm(coeff=1.0, var=psi) == (
        fipy.ImplicitSourceTerm(coeff=slope, var=phi)
        - slope * phi
        + phi * (1 - phi) * (1 - 2 * phi)
        - fipy.DiffusionTerm(coeff=1.0, var=phi)
    )
    solver = timed(make(tolerance=1e-12))
    for _ in range(steps):
        (first & second).solve(dt=0.1, solver=solver)
    return phi.value.copy()


def examples() -> list[Example]:
    line, plane = fipy.Grid1D(nx=100, dx=0.01), fipy.Grid2D(nx=100, ny=100, dx=0.01, dy=0.01)
    space = fipy.Grid3D(nx=20, ny=20, nz=20, dx=0.05, dy=0.05, dz=0.05)
    runs = {
        "diffusion, 1D": partial(diffusion, mesh=line),
        "diffusion, 2D": partial(diffusion, mesh=plane),
        "diffusion, 3D": partial(diffusion, mesh=space),
        "convection, 2D": partial(convection, side=70),
        "phase separation, 2D": partial(phase_separation, side=40),
    }
    found = [
        Example(name, partial(run, LinearLUSolver), partial(run, adapters.LinearLUSolver)) for name, run in runs.items()
    ]
    own = partial(LinearGMRESSolver, precon=ILUPreconditioner())
    other = partial(LinearGMRESSolver, precon=adapters.Preconditioner(finelu.ILU0()))
    for name in ("diffusion, 3D", "convection, 2D"):
        found.append(Example(f"gmres, {name}", partial(runs[name], own), partial(runs[name], other)))
    found.append(Example("LU and install, 2D", partial(diffusion, LinearLUSolver, plane), modules=("fipy",)))
    return found
