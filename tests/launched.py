"""Programs on several processes, by mpiexec."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import finelu

MPIEXEC = shutil.which("mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
OPEN_MPI |= {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}


def launched(processes, *program, seconds=120):
    """The CompletedProcess of a program on several processes; skips the test without mpiexec, fails it at the limit."""
    if MPIEXEC is None:
        pytest.skip("there is no mpiexec")
    paths = [str(Path(finelu.__file__).parents[1]), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"} | OPEN_MPI
    # Where this process is ended, the others end by themselves a little later.
    guard = [timeout, "-k", "5", str(seconds + 15)] if (timeout := shutil.which("timeout")) else []
    command = [*guard, MPIEXEC, "-n", str(processes), *map(str, program)]
    # A session of its own, so that at the limit of time all of them can be ended.
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    with subprocess.Popen(command, **pipes, text=True, env=environment, start_new_session=True) as process:
        try:
            said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"no end after {seconds} s: {process.communicate()}")
    return subprocess.CompletedProcess(command, process.returncode, *said)


def result(done):
    """What a case returned on the first process, None where it printed nothing: one line of JSON after "RESULT "; a
    launcher may write other lines, and colours around it."""
    found = re.findall(r"RESULT (.*[\]}])", done.stdout)
    return json.loads(found[0]) if found else None
