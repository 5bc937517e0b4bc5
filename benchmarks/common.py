"""What every benchmark shares: the suite of matrices, clocks, the record of a run, and its tables.

`python -m benchmarks.common list` names the suite; `python -m benchmarks.common pack FOLDER` writes its real matrices
as compressed .npz (scipy.sparse.save_npz) for a machine to which little can be carried; there FINELU_MATRICES names
that folder.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np
import scipy.sparse as sp

import finelu
from finelu.device import require_gpu
from finelu.errors import FileError, FineluError, ParameterError

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
SMALLEST = 10_000  # rows; the papers' own lower limit for a matrix of the suite

GALLERY = (
    "poisson7:100",
    "poisson27:60",
    "poisson5:1000,1000",
    "anisotropic_triangles:5",
    "anisotropic_triangles:6",
    "anisotropic_triangles:7",
    "atmosmodd_like",
    "ecology2_like",
    "g3_circuit_like",
)
QUICK = ("poisson7:24", "poisson5:120,120", "ibmpg1_spd", "of_pitzDaily_U", "memplus")
WORST_CASE = "tridiagonal:100000"  # its factors are bidiagonal, one row a level: reported apart, never in a mean


# The suite ----------------------------------------------------------------------------------------------------------


class LeftOut(Exception):
    """A matrix that a benchmark cannot use; the text says why."""


class RunEnded(Exception):
    """A run cannot go on; what it measured so far is kept."""


@dataclass(frozen=True)
class Problem:
    """A named matrix of the suite, made or read by `load()`."""

    name: str
    path: Path | None = None  # None: generated

    @property
    def apart(self) -> bool:
        """Whether it is reported but kept out of the means."""
        return self.name.partition(":")[0] in ("tridiagonal", "bidiagonal")

    def load(self) -> sp.csr_matrix:
        """The matrix, CSR with sorted rows, float64; LeftOut if ILU(0) cannot exist for want of a diagonal."""
        S = finelu.read_matrix(self.path) if self.path else finelu.gallery.problem(self.name)
        S = sp.csr_matrix(S, dtype=np.float64)
        missing = np.flatnonzero(S.diagonal() == 0)
        if missing.size:
            raise LeftOut(f"the diagonal is zero or not stored in {missing.size} rows (first: {missing[0]})")
        return S


def rows(path: Path) -> int:
    """The number of rows that a matrix file declares, without reading its entries."""
    if path.suffix == ".npz":
        with np.load(path) as archive:
            return int(archive["shape"][0])
    with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as lines:
        return int(next(line for line in lines if not line.startswith("%")).split()[0])


def matrix_folder() -> Path:
    """FINELU_MATRICES, or ../shared/matrices beside the checkout. It need not exist."""
    return Path(os.environ.get("FINELU_MATRICES") or ROOT.parent / "shared" / "matrices")


def files(folder: Path) -> dict[str, Path]:
    """name -> file of each matrix in `folder`; of two files with one name the .npz, which reads faster."""
    found = {}
    for pattern in ("*.mtx", "*.mtx.gz", "*.npz"):
        found |= {re.sub(r"\.(mtx|mtx\.gz|npz)$", "", path.name): path for path in sorted(folder.glob(pattern))}
    return dict(sorted(found.items()))


def suite(folder: Path | None = None, names: Sequence[str] = (), *, quick: bool = False) -> list[Problem]:
    """The problems to measure: those named, the quick ones, or all real matrices of 10^4 rows or more and GALLERY.

    folder : of the real matrices (default `matrix_folder()`); where it is absent only the generated ones remain.
    names : file names without ending, or gallery problems ("poisson7:100"); ParameterError for others.
    """
    real = files(folder or matrix_folder())
    if quick and not names:
        return [Problem(name, real.get(name)) for name in QUICK if ":" in name or name in real]
    if names:
        generated = {*finelu.gallery.PROBLEMS, *finelu.gallery.PAPER_SIZES}
        unknown = [name for name in names if name not in real and name.partition(":")[0] not in generated]
        if unknown:
            raise ParameterError(
                f"there is no matrix {', '.join(unknown)} in {folder or matrix_folder()} or the gallery."
            )
        return [Problem(name, real.get(name)) for name in names]
    chosen = [Problem(name, path) for name, path in real.items() if rows(path) >= SMALLEST]
    return chosen + [Problem(name) for name in (*GALLERY, WORST_CASE)]


def pack(folder: Path, out: Path, limit_mib: float) -> list[str]:
    """Write the suite's real matrices as .npz into `out`, smallest first, while they fit; returns those left out."""
    out.mkdir(parents=True, exist_ok=True)
    left, total = [], 0
    for problem in sorted((p for p in suite(folder) if p.path), key=lambda p: p.path.stat().st_size):
        try:
            S = problem.load()
        except LeftOut as reason:
            print(f"{problem.name}: {reason}")
            continue
        target = out / f"{problem.name}.npz"
        sp.save_npz(target, S)
        size = target.stat().st_size
        if total + size > limit_mib * 2**20:
            target.unlink()
            left.append(problem.name)
            continue
        total += size
    print(f"{total / 2**20:.1f} MiB in {out}" + (f"; no room for {', '.join(left)}" if left else ""))
    return left


# Clocks -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    """The median of `repeats` measurements in ms, the smallest and the largest; host_ms: until the call returned."""

    ms: float
    low: float
    high: float
    repeats: int
    host_ms: float

    @staticmethod
    def of(device: Sequence[float], host: Sequence[float]) -> Timing:
        return Timing(median(device), min(device), max(device), len(device), median(host))


def repeats_for(ms: float) -> int:
    """How often to measure what takes `ms`: 20 times when fast, once when two seconds or more."""
    return 20 if ms < 20 else 10 if ms < 150 else 5 if ms < 500 else 3 if ms < 2000 else 1


def cpu_time(call: Callable[[int], Any], repeats: int | None = None) -> Timing:
    """Time call(i) on the host, warm."""
    call(0)
    start = time.perf_counter()
    call(1)
    repeats = repeats or repeats_for(1e3 * (time.perf_counter() - start))
    times = []
    for i in range(repeats):
        start = time.perf_counter()
        call(i)
        times.append(1e3 * (time.perf_counter() - start))
    return Timing.of(times, times)


DELAY = r"""
extern "C" __global__ void delay(long long nanoseconds)
{
    long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < nanoseconds);
}
"""
DELAY_NS = 200_000


def gpu_time(call: Callable[[int], Any], *, before: Callable[[int], Any] | None = None, host: bool = False) -> Timing:
    """Time call(i) on CuPy's current stream with CUDA events, warm; before(i) is not timed.

    host=False: a short kernel keeps the GPU busy while the call is queued, so that the launch itself costs nothing, as
    in the loop of a Krylov method. host=True: from an idle device, so that the host's work counts too (an analysis).
    """
    import cupy

    stream = cupy.cuda.get_current_stream()
    wait = cupy.RawKernel(DELAY, "delay")

    def one(i):
        if before:
            before(i)
        if host:
            stream.synchronize()
        else:
            wait((1,), (1,), (np.int64(DELAY_NS),))
        first, last = cupy.cuda.Event(), cupy.cuda.Event()
        first.record(stream)
        begin = time.perf_counter()
        call(i)
        queued = 1e3 * (time.perf_counter() - begin)
        last.record(stream)
        if host:
            last.synchronize()
        return first, last, queued

    def elapsed(measured):
        stream.synchronize()
        return [cupy.cuda.get_elapsed_time(first, last) for first, last, _ in measured]

    elapsed([one(0)])
    (estimate,) = elapsed([one(1)])
    measured = [one(i) for i in range(repeats_for(estimate))]
    return Timing.of(elapsed(measured), [queued for *_, queued in measured])


class Budget:
    """A wall-clock limit for a run, looked at between matrices; seconds=None: no limit."""

    def __init__(self, seconds: float | None):
        self.start, self.seconds = time.perf_counter(), seconds

    def spent(self) -> float:
        return time.perf_counter() - self.start

    def left(self) -> float:
        return math.inf if self.seconds is None else self.seconds - self.spent()

    def over(self) -> bool:
        return self.left() <= 0


# Errors -------------------------------------------------------------------------------------------------------------


def copy_bandwidth() -> float:
    """GB/s, read and written, of a copy of 2 GiB on the current GPU."""
    import cupy

    source = cupy.zeros(2**28, "float64")
    target = cupy.empty_like(source)
    return 2 * source.nbytes / gpu_time(lambda i: cupy.copyto(target, source)).ms / 1e6


def relative_error(x, reference) -> float:
    """The 2-norm of x - reference over that of reference, on the host; NaN if x holds one."""
    with np.errstate(all="ignore"):
        return float(np.linalg.norm(x - reference) / np.linalg.norm(reference))


def backward_error(T, b, x) -> float:
    """max |T x - b| over max(|T| |x| + |b|): a few ulps for any correct solve, however ill-conditioned T is."""
    with np.errstate(all="ignore"):
        return float(np.max(np.abs(T @ x - b)) / np.max(abs(T) @ np.abs(x) + np.abs(b)))


# An error above these is no result: relative for factors, backward for solves (see `Record.sound`).
TOLERANCE = {"ilu0": 1e-6, "ic0": 1e-6, "trsv_lower": 1e-10, "trsv_upper": 1e-10}


# The record of a run ------------------------------------------------------------------------------------------------


@dataclass
class Record:
    """One measured variant of one library on one matrix.

    work : "ilu0", "ic0", "trsv_lower", "trsv_upper" or "gmres".  device : "gpu" or "cpu".
    threads : on the CPU; 0 on the GPU.
    who : "finelu", "cusparse", "mkl" or "cupy".  variant : its algorithm or policy; chosen : what "auto" took.
    analysis_ms, numeric_ms : medians; numeric_ms is the factorization, the solve, or for gmres everything.
    error : relative to the reference (factors), backward (solves), or the relative residual (gmres).
    """

    matrix: str
    work: str
    device: str
    who: str
    variant: str
    numeric_ms: float | None
    analysis_ms: float | None = None
    error: float | None = None
    threads: int = 0
    chosen: str = ""
    detail: dict[str, Any] = field(default_factory=dict)

    @property
    def total_ms(self) -> float | None:
        return None if self.analysis_ms is None or self.numeric_ms is None else self.analysis_ms + self.numeric_ms

    @property
    def sound(self) -> bool:
        """Whether the result was right: the error is a number within TOLERANCE; a whole solve of finelu converged.

        A peer's whole solve always counts: one that was stopped or did not converge would have taken longer still.
        """
        if self.work == "gmres":
            return self.who != "finelu" or bool(self.detail.get("converged"))
        return self.error is not None and self.error <= TOLERANCE[self.work]


@dataclass
class Run:
    """Everything one run measured: the records, facts of each matrix, what failed and what was left out."""

    bench: str
    machine: dict[str, Any]
    date: str
    options: dict[str, Any] = field(default_factory=dict)
    matrices: dict[str, dict[str, Any]] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def find(self, **wanted) -> list[Record]:
        """The records whose fields equal those wanted."""
        return [r for r in self.records if all(getattr(r, k) == v for k, v in wanted.items())]

    def one(self, **wanted) -> Record | None:
        """The one record with these fields, or None."""
        return next(iter(self.find(**wanted)), None)

    @contextmanager
    def attempt(self, matrix: str, what: str, *, fatal: bool = False) -> Iterator[None]:
        """Run a measurement; an exception becomes a line of `failures`, and the run goes on unless it was fatal."""
        try:
            yield
        except Exception as error:  # a peer may fail in any way, and the others are still to be measured
            text = f"{type(error).__name__}: {error}".splitlines()[0]
            self.failures.append({"matrix": matrix, "what": what, "error": text})
            print(f"  {what} failed: {text}", file=sys.stderr, flush=True)
            if fatal:
                raise RunEnded(text) from error

    @property
    def stem(self) -> str:
        return f"{self.bench}-{self.machine['name']}-{self.date}"

    def save(self, out: Path, markdown: str = "") -> Path:
        """Write <stem>.json and, if given, <stem>.md into `out`, beside and then renamed; returns the JSON's path."""
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{self.stem}.json"
        write(path, json.dumps(finite(asdict(self)), indent=1))
        if markdown:
            write(path.with_suffix(".md"), markdown)
        return path

    @staticmethod
    def load(path: Path) -> Run:
        """A run as `save` wrote it; FileError if the file is something else."""
        try:
            values = json.loads(Path(path).read_text())
            return Run(**(values | {"records": [Record(**r) for r in values["records"]]}))
        except OSError as error:
            raise FileError(f"{path}: {error.strerror}.") from error
        except (KeyError, TypeError, ValueError) as error:
            raise FileError(f"{path} is not the JSON of a benchmark run ({error}).") from error

    def heading(self) -> str:
        """What the run was and where, as the first lines of its Markdown page."""
        m = self.machine
        lines = [f"# {self.bench}, {m['name']}, {self.date}", ""]
        if "commit" not in m:
            lines.append(f"- commit: not recorded; finelu {m.get('finelu', '')} as of {self.date}")
        lines += [f"- {key}: {value}" for key, value in m.items() if value not in (None, "")]
        lines += [f"- {key}: {value}" for key, value in self.options.items()]
        return "\n".join(lines) + "\n"

    def footing(self) -> str:
        """What was left out and what failed."""
        text = ""
        if self.left_out:
            text += "\n## Left out\n\n" + table(("matrix", "why"), self.left_out.items())
        if self.failures:
            text += "\n## Failed\n\n" + table(("matrix", "what", "error"), (f.values() for f in self.failures))
        return text


def write(path: Path, text: str) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    beside.write_text(text)
    beside.replace(path)


def finite(value):
    """`value` with NaN and infinities as None, since JSON has neither, and NumPy scalars as Python's."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def new_run(bench: str, *, gpu: bool, machine_name: str = "", options: dict[str, Any] | None = None) -> Run:
    """An empty run of today on this machine."""
    return Run(bench, machine(gpu, machine_name), date.today().isoformat(), options or {})


def machine(gpu: bool, name: str = "") -> dict[str, Any]:
    """What is measured on: a name fit for a file, the processors and the versions of what takes part."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        cpu = next((line.partition(":")[2].strip() for line in info.open() if line.startswith("model name")), cpu)
    cores = len(os.sched_getaffinity(0))
    facts = {"commit": revision(), "cpu": cpu, "cores": cores, "python": platform.python_version()}
    facts["finelu"] = finelu.__version__
    for package in ("numpy", "scipy", "numba", "cupy-cuda13x", "cupy-cuda12x"):
        try:
            facts[package] = package_version(package)
        except PackageNotFoundError:
            continue
    if gpu:
        from benchmarks.peers import PeerError, cusparse

        cupy = require_gpu()
        runtime = cupy.cuda.runtime
        device = cupy.cuda.Device().id
        facts["gpu"] = runtime.getDeviceProperties(device)["name"].decode()
        facts["cuda driver"], facts["cuda runtime"] = runtime.driverGetVersion(), runtime.runtimeGetVersion()
        try:
            facts["cusparse"] = cusparse.version()
        except PeerError as error:
            facts["cusparse"] = str(error)
    from benchmarks.peers import mkl

    facts["mkl"] = mkl.version() if mkl.available() else None
    default = f"{facts['gpu']}" if gpu else f"{cpu} {cores} cores"
    return {"name": name or re.sub(r"[^a-z0-9]+", "-", default.lower()).strip("-")} | facts


MEASURED_CODE = ("src", "benchmarks", ":(exclude)benchmarks/results", "pyproject.toml")


def revision(root: Path = ROOT) -> str:
    """The commit of a checkout, with "-dirty" behind it where the code differs from that commit.

    Where there is no repository (a copy of the files on another machine) it is what FINELU_COMMIT says, or "unknown".
    """

    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True).stdout

    try:
        top = git("rev-parse", "--show-toplevel").strip()
        if Path(top).resolve() != Path(root).resolve():
            return os.environ.get("FINELU_COMMIT", "unknown")  # the files lie inside of another repository
        commit, changed = git("rev-parse", "HEAD").strip(), git("status", "--porcelain", "--", *MEASURED_CODE)
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("FINELU_COMMIT", "unknown")
    return commit + ("-dirty" if changed.strip() else "")


# Tables -------------------------------------------------------------------------------------------------------------


def table(header: Sequence[str], lines: Iterable[Iterable[Any]]) -> str:
    """A Markdown table, padded so that it reads well as text; numbers with three digits, None as a dash."""
    cells = [[str(h) for h in header]] + [[cell(c) for c in line] for line in lines]
    widths = [max(len(line[k]) for line in cells) for k in range(len(header))]
    padded = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |" for line in cells]
    return "\n".join([padded[0], "|" + "|".join("-" * (w + 2) for w in widths) + "|", *padded[1:]]) + "\n"


def cell(value) -> str:
    """A value as a table shows it: three significant digits, whole numbers as they are, "-" for nothing."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.0f}" if 1000 <= abs(value) < 1e7 else f"{value:.3g}"
    return str(value).replace("|", "\\|")


def ratio(peer: float | None, ours: float | None) -> float | None:
    """How many times faster ours is, or None where one of them is missing."""
    return peer / ours if peer and ours else None


def smallest(values: Iterable[float | None]) -> float | None:
    return min((v for v in values if v is not None), default=None)


def mean(values: Iterable[float | None]) -> float | None:
    """The geometric mean of what is there."""
    present = [v for v in values if v]
    return geometric_mean(present) if present else None


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that every benchmark has."""
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (default: %(default)s)")
    parser.add_argument("--matrices", default="", help="names with commas between them: memplus,poisson5:100,100")
    parser.add_argument("--matrix-folder", type=Path, help="folder of the real matrices (.mtx.gz or .npz)")
    parser.add_argument("--quick", action="store_true", help="a handful of small matrices")
    parser.add_argument("--budget", type=float, help="seconds after which no further matrix is begun")
    parser.add_argument("--machine", default="", help="a name for this machine in file names and tables")


def names_of(text: str) -> list[str]:
    """The names in --matrices, parted by commas; a number or name=value after a comma belongs to a gallery problem."""
    return [name for name in re.split(r",(?![\d.]+(?:,|$)|\w+=)", text) if name]


def command(main: Callable[[], int]) -> None:
    """Run a benchmark as a program: an error of finelu is one line and exit status 2."""
    try:
        sys.exit(main())
    except FineluError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.common", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="name the suite")
    packing = commands.add_parser("pack", help="write the real matrices as .npz")
    packing.add_argument("out", type=Path)
    packing.add_argument("--limit", type=float, default=55.0, help="MiB in all (default: %(default)s)")
    options = parser.parse_args(argv)
    if options.command == "list":
        for problem in suite():
            print(problem.name, problem.path or "(generated)")
        return 0
    return 1 if pack(matrix_folder(), options.out, options.limit) else 0


if __name__ == "__main__":
    command(main)
