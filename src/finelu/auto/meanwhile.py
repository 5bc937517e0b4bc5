"""Complete factors by cuDSS, made by another thread, while iterations go on with the factors that there are."""

from __future__ import annotations

import math
import weakref
from functools import partial
from time import perf_counter
from typing import Any

from finelu import threads
from finelu.device import namespace, own_stream, synchronize
from finelu.kernels.cuda.runtime.cudss import new_stop
from finelu.kernels.operands import CSR
from finelu.preconditioners import SparseLU
from finelu.preconditioners.cudss import CudssFactors

RUNS = 2  # an update and a solve each, of which the faster counts: the first may compile


class Meanwhile:
    """Factors of A as it is now, on its GPU; nobody who drops this waits for that thread, which then soon ends.

    over : whether `found` has no need to wait.  began : by `perf_counter`.
    """

    def __init__(self, A: CSR, most: float, *, host_threads: int, timed: bool = False, indefinite: bool = False):
        """most : entries that the factors may have; with more there are none.  host_threads : for the plan.
        timed : measure an update and a solve, too.  indefinite : see `CudssFactors`.
        """
        copied = CSR(*(v.copy() for v in (A.indptr, A.indices, A.data, A.diag)))  # the caller may change A
        synchronize(A.data)
        self.pattern, self.began = copied, perf_counter()
        stop = new_stop()
        given = copied, most, host_threads, indefinite, timed, stop
        self._task = threads.begin(_made, *given, halt=partial(_end, stop))
        self._unused = weakref.finalize(self, _end, stop)
        self._unused.atexit = False

    @property
    def over(self) -> bool:
        return self._task.done()

    def found(self) -> tuple[CudssFactors, float]:
        """The factors, and the seconds of an update and a solve with them, or Inf. Raises what making them raised."""
        self._task.wait()
        self._unused.detach()
        made: tuple[CudssFactors, float] = self._task.result()
        return made


def _made(
    A: CSR, most: float, host_threads: int, indefinite: bool, timed: bool, stop: Any
) -> tuple[CudssFactors, float]:
    least = math.inf
    with own_stream(A.data):
        F = CudssFactors(
            SparseLU(backend="cudss"), A, most, indefinite=indefinite, host_threads=host_threads, stop=stop
        )
        b = namespace(A.data).ones(A.n, A.dtype)
        for _ in range(RUNS if timed else 0):
            start = perf_counter()
            F.update(A)
            synchronize(F.solve(b))
            least = min(least, perf_counter() - start)
    return F, least


def _end(stop: Any) -> None:
    stop.value = 1
