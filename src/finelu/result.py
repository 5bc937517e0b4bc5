"""The result of a solve: `Solution`, and `Status`, whose text says what to try next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields
from enum import Enum
from operator import index
from typing import Any

import numpy as np

from finelu.drawing import axes_for, curves, draw_norms, legend_above
from finelu.errors import WrongType, counted, named_systems
from finelu.explained import explained
from finelu.page import facts_as_html, norms_as_svg


class Status(Enum):
    """Why a solve ended; the text says what to try next."""

    CONVERGED = "reached the wanted tolerance"
    MAX_ITERATIONS = (
        "reached the largest number of iterations (maxiter, or the limit of an attempt); use a stronger "
        "preconditioner, or raise maxiter"
    )
    STAGNATED = (
        "the method went on, but the true residual no longer fell: the tolerance is below what this precision and the "
        "condition of A allow, or A is singular and b outside of its range; relax rtol, scale A, or use a stronger "
        "preconditioner"
    )
    DIVERGED = (
        "the residual grew instead of falling, since the spectral radius of 1 - M^-1 A is not below 1; use gmres with "
        "the same M, or a stronger M"
    )
    INDEFINITE = "met p^H A p <= 0: A is not positive definite; use gmres or bicgstab"
    INDEFINITE_PRECONDITIONER = (
        "met r^H M r <= 0: the preconditioner M is not positive definite; use gmres or bicgstab, or IC0 with a shift"
    )
    NOT_SYMMETRIC = "A or M is not symmetric, as this method needs; use gmres or bicgstab"
    BREAKDOWN = (
        "the recurrence broke down: a number it divides by became zero, as happens where A or M is singular; use "
        "another method (gmres, if it was not gmres), another M or another x0"
    )
    NOT_FINITE = (
        "the iteration met NaN or Inf; the factors are unstable for this A: try a shift or a stronger recipe; or A, M "
        "and x differ too much in size for this precision: scale the system, or use float64"
    )
    INTERRUPTED = "stopped by the caller; x is the best iterate known"
    CONDITION_LIMIT = (
        "the condition number of A, or of the preconditioned A, seems to exceed conlim, so that x may be far from "
        "unique; use a preconditioner, damp, or a larger conlim"
    )
    OUT_OF_TIME = "time_limit was reached; x is the best iterate known"
    OUT_OF_MEMORY = "no factors fit memory_limit; raise it, or take recipe=None; x is 0"
    PRECISION_LIMIT = (
        "this precision cannot reach the tolerance: b - A x consists of rounding errors already, or A is too "
        "ill-conditioned; rescale A, or use a higher precision; x is the best iterate known"
    )
    SINGULAR = (
        "A is singular, and no x was found that solves A x = b, since b is outside of its range. Remove the dependent "
        "equations, fix the unknowns that they leave free (a pressure, a rigid motion), or solve the least squares "
        "problem"
    )
    NUMERICALLY_SINGULAR = (
        "A is singular up to the rounding of its entries, and b is outside of its range: no x of this precision solves "
        "A x = b. Proceed as with a singular A, or use a higher precision"
    )


@dataclass(frozen=True)
class Attempt:
    """One recipe with one method, as `finelu.solve` tried it.

    method : the Krylov method, "" if there were no factors.
    why : the reason for the attempt.
    outcome : how the attempt ended.
    setup_seconds : time of the factorization, 0 if the factors existed; both times without compiling.
    seconds : time of the iterations.
    residual : ||b - A x|| / ||b|| of the last x; the measure of `criterion` if that is larger.
    expected : seconds, set-up included, by the estimate when the attempt was chosen; None if it was chosen without one.
    """

    recipe: str
    method: str
    why: str
    outcome: str
    iterations: int
    setup_seconds: float
    seconds: float
    residual: float
    expected: float | None = None


@dataclass(frozen=True)
class Certificate:
    """Errors of x, from `finelu.solve(..., certify=True)`; with several columns, the largest of each figure.

    Norms are infinity norms; complex numbers count as |real| + |imaginary|. With `nullspace`, b is its part in the
    range of A, and A^-1 the pseudoinverse.
    normwise : ||b - A x|| / (||A|| ||x|| + ||b||), the normwise backward error: x exactly solves a system that differs
        from A x = b by this relative change.
    componentwise : max |b - A x|_i / (|A| |x| + |b|)_i, the relative change if each entry changes separately.
    condition : ||A|| ||A^-1||, estimated from below; Inf if a solve of the estimate did not end.
    error : a bound on max |x - A^-1 b| / max |x|, as far as the estimate holds; Inf if there is none.
    least_residual : ||b - A x||_2 / ||b||_2 that the exact solution may have once rounded to this precision: an rtol
        far below it cannot be reached.
    """

    normwise: float
    componentwise: float
    condition: float
    error: float
    least_residual: float

    def sentence(self) -> str:
        """One sentence a figure, the last one without its full stop."""
        normwise = f"the normwise backward error is {self.normwise:.1e}"
        if 1 <= self.error < np.inf:
            singular = self.condition * float(np.finfo(np.float64).eps) >= 1
            why = ", as A is singular to working precision" if singular else ""
            normwise = f"no digit of x is certain{why}. T{normwise[1:]}"
        facts = (
            normwise,
            f"The componentwise backward error is {self.componentwise:.1e}",
            f"The condition number is about {self.condition:.1e}"
            if np.isfinite(self.condition)
            else "No condition number is known",
            f"The bound on the error of x is {self.error:.1e} of its largest element"
            if 1 <= self.error < np.inf
            else f"No element of x is wrong by more than {self.error:.1e} of the largest"
            if np.isfinite(self.error)
            else "No bound on the error of x is known",
            f"Even the exact x, rounded, may have a relative residual of {self.least_residual:.1e}",
        )
        return ". ".join(facts)


class NoArray:
    """An object that is not an array but has one as x: an error says so if it is used as an array."""

    def _refuse(self, *_: object, **__: object) -> Any:
        raise WrongType(f"a {type(self).__name__} is no array; use solution.x, as in x = finelu.solve(A, b).x")

    def __getattr__(self, name: str) -> Any:
        text = f"{type(self).__name__!r} object has no attribute {name!r}"
        hint = "" if name.startswith("_") or not hasattr(np.ndarray, name) else f"; use solution.x.{name}"
        raise AttributeError(text + hint, name=name, obj=None)

    __array__: Callable[..., Any] = _refuse
    __array_ufunc__: Callable[..., Any] = _refuse
    __float__ = __complex__ = __neg__ = __pos__ = __abs__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __matmul__ = __rmatmul__ = __pow__ = __rpow__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse


@dataclass(frozen=True, eq=False)
class Solution(NoArray):
    """The outcome of a Krylov solve; `x, info = solution` unpacks as SciPy's solvers return it.

    x : (n,), or (n, 1) if b is, on the device of b: the converged iterate, or else the best one known; never NaN.
    status : a Status, why the solve ended.
    iterations : of the recurrence; each takes one product with A, two in bicgstab, 2 l in bicgstabl.
    residual_norm : ||b - A x||_2 of exactly this x, computed anew, never the recurrence's.
    history : (iterations + 1,) residual norms on the host: true ones at the beginning of each cycle, the recurrence's
        in between, and that of x at the end. With `finelu.solve` those of all attempts one after the other; each
        attempt begins at the best x so far and ends with the true norm of its x.
    recurrence : as history, but with the recurrence's norm in every iteration that has one: the history that a method
        without true residuals would report.
    method : the name of the function.
    recipe : repr of the recipe that made M, else the type of M, "" without M.
    timings : seconds; "solve" is the whole call. With `finelu.solve`, "compile" is its part for compiling kernels at
        their first use, or loading compiled ones, 0 in later calls; "count" that for orders, and for counts of the fill
        of complete factors, before a choice.
    seen, attempts : of `finelu.solve`: properties of A, and the attempts; `explain()` puts them in words.
    row_residual : the second measure of `criterion`: ||D (b - A x)|| / ||D b||, where D has the reciprocals of the row
        sums of |A|, if rows of A differ much in size; with "backward" the componentwise backward error; else None.
    certificate : of `finelu.solve(..., certify=True)`.
    outside : with `nullspace`, the norm of the part of b that no x reaches, and of which residual_norm and history are
        without; None if it is not known.
    cycle : the iterations that `info` counts as one: those of a cycle if maxiter counted cycles.
    tolerance : max(rtol ||b||, atol), the norm of b - A x that was asked for; None of least squares, and without any
        attempt.
    called : "finelu.solve" if that chose method and recipe, else "".
    arguments : those of that call that were not the default, without recipe and method, as the last line of
        `explain()` repeats them: "rtol=1e-10", or "x0=x0" for an array or a function.
    null_vector : (n,) of `finelu.solve`, on the host: a v of length 1 with A v = 0 up to rounding, if A was found to be
        singular and one is known; else None.
    breakdowns : of bicgstabl and idrs, how often the recurrence broke down and was started again or given up; with
        `finelu.solve` those of all attempts.
    bool(solution) is `converged`. As a pair, (x, info), it has the length 2, solution[0] and solution[1]. It is not an
    array, and an error says so if it is used as one; x is.
    """

    x: Any
    status: Status
    iterations: int
    residual_norm: float
    history: Any
    method: str = ""
    recipe: str = ""
    timings: dict[str, float] = field(default_factory=dict)
    seen: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    recurrence: Any = None
    row_residual: float | None = None
    certificate: Certificate | None = None
    cycle: int = 1
    outside: float | None = None
    tolerance: float | None = None
    called: str = ""
    breakdowns: int = 0
    arguments: tuple[str, ...] = ()
    null_vector: Any = None

    @property
    def converged(self) -> bool:
        return self.status is Status.CONVERGED

    @property
    def info(self) -> int:
        """SciPy's info: 0 when converged, the number of iterations (or cycles) when not, -1 on a breakdown."""
        if self.converged:
            return 0
        limits = (
            Status.MAX_ITERATIONS,
            Status.CONDITION_LIMIT,
            Status.STAGNATED,
            Status.DIVERGED,
            Status.INTERRUPTED,
            Status.OUT_OF_TIME,
            Status.OUT_OF_MEMORY,
            Status.PRECISION_LIMIT,
        )
        return max(-(-self.iterations // self.cycle), 1) if self.status in limits else -1

    @property
    def parts_from_recurrence(self) -> bool:
        """Whether a true residual norm was ever more than twice, or less than half, the recurrence's norm."""
        if self.recurrence is None:
            return False
        with np.errstate(all="ignore"):
            true, recurrence = (np.asarray(v, np.float64) for v in (self.history, self.recurrence))
            return bool(np.any((true > 2 * recurrence) | (true < recurrence / 2)))

    def explain(self, verbose: bool = False) -> str:
        """What A is like, what was tried and why, how it ended, and the call that takes the same way at once.

        verbose : True lists all attempts, each with its times and residual; False the last three.
        """
        return explained(self, verbose=verbose)

    def plot(self, axes: Any = None) -> Any:
        """Draw `history` over the iterations, and the tolerance as a line, by matplotlib.

        Each attempt has a curve of its own, with its number in `explain()`; k columns have one curve, of the worst.
        axes : matplotlib's, to draw on; None: those of a new figure, which `matplotlib.pyplot.show()` shows.
        Returns the axes, as in `solution.plot().figure.savefig("norms.png")`. Raises FineluError without matplotlib,
        WrongType for what is no axes, such as the name of a file.
        """
        axes = axes_for(axes)
        named = "" if self.tolerance is None else f"tolerance {self.tolerance:.2g}"
        draw_norms(axes, curves(self.name, self.history, self.attempts), self.tolerance, named, self._label_of_history)
        legend_above(axes)
        return axes

    _label_of_history = "norm of b - A x"

    def _norms(self) -> list[tuple[str, float]]:
        """What a table shows of the residual, by name."""
        return [("norm of b - A x", self.residual_norm)]

    def __bool__(self) -> bool:
        return self.converged

    def __iter__(self) -> Iterator[Any]:
        return iter((self.x, self.info))

    def __len__(self) -> int:
        return 2

    def __getitem__(self, k: int) -> Any:
        if not isinstance(k, bool | np.bool_):
            with suppress(TypeError):  # of what is no integer
                if -2 <= (place := index(k)) < 2:
                    return (self.x, self.info)[place]
        self._refuse()

    @property
    def name(self) -> str:
        """The method and the recipe, in words."""
        nothing = "nothing found" if self.attempts else "nothing tried"
        return (f"{self.method} with {self.recipe}" if self.recipe else self.method) or nothing

    def _repr_html_(self) -> str:
        facts: list[tuple[str, object]] = [("status", self.status.name.lower().replace("_", " ")), ("by", self.name)]
        facts += [("iterations", self.iterations), *((name, f"{norm:.3g}") for name, norm in self._norms())]
        if self.tolerance is not None:
            facts.append(("tolerance", f"{self.tolerance:.3g}"))
        if "solve" in self.timings:
            facts.append(("time", f"{self.timings['solve']:.3g} s"))
        if not self.converged:
            facts.append(("what to try", self.status.value))
        return facts_as_html(type(self).__name__, facts, norms_as_svg(self.history, self.tolerance))

    def __repr__(self) -> str:
        broken = f"{counted(self.breakdowns, 'breakdown')}, " if self.breakdowns else ""
        return (
            f"Solution({self.name}: {self.status.name.lower()}, {counted(self.iterations, 'iteration')}, {broken}"
            f"residual norm {self.residual_norm:.3e}; {self.status.value})"
        )


@dataclass(frozen=True, eq=False)
class BatchSolution:
    """The outcome for the k systems of a Batch; `solution[s]` is the Solution of system s.

    x (k, n) : on the device of the batch; 0 for a system that holds NaN or Inf, or whose x is out of the range of
        numbers. All other arrays are on the host.
    status (k,) : a Status for each system.  iterations (k,) : of a Krylov method, or steps of refinement.
    residual_norm (k,) : ||b - A x||_2 of exactly this x, computed anew; NaN for a system that holds NaN or Inf.
    backward_error (k,) : the componentwise backward error, the largest |b - A x|_i / (|A| |x| + |b|)_i; NaN for a
        system that holds NaN or Inf, for one that was solved by itself, and for an x that lost digits by underflow.
    tolerance (k,) : max(rtol ||b||, atol).  method, recipe : as in Solution.
    notes : (systems, sentence) for systems that need a word: which hold NaN, which were solved one by one, and why.
    timings : seconds; "solve" is the whole call.
    converged (k,), all_converged : whether each system, or all, passed the test.
    """

    x: Any
    status: Any
    iterations: Any
    residual_norm: Any
    backward_error: Any
    tolerance: Any
    method: str
    recipe: str
    notes: tuple[tuple[tuple[int, ...], str], ...] = ()
    timings: dict[str, float] = field(default_factory=dict)

    @property
    def converged(self) -> Any:
        return self.status == Status.CONVERGED

    @property
    def all_converged(self) -> bool:
        return bool(self.converged.all())

    def __bool__(self) -> bool:
        return self.all_converged

    def __len__(self) -> int:
        return len(self.status)

    def __getitem__(self, s: int) -> Solution:
        norm = float(self.residual_norm[s])
        return Solution(
            self.x[s],
            self.status[s],
            int(self.iterations[s]),
            norm,
            np.array([norm]),
            method=self.method,
            recipe=self.recipe,
            seen=tuple(sentence for systems, sentence in self.notes if index(s) % len(self) in systems),
            tolerance=float(self.tolerance[s]),
        )

    def explain(self) -> str:
        """How many systems ended in which way, and which need a word, line by line."""
        lines = [f"{self.name}, {counted(len(self), 'system')}, {int(self.iterations.sum())} iterations in all"]
        lines += [f"{named_systems(systems)}: {sentence}" for systems, sentence in self.notes]
        for status in Status:
            found = np.flatnonzero(self.status == status)
            if found.size:
                which = "all" if found.size == len(self) else counted(found.size, "system")
                where = "" if status is Status.CONVERGED else f" ({named_systems(found)})"
                lines.append(f"Result of {which}{where}: {status.name.lower().replace('_', ' ')}: {status.value}.")
        return "\n".join(lines)

    @property
    def name(self) -> str:
        """The method and the recipe, in words."""
        return f"{self.method} with {self.recipe}" if self.recipe else self.method

    def __repr__(self) -> str:
        return (
            f"BatchSolution({self.name}: {int(self.converged.sum())} of {counted(len(self), 'system')} converged, "
            f"largest backward error {np.nanmax(self.backward_error, initial=0.0):.1e})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class SolutionOfColumns(Solution):
    """The outcome of a solve for several right-hand sides; `solution[j]` is the Solution of column j.

    x : (n, k).  columns : the k Solutions, each with its own status, iterations, residual_norm and history.
    status, residual_norm, history and all else : those of the worst column: one that did not converge, with the largest
        residual relative to its b.  iterations : of all columns together.
    all_converged, and bool(solution) : whether every column converged.
    `len(solution)` is k; `x, info = solution` unpacks as with one column.
    """

    columns: tuple[Solution, ...] = ()

    _parts = "columns"

    @property
    def all_converged(self) -> bool:
        return self.converged

    def __len__(self) -> int:
        return len(self.columns)

    def __getitem__(self, j: int) -> Solution:
        return self.columns[j]

    def __repr__(self) -> str:
        converged = sum(column.converged for column in self.columns)
        return (
            f"{type(self).__name__}({self.name}: {converged} of {len(self.columns)} {self._parts} converged, "
            f"{counted(self.iterations, 'iteration')}, worst residual norm {self.residual_norm:.3e}; "
            f"{self.status.value})"
        )


def of_columns(found: list[Solution], x: Any, sizes: list[float]) -> SolutionOfColumns:
    """The Solutions of the columns as one.  x : (n, k).  sizes : the norms of the right-hand sides."""
    worst, _ = max(
        zip(found, sizes, strict=True), key=lambda s: (not s[0].converged, s[0].residual_norm / (s[1] or 1.0))
    )
    facts = {name.name: getattr(worst, name.name) for name in fields(Solution)}
    facts |= {"x": x, "iterations": sum(s.iterations for s in found), "timings": dict(worst.timings)}
    return SolutionOfColumns(**facts, columns=tuple(found))


ISTOP = {Status.CONDITION_LIMIT: 3, Status.PRECISION_LIMIT: 5, Status.STAGNATED: 5, Status.MAX_ITERATIONS: 7}


@dataclass(frozen=True, eq=False, repr=False)
class LeastSquaresSolution(Solution):
    """The outcome of lsmr, lsqr, cgls or lstsq, for s = A^H (b - A x) - damp^2 (x - x0); all norms are 2-norms.

    As a tuple it is that of SciPy's function: (x, istop, itn, normr, normar, norma, conda, normx), or for lsqr
    (x, istop, itn, r1norm, r2norm, anorm, acond, arnorm, xnorm, var).

    x : (n,) or (n, k), on the device of b.
    residual_norm : ||b - A x||.  normal_residual_norm : ||s||.  Both are those of exactly this x, computed anew. What
        rounding leaves unknown counts as residual.
    damped_residual_norm : (||b - A x||^2 + damp^2 ||x - x0||^2)^(1/2).
    history : (iterations + 1,) ||s|| by the recurrence, up to a factor with a preconditioner; true at both ends.
    passed : the test that x passes: 1, A x = b to the tolerances; 2, the least-squares solution to atol; 0 if neither,
        or if x0 was the solution at once.
    matrix_norm : a lower bound of ||A||: of a matrix its longest column, with damp added as a row.
    condition : an estimate of the condition number of A, from below, or of the preconditioned A.
    x_norm : ||x||.
    variance : (n,) of lsqr with calc_var: estimates of the diagonal of (A^H A + damp^2 I)^-1, from below; else None.
    With several columns the figures are those of the worst, the iterations of all.
    """

    normal_residual_norm: float = np.nan
    damped_residual_norm: float = np.nan
    passed: int = 0
    matrix_norm: float = np.nan
    condition: float = np.nan
    x_norm: float = np.nan
    variance: Any = None

    _label_of_history = "norm of the residual of the normal equations"

    def _norms(self) -> list[tuple[str, float]]:
        return [*super()._norms(), (self._label_of_history, self.normal_residual_norm)]

    @property
    def istop(self) -> int:
        """Why it ended, by SciPy's number; 5 also without progress, and -1 if the recurrence broke down."""
        return self.passed if self.converged else ISTOP.get(self.status, -1)

    def _tuple(self) -> tuple[Any, ...]:
        first = (self.x, self.istop, self.iterations, self.residual_norm)
        last = (self.normal_residual_norm, self.matrix_norm, self.condition, self.x_norm)
        if self.method != "lsqr":
            return (*first, *last)
        variance = self.x.real * 0 if self.variance is None else self.variance
        normal, matrix_norm, condition, x_norm = last
        return (*first, self.damped_residual_norm, matrix_norm, condition, normal, x_norm, variance)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._tuple())

    def __len__(self) -> int:
        return len(self._tuple())

    def __getitem__(self, k: int) -> Any:
        return self._tuple()[k]
