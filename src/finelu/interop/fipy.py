"""`LinearLUSolver` and `Preconditioner`: complete and incomplete factors for FiPy's equations."""

from __future__ import annotations

from typing import Any

from finelu.interop.scipy import spsolve

try:
    from fipy.solvers.preconditioner import MatrixModifyingPreconditioner
    from fipy.solvers.scipy.linearLUSolver import LinearLUSolver as _OfFiPy
except ImportError as error:
    raise ImportError("finelu.interop.fipy needs FiPy: pip install fipy.") from error


class LinearLUSolver(_OfFiPy):  # type: ignore[misc]
    """FiPy's solver of this name, with its arguments, by `finelu.spsolve`.

    An x that fulfils the tolerance from the beginning stays, as in FiPy; one that does not at the end is a divergence,
    of which FiPy warns. Sweeps share the analysis of their pattern.
    """

    def _solve_(self, L: Any, x: Any, b: Any) -> Any:
        scale, _ = self._adaptTolerance(L, x, b)
        residual = self._residualNorm(L, x, b)
        if not residual <= self.tolerance * scale:
            x[:] = spsolve(L, b)
            residual = self._residualNorm(L, x, b)
        code = 0 if residual <= self.tolerance * scale else 1  # SciPy's numbers; FiPy warns of 1
        self._setConvergence(suite="scipy", code=code, iterations=1, residual=residual)
        self.convergence.warn()
        return x


class Preconditioner(MatrixModifyingPreconditioner):  # type: ignore[misc]
    """M of a Krylov method of FiPy on SciPy: `LinearGMRESSolver(precon=Preconditioner(finelu.ILU0()))`.

    recipe : makes M from the matrix of each solve.
    """

    def __init__(self, recipe: Any):
        self.recipe = recipe

    def _applyToMatrix(self, matrix: Any) -> tuple[Any, Any]:
        return self.recipe.factor(matrix), matrix
