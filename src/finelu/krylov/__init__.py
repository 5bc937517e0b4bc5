"""Krylov methods cg, minres, sqmr, gmres, fgmres, bicgstab, bicgstabl, idrs and bicg, and the stationary method
richardson.

The methods lsmr, lsqr and cgls, for least squares, have arguments of their own. All others share one set of arguments,
whose names are SciPy's, and return the same kind of solution. `METHODS` maps the names that `solve` and the command
line accept to the classes, which state the facts of each method; `register` adds others. Each method is a function of
this package, defined in the file of the same name. `finelu.krylov.cg` is the function, which hides the module on
purpose; `from finelu.krylov.cg import CG` still finds the class.

The arguments are (A, b, x0=None, *, rtol=1e-5, atol=0.0, criterion="auto",
maxiter=None, M=None, callback=None, watch=None,
relative_to="b", raise_on_failure=False, nullspace=None):

A : (n, n), scipy.sparse or cupyx.scipy.sparse in any format, a dense array, finelu's CSR, or a LinearOperator.
b : (n,) or (n, 1), on the device of A; x is (n,) in both cases, as SciPy's and CuPy's is. b is never written.
x0 : the initial guess, zero by default; "Mb" for M @ b. x0 is never written, and never returned itself.
rtol, atol : converged means ||b - A x||_2 <= max(rtol ||b||_2, atol), for the true residual, computed anew. Both may be
    Inf.
relative_to : "b": the above; "initial": ||b - A x||_2 <= max(rtol ||b - A x0||_2, atol).
raise_on_failure : True raises NotConverged, whose `solution` is the Solution, unless it converged.
nullspace : for a singular A: vectors v with A v = 0, (n,) or (n, k), or "constant" for the vector of ones. x is the
    solution without a part along them. The products with M are kept orthogonal to them, too. If also A^H v = 0, as for
    A = A^H, the part of b along them, which no x reaches, is taken off before anything else: x is the least-squares
    solution, and residual_norm, history and rtol are of the rest of b. `outside` of the Solution is the norm of that
    part. For other A, b has to be in its range, or nullspace is a tuple (V, U), where the u are null vectors of A^H:
    then the part of b along those is taken off. ParameterError if ||A v|| is more than sqrt(eps) of || |A| |v| ||, or
    ||A^H u|| of ||A^H w|| for a random w of the same length.
criterion : the convergence test, one of three:
    "residual": the test of rtol and atol alone.
    "auto": also ||D (b - A x)|| <= rtol ||D b||, if the sums of |A| over its rows differ by more than 1e4, as by
    penalties: the large rows would hide all others. D holds the reciprocals of these sums. For a LinearOperator, and
    for block and stencil matrices, the row sums are not known, and "auto" is "residual".
    "backward": |b - A x|_i <= rtol (|A| |x| + |b|)_i in each row, instead of any norm.
    If a small norm of b - A x does not satisfy the test, corrections of x are iterated, as long as each halves the
    remaining error. Solution.row_residual has the figure reached.
maxiter : the largest number of iterations, 10 n by default. An iteration is a product with A (two in
    bicgstab, 2 l in bicgstabl).
M : approximates the inverse of A, M @ r: Factors, a LinearOperator, a sparse or dense matrix, or a function of r.
    bicg also multiplies by A^H and M^H: a LinearOperator then needs rmatvec, and a function is not accepted.
    A product with A or M must return a new array (or its argument). That array is not written.
callback : callback(x), called when the method's docstring says; x is the iterate itself, to be read only. Each call
    waits for the GPU.
watch : watch(iteration, residual_norm), called each time the host looks at the progress: every iteration on the CPU,
    every few on the GPU. callback or watch ends the solve with Status.INTERRUPTED by returning True or raising
    StopIteration.

Each method returns a `Solution`; `x, info = cg(...)` unpacks as SciPy's. The working dtype is the widest of A, b and x0
(complex if M is), and the device is that of b. On a GPU a system in float32 or complex64 is solved in double precision
if A has entries below 2e-31 or above 1e31, whose products may underflow there; a function given as M then sees double
vectors. b = 0 gives x = 0. Wrong shapes, NaN or Inf raise MatrixError, meaningless parameters ParameterError, mixed
devices DeviceError.

A breakdown is reported as a Status. x is then the iterate with the smallest true residual among these: the last one,
the best one by the recurrence, and those at which a cycle began, x0 first. So x is never NaN and never worse than x0.
An iterate passed in between may have been better if the residual of the recurrence has drifted from the true residual,
which is computed anew only at the start of a cycle.

On a GPU cg, bicgstab, bicgstabl, idrs, gmres and fgmres record their iteration as a CUDA graph if A and M allow that;
docs/gpu.md says which do. Such a solve keeps all vectors that one iteration makes until it ends, each in memory of its
own: the products with A and M, which are counted in the memory of each method, and the intermediate vectors of M. If
nothing is recorded, memory that one operation frees serves the next.
"""

from finelu.krylov.bicg import BiCG, bicg
from finelu.krylov.bicgstab import BiCGStab, bicgstab
from finelu.krylov.bicgstabl import BiCGStabL, bicgstabl
from finelu.krylov.cg import CG, cg
from finelu.krylov.cgls import cgls
from finelu.krylov.fgmres import FGMRES, fgmres
from finelu.krylov.gmres import GMRES, RESTART, gmres
from finelu.krylov.idrs import IDRs, idrs
from finelu.krylov.lsmr import lsmr
from finelu.krylov.lsqr import lsqr
from finelu.krylov.method import METHODS, Method, iterate, method_name, register
from finelu.krylov.minres import MINRES, minres
from finelu.krylov.recycle import RecycledSpace
from finelu.krylov.richardson import richardson
from finelu.krylov.sqmr import SQMR, sqmr

CYCLE = 50  # iterations of a cycle, of the methods that restart, where `solve`, `Sequence` and `compare` call them

# finelu's own methods, in the order in which texts name them. richardson is not registered, since it converges for few
# A and M only: no caller can choose it by its name.
OWN: tuple[type[Method], ...] = (CG, MINRES, SQMR, GMRES, FGMRES, BiCGStab, BiCGStabL, IDRs, BiCG)
for _kind in OWN:
    register(_kind)

__all__ = [
    "CYCLE",
    "METHODS",
    "OWN",
    "RESTART",
    "Method",
    "RecycledSpace",
    "bicg",
    "bicgstab",
    "bicgstabl",
    "cg",
    "cgls",
    "fgmres",
    "gmres",
    "idrs",
    "iterate",
    "lsmr",
    "lsqr",
    "method_name",
    "minres",
    "register",
    "richardson",
    "sqmr",
]
