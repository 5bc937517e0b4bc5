"""finelu in processes: where compiled kernels are kept or cannot be, what is said of it, spawn and fork."""

import fcntl
import io
import json
import multiprocessing
import os
import pty
import re
import runpy
import shutil
import subprocess
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from types import SimpleNamespace

import numba
import numpy as np
import pytest
from programs import WAIT, New

import finelu as fl
from finelu.kernels import compiling
from finelu.kernels.cpu.runtime import jit as cache

# Replaces Numba's own folders: those of a read-only package without a home folder
NOWHERE = """
import sys
from numba.core.caching import InTreeCacheLocator, UserWideCacheLocator

for locator in (InTreeCacheLocator, UserWideCacheLocator):
    locator.get_cache_path = lambda self: "/proc/nowhere"
"""
CLI = """
from finelu.cli import main

sys.exit(main(sys.argv[1:]))
"""
PLAIN = "import sys\n" + CLI
SOLVE = ("solve", "gallery:poisson7:6", "--recipe", "jacobi", "--json")


start = New


def forked(path, *words, **environment):
    """(status, stdout, stderr) of a program in a child of this process, which saves the time to import finelu."""
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=_run_there, args=(theirs, path, words, environment))
    child.start()
    theirs.close()
    assert ours.poll(WAIT)
    out, err = ours.recv()
    child.join(WAIT)
    return child.exitcode, out, err


def _run_there(channel, path, words, environment):
    os.environ.update(environment)
    numba.config.CACHE_DIR = environment.get("NUMBA_CACHE_DIR", "")
    compiling._kept, sys.argv = True, [str(path), *map(str, words)]
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        try:
            runpy.run_path(str(path))
        except Exception:
            traceback.print_exc()
    channel.send((out.getvalue(), err.getvalue()))


def end(process):
    out, err = process.communicate(timeout=WAIT)
    return process.returncode, out, err


def on_a_terminal(code, *words, **environment):
    """(status, what a terminal shows of stderr) of such a program, which is a line."""
    terminal, end_of_it = pty.openpty()
    status = start(code, *words, stderr=os.ttyname(end_of_it), **environment).wait(WAIT)
    os.close(end_of_it)
    try:
        shown = os.read(terminal, 4096)
    except OSError:  # the end of a terminal on Linux
        shown = b""
    os.close(terminal)
    return status, shown.decode().replace("\r", "")


CALLS = """
import sys
import numpy as np
import finelu as fl

A, b = fl.gallery.poisson5(5), np.ones(25)
"""
# With as few kernels as there are in any call
USE = CALLS + "print((4 * fl.Jacobi().factor(A).solve(b)).tolist() == b.tolist(), fl.kernels.compiling.kept())"


@pytest.mark.parametrize("asked", [False, True], ids=["nowhere", "a folder that cannot be made"])
def test_without_a_folder_for_kernels_every_process_compiles_for_itself(tmp_path, asked):
    taken = tmp_path / "file"
    taken.touch()
    given = {"NUMBA_CACHE_DIR": str(taken / "cache")} if asked else {}
    assert end(start(NOWHERE + USE, HOME="/nonexistent", **given)) == (0, "True False\n", "")


def test_a_folder_that_cannot_be_written_any_more_is_as_none(tmp_path):
    no_more = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"  # an OSError if a file grows
    assert end(start(no_more + USE, NUMBA_CACHE_DIR=str(tmp_path))) == (0, "True False\n", "")


ONE_KERNEL = """
import finelu as fl
from finelu.kernels.cpu.runtime.jit import compiled


@compiled
def f(x):
    return x + 1
"""


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("", "f(1); f(1.0); f(1j)", compiling.ONCE + "\n"),
        (NOWHERE, "f(1); f(1.0)", compiling.EACH_TIME + "\n"),
        ("", "from finelu.kernels.compiling import quietly\nwith quietly():\n    f(1)", ""),
        ("", "import numba; numba.njit(lambda x: x)(1)", ""),  # of somebody else
    ],
    ids=["kept", "not kept", "quiet", "not ours"],
)
def test_a_terminal_shows_once_that_kernels_are_compiled(tmp_path, before, after, said):
    own = "" if "numba.njit" in after else "f.py_func.__module__ = 'finelu.test'\n"
    code = before + ONE_KERNEL + own + after
    if not before:
        (tmp_path / "program.py").write_text(code)  # a file, which can be cached
        code = f"import runpy; runpy.run_path({str(tmp_path / 'program.py')!r})"
    assert on_a_terminal(code) == (0, said)


@pytest.fixture(scope="module")
def compiled_once(tmp_path_factory):
    """A folder that a process with a terminal has filled by two solves, and what it said of them."""
    folder = tmp_path_factory.mktemp("kernels")
    report = folder / "report"
    code = CALLS + f"s, t = fl.solve(A, b), fl.solve(A, b)\nwith open({str(report)!r}, 'w') as report:\n"
    code += "    print(s.explain(), s.timings, t.timings, sep='\\n', file=report)"
    shown = on_a_terminal(code, NUMBA_CACHE_DIR=str(folder / "cache"))
    return folder / "cache", shown, report.read_text()


@pytest.fixture
def one_missing(compiled_once, tmp_path):
    """Such a folder without one of the kernels, that every call needs."""
    folder = shutil.copytree(compiled_once[0], tmp_path / "cache")
    (one,) = folder.rglob("inspection._sound-*.nbc")
    one.unlink()
    return str(folder)


def test_a_solve_says_once_that_kernels_are_compiled_and_how_long_it_took(compiled_once):
    _, shown, report = compiled_once
    assert shown == (0, compiling.ONCE + "\n")
    *lines, first, second = report.splitlines()
    first, second = eval(first), eval(second)
    assert 0 < first["compile"] <= first["solve"] and second["compile"] == 0
    assert f"Compiling or loading kernels, at their first use: {first['compile']:.3g} s of the time above." in lines


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ("fl.solve(A, b, verbose=False)", False),
        ("fl.solve(A, b, watch=lambda *_: None)", True),
        ("fl.Jacobi().factor(A)", True),
    ],
)
def test_solve_and_recipes_say_the_same_line_and_verbose_false_none(one_missing, call, said):
    expected = compiling.ONCE + "\n" if said else ""
    assert on_a_terminal(CALLS + call, NUMBA_CACHE_DIR=one_missing) == (0, expected)


def test_the_command_line_says_it_too(one_missing):
    words = ("solve", "gallery:poisson5:5", "--json")
    assert on_a_terminal(PLAIN, *words, NUMBA_CACHE_DIR=one_missing) == (0, compiling.ONCE + "\n")
    status, out, err = end(start(PLAIN, *words, NUMBA_CACHE_DIR=one_missing))
    assert (status, err) == (0, "") and json.loads(out)["converged"] and json.loads(out)["compile_seconds"] > 0


def test_what_is_no_terminal_shows_nothing(tmp_path):
    assert end(start(CALLS + "fl.Jacobi().factor(A)", NUMBA_CACHE_DIR=str(tmp_path))) == (0, "", "")


def test_without_the_compiler_there_is_one_line():
    said = "NUMBA_DISABLE_JIT is set, but the kernels of the CPU need Numba's compiler; unset it."
    assert end(start(PLAIN, *SOLVE, NUMBA_DISABLE_JIT="1")) == (2, json.dumps({"error": said}) + "\n", "")
    assert end(start(PLAIN, *SOLVE[:-1], NUMBA_DISABLE_JIT="1")) == (2, "", f"finelu: {said}\n")


def compiled_files(folder):
    """What was compiled into a folder, with the moment of it."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.nbc")}


def test_two_processes_compile_into_one_empty_folder_at_once(tmp_path):
    code = CALLS + "x = fl.Jacobi().factor(A).solve(b)\nprint((4 * x).tolist() == b.tolist(), x.tolist())"
    both = [start(code, NUMBA_CACHE_DIR=str(tmp_path)) for _ in range(2)]
    first, second = (end(process) for process in both)
    assert first == second and first[0] == 0 and first[1].startswith("True") and first[2] == ""
    kept = compiled_files(tmp_path)
    assert len(kept) > 1 and end(start(code, NUMBA_CACHE_DIR=str(tmp_path))) == first
    assert compiled_files(tmp_path) == kept


def test_no_two_processes_give_one_name_to_what_they_write(monkeypatch):
    # Each takes the first name that the index does not have: both the same, if they had read it at once, and a later
    # process would run on integers what was compiled for doubles.
    kernel, locked = cache.compiled(lambda x: x + 1), []

    def save(key, data):
        with open(Path(kernel._cache.cache_path) / "finelu.lock") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        locked.append(key)

    monkeypatch.setattr(kernel._cache._cache_file, "save", save)
    assert kernel(1) == 2 and kernel(1.5) == 2.5 and len(locked) == 2


def test_a_child_forked_while_the_lock_is_held_does_not_keep_it(tmp_path):
    ours, theirs = multiprocessing.Pipe()
    with cache._alone(tmp_path) as alone:
        child = multiprocessing.get_context("fork").Process(target=ours.recv)  # lives until it is sent something
        child.start()
        assert alone
    try:
        with open(tmp_path / "finelu.lock") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        theirs.send(None)
        child.join(WAIT)


def test_a_child_keeps_no_lock_that_its_parent_can_not_give_back(tmp_path):
    # as where the parent is killed: closing the file is what the system does then
    ours, theirs = multiprocessing.Pipe()
    kept = []
    with cache._alone(tmp_path):
        child = multiprocessing.get_context("fork").Process(target=_count_locks, args=(theirs, tmp_path))
        child.start()
        assert ours.poll(WAIT)
        kept = ours.recv()
        child.join(WAIT)
    assert kept == []


def _count_locks(channel, folder):
    files = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    channel.send([name for name in files if name == str(folder / "finelu.lock")])


def test_a_lock_that_is_never_released_is_waited_for_once_and_the_kernel_is_used(tmp_path, monkeypatch):
    clock, printed, saved = [0.0], [], []
    kernel = cache.compiled(lambda x: x + 1)
    monkeypatch.setattr(kernel._cache, "_cache_path", str(tmp_path))
    monkeypatch.setattr(kernel._cache._cache_file, "save", lambda key, data: saved.append(key))
    monkeypatch.setattr(cache, "_stuck", False)
    monkeypatch.setattr(compiling, "_kept", True)
    monkeypatch.setattr(compiling, "tell", lambda line: printed.append(line))

    def sleep(seconds):
        clock[0] += seconds
        assert clock[0] <= cache.PATIENCE + 1

    monkeypatch.setattr(cache, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    with open(tmp_path / "finelu.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert kernel(1) == 2
        assert clock[0] >= cache.PATIENCE and not compiling.kept()
        waited = clock[0]
        assert kernel(1.5) == 2.5 and clock[0] == waited and saved == []
    assert [line for line in printed if "another process has held" in line] == [
        f"finelu: another process has held {tmp_path}/finelu.lock for {cache.PATIENCE:g} s; kernels are not kept"
    ]
    assert kernel(1j) == 1 + 1j and len(saved) == 1


class NoTerminal:
    def write(self, text):
        raise AssertionError(text)


def closed():
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [None, closed(), NoTerminal()], ids=["none", "closed", "without isatty"])
def test_a_stderr_that_takes_nothing_does_no_harm(monkeypatch, stream):
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(compiling, "_said", False)
    compiling.begun()
    assert not compiling._said


def test_nothing_is_printed_where_nothing_was_compiled():
    A = fl.gallery.poisson5(5)
    fl.solve(A, np.ones(25))
    solution = fl.solve(A, np.ones(25))
    assert solution.timings["compile"] == 0 and "ompiling" not in solution.explain()


@pytest.mark.slow
def test_after_a_warmup_nothing_is_left_to_compile(tmp_path):
    status, out, err = end(start(PLAIN, "warmup", "--json", NUMBA_CACHE_DIR=str(tmp_path)))
    done = json.loads(out)
    assert (status, err) == (0, "") and done["seconds"] >= done["compile_seconds"] > 0
    kept = compiled_files(tmp_path)
    assert done["folder"] == str(tmp_path) and len(kept) > 100
    for recipe in ("auto", "ilu0", "ic0", "ilut", "multilevel", "parilut"):
        words = ("solve", "gallery:convection_diffusion:12", "--recipe", recipe, "--json")
        words = (*words[:1], "gallery:poisson7:12", *words[2:]) if recipe == "ic0" else words
        _, out, _ = end(start(PLAIN, *words, NUMBA_CACHE_DIR=str(tmp_path)))
        assert json.loads(out)["converged"] and compiled_files(tmp_path) == kept, recipe
    larger = ("solve", "gallery:poisson5:50", "--recipe", "sparse_lu", "--json")  # counted before it is factored
    _, out, _ = end(start(PLAIN, *larger, NUMBA_CACHE_DIR=str(tmp_path)))
    assert json.loads(out)["converged"] and compiled_files(tmp_path) == kept


def test_a_warmup_says_how_long_it_took_and_where_the_kernels_are(monkeypatch, capsys):
    from finelu import warmup
    from finelu.cli import main

    asked = []
    monkeypatch.setattr(warmup, "_pieces", lambda dtype: [(f"piece of {dtype}", lambda: asked.append(dtype.name))])
    assert main(["warmup"]) == 0
    out = capsys.readouterr().out
    assert asked == ["float64"] and out.startswith("took ") and warmup.kernel_folder() in out.replace("\n", "")
    assert main(["warmup", "--all"]) == 0
    assert asked[1:] == list(warmup.DTYPES)
    monkeypatch.setattr(compiling, "_kept", False)
    assert main(["warmup"]) == 1 and "set NUMBA_CACHE_DIR" in capsys.readouterr().out


# What root compiled in an image, for others who cannot write there
READ_ONLY_FOLDERS = """
import sys
from numba.core.caching import _CacheLocator

plain = _CacheLocator.ensure_cache_path


def ensure(self):
    if self.get_cache_path().startswith(sys.argv[1]):
        raise PermissionError(13, "Permission denied")
    plain(self)


_CacheLocator.ensure_cache_path = ensure
"""
COMPILED = """
import sys
from numba.core import event

import finelu
from finelu.kernels import compiling
from finelu.kernels.cpu.runtime.jit import compiled

class Compiled(event.Listener):
    count = 0

    def on_start(self, started):
        self.count += 1

    def on_end(self, ended):
        pass

seen = Compiled()
event.register("numba:compile", seen)


@compiled
def f(x):
    return x + 1

f(1)
first = seen.count
f(1.5)
print(first, seen.count - first, compiling.kept())
"""


@pytest.mark.parametrize("where", ["next to the source", "NUMBA_CACHE_DIR"])
def test_kernels_are_read_from_a_folder_that_cannot_be_written(tmp_path, where):
    image, own = tmp_path / "image", tmp_path / "home"
    image.mkdir()
    own.mkdir()
    given = {"NUMBA_CACHE_DIR": str(image / "cache")} if where == "NUMBA_CACHE_DIR" else {}
    given |= {"HOME": str(own), "XDG_CACHE_HOME": str(own)}

    (image / "program.py").write_text(COMPILED)

    def run(before="", read_only=image):
        code = tmp_path / "before.py"
        code.write_text(f"{before}\nimport runpy; runpy.run_path({str(image / 'program.py')!r})")
        return forked(code, read_only, **given)

    assert run() == (0, "1 1 True\n", "")
    (image / "cache").mkdir(exist_ok=True)
    # tmp_path: the home is read-only, too
    assert run(READ_ONLY_FOLDERS, tmp_path) == (0, "0 0 True\n", "")
    # The first alone is in the image: the other is compiled, and kept where there is a home.
    for file in image.rglob("*f-*.2.nbc"):
        file.unlink()
    for _ in range(2):
        assert run(READ_ONLY_FOLDERS, tmp_path) == (0, "0 1 False\n", "")
    assert run(READ_ONLY_FOLDERS) == (0, "0 1 True\n", "")
    assert run(READ_ONLY_FOLDERS) == (0, "0 0 True\n", "")


# After use in the parent: its pool of threads, its kernels, its factors


def _child(channel, F, A, b):
    found = [F.solve(b)] if F is not None else []
    found += [fl.ILU0().factor(A).solve(b), fl.MultilevelILU(dense_size=20).factor(A).solve(b)]
    channel.send((fl.solve(A, b).converged, [x.tobytes() for x in found]))
    channel.close()


@pytest.mark.parametrize("way", ["spawn", "fork"])
def test_a_child_computes_the_bits_of_its_parent(way, threads):
    threads(2)
    A = fl.gallery.poisson7(9)
    b = np.random.default_rng(0).standard_normal(A.shape[0])
    F = fl.ILU0().factor(A)
    expected = [F.solve(b), fl.ILU0().factor(A).solve(b), fl.MultilevelILU(dense_size=20).factor(A).solve(b)]
    expected = [x.tobytes() for x in expected]
    assert fl.solve(A, b).converged
    ours, theirs = multiprocessing.Pipe()
    inherited = F if way == "fork" else None  # a spawned child would need a copy
    child = multiprocessing.get_context(way).Process(target=_child, args=(theirs, inherited, A, b))
    child.start()
    theirs.close()
    assert ours.poll(WAIT)
    converged, found = ours.recv()
    child.join(WAIT)
    assert child.exitcode == 0 and converged
    assert found == (expected if way == "fork" else expected[1:])
    assert F.solve(b).tobytes() == expected[0]  # and the parent goes on


LONG = """
import numpy as np
from finelu.kernels import monitor
from finelu.kernels.cpu import recurrences, vectors

n = 3 * vectors.CHUNK + 1
state, one, p = np.zeros(16, np.int32), np.ones(1), np.zeros(n)
state[monitor.CODE] = monitor.RUNNING
recurrences._long_direction(state, one, one, np.ones(n), p, None, None)
print(vectors.CHUNK, p.all())
"""


def test_kernels_are_compiled_again_only_where_a_constant_has_changed_also_of_another_file(tmp_path):
    # Two checkouts with one folder for kernels: the second finds the first's, and the first finds its own again.
    def run(checkout, chunk):
        package = tmp_path / checkout / "finelu"
        if not package.exists():
            shutil.copytree(Path(fl.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
        vectors = package / "kernels" / "cpu" / "vectors.py"
        text, found = re.subn(r"^CHUNK = [\d*]+", f"CHUNK = {chunk}", vectors.read_text(), flags=re.M)
        assert found == 1
        vectors.write_text(text)
        given = {"PYTHONPATH": str(tmp_path / checkout), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
        env = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")} | given
        done = subprocess.run([sys.executable, "-c", LONG], env=env, capture_output=True, text=True, timeout=WAIT)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{chunk} True\n", "")
        return compiled_files(tmp_path / "cache")

    before = run("one", 2**14)
    kept = run("one", 2**10)
    assert before and before.items() < kept.items()
    assert run("two", 2**14) == run("one", 2**14) == run("two", 2**10) == kept


def test_the_first_calls_of_several_threads_at_once_end():
    """Each imports Numba, whose locks and llvmlite's may not wait for one another."""
    code = (
        "import threading, faulthandler, numpy as np, scipy.sparse as sp\n"
        "faulthandler.dump_traceback_later(90, exit=True)\n"
        "import finelu as fl\n"
        "A, b, begin = sp.identity(30, format='csr') * 2, np.ones(30), threading.Barrier(6)\n"
        "calls = 3 * [lambda: fl.solve(A, b), lambda: fl.cg(A, b)]\n"
        "def work(call): begin.wait(); call()\n"
        "threads = [threading.Thread(target=work, args=(call,)) for call in calls]\n"
        "[thread.start() for thread in threads], [thread.join() for thread in threads]\n"
    )
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stderr) == (0, "")
