"""The rates from which `solve` predicts the time of its rungs: measured here by `finelu calibrate`, or shipped.

Measured rates are kept in the user's cache, one file for each kind of processor and of GPU, so that machines that share
a home folder do not mix them up. `FINELU_RATES` names another folder.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import sys
import warnings
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from finelu.device import require_gpu
from finelu.ordering import Fill
from finelu.threads import available_cores


@dataclass(frozen=True)
class Rates:
    """Rates in seconds, per entry of A unless stated otherwise; the defaults are those of a core of an AMD EPYC, except
    PARDISO's.

    cg, bicgstab, gmres : an iteration with factors of A's own pattern.
    overhead : seconds per iteration, whatever its size.
    parts, parts_setup : an iteration of cg with subdomains, and their set-up, where cg takes its rate; if shipped, by
        two threads. They stand for any number of threads, so that the route, and with it the bits, do not depend on
        that. One thread takes up to twice as long with subdomains, so that `solve` may take them a little too early.
    analysis_row, analysis : ordering, elimination tree and column counts of a direct solve, per row and per entry.
    prepared : the passes over A before and after complete factors by any library.
    metis : nested dissection.
    threshold, multilevel : set-up and iterations together. In `regret-amd-epyc-2-cores-counts-superlu-2026-11-27` ICT
        took 0.27e-6 s per entry (28 definite systems) and ILUT 0.33e-6 (46), geometric means, and up to 1.2e-6. Rates
        of 0.4e-6 to 0.5e-6 give the least regret on this record and on three others.
    quick : a direct solve of few rows.
    columnwise : SuperLU with its column ordering, for short rows.
    superlu_row, superlu_entry, superlu_flop : complete factors, per row, per entry of L and U, and per operation.
    klu, feral and pardiso, each with _row, _entry, _flop : the same for these libraries. For a symmetric matrix feral
        and PARDISO make half of the entries and operations. Those of PARDISO are for two threads of an AMD EPYC: of the
        37 systems of 2,000 rows or more in `regret-amd-epyc-2-cores-counts-2026-11-27` they give 0.64 of the time that
        its set-up took, in the geometric mean, with a standard deviation by a factor of 2.6. Of 12 systems with 50,000
        operations a row or more, there and in `regret-intel-xeon-2-cores-2026-11-28`, they give 0.74 of the time (0.29
        to 1.39): operations on wide fronts take little. Threads share operations more than rows; a core alone takes
        longer for each operation.
    dense_flop : seconds per operation of SuperLU if its factors turn out to be dense.
    """

    cg: float = 1.7e-9
    bicgstab: float = 3.4e-9
    gmres: float = 2.7e-9
    overhead: float = 2.5e-5
    parts: float = 1.2e-9
    parts_setup: float = 1.7e-8
    analysis_row: float = 0.4e-6
    analysis: float = 0.02e-6
    prepared: float = 0.05e-6
    metis: float = 1.5e-6
    threshold: float = 0.45e-6
    multilevel: float = 1.5e-6
    quick: float = 0.35e-6
    columnwise: float = 0.5e-6
    superlu_row: float = 0.05e-6
    superlu_entry: float = 19e-9
    superlu_flop: float = 0.07e-9
    klu_row: float = 0.02e-6
    klu_entry: float = 8e-9
    klu_flop: float = 0.34e-9
    feral_row: float = 1.5e-6
    feral_entry: float = 15e-9
    feral_flop: float = 0.14e-9
    pardiso_row: float = 0.55e-6
    pardiso_entry: float = 14e-9
    pardiso_flop: float = 0.01e-9
    dense_flop: float = 0.1e-9

    def of(self, library: str) -> tuple[float, float, float]:
        """The rates of "superlu", "klu", "feral" or "pardiso": per row, per entry and per operation."""
        row, entry, flop = (getattr(self, f"{library}_{part}") for part in ("row", "entry", "flop"))
        return row, entry, flop

    def of_library(self, library: str, n: int, nnz: int, fill: Fill, *, half: bool) -> float:
        """The time of complete factors by a library, in seconds, for n rows and nnz entries.

        half : whether it computes L D L^T.
        """
        row, entry, flop = self.of(library)
        part = 0.5 if half else 1.0
        return self.prepared * nnz + row * n + part * (entry * fill.nnz + flop * fill.flops)


@dataclass(frozen=True)
class GpuRates:
    """Rates of a GPU in seconds; the defaults are those of an NVIDIA H100.

    cg, bicgstab, gmres : an iteration with factors of A's own pattern, per entry of A.
    overhead : seconds per iteration of any of these methods, with factors of 200 levels.
    parts, parts_overhead : a product with A and one with subdomains, per entry of A and per product. The shipped rates
        are near those of six systems of 12,000 to 16,000 rows, and of grids of one and eight million rows.
    threshold, threshold_overhead : set-up and iterations with ParILUT and ParICT together, per entry of A and per
        system. The shipped rates are near the times of ten real matrices of 20,000 to 1.5 million entries.
    multilevel, multilevel_overhead : the same for MultilevelILU if it is made on the GPU. The shipped rates are near
        the times of eight systems of 40,000 to a million rows.
    cudss_row, cudss_overhead : complete factors by cuDSS and a solve, per row and per system.
    """

    cg: float = 1.4e-10
    bicgstab: float = 3.3e-10
    gmres: float = 1.6e-10
    overhead: float = 2.1e-4
    parts: float = 2.6e-11
    parts_overhead: float = 0.9e-4
    threshold: float = 8e-8
    threshold_overhead: float = 2e-2
    multilevel: float = 8e-8
    multilevel_overhead: float = 0.1
    cudss_row: float = 2.1e-6
    cudss_overhead: float = 0.016


SHIPPED, SHIPPED_ON_GPU = Rates(), GpuRates()


def current() -> Rates:
    """The rates of this machine; the shipped ones if none were measured or, with a warning, if the file is damaged."""
    rates: Rates = _kept(SHIPPED, "finelu calibrate")
    return rates


@cache
def current_on_gpu() -> GpuRates:
    """The rates of the GPU in use, as in `current`, read once in a process. It needs CuPy."""
    rates: GpuRates = _kept(SHIPPED_ON_GPU, "finelu calibrate --device cuda")
    return rates


def _kept(shipped: Any, command: str) -> Any:
    try:
        file = kept_in(shipped)
        return _read(file, type(shipped))
    except (OSError, RuntimeError):  # no file, no home (RuntimeError), or no permission to read
        return shipped
    except ValueError as error:
        reason = str(error).splitlines()[0]
        warnings.warn(
            f"{file} is not what `{command}` writes ({reason}); run it again, or `{command} --reset`. "
            "Meanwhile `solve` takes the rates that are shipped.",
            stacklevel=3,
        )
        return shipped


def keep(rates: Rates | GpuRates) -> Path:
    """Keep rates for later processes; returns the file. Raises OSError if it cannot be written."""
    file = kept_in(rates)
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(asdict(rates), indent=1) + "\n", encoding="utf-8")
    partial.replace(file)
    return file


def forget(shipped: Rates | GpuRates = SHIPPED) -> Path | None:
    """Go back to the shipped rates; returns the file that was removed, None if there was none."""
    file = kept_in(shipped)
    try:
        file.unlink()
    except FileNotFoundError:
        return None
    return file


def kept_in(rates: Rates | GpuRates = SHIPPED) -> Path:
    """The file for rates of this class on this kind of processor or GPU."""
    machine = gpu() if isinstance(rates, GpuRates) else f"{processor()} {available_cores()} cores"
    name = re.sub(r"[^a-z0-9]+", "-", machine.lower()).strip("-")
    return _folder() / f"rates-{name}.json"


def gpu() -> str:
    """The name of the GPU in use. Raises DeviceError if there is none."""
    runtime = require_gpu().cuda.runtime
    name: bytes = runtime.getDeviceProperties(runtime.getDevice())["name"]
    return name.decode(errors="replace")


def processor() -> str:
    """The name of the processor, as the operating system reports it."""
    name = ""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return name or platform.processor() or platform.machine()


def _folder() -> Path:
    if given := os.environ.get("FINELU_RATES"):
        return Path(given)
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "finelu"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "finelu"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "finelu"


def _read(file: Path, kind: type) -> Any:
    found: Any = json.loads(file.read_text(encoding="utf-8"))
    names = [field.name for field in fields(kind)]
    if not isinstance(found, dict) or sorted(found) != sorted(names):
        raise ValueError("it has other names")
    for name, value in found.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ValueError(f"{name} is {value!r}")
    return kind(**{name: float(value) for name, value in found.items()})


# Only the ratios of expected times matter. No time of this run is measured, so that the same call takes the same route.
RATES = current()
