"""Wanted: a flow with six unknowns a cell keeps 90% of its speed a GPU on two, from 64^3 cells each.

Figure 8 of L. Luo, J. R. Edwards, H. Luo, F. Mueller, "A fine-grained block ILU scheme on regular structures for
GPGPUs": the time of a pseudo step by its parts, of the flow around a sphere of benchmarks/papers/flow (p, u, v, w,
temperature, a turbulence equation; float64). A process a GPU; this program starts them by mpiexec.

    parts     one grid of 12 blocks, M x M x L cells each, on one core, on one GPU and on two
    weak      6 blocks a process: a shell around the sphere each, as many cells for each process

BILU FACT, BILU SOLV/CORR, RHS and AFILL are the paper's; its TSD is part of AFILL. MPI is what the processes exchange
for RHS and AFILL, with packing, and for sums; the cells sent within a correction are part of SOLV/CORR, and timed alone
besides. A pseudo step has a fixed number of corrections. Times are medians over the steps, of the slowest process.

    finelu bench fgbilu_flow --device cuda --ranks 1,2
    finelu bench fgbilu_flow --device cpu --ranks 1,2 --cells 4 6 --steps 2    # whether it runs
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from datetime import date
from typing import Any

import numpy as np

from benchmarks.harness.launch import answer, own_gpu, started
from benchmarks.harness.options import add_place, add_source, chosen_parts, command
from benchmarks.harness.record import ENDING, machine, page_of, read, replace_text, write
from benchmarks.harness.table import table
from benchmarks.papers.flow import grids, sphere
from benchmarks.papers.flow.curved import flow_on
from benchmarks.papers.flow.program import PARTS as NAMES
from benchmarks.papers.flow.pseudo_time import PseudoTime
from finelu.device import synchronize

PARTS = ("parts", "weak")
CELLS = ((32, 43), (64, 64))  # M and L of a block: 64^3 cells in six blocks, or in each
WARM = 3  # steps before those that count
RE, CFL = 100.0, 50.0
RTOL = 1e-9  # that the corrections of a step do not reach, for all steps to have as many


def worker(task: dict[str, Any]) -> dict[str, Any]:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    xp = own_gpu(comm) if task["device"] == "cuda" else np
    m, outward = task["cells"]
    shells = 2 if task["part"] == "parts" else comm.size
    blocks = grids.sphere((m, outward * shells), shells)
    flow = flow_on(blocks, comm, viscosity=1 / RE, stream=(1.0, 0.0, 0.0, 0.0, 0.1), xp=xp)
    march = PseudoTime(flow, corrections=task["corrections"], rtol=RTOL, cfl=CFL, cfl_max=CFL)
    q, done, times = flow.start(), [], []
    for _ in range(WARM + task["steps"]):
        begin = time.perf_counter()
        q, step = march.step(q)  # which waits for the device
        done.append(step)
        times.append([time.perf_counter() - begin, *(step.seconds[part] for part in NAMES)])
    slowest = np.max(comm.allgather(np.median(times[WARM:], axis=0)), axis=0)
    across = march.A._across.ghosts
    x = march.A.data.reshape(-1)[: march.A.shape[0]].reshape(-1, flow.n)
    exchanges = []
    for _ in range(10 if across.needed else 0):
        synchronize(x)
        comm.Barrier()
        begin = time.perf_counter()
        across.begin(x)
        across.finish()
        synchronize(x)
        exchanges.append(time.perf_counter() - begin)
    return {
        "cells": flow.all_cells,
        "blocks": len(blocks.nodes),
        "step_ms": 1e3 * float(slowest[0]),
        "parts_ms": {part: 1e3 * float(s) for part, s in zip(NAMES, slowest[1:], strict=True)},
        "exchange_ms": 1e3 * max(comm.allgather(min(exchanges, default=0.0))),
        "way": type(across._room).__name__ if across.needed else None,
        "steps_ms": [1e3 * wall for wall, *_ in times[WARM:]],
        "corrections": [step.corrections for step in done[WARM:]],
        "residuals": done[-1].residuals,
        "drag": sphere.measured(flow, q).drag,
    }


def cases(given: argparse.Namespace) -> list[tuple[str, int, dict[str, Any]]]:
    """(part, processes, task) of each run, the most important first."""
    task = {"device": given.device, "steps": given.steps, "corrections": given.corrections}
    found = [("weak", ranks, task | {"cells": cells}) for cells in given.cells for ranks in given.ranks]
    found += [("parts", ranks, task | {"cells": given.cells[0]}) for ranks in given.ranks if ranks <= 2]
    if given.device == "cuda":
        found.append(("parts", 1, task | {"cells": given.cells[0], "device": "cpu", "steps": 2}))
    return [case for case in found if case[0] in given.parts]


def page(results: Sequence[dict[str, Any]], facts: dict[str, Any], given: dict[str, Any]) -> str:
    text = f"# The flow around a sphere by parts\n\n{facts.get('gpu') or facts['cpu']}, {facts['cores']} cores, "
    text += f"{facts['date']}, commit {facts['commit']}. Re {RE:g}, CFL {CFL:g}, n = 6, float64, "
    text += (
        f"{given['corrections']} corrections a step; ms a step, of the slowest process, medians of {given['steps']} "
    )
    text += f"steps (on a core of 2) after {WARM}.\n"
    head = ["grid", "on", "cells", "blocks", *NAMES.values(), "step", "efficiency", "an exchange alone", "drag"]
    for part in PARTS:
        rows = []
        for line in (line for line in results if line["part"] == part):
            grid = [other for other in results if [other[k] for k in ("part", "m_l", "device")] == [part, *key(line)]]
            share = grid[0]["step_ms"] / line["step_ms"]
            share *= grid[0]["ranks"] / line["ranks"] if part == "parts" else 1
            unit = {"cuda": "GPU", "cpu": "core"}[line["device"]]
            row = [" x ".join(map(str, (line["m_l"][0], *line["m_l"]))), f"{line['ranks']} {unit}", line["cells"]]
            row += [
                line["blocks"],
                *line["parts_ms"].values(),
                line["step_ms"],
                share,
                line["exchange_ms"],
                line["drag"],
            ]
            rows.append(row)
        if rows:
            text += f"\n## {part}\n\n{table(head, rows)}"
    ways = sorted({line["way"] for line in results} - {None})
    return text + (f"\nWithin corrections cells go by {', '.join(ways)}.\n" if ways else "")


def key(line: dict[str, Any]) -> tuple[Any, Any]:
    return line["m_l"], line["device"]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS), help="which of %(default)s")
    parser.add_argument("--ranks", default="1,2", help="numbers of processes, with commas between them")
    parser.add_argument(
        "--cells", type=int, nargs=2, action="append", metavar=("M", "L"), help="of a block; repeatable"
    )
    parser.add_argument("--steps", type=int, default=20, help="pseudo steps that count")
    parser.add_argument("--corrections", type=int, default=8, help="of a pseudo step")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    add_source(parser)
    add_place(parser)
    given = parser.parse_args(argv)
    if given.worker:
        answer(worker, given.worker)
        return 0
    if given.source:
        known = read(given.source)
        replace_text(page_of(given.source), page(known["results"], known["machine"], known["options"]))
        return 0
    given.parts = chosen_parts(parser, given.parts, PARTS)
    given.ranks = [int(text) for text in given.ranks.split(",")]
    given.cells = given.cells or [list(cells) for cells in CELLS]
    facts = machine(given.device == "cuda", given.machine) | {"date": date.today().isoformat()}
    path = given.out / f"fgbilu-flow-{facts['name']}-{facts['date']}{ENDING}"
    options = {name: getattr(given, name) for name in ("cells", "steps", "corrections", "device", "ranks")}
    results: list[dict[str, Any]] = []
    for part, ranks, task in cases(given):
        begin = time.perf_counter()
        found = started("benchmarks.papers.fgbilu_flow", ranks, task | {"part": part})
        results.append({"part": part, "ranks": ranks, "m_l": task["cells"], "device": task["device"]} | found)
        write(path, {"machine": facts, "options": options, "results": results})
        replace_text(page_of(path), page(results, facts, options))
        took = f"{math.ceil(time.perf_counter() - begin)} s"
        print(
            f"{part} {task['cells']}, {ranks} {task['device']}: {found['step_ms']:.3g} ms a step, {took}",
            file=sys.stderr,
        )
    print(page(results, facts, options))
    return 0


if __name__ == "__main__":
    command(main)
