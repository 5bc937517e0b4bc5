"""Tables 1 to 4 and Figures 9 and 10 of the block ILU paper from a record, with the paper's numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.harness.record import Record, Run
from benchmarks.harness.table import ratio, table
from benchmarks.papers.fgbilu_cpu import AGREE

WORKS = ("factor", "solve", "residual")
VARIANTS = ("CL", "CL, pivoting", "CL, launches", "ACC", "BSR")  # of finelu on the GPU
TITLES = {"factor": "factorization", "solve": "triangular solve", "residual": "residual", "overall": "overall"}
TABLE_1 = {  # iteration: sum of squares of the residuals, sequential and FGBILU
    0: (0.542674993335e05, 0.542674993335e05),
    1: (0.170814598038e04, 0.170814598038e04),
    2: (0.131446936261e03, 0.131446936261e03),
    11: (0.138239874038e-05, 0.138239874038e-05),
    12: (0.180227555902e-06, 0.180227555901e-06),
    19: (0.126561189429e-12, 0.126561185003e-12),
}
TABLE_3 = {"factor": (3480.0, 122.0), "solve": (840.0, 60.4), "residual": (510.0, 32.4)}  # ns a point, n = 6
TABLE_4 = {  # ns a thread, FLOP, bytes, GB/s, GFLOPS
    "factor": (3.38, 48, 56, 16.6, 14.2),
    "solve": (1.68, 8, 68, 40.5, 4.8),
    "residual": (5.41, 42, 360, 66.5, 7.8),
}
# variant of a sequential record -> its column in Table 1; the others are compared with the first present one
TITLES_OF_STEPS = {"LU": "sequential, LU", "natural order": "sequential, Gauss-Jordan"}
CL = {"device": "gpu", "who": "finelu", "variant": "CL"}
LAUNCHES = {"device": "gpu", "who": "finelu", "variant": "CL, launches"}
SEQUENTIAL = {"who": "sequential"}


# Counting -------------------------------------------------------------------------------------------------------------


def threads_of_a_point(work: str, n: int) -> int:
    """Table 2."""
    return n if work == "residual" else n * n


def flops(work: str, n: int) -> int:
    """Multiplications and divisions a point, as Table 2 counts them."""
    return {"factor": 8 * n**3, "solve": 8 * n**2, "residual": 7 * n**2}[work]


def bytes_of_paper(work: str, n: int) -> int:
    """Bytes a point, as Table 2 counts them."""
    return 8 * {"factor": 7 * n**2, "solve": 8 * n**2 + 3 * n, "residual": 7 * n**2 + 3 * n}[work]


def bytes_to_move(work: str, n: int, shape: Sequence[int]) -> int:
    """Bytes that have to move between memory and processor on the whole grid, blocks that point outside left out.

    The factorization reads each block of A once and writes D; a solve reads each block off the diagonal once and D
    twice, once a sweep, reads b, writes and reads what is between the sweeps, and writes x; the residual reads each
    block, x and b once and writes r.
    """
    cells = math.prod(shape)
    off = 6 * cells - 2 * sum(cells // s for s in shape)
    blocks, vectors = {
        "factor": (off + 2 * cells, 0),
        "solve": (off + 2 * cells, 4 * cells),
        "residual": (off + cells, 3 * cells),
    }[work]
    return 8 * (blocks * n**2 + vectors * n)


def digits(value: float, reference: float) -> float:
    """To how many decimal digits two positive numbers agree; 16 if they are the same."""
    apart = abs(value - reference) / abs(reference)
    return 16.0 if apart == 0 else min(16.0, -math.log10(apart))


def as_printed(value: float) -> str:
    """A positive number with 12 digits, as the paper prints it: 0.542674993335E+05."""
    mantissa, _, exponent = f"{value:.11e}".partition("e")
    return f"0.{mantissa.replace('.', '')}E{int(exponent) + 1:+03d}"


def first_apart(value: float, reference: float) -> int | None:
    """The first of 12 printed digits in which two numbers differ, from 1 on; None if none does."""
    one, other = as_printed(value), as_printed(reference)
    if one.partition("E")[2] != other.partition("E")[2]:
        return 1
    apart = (k for k, (a, b) in enumerate(zip(one[2:], other[2:], strict=True), 1) if a != b)
    return next(apart, None)


# Measurements ---------------------------------------------------------------------------------------------------------


STEPS, CORRECTIONS = 20, 3  # of Table 1; of Figures 9 and 10


def sound(record: Record) -> bool:
    """Whether a result was right; the ACC style alone may be the reference of a large grid, with nothing to compare."""
    if record.error is None:
        return record.variant == "ACC"
    return record.error <= AGREE


def columns(run: Run) -> dict[str, dict[str, Any]]:
    """Title of a column -> which records it shows (the best where several)."""
    threads = sorted({r.threads for r in run.records if (r.device, r.who) == ("cpu", "finelu") and r.work in WORKS})
    every: dict[str, dict[str, Any]] = {"sequential": {"who": "sequential"}}
    every |= {f"CPU, {t}": {"device": "cpu", "who": "finelu", "threads": t} for t in threads}
    every |= {f"GPU {v}": {"device": "gpu", "who": "finelu", "variant": v} for v in VARIANTS}
    return every | {"cuSPARSE": {"who": "cusparse"}, "MKL": {"who": "mkl"}, "ilupp": {"who": "ilupp"}}


def best(run: Run, name: str, work: str, **which) -> Record | None:
    """The fastest sound record."""
    found = [r for r in run.find(matrix=name, work=work, **which) if sound(r) and r.numeric_ms]
    return min(found, key=lambda r: r.numeric_ms, default=None)


def ms(run: Run, name: str, work: str, **which) -> float | None:
    """Milliseconds of one sweep; of "overall" those of a factorization, four solves and three residuals."""
    if work == "overall":
        residual = which | (
            {"variant": "CL"} if which.get("variant") in ("ACC", "CL, pivoting", "CL, launches") else {}
        )
        each = [ms(run, name, w, **(residual if w == "residual" else which)) for w in WORKS]
        if None in each:
            return None
        factor, solve, left = each
        return factor + (CORRECTIONS + 1) * solve + CORRECTIONS * left
    record = best(run, name, work, **which)
    return record and record.numeric_ms


def per_point(run: Run, name: str, work: str, **which) -> float | None:
    """Nanoseconds a point."""
    found = ms(run, name, work, **which)
    return found and 1e6 * found / run.matrices[name]["cells"]


def of_part(run: Run, part: str) -> list[str]:
    """The matrices of a part, small ones (Figure 9) or few unknowns (Figure 10) first."""
    names = [m for m, f in run.matrices.items() if f["part"] == part]
    return sorted(names, key=lambda m: run.matrices[m]["cells" if part == "sizes" else "n"])


def bandwidth(run: Run) -> float | None:
    """GB/s of a copy on the GPU."""
    return run.options.get("copy GB/s")


def over_copy(run: Run, name: str, work: str, **which) -> float | None:
    """The time over that in which a copy moves the bytes that have to move."""
    found, gbs = ms(run, name, work, **which), bandwidth(run)
    fact = run.matrices[name]
    return found and gbs and found * 1e6 * gbs / bytes_to_move(work, fact["n"], fact["shape"])


# Tables ---------------------------------------------------------------------------------------------------------------


def bars(run: Run) -> list[tuple]:
    """(what, matrix, peer, wanted, peer's ms, our ms, reached, holds) of every bar that was measured."""
    lines: list[tuple] = []

    def faster(what: str, name: str, peer: str, wanted: float, theirs: float | None, ours: float | None) -> None:
        reached = ratio(theirs, ours)
        if reached is not None:
            holds = "yes" if reached >= wanted else "no"
            lines.append((what, name, peer, f">= {wanted:g}x", theirs, ours, reached, holds))

    def total(name: str, **which) -> float | None:
        both = [ms(run, name, work, **which) for work in ("factor", "solve")]
        return None if None in both else sum(both)

    names = of_part(run, "sizes")
    large = [m for m in names if run.matrices[m]["cells"] >= 65**3]
    for name in large:
        for work, wanted in (("factor", 200), ("solve", 60)):
            peer, ours = (ms(run, name, work, **which) for which in (SEQUENTIAL, CL))
            faster(f"{TITLES[work]}, GPU", name, "sequential BILU, one core", wanted, peer, ours)
    for name in large:
        limit = over_copy(run, name, "residual", **CL)
        if limit is not None:
            ours = ms(run, name, "residual", **CL)
            holds = "yes" if limit <= 1.5 else "no"
            lines.append(("residual, GPU", name, "copy of its bytes", "<= 1.5x", ours / limit, ours, limit, holds))
    for name in large:
        for work, wanted, peer in (("factor", 8, "cuSPARSE bsrilu02"), ("solve", 3, "cuSPARSE bsrsv2, L and U")):
            faster(f"{TITLES[work]}, GPU", name, peer, wanted, ms(run, name, work, who="cusparse"),
                   ms(run, name, work, **CL))  # fmt: skip
    for name in names[:1]:
        if run.matrices[name]["shape"] == [15, 15, 15]:
            faster("factorization and solve, GPU", name, "sequential BILU, one core", 1,
                   total(name, **SEQUENTIAL), total(name, **CL))  # fmt: skip
    two = {"device": "cpu", "who": "finelu", "threads": 2}
    for name in large:
        for work in WORKS:
            faster(f"{TITLES[work]}, CPU, 2 threads", name, "sequential BILU, one core", 1.7,
                   ms(run, name, work, **SEQUENTIAL), ms(run, name, work, **two))  # fmt: skip
        for who in ("mkl", "ilupp"):
            faster("factorization, CPU, 2 threads", name, f"{who}, scalar ILU(0)", 2,
                   ms(run, name, "factor", who=who), ms(run, name, "factor", **two))  # fmt: skip
    reference, _ = compared(run)
    for title, agreeing in agreement(run).items():
        found = norm_digits(run, title)
        holds = "yes" if found >= 12 else "no"
        what = f"Table 1, {title}"
        lines.append(
            (f"{what}: residual norms over the first", "", reference, ">= 12 digits", None, None, found, holds)
        )
        paper = f"paper: {digits(*TABLE_1[19][::-1]):.3g} digits"
        lines.append(
            (f"{what}: sums of squares, each over itself", "", reference, paper, None, None, min(agreeing), "")
        )
    return lines


def bar_table(run: Run) -> str | None:
    header = ("work", "matrix", "compared with", "wanted", "peer's ms", "our ms", "reached", "holds")
    lines = bars(run)
    return table(header, lines) if lines else None


def histories(run: Run) -> dict[str, list[float]]:
    """Title -> sums of squares: the sequential ones first, of these that with L U factors of the diagonal blocks."""
    found = {}
    for r in run.find(work="steps"):
        title = f"{r.device.upper()} {r.variant}"
        if r.who == "sequential":
            title = TITLES_OF_STEPS[r.variant]
        found[title] = r.detail["history"]
    first = list(TITLES_OF_STEPS.values())
    return dict(sorted(found.items(), key=lambda item: first.index(item[0]) if item[0] in first else len(first)))


def compared(run: Run) -> tuple[str | None, dict[str, list[float]]]:
    """The title of the sequential history that the others are compared with, or None, and the others."""
    found = histories(run)
    reference = next((title for title in TITLES_OF_STEPS.values() if title in found), None)
    return reference, {title: sums for title, sums in found.items() if title != reference and reference}


def agreement(run: Run) -> dict[str, list[float]]:
    """Title -> digits in which each iteration agrees with the sequential one."""
    reference, others = compared(run)
    expected = histories(run).get(reference or "", [])
    return {title: [digits(v, e) for v, e in zip(sums, expected, strict=True)] for title, sums in others.items()}


def norm_digits(run: Run, title: str) -> float:
    """Digits in which all residual norms agree with the sequential ones, counted from the size of the first.

    A residual is known to rounding errors of about the size of b times the precision: where the iteration has made it
    small, its own leading digits are fewer.
    """
    ours, reference = (np.sqrt(histories(run)[t]) for t in (title, compared(run)[0] or ""))
    return min(digits(1.0 + apart, 1.0) for apart in abs(ours - reference) / reference[0])


def table_1(run: Run) -> str | None:
    """12 digits of each, as the paper prints them, and the first in which they are not those of the sequential code."""
    reference, others = compared(run)
    if reference is None or not others:
        return None
    lines = []
    for k, expected in enumerate(histories(run)[reference]):
        ours = [v for sums in others.values() for v in (as_printed(sums[k]), first_apart(sums[k], expected))]
        paper = TABLE_1.get(k)
        theirs = (*map(as_printed, paper), first_apart(paper[1], paper[0])) if paper else ("", "", "")
        lines.append((k, as_printed(expected), *ours, *theirs))
    header = ["iteration", reference, *(h for title in others for h in (title, "apart from digit"))]
    return table([*header, "paper, sequential, LU", "paper, FGBILU", "apart from digit"], lines)


def point_table(run: Run, part: str, work: str) -> str | None:
    """A panel of Figure 9 or 10: ns a point, a line for each matrix."""
    names, every = of_part(run, part), columns(run)
    cells = {m: {title: per_point(run, m, work, **which) for title, which in every.items()} for m in names}
    shown = [title for title in every if any(cells[m][title] for m in names)]
    if not shown:
        return None
    lines = [(m, run.matrices[m]["cells"], *(cells[m][title] for title in shown)) for m in names]
    return table(("matrix", "cells", *shown), lines)


def table_2(n: int = 6) -> str:
    """Complexity and data, in the paper's counting, and what has to move on a large grid."""
    endless = (10**6, 10**6, 10**6)
    lines = []
    for work in WORKS:
        moved = bytes_to_move(work, n, endless) / math.prod(endless)
        lines.append((TITLES[work], threads_of_a_point(work, n), flops(work, n), bytes_of_paper(work, n), round(moved)))
    return table(("task", "threads", "FLOP", "bytes, paper's count", "bytes that must move"), lines)


def table_3(run: Run) -> str | None:
    """ns a point of the sequential code and of the GPU, and the ratio; the paper's below, which has launches."""
    lines: list[tuple] = []
    for work in WORKS:
        for name in of_part(run, "sizes"):
            one, ours, launched = (per_point(run, name, work, **which) for which in (SEQUENTIAL, CL, LAUNCHES))
            if one and ours and run.matrices[name]["cells"] >= 65**3:
                lines.append((TITLES[work], name, one, ours, one / ours, launched, ratio(one, launched)))
        if any(line[0] == TITLES[work] for line in lines):
            one, launched = TABLE_3[work]
            lines.append((TITLES[work], "paper, M2050", one, None, None, launched, one / launched))
    header = ("task", "matrix", "sequential, ns", "GPU CL, ns", "speed-up", "GPU CL, launches, ns", "speed-up")
    return table(header, lines) if lines else None


def table_4(run: Run) -> str | None:
    """Per thread in the paper's counting, then what has to move, and its share of a copy's bandwidth."""
    lines: list[tuple] = []
    for work in WORKS:
        for name in of_part(run, "sizes"):
            fact = run.matrices[name]
            point = per_point(run, name, work, **CL)
            if point is None or fact["cells"] < 65**3:
                continue
            n = fact["n"]
            threads, counted, flop = threads_of_a_point(work, n), bytes_of_paper(work, n), flops(work, n)
            must = bytes_to_move(work, n, fact["shape"]) / fact["cells"]
            share = over_copy(run, name, work, **CL)
            thread = point / threads, flop // threads, counted // threads
            rates = counted / flop, counted / point, flop / point, must / point
            lines.append((TITLES[work], name, *thread, *rates, share and 100 / share))
        if lines and lines[-1][0] == TITLES[work]:
            ns, flop, data, rate, gflops = TABLE_4[work]
            lines.append((TITLES[work], "paper, M2050", ns, flop, data, data / flop, rate, gflops, None, None))
    header = (
        "task",
        "matrix",
        "ns a thread",
        "FLOP",
        "bytes",
        "B/F",
        "GB/s, paper's count",
        "GFLOPS",
        "GB/s that must move",
        "% of a copy",
    )
    return table(header, lines) if lines else None


def peer_table(run: Run) -> str | None:
    """cuSPARSE by policy and storage, with the analyses, and ours: ms."""
    lines: list[tuple] = []
    for name in of_part(run, "sizes"):
        factors = run.find(matrix=name, work="factor", who="cusparse")
        for factor in factors:
            solve = run.one(matrix=name, work="solve", who="cusparse", variant=factor.variant)
            if solve:
                numbers = factor.analysis_ms, factor.numeric_ms, solve.analysis_ms, solve.numeric_ms
                sides = solve.detail["lower_ms"], solve.detail["upper_ms"]
                lines.append((name, f"cuSPARSE {factor.variant}", *numbers, *sides, factor.error))
        for variant in VARIANTS if factors else ():
            ours = run.one(matrix=name, work="factor", who="finelu", variant=variant)
            solve = run.one(matrix=name, work="solve", who="finelu", variant=variant)
            if ours and solve:
                numbers = ours.analysis_ms, ours.numeric_ms, solve.analysis_ms, solve.numeric_ms
                lines.append((name, f"finelu {variant}", *numbers, None, None, ours.error))
    header = ("matrix", "who", "analysis", "factorization", "analysis, solves", "L and U", "L", "U", "apart")
    return table(header, lines) if lines else None


def wrong_table(run: Run) -> str | None:
    """Results that counted in no ratio."""
    lines = [(r.matrix, r.work, r.who, r.variant, r.threads, r.error) for r in run.records
             if r.work in WORKS and not sound(r)]  # fmt: skip
    return table(("matrix", "work", "who", "variant", "threads", "apart"), lines) if lines else None


def tables(run: Run) -> dict[str, str | None]:
    """Title -> body, None where nothing of it was measured."""
    found: dict[str, str | None] = {"What was wanted": bar_table(run)}
    found["Table 1: sums of squares of the residuals"] = table_1(run)
    for number, part in (("9", "sizes"), ("10", "unknowns")):
        for panel, work in zip("abcd", ("overall", *WORKS), strict=True):
            found[f"Figure {number}({panel}): {TITLES[work]}, ns a point"] = point_table(run, part, work)
    found["Table 2: complexity and data a point, n = 6"] = table_2()
    found["Table 3: ns a point, n = 6"] = table_3(run)
    found["Table 4: a thread's time, work and data, n = 6"] = table_4(run)
    found["cuSPARSE: analyses, policies, storage, ms"] = peer_table(run)
    return found
