"""The first calls of a process: what is compiled, where it is kept or cannot be, and what stderr says of it."""

import io
import json
import os
import pty
import re
import shutil
import sys
from pathlib import Path

import pytest
from programs import WAIT, New, ended

import finelu as fl
from finelu import compiling

ENDINGS = ".code", ".library"  # of the files of a compiled kernel
PLAIN = """
import sys
from finelu.cli import main

sys.exit(main(sys.argv[1:]))
"""
SOLVE = ("solve", "gallery:poisson7:6", "--recipe", "jacobi", "--json")
CALLS = """
import sys
import numpy as np
import finelu as fl

A, b = fl.gallery.poisson5(5), np.ones(25)
"""
# With as few kernels as there are in any call
USE = CALLS + "print((4 * fl.Jacobi().factor(A).solve(b)).tolist() == b.tolist(), fl.compiling.kept())"
DONE = re.compile(r"finelu: compiled (\d+ kernels|1 kernel) in \d+\.\d s\n")


def run(code, *words, **environment):
    """(status, stdout, stderr) of a program with a cache folder of its own, or none."""
    return ended(code, *words, **{"FINELU_SILENT": "", "FINELU_KERNELS": "compile", **environment})


def kept(folder):
    """What was compiled into a folder, with the moment of it."""
    return {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*.*") if path.suffix in ENDINGS}


@pytest.mark.parametrize(
    "given", [{"HOME": "/proc/nowhere"}, {"FINELU_CACHE": "/dev/null/cache"}], ids=["no home", "no folder"]
)
def test_without_a_folder_for_kernels_every_process_compiles_for_itself(given):
    unset = dict.fromkeys(("FINELU_CACHE", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"), "")
    status, out, err = run(USE, **unset | given)
    assert (status, out) == (0, "True False\n")
    assert err.startswith(compiling.BEGUN + "\n") and err.endswith(compiling.EACH_TIME + "\n")


def test_a_folder_that_cannot_be_written_any_more_is_as_none(tmp_path):
    no_more = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"  # an OSError if a file grows
    assert run(no_more + USE, FINELU_CACHE=str(tmp_path))[:2] == (0, "True False\n")
    assert kept(tmp_path) == {}


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A cache folder that a process has filled by two solves, what stderr said, and the two reports."""
    folder = tmp_path_factory.mktemp("kernels")
    code = CALLS + "s, t = fl.solve(A, b), fl.solve(A, b)\nprint(s.explain(), s.timings, t.timings, sep='\\n')"
    status, out, err = run(code, FINELU_CACHE=str(folder))
    assert status == 0
    return folder, err, out


@pytest.fixture
def some_missing(filled, tmp_path):
    """Such a folder without the kernel that takes a matrix, which each call needs, and one that `solve` needs later."""
    folder = shutil.copytree(filled[0], tmp_path / "cache")
    for missing in ("inspection._inspect_by_one", "products._residual"):
        (kernel,) = folder.rglob(f"{missing}-*")
        shutil.rmtree(kernel)
    return str(folder)


def test_a_solve_says_once_that_kernels_are_compiled_and_how_long_it_took(filled):
    _, err, report = filled
    first, *others = err.splitlines(keepends=True)
    assert first == compiling.BEGUN + "\n" and len(others) == 1 and DONE.fullmatch(others[0])
    *lines, first, second = report.splitlines()
    first, second = eval(first), eval(second)
    assert 0 < first["compile"] <= first["solve"] and second["compile"] == 0
    assert any(f"compiling or loading kernels, once {first['compile']:.2g} s" in line for line in lines)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("fl.solve(A, b, verbose=False)", False),
        ("fl.solve(A, b, watch=lambda *_: None)", True),
        ("fl.Jacobi().factor(A)", True),
        ("fl.cg(A, b, maxiter=0)", True),
        ("import os; os.environ['FINELU_SILENT'] = '1'; fl.Jacobi().factor(A)", False),
    ],
)
def test_every_call_says_the_same_lines_and_verbose_false_none(some_missing, call, said):
    status, out, err = run(CALLS + call, FINELU_CACHE=some_missing)
    assert (status, out) == (0, "")
    assert err.startswith(compiling.BEGUN + "\n") and DONE.search(err) if said else err == ""


def test_the_command_line_says_it_too(some_missing):
    words = ("solve", "gallery:poisson5:5", "--json")
    status, out, err = run(PLAIN, *words, FINELU_CACHE=some_missing)
    assert (status, err.partition("\n")[0]) == (0, compiling.BEGUN)
    assert json.loads(out)["converged"] and json.loads(out)["compile_seconds"] > 0


def test_kernels_of_others_are_not_told_of(tmp_path):
    assert run("import finelu, numba; numba.njit(lambda x: x)(1)", FINELU_CACHE=str(tmp_path)) == (0, "", "")


def test_a_terminal_shows_the_lines(some_missing):
    terminal, end_of_it = pty.openpty()
    given = {"FINELU_SILENT": "", "FINELU_CACHE": some_missing, "FINELU_KERNELS": "compile"}
    status = New(CALLS + "fl.Jacobi().factor(A)", stderr=os.ttyname(end_of_it), **given).wait(WAIT)
    os.close(end_of_it)
    shown = os.read(terminal, 4096).decode().replace("\r", "")
    os.close(terminal)
    assert status == 0 and shown.startswith(compiling.BEGUN + "\n")


class Refusing:
    def write(self, text):
        raise OSError(text)


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, closed(), Refusing()], ids=["none", "closed", "a pipe without a reader"])
def test_a_stderr_that_takes_nothing_does_no_harm(meanwhile, monkeypatch, stream):
    meanwhile(sys, stderr=stream)
    monkeypatch.delenv("FINELU_SILENT", raising=False)
    assert not compiling.tell("a line")


def test_without_the_compiler_there_is_one_line():
    said = "NUMBA_DISABLE_JIT is set, but the kernels of the CPU need Numba's compiler; unset it."
    assert run(PLAIN, *SOLVE, NUMBA_DISABLE_JIT="1") == (2, json.dumps({"error": said}) + "\n", "")
    assert run(PLAIN, *SOLVE[:-1], NUMBA_DISABLE_JIT="1") == (2, "", f"finelu: {said}\n")


def test_two_processes_compile_into_one_empty_folder_at_once(tmp_path):
    code = CALLS + "x = fl.Jacobi().factor(A).solve(b)\nprint((4 * x).tolist() == b.tolist(), x.tolist())"
    given = {"FINELU_CACHE": str(tmp_path), "FINELU_SILENT": "1", "FINELU_KERNELS": "compile"}
    both = [New(code, **given) for _ in range(2)]
    first, second = ((*process.communicate(timeout=WAIT), process.returncode) for process in both)
    assert first == second and first[0].startswith("True") and first[1:] == ("", 0)
    before = kept(tmp_path)
    assert before and run(code, **given) == (0, first[0], "")
    assert kept(tmp_path) == before


@pytest.mark.parametrize("name", ["FINELU_CACHE", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"])
def test_the_folder_is_what_the_environment_says(tmp_path, name):
    unset = dict.fromkeys(("FINELU_CACHE", "NUMBA_CACHE_DIR", "XDG_CACHE_HOME"), "")
    code = "from finelu.warmup import kernel_folder\nprint(kernel_folder())"
    below = {"FINELU_CACHE": "kernels", "NUMBA_CACHE_DIR": ".", "XDG_CACHE_HOME": "finelu/kernels"}
    expected = tmp_path / below.get(name, ".cache/finelu/kernels")
    assert run(code, **unset | {name: str(tmp_path)}) == (0, f"{expected}\n", "")


def test_kernels_are_read_from_a_folder_that_cannot_be_written(filled, tmp_path):
    # As in an image that root warmed up: a file system that takes nothing more
    code = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n" + CALLS + "fl.solve(A, b)"
    assert run(code, FINELU_CACHE=str(filled[0])) == (0, "", "")


LONG = """
import sys

sys.path.insert(0, sys.argv[1])
import numpy as np
import finelu
from finelu.kernels import monitor
from finelu.kernels.cpu import recurrences, vectors

n = 3 * vectors.CHUNK + 1
state, one, p = np.zeros(16, np.int32), np.ones(1), np.zeros(n)
state[monitor.CODE] = monitor.RUNNING
recurrences._long_direction(state, one, one, np.ones(n), p, None, None)
print(finelu.__file__, vectors.CHUNK, p.all())
"""


def test_kernels_are_compiled_again_only_where_a_constant_has_changed_also_of_another_file(tmp_path):
    # Two checkouts with one folder for kernels: the second finds the first's, and the first finds its own again.
    def done(checkout, chunk):
        package = tmp_path / checkout / "finelu"
        if not package.exists():
            shutil.copytree(Path(fl.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
        vectors = package / "kernels" / "cpu" / "vectors.py"
        text, found = re.subn(r"^CHUNK = [\d*]+", f"CHUNK = {chunk}", vectors.read_text(), flags=re.M)
        assert found == 1
        vectors.write_text(text)
        given = {"FINELU_CACHE": str(tmp_path / "cache"), "FINELU_SILENT": "1"}
        assert run(LONG, str(tmp_path / checkout), **given) == (0, f"{package / '__init__.py'} {chunk} True\n", "")
        return kept(tmp_path / "cache")

    before = done("one", 2**14)
    after = done("one", 2**10)
    assert before and before.items() < after.items()
    assert done("two", 2**14) == done("one", 2**14) == done("two", 2**10) == after


@pytest.mark.slow
def test_after_a_warmup_nothing_is_left_to_compile(tmp_path):
    given = {"FINELU_CACHE": str(tmp_path)}
    status, out, err = run(PLAIN, "warmup", "--json", **given)
    found = json.loads(out)
    assert (status, err) == (0, "") and found["seconds"] >= found["compile_seconds"] > 0
    before = kept(tmp_path)
    assert found["folder"] == str(tmp_path / "kernels") and len(before) > 100
    for recipe in ("auto", "ilu0", "ic0", "ilut", "multilevel", "parilut"):
        words = ("solve", "gallery:convection_diffusion:12", "--recipe", recipe, "--json")
        words = (*words[:1], "gallery:poisson7:12", *words[2:]) if recipe == "ic0" else words
        assert json.loads(run(PLAIN, *words, **given)[1])["converged"] and kept(tmp_path) == before, recipe
    larger = ("solve", "gallery:poisson5:50", "--recipe", "sparse_lu", "--json")  # counted before it is factored
    assert json.loads(run(PLAIN, *larger, **given)[1])["converged"] and kept(tmp_path) == before


def test_a_warmup_says_how_long_it_took_and_where_the_kernels_are(meanwhile, capsys):
    from finelu import warmup
    from finelu.cli import main

    asked = []
    meanwhile(warmup, pieces=lambda dtype: [(f"piece of {dtype}", lambda: asked.append(dtype))])
    assert main(["warmup"]) == 0
    out = capsys.readouterr().out
    assert asked == ["float64"] and out.startswith("took ") and warmup.kernel_folder() in out.replace("\n", "")
    assert main(["warmup", "--all"]) == 0
    assert asked[1:] == list(warmup.DTYPES)
    meanwhile(compiling, _kept=False)
    assert main(["warmup"]) == 1 and "set FINELU_CACHE" in capsys.readouterr().out


def test_clear_empties_the_folder_of_kernels_and_no_other(some_missing):
    other_folder = Path(some_missing) / "kernels" / "notes"
    other_folder.mkdir()
    (other_folder / "mine.txt").write_text("kept")
    status, out, err = run(PLAIN, "warmup", "--clear", "--json", FINELU_CACHE=some_missing)
    assert (status, err) == (0, "") and json.loads(out)["removed_bytes"] > 1e5
    assert kept(some_missing) == {} and [path.name for path in other_folder.iterdir()] == ["mine.txt"]
    assert "removed 0.0 MB" in run(PLAIN, "warmup", "--clear", FINELU_CACHE=some_missing)[1]


def test_nothing_is_printed_where_nothing_was_compiled(capsys):
    A = fl.gallery.poisson5(5)
    fl.solve(A, [1.0] * 25)
    capsys.readouterr()
    solution = fl.solve(A, [1.0] * 25)
    assert solution.timings["compile"] == 0 and "ompiling" not in solution.explain() and capsys.readouterr().err == ""
