"""Schwarz methods: incomplete factorizations of subdomains, and a coarse space that couples them."""

from finelu.preconditioners.schwarz.modes import rigid_body_modes
from finelu.preconditioners.schwarz.recipe import Schwarz

__all__ = ["Schwarz", "rigid_body_modes"]
