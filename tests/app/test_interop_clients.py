"""finelu.interop.fipy, pymatsolver, lineax, devsim, opensees and sfepy, against dense solves; `make test-clients` runs
the programs."""

import importlib
import sys
import types
from array import array

import numpy as np
import pytest
import scipy.sparse as sp
from checks import CLIENTS, documented

import finelu as fl
from finelu.errors import MatrixError
from finelu.interop import devsim, opensees
from finelu.interop import scipy as interop_scipy


@pytest.mark.parametrize("package", CLIENTS)
def test_what_the_page_shows_runs(package, monkeypatch):
    monkeypatch.setenv("FIPY_SOLVERS", "scipy")
    pytest.importorskip(package)
    for code in documented("programs", package):
        exec(code, {})


def system(dtype="float64", n=60):
    rng = np.random.default_rng(0)
    A = sp.random(n, n, 0.1, random_state=rng) + 4 * sp.identity(n)
    if dtype == "complex128":
        A = A + 1j * sp.random(n, n, 0.1, random_state=rng)
    return sp.csc_array(A.astype(dtype)), rng.standard_normal(n).astype(dtype)


# pymatsolver


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_a_solver_of_pymatsolver_solves_with_A_its_transpose_and_its_conjugate(dtype):
    pytest.importorskip("pymatsolver")
    from finelu.interop.pymatsolver import Solver

    A, b = system(dtype)
    dense, B = A.toarray(), np.column_stack([b, 2 * b, b[::-1]])
    np.testing.assert_allclose(Solver(A, check_accuracy=True) @ B, np.linalg.solve(dense, B), rtol=1e-10)
    solver = Solver(A)
    for rhs in (b, B, np.stack([B, -B])):
        x = np.linalg.solve(dense, rhs)
        np.testing.assert_allclose(solver @ rhs, x, rtol=1e-10)
    np.testing.assert_allclose(solver.T @ B, np.linalg.solve(dense.T, B), rtol=1e-10)
    np.testing.assert_allclose(solver.T.T @ B, np.linalg.solve(dense, B), rtol=1e-10)
    np.testing.assert_allclose(solver.conj() @ b, np.linalg.solve(dense.conj(), b), rtol=1e-10)
    np.testing.assert_allclose(solver.conj().T @ b, np.linalg.solve(dense.conj().T, b), rtol=1e-10)
    assert solver.T.factors is solver.factors
    S = Solver(A + A.T)
    assert S.is_symmetric and S.T is S


# FiPy


def test_lu_of_fipy_solves_a_term_and_leaves_an_x_that_is_good_enough(monkeypatch):
    monkeypatch.setenv("FIPY_SOLVERS", "scipy")
    fipy = pytest.importorskip("fipy")
    from finelu.interop.fipy import LinearLUSolver, Preconditioner

    mesh = fipy.Grid2D(nx=12, ny=12)

    def solved(solver):
        phi = fipy.CellVariable(mesh=mesh)
        phi.constrain(1.0, mesh.facesLeft)
        equation = fipy.TransientTerm() == fipy.DiffusionTerm(coeff=1.0 + mesh.x) - fipy.ImplicitSourceTerm(coeff=0.1)
        equation.solve(var=phi, dt=1.0, solver=solver)
        return phi.value.copy()

    wanted = solved(fipy.LinearLUSolver(tolerance=1e-12))
    np.testing.assert_allclose(solved(LinearLUSolver(tolerance=1e-12)), wanted, rtol=1e-9)
    recipe = fl.ILU0()
    factored = []
    monkeypatch.setattr(fl.ILU0, "factor", lambda self, A, f=fl.ILU0.factor: factored.append(A) or f(self, A))
    by_gmres = fipy.LinearGMRESSolver(tolerance=1e-12, precon=Preconditioner(recipe))
    np.testing.assert_allclose(solved(by_gmres), wanted, rtol=1e-8)
    assert len(factored) == 1
    assert (solved(LinearLUSolver(tolerance=1.0)) == 0).all()  # x = 0 fulfils it
    beyond = LinearLUSolver(tolerance=1e-25)
    with pytest.warns(fipy.solvers.convergence.DivergenceWarning):
        np.testing.assert_allclose(solved(beyond), wanted, rtol=1e-9)


# lineax


@pytest.fixture
def lineax():
    jax = pytest.importorskip("jax")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield pytest.importorskip("lineax")
    jax.config.update("jax_enable_x64", before)


def test_a_solver_of_lineax_can_be_compiled_mapped_and_differentiated(lineax):
    import jax
    import jax.numpy as jnp
    from jax.experimental import sparse

    from finelu.interop.lineax import Solver, SparseOperator

    A = sparse.BCOO.from_scipy_sparse(sp.coo_array(system()[0]))
    b, places = jnp.asarray(system()[1]), A.indices

    def by_finelu(data, b):
        operator = SparseOperator(sparse.BCOO((data, places), shape=A.shape))
        return lineax.linear_solve(operator, b, Solver()).value

    def dense(data, b):
        return jnp.linalg.solve(sparse.BCOO((data, places), shape=A.shape).todense(), b)

    def slope(solve):
        return lambda data, b: jax.jvp(solve, (data, b), (jnp.cos(data), jnp.sin(b)))[1]

    def gradient(solve):
        return jax.grad(lambda data, b: (solve(data, b) ** 2).sum(), (0, 1))

    B, D = jnp.stack([b, b**2]), jnp.stack([A.data, 2 * A.data])
    for form, arguments in (
        (lambda f: f, (A.data, b)),
        (lambda f: jax.vmap(f, (None, 0)), (A.data, B)),
        (jax.vmap, (D, B)),
        (slope, (A.data, b)),
        (gradient, (A.data, b)),
    ):
        wanted = jax.tree.leaves(form(dense)(*arguments))
        for found in (form(by_finelu)(*arguments), jax.jit(form(by_finelu))(*arguments)):
            for ours, theirs in zip(jax.tree.leaves(found), wanted, strict=True):
                np.testing.assert_allclose(ours, theirs, rtol=1e-8, atol=1e-10)


def test_states_of_lineax_transpose_and_conjugate(lineax):
    import jax.numpy as jnp
    from jax.experimental import sparse

    from finelu.interop.lineax import Solver, SparseOperator

    A, b = system("complex128")
    operator = SparseOperator(sparse.BCOO.from_scipy_sparse(sp.coo_array(A)))
    solver, rhs = Solver(), jnp.asarray(b)
    state = solver.init(operator, {})
    for found, matrix in (
        (solver.transpose(state, {})[0], A.T),
        (solver.conj(state, {})[0], A.conj()),
        (solver.init(operator.transpose(), {}), A.T),
        (solver.init(lineax.conj(operator), {}), A.conj()),
    ):
        np.testing.assert_allclose(solver.compute(found, rhs, {})[0], np.linalg.solve(matrix.toarray(), b), rtol=1e-9)
    with pytest.raises(MatrixError, match="SparseOperator, not with a MatrixLinearOperator"):
        solver.init(lineax.MatrixLinearOperator(jnp.eye(2)), {})


# DEVSIM, whose callback gets arrays of doubles and integers


def called(A, **more):
    given = {"Ap": array("i", A.indptr), "Ai": array("i", A.indices), "Ax": array("d", A.data.view(float))}
    return {"action": "factor", "is_complex": A.dtype.kind == "c", **given, **more}


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("transpose", [False, True])
def test_the_callback_of_devsim_factors_updates_and_solves(dtype, transpose):
    A, b = system(dtype)
    begun = devsim.solver_callback(action="init", n=b.size, transpose=transpose)
    assert begun["status"] and begun["matrix_format"] == "csc"
    own = {"solver_object": begun["solver_object"]}
    made = []
    for matrix, same in ((A, False), (3 * A, True), (A @ A, False)):
        matrix = sp.csc_array(matrix)
        assert devsim.solver_callback(**called(matrix, is_same_symbolic=same, **own))["status"]
        made.append(begun["solver_object"]._factors)
        answer = devsim.solver_callback(
            action="solve", is_complex=dtype == "complex128", b=array("d", b.view(float)), **own
        )
        wanted = np.linalg.solve(matrix.toarray().T if transpose else matrix.toarray(), b)
        np.testing.assert_allclose(np.array(answer["x"]).view(dtype), wanted, rtol=1e-9)
    assert made[0] is made[1] is not made[2]


def test_a_singular_jacobian_of_devsim_is_told_by_the_status():
    begun = devsim.solver_callback(action="init", n=2, transpose=False)
    singular = sp.csc_array(np.array([[1.0, 1.0], [1.0, 1.0]]))
    answer = devsim.solver_callback(**called(singular, is_same_symbolic=False, solver_object=begun["solver_object"]))
    assert not answer["status"] and "singular" in answer["message"]


# OpenSees, whose solver gets buffers of doubles and 32-bit integers


def solved_by_opensees(solver, A, b, status, scheme="CSR"):
    """(status, x) as `PythonSparse` calls a solver."""
    x = array("d", bytes(8 * b.size))
    parts = {
        "index_ptr": A.indptr.astype(np.int32).tobytes(),
        "indices": A.indices.astype(np.int32).tobytes(),
        "values": A.data.tobytes(),
        "rhs": b.tobytes(),
        "x": memoryview(x).cast("B"),
    }
    ended = solver.solve(**parts, matrix_status=status, storage_scheme=scheme, num_eqn=b.size, nnz=A.nnz, writable=True)
    return ended, np.array(x)


@pytest.mark.parametrize("scheme", ["CSR", "CSC"])
def test_the_solver_of_opensees_follows_the_status_of_the_matrix(scheme):
    A, b = system()
    A = A.asformat(scheme.lower())
    solver, made = opensees.Solver(), []
    for matrix, status in (
        (A, "STRUCTURE_CHANGED"),
        (3 * A, "COEFFICIENTS_CHANGED"),
        (3 * A, "UNCHANGED"),
        ((A @ A).asformat(scheme.lower()), "STRUCTURE_CHANGED"),
    ):
        ended, x = solved_by_opensees(solver, matrix, b, status, scheme)
        made.append((solver._factors, solver._factors.updates))
        assert ended == 0 and solver.error is None
        np.testing.assert_allclose(x, np.linalg.solve(matrix.toarray(), b), rtol=1e-9)
    (first, _), (second, updates), (third, later), (fourth, _) = made
    assert first is second is third is not fourth and updates == later == 1


def test_opensees_gets_minus_1_without_a_solution():
    solver, b = opensees.Solver(), np.ones(2)
    singular = sp.csr_array(np.array([[1.0, 1.0], [1.0, 1.0]]))
    ended, x = solved_by_opensees(solver, singular, b, "STRUCTURE_CHANGED")
    assert ended == -1 and not x.any() and "singular" in str(solver.error)
    ended, x = solved_by_opensees(solver, sp.csr_array(np.eye(2)), b, "COEFFICIENTS_CHANGED")
    assert ended == 0 and solver.error is None and (x == 1).all()
    assert solved_by_opensees(solver, singular, b, "STRUCTURE_CHANGED", "COO")[0] == -1
    assert "'CSR' or 'CSC'" in str(solver.error)


# sfepy


def test_the_solver_of_sfepy_registers_and_solves_by_finelu(monkeypatch):
    """By a stand-in of what the adapter takes of sfepy: register_solver, and the class of "ls.scipy_superlu", which
    calls the functions of `self.sls`."""
    registered, seen = {}, []

    class ScipySuperLU:
        name, _parameters = "ls.scipy_superlu", [("use_presolve", "bool", False, False, "")]

        def __init__(self, conf, **keywords):
            import scipy.sparse.linalg

            self.conf, self.sls, self.keywords, self.solve = conf, scipy.sparse.linalg, keywords, None

        def __call__(self, rhs, mtx):
            if self.conf["use_presolve"]:
                self.solve = self.sls.factorized(mtx)
                return self.solve(rhs)
            return self.sls.spsolve(mtx, rhs)

    solvers, ls = types.ModuleType("sfepy.solvers"), types.ModuleType("sfepy.solvers.ls")
    solvers.register_solver, ls.ScipySuperLU = lambda kind: registered.setdefault(kind.name, kind), ScipySuperLU
    for name, module in {"sfepy": types.ModuleType("sfepy"), "sfepy.solvers": solvers, "sfepy.solvers.ls": ls}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "finelu.interop.sfepy", raising=False)
    kind = importlib.import_module("finelu.interop.sfepy").Solver
    monkeypatch.delitem(sys.modules, "finelu.interop.sfepy")
    assert registered == {"ls.finelu": kind} and kind._parameters == ScipySuperLU._parameters
    for name in ("spsolve", "factorized"):
        ours = getattr(fl, name)
        monkeypatch.setattr(interop_scipy, name, lambda *a, ours=ours, name=name: seen.append(name) or ours(*a))
    A, b = system()
    for presolve in (False, True):
        solver = kind({"use_presolve": presolve}, context="of sfepy")
        np.testing.assert_allclose(solver(b, A), np.linalg.solve(A.toarray(), b), rtol=1e-10)
        assert solver.keywords == {"context": "of sfepy"}
    assert seen == ["spsolve", "factorized"]


def test_the_adapter_of_sfepy_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sfepy", None)
    monkeypatch.delitem(sys.modules, "finelu.interop.sfepy", raising=False)
    with pytest.raises(ImportError, match="pip install sfepy"):
        importlib.import_module("finelu.interop.sfepy")
