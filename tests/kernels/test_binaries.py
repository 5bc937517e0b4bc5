"""Machine code of the kernels: how it is grouped, written and found; what is used instead of code that does not fit."""

import hashlib
import json
import os
import runpy
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy_for_cupy
import pytest
from checks import without_gpu

from finelu import ParameterError, compiling, machine_code
from finelu.kernels.cuda.runtime import binaries, instances, sources

ROOT = Path(__file__).resolve().parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "build_kernels.py"))
LAUNCH = Path(binaries.__file__).with_name("launch.py")
INT, LONG = "levels_sync_free<int, 1>", "levels_sync_free<long long, 1>"


def instance(name, code, stem="levels"):
    return TOOL["Instance"](name, code, binaries.digest(stem))


MADE = {
    "levels": {
        INT: instance("one", b"code of one"),
        "levels_sync_free<int, 2>": instance("two", b"two"),
        LONG: instance("long", b"of the long one"),
    },
    "runtime/packing": {"segment_starts": instance("starts", b"starts", "runtime/packing")},
}


@pytest.fixture
def carried(tmp_path, monkeypatch):
    """The zip of MADE for capability 9.0, as the one of the package."""
    monkeypatch.setattr(binaries, "FOLDER", tmp_path)
    monkeypatch.delenv("FINELU_KERNELS", raising=False)
    path = tmp_path / "sm_90.zip"
    TOOL["write"](path, MADE)
    binaries.archive.cache_clear()
    yield path
    binaries.archive.cache_clear()


@pytest.fixture
def lines(monkeypatch, capsys):
    """The new lines on stderr."""
    monkeypatch.delenv("FINELU_SILENT", raising=False)
    return lambda: capsys.readouterr().err.splitlines()


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """The user's cache folder, empty."""
    monkeypatch.setenv("FINELU_CACHE", str(tmp_path))
    machine_code.folder.cache_clear()
    yield tmp_path / "kernels"
    machine_code.folder.cache_clear()


def rewritten(path, member, content):
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, before in members.items():
            archive.writestr(name, content if name == member else before)


@pytest.mark.parametrize(
    ("template_id", "types"),
    [
        ("eliminate<double, int, 16, 1, SEARCH, false, true, LU>", "double,int"),
        ("pack<Complex<double>, Complex<float>, long long>", "Complex<double>,Complex<float>,long long"),
        ("gather<ulonglong2, int>", "ulonglong2,int"),
        ("count_buckets<u64, KEYS, SHARED_AGGREGATED, true>", "u64"),
        ("factor_by_warps<5, 5, true>", "plain"),
        ("wavefront_order", "plain"),
    ],
)
def test_instances_with_the_same_types_are_a_member(template_id, types):
    assert TOOL["types_of"](template_id) == types


def test_the_code_of_an_instance_is_found_in_its_member(carried):
    names = zipfile.ZipFile(carried).namelist()
    assert names == ["index.json", "levels/int", "levels/long long", "runtime/packing/plain"]
    archive = binaries.archive(90)
    for stem, made in MADE.items():
        for template_id, (name, code, _) in made.items():
            assert archive.find(stem, template_id) == (code, name)
    assert archive.find("levels", "levels_sync_free<int, 8>") is None and archive.find("scaling", INT) is None


def test_the_same_code_gives_the_same_file(carried, tmp_path):
    TOOL["write"](tmp_path / "again", MADE)
    assert (tmp_path / "again").read_bytes() == carried.read_bytes()


def test_code_of_another_text_is_not_used(carried, monkeypatch):
    index = json.loads(zipfile.ZipFile(carried).read("index.json"))
    assert index["levels"]["source"] == hashlib.sha256(sources.source("levels").encode()).hexdigest()
    monkeypatch.setattr(binaries, "source", lambda stem: sources.source(stem) + "// changed")
    binaries.digest.cache_clear()
    assert binaries.archive(90).find("levels", INT) is None
    binaries.digest.cache_clear()


def test_a_text_that_changed_while_it_was_compiled_is_refused(tmp_path):
    made = {"levels": {INT: instance("one", b"1"), LONG: TOOL["Instance"]("long", b"2", "of another text")}}
    with pytest.raises(SyntaxError, match=r"levels\.cu, or a header, has changed meanwhile"):
        TOOL["write"](tmp_path / "sm_90.zip", made)


@pytest.mark.parametrize(
    ("capability", "architecture"),
    [
        *((80, 80), (86, 80), (89, 80), (90, 90), (100, 100), (103, 100), (120, 120), (121, 120)),
        *((70, None), (75, None), (87, None), (101, None), (110, None)),
    ],
)
def test_code_runs_on_its_major_number_from_its_minor_on(capability, architecture):
    available = [int(name.removeprefix("sm_")) for name in TOOL["ARCHITECTURES"]]
    assert binaries.architecture(capability, available) == architecture


def test_a_processor_with_a_gpu_of_its_own_takes_code_that_is_made_for_it():
    assert binaries.architecture(87, [80, 86, 87]) == 87


def test_an_architecture_that_no_gpu_asks_for_is_refused(capsys):
    for name in ("compute_90", "sm_90a", "90"):
        assert TOOL["main"](["--arch", name]) == 2
        assert "as sm_90" in capsys.readouterr().err


def test_the_archive_is_that_of_the_device(carried, monkeypatch):
    assert binaries.archive(90).path == carried
    assert binaries.archive(80) is None
    monkeypatch.setenv("FINELU_KERNELS", "compile")
    binaries.archive.cache_clear()
    assert binaries.archive(90) is None
    monkeypatch.setenv("FINELU_KERNELS", "compiled")
    binaries.archive.cache_clear()
    with pytest.raises(ParameterError, match="FINELU_KERNELS='compiled'; 'compile', or nothing"):
        binaries.archive(90)
    monkeypatch.delenv("FINELU_KERNELS")
    monkeypatch.setattr(binaries, "FOLDER", carried / "nothing here")
    binaries.archive.cache_clear()
    assert binaries.archive(90) is None


DAMAGED = {
    "no zip": lambda path: path.write_bytes(b"no zip at all"),
    "cut off": lambda path: path.write_bytes(path.read_bytes()[:-30]),
    "no index": lambda path: rewritten(path, "index.json", b""),
    "no mapping": lambda path: rewritten(path, "index.json", b"[]"),
    "no digest": lambda path: rewritten(path, "index.json", b'{"levels": {}}'),
    "short member": lambda path: rewritten(path, "levels/int", b"code"),
    "changed member": lambda path: path.write_bytes(
        (data := path.read_bytes())[: (at := data.index(b"levels/int") + 20)] + b"\xff" * 8 + data[at + 8 :]
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_file_is_named_once_and_passed_over(carried, damage, lines):
    DAMAGED[damage](carried)
    archive = binaries.archive(90)
    assert archive.find("levels", INT) is None and archive.find("levels", LONG) is None
    (line,) = lines()
    assert str(carried) in line and "compiled at their first use" in line


class DriverError(Exception):
    def __init__(self, status):
        super().__init__(f"error {status}")
        self.status = status


@pytest.fixture
def launch(monkeypatch):
    """launch.py, with a stand-in for CuPy and a device of capability 9.0; `log` is what was asked of it."""
    log = []

    class Module:
        refuses = None

        def load(self, code):
            if Module.refuses and code != b"compiled":
                raise DriverError(Module.refuses)
            log.append(("loaded", code))

        def get_function(self, name):
            return SimpleNamespace(name=name, ptr=7)

    def compiled(stem, template_id):
        log.append(("compiled", template_id))
        return b"compiled", f"compiled {template_id}"

    driver = SimpleNamespace(
        CUDADriverError=DriverError,
        CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES=1,
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8,
        funcGetAttribute=lambda attribute, function: 100 * attribute,
        funcSetAttribute=lambda *given: log.append(("set", *given)),
    )
    properties = {"multiProcessorCount": 1, "major": 9, "minor": 0}
    properties |= {"sharedMemPerBlockOptin": 1000, "sharedMemPerBlock": 500}
    runtime = SimpleNamespace(getDevice=lambda: 0, getDeviceProperties=lambda device: properties)
    cuda = SimpleNamespace(driver=driver, runtime=runtime, function=SimpleNamespace(Module=Module))
    for name, stand_in in numpy_for_cupy.modules(cuda=cuda).items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    runtime = "finelu.kernels.cuda.runtime"
    monkeypatch.setitem(sys.modules, f"{runtime}.memory", SimpleNamespace(counter=None))
    monkeypatch.setitem(sys.modules, f"{runtime}.nvrtc", SimpleNamespace(machine_code=compiled))
    return SimpleNamespace(log=log, Module=Module, **runpy.run_path(str(LAUNCH)))


def test_carried_code_is_loaded_once(carried, launch):
    first, again = (launch.kernel("levels", "levels_sync_free", "int32", 1) for _ in range(2))
    assert first is again and first.name == "one"
    assert launch.log == [("loaded", b"code of one"), ("set", 7, 8, 1000 - 100)]
    assert launch.most_shared(first) == 800
    assert launch.kernel("runtime/packing", "segment_starts").name == "starts"


def test_what_is_not_carried_is_compiled(carried, launch):
    assert launch.kernel("levels", "levels_sync_free", "int32", 4).name == "compiled levels_sync_free<int, 4>"
    assert launch.log == [
        ("compiled", "levels_sync_free<int, 4>"),
        ("loaded", b"compiled"),
        ("set", 7, 8, 1000 - 100),
    ]


@pytest.mark.parametrize("status", [200, 209])
def test_code_that_the_driver_refuses_is_compiled_with_one_line(carried, launch, status, lines):
    launch.Module.refuses = status
    assert launch.kernel("levels", "levels_sync_free", "int32", 1).name == f"compiled {INT}"
    assert launch.kernel("levels", "levels_sync_free", "int64", 1).name == f"compiled {LONG}"
    (line,) = lines()
    assert str(carried) in line and f"error {status}" in line


def test_other_errors_of_the_driver_are_raised(carried, launch):
    launch.Module.refuses = 2  # out of memory
    with pytest.raises(DriverError):
        launch.kernel("levels", "levels_sync_free", "int32", 1)


@pytest.fixture
def nvrtc(cache_folder, monkeypatch):
    """A function that returns nvrtc.py as a new process has it, with stand-ins for CuPy and NVRTC; `log` has what was
    compiled."""
    version, build, log = [13, 0], ["V13.0.48"], []

    def compile_using_nvrtc(source, options, arch, filename, names, cache_in_memory):
        log.append(names[0])
        if names[0] == "wrong":
            raise ValueError("a syntax error")
        return f"code of {names[0]}".encode(), {names[0]: f"_{names[0]}"}

    class Device:
        compute_capability = "90"
        __enter__ = __exit__ = lambda *_: None

        def __init__(self, _):
            """Any number is one of this capability."""

    runtime = SimpleNamespace(getDevice=lambda: 0)
    modules = numpy_for_cupy.modules(cuda=SimpleNamespace(runtime=runtime, Device=Device), __version__="14")
    modules["cupy.cuda.compiler"] = SimpleNamespace(compile_using_nvrtc=compile_using_nvrtc)
    modules["cupy_backends.cuda.libs"] = SimpleNamespace(
        nvrtc=SimpleNamespace(
            getVersion=lambda: tuple(version),
            createProgram=lambda source, name, headers, include_names: 1,
            compileProgram=lambda program, options: None,
            getPTX=lambda program: f"// {build[0]}\n.version".encode(),
            destroyProgram=lambda program: None,
        )
    )
    for name, stand_in in modules.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    monkeypatch.setenv("FINELU_BACKGROUND", "0")
    monkeypatch.setattr(binaries, "FOLDER", cache_folder / "no wheel")
    binaries.archive.cache_clear()

    def process():
        return SimpleNamespace(
            log=log, version=version, build=build, **runpy.run_path(str(LAUNCH.with_name("nvrtc.py")))
        )

    return process


def ended():
    """Wait for the threads that compile."""
    for thread in threading.enumerate():
        if thread.name == "finelu_nvrtc":
            thread.join()


def test_what_was_compiled_is_kept_for_other_processes(nvrtc, cache_folder):
    found = nvrtc().machine_code("levels", INT)
    assert found == (f"code of {INT}".encode(), f"_{INT}")
    process = nvrtc()
    assert process.machine_code("levels", INT) == found and process.log == [INT]
    (where,) = cache_folder.iterdir()
    assert where.name.startswith("cuda.levels-") and machine_code.size() > len(found[0])
    machine_code.clear()
    assert nvrtc().machine_code("levels", INT) == found and process.log == [INT, INT]


def test_kept_code_of_another_text_or_compiler_is_not_used(nvrtc, monkeypatch):
    process = nvrtc()
    process.machine_code("levels", INT)
    process.version[1] = 1
    process = nvrtc()
    process.machine_code("levels", INT)
    assert process.log == [INT, INT]
    process.build[0] = "V13.0.88"
    nvrtc().machine_code("levels", INT)
    assert process.log == [INT, INT, INT]
    monkeypatch.setattr(binaries, "source", lambda stem: sources.source(stem) + "// changed")
    binaries.digest.cache_clear()
    nvrtc().machine_code("levels", INT)
    binaries.digest.cache_clear()
    assert process.log == [INT, INT, INT, INT]


@pytest.mark.parametrize("content", [b"", b"1\n", b"no head", b"[]\ncode", b'[1, "levels", "name"]\ncode'])
def test_damaged_kept_code_is_named_and_compiled_anew(nvrtc, cache_folder, lines, content):
    found = nvrtc().machine_code("levels", INT)
    (path,) = cache_folder.glob("*/*.cubin")
    path.write_bytes(content)
    lines()  # those of the compilation
    assert nvrtc().machine_code("levels", INT) == found
    assert [line for line in lines() if str(path) in line and "damaged" in line]
    assert nvrtc().machine_code("levels", INT) == found and len(nvrtc().log) == 2


def test_compilation_is_reported_and_its_time_is_counted(nvrtc, lines, monkeypatch):
    monkeypatch.setattr(compiling, "_said", False)
    seconds = compiling.compile_seconds()
    nvrtc().machine_code("levels", INT)
    assert lines() == [compiling.BEGUN] and compiling.compile_seconds() > seconds


def test_an_error_of_the_compiler_is_raised_each_time(nvrtc):
    process = nvrtc()
    for _ in range(2):
        with pytest.raises(ValueError, match="a syntax error"):
            process.machine_code("levels", "wrong")
    assert process.log == ["wrong", "wrong"]


def test_the_common_instances_of_a_type_are_compiled_ahead(nvrtc, cache_folder, monkeypatch):
    monkeypatch.setenv("FINELU_BACKGROUND", "1")
    process = nvrtc()
    monkeypatch.setitem(process._compile_ahead.__globals__, "available_cores", lambda: 3)
    process.machine_code("levels", INT)
    assert process.log == [INT]  # no type of values
    process.machine_code("products", "product<float, int>")
    ended()
    listed = instances.common("float", "int")
    assert sorted(process.log) == sorted({INT, "product<float, int>", *(name for _, name in listed)})
    for stem, name in listed:
        assert process.machine_code(stem, name)[0] == f"code of {name}".encode()
    assert len(process.log) == len({name for _, name in listed} | {INT})


def test_nothing_is_compiled_ahead_on_demand_or_in_a_forked_child(nvrtc, monkeypatch):
    process = nvrtc()
    monkeypatch.setitem(process._compile_ahead.__globals__, "available_cores", lambda: 3)
    process.machine_code("products", "product<float, int>")
    monkeypatch.setenv("FINELU_BACKGROUND", "1")
    process._after_fork()
    process.machine_code("products", "product<double, int>")
    ended()
    assert process.log == ["product<float, int>", "product<double, int>"]


@pytest.mark.parametrize("value", instances.VALUES)
@pytest.mark.parametrize("index", instances.INDICES)
def test_common_instances_are_instances(value, index):
    for stem, name in instances.common(value, index):
        one_shape = stem in ("elimination", "candidates") and (value, index) not in (
            ("double", "int"),
            ("float", "int"),
        )
        if not one_shape:  # as these have in other types
            assert name in instances.CARRIED[stem]


def test_a_wheel_carries_what_make_cuda_compiles_and_nothing_twice():
    assert instances.CARRIED.keys() == instances.INSTANCES.keys()
    for stem, listed in instances.CARRIED.items():
        assert len(set(listed)) == len(listed), stem
        assert set(instances.INSTANCES[stem]) <= set(listed)


# What the launchers choose for sizes, on a machine without CuPy, against what a wheel carries.
CHOICES = """
import sys
import numpy_for_cupy
sys.modules.update(numpy_for_cupy.modules())
from finelu.kernels.cuda import blocks, elimination, selection, stencil, sweeps, vectors
from finelu.kernels.cuda.runtime import instances, launch, row_products, schedule

carried = {stem: set(listed) for stem, listed in instances.CARRIED.items()}
asked = set()
for dtype in ("float32", "float64"):
    value = launch.CUDA_TYPES[dtype]
    for kind in ("LU", "CHOLESKY"):
        for longest in (1, 5, 8, 16, 17, 32, 33, 64, 100, 128, 129, 500):
            for mean in (1, 4, 10, 30, 100, 500):
                for enough in (3000, 30, 16, 6, 0.003):
                    lanes, per_lane = elimination._row_shape(longest, mean, enough, kind == "LU")
                    short = longest <= lanes * per_lane
                    for ahead in ("true",) if not short else ("false", "true"):
                        for update in ("SEARCH", "TABLE"):
                            template = f"{value}, int, {lanes}, {per_lane}, {update}, {ahead}, {str(short).lower()}"
                            asked.add(("elimination", f"eliminate<{template}, {kind}>"))
    for mean in (1, 5, 6, 12, 13, 24, 25, 100):
        for wanted in (1, 20, 40, 80, 200, 500, 5000):
            lanes, slots = row_products.shape(mean, wanted)
            for stem, name in (("sweeps", "short_sweep"), ("candidates", "short_candidates")):
                asked.add((stem, f"{name}<{value}, int, {lanes}, {slots}, false, true>"))
    for lanes, per_lane in sweeps.ROW_SHAPES:
        asked.add(("sweeps", f"row_sweeps<{value}, int, {lanes}, {per_lane}, true>"))
    for n in (*range(1, 10), 16, 32):
        team, batch = blocks.team_for(n), blocks.batch_for(n, dtype)
        asked.add(("blocks", f"bsr_factor<{value}, int, {n}, {team.per_thread}, {batch}, true>"))
        asked.add(("blocks", f"bsr_solve<{value}, int, {n}, {team.per_thread}, TRANSPOSED>"))
        asked.add(("blocks", f"bsr_product<{value}, int, {n}, {team.per_thread}, RESIDUAL>"))
        asked.add(("blocks", f"bsr_product<{value}, int, {n}, {team.per_thread}, SUBTRACT>"))
        asked.add(("blocks", f"invert_blocks<{value}, {n}, {team.per_thread}, true>"))
        asked.add(("blocks", f"blocks_times<{value}, {n}, {team.per_thread}, PLAIN>"))
    for n in (*range(1, 9), 16, 32):
        for threads in (stencil.NARROW, stencil.WIDE):
            cells = stencil.cells_of_a_block(n, threads)
            asked.add(("stencil", f"factor_by_cells<{value}, {n}, {cells}, true, false>"))
            asked.add(("stencil", f"solve_by_cells<{value}, {n}, {cells}, TRANSPOSED>"))
        asked.add(("stencil", f"stencil_residual<{value}, {n}, {stencil.cells_of_a_block(n)}>"))
    for tiles in range(2, stencil.MOST_TILES + 1):
        asked.add(("stencil", f"factor_by_tiles<{value}, {tiles}, true>"))
    for mean in range(200):
        asked.add(("triangular", f"trsv_sync_free<{value}, {value}, int, {schedule.lanes_for(mean)}>"))
    order = "MAGNITUDES"
    asked.add(("selection", f"count_buckets<{value}, {order}, LANES, true>"))
    asked.add(("selection", f"count_buckets<{selection.KEYS[dtype]}, KEYS, LANES, true>"))
asked |= {("vectors", f"gather<{word}, int>") for word in vectors.WORDS.values()}
print(*(f"{stem}: {name}" for stem, name in sorted(asked) if name not in carried[stem]), sep="\\n", end="")
"""


def test_what_launchers_choose_for_usual_sizes_is_carried():
    command = [sys.executable, "-c", CHOICES]
    path = f"{ROOT / 'tests'}:{ROOT / 'src'}"
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": path})
    assert (done.stdout, done.stderr) == ("", "")


@pytest.fixture
def gpu():
    if without_gpu():
        pytest.skip(without_gpu())
    from finelu.kernels.cuda.runtime import launch

    before = dict(launch._kernels)
    launch._kernels.clear()
    binaries.archive.cache_clear()
    binaries.digest.cache_clear()
    yield launch
    launch._kernels.clear()
    launch._kernels.update(before)
    binaries.archive.cache_clear()
    binaries.digest.cache_clear()


def residuals(launch):
    """r = b - A x and its bound, by products.cu, in float32 and with numbers that are subnormal, too."""
    import cupy

    import finelu as fl
    from finelu.kernels.cuda import products

    A = fl.gallery.problem("poisson5:20").astype("float32")
    indptr, indices, data = (cupy.asarray(v) for v in (A.indptr, A.indices, A.data * 1e-38))
    x, b = (cupy.linspace(low, 1, A.shape[0], dtype="float32") for low in (0.1, -1))
    r, bound = cupy.empty_like(b), cupy.empty_like(b)
    products.residual(indptr, indices, data, x, b * 1e-38, 1.0, r, bound)
    return np.concatenate([r.get(), bound.get()])


@pytest.mark.gpu
def test_code_from_a_zip_gives_the_bits_of_what_is_compiled(gpu, tmp_path, monkeypatch):
    from cupy.cuda.compiler import compile_using_nvrtc

    monkeypatch.setattr(binaries, "FOLDER", tmp_path)
    monkeypatch.delenv("FINELU_KERNELS", raising=False)
    compiled = residuals(gpu)
    capability, made = gpu.device_limits()["capability"], {}
    for stem, function, arguments, _ in gpu._kernels:
        names = [gpu.CUDA_TYPES.get(str(a), str(a)) for a in arguments]
        template_id = f"{function}<{', '.join(names)}>"
        options = (*sources.OPTIONS, *TOOL["OF_CUPY"][:1])
        code, mapping = compile_using_nvrtc(sources.source(stem), options, None, "a.cu", (template_id,))
        instance = TOOL["Instance"](mapping[template_id], code, binaries.digest(stem))
        made.setdefault(stem, {})[template_id] = instance
    TOOL["write"](tmp_path / f"sm_{capability}.zip", made)
    binaries.archive.cache_clear()
    gpu._kernels.clear()
    with monkeypatch.context() as patch:
        patch.setattr(gpu, "_compiled", None)
        assert residuals(gpu).tobytes() == compiled.tobytes()

    gpu._kernels.clear()
    monkeypatch.setattr(binaries, "source", lambda stem: sources.source(stem) + "// changed")
    binaries.digest.cache_clear()
    used, compile_one = [], gpu._compiled
    monkeypatch.setattr(gpu, "_compiled", lambda *key: used.append(key) or compile_one(*key))
    assert residuals(gpu).tobytes() == compiled.tobytes() and used


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_usual_calls_ask_for_nothing_that_is_not_carried(gpu, monkeypatch, dtype):
    import cupy
    import cupyx.scipy.sparse as csp

    import finelu as fl

    asked, made = set(), gpu._made
    monkeypatch.setattr(gpu, "_made", lambda *key: asked.add(key) or made(*key))
    for name in ("poisson7:12", "convection_diffusion:12"):
        A = csp.csr_matrix(fl.gallery.problem(name).astype(dtype))
        b = cupy.ones(A.shape[0], dtype)
        recipes = [fl.ILU0(), fl.ILUK(), fl.ParILU(), fl.ParILUT(), fl.Jacobi(), fl.BlockJacobi(), fl.Schwarz()]
        for recipe in recipes:
            F = recipe.factor(A)
            F.update(A)
            for method in (fl.gmres, fl.bicgstab, fl.fgmres):
                method(A, b, M=F, maxiter=8)
        fl.solve(A, b, device="cuda", verbose=False)
    for recipe in (fl.IC0(), fl.ParIC(), fl.ParICT()):
        A = csp.csr_matrix(fl.gallery.problem("poisson7:12").astype(dtype))
        fl.cg(A, b, M=recipe.factor(A), maxiter=8)
    assert asked
    assert [(stem, name) for stem, name in sorted(asked) if name not in instances.CARRIED.get(stem, ())] == []


# Methods and recipes in a process of their own: prints where CuPy compiles a kernel, and which instances a wheel does
# not carry. CuPy's cache on the disk is not read. Left out: bicg, which transposes A by CuPy; recipes that use CuPy's
# elementwise functions, such as Jacobi and ILUT; complex numbers, of which a wheel carries fewer instances.
COMPILED = """
import os, sys, traceback
os.environ["CUPY_CACHE_IN_MEMORY"] = "1"
import cupy, cupyx.scipy.sparse as csp, numpy as np
import finelu as fl
from cupy_backends.cuda.libs import nvrtc
from finelu.kernels.cuda.runtime import instances, launch
from finelu.krylov import OWN

dtype = sys.argv[1]
def moved(name):
    A = fl.gallery.problem(name).astype(dtype).tocsr()
    return csp.csr_matrix(tuple(map(cupy.asarray, (A.data, A.indices, A.indptr))), shape=A.shape)
definite, general = moved("poisson7:12"), moved("convection_diffusion:12")
b = cupy.asarray(np.ones(definite.shape[0], dtype))

compile_program, made = nvrtc.compileProgram, launch._made
def compiled(*arguments):
    frames = [frame for frame in traceback.extract_stack() if "finelu" in frame.filename]
    if not any(frame.filename.endswith("runtime/nvrtc.py") for frame in frames):
        print("CuPy:", *(f"{frame.filename}:{frame.lineno}" for frame in frames[-2:]))
    return compile_program(*arguments)
def make(stem, name):
    if name not in instances.CARRIED[stem]:
        print(stem, name)
    return made(stem, name)
nvrtc.compileProgram, launch._made = compiled, make

for A in (definite, general):
    fl.solve(A, b, verbose=False)
for method in OWN:
    if method.name not in ("bicg", "bicgstabl", "idrs"):  # these call functions of CuPy, which compiles them
        method.solve(definite if method.needs else general, b, maxiter=20, rtol=1e-3)
for recipe in (fl.IC0(), fl.ILU0(), fl.MILU0(), fl.Schwarz()):
    A = definite if recipe.hermitian else general
    F = recipe.factor(A)
    F.solve(b)
    F.update(A).solve(b, "N" if recipe.name == "schwarz" else "T")
    (fl.cg if recipe.hermitian else fl.gmres)(A, b, M=F, maxiter=20)
"""


@pytest.mark.gpu
def test_calls_of_a_wheel_compile_nothing(gpu):
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", COMPILED, "float64"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
