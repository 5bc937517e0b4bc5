"""AMGCL: algebraic multigrid with SPAI-0, by the program of `benchmarks/peers/amgcl.cpp` that FINELU_AMGCL names."""

import os

from benchmarks.peers import amgcl

if reason := amgcl.missing():
    raise ImportError(reason)

PACKAGES = ()


def by(setting):
    def solve(A, b, rtol, symmetric):
        method = "cg" if symmetric else "bicgstab"
        system = amgcl.System(A, b, None, int(os.environ["OMP_NUM_THREADS"]))
        try:
            found = system.solve(setting, method, rtol, 1000)
        finally:
            system.close()
        return found.x, found.setup + found.solve  # without the files by which the program gets the system

    return solve


SETTINGS = {setting: by(setting) for setting in amgcl.SETTINGS}
