"""Triangular solves T x = b, exact and approximate. The specification."""

from __future__ import annotations

import numpy as np

from finelu.kernels.operands import Triangle


def rows_in_order(triangle: Triangle):
    """The rows in the order in which they can be solved one by one."""
    return range(triangle.n - 1, -1, -1) if triangle.reverse else range(triangle.n)


def value(triangle: Triangle, values, place):
    """The value of an entry, or of the diagonal, that `values` holds at `place`."""
    return np.conj(values[place]) if triangle.conjugate else values[place]


def entries(triangle: Triangle, values, i):
    """(column, value) of the strict entries of row i, in ascending order of columns."""
    for p in range(triangle.begin[i], triangle.end[i]):
        yield triangle.indices[p], value(triangle, values, p if triangle.source is None else triangle.source[p])


def pivot(triangle: Triangle, values, i):
    """D_ii."""
    return values.dtype.type(1) if triangle.diag is None else value(triangle, values, triangle.diag[i])


def first_bad_diagonal(triangle: Triangle, values):
    """The first row whose diagonal is zero or has no finite reciprocal, or -1."""
    for i in range(triangle.n):
        with np.errstate(all="ignore"):
            if not np.isfinite(values.dtype.type(1) / pivot(triangle, values, i)):
                return i
    return -1


def triangle_product(triangle: Triangle, values, x):
    """(D + N) x for x (n,), a new array; of a triangle that is neither transposed nor conjugated."""
    y = np.empty_like(x)
    for i in range(triangle.n):
        y[i] = x[i] if triangle.diag is None else pivot(triangle, values, i) * x[i]
        for j, v in entries(triangle, values, i):
            y[i] += v * x[j]
    return y


def solve_triangular(triangle: Triangle, values, b):
    """x with (D + N) x = b, b (n,) or (n, k)."""
    if b.ndim == 2:  # column by column: NumPy rounds a product of complex arrays differently from one of scalars
        return np.stack([solve_triangular(triangle, values, column) for column in b.T], axis=1)
    x = np.empty_like(b)
    for i in rows_in_order(triangle):
        s = b[i]
        for j, v in entries(triangle, values, i):
            s -= v * x[j]
        x[i] = s if triangle.diag is None else s / pivot(triangle, values, i)
    return x


def jacobi_sweeps(triangle: Triangle, values, b, sweeps):
    """`sweeps` times x <- D^-1 (b - N x), from x = D^-1 b."""
    if b.ndim == 2:
        return np.stack([jacobi_sweeps(triangle, values, column, sweeps) for column in b.T], axis=1)
    x = np.zeros_like(b)
    for _ in range(sweeps + 1):
        old = x.copy()
        for i in range(triangle.n):
            s = b[i]
            for j, v in entries(triangle, values, i):
                s -= v * old[j]
            x[i] = s if triangle.diag is None else s / pivot(triangle, values, i)
    return x


def dense(triangle: Triangle, values):
    """T = D + N, (n, n)."""
    T = np.zeros((triangle.n, triangle.n), values.dtype)
    for i in range(triangle.n):
        T[i, i] = pivot(triangle, values, i)
        for j, v in entries(triangle, values, i):
            T[i, j] = v
    return T


def isai(triangle: Triangle, values):
    """The incomplete sparse approximate inverse W of T = D + N: the pattern of T, and (W T)_ij = I_ij on it.

    Returns a dense (n, n) array. Row i of W, on the columns J of row i of T, solves W_iJ T_JJ = I_iJ (Anzt, Huckle,
    Braeckle & Dongarra 2018).
    """
    T = dense(triangle, values)
    W = np.zeros_like(T)
    for i in range(triangle.n):
        J = np.append(triangle.indices[triangle.begin[i] : triangle.end[i]], i)
        W[i, J] = np.linalg.solve(T[np.ix_(J, J)].T, np.equal(J, i).astype(T.dtype))
    return W


def solve_in_turn(plans, b, x) -> None:
    """x = T_m^-1 ... T_1^-1 b with the plans of T_1, ..., T_m; b and x (n,) or (n, k), C-contiguous. They may overlap,
    unless there is one plan."""
    for plan in plans[:-1]:
        between = np.empty_like(x)
        plan.solve(b, between)
        b = between
    plans[-1].solve(b, x)


def triangular_plan(triangle: Triangle, method: str, sweeps: int):
    """A plan: load(values) takes values, solve(b, x) solves with them, as often as wanted.

    method : "jacobi" and "isai" are approximate, `sweeps` is for them; all others solve exactly, in the order of their
    own, "auto" in that which should be fastest.
    """
    return Plan(triangle, method, sweeps)


def bound_by_bytes(plan):
    """Whether the time of a solve with this plan follows the bytes that it reads, so that shorter values pay."""
    return True


class Plan:
    """`triangle` by rows, with the values of the last `load`."""

    def __init__(self, triangle: Triangle, method: str, sweeps: int):
        self.triangle, self.method, self.sweeps = triangle, method, sweeps

    def load(self, values, check=True):
        """Take new values. Returns the first row whose diagonal has no finite reciprocal, or -1."""
        self.values = values
        return first_bad_diagonal(self.triangle, values)

    def solve(self, b, x):
        """x = T^-1 b, both (n,) or (n, k), exactly or by the method.

        By "isai" x = W b, and then `sweeps` - 1 corrections x <- x + W (b - T x).
        """
        if self.method == "jacobi":
            x[...] = jacobi_sweeps(self.triangle, self.values, b, self.sweeps)
        elif self.method == "isai":
            W, T = isai(self.triangle, self.values), dense(self.triangle, self.values)
            x[...] = W @ b
            for _ in range(self.sweeps - 1):
                x += W @ (b - T @ x)
        else:
            x[...] = solve_triangular(self.triangle, self.values, b)
