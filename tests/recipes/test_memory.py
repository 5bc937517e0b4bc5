"""The peak memory of a set-up on the CPU, in bytes for each entry of A, as NumPy's arrays are asked for."""

import tracemalloc

import pytest

from finelu import ICT, ParICT, ParILUT, gallery

A = gallery.poisson7(20)
CANDIDATES = 12 * A.nnz  # room for one an entry, which is enough: by default 8 are asked for, and only touched if used


@pytest.mark.parametrize(
    ("recipe", "most"),
    [
        (ParILUT(memory_limit=CANDIDATES), 110),  # once 286
        (ParILUT(memory_limit=CANDIDATES, sweep="synchronous"), 120),  # 290
        (ParICT(memory_limit=CANDIDATES), 90),  # 245
        (ICT(nnz=A.nnz), 60),  # 64, and what the kernel makes of its own
    ],
    ids=str,
)
def test_a_set_up_lets_go_what_it_does_not_need_any_more(threads, recipe, most):
    threads(1)  # each has arrays of its own
    recipe.factor(A)  # compiles
    tracemalloc.start()
    try:
        recipe.factor(A)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most * A.nnz
