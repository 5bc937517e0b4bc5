"""The results of recipes: `Factors`; `LUFactors` and `CholeskyFactors` are applied by triangular solves."""

from finelu.factors.arranged import Arrangement, Columns, by_columns_in_memory
from finelu.factors.base import Factors, trial_residual
from finelu.factors.cholesky import CholeskyFactors
from finelu.factors.lu import LUFactors
from finelu.factors.report import Report, TriangularReport
from finelu.factors.triangles import Numeric, TriangularFactors

__all__ = [
    "Arrangement",
    "CholeskyFactors",
    "Columns",
    "Factors",
    "LUFactors",
    "Numeric",
    "Report",
    "TriangularFactors",
    "TriangularReport",
    "by_columns_in_memory",
    "trial_residual",
]
