"""Launchers of recurrences.cu; names and meanings as in kernels/cpu/recurrences.py."""

from __future__ import annotations

from functools import partial

from finelu.kernels.cuda.runtime.launch import over_elements, single_thread, summing

_one = partial(single_thread, "recurrences")
_all = partial(over_elements, "recurrences")
_sum = partial(summing, "recurrences")


def cg_step(state, norms, history, rho, curvature, rho_old, p, q, x, best, r):
    _sum("cg_step", x, state, norms, history, rho, curvature, rho_old, p, q, x, best, r)


def cg_direction(state, rho, rho_old, z, p):
    _all("cg_direction", p, state, rho, rho_old, z, p)


def bicg_alpha(state, rho, sigma, size, alpha):
    _one("bicg_alpha", rho.dtype, state, rho, sigma, size, alpha)


def bicg_step(state, alpha, p, q, q_shadow, x, best, r, r_shadow):
    _all("bicg_step", x, state, alpha, p, q, q_shadow, x, best, r, r_shadow)


def bicg_record(state, norms, history, size):
    _one("bicg_record", norms.dtype, state, norms, history, size)


def bicg_direction(state, rho, rho_old, z, z_shadow, p, p_shadow):
    _all("bicg_direction", p, state, rho, rho_old, z, z_shadow, p, p_shadow)


def sqmr_smooth(state, smoothing, size):
    _one("sqmr_smooth", size.dtype, state, smoothing, size)


def sqmr_step(state, smoothing, alpha, p, r, d, x, best, s):
    _all("sqmr_step", x, state, smoothing, alpha, p, r, d, x, best, s)


def sqmr_direction(state, rho, rho_old, z, p):
    _all("sqmr_direction", p, state, rho, rho_old, z, p)


def bicgstab_half(state, rho, sigma, v, r):
    _all("bicgstab_half", r, state, rho, sigma, v, r)


def bicgstab_step(state, norms, history, rho, sigma, ts, t_norm, shadow, shadow_norm, p, s, t, x, best, r):
    scalars = rho, sigma, ts, t_norm, shadow, shadow_norm
    _sum("bicgstab_step", x, state, norms, history, *scalars, p, s, t, x, best, r)


def bicgstab_direction(state, rho, sigma, ts, t_norm, r, v, p):
    _all("bicgstab_direction", p, state, rho, sigma, ts, t_norm, r, v, p)


def minres_begin(state, lanczos, square, scale):
    _one("minres_begin", square.dtype, state, lanczos, square, lanczos.dtype.type(scale))


def minres_start(state, lanczos, y, r, v, z):
    _all("minres_start", v, state, lanczos, y, r, v, z)


def minres_lanczos(state, lanczos, alpha, p, v, v_old):
    _all("minres_lanczos", v, state, lanczos, alpha, p, v, v_old)


def minres_rotation(state, lanczos, alpha, square):
    _one("minres_rotation", alpha.dtype, state, lanczos, alpha, square)


def minres_step(state, lanczos, y, v, z, w, w_old, x, best, r):
    _all("minres_step", x, state, lanczos, y, v, z, w, w_old, x, best, r)


def minres_record(state, norms, history, lanczos):
    _one("minres_record", norms.dtype, state, norms, history, lanczos)


def richardson_step(state, z, x, best):
    _all("richardson_step", x, state, z, x, best)


def richardson_record(state, norms, history):
    _one("richardson_record", norms.dtype, state, norms, history)
