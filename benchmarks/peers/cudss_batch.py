"""cuDSS's uniform batches, by ctypes: many systems of one pattern, real ones in double precision."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from benchmarks.peers import PeerError
from finelu.kernels.cuda.runtime import cudss

ORDERING, MATCHING, BATCH_SIZE, BATCH_INDEX = 0, 3, 18, 19  # cudssConfigParam_t
ALL = -1  # systems, as a BATCH_INDEX


class UniformBatch:
    """k systems in the hands of cuDSS, without a matching, which it does not have for them; call `close` at the end.

    pattern : a CSR matrix of cupyx with int32 indices.  values (k, nnz), b (k, n) : float64, on the GPU; kept, and read
    in each call.  x (k, n) : the solutions.  ordering : of cudss.h, cudss.DEFAULT_ORDER or cudss.AMD.
    """

    def __init__(self, pattern: Any, values: Any, b: Any, ordering: int = cudss.DEFAULT_ORDER):
        import cupy

        found = cudss.library()
        if found.calls is None:
            raise PeerError(found.missing)
        self._calls, n = found.calls, pattern.shape[0]
        self._kept = pattern, values, b
        self.x = cupy.zeros_like(b)
        self._handle, self._config = self._created("cudssCreate"), self._created("cudssConfigCreate")
        self._data = ctypes.c_void_p()
        self._call("cudssDataCreate", self._handle, ctypes.byref(self._data))
        for parameter, value in ((BATCH_SIZE, len(values)), (BATCH_INDEX, ALL), (MATCHING, 0), (ORDERING, ordering)):
            given = ctypes.c_int(value)
            self._call("cudssConfigSet", self._config, parameter, ctypes.byref(given), ctypes.sizeof(given))
        if found.layer:
            self._call("cudssSetThreadingLayer", self._handle, os.fsencode(found.layer))
        index, real = cudss.TYPES["int32"], cudss.TYPES["float64"]
        places = (int(a.data.ptr) for a in (pattern.indptr, pattern.indices, values))
        indptr, indices, data = places
        self._A = self._created(
            "cudssMatrixCreateCsr", n, n, pattern.nnz, indptr, None, indices, data, index, index, real,
            cudss.GENERAL, cudss.FULL, cudss.FROM_ZERO,
        )  # fmt: skip
        self._b, self._x = (
            self._created("cudssMatrixCreateDn", n, 1, n, int(a.data.ptr), real, cudss.BY_COLUMNS) for a in (b, self.x)
        )

    def run(self, *phases: int) -> Any:
        """The phases, one after the other; x."""
        for phase in phases:
            self._call("cudssExecute", self._handle, phase, self._config, self._data, self._A, self._x, self._b)
        return self.x

    def close(self) -> None:
        for matrix in (self._A, self._b, self._x):
            self._call("cudssMatrixDestroy", matrix)
        self._call("cudssDataDestroy", self._handle, self._data)
        self._call("cudssConfigDestroy", self._config)
        self._call("cudssDestroy", self._handle)

    def _created(self, function: str, *arguments: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._call(function, ctypes.byref(made), *arguments)
        return made

    def _call(self, function: str, *arguments: Any) -> None:
        if status := getattr(self._calls, function)(*arguments):
            raise PeerError(f"{function}: {cudss.STATUS.get(status, status)}")


def solved(pattern: Any, values: Any, b: Any, ordering: int = cudss.AMD) -> Any:
    """x of all systems, by a batch made anew."""
    batch = UniformBatch(pattern, values, b, ordering)
    try:
        return batch.run(cudss.ANALYSIS, cudss.FACTORIZATION, cudss.SOLVE)
    finally:
        batch.close()
