"""Division that rounds as NumPy's does and never raises, for complex numbers too; the range of single precision; fused
multiply-adds."""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic, overload
from numba.np.numpy_support import as_dtype

from finelu.kernels.cpu.runtime.jit import compiled

SMALLEST, LARGEST = 1.2e-38, 3.4e38  # beyond which single precision loses digits


def divide(a, b):
    """a / b, computed in the dtype of a, which b may be narrower than; complex numbers by Smith's method (1962), as
    NumPy's scalars."""
    return a / b


@overload(divide, inline="never", jit_options={"error_model": "numpy"})
def _divide(a, b):
    if not isinstance(b, types.Complex):
        return lambda a, b: a / b

    one = as_dtype(a.underlying_float).type(1)
    wide = as_dtype(a).type

    def smith(a, b):
        b = wide(b)
        if abs(b.real) >= abs(b.imag):
            if b.real == 0 and b.imag == 0:
                return complex(a.real / abs(b.real), a.imag / abs(b.real))
            ratio = b.imag / b.real
            scale = one / (b.real + b.imag * ratio)
            return complex((a.real + a.imag * ratio) * scale, (a.imag - a.real * ratio) * scale)
        ratio = b.real / b.imag
        scale = one / (b.imag + b.real * ratio)
        return complex((a.real * ratio + a.imag) * scale, (a.imag * ratio - a.real) * scale)

    return smith


@compiled
def beyond_single(v):
    """Whether the real number v is beyond the range in which single precision has all its digits; not so of 0."""
    return (v != 0) & ((abs(v) < SMALLEST) | ~(abs(v) <= LARGEST))


@intrinsic
def fma(typing, a, b, c):
    """a b + c of float64, rounded once; on a CPU that has no such instruction, by the C library."""

    def generate(context, builder, signature, args):
        return builder.fma(*args)

    return types.float64(types.float64, types.float64, types.float64), generate
