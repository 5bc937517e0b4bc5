"""finelu solve | compare | inspect | warmup | bench: from a matrix file to a solution in the terminal.

Exit status: 0 converged, 1 not converged, or A is singular and has no solution (of warmup: no
folder keeps the kernels), 2 bad input or an output that cannot be
written, 70 an error in finelu itself, 130 interrupted. Errors are one line on stderr, or with --json one object
{"error": ...} on stdout (on stderr where stdout cannot be written); FINELU_DEBUG=1 in the environment puts the
traceback of an error in finelu itself before it. A reader that has gone is no error; what goes to a closed stream is
dropped, and characters that a stream cannot encode are replaced by ASCII like them. Every import that costs time stands
inside the command that needs it.
"""

from __future__ import annotations

import codecs
import io
import json
import math
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

import typer

import finelu
from finelu.errors import FileError, FineluError, MatrixError, ParameterError, meant

if TYPE_CHECKING:
    import numpy as np

    from finelu.matrix import CSR

CONVERGED, NOT_CONVERGED, BAD_INPUT, INTERNAL_ERROR, INTERRUPTED = 0, 1, 2, 70, 130
METHODS = tuple(name for name, module in finelu._MODULE_OF.items() if module == "krylov")
RECIPE_NAMES = (
    "auto, ilu0, ic0, iluk, milu0, ilut, ict, parilu, paric, parilut, parict, multilevel, jacobi, block_jacobi, "
    "block_ilu0 (with --set block_size=...), sparse_lu, none; auto tries what fits A, and others where that fails"
)
MAXITER = 2000
SEED = 0  # of the right-hand side that is made where none is given

app = typer.Typer(
    help="Incomplete factorizations, triangular solves and Krylov methods on CPU and GPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Matrix = Annotated[str, typer.Argument(metavar="A", help="matrix file, or gallery:NAME:ARGS (gallery:poisson7:60)")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]


@app.callback(invoke_without_command=True)
def _finelu(version: Annotated[bool, typer.Option("--version", help="print the version and end")] = False) -> None:
    if version:
        _say(f"finelu {finelu.__version__}\n")
        raise typer.Exit


@app.command()
def solve(
    matrix: Matrix,
    b: Annotated[str | None, typer.Option("-b", "--rhs", help="right-hand side file; random if not given")] = None,
    recipe: Annotated[str, typer.Option(help=f"preconditioner: {RECIPE_NAMES}")] = "auto",
    shift: Annotated[str | None, typer.Option(metavar="FLOAT", help="recipe parameter: diagonal shift")] = None,
    steps: Annotated[str | None, typer.Option(metavar="INT", help="recipe parameter: of parilut and parict")] = None,
    variant: Annotated[str | None, typer.Option(metavar="NAME", help="recipe parameter: kernel")] = None,
    triangular: Annotated[str | None, typer.Option(metavar="NAME", help="recipe parameter: triangular solve")] = None,
    precision: Annotated[str | None, typer.Option(metavar="DTYPE", help="recipe parameter: dtype of factors")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="recipe parameter")] = None,
    method: Annotated[str, typer.Option(help=f"Krylov method: auto, {', '.join(METHODS)}")] = "auto",
    device: Annotated[Literal["cpu", "cuda", "auto"], typer.Option(help="auto: cuda if a GPU can be used")] = "cpu",
    rtol: Annotated[float, typer.Option(help="wanted residual norm, relative to the norm of b")] = 1e-8,
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
    threads: Annotated[int | None, typer.Option(help="CPU threads (default: all cores)")] = None,
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
    """Solve A x = b, by the recipe named or by what fits A, and print what was done."""
    given = {"shift": shift, "steps": steps, "variant": variant, "triangular": triangular, "precision": precision}
    parameters = {name: value for name, value in given.items() if value is not None} | _named_values(settings or [])
    method, recipe = method.lower(), _recipe_name(recipe)
    _check_iteration(method, rtol, maxiter, restart)
    automatic = recipe == "auto"
    if automatic:
        _refuse_without_recipe(parameters, maxiter, restart)
    elif time_limit is not None:
        raise ParameterError("--time-limit is for --recipe auto; with a named recipe, use --maxiter.")
    limit = None if time_limit is None else _duration("--time-limit", time_limit)
    made = None if automatic else _recipe(recipe, parameters)
    _check_outputs(matrix, b, output=output, plot=plot)
    if threads is not None:
        finelu.set_num_threads(threads)
    finelu.get_num_threads()  # a wrong FINELU_NUM_THREADS is told even where no kernel asks for it

    with _progress(enabled=not as_json and sys.stderr.isatty()) as progress:
        from finelu.device import to_host
        from finelu.krylov import RESTART, RESTARTED
        from finelu.matrix import as_csr

        gpu = _gpu(device)
        progress.stage(f"reading {matrix}")
        A = as_csr(_load(matrix), diagonal=False)  # gaps are for the recipe to judge
        rhs, rhs_name, norm_b = _right_hand_side(b, A)
        options: dict[str, Any] = {"rtol": rtol}
        if automatic:
            options |= {"method": method, "time_limit": limit}
        else:
            method = _method(recipe, A) if method == "auto" else method
            options["maxiter"] = maxiter or MAXITER
            if method in RESTARTED:
                options["restart"] = restart or RESTART
            elif restart is not None:
                raise ParameterError(f"restart has no meaning for {method}; only {' and '.join(RESTARTED)} restart.")
        if progress.enabled:
            label = "solving" if automatic else method
            options["watch"] = progress.watcher(label, norm_b, rtol, maxiter or MAXITER)
        if gpu is not None:
            A, rhs = _to_gpu(gpu, A, rhs)
        if automatic:
            F, (solution, times) = None, _run_auto(A, rhs, options, progress)
            name, method = solution.recipe, solution.method
            whys = [a.why for a in solution.attempts if a.recipe == name and a.method == method]
            nothing = "no attempt found an x better than 0"
            nothing = nothing if solution.attempts else "the time limit or the memory left no room"
            reason = whys[-1] if whys else nothing
        else:
            F, solution, times = _run(A, rhs, made, method, options, progress)
            name, reason = "none" if made is None else repr(made), "as asked"

    scale = norm_b if norm_b > 0 else 1.0
    if output is not None:
        from finelu.io import write_array

        write_array(output, to_host(solution.x))
    if plot is not None:
        from finelu.report import plot_convergence

        curve = f"{method}, {name if automatic else recipe}" if method else reason
        curves = {curve: solution.history / scale}
        if solution.parts_from_recurrence:
            curves["as the recurrence told it"] = solution.recurrence / scale
        plot_convergence(plot, curves, rtol, title=f"{matrix}, n = {A.n}")
    result = {
        "matrix": matrix,
        "n": A.n,
        "nnz": A.nnz,
        "dtype": str(A.dtype),
        "rhs": rhs_name,
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
        **times,
        "history": solution.history,
        "recurrence": solution.recurrence,
        "report": {} if F is None else dict(F.report),
        "output": output,
        "plot": plot,
    }
    (_print_json if as_json else _print_solution)(result)
    return CONVERGED if solution.converged else NOT_CONVERGED


@app.command()
def compare(
    matrix: Matrix,
    b: Annotated[str | None, typer.Option("-b", "--rhs", help="right-hand side file; random if not given")] = None,
    html: Annotated[str | None, typer.Option(metavar="PAGE.html", help="write a page with tables and pictures")] = None,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="for all measurements but compiling: 60s, 5m, 1h")
    ] = "60s",
    rtol: Annotated[float, typer.Option(help="wanted residual norm, relative to the norm of b")] = 1e-8,
    device: Annotated[
        Literal["cpu", "cuda", "auto"], typer.Option(help="auto: the CPU, and the GPU if there is one")
    ] = "auto",
    recipes: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="only these recipes; solve is fl.solve, spilu and splu are SciPy's"),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads (default: all cores)")] = None,
    as_json: Json = False,
) -> int:
    """Measure every recipe that applies on this system, and say which to take for one solve and for many."""
    seconds = _duration("--budget", budget)
    names = None if recipes is None else [name.strip() for name in recipes.split(",") if name.strip()]
    _check_outputs(matrix, b, page=html)
    if threads is not None:
        finelu.set_num_threads(threads)
    from finelu.compare import compare as measured

    with _progress(enabled=not as_json and sys.stderr.isatty()) as progress:
        from finelu.matrix import as_csr

        progress.stage(f"reading {matrix}")
        A = as_csr(_load(matrix), diagonal=False)
        rhs, rhs_name, _ = _right_hand_side(b, A)
        result = measured(
            A,
            rhs,
            rtol=rtol,
            budget=seconds,
            device=device,
            recipes=names,
            pictures=html is not None,
            watch=progress.stage,
        )
        if html is not None:
            from finelu.report import write_page

            progress.stage(f"writing {html}")
            write_page(html, result, A, matrix, b, rhs_name, version=finelu.__version__)
    if as_json:
        from finelu.report import comparison_facts

        _print_json({"matrix": matrix, "rhs": rhs_name, "page": html, **comparison_facts(result, matrix, b)})
    else:
        from finelu.report import print_comparison

        with _console() as console:
            print_comparison(console, result, matrix, b, html)
    if result.interrupted:
        if not as_json:
            _tell("finelu: interrupted; what was measured before is shown")
        raise _Reported
    return CONVERGED if any(m.solved for m in result.measurements) else NOT_CONVERGED


@app.command()
def inspect(
    matrix: Matrix,
    plot: Annotated[str | None, typer.Option(metavar="P.png", help="draw pattern, levels, rows to this file")] = None,
    as_json: Json = False,
) -> int:
    """Show what A is like: symmetry, diagonal, dominance, levels, blocks, and what solve would try first."""
    _check_outputs(matrix, plot=plot)
    from finelu.matrix import as_csr
    from finelu.properties import properties
    from finelu.solver import first_try

    A = as_csr(_load(matrix), diagonal=False)
    found, first = properties(A), first_try(A)
    if plot is not None:
        from finelu.report import plot_matrix

        plot_matrix(plot, A, title=f"{matrix}, n = {A.n}")
    if as_json:
        _print_json({"matrix": matrix, **asdict(found), "suggestion": first, "plot": plot})
        return CONVERGED

    from finelu.report import properties_in_words, table

    words = (
        f"{first['recipe']} with {first['method']}: {first['reason']}" if first else "none: too little memory is free"
    )
    rows = properties_in_words(found) | {"suggestion": f"finelu solve chooses by itself; first {words}"}
    if plot is not None:
        rows["plot"] = plot
    with _console() as console:
        console.print(table(matrix, rows))
    return CONVERGED


@app.command()
def warmup(
    every: Annotated[bool, typer.Option("--all", help="for all four dtypes, not float64 alone")] = False,
    as_json: Json = False,
) -> int:
    """Compile the kernels of the CPU now, not at their first use; they are kept on the disk."""
    from finelu.report import seconds
    from finelu.warmup import DTYPES
    from finelu.warmup import warmup as warmed

    with _progress(enabled=not as_json and sys.stderr.isatty()) as progress:
        done = warmed(DTYPES if every else DTYPES[:1], progress.stage)
    if as_json:
        _print_json(done)
        return CONVERGED
    print(f"took {seconds(done['seconds'])}, compiling and loading kernels {seconds(done['compile_seconds'])} of it")
    if done["folder"] is None:
        print("no folder for the kernels can be written, so none is kept; set NUMBA_CACHE_DIR to one")
        return NOT_CONVERGED
    print(f"the kernels are kept in {done['folder']}")
    return CONVERGED


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="a paper's benchmark (syncfree, parilut, ilupack, fgbilu)")],
) -> int:
    """Run a benchmark of a checkout: its tables and figures; further arguments are handed to it."""
    root = Path(finelu.__file__).resolve().parents[2]
    # of two with one name the paper's, which comes last, counts
    files = [path for where in (".", "papers") for path in (root / "benchmarks" / where).glob("[!_]*.py")]
    # the files without a main are parts of the others
    programs = [path for path in files if re.search(r"^def main\(", path.read_text(), re.MULTILINE)]
    modules = {path.stem: ".".join(path.relative_to(root).with_suffix("").parts) for path in programs}
    if not modules:
        raise FileError(
            f"{root / 'benchmarks'}: no benchmarks here; they come with a checkout of finelu, not the package."
        )
    if name not in modules:
        raise ParameterError(
            f"there is no benchmark {name!r}; one of {', '.join(sorted(modules))} is needed." + meant(name, modules)
        )
    sys.path.insert(0, str(root))
    return int(import_module(modules[name]).main(context.args) or 0)


def _duration(option: str, text: str) -> float:
    """The seconds of "90", "60s", "5m" or "1h", as an option was given it."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(s|m|h|)", text.strip().lower())
    value = float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]] if found else 0.0
    if not 0 < value < math.inf:
        raise ParameterError(f"{option} {text}: a time larger than 0 is needed, such as 60s, 5m or 1h.")
    return value


def _refuse_without_recipe(parameters: dict[str, str], maxiter: int | None, restart: int | None) -> None:
    """What only a named recipe heeds, told where none is named."""
    if parameters:
        raise ParameterError(f"{next(iter(parameters))} is a parameter of a recipe; name the recipe with --recipe.")
    for option, value in (("--maxiter", maxiter), ("--restart", restart)):
        if value is not None:
            raise ParameterError(f"{option} is for a named recipe; with --recipe auto, use --time-limit.")


def _named_values(settings: Sequence[str]) -> dict[str, str]:
    pairs = [setting.partition("=") for setting in settings]
    for name, equals, _ in pairs:
        if not equals:
            raise ParameterError(f"--set {name}: NAME=VALUE is needed, as in --set shift=1e-3.")
    return {name.replace("-", "_"): value for name, _, value in pairs}


def _recipe(name: str, parameters: dict[str, str]):
    """The recipe of this name with these parameters, converted from text as its fields declare; None for "none"."""
    from finelu.preconditioners import RECIPES

    kind = RECIPES.get(name)
    hints = {} if kind is None else get_type_hints(kind)
    names = [] if kind is None else [field.name for field in fields(kind)]
    for parameter in parameters:
        if parameter not in names:
            raise ParameterError(
                f"recipe {name} has no parameter {parameter!r}; it has {', '.join(names) if names else 'none'}."
                + meant(parameter, names)
            )
    return kind and kind(**{key: _converted(key, text, hints[key]) for key, text in parameters.items()})


def _converted(name: str, text: str, hint) -> Any:
    from finelu.preconditioners.recipe import value_of

    try:
        return value_of(text, hint)
    except ValueError:
        names = " or ".join(getattr(kind, "__name__", str(kind)) for kind in get_args(hint) or (hint,))
        raise ParameterError(f"{name}={text!r}; {names} is needed.") from None


def _recipe_name(name: str) -> str:
    """A key of RECIPES, "auto" or "none", as meant."""
    if name in ("auto", "none"):  # without the imports
        return name
    from finelu.preconditioners import recipe_name

    return recipe_name(name, "auto", "none")


def _check_iteration(method: str, rtol: float, maxiter: int | None, restart: int | None) -> None:
    if method not in ("auto", *METHODS):
        raise ParameterError(
            f"there is no method {method!r}; one of auto, {', '.join(METHODS)} is needed." + meant(method, METHODS)
        )
    if not (math.isfinite(rtol) and rtol >= 0):
        raise ParameterError(f"rtol={rtol}; a finite number >= 0 is needed.")
    for name, value in (("maxiter", maxiter), ("restart", restart)):
        if value is not None and value < 1:
            raise ParameterError(f"{name}={value}; at least 1 is needed.")


def _check_outputs(
    *inputs: str | None, output: str | None = None, plot: str | None = None, page: str | None = None
) -> None:
    """Every file that will be written can be, and is neither an input nor another output: said before the work."""
    if output is not None:
        from finelu.io import check_writable

        check_writable(output)
    if plot is not None:
        from finelu.report import check_plot

        check_plot(plot)
    if page is not None:
        from finelu.report import check_page

        check_page(page)
    written = [path for path in (output, plot, page) if path is not None]
    if written:
        from finelu.io import check_apart

        check_apart(written, [path for path in inputs if path is not None])


def _gpu(device: str):
    """cupy for "cuda", and for "auto" where a GPU can be used; None: work on the CPU."""
    from finelu.device import require_gpu
    from finelu.errors import DeviceError

    if device == "cpu":
        return None
    try:
        return require_gpu()
    except DeviceError:
        if device == "cuda":
            raise
        return None


def _to_gpu(cupy, A: CSR, b):

    return A.on(cupy), cupy.asarray(b)


def _load(matrix: str):
    if matrix.startswith("gallery:"):
        return finelu.gallery.problem(matrix.removeprefix("gallery:"))
    return finelu.read_matrix(matrix)


def _right_hand_side(path: str | None, A: CSR) -> tuple[np.ndarray, str, float]:
    """b (n,), where it comes from, and its 2-norm."""
    import numpy as np
    import scipy.linalg

    from finelu.io import read_vector
    from finelu.matrix import check_vector

    if path is None:
        b = np.random.default_rng(SEED).uniform(-0.5, 0.5, A.n).astype(A.dtype)
        name = f"uniform in [-0.5, 0.5], seed {SEED}"
    else:
        b, name = check_vector(read_vector(path), A.n, A.data), path
        if b.ndim == 2:
            raise MatrixError(f"{path}: holds {b.shape[1]} columns; one right-hand side is solved for at a time.")
    return b, name, float(scipy.linalg.norm(b))


def _method(recipe: str, A: CSR) -> str:
    """cg where A and the factors are Hermitian and may be positive definite, else gmres."""
    from finelu.preconditioners import RECIPES
    from finelu.properties import diagonal, is_hermitian

    keeps_definite = recipe == "none" or RECIPES[recipe].keeps_definite
    return "cg" if keeps_definite and diagonal(A).positive and is_hermitian(A) else "gmres"


def _run(A: CSR, b, recipe, method: str, options: dict[str, Any], progress: _Progress):
    """Factor and solve: the factors (None without a recipe), the solution, and the seconds that each part took."""
    from finelu import krylov
    from finelu.device import synchronize

    with _compile_time(progress) as compiled:

        def timed(work):
            start, before = time.perf_counter(), compiled()
            result = work()
            synchronize(A.data)
            return result, time.perf_counter() - start - (compiled() - before)

        progress.stage("factoring" if recipe is None else f"factoring with {recipe!r}")
        F, factor_seconds = timed(lambda: None if recipe is None else recipe.factor(A))
        progress.stage(method)
        solution, solve_seconds = timed(lambda: getattr(krylov, method)(A, b, M=F, **options))
        times = {"factor_seconds": factor_seconds, "solve_seconds": solve_seconds, "compile_seconds": compiled()}
        times["total_seconds"] = sum(times.values())
    return F, solution, times


def _run_auto(A: CSR, b, options: dict[str, Any], progress: _Progress):
    """finelu.solve: the solution, and the seconds that its parts took; those of compiling are within the others."""
    with _compile_time(progress):
        progress.stage("choosing and factoring")
        solution = finelu.solve(A, b, **options)
        times = {
            "factor_seconds": sum(a.setup_seconds for a in solution.attempts),
            "solve_seconds": sum(a.seconds for a in solution.attempts),
            "compile_seconds": solution.timings["compile"],
            "total_seconds": solution.timings["solve"],
        }
    return solution, times


@contextmanager
def _compile_time(progress: _Progress) -> Iterator[Callable[[], float]]:
    """`compile_clock`, which the progress tells of."""
    from finelu.kernels.compiling import compile_clock

    before = ""

    def tell(seconds: float | None) -> None:
        nonlocal before
        if seconds is None:
            before = progress.text
            progress.stage("compiling or loading the CPU kernels, at their first use")
        else:
            progress.stage(before)

    with compile_clock(tell) as compiled:
        yield compiled


class _NoOutput(FileError):
    """What stdout was to show is lost; with --json the error goes to stderr, too."""


class _Reported(Exception):
    """Ctrl-C, of which the command has told the rest already: `finelu compare` shows what it had."""


class _Progress:
    """A spinner and a bar on stderr, or nothing at all."""

    def __init__(self, bar=None):
        self.bar = bar
        self.enabled = bar is not None
        self.task = bar.add_task("starting", total=None) if bar is not None else None

    @property
    def text(self) -> str:
        return self.bar.tasks[0].description if self.bar is not None else ""

    def stage(self, text: str, done: int | None = None, of: int | None = None) -> None:
        if self.bar is not None:
            self.bar.update(self.task, description=text, completed=done, total=of)

    def watcher(self, method: str, norm_b: float, rtol: float, maxiter: int) -> Callable[[int, float], None]:
        """A callback for a Krylov method: the bar shows the decades gained of those wanted, or the iterations spent."""
        wanted = -math.log10(rtol) if 0 < rtol < 1 else math.inf

        def watch(iteration: int, residual_norm: float) -> None:
            gained = -math.log10(residual_norm / norm_b) if residual_norm > 0 and norm_b > 0 else 0.0
            done = max(gained / wanted, iteration / maxiter)
            text = f"{method}: iteration {iteration}, relative residual {residual_norm / (norm_b or 1.0):.2e}"
            self.bar.update(self.task, description=text, total=1.0, completed=min(max(done, 0.0), 1.0))

        return watch


@contextmanager
def _progress(enabled: bool) -> Iterator[_Progress]:
    if not enabled:
        yield _Progress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _Progress(bar)


@contextmanager
def _console():
    """A console whose text goes to stdout when the block ends."""
    from rich.console import Console

    page = io.StringIO()
    yield Console(file=page, force_terminal=True if sys.stdout.isatty() else None, soft_wrap=False, highlight=False)
    _say(page.getvalue())


def _say(text: str) -> None:
    """Write to stdout, now. A reader that has gone (`finelu ... | head -1`) has what it wanted: the rest is dropped."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _drop(sys.stdout)
    except OSError as error:
        _drop(sys.stdout)
        raise _NoOutput(f"stdout: cannot be written ({error.strerror or error}).") from error


def _tell(line: str) -> None:
    """A line on stderr; where stderr takes none, the exit status says it alone."""
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except OSError:
        _drop(sys.stderr)


def _drop(stream) -> None:
    """What a stream that fails still holds goes nowhere, so that the interpreter's end does not meet it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


LIKENESS = {
    **dict(zip("▁▂▃▄▅▆▇█", "_.:-=+*#", strict=True)),
    **dict(zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹ᵀᴴ", "-0123456789TH", strict=True)),
    **{"‖": "||", "µ": "u", "μ": "u", "≤": "<=", "≥": ">=", "≠": "!=", "≈": "~", "×": "x", "·": "*", "−": "-"},
    **{"–": "-", "—": "-", "…": "...", "‘": "'", "’": "'", "“": '"', "”": '"', "→": "->", "ε": "eps", "λ": "lambda"},
    **{"⠀": " ", "━": "-", "─": "-", "╸": "-", "╺": "-", "│": "|", "╭": "+", "╮": "+", "╰": "+", "╯": "+", "•": "*"},
}  # of a character, for a terminal that has ASCII alone


def _as_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    """An error handler of codecs: a character's likeness, a byte of a file name as it was, or its code (\\xe9)."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if character in LIKENESS:
        return LIKENESS[character], error.start + 1
    if "\udc80" <= character <= "\udcff":  # what os.fsdecode makes of a byte that is no text
        return bytes([ord(character) - 0xDC00]), error.start + 1
    return character.encode("ascii", "backslashreplace").decode(), error.start + 1


def _prepare_streams() -> None:
    """A stdout or stderr that was closed leads nowhere, and one that cannot encode a character takes another."""
    codecs.register_error("finelu", _as_ascii)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            try:
                os.fstat(number)  # another file may have taken the number
            except OSError:
                os.dup2(nowhere, number)
            setattr(sys, name, os.fdopen(nowhere, "w"))
        elif isinstance(stream, io.TextIOWrapper) and stream.errors in (
            "strict",
            "surrogateescape",
            "backslashreplace",
        ):
            stream.reconfigure(errors="finelu")


def _print_solution(result: dict[str, Any]) -> None:
    from finelu.report import seconds, sparkline, table

    rows = {
        "n": f"{result['n']}",
        "nnz": f"{result['nnz']} ({result['dtype']})",
        "right-hand side": result["rhs"],
        "device": result["device"],
    }
    attempts = result["attempts"]
    if result["seen"]:
        rows["seen"] = "\n".join(result["seen"])
    if len(attempts) > 1 or (attempts and not result["converged"]):  # one that solved is told by the rows below
        rows["tried"] = "\n".join(map(_tried, attempts))
    if result["method"]:
        rows["recipe"] = f"{result['recipe']} ({result['reason']})"
    elif not attempts:
        rows["tried"] = f"nothing: {result['reason']}"
    if result["fill"]:
        rows["fill"] = f"{result['fill']:.3g} ({result['factors_nnz']} entries in the factors)"
    if result["factor_seconds"] > 0:
        rows["factor time"] = seconds(result["factor_seconds"])
    if result["method"]:
        rows["method"] = result["method"] if result["restart"] is None else f"{result['method']}({result['restart']})"
    rows |= {
        "status": f"{result['status']}: {result['advice']}",
        "iterations": f"{result['iterations']}",
        "relative residual": f"{result['relative_residual']:.3e} (true, of the x returned; wanted {result['rtol']:g})",
        "solve time": seconds(result["solve_seconds"]),
        "total time": seconds(result["total_seconds"]),
    }
    if result["compile_seconds"] > 0:
        rows["kernels"] = f"{seconds(result['compile_seconds'])} of the total, compiled or loaded at their first use"
    rows |= {name: result[name] for name in ("output", "plot") if result[name] is not None}
    if result["plot"] is None:
        rows["residual norms"] = sparkline(result["history"])
    with _console() as console:
        console.print(table(result["matrix"], rows))


def _tried(attempt: dict[str, Any]) -> str:
    """An attempt of finelu.solve in two short lines, or one where it found no factors."""
    from finelu.report import seconds

    took = seconds(attempt["setup_seconds"] + attempt["seconds"])
    if not attempt["method"]:  # without the advice for those who name this recipe
        return f"{attempt['recipe']}: {attempt['outcome'].partition('. ')[0]}"
    return (
        f"{attempt['recipe']}, {attempt['method']}: {attempt['outcome']}\n"
        f"  {attempt['iterations']} iterations, {took}, relative residual {attempt['residual']:.1e}"
    )


def _print_json(result: dict[str, Any]) -> None:
    _say(json.dumps(_plain(result), allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    """`value` in JSON's types: NumPy's numbers and arrays converted, NaN and Inf as null, anything else as its text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def _message(error: BaseException) -> str:
    """The error as one line."""
    if isinstance(error, typer.TyperException):
        text = error.format_message()
    elif isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    elif isinstance(error, MemoryError):
        text = f"out of memory: {error}" if str(error) else "out of memory"
    else:
        text = str(error)
    return " ".join(text.split())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    _prepare_streams()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    if arguments[:1] == ["solve"] and "--petsc" in arguments and "--help" not in arguments:
        from finelu.interop.petsc_solve import command

        return command(arguments[1:])
    try:
        status = app(arguments, prog_name="finelu", standalone_mode=False) or CONVERGED
        error = "interrupted" if status == INTERRUPTED else None
    except _NoOutput as problem:
        status, error = BAD_INPUT, None
        _tell(f"finelu: {problem}")
    except (FineluError, typer.TyperException, OSError, MemoryError) as problem:
        status, error = BAD_INPUT, _message(problem)
    except KeyboardInterrupt:
        status, error = INTERRUPTED, "interrupted"
    except _Reported:
        status, error = INTERRUPTED, None
    except Exception as problem:  # a defect: not to be taken for a solve that has not converged
        if debug := os.environ.get("FINELU_DEBUG"):
            _tell(traceback.format_exc().rstrip())
        told = "" if debug else "; set FINELU_DEBUG=1 for the traceback"
        status, error = INTERNAL_ERROR, f"internal error: {type(problem).__name__}: {_message(problem)}{told}"
    try:
        if error and "--json" in arguments:  # typer has printed its help where the text is empty
            _print_json({"error": error})
        elif error:
            _tell(f"finelu: {error}")
        _say("")  # and what others have left in the buffer
    except _NoOutput as lost:
        status = status or BAD_INPUT
        if not error or "--json" in arguments:
            _tell(f"finelu: {error or lost}")
    return status


if __name__ == "__main__":
    sys.exit(main())
