"""How processes connect by NCCL, and use it, without a GPU: NumPy stands for CuPy, MPI for NCCL.

mpiexec -n 4 python multiblock_nccl.py; what each case found on each process is printed as JSON after "RESULT ".
"""

import json
import os
import warnings
from types import SimpleNamespace

import numpy as np
from mpi4py import MPI

import finelu as fl
from finelu.errors import DeviceError
from finelu.kernels import kernels_for
from finelu.kernels.cuda.runtime import nccl
from finelu.krylov.operators import Operator
from finelu.krylov.spread import Vectors
from finelu.matrix import ghosts, interfaces
from finelu.matrix.multiblock import MultiblockMatrix
from finelu.processes import private

COMM = MPI.COMM_WORLD
NEXT, BEFORE = (COMM.rank + 1) % COMM.size, (COMM.rank - 1) % COMM.size
LAST = COMM.rank == COMM.size - 1
MADE = []  # connections, or what kept one from being made


class Gpu:
    """numpy, with as much of CuPy's runtime as tells one GPU from another."""

    def __init__(self, place):
        runtime = SimpleNamespace(getDevice=lambda: 0, deviceGetPCIBusId=lambda device: str(place))
        self.cuda = SimpleNamespace(runtime=runtime)

    def __getattr__(self, name):
        return getattr(np, name)


class Connection:
    """What nccl.Connection does, by messages of MPI."""

    def __init__(self, identity, rank, size):
        MADE.append((identity, rank, size))
        if identity == b"broken":
            raise DeviceError("NCCL: broken.")
        self.comm, self.requests = COMM.Dup(), []

    def exchange(self, leaving, arriving):
        self.requests = [self.comm.Irecv([array, MPI.BYTE], rank) for rank, array in arriving]
        self.requests += [self.comm.Isend([array, MPI.BYTE], rank) for rank, array in leaving]

    def wait(self):
        MPI.Request.Waitall(self.requests)


nccl.library, nccl.new_identity, nccl.Connection = (lambda: "a library"), (lambda: b"of the first"), Connection


def ring(comm, xp, cells=2):
    """Ghosts that want the first `cells` of the two processes next to this one."""
    wanted = {rank: np.arange(cells) for rank in {NEXT, BEFORE}} if cells else {}
    return ghosts.Ghosts(comm, xp, wanted, np.empty(0, np.int64))


def exchanged(on, dtype=np.float64):
    """Whether the values of the neighbours arrived, or the error."""
    x = (10 * COMM.rank + np.arange(6)).reshape(3, 2).astype(dtype)
    try:
        on.begin(x)
        found = on.finish()
    except fl.MatrixError as error:
        return str(error)
    due = [10 * rank + np.arange(4).reshape(2, 2) for rank, _ in on.received]
    return bool((found == np.concatenate(due)).all())


def connected():
    comm = private(COMM)
    first, second = ring(comm, Gpu(COMM.rank)), ring(comm, Gpu(COMM.rank))
    return [
        exchanged(first),
        exchanged(second),
        first.connection is second.connection,
        len(MADE),
        type(first._room).__name__,
    ]


def not_connected(place=COMM.rank, cells=2):
    found = ring(private(COMM.Dup()), Gpu(place), cells)
    return found.connection is None and not MADE


def on_one_gpu():
    return not_connected(place=0)


def nothing_to_send():
    return not_connected(cells=0)


def without_it_on_the_last():
    nccl.library = lambda: None if LAST else "a library"
    return not_connected()


def on_the_host_on_the_last():
    return ring(private(COMM.Dup()), np if LAST else Gpu(COMM.rank)).connection is None


def switched_off_on_the_last():
    os.environ["FINELU_NCCL"] = str(int(not LAST))
    return not_connected()


def wrong_switch_on_the_last():
    os.environ["FINELU_NCCL"] = "no" if LAST else "1"
    try:
        not_connected()
    except fl.ParameterError as error:
        return str(error)


def that_fails():
    nccl.new_identity = lambda: b"broken"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = ring(private(COMM.Dup()), Gpu(COMM.rank))
    return [found.connection is None, len(MADE), [str(w.message) for w in caught]]


def other_numbers_on_the_first():
    """float32 on one process: its neighbours meet an error, and those between are not left waiting."""
    on = ring(private(COMM), Gpu(COMM.rank))
    return [exchanged(on, np.float64 if COMM.rank else other) for other in (np.float32, np.complex64)] + [exchanged(on)]


def devices_that_change():
    """Two matrices of one grid: how cells travel follows from the devices of all, not from the own one."""
    grid = fl.MultiblockGrid({COMM.rank: (2, 2, 2)}, [fl.Interface(COMM.size - 1, "i+", 0, "i-")], COMM)
    blocks = np.ones((7, 2, 2, 2, 1, 1))
    devices = []
    MultiblockMatrix._device = property(lambda A: devices[-1])
    for device in (0, -1 if COMM.rank == 0 else 0):
        devices.append(device)
        A = fl.MultiblockMatrix(grid, {COMM.rank: blocks})
        assert A.T._across is A._across is grid.across[A._devices]
    return [list(key) for key in grid.across]


def layers_of_cells():
    """`exchange` sends layers by NCCL if all processes have their arrays on GPUs, otherwise by MPI."""
    ring = [fl.Interface(rank, "i+", (rank + 1) % COMM.size, "i-") for rank in range(COMM.size)]
    x = 100.0 * COMM.rank + np.arange(12).reshape(3, 2, 2)
    before, beyond = x[-2:] + 100 * (BEFORE - COMM.rank), x[:2] + 100 * (NEXT - COMM.rank)
    found = []
    known = interfaces.gpu_of, interfaces.namespace
    for of_the_last in (0, -1):
        gpu = of_the_last if LAST else 0
        interfaces.gpu_of, interfaces.namespace = (lambda a, n=gpu: n), (lambda a, n=gpu: np if n else Gpu(COMM.rank))
        grid = fl.MultiblockGrid({COMM.rank: x.shape}, ring, COMM)
        for layers in (grid.exchange({COMM.rank: x}, 2)[COMM.rank] for _ in range(2)):
            found.append(bool((layers["i-"] == before).all() and (layers["i+"] == beyond).all()))
        found.append([connection is not None for connection in grid._connections.values()])
    interfaces.gpu_of, interfaces.namespace = known
    return found


def work_ahead():
    """What is done while a norm is formed comes before the processes wait for each other, where it is done at all."""
    found = []
    for ahead in (True, False):
        said = []
        comm = SimpleNamespace(size=COMM.size, Allgather=lambda own, out, said=said: said.append(float(own[0])))
        vectors = Vectors(kernels_for(np.empty(0)).vectors, comm, ahead)
        vectors.norms[:] = 1.0
        vectors.norm(np.array([3.0, 4.0]), np.empty(1), lambda said=said: said.append("work"))
        found.append(said)
    return found


def one_level():
    """A preconditioner of less range gets the parts of a vector divided by the same power of two."""
    seen = []
    M = Operator(lambda x: seen.append(float(x[0])) or x, None, "M").scaled(1.0, levels=True, comm=COMM)
    own = 2.0 if COMM.rank else 1.0
    assert (M @ np.full(2, own) == own).all()
    return [COMM.bcast(seen[0]), COMM.bcast(seen[0], root=1) * 2]


CASES = [connected, on_one_gpu, nothing_to_send, without_it_on_the_last, on_the_host_on_the_last]
CASES += [
    switched_off_on_the_last,
    wrong_switch_on_the_last,
    that_fails,
    other_numbers_on_the_first,
    devices_that_change,
    layers_of_cells,
]
CASES += [work_ahead, one_level]

if __name__ == "__main__":
    found, known = {}, (nccl.library, nccl.new_identity)
    for case in CASES:
        MADE.clear()
        nccl.library, nccl.new_identity = known
        os.environ.pop("FINELU_NCCL", None)
        found[case.__name__] = COMM.gather(case())
    if COMM.rank == 0:
        print("RESULT " + json.dumps(found), flush=True)
