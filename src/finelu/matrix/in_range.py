"""Results of solves that are finite, or an error: by way of a smaller right-hand side where sums overflow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from finelu.device import on_gpu
from finelu.errors import MatrixError
from finelu.kernels import kernels_for
from finelu.matrix.vectors import ldexp

FEW = 8192  # numbers up to which BLAS forms a dot product on one thread, in the least time
MANY = 2**18  # numbers from which on a kernel, with all threads, takes less time than NumPy's sum on one


def in_range(x: Any, R: Any, solve: Callable[[Any], Any], what: str, dtype: Any = None) -> Any:
    """x = solve(R) if it is finite; else the same from 2^-p R, whose sums do not overflow, column by column, and from
    what 2^-p R has lost of R.

    x, R : (n,) or (n, k), of one shape.  solve : linear, and not confined to finite numbers.  what : for the error.
    dtype : of the numbers with which it solves; None: that of R.
    On a GPU x is returned as it is, since a look at it would wait for the device.
    Raises MatrixError, naming a row, if R holds NaN or Inf, or if x is beyond the range of its dtype. Cost: one pass
    over x.
    """
    if on_gpu(x) or is_finite(x):
        return x
    bad = ~np.isfinite(R)
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise MatrixError(f"the right-hand side holds NaN or Inf in row {row}; find where they come from.")
    _, powers = np.frexp(np.maximum(abs(R.real), abs(R.imag)).max(axis=0))
    limits = np.finfo(x.dtype)
    least = np.finfo(R.dtype if dtype is None else dtype).tiny
    for more in (0, int(limits.maxexp) // 2):
        smaller = ldexp(R, -(powers + more)).astype(R.dtype, copy=False)
        for part in (smaller.real, smaller.imag) if smaller.dtype.kind == "c" else (smaller,):
            part[abs(part) < least] = 0
        y = solve(smaller)
        if is_finite(y):
            break
    else:
        raise MatrixError(f"{what}: the result is not finite, whatever the size of the right-hand side.")
    found = ldexp(y, powers + more).astype(x.dtype, copy=False)
    lost = R - ldexp(smaller, powers + more)
    if lost.any():
        found = found + solve(lost).astype(x.dtype, copy=False)
    if not is_finite(found):
        row = int(np.argwhere(~np.isfinite(found))[0][0])
        raise MatrixError(
            f"{what}: the result leaves the range of {x.dtype} in row {row}; divide the right-hand side by a power of "
            "two, or scale A."
        )
    return found


def is_finite(x: Any) -> bool:
    """Whether an array on the host holds neither NaN nor Inf."""
    flat = x.reshape(-1, order="A")
    if flat.size >= MANY:
        return bool(kernels_for(flat).vectors.first_not_finite(flat) < 0)
    total = flat.dot(flat) if flat.size <= FEW else np.einsum("i->", flat)  # the sum of least work
    return bool(total - total == 0) or bool(np.isfinite(flat).all())  # it may overflow though x is finite
