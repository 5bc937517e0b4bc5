"""Matrices and vectors in files. A `FileError` names the path of a file that cannot be read or written, and the place.

market     Matrix Market: lines are checked against the grammar before SciPy reads their numbers
matlab     .mat up to version 7
arrays     .npy, .npz, .txt, .csv: NumPy's and SciPy's readers, after a check of the announced sizes
petsc      PETSc's binary format read, write, replace, paths, limits     shared by all formats
"""

from finelu.io.paths import WRITABLE_FORMATS, check_apart, check_writable
from finelu.io.read import MATRIX_FORMATS, VECTOR_FORMATS, read_matrix, read_vector
from finelu.io.replace import replacing
from finelu.io.write import write_array

__all__ = [
    "MATRIX_FORMATS",
    "VECTOR_FORMATS",
    "WRITABLE_FORMATS",
    "check_apart",
    "check_writable",
    "read_matrix",
    "read_vector",
    "replacing",
    "write_array",
]
