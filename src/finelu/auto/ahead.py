"""The kernels that a solve needs last, compiled while another process compiles those that it needs first.

`solve` looks at A, makes factors, iterates, and may count the fill of a direct solve. Here the iterations come first,
then that count; the other process is done with the rest by then.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from finelu.auto.background import LIMIT
from finelu.auto.first_answer import taken
from finelu.auto.precision import precise
from finelu.compiling import now
from finelu.deadline import limited
from finelu.errors import FineluError
from finelu.krylov import METHODS
from finelu.matrix import CSR
from finelu.ordering import with_little_fill

FEW = 3  # iterations: the first differs from those after it


def compile_last(A: Any, b: Any, rtol: float, **others: Any) -> None:
    """Run a few iterations for A x = b, and count the fill of complete factors, for at most LIMIT seconds without
    compiling. The other process compiles the rest, and finds the same errors.

    A, b, rtol : as `solve` takes them.  others : the other arguments of the call, which change no kernel here.
    """
    system = taken(A, b)
    if system is None:
        return
    matrix, b = precise(_csr(system[0]), system[1], rtol)
    column = np.ascontiguousarray(b.reshape(matrix.n, -1)[:, 0])
    with suppress(FineluError, ArithmeticError), limited(now() + LIMIT):
        METHODS[likely_method(matrix)].solve(matrix, column, maxiter=FEW, rtol=rtol)
        with_little_fill(matrix, "rcm")  # an order that takes no kernel: the other process compiles that of AMD


def likely_method(A: CSR) -> str:
    """The method that `solve` takes first for A, by NumPy alone: no kernel is compiled for the choice."""
    S, d = A.tosparse(), A.tosparse().diagonal()
    rounding = 8 * float(np.finfo(A.dtype).eps) * float(abs(A.data).max(initial=0.0))
    definite = bool((d.real > 0).all()) and float(abs(S - S.conj().T).max()) <= rounding
    return "cg" if definite else "bicgstab"


def _csr(S: Any) -> CSR:
    """The matrix as kernels take it, with the places of its diagonal."""
    rows = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))
    diag = np.full(S.shape[0], -1, S.indices.dtype)
    places = np.flatnonzero(S.indices == rows)
    diag[rows[places]] = places
    return CSR(S.indptr, S.indices, S.data, diag)
