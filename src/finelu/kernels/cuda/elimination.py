"""Launchers of ilu0.cu and ic0.cu: the four variants of the paper and the choice among them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cupy
import numpy as np

from finelu.errors import ParameterError
from finelu.kernels.cuda.launch import blocks, device_limits, kernel
from finelu.kernels.cuda.schedule import level_order, levels_on_device, set_pending
from finelu.kernels.cuda.triangular import new_bad, reset_bad
from finelu.kernels.triangle import Triangle

BLOCK = 128
ILU0_VARIANTS = ("shared", "vect", "adapt", "levs")
IC0_VARIANTS = ("adapt", "levs")


@dataclass(eq=False)
class EliminationPlan:
    """What ILU(0) or IC(0) keeps of a pattern: the order of dispatch, the shape of the kernel, all workspace.

    variant : the one chosen.  order : rows in level order, or None for natural order.  depth : levels, or None if they
    were not needed.  lanes, per_lane : threads a row and entries a thread in registers.  inverse (n,) : 1 / pivot, filled
    by the factorization.  bad : device place of the first bad row.
    """

    variant: str
    A: Any
    order: Any
    depth: int | None
    lanes: int
    per_lane: int
    update: str
    inverse: Any
    counter: Any
    words: Any
    bad: Any
    work: Any


def _lower(A) -> Triangle:
    return Triangle(A.n, A.indptr[:-1], A.diag, A.indices, False, None, None, False, max(1, (A.nnz - A.n) // 2))


def _row_shape(longest: int, mean: float, resident: int) -> tuple[int, int]:
    """(threads a row, entries a thread): a warp a row while that many rows can be resident, fewer threads beyond."""
    if longest <= 32:
        lanes = 32
        while lanes > 8 and resident * lanes > 300_000 and lanes // 2 >= longest:
            lanes //= 2
        return lanes, 1
    return 32, 2 if longest <= 64 or mean > 24 else 4


def _analysis(A, variant: str, variants: tuple[str, ...], dtype) -> EliminationPlan:
    if variant not in (*variants, "auto"):
        raise ParameterError(
            f"variant={variant!r} is not offered on the GPU for this recipe; one of {', '.join(variants)}, auto is needed."
        )
    longest = int(cupy.diff(A.indptr).max())
    mean = A.nnz / A.n
    order, depth = None, None
    if variant == "auto":
        # Level order pays where rows would otherwise wait in line while rows that could run are not resident yet; the
        # level sets cost about as much as they save on small systems (measured, benchmarks/results).
        limits = device_limits()
        variant = "levs" if A.n > limits["processors"] * limits["threads"] // 64 else "adapt"
    if variant == "levs":
        level, deepest = levels_on_device(_lower(A))
        order64, _ = level_order(_lower(A), level, per_lane=1 << 20)
        order = order64.astype(A.indices.dtype)
        depth = int(deepest[0]) + 1
    lanes, per_lane = (32, 1) if variant in ("shared", "vect") else _row_shape(longest, mean, A.n if depth is None else A.n // depth * 16)
    update = {"shared": "INTERSECT", "vect": "VECTOR"}.get(variant, "SEARCH")
    itemsize = np.dtype(dtype).itemsize
    words = cupy.empty(A.n * itemsize // 4 + 1, np.uint32)  # inverse and the ticket counter, made pending in one go
    work = cupy.empty(A.nnz if longest > lanes * per_lane or update != "SEARCH" else 0, dtype)
    inverse = words[:-1].view(dtype)
    return EliminationPlan(
        variant, A, order, depth, lanes, per_lane, update, inverse, words[-1:], words, new_bad(), work
    )


def ilu0_analysis(A, variant: str = "auto") -> EliminationPlan:
    """What ILU(0) needs to know of the pattern of A (a CSR with a full diagonal); see EliminationPlan."""
    return _analysis(A, variant, ILU0_VARIANTS, A.dtype)


def ic0_analysis(L, variant: str = "auto") -> EliminationPlan:
    """What IC(0) needs to know of the pattern of L, the lower triangle of A by rows, diagonal last."""
    return _analysis(L, variant, IC0_VARIANTS, L.dtype)


def _factor(stem: str, plan: EliminationPlan, a, out):
    A = plan.A
    index = A.indices.dtype
    set_pending(out)
    set_pending(plan.words)
    reset_bad(plan.bad)
    template = (plan.lanes, plan.per_lane) + ((plan.update,) if stem == "ilu0" else ())
    launch = kernel(stem, stem, out.dtype.name, index.name, *template)
    launch(
        (blocks(A.n * plan.lanes, BLOCK),),
        (BLOCK,),
        (
            index.type(A.n),
            np.uint64(0) if plan.order is None else plan.order,
            A.indptr,
            A.indices,
            A.diag,
            a,
            plan.work,
            out,
            plan.inverse,
            plan.bad,
            plan.counter,
        ),
        shared_mem=0 if plan.update == "SEARCH" else BLOCK * index.itemsize,
    )
    return plan.bad


def ilu0(plan: EliminationPlan, a, lu):
    """ILU(0) of the values a (nnz,) into lu (nnz,), L below and U on and above the diagonal; returns the place of the
    first bad row, see first_bad. Allocates nothing, waits for nothing."""
    return _factor("ilu0", plan, a, lu)


def ic0(plan: EliminationPlan, a, factor):
    """IC(0) of the lower triangle's values a (nnz,) into factor (nnz,); returns the place of the first bad row."""
    return _factor("ic0", plan, a, factor)
