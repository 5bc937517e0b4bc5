"""The record of a run: its measurements, machine and commit, as compressed JSON with a page of tables."""

from __future__ import annotations

import gzip
import json
import math
import os
import platform
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

import numpy as np

import finelu
from benchmarks.harness import ROOT
from benchmarks.harness.table import table
from finelu.device import require_gpu
from finelu.errors import FileError

MEASURED_CODE = ("src", "benchmarks", ":(exclude)benchmarks/results", "pyproject.toml")
# An error above these is no result: relative for factors, backward for solves (see `Record.sound`).
TOLERANCE = {"ilu0": 1e-6, "ic0": 1e-6, "trsv_lower": 1e-10, "trsv_upper": 1e-10}


class RunEnded(Exception):
    """A run cannot go on; its measurements so far are kept."""


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
    """The result of one run: the records, facts of each matrix, failures, and cases that were left out."""

    bench: str
    machine: dict[str, Any]
    date: str
    options: dict[str, Any] = field(default_factory=dict)
    matrices: dict[str, dict[str, Any]] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)

    def find(self, matrix: str | None = None, **wanted: Any) -> list[Record]:
        """The records whose fields equal those wanted."""
        of_matrix = self.records if matrix is None else [r for r in self.records if r.matrix == matrix]
        return [r for r in of_matrix if all(getattr(r, k) == v for k, v in wanted.items())]

    def one(self, **wanted: Any) -> Record | None:
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

    def save(self, out: Path) -> Path:
        """Write the record into the folder `out`; returns its path."""
        path = out / f"{self.stem}{ENDING}"
        write(path, asdict(self))
        return path

    def publish(self, out: Path, page: str) -> Path:
        """Write the record and its page of tables into the folder `out`; returns the path of the page."""
        path = page_of(self.save(out))
        replace_text(path, page)
        return path

    @staticmethod
    def load(path: Path) -> Run:
        """A run as `save` wrote it; FileError if the file is something else."""
        values = read(path)
        try:
            return Run(**(values | {"records": [Record(**r) for r in values["records"]]}))
        except (KeyError, TypeError) as error:
            raise FileError(f"{path} is not the record of a benchmark ({error}).") from error

    @staticmethod
    def merged(
        paths: Sequence[Path],
        key: Callable[[Record], Any],
        *,
        wanted: Callable[[Run, Record], bool] = lambda run, r: True,
        source: Callable[[Record], str] = lambda r: r.device,
    ) -> tuple[Run, list[Run]]:
        """The first file's run with the wanted records of the others whose key it lacks; and those others.

        The facts of their matrices come too. The option "<source> from" names the machine of the records taken.
        """
        run, *others = map(Run.load, paths)
        for other in others:
            have = {key(r) for r in run.records}
            added = [r for r in other.records if key(r) not in have and wanted(run, r)]
            run.records += added
            for r in added:
                if r.matrix in other.matrices:
                    run.matrices.setdefault(r.matrix, other.matrices[r.matrix])
            for name in sorted({source(r) for r in added}):
                run.options[f"{name} from"] = f"{other.machine['name']}, {other.machine['cpu']}, {other.date}"
        return run, others

    def heading(self) -> str:
        """The run and its machine, as the first lines of its Markdown page."""
        m = self.machine
        lines = [f"# {self.bench}, {m['name']}, {self.date}", ""]
        if "commit" not in m:
            lines.append(f"- commit: not recorded; finelu {m.get('finelu', '')} at {self.date}")
        lines += [f"- {key}: {value}" for key, value in m.items() if value not in (None, "")]
        lines += [f"- {key}: {value}" for key, value in self.options.items()]
        return "\n".join(lines) + "\n"

    def footing(self) -> str:
        """The cases that were left out, and the failures."""
        text = ""
        if self.left_out:
            text += "\n## Left out\n\n" + table(("matrix", "why"), self.left_out.items())
        if self.failures:
            text += "\n## Failed\n\n" + table(("matrix", "what", "error"), (f.values() for f in self.failures))
        return text


# Files --------------------------------------------------------------------------------------------------------------

ENDING = ".json.gz"  # of a record


def page_of(record: Path) -> Path:
    """The page of tables of a record."""
    return record.with_name(record.name.removesuffix(ENDING) + ".md")


def read(path: Path) -> Any:
    """The values of a record; FileError if there is none, or the file is something else."""
    try:
        return json.loads(gzip.decompress(Path(path).read_bytes()))
    except (gzip.BadGzipFile, EOFError, zlib.error, ValueError) as error:
        raise FileError(f"{path} is not the record of a benchmark ({error}).") from error
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}.") from error


def write(path: Path, values: Any) -> None:
    """Keep values as compressed JSON; the same values give the same bytes."""
    _replace(path, gzip.compress(json.dumps(finite(values), indent=1).encode(), mtime=0))


def replace_text(path: Path, text: str) -> None:
    """Write a text, so that a reader finds the old file or the whole new one."""
    _replace(path, text.encode())


def _replace(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    part.write_bytes(content)
    part.replace(path)


def finite(value: Any) -> Any:
    """`value` with NaN and infinities as None, since JSON has neither, and NumPy scalars as Python's."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


# Where it was measured ---------------------------------------------------------------------------------------------


def new_run(bench: str, *, gpu: bool, machine_name: str = "", options: dict[str, Any] | None = None) -> Run:
    """An empty run of today on this machine."""
    return Run(bench, machine(gpu, machine_name), date.today().isoformat(), options or {})


def machine(gpu: bool, name: str = "") -> dict[str, Any]:
    """The machine: a name fit for a file, the processors, and the versions of the packages that take part."""
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
