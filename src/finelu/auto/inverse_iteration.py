"""Null vectors by inverse iteration with approximate factors of A, refined in twice the precision."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from finelu import deadline
from finelu.auto.exact import product_twice
from finelu.auto.null_space import CORRELATED, Vectors
from finelu.device import namespace
from finelu.errors import FineluError
from finelu.matrix import CSR, norm

ROUGH = 8  # roundings of the terms of A v, up to which a refinement of v is worth while
EXACT = 32  # roundings in twice the precision, per entry of a row of A v, up to which it is 0
STEPS = 5  # of a refinement
LEVEL = 64  # roundings within which magnitudes are taken for equal, as those of a constant null vector are
SMALL_ENTRY = 1e-9  # relative to the largest entry of a null vector: what a shift of the diagonal may have brought in
MOST_VECTORS = 6  # null vectors that are looked for: the rigid motions of a body
GROWN = 1e-4  # length of a correction of a unit vector, from which on it is not one but the null vector itself


@dataclass(frozen=True)
class NullVector:
    """A unit vector v with |A v| <= u |A| |v| in every row, with u half of eps and A v formed in twice the precision.

    The bound holds for v, or for v + w with a w below the rounding of v.
    exact : whether A (v + w) vanishes to twice the precision, row by row.
    """

    v: Any
    exact: bool


def null_vector(A: CSR, F: Any, begin: Any, trans: str) -> NullVector | None:
    """A null vector of A from `begin`, with factors F that approximate A (trans "N") or A^H ("H"); None if none is
    found.

    Inverse iteration with F^H F leads to the right singular vector of the smallest singular value. Then steps
    v <- F^-1 (F v - A v) remove the effect of a shift in F. Each row of A v is compared with its own rounding, so that
    large rows do not hide small ones. v is tested with and without its small entries.
    """
    S, xp, eps = A.tosparse(), namespace(begin), float(np.finfo(A.dtype).eps)
    sizes = abs(S)
    try:  # null vectors that F has removed, so that inverse iteration cannot find them
        known = getattr(F, "null_space" if trans == "N" else "left_null_space", None)
    except (MemoryError, FineluError):
        known = None
    if known is not None and known.shape[1]:
        v = unit(known @ (known.conj().T @ begin))
        found = None if v is None else _refined(A, F, v, trans, sizes, eps)
        if found is not None:
            return found
    size_of_rows = sizes @ xp.ones(A.n, begin.real.dtype)
    weight = 1 / xp.where(size_of_rows > 0, size_of_rows, 1)
    v = begin
    for step in range(STEPS):
        deadline.check()
        v = inverse_step(F, v, trans) if step < 3 else unit(v - _applied(F, S @ v, trans))
        if v is None:
            return None
        for small in (0.0, eps, SMALL_ENTRY) if step >= 2 else ():
            v = xp.where(abs(v) <= small * abs(v).max(), 0, v)
            if norm(weight * (S @ v)) <= ROUGH * eps * norm(weight * (sizes @ abs(v))):
                w = unit(v)
                found = None if w is None else _refined(A, F, w, trans, sizes, eps)
                if found is not None:
                    return found
    return None


def _refined(A: CSR, F: Any, v: Any, trans: str, sizes: Any, eps: float) -> NullVector | None:
    """v refined as v + w, with w below the rounding of v; None if that is not a null vector.

    Entries of v that are 0 stay 0.
    """
    xp = namespace(v)
    v = v.astype(A.dtype, copy=False)
    w, support = xp.zeros_like(v), v != 0
    entries = A.indptr[1:] - A.indptr[:-1]
    size = abs(v)
    even = xp.where(size >= (1 - LEVEL * eps) * size.max(), v / xp.where(support, size, 1) * size.max(), v)
    near = next((c for c in (even, v) if bool((abs(product_twice(A, c)) <= eps / 2 * (sizes @ abs(c))).all())), None)
    for _ in range(STEPS):
        deadline.check()
        Av = product_twice(A, v)
        magnitudes = sizes @ abs(v)
        rest = product_twice(A, w, Av)  # A (v + w)
        if near is None and any(bool((abs(r) <= eps / 2 * magnitudes).all()) for r in (Av, rest)):
            near = v
        if bool((abs(rest) <= EXACT * (entries + 1) * eps**2 * magnitudes).all()):
            return NullVector(v, True)
        step = _step(F, rest, magnitudes, trans)
        if not bool(xp.isfinite(step).all()):
            break
        step = xp.where(support, step - v * (v.conj() * step).sum(), 0)
        total = v - (step - w)
        w = (v - total) + w - step
        v = total
        if not norm(v) > 0:
            break
    return None if near is None else NullVector(near / norm(near), False)


def _step(F: Any, rest: Any, magnitudes: Any, trans: str) -> Any:
    """F^-1 times `rest` without its parts outside the range of a singular A.

    A nearly singular F makes a large vector of such a part, whose rounding is as large as the wanted component. Each
    part, along a left null vector u, is removed by subtracting a multiple of the magnitudes of the rows, so that the
    final A v is as small as possible compared with these magnitudes.
    """
    xp = namespace(rest)
    for _ in range(MOST_VECTORS):
        step = _applied(F, rest, trans)
        size = norm(step)
        if not GROWN < size < math.inf:
            return step
        u = unit(_applied(F, step / size, "H" if trans == "N" else "N"))
        if u is None:
            return step
        length = abs(u)
        way = magnitudes * xp.where(length > 0, u / xp.where(length > 0, length, 1), 0)
        rest = rest - way * ((u.conj() * rest).sum() / (u.conj() * way).sum())
    return _applied(F, rest, trans)


def null_space(A: CSR, F: Any, start: Any, trans: str, first: Any, enough: float) -> Any:
    """Orthonormal null vectors (n, k) of A.

    first : the first of them.  start : the vector from which others are found.
    enough : the search ends when the part of `start` outside their span is at most this long, or no other is found.
    """
    xp, V = namespace(start), first[:, None]
    while V.shape[1] < MOST_VECTORS:
        rest = start - Vectors(V).part(start)
        if not norm(rest) > enough:
            break
        found = null_vector(A, F, rest / norm(rest), trans)
        new = None if found is None else found.v - Vectors(V).part(found.v)
        if new is None or not norm(new) > CORRELATED:
            break
        V = xp.concatenate([V, (new / norm(new))[:, None]], axis=1)
    return V


def inverse_step(F: Any, v: Any, trans: str) -> Any:
    """A unit vector along (F^H F)^-1 v; None if that is 0 or not finite."""
    w = unit(_applied(F, v, "H" if trans == "N" else "N"))
    deadline.check()
    return None if w is None else unit(_applied(F, w, trans))


def _applied(F: Any, v: Any, trans: str) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        return F.solved(v, trans)


def unit(v: Any) -> Any:
    size = norm(v)
    return v / size if 0 < size < math.inf else None
