"""Parameters that have no meaning: one clear error each, for every recipe."""

from dataclasses import fields

import numpy as np
import pytest
from checks import one_line

from finelu import ParameterError, gallery
from finelu.preconditioners import RECIPES

NOTHING = [float("nan"), -1, -0.5, "x", [1], np.array([1.0, 2.0]), 10**400, 1j]  # no parameter of any recipe is such
NUMBERS = [(name, f.name) for name, kind in RECIPES.items() for f in fields(kind) if f.type in ("int", "float")]


@pytest.mark.parametrize("value", NOTHING, ids=lambda value: str(value)[:8])
@pytest.mark.parametrize("name", RECIPES)
def test_what_no_parameter_can_be(name, value):
    A = gallery.poisson5(6, 5)
    sized = {"block_size": 2} if name == "block_ilu0" else {}
    for f in fields(RECIPES[name]):
        with pytest.raises(ParameterError) as error:
            RECIPES[name](**{**sized, f.name: value}).factor(A)
        one_line(error)


@pytest.mark.parametrize(("name", "parameter"), NUMBERS)
def test_a_number_is_neither_a_truth_nor_nothing(name, parameter):
    sized = {"block_size": 2} if name == "block_ilu0" else {}
    for value in (True, None):
        with pytest.raises(ParameterError, match=parameter):
            RECIPES[name](**{**sized, parameter: value}).factor(gallery.poisson5(6, 5))
