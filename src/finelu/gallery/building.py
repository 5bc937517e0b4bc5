"""What the problems are built from: stencils on grids, the check of sizes, and sorted matrices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu.device import Array, Sparse
from finelu.errors import ParameterError


def positive(**sizes: Any) -> Any:
    """The last of these sizes, all positive whole numbers; otherwise a ParameterError that names the first bad one."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 1:
            raise ParameterError(f"{name} = {size!r} is not a positive whole number.")
    return size


def neighbours(dimensions: int, value: float) -> dict[tuple[int, ...], Any]:
    """The two offsets along each of the first `dimensions` axes, each with this value."""
    units = ((1, 0, 0), (0, 1, 0), (0, 0, 1))[:dimensions]
    return {tuple(sign * u for u in unit): value for unit in units for sign in (-1, 1)}


def stencil(nx: int, ny: int, nz: int, values: dict[tuple[int, ...], Any]) -> sp.csr_matrix:
    """The matrix of a stencil on a grid, with nothing outside.

    values : offset (dx, dy, dz), each -1, 0 or 1 -> a number or an array that broadcasts to (nz, ny, nx).
    """
    positive(nx=nx, ny=ny, nz=nz)
    offsets = sorted(values, key=lambda d: d[::-1])  # columns of a row then ascend
    data: Array = np.empty((nz, ny, nx, len(offsets)), np.result_type(float, *values.values()))
    present: Array = np.ones(data.shape, bool)
    for slot, offset in enumerate(offsets):
        data[..., slot] = values[offset]
        for axis, d in enumerate(offset[::-1]):
            if d:
                outside: list[Any] = [slice(None)] * 3
                outside[axis] = slice(0, 1) if d < 0 else slice(-1, None)
                present[(*outside, slot)] = False
    n = nx * ny * nz
    columns = np.arange(n)[:, None] + np.array([dx + nx * (dy + ny * dz) for dx, dy, dz in offsets])
    present = present.reshape(n, -1)
    indptr = np.concatenate([[0], np.cumsum(present.sum(axis=1))])
    return sorted_csr(sp.csr_matrix((data.reshape(n, -1)[present], columns[present], indptr), shape=(n, n)))


def convection(
    shape: tuple[int, int, int], diffusion: Iterable[Any], cell_peclet: Iterable[Any], reaction: float, scheme: str
) -> sp.csr_matrix:
    """Seven points: diffusion along x, y, z, convection with these cell Peclet numbers, and a reaction term."""
    values: dict[tuple[int, ...], Any] = {(0, 0, 0): reaction}
    for axis, (d, p) in enumerate(zip(diffusion, cell_peclet, strict=True)):
        if scheme == "upwind":
            lower, upper = d * (1 + np.maximum(p, 0)), d * (1 + np.maximum(-p, 0))
        elif scheme == "central":
            lower, upper = d * (1 + p / 2), d * (1 - p / 2)
        else:
            raise ParameterError(f"scheme = {scheme!r} is neither 'upwind' nor 'central'.")
        step = tuple(int(axis == a) for a in range(3))
        values[tuple(-s for s in step)], values[step] = -lower, -upper
        values[0, 0, 0] = values[0, 0, 0] + lower + upper
    return stencil(*shape, values)


def sorted_csr(A: Sparse) -> sp.csr_matrix:
    """A as a sorted csr_matrix without duplicates."""
    result = sp.csr_matrix(A)
    result.sum_duplicates()
    return result
