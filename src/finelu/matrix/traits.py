"""Properties of a matrix on which recipes and their choice depend: symmetry, diagonal, signs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from finelu.device import namespace, on_gpu
from finelu.errors import counted
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR, Mirrored, Triangle
from finelu.matrix.looks import alike, cancelling, crosses, flow, skew, turns, uneven
from finelu.page import facts_as_html
from finelu.recent import of_pattern

ROUNDINGS = 1000  # entries of an assembled matrix count as equal up to this many roundings; see `symmetry_of`
NEARLY = {"f": 1e-3, "d": 1e-6}  # relative difference that a Hermitian recipe accepts, in single and double precision
NEARLY_ALL = 0.99  # of the entries, or of the rows, of an M-matrix
SHARE = 0.9  # of a diagonal entry, see `coupled`
DENSE, DENSE_ROOTS = 16, 10  # a row is dense if it has more entries than both 16 and 10 sqrt(n)
LONG = 2000  # levels of which a lower bound is enough, as a GPU takes a millisecond to count them
MANY, FLOWING = 5000, 10_000  # rows from which it pays to know, and for `flow`


@dataclass(kw_only=True)
class Diagonal:
    """The stored diagonal: rows that miss it or hold an exact zero (first of each, -1 if none), and its sign."""

    missing: int
    first_missing: int
    zero: int
    first_zero: int
    positive: bool  # all n entries are stored, real and > 0
    usable: bool  # an incomplete factorization can divide by it: no entry is missing or zero


@dataclass(kw_only=True)
class MatrixTraits:
    """The properties that decide which recipe and method fit a matrix; see `traits`.

    kind : "hermitian" (symmetric, if real), "symmetric" (complex, A = A^T) or "general".
    definite : A may be positive definite: it is Hermitian, with a positive diagonal.
    m_matrix : A has the signs of a discretized elliptic operator: the entries off the diagonal whose sign is that of
        their row's diagonal entry add up to at most 1% of the others, and in 99% of the rows all entries, multiplied by
        that sign, add up to no less than 0.
    strictly : A has these signs and sums in all entries and rows, up to rounding; then m_matrix is true, too.
    coupled : the part of the rows in which the magnitudes of the entries off the diagonal add up to more than 0.9 of
        the diagonal one, as they do within the domain of an elliptic equation; the unknowns of other rows hardly depend
        on others. 0 if A is complex or has no full diagonal.
    uneven : couplings jump from cell to cell, see `uneven`. False for few rows, on a GPU, and where `coupled` is 0.
    turns : the flow turns, see `turns`. False for few rows, on a GPU, for an A that is Hermitian or no M-matrix, and
        where `coupled` is 0.
    crosses : the flow crosses the order of the rows, see `crosses`. False where `turns` is for these reasons.
    skew : the size of the skew-symmetric part as a part of the symmetric one, see `skew`. 0 for few rows, on a GPU, for
        an A that is Hermitian or no M-matrix, and where `coupled` is 0.
    alike : (b - 1) / b if nodes have b unknowns, whose rows have entries in the same columns, in the mean of some rows.
        0 for few rows, for an A that is not definite, for an M-matrix, and where `coupled` is 0.
    cancelling : the part of some rows whose entries nearly cancel, see `cancelling`. 0 for few rows, on a GPU, for an A
        that is not Hermitian or an M-matrix, and where `coupled` is 0.
    flow : the unknowns of a cell, if one of them is like a pressure and the others are carried by a flow, see `flow`; 0
        for few rows, for an A that is Hermitian or an M-matrix, and where `coupled` is 0.
    levels : of A's lower triangle, the longest chain of rows that depend on each other, where A is on a GPU, which
        follows them one by one; or a lower bound of more than `LONG`. 1 on the CPU, for few rows, and if a diagonal
        entry is not stored.
    paired : the part of the entries (i, j) with an entry (j, i).
    mean_row, longest_row : entries of a row, on average and at most.
    dense : A has a dense row, see `dense_row`.
    mirrored : A compared with its transpose, see kernels/reference/inspection.py.
    gpu, complex : whether A is on a GPU, and complex.
    """

    n: int
    nnz: int
    kind: str
    diagonal: Diagonal
    definite: bool
    m_matrix: bool
    strictly: bool
    coupled: float
    uneven: bool
    turns: bool
    crosses: bool
    skew: float
    alike: float
    cancelling: float
    flow: int
    levels: int
    paired: float
    mean_row: float
    longest_row: int
    dense: bool
    mirrored: Mirrored
    gpu: bool
    complex: bool

    def __getattr__(self, name: str) -> Any:
        """A fact that `traits` left for later: it is looked at now."""
        look, given = LATER.get(name), vars(self).get("_given")
        if look is None or given is None:
            raise AttributeError(f"MatrixTraits has no attribute {name!r}")
        fact = vars(self)[name] = look(given, self)
        return fact

    def _repr_html_(self) -> str:
        return facts_as_html("Traits", ((field.name, getattr(self, field.name)) for field in fields(self)))

    def sentences(self) -> tuple[str, ...]:
        hermitian = "Hermitian" if self.complex else "symmetric"
        kind = {"hermitian": hermitian, "symmetric": "complex symmetric", "general": "not symmetric"}[self.kind]
        if self.diagonal.missing or self.diagonal.zero:
            gaps = self.diagonal.missing + self.diagonal.zero
            on_diagonal = f"{counted(gaps, 'diagonal entry is', 'diagonal entries are')} missing or zero"
        else:
            positive = self.diagonal.positive
            on_diagonal = "all diagonal entries are positive" if positive else "no diagonal entry is missing or zero"
        sign = "are negative" if self.diagonal.positive else "have the opposite sign"
        signs = f"; nearly all other entries {sign}; nearly all rows are diagonally dominant"
        if self.strictly:
            signs = f"; the other entries {sign}; A is diagonally dominant"
        rows, entries = "row" if self.n == 1 else "rows", "entry" if self.nnz == 1 else "entries"
        return (f"{self.n} {rows}, {self.nnz} {entries}, {kind}; {on_diagonal}{signs if self.m_matrix else ''}",)


def traits(A: CSR, *, at_once: bool = True) -> MatrixTraits:
    """The traits of A. Cost: a few passes over the entries, where A is.

    at_once : False leaves those in LATER until they are asked for, for a caller that sees to it that A does not change
        meanwhile.
    """
    mirrored, found = A.mirrored(), diagonal(A)
    kind = symmetry_of(mirrored, A.dtype)
    m_matrix, strictly, coupled = False, False, 0.0
    if found.usable and A.dtype.kind != "c":
        signs = kernels_for(A.data).inspection.signs
        same, opposite, fine, close = signs(A.indptr, A.data, A.diag, 1e-8, SHARE)
        coupled = close / A.n
        m_matrix = opposite > 0 and same <= (1 - NEARLY_ALL) * opposite and fine >= NEARLY_ALL * A.n
        strictly = m_matrix and same == 0 and fine == A.n
    counted = not found.missing and A.n >= MANY  # of few rows a direct solve may come first, which needs no other facts
    longest = A.facts[0] if counted else int((A.indptr[1:] - A.indptr[:-1]).max())
    known = object.__new__(MatrixTraits)  # whose constructor wants all facts
    vars(known).update(
        n=A.n,
        nnz=A.nnz,
        kind=kind,
        diagonal=found,
        definite=kind == "hermitian" and found.positive,
        m_matrix=m_matrix,
        strictly=strictly,
        coupled=coupled,
        paired=mirrored[-1] / max(A.nnz, 1),
        mean_row=A.nnz / A.n,
        longest_row=longest,
        dense=longest > dense_row(A.n),
        mirrored=mirrored,
        gpu=on_gpu(A.data),
        complex=A.dtype.kind == "c",
        _given=A if A.n >= MANY else None,
    )
    if A.n < MANY:
        vars(known).update(OF_FEW)
    elif at_once:
        for name in LATER:
            getattr(known, name)
        del vars(known)["_given"]
    return known


def _looked_at(A: CSR, known: MatrixTraits) -> bool:
    """Whether some of A's many rows are looked at: they are coupled, and on the host."""
    return known.coupled > 0 and not known.gpu


def _alike(A: CSR) -> float:
    """`alike` of the rows of A that are not dense."""
    return alike(A, dense_row(A.n))


def _carried(A: CSR, known: MatrixTraits) -> int:
    """`flow` of A, whose comparison with its transpose is known."""
    with A.unchanged(known.mirrored):
        return flow(A)


# The traits that take a look at some rows of a matrix with many, which `traits` may leave for later; and those of a
# matrix with few.
OF_FEW = {"uneven": False, "turns": False, "crosses": False, "skew": 0.0, "alike": 0.0, "cancelling": 0.0, "flow": 0}
OF_FEW |= {"levels": 1}
LATER: dict[str, Callable[[CSR, MatrixTraits], Any]] = {
    "uneven": lambda A, of: _looked_at(A, of) and uneven(A),
    "turns": lambda A, of: _looked_at(A, of) and of.m_matrix and of.kind == "general" and turns(A),
    "crosses": lambda A, of: _looked_at(A, of) and of.m_matrix and of.kind == "general" and crosses(A),
    "skew": lambda A, of: skew(A) if _looked_at(A, of) and of.m_matrix and of.kind == "general" else 0.0,
    "alike": lambda A, of: of_pattern(A, _alike) if of.coupled > 0 and of.definite and not of.m_matrix else 0.0,
    "cancelling": lambda A, of: (
        cancelling(A) if _looked_at(A, of) and not of.m_matrix and of.kind == "hermitian" else 0.0
    ),
    "flow": lambda A, of: (
        _carried(A, of) if of.coupled > 0 and A.n >= FLOWING and of.kind == "general" and not of.m_matrix else 0
    ),
    "levels": lambda A, of: of_pattern(A, _levels_below) if of.gpu and not A.missing else 1,
}


def _levels_below(A: CSR) -> int:
    """The levels of A's lower triangle, or more than `LONG` if that is certain without a count: n over the number of
    rows without an entry in the column before the diagonal. Each of these begins a chain of rows, and the longest chain
    is no shorter than the mean.

    A : with a full diagonal. Cost: that of a triangular solve with up to `LONG` levels, or more where rows depend on
    others than the one before.
    """
    xp = namespace(A.indices)
    before = A.indices[A.diag - (A.diag > A.indptr[:-1])] + 1 == xp.arange(A.n, dtype=A.indices.dtype)
    at_least = A.n // (A.n - int(before.sum()))
    if at_least > LONG:
        return at_least
    _, longest, _, entries = A.facts
    below = Triangle(A.n, A.indptr[:-1], A.diag, A.indices, False, None, None, False, entries, longest, A.dtype)
    return int(kernels_for(A.data).levels.levels(below)[1])


def dense_row(n: int) -> int:
    """The number of entries beyond which a row of n is dense: it is eliminated last, since it would fill in others."""
    return max(DENSE, int(DENSE_ROOTS * math.sqrt(n)))


def diagonal(A: CSR) -> Diagonal:
    """Look at the stored diagonal of A. Cost: O(n)."""
    missing, first_missing, zero, first_zero, others = kernels_for(A.data).inspection.diagonal(A.data, A.diag)
    return Diagonal(
        missing=missing,
        first_missing=first_missing,
        zero=zero,
        first_zero=first_zero,
        positive=others == 0,
        usable=missing == zero == 0,
    )


def asymmetry(A: CSR) -> float:
    """max |A - A^H| / max |A|, 0 for a matrix of zeros. Cost: one pass over the entries."""
    largest, adjoint, *_ = A.mirrored()
    return adjoint / largest if largest > 0 else 0.0


def is_hermitian(A: CSR) -> bool:
    """Whether A equals its conjugate transpose up to rounding, as `symmetry_of` tells it."""
    return symmetry(A) == "hermitian"


def symmetry(A: CSR) -> str:
    """ "hermitian" (symmetric, if real), "symmetric" (complex, A = A^T) or "general"; see `symmetry_of`."""
    return symmetry_of(A.mirrored(), A.dtype)


def symmetry_of(mirrored: Mirrored, dtype: np.dtype[Any]) -> str:
    """`symmetry` of a matrix of this dtype, from its `A.mirrored()`.

    Two entries a_ij and a_ji are equal if they differ by no more than `ROUNDINGS` roundings of the largest of |a_ij|,
    |a_ji| and sqrt(|a_ii a_jj|); an |a_ii| that is itself rounding is replaced by the largest entry of its row. They
    are also equal if they differ by rounding of the largest entry of A, provided that this is at most `NEARLY` of their
    own size.
    """
    largest, adjoint, transposed, adjoint_relative, transposed_relative, _ = mirrored
    rounding, nearly = ROUNDINGS * float(np.finfo(dtype).eps), NEARLY[np.finfo(dtype).dtype.char]
    kinds = (("hermitian", adjoint, adjoint_relative), ("symmetric", transposed, transposed_relative))
    for kind, difference, relative in kinds:
        if relative <= rounding or (relative <= nearly and difference <= rounding * largest):
            return kind
    return "general"
