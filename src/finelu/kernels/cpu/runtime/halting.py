"""The early end of a kernel that may take long: about once per row it reads a number that another thread may set.

    halt = deadline.halt()      # Python: an argument of the kernel
    ...
    if halted(halt):            # the kernel: it returns, or leaves its loop, with an incomplete result
        return ...
    ...
    deadline.check()            # Python, after the kernel: OutOfTime, so that no caller gets that result

A kernel of several threads leaves the rows of an item, not the loop over items: all items are completed, and so no
thread waits for another that has left.
"""

from __future__ import annotations

from finelu.kernels.cpu.runtime.atomics import load_relaxed
from finelu.kernels.cpu.runtime.jit import nested


@nested
def halted(halt):
    """Whether halt[0], read anew, is no longer 0."""
    return load_relaxed(halt, 0) != 0
