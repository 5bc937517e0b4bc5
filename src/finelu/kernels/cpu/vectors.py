"""Inner products, norms, scaled gathers and scatters of vectors.

An inner product or norm is a sum of the sums of CHUNK elements each, which threads share for SHARED elements and more:
the bits are the same on any number of threads. A sum is made of LANES sums, of every LANES-th element each, which are
then folded in halves. Vectors that lie side by side, (n, k), are added up as one that has LANES k sums: each column has
the bits that it has alone, and a vector unit is busy.
"""

from __future__ import annotations

import math
from functools import partial, wraps

import numpy as np

from finelu.kernels.cpu.runtime.arithmetic import beyond_single
from finelu.kernels.cpu.runtime.atomics import fetch_min
from finelu.kernels.cpu.runtime.items import by_items
from finelu.kernels.cpu.runtime.jit import compiled, summing
from finelu.kernels.cpu.runtime.sharing import run_items

CHUNK = 2**12  # elements that a thread takes at a time
LANES = 2**6  # sums that a sum is made of
SHARED = 2**16  # fewer are through before another thread has come


def chunks(n: int) -> int:
    """How many chunks n elements are worked at in; the last may be shorter."""
    return -(-n // CHUNK)


@compiled
def add_products(x, y, sums, conjugate):
    """sums_l += conj(x_i) y_i, or x_i y_i, with l = i modulo the number of sums."""
    for begin in range(0, x.size, sums.size):
        X, Y = x[begin : begin + sums.size], y[begin : begin + sums.size]
        if conjugate:
            for i in range(X.size):
                sums[i] += np.conj(X[i]) * Y[i]
        else:
            for i in range(X.size):
                sums[i] += X[i] * Y[i]


@compiled
def add_squares(x, sums):
    """The same with |x_i|^2, in double precision."""
    for begin in range(0, x.size, sums.size):
        X = x[begin : begin + sums.size]
        for i in range(X.size):
            re, im = np.float64(X[i].real), np.float64(X[i].imag)
            sums[i] += re * re + im * im


@compiled
def fold(sums):
    """sums[:k] = the totals of k sums of LANES each, which lie side by side."""
    half, k = sums.size // 2, sums.size // LANES
    while half >= k:
        for i in range(half):
            sums[i] += sums[half + i]
        half //= 2


@compiled
def subtract(alpha, u, r):
    """r -= alpha u."""
    for i in range(r.size):
        r[i] -= alpha * u[i]


@compiled
def inner(x, y):
    """x^H y."""
    sums = np.zeros(LANES, x.dtype)
    add_products(x, y, sums, True)
    fold(sums)
    return sums[0]


@compiled
def bilinear(x, y):
    """x^T y."""
    sums = np.zeros(LANES, x.dtype)
    add_products(x, y, sums, False)
    fold(sums)
    return sums[0]


@compiled
def sum_of_squares(x):
    """x^H x, added up in double precision."""
    sums = np.zeros(LANES)
    add_squares(x, sums)
    fold(sums)
    return sums[0]


@summing
def sum_of_scaled_squares(x, scale):
    """The same for x / scale."""
    total = 0.0
    for i in range(x.size):
        re, im = np.float64(x[i].real) / scale, np.float64(x[i].imag) / scale
        total += re * re + im * im
    return total


@compiled
def length(x):
    """||x||_2, without overflow or underflow where it is representable; a second pass only where it is extreme."""
    return root(x, sum_of_squares(x))


@compiled
def root(x, square):
    """`length` of x, whose `sum_of_squares` is known."""
    if 1e-270 < square < 1e270 or math.isnan(square):
        return math.sqrt(square)
    largest = 0.0
    for i in range(x.size):
        largest = max(largest, abs(np.float64(x[i].real)), abs(np.float64(x[i].imag)))
    if largest == 0 or math.isinf(largest):
        return largest
    return largest * math.sqrt(sum_of_scaled_squares(x, largest))


@compiled
def inner_of_chunks(x, y):
    """x^H y, as `dot` adds it up."""
    total = inner(x[:CHUNK], y[:CHUNK])
    for begin in range(CHUNK, x.size, CHUNK):
        total += inner(x[begin : begin + CHUNK], y[begin : begin + CHUNK])
    return total


@compiled
def length_of_chunks(x):
    """||x||_2, as `norm` adds it up."""
    if x.size <= CHUNK:
        return length(x)
    norms = np.empty(-(-x.size // CHUNK))
    for t in range(norms.size):
        norms[t] = length(x[t * CHUNK : (t + 1) * CHUNK])
    return length(norms)


def shared(by_chunks, at):
    """A decorator of a kernel: `by_chunks` does its work if argument `at` has SHARED elements or more."""

    def decorated(whole):
        @wraps(whole)
        def kernel(*arguments):
            (whole if arguments[at].size < SHARED else by_chunks)(*arguments)

        return kernel

    return decorated


@by_items
def _products(t, x, y, conjugate, sums):
    k = slice(t * CHUNK, min((t + 1) * CHUNK, x.size))
    sums[t] = inner(x[k], y[k]) if conjugate else bilinear(x[k], y[k])


def _long_dot(x, y, out, conjugate=True):
    sums = np.empty(chunks(x.size), x.dtype)
    run_items(_products, sums.size, x, y, conjugate, sums)
    add_up(sums, out)


@compiled
def add_up(sums, out):
    """out[0] = the total of the sums of chunks."""
    total = sums[0]
    for t in range(1, sums.size):
        total += sums[t]
    out[0] = total


@shared(_long_dot, 0)
@compiled
def dot(x, y, out):
    """out[0] = x^H y."""
    out[0] = inner_of_chunks(x, y)


@shared(partial(_long_dot, conjugate=False), 0)
@compiled
def dotu(x, y, out):
    """out[0] = x^T y, the product without conjugation."""
    total = bilinear(x[:CHUNK], y[:CHUNK])
    for begin in range(CHUNK, x.size, CHUNK):
        total += bilinear(x[begin : begin + CHUNK], y[begin : begin + CHUNK])
    out[0] = total


@compiled
def add_sizes(x, y, sums):
    """sums_l += |x_i| |y_i|, with l as in `add_products`; |a| is |Re a| + |Im a|."""
    for begin in range(0, x.size, sums.size):
        X, Y = x[begin : begin + sums.size], y[begin : begin + sums.size]
        for i in range(X.size):
            sums[i] += (abs(X[i].real) + abs(X[i].imag)) * (abs(Y[i].real) + abs(Y[i].imag))


@compiled
def size_of_dot(x, y, out):
    """out[0] = the sum of the magnitudes of the terms of x^H y, that of a complex number taken as |Re| + |Im|."""
    total = out.dtype.type(0)
    for begin in range(0, x.size, CHUNK):
        sums = np.zeros(LANES, out.dtype)
        add_sizes(x[begin : begin + CHUNK], y[begin : begin + CHUNK], sums)
        fold(sums)
        total += sums[0]
    out[0] = total


@by_items
def _norms(t, x, norms):
    norms[t] = length(x[t * CHUNK : min((t + 1) * CHUNK, x.size)])


def _long_norm(x, out):
    norms = np.empty(chunks(x.size))
    run_items(_norms, norms.size, x, norms)
    out[0] = length(norms) if norms.size > 1 else norms[0]


@shared(_long_norm, 0)
@compiled
def norm(x, out):
    """out[0] = ||x||_2, without overflow or underflow where the norm is representable."""
    out[0] = length_of_chunks(x)


def dot_and_norm(x, y, out, size):
    """out[0] = x^H y and size[0] = ||x||_2."""
    dot(x, y, out)
    norm(x, size)


def gather(x, places):
    """x[places]; see kernels/reference/vectors.py."""
    if x.ndim == 2:
        return x[places]
    out = np.empty(places.size, x.dtype)
    threads = None if places.size >= SHARED else 1
    run_items(_gather, chunks(places.size), x, places, out, threads=threads)
    return out


@by_items
def _gather(t, x, places, out):
    for k in range(t * CHUNK, min((t + 1) * CHUNK, out.size)):
        out[k] = x[places[k]]


def copy(x, out):
    """out = x, for arrays that share no memory, by all threads, which share the first touch of that of `out`, too."""
    if x.nbytes < 8 * SHARED or x.dtype != out.dtype or x.shape != out.shape or not (_in_words(x) and _in_words(out)):
        np.copyto(out, x)
        return
    words = [v.reshape(-1).view(np.uint8)[: v.nbytes // 8 * 8].view(np.uint64) for v in (x, out)]
    run_items(_copy, chunks(words[0].size), *words)
    if x.nbytes % 8:
        out.reshape(-1)[-1] = x.reshape(-1)[-1]


def _in_words(v):
    """Whether v can be seen as words of eight bytes, and perhaps half of one: one form of `_copy` serves all dtypes."""
    return v.flags.c_contiguous and v.flags.writeable and v.itemsize >= 4 and v.ctypes.data % 8 == 0


@by_items
def _copy(t, x, out):
    for i in range(t * CHUNK, min((t + 1) * CHUNK, out.size)):
        out[i] = x[i]


def difference(b, y, r):
    """r = b - y; r may be one of them."""
    if b.ndim == 1 and b.size >= SHARED and b.dtype == y.dtype == r.dtype:
        run_items(_difference, chunks(b.size), b, y, r)
    else:
        np.subtract(b, y, out=r)


@by_items
def _difference(t, b, y, r):
    for i in range(t * CHUNK, min((t + 1) * CHUNK, r.size)):
        r[i] = b[i] - y[i]


def moved_on(d, v, x, r):
    """x += d and r -= v; see kernels/reference/vectors.py."""
    x += d
    r -= v


def turned(a, d, b, z):
    """d = a d + b z; see kernels/reference/vectors.py."""
    d *= a
    d += z * b


def added(x, y):
    return x + y


def scaled(factor, x, out):
    np.multiply(factor, x, out=out)


def rounded(x, out, lost):
    """out = x in single precision; see kernels/reference/vectors.py."""
    beyond = np.zeros(chunks(x.size), np.bool_)
    run_items(_rounded, beyond.size, x, out, beyond, threads=None if x.size >= SHARED else 1)
    lost[0] = beyond.any()


@by_items
def _rounded(t, x, out, beyond):
    unfit = 0
    for i in range(t * CHUNK, min((t + 1) * CHUNK, x.size)):
        v = x[i]
        out[i] = v
        unfit += (beyond_single(v.real) & np.isfinite(v.real)) | (beyond_single(v.imag) & np.isfinite(v.imag))
    beyond[t] = unfit > 0


def first_not_positive(x, places):
    """The first i for which x[places[i]] is not above 0; see kernels/reference/vectors.py."""
    first = np.array([places.size], np.int64)
    threads = None if places.size >= SHARED else 1
    run_items(_first_not_positive, chunks(places.size), x, places, first, threads=threads)
    return int(first[0]) if first[0] < places.size else -1


@by_items
def _first_not_positive(t, x, places, first):
    for i in range(t * CHUNK, min((t + 1) * CHUNK, places.size)):
        if not x[places[i]].real > 0:
            fetch_min(first, 0, i)
            break


def first_of_other_sign(x, places, y):
    """The first i for which one of x[places[i]] and y[i] is above 0 and the other is not, -1 for none."""
    first = np.array([y.size], np.int64)
    threads = None if y.size >= SHARED else 1
    run_items(_first_of_other_sign, chunks(y.size), x, places, y, first, threads=threads)
    return int(first[0]) if first[0] < y.size else -1


@by_items
def _first_of_other_sign(t, x, places, y, first):
    for i in range(t * CHUNK, min((t + 1) * CHUNK, y.size)):
        if (x[places[i]] > 0) != (y[i] > 0):
            fetch_min(first, 0, i)
            break


def first_not_finite(x):
    """The first place of x (n,) that holds NaN or Inf, -1 for none."""
    finite = np.isfinite(x)
    return -1 if np.count_nonzero(finite) == finite.size else int(finite.argmin())


def _scaled(scale, x):
    return (scale if x.ndim == 1 else scale[:, None]) * x


def gather_scaled(rows, scale, r):
    """scale_i r[rows_i]; see kernels/reference/vectors.py."""
    if not _lie_by_rows(scale, r):
        return _scaled(scale, r[rows])
    out = np.empty((rows.size, r.shape[1]), r.dtype)
    _by_rows(_gather_scaled, rows, scale, _reals(r), _reals(out))
    return out


def scatter_scaled(places, scale, s, t, w):
    """scale_i (s - t, w)_i at places_i; see kernels/reference/vectors.py. t and w may be None."""
    out = np.empty((places.size, *s.shape[1:]), s.dtype)
    m = s.shape[0]
    for rows, factors, v, minus in (places[:m], scale[:m], s, t), (places[m:], scale[m:], w, None):
        if v is None or not rows.size:
            continue
        if _lie_by_rows(scale, *(x for x in (v, minus) if x is not None)):
            reals = (None if x is None else _reals(x) for x in (v, minus, out))
            _by_rows(_scatter_scaled, rows, factors, *reals)
        else:
            out[rows] = _scaled(factors, v if minus is None else v - minus)
    return out


def _lie_by_rows(scale, *vectors) -> bool:
    """Whether these are several columns, row-major, whose real numbers have the dtype of `scale`."""
    return all(x.ndim == 2 and x.flags.c_contiguous and x.real.dtype == scale.dtype for x in vectors)


def _reals(x):
    """(n, k), or of complex numbers (n, 2 k): the real and imaginary parts of a row-major x (n, k)."""
    return x.view(x.real.dtype)


def _by_rows(kernel, rows, scale, *operands) -> None:
    """Run a kernel whose items are CHUNK numbers in rows of several columns."""
    columns = operands[-1].shape[1]
    step = max(CHUNK // max(columns, 1), 1)
    threads = None if rows.size * columns >= SHARED else 1
    run_items(kernel, -(-rows.size // step), step, rows, scale, *operands, threads=threads)


@by_items
def _gather_scaled(t, step, rows, scale, r, out):
    for i in range(t * step, min(rows.size, (t + 1) * step)):
        row, factor = rows[i], scale[i]
        for c in range(r.shape[1]):
            out[i, c] = factor * r[row, c]


@by_items
def _scatter_scaled(t, step, rows, scale, s, minus, out):
    for i in range(t * step, min(rows.size, (t + 1) * step)):
        row, factor = rows[i], scale[i]
        for c in range(s.shape[1]):
            out[row, c] = factor * (s[i, c] if minus is None else s[i, c] - minus[i, c])


def first_bad(bad) -> int:
    """The row that a kernel reported, or -1."""
    return bad
