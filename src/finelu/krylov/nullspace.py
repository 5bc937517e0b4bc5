"""`nullspace=`: a singular A x = b, solved for the x without a part along given null vectors of A."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from finelu.device import namespace, to_host
from finelu.errors import MatrixError, ParameterError, meant
from finelu.krylov.operators import Identity, Operator
from finelu.krylov.residual import Residual
from finelu.krylov.system import System
from finelu.matrix import check_vector, norm
from finelu.matrix.vectors import as_dtype
from finelu.result import Solution, Status

ROUNDING = 1000.0  # roundings of b, up to which its part along null vectors counts as 0
DEPENDENT = 100.0  # eps n^(1/2) of the largest singular value of vectors of length 1: smaller ones show dependent ones
ABOVE = 1.01  # times the tolerance, or the residual before, that the residual without the part along V may have


@dataclass(frozen=True, eq=False)
class NullSpace:
    """The span of vectors v with A v = 0, and of vectors u with u^H A = 0, if these are known.

    right (n, k) : an orthonormal basis of the span.
    left (n, m) : one of vectors u with u^H A = 0: the given ones, else the same or the conjugate vectors; None if A^H
        takes neither to 0, or A has no products with A^H.
    """

    right: Any
    left: Any

    @classmethod
    def of(cls, given: Any, A: Operator, like: Any, *, hermitian: bool = False) -> NullSpace | None:
        """The span of `given`: vectors v, "constant", (n,) or (n, k) on the device of A; or a tuple of two of these,
        vectors v and vectors u. None if there is no v.

        like (n,) : a vector of the working dtype.  hermitian : whether A = A^H, by the need of a method.
        Raises ParameterError for other words, for vectors of 0, and, with the number, if A v or A^H u is not 0 for one
        of them to half of the digits; MatrixError for vectors u and an A without products with A^H.
        """
        given, left = given if is_pair(given) else (given, None)
        V, residual = _vectors(given, like), Residual(A, like)
        left = left if left is None or isinstance(left, str) or np.size(left) else None
        if V.shape[1] == 0:
            if left is not None:
                raise ParameterError("nullspace=(V, U): V has no column; a null vector of A is needed for each of A^H.")
            return None
        basis, terms = _null_basis(V, A, lambda v: _terms(A, residual, v), "A", "v")
        if left is not None:
            H = A.H
            return cls(basis, _null_basis(_vectors(left, like), H, lambda u: _length(H, u), "A^H", "u")[0])
        return cls(basis, basis if hermitian else _left(A, basis, _allowed(like) * terms))

    def orthogonal(self, x: Any) -> Any:
        """x without its part along the vectors v."""
        return _without(self.right, x)

    def in_range(self, b: Any) -> Any:
        """b without its part along the vectors u: 0 if the rest is rounding."""
        if self.left is None:
            return b
        rest = _without(self.left, b)
        return rest if norm(rest) > ROUNDING * float(np.finfo(b.dtype).eps) * norm(b) else rest * 0

    def _without_left(self, r: Any) -> Any:
        return r if self.left is None else _without(self.left, r)

    def restricted(self, system: System) -> System:
        """The system for the part of b in the range of A, with M on the vectors orthogonal to the null vectors."""
        found = copy(system)
        found.b = namespace(system.b).ascontiguousarray(self.in_range(system.b))
        found.x0 = None if system.x0 is None else self.orthogonal(system.x0)
        found.M = self._around(system.M)
        return found

    def _around(self, M: Any) -> Any:
        """P M Q, with P and Q the projections of `orthogonal` and `in_range`: Hermitian if M is and A = A^H."""
        if isinstance(M, Identity):
            return M

        def apply(r: Any) -> Any:
            return self.orthogonal(M @ self._without_left(r))

        def adjoint() -> Callable[[Any], Any]:
            H = M.H
            return lambda y: self._without_left(H @ self.orthogonal(y))

        return Operator(apply, M.given, M.name, None if M.make_adjoint is None else adjoint)

    def completed(self, found: Solution, A: Operator, b: Any, given: Any, rtol: float, atol: float) -> Solution:
        """The solution for `given`, from that for b, its part in the range: without a part along the null vectors.

        Its status is STAGNATED if that changes the residual, so that it fails the test, which only rounding can do.
        """
        x = self.orthogonal(found.x)
        target = max(rtol * norm(b), atol)
        _, size = Residual(A, b)(b, x, target)
        lost = found.converged and not size <= ABOVE * max(target, found.residual_norm)
        history = found.history.copy()
        history[-1] = size
        outside = norm(given - b)
        return replace(
            found,
            x=x,
            status=Status.STAGNATED if lost else found.status,
            residual_norm=size,
            history=history,
            outside=None if self.left is None else outside,
            seen=(*(text.partition("; nullspace=")[0] for text in found.seen), self._in_words(outside, norm(given), b)),
        )

    def _in_words(self, outside: float, size: float, b: Any) -> str:
        def named(V: Any) -> str:
            return "the null vector" if V.shape[1] == 1 else f"the {V.shape[1]} null vectors"

        vectors = f"{named(self.right)} of `nullspace`"
        if self.left is None:
            return f"x has no part along {vectors}; b is as it was given, since A^H is not known to take them to 0"
        same = self.left is self.right
        along = "" if same else f" along {named(self.left)} of A^H"
        if outside <= ROUNDING * float(np.finfo(b.dtype).eps) * size:
            return f"x has no part along {vectors}, and neither has b" + ("" if same else f" one{along}")
        there = along or (" along it" if self.right.shape[1] == 1 else " along them")
        return (
            f"x has no part along {vectors}. b has a part{there} of {outside / size:.1e} of its length. If the given "
            "vectors are null vectors, no x reaches this part: x is the least-squares solution, and the residual is "
            "that of the rest of b"
        )


def is_pair(given: Any) -> bool:
    """Whether `nullspace` has the null vectors of A and those of A^H."""
    if isinstance(given, tuple) and any(part is None for part in given):
        raise ParameterError("nullspace=(V, U): V or U is None; give V alone where U is not known.")
    return isinstance(given, tuple) and len(given) == 2 and all(isinstance(V, str) or np.ndim(V) for V in given)


def _null_basis(V: Any, A: Operator, terms: Callable[[Any], float], name: str, letter: str) -> tuple[Any, float]:
    """(an orthonormal basis of the span of V, the largest of the sizes of the terms of A v).

    terms : v -> the size of the terms of A v.  name, letter : of A and v, for errors.
    Raises ParameterError, with the number, if A v is not 0 to half of the digits.
    """
    xp, worst = namespace(V), 0.0
    for k, v in enumerate(V.T):
        v = xp.ascontiguousarray(v)
        expected, size = terms(v), norm(A @ v)
        if not size <= _allowed(V) * expected:
            raise ParameterError(
                f"nullspace: ||{name} {letter}|| is {size / expected if expected else np.inf:.1e} of "
                f"|| |{name}| |{letter}| || for vector {k}, which is no null vector of {name}."
            )
        worst = max(worst, expected)
    basis = _orthonormal(V)
    for v in basis.T:
        size = norm(A @ xp.ascontiguousarray(v))
        if not size <= _allowed(V) * worst:
            raise ParameterError(
                f"nullspace: the vectors are nearly dependent, and {name} does not take to 0 what they differ by: "
                f"||{name} {letter}|| is {size / worst if worst else np.inf:.1e} of || |{name}| |{letter}| || for one "
                "of their orthonormal basis."
            )
    return basis, worst


def _vectors(given: Any, like: Any) -> Any:
    """(n, k) of the working dtype, each of length 1."""
    xp, n = namespace(like), like.size
    if isinstance(given, str):
        if given != "constant":
            raise ParameterError(
                f"nullspace={given!r}; 'constant' or vectors ({n},) or ({n}, k) are needed."
                + meant(given, ("constant",))
            )
        given = xp.ones(n, like.real.dtype)
    V = check_vector(given, n, like, "nullspace").reshape(n, -1)
    if V.dtype.kind == "c" and like.dtype.kind != "c":
        raise MatrixError(
            "nullspace is complex, but A and b are real; give its real and imaginary parts, or a complex b."
        )
    V = as_dtype(V, like.dtype)
    sizes = [norm(v) for v in V.T]
    if 0.0 in sizes:
        raise ParameterError(f"nullspace: vector {sizes.index(0.0)} is 0.")
    return V / xp.asarray(np.array(sizes, dtype=like.real.dtype))


def _allowed(like: Any) -> float:
    """||A v|| / || |A| |v| || of a null vector, at most."""
    return float(np.sqrt(np.finfo(like.dtype).eps))


def _terms(A: Operator, residual: Residual, v: Any) -> float:
    """|| |A| |v| ||, or if no entries of A are known, `_length`."""
    terms = residual.magnitudes(namespace(v).zeros_like(v), v)
    return _length(A, v) if terms is None else norm(terms)


def _length(A: Operator, like: Any) -> float:
    """The length of A w for a random w of length 1."""
    w = namespace(like).asarray(np.random.default_rng(0).standard_normal(like.size)).astype(like.dtype)
    return norm(A @ w) / norm(w)


def _orthonormal(V: Any) -> Any:
    """An orthonormal basis of the span, by singular vectors in double precision, on the host."""
    wide = to_host(V).astype(np.result_type(V.dtype, np.float64))
    U, sizes, _ = np.linalg.svd(wide, full_matrices=False)
    eps = float(np.finfo(V.dtype).eps)
    kept = sizes > DEPENDENT * eps * np.sqrt(V.shape[0]) * sizes[0]
    return namespace(V).asarray(U[:, kept].astype(V.dtype))


def _left(A: Operator, V: Any, allowed: float) -> Any:
    """V or its conjugate, whichever A^H takes to 0; None for neither."""
    if A.make_adjoint is None:
        return None
    try:
        H = A.H
        for U in (V, V.conj()) if V.dtype.kind == "c" else (V,):
            if all(norm(H @ namespace(V).ascontiguousarray(u)) <= allowed for u in U.T):
                return U
    except MatrixError:  # an operator without rmatvec
        return None
    return None


def _without(V: Any, x: Any) -> Any:
    """x - V V^H x, twice, as the first may leave the rounding of long sums."""
    for _ in range(2):
        x = x - V @ (V.conj().T @ x)
    return x
