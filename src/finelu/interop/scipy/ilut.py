"""`spilu` with the arguments of SciPy's and CuPy's, and factors with the attributes of their SuperLU objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu.arithmetic import ignore_fp_errors
from finelu.device import namespace, on_gpu, to_host
from finelu.errors import MatrixError, ParameterError, UnstableFactors, ZeroPivot, meant
from finelu.factors import Arrangement, Factors, LUFactors
from finelu.matrix import CSR, as_csr, sparse_module
from finelu.matrix.vectors import ldexp
from finelu.ordering import ORDERINGS, ORDERS
from finelu.preconditioners.ilut import ILUT, runs
from finelu.preconditioners.recipe import Recipe
from finelu.preconditioners.threshold import ATTEMPTS, LARGEST, Attempt, Threshold, Trial, checked_threshold
from finelu.scaling import equilibrate, matching
from finelu.validation import choice, count, flag, number

PERMC_SPECS = {None: "auto", "NATURAL": None, "MMD_AT_PLUS_A": "mmd"}
DROP_RULES = ({"basic", "area"}, {"basic"})
FIRST = 1e-4  # the smallest threshold that the search for one tries
FULL = 0.75  # the search ends once L + U have this part of the allowed entries,
CLOSE_TOLS, FEW = 1.1, 7  # or two thresholds this ratio, or after this number of attempts with one that fits
ADVICE = "Try a smaller drop_tol, a larger fill_factor, another permc_spec, or MultilevelILU."


@ignore_fp_errors
def spilu(
    A: Any,
    drop_tol: float | None = None,
    fill_factor: float | None = None,
    drop_rule: str | Sequence[str] | None = None,
    permc_spec: str | None = None,
    diag_pivot_thresh: float | None = None,
    relax: int | None = None,
    panel_size: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> MatchedILUTFactors:
    """An incomplete LU of A like that of SciPy's and CuPy's `spilu`: Pr A Pc ~ L U; only the import changes.

    A : (n, n), anything that `finelu.as_csr` takes; diagonal entries may be missing or zero.
    drop_tol : 1e-4 by default. An entry is dropped if its magnitude is at most drop_tol times the 2-norm of its row of
        the scaled A; SuperLU measures by columns.
    fill_factor : 10 by default, at least 1. L + U get at most fill_factor times A's entries: if drop_tol leaves more, a
        search of about 7 attempts finds a larger one that leaves at least 3/4 of these.
    drop_rule : "basic,area", the default: by drop_tol and fill_factor; "basic": by drop_tol alone.
    permc_spec : None, the order of `finelu.ordering.amd`; "NATURAL"; "MMD_AT_PLUS_A"; or one of finelu's orderings,
        "mmd", "amd", "nd", "rcm", "auto". It orders rows and columns alike, so "COLAMD" is refused.
    diag_pivot_thresh : None: rows are permuted once, before the elimination, so that the product of the diagonal is as
        large as possible; 0: rows are not permuted, apart from their order.
    relax, panel_size : accepted and not used, as they tune SuperLU's supernodes.  options : must be empty.
    Raises ParameterError for values of SuperLU's parameters that have no counterpart; StructurallySingular (a
    MatrixError) if no permutation fills the diagonal; ZeroPivot, naming the row of A, if there are no factors.
    Cost: matching and ordering on the CPU, on one thread, also for A on a GPU; elimination where A is, as in `ILUT`.
    Source: ILUT, with the scaling and matching that `finelu.scaling.matching` names.
    """
    recipe = MatchedILUT(
        drop_tol=1e-4 if drop_tol is None else drop_tol,
        fill_factor=10.0 if fill_factor is None else fill_factor,
        ordering=_ordering(permc_spec),
        matching=_matched(diag_pivot_thresh),
    )
    for name, value in (("relax", relax), ("panel_size", panel_size)):
        if value is not None:
            count(f"spilu: {name}", value, 1)
    if options:
        raise ParameterError(f"spilu: options={options!r} are SuperLU's own and mean nothing here; leave options out.")
    return (recipe if _by_area(drop_rule) else replace(recipe, fill_factor=float("inf"))).factor(A)


def _ordering(permc_spec: Any) -> str | None:
    if permc_spec is None or isinstance(permc_spec, str):
        if permc_spec in PERMC_SPECS:
            return PERMC_SPECS[permc_spec]
        if permc_spec in ORDERS:
            return permc_spec
    offered = ", ".join(repr(name) for name in (*PERMC_SPECS, *ORDERS))
    raise ParameterError(
        f"spilu: permc_spec={permc_spec!r} is not offered, since rows and columns are ordered alike; one of {offered}."
        + meant(permc_spec, (*PERMC_SPECS, *ORDERS))
    )


def _matched(diag_pivot_thresh: Any) -> bool:
    if diag_pivot_thresh is None:
        return True
    if not isinstance(diag_pivot_thresh, bool) and diag_pivot_thresh == 0:
        return False
    raise ParameterError(
        f"spilu: diag_pivot_thresh={diag_pivot_thresh!r}, but rows are permuted before the elimination, not by a "
        "threshold during it; leave it out, or pass 0 to keep the diagonal."
    )


def _by_area(drop_rule: Any) -> bool:
    """Whether fill_factor bounds the entries."""
    if drop_rule is None:
        return True
    names = drop_rule if isinstance(drop_rule, list | tuple) else _text(drop_rule).split(",")
    rules = {_text(name).strip() for name in names}
    if rules not in DROP_RULES:
        raise ParameterError(f"spilu: drop_rule={drop_rule!r} is not offered; 'basic,area' or 'basic' is needed.")
    return "area" in rules


def _text(name: Any) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


@dataclass(frozen=True, kw_only=True, repr=False)
class MatchedILUT(Recipe):
    """ILUT of a matched, scaled and ordered A, with a bound on all entries together; see `spilu`.

    drop_tol, fill_factor : as in `spilu`; float("inf"): no bound.  ordering : one of `finelu.ordering.ORDERINGS`.
    matching : True brings large entries to the diagonal, and scales by the dual variables; False equilibrates A.
    """

    drop_tol: float = 1e-4
    fill_factor: float = 10.0
    ordering: str | None = "auto"
    matching: bool = True

    def check(self) -> None:
        super().check()
        number("drop_tol", self.drop_tol, infinite=True, of=self)
        number("fill_factor", self.fill_factor, 1, infinite=True, of=self)
        choice("ordering", self.ordering, ORDERINGS, of=self)
        flag("matching", self.matching, of=self)

    def factor(self, A: Any) -> MatchedILUTFactors:
        """Raises as `spilu` does; A must have a full diagonal if `matching` is False."""
        return MatchedILUTFactors(self, as_csr(A, diagonal=not self.matching))


class MatchedILUTFactors(Factors):
    """Pr A Pc ~ L U, with SuperLU's attributes and those of all `Factors`.

    shape : (n, n).
    L, U : (n, n); on the host SciPy's csc_array, on a GPU CuPy's csr_matrix, as in these packages. L has a unit
        diagonal, which is stored.
    perm_r, perm_c : (n,) int32; row i of A is row perm_r[i] of Pr A Pc, column j of A its column perm_c[j].
    nnz : entries of L and U, the diagonal counted once.
    solve(rhs, trans) : as SuperLU's.
    update : keeps the permutations and the scaling, and factors anew.
    report : that of `ILUT`, with the drop_tol that was used.
    """

    well_formed = True
    _inner: LUFactors | None = None

    @property
    def report(self) -> Any:
        return self._report if self._inner is None else self._inner.report

    @report.setter
    def report(self, report: Any) -> None:
        self._report = report

    def __init__(self, recipe: MatchedILUT, A: CSR):
        super().__init__(recipe, A)
        xp, host = namespace(A.data), A.on(np)
        columns = np.arange(A.n)
        if recipe.matching:
            found = matching(host, power_of_two=True)
            columns, scales = found.columns, (found.row_scale, found.column_scale)
        else:
            scales = equilibrate(host)
        order = np.arange(A.n)
        if recipe.ordering is not None:
            order = ORDERS[recipe.ordering](as_csr(host.tosparse()[:, columns], diagonal=False))
        # Row i and column j of the factors are rows[i] and columns[j] of A; the scales are in their order.
        rows, columns = order, columns[order]
        self._exponents = tuple(np.frexp(scale[at])[1] - 1 for scale, at in zip(scales, (rows, columns), strict=True))
        index = np.int32 if A.indices.dtype == np.int32 else np.int64
        self._arranged = Arrangement(rows.astype(index), columns.astype(index), scales[0][rows], scales[1][columns]).on(
            xp
        )
        self._refresh(A)

    def _refresh(self, A: CSR) -> None:
        rows, columns = to_host(self._arranged.rows), to_host(self._arranged.columns)
        S = sp.csr_matrix((to_host(A.data), to_host(A.indices), to_host(A.indptr)), shape=A.shape)
        S = S[rows][:, columns].tocoo()
        r, c = self._exponents
        scaled = sp.csr_matrix((ldexp(S.data, r[S.row] + c[S.col]), (S.row, S.col)), shape=A.shape)
        if on_gpu(A.data):
            scaled = sparse_module(A.data).csr_matrix(scaled)
        try:
            if self._inner is None:
                self._inner = _bounded_ilut(self.recipe, A.nnz, scaled)
            else:
                self._inner.update(scaled)
        except ZeroPivot as error:
            row = int(rows[error.row])
            value = ldexp(np.asarray([to_host(error.value)]), -(r[error.row] + c[error.row]))[0]
            raise ZeroPivot(self.recipe, row, value, advice=ADVICE) from None
        except UnstableFactors:
            raise UnstableFactors(self.recipe, advice=ADVICE) from None

    def _apply(self, R: Any, trans: str) -> Any:
        assert self._inner is not None
        return self._arranged.scatter_scaled(self._inner.solved(self._arranged.gather_scaled(R, trans), trans), trans)

    @property
    def nnz(self) -> int:
        assert self._inner is not None
        return self._inner.nnz

    @property
    def perm_r(self) -> Any:
        return _inverse(self._arranged.rows)

    @property
    def perm_c(self) -> Any:
        return _inverse(self._arranged.columns)

    @property
    def L(self) -> Any:
        r, _ = self._exponents
        return self._unscaled("L", -r, r)

    @property
    def U(self) -> Any:
        r, c = self._exponents
        return self._unscaled("U", -r, -c)

    def _unscaled(self, name: str, left: np.ndarray, right: np.ndarray) -> Any:
        self._require_valid()
        S = to_host(getattr(self._inner, name)).tocoo()
        with np.errstate(over="ignore"):
            data = ldexp(S.data, left[S.row] + right[S.col])
        if not np.isfinite(data).all():
            raise MatrixError(
                f"{self.recipe!r}: {name} without the scaling has entries too large for {self.dtype}; scale A, or use "
                "solve, which keeps the scaling apart."
            )
        place = (S.row.astype(np.int32), S.col.astype(np.int32))
        if on_gpu(self.pattern.data):
            return sparse_module(self.pattern.data).csr_matrix(sp.csr_matrix((data, place), shape=self.shape))
        return sp.csc_array((data, place), shape=self.shape)


def _bounded_ilut(recipe: MatchedILUT, nnz: int, A: Any) -> LUFactors:
    """ILUT with the threshold of the recipe, or with a larger one if that leaves more entries than are allowed.

    nnz : number of entries to which fill_factor refers.
    """
    most = recipe.fill_factor * nnz
    inner = ILUT(drop_tol=recipe.drop_tol, fill=float("inf"))
    A = checked_threshold(inner, A)
    numeric = Threshold(inner, runs, partial(_within, LARGEST if most >= LARGEST else int(most)))
    return LUFactors(inner, A, numeric, numeric.factorize(A), sweeps=inner.sweeps, trial=True)


def _within(most: int, recipe: ILUT, trial: Trial, guess: float) -> tuple[Attempt, int]:
    """The attempt with at most `most` entries that is kept, or broke down, and the number of attempts."""
    made = trial(recipe.drop_tol, most)
    if made.good or made.broken:
        return made, 1
    made, attempts = _fitting(trial, most, made.drop_tol)
    if not made.good and not made.broken:
        raise ParameterError(
            f"spilu: no drop_tol that was tried leaves at most {most} entries in L + U; raise fill_factor."
        )
    return made, attempts + 1


def _fitting(attempt: Callable[[float, int], Attempt], most: int, too_fine: float) -> tuple[Attempt, int]:
    """The attempt with a threshold above `too_fine` that leaves at most `most` entries, and at least FULL of them if
    few attempts find one; and the number of attempts. Steps of factor 10, then bisection of the logarithm."""
    low, high, best, drop_tol = too_fine, np.inf, None, max(10 * too_fine, FIRST)
    for attempts in range(1, ATTEMPTS + 1):
        made = attempt(drop_tol, most)
        if made.broken:
            return best or made, attempts
        if made.good:
            high, best = drop_tol, made
            if made.count >= FULL * most:
                break
        else:
            low = drop_tol
        if best is not None and (high < CLOSE_TOLS * low or attempts >= FEW):
            break
        drop_tol = float(np.sqrt(max(low, high / 100) * high)) if best else 10 * drop_tol
    return best or made, attempts


def _inverse(order: Any) -> Any:
    """The place of each row of A, int32."""
    xp = namespace(order)
    inverse = xp.empty(order.size, np.int32)
    inverse[order] = xp.arange(order.size, dtype=np.int32)
    return inverse
