"""MILU(0): as ILU(0) by scattered rows, with the fill that is dropped collected for the diagonal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from finelu.errors import ParameterError, meant
from finelu.kernels.cpu.arithmetic import divide
from finelu.kernels.cpu.atomics import fetch_add, fetch_min, store_release, wait_until_done
from finelu.kernels.cpu.elimination import ENTRY, ILU0_VARIANTS, ONE, ROW, SCATTERED, UPDATE
from finelu.kernels.cpu.levels import Schedule, levels, schedule, sequential, unsigned
from finelu.kernels.cpu.recurrences import compiled
from finelu.kernels.triangle import Triangle
from finelu.threads import run

MILU0_VARIANTS = ILU0_VARIANTS


@dataclass(frozen=True, eq=False)
class ModifiedElimination:
    """The analysis of a pattern: the variant chosen and the order of the rows; good for one factorization and many."""

    variant: str
    schedule: Schedule
    A: Any
    provisional: bool = False


def milu0_analysis(A, variant: str = "auto") -> ModifiedElimination:
    """The order in which the rows of A are eliminated, natural ("sequential") or by levels. Cost: O(nnz)."""
    if variant not in (*MILU0_VARIANTS, "auto"):
        offered = ", ".join((*MILU0_VARIANTS, "auto"))
        raise ParameterError(
            f"variant={variant!r} is not offered by MILU0; one of {offered} is needed."
            + meant(variant, (*MILU0_VARIANTS, "auto"))
        )
    triangle = Triangle(A.n, A.indptr[:-1], A.diag, A.indices, False, None, None, False, A.below, A.longest[1], None)
    shared = None
    if variant != "sequential":
        cost = np.empty(A.n, np.float32)
        _cost(A.indptr, unsigned(A.indices), A.diag, cost)
        required = variant == "levels"
        shared = schedule(triangle, cost, levels(triangle)[0], sort=False, scattered=SCATTERED, required=required)
    return ModifiedElimination("levels" if shared else "sequential", shared or sequential(triangle), A)


@compiled
def _cost(indptr, indices, diag, cost):
    for i in range(diag.size):
        updates = 0
        for p in range(indptr[i], diag[i]):
            k = indices[p]
            updates += indptr[k + ONE] - diag[k] - 1
        cost[i] = ROW + ENTRY * (indptr[i + 1] - indptr[i]) + UPDATE * updates


def milu0(plan: ModifiedElimination, a, relax, lu) -> int:
    """lu (nnz,) receives the factors of a (nnz,), in A's order; returns the first bad row or -1. See reference.py."""
    s, A = plan.schedule, plan.A
    state, done = s.state()
    pattern = [unsigned(x) for x in (s.items, s.order, A.indptr, A.indices, A.diag)]
    run(_milu0, s.threads, s.after, state, done, *pattern, a.dtype.type(relax), a, lu)
    return int(state[1]) if state[1] < s.order.size else -1


@compiled
def _milu0(after, state, done, items, order, indptr, indices, diag, relax, a, lu):
    """Row by row: scatter into w, subtract l_ik times row k of U for each k < i of the row, gather; each thread its w.

    What falls on a column that this row has not marked as its own is dropped, and summed up.
    """
    w = np.empty(diag.size, a.dtype)
    owner = np.full(diag.size, diag.size, np.uint64)
    zero = relax - relax  # of a's dtype
    known = 0
    while True:
        t = fetch_add(state, 0, 1)
        if t >= after.size:
            break
        known = wait_until_done(done, known, after[t])
        for r in range(items[t], items[t + 1]):
            i = np.uint64(order[r])
            lo, pivot, hi = np.uint64(indptr[i]), np.uint64(diag[i]), np.uint64(indptr[i + ONE])
            for p in range(lo, hi):
                w[indices[p]] = a[p]
                owner[indices[p]] = i
            good = True
            dropped = zero
            for p in range(lo, pivot):
                k = indices[p]
                factor = divide(w[k], lu[diag[k]])
                lu[p] = factor
                good &= np.isfinite(factor)
                for q in range(np.uint64(diag[k]) + ONE, np.uint64(indptr[k + ONE])):
                    if owner[indices[q]] == i:
                        w[indices[q]] -= factor * lu[q]
                    else:
                        dropped -= factor * lu[q]
            w[i] += relax * dropped
            for p in range(pivot, hi):
                lu[p] = w[indices[p]]
                good &= np.isfinite(lu[p])
            if not good or lu[pivot] == 0:
                fetch_min(state, 1, np.int64(i))
        store_release(done, t, 1)
    wait_until_done(done, known, after.size)
