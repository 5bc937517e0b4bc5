"""Block GMRES: all columns of b search in one space, restarted, with M on the right.

A cycle keeps the block Arnoldi relation A M^-1 (U C) = U F. U has orthonormal columns, and those of C are the
directions, in terms of U, that have been multiplied. The residual of every column is minimal over all of them. What
stays of the residuals is a small matrix: its singular vectors above the tolerances are as many directions as the next
iteration multiplies. So directions of columns that have converged, or depend on others, wait in U; they are taken up
again if residuals need them. Sources: Saad 2003, section 6.12; Robbe & Sadkane 2006 (inexact breakdowns); Gutknecht
2007.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.linalg import solve_triangular

from finelu import deadline
from finelu.device import namespace, to_host
from finelu.krylov.block import RANK, Block, block_of, lengths, times
from finelu.krylov.system import System

if TYPE_CHECKING:
    from numpy.typing import NDArray

WAITING = 0.5  # of the tolerances: the singular values of scaled residuals up to which a direction waits
WELL = 0.5  # the least eigenvalue of a Gram matrix of unit vectors that one more pass makes orthonormal to rounding
PASSES = 6  # of an orthonormalization: two for most blocks, one more for every seven digits that vectors share
OUTSIDE = 0.5  # of a unit vector outside of a space: less than that after two passes is rounding


def block_gmres(systems: list[System], starts: list[Any], targets: NDArray[Any], maxiter: int, restart: int) -> Block:
    """(X, iterations, histories) of restarted block GMRES, until each column is at its target by its true residual.

    systems : those of the columns, with the same A and M.  starts : where the columns begin, (n,) each.
    targets (k,) : norms of b - A x to be reached.  maxiter : the most iterations.  restart : those of a cycle.
    X (n, k).  iterations (k,) : those that a column took part in, until the recurrence had it at its target.
    histories : its norms until then, the true ones where cycles end.
    A column is left as it is if the norm of its residual overflows, or if a cycle does not make that smaller, or does
    not halve it but claims to have met the target. All are left if products are not finite.
    Cost of an iteration with m directions after j others: a product with A and with M for m columns, and about
    8 n j m operations; on a GPU it waits some seven times. Memory: restart + 6 arrays like X, and on the host about
    3 (k restart)^2 numbers.
    """
    A, M = systems[0].A, systems[0].M
    B, X, R = block_of(systems, starts)
    norms = lengths(R)
    histories = [[norm] for norm in norms.tolist()]
    iterations, active = np.zeros(len(systems), int), np.flatnonzero((norms > targets) & np.isfinite(norms))
    eps = float(np.finfo(norms.dtype).eps)
    while active.size and (left := maxiter - int(iterations[active].max())) > 0:
        before, own = norms[active], R[:, active]
        reach = np.maximum(targets[active], eps * before)
        cycle, claimed = Cycle(own, reach, min(restart, left)), np.zeros(active.size, bool)
        for _ in range(min(restart, left)):
            deadline.check()
            if not cycle.extended(times(A, times(M, cycle.directions()))):
                break
            running, claims = active[~claimed], cycle.norms()
            iterations[running] += 1
            for c, norm in zip(running, claims[~claimed].tolist(), strict=True):
                histories[c].append(norm)
            claimed |= claims <= reach
            if claimed.all():
                break
        if not cycle.multiplied:
            break
        moved = X[:, active] + times(M, cycle.combination())
        rest = B[:, active] - times(A, moved)
        now = lengths(rest)
        better = now < before  # False for NaN
        places = np.flatnonzero(better)
        X[:, active[places]], R[:, active[places]] = moved[:, places], rest[:, places]
        norms[active[places]] = now[places]
        for c in active:
            histories[c][-1] = float(norms[c])
        active = active[better & (now > targets[active]) & (~claimed | (2 * now <= before))]
    return X, iterations, [np.array(history, norms.dtype) for history in histories]


class Cycle:
    """The block Arnoldi relation A M^-1 (U C) = U F of one cycle, and the least squares problems of its columns.

    Matrices without n rows lie on the host, in double precision. Q, C and R are parts of arrays of the final size.
    U (n, made) : the basis, a part of `memory`.
    C (made, multiplied), T (made, made - multiplied) : orthonormal: the directions that have been multiplied, and
        those that wait.
    Q (made, made), R (multiplied, multiplied) : F = Q [R; 0], Q unitary, R upper triangular.
    g (made, k) : Q^H times the residuals at the start, in terms of U.
    """

    def __init__(self, residuals: Any, reach: NDArray[Any], steps: int):
        """residuals (n, k) : those at the start; none is 0.  reach (k,) : the norms to be reached.  steps : the most
        calls of `extended`."""
        n, k = residuals.shape
        xp, self.dtype, self.reach = namespace(residuals), residuals.dtype, reach.astype(float)
        sizes = lengths(residuals)
        basis, parts = orthonormalized(residuals / xp.asarray(sizes), RANK * self._eps())
        self.memory = xp.empty((n, min(n, k * (steps + 1))), self.dtype, order="F")
        self.made, self.multiplied, self.searched = basis.shape[1], 0, 0
        self.memory[:, : self.made] = basis
        self.g = parts * sizes
        self.T, most = np.eye(self.made, dtype=parts.dtype), self.memory.shape[1]
        self._whole = np.eye(most, dtype=parts.dtype), *(np.zeros((most, most), parts.dtype) for _ in range(2))

    def _eps(self) -> float:
        return float(np.finfo(self.dtype).eps)

    @property
    def U(self) -> Any:
        return self.memory[:, : self.made]

    @property
    def Q(self) -> NDArray[Any]:
        return self._whole[0][: self.made, : self.made]

    @property
    def C(self) -> NDArray[Any]:
        return self._whole[1][: self.made, : self.multiplied]

    @property
    def R(self) -> NDArray[Any]:
        return self._whole[2][: self.multiplied, : self.multiplied]

    def norms(self) -> NDArray[Any]:
        """(k,) : those of the residuals, by the recurrence."""
        found: NDArray[Any] = np.linalg.norm(self.g[self.multiplied :], axis=0)
        return found

    def directions(self) -> Any:
        """(n, m) : what is to be multiplied next, orthonormal: of the directions that wait, those nearest to the
        singular vectors of the residuals, each in units of its reach, that are above WAITING."""
        rest = slice(self.multiplied, None)
        left, values, _ = np.linalg.svd(self.g[rest] / self.reach, full_matrices=False)
        wanted = self.T.conj().T @ (self.Q[:, rest] @ left[:, values > WAITING])
        turned, _, _ = np.linalg.svd(wanted)  # with a complement: a residual may have no part in what waits
        self.T, self.searched = self.T @ turned, min(wanted.shape)
        return self.U @ self._device(self.T[:, : self.searched])

    def extended(self, W: Any) -> bool:
        """Take W = A M^-1 D (n, m), D those of `directions`; False, and nothing is changed, if that is not finite, or
        depends on earlier products."""
        xp, made, s, m = namespace(W), self.made, self.multiplied, self.searched
        sizes = lengths(W).astype(float)
        if not (np.isfinite(sizes).all() and sizes.all()):
            return False
        basis, W = self.U, W / xp.asarray(sizes.astype(W.real.dtype))
        products = inner(basis, W)
        new, parts = orthonormalized(W - basis @ products, RANK * self._eps())
        again = inner(basis, new)
        new, turned = orthonormalized(new - basis @ again, OUTSIDE)
        columns = np.vstack([self._host(products) + self._host(again) @ parts, turned @ parts]) * sizes
        more = new.shape[1]
        if made + more > self.memory.shape[1]:
            return False
        whole, C, R = self._whole
        Q = whole[: made + more, : made + more]  # the block diagonal matrix of the former and of I
        rotated = inner(Q, columns)
        reflected, triangle = np.linalg.qr(rotated[s:], mode="complete")
        least = 4 * (s + m) * self._eps() * np.linalg.norm(columns, axis=0)
        if len(triangle) < m or (abs(np.diagonal(triangle)) <= least).any():
            return False
        self.memory[:, made : made + more] = new
        Q[:, s:] = Q[:, s:] @ reflected
        g = np.vstack([self.g, np.zeros((more, self.g.shape[1]))])
        g[s:] = reflected.conj().T @ g[s:]
        R[:s, s : s + m], R[s : s + m, s : s + m] = rotated[:s], triangle[:m]
        C[:made, s : s + m] = self.T[:, :m]
        self.T = _diagonal(self.T[:, m:], np.eye(more))
        self.g, self.made, self.multiplied = g, made + more, s + m
        return True

    def combination(self) -> Any:
        """(n, k) : U C y of each column, whose residual is least."""
        y = solve_triangular(self.R, self.g[: self.multiplied])
        return self.U @ self._device(self.C @ y)

    def _device(self, small: NDArray[Any]) -> Any:
        return namespace(self.memory).asarray(small.astype(self.dtype))

    def _host(self, small: Any) -> NDArray[Any]:
        found: NDArray[Any] = to_host(small).astype(self.Q.dtype)
        return found


def _diagonal(A: NDArray[Any], B: NDArray[Any]) -> NDArray[Any]:
    """The block diagonal matrix of both."""
    out = np.zeros((A.shape[0] + B.shape[0], A.shape[1] + B.shape[1]), A.dtype)
    out[: A.shape[0], : A.shape[1]], out[A.shape[0] :, A.shape[1] :] = A, B
    return out


def inner(U: Any, V: Any) -> Any:
    """U^H V; only V, which has few columns, is conjugated."""
    return U.T @ V if V.dtype.kind == "f" else (U.T @ V.conj()).conj()


def orthonormalized(V: Any, floor: float) -> tuple[Any, NDArray[Any]]:
    """(N, S) : N (n, m) orthonormal, S (m, k) on the host in double precision, V = N S up to `floor`.

    V (n, k), columns of length 1 at most. A direction N_j = V t is dropped if 1 / ||t||, about the singular value that
    it belongs to, is at most `floor`.
    Each pass turns the vectors by the eigenvectors of their Gram matrix and makes them unit vectors again, so that
    singular values are found whose squares are below the rounding of that matrix.
    """
    xp = namespace(V)
    wide = np.result_type(V.dtype, np.float64)
    N, T = V, np.eye(V.shape[1], dtype=wide)
    for k in range(PASSES):
        gram = to_host(inner(N, N)).astype(wide)
        sizes = np.sqrt(np.diagonal(gram).real)
        some = sizes > floor * np.linalg.norm(T, axis=0)
        scales = 1 / sizes[some]
        values, vectors = np.linalg.eigh(gram[np.ix_(some, some)] * scales * scales[:, None])
        over = k == PASSES - 1 or not some.any() or values[0] > WELL
        if over:
            vectors = vectors[:, values > WELL] / np.sqrt(values[values > WELL])
        turn = np.zeros((some.size, vectors.shape[1]), wide)
        turn[some] = scales[:, None] * vectors
        N, T = N @ xp.asarray(turn.astype(V.dtype)), T @ turn
        if over:
            break
    return N, to_host(inner(N, V)).astype(wide)
