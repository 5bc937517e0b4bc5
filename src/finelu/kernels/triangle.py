"""The operand of every triangular building block, on either device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Triangle:
    """The strict triangle of a sparse matrix, where it lies in another's arrays, and its diagonal.

    n : rows.  begin, end (n,) : row i owns places begin[i] <= p < end[i] of indices, columns ascending.
    reverse : rows are visited n - 1, ..., 0 (an upper triangle) instead of 0, ..., n - 1.
    diag (n,) : the place of D_ii in the values, or None for a unit diagonal.
    source : None if the value of place p is values[p]; else (len(indices),) and it is values[source[p]].
    conjugate : values, the diagonal too, are conjugated (trans="H").
    entries : number of strict entries, the sum of end - begin.  longest : the most entries of a row.
    dtype : of the values.
    """

    n: int
    begin: Any
    end: Any
    indices: Any
    reverse: bool
    diag: Any
    source: Any
    conjugate: bool
    entries: int
    longest: int
    dtype: Any
