"""pyamg: algebraic multigrid by smoothed aggregation and by Ruge-Stüben, default settings, accelerated."""

import pyamg

PACKAGES = ("pyamg",)


def accelerated(hierarchy, A, b, rtol, symmetric):
    return hierarchy(A).solve(b, tol=rtol, maxiter=1000, accel="cg" if symmetric else "bicgstab")


def aggregation(A, b, rtol, symmetric):
    return accelerated(pyamg.smoothed_aggregation_solver, A, b, rtol, symmetric)


def ruge_stuben(A, b, rtol, symmetric):
    return accelerated(pyamg.ruge_stuben_solver, A, b, rtol, symmetric)


SETTINGS = {"aggregation": aggregation, "ruge_stuben": ruge_stuben}
