"""hypre's BoomerAMG as a preconditioner of PETSc's cg and bicgstab, on one process.

It needs a petsc4py whose PETSc has hypre, such as Debian's: `tools/petsc_venv.sh` makes an environment with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.peers import PeerError
from benchmarks.peers.amgcl import Found

SETTINGS = ("0.25", "0.5")  # the strong threshold: PETSc's default, and what hypre's manual advises in space
METHODS = {"cg": "cg", "bicgstab": "bcgs"}


def _petsc() -> Any:
    import petsc4py

    petsc4py.init(["benchmark"])
    from petsc4py import PETSc

    return PETSc


def missing() -> str:
    """Why BoomerAMG takes no part, in words; "" if it does."""
    try:
        PETSc = _petsc()
    except ImportError:
        return "petsc4py is not installed (tools/petsc_venv.sh)"
    try:
        PETSc.PC().create(PETSc.COMM_SELF).setType("hypre")
    except PETSc.Error:
        return "this PETSc has no hypre"
    return ""


class System:
    """A x = b as PETSc's matrix and vectors.  S : CSR, float64."""

    def __init__(self, S: sp.csr_matrix, b: Any):
        self._PETSc = PETSc = _petsc()
        rows = S.indptr.astype(PETSc.IntType), S.indices.astype(PETSc.IntType), S.data
        self._A = PETSc.Mat().createAIJ(S.shape, csr=rows, comm=PETSc.COMM_SELF)
        self._b = PETSc.Vec().createWithArray(np.array(b), comm=PETSc.COMM_SELF)

    def solve(self, setting: str, method: str, rtol: float, most: int, clock: Callable[[], float]) -> Found:
        """Solve once, with all that belongs to the set-up.  clock : the time in seconds.

        Raises PeerError if PETSc ends with an error. An iteration that stops before rtol is found by its residual.
        """
        PETSc, x = self._PETSc, self._b.duplicate()
        options = PETSc.Options()
        options["pc_hypre_boomeramg_strong_threshold"] = setting
        begin = clock()
        ksp = PETSc.KSP().create(PETSc.COMM_SELF)
        try:
            ksp.setOperators(self._A)
            ksp.setType(METHODS[method])
            ksp.setPCSide(PETSc.PC.Side.LEFT if method == "cg" else PETSc.PC.Side.RIGHT)
            ksp.setNormType(PETSc.KSP.NormType.UNPRECONDITIONED)
            ksp.setTolerances(rtol=rtol, max_it=most)
            ksp.getPC().setType("hypre")
            ksp.getPC().setHYPREType("boomeramg")
            ksp.setFromOptions()
            ksp.setUp()
            middle = clock()
            ksp.solve(self._b, x)
            end = clock()
            return Found(x.getArray().copy(), ksp.getIterationNumber(), middle - begin, end - middle)
        except PETSc.Error as error:
            raise PeerError(f"BoomerAMG: {error}") from error
        finally:
            ksp.destroy()
            x.destroy()
