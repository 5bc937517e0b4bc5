"""Calls in surroundings that programs bring: several threads, fork, Ctrl-C, deadlines, callbacks that raise, and other
libraries loaded first. Each scenario is a function of a seed that returns a Verdict; `judged(seed)` takes them in turn.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import scipy.sparse as sp
import systems
from judge import Measured, Verdict, answer, look, named

import finelu as fl
from finelu.compiling import compile_clock
from finelu.errors import FineluError

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))
from interrupts import Interrupted  # noqa: E402 - found by the line above

ALLOWED = 1.2, 0.05  # times a time limit, and seconds more
CHILD = 60  # seconds for a child process


def judged(seed: int) -> Verdict:
    scenario = SCENARIOS[seed % len(SCENARIOS)]
    verdict, start = Verdict(), perf_counter()
    outcome = scenario(np.random.default_rng([44, seed]), verdict)
    verdict.seconds = perf_counter() - start
    verdict.outcome = f"{scenario.__name__}: {outcome}"
    return verdict


def outcome(case: systems.Case) -> Verdict:
    """The outcome of a call, without the changes of `judge.judged` to the whole process."""
    verdict = Verdict()
    try:
        result = answer(case)
        look(case, result, verdict)
        verdict.outcome = named(result)
    except FineluError as error:
        verdict.outcome = type(error).__name__
    return verdict


def small_case(rng: Any) -> systems.Case:
    """A case whose end does not depend on a clock."""
    while True:
        case = systems.case(int(rng.integers(2**31)))
        if case.quick:
            return case


def medium(rng: Any) -> tuple[Any, Any]:
    """A system of some hundred to some thousand rows, of which setting up takes a while."""
    n = int(rng.integers(200, 3000))
    match int(rng.integers(5)):
        case 0:
            A = sp.random(n, n, 6 / n, random_state=rng) + sp.eye(n)
        case 1:
            m = int(n**0.5)
            A = fl.gallery.convection_diffusion(m, m, 1, peclet=1e3, scheme="central")
        case 2:
            A = fl.gallery.arrow(n)[::-1][:, ::-1]
        case 3:
            A = sp.random(n, n, 10 / n, random_state=rng)
            A = A + A.T + 0.1j * sp.eye(n)
        case _:
            A = fl.gallery.poisson7(round(n ** (1 / 3)))
    A = sp.csr_matrix(A)
    return A, rng.standard_normal(A.shape[0])


def threads(rng: Any, verdict: Verdict) -> str:
    """Several threads solve at once, each its own system, and one of them the same again."""
    cases = [small_case(rng) for _ in range(int(rng.integers(2, 7)))]
    begin = threading.Barrier(len(cases))

    def work(case: systems.Case) -> Any:
        begin.wait()
        try:
            return [answer(case) for _ in range(3)]
        except FineluError:
            return []

    fl.set_num_threads(int(rng.integers(1, 4)))
    with ThreadPoolExecutor(len(cases)) as pool:
        found = list(pool.map(work, cases))
    for case, results in zip(cases, found):
        for result in results:
            look(case, result, verdict)
    return f"{len(cases)}"


def fork(rng: Any, verdict: Verdict) -> str:
    """The process is forked while one of its threads solves; the child solves, too."""
    A, b = medium(rng)
    over = threading.Event()
    fl.set_num_threads(int(rng.integers(1, 4)))
    case = small_case(rng)
    for _ in range(2):  # a fork while another thread imports or compiles leaves CPython's and Numba's locks held
        fl.solve(A, b, recipe="ilu0", method="gmres", maxiter=20)
        outcome(case)

    def busy() -> None:
        while not over.is_set():
            fl.solve(A, b, recipe="ilu0", method="gmres", maxiter=20)

    worker = threading.Thread(target=busy)
    worker.start()
    sleep(float(rng.uniform(0, 0.02)))
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 2 if outcome(case).faults else 0
        finally:
            os._exit(status)
    ended = 0
    for _ in range(CHILD * 100):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        sleep(0.01)
    over.set()
    worker.join()
    if not ended:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        verdict.faults.append(f"the child of a fork hangs for {CHILD} s")
    elif status:
        verdict.faults.append(f"the child of a fork ended with status {status}")
    return "child ended"


def interrupt(rng: Any, verdict: Verdict) -> str:
    """SIGINT at a random moment: KeyboardInterrupt, and the next call gives the bits of an undisturbed one."""
    A, b = medium(rng)
    recipe = str(rng.choice(["ilut", "ilu0", "multilevel", "parilut", "iluk", "sparse_lu"]))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    before, seconds = "", 0.0

    def work() -> Any:
        try:
            return fl.solve(A, b, recipe=recipe, method="gmres", maxiter=50).x.tobytes()
        except FineluError as error:
            return str(error)

    for _ in range(2):
        start = perf_counter()
        before = work()
        seconds = perf_counter() - start
    came = Interrupted(random.Random(int(rng.integers(2**31))).random() * seconds).during(work)
    if came != "KeyboardInterrupt":
        verdict.faults.append(f"{recipe}: {came} came instead of KeyboardInterrupt")
    if work() != before:
        verdict.faults.append(f"{recipe}: other bits after an interrupt")
    return came


def deadline(rng: Any, verdict: Verdict) -> str:
    """A time limit that ends within the work."""
    A, b = medium(rng)
    limit = 10.0 ** float(rng.uniform(-2.5, -0.3))
    recipe = "auto" if rng.random() < 0.6 else str(rng.choice(["ilut", "parilut", "iluk", "multilevel", "schwarz"]))
    ended = ""
    for _ in range(3):  # the first may compile
        with compile_clock() as compiling:
            start = perf_counter()
            try:
                solution = fl.solve(A, b, rtol=1e-12, recipe=recipe, time_limit=limit)
                ended = solution.status.name
                if solution.converged and not Measured(A, b, solution.x).meets(1e-12, 0.0, 1e-6):
                    verdict.faults.append("false claim")
            except FineluError as error:
                ended = type(error).__name__
            seconds = perf_counter() - start - compiling()
        if seconds <= ALLOWED[0] * limit + ALLOWED[1]:
            return ended
    verdict.late = not verdict.faults
    verdict.faults.append(f"{recipe}, {A.shape[0]} rows: {seconds:.3f} s, with time_limit={limit:.3g}")
    return ended


class Wanted(Exception):
    pass


def callbacks(rng: Any, verdict: Verdict) -> str:
    """What a callback raises comes to the caller as it is; the next call is as if nothing had been."""
    case, left = small_case(rng), int(rng.integers(0, 5))

    def raising(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Wanted

    options = {str(rng.choice(["callback", "watch"])): raising}
    try:
        fl.solve(case.system.A, case.system.b, **options)
        ended = "ended before"
    except Wanted:
        ended = "raised"
    except FineluError as error:
        ended = type(error).__name__
    then = outcome(case)
    verdict.faults += then.faults
    return f"{ended}, {then.outcome}"


NAMES = [
    "klu_defaults", "klu_analyze", "klu_factor", "klu_solve", "klu_free_symbolic", "klu_free_numeric",
    "klu_refactor", "klu_rcond", "klu_malloc", "klu_free", "klu_tsolve", "klu_extract", "klu_z_factor",
    "klu_z_solve", "klu_l_analyze", "klu_l_factor", "amd_order", "amd_l_order", "amd_2", "amd_defaults",
    "amd_valid", "amd_aat", "btf_order", "btf_maxtrans", "btf_strongcomp", "colamd", "colamd_recommended", "dgstrf",
    "dgssv", "dgstrs", "SuiteSparse_malloc", "SuiteSparse_free", "SuiteSparse_config", "METIS_NodeND",
    "metis_nodend", "pardiso", "pardisoinit"
]  # fmt: skip
PROGRAM = """
import ctypes, sys
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
import numpy as np, scipy.sparse as sp
import finelu as fl

n, seed = int(sys.argv[2]), int(sys.argv[3])
A = (sp.random(n, n, 4 / n, random_state=seed) + 4 * sp.eye(n)).tocsr()
b = np.ones(n)
for recipe in ("auto", "sparse_lu", fl.SparseLU(ordering="colamd"), "multilevel", "ilut"):
    s = fl.solve(A, b, recipe=recipe)
    assert np.linalg.norm(b - A @ s.x) <= 1.1e-8 * np.linalg.norm(b), s
"""


def libraries(rng: Any, verdict: Verdict) -> str:
    """A library that exports the names of SuiteSparse, SuperLU, METIS and PARDISO to all has been loaded first."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return "no C compiler"
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "other.c"), Path(folder, "other.so")
        body = "\n".join(f"long {name}(void) {{ abort(); }}" for name in NAMES)
        source.write_text(f"#include <stdlib.h>\n{body}\n")
        subprocess.run([compiler, "-w", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        words = [str(library), str(int(rng.integers(20, 400))), str(int(rng.integers(1000)))]
        command = [sys.executable, "-c", PROGRAM, *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20 * CHILD)
    if done.returncode:
        verdict.faults.append(f"status {done.returncode}: {done.stderr[-300:]}")
    return f"status {done.returncode}"


SCENARIOS: tuple[Callable[[Any, Verdict], str], ...] = (
    *(threads, fork, interrupt, deadline, callbacks, threads, deadline, interrupt, callbacks, fork, libraries),
)
