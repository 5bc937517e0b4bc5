"""solve: the answer is right or not claimed, the ladder falls back and changes, limits hold, explain tells it all."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from checks import EMBEDDED, ON_GPU, PATTERNS, one_line, values
from hypothesis import given
from hypothesis import strategies as st

import finelu
from finelu import (
    IC0,
    ICT,
    ILU0,
    ILUK,
    ILUT,
    MILU0,
    Jacobi,
    MultilevelILU,
    ParILUT,
    SparseLU,
    device,
    gallery,
    krylov,
    scaling,
    solve,
)
from finelu.auto import choose, cost, ladder, monitor
from finelu.compiling import now
from finelu.errors import DeviceError, MatrixError, OutOfTime, ParameterError, ZeroPivot
from finelu.factors import LUFactors
from finelu.kernels.cpu import columns as cpu_columns
from finelu.krylov import rows
from finelu.matrix.traits import traits
from finelu.ordering import with_little_fill
from finelu.preconditioners.direct import superlu
from finelu.recent import RECENT
from finelu.result import Status

POISSON = gallery.poisson5(34, 33)  # 5476 entries: the direct solve does not come first
N = POISSON.shape[0]


worth = monitor.worth
pytestmark = pytest.mark.usefixtures("patient")


@pytest.fixture
def costs(everywhere, meanwhile):
    """costs(rung=seconds, ...): what the rungs are expected to take, others 1e9 s; the analysis of the direct one. It
    does not come first."""

    def expected(analysis=1e-15, **seconds):
        everywhere("worth", worth)
        everywhere("asks_first", lambda *_: False)
        meanwhile(cost.Costs, seconds=lambda self, rung: seconds.get(rung, 1e9))
        meanwhile(cost, RATES=replace(cost.RATES, analysis_row=analysis / N, analysis=0.0))
        meanwhile(cost.Costs, of_library=lambda *_, **__: 0.0)

    return expected


@pytest.fixture
def no_factors(meanwhile):
    """no_factors(recipes): each of them finds a zero pivot."""

    def broken(*recipes):
        for recipe in recipes:
            meanwhile(recipe, factor=failing())
        if SparseLU in recipes:
            meanwhile(ladder, SparseLUFactors=lambda *_, **__: failing()(SparseLU(), None))

    return broken


def missing_diagonal():
    """Indefinite, no diagonal entry in half of the rows."""
    K = gallery.stokes(12)
    pin = sp.diags(np.concatenate([np.zeros(K.shape[0] - 1), [1.0]]))  # of the pressure
    return sp.csr_matrix(K + pin)


def hermitian():
    D = sp.diags(np.exp(1j * np.arange(N)))
    return sp.csr_matrix(D @ POISSON @ D.conj())


PROBLEMS = {
    "SPD, an M-matrix": POISSON,
    "SPD, other signs": sp.csr_matrix(abs(POISSON) + 0.1 * sp.identity(N)),
    "negative definite": -POISSON,
    "convection": gallery.convection_diffusion(25, 24, 1, peclet=50.0),
    "triangular": sp.csr_matrix(sp.tril(POISSON)),
    "indefinite": sp.csr_matrix(POISSON - 1.03 * sp.identity(N)),
    "no diagonal": missing_diagonal(),
    "zero diagonal stored": gallery.kkt(80, 20, store_zeros=True),
    "complex Hermitian": hermitian(),
    "complex symmetric": sp.csr_matrix(POISSON + (0.3j - 1.0) * sp.identity(N)),
    "complex general": sp.csr_matrix(hermitian() + 0.5j * sp.eye(N, k=3)),
    "diagonal": sp.diags(np.linspace(1, 9, N)),
    "n = 1": np.array([[2.0]]),
    "integers, dense": np.array([[4, 1, 0], [1, 3, 1], [0, 1, 2]]),
    "badly scaled": sp.csr_matrix(sp.diags(10.0 ** np.linspace(-2, 2, N)) @ POISSON),
}


def matrix(A):
    return sp.csr_matrix(A) if not sp.issparse(A) else A


def residual(A, b, x):
    return np.linalg.norm(b - matrix(A) @ x) / np.linalg.norm(b)


def assert_solved(A, b, solution, rtol=1e-8):
    assert solution.converged, solution.explain()
    assert residual(A, b, solution.x) <= 1.0001 * rtol
    assert solution.residual_norm == pytest.approx(np.linalg.norm(b - matrix(A) @ solution.x), rel=0.1, abs=1e-12)


def failing():
    """A recipe's `factor` that always fails."""

    def factor(self, A):
        raise ZeroPivot(self, 3, 0.0)

    return factor


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_residual_is_small(name):
    A = PROBLEMS[name]
    b = values(A.shape[0], "complex128" if A.dtype.kind == "c" else "float64")
    solution = solve(A, b)
    assert_solved(A, b, solution)
    assert solution.x.shape == b.shape and solution.x.dtype == b.dtype and solution.info == 0


def test_unsorted_rows_and_read_only_arrays():
    A = POISSON.copy()
    for i in range(N):
        row = slice(A.indptr[i], A.indptr[i + 1])
        A.indices[row], A.data[row] = A.indices[row][::-1].copy(), A.data[row][::-1].copy()
    A.has_sorted_indices = False
    b = values(N, "float64")
    for array in (A.data, A.indices, A.indptr, b):
        array.flags.writeable = False
    assert_solved(POISSON, b, solve(A, b))


def test_a_complex_b_of_a_real_matrix():
    b = values(N, "complex128")
    assert_solved(POISSON, b, solve(POISSON, b))
    assert solve(POISSON, b.astype(np.complex64)).x.dtype == np.complex128


def test_single_precision():
    A, b = POISSON.astype(np.float32), values(N, "float32")
    fine, coarse = solve(A, b), solve(A, b, rtol=1e-4)
    assert fine.x.dtype == np.float64 and coarse.x.dtype == np.float32
    assert "x is double: rtol is below 1e-5." in fine.explain() and "double" not in coarse.explain()
    assert_solved(A.astype(float), b.astype(float), fine)
    assert_solved(A.astype(float), b.astype(float), coarse, 1e-4)


def test_columns_iterate_together_after_one_of_zeros():
    B = values((N, 5), "float64")
    B[:, 0] = 0
    solution = solve(POISSON, B, recipe="ic0")
    whys = [[attempt.why for attempt in column.attempts] for column in solution.columns]
    together = "it solved the column before; the others iterate together"
    assert solution.all_converged and whys[0] == [] and together not in whys[1] and whys[2:] == [[together]] * 3


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (MemoryError, "the memory did not suffice for them: 8 iterations were lost"),
        (OutOfTime, "the time limit was reached: 8 iterations were lost"),
    ],
)
def test_iterations_of_columns_together_that_are_lost_are_counted_and_told(error, text, monkeypatch):
    monkeypatch.setattr(rows, "FEWEST", 4)
    B, step, calls = values((N, 5), "float64"), cpu_columns.cg_step, []

    def ended(*arguments):
        calls.append(arguments)
        if len(calls) > 2:
            raise error
        step(*arguments)

    alone = sum(solve(POISSON, B[:, c], recipe="ic0").iterations for c in range(5))
    monkeypatch.setattr(cpu_columns, "cg_step", ended)
    solution = solve(POISSON, B, recipe="ic0")
    assert len(calls) == 3 and solution.all_converged and solution.iterations == alone + 8
    assert any(f"4 columns iterated together, but {text}, and each goes on alone" in seen for seen in solution.seen)
    assert text in solution.explain()


@pytest.mark.parametrize("k", [0, 1, 3])
def test_columns(k):
    B = values((N, k), "float64")
    solution = solve(POISSON, B)
    assert solution.x.shape == (N, k) and solution.converged
    assert len(solution.attempts) == k
    for c in range(k):
        assert residual(POISSON, B[:, c], solution.x[:, c]) <= 1.0001e-8
    assert solution.iterations == sum(a.iterations for a in solution.attempts)


def test_one_column_without_a_solution():
    A = sp.diags([1.0, 2.0, 0.0])
    B = np.array([[1.0, 1.0, 1.0], [1.0, 0.0, 1.0], [0.0, 1.0, 0.0]])
    solution = solve(A, B)
    assert solution.status is Status.SINGULAR
    np.testing.assert_allclose(solution.x[:2, [0, 2]], [[1, 1], [0.5, 0.5]], rtol=1e-8)


@pytest.mark.parametrize("A", [np.eye(3), np.zeros((3, 3)), POISSON], ids=["identity", "zero", "poisson"])
def test_b_zero_needs_nothing(A):
    solution = solve(A, np.zeros(A.shape[0]))
    assert solution.converged and not solution.x.any() and solution.attempts == () and solution.residual_norm == 0
    assert "nothing tried" in solution.explain()


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1e200, 1e300])
@pytest.mark.parametrize("A", [POISSON, gallery.poisson5(5)], ids=["large", "small"])
def test_extreme_right_hand_sides(A, scale):
    b = values(A.shape[0], "float64")
    solution = solve(A, b * scale)
    assert solution.converged
    x = solution.x / scale if scale > 1e-300 else solution.x * 1e300 * (1e-300 / scale)
    assert residual(A, b, x) <= 1.001e-8


def test_extreme_matrices():
    b = values(N, "float64")
    for scale in (1e-200, 1e200):
        solution = solve(POISSON * scale, b)
        assert solution.converged and residual(POISSON, b, solution.x * scale) <= 1.001e-8


def test_rtol_of_zero_is_never_claimed_and_one_needs_nothing():
    b = values(N, "float64")
    solution = solve(POISSON, b, rtol=0)
    assert solution.status is Status.PRECISION_LIMIT and residual(POISSON, b, solution.x) < 1e-14
    assert solve(POISSON, b, rtol=1.0).iterations == 0 and solve(POISSON, b, rtol=1.0).converged
    assert solve(sp.identity(5), np.ones(5), rtol=0).converged


# singular and nearly singular


def neumann(A=POISSON):
    off_diagonal = A - sp.diags(A.diagonal())
    return sp.csr_matrix(off_diagonal - sp.diags(np.asarray(off_diagonal.sum(axis=1)).ravel()))


def empty_row():
    A = POISSON.tolil()
    A[5, :] = 0
    A = A.tocsr()
    A.eliminate_zeros()
    return A


def chessboard():
    """No diagonal, and a null space of many dimensions."""
    A = sp.csr_matrix(gallery.poisson5(24) - 4 * sp.identity(576))
    A.eliminate_zeros()
    return A


SINGULAR = {
    "neumann": neumann(),
    "small neumann": neumann(gallery.poisson5(6)),
    "empty row": empty_row(),
    "chessboard": chessboard(),
    "zero": sp.csr_matrix((1, 1)),
    "complex": sp.csr_matrix(np.array([[1, 1j], [-1j, 1]])),
}


@pytest.mark.parametrize("name", SINGULAR)
def test_singular_without_a_solution(name):
    A = SINGULAR[name]
    b = values(A.shape[0], "float64")
    solution = solve(A, b)
    assert solution.status is Status.SINGULAR and solution.info == -1
    assert "outside of A's range" in solution.explain()
    assert np.isfinite(solution.x).all() and solution.residual_norm <= 1.000001 * np.linalg.norm(b)


@pytest.mark.parametrize("name", SINGULAR)
def test_singular_with_a_solution(name):
    A = SINGULAR[name]
    b = A @ values(A.shape[0], A.dtype)
    solution = solve(A, b)
    assert solution.status is not Status.SINGULAR
    if np.any(b):
        assert_solved(A, b, solution)


@pytest.mark.parametrize("scale", [1.0, 1e-20])
def test_a_small_pivot_alone_is_no_singularity(scale):
    A = sp.diags([1.0, 1e-25, 1.0]) * scale
    assert_solved(A, np.ones(3), solve(A, np.ones(3)))


@pytest.mark.parametrize("n", [10, 14, 30])
def test_hopeless_conditioning_is_not_claimed_as_solved(n):
    A = 1 / (np.arange(n)[:, None] + np.arange(n) + 1.0)  # Hilbert's
    b = values(n, "float64")
    solution = solve(A, b, rtol=1e-14)
    assert not solution.converged and np.isfinite(solution.x).all()


@PATTERNS
@given(
    n=st.integers(1, 14),
    density=st.sampled_from([0.05, 0.2, 0.5, 1.0]),
    seed=st.integers(0, 2**16),
    magnitude=st.sampled_from([0, 3, 9]),
    integers=st.booleans(),
)
def test_what_is_claimed_is_so(n, density, seed, magnitude, integers):
    rng = np.random.default_rng(seed)
    A = np.where(rng.random((n, n)) < density, rng.standard_normal((n, n)), 0)
    A = np.rint(A) if integers else A * 10.0 ** rng.uniform(-magnitude, magnitude, (n, 1))
    b = rng.standard_normal(n)
    solution = solve(A, b)
    least = np.linalg.norm(b - A @ np.linalg.lstsq(A, b, rcond=None)[0]) / np.linalg.norm(b)
    assert np.isfinite(solution.x).all()
    if solution.converged:  # in more digits than double precision has, whose rounding can exceed the claim
        r = b - A.astype(np.longdouble) @ solution.x.astype(np.longdouble)
        assert np.sqrt((r * r).sum()) <= 1.0001e-8 * np.linalg.norm(b)
    if solution.status is Status.SINGULAR:
        assert least > 1e-9 and np.linalg.matrix_rank(A) < n
    if np.linalg.cond(A) < 1e6:
        assert solution.converged


# the ladder


def test_what_comes_first():
    def recipe(A):
        return solve(A, np.ones(A.shape[0])).attempts[0].recipe

    assert recipe(gallery.poisson5(20)) == "SparseLU()"  # 400 rows
    assert recipe(POISSON) == "MILU0()"
    assert recipe(PROBLEMS["SPD, other signs"]) == "IC0()"
    assert recipe(PROBLEMS["complex Hermitian"]) == "IC0()"
    assert recipe(PROBLEMS["complex general"]) == "ILU0()"


@pytest.mark.parametrize("broken", [(MILU0,), (MILU0, IC0), (MILU0, IC0, SparseLU), (MILU0, IC0, SparseLU, ICT)])
def test_a_recipe_without_factors_is_replaced(broken, no_factors):
    no_factors(*broken)
    b = values(N, "float64")
    solution = solve(POISSON, b)
    assert_solved(POISSON, b, solution)
    assert not any(solution.recipe == repr(recipe()) for recipe in broken)
    assert "no factors: the pivot of row 3" in solution.explain()


def test_complete_factors_are_asked_where_none_keep_the_row_sums(no_factors, calls_of):
    """Rows that sum to 0 are hardly grounded; long rows fill in too much to ask."""
    counted = calls_of(cost.Costs, "count_fill")
    no_factors(MILU0)
    solution = solve(POISSON, values(N, "float64"))
    assert [a.recipe for a in solution.attempts] == ["MILU0()", "SparseLU()"] and counted
    counted.clear()
    A = gallery.poisson27(9)
    solution = solve(A, values(A.shape[0], "float64"))
    assert [a.recipe for a in solution.attempts] == ["IC0()"] and not counted
    assert "MILU0() found no factors" in solution.explain()


def test_nothing_works(no_factors):
    no_factors(MILU0, IC0, SparseLU, ICT, ILUT, MultilevelILU)
    solution = solve(POISSON, np.ones(N))
    assert solution.status is Status.BREAKDOWN and not solution.x.any()
    assert solution.residual_norm == pytest.approx(np.sqrt(N))
    assert [a.method for a in solution.attempts] == [""] * 4
    assert {a.recipe for a in solution.attempts} >= {"MILU0()", "SparseLU()", "MultilevelILU()"}


def test_factors_that_give_nan_are_left(meanwhile):
    class Poison(LUFactors):
        def _apply(self, R, trans):
            return R * np.nan

    def factor(self, A):
        F = plain(self, A)
        F.__class__ = Poison
        return F

    plain = MILU0.factor
    meanwhile(MILU0, factor=factor)
    b = values(N, "float64")
    solution = solve(POISSON, b)
    assert_solved(POISSON, b, solution)
    assert len(solution.attempts) > 1 and solution.attempts[0].residual <= 1.0


def test_indefiniteness_is_met_and_answered():
    b = values(N, "float64")
    solution = solve(PROBLEMS["indefinite"], b)
    assert_solved(PROBLEMS["indefinite"], b, solution)
    assert solution.attempts[0].recipe == "IC0()" and len(solution.attempts) > 1


def test_an_outcome_is_not_called_converged_where_it_is_not():
    A = sp.csr_matrix(sp.diags(10.0 ** np.linspace(-8, 8, N)) @ POISSON)
    b = values(N, "float64")
    solution = solve(A, b)
    true = residual(A, b, solution.x)  # rounded otherwise than by solve
    assert true <= 1.01e-8 if solution.converged else true > 1e-8 / 1.01
    for attempt in solution.attempts:
        assert (attempt.outcome == "solved") == (attempt.residual <= 1e-8) and attempt.outcome != "converged"


@pytest.mark.parametrize("rung", ["threshold", "direct", "multilevel"])
def test_the_judge_changes_to_what_is_expected_to_end_first(rung, costs):
    costs(**{rung: 1e-9})
    b = values(N, "float64")
    solution = solve(POISSON, b)
    assert_solved(POISSON, b, solution)
    given_up, after = solution.attempts
    assert given_up.outcome.startswith("stopped, as it was expected") and given_up.outcome.endswith("next attempt less")
    assert after.why == f"{given_up.recipe} was expected to take longer than this"
    assert after.recipe == {"threshold": "ICT()", "direct": "SparseLU()", "multilevel": "MultilevelILU()"}[rung]
    assert given_up.residual < 1  # the next goes on from there


def test_the_judge_stays_where_all_else_costs_more(costs):
    costs()
    solution = solve(POISSON, values(N, "float64"))
    assert solution.converged and len(solution.attempts) == 1


def test_rungs_are_compared_only_where_one_of_them_may_pay(costs, calls_of):
    compared = calls_of(monitor, "better")
    costs(analysis=1e9)
    assert solve(POISSON, values(N, "float64")).converged and not compared
    costs(analysis=1e9, multilevel=1e-9)
    assert len(solve(POISSON, values(N, "float64")).attempts) == 2 and compared


def test_an_attempt_ends_at_the_first_look_at_which_its_rest_is_not_clearly_shorter(everywhere):
    """The rest is expected to take 0.75 to 1 of the time of the only rung left, whose fifth has been spent."""
    everywhere("worth", worth)

    class OfHundred:
        deadline, counted = np.inf, True

        def of_iteration(self, *_, **__):
            return 1.0

        def seconds(self, rung):
            return 100.0

        def in_time(self, seconds):
            return True

    watch = monitor.SwitchMonitor(OfHundred(), "cg", ["multilevel"], scale=1.0, target=1e-8)
    ended = next(i for i in range(161) if watch(i, 10 ** (-8 * i / 160)))
    rest = monitor.iterations_left(watch.norms, 1e-8)[0]
    assert 75 < rest < 100 and 20 <= ended < 25 and watch.change == "multilevel"
    fast = monitor.SwitchMonitor(OfHundred(), "cg", ["multilevel"], scale=1.0, target=1e-8)
    assert not any(fast(i, 10 ** (-8 * i / 90)) for i in range(91))  # clearly shorter, at each look


def test_a_residual_that_stands_still_at_first_does_not_decide_for_the_attempt(everywhere):
    """Until it falls, the fill is not counted; the look at which it may be is the first that decides."""
    everywhere("worth", worth)

    class Uncounted:
        deadline, counted, analysis_seconds = np.inf, False, 50.0

        def of_iteration(self, *_, **__):
            return 1.0

        def counting(self):
            return 0.0 if self.counted else 100.0

        def order(self):
            pass

        def count_fill(self):
            self.counted = True

        def seconds(self, rung):
            return 100.0

        def in_time(self, seconds):
            return True

    watch = monitor.SwitchMonitor(Uncounted(), "cg", ["direct"], scale=1.0, target=1e-8)
    ended = next(i for i in range(400) if watch(i, 10 ** (-8 * max(i - 30, 0) / 160)))
    rest = monitor.iterations_left(watch.norms, 1e-8)[0]
    assert 75 < rest < 200 and 35 <= ended < 50 and watch.change == "direct"


def test_worth_demands_more_the_less_has_been_spent():
    assert worth(1.0, elapsed=0.25, rest=0.8) and not worth(1.0, elapsed=0.25, rest=0.7)  # clearly shorter
    assert not worth(1.0, elapsed=0.0, rest=1.7) and worth(1.0, elapsed=0.0, rest=1.8)
    assert not worth(1.0, elapsed=0.1, rest=1.2) and worth(1.0, elapsed=0.1, rest=1.3)
    assert worth(1.0, elapsed=2.0, rest=0.8, before=0.1)
    assert not worth(1.0, elapsed=2.0, rest=1.9, before=0.3) and worth(1.0, elapsed=2.0, rest=2.1, before=0.3)
    assert not worth(np.inf, 1.0, np.inf) and not worth(0.0, 1.0, 1.0)


@pytest.fixture
def hopeful(everywhere):
    """No residual counts as that of rounding, so that rtol=0 asks for every rung."""
    everywhere("at_limit", lambda *_: False)
    everywhere("settled", lambda *_: np.nan)


def test_no_rung_twice(hopeful):
    RECENT.forget()  # factors that began from earlier values would be made anew, which is another attempt
    solution = solve(POISSON, values(N, "float64"), rtol=0)
    recipes = [a.recipe for a in solution.attempts]
    assert len(set(recipes)) == len(recipes) == 4


# limits


def test_no_time_at_all():
    solution = solve(POISSON, np.ones(N), time_limit=0)
    assert solution.status is Status.OUT_OF_TIME and solution.attempts == () and not solution.x.any()
    assert "the time left is too short" in solution.explain() and solution.info > 0


def test_the_time_limit_ends_the_iteration(everywhere):
    clock, seen = [0.0], []

    def watch(iteration, _):
        seen.append(iteration)
        clock[0] += 1.0

    everywhere("perf_counter", lambda: clock[0])
    everywhere("now", lambda: clock[0])
    solution = solve(POISSON, values((N, 3), "float64"), recipe=None, time_limit=5.5, watch=watch)
    # the clock is read before the watch makes a second of it: the seventh look, at six seconds, is the last
    assert solution.status is Status.OUT_OF_TIME and seen == list(range(7)) and solution.timings["solve"] == 7.0
    assert solution.attempts and "time limit" in solution.attempts[-1].outcome


def test_the_memory_limit(hopeful):
    b = values(N, "float64")
    solution = solve(POISSON, b, memory_limit=100)
    assert solution.status is Status.OUT_OF_MEMORY and "may not fit in memory" in solution.explain()
    solution = solve(POISSON, b, memory_limit=20 * POISSON.nnz, rtol=0)  # enough for factors of A's own pattern
    assert [a.recipe for a in solution.attempts] == ["MILU0()"] and "may not fit in memory" in solution.explain()
    assert solve(gallery.poisson5(5), np.ones(25), memory_limit=16).status is Status.OUT_OF_MEMORY


@pytest.mark.parametrize(
    ("recipe", "entries"),
    [
        (ILUT(drop_tol=0.0, fill=np.inf), 100**2),
        (ILUT(drop_tol=0.0, fill=20.0), 20 * 460),
        (ILUT(nnz=1000), 1000),
        (ParILUT(nnz=1000), 1000),
        (ILUT(), 4600),
        (ILUK(level=2), 460),
    ],
    ids=repr,
)
def test_factors_of_a_recipe_are_expected_to_have_as_many_entries_as_it_allows(recipe, entries):
    A, b = gallery.poisson5(10), np.ones(100)
    assert A.nnz == 460
    assert solve(A, b, recipe=recipe, memory_limit=16 * entries).converged
    with pytest.raises(MemoryError, match="the factors may take"):
        solve(A, b, recipe=recipe, memory_limit=16 * entries - 1)


@pytest.mark.parametrize("name", ["nnz", "fill"])
def test_a_memory_limit_does_not_hide_a_wrong_parameter(name):
    with pytest.raises(ParameterError, match=name):
        solve(gallery.poisson5(10), np.ones(100), recipe=ILUT(**{name: "many"}), memory_limit=1e9)


@pytest.mark.parametrize("A", [POISSON, gallery.poisson5(5)], ids=["large", "small"])
def test_watch_sees_the_iterations_and_stops_them(A):
    b, seen = values((A.shape[0], 2), "float64"), []
    solve(A, b[:, 0], watch=lambda iteration, norm: seen.append((iteration, norm)))
    assert seen[0] == (0, pytest.approx(np.linalg.norm(b[:, 0])))
    calls = []
    solution = solve(A, b, watch=lambda *_: calls.append(1) or len(calls) == 1)
    assert solution.status is Status.INTERRUPTED and len(calls) == 1  # the second column is not begun


# what was asked for


@pytest.mark.parametrize("recipe", ["ilu0", ILU0(), Jacobi(), None, "none", "sparse_lu", MultilevelILU(), "milu0"])
@pytest.mark.parametrize("method", ["auto", "gmres", "bicgstab"])
def test_a_recipe_and_a_method(recipe, method):
    b = values(N, "float64")
    solution = solve(POISSON, b, recipe=recipe, method=method)
    assert_solved(POISSON, b, solution)
    (attempt,) = solution.attempts
    assert method in ("auto", attempt.method) and "asked for" in attempt.why


def test_what_was_asked_for_is_not_replaced():
    with pytest.raises(ZeroPivot):
        solve(sp.csr_matrix(sp.block_diag([np.ones((2, 2)), POISSON])), np.ones(N + 2), recipe="ilu0")
    solution = solve(PROBLEMS["indefinite"], np.ones(N), recipe=None, method="cg")
    assert solution.status is Status.INDEFINITE and len(solution.attempts) == 1


WRONG = [
    ({"rtol": -1}, ParameterError),
    ({"rtol": np.nan}, ParameterError),
    ({"rtol": "small"}, ParameterError),
    ({"time_limit": -1}, ParameterError),
    ({"memory_limit": np.inf}, ParameterError),
    ({"recipe": "best"}, ParameterError),
    ({"recipe": 3}, ParameterError),
    ({"method": "magic"}, ParameterError),
    ({"device": "tpu"}, ParameterError),
    ({"b": np.ones(4)}, MatrixError),
    ({"b": np.ones((N, 1, 1))}, MatrixError),
    ({"b": np.full(N, np.nan)}, MatrixError),
    ({"A": np.ones((3, 4))}, MatrixError),
    ({"A": np.zeros((0, 0))}, MatrixError),
    ({"A": np.full((N, N), np.inf)}, MatrixError),
    ({"A": "matrix"}, MatrixError),
]


@pytest.mark.parametrize(("wrong", "error"), WRONG, ids=[str(list(w)) for w, _ in WRONG])
def test_wrong_arguments(wrong, error):
    arguments = {"A": POISSON, "b": np.ones(N), **wrong}
    with pytest.raises(error) as caught:
        solve(arguments.pop("A"), arguments.pop("b"), **arguments)
    one_line(caught)


# what is reported


def test_explain_holds_every_attempt(costs):
    costs(threshold=1e-9)
    solution = solve(POISSON, values(N, "float64"))
    text = solution.explain()
    for number, attempt in enumerate(solution.attempts, 1):
        (line,) = [line for line in text.splitlines() if line.startswith(f"{number}. ")]
        for part in (attempt.method, attempt.recipe, attempt.why, attempt.outcome, f"{attempt.iterations} iterations"):
            assert part in line
    assert text.splitlines()[0].startswith(f"A: {N} rows, {POISSON.nnz} entries, symmetric")
    last, of_all = solution.attempts[-1].iterations, solution.iterations
    assert len(solution.attempts) > 1 and f"Converged: {last} iterations ({of_all} in all attempts)" in text


def test_what_is_seen():
    def seen(A):
        return " ".join(traits(finelu.as_csr(A, diagonal=False)).sentences())

    says = "entries are positive; the other entries are negative; A is diagonally dominant"
    assert says in seen(POISSON)
    assert "opposite sign" in seen(-POISSON) and "positive" not in seen(-POISSON)
    nearly = sp.lil_matrix(POISSON)
    nearly[0, N - 1] = 1e-3  # an M-matrix up to 1% of its entries and rows
    says = "nearly all other entries are negative; nearly all rows are diagonally dominant"
    assert says in seen(nearly) and "A is diagonally" not in seen(nearly) and "nearly" not in seen(POISSON)
    nearly = POISSON - sp.diags(np.where(np.arange(N) == N // 2, 1.0, 0.0))
    assert says in seen(nearly)
    assert "other entries" not in seen(abs(POISSON)) and "other entries" not in seen(sp.identity(3))
    assert "other entries" not in seen(POISSON - sp.identity(N))  # the rows outweigh the diagonal
    assert "not symmetric" in seen(gallery.convection_diffusion(5, 5, 1))
    assert "complex symmetric" in seen(PROBLEMS["complex symmetric"])
    assert f"{N} diagonal entries are missing or zero" in seen(POISSON - 4 * sp.identity(N))
    assert traits(finelu.as_csr(sp.eye(9) + sp.eye(9, k=1), diagonal=False)).paired == pytest.approx(9 / 17)


def test_free_memory_keeps_to_the_limit_of_a_container(tmp_path, meanwhile):
    free = device.free_memory(np.empty(0))
    (tmp_path / "memory.max").write_text("3000\n")
    (tmp_path / "memory.current").write_text("1200\n")
    (tmp_path / "memory.stat").write_text("anon 700\ninactive_file 200\n")
    meanwhile(device, CONTAINERS=((tmp_path, "memory.max", "memory.current", "inactive_file"),))
    assert device.free_memory(np.empty(0)) == 2000
    assert ladder.Ladder(finelu.as_csr(POISSON), 1e-8).costs.memory == 0.8 * 2000
    (tmp_path / "memory.max").write_text("max\n")
    assert abs(device.free_memory(np.empty(0)) - free) < free / 2


@EMBEDDED
def test_long_rows_that_columns_alone_order_reach_the_direct_solve():
    A = sp.csr_matrix(sp.random(600, 600, 0.03, random_state=1) + 20 * sp.identity(600))[::-1]  # gaps on the diagonal
    found = ladder.Ladder(finelu.as_csr(A, diagonal=False), 1e-8).costs
    assert found.by_columns and not found.short and found.seconds("direct") < math.inf
    b = values(600, "float64")
    solution = solve(A, b)
    assert_solved(A, b, solution)
    (direct,) = solution.attempts
    assert direct.recipe.startswith("SparseLU") and direct.outcome == "solved"
    assert solve(A, b, memory_limit=600**2).status is Status.OUT_OF_MEMORY


def test_columns_alone_are_ordered_after_one_test_of_the_rank_and_without_a_weighted_matching(without, calls_of):
    without("klu", "feral", "pardiso")
    A = sp.csr_matrix(sp.random(3000, 3000, 1e-3, random_state=1) + sp.identity(3000))[::-1]  # gaps on the diagonal
    matchings, ranks = calls_of(scaling, "_matched"), calls_of(superlu, "structural_rank")
    b = values(3000, "float64")
    solution = solve(A, b)
    assert_solved(A, b, solution)
    assert solution.attempts[0].recipe == "SparseLU(ordering='colamd')"
    assert len(matchings) == 0 and len(ranks) == 1
    without_a_row = sp.csr_matrix(sp.diags(np.arange(3000) != 17, dtype=float) @ A)
    assert solve(without_a_row, b).status is Status.SINGULAR


def test_no_memory_while_iterating_is_a_failed_attempt(meanwhile):
    def without_memory(method, *arguments, **options):
        if method in ("cg", "gmres"):
            raise MemoryError
        return iterate(method, *arguments, **options)

    iterate = krylov.iterate
    meanwhile(krylov, iterate=without_memory)
    b = values(N, "float64")
    solution = solve(POISSON, b)
    assert_solved(POISSON, b, solution)
    assert solution.attempts[0].outcome == "no memory for its iterations"
    assert solution.attempts[-1].method in ("refinement", "bicgstab")
    with pytest.raises(MemoryError):
        solve(POISSON, b, recipe="ilu0")


def test_a_curvature_that_shows_that_A_is_indefinite_is_remembered():
    solution = solve(PROBLEMS["indefinite"], values(N, "float64"))
    assert solution.attempts[0].recipe == "IC0()"
    assert not any("ICT" in a.recipe or (a.method == "cg" and k > 0) for k, a in enumerate(solution.attempts))


def test_the_history_is_that_of_all_attempts(costs):
    costs(direct=1e-9)
    b = values(N, "float64")
    solution = solve(POISSON, b)
    assert len(solution.attempts) == 2 and len(solution.history) == solution.iterations + 1
    assert solution.history[0] == pytest.approx(np.linalg.norm(b))


def test_large_rows_do_not_make_a_regular_matrix_singular():
    block = np.array([[1e16, 1e16], [1.0, -1.0]])
    A = sp.csr_matrix(sp.block_diag([block, block.T]))
    assert solve(A, np.ones(4), rtol=0).status is not Status.SINGULAR


@ON_GPU
def test_a_gpu_array_stays_there(backend):
    for name in ("SPD, an M-matrix", "convection", "no diagonal", "complex general"):
        A = PROBLEMS[name]
        b = values((A.shape[0], 2), A.dtype)
        for place in (None, "cuda"):
            solution = solve(backend.move(sp.csr_matrix(A)), backend.move(b), device=place)
            assert type(solution.x) is type(backend.move(b)) and solution.converged
            assert residual(A, b[:, 1], backend.fetch(solution.x)[:, 1]) <= 1.0001e-8
            assert ("on the CPU and x brought back" in solution.explain()) is (place is None)


@ON_GPU
def test_what_comes_first_is_told_of_the_device_that_is_taken(backend):
    from finelu.auto.solve import first_try

    A = backend.move(sp.csr_matrix(PROBLEMS["convection"]))
    b = backend.move(values(A.shape[0], A.dtype))
    assert first_try(A)["recipe"] == solve(A, b).attempts[0].recipe


@ON_GPU
def test_who_looks_at_x_on_a_gpu_gets_it_there(backend):
    b, seen = backend.move(values(N, "float64")), []
    A = backend.move(POISSON)
    assert solve(A, b, callback=lambda x: seen.append(type(x))).converged and set(seen) == {type(b)}
    assert "brought back" in solve(A, b, callback=lambda size: None, callback_type="pr_norm").explain()
    x0 = backend.move(values(N, "float64", 3))
    assert type(solve(A, b, x0=x0).x) is type(b)


@ON_GPU
def test_the_device_that_was_asked_for(backend):
    b = values(N, "float64")
    solution = solve(POISSON, b, device="cuda")
    assert isinstance(solution.x, np.ndarray)
    assert_solved(POISSON, b, solution)
    back = solve(backend.move(POISSON), backend.move(b), device="cpu")
    assert type(back.x) is type(backend.move(b))
    assert_solved(POISSON, b, finelu.result.Solution(backend.fetch(back.x), back.status, 0, back.residual_norm, None))
    assert solve(backend.move(neumann()), backend.move(b), device="cuda").status is Status.SINGULAR


@ON_GPU
def test_a_and_b_on_different_devices(backend):
    with pytest.raises(DeviceError) as error:
        solve(backend.move(POISSON), np.ones(N))
    one_line(error)


def test_what_the_judge_gave_up_is_not_called_interrupted(costs, no_factors):
    costs(threshold=1e-9)
    no_factors(ICT, ILUT, SparseLU, MultilevelILU)
    solution = solve(POISSON, values(N, "float64"))
    assert solution.status is Status.MAX_ITERATIONS and solution.residual_norm > 0
    assert [a.method for a in solution.attempts] == ["cg", "", "", ""]


def test_a_null_vector_where_rows_and_columns_have_different_ones():
    A = sp.diags([np.ones(5)], [1], shape=(6, 6))  # one Jordan block: e_1 to the right, e_6 to the left
    solution = solve(A, np.ones(6))
    assert solution.status is Status.SINGULAR
    assert_solved(A, np.arange(6)[::-1], solve(A, np.arange(6)[::-1]))


def test_a_later_column_does_not_go_back_to_what_the_first_gave_up(costs):
    costs(threshold=1e-9, cheap=1e-8, analysis=1e9)
    solution = solve(POISSON, values((N, 3), "float64"))
    assert solution.converged
    assert [a.recipe for a in solution.attempts] == ["MILU0()", "ICT()", "ICT()", "ICT()"]


def test_nothing_else_is_tried_than_what_was_asked_for():
    A = PROBLEMS["indefinite"]
    solution = solve(A, values((N, 2), "float64"), recipe="jacobi", rtol=1e-14)
    assert {a.recipe for a in solution.attempts} == {"Jacobi()"} and len(solution.attempts) == 2
    small = solve(sp.csr_matrix([[1.0, 2.0], [2.0, 1.0]]), np.array([1.0, -1.0]), recipe="jacobi")
    assert small.converged and small.attempts[0].method == "gmres"  # cg has seen that A is indefinite


def test_a_change_has_to_fit_the_time(everywhere):
    everywhere("worth", lambda *_: True)
    found = ladder.Ladder(finelu.as_csr(POISSON), 1e-8)
    assert monitor.better(found.costs, ["direct", "multilevel"], 1.0, 1.0) == "direct"
    late = ladder.Ladder(finelu.as_csr(POISSON), 1e-8, deadline=now() - 1)
    assert monitor.better(late.costs, ["direct", "multilevel"], 1.0, 1.0) is None and late.costs.fill is None


def test_the_fill_is_counted_only_if_a_rung_is_in_time_after_it(everywhere, meanwhile):
    costs = ladder.Ladder(finelu.as_csr(POISSON), 1e-8).costs
    seconds = costs.counting()
    meanwhile(type(costs), counting=lambda self: 0.7 * seconds)  # the count may beat a rung that takes `seconds`
    known = {"multilevel": seconds, "direct": np.inf}
    meanwhile(type(costs), seconds=lambda self, rung: known[rung])
    left = ["direct", "multilevel"]
    meanwhile(monitor, _pays=lambda *_: False)
    everywhere("worth", lambda *_: True)
    meanwhile(type(costs), in_time=lambda self, needed: needed < 2 * seconds)  # both after one another
    assert monitor.better(costs, left, 1.0, 1.0) == "multilevel" and costs.counted
    for limit in (1.5, 1.2):  # enough for the rung, not for a count before it
        costs = ladder.Ladder(finelu.as_csr(POISSON), 1e-8).costs
        meanwhile(type(costs), in_time=lambda self, needed, limit=limit: needed < limit * seconds)
        assert monitor.better(costs, left, 1.0, 1.0) == "multilevel" and not costs.counted
    costs = ladder.Ladder(finelu.as_csr(POISSON), 1e-8).costs
    meanwhile(type(costs), in_time=lambda self, _: not self.counted)  # the count took all the time
    assert monitor.better(costs, left, 1.0, 1.0) == "multilevel" and costs.counted


def test_direct_factors_that_find_no_room_are_not_begun():
    with pytest.raises(MemoryError, match="the memory holds"):
        ladder.SparseLUFactors(SparseLU(ordering="mmd"), finelu.as_csr(POISSON), most=POISSON.nnz)


@EMBEDDED
def test_few_rows_are_factored_without_a_count_but_where_memory_is_limited(meanwhile):
    meanwhile(choose, LIGHT=POISSON.nnz)
    A = finelu.as_csr(POISSON)
    for limit, counted in ((None, False), (16 * A.n**2, False), (16 * A.n**2 - 1, True), (16 * A.nnz, True)):
        costs = ladder.Ladder(A, 1e-8, memory=limit).costs
        costs.count_fill()
        assert (costs.fill is not None) == counted and costs.counted
    assert costs.seconds("direct") == np.inf  # counted, it does not fit
    assert finelu.SparseLU().factor(gallery.poisson5(20)).report.expected_nnz is None  # 400 rows
    assert finelu.SparseLU().factor(A).report.expected_nnz > A.nnz


@pytest.mark.parametrize("A", [POISSON, gallery.poisson5(5)], ids=["large", "small"])
def test_watch_may_raise_stop_iteration(A):
    def stop(*_):
        raise StopIteration

    assert solve(A, values(A.shape[0], "float64"), watch=stop).status is Status.INTERRUPTED


def test_a_consistent_singular_system_is_not_called_unsolvable_for_its_rounding():
    A = neumann()
    b = A @ values(A.shape[0], "float64")
    assert solve(A, b, rtol=0).status is not Status.SINGULAR


def test_a_rung_that_found_no_memory_is_not_preferred(meanwhile):
    solutions = iter([None, MemoryError()])
    improve = ladder.Ladder._improve

    def sometimes(self, *arguments):
        if isinstance(error := next(solutions, None), MemoryError):
            raise error
        return improve(self, *arguments)

    meanwhile(ladder.Ladder, _improve=sometimes)
    solution = solve(POISSON, values((N, 3), "float64"), maxiter=10_000)  # one column after the other
    assert solution.converged and [a.outcome for a in solution.attempts].count("no memory for its iterations") == 1


def test_a_direct_solve_is_counted_once_that_costs_little_compared_with_the_rest(everywhere):
    everywhere("worth", worth)
    A = finelu.as_csr(gallery.poisson5(60))
    costs = ladder.Ladder(A, 1e-8).costs
    seconds = costs.counting()
    assert seconds > costs.analysis_seconds  # with the least that complete factors take
    assert monitor.better(costs, ["direct"], costs.analysis_seconds / 2, 1e9, begun=False) is None  # b may be smooth
    assert monitor.better(costs, ["direct"], seconds, seconds / 2) is None and costs.job is None  # not worth it
    assert monitor.better(costs, ["direct"], 0.0, 1.7 * seconds) is None and costs.job is None
    assert monitor.better(costs, ["direct"], 0.0, 1e9) == "direct" and costs.counting() == 0
    by_klu = costs.light  # an analysis by KLU, where it is installed
    assert costs.fill == (with_little_fill(A)[1] if by_klu is None else by_klu.fill)


def test_a_threshold_factorization_is_doubted_where_the_cheap_one_has_failed():
    found = ladder.Ladder(finelu.as_csr(gallery.poisson5(60)), 1e-8)
    seconds = {"threshold": 2.0, "multilevel": 3.0}
    found.costs.seconds = seconds.__getitem__
    assert found.next_rung(["threshold", "multilevel"]) == "threshold"
    found._is_indefinite()
    assert found.next_rung(["threshold", "multilevel"]) == "multilevel"
    found.disproved = False
    assert found.next_rung(["threshold", "multilevel"]) == "threshold"
    found.broken.add("cheap")
    assert found.next_rung(["threshold", "multilevel"]) == "multilevel"
    assert found.next_rung(["threshold"]) == "threshold"


# what comes first


def first_of(A):
    found = ladder.Ladder(finelu.as_csr(A, diagonal=False), 1e-8)
    return found.first()["recipe"], found.costs


def test_complete_factors_come_first_where_their_count_says_that_they_take_less_than_some_iterations():
    n, rng = 9000, np.random.default_rng(0)
    child = np.arange(1, n)
    edges = sp.csr_matrix((np.ones(n - 1), (child, (child * rng.random(n - 1)).astype(int))), shape=(n, n))
    tree = edges + edges.T
    network = sp.csr_matrix(sp.diags(np.asarray(tree.sum(axis=1)).ravel() + 1e-6) - tree)
    recipe, costs = first_of(network)
    assert recipe.startswith("SparseLU") and costs.fill.nnz <= network.nnz
    recipe, costs = first_of(gallery.poisson5(95))  # as many rows, of one length: the count would take long
    assert not recipe.startswith("SparseLU") and not costs.counted
    rows = 20**3
    hub = sp.csr_matrix((np.ones(60), (np.zeros(60, int), np.arange(1, 61))), shape=(rows, rows))
    cube = sp.csr_matrix(gallery.poisson7(20) - hub - hub.T + 60 * sp.diags(np.eye(1, rows)[0]))
    recipe, costs = first_of(cube)
    assert costs.ordered and not recipe.startswith("SparseLU")  # its order shows that the factors are too large
    dominant = sp.csr_matrix(network + 10 * abs(network).max() * sp.identity(n))
    recipe, costs = first_of(dominant)
    assert not costs.counted and not recipe.startswith("SparseLU")  # a few iterations will do
    assert not choose.asks_first(replace(traits(finelu.as_csr(network)), gpu=True))


# one route for one matrix

ROUTES = {
    "grid": gallery.poisson5(90),
    "cube": gallery.poisson7(16),
    "stretched": gallery.anisotropic_triangles(3),
    "elasticity": gallery.elasticity(6, 8, 10),
    "wind": gallery.convection_diffusion(60, 60, 1, peclet=500.0),
    "wind in a cube": gallery.convection_diffusion(16),
    "waves": sp.csr_matrix(gallery.poisson5(70) - 0.3 * sp.identity(4900)),
    "complex waves": gallery.helmholtz(40, 12.0),
    "saddle": gallery.stokes(24),
    "penalty": gallery.kkt(900, 200, store_zeros=True),
    "jumps": sp.csr_matrix(sp.diags(10.0 ** np.linspace(-3, 3, 8100)) @ gallery.poisson5(90)),
    "tiny": gallery.poisson5(12),
}


@pytest.mark.parametrize("name", ROUTES)
def test_the_route_does_not_depend_on_the_clock(everywhere, name):
    """As on a machine that is 30 times as slow, and on one where other processes come and go."""
    everywhere("worth", worth)
    A = sp.csr_matrix(ROUTES[name])
    b, rng, moment = values(A.shape[0], A.dtype), np.random.default_rng(0), [0.0]

    def route():
        found = solve(A, b)
        return [(a.recipe, a.method, a.outcome, a.iterations) for a in found.attempts], found.x.tobytes()

    def by_chance():
        moment[0] += rng.choice([1e-6, 1e-3, 1.0])
        return moment[0]

    before = route()
    assert before[0][-1][2] == "solved"
    for clock in (lambda: 30 * time.perf_counter(), by_chance):
        everywhere("now", clock)
        everywhere("perf_counter", clock)
        assert route() == before


def test_the_rest_is_expected_from_the_later_half():
    late = [(0, 1.0), (1, 1.0), (2, 1.0), (3, 1.0), (4, 1.0), (8, 1e-4)]
    left, begun = monitor.iterations_left(late, 1e-8)
    assert left == pytest.approx(4 / 1.1) and begun  # some digits are added to those gained
    even = [(k, 10.0 ** -(k / 2)) for k in range(9)]
    left, begun = monitor.iterations_left(even, 1e-8)
    assert left == pytest.approx(8 / 1.2) and begun
    rough = [(0, 1.0), (1, 0.1), (2, 0.1), (8, 0.1)]  # what the first iterations take away tells nothing of the rest
    left, begun = monitor.iterations_left(rough, 1e-8)
    assert left == pytest.approx((8 - 2) * (7 / 8) / 0.05) and begun
    left, begun = monitor.iterations_left(late[:5], 1e-8)
    assert left == pytest.approx(2 / 0.05) and not begun
    assert monitor.iterations_left([(0, 1.0), (3, 0.0)], 1e-8)[0] <= 0
    assert monitor.iterations_left([(0, 1.0), (3, 1e-9)], 1e-8)[0] <= 0


def test_an_attempt_that_stands_still_ends_after_a_quarter_of_the_expected_time_of_complete_factors(everywhere):
    everywhere("worth", worth)
    costs = ladder.Ladder(finelu.as_csr(gallery.anisotropic_triangles(6)), 1e-8).costs
    watch = monitor.SwitchMonitor(costs, "cg", ["direct"], scale=1.0, target=1e-8)
    iteration = next(k for k in range(1000) if watch(k, 0.1 if k else 1.0))
    expected = costs.seconds("direct") / costs.of_iteration("cg")  # of complete factors, in iterations
    assert watch.change == "direct" and 0.1 * expected <= iteration <= 0.25 * expected


def test_a_failure_is_raised_if_that_is_asked_for():
    A, b = finelu.gallery.problem("poisson7:8"), np.ones(512)
    assert finelu.solve(A, b, raise_on_failure=True).converged
    with pytest.raises(finelu.errors.NotConverged, match="A x = b did not converge to rtol=1e-08") as error:
        finelu.solve(A, b, maxiter=1, recipe="jacobi", raise_on_failure=True)
    assert error.value.solution.iterations == 1 and not finelu.solve(A, b, maxiter=1, recipe="jacobi").converged
    with pytest.raises(finelu.ParameterError, match="raise_on_failure=1; True or False is needed"):
        finelu.solve(A, b, raise_on_failure=1)


def test_subdomains_that_end_at_the_limit_of_iterations_say_so():
    """Their report has a number of levels, where that of MultilevelILU has a list of them."""
    A = gallery.poisson7(42)
    solution = finelu.solve(A, np.ones(A.shape[0]), maxiter=3)
    assert solution.status is Status.MAX_ITERATIONS and "Schwarz" in solution.attempts[0].recipe
    assert not solution.converged and solution.iterations == 3
