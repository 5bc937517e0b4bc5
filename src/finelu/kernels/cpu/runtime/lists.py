"""Linked lists of rows, one for each column: head[j] is the first of list j, follower[i] the one behind i, -1 none."""

from __future__ import annotations

from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.sort import sort


@compiled
def members(head, follower, k, out):
    """The list that begins with head[k], sorted, in `out`; returns its length."""
    count = 0
    i = head[k]
    while i >= 0:
        out[count] = i
        count += 1
        i = follower[i]
    sort(out, count)
    return count


@compiled
def enlist(head, follower, i, place, end, indices):
    """Put i into the list of the index at its next place, if it has one."""
    if place < end:
        j = indices[place]
        follower[i] = head[j]
        head[j] = i
