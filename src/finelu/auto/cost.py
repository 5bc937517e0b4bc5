"""The expected costs of the rungs of `solve`, in seconds and in bytes, and whether they fit the limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property, wraps
from typing import Any

import numpy as np

from finelu.auto.choose import SYMMETRIC_PATTERN, Rung, asks_first, few_seconds
from finelu.auto.rates import RATES, current_on_gpu
from finelu.compiling import now
from finelu.deadline import limited
from finelu.device import ALWAYS_FREE, USABLE, free_memory
from finelu.errors import OutOfTime, SingularMatrix, StructurallySingular
from finelu.factors import CholeskyFactors
from finelu.krylov.method import METHODS
from finelu.matrix import CSR
from finelu.matrix.traits import MatrixTraits
from finelu.ordering import COSTLY, Fill, OrderingJob, products
from finelu.preconditioners import ICT, Schwarz
from finelu.preconditioners.direct import SparseLU, klu
from finelu.preconditioners.direct.analysis import (
    COLAMD,
    QUICK,
    SHORT,
    Analysis,
    analysed,
    columns_of,
    is_light,
    light_by_klu,
    may_be_by_blocks,
    needs_matching,
)
from finelu.preconditioners.direct.library import INDEX, symmetry
from finelu.preconditioners.direct.superlu import structurally_singular
from finelu.preconditioners.multilevel.factors import AT_ONCE
from finelu.preconditioners.multilevel.order import definite_scale
from finelu.preconditioners.multilevel.variants import LOOSE
from finelu.recent import of_pattern
from finelu.validation import count, number

LEVELS = 200.0  # levels of the factors with which the overhead of an iteration on a GPU was measured
METIS_GAIN = 0.25  # part of the work, counted before, that METIS may be expected to leave
COPIES = 4  # entries that subdomains on the CPU hold for each of A (3.0 of 16 bytes for a 7-point grid of 216,000 rows)
USUAL_FILL = 7  # entries that complete factors are expected to have before a count, as a multiple of those of A
UNPAIRED = 10.0  # times that incomplete factors with fill take as long where few entries have a partner
# Part of the time of factors by threshold that ICT takes where rows are short and A is no M-matrix: four such systems
# of 1,744 to 21,936 rows took 0.18e-6 to 0.24e-6 s per entry (M-matrices: up to 0.64e-6), in
# `regret-amd-epyc-2-cores-counts-superlu-2026-11-27`.
BY_ICT = 0.5
# Rows up to which that holds. Iterations of cg with ICT grew as the root of the rows: 12, 22 and 96 for
# `anisotropic_triangles` of 3081, 12,561 and 203,841 rows.
ICT_ROWS = 20_000
FILLED = ("threshold", "multilevel")  # rungs of factors with fill
COLUMN_FILL = 10  # expected entries of factors with columns ordered alone, as a multiple of those of A
# Times that PARDISO takes as long where the diagonal has gaps, so that it matches rows and takes pivots of two: of ten
# saddle points of 1,159 to 3,600 rows.
MATCHED = 2.5


def _clocked(work: Callable[[Costs], None]) -> Callable[[Costs], None]:
    """A method whose time is added to `Costs.taken`."""

    @wraps(work)
    def clocked(costs: Costs) -> None:
        begin = now()
        try:
            work(costs)
        finally:
            costs.taken += now() - begin

    return clocked


class Costs:
    """Expected costs of the rungs for one A.

    rungs : the rungs, from `choose.rungs`.
    limit : the memory for the factors of a rung in bytes; None for a part of the free memory.
    deadline : a time of `compiling.now`.
    analysis : the analysis of the direct solve, once `count_fill` has made it.
    analysis_seconds : the time to order A and to count the work of the direct solve.
    job : the order with which `count_fill` begins, and its fill, once `order` has made it.
    short : whether rows are so short that factors with columns ordered alone stay sparse.
    ordered : whether `order` was called.
    fill : the fill of the direct solve, once it is counted.
    counted : whether no count is to come.
    too_large : whether A is too large for an analysis of the direct solve.
    by_columns : whether the direct solve orders columns alone, so that its fill cannot be counted.
    quick : whether the direct solve takes less time than a count, and so is not counted.
    taken : the seconds of orders and counts until now.
    """

    def __init__(self, A: CSR, traits: MatrixTraits, rungs: dict[str, Rung], limit: float | None, deadline: float):
        self.A, self.traits, self.rungs, self.limit, self.deadline = A, traits, rungs, limit, deadline
        self.entry = int(A.data.dtype.itemsize) + INDEX  # bytes of an entry of factors
        self.short = traits.mean_row <= SHORT
        direct: Any = rungs["direct"].recipes[0] if "direct" in rungs else None
        self.by_columns = direct is not None and direct.ordering == COLAMD
        self.quick = direct is not None and rungs["direct"].quick and self.fits(self.entry * traits.n**2)
        self.analysis: Analysis | None = None
        self._analysed_for: SparseLU | None = None  # the recipe whose analysis that is
        self.fill: Fill | None = None
        self.counted = self.quick
        self.too_large = self.ordered = False
        self.taken = 0.0
        self.job: OrderingJob | None = None
        self.analysis_seconds = RATES.analysis_row * traits.n + RATES.analysis * traits.nnz

    @_clocked
    def order(self) -> None:
        """The first step of `count_fill`: KLU's count, or else the order by `amd` and its fill, if these come first."""
        self.ordered = True
        if self.job is None and self.light is None and self._by_amd:
            try:
                with suppress(OutOfTime), limited(self.deadline):
                    self.job = OrderingJob(self.A, aside=False)
            except MemoryError:
                self.too_large = self.counted = True

    @cached_property
    def light(self) -> Analysis | None:
        """The analysis by KLU of an A like that of a circuit, if it shows that KLU takes the least time; else None."""
        with suppress(OutOfTime), limited(self.deadline):
            return light_by_klu(self.A) if self._automatic else None
        return None

    @property
    def _automatic(self) -> bool:
        recipe: Any = self.rungs["direct"].recipes[0]
        return (recipe.ordering, recipe.backend) == ("auto", "auto") and not self.traits.gpu

    @cached_property
    def _by_amd(self) -> bool:
        """Whether `count_fill` begins with `amd`: with a matching only where no library makes it by itself."""
        by_blocks = bool(symmetry(self.A)) and may_be_by_blocks(
            self.traits, symmetric=True, real=not self.traits.complex
        )
        return self._automatic and (by_blocks or not needs_matching(self.A))

    def counting(self) -> float:
        """The seconds that the rest of `count_fill` and the direct solve after it are expected to take; 0 where a count
        tells that at once."""
        if self.ordered and self.light is not None:
            return 0.0
        if self.job is None:
            library = "superlu" if klu.nbklu() is None else "klu"
            usual = self.of_library(Fill(USUAL_FILL * self.traits.nnz, 0.0), library, half=False)
            # Before `order`, this look at the rows would delay the iterations; on a GPU none is taken.
            matched = self.ordered and not (self.traits.gpu or self._by_amd)
            return self.analysis_seconds + matched * RATES.metis * self.traits.nnz + usual
        fill, symmetric = self.job.found()[2], bool(symmetry(self.A))
        real = symmetric and not self.traits.complex
        if not self.job.goes_on or may_be_by_blocks(self.traits, symmetric=symmetric, real=real, fill=fill):
            return 0.0
        return RATES.metis * self.traits.nnz + METIS_GAIN * self._of(fill)

    def direct_comes_first(self, method: str, asks: Callable[[MatrixTraits], bool] = asks_first) -> bool:
        """Whether complete factors are to be tried before the cheap rung, whose first method is given.

        asks : whether their fill is counted for such a matrix.
        """
        if not self.counted:
            recipe: Any = self.rungs["direct"].recipes[0]
            if not asks(self.traits) or not self.in_time(self.analysis_seconds):
                return False
            self.order()
            if recipe.backend != "klu" and (self.counting() > 0 or (self.light is None and self.job is None)):
                return False
            self.count_fill()
        return self.seconds("direct") <= few_seconds(self.traits, self.of_iteration(method))

    @_clocked
    def count_fill(self) -> None:
        """Order A as the direct solve will, and count its fill and work; leave both unknown if time runs out.

        KLU is left out of the rung if its factors are not light, and those of the next recipe can be counted.
        """
        recipes: Any = () if self.counted else self.rungs["direct"].recipes
        self.counted = True
        for tried, recipe in enumerate(recipes, 1):  # the last one also takes a matching that is not complete
            self.by_columns = recipe.ordering == COLAMD
            try:
                with limited(self.deadline):
                    known: Any = None if self.by_columns else self.__dict__.get("light")
                    known = known or analysed(recipe, self.A, counted=True, job=self.job)
                    if self.by_columns:
                        columns = columns_of(recipe, known.arranged, known.prepared.matrix)
                        if structurally_singular(columns.tosparse()):
                            continue
                        known = replace(known, columns=columns, full_rank=True)
                others = recipes[tried:]
                countable = recipe.backend == "klu" and others and others[0].ordering != COLAMD
                if countable and known.fill is not None and not is_light(known.fill):
                    self.rungs["direct"] = replace(self.rungs["direct"], recipes=others)
                    continue
                self.analysis, self._analysed_for = known, recipe
                self.fill = self.analysis.fill
                return
            except (StructurallySingular, SingularMatrix):
                continue
            except OutOfTime:
                return
            except MemoryError:
                self.too_large = True
                return

    def known(self, recipe: SparseLU) -> Analysis | None:
        """The analysis for a recipe of the direct solve, if `count_fill` has made it."""
        found, other = self.analysis, self._analysed_for
        if found is None or other is None:
            return None
        alike = (recipe.ordering, recipe.backend) == (other.ordering, other.backend)
        plain = alike and found.library is None and not found.matched and not recipe.matching
        return found if plain or recipe is other else None

    def cheapest(self, rungs: list[str], times: dict[str, float]) -> str | None:
        """The rung with the least expected time of those that fit the memory and the time; None if none does.

        times : factors of the expected times of some rungs.
        """
        best, least = None, math.inf
        for rung in sorted(rungs, key=lambda rung: rung != "direct"):  # its time shows that most others take longer
            by = times.get(rung, 1.0)
            if by * self._at_least(rung) < least:
                seconds = self.seconds(rung)
                if by * seconds < least and self.in_time(seconds):
                    best, least = rung, by * seconds
        return best

    def seconds(self, rung: str) -> float:
        """The expected time of a rung in seconds, including its iterations; Inf if its factors do not fit."""
        n, nnz = self.traits.n, self.traits.nnz
        if not self.fits(self.bytes_of(rung)) or (rung == "direct" and self.too_large):
            return math.inf
        if rung == "cudss":  # its plan counts the fill
            return current_on_gpu().cudss_overhead + current_on_gpu().cudss_row * n
        if self.traits.gpu and self._made_on_gpu(rung):
            rates: dict[str, float] = asdict(current_on_gpu())
            waits = self._waits() if rung == "threshold" else 1.0
            return waits * rates[f"{rung}_overhead"] + rates[rung] * nnz
        if rung == "direct":
            if self.by_columns:  # for many long rows the only known bound is that of dense factors
                sparse, dense = RATES.columnwise * nnz, RATES.dense_flop * 2 / 3 * float(n) ** 3
                few = min(sparse, dense) if n <= QUICK else dense
                return sparse if self.short else few
            if self.quick:
                return RATES.quick * nnz
            if self.fill is None:
                return self.analysis_seconds
            return self._of(self.fill)
        return self._at_least(rung) * (self.filling if rung in FILLED else 1.0)

    def estimate(self, rung: str) -> float | None:
        """The expected time of a rung in seconds, set-up included; None if it comes without an estimate: factors that
        cost next to nothing, the recipe asked for, a direct solve whose work was not counted."""
        counted = self.quick or self.fill is not None or (self.by_columns and self.short)
        estimated = counted if rung == "direct" else rung not in ("cheap", "asked")
        seconds = self.seconds(rung) if estimated else math.inf
        return seconds if seconds < math.inf else None

    def _at_least(self, rung: str) -> float:
        """The expected time of incomplete factors on the CPU if they fill in as those of most matrices do; 0 of others.
        A lower bound, without a look at the rows."""
        if self.traits.gpu and self._made_on_gpu(rung):
            return 0.0
        of_entry = {"cheap": RATES.bicgstab * 20, "threshold": RATES.threshold, "multilevel": RATES.multilevel}
        by_ict = rung == "threshold" and self.short and not self.traits.m_matrix
        by_ict = by_ict and isinstance(self.rungs["threshold"].recipes[0], ICT)
        part = BY_ICT * max(1.0, self.traits.n / ICT_ROWS) ** 0.5 if by_ict else 1.0
        return of_entry.get(rung, 0.0) * part * self.traits.nnz

    @cached_property
    def filling(self) -> float:
        """The factor by which factorizations with fill take longer if A has dense rows, which meet many others, or a
        pattern without pairs, such as that of a random network."""
        by_rows = of_pattern(self.A, products) / (COSTLY * self.traits.nnz) if self.traits.dense else 1.0
        return max(1.0, by_rows, UNPAIRED if self.traits.paired < SYMMETRIC_PATTERN else 1.0)

    def _made_on_gpu(self, rung: str) -> bool:
        """Whether the factors of a rung are made on the GPU if A is there; else the host's work takes most time."""
        if rung != "multilevel" or self.traits.n < AT_ONCE:
            return rung == "threshold"
        return self.traits.kind == "general" or self._without_pairs

    @cached_property
    def _without_pairs(self) -> bool:
        """Whether the first level of multilevel factors of this symmetric A needs no pivots of two rows."""
        return definite_scale(self.A) is not None

    def of_iteration(
        self, method: str, entries: float | None = None, *, by_parts: bool = False, levels: int | None = None
    ) -> float:
        """The time of an iteration in seconds, on the device of A.

        entries, levels : of the factors; None for as many as A has.  by_parts : whether they are those of subdomains.
        """
        rates = current_on_gpu() if self.traits.gpu else RATES
        kind = METHODS.get(method)  # None for "refinement"
        products = 1 if kind is None else kind.products
        nnz = self.traits.nnz if entries is None else (self.traits.nnz + entries) / 2  # a product with A, one with M
        if self.traits.gpu and by_parts:
            return products * (current_on_gpu().parts_overhead + current_on_gpu().parts * nnz)
        of_method = {"cg": RATES.parts if by_parts else rates.cg, "bicgstab": rates.bicgstab}
        # More levels take each solve of an iteration longer.
        waits = 1 + products * (self._waits(levels) - 1) if self.traits.gpu else 1.0
        return waits * rates.overhead + of_method.get(method, rates.gmres * products) * nnz

    def _waits(self, levels: int | None = None) -> float:
        """The times that factors take as long on a GPU, which follows their levels one by one.  levels : None for as
        many as A has."""
        return max(1.0, (levels or self.traits.levels) / LEVELS)

    def levels_of(self, factors: Any) -> int | None:
        """The most levels of the triangles of factors of an A on a GPU, if they are known."""
        report = factors.report if factors is not None else None
        return max((solve["levels"] or 0 for solve in getattr(report, "triangular", {}).values()), default=None)

    def entries_read(self, factors: Any) -> int:
        """The entries that a product with factors reads, twice those of L for L L^H; those of A for no factors."""
        if factors is None:
            return self.traits.nnz
        return int(2 * factors.nnz - self.traits.n if isinstance(factors, CholeskyFactors) else factors.nnz)

    def _of(self, fill: Fill) -> float:
        """The time of a direct solve with that fill in seconds."""
        library = self.analysis.library if self.analysis is not None else None
        name, half = (library.name, bool(library.symmetry)) if library is not None else ("superlu", False)
        matched = name == "pardiso" and half and not self.traits.diagonal.usable
        return (MATCHED if matched else 1.0) * self.of_library(fill, name, half=half)

    def of_library(self, fill: Fill, library: str, *, half: bool) -> float:
        """The time of complete factors by a library, in seconds.  half : whether it computes L D L^T."""
        return RATES.of_library(library, self.traits.n, self.traits.nnz, fill, half=half)

    def _entries(self, recipe: Any) -> float:
        """The entries that incomplete factors may have: as the recipe's `nnz` or `fill` tells, else those of A, of
        which subdomains on the CPU hold copies."""
        if isinstance(recipe, Schwarz) and not self.traits.gpu:
            return COPIES * self.traits.nnz
        if getattr(recipe, "nnz", None) is not None:
            return float(count("nnz", recipe.nnz, of=recipe))
        fill = getattr(recipe, "fill", 1.0)
        fill = LOOSE.fill if fill is None else number("fill", fill, infinite=True, of=recipe)
        return min(fill * self.traits.nnz, float(self.traits.n) ** 2)

    def bytes_of(self, rung: str) -> float:
        """The memory that the factors of a rung may take, in bytes: as counted for the direct solve if possible, else
        as `_entries` expects."""
        n, nnz = self.traits.n, self.traits.nnz
        if rung != "direct":
            return self.entry * max(nnz, min(self._entries(recipe) for recipe in self.rungs[rung].recipes))
        if self.quick:
            return self.entry * n**2
        if self.by_columns:
            return self.entry * (min(COLUMN_FILL * nnz, n**2) if self.short else n**2)
        return self.entry * (nnz if self.fill is None else self.fill.nnz)

    def fits(self, size: float) -> bool:
        """Whether that many bytes are free. A few are always taken to be, since asking takes longer than a small
        solve."""
        return (self.limit is None and size <= ALWAYS_FREE) or size <= self.memory

    def require_room(self, recipe: Any) -> None:
        """Raise MemoryError if the factors of a recipe that are not complete may not fit."""
        if not self.fits(size := self.entry * max(self.traits.nnz, self._entries(recipe))):
            most = f"{self.memory:.3g} are free" if self.limit is None else f"memory_limit is {self.limit:.3g}"
            raise MemoryError(f"{recipe!r}: the factors may take {size:.3g} bytes; {most}.")

    @property
    def most(self) -> float:
        """The number of entries that the factors of the direct solve may have; Inf if the caller sets no limit, and the
        expected number fits."""
        return math.inf if self.limit is None and self.fits(self.bytes_of("direct")) else self.most_entries

    @property
    def most_entries(self) -> float:
        """The number of entries that factors may have."""
        return self.memory / self.entry

    def in_time(self, seconds: float) -> bool:
        """Whether work of that many seconds, on an idle machine, ends before the deadline."""
        return now() + seconds < self.deadline

    @cached_property
    def memory(self) -> float:
        """The memory that the factors of a rung may take, in bytes."""
        if self.limit is not None:
            return self.limit
        on_host = free_memory(np.empty(0))
        return USABLE * (min(free_memory(self.A.data), on_host) if self.traits.gpu else on_host)
