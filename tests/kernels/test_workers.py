"""The worker pool: workers come to any kernel, to as many calls as there are, and never too late."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from finelu import threads as pool
from finelu.kernels.cpu.runtime import workers
from finelu.kernels.cpu.runtime.atomics import fetch_add, load_acquire, relax
from finelu.kernels.cpu.runtime.items import complete, next_item, wait_until_done
from finelu.kernels.cpu.runtime.jit import compiled

WAIT = 60  # s, for what ends by itself
FEW = round(workers.MAKES / (3 * workers.COMES))  # runs by three helpers of the pool that cost as much as an entry
LONG = 10**7  # looks, each with a call of the system: seconds


@compiled
def _meet(counts, count, seen):
    """Wait for `count` threads, but not for ever; seen[k] = 1 for the k-th that has met them all."""
    number = fetch_add(counts, 0, 1)
    rounds = 0
    while load_acquire(counts, 0) < count and rounds < LONG:
        relax(rounds)
        rounds += 1
    if rounds < LONG:
        seen[number] = 1


@compiled
def _add(state, done, come, pause, values, taken):
    """values[t] += 1 for each item t, and who took it; an item takes `pause` looks, the first until `come` are here."""
    t = next_item(state)
    number = fetch_add(state, 1, 1)
    while t < done.size:
        rounds = 0
        while t == 0 and load_acquire(state, 1) < come and rounds < LONG:
            relax(rounds)
            rounds += 1
        for _ in range(pause):
            load_acquire(state, 0)
        values[t] += 1
        taken[t] = number
        t = complete(state, done, t)
    wait_until_done(done, 0, done.size)


def add(count, threads=4, come=1, pause=0):
    state, done = np.zeros(2, np.int64), np.zeros(count, np.int8)
    values, taken = np.zeros(count), np.full(count, -1)
    workers.run(_add, threads, state, done, come, pause, values, taken)
    return values, taken


def met(count):
    counts, seen = np.zeros(1, np.int64), np.zeros(count, np.int8)
    workers.run(_meet, count, counts, count, seen)
    return seen.all()


def well_known(kernel, *args):
    """As if the pool had often run a kernel that is compiled."""
    workers._entry(kernel, args, workers.MAKES / workers.COMES)
    assert workers._entry(kernel, args, 1) is not None


@pytest.fixture(autouse=True)
def four_threads(monkeypatch):
    """A pool of three helpers, whatever the machine has, for the kernels of this file."""
    before = pool._wanted
    monkeypatch.setattr(pool, "available_cores", lambda: 4)
    pool.set_num_threads(4)
    if workers._present is not None and len(workers._present.helpers) != 3:  # made for this machine's cores
        workers._present.end()
        workers._present = None
    for _ in range(FEW + 2):
        add(4)
    met(1)
    well_known(_meet, np.zeros(1, np.int64), 1, np.zeros(4, np.int8))
    yield
    pool.set_num_threads(before or pool.available_cores())


@pytest.fixture
def no_pool(monkeypatch):
    """What the pool would run fails."""

    def run(kernel, *_):
        raise AssertionError(f"{kernel} was run by the pool")

    monkeypatch.setattr(pool, "run", run)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_all_helpers_come_again_and_again(no_pool, count):
    for _ in range(20):
        assert met(count)


def test_no_more_helpers_come_than_are_wanted(no_pool):
    for _ in range(200):
        _, taken = add(100, threads=2, come=2, pause=100)
        assert set(taken) <= {0, 1}


def test_every_item_is_done_once_and_nothing_is_written_after_the_call(no_pool):
    for k in range(2000):
        values, taken = add(k % 40, come=1 + k % 3, pause=k % 300)
        assert (values == 1).all()
        assert k % 3 == 0 or k % 40 < 2 or len(set(taken)) > 1
        values[:], taken[:] = np.nan, -2
        if k % 7 == 0:
            time.sleep(1e-4)
        assert np.isnan(values).all() and (taken == -2).all()


# Arguments -----------------------------------------------------------------------------------------------------------


@compiled
def _sums(counts, out, vector, matrix, part, fixed, none, yes, numpy_yes, integer, small, real, single, z, grid, *more):
    """Each thread writes down what it was given, once all are here."""
    k = fetch_add(counts, 0, 1)
    rounds = 0
    while load_acquire(counts, 0) < out.shape[0] and rounds < LONG:
        relax(rounds)
        rounds += 1
    out[k, 0] = vector.sum() + 10 * vector.size + (100 if none is None else 0)
    out[k, 1] = matrix[1, 2] + 10 * matrix.shape[0] + 100 * matrix.shape[1]
    out[k, 2] = part[1, 1].real + 10 * part[0, 2].imag + part.strides[0]
    out[k, 3] = fixed[0] + yes + 10 * numpy_yes
    out[k, 4] = integer + small
    out[k, 5] = real + single
    out[k, 6] = z.real + 10 * z.imag
    out[k, 7] = grid[0] + 10 * grid[1] + 100 * grid[2] + grid[3][1]
    out[k, 8] = more[0][1] + more[1] + 1000 * more[2][0, 1]


def test_helpers_see_the_arguments_as_the_caller_does(no_pool):
    rng = np.random.default_rng(0)
    fixed = rng.random(3)
    fixed.flags.writeable = False
    args = [
        np.arange(5, dtype=np.uint32),
        np.asfortranarray(rng.random((2, 3)).astype(np.float32)),
        (rng.random((6, 8)) + 1j * rng.random((6, 8)))[::2, 1::2],
        fixed,
        None,
        True,
        np.bool_(True),
        -3,
        np.int32(-7),
        1.5,
        np.float32(0.25),
        2 - 3j,
        (np.uint64(3), np.uint64(2**40), 5, np.arange(4.0)),
        np.arange(3, dtype=np.int64),
        np.complex64(1).real,
        rng.random((3, 4)),
    ]
    expected = np.zeros((1, 9))
    _sums(np.zeros(1, np.int64), expected, *args)
    for changes in ({}, {5: False, 6: np.bool_(False)}, {7: 2**40, 9: np.float64(-2.5), 11: np.complex128(4j)}):
        changed = [changes.get(k, value) for k, value in enumerate(args)]
        _sums(np.zeros(1, np.int64), expected, *changed)
        counts, out = np.zeros(1, np.int64), np.zeros((4, 9))
        well_known(_sums, counts, out, *changed)
        workers.run(_sums, 4, counts, out, *changed)
        assert (out == expected).all()


def test_what_the_workers_cannot_run_is_run_by_the_pool(monkeypatch):
    seen = []
    for _ in range(3 * FEW + 5):
        workers.run(lambda: seen.append(threading.get_ident()), 2)
    assert len(seen) >= 3 * FEW + 5
    monkeypatch.setattr(workers, "_entries", {})
    monkeypatch.setattr(workers, "_as_known", lambda: False)
    for _ in range(FEW + 5):
        assert (add(9)[0] == 1).all()
    assert set(workers._entries.values()) == {None}


def test_the_first_runs_are_the_pools_and_nothing_is_compiled_for_the_workers_before_it_pays(monkeypatch):
    ran = []
    monkeypatch.setattr(workers, "_entries", {})
    monkeypatch.setattr(pool, "run", lambda kernel, threads, *args: (ran.append(1), kernel(*args)))
    for _ in range(2 * FEW):
        add(3)
    by_pool = len(ran)
    assert FEW - 1 <= by_pool <= FEW + 1
    monkeypatch.setattr(workers, "_present", None)
    monkeypatch.setattr(workers, "_lost", 0.0)
    monkeypatch.setattr(workers, "_compiled_before", lambda: False)
    add(3)
    assert len(ran) == by_pool + 1 and workers._present is None
    monkeypatch.setattr(workers, "_lost", workers.COMPILES)
    add(3)
    assert len(ran) == by_pool + 1 and len(workers._present.helpers) == 3
    workers._present.end()


# Failures ------------------------------------------------------------------------------------------------------------


@compiled
def _fail(counts, who):
    """The thread that comes as number `who` fails, or each with who = 7; both are here before."""
    number = fetch_add(counts, 0, 1)
    rounds = 0
    while load_acquire(counts, 0) < 2 and rounds < LONG:
        relax(rounds)
        rounds += 1
    if number == who:
        raise ValueError("five", 5)
    if who == 7:  # all
        raise MemoryError("no room")
    return number


def test_what_a_thread_raises_is_raised_by_the_call(no_pool):
    _fail(np.ones(1, np.int64), -1)
    well_known(_fail, np.ones(1, np.int64), -1)
    for _ in range(50):
        for who in (0, 1):
            with pytest.raises(ValueError, match="five") as raised:
                workers.run(_fail, 2, np.zeros(1, np.int64), who)
            assert raised.value.args == ("five", 5)
        assert met(4)
    with pytest.raises(MemoryError, match="no room"):
        workers.run(_fail, 2, np.zeros(1, np.int64), 7)
    workers.run(_fail, 2, np.zeros(1, np.int64), -1)


@pytest.mark.skipif(os.name != "posix", reason="sends a signal to itself")
def test_an_interrupt_comes_when_no_helper_is_inside(no_pool):
    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    before, came = signal.signal(signal.SIGALRM, interrupt), 0
    values, taken, state, done = np.zeros(64), np.zeros(64, np.int64), np.zeros(2, np.int64), np.zeros(64, np.int8)
    try:
        for delay in np.random.default_rng(0).uniform(1e-5, 3e-3, 150):
            try:
                signal.setitimer(signal.ITIMER_REAL, delay)
                while True:
                    state[:], done[:] = 0, 0
                    workers.run(_add, 4, state, done, 1, 2000, values, taken)
            except Interrupted:
                came += 1
            values[:] = taken[:] = -5
            time.sleep(2e-4)
            assert (values == -5).all() and (taken == -5).all()
            assert (add(20)[0] == 1).all()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
    assert came == 150 and met(4)


# Several callers, pools and processes --------------------------------------------------------------------------------


def test_several_callers_at_once_while_the_number_of_threads_changes():
    failures, ends = [], time.monotonic() + 3

    def call(seed):
        rng = np.random.default_rng(seed)
        try:
            while time.monotonic() < ends:
                values, _ = add(int(rng.integers(50)), pause=int(rng.integers(500)))
                assert (values == 1).all()
        except BaseException as failure:
            failures.append(failure)

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for caller in callers:
        caller.start()
    while time.monotonic() < ends:
        pool.set_num_threads(2 + int(1000 * time.monotonic()) % 3)
        time.sleep(0.02)
    for caller in callers:
        caller.join(WAIT)
    assert not failures and not any(caller.is_alive() for caller in callers)


def test_a_second_caller_has_the_pool_while_the_first_has_the_workers():
    counts, seen = np.zeros(1, np.int64), np.zeros(4, np.int8)
    first = threading.Thread(target=workers.run, args=(_meet, 2, counts, 5, seen))  # five never come of themselves
    first.start()
    while counts[0] < 2:
        time.sleep(1e-3)
    assert (add(30)[0] == 1).all() and not seen.any()
    counts[0] = 5
    first.join(WAIT)
    assert not first.is_alive() and seen.sum() == 2


def test_what_was_begun_on_another_thread_takes_one_from_the_workers(no_pool):
    release = threading.Event()
    task = pool.begin(release.wait, WAIT)
    try:
        for _ in range(50):
            _, taken = add(200, pause=100)
            assert set(taken) <= {0, 1, 2}
    finally:
        release.set()
    task.wait()
    assert met(4)


def test_another_number_of_threads_ends_the_helpers_of_the_old_one():
    old = workers._present
    pool.set_num_threads(3)
    assert met(3) and workers._present is not old and len(workers._present.helpers) == 2
    old.join(WAIT)
    assert not any(helper.is_alive() for helper in old.helpers)


def test_helpers_that_have_nothing_to_do_sleep():
    add(100)
    deadline = time.monotonic() + WAIT
    while workers._present.control[workers.ASLEEP] < 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1
    assert met(4)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_has_workers_of_its_own():
    assert met(4)
    busy = threading.Thread(target=lambda: [add(50, pause=1000) for _ in range(50)])
    busy.start()
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if workers._present is None and met(4) and len(workers._present.helpers) == 3 else 3)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    busy.join(WAIT)
    assert not busy.is_alive() and met(4)


AT_WORK = """
import sys, threading
sys.path.insert(0, {folder!r})
import test_workers
from finelu import threads as pool

pool.available_cores = lambda: 4
pool.set_num_threads(4)
for _ in range(60):
    test_workers.add(4)
begun = threading.Event()

def work():
    while True:
        test_workers.add(100, pause=1000)
        begun.set()

if {working}:
    threading.Thread(target=work, daemon=True).start()
    begun.wait(60)
print(len(test_workers.workers._present.helpers))
"""


@pytest.mark.parametrize("working", [False, True], ids=["idle", "at work"])
def test_a_process_with_workers_ends(working):
    code = AT_WORK.format(folder=os.path.dirname(__file__), working=working)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "3\n", "")


def test_a_process_ends_that_has_taken_their_module_out_of_sys_modules():
    code = (
        AT_WORK.format(folder=os.path.dirname(__file__), working=False)
        + "del sys.modules[test_workers.workers.__name__]"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=WAIT)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "3\n", "")
