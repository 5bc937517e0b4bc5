"""Parameters that have no meaning: one clear error each, for every recipe."""

from dataclasses import fields
from decimal import Decimal

import numpy as np
import pytest
from checks import one_line, refused

from finelu import ParameterError, Sweeps, gallery
from finelu.preconditioners import RECIPES
from finelu.validation import choice, count, flag, number

NOTHING = [float("nan"), -1, -0.5, "x", [1], np.array([1.0, 2.0]), 10**400, 1j]  # no parameter of any recipe is such
CALLED = {  # names where they are checked
    "triangular": "method",
    "triangular_sweeps": "sweeps",
    **dict.fromkeys(("local", "pressure", "whole"), "recipe"),
}
INF = float("inf")


BEYOND = [  # recipes, parameters that each by itself might have, and the text of the error
    (
        ("ilu0", "ic0", "ilut", "parilu", "multilevel", "block_jacobi", "sparse_lu"),
        {"shift": INF},
        "shift must be a fin",
    ),
    (("ilu0", "ic0", "milu0", "iluk", "ilut", "ict"), {"sweeps": 3}, "sweeps"),
    (("ilu0", "ic0", "milu0", "iluk", "ilut", "ict"), {"triangular": "jacobi", "sweeps": 0}, "sweeps"),
    (("ilu0", "ict"), {"triangular": "isai", "sweeps": -1}, "sweeps"),
    (("parilu", "paric", "parilut"), {"triangular": "jacobi", "triangular_sweeps": 0}, "sweeps"),
    (("milu0",), {"relax": 1.1}, "relax"),
    (("iluk",), {"level": 1.5}, "level"),
    (("ilut", "ict"), {"drop_tol": INF}, "drop_tol"),
    (("ilut", "ict"), {"fill": 0}, "fill"),
    (("ilut", "ict"), {"nnz": 29}, "nnz must be an integer >= 30"),
    (("ilut", "ict"), {"nnz": 1e3}, "nnz"),
    (("parilu", "paric"), {"sweeps": 2.0}, "sweeps"),
    (("parilu", "paric"), {"damping": 0.0}, "damping"),
    (("parilu", "paric"), {"damping": 1.5}, "damping"),
    (("parilu", "paric"), {"asynchronous": 1}, "asynchronous"),
    (("parilu", "paric"), {"track": None}, "track"),
    (("parilu", "paric"), {"asynchronous": True, "track": True}, "track"),
    (("parilu", "paric"), {"asynchronous": True, "damping": 0.5}, "damping"),
    (("parilu", "paric"), {"asynchronous": True, "pivots": "new"}, "pivots"),
    (("parilut", "parict"), {"fill": 0.0}, "fill must be a number > 0 and <= 1e"),
    (("parilut", "parict"), {"fill": 2.0, "nnz": 40}, "fill and nnz say the same"),
    (("parilut", "parict"), {"nnz": 29}, "nnz must be an integer >= 30"),
    (("parilut", "parict"), {"sweeps": Sweeps()}, "sweeps has no effect on exact values"),
    (("parilut", "parict"), {"sweep": "synchronous", "sweeps": 3}, "sweeps must be finelu.Sweeps"),
    (("parilut", "parict"), {"memory_limit": 0}, "memory_limit must be an integer >= 1"),
    (("parilut", "parict"), {"memory_limit": 1e9}, "memory_limit must be an integer >= 1"),
    (("multilevel",), {"condest": 0.5}, "condest must be a number >= 1"),
    (("multilevel",), {"parts": 0}, "parts must be an integer >= 1"),
    (("multilevel",), {"levels": 0}, "levels must be an integer >= 1"),
    (("multilevel",), {"symmetric": 0}, "symmetric .*must be True, False or None"),
    (("block_jacobi",), {"block_size": 0}, "block_size"),
    (("sparse_lu",), {"matching": 2}, "matching"),
]
SWEPT = [  # the same of `Sweeps`
    ({"progressive": 1}, "progressive must be True or False"),
    ({"add_fraction": 0.0}, "add_fraction must be a number > 0 and <= 1"),
    ({"add_fraction": 1.1}, "add_fraction must be a number > 0 and <= 1"),
    ({"initial": "zero"}, "initial must be one of residual, scaled"),
    ({"select": "some"}, "select must be one of approximate, exact"),
    ({"update": -1}, "update must be an integer >= 0"),
    ({"stagnation": 2}, "stagnation must be a number from 0 to 1"),
]
# What is compared with A, or checked by the triangular solver of its device, is refused by `factor` only.
OF_A = ("nnz", "triangular", "triangular_sweeps")
MADE = [
    (name, options, text)
    for names, options, text in BEYOND
    for name in names
    if not any(one in options for one in OF_A)
    and ("sweeps" not in options or hasattr(RECIPES[name], "triangular_sweeps"))
]
NUMBERS = [(name, f.name) for name, kind in RECIPES.items() for f in fields(kind) if f.type in ("int", "float")]


@pytest.mark.parametrize("value", NOTHING, ids=lambda value: str(value)[:8])
@pytest.mark.parametrize("name", RECIPES)
def test_what_no_parameter_can_be(name, value):
    A = gallery.poisson5(6, 5)
    sized = {"block_size": 2} if name in ("block_ilu0", "cpr") else {}
    for f in fields(RECIPES[name]):
        with pytest.raises(ParameterError) as error:
            RECIPES[name](**{**sized, f.name: value}).factor(A)
        text = one_line(error)
        assert f.name in text or CALLED.get(f.name, f.name) in text


@pytest.mark.parametrize(("name", "parameter"), NUMBERS)
def test_a_number_is_neither_a_truth_nor_nothing(name, parameter):
    sized = {"block_size": 2} if name in ("block_ilu0", "cpr") else {}
    for value in (True, None):
        with pytest.raises(ParameterError, match=parameter):
            RECIPES[name](**{**sized, parameter: value}).factor(gallery.poisson5(6, 5))


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [(name, options, text) for names, options, text in BEYOND for name in names],
    ids=lambda value: str(value) if not isinstance(value, str) or value in RECIPES else "",
)
def test_numbers_and_pairs_of_parameters_that_have_no_meaning(name, options, text):
    with pytest.raises(ParameterError, match=text) as error:
        RECIPES[name](**options).factor(gallery.poisson5(6, 5))
    assert "sweeps=" in one_line(error) or str(error.value).startswith(f"{RECIPES[name].__name__}(")


@pytest.mark.parametrize(("options", "text"), SWEPT, ids=str)
def test_options_of_sweeps_that_have_no_meaning(options, text):
    with pytest.raises(ParameterError, match=text) as error:
        Sweeps(**options)
    assert one_line(error).startswith("Sweeps(")


@pytest.mark.parametrize(("name", "options", "text"), MADE, ids=str)
def test_what_does_not_depend_on_a_is_refused_when_a_recipe_is_made(name, options, text):
    with pytest.raises(ParameterError, match=text):
        RECIPES[name](**options)


@pytest.mark.parametrize("name", [name for name, kind in RECIPES.items() if "shift" in kind.__dataclass_fields__])
@pytest.mark.parametrize("shift", [np.float32(1e-3), np.float64(1e-3), np.int32(0), np.float16(0.5)], ids=repr)
def test_numbers_of_numpy_are_numbers(name, shift):
    sized = {"block_size": 2} if name in ("block_ilu0", "cpr") else {}
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
        with refused(ParameterError, match=text):
            check()
