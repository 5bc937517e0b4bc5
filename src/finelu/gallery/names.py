"""Problems by their names: what `problem` builds from a text, and lists of small problems for tests."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import scipy.sparse as sp

from finelu.errors import ParameterError, counted, meant
from finelu.gallery.elements import anisotropic_triangles, elastic_triangles, elasticity
from finelu.gallery.grids import (
    apache2_like,
    atmosmodd_like,
    convection_diffusion,
    helmholtz,
    poisson5,
    poisson7,
    poisson27,
)
from finelu.gallery.networks import ecology2_like, g3_circuit_like
from finelu.gallery.patterns import arrow, bidiagonal, random_dominant, tridiagonal
from finelu.gallery.polymer import cage
from finelu.gallery.reservoir import black_oil
from finelu.gallery.saddle_points import kkt, navier_stokes, stokes


@dataclass(frozen=True, eq=False)
class Problem:
    """A matrix A and its name, the text that `problem` takes; `str()` gives the name, as pytest wants for its ids."""

    name: str
    A: sp.csr_matrix

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        size = f"{counted(self.A.shape[0], 'row')}, {counted(self.A.nnz, 'entry', 'entries')}"
        return f"Problem({self.name!r}, {size}, {self.A.dtype})"


PROBLEMS: dict[str, Callable[..., sp.csr_matrix]] = {
    function.__name__: function
    for function in (
        poisson5, poisson7, poisson27, convection_diffusion, atmosmodd_like, apache2_like, helmholtz,
        anisotropic_triangles, elastic_triangles, elasticity, black_oil, ecology2_like, g3_circuit_like, cage, stokes,
        navier_stokes, kkt, random_dominant, tridiagonal, bidiagonal, arrow,
    )
}  # fmt: skip

PAPER_SIZES: dict[str, str] = {f"ani{level}": f"anisotropic_triangles:{level}" for level in range(3, 8)} | {
    **{f"cage{length}": f"cage:{length}" for length in range(10, 14)},
    "apache1": "apache2_like:8,101,100",
    "apache2": "apache2_like",
    "atmosmodd": "atmosmodd_like",
    "ecology2": "ecology2_like",
    "G3_circuit": "g3_circuit_like",
}
"""Matrices that papers measure -> the text of our problem of that kind and size (see there what agrees)."""


def problem(text: str) -> sp.csr_matrix:
    """The problem that a text names: "poisson7:100", "helmholtz:200,k=40", "random_dominant:50,dtype=float32", "ani5".

    Before the colon stands a key of `PROBLEMS`, which is a function of `finelu.gallery`, or, alone, a key of
    `PAPER_SIZES`; after it the function's arguments as in Python, where words may stand without quotes. Returns a
    csr_matrix.
    Raises ParameterError for an unknown name (listing the known ones) and for arguments that do not fit.
    """
    name, _, given = PAPER_SIZES.get(text, text).partition(":")
    if name not in PROBLEMS:
        known = [*PROBLEMS, *PAPER_SIZES]
        raise ParameterError(
            f"no test problem is called {name!r}; one of {', '.join(known)} is needed." + meant(name, known)
        )
    function = PROBLEMS[name]
    try:
        call = ast.parse(f"f({given})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise SyntaxError
        keywords = {str(k.arg): _literal(k.value) for k in call.keywords}
        bound = inspect.signature(function).bind(*map(_literal, call.args), **keywords)
        return function(*bound.args, **bound.kwargs)
    except ParameterError:
        raise
    except (SyntaxError, TypeError, ValueError) as error:
        raise ParameterError(
            f"{text!r}: the arguments do not fit {name}{_plain_signature(function)}; "
            f"write their values after a colon, as in poisson7:100 or helmholtz:200,k=40."
        ) from error


def _plain_signature(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of `function` without its annotations."""
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return signature.replace(parameters=parameters, return_annotation=signature.empty)


def _literal(node: ast.expr) -> Any:
    return node.id if isinstance(node, ast.Name) else ast.literal_eval(node)


def small() -> list[Problem]:
    """A list of small `Problem`s for tests: all have a full diagonal and an ILU(0). Those of `small_spd` come first."""
    return small_spd() + [Problem(text, problem(text)) for text in SMALL_GENERAL]


def small_spd() -> list[Problem]:
    """A list of small Hermitian positive definite `Problem`s for tests, all with an IC(0)."""
    return [Problem(text, problem(text)) for text in SMALL_SPD]


SMALL_SPD = (
    "tridiagonal:1",
    "tridiagonal:70",
    "poisson5:9,7",
    "poisson7:5,4,3",
    "poisson27:4,5,3",
    "anisotropic_triangles:2",
    "apache2_like:4,5,6",
    "ecology2_like:9,8",
    "g3_circuit_like:150",
    "arrow:70",
    "random_dominant:90,0.05,3,float32,hermitian=True",
    "random_dominant:90,0.05,4,complex64,hermitian=True",
    "random_dominant:90,0.05,4,complex128,hermitian=True",
)
SMALL_GENERAL = (
    "elasticity:3,2,2",
    "random_dominant:40,0",
    "bidiagonal:60",
    "convection_diffusion:8,7,1,peclet=50",
    "convection_diffusion:5,4,3,peclet=9,scheme=central",
    "atmosmodd_like:5,4,3",
    "helmholtz:9,6",
    "helmholtz:9,3,absorbing=False",
    "random_dominant:120,0.03,1,float32",
    "random_dominant:120,0.03,2,float64",
    "random_dominant:120,0.03,3,complex64",
    "random_dominant:120,0.03,4,complex128",
)
