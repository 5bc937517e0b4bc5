"""Indices as unsigned integers, for which Numba leaves out the code that makes x[-1] the last element."""

from __future__ import annotations

import numpy as np

ONE = np.uint64(1)  # an int would turn an unsigned index into a float


def unsigned(array):
    """The same indices, unsigned; no copy."""
    return array.view(f"u{array.itemsize}")
