"""The specification of the kernels in plain Python, a module for each family: slow, short and obviously right.

Sums run over the entries of a row in ascending order of columns. The CPU gives the same bits, whatever the number of
threads; the GPU multiplies by reciprocals and adds up in trees, so it agrees to a few units in the last place.
"""

from __future__ import annotations

from types import ModuleType

from finelu.kernels.catalogue import family


def __getattr__(name: str) -> ModuleType:
    return family(__name__, name)
