"""pyMOTO: the displacements of structures as a topology optimization has them, static and in vibration."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pymoto
from harness import Example
from pymoto.solvers import SolverSparseLU

DESIGNS = 3  # one pattern, other densities


def cantilever(sizes: tuple[int, ...], loads: int) -> Any:
    """The compliances of several designs and their derivatives, a load case a column."""
    domain = pymoto.VoxelDomain(*sizes)
    fixed = domain.get_dofnumber(domain.nodes[0].ravel(), ndof=len(sizes)).ravel()
    tip = domain.get_dofnumber(domain.nodes[-1].ravel(), ndof=len(sizes)).ravel()
    f = np.zeros((domain.nnodes * len(sizes), loads))
    f[tip[:loads], np.arange(loads)] = 1.0
    found = []
    for density in np.random.default_rng(0).uniform(0.2, 1.0, (DESIGNS, domain.nel)):
        x = pymoto.Signal("x", state=density**3)
        with pymoto.Network() as network:
            K = pymoto.AssembleStiffness(domain, bc=fixed)(x)
            u = pymoto.LinSolve(symmetric=True, solver=SolverSparseLU())(K, pymoto.Signal("f", state=f))
        u.sensitivity = f.copy()
        network.sensitivity()
        found += [u.state, x.sensitivity]
    return found


def vibration(side: int) -> Any:
    """Amplitudes at several frequencies, with damping: complex matrices."""
    domain = pymoto.VoxelDomain(side, side)
    fixed = domain.get_dofnumber(domain.nodes[0].ravel(), ndof=2).ravel()
    full = pymoto.Signal("x", state=np.ones(domain.nel))
    K = pymoto.AssembleStiffness(domain, bc=fixed)(full).state
    M = pymoto.AssembleMass(domain, bc=fixed, ndof=2)(full).state
    f = np.zeros(K.shape[0], complex)
    f[-1] = 1.0
    solver, found = SolverSparseLU(), []
    for frequency in (0.001, 0.01, 0.1):
        solver.update((K * (1 + 0.02j) - frequency**2 * M).tocsc())
        found += [solver.solve(f, trans=trans) for trans in "NTH"]
    return found


def examples() -> list[Example]:
    runs = {
        "cantilever, 2D": partial(cantilever, (60, 30), 1),
        "cantilever, 3D, 4 loads": partial(cantilever, (14, 8, 8), 4),
        "vibration, 2D, complex": partial(vibration, 40),
    }
    return [Example(name, run, modules=("pymoto",)) for name, run in runs.items()]
