"""Division that rounds as NumPy's does and never raises, for complex numbers too; fused multiply-adds."""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic, overload
from numba.np.numpy_support import as_dtype


def divide(a, b):
    """a / b, both of one dtype; complex numbers by Smith's method (1962), as NumPy's scalars."""
    return a / b


@overload(divide, inline="never", jit_options={"error_model": "numpy"})
def _divide(a, b):
    if not isinstance(b, types.Complex):
        return lambda a, b: a / b

    one = as_dtype(b.underlying_float).type(1)

    def smith(a, b):
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


@intrinsic
def fma(typing, a, b, c):
    """a b + c of float64, rounded once; on a CPU that has no such instruction, by the C library."""

    def generate(context, builder, signature, args):
        return builder.fma(*args)

    return types.float64(types.float64, types.float64, types.float64), generate
