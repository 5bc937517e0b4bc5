"""How the kernels are compiled, and how their machine code is kept for later processes."""

from __future__ import annotations

import fcntl
import gc
import hashlib
import inspect
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, cached_property, partial
from pathlib import Path
from typing import IO

import numba
from numba import config, njit
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    InTreeCacheLocator,
    UserProvidedCacheLocator,
)

from finelu.errors import DeviceError
from finelu.kernels import compiling

if config.DISABLE_JIT:
    raise DeviceError("NUMBA_DISABLE_JIT is set, but the kernels of the CPU need Numba's compiler; unset it.")


KERNELS = Path(compiling.__file__).resolve().parent
PACKAGE = KERNELS.parent
PATIENCE = 10.0  # s that one process waits for another to save a kernel, which takes milliseconds

_locks: set[IO] = set()  # open ones; a child that is forked meanwhile has no use for them
_stuck = False  # a process has held a lock for longer: this one waits for no lock again
_collecting = threading.Lock()
_paused = 0  # threads that compile, for which the garbage collector pauses


class _Provided(UserProvidedCacheLocator):
    """NUMBA_CACHE_DIR, in a folder for each file and the digest of its sources: checkouts and versions share it."""

    @classmethod
    def get_suitable_cache_subpath(cls, py_file):
        path = Path(py_file).resolve()
        return f"{path.stem}_{_sources(path)}"


class _ReadOnly:
    """Numba's locator for an existing cache folder that cannot be written, as in an image that root warmed up."""

    @classmethod
    def from_function(cls, py_func, py_file):
        if super().from_function(py_func, py_file) is not None:
            return None
        found = cls(py_func, py_file) if config.CACHE_DIR or cls is not _ReadOnlyProvided else None
        return found if found and os.path.isdir(found.get_cache_path()) else None


class _ReadOnlyProvided(_ReadOnly, _Provided):
    """NUMBA_CACHE_DIR."""


class _ReadOnlyInTree(_ReadOnly, InTreeCacheLocator):
    """__pycache__ in the folder of the source."""


READ_ONLY = (_ReadOnlyProvided, _ReadOnlyInTree)


class _Kept(CompileResultCacheImpl):
    """Where Numba keeps compiled code; if it can write nowhere, a folder to read from."""

    _locator_classes = [_Provided, *CompileResultCacheImpl._locator_classes, *READ_ONLY]


IMPORTS = re.compile(r"^ *(?:from (finelu[\w.]*) import ([\w, ]+|\([^)]*\))|import (finelu[\w.]*))", re.MULTILINE)


@cache
def _content(path: Path) -> tuple[str, frozenset[Path]]:
    """The digest of a source, and the files of finelu's kernels that it imports."""
    source = path.read_bytes()
    imported: set[Path] = set()
    for package, names, module in IMPORTS.findall(source.decode()):
        for name in (module or package, *(f"{package}.{name}" for name in re.findall(r"\w+", names))):
            base = PACKAGE.parent.joinpath(*name.split("."))
            found = base.with_suffix(".py") if base.with_suffix(".py").is_file() else base / "__init__.py"
            if KERNELS in found.parents and found.is_file():
                imported.add(found)
    return hashlib.sha256(source).hexdigest(), frozenset(imported)


@cache
def _sources(path: Path) -> str:
    """A digest of Numba's version and of all files whose code or constants a kernel of this one may hold: the file and
    the kernels that it imports, directly or not. By content, so that a new checkout or installation of the same sources
    finds its code."""
    known = {path, Path(__file__).resolve()}
    left = [*known]
    while left:
        found = _content(left.pop())[1] - known
        known |= found
        left += found
    digests = sorted((file.name, _content(file)[0]) for file in known)
    return hashlib.sha256(repr((numba.__version__, digests)).encode()).hexdigest()


class _File(IndexDataCacheFile):
    """An index that names types of arguments which no longer exist is of an earlier version."""

    def _load_index(self):
        try:
            return super()._load_index()
        except (ImportError, AttributeError):
            return {}


class Cache(FunctionCache):
    """Numba's cache on the disk, except that code which cannot be written there is still used, and processes take
    turns.

    Without turns, two processes that compile one function for two dtypes at once may give both the same file.
    Code that is not in the folder that can be written is looked for in those that can only be read.
    """

    _impl_class = _Kept

    def __init__(self, py_func):
        super().__init__(py_func)
        self._cache_file = self._file_of(self._impl.locator)

    def _file_of(self, locator) -> _File:
        """An index in which code counts as made from the present sources, or is made again.

        Numba compares only the file of the function, though code and constants of other files are compiled into it.
        """
        return _File(
            cache_path=locator.get_cache_path(),
            filename_base=self._impl.filename_base,
            source_stamp=_sources(Path(inspect.getfile(self._py_func)).resolve()),
        )

    def load_overload(self, sig, target_context):
        found = super().load_overload(sig, target_context)
        if found is not None:
            return found
        key = self._index_key(sig, target_context.codegen())
        for file in self._others:
            if (data := file.load(key)) is not None:
                return self._impl.rebuild(target_context, data)
        if isinstance(self._impl.locator, READ_ONLY):
            compiling.not_kept()
        return None

    @cached_property
    def _others(self) -> list[_File]:
        source = inspect.getfile(self._py_func)
        found = (kind.from_function(self._py_func, source) for kind in READ_ONLY)
        return [
            self._file_of(locator)
            for locator in found
            if locator is not None and locator.get_cache_path() != self.cache_path
        ]

    @property
    def folder(self) -> str:
        """The folder of compiled code: NUMBA_CACHE_DIR, or a folder next to the source or in the home folder."""
        return config.CACHE_DIR if isinstance(self._impl.locator, _Provided) else self.cache_path

    def holds_any(self) -> bool:
        """Whether code of any dtypes is on the disk."""
        return any(file._load_index() for file in (self._cache_file, *self._others))

    def save_overload(self, sig, data):
        try:
            with _alone(Path(self.cache_path)) as alone:
                if alone:
                    super().save_overload(sig, data)
                else:
                    compiling.not_kept()
        except OSError:  # no disk space, or no permission any more
            compiling.not_kept()


@contextmanager
def _alone(folder: Path) -> Iterator[bool]:
    """Whether no other process is inside, for this folder; on file systems without locks, True."""
    with open(folder / "finelu.lock", "w") as lock:
        _locks.add(lock)
        try:
            yield _taken(lock)
        finally:
            _locks.discard(lock)
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_UN)  # closing it is not enough where a child has the same open file


def _taken(lock: IO) -> bool:
    """Whether the lock is ours now, after waiting at most PATIENCE seconds for it."""
    global _stuck
    end = time.monotonic() + (0.0 if _stuck else PATIENCE)
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= end:
                break
            time.sleep(0.01)
        except OSError:  # no locks here
            return True
    if not _stuck:
        _stuck = True
        compiling.tell(f"finelu: another process has held {lock.name} for {PATIENCE:g} s; kernels are not kept")
    return False


def _forked() -> None:
    """Close the locks in a child process, whose copies would hold them as long as the child lives."""
    global _collecting, _paused
    for lock in _locks:
        lock.close()
    _locks.clear()
    _collecting = threading.Lock()
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
    """Numba's njit with the options of all kernels."""
    kernel = njit(nogil=True, error_model="numpy", **options)(function)
    kernel._compile_for_args = held_back()(no_collection()(kernel._compile_for_args))  # Numba's, for new dtypes
    try:
        kernel._cache = Cache(function)  # where Numba's decorator puts its own, with cache=True
    except RuntimeError:  # none of the folders that it knows can be written
        compiling.not_kept()
    return kernel


def ready(kernel) -> bool:
    """Whether a kernel is compiled for some dtypes, in this process or on the disk; always True after
    `compile_eagerly`."""
    return (
        compiling.eager or bool(kernel.signatures) or (isinstance(kernel._cache, Cache) and kernel._cache.holds_any())
    )


# Sums in the order that the vector unit likes, the same in every run; NaN and Inf stay what they are. Not BLAS: NumPy's
# and SciPy's each bring their own threads, which wait for one another when both are called in turn.
summing = partial(compiled, fastmath={"reassoc"})

compiling.listen()
