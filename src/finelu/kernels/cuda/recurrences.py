"""Launchers of recurrences.cu; names and meanings as in kernels/cpu/recurrences.py."""

from __future__ import annotations

from functools import partial

import numpy as np

from finelu.kernels.cuda.runtime.launch import BLOCK, blocks, kernel, optional, over_elements, single_thread, summing

_one = partial(single_thread, "recurrences")
_all = partial(over_elements, "recurrences")
_sum = partial(summing, "recurrences")


def ratio(state, rho, sigma, size, alpha):
    _one("ratio", rho.dtype, state, rho, sigma, size, alpha)


def advance(state, z, x, best):
    _all("advance", x, state, z, x, best)


def direction(state, rho, rho_old, z, p, z_shadow, p_shadow):
    launch = kernel("recurrences", "direction", p.dtype, rho.dtype)
    shadows = optional(z_shadow), optional(p_shadow)
    launch((blocks(p.size, BLOCK),), (BLOCK,), (np.int64(p.size), state, rho, rho_old, z, p, *shadows))


def record(state, norms, history, size):
    _one("record", norms.dtype, state, norms, history, optional(size))


def cg_step(state, norms, history, rho, curvature, rho_old, p, q, x, best, r):
    _sum("cg_step", x, state, norms, history, rho, curvature, rho_old, p, q, x, best, r)


def bicg_step(state, alpha, p, q, q_shadow, x, best, r, r_shadow):
    _all("bicg_step", x, state, alpha, p, q, q_shadow, x, best, r, r_shadow)


def sqmr_smooth(state, smoothing, size):
    _one("sqmr_smooth", size.dtype, state, smoothing, size)


def sqmr_step(state, smoothing, alpha, p, r, d, x, best, s):
    _all("sqmr_step", x, state, smoothing, alpha, p, r, d, x, best, s)


def bicgstab_half(state, rho, sigma, v, r):
    _all("bicgstab_half", r, state, rho, sigma, v, r)


def bicgstab_step(state, norms, history, rho, sigma, ts, t_norm, shadow, shadow_norm, p, s, t, x, best, r):
    scalars = rho, sigma, ts, t_norm, shadow, shadow_norm
    _sum("bicgstab_step", x, state, norms, history, *scalars, p, s, t, x, best, r)


def bicgstab_direction(state, rho, sigma, ts, t_norm, r, v, p):
    _all("bicgstab_direction", p, state, rho, sigma, ts, t_norm, r, v, p)


def minres_lanczos(state, lanczos, alpha, p, v, v_old):
    _all("minres_lanczos", v, state, lanczos, alpha, p, v, v_old)


def minres_rotation(state, norms, lanczos, alpha, square):
    _one("minres_rotation", alpha.dtype, state, norms, lanczos, alpha, square)


def minres_step(state, lanczos, y, v, z, w, w_old, x, best, r):
    _all("minres_step", x, state, lanczos, y, v, z, w, w_old, x, best, r)
