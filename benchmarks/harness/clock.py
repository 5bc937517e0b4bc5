"""Clocks: medians of warm calls on the CPU and on a GPU, points in time on either, and the budget of a run."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Timing:
    """The median of `repeats` measurements in ms, the smallest and the largest; host_ms: until the call returned."""

    ms: float
    low: float
    high: float
    repeats: int
    host_ms: float

    @staticmethod
    def of(device: Sequence[float], host: Sequence[float]) -> Timing:
        return Timing(median(device), min(device), max(device), len(device), median(host))


def repeats_for(ms: float) -> int:
    """How often to measure what takes `ms`: 20 times when fast, once when two seconds or more."""
    return 20 if ms < 20 else 10 if ms < 150 else 5 if ms < 500 else 3 if ms < 2000 else 1


def cpu_time(
    call: Callable[[int], Any],
    repeats: int | None = None,
    *,
    warm: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Time call(i) on the host after `warm` calls, one or more; repeats=None: as often as `repeats_for` says.

    clock : in seconds; time.thread_time for one thread on a machine that does other work, too.
    """
    for i in range(warm):
        start = clock()
        call(i)
    repeats = repeats or repeats_for(1e3 * (clock() - start))
    times = []
    for i in range(repeats):
        start = clock()
        call(i)
        times.append(1e3 * (clock() - start))
    return Timing.of(times, times)


DELAY = r"""
extern "C" __global__ void delay(long long nanoseconds)
{
    long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); while (now - start < nanoseconds);
}
"""
DELAY_NS = 200_000


def gpu_time(
    call: Callable[[int], Any],
    repeats: int | None = None,
    *,
    before: Callable[[int], Any] | None = None,
    host: bool = False,
    warm: int = 2,
) -> Timing:
    """Time call(i) on CuPy's current stream by CUDA events after `warm` calls; before(i) is not timed.

    host=False: a short kernel keeps the GPU busy while the call is queued, so that the launch itself costs nothing, as
    in the loop of a Krylov method. host=True: from an idle device, so that the host's work counts too (an analysis).
    """
    import cupy

    stream = cupy.cuda.get_current_stream()
    wait = cupy.RawKernel(DELAY, "delay")

    def one(i):
        if before:
            before(i)
        if host:
            stream.synchronize()
        else:
            wait((1,), (1,), (np.int64(DELAY_NS),))
        first, last = cupy.cuda.Event(), cupy.cuda.Event()
        first.record(stream)
        begin = time.perf_counter()
        call(i)
        queued = 1e3 * (time.perf_counter() - begin)
        last.record(stream)
        if host:
            last.synchronize()
        return first, last, queued

    def milliseconds(measured):
        stream.synchronize()
        return [elapsed(first, last) for first, last, _ in measured]

    for i in range(warm):
        (estimate,) = milliseconds([one(i)])
    measured = [one(i) for i in range(repeats or repeats_for(estimate))]
    return Timing.of(milliseconds(measured), [queued for *_, queued in measured])


def copy_bandwidth() -> float:
    """GB/s, read and written, of a copy of 2 GiB on the current GPU."""
    import cupy

    source = cupy.zeros(2**28, "float64")
    target = cupy.empty_like(source)
    return 2 * source.nbytes / gpu_time(lambda i: cupy.copyto(target, source)).ms / 1e6


def mark(gpu: bool) -> Any:
    """A point in time for `elapsed`: an event on CuPy's current stream, or the clock of the CPU."""
    if not gpu:
        return time.perf_counter()
    import cupy

    event = cupy.cuda.Event()
    event.record()
    return event


def elapsed(first: Any, last: Any) -> float:
    """Milliseconds between two marks; waits for the device to reach the second."""
    if isinstance(last, float):
        return 1e3 * (last - first)
    import cupy

    last.synchronize()
    return cupy.cuda.get_elapsed_time(first, last)


def synchronized(gpu: bool) -> float:
    """A point of perf_counter at which CuPy's current stream has nothing left to do."""
    if gpu:
        import cupy

        cupy.cuda.get_current_stream().synchronize()
    return time.perf_counter()


class Budget:
    """A wall-clock limit for a run, looked at between matrices; seconds=None: no limit."""

    def __init__(self, seconds: float | None):
        self.start, self.seconds = time.perf_counter(), seconds

    def spent(self) -> float:
        return time.perf_counter() - self.start

    def left(self) -> float:
        return math.inf if self.seconds is None else self.seconds - self.spent()

    def over(self) -> bool:
        return self.left() <= 0
