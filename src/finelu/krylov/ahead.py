"""The number of iterations that a GPU may be ahead of the host's knowledge of its progress."""

from __future__ import annotations

from typing import Any

from finelu.kernels import monitor

# The most iterations between two looks of the host. On the GPU a look reads the copy that was queued at the look
# before, and up to twice as many iterations are queued after the last that counts. Where the host has to wait for that
# copy, the device is behind, looks cost nothing, and the next comes twice as early; where it finds it there, twice as
# late, but so that no more than one of AHEAD iterations is queued for nothing, and one or two in any case: those take
# the device as long as any other.
LOOK_EVERY = {"numpy": 1, "cupy": 8}
AHEAD = 4


class Ahead:
    """The host looks at copies of state and norms every few iterations, and so never waits for a step.

    snapshots : two snapshots, which are posted in turns.  longest : the most iterations between two looks.
    due : the number of queued iterations at which the next look is due.
    """

    def __init__(self, snapshots: list[Any], longest: int):
        self.snapshots, self.longest = snapshots, longest
        self.every = 1  # iterations until the next look, from 1 to longest
        self.due = 0
        self.posted: list[int] = []  # the cycle in which each waiting snapshot was posted, oldest first
        self.looks = 0

    def look(self, cycle: int, launched: int, wait: bool) -> tuple[int, Any, Any] | None:
        """The cycle, state and norms of one snapshot; None if there is no snapshot to read.

        With `wait` it is the present one, else that of the previous look, which needs no waiting.
        cycle : the current cycle.  launched : the number of iterations queued.
        """
        self.snapshots[self.looks % 2].post()
        self.posted.append(cycle)
        self.looks += 1
        if wait:
            self.posted = self.posted[-1:]
            snapshot = self.snapshots[(self.looks - 1) % 2]
        elif len(self.posted) == 2:
            snapshot = self.snapshots[self.looks % 2]
            later = min(2 * self.every, self.longest, 1 + launched // AHEAD)
            self.every = later if snapshot.ready() else max(self.every // 2, 1)
        self.due = launched + self.every
        if len(self.posted) < 2 and not wait:
            return None
        state, norms = snapshot.read()
        if wait:
            self.due = int(state[monitor.ITERATIONS])
        return self.posted.pop(0), state, norms
