"""Claim: corrections with block ILU on a grid of several blocks keep pace with the memory when processes are added.

A process a block of a grid of P blocks; a correction is x <- x + M^-1 (b - A x), M the block ILU(0) of each block. This
process starts the others: `mpiexec -n P python -m benchmarks.claims.multiblock_scaling --worker ...`, with the mpiexec
in the folder of this Python or in the PATH. On the CPU each has one thread, on GPUs one of its own.

    weak      --edge^3 cells a process. The efficiency is the time of one process over that of P; next to it that of a
              triad a = b + s c of as many processes, and the parts of a correction, each alone, of the slowest process
    strong    --whole^3 cells in all, cut into P blocks; corrections to 1e-8, too

    python -m benchmarks.claims.multiblock_scaling --ranks 1,2,4,8,16
    python -m benchmarks.claims.multiblock_scaling --ranks 1,2 --device cuda --edge 96 --whole 112
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import finelu
from benchmarks.harness.launch import answer, own_gpu, started
from benchmarks.harness.options import add_place, command
from benchmarks.harness.record import ENDING, machine, page_of, read, replace_text, write
from benchmarks.harness.table import table
from finelu.device import synchronize
from finelu.errors import ParameterError
from finelu.kernels import kernels_for
from finelu.krylov.spread import Vectors

PARTS = ("weak", "strong")
FEW, MANY = 5, {"cpu": 25, "cuda": 105}  # corrections of two runs, whose difference counts
REPEATS = 7  # of which the fastest counts
TRIAD = 2**23  # numbers of each array
WAYS = {"Room": "MPI", "Queued": "NCCL", "Direct": "MPI, from GPU to GPU", "Staged": "MPI, through locked memory"}


# The processes --------------------------------------------------------------------------------------------------------


def cuts(ranks: int) -> tuple[int, int, int]:
    """Blocks along i, j and k, as near to a cube as `ranks` allows."""
    factors = [c for c in product(range(1, ranks + 1), repeat=3) if math.prod(c) == ranks]
    return min(factors, key=lambda c: (max(c) - min(c), c[::-1]))


def system(comm: Any, shape: tuple[int, int, int], parts: tuple[int, int, int], n: int, xp: Any) -> Any:
    """A on a grid of `parts` blocks, the own one of `shape` cells: dominant by a fifth, all else random."""
    at = [tuple(int(v) for v in np.unravel_index(rank, parts)) for rank in range(comm.size)]
    interfaces = []
    for axis, name in enumerate("ijk"):
        for rank, place in enumerate(at):
            if place[axis] + 1 < parts[axis]:
                beyond = tuple(p + (a == axis) for a, p in enumerate(place))
                interfaces.append(finelu.Interface(rank, f"{name}+", at.index(beyond), f"{name}-"))
    blocks = xp.random.RandomState(comm.rank).uniform(-1, 1, (7, *shape, n, n))
    blocks *= 1 / (6 * n)  # rows of the six neighbours sum to about a half in magnitude
    blocks[3] += 0.6 * xp.eye(n)
    grid = finelu.MultiblockGrid({comm.rank: shape}, interfaces, comm)
    return finelu.MultiblockMatrix(grid, {comm.rank: blocks})


def fastest(comm: Any, work: Callable[[], Any], like: Any, times: int = 1) -> float:
    """ms of one of `times` calls: the fastest of REPEATS rounds, each of the slowest process."""
    best = math.inf
    for _ in range(REPEATS):
        synchronize(like)
        comm.Barrier()
        begin = time.perf_counter()
        for _ in range(times):
            work()
        synchronize(like)
        best = min(best, max(comm.allgather(time.perf_counter() - begin)))
    return 1e3 * best / times


def triad(comm: Any, xp: Any) -> float:
    """GB/s of a = b + s c of all processes at once, beyond the caches."""
    size = TRIAD if xp is np else 16 * TRIAD
    a, b, c = xp.zeros(size), xp.ones(size), xp.ones(size)
    if xp is np:
        from numba import njit

        @njit
        def work(a: Any, b: Any, c: Any) -> None:
            for i in range(a.size):
                a[i] = b[i] + 2.0 * c[i]

        run = work
    else:
        run = xp.ElementwiseKernel("float64 b, float64 c", "float64 a", "a = b + 2.0 * c", "triad")
    call = (lambda: run(a, b, c)) if xp is np else (lambda: run(b, c, a))
    return 24 * size * comm.size / fastest(comm, call, a) / 1e6


def worker(task: dict[str, Any]) -> dict[str, Any]:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    xp = own_gpu(comm) if task["device"] == "cuda" else np
    os.environ["FINELU_NCCL"] = str(int(not task["no_nccl"]))
    parts = cuts(comm.size)
    weak, n = task["part"] == "weak", task["n"]
    edges = [task["edge"]] * 3 if weak else [-(-task["whole"] // p) for p in parts]
    A = system(comm, (edges[0], edges[1], edges[2]), parts, n, xp)
    b = xp.random.RandomState(7).uniform(-1, 1, A.shape[0])
    F = finelu.BlockILU0().factor(A)

    def run(steps: int) -> float:
        """ms of a solve of this many corrections."""
        return fastest(comm, lambda: finelu.richardson(A, b, M=F, rtol=0.0, maxiter=steps), b)

    name, vectors, norm = comm.rank, Vectors(kernels_for(b).vectors, comm, False), np.empty(1)
    S, own, y = A.stencils[name], F.parts[name], xp.empty_like(b)
    across = A._across

    def exchange() -> None:
        if across.ghosts.needed:
            across.ghosts.begin(b.reshape(-1, n))
            across.ghosts.finish()

    many = MANY[task["device"]]
    correction = (run(many) - run(FEW)) / (many - FEW)
    found = {
        "cells": A.cells * comm.size,
        "parts": parts,
        "correction_ms": correction,
        "factor_ms": fastest(comm, lambda: F.update(A), b),
        "residual_ms": fastest(comm, lambda: A.residual(b, b), b, 3),
        "block_residual_ms": fastest(comm, lambda: S._product(b, b, y), b, 3),
        "solve_ms": fastest(comm, lambda: own.apply(b, "N", y), b, 3),
        "exchange_ms": fastest(comm, exchange, b, 3),
        "norm_ms": fastest(comm, lambda: vectors.norm(b, norm), b, 3),
        "triad_gbs": triad(comm, xp),
        "way": type(across.ghosts._room).__name__ if across.ghosts.needed else None,
        # A once for the residual, E and F, and d twice, for the solve, and some ten vectors
        "gbs": comm.size * A.cells * 8 * (7 * n * n + 8 * n * n + 10 * n) / correction / 1e6,
    }
    if not weak:
        solution = finelu.richardson(A, b, M=F, rtol=1e-8, maxiter=200)
        found |= {"corrections": solution.iterations, "status": solution.status.name}
    if xp is not np:
        found["gpus"] = len(set(comm.allgather(int(b.device.id))))
    return found


# The tables -----------------------------------------------------------------------------------------------------------


def measured(part: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for ranks in given.ranks:
        names = ("device", "n", "edge", "whole", "no_nccl")
        task = {"part": part} | {name: getattr(given, name) for name in names}
        found = {"ranks": ranks} | started("benchmarks.claims.multiblock_scaling", ranks, task)
        print(f"{part}, {ranks} processes: {found['correction_ms']:.3g} ms a correction", file=sys.stderr, flush=True)
        yield found


def efficiencies(lines: Sequence[dict[str, Any]], part: str) -> list[tuple[float, float, float]]:
    """For each line: the efficiency of corrections and of factorizations, and that of the triad."""
    first = lines[0]
    found = []
    for line in lines:
        more = line["ranks"] / first["ranks"]
        times = [first[key] / line[key] / (1 if part == "weak" else more) for key in ("correction_ms", "factor_ms")]
        found.append((times[0], times[1], line["triad_gbs"] / first["triad_gbs"] / more))
    return found


def tables(part: str, lines: Sequence[dict[str, Any]]) -> str:
    header = ["processes", "blocks", "cells", "correction, ms", "efficiency", "of the triad", "over the triad's",
              "factorization, ms", "efficiency", "GB/s", "triad, GB/s"]  # fmt: skip
    header += ["corrections to 1e-8"] if part == "strong" else []
    rows = []
    for x, (correction, factor, memory) in zip(lines, efficiencies(lines, part), strict=True):
        row = [x["ranks"], " x ".join(map(str, x["parts"])), x["cells"], x["correction_ms"], correction, memory]
        row += [correction / memory, x["factor_ms"], factor, x["gbs"], x["triad_gbs"]]
        rows.append([*row, x.get("corrections")] if part == "strong" else row)
    profile = ["processes", "residual of the block, ms", "residual, ms", "solve, ms", "exchange, ms", "norm, ms"]
    names = ("block_residual_ms", "residual_ms", "solve_ms", "exchange_ms", "norm_ms")
    return f"{table(header, rows)}\n{table(profile, [[x['ranks'], *(x[name] for name in names)] for x in lines])}"


def page(results: dict[str, Any], facts: dict[str, Any], given: dict[str, Any]) -> str:
    many = given.get("many", 25)  # of older records
    text = "# Grids of several blocks over processes\n\n"
    text += f"{facts.get('gpu') or facts['cpu']}, {facts['cores']} cores, {facts['date']}, commit {facts['commit']}. "
    text += (
        f"Block ILU(0), n = {given['n']}, float64, random dominant blocks, one thread a process. A correction of "
        f"`richardson` is the difference of {many} and {FEW}, a {many - FEW}th of it; all times are the fastest of "
        f"{REPEATS} rounds, of the slowest process. Parts were timed each alone."
    )
    ways = {line.get("way") for lines in results.values() for line in lines} - {None}  # older records have none
    text += "".join(f" Cells at interfaces go by {WAYS[way]}." for way in sorted(ways)) + "\n"
    for part, lines in results.items():
        size = f"{given['edge']}^3 cells a process" if part == "weak" else f"{given['whole']}^3 cells"
        text += f"\n## {part}, {size}\n\n{tables(part, lines)}"
    return text


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--ranks", default="1,2", help="numbers of processes, with commas between them")
    parser.add_argument("--edge", type=int, default=40, help="cells of each process along an axis, for weak")
    parser.add_argument("--whole", type=int, default=64, help="cells along an axis, for strong")
    parser.add_argument("--n", type=int, default=6, help="unknowns of a cell")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--no-nccl", action="store_true", help="between GPUs: by MPI")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--from", dest="source", type=Path, metavar="RECORD", help="the tables of what was measured")
    add_place(parser)
    given = parser.parse_args(argv)
    if given.worker:
        answer(worker, given.worker)
        return 0
    if given.source:
        known = read(given.source)
        replace_text(page_of(given.source), page(known["results"], known["machine"], known["options"]))
        return 0
    given.ranks = [int(text) for text in given.ranks.split(",")]
    parts = given.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        raise ParameterError(f"there is no part {sorted(unknown)[0]!r}; there are {', '.join(PARTS)}.")
    facts = machine(given.device == "cuda", given.machine) | {"date": date.today().isoformat()}
    path = given.out / f"multiblock-scaling-{facts['name']}-{facts['date']}{ENDING}"
    options = {name: getattr(given, name) for name in ("edge", "whole", "n", "device", "no_nccl")} | {
        "many": MANY[given.device]
    }
    results: dict[str, Any] = {part: [] for part in parts}
    for part in parts:
        for line in measured(part, given):
            results[part].append(line)
            done = {name: lines for name, lines in results.items() if lines}
            write(path, {"machine": facts, "options": options, "results": done})
            replace_text(page_of(path), page(done, facts, options))
    print(page(results, facts, options))
    return 0


if __name__ == "__main__":
    command(main)
