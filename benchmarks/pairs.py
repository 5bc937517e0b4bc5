"""Claim: a change leaves a warm `finelu.solve(A, b)` as fast as it was: new over old at most 1.03, geometric mean.

Two source trees, each in a process of its own that lives for the whole run, solve the same systems in turn:

    git worktree add /tmp/old v0.1.0
    python -m benchmarks.pairs /tmp/old .                    # two to three minutes on two cores; status 1 above 1.03
    python -m benchmarks.pairs . .                           # how far two equal trees are apart: the noise
    python -m benchmarks.pairs /tmp/old . --systems cage10,poisson7:30 --seconds 20

OLD and NEW are roots of checkouts; `src/finelu` below each is what is measured. Each system is made or read once, here,
and handed to both. After two warm calls on both sides the two take turns, and who begins a round changes with each
round; the one that waits is stopped (SIGSTOP), so that no idle thread of its BLAS takes time from the other. What
takes less than 20 ms is called several times a turn, and the median of these counts. "new/old" is the median over the
rounds of the two times of one round: what slows the machine for a while slows both. Two checks of it: "by CPU time",
the same of the processor's time of all threads, which a busy machine disturbs less; "by minima", the least time of
new over that of old. Where a side ends otherwise (status, iterations, x) the table says how.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import scipy.sparse as sp

# 400 to 91,125 rows, up to 0.1 s a solve on two cores: what the ladder does with each kind of matrix
SYSTEMS = (
    "poisson5:20,20", "662_bus", "bfw782a", "cage8", "orsirr_1", "bcsstk10", "stokes:16", "vem1", "nasa2146", "ani4",
    "of_hotRoom_h", "bcsstk16", "trilinos_nsjac_1", "convection_diffusion:20", "poisson5:90,90", "fv2", "cage10",
    "of_pitzDaily_p", "bayer10", "ng_helmholtz_k40", "memplus", "Trefethen_20000", "poisson7:30", "cage11",
    "lp_stocfor3_aug", "poisson7:45",
)  # fmt: skip
RTOL, WARM, SEED, BUFFERS = 1e-8, 2, 0, 3
LEAST, MOST = 7, 41  # rounds
TURN, CALLS = 0.02, 8  # seconds below which a turn calls again, and how often at most
COMPILING = 600.0  # seconds within which a tree's first solves have to end


# The process of one tree ----------------------------------------------------------------------------------------------


def serve(pipe: Connection, threads: int) -> None:
    """In a tree's process: a path in, what the warm calls made of it out; a number of calls in, their (wall-clock,
    processor) seconds out."""
    import finelu

    finelu.set_num_threads(threads)
    pipe.send(finelu.__file__)
    A, right, calls = None, [], 0
    while True:
        try:
            wanted = pipe.recv()
        except EOFError:
            return
        if not isinstance(wanted, int):
            A = sp.load_npz(wanted)
            rng = np.random.default_rng(SEED)
            right = [rng.uniform(-0.5, 0.5, A.shape[0]) for _ in range(BUFFERS)]
            found = [finelu.solve(A, b, rtol=RTOL) for b in [right[0]] * WARM][-1]
            pipe.send((found.status.name.lower(), found.iterations, found.x))
            continue
        gc.collect()
        seconds = []
        for _ in range(wanted):
            b, calls = right[calls % BUFFERS], calls + 1
            begin, processor = time.perf_counter(), time.process_time()
            finelu.solve(A, b, rtol=RTOL)
            seconds.append((time.perf_counter() - begin, time.process_time() - processor))
        pipe.send(seconds)


class Tree:
    """A source tree and the process that solves with it; stopped while nothing is asked of it."""

    def __init__(self, root: Path, threads: int):
        from finelu.errors import FileError

        self.root, source = root.resolve(), root.resolve() / "src"
        if not (source / "finelu" / "__init__.py").exists():
            raise FileError(f"{root}: there is no src/finelu here; name the root of a checkout.")
        self.pipe, theirs = Pipe()
        one = {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.pairs", "--worker", str(theirs.fileno()), "--threads", str(threads)],
            cwd=Path(__file__).resolve().parents[1],
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

    def ask(self, wanted: Any) -> Any:
        """The answer to a path or a number of calls; the process runs as long as it takes."""
        self.process.send_signal(signal.SIGCONT)
        self.pipe.send(wanted)
        return self._receive()

    def _receive(self) -> Any:
        from finelu.errors import FineluError

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


# A system -------------------------------------------------------------------------------------------------------------


@dataclass
class Pair:
    """What both trees took for one system: the (wall-clock, processor) seconds of each call of each round's turn."""

    name: str
    n: int
    note: str = ""
    turns: tuple[list, list] = field(default_factory=lambda: ([], []))

    def seconds(self, side: int, clock: int = 0) -> list[float]:
        """A number a round: the median of the calls of its turn."""
        return [median(call[clock] for call in turn) for turn in self.turns[side]]

    @property
    def ratio(self) -> float:
        """New over old: the median over the rounds."""
        return median(new / old for old, new in zip(self.seconds(0), self.seconds(1), strict=True))

    @property
    def by_processor(self) -> float:
        return median(new / old for old, new in zip(self.seconds(0, 1), self.seconds(1, 1), strict=True))

    @property
    def by_minima(self) -> float:
        old, new = (min(call[0] for turn in turns for call in turn) for turns in self.turns)
        return new / old


def matrix(name: str) -> sp.csr_matrix:
    """A gallery problem, or a real matrix of the folder; ParameterError where there is none."""
    import finelu
    from benchmarks.common import files, matrix_folder

    path = files(matrix_folder()).get(name)
    return sp.csr_matrix(finelu.read_matrix(path) if path else finelu.gallery.problem(name))


def difference(answers: Sequence[tuple[str, int, np.ndarray]]) -> str:
    """In which way the two answers differ, in words; "" where they agree but for rounding."""
    (status, iterations, x), (status_new, iterations_new, x_new) = answers
    words = [] if status == status_new else [f"{status} -> {status_new}"]
    if iterations != iterations_new:
        words.append(f"{iterations} -> {iterations_new} iterations")
    if not np.array_equal(x, x_new):
        words.append(f"x by {np.abs(x - x_new).max() / max(np.abs(x).max(), np.finfo(float).tiny):.1e}")
    return ", ".join(words)


def measure(trees: Sequence[Tree], name: str, path: Path, n: int, seconds: float) -> Pair:
    """Both trees on one system, in turn, LEAST rounds and then more while they fit into the seconds."""
    pair = Pair(name, n, difference([tree.ask(path) for tree in trees]))
    once = max(tree.ask(1)[0][0] for tree in trees)
    calls = min(max(1, int(TURN / once)), CALLS)
    begin = time.perf_counter()
    for k in range(MOST):
        if k >= LEAST and time.perf_counter() - begin > seconds:
            break
        for side in (0, 1) if k % 2 == 0 else (1, 0):
            pair.turns[side].append(trees[side].ask(calls))
    return pair


@contextmanager
def both(old: Path, new: Path, threads: int) -> Iterator[list[Tree]]:
    trees: list[Tree] = []
    try:
        for root in (old, new):
            trees.append(Tree(root, threads))
        yield trees
    finally:
        for tree in trees:
            tree.close()


# Tables ---------------------------------------------------------------------------------------------------------------


def pair_table(pairs: Sequence[Pair]) -> str:
    from benchmarks.common import table

    lines = [
        (p.name, p.n, len(p.turns[0]), *(1e3 * median(p.seconds(side)) for side in (0, 1)), f"{p.ratio:.3f}",
         f"{p.by_processor:.3f}", f"{p.by_minima:.3f}", p.note or "-")
        for p in pairs
    ]  # fmt: skip
    header = ("system", "n", "rounds", "old, ms", "new, ms", "new/old", "by CPU time", "by minima", "differs")
    return table(header, lines)


def summary(pairs: Sequence[Pair], most: float) -> tuple[str, bool]:
    """The means and the worst system in words, and whether the geometric mean is at most `most`."""
    reached = geometric_mean(p.ratio for p in pairs)
    processor, minima = (geometric_mean(r) for r in zip(*((p.by_processor, p.by_minima) for p in pairs), strict=True))
    worst = max(pairs, key=lambda p: p.ratio)
    text = (
        f"new/old, {len(pairs)} systems: geometric mean {reached:.3f} (by CPU time {processor:.3f}, by minima "
        f"{minima:.3f}), median {median(p.ratio for p in pairs):.3f}, worst {worst.ratio:.3f} ({worst.name}; by CPU "
        f"time {worst.by_processor:.3f}, by minima {worst.by_minima:.3f}).\n"
    )
    holds = reached <= most
    return text + f"At most {most:g} is wanted: {'yes' if holds else 'no'}.\n", holds


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pairs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trees", nargs="*", type=Path, metavar="OLD NEW", help="roots of two checkouts")
    parser.add_argument("--systems", default="", help="names with commas between them (default: the list in this file)")
    parser.add_argument("--seconds", type=float, default=6.0, help="for the rounds of a system (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="of each side (default: %(default)s)")
    parser.add_argument("--most", type=float, default=1.03, help="geometric mean that still holds (%(default)s)")
    parser.add_argument("--out", type=Path, help="folder for a record of the run (default: none is kept)")
    parser.add_argument("--machine", default="", help="a name for this machine in the record")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker is not None:
        serve(Connection(options.worker), options.threads)
        return 0

    from benchmarks.common import Record, Run, names_of, new_run, revision
    from finelu.errors import ParameterError

    if len(options.trees) != 2:
        raise ParameterError("two trees are needed: python -m benchmarks.pairs OLD NEW.")
    run: Run = new_run("pairs", gpu=False, machine_name=options.machine)
    run.machine |= {"commit": revision(options.trees[1])}
    run.options = {"old": revision(options.trees[0]), "threads": options.threads, "seconds a system": options.seconds}
    begin, pairs = time.perf_counter(), []
    with both(*options.trees, options.threads) as trees, tempfile.TemporaryDirectory() as folder:
        for name in names_of(options.systems) or SYSTEMS:
            try:
                A = matrix(name)
            except ParameterError as error:
                run.left_out[name] = str(error)
                print(f"left out: {name}: {error}", file=sys.stderr, flush=True)
                continue
            path = Path(folder) / "system.npz"
            sp.save_npz(path, A)
            pair = measure(trees, name, path, A.shape[0], options.seconds)
            pairs.append(pair)
            run.matrices[name] = {"n": A.shape[0], "nnz": A.nnz}
            for side, who in enumerate(("old", "new")):
                turns = [1e3 * t for t in pair.seconds(side)]
                detail = {"rounds, ms": turns, "differs": pair.note}
                run.records.append(
                    Record(name, "solve", "cpu", who, "finelu.solve", median(turns), threads=options.threads,
                           detail=detail)
                )  # fmt: skip
            print(
                f"{time.perf_counter() - begin:5.0f} s  {name}: {pair.ratio:.3f}, by CPU time {pair.by_processor:.3f}, "
                f"by minima {pair.by_minima:.3f}{'; differs: ' if pair.note else ''}{pair.note}",
                flush=True,
            )
    if not pairs:
        raise ParameterError("none of the systems could be made or read; set FINELU_MATRICES to a folder.")
    run.options["seconds"] = round(time.perf_counter() - begin)
    text, holds = summary(pairs, options.most)
    print("\n" + pair_table(pairs) + "\n" + text, end="")
    if options.out:
        page = run.heading() + "\nTime of the new tree over that of the old one; medians.\n\n"
        print(run.save(options.out, page + pair_table(pairs) + "\n" + text + run.footing()))
    return 0 if holds else 1


if __name__ == "__main__":
    from benchmarks.common import command

    command(main)
