"""One Krylov space for (A + s_j I) x_j = b with many shifts s_j: multi-shift cg and COCG, and shifted gmres.

The space of A and b is that of A + s I and b for every s. So one product with A an iteration serves all shifts. That
needs x0 = 0, and no preconditioner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from finelu import deadline
from finelu.device import namespace, to_host
from finelu.kernels.monitor import CODE, COLUMNS, INDEFINITE, ITERATIONS, NORM, RUNNING
from finelu.krylov.ahead import LOOK_EVERY
from finelu.krylov.scaled import power_of_two
from finelu.krylov.system import System
from finelu.threads import one_blas_thread

COLUMNS_BETWEEN = 10  # of the basis of shifted gmres, between two looks at the residuals of all shifts
GAIN = 100  # roundings of the largest residual norm that a cycle of shifted gmres must gain for another to follow
ROOM = 256  # iterations that the norms have room for at first


@dataclass
class Family:
    """The iterates for all shifts from one space.

    X (k, n) : x_j, a row a shift.
    iterations (k,) : until the recurrence of x_j had converged or ended.
    sizes : the norms ||b - (A + s_j I) x_j|| by the recurrence, (iterations + 1,) for each shift.
    products : with A, for all shifts together.
    indefinite : multi-shift cg met p^H A p <= 0.
    """

    X: Any
    iterations: Any
    sizes: list[Any]
    products: int
    indefinite: bool = False


def lanczos_family(seed: System, sigma: Any, definite: bool, tolerance: float, maxiter: int) -> Family:
    """Multi-shift cg (definite) or COCG for (A + sigma_j I) x_j = b; a shift's iteration ends once its residual does.

    seed : A x = b, the system whose r and p the iteration has; A Hermitian positive definite, or A = A^T for COCG.
    sigma (k,) : on the host; the seed should be the system that converges last, as sigma_j >= 0 make it for cg.
    Cost of an iteration: one product with A, two dot products, a norm and two passes over vectors, and for each shift
    that has not converged one pass over x_j and p_j; memory 2 k + 5 vectors. On a GPU the host looks every 8
    iterations.
    Source: Jegerlehner 1996; Frommer & Maass 1999; van der Vorst & Melissen 1990 for COCG.
    """
    xp, k, A, n = seed.xp, seed.kernels, seed.A, seed.b.size
    real = seed.real
    norm = xp.zeros(1, real)
    k.vectors.norm(seed.b, norm)
    size = float(norm[0])
    unit = power_of_two(size, seed)
    wide = np.result_type(seed.dtype, np.complex64) if np.iscomplexobj(sigma) else seed.dtype
    X, P = (xp.zeros((sigma.size, n), wide) for _ in range(2))
    r = seed.b / unit if unit != 1 else seed.b.copy()
    P[:], p = r, r.copy()
    state = xp.zeros(4, np.int32)
    norms = xp.asarray(np.array([size / unit, 0, tolerance / unit, 0, 0, 0, 0], real))
    norm = norms[NORM : NORM + 1]
    rho, rho_old, curvature = (xp.zeros(1, seed.dtype) for _ in range(3))
    past = xp.asarray(np.array([1, 0], seed.dtype))
    shifts = xp.asarray(sigma.astype(wide))
    theta, zeta = (xp.ones(sigma.size, wide) for _ in range(2))
    alpha, beta = (xp.zeros(sigma.size, wide) for _ in range(2))
    moving, ended = (xp.zeros(sigma.size, np.int32) for _ in range(2))
    sizes = xp.asarray(np.full((sigma.size, min(maxiter, ROOM) + 1), size / unit, real))
    dot = k.vectors.dot if definite else k.vectors.dotu
    dot(r, r, rho)
    begins = abs(complex(rho[0])) > np.finfo(real).eps * (size / unit) ** 2  # no beta without: r^T r may be 0
    every, products = LOOK_EVERY[xp.__name__], 0
    while begins and products < maxiter and size > tolerance:
        q = A @ p
        products += 1
        dot(p, q, curvature)
        k.recurrences.bicgstab_half(state, rho, curvature, q, r)  # r -= rho / curvature q
        rho, rho_old = rho_old, rho
        dot(r, r, rho)
        k.vectors.norm(r, norm)
        if products >= sizes.shape[1]:
            longer = xp.zeros((sigma.size, min(2 * sizes.shape[1], maxiter + 1)), real)
            longer[:, : sizes.shape[1]] = sizes
            sizes = longer
        scalars = rho, rho_old, curvature, past, shifts, theta, zeta, alpha, beta, moving, ended
        k.multishift.coefficients(state, norms, sizes, definite, *scalars)
        k.multishift.step(moving, zeta, alpha, beta, r, P, X)
        k.recurrences.direction(state, rho, rho_old, r, p, None, None)
        if products % every == 0:
            deadline.check()
            if int(state[CODE]) != RUNNING:
                break
    code, iterations = (int(v) for v in to_host(state)[[CODE, ITERATIONS]])
    until = abs(to_host(ended))
    until = np.where(until == 0, iterations, until)
    found = to_host(sizes) * unit
    X *= unit
    return Family(X, until, [found[j, : until[j] + 1] for j in range(sigma.size)], products, code == INDEFINITE)


def arnoldi_family(seed: System, sigma: Any, tolerance: float, maxiter: int, restart: int) -> Family:
    """Shifted gmres with restarts for (A + sigma_j I) x_j = b, for any A.

    seed : A x = b in the dtype of all x_j.
    Each shift has the x of least residual in the space of a cycle. If some have not converged when it ends, the one
    with the largest residual keeps that x, and the others take the x whose residual is a multiple of its residual, so
    that they share the next space, too. A shift without such an x, or whose residual would grow, is left as it is.
    It ends, too, after a cycle in which the largest residual norm has not fallen.
    Cost of a cycle of m columns: m products with A, 4 n m^2 operations, 2 n m for each shift, and a few least-squares
    problems of m columns for each shift on the host; memory restart + k + 5 vectors.
    Source: Frommer & Glassner 1998.
    """
    xp, k, n = seed.xp, seed.kernels, seed.b.size
    norms = xp.zeros(7, seed.real)
    norm = norms[NORM : NORM + 1]
    k.vectors.norm(seed.b, norm)
    size = float(norm[0])
    unit = power_of_two(size, seed)
    size, tolerance = size / unit, tolerance / unit
    r, v = seed.b / unit, xp.zeros(n, seed.dtype)
    X = xp.zeros((sigma.size, n), seed.dtype)
    sizes = [[size] for _ in sigma]
    active, products = np.arange(sigma.size if size > tolerance else 0), 0
    begun = np.full((sigma.size, 1), size, seed.dtype)  # r_j = begun_j r / ||r||
    while active.size and products < maxiter:
        m = min(restart, n, maxiter - products)
        before = abs(begun[active]).max()
        Q, H = (xp.zeros(shape, seed.dtype, order="F") for shape in ((n, m + 1), (m + 1, m)))
        state = xp.zeros(4, np.int32)
        k.vectors.norm(r, norm)
        k.arnoldi.arnoldi_begin(state, norms, r, Q, xp.zeros(m + 1, seed.dtype), v)
        for j in range(m):
            state[COLUMNS] = j
            k.arnoldi.cgs2_step(state, Q, seed.A @ v, H, v)
            products += 1
            if (j + 1) % COLUMNS_BETWEEN == 0 or j + 1 == m:
                deadline.check()
                T = to_host(H)[: j + 2, : j + 1]
                if not np.isfinite(T).all():
                    return Family(X * unit, *counted(sizes, unit), products)
                with one_blas_thread():
                    Y, rest = least(T, sigma[active], begun[active])
                found = np.linalg.norm(rest, axis=0)
                done = found <= tolerance
                between(sizes, active, found, products)
                if done.any():
                    X[xp.asarray(active[done])] += combined(Q, Y[:, done]).T
                    active, Y, rest, found = active[~done], Y[:, ~done], rest[:, ~done], found[~done]
                if not active.size or T[j + 1, j] == 0:
                    break
        if not active.size:
            break
        hardest = int(found.argmax())
        with one_blas_thread():
            kept = collinear(T, sigma[active], begun[active], Y, rest[:, hardest], hardest)
        if kept is None:
            break
        Y, factors = kept
        z = rest[:, hardest]
        grown = ~(abs(factors) * np.linalg.norm(z) <= [abs(begun[j, 0]) for j in active])
        for which in active[grown]:
            sizes[which][-1] = abs(begun[which, 0])  # as its x
        active, Y, factors = active[~grown], Y[:, ~grown], factors[~grown]
        X[xp.asarray(active)] += combined(Q, Y).T
        begun[active, 0] = factors * np.linalg.norm(z)
        for which, factor in zip(active, factors, strict=True):
            sizes[which][-1] = abs(factor) * np.linalg.norm(z)
        if not found.max() <= (1 - GAIN * np.finfo(seed.real).eps) * before:
            break  # nor would another cycle gain
        r = combined(Q, z)
    return Family(X * unit, *counted(sizes, unit), products)


def combined(Q: Any, Y: Any) -> Any:
    """Combinations of the first columns of Q with the weights Y, on the host, the same with any number of threads."""
    with one_blas_thread():
        return Q[:, : len(Y)] @ namespace(Q).asarray(Y)


def counted(sizes: list[list[float]], unit: float) -> tuple[Any, list[Any]]:
    """(iterations, norms) of each shift."""
    return np.array([len(s) - 1 for s in sizes]), [np.array(s) * unit for s in sizes]


def between(sizes: list[list[float]], active: Any, found: Any, products: int) -> None:
    """Note the norms after `products` iterations; those since the last look are no larger than the norm at that."""
    for which, size in zip(active, found, strict=True):
        sizes[which] += [sizes[which][-1]] * (products - len(sizes[which])) + [float(size)]


def shifted_hessenberg(T: Any, shift: complex) -> Any:
    """T + shift I, (j + 1, j)."""
    return T + shift * np.eye(*T.shape)


def least(T: Any, shifts: Any, begun: Any) -> tuple[Any, Any]:
    """(Y, residuals): for each shift y of the least ||begun e_1 - (T + shift I) y||, in columns."""
    Y, rest = [], []
    for shift, first in zip(shifts, begun[:, 0], strict=True):
        S, e = shifted_hessenberg(T, shift), np.zeros(T.shape[0], begun.dtype)
        e[0] = first
        y = np.linalg.lstsq(S, e, rcond=None)[0]
        Y.append(y)
        rest.append(e - S @ y)
    return np.stack(Y, axis=1).astype(begun.dtype), np.stack(rest, axis=1).astype(begun.dtype)


def collinear(T: Any, shifts: Any, begun: Any, Y: Any, z: Any, hardest: int) -> tuple[Any, Any] | None:
    """(Y, factors): for each shift begun e_1 - (T + shift I) y = factor z, the hardest with the given y and 1. None if
    z is 0. A factor that does not exist is NaN."""
    if not z.any():
        return None
    Y, factors = Y.copy(), np.ones(shifts.size, begun.dtype)
    for which, shift in enumerate(shifts):
        if which == hardest:
            continue
        e = np.zeros(T.shape[0], begun.dtype)
        e[0] = begun[which, 0]
        try:
            found = np.linalg.solve(np.column_stack([shifted_hessenberg(T, shift), z]), e)
        except np.linalg.LinAlgError:
            factors[which] = np.nan
            continue
        Y[:, which], factors[which] = found[:-1], found[-1]
    return Y, factors
