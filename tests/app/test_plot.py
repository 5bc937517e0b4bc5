"""Solution.plot: the history and the tolerance, on matplotlib's axes."""

import numpy as np
import pytest

import finelu as fl
from finelu.errors import FineluError

A, b = fl.gallery.problem("poisson5:30"), np.linspace(1, 2, 900)


def lines(axes):
    return {line.get_label(): np.asarray(line.get_ydata(), float) for line in axes.get_lines()}


def test_a_name_of_a_file_is_not_axes():
    solution = fl.cg(A, b, M=fl.IC0().factor(A))
    with pytest.raises(fl.WrongType, match=r"not a str; solution.plot\(\).figure.savefig\('x.png'\) writes a file"):
        solution.plot("x.png")


@pytest.fixture
def axes():
    figure = pytest.importorskip("matplotlib.figure")
    return figure.Figure().add_subplot()


@pytest.mark.parametrize(
    ("solve", "wanted"),
    [
        (lambda: fl.cg(A, b, M=fl.IC0().factor(A), rtol=1e-6), 1e-6 * np.linalg.norm(b)),
        (lambda: fl.gmres(A, b, rtol=1e-12, atol=0.5), 0.5),
        (lambda: fl.solve(A, b, recipe=fl.ILU0(), rtol=1e-7), 1e-7 * np.linalg.norm(b)),
        (lambda: fl.solve(A, b, rtol=1e-7), 1e-7 * np.linalg.norm(b)),
        (lambda: fl.Sequence(rtol=1e-7).step(A, b), 1e-7 * np.linalg.norm(b)),
        (lambda: fl.cg(A, b * 1e-150, rtol=1e-6), 1e-156 * np.linalg.norm(b)),
        (lambda: fl.cg(A, b * 1e-300, rtol=1e-6), 1e-306 * np.linalg.norm(b)),
    ],
)
def test_it_draws_the_history_and_the_tolerance(axes, solve, wanted):
    solution = solve()
    assert solution.converged
    assert solution.residual_norm <= solution.tolerance == pytest.approx(wanted, rel=1e-10)
    assert solution.plot(axes) is axes
    curve, limit = lines(axes).values()
    np.testing.assert_array_equal(curve, solution.history)
    assert (limit == solution.tolerance).all()
    assert axes.get_yscale() == "log" and axes.get_ylabel() == "norm of b - A x"
    assert axes.get_legend().get_texts()[0].get_text() == next(iter(lines(axes)))


def test_each_attempt_has_a_curve_with_its_number_in_explain(axes):
    indefinite = fl.gallery.problem("helmholtz:40,k=9,absorbing=False")
    solution = fl.solve(indefinite, np.random.default_rng(0).standard_normal(1600))
    drawn = lines(solution.plot(axes))
    assert len(drawn) == 3 == len(solution.attempts) + 1
    begin = 0
    for k, (attempt, (label, curve)) in enumerate(zip(solution.attempts, drawn.items(), strict=False), start=1):
        assert label == f"{k}. {attempt.method} with {attempt.recipe}" and f"\n{label}, because" in solution.explain()
        assert np.isnan(curve[:begin]).all()
        end = begin + attempt.iterations
        np.testing.assert_array_equal(curve[begin:], solution.history[begin : end + 1])
        begin = end
    assert begin == solution.iterations


def test_a_legend_of_several_attempts_covers_no_curve():
    pyplot = pytest.importorskip("matplotlib.figure")
    axes = pyplot.Figure(layout="constrained").add_subplot()
    hard = fl.gallery.problem("helmholtz:40,k=9,absorbing=False")
    fl.solve(hard, np.random.default_rng(0).standard_normal(1600)).plot(axes)
    axes.figure.draw_without_rendering()
    bottom = axes.get_legend().get_window_extent().y0
    tops = [np.nanmax(axes.transData.transform(line.get_xydata())[:, 1]) for line in axes.get_lines()[:-1]]
    assert len(tops) > 1 and max(tops) < bottom


def test_several_columns_have_one_curve(axes):
    indefinite = fl.gallery.problem("helmholtz:40,k=9,absorbing=False")
    solution = fl.solve(indefinite, np.random.default_rng(0).standard_normal((1600, 3)))
    assert len(solution.attempts) > 1
    curve, _ = lines(solution.plot(axes)).values()
    np.testing.assert_array_equal(curve, solution.history)


def test_norms_of_least_squares_are_those_of_the_normal_equations(axes):
    fl.lsmr(A, b).plot(axes)
    assert len(lines(axes)) == 1 and "normal equations" in axes.get_ylabel()


def test_without_axes_it_makes_a_figure():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    axes = fl.cg(A, b).plot()
    assert pyplot.gcf() is axes.figure
    pyplot.close(axes.figure)


def test_without_matplotlib_it_says_what_is_missing(not_installed):
    not_installed("matplotlib.pyplot")
    with pytest.raises(FineluError, match=r"matplotlib.*finelu\[report\]"):
        fl.cg(A, b).plot()
