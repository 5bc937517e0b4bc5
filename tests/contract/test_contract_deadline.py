"""The set-up of every recipe looks at the limit of time."""

import math

import numpy as np
import pytest
from contract_cases import EVERY_RECIPE, made

from finelu import deadline, gallery
from finelu.errors import OutOfTime

FAR = 1e6  # s


@EVERY_RECIPE
def test_wherever_the_time_is_over_a_set_up_raises_out_of_time_and_the_next_has_the_same_bits(backend, name, looks):
    A, b = backend.move(gallery.poisson5(8, 6)), backend.move(np.linspace(1, 2, 48))
    recipe = made(name)
    want = backend.fetch(recipe.factor(A).solve(b))
    count = looks(math.inf)
    with deadline.limited(deadline.now() + FAR):
        recipe.factor(A)
    assert count[0] >= 1
    for k in range(1, count[0] + 1):
        looks(k)
        with deadline.limited(deadline.now() + FAR), pytest.raises(OutOfTime):
            recipe.factor(A)
    if name not in ("parilu", "parilut") or backend.name == "cpu":
        np.testing.assert_array_equal(backend.fetch(recipe.factor(A).solve(b)), want)
