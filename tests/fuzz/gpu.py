"""The random systems of systems.py on a GPU, judged as on the CPU; run.py says how it goes on.

    python tests/fuzz/gpu.py --minutes 10 --out benchmarks/results
    python tests/fuzz/gpu.py --systems 2000 [--first 0]
    python tests/fuzz/gpu.py --seed 17    one case again, in this process, with all there is to say

A and b are moved to the GPU, or, for one `solve` in four, left on the host; `solve` is asked for device="cuda".

--all-types : of float32 and complex128, too, for which kernels are compiled for many minutes at first. Without it a
    seed stands for the first of seed, seed + 10^9, ... whose system is of float64 or complex64.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))

import judge
import numpy as np
import run
import scipy.sparse as sp
import systems

import finelu as fl
from finelu.device import require_gpu, to_host

KIND = "gpu"
USUAL = ("float64", "complex64")
NEXT = 10**9
on_host = judge.answer
LOST = (700, 702, 709, 715, 716, 717, 718, 719)  # CUDA's errors after which a process can no longer use the GPU
DIED = 70


def case_of(seed: int, every_type: bool) -> systems.Case:
    case = systems.case(seed)
    while not every_type and case.system.stored.dtype.name not in USUAL:
        seed += NEXT
        case = systems.case(seed)
    return case


def moved(A: Any, stored: sp.csr_matrix, form: str) -> Any:
    """A on the GPU, in the form in which it came where CuPy has it."""
    cupy = require_gpu()
    import cupyx.scipy.sparse as csp

    if isinstance(A, np.ndarray) and A.dtype.isnative:
        return cupy.asarray(A)
    if form in ("coo", "duplicates"):
        places = cupy.asarray(A.row), cupy.asarray(A.col)
        return csp.coo_matrix((cupy.asarray(A.data), places), shape=A.shape)
    if form == "csc":
        return csp.csc_matrix(tuple(cupy.asarray(v) for v in (A.data, A.indices, A.indptr)), shape=A.shape)
    S = A if form == "unsorted" else stored
    return csp.csr_matrix(tuple(cupy.asarray(v) for v in (S.data, S.indices, S.indptr)), shape=S.shape)


def content(v: Any) -> bytes:
    """All that is stored in a matrix or vector on the GPU."""
    names = [name for name in ("data", "indices", "indptr", "row", "col") if hasattr(v, name)]
    arrays = [getattr(v, name) for name in names] if hasattr(v, "nnz") else [v]
    return b"".join(array.get().tobytes() for array in arrays)


def here(result: Any) -> Any:
    """An answer with its vectors on the host, where they are judged."""
    if isinstance(result, fl.Solution):
        return replace(result, x=to_host(result.x))
    return tuple(here(part) for part in result) if isinstance(result, tuple) else to_host(result)


def answer(case: systems.Case) -> Any:
    """What judge.answer returns, of the same system on the GPU."""
    warnings.filterwarnings("ignore", module="cupy")  # of what CuPy says about itself; finelu's own are faults
    cupy, system, call = require_gpu(), case.system, case.call
    A, b, options = moved(system.A, system.stored, system.words[-1]), cupy.asarray(system.b), dict(call.options)
    if "x0" in options:
        options["x0"] = cupy.asarray(options["x0"])
    if call.kind == "solve":
        options["device"] = "cuda"
        if case.seed % 4 == 0:
            A, b, options["x0"] = system.A, system.b, call.options.get("x0")
    before = None if A is system.A else (content(A), content(b))
    asked = replace(case, system=replace(system, A=A, b=b), call=replace(call, options=options))
    if call.kind == "sequence":
        with np.errstate(all="ignore"):
            later = system.stored * 1.5
        sequence = fl.Sequence(**options)
        result = tuple(sequence.step(*given) for given in ((A, b), (moved(later, later, "csr"), b), (None, b)))
    else:
        result = on_host(asked)
    if before is not None and before != (content(A), content(b)):
        raise AssertionError("A or b was changed on the GPU")
    return here(result)


def survived(case: systems.Case) -> Any:
    """`answer`; ends the process where the GPU is lost to it, so that another one goes on."""
    from cupy_backends.cuda.api.driver import CUDADriverError
    from cupy_backends.cuda.api.runtime import CUDARuntimeError

    try:
        return answer(case)
    except (CUDADriverError, CUDARuntimeError) as error:
        if error.status in LOST:
            print(error, file=sys.stderr, flush=True)
            os._exit(DIED)
        raise


def judges_gpu() -> None:
    """judge.judged asks finelu on the GPU from now on, and does not count what NVRTC takes."""
    require_gpu()
    from finelu import compiling
    from finelu.kernels.cuda.runtime import launch

    made = launch._made

    def timed(*arguments: Any) -> Any:
        compiling._clock.begin()
        try:
            return made(*arguments)
        finally:
            compiling._clock.end()

    launch._made, judge.answer = timed, survived


class Worker(run.Worker):
    """A process that tries cases on the GPU."""

    every_type = False

    def _start(self) -> None:
        command = [sys.executable, __file__, "--work", str(self.folder), *(["--all-types"] if self.every_type else [])]
        environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "FINELU_RATES": os.devnull, "PYTHONWARNINGS": ""}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        self.rest = b""


def work(folder: Path, every_type: bool) -> None:
    judges_gpu()

    def one(kind: str, seed: int, streams: Any) -> Any:
        verdict = judge.judged(case_of(seed, every_type))
        printed = "".join(streams.taken())
        if printed:
            verdict.faults.append(f"printed: {printed[:300]!r}")
        return verdict

    run.one = one
    run.work(KIND, folder)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--systems", type=int, help="how many, instead of --minutes")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--out", type=Path, help="folder for the record, fuzz-gpu-DATE.json and .md")
    parser.add_argument("--seed", type=int, help="this case alone, in this process")
    parser.add_argument("--all-types", action="store_true")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        work(given.work, given.all_types)
        return 0
    if given.seed is not None:
        judges_gpu()
        case = case_of(given.seed, given.all_types)
        print(f"{case.system.n} rows; {', '.join(case.system.words)}; {case.call}")
        verdict = judge.judged(case)
        print(verdict)
        return 1 if verdict.faults else 0
    name = require_gpu().cuda.runtime.getDeviceProperties(0)["name"].decode()
    run.CHUNK[KIND], run.Worker, Worker.every_type = 20, Worker, given.all_types
    seconds = float("inf") if given.minutes is None else 60 * given.minutes
    with tempfile.TemporaryDirectory() as folder:
        found = run.tried(KIND, given.first, given.systems, seconds, given.processes, Path(folder))
    print(f"{found.count} systems from seed {found.first} on, {len(found.faults)} faults, {found.wall:.0f} s on {name}")
    print("   ", ", ".join(f"{outcome}: {count}" for outcome, count in found.outcomes.most_common()))
    for text, count in found.weak.most_common():
        print(f"    weak, {count} times: {text}; seeds {found.weak_seeds[text][:10]}")
    for fault in found.faults:
        print(f"    fault, --seed {fault['seed']}: {fault['outcome']}: {fault['faults']}")
    if given.out is not None:
        write(found, given.processes, given.out, name)
    return 1 if found.faults else 0


def write(found: Any, processes: int, out: Path, name: str) -> None:
    machine = run.machine
    run.machine = lambda: machine() | {"gpu": name}
    run.written([found], processes, out)
    for ending in ("json", "md"):
        path = max(out.glob(f"fuzz-2*.{ending}"), key=lambda path: path.stat().st_mtime)
        path.rename(path.with_name(path.name.replace("fuzz-", "fuzz-gpu-")))


if __name__ == "__main__":
    sys.exit(main())
