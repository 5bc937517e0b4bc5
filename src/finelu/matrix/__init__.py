"""Matrices: the checks of A and b, block matrices, and properties of matrices.

door : `as_csr`, `check_vector`, and the checks of parameters.  traits : symmetry, diagonal, signs.
looks : looks at some rows, and dense blocks.
blocks, stencil : `BlockMatrix` and `StencilMatrix`; products : what these two share.  vectors : dense vectors.
"""

from finelu.device import sparse_module
from finelu.kernels.operands import CSR, INT32_LIMIT
from finelu.matrix.door import (
    as_csr,
    as_large,
    check_vector,
    checked_csr,
    full_csr,
    lower_triangle,
    of_nonzeros,
    on_pattern,
    without_zeros,
)
from finelu.matrix.vectors import DTYPES, all_finite, dense_numbers, norm

__all__ = [
    "CSR",
    "DTYPES",
    "INT32_LIMIT",
    "all_finite",
    "as_csr",
    "as_large",
    "check_vector",
    "checked_csr",
    "dense_numbers",
    "full_csr",
    "lower_triangle",
    "norm",
    "of_nonzeros",
    "on_pattern",
    "sparse_module",
    "without_zeros",
]
