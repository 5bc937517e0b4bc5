"""sfepy: its own examples, by its SuperLU and by finelu's solver."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import sfepy
from harness import CLOCK, Example
from sfepy.applications import solve_pde
from sfepy.base.base import Struct, output
from sfepy.base.conf import ProblemConf, get_standard_keywords
from sfepy.solvers.ls import ScipyDirect

from finelu.interop.sfepy import Solver

FOLDER = Path(sfepy.__file__).parent / "examples"
EXAMPLES = (
    "acoustics/acoustics",
    "diffusion/sinbc",
    "diffusion/time_poisson",
    "large_deformation/balloon",
    "linear_elasticity/linear_elastic_up",
    "linear_elasticity/two_bodies_contact",
    "multi_physics/biot",
    "multi_physics/piezo_elasticity",
    "navier_stokes/navier_stokes2d",
    "navier_stokes/stokes",
)


def timed(call: Any) -> Any:
    def solve(self: Any, rhs: Any, **given: Any) -> Any:
        with CLOCK.running(np.empty((rhs.size, 0))):
            return call(self, rhs, **given)

    return solve


ScipyDirect.__call__ = timed(ScipyDirect.__call__)  # finelu's solver inherits it


def example(name: str, kind: str) -> Any:
    """The last state of an example, with this kind of linear solver."""
    output.set_output(quiet=True)
    conf = ProblemConf.from_file(str(FOLDER / f"{name}.py"), *get_standard_keywords())
    for solver in conf.solvers.values():
        if solver.kind.startswith("ls."):
            solver.kind = kind
    with tempfile.TemporaryDirectory() as folder:
        options = Struct(output_filename_trunk=None, solve_not=False, save_ebc=False, save_ebc_nodes=False,
                         save_regions=False, save_regions_as_groups=False, save_field_meshes=False)  # fmt: skip
        conf.options.output_dir = folder
        _, state = solve_pde(conf, options=options)
    return np.array(state())


def examples() -> list[Example]:
    return [
        Example(name, partial(example, name, "ls.scipy_superlu"), partial(example, name, Solver.name))
        for name in EXAMPLES
    ]
