"""Steps of Chebyshev with factors M: a fixed polynomial in M^-1 A instead of A^-1; and estimates for it.

Y. Saad, Iterative methods for sparse linear systems, 2003, algorithm 12.1 (Chebyshev) and section 6.2 (Ritz values).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from finelu.device import namespace, to_host
from finelu.kernels import kernels_for, monitor
from finelu.matrix import norm


def chebyshev(
    product: Callable[[Any], Any],
    preconditioned: Callable[[Any], Any],
    x: Any,
    r: Any,
    middle: float,
    half: float,
    steps: int,
) -> Any:
    """x + p(M^-1 A) M^-1 r, after `steps` steps; x and r = b - A x are overwritten.

    product : A v in a new array.  preconditioned : M^-1 v in a new array.
    middle, half : of the interval for the spectrum of M^-1 A.
    Cost: `steps` applications of M^-1 and one product less. With A^T and M^-T, or A^H and M^-H, the result is that of
    the transpose, or of the adjoint, of the same operation.
    """
    vectors = kernels_for(x).vectors
    sigma = middle / half
    rho = 1 / sigma
    d = preconditioned(r) / middle
    for _ in range(steps - 1):
        vectors.moved_on(d, product(d), x, r)
        before, rho = rho, 1 / (2 * sigma - rho)
        vectors.turned(rho * before, d, 2 * rho / half, preconditioned(r))
    x += d
    return x


def ritz_values(apply: Callable[[Any], Any], v: Any, steps: int) -> Any:
    """Estimates of eigenvalues of an operator, (k,) on the host with k <= steps: those of the matrix of Arnoldi.

    apply : the operator, from a vector of v's dtype to one in another array.  v (n,) : the first vector, not 0.
    They are fewer where the space of v, apply(v), ... is complete. Empty if a number is not finite.
    Cost: `steps` applications and `steps` vectors; it waits for a GPU once.
    """
    xp, kernels, steps = namespace(v), kernels_for(v).arnoldi, min(steps, v.size)
    at_first = np.zeros(7, v.real.dtype)
    at_first[monitor.NORM] = 1
    state, norms = xp.zeros(4, np.int32), xp.asarray(at_first)
    Q, newest = xp.zeros((v.size, steps + 1), v.dtype, order="F"), xp.empty_like(v)
    H, g = xp.zeros((steps + 1, steps), v.dtype, order="F"), xp.zeros(steps + 1, v.dtype)
    kernels.arnoldi_begin(state, norms, v / norm(v), Q, g, newest)
    for _ in range(steps):
        kernels.mgs_step(state, Q, apply(newest), H, newest)
        state[monitor.COLUMNS] += 1
    H = to_host(H)
    if not np.isfinite(H).all():
        return np.empty(0)
    complete = np.flatnonzero(np.diagonal(H, -1) == 0)
    size = int(complete[0]) + 1 if complete.size else steps
    return np.linalg.eigvals(H[:size, :size])
