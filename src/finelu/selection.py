"""The k-th smallest of many numbers, and the threshold below which lie the k numbers of smallest magnitude."""

from __future__ import annotations

from typing import Any

import numpy as np

from finelu.device import as_any_other, namespace, on_gpu, same_gpu
from finelu.errors import ParameterError
from finelu.kernels import kernels_for
from finelu.validation import count

DTYPES = ("float32", "float64", "complex64", "complex128")


def kth_smallest(values: Any, k: int, exact: bool = True, *, method: str = "auto") -> Any:
    """The k-th smallest of `values`, compared with their signs (-2 is less than 1); k = 1 is the smallest.

    values : (n,) float32 or float64, on the host or the GPU.  k : 1 to n.
    exact : if not, a number close to it (the end of a bucket on the GPU, the median of the results in 64 parts on the
        CPU), see `threshold`.
    method : "sampleselect" or, if exact, "quickselect"; "auto" is sampleselect.
    Returns a NumPy scalar of the dtype of `values`; waits for the GPU.
    Raises MatrixError (a ValueError) naming the first NaN, and ParameterError (one too) for a k out of range.
    Cost: O(n), about one read of `values`; memory as `threshold`.
    """
    values = _numbers(values)
    if values.dtype.kind == "c":
        raise ParameterError("kth_smallest: complex numbers have no order; threshold compares their magnitudes.")
    k = count("k", k, 1, values.size)
    plan = kernels_for(values).selection.Selection(
        values.size, values.dtype, order="values", exact=exact, method=method
    )
    plan.select(values, k - 1)
    return plan.result()


def threshold(values: Any, k: int, exact: bool = True, *, method: str = "auto") -> Any:
    """t such that k of `values` are less than t in magnitude: dropping all values less than t drops k of them.

    That is the (k + 1)-th smallest magnitude; Inf for k = n. If several have magnitude t, fewer than k are less.

    values : (n,) float32, float64, complex64 or complex128, on the host or the GPU.  k : 0 to n.
    exact : False: the number dropped may differ from k. The GPU ends after one level of sampleselect with the splitter
        whose rank is nearest (ParILUT on GPUs, 2019), off by n / 800 on average, seldom by n / 200. The CPU takes, from
        100,000 values on, the median of the thresholds of 64 parts (ParILUT, 2018).
    method : "sampleselect" or, if exact, "quickselect"; "auto" is sampleselect.
    Returns a NumPy scalar, real, of the precision of `values`; waits for the GPU.
    Raises MatrixError (a ValueError) naming the first NaN, and ParameterError (one too) for a k out of range.
    Cost: O(n). Memory: up to 1.5 bytes a value on the GPU (none if not exact, two values' worth with quickselect); on
    the CPU a copy.
    """
    values = _numbers(values)
    k = count("k", k, 0, values.size)
    plan = kernels_for(values).selection.Selection(values.size, values.dtype, exact=exact, method=method)
    plan.select(values, k)
    return plan.result()


def _numbers(values: Any) -> Any:
    """`values` as a contiguous one-dimensional array of one of DTYPES, on their device."""
    if not on_gpu(values):
        values = as_any_other(np.asarray(values))
    if values.ndim != 1:
        raise ParameterError(f"values of shape {values.shape}: one dimension is needed; ravel them.")
    if values.dtype not in DTYPES:
        raise ParameterError(f"values of {values.dtype}: {', '.join(DTYPES)} are searched; convert them with astype.")
    same_gpu(values, values)
    return namespace(values).ascontiguousarray(values)
