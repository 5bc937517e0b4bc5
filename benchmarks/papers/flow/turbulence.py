"""The turbulence model of Spalart and Allmaras, for chi = nu~ / nu, in its form that allows negative values.

    dchi/dt + div(u chi) = production - destruction + (nu/sigma) (div((1 + chi) grad chi) + cb2 |grad chi|^2)

The eddy viscosity is nu chi fv1. Source: S. R. Allmaras, F. T. Johnson, P. R. Spalart, ICCFD7-1902, 2012, equations
(1) to (12) for chi >= 0, the negative model below 0, with the term ft2 that keeps a laminar flow laminar.
"""

from __future__ import annotations

from finelu.device import namespace

PRANDTL, PRANDTL_T = 0.71, 0.9  # of air; turbulent
SIGMA, KAPPA, CB1, CB2 = 2 / 3, 0.41, 0.1355, 0.622
CW1, CW2, CW3 = CB1 / KAPPA**2 + (1 + CB2) / SIGMA, 0.3, 2.0
CV1, CV2, CV3 = 7.1, 0.7, 0.9
CT3, CT4, CN1 = 1.2, 0.5, 16.0


def eddy(chi):
    """The eddy viscosity over nu, chi fv1 (0 for chi < 0), and its derivative by chi."""
    above = namespace(chi).maximum(chi, 0)
    fv1 = above**3 / (above**3 + CV1**3)
    return above * fv1, fv1 * (4 - 3 * fv1)


def spread(chi):
    """What (1 + this) nu / sigma diffuses chi with, chi or below 0 chi fn, and its derivative by chi."""
    cube = namespace(chi).minimum(chi, 0) ** 3
    share = cube / (CN1 - cube)
    fn = 1 + 2 * share
    return chi * fn, fn + 6 * share * (1 + share)


def source(chi, vorticity, distance, nu):
    """Production less destruction; all arguments but nu are arrays of one shape."""
    xp = namespace(chi)
    above = xp.maximum(chi, 0)
    unit = nu / (KAPPA * distance) ** 2
    extra = above * unit * (1 - above / (1 + eddy(chi)[0]))
    limited = vorticity * (CV2**2 * vorticity + CV3 * extra)
    limited /= xp.maximum((CV3 - 2 * CV2) * vorticity - extra, 1e-30)
    strain = vorticity + xp.where(extra >= -CV2 * vorticity, extra, limited)
    r = xp.minimum(above * unit / xp.maximum(strain, 1e-30), 10)
    g = r + CW2 * (r**6 - r)
    fw = g * ((1 + CW3**6) / (g**6 + CW3**6)) ** (1 / 6)
    ft2 = CT3 * xp.exp(-CT4 * above**2)
    positive = CB1 * (1 - ft2) * strain * chi - nu * (CW1 * fw - CB1 / KAPPA**2 * ft2) * (chi / distance) ** 2
    return xp.where(chi >= 0, positive, CB1 * (1 - CT3) * vorticity * chi + nu * CW1 * (chi / distance) ** 2)


def damping(chi, vorticity, distance, nu):
    """By how much `source` falls with chi, 0 where it rises: what an implicit step may count on."""
    h = 1e-6 * (1 + abs(chi))
    rise = source(chi + h, vorticity, distance, nu) - source(chi - h, vorticity, distance, nu)
    return namespace(chi).maximum(-rise / (2 * h), 0)
