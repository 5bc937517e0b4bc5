"""How the kernels are compiled, and how their machine code is kept for later processes."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from numba import config, njit
from numba.core import event
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.serialize import dumps
from numba.core.sigutils import normalize_signature

from finelu import compiling
from finelu.errors import DeviceError
from finelu.kernels.cpu.runtime.loader import Loaded, load
from finelu.kernels.cpu.runtime.store import Damaged, Record, Store

if config.DISABLE_JIT:
    raise DeviceError("NUMBA_DISABLE_JIT is set, but the kernels of the CPU need Numba's compiler; unset it.")


_loading, _collecting = threading.RLock(), threading.Lock()
_paused = 0  # threads that compile, for which the garbage collector pauses


def nested(function: Callable) -> Callable:
    """Numba's njit for a function that only kernels call: Python and C get no entry, whose compilation takes up to as
    long as that of the function itself. It is not kept."""
    kernel = njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)(function)

    def refused(*_: object, **__: object) -> None:
        raise TypeError(f"{function.__name__} has no entry for Python: only kernels call it")

    def add(result: CompileResult) -> None:
        kernel.overloads[tuple(result.signature.args)] = result  # and no entry, which would be null

    kernel._compile_for_args, kernel.add_overload = refused, add
    return kernel


class Cache:
    """Numba's interface of a cache, for one kernel: `store` holds the code for other processes.

    Attributes:
    known : by signature, all that Python can call in this process; None: compiled by it.
    nested : whether code is wanted for a kernel that calls this one, under Numba's lock of the compiler.
    """

    def __init__(self, function: Callable) -> None:
        self.store = Store(function)
        self.known: dict[str, Loaded | None] = {}
        self.nested = False

    def entry(self, kernel, types: tuple) -> Callable | None:
        """The compiled form for arguments of these types, which the kernel knows from then on; None without any."""
        signature = _text(types)
        with _loading:
            if signature not in self.known:
                record = self.store.find(signature)
                if record is None:
                    return None
                try:
                    loaded = load(record, kernel.py_func)
                except Damaged as error:
                    self.store.discard(signature, error)
                    return None
                kernel._insert([each._code for each in types], loaded.entry, False)
                self.known[signature] = loaded
        found = self.known[signature]
        return None if found is None else found.entry

    def native(self, types: tuple) -> tuple[int, object, tuple] | None:
        """Address, type of the result and types of the arguments of loaded code; None if this process compiled it."""
        found = self.known.get(_text(types))
        return None if found is None else (found.address, *pickle.loads(found.types))

    def load_overload(self, sig, target_context) -> CompileResult | None:
        """For a kernel that is compiled and calls this one; None to compile this one, too."""
        if not self.nested:
            return None  # for Python `entry` has looked
        target_context.refresh()
        library = self.store.library(_text(normalize_signature(sig)[0]))
        if library is None:
            return None
        try:
            return CompileResult._rebuild(target_context, *pickle.loads(library))
        except (ImportError, AttributeError):  # an earlier version's types of arguments
            return None

    def save_overload(self, sig, result: CompileResult) -> None:
        signature, compiled_library = _text(normalize_signature(sig)[0]), result.library
        if not self.nested:
            self.known[signature] = None
        if compiled_library.has_dynamic_globals or result.lifted:  # it holds addresses of this process
            compiling.not_kept()
            return
        if self.nested:
            kept = self.store.put_library(signature, dumps(result._reduce()))
        else:
            kept = self.store.put(_record(signature, result))
        if not kept:
            compiling.not_kept()

    def ready(self) -> bool:
        """Whether there is code of any signature, in this process or for it."""
        return bool(self.known) or self.store.holds_any()


def _record(signature: str, result: CompileResult) -> Record:
    """The record of a kernel that was compiled for Python."""
    environments = [result.environment, *result._find_referenced_environments()]
    return Record(
        signature,
        result.fndesc.llvm_cpython_wrapper_name,
        result.fndesc.llvm_func_name,
        dumps({each.env_name: each.consts for each in environments}),
        dumps((result.fndesc.restype, result.fndesc.argtypes)),
        result.library._get_compiled_object(),
    )


def _text(types: tuple) -> str:
    """How a signature is written: "array(float64, 1d, C) | int64"."""
    return " | ".join(map(str, types))


def _forked() -> None:
    """A child has none of its parent's threads, of which one may have been compiling."""
    global _loading, _collecting, _paused
    _loading, _collecting = threading.RLock(), threading.Lock()
    if _paused:
        _paused = 0
        gc.enable()


os.register_at_fork(after_in_child=_forked)


@contextmanager
def held_back() -> Iterator[None]:
    """Ctrl-C waits for the end of the block.

    LLVM's objects are freed by Python code. An exception between two of its lines makes it free them a second time,
    which ends the process. Numba runs such code while it compiles a kernel or loads one from the disk.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield  # no handler runs here
        return
    came: list[tuple] = []
    try:
        signal.signal(signal.SIGINT, lambda *what: came.append(what))
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


@contextmanager
def no_collection() -> Iterator[None]:
    """Pause Python's garbage collector, which would otherwise visit the many objects of Numba again and again.

    At the end it is on if it was on at the begin, whatever other threads have set meanwhile.
    """
    global _paused
    pause = False
    try:
        with _collecting:
            pause = _paused > 0 or gc.isenabled()
            _paused += pause
            gc.disable()
        yield
    finally:
        with _collecting:
            if pause and _paused <= 1:  # 0 in a child that was forked meanwhile
                gc.enable()
            _paused = max(_paused - pause, 0)


def compiled(function: Callable, **options) -> Callable:
    """Numba's njit with the options of all kernels. Code that is kept is loaded; the rest is compiled.

    For kernels that call this one it is compiled without an entry for Python, like a function that is `nested`.
    """
    kernel = njit(nogil=True, error_model="numpy", no_cfunc_wrapper=True, **options)(function)  # C code calls none
    kernel._cache = cache = Cache(function)  # where Numba's decorator puts its own, with cache=True
    compile_for_args = no_collection()(kernel._compile_for_args)  # Numba's, for new types of arguments
    get_call_template, add_overload = kernel.get_call_template, kernel.add_overload

    @held_back()
    def load_or_compile(*args, **kws):
        types = tuple(map(kernel.typeof_pyval, args))
        entry = None if kws else cache.entry(kernel, types)
        if entry is None:
            with global_compiler_lock:
                if _text(types) not in cache.known:
                    kernel.overloads.pop(types, None)  # one without an entry
                entry = compile_for_args(*args, **kws)
        return entry

    def for_other_kernels(args, kws):
        """Numba's, for the types of a call in a kernel that is compiled."""
        with global_compiler_lock:
            before, cache.nested = cache.nested, True
            kernel.targetoptions["no_cpython_wrapper"] = True
            try:
                return get_call_template(args, kws)
            finally:
                cache.nested = kernel.targetoptions["no_cpython_wrapper"] = before

    def add(result):
        if cache.nested:
            kernel.overloads[tuple(result.signature.args)] = result
        else:
            add_overload(result)

    kernel._compile_for_args, kernel.get_call_template, kernel.add_overload = load_or_compile, for_other_kernels, add
    return kernel


def ready(kernel) -> bool:
    """Whether a kernel is compiled for some dtypes, in this process or on the disk; always True after
    `compile_eagerly`."""
    return compiling.eager or kernel._cache.ready()


# Sums in the order that the vector unit likes, the same in every run; NaN and Inf stay what they are. Not BLAS: NumPy's
# and SciPy's each bring their own threads, which wait for one another when both are called in turn.
summing = partial(compiled, fastmath={"reassoc"})


class _Listener(event.Listener):
    """Listens to all compilations of Numba in this process."""

    def on_start(self, started) -> None:
        if started.kind == "numba:compiler_lock":
            compiling.begin()
        elif (started.data["dispatcher"].py_func.__module__ or "").startswith("finelu."):
            compiling.begun()

    def on_end(self, ended) -> None:
        if ended.kind == "numba:compiler_lock":
            compiling.end()


for kind in ("numba:compile", "numba:compiler_lock"):
    event.register(kind, _Listener())
