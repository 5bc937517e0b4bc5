"""Machine code of the CPU's kernels that a wheel carries: by record, by damage, and that it has all that calls need."""

import json
import os
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from programs import ended

from finelu.kernels.cpu.runtime.store import Damaged, Record, records
from finelu.machine_code import LIMIT

TOOL = Path(__file__).resolve().parents[2] / "tools" / "build_cpu_kernels.py"
RECORD = Record(
    "array(float64, 1d, C) | int64", "_ZN7cpython", "_ZN6finelu", b"constants", b"types", b"\x7fELF\n{code}\n"
)
SOLVED = """
import numpy as np
import finelu as fl
from finelu.kernels.cpu.vectors import inner

for dtype in ("float32", "float64"):
    inner(np.ones(5, dtype), np.ones(5, dtype))
A = fl.gallery.poisson5(5)
print(fl.Jacobi().factor(A).solve(np.arange(25.0)).tolist())
"""
COMPILED = """
from finelu.kernels.cpu.vectors import sum_of_squares

sum_of_squares(np.ones(5))
"""
CALLED = """
import sys
from pathlib import Path

folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))
(folder / "kernels_of_a_test.py").write_text('''
from finelu.kernels.cpu.runtime.jit import compiled

@compiled
def inner(x):
    return x + 1

@compiled
def outer(x):
    return 2 * inner(x)
''')
import kernels_of_a_test as kernels

print([getattr(kernels, name)(x) for name in sys.argv[2].split() for x in (3, 0.5)])
"""
CARRIED = """
import sys
from pathlib import Path
from finelu.kernels.cpu.runtime import store

store.BINARIES = Path(sys.argv[1])
"""


def test_records_lie_behind_one_another():
    other = RECORD._replace(signature="int64", code=b"")
    assert list(records(RECORD.packed() + other.packed() + RECORD.packed())) == [RECORD, other, RECORD]
    assert list(records(b"")) == []


@pytest.mark.parametrize(
    "damage",
    [
        lambda packed: packed[:-1],
        lambda packed: packed[1:],
        lambda packed: packed[:-3] + b"x" + packed[-2:],
        lambda packed: packed + b"more",
        lambda packed: packed.replace(b"_ZN7", b"_ZN8"),
        lambda packed: b"[1, 2]\n" + packed,
        lambda packed: b"\n",
    ],
)
def test_what_is_no_record_is_damaged(damage):
    with pytest.raises(Damaged):
        list(records(damage(RECORD.packed())))


@pytest.fixture(scope="module")
def solved(tmp_path_factory):
    """A cache folder that a process has filled, and what it printed."""
    folder = tmp_path_factory.mktemp("cache")
    status, out, err = ended(SOLVED, FINELU_CACHE=str(folder), FINELU_KERNELS="compile", FINELU_SILENT="1")
    assert (status, err) == (0, "")
    return folder, out


def test_others_may_read_what_is_kept(solved):
    old = os.umask(0)
    os.umask(old)
    assert {path.stat().st_mode & 0o777 for path in solved[0].rglob("*.code")} == {0o666 & ~old}


@pytest.mark.parametrize(("first", "libraries"), [("inner outer", 0), ("outer inner", 2)])
def test_a_kernel_serves_python_and_another_kernel(tmp_path, first, libraries):
    """Its code for another kernel has no entry for Python, which then compiles it anew."""

    def answers(names):
        found = {"inner": "4, 1.5", "outer": "8, 3.0"}
        status, out, err = ended(CALLED, str(tmp_path), names, FINELU_CACHE=str(tmp_path), FINELU_KERNELS="compile")
        assert (status, out, err) == (0, f"[{', '.join(found[name] for name in names.split())}]\n", "")
        return {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*-*/*")}

    kept = answers(first)
    assert [sum(path.suffix == ending for path in kept) for ending in (".code", ".library")] == [4, libraries]
    for names in (first, "outer inner", "outer", "inner"):
        assert answers(names) == kept


def test_options_that_change_code_have_code_of_their_own(solved, tmp_path):
    folder = shutil.copytree(solved[0], tmp_path / "cache")
    given = {"FINELU_CACHE": str(folder), "FINELU_KERNELS": "compile", "FINELU_SILENT": ""}
    assert ended(SOLVED, **given) == (0, solved[1], "")
    for option in ({"NUMBA_OPT": "1"}, {"NUMBA_CPU_FEATURES": "+sse2"}):
        assert "compiled" in ended(SOLVED, **given, **option)[2]


def test_a_damaged_file_is_told_of_and_compiled_anew(solved, tmp_path):
    folder = shutil.copytree(solved[0], tmp_path / "cache")
    file = next(iter(folder.rglob("*.code")))
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    given = {"FINELU_CACHE": str(folder), "FINELU_KERNELS": "compile", "FINELU_SILENT": ""}
    status, out, err = ended(SOLVED, **given)
    assert (status, out) == (0, solved[1]) and f"finelu: {file} is damaged" in err and "compiled" in err
    assert ended(SOLVED, **given) == (0, solved[1], "")


def test_code_that_was_used_longest_ago_leaves_a_full_folder(solved, tmp_path):
    kernels = shutil.copytree(solved[0], tmp_path / "cache") / "kernels"
    used = list(kernels.iterdir())
    unused = kernels / f"unused-{0:020}"
    unused.mkdir()
    with open(unused / "large.code", "wb") as file:
        file.truncate(LIMIT)  # takes no space on the disk
    for each in (*used, unused):
        os.utime(each, (0, 0))
    given = {"FINELU_CACHE": str(kernels.parent), "FINELU_KERNELS": "compile", "FINELU_SILENT": "1"}
    assert ended(SOLVED + COMPILED, **given)[:2] == (0, solved[1])
    assert all(each.exists() for each in used) and not unused.exists()


@pytest.fixture(scope="module")
def carried(solved, tmp_path_factory):
    """The archive of what lies in that cache folder."""
    if not TOOL.exists():
        pytest.skip("tools/ comes with a checkout")
    pack = runpy.run_path(str(TOOL))["pack"]
    path, count = pack(solved[0] / "kernels", "any", [], tmp_path_factory.mktemp("binaries"))
    assert count == len(list(solved[0].rglob("*.code"))) == 3
    with zipfile.ZipFile(path) as archive:
        found = {name.partition("-")[0]: archive.read(name) for name in archive.namelist()}
    assert json.loads(found.pop("index.json"))["sources"].keys() == {"inspection", "vectors"}
    signatures = {name: {record.signature for record in records(packed)} for name, packed in found.items()}
    assert signatures.keys() == {"inspection._inspect_by_one", "vectors.inner"}
    two = (f"array({dtype}, 1d, C) | array({dtype}, 1d, C)" for dtype in ("float32", "float64"))
    assert signatures["vectors.inner"] == set(two)
    return path


def with_archive(path, cache, **environment):
    given = {"FINELU_CACHE": str(cache), "FINELU_KERNELS": "", "FINELU_SILENT": "", **environment}
    return ended(CARRIED + SOLVED, str(path.parent), **given)


def test_nothing_is_compiled_that_an_archive_has(solved, carried, tmp_path):
    assert with_archive(carried, tmp_path) == (0, solved[1], "")
    assert not list(tmp_path.rglob("*.code"))
    status, out, err = with_archive(carried, tmp_path, FINELU_KERNELS="compile")
    assert (status, out) == (0, solved[1]) and "compiled" in err


def changed(path, made, **index):
    """The archive with another index, or with members that are damaged."""
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(made, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name != "index.json":
                content = content if index else b"nothing"
            new.writestr(name, json.dumps(json.loads(content) | index) if name == "index.json" else content)
    return made


def test_what_was_made_for_others_or_is_damaged_is_not_used(solved, carried, tmp_path):
    folder = tmp_path / "binaries"
    folder.mkdir()
    others = {
        "python": {"made_for": "cpython-311-numba0.1"},
        "system": {"triple": "riscv64"},
        "processor": {"features": ["of-another-processor"]},
        "nonsense": {"features": 5},
        "sources": {"sources": dict.fromkeys(("inspection", "vectors"), "of another version")},
    }
    ending = carried.name.removeprefix("any")
    for name, index in others.items():
        changed(carried, folder / (name + ending), **index)
    for name, content in {"empty": b"", "short": b"PK"}.items():
        (folder / (name + ending)).write_bytes(content)
    status, out, err = with_archive(folder / carried.name, tmp_path / "cache")
    assert (status, out) == (0, solved[1]) and "finelu: compiling kernels" in err
    damaged = [folder / (name + ending) for name in ("empty", "nonsense", "short")]
    lines = [f"finelu: {path} cannot be used" for path in damaged]
    lines += [f"finelu: {folder / ('sources' + ending)} was made of other sources"]
    assert all(err.count(line) == 1 for line in lines) and err.count("finelu: /") == len(lines)


@pytest.mark.parametrize(
    ("index", "lines"), [({}, ["{} cannot be used"]), ({"sources": {}}, [])], ids=["damaged members", "no sources"]
)
def test_an_archive_without_the_kernels_is_named_once(solved, carried, tmp_path, index, lines):
    (tmp_path / "binaries").mkdir()
    other = changed(carried, tmp_path / "binaries" / carried.name, **index)
    status, out, err = with_archive(other, tmp_path / "cache")
    assert (status, out) == (0, solved[1]) and "finelu: compiling kernels" in err
    assert err.count("finelu: /") == len(lines) and all(f"finelu: {line.format(other)}" in err for line in lines)


PUBLIC_CALLS = Path(__file__).with_name("carried_calls.py")
OTHERS = ["float32", "complex128", "complex64", "float64 single", "complex128 single", "float64 blocks", "float64 long",
          "complex64 long"]  # fmt: skip


@pytest.mark.timeout(1800)  # where nothing is compiled yet
@pytest.mark.parametrize(
    ("double", "single"),
    [("float64", "float32"), pytest.param("complex128", "complex64", marks=pytest.mark.slow)],
    ids=["real", "complex"],
)
def test_what_is_compiled_in_double_precision_is_compiled_in_single(double, single):
    program = [sys.executable, str(PUBLIC_CALLS)]
    runs = [
        subprocess.Popen([*program, name, "pieces"], stdout=subprocess.PIPE, text=True) for name in (double, single)
    ]
    out = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    names = [{line.rpartition("-")[0] for line in text.splitlines()} for text in out]
    assert len(names[0]) > 150 and names[0] == names[1]


@pytest.mark.timeout(1800)  # where nothing is compiled yet
@pytest.mark.parametrize("words", ["float64", *(pytest.param(words, marks=pytest.mark.slow) for words in OTHERS)])
def test_a_wheel_has_the_kernels_of_all_public_calls(words):
    program = [sys.executable, str(PUBLIC_CALLS), *words.split()]
    done = subprocess.run(program, capture_output=True, text=True, env=os.environ | {"FINELU_KERNELS": "compile"})
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
