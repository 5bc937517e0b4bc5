"""The cage model of a polymer in a gel, a Markov chain."""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse as sp

from finelu.device import Array
from finelu.errors import ParameterError
from finelu.gallery.building import positive, sorted_csr


def cage(length: int, field: float = 0.1) -> sp.csr_matrix:
    """The cage model of a polymer in a gel: column j holds the probabilities of the moves out of state j.

    length : of the polymer in monomers, 3 to 15. cage(10) has 11,397 rows and 150,645 entries, cage(13) 445,315 and
        7,479,343; it takes some seconds and 1 GB.
    field : the electric field that drives monomers along edges, in units of k T.
    A state is a walk of length - 1 steps on a tree, each of whose vertices has three edges towards it and three away
    from it, up to symmetries of the tree and the direction of the walk. A monomer moves if both its neighbours are at
    one vertex. Not symmetric; columns sum to 1. Takes O(length^2) time and memory for an entry.
    Source: A. van Heukelum, G. T. Barkema, R. H. Bisseling, DNA electrophoresis studied with the cage model, J. Comput.
    Phys. 180, 2002. Pattern and order are those of the matrices cage3 to cage15 of the SuiteSparse collection, values
    up to rounding.
    """
    if not 3 <= positive(length=length) <= 15:
        raise ParameterError(f"length={length}; 3 to 15 is needed (64 bits hold no longer walk).")
    if not math.isfinite(field):
        raise ParameterError(f"field={field}; a finite number is needed.")
    walks, away = _walks(length)
    codes, first = np.unique(_walk_codes(walks, away), return_index=True)
    walks, away = walks[:, first], away[:, first]
    rows, columns, rates = [], [], []
    for i in range(length):
        end = i in (0, length - 1)
        j = np.arange(codes.size) if end else np.flatnonzero(walks[i - 1] == walks[i + 1])  # the states that can move
        held_by = walks[1 if i == 0 else i - 1, j]
        for direction in (True, False):
            joined = _joined(walks[:, j], away[:, j], held_by, direction)
            rate = 1 / (3 * length * (1 + np.exp(-2 * field if direction else 2 * field)))
            others = 3 - joined.sum(axis=0)  # neighbours that no monomer is at, which are alike by symmetry
            for vertex, ways in [*enumerate(joined.astype(np.int64)), (length, others)]:
                k = np.flatnonzero(ways)
                moved, steps = walks[:, j[k]], away[:, j[k]]
                moved[i] = vertex
                steps[max(i - 1, 0) : i] = direction
                steps[i : i + 1] = not direction
                rows.append(np.searchsorted(codes, _walk_codes(moved, steps)))
                columns.append(j[k])
                rates.append(rate * ways[k])
    places = np.concatenate(rows), np.concatenate(columns)
    A = sorted_csr(sp.coo_matrix((np.concatenate(rates), places), shape=(codes.size,) * 2))
    A.setdiag(0)  # a move to a state alike
    A.setdiag(1 - np.asarray(A.sum(axis=0)).ravel())
    return sorted_csr(A)


def _walks(length: int) -> tuple[Array, Array]:
    """All walks up to symmetries of the tree: [monomer, walk] its vertex, by the number of the first monomer there, and
    [step, walk] whether the edge leads away from the vertex before it."""
    walks, away = np.zeros((1, 1), np.int8), np.zeros((0, 1), bool)
    for _ in range(1, length):
        walk, vertex, direction = [], [], []
        for way in (True, False):
            joined = _joined(walks, away, walks[-1], way)
            for number, possible in enumerate([*joined, joined.sum(axis=0) < 3]):  # the last: to a new vertex
                walk.append(np.flatnonzero(possible))
                vertex.append(np.full(walk[-1].size, number, np.int8))
                direction.append(np.full(walk[-1].size, way))
        k = np.concatenate(walk)
        walks = np.vstack([walks[:, k], np.concatenate(vertex)])
        away = np.vstack([away[:, k], np.concatenate(direction)])
    return walks, away


def _joined(walks: Array, away: Array, at: Array, direction: bool) -> Array:
    """[vertex, walk]: whether the walk takes an edge of this direction from the vertex `at` to this one, or back."""
    found = np.zeros(walks.shape, bool)
    for step, is_away in enumerate(away):
        a, b = walks[step], walks[step + 1]
        for start, end, leads_away in ((a, b, is_away), (b, a, ~is_away)):
            k = np.flatnonzero((start == at) & (leads_away == direction))
            found[end[k], k] = True
    return found


def _walk_codes(walks: Array, away: Array) -> Array:
    """A number for each walk, the same for its reverse: bits of the monomers that share a vertex, then of the steps."""

    def one_way(walks: Array, away: Array) -> Array:
        distances = range((len(walks) - 1) // 2 * 2, 0, -2)
        code = np.zeros(walks.shape[1], np.uint64)
        for bit in np.vstack([*(walks[:-d] == walks[d:] for d in distances), ~away]):
            code = (code << np.uint64(1)) | bit
        return code

    return np.minimum(one_way(walks, away), one_way(walks[::-1], ~away[::-1]))
