"""Matrices as finelu takes them: checked at the door, block matrices, and what a matrix is like.

door : `as_csr`, `check_vector`, and the checks of parameters.  traits : symmetry, diagonal, dense blocks.
blocks, stencil : `BlockMatrix` and `StencilMatrix`; products : what these two share.  vectors : dense vectors.
"""

from finelu.device import sparse_module
from finelu.kernels.operands import CSR, INT32_LIMIT
from finelu.matrix.door import (
    as_csr,
    check_vector,
    count,
    is_number,
    lower_triangle,
    number,
    rows_of_entries,
    shown,
)
from finelu.matrix.vectors import DTYPES, all_finite, dense_numbers, norm

__all__ = [
    "CSR",
    "DTYPES",
    "INT32_LIMIT",
    "all_finite",
    "as_csr",
    "check_vector",
    "count",
    "dense_numbers",
    "is_number",
    "lower_triangle",
    "norm",
    "number",
    "rows_of_entries",
    "shown",
    "sparse_module",
]
