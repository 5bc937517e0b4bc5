"""Claim: a change leaves finelu as fast as it was: old over new at least 0.98, geometric mean, and 0.93 for each call.

Two source trees, each in a process of its own that lives for the whole run, make the same calls in turn:

    git worktree add /tmp/old main
    finelu bench pairs /tmp/old .                       # 6 minutes on two cores; status 1 if the claim does not hold
    finelu bench pairs /tmp/old . --gpu                 # 6 minutes on a GPU
    finelu bench pairs . .                              # how much two equal trees differ: the noise
    finelu bench pairs /tmp/old . --parts spine,solve --cases memplus,poisson7:30 --runs 9

(`python -m benchmarks.claims.pairs` is the same.) OLD and NEW are roots of checkouts; `src/finelu` below each is what
is measured, through its public names, by the process of benchmarks/claims/pairs_worker.py of this tree. The parts are
those of the benchmarks: spine, parilut, selection, fgbilu, ilupack and solve; each case, a matrix or a size, is made
or read once, here. After warm calls on both sides five runs follow, old and new in turn, and the one that begins
changes with each run; the one that waits is stopped (SIGSTOP), so that no idle thread of its BLAS takes time from the
other. A run of a call is the median of as many repeats as fit into 50 ms, 20 at most. "old/new" is the median of the
old runs over that of the new ones. A call that misses 0.93 gets five further runs, twice at most, and all runs count.
Two checks of it: "by CPU time", the same of the processor's time of all threads, which a busy machine disturbs less;
"by minima", the least run of old over that of new. Where a side gives something else (status, iterations, entries,
numbers) the table says what; on the CPU the claim does not hold then, except for a `solve`
that converges on both sides: its choices heed the clock.

On a GPU solves, updates and searches are timed as in the loop of a Krylov method, where launches overlap with work,
and whole calls from an idle device to an idle device.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Pipe
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.harness import ROOT
from benchmarks.harness.options import chosen_parts, command
from benchmarks.harness.record import Record, Run, new_run, revision
from benchmarks.harness.suite import files, matrix_folder, names_of
from benchmarks.harness.table import table
from finelu.errors import FileError, FineluError, ParameterError

# 400 to 91,125 rows, up to 0.1 s a solve on two cores: each kind of matrix that the ladder treats differently
SYSTEMS = (
    "poisson5:20,20", "662_bus", "bfw782a", "cage8", "orsirr_1", "bcsstk10", "stokes:16", "vem1", "nasa2146", "ani4",
    "of_hotRoom_h", "bcsstk16", "trilinos_nsjac_1", "convection_diffusion:20", "poisson5:90,90", "fv2", "cage10",
    "of_pitzDaily_p", "bayer10", "ng_helmholtz_k40", "memplus", "Trefethen_20000", "poisson7:30", "cage11",
    "lp_stocfor3_aug", "poisson7:45",
)  # fmt: skip
CASES = {
    "cpu": {
        "spine": ("memplus", "cage10", "of_pitzDaily_p", "nasa2146", "poisson5:200,200", "poisson7:30"),
        "parilut": ("of_pitzDaily_p", "cage10", "poisson7:20"),
        "selection": ("2^16", "2^20", "2^22"),
        "fgbilu": ("15^3, 6", "25^3, 6", "8^3, 20"),
        "ilupack": ("cage10", "fv2", "poisson5:100,100"),
        "solve": SYSTEMS,
    },
    "gpu": {
        "spine": ("memplus", "cage11", "of_pitzDaily_p", "ng_heatsink2d", "poisson5:1000,1000", "poisson7:100"),
        "parilut": ("of_pitzDaily_p", "cage11", "memplus", "poisson7:60"),
        "selection": ("2^16", "2^20", "2^24", "2^26"),
        "fgbilu": ("15^3, 6", "65^3, 6", "25^3, 20"),
        "ilupack": ("cage11", "fv2", "poisson5:300,300"),
        "solve": ("orsirr_1", "stokes:16", "poisson5:90,90", "fv2", "of_pitzDaily_p", "memplus", "cage11",
                  "convection_diffusion:40", "poisson7:80"),
    },
}  # fmt: skip
PARTS = tuple(CASES["cpu"])
RUNS, AGAIN = 5, 2  # runs of a side; how often a call that misses gets as many again
RUN_MS, MOST = 50.0, 20  # ms of a run, and repeats in it at most
MEAN, LEAST = 0.98, 0.93  # old over new
COMPILING = 900.0  # seconds within which a tree has to answer


# The process of one tree ----------------------------------------------------------------------------------------------


class Tree:
    """A source tree and the process that measures it; stopped while nothing is asked of it."""

    def __init__(self, root: Path, threads: int, device: str):
        self.root, source = root.resolve(), root.resolve() / "src"
        if not (source / "finelu" / "__init__.py").exists():
            raise FileError(f"{root}: there is no src/finelu here; name the root of a checkout.")
        self.pipe, theirs = Pipe()
        one = {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        program = ["benchmarks.claims.pairs_worker", str(theirs.fileno()), str(threads), device]
        self.process = subprocess.Popen(
            [sys.executable, "-m", *program],
            cwd=ROOT,
            env=os.environ | one | {"PYTHONPATH": str(source)},
            pass_fds=[theirs.fileno()],
        )
        theirs.close()
        loaded = Path(self._receive()).resolve()
        if source not in loaded.parents:
            self.close()
            raise FileError(
                f"{root}: its process imports {loaded}; take finelu out of this environment's site-packages."
            )

    def ask(self, *wanted: Any) -> Any:
        """The answer of the worker; the process runs as long as it takes."""
        self.process.send_signal(signal.SIGCONT)
        self.pipe.send(wanted)
        return self._receive()

    def _receive(self) -> Any:
        try:
            if not self.pipe.poll(COMPILING):
                raise FineluError(f"{self.root}: no answer within {COMPILING:.0f} s.")
            answer = self.pipe.recv()
        except EOFError:
            raise FineluError(f"{self.root}: its process has ended (status {self.process.wait()}).") from None
        self.process.send_signal(signal.SIGSTOP)
        return answer

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def both(old: Path, new: Path, threads: int, device: str) -> Iterator[list[Tree]]:
    trees: list[Tree] = []
    try:
        for root in (old, new):
            trees.append(Tree(root, threads, device))
        yield trees
    finally:
        for tree in trees:
            tree.close()


# A call ---------------------------------------------------------------------------------------------------------------


@dataclass
class Pair:
    """A call in both trees: the ms of each run, old and new."""

    part: str
    case: str
    call: str
    note: str = ""
    runs: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    processor: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))
    converged: bool = False  # both answers say so

    @property
    def ratio(self) -> float:
        """Old over new, of the medians."""
        old, new = map(median, self.runs)
        return old / new

    @property
    def by_processor(self) -> float:
        """The same of the processor's time of all threads; on a GPU, of the time until a call returned."""
        old, new = map(median, self.processor)
        return old / new

    @property
    def by_minima(self) -> float:
        old, new = map(min, self.runs)
        return old / new

    def __str__(self) -> str:
        return f"{self.part}, {self.case}: {self.call}"


def difference(old: tuple[str, np.ndarray], new: tuple[str, np.ndarray]) -> str:
    """In which way two answers differ, in words; "" where all numbers are the same."""
    (said, x), (said_new, x_new) = old, new
    words = [] if said == said_new else [f"{said} -> {said_new}"]
    if x.shape != x_new.shape:
        words.append(f"shape {x.shape} -> {x_new.shape}")
    elif not np.array_equal(x, x_new, equal_nan=True):
        words.append(f"by {np.abs(x - x_new).max() / max(np.abs(x).max(), np.finfo(float).tiny):.1e}")
    return ", ".join(words)


def measure(trees: Sequence[Tree], part: str, case: str, path: str, runs: int, least: float) -> list[Pair]:
    """Every call of a case; FineluError with the words of a tree that cannot make the calls."""
    old, new = (tree.ask("open", part, case, path) for tree in trees)
    for tree, answers in zip(trees, (old, new), strict=True):
        if "" in answers:
            raise FineluError(f"{tree.root}: {part}, {case}: {answers[''][0]}")
    pairs = [Pair(part, case, call, difference(old[call][:2], new[call][:2])) for call in old]
    for pair in pairs:
        pair.converged = all(answers[pair.call][0].startswith("converged") for answers in (old, new))
    repeats = {call: min(max(1, int(RUN_MS / max(old[call][2], new[call][2]))), MOST) for call in old}

    def once(pair: Pair, k: int) -> None:
        for side in (0, 1) if k % 2 == 0 else (1, 0):
            ms, processor = trees[side].ask("time", pair.call, repeats[pair.call])
            pair.runs[side].append(ms)
            pair.processor[side].append(processor)

    for k in range(runs):
        for pair in pairs:
            once(pair, k)
    for _ in range(AGAIN):
        for pair in pairs:
            if pair.ratio < least:
                for k in range(runs):
                    once(pair, k)
    return pairs


def matrix(name: str) -> sp.csr_matrix:
    """A gallery problem, or a real matrix of the folder; ParameterError if neither has the name."""
    path = files(matrix_folder()).get(name)
    return sp.csr_matrix(finelu.read_matrix(path) if path else finelu.gallery.problem(name))


# Tables ---------------------------------------------------------------------------------------------------------------


def pair_table(pairs: Sequence[Pair]) -> str:
    lines = [
        (p.part, p.case, p.call, len(p.runs[0]), *map(median, p.runs), f"{p.ratio:.3f}", f"{p.by_processor:.3f}",
         f"{p.by_minima:.3f}", p.note or "-")
        for p in pairs
    ]  # fmt: skip
    header = ("part", "case", "call", "runs", "old, ms", "new, ms", "old/new", "by CPU time", "by minima", "differs")
    return table(header, lines)


def part_table(pairs: Sequence[Pair]) -> str:
    """A row a part, and one for all: geometric mean, the worst call, how many calls give something else."""
    lines = []
    for part in (*dict.fromkeys(p.part for p in pairs), "all"):
        chosen = [p for p in pairs if part in (p.part, "all")]
        worst = min(chosen, key=lambda p: p.ratio)
        each = zip(*((p.ratio, p.by_processor, p.by_minima) for p in chosen), strict=True)
        shown = (f"{value:.3f}" for value in (*map(geometric_mean, each), worst.ratio))
        lines.append((part, len(chosen), *shown, str(worst), sum(bool(p.note) for p in chosen)))
    return table(("part", "calls", "old/new, mean", "by CPU time", "by minima", "worst", "at", "differ"), lines)


def verdict(pairs: Sequence[Pair], wanted: float, least: float, alike: bool = True) -> tuple[str, bool]:
    """Whether the claim holds, in words and as a truth value.  alike : whether that takes the same answers, too."""
    reached, missed = geometric_mean(p.ratio for p in pairs), [p for p in pairs if p.ratio < least]
    text = f"old/new, {len(pairs)} calls: geometric mean {reached:.3f}, wanted {wanted:g}; below {least:g}: "
    text += ("; ".join(f"{p} ({p.ratio:.3f}, by CPU time {p.by_processor:.3f})" for p in missed) or "none") + ".\n"
    differing = [p for p in pairs if p.note]
    text += f"Other answers: {'; '.join(f'{p} ({p.note})' for p in differing) or 'none'}.\n"
    timed = [p for p in differing if p.part == "solve" and p.converged]  # by the clock it goes over to other recipes
    return text, reached >= wanted and not missed and (not alike or differing == timed)


# The run --------------------------------------------------------------------------------------------------------------


def fill(run: Run, trees: Sequence[Tree], cases: dict[str, Sequence[str]], runs: int, least: float) -> list[Pair]:
    """Measure every case of every part; those that cannot be made are left out, which the run then says."""
    begin, pairs = time.perf_counter(), []
    with tempfile.TemporaryDirectory() as folder:
        for part, names in cases.items():
            for name in names:
                path = ""
                if part not in ("selection", "fgbilu"):
                    try:
                        A = matrix(name)
                    except ParameterError as error:
                        run.left_out[f"{part}, {name}"] = str(error)
                        print(f"left out: {part}, {name}: {error}", file=sys.stderr, flush=True)
                        continue
                    run.matrices[name] = {"n": A.shape[0], "nnz": A.nnz}
                    path = str(Path(folder) / "matrix.npz")
                    sp.save_npz(path, A)
                found = measure(trees, part, name, path, runs, least)
                pairs += found
                reached, worst = geometric_mean(p.ratio for p in found), min(found, key=lambda p: p.ratio)
                print(
                    f"{time.perf_counter() - begin:5.0f} s  {part}, {name}: {reached:.3f}, worst {worst.ratio:.3f} "
                    f"({worst.call}){', differs' if any(p.note for p in found) else ''}",
                    flush=True,
                )
    run.options["seconds"] = round(time.perf_counter() - begin)
    return pairs


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="finelu bench pairs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", nargs="*", type=Path, metavar="OLD NEW", help="roots of two checkouts")
    parser.add_argument("--gpu", action="store_true", help="on the GPU (default: on the CPU)")
    parser.add_argument("--parts", default=",".join(PARTS), help="which of %(default)s")
    parser.add_argument("--cases", default="", help="names with commas between them (default: those of this file)")
    parser.add_argument("--runs", type=int, default=RUNS, help="of each side (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of each side on the CPU (default: %(default)s)")
    parser.add_argument("--mean", type=float, default=MEAN, help="geometric mean that still holds (%(default)s)")
    parser.add_argument("--least", type=float, default=LEAST, help="ratio of a call that still holds (%(default)s)")
    parser.add_argument("--other-answers", action="store_true", help="answers of the new tree may differ (on the CPU)")
    parser.add_argument("--out", type=Path, help="folder for a record of the run (default: none is kept)")
    parser.add_argument("--machine", default="", help="a name for this machine in the record")
    options = parser.parse_args(argv)
    if len(options.trees) != 2:
        raise ParameterError("two trees are needed: finelu bench pairs OLD NEW.")
    device = "gpu" if options.gpu else "cpu"
    names = names_of(options.cases)
    cases = {part: names or CASES[device][part] for part in chosen_parts(parser, options.parts, PARTS)}
    run = new_run("pairs-gpu" if options.gpu else "pairs", gpu=options.gpu, machine_name=options.machine)
    run.machine |= {"commit": revision(options.trees[1])}
    run.options = {"old": revision(options.trees[0]), "threads": options.threads, "runs": options.runs}
    with both(*options.trees, options.threads, device) as trees:
        pairs = fill(run, trees, cases, options.runs, options.least)
    if not pairs:
        raise ParameterError("none of the matrices could be made or read; set FINELU_MATRICES to a folder.")
    text, holds = verdict(pairs, options.mean, options.least, alike=not (options.gpu or options.other_answers))
    print(f"\n{pair_table(pairs)}\n{part_table(pairs)}\n{text}", end="")
    if options.out:
        for pair in pairs:
            for side, who in enumerate(("old", "new")):
                detail = {"runs, ms": pair.runs[side], "processor, ms": pair.processor[side], "differs": pair.note}
                run.records.append(
                    Record(pair.case, pair.part, device, who, pair.call, median(pair.runs[side]), detail=detail,
                           threads=0 if options.gpu else options.threads)
                )  # fmt: skip
        page = f"{run.heading()}\nTime of the old tree over that of the new one; medians.\n\n"
        print(run.publish(options.out, f"{page}{part_table(pairs)}\n{text}\n{pair_table(pairs)}{run.footing()}"))
    return 0 if holds else 1


if __name__ == "__main__":
    command(main)
