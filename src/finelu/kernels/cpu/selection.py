"""The value of a given rank on the CPU: sampleselect with one bucket that matters, and the median of p thresholds.

Sampleselect needs only the bucket that holds the rank. On the CPU there are no warps to keep busy, so a sample gives
just two splitters, between which the value of the rank almost always lies. One pass over the values counts those below
the bucket and copies those in it, some per cent, or nearly all where many are equal. Among many copies the bits of the
value are found, a few at a time, from counts of the bits that follow those found; among few by NumPy's introselect. All
threads share each pass.
"""

from __future__ import annotations

import math

import numpy as np

from finelu.errors import MatrixError, ParameterError
from finelu.kernels.cpu.runtime.atomics import fetch_add
from finelu.kernels.cpu.runtime.items import by_items
from finelu.kernels.cpu.runtime.jit import compiled
from finelu.kernels.cpu.runtime.sharing import run_items
from finelu.kernels.cpu.runtime.workers import run
from finelu.threads import get_num_threads

SELECTION_METHODS = ("sampleselect", "quickselect")
ORDERS = ("values", "magnitudes")
SMALL = 2**15  # fewer are searched by introselect at once: a sample would not pay
SAMPLE = 2**12  # values of a sample at most: twice as many would take longer to sort than they save
DIGIT = 11  # bits that a pass finds: its counts fit the first-level cache
ITEM = 2**15  # values that a thread takes at a time
LANES = 32  # of them that are compared at once: a loop of a fixed length, which becomes vector instructions
SUBSETS = 64  # p of the 2018 paper, there four times the number of threads; a fixed one, so that results are too
SEQUENTIAL = 100_000  # the 2018 paper's limit: fewer get no approximate threshold, but the exact one


class Selection:
    """Finds the element of a given rank among up to n_max values, as often as wanted.

    order : "values" (real ones, as they are) or "magnitudes".
    exact : if not, from 100,000 values on the median of the thresholds of 64 subsets (ParILUT, 2018, section 3.3).
    method : exact only: "sampleselect", "quickselect" (NumPy's introselect), or "auto", which is sampleselect.

    out (1,), real: the result of the last `select`.  below (1,) int64: the number of elements less than it. The
    results do not depend on the number of threads. Memory: one real number a value.
    """

    def __init__(self, n_max: int, dtype, *, order="magnitudes", exact=True, method="auto"):
        dtype = np.dtype(dtype)
        if order not in ORDERS or (order == "values" and dtype.kind == "c"):
            raise ParameterError(f"order={order!r}: 'magnitudes', or for real numbers 'values'.")
        method = "sampleselect" if method == "auto" else method
        if method not in SELECTION_METHODS or not (exact or method == "sampleselect"):
            raise ParameterError(f"method={method!r}, exact={exact}: 'sampleselect', or if exact 'quickselect'.")
        if n_max < 0:
            raise ParameterError(f"n_max={n_max}: 0 or more elements can be searched.")
        self.n_max, self.dtype, self.order, self.exact, self.method = int(n_max), dtype, order, bool(exact), method
        real = np.dtype(dtype.char.lower())
        self.out, self.below = np.zeros(1, real), np.zeros(1, np.int64)
        self.work = np.empty(self.n_max, real)
        self.magnitudes = np.empty(self.n_max if dtype.kind == "c" else 0, real)
        self.bad = -1

    def select(self, values, rank=None, *, keep=None, count=None):
        """Find the element that has `rank` others before it; returns `out`.

        values : (n,) with n <= n_max, contiguous.
        rank : 0 to n; the rank n, which no element has, gives Inf. Or keep : the rank n - keep (0 if keep > n), so that
            `keep` elements are not less than `out`.
        count : only the first `count` values take part.  rank, keep, count : integers, or integer arrays of one.
        `check` raises if there is a NaN among the values; `out` is Inf then.
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
        n = _scalar("count", values.size if count is None else count, values.size)
        rank = _scalar("rank", rank, n) if keep is None else max(n - _scalar("keep", keep, None), 0)
        values, magnitude = values[:n], self.order == "magnitudes"
        if self.dtype.kind == "c":
            run_items(_magnitudes, _items_of(n), values, self.magnitudes)
            values, magnitude = self.magnitudes[:n], False
        if self.exact or n < SEQUENTIAL:
            found = self._exact(values, magnitude, rank)
        else:
            found = self._median_of_thresholds(values, magnitude, rank)
        if found is None:
            self.bad = int(np.flatnonzero(np.isnan(values))[0])
            self.out[0], self.below[0] = np.inf, n
        else:
            self.bad = -1
            self.out[0], self.below[0] = found
        return self.out

    def _exact(self, values, magnitude, rank):
        """(the value of that rank, the number of smaller ones), or None if there is a NaN."""
        n = values.size
        if self.method == "quickselect" or n <= SMALL:
            copy = self.work[:n]
            np.copyto(copy, values)
            if magnitude:
                np.abs(copy, out=copy)
            if n and np.isnan(copy.max()):
                return None
            return _introselect(copy, rank) if rank < n else (np.inf, n)
        sample = values[_sample_places(n)]
        sample = np.sort(abs(sample) if magnitude else sample)  # NaN last
        # three standard deviations of the rank of a sampled element, and then some
        center, reach = sample.size * rank / n, 3 * math.sqrt(sample.size) / 2 + 8
        first, last = max(int(center - reach), 0), min(int(center + reach) + 1, sample.size - 1)
        low = sample[first] if center - reach > 0 else -np.inf
        high = sample[last] if center + reach + 1 < sample.size else np.inf
        less, from_low, from_high, sizes, ordered = self._count(values, magnitude, low, high)
        if ordered < n:
            return None
        if rank == n:
            return np.inf, n
        inside = int(sizes.sum())
        if not less <= rank < less + from_low + inside + from_high:  # one in a thousand times: the sample led astray
            low, high = -np.inf, np.inf
            less, from_low, from_high, sizes, _ = self._count(values, magnitude, low, high)
            inside = int(sizes.sum())
        if rank < less + from_low:  # many values may be equal, and so be one of the splitters
            return low, less
        less += from_low
        if rank >= less + inside:
            return high, less + inside
        if inside <= SMALL:
            few = np.concatenate([self.work[t * ITEM : t * ITEM + size] for t, size in enumerate(sizes)])
            value, before = _introselect(few, rank - less)
        else:
            value, before = self._by_digits(sizes, rank - less, low, high)
        return value, less + before

    def _count(self, values, magnitude, low, high):
        """How many values are less than low, how many equal to it, and to high if that is larger, how many of each item
        are between, which begin in `work` where it begins in `values`, and how many values are no NaN."""
        items, real = _items_of(values.size), values.dtype.type
        found = np.zeros((items, 5), np.int64)
        run_items(_count_items, items, values, magnitude, real(low), real(high), found, self.work)
        less, up_to_low, inside, from_high, more = (int(v) for v in found.sum(axis=0))
        equal_to_high = from_high - more if low < high else 0
        ordered = up_to_low + inside + equal_to_high + more
        return less, up_to_low - less, equal_to_high, found[:, 2].copy(), ordered

    def _by_digits(self, sizes, rank, low, high):
        """(the value of this rank, the number of smaller ones) among the numbers of the items, from low to high.

        The numbers are compared as unsigned integers with the same order. The leading bits that low and high share are
        known; each pass counts what the next DIGIT bits are in the numbers whose leading bits are those found so far.
        """
        kind = np.uint64 if self.work.itemsize == 8 else np.uint32
        bits = self.work.view(kind)
        ends = _keys(np.array([low, high], self.work.dtype).view(kind))
        shift = max(int(ends[0] ^ ends[1]).bit_length(), 1)
        prefix = int(ends[0]) >> shift
        before = 0
        while shift > 0:
            digit = min(DIGIT, shift)
            shift -= digit
            counts = np.zeros(2**digit, np.int64)
            groups = min(get_num_threads(), sizes.size)
            args = groups, kind(prefix), kind(shift), kind(digit), bits, sizes, counts
            run_items(_count_digits, groups, *args)
            until = np.cumsum(counts)
            place = int(np.searchsorted(until, rank - before, side="right"))
            before += int(until[place] - counts[place])
            prefix = (prefix << digit) | place
        key = np.array([prefix], kind)
        return _keys(key, inverse=True).view(self.work.dtype)[0], before

    def _median_of_thresholds(self, values, magnitude, rank):
        """The median of the values of rank r_i in SUBSETS equal parts, where r_i is the same share of a part."""
        n = values.size
        bounds = np.linspace(0, n, SUBSETS + 1).astype(np.int64)
        thresholds = np.empty(SUBSETS, values.dtype)
        state, done = np.zeros(1, np.int64), np.zeros(SUBSETS, np.int64)
        args = (state, done, values, magnitude, np.int64(rank), bounds, self.work, thresholds)
        run(_thresholds_of_subsets, min(SUBSETS, get_num_threads()), *args)
        if np.isnan(thresholds).any():
            return None
        threshold = np.sort(thresholds)[SUBSETS // 2]
        less, *_ = self._count(values, magnitude, threshold, threshold)
        return threshold, less

    def check(self) -> None:
        """Raise MatrixError, naming the place of the first NaN, if there was one in the last `select`."""
        if self.bad >= 0:
            raise MatrixError(f"values[{self.bad}] is NaN, which has no place in any order; remove or replace it.")

    def result(self):
        """The result of the last `select` as a NumPy scalar; raises what `check` does."""
        self.check()
        return self.out[0]


def _scalar(name, value, largest):
    if isinstance(value, np.ndarray) and value.size == 1:
        value = value.item()
    bounded = isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value >= 0
    if not bounded or (largest is not None and value > largest):
        needed = "of 0 or more" if largest is None else f"from 0 to {largest}"
        raise ParameterError(f"{name}={value!r}: an integer {needed} is needed.")
    return int(value)


def _sample_places(n):
    """A random place in each of s equal parts of n, the same in every run."""
    s = min(2 ** round(math.log2(n) * 2 / 3), SAMPLE)
    bounds = np.arange(s + 1, dtype=np.int64) * n // s
    jitter = np.random.default_rng(0).random(s)
    return bounds[:-1] + (jitter * (bounds[1:] - bounds[:-1])).astype(np.int64)


def _introselect(numbers, rank):
    """(numbers of that rank, how many are less than it); numbers, which hold no NaN, are permuted."""
    numbers.partition(rank)
    found = numbers[rank]
    return found, int(np.count_nonzero(numbers[:rank] < found))


def _keys(bits, inverse=False):
    """Unsigned integers in the order of the real numbers with these bits, as `_key` makes them; or the inverse."""
    sign = bits.dtype.type(1) << bits.dtype.type(8 * bits.itemsize - 1)
    if inverse:
        return np.where(bits & sign, bits ^ sign, ~bits)
    bits = np.where(bits == sign, 0, bits).astype(bits.dtype)  # -0 is 0
    return np.where(bits & sign, ~bits, bits | sign)


def _items_of(n):
    return max(1, -(-n // ITEM))


@by_items
def _magnitudes(t, values, out):
    """out = |values|. Threads write different items; see items.py."""
    for i in range(t * ITEM, min((t + 1) * ITEM, values.size)):
        re, im = values[i].real, values[i].imag
        out[i] = np.hypot(re, im) if re == re and im == im else re + im


@by_items
def _count_items(t, values, magnitude, low, high, found, work):
    """found[t] : how many values of item t are less than low, up to low, between low and high, from high on, and more
    than high; those in between to work.

    Threads write different items of work and found; see items.py.
    """
    begin, end = t * ITEM, min((t + 1) * ITEM, values.size)
    place = begin
    less = up_to_low = from_high = more = 0
    # LANES values are compared at once, and only where one of them stays, as seldom happens, they are copied: every
    # one, but the place moves on only behind one that stays. That leaves no branch to be mispredicted inside.
    for b in range(begin, end - LANES + 1, LANES):
        before = at_most = at_least = after = np.int32(0)
        for i in range(LANES):
            v = abs(values[b + i]) if magnitude else values[b + i]
            before += np.int32(v < low)
            at_most += np.int32(v <= low)
            at_least += np.int32(v >= high)
            after += np.int32(v > high)
        less += before
        up_to_low += at_most
        from_high += at_least
        more += after
        if at_most + at_least < LANES:
            for i in range(LANES):
                v = abs(values[b + i]) if magnitude else values[b + i]
                work[place] = v
                place += (v > low) & (v < high)
    for i in range(end - (end - begin) % LANES, end):
        v = abs(values[i]) if magnitude else values[i]
        work[place] = v
        place += (v > low) & (v < high)
        less += v < low
        up_to_low += v <= low
        from_high += v >= high
        more += v > high
    found[t, 0] = less
    found[t, 1] = up_to_low
    found[t, 2] = place - begin
    found[t, 3] = from_high
    found[t, 4] = more


@by_items
def _count_digits(t, groups, prefix, shift, digit, bits, sizes, counts):
    """Add to counts[d] the numbers of a group of items whose key has the bits `prefix` and then d above the last
    `shift`.

    Threads add their own counts to the shared ones; see items.py.
    """
    one = digit // digit
    sign = one << (np.uint64(bits.itemsize * 8) - one)
    mask = (one << digit) - one
    whole = shift + digit == bits.itemsize * 8
    mine = np.zeros(counts.size, np.int64)
    for item in range(t * sizes.size // groups, (t + 1) * sizes.size // groups):
        for i in range(item * ITEM, item * ITEM + sizes[item]):
            b = bits[i]
            key = (b | sign) if b < sign or b == sign else ~b
            head = key >> shift
            if whole or head >> digit == prefix:
                mine[head & mask] += 1
    for d in range(mine.size):
        if mine[d] > 0:
            fetch_add(counts, d, mine[d])


@by_items
def _thresholds_of_subsets(t, values, magnitude, rank, bounds, work, thresholds):
    """thresholds[t] : the value of its share of the rank in part t, or NaN if there is one in the part.

    Threads write different parts of work and thresholds; see items.py.
    """
    begin, end = bounds[t], bounds[t + 1]
    ordered = True
    for i in range(begin, end):
        v = abs(values[i]) if magnitude else values[i]
        work[i] = v
        ordered &= v == v
    if ordered:
        share = begin + min((end - begin) * rank // values.size, end - begin - 1)
        _quickselect(work, begin, end - 1, share)
        thresholds[t] = work[share]
    else:
        thresholds[t] = np.nan


@compiled
def _quickselect(a, first, last, k):
    """Permute a[first:last + 1] so that a[k] has its place (Hoare's FIND; many equal values are split in halves)."""
    seed = np.uint64(last)
    while first < last:
        seed = seed * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        pivot = a[first + np.int64(seed >> np.uint64(33)) % (last - first + 1)]  # random: no order of values is bad
        i, j = first, last
        while i <= j:
            while a[i] < pivot:
                i += 1
            while pivot < a[j]:
                j -= 1
            if i <= j:
                a[i], a[j] = a[j], a[i]
                i += 1
                j -= 1
        if k <= j:
            last = j
        elif k >= i:
            first = i
        else:
            return
