"""Functions with the signatures and conventions of `scipy.sparse.linalg`.

direct : `spsolve`, `splu`, `factorized`, by complete factors.  ilut : `spilu`.  triangular : `spsolve_triangular`.
iterative : the Krylov methods, as `install` puts them in place.
system, route : A x = b as SciPy takes it, and the way to x.
place : `install`, which puts these functions into scipy.sparse.linalg, for code that cannot be edited.
`use_solver` and `MatrixRankWarning` are SciPy's own.
"""

from finelu.foreign import MatrixRankWarning as MatrixRankWarning
from finelu.foreign import use_solver as use_solver
from finelu.interop.scipy.direct import LU as LU
from finelu.interop.scipy.direct import factorized as factorized
from finelu.interop.scipy.direct import splu as splu
from finelu.interop.scipy.direct import spsolve as spsolve
from finelu.interop.scipy.ilut import MatchedILUT as MatchedILUT
from finelu.interop.scipy.ilut import MatchedILUTFactors as MatchedILUTFactors
from finelu.interop.scipy.ilut import spilu as spilu
from finelu.interop.scipy.place import Installed as Installed
from finelu.interop.scipy.place import install as install
from finelu.interop.scipy.triangular import spsolve_triangular as spsolve_triangular
