"""Claim: every figure in the tables of README.md and docs/ between its marks is what its record says.

    python -m benchmarks.figures            # write the tables anew from the records named here and in records.py
    python -m benchmarks.figures --check    # status 1, and which file, if they differ

After a new measurement: name its record here (one line), run this, and read what the tables then say. Each row names
what is called, the peer and its setting, the number of matrices, geometric mean, median and worst of the peer's time
over finelu's, and on how many finelu is slower. A row whose record is None is left out.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import front, losses, records
from benchmarks.claims import calls, gallery, memory, parilut, parilut_quality, robustness_tables, spine
from benchmarks.claims import solve_tables as solve
from benchmarks.front import load
from benchmarks.harness import ROOT
from benchmarks.harness.options import command
from benchmarks.harness.record import Run
from benchmarks.harness.table import mean, table
from benchmarks.papers import fgbilu_tables as fgbilu
from benchmarks.papers import ilupack_tables, parilut_tables
from finelu.errors import FileError

# The records: names in benchmarks/results, without ending.
SOLVE = "solve-2-core-intel-xeon-2026-11-22"  # which systems are solved, 60 s, all libraries
SOLVE_TIMES = "solve-2-core-intel-xeon-2026-11-23"  # times compared with SciPy at its best settings
CALLS: str | None = "calls-2-core-intel-xeon-2026-11-23"  # of benchmarks.claims.calls
CALLS_16: str | None = "calls-16-core-intel-xeon-2026-11-23"
SOLVE_DIRECT = "solve-2-core-amd-epyc-with-extras-2026-11-23"  # with nbklu, feral-solver and pypardiso installed
SPINE_GPU = "spine-gpu-nvidia-h200-2026-11-27"
SPINE_GMRES = "spine-gpu-gmres-nvidia-h200-2026-11-21"
SPINE_CPU = "spine-cpu-2-core-amd-epyc-2026-11-21"
PARILUT_GPU = "parilut-gpu-nvidia-h200-2026-11-27"
PARILUT_CPU = "parilut-cpu-2-core-intel-xeon-2026-11-23"
BLOCKS = "fgbilu-nvidia-h100-2026-11-26"
MEMORY = "memory-2-core-amd-epyc-2026-11-27"
PAPER_TABLES = "parilut-papers-nvidia-h200-tables-2026-11-27"  # Tables 2 and 3 of the ParILUT paper
QUALITY = "parilut-quality-2-core-amd-epyc-2026-11-27"  # iterations compared with Ginkgo's and others
ILUPACK = "ilupack-nvidia-h200-2026-11-27"  # the variants of the paper on GMRES on GPUs
ROBUSTNESS = "robustness-2-core-intel-xeon-2026-11-21"  # how many real systems each solver solves, and its picture
PICTURED = "gallery-intel-xeon-1-core-2026-11-28"  # the systems of the programs whose pictures the gallery shows
README, MEASURED, PARILUT = ROOT / "README.md", ROOT / "docs" / "measured.md", ROOT / "docs" / "parilut.md"
MULTILEVEL, RIVALS = ROOT / "docs" / "multilevel.md", ROOT / "docs" / "benchmarks.md"
GALLERY, SOLVE_GUIDE = ROOT / "docs" / "gallery.md", ROOT / "docs" / "solve.md"
BEGIN, END = "<!-- figures {}: python -m benchmarks.figures writes them -->", "<!-- end of figures -->"
GRID = "65x65x65"  # of block ILU: 6 unknowns a cell


@dataclass(frozen=True)
class Figure:
    """A row: what is called where, the peer, and matrix -> the peer's time over ours.

    kernel : of a kernel alone, on the GPU by CUDA events, and not of a call.
    sides : 2 where a matrix counts twice, with L and with U.
    """

    called: str
    machine: str
    peer: str
    record: str
    found: dict[str, float]
    kernel: bool = False
    sides: int = 1

    @property
    def worst(self) -> str:
        return min(self.found, key=lambda name: self.found[name])

    def cells(self, link: str) -> tuple:
        count = f"{len(self.found) // self.sides}" + (", L and U" if self.sides == 2 else "")
        lost = sum(r < 1 for r in self.found.values())
        figures = (shown(mean(self.found.values())), shown(median(self.found.values())))
        least = f"{shown(self.found[self.worst])} ({self.worst})"
        age = "older " if self.record in records.reasons() else ""
        return (self.called, self.machine, self.peer, count, *figures, least, lost, link.format(self.record, age))


def shown(value: float | None) -> str:
    """Three digits from one to a hundred, else two."""
    assert value is not None
    return f"{value:.3g}" if 1 <= value < 100 else f"{value:.2g}"


def where(run: Run) -> str:
    if "gpu" in run.machine:
        return f"one {run.machine['gpu'].split()[1]}"
    return f"{run.machine['cores']} cores, {'Intel Xeon' if 'Xeon' in run.machine['cpu'] else 'AMD EPYC'}"


# The rows -------------------------------------------------------------------------------------------------------------


def solve_figures() -> Iterator[Figure]:
    times, everybody = load(SOLVE_TIMES), load(SOLVE)
    scipy = (
        "SciPy, the fastest of `splu` (COLAMD), `splu` (MMD_AT_PLUS_A, SymmetricMode) and `spilu` with `gmres`, limit "
        f"{times.options['limit, seconds']:.0f} s"
    )
    called = "`fl.solve(A, b)`, 10,000 rows or more"
    yield Figure(called, where(times), scipy, SOLVE_TIMES, solve.ratios(times, solve.SCIPY))
    others = solve.ratios(everybody, solve.peers(everybody))
    peer = "the fastest of SciPy's, pyamg's `solve` and ilupp's ILU with `gmres`, default settings"
    yield Figure(called, where(everybody), peer, SOLVE, others)
    yield Figure("`fl.solve(A, b)`, any size", where(times), scipy, SOLVE_TIMES, solve.ratios(times, solve.SCIPY, 0))
    others = solve.ratios(everybody, solve.peers(everybody), 0)
    yield Figure("`fl.solve(A, b)`, any size", where(everybody), peer, SOLVE, others)
    direct = load(SOLVE_DIRECT)
    called = "`fl.solve(A, b)` with `finelu[direct,mkl]`, 2,000 rows or more"
    scipy = "SciPy, the fastest of `splu` (COLAMD), `splu` (MMD_AT_PLUS_A, SymmetricMode), `spilu`, limit 10 s"
    yield Figure(called, where(direct), scipy, SOLVE_DIRECT, solve.ratios(direct, solve.SCIPY, 2000))
    peer = (
        "the fastest of SciPy's, nbklu, feral, pypardiso (or with a triangle of symmetric A), pyamg, ilupp, limit 10 s"
    )
    yield Figure(called, where(direct), peer, SOLVE_DIRECT, solve.ratios(direct, solve.peers(direct), 2000))


def call_figures() -> Iterator[Figure]:
    for name in (CALLS, CALLS_16):
        if name is None:
            continue
        run = load(name)
        for work in calls.PEERS:
            for variant in calls.PEERS[work]:
                found = calls.ratios(run, work, variant)
                if found:
                    yield Figure(calls.OURS[work], where(run), calls.CALLED[work, variant], name, found)


def bar(name: str, work: str) -> dict[str, float]:
    (wanted,) = [b for b in spine.BARS if b.work == work]
    return dict(wanted.ratios(load(name)))


def once_on_the_cpu(threads: int = 2) -> dict[str, float]:
    """Analysis and kernel of a single ILU(0), compared with MKL's, which has no analysis."""
    return dict(spine.ratios(load(SPINE_CPU), "ilu0", "cpu", "total_ms", threads))


def ginkgo(name: str, work: str, device: str, threads: int) -> dict[str, float]:
    run = load(name)
    pairs = ((r, parilut.peer_ms(run, r)) for r in run.find(work=work, device=device, threads=threads))
    return {r.matrix: ms / r.numeric_ms for r, ms in pairs if ms and r.numeric_ms}


def factor_figures() -> Iterator[Figure]:
    gpu, cpu = where(load(SPINE_GMRES)), where(load(PARILUT_CPU))
    whole = bar(SPINE_GMRES, "GMRES(30)+ILU0 to 1e-8, GPU")
    yield Figure("`ILU0().factor(A)` and `gmres` to 1e-8", gpu,
                 "CuPy, `spilu(fill_factor=1)` and `gmres`, which tests for convergence every 30 iterations, stopped "
                 "after 6 to 60 s", SPINE_GMRES, whole)  # fmt: skip
    apart = "`{}.factor(A)`, {}analyses of its triangular solves apart"
    eliminating = load(PARILUT_GPU).one(work="ParILUT", device="gpu")
    assert eliminating is not None
    exact = f"{eliminating.detail['steps']} steps with exact values, "
    swept = '{}(steps=5, sweep="synchronous")'.format

    peer = "Ginkgo 1.12, {}, times measured earlier"
    for kind in ("ParILUT", "ParICT"):
        for work, recipe, how in ((kind, f"{kind}()", exact), (kind + parilut.BY_SWEEPS, swept(kind), "")):
            found = ginkgo(PARILUT_GPU, work, "gpu", 0)
            called = apart.format(recipe, how)
            yield Figure(called, gpu, peer.format("CUDA, 5 steps of sweeps, fill 1"), PARILUT_GPU, found)
    found = ginkgo(PARILUT_GPU, "ParILU", "gpu", 0)
    yield Figure(apart.format("ParILU()", ""), gpu, peer.format("CUDA, 5 sweeps"), PARILUT_GPU, found)
    host = {matrix: gain for gain, matrix in parilut.gains_over_cpu(load(PARILUT_GPU), 16)}
    yield Figure(apart.format("ParILUT()", exact), gpu, "the same call on 16 cores of that machine", PARILUT_GPU, host)
    found = ginkgo(PARILUT_CPU, "ParILUT", "cpu", 2)
    yield Figure(
        apart.format("ParILUT()", exact),
        cpu,
        peer.format("OpenMP, 2 threads, 5 steps of sweeps, fill 1"),
        PARILUT_CPU,
        found,
    )


def kernel_figures() -> Iterator[Figure]:
    gpu, cpu = where(load(SPINE_GPU)), where(load(SPINE_CPU))
    for called, peer, work in (
        ("triangular solve", "cuSPARSE SpSV, analysis kept", "SpTRSV solve, GPU"),
        ("its analysis", "SpSV's analysis", "SpTRSV analysis, GPU"),
        ("triangular solve with L", "Ginkgo 1.12, times measured earlier", "SpTRSV lower solve, GPU"),
        ("ILU(0), new values", "cuSPARSE csrilu02, its better policy", "ILU0 numeric, GPU"),
        ("ILU(0), analysis included", "csrilu02, its better total", "ILU0 analysis + numeric, GPU"),
        ("IC(0), new values", "cuSPARSE csric02, its better policy", "IC0 numeric, GPU"),
        ("IC(0), analysis included", "csric02, its better total", "IC0 analysis + numeric, GPU"),
    ):
        yield Figure(called, gpu, peer, SPINE_GPU, bar(SPINE_GPU, work), kernel=True,
                     sides=2 if work in ("SpTRSV solve, GPU", "SpTRSV analysis, GPU") else 1)  # fmt: skip
    numeric = bar(SPINE_CPU, "ILU0 numeric, CPU, 2 threads")
    yield Figure("ILU(0), new values", cpu, "MKL dcsrilu0", SPINE_CPU, numeric, kernel=True)
    yield Figure("ILU(0), analysis included", cpu, "MKL dcsrilu0", SPINE_CPU, once_on_the_cpu(), kernel=True)
    solves = bar(SPINE_CPU, "SpTRSV solve, CPU, 2 threads")
    yield Figure("triangular solve", cpu, "MKL trsv, optimized", SPINE_CPU, solves, kernel=True, sides=2)
    blocks = load(BLOCKS)
    for work, called, peer in (
        ("factor", "block ILU(0), 65³ cells of 6 unknowns, new values", "cuSPARSE bsrilu02, its better policy"),
        ("solve", "block ILU(0), the same, solve with L and U", "cuSPARSE bsrsv2, its better policy"),
    ):
        theirs = fgbilu.ms(blocks, GRID, work, who="cusparse")
        ours = fgbilu.ms(blocks, GRID, work, device="gpu", variant="CL, pivoting")
        if theirs and ours:
            yield Figure(called, where(blocks), peer, BLOCKS, {GRID: theirs / ours}, kernel=True)


def figures() -> list[Figure]:
    return [*solve_figures(), *call_figures(), *factor_figures(), *kernel_figures()]


# The tables -----------------------------------------------------------------------------------------------------------


def written(rows: Sequence[Figure], link: str, called: str) -> str:
    header = (called, "machine", "compared with", "matrices", "mean", "median", "worst", "slower on", "record")
    return table(header, (row.cells(link) for row in rows))


def of_memory() -> str:
    run = load(MEMORY)
    sizes = sorted(facts["n"] for facts in run.matrices.values())
    about = f"{len(sizes)} matrices of {sizes[0]:,} to {sizes[-1]:,} rows, int32 and float64 (`{MEMORY}`)"
    return f"Geometric means of up to {about}.\n\n{memory.claim_table(run)}"


def tables() -> dict[tuple[Path, str], str]:
    """(file, name of the table) -> its Markdown."""
    rows = figures()
    name = "{1}`{0}`"
    return {
        (README, "in front"): front.front(),
        (MEASURED, "as called"): written([row for row in rows if not row.kernel], name, "called"),
        (MEASURED, "of kernels"): written([row for row in rows if row.kernel], name, "kernel"),
        (MEASURED, "of memory"): of_memory(),
        (MEASURED, "of robustness"): robustness_tables.words(load(ROBUSTNESS), ROBUSTNESS),
        (GALLERY, "of the gallery"): gallery.summary(load(PICTURED)),
        (SOLVE_GUIDE, "of others"): losses.others(),
        (RIVALS, "lost"): losses.lost(),
        (RIVALS, "compared"): losses.compared(),
        (PARILUT, "of iterations"): parilut_quality.summary(load(QUALITY)),
        (PARILUT, "of the paper"): parilut_tables.summary(load(PAPER_TABLES)),
        (MULTILEVEL, "of one preconditioner"): ilupack_tables.summary(load(ILUPACK)),
        (MEASURED, "older"): table(
            ("record", "why it is older"), ((f"`{record}`", why) for record, why in records.reasons().items())
        ),
    }  # fmt: skip


def replaced(text: str, name: str, body: str) -> str:
    """The text with the table of this name between its marks; FileError if there are none."""
    begin = BEGIN.format(name)
    pattern = re.compile(re.escape(begin) + r"\n.*?" + re.escape(END), re.DOTALL)
    if not pattern.search(text):
        raise FileError(f"there is no {begin!r} with {END!r} behind it.")
    return pattern.sub(lambda _: f"{begin}\n\n{body}\n{END}", text, count=1)


def outdated() -> dict[Path, str]:
    """file -> its new text, for the files whose tables differ from the records."""
    texts: dict[Path, str] = {}
    for (path, name), body in tables().items():
        texts[path] = replaced(texts.get(path) or path.read_text(), name, body)
    return {path: text for path, text in texts.items() if text != path.read_text()}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figures", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say which file differs")
    options = parser.parse_args(argv)
    found = outdated()
    for path, text in found.items():
        print(f"{path}: {'differs from its records' if options.check else 'written'}", file=sys.stderr)
        if not options.check:
            path.write_text(text)
    return 1 if options.check and found else 0


if __name__ == "__main__":
    command(main)
