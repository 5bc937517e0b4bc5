"""What a solution, factors and a sequence say of themselves: `explain()`, tables of notebooks, progress, `spy`."""

import re
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp

import finelu as fl
from finelu import progress
from finelu.auto.ladder import Ladder
from finelu.errors import ParameterError, StructurallySingular
from finelu.matrix.traits import traits
from finelu.page import plain
from finelu.result import Attempt, Certificate, Solution, Status

A, b = fl.gallery.problem("poisson5:30"), np.linspace(1, 2, 900)
UNSYMMETRIC = sp.csr_array(A.tosparse() if hasattr(A, "tosparse") else A) + sp.diags_array(
    [0.5], offsets=[1], shape=A.shape
)


class Cells(HTMLParser):
    """The text of each element of a page, and the elements that are not closed."""

    def __init__(self):
        super().__init__()
        self.texts, self.open = [], []

    def handle_starttag(self, tag, attributes):
        if tag != "line":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_data(self, data):
        self.texts.append(data)


def cells(thing):
    parser = Cells()
    parser.feed(thing._repr_html_())
    assert not parser.open
    return parser.texts


def test_a_report_is_shown_without_brackets_and_quotes():
    shown = cells(fl.ILUT().factor(A))
    assert shown[shown.index("triangular") + 1] == "lower: method sequential; upper: method sequential"
    shown = cells(fl.MultilevelILU().factor(UNSYMMETRIC))
    levels = shown[shown.index("levels") + 1]
    assert levels.startswith(f"n {b.size}, nnz_A {UNSYMMETRIC.nnz}, ") and "; n 0, nnz 0, bytes 0" in levels
    assert plain({"a": (1, 2), "b": [0.25], "c": None}) == "a 1 2, b 0.25" and plain([1, 2.0]) == "1, 2"
    for recipe in (fl.ILU0(), fl.Schwarz(), fl.ParILUT(), fl.SparseLU()):
        assert not any(set(text) & set("{}[]'") for text in cells(recipe.factor(A))[1:])


def attempt(number, outcome="stagnated"):
    return Attempt(f"ILUT(drop_tol={number})", "gmres", "it was asked for", outcome, 7, 0.25, 0.5, 0.125)


def solution_of(attempts, **fields):
    return Solution(b, Status.CONVERGED, 14, 1e-9, [1.0, 1e-9], attempts=tuple(attempts), **fields)


@pytest.mark.parametrize("matrix", [A, UNSYMMETRIC], ids=["hermitian", "general"])
@pytest.mark.parametrize("options", [{}, {"recipe": fl.ILUT(drop_tol=1e-3)}, {"recipe": None, "method": "gmres"}])
def test_the_last_line_takes_the_same_way_to_x(matrix, options):
    first = fl.solve(matrix, b, **options)
    line = first.explain().splitlines()[-1]
    instead = " (a Krylov method replaces refinement; x agrees to rtol)" if first.method == "refinement" else ""
    assert line.startswith(f"To do the same without the choice{instead}: finelu.solve(")
    again = eval(line.partition("choice" + instead + ": ")[2], {"finelu": fl, "A": matrix, "b": b})
    np.testing.assert_allclose(again.x, first.x, rtol=1e-6)
    assert (again.recipe, len(again.attempts)) == (first.recipe, 1)
    assert again.method == first.method or first.method == "refinement"  # which no caller names


@pytest.mark.parametrize(
    ("options", "written"),
    [
        ({}, ""),
        ({"rtol": 1e-8, "x0": None, "verbose": True}, ""),
        ({"rtol": np.float64(1e-10)}, "rtol=1e-10, "),
        ({"rtol": 0.0, "atol": 1e-9, "criterion": "residual"}, 'rtol=0.0, atol=1e-09, criterion="residual", '),
        ({"x0": np.ones(900), "maxiter": 500}, "x0=x0, maxiter=500, "),
        ({"nullspace": "constant", "certify": True}, 'certify=True, nullspace="constant", '),
        ({"watch": print, "time_limit": 1000}, "time_limit=1000, watch=watch, "),
    ],
)
@pytest.mark.parametrize("columns", [1, 2])
def test_the_last_line_repeats_each_argument_that_is_not_the_default(options, written, columns):
    matrix = A
    if "nullspace" in options:
        matrix = sp.csr_array(A - sp.diags_array(A @ np.ones(b.size)))
    if options.get("watch") is print:
        options = options | {"watch": lambda iteration, norm: False}
    rhs = b if columns == 1 else np.stack([b, np.cos(np.arange(b.size))], axis=1)
    solution = fl.solve(matrix, rhs, **options)
    for found in (solution, *(solution[c] for c in range(columns if columns > 1 else 0))):
        line = found.explain().splitlines()[-1]
        assert f": finelu.solve(A, b, {written}recipe=" in line
        known = {"finelu": fl, "A": matrix, "b": rhs, **options}
        again = eval(line[line.index("finelu.solve(") :], known)
        assert again.converged and again.arguments == solution.arguments and again.tolerance == solution.tolerance


def test_the_last_line_is_there_for_several_columns():
    columns = np.stack([b, np.cos(np.arange(b.size)), np.sin(np.arange(b.size))], axis=1)
    for matrix in (A, UNSYMMETRIC):
        line = fl.solve(matrix, columns).explain().splitlines()[-1]
        assert re.match(r"To do the same without the choice( \(.*\))?: finelu\.solve\(A, b", line)


def test_no_call_is_named_where_none_would_solve_it():
    for solution in (fl.solve(A, b, maxiter=0), fl.cg(A, b), fl.Sequence().step(A, b), fl.solve(A, 0 * b)):
        assert "without the choice" not in solution.explain()


def test_a_list_that_goes_on_keeps_its_dots():
    text = solution_of([], seen=("rows 1, 2, ...", "a sentence", "a sentence with its stop.")).explain()
    assert text.splitlines()[:3] == ["Note: rows 1, 2, ...", "Note: a sentence.", "Note: a sentence with its stop."]
    assert "rows 0, 1, 2, 3, 4, 5, 6, 7 and others: equations" in str(StructurallySingular(range(9)))


def times(solution):
    """The figures of the line of times, by their names; "" is the whole."""
    (line,) = [line for line in solution.explain().splitlines() if line.startswith("Time: ")]
    found = re.findall(r"(?:Time|[:,]) ?([a-z, ]*?)[: ]+([\d.e-]+) s", line)
    return {name.strip(): float(figure) for name, figure in found}


def test_the_times_add_up():
    solution = solution_of([attempt(1), attempt(2, "solved")], timings={"solve": 2.0, "compile": 0.25, "count": 0.125})
    parts = times(solution)
    assert parts.pop("") == 2 == pytest.approx(sum(parts.values()), rel=0.01)
    assert list(parts.values()) == [0.12, 0.5, 1.0, 0.25, 0.12]
    assert "orderings" not in solution_of([attempt(1, "solved")], timings={"solve": 2.0, "count": 0.0}).explain()


def test_a_count_of_the_fill_has_a_time_of_its_own(without):
    without("klu")
    A = fl.gallery.stokes(40)
    solution = fl.solve(A, np.ones(A.shape[0]))
    parts = times(solution)
    assert solution.recipe == "SparseLU()" and 0 < solution.timings["count"] < solution.timings["solve"]
    assert parts["orderings and counts"] == pytest.approx(solution.timings["count"], rel=0.06)
    assert parts.pop("") == pytest.approx(sum(parts.values()), rel=0.06)


@pytest.mark.parametrize(
    ("expected", "took", "outcome", "shown"),
    [
        (0.1, 0.75, "solved", True),
        (4.0, 0.75, "solved", True),
        (0.3, 0.75, "solved", False),  # by less than the factor
        (0.01, 0.055, "solved", False),  # by less than 50 ms
        (0.01, 0.065, "solved", True),
        (0.1, 0.75, "stagnated", True),
        (4.0, 0.75, "stagnated", False),  # it ended before it had solved
        (None, 0.75, "solved", False),
    ],
)
def test_a_wrong_estimate_is_shown_with_both_figures(expected, took, outcome, shown):
    tried = Attempt("ILUT()", "gmres", "it is tried", outcome, 7, took / 4, 0.75 * took, 0.125, expected)
    figures = f" Expected {expected or 0:.3g} s, took {took:.3g} s."
    assert (figures in solution_of([tried]).explain()) == shown
    assert (figures in solution_of([tried]).explain(verbose=True)) == (expected is not None)


def test_columns_that_are_alike_have_the_sum_of_their_estimates():
    tried = [Attempt("ILUT()", "gmres", "it is tried", "solved", 7, 0.5, 0.5, 0.1, each) for each in (0.25, None)]
    assert " Expected 0.25 s, took 2 s." in solution_of(tried).explain()


def test_an_attempt_keeps_the_estimate_on_which_it_was_chosen():
    large = fl.as_csr(fl.gallery.problem("poisson5:60"))
    ladder = Ladder(large, 1e-12)
    assert ladder.next_rung(list(ladder.rungs)) == "direct"
    columns = np.stack([np.ones(large.n), np.arange(large.n)], axis=1)
    first, second = fl.solve(large, columns, rtol=1e-12).attempts
    assert first.expected == pytest.approx(ladder.costs.seconds("direct")) and first.expected > 0
    assert second.expected is None  # the factors were there
    assert [a.expected for a in fl.solve(large, columns[:, 0], recipe=fl.IC0()).attempts] == [None]


def test_the_last_three_attempts_are_listed_and_all_if_asked_for():
    solution = solution_of([attempt(k) for k in range(5)])
    lines = solution.explain().splitlines()
    assert lines[0] == "Before: 2 other attempts; explain(verbose=True) lists all."
    assert [line[0] for line in lines[1:4]] == ["3", "4", "5"]
    assert "Set-up 0.25 s, iterations 0.5 s, relative residual 1.25e-01." in solution.explain(verbose=True)
    assert [line[0] for line in solution.explain(verbose=True).splitlines()[:5]] == ["1", "2", "3", "4", "5"]


def test_each_fact_has_a_line():
    solution = fl.solve(UNSYMMETRIC, b)
    lines = solution.explain().splitlines()
    assert lines[0].startswith("A: 900 rows, ") and all(line.endswith((".", ")")) for line in lines)
    assert lines[-3].startswith(f"Converged: {solution.iterations} iteration")


def test_factors_that_do_not_exist_are_said_without_the_advice_for_who_asked_for_them():
    error = fl.errors.ZeroPivot(fl.IC0(), 3, -1.0, "is negative")
    tried = Attempt("IC0()", "", "A may be positive definite", f"no factors: {error}", 0, 0.25, 0.0, 1.0)
    solution = solution_of([tried])
    line = solution.explain().splitlines()[0]
    assert line == f"1. IC0(), because A may be positive definite. After 0.25 s: {tried.outcome.partition(', so')[0]}."
    assert "shift" not in line and "shift=1e-3" in solution.explain(verbose=True)


def test_an_attempt_ends_in_words_and_not_by_the_name_of_a_status():
    lines = solution_of([attempt(1), attempt(2, "indefinite"), attempt(3, "max iterations")]).explain().splitlines()
    assert lines[0].endswith("set-up included: the residual no longer fell.")
    assert lines[1].endswith("A is not positive definite.")
    assert lines[2].endswith("the largest number of iterations was reached.")


def test_the_time_is_said_also_if_nothing_was_tried():
    solution = fl.solve(A, b, memory_limit=1)
    assert solution.attempts == () and f"Time: {solution.timings['solve']:.3g} s." in solution.explain().splitlines()


def test_columns_have_one_line_of_figures():
    columns = np.stack([b, np.cos(np.arange(b.size))], axis=1)
    text = fl.solve(A, columns).explain()
    assert re.search(r"^Converged: all 2 columns, \d+ iterations?, worst \|\|b - A x\|\| = ", text, re.MULTILINE)
    laplacian = sp.csr_array(sp.diags_array([-1.0, 1.0, -1.0], offsets=[-1, 0, 1], shape=(900, 900)))
    laplacian.setdiag(-(laplacian.sum(axis=1) - 1.0))  # of a path: each row adds up to 0
    columns[:, 1] -= columns[:, 1].mean()
    text = fl.solve(laplacian, columns).explain()
    assert re.search(r"^Singular: 1 of 2 columns converged, \d+ iterations?, worst", text, re.MULTILINE)


def test_least_squares_name_the_residual_that_is_small():
    solution = fl.lstsq(sp.csr_array(np.vander(np.linspace(0, 1, 30), 4)), np.sin(np.arange(30.0)))
    assert f"residual of the normal equations {solution.normal_residual_norm:.3g}" in solution.explain()
    shown = cells(solution)
    assert shown[shown.index("norm of b - A x") + 1] == f"{solution.residual_norm:.3g}"
    at = shown.index("norm of the residual of the normal equations")
    assert shown[at + 1] == f"{solution.normal_residual_norm:.3g}"


def test_tables_of_notebooks():
    solution = fl.solve(A, b, recipe=fl.IC0())
    shown = cells(solution)
    for text in ("Solution", "converged", "cg with IC0()", str(solution.iterations), f"{solution.residual_norm:.3g}"):
        assert text in shown
    (points,) = re.findall(r'points="([^"]+)"', solution._repr_html_())
    heights = [float(point.split(",")[1]) for point in points.split()]
    assert len(heights) == solution.iterations + 1 and heights[0] < heights[-1]  # an SVG's y grows downwards
    assert "polyline" not in fl.solve(A, 0 * b)._repr_html_()
    failed = fl.cg(A, b, maxiter=1)
    assert failed.status.value in "".join(cells(failed))
    F = fl.ILUT(drop_tol=1e-3).factor(A)
    assert f"Factors by {F.recipe!r}" in cells(F) and str(F.nnz) in cells(F)
    assert "hermitian" in cells(traits(fl.as_csr(A)))
    sequence = fl.Sequence(rtol=1e-6)
    assert "Sequence" in cells(sequence)
    for scale in (1.0, 1.01):
        assert sequence.step(scale * A, b).converged
    assert "steps" in cells(sequence) and "2" in cells(sequence)


def test_what_is_shown_is_escaped():
    assert "<b>x</b>" in cells(solution_of([], recipe="<b>x</b>", method="<i>"))[4] or "<b>x</b>" in "".join(
        cells(solution_of([], recipe="<b>x</b>", method="<i>"))
    )


class Bar:
    """A bar that keeps what it shows."""

    def __init__(self):
        self.noted = []

    def add_task(self, text, total):
        return 0

    def update(self, task, **facts):
        self.noted.append(facts)


def test_progress_follows_the_iterations_and_the_caller_still_watches(monkeypatch):
    made, seen = Bar(), []

    class Shown:
        def __enter__(self):
            return progress.Progress(made)

        def __exit__(self, *_):
            pass

    monkeypatch.setattr("finelu.auto.solve.bar", lambda wanted: Shown())
    plain = fl.solve(A, b, recipe=fl.ILU0())
    solution = fl.solve(A, b, recipe=fl.ILU0(), progress=True, watch=lambda *of: seen.append(of))
    np.testing.assert_array_equal(solution.x, plain.x)
    assert len(made.noted) == len(seen) > 2 and 0 <= made.noted[1]["completed"] < made.noted[-1]["completed"] <= 1
    stopped = fl.solve(A, b, recipe=fl.ILU0(), progress=True, watch=lambda iteration, size: iteration >= 2)
    assert stopped.status is Status.INTERRUPTED


@pytest.mark.parametrize("shape", [(900, 1), (900, 2), (900, 0)])
def test_progress_with_columns(monkeypatch, shape):
    made = Bar()

    class Shown:
        def __enter__(self):
            return progress.Progress(made)

        def __exit__(self, *_):
            pass

    monkeypatch.setattr("finelu.auto.solve.bar", lambda wanted: Shown())
    assert fl.solve(A, np.ones(shape), recipe=fl.IC0(), progress=True).converged
    assert bool(made.noted) == (shape[1] > 0)


def test_a_recipe_with_an_array_is_no_call():
    solution = fl.solve(A, b, recipe=fl.Schwarz(size=16, near_nullspace=np.ones((900, 1))))
    assert solution.converged and "without the choice" not in solution.explain()


def test_progress_is_silent_where_it_cannot_be_seen(capsys):
    assert fl.solve(A, b, progress=True).converged
    assert capsys.readouterr() == ("", "")
    with pytest.raises(ParameterError, match="progress='yes'"):
        fl.solve(A, b, progress="yes")


def test_a_curve_has_no_ticks_between_iterations():
    figure = pytest.importorskip("matplotlib.figure")
    axes = fl.solve(A, b, recipe=fl.SparseLU()).plot(figure.Figure().add_subplot())
    assert all(float(tick).is_integer() for tick in axes.get_xticks())


def test_spy_draws_where_entries_are():
    figure = pytest.importorskip("matplotlib.figure")
    axes = figure.Figure().add_subplot()
    assert fl.spy(sp.identity(5), axes) is axes
    (image,) = axes.get_images()
    np.testing.assert_array_equal(np.nan_to_num(image.get_array().filled(0)), np.eye(5))
    assert axes.get_title() == "pattern, 5 entries"


def test_the_numbers_below_a_pattern_do_not_touch():
    figure = pytest.importorskip("matplotlib.figure").Figure(layout="constrained")
    axes = fl.spy(sp.identity(17_758), figure.add_subplot())
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert len(boxes) > 2 and all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_the_iterations_of_the_last_attempt_and_of_all():
    tried = [attempt(1), Attempt("SparseLU()", "gmres", "it is tried", "solved", 1, 0.5, 0.5, 0.1)]
    assert "Converged: 1 iteration (14 in all attempts), ||b - A x|| = 1e-09." in solution_of(tried).explain()
    alone = Attempt("ILUT()", "gmres", "it is tried", "solved", 14, 0.5, 0.5, 0.1)
    assert "Converged: 14 iterations, ||b - A x||" in solution_of([alone]).explain()


def test_the_residual_with_null_vectors_is_that_of_the_rest_of_b():
    matrix = sp.csr_array(A - sp.diags_array(A @ np.ones(b.size)))
    rhs = np.random.default_rng(0).standard_normal(b.size)
    text = fl.solve(matrix, rhs, nullspace="constant").explain()
    assert f"whose norm is {abs(rhs.sum()) / 30:.3g}." in text and "Converged: " in text
    assert "||b' - A x|| = " in text and "||b - A x||" not in text and "nullspace= returns" not in text
    text = fl.solve(matrix, rhs - rhs.mean(), nullspace="constant").explain()
    assert "||b - A x|| = " in text and "b'" not in text and "nullspace= returns" not in text
    assert "; nullspace= returns the x" in fl.solve(matrix, rhs - rhs.mean()).explain()


def test_a_bound_of_one_or_more_certifies_nothing():
    figures = {"normwise": 1e-17, "componentwise": 1e-16, "least_residual": 1e-4}
    text = solution_of([], certificate=Certificate(condition=1.9e20, error=1.5e3, **figures)).explain()
    start = (
        "Not certified: no digit of x is certain, as A is singular to working precision. The normwise backward error"
    )
    assert text.startswith(start) and "The bound on the error of x is 1.5e+03 of its largest element." in text
    text = solution_of([], certificate=Certificate(condition=1e12, error=2.0, **figures)).explain()
    assert text.startswith("Not certified: no digit of x is certain. The normwise backward error is 1.0e-17.")
    for error, start in ((0.5, "Certified: "), (np.inf, "Not certified: "), (np.nan, "Not certified: ")):
        text = solution_of([], certificate=Certificate(condition=1e12, error=error, **figures)).explain()
        assert text.startswith(f"{start}the normwise backward error is 1.0e-17.")
