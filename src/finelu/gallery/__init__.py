"""Test problems, each with its source, for the documentation, the tests, the benchmarks and the command line.

Every function returns a sorted scipy.sparse.csr_matrix without duplicates, float64 and int32 unless it says otherwise,
and takes O(nnz) time and memory. A `..._like` problem has the size and the kind of a published matrix, not its values;
its docstring says what agrees. On grids, x runs fastest: node (i, j, k) is row i + nx * (j + ny * k).

`problem("poisson7:100")` builds a matrix from a text, `small()` gives a list of small named ones for tests.
"""

from finelu.gallery.elements import anisotropic_triangles, elastic_triangles, elasticity
from finelu.gallery.grids import (
    apache2_like,
    atmosmodd_like,
    convection_diffusion,
    helmholtz,
    poisson5,
    poisson7,
    poisson27,
)
from finelu.gallery.names import PAPER_SIZES, PROBLEMS, Problem, problem, small, small_spd
from finelu.gallery.networks import ecology2_like, g3_circuit_like
from finelu.gallery.patterns import arrow, bidiagonal, random_dominant, tridiagonal
from finelu.gallery.polymer import cage
from finelu.gallery.reservoir import black_oil
from finelu.gallery.saddle_points import kkt, navier_stokes, stokes

__all__ = [
    "PAPER_SIZES",
    "PROBLEMS",
    "Problem",
    "anisotropic_triangles",
    "apache2_like",
    "arrow",
    "atmosmodd_like",
    "bidiagonal",
    "black_oil",
    "cage",
    "convection_diffusion",
    "ecology2_like",
    "elastic_triangles",
    "elasticity",
    "g3_circuit_like",
    "helmholtz",
    "kkt",
    "navier_stokes",
    "poisson5",
    "poisson7",
    "poisson27",
    "problem",
    "random_dominant",
    "small",
    "small_spd",
    "stokes",
    "tridiagonal",
]
