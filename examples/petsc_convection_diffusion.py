"""3D convection and diffusion on a grid that is spread over processes, with finelu in each subdomain.

-Laplace(u) + w . grad(u) = 1 in the unit cube, u = 0 on its boundary, by 7 points, the wind by upwind differences.
PETSc's DMDA spreads the grid in boxes and says which process owns which points; each process assembles its own rows.

    mpiexec -n 4 python examples/petsc_convection_diffusion.py -da_grid_x 64 -da_grid_y 64 -da_grid_z 64 \
        -pc_asm_overlap 2 -sub_finelu_recipe parilut -sub_finelu_steps 3 -ksp_view

What follows -da_grid_* are options of the solver: any of PETSc's, and those of docs/petsc.md; -wind 50,20,10 sets w.
"""

import sys

import petsc4py

petsc4py.init(sys.argv)
import numpy as np  # noqa: E402
from petsc4py import PETSc  # noqa: E402


def assemble(grid, wind):
    """A of the grid, times h^2 of each direction's own h; the rows of this process are the points of its box."""
    A = grid.createMat()
    sizes = grid.getSizes()
    h = 1.0 / (np.array(sizes) + 1)
    (x0, x1), (y0, y1), (z0, z1) = grid.getRanges()
    scale = h.prod() ** (2 / 3)
    number = grid.getAO()
    z, y, x = np.meshgrid(np.arange(z0, z1), np.arange(y0, y1), np.arange(x0, x1), indexing="ij")
    point = np.array([x.ravel(), y.ravel(), z.ravel()])

    def global_number(p):
        natural = p[0] + sizes[0] * (p[1] + sizes[1] * p[2])
        return number.app2petsc(natural.astype(PETSc.IntType))

    rows = global_number(point)
    columns, values, inside = [rows], [np.zeros(rows.size)], [np.ones(rows.size, bool)]
    for axis in range(3):
        diffusion, convection = scale / h[axis] ** 2, scale * wind[axis] / h[axis]
        for side in (-1, 1):
            neighbour = point.copy()
            neighbour[axis] += side
            there = (neighbour[axis] >= 0) & (neighbour[axis] < sizes[axis])
            upwind = max(-side * convection, 0.0)
            columns.append(global_number(np.where(there, neighbour, point)))
            values.append(np.full(rows.size, -diffusion - upwind))
            inside.append(there)
            values[0] += diffusion + upwind
    columns, values, inside = (np.array(part).T for part in (columns, values, inside))
    lengths = inside.sum(axis=1)
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(PETSc.IntType)
    own = columns[inside], values[inside].astype(PETSc.ScalarType)
    A.setValuesIJV(starts, own[0].astype(PETSc.IntType), own[1], rowmap=rows)
    A.assemble()
    return A


def main():
    options = PETSc.Options()
    wind = np.array([float(w) for w in options.getString("wind", "50,20,10").split(",")])
    star = PETSc.DMDA.StencilType.STAR  # the rows couple along the axes alone: the matrix stores nothing else
    grid = PETSc.DMDA().create(dim=3, sizes=(24, 24, 24), stencil_width=1, stencil_type=star, setup=False)
    grid.setFromOptions()
    grid.setUp()
    A = assemble(grid, wind)
    b, x = A.createVecLeft(), A.createVecRight()
    b.set((1.0 / (np.array(grid.getSizes()) + 1)).prod() ** (2 / 3))

    if not options.hasName("pc_type"):
        options.setValue("pc_type", "asm")
        if not options.hasName("sub_pc_type"):
            options.setValue("sub_pc_type", "python")
            options.setValue("sub_pc_python_type", "finelu.interop.petsc.PC")
    ksp = PETSc.KSP().create()
    ksp.setOperators(A)
    ksp.setType("gmres")
    ksp.setTolerances(rtol=1e-8)
    ksp.setFromOptions()
    ksp.solve(b, x)

    r = b.duplicate()
    A.mult(x, r)
    r.aypx(-1.0, b)
    residual = r.norm() / b.norm()
    PETSc.Sys.Print(
        f"{'x'.join(map(str, grid.getSizes()))} on {grid.comm.size} processes: {ksp.getIterationNumber()} iterations, "
        f"relative residual {residual:.2e}, largest u {x.max()[1]:.4f}, PETSc's reason {ksp.getConvergedReason()}"
    )
    return 0 if ksp.getConvergedReason() > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
