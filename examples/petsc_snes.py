"""A nonlinear problem by Newton's method, PETSc's SNES: the factors of each Jacobian are an update of those before.

-Laplace(u) + w . grad(u) = c exp(u) in the unit square, u = 0 around it (Bratu with a wind). Every Jacobian
stores its entries at the same places, so that finelu analyses the pattern once and repeats only the numbers.

    mpiexec -n 2 python examples/petsc_snes.py -snes_monitor -da_grid_x 100 -da_grid_y 100 -c 6 -sub_finelu_recipe iluk
"""

import sys

import petsc4py

petsc4py.init(sys.argv)
import numpy as np  # noqa: E402
from petsc4py import PETSc  # noqa: E402

from finelu.interop.petsc import PC  # noqa: E402


class Bratu:
    """The residual F(u) and its Jacobian on the points of this process."""

    def __init__(self, grid, c, wind):
        self.grid, self.c = grid, c
        self.h = 1.0 / (np.array(grid.getSizes()) + 1)
        hx, hy = self.h
        self.ghosted = grid.createLocalVec()
        # west, east, south, north, as the upwind scheme weighs them, times hx hy
        self.weights = (
            -hy / hx - max(wind[0], 0) * hy,
            -hy / hx - max(-wind[0], 0) * hy,
            -hx / hy - max(wind[1], 0) * hx,
            -hx / hy - max(-wind[1], 0) * hx,
        )

    def residual(self, snes, u, f):
        """F(u): the neighbours that other processes own come with the ghost points; outside the square u = 0."""
        self.grid.globalToLocal(u, self.ghosted)
        (x0, x1), (y0, y1) = self.grid.getRanges()
        (gx0, gx1), (gy0, gy1) = self.grid.getGhostRanges()  # x runs fastest
        ghosts = self.ghosted.getArray(readonly=True).reshape((gx1 - gx0, gy1 - gy0), order="F")
        padded = np.zeros((x1 - x0 + 2, y1 - y0 + 2), PETSc.ScalarType)
        at = gx0 - x0 + 1, gy0 - y0 + 1
        padded[at[0] : at[0] + ghosts.shape[0], at[1] : at[1] + ghosts.shape[1]] = ghosts
        own = padded[1:-1, 1:-1]
        w, e, s, n = self.weights
        value = -sum(self.weights) * own - self.h.prod() * self.c * np.exp(own)
        value += w * padded[:-2, 1:-1] + e * padded[2:, 1:-1] + s * padded[1:-1, :-2] + n * padded[1:-1, 2:]
        f.setArray(value.ravel(order="F"))

    def jacobian(self, snes, u, J, P):
        (x0, x1), (y0, y1) = self.grid.getRanges()
        nx, ny = self.grid.getSizes()
        own = u.getArray(readonly=True).reshape((x1 - x0, y1 - y0), order="F")
        row, column = PETSc.Mat.Stencil(), PETSc.Mat.Stencil()
        for j in range(y0, y1):
            for i in range(x0, x1):
                row.index = (i, j)
                diagonal = -sum(self.weights) - self.h.prod() * self.c * np.exp(own[i - x0, j - y0])
                P.setValueStencil(row, row, diagonal)
                for (p, q), weight in zip(((i - 1, j), (i + 1, j), (i, j - 1), (i, j + 1)), self.weights, strict=True):
                    if 0 <= p < nx and 0 <= q < ny:
                        column.index = (p, q)
                        P.setValueStencil(row, column, weight)
        P.assemble()
        if J != P:
            J.assemble()


def main():
    options = PETSc.Options()
    star = PETSc.DMDA.StencilType.STAR  # the rows couple along the axes alone: the matrix stores nothing else
    grid = PETSc.DMDA().create(dim=2, sizes=(40, 40), stencil_width=1, stencil_type=star, setup=False)
    grid.setFromOptions()
    grid.setUp()
    problem = Bratu(grid, options.getReal("c", 6.0), [float(w) for w in options.getString("wind", "20,5").split(",")])

    if not options.hasName("pc_type"):
        options.setValue("pc_type", "bjacobi")
        if not options.hasName("sub_pc_type"):
            options.setValue("sub_pc_type", "python")
            options.setValue("sub_pc_python_type", "finelu.interop.petsc.PC")
    snes = PETSc.SNES().create()
    snes.setFunction(problem.residual, grid.createGlobalVec())
    snes.setJacobian(problem.jacobian, grid.createMat())
    snes.setTolerances(rtol=1e-10)
    snes.getKSP().setTolerances(rtol=1e-6)
    snes.setFromOptions()
    u = grid.createGlobalVec()
    snes.solve(None, u)

    PETSc.Sys.Print(
        f"{snes.getIterationNumber()} Newton steps, {snes.getLinearSolveIterations()} linear iterations, "
        f"largest u {u.max()[1]:.6f}, PETSc's reason {snes.getConvergedReason()}"
    )
    outer = snes.getKSP().getPC()
    if hasattr(outer, "getBJacobiSubKSP") and outer.getType() == "bjacobi":
        context = outer.getBJacobiSubKSP()[0].getPC().getPythonContext()
        if isinstance(context, PC):
            calls = context.calls
            PETSc.Sys.Print(f"on the first process: {calls['factor']} factorization, {calls['update']} updates")
    return 0 if snes.getConvergedReason() > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
