"""The factors of MultilevelILU: levels, and a dense remainder, made, tried and applied."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from finelu import deadline
from finelu.device import namespace, on_gpu, require_room, synchronize, to_host
from finelu.errors import (
    FineluError,
    MatrixError,
    OutOfTime,
    StructurallySingular,
    TooManyEntries,
    UnstableFactors,
    ZeroPivot,
)
from finelu.factors.base import USELESS, Factors, Trial, reduction, trial, unstable
from finelu.factors.recorded import Applications
from finelu.factors.report import Report
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.preconditioners.multilevel import independent
from finelu.preconditioners.multilevel.dense import (
    HOST_MOST,
    is_last,
    last_of,
    magnitude_of_inverse,
    svd,
    to_matching,
    without_rounding,
)
from finelu.preconditioners.multilevel.level import SCHUR_TOL, DenseRest, Level, factored
from finelu.preconditioners.multilevel.order import Order, advice, definite_scale, kind_of, order_of, transposed
from finelu.preconditioners.multilevel.settings import Settings
from finelu.preconditioners.multilevel.variants import COMPLETE, Complete, Variant, complete_of, variants_of
from finelu.preconditioners.recipe import on_host, shifted
from finelu.scaling import require_matching
from finelu.triangular import DEFAULT_SWEEPS

SINGULAR = 100.0  # rounding errors: a pivot, or rcond, below it: A may be singular

STEPS, ENOUGH = 20, 1e-4  # of `reduction`: of 12 real matrices those not solved had 2e-4 or more, others 6e-5
AT_ONCE = 30_000  # rows: with 16 threads Crout's form was faster for most real matrices with fewer
ROOM = 25  # entries for each of A's that factors with LOOSE or TIGHT limits have; those of real matrices had up to 13
FEW_ENTRIES = 2**23  # that they may have besides
REFINED, RANGE = 5, 1000  # steps for a null vector, and roundings of A v that count as 0
LEAST_GAIN = 0.1  # of its rows that a level should factor; else the next one defers fewer


@dataclass(eq=False, repr=False)
class MultilevelReport(Report):
    """levels : a dict for each level with n, nnz_A (without small entries: see `drop_tol`), pivots, pairs (2x2 pivots),
        "put_off" (rows deferred by estimate, by pivot), interface, nnz (entries of L_B, D_B, U_B, F and G; with low_memory=False of D_B U_F instead of F and
        of L_G instead of G), bytes, estimate (the larger norm of the inverses of L and U), smallest_pivot (the
        reciprocal of the largest entry of D_B^-1; scaling has made the entries of A about 1), dropped (by tolerance, by
        the row limit), seconds, and steps if pivots were taken by independent sets. The dict of the last, dense level
        has n, nnz, bytes, rcond, nullity (the number of its rows that depend on others).
    kind : "general", "symmetric" or "hermitian".
    low_memory : True or False.
    bytes, seconds : of all levels.
    fill : entries of the factors over those of A.
    trial_residual : see `finelu.factors.trial_residual`. If it exceeds 10, and GMRES is slow in the sense of
    `drop_tol`, the factors
        without the matching are tried, too.
    matching, drop_tol : those of the factors that were taken; a warning says so if they are not those of the first try.
    A nearly singular A is factored; a warning says so if a smallest_pivot, or rcond, is below 100 eps of the dtype.
    """

    kind: str | None = None
    low_memory: bool | None = None
    levels: list[dict[str, Any]] | None = None
    bytes: int | None = None
    fill: float | None = None
    trial_residual: float | None = None
    matching: bool | None = None
    drop_tol: float | None = None
    seconds: float | None = None


class MultilevelFactors(Factors):
    """M of equation (1), level by level."""

    well_formed = capturable = True
    _bound = ("_lock", "_recorded")
    report: MultilevelReport
    _kept: int
    _levels: list[Level]
    _last: dict[str, Any]  # the dense inverse, and its transposes once asked for
    _null: tuple[CSR, Any, Any] | None  # A, and the null vectors of its last level and of its adjoint, if any
    _null_spaces: dict[str, Any]  # of A, "N", and of its adjoint, "H", once asked for
    _absolute: bool  # whether |D| replaces D
    _complete: Complete | None  # what `_cheaper` has found, as long as it was not tried
    _asked: bool  # whether `_cheaper` was called
    _recorded: Applications

    def __init__(self, recipe: Settings, A: CSR):
        super().__init__(recipe, A, report=MultilevelReport())
        self._low_memory = not on_gpu(A.data) if recipe.low_memory is None else recipe.low_memory
        free = recipe.ordering == "auto" and recipe.parts == 1
        suits = on_gpu(A.data) and A.n >= AT_ONCE and free
        # except for levels that need pairs
        self._at_once = recipe.form == "independent" or (recipe.form == "auto" and suits)
        self._first: Order | None = None
        self._variant = variants_of(recipe)[0]
        self._refresh(A)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._recorded = Applications()

    @property
    def complete(self) -> bool:
        """Whether nothing was dropped, with limits that keep all or in a single dense level, and D was not replaced."""
        keeps_all = self._variant.limits == COMPLETE or not self._levels
        return keeps_all and not (self.recipe.shift or self._absolute or self.recipe.triangular in DEFAULT_SWEEPS)

    def _refresh(self, A: CSR) -> None:
        """Levels made as the last ones; if those were complete and A has none such, as `factor` makes them."""
        begin, tried = perf_counter(), self._variant
        try:
            return self._make_best(A)
        except (TooManyEntries, ZeroPivot, MatrixError) as error:
            if not tried.complete:  # else its order and its bound were chosen for other values
                raise
            why = str(error)
        deadline.check()
        self._levels, self._last, self._first, self._variant = [], {}, None, variants_of(self.recipe)[0]
        self.report = MultilevelReport(self.report.factored_on, self.report.applied_on)
        self._make_best(A)
        self.report.seconds = perf_counter() - begin
        self.report.warn(f"{tried} there are no factors: {why}; those {self._variant} were taken")

    def _make_best(self, A: CSR) -> None:
        """Levels made as the last ones; where a trial solve finds them poor, in the others, and the best."""
        begin, variants, tried, other = perf_counter(), variants_of(self.recipe), self._variant, ""
        size, slow, finite = np.inf, np.inf, False
        waiting, refused = [variant for variant in variants if variant != tried], None
        self._absolute = False  # the trial solve takes M with D
        self._complete, self._asked = None, tried.complete
        try:
            self._make(A)
        except TooManyEntries as error:
            if self._cheaper(A) is None:
                raise
            waiting, refused, what = [], error, f"{tried} there are no factors: {error}"
        except DenseRest as error:
            waiting, what = [tried, *waiting], f"{tried} there are no factors: {error}"
        else:
            found = trial(A, lambda v: self._solve(v, "N", 0))
            size, finite, slow = found.size, found.finite, self._left(A, waiting, found)
            what = f"{tried} ||A M^-1 v - v|| was {size:.1e} ||v|| for a random v = A y"
            what += f"; {STEPS} steps of GMRES left {slow:.0e} of a residual" if slow > ENOUGH else ""
        if (slow > ENOUGH or not finite) and (complete := self._cheaper(A)) is not None:
            waiting.insert(0, complete.variant)
        self._complete = None  # it is tried once
        for variant in waiting:
            alike = variant.complete or variant.matching == self._variant.matching
            if finite and not (slow > ENOUGH and (alike or size > USELESS)):
                continue
            deadline.check()
            if not finite:  # useless, whatever the other settings give
                self._levels, self._last = [], {}
            state = self.__dict__ | {"report": self.report}
            self.report = MultilevelReport(self.report.factored_on, self.report.applied_on)
            self._first, self._variant = self._order_for(variant), variant
            try:
                if variant.limits != variants[0].limits:
                    entries = ROOM * A.nnz if variant.most is None else variant.most
                    room = entries * (A.dtype.itemsize + A.indices.dtype.itemsize)
                    require_room("factors with a smaller drop_tol", room, np.empty(0), "set drop_tol")
                self._make(A)
                found = trial(A, lambda v: self._solve(v, "N", 0))
                found_slow = self._reduction(A, found)
            except OutOfTime:
                raise
            except (FineluError, ArithmeticError, MemoryError, np.linalg.LinAlgError) as error:
                found, found_slow = Trial(np.inf, False), np.inf
                other += f"; {variant} there are none: {str(error) or type(error).__name__}"
            better = (max(found_slow, ENOUGH), found.size) < (max(slow, ENOUGH), size)
            if found.finite and (better or not finite):
                size, slow, finite = found.size, found_slow, found.finite
            else:
                self.__dict__.update(state)
        if not finite:
            raise refused or UnstableFactors(self.recipe, advice(self.recipe))
        report = self.report
        report.trial_residual, report.seconds = size, perf_counter() - begin
        report.matching, report.drop_tol = self._variant.matching, self._variant.limits.drop_tol
        if self._variant != tried:
            report.warn(
                f"{what}; of the factors {self._variant}, which were taken, ||A M^-1 v - v|| is {size:.1e} ||v||{other}"
            )
        elif slow > ENOUGH:
            few = f"{STEPS} steps of GMRES leave {slow:.0e} of a random residual with these factors"
            report.warn((unstable(size) if size > USELESS else few) + other)
        elif other:
            report.warn(f"{tried} ||A M^-1 v - v|| is {size:.1e} ||v|| for a random v = A y{other}")
        if self.recipe.definite:
            if self._null is not None:  # with D, as long as it is kept
                self._null_spaces = {trans: self._null_space(trans) for trans in "NH"}
            self._last = {"N": magnitude_of_inverse(self._last["N"])}
            self._absolute, self._recorded = True, Applications()

    def _left(self, A: CSR, variants: list[Variant], tried: Trial) -> float:
        """`_reduction` of these factors where that is of use, since the trial residual was large or another variant has
        this matching; else 0."""
        others = any(w != self._variant and w.matching == self._variant.matching for w in variants)
        return self._reduction(A, tried) if tried.size > USELESS or others else 0.0

    def _reduction(self, A: CSR, tried: Trial) -> float:
        """`reduction` of these factors, or the trial residual, which bounds it, if that is small enough."""
        if tried.size <= ENOUGH:
            return tried.size
        return reduction(A, lambda v: self._solve(v, "N", 0), STEPS, ENOUGH, tried)

    def _order_for(self, variant: Variant) -> Order | None:
        """The order of the first level, if another variant can take it, too."""
        order, tried = self._first, self._variant
        fits = order is not None and not (
            (order.bounded and variant.limits.fill != tried.limits.fill)
            or (order.partial and variant.limits.drop_tol != tried.limits.drop_tol)
        )
        return order if fits and variant.matching == tried.matching else None

    @property
    def _most(self) -> int | None:
        """The most entries of the factors; None if the caller has given fill or drop_tol."""
        if self._variant.complete:
            return self._variant.most
        return ROOM * self.pattern.nnz + FEW_ENTRIES if self._free else None

    @property
    def _free(self) -> bool:
        """Whether the caller has left drop_tol and fill to the recipe."""
        return self.recipe.drop_tol is None and self.recipe.fill is None

    def _cheaper(self, A: CSR) -> Complete | None:
        """The complete factorization that is tried before smaller drop tolerances, if A has an affordable one; found
        out at the first call after `_complete` was set."""
        if not self._asked:
            self._asked = True
            most = self._most
            if most is not None and self._first is not None and not self._at_once:
                self._complete = complete_of(self.recipe, A, self._first, self._variant.matching, most)
        return self._complete

    def _work(self, A: CSR) -> float:
        """The flops of the complete factorization of `_cheaper`; inf without one."""
        complete = self._cheaper(A)
        return np.inf if complete is None else complete.fill.flops

    def _require_fewer(self, A: CSR, rest: CSR) -> None:
        """A DenseRest if the rest after a level, on the host, has half as many entries as complete factors of A."""
        if rest.n > self.recipe.dense_size and 2 * rest.nnz > A.nnz and not on_gpu(A.data):
            complete = self._cheaper(A)
            if complete is not None and 2 * rest.nnz > complete.fill.nnz:
                raise DenseRest(rest.n)

    def _make(self, A: CSR) -> None:
        """Make the levels of A; if "auto" has taken independent sets, and these fail, in Crout's form."""
        try:
            return self._within_bound(A)
        except StructurallySingular as singular:
            require_matching(A)
            what = "remains once A, symmetric up to rounding, is made symmetric"
            raise ZeroPivot(self.recipe, singular.row, 0.0, what, "Try symmetric=False.") from None
        except (MemoryError, MatrixError, ZeroPivot) as error:
            if not self._at_once or self.recipe.form != "auto":
                raise
            self._at_once, why = False, str(error) or type(error).__name__
        self._within_bound(A)
        self.report.warn(f"factorization by independent sets failed ({why}); Crout's form was used instead")

    def _within_bound(self, A: CSR) -> None:
        """Make the levels of A. Raises TooManyEntries if they would have more entries than allowed."""
        try:
            self._make_levels(A)
        except TooManyEntries:
            most: Any = self._most
            times = f", {ROOM} for each of A and some; a fill or drop_tol of your own lifts that bound"
            raise TooManyEntries(most, self.recipe, "" if self._variant.complete else times) from None

    def _make_levels(self, A: CSR) -> None:
        recipe, limits = replace(self.recipe, matching=self._variant.matching), self._variant.limits
        S = A.with_values(shifted(A, recipe.shift)) if self._at_once else on_host(A, recipe.shift)
        if kernels_for(S.data).vectors.first_not_finite(S.data) >= 0:
            raise MatrixError(f"{recipe!r}: values of A are too large for {A.dtype}; scale A, or leave precision out.")
        # The order that update keeps may have columns that differ from its rows, if A was not symmetric.
        kind, S, given = ("general", S, S) if self.report.kind == "general" else (*kind_of(recipe, S), S)
        if recipe.definite and kind != "hermitian":
            raise MatrixError(f"{self.recipe!r}: A is not Hermitian, and so M cannot be; leave definite out.")
        # else the matching of the first level finds it; entries that were mirrored into A are no matching of A
        if not recipe.matching or is_last(recipe, S, 0) or S.nnz != given.nnz:
            require_matching(given)
        self._levels = []
        facts: list[dict[str, Any]] = []
        condest = np.inf if self._variant.complete else recipe.condest
        rows, left_over = np.arange(A.n), self._most
        while S.n > 0 and not is_last(recipe, S, len(facts)):
            deadline.check()
            level_begin = perf_counter()
            scale = None if kind == "general" else definite_scale(S)
            at_once = self._at_once and (recipe.form == "independent" or kind == "general" or scale is not None)
            if not at_once:
                S, scale = S.on(np), to_host(scale)
            kept = None if facts or self._first is None or self._first.at_once != at_once else self._first
            try:
                order, scales, matched, large = order_of(
                    recipe, S, kind, scale, rows, not facts, kept, at_once, SCHUR_TOL * limits.drop_tol, limits.fill
                )
            except ZeroPivot:
                if S.n > max(HOST_MOST, recipe.dense_size):
                    raise
                break
            if not facts:
                self._first = order
            how = independent.factored if at_once else partial(factored, work=partial(self._work, A))
            own = limits._replace(fill=limits.fill * S.nnz / max(large.nnz, 1))  # relative to the mean row of S
            S = large
            level, rest, left = how(recipe, S, kind, order, scales, own, condest, rows, self._low_memory, left_over)
            if level is None:
                break
            self._require_fewer(A, rest)
            places = order.rows[left], order.columns[left]
            more = None if matched else partial(to_matching, S, kind, scales, *places)
            rows, S = rows[places[0]], without_rounding(rest, more)
            if level.facts["pivots"] < LEAST_GAIN * level.facts["n"]:
                condest *= 2
            self._levels.append(level.moved(A.data, recipe.triangular))
            facts.append(level.facts | {"seconds": perf_counter() - level_begin})
            if left_over is not None:
                left_over = max(left_over - level.facts["nnz"], 0)
        if left_over is not None and S.n**2 > left_over:
            raise TooManyEntries(left_over)
        last = last_of(recipe, S, kind, rows, A.data)
        self._last = {"N": last.inverse}
        self._recorded = Applications()
        facts.append(last.facts)
        self._kept = sum(fact["nnz"] for fact in facts)
        report = self.report
        report.kind, report.low_memory, report.levels, report.warning = kind, self._low_memory, facts, None
        report.factored_on = "GPU" if any("steps" in fact for fact in facts) else "CPU"
        report.bytes, report.fill = sum(fact["bytes"] for fact in facts), self._kept / A.nnz
        signs = [(fact["smallest_pivot"], f"the smallest pivot of level {k}") for k, fact in enumerate(facts[:-1], 1)]
        least, what = min([*signs, (last.facts["rcond"], "the reciprocal condition of what the levels leave")])
        self._null = (A, last.null, last.left) if last.facts["nullity"] else None
        self._null_spaces = {}
        if last.facts["nullity"]:
            row = rows[int(abs(to_host(last.left[:, 0])).argmax())]
            report.warn(
                f"A is singular to working precision, or nearly: {last.facts['nullity']} of the {last.facts['n']} rows "
                f"that the levels leave depend on others, as row {row} of A does, and M^-1 is a pseudoinverse there; "
                f"null_space gives the vectors that A takes to 0. Check A, or try a shift."
            )
        elif least < SINGULAR * np.finfo(A.dtype).eps:
            report.warn(
                f"A is singular to working precision, or nearly: {what} is {least:.1e}, and M amplifies rounding as "
                f"much. Check A, or try a shift."
            )

    @property
    def nnz(self) -> int:
        """Entries of all L_B, D_B, U_B, F and G (or of the matrices kept instead of F and G), and of the dense last
        level."""
        return self._kept

    @property
    def null_space(self) -> Any:
        """(n, k) orthonormal vectors v with A v = 0 up to rounding, on the device of A. k is 0 unless the last level is
        singular to working precision; M^-1 is a pseudoinverse in that case.

        The vectors are the null vectors of the last level, extended through the levels and refined by v - M^-1 A v;
        ||A v|| is at most 1000 roundings of || |A| |v| ||. A may have more: dropped entries hide some, and so may
        rounding. The values of the factored A must not have been overwritten since. Cost, once: some 7 applications to
        k vectors.
        """
        return self._space("N")

    @property
    def left_null_space(self) -> Any:
        """(n, k) orthonormal vectors u with u^H A = 0 up to rounding, as `null_space`: A x = b has no solution unless
        u^H b = 0 for each."""
        return self._space("H")

    def _space(self, trans: str) -> Any:
        self._require_valid()
        with self._lock:
            if trans not in self._null_spaces:
                self._null_spaces[trans] = self._null_space(trans)
            return self._null_spaces[trans]

    def _null_space(self, trans: str) -> Any:
        """The null space of A, or of A^H."""
        if self._null is None:
            return namespace(self.pattern.data).zeros((self.shape[0], 0), self.dtype)
        A, null, left = self._null
        if trans == "H" and self.report.kind != "general":  # M is not applied transposed then
            null = self._null_space("N")
            return null if self.report.kind == "hermitian" else null.conj()
        xp, vectors = namespace(A.data), null if trans == "N" else left
        require_room("the null vectors", 4 * A.n * vectors.shape[1] * A.dtype.itemsize, A.data, "leave them")
        vectors, S = self._lifted(vectors, trans), A.tosparse()
        S, sizes = (S if trans == "N" else S.conj().T.tocsr()), abs(S if trans == "N" else S.T.tocsr())
        for _ in range(REFINED):
            deadline.check()
            vectors = _orthonormal(vectors, sizes)
            vectors = vectors - self._solve(xp.ascontiguousarray(S @ vectors), trans)
        vectors = _orthonormal(vectors, sizes)
        if not vectors.shape[1]:
            return vectors
        _, size, turns = svd(S @ vectors)
        most = RANGE * np.finfo(A.dtype).eps * float(xp.linalg.norm(sizes @ abs(vectors), 2))
        return xp.ascontiguousarray(vectors @ turns.conj().T[:, size <= most])

    def _lifted(self, vectors: Any, trans: str) -> Any:
        """Vectors w (m, k) of the last level, completed by -B^-1 F w, level by level, to those of A (n, k)."""
        subtract = kernels_for(self.pattern.data).products.subtract_product
        for level in reversed(self._levels):
            t = -subtract(level.F(trans), vectors)
            t = level.last(level.first(t, trans) if self._low_memory else t, trans)
            vectors = level.arranged.scatter_scaled(t, trans, None, vectors)
        return vectors

    def _apply(self, R: Any, trans: str) -> Any:
        if self.report.kind != "general" and trans != "N":  # M is its own transpose, or conjugate transpose
            if self.dtype.kind != "c" or (self.report.kind == "hermitian") == (trans == "H"):
                return self._apply(R, "N")
            return self._apply(R.conj(), "N").conj()
        return self._recorded(self._solve, R, trans)

    def _solve(self, R: Any, trans: str, depth: int = 0) -> Any:
        """Equation (11), or equations (6) to (8), from this level on. |D| replaces D in the final solves, but not in
        those that lead to the next level and back."""
        kernels = kernels_for(R)
        if depth == len(self._levels):
            return kernels.products.dense_product(self._inverse_of(trans), R)
        level = self._levels[depth]
        r = level.arranged.gather_scaled(R, trans)
        r_B, r_C = r[: level.pivots], r[level.pivots :]
        y_B = level.first(r_B, trans)
        if r_C.shape[0] == 0:
            s_B = level.last_of_definite(y_B, None, trans) if self._absolute else level.last(y_B, trans)
            return level.arranged.scatter_scaled(s_B, trans)
        F, G = level.F(trans), level.G(trans)
        if self._absolute:
            s = level.last(y_B, trans) if self._low_memory else y_B
            w_C = self._solve(kernels.products.subtract_product(G, s, r_C), trans, depth + 1)
            v = kernels.products.subtract_product(F, w_C)
            w_B = level.last_of_definite(y_B, level.first(v, trans) if self._low_memory else v, trans)
            return level.arranged.scatter_scaled(w_B, trans, None, w_C)
        if self._low_memory:
            s_B = level.last(y_B, trans)
            w_C = self._solve(kernels.products.subtract_product(G, s_B, r_C), trans, depth + 1)
            t_B = level.last(level.first(kernels.products.subtract_product(F, w_C), trans), trans)
            return level.arranged.scatter_scaled(s_B, trans, t_B, w_C)
        w_C = self._solve(kernels.products.subtract_product(G, y_B, r_C), trans, depth + 1)
        w_B = level.last(kernels.products.subtract_product(F, w_C, y_B), trans)
        return level.arranged.scatter_scaled(w_B, trans, None, w_C)

    def _inverse_of(self, trans: str) -> Any:
        if trans not in self._last:
            inverse = namespace(self._last["N"]).ascontiguousarray(transposed(self._last["N"], trans))
            synchronize(inverse)  # another thread may use it on another stream
            self._last[trans] = inverse
        return self._last[trans]


def _orthonormal(vectors: Any, sizes: Any) -> Any:
    """An orthonormal basis (n, k) of the vectors that are finite and have finite terms in their products with A.

    sizes : |A|.
    """
    xp = namespace(vectors)
    found = xp.linalg.qr(vectors[:, xp.isfinite(vectors).all(axis=0)])[0]
    return found[:, xp.isfinite(sizes @ abs(found)).all(axis=0)]
