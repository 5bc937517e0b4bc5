"""Launchers of selection.cu: plans that find the value of a rank on the GPU, without waiting for the host."""

from __future__ import annotations

import math

import cupy
import numpy as np

from finelu.errors import MatrixError, ParameterError
from finelu.kernels.cuda.runtime.launch import NULL, blocks, device_limits, kernel
from finelu.kernels.cuda.runtime.memory import set_pending

BLOCK, BUCKETS, TILE, TAIL = 1024, 256, 8192, 4096  # as in selection.cu
TREE_BYTES = 2 * BUCKETS * 128
STATE = 17  # words of the state, before the counters
CODE, NAN_PLACE, BELOW, NAN_SEEN = 0, 1, 2, 14  # words of the state, as in selection.cu
FINE, HAS_NAN, BAD_COUNT, BAD_RANK, CHANGED = range(5)
COUNT_IS_LONG, RANK_IS_LONG, KEEP = 1, 2, 4  # bits of the form of a call, as in selection.cu
MOST = 2**32 - 1  # elements; the counters of a block have 32 bits
SELECTION_METHODS = ("sampleselect", "quickselect")
ORDERS = ("values", "magnitudes")
COUNTINGS = ("lanes", "shared", "shared_aggregated", "global", "global_aggregated")
KEYS = {"float32": "unsigned", "float64": "u64", "complex64": "unsigned", "complex128": "u64"}


class Selection:
    """Finds the element of a given rank among up to n_max values on the current GPU, as often as wanted.

    order : "values" (real ones, as they are) or "magnitudes".
    exact : if not, one level of sampleselect: the splitter whose rank is nearest, off by n / 800 on average and seldom
        by n / 200.
    method : "sampleselect" or, exact only, "quickselect"; "auto" is sampleselect.
    counting : with which atomics elements are counted (and extracted): "shared", "shared_aggregated", "global" or
        "global_aggregated", as in the paper; "lanes" (sampleselect only, what "auto" takes): in shared memory, with a
        column of counters for each lane, so that no two lanes of a warp ever want the same.  quickselect's "auto":
        "shared_aggregated".
    room : keys that can be extracted from a bucket (n_max / 16 if left out); a larger bucket is searched in place.

    out (1,), real: the result of the last `select`, on the device.  below (1,) int64: the number of elements less than
    it.  Memory: 1.5 bytes a float64 and 1.3 a float32 for the exact sampleselect, two keys an element for quickselect,
    some kilobytes for the approximate one. Not for two threads or streams at once.
    """

    def __init__(
        self,
        n_max: int,
        dtype,
        *,
        order="magnitudes",
        exact=True,
        method="auto",
        counting="auto",
        room: int | None = None,
    ):
        dtype = np.dtype(dtype)
        if order not in ORDERS or (order == "values" and dtype.kind == "c"):
            raise ParameterError(f"order={order!r}: 'magnitudes', or for real numbers 'values'.")
        method = "sampleselect" if method == "auto" else method
        if method not in SELECTION_METHODS or not (exact or method == "sampleselect"):
            raise ParameterError(f"method={method!r}, exact={exact}: 'sampleselect', or if exact 'quickselect'.")
        offered = COUNTINGS if method == "sampleselect" else COUNTINGS[1:]
        if counting == "auto":
            counting = "lanes" if method == "sampleselect" else "shared_aggregated"
        if counting not in offered:
            raise ParameterError(f"counting={counting!r}: {method} offers {', '.join(offered)}.")
        if not 0 <= n_max <= MOST:
            raise ParameterError(f"n_max={n_max}: 0 to {MOST} elements can be searched.")
        self.n_max, self.dtype, self.exact, self.method = int(n_max), dtype, bool(exact), method
        self.order, self.counting = order.upper(), counting.upper()
        real = np.dtype(dtype.char.lower())
        key = np.dtype(f"u{real.itemsize}")
        self.out = cupy.empty(1, real)
        self.state = cupy.zeros(STATE + BUCKETS, np.int64)
        set_pending(self.state[NAN_SEEN : NAN_SEEN + 1])
        self.below = self.state[BELOW : BELOW + 1]
        self.grid = min(device_limits()["processors"], blocks(self.n_max, BLOCK))
        self.room = max(self.n_max // 16, TILE) if room is None else int(room)
        self.levels = 0
        if method == "quickselect":
            self.room = self.n_max
            if n_max > TAIL:  # each level halves the rest, by the median of a sample: two more than that
                self.levels = math.ceil(math.log2(n_max / TAIL)) + 2
            self.extracted = tuple(cupy.empty(self.n_max if self.levels else 0, key) for _ in range(2))
        elif exact:
            if n_max > TAIL:  # one block is good for some 16,000 elements
                self.levels = 1 if n_max <= 2**22 else 2
            second = max(self.room // 16, TILE)
            self.rooms = (self.room, second)
            self.extracted = (
                cupy.empty(self.room if self.levels else 0, key),
                cupy.empty(second if self.levels > 1 else 0, key),
            )
            self.oracles = cupy.empty(TILE * blocks(self.n_max, TILE) if self.levels else 0, np.uint8)
            self.block_counts = cupy.empty((self.grid if self.levels else 0, BUCKETS), np.uint32)

    def select(self, values, rank=None, *, keep=None, count=None):
        """Queue the search for the element that has `rank` others before it; returns `out`, not yet computed.

        values : (n,) with n <= n_max, contiguous.
        rank : 0 to n; the rank n, which no element has, gives Inf. Or keep : the rank n - keep (0 if keep > n), so that
            `keep` elements are not less than `out`.
        count : only the first `count` values take part.
        rank, keep and count may be integers, or arrays of one int32 or int64 on the device: the host waits for nothing.
        What is wrong with the values, or with a number that is on the device, `check` tells; `out` is no NaN then.
        """
        wrong = None
        if values.dtype != self.dtype or values.ndim != 1 or not values.flags.c_contiguous:
            wrong = f"(n,) contiguous {self.dtype}, but {values.dtype} of shape {values.shape} came"
        elif values.size > self.n_max:
            wrong = f"up to {self.n_max} values, but {values.size} came"
        elif (rank is None) == (keep is None):
            wrong = "either rank or keep"
        if wrong:
            raise ParameterError(f"this selection is for {wrong}.")
        n, n_at, n_long = _scalar("count", values.size if count is None else count, values.size)
        k, k_at, k_long = _scalar("rank", rank, n) if keep is None else _scalar("keep", keep, MOST)
        form = COUNT_IS_LONG * n_long + RANK_IS_LONG * k_long + KEEP * (keep is not None)
        request = (np.int64(n), n_at, np.int64(k), k_at, np.int32(form))
        if self.method == "quickselect":
            self._quickselect(request, values)
        elif self.exact:
            self._sampleselect(request, values)
        else:
            self._count(0, request, values, False, NULL, NULL, 0)
        return self.out

    def _kinds(self, level, values):
        """The type and order of the numbers that a level reads: the values, later keys."""
        return (values.dtype.name, self.order) if level == 0 else (KEYS[self.dtype.name], "KEYS")

    def _count(self, level, request, source, oracles, *places_and_room):
        launch = kernel("selection", "count_buckets", *self._kinds(level, source), self.counting, oracles)
        places, block_counts, room = places_and_room
        arguments = (*request, np.int32(level), np.int32(self.order == "MAGNITUDES"), source, places, block_counts)
        launch((self.grid,), (BLOCK,), (*arguments, np.int64(room), self.state, self.out), shared_mem=TREE_BYTES)

    def _sampleselect(self, request, values):
        source = values
        for level in range(self.levels):
            self._count(level, request, source, True, self.oracles, self.block_counts, self.rooms[level])
            extract = kernel("selection", "extract_bucket", *self._kinds(level, source), self.counting)
            arguments = (np.int32(level), source, self.oracles, self.block_counts, self.state, self.extracted[level])
            extract((self.grid,), (BLOCK,), arguments)
            source = self.extracted[level]
        self._search_rest(request, values)

    def _quickselect(self, request, values):
        source = values
        for level in range(self.levels):
            launch = kernel("selection", "partition", *self._kinds(level, source), self.counting)
            parts = self.extracted[level % 2]
            arguments = (*request, np.int32(level), np.int32(self.order == "MAGNITUDES"), source)
            launch((self.grid,), (BLOCK,), (*arguments, np.int64(self.room), self.state, parts, self.out))
            source = parts
        self._search_rest(request, values)

    def _search_rest(self, request, values):
        launch = kernel("selection", "search_rest", self.dtype.name, self.order)
        first = np.int32(self.levels == 0)
        launch((1,), (BLOCK,), (*request, first, values, *self.extracted, self.state, self.out))

    def check(self) -> None:
        """Wait for the last `select`, and raise its error.

        MatrixError, naming the place of the first NaN.  ParameterError for a count or rank on the device that was out
        of range: the search took the nearest one that has a meaning.
        """
        code, place = (int(word) for word in self.state[:2].get())
        if code == HAS_NAN:
            raise MatrixError(f"values[{place}] is NaN, which has no place in any order; remove or replace it.")
        if code == BAD_COUNT:
            raise ParameterError("count, on the device, is negative or larger than values; the nearest was taken.")
        if code == BAD_RANK:
            raise ParameterError("rank or keep, on the device, is not in 0..count; the nearest was taken.")
        if code == CHANGED:
            raise MatrixError("values were changed during the search; order the two on one stream.")

    def result(self):
        """The result of the last `select` as a NumPy scalar; waits for it, and raises the errors of `check`."""
        self.check()
        return self.out.get()[0]


def _scalar(name, value, largest):
    """(value for the host, its place on the device or null, whether that is of 64 bits)."""
    if isinstance(value, cupy.ndarray):
        if value.size != 1 or value.dtype not in (np.int32, np.int64):
            raise ParameterError(f"{name} of shape {value.shape}, {value.dtype}: one int32 or int64 on the device.")
        return largest, value, value.dtype == np.int64
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value <= largest:
        raise ParameterError(f"{name}={value!r}: an integer from 0 to {largest} is needed.")
    return int(value), NULL, False
