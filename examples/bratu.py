"""Newton's method for the Bratu problem -div grad u = c exp(u) in the unit square, u = 0 on its boundary.

    python examples/bratu.py --cells 100 --c 6

Each step solves with the Jacobian K - c h^2 diag(exp(u)), whose values change less and less while its pattern stays:
what `Sequence` is for. The corrections need few digits, so rtol is loose; Newton's own residual decides about the end.
There are two solutions for c below about 6.8; from u = 0 the smaller one is found.
"""

from __future__ import annotations

import argparse

import numpy as np
import scipy.sparse as sp

import finelu as fl


def residual(K, u, ch2: float):
    """F(u) = K u - c h^2 exp(u), with K the 5-point stencil."""
    return K @ u - ch2 * np.exp(u)


def bratu(cells: int, c: float, tolerance: float = 1e-10, steps: int = 20, report=None):
    """(u of (cells, cells), the norms of F in each step). report(k, norm, solution) is called after each step."""
    K = sp.csr_matrix(fl.gallery.poisson5(cells))
    ch2 = c / (cells + 1) ** 2
    u = np.zeros(cells**2)
    norms = [float(np.linalg.norm(residual(K, u, ch2)))]
    sequence = fl.Sequence(rtol=1e-6)
    for k in range(steps):
        if norms[-1] <= tolerance * norms[0]:
            return u.reshape(cells, cells), norms
        J = K - sp.diags(ch2 * np.exp(u))
        solution = sequence.step(J, -residual(K, u, ch2))
        u = u + solution.x
        norms.append(float(np.linalg.norm(residual(K, u, ch2))))
        if report:
            report(k, norms[-1], solution)
    raise RuntimeError(f"Newton's method did not converge in {steps} steps: ||F|| = {norms[-1]:.2e}")


def main(arguments=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=100, help="inner points a side")
    parser.add_argument("--c", type=float, default=6.0)
    options = parser.parse_args(arguments)

    def report(k, norm, solution):
        print(f"Newton step {k + 1}: ||F|| = {norm:.2e}, {solution.iterations} iterations\n{solution.explain()}")

    u, _ = bratu(options.cells, options.c, report=report)
    print(f"largest u: {u.max():.6f}")


if __name__ == "__main__":
    main()
