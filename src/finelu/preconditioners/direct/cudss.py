"""cuDSS, if it is installed: complete factors that are made, kept and applied on the GPU."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from finelu.device import namespace, on_gpu
from finelu.errors import DeviceError, FineluError, ParameterError, SingularMatrix, UnstableFactors
from finelu.factors import Report
from finelu.factors.base import backward_error, trial_vector, unstable
from finelu.kernels import kernels_for
from finelu.kernels.cuda.runtime import cudss
from finelu.kernels.cuda.runtime.cudss import GENERAL, HERMITIAN, HPD, OWN_MATCHING, SPD, SYMMETRIC, Solver
from finelu.kernels.operands import CSR
from finelu.matrix import norm, without_zeros
from finelu.preconditioners.direct.library import RefinedFactors, is_mirrored
from finelu.scaling import require_matching
from finelu.threads import get_num_threads

ORDERINGS = {"auto": cudss.DEFAULT_ORDER, "nd": cudss.DISSECTION, "amd": cudss.AMD, None: cudss.GIVEN}
MATCHINGS = {None: OWN_MATCHING, True: cudss.PRODUCT, False: cudss.NO_MATCHING}
KINDS = {
    GENERAL: "general",
    SYMMETRIC: "symmetric",
    HERMITIAN: "hermitian",
    SPD: "positive definite",
    HPD: "positive definite",
}
REFINED = 2  # most steps of refinement in a solve
ROUNDING = 1e3  # roundings up to which `trial_residual` asks for no more refinement
BY_ROWS = 100.0  # likewise, of the sums of a row, up to which its residual does
ALIKE = 10.0  # times by which `trial_residual` may find more than when its steps were looked for, with as many
GAINED = 0.1  # part of `trial_residual` that a step of refinement leaves at most, if it is worth its time


class TooMany(MemoryError):
    """The factors would have more entries than allowed."""


@dataclass(frozen=True)
class How:
    """The options of a cuDSS factorization, as its numbers."""

    kind: int
    ordering: int
    matching: int


@dataclass(eq=False, repr=False)
class CudssReport(Report):
    """Facts about a factorization by cuDSS.

    backend : "cudss".
    version : the version of the library.
    kind : the kind of matrix as which A was factored: "general" (L U), "symmetric" (L D L^T), "hermitian" (L D L^H) or
        "positive definite" (L L^H).
    analysis_seconds : seconds of the plan, mostly on the host.
    plans : the number of plans made.
    replaced : the number of pivots that were too small.
    refinements : steps of refinement in each solve.
    trial_residual : see `finelu.factors.trial_residual`, for solves with these steps.
    backward_error : the largest |b - A x|_i / (|A| |x| + |b|)_i of the same solve.
    """

    backend: str = "cudss"
    version: str | None = None
    kind: str | None = None
    analysis_seconds: float | None = None
    plans: int = 0
    replaced: int | None = None
    refinements: int | None = None
    trial_residual: float | None = None
    backward_error: float | None = None


class CudssFactors(RefinedFactors):
    """M = A up to rounding, on the GPU.

    cuDSS keeps matching, scaling and order for new values, and replaces pivots that are too small. So its factors are
    never trusted: a trial solve determines the steps of refinement that they need. If refinement does not help, A is
    planned anew, at last as a general matrix with a maximum product matching.
    The factors cannot leave the process: a copy factors the same matrix anew, as a rule with other bits.
    """

    well_formed = True
    _bound = ("_lock", "_library", "_turns", "_solver", "_transposed", "_y")
    report: CudssReport

    def __init__(
        self,
        recipe: Any,
        A: CSR,
        most: float = math.inf,
        *,
        indefinite: bool = False,
    ):
        """Factor A.

        most : the largest number of entries of the first factors; MemoryError, before they are made, if they would have
            more.
        indefinite : whether A is known not to be positive definite.
        Raises ParameterError if cuDSS is not installed, or does not offer the recipe's options; DeviceError for an A on
        the host.
        """
        super().__init__(recipe, A, report=CudssReport())
        if not on_gpu(A.data):
            raise DeviceError(
                f"{recipe!r}: A is on the host, and cuDSS works on a GPU; move A there, or use 'superlu'."
            )
        self.report.factored_on = self.report.applied_on = "GPU"
        self._asked = _asked(recipe)
        self._most, self._indefinite = most, indefinite
        self._unbound()
        self._made: How | None = None  # the options of the present factors
        self._nnz = 0
        self._least = 0.0  # the size by `_trial` when the number of steps was last determined
        self._seen = 0.0, 0.0  # trial residual and backward error of the present factors
        self._lay_out(A)
        self._refresh(A)
        self._most = math.inf

    def _lay_out(self, A: CSR) -> None:
        """Memory for A's values without stored zeros. It also serves later values that are zero in the same places."""
        some = without_zeros(A)
        self._kept = None if some is A else namespace(A.data).flatnonzero(A.data)
        self._S, self._places = with_diagonal(some.on(namespace(A.data)))

    def _unbound(self) -> None:
        self._library = _library()
        self._turns = threading.Lock()  # a solve uses memory of the factors, so solves take turns
        self._solver: Solver | None = None
        self._transposed = None
        self._y: Any = None  # the vector of the trial solve

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._unbound()
        if self._valid and self._made is not None and not self._plan_and_factor(self._made):
            self._valid = False

    @property
    def nnz(self) -> int:
        return self._nnz

    @property
    def _good(self) -> float:
        """The largest `trial_residual` of factors that are accepted without a further try."""
        return float(np.finfo(self.dtype).eps ** 0.5)

    def _refresh(self, A: CSR) -> None:
        start, self._planned = perf_counter(), 0.0  # _planned: seconds of all plans made here
        self.report.warning = None
        try:
            values = A.data if self._kept is None else A.data[self._kept]
            if self._kept is not None and int(namespace(values).count_nonzero(values)) < int(
                namespace(values).count_nonzero(A.data)
            ):
                self._drop()
                self._lay_out(A)
                self._made, self._y = None, None
                values = A.data if self._kept is None else A.data[self._kept]
            _take_values(self._S, self._places, values, self.recipe.shift)
            self._transposed = None
            size = self._compute(A)
            if self.report.replaced:  # for example, if A is 0, which a trial solve does not detect
                require_matching(A)  # says which rows
        except BaseException:  # also for Ctrl-C: an incomplete state is useless
            self._drop()
            raise
        self.report.numeric_seconds = perf_counter() - start - self._planned
        self._say(size)

    def _compute(self, A: CSR) -> float:
        """Factor S by the first options that give good factors, or by the best; returns the size by `_trial`."""
        found: dict[How, float] = {}
        failed: FineluError | None = None
        for how in self._ways():
            again = self._solver is not None and how == self._made
            for make in ([self._factor_again] if again else []) + [self._plan_and_factor]:
                try:
                    if make(how):
                        found[how] = self._refined(as_before=make == self._factor_again)
                    elif make == self._factor_again and KINDS[how.kind] == "positive definite":
                        break  # A is no longer positive definite, whatever the order
                except FineluError as error:
                    failed = error
                except MemoryError:
                    if not found:
                        raise
                if found.get(how, np.inf) <= self._good:
                    return found[how]
        if not found:
            require_matching(A)  # says which rows
            raise failed or SingularMatrix(f"{self.recipe!r}: A is singular; its complete L U has a pivot that is 0.")
        best = min(found, key=lambda how: found[how])
        if not found[best] < np.inf:
            require_matching(A)
            raise UnstableFactors(self.recipe)
        if self.recipe.backend == "auto" and not self.updates:
            raise FineluError(f"{self.recipe!r}: {unstable(found[best])}")
        if (best != self._made or self._solver is None) and not self._plan_and_factor(best):
            raise UnstableFactors(self.recipe)
        return self._refined()

    def _ways(self) -> Iterator[How]:
        """The options to try, in this order. If A was factored as general before, its symmetry is not tested again."""
        last = How(GENERAL, cudss.DEFAULT_ORDER, cudss.PRODUCT)
        if self._made is None or self._made.kind != GENERAL:
            ordering, matching = self._asked
            tried = [How(kind, ordering, matching) for kind in self._kinds()]
        else:
            tried = [self._made]
        yield from dict.fromkeys([*tried, last])

    def _kinds(self) -> list[int]:
        S, complex_values = self._S, self.dtype.kind == "c"
        if is_mirrored(S):
            indefinite, definite = (HERMITIAN, HPD) if complex_values else (SYMMETRIC, SPD)
            made = None if self._made is None else self._made.kind
            if self._indefinite or made == indefinite:
                return [indefinite]
            if made == definite or bool((S.data[S.diag].real > 0).all()):  # the factorization tests definiteness
                return [definite, indefinite]
            return [indefinite]
        if complex_values and is_mirrored(S, conjugated=False):
            return [SYMMETRIC]
        return [GENERAL]

    def _plan_and_factor(self, how: How) -> bool:
        """Plan and factor, and return whether that succeeded. If cuDSS is out of memory, CuPy's unused memory is freed
        for a second try."""
        for second in (False, True):
            self._drop()
            try:
                return self._begun(how)
            except TooMany:
                raise
            except MemoryError:
                if second:
                    raise
                cudss.free_idle_memory()
        return False

    def _begun(self, how: How) -> bool:
        S, start = self._S, perf_counter()
        self._solver = Solver(
            self._library,
            *(S.indptr, S.indices, S.data, namespace(S.data).empty(S.n, S.dtype)),
            how.kind,
            ordering=how.ordering,
            matching=how.matching,
            deterministic=self.recipe.deterministic,
            threads=get_num_threads(),
        )
        self._solver.plan()
        if self._most < math.inf and (entries := self._solver.planned) > self._most:
            raise TooMany(f"{self.recipe!r}: {entries} entries, more than the {self._most:.3g} that they may have")
        self._nnz = 0  # read from the library after the factorization
        self.report.plans += 1
        self.report.analysis_seconds = perf_counter() - start
        self._planned += self.report.analysis_seconds
        return self._made_by(self._solver.factor, how)

    def _factor_again(self, how: How) -> bool:
        return self._solver is not None and self._made_by(self._solver.refactor, how)

    def _made_by(self, call: Callable[[], int], how: How) -> bool:
        if call() or self._solver is None:  # the row of a pivot that is 0, or not positive
            self._drop()
            return False
        self._nnz = self._nnz or self._solver.nnz
        self._made = how
        self.report.kind, self.report.replaced = KINDS[how.kind], self._solver.replaced
        self.report.version = self._library.version
        return True

    def _drop(self) -> None:
        """Free the memory that the library holds."""
        if self._solver is not None:
            self._solver.close()
        self._solver = None

    def _refined(self, *, as_before: bool = False) -> float:
        """Determine the steps of refinement that bring the size by `_trial` to rounding, or as near as possible.

        Returns that size; Inf if not even one solve is finite.
        as_before : whether to try first as many steps as for the last factors, and to keep them if they do about as
            well.
        """
        enough, best = ROUNDING * float(np.finfo(self.dtype).eps), (np.inf, 0, (np.inf, np.inf))
        if as_before:
            size, seen = self._trial()
            if size <= max(enough, ALIKE * self._least):
                self._seen = seen
                return size
        for self._steps in range(REFINED + 1):
            (size, seen), before = self._trial(), best[0]
            best = min(best, (size, self._steps, seen))
            if size <= enough or (self._steps and size > GAINED * before):
                break
        self._least, self._steps, self._seen = best
        return self._least

    def _trial(self) -> tuple[float, tuple[float, float]]:
        """(size, (trial residual, backward error)) of a solve with these factors.

        The size is the trial residual. It is raised above `_good` if a row's residual is far beyond rounding, and Inf
        if the solve is not finite. The backward error is that of `backward_error`.
        """
        if self._y is None:
            self._y = trial_vector(self._S)
        kernels = kernels_for(self._S.data)
        with np.errstate(all="ignore"):
            v = kernels.products.subtract_product(self._S, self._y)
            largest = float(abs(v).max())
            if not largest > 0:
                return 0.0, (0.0, 0.0)
            x = self._apply(v, "N")
            error, roundings, r = backward_error(self._S, x, v)
            size = float(norm(r / largest) / norm(v / largest))
        if not size < np.inf or kernels.vectors.first_not_finite(x) >= 0:
            return np.inf, (np.inf, np.inf)
        return max(size, self._good * roundings / BY_ROWS if roundings > BY_ROWS else 0.0), (size, error)

    def _say(self, size: float) -> None:
        report = self.report
        report.refinements, (report.trial_residual, report.backward_error) = self._steps, self._seen
        if report.replaced:
            report.warn(
                f"cuDSS replaced {report.replaced} pivots that were too small; backend='superlu' exchanges rows"
            )
        if size > self._good:
            what = unstable(report.trial_residual)
            if report.trial_residual <= self._good:
                what = f"solves have a backward error of {report.backward_error:.1e} by rows"
            report.warn(f"{what}; check A for dependent rows, try a shift, or backend='superlu'")

    # solves

    def _apply(self, R: Any, trans: str) -> Any:
        return self._solve_refined(namespace(R).ascontiguousarray(R), trans)

    def _solved(self, r: Any, trans: str) -> Any:
        """One solve without refinement. r and the result are (n,) or (n, k), by rows."""
        xp, how = namespace(r), self._made
        if how is None or self._solver is None:  # an update has failed
            raise UnstableFactors(self.recipe)
        mode, conjugate = _direction(how.kind, self.dtype.kind == "c", trans)
        b = xp.asfortranarray(r.conj() if conjugate else r)
        x = xp.empty(b.shape, b.dtype, order="F")
        with self._turns:
            if b.ndim == 2 and self.recipe.deterministic:  # cuDSS is deterministic for a single right-hand side
                for k in range(b.shape[1]):
                    self._solver.solve(b[:, k], x[:, k], mode)
            elif b.size:
                self._solver.solve(b, x, mode)
        return xp.ascontiguousarray(x.conj() if conjugate else x)


def missing() -> str:
    """Why cuDSS cannot be used; "" if it is installed. It needs CuPy."""
    return cudss.library().missing


def _library() -> cudss.Library:
    found = cudss.library()
    if found.calls is None:
        raise ParameterError(f"backend='cudss': {found.missing}, or use 'superlu'.")
    return found


def _asked(recipe: Any) -> tuple[int, int]:
    """The cuDSS numbers of the recipe's ordering and matching."""
    if recipe.ordering not in ORDERINGS:
        raise ParameterError(
            f"{recipe!r}: cuDSS takes no ordering={recipe.ordering!r}; it orders by {', '.join(map(repr, ORDERINGS))}."
        )
    return ORDERINGS[recipe.ordering], MATCHINGS[recipe.matching]


def _direction(kind: int, complex_values: bool, trans: str) -> tuple[str, bool]:
    """(mode, conjugate) of a solve with A, A^T or A^H: the library's mode, and whether right-hand side and solution are
    conjugated."""
    if kind == GENERAL:
        return (trans if complex_values else trans.replace("H", "T")), False
    if not complex_values:
        return "N", False
    return "N", trans == ("H" if kind == SYMMETRIC else "T")  # A^H = conj(A), or A^T = conj(A)


def with_diagonal(A: CSR) -> tuple[CSR, Any]:
    """(S, places): S has A's pattern with a full diagonal, and memory for values of its own.

    places (nnz,) : the places of A's entries in S, None if A's diagonal is full. Cost: a sort if it is not.
    """
    xp, index = namespace(A.data), A.indices.dtype
    if not A.missing:
        return A.with_values(xp.empty_like(A.data)), None
    gap = A.diag < 0
    gaps = xp.flatnonzero(gap).astype(index)
    rows = xp.concatenate([kernels_for(A.data).indices.rows_of_entries(A.indptr, A.nnz), gaps])
    columns = xp.concatenate([A.indices, gaps])
    order = xp.argsort(rows.astype(np.int64) * A.n + columns)
    places = xp.empty(order.size, index)
    places[order] = xp.arange(order.size, dtype=index)
    indptr = A.indptr.copy()
    indptr[1:] += xp.cumsum(gap, dtype=index)
    diag = places[xp.where(gap, A.nnz + xp.cumsum(gap, dtype=index) - 1, A.diag)]
    return CSR(indptr, columns[order], xp.empty(order.size, A.dtype), diag), places[: A.nnz]


def _take_values(S: CSR, places: Any, values: Any, shift: float) -> None:
    """Write A's `values` to S. The diagonal is increased by the fraction `shift` of itself; a zero entry there becomes
    `shift` times the largest entry."""
    xp = namespace(values)
    if places is None:
        S.data[:] = values
    else:
        S.data[:] = 0
        S.data[places] = values
    if shift:
        d, largest = S.data[S.diag], abs(S.data).max()
        S.data[S.diag] = d + shift * xp.where(d == 0, xp.where(largest == 0, 1, largest).astype(S.dtype), d)
