"""What the tests of finelu.interop.petsc run on several processes: mpiexec -n 2 python petsc_cases.py CASE [options].

Each case is a function; what it returns on the first process is printed as one line of JSON.
"""

import json
import sys
import warnings

import petsc4py

CASE, ARGUMENTS = sys.argv[1], sys.argv[2:]
petsc4py.init(["case", *ARGUMENTS])
import numpy as np  # noqa: E402
import scipy.sparse as sp  # noqa: E402
from petsc4py import PETSc  # noqa: E402

import finelu as fl  # noqa: E402

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
    """A smoother inside gamg, whose coarse levels leave blocks without rows; PETSc's own beside it."""
    A = distributed(fl.gallery.poisson7(14))
    b = right_hand_side(A)
    found = []
    outer = "-pc_type gamg -pc_gamg_process_eq_limit 20 -pc_gamg_coarse_eq_limit 8 -mg_levels_ksp_type richardson"
    for inner in ("ilu", "python -mg_levels_sub_pc_python_type finelu.interop.petsc.PC"):
        words = f"{outer} -mg_levels_ksp_max_it 2 -mg_levels_pc_type bjacobi -mg_levels_sub_pc_type {inner}"
        options(*words.split())
        found.append(solved(solver(A), b))
    return found


def failure():
    """A process that fails, by what the first argument says; then values that are good. Reasons of each solve."""
    words = dict(word.split("=") for word in ARGUMENTS if "=" in word)
    kind, bad_rank = words["kind"], int(words.get("rank", COMM.getSize() - 1))
    S = convection(8).tolil()
    n = S.shape[0]
    row = (n * bad_rank) // COMM.getSize() + 5
    if kind == "missing":
        S[row, row] = 0
        S = sp.csr_matrix(S)
        S.eliminate_zeros()
    else:
        S = sp.csr_matrix(S)
    good = convection(8)
    A = distributed(S)
    place = (row, row)
    if kind == "pivot":
        A.setValue(row, row, 0.0)
        for column in S[row].indices:
            A.setValue(row, int(column), 0.0)
    elif kind == "nan":
        A.setValue(*place, np.nan)
    A.assemble()
    b = right_hand_side(A)
    ksp = solver(A)
    reasons = [solved(ksp, b)[:2]]
    if kind == "missing":
        ksp.setOperators(distributed(good))
    else:
        for column in good[row].indices:
            A.setValue(row, int(column), good[row, column])
        A.assemble()
    reasons += [solved(ksp, b)[:2], solved(ksp, b)[:2]]
    everywhere = COMM.tompi4py().allgather(reasons)
    assert all(r == reasons for r in everywhere)
    return reasons


def threads():
    A = distributed(convection(6))
    solved(solver(A), right_hand_side(A))
    return COMM.tompi4py().allgather(fl.get_num_threads())


def from_file():
    """solve_mtx with the arguments that are given as NAME=VALUE."""
    from finelu.interop.petsc import solve_mtx

    words = dict(word.split("=") for word in ARGUMENTS if "=" in word)
    try:
        outcome = solve_mtx(words.pop("path"), words.pop("b", None), **words)
    except fl.errors.FineluError as error:
        return {"error": COMM.tompi4py().allgather(f"{type(error).__name__}: {error}")}
    return {name: value for name, value in vars(outcome).items() if name != "x"}


if __name__ == "__main__":
    warnings.simplefilter("error", RuntimeWarning)
    result = globals()[CASE]()
    if RANK == 0:
        print("RESULT " + json.dumps(result), flush=True)
