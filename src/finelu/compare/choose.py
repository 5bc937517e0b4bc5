"""The candidates, their order, and the recommendation: for one right-hand side, and for many."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

from finelu.auto.choose import choose, unfit
from finelu.compare.model import PERMC, REFERENCES, Candidate, Measurement
from finelu.device import require_gpu
from finelu.errors import DeviceError, ParameterError, counted, meant
from finelu.krylov import CYCLE, METHODS
from finelu.matrix import CSR
from finelu.matrix.traits import MatrixTraits, traits
from finelu.preconditioners import (
    RECIPES,
    SparseLU,
    recipe_name,
    recipe_of,
)
from finelu.preconditioners.direct import cudss
from finelu.preconditioners.recipe import ON_CPU, Recipe
from finelu.properties import Properties

WITHOUT_RECIPE = ("none", "solve", *REFERENCES)  # names that stand for no recipe of finelu
DEVICES = ("cpu", "cuda", "both", "auto")


# ---- which are measured


def requested_names(recipes: Any) -> list[str]:
    """The names to compare: of one recipe or name, of a collection of them, or all if `recipes` is None."""
    if recipes is None:
        return ["none", "solve", *RECIPES, *REFERENCES]
    try:
        given = [recipes] if isinstance(recipes, str | Recipe | type) else list(recipes)
    except TypeError:
        raise ParameterError(f"recipes is of type {type(recipes).__name__}; names of recipes are needed.") from None
    if not given:
        raise ParameterError("no recipe is named to compare; leave recipes out for all of them.")
    return list(dict.fromkeys(map(_name, given)))


def _name(recipe: Any) -> str:
    if isinstance(recipe, str):
        return recipe_name(recipe, *WITHOUT_RECIPE)
    found = recipe_of(recipe, *WITHOUT_RECIPE)
    if found != type(found)():
        raise ParameterError(f"{found!r}: recipes are compared by name only, with their default parameters.")
    return recipe_name(found.name)


def requested_devices(device: str) -> list[str]:
    """The devices to measure on; a DeviceError if "cuda" or "both" is requested and no GPU can be used."""
    if device not in DEVICES:
        raise ParameterError(f"device={device!r}; one of {', '.join(DEVICES)} is needed." + meant(device, DEVICES))
    if device == "cpu":
        return ["cpu"]
    try:
        require_gpu()
    except DeviceError:
        if device != "auto":
            raise
        return ["cpu"]
    return ["cuda"] if device == "cuda" else ["cuda", "cpu"]


def candidates(
    A: CSR, found: Properties, names: Collection[str], devices: Sequence[str], method: str = "auto"
) -> tuple[list[Candidate], dict[str, str]]:
    """The candidates in the order of their measurement, and the reasons why other names do not apply.

    splu, fl.solve and the recipe that `solve` tries first come first, then the others as RECIPES lists them, cheap
    set-ups first, so that the time to beat is known early. If the pattern is symmetric, splu is called with
    PERMC["MMD_AT_PLUS_A"], and with its default settings it comes last.
    method : "auto", or the only one.
    """
    what_A_is = traits(A)
    asked = None if method == "auto" else METHODS[method]
    if asked is not None and (lacking := unfit(method, A, what_A_is.kind)):
        raise ParameterError(f"{lacking}.")
    first = choose(what_A_is).recipe
    suggested = "none" if first is None else first.name
    order = dict.fromkeys(("splu", "solve", suggested, "none", *RECIPES, "spilu"))
    todo: list[Candidate] = []
    last: list[Candidate] = []
    left_out: dict[str, str] = {}
    for name in (name for name in order if name in names):
        if reason := _inapplicable(name, found):
            left_out[name] = reason
            continue
        recipe = None if name in WITHOUT_RECIPE else _recipe(name, found)
        on_cpu = name in REFERENCES if recipe is None else recipe.factored_on == recipe.applied_on == ON_CPU
        on_cpu = on_cpu and not (isinstance(recipe, SparseLU) and "cuda" in devices and not cudss.missing())
        places = [d for d in devices if d == "cpu" or not on_cpu]
        if not places:
            left_out[name] = "it works on the CPU alone"
        if name == "splu":
            permc = ("MMD_AT_PLUS_A", "COLAMD") if found.pattern_symmetric else ("COLAMD",)
            settings = [Candidate(name, recipe, "direct", d, p) for p in permc for d in places]
            todo, last = [*todo, *settings[:1]], settings[1:]
        else:
            given = "auto" if name == "spilu" else method
            chosen = _method(name, recipe, what_A_is, given)
            todo += [Candidate(name, recipe, chosen, d, asked=asked if given != "auto" else None) for d in places]
    return [*todo, *last], left_out


def _method(name: str, recipe: Recipe | None, what_A_is: MatrixTraits, method: str) -> str:
    fixed = {"solve": method, "spilu": "gmres"}
    return fixed.get(name) or choose(what_A_is, recipe, method).method


def _inapplicable(name: str, found: Properties) -> str:
    """Why the recipe of this name does not fit such a matrix; "" if it does."""
    d = found.diagonal
    if name in WITHOUT_RECIPE:
        return ""
    try:
        kind = RECIPES[name]
    except ParameterError as error:  # of an installed package that is broken
        return str(error)
    if kind.hermitian and not (found.hermitian and d.positive):
        return "A " + ("has a diagonal that is not positive" if found.hermitian else "is not Hermitian")
    if kind.full_diagonal and d.missing:
        return f"row {d.first_missing} stores no diagonal entry ({counted(d.missing, 'such row')})"
    return "no dense blocks were found" if _takes_blocks(name) and found.block_size == 1 else ""


def _takes_blocks(name: str) -> bool:
    return "BlockMatrix" in RECIPES[name].matrices


def _recipe(name: str, found: Properties) -> Recipe:
    kind: Any = RECIPES[name]
    recipe: Recipe = kind(block_size=found.block_size) if _takes_blocks(name) else kind()
    return recipe


# ---- which to use


def best(measurements: Sequence[Measurement], solves: float = 1) -> Measurement | None:
    """The measurement that solved with the least set-up + solves * solve; inf: the least solve. None if none solved.

    Among equals the one with the smaller set-up.
    """
    solved = [m for m in measurements if m.solved]
    return min(
        solved, key=lambda m: m.times[::-1] if math.isinf(solves) else (m.total(solves), m.times[0]), default=None
    )


def crossover(m: Measurement, cheapest: Measurement) -> int | None:
    """The number of right-hand sides from which on m costs less than `cheapest`, the best for one; 1 for that itself.

    None: never.
    """
    if m is cheapest:
        return 1
    (setup, solve), (least_setup, other_solve) = m.times, cheapest.times
    if solve >= other_solve:
        return None
    return max(math.floor((setup - least_setup) / (other_solve - solve)) + 1, 1)


def stages(measurements: Sequence[Measurement]) -> list[tuple[int, Measurement]]:
    """The best measurement by the number of right-hand sides: (number from which on it is the best, measurement)."""
    found = best(measurements)
    result = [] if found is None else [(1, found)]
    while result:
        before, last = result[-1]
        later = [(k, m) for m in measurements if m is not last and (k := crossover(m, last)) is not None]
        if not later:
            break
        first = max(min(k for k, _ in later), before + 1)
        result.append((first, min((m for _, m in later), key=lambda m: (m.total(first), m.times[0]))))
    return result


def script(m: Measurement, matrix: str, rhs: str | None, rtol: float) -> str:
    """The Python program that repeats m: reads the matrix (a file, or gallery:NAME:ARGS), factors and solves.

    rhs : file of the right-hand side; None: the random one that the command line makes.
    """
    gpu, direct = m.device == "cuda", m.name == "splu"
    imports = ["import finelu as fl"]
    if matrix.startswith("gallery:"):
        lines = [f"A = fl.gallery.problem({matrix.removeprefix('gallery:')!r})"]
    else:
        lines = [f"A = fl.read_matrix({matrix!r})"]
    if rhs is None:
        imports.insert(0, "import numpy as np")
        lines.append("b = np.random.default_rng(0).uniform(-0.5, 0.5, A.shape[0]).astype(A.dtype)")
    else:
        imports.append("from finelu.io import read_vector")
        lines.append(f"b = read_vector({rhs!r})")
    if gpu:
        imports = ["import cupy as cp", "import cupyx.scipy.sparse as csp", *imports]
        lines.append("A, b = csp.csr_matrix(A), cp.asarray(b)")
    if m.name in REFERENCES:
        imports.insert(len(imports) - 1 - (rhs is not None), "import scipy.sparse.linalg as sla")
    given = "b, M=M" if m.name == "spilu" else "b" if m.name == "none" else "b, M=F"
    method = METHODS.get(m.method)  # None for "direct" and "auto"
    options = f"rtol={rtol:g}" + (f", restart={CYCLE}" if method is not None and method.restarts else "")
    solve = f"solution = fl.{m.method}(A, {given}, {options})"
    if method is not None and not method.__module__.startswith("finelu."):
        imports.append(f"from {method.__module__} import {method.__name__}")
        solve = f"solution = {method.__name__}.solve(A, {given}, {options})"
    if direct:
        given = ", ".join(f"{name}={value!r}" for name, value in PERMC[m.permc or "COLAMD"].items())
        lines += [f"lu = sla.splu(A.tocsc(), {given})", "x = lu.solve(b)"]
    elif m.name == "solve":
        lines.append(f"solution = fl.solve(A, b, rtol={rtol:g}" + (", device='cuda')" if gpu else ")"))
    elif m.name == "spilu":
        lines += ["ilu = sla.spilu(A.tocsc())", "M = sla.LinearOperator(A.shape, ilu.solve, dtype=A.dtype)", solve]
    elif m.name == "none":
        lines.append(solve)
    else:
        kind = RECIPES.get(m.name)
        foreign = kind is not None and not kind.__module__.startswith("finelu.")
        if kind is not None and foreign:
            imports.append(f"from {kind.__module__} import {kind.__name__}")
        lines += [f"F = {'' if foreign else 'fl.'}{m.recipe}.factor(A)", solve]
    if not direct:
        lines += ["assert solution.converged, solution.status.value", "x = solution.x"]
    return "\n".join([*imports, "", *lines]) + "\n"
