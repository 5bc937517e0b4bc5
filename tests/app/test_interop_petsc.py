"""finelu.interop.petsc: by twin (PETSc's ILU, the factors themselves), by behaviour on several processes, by failure.

What needs several processes is in petsc_cases.py, which mpiexec runs.
"""

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from checks import documented, one_line, perturbed
from launched import launched, result

import finelu as fl
from finelu import threads
from finelu.device import require_gpu
from finelu.errors import DeviceError, ParameterError
from finelu.io import read_vector
from finelu.preconditioners import RECIPES
from finelu.preconditioners.recipe import Recipe

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OURS = ("-sub_pc_type", "python", "-sub_pc_python_type", "finelu.interop.petsc.PC")
ALONE = ("-pc_type", "python", "-pc_python_type", "finelu.interop.petsc.PC")
GAMG = ("-pc_type", "gamg", "-pc_gamg_coarse_eq_limit", "8", "-mg_levels_pc_type", "asm")
GAMG += tuple(word.replace("-sub", "-mg_levels_sub") for word in OURS)
OUTER = [("-pc_type", "asm", *OURS), ("-pc_type", "bjacobi", *OURS), ALONE]

pytestmark = pytest.mark.petsc
try:
    import petsc4py

    petsc4py.init(["test"])
    from petsc4py import PETSc
except ImportError as error:
    pytest.skip(f"no petsc4py that can be imported: {error}", allow_module_level=True)
petsc = pytest.importorskip("finelu.interop.petsc")
petsc_command = pytest.importorskip("finelu.interop.petsc_command")

# Parameters that a recipe cannot do without, and a matrix that all can work on.
NEEDED = {name: {"block_size": 3} for name in ("block_ilu0", "cpr")}
A = fl.gallery.poisson7(6)
SPD = A.tocsr()


def mpi(processes, *words, program=None, seconds=120, check=True):
    """Run a case (or a program); returns its output, and the result of a case."""
    program = program or (sys.executable, HERE / "petsc_cases.py")
    done = launched(processes, *program, *words, seconds=seconds)
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done, result(done)


def matrix(S, comm=None):
    """A copy of a SciPy matrix as PETSc's, on one process."""
    S = sp.csr_matrix(S)
    S.sort_indices()
    csr = (S.indptr.astype(PETSc.IntType), S.indices.astype(PETSc.IntType), S.data.astype(PETSc.ScalarType))
    return PETSc.Mat().createAIJ(S.shape, csr=csr, comm=PETSc.COMM_SELF)


def vector(values):
    return PETSc.Vec().createWithArray(np.array(values, PETSc.ScalarType), comm=PETSc.COMM_SELF)


def dense(values):
    """Columns as PETSc's dense matrix, on one process."""
    X = PETSc.Mat().createDense(values.shape, comm=PETSc.COMM_SELF)
    X.setUp()
    X.getDenseArray()[:] = values
    X.assemble()
    return X


class Alone:
    """A PC of one process with its context, and options that are its own."""

    count = 0

    def __init__(self, S, *words, context=None):
        Alone.count += 1
        self.prefix = f"t{Alone.count}_"
        database = PETSc.Options(self.prefix)
        for name, value in zip(words[::2], words[1::2], strict=True):
            database.setValue(name, value)
        self.A = matrix(S) if sp.issparse(S) else S
        self.pc = PETSc.PC().create(PETSc.COMM_SELF)
        self.pc.setOptionsPrefix(self.prefix)
        self.pc.setOperators(self.A)
        self.pc.setType("python")
        self.context = petsc.PC() if context is None else context
        self.pc.setPythonContext(self.context)
        self.pc.setFromOptions()

    def apply(self, b, transpose=False):
        x, y = vector(b), vector(np.zeros_like(b))
        (self.pc.applyTranspose if transpose else self.pc.apply)(x, y)
        np.testing.assert_array_equal(x.getArray(), b)  # never written
        return y.getArray().copy()

    def apply_to_columns(self, B):
        X, Y = dense(B), dense(np.zeros_like(B))
        self.pc.matApply(X, Y)
        return Y.getDenseArray()

    def assemble(self, S):
        """Other values at the same places of A."""
        self.A.setValuesCSR(S.indptr.astype(PETSc.IntType), S.indices.astype(PETSc.IntType), S.data)
        self.A.assemble()


def words(recipe, changed):
    return [word for key, value in {"recipe": recipe, **changed}.items() for word in (f"finelu_{key}", str(value))]


b = np.random.default_rng(3).standard_normal(A.shape[0])


# One process ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECIPES)
def test_a_pc_applies_the_factors_of_every_recipe(name):
    needed = NEEDED.get(name, {})
    recipe = RECIPES[name](**needed)
    pc = Alone(SPD, *words(name, needed))
    F = recipe.factor(SPD)
    np.testing.assert_array_equal(pc.apply(b), F.solve(b))
    assert pc.context.recipe == recipe
    np.testing.assert_array_equal(pc.apply(b, transpose=True), F.solve(b, "T"))
    B = np.outer(b, [1.0, 2.0, -1.0])
    np.testing.assert_array_equal(pc.apply_to_columns(B), F.solve(B))


@pytest.mark.parametrize("name", RECIPES)
def test_factors_keep_nothing_of_petscs_memory_and_follow_new_values(name):
    needed = NEEDED.get(name, {})
    pc = Alone(SPD, *words(name, needed))
    other = perturbed(SPD)
    F = RECIPES[name](**needed).factor(SPD)
    for S, what in ((SPD, "factor"), (other, "update")):
        values, calls = S.data, dict(pc.context.calls)
        pc.assemble(S)
        pc.context.setUp(pc.pc)
        F = F if what == "factor" else F.update(S)
        first = {trans: F.solve(b, trans) for trans in "NT"}
        np.testing.assert_array_equal(pc.A.getValuesCSR()[2], values)
        pc.A.scale(7.0)  # in place; no set-up follows
        for trans in "NT":
            y = vector(b * 0)
            getattr(pc.context, "apply" if trans == "N" else "applyTranspose")(pc.pc, vector(b), y)
            np.testing.assert_array_equal(y.getArray(), first[trans])
        assert pc.context.calls[what] == calls[what] + 1
    assert pc.context.calls["factor"] == 1


def test_new_values_update_a_new_pattern_factors_anew_and_neither_does_nothing():
    pc = Alone(A)
    calls = pc.context.calls
    pc.apply(b)
    pc.apply(b)
    assert (calls["factor"], calls["update"], calls["solve"]) == (1, 0, 2)
    pc.A.scale(2.0)
    y = pc.apply(b)
    assert (calls["factor"], calls["update"]) == (1, 1)
    np.testing.assert_array_equal(y, fl.ILU0().factor(2.0 * A).solve(b))
    pc.pc.setOperators(matrix(A))  # another Mat with the same pattern
    np.testing.assert_array_equal(pc.apply(b), fl.ILU0().factor(A).solve(b))
    assert (calls["factor"], calls["update"]) == (1, 2)
    S = A.tolil()
    S[0, A.shape[0] - 1] = 0.5
    pc.pc.setOperators(matrix(S.tocsr()))
    np.testing.assert_array_equal(pc.apply(b), fl.ILU0().factor(S.tocsr()).solve(b))
    assert (calls["factor"], calls["update"]) == (2, 2)


def test_entries_elsewhere_in_the_same_matrix_are_noticed():
    pc = Alone(A)
    pc.apply(b)
    pc.A.setOption(PETSc.Mat.Option.NEW_NONZERO_ALLOCATION_ERR, False)
    pc.A.setValue(0, A.shape[0] - 1, 0.5)
    pc.A.assemble()
    S = A.tolil()
    S[0, A.shape[0] - 1] = 0.5
    np.testing.assert_array_equal(pc.apply(b), fl.ILU0().factor(S.tocsr()).solve(b))
    assert pc.context.calls["factor"] == 2


def test_the_rows_of_a_matrix_are_read_where_petsc_keeps_them():
    M = matrix(A)
    indptr, indices, data = petsc.memory.csr_arrays(M, None)
    np.testing.assert_array_equal(data, A.data)
    np.testing.assert_array_equal(indices, A.indices)
    np.testing.assert_array_equal(indptr, A.indptr)
    M.scale(3.0)
    np.testing.assert_array_equal(data, 3.0 * A.data)  # the same memory


NAMED = {  # texts of parameters that have a choice or a bound, and those that they need besides
    "backend": "superlu",
    "coarse": "none",
    "combine": "additive",
    "condest": "2.5",
    "deterministic": "yes",
    "drop_tol": "0.25",
    "fill": "2.5",
    "form": "crout",
    "local": "ilut",
    "low_memory": "no",
    "matching": "no",
    "near_nullspace": "auto",
    "ordering": "rcm",
    "partition": "natural",
    "pivots": "new",
    "precision": "float32",
    "pressure": "ilut",
    "sweep": "synchronous",
    "symmetric": "no",
    "weights": "true-impes",
    "whole": "ilut",
}
MEANT = {"none": None, "yes": True, "no": False, "2.5": 2.5, "0.25": 0.25, "ilut": fl.ILUT()}
WITH = {"deterministic": {"backend": "cudss"}, "sweeps": {"sweep": "synchronous"}}


@pytest.mark.parametrize("name", RECIPES)
def test_every_parameter_of_every_recipe_is_an_option(name):
    recipe = RECIPES[name]()
    for field in fields(recipe):
        value, text = getattr(recipe, field.name), NAMED.get(field.name)
        if field.name == "sweeps" and value is None and name in ("parilut", "parict"):
            text, want = "initial=scaled,update=2", fl.Sweeps(initial="scaled", update=2)
        elif text is not None:
            want = MEANT.get(text, text)
        elif field.name in ("levels", "unknown") and isinstance(value, str):
            text, want = "3", 3
        else:
            text, want = {
                bool: (str(not value).lower(), value is not True),
                int: ("7", 7),
                float: ("0.25", 0.25),
                str: ("sync_free", "sync_free"),
            }.get(type(value), ("3", 3))
        others = WITH.get(field.name, {}) if isinstance(want, bool | fl.Sweeps) else {}
        made, device = petsc.options.from_options(*given(name, {field.name: text} | others))
        assert made == replace(recipe, **{field.name: want} | others) != recipe, field.name
        assert type(getattr(made, field.name)) is type(want)
        assert device == "cpu"


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if "auto" in recipe.precisions])
def test_factors_stored_in_single_precision_are_an_option(name):
    assert petsc.options.from_options(*given(name, {"precision": "auto"}))[0] == RECIPES[name](precision="auto")


def test_a_recipe_that_is_registered_is_an_option(own_recipes):
    @dataclass(frozen=True, kw_only=True, repr=False)
    class Scaled(Recipe):
        factor_of: float = 1.0

        def factor(self, A):
            return fl.Jacobi().factor(self.factor_of * A)

    own_recipes(Scaled)
    pc = Alone(A, *words("scaled", {"factor_of": "2"}))
    np.testing.assert_array_equal(pc.apply(b), fl.Jacobi().factor(2.0 * A).solve(b))
    assert pc.context.recipe == Scaled(factor_of=2.0)


def given(name, values):
    """The arguments of from_options, after options of a prefix that no other test has."""
    Alone.count += 1
    prefix = f"t{Alone.count}_"
    database = PETSc.Options(prefix)
    for key, value in zip(words(name, values)[::2], words(name, values)[1::2], strict=True):
        database.setValue(key, value)
    return prefix, None, "cpu"


def test_an_option_without_a_value_is_true():
    prefix = given("parilut", {})[0]
    PETSc.Options(prefix).setValue("finelu_scale", None)
    assert petsc.options.from_options(prefix, None, "cpu")[0] == fl.ParILUT(scale=True)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"recipe": "ilu9"}, r"finelu_recipe ilu9: no such recipe; one of jacobi, block_jacobi, .* is needed"),
        ({"recipe": "ilut", "drop": "1"}, r"finelu_drop: no such option with recipe ilut; there are .*finelu_drop_tol"),
        ({"recipe": "ilut", "drop_tol": "small"}, r"finelu_drop_tol small: a number is needed"),
        ({"recipe": "parilut", "steps": "2.5"}, r"finelu_steps 2.5: an integer is needed"),
        ({"recipe": "parilut", "scale": "maybe"}, r"finelu_scale maybe: true or false is needed"),
        ({"recipe": "multilevel", "symmetric": "2"}, r"finelu_symmetric 2: true or false or none is needed"),
        ({"device": "gpu"}, r"finelu_device gpu: cpu, cuda or cuda:<number> is needed"),
    ],
)
def test_a_wrong_option_says_what_there_is(values, message):
    name = values.pop("recipe", "ilu0")
    with pytest.raises(ParameterError, match=message) as error:
        petsc.options.from_options(*given(name, values))
    one_line(error)


def test_options_of_all_levels_hold_for_each_and_its_own_go_first():
    assert list(petsc.options.prefixes("a_mg_levels_2_sub_")) == ["a_mg_levels_2_sub_", "a_mg_levels_sub_"]
    assert list(petsc.options.prefixes("mg_levels_2_block_10_")) == [
        "mg_levels_2_block_10_", "mg_levels_block_10_", "mg_levels_block_", "mg_levels_2_block_", "mg_levels_block_"
    ]  # fmt: skip
    prefix = given("ilut", {"drop_tol": "0.5"})[0]
    level = f"{prefix}7_"
    PETSc.Options(level).setValue("finelu_fill", "9")
    assert petsc.options.from_options(level, None, "cpu")[0] == fl.ILUT(drop_tol=0.5, fill=9.0)
    PETSc.Options(level).setValue("finelu_drop_tol", "0.25")
    assert petsc.options.from_options(level, None, "cpu")[0] == fl.ILUT(drop_tol=0.25, fill=9.0)
    assert petsc.options.from_options(prefix, None, "cpu")[0] == fl.ILUT(drop_tol=0.5)
    PETSc.Options(prefix).setValue("finelu_drop", "1")
    with pytest.raises(ParameterError, match=f"^-{prefix}finelu_drop: no such option with recipe ilut"):
        petsc.options.from_options(level, None, "cpu")


def test_a_program_gives_a_recipe_and_options_go_before_it():
    context = petsc.PC(fl.ILUT(drop_tol=1e-2, fill=3.0))
    pc = Alone(A, "finelu_fill", "4", context=context)
    assert context.recipe == fl.ILUT(drop_tol=1e-2, fill=4.0)
    np.testing.assert_array_equal(pc.apply(b), fl.ILUT(drop_tol=1e-2, fill=4.0).factor(A).solve(b))
    with pytest.raises(ParameterError, match="device gpu: cpu, cuda"):
        petsc.PC(device="gpu")


def test_options_that_change_later_count_without_a_set_up():
    pc = Alone(A)
    pc.apply(b)
    PETSc.Options(pc.prefix).setValue("finelu_recipe", "jacobi")
    pc.pc.setFromOptions()
    np.testing.assert_array_equal(pc.apply(b), fl.Jacobi().factor(A).solve(b))


@pytest.mark.parametrize("name", ["ilu0", "multilevel"])
def test_a_thread_that_keeps_what_a_kernel_was_given_keeps_nothing_of_petscs(name, calls_of, threads):
    threads(2)
    kept = calls_of(petsc.PC, "_into")
    pc = Alone(SPD, *words(name, {}))
    x, y = vector(b), vector(b * 0)
    pc.pc.apply(x, y)
    assert x.getRefCount() == y.getRefCount() == 1  # an array of petsc4py counts
    X, Y = dense(np.zeros((b.size, 3))), dense(np.zeros((b.size, 3)))
    before = sys.getrefcount(X), sys.getrefcount(Y)
    pc.pc.matApply(X, Y)
    assert (sys.getrefcount(X), sys.getrefcount(Y)) == before
    assert len(kept) == 2
    np.testing.assert_array_equal(kept[0][1], b)  # the same memory
    np.testing.assert_array_equal(kept[0][2], fl.preconditioners.RECIPES[name]().factor(SPD).solve(b))


class OnGPU:
    """What copy_to_host looks at of an array of CuPy."""

    def __init__(self, array):
        self.array, self.dtype, self.flags = array, array.dtype, array.flags

    def get(self, out=None):
        if out is None:
            return self.array
        assert out.dtype == self.dtype
        assert out.flags.c_contiguous
        assert out.shape == self.array.shape
        out[...] = self.array
        return out


@pytest.mark.parametrize("order", "CF")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_the_gpu_gives_comes_into_any_array_of_the_host(order, dtype):
    found = np.arange(12, dtype=dtype).reshape(4, 3)
    for host in (np.empty((4, 3), order=order), np.empty((8, 3))[::2]):
        petsc.memory.copy_to_host(OnGPU(found), host)
        np.testing.assert_array_equal(host, found)


def test_the_gpu_is_where_petsc_has_the_block_else_that_of_the_process(monkeypatch, meanwhile):
    cupy = SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(getDeviceCount=lambda: 4)))
    there = []
    meanwhile(petsc.device, gpu_of=lambda *_: there[0])
    monkeypatch.setenv("MPI_LOCALRANKID", "6")

    def chosen(device, number):
        there[:] = [number]
        return petsc.device.chosen_gpu(cupy, device, None)

    assert [chosen("cuda", 3), chosen("cuda", None), chosen("cuda:1", None), chosen("cuda:1", 1)] == [3, 2, 1, 1]
    with pytest.raises(DeviceError, match="device cuda:1 was given, but PETSc has this block on cuda:3"):
        chosen("cuda:1", 3)
    with pytest.raises(DeviceError, match="device cuda:4 was given, and the last GPU here is cuda:3"):
        chosen("cuda:4", None)


def test_launchers_say_how_many_processes_a_machine_has(monkeypatch):
    for name in (*petsc.device.LOCAL_RANK, *petsc.device.LOCAL_SIZE, *petsc_command.RANK):
        monkeypatch.delenv(name, raising=False)
    assert petsc.device.from_launcher(petsc.device.LOCAL_SIZE) is None
    assert petsc_command.launched_first()
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "12(x2),3")
    assert petsc.device.from_launcher(petsc.device.LOCAL_SIZE) == 12
    monkeypatch.setenv("FLUX_TASK_LOCAL_ID", "5")
    assert petsc.device.local_rank() == 5
    monkeypatch.setenv("SLURM_PROCID", "5")
    assert not petsc_command.launched_first()
    monkeypatch.setenv("PMI_RANK", "0")
    assert petsc_command.launched_first()


@pytest.mark.parametrize("kind", ["baij", "sbaij", "dense"])
def test_other_formats_are_converted(kind):
    M = matrix(SPD)
    M.setBlockSize(3)
    if kind == "sbaij":
        M.setOption(PETSc.Mat.Option.SYMMETRIC, True)
    pc = Alone(M.convert(kind), *words("sparse_lu", {}))
    x = pc.apply(b)
    assert np.linalg.norm(SPD @ x - b) <= 1e-10 * np.linalg.norm(b)


def test_petscs_block_size_is_taken():
    M = matrix(SPD)
    M.setBlockSize(3)
    pc = Alone(M, *words("block_ilu0", {}))
    np.testing.assert_array_equal(pc.apply(b), fl.BlockILU0(block_size=3).factor(SPD).solve(b))


def test_the_near_null_space_of_the_matrix_is_taken():
    near = np.random.default_rng(3).uniform(-1, 1, (SPD.shape[0], 2))
    for constant, expected in ((False, near), (True, np.column_stack([np.ones(SPD.shape[0]), near]))):
        P = matrix(SPD)
        vectors = [PETSc.Vec().createWithArray(column.copy(), comm=PETSc.COMM_SELF) for column in near.T]
        P.setNearNullSpace(PETSc.NullSpace().create(constant=constant, vectors=vectors, comm=PETSc.COMM_SELF))
        pc = PETSc.PC().create(PETSc.COMM_SELF)
        pc.setOperators(P)
        pc.setType("python")
        pc.setPythonContext(petsc.PC(fl.Schwarz(size=30)))
        pc.setUp()
        recipe = pc.getPythonContext().factors.recipe
        np.testing.assert_array_equal(recipe.near_nullspace.array, expected)
        assert pc.getPythonContext().factors.report.coarse_rank > pc.getPythonContext().factors.report.parts


def test_a_block_without_rows():
    pc = Alone(sp.csr_matrix((0, 0)))
    assert pc.apply(np.zeros(0)).size == 0
    assert pc.context.factors is None
    assert pc.context.error is None


def test_a_rectangular_block_is_reported(capfd):
    context = petsc.PC()
    M = matrix(sp.eye(4, 6))
    pc = PETSc.PC().create(PETSc.COMM_SELF)
    pc.setOperators(M)
    context.setUp(pc)
    assert "shape (4, 6)" in context.error
    assert "shape (4, 6)" in capfd.readouterr().err


def test_the_cause_is_printed_once_and_the_next_set_up_recovers(capfd):
    S = A.tolil()
    S[5, :] = 0
    S[5, 5] = 1.0
    pc = Alone(S.tocsr())
    pc.A.setValue(5, 5, 0.0)
    pc.A.assemble()
    assert np.isnan(pc.apply(b)).all()
    assert np.isnan(pc.apply(b)).all()
    printed = capfd.readouterr().err
    assert printed.count("pivot of row 5") == 1
    assert printed.startswith("[0] finelu")
    assert pc.context.factors is None
    pc.A.setValue(5, 5, 1.0)
    pc.A.assemble()
    assert np.isfinite(pc.apply(b)).all()
    assert pc.context.error is None


@pytest.mark.parametrize("kind", ["gmres", "preonly", "cg", "richardson", "bcgs"])
def test_a_failure_is_petscs_divergence(kind, capfd):
    if kind == "preonly" and not hasattr(PETSc.PC, "setFailedReason"):
        pytest.skip("this PETSc looks at no norm, and takes no reason of a failure")
    M = matrix(A)
    M.setValue(4, 4, np.nan)
    M.assemble()
    ksp = PETSc.KSP().create(PETSc.COMM_SELF)
    ksp.setOperators(M)
    ksp.setType(kind)
    ksp.getPC().setType("python")
    ksp.getPC().setPythonContext(petsc.PC())
    x, y = vector(b), vector(b)
    ksp.solve(x, y)
    assert ksp.getConvergedReason() in (
        PETSc.KSP.ConvergedReason.DIVERGED_PCSETUP_FAILED,
        PETSc.KSP.ConvergedReason.DIVERGED_NANORINF,
    )
    assert "row 4" in capfd.readouterr().err
    M.setValue(4, 4, 6.0)
    M.assemble()
    ksp.solve(x, y)
    assert ksp.getConvergedReason() > 0


def test_a_solve_that_fails_is_petscs_divergence(capfd, meanwhile):
    pc = Alone(A)
    pc.apply(b)
    meanwhile(pc.context, _solve=lambda *_: 1 / 0)
    assert np.isnan(pc.apply(b)).all()
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_device_that_is_not_there_is_reported(capfd):
    try:
        require_gpu()
        pytest.skip("there is a GPU")
    except DeviceError:
        pass
    pc = Alone(A, "finelu_device", "cuda")
    assert np.isnan(pc.apply(b)).all()
    assert "use device 'cpu'" in capfd.readouterr().err


def test_view_shows_what_there_is():
    pc = Alone(SPD, *words("multilevel", {"dense_size": 20}))
    lines = list(pc.context._described())
    assert lines == [f"{fl.MultilevelILU(dense_size=20)!r} on cpu", "not set up"]
    pc.apply(b)
    text = "\n".join(pc.context._described())
    F = pc.context.factors
    assert f"{A.shape[0]} rows, {A.nnz} entries; factors: {F.nnz} entries" in text
    assert f"{len(F.report['levels'])} levels" in text
    assert "1 factor," in text
    assert "1 solve," in text
    plain = Alone(A)
    plain.apply(b)
    assert "lower triangle: " in "\n".join(plain.context._described())


def test_memory_counts_each_array_once():
    F = fl.ILU0().factor(A)
    own = {id(v): v.nbytes for v in (F.pattern.data, F.pattern.indices, F.pattern.indptr, F._triangles.data)}
    assert sum(own.values()) <= petsc.memory.bytes_of(F) <= 6 * sum(own.values())
    assert petsc.memory.bytes_of([F, F]) == petsc.memory.bytes_of(F)


def test_without_petsc4py_the_error_says_where_to_look(tmp_path):
    (tmp_path / "petsc4py.py").write_text("raise ImportError('none here')")
    paths = os.pathsep.join([str(tmp_path), str(Path(fl.__file__).parents[1])])
    code = "import finelu.interop.petsc"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": paths}
    )
    assert "docs/petsc.md" in done.stderr.splitlines()[-1]


# On a GPU, with a PETSc that has its vectors on the host --------------------------------------------------------------


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12 * abs(want).max())


@pytest.mark.gpu
@pytest.mark.parametrize("name", RECIPES)
def test_a_pc_applies_the_factors_of_every_recipe_on_a_gpu(cupy, name):
    import cupyx.scipy.sparse

    needed = NEEDED.get(name, {})
    pc = Alone(SPD, *words(name, {**needed, "device": "cuda"}))
    F = RECIPES[name](**needed).factor(cupyx.scipy.sparse.csr_matrix(SPD))
    B = np.outer(b, [1.0, 2.0, -1.0])
    for S, what in ((SPD, "factor"), (perturbed(SPD), "update")):
        pc.assemble(S)
        F = F if what == "factor" else F.update(cupyx.scipy.sparse.csr_matrix(S))
        close(pc.apply(b), F.solve(cupy.asarray(b)).get())
        close(pc.apply(b, transpose=True), F.solve(cupy.asarray(b), "T").get())
        close(pc.apply_to_columns(B), F.solve(cupy.asarray(B)).get())
        assert pc.context.calls[what] == 1
    assert isinstance(pc.context.factors.solve(cupy.asarray(b)), cupy.ndarray)
    assert next(iter(pc.context._described())).endswith(" on cuda:0")


@pytest.mark.gpu
def test_a_failure_on_a_gpu_is_reported_and_the_next_set_up_recovers(cupy, capfd):
    S = SPD.copy()
    S.data[0] = np.nan
    pc = Alone(S, "finelu_device", "cuda")
    assert np.isnan(pc.apply(b)).all()
    assert "row 0" in capfd.readouterr().err
    pc.assemble(SPD)
    close(pc.apply(b), fl.ILU0().factor(SPD).solve(b))
    number = cupy.cuda.runtime.getDeviceCount()
    pc = Alone(SPD, "finelu_device", f"cuda:{number}")
    assert np.isnan(pc.apply(b)).all()
    assert f"cuda:{number}" in capfd.readouterr().err


@pytest.mark.gpu
@pytest.mark.parametrize("processes", [1, 2, 4])
def test_iterations_on_a_gpu_are_those_of_petscs_ilu(cupy, processes):
    _, found = mpi(processes, "counts", "-sub_finelu_device", "cuda")
    for outer, (theirs, ours) in found.items():
        assert abs(theirs[0] - ours[0]) <= 1, outer
        assert theirs[1] == ours[1] > 0, outer


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["pivot", "nan", "apply"])
def test_a_process_that_fails_on_its_gpu_ends_the_solve_on_all(cupy, kind):
    words = (f"kind={kind}", "-pc_type", "asm", *OURS, "-sub_finelu_device", "cuda")
    _, (failed, healed, again) = mpi(2, "failure", *words, seconds=60)
    assert failed[1] in (-9, -11)
    assert healed[1] > 0
    assert again == healed


# Several processes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_ilu0_takes_as_many_iterations_as_petscs(processes):
    _, found = mpi(processes, "counts")
    for outer, (theirs, ours) in found.items():
        assert theirs[0] == ours[0], outer
        assert theirs[1] == ours[1] > 0, outer
        assert ours[2] == pytest.approx(theirs[2], rel=1e-3), outer


def test_inside_a_multigrid_smoother():
    _, (theirs, ours) = mpi(2, "multigrid")
    assert ours[:2] == theirs[:2]
    assert ours[1] > 0


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_a_grid_of_several_blocks(processes):
    done, ((richardson, gmres, bicg, twice, singular, again), calls, recipe) = mpi(processes, "multiblock")
    for iterations, reason, residual in (richardson, gmres, bicg, twice, again):
        assert reason > 0 and 5 < iterations < 20 and residual < 1e-8
    assert gmres[0] <= richardson[0]
    assert singular[1] in (-9, -11) and "the diagonal block of cell (0, 0, 0)" in done.stderr
    assert calls["factor"] == 2 and calls["update"] == 1  # the last one anew, as there were no factors
    assert recipe == "BlockILU0()"


@pytest.mark.parametrize("kind", ["missing", "pivot", "nan"])
@pytest.mark.parametrize("outer", OUTER)
def test_a_process_that_fails_ends_the_solve_on_all(kind, outer):
    done, (failed, healed, again) = mpi(2, "failure", f"kind={kind}", *outer, seconds=30)
    assert failed[1] in (-9, -11)
    assert healed[1] > 0
    assert again == healed
    assert {"missing": "no diagonal entry", "pivot": "the pivot of row", "nan": "NaN or Inf"}[kind] in done.stderr
    assert "[1] finelu" in done.stderr


@pytest.mark.parametrize("after", [0, 3])
@pytest.mark.parametrize("outer", OUTER)
def test_a_process_that_fails_within_a_solve_ends_it_on_all(outer, after):
    done, (failed, healed, again) = mpi(2, "failure", "kind=apply", f"after={after}", *outer, seconds=30)
    assert failed[1] in (-9, -11)
    assert failed[0] == (0 if after == 0 else 2)
    assert healed[1] > 0
    assert again == healed
    assert done.stderr.count("[1] finelu") == done.stderr.count("ZeroDivisionError") == 1


def fails_and_heals(*words, processes=2):
    """Solves that all fail on one process, up to the last one, which succeeds; another solve may follow."""
    _, (*failed, healed, _) = mpi(processes, "failure", *words, seconds=30)
    assert all(reason < 0 for _, reason, *_ in failed) and healed[1] > 0
    return len(failed)


@pytest.mark.parametrize("method", ["gmres", "lgmres", "dgmres"])
def test_a_process_that_fails_twice_does_not_leave_the_others(method):
    assert fails_and_heals("kind=pivot", "twice=1", *ALONE, "-ksp_type", method) == 2


@pytest.mark.parametrize("kind", ["pivot", "apply"])
@pytest.mark.parametrize("outer", ["asm", "bjacobi"])
def test_with_a_krylov_method_in_the_subdomain_the_outer_failure_is_taken_back_by_the_program(outer, kind):
    if not hasattr(PETSc.PC, "setFailedReason"):
        pytest.skip("this petsc4py has no PC.setFailedReason")
    inner = ("-sub_ksp_type", "gmres", "-sub_ksp_max_it", "3", "-ksp_type", "fgmres")
    assert fails_and_heals(f"kind={kind}", "clear=outer", "-pc_type", outer, *OURS, *inner) == 2


@pytest.mark.parametrize("kind", ["set-up", "apply"])
def test_a_smoother_that_fails_ends_the_solve_on_all(kind):
    words = (f"kind={kind}", "after=0", *GAMG)
    assert fails_and_heals(*words, "-mg_levels_ksp_type", "richardson") == 1
    # Chebyshev's method multiplies what fails by 0, and the rest of the cycle would converge to something else.
    assert fails_and_heals(*words, "clear=new") == 2


@pytest.mark.parametrize("how", ["memory", "stderr"])
def test_a_failure_that_cannot_be_handed_over_ends_all_processes(how):
    done, found = mpi(2, "no_way", how, "-pc_type", "asm", *OURS, seconds=30, check=False)
    assert done.returncode != 0
    assert found is None
    if how == "memory":
        assert "ZeroDivisionError" in done.stderr
        assert "TypeError" in done.stderr


@pytest.mark.parametrize("repeat", range(5))
def test_no_failure_hangs(repeat):
    outer = ("-pc_type", ("asm", "bjacobi")[repeat % 2], *OURS)
    assert fails_and_heals("kind=pivot", f"rank={repeat % 3}", *outer, processes=3) == 1


# A coarse space over processes


COUPLED = (*ALONE, "-finelu_recipe", "schwarz")


@pytest.mark.parametrize("processes", [2, 4])
def test_schwarz_over_processes_is_its_definition(processes):
    _, found = mpi(processes, "coupled_definition")
    for (forward, transposed, columns), _, (n, coarse), _ in found:
        assert forward < 1e-9 and transposed < 1e-9
        assert columns < 1e-12
        assert coarse > n / 45
    assert [hermitian for _, hermitian, *_ in found] == [True, True, True, False, True, True, True, True]
    moved = [moved for *_, moved in found]
    assert moved[:3] == [0, 0, 0] and moved[4:6] == [0, 0] and moved[7] > 0
    assert (moved[6] > 0) == (processes > 2)  # the last process has no rows there


def test_iterations_do_not_grow_with_the_processes():
    """Also where conductivities jump from cell to cell, since rows move across a border that cuts strong couplings."""
    _, one = mpi(1, "coupled_iterations")
    for processes in (2, 4):
        _, found = mpi(processes, "coupled_iterations")
        for name, (iterations, reason, residual) in found.items():
            assert reason > 0 and residual < 2e-6, name
            assert iterations <= 1.2 * one[name][0], name


def test_a_coarse_matrix_over_processes_is_solved_on_levels():
    _, found = mpi(2, "coupled_levels")
    for two, more in found:
        symmetric = more is not found[2][1]
        for (_, reason, residual), (there, back, size, turned), *_ in (two, more):
            assert reason > 0 and residual < 1e-6
            assert turned == pytest.approx(there, rel=1e-8)
            assert size > 0
            if symmetric:
                assert there == pytest.approx(back, rel=1e-8)
        assert len(two[2]) == 2 and len(more[2]) > 2 and more[2][:2] == two[2]
        assert two[3] is None and more[3] % 2 == 1
        assert more[0][0] <= two[0][0] + (2 if symmetric else 20)


def test_a_large_coarse_matrix_over_processes_has_levels_by_default_if_they_suit_it():
    _, (levels, factors, error) = mpi(2, "coupled_by_default")
    rows, steps, view = levels
    assert error is None
    assert len(rows) == 3 and rows[0] == 24**3 and rows[1] > 512
    assert f"a coarse solve takes {steps} steps of Chebyshev" in view
    assert f"coupled by a coarse space over 2 processes; rows of levels ({rows[0]}, {rows[1]}, {rows[2]})" in view
    assert factors[:2] == [rows[:2], None]
    assert any(line.startswith(f"warning: the coarse matrix of {rows[1]} vectors has no fur") for line in factors[2])


@pytest.mark.parametrize(("system", "levels"), [("larger", 2), ("larger", 3), ("scattered", 2)])
def test_new_values_over_processes_keep_the_parts_and_the_rows_that_moved(system, levels):
    found = mpi(2, "coupled_update", f"levels={levels}", f"system={system}")[1]
    (anew, back, apart), kept, calls, rows, moved = found
    assert anew < 1e-11 and back < 1e-11 and apart > 1
    assert (moved > 0) == (system == "scattered")
    assert kept
    assert (calls["factor"], calls["update"]) == (1, 2)
    assert len(rows) == levels


def test_an_error_of_a_coarse_space_is_one_line_on_every_process():
    done, found = mpi(2, "coupled_errors")
    messages = {
        "columns": "near_nullspace has 1 columns on one process, 2 on another",
        "shape": "process 1: near_nullspace has shape (365, 1); a row for each of the 364 rows is needed",
        "nan": "process 1: near_nullspace holds NaN or Inf",
        "zero": "nothing but rounding is left of the coarse matrix",
        "auto": 'near_nullspace="auto" finds vectors on one process',
        "coupling": "process 0: row 364 couples to another process by NaN or Inf",
        "device": "on several processes has its coarse space on the CPU",
    }
    assert list(found) == list(messages)
    for kind, (errors, without, view) in found.items():
        assert errors[0] == errors[1] and messages[kind] in errors[0]
        assert without
        assert view == f"failed: {errors[0]}"
        for rank in (0, 1):
            assert done.stderr.count(f"[{rank}] finelu, -{kind}_pc, rows of this block from 0: {errors[0]}") == 1


def test_a_process_that_fails_while_rows_move_is_named_by_all_and_none_waits():
    _, found = mpi(2, "coupled_borders", seconds=60)
    assert list(found) == ["rows_of", "_led", "_permutation"]
    for errors, healed, moved in found.values():
        assert errors == ["MemoryError('process 1: no room')"] * 2
        assert healed == "None" and moved > 0


@pytest.mark.parametrize("kind", ["missing", "pivot", "nan"])
def test_a_process_that_fails_is_named_by_all_that_share_a_coarse_space(kind):
    done, (failed, healed, again) = mpi(2, "failure", f"kind={kind}", *COUPLED, seconds=30)
    assert failed[1] in (-9, -11)
    assert healed[1] > 0 and again == healed
    for rank in (0, 1):
        assert f"[{rank}] finelu, -pc, rows of this block from 0: process 1: " in done.stderr


@pytest.mark.parametrize("after", [0, 3])
def test_a_process_that_fails_within_a_coupled_solve_leaves_no_other_waiting(after):
    done, (failed, healed, again) = mpi(2, "failure", "kind=own", f"after={after}", *COUPLED, seconds=30)
    assert failed[1] in (-9, -11)
    assert healed[1] > 0 and again == healed
    assert done.stderr.count("[1] finelu") == done.stderr.count("ZeroDivisionError") == 1


def test_an_error_that_the_others_do_not_know_of_ends_all():
    done, found = mpi(2, "failure", "kind=coupled", *COUPLED, seconds=30, check=False)
    assert done.returncode != 0 and found is None
    assert "ZeroDivisionError" in done.stderr


def test_a_wrong_option_ends_all_processes():
    done, _ = mpi(2, "threads", "-pc_type", "asm", *OURS, "-sub_finelu_stepz", "4", seconds=30, check=False)
    assert done.returncode != 0
    assert "-sub_finelu_stepz: no such option with recipe ilu0; there are" in done.stderr


def test_options_for_all_levels_of_multigrid():
    both = ("-mg_levels_sub_finelu_recipe", "ilut", "-mg_levels_sub_finelu_drop_tol", "0.01")
    small = ("-pc_gamg_process_eq_limit", "20")
    _, found = mpi(2, "recipes", *GAMG, *small, *both, "-mg_levels_1_sub_finelu_drop_tol", "0.5")
    assert len(found) > 1
    assert found == [repr(fl.ILUT(drop_tol=0.5)), *[repr(fl.ILUT(drop_tol=0.01))] * (len(found) - 1)]
    done, _ = mpi(2, "recipes", *GAMG, "-mg_levels_sub_finelu_stepz", "4", seconds=30, check=False)
    assert done.returncode != 0
    assert "-mg_levels_sub_finelu_stepz: no such option with recipe ilu0; there are" in done.stderr


def test_processes_share_the_cores(monkeypatch):
    monkeypatch.delenv("FINELU_NUM_THREADS", raising=False)
    _, found = mpi(2, "threads", "-pc_type", "asm", *OURS)
    assert found == [max(threads.available_cores() // 2, 1)] * 2 or threads.bound()
    monkeypatch.setenv("FINELU_NUM_THREADS", "3")
    _, found = mpi(2, "threads", "-pc_type", "asm", *OURS)
    assert found == [3, 3]


# Files ----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def system(tmp_path_factory):
    """A folder with one system in all formats, its solution, and some that are broken."""
    folder = tmp_path_factory.mktemp("system")
    S = sp.csr_matrix(fl.gallery.convection_diffusion(6, peclet=40.0))
    rhs = np.random.default_rng(1).standard_normal(S.shape[0])
    scipy.io.mmwrite(folder / "A.mtx", S, symmetry="general")
    scipy.io.mmwrite(folder / "s.mtx", SPD, symmetry="symmetric")
    text = (folder / "A.mtx").read_text()
    (folder / "A.mtx.gz").write_bytes(gzip.compress(text.encode()))
    (folder / "short.mtx").write_text(text[: len(text) // 2].rsplit("\n", 1)[0])
    (folder / "word.mtx").write_text(text[: len(text) // 2].rsplit("\n", 1)[0] + "\n1 x 2\n" + "1 1 1\n" * 999)
    (folder / "wide.mtx").write_text("%%MatrixMarket matrix coordinate real general\n3 4 1\n1 1 1.0\n")
    (folder / "none.mtx").write_text("nothing\n")
    lines = ["%%MatrixMarket matrix coordinate real symmetric", "3 3 5", "1 1 1", "2 2 1", "3 3 1", "2 1 1", "1 2 1"]
    (folder / "both.mtx").write_text("\n".join(lines) + "\n")  # (2, 1) and (1, 2) in different shares of the lines
    lines = ["%%MatrixMarket matrix coordinate real general", "3 3 3", "1 1 1.0D+05", "% half", "", "2 2 1", "3 3 1"]
    (folder / "fortran.mtx").write_text("\n".join(lines))
    for name, thing in (("A", matrix(S)), ("b", vector(rhs)), ("longer_b", vector(np.append(rhs, 1.0)))):
        viewer = PETSc.Viewer().createBinary(str(folder / f"{name}.petsc"), "w", comm=PETSc.COMM_SELF)
        thing.view(viewer)
        viewer.destroy()
    data = (folder / "A.petsc").read_bytes()
    for name, size in (("head", 9), ("rows", 100), ("values", len(data) - 1)):
        (folder / f"{name}.petsc").write_bytes(data[:size])
    size, n = np.dtype(PETSc.IntType).itemsize, S.shape[0]
    for name, place, value in (("lengths", 4, 99), ("columns", 4 + n, n), ("negative", 4 + n, -1)):
        changed = bytearray(data)
        changed[place * size : (place + 1) * size] = int(value).to_bytes(size, "big", signed=True)
        (folder / f"{name}.petsc").write_bytes(changed)
    data = (folder / "b.petsc").read_bytes()
    (folder / "part_of_b.petsc").write_bytes(data[:-8])
    (folder / "none_of_b.petsc").write_bytes(data[:3])
    np.save(folder / "b.npy", rhs)
    return folder, S, rhs


@pytest.mark.parametrize("rhs_file", ["b.npy", "b.petsc", None])
@pytest.mark.parametrize("name", ["A.mtx", "A.mtx.gz", "A.petsc"])
def test_solve_mtx(system, name, rhs_file, tmp_path):
    folder, S, rhs = system
    output = tmp_path / ("x.npy" if rhs_file != "b.petsc" else "x.petsc")
    words = [f"path={folder / name}", f"output={output}"] + ([f"b={folder / rhs_file}"] if rhs_file else [])
    _, found = mpi(3, "from_file", *words)
    assert found["converged"]
    assert found["left"] == []
    assert found["processes"] == 3
    assert found["relative_residual"] <= 1e-8
    rhs = rhs if rhs_file else np.random.default_rng(0).uniform(-0.5, 0.5, S.shape[0])
    x = read_vector(output)
    assert np.linalg.norm(S @ x - rhs) <= 1.01e-8 * np.linalg.norm(rhs)


def test_entries_are_read_as_on_one_process(system, tmp_path):
    np.save(tmp_path / "b.npy", [1e5, 1.0, 2.0])
    words = (f"path={system[0] / 'fortran.mtx'}", f"b={tmp_path / 'b.npy'}", f"output={tmp_path / 'x.npy'}")
    mpi(2, "from_file", *words)
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), [1.0, 1.0, 2.0])


def test_symmetric_storage_and_a_partition(system, tmp_path):
    folder, *_ = system
    words = (f"path={folder / 's.mtx'}", f"output={tmp_path / 'x.npy'}")
    _, plain = mpi(4, "from_file", *words)
    assert plain["nnz"] == SPD.nnz
    _, spread = mpi(4, "from_file", *words, "partition=average")
    assert spread["converged"]
    assert spread["cut"] > 0
    x = np.load(tmp_path / "x.npy")
    rhs = np.random.default_rng(0).uniform(-0.5, 0.5, SPD.shape[0])
    assert np.linalg.norm(SPD @ x - rhs) <= 1.01e-8 * np.linalg.norm(rhs)


def test_metis_cuts_less_than_equal_shares(system):
    pytest.importorskip("pymetis")
    folder, *_ = system
    shuffled = np.random.default_rng(0).permutation(SPD.shape[0])
    scipy.io.mmwrite(folder / "p.mtx", SPD[shuffled][:, shuffled], symmetry="general")
    _, plain = mpi(2, "from_file", f"path={folder / 'p.mtx'}", "partition=current")
    _, spread = mpi(2, "from_file", f"path={folder / 'p.mtx'}", "partition=metis")
    assert spread["cut"] < plain["cut"] / 3
    assert spread["iterations"] <= plain["iterations"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.mtx", "there is no such file"),
        ("b.npy", "a matrix is read from .mtx"),
        ("short.mtx", "entries are announced, but there are"),
        ("word.mtx", r"line (?!2:)\d{3}: '1 x 2': expected: row, column"),
        ("both.mtx", r"\(2, 1\) and \(1, 2\) are both stored, where one stands for both"),
        ("wide.mtx", r"A has shape \(3, 4\)"),
        ("none.mtx", "line 1: 'nothing': not a Matrix Market file"),
        ("b.petsc", "PETSc cannot load it: .* does not begin like one"),
        ("head.petsc", "does not begin like one"),
        ("rows.petsc", r"ends after 100 of \d+ bytes or more; it is truncated"),
        ("values.petsc", "it is truncated"),
        ("lengths.petsc", r"rows of this have \d+ entries together, not"),
        ("columns.petsc", "entries beyond its 216 columns"),
        ("negative.petsc", "entries beyond its 216 columns"),
        ("A.mtx b=part_of_b.petsc", r"ends after \d+ of \d+ bytes; it is truncated"),
        ("A.mtx b=none_of_b.petsc", "a binary Vec of 216 .* does not begin like one"),
        ("A.mtx b=longer_b.petsc", "this has 217"),
    ],
)
def test_a_bad_file_is_reported_by_all_processes(system, name, message):
    words = [f"path={system[0] / name.split()[0]}", *(f"b={system[0] / b[2:]}" for b in name.split()[1:])]
    _, found = mpi(2, "from_file", *words, seconds=30)
    first, second = found["error"]
    assert first == second
    assert re.search(message, first)


def test_command_line(system, tmp_path):
    folder, S, rhs = system
    words = ["solve", str(folder / "A.mtx"), "--petsc", "-b", str(folder / "b.npy"), "-o", str(tmp_path / "x.npy")]
    program = (sys.executable, "-m", "finelu")
    done, _ = mpi(2, *words, "--json", "-sub_finelu_recipe", "ilut", "-sub_finelu_drop_tol", "1e-6", program=program)
    found = json.loads(done.stdout)
    assert found["converged"]
    x = np.load(tmp_path / "x.npy")
    assert np.linalg.norm(S @ x - rhs) <= 1.01e-8 * np.linalg.norm(rhs)
    done, _ = mpi(2, *words, "-ksp_max_it", "1", program=program, check=False)
    assert done.returncode == 1
    assert "DIVERGED" in done.stdout
    done, _ = mpi(2, *words, "--recipe", "ilut", program=program, check=False)
    assert done.returncode == 2
    assert done.stderr.count("--recipe has no meaning with --petsc") == 1
    done, _ = mpi(2, *words, "-sub_finelu_recipe", "nonsense", program=program, check=False)
    assert done.returncode == 2
    assert done.stderr.count("finelu: -sub_finelu_recipe nonsense: no such recipe") == 1
    done = subprocess.run([*program, "solve", "--help"], capture_output=True, text=True, check=True)
    assert "--petsc" in done.stdout


def test_an_error_that_petsc_meets_on_one_process_ends_all(system):
    done, _ = mpi(2, "error_of_one", str(system[0] / "A.mtx"), seconds=30, check=False)
    assert done.returncode != 0
    assert done.stderr.count("finelu: PETSc: error code 55") == 1


# Examples -------------------------------------------------------------------------------------------------------------


def example(name):
    return (sys.executable, str(ROOT / "examples" / name))


def test_example_convection_diffusion():
    printed = []
    for inner in ((), ("-sub_pc_type", "ilu", "-pc_type", "asm"), ("-sub_finelu_recipe", "sparse_lu")):
        done, _ = mpi(2, *inner, program=example("petsc_convection_diffusion.py"))
        printed.append(re.search(r"(\d+) iterations, .* largest u (\S+),", done.stdout).groups())
    assert printed[0] == printed[1]  # ILU(0) either way
    assert int(printed[2][0]) < int(printed[0][0])
    assert printed[2][1] == printed[0][1]


def test_the_iterations_of_the_page_are_those_that_its_program_prints():
    page = (ROOT / "docs" / "petsc.md").read_text().partition("## A program")[2].partition("## Options")[0]
    rows = re.findall(r"^\| `(-sub_\w+ \w+)`[^|]* \| (\d+) \| (\d+) \| (\d+) \|$", page, re.MULTILINE)
    assert len(rows) == 4
    for options, *counts in rows:
        for processes, count in zip((1, 2, 4), map(int, counts), strict=True):
            done, _ = mpi(processes, *options.split(), program=example("petsc_convection_diffusion.py"))
            assert abs(int(re.search(r"(\d+) iterations", done.stdout)[1]) - count) <= 1, (options, processes)
    done, _ = mpi(4, "-sub_finelu_recipe", "ilut", "-ksp_view", program=example("petsc_convection_diffusion.py"))
    shown = [" ".join(text.split()) for text in re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)]
    printed = re.sub(r"residual \S+,", "residual #,", " ".join(done.stdout.split()))
    assert re.sub(r"residual \S+,", "residual #,", shown[0]) in printed
    assert all(line in printed for line in shown[1:])


@pytest.mark.parametrize(
    ("name", "entries"),
    [("petsc_convection_diffusion.py", 7 * 24**3 - 6 * 24**2), ("petsc_snes.py", 5 * 40**2 - 4 * 40)],
)
def test_matrices_of_the_examples_store_their_stencil_alone(name, entries):
    done, _ = mpi(2, "-mat_view", "::ascii_info", "-ksp_max_it", "1", program=example(name), check=False)
    assert f"total: nonzeros={entries}, allocated nonzeros={entries}" in done.stdout


def test_example_newton_updates():
    done, _ = mpi(2, program=example("petsc_snes.py"))
    steps = int(re.search(r"(\d+) Newton steps", done.stdout)[1])
    assert steps > 1
    if hasattr(PETSc.PC, "getBJacobiSubKSP"):
        assert f"1 factorization, {steps - 1} updates" in done.stdout


def test_c_program_uses_finelu_by_options_alone(tmp_path, monkeypatch):
    mpicc = shutil.which("mpicc", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    config = petsc4py.get_config()
    folders = [Path(config["PETSC_DIR"]), Path(config["PETSC_DIR"], config.get("PETSC_ARCH") or "")]
    includes = [f"-I{folder / 'include'}" for folder in folders if (folder / "include" / "petscksp.h").exists()]
    libraries = [path for folder in folders for path in sorted((folder / "lib").glob("libpetsc*.so"))]
    if mpicc is None or not includes or not libraries:
        pytest.skip("there is no mpicc, or PETSc's headers are not there")
    program = tmp_path / "app"
    command = [mpicc, str(ROOT / "examples" / "petsc_app.c"), "-o", str(program), *includes, str(libraries[0])]
    subprocess.run([*command, f"-Wl,-rpath,{libraries[0].parent}"], check=True, capture_output=True, timeout=120)
    monkeypatch.setenv("PETSC_DIR", config["PETSC_DIR"])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    outer = ("-pc_type", "asm")
    theirs, _ = mpi(2, *outer, "-sub_pc_type", "ilu", program=(str(program),))
    ours, _ = mpi(2, *outer, "-python", sys.executable, *OURS, "-options_left", program=(str(program),))
    assert "CONVERGED_RTOL after" in theirs.stdout
    assert ours.stdout.splitlines()[0] == theirs.stdout.splitlines()[0]
    assert "no unused options" in ours.stdout
    better, _ = mpi(2, *outer, "-python", sys.executable, *OURS, "-sub_finelu_recipe", "ilut", program=(str(program),))
    count = [int(re.search(r"after (\d+)", done.stdout)[1]) for done in (better, theirs)]
    assert count[0] < count[1]


def test_view_and_log_of_a_whole_solve():
    words = ("-pc_type", "asm", *OURS, "-sub_finelu_recipe", "parilut", "-ksp_view", "-log_view")
    done, _ = mpi(2, "threads", *words)
    assert "ParILUT() on cpu" in done.stdout
    assert re.search(r"\d+ rows, \d+ entries; factors: \d+ entries, fill", done.stdout)
    assert re.search(r"^FineluFactor +1 ", done.stdout, re.MULTILINE)
    assert re.search(r"^FineluSolve +\d+ ", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("code", documented("petsc", "petsc"))
def test_documented_example(code):
    exec(code, {})
