"""finelu inside PETSc: `PC`, a preconditioner for each subdomain that two options choose, `solve_mtx`, and `as_mat`.

    mpiexec -n 4 ./application -pc_type asm -sub_pc_type python -sub_pc_python_type finelu.interop.petsc.PC \
        -sub_finelu_recipe parilut -sub_finelu_steps 5

PETSc imports this module by name in each process and makes one PC for each block. Works with petsc4py 3.18 and later.

    pc          PC: factors of a block, their set-up, application, failure and view
    options     the recipe and the device that PETSc's options ask for
    device      the GPU and the share of the cores of a process
    memory      PETSc's matrices and vectors as arrays, without copies
    rows        the rows of a process, and what couples them to others
    schwarz     Schwarz with one coarse space for all processes
    multiblock  as_mat: a matrix on a grid of several blocks as a Mat
    solve       solve_mtx: from a file to a solution
    files       matrices and vectors read and written by all processes together
    partition   rows spread so that few entries couple processes
    processes   collective operations: agree on results, raise one process's exception on all, end
"""

try:
    from petsc4py import PETSc  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"finelu.interop.petsc needs petsc4py, the one of your PETSc: see docs/petsc.md ({error})."
    ) from error

from finelu.interop.petsc.multiblock import as_mat, set_matrix
from finelu.interop.petsc.pc import PC
from finelu.interop.petsc.solve import Outcome, solve_mtx

__all__ = ["PC", "Outcome", "as_mat", "set_matrix", "solve_mtx"]
