"""The order of a level: its kind, the matching that brings large entries to the diagonal, the ordering, the scales."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu.device import namespace, on_gpu, to_host
from finelu.errors import MatrixError, StructurallySingular, ZeroPivot
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.matrix import as_csr
from finelu.matrix.hermitian import differing
from finelu.matrix.traits import symmetry_of
from finelu.matrix.vectors import ldexp
from finelu.ordering import ORDERS, Subtrees, by_subtrees, parts
from finelu.preconditioners.multilevel.settings import Settings
from finelu.scaling import Matching, equilibrate, matching

MATCHED = 1 / 16  # least scaled matched entry, unless the matching avoids rounding, or scales are clipped


def kind_of(recipe: Settings, S: CSR) -> tuple[str, CSR]:
    """The kind of S, and S, whose triangles are made equal if they differ only by rounding."""
    mirror = S.mirrored()
    found = "general" if recipe.symmetric is False else symmetry_of(mirror, S.dtype)
    if found != "general":
        # The GPU kernel needs a structurally symmetric pattern: it reads a_ji to find which rows depend on row i.
        if mirror[1 if found == "hermitian" else 2] == 0 and (mirror[-1] == S.nnz or not on_gpu(S.data)):
            return found, S
        xp, S = namespace(S.data), S.on(np)
        A = S.tosparse()
        mirrored = transposed(A, "H" if found == "hermitian" else "T").tocsr()
        A, mirrored = (A / 2).tocoo(), (mirrored / 2).tocoo()
        data, rows, columns = (np.concatenate(both) for both in zip(*((M.data, M.row, M.col) for M in (A, mirrored))))
        # the sum of two sparse matrices has no stored zeros, and so another pattern than the order is made for
        whole = sp.coo_matrix((data, (rows, columns)), shape=A.shape).tocsr()
        return found, as_csr(whole, diagonal=False).on(xp)
    if recipe.symmetric:
        where = differing(S.on(np).tosparse(), transposed=True)
        raise MatrixError(f"{recipe!r}: A is neither symmetric nor Hermitian: {where}; leave symmetric out.")
    return "general", S


@dataclass(frozen=True, eq=False)
class Order:
    """Row i, column j of a level are rows[i], columns[j] of its matrix.

    pairs (n,) uint8 : 1 if i and i + 1 should form a 2x2 pivot.  starts, above : of the parts, see `crout`.
    at_once : whether it is for independent sets.  bounded : see `by_subtrees`; it fits this fill only.
    partial : small entries were left out of the pattern that was ordered; with other values, or another drop_tol, the
    matrix may have entries between the parts.
    """

    rows: np.ndarray
    columns: np.ndarray
    pairs: np.ndarray
    starts: np.ndarray
    above: np.ndarray
    at_once: bool = False
    bounded: bool = False
    partial: bool = False


def order_of(
    recipe: Settings,
    S: CSR,
    kind: str,
    scale: Any,
    numbers: Any,
    first: bool,
    kept: Order | None,
    at_once: bool,
    small: float,
    fill: float,
) -> tuple[Order, tuple[Any, Any], bool, CSR]:
    """P_r and P_c, those that were `kept` if any, else from the matching and the ordering of the matched matrix; the
    exponents of D_r and D_c; whether these scale the entries of a matching to about 1, with no larger ones; and S
    without the small entries.

    scale : `definite_scale`, None for a general S.  numbers : the rows of A, for errors.  first : S is A itself.
    at_once : the order is left to independent sets, without pairs, and all entries are kept.
    small : entries off the diagonal are small if they are at most this times the largest of their row, and of their
        column, once scaled.
    fill : the limit of the entries of a row, relative to the mean row of S.
    """
    n, general = S.n, kind == "general"
    columns, rows, pairs = np.arange(n), np.arange(n), np.zeros(n, np.uint8)
    matched = recipe.matching and scale is None
    of_matching = scale is not None
    if scale is not None:
        scales = scale, scale
    elif matched:
        try:
            found = matching(S, symmetric=not general, power_of_two=True)
        except StructurallySingular as singular:
            if first:
                raise
            raise ZeroPivot(recipe, numbers[singular.row], 0.0, "is all that is left of it", advice(recipe)) from None
        scales = found.row_scale, found.column_scale
        of_matching = _smallest_matched(S, found) > MATCHED
        if general:
            columns = found.columns
        elif not at_once:
            rows, pairs = np.asarray(found.order), np.asarray(found.first, np.uint8)
            columns = rows
    else:
        scales = equilibrate(S, symmetric=not general)
    powers = exponents(scales)
    large = S if at_once else _without_small(S, scales, small)
    if kept is not None:
        return kept, powers, of_matching, large
    if at_once:
        return Order(rows, columns, pairs, np.array([0, n]), np.array([-1]), True), powers, of_matching, S
    fill, S, partial = fill * S.nnz / max(large.nnz, 1), large, large is not S
    # two rows that form one pivot are one vertex of the graph that is ordered
    begins = np.flatnonzero(np.concatenate([[True], pairs[:-1] == 0]))
    sizes = np.diff(np.append(begins, n))
    if general or not matched:  # the rows keep their order
        place = np.empty(n, S.indices.dtype)
        place[columns] = rows
        graph = sp.csr_matrix((S.data.real, place[S.indices], S.indptr), shape=(n, n))
    else:
        vertex = np.empty(n, np.int64)
        vertex[rows] = np.repeat(np.arange(begins.size), sizes)
        ends = np.repeat(vertex, np.diff(S.indptr)), vertex[S.indices]
        graph = sp.coo_matrix((np.ones(S.nnz), ends), shape=(begins.size,) * 2).tocsr()
    count = recipe.parts if first else 1
    order, starts, above, bounded = _ordered(recipe, as_csr(graph, diagonal=False), count, fill)
    stops = np.concatenate([[0], np.cumsum(sizes[order])])
    flat = np.repeat(begins[order] - stops[:-1], sizes[order]) + np.arange(n)
    pairs = pairs[flat]
    pairs[stops[starts[-1]] :] = 0  # the interface has no pivots
    made = Order(rows[flat], columns[flat], pairs, stops[starts], above, bounded=bounded, partial=partial)
    return made, powers, of_matching, S


def _without_small(S: CSR, scales: tuple[Any, Any], small: float) -> CSR:
    """S without the entries off the diagonal that are at most `small` times the largest of their row, and of their
    column, once scaled; S itself if it has none, or if `small` is 0."""
    if small == 0:
        return S
    small = min(small, MATCHED / 2)  # scaled entries are at most 2 in magnitude: those that are matched stay
    starts, columns, values = kernels_for(S.data).graph.without_small(S.indptr, S.indices, S.data, *scales, small)
    if values is S.data:
        return S
    return as_csr(sp.csr_matrix((values, columns, starts.astype(S.indptr.dtype)), shape=S.shape), diagonal=False)


def _smallest_matched(S: CSR, found: Matching) -> float:
    """The least magnitude of a matched entry of S, scaled."""
    indptr, indices = to_host(S.indptr), to_host(S.indices)
    rows = np.repeat(np.arange(S.n), np.diff(indptr))
    at = np.flatnonzero(found.columns[rows] == indices)
    r, c = exponents((found.row_scale, found.column_scale))
    return float(abs(ldexp(to_host(S.data)[at], r[rows[at]] + c[indices[at]])).min())


def _ordered(recipe: Settings, graph: CSR, count: int, fill: float) -> Subtrees:
    """Subtrees of the ordering's tree; for count > 1 this many independent parts, each in the ordering, and an
    interface."""

    def inside(S: CSR) -> Any:
        return np.arange(S.n) if recipe.ordering is None or S.n < 3 else ORDERS[recipe.ordering](S)

    if count == 1:
        if recipe.ordering is None or graph.n < 3:
            return Subtrees(np.arange(graph.n), np.array([0, graph.n]), np.array([-1]))
        return by_subtrees(graph, recipe.ordering, fill)
    count = min(count, graph.n)
    order, starts = parts(graph, count)
    S, pieces = graph.tosparse(), []
    for begin, end in zip(starts, [*starts[1:], graph.n], strict=True):
        piece = order[begin:end]
        pieces.append(piece[inside(as_csr(S[piece][:, piece], diagonal=False))] if piece.size else piece)
    return Subtrees(np.concatenate(pieces), starts, np.full(count, -1))


def permuted(S: CSR, order: Order, powers: tuple[Any, Any], kind: str) -> tuple[CSR, CSR]:
    """P_r D_r S D_c P_c and its transpose; exact, except for numbers that underflow."""
    scaled, index = scaled_by(S, *powers), S.indices.dtype
    unit, kernels = np.ones(S.n, S.data.real.dtype), kernels_for(S.data).graph
    starts, rows, values = np.empty(S.n + 1, np.int64), np.empty(S.nnz, index), np.empty(S.nnz, S.dtype)
    arrangement = order.rows, order.columns, unit, unit
    kernels.arranged_columns(S.indptr, S.indices, scaled.data, *arrangement, starts, rows, values)
    T = CSR(starts.astype(index), rows, values, rows[:0])
    if kind != "general":
        return (T.with_values(values.conj()) if kind == "hermitian" and S.dtype.kind == "c" else T), T
    starts, columns, values = kernels.transposed(T.indptr, T.indices, T.data)
    return CSR(starts.astype(index), columns, values, rows[:0]), T


def exponents(scales: tuple[Any, Any]) -> tuple[Any, Any]:
    """The exponents of scales that are powers of two."""
    r, c = (np.frexp(scale)[1] - 1 for scale in scales)
    return r, c


def scaled_by(S: CSR, r: Any, c: Any) -> CSR:
    """S with s_ij times 2^(r_i + c_j)."""
    return S.with_values(ldexp(S.data, np.repeat(r, np.diff(S.indptr)) + c[S.indices]))


def definite_scale(S: CSR) -> Any:
    """Scales (n,) for both sides that bring the diagonal to about 1, if S may be positive definite; else None."""
    if S.missing:
        return None
    out = namespace(S.data).empty(S.n, S.data.real.dtype)
    return out if kernels_for(S.data).scaling.definite_scale(S, out) else None


def transposed(matrix: Any, trans: str) -> Any:
    return matrix if trans == "N" else matrix.T if trans == "T" else matrix.conj().T


def advice(recipe: Settings) -> str:
    more = f"a smaller drop_tol, a larger condest, or matching={not recipe.matching}"
    return f"A is singular, or nearly; otherwise try {more}."
