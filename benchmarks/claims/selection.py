"""Claim: on an H200 the approximate sampleselect of 2^28 float64 reads its values at 60% of copy bandwidth or more, the
exact one takes at most twice that time, and both beat quickselect from 2^20 values on (ParILUT on GPUs, 2019, Fig. 8).

Times by CUDA events, warm, medians, the search alone (plan and values exist before); the rank is a third of n. Every
result is checked by counting the values less than it, and those not above it. "share" is the time in which a copy
would have read the values, over the time taken. `--cpu` measures the CPU.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from benchmarks.harness.clock import Budget, Timing, copy_bandwidth, cpu_time, gpu_time
from benchmarks.harness.options import add_budget, add_device, add_place, chosen_parts, command, wants_gpu
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.table import table

PARTS = ("main", "countings", "peers")
EXPONENTS = (16, 18, 20, 22, 24, 26, 28)
PEERS_UP_TO = 24
PAPER = 24  # the size of the paper's Fig. 8 (right) and Fig. 9
DTYPES = ("float64", "float32")
KINDS = ("uniform", "normal", "ties")
MAIN = {"approximate": {"exact": False}, "exact": {}, "quickselect": {"method": "quickselect"}}
COUNTINGS = ("lanes", "shared", "shared_aggregated", "global", "global_aggregated")


def values(xp: Any, kind: str, n: int, dtype: str) -> Any:
    """n numbers on the device of xp: uniform in 0..1, normal, or 16 different ones."""
    if xp is np:
        rng = np.random.default_rng(0)
        uniform, normal = rng.random, rng.standard_normal
    else:
        rng = xp.random.default_rng(0)
        uniform, normal = rng.random, rng.standard_normal
    if kind == "normal":
        return normal(n, dtype=dtype)
    x = uniform(n, dtype=dtype)
    return xp.floor(16 * x) if kind == "ties" else x


def rank_error(xp: Any, x: Any, found: float, rank: int) -> float:
    """How far `found` is from an element of that rank, as a share of n; 0 if it is one."""
    sizes = xp.abs(x)
    less, not_more = int(xp.count_nonzero(sizes < found)), int(xp.count_nonzero(sizes <= found))
    off = less - rank if rank < less else rank - not_more + 1 if rank >= not_more else 0
    return off / x.size


def name(kind: str, dtype: str, exponent: int) -> str:
    return f"{kind} {dtype} 2^{exponent}"


def record(run: Run, case: tuple, who: str, variant: str, timing: Timing, error: float, **detail) -> None:
    kind, dtype, exponent, device, threads = case
    size = 2**exponent * np.dtype(dtype).itemsize
    detail |= {"low_ms": timing.low, "high_ms": timing.high, "repeats": timing.repeats, "host_ms": timing.host_ms}
    detail |= {"kind": kind, "dtype": dtype, "exponent": exponent, "gb_per_s": size / timing.ms / 1e6}
    if copied := run.machine.get("copy GB/s"):
        detail["share"] = size / timing.ms / 1e6 / copied
    found = Record(
        name(kind, dtype, exponent), "selection", device, who, variant, timing.ms, error=error, threads=threads
    )
    found.detail = detail
    run.records.append(found)


def ours(run: Run, case: tuple, x: Any, xp: Any, clock: Callable, variants: dict[str, dict]) -> None:
    """Every variant of finelu's Selection on one array."""
    from finelu.kernels import kernels_for

    n = x.size
    rank = n // 3
    for variant, arguments in variants.items():
        with run.attempt(name(*case[:3]), variant):
            plan = kernels_for(x).selection.Selection(n, x.dtype, **arguments)
            timing = clock(lambda i: plan.select(x, rank))  # noqa: B023 - called before the next turn
            error = rank_error(xp, x, float(plan.result()), rank)
            if plan.exact and error:
                raise AssertionError(f"the exact search is off by {error:.2g} n")
            record(run, case, "finelu", variant, timing, error)


def peers_gpu(run: Run, case: tuple, x: Any, cupy: Any) -> None:
    rank = x.size // 3
    sizes = cupy.abs(x)
    with run.attempt(name(*case[:3]), "cupy.partition"):
        timing = gpu_time(lambda i: cupy.partition(sizes, rank))
        record(run, case, "cupy", "partition", timing, 0.0)
    try:
        import torch
    except ImportError:
        run.left_out["torch.kthvalue"] = "torch is not installed"
        return
    with run.attempt(name(*case[:3]), "torch.kthvalue"):
        tensor = torch.from_dlpack(sizes)
        found = float(torch.kthvalue(tensor, rank + 1)[0])
        timing = torch_time(torch, lambda: torch.kthvalue(tensor, rank + 1))
        record(run, case, "torch", "kthvalue", timing, rank_error(cupy, x, found, rank))


def torch_time(torch: Any, call: Callable[[], Any]) -> Timing:
    """The call's time by torch's own events: its stream is not CuPy's."""
    measured = []
    for _ in range(6):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        call()
        last.record()
        last.synchronize()
        measured.append(first.elapsed_time(last))
    return Timing.of(measured[1:], measured[1:])


def measure_gpu(run: Run, exponents: Iterable[int], parts: Sequence[str], budget: Budget) -> None:
    import cupy

    run.machine["copy GB/s"] = round(copy_bandwidth(), 1)
    for exponent in sorted(exponents, reverse=True):  # the largest first: those are the claim
        for dtype in DTYPES:
            for kind in KINDS:
                case = (kind, dtype, exponent, "gpu", 0)
                if budget.over():
                    run.left_out[name(*case[:3])] = "the budget was spent"
                    continue
                x = values(cupy, kind, 2**exponent, dtype)
                if "main" in parts:
                    ours(run, case, x, cupy, gpu_time, MAIN)
                if "countings" in parts and exponent in (PAPER, 20) and dtype == "float64":
                    ours(run, case, x, cupy, gpu_time, counting_variants())
                if "peers" in parts and exponent <= PEERS_UP_TO:
                    peers_gpu(run, case, x, cupy)
                del x
                cupy.get_default_memory_pool().free_all_blocks()
        print(f"{budget.spent():5.0f} s  2^{exponent}", flush=True)


def counting_variants() -> dict[str, dict]:
    """The paper's variants: atomics in shared or global memory, aggregated by warps or not."""
    variants: dict[str, dict] = {}
    for counting in COUNTINGS:
        for variant, arguments in MAIN.items():
            if variant != "quickselect" or counting != "lanes":
                variants[f"{variant} {counting}"] = arguments | {"counting": counting}
    return variants


def measure_cpu(run: Run, exponents: Iterable[int], threads: Sequence[int], budget: Budget) -> None:
    import finelu

    for exponent in exponents:
        for dtype in DTYPES:
            for kind in KINDS:
                if budget.over():
                    run.left_out[name(kind, dtype, exponent)] = "the budget was spent"
                    continue
                x = values(np, kind, 2**exponent, dtype)
                for count in threads:
                    finelu.set_num_threads(count)
                    variants = MAIN if count == 1 else {k: v for k, v in MAIN.items() if k != "quickselect"}
                    ours(run, (kind, dtype, exponent, "cpu", count), x, np, cpu_time, variants)
        print(f"{budget.spent():5.0f} s  2^{exponent}", flush=True)


def page(run: Run) -> str:
    """Times in ms by size; shares of copy bandwidth and rank errors below."""
    text = run.heading()
    for kind in KINDS:
        for dtype in DTYPES:
            records = [r for r in run.records if r.detail["kind"] == kind and r.detail["dtype"] == dtype]
            text += _table(f"{kind}, {dtype}: ms", records, lambda r: r.numeric_ms)
            if any("share" in r.detail for r in records):
                main = [r for r in records if r.variant in MAIN]
                text += _table(f"{kind}, {dtype}: share of copy bandwidth", main, lambda r: r.detail.get("share"))
            approximate = [r for r in records if r.variant == "approximate"]
            text += _table(f"{kind}, {dtype}: rank off by, share of n", approximate, lambda r: r.error)
    return text + run.footing()


def _table(title: str, records: Sequence[Record], number: Callable[[Record], float | None]) -> str:
    if not records:
        return ""
    exponents = sorted({r.detail["exponent"] for r in records})
    columns = list(dict.fromkeys((r.who, r.variant, r.threads) for r in records))
    found = {(r.who, r.variant, r.threads, r.detail["exponent"]): number(r) for r in records}
    header = ["", *(f"2^{e}" for e in exponents)]
    lines = [
        [
            f"{who} {variant}" + (f", {threads} threads" if threads else ""),
            *(found.get((who, variant, threads, e)) for e in exponents),
        ]
        for who, variant, threads in columns
    ]
    return f"\n## {title}\n\n" + table(header, lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.selection", description=__doc__)
    add_device(parser, "on the GPU", "on the CPU")
    parser.add_argument("--parts", default=",".join(PARTS), help="which of %(default)s, on the GPU")
    parser.add_argument("--exponents", help="sizes as powers of two: 20,24,28 (default: 16 to 28; on the CPU to 24)")
    parser.add_argument("--threads", default="1,2", help="numbers of threads on the CPU (default: %(default)s)")
    add_place(parser)
    add_budget(parser)
    options = parser.parse_args(argv)

    gpu = wants_gpu(options)
    parts = chosen_parts(parser, options.parts, PARTS)
    exponents = (
        [int(e) for e in options.exponents.split(",")]
        if options.exponents
        else list(EXPONENTS if gpu else EXPONENTS[:5])
    )
    run = new_run("selection-gpu" if gpu else "selection-cpu", gpu=gpu, machine_name=options.machine)
    run.options = {"parts": options.parts} if gpu else {"threads": options.threads}
    budget = Budget(options.budget)
    if gpu:
        measure_gpu(run, exponents, parts, budget)
    else:
        measure_cpu(run, exponents, [int(t) for t in options.threads.split(",")], budget)
    run.options["seconds"] = round(budget.spent())
    path = run.publish(options.out, page(run))
    print(page(run))
    print(f"{len(run.failures)} failures; {path}")
    return 1 if run.failures else 0


if __name__ == "__main__":
    command(main)
