"""Krylov methods: cg, minres, sqmr, gmres, fgmres, bicg, bicgstab; and richardson. One set of arguments and answers.

`METHODS` maps the names that `solve` and the command line take to the classes, which state the facts of each method;
`register` adds others. The names of the arguments are SciPy's. Each method is a function of this package, and the file
of its name holds it: `finelu.krylov.cg` is the function, which hides the module on purpose. The module is only needed
for what else is in it: `from finelu.krylov.cg import CG` finds the class.

All take (A, b, x0=None, *, rtol=1e-5, atol=0.0, criterion="auto",
maxiter=None, M=None, callback=None, watch=None):

A : (n, n), scipy.sparse or cupyx.scipy.sparse in any format, a dense array, finelu's CSR, or a LinearOperator.
b : (n,) or (n, 1), on the device of A; x has its shape. Never written.
x0 : the initial guess, zero by default. Never written, never returned itself.
rtol, atol : converged means ||b - A x||_2 <= max(rtol ||b||_2, atol), for the true residual, computed anew.
criterion : "residual" asks for that alone. "auto" also asks for ||D (b - A x)|| <= rtol ||D b||, D the reciprocals of
    the sums of |A| over its rows, where these differ by more than 1e4, as by penalties: the large rows would hide all
    others. (Of a LinearOperator, and of block and stencil matrices, it knows no rows.) "backward" asks for
    |b - A x|_i <= rtol (|A| |x| + |b|)_i in each row instead of any norm. Where one norm of b - A x does not lead
    there, corrections of x are iterated, as long as each halves the missing part; Solution.row_residual has the figure.
maxiter : the largest number of iterations, of products with A (bicgstab: of pairs of them); 10 n by default.
M : approximates the inverse of A, M @ r: Factors, a LinearOperator, a sparse or dense matrix, or a function of r.
    bicg multiplies by A^H and M^H, too: a LinearOperator then needs rmatvec, and a function will not do.
    What A and M give back must be a new array at each product (or the one that they were given), and is not written.
callback : callback(x), where each method says; x is the iterate itself, to be read only. A GPU is waited for each time.
watch : watch(iteration, residual_norm), each time the host looks at the progress: every iteration on the CPU, every few
    on the GPU. Either ends the solve by returning True or raising StopIteration: Status.INTERRUPTED.

They return a `Solution`; `x, info = cg(...)` unpacks as SciPy's. They work in the widest dtype of A, b and x0 (complex
if M is), on the device of b. On a GPU float32 and complex64 are solved in double precision if A has entries below 2e-31
or above 1e31, whose products may underflow there; functions that are given as M then see double vectors.
b = 0 gives x = 0. A breakdown is a Status, and x then the one of these with the smallest
true residual: the last iterate, the one that the recurrence thinks best, and those from which a cycle began, x0 the
first. So it is never NaN and never worse than x0; an iterate passed in between may have been better where the
recurrence has lost touch with the true residual, since that is computed anew only where a cycle begins.
Wrong shapes, NaN or Inf raise MatrixError, meaningless parameters ParameterError, mixed devices DeviceError.

On a GPU cg, bicgstab, gmres and fgmres record their iteration as a CUDA graph, where A and M allow that; docs/gpu.md
says which do. Such a solve keeps all vectors that one iteration makes, each in memory of its own, until it ends: the
products with A and M, which are counted in the memory of each method, and what M makes on the way to its result. Where
nothing is recorded, memory that one operation gives back serves the next.
"""

from finelu.krylov.bicg import BiCG, bicg
from finelu.krylov.bicgstab import BiCGStab, bicgstab
from finelu.krylov.cg import CG, cg
from finelu.krylov.fgmres import FGMRES, fgmres
from finelu.krylov.gmres import GMRES, RESTART, gmres
from finelu.krylov.method import METHODS, Method, iterate, method_name, register
from finelu.krylov.minres import MINRES, minres
from finelu.krylov.richardson import richardson
from finelu.krylov.sqmr import SQMR, sqmr

CYCLE = 50  # iterations of a cycle, of the methods that restart, where `solve`, `Sequence` and `compare` call them

# finelu's own, in the order in which texts name them. richardson converges for few A and M only: none is chosen, or
# asked for by its name.
OWN: tuple[type[Method], ...] = (CG, MINRES, SQMR, GMRES, FGMRES, BiCGStab, BiCG)
for _kind in OWN:
    register(_kind)

__all__ = [
    "CYCLE",
    "METHODS",
    "OWN",
    "RESTART",
    "Method",
    "bicg",
    "bicgstab",
    "cg",
    "fgmres",
    "gmres",
    "iterate",
    "method_name",
    "minres",
    "register",
    "richardson",
    "sqmr",
]
