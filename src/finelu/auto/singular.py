"""What shows that A is singular, and how near to it A is: null vectors, formed in twice the precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from finelu import deadline
from finelu.device import namespace, to_host
from finelu.errors import FineluError, counted
from finelu.kernels import kernels_for
from finelu.krylov.criterion import Criterion, times_power
from finelu.krylov.residual import largest
from finelu.matrix import CSR, as_csr, norm
from finelu.matrix.traits import is_hermitian
from finelu.result import Status

LIMIT = 4  # roundings of |A| |x| + |b|, up to which a residual is at the limit of the precision
UNRESOLVED = 0.1  # times 1 / eps, the condition number beyond which no digit of x is known
UNATTAINABLE = 1 / 16  # of such a rounding: no x of that size can meet a tolerance below
RANGE = 1000  # roundings up to which the part of b along u counts as 0, since u itself is known up to rounding only
ROUGH = 8  # roundings of the terms of A v, up to which a refinement of v is worth while
UNIT = 1e-3  # by which entries of a null vector may differ from 0, 1, -1, i and -i that they stand for
DOUBLE = 2.0**-53  # the largest relative rounding of double precision
EXACT = 32  # roundings in twice the precision, per entry of a row of A v, up to which it is 0
STEPS = 5  # of a refinement
LEVEL = 64  # roundings within which magnitudes are taken for equal, as those of a constant null vector are
SMALL_ENTRY = 1e-9  # relative to the largest entry of a null vector: what a shift of the diagonal may have brought in
MOST_VECTORS = 6  # null vectors that are looked for: the rigid motions of a body
KINDS = (6, 3, 2)  # unknowns of a node, one after the other: vectors that are constant for one kind are tried
GROWN = 1e-4  # length of a correction of a unit vector, from which on it is not one but the null vector itself
CORRELATED = 0.1  # length of what is new in a null vector, below which it is taken for one of those that are known
SENSIBLE = 0.1  # the largest rtol that is recommended: with more, x says nothing
MOST_EXACT = 200  # rows of a matrix whose determinant is worth forming
PRIMES = (2147483629, 2147483549)  # 1 modulo 4


def _projected(projection: Callable[[Any], Any], x: Any) -> Any:
    """The projection of x (n,), by way of 2^-p x, whose entries are at most 1, so that no sum overflows; and that of
    what it leaves, against the rounding of long sums."""
    power = math.frexp(largest(x))[1]
    x = times_power(x, -power)
    found = projection(x)
    return times_power(found + projection(x - found), power)


@dataclass(frozen=True, eq=False)
class Pieces:
    """The span of the vectors that are constant on one set of unknowns and 0 elsewhere.

    labels (n,) : the set that an unknown belongs to, -1 for none.  count : how many sets there are.
    exact : A takes their sum, for each kind of unknown, to 0 without any rounding.
    """

    labels: Any
    count: int
    exact: bool

    def part(self, x: Any) -> Any:
        """The orthogonal projection of x (n,) onto the span."""
        return _projected(self._means, x)

    def _means(self, x: Any) -> Any:
        xp, labels = namespace(x), namespace(x).where(self.labels < 0, self.count, self.labels)
        sums = xp.bincount(labels, x.real, self.count + 1)
        if x.dtype.kind == "c":
            sums = sums + 1j * xp.bincount(labels, x.imag, self.count + 1)
        means = sums / xp.maximum(xp.bincount(labels, minlength=self.count + 1), 1)
        means[self.count] = 0
        return means[labels].astype(x.dtype)

    def __str__(self) -> str:
        if self.count == 1 and not bool((self.labels < 0).any()):
            return "the constant vector v"
        return (
            f"{counted(self.count, 'vector')} v that {'is' if self.count == 1 else 'are'} constant on a set of unknowns"
        )


@dataclass(frozen=True, eq=False)
class Vectors:
    """The span of orthonormal vectors, the columns of V (n, k), and of those of `pieces`, if any, to which they are
    orthogonal."""

    V: Any
    pieces: Pieces | None = None

    @classmethod
    def together(cls, V: Any, pieces: Pieces | None) -> Vectors:
        """The span of the columns of V (n, k) and of `pieces`."""
        if pieces is None:
            return cls(V)
        xp = namespace(V)
        W = xp.stack([v - pieces.part(v) for v in V.T], axis=1)
        W, sizes = W / xp.linalg.norm(W, axis=0), xp.linalg.norm(W, axis=0)
        return cls(_orthonormal(W[:, sizes > CORRELATED]), pieces)

    def part(self, x: Any) -> Any:
        """The orthogonal projection of x (n,) onto the span."""
        return _projected(self._part, x)

    def _part(self, x: Any) -> Any:
        found = self.V @ (self.V.conj().T @ x)
        return found if self.pieces is None else found + self.pieces.part(x)


@dataclass(frozen=True, eq=False)
class Evidence:
    """exact : A is singular as it is stored, of which det A = 0, A v = 0 without any rounding or, where A is large
    and v not one of units, A v = 0 to twice the precision, is the sign; else it is so to the rounding of its entries
    only.  text : what was found.
    outside (n,) : the part of b outside of A's range, as far as it is known.
    null : the span of vectors v with A v = 0, as far as it is known.
    """

    exact: bool
    text: str
    outside: Any
    null: Pieces | Vectors | None


@dataclass(frozen=True, eq=False)
class Constants:
    """Null vectors that the pattern of A leads to.

    adjoint : A^H; None where left was not looked for.  right, left : the span of vectors v with A v = 0, and of u with
    u^H A = 0; None where there are none. Both to the rounding of the sums in the rows, and columns, of A.
    """

    A: CSR
    adjoint: CSR | None
    right: Pieces | None
    left: Pieces | None

    def evidence(self, b: Any, rtol: float, *, small: bool) -> Evidence | None:
        """The evidence that no x solves A x = b to rtol, or None.

        small : whether exact evidence alone counts, since a solution may be one of the few x that this precision holds
        without rounding.
        """
        if self.left is None or self.adjoint is None:
            return None
        eps, outside = float(np.finfo(b.dtype).eps), self.left.part(b)
        share = norm(outside) / norm(b)
        if share <= max(rtol, RANGE * eps):
            return None
        rest, rounding = _image(self.adjoint, outside)
        if not bool((rest <= rounding).all()):
            return None
        if not self.singular and (small or not self._hides(outside, b, rtol)):
            return None
        found = self.left if self.right is None else self.right
        what = "A v = 0" + ("" if found.exact else " to the rounding of the sums in its rows") + f" for {found}"
        if self.right is None:
            what = what.replace("A v", "u^H A").replace(" v", " u")
        return Evidence(
            self.singular,
            f"A is singular: {what}, and b has a part of {share:.1e} of its length outside of A's range",
            outside,
            self.right,
        )

    @cached_property
    def singular(self) -> bool:
        """Whether A is singular as it is stored."""
        exact = any(pieces is not None and pieces.exact for pieces in (self.right, self.left))
        return exact or bool(exactly_singular(self.A))

    def _hides(self, outside: Any, b: Any, rtol: float) -> bool:
        """Whether c v, v a null vector but for rounding, is so long where A c v has the length of `outside`, the part
        of b that nothing else reaches, that the rounding of its terms is far above the tolerance."""
        if self.right is None or not norm(v := self.right.part(outside)) > 0:
            return False
        length, terms = norm(_product(self.A, v)), norm(abs(self.A.tosparse()) @ abs(v))
        rounding = float(np.finfo(b.dtype).eps) * terms * norm(outside)
        return rtol * norm(b) * length <= UNATTAINABLE * rounding


def constant(A: CSR) -> Pieces | None:
    """The constant vector, if A takes it to 0 but for the rounding of the sums in its rows."""
    xp = namespace(A.data)
    one = xp.ones(A.n, A.dtype)
    vanishes = not bool(_product(A, one).any())
    if not vanishes:
        rest, rounding = _image(A, one)
        if not bool((rest <= rounding).all()):
            return None
    return Pieces(xp.zeros(A.n, np.int64), 1, vanishes and _sums_are_exact(A))


def may_be_rounding(sums: Any, A: CSR, largest_entry: float) -> bool:
    """Whether sums over all rows of A, or columns, are so small that all may be rounding of 0."""
    return largest(sums) <= float(np.finfo(A.dtype).eps) * A.n * A.nnz * largest_entry


def is_off_constant_range(b: Any, size: float, rtol: float) -> bool:
    """Whether no x solves A x = b to rtol if A^H takes the constant vector to 0.  size : ||b||."""
    with np.errstate(over="ignore", invalid="ignore"):
        part = abs(complex(b.sum())) / math.sqrt(b.size)
    return not part <= max(rtol, RANGE * float(np.finfo(b.dtype).eps)) * size


def constants(A: CSR, *, hermitian: bool) -> Constants | None:
    """The null vectors of A and A^H that are constant on sets of unknowns; None if none is found.

    Such sets are the connected parts of A, whole or of one kind of unknown, of 6, 3 or 2 that follow each other, or of
    the rows without a diagonal entry.  hermitian : A = A^H to the last bit. Cost: 4 to 15 products in twice the
    precision for each of A and A^H; the connected parts are found on the host.
    """
    adjoint = A if hermitian else as_csr(A.tosparse().conj().T.tocsr(), diagonal=False)
    right = _pieces(A)
    left = right if hermitian else _pieces(adjoint)
    return None if right is None and left is None else Constants(A, adjoint, right, left)


def _pieces(A: CSR) -> Pieces | None:
    """The vectors v with A v = 0 of which `constants` tells."""
    xp = namespace(A.data)
    indptr, indices = to_host(A.indptr), to_host(A.indices)
    pattern = sp.csr_matrix((np.ones(indices.size, np.int8), indices, indptr), shape=(A.n, A.n))
    parts = xp.asarray(connected_components(pattern, directed=False)[1])
    number, unknowns = int(parts.max()) + 1, xp.arange(A.n)

    def null(mask: Any) -> Any:
        """Which unknowns of the mask are in connected parts in which A takes its indicator to 0."""
        rest, rounding = _image(A, mask.astype(A.dtype))
        bad = xp.bincount(parts, (~(rest <= rounding)).astype(np.float64), number) > 0  # CuPy's takes no empty array
        return mask & ~bad[parts]

    whole = null(xp.ones(A.n, bool))
    found, labels, kind = whole, parts, unknowns * 0
    for k in (k for k in KINDS if A.n % k == 0):
        first = null(unknowns % k == 0)
        if bool(whole.any()) and not bool((first == (whole & (unknowns % k == 0))).all()):
            continue
        kinds = first | sum(null(unknowns % k == c) for c in range(1, k)).astype(bool)
        if bool(kinds.any()) and bool((kinds >= whole).all()):
            found, labels, kind = kinds, parts * k + unknowns % k, unknowns % k
            break
    if not bool(found.any()):
        found = null((A.diag < 0) | (A.data[xp.maximum(A.diag, 0)] == 0) if A.nnz else xp.ones(A.n, bool))
    if not bool(found.any()):
        return None
    names, numbers = xp.unique(labels[found], return_inverse=True)
    labels = xp.full(A.n, -1, np.int64)
    labels[found] = numbers
    exact = _sums_are_exact(A) and not any(
        bool(_image(A, (found & (kind == c)).astype(A.dtype))[0].any()) for c in range(int(kind.max()) + 1)
    )
    return Pieces(labels, int(names.size), exact)


def _sums_are_exact(A: CSR) -> bool:
    """Whether sums of entries of a row of A, added up in twice the precision of float64, are 0 only where they are so
    without any rounding: all partial sums, and those of what they have rounded, are then multiples of the last place
    of the smallest entry that this precision holds."""
    entries = abs(A.data.view(A.data.real.dtype))
    if not bool(entries.all()):
        entries = entries[entries > 0]
    if not entries.size:
        return True
    longest = int((A.indptr[1:] - A.indptr[:-1]).max()) * (2 if A.dtype.kind == "c" else 1)  # terms of the real part
    return float(entries.max()) * DOUBLE * longest**2 <= float(entries.min())


def _is_null(A: CSR, v: Any) -> bool | None:
    """Whether A takes a multiple of v (n,) to 0 without any rounding; None where that is not one of 0, 1, -1, i and -i
    but for the rounding of v: others cannot be held, as a rule."""
    xp = namespace(v)
    v = v / v[abs(v).argmax()]
    units = (xp.rint(v.real) + (1j * xp.rint(v.imag) if v.dtype.kind == "c" else 0)).astype(v.dtype)
    if not bool((abs(v - units) <= UNIT).all()):
        return None
    return _sums_are_exact(A) and not bool(_image(A, units)[0].any())


def _image(A: CSR, v: Any) -> tuple[Any, Any]:
    """|A v|, formed in twice the precision, and what the rounding of the sums in the rows of A may make of 0: both
    times a power of two, with which the largest terms are about 1, and others do not underflow together. Rows whose
    terms leave the range all the same are Inf, and nothing of them rounding."""
    deadline.check()
    of_A, of_v = (math.frexp(largest(values))[1] for values in (A.data, v))
    limits, xp = np.finfo(A.dtype), namespace(v)
    v = times_power(v, min(-of_A, int(limits.maxexp) - 2) - of_v)
    sizes, eps = abs(A.tosparse()) @ abs(v), float(limits.eps)
    entries = A.indptr[1:] - A.indptr[:-1]
    met = A.with_values((A.data != 0).astype(sizes.dtype)).tosparse() @ (v != 0).astype(sizes.dtype)
    known = (met == 0) | ((sizes >= float(limits.tiny) / eps**2) & xp.isfinite(sizes))
    rest, rounding = xp.where(known, abs(_product(A, v)), np.inf), xp.where(known, entries * sizes, 0)
    return rest, rounding * (eps / 2)


@dataclass(frozen=True)
class NullVector:
    """A unit vector v with |A v| <= u |A| |v| in every row, u half of eps, formed in twice the precision, or with that
    for v + w, w below the rounding of v.

    exact : A (v + w) vanishes to twice the precision, row by row.
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
    near = ", so that A may be singular but for rounding" if UNRESOLVED < known * eps < math.inf else ""
    reachable = 2 * size / norm(b)
    cures = [f"ask for rtol >= {reachable:.0e}"] if reachable < SENSIBLE else []
    cures += ["rescale the unknowns and equations", *([] if precision == "double" else ["pass A and b in float64"])]
    return (
        f"||b - A x|| is {roundings:.1g} roundings of |A| |x| + |b| (backward error {roundings * eps:.1e}): "
        f"{precision} precision ends here; {condition_in_words(known)}{near}; {', or '.join(cures)}"
    )


def condition_in_words(known: float) -> str:
    """What a lower bound of A's condition number says."""
    if math.isinf(known):
        return "the condition number of A has no bound (a vector v was met with A v = 0)"
    return f"the condition number of A is {known:.0e} or more"


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
    """The status, and the evidence for it, where A is shown to be singular or x to be as good as the precision allows.

    size : the norm of b - A x.  wanted : the relative tolerance.  F : factors of about A, or None.
    good : whether F is expected to be close to A. Without such factors, only the limit of the precision is looked
    for, and a null vector only at that limit: there x itself, which has grown, leads to it.
    known : null vectors of A. If there are some, that x has grown says nothing, unless good factors find nothing else.
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


def _rounding(residual: Criterion, b: Any, x: Any) -> float:
    return residual.rounding(b, x)


def evidence(A: CSR, F: Any, b: Any, rtol: float, begin: Any = None, known: Constants | None = None) -> Evidence | None:
    """The evidence that no x solves A x = b to rtol, or None.

    It is a vector v with A v = 0, and a u with u^H A = 0, where b has a part along u: then u^H (b - A x) is the same
    for all x. Both are found by inverse iteration with the factors F of about A, which finds none unless they are good
    ones; v from `begin` (n,), random numbers if None, and u from b itself, which leads to the part of b that is
    outside of the range of A.  known : null vectors that are known, to which others are added.
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
    U = _span(adjoint, F, direction, "H", left.v, max(rtol, RANGE * eps))
    hermitian = is_hermitian(A)
    V = U if hermitian and U.shape[1] > 1 else right.v[:, None]
    found = exactly_singular(A)
    if found is None:
        shown = [_is_null(A, right.v), _is_null(adjoint, left.v), (known is not None and known.singular) or None]
        found = True in shown or (right.exact and left.exact and False not in shown)
    length = norm(_product(A, right.v))
    return Evidence(
        found,
        f"A v = 0 to {'twice the' if right.exact else 'the'} working precision for a v of length 1 (||A v|| = "
        f"{length:.1e}, largest entry of A {largest(A.data):.1e}), and b has a part of {outside:.1e} of its length "
        f"outside of A's range",
        Vectors.together(U, None if known is None else known.left).part(b),
        Vectors.together(V, None if known is None else known.right),
    )


def _orthonormal(V: Any) -> Any:
    """An orthonormal basis (n, k) of the span of unit vectors that are nearly so, or independent."""
    xp, basis = namespace(V), V[:, :0]
    for v in V.T:
        for _ in range(2):
            v = v - basis @ (basis.conj().T @ v)
        if norm(v) > CORRELATED:
            basis = xp.concatenate([basis, (v / norm(v))[:, None]], axis=1)
    return basis


def _span(A: CSR, F: Any, start: Any, trans: str, first: Any, enough: float) -> Any:
    """Orthonormal null vectors (n, k) of A, the first of them given, until `start` has no larger part than `enough`
    along one that is not among them."""
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
    except (MemoryError, FineluError):
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
        deadline.check()
        v = _inverse_step(F, v, trans) if step < 3 else _unit(v - _applied(F, S @ v, trans))
        if v is None:
            return None
        for small in (0.0, eps, SMALL_ENTRY) if step >= 2 else ():
            v = xp.where(abs(v) <= small * abs(v).max(), 0, v)
            if norm(weight * (S @ v)) <= ROUGH * eps * norm(weight * (sizes @ abs(v))):
                unit = _unit(v)
                found = None if unit is None else _refined(A, F, unit, trans, sizes, eps)
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
        deadline.check()
        image = _product(A, v)
        magnitudes = sizes @ abs(v)
        rest = _product(A, w, image)  # A (v + w)
        if near is None and any(bool((abs(r) <= eps / 2 * magnitudes).all()) for r in (image, rest)):
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
    """F^-1 of `rest` without the parts of it that lead out of the range of a singular A, of which nearly singular F
    make a large vector, whose rounding is as large as what is wanted.

    Each part, along a left null vector u, is taken out as a multiple of the magnitudes of the rows, so that what is
    left of A v in the end is the least that there can be, compared with these.
    """
    xp = namespace(rest)
    for _ in range(MOST_VECTORS):
        step = _applied(F, rest, trans)
        size = norm(step)
        if not GROWN < size < math.inf:
            return step
        u = _unit(_applied(F, step / size, "H" if trans == "N" else "N"))
        if u is None:
            return step
        length = abs(u)
        way = magnitudes * xp.where(length > 0, u / xp.where(length > 0, length, 1), 0)
        rest = rest - way * ((u.conj() * rest).sum() / (u.conj() * way).sum())
    return _applied(F, rest, trans)


def condition(A: CSR, F: Any, x: Any) -> float:
    """|| |A| |v| || / ||A v||, the largest at hand: a number that the condition number of A is not below, however the
    rows and columns of A are scaled by powers of two.

    v is x, and what three steps of inverse iteration with the factors F make of it. A v is formed in twice the
    precision.
    """
    A = as_csr(A, diagonal=False, dtype=np.result_type(A.dtype, x.dtype))
    most, v, sizes = 1.0, x, abs(A.tosparse())
    for _ in range(4):
        deadline.check()
        v = _unit(v)
        if v is None:
            break
        length = norm(_product(A, v))
        if length == 0:
            return math.inf
        most = max(most, norm(sizes @ abs(v)) / length)
        if F is None:
            break
        v = _inverse_step(F, v, "N")
        if v is None:
            break
    return most


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
    A = as_csr(A, diagonal=False, dtype=np.result_type(A.dtype, v.dtype))
    v = xp.ascontiguousarray(v.astype(A.dtype, copy=False))
    r, start = xp.empty_like(v), xp.zeros_like(v) if plus is None else -plus
    kernels_for(v).products.residual_twice(A.indptr, A.indices, A.data, v, start, 1.0, r)
    return -r


def _inverse_step(F: Any, v: Any, trans: str) -> Any:
    """A unit vector along (F^H F)^-1 v; None where that is 0 or not finite."""
    w = _unit(_applied(F, v, "H" if trans == "N" else "N"))
    deadline.check()
    return None if w is None else _unit(_applied(F, w, trans))


def _applied(F: Any, v: Any, trans: str) -> Any:
    with np.errstate(over="ignore", invalid="ignore"):
        return F.solve(v, trans)


def _unit(v: Any) -> Any:
    size = norm(v)
    return v / size if 0 < size < math.inf else None
