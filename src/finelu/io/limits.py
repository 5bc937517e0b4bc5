"""Sizes that a file announces, compared with the free memory before memory is taken for them."""

from __future__ import annotations

import numpy as np

from finelu.device import free_memory
from finelu.errors import FileError
from finelu.io.paths import FilePath

ROW = 100  # bytes of memory that a row costs once a matrix is worked with: row pointers, b, x, diagonal, levels
DEFLATED = 1032  # bytes that a byte of compressed data can stand for, at most


def check_memory(path: FilePath, rows: int, columns: int, of_entries: int = 0) -> None:
    """Raise FileError where a matrix with `of_entries` bytes of entries leaves no room to work with it."""
    needed, free = ROW * (rows + columns) // 2 + of_entries, free_memory(np)
    if needed > free:
        raise FileError(
            f"{path}: {rows} x {columns}: such a matrix needs about {needed / 1e9:.3g} GB of memory to work with, and "
            f"{free / 1e9:.3g} GB are free; the file may be corrupt."
        )
