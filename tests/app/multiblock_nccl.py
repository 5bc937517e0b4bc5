"""How processes connect by NCCL, and use it, without a GPU: NumPy stands for CuPy, MPI for NCCL.

mpiexec -n 4 python multiblock_nccl.py; what each case found on each process is printed as JSON after "RESULT ".
"""

import json
import os
import sys
import warnings
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
from mpi4py import MPI

import finelu as fl
from finelu.errors import DeviceError
from finelu.kernels import kernels_for
from finelu.kernels.cuda.runtime import nccl
from finelu.krylov.operators import Operator
from finelu.krylov.spread import Vectors
from finelu.matrix import ghosts
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


class OnGpu(np.ndarray):
    """An array of NumPy that finelu takes for one of CuPy, on GPU 0."""

    __module__ = "cupy"
    device, data = SimpleNamespace(id=0), SimpleNamespace(device_id=0)
    get = np.asarray


class Elsewhere:
    """What finelu asks of an array of CuPy before it is used, on GPU 1."""

    __module__ = "cupy"
    device, data = SimpleNamespace(id=1), SimpleNamespace(device_id=1)
    shape, dtype = (3, 2, 2), np.dtype(float)


@contextmanager
def cupy():
    """The module of OnGpu, with a GPU for each process."""
    sys.modules["cupy"] = Gpu(COMM.rank)
    try:
        yield
    finally:
        del sys.modules["cupy"]


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
        with cupy():
            layers_of(on_ring(COMM.Dup()), cells().view(OnGpu))
    assert all(w.filename == __file__ for w in caught)  # the lines that called finelu
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


def cells(dtype=float):
    return (100 * COMM.rank + np.arange(12).reshape(3, 2, 2)).astype(dtype)


def on_ring(comm, processes=COMM.size):
    """The grid of `cells`, closed over the first processes; the others have no interface."""
    ring = [fl.Interface(rank, "i+", (rank + 1) % processes, "i-") for rank in range(processes)]
    return fl.MultiblockGrid({COMM.rank: (3, 2, 2)}, ring, comm)


def layers_of(grid, x):
    """Whether the layers of the neighbours of `cells` arrived, or the error."""
    try:
        layers = grid.exchange({COMM.rank: x}, 2)[COMM.rank]
    except fl.FineluError as error:
        return str(error)
    x = cells(x.dtype)
    before, beyond = x[-2:] + 100 * (BEFORE - COMM.rank), x[:2] + 100 * (NEXT - COMM.rank)
    return bool((layers["i-"] == before).all() and (layers["i+"] == beyond).all()) if layers else "none"


def by_nccl(grid):
    return grid._decided[1] is not None


def neighbours_only(grid):
    """From now on the processes of the grid cannot do anything together."""
    comm = grid.comm
    grid.comm = SimpleNamespace(rank=comm.rank, size=comm.size, Isend=comm.Isend, Irecv=comm.Irecv)


def layers_of_cells():
    """`exchange` sends layers by NCCL if all processes have their arrays on GPUs, otherwise by MPI."""
    found = []
    with cupy():
        for on_the_last in (OnGpu, np.ndarray):
            x = cells().view(on_the_last if LAST else OnGpu)
            grid = on_ring(COMM)
            found.append(layers_of(grid, x))
            neighbours_only(grid)
            found += [layers_of(grid, x), by_nccl(grid)]
    return found


def layers_of_a_matrix():
    """A^T speaks to neighbours only."""
    grid = on_ring(COMM)
    A = fl.MultiblockMatrix(grid, {COMM.rank: np.full((7, 3, 2, 2, 1, 1), 1.0 + COMM.rank)})
    neighbours_only(grid)
    blocks = A.T.stencils[COMM.rank].blocks
    return [float(blocks[2, 0, 0, 0, 0, 0]), float(blocks[4, -1, 0, 0, 0, 0])]


def layers_without_interfaces():
    """A process without interfaces does not keep the others from NCCL."""
    with cupy():
        grid = on_ring(COMM, COMM.size - 1)
        grid.exchange({COMM.rank: cells().view(OnGpu)})
        return by_nccl(grid)


def layers_of_two_dtypes():
    """One after the other, then both at once, which is an error of the neighbours and leaves no process waiting."""
    kinds = np.float64, np.float32, np.float32 if COMM.rank == 0 else np.float64, np.float64
    with cupy():
        grid = on_ring(COMM)
        return [layers_of(grid, cells(kind).view(OnGpu)) for kind in kinds] + [by_nccl(grid)]


def layers_of_two_devices():
    """Refused before anything is sent: at first on all processes, later on the one that has them."""
    blocks = [(rank, part) for rank in range(COMM.size) for part in range(2)]
    ring = [fl.Interface((rank, 1), "i+", ((rank + 1) % COMM.size, 0), "i-") for rank in range(COMM.size)]
    grid = fl.MultiblockGrid({name: (3, 2, 2) for name in blocks if name[0] == COMM.rank}, ring, COMM)
    good = {name: cells().view(OnGpu) for name in grid.names}
    mixed = {(COMM.rank, 0): cells(), (COMM.rank, 1): Elsewhere()} if LAST else good
    found = []
    with cupy():
        for arrays in (mixed, good):
            try:
                found.append(len(grid.exchange(arrays)))
            except fl.DeviceError as error:
                found.append(str(error))
        neighbours_only(grid)
        if LAST:
            try:
                grid.exchange(mixed)
            except fl.DeviceError as error:
                found.append(str(error))
        found += [len(grid.exchange(good)), by_nccl(grid)]
    return found


def layers_elsewhere():
    """On a GPU that is not current, and not on the device of the first exchange: refused before anything is sent."""
    with cupy():
        grid = on_ring(COMM)
        found = [layers_of(grid, Elsewhere() if LAST else cells().view(OnGpu))]
        found.append(layers_of(grid, cells().view(OnGpu)))
        if LAST:
            found.append(layers_of(grid, cells()))
        return [*found, layers_of(grid, cells().view(OnGpu))]


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
    layers_of_a_matrix,
    layers_without_interfaces,
    layers_of_two_dtypes,
    layers_of_two_devices,
    layers_elsewhere,
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
