"""Where the machine code of the CPU's kernels lies: in the archive of a wheel, and in the user's cache folder.

The folder is $FINELU_CACHE/kernels, else $NUMBA_CACHE_DIR, else $XDG_CACHE_HOME/finelu/kernels, which is by default
~/.cache/finelu/kernels. Each kernel has a folder in it, named by its function and by a digest of all that its code was
made of: its source and the kernels that it imports, Python, Numba and its options, the processor. So checkouts,
environments and versions share one folder. A file is written under another name first, so that no process waits for
another. There are two files a signature:

    <digest of the signature>.code      a Record: machine code alone, which loads in 0.2 ms
    <digest of the signature>.library   Numba's result of the compilation, for kernels that call this one

The archive, `kernels/cpu/binaries/<processor>-<Python>-numba<version>.zip`, has one member a kernel with the records of
all its signatures, and `index.json`: {"made_for": "cpython-311-numba0.68.1", "triple": ..., "features": [...],
"sources": {module: digest}}.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import sys
import threading
import time
import zipfile
import zlib
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

import llvmlite.binding as llvm
import numba
from numba import config
from numba.core.codegen import get_host_cpu_features

from finelu import compiling
from finelu.errors import ParameterError

HERE = Path(__file__).resolve().parent
KERNELS, BINARIES = HERE.parents[1], HERE.parent / "binaries"
ROOT = KERNELS.parents[1]  # which `import finelu` searches
INDEX = "index.json"
PYTHON = f"{sys.implementation.cache_tag}{sys.abiflags}"  # cpython-311
MADE_FOR = f"{PYTHON}-numba{numba.__version__}"
DAY = 86_400  # seconds
LIMIT = 1 << 30  # bytes of the user's cache folder: all kernels in the four dtypes of twenty versions of their sources
IMPORTS = re.compile(r"^ *(?:from (finelu[\w.]*) import ([\w, ]+|\([^)]*\))|import (finelu[\w.]*))", re.MULTILINE)


class Damaged(Exception):
    """What lies there is no record."""


class Record(NamedTuple):
    """signature : of the arguments.  code : an object file.  entry, function : symbols in it, for a call from Python
    and for one from machine code.  constants : {symbol of a global variable of the code: the objects of Python that the
    code finds by it}, pickled.  types : (of the result, [of the arguments]), pickled."""

    signature: str
    entry: str
    function: str
    constants: bytes
    types: bytes
    code: bytes

    def packed(self) -> bytes:
        pieces = self.constants, self.types, self.code
        head = json.dumps([self.signature, self.entry, self.function, *map(len, pieces)]).encode()
        return b"%d %s\n%s" % (zlib.crc32(head + b"".join(pieces)), head, b"".join(pieces))


def records(packed: bytes) -> Iterator[Record]:
    """Those that lie behind one another; Damaged if that is not what lies there."""
    at = 0
    while at < len(packed):
        try:
            behind = packed.index(b"\n", at) + 1
            checksum, _, head = packed[at : behind - 1].partition(b" ")
            *names, first, second, third = json.loads(head)
            content = packed[behind : behind + first + second + third]
            if zlib.crc32(head + content) != int(checksum):
                raise Damaged("its bytes are not those that were written")
        except (ValueError, TypeError) as error:
            raise Damaged(str(error)) from error
        yield Record(*names, content[:first], content[first : first + second], content[first + second :])
        at = behind + len(content)


@cache
def folder() -> Path | None:
    """The user's cache folder of kernels, whether or not it is there; None without any home."""
    if root := os.environ.get("FINELU_CACHE"):
        return Path(root).absolute() / "kernels"
    if config.CACHE_DIR:
        return Path(config.CACHE_DIR).absolute()
    if root := os.environ.get("XDG_CACHE_HOME"):
        return Path(root).absolute() / "finelu" / "kernels"
    try:
        return Path.home() / ".cache" / "finelu" / "kernels"
    except RuntimeError:
        return None


@cache
def _content(path: str) -> tuple[str, frozenset[str]]:
    """The digest of a source, and the files of finelu's kernels that it imports."""
    with open(path, "rb") as file:
        source = file.read()
    imported = set()
    for package, names, module in IMPORTS.findall(source.decode()):
        for name in (module or package, *(f"{package}.{name}" for name in re.findall(r"\w+", names))):
            base = os.path.join(ROOT, *name.split("."))
            for found in (f"{base}.py", os.path.join(base, "__init__.py")):
                if found.startswith(f"{KERNELS}{os.sep}") and os.path.isfile(found):
                    imported.add(found)
    return hashlib.sha256(source).hexdigest(), frozenset(imported)


@cache
def sources(path: str) -> str:
    """A digest of Numba's version and of all files whose code or constants a kernel of this one may hold: the file and
    the kernels that it imports, directly or not."""
    known = {path, str(HERE / "jit.py")}
    left = [*known]
    while left:
        found = _content(left.pop())[1] - known
        known |= found
        left += found
    digests = sorted((os.path.basename(file), _content(file)[0]) for file in known)
    return hashlib.sha256(repr((numba.__version__, digests)).encode()).hexdigest()


@cache
def processor() -> tuple[str, str, str]:
    """The processor that code is compiled for: triple, name, features."""
    features = get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES
    return llvm.get_process_triple(), config.CPU_NAME or llvm.get_host_cpu_name(), features


@cache
def _python() -> tuple[object, ...]:
    """The Python that code is compiled for, and the options of Numba that change code."""
    options = int(config.OPT), config.BOUNDSCHECK, config.LOOP_VECTORIZE, config.SLP_VECTORIZE, config.USING_SVML
    return PYTHON, options


class Store:
    """The code of one kernel, from the archive and the user's cache folder."""

    def __init__(self, function) -> None:
        code = function.__code__
        self.sources: str | None = None  # of what is imported now, not of what may lie there later
        with contextlib.suppress(OSError):  # no file
            self.sources = sources(os.path.realpath(code.co_filename))
        self.module = function.__module__.removeprefix("finelu.kernels.cpu.")
        self.name = re.sub(r"[<>]", "", f"{self.module}.{function.__qualname__}-{code.co_firstlineno}")

    @cached_property
    def folder(self) -> Path | None:
        where = folder()
        if where is None or self.sources is None:
            return None
        digest = hashlib.sha256(repr((self.sources, processor(), _python())).encode()).hexdigest()[:20]
        return where / f"{self.name}-{digest}"

    def _file(self, signature: str, ending: str) -> Path | None:
        where = self.folder
        return where and where / (hashlib.sha256(signature.encode()).hexdigest()[:20] + ending)

    def find(self, signature: str) -> Record | None:
        """The record of this signature; None where there is none."""
        carried = archive()
        if carried is not None and (record := carried.find(self, signature)) is not None:
            return record
        if (packed := self._read(signature, ".code")) is None:
            return None
        self._used()
        try:
            (record,) = records(packed)
            if record.signature != signature:
                raise Damaged(f"it is of {record.signature}")
        except (Damaged, ValueError) as error:
            self.discard(signature, error)
            return None
        return record

    def _used(self) -> None:
        """Note today's use in the folder's time, by which `_bounded` goes."""
        with contextlib.suppress(OSError):  # another user's
            if time.time() - os.stat(self.folder).st_mtime > DAY:
                os.utime(self.folder)

    def discard(self, signature: str, error: Exception) -> None:
        """Remove damaged code, and say so."""
        path = self._file(signature, ".code")
        compiling.tell(f"finelu: {path} is damaged ({error}); the kernel is compiled anew")
        with contextlib.suppress(OSError):
            path.with_suffix(".library").unlink(missing_ok=True)
            path.unlink()

    def library(self, signature: str) -> bytes | None:
        """What `put` took as `library`."""
        packed = self._read(signature, ".library")
        with contextlib.suppress(zlib.error):
            return packed and zlib.decompress(packed)
        return None

    def _read(self, signature: str, ending: str) -> bytes | None:
        path = self._file(signature, ending)
        try:
            return path and path.read_bytes()
        except OSError:
            return None

    def holds_any(self) -> bool:
        """Whether code of any signature is there."""
        carried, where = archive(), self.folder
        if carried is not None and carried.holds(self):
            return True
        with contextlib.suppress(OSError):
            return where is not None and any(name.endswith(".code") for name in os.listdir(where))
        return False

    def put(self, record: Record, library: bytes) -> bool:
        """Keep what was compiled: whether that was possible."""
        where = self.folder
        if where is None:
            return False
        try:
            where.mkdir(parents=True, exist_ok=True)
            _written(self._file(record.signature, ".code"), record.packed())
            _written(self._file(record.signature, ".library"), zlib.compress(library))
        except OSError:  # no disk space, or no permission
            return False
        _bounded()
        return True


def _written(path: Path, content: bytes) -> None:
    name = f"{path}.{os.getpid()}.{threading.get_ident()}"
    try:
        with open(name, "wb") as file:  # with the rights that the user gives to new files
            file.write(content)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def size() -> int:
    """Bytes in the user's cache folder."""
    return sum(bytes_of for _, bytes_of, _ in _kept())


def clear() -> int:
    """Remove all code from the user's cache folder; the number of bytes that it had."""
    found = list(_kept())
    for where, *_ in found:
        shutil.rmtree(where, ignore_errors=True)
    return sum(bytes_of for _, bytes_of, _ in found)


def _kept() -> Iterator[tuple[Path, int, float]]:
    """The folders of the kernels, their bytes, and when one was written to or, by the day, used last."""
    root = folder()
    try:
        names = sorted(os.listdir(root)) if root else []
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError), os.scandir(root / name) as files:
            if re.search(r"-[0-9a-f]{20}$", name):
                yield root / name, sum(file.stat().st_size for file in files), os.stat(root / name).st_mtime


@cache
def _bounded() -> None:
    """Once a process that compiles: remove the folders that were used longest ago, down to half of LIMIT."""
    found = list(_kept())
    total = sum(bytes_of for _, bytes_of, _ in found)
    if total <= LIMIT:
        return
    for where, bytes_of, _ in sorted(found, key=lambda each: each[2]):
        if total <= LIMIT // 2:
            break
        shutil.rmtree(where, ignore_errors=True)
        total -= bytes_of


class Archive:
    """A zip of records; what cannot be read of it is passed over, with one line that names the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.index: dict[str, object] = {}
        self.sources: dict[str, str] = {}
        self.members: dict[str, dict[str, Record]] = {}
        self.names: frozenset[str] = frozenset()
        self.outdated = False
        try:
            self.zip = zipfile.ZipFile(path)
            self.names = frozenset(self.zip.namelist())
            self.index = json.loads(self.zip.read(INDEX))
            self.sources = dict(self.index["sources"])
        except Exception as error:  # whatever comes of a damaged file
            self.refuse(error)

    def refuse(self, reason: Exception | str) -> None:
        """Hold nothing from now on, and say why."""
        self.names, self.index = frozenset(), {}
        compiling.tell(f"finelu: {self.path} cannot be used ({reason}), so kernels are compiled at their first use.")

    def suits(self) -> bool:
        """Whether its code runs with this Python and this Numba on this processor."""
        features = processor()[2].split(",")
        return (
            self.index.get("made_for") == MADE_FOR
            and self.index.get("triple") == processor()[0]
            and all(f"+{feature}" in features for feature in self.index["features"])
        )

    def holds(self, store: Store) -> bool:
        """Whether it has code of this kernel. At the first of other sources one line says so."""
        made_of = self.sources.get(store.module)
        if made_of not in (None, store.sources) and not self.outdated:
            self.outdated = True
            compiling.tell(f"finelu: {self.path} was made of other sources; kernels that have changed are compiled.")
        return store.name in self.names and made_of == store.sources

    def find(self, store: Store, signature: str) -> Record | None:
        if store.name not in self.members:
            found = {}
            if self.holds(store):
                try:
                    found = {record.signature: record for record in records(self.zip.read(store.name))}
                except Exception as error:  # whatever comes of a damaged file
                    self.refuse(error)
            self.members[store.name] = found
        return self.members[store.name].get(signature)


@cache
def archive() -> Archive | None:
    """What is carried for this processor; None for nothing, with FINELU_KERNELS=compile, or with one's own choice of a
    processor by NUMBA_CPU_NAME or NUMBA_CPU_FEATURES."""
    wish = os.environ.get("FINELU_KERNELS", "")
    if wish not in ("", "compile"):
        raise ParameterError(f"FINELU_KERNELS={wish!r}; 'compile', or nothing, is needed.")
    if wish or config.CPU_NAME or config.CPU_FEATURES is not None or not BINARIES.is_dir():
        return None
    paths = sorted(BINARIES.glob(f"*-{MADE_FOR}.zip"))
    found = [each for each in map(Archive, paths) if each.index and each.suits()]
    return max(found, key=lambda each: len(each.index["features"]), default=None)


os.register_at_fork(after_in_child=archive.cache_clear)  # an open file has one position for parent and child
