"""A matrix beside its transpose, and the signs of its entries, without a transposition. On one thread."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.recurrences import compiled


@compiled
def mirrored(indptr, indices, data):
    """(largest |a_ij|, largest |a_ij - conj(a_ji)|, largest |a_ij - a_ji|, entries with a stored a_ji): A in CSR, rows
    sorted. Cost: one pass: rows come in turn, and so do, in each row above them, the entries that they are mirrored by.
    """
    n = indptr.size - 1
    waiting = np.empty(n, np.int64)  # the first entry of each row above the diagonal that no row has been compared with
    largest = adjoint = transposed = 0.0
    partners = 0
    for i in range(n):
        end = np.int64(indptr[i + 1])
        waiting[i] = end
        for p in range(indptr[i], end):
            j, a = np.int64(indices[p]), data[p]
            size = abs(a)
            largest = max(largest, size)
            if j > i:
                waiting[i] = p
                for rest in range(p + 1, end):
                    largest = max(largest, abs(data[rest]))
                break
            if j == i:
                partners += 1
                adjoint = max(adjoint, abs(a - np.conj(a)))
                continue
            q, last = waiting[j], np.int64(indptr[j + 1])
            while q < last and indices[q] < i:
                alone = abs(data[q])
                adjoint, transposed = max(adjoint, alone), max(transposed, alone)
                q += 1
            if q < last and indices[q] == i:
                partners += 2
                adjoint = max(adjoint, abs(a - np.conj(data[q])))
                transposed = max(transposed, abs(a - data[q]))
                q += 1
            else:
                adjoint, transposed = max(adjoint, size), max(transposed, size)
            waiting[j] = q
    for j in range(n):
        for q in range(waiting[j], indptr[j + 1]):
            alone = abs(data[q])
            adjoint, transposed = max(adjoint, alone), max(transposed, alone)
    return largest, adjoint, transposed, partners


@compiled
def signs(indptr, indices, data, diag, tolerance):
    """(sum of the entries beside the diagonal with its sign, of those with the other, rows they do not outweigh).

    A real, in CSR, with all diagonal entries data[diag[i]]. The third counts rows with |a_ii| + sign(a_ii) sum of the
    others >= -tolerance |a_ii|. Cost: one pass.
    """
    same = opposite = 0.0
    fine = 0
    for i in range(diag.size):
        d = data[diag[i]]
        total = abs(d)
        for p in range(indptr[i], indptr[i + 1]):
            if p != diag[i]:
                a = np.float64(data[p] if d >= 0 else -data[p])
                total += a
                if a > 0:
                    same += a
                else:
                    opposite -= a
        fine += total >= -tolerance * abs(d)
    return same, opposite, fine
