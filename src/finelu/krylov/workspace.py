"""Memory for a Krylov method, and the scalars that it computes from vectors, on the device of its right-hand side."""

from __future__ import annotations

from typing import Any

import numpy as np

from finelu.krylov.residual import Measures
from finelu.krylov.scaled import power_of_two
from finelu.krylov.system import System


class Workspace(Measures):
    """New vectors and scalars, and dot products and norms that stay on the device. Only `size` and `sizes` wait for it.

    system, dtype, real : the system, its dtype, and the real one.  b (n,) : the right-hand side.
    """

    system: System
    b: Any
    dtype: Any
    real: Any

    def vectors(self, k: int) -> list[Any]:
        return [self.xp.zeros(self.b.size, self.dtype) for _ in range(k)]

    def copyto(self, to: Any, given: Any) -> None:
        """to = given."""
        self.kernels.vectors.copy(given, to)

    def scalars(self, k: int) -> list[Any]:
        return [self.xp.zeros(1, self.dtype) for _ in range(k)]

    def real_scalar(self) -> Any:
        return self.decides.zeros(1, self.real)

    def real_factor(self) -> Any:
        """A real scalar by which vectors are multiplied, on their device."""
        return self.xp.zeros(1, self.real)

    def dot(self, x: Any, y: Any) -> Any:
        """x^H y, a new array of one element."""
        (out,) = self.scalars(1)
        self.kernels.vectors.dot(x, y, out)
        return out

    def length(self, x: Any) -> Any:
        """||x||_2, a new array of one element; no square over- or underflows."""
        out = self.real_scalar()
        self.kernels.vectors.norm(x, out)
        return out

    def longer(self, array: Any, room: int) -> Any:
        """The array, extended by NaN. NumPy fills it on the host, since CuPy would compile a kernel for that."""
        longer = self.decides.asarray(np.full(room, np.nan, self.real))
        self.decides.copyto(longer[: array.size], array)
        return longer

    def power(self, size: float) -> float:
        """The power of two just below `size` if squares of such numbers over- or underflow; else 1.0."""
        return power_of_two(size, self.system)
