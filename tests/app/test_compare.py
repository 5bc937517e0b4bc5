"""`finelu compare`: the recommendation, the budget, Ctrl-C, the table, the page; and the picture of `inspect`."""

import io
import json
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from checks import without_gpu
from command_line import run, run_json
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import finelu
from finelu import report
from finelu.auto import rates
from finelu.auto.rates import GpuRates, Rates
from finelu.compare import (
    REFERENCES,
    Candidate,
    Comparison,
    Measurement,
    best,
    candidates,
    compare,
    crossover,
    held_bytes,
    kept,
    margin,
    measure,
    script,
    stages,
)
from finelu.compare.measure import GRACE, Worker
from finelu.compare.rounds import contenders, joined
from finelu.compare.worker import Share, serve
from finelu.matrix import as_csr
from finelu.preconditioners import RECIPES
from finelu.preconditioners.recipe import Recipe
from finelu.properties import density, dominance, level_sizes, properties
from finelu.report import advice, comparison_facts
from finelu.report.charts import chart

SMALL = "gallery:poisson7:6"
HISTORY = np.column_stack([np.arange(9), np.linspace(0, 1, 9), 10.0 ** -np.arange(9)])


def made_up(name, setup, solve, outcome="converged", method="cg", device="cpu", **more):
    recipe = f"{name.upper()}()"
    more = {"residual": 1e-9, "iterations": 8, "fill": 1.0, "memory": 1000, "runs": 1, "history": HISTORY} | more
    return Measurement(
        name=name, recipe=recipe, method=method, device=device, outcome=outcome, setup=setup, solve=solve, **more
    )


class Forked:
    """Replaces `subprocess.Popen` in compare/measure.py: a child that need not repeat the imports of this process."""

    def __init__(self, command, pass_fds, **_):
        assert command[-1].endswith(f"serve({pass_fds[0]})")
        self._process = multiprocessing.get_context("fork").Process(target=serve, args=pass_fds, daemon=True)
        self._process.start()
        self.kill = self._process.kill

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("serve", timeout)

    @property
    def returncode(self):
        return self._process.exitcode


@pytest.fixture
def forked(meanwhile):
    meanwhile(measure, subprocess=SimpleNamespace(**{**vars(subprocess), "Popen": Forked}))


@pytest.fixture(autouse=True)
def keeps_apart(monkeypatch, tmp_path_factory):
    """What the command line keeps lies in a folder of this test."""
    monkeypatch.setattr(finelu.compare, "cache_folder", lambda: tmp_path_factory.mktemp("kept"))


FORKED = pytest.mark.usefixtures("forked")  # of tests of what is measured, not of the process that measures


# Which to take


def test_the_cheapest_for_one_and_for_many():
    cheap, dear = made_up("jacobi", 0.0, 10.0), made_up("ic0", 12.0, 4.0)
    wrong = made_up("ilu0", 0.0, 0.1, outcome="stagnated")
    rows = [dear, wrong, cheap]
    assert best(rows) is cheap
    assert best(rows, 3) is dear and best(rows, math.inf) is dear  # 3 * 10 against 12 + 3 * 4
    assert crossover(dear, cheap) == 3  # at 2 they are equal: 20
    assert crossover(cheap, cheap) == 1
    assert crossover(wrong, cheap) is None
    assert crossover(made_up("ilut", 5.0, 10.0), cheap) is None  # never: a solve costs as much
    assert stages(rows) == [(1, cheap), (3, dear)]


def test_nothing_solved_has_no_best():
    rows = [made_up("jacobi", 0.0, 1.0, outcome="time limit")]
    assert best(rows) is None and stages(rows) == []
    assert math.isinf(rows[0].total())


def test_among_equals_the_smaller_set_up_wins():
    one, other = made_up("ic0", 2.0, 1.0), made_up("jacobi", 1.0, 2.0)
    assert best([one, other]) is other and best([other, one]) is other


TIMES = st.integers(0, 50)  # whole numbers, so that sums are exact


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=8))
def test_stages_are_the_best_for_every_number_of_right_hand_sides(times):
    rows = [made_up(f"r{k}", float(setup), float(solve)) for k, (setup, solve) in enumerate(times)]
    found = stages(rows)
    assert found[0][0] == 1
    assert [k for k, _ in found] == sorted({k for k, _ in found})
    for k in range(1, 120):
        taken = [m for first, m in found if first <= k][-1]
        assert taken.total(k) == min(m.total(k) for m in rows)
    cheapest = best(rows)
    for m in rows:
        first = crossover(m, cheapest)
        wins = [k for k in range(1, 120) if m.total(k) < cheapest.total(k)]
        assert wins == ([] if first is None or m is cheapest else list(range(first, 120)))


# What is measured


@pytest.fixture(scope="module")
def small():
    """A comparison of a small positive definite system, with pictures."""
    A = finelu.gallery.problem("poisson7:6")
    b = np.random.default_rng(0).uniform(-0.5, 0.5, A.shape[0])
    names = ["none", "jacobi", "ic0", "ilu0", "multilevel", "solve", "spilu", "splu"]
    return A, b, compare(A, b, budget=120, recipes=names, pictures=True, device="cpu")


def test_every_recipe_has_a_row_and_its_residual_is_true(small):
    A, _, result = small
    names = {"none", "jacobi", "ic0", "ilu0", "multilevel", "solve", "spilu", "splu"}
    assert {m.name for m in result.measurements} == names
    for m in result.measurements:
        assert m.solved and 0 < m.residual <= 1.01e-8
        assert m.runs >= 1 and m.solve > 0 and m.setup >= 0
    by_name = {m.name: m for m in result.measurements if m.method != "bicgstab"}
    assert {by_name[name].method for name in ("ic0", "ilu0", "none")} == {"cg"}
    assert by_name["multilevel"].method == "gmres" and by_name["splu"].method == "direct"
    assert by_name["none"].memory == 0 and by_name["none"].fill == 0
    assert by_name["ilu0"].fill == 1 and by_name["jacobi"].memory == 8 * A.shape[0]
    assert by_name["ic0"].iterations < by_name["none"].iterations
    assert best(result.measurements).total() == min(m.total() for m in result.measurements)
    history = by_name["ic0"].history
    assert history[0, 2] == pytest.approx(1) and history[-1, 2] <= 1e-8
    assert history[-1, 1] == pytest.approx(by_name["ic0"].solve) and (np.diff(history[:, 1]) >= 0).all()


def test_pictures_of_the_factors(small):
    A, _, result = small
    ilu0 = next(m for m in result.measurements if m.name == "ilu0")
    assert ilu0.pictures.density.sum() == A.nnz
    assert ilu0.pictures.lower.tolist() == level_sizes(as_csr(A))[0].tolist()
    assert next(m for m in result.measurements if m.name == "jacobi").pictures is None


@FORKED
def test_what_does_not_apply_is_said():
    A = finelu.gallery.problem("convection_diffusion:5")
    result = compare(A, np.ones(A.shape[0]), budget=60, device="cpu", recipes=["jacobi", "block_jacobi", "ic0", "ict"])
    assert [m.name for m in result.measurements] == ["jacobi"]
    assert result.left_out == {
        "block_jacobi": "no dense blocks were found",
        "ic0": "A is not Hermitian",
        "ict": "A is not Hermitian",
    }


@FORKED
def test_a_matrix_with_blocks_has_its_block_size():
    A = sp.kron(sp.diags([1.0, 4.0, 1.0], [-1, 0, 1], shape=(12, 12)), np.ones((3, 3)) + 3 * np.eye(3)).tocsr()
    result = compare(A, np.ones(36), budget=60, device="cpu", recipes=["block_jacobi"])
    assert result.measurements[0].recipe == "BlockJacobi(block_size=3)"


@FORKED
def test_a_recipe_without_factors_is_a_row_that_says_why(capsys, tmp_path):
    A = sp.csr_matrix(np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]))
    scipy.io.mmwrite(tmp_path / "A.mtx", A)
    status, found = run_json(capsys, "compare", tmp_path / "A.mtx", "--recipes", "ilu0,splu", "--device", "cpu")
    rows = {row["name"]: row for row in found["measurements"]}
    assert status == 0
    assert rows["ilu0"]["outcome"] == "no factors" and "the pivot of row 1" in rows["ilu0"]["reason"]
    assert rows["ilu0"]["total"] is None and rows["splu"]["outcome"] == "converged"


@FORKED
def test_gmres_that_begins_anew_is_followed_by_bicgstab():
    A = finelu.gallery.problem("ani4")
    result = compare(A, np.ones(A.shape[0]), budget=60, device="cpu", recipes=["parilu"])
    assert [m.method for m in result.measurements] == ["gmres", "bicgstab"]
    assert result.measurements[0].iterations > 50
    assert result.measurements[0].memory == result.measurements[1].memory


@FORKED
def test_nothing_applies_to_a_singular_matrix_but_the_call_ends_well(capsys, tmp_path):
    scipy.io.mmwrite(tmp_path / "A.mtx", sp.csr_matrix((4, 4)))
    status, found = run_json(capsys, "compare", tmp_path / "A.mtx", "--device", "cpu")
    assert status == 1
    assert not any(row["outcome"] == "converged" for row in found["measurements"])
    assert found["recommendation"][0]["for"] == "No recommendation"


@FORKED
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_other_dtypes(dtype):
    A = finelu.gallery.problem("poisson7:5").astype(dtype)
    b = np.ones(A.shape[0], dtype)
    result = compare(A, b, rtol=1e-4, budget=60, device="cpu", recipes=["ilu0", "spilu"])
    assert all(m.solved for m in result.measurements)


def test_memory_counts_each_array_once_and_not_those_of_A():
    A = as_csr(finelu.gallery.problem("poisson7:6"))
    assert held_bytes(finelu.Jacobi().factor(A), A) == 8 * A.n
    F = finelu.ILU0().factor(A)
    once = held_bytes(F, A)
    assert once >= 8 * A.nnz  # the values of L and U
    F.again = [F._triangles.data, F._triangles.data[3:], {"more": F}]
    F.pattern_again = A.indices
    assert held_bytes(F, A) == once
    F.more = np.zeros(100)
    assert held_bytes(F, A) == once + 800


def test_memory_counts_what_factors_of_another_package_hold():
    class Foreign:
        def __init__(self):
            self.inverse = np.ones(216)

    assert held_bytes(Foreign(), as_csr(finelu.gallery.problem("poisson7:6"))) == 216 * 8


@FORKED
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_memory_counts_what_superlu_holds(precision):
    A = as_csr(finelu.gallery.problem("poisson7:6"))
    F = finelu.SparseLU(precision=precision).factor(A)
    entries = sum(part.nnz for part in (F._lu._made[0].L, F._lu._made[0].U))
    assert entries * (int(precision[5:]) // 8 + 4) <= held_bytes(F, A) <= 2 * entries * 12 + 100 * A.n
    both = compare(A, np.ones(A.n), budget=60, device="cpu", recipes=["sparse_lu", "splu"]).measurements
    ours, theirs = (next(m for m in both if m.name == name) for name in ("sparse_lu", "splu"))
    assert theirs.memory == pytest.approx(12 * (theirs.fill * A.nnz + A.n))
    assert ours.memory > 12 * ours.fill * A.nnz


def test_what_works_on_the_cpu_alone_is_measured_there_alone():
    A = as_csr(finelu.gallery.problem("poisson7:6"))
    names = ["ilu0", "sparse_lu", "spilu", "splu"]
    for devices, where in ((["cpu"], ["cpu"]), (["cpu", "cuda"], ["cpu"]), (["cuda"], [])):
        todo, left_out = candidates(A, properties(A), names, devices)
        assert [c.device for c in todo if c.name == "ilu0"] == devices
        for name in names[1:]:
            assert [c.device for c in todo if c.name == name] == where * (2 if name == "splu" else 1)
            assert left_out.get(name) == (None if where else "it works on the CPU alone")


@pytest.mark.parametrize(
    ("problem", "permc"), [("poisson7:5", ["MMD_AT_PLUS_A", "COLAMD"]), ("bidiagonal:30", ["COLAMD"])]
)
def test_the_yardstick_comes_early_with_the_ordering_that_suits_the_pattern(problem, permc):
    A = as_csr(finelu.gallery.problem(problem))
    todo, _ = candidates(A, properties(A), ["ilu0", "spilu", "splu", "solve", "none"], ["cpu"])
    first = [c.name for c in todo].index("solve")  # after the recipe that `solve` tries first, if that is asked for
    assert first <= 1 and (todo[first + 1].name, todo[first + 1].permc) == ("splu", permc[0])
    assert [c.permc for c in todo if c.name == "splu"] == permc


def test_symmetric_mode_halves_what_splu_stores(small):
    _, _, result = small
    theirs = {m.permc: m for m in result.measurements if m.name == "splu"}
    assert theirs["MMD_AT_PLUS_A"].fill < theirs["COLAMD"].fill


@FORKED
def test_solve_is_measured_as_it_is_called():
    A = finelu.gallery.problem("convection_diffusion:8")
    b = np.ones(A.shape[0])
    result = compare(A, b, budget=60, device="cpu", recipes=["solve"])
    (row,) = result.measurements
    solution = finelu.solve(A, b, rtol=1e-8)
    assert row.solved and row.residual <= 1.01e-8 and row.iterations == solution.iterations
    assert row.chosen == f"{solution.recipe} with {solution.method}"
    assert row.setup == 0 and row.total(3) == 3 * row.solve  # each call sets up anew
    assert row.history[0, 2] == pytest.approx(1) and row.history[-1, 1] == pytest.approx(row.solve)
    ((title, words, code),) = advice(result, "gallery:convection_diffusion:8", None)
    assert title == "For one right-hand side and for many" and row.chosen in words and "set-up included" in words
    assert "fl.solve(A, b, rtol=1e-08)" in code
    assert comparison_facts(result, "A", None)["measurements"][0]["chosen"] == row.chosen


@FORKED
def test_scipys_rows_are_judged_as_ours_are():
    A = sp.csr_matrix(np.array([[0.1 + 0.2, -0.1, -0.2], [-0.1, 0.1 + 0.1, -0.1], [-0.2, -0.1, 0.2 + 0.1]]))
    b = np.array([1.0, 0.0, 0.0])
    x = sp.linalg.splu(A.tocsc(), permc_spec="MMD_AT_PLUS_A", options={"SymmetricMode": True}).solve(b)
    assert np.isfinite(x).all()  # there are factors, of a matrix that is singular up to rounding
    result = compare(A, b, budget=120, device="cpu", recipes=["splu", "spilu", "solve"])
    assert result.measurements and not any(m.solved for m in result.measurements)
    assert all(m.residual > 0.1 for m in result.measurements if m.residual is not None)


def test_compiling_takes_nothing_of_a_share():
    spent = [0.0]
    share = Share(10.0, time.monotonic() + 5.0, lambda: spent[0])
    assert share.left <= 5.0
    spent[0] = 1000.0
    assert 990.0 < share.left <= 1005.0


def test_density_and_level_sizes_count_everything():
    A = finelu.gallery.problem("poisson7:6")
    assert density(A, 1000).tolist() == (A != 0).toarray().astype(int).tolist()
    counts = density(A, 7)
    assert counts.shape == (7, 7) and counts.sum() == A.nnz
    assert counts[0, 0] == A[:31, :31].nnz  # rows 0 to 30 of 216: i * 7 // 216 == 0
    lower, upper = level_sizes(as_csr(A))
    assert lower.sum() == upper.sum() == 216 and lower.size == 16 and lower[0] == 1


def test_dominance_is_diagonal_over_the_rest():
    A = sp.csr_matrix(np.array([[4.0, -1.0, 1.0], [0.0, 2.0, 0.0], [3.0, 0.0, 0.0]]))
    assert dominance(as_csr(A, diagonal=False)).tolist() == [2.0, math.inf, 0.0]


# Limits


class Clock:
    """Stands for the module `time`."""

    def __init__(self, now):
        self.ahead, self.plain = 0.0, now

    def monotonic(self):
        return self.plain() + self.ahead


@pytest.fixture
def clock(meanwhile):
    """clock(now): the Clock that compare/measure.py reads from then on."""

    def read(now=lambda: 0.0):
        made = Clock(now)
        meanwhile(measure, time=made)
        return made

    return read


class Course:
    """A channel to a process that sends each message at its time, and nothing more; waiting for it takes time."""

    def __init__(self, clock, messages):
        self.clock, self.messages = clock, list(messages)

    def send(self, _):
        """No process is there."""

    def poll(self, seconds):
        assert seconds > 0
        if not self._due():
            self.clock.ahead += seconds
        return self._due()

    def _due(self):
        return bool(self.messages) and self.messages[0][0] <= self.clock.ahead

    def recv(self):
        return self.messages.pop(0)[1]


def waiting(clock, *messages):
    """A Worker whose process sends these at their times."""
    worker = object.__new__(Worker)
    worker.channel, worker.system, worker.ended, worker.compiled = Course(clock, messages), None, False, 0.0
    return worker


def test_a_candidate_is_not_ended_while_it_compiles(clock):
    """1000 s of compiling, of a share of 10 s and a budget of 20 s."""
    candidate = Candidate("none", None, "cg", "cpu")
    row = candidate.row("converged", "")
    course = [(0, ("stage", "cg", "the solve")), (1, ("compiling", None)), (1001, ("compiling", 1000.0)), (1005, row)]
    worker = waiting(clock(), *course, (1006, ("end",)))
    assert list(worker.measure(candidate, 10.0, 20.0, math.inf, lambda text: None)) == [row]
    assert worker.compiled == 1000.0 and not worker.ended


@pytest.mark.parametrize(
    ("messages", "end"),
    [
        ((("stage", "cg", "the set-up"),), 3.0),  # its share
        ((("stage", "cg", "the set-up"), ("compiling", None), ("compiling", 2.0), ("stage", "cg", "cg")), 3.0),
        ((), 10.0),  # its share begins with the first stage
    ],
    ids=["share", "compiled", "nothing"],
)
def test_what_takes_too_long_is_ended_a_second_after_its_share(clock, messages, end):
    clock, ended = clock(lambda: 100.0), []
    worker = waiting(clock, *((0, message) for message in messages))
    worker.end = lambda: ended.append(clock.monotonic())
    A = as_csr(finelu.gallery.problem("poisson7:4"))
    todo, _ = candidates(A, properties(A), ["ic0"], ["cpu"])
    (row,) = worker.measure(todo[0], 3.0, 110.0, math.inf, lambda text: None)
    assert row.outcome == "time limit" and row.setup is None
    assert ended == [pytest.approx(100 + end + GRACE, abs=1e-9)]


class Scripted:
    """Replaces the process that measures: each candidate takes its seconds, or is cut short with its share.

    times : name -> (set-up, solve), or a list of these for its turns, of which the last one is repeated.
    asked : (name, share) of each turn.
    """

    def __init__(self, clock, times):
        self.clock, self.times, self.asked, self.turns = clock, times, [], {}
        self.ended, self.compiled, self.ends_at = False, 0.0, math.inf

    def __call__(self, system):
        self.ended = False
        return self

    def measure(self, candidate, limit, deadline, enough, stage):
        stage("the set-up")
        self.asked.append((candidate.name, limit))
        turn = self.turns[candidate.name] = self.turns.get(candidate.name, 0) + 1
        if len(self.asked) == self.ends_at:
            raise KeyboardInterrupt
        course = self.times[candidate.name]
        setup, solve = course[min(turn, len(course)) - 1] if isinstance(course, list) else course
        took = min(setup + solve, limit, deadline - self.clock.ahead)
        self.clock.ahead += took
        if took < setup:
            self.ended = True
            yield candidate.row("time limit", "cut short")
            return
        more = {"setup": setup, "solve": solve, "iterations": 3, "residual": 1e-9, "runs": 1, "history": HISTORY}
        yield candidate.row("converged" if took >= setup + solve else "too slow", "", **more)

    def end(self):
        """Nothing to end."""


@pytest.fixture
def scripted(clock, meanwhile):
    """scripted(times): the process that `compared` uses, and `compared` itself: the rows by name, the comparison."""

    def made(times, ends_at=math.inf):
        process = Scripted(clock(), times)
        process.ends_at = ends_at
        meanwhile(measure, Worker=process)

        def compared(recipes=tuple(times), problem="poisson7:6", **options):
            A = finelu.gallery.problem(problem)
            result = compare(A, np.ones(A.shape[0]), device="cpu", recipes=recipes, **({"budget": 1000} | options))
            return {m.name: m for m in result.measurements}, result

        return process, compared

    return made


def turns(process, name):
    return sum(asked == name for asked, _ in process.asked)


def test_shares_are_of_what_is_left_and_end_with_the_budget(scripted):
    process, compared = scripted(dict.fromkeys(("none", "ilu0", "ic0", "jacobi"), (1000.0, 1.0)))
    rows, result = compared(budget=90)
    assert process.asked[0][1] == 15.0  # a third of a half
    assert {m.outcome for m in rows.values()} == {"time limit"}
    assert result.seconds == pytest.approx(90.0)
    assert max(turns(process, name) for name in rows) == 2  # a longer look, with the rest


def test_every_candidate_is_looked_at_before_one_is_measured_again(scripted):
    times = {"none": (0.0, 3.0), "ilu0": (1.0, 1.0), "ic0": (1.0, 1.2), "jacobi": (0.0, 2.5), "ict": (9.0, 1.0)}
    process, compared = scripted(times)
    compared()
    assert sorted(name for name, _ in process.asked[: len(times)]) == sorted(times)


def test_the_rounds_go_to_those_that_may_win(scripted):
    times = {"ilu0": (1.0, 1.0), "ic0": (1.0, 1.2), "jacobi": (0.0, 5.0), "none": (0.0, 7.0), "ict": (0.0, 90.0)}
    process, compared = scripted(times)
    rows, _ = compared()
    assert turns(process, "ict") == 1  # far from the best
    assert turns(process, "ilu0") == turns(process, "ic0") == 7  # the first look, and six rounds
    assert turns(process, "none") == 2 and turns(process, "jacobi") == 2  # four in the first round, two in the next
    assert [turn for turn, *_ in rows["ilu0"].samples] == list(range(7))


def test_a_dear_set_up_has_a_place_in_the_rounds_where_its_solves_win(scripted):
    times = {"ilu0": (0.0, 5.0), "ic0": (0.0, 5.5), "sparse_lu": (20.0, 0.1), "ict": (200.0, 0.05)}
    process, compared = scripted(times, math.inf)
    rows, result = compared(budget=4000)
    assert turns(process, "sparse_lu") == 7
    assert turns(process, "ict") == 2 and rows["ict"].solved  # cut short at first, then looked at with the rest
    assert [m.name for _, m in stages(result.measurements)] == ["ilu0", "sparse_lu", "ict"]


def test_a_first_look_is_cut_short_where_it_cannot_win_and_gets_the_rest_later(scripted):
    times = {"ilu0": (1.0, 1.0), "ic0": (1.0, 1.5), "ict": (300.0, 1.0)}
    process, compared = scripted(times)
    rows, _ = compared()
    (_, short), (_, long) = (look for look in process.asked if look[0] == "ict")
    assert short == 40.0 and long > 300.0  # twice ten times the cheapest total
    assert rows["ict"].solved
    assert process.asked.index(("ict", long)) > max(k for k, (name, _) in enumerate(process.asked) if name == "ilu0")


def test_a_longer_look_is_for_the_not_reached_first_and_never_for_less_than_was_too_short(scripted):
    times = {"none": (0.0, 30.0), "ilu0": (200.0, 1.0), "ic0": (200.0, 1.0), "ict": (200.0, 1.0), "jacobi": (0.0, 40.0)}
    process, compared = scripted(times)
    rows, _ = compared(budget=100)
    for name in times:
        shares = [share for asked, share in process.asked if asked == name]
        assert rows[name].solved or shares == sorted(shares)
    reached = [name for name, _ in process.asked]
    assert reached.index("jacobi") < len(times) or rows["jacobi"].outcome == "not reached"


def test_one_that_a_longer_look_finds_near_the_best_has_its_rounds_before_the_hopeless_have_more(scripted):
    hopeless = dict.fromkeys(("jacobi", "ic0", "milu0", "iluk", "ict", "ilut"), (900.0, 1.0))
    process, compared = scripted({"none": (0.0, 0.5), "ilu0": (1.8, 0.1)} | hopeless)
    _, result = compared(budget=40)
    names = [name for name, _ in process.asked]
    assert names.index("ilut") < names.index("ilu0", names.index("ilu0") + 1)  # its first look was cut short
    won = margin(result.measurements)
    assert (won.first.name, won.second.name, won.rounds) == ("none", "ilu0", 6)
    assert names[-1] in hopeless and result.seconds == pytest.approx(40.0)  # which have the rest


def test_the_margin_is_of_rounds_that_both_had_and_not_of_the_first_look(scripted):
    lucky = [(0.0, 1.0), *[(0.0, 4.0)] * 6]  # ic0 looks best at first
    _, compared = scripted({"ilu0": (0.0, 2.0), "ic0": lucky})
    rows, result = compared()
    won = margin(result.measurements)
    assert (won.first.name, won.second.name, won.ratio, won.low, won.high) == ("ilu0", "ic0", 2.0, 2.0, 2.0)
    assert won.rounds == 6 and won.decided and won.confidence == 1 - 2**-5
    assert rows["ic0"].solve == 4.0 and rows["ic0"].runs == 7
    (text,) = report.verdict(result)
    assert "2 times as long" in text and "6 rounds, a 97 % interval" in text


def test_what_cannot_be_distinguished_is_said(scripted):
    swings = [(0.0, t) for t in (2.0, 1.0, 3.0, 1.0, 3.0, 1.0, 3.5)]
    _, compared = scripted({"ilu0": (0.0, 2.0), "ic0": swings})
    _, result = compared()
    won = margin(result.measurements)
    assert won.low < 1 < won.high and not won.decided
    assert report.verdict(result)[0].startswith("Either may be faster")


@given(st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=9), st.integers(0, 5))
def test_contenders_include_the_best_and_become_fewer(times, made):
    rows = [made_up(f"r{k}", float(s), float(t)) for k, (s, t) in enumerate(times)]
    chosen = contenders(rows, made)
    assert len(chosen) != 1 and len(contenders(rows, made + 1)) <= len(chosen)
    assert not chosen or min(m.total() for m in chosen) == best(rows).total()
    for m in chosen:
        assert m.total() <= 10 * best(rows).total()


def test_nobody_near_needs_no_rounds_and_the_margin_says_so(scripted):
    process, compared = scripted({"ilu0": (0.0, 1.0), "ic0": (0.0, 8.0)})
    _, result = compared()
    assert len(process.asked) == 2
    won = margin(result.measurements)
    assert (won.ratio, won.rounds, won.confidence, won.decided) == (8.0, 0, 0.0, False)
    assert "single look" in report.verdict(result)[0]


def test_the_history_of_several_rounds_ends_with_their_median():
    one, two = (made_up("ilu0", 1.0, seconds, history=HISTORY * [1, seconds, 1]) for seconds in (2.0, 5.0))
    row = joined(joined(None, one, 1), two, 2)
    assert row.solve == 3.5 == row.history[-1, 1] and np.array_equal(row.history[:, ::2], HISTORY[:, ::2])


# The file

KEPT = {"ilu0": (1.0, 1.0), "ic0": (1.0, 1.2), "ict": (0.0, 90.0)}


def test_another_call_measures_nothing_anew(scripted, tmp_path):
    first, compared = scripted(KEPT)
    before, _ = compared(keep=tmp_path)
    second, compared = scripted(KEPT)
    rows, result = compared(keep=tmp_path)
    assert first.asked and not second.asked and result.kept == 3
    for name, m in rows.items():
        assert m.samples == before[name].samples and m.times == before[name].times
        np.testing.assert_array_equal(m.history, before[name].history)
    assert os.listdir(tmp_path) == [os.path.basename(result.file)]


def test_other_recipes_join_what_is_there(scripted, tmp_path):
    _, compared = scripted(KEPT)
    compared(["ict"], keep=tmp_path)
    process, compared = scripted(KEPT)
    rows, result = compared(keep=tmp_path)
    assert turns(process, "ict") == 0 and turns(process, "ilu0") == 7 and result.kept == 1
    assert len(rows) == 3 and len(os.listdir(tmp_path)) == 1


def test_rounds_of_different_calls_are_no_common_ones(scripted, tmp_path):
    times = {"milu0": (0.0, 1.0), "ict": (0.0, 1.2), "ilu0": (0.0, 1.1), "ic0": (0.0, 1.3)}
    pairs = ["milu0", "ict"], ["ilu0", "ic0"]
    for pair in pairs:
        _, compared = scripted(times)
        _, result = compared(pair, keep=tmp_path)
        assert margin(result.measurements).decided
    rows = [m for m in kept._read(Path(result.file)) if m.solved]
    assert len(rows) == 4 and all(len(m.samples) == 7 for m in rows)
    won = margin(rows)
    assert (won.first.name, won.second.name, won.rounds, won.decided) == ("milu0", "ilu0", 0, False)
    process, compared = scripted(times)
    _, result = compared(keep=tmp_path)
    assert result.kept == 4 and turns(process, "milu0") == turns(process, "ilu0") == 6
    won = margin(result.measurements)
    assert (won.second.name, won.rounds, won.decided) == ("ilu0", 6, True)
    process, compared = scripted(times)
    compared(keep=tmp_path)
    assert not process.asked


def test_margin_over_the_rows_of_two_files_has_no_common_rounds(scripted, tmp_path):
    rows = []
    for name, recipes in (("one", ["milu0", "ict"]), ("two", ["ilu0", "ic0"])):
        _, compared = scripted(dict.fromkeys(recipes, (0.0, 1.0)) | {recipes[1]: (0.0, 1.5)})
        rows += kept._read(Path(compared(recipes, keep=tmp_path / name)[1].file))
    assert margin(rows).rounds == 0 and not margin(rows).decided
    assert margin(rows[:2]).rounds == margin(rows[2:]).rounds == 6


@pytest.mark.parametrize(
    "other", [{"rtol": 1e-6}, {"method": "gmres"}, {"problem": "poisson7:5"}, {"again": True}], ids=str
)
def test_another_setting_or_matrix_is_measured_anew(scripted, tmp_path, other):
    _, compared = scripted(KEPT)
    compared(keep=tmp_path)
    process, compared = scripted(KEPT)
    _, result = compared(keep=tmp_path, **other)
    assert {name for name, _ in process.asked} == set(KEPT) and result.kept == 0
    assert len(os.listdir(tmp_path)) == (1 if "again" in other else 2)


def test_values_threads_and_sources_name_the_file(tmp_path, monkeypatch):
    A = as_csr(finelu.gallery.problem("poisson7:4"))
    b = np.ones(A.n)

    def name(A=A, b=b):
        return kept.Kept(tmp_path, A, b, 1e-8, "auto", ["cpu"], False).path.name

    names = {name(), name(A.with_values(2 * A.data)), name(b=2 * b)}
    monkeypatch.setattr(kept, "get_num_threads", lambda: 17)
    names.add(name())
    (tmp_path / "finelu").mkdir()
    (tmp_path / "finelu" / "x.py").write_text("changed")
    monkeypatch.setattr(kept, "PACKAGE", tmp_path / "finelu")
    names.add(name())
    assert len(names) == 5 and name() in names


def test_libraries_and_rates_name_the_file(tmp_path, monkeypatch):
    A = as_csr(finelu.gallery.problem("poisson7:4"))
    versions = {"nbklu": "1", "feral-solver": "1", "pypardiso": "1", "mkl": "1", "pymetis": "1"}

    def version(package):
        if package not in versions:
            raise kept.PackageNotFoundError(package)
        return versions[package]

    def name():
        return kept.Kept(tmp_path, A, np.ones(A.n), 1e-8, "auto", ["cpu"], False).path.name

    monkeypatch.setattr(kept, "version", version)
    monkeypatch.setenv("FINELU_RATES", str(tmp_path / "rates"))
    names = [name()]
    for package in list(versions):
        versions[package] = "2"
        names.append(name())
        del versions[package]
        names.append(name())
    rates.keep(Rates(klu_row=1.0))
    names.append(name())
    rates.keep(Rates(klu_row=2.0))
    names.append(name())
    assert len(set(names)) == len(names) == 13 and name() == names[-1]
    rates.forget()
    assert name() == names[-3]


def test_cupy_the_driver_and_cudss_name_the_file_of_a_gpu(tmp_path, monkeypatch):
    runtime = SimpleNamespace(driverGetVersion=lambda: 13000, runtimeGetVersion=lambda: 13000)
    cupy = SimpleNamespace(__version__="14.0", cuda=SimpleNamespace(runtime=runtime))
    cudss = {"version": "1.0.0", "missing": ""}
    monkeypatch.setattr(kept, "require_gpu", lambda: cupy)
    monkeypatch.setattr(kept, "gpu", lambda: "a GPU")
    monkeypatch.setattr(rates, "gpu", lambda: "a GPU")
    monkeypatch.setattr(kept.cudss, "library", lambda: SimpleNamespace(**cudss))
    monkeypatch.setenv("FINELU_RATES", str(tmp_path))
    found = [kept.surroundings(["cpu"]), kept.surroundings(["cpu", "cuda"])]
    cupy.__version__ = "14.1"
    found.append(kept.surroundings(["cpu", "cuda"]))
    runtime.driverGetVersion = lambda: 13010
    found.append(kept.surroundings(["cpu", "cuda"]))
    cudss.update(version="", missing="cuDSS is not installed")
    found.append(kept.surroundings(["cpu", "cuda"]))
    rates.keep(GpuRates(cg=1.0))
    found.append(kept.surroundings(["cpu", "cuda"]))
    assert len(set(found)) == len(found) == 6
    assert kept.surroundings(["cpu"]) == found[0]


def test_ctrl_c_keeps_what_was_measured_and_the_next_call_goes_on(scripted, tmp_path):
    process, compared = scripted(KEPT, ends_at=3)
    rows, result = compared(keep=tmp_path)
    assert result.interrupted and sum(m.outcome == "interrupted" for m in rows.values()) == 1
    second, compared = scripted(KEPT)
    rows, result = compared(keep=tmp_path)
    assert second.asked[0][0] == process.asked[2][0] and result.kept == 2 and not result.interrupted
    assert turns(second, process.asked[0][0]) in (0, 6)  # no first look again
    assert {name: m.outcome for name, m in rows.items()} == dict.fromkeys(("ilu0", "ic0"), "converged") | {
        "ict": "too slow"
    }


def test_ctrl_c_in_the_rounds_loses_no_round(scripted, tmp_path):
    process, compared = scripted(KEPT, ends_at=8)
    compared(keep=tmp_path)
    second, compared = scripted(KEPT)
    rows, _ = compared(keep=tmp_path)
    both = turns(process, "ilu0") + turns(second, "ilu0")
    assert len(rows["ilu0"].samples) in (7, 8) and both - len(rows["ilu0"].samples) <= 1
    assert margin(list(rows.values())).rounds >= 6


def test_what_was_cut_short_is_measured_by_the_next_call(scripted, tmp_path):
    times = {"ilu0": (1.0, 1.0), "ict": (70.0, 1.0)}
    _, compared = scripted(times)
    assert compared(keep=tmp_path, budget=50)[0]["ict"].outcome == "time limit"
    process, compared = scripted(times)
    rows, _ = compared(keep=tmp_path, budget=100)
    assert rows["ict"].solved and turns(process, "ilu0") == 0


def test_pictures_are_kept_with_the_rows(small, tmp_path):
    A, b, result = small
    holder = kept.Kept(tmp_path, as_csr(A), b, 1e-8, "auto", ["cpu"], False)
    holder.save(result.measurements)
    rows = kept.Kept(tmp_path, as_csr(A), b, 1e-8, "auto", ["cpu"], False).rows
    for m in result.measurements:
        (same,) = (row for row in rows[m.key] if row.method == m.method)
        assert (same.outcome, same.samples, same.recipe) == (m.outcome, m.samples, m.recipe)
        assert (same.pictures is None) == (m.pictures is None)
        for part in kept.PICTURES if m.pictures else ():
            np.testing.assert_array_equal(getattr(same.pictures, part), getattr(m.pictures, part))


def test_calls_at_the_same_time_keep_the_rows_of_both(tmp_path):
    A = as_csr(finelu.gallery.problem("poisson7:4"))

    def opened(again=False):
        return kept.Kept(tmp_path, A, np.ones(A.n), 1e-8, "auto", ["cpu"], again)

    def held():
        return {(m.name, m.method, m.outcome, len(m.samples)) for rows in opened().rows.values() for m in rows}

    def row(name, turns=1, **more):
        return made_up(name, 1.0, 1.0, samples=((0, 1.0, 1.0),) * turns, **more)

    one, other = opened(), opened()
    assert one.turn != other.turn
    one.save([row("ilu0", 3)])
    other.save([row("ic0"), row("ilu0", 2)])  # ilu0 of `one` had more turns
    assert held() == {("ilu0", "cg", "converged", 3), ("ic0", "cg", "converged", 1)}
    one.save([row("ilu0", 4), row("ict", 0, outcome="time limit", method="auto")])
    other.save([row("ic0", 2), row("ict")])  # the answer takes the place of none
    assert held() == {(name, "cg", "converged", k) for name, k in (("ilu0", 4), ("ic0", 2), ("ict", 1))}
    one.save([row("ict", 0, outcome="time limit")])
    assert ("ict", "cg", "converged", 1) in held() and len(held()) == 3
    other.save([row("ilu0", method="bicgstab")])
    assert {("ilu0", "cg", "converged", 4), ("ilu0", "bicgstab", "converged", 1)} <= held()
    anew = opened(again=True)
    anew.save([row("ic0")])
    assert held() == {("ic0", "cg", "converged", 1)}
    opened().save([row("ict")])
    anew.save([row("ic0", 2)])
    assert held() == {("ic0", "cg", "converged", 2), ("ict", "cg", "converged", 1)}


def test_a_method_that_followed_another_and_was_cut_short_is_measured_by_the_next_call(tmp_path):
    A = as_csr(finelu.gallery.problem("poisson7:4"))
    rows = [made_up("ilu0", 1.0, 1.0, outcome="indefinite_preconditioner")]
    rows += [made_up("ilu0", 1.0, 1.0, outcome="time limit", method="gmres")]

    def held():
        holder = kept.Kept(tmp_path, A, np.ones(A.n), 1e-8, "auto", ["cpu"], False)
        return holder, [(m.method, m.outcome) for m in holder.rows.get(rows[0].key, [])]

    for _ in range(2):  # saved twice, as after each candidate
        held()[0].save(rows)
        assert held()[1] == [(m.method, m.outcome) for m in rows]
    solved = made_up("ilu0", 1.0, 1.0, method="gmres", samples=((0, 1.0, 1.0),))
    held()[0].save([rows[0], solved])
    held()[0].save(rows)
    assert sorted(held()[1]) == [("cg", "indefinite_preconditioner"), ("gmres", "converged")]


def test_the_row_of_a_method_takes_the_place_of_its_own():
    todo = [SimpleNamespace(key=made_up("ilu0", 1, 1).key, recipe=None, asked=None)]
    course = measure._Course(None, todo, kept.Kept(None, None, None, 0, "", [], False), None)
    cut, failed = (
        made_up("ilu0", 1, 1, outcome="time limit", method="gmres"),
        made_up("ilu0", 1, 1, outcome="breakdown"),
    )
    for row in (cut, made_up("ilu0", 1, 1, outcome="breakdown", method="bicgstab")):
        course._take(row, 0)
    assert [m.method for m in course.rows] == ["bicgstab"]  # whose look found another answer than "cut short"
    course.rows = [cut, failed]
    course._take(failed, 0)
    assert [m.method for m in course.rows] == ["gmres", "cg"]


def test_processes_that_save_at_the_same_time_lose_no_row(tmp_path):
    A = as_csr(finelu.gallery.problem("poisson7:4"))

    def saves(name):
        holder = kept.Kept(tmp_path, A, np.ones(A.n), 1e-8, "auto", ["cpu"], False)
        for k in range(20):
            holder.save([made_up(f"{name}{i}", 1.0, 1.0, samples=((0, 1.0, 1.0),)) for i in range(k + 1)])

    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=saves, args=(name,)) for name in ("a", "b", "c")]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    rows = kept.Kept(tmp_path, A, np.ones(A.n), 1e-8, "auto", ["cpu"], False).rows
    assert {key[0] for key in rows} == {f"{name}{i}" for name in "abc" for i in range(20)}


def test_a_file_that_is_damaged_while_a_call_runs_ends_nothing(scripted, tmp_path):
    process, compared = scripted(KEPT)

    def damages(*_):
        if len(process.asked) == 5:
            (path,) = tmp_path.glob("*" + kept.ENDING)
            path.write_text("{")

    rows, result = compared(keep=tmp_path, watch=damages)
    assert rows["ilu0"].solved and len(rows["ilu0"].samples) == 7
    assert result.file is None and "damaged" in result.not_kept


@pytest.mark.parametrize("content", ["", "{", '{"format": 1, "rows": [{"name": "x"}]}'])
def test_a_damaged_file_is_named(scripted, tmp_path, content):
    _, compared = scripted(KEPT)
    _, result = compared(keep=tmp_path)
    with open(result.file, "w") as file:
        file.write(content)
    with pytest.raises(finelu.FileError, match=r"damaged.*Remove it, or measure again"):
        compared(keep=tmp_path)
    assert compared(keep=tmp_path, again=True)[1].kept == 0


def test_a_folder_that_cannot_be_written_ends_nothing(scripted, tmp_path):
    (tmp_path / "file").write_text("")
    _, compared = scripted(KEPT)
    rows, result = compared(keep=tmp_path / "file" / "folder")
    assert rows["ilu0"].solved and result.file is None and "Not a directory" in result.not_kept
    console = Console(file=io.StringIO(), width=200)
    report.print_comparison(console, result, SMALL, None, None)
    assert "nothing is kept" in console.file.getvalue()


def test_the_oldest_files_of_the_cache_go(tmp_path, monkeypatch):
    for k in range(5):
        (tmp_path / f"{k}{kept.ENDING}").write_text("")
        os.utime(tmp_path / f"{k}{kept.ENDING}", (k, k))
    (tmp_path / "other").write_text("")
    monkeypatch.setattr(kept, "MOST", 2)
    kept._keep_the_newest(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["3.compare.json", "4.compare.json", "other"]


def flies(clock, seconds, during):
    """The clock is so far ahead once `during` is reported. Returns the `watch` that it is reported to."""
    clock = clock(time.monotonic)

    def watch(text, *_):
        clock.ahead = max(clock.ahead, seconds if during in text else 0.0)

    return watch


@pytest.mark.slow
def test_a_set_up_that_takes_too_long_is_ended_with_its_share(clock):
    A = finelu.gallery.problem("poisson7:40")
    watch = flies(clock, 5000, "MMD_AT_PLUS_A on cpu: the set-up")
    result = compare(A, np.ones(A.shape[0]), budget=2000, device="cpu", recipes=["splu", "spilu", "none"], watch=watch)
    rows = {m.name: m for m in reversed(result.measurements)}  # of splu the first, with MMD_AT_PLUS_A
    assert set(rows) == {"splu", "spilu", "none"}
    assert rows["splu"].outcome == "time limit" and rows["splu"].setup is None


@pytest.mark.slow
def test_every_recipe_has_a_row_or_a_reason_on_a_large_matrix(capsys):
    _, found = run_json(capsys, "compare", "gallery:poisson7:47", "--budget", "10s", "--device", "cpu")
    names = {"none", "solve", *RECIPES, *REFERENCES}
    assert {row["name"] for row in found["measurements"]} | set(found["left_out"]) == names


def test_a_budget_that_is_spent_at_once_leaves_rows_that_say_so():
    A = finelu.gallery.problem("poisson7:6")
    result = compare(A, np.ones(216), budget=1e-9, device="cpu", recipes=["ic0", "jacobi"])
    assert [m.outcome for m in result.measurements] == ["not reached", "not reached"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Odd(Recipe):
    """A recipe that does in the other process what its name says, in place of a set-up."""

    def factor(self, A):
        return getattr(self, type(self).__name__.lower())(A)


class Sleeping(Odd):
    def sleeping(self, A):
        time.sleep(1000)


class Dying(Odd):
    def dying(self, A):
        os.kill(os.getpid(), signal.SIGKILL)


class Defective(Odd):
    def defective(self, A):
        raise RuntimeError("can't\ngo on")


class Greedy(Odd):
    def greedy(self, A):
        raise MemoryError("8 TiB")


class Counting(Odd):
    def counting(self, A):
        raise finelu.FineluError(f"{finelu.get_num_threads()} threads")


class Wrong(Odd):
    """M = 0: a method that believes in its recurrence would be done at once."""

    def wrong(self, A):
        return finelu.Jacobi().factor(A.with_values(A.data * np.nan_to_num(np.inf)))


@pytest.fixture
def odd(own_recipes):
    """measured(names, **options): the rows of these recipes on a small system."""
    for kind in (Sleeping, Dying, Defective, Greedy, Counting, Wrong):
        own_recipes(kind)
    A = finelu.gallery.problem("poisson7:6")

    def measured(*names, **options):
        result = compare(A, np.ones(216), device="cpu", recipes=names, **({"budget": 60} | options))
        return {m.name: m for m in result.measurements}, result

    return measured


def test_a_set_up_that_sleeps_has_its_share_and_the_others_have_theirs(odd, clock):
    clock = clock(time.monotonic)

    def watch(text, *_):
        clock.ahead += 700 if "the set-up of Sleeping()" in text else 0

    rows, result = odd("sleeping", "spilu", budget=2000, watch=watch)  # 333 s of the first look, the rest later
    assert 2000 < result.seconds < 3000
    assert rows["sleeping"].outcome == "time limit" and "the set-up of Sleeping()" in rows["sleeping"].reason
    assert rows["spilu"].solved  # by another process


def test_a_process_that_dies_is_a_row(odd):
    rows, _ = odd("dying", "spilu")
    assert rows["dying"].outcome == "ended" and "signal 9" in rows["dying"].reason
    assert rows["spilu"].solved


@FORKED
def test_errors_are_rows(odd):
    rows, _ = odd("defective", "greedy", "spilu")
    assert (rows["defective"].outcome, rows["defective"].reason) == ("error", "RuntimeError: can't go on")
    assert (rows["greedy"].outcome, rows["greedy"].reason) == ("out of memory", "8 TiB")
    assert rows["spilu"].solved


def test_threads_reach_the_other_process(odd):
    before = finelu.get_num_threads()
    try:
        finelu.set_num_threads(3)
        assert odd("counting")[0]["counting"].reason == "3 threads"
    finally:
        finelu.set_num_threads(before)


@FORKED
def test_recipes_of_others_are_measured_anew_each_time(odd, tmp_path):
    for _ in range(2):
        rows, result = odd("greedy", "spilu", keep=tmp_path)
        assert (rows["greedy"].outcome, rows["greedy"].reason) == ("out of memory", "8 TiB")
    assert result.kept == 1


@FORKED
def test_a_preconditioner_that_is_useless_is_not_called_solved(odd):
    rows, _ = odd("wrong")
    assert not rows["wrong"].solved and rows["wrong"].outcome != "error"


def test_a_solve_that_cannot_win_is_given_up(meanwhile):
    meanwhile(measure, LEAST_PATIENCE=0.0)
    A = finelu.gallery.problem("ani4")
    result = compare(A, np.ones(A.shape[0]), budget=60, device="cpu", recipes=["ic0", "milu0"])
    refused, milu0 = (m for m in result.measurements if m.name == "milu0")
    assert (refused.method, refused.outcome, milu0.method) == ("cg", "indefinite_preconditioner", "gmres")
    assert milu0.outcome == "too slow" and "10 times the cheapest total" in milu0.reason
    assert milu0.solve >= 10 * best(result.measurements).total()
    assert milu0.residual > 1e-8 and milu0.iterations > 0


@FORKED
def test_watch_is_called_with_what_is_measured():
    reported = []
    A = finelu.gallery.problem("poisson7:6")
    watch = lambda *what: reported.append(what)  # noqa: E731
    compare(A, np.ones(216), budget=60, device="cpu", recipes=["ic0", "splu"], watch=watch)
    assert {(k, of) for _, k, of in reported} == {(0, 3), (1, 3), (2, 3), (3, 3)}
    assert any("round 6 of 6, " in text for text, *_ in reported)
    assert all(
        text.startswith(("IC0() on cpu: ", "scipy splu, MMD_AT_PLUS_A on cpu: ", "scipy splu, COLAMD on cpu: "))
        for text, *_ in reported
    )


def heard(command, **options):
    """A process that hears Ctrl-C: a shell's background job, as the tests may be, ignores SIGINT, as what it starts."""
    hears = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=hears, **options
    )


# the command line, which makes a file once the second candidate is reported
REPORTING = """
import sys
import finelu.cli, finelu.compare

measured = finelu.compare.compare

def compare(*given, watch, **options):
    def reported(text, done, of):
        watch(text, done, of)
        if done == 1:
            open("second", "w").close()
    return measured(*given, watch=reported, **options)

finelu.compare.compare = compare
sys.exit(finelu.cli.main())
"""


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def runs(pid):
    """Whether there is such a process and it has not ended; a zombie may have no parent that asks for its status."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def at_work(folder, *options):
    """`finelu compare` in a process, once its second candidate has begun, which takes long; and what works for it."""
    keeps = folder.with_name(f"{folder.name}-kept")
    keeps.mkdir()
    options = ("--out", str(keeps), *options)
    arguments = ["gallery:poisson7:45", "--recipes", "none,sparse_lu", "--budget", "10m", "--device", "cpu", *options]
    process = heard([sys.executable, "-c", REPORTING, "compare", *arguments], cwd=folder)
    for _ in range(1200):
        if (folder / "second").exists():
            break
        assert process.poll() is None
        time.sleep(0.1)
    assert (folder / "second").exists()
    return process, children(process.pid)


def interrupted(folder, *options):
    """(stdout, stderr) of such a process, which Ctrl-C ends with all that works for it."""
    process, workers = at_work(folder, *options)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130 and not any(runs(pid) for pid in workers)
    return out, err


def test_ctrl_c_leaves_the_table_and_the_page_of_what_was_done(tmp_path):
    pytest.importorskip("jinja2")
    page = tmp_path / "page.html"
    out, err = interrupted(tmp_path, "--html", str(page))
    assert err == "finelu: interrupted; the earlier measurements are shown\n"
    assert "none" in out and "SparseLU()" in out and "interrupted" in out
    assert sorted(os.listdir(tmp_path)) == ["page.html", "second"]
    assert {"none", "SparseLU()"} <= set(parsed(page.read_text()).row_heads)


def test_ctrl_c_leaves_the_figures_of_what_was_done(tmp_path):
    out, err = interrupted(tmp_path, "--json")
    found = json.loads(out)
    assert err == "" and found["interrupted"] is True and os.listdir(tmp_path) == ["second"]
    outcomes = {row["name"]: row["outcome"] for row in found["measurements"]}
    assert outcomes == {"none": "converged", "sparse_lu": "interrupted"}


def test_the_process_that_works_ends_with_the_one_that_waits(tmp_path):
    process, workers = at_work(tmp_path)
    if not workers:
        pytest.skip("this system does not tell the children of a process")
    process.kill()
    process.communicate(timeout=120)
    for _ in range(1200):
        if not any(runs(pid) for pid in workers):
            return
        time.sleep(0.1)
    pytest.fail(f"of {workers} some run on")


# What is printed and written


class Page(HTMLParser):
    """What is looked at in a page; every element must be closed in its order."""

    VOID = {"meta", "img", "br", "line", "rect", "polyline", "link", "input", "hr"}

    def __init__(self, text):
        super().__init__()
        self.open, self.loads, self.ids, self.row_heads, self.code, self.attributes = [], [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.attributes += [(tag, name, value) for name, value in attrs.items()]
        self.loads += [attrs[name] for name in ("src", "href", "srcset", "data", "action", "poster") if name in attrs]
        self.ids += [attrs["id"]] if "id" in attrs else []
        if tag == "th" and attrs.get("scope") == "row":
            self.row_heads.append(attrs["data-sort"])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag

    def handle_data(self, data):
        if self.open[-2:] == ["pre", "code"]:
            self.code.append(data)


def parsed(text):
    return Page(text)


@pytest.fixture(scope="module")
def page(small, tmp_path_factory):
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    A, _, result = small
    path = tmp_path_factory.mktemp("page") / "page.html"
    report.write_page(str(path), result, as_csr(A), SMALL, None, "random")
    return path.read_text()


def test_the_page_loads_nothing(page):
    found = parsed(page)
    assert found.loads and all(load.startswith("data:image/png;base64,") for load in found.loads)
    assert not re.search(r"https?://|//[a-z]+\.[a-z]+/|@import|url\(", re.sub(r"base64,[\w+/=]+", "", page))
    assert len(found.ids) == len(set(found.ids))


def test_no_text_of_a_chart_lies_over_its_curves(page):
    charts = re.findall(r'<svg class="chart" viewBox.*?</svg>', page, re.DOTALL)
    assert len(charts) >= 4
    for chart_ in charts:
        frame = re.search(r'<rect class="frame" x="(.*?)" y="(.*?)" width="(.*?)" height="(.*?)"', chart_)
        x, y, width, height = map(float, frame.groups())
        texts = re.findall(r'<text x="(.*?)" y="(.*?)"', chart_)
        assert len(texts) > 4
        for left, base in texts:  # 14 units high, above its base line
            assert not (x <= float(left) <= x + width and y < float(base) and float(base) - 14 < y + height)


@pytest.mark.parametrize("draw", ["convergence", "matrix"])
def test_no_legend_of_a_picture_lies_over_its_curves(calls_of, tmp_path, draw):
    saved = calls_of(pytest.importorskip("matplotlib.figure").Figure, "savefig")
    if draw == "convergence":
        curves = {f"curve number {k}": np.geomspace(1, 10.0**-k, 20) for k in range(1, 9)}
        report.plot_convergence(str(tmp_path / "a.png"), curves, 1e-8)
    else:
        report.plot_matrix(str(tmp_path / "a.png"), as_csr(finelu.gallery.problem("poisson5:9")))
    ((drawn, *_),) = saved
    legends = [*drawn.legends, *(axes.get_legend() for axes in drawn.axes if axes.get_legend())]
    assert legends
    for legend in legends:
        box = legend.get_window_extent()
        assert not any(box.overlaps(axes.get_window_extent()) for axes in drawn.axes)
        assert drawn.bbox.x0 <= box.x0 and box.x1 <= drawn.bbox.x1 and drawn.bbox.y0 <= box.y0


def test_the_page_holds_every_row(small, page):
    _, _, result = small
    assert sorted(parsed(page).row_heads) == sorted(m.recipe for m in result.measurements)
    assert page.count("<tr") == 1 + len(result.measurements)
    assert page.count('class="curve') >= 2 * sum(m.history is not None for m in result.measurements)


def test_the_page_is_for_everybody(page):
    found = parsed(page)
    named = {(tag, name): value for tag, name, value in found.attributes}
    assert named["html", "lang"] == "en"
    assert [value for tag, name, value in found.attributes if name == "aria-sort"] == ["ascending"]
    pictures = [tag for tag, name, _ in found.attributes if tag == "img" and name == "alt"]
    assert len(pictures) == page.count("<img")
    assert "prefers-color-scheme: dark" in page and "max-width: 640px" in page


def test_a_page_of_names_that_are_markup(tmp_path):
    pytest.importorskip("jinja2")
    A = as_csr(finelu.gallery.problem("poisson7:3"))
    rows = [made_up("<script>alert(1)</script>", 1.0, 1.0), made_up("ic0", 1.0, 2.0, outcome="error", reason="<b>&")]
    result = comparison(A, rows)
    path = tmp_path / "p.html"
    report.write_page(str(path), result, A, 'a "<i>" & b.mtx', None, "random")
    text = path.read_text()
    parsed(text)
    assert "<script>alert" not in text and '<i>"' not in text and "<b>&" not in text


def comparison(A, rows, **more):
    facts = {"rtol": 1e-8, "budget": 60.0, "seconds": 1.0, "compile_seconds": 0.0, "left_out": {}, "interrupted": False}
    return Comparison(properties=properties(A), measurements=rows, **(facts | more))


@pytest.mark.parametrize("outcome", ["singular", "numerically_singular", "stagnated"])
def test_a_singular_matrix_gets_no_advice_to_give_more_time(outcome):
    ended = {"outcome": outcome, "residual": 0.1}
    rows = [made_up("ic0", 1.0, 1.0, outcome="stagnated", residual=0.2), made_up("solve", 0.0, 1.0, **ended)]
    ((title, text, code),) = report.comparison.advice(
        comparison(as_csr(finelu.gallery.poisson7(3)), rows), "A.mtx", None
    )
    assert (title, code) == ("No recommendation", "")
    assert (text == "A is singular, and no x solves A x = b; finelu solve A.mtx says why.") == (outcome != "stagnated")
    assert ("Give more time" in text) == (outcome == "stagnated")


def test_rows_of_an_earlier_call_are_counted():
    rows = [made_up("ic0", 1.0, 1.0), made_up("ilu0", 1.0, 1.0)]
    A = as_csr(finelu.gallery.poisson7(3))
    notes = [report.comparison.timing_note(comparison(A, rows, kept=kept)) for kept in (0, 1, 2)]
    assert "earlier" not in notes[0] and "; 1 of 2 rows are of an earlier call (--again measures anew)" in notes[1]
    assert "; all 2 rows are of an earlier call (--again measures anew)" in notes[2]


@pytest.mark.parametrize("rows", [[], [made_up("ic0", None, None, outcome="not reached", history=None)]])
def test_a_page_without_figures(tmp_path, rows):
    pytest.importorskip("jinja2")
    A = as_csr(finelu.gallery.problem("poisson7:3"))
    path = tmp_path / "p.html"
    report.write_page(str(path), comparison(A, rows, interrupted=True), A, SMALL, None, "random")
    assert len(parsed(path.read_text()).row_heads) == len(rows)
    assert "No recommendation" in path.read_text() and "Interrupted" in path.read_text()


def test_the_chart_shows_the_points_where_they_belong():
    rows = [made_up("ic0", 1.0, 1.0), made_up("ilu0", 1.0, 2.0, outcome="stagnated")]
    x, y = HISTORY[:, 0], HISTORY[:, 2]
    c = chart("t", [(0, rows[0], x, y), (1, rows[1], 3 * x, 1e5 * y)], "iteration", "r", goal=("rtol", 1e-8))
    left, top, right, bottom = c["box"]
    points = [tuple(map(float, p.split(","))) for p in c["curves"][0]["points"].split()]
    assert points[0][0] == left and points[-1][1] == pytest.approx(bottom, abs=0.1) == c["goal"]["at"]
    assert len({round(b[1] - a[1], 0) for a, b in pairwise(points)}) == 1  # a line in log scale
    other = [tuple(map(float, p.split(","))) for p in c["curves"][1]["points"].split()]
    assert len(other) == 3  # iterations 0, 3, 6: what did not converge ends where the others did
    assert min(p[1] for p in other) == top  # drawn at 10
    assert all(left <= p[0] <= right + 0.1 and top - 0.1 <= p[1] <= bottom + 0.1 for p in points + other)


def test_every_line_to_paste_runs_and_repeats_the_solve(small):
    A, b, result = small
    for m in result.measurements:
        space = {}
        exec(script(m, SMALL, None, result.rtol), space)
        assert np.linalg.norm(b - A @ space["x"]) <= 1.01e-8 * np.linalg.norm(b)
        if m.method != "direct":
            assert space["solution"].iterations == m.iterations
            assert space["solution"].method == (m.chosen.split()[-1] if m.name == "solve" else m.method)


def test_the_recommendation_of_files_runs(capsys, tmp_path):
    A = sp.diags([-1.0, 3.0, -1.5], [-1, 0, 1], shape=(30, 30), format="csr")
    x = np.arange(30.0)
    np.save(tmp_path / "b.npy", A @ x)
    scipy.io.mmwrite(tmp_path / "A.mtx", A)
    arguments = ("compare", tmp_path / "A.mtx", "-b", tmp_path / "b.npy", "--recipes", "ilu0,jacobi", "--device", "cpu")
    status, found = run_json(capsys, *arguments)
    assert status == 0
    for take in found["recommendation"]:
        space = {}
        exec(take["code"], space)
        np.testing.assert_allclose(space["x"], x, atol=1e-6)


@FORKED
def test_the_table_names_every_row_and_what_to_take(capsys):
    status, out, err = run(capsys, "compare", SMALL, "--recipes", "ic0,jacobi,splu", "--device", "cpu")
    assert (status, err) == (0, "")
    for text in ("IC0()", "Jacobi()", "scipy splu", "pays from", "right-hand side", "import finelu as fl"):
        assert text in out
    assert "medians of the rounds" in out and " in 6 rounds" in out


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_table_fits_the_terminal(width):
    A = as_csr(finelu.gallery.problem("poisson7:3"))
    rows = [made_up("multilevelilu", 1.234, 0.0123, residual=1.2e-9), made_up("ilu0", 1.0, 1.0, outcome="too slow")]
    console = Console(width=width, force_terminal=True, file=io.StringIO(), color_system=None, highlight=False)
    report.print_comparison(console, comparison(A, rows), SMALL, None, None)
    text = console.file.getvalue()
    lines = text[: text.index("measured in")].partition("the terminal is")[0].splitlines()
    assert all(len(line) <= width for line in lines)
    assert width == 60 or "…" not in "".join(lines)
    assert ("memory" in lines[2]) == (width == 200)
    assert ("too narrow for: residual" in text) == (width < 200)
    assert "1.23 s" in text and "12.3 ms" in text


@FORKED
def test_json_has_everything(capsys):
    status, found = run_json(capsys, "compare", SMALL, "--recipes", "ic0,none", "--device", "cpu")
    assert status == 0
    assert found["properties"]["n"] == 216 and found["machine"]
    assert {row["name"] for row in found["measurements"]} == {"ic0", "none"}
    assert sorted(row["total"] for row in found["measurements"]) == [row["total"] for row in found["measurements"]]
    assert found["stages"][0]["from"] == 1 == found["measurements"][0]["pays_from"]


def test_the_schema_of_json_is_the_documented_one(small):
    _, _, result = small
    text = (Path(__file__).resolve().parents[2] / "docs" / "compare.md").read_text()
    listed = {
        name: re.findall(r"^\| `(\w+)` \|", block, re.MULTILINE)
        for name, block in re.findall(r"\*\*`(\w+)`\*\*.*?\n\n((?:\|.*\n)+)", text)
    }
    facts = {"matrix": SMALL, "rhs": "", "page": None, **comparison_facts(result, SMALL, None)}
    assert list(listed) == ["object", "measurements", "margin"]
    assert sorted(listed["object"]) == sorted(facts)
    assert sorted(listed["measurements"]) == sorted(facts["measurements"][0])
    assert sorted(listed["margin"]) == sorted(facts["margin"])
    assert facts["schema"] == 1


def test_a_table_of_both_devices_says_which_is_faster_and_by_how_much():
    A = as_csr(finelu.gallery.problem("poisson7:3"))
    rows = [made_up("ic0", 1.0, 2.0), made_up("ilu0", 0.5, 1.0, device="cuda"), made_up("ict", 5.0, 9.0, device="cuda")]
    texts = report.verdict(comparison(A, rows))
    assert texts[-1].endswith("cg with ILU0() on the GPU is 2 times as fast as cg with IC0() on the CPU.")
    assert len(report.verdict(comparison(A, rows[:1]))) == 0 and len(report.verdict(comparison(A, rows[1:]))) == 1
    assert comparison_facts(comparison(A, rows[:1]), SMALL, None)["margin"] is None


def test_both_devices_need_a_gpu(capsys):
    if not without_gpu():
        pytest.skip("there is a GPU")
    status, _, err = run(capsys, "compare", SMALL, "--device", "both")
    assert status == 2 and ("CuPy" in err or "GPU" in err)


@pytest.mark.gpu
def test_both_devices_are_in_one_table_and_the_second_call_measures_nothing(cupy, tmp_path):
    A = finelu.gallery.problem("poisson7:20")
    options = {"device": "both", "recipes": ["ilu0", "ic0", "solve", "splu"], "budget": 100, "keep": tmp_path}
    first, second = (compare(A, np.ones(A.shape[0]), **options) for _ in range(2))
    found = {(m.name, m.device) for m in first.measurements}
    assert {("ilu0", "cpu"), ("ilu0", "cuda"), ("solve", "cpu"), ("solve", "cuda"), ("splu", "cpu")} <= found
    assert all(m.solved for m in first.measurements)
    assert second.kept == len(first.measurements) and second.seconds < first.seconds
    assert any(text.startswith("GPU and CPU: ") for text in report.verdict(second))


@FORKED
def test_rtol_reaches_the_methods(capsys):
    arguments = ("compare", SMALL, "--recipes", "none", "--device", "cpu")
    loose, tight = (run_json(capsys, *arguments, "--rtol", rtol)[1] for rtol in ("1e-2", "1e-10"))
    assert loose["measurements"][0]["iterations"] < tight["measurements"][0]["iterations"]


def test_the_picture_of_inspect(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    status, out, err = run(capsys, "inspect", "gallery:poisson7:9", "--plot", tmp_path / "p.png")
    assert (status, err) == (0, "") and "p.png" in out
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG\r\n")
    hole = sp.csr_matrix(np.array([[0.0, 1.0], [0.0, 0.0]]))
    scipy.io.mmwrite(tmp_path / "hole.mtx", hole)
    assert run(capsys, "inspect", tmp_path / "hole.mtx", "--plot", tmp_path / "h.svg")[0] == 0
    assert b"<svg" in (tmp_path / "h.svg").read_bytes()


@pytest.mark.parametrize("problem", ["poisson7:9", "stokes:6", "bidiagonal:40", "convection_diffusion:20"])
def test_the_labels_of_the_picture_of_inspect_are_whole_numbers_that_are_named(calls_of, tmp_path, problem):
    saved = calls_of(pytest.importorskip("matplotlib.figure").Figure, "savefig")
    report.plot_matrix(str(tmp_path / "a.png"), as_csr(finelu.gallery.problem(problem), diagonal=False))
    ((drawn, *_),) = saved
    drawn.draw_without_rendering()
    _, levels, rows, dominant, *_ = drawn.axes
    assert all(axes.get_xlabel() and axes.get_ylabel() for axes in (levels, rows, dominant))
    shown = [tick.get_text() for tick in rows.get_xticklabels() if tick.get_text()]
    assert shown and all(re.fullmatch(r"[−\d]+", text) for text in shown)
    for axes in drawn.axes:
        texts = [*axes.get_yticklabels(), *axes.get_yticklabels(minor=True)]
        assert not any("times" in text.get_text() for text in texts)


# Bad input


BAD = [
    (("nowhere.mtx",), "nowhere.mtx: there is no such file"),
    (
        (SMALL, "--recipes", "ilu9"),
        "no recipe 'ilu9'; one of none, solve, spilu, splu, .*Did you mean 'ilu",
    ),
    ((SMALL, "--recipes", ","), "no recipe is named"),
    ((SMALL, "--budget", "soon"), "--budget soon: a time larger than 0"),
    ((SMALL, "--budget", "0"), "--budget 0: a time"),
    ((SMALL, "--budget", "-5s"), "--budget -5s: a time"),
    ((SMALL, "--budget", "inf"), "--budget inf: a time"),
    ((SMALL, "--rtol", "0"), "rtol=0.0; a number between 0 and 1"),
    ((SMALL, "--rtol", "nan"), "rtol=nan; a finite number"),
    ((SMALL, "--device", "tpu"), "tpu"),
    ((SMALL, "--html", "page.png"), "page.png: unknown extension"),
    ((SMALL, "--html", "nowhere/page.html"), "there is no folder"),
    ((SMALL, "-b", "nowhere.npy"), "nowhere.npy: there is no such file"),
]


@pytest.mark.parametrize(("arguments", "match"), BAD)
def test_bad_input_is_one_line_and_status_2(capsys, tmp_path, monkeypatch, arguments, match):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, "compare", *arguments)
    assert (status, out) == (2, "")
    assert err.startswith("finelu: ") and err.count("\n") == 1
    assert re.search(match, err)
    status, found = run_json(capsys, "compare", *arguments)
    assert (status, list(found)) == (2, ["error"])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "wanted"), [("60", 60.0), ("60s", 60.0), ("1.5m", 90.0), ("2H", 7200.0), (" .5 s", 0.5)]
)
def test_budgets_that_are_understood(text, wanted):
    from finelu.cli.arguments import duration

    assert duration("--budget", text) == wanted


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib.figure"])
def test_a_missing_package_is_said_before_the_work(capsys, not_installed, tmp_path, missing):
    not_installed(missing)
    status, _, err = run(capsys, "compare", "nowhere.mtx", "--html", tmp_path / "p.html")
    assert status == 2
    assert "finelu[report]" in err


def test_bad_arguments_of_the_function():
    A = finelu.gallery.problem("poisson7:3")
    with pytest.raises(finelu.ParameterError, match="budget=nan"):
        compare(A, np.ones(27), budget=math.nan)
    with pytest.raises(finelu.ParameterError, match="device='tpu'"):
        compare(A, np.ones(27), device="tpu")
    with pytest.raises(finelu.MatrixError, match="2 columns"):
        compare(A, np.ones((27, 2)), device="cpu")


def test_names_of_references_are_no_names_of_recipes():
    assert not set(REFERENCES) & set(RECIPES)
