"""finelu in processes: spawn, fork, and the first calls of several threads."""

import multiprocessing
import subprocess
import sys

import numpy as np
import pytest
from programs import WAIT

import finelu as fl

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
