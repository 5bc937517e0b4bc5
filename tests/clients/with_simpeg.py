"""SimPEG, by a solver of pymatsolver: direct currents and electromagnetics in 3D, forward and adjoint."""

from __future__ import annotations

from functools import partial
from typing import Any

import discretize
import numpy as np
import simpeg.electromagnetics.frequency_domain as fdem
import simpeg.electromagnetics.static.resistivity as dc
from harness import Example, watch
from pymatsolver import SolverLU
from simpeg import maps

from finelu.interop.pymatsolver import Solver


def timed(solver: Any) -> Any:
    """The class, with a timed constructor, which factors, and timed solves."""
    return type("Timed", (solver,), {"__init__": watch(solver.__init__), "solve": watch(solver.solve)})


def outcomes(simulation: Any, model: Any) -> Any:
    """The data, a product with their derivative and one with its transpose."""
    fields = simulation.fields(model)
    data = simulation.dpred(model, f=fields)
    rng = np.random.default_rng(0)
    direction, weights = rng.standard_normal(model.size), rng.standard_normal(data.size)
    return data, simulation.Jvec(model, direction, f=fields), simulation.Jtvec(model, weights, f=fields)


def direct_currents(solver: Any, side: int) -> Any:
    mesh = discretize.TensorMesh([np.full(side, 10.0), np.full(side, 10.0), np.full(side // 2, 10.0)], "CCN")
    places = np.linspace(-side * 3.0, side * 3.0, 12)
    sources = []
    for x in places[:-2]:
        receivers = np.array([[other, 5.0, -5.0] for other in places if other != x])
        receiver = dc.receivers.Pole(receivers)
        sources.append(dc.sources.Pole([receiver], np.array([x, 0.0, -5.0])))
    simulation = dc.Simulation3DNodal(
        mesh, survey=dc.Survey(sources), sigmaMap=maps.ExpMap(mesh), solver=timed(solver), solver_opts={}
    )
    model = np.log(0.01) + 0.5 * np.random.default_rng(1).standard_normal(mesh.n_cells)
    return outcomes(simulation, model)


def electromagnetics(solver: Any, side: int, sources: int) -> Any:
    mesh = discretize.TensorMesh([np.full(side, 20.0)] * 3, "CCC")
    places = np.linspace(-60.0, 60.0, sources)
    receiver = fdem.receivers.PointMagneticFluxDensitySecondary(
        np.array([[0.0, 0.0, 30.0], [20.0, 10.0, 30.0]]), orientation="z", component="real"
    )
    found = [fdem.sources.MagDipole([receiver], frequency=100.0, location=np.array([x, 0.0, 30.0])) for x in places]
    simulation = fdem.Simulation3DElectricField(
        mesh, survey=fdem.Survey(found), sigmaMap=maps.ExpMap(mesh), solver=timed(solver), solver_opts={}
    )
    model = np.log(0.01) + 0.5 * np.random.default_rng(1).standard_normal(mesh.n_cells)
    return outcomes(simulation, model)


def examples() -> list[Example]:
    runs = {
        "direct currents, 10 sources": partial(direct_currents, side=20),
        "electromagnetics, 27 sources": partial(electromagnetics, side=10, sources=27),
    }
    return [Example(name, partial(run, SolverLU), partial(run, Solver), tolerance=1e-7) for name, run in runs.items()]
