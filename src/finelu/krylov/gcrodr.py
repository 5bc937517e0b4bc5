"""GCRO-DR: restarted GMRES with a recycled space, from cycle to cycle and from system to system.

Source: M. L. Parks, E. de Sturler, G. Mackey, D. D. Johnson, S. Maiti: Recycling Krylov subspaces for sequences of
linear systems, SIAM Journal on Scientific Computing 28, 2006; preconditioned on the right, by an M that may change from
step to step. Its U_k is W here, and its C_k = A U_k the image, orthonormal as `RecycledSpace.fit` makes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.linalg as la

from finelu.device import namespace, to_host
from finelu.kernels.monitor import COLUMNS, RUNNING
from finelu.krylov.loop import Loop
from finelu.krylov.recycle import RecycledSpace, combined
from finelu.result import Solution
from finelu.threads import one_blas_thread

EVEN = 2.0**20  # times 1 or part of it, up to which numbers are small enough for products of three in single precision
NEAR = 0.1  # of ||r||, down to which r - C C^H r is taken for the residual that it is; below it is formed anew


def gcrodr(loop: Loop, space: RecycledSpace, m: int, orthogonalize: Any) -> Solution:
    """Cycles of m steps of Arnoldi with (1 - C C^H) A M^-1; after each, W becomes the harmonic Ritz vectors of A M^-1
    with the smallest values in the space of W and of the cycle. If that fails, plain cycles go on, from the best x, or
    from x0 if rounding of the best one's residual is above the tolerance. If that has led further, a space that may be
    renewed forgets W.

    orthogonalize : a step of Gram-Schmidt, of the kernels.
    """
    A, M, x, k, xp = loop.A, loop.M, loop.x, loop.kernels, loop.xp
    state, norms = loop.state, loop.norms
    n = x.size
    r, u, v, w = loop.vectors(4)
    Q = xp.zeros((n, m + 1), loop.dtype, order="F")
    Z = xp.zeros((n, m), loop.dtype, order="F")
    H = xp.zeros((m + 1, m), loop.dtype, order="F")
    unrotated = xp.zeros_like(H)
    g = xp.zeros(m + 1, loop.dtype)
    s, y = (xp.zeros(m, loop.dtype) for _ in range(2))
    c = xp.zeros(m, loop.real)
    loop.doubts_restarts()
    space.fit(A, loop.b, energy=False)
    B: Any = None
    part: Any = None

    def step() -> None:
        z = M @ v
        k.arnoldi.keep_column(state, z, Z)
        xp.copyto(w, A @ z)
        if B is not None:  # w -= C C^H w
            k.arnoldi.moments(space.image, w, part)
            k.arnoldi.take_off(state, space.image, part, w)
            k.arnoldi.keep_column(state, part, B)
        orthogonalize(state, Q, w, H, v)
        xp.copyto(unrotated, H)  # of which only column j has changed, whatever rotations did to those before
        k.arnoldi.givens_step(state, norms, loop.history, H, c, s, g)

    failed = False

    def plainly() -> bool:
        """Whether the iteration goes on without W, with which it has failed."""
        nonlocal failed, B
        if not space.size or failed or not loop.resumed(r):
            return False
        failed, B = True, None
        return True

    while loop.cycle(r) or plainly():
        if space.size and not failed:
            if B is None or B.shape[0] != space.size:
                B, part = xp.zeros((space.size, m), loop.dtype, order="F"), xp.zeros(space.size, loop.dtype)
            k.arnoldi.moments(space.image, r, part)  # x += W C^H r, which may be the solution
            k.arnoldi.take_off(state, space.W, -part, x)
            k.arnoldi.take_off(state, space.image, part, r)
            before = float(loop.norm[0])
            k.vectors.norm(r, loop.norm)
            if not (float(loop.norm[0]) > max(NEAR * before, loop.tolerance) or loop.moved(r) or plainly()):
                break
        k.arnoldi.arnoldi_begin(state, norms, r, Q, g, v)
        columns: list[Any] = []
        while len(columns) < m and loop.goes_on():
            step()
            columns.append(unrotated[:, len(columns)].copy())
        if not columns:
            continue
        k.arnoldi.hessenberg_solve(state, H, g, y)
        k.arnoldi.combine(state, Z, y, u)
        k.arnoldi.update_solution(state, u, x)  # x += Z y - W B y
        ready = int(state[COLUMNS])
        if B is not None:  # its later columns may hold Inf, where a step overflowed
            k.arnoldi.take_off(xp.full_like(state, RUNNING), space.W, B[:, :ready] @ y[:ready], x)
        if space.renew and not failed and ready > 1:
            renew(space, Q, Z, B, to_host(xp.stack(columns[:ready], axis=1)), ready)
        loop.tell()
    solution = loop.end()
    if failed and space.renew and loop.led_further(solution):
        space.drop()
    return solution


def renew(space: RecycledSpace, Q: Any, Z: Any, B: Any, H: Any, j: int) -> None:
    """W becomes the harmonic Ritz vectors of A M^-1 with the k smallest values in the space of W and of j steps.

    A [W, Z] = [C, Q] G with G = [[1, B], [0, H]], and [W, Z] = M^-1 T, T = [T_W, Q]. The vectors are [W, Z] y for
    G^H G y = theta G^H [C, Q]^H T y. T_W is kept from the steps in which W was found, of the M that there was.
    H (m + 1, j) on the host.
    Where H is far from 1 in size, it is divided by a power of two: A Z is then as large as A W, which is orthonormal.
    """
    xp, m, unit = namespace(Q), space.size, _unit(H)
    V, basis = Z[:, :j], Q[:, : j + 1]
    H = H[: j + 1] / H.dtype.type(unit)
    with one_blas_thread():
        if m:
            origin = space.origin if space.origin is not None else space.image
            first = to_host(space.image.conj().T @ origin) * unit
            rest = to_host(basis.conj().T @ origin) * unit
            G = np.block([[np.eye(m), to_host(B[:, :j]) / unit], [np.zeros((j + 1, m)), H]]).astype(H.dtype)
            inner = np.block([[first, np.zeros((m, j))], [rest, np.eye(j + 1, j)]]).astype(H.dtype)
        else:
            G, inner = H, np.eye(j + 1, j, dtype=H.dtype)
        if not (np.isfinite(G).all() and np.isfinite(inner).all()):
            return
        P = smallest(G, inner, space.k)
        if P is None:
            return
        q, triangle, order = la.qr(G @ P, mode="economic", pivoting=True)  # A [W, Z] P = [C, Q] q triangle
        sizes = abs(triangle.diagonal())
        rank = int((sizes > sizes[0] * np.sqrt(np.finfo(sizes.dtype).eps)).sum()) if sizes.size and sizes[0] > 0 else 0
        if not rank:
            return
        P = la.solve_triangular(triangle[:rank, :rank], P[:, order[:rank]].T, trans="T").T
        P[m:] /= unit
        q, P = q[:, :rank].astype(H.dtype), P.astype(H.dtype)
        P, q = xp.asarray(P), xp.asarray(q)
        W, image, new = combined(V, P[m:]), combined(basis, q[m:]), combined(basis[:, :j], P[m:])
        if m:
            W += combined(space.W, P[:m])
            image += combined(space.image, q[:m])
            new += combined(origin, P[:m])
    space.W, space.image, space.origin = W, image, new


def _unit(H: Any) -> float:
    """The power of two just above the largest entry of H, or 1 if that is within EVEN of 1."""
    most = float(abs(H).max(initial=0.0))
    return float(np.ldexp(1.0, int(np.frexp(most)[1]))) if 0 < most < 1 / EVEN or EVEN < most < np.inf else 1.0


def smallest(G: Any, inner: Any, k: int) -> Any:
    """(., at most k) : an orthonormal basis of the y with G^H G y = theta G^H `inner` y with the smallest |theta|;
    None if there are none. A complex pair of a real problem counts for two."""
    try:
        values, vectors = la.eig(G.conj().T @ inner, G.conj().T @ G, check_finite=False)  # 1 / theta
    except la.LinAlgError:
        return None
    sizes = abs(values)
    sizes[~np.isfinite(sizes)] = -1
    taken: list[Any] = []
    for i in np.argsort(-sizes, kind="stable"):
        if sizes[i] < 0 or len(taken) >= k:
            break
        y = vectors[:, i]
        if np.iscomplexobj(G) or abs(values[i].imag) <= 1e-14 * sizes[i]:
            taken.append(y if np.iscomplexobj(G) else y.real)
        elif values[i].imag > 0 and len(taken) + 2 <= k:
            taken += [y.real, y.imag]
    if not taken:
        return None
    u, lengths, _ = np.linalg.svd(np.stack(taken, axis=1), full_matrices=False)
    return u[:, lengths > 1e-10 * lengths[0]] if lengths[0] > 0 else None
