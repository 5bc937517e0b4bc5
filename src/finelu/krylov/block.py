"""Block conjugate gradients: all columns of b search in one space, which grows by a direction for each of them.

Directions that depend on each other are dropped (a rank-revealing orthonormalization), and columns that have converged
give no more of them: dependent and zero columns need no care. Sources: O'Leary 1980; Ji & Li 2017 (breakdown-free).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from finelu import deadline
from finelu.device import namespace, to_host
from finelu.krylov.columns import takes_columns
from finelu.krylov.operators import Identity
from finelu.krylov.system import System

if TYPE_CHECKING:
    from numpy.typing import NDArray

RANK = 100  # roundings of the largest eigenvalue of the Gram matrix of unit vectors: below them a direction is rounding


def block_cg(
    systems: list[System], targets: NDArray[Any], maxiter: int
) -> tuple[Any, NDArray[Any], list[NDArray[Any]]]:
    """(X, iterations, histories) of block conjugate gradients, until each column is at its
    target, by the recurrence.

    systems : those of the columns, with the same A and M, both Hermitian positive definite.
    targets (k,) : norms of b - A x to be reached.  maxiter : the most iterations.
    X (n, k).  iterations (k,) : until each column was at its target.  histories : the norms of each column, from the
    first on. It ends early if a curvature is not positive or not finite, or if no direction is left.
    Cost of an iteration with m columns left: a product with A and with M for m columns, about 12 n m^2 operations, and
    three waits for a GPU. Memory: seven arrays like X.
    """
    A, M, xp = systems[0].A, systems[0].M, namespace(systems[0].b)
    B = xp.stack([system.b for system in systems], axis=1)
    X = xp.stack([xp.zeros_like(system.b) if system.x0 is None else system.x0 for system in systems], axis=1)
    R = B - times(A, X) if any(system.x0 is not None for system in systems) else B.copy()
    norms = lengths(R)
    histories = [[norm] for norm in norms.tolist()]
    iterations, active = np.zeros(len(systems), int), np.flatnonzero(norms > targets)
    R = R[:, active]
    P = orthonormal(times(M, R)) if active.size else R
    for _ in range(maxiter):
        if not (active.size and P.shape[1]):
            break
        deadline.check()
        Q = times(A, P)
        curvature = to_host(P.conj().T @ Q)
        curvature = (curvature + curvature.conj().T) / 2
        if not (np.isfinite(curvature).all() and np.linalg.eigvalsh(curvature)[0] > 0):
            break
        step = xp.asarray(np.linalg.solve(curvature, to_host(P.conj().T @ R)))
        X[:, active] += P @ step
        R = R - Q @ step
        norms = lengths(R)
        iterations[active] += 1
        for c, norm in zip(active, norms.tolist(), strict=True):
            histories[c].append(norm)
        left = ~(norms <= targets[active])
        active, R = active[left], R if left.all() else R[:, np.flatnonzero(left)]
        if active.size:
            Z = times(M, R)
            P = orthonormal(Z - P @ xp.asarray(np.linalg.solve(curvature, to_host(Q.conj().T @ Z))))
    return X, iterations, [np.array(history, norms.dtype) for history in histories]


def times(operator: Any, V: Any) -> Any:
    """The product of an operator with V (n, k), by rows."""
    xp = namespace(V)
    if isinstance(operator, Identity):
        return V
    if takes_columns(operator) and operator.factor == 1 and not operator.levels:
        return operator.apply(xp.ascontiguousarray(V))
    return xp.stack([operator @ xp.ascontiguousarray(v) for v in V.T], axis=1)


def lengths(V: Any) -> NDArray[Any]:
    """(k,) on the host: the norms of the columns."""
    found: NDArray[Any] = to_host(
        namespace(V).sqrt((V.real**2 + V.imag**2 if V.dtype.kind == "c" else V * V).sum(axis=0))
    )
    return found


def orthonormal(V: Any) -> Any:
    """(n, m) : an orthonormal basis of the space of V's columns, as far as these are independent; m <= k.

    By the eigenvectors of the Gram matrix of the columns, scaled to length 1; twice, since one pass leaves the square
    of their condition.
    """
    xp = namespace(V)
    for _ in range(2):
        sizes = lengths(V)
        some = np.flatnonzero((sizes > 0) & np.isfinite(sizes))
        V = V[:, some] / xp.asarray(sizes[some])
        if not some.size:
            return V
        values, vectors = np.linalg.eigh(to_host(V.conj().T @ V))
        kept = values > RANK * np.finfo(values.dtype).eps * values[-1]
        V = V @ xp.asarray(vectors[:, kept] / np.sqrt(values[kept]))
    return V
