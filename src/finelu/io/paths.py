"""Names of files: their extensions, and whether something can be written there."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path

from finelu.errors import FileError

FilePath = str | os.PathLike[str]

WRITABLE_FORMATS = (".npy", ".npz", ".mtx", ".txt", ".csv")


def extension(path: FilePath) -> str:
    """The extension in small letters; ".mtx.gz" is one."""
    name = os.fspath(path).lower()
    return ".mtx.gz" if name.endswith(".mtx.gz") else os.path.splitext(name)[1]


def variable(path: FilePath) -> tuple[str, str]:
    """The file and the variable that "name.mat:K" or "name.npz:K" names; the variable is "" without one."""
    match = re.fullmatch(r"(.+\.(?:mat|npz)):(\w+(?:\.\w+)?)", os.fspath(path), re.IGNORECASE)
    return (match[1], match[2]) if match else (os.fspath(path), "")


def status(path: FilePath) -> os.stat_result | None:
    """The status of the file that `path` leads to, or None if it does not exist yet."""
    try:
        return os.stat(path)
    except FileNotFoundError:
        return None


def check_writable(path: FilePath, formats: Sequence[str] = WRITABLE_FORMATS) -> None:
    """Raise FileError if no file of these formats could be written to `path`; to be called before a long
    computation."""
    kind = extension(path)
    if kind not in formats:
        raise FileError(f"{path}: unknown extension {kind!r} for writing; use one of {', '.join(formats)}.")
    try:
        folder = Path(os.path.realpath(path)).parent
        old = status(path)
    except (OSError, ValueError) as error:  # a name that is too long, links in a circle, a NUL
        raise FileError(f"{path}: cannot be written ({getattr(error, 'strerror', None) or error}).") from error
    if old is not None and stat.S_ISDIR(old.st_mode):
        raise FileError(f"{path}: is a directory; name a file.")
    if old is not None and stat.S_ISSOCK(old.st_mode):
        raise FileError(f"{path}: is a socket; name a file.")
    if old is not None and not os.access(path, os.W_OK):
        raise FileError(f"{path}: no permission to write to it.")
    if old is None and not folder.is_dir():
        raise FileError(f"{path}: there is no folder {folder}; make it first.")
    if old is None and not os.access(folder, os.W_OK | os.X_OK):
        raise FileError(f"{path}: no permission to write into {folder}.")


def check_apart(outputs: Sequence[FilePath], inputs: Sequence[FilePath]) -> None:
    """Raise FileError if an output is the same file as an input or another output, whatever the names."""
    for k, path in enumerate(outputs):
        for others, what in ((inputs, "an input"), (outputs[:k], "an output")):
            for other in others:
                if _same_file(path, other):
                    known = "" if other == path else f", as {other}"
                    raise FileError(f"{path}: is {what}, too{known}; name another file to write.")


def _same_file(path: FilePath, other: FilePath) -> bool:
    """Whether both lead to one file, which need not exist yet; devices do not count, as they keep nothing."""
    try:
        if os.path.exists(path) and os.path.exists(other):
            return os.path.isfile(path) and os.path.samefile(path, other)
        return os.path.realpath(path) == os.path.realpath(other)
    except (OSError, ValueError):  # no name of a file: reading it will say so
        return False
