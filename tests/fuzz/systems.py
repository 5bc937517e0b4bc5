"""Seeded linear systems of every kind that has made solvers fail, and what finelu is asked to do with each.

`case(seed)` is the same for the same seed on every machine: a `System` (A, b) and a `Call`. A system is a base matrix
(BASES), some changes of it (CHANGES), a right-hand side (RIGHT_HAND_SIDES), a dtype and a format.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu import gallery

DTYPES = ("float64", "complex64", "float32", "complex128")
FORMATS = [
    "csr", "csr", "csr", "csr", "csc", "coo", "dense", "bsr", "dia", "lil", "csr_array", "coo_array", "duplicates",
    "unsorted", "int64", "big_endian", "fortran", "read_only", "long_arrays"
]  # fmt: skip
METHODS = ("cg", "minres", "sqmr", "gmres", "fgmres", "bicgstab", "bicgstabl", "idrs", "bicg", "richardson")
RECIPES = [
    "ILU0()", "IC0()", "MILU0()", "ILUK(level=1)", "ILUT()", "ILUT(form='crout')", "ICT()", "ParILU()", "ParIC()",
    "ParILUT()", "ParICT()", "Jacobi()", "BlockJacobi(block_size=4)", "Schwarz(size=6)",
    "MultilevelILU(dense_size=3)", "MultilevelILU()", "SparseLU()", "SparseLU(ordering='colamd')",
    "SparseLU(backend='superlu')", "ILU0(shift=1e-3)", "IC0(shift=0.1)", "IC0(precision='float32')",
    "ILU0(precision='float32')", "BlockILU0(block_size=1)"
]  # fmt: skip
HERMITIAN = ("IC0", "ICT", "ParIC", "ParICT")
GAPS_TAKEN = ("SparseLU", "MultilevelILU", "Jacobi", "BlockJacobi")

Random = np.random.Generator


@dataclass(frozen=True, eq=False)
class System:
    """A x = b.

    A, b : as finelu gets them.  stored : A as CSR, sorted, without duplicates, in the dtype of A (float64 of integers).
    words : base, changes, right-hand side, dtype and format, for the record.
    """

    A: Any
    b: Any
    stored: sp.csr_matrix
    words: tuple[str, ...]

    @property
    def n(self) -> int:
        return self.stored.shape[0]


@dataclass(frozen=True)
class Call:
    """What finelu is asked: kind "solve", "method", "recipe" or "sequence".

    recipe : its text, "" for none, "auto" of solve.  method : of "solve" and "method".  options : further arguments.
    strict : with errors of NumPy raised, as some programs have them.
    """

    kind: str
    recipe: str = "auto"
    method: str = "auto"
    options: dict[str, Any] = field(default_factory=dict)
    threads: int = 1
    strict: bool = False

    def __str__(self) -> str:
        options = ", ".join(f"{k}={'...' if k == 'x0' else v}" for k, v in self.options.items())
        return f"{self.kind}({self.recipe}, {self.method}, {options}, threads={self.threads}, strict={self.strict})"


@dataclass(frozen=True, eq=False)
class Case:
    seed: int
    system: System
    call: Call

    @property
    def quick(self) -> bool:
        """Whether it needs only kernels that other tests compile, too, and its end does not depend on a clock."""
        if self.call.kind != "solve" or self.call.recipe != "auto" or "time_limit" in self.call.options:
            return False
        usual = self.system.stored.dtype.name in ("float64", "complex64") and "int64" not in self.system.words
        return usual and self.system.n <= 100


def case(seed: int) -> Case:
    rng = np.random.default_rng([18, seed])
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        system = made(rng)
        return Case(seed, system, asked(rng, system))


def made(rng: Random) -> System:
    dtype = str(rng.choice(DTYPES, p=(0.6, 0.13, 0.14, 0.13)))
    n = size(rng)
    base = pick(rng, BASES)
    A = BASES[base](rng, n)
    words = [base]
    if dtype[0] == "c":
        A = with_phases(rng, A)
    full = rng.random() < 0.35  # a diagonal without gaps, as incomplete factors need it
    for _ in range(int(rng.choice(4, p=(0.3, 0.35, 0.25, 0.1)))):
        change = pick(rng, CHANGES)
        A = tidy(CHANGES[change](rng, A))
        words.append(change)
    if full:
        words.append("diagonal_filled")
        A = tidy(A + sp.diags(np.where(A.diagonal() == 0, 1.0, 0.0)))
    A = within(A, dtype)
    right = pick(rng, RIGHT_HAND_SIDES)
    b = RIGHT_HAND_SIDES[right](rng, A)
    if rng.random() < 0.15:
        b, right = b * 10.0 ** float(rng.uniform(*SPANS[dtype])), f"{right}, scaled"
    b = finite(np.asarray(b, np.promote_types(dtype, b.dtype)), dtype)
    form = str(rng.choice(FORMATS))
    given = formatted(rng, A, form)
    stored = tidy(given) if form == "duplicates" else A
    return System(given, shaped(rng, b), stored, (*words, right, dtype, form))


def size(rng: Random) -> int:
    share = rng.random()
    if share < 0.04:
        return int(rng.integers(1, 4))
    if share < 0.62:
        return int(rng.integers(2, 13))
    if share < 0.93:
        return int(rng.integers(13, 61))
    return int(rng.integers(61, 160)) if share < 0.99 else int(rng.integers(160, 900))


def pick(rng: Random, table: dict[str, Any]) -> str:
    return list(table)[int(rng.integers(len(table)))]


def tidy(A: Any) -> sp.csr_matrix:
    """Sorted CSR with the stored zeros that it has."""
    A = sp.csr_matrix(A)
    A.sum_duplicates()
    return A


def finite(v: Any, dtype: str) -> Any:
    """`v` in this dtype, with what leaves its range at the end of it."""
    most = float(np.finfo(dtype).max) / 2
    if np.dtype(dtype).kind == "c":
        clipped = clip(v.real, most) + 1j * clip(v.imag, most)
    else:
        clipped = clip(v.real, most)
    return clipped.astype(dtype)


def clip(v: Any, most: float) -> Any:
    return np.clip(np.nan_to_num(v, nan=1.0, posinf=most, neginf=-most), -most, most)


def within(A: sp.csr_matrix, dtype: str) -> sp.csr_matrix:
    return sp.csr_matrix((finite(A.data, dtype), A.indices, A.indptr), shape=A.shape)


# Base matrices: (rng, n) -> CSR, real, of about n rows ---------------------------------------------------------------


def entries(rng: Random, count: Any) -> Any:
    """Random numbers: normal, of small integers, of all sizes, or equal."""
    match int(rng.integers(4)):
        case 0:
            return rng.standard_normal(count)
        case 1:
            return rng.integers(-3, 4, count).astype(float)
        case 2:
            return rng.standard_normal(count) * 10.0 ** rng.uniform(-8, 8, count)
        case _:
            return rng.choice([-1.0, 1.0], count)


def scattered(rng: Random, n: int) -> sp.csr_matrix:
    pattern = rng.random((n, n)) < rng.choice([1.0 / n, 2.0 / n, 0.2, 0.5, 1.0])
    return tidy(np.where(pattern, entries(rng, (n, n)), 0.0))


def dominant(rng: Random, n: int) -> sp.csr_matrix:
    A = scattered(rng, n)
    return tidy(A + sp.diags(1.0 + np.asarray(abs(A).sum(axis=1)).ravel()))


def diagonal(rng: Random, n: int) -> sp.csr_matrix:
    return tidy(sp.diags(entries(rng, n)))


def permutation(rng: Random, n: int) -> sp.csr_matrix:
    return tidy(sp.csr_matrix((entries(rng, n), (np.arange(n), rng.permutation(n))), shape=(n, n)))


def symmetric(rng: Random, n: int) -> sp.csr_matrix:
    A = scattered(rng, n)
    return tidy(A + A.T)


def definite(rng: Random, n: int) -> sp.csr_matrix:
    A = scattered(rng, n)
    return tidy(A @ A.T + 10.0 ** float(rng.uniform(-12, 1)) * sp.eye(n))


def skew(rng: Random, n: int) -> sp.csr_matrix:
    A = scattered(rng, n)
    return tidy(A - A.T + float(rng.choice([0.0, 1e-8, 1.0])) * sp.eye(n))


def low_rank(rng: Random, n: int) -> sp.csr_matrix:
    k = max(1, n - int(rng.integers(1, 3)))
    return tidy(rng.integers(-4, 5, (n, k)) @ rng.integers(-4, 5, (k, n)) * 0.25)


def laplacian(rng: Random, n: int) -> sp.csr_matrix:
    """The Laplacian of a weighted graph: singular up to the rounding of its diagonal."""
    W = (rng.integers(1, 10, (n, n)) / 10, rng.integers(1, 10, (n, n)) / 1.0, rng.random((n, n)))[int(rng.integers(3))]
    W = np.triu(W * (rng.random((n, n)) < 0.5), 1)
    W = W + W.T
    return tidy(np.diag(W.sum(axis=1)) - W)


def neumann(rng: Random, n: int) -> sp.csr_matrix:
    m = max(2, int(n**0.5))
    T = sp.diags([-np.ones(m - 1), np.r_[1, 2 * np.ones(m - 2), 1], -np.ones(m - 1)], [-1, 0, 1])
    return tidy(sp.kron(T, sp.eye(m)) + float(rng.choice([1.0, 1e-4])) * sp.kron(sp.eye(m), T))


def circulant(rng: Random, n: int) -> sp.csr_matrix:
    values = rng.integers(-2, 3, 3).astype(float)
    shift = sp.csr_matrix((np.ones(n), (np.arange(n), (np.arange(n) + 1) % n)), shape=(n, n))
    return tidy(values[0] * sp.eye(n) + values[1] * shift + values[2] * shift.T)


def saddle_point(rng: Random, n: int) -> sp.csr_matrix:
    m = max(1, n // 3)
    k = max(n - m, 1)
    B = sp.csr_matrix(np.where(rng.random((m, k)) < 0.5, entries(rng, (m, k)), 0.0))
    return tidy(sp.bmat([[dominant(rng, k), B.T], [B, sp.csr_matrix((m, m))]]))


def hub(rng: Random, n: int) -> sp.csr_matrix:
    """A dense row and column, first, last or in between."""
    A = sp.lil_matrix(dominant(rng, n) if rng.random() < 0.5 else gallery.tridiagonal(n))
    k = int(rng.choice([0, n - 1, n // 2]))
    A[k, :], A[:, k] = rng.uniform(-1, 1, n), rng.uniform(-1, 1, (n, 1))
    A[k, k] = float(rng.choice([0.0, 1.0, n]))
    return tidy(A)


def chain(rng: Random, n: int) -> sp.csr_matrix:
    """Lower or upper bidiagonal, with growth or decay along it."""
    growth = float(rng.choice([2.0, 1000.0, 1e-3, 1e6]))
    A = sp.diags([np.ones(n), np.full(max(n - 1, 0), -growth)], [0, -1], shape=(n, n))
    return tidy(A.T if rng.random() < 0.3 else A)


def graded(rng: Random, n: int) -> sp.csr_matrix:
    D = sp.diags(10.0 ** np.linspace(0, float(rng.uniform(-20, 20)), n))
    return tidy(D @ dominant(rng, n) @ D)


def penalty(rng: Random, n: int) -> sp.csr_matrix:
    """Laplace's equation, boundary values by large numbers on the diagonal."""
    A = neumann(rng, n)
    rows = rng.random(A.shape[0]) < 0.3
    return tidy(A + sp.diags(np.where(rows, 10.0 ** float(rng.choice([9, 12, 20, 30])), 0.0)))


def hilbert(rng: Random, n: int) -> sp.csr_matrix:
    n = min(n, 12)
    return tidy(1.0 / (np.arange(n)[:, None] + np.arange(n) + 1.0))


def arrangement(rng: Random, n: int) -> sp.csr_matrix:
    """Circuit-like: a network with voltage sources, zeros on the diagonal."""
    m = max(1, n // 5)
    S = sp.csr_matrix((np.ones(m), (rng.permutation(max(n, m))[:m], np.arange(m))), shape=(max(n, m), m))
    return tidy(sp.bmat([[laplacian(rng, max(n, m)), S], [S.T, None]]))


def blocks(rng: Random, n: int) -> sp.csr_matrix:
    """A block triangular matrix, of which a block may be singular."""
    first = BASES[str(rng.choice(["scattered", "dominant", "laplacian", "low_rank"]))](rng, max(1, n // 2))
    second = BASES[str(rng.choice(["dominant", "diagonal", "neumann"]))](rng, max(1, n - n // 2))
    coupling = sp.random(first.shape[0], second.shape[1], 0.3, random_state=rng)
    return tidy(sp.bmat([[first, coupling], [None, second]]))


def nearly_singular(rng: Random, n: int) -> sp.csr_matrix:
    A = low_rank(rng, n).toarray()
    i, j = rng.integers(0, n, 2)
    A[i, j] += 10.0 ** float(rng.uniform(-16, -2))
    return tidy(A)


def empty(rng: Random, n: int) -> sp.csr_matrix:
    return sp.csr_matrix((n, n))


@cache
def small() -> list[Any]:
    return gallery.small()


def of_gallery(rng: Random, n: int) -> sp.csr_matrix:
    A = small()[int(rng.integers(len(small())))].A
    return tidy(A.real if A.dtype.kind == "c" else A).astype(float)


def wind(rng: Random, n: int) -> sp.csr_matrix:
    m = max(2, int(n**0.5))
    scheme = str(rng.choice(["upwind", "central"]))
    return gallery.convection_diffusion(m, m, 1, peclet=10.0 ** float(rng.uniform(0, 5)), scheme=scheme)


BASES: dict[str, Callable[[Random, int], sp.csr_matrix]] = {
    function.__name__: function
    for function in (
        *(scattered, dominant, diagonal, permutation, symmetric, definite, skew, low_rank, laplacian, neumann),
        *(circulant, saddle_point, hub, chain, graded, penalty, hilbert, arrangement, blocks, nearly_singular, empty),
        *(of_gallery, wind, scattered, dominant),
    )
}


# Changes: (rng, A) -> A ----------------------------------------------------------------------------------------------


def with_phases(rng: Random, A: sp.csr_matrix) -> sp.csr_matrix:
    """Complex: Hermitian where A is symmetric, symmetric, or neither."""
    n = A.shape[0]
    D = sp.diags(np.exp(1j * rng.uniform(0, 6, n)))
    match int(rng.integers(4)):
        case 0:
            return tidy(D @ A @ D.conj())
        case 1:
            return tidy(D @ A @ D)
        case 2:
            return tidy(A + 1j * float(rng.choice([1e-8, 0.1, 1.0])) * sp.eye(n))
        case _:
            return sp.csr_matrix((A.data * np.exp(1j * rng.uniform(0, 6, A.nnz)), A.indices, A.indptr), shape=A.shape)


def scales(rng: Random, n: int) -> Any:
    exponent = float(rng.choice([3, 10, 40, 150]))
    return sp.diags(10.0 ** rng.uniform(-exponent, exponent, n))


def one_size(rng: Random, A: Any) -> Any:
    return A * 10.0 ** float(rng.choice([-300, -150, -40, -8, 8, 40, 150, 300]))


def rows_scaled(rng: Random, A: Any) -> Any:
    return scales(rng, A.shape[0]) @ A


def columns_scaled(rng: Random, A: Any) -> Any:
    return A @ scales(rng, A.shape[0])


def both_scaled(rng: Random, A: Any) -> Any:
    D = scales(rng, A.shape[0])
    return D @ A @ D


def one_entry(rng: Random, A: Any) -> Any:
    A = A.copy()
    if A.nnz:
        A.data[int(rng.integers(A.nnz))] *= 10.0 ** float(rng.choice([-300, -20, 20, 300]))
    return A


def row_of(rng: Random, A: Any, value: float) -> Any:
    A = A.tolil()
    A[int(rng.integers(A.shape[0])), :] = value
    return A


def empty_row(rng: Random, A: Any) -> Any:
    return row_of(rng, A, 0.0)


def empty_column(rng: Random, A: Any) -> Any:
    return row_of(rng, A.T.tocsr(), 0.0).T


def dense_row(rng: Random, A: Any) -> Any:
    return row_of(rng, A, float(rng.standard_normal()))


def dense_column(rng: Random, A: Any) -> Any:
    return row_of(rng, A.T.tocsr(), float(rng.standard_normal())).T


def equal_rows(rng: Random, A: Any) -> Any:
    i, j = rng.integers(0, A.shape[0], 2)
    A = A.tolil()
    A[i, :] = A[j, :] * float(rng.choice([1.0, 2.0, 3.0, 1.0 + 2.0**-40]))
    return A


def stored_zeros(rng: Random, A: Any) -> Any:
    A = A.tocoo()
    n, count = A.shape[0], int(rng.integers(1, 3 * A.shape[0] + 1))
    i = rng.integers(0, n, count)
    j = i if rng.random() < 0.5 else rng.integers(0, n, count)
    parts = [np.r_[a, z] for a, z in ((A.data, np.zeros(count)), (A.row, i), (A.col, j))]
    return sp.csr_matrix((parts[0], (parts[1], parts[2])), shape=A.shape)


def rows_permuted(rng: Random, A: Any) -> Any:
    return A[rng.permutation(A.shape[0])]


def permuted(rng: Random, A: Any) -> Any:
    order = rng.permutation(A.shape[0])
    return A[order][:, order]


def reversed_order(rng: Random, A: Any) -> Any:
    return A[::-1][:, ::-1]


def penalty_rows(rng: Random, A: Any) -> Any:
    rows = rng.random(A.shape[0]) < 0.2
    return A + sp.diags(np.where(rows, 10.0 ** float(rng.choice([9, 12, 20, 30])), 0.0))


def subnormal_entries(rng: Random, A: Any) -> Any:
    A = A.copy()
    A.data = np.where(rng.random(A.nnz) < 0.3, A.data * float(rng.choice([1e-310, 1e-323, 1e-42])), A.data)
    return A


def negative(rng: Random, A: Any) -> Any:
    return -A


def diagonal_removed(rng: Random, A: Any) -> Any:
    return A - sp.diags(A.diagonal() * (rng.random(A.shape[0]) < 0.4))


def single_rounded(rng: Random, A: Any) -> Any:
    A = A.copy()
    A.data = A.data.astype(np.complex64 if A.dtype.kind == "c" else np.float32).astype(A.dtype)
    return A


CHANGES: dict[str, Callable[[Random, Any], Any]] = {
    function.__name__: function
    for function in (
        *(one_size, rows_scaled, columns_scaled, both_scaled, one_entry, empty_row, empty_column, dense_row),
        *(dense_column, equal_rows, stored_zeros, rows_permuted, permuted, reversed_order, penalty_rows),
        *(subnormal_entries, negative, diagonal_removed, single_rounded),
    )
}


# Right-hand sides: (rng, A) -> (n,) or (n, k) ------------------------------------------------------------------------


def normal(rng: Random, A: Any) -> Any:
    return rng.standard_normal(A.shape[0])


def ones(rng: Random, A: Any) -> Any:
    return np.ones(A.shape[0])


def unit(rng: Random, A: Any) -> Any:
    return np.eye(A.shape[0])[int(rng.integers(A.shape[0]))]


def zero(rng: Random, A: Any) -> Any:
    return np.zeros(A.shape[0])


def consistent(rng: Random, A: Any) -> Any:
    """A x for integers x: exactly in the range of A if A holds integers."""
    return finite(A.astype(A.dtype if A.dtype.itemsize >= 8 else float) @ rng.integers(-4, 5, A.shape[0]), A.dtype.name)


def almost_consistent(rng: Random, A: Any) -> Any:
    b = consistent(rng, A)
    return b + 10.0 ** float(rng.uniform(-12, -4)) * np.max(abs(b), initial=0.0)


def along_rows(rng: Random, A: Any) -> Any:
    """As large as the rows of A."""
    return rng.standard_normal(A.shape[0]) * np.asarray(abs(A).max(axis=1).toarray()).ravel()


def few(rng: Random, A: Any) -> Any:
    return np.where(rng.random(A.shape[0]) < 0.2, rng.standard_normal(A.shape[0]), 0.0)


def of_all_sizes(rng: Random, A: Any) -> Any:
    return rng.standard_normal(A.shape[0]) * 10.0 ** rng.uniform(-20, 20, A.shape[0])


def two_columns(rng: Random, A: Any) -> Any:
    return rng.standard_normal((A.shape[0], 2)) * np.array([1.0, float(rng.choice([0.0, 1.0, 1e-8]))])


def with_phase(rng: Random, A: Any) -> Any:
    return rng.standard_normal(A.shape[0]) * (1 + 2j)


def subnormal(rng: Random, A: Any) -> Any:
    tiny = float(np.finfo(A.dtype).tiny)
    return rng.standard_normal(A.shape[0]) * tiny * 10.0 ** float(rng.uniform(-8, 2))


RIGHT_HAND_SIDES: dict[str, Callable[[Random, Any], Any]] = {
    function.__name__: function
    for function in (
        *(normal, ones, unit, zero, consistent, almost_consistent, along_rows, few, of_all_sizes, two_columns),
        *(with_phase, subnormal),
    )
}
SPANS = {"float64": (-320, 300), "complex128": (-320, 300), "float32": (-44, 36), "complex64": (-44, 36)}


# Formats -------------------------------------------------------------------------------------------------------------


def formatted(rng: Random, A: sp.csr_matrix, form: str) -> Any:
    """A in another form; the entries that finelu takes from it are those of A, or sums of duplicates."""
    if form in ("csc", "coo", "bsr", "dia", "lil"):
        return A.asformat(form)
    if form == "dense":
        return A.toarray()
    if form in ("csr_array", "coo_array"):
        return getattr(sp, form)(A)
    if form == "duplicates":
        C = A.tocoo()
        return sp.coo_matrix((np.r_[C.data / 2, C.data / 2], (np.r_[C.row, C.row], np.r_[C.col, C.col])), shape=A.shape)
    if form == "unsorted":
        C = A.copy()
        for i in range(A.shape[0]):
            p = C.indptr[i] + rng.permutation(C.indptr[i + 1] - C.indptr[i])
            begin, end = C.indptr[i], C.indptr[i + 1]
            C.indices[begin:end], C.data[begin:end] = A.indices[p], A.data[p]
        C.has_sorted_indices = False
        return C
    if form == "int64":
        C = A.copy()
        C.indptr, C.indices = C.indptr.astype(np.int64), C.indices.astype(np.int64)
        return C
    if form == "big_endian":
        dense = A.toarray()
        return dense.astype(dense.dtype.newbyteorder(">"))
    if form == "fortran":
        return np.asfortranarray(A.toarray())
    C = A.copy()
    if form == "read_only":
        for array in (C.data, C.indices, C.indptr):
            array.flags.writeable = False
    if form == "long_arrays":  # longer than the pattern
        C.data, C.indices = np.r_[C.data, C.data[:1] * 0 + 7], np.r_[C.indices, C.indices[:1]]
    return C


def shaped(rng: Random, b: Any) -> Any:
    match int(rng.integers(8)):
        case 0 if b.ndim == 1:
            return b[:, None]
        case 1:
            return np.repeat(b, 2, axis=0)[::2]
        case 2:
            return np.asfortranarray(b)
        case 3:
            b = b.copy()
            b.flags.writeable = False
            return b
        case 4 if b.ndim == 1:
            return b.tolist()
    return b


# Calls ---------------------------------------------------------------------------------------------------------------


def suited(rng: Random, A: sp.csr_matrix) -> str:
    """A recipe, mostly one that takes A: Cholesky factors need A = A^H, incomplete ones a diagonal without gaps."""
    recipe = str(rng.choice(RECIPES))
    if rng.random() < 0.1:
        return recipe
    if not A.diagonal().all():
        return str(rng.choice([r for r in RECIPES if r.startswith(GAPS_TAKEN)]))
    if (A != A.conj().T).nnz:
        return str(rng.choice([r for r in RECIPES if not r.startswith(HERMITIAN)]))
    return recipe


def asked(rng: Random, system: System) -> Call:
    common = {"threads": int(rng.choice([1, 1, 1, 2, 3])), "strict": bool(rng.random() < 0.1)}
    options: dict[str, Any] = {}
    share, columns = rng.random(), np.ndim(system.b) == 2 and np.shape(system.b)[1] > 1
    if rng.random() < 0.4:
        options["rtol"] = 10.0 ** float(rng.uniform(-15, -1))
    if rng.random() < 0.08:
        options["atol"] = 10.0 ** float(rng.uniform(-20, 2))
    if rng.random() < 0.1:
        options["x0"] = rng.standard_normal(system.n) * 10.0 ** float(rng.choice([-200, -8, 0, 8, 200]))
    if rng.random() < 0.1:
        options["maxiter"] = int(rng.integers(0, 30))
    elif share >= 0.6 and system.n > 60:
        options["maxiter"] = 300
    if (word := rng.random()) < 0.12 and share < 0.85:
        options["criterion"] = "backward" if word < 0.06 else "residual"
    if share < 0.6:
        if rng.random() < 0.03:
            options["certify"] = True
        if rng.random() < 0.1:
            options["time_limit"] = float(rng.choice([0.0, 1e-3, 0.02, 1.0]))
        if rng.random() < 0.05:
            options["memory_limit"] = float(rng.choice([0.0, 1e3, 1e5]))
        recipe = suited(rng, system.stored) if rng.random() < 0.15 else "auto"
        method = str(rng.choice(METHODS[:-1])) if rng.random() < 0.15 else "auto"
        return Call("solve", recipe, method, options, **common)
    recipe = suited(rng, system.stored)
    if share < 0.85 and not columns:
        method = str(rng.choice(METHODS))
        if method == "gmres" and rng.random() < 0.3:
            options["restart"] = int(rng.integers(1, 40))
        return Call(
            "method", "" if method != "richardson" and rng.random() < 0.2 else recipe, method, options, **common
        )
    if share < 0.9 and not columns:
        return Call("sequence", options={k: options[k] for k in options if k == "rtol"}, **common)
    return Call("recipe", recipe, options={"trans": str(rng.choice(list("NNTH")))}, **common)
