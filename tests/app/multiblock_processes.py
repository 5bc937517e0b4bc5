"""What the tests of multi-block matrices run on several processes: mpiexec -n 2 python multiblock_processes.py CASE.

Each case is a function; what it returns on the first process is printed as one line of JSON, after "RESULT ".
"""

import json
import os
import pickle
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from mpi4py import MPI

sys.path.insert(0, str(Path(__file__).parents[1]))
from multiblock_cases import AS_IT_IS, TURNS, Cut
from stencil_cases import random_blocks

import finelu as fl
from finelu import threads
from finelu.device import to_host
from finelu.processes import agreed, kept_for, private

COMM = MPI.COMM_WORLD
SHAPE, N = (12, 5, 3), 3
CUT = Cut(SHAPE, 0, [3, 6, 9], [AS_IT_IS, TURNS[13], TURNS[30], TURNS[47]], closed=True)
BLOCKS = random_blocks(SHAPE, N, seed=11)
PARTS = CUT.blocks(BLOCKS)
OWN = {k: part for k, part in PARTS.items() if k % COMM.size == COMM.rank}
LAST = COMM.rank == COMM.size - 1


def spread(blocks=OWN):
    """A on these processes."""
    return fl.MultiblockMatrix(CUT.grid(blocks, COMM), blocks)


def differences(pairs):
    return [max(COMM.allgather(float(abs(to_host(a) - to_host(b)).max()))) for a, b in pairs]


def same(xp=np):
    """Products, corrections and exchange, as on one process on the host."""
    A, alone = spread({k: xp.asarray(part) for k, part in OWN.items()}), fl.MultiblockMatrix(CUT.grid(PARTS), PARTS)

    def own(alone, x):
        """The part of this process of x, a vector of the whole."""
        parts = alone.split(x)
        return xp.concatenate([xp.asarray(parts[k].reshape(-1)) for k in OWN])

    rng = np.random.default_rng(1)
    x, b = (rng.standard_normal(alone.shape[0]) for _ in range(2))
    F, G = fl.BlockILU0().factor(A), fl.BlockILU0().factor(alone)
    found = fl.richardson(A, own(alone, b), M=F, rtol=1e-12, maxiter=100)
    single = fl.richardson(alone, b, M=G, rtol=1e-12, maxiter=100)
    looked: list[int] = []

    def first_at_three(k, _):
        looked.append(k)
        return k == 3

    stopped = fl.richardson(A, own(alone, b), M=F, rtol=0, maxiter=50, watch=first_at_three if COMM.rank == 0 else None)
    # a residual that only twice the precision can tell from rounding
    exact = fl.richardson(A, own(alone, b), x0=found.x, M=F, rtol=1e-16, maxiter=20)
    cells = {k: np.arange(part.shape[1] * part.shape[2] * part.shape[3], dtype=float).reshape(part.shape[1:4])
             for k, part in PARTS.items()}  # fmt: skip
    here, there = A.grid.exchange({k: xp.asarray(cells[k]) for k in OWN}, 2), alone.grid.exchange(cells, 2)
    F.update(fl.MultiblockMatrix(A.grid, {k: xp.asarray(2 * part) for k, part in OWN.items()}))
    return {
        "differences": differences(
            [
                (A @ own(alone, x), own(alone, alone @ x)),
                (A.residual(own(alone, b), own(alone, x)), own(alone, alone.residual(b, x))),
                (A.rmatvec(own(alone, x)), own(alone, alone.rmatvec(x))),
                (found.x, own(alone, single.x)),
                (2 * F.solve(own(alone, b)), own(alone, G.solve(b))),
                *((here[k][face] + 0, there[k][face]) for k in OWN for face in here[k]),
            ]
        ),
        "looked": looked,
        "histories": float(abs(found.history - single.history).max()),
        "iterations": [found.iterations, single.iterations],
        "statuses": [str(s) for s in COMM.allgather(found.status.name)],
        "stopped": [COMM.allgather(stopped.status.name), COMM.allgather(stopped.iterations)],
        "exact": [COMM.allgather(exact.status.name), COMM.allgather(exact.residual_norm)],
        "residual": [
            found.residual_norm,
            float(np.linalg.norm(b - alone @ np.concatenate(gathered(to_host(found.x))))),
        ],
        "bounds": bool(np.allclose((*A.bounds(), A.norm_bound()), (*alone.bounds(), alone.norm_bound()), rtol=1e-12)),
        "way": type(A._across.ghosts._room).__name__,
        "layers_by_nccl": A.grid._decided[1] is not None,
        "threads": threads.get_num_threads() * COMM.size <= max(threads.available_cores(), COMM.size),
    }


def own_gpu():
    """cupy, with a GPU of this process's own, where there are as many."""
    import cupy

    cupy.cuda.Device(COMM.rank % cupy.cuda.runtime.getDeviceCount()).use()
    return cupy


def same_on_gpu():
    """`same` with the blocks of each process on its GPU."""
    return same(own_gpu())


def same_on_both():
    """`same` with the blocks of the first process on a GPU, those of the others on the host."""
    import cupy

    return same(np if COMM.rank else cupy)


def gpu_then_both():
    """Matrices of one grid, first all on GPUs, then the first process's on the host: each keeps its own way."""
    cupy = own_gpu()
    A = spread({k: cupy.asarray(part) for k, part in OWN.items()})
    xp = cupy if COMM.rank else np
    B = fl.MultiblockMatrix(A.grid, {k: xp.asarray(part) for k, part in OWN.items()})
    x = np.arange(A.shape[0]) % 7.0
    first, mixed, again = A @ cupy.asarray(x), B @ xp.asarray(x), A @ cupy.asarray(x)
    agree = bool(np.allclose(to_host(mixed), to_host(first), rtol=1e-12, atol=1e-12))
    return COMM.allgather([agree, bool((again == first).all())])


def preconditioned_on_both():
    """M forms a product with A, which is collective, where one process has a GPU and the other none."""
    xp = np if COMM.rank else own_gpu()
    A = spread({k: xp.asarray(part) for k, part in OWN.items()})
    F, b = fl.BlockILU0().factor(A), xp.ones(A.shape[0])

    def M(r):
        z = F.solve(r)
        return z + F.solve(r - A @ z)

    once, twice = (fl.richardson(A, b, M=P, rtol=1e-10, maxiter=100) for P in (F, M))
    return COMM.allgather([once.converged and twice.converged, twice.iterations < once.iterations])


def gathered(x):
    """The parts of all processes, in the order of the blocks."""
    parts, at = {}, 0
    for k in OWN:
        size = int(np.prod(PARTS[k].shape[1:4])) * N
        parts[k], at = x[at : at + size], at + size
    everything = {k: v for theirs in COMM.allgather(parts) for k, v in theirs.items()}
    return [everything[k] for k in sorted(everything)]


def not_matching():
    shapes = {COMM.rank: (2, 3, 4 + COMM.rank)}
    fl.MultiblockGrid(shapes, [fl.Interface(0, "i+", 1, "i-")], COMM)


def without_a_block():
    fl.MultiblockGrid({} if COMM.rank else {0: (2, 2, 2)}, [], COMM)


def twice():
    fl.MultiblockGrid({0: (2, 2, 2)}, [], COMM)


def other_interfaces():
    fl.MultiblockGrid({COMM.rank: (2, 2, 2)}, [fl.Interface(0, "i+", 1, "i-")][COMM.rank :], COMM)


def other_kinds():
    grid = fl.MultiblockGrid({COMM.rank: (2, 2, 2)}, [], COMM)
    fl.MultiblockMatrix(grid, {COMM.rank: random_blocks((2, 2, 2), 2 + COMM.rank)})


def broken(place, value):
    """The blocks of this process, with another value in the first cell of the first on the last process."""
    blocks = {k: part.copy() for k, part in OWN.items()}
    if LAST:
        next(iter(blocks.values()))[place, 0, 0, 0] = value
    return blocks


def not_a_number():
    spread(broken(3, np.nan))


def singular():
    fl.BlockILU0().factor(spread(broken(slice(4), 0)))


def bad_b():
    A = spread()
    b = np.ones(A.shape[0])
    b[3] = np.nan if LAST else 1
    fl.richardson(A, b)


def other_dtype():
    A = spread()
    fl.richardson(A, np.ones(A.shape[0], np.complex128 if COMM.rank else np.float64))


def gmres():
    A = spread()
    fl.gmres(A, np.ones(A.shape[0]))


def as_csr():
    fl.ILU0().factor(spread())


def other_rtol():
    A = spread()
    fl.richardson(A, np.ones(A.shape[0]), rtol=1e-5 * (1 + COMM.rank))


def too_large():
    """Beyond float32, in a block that is not the first of its process."""
    blocks = {k: part.copy() for k, part in OWN.items()}
    if LAST:
        list(blocks.values())[-1][3, 0, 0, 0, 0, 1] = 1e300
    fl.BlockILU0(precision="float32").factor(spread(blocks))


def other_update():
    A = spread()
    F = fl.BlockILU0().factor(A)
    F.update(A if COMM.rank else "no matrix")


def too_deep():
    grid = CUT.grid(OWN, COMM)
    grid.exchange({k: np.zeros(shape) for k, shape in grid.shapes.items()}, depth=4)


def no_list():
    fl.MultiblockGrid({COMM.rank: (2, 2, 2)}, [] if COMM.rank else None, COMM)


def pickled():
    pickle.dumps(CUT.grid(OWN, COMM))


def errors():
    """{case: the text of the error that each process meets}."""
    found = {}
    cases = not_matching, without_a_block, twice, other_interfaces, other_kinds, not_a_number, singular, bad_b
    cases += other_rtol, too_large, other_update, too_deep, no_list, pickled, other_dtype, gmres, as_csr
    for case in cases:
        try:
            case()
            text = ""
        except (fl.FineluError, TypeError) as error:
            text = str(error)
        found[case.__name__] = COMM.allgather(text)
    return found


def of_the_page():
    """The examples of the documentation, one after the other."""
    page = Path(__file__).resolve().parents[2] / "docs" / "multiblock.md"
    code = re.findall(r"^```python.*?\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    exec("\n".join(code), names := {})
    return len(code), COMM.allgather(list(names["own"]))


def apart():
    """What each process does by itself does not disturb the others: threads, communicators, messages, exceptions."""
    if COMM.rank == 0:
        fl.set_num_threads(1)
    pair = COMM.Split(COMM.rank // 2)
    if COMM.rank < 2:
        fl.MultiblockGrid({pair.rank: (2, 2, 2)}, [fl.Interface(0, "i+", 1, "i-")], pair)
    A = spread()
    x = np.ones(A.shape[0])
    before = A @ x
    there, here = (COMM.rank + 1) % COMM.size, np.empty(4)
    sent = COMM.Isend(np.full(4, 1000.0), there)
    again = A @ x
    COMM.Recv(here, (COMM.rank - 1) % COMM.size)
    sent.Wait()

    class Strange(Exception):  # which cannot be pickled
        pass

    def work():
        if LAST:
            raise Strange("of the last")

    try:
        agreed(COMM, work)
    except RuntimeError as error:
        text = str(error)
    return COMM.allgather([bool((again == before).all()), here.tolist(), text])


def other_numbers(xp=np):
    """float32 on the first process, float64 on the others."""
    A = spread({k: xp.asarray(part.astype(np.float32)) for k, part in OWN.items()})
    A @ xp.ones(A.shape[0], np.float64 if COMM.rank else np.float32)


def other_numbers_on_gpu():
    other_numbers(own_gpu())


def kept():
    """Objects kept for a communicator are closed once, when it is freed."""
    closed = []
    given = COMM.Dup()
    own = private(given)
    kept_for(own)["something"] = SimpleNamespace(close=lambda: closed.append(COMM.rank))
    again = kept_for(private(given)) is kept_for(own) and not closed
    given.Free()
    return [again, COMM.allgather(closed)]


def dies():
    """The last process is killed while the others wait for it."""
    A = spread()
    if LAST:
        os.kill(os.getpid(), signal.SIGKILL)
    fl.richardson(A, np.ones(A.shape[0]), M=fl.BlockILU0().factor(A), rtol=0, maxiter=10**6)


def fails():
    """An exception of the program's own on the last process, which nothing catches."""
    A = spread()
    if LAST:
        raise RuntimeError("the last process has had enough")
    fl.richardson(A, np.ones(A.shape[0]), M=fl.BlockILU0().factor(A), rtol=0, maxiter=10**6)


if __name__ == "__main__":
    result = globals()[sys.argv[1]]()
    if COMM.rank == 0:
        print("RESULT " + json.dumps(result), flush=True)
