"""A pool of workers that stay inside compiled code between two calls of a kernel: a call wakes them in microseconds.

Numba's way into a kernel begins in Python: a thread takes Python's lock, looks at each argument, and gives the lock
back, one thread after the other. These workers do none of that. They spin in `serve`, without the lock, for half a
millisecond, then sleep on a futex. A call posts the address of a few machine instructions, its *entry*, which find the
arguments in Python's objects and call the kernel.

A call runs from its first step to its last in `lead`, where no signal handler comes between: it takes the pool, opens
the door, calls the kernel itself, closes the door, waits for the workers that came through, and releases the pool.

No race: JOB and ITEMS are written by the caller that holds the pool, after all workers have left the call before, and
read by those that came through the door that it opened then. Who came is known exactly: a worker comes by one atomic
addition to the word that says how many places there are, and closing the door is another to the same word. So no worker
is inside once `lead` has returned; until then its caller holds the objects that the entry reads.

Every wait ends: `lead` waits for workers inside the kernel, which leave it once all items are done (items.py), and for
no other, whether or not any worker comes. A worker sleeps only as long as the door has the generation that it has seen
there; one that oversleeps is not waited for.
"""

from __future__ import annotations

import atexit
import ctypes
import inspect
import itertools
import os
import pickle
import platform
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import typeof, types
from numba._dispatcher import compute_fingerprint
from numba.core.callconv import RETCODE_NONE, RETCODE_OK
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numba.np.numpy_support import as_dtype

from finelu import threads as pool
from finelu.kernels.cpu.runtime.atomics import exchange, fetch_add, load_acquire, relax, store_release
from finelu.kernels.cpu.runtime.jit import compiled, held_back, ready

SPIN = 2000  # looks at the door, about half a millisecond, before a helper sleeps
MAKES, COMPILES = 1e-3, 0.4  # s that it takes to make an entry, and to compile what the worker pool needs
COMES = 50e-6  # s that each thread of `finelu.threads` costs a call more than a worker

# Words of `control`. Those that different threads write lie in different cache lines.
DOOR = 0  # generation * 2^32 + places * 2^16 + how many have come, of which those beyond the places stay outside
JOB, ITEMS, HELPERS = 16, 17, 18  # the entry, the arguments' addresses, how many helpers there are
LEFT = 32  # how many of those that came through have left
TAKEN = 48  # whether a caller holds the pool
ASLEEP = 64  # helpers that are, or are about to be
ENDED, FAILURE = 80, 81
WORDS = 96
BUSY = -1  # what `lead` returns where another caller holds the pool

FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0)  # the number of Linux's call
WAIT, WAKE = 128, 129  # of threads of one process

_syscall = types.ExternalFunction("syscall", types.int64(*[types.int64] * 7))


@intrinsic
def _enter(typing, entry, items):
    """Call the entry at this address."""

    def generate(context, builder, signature, args):
        word = ir.IntType(64)
        function = builder.inttoptr(args[0], ir.FunctionType(word, [word]).as_pointer())
        return builder.call(function, [args[1]])

    return types.int64(types.int64, types.int64), generate


@compiled
def _places(door):
    """How many more may come."""
    return ((door >> 16) & 0xFFFF) - (door & 0xFFFF)


@compiled
def _wake(control, generation_at, places):
    """Wake two helpers, unless that many are awake. They wake two more each when they come: it takes 10 us for each."""
    asleep = fetch_add(control, ASLEEP, 0)
    if asleep > 0 and places > control[HELPERS] - asleep:
        _syscall(FUTEX, generation_at, WAKE, 2, 0, 0, 0)


@compiled
def serve(control, generation_at):
    """Come to every call that has a place, until the pool is ended. generation_at : the address of it in the door."""
    seen, rounds, woken = np.int64(-1), 0, False
    while load_acquire(control, ENDED) == 0:
        door = load_acquire(control, DOOR)
        if _places(door) > 0 and door >> 32 != seen:
            door = fetch_add(control, DOOR, 1)
            if _places(door) > 0:
                if woken:
                    _wake(control, generation_at, (door >> 16) & 0xFFFF)
                seen, rounds, woken = door >> 32, 0, False
                failure = _enter(control[JOB], control[ITEMS])
                if failure != 0:
                    store_release(control, FAILURE, failure)
                fetch_add(control, LEFT, 1)
        elif rounds < SPIN:
            relax(rounds)
            rounds += 1
        else:
            fetch_add(control, ASLEEP, 1)
            _syscall(FUTEX, generation_at, WAIT, door >> 32, 0, 0, 0)
            fetch_add(control, ASLEEP, -1)
            rounds, woken = 0, True


@compiled
def lead(control, generation_at, entry, items, places):
    """Run an entry together with up to `places` helpers. Returns 0, BUSY, or what a failed kernel has left."""
    if exchange(control, TAKEN, 1) != 0:
        return BUSY
    control[JOB], control[ITEMS], control[LEFT], control[FAILURE] = entry, items, 0, 0
    exchange(control, DOOR, ((load_acquire(control, DOOR) >> 32) + 1) << 32 | places << 16)
    _wake(control, generation_at, places)
    failure = _enter(entry, items)
    came = min(fetch_add(control, DOOR, -(places << 16)) & 0xFFFF, places)
    rounds = 0
    while load_acquire(control, LEFT) < came:
        relax(rounds)
        rounds += 1
    if failure == 0:
        failure = load_acquire(control, FAILURE)
    store_release(control, TAKEN, 0)
    return failure


@compiled
def _stop(control, generation_at):
    """The helpers end, once they have left what they are in."""
    store_release(control, ENDED, 1)
    fetch_add(control, DOOR, 1 << 32)
    _syscall(FUTEX, generation_at, WAKE, 1 << 30, 0, 0, 0)


class WorkerPool:
    """Helpers for `threads` threads in all, but no more than there are other cores: they wait for their turns."""

    def __init__(self, threads: int):
        self.threads = threads
        self.control = np.zeros(WORDS, np.int64)
        self.place = self.control, self.control.ctypes.data + 8 * DOOR + 4  # little-endian
        count = min(threads, pool.available_cores()) - 1
        self.control[HELPERS] = count
        _stop(*self.place)  # compiled or loaded by now, as a process that ends may do neither
        serve(*self.place)  # compiled by now
        self.control[ENDED] = 0
        self.helpers = [
            threading.Thread(target=serve, args=self.place, name=f"finelu_worker_{number}", daemon=True)
            for number in range(count)
        ]
        try:
            for helper in self.helpers:
                helper.start()
        except BaseException:  # no more threads
            self.end()
            raise

    def end(self) -> None:
        """The helpers take no further calls, and end; a caller that holds the pool still goes on."""
        _stop(*self.place)

    def join(self, seconds: float) -> None:
        limit = time.monotonic() + seconds
        for helper in self.helpers:
            helper.join(max(limit - time.monotonic(), 0.0))


class Entry:
    """The way into a kernel for arguments of given types.

    address : of a function that takes the address of an array of pointers to the arguments, Python's objects, and
    returns 0 or what `_raised` reads.  changes : positions of arguments that it needs as NumPy's numbers, and how.
    """

    def __init__(self, address: int, changes: list[tuple[int, Callable]]):
        self.address, self.changes = address, changes

    def run(self, workers: WorkerPool, args: tuple, helpers: int) -> int:
        """As `lead`."""
        if self.changes:
            changed = list(args)
            for k, change in self.changes:
                changed[k] = change(changed[k])
            args = tuple(changed)
        return lead(*workers.place, self.address, id(args) + tuple.__basicsize__, helpers)


def run(kernel: Callable[..., Any], threads: int, *args: Any) -> None:
    """As finelu.threads.run; by the worker pool, if free, once runs by `finelu.threads` have cost as much as an entry.

    A kernel that fails raises what it raised in the calling thread, or else in one of the helpers.
    """
    if threads == 1:
        kernel(*args)
        return
    all_threads = pool.get_num_threads()
    helpers = min(threads, all_threads) - 1
    if helpers > 0 and isinstance(kernel, Dispatcher):
        entry = _entry(kernel, args, helpers)
        workers = _workers(all_threads, helpers) if entry is not None else None
        if workers is not None:
            failure = entry.run(workers, args, max(min(helpers, len(workers.helpers)) - pool.aside(), 0))
            if failure == 0:
                return
            if failure != BUSY:
                raise _raised(failure)
    pool.run(kernel, threads, *args)


def _raised(failure: int) -> BaseException:
    """The exception that Numba's code describes at that address: where a pickle of it lies, and of which size."""
    if failure == UNKNOWN:
        return SystemError("a kernel has failed without an exception")
    data = ctypes.c_void_p.from_address(failure).value
    size = ctypes.c_int32.from_address(failure + ctypes.sizeof(ctypes.c_void_p)).value
    kind, arguments, _ = pickle.loads(ctypes.string_at(data, size))
    return kind(*arguments or ())


# The worker pool of this process ----------------------------------------------------------------------------------

_lock = threading.Lock()
_present: WorkerPool | None = None
_lost = 0.0  # s that runs by `finelu.threads` have cost without a worker pool


def _workers(threads: int, helpers: int) -> WorkerPool | None:
    """The worker pool, once it pays to compile its kernels; None before, and without a second core."""
    global _present, _lost
    workers = _present
    if workers is None or workers.threads != threads:
        _lost += helpers * COMES  # threads that add at once may lose one addend
        if not (_lost > COMPILES or _compiled_before()):
            return None
        with held_back(), _lock:
            workers = _present
            if workers is None or workers.threads != threads:
                _end_at_exit()
                if workers is not None:
                    workers.end()
                workers = _present = WorkerPool(threads)
    return workers if workers.helpers else None


@cache
def _compiled_before() -> bool:
    return ready(lead)


def compile_kernels() -> None:
    """Compile what the worker pool needs, or load it, where there can be a pool."""
    if _as_known():
        control = np.zeros(WORDS, np.int64)
        place = control, control.ctypes.data + 8 * DOOR + 4
        _stop(*place)
        serve(*place)
        control[TAKEN] = 1
        lead(*place, 0, 0, 0)  # is busy


@cache
def _end_at_exit() -> None:
    """No helper waits in code, or reads a `control`, that is taken down with the process."""

    def end() -> None:
        if _present is not None:
            _present.end()
            _present.join(pool.AT_EXIT)

    atexit.register(end)


def _after_fork() -> None:
    """A child has none of its parent's helpers: it makes its own pool when it needs one."""
    global _lock, _present
    _lock, _present = threading.Lock(), None


os.register_at_fork(after_in_child=_after_fork)


# Entries ----------------------------------------------------------------------------------------------------------

UNKNOWN = 1  # failed, but not with an exception
FIELDS = ("meminfo", "parent", "nitems", "itemsize", "data", "shape", "strides")  # of an array in Numba's code
HEAD = object.__basicsize__ // 8  # words of an object before what is its own: of a number its value, of an array
DATA, SHAPE, STRIDES = HEAD, HEAD + 2, HEAD + 3  # the addresses of these
WORD = ir.IntType(64)
NUMBERS = types.Boolean, types.Number
NAMES = itertools.count()

_entries: dict[tuple[Dispatcher, bytes], float | Entry | None] = {}  # or s that runs have cost without one


def _entry(kernel: Dispatcher, args: tuple, helpers: int) -> Entry | None:
    """The entry for arguments of these types, once it pays to make it; None where there can be none."""
    try:
        key = kernel, compute_fingerprint(args)
    except NotImplementedError:  # of other arguments than numbers, arrays and tuples of them
        return None
    found = _entries.get(key, 0.0)
    if isinstance(found, float):
        found += helpers * COMES
        if found > MAKES:
            with held_back(), _lock:
                found = _made(kernel, args)
        _entries[key] = found
    return found if isinstance(found, Entry) else None


def _made(kernel: Dispatcher, args: tuple) -> Entry | None:
    """An entry of a few lines: kernels get from it the same as from Numba's own entry, except for the owners of arrays,
    which the caller holds. None for a kernel, or arguments, of a kind that finelu does not share out."""
    named, star = kernel.py_func.__code__.co_argcount, kernel.py_func.__code__.co_flags & inspect.CO_VARARGS
    folded = (*args[:named], args[named:]) if star else args
    given = tuple(map(typeof, folded))
    if not _as_known():
        return None
    if (code := kernel.overloads.get(given)) is not None:
        kernel_at, result, argtypes = (
            code.library.get_pointer_to_function(code.fndesc.llvm_func_name),
            code.fndesc.restype,
            code.fndesc.argtypes,
        )
    elif (known := kernel._cache.native(given)) is not None:
        kernel_at, result, argtypes = known
    else:
        return None
    context, kinds = cpu_target.target_context, list(argtypes)
    if star:
        kinds[named:] = kinds[named].types
    function = context.call_conv.get_function_type(result, argtypes)
    module = ir.Module()
    entry = ir.Function(module, ir.FunctionType(WORD, [WORD]), f"finelu_entry_{next(NAMES)}")
    builder = ir.IRBuilder(entry.append_basic_block())
    slots = [builder.alloca(kind.pointee) for kind in function.args[:2]]  # of the result and of an exception
    for slot in slots:
        builder.store(slot.type.pointee(None), slot)
    flat = _Flat(context, builder, iter(function.args[2:]))
    if not kernel_at or not all(flat.add(kind, entry.args[0], k) for k, kind in enumerate(kinds)):
        return None
    status = builder.call(builder.inttoptr(WORD(kernel_at), function.as_pointer()), [*slots, *flat.values])
    error = builder.ptrtoint(builder.load(slots[1]), WORD)
    error = builder.select(builder.icmp_signed(">", status, status.type(0)), error, WORD(UNKNOWN))
    good = [builder.icmp_signed("==", status, code) for code in (RETCODE_OK, RETCODE_NONE)]
    builder.ret(builder.select(builder.or_(*good), WORD(0), error))
    engine = _engine()
    engine.add_module(llvm.parse_assembly(str(module)))
    engine.finalize_object()
    changes = [(k, change) for k, change in enumerate(map(_as_numpy, kinds)) if change is not None]
    return Entry(engine.get_function_address(entry.name), changes)


def _as_numpy(kind) -> Callable | None:
    """What makes of such an argument, which is or holds numbers, one with NumPy's objects; None for others."""
    if isinstance(kind, NUMBERS):
        return as_dtype(kind).type
    each = [_as_numpy(one) for one in kind.types] if isinstance(kind, types.BaseTuple) else []
    if not any(each):
        return None
    return lambda values: tuple(change(v) if change else v for change, v in zip(each, values))


class _Flat:
    """The arguments of a kernel as its machine code takes them: one after the other, arrays and tuples in pieces."""

    def __init__(self, context, builder, kinds):
        self.context, self.builder, self.kinds, self.values = context, builder, kinds, []

    def add(self, kind, items, k: int) -> bool:
        """Add the argument that items[k] points to; whether it is of a kind that is known here."""
        if isinstance(kind, types.NoneType):
            self.values.append(next(self.kinds)(None))
            return True
        at = self._word(items, k)
        if isinstance(kind, types.BaseTuple):
            first = self.builder.add(at, WORD(tuple.__basicsize__))
            return all(self.add(one, first, m) for m, one in enumerate(kind.types))
        if isinstance(kind, types.Array):
            return self._add_array(kind, at)
        if isinstance(kind, types.Complex):
            return self._add_number(at, 0) and self._add_number(at, 1)
        return isinstance(kind, NUMBERS) and self._add_number(at, 0)

    def _add_array(self, kind, at) -> bool:
        if tuple(self.context.data_model_manager[kind]._fields) != FIELDS:
            return False
        lists = [self._word(at, k) for k in (SHAPE, STRIDES)]
        shape, strides = ([self._word(words, k) for k in range(kind.ndim)] for words in lists)
        size = WORD(1)
        for length in shape:
            size = self.builder.mul(size, length)
        owners = [next(self.kinds)(None) for _ in range(2)]
        itemsize = WORD(as_dtype(kind.dtype).itemsize)
        next(self.kinds), next(self.kinds)
        data = self.builder.inttoptr(self._word(at, DATA), next(self.kinds))
        for _ in range(2 * kind.ndim):
            next(self.kinds)
        self.values += [*owners, size, itemsize, data, *shape, *strides]
        return True

    def _add_number(self, at, k: int) -> bool:
        """Add a number of at most one word; a truth value is a byte of NumPy, converted by Numba."""
        kind = next(self.kinds)
        address = self.builder.add(at, WORD(8 * HEAD))
        place = self.builder.inttoptr(address, kind.as_pointer())
        self.values.append(self.builder.load(self.builder.gep(place, [WORD(k)])))
        return True

    def _word(self, address, k: int):
        """The k-th word at an address."""
        place = self.builder.inttoptr(address, WORD.as_pointer())
        return self.builder.load(self.builder.gep(place, [WORD(k)]))


@cache
def _engine():
    machine = llvm.Target.from_default_triple().create_target_machine(opt=0, jit=True)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


@cache
def _as_known() -> bool:
    """Whether this is a system, and a Python and a NumPy whose objects have the layout, that entries are made for."""

    def word(address: int, k: int) -> int | None:
        return ctypes.c_uint64.from_address(address + 8 * k).value

    array, number = np.zeros((3, 5))[:, 1:], np.uint64(0x123456789ABCDEF)
    at, both = id(array), (array, number)
    lists = [[word(word(at, k), m) for m in range(2)] for k in (SHAPE, STRIDES)]
    return (
        FUTEX > 0
        and (sys.platform, sys.byteorder, ctypes.sizeof(ctypes.c_void_p)) == ("linux", "little", 8)
        and [word(id(both) + tuple.__basicsize__, k) for k in range(2)] == [at, id(number)]
        and word(id(number), HEAD) == int(number)
        and word(at, DATA) == array.ctypes.data
        and lists == [[3, 4], [40, 8]]
    )
