"""The parts of a Schwarz method as its recipe asks for them, their default sizes, and the near null space it names."""

from __future__ import annotations

from typing import Any

import numpy as np

from finelu.device import namespace, on_gpu, to_host
from finelu.errors import ParameterError
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.matrix import dense_numbers
from finelu.matrix.looks import has_islands, uneven
from finelu.partition import bricks, partition
from finelu.preconditioners.recipe import ArrayParameter
from finelu.preconditioners.schwarz.adaptive import Nodes
from finelu.preconditioners.schwarz.levels import size_in_space
from finelu.validation import count

# The default size of a part. On a GPU two or three parts should share a multiprocessor: ROOM bytes hold the factors of
# one part, with ENTRY bytes for each of A's entries and ROW bytes for each row. There are at most MOST_COARSE coarse
# vectors, since their matrix has a dense inverse on a GPU, and several vectors a part fill its sparse factors. With one
# vector a part they are sparse enough for MOST_SPARSE: on a 7-point grid a solve with them takes 6 ms.
SMALLEST, LARGEST, ROOM, ROW, ENTRY, MOST_COARSE, MOST_SPARSE = 128, 448, 56_000, 26, 10, 4096, 16_384
# The rows of A over the size of its aggregates on a GPU; as these fill 0.7 of it, there are about 2000. On an H100
# ani7, 203,841 rows, takes 77 ms with 1941 aggregates and 101 with 636; a heat sink, 70,371 rows, 16 with 791 and 21
# with 223; 512,000 cells of 10^-3 to 10^3 at random 36 ms with 1852 and 34 with 1520.
AGGREGATES = 1400
ROWS = 64  # of a part, for each of its coarse vectors, on the CPU, where a larger coarse matrix has further levels
# The rows of an aggregate on the CPU where islands of cells conduct far better than others: few parts then hold two.
# cg takes 45, 143, 226 and 408 iterations for 110,592 cells, a 25th of them in such blocks of 8, with aggregates of 32,
# 64, 128 and 448 rows, and 471 with bricks of 64.
OF_ISLANDS = 32
AUTO = "auto"


def cut_entries(A: CSR, parts: Any) -> int:
    """The number of A's entries that couple rows of different parts."""
    rows = kernels_for(A.data).indices.rows_of_entries(A.indptr, A.nnz)
    return int((parts[rows] != parts[A.indices]).sum())


def usual_size(A: CSR, vectors: int, levels: bool, n: int | None = None, general: bool = False) -> int:
    """The default number of rows of a part, for this many coarse vectors a part.  levels : whether these may be any
    number, since they are solved on levels.  n : the rows that share the coarse space, if A is not all of them.
    general : whether A is neither Hermitian nor symmetric. bicgstab for flows that turn then took half of the
    iterations with 64 rows that it took with 448, on the CPU in 0.35 to 1 of the time."""
    if general and not on_gpu(A.data) and vectors == 1 and not levels:
        return max(ROWS, -(-(n or A.n) // MOST_COARSE))
    if levels and not on_gpu(A.data):
        if vectors == 1 and has_islands(A):
            return OF_ISLANDS
        if vectors > 1 or not uneven(A):
            return min(ROWS * vectors, LARGEST)
    fits = int(ROOM / (ROW + ENTRY * A.nnz / A.n))
    if levels:
        return max(min(fits, LARGEST), SMALLEST)
    most = MOST_COARSE if on_gpu(A.data) or vectors > 1 else MOST_SPARSE
    return max(min(max(fits, SMALLEST), LARGEST), -(-(n or A.n) * vectors // most))


def size_of_aggregates(A: CSR, usual: int) -> int:
    """The default number of rows of an aggregate on a GPU, for a definite A and one vector a part.  usual : that of
    other parts."""
    return min(usual, max(SMALLEST, A.n // AGGREGATES))


def parts_of(
    recipe: Any, A: CSR, near: Any, kind: str, definite: bool, nodes: Nodes | None, size: int | None
) -> tuple[Any, int, str]:
    """The part of each row (n,) int32, the number of parts, and the method that found them."""
    xp = namespace(A.data)
    if isinstance(recipe.parts, ArrayParameter):
        return *checked_parts(recipe.parts.array, A), "given"
    free, aggregates = False, None  # whether the bricks of a grid may be larger than usual; the size of aggregates
    if recipe.parts is None:
        levels = recipe.coarse is not None and (definite if recipe.levels == AUTO else recipe.levels != 2)
        usual, vectors = not (size or recipe.size), 1 if near is None else near.shape[1]
        free = levels and near is None and recipe.levels == AUTO and usual
        general = kind == "general" and recipe.coarse is not None
        size = size or recipe.size or usual_size(A, vectors, levels, general=general)
        if on_gpu(A.data) and usual and vectors == 1 and definite and recipe.coarse is not None:
            aggregates = size_of_aggregates(A, size)
    else:
        number = count("parts", recipe.parts, 1, A.n, of=recipe)
        size = -(-A.n // number)
    if nodes is None:
        found = partition(A, size, recipe.partition, of_aggregates=aggregates)
        if free and found.grid is not None and (larger := size_in_space(A, found, LARGEST)):
            found = bricks(A, found.grid, larger)
        return xp.asarray(found.parts), found.count, found.method
    found = partition(nodes.matrix(A), max(size // nodes.size, 1), recipe.partition)
    return xp.asarray(found.parts)[nodes.of_rows(A)], found.count, found.method


def checked_parts(parts: Any, A: CSR) -> tuple[Any, int]:
    host = to_host(parts)
    if host.shape != (A.n,) or host.dtype.kind not in "iu":
        raise ParameterError(
            f"parts has shape {host.shape} and dtype {host.dtype}; an integer for each of A's {A.n} rows is needed."
        )
    if host.min() < 0:
        raise ParameterError(f"parts[{int(host.argmin())}] is {host.min()}; parts are counted from 0 on.")
    number = int(host.max()) + 1
    if number > A.n or (gaps := np.flatnonzero(np.bincount(host, minlength=number) == 0)).size:
        first = f"part {gaps[0]} has no row" if number <= A.n else f"there are more parts, {number}, than rows"
        raise ParameterError(f"parts has gaps: {first}; number them 0, 1, ... without gaps.")
    return namespace(A.data).asarray(host.astype(np.int32)), number


def near_of(recipe: Any, A: CSR) -> Any:
    """The near null space on the device of A, checked; None for the constant."""
    if not isinstance(recipe.near_nullspace, ArrayParameter):
        return None
    B = dense_numbers(recipe.near_nullspace.array, "near_nullspace")
    B = B.reshape(-1, 1) if B.ndim == 1 else B
    if B.ndim != 2 or B.shape[0] != A.n or B.shape[1] == 0:
        raise ParameterError(f"near_nullspace has shape {B.shape}; ({A.n}, m) is needed: a row for each row of A.")
    if B.dtype.kind == "c" and A.dtype.kind != "c":
        raise ParameterError("near_nullspace is complex, but A is real; give its real and imaginary parts as columns.")
    host = to_host(B)
    if host.dtype.kind not in "fc":
        host = host.astype(np.float64)
    if not np.isfinite(host).all():
        raise ParameterError(f"near_nullspace holds NaN or Inf in row {int(np.argmin(np.isfinite(host).all(axis=1)))}.")
    if not host.any():
        raise ParameterError("near_nullspace is 0: no vector is left; give vectors that A nearly annihilates.")
    largest = abs(host).max(axis=0)
    host = host / np.where(largest > 0, largest, 1)  # their squares are numbers of A's dtype, too
    return namespace(A.data).asarray(host)
