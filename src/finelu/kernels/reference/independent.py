"""Elimination of many pivots at a time, none of which is coupled to another. The specification.

Y. Saad: ILUM, a multi-elimination ILU preconditioner for general sparse matrices, 1996; entries are dropped and rows
deferred as in `crout`. S (m, m) is the matrix that remains after earlier pivots, by rows and sorted, T its transpose.
"""

from __future__ import annotations

import numpy as np

from finelu.kernels.operands import CSR
from finelu.kernels.reference.crout import ahead, farthest, usable, without_small
from finelu.kernels.reference.partition import mixed
from finelu.kernels.reference.sweeps import row_of
from finelu.kernels.reference.threshold import finite, strongest

USABLE, ESTIMATE, PIVOT, CHOSEN = range(4)  # states of a row in `choose`


def choose(S, T, l_nu, u_nu, condest, pivot_tol, least=0.0):
    """state (m,) uint8: CHOSEN for the new pivots, else USABLE, or the reason why not, ESTIMATE or PIVOT, as in
    `crout`; and d (m,), the diagonal.

    Usable rows are tried in ascending order of their entries in S and T together, then of a hash of their number, then
    of the number; a row is taken if it is coupled to no earlier one. l_nu, u_nu (m,) : sums of which the estimates are
    made.
    """
    m = S.indptr.size - 1
    real = S.data.real.dtype.type
    with np.errstate(over="ignore"):
        condest, pivot_tol = min(real(condest), np.finfo(real).max), real(pivot_tol)
    state, entries, coupled, d = np.zeros(m, np.uint8), np.zeros(m, np.int64), [], np.zeros(m, S.data.dtype)
    for i in range(m):
        row, column = row_of(S, i), row_of(T, i)
        entries[i] = len(row) + len(column)
        pivot, _ = row.pop(i, S.data.dtype.type(0)), column.pop(i, 0)
        coupled.append({*row, *column})
        d[i] = pivot
        with np.errstate(all="ignore"):
            if not (abs(farthest(l_nu[i])) <= condest and abs(farthest(u_nu[i])) <= condest):
                state[i] = ESTIMATE
            elif not usable(pivot, row.values(), column.values(), pivot_tol, real(least)):
                state[i] = PIVOT
    for i in sorted(np.flatnonzero(state == USABLE), key=lambda i: (entries[i], mixed(int(i), int(i)), i)):
        if not any(state[j] == CHOSEN for j in coupled[i]):
            state[i] = CHOSEN
    return state, d


def split(state, index):
    """number (m + 1,), the number of rows before each that are not chosen; these rows; and the chosen rows."""
    rest = state != CHOSEN
    number = np.concatenate([[0], np.cumsum(rest)]).astype(index)
    return number, np.flatnonzero(rest).astype(index), np.flatnonzero(~rest).astype(index)


def transposed(U):
    """The transpose of a CSR (m, m), sorted."""
    m = U.indptr.size - 1
    columns = [{} for _ in range(m)]
    for i in range(m):
        for j, v in row_of(U, i).items():
            columns[j][i] = v
    indptr = np.concatenate([[0], np.cumsum([len(column) for column in columns])]).astype(U.indptr.dtype)
    rows = np.array([i for column in columns for i in column], U.indices.dtype)
    return CSR(indptr, rows, np.array([v for column in columns for v in column.values()], U.data.dtype), None)


def pivot_rows(S, state, d, nu, drop_tol, most):
    """U = D^-1 S in the rows that are chosen, off the diagonal, a CSR (m, m); other rows are void.

    u_kj is dropped if its magnitude times max(1, |farthest(nu_k)|) is not larger than drop_tol; of the others the
    `most` largest are kept, of equals the first ones. Also returns the numbers of nonzero entries dropped by tolerance,
    and by the limit.
    """
    m, out, dropped = S.indptr.size - 1, [[0], [], []], [0, 0]
    real = S.data.real.dtype.type
    with np.errstate(over="ignore"):
        drop_tol = real(drop_tol)
    for k in range(m):
        if state[k] == CHOSEN:
            row = row_of(S, k)
            row.pop(k)
            weight = max(real(1), abs(farthest(nu[k])))
            over = {j: v / d[k] for j, v in row.items() if abs(v / d[k]) * weight > drop_tol}
            kept = strongest(over, -1, most)
            dropped[0] += sum(v != 0 for j, v in row.items() if j not in over)
            dropped[1] += len(over) - len(kept)
            for j in sorted(kept):
                out[1].append(j)
                out[2].append(kept[j])
        out[0].append(len(out[1]))
    return _stored(out, S), np.array(dropped)


def _stored(out, S):
    index = S.indices.dtype
    return CSR(*(np.array(a, t) for a, t in zip(out, (index, index, S.data.dtype), strict=True)), None)


def signs(U, state, nu):
    """-xi (m,): xi_k is 1 - nu_k or -1 - nu_k, as `ahead` takes it from row k of U, where k is chosen, else 0."""
    xi = np.zeros_like(nu)
    for k in np.flatnonzero(state == CHOSEN):
        # those ahead are the columns of its row: its own number comes before them for `ahead`
        row = row_of(U, k)
        xi[k] = -ahead(np.concatenate([nu[k : k + 1], [nu[j] for j in sorted(row)]]), 0,
                      {e + 1: row[j] for e, j in enumerate(sorted(row))}, len(row) + 1)  # fmt: skip
    return xi


def remainder(S, L, U, d, state, number, drop_tol, symmetric):
    """S - L D U on the rows and columns that are not chosen, in their new numbers, a CSR, and the first row of it that
    is not finite, or -1.

    L (m, m) : by rows, entries in columns that are chosen.  U : of `pivot_rows`.  d (m,) : the pivots.  number : of
        `split`.
    symmetric : products are formed so that the result is as symmetric (Hermitian) as S is, to the last bit.
    Off the diagonal, which is always stored, s_ij is dropped where |s_ij| <= drop_tol min(r_i, c_j), r_i and c_j the
    largest magnitudes of row i and column j.
    """
    rest, dtype = np.flatnonzero(state != CHOSEN), S.data.dtype
    number = {int(i): int(number[i]) for i in rest}
    rows, first_bad = [], -1
    for i in rest:
        row = {number[j]: v for j, v in row_of(S, i).items() if j in number}
        row.setdefault(number[int(i)], dtype.type(0))
        for k, v in sorted(row_of(L, i).items()):
            for j, u in row_of(U, k).items():
                term = (v * u) * d[k] if symmetric else (v * d[k]) * u
                row[number[j]] = row.get(number[j], dtype.type(0)) - term
        if not finite(row) and first_bad < 0:
            first_bad = len(rows)
        rows.append(row)
    return _stored(without_small(rows, dtype.type(0).real.dtype.type(drop_tol)), S), first_bad
