"""Machine code of the kernels on the disk: what a wheel carries, and the user's cache folder.

The folder is $FINELU_CACHE/kernels, else $NUMBA_CACHE_DIR, else $XDG_CACHE_HOME/finelu/kernels, which is by default
~/.cache/finelu/kernels. Each kernel of the CPU, and each `.cu` file, has a folder in it, whose name ends with a digest
of all that its code was made of. So checkouts, environments and versions share one folder. A file is written under
another name first, so that no process waits for another.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import threading
import time
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from finelu import compiling
from finelu.errors import ParameterError

BACKGROUND = "FINELU_BACKGROUND"  # a variable, 0: each call compiles its own kernels
INDEX = "index.json"
DAY = 86_400  # seconds
LIMIT = 1 << 30  # bytes of the user's cache folder: all kernels in the four dtypes of twenty versions of their sources


def is_wanted() -> bool:
    """Whether code that a wheel carries is to be used: not with FINELU_KERNELS=compile."""
    wish = os.environ.get("FINELU_KERNELS", "")
    if wish not in ("", "compile"):
        raise ParameterError(f"FINELU_KERNELS={wish!r}; 'compile', or nothing, is needed.")
    return not wish


def background_is_wanted() -> bool:
    """Whether code may be compiled ahead of the calls for it. ParameterError if the variable is neither 0 nor 1."""
    wish = os.environ.get(BACKGROUND, "")
    if wish not in ("", "0", "1"):
        raise ParameterError(f"{BACKGROUND}={wish!r}; '0', '1' or nothing is needed.")
    return wish != "0"


class Archive:
    """A zip of machine code with an index. If it cannot be read, it holds nothing, and one line names the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.index: dict[str, Any] = {}
        try:
            self.zip = zipfile.ZipFile(path)
            index = json.loads(self.zip.read(INDEX))
            if not isinstance(index, dict):
                raise ValueError(f"{INDEX} is no mapping")
            self.index = index
        except Exception as error:  # whatever comes of a damaged file
            self.refuse(error)

    def refuse(self, reason: Exception | str) -> None:
        """Hold nothing from now on, and say why."""
        self.index = {}
        what = f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else reason
        compiling.tell(
            f"finelu: {self.path} cannot be used ({what}), so kernels are compiled at their first use. Install finelu "
            "again, or run `make kernels`."
        )


@cache
def folder() -> Path | None:
    """The user's cache folder of kernels, whether or not it is there; None without any home."""
    if root := os.environ.get("FINELU_CACHE"):
        return Path(root).absolute() / "kernels"
    if root := os.environ.get("NUMBA_CACHE_DIR"):
        return Path(root).absolute()
    if root := os.environ.get("XDG_CACHE_HOME"):
        return Path(root).absolute() / "finelu" / "kernels"
    try:
        return Path.home() / ".cache" / "finelu" / "kernels"
    except RuntimeError:
        return None


def write(path: Path, content: bytes) -> None:
    """Write a file that other processes see whole or not at all. Raises OSError."""
    try:
        _write(path, content)
    except FileNotFoundError:  # another process has just emptied the folder
        _write(path, content)


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    name = f"{path}.{os.getpid()}.{threading.get_ident()}"
    try:
        with open(name, "wb") as file:  # with the rights that the user gives to new files
            file.write(content)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def note_use(kernel: Path) -> None:
    """Note today's use of a kernel's folder in its time, by which `keep_bounded` goes."""
    with contextlib.suppress(OSError):  # another user's
        if time.time() - os.stat(kernel).st_mtime > DAY:
            os.utime(kernel)


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
    if root is None:
        return
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return
    for name in names:
        with contextlib.suppress(OSError), os.scandir(root / name) as files:
            if re.search(r"-[0-9a-f]{20}$", name):
                yield root / name, sum(file.stat().st_size for file in files), os.stat(root / name).st_mtime


@cache
def keep_bounded() -> None:
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
