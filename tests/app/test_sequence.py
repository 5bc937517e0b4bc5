"""Sequence: right answers whatever it decides, and decisions that follow from what happened."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from checks import ON_GPU, one_line, perturbed, values

import finelu
from finelu import ILU0, Jacobi, RecycledSpace, Sequence, gallery
from finelu.auto import attempt, ladder
from finelu.auto import sequence as module
from finelu.auto.attempt import Iterations, RightHandSide
from finelu.auto.guess import AGAIN, FEW, MOST, FirstGuess
from finelu.auto.rates import SHIPPED_ON_GPU
from finelu.auto.recycling import AT_RISK, LEAST, OF_LOSS, REST, RIPE, TRIAL, Cost, Recycling
from finelu.auto.reuse import RETRY, UPDATE, Ageing, Patience, update_in_iterations
from finelu.errors import MatrixError, ParameterError, ZeroPivot
from finelu.matrix import as_csr
from finelu.ordering import OrderingJob

N = 30 * 20


def convection(t=0.0):
    A = gallery.convection_diffusion(30, 20, 1, peclet=20.0)
    return sp.csr_matrix(A + t * sp.diags(np.linspace(1.0, 3.0, N) * A.diagonal()))


def other_pattern(A):
    return sp.csr_matrix(A + 0.01 * sp.eye(A.shape[0], k=5))


def assert_solves(A, b, solution, rtol=1e-8):
    assert solution.converged
    assert np.linalg.norm(b - A @ solution.x) <= 1.0001 * rtol * np.linalg.norm(b)


def test_the_same_matrix_keeps_its_factors():
    A = convection()
    sequence = Sequence(A)
    for k in range(3):
        b = values(N, "float64", seed=k)
        assert_solves(A, b, sequence.step(b=b))
    assert sequence.decisions == ["solve", "reuse", "reuse"]


def test_new_values_of_the_same_pattern():
    sequence, b = Sequence(), values(N, "float64")
    for t in (0.0, 1e-3, 2e-3, 3e-3):
        solution = sequence.step(convection(t), b)
        assert_solves(convection(t), b, solution)
        assert f"{sequence.decisions[-1]}: " in solution.explain()
    assert sequence.decisions[0] == "solve" and set(sequence.decisions[1:]) <= {"reuse", "update"}


def test_values_changed_in_place():
    A, b = convection(), values(N, "float64")
    sequence = Sequence(recipe="ilu0")
    sequence.step(A, b)
    A.data *= np.linspace(0.9, 1.1, A.nnz)
    assert_solves(A, b, sequence.step(A, b))


def test_an_update_when_old_factors_have_cost_more():
    sequence, b = Sequence(recipe="ilu0"), values(N, "float64")
    sequence.step(convection(), b)
    sequence._ageing.price, sequence._ageing.excess = 0.0, [1.0]
    B = perturbed(convection())
    assert_solves(B, b, sequence.step(B, b))
    assert sequence.decisions == ["solve", "update"]
    sequence._ageing.price = 1e9
    B = perturbed(B)
    assert_solves(B, b, sequence.step(B, b))
    assert sequence.decisions[-1] == "reuse"


def decisions(beyond):
    """The decision of each step, of 5 digits each. beyond : by how many the iterations with old factors exceed 5; Inf
    where they do not lead to x. An update takes as long as ten iterations."""
    ageing, made = Ageing(10.0, complete=False, gained=5.0, taken=5.0), []
    for more in beyond:
        decision, _ = ageing.decide(5.0)
        made.append(decision)
        if decision == "reuse" and more < np.inf:
            ageing.solved_with_old(5 + more, 5.0)
            continue
        if decision == "reuse":
            made[-1] = "given up"
            ageing.gave_up(4, 5.0)
        ageing.renewed()
        ageing.solved(5, 5.0, 5.0)
    return made


@pytest.mark.parametrize(
    ("beyond", "made"),
    [
        ([0] * 20, ["reuse"] * 20),
        ([4] * 8, ["reuse"] * 8),  # an update would save four iterations once, and cost ten
        ([1, 2, 4, 8, 0, 1, 2, 4, 0, 1], [*["reuse"] * 4, "update", *["reuse"] * 3, "update", "reuse"]),  # 8 > 17 / 4
        ([20] * 18, ["reuse", *["update"] * RETRY, "reuse"]),  # they cost more at once: it is seen again later
        ([0, 11, 0, 0, 11], ["reuse", "reuse", "update", "reuse", "update"]),  # those of two steps before do
        ([np.inf] * 18, ["given up", *["update"] * (RETRY - 1), "given up", "update"]),
        ([0, 0, np.inf, 0, 0], ["reuse", "reuse", "given up", "reuse", "reuse"]),  # they were good for two steps
    ],
    ids=["free", "some", "growing", "much", "later", "never", "once"],
)
def test_old_factors_are_kept_while_they_cost_less_than_an_update(beyond, made):
    assert decisions(beyond) == made


def test_what_an_update_takes_is_counted_in_iterations():
    A = as_csr(convection())
    prices = [update_in_iterations(recipe.factor(A), A) for recipe in (ILU0(), finelu.ILUT(), finelu.MultilevelILU())]
    assert 0 < prices[0] < prices[1] < prices[2]
    small, large = (as_csr(gallery.poisson7(k)) for k in (4, 14))
    price = [update_in_iterations(finelu.SparseLU().factor(A), A) for A in (small, large)]
    assert 0 < price[0] < 1 < price[1]  # complete factors of a small system are made sooner than an iteration


def test_an_iteration_ends_once_better_factors_would_end_sooner():
    """Ten digits are wanted, fresh factors gain one an iteration, and an update takes as long as two."""
    for rate, ends in ((1.0, False), (0.8, False), (0.1, True)):
        patience = Patience(np.exp(-10.0), Ageing(2.0, complete=False, gained=10.0, taken=10.0), old=True)
        ended = [patience(k, np.exp(-rate * k)) for k in range(int(10 / rate))]
        assert any(ended) is ends and (patience.change == "update") is ends and bool(patience.why) is ends
    assert not any(Patience(0.0, Ageing(2.0, complete=True), old=True)(k, 1.0) for k in range(100))  # nothing is known


def test_the_matrix_of_the_step_before_need_not_be_the_one_that_was_factored():
    b, sequence = values(N, "float64"), Sequence(recipe="ilu0")
    sequence.step(convection(), b)
    sequence._ageing.price = 1e9
    assert_solves(convection(0.1), b, sequence.step(convection(0.1), b))
    sequence._ageing.price = 0.0
    b = b[::-1]  # of which the last x is no solution
    assert_solves(convection(0.1), b, sequence.step(None, b))
    b = b**2
    assert_solves(convection(0.1), b, sequence.step(None, b))
    assert sequence.decisions == ["solve", "reuse", "update", "reuse"]


def test_a_complex_right_hand_side_after_a_real_one():
    b, sequence = values(N, "float64"), Sequence(convection())
    sequence.step(None, b)
    c = b * (1 + 1e-3j)
    assert_solves(convection(), c, sequence.step(None, c))
    assert sequence.decisions == ["solve", "reuse"]


def test_factors_that_no_longer_help_are_replaced_and_no_iteration_is_lost():
    """Old factors gain nothing on values of another operator; x, iterations and tries of them are kept."""
    A, b = gallery.convection_diffusion(40, 40, 1, peclet=0.5), values(1600, "float64")
    B = sp.csr_matrix(A @ sp.diags(10.0 ** np.random.default_rng(0).uniform(-3, 3, 1600)))
    sequence = Sequence(A, recipe="sparse_lu")
    sequence.step(b=b)
    sequence._ageing.price = 10.0
    solution = sequence.step(B, b)
    assert_solves(B, b, solution)
    assert sequence.decisions == ["solve", "update"] and "reuse did not converge" in solution.explain()
    old, new = solution.attempts
    assert "earlier matrix" in old.why and "updated" in new.why and old.iterations >= 3
    assert solution.iterations == old.iterations + new.iterations == len(solution.history) - 1


def test_a_new_pattern_is_factored_anew():
    A, b = convection(), values(N, "float64")
    sequence = Sequence(A)
    sequence.step(b=b)
    B = other_pattern(A)
    assert_solves(B, b, sequence.step(B, b))
    assert sequence.decisions == ["solve", "rebuild"]
    assert_solves(B, b, sequence.step(b=b))
    assert sequence.decisions[-1] == "reuse"


def test_another_size_or_precision_begins_anew():
    sequence, b = Sequence(convection()), values(N, "float64")
    sequence.step(b=b)
    small = gallery.poisson5(5)
    assert_solves(small, np.ones(25), sequence.step(small, np.ones(25)))
    assert_solves(convection(), b, sequence.step(convection(), b))
    C = sp.csr_matrix(convection() + 0.1j * sp.identity(N))
    solution = sequence.step(C, b)
    assert_solves(C, b, solution)
    real = sequence.step(convection(), b)
    assert_solves(convection(), b, real)
    assert real.x.dtype == np.float64
    assert sequence.decisions == ["solve"] * 5


def test_an_update_without_factors_ends_in_a_new_choice():
    A, b = convection(), values(N, "float64")
    sequence = Sequence(A, recipe="ilu0")
    sequence.step(b=b)

    def fails(*_):
        raise ZeroPivot(ILU0(), 3, 0.0)

    sequence._F.update = fails
    sequence._ageing.price, sequence._ageing.excess = 0.0, [1.0]
    B = perturbed(A)
    solution = sequence.step(B, b)
    assert_solves(B, b, solution)
    assert sequence.decisions[-1] == "solve" and "update failed" in solution.explain()
    sequence._ageing.price, sequence._ageing.excess = 0.0, [1.0]
    zero = A.copy()
    zero.data[0] = 0.0  # the first pivot
    with pytest.raises(ZeroPivot):  # the recipe was asked for: there is no other
        sequence.step(zero, b)
    assert_solves(A, b, sequence.step(A, b))
    assert sequence.decisions[-1] == "solve"


def test_single_precision_is_solved_in_double_where_rtol_needs_it():
    A, b = convection().astype(np.float32), values(N, "float32")
    sequence = Sequence(A)
    for _ in range(2):
        solution = sequence.step(b=b)
        assert solution.x.dtype == np.float64
        assert_solves(A.astype(float), b.astype(float), solution)
    assert sequence.decisions == ["solve", "reuse"]


def test_what_does_not_converge_is_said_and_forgotten():
    n = 12
    hilbert = 1 / (np.arange(n)[:, None] + np.arange(n) + 1.0)
    b = values(n, "float64")
    sequence = Sequence(hilbert, rtol=1e-14)
    assert not sequence.step(b=b).converged
    assert_solves(np.eye(n), b, sequence.step(np.eye(n), b))
    assert sequence.decisions == ["solve", "solve"]


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
@pytest.mark.parametrize("saved", [0.0, 1.0])
def test_the_first_guess_combines_the_last_solutions_where_that_saves_iterations(dtype, saved):
    """b moves within a space of three dimensions: from the fourth step on the guess is x to about the tolerance."""
    A, found = gallery.convection_diffusion(9).astype(dtype), []
    parts = [values(A.shape[0], dtype, seed) for seed in range(3)]
    sequence = Sequence(rtol=1e-4 if dtype == "float32" else 1e-8, recipe="Jacobi")
    for k in range(6):
        sequence._guesses.saved = {FEW: saved, MOST: saved}
        found.append(sequence.step(A, sum(np.cos(k * m) * v for m, v in enumerate(parts))))
    assert all(s.converged for s in found)
    assert found[0].iterations > 4 and (max(s.iterations for s in found[3:]) <= 2) is (saved == 1)
    assert saved == 0 or max(sequence._guesses.saved.values()) > 0.5
    other = sequence.step(A, np.float64(1) * values(A.shape[0], dtype, 9))  # of which the last four know nothing
    assert other.converged and other.iterations > 2 and sequence._guesses.saved[FEW] < 0.5


def test_combinations_come_back_after_one_that_saved_nothing():
    """b moves within three dimensions, except in one step."""
    A, parts, found = gallery.poisson5(40), [values(1600, "float64", seed) for seed in range(3)], []
    sequence = Sequence(A, recipe="ilu0", method="cg")
    for k in range(22):
        b = values(1600, "float64", 9) if k == 6 else sum(np.cos(0.1 * k * m) * v for m, v in enumerate(parts))
        found.append(sequence.step(None, b).iterations)
    smooth, after = max(found[4:6]), found[6:]
    assert after[0] > 20 > smooth
    back = next(k for k, iterations in enumerate(after) if iterations <= smooth)
    assert sum(after[:back]) < AGAIN + max(found) and max(after[back:]) <= max(2 * smooth, 10)


def test_iterations_after_an_attempt_that_was_given_up_are_those_of_fresh_factors(meanwhile):
    """The first step tries incomplete factors, then complete ones, whose one iteration is what old ones are held to."""
    meanwhile(attempt, MAXITER=3)
    A, sequence = gallery.poisson7(15), Sequence(rtol=1e-9)
    first = sequence.step(A, values(15**3, "float64"))
    assert len(first.attempts) > 1 and first.attempts[-1].recipe.startswith("SparseLU")
    assert sequence._ageing.expected(np.log(1e9)) < 2  # of which the attempt before would have made far more


def test_a_sequence_reads_no_clock(monkeypatch):
    """The same systems lead to the same decisions and the same bits, however the seconds pass."""
    rng, found = np.random.default_rng(0), []
    A, b = sp.csr_matrix(gallery.poisson5(80)), values(6400, "float64")
    for factor in (0.0, 1.0, 1e6):
        clock = lambda factor=factor: factor * rng.uniform(0, 1)  # noqa: E731
        for reads in (module, ladder):
            monkeypatch.setattr(reads, "perf_counter" if reads is module else "now", clock)
        monkeypatch.setattr("time.perf_counter", clock)
        for recipe in ("auto", "ilu0"):
            sequence = Sequence(recipe=recipe)
            steps = [sequence.step(A + sp.diags(t * abs(b)), b * (1 + t)) for t in (0, 0.01, 0.05, 0.2, 1, 4)]
            attempts = [(a.recipe, a.iterations) for s in steps for a in s.attempts]
            found.append((sequence.decisions, attempts, steps[-1].x.tobytes()))
    assert found[:2] == found[2:4] == found[4:]
    assert {"reuse", "update"} <= {*found[0][0], *found[1][0]}


@pytest.mark.parametrize("recipe", ["ilu0", "sparse_lu", None])
def test_each_x_has_memory_of_its_own(recipe):
    sequence, b = Sequence(convection(), recipe=recipe), values(N, "float64")
    found = [sequence.step(b=c).x for c in (b, b, b * (1 + 1e-12), b)]
    kept = [x.copy() for x in found]
    assert not any(np.shares_memory(x, y) for k, x in enumerate(found) for y in found[:k])
    found[0] *= 0
    assert all(np.array_equal(x, y) for x, y in zip(found[1:], kept[1:], strict=True))


def test_factors_of_a_shifted_matrix_are_not_complete():
    A, sequence = gallery.poisson5(30), Sequence(recipe=finelu.SparseLU(shift=0.5))
    steps = [sequence.step(A if k == 0 else None, values(900, "float64", k)) for k in range(3)]
    assert sequence.decisions == ["solve", "reuse", "reuse"] and all(len(s.attempts) == 1 for s in steps)


def test_fresh_factors_of_a_fixed_recipe_go_on_to_the_end():
    """Nothing better follows: the same recipe would be factored again."""
    A, sequence = gallery.poisson5(40), Sequence(recipe="jacobi")
    sequence.step(A, A @ np.ones(1600))  # few iterations
    solution = sequence.step(None, values(1600, "float64"))
    assert solution.converged and len(solution.attempts) == 1 and sequence.decisions[-1] == "reuse"


def test_digits_of_the_x_before_are_not_those_of_new_factors():
    A, b = as_csr(gallery.poisson5(40)), values(1600, "float64")
    rates = []
    for x0 in (None, finelu.cg(A, b, M=ILU0().factor(A), rtol=1e-6).x):
        sequence = Sequence(recipe="ic0")
        sequence._from_the_beginning(A, b, x0)
        rates.append(sequence._ageing.gained / sequence._ageing.taken)
    assert rates[1] <= 2 * rates[0]


@pytest.mark.parametrize("known", [False, True])
def test_without_a_tolerance_a_sequence_ends_each_step(known):
    A, sequence = convection(), Sequence(rtol=0.0, recipe="ilu0")
    for k in range(3 if known else 1):
        solution = sequence.step(sp.csr_matrix(A * (1 + k)), values(N, "float64"))
        assert np.isfinite(solution.x).all() and solution.residual_norm <= 1e-8


class Here(OrderingJob):
    """It is over at once, whatever the threads do."""

    def __init__(self, A):
        super().__init__(A, aside=False)

    @staticmethod
    def possible():
        return True


class Unwilling(OrderingJob):
    """Its kernels would have to be compiled first."""

    @staticmethod
    def possible():
        return False


def instantly(plan=0.0):
    """The rates of a GPU where cuDSS plans in `plan` seconds."""
    return lambda: replace(SHIPPED_ON_GPU, cudss_overhead=plan, cudss_row=0.0)


@pytest.fixture
def as_on_a_gpu(meanwhile):
    """as_on_a_gpu(...): the decision for complete factors by cuDSS, made on the CPU with those of SuperLU; returns the
    list of them."""

    def decided(plan=0.0, step=-1e9, entry=1e-30, broken=False, begun=Here):
        made = []

        class Complete:
            def __new__(cls, recipe, A, most, *, indefinite):
                assert recipe.backend == "cudss" and most > 0
                made.append(finelu.SparseLU(backend="superlu").factor(A))
                if broken:
                    raise MemoryError
                return made[-1]

        OrderingJob(as_csr(gallery.poisson7(16)), aside=False)  # its kernels are compiled
        cudss = SimpleNamespace(missing=lambda: "", CudssFactors=Complete)
        meanwhile(module, cudss=cudss, on_gpu=lambda array: True, current_on_gpu=instantly(plan), OrderingJob=begun)
        meanwhile(module, STEP=step, ENTRY=entry)
        return made

    return decided


def steps(sequence, count):
    A = gallery.poisson7(16)
    for k in range(count):
        B, b = sp.csr_matrix(A * (1 + 0.01 * k)), values(A.shape[0], "float64", k)
        solution = sequence.step(B, b)
        assert_solves(B, b, solution)
        yield solution


@pytest.mark.parametrize("begun", [Here, Unwilling])
def test_complete_factors_take_over_once_they_pay(as_on_a_gpu, begun):
    made, sequence = as_on_a_gpu(begun=begun), Sequence(rtol=1e-8)
    assert len(list(steps(sequence, 5))) == 5
    assert [k for k, decision in enumerate(sequence.decisions) if decision == "rebuild"] == [2]  # 0 tells nothing
    assert len(made) == 1 and sequence._F is made[0]


@pytest.mark.parametrize("change", [{"plan": 1e9}, {"step": 1e9}, {"entry": 1e15}], ids=["plan", "step", "fill"])
def test_complete_factors_that_take_too_long_are_not_made(as_on_a_gpu, change):
    made, sequence = as_on_a_gpu(**change), Sequence(rtol=1e-8)
    assert all(s.converged for s in steps(sequence, 4))
    assert not made and "rebuild" not in sequence.decisions


def test_steps_go_on_while_the_fill_is_counted(as_on_a_gpu):
    class Slow(Here):
        over = False

    made, sequence = as_on_a_gpu(begun=Slow), Sequence(rtol=1e-8)
    assert len(list(steps(sequence, 3))) == 3 and not made
    Slow.over = True
    assert len(list(steps(sequence, 2))) == 2
    assert sequence.decisions[3] == "rebuild" and sequence._F is made[0]


def test_complete_factors_that_cannot_be_made_are_tried_once(as_on_a_gpu):
    made, sequence = as_on_a_gpu(broken=True), Sequence(rtol=1e-8)
    said = sum("no complete factors by cuDSS: MemoryError" in s.explain() for s in steps(sequence, 4))
    assert said == len(made) == 1 and "rebuild" not in sequence.decisions and sequence._F is not made[0]


@ON_GPU
def test_cudss_takes_over_in_a_sequence(backend, meanwhile):
    import cupy
    import cupyx.scipy.sparse as csp

    if module.cudss.missing():
        pytest.skip(module.cudss.missing())
    A, sequence = sp.csr_matrix(gallery.poisson7(16)), Sequence(rtol=1e-8)
    OrderingJob(as_csr(A), aside=False)  # its kernels are compiled
    meanwhile(module, STEP=-1e9, current_on_gpu=instantly(), OrderingJob=Here)
    for k in range(5):
        b = values(A.shape[0], "float64", k)
        solution = sequence.step(csp.csr_matrix(A * (1 + 0.01 * k)), cupy.asarray(b))
        assert solution.converged
        assert np.linalg.norm(A @ solution.x.get() * (1 + 0.01 * k) - b) <= 2e-8 * np.linalg.norm(b)
    assert sequence.decisions[2] == "rebuild" and isinstance(sequence._F, module.cudss.CudssFactors)


def test_b_zero_columns_and_the_last_x():
    A, b = convection(), values(N, "float64")
    sequence = Sequence(A)
    assert not sequence.step(b=np.zeros(N)).x.any()
    x = sequence.step(b=b[:, None])
    assert x.x.shape == (N, 1)
    assert not sequence.step(b=np.zeros(N)).x.any()
    sequence = Sequence(A, recipe="ilu0")
    sequence.step(b=b)
    again = sequence.step(b=b)
    once_more = sequence.step(b=b)
    assert again.iterations == once_more.iterations == 0
    np.testing.assert_allclose(once_more.x, again.x, rtol=1e-6, atol=1e-8)
    assert_solves(A, b * 1e-200, sequence.step(b=b * 1e-200))
    huge = sequence.step(A * 1e100, b * 1e200)
    assert huge.converged
    assert np.linalg.norm(b - A @ (huge.x * 1e-100)) <= 1.001e-8 * np.linalg.norm(b)


def test_without_a_preconditioner_the_method_and_the_solutions_are_kept():
    A, b = gallery.poisson5(20).astype("float64"), values(400, "float64")
    sequence, iterations = Sequence(recipe=None), []
    for k in range(5):
        matrix = other_pattern(A) + other_pattern(A).T if k == 4 else sp.csr_matrix(A + 1e-3 * k * sp.eye(400))
        solution = sequence.step(matrix, b * (1 + 0.01 * k))
        assert_solves(matrix, b * (1 + 0.01 * k), solution)
        iterations.append(solution.iterations)
    assert sequence.decisions == ["solve"] + 4 * ["reuse"]
    assert max(iterations[1:4]) < iterations[0] and "no preconditioner was asked for" in solution.explain()
    assert_solves(A[:100, :100], b[:100], sequence.step(A[:100, :100], b[:100]))
    assert sequence.decisions[-1] == "solve"


@pytest.mark.parametrize("recipe", [None, "auto", "milu0"])
def test_a_matrix_that_is_symmetric_no_longer_gets_another_method(recipe):
    A = sp.csr_matrix(gallery.poisson5(40) + 0.1 * sp.eye(1600))
    b, skew = values(1600, "float64"), sp.diags([-0.9, 0.9], [-1, 1], shape=A.shape)
    for change in (skew, sp.kron(sp.diags([-0.9, 0.9], [-1, 1], shape=(40, 40)), sp.eye(40))):
        sequence = Sequence(recipe=recipe)
        first = sequence.step(A, b)
        B = sp.csr_matrix(A + change)
        solution = sequence.step(B, b)
        assert_solves(B, b, solution)
        assert first.method == solution.attempts[0].method == "cg" != solution.method
        *_, last, found = solution.attempts
        assert sequence.decisions == ["solve", "solve"]
        assert last.outcome.startswith("cg needs A = A^H, but A[") or (change is not skew and recipe == "auto")
        assert solution.iterations - found.iterations <= 5 * first.iterations + 10


def test_recipes_and_methods():
    A, b = convection(), values(N, "float64")
    for recipe in (None, "none", Jacobi(), "sparse_lu"):
        sequence = Sequence(A, recipe=recipe, method="bicgstab")
        for _ in range(2):
            assert_solves(A, b, sequence.step(b=b))


@pytest.mark.parametrize("wrong", [{"rtol": -1}, {"recipe": "best"}, {"method": "magic"}, {"rtol": "x"}])
def test_wrong_arguments(wrong):
    with pytest.raises(ParameterError) as error:
        Sequence(**wrong)
    one_line(error)


def test_wrong_steps():
    with pytest.raises(ParameterError) as error:
        Sequence().step(b=np.ones(3))
    one_line(error)
    with pytest.raises(ParameterError):
        Sequence(np.eye(3)).step()
    with pytest.raises(MatrixError) as error:
        Sequence(np.eye(3)).step(b=np.ones((3, 2)))
    assert "2 columns" in one_line(error)


@ON_GPU
def test_on_the_gpu(backend):
    sequence, b = Sequence(), values(N, "float64")
    for t in (0.0, 1e-3):
        solution = sequence.step(backend.move(convection(t)), backend.move(b))
        assert_solves(
            convection(t), b, finelu.result.Solution(backend.fetch(solution.x), solution.status, 0, 0.0, None)
        )
    assert sequence.decisions[0] == "solve" and sequence.decisions[1] in ("reuse", "update")


@ON_GPU
def test_a_small_system_on_the_gpu_is_solved_by_the_cpu(backend):
    finelu.solve(gallery.stokes(12), np.ones(gallery.stokes(12).shape[0]))  # compiles the CPU's kernels
    A, b = gallery.poisson5(30), values(900, "float64")
    for recipe, here in (("auto", True), (ILU0(), False)):
        sequence = Sequence(rtol=1e-8, recipe=recipe)
        for _ in range(2):
            solution = sequence.step(backend.move(A), backend.move(b))
            assert solution.converged and backend.fetch(solution.x) is not solution.x
            assert any("solved on the CPU" in text for text in solution.seen) is here
            assert np.linalg.norm(b - A @ backend.fetch(solution.x)) <= 1e-8 * np.linalg.norm(b)


def test_steps_of_growing_length_cost_less_than_with_factors_updated_by_hand():
    """Implicit Euler steps of heat in a square, as in examples/heat.py; costs are counted in iterations."""
    K, dt = sp.csr_matrix(gallery.poisson5(20)) * 21.0**2, 1e-4
    s = np.sin(np.pi / 21 * np.arange(1, 21))
    u = v = np.outer(s, s).ravel() + 0.01 * values(400, "float64")
    sequence, F, done, by_hand = Sequence(rtol=1e-10, recipe="ic0"), None, 0, 0
    for _ in range(20):
        A = sp.csr_matrix(sp.identity(400) + dt * K)
        step = sequence.step(A, u)
        assert_solves(A, u, step, 1e-10)
        assert len(step.attempts) <= 1 and "did not converge" not in step.explain()
        u, done = step.x, done + step.iterations
        F = finelu.IC0().factor(A) if F is None else F.update(A)
        hand = finelu.cg(A, v, M=F, x0=v, rtol=1e-10)
        v, by_hand = hand.x, by_hand + hand.iterations
        dt *= 1.1
    updates = sequence.decisions.count("update")
    assert done + UPDATE * updates <= by_hand + UPDATE * 19 and "rebuild" not in sequence.decisions


def drifting(A, steps):
    """A_k within 1% of A, and b_k of which the last ones say nothing."""
    rng = np.random.default_rng(5)
    for k in range(steps):
        D = sp.diags(1 + 0.005 * np.sin(k + rng.uniform(0, 2 * np.pi, A.shape[0])))
        yield sp.csr_matrix(D @ A @ D), rng.standard_normal(A.shape[0])


def test_a_recycled_space_is_kept_where_it_saves_iterations():
    A, found = gallery.elasticity(20, 5, 5), []
    sequence = Sequence(recipe="ic0", method="cg")
    for B, b in drifting(A, 8):
        found.append(sequence.step(B, b))
        assert_solves(B, b, found[-1])
    assert "recycled vectors keep about" in found[-1].explain() and sequence._recycling.space.size >= 4
    assert max(s.iterations for s in found[5:]) < 0.7 * found[0].iterations


def test_a_recycled_space_that_does_not_pay_is_dropped_after_one_solve_and_tried_rarely():
    """The slow vectors are many, so that 16 of them keep few iterations away, and each takes a quarter longer."""
    S = gallery.poisson7(14)
    sequence, found = Sequence(recipe="jacobi", method="cg"), []
    for B, b in drifting(S @ S + 0.02 * sp.eye(S.shape[0]), 5):
        found.append(sequence.step(B, b))
        assert_solves(B, b, found[-1])
    recycling, ageing = sequence._recycling, sequence._ageing
    assert ["recycled vectors were dropped" in s.explain() for s in found] == [False, False, True, False, False]
    lost = " ".join(found[2].explain().split())  # of the only solve with vectors
    assert "% of the iterations were left" in lost and recycling.space is None and recycling.tries == 1
    assert OF_LOSS * 0.1 * found[0].iterations < recycling.left < OF_LOSS * AT_RISK * found[0].iterations
    assert ageing.gained > 0 and ageing.expected(1.0) < np.inf  # what plain iterations have taken is known again


def test_no_space_is_tried_where_few_entries_a_row_make_its_vectors_dear():
    sequence = Sequence(recipe="jacobi", method="cg")
    for B, b in drifting(gallery.poisson5(50), 4):
        solution = sequence.step(B, b)
        assert solution.iterations > LEAST and sequence._recycling.space is None
        assert "recycled" not in solution.explain()


@pytest.mark.parametrize("n", [500, 12_000, 1_000_000])
@pytest.mark.parametrize("row", [5, 20, 80])
@pytest.mark.parametrize("plain", [21.0, 100.0, 2000.0])
def test_a_try_that_saves_nothing_takes_a_bounded_part_of_a_solve(n, row, plain):
    """A is what its counts say: the decision reads nothing else of it."""
    A, recycling = SimpleNamespace(n=n, nnz=row * n, data=np.empty(0)), Recycling()
    space = recycling.space_for("cg", None, A, 18.0, plain)
    cost = recycling._cost
    # with few entries a row the vectors take longer than what they save, unless n is so small that calls do
    assert (space is None) == (n > 500 and (row == 5 or (row == 20 and plain == 21)))
    if space is None:
        return
    m = space.k
    assert cost.of_trial(plain, m) <= AT_RISK * plain
    assert m == cost.vectors() or cost.of_trial(plain, m + 1) > AT_RISK * plain  # as many as may be tried
    space.W, recycling.plain = np.empty((1, m)), plain / 18.0
    assert recycling.space_for("cg", None, A, 18.0, plain) is space
    dropped = [recycling.seen(int(plain), 18.0) for _ in range(RIPE)]  # as many iterations as without
    assert any(dropped)
    assert recycling.space is None and recycling.left <= max(REST, OF_LOSS * (TRIAL + AT_RISK) * plain)


def test_more_solutions_are_combined_where_the_iterations_of_a_step_are_unknown():
    A, b = as_csr(gallery.poisson5(9)), values(81, "float64")
    guesses = FirstGuess()
    for seed in range(6):
        guesses.keep(values(81, "float64", seed + 10))
    guesses.saved = {FEW: 0.3, MOST: 1.0}
    guesses.begin(RightHandSide(A, b, np.linalg.norm(b), 1e-8), np.inf, 1.0)
    assert guesses.used == 6


@pytest.mark.parametrize("method", ["cg", "gmres"])
def test_a_recycled_space_that_fails_is_dropped_and_the_factors_are_kept(method, monkeypatch):
    """Its images are spoiled: the methods go on without it by themselves."""
    A, fit = gallery.elasticity(20, 5, 5), RecycledSpace.fit
    sequence = Sequence(recipe="ic0" if method == "cg" else "ilu0", method=method)
    systems = list(drifting(A, 6))
    for B, b in systems[:-2]:
        assert_solves(B, b, sequence.step(B, b))
    recycling = sequence._recycling
    assert recycling.space.size and recycling.left == 0

    def spoiled(self, A, like, **how):
        definite = fit(self, A, like, **how)
        self.image = self.image if self.image is None else self.image * np.nan
        return definite

    monkeypatch.setattr(RecycledSpace, "fit", spoiled)
    solution = sequence.step(*systems[-2])
    assert_solves(*systems[-2], solution)
    assert sequence.decisions[-1] != "solve" and "recycled vectors were dropped" in solution.explain()
    assert "the method failed with them or took too long" in " ".join(solution.explain().split())
    assert len(solution.attempts) == 1
    assert recycling.space is None and recycling.left > 0 and recycling.tries == 1
    assert_solves(*systems[-1], sequence.step(*systems[-1]))
    assert recycling.space is None and "did not converge" not in solution.explain()


def test_a_step_says_once_that_its_vectors_were_dropped_and_the_next_says_nothing(monkeypatch):
    """A space that shows a negative curvature ends the solve; the step goes on with another."""
    sequence = Sequence(recipe="ic0", method="cg")
    systems = list(drifting(gallery.elasticity(20, 5, 5), 6))
    for B, b in systems[:-2]:
        sequence.step(B, b)
    monkeypatch.setattr(RecycledSpace, "fit", lambda *_, **__: False)
    solution, after = (sequence.step(*system) for system in systems[-2:])
    assert solution.converged and [a.outcome for a in solution.attempts] == ["indefinite", "solved"]
    assert solution.explain().count("dropped") == 1 and "recycled" not in after.explain()


def test_with_old_factors_cg_is_not_compared_with_a_solve_by_fresh_ones(monkeypatch):
    run, seen, systems = Iterations.run, [], list(drifting(gallery.elasticity(20, 5, 5), 6))
    sequence = Sequence(recipe="ic0", method="cg")

    def watched(self, rhs):
        if self.recycle is not None and self.recycle.size:
            seen.append((sequence._current, self.recycle.usual))
        return run(self, rhs)

    monkeypatch.setattr(Iterations, "run", watched)
    for k, (B, b) in enumerate(systems):  # the first four have the same matrix
        sequence.step(B if k in (0, 4, 5) else None, b)
    old, fresh = ([usual for current, usual in seen if current is which] for which in (False, True))
    assert old and min(old) == np.inf and fresh and max(fresh) < np.inf
    assert sequence._recycling.space.size


def test_a_space_that_lost_its_vectors_is_filled_again():
    recycling, A = Recycling(), SimpleNamespace(n=1000, nnz=80_000, data=np.empty(0))
    space = recycling.space_for("cg", None, A, 18.0, 200.0)
    space.W, recycling.plain = np.empty((1, space.k)), 200 / 18
    for _ in range(RIPE):
        assert recycling.space_for("cg", None, A, 18.0, 200.0) is space and space.renew
        assert not recycling.seen(100, 18.0)
    assert recycling.space_for("cg", None, A, 18.0, 200.0) is space and not space.renew
    space.drop()  # as a solve does that was interrupted
    assert recycling.space_for("cg", None, A, 18.0, 200.0) is space and space.renew and not recycling.begins
    assert not recycling.seen(200, 18.0)
    space.W = np.empty((1, space.k))
    assert recycling.space_for("cg", None, A, 18.0, 200.0) is space and space.renew and recycling.begins


def test_a_step_whose_vectors_saved_nothing_ages_the_factors_too(monkeypatch):
    monkeypatch.setattr(Recycling, "seen", lambda *_: True)
    sequence = Sequence(recipe="ic0", method="cg")
    for B, b in drifting(gallery.elasticity(20, 5, 5), 4):
        assert_solves(B, b, sequence.step(B, b))
    assert sequence.decisions == ["solve", "reuse", "reuse", "reuse"] and sequence._ageing.age == 3


def test_a_trial_that_keeps_no_iterations_away_says_so():
    recycling, A = Recycling(), SimpleNamespace(n=1000, nnz=80_000, data=np.empty(0))
    space = recycling.space_for("cg", None, A, 18.0, 200.0)
    space.W, recycling.plain = np.empty((1, space.k)), 200 / 18
    for iterations, says in ((201, "keep no iterations away"), (150, "keep about 25% of")):
        assert recycling.space_for("cg", None, A, 18.0, 200.0) is space
        assert not recycling.seen(iterations, 18.0) and says in recycling.why


def test_a_solve_from_the_beginning_forgets_the_space():
    A = gallery.elasticity(20, 5, 5)
    sequence = Sequence(recipe="ic0", method="cg")
    for B, b in drifting(A, 4):
        sequence.step(B, b)
    assert sequence._recycling.space.size and sequence._recycling.plain
    sequence._from_the_beginning(as_csr(B), b)
    assert sequence._recycling.space is None and sequence._recycling.plain is None


def test_another_pattern_drops_the_space():
    A = gallery.elasticity(20, 5, 5)
    sequence = Sequence(recipe="ic0", method="cg")
    for B, b in drifting(A, 4):
        sequence.step(B, b)
    assert sequence._recycling.space.size
    other = sp.csr_matrix(A + 1e-6 * sp.eye(A.shape[0], k=30) + 1e-6 * sp.eye(A.shape[0], k=-30))
    assert other.nnz != A.nnz
    solution = sequence.step(other, b)
    assert_solves(other, b, solution)
    assert sequence.decisions[-1] == "rebuild" and "recycled" not in solution.explain()


def test_complete_factors_take_no_space():
    sequence = Sequence(recipe="sparse_lu")
    for B, b in drifting(gallery.poisson5(30), 4):
        assert_solves(B, b, sequence.step(B, b))
    assert sequence._recycling.space is None


def test_the_cost_of_a_space_grows_with_its_vectors_and_falls_with_the_entries_of_a_row():
    sparse, dense = (
        Cost.of(None, as_csr(A), cycles=False) for A in (gallery.poisson5(30), gallery.elasticity(9, 6, 6))
    )
    assert 0 < sparse.share(4) < sparse.share(8) and dense.share(8) < sparse.share(8)
    assert dense.vectors() >= sparse.vectors() and dense.pays(100, 50, 8) and not dense.pays(50, 50, 8)
    assert Cost.of(None, as_csr(gallery.poisson5(30)), cycles=True).share(8) > sparse.share(8)
