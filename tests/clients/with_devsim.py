"""DEVSIM: diodes in one and two dimensions, by its UMFPACK and by finelu, through the same callback."""

# ruff: noqa: E402  (DEVSIM reads where its BLAS is when it is imported)
from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import devsim_openblas

devsim_openblas.configure()  # before DEVSIM is imported
import devsim
import numpy as np
from devsim.python_packages.simple_physics import GetContactBiasName
from devsim.umfpack.umfshim import local_solver_callback
from harness import CLOCK, Example

from finelu.interop.devsim import solver_callback

sys.path.append(str(Path(sys.prefix, "devsim_data", "examples", "diode")))
import diode_common

BIASES = (0.1, 0.2, 0.3, 0.4, 0.5)


def timed(callback: Any) -> Any:
    def call(**given: Any) -> Any:
        with CLOCK.running(np.empty((len(given.get("b", ())), 0))):
            return callback(**given)

    return call


def diode(callback: Any, make: Any) -> Any:
    """The potential and the carriers at the last bias, and the currents at each."""
    devsim.set_parameter(name="direct_solver", value="custom")
    devsim.set_parameter(name="solver_callback", value=timed(callback))
    named = {"device": "diode", "region": "silicon"}
    make(**named)
    diode_common.SetParameters(**named)
    diode_common.SetNetDoping(**named)
    diode_common.InitialSolution(*named.values())
    devsim.solve(type="dc", absolute_error=1.0, relative_error=1e-12, maximum_iterations=30)
    diode_common.DriftDiffusionInitialSolution(*named.values())
    currents = []
    for bias in (0.0, *BIASES):
        devsim.set_parameter(device="diode", name=GetContactBiasName("top"), value=bias)
        devsim.solve(type="dc", absolute_error=1e10, relative_error=1e-10, maximum_iterations=40)
        currents.append(
            devsim.get_contact_current(device="diode", contact="top", equation="ElectronContinuityEquation")
        )
    found = [np.array(devsim.get_node_model_values(**named, name=name)) for name in ("Potential", "Electrons", "Holes")]
    devsim.delete_device(device="diode")
    devsim.delete_mesh(mesh="dio")
    return [*found, np.array(currents[-2:])]


def examples() -> list[Example]:
    makers = {"diode, 1D": diode_common.CreateMesh, "diode, 2D": diode_common.Create2DMesh}
    return [
        Example(
            name, partial(diode, local_solver_callback, make), partial(diode, solver_callback, make), tolerance=1e-6
        )
        for name, make in makers.items()
    ]
