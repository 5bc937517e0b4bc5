"""A x = b whose rows are spread over processes: norms are those of the whole, and all processes decide alike."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from finelu.errors import MatrixError
from finelu.krylov.system import System
from finelu.matrix.products import BlockProducts
from finelu.processes import agreed


def checked(A: Any, b: Any, x0: Any, M: Any) -> System:
    """`System.checked`, for a method that needs no more of other processes than `Everywhere` gives.

    Where A is spread over processes all must call it; an error of one is raised on all.
    """
    comm = A.comm if isinstance(A, BlockProducts) else None
    if comm is None:
        return System.checked(A, b, x0, M)
    system = agreed(comm, lambda: System.checked(A, b, x0, M, spread=True), named=True)
    facts = comm.allgather((system.b.size, system.dtype.name, system.narrow.name, system.x0 is None))
    other = next((k for k, fact in enumerate(facts) if fact[1:] != facts[0][1:]), None)
    if other is not None:
        raise MatrixError(
            f"b, x0 or M differ in kind between processes 0 and {other}: {facts[0][1:]} and {facts[other][1:]} (dtype, "
            "the narrowest dtype, without x0); all need the same."
        )
    system.comm, system.unknowns = comm, sum(fact[0] for fact in facts)
    system.kernels = Everywhere(system.kernels, comm)  # type: ignore[assignment]
    return system


class Everywhere:
    """The kernels of this process, of which those whose result is one number give that of all processes."""

    def __init__(self, kernels: Any, comm: Any):
        self.kernels = kernels
        self.vectors, self.cycle = Vectors(kernels.vectors, comm), Cycle(kernels.cycle, comm)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernels, name)


class Vectors:
    def __init__(self, kernels: Any, comm: Any):
        self.kernels, self.comm = kernels, comm

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernels, name)

    def norm(self, x: Any, out: Any) -> None:
        """out[0] = ||x||_2 of all parts; the same bits on all processes. Waits for a GPU."""
        self.kernels.norm(x, out)
        out[:] = out.dtype.type(math.hypot(*self.comm.allgather(float(out[0]))))

    def first_not_finite(self, x: Any) -> int:
        """The first place of this process; where only others have one, 0; -1 where none has."""
        place = int(self.kernels.first_not_finite(x))
        return max(place, 0) if max(self.comm.allgather(place)) >= 0 else -1


class Cycle:
    def __init__(self, kernels: Any, comm: Any):
        self.kernels, self.comm = kernels, comm

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernels, name)

    def unless_finite(self, x: Any, norm: Any) -> None:
        """norm[0] = NaN where any process has NaN or Inf in its x."""
        self.kernels.unless_finite(x, norm)
        if any(self.comm.allgather(math.isnan(float(norm[0])))):
            norm[:] = norm.dtype.type(np.nan)
