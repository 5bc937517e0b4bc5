"""`solve_shifted`: (A + s_j I) x_j = b for many shifts s_j."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from time import perf_counter
from typing import Any

import numpy as np

from finelu.arithmetic import ignore_fp_errors
from finelu.auto.recycling import SpaceOverShifts, basis_is_cheap
from finelu.auto.reuse import logarithm
from finelu.device import sparse_module, to_host
from finelu.errors import MatrixError, NotConverged, ParameterError
from finelu.krylov import METHODS, method_name
from finelu.krylov.multishift import Family, arnoldi_family, lanczos_family
from finelu.krylov.operators import location, value_dtype
from finelu.krylov.recycle import RecycledSpace
from finelu.krylov.system import System
from finelu.matrix import as_csr, norm
from finelu.matrix.traits import traits
from finelu.matrix.vectors import as_dtype
from finelu.preconditioners import recipe_of
from finelu.result import Solution, SolutionOfColumns, of_columns
from finelu.threads import one_blas_thread
from finelu.validation import choice, count, flag, number

SPACES = ("cg", "cocg", "gmres")  # the methods with one space for all shifts
COMPLETED_BY = {"cg": "cg", "cocg": "bicgstabl", "gmres": "bicgstabl"}  # what takes a shift further by itself
NAMES = {"cg": "multi-shift cg", "cocg": "multi-shift cocg", "gmres": "shifted gmres"}
EARLIER = 6  # solutions from which a guess is made
# The part of maxiter that gmres takes at most for a shift where "auto" chose it, and the cycles that it may take in any
# case; then idrs goes on.
BY_GMRES, CYCLES = 0.25, 3
DEPENDENT = 1e-10  # part of the largest singular value below which images of solutions count as dependent


@dataclass(frozen=True, eq=False, repr=False)
class SolutionOfShifts(SolutionOfColumns):
    """The outcome of `solve_shifted`; `solution[j]` is the Solution of shift j.

    x : (n, k), on the device of b.  shifts : (k,), on the host.
    products : with A, for all shifts together. Of a LinearOperator each is counted; of a matrix those of all
        iterations, and one for the true residual of each solve: of a shift, and of one that goes on.
    factorizations : how many were made.
    The other fields are those of the worst shift, and `iterations` those of all together.
    """

    shifts: Any = None
    products: int = 0
    factorizations: int = 0

    _parts = "shifts"


@ignore_fp_errors
def solve_shifted(
    A: Any,
    b: Any,
    shifts: Any,
    rtol: float = 1e-8,
    *,
    atol: float = 0.0,
    maxiter: int | None = None,
    method: str = "auto",
    recipe: Any = None,
    factorizations: int | None = None,
    restart: int | None = None,
    recycle: bool | None = None,
    raise_on_failure: bool = False,
) -> SolutionOfShifts:
    """Solve (A + s_j I) x_j = b for k shifts s_j, to ||b - (A + s_j I) x_j|| <= max(rtol ||b||, atol) each.

    A : (n, n), anything that the Krylov methods take.  b : (n,), on its device.
    shifts : (k,), real or complex, on the host or the device. x is complex if A, b or a shift is.
    maxiter : the most iterations with one space, and for each shift by itself; 10 n by default.
    factorizations : the number of groups, see below; 3 by default. Only with a recipe.
    restart : the columns of a cycle of a method that restarts; 50 by default. Only with such a method.
    recycle : with a recipe and "gmres", whether a `RecycledSpace` of up to 16 vectors goes from each shift to the next.
        None: as long as it saves more than it takes, by a model of its cost. `explain()` of a shift says what it did.
    raise_on_failure : True raises NotConverged unless all converge.

    Without a recipe one Krylov space serves all shifts, and a product with A each iteration of all. method:
        "cg": multi-shift cg, for a Hermitian A with A + s I positive definite for s the least real part of a shift.
        "cocg": for A = A^T, real or complex, and any shifts. It may break down.
        "gmres": shifted gmres with cycles of `restart` columns, for any A.
        "auto": the first of these that fits the symmetry of A; "gmres" for a LinearOperator, whose symmetry is not
        known. Where multi-shift cg finds that A is not positive definite, "cocg" for a real A and "gmres" otherwise.
    There is no preconditioner, and no x0: both would make the spaces differ.

    With a recipe, the shifts are ordered by their distance from the first and divided into `factorizations` groups of
    equal numbers. Each group has factors of A + s I for the shift s in its middle (one analysis, later factors by
    `update`), and the method, one of METHODS, solves its shifts one after the other with them. It begins at the
    combination of up to 6 solutions of other shifts that leaves the least residual, which takes no product with A.
    "auto" is cg if the shifts are real, the recipe keeps factors positive definite, and A is Hermitian with either a
    positive diagonal and no negative shift, or rows that show A + s I to be positive definite for the least s: the
    diagonal entry and s exceed the magnitudes of the others. Otherwise it is gmres if recycle=True, or if products with
    A and M take most of the time of its iterations, by a model of it, and else idrs. A gmres chosen by this model that
    has not converged after a quarter of maxiter, and three cycles, is left: idrs goes on from its x, and takes the
    other shifts. The recycled vectors W of gmres serve all shifts: (A + s I) W = A W + s W takes no product with A.

    Each x_j is tested by its true residual. A shift that a space has left above its tolerance goes on by itself, by cg
    or bicgstabl from there; its Solution counts all its iterations.
    Cost: docs/shifts.md. Raises ParameterError, MatrixError and DeviceError for arguments without a meaning.
    Source: Jegerlehner 1996; Frommer & Maass 1999; Frommer & Glassner 1998; Parks et al. 2006 for recycling.
    """
    started = perf_counter()
    rtol, atol = number("rtol", rtol), number("atol", atol)
    shifts = checked_shifts(shifts)
    place = location(A)
    if place is not None and not hasattr(A, "matvec"):
        A = as_csr(A, diagonal=False)
    system = System.checked(A, b)
    b = system.b
    maxiter = 10 * b.size if maxiter is None else count("maxiter", maxiter, 0)
    if recipe is None:
        choice("method", method, ("auto", *SPACES))
        restarts = method in ("auto", "gmres")
        if factorizations is not None:
            raise ParameterError("factorizations has no effect without a recipe; leave it out, or give a recipe.")
    else:
        method, recipe = method_name(method, "auto"), recipe_of(recipe)
        restarts = method != "auto" and METHODS[method].restarts
    if recycle is not None:
        flag("recycle", recycle)
        if recipe is None or method not in ("auto", "gmres"):
            raise ParameterError("recycle has an effect with a recipe and method='gmres' or 'auto'; leave it out.")
    if restart is not None and not restarts:
        raise ParameterError(f"restart has no effect with method={method!r}, which does not restart; leave it out.")
    work = Shifted(system, A, shifts, rtol, atol, maxiter, count("restart", 50 if restart is None else restart, 1))
    if recipe is None:
        found = work.by_spaces(method)
    else:
        found = work.by_factors(
            method, recipe, count("factorizations", 3 if factorizations is None else factorizations, 1), recycle
        )
    xp = system.xp
    joined = of_columns(found, xp.stack([s.x for s in found], axis=1), [work.norm] * len(found))
    facts = {field.name: getattr(joined, field.name) for field in fields(joined)}
    facts["timings"] = {"solve": perf_counter() - started}
    solution = SolutionOfShifts(**facts, shifts=shifts, products=work.products(), factorizations=work.factorizations)
    if raise_on_failure and not solution.all_converged:
        raise NotConverged("(A + s I) x = b", solution, rtol)
    return solution


def checked_shifts(shifts: Any) -> Any:
    """(k,) on the host, float64 or complex128."""
    try:
        found = np.atleast_1d(to_host(shifts) if hasattr(shifts, "dtype") else np.asarray(shifts))
        if found.dtype.kind not in "biufc":
            raise TypeError
        found = found.astype(np.complex128 if found.dtype.kind == "c" else np.float64)
    except (TypeError, ValueError):
        raise ParameterError(f"shifts is {shifts!r:.60}; an array of k numbers is needed.") from None
    if found.ndim != 1 or not found.size:
        raise ParameterError(f"shifts has shape {found.shape}; (k,) with k >= 1 is needed.")
    if not np.isfinite(found).all():
        raise ParameterError(f"shifts[{int(np.argmin(np.isfinite(found)))}] is NaN or Inf.")
    return found


class Shifted:
    """The work of one call.

    counted, factorizations : products and factorizations so far; an operator counts its products by itself.
    """

    def __init__(
        self, system: System, A: Any, shifts: Any, rtol: float, atol: float, maxiter: int, restart: int
    ) -> None:
        self.system, self.shifts = system, shifts
        self.A: Any = Counted(A) if location(A) is None else A
        self.rtol, self.atol, self.maxiter, self.restart = rtol, atol, maxiter, restart
        self.counted = self.factorizations = 0
        real = not np.iscomplexobj(shifts)
        self.dtype = system.dtype if real else np.result_type(system.dtype, np.complex64)
        self.norm = norm(system.b)
        self.tolerance = max(rtol * self.norm, atol)
        self.matrix = not hasattr(A, "matvec") and hasattr(A, "tosparse")

    def products(self) -> int:
        return self.A.calls if isinstance(self.A, Counted) else self.counted

    def kind(self) -> str:
        """ "hermitian", "symmetric" or "general", as far as it is known."""
        return traits(self.A).kind if self.matrix else "general"

    def shifted(self, shift: complex) -> Any:
        """A + shift I in the dtype that this needs: a matrix, or an operator."""
        real = shift.imag == 0
        value = shift.real if real else shift
        if shift == 0:
            return self.A
        if self.matrix:
            S = self.A.tosparse()
            dtype = S.dtype if real else np.result_type(S.dtype, np.complex64)
            unit = sparse_module(self.A.data).identity(S.shape[0], dtype=dtype, format="csr")
            return as_csr(S.astype(dtype) + unit * value, diagonal=False)
        return Sum(self.A, value)

    def seed(self, shift: complex, dtype: Any) -> System:
        return System.checked(self.shifted(shift), as_dtype(self.system.b, dtype))

    def by_spaces(self, method: str) -> list[Solution]:
        kind = self.kind() if method == "auto" else ""
        if method == "auto":
            method = {"hermitian": "cg", "symmetric": "cocg"}.get(kind, "gmres")
        family = self.space(method)
        if family.indefinite and kind:
            self.counted += family.products
            method = "cocg" if self.system.dtype.kind != "c" else "gmres"
            family = self.space(method)
        self.counted += family.products
        return [self.completed(method, family, j) for j in range(self.shifts.size)]

    def space(self, method: str) -> Family:
        shifts = self.shifts
        if method == "gmres":
            return arnoldi_family(self.seed(0, self.dtype), shifts, self.tolerance, self.maxiter, self.restart)
        # the seed converges last: for cg the least shift, for cocg that next to 0
        first = complex(shifts.real.min()) if method == "cg" else complex(shifts[abs(shifts).argmin()])
        sigma = shifts - (first.real if first.imag == 0 else first)
        dtype = self.system.dtype if first.imag == 0 else self.dtype
        return lanczos_family(self.seed(first, dtype), sigma, method == "cg", self.tolerance, self.maxiter)

    def completed(self, method: str, family: Family, j: int) -> Solution:
        """Shift j, whose true residual is formed, and which goes on by itself if that is above the tolerance."""
        own = COMPLETED_BY[method]
        if own == "cg" and self.shifts[j].imag != 0:
            own = "bicgstabl"
        found = self.alone(own, j, family.X[j])
        iterations = int(family.iterations[j]) + found.iterations
        history, recurrence = (np.concatenate([family.sizes[j][:-1], v]) for v in (found.history, found.recurrence))
        return replace(found, iterations=iterations, method=NAMES[method], history=history, recurrence=recurrence)

    def alone(
        self,
        method: str,
        j: int,
        x0: Any,
        M: Any = None,
        space: RecycledSpace | None = None,
        most: int | None = None,
    ) -> Solution:
        """One shift by a method of its own, in `most` iterations at most, or maxiter."""
        kind, before = METHODS[method], space.products if space is not None else 0
        own: dict[str, Any] = kind.in_cycles(self.restart) | ({} if space is None else {"recycle": space})
        found: Solution = kind.solve(
            self.shifted(complex(self.shifts[j])),
            as_dtype(self.system.b, self.dtype),
            x0,
            rtol=self.rtol,
            atol=self.atol,
            maxiter=self.maxiter if most is None else most,
            M=M,
            **own,
        )
        self.counted += found.iterations * kind.products + 1  # that for the true residual
        self.counted += space.products - before if space is not None else 0
        return found

    def by_factors(self, method: str, recipe: Any, factorizations: int, recycle: bool | None) -> list[Solution]:
        if not self.matrix:
            raise MatrixError("a recipe needs the entries of A: give a matrix, or leave out the recipe.")
        found: list[Any] = [None] * self.shifts.size
        if method == "auto" and not recycle and recipe.keeps_definite and self.may_be_definite():
            method = "cg"
        order = np.argsort(abs(self.shifts - self.shifts[0]), kind="stable")
        F, pattern, most = None, None, self.maxiter
        recycled: SpaceOverShifts | None = None
        for group in np.array_split(order, min(factorizations, order.size)):
            middle = group[group.size // 2]
            S = self.shifted(complex(self.shifts[middle])).tosparse().astype(self.dtype)
            same = pattern is not None and S.nnz == pattern.nnz and bool((S.indices == pattern.indices).all())
            F = F.update(S) if F is not None and same else recipe.factor(S)
            pattern = S
            self.factorizations += 1
            if method == "auto":
                method = "gmres" if recycle or basis_is_cheap(F, self.A, self.restart) else "idrs"
                if method == "gmres" and not recycle:
                    most = min(most, max(int(BY_GMRES * most), CYCLES * self.restart))
            if recycled is not None:
                recycled.group(F, self.A)
            elif method == "gmres" and recycle is not False:
                recycled = SpaceOverShifts(F, self.A, self.restart, recycle)
            near = np.argsort(abs(self.shifts[group] - self.shifts[middle]), kind="stable")
            for j in group[near]:
                known = [(self.shifts[i], s.x) for i, s in enumerate(found) if s is not None]
                if recycled is None:
                    found[j] = self.alone(method, j, self.guess(j, known), F, None, most)
                else:
                    found[j] = self.with_space(j, known, F, recycled, most)
                if found[j].iterations == most < self.maxiter and not found[j].converged:
                    rest = self.alone("idrs", j, found[j].x, F, None, self.maxiter - most)
                    why = f"gmres({self.restart}) did not converge in {most} iterations, and idrs went on from its x"
                    found[j] = onwards(found[j], rest, why)
                    method, recycled, recycle, most = "idrs", None, False, self.maxiter
        return found

    def with_space(self, j: int, known: list[Any], F: Any, recycled: SpaceOverShifts, most: int) -> Solution:
        """Shift j by gmres, with the space or, where that is in doubt, without it first."""
        shift = complex(self.shifts[j])

        def step(space: RecycledSpace | None, x0: Any, most: int) -> Solution:
            found = self.alone("gmres", j, x0, F, space, most)
            gained = logarithm(float(found.history[0]), found.residual_norm)
            recycled.seen(found.iterations, gained, converged=found.converged)
            return replace(found, seen=(*found.seen, *filter(None, [recycled.why])))

        space, limit = recycled.space_for(shift), min(most, recycled.limit)
        found = step(space, self.guess(j, known, space), limit)
        if limit < most and found.iterations == limit and not found.converged:
            found = onwards(found, step(recycled.space_for(shift), found.x, most - limit))
        return found

    def may_be_definite(self) -> bool:
        """Whether A is Hermitian, the shifts are real, and either the diagonal is positive and no shift negative, or
        the least eigenvalue that the rows of A allow (Gershgorin) is positive with each shift added."""
        found = traits(self.A)
        if found.kind != "hermitian" or np.iscomplexobj(self.shifts):
            return False
        least = self.shifts.min()
        if found.definite and least >= 0:
            return True
        S = self.A.tosparse()
        diagonal = S.diagonal()
        sums = self.system.xp.asarray(abs(S).sum(axis=1)).reshape(-1)
        bounds = diagonal.real + abs(diagonal) - sums
        return bool(bounds.min() + least > 0)

    def guess(self, j: int, known: list[tuple[Any, Any]], space: RecycledSpace | None = None) -> Any:
        """The combination of solutions of other shifts, and of the vectors of a space, that leaves the least residual.
        None without any solution.

        (A + s I) x_i = b + (s - s_i) x_i, up to the residual of x_i, and the space has the images C of its vectors: so
        it takes no product. C is orthonormal: solutions are combined by the part of their images outside of C.
        """
        known = sorted(known, key=lambda pair: abs(pair[0] - self.shifts[j]))[:EARLIER]
        if not known or self.norm == 0:
            return None
        xp, shift = self.system.xp, self.shifts[j]
        b = as_dtype(self.system.b, self.dtype)
        X = xp.stack([x for _, x in known], axis=1)
        images = b[:, None] + X * xp.asarray((shift - np.array([s for s, _ in known])).astype(self.dtype))
        C = space.image if space is not None and space.follows else None
        with one_blas_thread():  # the same guess with any number of threads
            Q, R = xp.linalg.qr(images if C is None else without(C, images))
            weights = np.linalg.lstsq(to_host(R), to_host(Q.conj().T @ b), rcond=DEPENDENT)[0]
            weights = xp.asarray(weights.astype(self.dtype))
            x = X @ weights
            return x if C is None else x + space.W @ (C.conj().T @ (b - images @ weights))  # type: ignore[union-attr]


def onwards(first: Solution, then: Solution, *why: str) -> Solution:
    """The solve `then` as one that began with the solve `first`, at whose x it began.  why : sentences for both."""
    history, recurrence = (
        np.concatenate([a[:-1], b]) for a, b in ((first.history, then.history), (first.recurrence, then.recurrence))
    )
    return replace(
        then,
        iterations=first.iterations + then.iterations,
        history=history,
        recurrence=recurrence,
        timings={name: seconds + first.timings.get(name, 0.0) for name, seconds in then.timings.items()},
        seen=(*first.seen, *why, *then.seen),
        breakdowns=first.breakdowns + then.breakdowns,
    )


def without(C: Any, V: Any) -> Any:
    """V - C C^H V for orthonormal columns C, twice, as the first may leave the rounding of long sums."""
    for _ in range(2):
        V = V - C @ (C.conj().T @ V)
    return V


class Counted:
    """An A that is known by its products, which it counts."""

    def __init__(self, A: Any):
        self.shape, self.dtype, self.calls = A.shape, value_dtype(A), 0
        self.product = A.matvec if hasattr(A, "matvec") else A

    def matvec(self, v: Any) -> Any:
        self.calls += 1
        return self.product(v)


class Sum:
    """A + shift I for an A that is known by its products only."""

    def __init__(self, A: Any, shift: complex):
        self.A, self.shift, self.shape = A, shift, A.shape
        dtype = value_dtype(A)
        self.dtype = np.result_type(dtype, np.complex64) if isinstance(shift, complex) else dtype

    def matvec(self, v: Any) -> Any:
        product = self.A.matvec(v) if hasattr(self.A, "matvec") else self.A @ v
        return product.reshape(-1) + v.dtype.type(self.shift) * v.reshape(-1)
