"""cuSPARSE's block ILU(0) and block triangular solves, bsrilu02 and bsrsv2, through ctypes: float64, int32 indices.

Signatures and constants are those of cusparse.h in CUDA 13.0, where both are deprecated but still there. They have a
file of their own, so that a later version without them leaves the other peers as they are.
"""

from __future__ import annotations

from ctypes import POINTER, byref, c_double, c_int, c_void_p
from typing import Any

from benchmarks.peers import PeerError, cusparse
from benchmarks.peers.cusparse import (
    DIAG_TYPE_NON_UNIT,
    DIAG_TYPE_UNIT,
    FILL_MODE_LOWER,
    FILL_MODE_UPPER,
    OPERATION_NON_TRANSPOSE,
    POLICIES,
    STATUS_ZERO_PIVOT,
)

DIRECTIONS = {"row": 0, "column": 1}  # how the entries of a block lie in memory
LARGEST = 2**30  # entries of a matrix; buffers are counted in bytes by an int

# values, offsets, columns, block size, info
_ARRAYS = [c_void_p, c_void_p, c_void_p, c_int, c_void_p]
_ILU = [c_void_p, c_int, c_int, c_int, c_void_p, *_ARRAYS]  # handle, direction, mb, nnzb, descr
_SV = [c_void_p, c_int, c_int, c_int, c_int, c_void_p, *_ARRAYS]  # handle, direction, operation, mb, nnzb, descr
SIGNATURES = {
    "cusparseSetMatFillMode": [c_void_p, c_int],
    "cusparseSetMatDiagType": [c_void_p, c_int],
    "cusparseCreateBsrilu02Info": [POINTER(c_void_p)],
    "cusparseDestroyBsrilu02Info": [c_void_p],
    "cusparseXbsrilu02_zeroPivot": [c_void_p, c_void_p, POINTER(c_int)],
    "cusparseDbsrilu02_bufferSize": [*_ILU, POINTER(c_int)],
    "cusparseDbsrilu02_analysis": [*_ILU, c_int, c_void_p],
    "cusparseDbsrilu02": [*_ILU, c_int, c_void_p],
    "cusparseCreateBsrsv2Info": [POINTER(c_void_p)],
    "cusparseDestroyBsrsv2Info": [c_void_p],
    "cusparseDbsrsv2_bufferSize": [*_SV, POINTER(c_int)],
    "cusparseDbsrsv2_analysis": [*_SV, c_int, c_void_p],
    # handle, direction, operation, mb, nnzb, alpha (on the host), descr, arrays, b, x, policy, buffer
    "cusparseDbsrsv2_solve": [*_SV[:5], c_void_p, c_void_p, *_ARRAYS, c_void_p, c_void_p, c_int, c_void_p],
}


def _buffer(name: str, *arguments):
    """Memory as large as the bufferSize function `name` says."""
    import cupy

    size = c_int()
    cusparse.call(name, *arguments, byref(size))
    if size.value < 0:
        raise PeerError(f"{name}: {size.value} bytes; its count overflows")
    return cupy.empty(max(size.value, 1), cupy.uint8)  # CuPy aligns to 512 bytes; 128 are needed


class BlockILU0:
    """bsrilu02 of a BSR matrix on the GPU, and bsrsv2 with its L (unit diagonal) and U.

    indptr, indices : int32.  data : (blocks, n, n) float64, C-contiguous; not written.
    policy : "NO_LEVEL" or "USE_LEVEL".  direction : "row" or "column", how `values` keeps the blocks.
    `load`, `analyse` and `factor` in this order; then `analyse_solves`, and `lower` and `upper` as often as wanted.
    Each `renew...` forgets an analysis, so that it can be timed again.
    """

    def __init__(self, indptr, indices, data, policy: str, direction: str):
        import cupy

        if data.size > LARGEST:
            raise PeerError(f"cuSPARSE is not asked to factor {data.size} entries; {LARGEST} are the most here")
        self._indptr, self._indices, self._size = indptr, indices, data.shape[1]
        self._data = data if direction == "row" else cupy.ascontiguousarray(data.transpose(0, 2, 1))
        self.values = self._data.copy()
        self._direction, self._policy = DIRECTIONS[direction], POLICIES[policy]
        self._handle, self._one = cusparse.handle(), c_double(1.0)
        cusparse.declare(cusparse.library(), SIGNATURES)
        self._general = self._descriptor()
        self._sides = {
            "lower": self._descriptor(FILL_MODE_LOWER, DIAG_TYPE_UNIT),
            "upper": self._descriptor(FILL_MODE_UPPER, DIAG_TYPE_NON_UNIT),
        }
        self._info = c_void_p()
        self._infos = {side: c_void_p() for side in self._sides}
        self.renew()
        self.renew_solves()
        self._ilu_buffer = _buffer("cusparseDbsrilu02_bufferSize", *self._ilu())
        self._buffers = {side: _buffer("cusparseDbsrsv2_bufferSize", *self._sv(side)) for side in self._sides}

    @staticmethod
    def _descriptor(fill: int | None = None, diagonal: int | None = None) -> c_void_p:
        """General and zero-based, as made; with a fill mode and a kind of diagonal for a triangle."""
        descriptor = c_void_p()
        cusparse.call("cusparseCreateMatDescr", byref(descriptor))
        if fill is not None:
            cusparse.call("cusparseSetMatFillMode", descriptor, fill)
            cusparse.call("cusparseSetMatDiagType", descriptor, diagonal)
        return descriptor

    def _arrays(self, info: c_void_p):
        return self.values.data.ptr, self._indptr.data.ptr, self._indices.data.ptr, self._size, info

    def _ilu(self):
        rows, blocks = self._indptr.size - 1, self._indices.size
        return self._handle, self._direction, rows, blocks, self._general, *self._arrays(self._info)

    def _front(self):
        rows, blocks = self._indptr.size - 1, self._indices.size
        return self._handle, self._direction, OPERATION_NON_TRANSPOSE, rows, blocks

    def _sv(self, side: str):
        return *self._front(), self._sides[side], *self._arrays(self._infos[side])

    def renew(self) -> None:
        if self._info:
            cusparse.call("cusparseDestroyBsrilu02Info", self._info)
            self._info = c_void_p()
        cusparse.call("cusparseCreateBsrilu02Info", byref(self._info))

    def renew_solves(self) -> None:
        for side, info in self._infos.items():
            if info:
                cusparse.call("cusparseDestroyBsrsv2Info", info)
            self._infos[side] = c_void_p()
            cusparse.call("cusparseCreateBsrsv2Info", byref(self._infos[side]))

    def load(self) -> None:
        """The values of A again, as the factorization overwrites them; a copy on the device, queued."""
        self.values[...] = self._data

    def analyse(self) -> None:
        cusparse.call("cusparseDbsrilu02_analysis", *self._ilu(), self._policy, self._ilu_buffer.data.ptr)

    def factor(self) -> None:
        cusparse.call("cusparseDbsrilu02", *self._ilu(), self._policy, self._ilu_buffer.data.ptr)

    def zero_pivot(self) -> int:
        """The first block row whose pivot has no inverse, or -1; waits for the device."""
        row = c_int(-1)
        status = cusparse.library().cusparseXbsrilu02_zeroPivot(self._handle, self._info, byref(row))
        if status not in (0, STATUS_ZERO_PIVOT):
            raise PeerError(
                f"cusparseXbsrilu02_zeroPivot: {cusparse.library().cusparseGetErrorString(status).decode()}"
            )
        return row.value

    def analyse_solves(self) -> None:
        for side in self._sides:
            cusparse.call("cusparseDbsrsv2_analysis", *self._sv(side), self._policy, self._buffers[side].data.ptr)

    def _solve(self, side: str, b, x) -> None:
        cusparse.call(
            "cusparseDbsrsv2_solve",
            *self._front(),
            byref(self._one),
            self._sides[side],
            *self._arrays(self._infos[side]),
            b.data.ptr,
            x.data.ptr,
            self._policy,
            self._buffers[side].data.ptr,
        )

    def lower(self, b: Any, y: Any) -> None:
        """L y = b."""
        self._solve("lower", b, y)

    def upper(self, y: Any, x: Any) -> None:
        """U x = y."""
        self._solve("upper", y, x)

    def close(self) -> None:
        """Free the descriptors; the device must be idle."""
        cusparse.call("cusparseDestroyBsrilu02Info", self._info)
        for side, descriptor in self._sides.items():
            cusparse.call("cusparseDestroyBsrsv2Info", self._infos[side])
            cusparse.call("cusparseDestroyMatDescr", descriptor)
        cusparse.call("cusparseDestroyMatDescr", self._general)
