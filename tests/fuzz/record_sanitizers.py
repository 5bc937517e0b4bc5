"""compute-sanitizer's memcheck, racecheck and initcheck over every CUDA kernel of finelu, and a record of it.

Usage: python tests/fuzz/record_sanitizers.py --out FOLDER [--tools memcheck racecheck initcheck] [--parts PART ...]
           [--jobs N] [--seconds S] [--plain-loads]

Runs each part of sanitize.py in a process of its own, several at a time: at first without a tool, so that all kernels
are compiled, then with each tool. FOLDER gets a page with the counts of each tool and kernel, and for each tool the
text of what it reported.

--plain-loads : racecheck sees the waits in shared memory as loads and stores, not as atomic swaps.
--seconds : after which no process is begun, and those that run are ended; what did not run is named on the page.

Ends with status 1 if anything was reported, a part failed or did not end, or a kernel was not launched.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from time import perf_counter

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "src"), str(ROOT / "tools")]

from sanitize import PARTS, every_kernel  # noqa: E402

from benchmarks.harness.record import machine  # noqa: E402

TOOLS = ("memcheck", "racecheck", "initcheck")
FOUND = 9  # status of a process in which a tool found something
MOST = 100_000  # reports of a process that are printed
LONGEST = 2**20  # characters of what a process prints that are kept
SUMMARY = re.compile(r"^========= (?:ERROR|RACECHECK) SUMMARY: (.*)", re.MULTILINE)
BEGIN = re.compile(r"^========= (?! |COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY|Target application|$)(\S.*)")


@dataclass
class Outcome:
    """Of one part with one tool: its status, None where it did not end; reports by kernel; kernels launched."""

    part: str
    status: int | None = None
    seconds: float = 0.0
    text: str = ""
    reports: Counter[str] = field(default_factory=Counter)
    launched: Counter[str] = field(default_factory=Counter)

    @property
    def summaries(self) -> list[str]:
        return SUMMARY.findall(self.text)

    @property
    def good(self) -> bool:
        clean = all(re.match("0 (errors|hazards)", text) for text in self.summaries)
        return self.status == 0 and clean and not self.reports


def reports(text: str) -> Iterator[str]:
    """The lines of each report of a tool, as one text."""
    lines: list[str] = []
    for line in text.splitlines():
        begins = BEGIN.match(line)
        if (begins or not line.startswith("=========     ")) and lines:
            yield "\n".join(lines)
            lines = []
        if begins or lines:
            lines.append(line)
    if lines:
        yield "\n".join(lines)


def kernel_of(report: str, names: dict[str, str]) -> str:
    """`file:kernel`, or the first line of a report that names no kernel of finelu."""
    for word in re.findall(r"\b(\w+)(?=[<(+])", report):
        if word in names:
            return names[word]
    return report.splitlines()[0].removeprefix("========= ")[:100]


def run(part: str, tool: str, by_swap: bool, end: float, names: dict[str, str]) -> Outcome:
    outcome, left = Outcome(part), end - perf_counter()
    if left <= 0:
        return outcome
    command = [sys.executable, str(Path(__file__).with_name("sanitize.py")), part, *(["--by-swap"] if by_swap else [])]
    if tool:
        limits = ["--error-exitcode", str(FOUND), "--print-limit", str(MOST)]
        if tool == "memcheck":  # what CUDA returns to a call is CuPy's to raise; that an event is not there yet is none
            limits += ["--report-api-errors", "no"]
        command = ["compute-sanitizer", "--tool", tool, *limits, *command]
    start = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        launched = Path(folder) / "launched.json"
        process = subprocess.Popen(
            [*command, "--launched", str(launched)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=ROOT,
            start_new_session=True,
        )
        try:
            outcome.text = process.communicate(timeout=left)[0]
            outcome.status = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the tool, and the program that it runs
            outcome.text = process.communicate()[0]
        if launched.exists():
            outcome.launched.update(json.loads(launched.read_text()))
    outcome.seconds = perf_counter() - start
    if tool:
        own = names | {name.partition(":")[2]: name for name in outcome.launched}
        outcome.reports.update(kernel_of(report, own) for report in reports(outcome.text))
    kind = tool or "no tool"
    status = "did not end" if outcome.status is None else f"status {outcome.status}"
    print(f"{kind} {part}: {status}, {outcome.reports.total()} reports, {outcome.seconds:.0f} s", flush=True)
    return outcome


def page(found: dict[str, list[Outcome]], every: set[str], machine: dict[str, object], options, version: str) -> str:
    facts = ", ".join(f"{name} {value}" for name, value in machine.items() if name != "name" and value)
    lines = [
        f"# compute-sanitizer over the CUDA kernels, {machine.get('gpu', 'no GPU')}, {date.today().isoformat()}",
        "",
        f"{facts}. {version}.",
        "",
        "Made by `tests/fuzz/record_sanitizers.py`: every kernel at least once by `tests/fuzz/sanitize.py`, on small "
        "systems in float64 and complex64 with 32-bit indices; each array has memory of its own.",
    ]
    if "racecheck" in found and not options.plain_loads:
        lines[-1] += (
            " For racecheck, the threads that wait for values in shared memory make their relaxed loads and stores by "
            "atomic swaps (`FINELU_RACECHECK` in `runtime/finelu.cuh`)."
        )
    lines += [
        "",
        "| tool | kernels launched | launches | reports | parts that failed or did not end |",
        "|---|---|---|---|---|",
    ]
    for tool, outcomes in found.items():
        launched, reported = Counter(), Counter()
        for outcome in outcomes:
            launched += outcome.launched
            reported += outcome.reports
        bad = [o.part for o in outcomes if o.status not in (0, FOUND)]
        cells = len(every & set(launched)), launched.total(), reported.total(), ", ".join(bad) or "none"
        lines.append(f"| {tool} | {cells[0]} of {len(every)} | {cells[1]} | {cells[2]} | {cells[3]} |")
    lines += ["", "## By kernel", "", "| kernel | launches | " + " | ".join(found) + " |"]
    lines.append("|---|---|" + "---|" * len(found))
    counts = {tool: sum((o.reports for o in outcomes), Counter()) for tool, outcomes in found.items()}
    launches = {tool: sum((o.launched for o in outcomes), Counter()) for tool, outcomes in found.items()}
    others = set().union(*counts.values()) - every
    for name in (*sorted(every), *sorted(others)):
        most = max((of_tool[name] for of_tool in launches.values()), default=0)
        cells = [
            str(counts[tool][name]) if launches[tool][name] or name in others else "not launched" for tool in found
        ]
        lines.append(f"| `{name}` | {most} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="compute-sanitizer over every CUDA kernel of finelu.")
    parser.add_argument("--out", type=Path, required=True, help="a folder for the page and what the tools print")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS))
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    parser.add_argument("--jobs", type=int, default=8, help="processes at a time (default 8)")
    parser.add_argument("--seconds", type=float, default=1e9, help="for all of it")
    parser.add_argument("--plain-loads", action="store_true")
    options = parser.parse_args()
    if shutil.which("compute-sanitizer") is None:
        print("no compute-sanitizer was found; it is a part of the CUDA toolkit", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    end = perf_counter() + options.seconds
    every = every_kernel()
    names = {name.partition(":")[2]: name for name in sorted(every)}  # of names in several files, the last
    found: dict[str, list[Outcome]] = {}
    by_swap = {"racecheck": not options.plain_loads}
    with ThreadPoolExecutor(options.jobs) as pool:
        ways = {("", by_swap.get(tool, False)) for tool in options.tools} | {("", False)}
        plain = [pool.submit(run, part, *way, end, names) for way in sorted(ways) for part in options.parts]
        bad = [outcome.result() for outcome in plain if outcome.result().status != 0]
        for outcome in bad:
            print(f"--- {outcome.part}, without a tool\n{outcome.text[-3000:]}")
        for tool in options.tools:
            jobs = [pool.submit(run, part, tool, by_swap.get(tool, False), end, names) for part in options.parts]
            found[tool] = [job.result() for job in jobs]
            texts = [f"--- {o.part}\n{o.text[:LONGEST]}" for o in found[tool] if not o.good]
            (options.out / f"{tool}.log").write_text("\n".join(texts) or "nothing\n")
            for outcome in found[tool]:
                if not outcome.good:
                    print(f"{tool} {outcome.part}: {outcome.summaries} {dict(outcome.reports)}")
    printed = subprocess.run(["compute-sanitizer", "--version"], capture_output=True, text=True).stdout
    version = next((line for line in printed.splitlines() if "ersion" in line), "an unknown version").strip()
    about = machine(True)
    kind = re.sub(r"[^a-z0-9]+", "-", str(about["name"]).lower()).strip("-")
    path = options.out / f"sanitizers-{kind}-{date.today().isoformat()}.md"
    path.write_text(page(found, every, about, options, version))
    print(f"the record: {path}")
    launched = set(sum((job.result().launched for job in plain), Counter()))
    missing = every - launched
    if missing:
        print("NOT LAUNCHED:", ", ".join(sorted(missing)))
    clean = not bad and all(outcome.good for outcomes in found.values() for outcome in outcomes)
    return 0 if clean and (not missing or set(options.parts) != set(PARTS)) else 1


if __name__ == "__main__":
    sys.exit(main())
