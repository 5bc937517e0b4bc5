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
from finelu.interop.petsc import PC, borders  # noqa: E402
from finelu.preconditioners.schwarz.factors import SchwarzFactors  # noqa: E402

COMM = PETSc.COMM_WORLD
RANK = COMM.getRank()
OURS = ["-sub_pc_type", "python", "-sub_pc_python_type", "finelu.interop.petsc.PC"]


def distributed(S, comm=COMM, last=None):
    """A SciPy matrix that all processes have, spread over them.  last : the number of rows of the last process."""
    S = sp.csr_matrix(S)
    S.sort_indices()
    A = PETSc.Mat().create(comm)
    own = None
    if last is not None:
        others = np.diff(np.linspace(0, S.shape[0] - last, comm.getSize()).astype(int))
        own = int(np.append(others, last)[comm.getRank()])
    A.setSizes(((own, S.shape[0]), (own, S.shape[0])))
    A.setOption(PETSc.Mat.Option.NEW_NONZERO_ALLOCATION_ERR, False)
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
    places = {"apply": (PC, "_into"), "set-up": (PC, "_set_up"), "own": (SchwarzFactors, "solved")}
    places["coupled"] = petsc.schwarz.Product, "__init__"
    calls = []
    if kind in places and bad_rank == RANK:
        owner, name = places[kind]
        method, after = getattr(owner, name), int(words.get("after", 2)) if kind in ("apply", "own") else 0

        def fails(self, *arguments):
            calls.append(0)
            return method(self, *arguments) if len(calls) <= after else 1 / 0

        setattr(owner, name, fails)
    reasons = [solved(ksp, b)[:2]]
    if words.get("twice"):
        A.scale(1.5)
        reasons.append(solved(ksp, b)[:2])
    if kind in places and bad_rank == RANK:
        setattr(owner, name, method)
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


def jumping(n):
    """A 7-point grid of n^3 cells with conductivities from 1e-3 to 1e3 at random; x = 0 on two sides."""
    k = 10.0 ** np.random.default_rng(5).uniform(-3, 3, (n, n, n))
    cells = np.arange(n**3).reshape(k.shape)
    fixed = np.concatenate([cells[0].ravel(), cells[-1].ravel()])
    A = sp.csr_matrix((2 * k.ravel()[fixed], (fixed, fixed)), shape=(n**3, n**3))
    for axis in range(3):
        first, second = (np.take(cells, range(a, n - 1 + a), axis).ravel() for a in (0, 1))
        mean = 2 / (1 / k.ravel()[first] + 1 / k.ravel()[second])
        faces, ones = np.arange(first.size), np.ones(first.size)
        ends = np.append(ones, -ones), (np.tile(faces, 2), np.append(first, second))
        D = sp.csr_matrix(ends, shape=(first.size, n**3))
        A = A + D.T @ sp.diags(mean) @ D
    return A.tocsr()


SYSTEMS = {
    "poisson": lambda: fl.gallery.poisson7(9),
    "larger": lambda: fl.gallery.poisson7(24),
    "jumps": lambda: jumping(16),
    "scattered": lambda: jumping(9),
    "convection": lambda: fl.gallery.convection_diffusion(9, peclet=5.0),
    "wind": lambda: fl.gallery.convection_diffusion(12, peclet=5.0),
    "elastic": lambda: fl.gallery.elasticity(12, 3, 3),
    "bar": lambda: fl.gallery.elasticity(30, 4, 4),
    "insulated": lambda: sp.csr_matrix(sp.csgraph.laplacian(-fl.gallery.poisson7(10) + 6 * sp.identity(1000))),
}


def coupled_pc(A, recipe, near=None):
    """The PC of several processes with this recipe, set up; near (n, m) : the near null space of A."""
    if near is not None:
        vectors = []
        for column in near.T:
            vector = A.createVecLeft()
            vector.setArray(column[slice(*vector.getOwnershipRange())])
            vectors.append(vector)
        A.setNearNullSpace(PETSc.NullSpace().create(vectors=vectors, comm=COMM))
    pc = PETSc.PC().create(COMM)
    pc.setOperators(A)
    pc.setType("python")
    pc.setPythonContext(PC(recipe))
    pc.setUp()
    return pc


def gathered(vector):
    return np.concatenate(COMM.tompi4py().allgather(vector.getArray(readonly=True).copy()))


def applied(pc, A, x, transpose=False):
    b, y = A.createVecLeft(), A.createVecLeft()
    b.setArray(x[slice(*b.getOwnershipRange())])
    (pc.applyTranspose if transpose else pc.apply)(b, y)
    return gathered(y)


def by_definition(shared, S, near, combine, hermitian, rows):
    """M as a dense matrix, from the parts of all processes and the factors of their blocks.

    rows : those of this process, which may have moved to others.
    """
    own = shared.own
    order = np.concatenate(COMM.tompi4py().allgather(shared._borders.there(rows.astype(PETSc.ScalarType)).real))
    order = order.astype(int)  # where rows moved: their numbers in S
    S, near = S[order][:, order], None if near is None else near[order]
    n = 0 if own is None else own.shape[0]
    solves = np.empty((0, 0)) if own is None else own.solve(np.eye(n))
    parts = np.empty(0, int) if own is None else own.parts
    everything = COMM.tompi4py().allgather((solves, parts))
    B = np.asarray(sp.block_diag([solves for solves, _ in everything if solves.size]).todense())
    counts = np.cumsum([0, *(parts.max(initial=-1) + 1 for _, parts in everything)])
    parts = np.concatenate([parts + first for (_, parts), first in zip(everything, counts, strict=False)])
    near = np.ones((parts.size, 1)) if near is None else near
    Z = np.concatenate([near * (parts == p)[:, None] for p in range(counts[-1])], axis=1)
    Z = Z[:, ~shared.dropped]
    A = S.toarray()
    Q = Z @ np.linalg.inv(Z.T @ A @ Z) @ Z.T
    P = np.eye(A.shape[0]) - A @ Q
    M = np.empty(A.shape)
    M[order[:, None], order] = (B if combine == "additive" else P.T @ B @ P if hermitian else B @ P) + Q
    return M


DEFINED = [  # system, parameters, rows of the last process
    ("poisson", {}, None),
    ("poisson", {"combine": "additive"}, None),
    ("poisson", {"overlap": 1}, 0),
    ("convection", {}, 3),
    ("elastic", {}, None),
    ("insulated", {}, None),
    ("scattered", {}, 0),
    ("scattered", {"combine": "additive"}, 3),
]


def coupled_definition():
    """For each of DEFINED the largest relative differences to the dense definition: of M^-1 x, of M^-T x, and of
    several columns; whether A counts as Hermitian, the rows of the levels, and how many rows moved."""
    found = []
    for system, parameters, last in DEFINED:
        S = sp.csr_matrix(SYSTEMS[system]())
        n, near = S.shape[0], None
        if system == "elastic":
            near = np.kron(np.ones((n // 3, 1)), np.eye(3))
            near[: n // 3, 1] = near[: n // 3, 0]  # two of them are the same in some parts
        elif system == "scattered":
            near = np.column_stack([np.ones(n), np.linspace(-1, 1, n)])
        A = distributed(S, last=last)
        pc = coupled_pc(A, fl.Schwarz(size=30, **parameters), near)
        shared = pc.getPythonContext().shared
        x = np.random.default_rng(3).standard_normal(n)
        rows = np.arange(*A.getOwnershipRange())
        M = by_definition(shared, S, near, parameters.get("combine"), shared.hermitian, rows)
        errors = []
        for transpose, dense in ((False, M), (True, M.T)):
            want = dense @ x
            errors.append(np.linalg.norm(applied(pc, A, x, transpose) - want) / np.linalg.norm(want))
        X, Y = (PETSc.Mat().createDense(((A.getLocalSize()[0], n), (None, 2)), comm=COMM) for _ in range(2))
        for columns in (X, Y):
            columns.setUp()
        X.getDenseArray()[:] = np.column_stack([x, 2 * x])[slice(*A.getOwnershipRange())]
        for columns in (X, Y):
            columns.assemble()
        pc.matApply(X, Y)
        both = np.concatenate(COMM.tompi4py().allgather(Y.getDenseArray().copy()))
        errors.append(abs(both - np.outer(applied(pc, A, x), [1, 2])).max())
        found.append([errors, shared.hermitian, shared.rows_of_levels, shared._borders.moved])
    return found


LEVELS = [("larger", 16, 3, "cg"), ("bar", 9, 3, "cg"), ("wind", 3, 4, "gmres"), ("jumps", 6, 3, "cg")]


def coupled_levels():
    """For each of LEVELS with two levels and with more: a solve; y^T M x, x^T M y, x^T M x and (M^T y)^T x; the sizes
    of the levels and the steps of the second."""
    found = []
    for system, size, most, method in LEVELS:
        A = distributed(SYSTEMS[system]())
        n = A.getSize()[0]
        near = np.kron(np.ones((n // 3, 1)), np.eye(3)) if system == "bar" else None
        x, y = np.random.default_rng(3).standard_normal((2, n))
        for levels in (2, most):
            pc = coupled_pc(A, fl.Schwarz(size=size, levels=levels), near)
            shared = pc.getPythonContext().shared
            forms = [float(u @ applied(pc, A, v)) for u, v in ((y, x), (x, y), (x, x))]
            forms.append(float(applied(pc, A, y, transpose=True) @ x))
            ksp = PETSc.KSP().create(COMM)
            ksp.setOperators(A)
            ksp.setType(method)
            ksp.setTolerances(rtol=1e-8, max_it=500)
            ksp.setPC(pc)
            found.append([solved(ksp, right_hand_side(A)), forms, shared.rows_of_levels, shared.coarse_steps])
    return list(zip(found[::2], found[1::2], strict=True))


def coupled_by_default():
    """Levels of a coarse matrix that is large; and those where these would take too many steps, with the view."""
    petsc.schwarz.MOST_FACTORED = 512
    A = distributed(SYSTEMS["larger"]())
    pc = coupled_pc(A, fl.Schwarz(size=16))
    context = pc.getPythonContext()
    first = context.shared.rows_of_levels, context.shared.coarse_steps, list(context._described())
    sys.modules["finelu.preconditioners.schwarz.spectrum"].MOST_STEPS = 1
    A.scale(2.0)
    pc.setUp()
    return (
        first,
        (context.shared.rows_of_levels, context.shared.coarse_steps, list(context._described())),
        context.error,
    )


def coupled_iterations():
    """Iterations, reason and residual for each system; "insulated" is singular, with a right-hand side in its range."""
    found = {}
    for name in ("larger", "jumps", "wind", "insulated"):
        A = distributed(SYSTEMS[name]())
        b = right_hand_side(A)
        if name == "insulated":
            space = PETSc.NullSpace().create(constant=True, comm=COMM)
            A.setNullSpace(space)
            space.remove(b)
        options("-pc_type", "python", "-pc_python_type", "finelu.interop.petsc.PC", "-finelu_recipe", "schwarz")
        found[name] = solved(solver(A, "gmres" if name == "wind" else "cg"), b)
    return found


def coupled_update():
    """How far new values lead from new factors, and the first values again from the first; whether the parts are kept;
    the calls; the sizes of the levels; how many rows moved."""
    given = dict(word.split("=") for word in ARGUMENTS)
    S = sp.csr_matrix(SYSTEMS[given["system"]]())
    n = S.shape[0]
    other = sp.csr_matrix(S + sp.diags(np.linspace(0, 5, n))) if given["system"] == "larger" else 3 * S  # same moves
    A, x = distributed(S), np.random.default_rng(3).standard_normal(n)
    partition = "geometric" if given["system"] == "larger" else "aggregate"
    recipe = fl.Schwarz(size=16, levels=int(given["levels"]), partition=partition)
    pc = coupled_pc(A, recipe)
    context = pc.getPythonContext()
    parts = context.shared.own.parts
    first = applied(pc, A, x)
    first_row, last_row = A.getOwnershipRange()
    own = other[first_row:last_row]
    A.setValuesCSR(own.indptr.astype(PETSc.IntType), own.indices.astype(PETSc.IntType), own.data)
    A.assemble()
    pc.setUp()
    second = applied(pc, A, x)
    B = distributed(other)
    fresh = applied(coupled_pc(B, recipe), B, x)
    pc.setOperators(distributed(S))
    pc.setUp()
    again = applied(pc, A, x)
    kept, calls = context.shared.own.parts is parts, context.calls
    return (
        [np.linalg.norm(second - fresh), np.linalg.norm(again - first), np.linalg.norm(second - first)],
        kept,
        calls,
        context.shared.rows_of_levels,
        context.shared._borders.moved,
    )


def coupled_errors():
    """For each kind of fault what each process has of a set-up that fails, whether an application is NaN, the view."""
    found = {}
    for kind in ("columns", "shape", "nan", "zero", "auto", "coupling", "device"):
        A = distributed(SYSTEMS["poisson"]())
        n = A.getLocalSize()[0]
        near = {
            "columns": np.ones((n, 1 + RANK)),
            "shape": np.ones((n + RANK, 1)),
            "nan": np.full((n, 1), np.nan if RANK else 1.0),
            "zero": np.zeros((n, 1)),
            "auto": "auto",
        }.get(kind)
        if kind == "coupling" and RANK == 0:
            A.setValue(n - 1, n - 1 + 9**2, np.inf)  # the next point of the grid, in the third direction
        A.assemble()
        pc = PETSc.PC().create(COMM)
        pc.setOperators(A)
        pc.setOptionsPrefix(f"{kind}_")
        pc.setType("python")
        pc.setPythonContext(PC(fl.Schwarz(near_nullspace=near), device="cuda" if kind == "device" else "cpu"))
        pc.setUp()
        context = pc.getPythonContext()
        errors = COMM.tompi4py().allgather(context.error)
        nothing = bool(np.isnan(applied(pc, A, np.ones(A.getSize()[0]))).all())
        found[kind] = errors, nothing, list(context._described())[-1]
    return found


def coupled_borders():
    """For each place where one process may fail while rows move across borders: the error that each process has of the
    set-up, and the rows that move once nothing fails."""
    found = {}

    def fail(*arguments):
        raise MemoryError("no room")

    def fail_in_steps(*arguments):
        yield [0] * COMM.getSize()
        fail()

    for name, instead in (("rows_of", fail), ("_led", fail), ("_permutation", fail_in_steps)):
        A = distributed(SYSTEMS["scattered"]())
        pc = PETSc.PC().create(COMM)
        pc.setOperators(A)
        pc.setType("python")
        pc.setPythonContext(PC(fl.Schwarz(size=30)))
        context, kept = pc.getPythonContext(), getattr(borders, name)
        if RANK == 1:
            setattr(borders, name, instead)
        pc.setUp()
        errors = COMM.tompi4py().allgather(str(context.error))
        setattr(borders, name, kept)
        A.scale(2)
        pc.setUp()
        found[name] = errors, str(context.error), context.shared._borders.moved
    return found


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
