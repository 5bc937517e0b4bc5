"""felupe: hyperelasticity by Newton's method."""

from __future__ import annotations

from functools import partial
from typing import Any

import felupe
import scipy.sparse.linalg
from harness import Example, watch

import finelu


def block(solver: Any, points: int, mixed: bool) -> Any:
    """A cube of rubber, pulled. mixed : displacement, pressure and volume as unknowns."""
    region = felupe.RegionHexahedron(felupe.Cube(n=points))
    field = felupe.FieldsMixed(region, n=3) if mixed else felupe.FieldContainer([felupe.Field(region, dim=3)])
    loadcase = felupe.dof.uniaxial(field, clamped=True, move=0.2)[1]
    law = felupe.NeoHooke(mu=1.0, bulk=5000.0 if mixed else 5.0)
    body = felupe.SolidBody(felupe.ThreeFieldVariation(law) if mixed else law, field)
    felupe.newtonrhapson(items=[body], **loadcase, solver=watch(solver), verbose=0, tol=1e-9)
    return [part.values.copy() for part in field.fields]


def examples() -> list[Example]:
    runs = {
        "Neo-Hooke, small": partial(block, points=5, mixed=False),
        "Neo-Hooke": partial(block, points=13, mixed=False),
        "three fields": partial(block, points=9, mixed=True),
    }
    return [
        Example(name, partial(run, scipy.sparse.linalg.spsolve), partial(run, finelu.spsolve))
        for name, run in runs.items()
    ]
