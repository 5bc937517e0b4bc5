"""compute-sanitizer over every CUDA kernel of finelu: memcheck, racecheck, initcheck and synccheck, and a record of it.

Usage: python tests/fuzz/record_sanitizers.py --out FOLDER [--tools memcheck racecheck initcheck synccheck]
           [--parts PART ...] [--jobs N] [--seconds S] [--plain-loads]

Runs each part of sanitize.py in processes of its own, several parts at a time: at first without a tool, so that all its
kernels are compiled, then with each tool. FOLDER gets a page with the counts of each tool and kernel, and for each tool
a file with what was reported: the first report of each kernel, and how many there were. Kernels of other libraries,
which CuPy launches, are counted apart.

--plain-loads : racecheck sees the kernels as they are, not compiled with FINELU_RACECHECK.
--seconds : after which no process is begun, and those that run are ended; what did not run is named on the page.

Ends with status 1 if anything was reported of finelu's kernels or copies, a part failed or did not end, or a kernel was
not launched.
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

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
LONG = (  # the parts that take longest with racecheck
    *("methods", "methods_for_symmetric", "stencil_of_large_blocks", "stencil_of_larger_blocks", "schwarz"),
    *("schwarz_of_others", "adapted", "sweeps_of_very_long_rows", "sweeps_of_long_rows", "thresholds_of_long_rows"),
    *("triangular", "triangular_of_long_rows", "triangular_of_a_chain", "subdomains"),
)
BEGUN = perf_counter()
FOUND = 9  # status of a process in which a tool found something
MOST = 100_000  # reports of a process that are printed
LONGEST = 3000  # characters of what a process prints besides that are kept, the last ones
SUMMARY = re.compile(r"^========= (?:ERROR|RACECHECK) SUMMARY: (.*)", re.MULTILINE)
KERNEL = re.compile(r"\bat (?:void )?(\w[\w:]*)[^\n]*\+0x")
COPY = re.compile(r"Host Frame: (\S+ in \S+\.py:\d+)")
OTHERS = "another library's "  # what the name of a kernel begins with that is not finelu's
BEGIN = re.compile(r"^========= (?! |COMPUTE-SANITIZER|ERROR SUMMARY|RACECHECK SUMMARY|Target application|$)(\S.*)")


@dataclass
class Outcome:
    """The outcome of one part with one tool: its status, None if it did not end; its output besides reports; the number
    of reports by kernel, and the first of each; kernels launched."""

    part: str
    status: int | None = None
    seconds: float = 0.0
    text: str = ""
    reports: Counter[str] = field(default_factory=Counter)
    launched: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)

    def read(self, text: str, names: dict[str, str]) -> None:
        """Take the output of a process."""
        self.text = text
        for report in reports(text):
            name = kernel_of(report, names)
            self.reports[name] += 1
            self.first.setdefault(name, report)

    @property
    def summaries(self) -> list[str]:
        return SUMMARY.findall(self.text)

    @property
    def own(self) -> int:
        """How many reports are not of another library's kernels."""
        return sum(count for name, count in self.reports.items() if not name.startswith(OTHERS))

    @property
    def ended(self) -> bool:
        """Whether the part came to its end without an error, and all that the tool found was printed."""
        counted = sum(int(text.split()[0].replace(",", "")) for text in self.summaries)
        done = re.search(rf"^{self.part}: done,", self.text, re.MULTILINE) is not None
        status = self.status == (FOUND if self.reports else 0)
        return status and done and counted == self.reports.total()

    @property
    def good(self) -> bool:
        return self.ended and not self.own

    def excerpt(self) -> str:
        """The first report of each kernel, and the end of what was printed besides."""
        lines = [f"--- {self.part}: status {self.status}, {'; '.join(self.summaries) or 'no summary'}"]
        lines += [f"{count} of {name}, the first:\n{self.first[name]}" for name, count in self.reports.most_common()]
        besides = "\n".join(line for line in self.text.splitlines() if not line.startswith("========="))
        return "\n".join([*lines, besides[-LONGEST:]])


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
    """`file:kernel`; another library's kernel after OTHERS; of a copy what asked for it; else the first line."""
    device = "\n".join(line for line in report.splitlines() if "Host Frame" not in line)
    for word in re.findall(r"\b(\w+)(?=[<(+])", device):
        if word in names:
            return names[word]
    if other := KERNEL.search(device):
        return OTHERS + other[1]
    first = report.splitlines()[0].removeprefix("========= ")
    if first.startswith("Host API") and (frames := COPY.findall(report)):
        return "a copy by " + ", ".join(frames[:2])
    return first[:100]


def run(part: str, tool: str, by_swap: bool, end: float, names: dict[str, str]) -> Outcome:
    outcome, left = Outcome(part), end - perf_counter()
    if left <= 0:
        return outcome
    command = [sys.executable, str(Path(__file__).with_name("sanitize.py")), part, *(["--by-swap"] if by_swap else [])]
    if tool:
        limits = ["--error-exitcode", str(FOUND), "--print-limit", str(MOST)]
        if tool == "memcheck":  # CuPy raises errors of CUDA's calls; an event that is not recorded yet is no error
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
            text = process.communicate(timeout=left)[0]
            outcome.status = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the tool, and the program that it runs
            text = process.communicate()[0]
        if launched.exists():
            outcome.launched.update(json.loads(launched.read_text()))
    outcome.seconds = perf_counter() - start
    outcome.read(text, names | {name.partition(":")[2]: name for name in outcome.launched})
    kind = tool or "no tool"
    status = "did not end" if outcome.status is None else f"status {outcome.status}"
    others = outcome.reports.total() - outcome.own
    counts = f"{outcome.own} reports, {others} of other libraries"
    print(f"{kind} {part}: {status}, {counts}, {outcome.seconds:.0f} s of {perf_counter() - BEGUN:.0f}", flush=True)
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
            "atomic swaps, and where some warps would wait for each other all of the block do (`FINELU_RACECHECK` in "
            "`runtime/finelu.cuh` and `subdomains.cu`)."
        )
    lines += [
        "",
        "| tool | kernels launched | launches | reports | of other libraries | parts that failed or did not end |",
        "|---|---|---|---|---|---|",
    ]
    for tool, outcomes in found.items():
        launched, own = Counter(), sum(o.own for o in outcomes)
        for outcome in outcomes:
            launched += outcome.launched
        others = sum(o.reports.total() for o in outcomes) - own
        bad = ", ".join(o.part for o in outcomes if not o.ended) or "none"
        cells = f"{len(every & set(launched))} of {len(every)}", launched.total(), own, others, bad
        lines.append("| " + " | ".join(str(cell) for cell in (tool, *cells)) + " |")
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
    parser.add_argument("--seconds", type=float, default=1e5, help="for all of it (default 1e5)")
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

    def all_of(part: str) -> tuple[list[Outcome], list[Outcome]]:
        """Without a tool, as each of the tools wants its kernels; and with the tools."""
        swaps = [by_swap.get(tool, False) for tool in options.tools]
        plain = [run(part, "", swap, end, names) for swap in sorted(set(swaps))]
        return plain, [run(part, tool, swap, end, names) for tool, swap in zip(options.tools, swaps, strict=True)]

    first = [part for part in LONG if part in options.parts]  # else they would be the last to end
    with ThreadPoolExecutor(options.jobs) as pool:
        jobs = {part: pool.submit(all_of, part) for part in dict.fromkeys((*first, *options.parts))}
    plain = [outcome for part in options.parts for outcome in jobs[part].result()[0]]
    bad = [outcome for outcome in plain if not outcome.good]
    for outcome in bad:
        print(f"without a tool\n{outcome.excerpt()}")
    for k, tool in enumerate(options.tools):
        found[tool] = [jobs[part].result()[1][k] for part in options.parts]
        texts = [outcome.excerpt() for outcome in found[tool] if outcome.reports or not outcome.good]
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
    launched = set(sum((outcome.launched for outcome in plain), Counter()))
    missing = every - launched
    if missing:
        print("NOT LAUNCHED:", ", ".join(sorted(missing)))
    clean = not bad and all(outcome.good for outcomes in found.values() for outcome in outcomes)
    return 0 if clean and (not missing or set(options.parts) != set(PARTS)) else 1


if __name__ == "__main__":
    sys.exit(main())
