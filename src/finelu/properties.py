"""Properties in `finelu inspect` and the reports: symmetry, diagonal, dominance, bandwidth, blocks, levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from finelu.arithmetic import ignore_fp_errors
from finelu.device import to_host
from finelu.kernels import kernels_for
from finelu.matrix import CSR, as_csr
from finelu.matrix.looks import block_size
from finelu.matrix.traits import Diagonal, diagonal, symmetry_of
from finelu.ordering import adjacency, mean_distance, repeated_rcm
from finelu.triangular import levels, triangle


@dataclass(frozen=True, kw_only=True)
class Properties:
    """The properties that `finelu inspect` prints; `properties` explains each field."""

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
    distance: float
    distance_rcm: float
    levels_lower: int
    levels_upper: int
    block_size: int


@ignore_fp_errors
def properties(A: Any) -> Properties:
    """The properties of A, a square matrix in any form that `as_csr` takes.

    row_* : stored entries of a row.
    pattern_symmetric : (i, j) is stored wherever (j, i) is.
    hermitian, asymmetry : see `is_hermitian` and `asymmetry` in finelu.matrix.traits.
    block_size : see finelu.matrix.looks.
    dominant_rows : the part of the rows with |a_ii| >= sum over j != i of |a_ij|, up to one rounding per entry.
    bandwidth : max |i - j|.
    distance, distance_rcm : the mean |i - j| of the entries of A + A^T, as A is stored and in `repeated_rcm`.
    levels_lower, levels_upper : steps of a level-scheduled solve with the strictly lower and upper part.
    Cost: a few passes over the entries, a search in row j for each entry (i, j), and two or more orderings, on the
    host.
    """
    A = as_csr(A, diagonal=False)
    S = to_host(A.tosparse())
    lengths = np.diff(S.indptr)
    rows = np.repeat(np.arange(A.n), lengths)
    magnitudes = abs(S.data).astype(np.float64)
    on_diagonal = abs(S.diagonal())
    off_diagonal = np.bincount(rows, np.where(rows == S.indices, 0.0, magnitudes), minlength=A.n)
    off_diagonal = off_diagonal * (1 - lengths * float(np.finfo(A.dtype).eps))
    mirrored = A.mirrored()
    largest, adjoint, *_, partners = mirrored
    levels_lower, levels_upper = levels(A)
    pattern = adjacency(A)
    order = repeated_rcm(A)
    return Properties(
        n=A.n,
        nnz=A.nnz,
        dtype=str(A.dtype),
        row_shortest=int(lengths.min()),
        row_mean=A.nnz / A.n,
        row_longest=int(lengths.max()),
        pattern_symmetric=partners == A.nnz,
        hermitian=symmetry_of(mirrored, A.dtype) == "hermitian",
        asymmetry=adjoint / largest if largest > 0 else 0.0,
        diagonal=diagonal(A),
        dominant_rows=float((on_diagonal >= off_diagonal).mean()),
        bandwidth=int(abs(rows - S.indices).max(initial=0)),
        distance=mean_distance(pattern),
        distance_rcm=mean_distance(pattern[order][:, order]),
        levels_lower=int(levels_lower),
        levels_upper=int(levels_upper),
        block_size=block_size(A),
    )


def dominance(A: CSR) -> np.ndarray:
    """|a_ii| / sum over j != i of |a_ij|, (n,) float64 on the host; inf if the row has no other entry.

    Cost: one pass over the entries. A row of zeros has 0.
    """
    S = to_host(A.tosparse())
    rows = np.repeat(np.arange(A.n), np.diff(S.indptr))
    off_diagonal = np.bincount(rows, np.where(rows == S.indices, 0.0, abs(S.data).astype(np.float64)), minlength=A.n)
    on_diagonal = abs(S.diagonal()).astype(np.float64)
    ratio = np.where(on_diagonal > 0, np.inf, 0.0)
    np.divide(on_diagonal, off_diagonal, out=ratio, where=off_diagonal > 0)
    return ratio


def level_sizes(A: CSR) -> tuple[np.ndarray, np.ndarray]:
    """The number of rows in each level set of A's lower and of its upper triangle, on the host: (levels,) each.

    Cost: one pass over the entries a triangle.
    """
    kernels = kernels_for(A.data)
    lower, upper = (to_host(kernels.levels.levels(triangle(A, below, True))[0]) for below in (True, False))
    return np.bincount(lower), np.bincount(upper)


def density(S: Any, bins: int) -> np.ndarray:
    """The number of entries of S in each of (m, m) equal squares, m = min(n, bins); S (n, n) scipy.sparse, CSR.

    Cost: one pass over the entries.
    """
    n = S.shape[0]
    m = min(n, bins)
    rows = np.repeat(np.arange(n, dtype=np.int64) * m // n, np.diff(S.indptr))
    columns = S.indices.astype(np.int64) * m // n
    return np.bincount(rows * m + columns, minlength=m * m).reshape(m, m)
