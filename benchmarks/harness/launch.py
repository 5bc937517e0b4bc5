"""A measurement on several processes: `mpiexec -n P python -m MODULE --worker TASK`, whose first process answers."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT
from benchmarks.harness.record import finite
from finelu.device import require_gpu
from finelu.errors import ParameterError

OPEN_MPI = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "core",
}


def started(module: str, ranks: int, task: dict[str, Any]) -> dict[str, Any]:
    """What `answer` printed in the first of `ranks` processes of a module, one thread each."""
    mpiexec = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if mpiexec is None:
        raise ParameterError("there is no mpiexec; install an MPI, such as mpich from PyPI.")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "FINELU_NUM_THREADS": "1"} | OPEN_MPI
    words = [sys.executable, "-m", module, "--worker", json.dumps(task)]
    done = subprocess.run(
        [mpiexec, "-n", str(ranks), *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    result = re.search(r"RESULT (\{.*\})", done.stdout)  # some launchers write into a line
    if done.returncode or not result:
        said = f"{done.stdout}{done.stderr}".strip()[-500:]
        raise ParameterError(f"{ranks} processes ended with {done.returncode}: {said}")
    found: dict[str, Any] = json.loads(result[1])
    return found


def answer(worker: Callable[[dict[str, Any]], dict[str, Any]], task: str) -> None:
    """In a worker: the task done, its result printed by the first process."""
    from mpi4py import MPI

    found = worker(json.loads(task))
    if MPI.COMM_WORLD.rank == 0:
        print("RESULT " + json.dumps(finite(found)), flush=True)


def own_gpu(comm: Any) -> Any:
    """cupy, with the GPU of this process made current."""
    xp = require_gpu()
    xp.cuda.Device(comm.rank % xp.cuda.runtime.getDeviceCount()).use()
    return xp
