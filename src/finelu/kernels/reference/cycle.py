"""The decisions that all Krylov methods share: the begin of a cycle, its records, and the best x. The specification.

`state` and `norms` are described in kernels/monitor.py; history and checks hold a residual norm for each iteration.
Kernels that run after the end of the solve change nothing that matters.
"""

from __future__ import annotations

import numpy as np

from finelu.kernels.monitor import (
    BEST,
    BREAKDOWN,
    BROKEN,
    CLAIMED,
    CODE,
    COLUMNS,
    CONVERGED,
    DRIFTED,
    IMPROVED,
    ITERATIONS,
    NORM,
    NOT_FINITE,
    RUNNING,
    STAGNATED,
    START,
    TOLERANCE,
)


def begin_cycle(state, norms, history, checks):
    """Judge norms[NORM], the norm of the true residual b - A x: the solve is over, or another cycle begins.

    CONVERGED at the tolerance or below. After a claim of convergence (CLAIMED) or a breakdown (BROKEN) another cycle
    begins only if the norm is at most half of START, the smallest that a cycle has begun with; else the solve ends as
    STAGNATED or BREAKDOWN. A new smallest norm becomes START and BEST, and state[IMPROVED] is 1.
    The norm is written to checks, and to the history only where no recurrence has written: before the first iteration.
    """
    before = state[CODE]
    state[COLUMNS] = state[IMPROVED] = 0
    if before > BROKEN:
        return
    norm = norms[NORM]
    if not np.isfinite(norm):
        state[CODE] = NOT_FINITE
        return
    checks[state[ITERATIONS]] = norm
    if state[ITERATIONS] == 0:
        history[0] = norm
    halved = norm <= norms[START] / 2
    if norm <= norms[TOLERANCE]:
        state[CODE] = CONVERGED
    elif before == RUNNING or halved:
        state[CODE] = RUNNING
    else:
        state[CODE] = {CLAIMED: STAGNATED, BROKEN: BREAKDOWN}[before]
    if norm < norms[START]:
        norms[START] = norms[BEST] = norm
        state[IMPROVED] = 1


def claim_unless_it_follows(state, norms, norm):
    """norms[NORM], of a recurrence that minimizes the norm, becomes norm[0], the true one; the restart becomes a claim
    if that is neither near the recurrence's nor less than START: x has then grown along null vectors of A, or of M, up
    to rounding.
    """
    if state[CODE] == RUNNING and norm[0] >= norms[START] and norm[0] > DRIFTED * norms[NORM]:
        state[CODE] = CLAIMED
    norms[NORM] = norm[0]


def keep_verified(state, x, verified):
    """verified = x where `begin_cycle` has just found the smallest true residual norm so far."""
    if state[IMPROVED]:
        verified[:] = x


def unless_finite(x, norm):
    """norm[0] = NaN if x holds NaN or Inf."""
    if not np.isfinite(x).all():
        norm[0] = np.nan
