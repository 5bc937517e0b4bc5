"""`import finelu` and the first solve in fresh processes, with and without compiled kernels in the cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import scipy.sparse as sp

import finelu
from benchmarks.harness import ROOT
from benchmarks.harness.record import Record, Run
from finelu.errors import FineluError

FIRST_SYSTEMS = ("poisson5:150,150", "convection_diffusion:28", "stokes:40")
RUNS = 5
MEASURED = "first use"  # Record.work of what fresh processes measure
IMPORT, EMPTY, LATER = "import", "empty cache", "later process"
FRESH = """
import json, sys, time
import numpy as np, scipy.sparse as sp, scipy.sparse.linalg
begin = time.perf_counter()
import finelu
result = {"import": time.perf_counter() - begin}
if len(sys.argv) > 1:
    S = sp.load_npz(sys.argv[1])
    b = np.random.default_rng(0).uniform(-0.5, 0.5, S.shape[0])
    begin = time.perf_counter()
    solution = finelu.solve(S, b)
    result |= {"solve": time.perf_counter() - begin, "converged": solution.converged}
    begin = time.perf_counter()
    finelu.solve(S, b)
    result["again"] = time.perf_counter() - begin
print(json.dumps(result))
"""


def fresh(threads: int, cache: Path | None = None, system: Path | None = None) -> dict[str, Any]:
    """The measurement of FRESH in a process of its own; said: the text that it wrote to its stderr, a terminal.

    cache : the folder of compiled kernels (default: the usual one).  system : .npz of the matrix to solve for.
    """
    environment = os.environ | {"FINELU_NUM_THREADS": str(threads)}
    environment["PYTHONPATH"] = str(Path(finelu.__file__).parents[1])
    if cache is not None:
        environment |= {"FINELU_CACHE": str(cache), "FINELU_KERNELS": "compile"}
    ours, theirs = os.openpty()
    arguments = [sys.executable, "-c", FRESH, *([str(system)] if system else [])]
    process = subprocess.Popen(arguments, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs, text=True)
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 4096):
            said += part
    except OSError:  # the terminal has no writer left
        pass
    finally:
        os.close(ours)
    text = said.decode(errors="replace")
    out, _ = process.communicate()
    if process.returncode:
        raise FineluError(f"a fresh process failed: {(text.strip().splitlines() or ['no word'])[-1]}")
    return json.loads(out.splitlines()[-1]) | {"said": text}


def first_use(run: Run, threads: int) -> Iterator[Record]:
    """The seconds of an import, of a first solve with an empty cache, and of the first in later processes."""

    def record(name: str, what: str, seconds: list[float], **detail) -> Record:
        made = Record(name, MEASURED, "cpu", "finelu", what, 1e3 * median(seconds), threads=threads)
        made.detail = {"runs": seconds} | detail
        return made

    fresh(threads)  # the files are in the system's cache
    yield record("finelu", IMPORT, [fresh(threads)["import"] for _ in range(RUNS)])
    for name in FIRST_SYSTEMS:
        with tempfile.TemporaryDirectory() as folder:
            system, cache = Path(folder) / "system.npz", Path(folder) / "cache"
            sp.save_npz(system, sp.csr_matrix(finelu.gallery.problem(name)))
            cache.mkdir()
            with run.attempt(name, "the first solve"):
                found = fresh(threads, cache, system)
                said = " ".join(found["said"].split())
                yield record(name, EMPTY, [found["solve"]], said=said, converged=found["converged"])
                later = [fresh(threads, cache, system) for _ in range(RUNS)]
                again = median(f["again"] for f in later)
                yield record(name, LATER, [f["solve"] for f in later], again_s=again)
