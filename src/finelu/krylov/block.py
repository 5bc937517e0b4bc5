"""Block conjugate gradients: all columns of b search in one space, which grows by a direction for each of them.

Directions that depend on each other are dropped (a rank-revealing orthonormalization): dependent and zero columns need
no care. A column that has converged goes on giving directions: without them those of the others would no longer be
conjugate. Sources: O'Leary 1980; Ji & Li 2017 (breakdown-free).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from finelu import deadline
from finelu.device import namespace, to_host
from finelu.krylov.columns import takes_columns
from finelu.krylov.operators import Identity
from finelu.krylov.residual import UNEVEN
from finelu.krylov.system import System
from finelu.matrix import CSR

if TYPE_CHECKING:
    from numpy.typing import NDArray

Block = tuple[Any, "NDArray[Any]", "list[NDArray[Any]]"]  # X (n, k), the iterations and the histories of its columns

RANK = 100  # roundings of the largest eigenvalue of the Gram matrix of unit vectors: below them a direction is rounding


def block_cg(systems: list[System], starts: list[Any], targets: NDArray[Any], maxiter: int) -> Block:
    """(X, iterations, histories) of block conjugate gradients, until each column is at its
    target, by the recurrence.

    systems : those of the columns, with the same A and M, both Hermitian positive definite.
    starts : where the columns begin, (n,) each.
    targets (k,) : norms of b - A x to be reached.  maxiter : the most iterations.
    X (n, k) : each column as it was when it came to its target.  iterations (k,) : until then.  histories : the norms
    of each column until then, from the first on. It ends early if a curvature is not positive or not finite, or if no
    direction is left. A column is left as it is if the norm of its residual overflows.
    Cost of an iteration with m directions, at most one for each column that does not begin at its target: a product
    with A and with M for m columns, about 12 n m^2 operations, and three waits for a GPU. Memory: seven arrays like X.
    """
    A, M, xp = systems[0].A, systems[0].M, namespace(systems[0].b)
    _, X, R = block_of(systems, starts)
    norms = lengths(R)
    histories = [[norm] for norm in norms.tolist()]
    iterations, searching = np.zeros(len(systems), int), np.flatnonzero((norms > targets) & np.isfinite(norms))
    left = np.ones(searching.size, bool)  # those of them that are not at their targets
    R = R[:, searching]
    weights = scaling(A) if isinstance(M, Identity) else None
    P = orthonormal(preconditioned(M, weights, R)) if searching.size else R
    for _ in range(maxiter):
        if not (left.any() and P.shape[1]):
            break
        deadline.check()
        Q = times(A, P)
        curvature = to_host(P.conj().T @ Q)
        curvature = (curvature + curvature.conj().T) / 2
        if not (np.isfinite(curvature).all() and np.linalg.eigvalsh(curvature)[0] > 0):
            break
        step, active = np.linalg.solve(curvature, to_host(P.conj().T @ R)), searching[left]
        X[:, active] += P @ xp.asarray(step[:, left])
        R = R - Q @ xp.asarray(step)
        norms = lengths(R)[left]
        iterations[active] += 1
        for c, norm in zip(active, norms.tolist(), strict=True):
            histories[c].append(norm)
        left[left] = ~(norms <= targets[active])
        if left.any():
            Z = preconditioned(M, weights, R)
            P = orthonormal(Z - P @ xp.asarray(np.linalg.solve(curvature, to_host(Q.conj().T @ Z))))
    return X, iterations, [np.array(history, norms.dtype) for history in histories]


def block_of(systems: list[System], starts: list[Any]) -> tuple[Any, Any, Any]:
    """(B, X, R), (n, k) each : the right-hand sides, where their columns begin, and B - A X."""
    xp = namespace(systems[0].b)
    B = xp.stack([system.b for system in systems], axis=1)
    X = xp.stack(starts, axis=1)
    begun = any(system.x0 is not None for system in systems)
    return B, X, B - times(systems[0].A, X) if begun else B.copy()


def scaling(A: Any) -> Any:
    """(n, 1) : the reciprocals of the diagonal of A, if its entries are known, and differ by more than UNEVEN; else
    None."""
    if not isinstance(A.matrix, CSR):
        return None
    diagonal = A.matrix.tosparse().diagonal().real
    least, most = float(diagonal.min()), float(diagonal.max())
    return 1 / diagonal[:, None] if 0 < least * UNEVEN < most < np.inf else None


def preconditioned(M: Any, weights: Any, R: Any) -> Any:
    return times(M, R) if weights is None else weights * R


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
