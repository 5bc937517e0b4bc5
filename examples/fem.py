"""Finite elements by scikit-fem, solved by finelu: -div grad u = 1 in an L-shaped domain, u = 0 on its boundary.

    python examples/fem.py --refine 6

Quadratic triangles. scikit-fem assembles and removes the boundary; the rest is a scipy.sparse matrix, which finelu
takes as it is. Needs `pip install scikit-fem`.
"""

from __future__ import annotations

import argparse

import skfem
from skfem.models.poisson import laplace, unit_load

import finelu as fl


def membrane(refine: int, rtol: float = 1e-10):
    """(basis, u at all degrees of freedom, Solution)."""
    basis = skfem.Basis(skfem.MeshTri.init_lshaped().refined(refine), skfem.ElementTriP2())
    A, b = laplace.assemble(basis), unit_load.assemble(basis)
    inner, right, u, inside = skfem.condense(A, b, D=basis.get_dofs())
    solution = fl.solve(inner, right, rtol)
    u[inside] = solution.x
    return basis, u, solution


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--refine", type=int, default=6, help="how often each triangle is cut into four")
    _, u, solution = membrane(parser.parse_args(arguments).refine)
    print(solution.explain())
    print(f"{u.size} degrees of freedom, largest u: {u.max():.6f}")


if __name__ == "__main__":
    main()
