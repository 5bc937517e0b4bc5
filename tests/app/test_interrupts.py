"""Ctrl-C at any moment: KeyboardInterrupt and nothing else, and what is done next is as if nothing had been."""

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from programs import forked

from finelu.kernels.cpu.runtime.arrays import Handed, hand_over
from finelu.kernels.cpu.runtime.jit import compiled

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "interrupts.py"
NAMES = ("ilut", "ilut_crout", "ict", "iluk", "parilut", "multilevel", "multilevel_general", "solve")
heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a job in the background ignores it, and what it starts


def python(*arguments, **options):
    found = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, **({"timeout": 120} | options)
    )
    return found.returncode, found.stdout, found.stderr


@pytest.mark.skipif(not TOOL.exists(), reason="tools/ comes with a checkout")
def test_interrupted_at_random_moments_every_call_raises_keyboard_interrupt_and_the_next_gives_the_same_bits():
    found = python("-X", "faulthandler", TOOL, "--times", 8, "--size", 12, *NAMES, timeout=600)
    assert found == (0, "".join(f"{name:20} {{'KeyboardInterrupt': 8}}\n" for name in NAMES), "")


@pytest.mark.slow
@pytest.mark.skipif(not TOOL.exists(), reason="tools/ comes with a checkout")
def test_the_same_a_hundred_times_for_every_recipe():
    status, out, err = python("-X", "faulthandler", TOOL, "--times", 100, timeout=3600)
    assert status == 0, out + err


@pytest.mark.gpu
@pytest.mark.skipif(not TOOL.exists(), reason="tools/ comes with a checkout")
def test_the_same_between_the_launches_on_a_gpu(backend):
    if backend.name != "cuda":
        pytest.skip("the CPU has a test of its own")
    status, out, err = python("-X", "faulthandler", TOOL, "--times", 8, "--gpu", timeout=600)
    assert status == 0, out + err


# Numba builds what a kernel returns by calling Python code inside of the kernel, where an exception is not looked for.
# What calls it is seen at numba.core.serialize._numba_unpickle, which is that code.
SPY = """
import sys
import numba.core.serialize as serialize

unpickle, seen = serialize._numba_unpickle, set()


def spy(*arguments):
    caller = sys._getframe(1).f_code
    if "finelu" in caller.co_filename and "test" not in caller.co_filename:
        seen.add(f"{caller.co_filename}: {caller.co_name}")
    return unpickle(*arguments)


serialize._numba_unpickle = spy  # before anything is compiled, as Numba keeps it
import numpy as np

import finelu as fl
from finelu.errors import ParameterError
from finelu.interop.scipy import spilu
from finelu.krylov import METHODS
from finelu.ordering import ORDERS
from finelu.preconditioners import RECIPES
from finelu.properties import properties
from finelu.scaling import matching

A = fl.as_csr(fl.gallery.problem("poisson7:6"))
b = np.ones(A.n)
properties(A)
for symmetric in (False, True):
    matching(A, symmetric=symmetric)
    fl.MultilevelILU(symmetric=symmetric, dense_size=3).factor(A).solve(b)
for order in ORDERS.values():
    try:
        order(A)
    except ParameterError:  # of a package that is not installed
        pass
for name, recipe in RECIPES.items():
    F = (recipe(block_size=2) if name in ("block_ilu0", "cpr") else recipe()).factor(A)
    F.update(A)
    for trans in "NTH":
        F.solve(b, trans)
fl.ILUT(form="crout").factor(A)
for method in METHODS:
    getattr(fl, method)(A, b, M=fl.ILU0().factor(A))
fl.solve(A, b)
print(*sorted(seen), sep="\\n", end="")
"""


def test_no_kernel_makes_numba_call_python_code_for_what_it_returns():
    assert python("-c", SPY, timeout=600) == (0, "", "")


@compiled
def _two(n, slots):
    hand_over(np.arange(n), slots, 0)
    hand_over(np.full(n, 0.5), slots, 1)
    return n


def test_what_a_kernel_hands_over_belongs_to_python_then():
    with Handed(2) as handed:
        assert _two(5, handed.slots) == 5
        first, second = handed.take(0, np.int64), handed.take(1, np.float64)
    del handed
    for _ in range(20):  # other memory of the same size, if it were free
        with Handed(2) as other:
            _two(5, other.slots)
    np.testing.assert_array_equal(first, np.arange(5))
    np.testing.assert_array_equal(second, np.full(5, 0.5))
    with Handed(2) as handed:
        assert _two(0, handed.slots) == 0 and handed.take(0, np.int64).size == 0


def test_arrays_that_are_not_taken_are_given_back():
    from numba.core.runtime import _nrt_python as nrt

    nrt.memsys_enable_stats()
    try:
        before = nrt.memsys_get_stats_alloc() - nrt.memsys_get_stats_free()
        with Handed(2) as handed:
            _two(1000, handed.slots)
        assert nrt.memsys_get_stats_alloc() - nrt.memsys_get_stats_free() == before
        with Handed(2) as handed:
            _two(1000, handed.slots)
            kept = handed.take(1, np.float64)
        assert nrt.memsys_get_stats_alloc() - nrt.memsys_get_stats_free() == before + 1 and kept.size == 1000
    finally:
        nrt.memsys_disable_stats()


# A Ctrl-C that is certain to come while the kernel runs: a thread sends it once the kernel has begun, which it sees by
# the function that the kernel is called through.
CAUGHT_IN_A_KERNEL = """
import os, signal, sys, threading
import finelu.kernels.cpu.threshold as threshold
from finelu.cli import main

signal.signal(signal.SIGINT, signal.default_int_handler)
kernel = threshold._ilut


def sending(*arguments):
    begun = threading.Event()
    sender = threading.Thread(target=lambda: (begun.wait(), os.kill(os.getpid(), signal.SIGINT)))
    sender.start()
    begun.set()
    found = kernel(*arguments)
    sender.join()
    return found


threshold._ilut = sending
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("json", [False, True])
def test_finelu_solve_ends_with_status_130_and_one_line(json):
    words = ("solve", "gallery:poisson7:20", "--recipe", "ilut", *(("--json",) if json else ()))
    found = forked(partial(exec, CAUGHT_IN_A_KERNEL, {}), *words)
    said = ('{"error": "interrupted"}\n', "") if json else ("", "finelu: interrupted\n")
    assert found == (130, *said)


# A Ctrl-C where LLVM has linked a module, and so freed it, but Python does not know yet.
CAUGHT_IN_LLVM = """
import signal
from llvmlite.binding.module import ModuleRef

detach = ModuleRef.detach


def interrupted(module):
    ModuleRef.detach = detach
    signal.raise_signal(signal.SIGINT)
    return detach(module)


import numpy as np

from finelu.kernels.cpu.runtime.jit import compiled


@compiled
def added(x, y):
    return np.add(x, y).sum()


signal.signal(signal.SIGINT, signal.default_int_handler)
ModuleRef.detach = interrupted
try:
    added(np.ones(3), np.ones(3))
except KeyboardInterrupt:
    print("interrupted", ModuleRef.detach is detach, len(added.signatures), added(np.ones(3), np.ones(3)))
"""


def test_an_interrupt_between_two_lines_that_free_one_object_waits(tmp_path):
    found = tmp_path / "found.py"
    found.write_text(CAUGHT_IN_LLVM)
    env = os.environ | {"FINELU_CACHE": str(tmp_path)}
    assert python("-X", "faulthandler", found, preexec_fn=heard, env=env) == (0, "interrupted True 1 6.0\n", "")


# Ctrl-C at the import number argv[1] from the start of the command on; there are some thousand.
AT_AN_IMPORT = """
import os, signal, sys
import finelu.start

moment, seen = int(sys.argv.pop(1)), 0


def at(event, _):
    global seen
    if event == "import":
        seen += 1
        if seen == moment:
            os.kill(os.getpid(), signal.SIGINT)


sys.addaudithook(at)
finelu.start.main()
"""
MOMENTS = [1, 2, *(int(k) for k in np.random.default_rng(0).integers(3, 900, 3))]


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_while_the_program_starts_is_one_line(moment):
    json = moment % 2 == 0
    words = ("solve", "gallery:poisson7:6", *(("--json",) if json else ()))
    found = python("-c", AT_AN_IMPORT, moment, *words, preexec_fn=heard, env=os.environ)
    said = ('{"error": "interrupted"}\n', "") if json else ("", "finelu: interrupted\n")
    assert found == (130, *said)


def test_a_background_job_that_ignores_ctrl_c_goes_on():
    deaf = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    status, out, err = python("-c", AT_AN_IMPORT, 50, "--version", preexec_fn=deaf, env=os.environ)
    assert (status, out.partition(" ")[0], err) == (0, "finelu", "")
