"""What shows that A is singular, and how near to it A is: null vectors, formed in twice the precision."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from finelu.device import namespace, to_host
from finelu.kernels import kernels_for
from finelu.krylov.criterion import Criterion
from finelu.matrix import CSR, as_csr, norm
from finelu.result import Status

LIMIT = 4  # roundings of |A| |x| + |b|, up to which a residual is at the limit of the precision
UNRESOLVED = 0.1  # times 1 / eps, the condition number beyond which no digit of x is known
UNATTAINABLE = 1 / 16  # of such a rounding: no x of that size can meet a tolerance below
RANGE = 1000  # roundings up to which the part of b along u counts as 0, since u itself is known up to rounding only
ROUGH = 8  # roundings of the terms of A v, up to which a refinement of v is worth while
EXACT = 32  # roundings in twice the precision, per entry of a row of A v, up to which it is 0
STEPS = 5  # of a refinement
LEVEL = 64  # roundings within which magnitudes are taken for equal, as those of a constant null vector are
SMALL_ENTRY = 1e-9  # relative to the largest entry of a null vector: what a shift of the diagonal may have brought in
MOST_EXACT = 200  # rows of a matrix whose determinant is worth forming
PRIMES = (2147483629, 2147483549)  # 1 modulo 4


@dataclass(frozen=True)
class Evidence:
    """exact : A is singular as it is stored, of which det A = 0, or A v = 0 to twice the precision where A is large,
    is the sign; else it is so to the rounding of its entries only.  text : what was found."""

    exact: bool
    text: str


@dataclass(frozen=True)
class NullVector:
    """A unit vector v with |A v| <= u |A| |v| in every row, u half of eps, formed in twice the precision.

    exact : v with a correction below its rounding makes A v vanish to twice the precision, row by row.
    """

    v: Any
    exact: bool


def at_limit(residual: Criterion, b: Any, x: Any, size: float, wanted: float) -> bool:
    """Whether the residual norm `size` of x is what rounding x leaves, and `wanted` ||b|| less than that."""
    rounding = _rounding(residual, b, x)
    return size <= LIMIT * rounding and wanted * norm(b) <= UNATTAINABLE * rounding


def limit_in_words(A: CSR, residual: Criterion, F: Any, b: Any, x: Any, size: float) -> str:
    """What PRECISION_LIMIT means for this x, and what to do."""
    precision, eps = "double" if b.real.dtype == np.float64 else "single", float(np.finfo(b.dtype).eps)
    roundings = size / _rounding(residual, b, x)
    known = condition(A, F, x)
    near = ", which may be singular but for rounding," if known * eps > UNRESOLVED else ""
    cure = "" if precision == "double" else ", or pass A and b in float64"
    return (
        f"||b - A x|| is {roundings:.1g} roundings of |A| |x| + |b| (backward error {roundings * eps:.1e}): "
        f"{precision} precision ends here; the condition number of A{near} is {known:.0e} or more; ask for "
        f"rtol >= {2 * size / norm(b):.0e}, rescale the unknowns and equations{cure}"
    )


def verdict(
    A: CSR, residual: Criterion, F: Any, b: Any, x: Any, size: float, wanted: float, *, good: bool
) -> tuple[Status | None, str]:
    """The status, and the evidence for it, where A is shown to be singular or x to be as good as the precision allows.

    size : the norm of b - A x.  wanted : the relative tolerance.  F : factors of about A, or None.
    good : whether F is expected to be close to A. Without such factors, only the limit of the precision is looked
    for, and a null vector only at that limit: there x itself, which has grown, leads to it.
    """
    limited = at_limit(residual, b, x, size, wanted)
    if not limited and not good:
        return None, ""
    found = evidence(A, F, b, wanted, x if limited else None)
    if found is not None:
        return (Status.SINGULAR if found.exact else Status.NUMERICALLY_SINGULAR), found.text
    if limited:
        return Status.PRECISION_LIMIT, limit_in_words(A, residual, F, b, x, size)
    return None, ""


def _rounding(residual: Criterion, b: Any, x: Any) -> float:
    return residual.rounding(b, x)


def evidence(A: CSR, F: Any, b: Any, rtol: float, begin: Any = None) -> Evidence | None:
    """The evidence that no x solves A x = b to rtol, or None.

    It is a vector v with A v = 0, and a u with u^H A = 0, where b has a part along u: then u^H (b - A x) is the same
    for all x. Both are found by inverse iteration with the factors F of about A, which finds none unless they are good
    ones; v from `begin` (n,), random numbers if None, and u from b itself, which leads to the part of b that is
    outside of the range of A.
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
    found = exactly_singular(A)
    exact = right.exact and left.exact if found is None else found
    length, largest = norm(_product(A, right.v)), float(abs(A.data).max()) if A.nnz else 0.0
    return Evidence(
        exact,
        f"A v = 0 to {'twice the' if right.exact else 'the'} working precision for a v of length 1 (||A v|| = "
        f"{length:.1e}, largest entry of A {largest:.1e}), and b has a part of {outside:.1e} of its length outside of "
        f"A's range",
    )


def null_vector(A: CSR, F: Any, begin: Any, trans: str) -> NullVector | None:
    """From `begin`, with factors F of about A (trans "N") or A^H ("H"); None if none is found.

    Inverse iteration with F^H F, for the right singular vector of the smallest singular value. Then F^-1 (F v - A v)
    takes away what a shift in F has brought in. Rows of A are compared with what rounding makes of each, so that large
    ones do not hide small ones; v is looked at with and without its small entries.
    """
    S, xp, eps = A.tosparse(), namespace(begin), float(np.finfo(A.dtype).eps)
    sizes = abs(S)
    try:  # what F has taken out, and cannot find
        known = getattr(F, "null_space" if trans == "N" else "left_null_space", None)
    except MemoryError:
        known = None
    if known is not None and known.shape[1]:
        v = _unit(known @ (known.conj().T @ begin))
        found = None if v is None else _refined(A, F, v, trans, sizes, eps)
        if found is not None:
            return found
    size_of_rows = sizes @ xp.ones(A.n, begin.real.dtype)
    weight = 1 / xp.where(size_of_rows > 0, size_of_rows, 1)
    v = begin
    for step in range(STEPS):
        v = _inverse_step(F, v, trans) if step < 3 else _unit(v - _applied(F, S @ v, trans))
        if v is None:
            return None
        for small in (0.0, eps, SMALL_ENTRY) if step >= 2 else ():
            v = xp.where(abs(v) <= small * abs(v).max(), 0, v)
            if norm(weight * (S @ v)) <= ROUGH * eps * norm(weight * (sizes @ abs(v))):
                found = _refined(A, F, _unit(v), trans, sizes, eps)
                if found is not None:
                    return found
    return None


def _refined(A: CSR, F: Any, v: Any, trans: str, sizes: Any, eps: float) -> NullVector | None:
    """v refined as v + w, w below the rounding of v; its entries that are 0 stay so."""
    xp = namespace(v)
    v = v.astype(A.dtype, copy=False)
    w, support = xp.zeros_like(v), v != 0
    entries = A.indptr[1:] - A.indptr[:-1]
    size = abs(v)
    even = xp.where(size >= (1 - LEVEL * eps) * size.max(), v / xp.where(support, size, 1) * size.max(), v)
    near = next((c for c in (even, v) if bool((abs(_product(A, c)) <= eps / 2 * (sizes @ abs(c))).all())), None)
    for _ in range(STEPS):
        image = _product(A, v)
        magnitudes = sizes @ abs(v)
        if near is None and bool((abs(image) <= eps / 2 * magnitudes).all()):
            near = v
        rest = _product(A, w, image)  # A (v + w)
        if bool((abs(rest) <= EXACT * (entries + 1) * eps**2 * magnitudes).all()):
            return NullVector(v, True)
        step = _applied(F, rest, trans)
        if not bool(xp.isfinite(step).all()):
            break
        step = xp.where(support, step - v * (v.conj() * step).sum(), 0)
        total = v - (step - w)
        w = (v - total) + w - step
        v = total
        if not norm(v) > 0:
            break
    return None if near is None else NullVector(near / norm(near), False)


def condition(A: CSR, F: Any, x: Any) -> float:
    """|| |A| |v| || / ||A v||, the largest at hand: a number that the condition number of A is not below, however the
    rows and columns of A are scaled by powers of two.

    v is x, and what three steps of inverse iteration with the factors F make of it. A v is formed in twice the
    precision.
    """
    A = as_csr(A, diagonal=False, dtype=np.result_type(A.dtype, x.dtype))
    largest, v, sizes = 1.0, x, abs(A.tosparse())
    for _ in range(4):
        v = _unit(v)
        if v is None:
            break
        length = norm(_product(A, v))
        if length == 0:
            return math.inf
        largest = max(largest, norm(sizes @ abs(v)) / length)
        if F is None:
            break
        v = _inverse_step(F, v, "N")
        if v is None:
            break
    return largest


def exactly_singular(A: CSR) -> bool | None:
    """Whether det A = 0 for the numbers that A holds; None where A has more than MOST_EXACT rows.

    The determinant modulo two primes of 31 bits, whose square root of -1 stands for i: if one is not 0, A is not
    singular; a nonsingular A that is singular modulo both is one in 10^18. Cost: n^3 / 3 integer operations, on the
    host.
    """
    if A.n > MOST_EXACT:
        return None
    dense = np.asarray(to_host(A.tosparse()).todense()).astype(np.complex128)
    return all(_rank_is_deficient(_residues(dense, prime), prime) for prime in PRIMES)


def _residues(dense: np.ndarray, prime: int) -> np.ndarray:
    """(n, n) int64: the numbers modulo prime. A float is m 2^e, and 2 has an inverse."""
    root = next(r for r in (pow(g, (prime - 1) // 4, prime) for g in range(2, 50)) if r * r % prime == prime - 1)
    total = np.zeros(dense.shape, np.int64)
    for part, unit in ((dense.real, 1), (dense.imag, root)):
        for i, j in zip(*np.nonzero(part)):
            mantissa, exponent = math.frexp(part[i, j])
            value = int(math.ldexp(mantissa, 53)) * pow(2, (exponent - 53) % (prime - 1), prime)
            total[i, j] = (int(total[i, j]) + unit * value) % prime
    return total


def _rank_is_deficient(M: np.ndarray, prime: int) -> bool:
    for k in range(M.shape[0]):
        rows = np.flatnonzero(M[k:, k])
        if not rows.size:
            return True
        M[[k, k + rows[0]]] = M[[k + rows[0], k]]
        factors = M[k + 1 :, k] * pow(int(M[k, k]), -1, prime) % prime
        M[k + 1 :, k:] = (M[k + 1 :, k:] - factors[:, None] * M[k, k:] % prime) % prime
    return False


def _product(A: CSR, v: Any, plus: Any = None) -> Any:
    """A v + plus, formed in twice the precision and rounded."""
    xp = namespace(v)
    v = xp.ascontiguousarray(v.astype(A.dtype, copy=False))
    r, start = xp.empty_like(v), xp.zeros_like(v) if plus is None else -plus
    kernels_for(v).products.residual_twice(A.indptr, A.indices, A.data, v, start, 1.0, r)
    return -r


def _inverse_step(F: Any, v: Any, trans: str) -> Any:
    """A unit vector along (F^H F)^-1 v; None where that is 0 or not finite."""
    w = _unit(_applied(F, v, "H" if trans == "N" else "N"))
    return None if w is None else _unit(_applied(F, w, trans))


def _applied(F: Any, v: Any, trans: str) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        return F.solve(v, trans)


def _unit(v: Any) -> Any:
    size = norm(v)
    return v / size if 0 < size < math.inf else None
