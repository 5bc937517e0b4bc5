"""The data of `compare`: candidates, measurements, and the comparison, which is its result."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finelu.krylov import Method
from finelu.preconditioners.recipe import Recipe
from finelu.properties import Properties

REFERENCES = ("spilu", "splu")  # SciPy's, for comparison
# The calls of splu: by default, and for a symmetric pattern, which halves its factors on most such matrices.
PERMC: dict[str, dict[str, Any]] = {
    "COLAMD": {"permc_spec": "COLAMD"},
    "MMD_AT_PLUS_A": {"permc_spec": "MMD_AT_PLUS_A", "options": {"SymmetricMode": True}},
}
SOLVED, TIME_LIMIT, TOO_SLOW = "converged", "time limit", "too slow"
NOT_REACHED, INTERRUPTED = "not reached", "interrupted"


@dataclass(frozen=True)
class Candidate:
    """A candidate for the measurement: a recipe by its name, on "cpu" or "cuda", with a method.

    recipe : None without a preconditioner, for `finelu.solve` and for SciPy's.  permc : of splu, a key of PERMC.
    asked : the method, where the caller has named it: then no other is tried.
    """

    name: str
    recipe: Recipe | None
    method: str
    device: str
    permc: str = ""
    asked: type[Method] | None = None

    @property
    def key(self) -> tuple[str, str, str]:
        return self.name, self.device, self.permc

    @property
    def label(self) -> str:
        if self.name in REFERENCES:
            return f"scipy {self.name}" + (f", {self.permc}" if self.permc else "")
        return "fl.solve" if self.name == "solve" else repr(self.recipe) if self.recipe else "none"

    def row(self, outcome: str, reason: str, *, method: str | None = None, **measured: Any) -> Measurement:
        """The measurement of this candidate, with `method` in place of its own if given."""
        return Measurement(
            name=self.name,
            recipe=self.label,
            method=method or self.method,
            device=self.device,
            permc=self.permc,
            outcome=outcome,
            reason=" ".join(reason.split()),
            **measured,
        )


@dataclass(frozen=True, eq=False)
class Pictures:
    """Data for the page's pictures of factors: `density` of L + U, and the number of rows in each level of L and U."""

    density: NDArray[np.integer]
    lower: NDArray[np.integer]
    upper: NDArray[np.integer]


@dataclass(frozen=True, kw_only=True, eq=False)
class Measurement:
    """One recipe with one method on one device; figures that could not be measured are None.

    name, recipe : as the command line and as Python write it; "solve" and "fl.solve" for `finelu.solve`, which repeats
    its set-up in each call: its setup is 0, and its solve is the whole call.  chosen : what that call chose, in words.
    method : the name of a Krylov method, "direct", or "auto".  permc : of splu, its permc_spec.
    outcome : "converged", the name of a `Status`, or "no factors", "time limit", "too slow", "out of memory",
    "inaccurate", "ended", "error", "not reached", "interrupted".  reason : one line that explains the outcome.
    fill : entries of the factors over those of A; SuperLU's include the zeros that it stores.  memory : bytes of the
    arrays that the factors hold, those of A not counted (of SuperLU's: entries times a value and an index).
    samples (k, 3) : turn, seconds of the set-up, seconds of a solve, without compilation; turn 0 is the first look, and
    each later one a round in which the candidates that may win were measured one after the other. Where rows are kept,
    each call counts its rounds from a number of its own.
    setup, solve : seconds, the medians of the rounds; without any of the first look.  runs : of all turns.
    residual : ||b - A x||_2 / ||b||_2 of the returned x, computed from the given A, and again in twice the precision if
    rounding could have brought it below rtol.
    history (k, 3) : iteration, seconds since the solve began, relative residual norm.
    """

    name: str
    recipe: str
    method: str
    device: str
    outcome: str
    reason: str = ""
    fill: float | None = None
    memory: int | None = None
    setup: float | None = None
    solve: float | None = None
    iterations: int | None = None
    residual: float | None = None
    runs: int = 0
    samples: tuple[tuple[int, float, float], ...] = ()
    permc: str = ""
    chosen: str = ""
    history: NDArray[np.float64] | None = field(default=None, repr=False)
    pictures: Pictures | None = field(default=None, repr=False)

    @property
    def key(self) -> tuple[str, str, str]:
        """That of its candidate."""
        return self.name, self.device, self.permc

    @property
    def solved(self) -> bool:
        return self.outcome == SOLVED

    @property
    def times(self) -> tuple[float, float]:
        """Seconds of the set-up and of a solve; inf if the system was not solved."""
        return (self.setup or 0.0, self.solve or 0.0) if self.solved else (math.inf, math.inf)

    def total(self, solves: float = 1) -> float:
        """Seconds of the set-up and `solves` solves; inf if the system was not solved."""
        setup, solve = self.times
        return setup + solves * solve if self.solved else math.inf


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """The result of `compare`.

    properties : of A.  measurements : in the order of their first look.  left_out : name -> why a recipe does not
    apply.  seconds : of the whole call.  compile_seconds : the part of them spent on compiling kernels or loading
    compiled ones; no measurement contains it, and it does not count in the budget.
    interrupted : by Ctrl-C.  kept : how many of the rows an earlier call had made.  file : where they are kept.
    not_kept : why there is no such file though one was asked for.
    """

    properties: Properties
    rtol: float
    budget: float
    seconds: float
    compile_seconds: float
    measurements: list[Measurement]
    left_out: dict[str, str]
    interrupted: bool
    kept: int = 0
    file: str | None = None
    not_kept: str = ""

    @property
    def ranked(self) -> list[Measurement]:
        """The measurements: the cheapest for one right-hand side first, then those that did not solve, by residual."""

        def key(m: Measurement) -> tuple[float, float]:
            return m.total(), 0.0 if m.solved else math.inf if m.residual is None else m.residual

        return sorted(self.measurements, key=key)
