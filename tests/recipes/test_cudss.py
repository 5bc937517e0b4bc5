"""SparseLU by cuDSS: on a GPU, where the library is installed; and everywhere by a library of Python in its place,
which works on the memory whose addresses it is given."""

import copy
import ctypes
import gc
import os
import pickle
import signal
import sys
import threading
from contextlib import nullcontext, suppress
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, perturbed, refused, values, without_gpu
from conftest import Backend
from scipy.sparse.linalg import splu

import finelu as fl
from finelu import SparseLU, gallery
from finelu.compare import held_bytes
from finelu.errors import (
    DeviceError,
    FineluError,
    MatrixError,
    NoFactors,
    ParameterError,
    SingularMatrix,
    StructurallySingular,
)
from finelu.kernels.cuda.runtime import cudss as runtime
from finelu.preconditioners.direct import cudss

NAMES = {number: name for name, number in runtime.TYPES.items()}
KINDS = ("general", "symmetric", "hermitian", "positive definite")


def array_at(address, size, dtype):
    """The memory there, as an array."""
    dtype = np.dtype(dtype)
    return np.frombuffer((ctypes.c_ubyte * (size * dtype.itemsize)).from_address(address), dtype)


class Fake:
    """What cuDSS does, by SciPy: each function is one of C, with the types that finelu declares.

    calls : names of functions, and of phases, in their order.  alive : what was made and not destroyed.
    configured : parameter -> value.  off : relative error of the factors, by the number of plans.
    status : phase -> what it returns.
    """

    def __init__(self):
        self.calls, self.errors, self.alive, self.configured, self.off = [], [], {}, {}, {}
        self.status, self.replaced, self.plans, self.streams, self.threads = {}, 0, 0, [], []
        self.stop, self.waits, self.layer, self.folder = None, False, None, None
        self.planning = threading.Event()
        self.kept = []
        for name, types in runtime.PROTOTYPES.items():
            setattr(self, name, self._function(name, types))

    def _function(self, name, types):
        own = getattr(self, "_" + name.removeprefix("cudss"))

        def called(*arguments):
            self.calls.append(name)
            try:
                return own(*arguments) or 0
            except BaseException as error:
                self.errors.append(error)
                return 6

        return ctypes.CFUNCTYPE(ctypes.c_int, *types)(called)

    def _made(self, at, what):
        number = 0x1000 + len(self.kept)
        self.kept.append(what)
        self.alive[number] = what
        ctypes.c_void_p.from_address(at).value = number

    def _gone(self, number, what):
        assert self.alive.pop(number)["what"] == what

    def _GetProperty(self, which, value):
        ctypes.c_int.from_address(value).value = (1, 0, 0)[which]

    def _Create(self, at):
        self._made(at, {"what": "handle"})

    def _Destroy(self, handle):
        self._gone(handle, "handle")

    def _SetStream(self, handle, stream):
        assert self.alive[handle]["what"] == "handle"
        self.streams.append(stream or 0)

    def _SetThreadingLayer(self, handle, name):
        self.layer = name

    def _SetJitCacheDir(self, handle, name):
        self.folder = name

    def _ConfigCreate(self, at):
        self._made(at, {"what": "config"})

    def _ConfigDestroy(self, config):
        self._gone(config, "config")

    def _ConfigSet(self, config, parameter, value, size):
        assert size == 4 and self.alive[config]["what"] == "config"
        self.configured[parameter] = ctypes.c_int.from_address(value).value

    def _DataCreate(self, handle, at):
        assert self.alive[handle]["what"] == "handle"
        self._made(at, {"what": "data", "info": 0, "lu": None})

    def _DataDestroy(self, handle, data):
        assert self.alive[handle]["what"] == "handle"
        self._gone(data, "data")

    def _DataSet(self, handle, data, what, value, size):
        assert what == runtime.HOST_INTERRUPT and size == 4 and self.alive[data]["what"] == "data"
        self.stop = value

    def _DataGet(self, handle, data, what, value, size, written):
        made = self.alive[data]
        found = {runtime.INFO: (made["info"], 4), runtime.LU_NNZ: (made["lu"].nnz if made["lu"] else 0, 8)}
        number, wide = found.get(what, (self.replaced, 4))
        assert size == wide
        ctypes.memmove(value, number.to_bytes(wide, "little", signed=True), wide)
        ctypes.c_size_t.from_address(written).value = wide

    def _MatrixCreateDn(self, at, rows, columns, ld, values, kind, layout):
        assert ld == rows and layout == 0 and values
        self._made(at, {"what": "matrix", "shape": (rows, columns), "values": values, "dtype": NAMES[kind]})

    def _MatrixCreateCsr(self, at, rows, columns, nnz, start, end, indices, values, of_start, of_index, kind, *how):
        assert rows == columns and end is None and of_start == of_index and how[2] == 0
        assert how[1] == (runtime.FULL if how[0] == runtime.GENERAL else runtime.UPPER)
        what = {"n": rows, "nnz": nnz, "start": start, "indices": indices, "values": values, "kind": how[0]}
        self._made(at, {"what": "matrix", "index": NAMES[of_index], "dtype": NAMES[kind], **what})

    def _MatrixDestroy(self, matrix):
        self._gone(matrix, "matrix")

    def _Execute(self, handle, phase, config, data, A, x, b):
        self.threads.append(threading.current_thread().name)
        data, A, x, b = (self.alive[number] for number in (data, A, x, b))
        assert x["dtype"] == b["dtype"] == A["dtype"] and x["shape"] == b["shape"] and x["shape"][0] == A["n"]
        self.calls[-1] = {3: "plan", 4: "factor", 8: "refactor", 1008: "solve"}[phase]
        if phase in self.status:
            return self.status[phase]
        if phase == runtime.ANALYSIS:
            self.plans += 1
            self.planning.set()
            while self.waits:
                if ctypes.c_int.from_address(self.stop).value:
                    return 5
        elif phase == runtime.SOLVE:
            self._solved(data["lu"], A, x, b)
        else:
            data["info"], data["lu"] = self._factored(A)
        return 0

    def _matrix(self, A):
        arrays = array_at(A["start"], A["n"] + 1, A["index"]), array_at(A["indices"], A["nnz"], A["index"])
        S = sp.csr_matrix((array_at(A["values"], A["nnz"], A["dtype"]), arrays[1], arrays[0]), (A["n"],) * 2)
        if A["kind"] == runtime.GENERAL:
            return S
        upper = sp.triu(S, 1)
        lower = upper.T.conj() if A["kind"] in (runtime.HERMITIAN, runtime.HPD) else upper.T
        return upper + lower + sp.diags(S.diagonal())

    def _factored(self, A):
        """0 and the factors, or 1 and None, where A is singular, or not definite as it was said to be."""
        S = self._matrix(A)
        if A["kind"] in (runtime.SPD, runtime.HPD) and np.linalg.eigvalsh(S.toarray()).min() <= 0:
            return 1, None
        try:
            return 0, splu(sp.csc_matrix(S * (1 + self.off.get(self.plans, 0.0))))
        except RuntimeError:
            return 1, None

    def _solved(self, lu, A, x, b):
        trans = "NTH"[self.configured.get(runtime.SOLVE_MODE, 0)]
        assert trans == "N" or (A["kind"] == runtime.GENERAL and (trans == "T" or A["dtype"][0] == "c"))
        B, X = (array_at(v["values"], np.prod(v["shape"]), v["dtype"]).reshape(v["shape"], order="F") for v in (b, x))
        assert b["values"] != x["values"]
        if self.configured.get(runtime.DETERMINISTIC):
            assert B.shape[1] == 1
        with np.errstate(all="ignore"):
            X[...] = lu.solve(np.ascontiguousarray(B), trans)


@pytest.fixture
def fake(monkeypatch):
    """The library of Python, and NumPy's arrays on a GPU, as far as finelu is concerned."""
    gc.freeze()  # the collection at the end passes over what is older: that is no solver of this library
    library, device = Fake(), {"stream": 0, "waits": 0, "freed": 0}
    library.device = device
    cuda = SimpleNamespace(
        Device=lambda number: nullcontext(),
        get_current_stream=lambda: SimpleNamespace(ptr=device["stream"]),
        runtime=SimpleNamespace(
            getDevice=lambda: 0, deviceSynchronize=lambda: device.update(waits=device["waits"] + 1)
        ),
    )
    pool = SimpleNamespace(free_all_blocks=lambda: device.update(freed=device["freed"] + 1))
    cupy = SimpleNamespace(cuda=cuda, get_default_memory_pool=lambda: pool)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setenv("CUDSS_JIT_CACHE_DIR", "")
    monkeypatch.setattr(runtime, "library", lambda: runtime.Library(library, version="1.0.0"))
    monkeypatch.setattr(runtime, "_at", lambda array: array.ctypes.data)
    for place in ("finelu.preconditioners.direct.cudss.on_gpu", "finelu.preconditioners.direct.recipe.on_gpu"):
        monkeypatch.setattr(place, lambda array: True)
    yield library
    gc.collect()  # solvers that an exception still holds are closed by this library
    assert library.errors == []


@pytest.fixture(params=["python", pytest.param("cuda", marks=pytest.mark.gpu)])
def where(request):
    """`move` and `fetch` to where cuDSS works, and back."""
    if request.param == "python":
        request.getfixturevalue("fake")
        return Backend("cpu")
    if without_gpu():
        pytest.skip(without_gpu())
    if cudss.missing():
        pytest.skip(cudss.missing())
    return Backend("cuda")


def of_kind(kind, dtype="float64"):
    """A matrix that is taken for that kind."""
    A = {
        "general": lambda: gallery.convection_diffusion(7, 6, 5, peclet=20),
        "symmetric": lambda: gallery.poisson7(6) - 1.5 * sp.identity(6**3),
        "hermitian": lambda: gallery.poisson7(6) - 1.5 * sp.identity(6**3),
        "positive definite": lambda: gallery.poisson7(6),
    }[kind]()
    A = sp.csr_matrix(A).astype(dtype)
    if A.dtype.kind == "c":
        turn = np.exp(1j * np.arange(A.shape[0])).astype(dtype)
        A = sp.csr_matrix(sp.diags(turn) @ A @ sp.diags(turn if kind == "symmetric" else turn.conj()))
        if kind in KINDS[2:]:
            A.setdiag(A.diagonal().real)
    A.sort_indices()
    return A.astype(dtype)


def close(op, x, b, factor=1e3):
    """Whether x is the solution with op, to rounding."""
    size = abs(op).sum(axis=1).max()
    return np.linalg.norm(op @ x - b) <= factor * np.finfo(x.dtype).eps * (size * np.linalg.norm(x) + np.linalg.norm(b))


def transposed(A, trans):
    return {"N": A, "T": A.T, "H": A.conj().T}[trans]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_solves_with_A_its_transpose_and_its_adjoint(where, kind, dtype):
    if kind == "hermitian" and dtype[0] != "c":
        pytest.skip("a real one is symmetric")
    A = of_kind(kind, dtype)
    F = SparseLU(backend="cudss").factor(where.move(A))
    assert F.report.backend == "cudss" and F.report.kind == kind and F.dtype == dtype
    assert F.report.factored_on == F.report.applied_on == "GPU" and F.nnz > A.shape[0]
    B = values((A.shape[0], 3), dtype)
    for trans in "NTH":
        for b in (B, B[:, 0], B[:, :1], B[:, :0], np.asfortranarray(B)):
            x = where.fetch(F.solve(where.move(b), trans))
            assert x.dtype == dtype and x.shape == b.shape and x.flags.c_contiguous
            assert close(transposed(A, trans), x, b)
    z = where.fetch(F.solve(where.move(np.full(A.shape[0], 1 + 2j))))
    assert close(A, z, np.full(A.shape[0], 1 + 2j), 1e3 if dtype in ("float64", "complex128") else 1e12)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_update_takes_new_values_and_keeps_the_plan(where, kind):
    A = of_kind(kind)
    F = SparseLU(backend="cudss").factor(where.move(A))
    plans, b = F.report.plans, np.ones(A.shape[0])
    for B in (2 * A, perturbed(A) if kind == "general" else 0.5 * A):
        assert F.update(where.move(sp.csr_matrix(B))) is F
        assert close(B, where.fetch(F.solve(where.move(b))), b) and F.report.plans == plans
    with pytest.raises(MatrixError):
        F.update(where.move(sp.csr_matrix(A + sp.eye(A.shape[0], k=2))))


def test_the_values_of_the_caller_may_change(where):
    A = where.move(of_kind("general"))
    F = SparseLU(backend="cudss").factor(A)
    want = where.fetch(F.solve(where.move(np.ones(A.shape[0]))))
    A.data *= 7
    np.testing.assert_allclose(where.fetch(F.solve(where.move(np.ones(A.shape[0])))), want, rtol=1e-9)


def test_an_update_that_is_symmetric_no_more(where):
    A = of_kind("positive definite")
    F = SparseLU(backend="cudss").factor(where.move(A))
    other, b = sp.csr_matrix(A, copy=True), np.ones(A.shape[0])
    other.data *= np.random.default_rng(0).uniform(0.9, 1.1, A.nnz)
    for B, kind in ((other, "general"), (A, "general")):
        assert close(B, where.fetch(F.update(where.move(B)).solve(where.move(b))), b) and F.report.kind == kind


@pytest.mark.parametrize("kind", ["general", "symmetric"])
def test_gaps_of_the_diagonal(where, kind):
    A = gallery.stokes(8)
    A = sp.csr_matrix(A + sp.diags(np.r_[np.zeros(A.shape[0] - 1), 1.0]))
    if kind == "general":
        A.data *= np.random.default_rng(0).uniform(0.9, 1.1, A.nnz)
    A.eliminate_zeros()
    F = SparseLU(backend="cudss").factor(where.move(A))
    b = A @ np.random.default_rng(1).standard_normal(A.shape[0])
    for trans in "NT":
        x = where.fetch(F.solve(where.move(b), trans))
        assert np.linalg.norm(transposed(A, trans) @ x - b) <= 1e-8 * np.linalg.norm(b)
    assert np.isfinite(x).all() and F.report.trial_residual <= 1e-8


def test_stored_zeros_are_no_entries(where):
    A, b = sp.csr_matrix(of_kind("general")), np.ones(210)
    zeros = np.arange(210), (np.arange(210) + 17) % 210
    Z = sp.coo_matrix(A)
    Z = sp.csr_matrix((np.r_[Z.data, np.zeros(210)], (np.r_[Z.row, zeros[0]], np.r_[Z.col, zeros[1]])), A.shape)
    assert Z.nnz > A.nnz
    F, G = (SparseLU(backend="cudss").factor(where.move(M)) for M in (A, Z))
    assert F._S.nnz == G._S.nnz
    full = Z.copy()
    full.data = np.where(full.data == 0, 0.25, full.data)
    for M in (Z, 2 * Z, full, Z):
        G.update(where.move(M))
        assert close(M, where.fetch(G.solve(where.move(b))), b)


def test_gaps_are_filled_where_they_are():
    A = sp.random(30, 30, 0.1, format="csr", random_state=np.random.default_rng(0))
    C = fl.as_csr(A, diagonal=False)
    S, places = cudss.with_diagonal(C)
    cudss._take_values(S, places, C.data, 0.0)
    assert S.missing == 0 and S.nnz == A.nnz + C.missing > A.nnz
    np.testing.assert_array_equal(S.tosparse().toarray(), A.toarray())
    np.testing.assert_array_equal(S.indices[S.diag], np.arange(30))
    assert S.tosparse().has_sorted_indices
    cudss._take_values(S, places, C.data, 0.5)
    d = A.diagonal()
    np.testing.assert_allclose(S.data[S.diag], d + 0.5 * np.where(d == 0, abs(A).max(), d))


@pytest.mark.parametrize("backend", ["cudss", "auto"])
def test_singular_matrices(where, backend):
    gap = sp.csr_matrix(np.array([[1.0, 2, 0], [0, 0, 0], [0, 1, 3]]))
    zero = sp.csr_matrix((np.array([1.0, 0.0, 1.0]), np.arange(3), np.arange(4)), shape=(3, 3))
    for A in (gap, zero):
        with refused((StructurallySingular, SingularMatrix), match="singular"):
            SparseLU(backend=backend).factor(where.move(A))
    equal = sp.csr_matrix(np.array([[1.0, 2, 0], [1, 2, 0], [0, 0, 3]]))
    with suppress(ArithmeticError):
        assert SparseLU(backend=backend).factor(where.move(equal)).report.warning


def test_an_update_that_fails_leaves_no_factors(where):
    A, b = of_kind("general"), np.ones(210)
    F = SparseLU(backend="cudss").factor(where.move(A))
    zero = A.copy()
    zero.data[:] = 0
    with pytest.raises((SingularMatrix, StructurallySingular)):
        F.update(where.move(zero))
    with pytest.raises(NoFactors):
        F.solve(where.move(b))
    assert close(A, where.fetch(F.update(where.move(A)).solve(where.move(b))), b)


def test_copies_factor_anew(where):
    A, b = of_kind("symmetric"), np.ones(216)
    F = SparseLU(backend="cudss").factor(where.move(A))
    want = where.fetch(F.solve(where.move(b)))
    for other in (copy.copy(F), copy.deepcopy(F), pickle.loads(pickle.dumps(F))):
        np.testing.assert_allclose(where.fetch(other.solve(where.move(b))), want, rtol=1e-8)
        assert other.report.kind == "symmetric"
        other.update(where.move(2 * A))
        np.testing.assert_allclose(2 * where.fetch(other.solve(where.move(b))), want, rtol=1e-8)
    np.testing.assert_allclose(where.fetch(F.solve(where.move(b))), want, rtol=1e-8)


@pytest.mark.parametrize(
    "options",
    [*({"ordering": o} for o in ("auto", "nd", "amd", None)), {"matching": True}, {"matching": False}],
    ids=str,
)
def test_orderings_and_matchings(where, options):
    A, b = of_kind("general"), np.ones(210)
    F = SparseLU(backend="cudss", **options).factor(where.move(A))
    assert close(A, where.fetch(F.solve(where.move(b))), b)


def test_a_shift(where):
    A, b = of_kind("general"), np.ones(210)
    F = SparseLU(backend="cudss", shift=0.1).factor(where.move(A))
    assert close(A + 0.1 * sp.diags(A.diagonal()), where.fetch(F.solve(where.move(b))), b)


def test_single_precision_of_a_double_matrix(where):
    A, b = of_kind("general"), np.ones(210)
    F = SparseLU(backend="cudss", precision="float32").factor(where.move(A))
    assert F.dtype == np.float32
    solution = fl.gmres(where.move(A), where.move(b), M=F, rtol=1e-12)
    assert solution.converged and solution.iterations <= 6


def test_the_same_bits_where_they_are_asked_for(where):
    A = where.move(of_kind("general"))
    B = where.move(np.random.default_rng(0).standard_normal((210, 3)))
    recipe = SparseLU(backend="cudss", deterministic=True)
    found = [where.fetch(recipe.factor(A).solve(B)) for _ in range(3)]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])


def test_auto_takes_it_on_a_gpu(where):
    A, b = of_kind("general"), np.ones(210)
    F = SparseLU().factor(where.move(A))
    assert F.report.backend == "cudss" and "reason" not in F.report
    assert close(A, where.fetch(F.solve(where.move(b))), b)
    solution = fl.gmres(where.move(A), where.move(b), M=F, rtol=1e-12)
    assert solution.converged and solution.iterations <= 2


def test_factors_count_as_memory(where):
    A = where.move(of_kind("general"))
    F = SparseLU(backend="cudss").factor(A)
    assert held_bytes(F, fl.as_csr(A)) >= 12 * F.nnz


# what is seen of the calls, by the library of Python


def test_calls_and_their_order(fake):
    A, b = of_kind("general"), np.ones(210)
    F = SparseLU(backend="cudss").factor(A)
    phases = [name for name in fake.calls if not name.startswith("cudss")]
    assert phases == ["plan", "factor", "solve"] and F.report.refinements == 0 and F.report.plans == 1
    F.update(2 * A).solve(b)
    phases = [name for name in fake.calls if not name.startswith("cudss")]
    assert phases[3:] == ["refactor", "solve", "solve"]
    assert fake.threads[0] == fake.threads[1] == "finelu-cudss" != fake.threads[2] == threading.current_thread().name
    assert fake.configured == {}  # the library's own choices
    assert sorted(v["what"] for v in fake.alive.values()) == ["config", "data", "handle", "matrix"]
    assert F.report.version == "1.0.0"
    del F
    gc.collect()
    assert fake.alive == {}


def test_choices_reach_the_library(fake):
    A = of_kind("general")
    recipe = SparseLU(backend="cudss", ordering="amd", matching=False, deterministic=True)
    F = recipe.factor(A)
    assert fake.configured == {runtime.ORDERING: 3, runtime.MATCHING: 0, runtime.DETERMINISTIC: 1}
    F.solve(np.ones((210, 3)), "T")
    assert fake.configured[runtime.SOLVE_MODE] == 1 and fake.calls.count("solve") == 4
    assert SparseLU(backend="cudss", matching=True).factor(A) and fake.configured[runtime.MATCHING] == 5


def test_threads_and_compiled_kernels(fake, monkeypatch, tmp_path):
    monkeypatch.setattr(runtime, "library", lambda: runtime.Library(fake, layer="layer.so"))
    monkeypatch.delenv("CUDSS_JIT_CACHE_DIR")
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    SparseLU(backend="cudss").factor(of_kind("general"))
    assert (fake.layer, fake.folder) == (b"layer.so", os.fsencode(tmp_path / "cudss"))
    assert fake.configured == {runtime.HOST_THREADS: fl.get_num_threads()}


def test_where_compiled_kernels_are_kept(monkeypatch, tmp_path):
    monkeypatch.delenv("CUDSS_JIT_CACHE_DIR", raising=False)
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path))
    assert runtime.jit_folder() == str(tmp_path / "cudss") and (tmp_path / "cudss").is_dir()
    monkeypatch.setenv("CUDSS_JIT_CACHE_DIR", "")
    assert runtime.jit_folder() is None


def test_each_call_has_the_current_stream(fake):
    F = SparseLU(backend="cudss").factor(of_kind("general"))
    assert set(fake.streams) == {0}
    fake.device["stream"] = 42
    for _ in range(2):
        F.solve(np.ones(210))
    assert fake.streams[-2:] == [42, 42] and fake.device["waits"] == 1


@pytest.mark.parametrize("trans", ["N", "T", "H"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_factors_that_are_a_little_off_are_refined(fake, dtype, trans):
    fake.off = {1: 1e-7}
    A = of_kind("general", dtype)
    F = SparseLU(backend="cudss").factor(A)
    assert F.report.refinements in (1, 2) and F.report.plans == 1 and F.report.trial_residual < 1e-12
    for b in (np.ones(210, dtype), np.ones((210, 2), dtype)):
        assert close(transposed(A, trans), F.solve(b, trans), b)


def test_factors_that_are_far_off_are_planned_anew(fake):
    fake.off = {2: 3.0}
    A, b = of_kind("symmetric"), np.ones(216)
    F = SparseLU(backend="cudss").factor(A)  # not definite, far off, then good
    assert F.report.plans == 3 and F.report.kind == "general" and F.report.warning is None
    assert close(A, F.solve(b), b)
    fake.off = {3: 3.0}  # the same plan for new values
    F.update(2 * A)
    assert close(2 * A, F.solve(b), b) and F.report.plans == 4 and F.report.warning is None


def test_the_last_plan_matches_as_for_a_general_matrix(fake):
    fake.off = {1: 3.0}
    A, b = of_kind("general"), np.ones(210)
    F = SparseLU(backend="cudss", ordering="amd").factor(A)
    assert F.report.plans == 2 and fake.configured[runtime.MATCHING] == runtime.PRODUCT
    assert close(A, F.solve(b), b)


def test_factors_that_stay_off_are_left_to_superlu_or_said_to_be(fake):
    fake.off = dict.fromkeys(range(9), 30.0)
    A, b = of_kind("general"), np.ones(210)
    F = SparseLU(backend="cudss").factor(A)
    assert "unstable" in F.report.warning and F.report.trial_residual > 1e-8
    assert np.isfinite(F.solve(b)).all()
    F = SparseLU().factor(A)
    assert F.report.backend == "superlu" and "unstable" in F.report.reason and close(A, F.solve(b), b)
    assert F.report.reason.startswith("on the CPU: ")


def test_pivots_that_were_replaced_are_reported(fake):
    fake.replaced = 3
    F = SparseLU(backend="cudss").factor(of_kind("general"))
    assert F.report.replaced == 3 and "replaced 3 pivots" in F.report.warning
    fake.replaced = 0
    assert F.update(of_kind("general")).report.warning is None


def test_nothing_that_is_not_finite_is_returned(fake):
    fake.off = dict.fromkeys(range(9), np.nan)
    with pytest.raises((ArithmeticError, FineluError)):
        SparseLU(backend="cudss").factor(of_kind("general"))
    gc.collect()
    assert fake.alive == {}


@pytest.mark.parametrize(("status", "words"), [(1, "initialized"), (4, "does not support"), (5, "failed"), (99, "99")])
@pytest.mark.parametrize("phase", [runtime.ANALYSIS, runtime.FACTORIZATION])
def test_errors_of_the_library(fake, phase, status, words):
    fake.status = {phase: status}
    with refused(FineluError, match=words) as error:
        SparseLU(backend="cudss").factor(of_kind("general"))
    assert "cudssExecute" in str(error.value) and fake.alive == {}
    F = SparseLU().factor(of_kind("general"))
    assert F.report.backend == "superlu" and words in F.report.reason


@pytest.mark.parametrize("phase", [runtime.ANALYSIS, runtime.FACTORIZATION])
def test_no_room(fake, phase):
    fake.status = {phase: runtime.NO_MEMORY}
    with pytest.raises(MemoryError, match="no room on the GPU"):
        SparseLU(backend="cudss").factor(of_kind("general"))
    assert fake.device["freed"] == 1 and fake.calls.count("plan") == 2 and fake.alive == {}
    assert SparseLU().factor(of_kind("general")).report.backend == "superlu"


def test_an_error_in_a_solve(fake):
    F = SparseLU(backend="cudss").factor(of_kind("general"))
    fake.status = {runtime.SOLVE: 5}
    with pytest.raises(FineluError, match="failed"):
        F.solve(np.ones(210))
    fake.status = {}
    assert close(of_kind("general"), F.solve(np.ones(210)), np.ones(210))


@pytest.fixture
def heard():
    """SIGINT raises KeyboardInterrupt, also where the process was begun in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_a_plan(fake, heard):
    fake.waits = True
    interrupt = threading.Thread(
        target=lambda: fake.planning.wait() and os.kill(os.getpid(), signal.SIGINT), daemon=True
    )
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        SparseLU(backend="cudss").factor(of_kind("general"))
    assert ctypes.c_int.from_address(fake.stop) and fake.alive == {}
    fake.waits = False
    assert SparseLU(backend="cudss").factor(of_kind("general")).report.plans == 1


@pytest.mark.parametrize("noticed", [True, False])
def test_new_values_are_factored_here_where_nobody_would_notice(fake, monkeypatch, calls_of, noticed):
    monkeypatch.setattr(runtime, "UNNOTICED", 0.0 if noticed else 1e9)
    threads = calls_of(runtime, "aside")
    A = of_kind("general")
    F = SparseLU(backend="cudss").factor(A)
    assert len(threads) == 2  # the plan and the first factorization, however short
    F.update(sp.csr_matrix(2 * A))
    assert len(threads) == (3 if noticed else 2)
    assert close(2 * A, F.solve(np.ones(210)), np.ones(210))


def test_a_matrix_that_is_known_to_be_indefinite_is_planned_once(fake):
    A = fl.as_csr(of_kind("positive definite"))
    for indefinite, kind in ((False, "positive definite"), (True, "symmetric")):
        F = cudss.CudssFactors(SparseLU(backend="cudss"), A, indefinite=indefinite)
        assert F.report.kind == kind and F.report.plans == 1


def test_an_exception_before_the_thread_has_begun(monkeypatch):
    def start(thread):
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(KeyboardInterrupt):
        runtime.aside(lambda: None, lambda: None)


def test_many_threads_may_solve(fake):
    A = of_kind("general")
    F = SparseLU(backend="cudss").factor(A)
    B = np.random.default_rng(0).standard_normal((210, 16))
    found = {}
    threads = [threading.Thread(target=lambda k=k: found.update({k: F.solve(B[:, k])})) for k in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(close(A, found[k], B[:, k]) for k in range(16))


# if there is none


@pytest.mark.parametrize("recipe", [{"ordering": "rcm"}, {"ordering": "colamd"}, {"ordering": "mmd"}])
def test_what_it_does_not_take_is_named(fake, recipe):
    with refused(ParameterError, match=f"cuDSS takes no ordering='{recipe['ordering']}'"):
        SparseLU(backend="cudss", **recipe).factor(of_kind("general"))
    F = SparseLU(**recipe).factor(of_kind("general"))
    assert F.report.backend == "superlu" and "takes no ordering" in F.report.reason


def test_deterministic_is_for_cudss():
    for backend in ("auto", "superlu"):
        with refused(ParameterError, match="deterministic=True is for backend='cudss'"):
            SparseLU(backend=backend, deterministic=True).factor(of_kind("general"))


def test_a_matrix_on_the_host_is_named():
    with refused(DeviceError, match="on the host"):
        SparseLU(backend="cudss").factor(of_kind("general"))
    assert "reason" not in SparseLU().factor(of_kind("general")).report


def test_without_the_library_it_is_named_and_auto_does_without(fake, monkeypatch):
    why = "cuDSS is not installed: pip install 'finelu[cudss13]'"
    monkeypatch.setattr(runtime, "library", lambda: runtime.Library(None, why))
    with refused(ParameterError, match="pip install 'finelu\\[cudss13\\]'"):
        SparseLU(backend="cudss").factor(of_kind("general"))
    F = SparseLU().factor(of_kind("general"))
    assert F.report.backend == "superlu" and "pip install" in F.report.reason


@pytest.fixture
def places(monkeypatch):
    """places(path, ...): where the library is looked for."""
    monkeypatch.setattr(runtime, "_load_what_it_needs", lambda: None)

    def set_to(*names):
        def found(wheel, name, version):
            assert wheel in ("nvidia-cudss-cu12", "nvidia-cudss-cu13") and (name, version) == ("cudss", runtime.VERSION)
            return iter(names)

        monkeypatch.setattr(runtime, "places", found)

    return set_to


def test_a_library_that_is_not_there_or_cannot_be_loaded(places, tmp_path):
    places("libno-such-cudss.so.1")
    assert runtime.found(13) == (None, "cuDSS is not installed: pip install 'finelu[cudss13]'", None, "")
    assert "finelu[cudss12]" in runtime.found(12).missing
    (tmp_path / "libcudss.so.1").write_text("no library")
    places(str(tmp_path / "libcudss.so.1"), "libno-such-cudss.so.1")
    assert runtime.found(13).calls is None and "cannot be loaded" in runtime.found(13).missing


@pytest.mark.parametrize(
    ("version", "fits"), [((0, 8, 0), False), ((1, 0, 0), True), ((1, 4, 2), True), ((2, 0, 0), False)]
)
def test_versions(places, monkeypatch, version, fits):
    class Other(Fake):
        def _GetProperty(self, which, value):
            ctypes.c_int.from_address(value).value = version[which]

    other = Other()
    places("/somewhere/libcudss.so")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: other)
    found = runtime.found(13)
    text = ".".join(map(str, version))
    if fits:
        assert found.calls is other and found.version == text and found.layer == f"/somewhere/{runtime.LAYER}"
    else:
        assert (
            found.calls is None
            and f"cuDSS {text} was found" in found.missing
            and "version 1 is needed" in found.missing
        )


def test_factors_that_find_no_room_are_not_made(where, monkeypatch):
    A = of_kind("general")
    F = SparseLU(backend="cudss").factor(where.move(A))
    if where.name == "cpu":  # whose library does not count
        monkeypatch.setattr(runtime.Solver, "planned", F.nnz)
    recipe, C = SparseLU(backend="cudss"), fl.as_csr(where.move(A), diagonal=False)
    assert cudss.CudssFactors(recipe, C, most=F.nnz).nnz == F.nnz
    with refused(MemoryError, match="entries, more than the"):
        cudss.CudssFactors(recipe, C, most=F.nnz - 1)


def test_a_plan_with_too_many_entries_is_not_made_again(fake, monkeypatch):
    monkeypatch.setattr(runtime.Solver, "planned", 10**6)
    with pytest.raises(MemoryError):
        cudss.CudssFactors(SparseLU(backend="cudss"), fl.as_csr(of_kind("general")), most=10)
    assert fake.plans == 1 and fake.device["freed"] == 0


@pytest.mark.parametrize("change", [lambda A: -A, lambda A: A - 1.5 * sp.identity(216)], ids=["negative", "neither"])
def test_new_values_that_are_not_definite_are_planned_once_more(where, change):
    A, b = of_kind("positive definite"), np.ones(216)
    F = SparseLU(backend="cudss").factor(where.move(A))
    assert F.report.kind == "positive definite"
    B = sp.csr_matrix(change(A))
    F.update(where.move(B))
    assert F.report.plans == 2 and F.report.kind == "symmetric"
    assert close(B, where.fetch(F.solve(where.move(b))), b)


@pytest.mark.gpu
def test_solve_takes_it_for_a_saddle_point(where):
    if where.name != "cuda":
        pytest.skip("solve asks for it on a GPU only")
    A = gallery.stokes(24)
    b = A @ np.ones(A.shape[0])
    solution = fl.solve(where.move(A), where.move(b), device="cuda")
    assert solution.converged and np.linalg.norm(b - A @ where.fetch(solution.x)) <= 1e-8 * np.linalg.norm(b)
    assert any(attempt.recipe == "SparseLU(backend='cudss')" for attempt in solution.attempts)
