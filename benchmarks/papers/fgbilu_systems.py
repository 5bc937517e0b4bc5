"""The systems of the block ILU paper: Jacobians of the channel flow, and block diagonals of those for more unknowns."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.papers.flow.channel import channel_system
from finelu.device import namespace, require_gpu, to_host
from finelu.matrix.stencil import StencilMatrix

ENTRIES = 1.8e7  # n^2 I J K in Figure 10
CFL = 10.0  # of the pseudo step whose matrix it is: corrections converge about as fast as the paper's


def flow(shape: Sequence[int], n: int, device: str) -> tuple[StencilMatrix, Any]:
    """The Jacobian of the channel flow on I x J x K cells with 4 or 6 unknowns each, and its right-hand side (N,)."""
    return channel_system(tuple(shape), n, cfl=CFL, xp=require_gpu() if device == "cuda" else np)


def parts_of(n: int) -> list[int]:
    """4s and 6s that add up to n, with as few 4s as possible; n is even and at least 4."""
    sixes = next(s for s in range(n // 6, -1, -1) if (n - 6 * s) % 4 == 0)
    return [4] * ((n - 6 * sixes) // 4) + [6] * sixes


def block_diagonal(systems: Sequence[tuple[StencilMatrix, Any]]) -> tuple[StencilMatrix, Any]:
    """The system whose blocks hold those of `systems`, all on one grid, along their diagonal: the paper's 4.3."""
    xp = namespace(systems[0][1])
    shape = systems[0][0].shape_cells
    n = sum(A.n_block for A, _ in systems)
    blocks = xp.zeros((7, *shape, n, n))
    b = xp.empty((*shape, n))
    at = 0
    for A, right in systems:
        part = slice(at, at + A.n_block)
        blocks[..., part, part] = A.blocks
        b[..., part] = right.reshape(*shape, A.n_block)
        at += A.n_block
    return StencilMatrix(blocks), b.reshape(-1)


def system(shape: Sequence[int], n: int, device: str) -> tuple[StencilMatrix, Any]:
    """The matrix with n unknowns a cell and its right-hand side: the flow's own, or made from those of 4 and 6."""
    if n in (4, 6):
        return flow(shape, n, device)
    given = {m: flow(shape, m, device) for m in set(parts_of(n))}
    return block_diagonal([given[m] for m in parts_of(n)])


def bsr(A: StencilMatrix) -> SimpleNamespace:
    """indptr, indices, diag (int32) and data (blocks, n, n) of A as BSR, where A lives."""
    xp = namespace(A.blocks)
    rows, columns, places = A._block_pattern()
    data = A.blocks.reshape(-1, A.n_block, A.n_block)[places]
    return SimpleNamespace(
        indptr=xp.searchsorted(rows, xp.arange(A.cells + 1)).astype(np.int32),
        indices=columns.astype(np.int32),
        diag=xp.flatnonzero(rows == columns).astype(np.int32),
        data=data,
    )


def name_of(shape: Sequence[int], n: int, part: str) -> str:
    """What a matrix is called in the record: Figure 10's by n first, so that no other has its name."""
    grid = "x".join(map(str, shape))
    return f"n={n}, {grid}" if part == "unknowns" else grid


def edge_for(n: int, entries: float) -> int:
    """Cells along an edge of the cube with n^2 I J K nearest to `entries`."""
    return max(2, round((entries / n**2) ** (1 / 3)))


def facts(shape: Sequence[int], n: int, part: str) -> dict[str, Any]:
    return {"part": part, "shape": list(shape), "n": n, "cells": math.prod(shape)}


def on_host(A: StencilMatrix, b: Any) -> tuple[StencilMatrix, np.ndarray]:
    """A and b on the host; themselves if they are there."""
    return (A if isinstance(A.blocks, np.ndarray) else StencilMatrix(to_host(A.blocks))), to_host(b)


def residual_by_arrays(A: StencilMatrix, x: Any, b: Any) -> Any:
    """b - A x, block by block along the seven directions, by the array module's own products."""
    from finelu.matrix.stencil import OFFSETS

    xp = namespace(b)
    shape = (*A.shape_cells, A.n_block)
    at, r = x.reshape(shape), b.reshape(shape).copy()
    for place, offset in enumerate(OFFSETS):  # blocks that point outside are zero
        r -= xp.matmul(A.blocks[place], xp.roll(at, [-o for o in offset], axis=(0, 1, 2))[..., None])[..., 0]
    return r.reshape(-1)
