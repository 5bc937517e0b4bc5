"""Measurement of the rates of this machine on systems of the gallery; see `finelu.auto.rates`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, TypeVar

import numpy as np

from finelu import gallery, krylov
from finelu.auto.rates import SHIPPED, SHIPPED_ON_GPU, GpuRates, Rates
from finelu.device import namespace, require_gpu, synchronize
from finelu.matrix import CSR, as_csr
from finelu.ordering import Fill, with_little_fill
from finelu.preconditioners import IC0, ILU0, ILUT, MultilevelILU, ParILUT, Schwarz, SparseLU
from finelu.preconditioners.direct import cudss, feral, klu, pardiso

RUNS = 3  # of which the fastest counts
STEPS = 30  # of a method
WIND = {"convection_diffusion:16": 0.0113, "convection_diffusion:64": 0.0397}  # s by ParILUT on an NVIDIA H100
PATIENCE = 1e9  # a tolerance that no residual reaches: 1 / PATIENCE of b

Kind = TypeVar("Kind", Rates, GpuRates)


def calibrate(tell: Callable[[str, int, int], Any] = lambda *_: None) -> Rates:
    """Measure the rates of this machine, with the number of threads that is set.

    tell : called as tell(what, done, of) before each piece.
    The shipped rates of each part of a rung are multiplied by one factor, the geometric mean over some systems; a
    complete L U gets one factor for light factors and one for operations. Libraries that are not installed keep the
    shipped rates. Cost: about ten seconds, and the time to compile kernels if needed.
    """
    pieces = (_iterations, _analysis, _superlu, _libraries, _threshold, _multilevel, _few_rows)
    return _measured(SHIPPED, pieces, tell)


def calibrate_gpu(tell: Callable[[str, int, int], Any] = lambda *_: None) -> GpuRates:
    """Measure the rates of the GPU in use, as `calibrate` does. Raises DeviceError if there is no GPU.

    The shipped rates of the threshold rung are multiplied by one factor. Without cuDSS the shipped rates of its rung
    are kept. Cost: a few seconds.
    """
    xp = require_gpu()
    pieces = (_iterations_on_gpu, _threshold_on_gpu, _multilevel_on_gpu, _cudss)
    return _measured(SHIPPED_ON_GPU, pieces, tell, xp)


def _measured(
    found: Kind, pieces: Sequence[Callable[..., Any]], tell: Callable[[str, int, int], Any], *on: Any
) -> Kind:
    """The rates, with those that each piece, called with `on`, measures."""
    for done, piece in enumerate(pieces):
        tell(piece.__name__.strip("_").replace("_", " "), done, len(pieces))
        found = replace(found, **piece(*on))
    return found


def _iterations() -> dict[str, float]:
    found = _of_methods(SHIPPED, *map(_system, ("poisson5:12", "poisson7:24", "convection_diffusion:24")))
    return found | _subdomains(found["cg"])


def _subdomains(cg: float) -> dict[str, float]:
    """The rates of subdomains in terms of those of cg with factors of the whole, for a system beyond most caches."""
    A, recipe = _system("poisson7:64"), Schwarz()
    rate = cg / _of_a_step("cg", A, IC0())
    setup = _seconds(lambda: recipe.factor(A).solve(_right_hand_side(A)))
    return {"parts": rate * _of_a_step("cg", A, recipe), "parts_setup": rate * setup}


def _iterations_on_gpu(xp: Any) -> dict[str, float]:
    names = ("poisson5:100", "poisson7:64", "convection_diffusion:64")
    small, large, wind = (_system(name, xp) for name in names)
    rate, overhead = _line(*((A.nnz, _of_a_step("cg", A, Schwarz())) for A in (small, large)))
    return _of_methods(SHIPPED_ON_GPU, small, large, wind) | {"parts": rate, "parts_overhead": overhead}


def _of_methods(shipped: Rates | GpuRates, small: CSR, large: CSR, wind: CSR) -> dict[str, float]:
    """The rates of the methods for two large systems, and the overhead, which is the time of a step for a small one."""
    found = {"overhead": _of_a_step("cg", small, IC0())}
    for method, A, recipe in (("cg", large, IC0()), ("bicgstab", wind, ILU0()), ("gmres", wind, ILU0())):
        least = 0.01 * getattr(shipped, method)
        found[method] = max((_of_a_step(method, A, recipe) - found["overhead"]) / A.nnz, least)
    return found


def _threshold_on_gpu(xp: Any) -> dict[str, float]:
    factors = [_of_rung(ParILUT(), _system(name, xp), krylov.bicgstab) / seconds for name, seconds in WIND.items()]
    return _scaled(_mean(factors), "threshold", "threshold_overhead", shipped=SHIPPED_ON_GPU)


def _multilevel_on_gpu(xp: Any) -> dict[str, float]:
    systems = [_system(name, xp) for name in ("poisson7:32", "poisson7:64")]
    rate, overhead = _line(*((A.nnz, _of_rung(MultilevelILU(), A)) for A in systems))
    return {"multilevel": rate, "multilevel_overhead": overhead}


def _cudss(xp: Any) -> dict[str, float]:
    if cudss.missing():
        return {}
    systems = [_system(name, xp) for name in ("poisson5:30", "poisson5:200")]
    rate, overhead = _line(*((A.n, _of_direct(SparseLU(backend="cudss"), A, analysis=True)) for A in systems))
    return {"cudss_row": rate, "cudss_overhead": overhead}


def _line(small: tuple[int, float], large: tuple[int, float]) -> tuple[float, float]:
    """The seconds per item, and the seconds for no items, from (items, seconds) of two systems."""
    rate = max(large[1] - small[1], 0.01 * large[1]) / (large[0] - small[0])
    return rate, max(small[1] - rate * small[0], 0.01 * small[1])


def _of_a_step(method: str, A: CSR, recipe: Any) -> float:
    """The time of an iteration in seconds."""
    b, F = _right_hand_side(A), recipe.factor(A)
    function = krylov.METHODS[method].solve
    taken = function(A, b, M=F, rtol=1 / PATIENCE**2, maxiter=STEPS).iterations
    seconds = _seconds(lambda: function(A, b, M=F, rtol=1 / PATIENCE**2, maxiter=STEPS).x)
    return seconds / max(int(taken), 1)


def _analysis() -> dict[str, float]:
    factors = []
    for name in ("poisson5:200", "poisson7:20", "stokes:40"):
        A = _system(name)
        expected = SHIPPED.analysis_row * A.n + SHIPPED.analysis * A.nnz
        factors.append(_seconds(lambda A=A: with_little_fill(A, "amd")) / expected)  # type: ignore[misc]
    return _scaled(_mean(factors), "analysis_row", "analysis", "metis")


def _superlu() -> dict[str, float]:
    light = _mean([_of_complete("superlu", name) for name in ("poisson5:60", "poisson5:150", "stokes:30")])
    found = replace(SHIPPED, **_scaled(light, "prepared", "superlu_row", "superlu_entry"))
    A, heavy = _system("poisson7:20"), SparseLU(backend="superlu", ordering="amd")
    fill = with_little_fill(A, "amd")[1]
    without = replace(found, superlu_flop=0.0)
    flop = max((_of_direct(heavy, A) - _expected(without, "superlu", A, fill)) / fill.flops, 0.1 * SHIPPED.superlu_flop)
    return {
        "prepared": found.prepared,
        "superlu_row": found.superlu_row,
        "superlu_entry": found.superlu_entry,
        "superlu_flop": flop,
        "dense_flop": SHIPPED.dense_flop * flop / SHIPPED.superlu_flop,
        "columnwise": _per_entry("poisson5:120", SparseLU(ordering="colamd")),
    }


def _libraries() -> dict[str, float]:
    found: dict[str, float] = {}
    libraries = (
        ("klu", klu.nbklu, "poisson5:60"),
        ("feral", feral.feral, "poisson7:20"),
        ("pardiso", pardiso.mkl, "poisson7:20"),
    )
    for library, package, name in libraries:
        if package() is not None:
            factor = _of_complete(library, name)
            found |= _scaled(factor, *(f"{library}_{part}" for part in ("row", "entry", "flop")))
    return found


def _threshold() -> dict[str, float]:
    A = _system("convection_diffusion:28")
    return {"threshold": _of_rung(ILUT(), A) / A.nnz}


def _multilevel() -> dict[str, float]:
    A = _system("convection_diffusion:16")
    return {"multilevel": _of_rung(MultilevelILU(), A) / A.nnz}


def _few_rows() -> dict[str, float]:
    names = ("poisson5:40", "poisson7:10", "convection_diffusion:40,40,1")
    return {"quick": _mean([_per_entry(name, SparseLU(backend="superlu")) for name in names])}


def _of_complete(library: str, name: str) -> float:
    """The time of complete factors divided by the expected time."""
    A = _system(name)
    fill = with_little_fill(A, "amd")[1]
    orderings = {"superlu": "amd", "feral": "amd", "pardiso": "mmd"}  # PARDISO's own minimum degree
    recipe = SparseLU(backend=library, ordering=orderings.get(library, "auto"))
    return _of_direct(recipe, A) / _expected(SHIPPED, library, A, fill)


def _expected(rates: Rates, library: str, A: CSR, fill: Fill) -> float:
    """The expected time of complete factors of a symmetric A in seconds."""
    return rates.of_library(library, A.n, A.nnz, fill, half=library in ("feral", "pardiso"))


def _per_entry(name: str, recipe: SparseLU) -> float:
    """The time of complete factors with their analysis, for each entry of A."""
    A = _system(name)
    return _of_direct(recipe, A, analysis=True) / A.nnz


def _of_direct(recipe: SparseLU, A: CSR, *, analysis: bool = False) -> float:
    """The time of complete factors and one solve in seconds."""
    b = _right_hand_side(A)
    if analysis or recipe.backend in ("feral", "pardiso"):  # the analysis by these libraries is included
        return _seconds(lambda: recipe.factor(A).solve(b))
    F = recipe.factor(A)
    return _seconds(lambda: F.update(A).solve(b))


def _of_rung(recipe: Any, A: CSR, method: Any = krylov.gmres) -> float:
    """The time of factors and the iterations to 1e-8 in seconds."""
    b = _right_hand_side(A)
    return _seconds(lambda: method(A, b, M=recipe.factor(A), rtol=1e-8, maxiter=200).x)


def _system(name: str, xp: Any = np) -> CSR:
    return as_csr(gallery.problem(name), diagonal=False).on(xp)


def _right_hand_side(A: CSR) -> Any:
    return namespace(A.data).asarray(np.random.default_rng(0).uniform(-0.5, 0.5, A.n))


def _seconds(function: Callable[[], Any]) -> float:
    """The time of the fastest of some runs in seconds, until its array is computed. A first run, which may compile, is
    not counted."""
    taken = []
    for _ in range(1 + RUNS):
        start = perf_counter()
        synchronize(function())
        taken.append(perf_counter() - start)
    return min(taken[1:])


def _scaled(factor: float, *names: str, shipped: Rates | GpuRates = SHIPPED) -> dict[str, float]:
    return {name: factor * getattr(shipped, name) for name in names}


def _mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
