"""The first answer of `solve`, by SciPy, and the process that compiles kernels meanwhile."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from ast import literal_eval
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from programs import WAIT, ended

import finelu as fl
from finelu import compiling, deadline, gallery, threads
from finelu.auto import ahead, background, first_answer
from finelu.auto.choose import choose
from finelu.auto.first_answer import FirstAnswer, fill_bound
from finelu.errors import OutOfTime, ParameterError
from finelu.kernels.reference import products
from finelu.krylov.criterion import Criterion
from finelu.krylov.residual import Residual
from finelu.matrix.traits import traits
from finelu.ordering import with_little_fill

ENDINGS = ".code", ".library"  # of the files of a compiled kernel
GIVEN = {"FINELU_BACKGROUND": "1", "FINELU_SILENT": "", "FINELU_KERNELS": "compile"}
SOLVE = """
import numpy as np
import finelu as fl
from finelu.auto import background

A, b = fl.gallery.poisson5(5), np.ones(25)

def solve():
    solution = fl.solve(A, b)
    print(solution.converged, abs(b - A @ solution.x).max() < 1e-8, solution.recipe, solution.timings["compile"] > 0)
    return solution

first = solve()
"""


def kept(folder):
    """The files of compiled kernels, with their times."""
    return {path: path.stat().st_mtime_ns for path in Path(folder).rglob("*.*") if path.suffix in ENDINGS}


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A folder that a process in the background has filled, and (status, stdout, stderr) of the process that began it:
    it solved before and after."""
    folder = tmp_path_factory.mktemp("kernels")
    code = SOLVE + "\n".join(
        [
            "process = background._background.process",
            "print(process.wait(), first.explain().splitlines()[1])",
            "solve()",
            "print(background._background.process is process, background.possible('other'))",
        ]
    )
    return folder, ended(code, FINELU_CACHE=str(folder), **GIVEN)


def test_the_first_answer_waits_for_no_kernel_and_the_second_finds_all(filled):
    folder, (status, out, err) = filled
    assert (status, err) == (0, background.BEGUN + "\n")  # without the lines of a process that compiles
    first, ended_with, second, others = out.splitlines()
    assert first == "True True SparseLU(ordering='mmd', backend='superlu') False"
    assert ended_with == f"0 Note: {first_answer.MEANWHILE}."
    assert second == "True True SparseLU() False"
    assert others == "True True"
    assert kept(folder)


def test_a_later_process_compiles_nothing_and_begins_nothing(filled):
    before = kept(filled[0])
    code = SOLVE + "print(background._background.process)"
    status, out, err = ended(code, FINELU_CACHE=str(filled[0]), **GIVEN)
    assert (status, out, err) == (0, "True True SparseLU() False\nNone\n", "")
    assert kept(filled[0]) == before


STANDS_IN = """
import os
import sys
import time
from finelu.auto import background

def begin():
    background.begin("system", {})
    return background._background.process

background.PROGRAM = "import sys, time; sys.path[:] = {path!r}; from finelu.auto import background; "
background.PROGRAM += "print(background.first_received()); " + sys.argv[1]
"""


def is_locked(folder):
    """Whether such a process works on the folder."""
    try:
        with open(folder / "kernels" / "background.lock", "a") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True


def until(condition):
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_it_ends_with_its_parent_even_if_that_is_killed_and_has_forked(tmp_path):
    code = STANDS_IN + "begin()\nchild = os.fork()\nprint(child or '', end='', flush=True)\ntime.sleep(100)"
    command = [sys.executable, "-c", code, "time.sleep(100)"]
    given = os.environ | GIVEN | {"FINELU_CACHE": str(tmp_path)}
    with subprocess.Popen(command, env=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent:
        child = int(os.read(parent.stdout.fileno(), 100))
        try:
            until(lambda: is_locked(tmp_path))
            parent.kill()
            until(lambda: not is_locked(tmp_path))
            os.kill(child, 0)  # it is alive, and does not keep the process
        finally:
            os.kill(child, signal.SIGKILL)


def test_it_ends_where_its_parent_ends_as_usual(tmp_path):
    command = [sys.executable, "-c", STANDS_IN + "print(begin().pid)", "time.sleep(100)"]
    given = os.environ | GIVEN | {"FINELU_CACHE": str(tmp_path)}
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0 and done.stderr == background.BEGUN + "\n"
    with pytest.raises(ProcessLookupError):
        os.kill(int(done.stdout), 0)


SECOND = (
    "background.available_cores = lambda: {}; "
    "background.AHEAD = 'background.received(); import time; time.sleep(100)'; print("
)


@pytest.mark.parametrize("cores", [1, 2])
def test_on_two_cores_a_second_one_works_until_the_first_has_ended(tmp_path, cores):
    seen = tmp_path / "seen"
    code = STANDS_IN + f"background.PROGRAM = background.PROGRAM.replace('print(', {SECOND.format(cores)!r})\n"
    code += "print(begin().wait())"
    note = f"second = background._background.process; open({str(seen)!r}, 'w').write(str(second and second.pid))"
    assert ended(code, note, FINELU_CACHE=str(tmp_path), **GIVEN)[:2] == (0, "0\n")
    assert (seen.read_text() == "None") == (cores == 1)
    if cores == 2:
        with pytest.raises(ProcessLookupError):
            os.kill(int(seen.read_text()), 0)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux shows which processes live")
@pytest.mark.parametrize("killed", ["the program", "the first"])
def test_a_second_one_ends_even_if_another_is_killed(tmp_path, killed):
    seen = tmp_path / "seen"
    code = STANDS_IN + f"background.PROGRAM = background.PROGRAM.replace('print(', {SECOND.format(2)!r})\n"
    code += "begin()\ntime.sleep(100)"
    numbers = "'%d %d' % (os.getpid(), background._background.process.pid)"
    note = f"import os; open({str(seen)!r}, 'w').write({numbers}); time.sleep(100)"
    given = os.environ | GIVEN | {"FINELU_CACHE": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", code, note], env=given, stderr=subprocess.DEVNULL) as parent:
        until(lambda: seen.exists() and len(seen.read_text().split()) == 2)
        first, second = map(int, seen.read_text().split())
        os.kill(parent.pid if killed == "the program" else first, signal.SIGKILL)
        until(lambda: not lives(second))
        parent.kill()
    until(lambda: not is_locked(tmp_path))


def lives(process):
    """Whether a process works: one that has ended may keep its number."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    "problem", ["poisson5:60", "poisson7:20", "convection_diffusion:20", "helmholtz:40,6", "elasticity:8,8,8"]
)
def test_by_numpy_alone_the_method_is_that_of_the_first_attempt(problem):
    A = sp.csr_array(gallery.problem(problem))
    A.sort_indices()
    assert ahead.likely_method(ahead._csr(A)) == choose(traits(fl.as_csr(A, diagonal=False))).method


def test_the_second_one_takes_kernels_of_the_iterations_and_the_count_without_a_look_at_A():
    code = """
import gc
import numpy as np
import finelu as fl
from finelu.auto.ahead import compile_last
from finelu.kernels.cpu.runtime.jit import Cache

A = fl.gallery.poisson7(12)
compile_last(A.tocsr(), np.ones(A.shape[0]), 1e-8, criterion="auto")
caches = [each for each in gc.get_objects() if isinstance(each, Cache)]
print(*{cache.store.module for cache in caches if cache.known})
"""
    status, out, _ = ended(code)
    assert status == 0 and {"recurrences", "fill"} <= set(out.split()) and "inspection" not in out


def test_there_is_one_at_a_time_none_twice_and_none_in_a_forked_child(tmp_path):
    code = (
        STANDS_IN
        + """
first = begin()
print(begin() is first, background.possible("system"), background.possible("other"))
background.end("other")
print(first.wait(), background.possible("system"), background.possible("other"))
sys.stdout.flush()
if not os.fork():
    print(background.possible("other"), flush=True)
    os._exit(0)
os.wait()
"""
    )
    status, out, _ = ended(code, "time.sleep(1)", FINELU_CACHE=str(tmp_path), **GIVEN)
    assert (status, sorted(out.split("\n"))) == (0, sorted(["True True True", "0 False True", "False", ""]))


def test_after_a_failure_no_other_is_begun_and_one_line_says_so(tmp_path):
    code = STANDS_IN + "begin().wait()\nfor key in 'ab':\n    print(background.possible(key))"
    status, out, err = ended(code, "sys.exit(3)", FINELU_CACHE=str(tmp_path), **GIVEN)
    assert (status, out) == (0, "False\nFalse\n")
    assert err.splitlines() == [background.BEGUN, background.FAILED.format(3)]


def test_one_that_was_ended_from_here_has_not_failed_and_leaves_nothing_open(tmp_path):
    code = "import warnings\nwarnings.simplefilter('error')\n" + STANDS_IN
    code += "begin()\nbackground.end('system')\nprint(background.possible('other'))\n"
    code += "background.begin('third', {})\nbackground._background.process.wait()\nbackground.begin('fourth', {})"
    status, out, err = ended(code, "", FINELU_CACHE=str(tmp_path), **GIVEN)
    assert (status, out, err) == (0, "True\n", background.BEGUN + "\n")


def test_one_on_which_another_call_relies_is_not_ended(tmp_path):
    code = STANDS_IN + "first = begin()\nbackground.begin('other', {})\nbackground.end('system')\nprint(first.poll())"
    status, out, _ = ended(code, "time.sleep(100)", FINELU_CACHE=str(tmp_path), **GIVEN)
    assert (status, out) == (0, "None\n")


def test_a_broken_pipe_does_not_end_the_program(tmp_path):
    code = (
        STANDS_IN
        + """
import signal
import threading
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
background.PROGRAM = "pass"
background.begin("system", {"A": bytes(10**7)})
background._background.process.wait()
for thread in threading.enumerate():
    if thread.name == "finelu_background":
        thread.join()
print("alive")
"""
    )
    status, out, _ = ended(code, "", FINELU_CACHE=str(tmp_path), **GIVEN)
    assert (status, out) == (0, "alive\n")


def test_it_has_the_path_of_its_parent_few_threads_and_a_limit(tmp_path):
    code = (
        STANDS_IN
        + """
import pathlib
from finelu import threads
sys.path += [pathlib.Path("/"), "relative"]
threads.set_num_threads(5)
background.PROGRAM = background.PROGRAM.replace("print(", "call = (")
print(begin().wait())
"""
    )
    seen = f"open({str(tmp_path / 'seen')!r}, 'w').write(repr((sys.path[-2:], background.get_num_threads(), call)))"
    assert ended(code, seen, FINELU_CACHE=str(tmp_path), **GIVEN)[:2] == (0, "0\n")
    path, number, call = literal_eval((tmp_path / "seen").read_text())
    assert path[0] == "/" and Path(path[1]).is_absolute()
    assert (number, call) == (background.MOST_THREADS, {"time_limit": background.LIMIT})


@pytest.fixture
def alone(monkeypatch):
    """As in a program, where kernels are not compiled eagerly."""
    monkeypatch.setattr(compiling, "eager", False)
    monkeypatch.setattr(background, "_background", background._Background())
    monkeypatch.setenv(background.BACKGROUND, "")
    return monkeypatch


def test_the_variable_and_the_folder_decide(alone):
    assert background.possible("system")
    alone.setenv(background.BACKGROUND, "0")
    assert not background.possible("system")
    alone.setenv(background.BACKGROUND, "never")
    with pytest.raises(ParameterError, match="FINELU_BACKGROUND='never'"):
        FirstAnswer((fl.gallery.poisson5(4), np.ones(16)), 1e-8, 0.0, "auto", None, np.inf)
    alone.setenv(background.BACKGROUND, "1")
    assert background.possible("system")
    for name, value in {
        "OMPI_COMM_WORLD_SIZE": "4",
        "PMI_SIZE": "2",
        "SLURM_STEP_NUM_TASKS": "8",
        "PMIX_RANK": "1",
    }.items():
        alone.setenv(name, value)
        assert not background.possible("system")
        alone.setenv(name, "0")
        assert background.possible("system")
    alone.setattr(sys, "executable", "/usr/bin/editor")
    assert not background.possible("system")


def test_without_a_folder_that_can_be_written_there_is_none():
    code = "from finelu.auto import background\nprint(background.possible('system'))"
    assert ended(code, **GIVEN | {"FINELU_CACHE": "/dev/null/cache"}) == (0, "False\n", "")


def test_a_call_ends_at_its_first_missing_kernel_in_any_thread(meanwhile):
    meanwhile(compiling.here, otherwise=lambda: "an answer")
    for call in (compiling.begun, compiling.begun, threads.begin(compiling.begun).result):
        with pytest.raises(compiling.KernelMissing) as ended_by:
            call()
        assert ended_by.value.answer == "an answer"


@pytest.mark.parametrize("items", [2, 8])
def test_a_kernel_that_only_a_helper_misses_ends_the_call(meanwhile, items):
    helper_ended = threading.Event()

    def make(number):
        if threading.current_thread() is not threading.main_thread():
            helper_ended.set()
            compiling.begun()
        assert helper_ended.wait(WAIT)

    meanwhile(threads, _pool=None, _wanted=2)
    meanwhile(compiling.here, otherwise=lambda: "an answer")
    with pytest.raises(compiling.KernelMissing):
        threads.each(items, make)


@pytest.fixture
def missing(meanwhile):
    """A kernel is missing at the first step of `solve`; a list of the questions, whether there was one."""
    asked = []

    def checked_csr(A, **options):
        asked.append(compiling.here.otherwise is not None)
        if asked[-1] and (answer := compiling.here.otherwise()):
            raise compiling.KernelMissing(answer)
        return fl.as_csr(A, **options)

    meanwhile(import_module("finelu.auto.solve"), checked_csr=checked_csr)
    meanwhile(background, possible=lambda key: True, begin=lambda key, call: True, end=lambda key: None)
    return asked


def test_one_solution_joins_those_of_all_columns(missing):
    A, B = fl.gallery.poisson5(5), np.random.default_rng(0).standard_normal((25, 3))
    solution = fl.solve(A, B)
    assert solution.converged and np.allclose(A @ solution.x, B) and len(solution.attempts) == 3
    assert first_answer.MEANWHILE in solution.explain() and "ompiling kernels" not in solution.explain()


def test_without_an_answer_that_passes_the_call_compiles_and_says_why(missing):
    A, b = fl.gallery.poisson5(4).tolil(), np.ones(16)
    A[3] = 0
    solution = fl.solve(A, b, time_limit=100)
    assert solution.status is fl.Status.SINGULAR and first_answer.NO_ANSWER in solution.seen
    assert missing == [True, False]


def test_without_a_cheap_answer_the_call_says_why(missing, everywhere):
    everywhere("MOST_SECONDS", 0.0)
    assert first_answer.COSTLY in fl.solve(fl.gallery.poisson5(4), np.ones(16)).seen
    assert missing == [True]


@pytest.mark.parametrize(
    "options",
    [
        {"x0": np.zeros(16)},
        {"maxiter": 9},
        {"recipe": "ilu0"},
        {"method": "gmres"},
        {"callback": print},
        {"watch": lambda *_: False},
        {"certify": True},
    ],
    ids=lambda options: next(iter(options)),
)
def test_with_other_arguments_the_call_waits(missing, options, capsys):
    assert first_answer.MEANWHILE not in fl.solve(fl.gallery.poisson5(4), np.ones(16), **options).seen
    assert missing == [False]


def test_within_waiting_the_call_waits(missing):
    with compiling.waiting():
        fl.solve(fl.gallery.poisson5(4), np.ones(16))
    fl.solve(fl.gallery.poisson5(4), np.ones(16))
    assert missing == [False, True] and compiling.here.otherwise is None


# The answer


@pytest.fixture
def first(meanwhile, everywhere):
    """first(A, b, ...): whether there is to be an answer without kernels, and (solutions, why there are none)."""

    meanwhile(background, possible=lambda key: True, begin=lambda key, call: True, end=lambda key: None)
    everywhere("kernels_for", lambda array: SimpleNamespace())  # none is called

    def answer(A, b, rtol=1e-8, atol=0.0, criterion="auto", memory=None, end=np.inf):
        found = FirstAnswer((A, b), rtol, atol, criterion, memory, end)
        return found.solve() if found else None, found.refused

    return answer


def circuit(dtype=float):
    """A matrix that is not symmetric, with a diagonal entry that is 0, and rows of very different size."""
    A = fl.gallery.convection_diffusion(6).tolil().astype(dtype)
    A[0, 0] = 0
    A[3] *= 1e8
    return A.tocsr()


def hermitian():
    A = fl.gallery.poisson5(9).astype(complex)
    return A + 0.1j * sp.triu(A, 1) - 0.1j * sp.tril(A, -1)


@pytest.mark.parametrize(
    "A",
    [fl.gallery.poisson7(8), fl.gallery.convection_diffusion(7), circuit(), circuit(np.complex64), hermitian()],
    ids=["definite", "general", "zero on the diagonal", "complex64", "Hermitian"],
)
@pytest.mark.parametrize("iterative", [False, True], ids=["factors", "products"])
@pytest.mark.parametrize("columns", [(), (1,), (2,)], ids=str)
def test_it_solves_to_the_tolerance_without_a_kernel(first, everywhere, A, iterative, columns):
    if iterative:
        costly(everywhere)
    b = np.random.default_rng(0).standard_normal((A.shape[0], *columns)).astype(A.real.dtype)
    solutions, why = first(A, b)
    definite = (A.diagonal().real > 0).all() and abs(A - A.conj().T).max() == 0
    if iterative and not definite:
        assert solutions is None and why == first_answer.COSTLY
        return
    assert why == ""
    for column, solution in zip(b.reshape(A.shape[0], -1).T, solutions, strict=True):
        rest = np.linalg.norm(column - A @ solution.x)
        assert solution.converged and rest <= 1e-8 * np.linalg.norm(column)
        assert solution.residual_norm == pytest.approx(rest, rel=1e-3, abs=1e-12)
        assert len(solution.history) == solution.iterations + 1
        assert solution.method == ("cg" if iterative else "refinement")
        assert solution.x.dtype == np.result_type(A.dtype, np.float64)


def checked(A):
    return first_answer._csr(sp.csr_array(A))


@pytest.mark.parametrize("form", [sp.coo_matrix, sp.csc_array, sp.bsr_array, np.array, checked])
def test_it_takes_what_solve_takes(first, form):
    A = fl.gallery.convection_diffusion(4).tocsr()
    ((solution,), _) = first(form(A.toarray()), list(range(64)))
    assert np.allclose(A @ solution.x, range(64))


def test_single_precision_stays_where_the_tolerance_allows(first):
    A = fl.gallery.poisson7(6).astype(np.float32)
    ((solution,), _) = first(A, np.ones(216, np.float32), rtol=1e-4)
    assert solution.converged and solution.x.dtype == np.float32


@pytest.mark.parametrize("criterion", ["auto", "residual", "backward"])
def test_the_criterion_is_that_of_any_other_answer(first, criterion):
    A = circuit()
    ((solution,), _) = first(A, A @ np.ones(A.shape[0]), criterion=criterion)
    assert (solution.row_residual is None) == (criterion == "residual")
    assert solution.converged and (solution.row_residual or 0.0) <= 1e-8


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(np.float64, 1e168), (np.float64, 1e-168), (np.float32, 1e25), (np.float32, 1e-25)],
)
def test_rows_are_looked_at_whatever_the_scale(dtype, scale):
    A, large = sp.csr_array(fl.gallery.poisson5(20)), 1e12 if dtype == np.float64 else 1e6
    A.data[A.indptr[37] : A.indptr[38]] *= large
    b, x = np.ones(400, dtype), np.zeros(400, dtype)
    b[37] = large
    x[37] = 0.25 / scale  # solves the large row alone
    A = (A * scale).astype(dtype)
    own = Residual(first_answer._Operator(checked(A)), b, first_answer.NUMPY)
    usual = Residual(first_answer._Operator(fl.as_csr(A)), b)
    sizes = [Criterion("auto", residual, b)(b, x, large)[1] for residual in (own, usual)]
    assert sizes[0] == pytest.approx(sizes[1], rel=1e-3) and sizes[0] > 0.1 * large


def costly(everywhere):
    """Complete factors are never expected to be cheap."""
    slow = dict.fromkeys(("columnwise", "superlu_row", "superlu_entry", "superlu_flop"), 1.0)
    everywhere("RATES", first_answer.RATES.__class__(**slow))


@pytest.mark.parametrize(
    ("dtype", "size", "of_A"),
    [(np.float32, 1e-17, 1), (np.float64, 1e-17, 1), (np.float64, 1e180, 1e168), (np.float64, 1.0, 1e-168)],
)
def test_iterations_reach_the_tolerance_whatever_the_scale(first, everywhere, dtype, size, of_A):
    costly(everywhere)
    A, b = (of_A * fl.gallery.poisson5(150)).astype(dtype), np.zeros(22500, dtype)
    b[11325] = size
    ((solution,), _) = first(A, b, rtol=1e-4)
    with np.errstate(over="raise"):
        rest = (b - A.astype(float) @ solution.x.astype(float)) / size
    assert solution.method == "cg" and np.linalg.norm(rest) <= 1e-4


def test_where_zero_is_good_enough_it_is_the_answer(first):
    A, b = fl.gallery.poisson5(4), np.zeros((16, 3))
    b[:, 0], b[:, 2] = 1, 1e-6
    (solutions, why) = first(A, b, atol=1e-5)
    assert why == "" and all(solution.converged for solution in solutions)
    assert [solution.x.any() for solution in solutions] == [True, False, False]
    assert [solution.residual_norm for solution in solutions[1:]] == [0.0, pytest.approx(4e-6)]
    ((solution,), _) = first(A, np.zeros(16))
    assert solution.converged and not solution.x.any()
    assert first(A, np.full(16, 1e-25)) == (None, "")  # is magnified by the usual way


def test_where_rows_would_be_exchanged_the_bound_is_that_of_exchanges(first, meanwhile):
    A = sp.csr_array(fl.gallery.poisson5(30)).astype(float)
    A.data = np.random.default_rng(0).standard_normal(A.nnz)
    A.setdiag(1e-12)
    bounds, bound = [], first_answer.fill_bound
    meanwhile(first_answer, fill_bound=lambda pattern: bounds.append(bound(pattern)) or bounds[-1])
    answer = FirstAnswer((A, np.ones(900)), 1e-8, 0.0, "auto", None, np.inf)
    assert answer.recipe.ordering == "colamd" and answer._factors().nnz <= bounds[0].nnz


def test_an_attempt_ends_in_time_and_says_so(first, meanwhile):
    meanwhile(first_answer, OVERRUN=0.0)
    assert first(fl.gallery.poisson5(4), np.ones(16)) == (None, first_answer.LATE)
    with deadline.limited(compiling.now()), pytest.raises(OutOfTime):
        first_answer._exact_sums(np.array([0, 1]), np.ones(1), (np.ones(1), np.ones(1)))


def test_half_of_the_time_that_is_left_is_for_the_usual_way(first):
    answer = FirstAnswer((fl.gallery.poisson5(4), np.ones(16)), 1e-8, 0.0, "auto", None, compiling.now() + 4)
    assert 1 < answer._seconds(100.0) <= 2


def test_a_failure_leaves_the_call_to_the_usual_way_and_is_named(first, meanwhile):
    def fails(*_):
        raise ArithmeticError("odd")

    ended, A, b = [], fl.gallery.poisson5(4), np.ones(16)
    meanwhile(background, end=ended.append)
    meanwhile(FirstAnswer, _solve=fails)
    assert first(A, b) == (None, first_answer.FAILED.format(ArithmeticError("odd"))) and len(ended) == 1
    meanwhile(first_answer, fill_bound=fails)
    answer = FirstAnswer((A, b), 1e-8, 0.0, "auto", None, np.inf)
    assert not answer and "ArithmeticError('odd')" in answer.refused and answer.b is None and answer._A is None


def test_exact_sums_have_their_time(first, meanwhile):
    A, b = fl.gallery.poisson5(4), np.ones(16)
    assert first(A, b, rtol=1e-15) == (None, first_answer.COSTLY)
    assert first(A, b, rtol=1e-13)[0] is not None and first(A, b, rtol=0.0, atol=1e-10)[0] is not None
    meanwhile(first_answer, EXACT_SECONDS=1.0)
    assert first(A, b, rtol=1e-13) == (None, first_answer.COSTLY)
    assert first(A, b)[0] is not None


def test_a_matrix_that_is_singular_is_left_to_the_usual_way(first):
    A = fl.gallery.poisson5(4).tolil()
    A[3] = 0
    assert first(A.tocsr(), np.ones(16)) == (None, first_answer.NO_ANSWER)


def test_without_a_process_the_call_compiles(first, meanwhile):
    meanwhile(background, begin=lambda key, call: False)
    assert first(fl.gallery.poisson5(4), np.ones(16)) == (None, first_answer.NO_PROCESS)


def corrupt():
    A = fl.gallery.poisson5(4).tocsr()
    A.indices[5] = 10**6
    return A


@pytest.mark.parametrize(
    ("A", "b"),
    [
        (fl.gallery.poisson5(4) * np.nan, np.ones(16)),
        (fl.gallery.poisson5(4), np.full(16, np.inf)),
        (fl.gallery.poisson5(4), np.ones(15)),
        (fl.gallery.poisson5(4), "b"),
        (sp.csr_array((3, 4)), np.ones(3)),
        (corrupt(), np.ones(16)),
        (None, np.ones(16)),
    ],
    ids=["NaN", "Inf", "shape", "text", "not square", "corrupt", "nothing"],
)
def test_what_may_be_faulty_is_left_to_the_usual_way_which_says_so(first, A, b):
    assert first(A, b) == (None, "")


def test_neither_time_nor_memory_is_exceeded(first):
    A, b = circuit(), np.ones(216)
    assert first(A, b, end=compiling.now()) == (None, first_answer.COSTLY)
    assert first(A, b, memory=100.0) == (None, first_answer.COSTLY)
    assert first(A, b, memory=10.0 * A.data.nbytes) == (None, first_answer.COSTLY)  # for the work alone
    assert first(A, b, memory=1e9)[0] is not None


def test_a_matrix_that_is_too_large_for_a_bound_is_not_ordered(first, everywhere):
    everywhere("fill_bound", lambda pattern: pytest.fail("ordered"))
    everywhere("LEAST_FILL", 1e9)
    assert first(fl.gallery.poisson5(4), np.ones(16))[0][0].method == "cg"
    everywhere("LEAST_ITERATIONS", 10**9)
    assert first(fl.gallery.poisson5(4), np.ones(16)) == (None, first_answer.COSTLY)


def test_many_columns_take_their_time(first):
    A = fl.gallery.poisson5(4)
    assert first(A, np.ones((16, 10**6))) == (None, first_answer.COSTLY)
    assert first(A, np.ones((16, 3)))[0] is not None


def test_what_the_caller_gave_is_as_it_was(first):
    A = fl.gallery.poisson5(4).tocoo()
    A = sp.csr_array(
        (A.data[::-1].copy(), A.coords[1][::-1].copy(), np.r_[0, np.cumsum(np.bincount(A.coords[0]))[::1]])
    )
    A.has_sorted_indices = False
    before, b = (A.data.copy(), A.indices.copy()), np.ones(16)
    first(A, b)
    assert np.array_equal(A.data, before[0]) and np.array_equal(A.indices, before[1]) and (b == 1).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_the_forms_of_kernels_are_their_references(dtype, meanwhile):
    meanwhile(first_answer, BLOCK=7)
    random = np.random.default_rng(1)

    def numbers(*shape):
        v = random.standard_normal(shape) * 10.0 ** random.integers(-6, 6, shape)
        return (v + 1j * v[::-1]).astype(dtype) if np.dtype(dtype).kind == "c" else v.astype(dtype)

    A = sp.random_array((30, 30), density=0.2, rng=random, format="csr").astype(dtype)
    A.data[:] = numbers(A.nnz)
    x, b = numbers(30), numbers(30)
    b[:15] = (A @ x)[:15]  # rows that cancel
    found, expected = ((np.empty(30, dtype), np.empty(30, np.dtype(dtype).type(0).real.dtype)) for _ in range(2))
    own = first_answer.NUMPY.kernels.products
    for kernels, (r, bound) in ((own, found), (products, expected)):
        kernels.residual(A.indptr, A.indices, A.data, x, b, 2.0, r, bound)
    assert np.allclose(found[1], expected[1], rtol=1e-4 if np.finfo(dtype).bits < 64 else 1e-12, atol=0)
    assert (abs(found[0] - expected[0]) <= 2 * expected[1]).all()
    terms = [kernels.magnitudes_of_terms(A.indptr, expected[1], 4.0) for kernels in (own, products)]
    assert np.allclose(*terms, rtol=1e-14, atol=0) and terms[0].dtype == np.float64
    for kernels, (r, _) in ((own, found), (products, expected)):
        kernels.residual_twice(A.indptr, A.indices, A.data, x, b, 2.0, r)
    assert np.array_equal(found[0], expected[0])


def test_a_row_whose_terms_overflow_has_no_sum():
    r, one = np.empty(1), np.array([1e300])
    with np.errstate(all="ignore"):  # as `solve` has it
        first_answer.NUMPY.kernels.products.residual_twice(np.array([0, 1]), np.array([0]), one, one, one, 1.0, r)
    assert np.isnan(r[0])


@pytest.mark.parametrize(
    "A", [fl.gallery.poisson5(20), fl.gallery.poisson7(9), fl.gallery.stokes(5)], ids=["2", "3", "saddle"]
)
def test_a_bound_of_the_fill_is_above_that_of_minimum_degree(A):
    A = sp.csr_array(A)
    least, bound = with_little_fill(fl.as_csr(A, diagonal=False), "amd")[1], fill_bound(first_answer._pattern(A))
    assert least.nnz <= bound.nnz <= 20 * least.nnz and least.flops <= bound.flops


def test_dense_rows_are_last_in_the_bound():
    A = fl.gallery.poisson5(40).tolil()
    A[7], A[:, 7] = 1, 1
    assert fill_bound(first_answer._pattern(A.tocsr())).nnz < 200 * 1600
