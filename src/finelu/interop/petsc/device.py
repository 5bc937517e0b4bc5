"""The GPU of a process, and its share of the cores of its machine."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

from petsc4py import PETSc

from finelu import threads
from finelu.errors import DeviceError
from finelu.interop.petsc.memory import cuda_array, is_on_gpu

# What launchers call the number of a process on its machine, and how many there are ("4(x2),3" with SLURM).
LOCAL_RANK = (
    "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "PMIX_LOCAL_RANK",
    "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID", "SLURM_LOCALID",
)  # fmt: skip
LOCAL_SIZE = (
    "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "PALS_LOCAL_SIZE",
    "SLURM_STEP_TASKS_PER_NODE",
)  # fmt: skip


def chosen_gpu(cupy: Any, device: str, P: PETSc.Mat) -> int:
    """The number of the GPU: where PETSc has the block, else as given, or that of this process on its machine.

    PETSc counts processes over all machines and this module those of each machine, so the two may differ.
    """
    there = gpu_of(cupy, P)
    given = device.partition(":")[2]
    if given and there is not None and int(given) != there:
        raise DeviceError(f"device {device} was given, but PETSc has this block on cuda:{there}; give cuda.")
    count = cupy.cuda.runtime.getDeviceCount()
    if given and int(given) >= count:
        raise DeviceError(f"device {device} was given, and the last GPU here is cuda:{count - 1}; give cuda.")
    if given:
        return int(given)
    return local_rank() % int(count) if there is None else there


def gpu_of(cupy: Any, P: PETSc.Mat) -> int | None:
    """The number of the GPU on which PETSc has the vectors of a matrix; None where they are on the host."""
    v = P.createVecRight()
    if not is_on_gpu(v):
        return None
    with cuda_array(cupy, v, "w") as memory:
        return int(cupy.cuda.runtime.pointerGetAttributes(memory.data.ptr).device)


def has_own_stream() -> bool:
    """Whether an option makes PETSc leave CUDA's default stream, which otherwise orders its work and that of CuPy."""
    return "nonblocking" in PETSc.Options().getString("root_device_context_stream_type", "default")


def local_rank() -> int:
    """The number of this process on its machine, from the launcher: asking the other processes could wait for ever."""
    rank = from_launcher(LOCAL_RANK)
    return int(PETSc.COMM_WORLD.getRank()) if rank is None else rank


def share_cores() -> None:
    """Divide the cores of a machine among its processes, unless the user has set the number of threads."""
    if threads.chosen():
        return
    if not threads.bound():  # then all processes share them
        size = from_launcher(LOCAL_SIZE) or PETSc.COMM_WORLD.getSize()
        threads.set_num_threads(max(threads.available_cores() // size, 1))


def from_launcher(names: Sequence[str]) -> int | None:
    """The number in the first of these environment variables that holds one."""
    found = (re.match(r"\d+", os.environ.get(name, "")) for name in names)
    return next((int(number[0]) for number in found if number), None)
