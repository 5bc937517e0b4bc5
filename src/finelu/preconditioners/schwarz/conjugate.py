"""Steps of cg whose numbers tell of a spectrum, for the set-up; a solve has `finelu.cg`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from finelu.device import namespace, to_host
from finelu.kernels import kernels_for


def inner(v: Any, w: Any) -> float:
    """The real part of v^H w; it waits for a GPU."""
    out = namespace(v).empty(1, v.dtype)
    kernels_for(v).vectors.dot(v, w, out)
    return float(to_host(out)[0].real)


def inner_of_columns(V: Any, W: Any) -> Any:
    """(k,) : `inner` of each column of V and W (n, k), row-major, on the CPU."""
    out = np.empty(V.shape[1], V.dtype)
    kernels_for(V).columns.dot(np.arange(out.size), V, W, out)
    return out.real


def conjugate_gradients(
    product: Callable[[Any], Any],
    preconditioned: Callable[[Any], Any],
    r: Any,
    inner: Callable[[Any, Any], Any] = inner,
) -> Iterator[tuple[Any, Any, Any]]:
    """The direction p, r^H M r and p^H A p of each step, which is taken when the next one is asked for.

    product : A v in a new array.  preconditioned : M v.  r (n,) : the residual, which is overwritten.
    inner : the real part of v^H w, of all rows where vectors are spread over processes; or of each column, where r and
        the other vectors have k of them, (n, k), each of which takes its own steps.
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
