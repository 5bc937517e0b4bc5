"""The tables of the contract: matrices and systems with what does not take them and why, and a line for each recipe.

Whatever is registered runs through all tests of this folder; a recipe without a line does with its default parameters.
"""

from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from checks import assert_close, in_dtype, values
from krylov_cases import stranger

from finelu import gallery
from finelu.krylov import METHODS
from finelu.preconditioners import RECIPES


def registered() -> dict:
    """Name -> class of every recipe: the one place that knows where recipes are registered."""
    return dict(RECIPES)


def registered_methods() -> dict:
    """Name -> function of every Krylov method, also that of docs/extend.md: the one place that knows where they are."""
    return {name: kind.solve for name, kind in METHODS.items()} | {"hybridbicg": stranger().solve}


def needing(*needs) -> tuple:
    """The names of the methods with one of these needs."""
    return tuple(name for name, method in registered_methods().items() if method.method.needs in needs)


@dataclass(frozen=True)
class Case:
    """A matrix and a right-hand side; `skip` names the recipes or methods that do not take it, `reason` says why."""

    name: str
    A: sp.csr_matrix
    skip: tuple[str, ...] = ()
    reason: str = ""
    b: np.ndarray = None  # random numbers where it is not given

    def __post_init__(self):
        if self.b is None:
            object.__setattr__(self, "b", values(self.A.shape[0], self.A.dtype, 7))

    def __str__(self):
        return self.name

    def why_not(self, name) -> str | None:
        return self.reason if name in self.skip else None


@dataclass(frozen=True)
class Line:
    """What the contract has to know of one recipe."""

    cheap: dict = field(default_factory=dict)  # parameters that make it small work, and leave no part of it unused
    skip: dict = field(default_factory=dict)  # case -> why it is not taken
    zero_pivot: str = r"the pivot of row 4 .*Try .*shift=1e-3"  # what the error for `singular()` says
    warning: str | None = None  # instead of an error: there are factors, and the warning of their report says this
    needs_diagonal: bool = True  # a row that stores no diagonal entry is an error that names it
    same_update: bool = True  # an update has the bits of a fresh factorization; else it goes on from the old pattern


SIDE = dict.fromkeys(("chain", "diagonal", "one row"), "blocks of 3 rows do not fit")
BLOCK = r"block row 1 \(from row 3 on\).*Try shift=1e-3"
REFUSED = r"updates were refused, the first in row 4: .*Try shift=1e-2"
RAISED = r"the diagonal was raised by 0.001 of itself, since without that the pivot of row 4 is not"
LINES = {
    "parilu": Line({"sweeps": 8}, warning=REFUSED),
    "paric": Line({"sweeps": 8}, warning=REFUSED),
    "parilut": Line({"steps": 2}, warning=RAISED, same_update=False),
    "parict": Line({"steps": 2}, warning=RAISED, same_update=False),
    "multilevel": Line(
        {"dense_size": 8, "drop_tol": 1e-2},
        warning=r"as row \d+ of A does, and M\^-1 is a pseudoinverse there",
        needs_diagonal=False,
    ),
    "jacobi": Line(warning=""),  # its rows have nothing to do with one another: nothing is divided by but A_ii
    "schwarz": Line({"size": 6}, zero_pivot=r"the pivot of row 4 .*part 1.*Try local=ILU0\(shift=0.001\)"),
    "block_jacobi": Line({"block_size": 3}, zero_pivot=BLOCK),
    "block_ilu0": Line({"block_size": 3}, SIDE, BLOCK, needs_diagonal=False),
    "cpr": Line({"block_size": 3}, SIDE, r"the pivot of row 3 is rounding of a block.*Try weights='true-impes'"),
    "sparse_lu": Line(zero_pivot="A is singular; its complete L U has a pivot that is 0", needs_diagonal=False),
}


# Recipes with other options, which take other ways through the code.
OPTIONS = {
    "milu0, relaxed": ("milu0", {"relax": 0.9, "shift": 0.01}),
    "iluk, level 2": ("iluk", {"level": 2}),
    "ilut, crout": ("ilut", {"form": "crout", "drop_tol": 0.03}),
    "parilu, ordered": ("parilu", {"ordering": "rcm", "level": 1}),
    "paric, ordered": ("paric", {"ordering": "rcm", "level": 1}),
    "parilu, new pivots": ("parilu", {"pivots": "new", "scale": False}),
    "paric, new pivots": ("paric", {"pivots": "new", "scale": False}),
    "parilut, swept": ("parilut", {"sweep": "synchronous", "ordering": "rcm"}),
    "parict, swept": ("parict", {"sweep": "synchronous", "ordering": "rcm"}),
    "schwarz, ilut": ("schwarz", {"local": "ilut"}),
    "schwarz, levels": ("schwarz", {"levels": 3}),
    "cpr, one step": ("cpr", {"steps": 1, "whole": "block_ilu0", "pressure": "ilu0", "unknown": 2}),
}


def with_options() -> dict:
    """Name -> (class, options) of every recipe as registered, and of those with other options."""
    plain = {name: (kind, {}) for name, kind in registered().items()}
    return plain | {name: (registered()[own], options) for name, (own, options) in OPTIONS.items()}


def line(name) -> Line:
    return LINES.get(OPTIONS[name][0] if name in OPTIONS else name, Line())


def made(name, **parameters):
    """The recipe `name` with the parameters of its line, and with its other options."""
    kind, options = with_options()[name]
    return kind(**{**line(name).cheap, **options, **parameters})


DIRECTIONS = ("N", "T", "H")


def applied(backend, F, R):
    """M^-1 R in all directions."""
    return [backend.fetch(F.solve(backend.move(R), trans=trans)) for trans in DIRECTIONS]


def inverse(backend, F):
    """M^-1 as a dense array."""
    return backend.fetch(F.solve(backend.move(np.eye(F.shape[0], dtype=F.dtype))))


def assert_same_parts(backend, F, G, ulps):
    """L and U of both are alike, where such factors show them."""
    for part in ("L", "U"):
        if hasattr(F, part):
            got, want = (getattr(X, part) for X in (F, G))
            np.testing.assert_array_equal(backend.fetch(got.indices), backend.fetch(want.indices))
            assert_close(backend.fetch(got.data), backend.fetch(want.data), ulps)


GENERAL_ONLY = {"skip": tuple(name for name, kind in RECIPES.items() if kind.hermitian), "reason": "A = A^H is needed"}


@cache
def matrices() -> tuple[Case, ...]:
    """Small matrices that have complete and incomplete factors."""
    poisson, convection = gallery.poisson5(7, 6), gallery.convection_diffusion(7, 6, 1, peclet=30)
    return (
        Case("Hermitian", poisson),
        Case("Hermitian, complex", in_dtype(poisson, "complex64")),
        Case("general", convection, **GENERAL_ONLY),
        Case("general, complex", in_dtype(convection, "complex64"), **GENERAL_ONLY),
        Case("arrow", gallery.arrow(24)),
        Case("chain", gallery.tridiagonal(20)),
        Case("diagonal", sp.csr_matrix(sp.diags(np.linspace(1, 3, 10)))),
        Case("one row", sp.csr_matrix([[2.0]])),
    )


def singular(dtype="float64"):
    """Rows 3 and 4 are alike: whatever eliminates one from the other has a pivot of 0 there."""
    A = sp.block_diag([2 * np.eye(3), np.ones((2, 2)), [[2.0]], gallery.poisson5(4, 6)], format="csr").astype(dtype)
    if A.dtype.kind == "c":
        A[3, 4], A[4, 3] = 1j, -1j
    return A


HERMITIAN_ONLY = {"skip": needing("spd", "hermitian", "symmetric"), "reason": "A = A^H is needed, or A = A^T for sqmr"}
DEFINITE_ONLY = {"skip": needing("spd"), "reason": "A must be positive definite"}
SINGLE_INDEFINITE = {
    "skip": (*needing("spd"), "bicgstab"),
    "reason": "A must be positive definite; bicgstab breaks down in single",
}
SYMMETRIC_ONLY = {"skip": needing("spd", "hermitian"), "reason": "A = A^H is needed"}


@cache
def systems() -> tuple[Case, ...]:
    """Systems that have a solution."""
    positive = gallery.poisson5(12, 12)
    shifted, skew = positive - 1.3 * sp.eye(144), sp.diags([0.4, -0.4], [1, -1], shape=(144, 144))
    neumann = sp.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(30, 30)).tolil()
    neumann[0, 0] = neumann[-1, -1] = 1  # constants are in the kernel
    return (
        Case("positive", positive),
        Case("positive, complex", in_dtype(positive, "complex64")),
        Case("positive, complex128", in_dtype(positive, "complex128")),
        Case("positive, float32", positive.astype("float32")),
        Case("indefinite", sp.csr_matrix(shifted), **DEFINITE_ONLY),
        Case("indefinite, complex", in_dtype(shifted, "complex64"), **SINGLE_INDEFINITE),
        Case("indefinite, complex128", in_dtype(shifted, "complex128"), **DEFINITE_ONLY),
        Case("general", sp.csr_matrix(positive + skew), **HERMITIAN_ONLY),
        Case("general, complex", sp.csr_matrix(positive + (1 + 0.5j) * skew).astype("complex64"), **HERMITIAN_ONLY),
        Case("general, complex128", sp.csr_matrix(positive + (1 + 0.5j) * skew), **HERMITIAN_ONLY),
        Case("complex symmetric", gallery.helmholtz(12, 5.0).astype("complex64"), **SYMMETRIC_ONLY),
        Case("complex symmetric, complex128", gallery.helmholtz(12, 5.0), **SYMMETRIC_ONLY),
        Case("singular", neumann.tocsr(), b=neumann @ np.random.default_rng(2).standard_normal(30)),
        Case("few eigenvalues", sp.csr_matrix(sp.diags(np.repeat([1.0, 2.0, 5.0], 40)))),
        Case("one row", sp.csr_matrix([[2.0]])),
    )


def each(registered, cases, why_not):
    """One pytest.param for each of `registered` and each case; what is not taken is skipped with the reason."""
    params = []
    for name, thing in registered.items():
        for case in cases:
            why = why_not(name, case)
            marks = [pytest.mark.skip(reason=f"{name}: {why}")] if why else []
            params.append(pytest.param(thing, case, id=f"{name}-{case}", marks=marks))
    return params


EVERY_RECIPE = pytest.mark.parametrize("name", list(registered()))


def _and_matrix(names):
    """A parametrization by these recipes and all matrices."""

    def why_not(name, case):
        return line(name).skip.get(case.name) or case.why_not(OPTIONS[name][0] if name in OPTIONS else name)

    return pytest.mark.parametrize(("name", "case"), each({name: name for name in names}, matrices(), why_not))


EVERY_RECIPE_AND_MATRIX = _and_matrix(registered())
WITH_OPTIONS_AND_MATRIX = _and_matrix(with_options())
EVERY_METHOD = pytest.mark.parametrize("method", list(registered_methods().values()), ids=list(registered_methods()))
EVERY_METHOD_AND_SYSTEM = pytest.mark.parametrize(
    ("method", "case"), each(registered_methods(), systems(), lambda name, case: case.why_not(name))
)
