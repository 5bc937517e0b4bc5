"""Multi-block matrices inside PETSc: a Mat of type "python" that multiplies by a `MultiblockMatrix`."""

from __future__ import annotations

from petsc4py import PETSc

from finelu.device import namespace, on_gpu
from finelu.errors import MatrixError
from finelu.interop.petsc.memory import copy_to_host, cuda_array, is_on_gpu, readable, writable
from finelu.interop.petsc.processes import or_abort
from finelu.matrix.multiblock import MultiblockMatrix


def as_mat(A: MultiblockMatrix) -> PETSc.Mat:
    """A as a PETSc Mat, for any KSP; the processes are those of A's grid, each with the rows of its blocks.

    It has products with A and A^T. As its preconditioner `finelu.interop.petsc.PC` factors each block by itself, by
    BlockILU0 unless another recipe is given: `-pc_type python -pc_python_type finelu.interop.petsc.PC`. Vectors are
    those of PETSc; where A is on a GPU and they are not, each product copies them there and back.
    `set_matrix(mat, A)` gives it other values. Raises MatrixError where A's numbers are not PETSc's.
    """
    _check(A)
    n = A.shape[0]
    mat = PETSc.Mat().createPython(((n, None), (n, None)), Products(A), comm=A.comm or PETSc.COMM_SELF)
    mat.setUp()
    return mat


def set_matrix(mat: PETSc.Mat, A: MultiblockMatrix) -> None:
    """Let a Mat of `as_mat` stand for another A of the same grid; the next set-up updates its factors."""
    products = of(mat)
    if products is None or not products.A.same_grid(A):
        raise MatrixError("set_matrix needs a Mat of as_mat, and another matrix of its grid.")
    _check(A)
    products.A = A
    mat.assemble()  # counts as a change


def of(mat: PETSc.Mat) -> Products | None:
    """What multiplies by a Mat of `as_mat`; None for any other."""
    context = mat.getPythonContext() if mat.getType() == "python" else None
    return context if isinstance(context, Products) else None


def _check(A: MultiblockMatrix) -> None:
    if not isinstance(A, MultiblockMatrix):
        raise MatrixError(f"A is a {type(A).__name__}; a MultiblockMatrix is needed.")
    if A.dtype != PETSc.ScalarType:
        raise MatrixError(f"A is {A.dtype}, and this PETSc has scalars of {PETSc.ScalarType.__name__}.")


class Products:
    """The context of the Mat: products with A.  A : may be replaced by `set_matrix`."""

    def __init__(self, A: MultiblockMatrix):
        self.A = A

    @or_abort
    def mult(self, mat: PETSc.Mat, x: PETSc.Vec, y: PETSc.Vec) -> None:
        self._apply(self.A, x, y)

    @or_abort
    def multTranspose(self, mat: PETSc.Mat, x: PETSc.Vec, y: PETSc.Vec) -> None:
        A = self.A
        if A.dtype.kind == "c":  # A^T x = conj(A^H conj(x)); `H` is kept
            x = x.copy()
            x.conjugate()
        self._apply(A.H, x, y)
        if A.dtype.kind == "c":
            y.conjugate()

    @staticmethod
    def _apply(A: MultiblockMatrix, x: PETSc.Vec, y: PETSc.Vec) -> None:
        if not on_gpu(A.data):
            writable(y)[...] = A @ readable(x)
            return
        cupy = namespace(A.data)
        with cupy.cuda.Device(A.data.device), cupy.cuda.Stream.null:  # PETSc's stream
            if is_on_gpu(x) and is_on_gpu(y):
                with cuda_array(cupy, x, "r") as b, cuda_array(cupy, y, "w") as out:
                    out[...] = A @ b
            else:
                copy_to_host(A @ cupy.asarray(readable(x)), writable(y))
