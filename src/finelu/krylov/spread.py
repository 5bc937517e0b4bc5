"""A x = b with rows spread over processes: norms are those of the whole vectors, and all processes decide alike.

Each host has the norms of all processes and decides on its own, by the kernels of the CPU, even if the vectors are on a
GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from finelu.device import namespace, on_gpu
from finelu.errors import MatrixError, ParameterError
from finelu.kernels import kernels_for, monitor
from finelu.krylov.loop import Callback, Watch
from finelu.krylov.system import System
from finelu.matrix.products import BlockProducts
from finelu.processes import agreed


def checked(A: Any, b: Any, x0: Any, M: Any) -> System:
    """`System.checked`, for a method that needs no other communication than that in `Everywhere`.

    If A is spread over processes, all must call it; an error on one is raised on all.
    """
    comm = A.comm if isinstance(A, BlockProducts) else None
    if comm is None:
        return System.checked(A, b, x0, M)
    system = agreed(comm, lambda: System.checked(A, b, x0, M, spread=True), named=True)
    kind = system.dtype.name, system.narrow.name, system.x0 is None
    facts = comm.allgather((kind, system.b.size, on_gpu(system.b)))
    other = next((k for k, fact in enumerate(facts) if fact[0] != facts[0][0]), None)
    if other is not None:
        raise MatrixError(
            f"b, x0 or M differ in kind between processes 0 and {other}: {facts[0][0]} and {facts[other][0]} (dtype, "
            "the narrowest dtype, without x0); all need the same."
        )
    system.comm, system.unknowns = comm, sum(size for _, size, _ in facts)
    system.decides = np
    system.kernels = Everywhere(system.kernels, comm, any(gpu for *_, gpu in facts))  # type: ignore[assignment]
    return system


def alike(system: System, callback: Callback, watch: Watch, **parameters: Any) -> tuple[Callback, Watch]:
    """(callback, watch) for this process. Raises ParameterError, on all processes, if parameters differ.

    All processes decide together. So a process without a callback or watch, if another one has it, gets a function that
    lets the solve go on.
    """
    if system.comm is None:
        return callback, watch
    given = system.comm.allgather((parameters, callback is not None, watch is not None))
    for rank, (theirs, *_) in enumerate(given):
        for name, value in theirs.items():
            if value != given[0][0][name]:
                raise ParameterError(f"{name} is {given[0][0][name]!r} on process 0 and {value!r} on process {rank}.")
    if callback is None and any(fact[1] for fact in given):
        callback = _goes_on
    if watch is None and any(fact[2] for fact in given):
        watch = _goes_on
    return callback, watch


def _goes_on(*_: Any) -> bool:
    return False


class Everywhere:
    """The kernels of this process, for a method whose scalars are on the host and hold for all processes.

    ahead : whether work is done while a norm is formed. It is the same on all processes, True if any has a GPU, as the
        work may be collective.
    """

    def __init__(self, kernels: Any, comm: Any, ahead: bool):
        self.kernels = kernels
        self.vectors, self.cycle, self.recurrences = Vectors(kernels.vectors, comm, ahead), Cycle(comm), Recurrences()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernels, name)


class Vectors:
    def __init__(self, kernels: Any, comm: Any, ahead: bool):
        self.kernels, self.comm, self.ahead = kernels, comm, ahead
        self.norms = np.empty(comm.size)
        self.copies: dict[Any, tuple[Any, Any]] = {}  # snapshots of norms on the GPU, made once: they lock memory

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernels, name)

    def norm(self, x: Any, out: Any, work: Callable[[], Any] | None = None) -> Any:
        """out[0] = ||x||_2 over the parts of all processes, with the same bits on each. Returns work(), or None.

        work : called only if `ahead` is set: a GPU runs the kernels that it queues while the host waits for the norm.
        """
        done, own = None, np.empty(1, out.dtype)
        if on_gpu(x):
            if out.dtype not in self.copies:
                there = namespace(x).empty(1, out.dtype)
                self.copies[out.dtype] = there, kernels_for(x).cycle.Snapshot(there[:0], there)
            there, copy = self.copies[out.dtype]
            self.kernels.norm(x, there)
            copy.post()
        else:
            self.kernels.norm(x, own)
        if self.ahead and work is not None:
            done = work()
        if on_gpu(x):
            own = copy.read()[1]
        self.comm.Allgather(own.astype(np.float64), self.norms)
        out[0] = math.hypot(*self.norms.tolist())
        return done

    def first_not_finite(self, x: Any) -> int:
        """The index of the first NaN or Inf of this process; 0 if only others have one; -1 if no process has one."""
        place = int(self.kernels.first_not_finite(x))
        return max(place, 0) if max(self.comm.allgather(place)) >= 0 else -1


class Cycle:
    def __init__(self, comm: Any):
        self.comm = comm
        self.kernels = kernels_for(np).cycle
        self.Snapshot, self.begin_cycle = self.kernels.Snapshot, self.kernels.begin_cycle
        self.claim_unless_it_follows = self.kernels.claim_unless_it_follows

    def keep_verified(self, state: Any, x: Any, verified: Any) -> None:
        if state[monitor.IMPROVED]:
            verified[:] = x

    def unless_finite(self, x: Any, norm: Any) -> None:
        """norm[0] = NaN if any process has NaN or Inf in its x."""
        if not all(self.comm.allgather(bool(namespace(x).isfinite(x).all()))):
            norm[0] = np.nan


class Recurrences:
    def __init__(self) -> None:
        self.record = kernels_for(np).recurrences.record

    def advance(self, state: Any, z: Any, x: Any, best: Any) -> None:
        """x += z; see the kernel of this name."""
        if state[monitor.CODE] == monitor.RUNNING:
            if state[monitor.IMPROVED]:
                best[:] = x
            x += z
