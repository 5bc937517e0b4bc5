"""OpenSeesPy: steel frames that yield under load, by its own sparse system and by finelu."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import openseespy.opensees as ops
from harness import CLOCK, Example

from finelu.interop.opensees import Solver

STEPS = ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (1, 0, 1), (0, 1, 1), (1, -1, 0), (1, 0, -1), (0, 1, -1))


def frame(side: int, *system: Any) -> Any:
    """The displacements of `side` cells of trusses in each direction, after five steps of load, by Newton's method.

    system : the arguments of OpenSees' `system`. OpenSees times no solves, so the whole analysis is timed.
    """
    ops.wipe()
    ops.model("basic", "-ndm", 3, "-ndf", 3)
    numbers = np.arange((side + 1) ** 3).reshape((side + 1,) * 3)
    rng = np.random.default_rng(0)
    for place in np.ndindex(numbers.shape):
        ops.node(int(numbers[place]), *(np.array(place) + rng.uniform(-0.1, 0.1, 3)).tolist())
        if place[2] == 0:
            ops.fix(int(numbers[place]), 1, 1, 1)
    ops.uniaxialMaterial("Steel02", 1, 20.0, 3000.0, 0.05, 18.0, 0.925, 0.15)
    count = 0
    for step in STEPS:
        for place in np.ndindex(numbers.shape):
            other = tuple(np.add(place, step))
            if min(other) >= 0 and max(other) <= side:
                count += 1
                ops.element("truss", count, int(numbers[place]), int(numbers[other]), 1.0, 1)
    ops.timeSeries("Linear", 1)
    ops.pattern("Plain", 1, 1)
    for node in numbers[:, :, -1].ravel():
        ops.load(int(node), 1.0, 0.5, -1.0)
    ops.system(*system)
    ops.numberer("RCM")
    ops.constraints("Plain")
    ops.integrator("LoadControl", 2.0)
    ops.algorithm("Newton")
    ops.test("NormUnbalance", 1e-8, 20)
    ops.analysis("Static")
    with CLOCK.running(np.empty((numbers[:, :, 1:].size * 3, 0))):
        ended = ops.analyze(5)
    if ended:
        raise ArithmeticError(f"the analysis ended with {ended}")
    return np.array([ops.nodeDisp(int(node)) for node in numbers.ravel()])


def by_finelu(side: int) -> Any:
    return frame(side, "PythonSparse", {"solver": Solver(), "scheme": "CSR"})


def examples() -> list[Example]:
    return [
        Example(f"steel frame, {side} cells a side", partial(frame, side, "UmfPack"), partial(by_finelu, side))
        for side in (5, 9)
    ]
