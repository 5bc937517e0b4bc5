"""solve(A, B): complete factors for the columns that are left once they are expected to take less time for all."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import values

from finelu import as_csr, gallery, solve
from finelu.auto import columns as of_columns
from finelu.auto import cost, ladder
from finelu.errors import ZeroPivot
from finelu.krylov.criterion import Criterion
from finelu.preconditioners import SparseLU

POISSON = gallery.poisson5(34, 33)
N, K = POISSON.shape[0], 12


@pytest.fixture
def expected(meanwhile, everywhere):
    """expected(seconds): what complete factors take; counting their fill takes no time, and they do not come first."""

    def of_direct(seconds):
        everywhere("asks_first", lambda *_: False)
        everywhere("worth", lambda *_: False)
        meanwhile(cost.Costs, seconds=lambda self, rung: seconds if rung == "direct" else 1e9, counting=lambda self: 0)

    return of_direct


def iterations_of_all(k):
    """The expected seconds of the iterations of k columns together, each with as many as the first takes."""
    made = ladder.Ladder(as_csr(POISSON), 1e-8)
    found = made.solve(values(N, "float64"))
    return found.iterations * of_columns._of_iteration(made, "cheap", found.method, k), found


def recipes(solution):
    return [[attempt.recipe for attempt in column.attempts] for column in solution.columns]


@pytest.mark.parametrize(("part", "taken"), [(0.9, True), (1.1, False)])
def test_complete_factors_come_once_they_take_less_time_for_all_columns(expected, part, taken):
    k = K - 1
    most, found = iterations_of_all(k)
    expected(part * most / (1 + of_columns.OF_A_SOLVE * k))
    B = np.tile(values(N, "float64")[:, None], K) * np.arange(1, K + 1)
    solution = solve(POISSON, B)
    others = "SparseLU()" if taken else found.recipe
    assert solution.all_converged and recipes(solution) == [[found.recipe], *[[others]] * k]
    residuals = np.linalg.norm(B - POISSON @ solution.x, axis=0) / np.linalg.norm(B, axis=0)
    assert residuals.max() <= 1.0001e-8
    why = "it is expected to take less time for 11 columns"
    assert (solution[1].attempts[0].why == why) is taken
    if taken:  # made once, and a column then takes a step of refinement
        assert [c.attempts[0].setup_seconds > 0 for c in solution.columns[1:]] == [True, *[False] * (k - 1)]
        assert why in solution[1].explain() and all(c.method == "refinement" for c in solution.columns[1:])


def test_the_cost_of_columns_together_grows_with_them_and_their_iterations():
    one, *few, eight, many, most = (iterations_of_all(k)[0] for k in (1, 2, 7, 8, 16, 64))
    assert few == pytest.approx([2 * one, 7 * one])  # fewer than FEWEST are solved one after the other
    assert few[0] < eight < 8 * one and eight < many < 2 * eight and most < 8 * eight


@pytest.mark.parametrize("how", ["callback", "maxiter", "recipe", "memory_limit"])
def test_complete_factors_do_not_come_where_columns_do_not_iterate_by_themselves(expected, how):
    expected(0.0)
    limits = {"callback": lambda x: None, "maxiter": 1000, "recipe": "milu0", "memory_limit": 200_000}
    solution = solve(POISSON, values((N, 3), "float64"), **{how: limits[how]})
    assert solution.all_converged and {a.recipe for a in solution.attempts} == {"MILU0()"}


def test_columns_go_on_with_the_factors_that_they_have_if_there_are_no_complete_ones(expected, meanwhile):
    def fails(*_, **__):
        raise ZeroPivot(SparseLU(), 3, 0.0)

    expected(0.0)
    meanwhile(ladder, SparseLUFactors=fails)
    solution = solve(POISSON, values((N, 3), "float64"))
    assert solution.all_converged
    assert recipes(solution)[0] == recipes(solution)[2] == ["MILU0()"]
    assert recipes(solution)[1] == ["SparseLU()", "MILU0()"]
    assert "no factors" in solution[1].attempts[0].outcome


@pytest.mark.parametrize("recipe", ["ic0", "sparse_lu"])
def test_the_sums_of_rows_are_formed_once_for_all_columns(monkeypatch, recipe):
    sizes = np.where(np.arange(N) < N // 2, 1e3, 1.0)
    A, B, calls, sums = sp.diags(sizes) @ POISSON @ sp.diags(sizes), values((N, 9), "float64"), [], Criterion._sums

    def counted(criterion):
        calls.append(criterion)
        return sums(criterion)

    monkeypatch.setattr(Criterion, "_sums", counted)
    solution = solve(A, B, recipe=recipe)
    of_ladder = [criterion for criterion in calls if criterion._row_sums is calls[0]._row_sums]
    assert len(of_ladder) == 1 and solution.all_converged and solution[0].row_residual <= 1e-8
    rows = np.asarray(abs(A).sum(axis=1))
    residuals = np.linalg.norm((B - A @ solution.x) / rows, axis=0) / np.linalg.norm(B / rows, axis=0)
    assert residuals.max() <= 1.0001e-8  # the test by rows, of each column
