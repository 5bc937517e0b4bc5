"""pyamg: algebraic multigrid by smoothed aggregation and by Ruge-Stüben, default settings, accelerated."""

import pyamg

PACKAGES = ("pyamg",)


def accelerated(hierarchy, A, b, rtol):
    symmetric = abs(A - A.T).max() == 0
    return hierarchy(A).solve(b, tol=rtol, maxiter=1000, accel="cg" if symmetric else "bicgstab")


def aggregation(A, b, rtol):
    return accelerated(pyamg.smoothed_aggregation_solver, A, b, rtol)


def ruge_stuben(A, b, rtol):
    return accelerated(pyamg.ruge_stuben_solver, A, b, rtol)


SETTINGS = {"aggregation": aggregation, "ruge_stuben": ruge_stuben}
