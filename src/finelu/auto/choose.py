"""The choice of a recipe and a Krylov method for a matrix: two tables, and `choose`, which reads them.

`RUNGS` holds the recipes that `solve` may try, `FITTING` the methods that fit a recipe. All callers that need a recipe
or a method for a matrix use them: `solve`, `Sequence`, `finelu solve --recipe`, `compare` and the gradients of interop.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from finelu.auto.rates import RATES
from finelu.errors import ParameterError
from finelu.krylov.method import METHODS, NEEDS
from finelu.matrix import CSR
from finelu.matrix.hermitian import asymmetry_of
from finelu.matrix.traits import MatrixTraits
from finelu.preconditioners import (
    CPR,
    IC0,
    ICT,
    ILU0,
    ILUT,
    MILU0,
    MultilevelILU,
    ParICT,
    ParILUT,
    Schwarz,
    SparseLU,
    recipe_of,
)
from finelu.preconditioners.direct import cudss, klu
from finelu.preconditioners.direct.analysis import COLAMD, SHORT, UNEVEN, is_quick
from finelu.preconditioners.recipe import Recipe

SMALL = 400  # rows up to which the direct solve comes first: it takes less time than any look at the alternatives
LIGHT = 5000  # entries up to which it does, of the systems that are factored without a count
FEW_ITERATIONS = 100.0  # of the cheap rung on a network, up to whose time complete factors come first
# Where the fill is counted before the cheap rung is tried: the part of the rows that is coupled (of other matrices
# incomplete factors converge in some ten iterations).
SLOW = 0.3
SYMMETRIC_PATTERN = 0.5  # part of the entries with a partner below which a direct solve orders columns alone
SUBDOMAINS = 10_000  # rows from which an elliptic system may be solved by subdomains; no smaller one was measured
TREE = 3.0  # entries a row, up to which A may be a tree, whose complete factors have no fill
# Expected iterations of cg on the CPU, for an M-matrix with even couplings and with uneven ones: with subdomains
# (grids, layers, an unstructured mesh with jumps of 10^4: 24 to 49; conductivities over six decades at random: 67 to
# 83, and a set-up that is longer by 13); and with factors of the whole, as a multiple of the fourth root of the rows
# (MILU0 took 1.9 to 2.3 times that for 7-point grids, 4.9 times for 5-point grids, 7 for two fluids, 32 for the mesh).
BY_SUBDOMAINS, BY_WHOLE = (36.0, 96.0), (2.4, 4.8)
# The same for several unknowns a node, with the set-up as a multiple of that for one: blocks of elastic cubes of 26,460
# to 154,980 rows took 46 to 72 and 16 in the set-up, and IC0 5.6 to 9.3 times the fourth root of the rows. IN_SPACE:
# the least entries a row, which keep out bodies in the plane, whose complete factors are cheap. OF_NODES:
# the least part of the rows whose columns are those of the next row.
BY_NODES, BY_WHOLE_OF_NODES, SETUPS, IN_SPACE, OF_NODES = 76.0, 6.5, 3.0, 40.0, 0.45
# The same for a definite A with short rows that is no M-matrix, as linear elements make it on a mesh with obtuse
# angles, or where a tensor has a direction: rows from which subdomains come first unless complete factors take less
# time, and iterations of cg with them as a multiple of the fourth root of the rows. `anisotropic_triangles` of 12,561
# to 203,841 rows and two matrices like them took 13.4 to 14.7 times that, and with IC0, where it had factors, 190 to
# 1,335 iterations.
OBTUSE, BY_OBTUSE = 50_000, 14.0
# The part of the rows whose entries nearly cancel, from which on such an A counts as elliptic: mass matrices, which
# incomplete factors solve in six iterations, have none.
ELLIPTIC = 0.5
# The same for bicgstab, with two products each, in a flow that turns, for cell Peclet numbers of 1 to 10: 20 to 57, and
# with MILU0 3 to 23 times the fourth root of the rows, or more than 500.
IN_TURNING = 40.0, 4.0
# The same for a flow that crosses the order of the rows, for cell Peclet numbers of 0.1 to 30: in space 16 to 29, in
# the plane 32 to 42, and MILU0 1.3 to 3.9 times the fourth root of the rows.
IN_CROSSING = 30.0, 1.4
# The same for all other M-matrices that are not symmetric, whose skew part is up to this one of the symmetric part, by
# which the second factor is less. For 7-point grids of 110,592 to 512,000 cells and skew parts of 0.0004, 0.04, 0.1 and
# 0.3 subdomains took 17 to 22 iterations, and MILU0 1.5, 0.9, 0.6 and 0.5 times the fourth root of the rows, each far
# longer than its rate, as two threads wait for each other in its levels. The second factor is not that of iterations:
# with it times of two threads are equal, from 80,000 rows on where A is nearly symmetric, and from 200,000 where a
# third is skew. Sixteen threads take 0.2 to 0.5 of the time with subdomains there, one thread 0.7 to 1.7.
IN_DIFFUSION, SKEW = (30.0, 1.6), 1 / 3
# Expected time of bicgstab for a pressure and what it carries: with CPR, set-up included, in iterations with ILU0 (12
# iterations, as long as 2.4 each, and a set-up as long as 14) and in seconds; and the iterations with ILU0, as a
# multiple of the third root of the cells. For 6000 to 100,000 cells ILU0 took 2.3 to 3.4 times that, CPR 10 to 13.
BY_STAGES, FIXED, BY_ILU0 = 43.0, 0.025, 2.4
# The part of the rows that is to be coupled, see MatrixTraits, for a definite A and for others: rows at boundaries are
# not (a quarter of a 27-point grid of 22^3), and of the M-matrices that are not symmetric those that subdomains do not
# fit have up to 0.72 (memplus).
COUPLED, NEARLY_COUPLED = 0.5, 0.85
# Rows and entries below which a system on a GPU is solved sooner by the CPU, the copies there and back included: rows
# of an A that may be definite, and of others. Of an H100 and 16 cores, where IC0 + cg for bodies of 2475, 4884 and 7830
# rows (73,000, 290,000 and 279,000 entries) took the GPU 22, 34 and 62 ms, and `solve` on the CPU 43, 39 and 231.
FEW_DEFINITE, FEW, FEW_ENTRIES = 10_000, 25_000, 100_000
# Rows up to which complete factors whose rows are to be permuted are made by the CPU, where they are short and A is not
# symmetric: networks of 13,436 and 59,070 rows took it 49 and 55 ms, and cuDSS 180 and 100. No larger one was measured.
FEW_PERMUTED = 100_000
# Entries a level below which the CPU solves with factors sooner: out of its cache these take it 0.6 us, and a GPU
# takes a few tenths of a microsecond to one for a level, however few they are.
SHORT_LEVELS = 150
COMPLETE = ("cudss", "direct")  # rungs of complete factors
BY_KLU = SparseLU(backend="klu")
NUDGE = 1e-10  # of the diagonal: the shift with which a singular matrix can be factored
PAIRED = 0.95  # part of the entries with a partner, from which on pivots may lie on a shifted diagonal that had gaps

Rule = Callable[[MatrixTraits], bool]


@dataclass(frozen=True)
class Rung:
    """A step of the ladder: recipes that are tried at about the same cost.

    recipes : the first is tried; the others follow if it finds no factors.
    reason : why they are tried, in words.
    quick : for the direct solve: whether it takes less time than a count of its fill.
    """

    recipes: tuple[Recipe | None, ...]
    reason: str
    quick: bool = False

    def why(self, exact: bool) -> str:
        """The reason for a right-hand side. exact : its tolerance is one that incomplete factors reach by chance."""
        return BEYOND if exact and self.reason in (COUNTED, ESTIMATED, BY_CUDSS) else self.reason


@dataclass(frozen=True)
class Choice:
    """The choice for a matrix.

    recipe : the recipe, None for no preconditioner.
    methods : the first method, then gmres in case it breaks down.
    reason : why the recipe was chosen, in words.
    """

    recipe: Recipe | None
    methods: tuple[str, ...]
    reason: str

    @property
    def method(self) -> str:
        return self.methods[0]


def _direct(ordering: str, usable: bool) -> tuple[Recipe, ...]:
    """Recipes of the direct solve; the last one also accepts a singular A.

    usable : whether the diagonal, once shifted, may hold the pivots: it has no gaps, or the pattern is symmetric. If
        not, the last recipe has the order "auto": if no matching is complete, an order of columns alone would fill in
        far more.
    """
    last = SparseLU(ordering=ordering if usable else "auto", matching=not usable, shift=NUDGE)
    return SparseLU(ordering=ordering), last


def _by_columns(A: MatrixTraits) -> bool:
    """Whether a direct solve of A orders columns alone, as rows are exchanged anyway. It does not if A has dense rows,
    since all columns that these touch might fill in."""
    return A.paired < SYMMETRIC_PATTERN and not A.diagonal.usable and not A.dense


ROW_SUMS = "modified incomplete factors, which keep the row sums of A, suit these signs"
BY_PARTS = "subdomains fit an elliptic equation"
BY_BODIES = "subdomains of nodes fit an elastic body"
BY_PRESSURES = "one unknown of a cell is like a pressure, and a flow carries the others"
LEAST = "it is expected to take the least time"
IS_SMALL = "the system is small enough"
COUNTED = "it is expected to take the least time, by a count of its operations"
ESTIMATED = "its estimated cost is the lowest"
BY_CUDSS = "cuDSS makes complete factors on the GPU, and its estimated cost is the lowest"
BEYOND = "incomplete factors may not reach this tolerance"
ASKED = "it was asked for"
GAPS = "the diagonal has gaps or zeros"


def _elliptic(A: MatrixTraits) -> bool:
    """Whether A is large enough, and enough of its rows are coupled, for the recipe of subdomains. On the CPU also
    whether it is expected to take less time than factors of the whole, which is known of definite M-matrices: with
    several unknowns a node, one vector a part is no coarse space, and iterations grow with the rows."""
    fits = A.n >= SUBDOMAINS and A.coupled >= (COUPLED if A.definite else NEARLY_COUPLED)
    return fits and (A.gpu or (A.definite and A.m_matrix and A.mean_row > TREE and _sooner_by_parts(A)))


def _sooner_by_parts(A: MatrixTraits) -> bool:
    kind = 1 if A.uneven else 0
    by_parts = RATES.parts_setup + BY_SUBDOMAINS[kind] * RATES.parts
    return bool(by_parts < BY_WHOLE[kind] * A.n**0.25 * RATES.cg)


def _elastic(A: MatrixTraits) -> bool:
    """Whether A, definite and no M-matrix, is like the stiffness of a body in space, with several unknowns a node, and
    large enough that subdomains of nodes are expected to take less time than factors of the whole. On the CPU."""
    if A.n < SUBDOMAINS or A.coupled < COUPLED or A.mean_row < IN_SPACE:
        return False
    by_parts = SETUPS * RATES.parts_setup + BY_NODES * RATES.parts
    return bool(by_parts < BY_WHOLE_OF_NODES * A.n**0.25 * RATES.cg and A.alike >= OF_NODES)


def is_obtuse(A: MatrixTraits) -> bool:
    """Whether A, definite with short rows that nearly cancel and no M-matrix, is like an elliptic equation on a mesh
    with obtuse angles, and so large that subdomains are expected to take less time than factors of the whole. On the
    CPU."""
    fits = A.definite and not A.m_matrix and A.n >= OBTUSE and A.coupled >= COUPLED and TREE < A.mean_row <= SHORT
    return bool(fits and not A.gpu and A.cancelling >= ELLIPTIC and A.alike < OF_NODES)


def few_seconds(A: MatrixTraits, iteration: float) -> float:
    """The time, up to which complete factors come before the cheap rung where their fill is counted first: that which
    subdomains are expected to take, or that of FEW_ITERATIONS.  iteration : the seconds of one."""
    if is_obtuse(A):
        return float((RATES.parts_setup + BY_OBTUSE * A.n**0.25 * RATES.parts) * A.nnz)
    return FEW_ITERATIONS * iteration


def _sooner_in_flow(A: MatrixTraits, by_subdomains: float, by_whole: float) -> bool:
    """Whether A, an M-matrix of a flow, is large enough, and enough of its rows are coupled, that subdomains are
    expected to take less time than factors of the whole. On the CPU.

    by_subdomains, by_whole : iterations with subdomains, and with factors of the whole as a multiple of the fourth root
        of the rows.
    """
    return _gained_in_flow(A, by_subdomains, by_whole) > 0


def _gained_in_flow(A: MatrixTraits, by_subdomains: float, by_whole: float) -> float:
    """By how much `by_whole` is above the value with which both would take the same time; -inf for a smaller A, or one
    with fewer such rows."""
    if A.n < SUBDOMAINS or A.coupled < NEARLY_COUPLED:
        return -math.inf
    by_parts = RATES.parts_setup + 2 * by_subdomains * RATES.parts
    return float(by_whole - by_parts / (A.n**0.25 * RATES.bicgstab))


def _sooner_in_diffusion(A: MatrixTraits) -> bool:
    """The same for a flow that follows the order of the rows, or that hardly carries anything."""
    if A.kind != "general" or not A.m_matrix or A.gpu:
        return False
    gained = _gained_in_flow(A, *IN_DIFFUSION)
    return gained > 0 and A.skew <= SKEW and A.skew < gained  # a look at rows, once it may matter


def _sooner_by_pressures(A: MatrixTraits) -> bool:
    """Whether CPR is expected to take less time than ILU0. On a GPU it does for all systems that stay there."""
    iteration = RATES.bicgstab * A.nnz
    return A.gpu or BY_STAGES * iteration + FIXED < BY_ILU0 * (A.n / A.flow) ** (1 / 3) * iteration


# For each rung the first row whose rule holds is tried. The rungs are tried in the order of their costs. The first rows
# are for matrices of SUBDOMAINS rows or more.
OF_MANY: tuple[tuple[str, Rule, Rung], ...] = (
    (
        "cheap",
        lambda A: _elliptic(A) and A.definite and A.m_matrix,
        Rung((Schwarz(), MILU0(), IC0()), BY_PARTS),
    ),
    (
        "cheap",
        lambda A: A.gpu and _elliptic(A) and A.definite and A.alike >= OF_NODES,
        Rung((Schwarz(near_nullspace="auto"), Schwarz(near_nullspace="auto", local=ICT()), IC0()), BY_BODIES),
    ),
    ("cheap", lambda A: A.gpu and _elliptic(A) and A.definite, Rung((Schwarz(), IC0()), BY_PARTS)),
    ("cheap", lambda A: A.gpu and _elliptic(A) and A.m_matrix, Rung((Schwarz(), MILU0(), ILU0()), BY_PARTS)),
    (
        "cheap",
        lambda A: A.definite and not A.m_matrix and _elastic(A),
        Rung((Schwarz(near_nullspace="auto"), IC0()), BY_BODIES),
    ),
    ("cheap", is_obtuse, Rung((Schwarz(), IC0()), BY_PARTS)),
    ("cheap", lambda A: _sooner_in_flow(A, *IN_TURNING) and A.turns, Rung((Schwarz(), MILU0(), ILU0()), BY_PARTS)),
    ("cheap", lambda A: _sooner_in_flow(A, *IN_CROSSING) and A.crosses, Rung((Schwarz(), MILU0(), ILU0()), BY_PARTS)),
    ("cheap", _sooner_in_diffusion, Rung((Schwarz(), MILU0(), ILU0()), BY_PARTS)),
    ("cheap", lambda A: A.flow > 1 and _sooner_by_pressures(A), Rung((CPR(), ILU0()), BY_PRESSURES)),
)
RUNGS: tuple[tuple[str, Rule, Rung], ...] = (
    *OF_MANY,
    ("cheap", lambda A: A.definite and A.m_matrix, Rung((MILU0(), IC0()), ROW_SUMS)),
    ("cheap", lambda A: A.definite, Rung((IC0(),), "A may be positive definite")),
    ("cheap", lambda A: A.m_matrix, Rung((MILU0(), ILU0()), ROW_SUMS)),
    ("cheap", lambda A: A.diagonal.usable, Rung((ILU0(),), "its factors take little time")),
    ("threshold", lambda A: A.definite and A.gpu, Rung((ParICT(), ParILUT()), LEAST)),
    ("threshold", lambda A: A.definite, Rung((ICT(), ICT(shift=2e-3), ILUT()), LEAST)),
    ("threshold", lambda A: A.diagonal.usable and A.gpu, Rung((ParILUT(),), LEAST)),
    ("threshold", lambda A: A.diagonal.usable, Rung((ILUT(),), LEAST)),
    ("direct", _by_columns, Rung(_direct(COLAMD, False), ESTIMATED)),
    ("direct", lambda A: A.diagonal.usable or A.paired >= PAIRED, Rung(_direct("auto", True), COUNTED)),
    ("direct", lambda A: True, Rung(_direct("auto", False), COUNTED)),
    ("multilevel", lambda A: not A.diagonal.usable, Rung((MultilevelILU(),), GAPS)),
    ("multilevel", lambda A: True, Rung((MultilevelILU(),), "it is the strongest recipe")),
)

# The first row whose rule holds gives the methods. A rule reads A, the recipe, and whether only that recipe is tried.
# cg: factors that are Hermitian because A is (those of ILU0, MILU0, ILUK) have positive pivots if A is an M-matrix; if
# a pivot is negative, cg detects that, and gmres goes on.
FITTING: tuple[tuple[Callable[[MatrixTraits, Any, bool], bool], tuple[str, ...]], ...] = (
    (lambda A, M, alone: isinstance(M, MultilevelILU) and M.definite and not A.definite, ("minres", "gmres")),
    (lambda A, M, alone: isinstance(M, MultilevelILU) and M.definite, ("cg", "gmres")),
    (lambda A, M, alone: isinstance(M, SparseLU | MultilevelILU), ("gmres",)),  # which then takes few iterations
    (lambda A, M, alone: A.definite and (M is None or M.keeps_definite or M.keeps_hermitian), ("cg", "gmres")),
    (lambda A, M, alone: A.definite and not A.complex and M.keeps_symmetry, ("cg", "gmres")),
    (lambda A, M, alone: alone, ("gmres",)),  # its residual never grows, and there is no other rung to go on with
    (lambda A, M, alone: True, ("bicgstab", "gmres")),
)


def sooner_by_size(n: int, nnz: int, few: int = FEW_DEFINITE) -> str:
    """Why a system on a GPU takes less time on the CPU, in words, if its rows n and entries nnz alone say so; else "".

    few : rows below which it does; by default those below which any system does.
    """
    if n < few and nnz < FEW_ENTRIES:
        return f"the CPU took less time than a GPU for such systems of fewer than {few} rows and {FEW_ENTRIES} entries"
    return ""


def sooner_on_host(A: MatrixTraits) -> str:
    """Why a system on a GPU takes less time on the CPU, in words; "" if it does not."""
    if not A.gpu:
        return ""
    without = bool(cudss.missing())
    if without and is_network(A) and A.coupled >= SLOW:
        return "it is like a network, of which the CPU makes complete factors that stay sparse"
    if _elliptic(A) and (A.definite or A.m_matrix):  # subdomains come first
        return ""
    if by_size := sooner_by_size(A.n, A.nnz, FEW_DEFINITE if A.definite else FEW):
        return by_size
    if follows_chains(A):
        return f"its rows form chains, of {A.levels:.0f} rows or more, that a GPU follows one by one"
    if without and not A.diagonal.usable:
        return "the CPU makes its complete factors"
    if not A.diagonal.usable and A.kind == "general" and A.mean_row <= SHORT and A.n < FEW_PERMUTED:
        return "its rows are short and are to be permuted, which takes the CPU less time than cuDSS"
    return ""


def asks_first(A: MatrixTraits) -> bool:
    """Whether the fill of complete factors is counted before an incomplete factorization is tried.

    It is on networks, whose factors stay sparse, and on large meshes with obtuse angles, where the cheap rung takes a
    hundred iterations or more. Of other matrices a count takes as long as some ten, in which the cheap rung shows what
    it is worth.
    """
    return not A.gpu and A.coupled >= SLOW and (is_network(A) or is_obtuse(A))


def asks_without_sums(A: MatrixTraits) -> bool:
    """Whether it is counted once an M-matrix has no factors that keep its row sums. In most rows these are then 0, as
    in a network or a mesh that is hardly grounded, and incomplete factors take many iterations."""
    return not A.gpu and A.coupled >= SLOW and A.mean_row <= SHORT


def is_network(A: MatrixTraits) -> bool:
    """Whether rows of A are short and differ in length, as those of a network do, on which incomplete factors take many
    iterations."""
    return A.longest_row >= UNEVEN * A.mean_row and A.mean_row <= SHORT


def follows_chains(A: MatrixTraits) -> bool:
    """Whether rows of A depend on each other one by one, so that a GPU is slower than a CPU."""
    return A.nnz < SHORT_LEVELS * A.levels


def rungs(traits: MatrixTraits) -> dict[str, Rung]:
    """The rungs that `solve` may try for such a matrix, by name."""
    found: dict[str, Rung] = {}
    for name, holds, rung in RUNGS if traits.n >= SUBDOMAINS else RUNGS[len(OF_MANY) :]:
        if name not in found and holds(traits):
            found[name] = rung
    recipes: Any = found["direct"].recipes
    by_columns, reason = recipes[0].ordering == COLAMD, found["direct"].reason
    sparse = traits.mean_row <= SHORT and (not traits.dense or is_quick(traits))  # few rows fill in little
    unsymmetric_network = traits.kind == "general" and is_network(traits)  # KLU does not use a symmetry
    permuted = not traits.diagonal.usable and sparse and unsymmetric_network
    if (by_columns or permuted) and klu.nbklu() is not None:
        recipes, reason = (BY_KLU, *recipes), COUNTED
    quick = is_quick(traits) and traits.nnz <= LIGHT and not (by_columns or permuted)
    is_small = traits.n <= SMALL or quick
    found["direct"] = Rung(recipes, IS_SMALL if is_small else reason, quick)
    if traits.gpu and not is_small and not cudss.missing():
        before = {rung: found.pop(rung) for rung in list(found) if rung not in ("direct", "multilevel")}
        found = before | {"cudss": Rung((SparseLU(backend="cudss"),), BY_CUDSS)} | found
    return found


def compared(rungs: list[str]) -> list[str]:
    """The rungs that are compared: all, except the direct one as long as cuDSS is left, since a count of the fill on
    the host takes longer than cuDSS as a whole."""
    return [rung for rung in rungs if rung != "direct" or "cudss" not in rungs]


def methods(traits: MatrixTraits, recipe: Recipe | None, method: str = "auto", *, alone: bool) -> tuple[str, ...]:
    """The method for a recipe, then the one to use if it breaks down.

    method : "auto", or the only method, fixed by the caller.  alone : whether no other recipe is to be tried.
    """
    if method != "auto":
        return (method,)
    return next(found for holds, found in FITTING if holds(traits, recipe, alone))


def choose(traits: MatrixTraits, recipe: Recipe | str | None = "auto", method: str = "auto") -> Choice:
    """The recipe and the methods for such a matrix.

    recipe, method : fixed by the caller, or "auto" for those that `solve` tries first if memory allows.
    """
    if not isinstance(recipe, str):
        return Choice(recipe, methods(traits, recipe, method, alone=True), ASKED)
    found = rungs(traits)
    first = found["direct"] if found["direct"].reason == IS_SMALL else next(iter(found.values()))
    return Choice(first.recipes[0], methods(traits, first.recipes[0], method, alone=False), first.reason)


def unfit(method: str, A: CSR, kind: str) -> str:
    """Why A does not have the symmetry that a method needs, in words; "" if A has it.

    kind : as in `MatrixTraits`.
    """
    needs = METHODS[method].needs
    differing = NEEDS[needs] and asymmetry_of(A, kind, transposed=needs == "symmetric")
    return differing and f"{method} needs {NEEDS[needs]}, but {differing}"


def recipe_asked(recipe: Any) -> Any:
    """The recipe, None for no preconditioner, or "auto", from a recipe, its class, or a name of either."""
    if recipe is None or (isinstance(recipe, str) and recipe == "auto"):
        return recipe
    found = recipe_of(recipe, "auto", "none")
    if isinstance(found, Recipe) and found.normal:
        raise ParameterError(f"recipe is {found!r}, for least squares: finelu.lsmr(A, b, M={found!r}.factor(A)).")
    return None if found == "none" else found
