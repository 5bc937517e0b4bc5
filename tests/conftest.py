"""What all tests share: the devices, and the real matrices where they are at hand."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # several processes: threads of BLAS would wait for one another's turn
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gc
import re
import sys
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from checks import without_gpu
from pairs import Pairs

from finelu.compiling import compile_eagerly
from finelu.device import require_gpu
from finelu.errors import DeviceError
from finelu.kernels.cuda.runtime import cudss
from finelu.kernels.operands import CSR

MATRICES = Path(os.environ.get("FINELU_MATRICES", Path(__file__).resolve().parents[2] / "shared" / "matrices"))


os.environ.setdefault("FINELU_RATES", os.devnull)  # no rates that this user has measured: the shipped ones
os.environ.setdefault("FINELU_SILENT", "1")  # what stderr says does not depend on what was compiled before
os.environ.setdefault("FINELU_BACKGROUND", "0")  # what a test's program needs is compiled before its answers
compile_eagerly()  # what a test sees does not depend on what was compiled before it


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU; skipped where there is none")
    config.pluginmanager.register(Pairs())


@pytest.fixture
def cupy():
    """CuPy, on a machine with a GPU; on any other the test is skipped."""
    try:
        return require_gpu()
    except DeviceError as error:
        pytest.skip(str(error))


@pytest.fixture
def cuda(cupy):
    """The package of kernels for the GPU."""
    from finelu.kernels import cuda

    return cuda


class Backend:
    """A device: `move` brings arrays and sparse matrices there, `fetch` brings them back to NumPy and SciPy."""

    def __init__(self, name):
        self.name = name

    @property
    def xp(self):
        if self.name == "cpu":
            return np
        import cupy

        return cupy

    def move(self, A):
        if self.name == "cpu":
            return A
        import cupyx.scipy.sparse as csp

        if isinstance(A, CSR):
            return A.on(self.xp)
        if sp.issparse(A):
            data, indices, indptr = (self.xp.asarray(v) for v in (A.tocsr().data, A.tocsr().indices, A.tocsr().indptr))
            return csp.csr_matrix((data, indices, indptr), shape=A.shape)
        return self.xp.asarray(A)

    def fetch(self, A):
        return A.get() if hasattr(A, "get") and type(A).__module__.startswith("cupy") else A

    def __repr__(self):
        return self.name


AS_INSTALLED = {"test_solver", "test_singular", "test_certify", "test_sequence", "test_spilu", "test_deadline"}
AS_INSTALLED |= {"test_in_place_of_scipy"}
OF_LIBRARIES = "test_interop_direct.py", "test_interop_libraries.py", "test_earlier_values.py"


def pytest_generate_tests(metafunc):
    """`backend`: the CPU, and the GPU where there is one. `direct_solvers`: finelu's own, and those that are installed
    where there are any."""
    chosen = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "backend" in metafunc.fixturenames and not any("backend" in names for names in chosen):
        gpu = [] if without_gpu() else [pytest.param("cuda", marks=pytest.mark.gpu)]
        metafunc.parametrize("backend", ["cpu", *gpu], indirect=True)
    there = metafunc.module.__name__ in AS_INSTALLED and any(map(find_spec, ("nbklu", "feral", "pypardiso")))
    if there and not any("direct_solvers" in names for names in chosen):
        metafunc.parametrize("direct_solvers", ["embedded", "installed"], indirect=True)


LATER = {"float32": {"float64", "complex64"}, "complex128": {"complex64"}}  # a dtype, and what stands for it
DTYPE = "float32|float64|complex64|complex128"
PLACES = {
    "contract",
    "kernels",
    "krylov",
    "matrix",
    "recipes",
    "test_spilu.py",
}  # whose tests are repeated for every dtype
# The files that take 5 s and more with kept kernels. Workers begin them first, so that they end together; test_carried,
# which takes kernels of all families, is the last of them: most are compiled by then.
LONGEST = [
    *("programs", "first_call", "body_flow", "compare", "fuzz", "parilut", "background", "channel_flow", "trial"),
    *(
        "kernels_cpu",
        "cli",
        "truth",
        "interop_libraries",
        "interrupts",
        "notebooks",
        "interop_direct",
        "flows",
        "cli_output",
    ),
    *("parilut_blocks", "contract_recipes", "multilevel", "package", "singular", "dense_rows", "carried"),
]


@pytest.hookimpl(tryfirst=True)  # before markers choose
def pytest_collection_modifyitems(items):
    """On the CPU, which compiles each dtype anew, a test that runs in another one that stands for it is a slow one."""
    first = {f"test_{name}": place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: first.get(item.path.stem, len(first)))
    tests = {}
    for item in items:
        repeated = hasattr(item, "callspec") and {item.path.parent.name, item.path.name} & PLACES
        if repeated and not item.get_closest_marker("gpu"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for same in tests.values():
        there = set().union(*map(dtypes_of, same))
        for item in same:
            if any(LATER.get(dtype, set()) & there for dtype in dtypes_of(item)):
                item.add_marker(pytest.mark.slow)


def dtypes_of(item):
    """The names of the dtypes of a test: `single` where it factors in that one, or `dtype`, or its matrix's."""
    given = item.callspec.params
    if "single" in given:
        return {given["single"]}
    found = {name for text in given.values() if isinstance(text, str) for name in re.findall(DTYPE, text)}
    kinds = [v for v in given.values() if isinstance(v, type) and issubclass(v, np.generic)]
    kinds += [v.A.dtype for v in given.values() if type(v).__name__ in ("Problem", "Case")]
    return found | {np.dtype(kind).name for kind in kinds}


def pytest_collection_finish():
    """Python's garbage collector passes over what lives to the end: modules and some ten thousand tests."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    if without_gpu():
        terminalreporter.write_line(f"Without a GPU every test ran on the CPU alone. {without_gpu()}")


@pytest.fixture
def backend(request):
    if request.param == "cuda" and without_gpu():
        pytest.skip(without_gpu())
    return Backend(request.param)


@pytest.fixture
def threads(meanwhile):
    """`set_num_threads`, undone after the test; triangular solves use threads here even where one would be as fast."""
    import finelu
    from finelu.kernels.cpu import triangular

    meanwhile(triangular, schedule=partial(triangular.schedule, required=True))
    before = finelu.get_num_threads()
    yield finelu.set_num_threads
    finelu.set_num_threads(before)


@pytest.fixture
def everywhere():
    """everywhere(name, value): what a name of finelu's means until the end of the test, in every module that has it."""
    import finelu.auto  # noqa: F401

    before = []

    def modules():
        return [module for name, module in sys.modules.items() if name.partition(".")[0] == "finelu"]

    def means(name, value):
        having = [module for module in modules() if name in vars(module)]
        (own,) = {id(vars(module)[name]): vars(module)[name] for module in having}.values()  # one thing, not two
        before.append((name, value, own))
        for module in having:
            setattr(module, name, value)

    yield means
    for name, value, own in reversed(before):
        for module in modules():  # those that were imported meanwhile have it from one of the others
            if vars(module).get(name) is value:
                setattr(module, name, own)


@pytest.fixture
def meanwhile(monkeypatch):
    """meanwhile(module, NAME=value, ...): what these names of one module mean until the end of the test."""

    def means(module, **names):
        for name, value in names.items():
            monkeypatch.setattr(module, name, value)

    return means


@pytest.fixture
def patient(everywhere):
    """No attempt is given up for another, whatever it is expected to take."""
    import finelu.auto.monitor  # noqa: F401  # which `everywhere` then finds

    everywhere("worth", lambda *_: False)


@pytest.fixture
def looks(monkeypatch):
    """looks(k): the time is over at the k-th look at it, and from then on. Returns [how many looks there were]."""
    from finelu import deadline

    count = [0]

    def at(k):
        count[0] = 0

        def over(limit):
            count[0] += 1
            if count[0] >= k:
                limit.expire()
            return count[0] >= k

        monkeypatch.setattr(deadline.Limit, "over", over)
        return count

    return at


@pytest.fixture
def own_recipes(monkeypatch):
    """Registers recipes that are gone after the test."""
    from finelu.preconditioners import RECIPES, register

    monkeypatch.setattr(RECIPES, "registered", dict(RECIPES.registered))
    return register


@pytest.fixture
def own_methods(monkeypatch):
    """Registers Krylov methods that are gone after the test."""
    from finelu.krylov import METHODS, register

    monkeypatch.setattr(METHODS, "registered", dict(METHODS.registered))
    return register


@pytest.fixture
def recipe_of(own_recipes):
    """recipe_of(factor): registers the recipe `own`, whose factor(A) is this function."""

    def registered(factor):
        from finelu.preconditioners.recipe import Recipe

        kind = type("Own", (Recipe,), {"factor": lambda self, A: factor(A)})
        return own_recipes(dataclass(frozen=True, kw_only=True, repr=False)(kind))

    return registered


@pytest.fixture
def calls_of(monkeypatch):
    """calls_of(owner, name): a list of the arguments of each later call of owner.name, which does what it did."""

    def heard(owner, name):
        calls, own = [], getattr(owner, name)

        def both(*arguments, **options):
            calls.append(arguments)
            return own(*arguments, **options)

        monkeypatch.setattr(owner, name, both)
        return calls

    return heard


@pytest.fixture
def without(monkeypatch):
    """without(solver, ...): "klu", "feral" and "pardiso" as if they were not installed."""
    found = {"klu": "klu.nbklu", "feral": "feral.feral", "pardiso": "pardiso.mkl"}

    def missing(*solvers):
        for solver in solvers:
            monkeypatch.setattr(f"finelu.preconditioners.direct.{found[solver]}", lambda: None)

    return missing


@pytest.fixture
def splu_is(monkeypatch):
    """splu_is(function): what finelu calls from then on instead of SciPy's splu."""
    return partial(monkeypatch.setattr, "finelu.foreign.splu")


@pytest.fixture
def pardiso_fails(monkeypatch):
    """pardiso_fails(fault): what comes of each factorization by PARDISO from then on, an error's number or fault();
    of None, what comes of it in truth."""
    from finelu.preconditioners.direct import pardiso

    own = pardiso._Called._call

    def fails(fault):
        def call(called, phase, *given):
            if phase < 0 or fault is None:
                return own(called, phase, *given)
            return fault() if callable(fault) else fault

        monkeypatch.setattr(pardiso._Called, "_call", call)

    return fails


@pytest.fixture
def not_installed(monkeypatch):
    """not_installed(name): a module that cannot be imported until the end of the test."""
    return partial(monkeypatch.setitem, sys.modules, value=None)


@pytest.fixture
def terminal(monkeypatch):
    """terminal(): stderr, as `capsys` has it in the test, is a terminal from then on."""
    monkeypatch.setenv("TERM", "xterm")
    return lambda: monkeypatch.setattr(sys.stderr, "isatty", lambda: True)


@pytest.fixture
def installed(tmp_path):
    """installed(module, code, kind, points): the environment of a process in which a package of this module, with these
    entry points for recipes or methods, is installed."""
    import finelu

    def package(module, code, kind, points):
        (tmp_path / f"{module}.py").write_text(code)
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        lines = [f"{name} = {place}" for name, place in points.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[finelu.{kind}]", *lines, ""]))
        return os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(finelu.__file__).parents[1])])}

    return package


@pytest.fixture
def small_blocks(meanwhile):
    """On the CPU several threads share even a small matrix in ParILU and ParILUT, some rows at a time."""
    from finelu.kernels.cpu.runtime import row_blocks

    meanwhile(row_blocks, ALONE=0, GRAIN=128, COPY=64)


@pytest.fixture
def look_every(monkeypatch):
    """look_every(k): a Krylov method looks at its progress at every k-th iteration, as on a GPU."""
    from finelu.krylov import ahead

    return lambda interval: monkeypatch.setitem(ahead.LOOK_EVERY, "numpy", interval)


@pytest.fixture(params=[1, 4])
def every(request, look_every):
    """How often the host looks: at each iteration, or as on a GPU, every few and at something older."""
    look_every(request.param)
    return request.param


@pytest.fixture
def devices_stay(monkeypatch):
    """A rename onto a device is a failure of the test, not the loss of the machine's device."""
    replace = os.replace

    def checked(source, target):
        assert not os.fspath(target).startswith("/dev/"), f"{target} would have been replaced"
        replace(source, target)

    monkeypatch.setattr(os, "replace", checked)


def real_matrix(name):
    """The matrix `name` of the folder of real matrices as CSR; skips the test where the folder is not there."""
    path = MATRICES / f"{name}.mtx.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not in {MATRICES}; set FINELU_MATRICES to the folder that holds it")
    return scipy.io.mmread(path).tocsr()


@pytest.fixture(autouse=True)
def direct_solvers(request, monkeypatch, without):
    """What is tested is what comes with finelu, whether or not this environment has other direct solvers; in the tests
    of AS_INSTALLED also what a user of those has, and in the tests of a solver that one."""
    embedded = getattr(request, "param", "embedded") == "embedded"
    if embedded and request.path.name not in OF_LIBRARIES:
        without("klu", "pardiso")
    if (embedded or without_gpu()) and request.path.name != "test_cudss.py":
        none = cudss.Library(None, "cuDSS is left out of this test")
        monkeypatch.setattr("finelu.kernels.cuda.runtime.cudss.library", lambda: none)
