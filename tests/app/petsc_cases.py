"""What the tests of finelu.interop.petsc run on several processes: mpiexec -n 2 python petsc_cases.py CASE [options].

Each case is a function; what it returns on the first process is printed as one line of JSON.
"""

import json
import os
import sys
import warnings
from pathlib import Path

import petsc4py

CASE, ARGUMENTS = sys.argv[1], sys.argv[2:]
petsc4py.init(["case", *ARGUMENTS])
import numpy as np  # noqa: E402
import scipy.sparse as sp  # noqa: E402
from petsc4py import PETSc  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1]))
from multiblock_cases import AS_IT_IS, TURNS, Cut  # noqa: E402
from stencil_cases import random_blocks  # noqa: E402

import finelu as fl  # noqa: E402
from finelu.interop import petsc, petsc_command  # noqa: E402
from finelu.interop.petsc import PC  # noqa: E402

COMM = PETSc.COMM_WORLD
RANK = COMM.getRank()
OURS = ["-sub_pc_type", "python", "-sub_pc_python_type", "finelu.interop.petsc.PC"]


def distributed(S, comm=COMM):
    """A SciPy matrix that all processes have, spread over them."""
    S = sp.csr_matrix(S)
    S.sort_indices()
    A = PETSc.Mat().create(comm)
    A.setSizes(S.shape)
    A.setFromOptions()
    A.setUp()
    first, last = A.getOwnershipRange()
    own = S[first:last]
    index = PETSc.IntType
    A.setPreallocationCSR((own.indptr.astype(index), own.indices.astype(index), own.data.astype(PETSc.ScalarType)))
    A.assemble()
    return A


def right_hand_side(A):
    b = A.createVecLeft()
    first, last = b.getOwnershipRange()
    b.setArray(np.random.default_rng(7).standard_normal(b.getSize())[first:last])
    return b


def options(*words):
    """Put the words into the options database; the others that a case has set before are taken out."""
    database = PETSc.Options()
    for name in options.given:
        database.delValue(name)
    options.given = [word for word in words if word.startswith("-") and not word[1:2].isdigit()]
    database.insertString(" ".join(words))


options.given = []


def solver(A, kind="gmres", rtol=1e-8):
    ksp = PETSc.KSP().create(A.getComm())
    ksp.setOperators(A)
    ksp.setType(kind)
    ksp.setTolerances(rtol=rtol, max_it=500)
    ksp.setFromOptions()
    return ksp


def solved(ksp, b):
    """Iterations, reason, and the true relative residual."""
    x = b.duplicate()
    ksp.solve(b, x)
    r = b.duplicate()
    ksp.getOperators()[0].mult(x, r)
    r.aypx(-1.0, b)
    residual = r.norm() / b.norm()
    return ksp.getIterationNumber(), ksp.getConvergedReason(), residual if np.isfinite(residual) else None


def convection(n=12):
    return fl.gallery.convection_diffusion(n, peclet=40.0, scheme="central")


# Cases ----------------------------------------------------------------------------------------------------------------


def counts():
    """Iterations with PETSc's ILU(0) and with finelu's, under every preconditioner that has subdomains."""
    A = distributed(convection())
    b = right_hand_side(A)
    found = {}
    for outer in (
        "-pc_type bjacobi",
        "-pc_type asm",
        "-pc_type asm -pc_asm_overlap 2",
        "-pc_type asm -pc_asm_type basic -pc_asm_blocks 8",
        "-pc_type gasm",
        "-pc_type asm -ksp_type bicg",
        "-pc_type asm -sub_ksp_type gmres -sub_ksp_max_it 3 -ksp_type fgmres",
    ):
        pair = []
        for inner in (["-sub_pc_type", "ilu"], OURS):
            options(*outer.split(), *inner)
            ksp = solver(A)
            pair.append(solved(ksp, b))
            ksp.destroy()
        found[outer] = pair
    return found


def multigrid():
    """A smoother inside gamg, whose coarse levels leave blocks without rows; PETSc's own to compare with."""
    A = distributed(fl.gallery.poisson7(14))
    b = right_hand_side(A)
    found = []
    outer = "-pc_type gamg -pc_gamg_process_eq_limit 20 -pc_gamg_coarse_eq_limit 8 -mg_levels_ksp_type richardson"
    for inner in ("ilu", "python -mg_levels_sub_pc_python_type finelu.interop.petsc.PC"):
        words = f"{outer} -mg_levels_ksp_max_it 2 -mg_levels_pc_type bjacobi -mg_levels_sub_pc_type {inner}"
        options(*words.split())
        found.append(solved(solver(A), b))
    return found


def recipes():
    """What the smoothers of gamg have taken from the options, level by level."""
    A = distributed(fl.gallery.poisson7(14))
    pc = solver(A).getPC()
    pc.setUp()
    found = []
    for level in range(1, pc.getMGLevels()):
        smoother = pc.getMGSmoother(level).getPC()
        smoother.setUp()
        found.append(repr(smoother.getASMSubKSP()[0].getPC().getPythonContext().recipe))
    return found


def failure():
    """A process that fails, by what kind= says, once or twice=1; then values that are good. Reasons of each solve.

    clear= "outer": the failure that PETSc keeps in the outer PC is taken back (docs/petsc.md); "new": by a new solver.
    """
    words = dict(word.split("=") for word in ARGUMENTS if "=" in word)
    kind, bad_rank = words["kind"], int(words.get("rank", COMM.getSize() - 1))
    good = convection(8)
    n = good.shape[0]
    row = (n * bad_rank) // COMM.getSize() + 5
    S = good
    if kind == "missing":
        S = S.tolil()
        S[row, row] = 0
        S = sp.csr_matrix(S)
        S.eliminate_zeros()
    A = distributed(S)

    def set_row(values):
        if A.getOwnershipRange()[0] <= row < A.getOwnershipRange()[1]:
            A.setValues([row], good[row].indices.astype(PETSc.IntType), values)
        A.assemble()

    if kind == "pivot":
        set_row(np.zeros(good[row].nnz))
    elif kind == "nan":
        set_row(np.where(good[row].indices == row, np.nan, good[row].data))
    b = right_hand_side(A)
    ksp = solver(A)
    own = {name: getattr(PC, name) for name in ("_into", "_set_up")}
    calls = []
    if kind in ("apply", "set-up") and bad_rank == RANK:
        name, after = ("_into", int(words.get("after", 2))) if kind == "apply" else ("_set_up", 0)

        def fails(self, *arguments):
            calls.append(0)
            return own[name](self, *arguments) if len(calls) <= after else 1 / 0

        setattr(PC, name, fails)
    reasons = [solved(ksp, b)[:2]]
    if words.get("twice"):
        A.scale(1.5)
        reasons.append(solved(ksp, b)[:2])
    for name, method in own.items():
        setattr(PC, name, method)
    if kind == "missing":
        ksp.setOperators(distributed(good))
    else:
        set_row(good[row].data)
    if words.get("clear"):
        reasons.append(solved(ksp, b)[:2])
    if words.get("clear") == "outer":
        ksp.getPC().setFailedReason(0)
    elif words.get("clear") == "new":
        ksp = solver(A)
    reasons += [solved(ksp, b)[:2], solved(ksp, b)[:2]]
    everywhere = COMM.tompi4py().allgather(reasons)
    assert all(r == reasons for r in everywhere)
    return reasons


def no_way():
    """A failure that cannot even be handed over, or reported, by the last process."""
    A = distributed(convection(6))
    ksp = solver(A)
    if COMM.getSize() - 1 == RANK:
        PC._solve = lambda *_: 1 / 0
        if "stderr" in ARGUMENTS:
            os.close(2)
            sys.stderr.close()
        else:
            petsc.pc.writable = lambda _: memoryview(b"")[1, 1]
    return solved(ksp, right_hand_side(A))


def error_of_one():
    """PETSc has no memory in the solver of the last process alone."""

    def solver_without_memory(*_):
        petsc.processes.in_one_line(out_of_memory)

    def out_of_memory():
        raise PETSc.Error(55)

    if COMM.getSize() - 1 == RANK:
        petsc.solve._solver = solver_without_memory
    sys.exit(petsc_command.command([word for word in ARGUMENTS if "." in word]))


def multiblock():
    """A grid of several blocks by methods of PETSc: iterations, reasons and residuals; then other values, twice as
    large; then a block that is singular on the last process, and the first values again."""
    cut = Cut((12, 5, 3), 0, [3, 6, 9], [AS_IT_IS, TURNS[13], TURNS[30], TURNS[47]], closed=True)
    parts = cut.blocks(random_blocks((12, 5, 3), 3, np.dtype(PETSc.ScalarType).name, seed=11))
    own = {k: part for k, part in parts.items() if k % COMM.getSize() == RANK}

    def matrix(factor=1.0):
        blocks = {k: factor * part for k, part in own.items()}
        return fl.MultiblockMatrix(grid, blocks)

    grid = cut.grid(own, COMM.tompi4py())
    mat = petsc.as_mat(matrix())
    found = []
    for kind in ("richardson", "gmres", "bicg"):
        ksp = solver(mat, kind, 1e-10)
        ksp.getPC().setType("python")
        ksp.getPC().setPythonContext(PC())
        ksp.setFromOptions()
        found.append(solved(ksp, right_hand_side(mat)))
    context = ksp.getPC().getPythonContext()
    petsc.set_matrix(mat, matrix(2.0))
    found.append(solved(ksp, right_hand_side(mat)))
    singular = {k: part.copy() for k, part in own.items()}
    if COMM.getSize() - 1 == RANK:
        next(iter(singular.values()))[:4, 0, 0, 0] = 0
    petsc.set_matrix(mat, fl.MultiblockMatrix(grid, singular))
    found.append(solved(ksp, right_hand_side(mat)))
    petsc.set_matrix(mat, matrix())
    found.append(solved(ksp, right_hand_side(mat)))
    return found, context.calls, repr(context.factors.recipe)


def threads():
    A = distributed(convection(6))
    solved(solver(A), right_hand_side(A))
    return COMM.tompi4py().allgather(fl.get_num_threads())


def from_file():
    """solve_mtx with the arguments that are given as NAME=VALUE."""
    words = dict(word.split("=") for word in ARGUMENTS if "=" in word)
    try:
        outcome = petsc.solve_mtx(words.pop("path"), words.pop("b", None), **words)
    except fl.errors.FineluError as error:
        return {"error": COMM.tompi4py().allgather(f"{type(error).__name__}: {error}")}
    left = sorted(name for name in PETSc.Options().getAll() if "pc_" in name)
    return {name: value for name, value in vars(outcome).items() if name != "x"} | {"left": left}


if __name__ == "__main__":
    warnings.simplefilter("error", RuntimeWarning)
    result = globals()[CASE]()
    if RANK == 0:
        print("RESULT " + json.dumps(result), flush=True)
