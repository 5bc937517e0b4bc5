"""Output of the program to stdout and stderr, even if these are full, closed, ASCII only, or a closed pipe."""

from __future__ import annotations

import codecs
import io
import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

from finelu.errors import FileError

if TYPE_CHECKING:
    from rich.console import Console

ASCII = {
    **dict(zip("▁▂▃▄▅▆▇█", "_.:-=+*#", strict=True)),
    **dict(zip("⁻⁰¹²³⁴⁵⁶⁷⁸⁹ᵀᴴ", "-0123456789TH", strict=True)),
    **{"‖": "||", "µ": "u", "μ": "u", "≤": "<=", "≥": ">=", "≠": "!=", "≈": "~", "×": "x", "·": "*", "−": "-"},
    **{"–": "-", "—": "-", "…": "...", "‘": "'", "’": "'", "“": '"', "”": '"', "→": "->", "ε": "eps", "λ": "lambda"},
    **{"⠀": " ", "━": "-", "─": "-", "╸": "-", "╺": "-", "│": "|", "╭": "+", "╮": "+", "╰": "+", "╯": "+", "•": "*"},
}  # character -> its replacement on an ASCII terminal


class StdoutError(FileError):
    """stdout cannot be written; the error goes to stderr, with --json too."""


class AlreadyReported(Exception):
    """Ctrl-C after which a command has printed its results: `finelu compare` shows its measurements."""


@contextmanager
def console() -> Iterator[Console]:
    """A console whose text goes to stdout when the block ends."""
    from rich.console import Console

    page = io.StringIO()
    yield Console(file=page, force_terminal=True if sys.stdout.isatty() else None, soft_wrap=False, highlight=False)
    write_out(page.getvalue())


def print_json(result: dict[str, Any]) -> None:
    write_out(json.dumps(_plain(result), allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    """`value` in JSON's types: NumPy's numbers and arrays converted, NaN and Inf as null, anything else as its text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)


def write_out(text: str) -> None:
    """Write to stdout at once. If the reader has closed the pipe (`finelu ... | head -1`), the rest is dropped."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _redirect_to_null(sys.stdout)
    except OSError as error:
        _redirect_to_null(sys.stdout)
        raise StdoutError(f"stdout: cannot be written ({error.strerror or error}).") from error


def write_line(line: str) -> None:
    """Write a line to stderr; if stderr cannot be written, only the exit status reports the error."""
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except OSError:
        _redirect_to_null(sys.stderr)


def _redirect_to_null(stream: TextIO) -> None:
    """Send the rest of a failing stream's buffer to os.devnull, so that no error follows at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def prepare_streams() -> None:
    """Open a closed stdout or stderr as os.devnull, and replace characters that a stream cannot encode."""
    codecs.register_error("finelu", _as_ascii)
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            null = os.open(os.devnull, os.O_WRONLY)
            try:
                os.fstat(number)  # another file may have taken the number
            except OSError:
                os.dup2(null, number)
            setattr(sys, name, os.fdopen(null, "w"))
        elif isinstance(stream, io.TextIOWrapper) and stream.errors in (
            "strict",
            "surrogateescape",
            "backslashreplace",
        ):
            stream.reconfigure(errors="finelu")


def _as_ascii(error: UnicodeError) -> tuple[str | bytes, int]:
    """An error handler of codecs: a similar character, a byte of a file name as it was, or the code (\\xe9)."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    character = error.object[error.start]
    if character in ASCII:
        return ASCII[character], error.start + 1
    if "\udc80" <= character <= "\udcff":  # os.fsdecode's form of a byte that is no text
        return bytes([ord(character) - 0xDC00]), error.start + 1
    return character.encode("ascii", "backslashreplace").decode(), error.start + 1
