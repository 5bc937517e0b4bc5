"""What was measured, in a file that is named by all that it depends on, so that the next call goes on from there."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import secrets
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numba
import numpy as np
import scipy
from numpy.typing import NDArray

from finelu import machine_code
from finelu.auto.rates import SHIPPED, SHIPPED_ON_GPU, GpuRates, Rates, gpu, kept_in, processor
from finelu.compare.model import NOT_REACHED, SOLVED, TIME_LIMIT, Measurement, Pictures
from finelu.device import require_gpu
from finelu.errors import FileError
from finelu.kernels.cuda.runtime import cudss
from finelu.matrix import CSR
from finelu.threads import get_num_threads

ENDING = ".compare.json"
PACKAGE = Path(__file__).resolve().parents[1]  # finelu, whose sources name the file, too
FORMAT = 1  # of the file; one with another number is passed over
CALL, CALLS = 100, 2**40  # rounds that a call has at most, and numbers of calls: the largest turn is exact in a float64
MOST = 64  # files in the cache folder; the oldest go
LIBRARIES = ("nbklu", "feral-solver", "pypardiso", "mkl", "pymetis")  # what SparseLU takes where it is installed
PICTURES = ("density", "lower", "upper")
LATER = (NOT_REACHED, TIME_LIMIT, "ended", "out of memory")  # outcomes that another call may change


def cache_folder() -> Path | None:
    """The user's folder for such files, whether or not it is there; None without any home."""
    kernels = machine_code.folder()
    return kernels and kernels.parent / "compare"


class Kept:
    """The rows of one system on this machine, with these versions, tolerance, threads and method.

    Which recipes and how many seconds a call asks for does not matter: each finds the rows that it asks for.
    folder : of the file; None keeps nothing. Where it cannot be read or written, `failure` has the reason, and nothing
    is kept.  again : pass over an earlier file.  turn : a number of this call's own, since what two calls measured was
    not measured in turn, even if they ran at the same time; 0 where nothing is kept.
    Raises FileError if the file is damaged.
    """

    def __init__(
        self,
        folder: Path | None,
        A: CSR,
        b: NDArray[Any],
        rtol: float,
        method: str,
        devices: Sequence[str],
        again: bool,
    ):
        self.path: Path | None = None
        self.failure = ""  # why nothing can be kept
        self.rows: dict[tuple[str, str, str], list[Measurement]] = {}
        self._over = again  # whether the next save passes over what the file holds
        self.turn = 0  # after which the rounds of this call are numbered
        if folder is None:
            return
        name = digest(A, b, repr((rtol, method, get_num_threads(), *surroundings(devices))))
        self.path = folder / (name + ENDING)
        self.turn = secrets.randbelow(CALLS) * CALL
        if again:
            return
        try:
            for m in _read(self.path):
                self.rows.setdefault(m.key, []).append(m)
        except OSError as error:
            self._fails(error)

    def save(self, rows: Iterable[Measurement]) -> None:
        """Write these rows, and those that are kept, of which other calls may have made some meanwhile."""
        if self.path is None:
            return
        now: dict[tuple[str, str, str], list[Measurement]] = {}
        for m in rows:
            now.setdefault(m.key, []).append(m)
        self.rows |= now
        try:
            with _alone(self.path.parent):
                if not self._over:
                    there: dict[tuple[str, str, str], list[Measurement]] = {}
                    for m in _read(self.path):
                        there.setdefault(m.key, []).append(m)
                    self.rows |= there | {key: _union(there.get(key, []), now[key]) for key in now}
                found = {"format": FORMAT, "rows": [_plain(m) for rows in self.rows.values() for m in rows]}
                machine_code.write(self.path, json.dumps(found).encode())
                self._over = False
        except OSError as error:
            self._fails(error)
            return
        except FileError as error:  # damaged meanwhile
            self.failure, self.path = str(error), None
            return
        if self.path.parent == cache_folder():
            _keep_the_newest(self.path.parent)

    def _fails(self, error: OSError) -> None:
        self.failure, self.path = f"{self.path}: {error.strerror}", None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Wait until no other process is in here with this folder. Without locks it does not wait."""
    folder.mkdir(parents=True, exist_ok=True)
    place = None
    try:
        with suppress(ImportError, OSError):
            import fcntl  # Windows has none

            place = os.open(folder, os.O_RDONLY)
            fcntl.flock(place, fcntl.LOCK_EX)
        yield
    finally:
        if place is not None:
            os.close(place)


def _union(theirs: list[Measurement], ours: list[Measurement]) -> list[Measurement]:
    """The rows of one candidate, one a method: the solved one, then the one with more turns, then ours.

    A row that another call may change stays if it is ours next to a final one: of a method that followed another one
    which failed, and was cut short.
    """
    ranked = sorted([*theirs, *ours], key=lambda m: (m.solved, len(m.samples)))
    rows = list({m.method: m for m in ranked}.values())
    followed = ours if any(m.outcome not in LATER for m in ours) else []
    return [m for m in rows if m.outcome not in LATER or any(m is other for other in followed)] or ours


def digest(A: CSR, b: NDArray[Any], more: str) -> str:
    """A name for the system, the sources of finelu, and `more`. Cost: a pass over the arrays and the sources."""
    found = hashlib.sha256(more.encode())
    for array in (A.indptr, A.indices, A.data, b):
        found.update(f"{array.dtype.str} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).data)
    for path in sorted(p for kind in ("*.py", "*.cu", "*.cuh") for p in PACKAGE.rglob(kind)):
        found.update(path.read_bytes())
    return found.hexdigest()[:20]


def surroundings(devices: Sequence[str]) -> tuple[str, ...]:
    """What else the times and routes depend on: processor, GPU, versions, and the rates that `solve` predicts from."""
    versions = [platform.python_version(), np.__version__, scipy.__version__, numba.__version__]
    versions += [f"{name} {_version(name)}" for name in LIBRARIES]
    found = [processor(), *versions, os.environ.get("PYPARDISO_MKL_RT", ""), _measured(SHIPPED)]
    if "cuda" in devices:
        cupy, library = require_gpu(), cudss.library()
        runtime = cupy.cuda.runtime
        of_cuda = (cupy.__version__, runtime.driverGetVersion(), runtime.runtimeGetVersion())
        found += [gpu(), *map(str, of_cuda), library.version or library.missing, _measured(SHIPPED_ON_GPU)]
    return tuple(found)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def _measured(shipped: Rates | GpuRates) -> str:
    """The file of rates that were measured here; "" where there is none, so that those that are shipped are used."""
    with suppress(OSError, RuntimeError):  # RuntimeError: there is no home
        return kept_in(shipped).read_bytes().hex()
    return ""


def _plain(m: Measurement) -> dict[str, Any]:
    row = {name: value for name, value in vars(m).items() if name not in ("history", "pictures")}
    row["history"] = None if m.history is None else m.history.tolist()
    row["pictures"] = m.pictures and {name: _packed(getattr(m.pictures, name)) for name in PICTURES}
    return row


def _packed(array: NDArray[Any]) -> list[Any]:
    a = np.ascontiguousarray(array, np.int64)
    return [list(a.shape), base64.b64encode(zlib.compress(a.tobytes())).decode()]


def _unpacked(packed: list[Any]) -> NDArray[Any]:
    shape, text = packed
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), np.int64).reshape(shape)


def _read(path: Path) -> list[Measurement]:
    """The rows of a file; none where there is no such file. Raises OSError, or FileError if it is damaged."""
    try:
        found = json.loads(path.read_bytes())
        if found["format"] != FORMAT:
            return []
        rows = []
        for row in found["rows"]:
            row["samples"] = tuple((int(turn), float(setup), float(solve)) for turn, setup, solve in row["samples"])
            row["history"] = None if row["history"] is None else np.array(row["history"], np.float64).reshape(-1, 3)
            row["pictures"] = row["pictures"] and Pictures(**{n: _unpacked(row["pictures"][n]) for n in PICTURES})
            rows.append(Measurement(**row))
            if rows[-1].outcome == SOLVED and not rows[-1].samples:
                raise ValueError("a row without times")
        return rows
    except FileNotFoundError:
        return []
    except OSError:
        raise
    except Exception as error:  # whatever comes of a damaged file
        raise FileError(
            f"{path}: what was measured before is damaged ({error}). Remove it, or measure again."
        ) from error


def _keep_the_newest(folder: Path) -> None:
    with suppress(OSError):
        files = sorted(folder.glob("*" + ENDING), key=os.path.getmtime)
        for path in files[:-MOST]:
            path.unlink()
