"""cuDSS, NVIDIA's library for complete factorizations, by ctypes: finding the library, and one matrix in it.

Names and numbers are those of cudss.h and cudss_data_types.h, version 1.0. Only the functions at the end use CuPy, so
that all others run without a GPU.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from finelu.errors import FineluError
from finelu.kernels.cuda.runtime.libraries import cuda_version, declared, places
from finelu.threads import Task

VERSION = 1  # of the library, its major one, whose numbers these are
SUCCESS, NO_MEMORY = 0, 2  # cudssStatus_t
STATUS = {
    1: "it is not initialized",
    NO_MEMORY: "it finds no room",
    3: "it refuses a value",
    4: "it does not support this",
    5: "the execution failed",
    6: "an error of its own",
    7: "its refinement failed",
}
ORDERING, MATCHING, SOLVE_MODE, HOST_THREADS, DETERMINISTIC = 0, 3, 4, 14, 24  # cudssConfigParam_t, each an int
INFO, LU_NNZ, NPIVOTS, HOST_INTERRUPT = 0, 1, 2, 23  # cudssDataParam_t
ANALYSIS, FACTORIZATION, REFACTORIZATION, SOLVE = 3, 4, 8, 1008  # cudssPhase_t
GENERAL, SYMMETRIC, HERMITIAN, SPD, HPD = range(5)  # cudssMatrixType_t
FULL, UPPER = 0, 2  # cudssMatrixViewType_t; with UPPER entries below the diagonal are ignored
FROM_ZERO, BY_COLUMNS = 0, 0  # cudssIndexBase_t, cudssLayout_t: it takes no other layout
DEFAULT_ORDER, AMD, DISSECTION, GIVEN = 0, 3, 4, 5  # cudssReorderingAlg_t
NO_MATCHING, PRODUCT, OWN_MATCHING = 0, 5, 6  # cudssMatchingAlg_t, the last is the default
MODES = {"N": 0, "T": 1, "H": 2}  # cudssSolveMode_t
TYPES = {"float32": 0, "float64": 1, "complex64": 4, "complex128": 5, "int32": 10, "int64": 24}  # cudaDataType_t
UNNOTICED = 0.05  # s that a factorization may take on the thread that hears of signals
LOOKS = 0.1  # s after which a thread that waits for another looks for signals
OF_THREAD = 2  # the address that stands for the default stream of the calling thread
LAYER = f"libcudss_mtlayer_gomp.so.{VERSION}"

_pointer, _int, _long, _size = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_size_t
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cudssGetProperty": (_int, _pointer),
    "cudssCreate": (_pointer,),
    "cudssDestroy": (_pointer,),
    "cudssSetStream": (_pointer, _pointer),
    "cudssSetThreadingLayer": (_pointer, ctypes.c_char_p),
    "cudssSetJitCacheDir": (_pointer, ctypes.c_char_p),
    "cudssConfigCreate": (_pointer,),
    "cudssConfigDestroy": (_pointer,),
    "cudssConfigSet": (_pointer, _int, _pointer, _size),
    "cudssDataCreate": (_pointer, _pointer),
    "cudssDataDestroy": (_pointer, _pointer),
    "cudssDataSet": (_pointer, _pointer, _int, _pointer, _size),
    "cudssDataGet": (_pointer, _pointer, _int, _pointer, _size, _pointer),
    "cudssMatrixCreateDn": (_pointer, _long, _long, _long, _pointer, _int, _int),
    "cudssMatrixCreateCsr": (_pointer, _long, _long, _long, *[_pointer] * 4, *[_int] * 6),
    "cudssMatrixDestroy": (_pointer,),
    "cudssExecute": (_pointer, _int, *[_pointer] * 5),
}


class Library(NamedTuple):
    """calls : its functions, declared; None where there is no library.  missing : then why, in words.

    layer : the file of its threads on the host, None without one.  version : of the library.
    """

    calls: Any
    missing: str = ""
    layer: str | None = None
    version: str = ""


@cache
def library() -> Library:
    """cuDSS for the version of CUDA that CuPy uses."""
    return found(cuda_version())


def found(cuda: int) -> Library:
    """cuDSS out of the wheel for this major version of CUDA, or where the loader finds it."""
    install = f"pip install 'finelu[cudss{cuda}]'"
    missing = f"cuDSS is not installed: {install}"
    _load_what_it_needs()
    for name in places(f"nvidia-cudss-cu{cuda}", "cudss", VERSION):
        try:
            calls = ctypes.CDLL(name)
            version = [_property(calls, k) for k in range(3)]
            text = ".".join(map(str, version))
            if version[0] != VERSION:
                return Library(None, f"cuDSS {text} was found ({name}), and version {VERSION} is needed: {install}")
            return Library(declared(calls, PROTOTYPES), "", _layer(name), text)
        except (OSError, AttributeError) as error:
            if os.path.isabs(name):
                missing = f"cuDSS cannot be loaded: {error}"
    return Library(None, missing)


def _property(calls: Any, which: int) -> int:
    value = _int(-1)
    calls.cudssGetProperty(which, ctypes.byref(value))
    return value.value


def _layer(name: str) -> str | None:
    """The library of its threads, which stays loaded: a process may end badly where libgomp is taken out of it."""
    layer = os.environ.get("CUDSS_THREADING_LIB") or (
        str(Path(name).with_name(LAYER)) if os.path.isabs(name) else LAYER
    )
    try:
        ctypes.CDLL(layer)
    except OSError:
        return None
    return layer


def jit_folder() -> str | None:
    """Where kernels that cuDSS compiles are kept: the user's choice, by None, or a folder in that of CuPy's kernels."""
    if "CUDSS_JIT_CACHE_DIR" in os.environ:
        return None
    folder = Path(os.environ.get("CUPY_CACHE_DIR") or "~/.cupy/kernel_cache").expanduser() / "cudss"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return str(folder)


class Solver:
    """One matrix in the hands of cuDSS, on the GPU that is current as this is made.

    plan, factor, and then solve, or refactor, once `values` has others. All of them but `solve` wait for the GPU.
    Raises MemoryError where the library finds no room, FineluError for its other errors; a solver that has raised is
    to be closed. Not for several threads at a time.
    """

    def __init__(
        self,
        found: Library,
        indptr: Any,
        indices: Any,
        values: Any,
        blank: Any,
        kind: int,
        *,
        ordering: int = DEFAULT_ORDER,
        matching: int = OWN_MATCHING,
        deterministic: bool = False,
        threads: int = 1,
    ):
        """indptr (n + 1,), indices (nnz,), values (nnz,) : by rows, sorted, on the GPU; kept, and read in each call.
        blank (n,) : memory of this dtype that stands for a right-hand side if there is none.

        kind : of the matrix; unless it is GENERAL, only the upper triangle is read.  threads : of the host.
        """
        self._calls, self._arrays = found.calls, (indptr, indices, values, blank)
        self._device, self._stream = int(_cuda().runtime.getDevice()), _stream()
        self._stop = _int(0)
        self._made: list[tuple[Any, ...]] = []
        self._streams = {
            self._stream[0]: _cuda().get_current_stream()
        }  # that it has seen: one that is destroyed is a fault in it
        kept = self._stop, self._arrays, self._streams  # whose addresses the library has
        weakref.finalize(self, _destroy, self._made, self._device, kept).atexit = False
        try:
            self._make(found, kind)
            self._set_up(found, ordering, matching, deterministic, threads)
        except BaseException:
            self.close()
            raise

    def _make(self, found: Library, kind: int) -> None:
        indptr, indices, values, _ = self._arrays
        n, calls = indptr.size - 1, self._calls
        self._n, self._type = n, TYPES[values.dtype.name]
        self._handle = self._created("cudssCreate", destroy=calls.cudssDestroy)
        self._config = self._created("cudssConfigCreate", destroy=calls.cudssConfigDestroy)
        self._data = self._created("cudssDataCreate", self._handle, destroy=calls.cudssDataDestroy)
        self._matrix = self._created(
            "cudssMatrixCreateCsr",
            *(n, n, indices.size, _at(indptr), None, _at(indices), _at(values)),
            *(TYPES[indptr.dtype.name], TYPES[indices.dtype.name], self._type),
            *(kind, FULL if kind == GENERAL else UPPER, FROM_ZERO),
            destroy=calls.cudssMatrixDestroy,
        )
        # the flag itself, whose address is kept; the size is not looked at
        stop = ctypes.byref(self._stop)
        self._call("cudssDataSet", self._handle, self._data, HOST_INTERRUPT, stop, ctypes.sizeof(self._stop))

    def _created(self, function: str, *arguments: Any, destroy: Callable[..., int]) -> Any:
        """The object that a function makes; the first argument is its address, or, for data, the handle."""
        made = _pointer()
        last = function == "cudssDataCreate"
        status = getattr(self._calls, function)(*arguments[:last], ctypes.byref(made), *arguments[last:])
        if made.value:  # may be there even where the call has failed
            self._made.append((destroy, *arguments[:last], made))
        self._look_at(status, function)
        return made

    def _set_up(self, found: Library, ordering: int, matching: int, deterministic: bool, threads: int) -> None:
        """Set options that differ from the library's defaults. Threads and a folder for its kernels are optional."""
        self._mode, self._numeric = "N", 0.0
        chosen = (
            (ORDERING, ordering, DEFAULT_ORDER),
            (MATCHING, matching, OWN_MATCHING),
            (DETERMINISTIC, deterministic, 0),
        )
        for parameter, value, default in chosen:
            if value != default:
                self._set(parameter, int(value))
        layer, folder = found.layer, jit_folder()
        if layer and self._calls.cudssSetThreadingLayer(self._handle, os.fsencode(layer)) == SUCCESS:
            self._set(HOST_THREADS, threads)
        if folder:
            self._calls.cudssSetJitCacheDir(self._handle, os.fsencode(folder))

    def _set(self, parameter: int, value: int) -> None:
        self._call("cudssConfigSet", self._config, parameter, ctypes.byref(_int(value)), ctypes.sizeof(_int))

    def plan(self) -> None:
        """Matching, ordering and symbolic factorization, mostly on the host; Ctrl-C ends it."""
        self._aside(ANALYSIS)

    def factor(self) -> int:
        """Factor, after `plan`; 0, or the row, from 1 on, in the order of the library, where that was not possible."""
        return self._numbers(FACTORIZATION)

    def refactor(self) -> int:
        """Factor other values, after `factor`, with the same matching and order; returns as `factor`."""
        return self._numbers(REFACTORIZATION)

    def _numbers(self, phase: int) -> int:
        start = perf_counter()
        self._aside(phase)
        row = self._read(INFO)
        self._numeric = perf_counter() - start
        return row

    def solve(self, b: Any, x: Any, trans: str = "N") -> None:
        """x = A^-1 b, A^-T b ("T") or A^-H b ("H"); queued in the current stream.

        b, x : (n,), or (n, k) by columns, two arrays. "T" and "H" are for a GENERAL matrix, "H" for a complex one.
        """
        if trans != self._mode:
            self._mode = ""  # until the library has it, and this one knows
            self._set(SOLVE_MODE, MODES[trans])
            self._mode = trans
        with self._dense(b) as B, self._dense(x) as X:
            self._execute(SOLVE, _stream(), X, B)

    @property
    def nnz(self) -> int:
        """Entries of the factors."""
        return self._read(LU_NNZ, _long)

    @property
    def planned(self) -> int:
        """Entries that the factors will have, after `plan`; 0 where the library does not say."""
        try:
            return self.nnz
        except FineluError:
            return 0

    @property
    def replaced(self) -> int:
        """Pivots that were too small and have been replaced."""
        return self._read(NPIVOTS, _int if self._arrays[1].dtype.itemsize == 4 else _long)

    def close(self) -> None:
        """Free the objects of the library."""
        _destroy(self._made, self._device, None)

    # the calls

    def _aside(self, phase: int) -> None:
        """A phase on another thread, so that this one hears of Ctrl-C; the library looks at the flag now and then.

        New values are factored here where the last ones took less time than anybody notices.
        """
        stream, blank = _stream(), self._arrays[-1]
        here = phase == REFACTORIZATION and self._numeric < UNNOTICED
        if stream[0] == OF_THREAD and not here:  # that of another thread is another
            _cuda().runtime.deviceSynchronize()
            stream = 0, 0
        self._streams[stream[0]] = _cuda().get_current_stream()

        def run() -> None:
            with _cuda().Device(self._device), self._dense(blank) as X, self._dense(blank) as B:
                self._execute(phase, stream, X, B)

        self._stop.value = 0
        if here:
            run()
        else:
            aside(run, self._end)

    def _end(self) -> None:
        self._stop.value = 1

    def _execute(self, phase: int, stream: tuple[int, int], X: Any, B: Any) -> None:
        if stream != self._stream:  # it keeps intermediate results in memory of its own
            _cuda().runtime.deviceSynchronize()
            self._stream = stream
            self._streams[stream[0]] = _cuda().get_current_stream()
        self._call("cudssSetStream", self._handle, stream[0])
        self._call("cudssExecute", self._handle, phase, self._config, self._data, self._matrix, X, B)

    @contextmanager
    def _dense(self, array: Any) -> Iterator[Any]:
        """The library's description of an array (n,) or (n, k), by columns, for the time of a call."""
        columns, made = 1 if array.ndim == 1 else array.shape[1], _pointer()
        what = (self._n, columns, self._n, _at(array), self._type, BY_COLUMNS)
        self._call("cudssMatrixCreateDn", ctypes.byref(made), *what)
        try:
            yield made
        finally:
            self._calls.cudssMatrixDestroy(made)

    def _read(self, what: int, kind: Any = _int) -> int:
        """An integer of the library's, once the GPU has it."""
        found, written, by = kind(0), _size(0), ctypes.byref
        self._call("cudssDataGet", self._handle, self._data, what, by(found), ctypes.sizeof(found), by(written))
        return int(found.value)

    def _call(self, function: str, *arguments: Any) -> None:
        self._look_at(getattr(self._calls, function)(*arguments), function)

    def _look_at(self, status: int, function: str) -> None:
        if status == NO_MEMORY:
            raise MemoryError("SparseLU: cuDSS finds no room on the GPU")
        if status != SUCCESS:
            why = STATUS.get(status, "for a reason that it does not name")
            raise FineluError(f"SparseLU: cuDSS gave up: {why} ({function}, status {status})")


def aside(function: Callable[[], None], end: Callable[[], None]) -> None:
    """function() on a thread of its own, while this one waits.

    end : asks it to stop, where Ctrl-C comes, which then waits for it.
    """
    over = threading.Event()

    def run() -> None:
        try:
            function()
        finally:
            over.set()

    task = Task(run)
    try:
        threading.Thread(target=task.run, name="finelu-cudss", daemon=True).start()
        while not over.wait(LOOKS):  # a signal that another thread has received does not end a wait
            pass
    except BaseException:
        if not task.cancel():
            end()
            while not task.done():
                with suppress(KeyboardInterrupt):  # one more, while the first is on its way
                    task.wait()
        raise
    task.result()


def _destroy(made: list[tuple[Any, ...]], device: int, _: Any) -> None:
    """Destroy the objects, last first. _ : objects that must exist until then."""
    if made:
        with _cuda().Device(device):
            while made:
                destroy, *arguments = made.pop()
                destroy(*arguments)


# CuPy


def _load_what_it_needs() -> None:
    """cuBLAS and NVRTC as CuPy finds them, for a cuDSS that did not come with them."""
    for name in ("cublas", "nvrtc"):
        with suppress(Exception):
            import_module(f"cupy_backends.cuda.libs.{name}").getVersion()  # which loads NVRTC; cuBLAS is loaded by now


def free_idle_memory() -> None:
    """Let CuPy's pool free its unused memory: the library allocates memory by itself."""
    import_module("cupy").get_default_memory_pool().free_all_blocks()


def _cuda() -> Any:
    return import_module("cupy").cuda


def _stream() -> tuple[int, int]:
    """The address of the current stream; and the thread, where that is the default one of any thread, else 0."""
    address = int(_cuda().get_current_stream().ptr)
    return address, threading.get_ident() if address == OF_THREAD else 0


def _at(array: Any) -> int:
    return int(array.data.ptr)
