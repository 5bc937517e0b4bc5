"""Spans of null vectors, and null vectors that follow from the pattern of A: vectors constant on sets of unknowns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components

from finelu.auto.exact import exactly_singular, image, product_twice, sums_are_exact
from finelu.device import namespace, to_host
from finelu.errors import counted
from finelu.krylov.residual import largest
from finelu.matrix import CSR, as_csr, norm
from finelu.matrix.vectors import times_power

UNATTAINABLE = 1 / 16  # of such a rounding: no x of that size can meet a tolerance below
RANGE = 1000  # roundings up to which the part of b along u counts as 0, since u itself is known up to rounding only
KINDS = (6, 3, 2)  # unknowns of a node, one after the other: vectors that are constant for one kind are tried
NAMED = 8  # unknowns that a text names
CORRELATED = 0.1  # length of what is new in a null vector, below which it is taken for one of those that are known


def _projected(projection: Callable[[Any], Any], x: Any) -> Any:
    """The projection of x (n,), formed for 2^-p x, whose entries are at most 1, so that no sum overflows.

    The projection is applied again to the remainder, to reduce the rounding of long sums.
    """
    power = math.frexp(largest(x))[1]
    x = times_power(x, -power)
    found = projection(x)
    return times_power(found + projection(x - found), power)


@dataclass(frozen=True, eq=False)
class Pieces:
    """The span of the vectors that are constant on one set of unknowns and 0 elsewhere.

    labels (n,) : the set to which an unknown belongs, -1 for none.
    count : the number of sets.
    exact : whether A times the sum of these vectors, for each kind of unknown, is exactly 0.
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

    def vector(self) -> Any:
        """The vector of the first set (n,), of length 1, on the host."""
        inside = to_host(self.labels == 0).astype(np.float64)
        return inside / norm(inside)

    def __str__(self) -> str:
        if self.count == 1 and not bool((self.labels < 0).any()):
            return "the constant vector v"
        return (
            f"{counted(self.count, 'vector')} v that {'is' if self.count == 1 else 'are'} constant on a set of unknowns"
        )


@dataclass(frozen=True, eq=False)
class Vectors:
    """The span of the columns of V (n, k), which are orthonormal, and of `pieces`, if any, to which they are
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
        return cls(orthonormal(W[:, sizes > CORRELATED]), pieces)

    def part(self, x: Any) -> Any:
        """The orthogonal projection of x (n,) onto the span."""
        return _projected(self._part, x)

    def vector(self) -> Any:
        """The first vector (n,), of length 1, on the host."""
        return to_host(self.V[:, 0]).copy() if self.V.shape[1] or self.pieces is None else self.pieces.vector()

    def _part(self, x: Any) -> Any:
        found = self.V @ (self.V.conj().T @ x)
        return found if self.pieces is None else found + self.pieces.part(x)


def where_largest(v: Any) -> str:
    """The unknowns at which v (n,) is at least half as large as anywhere, the largest first, in words."""
    sizes = to_host(abs(v))
    order = np.argsort(-sizes, kind="stable")
    places = order[sizes[order] >= sizes.max() / 2]
    if places.size > max(NAMED, sizes.size // 4):
        return f"of about the same size at {places.size} unknowns"
    named = ", ".join(map(str, places[:NAMED])) + (" and others" if places.size > NAMED else "")
    return f"largest at unknown{'' if places.size == 1 else 's'} {named}"


def orthonormal(V: Any) -> Any:
    """An orthonormal basis (n, k) of the span of the columns of V, which are unit vectors.

    A column that depends on those before it, up to CORRELATED, is left out.
    """
    xp, basis = namespace(V), V[:, :0]
    for v in V.T:
        for _ in range(2):
            v = v - basis @ (basis.conj().T @ v)
        if norm(v) > CORRELATED:
            basis = xp.concatenate([basis, (v / norm(v))[:, None]], axis=1)
    return basis


@dataclass(frozen=True, eq=False)
class Evidence:
    """Evidence that A is singular and b outside of its range.

    exact : whether A is singular as stored; else it is singular up to the rounding of its entries. The proof is one of:
        det A = 0; A v = 0 exactly; for a large A and a v with entries other than 0, 1, -1, i and -i, A v = 0 to twice
        the precision.
    text : the finding in words.
    outside (n,) : the part of b outside of A's range, as far as it is known.
    null : the span of vectors v with A v = 0, as far as it is known.
    """

    exact: bool
    text: str
    outside: Any
    null: Pieces | Vectors | None


@dataclass(frozen=True, eq=False)
class Constants:
    """Null vectors that follow from the pattern of A.

    adjoint : A^H; None if `left` was not looked for.
    right : the span of vectors v with A v = 0 up to the rounding of the sums in the rows of A; None if none was found.
    left : the span of vectors u with u^H A = 0 up to the rounding of the sums in its columns; None if none was found.
    """

    A: CSR
    adjoint: CSR | None
    right: Pieces | None
    left: Pieces | None

    def evidence(self, b: Any, rtol: float, *, small: bool) -> Evidence | None:
        """The evidence that no x solves A x = b to rtol, or None.

        small : whether only exact evidence counts, since a solution may be one of the few x that this precision
            represents without rounding.
        """
        if self.left is None or self.adjoint is None:
            return None
        eps, outside = float(np.finfo(b.dtype).eps), self.left.part(b)
        share = norm(outside) / norm(b)
        if share <= max(rtol, RANGE * eps):
            return None
        rest, rounding = image(self.adjoint, outside)
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
            f"A is singular: {what}; b lies partly outside of A's range, by {share:.1e} of its length",
            outside,
            self.right,
        )

    @cached_property
    def singular(self) -> bool:
        """Whether A is singular as it is stored."""
        exact = any(pieces is not None and pieces.exact for pieces in (self.right, self.left))
        return exact or bool(exactly_singular(self.A))

    def _hides(self, outside: Any, b: Any, rtol: float) -> bool:
        """Whether no x can reach `outside` to the tolerance in this precision.

        Only a multiple c v of a v that is a null vector up to rounding could reach it. The test is whether c v, if
        A c v is as long as `outside`, is so large that the rounding of its terms is far above the tolerance.
        """
        if self.right is None or not norm(v := self.right.part(outside)) > 0:
            return False
        length, terms = norm(product_twice(self.A, v)), norm(abs(self.A.tosparse()) @ abs(v))
        rounding = float(np.finfo(b.dtype).eps) * terms * norm(outside)
        return rtol * norm(b) * length <= UNATTAINABLE * rounding


def constant(A: CSR) -> Pieces | None:
    """The constant vector, if A takes it to 0 up to the rounding of the sums in its rows."""
    xp = namespace(A.data)
    one = xp.ones(A.n, A.dtype)
    vanishes = not bool(product_twice(A, one).any())
    if not vanishes:
        rest, rounding = image(A, one)
        if not bool((rest <= rounding).all()):
            return None
    return Pieces(xp.zeros(A.n, np.int64), 1, vanishes and sums_are_exact(A))


def may_be_rounding(sums: Any, A: CSR, largest_entry: float) -> bool:
    """Whether the sums over the rows, or columns, of A are so small that all may be 0 up to rounding."""
    return largest(sums) <= float(np.finfo(A.dtype).eps) * A.n * A.nnz * largest_entry


def is_off_constant_range(b: Any, size: float, rtol: float) -> bool:
    """Whether no x solves A x = b to rtol if A^H takes the constant vector to 0.  size : ||b||."""
    with np.errstate(over="ignore", invalid="ignore"):
        part = abs(complex(b.sum())) / math.sqrt(b.size)
    return not part <= max(rtol, RANGE * float(np.finfo(b.dtype).eps)) * size


def constants(A: CSR, *, hermitian: bool) -> Constants | None:
    """The null vectors of A and A^H that are constant on sets of unknowns; None if none is found.

    Such a set is a part of a connected part of A:
    - all of its unknowns;
    - the unknowns of one kind, if nodes have 6, 3 or 2 consecutive unknowns;
    - the unknowns whose rows have no diagonal entry, or a zero one.
    hermitian : whether A = A^H to the last bit. Cost: 4 to 15 products in twice the precision for each of A and A^H;
    the connected parts are found on the host.
    """
    adjoint = A if hermitian else as_csr(A.tosparse().conj().T.tocsr(), diagonal=False)
    right = _pieces(A)
    left = right if hermitian else _pieces(adjoint)
    return None if right is None and left is None else Constants(A, adjoint, right, left)


def _pieces(A: CSR) -> Pieces | None:
    """The vectors v with A v = 0 that `constants` describes; None if there are none."""
    xp = namespace(A.data)
    indptr, indices = to_host(A.indptr), to_host(A.indices)
    pattern = sp.csr_matrix((np.ones(indices.size, np.int8), indices, indptr), shape=(A.n, A.n))
    parts = xp.asarray(connected_components(pattern, directed=False)[1])
    number, unknowns = int(parts.max()) + 1, xp.arange(A.n)

    def null(mask: Any) -> Any:
        """The unknowns of the mask in connected parts where A times the indicator of the mask is 0."""
        rest, rounding = image(A, mask.astype(A.dtype))
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
    exact = sums_are_exact(A) and not any(
        bool(image(A, (found & (kind == c)).astype(A.dtype))[0].any()) for c in range(int(kind.max()) + 1)
    )
    return Pieces(labels, int(names.size), exact)
