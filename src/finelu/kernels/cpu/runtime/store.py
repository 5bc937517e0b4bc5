"""Machine code of the CPU's kernels: in the archive of a wheel, and in the user's cache folder (machine_code.py).

The folder of a kernel is named by its function and by a digest of all that its code was made of: its source and the
kernels that it imports, Python, Numba and its options, the processor. There are up to two files a signature, as a
kernel is compiled for Python without what other kernels need, and for them without an entry for Python:

    <digest of the signature>.code      a Record, for Python: machine code alone, which loads in 0.2 ms
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
import sys
import zlib
from collections.abc import Iterator
from functools import cache, cached_property
from pathlib import Path
from typing import NamedTuple

import llvmlite.binding as llvm
import numba
from numba import config
from numba.core.codegen import get_host_cpu_features

from finelu import compiling, machine_code
from finelu.machine_code import is_wanted

HERE = Path(__file__).resolve().parent
KERNELS, BINARIES = HERE.parents[1], HERE.parent / "binaries"
ROOT = KERNELS.parents[1]  # which `import finelu` searches
PYTHON = f"{sys.implementation.cache_tag}{sys.abiflags}"  # cpython-311
MADE_FOR = f"{PYTHON}-numba{numba.__version__}"
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
        except Exception as error:  # whatever comes of a damaged file
            raise Damaged(str(error)) from error
        yield Record(*names, content[:first], content[first : first + second], content[first + second :])
        at = behind + len(content)


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
        where = machine_code.folder()
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
        machine_code.note_use(self.folder)
        try:
            (record,) = records(packed)
            if record.signature != signature:
                raise Damaged(f"it is of {record.signature}")
        except (Damaged, ValueError) as error:
            self.discard(signature, error)
            return None
        return record

    def discard(self, signature: str, error: Exception) -> None:
        """Remove damaged code, and say so."""
        path = self._file(signature, ".code")
        compiling.tell(f"finelu: {path} is damaged ({error}); the kernel is compiled anew")
        with contextlib.suppress(OSError):
            path.unlink()

    def library(self, signature: str) -> bytes | None:
        """What `put_library` took."""
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

    def put(self, record: Record) -> bool:
        """Keep what was compiled for Python: whether that was possible."""
        return self._write(record.signature, ".code", record.packed())

    def put_library(self, signature: str, library: bytes) -> bool:
        """Keep what was compiled for another kernel: whether that was possible."""
        return self._write(signature, ".library", zlib.compress(library, level=1))

    def _write(self, signature: str, ending: str, content: bytes) -> bool:
        path = self._file(signature, ending)
        if path is None:
            return False
        try:
            machine_code.write(path, content)
        except OSError:  # no disk space, or no permission
            return False
        machine_code.keep_bounded()
        return True


class Archive(machine_code.Archive):
    """A zip of records."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.members: dict[str, dict[str, Record]] = {}
        self.names: frozenset[str] = frozenset()
        self.sources: dict[str, str] = {}
        self.features: list[str] = []
        self.outdated = False
        try:
            if self.index:
                self.names, self.sources = frozenset(self.zip.namelist()), dict(self.index["sources"])
                self.features = list(self.index["features"])
        except Exception as error:  # whatever comes of a damaged file
            self.refuse(error)

    def refuse(self, reason: Exception | str) -> None:
        super().refuse(reason)
        self.names = frozenset()

    def suits(self) -> bool:
        """Whether its code runs with this Python and this Numba on this processor."""
        features = processor()[2].split(",")
        return (
            self.index.get("made_for") == MADE_FOR
            and self.index.get("triple") == processor()[0]
            and all(f"+{feature}" in features for feature in self.features)
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
    if not is_wanted() or config.CPU_NAME or config.CPU_FEATURES is not None or not BINARIES.is_dir():
        return None
    paths = sorted(BINARIES.glob(f"*-{MADE_FOR}.zip"))
    found = [each for each in map(Archive, paths) if each.index and each.suits()]
    return max(found, key=lambda each: len(each.features), default=None)


os.register_at_fork(after_in_child=archive.cache_clear)  # an open file has one position for parent and child
