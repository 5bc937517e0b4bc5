"""Steps of cg whose numbers tell of a spectrum, for the set-up; a solve has `finelu.cg`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from finelu.device import namespace, to_host
from finelu.kernels import kernels_for


def inner(v: Any, w: Any) -> float:
    """The real part of v^H w; it waits for a GPU."""
    out = namespace(v).empty(1, v.dtype)
    kernels_for(v).vectors.dot(v, w, out)
    return float(to_host(out)[0].real)


def conjugate_gradients(
    product: Callable[[Any], Any],
    preconditioned: Callable[[Any], Any],
    r: Any,
    inner: Callable[[Any, Any], float] = inner,
) -> Iterator[tuple[Any, float, float]]:
    """The direction p, r^H M r and p^H A p of each step, which is taken when the next one is asked for.

    product : A v in a new array.  preconditioned : M v.  r (n,) : the residual, which is overwritten.
    inner : the real part of v^H w, of all rows where vectors are spread over processes.
    It does not end by itself: the caller looks at the two numbers. Each waits for a GPU.
    Source: Y. Saad, Iterative methods for sparse linear systems, 2003, algorithm 9.1.
    """
    z = preconditioned(r)
    p, rho = z.copy(), inner(r, z)
    while True:
        q = product(p)
        curvature = inner(p, q)
        yield p, rho, curvature
        r -= q * (rho / curvature)
        z = preconditioned(r)
        before, rho = rho, inner(r, z)
        p *= rho / before
        p += z
