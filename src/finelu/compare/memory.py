"""The memory that factors hold."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
from scipy.sparse.linalg import SuperLU

from finelu.device import on_gpu
from finelu.kernels.cuda.runtime.cudss import Solver
from finelu.matrix import CSR
from finelu.preconditioners.direct.library import Library

SUPERLU_INDEX = 4  # bytes of SuperLU's indices


def held_bytes(F: Any, A: CSR) -> int:
    """The bytes of all arrays that F refers to, each counted once, without those of A.

    Those of the libraries for complete factors cannot be inspected: a value and an index count for each entry.
    """
    of_A = {id(_owner(part)) for part in (A.indptr, A.indices, A.data, A.diag)}
    seen: set[int] = set()
    sizes: dict[int, int] = {}
    waiting = [F]
    while waiting:
        thing = waiting.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, SuperLU):
            sizes[id(thing)] = thing.nnz * (F.dtype.itemsize + SUPERLU_INDEX)
        elif isinstance(thing, Library):  # in double precision
            sizes[id(thing)] = thing.nnz * ((16 if F.dtype.kind == "c" else 8) + SUPERLU_INDEX)
        elif isinstance(thing, Solver):
            sizes[id(thing)] = F.nnz * (F.dtype.itemsize + SUPERLU_INDEX)
        elif isinstance(thing, np.ndarray) or (on_gpu(thing) and hasattr(thing, "nbytes")):
            owner = _owner(thing)
            sizes[id(owner)] = owner.nbytes
        elif isinstance(thing, Mapping):
            waiting += thing.values()
        elif isinstance(thing, list | tuple | set):
            waiting += thing
        elif isinstance(thing, MethodType):
            waiting.append(thing.__self__)
        elif isinstance(thing, FunctionType):
            waiting += [cell.cell_contents for cell in thing.__closure__ or ()]
        elif isinstance(thing, partial):
            waiting += [thing.func, thing.args, thing.keywords]
        elif (thing is F or _package(thing) in ("finelu", "scipy", "cupyx")) and hasattr(thing, "__dict__"):
            waiting += vars(thing).values()
    return sum(size for key, size in sizes.items() if key not in of_A)


def _package(thing: Any) -> str:
    return type(thing).__module__.partition(".")[0]


def _owner(array: Any) -> Any:
    """The array whose memory `array` is a view of; itself if it is no view."""
    while type(array.base) is type(array):
        array = array.base
    return array
