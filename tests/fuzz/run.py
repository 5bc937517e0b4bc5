"""Throws random systems, damaged files and unusual calls at finelu, and writes a record of what came of them.

    python tests/fuzz/run.py --systems 100000 --files 10000 --calls 500 --processes 16 --out benchmarks/results
    python tests/fuzz/run.py --minutes 10        the three in turn, from new seeds on
    python tests/fuzz/run.py --minutes 10 --kind gpu    systems on a GPU, by gpu.py
    python tests/fuzz/run.py --seed 17 [--kind files]   one case again, in this process, with all there is to say

The cases of a kind are numbered; a number makes the same case everywhere. They run in processes of their own: one that
dies, or that does not end within the patience, is recorded with its seed, and another process goes on after it. What
was late, died or hung is repeated alone before it counts. Exit status 1 where there is a fault.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

KINDS = ("systems", "files", "calls", "gpu")
SHARES = {"systems": 0.7, "files": 0.15, "calls": 0.15}  # of the minutes, unless one kind is asked for
CHUNK = {"systems": 50, "files": 50, "calls": 3, "gpu": 20}  # cases that a process is given at a time
PATIENCE = 300.0  # seconds for one case, compiling included
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]


class Streams:
    """What is printed to the file descriptors 1 and 2 of this process goes to two files in `folder`."""

    def __init__(self, folder: Path):
        self.files = [open(folder / name, "w+") for name in ("out", "err")]  # noqa: SIM115 - open to the end
        for number, file in enumerate(self.files, 1):
            os.dup2(file.fileno(), number)

    def taken(self) -> list[str]:
        """What was printed since it was taken last."""
        sys.stdout.flush()
        sys.stderr.flush()
        printed = [Path(file.name).read_text(errors="replace") for file in self.files]
        for file in self.files:
            os.ftruncate(file.fileno(), 0)
            os.lseek(file.fileno(), 0, os.SEEK_SET)
        return printed


def cases_of(kind: str) -> Any:
    """The module whose `judged(seed)` tries a case of this kind."""
    return import_module({"systems": "judge"}.get(kind, kind))


def one(kind: str, seed: int, streams: Streams) -> Any:
    """The Verdict on one case."""
    if kind == "files":
        import files

        return files.judged(seed, streams)
    verdict = cases_of(kind).judged(seed)
    printed = "".join(streams.taken())
    if printed:
        verdict.faults.append(f"printed: {printed[:300]!r}")
    return verdict


def work(kind: str, folder: Path) -> None:
    """Takes ranges of seeds from stdin; reports each seed before it is tried, and its verdict after."""
    report = os.fdopen(os.dup(1), "w", buffering=1)
    streams = Streams(folder)
    faulthandler.enable(streams.files[1])
    threading.Thread(target=leave_with, args=(os.getppid(),), daemon=True).start()
    for line in sys.stdin:
        for seed in range(*map(int, line.split())):
            print(seed, file=report)
            print(json.dumps(asdict(one(kind, seed, streams))), file=report)
        print("over", file=report)


def leave_with(parent: int) -> None:
    """Ends this process, whatever it does, once its parent has ended."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


@dataclass
class Found:
    """The results of one kind."""

    kind: str
    outcomes: collections.Counter[str] = field(default_factory=collections.Counter)
    weak: collections.Counter[str] = field(default_factory=collections.Counter)
    weak_seeds: dict[str, list[int]] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    faults: list[dict[str, Any]] = field(default_factory=list)
    doubtful: list[int] = field(default_factory=list)  # seeds to repeat alone
    count: int = 0
    wall: float = 0.0
    first: int = 0

    def add(self, seed: int, verdict: dict[str, Any]) -> None:
        self.count += 1
        self.outcomes[verdict["outcome"]] += 1
        self.seconds.append(verdict["seconds"])
        for text in verdict["weak"]:
            name = text.partition(":")[0] if text.startswith("long") else text
            self.weak[name] += 1
            self.weak_seeds.setdefault(name, []).append(seed)
        if verdict["faults"]:
            if verdict["late"]:
                self.doubtful.append(seed)
            else:
                self.faults.append({"seed": seed, "outcome": verdict["outcome"], "faults": verdict["faults"]})

    def lost(self, seed: int, why: str) -> None:
        self.add(seed, {"outcome": why, "seconds": PATIENCE, "weak": [], "faults": [why], "late": True})


class Worker:
    """A process that tries cases of a kind, and the one after it where it ends before them."""

    def __init__(self, kind: str, folder: Path):
        self.folder = folder
        self.command = [sys.executable, __file__, "--work", kind, str(folder)]
        folder.mkdir(exist_ok=True)
        self._start()

    def _start(self) -> None:
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "FINELU_RATES": os.devnull, "PYTHONWARNINGS": ""}
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        self.rest = b""

    def _line(self) -> str:
        """The next line of the report; "" where none comes any more."""
        assert self.process.stdout is not None
        until = time.monotonic() + PATIENCE
        while b"\n" not in self.rest:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0.0, until - time.monotonic()))
            new = os.read(self.process.stdout.fileno(), 1 << 16) if ready else b""
            if not new:
                return ""
            self.rest += new
        line, _, self.rest = self.rest.partition(b"\n")
        return line.decode()

    def tried(self, begin: int, end: int) -> Iterator[tuple[int, dict[str, Any] | str]]:
        """(seed, verdict) of each; where the process died or hung, why."""
        while begin < end:
            assert self.process.stdin is not None
            self.process.stdin.write(f"{begin} {end}\n".encode())
            self.process.stdin.flush()
            while (line := self._line()) and line != "over":
                begin = int(line) + 1
                verdict = self._line()
                if not verdict:
                    yield begin - 1, self._ended()
                    break
                yield begin - 1, json.loads(verdict)
            else:
                if line != "over":
                    raise SystemExit(f"the worker ended between two cases: {self._ended()}")
                begin = end

    def _ended(self) -> str:
        hung = self.process.poll() is None and self._hangs()
        if hung:
            self.process.kill()
        self.close()
        text = (self.folder / "err").read_text(errors="replace")
        self._start()
        if hung:
            return f"hung: not over after {PATIENCE:.0f} s"
        return f"died: the process ended with {self.process_status}: {' '.join(text.split())[:600]}"

    def _hangs(self) -> bool:
        try:
            self.process.wait(2)
            return False
        except subprocess.TimeoutExpired:
            return True

    def close(self) -> None:
        if self.process.poll() is None:
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process_status = self.process.wait()


def tried(kind: str, first: int, count: int | None, seconds: float, processes: int, folder: Path) -> Found:
    """`count` cases of a kind, or as many as there is time for, on several processes."""
    found, lock = Found(kind, first=first), threading.Lock()
    start, chunk = time.monotonic(), CHUNK[kind]
    end = first + count if count is not None else sys.maxsize
    following = first

    def taken() -> tuple[int, int] | None:
        nonlocal following
        with lock:
            if following >= end or time.monotonic() - start > seconds:
                return None
            begin, following = following, min(following + chunk, end)
            return begin, following

    def serve(number: int) -> None:
        worker = Worker(kind, folder / f"{kind}{number}")
        while (part := taken()) is not None:
            for seed, verdict in worker.tried(*part):
                with lock:
                    found.lost(seed, verdict) if isinstance(verdict, str) else found.add(seed, verdict)
        worker.close()

    servers = [threading.Thread(target=serve, args=(k,)) for k in range(processes)]
    for server in servers:
        server.start()
    while any(server.is_alive() for server in servers):
        try:
            for server in servers:
                server.join()
        except KeyboardInterrupt:  # of what was found until now, a record
            end = 0
            print("stopping", flush=True)
    alone = Worker(kind, folder / "alone")
    for seed in sorted(found.doubtful):
        *_, verdict = (v for _ in range(2) for _, v in alone.tried(seed, seed + 1))  # the first time may import modules
        again = {"faults": [verdict]} if isinstance(verdict, str) else verdict
        if again["faults"]:
            outcome = again.get("outcome", verdict)
            found.faults.append({"seed": seed, "outcome": outcome, "faults": again["faults"]})
    alone.close()
    found.wall = time.monotonic() - start
    found.faults.sort(key=lambda fault: fault["seed"])
    return found


def written(results: list[Found], processes: int, out: Path) -> None:
    """The record, as JSON and in words."""
    from benchmarks.harness.record import machine

    about = machine(any(found.kind == "gpu" for found in results)) | {"date": date.today().isoformat()}
    about["processes"] = processes
    out.mkdir(parents=True, exist_ok=True)
    stem = out / f"fuzz-{about['name']}-{about['date']}"
    parts = []
    lines = ["# Random systems, damaged files and unusual calls", "", *(f"- {k}: {v}" for k, v in about.items()), ""]
    for found in results:
        times = sorted(found.seconds) or [0.0]
        part = {
            "kind": found.kind,
            "first seed": found.first,
            "cases": found.count,
            "wall seconds": round(found.wall, 1),
            "seconds of a call": {
                "median": times[len(times) // 2],
                "99%": times[int(len(times) * 0.99)],
                "longest": times[-1],
            },
            "outcomes": dict(found.outcomes.most_common()),
            "weak": {name: [count, found.weak_seeds[name][:20]] for name, count in found.weak.most_common()},
            "late once, not when alone": len(found.doubtful),
            "faults": found.faults,
        }
        parts.append(part)
        lines += [
            f"## {found.kind}: {found.count} cases from seed {found.first} on, {len(found.faults)} faults",
            "",
            f"{found.wall:.0f} s; a call took {times[len(times) // 2]:.2g} s in the median, "
            f"{times[int(len(times) * 0.99)]:.2g} s at 99%, {times[-1]:.2g} s at most.",
            "",
            "| outcome | cases |",
            "|---|---|",
            *(f"| {name[:80]} | {count} |" for name, count in found.outcomes.most_common()),
            "",
        ]
        for name, count in found.weak.most_common():
            lines.append(f"- weak, {count} times: {name}; seeds {', '.join(map(str, found.weak_seeds[name][:10]))}")
        for fault in found.faults:
            lines.append(f"- fault, seed {fault['seed']}, {fault['outcome'][:80]}: {'; '.join(fault['faults'])[:500]}")
        lines.append("")
    Path(f"{stem}.json").write_text(json.dumps({"machine": about, "results": parts}, indent=1) + "\n")
    Path(f"{stem}.md").write_text("\n".join(lines).rstrip() + "\n")


def again(kind: str, seed: int) -> int:
    """One case in this process, with what it is."""
    if kind in ("systems", "gpu"):
        case = cases_of(kind).case_of(seed)
        print(f"{case.system.n} rows; {', '.join(case.system.words)}; {case.call}")
    if kind != "files":
        verdict = cases_of(kind).judged(seed)
    else:
        import files

        name, content = files.mutated(seed)
        Path(name).write_bytes(content)
        print(f"{name} was written into this folder")
        before = [os.dup(1), os.dup(2)]
        with tempfile.TemporaryDirectory() as folder:
            verdict = files.judged(seed, Streams(Path(folder)))
        for number, descriptor in enumerate(before, 1):
            os.dup2(descriptor, number)
    print(verdict)
    return 1 if verdict.faults else 0


def stopped(*_: object) -> None:
    raise KeyboardInterrupt


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for kind in KINDS:
        parser.add_argument(f"--{kind}", type=int, default=0, metavar="N", help="how many cases of this kind")
    parser.add_argument("--minutes", type=float, help="instead: for so long, all kinds, or those given as --kind")
    parser.add_argument("--first", type=int, help="the first seed (0; of --minutes: one that depends on the time)")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, help="folder for the record, fuzz-DATE.json and .md")
    parser.add_argument("--seed", type=int, help="this case alone, in this process")
    parser.add_argument("--kind", choices=KINDS, help="of --seed (systems) and --minutes (all but gpu)")
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    os.environ["FINELU_SILENT"] = "1"  # lines about compiled kernels are no fault
    os.environ["FINELU_BACKGROUND"] = "0"  # a case is answered by finelu
    if given.work:
        work(given.work[0], Path(given.work[1]))
        return 0
    if given.seed is not None:
        return again(given.kind or "systems", given.seed)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stopped)
    first = given.first if given.first is not None else int(time.time()) if given.minutes else 0
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            count: int | None = getattr(given, kind)
            seconds = float("inf")
            if given.minutes is not None:
                if given.kind != kind and (given.kind or kind not in SHARES):
                    continue
                count, seconds = None, 60 * given.minutes * (SHARES[kind] if given.kind is None else 1.0)
            if count == 0:
                continue
            found = tried(kind, first, count, seconds, given.processes, Path(folder))
            results.append(found)
            print(f"{kind}: {found.count} cases from seed {first} on, {len(found.faults)} faults, {found.wall:.0f} s")
            print("   ", ", ".join(f"{name}: {count}" for name, count in found.outcomes.most_common()))
            for name, count in found.weak.most_common():
                print(f"    weak, {count} times: {name}; seeds {found.weak_seeds[name][:10]}")
            for fault in found.faults:
                print(f"    fault, --kind {kind} --seed {fault['seed']}: {fault['outcome']}: {fault['faults']}")
            sys.stdout.flush()
    if given.out is not None:
        written(results, given.processes, given.out)
    return 1 if any(found.faults for found in results) else 0


if __name__ == "__main__":
    sys.exit(main())
