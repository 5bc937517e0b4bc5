"""Tests whether A v = 0, exactly or to twice the precision, and whether det A = 0."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from finelu import deadline
from finelu.device import namespace, to_host
from finelu.kernels import kernels_for
from finelu.krylov.residual import largest
from finelu.matrix import CSR, as_csr
from finelu.matrix.vectors import times_power

UNIT = 1e-3  # by which entries of a null vector may differ from 0, 1, -1, i and -i that they stand for
DOUBLE = 2.0**-53  # the largest relative rounding of double precision
MOST_EXACT = 200  # rows of a matrix whose determinant is worth forming
PRIMES = (2147483629, 2147483549)  # 1 modulo 4


def product_twice(A: CSR, v: Any, plus: Any = None) -> Any:
    """A v + plus, formed in twice the precision and rounded."""
    xp = namespace(v)
    A = as_csr(A, diagonal=False, dtype=np.result_type(A.dtype, v.dtype))
    v = xp.ascontiguousarray(v.astype(A.dtype, copy=False))
    r, start = xp.empty_like(v), xp.zeros_like(v) if plus is None else -plus
    kernels_for(v).products.residual_twice(A.indptr, A.indices, A.data, v, start, 1.0, r)
    return -r


def image(A: CSR, v: Any) -> tuple[Any, Any]:
    """(|A v|, a bound of the rounding of the sums in the rows of A), with A v formed in twice the precision.

    Both are multiplied by a power of two that brings the largest terms to about 1, so that others do not underflow. For
    rows whose terms leave the range all the same, |A v| is Inf and the bound is 0.
    """
    deadline.check()
    of_A, of_v = (math.frexp(largest(values))[1] for values in (A.data, v))
    limits, xp = np.finfo(A.dtype), namespace(v)
    v = times_power(v, min(-of_A, int(limits.maxexp) - 2) - of_v)
    sizes, eps = abs(A.tosparse()) @ abs(v), float(limits.eps)
    entries = A.indptr[1:] - A.indptr[:-1]
    met = A.with_values((A.data != 0).astype(sizes.dtype)).tosparse() @ (v != 0).astype(sizes.dtype)
    known = (met == 0) | ((sizes >= float(limits.tiny) / eps**2) & xp.isfinite(sizes))
    rest, rounding = xp.where(known, abs(product_twice(A, v)), np.inf), xp.where(known, entries * sizes, 0)
    return rest, rounding * (eps / 2)


def sums_are_exact(A: CSR) -> bool:
    """Whether a sum of entries of a row of A, formed in twice the precision of float64, is 0 only if it is exactly 0.

    All partial sums, and those of their rounding errors, are then multiples of the last place of the smallest entry.
    """
    entries = abs(A.data.view(A.data.real.dtype))
    if not bool(entries.all()):
        entries = entries[entries > 0]
    if not entries.size:
        return True
    longest = int((A.indptr[1:] - A.indptr[:-1]).max()) * (2 if A.dtype.kind == "c" else 1)  # terms of the real part
    return float(entries.max()) * DOUBLE * longest**2 <= float(entries.min())


def takes_to_zero(A: CSR, v: Any) -> bool | None:
    """Whether A times a multiple of v (n,) is exactly 0; None if v has no multiple whose entries are 0, 1, -1, i and
    -i up to the rounding of v, since others are not representable as a rule."""
    xp = namespace(v)
    v = v / v[abs(v).argmax()]
    units = (xp.rint(v.real) + (1j * xp.rint(v.imag) if v.dtype.kind == "c" else 0)).astype(v.dtype)
    if not bool((abs(v - units) <= UNIT).all()):
        return None
    return sums_are_exact(A) and not bool(image(A, units)[0].any())


def exactly_singular(A: CSR) -> bool | None:
    """Whether det A = 0 for the numbers stored in A; None if A has more than MOST_EXACT rows.

    The determinant is formed modulo two primes of 31 bits, in whose fields a square root of -1 represents i. If one
    determinant is not 0, A is not singular. One nonsingular A in 10^18 is singular modulo both. Cost: n^3 / 3 integer
    operations, on the host.
    """
    if A.n > MOST_EXACT:
        return None
    dense = np.asarray(to_host(A.tosparse()).todense()).astype(np.complex128)
    return all(_rank_is_deficient(_residues(dense, prime), prime) for prime in PRIMES)


def _residues(dense: np.ndarray, prime: int) -> np.ndarray:
    """(n, n) int64: the numbers modulo prime. A float is m 2^e, and 2 has an inverse modulo prime."""
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
