"""What `explain()` says of a Solution: one fact a line, in plain words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from finelu.errors import counted

if TYPE_CHECKING:
    from finelu.result import Attempt, Solution

SHOWN = 3  # attempts that a short explanation lists: the last ones
FAR, NOTED = 3.0, 0.05  # an estimate is shown if the time differs from it by this factor and by these seconds
IN_WORDS = {
    "max iterations": "the largest number of iterations was reached",
    "stagnated": "the residual no longer fell",
    "indefinite": "A is not positive definite",
    "indefinite preconditioner": "the factors are not positive definite",
    "not finite": "NaN or Inf appeared",
    "breakdown": "the method broke down",
}


def explained(solution: Solution, *, verbose: bool) -> str:
    """The lines: A, its other properties, the attempts, how it ended, the time, and the call that repeats it."""
    notes = (text if text.endswith(".") else f"{text}." for text in solution.seen)  # "rows 1, 2, ..." has its dots
    lines = [f"{'A' if re.match(r'[0-9]+ rows?, ', text) else 'Note'}: {text}" for text in notes]
    lines += _attempts(solution.attempts, verbose=verbose)
    if solution.certificate is not None:
        name = "Certified" if solution.certificate.error < 1 else "Not certified"
        lines.append(f"{name}: {solution.certificate.sentence()}.")
    lines.append(_ended(solution))
    if (solution.seen or solution.attempts) and "solve" in solution.timings:
        lines.append(_time(solution))
    named = not re.search(r"<|\b(inf|nan)\b", solution.recipe)  # no array, and no number that Python has no word for
    if solution.called and solution.converged and solution.attempts and named:
        replaced = " (a Krylov method replaces refinement; x agrees to rtol)"
        instead = replaced if solution.method == "refinement" else ""
        lines.append(f"To do the same without the choice{instead}: {call(solution)}")
    return "\n".join(lines)


def call(solution: Solution) -> str:
    """The call that takes the recipe and the method of a solution of `finelu.solve` without a choice, as Python."""
    recipe = re.sub(r"\b(?=[A-Z]\w*\()", "finelu.", solution.recipe)
    taken = "" if solution.method == "refinement" else f', method="{solution.method}"'
    recipe = recipe if "(" in recipe else "None"
    return f"{solution.called}(A, b, {''.join(f'{text}, ' for text in solution.arguments)}recipe={recipe}{taken})"


def as_written(given: Iterable[Any], defaults: Mapping[str, Any]) -> tuple[str, ...]:
    """The arguments that are not the default, as in "rtol=1e-10"; arrays and functions by name, as in "x0=x0".

    given : a value for each name of `defaults`.
    """
    found = []
    for (name, default), value in zip(defaults.items(), given, strict=True):
        if value is default:
            continue
        value = value.item() if isinstance(value, np.generic) else value
        plain = isinstance(value, int | float | str)
        if not (plain and value == default):
            text = name if not plain else f'"{value}"' if isinstance(value, str) else repr(value)
            found.append(f"{name}={text}")
    return tuple(found)


def _attempts(attempts: Sequence[Attempt], *, verbose: bool) -> list[str]:
    """A line for each attempt, or for those of several right-hand sides that differ only in their figures."""
    lines, number = [], 1
    for _, group in groupby(attempts, lambda a: (a.recipe, a.method, a.why, a.outcome)):
        alike = list(group)
        lines.append(_in_words(number, alike, verbose=verbose))
        number += len(alike)
    if verbose or len(lines) <= SHOWN:
        return lines
    return [
        f"Before: {counted(len(lines) - SHOWN, 'other attempt')}; explain(verbose=True) lists all.",
        *lines[-SHOWN:],
    ]


def _in_words(number: int, alike: Sequence[Attempt], *, verbose: bool) -> str:
    """number : of the first of the attempts that are alike."""
    a, k = alike[0], len(alike)
    numbers = f"{number}" if k == 1 else f"{number} to {number + k - 1}"
    setup, seconds = sum(b.setup_seconds for b in alike), sum(b.seconds for b in alike)
    iterations = counted(sum(b.iterations for b in alike), "iteration") + (" together" if k > 1 else "")
    text = f"{numbers}. {a.method} with {a.recipe}" if a.method else f"{numbers}. {a.recipe}"
    included = ", set-up included" if "(" in a.recipe and setup > 0 else ""
    if a.method:
        text += f", because {a.why}. {iterations} in {setup + seconds:.3g} s{included}: "
        text += f"{IN_WORDS.get(a.outcome, a.outcome)}."
    else:  # no factors: the advice of the error is for those who asked for this recipe
        reason = a.outcome if verbose else a.outcome.partition(", so there are no such factors")[0]
        text += f", because {a.why}. After {setup + seconds:.3g} s: {reason}."
    expected = sum(b.expected or 0.0 for b in alike)
    if expected and (verbose or _is_far(expected, setup + seconds, a.outcome)):
        text += f" Expected {expected:.3g} s, took {setup + seconds:.3g} s."
    if verbose:
        largest = "largest relative residual" if k > 1 else "relative residual"
        text += f" Set-up {setup:.3g} s, iterations {seconds:.3g} s, {largest} {max(b.residual for b in alike):.2e}."
    return text


def _is_far(expected: float, took: float, outcome: str) -> bool:
    """Whether an attempt took far longer than expected, or, if it solved, far less: one that failed ended early."""
    less, more = sorted((expected, took))
    return more >= max(FAR * less, less + NOTED) and (took > expected or outcome.startswith("solved"))


def _ended(solution: Solution) -> str:
    """How it ended, with the figures of x."""
    name = solution.status.name.capitalize().replace("_", " ")
    columns: Sequence[Solution] = getattr(solution, "columns", ())
    within = solution.outside is not None and solution.outside > (solution.tolerance or 0.0)
    norm = "||b' - A x||" if within else "||b - A x||"
    figures = f"{'worst ' if len(columns) > 1 else ''}{norm} = {solution.residual_norm:.3g}"
    normal = getattr(solution, "normal_residual_norm", None)  # of least squares
    if normal is not None:
        figures += f", residual of the normal equations {normal:.3g}"
    if solution.tolerance is not None:
        figures += f", tolerance {solution.tolerance:.3g}"
    by = "" if solution.attempts else f"{solution.name}, "
    if len(columns) > 1:
        done = sum(column.converged for column in columns)
        by += f"all {done} columns, " if done == len(columns) else f"{done} of {len(columns)} columns converged, "
    iterations, attempts = solution.iterations, solution.attempts
    took = counted(iterations, "iteration")
    if solution.converged and len(columns) < 2 and attempts and attempts[-1].iterations < iterations:
        took = f"{counted(attempts[-1].iterations, 'iteration')} ({iterations} in all attempts)"
    text = f"{name}: {by}{took}, {figures}"
    if within:
        text += f", where b' is b without its part along null vectors, whose norm is {solution.outside:.3g}"
    return text + ("." if solution.converged else f"; {solution.status.value}.")


def _time(solution: Solution) -> str:
    """The seconds of the call and of its parts, which add up to it."""
    whole, counting, compiling = (solution.timings.get(name, 0.0) for name in ("solve", "count", "compile"))
    if not solution.attempts:
        return f"Time: {whole:.3g} s."
    setup = sum(a.setup_seconds for a in solution.attempts)
    seconds = sum(a.seconds for a in solution.attempts)
    parts = [("orderings and counts", counting)] if counting > 0 else []
    parts += [("factorizations", setup), ("iterations", seconds)]
    if compiling > 0:
        parts.append(("compiling or loading kernels, once", compiling))
    parts.append(("all else", max(whole - counting - setup - seconds - compiling, 0.0)))
    return f"Time: {whole:.3g} s: " + ", ".join(f"{name} {taken:.2g} s" for name, taken in parts) + "."
