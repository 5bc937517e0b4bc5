"""The system A x = b for the Krylov methods: checked once, here, and trusted afterwards."""

from __future__ import annotations

from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np

from finelu.device import namespace, on_gpu
from finelu.errors import MatrixError
from finelu.kernels import kernels_for
from finelu.krylov.operators import Identity, Operator, as_operator, location, order, value_dtype
from finelu.matrix import check_vector
from finelu.matrix.products import BlockProducts
from finelu.matrix.vectors import as_dtype
from finelu.validation import choice

MB = "Mb"  # the x0 that stands for M @ b


class System:
    """A x = b, preconditioned by M, with an initial guess: operators and vectors (n,) of one dtype on one device.

    `System.checked(A, b, x0, M)` accepts and checks a caller's arguments. `System(A, b, M, x0)` trusts its arguments:
    A and M from `as_operator`, b contiguous, b and x0 of the working dtype. Several systems may share them.
    narrow : the real dtype with the least range among those in which residuals are held: that of M, or that of the
        caller's b without an M.
    xp, kernels : numpy or cupy, and the kernels of that device: looked up here, once for the whole solve.
    decides : numpy or cupy: the module of the arrays in which norms are written and decisions made. It is `xp`, except
        for an A that is spread over processes.
    comm : the processes over which A is spread, or None, see krylov/spread.py.
    unknowns : the number of unknowns on all processes.
    """

    comm: Any = None

    def __init__(
        self,
        A: Operator,
        b: Any,
        M: Operator | Identity | None = None,
        x0: Any = None,
        *,
        narrow: np.dtype[Any] | None = None,
        started: float | None = None,
    ):
        self.started = perf_counter() if started is None else started
        self.A, self.b, self.x0 = A, namespace(b).ascontiguousarray(b), x0
        self.M = Identity() if M is None else M
        self.dtype, self.real = b.dtype, b.real.dtype
        if narrow is not None:
            self.narrow = narrow
        self.xp, self.kernels = namespace(b), kernels_for(b)
        self.decides: Any = self.xp
        self.unknowns = b.size

    @cached_property
    def narrow(self) -> np.dtype[Any]:
        return real(value_dtype(self.M.given) if isinstance(self.M, Operator) else self.b.dtype)

    @classmethod
    def checked(cls, A: Any, b: Any, x0: Any = None, M: Any = None, *, spread: bool = False) -> System:
        """The system for a caller's arguments, which the package's docstring describes.

        spread : whether A may be spread over processes.
        Raises MatrixError for wrong shapes, NaN or Inf, DeviceError for arrays on different devices. b and x0 are not
        copied unless they need a conversion.
        """
        started = perf_counter()
        if not spread and isinstance(A, BlockProducts) and A.comm is not None:
            raise MatrixError(
                f"A is spread over {A.comm.size} processes, where of these methods only richardson works; so do those "
                "of PETSc: finelu.interop.petsc.as_mat."
            )
        n, place = order(A), location(A)
        b = check_vector(b, n, b if place is None else place)
        if b.ndim == 2 and b.shape[1] != 1:
            raise MatrixError(
                f"b has {b.shape[1]} columns; with these arguments one is needed: call it for each column."
            )
        b, begins_at_Mb = b.reshape(-1), isinstance(x0, str)
        if begins_at_Mb:
            choice("x0", x0, (MB,))
            x0 = None
        if x0 is not None:
            x0 = check_vector(x0, n, b, "x0")
            if x0.shape not in ((n, 1), (n,)):
                raise MatrixError(f"x0 has shape {x0.shape}, but a vector of {n} numbers is needed.")
            x0 = x0.reshape(-1)
            if not (on_gpu(x0) or x0.any()):
                x0 = None  # which needs no product
        dtype = np.result_type(value_dtype(A), b.dtype, b.dtype if x0 is None else x0.dtype)
        if M is not None and value_dtype(M).kind == "c":
            dtype = np.result_type(dtype, np.complex64)
        narrow = real(b.dtype if M is None else value_dtype(M))
        b, x0 = as_dtype(b, dtype), None if x0 is None else as_dtype(x0, dtype)
        A, M = as_operator(A, "A", b, dtype), as_operator(M, "M", b, dtype)
        return cls(A, b, M, M @ b if begins_at_Mb else x0, narrow=narrow, started=started)

    @classmethod
    def of_columns(cls, A: Any, b: Any, x0: Any = None, M: Any = None) -> list[System]:
        """The systems for the columns of b (n, k), with the same A and M.  x0 : (n,) for all, (n, k), None or "Mb"."""
        n, place = order(A), location(A)
        b = check_vector(b, n, b if place is None else place)
        if b.shape[1] == 0:
            raise MatrixError(f"b has shape {b.shape}: no columns; there is nothing to solve.")
        if x0 is not None and not isinstance(x0, str):
            x0 = check_vector(x0, n, b, "x0")
            if x0.shape not in ((n,), (n, 1), b.shape):
                raise MatrixError(f"x0 has shape {x0.shape}, but b has {b.shape}; give x0 the shape of b, or ({n},).")
            b, x0 = as_dtype(b, np.result_type(b.dtype, x0.dtype)), x0.reshape(n, -1)
        xp = namespace(b)

        def guess(c: int) -> Any:
            return x0 if x0 is None or isinstance(x0, str) else xp.ascontiguousarray(x0[:, min(c, x0.shape[1] - 1)])

        first = cls.checked(A, b[:, 0], guess(0), M)
        systems = [first]
        for c in range(1, b.shape[1]):
            own, start = as_dtype(xp.ascontiguousarray(b[:, c]), first.dtype), guess(c)
            start = first.M @ own if isinstance(start, str) else start
            start = start if start is None or on_gpu(start) or start.any() else None
            start = start if start is None else as_dtype(start, first.dtype)
            systems.append(cls(first.A, own, first.M, start, narrow=first.narrow, started=first.started))
        return systems


def real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The real dtype of the same precision."""
    return np.dtype(dtype.char.lower())
