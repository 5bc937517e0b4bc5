"""The begin of a cycle of a Krylov method, the record of its residual norm, and the copy of a verified x."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu.runtime.items import by_items
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.sharing import run_items
from finelu.kernels.cpu.vectors import CHUNK, SHARED, chunks
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


class Snapshot:
    """A copy of state and norms for the host: `post` asks for it, `read` gives it; on the GPU only `read` may wait."""

    def __init__(self, state, norms):
        self.source = (state, norms)

    def post(self):
        self.copy = tuple(array.copy() for array in self.source)

    def ready(self) -> bool:
        return True

    def read(self):
        return self.copy


@compiled
def begin_cycle(state, norms, history, checks):
    """Judge the true residual norm in norms[NORM]: converged, no better for all the claims, or one more cycle.

    It is written to checks, and to the history only where no recurrence has written there.
    """
    code = state[CODE]
    state[COLUMNS] = 0
    state[IMPROVED] = 0
    if code > BROKEN:
        return
    norm = norms[NORM]
    if not np.isfinite(norm):
        state[CODE] = NOT_FINITE
        return
    checks[state[ITERATIONS]] = norm
    if state[ITERATIONS] == 0:
        history[0] = norm
    halved = norm <= 0.5 * norms[START]
    if norm <= norms[TOLERANCE]:
        state[CODE] = CONVERGED
    elif code == CLAIMED and not halved:
        state[CODE] = STAGNATED
    elif code == BROKEN and not halved:
        state[CODE] = BREAKDOWN
    else:
        state[CODE] = RUNNING
    if norm < norms[START]:
        norms[START] = norm
        norms[BEST] = norm
        state[IMPROVED] = 1


@compiled
def claim_unless_it_follows(state, norms, norm):
    """norms[NORM] = norm[0], the true one; a claim where the recurrence has drifted from it and nothing was gained."""
    if state[CODE] == RUNNING and norm[0] >= norms[START] and norm[0] > DRIFTED * norms[NORM]:
        state[CODE] = CLAIMED
    norms[NORM] = norm[0]


def keep_verified(state, x, verified):
    """verified = x where `begin_cycle` has found the smallest true residual norm so far."""
    threads = None if x.size >= SHARED else 1
    run_items(_keep_verified, chunks(x.size), state, x, verified, threads=threads)


@by_items
def _keep_verified(t, monitor, x, verified):
    if monitor[IMPROVED]:
        for i in range(t * CHUNK, min((t + 1) * CHUNK, x.size)):
            verified[i] = x[i]


def unless_finite(x, norm):
    """norm[0] = NaN where x holds NaN or Inf."""
    if not np.isfinite(x).all():
        norm[0] = np.nan
