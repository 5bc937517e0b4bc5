"""The coarse vectors of a Schwarz method added to vectors of the whole, in one pass with what follows."""

from __future__ import annotations

import numpy as np

from finelu.kernels.cpu._subdomain_columns import directions, factors_of_directions, prolong_columns
from finelu.kernels.cpu.runtime.items import by_items
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.row_blocks import even_items
from finelu.kernels.cpu.runtime.sharing import run_items
from finelu.kernels.cpu.vectors import CHUNK, SHARED, chunks
from finelu.kernels.monitor import CODE, RUNNING


def prolong(parts, Z, q, x, less=None):
    """x_i += Z_i (q - less)_p for i in part p; see kernels/reference/subdomains.py."""
    q = q if less is None else q - less
    if x.ndim == 2:
        items = even_items(x.shape[0], x.size)
        run_items(prolong_columns, items.size - 1, items, parts, Z, q, x)
        return
    items = even_items(x.size, x.size)
    q = q.reshape(-1, 1 if Z is None else Z.shape[1])
    run_items(_prolong, items.size - 1, items, parts, Z, q, x)


@by_items
def _prolong(t, items, parts, Z, q, x):
    for i in range(items[t], items[t + 1]):
        if Z is None:
            x[i] += q[parts[i], 0]
        else:
            for c in range(q.shape[1]):
                x[i] += Z[i, c] * q[parts[i], c]


def direction_with_coarse(state, rho, rho_old, parts, Z, q, z, p):
    """p = z + Z q + (rho / rho_old) p; see kernels/reference/subdomains.py."""
    q = q.reshape(-1, 1 if Z is None else Z.shape[1])
    threads = None if p.size >= SHARED else 1
    run_items(_direction, chunks(p.size), state, rho, rho_old, parts, Z, q, z, p, threads=threads)


@by_items
def _direction(t, monitor, rho, rho_old, parts, Z, q, z, p):
    if monitor[CODE] == RUNNING:
        _turn(rho[0].real / rho_old[0].real, t * CHUNK, min((t + 1) * CHUNK, p.size), parts, Z, q, z, p)


@compiled
def _turn(beta, begin, end, parts, Z, q, z, p):
    for i in range(np.uint64(begin), np.uint64(end)):
        total = z[i]
        if Z is None:
            total += q[np.uint64(parts[i]), np.uint64(0)]
        else:
            for c in range(q.shape[1]):
                total += Z[i, c] * q[parts[i], c]
        p[i] = total + beta * p[i]


def step_and_direction(state, alpha, kept, rho, rho_old, parts, Z, q, z, p, x, best):
    """x += alpha p, then `direction_with_coarse`; see kernels/reference/subdomains.py."""
    q = q.reshape(-1, 1 if Z is None else Z.shape[1])
    threads = None if p.size >= SHARED else 1
    move = alpha, kept, rho, rho_old
    run_items(_step_and_direction, chunks(p.size), state, *move, parts, Z, q, z, p, x, best, threads=threads)


@by_items
def _step_and_direction(t, monitor, alpha, kept, rho, rho_old, parts, Z, q, z, p, x, best):
    """A cache holds the chunk of p, and that of x, from one loop to the next."""
    begin, end = t * CHUNK, min((t + 1) * CHUNK, p.size)
    P, X, B, factor = p[begin:end], x[begin:end], best[begin:end], alpha[0]
    if kept[0]:
        B[:] = X
    if factor:
        for i in range(X.size):
            X[i] += factor * P[i]
    if monitor[CODE] == RUNNING:
        _turn(rho[0].real / rho_old[0].real, begin, end, parts, Z, q, z, p)


def steps_and_directions(which, states, alpha, kept, rho, rho_old, parts, Z, q, z, p, x, best):
    """As `step_and_direction` for the columns of p (n, k), z, x and best, and q (K, k); `which` as in columns.py."""
    moving, beta = np.zeros(which.size, np.bool_), np.zeros(which.size, rho.real.dtype)
    factors_of_directions(which, states, rho, rho_old, moving, beta)
    items = even_items(p.shape[0], p.size)
    step = alpha[which], kept[which] != 0, x, best
    run_items(directions, items.size - 1, items, moving, beta, parts, Z, q, z, p, *step)
