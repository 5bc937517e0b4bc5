"""The verdict on an x that did not converge: A is singular, x is as good as this precision allows, or neither."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from finelu import deadline
from finelu.auto.exact import exactly_singular, product_twice, takes_to_zero
from finelu.auto.inverse_iteration import inverse_step, null_space, null_vector, unit
from finelu.auto.null_space import RANGE, UNATTAINABLE, Constants, Evidence, Vectors, where_largest
from finelu.device import namespace
from finelu.krylov.criterion import LIMIT, Criterion
from finelu.krylov.residual import largest
from finelu.matrix import CSR, as_csr, norm
from finelu.matrix.traits import is_hermitian
from finelu.result import Status

UNRESOLVED = 0.1  # times 1 / eps, the condition number beyond which no digit of x is known
SENSIBLE = 0.1  # the largest rtol that is recommended: with more, x says nothing


def verdict(
    A: CSR,
    residual: Criterion,
    F: Any,
    b: Any,
    x: Any,
    size: float,
    wanted: float,
    *,
    good: bool,
    known: Constants | None = None,
) -> tuple[Status | None, str, Evidence | None]:
    """(status, text, evidence) if A is shown to be singular or x to be as good as the precision allows; else
    (None, "", None).

    size : the norm of b - A x.
    wanted : the relative tolerance.
    F : approximate factors of A, or None.
    good : whether F is expected to be close to A. If not, only the limit of the precision is tested, and a null vector
        is looked for only at that limit, from x itself, which has then grown.
    known : known null vectors of A. If there are any, growth of x proves nothing, unless good factors find nothing
        else.
    """
    limited = at_limit(residual, b, x, size, wanted)
    if not limited and not good:
        return None, "", None
    found = evidence(A, F, b, wanted, x if limited else None, known)
    if found is not None:
        return (Status.SINGULAR if found.exact else Status.NUMERICALLY_SINGULAR), found.text, found
    if limited and (good or known is None or known.right is None):
        return Status.PRECISION_LIMIT, limit_in_words(A, residual, F, b, x, size), None
    return None, "", None


def evidence(A: CSR, F: Any, b: Any, rtol: float, begin: Any = None, known: Constants | None = None) -> Evidence | None:
    """The evidence that no x solves A x = b to rtol, or None.

    The evidence is a vector v with A v = 0, and a u with u^H A = 0 along which b has a part: then u^H (b - A x) is the
    same for all x. Both are found by inverse iteration with F. The iteration for u starts from b itself, and so leads
    to the part of b outside of the range of A.
    F : approximate factors of A, which must be good ones for the iteration to succeed.
    begin (n,) : the start of the iteration for v, None for random numbers.
    known : known null vectors, to which others are added.
    """
    if F is None:
        return None
    A = as_csr(A, diagonal=False, dtype=np.result_type(A.dtype, b.dtype))
    eps = float(np.finfo(A.dtype).eps)
    if begin is None:
        begin = namespace(b).asarray(np.random.default_rng(0).standard_normal(A.n)).astype(b.dtype)
    right = null_vector(A, F, begin, "N")
    if right is None:
        return None
    adjoint = as_csr(A.tosparse().conj().T.tocsr(), diagonal=False)
    direction = b / norm(b)
    left = null_vector(adjoint, F, direction, "H")
    outside = 0.0 if left is None else abs(complex((left.v.conj() * direction).sum()))
    if left is None or outside <= max(rtol, RANGE * eps):
        return None
    U = null_space(adjoint, F, direction, "H", left.v, max(rtol, RANGE * eps))
    hermitian = is_hermitian(A)
    V = U if hermitian and U.shape[1] > 1 else right.v[:, None]
    found = exactly_singular(A)
    if found is None:
        shown = [
            takes_to_zero(A, right.v),
            takes_to_zero(adjoint, left.v),
            (known is not None and known.singular) or None,
        ]
        found = True in shown or (right.exact and left.exact and False not in shown)
    length = norm(product_twice(A, right.v))
    precise = "twice the" if right.exact else "the"
    return Evidence(
        found,
        f"A v = 0 to {precise} working precision for a v of length 1, {where_largest(right.v)} (||A v|| = "
        f"{length:.1e}, largest entry of A {largest(A.data):.1e}); b lies partly outside of A's range, by "
        f"{outside:.1e} of its length",
        Vectors.together(U, None if known is None else known.left).part(b),
        Vectors.together(V, None if known is None else known.right),
    )


def at_limit(residual: Criterion, b: Any, x: Any, size: float, wanted: float) -> bool:
    """Whether the residual norm `size` is due to rounding of x, and the tolerance `wanted` ||b|| is far smaller."""
    return residual.reaches(b, x, max(size / LIMIT, wanted * norm(b) / UNATTAINABLE))


def limit_in_words(A: CSR, residual: Criterion, F: Any, b: Any, x: Any, size: float) -> str:
    """The meaning of PRECISION_LIMIT for this x, and what to do, in words."""
    precision, eps = "double" if b.real.dtype == np.float64 else "single", float(np.finfo(b.dtype).eps)
    roundings = size / residual.rounding(b, x)
    known = condition(A, F, x)
    near = ", so that A may be singular up to rounding" if UNRESOLVED < known * eps < math.inf else ""
    reachable = 2 * size / norm(b)
    cures = [f"ask for rtol >= {reachable:.0e}"] if reachable < SENSIBLE else []
    cures += ["rescale the unknowns and equations", *([] if precision == "double" else ["pass A and b in float64"])]
    return (
        f"||b - A x|| is {roundings:.1g} times the rounding errors of |A| |x| + |b| (backward error "
        f"{roundings * eps:.1e}), where {precision} precision ends; {condition_in_words(known)}{near}; "
        f"{', or '.join(cures)}"
    )


def condition(A: CSR, F: Any, x: Any) -> float:
    """A lower bound of the condition number of A, however its rows and columns are scaled by powers of two.

    It is the largest || |A| |v| || / ||A v|| for v = x and the vectors after each of three steps of inverse iteration
    with the factors F. A v is formed in twice the precision.
    """
    A = as_csr(A, diagonal=False, dtype=np.result_type(A.dtype, x.dtype))
    most, v, sizes = 1.0, x, abs(A.tosparse())
    for _ in range(4):
        deadline.check()
        v = unit(v)
        if v is None:
            break
        length = norm(product_twice(A, v))
        if length == 0:
            return math.inf
        most = max(most, norm(sizes @ abs(v)) / length)
        if F is None:
            break
        v = inverse_step(F, v, "N")
        if v is None:
            break
    return most


def condition_in_words(known: float) -> str:
    """A lower bound of A's condition number, in words."""
    if math.isinf(known):
        return "the condition number of A has no bound (a vector v was met with A v = 0)"
    return f"the condition number of A is {known:.0e} or more"


def is_unresolved(known: float, b: Any) -> bool:
    """Whether a condition number of A, as far as it is known, leaves no digit of x in the precision of b."""
    return known * float(np.finfo(b.dtype).eps) > UNRESOLVED
