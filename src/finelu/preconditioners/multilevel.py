"""MultilevelILU: an incomplete LU by levels whose inverse factors stay bounded (the ILUPACK system).

J. I. Aliaga, E. Dufrechou, P. Ezzatti, E. S. Quintana-Ortí: An efficient GPU version of the preconditioned GMRES
method, 2019, section 2; M. Bollhöfer, Y. Saad: Multilevel preconditioners constructed from inverse-based ILUs, 2006.

A level scales and orders its matrix, and factors it as far as that goes well:

    P_r D_r A D_c P_c = ( B  F ) ~ ( L_B     ) ( D_B   ) ( U_B  U_F )
                        ( G  C )   ( L_G  I  ) (     S ) (       I  )

S, what is left of the rows and columns that were put off, is the matrix of the next level. With low_memory, L_G and U_F
make S and are thrown away; a level is applied by two solves with L_B D_B U_B and a product each with G and F, equation
(11). Else they are kept, for one solve each.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
import scipy.linalg
import scipy.sparse as sp

from finelu.device import namespace, on_gpu, synchronize
from finelu.errors import (
    FineluError,
    MatrixError,
    ParameterError,
    StructurallySingular,
    UnstableFactors,
    ZeroPivot,
    meant,
)
from finelu.factors import USELESS, Factors, checked, on_host, probe, unstable
from finelu.kernels import kernels_for
from finelu.matrix import CSR, as_csr, is_number, sparse_module
from finelu.matrix.traits import differing, symmetry
from finelu.ordering import ORDERINGS, ORDERS, parts
from finelu.preconditioners.recipe import Recipe
from finelu.scaling import equilibrate, matching, require_matching, times_power
from finelu.triangular import TriangularSolver

PIVOT_TOL = 0.01  # of the rest of its row and column that a pivot must exceed
SCHUR_TOL = 0.1  # times drop_tol, of the largest in its row and in its column: what is dropped of S
SINGULAR = 100.0  # rounding errors: a pivot, or rcond, below tells of an A that may be singular
LEAST_GAIN = 0.1  # of its rows that a level should factor; else the next one puts off less
ORDERED_ROWS = 28_000  # of a triangle on a GPU: beyond, its own order was up to 3 times as fast as level order
DENSE_SHARE = 0.25  # of S that is stored, from which on it is taken for dense
DENSE_MOST = 6000  # rows that LAPACK is given at the very most


@dataclass(frozen=True, kw_only=True, repr=False)
class MultilevelILU(Recipe):
    """Inverse-based multilevel incomplete LU: robust on indefinite, badly scaled, saddle-point and circuit systems.

    drop_tol : an entry of L or U is dropped where its magnitude, times the estimated growth of the inverse factor in
        its row or column, is at most drop_tol. 0 drops nothing.
    condest : a row and column is put off to the next level where its estimated norm in the inverse factors is larger.
        float("inf"): only bad pivots are put off. Small: more levels, safer factors.
    fill : entries that a row of U or a column of L may have, relative to the mean row of the matrix of its level.
        float("inf"): no limit.
    ordering : of each level: "auto", "mmd" (minimum degree of SciPy's SuperLU), "amd" (needs scikit-sparse), "nd"
        (nested dissection, needs pymetis), "rcm", or None. "auto" is "mmd", but "rcm" where the pattern has no small
        separators, so that minimum degree would be slow and save nothing: if, of the graph without rows of over 10
        mean lengths and then without those of fewer than 8 neighbours, one level of a breadth-first search from the
        periphery holds w rows, at least a twelfth of all, and w^2 is over 20 times the entries (`ordering.automatic`).
    matching : permute the columns so that the product of the diagonal is the largest that can be, and scale by its dual
        variables, so that the diagonal is 1 and nothing is larger. Without it rows and columns are equilibrated.
    symmetric : make a symmetric (Hermitian, complex symmetric) M with 1x1 and 2x2 pivots for an A that is, as `minres`,
        `sqmr` and `cg` need it. None: if A is; True: an error if it is not.
    parts : independent parts of A, found by nested dissection, that threads factor at the same time; what couples them
        is left to the next level (needs pymetis if more than 1). M depends on it, not on the number of threads.
    dense_size : what is left is factored by LAPACK once it has no more rows than this, or is a quarter full.
    levels : at most so many, the last one being LAPACK's, which is not given more than 6000 rows.
    low_memory : keep F and G, which are parts of A, and apply M by equation (11), with two solves each with L_B and
        U_B a level. Else L_G and U_F are kept, which have more entries, for one solve each: equations (6) to (8).
        None: on the CPU, but not on a GPU, where a solve takes its time however few entries it has.
    shift, triangular, precision : as in ILU0.
    Cost: on the CPU, for A on the GPU too, where M is applied then; sequential but for `parts`. To apply it: per level
    two solves each with L_B and with U_B, and a product each with G and F. `update` keeps the order of the first level.
    """

    drop_tol: float = 1e-3
    condest: float = 5.0
    fill: float = 10.0
    ordering: str | None = "auto"
    matching: bool = True
    symmetric: bool | None = None
    low_memory: bool | None = None
    parts: int = 1
    dense_size: int = 500
    levels: int = 30
    shift: float = 0.0
    triangular: str = "auto"
    precision: str | None = None

    def factor(self, A) -> MultilevelFactors:
        """Factor A (n, n), anything that `finelu.as_csr` takes; diagonal entries may be missing. A is not written.

        Raises StructurallySingular (a MatrixError) where no permutation fills the diagonal, ZeroPivot where A is
        singular.
        """
        return MultilevelFactors(self, _checked(self, A))


def _checked(recipe: MultilevelILU, A) -> CSR:
    def number(name: str, least: float, *, finite: bool = False, whole: bool = False) -> None:
        value = getattr(recipe, name)
        good = is_number(value) and value >= least and (not whole or isinstance(value, int | np.integer))
        if not good or (finite and not np.isfinite(value)):
            what = "an integer" if whole else "a finite number" if finite else "a number"
            raise ParameterError(f"{recipe!r}: {name} must be {what} >= {least:g}.")

    number("drop_tol", 0, finite=True)
    number("condest", 1)
    number("fill", 0)
    number("shift", 0, finite=True)
    number("parts", 1, whole=True)
    number("dense_size", 0, whole=True)
    number("levels", 1, whole=True)
    if recipe.ordering not in ORDERINGS:
        raise ParameterError(
            f"{recipe!r}: ordering must be one of {', '.join(map(repr, ORDERINGS))}."
            + meant(recipe.ordering, ORDERINGS)
        )
    if not isinstance(recipe.matching, bool):
        raise ParameterError(f"{recipe!r}: matching must be True or False.")
    if not isinstance(recipe.symmetric, bool | None) or not isinstance(recipe.low_memory, bool | None):
        raise ParameterError(f"{recipe!r}: symmetric and low_memory must be True, False or None.")
    A = checked(recipe, A, diagonal=recipe.shift > 0)
    offered = (*kernels_for(A.data).triangular.TRIANGULAR_METHODS, "auto")
    if recipe.triangular not in offered:
        raise ParameterError(
            f"{recipe!r}: triangular must be one of {', '.join(offered)}." + meant(recipe.triangular, offered)
        )
    return A


class MultilevelFactors(Factors):
    """M of equation (1), level by level.

    report : levels, a dict for each: n, nnz_A, pivots, pairs (2x2 pivots), put_off (by estimate, by pivot), interface,
    nnz (entries of L_B, D_B, U_B, F and G; with low_memory=False of D_B U_F for F and of L_G for G), bytes, estimate
    (the largest, of the norms of the inverses of L and U), smallest_pivot (the reciprocal of the largest entry of
    D_B^-1, where scaling has made the entries of A about 1), dropped (by tolerance, for want of room), seconds; the
    last, LAPACK's: n, nnz, bytes, rcond. Besides: kind (general, symmetric, hermitian), low_memory (True, False),
    bytes, fill (entries kept over A's), factored_on, applied_on, seconds. A that is nearly singular is factored; a
    warning tells where a smallest_pivot, or rcond, is below 100 eps of the dtype. probe, see `finelu.factors.probe`:
    where it is beyond 10, the factors without the matching are tried too; matching (True, False), of those that were
    taken, and a warning tell it.
    """

    _bound = ("_lock", "_recorded")
    _levels: list[_Level]
    _last: dict[str, Any]  # the dense inverse, and its transposes once asked for
    _recorded: dict[str, Any]  # on a GPU: the application as one graph, of each kind

    def __init__(self, recipe: MultilevelILU, A: CSR):
        super().__init__(recipe, A)
        self._low_memory = not on_gpu(A.data) if recipe.low_memory is None else recipe.low_memory
        self._first: _Order | None = None
        self._matching = recipe.matching
        self._refresh(A)

    def __setstate__(self, state) -> None:
        super().__setstate__(state)
        self._recorded = {}

    def _refresh(self, A: CSR) -> None:
        """Levels with the matching that the last ones had; where the probe finds them useless, without it, or with it
        again, and the better of the two."""
        begin, asked = perf_counter(), self.recipe.matching
        self._make(A)
        size, finite = probe(A, lambda v: self._solve(v, "N", 0))
        first, tried, other = size, self._matching, ""
        if not size <= USELESS and asked:
            if not finite:  # of no use, whatever comes
                self._levels, self._last = [], {}
            state = self.__dict__ | {"report": self.report}
            self.report, self._first, self._matching = {}, None, not self._matching
            try:
                self._make(A)
                size, found_finite = probe(A, lambda v: self._solve(v, "N", 0))
            except (FineluError, ArithmeticError, MemoryError, np.linalg.LinAlgError) as error:
                size, found_finite = np.inf, False
                other = f"; {_with(not tried)} the matching there are none: {str(error) or type(error).__name__}"
            if size < first or (found_finite and not finite):
                finite = found_finite
            else:
                self.__dict__.update(state)
                size = first
        if not finite:
            raise UnstableFactors(self.recipe, _advice(self.recipe))
        self.report |= {"probe": size, "matching": self._matching, "seconds": perf_counter() - begin}
        if self._matching != tried:
            self._warn(
                f"{_with(tried)} the matching ||A M^-1 v - v|| was {first:.1e} ||v|| for a random v = A y; of the "
                f"factors {_with(self._matching)} it, which were taken, it is {size:.1e}"
            )
        elif size > USELESS:
            self._warn(unstable(size) + other)

    def _make(self, A: CSR) -> None:
        recipe, begin = replace(self.recipe, matching=self._matching), perf_counter()
        S = on_host(A, recipe.shift)
        if not np.isfinite(S.data).all():
            raise MatrixError(f"{recipe!r}: values of A are too large for {A.dtype}; scale A, or leave precision out.")
        # The order that update keeps has other columns than rows, perhaps, where A was not symmetric.
        kind, S = ("general", S) if self.report.get("kind") == "general" else _kind(recipe, S)
        if not recipe.matching or _is_last(recipe, S, 0):  # else the matching of the first level tells
            require_matching(S)
        self._levels = []
        facts: list[dict[str, Any]] = []
        rows, condest = np.arange(A.n), recipe.condest
        while S.n > 0 and not _is_last(recipe, S, len(facts)):
            level_begin = perf_counter()
            order, scales = _order(recipe, S, kind, rows, not facts, None if facts else self._first)
            self._first = self._first or order
            level, S, left = _factored(recipe, S, kind, order, scales, condest, rows, self._low_memory)
            if level is None:
                break
            rows = rows[order.rows[left]]
            if level.facts["pivots"] < LEAST_GAIN * level.facts["n"]:
                condest *= 2
            self._levels.append(level.moved(A.data, recipe.triangular))
            facts.append(level.facts | {"seconds": perf_counter() - level_begin})
        inverse, fact = _dense(recipe, S, kind, rows)
        self._last = {"N": namespace(A.data).asarray(np.ascontiguousarray(inverse))}
        self._recorded = {}
        facts.append(fact)
        kept = sum(fact["nnz"] for fact in facts)
        device = "GPU" if on_gpu(A.data) else "CPU"
        self._kept = kept
        self.report |= {
            "kind": kind,
            "low_memory": self._low_memory,
            "levels": facts,
            "bytes": sum(fact["bytes"] for fact in facts),
            "fill": kept / A.nnz,
            "factored_on": "CPU",
            "applied_on": device,
            "seconds": perf_counter() - begin,
        }
        self.report.pop("warning", None)
        *levels, last = facts
        signs = [(fact["smallest_pivot"], f"the smallest pivot of level {k}") for k, fact in enumerate(levels, 1)]
        least, what = min([*signs, (last["rcond"], "the reciprocal condition of what the levels leave")])
        if least < SINGULAR * np.finfo(A.dtype).eps:
            self.report["warning"] = (
                f"A is singular to working precision, or nearly: {what} is {least:.1e}, and M amplifies rounding as "
                f"much. Check A, or try a shift."
            )

    @property
    def nnz(self) -> int:
        """Entries of all L_B, D_B, U_B, F and G (or what is kept for these two), and of the dense last level."""
        return self._kept

    def _apply(self, R, trans: str):
        if self.report["kind"] != "general" and trans != "N":  # M is its own transpose, or conjugate transpose
            if self.dtype.kind != "c" or (self.report["kind"] == "hermitian") == (trans == "H"):
                return self._apply(R, "N")
            return self._apply(R.conj(), "N").conj()
        if not on_gpu(R) or R.ndim > 1:
            return self._solve(R, trans, 0)
        with self._lock:  # the recorded graph has one place for what goes in and what comes out
            if trans not in self._recorded:
                self._solve(R, trans, 0)  # what this makes at first use, and keeps, is none of the graph's
                record = kernels_for(R).recording.Recorded
                self._recorded[trans] = record(lambda r: self._solve(r, trans, 0), R.size, self.dtype)
            return self._recorded[trans](R)

    def _solve(self, R, trans: str, depth: int):
        """Equation (11), or equations (6) to (8), from this level on."""
        kernels = kernels_for(R)
        if depth == len(self._levels):
            return kernels.products.dense_product(self._inverse_of(trans), R)
        level = self._levels[depth]
        r = level.enter(R, trans)
        r_B, r_C = r[: level.pivots], r[level.pivots :]
        y_B = level.first(r_B, trans)
        if r_C.shape[0] == 0:
            return level.leave(level.last(y_B, trans), None, None, trans)
        F, G = level.F(trans), level.G(trans)
        if self._low_memory:
            s_B = level.last(y_B, trans)
            w_C = self._solve(kernels.products.subtract_product(G, s_B, r_C), trans, depth + 1)
            t_B = level.last(level.first(kernels.products.subtract_product(F, w_C), trans), trans)
            return level.leave(s_B, t_B, w_C, trans)
        w_C = self._solve(kernels.products.subtract_product(G, y_B, r_C), trans, depth + 1)
        w_B = level.last(kernels.products.subtract_product(F, w_C, y_B), trans)
        return level.leave(w_B, None, w_C, trans)

    def _inverse_of(self, trans: str):
        if trans not in self._last:
            inverse = namespace(self._last["N"]).ascontiguousarray(_transposed(self._last["N"], trans))
            synchronize(inverse)  # another thread may use it on another stream
            self._last[trans] = inverse
        return self._last[trans]


def _with(matching: bool) -> str:
    return "with" if matching else "without"


def _kind(recipe: MultilevelILU, S: CSR) -> tuple[str, CSR]:
    """What S is, and S, whose triangles are made the same where only rounding sets them apart."""
    found = "general" if recipe.symmetric is False else symmetry(S)
    if found != "general":
        A = S.tosparse()
        mirrored = _transposed(A, "H" if found == "hermitian" else "T").tocsr()
        if not (A - mirrored).data.any():
            return found, S
        return found, as_csr(A / 2 + mirrored / 2, diagonal=False)
    if recipe.symmetric:
        where = differing(S.tosparse(), transposed=True)
        raise MatrixError(f"{recipe!r}: A is neither symmetric nor Hermitian: {where}; leave symmetric out.")
    return "general", S


def _is_last(recipe: MultilevelILU, S: CSR, done: int) -> bool:
    """Whether S is LAPACK's."""
    small = S.n <= recipe.dense_size or (S.n <= DENSE_MOST and S.nnz > DENSE_SHARE * S.n**2)
    if not small and done >= recipe.levels - 1:
        if S.n > DENSE_MOST:
            raise MatrixError(
                f"{recipe!r}: {S.n} rows are left after {done} levels, more than are given to LAPACK; allow more "
                f"levels, or a larger condest."
            )
        return True
    return small


# ---- one level: scaled and ordered, factored as far as it goes well


@dataclass(frozen=True, eq=False)
class _Order:
    """Row i, column j of a level are rows[i], columns[j] of its matrix.

    pairs (n,) uint8 : 1 where i and i + 1 are to be a 2x2 pivot.  starts : of the parts, see `crout`.
    """

    rows: np.ndarray
    columns: np.ndarray
    pairs: np.ndarray
    starts: np.ndarray


def _order(recipe: MultilevelILU, S: CSR, kind: str, numbers, first: bool, kept: _Order | None):
    """P_r and P_c, those that were `kept` if any, else from the matching and the ordering of what it makes; and the
    exponents of D_r and D_c.  first : S is A itself.  numbers : of its rows in A, for errors."""
    n, general = S.n, kind == "general"
    columns, rows, pairs = np.arange(n), np.arange(n), np.zeros(n, np.uint8)
    if recipe.matching and (general or not _definite(S)):
        try:
            found = matching(S, symmetric=not general, power_of_two=True)
        except StructurallySingular as singular:
            if first:
                raise
            raise ZeroPivot(recipe, numbers[singular.row], 0.0, "is all that is left of it", _advice(recipe)) from None
        scales = found.row_scale, found.column_scale
        if general:
            columns = found.columns
        else:
            rows, pairs = np.asarray(found.order), np.asarray(found.first, np.uint8)
            columns = rows
    else:
        scales = equilibrate(S, symmetric=not general)
    exponents = _exponents(scales)
    if kept is not None:
        return kept, exponents
    # two rows that are to be one pivot are one vertex of the graph that is ordered
    begins = np.flatnonzero(np.concatenate([[True], pairs[:-1] == 0]))
    sizes = np.diff(np.append(begins, n))
    vertex, place = np.empty(n, np.int64), np.empty(n, np.int64)
    vertex[rows] = np.repeat(np.arange(begins.size), sizes)
    place[columns] = rows
    ends = np.repeat(vertex, np.diff(S.indptr)), vertex[place[S.indices]]
    graph = sp.coo_matrix((np.ones(S.nnz), ends), shape=(begins.size,) * 2).tocsr()
    order, starts = _ordered(recipe, as_csr(graph, diagonal=False), recipe.parts if first else 1)
    stops = np.concatenate([[0], np.cumsum(sizes[order])])
    flat = np.repeat(begins[order] - stops[:-1], sizes[order]) + np.arange(n)
    pairs = pairs[flat]
    pairs[stops[starts[-1]] :] = 0  # the interface has no pivots
    return _Order(rows[flat], columns[flat], pairs, stops[starts]), exponents


def _ordered(recipe: MultilevelILU, graph: CSR, count: int):
    """(order, starts of the parts): the ordering, of each part by itself if there are several."""

    def inside(S) -> np.ndarray:
        return np.arange(S.n) if recipe.ordering is None or S.n < 3 else ORDERS[recipe.ordering](S)

    if count == 1:
        return inside(graph), np.array([0, graph.n])
    order, starts = parts(graph, min(count, graph.n))
    S, pieces = graph.tosparse(), []
    for begin, end in zip(starts, [*starts[1:], graph.n], strict=True):
        piece = order[begin:end]
        pieces.append(piece[inside(as_csr(S[piece][:, piece], diagonal=False))] if piece.size else piece)
    return np.concatenate(pieces), starts


def _factored(
    recipe: MultilevelILU, S: CSR, kind: str, order: _Order, exponents, condest: float, numbers, low_memory: bool
):
    """(the level, the matrix of the next, its rows in the order of this one); None and S itself without a pivot."""
    A = _permuted(S, order, exponents)
    most = A.n if np.isinf(recipe.fill) else int(min(np.ceil(recipe.fill * A.nnz / A.n), A.n))
    room, limits = np.full(A.n, most), (recipe.drop_tol, condest, PIVOT_TOL)
    interface, tolerance = int(order.starts[-1]), SCHUR_TOL * recipe.drop_tol
    kernels = kernels_for(A.data)
    facts: dict[str, Any] = {"n": A.n, "nnz_A": A.nnz, "interface": A.n - interface}
    if kind == "general":
        made = kernels.crout.crout(A, as_csr(A.tosparse().T, diagonal=False), order.starts, *limits, room, room)
        left = kernels.crout.schur_complement(A, made, tolerance)
        facts["estimate"] = max(made.l_estimate, made.u_estimate)
        facts["pairs"], facts["dropped"] = 0, (made.dropped_by_tolerance, made.dropped_by_fill_limit)
        rows = left.rows
    else:
        hermitian = kind == "hermitian" and A.dtype.kind == "c"
        made = kernels.crout_symmetric.crout_symmetric(A, order.pairs, order.starts, *limits, room, hermitian)
        left = kernels.crout_symmetric.schur_complement_symmetric(A, made, tolerance, hermitian)
        facts["estimate"] = made.largest_estimate
        facts["pairs"], facts["dropped"] = made.pairs_taken, (made.dropped_by_tolerance, made.dropped_by_fill_limit)
        rows = left.numbers
    facts["put_off"] = made.deferred_by_estimate, made.deferred_by_pivot
    if left.first_bad >= 0:
        raise ZeroPivot(
            recipe, numbers[order.rows[rows[left.first_bad]]], np.inf, "is what is left of it", _advice(recipe)
        )
    pivots = np.setdiff1d(np.arange(A.n), rows, assume_unique=True)
    facts["pivots"] = int(pivots.size)
    if pivots.size == 0:  # another level would have none either
        if S.n > DENSE_MOST:
            raise MatrixError(
                f"{recipe!r}: none of the {S.n} rows that are left has a pivot, and they are more than are given to "
                f"LAPACK; use matching=True, or factor A anew after an update."
            )
        return None, S, rows
    level = _Level(kind, A, made, pivots, rows, order, exponents, facts, low_memory)
    inverse = 1 / made.d[pivots] if level._D is None else level._D.data
    facts["smallest_pivot"] = float(1 / abs(inverse).max())
    rest = sp.csr_matrix((left.data, left.indices, left.indptr), shape=(rows.size, rows.size))
    return level, as_csr(rest, diagonal=False) if rows.size else _nothing(A), rows


def _advice(recipe: MultilevelILU) -> str:
    more = f"a smaller drop_tol, a larger condest, or matching={not recipe.matching}"
    return f"A is singular, or nearly; otherwise try {more}."


def _nothing(A: CSR) -> CSR:
    none = np.zeros(0, A.indices.dtype)
    return CSR(np.zeros(1, A.indptr.dtype), none, np.zeros(0, A.dtype), none)


def _permuted(S: CSR, order: _Order, exponents) -> CSR:
    """P_r D_r S D_c P_c; nothing is rounded but what is lost below the smallest number."""
    scaled = _scaled(S, *exponents)
    place = np.empty(S.n, S.indices.dtype)
    place[order.columns] = np.arange(S.n)
    columns = sp.csr_matrix((scaled.data, place[S.indices], S.indptr), shape=S.shape)
    return as_csr(columns[order.rows], diagonal=False)


def _exponents(scales) -> tuple[np.ndarray, ...]:
    """Of powers of two."""
    return tuple(np.frexp(scale)[1] - 1 for scale in scales)


def _scaled(S: CSR, r, c) -> CSR:
    """S with s_ij times 2^(r_i + c_j)."""
    return S.with_values(times_power(S.data, np.repeat(r, np.diff(S.indptr)) + c[S.indices]))


def _definite(S: CSR) -> bool:
    """Whether S may be positive definite: so are all matrices of two of its rows and columns, but for rounding."""
    if S.missing:
        return False
    d = S.data[S.diag]
    if (d.real <= 0).any() or (d.imag != 0).any():
        return False
    root = np.sqrt(d.real)
    most = np.repeat(root, np.diff(S.indptr)) * root[S.indices]
    return bool((abs(S.data) <= most * (1 + 8 * np.finfo(S.dtype).eps)).all())


def _transposed(matrix, trans: str):
    return matrix if trans == "N" else matrix.T if trans == "T" else matrix.conj().T


# ---- what is kept of a level, where it is applied


class _Level:
    """L_B D_B U_B, F and G, and the way in and out: D and P, of one level.

    facts : what the report says of it.
    """

    def __init__(self, kind, A: CSR, made, pivots, rest, order: _Order, exponents, facts: dict[str, Any], low_memory):
        self.pivots, self.facts = pivots.size, facts
        self._hermitian = kind == "hermitian"
        r, c = exponents
        numbers = np.concatenate([pivots, rest])
        real = A.data.real.dtype
        index = A.indices.dtype
        self._rows, self._columns = order.rows[numbers].astype(index), order.columns[numbers].astype(index)
        self._row_scale, self._column_scale = (
            np.ldexp(np.ones(A.n, real), part) for part in (r[self._rows], c[self._columns])
        )
        places = [_places(A.n, pivots)] + ([] if low_memory else [_places(A.n, rest)])  # of the columns of B, and of C
        d = made.d[pivots]
        D = sp.diags_array(d)
        if kind == "general":
            L = [_block(made.l_indptr, made.l_indices, made.l_data, pivots, *place).T for place in places]
            U = [_block(made.u_indptr, made.u_indices, made.u_data, pivots, *place) for place in places]
            self._D = None
            self._B = (L[0] + D @ (U[0] + sp.eye_array(d.size, dtype=A.dtype))).tocsr()
        else:
            e = made.e[pivots]
            U = [_block(made.indptr, made.indices, made.data, pivots, *place) for place in places]
            L = [_transposed(block, "H" if self._hermitian else "T") for block in U]
            D = D + sp.diags_array([e[:-1], (e.conj() if self._hermitian else e)[:-1]], offsets=[1, -1])
            self._D = _inverse(d, e, self._hermitian)
            self._B = (U[0] + sp.eye_array(d.size, dtype=A.dtype)).tocsr()
        S = A.tosparse()
        if low_memory:
            beside, under = S[pivots][:, rest].tocsr(), S[rest][:, pivots].tocsr()
        else:
            beside, under = (D @ U[1]).tocsr(), L[1].tocsr()
        self._F, self._G = {"N": beside}, {"N": under}
        kept = [self._B, beside, under] + ([] if self._D is None else [self._D])
        self.facts["nnz"] = sum(matrix.nnz for matrix in kept)
        vectors = (self._rows, self._columns, self._row_scale, self._column_scale)
        self.facts["bytes"] = sum(x.nbytes for x in vectors) + sum(
            x.nbytes for matrix in kept for x in (matrix.indptr, matrix.indices, matrix.data)
        )

    def moved(self, like, method: str) -> _Level:
        """Move to the device of `like`, and analyse the triangles. Returns self."""
        xp, sparse = namespace(like), sparse_module(like)
        for name in ("_rows", "_columns", "_row_scale", "_column_scale"):
            setattr(self, name, xp.asarray(getattr(self, name)))
        if on_gpu(like):
            if self._rows.size > self.pivots:  # else F and G have no entries, and are not used
                self._F, self._G = ({"N": sparse.csr_matrix(x["N"])} for x in (self._F, self._G))
            self._D = self._D if self._D is None else sparse.csr_matrix(self._D)
            self._B = sparse.csr_matrix(self._B)
        self._triangles, self._method = as_csr(self._B), method
        if method == "auto" and on_gpu(like) and self.pivots > ORDERED_ROWS:
            self._method = "sync_free"
        self._solvers: dict[tuple[bool, bool, str], TriangularSolver] = {}
        for key in self._sequence("N"):
            self._solver(key)
        return self

    def enter(self, R, trans: str):
        """P_r D_r R (P_c^T D_c R for a transpose)."""
        rows, scale = (self._rows, self._row_scale) if trans == "N" else (self._columns, self._column_scale)
        return kernels_for(R).vectors.gather_scaled(rows, scale, R)

    def leave(self, s_B, t_B, w_C, trans: str):
        """D_c P_c (s_B - t_B, w_C) (D_r P_r^T for a transpose)."""
        places, scale = (self._columns, self._column_scale) if trans == "N" else (self._rows, self._row_scale)
        return kernels_for(s_B).vectors.scatter_scaled(places, scale, s_B, t_B, w_C)

    def F(self, trans: str):
        """F of the matrix that trans means: that of the transpose is G^T."""
        return self._of(self._F if trans == "N" else self._G, trans)

    def G(self, trans: str):
        return self._of(self._G if trans == "N" else self._F, trans)

    @staticmethod
    def _of(matrices, trans: str):
        if trans not in matrices:
            matrix = _transposed(matrices["N"], trans).tocsr()
            synchronize(matrix.data)
            matrices[trans] = matrix
        return matrices[trans]

    def first(self, r, trans: str):
        """L_B^-1 r; of the transpose of B = L_B D_B U_B, (D_B U_B)^-T r, and so on."""
        return self._solver(self._sequence(trans)[0]).solve(r)

    def last(self, y, trans: str):
        """(D_B U_B)^-1 y, so that last(first(r)) is B^-1 r."""
        if self._D is not None:
            y = kernels_for(y).products.subtract_product(self._D, y)
        return self._solver(self._sequence(trans)[1]).solve(y)

    def _sequence(self, trans: str):
        """The solves of B^-1, as (lower, unit, trans)."""
        if self._D is not None:
            return (False, True, "H" if self._hermitian else "T"), (False, True, "N")
        lower, upper = (True, True, trans), (False, False, trans)
        return (lower, upper) if trans == "N" else (upper, lower)

    def _solver(self, key) -> TriangularSolver:
        if key not in self._solvers:
            lower, unit, trans = key
            solver = TriangularSolver(
                self._triangles, lower=lower, unit=unit, trans=trans, method=self._method, check=False
            )
            synchronize(self._triangles.data)
            self._solvers[key] = solver
        return self._solvers[key]


def _places(n: int, rows):
    """Where each of n rows is in `rows`, or -1; and how many those are."""
    place = np.full(n, -1)
    place[rows] = np.arange(rows.size)
    return place, rows.size


def _block(indptr, indices, data, pivots, place, width: int):
    """The entries of rows of pivots in the columns that have a place, by rows."""
    columns = place[indices]
    kept = columns >= 0
    counts = np.concatenate([[0], np.cumsum(kept)])
    starts = counts[indptr[np.append(pivots, indptr.size - 1)]]
    return sp.csr_matrix((data[kept], columns[kept], starts), shape=(pivots.size, width))


def _inverse(d, e, hermitian: bool):
    """D^-1 of D with blocks (d_k, e_k; e_k', d_k+1) where e_k is not 0, e_k' its conjugate if `hermitian`."""
    n = d.size
    first = np.flatnonzero(e)
    second = first + 1
    # each block relative to its largest entry, as `crout_symmetric` does, which saw that these numbers are finite
    size = np.max([abs(d[first]), abs(e[first]), abs(d[second])], axis=0)
    a, off, c = d[first] / size, e[first] / size, d[second] / size
    mirrored = off.conj() if hermitian else off
    determinant = a * c - off * mirrored
    diagonal = np.empty_like(d)
    single = np.ones(n, bool)
    single[first] = single[second] = False
    diagonal[single] = 1 / d[single]
    diagonal[first], diagonal[second] = c / determinant / size, a / determinant / size
    if hermitian:
        diagonal = diagonal.real
    right, left = -off / determinant / size, -mirrored / determinant / size
    rows = np.concatenate([np.arange(n), first, second])
    columns = np.concatenate([np.arange(n), second, first])
    values = np.concatenate([diagonal, right, left]).astype(d.dtype, copy=False)
    return sp.csr_matrix((values, (rows, columns)), shape=(n, n))


def _dense(recipe: MultilevelILU, S: CSR, kind: str, numbers):
    """(the inverse of what is left, facts), by LAPACK.  numbers : of its rows in A."""
    if S.n == 0:
        return np.zeros((0, 0), S.dtype), {"n": 0, "nnz": 0, "bytes": 0, "rcond": 1.0}
    r, c = _exponents(equilibrate(S))
    dense = _scaled(S, r, c).tosparse().toarray()
    lapack: Any = scipy.linalg.get_lapack_funcs(("getrf", "getri", "gecon"), (dense,))
    getrf, getri, gecon = lapack
    lu, pivots, info = getrf(dense)
    if info > 0:
        rows = np.arange(S.n)
        for i, j in enumerate(pivots[:info]):
            rows[[i, j]] = rows[[j, i]]
        raise ZeroPivot(recipe, numbers[rows[info - 1]], 0.0, "is all that elimination leaves of it", _advice(recipe))
    rcond, _ = gecon(lu, np.linalg.norm(dense, 1))
    inverse, _ = getri(lu, pivots)
    with np.errstate(over="ignore"):
        inverse = times_power(inverse, c[:, None] + r)
    bad = ~np.isfinite(inverse).all(axis=0)
    if bad.any():
        raise ZeroPivot(recipe, numbers[bad.argmax()], 0.0, "has no finite reciprocal", _advice(recipe))
    if kind != "general":  # to the last bit
        inverse = inverse / 2 + _transposed(inverse, "H" if kind == "hermitian" else "T") / 2
    return inverse, {"n": S.n, "nnz": S.n**2, "bytes": inverse.nbytes, "rcond": float(rcond)}
