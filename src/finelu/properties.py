"""What a matrix is like: symmetry, diagonal, dominance, bandwidth, blocks, levels; and which recipe fits it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp

from finelu.arithmetic import judged
from finelu.device import to_host
from finelu.errors import MatrixError
from finelu.kernels import kernels_for
from finelu.kernels.operands import Mirrored
from finelu.matrix import CSR, as_csr
from finelu.triangular import levels, triangle

ROUNDINGS = 1000  # entries of an assembled matrix count as equal up to so many roundings; see `mirror`
NEARLY = {"f": 1e-3, "d": 1e-6}  # up to which a Hermitian recipe takes one of two, in single and double precision
LARGEST_BLOCK = 8
BLOCK_FILL = 0.9  # blocks of which so large a part is stored are taken for blocks of the application


@dataclass(frozen=True, kw_only=True)
class Diagonal:
    """The stored diagonal: rows that miss it or hold an exact zero (first of each, -1 if none), and its sign."""

    missing: int
    first_missing: int
    zero: int
    first_zero: int
    positive: bool  # all n entries are stored, real and > 0

    @property
    def usable(self) -> bool:
        """Whether an incomplete factorization can divide by it."""
        return self.missing == 0 and self.zero == 0


@dataclass(frozen=True, kw_only=True)
class Properties:
    """What `finelu inspect` shows; see `properties` for the meaning of each field."""

    n: int
    nnz: int
    dtype: str
    row_shortest: int
    row_mean: float
    row_longest: int
    pattern_symmetric: bool
    hermitian: bool
    asymmetry: float
    diagonal: Diagonal
    dominant_rows: float
    bandwidth: int
    levels_lower: int
    levels_upper: int
    block_size: int


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """A recipe and a method by their names, and why; both as the command line takes them."""

    recipe: str
    method: str
    reason: str


def diagonal(A: CSR) -> Diagonal:
    """Look at the stored diagonal of A. Cost: O(n)."""
    where = to_host(A.diag)
    missing = where < 0
    values = np.zeros(where.size, A.dtype)
    values[~missing] = to_host(A.data)[where[~missing]]
    zero = (values == 0) & ~missing
    positive = not missing.any() and bool(((values.real > 0) & (values.imag == 0)).all())
    return Diagonal(
        missing=int(missing.sum()),
        first_missing=int(missing.argmax()) if missing.any() else -1,
        zero=int(zero.sum()),
        first_zero=int(zero.argmax()) if zero.any() else -1,
        positive=positive,
    )


def asymmetry(A: CSR) -> float:
    """max |A - A^H| / max |A|, 0 for a matrix of zeros. Cost: one pass over the entries."""
    largest, adjoint, *_ = A.mirrored()
    return adjoint / largest if largest > 0 else 0.0


def is_hermitian(A: CSR) -> bool:
    """Whether A equals its conjugate transpose up to rounding, as `mirror` tells it."""
    return symmetry(A) == "hermitian"


def symmetry(A: CSR) -> str:
    """ "hermitian" (symmetric, if real), "symmetric" (complex, A = A^T) or "general"; see `mirror`."""
    return mirror(A.mirrored(), A.dtype)


def mirror(mirrored: Mirrored, dtype) -> str:
    """`symmetry` of the A of this dtype that `A.mirrored()` is of.

    Entry by entry: two that mirror each other are equal if they differ by no more than `ROUNDINGS` roundings of the
    largest of the two and the root of |a_ii a_jj|, where the row's largest entry stands for an a_ii that is rounding.
    So are those that differ by rounding of the largest entry of all, where that is at most `NEARLY` of theirs.
    """
    largest, adjoint, transposed, adjoint_relative, transposed_relative, _ = mirrored
    rounding, nearly = ROUNDINGS * float(np.finfo(dtype).eps), NEARLY[np.finfo(dtype).dtype.char]

    def equal(difference: float, relative: float) -> bool:
        return relative <= rounding or (relative <= nearly and difference <= rounding * largest)

    if equal(adjoint, adjoint_relative):
        return "hermitian"
    return "symmetric" if equal(transposed, transposed_relative) else "general"


def require_hermitian(recipe, A: CSR) -> str:
    """A MatrixError unless A is Hermitian, with the entries that differ most; for recipes that read one triangle.

    What differs by more than rounding (see `mirror`), but by no more than 1e-6 (1e-3 in single precision) of the same
    magnitude, is taken; then the text of a warning is returned, else "". Cost: as asymmetry, and if there is a warning
    some transpositions on the host.
    """
    mirrored = A.mirrored()
    kind, relative = mirror(mirrored, A.dtype), mirrored[3]
    if kind == "hermitian":
        return ""
    S = A.on(np).tosparse()
    if relative <= NEARLY[np.dtype(A.data.real.dtype).char]:
        return f"A is Hermitian but for {relative:.1e}: {differing(S)}; the lower triangle is what is factored"
    below, above = sp.tril(S, -1).nnz, sp.triu(S, 1).nnz
    if bool(below) != bool(above):
        side, fill = ("upper", "triu(A, 1)") if above else ("lower", "tril(A, -1)")
        raise MatrixError(
            f"{recipe!r} needs A = A^H, but A stores its {side} triangle alone; complete it: "
            f"A + scipy.sparse.{fill}.conj().T."
        )
    where = differing(S)
    if kind == "symmetric":
        raise MatrixError(
            f"{recipe!r} needs A = A^H, but A is complex symmetric, A = A^T: {where}; use MultilevelILU or ILU0."
        )
    raise MatrixError(f"{recipe!r} needs A = A^H, but {where}; use ILU0, or symmetrize A.")


def differing(S, *, transposed: bool = False) -> str:
    """The entries of S, scipy.sparse CSR, that are furthest from each other's conjugates, relative as in `mirror`.

    transposed : furthest from both, each other's conjugates and each other, if there are such.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # what overflows differs
        adjoint = apart = abs(S - S.conj().T)
        if transposed:
            apart = apart.minimum(abs(S - S.T))
        apart = (apart if apart.count_nonzero() else adjoint).tocoo()
        if apart.nnz == 0:
            return "its values have changed meanwhile"
        magnitudes = abs(S)
        size = abs(S.diagonal()).astype(np.float64)
        largest = magnitudes.max(axis=1).toarray().ravel()
        size = np.sqrt(np.where(size > ROUNDINGS * np.finfo(S.dtype).eps * largest, size, largest))
        either = np.asarray(magnitudes.maximum(magnitudes.T)[apart.row, apart.col]).ravel()
        relative = apart.data / np.maximum(either, size[apart.row] * size[apart.col])
    worst = int(np.argmax(np.where(np.isfinite(apart.data), np.nan_to_num(relative), np.inf)))
    i, j = sorted((int(apart.row[worst]), int(apart.col[worst])))
    return f"A[{i}, {i}] = {S[i, i]}" if i == j else f"A[{i}, {j}] = {S[i, j]} and A[{j}, {i}] = {S[j, i]}"


def block_size(A: CSR) -> int:
    """The largest b <= 8 that divides n and for which the b x b blocks that A touches are nearly full; 1 if none.

    Cost: one pass over the entries a divisor of n.
    """
    S = to_host(A.tosparse()).tocoo()
    if S.nnz == 0:
        return 1
    for b in range(LARGEST_BLOCK, 1, -1):
        if A.n % b == 0:
            touched = sp.coo_matrix((np.ones(S.nnz, np.int8), (S.row // b, S.col // b)), shape=(A.n // b, A.n // b))
            if S.nnz >= BLOCK_FILL * b * b * touched.tocsr().nnz:
                return b
    return 1


@judged
def properties(A) -> Properties:
    """Everything `finelu inspect` tells about A, a square matrix in any form that `as_csr` takes.

    row_*: stored entries a row. pattern_symmetric: (i, j) is stored wherever (j, i) is. hermitian, asymmetry: as the
    functions of this module. dominant_rows: the part of the rows with |a_ii| >= sum over j != i of |a_ij|, up to a
    rounding an entry. bandwidth: max |i - j|. levels_lower, levels_upper: steps that a level-scheduled solve with the
    strictly lower and upper part takes. block_size: see the function. Cost: a few transpositions of A, on the host.
    """
    A = as_csr(A, diagonal=False)
    S = to_host(A.tosparse())
    lengths = np.diff(S.indptr)
    rows = np.repeat(np.arange(A.n), lengths)
    magnitudes = abs(S.data).astype(np.float64)
    on_diagonal = abs(S.diagonal())
    beside = np.bincount(rows, np.where(rows == S.indices, 0.0, magnitudes), minlength=A.n)
    beside = beside * (1 - lengths * float(np.finfo(A.dtype).eps))
    mirrored = A.mirrored()
    largest, adjoint, *_, partners = mirrored
    levels_lower, levels_upper = levels(A)
    return Properties(
        n=A.n,
        nnz=A.nnz,
        dtype=str(A.dtype),
        row_shortest=int(lengths.min()),
        row_mean=A.nnz / A.n,
        row_longest=int(lengths.max()),
        pattern_symmetric=partners == A.nnz,
        hermitian=mirror(mirrored, A.dtype) == "hermitian",
        asymmetry=adjoint / largest if largest > 0 else 0.0,
        diagonal=diagonal(A),
        dominant_rows=float((on_diagonal >= beside).mean()),
        bandwidth=int(abs(rows - S.indices).max(initial=0)),
        levels_lower=int(levels_lower),
        levels_upper=int(levels_upper),
        block_size=block_size(A),
    )


@judged
def suggest(A: CSR) -> Suggestion:
    """The simple rule: IC0 with CG for a Hermitian matrix with a positive diagonal, MultilevelILU with GMRES where the
    diagonal has gaps or zeros, else ILU0 with GMRES."""
    found = diagonal(A)
    if found.missing:
        first = f"row {found.first_missing} stores no diagonal entry ({found.missing} such rows)"
        return Suggestion(recipe="multilevel", method="gmres", reason=f"{first}: it must be permuted")
    if found.zero:
        first = f"the diagonal entry of row {found.first_zero} is 0 ({found.zero} such rows)"
        return Suggestion(recipe="multilevel", method="gmres", reason=f"{first}: it must be permuted")
    if found.positive and is_hermitian(A):
        return Suggestion(recipe="ic0", method="cg", reason="A is Hermitian with a positive diagonal")
    return Suggestion(recipe="ilu0", method="gmres", reason="A is not Hermitian with a positive diagonal")


def dominance(A: CSR) -> np.ndarray:
    """|a_ii| / sum over j != i of |a_ij|, (n,) float64 on the host; inf where the row has nothing beside its diagonal.

    Cost: one pass over the entries. A row of zeros has 0.
    """
    S = to_host(A.tosparse())
    rows = np.repeat(np.arange(A.n), np.diff(S.indptr))
    beside = np.bincount(rows, np.where(rows == S.indices, 0.0, abs(S.data).astype(np.float64)), minlength=A.n)
    on_diagonal = abs(S.diagonal()).astype(np.float64)
    alone = np.where(on_diagonal > 0, np.inf, 0.0)
    return np.divide(on_diagonal, beside, out=alone, where=beside > 0)


def level_sizes(A: CSR) -> tuple[np.ndarray, np.ndarray]:
    """How many rows each level set of A's lower and of its upper triangle holds, on the host: (levels,) each.

    Cost: one pass over the entries a triangle.
    """
    kernels = kernels_for(A.data)
    lower, upper = (to_host(kernels.levels.levels(triangle(A, below, True))[0]) for below in (True, False))
    return np.bincount(lower), np.bincount(upper)


def density(S, bins: int) -> np.ndarray:
    """How many entries of S fall into each of (m, m) equal squares, m = min(n, bins); S (n, n) scipy.sparse, CSR.

    Cost: one pass over the entries.
    """
    n = S.shape[0]
    m = min(n, bins)
    rows = np.repeat(np.arange(n, dtype=np.int64) * m // n, np.diff(S.indptr))
    columns = S.indices.astype(np.int64) * m // n
    return np.bincount(rows * m + columns, minlength=m * m).reshape(m, m)
