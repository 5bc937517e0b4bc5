"""Parameters that have no meaning: one clear error each, for every recipe."""

from dataclasses import fields
from decimal import Decimal

import numpy as np
import pytest
from checks import one_line

from finelu import ParameterError, gallery
from finelu.preconditioners import RECIPES
from finelu.validation import choice, count, flag, number

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


@pytest.mark.parametrize("name", [name for name, kind in RECIPES.items() if "shift" in kind.__dataclass_fields__])
@pytest.mark.parametrize("shift", [np.float32(1e-3), np.float64(1e-3), np.int32(0), np.float16(0.5)], ids=repr)
def test_numbers_of_numpy_are_numbers(name, shift):
    sized = {"block_size": 2} if name == "block_ilu0" else {}
    RECIPES[name](**sized, shift=shift).factor(gallery.poisson5(6, 5))


@pytest.mark.parametrize("value", [True, np.True_, None, "1", 1j, float("nan"), -1])
def test_what_is_no_number(value):
    for check in (
        lambda: number("x", value),
        lambda: number("x", value, of="R()"),
        lambda: count("x", value, of="R()"),
    ):
        with pytest.raises(ParameterError, match="x"):
            check()


def test_numbers_integers_choices_and_truths():
    assert number("x", np.float32(0.5)) == number("x", Decimal("0.5")) == number("x", np.array(0.5)) == 0.5
    assert count("x", np.int8(3), 1, 3) == 3 and type(count("x", np.int8(3))) is int
    assert number("x", float("inf"), infinite=True, of="R()") == float("inf")
    choice("x", None, (None, "rcm"), of="R()")
    flag("x", np.True_, of="R()")
    for check, text in (
        (lambda: number("x", Decimal("0.5"), of="R()"), "R.*: x must be a finite number >= 0"),
        (lambda: number("x", 2, 0, 1, of="R()"), "x must be a number from 0 to 1"),
        (lambda: number("x", 0, 0, 1, open_low=True, of="R()"), "x must be a number > 0 and <= 1"),
        (lambda: number("x", float("inf")), "x=inf; a finite number, zero or larger, is needed"),
        (lambda: count("x", 4, 1, 3), "x=4; an integer from 1 to 3 is needed"),
        (lambda: count("x", 0, 1), "x=0; at least 1 is needed"),
        (lambda: count("x", 2.0), "x=2.0; an integer is needed"),
        (lambda: choice("x", "rmc", (None, "rcm", "mmd", "amd")), "x='rmc'; one of None, .* Did you mean 'rcm'"),
        (lambda: flag("x", 1, optional=True, of="R()"), "x must be True, False or None"),
    ):
        with pytest.raises(ParameterError, match=text) as error:
            check()
        one_line(error)
