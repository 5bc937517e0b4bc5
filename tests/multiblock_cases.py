"""Grids of one block cut into several, each turned as one likes: what the tests of multi-block matrices share."""

from itertools import pairwise, permutations, product

import numpy as np

import finelu as fl
from finelu.matrix.interfaces import AXES, tangents
from finelu.matrix.stencil import OFFSETS

TURNS = [(axes, flips) for axes in permutations(range(3)) for flips in product((1, -1), repeat=3)]
AS_IT_IS = ((0, 1, 2), (1, 1, 1))


def turned(array, turn):
    """Cells (I, J, K, ...) whose axis a is axis turn[0][a] of `array`, backwards where turn[1][a] is -1."""
    axes, flips = turn
    array = array.transpose(*axes, *range(3, array.ndim))
    return array[tuple(slice(None, None, flip) for flip in flips)]


def turned_blocks(blocks, turn):
    """Blocks (7, I, J, K, n, n) of the turned grid: what pointed along axis turn[0][a] points along a."""
    axes, flips = turn
    out = []
    for offset in OFFSETS:
        before = [0, 0, 0]
        for a in range(3):
            before[axes[a]] = offset[a] * flips[a]
        out.append(turned(blocks[OFFSETS.index(tuple(before))], turn))
    return np.ascontiguousarray(out)


def face_of(axis, end, turn):
    """The name that the face at the low (-1) or high (1) end of an axis has after the turn."""
    axes, flips = turn
    a = axes.index(axis)
    return AXES[a] + ("+" if end * flips[a] > 0 else "-")


def seam(names, axis, turns):
    """The Interface from the high end of block names[0] to the low end of names[1] along `axis`."""
    face, other = face_of(axis, 1, turns[0]), face_of(axis, -1, turns[1])
    along = []
    for own in tangents(face):
        a = AXES.index(own)
        before = turns[0][0][a]  # the axis of the uncut grid that runs along `own`
        b = turns[1][0].index(before)
        along.append(("" if turns[0][1][a] * turns[1][1][b] > 0 else "-") + AXES[b])
    return fl.Interface(names[0], face, names[1], other, tuple(along))


class Cut:
    """A grid (I, J, K), periodic or not, cut along an axis into blocks that are turned.

    cuts : where the later blocks begin.  turns : of each block.  interfaces : of the blocks, whose names are 0, 1, ...
    """

    def __init__(self, shape, axis, cuts, turns, closed=False):
        ends = [0, *cuts, shape[axis]]
        self.axis, self.turns = axis, turns
        self.slices = [slice(*pair) for pair in pairwise(ends)]
        count = len(self.slices)
        pairs = [(k, k + 1) for k in range(count - 1)] + ([(count - 1, 0)] if closed else [])
        self.interfaces = [seam(pair, axis, [turns[k] for k in pair]) for pair in pairs]

    def parts(self, array):
        """{block: its cells, turned} of an array (I, J, K, ...)."""
        across = np.moveaxis(array, self.axis, 0)
        whole = [np.moveaxis(across[own], 0, self.axis) for own in self.slices]
        return {k: np.ascontiguousarray(turned(part, self.turns[k])) for k, part in enumerate(whole)}

    def blocks(self, blocks):
        """{block: (7, I, J, K, n, n), turned}."""
        across = np.moveaxis(blocks, self.axis + 1, 0)
        whole = [np.moveaxis(across[own], 0, self.axis + 1) for own in self.slices]
        return {k: turned_blocks(part, self.turns[k]) for k, part in enumerate(whole)}

    def grid(self, blocks, comm=None):
        return fl.MultiblockGrid({k: b.shape[1:4] for k, b in blocks.items()}, self.interfaces, comm)
