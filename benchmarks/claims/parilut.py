"""Claim: ParILUT, and its form by five steps of sweeps too, take a third of the time of five steps of Ginkgo's on two
CPU threads and a quarter of it on an H200, where they are ten times faster than on the 16 cores of its host; ParICT
takes at most 0.6 of ParILUT's time, a sweep at most four times that of its bytes, and the factors have as many entries
as were asked for, within 2%.

`python -m benchmarks.claims.parilut` times `factor` alone, from a CSR on the device to factors there: checks,
scaling and all steps (also where finelu would stop because the residual grows), but without the analysis of the
triangular solves, which Ginkgo has elsewhere too. The first call, which may compile, has its own column; the rest are
medians. On a GPU by CUDA events, from an idle device to an idle device, so that the
host's part counts. The share of each building block comes from further runs, in which every call is timed; what is
left (scaling, norms, waiting for a size) is "other".
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.harness.building_blocks import BLOCKS, PROFILES, all_steps, factor_time, profile
from benchmarks.harness.case import loaded, release_gpu, to_gpu
from benchmarks.harness.clock import Budget, copy_bandwidth, gpu_time
from benchmarks.harness.options import add_device, add_options, chosen_parts, command, wants_gpu
from benchmarks.harness.record import Record, Run, RunEnded, new_run
from benchmarks.harness.suite import GALLERY, Problem, files, matrix_folder, names_of, suite
from benchmarks.harness.table import cell, mean, ratio, table
from finelu.kernels import kernels_for

# Ginkgo 1.12, float64, int32, measured earlier; ParILUT and ParICT with 5 steps and fill 1, ParILU with 5 sweeps.
GINKGO_STEPS = 5
GINKGO_THREADS = 2  # OpenMP, on a machine with two cores
GINKGO_OPENMP_MS = {
    "ParILUT": {
        "poisson7:100": 3400.0,
        "poisson27:60": 9800.0,
        "memplus": 6200.0,
        "ccx_rotor": 18600.0,
        "ccx_hueeber1": 2100.0,
        "opm_egg_3ph": 2400.0,
        "cage11": 2500.0,
        "of_squareBend_p": 540.0,
    },
}
GINKGO_DEVICE = "H200"  # CUDA
GINKGO_CUDA_MS = {
    "ParILUT": {
        "of_pitzDaily_p": 11.4,
        "qccfd_cavity_pc_128": 12.3,
        "cage11": 31.8,
        "memplus": 40.3,
        "trilinos_nsjac": 29.8,
        "ng_heatsink2d": 26.3,
        "opm_egg_3ph": 56.8,
        "of_squareBend_p": 35.9,
        "ccx_hueeber1": 57.5,
        "ccx_rotor": 119.0,
        "poisson27:60": 259.0,
        "poisson7:100": 398.0,
    },
    "ParICT": {"of_pitzDaily_p": 8.1, "ng_heatsink2d": 18.6, "ccx_hueeber1": 51.0, "poisson7:100": 220.0},
    "ParILU": {"of_pitzDaily_p": 0.9, "of_squareBend_p": 2.8, "poisson7:100": 18.5},
}
NAMES = tuple(GINKGO_CUDA_MS["ParILUT"])
WANTED = {"cpu": 3.0, "gpu": 4.0}  # Ginkgo's time over ours
OVER_CPU = 10.0  # times the GPU's time that all threads of its host take
SYMMETRIC = 0.6  # of ParILUT's time that ParICT may take
MANY_THREADS, SHARED, SEARCH_SHARED = 16, 6.0, 8.0  # threads; times as fast as one: ParILUT and ParICT, their search
FILL = 0.02  # of the entries asked for that may be missing or too many
BY_SWEEPS = " by sweeps"
RECIPES = {
    "ParILUT": finelu.ParILUT(),
    "ParICT": finelu.ParICT(),
    "ParILUT" + BY_SWEEPS: finelu.ParILUT(steps=GINKGO_STEPS, sweep="synchronous"),
    "ParICT" + BY_SWEEPS: finelu.ParICT(steps=GINKGO_STEPS, sweep="synchronous"),
    "ParILU": finelu.ParILU(),
}
SWEEPS, CACHES = 10, 2**28  # of a measurement; bytes that no cache holds
MOST_BYTES = 4.0  # times what a sweep's bytes take that it may take
SLOW_MS = 2000.0


# Clocks ---------------------------------------------------------------------------------------------------------------


# The run --------------------------------------------------------------------------------------------------------------


def sweep_cost(A: Any, copied: float) -> dict[str, float]:
    """The ms of a sweep of ParILU on the GPU, and their ratio to the time of its bytes at `copied` GB/s.

    A sweep reads the values of A and of F, their pattern once, and writes F. Timed are SWEEPS sweeps in a row, on
    copies of F that are used in turn, so that the cache holds none of their data.
    """
    import cupy

    moved = A.nnz * (3 * A.data.itemsize + A.indices.itemsize) + A.n * 2 * A.indices.itemsize
    copies = [A.copy() for _ in range(max(1, min(16, CACHES // (A.data.nbytes + A.indices.nbytes))))]
    refused = cupy.zeros(2, np.int64)
    timing = gpu_time(lambda i: kernels_for(A.data).sweeps.sweeps(A, copies[i % len(copies)], SWEEPS, None, refused))
    ms = timing.ms / SWEEPS
    return {"sweep ms": ms, "sweep over bytes": ms / (moved / copied / 1e6)}


def spd(S: sp.csr_matrix) -> bool:
    """Whether S is symmetric to rounding with a positive diagonal: what a Cholesky factorization may be tried on."""
    difference = abs(S - S.T)
    symmetric = difference.nnz == 0 or difference.max() <= 1e-12 * abs(S).max()
    return bool(symmetric and (S.diagonal() > 0).all())


def problems(options: argparse.Namespace, names: Sequence[str] = NAMES) -> tuple[list[Problem], list[str]]:
    """The problems asked for, by default those of `names`; and which of those are not here."""
    if options.matrices or options.quick:
        return suite(options.matrix_folder, names_of(options.matrices), quick=options.quick), []
    here = files(options.matrix_folder or matrix_folder())
    made = {*GALLERY, *finelu.gallery.PAPER_SIZES}
    absent = [name for name in names if ":" not in name and name not in made and name not in here]
    return suite(options.matrix_folder, [name for name in names if name not in absent]), absent


def measure_one(
    run: Run, name: str, S: sp.csr_matrix, device: str, threads: int, kinds: Sequence[str] = tuple(RECIPES)
) -> None:
    """These recipes on one matrix."""
    A = finelu.as_csr(S)
    A = to_gpu(A) if device == "gpu" else A
    for kind in kinds:
        recipe = RECIPES[kind]
        if kind.startswith("ParICT") and not run.matrices[name]["spd"]:
            continue
        with run.attempt(name, f"{kind} {device} {threads}"):
            with all_steps():
                first, timing, F = factor_time(recipe, A)
                blocks = profile(recipe, A, type(F), PROFILES if timing.ms < SLOW_MS else 1)
            lower = (A.nnz - A.n) // 2 + A.n
            asked = lower if kind.startswith("ParICT") else A.nnz
            detail = {"first_ms": first, "numeric": vars(timing), "nnz": F.nnz, "asked": asked, "blocks": blocks}
            detail |= {key: F.report[key] for key in ("refused", "steps", "stopped") if key in F.report}
            if kind == "ParILU" and device == "gpu":
                detail |= sweep_cost(A, run.machine["copy GB/s"])
            detail["left_out"] = sum(F.report.get("left_out", ()))
            usual = recipe.factor(A).report if kind != "ParILU" else {}
            if usual.get("steps", 0) < detail.get("steps", 0):
                _, shorter, _ = factor_time(recipe, A)
                detail["stops"] = {"after": usual["steps"], "why": usual["stopped"], "numeric": vars(shorter)}
            record = Record(name, kind, device, "finelu", repr(recipe), timing.ms, threads=threads, detail=detail)
            record.error = F.nnz / asked - 1
            run.records.append(record)


def peer_ms(run: Run, record: Record) -> float | None:
    """Ginkgo's time for its five steps, where this is a machine like that on which it was measured.

    It goes on where finelu cannot, with a residual that is not finite; then it gets its share of the steps.
    """
    if record.device == "gpu":
        here, found = GINKGO_DEVICE in str(run.machine.get("gpu")), GINKGO_CUDA_MS
    else:
        here, found = record.threads == GINKGO_THREADS, GINKGO_OPENMP_MS
    ms = found.get(record.work.removesuffix(BY_SWEEPS), {}).get(record.matrix) if here else None
    wanted = getattr(RECIPES[record.work], "steps", None)
    return ms if not ms or not wanted else ms * record.detail.get("steps", wanted) / wanted


# Tables ---------------------------------------------------------------------------------------------------------------


def symmetric_ratios(run: Run, device: str, threads: int) -> list[tuple[str, float]]:
    """(matrix, ParICT's time over ParILUT's)."""
    found = []
    for record in run.find(work="ParICT", device=device, threads=threads):
        whole = run.one(work="ParILUT", matrix=record.matrix, device=device, threads=threads)
        if whole:
            found.append((record.matrix, record.numeric_ms / whole.numeric_ms))
    return found


def gains_by_threads(run: Run, work: str, block: str) -> list[tuple[float, str]]:
    """(time on one thread over that on MANY_THREADS, matrix) of the whole, or of a building block."""

    def ms(record: Record) -> float:
        return float(record.detail["blocks"].get(block, 0.0)) if block else record.numeric_ms

    pairs = [
        (run.one(work=work, matrix=r.matrix, device="cpu", threads=1), r)
        for r in run.find(work=work, device="cpu", threads=MANY_THREADS)
    ]
    return [(ms(one) / ms(many), many.matrix) for one, many in pairs if one]


def gains_over_cpu(run: Run, threads: int) -> list[tuple[float, str]]:
    """(time of ParILUT on this number of CPU threads over that on the GPU, matrix), where one run has both."""
    pairs = [(r, run.one(work="ParILUT", matrix=r.matrix, device="gpu", threads=0)) for r in run.find(work="ParILUT")]
    return [
        (r.numeric_ms / on.numeric_ms, r.matrix) for r, on in pairs if on and r.device == "cpu" and r.threads == threads
    ]


def claim_table(run: Run) -> str:
    """Each claim, the measured value, and whether it suffices."""
    lines = []
    for work in ("ParILUT", "ParICT"):
        for block, wanted in (("", SHARED), ("candidates", SEARCH_SHARED)):
            if gains := gains_by_threads(run, work, block):
                least, at = min(gains)
                enough = "yes" if least >= wanted else "no"
                what = f"{work}, {block or 'whole'}: one thread's time over that of {MANY_THREADS}"
                lines.append((what, len(gains), wanted, mean(f for f, _ in gains), least, at, enough))
    for device, threads in dict.fromkeys((r.device, r.threads) for r in run.records):
        where = "GPU" if device == "gpu" else f"CPU, {threads} threads"
        for work in RECIPES:
            records = run.find(work=work, device=device, threads=threads)
            found = [(factor, r.matrix) for r in records if (factor := ratio(peer_ms(run, r), r.numeric_ms))]
            if found:
                least, at = min(found)
                reached = mean(f for f, _ in found)
                wanted = WANTED[device]
                enough = "yes" if least >= wanted else "no"
                lines.append(
                    (f"{work}, {where}: Ginkgo's time over ours", len(found), wanted, reached, least, at, enough)
                )
        gains = gains_over_cpu(run, threads) if device == "cpu" else []
        if gains:
            least, at = min(gains)
            enough = "yes" if least >= OVER_CPU else "no"
            what = f"ParILUT, {where}: time over that on the GPU"
            lines.append((what, len(gains), OVER_CPU, mean(f for f, _ in gains), least, at, enough))
        if found := symmetric_ratios(run, device, threads):
            at, most = max(found, key=lambda pair: pair[1])
            enough = "yes" if most <= SYMMETRIC else "no"
            lines.append(
                (f"ParICT over ParILUT, {where}", len(found), SYMMETRIC, mean(f for _, f in found), most, at, enough)
            )
        costs = [(r.detail["sweep over bytes"], r.matrix) for r in run.records if "sweep over bytes" in r.detail]
        if costs and device == "gpu":
            most, at = max(costs)
            enough = "yes" if most <= MOST_BYTES else "no"
            what = "a sweep over the time of its bytes at copy bandwidth"
            lines.append((what, len(costs), MOST_BYTES, mean(c for c, _ in costs), most, at, enough))
        adapted = [r for r in run.find(device=device, threads=threads) if r.work != "ParILU"]
        if adapted:
            worst = max(adapted, key=lambda r: abs(r.error))
            enough = "yes" if abs(worst.error) <= FILL else "no"
            off = float(np.mean([abs(r.error) for r in adapted]))
            lines.append((f"entries off, {where}", len(adapted), FILL, off, worst.error, worst.matrix, enough))
    return table(("claim", "cases", "wanted", "mean", "worst", "at", "all reach it"), lines)


def time_table(run: Run, work: str, device: str, threads: int) -> str:
    """A row a matrix: the time with its extremes, the first call, Ginkgo's, the ratio, entries over those asked for."""
    lines = []
    for record in run.find(work=work, device=device, threads=threads):
        facts, detail = run.matrices[record.matrix], record.detail
        peer, stops = peer_ms(run, record), detail.get("stops")
        whole = run.one(work="ParILUT", matrix=record.matrix, device=device, threads=threads)
        lines.append(
            (
                record.matrix,
                facts["n"],
                facts["nnz"] / facts["n"],
                record.numeric_ms,
                f"{cell(detail['numeric']['low'])}..{cell(detail['numeric']['high'])}",
                detail["first_ms"],
                peer,
                ratio(peer, record.numeric_ms),
                record.numeric_ms / whole.numeric_ms if whole and work != "ParILUT" else None,
                f"{detail['nnz'] / detail['asked']:.4f}",
                detail.get("refused"),
                detail["left_out"],
                detail.get("steps"),
                detail.get("sweep over bytes"),
                f"{stops['after']}: {cell(stops['numeric']['ms'])} ms" if stops else None,
            )
        )
    header = (
        *("matrix", "n", "nnz/row", "ms", "least..most", "first ms", "Ginkgo ms", "x", "over ParILUT"),
        *("entries/asked", "refused", "left out", "steps", "sweep/bytes", "stops by itself after"),
    )
    return table(header, lines)


def block_table(run: Run, work: str, device: str, threads: int) -> str:
    """A row a matrix: the share of each building block in %, of the runs in which they were timed."""
    lines = []
    for record in run.find(work=work, device=device, threads=threads):
        blocks = record.detail["blocks"]
        whole = sum(blocks.values())
        lines.append((record.matrix, whole, *(round(100 * blocks.get(label, 0.0) / whole) for label in BLOCKS)))
    return table(("matrix", "ms", *(f"{label} %" for label in BLOCKS)), lines)


def page(run: Run) -> str:
    """The claims first, then times, then shares."""
    text = run.heading() + "\n## Claims\n\n" + claim_table(run)
    text += (
        "\nGinkgo 1.12 was measured earlier, by OpenMP with 2 threads on a machine with 2 cores, by CUDA on one H200; "
        "it is compared on such machines only. Times are medians in ms of `factor` without the analysis of the "
        "triangular solves, with all steps done; where the recipe would stop by itself because the residual grows, the "
        "last column says after how many and in which time. Where the residual is not finite before, "
        "Ginkgo, which does not look, gets that share of its time for five steps.\n"
    )
    for device, threads in dict.fromkeys((r.device, r.threads) for r in run.records):
        where = "GPU" if device == "gpu" else f"CPU, {threads} thread{'s'[: threads > 1]}"
        for work, recipe in RECIPES.items():
            if run.find(work=work, device=device, threads=threads):
                text += f"\n## {recipe!r}, {where}\n\n" + time_table(run, work, device, threads)
                if work != "ParILU":
                    text += f"\n### Share of each building block\n\n{block_table(run, work, device, threads)}"
    return text + run.footing()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.parilut", description=__doc__)
    add_device(parser, "on the GPU", "on the CPU")
    parser.add_argument(
        "--cpu-threads", type=int, default=0, metavar="N", help="with --gpu: ParILUT on N CPU threads too"
    )
    parser.add_argument("--threads", default="2", help="numbers of threads on the CPU: 1,2,4 (default: %(default)s)")
    parser.add_argument("--recipes", default=",".join(RECIPES), help="which of %(default)s")
    add_options(parser)
    options = parser.parse_args(argv)
    kinds = chosen_parts(parser, options.recipes, tuple(RECIPES), "--recipes")

    gpu = wants_gpu(options)
    run = new_run("parilut-gpu" if gpu else "parilut-cpu", gpu=gpu, machine_name=options.machine)
    run.options = {} if gpu else {"threads": options.threads}
    if gpu:
        run.machine["copy GB/s"] = round(copy_bandwidth(), 1)
    chosen, absent = problems(options)
    run.left_out |= dict.fromkeys(absent, "no such file here")
    budget = Budget(options.budget)
    complete = True
    try:
        for name, S in loaded(run, budget, chosen):
            begun = budget.spent()
            run.matrices[name] = {"n": S.shape[0], "nnz": S.nnz, "spd": spd(S)}
            for count in [0] if gpu else [int(t) for t in options.threads.split(",")]:
                if not gpu:
                    finelu.set_num_threads(count)
                measure_one(run, name, S, "gpu" if gpu else "cpu", count, kinds)
            if gpu and options.cpu_threads:
                finelu.set_num_threads(options.cpu_threads)
                measure_one(run, name, S, "cpu", options.cpu_threads, ("ParILUT",))
            if gpu:
                with run.attempt(name, "the rest of the run", fatal=True):
                    release_gpu()
            run.save(options.out)
            print(f"{budget.spent():5.0f} s  {summary(run, name)}, {budget.spent() - begun:.1f} s", flush=True)
    except (RunEnded, KeyboardInterrupt):
        complete = False
    run.options |= {"seconds": round(budget.spent()), "load average at the end": round(os.getloadavg()[0], 1)}
    path = run.publish(options.out, page(run))
    print("\n" + claim_table(run))
    for name, why in run.left_out.items():
        print(f"left out: {name}: {why}")
    print(f"{len(run.failures)} failures; {path}")
    return 0 if complete and not run.failures else 1


def summary(run: Run, matrix: str) -> str:
    """One line of times and ratios for the terminal."""
    pieces = [f"{matrix}:"]
    for record in run.find(matrix=matrix):
        factor = ratio(peer_ms(run, record), record.numeric_ms)
        at = f"@{record.threads}" if record.threads else ""
        pieces.append(f"{record.work}{at} {cell(record.numeric_ms)} ms" + (f" ({factor:.2f}x)" if factor else ""))
    return " ".join(pieces)


if __name__ == "__main__":
    command(main)
