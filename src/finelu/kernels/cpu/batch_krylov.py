"""Krylov methods for groups of LANES systems, a system a lane; see kernels/reference/batch_krylov.py.

The systems of a group iterate in step. One whose cycle is over keeps its x, whatever its lane computes, until those of
the others are over, too; one that has ended keeps it for good. Free of races, and independent of lanes, as batch.py.
"""

from __future__ import annotations

import numpy as np

from finelu.kernels import monitor
from finelu.kernels.cpu.batch import (
    NORM,
    interleave,
    keep,
    keep_figures,
    pattern_of,
    residual_group,
    shared_groups,
    solve_group,
    workspace,
)
from finelu.kernels.cpu.runtime.arithmetic import divide
from finelu.kernels.cpu.runtime.atomics import fetch_add
from finelu.kernels.cpu.runtime.items import complete, next_item, wait_until_done
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.lanes import LANES
from finelu.kernels.cpu.runtime.sharing import run_items

CG, BICGSTAB, GMRES = range(3)
RUNNING, CONVERGED, STAGNATED, BREAKDOWN = monitor.RUNNING, monitor.CONVERGED, monitor.STAGNATED, monitor.BREAKDOWN
INDEFINITE, INDEFINITE_PRECONDITIONER = monitor.INDEFINITE, monitor.INDEFINITE_PRECONDITIONER
NOT_FINITE = monitor.NOT_FINITE
VECTORS = 10  # of `workspace`: room, rhs, x, the x that is kept, r, and five of the methods


def cg(matrix, plan, lu, values, b, tolerance, most, x, norms, roundings, errors, iterations, code):
    """Conjugate gradients; see kernels/reference/batch_krylov.py."""
    _iterate(CG, 0, matrix, plan, lu, values, b, tolerance, most, x, norms, roundings, errors, iterations, code)


def bicgstab(matrix, plan, lu, values, b, tolerance, most, x, norms, roundings, errors, iterations, code):
    """BiCGStab; see kernels/reference/batch_krylov.py."""
    _iterate(BICGSTAB, 0, matrix, plan, lu, values, b, tolerance, most, x, norms, roundings, errors, iterations, code)


def gmres(matrix, plan, lu, values, b, tolerance, most, restart, x, norms, roundings, errors, iterations, code):
    """GMRES; see kernels/reference/batch_krylov.py."""
    _iterate(
        GMRES, restart, matrix, plan, lu, values, b, tolerance, most, x, norms, roundings, errors, iterations, code
    )


def _iterate(
    method, restart, matrix, plan, lu, values, b, tolerance, most, x, norms, roundings, errors, iterations, code
):
    groups, threads = shared_groups(values.shape[0])
    n = x.shape[1]
    m = min(restart, most, n)
    basis = np.empty((threads, m + 1 if m else 0, n * LANES), x.dtype)
    hessenberg = np.zeros((threads, m + 1, m + 2, LANES), x.dtype)  # its columns, then g and the sines
    cosines = np.zeros((threads, m + 1, LANES), x.real.dtype)
    work = *workspace(threads, matrix, values, VECTORS), basis, hessenberg, cosines
    numbers = method, most, np.finfo(x.dtype).eps, tolerance
    results = x, norms, roundings, errors, iterations, code
    run_items(_iterate_all, groups, pattern_of(matrix), plan, lu, values, b, numbers, work, *results, threads=threads)


@compiled
def _iterate_all(
    state, done, pattern, plan, lu, values, b, numbers, work, solutions, norms, roundings, errors, iterations, code
):
    method, most, eps, tolerances = numbers
    me = fetch_add(state, 1, 1)
    known, t = 0, next_item(state)
    tolerance, start = np.empty(LANES, work[2].dtype), np.empty(LANES, work[2].dtype)
    steps, reason = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    opened, active = np.empty(LANES, np.bool_), np.empty(LANES, np.bool_)
    while t < done.size:
        a, vectors, sizes, figures = work[0][me], work[1][me], work[2][me], work[3][me, 0]
        rhs, x, kept, r = vectors[1], vectors[2], vectors[3], vectors[4]
        first = t * LANES
        interleave(values, first, a)
        interleave(b, first, rhs)
        x[:] = 0
        kept[:] = 0
        steps[:], reason[:], opened[:], start[:] = 0, RUNNING, True, np.inf
        for lane in range(LANES):
            tolerance[lane] = tolerances[min(first + lane, tolerances.size - 1)]
        while True:
            residual_group(pattern, a, rhs, x, eps, r, sizes, figures)
            if not _next_cycle(figures, tolerance, most, start, steps, reason, opened, x, kept):
                break
            active[:] = opened
            if method == CG:
                _cg_cycle(pattern, plan, lu[t], a, tolerance, most, steps, reason, active, vectors)
            elif method == BICGSTAB:
                _bicgstab_cycle(pattern, plan, lu[t], a, tolerance, most, steps, reason, active, vectors)
            else:
                arrays = work[4][me], work[5][me], work[6][me]
                _gmres_cycle(pattern, plan, lu[t], a, tolerance, most, steps, reason, active, vectors, arrays)
        again = False
        for lane in range(LANES):
            if not figures[NORM, lane] <= start[lane]:
                x[lane::LANES] = kept[lane::LANES]
                again = True
        if again:
            residual_group(pattern, a, rhs, x, eps, r, sizes, figures)
        keep(x, first, solutions)
        keep_figures(figures, first, norms, roundings, errors)
        for lane in range(min(LANES, code.size - first)):
            iterations[first + lane], code[first + lane] = steps[lane], reason[lane]
        t = complete(state, done, t)
    wait_until_done(done, known, done.size)


@compiled
def _next_cycle(figures, tolerance, most, start, steps, reason, opened, x, kept):
    """Whether a system begins another cycle; the others are closed, with the reason."""
    some = False
    for lane in range(LANES):
        if not opened[lane]:
            continue
        norm, goes_on = figures[NORM, lane], reason[lane] == RUNNING or reason[lane] == BREAKDOWN
        opened[lane] = False
        if norm <= tolerance[lane]:
            reason[lane] = CONVERGED
        elif not norm < np.inf:
            reason[lane] = NOT_FINITE
        elif goes_on and steps[lane] < most and norm > start[lane] / 2:
            if reason[lane] == RUNNING:
                reason[lane] = STAGNATED
        elif goes_on and steps[lane] < most:
            opened[lane] = some = True
            reason[lane] = RUNNING
            start[lane] = norm
            kept[lane::LANES] = x[lane::LANES]
        elif reason[lane] == BREAKDOWN:
            reason[lane] = RUNNING
    return some


@compiled
def _close(lane, why, reason, active):
    """The cycle of a system is over."""
    reason[lane] = why
    active[lane] = False


@compiled
def _cg_cycle(pattern, plan, lu, a, tolerance, most, steps, reason, active, vectors):
    room, x, r, z, p, q = vectors[0], vectors[2], vectors[4], vectors[5], vectors[6], vectors[7]
    scalars = np.empty((4, LANES), tolerance.dtype)
    rho, rho_old, curvature, norm = scalars[0], scalars[1], scalars[2], scalars[3]
    solve_group(plan, lu, r, room, z)
    p[:] = z
    real_dots(r, z, rho)
    while True:
        for lane in range(LANES):
            if active[lane] and not rho[lane] > 0:
                _close(lane, INDEFINITE_PRECONDITIONER, reason, active)
        product_group(pattern, a, p, q)
        real_dots(p, q, curvature)
        for lane in range(LANES):
            if active[lane] and not curvature[lane] > 0:
                _close(lane, INDEFINITE, reason, active)
        if not np.any(active):
            return
        for e in range(0, x.size, LANES):
            for lane in range(LANES):
                if active[lane]:
                    alpha = rho[lane] / curvature[lane]
                    x[e + lane] += alpha * p[e + lane]
                    r[e + lane] -= alpha * q[e + lane]
        real_dots(r, r, norm)
        for lane in range(LANES):
            if active[lane]:
                steps[lane] += 1
                if not np.sqrt(norm[lane]) > tolerance[lane] or steps[lane] >= most:
                    _close(lane, RUNNING, reason, active)
        if not np.any(active):
            return
        solve_group(plan, lu, r, room, z)
        rho_old[:] = rho
        real_dots(r, z, rho)
        for e in range(0, x.size, LANES):
            for lane in range(LANES):
                p[e + lane] = z[e + lane] + rho[lane] / rho_old[lane] * p[e + lane]


@compiled
def _bicgstab_cycle(pattern, plan, lu, a, tolerance, most, steps, reason, active, vectors):
    """hat is M^-1 p, then M^-1 s; r is s after the first half of a step."""
    room, x, r, shadow, p = vectors[0], vectors[2], vectors[4], vectors[5], vectors[6]
    v, hat, t = vectors[7], vectors[8], vectors[9]
    scalars = np.empty((5, LANES), x.dtype)
    rho, rho_old, sigma, alpha, omega = scalars[0], scalars[1], scalars[2], scalars[3], scalars[4]
    norm = np.empty(LANES, tolerance.dtype)
    shadow[:] = r
    p[:] = r
    dots(shadow, r, rho)
    while True:
        solve_group(plan, lu, p, room, hat)
        product_group(pattern, a, hat, v)
        dots(shadow, v, sigma)
        for lane in range(LANES):
            alpha[lane] = divide(rho[lane], sigma[lane])
            if active[lane] and not abs(sigma[lane]) > 0:
                _close(lane, BREAKDOWN, reason, active)
        _advance(active, alpha, hat, v, x, r)
        real_dots(r, r, norm)
        for lane in range(LANES):
            if active[lane]:
                steps[lane] += 1
                if not np.sqrt(norm[lane]) > tolerance[lane]:
                    _close(lane, RUNNING, reason, active)
        if not np.any(active):
            return
        solve_group(plan, lu, r, room, hat)
        product_group(pattern, a, hat, t)
        dots(t, r, omega)
        real_dots(t, t, norm)
        for lane in range(LANES):
            if active[lane] and not norm[lane] > 0:
                _close(lane, BREAKDOWN, reason, active)
            omega[lane] = omega[lane] / norm[lane]
        _advance(active, omega, hat, t, x, r)
        real_dots(r, r, norm)
        rho_old[:] = rho
        dots(shadow, r, rho)
        for lane in range(LANES):
            if active[lane]:
                if not np.sqrt(norm[lane]) > tolerance[lane] or steps[lane] >= most:
                    _close(lane, RUNNING, reason, active)
                elif not abs(rho[lane] * omega[lane]) > 0:
                    _close(lane, BREAKDOWN, reason, active)
            sigma[lane] = divide(rho[lane], rho_old[lane]) * divide(alpha[lane], omega[lane])
        if not np.any(active):
            return
        for e in range(0, x.size, LANES):
            for lane in range(LANES):
                p[e + lane] = r[e + lane] + sigma[lane] * (p[e + lane] - omega[lane] * v[e + lane])


@compiled
def _gmres_cycle(pattern, plan, lu, a, tolerance, most, steps, reason, active, vectors, arrays):
    """columns[lane] : those of the basis that a system has used; its cycle may end before those of the others."""
    room, x, r, z, w = vectors[0], vectors[2], vectors[4], vectors[5], vectors[6]
    basis, H, c = arrays
    m = c.shape[0] - 1
    g, s = H[:, m], H[:, m + 1]
    h, norm, columns = np.empty(LANES, x.dtype), np.empty(LANES, tolerance.dtype), np.zeros(LANES, np.int64)
    had = active.copy()
    real_dots(r, r, norm)
    for lane in range(LANES):
        norm[lane] = np.sqrt(norm[lane])
        g[0, lane] = norm[lane]
    _over(r, norm, basis[0])
    for j in range(m):
        solve_group(plan, lu, basis[j], room, z)
        product_group(pattern, a, z, w)
        for i in range(j + 1):
            dots(basis[i], w, h)
            H[i, j] = h
            other = basis[i]
            for e in range(0, w.size, LANES):
                for lane in range(LANES):
                    w[e + lane] -= h[lane] * other[e + lane]
        real_dots(w, w, norm)
        for lane in range(LANES):
            norm[lane] = below = np.sqrt(norm[lane])
            for i in range(j):
                upper, lower = H[i, j, lane], H[i + 1, j, lane]
                H[i, j, lane] = c[i, lane] * upper + s[i, lane] * lower
                H[i + 1, j, lane] = c[i, lane] * lower - np.conj(s[i, lane]) * upper
            pivot = abs(H[j, j, lane])
            size = np.hypot(pivot, below)
            if active[lane] and not size > 0:
                _close(lane, RUNNING if columns[lane] else BREAKDOWN, reason, active)
            if not active[lane]:
                continue
            c[j, lane] = pivot / size
            s[j, lane] = below / size
            if pivot > 0:
                s[j, lane] *= H[j, j, lane] / pivot
            H[j, j, lane] = c[j, lane] * H[j, j, lane] + s[j, lane] * below
            g[j + 1, lane] = -np.conj(s[j, lane]) * g[j, lane]
            g[j, lane] = c[j, lane] * g[j, lane]
            columns[lane] = j + 1
            steps[lane] += 1
            if not abs(g[j + 1, lane]) > tolerance[lane] or not below > 0 or steps[lane] >= most:
                _close(lane, RUNNING, reason, active)
        if not np.any(active):
            break
        _over(w, norm, basis[j + 1])
    last = columns.max()
    w[:] = 0
    for lane in range(LANES):
        for j in range(columns[lane] - 1, -1, -1):  # y in place of g
            for i in range(j + 1, columns[lane]):
                g[j, lane] -= H[j, i, lane] * g[i, lane]
            g[j, lane] = divide(g[j, lane], H[j, j, lane])
    for j in range(last):
        other = basis[j]
        for e in range(0, w.size, LANES):
            for lane in range(LANES):
                if j < columns[lane]:
                    w[e + lane] += g[j, lane] * other[e + lane]
    solve_group(plan, lu, w, room, z)
    for e in range(0, w.size, LANES):
        for lane in range(LANES):
            if had[lane] and columns[lane] > 0:
                x[e + lane] += z[e + lane]


# Operations on the vectors of a group ------------------------------------------------------------------------------


@compiled
def product_group(pattern, a, x, y):
    """y = A x for each system."""
    indptr, indices = pattern
    for i in range(np.int64(indptr.size - 1)):
        for lane in range(LANES):
            y[i * LANES + lane] = 0
        for p in range(np.int64(indptr[i]), np.int64(indptr[i + 1])):
            at = np.int64(indices[p]) * LANES
            for lane in range(LANES):
                y[i * LANES + lane] += a[p * LANES + lane] * x[at + lane]


@compiled
def dots(u, v, out):
    """out = u^H v for each system."""
    out[:] = 0
    for e in range(0, u.size, LANES):
        for lane in range(LANES):
            out[lane] += np.conj(u[e + lane]) * v[e + lane]


@compiled
def real_dots(u, v, out):
    """out = the real part of u^H v for each system."""
    out[:] = 0
    for e in range(0, u.size, LANES):
        for lane in range(LANES):
            out[lane] += u[e + lane].real * v[e + lane].real + u[e + lane].imag * v[e + lane].imag


@compiled
def _advance(active, alpha, d, q, x, r):
    """x += alpha d and r -= alpha q for the systems that are active."""
    for e in range(0, x.size, LANES):
        for lane in range(LANES):
            if active[lane]:
                x[e + lane] += alpha[lane] * d[e + lane]
                r[e + lane] -= alpha[lane] * q[e + lane]


@compiled
def _over(v, norm, out):
    """out = v / norm for each system; 0 where the norm is 0."""
    for e in range(0, v.size, LANES):
        for lane in range(LANES):
            out[e + lane] = v[e + lane] / norm[lane] if norm[lane] > 0 else v[e + lane] * 0
