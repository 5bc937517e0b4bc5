"""The test suites of SciPy and PyAMG pass with finelu's functions instead of theirs, except where a reason is known."""

import pytest
from client_suites import SUITES, run

NORMS = "the norms are those of b - A x, SciPy's are those of M (b - A x)"
ZERO = "x is exact up to 3e-31, where the test compares with 0 exactly"
MEANING = "without callback_type, maxiter counts iterations, and callback is called with x"
FAIL = {
    "scipy-iterative": {
        "test_iterative::TestGMRES::test_basic": MEANING,
        "test_iterative::TestGMRES::test_callback_type": MEANING,
        "test_iterative::TestGMRES::test_callback": f"{MEANING}; {NORMS}",
        "test_iterative::TestGMRES::test_defective_precond_breakdown": ZERO,
    },
    "scipy-iterative-installed": {
        "test_iterative::TestGMRES::test_callback": NORMS,
        "test_iterative::TestGMRES::test_defective_precond_breakdown": ZERO,
    },
    "scipy-least-squares-installed": {},
    "pyamg-krylov": {"test_krylov::TestStoppingCriteria::test_stoppingcriteria": "criteria='MrMr' is refused"},
}
LEAST = {  # tests that pass
    "scipy-iterative": 376,
    "scipy-iterative-installed": 378,
    "scipy-least-squares-installed": 20,
    "pyamg-krylov": 14,
}


@pytest.mark.parametrize("name", FAIL)
def test_the_suite_passes_but_for_what_is_known(name):
    if why := SUITES[name].missing():
        pytest.skip(why)
    outcome = run(SUITES[name])
    assert outcome.failed.keys() == FAIL[name].keys(), outcome.failed
    assert len(outcome.passed) >= LEAST[name]
