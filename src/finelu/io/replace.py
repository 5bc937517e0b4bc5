"""Replacing the content of a file: as a whole or not at all, if the file system allows it."""

from __future__ import annotations

import errno
import io
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from finelu.errors import FileError
from finelu.io.paths import FilePath, status


@contextmanager
def replacing(path: FilePath, what: str = "x") -> Iterator[IO[bytes]]:
    """A binary file for the new content of `path`, which stays as it was if the block fails.

    A new file, or one with a single name, is written as a temporary file in the same folder, which then takes its name
    in one step; its mode is kept. Some files are written in place, after the block has ended, since a rename would make
    `path` another file: a file with several names, of another owner or with an access list, one in a folder where no
    file can be created, a FIFO, a device. A symbolic link stays one. While a regular file is written in place, a
    complete copy lies in its folder, if a file can be created there; disk space is reserved first, if the file system
    can do that. If writing fails all the same the file is half written, and the FileError names the copy.
    what : names the content in the FileError of a failure.
    """
    try:
        copy, takes_the_name = _temporary(path)
        if copy is None:
            buffer = io.BytesIO()
            yield buffer
            _overwrite(path, buffer.getvalue())
            return
        keep = False
        try:
            with open(copy, "wb") as file:
                yield file
            if not (takes_the_name and _renamed(copy, path)):
                content = copy.read_bytes()
                keep = True
                _overwrite(path, content)
                keep = False
        except _Untouched:
            keep = False
            raise
        except OSError as error:
            if not keep:
                raise
            raise FileError(
                f"{path}: was left half written ({error.strerror or error}); {what} is complete in {copy}."
            ) from error
        finally:
            if not keep:
                copy.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(f"{path}: cannot be written ({error.strerror or error}); {what} was not written.") from error


def _temporary(path: FilePath) -> tuple[Path | None, bool]:
    """A new, empty file in the folder of `path`, and whether a rename may replace `path` by it; None if no file can be
    created there, or if `path` is no regular file.

    Its mode is that of `path` if the rename may happen; if not, only its owner may read it.
    """
    target = Path(os.path.realpath(path))
    old = status(path)
    if old is not None and not (stat.S_ISREG(old.st_mode) and os.access(target.parent, os.W_OK | os.X_OK)):
        return None, False
    copy = target.with_name(f".{secrets.token_hex(8)}.part")  # short, whatever the length of the target's name
    descriptor = os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if old is None else 0o600)
    try:
        if old is None:
            return copy, True
        new = os.fstat(descriptor)
        same = (new.st_uid, new.st_gid, _attributes(copy)) == (old.st_uid, old.st_gid, _attributes(target))
        if same and old.st_nlink == 1:
            os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
            return copy, True
        return copy, False
    finally:
        os.close(descriptor)


def _renamed(copy: Path, path: FilePath) -> bool:
    """Whether the file could take the name of `path`; a single file that is mounted cannot be replaced."""
    try:
        os.replace(copy, os.path.realpath(path))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def _attributes(path: FilePath) -> list[str]:
    """The names of the extended attributes of a file, access lists among them, if the system has extended
    attributes."""
    try:
        return sorted(os.listxattr(path)) if hasattr(os, "listxattr") else []
    except OSError:  # a file system without them
        return []


class _Untouched(OSError):
    """Writing into a file failed before its content was changed."""


def _overwrite(path: FilePath, content: bytes) -> None:
    """Write into the file. Room for a regular one is reserved first, so that a full disk leaves it as it was."""
    try:
        descriptor = os.open(path, os.O_WRONLY)
    except OSError as error:
        raise _Untouched(*error.args) from error
    with open(descriptor, "wb") as file:
        regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
        if regular and content and hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(descriptor, 0, len(content))
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot reserve room
                    raise _Untouched(*error.args) from error
        file.write(content)
        file.flush()
        if regular:
            file.truncate(len(content))
