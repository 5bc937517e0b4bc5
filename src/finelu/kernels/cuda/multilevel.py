"""Launchers of multilevel.cu, and the recording of a whole application, which is then started as one."""

from __future__ import annotations

import cupy
import numpy as np

from finelu.errors import ParameterError
from finelu.kernels.cuda.launch import blocks, kernel
from finelu.kernels.cuda.products import NULL
from finelu.kernels.cuda.schedule import lanes_for
from finelu.kernels.cuda.triangular import MOST_COLUMNS

BLOCK = 256


def _columns(x) -> int:
    return 1 if x.ndim == 1 else x.shape[1]


def _by_columns(n: int, like):
    """(n,) or (n, columns), as `like`; the columns as a grid's dimension and as an argument."""
    if _columns(like) > MOST_COLUMNS:
        raise ParameterError(f"{_columns(like)} right-hand sides at once; the GPU takes at most {MOST_COLUMNS}.")
    return cupy.empty((n, *like.shape[1:]), like.dtype), _columns(like), np.int32(_columns(like))


def enter(rows, scale, r):
    """scale_i r[rows_i]; see kernels/reference.py."""
    r = cupy.ascontiguousarray(r)
    out, grid, columns = _by_columns(rows.size, r)
    index = rows.dtype
    if out.size:
        kernel("multilevel", "enter", r.dtype, index)(
            (blocks(rows.size, BLOCK), grid), (BLOCK,), (index.type(rows.size), columns, rows, scale, r, out)
        )
    return out


def leave(places, scale, s, t, w):
    """scale_i (s - t, w)_i at places_i; see kernels/reference.py. t and w may be None."""
    out, grid, columns = _by_columns(places.size, s)
    index = places.dtype
    sizes = index.type(places.size), index.type(s.shape[0]), columns
    parts = s, NULL if t is None else t, NULL if w is None else w
    if out.size:
        kernel("multilevel", "leave", s.dtype, index)(
            (blocks(places.size, BLOCK), grid), (BLOCK,), (*sizes, places, scale, *parts, out)
        )
    return out


def subtract_product(M, x, y=None):
    """y - M x, or M x; see kernels/reference.py. M : cupyx.scipy.sparse CSR."""
    n = M.shape[0]
    out, grid, columns = _by_columns(n, x)
    index, lanes = M.indices.dtype, lanes_for(M.nnz / max(n, 1))
    if out.size:
        kernel("multilevel", "subtract_product", x.dtype, index)(
            (blocks(n * lanes, BLOCK), grid),
            (BLOCK,),
            (
                index.type(n),
                columns,
                np.int32(lanes),
                M.indptr,
                M.indices,
                M.data,
                x,
                NULL if y is None else y,
                out,
            ),
        )
    return out


def dense_product(matrix, x):
    """matrix x; see kernels/reference.py. matrix (n, n) C-contiguous."""
    n, x = matrix.shape[0], cupy.ascontiguousarray(x)
    out, grid, columns = _by_columns(n, x)
    if out.size:
        kernel("multilevel", "dense_product", x.dtype)(
            (blocks(32 * n, BLOCK), grid), (BLOCK,), (np.int32(n), columns, matrix, x, out)
        )
    return out


class Recorded:
    """A function of a vector (n,), recorded once as a graph of kernels: one launch instead of one for each of them.

    function(x) must queue the same work each time, on the current stream, without waiting for the host, and must have
    been called before: what it makes at first use and keeps would else be recorded, but not made. What it allocates
    belongs to the graph as long as that is there. Calls may come from any stream, one after the other: on the device
    each waits for the one before, whose places for x and the result it takes.
    """

    def __init__(self, function, n: int, dtype):
        self._memory: list = []
        self._done = cupy.cuda.Event(disable_timing=True)  # the last call
        stream = cupy.cuda.Stream(non_blocking=True)
        with cupy.cuda.using_allocator(self._allocate), stream:
            self._x = cupy.empty(n, dtype)
            stream.begin_capture()
            try:
                self._y = function(self._x)
            finally:
                self._graph = stream.end_capture()

    def _allocate(self, size: int):
        """Memory that nobody else is given, however short its first life: the graph writes to it at each launch."""
        memory = cupy.get_default_memory_pool().malloc(size)
        self._memory.append(memory)
        return memory

    def __call__(self, x):
        """A new array with function(x), queued on the current stream."""
        stream = cupy.cuda.get_current_stream()
        stream.wait_event(self._done)
        cupy.copyto(self._x, x)
        self._graph.launch(stream)
        y = self._y.copy()
        self._done.record(stream)
        return y
