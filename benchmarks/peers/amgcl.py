"""AMGCL, D. Demidov's header-only library of algebraic multigrid, by the program of `amgcl.cpp`.

Nothing of AMGCL is part of this repository: FINELU_AMGCL names the program, built from its sources (the command is in
`amgcl.cpp`). A process holds one system, and solves it whenever it is asked.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.peers import PeerError

SETTINGS = ("aggregation", "ruge_stuben")
SETTINGS_WITH_MODES, SETTINGS_IN_THE_PLANE = ("modes", "modes_block"), ("modes",)


@dataclass(frozen=True)
class Found:
    """x (n,); iterations; seconds of set-up and solve, which begin with the matrix and b in AMGCL's own types."""

    x: Any
    iterations: int
    setup: float
    solve: float


def missing() -> str:
    """Why AMGCL takes no part, in words; "" if it does."""
    program = os.environ.get("FINELU_AMGCL")
    if not program:
        return "FINELU_AMGCL does not name the program of benchmarks/peers/amgcl.cpp"
    return "" if os.access(program, os.X_OK) else f"FINELU_AMGCL={program} is no program"


class System:
    """A x = b in a process of AMGCL.

    S : CSR, float64.  modes (n, m) : the near null space for settings with modes, or None.
    Raises PeerError if the process ends.
    """

    def __init__(self, S: sp.csr_matrix, b: Any, modes: Any, threads: int):
        if reason := missing():
            raise PeerError(f"AMGCL: {reason}")
        self._folder = tempfile.TemporaryDirectory(prefix="finelu-amgcl-")
        system, self._x = (Path(self._folder.name) / name for name in ("system", "x"))
        space = np.empty((S.shape[0], 0)) if modes is None else modes
        with open(system, "wb") as file:
            np.array([S.shape[0], S.nnz, space.shape[1]], np.int64).tofile(file)
            for values, dtype in ((S.indptr, "i4"), (S.indices, "i4"), (S.data, "f8"), (b, "f8"), (space, "f8")):
                np.ascontiguousarray(values, dtype).tofile(file)
        environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
        command = [os.environ["FINELU_AMGCL"], str(system), str(self._x)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._answer()

    def solve(self, setting: str, method: str, rtol: float, most: int) -> Found:
        """Solve once. Raises PeerError if AMGCL does not take the matrix."""
        assert self._process.stdin is not None
        print(setting, method, rtol, most, file=self._process.stdin, flush=True)
        iterations, setup, seconds = self._answer().split()
        return Found(np.fromfile(self._x), int(iterations), float(setup), float(seconds))

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line or line.startswith("failed"):
            raise PeerError(f"AMGCL: {line.strip() or 'its process ended'}")
        return line

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()
