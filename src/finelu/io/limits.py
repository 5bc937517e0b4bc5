"""Sizes that a file announces, compared with the free memory before memory is taken for them."""

from __future__ import annotations

import numpy as np

from finelu.device import free_memory
from finelu.errors import FileError
from finelu.io.paths import FilePath

ROW = 100  # bytes of memory per row of a matrix in use: row pointers, b, x, diagonal, levels
DEFLATED = 1032  # the most bytes that one byte of compressed data can represent


def check_memory(path: FilePath, rows: int, columns: int, of_entries: int = 0) -> None:
    """Raise FileError if a matrix with `of_entries` bytes of entries leaves too little memory to work with it."""
    needed, free = ROW * (rows + columns) // 2 + of_entries, free_memory(np)
    if needed > free:
        raise FileError(
            f"{path}: {rows} x {columns}: such a matrix needs about {needed / 1e9:.3g} GB of memory to work with, and "
            f"{free / 1e9:.3g} GB are free; the file may be corrupt."
        )
