"""Dense vectors: checks, finiteness, norms, and subnormal numbers on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu.device import as_any_other, namespace, on_gpu, to_host
from finelu.errors import MatrixError, counted
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR

DTYPES = ("float32", "float64", "complex64", "complex128")
NATIVE = frozenset(map(np.dtype, DTYPES))


def require_square(shape: Any) -> None:
    """A MatrixError unless `shape` is (n, n), n > 0."""
    if len(shape) != 2:
        raise MatrixError(f"A has shape {tuple(shape)}; a square matrix is needed.")
    if shape[0] != shape[1]:
        raise MatrixError(
            f"A has shape {tuple(shape)}; a square matrix is needed. finelu.lstsq(A, b), lsmr(A, b) and lsqr(A, b) "
            "solve least squares problems, in which A may have any shape."
        )
    if shape[0] == 0:
        raise MatrixError("A is empty (0 x 0); there is nothing to solve.")


def dense_numbers(b: Any, name: str) -> Any:
    """b as a dense array of numbers, on its device; a MatrixError for anything else."""
    if type(b) is np.ndarray and b.dtype in NATIVE and b.flags.writeable:  # the usual case
        return b
    if sp.issparse(b) or type(b).__module__.startswith("cupyx"):
        raise MatrixError(f"{name} is a sparse {type(b).__name__}; pass a dense array (its toarray()).")
    given = type(b).__name__
    require_no_mask(b, name)
    if not on_gpu(b):
        try:
            b = np.asarray(b)
        except Exception as error:
            raise MatrixError(f"{name} is a {given}, which cannot be read as an array ({error}).") from error
    if b.dtype.kind not in "biufc":
        raise MatrixError(f"{name} has dtype {b.dtype}, of a {given}; numbers are needed.")
    b = as_any_other(native(b))
    extended = b.dtype.kind in "fc" and b.dtype.itemsize > (16 if b.dtype.kind == "c" else 8)
    return b.astype(np.complex128 if b.dtype.kind == "c" else np.float64) if extended else b


def require_no_mask(v: Any, name: str) -> None:
    """A MatrixError for a masked array with elements that are masked: what lies under the mask is no number."""
    if isinstance(v, np.ma.MaskedArray) and np.ma.is_masked(v):
        places = np.argwhere(np.ma.getmaskarray(v))
        raise MatrixError(
            f"{name} is a masked array with {counted(len(places), 'masked element')}, the first at "
            f"{tuple(places[0].tolist())}; filled(0) of it has a number there, or solve without these unknowns."
        )


def native(v: Any) -> Any:
    """v, an array or a sparse matrix, with its values in this machine's order of bytes, the only one that SciPy and the
    kernels take; v itself, if they are."""
    return v if v.dtype.isnative else v.astype(v.dtype.newbyteorder("="))


def all_finite(values: Any) -> bool:
    """Whether `values` holds neither NaN nor Inf, by one sum that needs no memory.

    A sum of finite numbers may overflow, too; only then each number is tested.
    """
    xp = namespace(values)
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(xp.isfinite(values.sum())) or bool(xp.isfinite(values).all())


def norm(v: Any) -> float:
    """||v||_2, by finelu's own kernel: BLAS may wake all its threads for it."""
    xp = namespace(v)
    v = xp.ascontiguousarray(v)
    out = xp.zeros(1, v.real.dtype)
    kernels_for(v).vectors.norm(v, out)
    return float(out[0])


# Subnormal numbers of single precision on a GPU. CuPy compiles with -ftz=true: all arithmetic, also conversions, treats
# them as 0. The functions below test bits, or convert on the host, and so give the same result on both devices.

SMALL = -126 + 24  # exponent of 2 below which a product with a number of 24 digits may lose some to underflow


def flushes(v: Any) -> bool:
    """Whether arithmetic with v treats subnormal numbers as 0."""
    return on_gpu(v) and bool(v.real.dtype == np.float32)


def loses(v: Any) -> bool:
    """Whether arithmetic with v would lose some of its entries, since they are subnormal."""
    if not flushes(v):
        return False
    bits = _magnitudes(v)
    return bool(((bits > 0) & (bits < np.uint32(0x800000))).any())


def underflows(entries: Any) -> bool:
    """Whether products with a matrix of these entries, or with its inverse, may flush numbers that matter to 0: an
    entry, or its reciprocal, is next to the smallest number that the device computes with."""
    if not flushes(entries):
        return False
    least, most = exponents(entries)
    return least < SMALL or most >= -SMALL


def exponents(v: Any) -> tuple[int, int]:
    """e with 2^e <= |part| < 2^(e + 1) for the smallest nonzero part of v, and for the largest; (0, 0) if all are 0. v
    is of single precision; -127 means any subnormal number."""
    bits = _magnitudes(v)
    most = int(bits.max()) if bits.size else 0
    least = int(namespace(v).where(bits > 0, bits, np.uint32(most)).min()) if most else 0
    return ((least >> 23) - 127, (most >> 23) - 127) if most else (0, 0)


def as_dtype(v: Any, dtype: Any) -> Any:
    """v, an array or a CSR, in a dtype that represents all its numbers; v itself if that is its own dtype."""
    if v.dtype == dtype:
        return v
    if isinstance(v, CSR):
        return v.with_values(as_dtype(v.data, dtype))
    if np.dtype(dtype).kind in "fc" and loses(v):
        return namespace(v).asarray(v.get().astype(dtype))
    return v.astype(dtype)


def in_single(v: Any) -> Any:
    """v, of double precision, rounded to single, by the host."""
    with np.errstate(over="ignore", under="ignore"):
        return namespace(v).asarray(to_host(v).astype(np.complex64 if v.dtype.kind == "c" else np.float32))


def _magnitudes(v: Any) -> Any:
    """The parts of v without their signs as integers, which are in the same order."""
    return namespace(v).ascontiguousarray(v).reshape(-1).view(np.uint32) & np.uint32(0x7FFFFFFF)


def times_power(v: Any, power: int) -> Any:
    """2^power v, formed by factors that are in range; exact unless the result is subnormal or out of range."""
    if flushes(v):
        return in_single(as_dtype(v, np.result_type(v.dtype, np.float64)) * 2.0**power)
    half = power // 2
    return v * v.real.dtype.type(2.0**half) * v.real.dtype.type(2.0 ** (power - half))


def ldexp(v: Any, powers: Any) -> Any:
    """2^powers v on the device of v, where arithmetic may treat subnormal numbers as 0; elsewhere rounded once, and
    exact unless subnormal or out of range.  powers : integers on that device, of a shape that broadcasts with v's."""
    xp = namespace(v)
    if v.dtype.kind != "c":
        return xp.ldexp(v, powers)
    found = xp.empty(np.broadcast_shapes(v.shape, np.shape(powers)), v.dtype)
    found.real, found.imag = xp.ldexp(v.real, powers), xp.ldexp(v.imag, powers)
    return found


def ldexp_by_host(v: Any, powers: Any) -> Any:
    """The same by the host, also for subnormal numbers on a GPU.  powers : on the host."""
    return namespace(v).asarray(ldexp(to_host(v), powers))


def power_of_two(dtype: Any, *exponents: int) -> int:
    """The largest of the exponents of 2 of some numbers, if their squares may over- or underflow; else 0, where no
    scaling is needed.

    Norms are between the squares of numbers and their fourth roots, so that a sixth of the range is safe.
    """
    most = max(exponents, default=0)
    return most if 6 * abs(most) > np.finfo(dtype).maxexp else 0
