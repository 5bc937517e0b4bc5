"""The way of a call runs downwards: how many functions of finelu one call enters, and how often it checks."""

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import finelu as fl

# functions, and files outside of kernels/
MOST = {"solve": (202, 39), "small solve": (131, 32), "cg": (86, 19), "M @ r": (11, 6), "factor": (83, 17)}
PACKAGE = Path(fl.__file__).parent


@pytest.fixture
def entered(patient, threads):
    """entered(what): (file, function) -> calls, of one warm call for poisson7:16 by one thread, so that it does not
    matter which way helpers are called by then; jitted code and comprehensions do not count.
    "small solve" and "factor" are of 36 rows."""
    fl.set_num_threads(1)
    A = fl.gallery.poisson7(16)
    b, M = np.random.default_rng(0).standard_normal(A.shape[0]), fl.IC0().factor(A)
    B, c = fl.gallery.poisson5(6), np.ones(36)
    calls = {
        "solve": lambda: fl.solve(A, b),
        "small solve": lambda: fl.solve(B, c),
        "cg": lambda: fl.cg(A, b, M=M),
        "M @ r": lambda: M @ b,
        "factor": lambda: fl.SparseLU().factor(B),
    }

    def counted(what):
        found, before = Counter(), sys.gettrace()

        def note(frame, event, _):
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(PACKAGE) and not frame.f_code.co_name.startswith("<"):
                found[str(path.relative_to(PACKAGE)), frame.f_code.co_name] += 1

        for _ in range(3):  # the plans of solves, too, have been chosen by then
            calls[what]()
        sys.settrace(note)
        try:
            solution = calls[what]()
        finally:
            sys.settrace(before)
        if what == "small solve":
            assert solution.converged and solution.recipe == "SparseLU()"
        if what == "solve":
            assert solution.converged and solution.method == "cg" and solution.recipe == "MILU0()"
        return found

    return counted


@pytest.mark.parametrize("what", MOST)
def test_a_call_enters_few_functions(entered, what):
    found, (functions, files) = entered(what), MOST[what]
    assert len(found) <= functions, sorted(found)
    assert len({file for file, _ in found if not file.startswith("kernels")}) <= files


def test_what_has_been_checked_is_trusted(entered):
    called = Counter()
    for (_, name), times in entered("solve").items():
        called[name] += times
    assert called["check_vector"] == 1 and called["traits"] == 1 and called["free_memory"] == 0
    assert called["_inspect"] == 1  # as_csr tests the arrays once, even if called again with the result
