"""The way of a call runs downwards: how many functions of finelu one solve enters, and how often it checks."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import finelu as fl

MOST_FUNCTIONS, MOST_FILES = 196, 30  # files outside of kernels/
PACKAGE = Path(fl.__file__).parent


@pytest.fixture
def entered(patient, threads):
    """(file, function) -> calls, of one warm solve of poisson7:16 by one thread, so that it does not matter which way
    helpers are called by then; jitted code and comprehensions do not count."""
    fl.set_num_threads(1)
    A = fl.gallery.poisson7(16)
    b = np.random.default_rng(0).standard_normal(A.shape[0])
    fl.solve(A, b)
    calls = Counter()

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE) and not frame.f_code.co_name.startswith("<"):
            calls[str(path.relative_to(PACKAGE)), frame.f_code.co_name] += 1

    before = sys.gettrace()
    sys.settrace(note)
    try:
        solution = fl.solve(A, b)
    finally:
        sys.settrace(before)
    assert solution.converged and solution.method == "cg" and solution.recipe == "MILU0()"
    return calls


def test_a_solve_enters_few_functions(entered):
    assert len(entered) <= MOST_FUNCTIONS
    assert len({file for file, _ in entered if not file.startswith("kernels")}) <= MOST_FILES


def test_what_has_been_checked_is_trusted(entered):
    called = Counter()
    for (_, name), times in entered.items():
        called[name] += times
    assert called["check_vector"] == 1 and called["traits"] == 1 and called["free_memory"] == 0
    assert called["_inspect"] == 1  # as_csr tests the arrays once, even if called again with the result
