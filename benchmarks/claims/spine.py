"""Claim: finelu's ILU(0), IC(0) and triangular solves are faster than those of cuSPARSE on a GPU and of MKL on a CPU.

`python -m benchmarks.claims.spine` measures both sides in one run on the suite of benchmarks/harness/suite.py,
checks every result, and prints each bar of `BARS` with the geometric mean and the smallest ratio reached. Every variant
is measured, so that the choice of "auto" can be compared with the best. It ends early but cleanly when --budget is
spent; a failure of one matrix or peer is recorded and the run goes on.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.harness import measure
from benchmarks.harness.case import SIDES, Case, over_suite, release_gpu
from benchmarks.harness.clock import Budget
from benchmarks.harness.options import add_device, add_options, chosen_parts, command, wants_gpu
from benchmarks.harness.record import Record, Run, new_run
from benchmarks.harness.table import mean, ratio, smallest, table
from benchmarks.peers import mkl

PARTS = ("trsv", "ilu0", "ic0", "gmres")
# Lower solves in ms by the synchronization-free solver of Ginkgo 1.12, float64, on the device below, measured earlier.
GINKGO = {
    "of_pitzDaily_p": 0.26,
    "opm_egg_3ph": 0.37,
    "of_squareBend_p": 0.36,
    "ccx_hueeber1": 1.00,
    "trilinos_nsjac": 3.1,
    "ng_heatsink2d": 0.62,
    "memplus": 0.22,
    "cage11": 0.19,
    "qccfd_cavity_pc_128": 0.24,
    "poisson7:100": 1.11,
}
GINKGO_DEVICE = "H200"
Ratios = list[tuple[str, float]]


# Results --------------------------------------------------------------------------------------------------------------


def ours(run: Run, matrix: str, work: str, device: str, threads: int = 0, value: str = "") -> Record | None:
    """finelu's record that counts: the variant "auto", or the only one of a whole solve.

    The numeric part is that of `Factors.update`; the total of a factorization is that of the plan which `factor` makes
    for one, "auto once".
    """
    found = run.find(matrix=matrix, work=work, device=device, who="finelu", threads=threads)
    wanted = "auto once" if value == "total_ms" and work in ("ilu0", "ic0") else "auto"
    return next((r for r in found if r.variant == wanted or work == "gmres"), None)


def best_peer(run: Run, matrix: str, work: str, device: str, value: str, threads: int = 0) -> float | None:
    """The smallest `value` ("numeric_ms", "analysis_ms", "total_ms") of the peer's variants that were right."""
    peers = run.find(matrix=matrix, work=work, device=device, threads=threads)
    return smallest(getattr(r, value) for r in peers if r.who != "finelu" and r.sound)


def counted(run: Run) -> list[str]:
    """The matrices that means are taken over."""
    return [name for name, facts in run.matrices.items() if not facts["apart"]]


def ratios(run: Run, work: str, device: str, value: str, threads: int = 0) -> Ratios:
    """(matrix, peer's time over ours) for each matrix where both were measured and right."""
    found = []
    for matrix in counted(run):
        record = ours(run, matrix, work, device, threads, value)
        factor = ratio(best_peer(run, matrix, work, device, value, threads), record and getattr(record, value))
        if factor and record.sound:
            found.append((matrix, factor))
    return found


def trsv(device: str, value: str, threads: int = 0) -> Callable[[Run], Ratios]:
    """The ratios of the lower and the upper solves together."""
    return lambda run: [
        (f"{matrix} {side}", factor)
        for side in SIDES
        for matrix, factor in ratios(run, f"trsv_{side}", device, value, threads)
    ]


def of(work: str, device: str, value: str, threads: int = 0) -> Callable[[Run], Ratios]:
    return lambda run: ratios(run, work, device, value, threads)


def against_ginkgo(run: Run) -> Ratios:
    """Ginkgo's lower solve over ours, for the matrices measured earlier; nothing on another device than theirs."""
    if GINKGO_DEVICE not in str(run.machine.get("gpu")):
        return []
    records = {matrix: ours(run, matrix, "trsv_lower", "gpu") for matrix in GINKGO}
    return [
        (matrix, GINKGO[matrix] / record.numeric_ms) for matrix, record in records.items() if record and record.sound
    ]


@dataclass(frozen=True)
class Bar:
    """A claim: the geometric mean of the ratios, and how far a single matrix may fall behind (None: no limit)."""

    work: str
    peer: str
    mean: float
    floor: float | None
    ratios: Callable[[Run], Ratios]


BARS = (
    Bar("SpTRSV solve, GPU", "cuSPARSE SpSV, analysis kept", 2.5, 0.9, trsv("gpu", "numeric_ms")),
    Bar("SpTRSV lower solve, GPU", "Ginkgo 1.12 on an H200, measured earlier", 1.5, None, against_ginkgo),
    Bar("SpTRSV analysis, GPU", "cuSPARSE SpSV analysis", 5.0, None, trsv("gpu", "analysis_ms")),
    Bar("ILU0 numeric, GPU", "csrilu02, better policy", 1.7, 0.8, of("ilu0", "gpu", "numeric_ms")),
    Bar("ILU0 analysis + numeric, GPU", "csrilu02, better total", 2.0, None, of("ilu0", "gpu", "total_ms")),
    Bar("IC0 numeric, GPU", "csric02, better policy", 1.7, 0.8, of("ic0", "gpu", "numeric_ms")),
    Bar("IC0 analysis + numeric, GPU", "csric02, better total", 2.0, None, of("ic0", "gpu", "total_ms")),
    Bar("ILU0 numeric, CPU, 2 threads", "MKL dcsrilu0", 1.5, None, of("ilu0", "cpu", "numeric_ms", 2)),
    Bar("SpTRSV solve, CPU, 2 threads", "MKL trsv, optimized", 1.5, None, trsv("cpu", "numeric_ms", 2)),
    Bar(
        "GMRES(30)+ILU0 to 1e-8, GPU", "CuPy spilu(fill_factor=1) + gmres", 10.0, None, of("gmres", "gpu", "numeric_ms")
    ),
)


def bar_table(run: Run) -> str:
    """Each bar that this run says something about: wanted, reached, and whether that is enough."""
    lines = []
    for bar in BARS:
        found = bar.ratios(run)
        if not found:
            continue
        reached, (worst, least) = mean(factor for _, factor in found), min(found, key=lambda pair: pair[1])
        enough = reached >= bar.mean and (bar.floor is None or least >= bar.floor)
        lines.append(
            (
                bar.work,
                bar.peer,
                len(found),
                bar.mean,
                reached,
                "-" if bar.floor is None else bar.floor,
                least,
                worst,
                "yes" if enough else "no",
            )
        )
    header = ("work", "peer", "cases", "mean wanted", "mean reached", "least wanted", "least reached", "at", "reached")
    return table(header, lines)


def regret_table(run: Run, device: str, threads: int = 0) -> str:
    """How much slower "auto" is than the best direct variant: geometric mean and worst case of each work."""
    lines = []
    for work in ("ilu0", "ic0", "trsv_lower", "trsv_upper"):
        found = []
        for matrix in counted(run):
            records = run.find(matrix=matrix, work=work, device=device, who="finelu", threads=threads)
            direct = [r for r in records if r.sound and r.variant not in measure.APPROXIMATE_SOLVES]
            chosen = next((r for r in direct if r.variant == "auto"), None)
            others = [r for r in direct if r.variant != "auto"]
            if chosen and others:
                best = min(others, key=lambda r: r.numeric_ms)
                found.append((chosen.numeric_ms / best.numeric_ms, matrix, chosen.chosen, best.variant))
        if found:
            worst = max(found)
            lines.append((work, len(found), mean(r for r, *_ in found), *worst))
    return table(("work", "matrices", "mean auto/best", "worst", "matrix", "chosen", "best"), lines)


def variant_table(run: Run, work: str, device: str, threads: int = 0) -> str:
    """The numeric time in ms of every variant, ours and the peer's."""
    records = run.find(work=work, device=device, threads=threads)
    names = list(dict.fromkeys((r.who, r.variant) for r in records))
    lines = []
    for matrix in dict.fromkeys(r.matrix for r in records):
        row = [run.one(matrix=matrix, work=work, device=device, threads=threads, who=w, variant=v) for w, v in names]
        chosen = next((r.chosen for r in row if r and r.who == "finelu" and r.variant == "auto"), "")
        lines.append((matrix, *(r and r.numeric_ms for r in row), chosen))
    return table(("matrix", *(v if w == "finelu" else f"{w} {v}" for w, v in names), "auto took"), lines)


def solve_table(run: Run, device: str, threads: int = 0) -> str:
    """A row a matrix: levels, lower and upper solve, the analyses; ours, the peer's, and the ratio, in ms."""
    peer = "SpSV" if device == "gpu" else "MKL"
    lines = []
    for matrix, facts in run.matrices.items():
        row: list[Any] = [matrix, facts["n"], facts["nnz"], facts["levels"]]
        for side, value in (*((s, "numeric_ms") for s in SIDES), *((s, "analysis_ms") for s in SIDES)):
            record = ours(run, matrix, f"trsv_{side}", device, threads)
            a = record and getattr(record, value)
            b = best_peer(run, matrix, f"trsv_{side}", device, value, threads)
            row += [a, b, ratio(b, a)]
        if any(row[4:]):
            errors = [
                max(
                    (
                        r.error
                        for r in run.find(matrix=matrix, work=f"trsv_{s}", device=device, threads=threads, who=w)
                        if r.variant not in measure.APPROXIMATE_SOLVES and r.error is not None
                    ),
                    default=None,
                )
                for w in ("finelu", "cusparse" if device == "gpu" else "mkl")
                for s in SIDES
            ]
            lines.append(
                (*row, max(filter(None, errors[:2]), default=None), max(filter(None, errors[2:]), default=None))
            )
    parts = [(f"{w} ours", f"{w} {peer}", "x") for w in ("L", "U", "L analysis", "U analysis")]
    header = ("matrix", "n", "nnz", "levels", *(h for part in parts for h in part), "error ours", f"error {peer}")
    return table(header, lines)


def factor_table(run: Run, work: str, device: str, threads: int = 0) -> str:
    """A row a matrix: the numeric part and the sum with the analysis; ours, the peer's best, the ratio, in ms."""
    peer = "mkl" if device == "cpu" else "cusparse"
    lines = []
    for matrix, facts in run.matrices.items():
        record = ours(run, matrix, work, device, threads)
        peers = run.find(matrix=matrix, work=work, device=device, threads=threads, who=peer)
        if not record and not peers:
            continue
        row: list[Any] = [matrix, facts["levels"], facts["row_mean"]]
        for value in ("numeric_ms", "total_ms"):
            a, b = record and getattr(record, value), best_peer(run, matrix, work, device, value, threads)
            row += [a, b, ratio(b, a)]
        quickest = min(peers, key=lambda r: r.numeric_ms, default=None)
        lines.append(
            (
                *row,
                record and record.chosen,
                quickest and quickest.variant,
                record and record.error,
                quickest and quickest.error,
            )
        )
    header = (
        "matrix",
        "levels",
        "nnz/row",
        "numeric ours",
        f"numeric {peer}",
        "x",
        "total ours",
        f"total {peer}",
        "x",
        "auto took",
        f"best {peer}",
        "error ours",
        f"error {peer}",
    )
    return table(header, lines)


def gmres_table(run: Run) -> str:
    """A row a matrix: seconds, iterations and relative residuals; ">" where CuPy was stopped at the limit."""
    lines = []
    for matrix in run.matrices:
        a, b = (run.one(matrix=matrix, work="gmres", who=who) for who in ("finelu", "cupy"))
        if not a and not b:
            continue
        stopped = ">" if b and b.detail.get("stopped") else ""
        factor = ratio(b and b.numeric_ms, a and a.numeric_ms)
        line: list[Any] = [matrix, a and a.numeric_ms / 1e3, a and a.detail["iterations"], a and a.error]
        line += [b and f"{stopped}{b.numeric_ms / 1e3:.3g}", b and b.detail.get("iterations"), b and b.error]
        lines.append((*line, factor and f"{stopped}{factor:.3g}"))
    header = ("matrix", "ours s", "iterations", "residual", "CuPy s", "iterations", "residual", "x")
    return table(header, lines)


def wrong_table(run: Run) -> str:
    """The exact methods whose result was not right, ours and the peers'."""
    header = ("matrix", "work", "device", "library", "variant", "error")
    wrong = [r for r in run.records if not r.sound and r.variant not in measure.APPROXIMATE_SOLVES]
    return table(header, ((r.matrix, r.work, r.device, r.who, r.variant, r.error) for r in wrong))


def thread_table(run: Run, work: str) -> str:
    """Numeric times in ms over the numbers of threads, ours and MKL's."""
    records = run.find(work=work, device="cpu")
    counts = sorted({r.threads for r in records})
    lines = []
    for matrix in dict.fromkeys(r.matrix for r in records):
        for who, variant in (("finelu", "auto"), ("mkl", None)):
            row = [
                next(
                    (
                        r.numeric_ms
                        for r in run.find(matrix=matrix, work=work, device="cpu", who=who, threads=t)
                        if variant in (None, r.variant)
                    ),
                    None,
                )
                for t in counts
            ]
            if any(row):
                lines.append((matrix, who, *row))
    return table(("matrix", "library", *(f"{t} threads" for t in counts)), lines)


def page(run: Run) -> str:
    """The whole result as Markdown: the bars first, then a row a matrix, then every variant."""
    text = run.heading() + "\n## Bars: peer's time over ours, geometric mean and least\n\n" + bar_table(run)
    text += (
        "\nTimes are medians in ms; each matrix counts once, solves with L and with U are two cases. Errors: of "
        "factors relative to the sequential CPU factors, of solves backward. The tridiagonal matrix, one row a level, "
        "is in no mean.\n"
    )

    def add(title: str, body: str):
        nonlocal text
        if len(body.splitlines()) > 2:
            text += f"\n## {title}\n\n{body}"

    for device, threads in dict.fromkeys((r.device, r.threads) for r in run.records if r.work != "gmres"):
        where = "GPU" if device == "gpu" else f"CPU, {threads} thread{'s'[: threads > 1]}"
        add(f"SpTRSV, {where}", solve_table(run, device, threads))
        for work in ("ilu0", "ic0"):
            add(f"{work.upper()}, {where}", factor_table(run, work, device, threads))
        add(f"Auto against the best variant, {where}", regret_table(run, device, threads))
        for work in ("trsv_lower", "trsv_upper", "ilu0", "ic0"):
            add(f"Every variant of {work}, {where} (numeric ms)", variant_table(run, work, device, threads))
    add("Wrong results, in no ratio", wrong_table(run))
    add("GMRES(30) with ILU0 to 1e-8, set-up included, GPU", gmres_table(run))
    for work in ("ilu0", "trsv_lower", "trsv_upper"):
        add(f"Threads, {work} (numeric ms)", thread_table(run, work))
    return text + run.footing()


# The run --------------------------------------------------------------------------------------------------------------


def measure_gpu(run: Run, case: Case, parts: Iterable[str]) -> None:
    """Everything but whole solves on the GPU for one matrix."""
    if "trsv" in parts:
        for side in SIDES:
            measure.cusparse_triangular(run, case, side)
            measure.triangular(run, case, side, "gpu", approximate=True)
    if "ilu0" in parts:
        measure.cusparse_factorization(run, case, "ilu0")
        measure.factorization(run, case, "ilu0", "gpu")
    if "ic0" in parts and case.cholesky is not None:
        measure.cusparse_factorization(run, case, "ic0")
        measure.factorization(run, case, "ic0", "gpu")
    release_gpu()


def measure_cpu(run: Run, case: Case, parts: Iterable[str], threads: Sequence[int]) -> None:
    """Everything on the CPU for one matrix, on each number of threads; approximate solves on the last number only."""
    import finelu

    for count in threads:
        finelu.set_num_threads(count)
        if "ilu0" in parts:
            measure.factorization(run, case, "ilu0", "cpu", count)
            if mkl.available():
                measure.mkl_ilu0(run, case, count)
        if "ic0" in parts and case.cholesky is not None:
            measure.factorization(run, case, "ic0", "cpu", count)
        for side in SIDES if "trsv" in parts else ():
            measure.triangular(run, case, side, "cpu", count, approximate=count == threads[-1])
            if mkl.available():
                measure.mkl_triangular(run, case, side, count)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims.spine", description=__doc__)
    add_device(parser, "on the GPU, with cuSPARSE and CuPy", "on the CPU, with MKL")
    parser.add_argument(
        "--threads", default="2", help="numbers of threads on the CPU: 1,2,4,8,16 (default: %(default)s)"
    )
    parser.add_argument("--parts", default=",".join(PARTS), help="which of %(default)s")
    parser.add_argument("--gmres-limit", type=float, default=60.0, help="seconds for each of CuPy's solves")
    add_options(parser)
    options = parser.parse_args(argv)

    gpu = wants_gpu(options)
    parts, threads = chosen_parts(parser, options.parts, PARTS), [int(t) for t in options.threads.split(",")]
    run = new_run("spine-gpu" if gpu else "spine-cpu", gpu=gpu, machine_name=options.machine)
    run.options = {"parts": options.parts} | ({} if gpu else {"threads": options.threads})
    if not gpu and (too_many := [t for t in threads if t > run.machine["cores"]]):
        run.left_out["threads"] = f"{too_many}: this machine has {run.machine['cores']} cores"
        threads = [t for t in threads if t not in too_many] or [run.machine["cores"]]

    budget = Budget(options.budget)
    cases: list[Case] = []

    def measure_one(case: Case) -> None:
        if gpu:
            measure_gpu(run, case, parts)
            cases.append(case)
        else:
            measure_cpu(run, case, parts, threads)
        print(summary(run, case.name), flush=True)

    complete = over_suite(run, options, budget, measure_one)
    if complete and "gmres" in parts:
        complete = whole_solves(run, options, budget, cases)
    run.options["seconds"] = round(budget.spent())
    path = run.publish(options.out, page(run))
    print("\n" + bar_table(run))
    for name, why in run.left_out.items():
        print(f"left out: {name}: {why}")
    print(f"{len(run.failures)} failures; {path}")
    return 0 if complete else 1


def whole_solves(run: Run, options: argparse.Namespace, budget: Budget, cases: Sequence[Case]) -> bool:
    """GMRES on every case, those with fewest entries first; False if interrupted."""
    try:
        for case in sorted(cases, key=lambda case: case.A.nnz):
            if budget.over():
                run.left_out[f"{case.name} (gmres)"] = "the budget was spent"
            elif not case.problem.apart:
                measure.gmres_gpu(run, case, min(options.gmres_limit, max(budget.left(), 1.0)))
                run.save(options.out)
                print(f"{budget.spent():5.0f} s  {summary(run, case.name, ('gmres',))}", flush=True)
    except KeyboardInterrupt:
        return False
    return True


def summary(run: Run, matrix: str, parts: Sequence[str] = ("trsv_lower", "trsv_upper", "ilu0", "ic0")) -> str:
    """One line of times and ratios for the terminal."""
    pieces = [f"{matrix}: {run.matrices[matrix]['levels']} levels"]
    for work, device, threads in dict.fromkeys((r.work, r.device, r.threads) for r in run.find(matrix=matrix)):
        if work not in parts:
            continue
        record = ours(run, matrix, work, device, threads)
        peer = best_peer(run, matrix, work, device, "numeric_ms", threads)
        if record:
            factor = ratio(peer, record.numeric_ms)
            gain = f" ({factor:.2f}x)" if factor else ""
            pieces.append(f"{work}{f'@{threads}' if threads else ''} {record.numeric_ms:.3g} ms{gain}")
    return ", ".join(pieces)


if __name__ == "__main__":
    command(main)
