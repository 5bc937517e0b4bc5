"""Flow of water, oil and gas in rock."""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse as sp

from finelu.device import Array
from finelu.errors import ParameterError
from finelu.gallery.building import positive, sorted_csr


def black_oil(
    nx: int, ny: int | None = None, nz: int | None = None, decades: float = 4.0, courant: float = 5.0, seed: int = 0
) -> sp.csr_matrix:
    """Newton's matrix of an implicit time step of water, oil and gas in rock: 3 x 3 blocks, zeros in them stored.

    The cells of an nx x ny x nz grid (each nx if left out) have three unknowns, pressure and the saturations of water
    and gas; their rows are the balances of water, oil and gas. The flux of a phase is T m (p_i - p_j), with the
    mobility m of the cell upstream: elliptic in the pressure, hyperbolic in the saturations. Water is injected along
    one vertical edge, and all phases are produced along the opposite one, both at given pressures.
    decades : of the permeability, which is smooth within a layer and differs between layers; across them it is a tenth.
    courant : the mean part of a cell's content that flows out of it in the time step.
    seed : of the permeability.
    Neither symmetric nor definite. Source: Aziz and Settari 1979, chapter 5; mobilities: Corey 1954.
    """
    shape = nx if nz is None else nz, nx if ny is None else ny, nx
    n = positive(nz=shape[0]) * positive(ny=shape[1]) * positive(nx=nx)
    if not (0 <= decades < math.inf and 0 < courant < math.inf):
        raise ParameterError(f"black_oil: decades = {decades} and courant = {courant}; both must be positive numbers.")
    rock = _permeability(shape, decades, seed)
    k, j, i = (index.ravel() for index in np.indices(shape))
    of_injector, of_producer = np.hypot(i, j) + 1, np.hypot(nx - 1 - i, shape[1] - 1 - j) + 1  # distances
    p = 200 + 20 * np.log(of_producer / of_injector) + 0.2 * k
    near = of_producer / (of_injector + of_producer)
    water, gas = 0.15 + 0.5 * near**2, 0.02 + 0.2 * (1 - near)
    filled, viscosity = np.stack([water, 1 - water - gas, gas], axis=1), np.array([0.5, 2.0, 0.05])
    mobility = filled**2 / viscosity
    by_unknowns = np.array([[0.0, 1, 0], [0, -1, -1], [0, 0, 1]])  # derivatives of the three saturations
    slope = (2 * filled / viscosity)[:, :, None] * by_unknowns

    entries, outflow, cell = list[tuple[Array, Array, Array]](), np.zeros(n), np.arange(n).reshape(shape)
    for axis, geometry in ((2, 2.0), (1, 2.0), (0, 5.0)):  # cells of 10 x 10 x 2: area over distance, a tenth across
        a, b = (np.moveaxis(cell, axis, 0)[part].ravel() for part in (slice(None, -1), slice(1, None)))
        T, drop = geometry * 2 / (1 / rock[a] + 1 / rock[b]), p[a] - p[b]
        up = np.where(drop >= 0, a, b)
        np.add.at(outflow, up, T * abs(drop) * mobility[up].sum(axis=1))
        flux = (T * drop)[:, None, None] * slope[up]
        by_pressure = np.zeros_like(flux)
        by_pressure[:, :, 0] = T[:, None] * mobility[up]
        for row, sign in ((a, 1), (b, -1)):
            entries += [(row, up, sign * flux), (row, a, sign * by_pressure), (row, b, -sign * by_pressure)]

    stays = np.tile(by_unknowns, (n, 1, 1))
    stays[:, :, 0] = filled * np.array([1e-4, 2e-4, 5e-3])  # compressibilities of rock and fluid
    entries.append((cell.ravel(), cell.ravel(), (outflow.mean() or 1) / courant * stays))
    injector, producer = cell[:, 0, 0], cell[:, -1, -1]
    injected, produced = np.zeros((2, shape[0], 3, 3))
    injected[:, 0, 0] = 4 * rock[injector] / viscosity[0]
    produced[...] = 40 * rock[producer][:, None, None] * slope[producer]  # its pressure is lower by 10
    produced[:, :, 0] = 4 * rock[producer][:, None] * mobility[producer]
    entries += [(injector, injector, injected), (producer, producer, produced)]
    rows, columns, blocks = (np.concatenate(parts) for parts in zip(*entries, strict=True))
    within = np.arange(3)
    i, j = (3 * rows)[:, None, None] + within[:, None], (3 * columns)[:, None, None] + within
    i, j, values = (array.ravel() for array in np.broadcast_arrays(i, j, blocks))
    return sorted_csr(sp.coo_matrix((values, (i, j)), shape=(3 * n, 3 * n)))


def _permeability(shape: tuple[int, int, int], decades: float, seed: int) -> Array:
    """(nz ny nx,) : between 1 and 10^decades, by random waves in the layers, and a random mean of each layer."""
    rng = np.random.default_rng(seed)
    _, ny, nx = shape
    y, x = np.arange(ny)[:, None], np.arange(nx)
    exponents = np.empty(shape)
    for layer in exponents:
        waves, phases = rng.normal(0, 0.15, (12, 2)), rng.uniform(0, 2 * np.pi, 12)
        layer[...] = rng.normal() + sum(np.cos(u * y + v * x + t) for (u, v), t in zip(waves, phases, strict=True)) / 3
    exponents -= exponents.min()
    return (10 ** (decades * exponents / (exponents.max() or 1))).ravel()
