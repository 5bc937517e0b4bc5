"""Certificates of an x: its backward errors, the condition of its system, and a bound on its error."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from finelu import krylov
from finelu.auto.attempt import MAXITER
from finelu.compiling import now
from finelu.device import namespace, to_host
from finelu.krylov.nullspace import NullSpace
from finelu.krylov.operators import Identity, as_operator, matrix_operator
from finelu.krylov.residual import Residual, largest
from finelu.krylov.system import System
from finelu.krylov.underflow import ROOM
from finelu.matrix import CSR
from finelu.matrix.vectors import all_finite, as_dtype, times_power
from finelu.result import Certificate

DIGITS = 1e-3  # relative residual of the solves that an estimate takes
STEPS = 5  # of the estimator of norms


class NotKnown(Exception):
    """A solve of the estimator did not reach its tolerance."""


def certificate(
    A: CSR,
    b: Any,
    x: Any,
    F: Any,
    *,
    complete: bool,
    deadline: float = math.inf,
    space: NullSpace | None = None,
) -> Certificate:
    """The certificate of an x (n,) for A x = b.

    F : the factors that led to x, None if there are none.
    complete : whether F are the factors of A up to rounding.
    deadline : a time of `compiling.now`; figures not known by then are Inf.
    space : the null vectors of a singular A, of which b and x have no part: A^-1 is the pseudoinverse then. Condition
        and error are Inf if the vectors u with u^H A = 0 are not known.
    The error bound is that of LAPACK's xGERFS: || |A^-1| (|r| + (k + 1) eps (|A| |x| + |b|)) || / ||x||. The norms are
    largest elements, r = b - A x is formed in twice the precision, and k is the number of entries of each row. Norms
    with A^-1 are estimated by some ten solves with A and A^H: from below, and mostly by a factor of less than 3.
    """
    xp = namespace(b)
    product = matrix_operator(as_dtype(A, b.dtype))
    residual = Residual(product, b)
    most, power = max(largest(b), largest(x)), 0
    if 0 < most < float(np.finfo(b.dtype).tiny) / float(np.finfo(b.dtype).eps):  # roundings would underflow
        power = -math.frexp(most)[1]
    elif not most < math.ldexp(1.0, int(np.finfo(b.dtype).maxexp) - ROOM):  # sums would overflow
        power = -2 * ROOM
    if power:
        b, x = times_power(b, power), times_power(x, power)
    terms, eps = residual.magnitudes(b, x), float(np.finfo(b.dtype).eps)
    r, _ = residual.twice(b, x)
    of_rows = residual.magnitudes(xp.zeros_like(b), xp.ones_like(b))
    of_A, of_x, of_b = (largest(v) for v in (of_rows, x, b))
    of_r, size = largest(r), residual.size(b)
    # half of the last digit of an element of x: for the smallest numbers not a fixed part of their size
    digit = math.ldexp(float(np.finfo(b.dtype).smallest_subnormal), power) / 2
    rounding = xp.maximum(eps / 2 * abs(x), digit).astype(b.dtype)
    entries = A.indptr[1:] - A.indptr[:-1]
    doubt = abs(r) + (entries + 1) * eps * terms
    inverse = _Inverse(product, F, b, complete=complete, deadline=deadline, space=space)
    inverse_size, error = inverse.norm(xp.ones_like(doubt)), inverse.norm(doubt)
    return Certificate(
        normwise=_ratio(of_r, of_A * of_x + of_b),
        componentwise=largest(abs(r) / xp.where(terms > 0, terms, 1)),
        condition=max(of_A * inverse_size, 1.0),
        error=_ratio(error, of_x),
        least_residual=_ratio(residual.size(residual.magnitudes(xp.zeros_like(b), rounding)), size),
    )


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0 if part == 0 else math.inf


class _Inverse:
    """A^-1 for an estimator of norms: by complete factors, or by gmres to a residual of DIGITS, with incomplete ones or
    those of a singular A. With null vectors it is the pseudoinverse."""

    def __init__(self, product: Any, F: Any, b: Any, *, complete: bool, deadline: float, space: NullSpace | None):
        self.F, self.b, self.complete, self.deadline = F, b, complete and space is None, deadline
        self.spaces = {} if space is None else {"N": space, "H": NullSpace(space.left, space.right)}
        if not self.complete:
            M = Identity() if F is None else as_operator(F, "M", b, b.dtype)
            self.ways = {"N": (product, M), "H": (product.H, M.H)}

    def norm(self, weights: Any) -> float:
        """An estimate of the largest element of |A^-1| weights; Inf if a solve did not reach its tolerance in time.

        This element is the largest row sum of |A^-1 diag(weights)|, and so the 1-norm of diag(weights) A^-H.
        """
        w = to_host(weights)
        most = largest(w)
        if not 0 < most < math.inf:
            return most
        w = w / most
        try:
            found = one_norm(
                lambda v: w * self.solve(v, "H"),
                lambda v: self.solve(w * v, "N"),
                w.size,
                self.b.dtype,
                random=bool(self.spaces),  # equal elements are often a null vector
            )
        except NotKnown:
            return math.inf
        return found * most if math.isfinite(found) else math.inf

    def solve(self, v: Any, trans: str) -> Any:
        """A^-1 v or A^-H v, on the host. Raises NotKnown."""
        if not all_finite(v):
            raise NotKnown
        moved = namespace(self.b).asarray(np.ascontiguousarray(v.astype(self.b.dtype, copy=False)))
        if self.complete:
            x = self.F.solved(moved, trans)
        else:
            A, M = self.ways[trans]
            system, space = System(A, moved, M), self.spaces.get(trans)
            if space is not None:
                if space.left is None or space.right is None:
                    raise NotKnown
                system = space.restricted(system)
            solution = krylov.iterate(
                "gmres",
                system,
                rtol=DIGITS,
                maxiter=MAXITER,
                restart=krylov.CYCLE,
                watch=lambda *_: now() > self.deadline,
            )
            if not solution.converged:
                raise NotKnown
            x = solution.x if space is None else space.orthogonal(solution.x)
        if now() > self.deadline:
            raise NotKnown
        return to_host(x)


def one_norm(
    product: Callable[[Any], Any], adjoint: Callable[[Any], Any], n: int, dtype: np.dtype[Any], *, random: bool = False
) -> float:
    """||B||_1 of an operator (n, n), estimated from below by up to 6 products with B and 5 with B^H.

    random : whether the first vector has random signs, instead of equal elements.
    N. J. Higham: FORTRAN codes for estimating the one-norm of a real or complex matrix, 1988, Algorithm 4.1.
    """
    x = np.full(n, 1 / n, dtype)
    if random:
        x *= np.random.default_rng(0).choice([-1, 1], n).astype(dtype)
    y = product(x)
    found, j = float(abs(y).sum()), -1
    for _ in range(STEPS if n > 1 else 0):
        size = abs(y)
        z = adjoint(np.where(size > 0, y / np.where(size > 0, size, 1), 1).astype(dtype, copy=False))
        before, j = j, int(np.argmax(abs(z)))
        if j == before or abs(z[j]) <= float((z.conj() * x).sum().real):
            break
        x = np.zeros(n, dtype)
        x[j] = 1
        y = product(x)
        size_of_y = float(abs(y).sum())
        if not size_of_y > found:
            break
        found = size_of_y
    if n > 1:  # against cancellation
        alternating = ((-1.0) ** np.arange(n) * (1 + np.arange(n) / (n - 1))).astype(dtype)
        found = max(found, 2 * float(abs(product(alternating)).sum()) / (3 * n))
    return found
