"""Solves with the diagonal blocks of subdomains, and the vectors of a coarse space. The specification.

Part p of the unknowns owns the local positions starts[p] <= t < starts[p + 1]; position t is row rows[t] of A, and the
rows of a part are in ascending order. With overlap a row has a position in several parts.
"""

from __future__ import annotations

import warnings
from itertools import pairwise

import numpy as np
import scipy.linalg

from finelu.kernels.monitor import CODE, RUNNING
from finelu.kernels.operands import Couplings
from finelu.kernels.reference.indices import inverse
from finelu.kernels.reference.indices import starts as starts_among
from finelu.kernels.reference.levels import levels


def inside(starts, rows, indptr, indices):
    """The block-diagonal matrix of a_ij for i and j of one part, in local positions, as (indptr, indices, places).

    indptr, indices : of A, its columns ascending.  places : where the values of the entries lie in A's; columns are
    ascending, too.
    """
    block_indptr, block_indices, places = [0], [], []
    for p in range(starts.size - 1):
        here = {int(rows[t]): t for t in range(starts[p], starts[p + 1])}
        for i in here:
            for place in range(indptr[i], indptr[i + 1]):
                if int(indices[place]) in here:
                    block_indices.append(here[int(indices[place])])
                    places.append(place)
            block_indptr.append(len(places))
    return tuple(np.array(a, indices.dtype) for a in (block_indptr, block_indices, places))


class SubdomainSolve:
    """x = W_after T_k^-1 ... T_1^-1 W_before r in the parts, for triangles T of which each couples rows of a part only.

    plans : of the triangles T_1, ..., T_k, in local positions, that visit the rows one after the other and have values.
    narrow : "", or how entries may be read in single precision where unknowns have double, see `LocalFactors`; here
        they are not.
    """

    def __init__(self, starts, plans, narrow=""):
        self.starts, self.plans = starts, plans

    @property
    def levels(self) -> int:
        """The most level sets of a triangle of a part."""
        return max(levels(plan.triangle)[1] for plan in self.plans)

    @property
    def stored(self):
        """The dtype of the entries that a solve reads."""
        return self.plans[0].values.dtype

    def load(self):
        """The plans have new values."""

    def solve(self, r, x, rows, before=None, after=None, scattered=True, correction=None, sums=None):
        """r (n,) in the rows of A. x (n,), too, if scattered, where each row has one position; else in positions.

        before, after : diagonals W (len(rows),) of reals, None for ones.
        correction : `Correction`; it is added to x only where that is scattered.
        sums : `Sums` to be written, where x is scattered; their r is the one before the correction, their x the one
            before Z q is added.
        """
        given = r
        r = r if correction is None else coarse_residual(correction.products, correction.q, r)
        y = r[rows] if before is None else before * r[rows]
        for plan in self.plans:
            s, y = y, np.empty_like(y)
            plan.solve(s, y)
        y = y if after is None else after * y
        x[rows if scattered else slice(None)] = y
        if sums is not None:
            self._add_up(sums, given[rows], y)
        if correction is not None and correction.added:
            prolong(correction.parts, correction.Z, correction.q, x)

    def _add_up(self, sums, r, x):
        """The sums of r and x (n,) in positions."""
        c, parts = sums.couplings, list(pairwise(self.starts))
        for p, (first, _) in enumerate(parts):
            for k in range(c.starts[p], c.starts[p + 1]):
                entries = slice(c.ends[k], c.ends[k + 1])
                V = c.values[entries].conj() if sums.conjugate else c.values[entries]
                sums.of[k] = V.T @ x[first + c.rows[entries].astype(np.int64)]
        sums.dots[:] = [np.vdot(r[a:b], x[a:b]) for a, b in parts]
        sums.restricted[:] = restrict(self.starts, np.arange(r.size), sums.Z, r, sums.conjugate)


def restrict(starts, rows, values, r, conjugate):
    """(parts * m,) : the sums of conj(v_k) r[rows[k]] over the places k of each part, m columns v (places, m).

    values : v, or None for one column of ones.  conjugate : whether v is.
    With the rows of each part and Z in their order this is Z^H r.
    """
    V = np.ones((rows.size, 1), r.dtype) if values is None else values.conj() if conjugate else values
    return np.concatenate([V[a:b].T @ r[rows[a:b]] for a, b in pairwise(starts)])


def orthonormal(parts, starts, rows, B, least):
    """Z (n, m), the columns of B orthonormal in each part, and (parts * m,), which of them depend on others.

    parts (n,) : the part of each row.  starts, rows : the positions of each part; each row has one.
    least : a column, scaled to length 1, depends on those before it if no more than that is left of it in the part; it
        is 0 there, as one of zeros is.
    By the classical Gram-Schmidt process, twice for each column; lengths are summed in double precision.
    """
    double = np.result_type(B.dtype, np.float64)
    Z, dependent = np.zeros_like(B), np.zeros((len(starts) - 1, B.shape[1]), bool)
    for p in range(len(starts) - 1):
        own = rows[starts[p] : starts[p + 1]]
        for c in range(B.shape[1]):
            size = np.linalg.norm(B[own, c].astype(double))
            v = (B[own, c] / (size or 1)).astype(B.dtype)
            for _ in range(2):
                v = v - Z[own, :c] @ (Z[own, :c].conj().T @ v)
            left = np.linalg.norm(v.astype(double))
            dependent[p, c] = not left > least or size == 0
            if not dependent[p, c]:
                Z[own, c] = v / left
    return Z, dependent.reshape(-1)


def prolong(parts, Z, q, x, less=None):
    """x_i += Z_i (q - less)_p for each row i of part p = parts[i]; Z (n, m), None for one column of ones."""
    q = q if less is None else q - less
    Z = np.ones((x.size, 1), x.dtype) if Z is None else Z
    x += (Z * q.reshape(-1, Z.shape[1])[parts]).sum(axis=1)


def sum_couplings(couplings, sums, less=None):
    """(parts * m,) : the sum of `sums` (couplings, m) over the couplings of each part of vectors, (A Z)^H x; or
    `less` minus it."""
    bounds = pairwise(couplings.vector_starts)
    total = np.concatenate([sums[couplings.members[a:b]].sum(axis=0) for a, b in bounds])
    return total if less is None else less - total


def product_with_dot(matrix, g, v, dots, total):
    """matrix g for a dense matrix (n, n), and total[0] = v^H matrix g + the sum of dots."""
    q = matrix @ g
    total[0] = np.vdot(v, q) + dots.sum()
    return q


def direction_with_coarse(state, rho, rho_old, parts, Z, q, z, p):
    """p = z + Z q + (rho / rho_old) p, while the iteration runs; Z as in `prolong`."""
    if state[CODE] == RUNNING:
        p[:] = z + rho[0].real / rho_old[0].real * p
        prolong(parts, Z, q, p)


def step_and_direction(state, alpha, kept, rho, rho_old, parts, Z, q, z, p, x, best):
    """x += alpha p, of `recurrences.residual_step`, also where that has ended the iteration; then
    `direction_with_coarse`."""
    if kept[0]:
        best[:] = x
    if alpha[0]:
        x += alpha[0] * p
    direction_with_coarse(state, rho, rho_old, parts, Z, q, z, p)


def coarse_products(indptr, indices, data, parts, count, Z):
    """A Z by rows, as (pointers (n + 1,), part (k,), values (k, m)) : row i has the sums of a_ij Z_j over the j of
    part[p] as values[p], for pointers[i] <= p < pointers[i + 1].

    The parts are in the order in which the row meets them, sums in that of its entries; a part whose sums are all 0 is
    left out. count : of the parts.
    """
    Z = np.ones((parts.size, 1), data.dtype) if Z is None else Z
    pointers, part, values = [0], [], []
    for i in range(indptr.size - 1):
        sums: dict[int, np.ndarray] = {}
        for place in range(indptr[i], indptr[i + 1]):
            j = indices[place]
            p = int(parts[j])
            sums[p] = sums.get(p, np.zeros(Z.shape[1], data.dtype)) + data[place] * Z[j]
        kept = {p: v for p, v in sums.items() if v.any()}
        part += kept
        values += kept.values()
        pointers.append(len(part))
    shaped = np.array(values, data.dtype).reshape(-1, Z.shape[1])
    return np.array(pointers, np.int32), np.array(part, np.int32), shaped


def coarse_residual(products, q, r):
    """r - A Z q, with `products` of `coarse_products`."""
    pointers, part, values = products
    out = r.copy()
    for i in range(r.size):
        for p in range(pointers[i], pointers[i + 1]):
            out[i] -= values[p] @ q.reshape(-1, values.shape[1])[part[p]]
    return out


def couple(products, rows, parts, starts, members):
    """`Couplings` of A Z, and (entries,) which of its entries by rows each of theirs is; None where that is not needed.

    rows (k,) : the row of each entry of A Z, None where it is found here.  starts, members : the rows of each part.
    """
    _, part, values = products
    count = starts.size - 1
    keys = parts[rows].astype(np.int64) * count + part
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    begins = np.flatnonzero(np.diff(keys, prepend=-1))
    of_parts, of_vectors = ((keys[begins] // count).astype(np.int32), (keys[begins] % count).astype(np.int32))
    by_vectors = np.argsort(of_vectors, kind="stable").astype(np.int32)
    couplings = Couplings(
        starts=starts_among(of_parts, count),
        ends=np.append(begins, keys.size).astype(np.int32),
        rows=inverse(members)[rows] - starts[parts[rows]],
        of_rows=rows,
        vectors=part[order],
        values=values[order],
        vector_starts=starts_among(of_vectors[by_vectors], count),
        members=by_vectors,
    )
    return couplings, order


def couple_rows(indptr, indices, data, parts, starts, members, Z):
    """The `Couplings` of A Z, whose arguments are those of `coarse_products` and `couple`."""
    products = coarse_products(indptr, indices, data, parts, starts.size - 1, Z)
    rows = np.repeat(np.arange(indptr.size - 1, dtype=np.int32), np.diff(products[0]))
    return couple(products, rows, parts, starts, members)[0]


def coarse_blocks(products, rows, Z, conjugate, couplings, order):
    """(couplings, m, m) : the block of Z^H A Z, or of Z^T A Z without conjugation, of each coupling, in double
    precision. The arguments are those of `coarse_matrix`."""
    _, _, values = products
    entries = couplings.values if order is None else values[order]
    m = values.shape[1]
    Z = np.ones((int(couplings.of_rows.max(initial=0)) + 1, 1), values.dtype) if Z is None else Z
    Z = Z.conj() if conjugate else Z
    blocks = np.zeros((couplings.members.size, m, m), np.result_type(values.dtype, np.float64))
    for c, (begin, end) in enumerate(pairwise(couplings.ends)):
        for i, v in zip(couplings.of_rows[begin:end], entries[begin:end]):
            blocks[c] += np.outer(Z[i], v)
    return blocks


def coarse_matrix(products, rows, parts, count, Z, conjugate, couplings, order):
    """Z^H A Z, or Z^T A Z without conjugation, (K, K) in double precision, dense.

    products : A Z, of `coarse_products`.  rows (k,) : the row of each of its entries.  couplings, order : of
    `couple`.
    """
    _, part, values = products
    Z = np.ones((parts.size, 1), values.dtype) if Z is None else Z.conj() if conjugate else Z
    m = Z.shape[1]
    E = np.zeros((count, m, count, m), np.result_type(values.dtype, np.float64))
    for i, q, v in zip(rows, part, values):
        E[parts[i], :, q, :] += np.outer(Z[i], v)
    return E.reshape(count * m, count * m)


def coarse_weights(E, left_out):
    """The weights of `hermitian_inverse` for a dense E (n, n): 1 / sqrt(E_ii), or that of the smallest normal number
    where E_ii is below it; 0 for the rows that are to be left out. None where E_ii is not above 0 for another row, or
    E holds NaN or Inf."""
    size = np.diag(E).real
    if not np.isfinite(E).all() or not (left_out | (size > 0)).all():
        return None
    return np.where(left_out, 0, 1 / np.sqrt(np.maximum(size, np.finfo(np.float64).tiny)))


def magnitudes(A):
    """(2, n), on the host: |A_kk| for a dense A (n, n), and the largest magnitude in row and column k, NaN where there
    is one. Waits for a GPU."""
    size = abs(A)
    return np.stack((np.diag(size), np.maximum(size.max(axis=0), size.max(axis=1))))


def lu(A, weights, added):
    """LU factors with partial pivoting of W A W + diag(added), in the form that `inverse_by_lu` takes; the magnitudes
    of the pivots (n,); and whether the factors are finite. The pivots, weights and added are on the host."""
    S = weights[:, None] * A * weights + np.diag(added)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a pivot that is 0
        factors, order = scipy.linalg.lu_factor(S, check_finite=False)
    return (factors, order), abs(np.diag(factors)), bool(np.isfinite(factors).all())


def inverse_by_lu(factored, weights, dtype):
    """W A^-1 W of this dtype, for the factors of A by `lu`; weights (n,), on the host."""
    X = scipy.linalg.lu_solve(factored, np.eye(factored[0].shape[0]), check_finite=False)
    return (weights[:, None] * X * weights).astype(dtype)


def hermitian_inverse(S, weights, tolerance):
    """W (W S W)^-1 W for a dense Hermitian positive semidefinite S, which may be overwritten; and (n,) int8: which rows
    are left out of the inverse.

    weights : W (n,), the roots of 1 / S_ii as a rule; where it is 0 the row is not looked at.
    Rows are eliminated in their order. One whose pivot is not above the tolerance depends on those before (1): the
    inverse is that without it, with zeros in its row and column. 2: below -tolerance, so that S is not semidefinite.
    """
    S, dropped = weights[:, None] * S * weights + np.diag(weights == 0), np.zeros(S.shape[0], np.int8)
    for k in range(S.shape[0]):
        pivot = S[k, k].real
        row, column = S[k].copy(), S[:, k].copy()
        dropped[k] = 0 if pivot > tolerance else 2 if pivot < -tolerance else 1
        S[k], S[:, k] = 0, 0
        if not dropped[k]:
            row[k] = column[k] = 0
            S -= np.outer(column, row / pivot)
            S[k], S[:, k] = row / pivot, -column / pivot
            S[k, k] = 1 / pivot
    return weights[:, None] * S * weights, dropped
