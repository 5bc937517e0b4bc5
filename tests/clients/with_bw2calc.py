"""bw2calc: a life cycle assessment of a made-up economy, with one demand and with many."""

from __future__ import annotations

from typing import Any

import bw2calc
import bw_processing
import numpy as np
from harness import Example

ACTIVITIES, INPUTS = 3000, 8  # inputs of an activity from others
DEMANDS = 20


def economy() -> Any:
    rng = np.random.default_rng(0)
    takers = np.repeat(np.arange(ACTIVITIES), INPUTS)
    makers = rng.integers(0, ACTIVITIES, takers.size)
    key = np.unique(np.column_stack([makers, takers])[makers != takers], axis=0)
    own = np.column_stack([np.arange(ACTIVITIES)] * 2)
    places, is_input = np.vstack([own, key]), np.repeat([False, True], [len(own), len(key)])
    amounts = np.where(is_input, rng.uniform(0, 1.5 / INPUTS, len(places)), 1.0)
    package = bw_processing.create_datapackage()

    def add(matrix: str, pairs: Any, data: Any, **options: Any) -> None:
        indices = np.array([tuple(pair) for pair in pairs], dtype=bw_processing.INDICES_DTYPE)
        package.add_persistent_vector(matrix=matrix, indices_array=indices, data_array=data, **options)

    add("technosphere_matrix", places, amounts, flip_array=is_input)
    add("biosphere_matrix", np.column_stack([np.full(ACTIVITIES, 90_001), np.arange(ACTIVITIES)]),
        rng.uniform(size=ACTIVITIES))  # fmt: skip
    add("characterization_matrix", [(90_001, 90_001)], np.array([2.0]))
    return package


def assessment(package: Any) -> Any:
    lca = bw2calc.LCA({0: 1.0}, data_objs=[package])
    lca.lci()
    lca.lcia()
    return lca.score, lca.supply_array


def assessments(package: Any) -> Any:
    """Factored once, for several demands."""
    lca = bw2calc.LCA({0: 1.0}, data_objs=[package])
    lca.lci(factorize=True)
    lca.lcia()
    scores = []
    for activity in range(DEMANDS):
        lca.lcia(demand={activity: 1.0})
        scores.append(lca.score)
    return np.array(scores)


def examples() -> list[Example]:
    package = economy()
    return [
        Example("one demand", lambda: assessment(package), modules=("bw2calc",)),
        Example(f"{DEMANDS} demands", lambda: assessments(package), modules=("bw2calc",)),
    ]
