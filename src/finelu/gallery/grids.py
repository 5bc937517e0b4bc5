"""Poisson, convection and Helmholtz problems on regular grids."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu.errors import ParameterError
from finelu.gallery.building import convection, neighbours, positive, stencil


def poisson5(nx: int, ny: int | None = None) -> sp.csr_matrix:
    """-Laplace(u) by 5 points on an nx x ny grid (ny = nx if left out), u = 0 on the boundary, scaled by h^2: 4 and -1.

    Symmetric positive definite. Source: Saad, Iterative Methods for Sparse Linear Systems, 2003, section 2.2.
    """
    return stencil(nx, nx if ny is None else ny, 1, {(0, 0, 0): 4.0} | neighbours(2, -1.0))


def poisson7(nx: int, ny: int | None = None, nz: int | None = None) -> sp.csr_matrix:
    """-Laplace(u) by 7 points on an nx x ny x nz grid (each nx if left out), u = 0 around, scaled by h^2: 6 and -1.

    Symmetric positive definite. Source: Saad, Iterative Methods for Sparse Linear Systems, 2003, section 2.2.
    """
    shape = nx, nx if ny is None else ny, nx if nz is None else nz
    return stencil(*shape, {(0, 0, 0): 6.0} | neighbours(3, -1.0))


def poisson27(nx: int, ny: int | None = None, nz: int | None = None) -> sp.csr_matrix:
    """The 27-point operator 26, -1 on an nx x ny x nz grid (each nx if left out), zero outside.

    Symmetric positive definite. Source: the HPCG benchmark, Dongarra, Heroux and Luszczek 2016, section 2.
    """
    shape = nx, nx if ny is None else ny, nx if nz is None else nz
    return stencil(*shape, {d: -1.0 if any(d) else 26.0 for d in product((-1, 0, 1), repeat=3)})


def convection_diffusion(
    nx: int,
    ny: int | None = None,
    nz: int | None = None,
    peclet: float = 100.0,
    wind: tuple[float, float, float] = (1.0, 1.0, 1.0),
    scheme: str = "upwind",
) -> sp.csr_matrix:
    """-Laplace(u) + peclet * wind . grad(u) by 7 points, u = 0 on the boundary, spacing h = 1 / (nx + 1), times h^2.

    peclet : ratio of convection to diffusion over the unit length; peclet * h is the cell's.
    wind : direction, scaled to length 1.
    scheme : "upwind" (first order, always an M-matrix) or "central" (second order; off-diagonal entries change sign
        and the diagonal is no longer dominant once peclet * h > 2).
    Unsymmetric for peclet != 0. Source: Saad 2003, section 2.2.4; Elman, Silvester and Wathen 2014, chapter 6.
    """
    shape = nx, nx if ny is None else ny, nx if nz is None else nz
    positive(nx=nx)
    direction = np.asarray(wind, float)
    if direction.shape != (3,) or not 0 < np.linalg.norm(direction) < np.inf:
        raise ParameterError(f"wind = {tuple(np.ravel(direction))} is not a direction; give three numbers, not all 0.")
    cell = peclet / (nx + 1) * direction / np.linalg.norm(direction)
    return convection(shape, (1.0, 1.0, 1.0), cell, 0.0, scheme)


def atmosmodd_like(nx: int = 148, ny: int = 148, nz: int = 58) -> sp.csr_matrix:
    """Like atmosmodd (Bourchtein, SuiteSparse): 1,270,432 rows and 8,814,880 entries at the default size.

    A 7-point grid of 148 x 148 x 58 has exactly these counts. The values are our own: upwind convection and diffusion
    with a small reaction term, a flat domain (vertical coupling 10 times the horizontal one) and a wind that turns
    round the vertical axis, with cell Peclet numbers up to 2. Unsymmetric values, symmetric pattern, an M-matrix.
    """
    positive(nx=nx, ny=ny, nz=nz)
    x = np.linspace(-1, 1, nx)[None, None, :]
    y = np.linspace(-1, 1, ny)[None, :, None]
    z = np.linspace(0, 1, nz)[:, None, None]
    return convection((nx, ny, nz), (1.0, 1.0, 10.0), (2 * y, -2 * x, 0.2 * z), 0.01, "upwind")


def apache2_like(nx: int = 8, ny: int = 297, nz: int = 301) -> sp.csr_matrix:
    """Like apache2 (SuiteSparse): 715,176 rows and 4,817,870 entries at the default size; apache1 is (8, 101, 100).

    A 7-point grid of 8 x 297 x 301 has exactly these counts (8 x 101 x 100 has apache1's). The values are our own,
    between those published for apache1 (-90000 and 180016): coupling 90000 across the thin direction x, whose two
    faces are insulated, and 4 along y and z, with u = 0 on these four faces. Symmetric positive definite, but a row's
    sum is as small as 1e-5 of its diagonal.
    """
    positive(nx=nx, ny=ny, nz=nz)
    x = np.arange(nx)
    diagonal = 90000.0 * ((x > 0).astype(float) + (x < nx - 1)) + 16.0
    values = {(0, 0, 0): diagonal[None, None, :]} | neighbours(3, -4.0)
    return stencil(nx, ny, nz, values | {(-1, 0, 0): -90000.0, (1, 0, 0): -90000.0})


def helmholtz(n: int, k: float, absorbing: bool = True) -> sp.csr_matrix:
    """-Laplace(u) - k^2 u by 5 points on an n x n grid, spacing h = 1 / (n + 1), times h^2. k : waves per 2 pi units.

    absorbing : the boundary lets waves out, du/dn = i k u to first order: complex128, symmetric, not Hermitian.
        If False, u = 0 on the boundary: float64, symmetric, indefinite once k^2 exceeds the lowest eigenvalue, 2 pi^2.
    Ten points a wavelength means k = 2 pi (n + 1) / 10. Source: Ernst and Gander 2012, "Why it is difficult to solve
    Helmholtz problems with classical iterative methods".
    """
    positive(n=n)
    kh = k / (n + 1)
    diagonal: Any = 4.0 - kh**2
    if absorbing:
        edge = np.zeros(n)
        edge[0] += 1
        edge[-1] += 1
        diagonal = diagonal - (1 + 1j * kh) * (edge[None, :, None] + edge[None, None, :])
    return stencil(n, n, 1, {(0, 0, 0): diagonal} | neighbours(2, -1.0))
