"""`finelu solve`: solve A x = b, and print a report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import numpy as np
import typer

import finelu
from finelu.cli.arguments import (
    CONVERGED,
    NOT_CONVERGED,
    Json,
    Matrix,
    RightHandSide,
    Rtol,
    Threads,
    check_outputs,
    duration,
    load,
    right_hand_side,
    set_threads,
)
from finelu.cli.output import console, print_json
from finelu.cli.recipes import named_values, recipe_from_text
from finelu.errors import DeviceError, ParameterError
from finelu.progress import Progress, progress

if TYPE_CHECKING:
    from finelu.matrix import CSR
    from finelu.result import Solution

MAXITER = 2000  # iterations of a named recipe, unless --maxiter says otherwise

T = TypeVar("T")


def solve(
    matrix: Matrix,
    b: RightHandSide = None,
    recipe: Annotated[
        str,
        typer.Option(help="preconditioner: auto, {names}, none; auto tries what fits A, and others where that fails"),
    ] = "auto",
    shift: Annotated[str | None, typer.Option(metavar="FLOAT", help="recipe parameter: diagonal shift")] = None,
    steps: Annotated[str | None, typer.Option(metavar="INT", help="recipe parameter: steps of {names}")] = None,
    variant: Annotated[str | None, typer.Option(metavar="NAME", help="recipe parameter: kernel of {names}")] = None,
    triangular: Annotated[str | None, typer.Option(metavar="NAME", help="recipe parameter: triangular solve")] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="DTYPE", help="recipe parameter: dtype of factors, auto or half")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="recipe parameter, such as block_size=4")
    ] = None,
    method: Annotated[str, typer.Option(help="Krylov method: auto, {names}")] = "auto",
    device: Annotated[Literal["cpu", "cuda", "auto"], typer.Option(help="auto: cuda if a GPU can be used")] = "cpu",
    rtol: Rtol = 1e-8,
    criterion: Annotated[
        Literal["auto", "residual", "backward"],
        typer.Option(
            help="what rtol bounds: the norm of b - A x (residual), each row of it against its terms (backward), or "
            "the norm, and that of equilibrated rows where rows of A differ much in size (auto)"
        ),
    ] = "auto",
    certify: Annotated[
        bool, typer.Option("--certify", help="estimate the condition of A and the error of x, with --recipe auto")
    ] = False,
    maxiter: Annotated[
        int | None, typer.Option(help=f"largest number of iterations, with a named recipe (default: {MAXITER})")
    ] = None,
    restart: Annotated[
        int | None,
        typer.Option(help="iterations of a cycle, with a named recipe and a method that restarts"),
    ] = None,
    time_limit: Annotated[
        str | None, typer.Option(metavar="TIME", help="for everything, with --recipe auto: 60s, 5m, 1h")
    ] = None,
    output: Annotated[str | None, typer.Option("-o", "--output", metavar="X.npy", help="write x to this file")] = None,
    plot: Annotated[str | None, typer.Option(metavar="C.png", help="draw the residual norms to this file")] = None,
    threads: Threads = None,
    petsc: Annotated[
        bool,
        typer.Option(
            "--petsc",
            help="by PETSc, on all processes of mpiexec, as its options (-ksp_type, -sub_finelu_recipe, ...) say; "
            "with -b, -o, --rtol, --maxiter, --json, and --partition NAME",
        ),
    ] = False,
    as_json: Json = False,
) -> int:
    """Solve A x = b, by the named recipe or by an automatic choice, and print a report."""
    from finelu.auto.choose import choose
    from finelu.krylov import method_name
    from finelu.matrix.traits import traits
    from finelu.preconditioners import recipe_name
    from finelu.validation import count, number

    given = {"shift": shift, "steps": steps, "variant": variant, "triangular": triangular, "precision": precision}
    parameters = {name: value for name, value in given.items() if value is not None} | named_values(settings or [])
    recipe, method, rtol = recipe_name(recipe, "auto", "none"), method_name(method, "auto"), number("rtol", rtol)
    for name, value in (("maxiter", maxiter), ("restart", restart)):
        if value is not None:
            count(name, value, 1)
    automatic = recipe == "auto"
    if automatic:
        _refuse_without_recipe(parameters, maxiter, restart)
    elif certify:
        raise ParameterError("--certify is for --recipe auto.")
    elif time_limit is not None:
        raise ParameterError("--time-limit is for --recipe auto; with a named recipe, use --maxiter.")
    limit = None if time_limit is None else duration("--time-limit", time_limit)
    made = None if automatic else recipe_from_text(recipe, parameters)
    check_outputs(matrix, b, output=output, plot=plot)
    set_threads(threads)

    with progress(as_json) as shown:
        gpu = _gpu(device)
        shown.stage(f"reading {matrix}")
        A = load(matrix)
        rhs, rhs_name, norm_b = right_hand_side(b, A, "" if automatic else "--recipe auto takes several")
        options: dict[str, Any] = {"rtol": rtol, "criterion": criterion}
        if automatic:
            options |= {"method": method, "time_limit": limit, "certify": certify}
        else:
            methods = (method,) if method != "auto" else choose(traits(A), made).methods
            method = methods[0]
            limits = {name: _iteration_limits(name, maxiter, restart if name == method else None) for name in methods}
        if shown.enabled:
            label = "solving" if automatic else method
            options["watch"] = shown.watcher(label, norm_b, rtol, maxiter or MAXITER)
        if gpu is not None:
            A, rhs = A.on(gpu), gpu.asarray(rhs)
        if automatic:
            options["device"] = "cpu" if gpu is None else "cuda"  # where the output says that it ran
            F, (solution, times) = None, _run_automatic(A, rhs, options, shown)
            name, method, reason = solution.recipe, solution.method, _reason(solution)
        else:
            F, solution, times = _run(A, rhs, made, {name: options | limits[name] for name in methods}, shown)
            method = solution.method
            options |= limits[method]
            name, reason = "none" if made is None else repr(made), "as asked"

    scale = norm_b if rhs.ndim == 1 else _norm_of_worst(A, rhs, solution)
    scale = scale if scale > 0 else 1.0
    if output is not None:
        from finelu.device import to_host
        from finelu.io import write_array

        write_array(output, to_host(solution.x))
    if plot is not None:
        from finelu.drawing import curves
        from finelu.report import plot_convergence

        curve = f"{method} with {name if automatic else recipe}" if method else reason
        shares = curves(curve, solution.history / scale, solution.attempts)
        if solution.parts_from_recurrence:
            shares["according to the recurrence"] = solution.recurrence / scale
        plot_convergence(plot, shares, rtol, title=f"{matrix}, n = {A.n}")
    result = {
        "matrix": matrix,
        "n": A.n,
        "nnz": A.nnz,
        "dtype": str(A.dtype),
        "rhs": rhs_name if rhs.ndim == 1 else f"{rhs_name}, {rhs.shape[1]} columns",
        "device": "cpu" if gpu is None else "cuda",
        "recipe": name,
        "reason": reason,
        "seen": solution.seen,
        "attempts": [asdict(attempt) for attempt in solution.attempts],
        "explanation": solution.explain().splitlines(),
        "factors_nnz": None if automatic else 0 if F is None else F.nnz,
        "fill": None if automatic else 0.0 if F is None else F.nnz / A.nnz,
        "method": method,
        "restart": options.get("restart"),
        "converged": solution.converged,
        "status": solution.status.name.lower(),
        "advice": solution.status.value,
        "iterations": solution.iterations,
        "rtol": rtol,
        "residual_norm": solution.residual_norm,
        "relative_residual": solution.residual_norm / scale,
        "criterion": criterion,
        "row_residual": solution.row_residual,
        "certificate": None if solution.certificate is None else asdict(solution.certificate),
        **times,
        "history": solution.history,
        "recurrence": solution.recurrence,
        "report": {} if F is None else dict(F.report),
        "output": output,
        "plot": plot,
    }
    if as_json:
        print_json(result)
    else:
        from finelu.report import solution_in_words, table

        with console() as out:
            out.print(table(matrix, solution_in_words(result)))
    return CONVERGED if solution.converged else NOT_CONVERGED


def _norm_of_worst(A: CSR, B: Any, solution: Solution) -> float:
    """||b|| of the column whose relative residual is the largest: the one that the solution speaks of."""
    import scipy.linalg

    from finelu.device import to_host

    with np.errstate(all="ignore"):
        R = to_host(B - A.tosparse() @ solution.x)
    norms, residuals = (np.array([scipy.linalg.norm(c) for c in columns]) for columns in (to_host(B).T, R.T))
    return float(norms[np.argmax(residuals / np.where(norms > 0, norms, 1))])


def _refuse_without_recipe(parameters: dict[str, str], maxiter: int | None, restart: int | None) -> None:
    """Raise for options that only a named recipe takes."""
    if parameters:
        raise ParameterError(f"{next(iter(parameters))} is a parameter of a recipe; name the recipe with --recipe.")
    for option, value in (("--maxiter", maxiter), ("--restart", restart)):
        if value is not None:
            raise ParameterError(f"{option} is for a named recipe; with --recipe auto, use --time-limit.")


def _iteration_limits(method: str, maxiter: int | None, restart: int | None) -> dict[str, int]:
    from finelu.krylov import METHODS, RESTART

    if restart is not None and not METHODS[method].restarts:
        those = " and ".join(name for name, kind in METHODS.registered.items() if kind.restarts)
        raise ParameterError(f"restart has no meaning for {method}; only {those} restart.")
    return {"maxiter": maxiter or MAXITER, **METHODS[method].in_cycles(restart or RESTART)}


def _gpu(device: str) -> ModuleType | None:
    """cupy for "cuda", and for "auto" if a GPU can be used; None: work on the CPU."""
    from finelu.device import require_gpu

    if device == "cpu":
        return None
    try:
        return require_gpu()
    except DeviceError:
        if device == "cuda":
            raise
        return None


def _run(
    A: CSR, b: Any, recipe: Any, methods: dict[str, dict[str, Any]], shown: Progress
) -> tuple[Any, Solution, dict[str, float]]:
    """Factor, and solve by the first of the methods (name -> options), or by the next if that breaks down.

    Returns the factors (None without a recipe), the solution, and the seconds of each part.
    """
    from finelu.auto.attempt import BROKEN, INDEFINITE
    from finelu.device import synchronize
    from finelu.krylov import METHODS

    with shown.compile_clock() as compiled:

        def timed(work: Callable[[], T]) -> tuple[T, float]:
            start, before = time.perf_counter(), compiled()
            result = work()
            synchronize(A.data)
            return result, time.perf_counter() - start - (compiled() - before)

        shown.stage("factoring" if recipe is None else f"factoring with {recipe!r}")
        F, factor_seconds = timed(lambda: None if recipe is None else recipe.factor(A))
        solve_seconds = 0.0
        for method, options in methods.items():
            shown.stage(method)
            solution, seconds = timed(partial(METHODS[method].solve, A, b, M=F, **options))
            solve_seconds += seconds
            if solution.status not in BROKEN + INDEFINITE:
                break
        times = {"factor_seconds": factor_seconds, "solve_seconds": solve_seconds, "compile_seconds": compiled()}
        times["total_seconds"] = sum(times.values())
    return F, solution, times


def _run_automatic(A: CSR, b: Any, options: dict[str, Any], shown: Progress) -> tuple[Solution, dict[str, float]]:
    """finelu.solve: the solution, and the seconds of its parts; `total` includes those of compiling."""
    with shown.compile_clock():
        shown.stage("choosing and factoring")
        solution = finelu.solve(A, b, **options)
        times = {
            "factor_seconds": sum(a.setup_seconds for a in solution.attempts),
            "solve_seconds": sum(a.seconds for a in solution.attempts),
            "compile_seconds": solution.timings["compile"],
            "total_seconds": solution.timings["solve"],
        }
    return solution, times


def _reason(solution: Solution) -> str:
    """The reason of `finelu.solve` for its choice, or for having none."""
    why = [a.why for a in solution.attempts if (a.recipe, a.method) == (solution.recipe, solution.method)]
    if why:
        return why[-1]
    return "no attempt found an x better than 0" if solution.attempts else "the time limit or the memory left no room"
