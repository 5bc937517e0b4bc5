"""The interval of a spectrum, estimated by steps of Lanczos, and the steps of Chebyshev that it asks for.

Both look at a matrix and its preconditioner through functions, so that vectors may be spread over processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from math import acosh, ceil, inf, sqrt
from typing import Any

import numpy as np

from finelu.device import namespace, on_gpu, to_host
from finelu.errors import MatrixError
from finelu.kernels import kernels_for
from finelu.preconditioners.schwarz.conjugate import conjugate_gradients, inner

# Part of an error that a solve with a definite coarse matrix leaves. In cg the deflated form takes as many iterations
# as with an exact solve, on grids with 0.1, too; for ani7, with 333, as many with 0.01, but it did not converge with
# 0.05.
ERROR = 1e-2
# Steps that look for the spectrum; part of the square of the error at which they end, the same in each precision, once
# a step changes the least and the largest value by less than a part SETTLED; times the roundings of a step at which
# nothing else is left. The largest value is raised by the margin.
LANCZOS, REST, SETTLED, NOISE, MARGIN = 12, 1e-10, 0.02, 10, 1.1
MOST_STEPS = 80  # of a solve with a coarse matrix: more show that its parts do not suit it

Operation = Callable[[Any], Any]


def steps_for(middle: float, half: float) -> int:
    """The odd number of steps that leaves `ERROR` of an error; MatrixError for more than `MOST_STEPS`."""
    steps = ceil(acosh(1 / ERROR) / acosh(middle / half)) | 1
    if steps > MOST_STEPS:
        raise MatrixError(f"its parts do not suit it, since a solve would take {steps} steps; levels=2.")
    return steps


def spectrum(
    product: Operation, times_M: Operation, r: Any, inner: Callable[[Any, Any], float] = inner
) -> tuple[float, float]:
    """The middle and half the width of an interval for the spectrum of M^-1 E, from a vector r, which is overwritten.

    By Lanczos, whose numbers are those of cg (Saad 2003, section 6.7.3). The interval holds the values that `LANCZOS`
    steps find, which are inside of the spectrum, and a margin above them: it is an estimate, not a bound.
    inner : the real part of v^H w. Raises MatrixError if a value is not positive.
    """
    sizes, alphas, betas = list[float](), list[float](), list[float]()
    ends, settled = (0.0, 0.0), False
    noise = (NOISE * float(np.finfo(r.dtype).eps)) ** 2
    for rho, curvature in _numbers(product, times_M, r, inner):
        if sizes:
            betas.append(max(rho / sizes[-1], 0.0))
            last, ends = ends, _ends(alphas, betas)
            settled = all(abs(now - then) <= SETTLED * now for now, then in zip(ends, last, strict=True))
        sizes.append(rho)
        if len(alphas) == LANCZOS or not rho > (REST if settled else noise) * sizes[0]:
            break
        if not 0 < curvature < inf:
            raise MatrixError("it is not definite; levels=2.")
        alphas.append(rho / curvature)
    if not alphas:
        return 1.0, 0.5
    least, most = ends[0], MARGIN * ends[1]
    if not 0 < least < inf:
        raise MatrixError("it is not definite; levels=2.")
    return (most + least) / 2, (most - least) / 2


def _numbers(
    product: Operation, times_M: Operation, r: Any, inner: Callable[[Any, Any], float]
) -> Iterator[tuple[float, float]]:
    """r^H M r and p^H E p of the steps of cg. On a GPU all steps are taken before it is waited for, once; then `inner`
    is that of one device."""
    if not on_gpu(r):
        yield from ((rho, curvature) for _, rho, curvature in conjugate_gradients(product, times_M, r, inner))
        return
    numbers, dot = namespace(r).empty(2 * (LANCZOS + 1), r.dtype), kernels_for(r).vectors.dot
    places = iter(range(numbers.size))

    def queued(v: Any, w: Any) -> Any:
        place = next(places)
        dot(v, w, numbers[place : place + 1])
        return numbers[place : place + 1].real

    for _ in islice(conjugate_gradients(product, times_M, r, queued), LANCZOS + 1):
        pass
    found = to_host(numbers).real.tolist()
    yield from zip(found[::2], found[1::2], strict=True)


def _ends(alphas: list[float], betas: list[float]) -> tuple[float, float]:
    """The least and the largest eigenvalue of the matrix of Lanczos, from the numbers of cg."""
    pivots = [1 / a + b / before for a, b, before in zip(alphas, [0.0, *betas], [1.0, *alphas], strict=False)]
    off = [sqrt(b) / a for a, b in zip(alphas[:-1], betas[:-1], strict=True)]
    values = np.linalg.eigvalsh(np.diag(pivots) + np.diag(off, 1) + np.diag(off, -1))
    return float(values[0]), float(values[-1])
