"""solve(A, b): checks its arguments, moves A and b to the wanted device, and climbs the ladder for each column of b."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import astuple, replace
from inspect import signature
from operator import is_not
from time import perf_counter
from typing import Any

import numpy as np

from finelu.arithmetic import ignore_fp_errors
from finelu.auto.answer import certificate_of
from finelu.auto.batch import solve_batch
from finelu.auto.choose import LIGHT, recipe_asked, sooner_by_size, sooner_on_host
from finelu.auto.columns import Together, by_complete_factors, completed, iterated
from finelu.auto.first_answer import FirstAnswer, euclidean
from finelu.auto.kept import give, keep, place_for, taken
from finelu.auto.ladder import Ladder
from finelu.auto.precision import SINGLE, after, may_need_double, precise
from finelu.compiling import KernelMissing, compile_seconds, here, now, quietly, waiting
from finelu.device import namespace, on_gpu, require_gpu, to_host
from finelu.errors import MatrixError, NotConverged, ParameterError, meant
from finelu.explained import as_written
from finelu.kernels import kernels_for
from finelu.krylov import Method, method_name
from finelu.krylov.criterion import criterion_asked
from finelu.krylov.nullspace import NullSpace, is_pair
from finelu.krylov.operators import as_operator
from finelu.krylov.rows import by_columns, by_rows
from finelu.matrix import CSR, check_vector, checked_csr, dense_numbers, norm
from finelu.matrix.batch import Batch
from finelu.matrix.traits import MatrixTraits, traits
from finelu.matrix.vectors import as_dtype
from finelu.preconditioners.direct import klu
from finelu.progress import bar
from finelu.result import Certificate, Solution, Status, of_columns
from finelu.validation import count, flag, number, require_functions

CALLBACKS = ("x", "pr_norm")


@ignore_fp_errors
def solve(
    A: Any,
    b: Any,
    rtol: float = 1e-8,
    *,
    x0: Any = None,
    atol: float = 0.0,
    criterion: str = "auto",
    maxiter: int | None = None,
    device: str | None = None,
    recipe: Any = "auto",
    method: str | Callable[..., Solution] | type[Method] = "auto",
    time_limit: float | None = None,
    memory_limit: float | None = None,
    callback: Callable[[Any], object] | None = None,
    callback_type: str = "x",
    watch: Callable[[int, float], object] | None = None,
    certify: bool = False,
    verbose: bool = True,
    progress: bool = False,
    raise_on_failure: bool = False,
    nullspace: Any = None,
) -> Solution:
    """Solve A x = b to ||b - A x|| <= max(rtol ||b||, atol), and choose preconditioner and method for it.

    A : (n, n), anything that `finelu.as_csr` takes; its diagonal may have gaps. Or a `Batch` of k matrices, with b
        (k, n), or (n,) for all, and of the parameters rtol, atol, verbose and raise_on_failure alone: a BatchSolution.
    b : (n,) or (n, k). The first column that needs work finds factors and a method; those after it then iterate
        together with these (cg, bicgstab, gmres, fgmres, and complete factors; with other methods, callbacks or maxiter
        one after the other), or take complete factors if these are expected to be sooner for all of them. A column that
        is not solved so goes on by itself, from the x that it has.
    x0 : (n,), for all columns, or of b's shape: a first guess, used for the columns with ||b - A x0|| < ||b||.
    criterion : "residual" tests ||b - A x||. "auto" also tests ||D (b - A x)|| <= rtol ||D b||, where D has the
        reciprocals of the row sums of |A|, if these differ by more than a factor of 1e4, as with penalties: one norm
        would see the large rows only. "backward" tests |b - A x|_i <= rtol (|A| |x| + |b|)_i in each row, and no norm.
    maxiter : the most iterations for a column, over all attempts; None: no such limit.
    device : "cpu" or "cuda" works there, wherever A is. None works where A is, except for systems on a GPU that the CPU
        solves sooner (docs/solve-rules.md lists them; `explain()` says so). x is returned where b was.
    recipe : "auto", or a recipe, its class or its name: then no other is tried.
    method : "auto", or a Krylov method: its name, its function or its class.
    time_limit : seconds for everything but compiling kernels at their first use. At the limit set-up and iterations
        end early, and x is the best so far.
    memory_limit : bytes for the factors, estimated before they are made; None: 80% of the free memory of the machine,
        or of the GPU. A recipe of your own whose factors may not fit is a MemoryError. Complete factors are counted;
        others are estimated by the recipe's `nnz` or `fill`, at most as a dense matrix; any other recipe, such as ILUK
        with its levels or Schwarz with its subdomains, by the entries of A alone, so that its factors may take more.
    callback : called as SciPy's: after each iteration, or wherever the method has a new x (gmres: after each cycle);
        True or StopIteration ends the solve.
    callback_type : "x": callback(x), with a copy of x; "pr_norm": callback(||b - A x|| / ||b||).
    watch : watch(iteration, residual_norm), called as the Krylov methods call it; True ends the solve.
    certify : whether the Solution has a `certificate`: backward errors, the condition number, a bound on the error of
        x. Cost: about ten more solves with A and A^H.
    verbose : False prints nothing; True prints a line to stderr before kernels are compiled, and one after it.
    progress : True shows a bar with the iterations and the residual, on a terminal or in a notebook.
    nullspace : for a singular A: vectors v with A v = 0, (n,) or (n, k), such as F.null_space of MultilevelILU, or
        "constant" for the vector of ones. x is the solution without a part along them. If also A^H v = 0, as for
        A = A^H, the part of b along them is taken off, and x is the least-squares solution. `outside` of the Solution
        is the norm of that part, and `residual_norm` is of the rest. For other A, a tuple (V, U) has the null vectors
        u of A^H, too, and the part of b along those is taken off.
    raise_on_failure : True raises NotConverged, whose `solution` is the Solution, unless it converged.
    Returns a Solution with `explain()`. For several columns it is a `SolutionOfColumns`: `solution[j]` is that of
        column j; it has residual_norm, history and status of the worst column, and the iterations of all.
    `converged` is True only if the returned x passes the test. The residual is computed anew for this, and in twice the
    precision if rounding could have made it small. Otherwise x is the best iterate known, and the status says why:
        SINGULAR: there is no solution, by the pattern of A, or by a vector v with A v = 0 exactly or to twice the
            working precision;
        NUMERICALLY_SINGULAR: A v = 0 up to the rounding of A's entries;
        PRECISION_LIMIT: b - A x is as small as this precision allows.
    float32 and complex64 are solved in double precision, and x is double, if rtol is below 1e-5, if single precision
    does not reach rtol, or on a GPU with entries of A below 2e-31 or above 1e31.
    Where kernels would have to be compiled, and SciPy solves the system soon, it gives the answer, and a process in the
    background compiles them for later calls (FINELU_BACKGROUND=0: the call waits). `explain()` says so.
    Raises MatrixError for a wrong shape, NaN or Inf, ParameterError for a meaningless argument.
    The rules are those of `auto/choose.py` and `auto/cost.py`; docs/solve-rules.md explains them.
    """
    if isinstance(A, Batch):
        return solve_batch(solve, locals())  # type: ignore[return-value]
    called = (rtol, x0, atol, criterion, maxiter, device, time_limit, memory_limit, callback, callback_type, watch)
    others = (certify, verbose, progress, raise_on_failure, nullspace)
    changed = any(map(is_not, called + others, DEFAULTS.values()))
    start, began = perf_counter(), now()
    rtol, atol = number("rtol", rtol), number("atol", atol)
    most = math.inf if maxiter is None else count("maxiter", maxiter, 0)
    if callback_type not in CALLBACKS:
        raise ParameterError(f"callback_type={callback_type!r}; one of {', '.join(CALLBACKS)} is needed.")
    time_limit = math.inf if time_limit is None else number("time_limit", time_limit)
    memory_limit = None if memory_limit is None else number("memory_limit", memory_limit)
    if device not in (None, "cpu", "cuda"):
        raise ParameterError(f"device={device!r}; None, 'cpu' or 'cuda' is needed." + meant(device, ("cpu", "cuda")))
    require_functions(callback=callback, watch=watch)
    flag("certify", certify)
    flag("progress", progress)
    flag("raise_on_failure", raise_on_failure)
    chosen, method = recipe_asked(recipe), method_name(method, "auto")
    options: dict[str, Any] = {"deadline": began + time_limit, "memory": memory_limit, "watch": watch}
    options["criterion"] = criterion_asked(criterion)
    options["callback" if callback_type == "x" else "norm_callback"] = callback
    compiled, counted, size, answer, widened = compile_seconds(), 0.0, norm, None, False
    given = A, b
    asked: list[FirstAnswer] = []
    together = Together([])

    def first() -> FirstAnswer:
        if not asked:
            asked.append(FirstAnswer(given, rtol, atol, criterion, memory_limit, began + time_limit))
        return asked[0]

    default = (chosen, method, most) == ("auto", "auto", math.inf) and device != "cuda" and not certify
    default = default and x0 is None and callback is None and watch is None and not here.waits
    default = default and nullspace is None and not progress
    before, here.otherwise = here.otherwise, first if default else None
    with nullcontext() if verbose else quietly(), bar(progress) if progress else nullcontext() as shown:
        try:
            home, moved = on_gpu(b), ""
            movable = device is None and chosen == "auto" and (callback is None or callback_type == "pr_norm")
            if movable and home and on_gpu(A) and hasattr(A, "nnz") and (x0 is None or on_gpu(x0)):
                moved = _with_kernels(sooner_by_size(A.shape[0], A.nnz))  # checks of a small A take long on a GPU
            A = checked_csr(to_host(A) if moved else A, diagonal=False)
            if moved or device is not None:
                A, b, x0 = _moved(A, b, x0, device or "cpu")
            b = check_vector(b, A.n, A.data)
            if x0 is not None:
                x0 = _first_guess(x0, A, b)
                b = as_dtype(b, np.result_type(b.dtype, x0.dtype))
            if shown is not None and shown.enabled:
                scale = norm(namespace(b).ascontiguousarray(b.reshape(A.n, -1)[:, 0])) if b.size else 0.0
                options["watch"] = _both(shown.watcher("solving", scale, rtol, most), watch)
            single = A.dtype.char in "fF" and b.dtype.char in "fF"
            A, b = precise(A, b, rtol)
            widened = single and b.dtype.char in "dD"
            known = None
            if movable and on_gpu(A.data):
                if not (moved := _with_kernels(sooner_by_size(A.n, A.nnz))):  # a look at a small A takes long there
                    known = traits(A)
                    if moved := sooner_here_on_host(known):
                        known = replace(known, gpu=False)
                if moved:
                    A, b, x0 = _moved(A, b, x0, "cpu")
            may_keep = A.nnz <= LIGHT and chosen == "auto" and memory_limit is None and not certify and klu.nbklu()
            place = place_for(A) if may_keep else None
            kept = taken(place) if place else None
            if kept is not None and kept.has_values_of(A):
                known = kept.traits
            known = known or traits(A, at_once=False)
            far = known.complex and not 2 * known.mirrored[0] < np.finfo(A.dtype).max  # |Re a| + |Im a| may overflow
            if far:  # (A / 4) 4 x = b, with the same residuals
                A, x0 = A.with_values(A.data * 0.25), None if x0 is None else 4 * x0
                known = replace(traits(A), gpu=known.gpu)
                if options.get("callback") is not None:
                    options["callback"] = lambda y, given=options["callback"]: given(0.25 * y)
            ladder = Ladder(A, rtol, chosen, method, most=most, known=known, certifies=certify, **options)
            if kept is not None:
                give(kept, A, ladder)
            columns = by_columns(b.reshape(A.n, -1)) if b.ndim > 1 and b.size else b.reshape(-1, 1) if b.size else b
            space = None if nullspace is None else _null_space(nullspace, A, b, known)
            found: list[Solution] = []
            started: list[Any] | None = None  # what the iterations of several columns together found, once they have

            def system(c: int) -> tuple[Any, Any]:
                """The right-hand side and the guess of a column."""
                rhs = columns[:, c] if space is None else space.in_range(columns[:, c])
                guess = None if x0 is None else x0.reshape(A.n, -1)[:, min(c, x0.size // A.n - 1)]
                return rhs, None if guess is None else as_dtype(guess, b.dtype)

            for c in range(columns.shape[-1]):
                (rhs, guess), why = system(c), ""
                follows = started is None and found and found[-1].converged and found[-1].attempts
                if follows and not (why := by_complete_factors(ladder, found[-1], columns.shape[1] - c)):
                    pairs = [system(other) for other in range(c, columns.shape[1])]
                    rest, guesses = [rhs for rhs, _ in pairs], [guess for _, guess in pairs]
                    together = iterated(ladder, found[-1], rest, guesses, atol)
                    started = [*[None] * c, *together.solutions]
                if started and started[c] is not None:
                    solution = completed(ladder, started[c], rhs, atol)
                else:
                    solution = ladder.solve(rhs, guess, atol, why=why)
                if solution.status is not Status.CONVERGED and may_need_double(solution, b):
                    A, b = precise(A, b, 0.0)
                    columns, rhs = b.reshape(A.n, -1), as_dtype(rhs, b.dtype)
                    left, counted = max(most - solution.iterations, 0), counted + ladder.costs.taken
                    ladder = Ladder(A, rtol, chosen, method, most=left, certifies=certify, **options)
                    solution = after(solution, ladder.solve(rhs, as_dtype(solution.x, b.dtype), atol))
                    ladder.most, started = most, None if started is None else []
                if space is not None:
                    product = as_operator(A, "A", rhs, rhs.dtype)
                    solution = space.completed(solution, product, rhs, columns[:, c], rtol, atol)
                if certify:
                    solution = replace(solution, certificate=certificate_of(ladder, rhs, solution.x, space))
                found.append(solution)
            counted += ladder.costs.taken
            if (fact := ladder.not_unique) and space is None:  # of A, so of each column
                v = ladder.solvability.null_vector
                unsaid = [f.converged and fact not in f.seen for f in found]
                found = [replace(f, seen=(*f.seen, fact), null_vector=v) if s else f for f, s in zip(found, unsaid)]
            if may_keep and (worked := next((f for f in found if f.attempts), None)):
                keep(A, ladder, worked, place)
            found = found or [ladder.nothing(b, Status.CONVERGED, 0.0)]
            found = [replace(f, x=0.25 * f.x) for f in found] if far else found
        except KernelMissing as missing:
            answer = missing.answer
        finally:
            here.otherwise = before
        if answer is not None:
            found, b, compiled = answer.solve(), answer.b, compile_seconds()
            if not found:
                alone = _after(answer, device, verbose, start, raise_on_failure)
                return replace(alone, arguments=as_written(called + others, DEFAULTS)) if changed else alone
            columns, home, moved, size = b.reshape(b.shape[0], -1), False, "", euclidean
        if changed:
            arguments = as_written(called + others, DEFAULTS)
            found = [replace(f, arguments=arguments) for f in found]
        if len(found) == 1:
            worst, x = found[0], found[0].x
        else:
            x = by_rows([s.x for s in found])
            worst = of_columns(found, x, [size(columns[:, c]) for c in range(len(found))])
            if together.why:
                worst = replace(worst, iterations=worst.iterations + together.lost, seen=(*worst.seen, together.why))
        if x.shape != b.shape:
            x = x.reshape(b.shape)
        if on_gpu(x) != home:
            x = require_gpu().asarray(x) if home else to_host(x)
    seen = worst.seen
    if len(found) > 1 and nullspace is not None:  # what is outside of the range: of the column with the most
        most_outside = max(found, key=lambda s: s.outside or 0.0)
        seen = (*seen[:-1], most_outside.seen[-1])
        worst = replace(worst, outside=most_outside.outside)
    if moved:
        back = " and x brought back" if home else ""
        seen += (f"it was solved on the CPU{back}: {moved}; device='cuda' keeps it on the GPU",)
    if widened and x.dtype.char in "dD":
        why = (
            "rtol is below 1e-5" if rtol < SINGLE else "entries of A are near the end of the range of single precision"
        )
        seen += (f"A and b were taken in double precision, and x is double: {why}",)
    if asked and asked[0].refused:
        seen += (asked[0].refused,)
    if len(found) > 1:
        certificates = [s.certificate for s in found if s.certificate is not None]
        worst = replace(
            worst,
            certificate=largest_of(certificates) if certificates else None,
            attempts=tuple(a for s in found for a in s.attempts),
        )
    if x is not worst.x or seen is not worst.seen:
        worst = replace(worst, x=x, seen=seen)
    worst.timings.update(solve=perf_counter() - start, compile=compile_seconds() - compiled, count=counted)
    if raise_on_failure and not worst.converged:
        raise NotConverged("A x = b", worst, rtol)
    return worst


DEFAULTS = {  # of the arguments that `explain()` repeats; it names the recipe and the method that worked
    name: parameter.default
    for name, parameter in signature(solve).parameters.items()
    if name not in ("A", "b", "recipe", "method")
}


def _both(first: Callable[[int, float], object], then: Callable[[int, float], object] | None) -> Any:
    """A `watch` that calls both, and ends the solve where the second does."""
    if then is None:
        return first

    def watch(iteration: int, residual_norm: float) -> object:
        first(iteration, residual_norm)
        return then(iteration, residual_norm)

    return watch


def _after(answer: FirstAnswer, device: str | None, verbose: bool, start: float, raise_on_failure: bool) -> Solution:
    """The Solution of a call, begun at `start`, that compiles its kernels since the other answer does not pass."""
    A, b = answer.given
    limit = max(answer.end - now(), 0.0)
    with waiting():
        found = solve(
            A,
            b,
            answer.rtol,
            atol=answer.atol,
            criterion=answer.criterion,
            device=device,
            time_limit=None if limit == math.inf else limit,
            memory_limit=answer.memory,
            verbose=verbose,
            raise_on_failure=raise_on_failure,
        )
    timings = found.timings | {"solve": perf_counter() - start}
    return replace(found, seen=(*found.seen, answer.refused), timings=timings)


def _null_space(given: Any, A: CSR, b: Any, known: MatrixTraits) -> NullSpace | None:
    """The null vectors on the device where the system is solved."""
    like = b.reshape(A.n, -1)[:, 0] if b.size else namespace(A.data).empty(A.n, b.dtype)

    def moved(V: Any) -> Any:
        return V if isinstance(V, str) else namespace(like).asarray(V if known.gpu else to_host(V))

    given = tuple(map(moved, given)) if is_pair(given) else moved(given)
    return NullSpace.of(given, as_operator(A, "A", like, like.dtype), like)


@ignore_fp_errors
def first_try(A: Any) -> dict[str, str]:
    """The first attempt of `solve` for A: recipe, method and reason, in words; {} if no rung fits the free memory.

    A : anything that `finelu.as_csr` takes; its diagonal may have gaps. Cost: that of
    `finelu.matrix.traits.traits`, sometimes also an ordering.
    """
    A = checked_csr(A, diagonal=False)
    known = traits(A)
    if sooner_here_on_host(known):
        A, known = A.on(np), replace(known, gpu=False)
    return Ladder(A, 1e-8, known=known).first()


def sooner_here_on_host(known: MatrixTraits) -> str:
    """Why the CPU should solve a system on a GPU; "" if it should not, or would have to compile its kernels first."""
    return _with_kernels(sooner_on_host(known))


def _with_kernels(why: str) -> str:
    """`why`, or "" if the CPU would have to compile its kernels first."""
    return why if why and kernels_for(np.empty(0)).minimum_degree.is_compiled() else ""


def _moved(A: CSR, b: Any, x0: Any, device: str) -> tuple[CSR, Any, Any]:
    """A, b and x0 on the wanted device."""
    if device == "cuda" and not on_gpu(A.data):
        A = A.on(require_gpu())
    if device == "cpu" and on_gpu(A.data):
        A = A.on(np)
    move = namespace(A.data).asarray if on_gpu(A.data) else to_host
    moved = [v if v is None else move(dense_numbers(v, name)) for v, name in ((b, "b"), (x0, "x0"))]
    return A, moved[0], moved[1]


def _first_guess(x0: Any, A: CSR, b: Any) -> Any:
    """x0 as an array (n,), (n, 1) or of b's shape, on the device of A."""
    x0 = check_vector(x0, A.n, A.data, "x0")
    if x0.shape not in ((A.n,), b.shape, b.reshape(A.n, -1).shape):
        raise MatrixError(f"x0 has shape {x0.shape}, but b has {b.shape}; give x0 the shape of b, or ({A.n},).")
    return x0


def largest_of(certificates: list[Certificate]) -> Certificate:
    """The largest of each figure."""
    return Certificate(*(max(figures) for figures in zip(*map(astuple, certificates), strict=True)))
