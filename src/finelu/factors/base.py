"""The result of a recipe: `Factors`, a preconditioner that can be applied, updated and inspected."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple

import numpy as np

from finelu import deadline
from finelu.arithmetic import ignore_fp_errors
from finelu.device import namespace, on_gpu, require_one_device, same_gpu
from finelu.errors import MatrixError, NoFactors, ParameterError, UnstableFactors
from finelu.factors.report import Report
from finelu.kernels import kernels_for, monitor
from finelu.kernels.operands import CSR
from finelu.matrix import as_csr, as_large, dense_numbers, norm, on_pattern
from finelu.matrix.in_range import in_range, is_finite
from finelu.page import facts_as_html

TRANSPOSES = ("N", "T", "H")
TRIAL_SEED = 7  # of the random vector, the same in every run
KEPT = 2**12  # numbers of a trial, up to which they are kept for the next
SAFE_NORM = 1e30  # up to which the norm of a residual does not overflow unless it is as good as infinite
USELESS = 10.0  # a trial residual: of some 200 factors of real matrices none with more served, none with less did harm


class Factors:
    """An approximation M of A whose inverse can be applied: `F.solve(r)` is M^-1 r, and so is `F @ r`.

    SciPy's and CuPy's iterative solvers take it as `M=F`: it has shape, dtype, matvec and rmatvec.
    recipe : the frozen recipe that made it.
    report : facts about the factorization (times, levels, variant, warnings): `print` it, or look facts up by name, as
        in a dict.
    Factors can be pickled and deep-copied, with all data for `update`, but not while another thread updates. Attributes
    that belong to this process (named in `_bound`) are made anew.
    Subclasses implement `_apply(R, trans)` for R (n,) or (n, k) of the factors' dtype, `_refresh(A)`, by which `update`
    computes the values anew, and `nnz`.
    """

    well_formed: ClassVar[bool] = False  # apply(r) is a new contiguous array as r is: Krylov methods need not look
    together: ClassVar[bool] = True  # whether solve(R) with several columns takes less time than a solve of each
    together_from: ClassVar[int] = 2  # columns from which a Krylov method takes less time with all of them at once
    _bound: tuple[str, ...] = ("_lock",)  # attributes that stay in this process
    updates = 0  # number of updates that have begun
    # Optional cheaper form of M r, valid once the coarse component of r has been removed: `start(A, x, r)` removes it
    # from r = b - A x, by x += Q r, and returns whether it is gone; `@` is M from then on.
    deflated: Any = None

    def __init__(self, recipe: Any, A: CSR, *, report: Report | None = None):
        deadline.check()
        self.recipe, self.pattern = recipe, A
        self.shape: tuple[int, int] = A.shape
        self.dtype = np.dtype(A.dtype)
        device, report = "GPU" if on_gpu(A.data) else "CPU", Report() if report is None else report
        report.factored_on = "CPU" if recipe.factored_on == "CPU" else device
        report.applied_on = "CPU" if recipe.applied_on == "CPU" else device
        self.report: Report = report
        self._valid = True  # until an update fails
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in self._bound}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def __copy__(self) -> Factors:
        """A deep copy: an update of one of two that share arrays would change the other."""
        return deepcopy(self)

    @property
    def capturable(self) -> bool:
        """Whether on a GPU `apply` may be recorded: it queues the same kernels each time, and waits for nothing."""
        return False

    @property
    def nnz(self) -> int:
        """Stored entries of all factors together, a unit diagonal not counted."""
        raise NotImplementedError

    @property
    def complete(self) -> bool:
        """Whether nothing was left out of the factors, so that M is A up to rounding and `solve` multiplies by A^-1.

        Only such factors may take the place of an inverse, as in OPinv= of SciPy's `eigsh`; all others precondition.
        False also if nothing was left out by chance, as by ILU0 of a tridiagonal matrix.
        """
        return bool(getattr(self.recipe, "complete", False))

    @ignore_fp_errors
    def solve(self, R: Any, trans: str = "N", out: Any = None) -> Any:
        """M^-1 R (trans "N"), M^-T R ("T") or M^-H R ("H").

        R : (n,) or (n, k), on the device of the factors.  out : array for the result, which may be R; None: a new one.
        Returns an array of R's shape, of the wider dtype of R and the factors.
        On the CPU it is finite: where sums overflow, the solve is repeated with 2^-p R. On a GPU it is not looked at,
        as that would wait for the device.
        Raises MatrixError for a wrong shape, if R does not hold numbers, or, on the CPU, if it holds NaN or Inf or the
        result leaves the range of its dtype. Cost: one pass over the factors a column.
        """
        given = R
        if out is not None and not on_gpu(out) and not on_gpu(R) and np.may_share_memory(out, given := np.asarray(R)):
            given = given.copy()
        x = self.solved(R, trans, out)
        if on_gpu(x) or is_finite(x):
            return x
        found = in_range(x, dense_numbers(given, "R"), lambda v: self.solved(v, trans), repr(self.recipe), self.dtype)
        if out is None:
            return found
        out[...] = found
        return out

    def solved(self, R: Any, trans: str = "N", out: Any = None) -> Any:
        """`solve`, whose result may hold NaN or Inf: for callers with `ignore_fp_errors` that test it."""
        if trans not in TRANSPOSES:
            raise ParameterError(f"trans={trans!r}; one of {', '.join(TRANSPOSES)} is needed.")
        if not self._valid:
            raise NoFactors(self.recipe)
        R = dense_numbers(R, "the right-hand side")
        require_one_device(R, self.pattern.data, "the right-hand side and the factors")
        if R.ndim not in (1, 2) or R.shape[0] != self.shape[0]:
            raise MatrixError(f"the right-hand side has shape {R.shape}, but the factors have {self.shape[0]} rows.")
        wide = self.dtype if R.dtype == self.dtype else np.result_type(R.dtype, self.dtype)
        if out is not None:
            _require_room(out, R, wide)
            if wide != self.dtype:
                out[...] = self.solved(R, trans)
                return out
            return self.apply(R.astype(wide, copy=False), trans, out)
        if wide.kind == "c" and self.dtype.kind != "c":  # real factors, complex right-hand side: two real solves
            return self.solved(R.real, trans) + 1j * self.solved(R.imag, trans)
        return self._apply(R.astype(self.dtype, copy=False), trans).astype(wide, copy=False)

    def apply(self, R: Any, trans: str = "N", out: Any = None) -> Any:
        """`solve` without its checks: for callers with `ignore_fp_errors`; R has the device and dtype of the
        factors."""
        if not self._valid:
            raise NoFactors(self.recipe)
        if out is None:
            return self._apply(R, trans)
        self._apply_into(R, trans, out)
        return out

    @ignore_fp_errors
    def update(self, A: Any, f: Any = None) -> Factors:
        """Recompute the values for a matrix with the same pattern; analysis and storage are kept. Returns self.

        f : for SciPy's `newton_krylov(..., inner_M=F)`, which calls update(x, f) at each step, with the point x and the
            value of the function there. This is no matrix, so the factors do not change. To follow the Jacobian, give
            `inner_M` an object with an `update(x, f)` of its own, which calls `update` of the factors.
        Raises MatrixError if A stores other entries, or is complex and the factors are real; ZeroPivot if the new
        values break the factorization. The old factors are then invalid, and solve raises an error until an update
        succeeds. Threads take turns at update; no other thread may solve meanwhile.
        """
        if f is not None:
            self._require_point(A, f)
            return self
        given = as_large(A, self.pattern)
        if given is not None and given.dtype == self.dtype and self._updated_at_once(given):
            return self
        A = (given and on_pattern(given, self.pattern)) or as_csr(A, diagonal=self.pattern.missing == 0)
        if A.dtype.kind == "c" and self.dtype.kind != "c":
            raise MatrixError(f"update was given {A.dtype} values, but the factors are {self.dtype}. Factor A anew.")
        A = as_csr(A, diagonal=False, dtype=self.pattern.dtype)
        if self.pattern.n != A.n:
            raise MatrixError(
                f"update needs a matrix of {self.pattern.n} rows, as was factored, but A has {A.n}. Factor it anew."
            )
        if not self.pattern.same_pattern(A):
            raise MatrixError(
                f"update needs the pattern that was factored ({self.pattern.nnz} entries); this A stores {A.nnz} "
                "or has them elsewhere. Factor it anew."
            )
        self._update_values(A)
        return self

    def _require_point(self, x: Any, f: Any) -> None:
        """A ParameterError unless both are vectors of this size."""
        shapes = [getattr(v, "shape", None) for v in (x, f)]
        if any(shape is None or len(shape) == 0 or math.prod(shape) != self.shape[0] for shape in shapes):
            raise ParameterError(
                f"update(x, f) takes two arrays of {self.shape[0]} numbers, as newton_krylov gives; update(A) a matrix."
            )

    def _update_values(self, A: Any) -> None:
        """`_refresh` for an A that fits; if it raises, these factors are no longer valid."""
        with self._lock:
            self.updates += 1
            self._valid = False
            self._refresh(A)
            self._valid = True

    def _try_solve(self, A: CSR, apply: Callable[[Any], Any]) -> float:
        """`trial_residual` of these factors, kept in the report, with a warning if it exceeds USELESS.

        Raises UnstableFactors if M^-1 v is not finite.
        """
        size, finite = trial_residual(A, apply)
        if not finite:
            raise UnstableFactors(self.recipe)
        self.report["trial_residual"] = size
        if size > USELESS:
            self.report.warn(f"{unstable(size)}; check A for dependent rows, try a shift, or another recipe")
        return size

    def _require_valid(self) -> None:
        if not self._valid:
            raise NoFactors(self.recipe)

    def _apply(self, R: Any, trans: str) -> Any:
        raise NotImplementedError

    def _apply_into(self, R: Any, trans: str, out: Any) -> None:
        """`_apply` with the result in `out`, which may be R; subclasses that can write there directly override it."""
        out[...] = self._apply(R, trans)

    def _refresh(self, A: CSR) -> None:
        raise NotImplementedError

    def _updated_at_once(self, A: CSR) -> bool:
        """`update` for an A of `as_large`, by subclasses that can check A and refresh at the same time; else False.

        Also False, with nothing changed, if A has other entries or a value that is not finite.
        """
        return False

    # SciPy's and CuPy's LinearOperator protocol
    ndim = 2
    __array_ufunc__ = None  # so that `x @ F` of an array x comes to __rmatmul__
    matvec = matmat = dot = __matmul__ = __call__ = solve

    def rdot(self, R: Any) -> Any:
        """R M^-1 for R (n,) or (k, n)."""
        return self.solve(dense_numbers(R, "the left factor").T, "T").T

    __rmatmul__ = rdot

    def rmatvec(self, R: Any) -> Any:
        return self.solve(R, trans="H")

    rmatmat = rmatvec

    def _repr_html_(self) -> str:
        facts = [("rows", self.shape[0]), ("entries", self.nnz), ("dtype", self.dtype), *self.report.items()]
        return facts_as_html(f"Factors by {self.recipe!r}", facts)

    def __repr__(self) -> str:
        device = "GPU" if on_gpu(self.pattern.data) else "CPU"
        return f"Factors({self.recipe!r}, n={self.shape[0]}, nnz={self.nnz}, {self.dtype}, {device})"


def _require_room(out: Any, R: Any, dtype: np.dtype[Any]) -> None:
    """A MatrixError if the result of a solve with R does not go into `out`."""
    fits = on_gpu(out) == on_gpu(R) and getattr(out, "shape", None) == R.shape and out.dtype == dtype
    if fits and getattr(out.flags, "writeable", True):
        same_gpu(out, R)
        return
    given = f"{type(out).__name__} of shape {getattr(out, 'shape', '?')} and dtype {getattr(out, 'dtype', '?')}"
    where = "the GPU" if on_gpu(R) else "the host"
    raise MatrixError(
        f"out is a {given}; the solution needs an array of shape {R.shape} and dtype {dtype} on {where}, not read-only."
    )


class Trial(NamedTuple):
    """The result of `trial`.

    size : ||A M^-1 v - v|| / ||v||, Inf if it is not finite; 0 for v = 0.  finite : whether M^-1 v is.
    v, left : v and v - A M^-1 v; None where v is 0, or its norm too large to divide by.
    """

    size: float
    finite: bool
    v: Any = None
    left: Any = None


def trial_residual(A: CSR, apply: Callable[[Any], Any], y: Any = None) -> tuple[float, bool]:
    """||A M^-1 v - v|| / ||v|| for v = A y, and whether M^-1 v is finite; y is random but the same in every run.

    v is in the range of A, so that factors of a singular A may pass.
    apply : apply(v) is M^-1 v, of A's dtype.  y : the result of `trial_vector`, for repeated calls.
    Inf if A M^-1 v, or the norm, is not finite; 0 for v = 0. Cost: two products with A and one application.
    """
    return trial(A, apply, y)[:2]


def trial(A: CSR, apply: Callable[[Any], Any], y: Any = None) -> Trial:
    """As `trial_residual`, with the vectors, for `reduction`."""
    kernels = kernels_for(A.data)
    product = kernels.products.subtract_product
    y = trial_vector(A) if y is None else y
    with np.errstate(all="ignore"):
        v = product(A, y)
        size = norm(v)
        safe = 0 < size < SAFE_NORM
        largest = 1.0 if safe else abs(v).max()
        if not largest > 0:
            return Trial(0.0, True)
        x = apply(v)
        left = product(A, x, v)
        found = norm(left) / size if safe else norm(left / largest) / norm(v / largest)
        finite = kernels.vectors.first_not_finite(x) < 0
        return Trial(found if found < np.inf else np.inf, finite, *((v, left) if safe else ()))


def backward_error(A: CSR, x: Any, b: Any) -> tuple[float, float, Any]:
    """The componentwise backward error, the largest |b - A x|_i / (|A| |x| + |b|)_i: the relative change of the entries
    of A and b with which x solves A x = b. Also the same in units of the rounding of a row's sum, and b - A x.

    Inf if x is not finite. W. Oettli, W. Prager: Compatibility of approximate solution of linear equations with
    given error bounds for coefficients and right-hand sides, 1964. Cost: one pass over the entries.
    """
    xp, kernels = namespace(A.data), kernels_for(A.data)
    r, rounding = xp.empty_like(b), xp.empty(b.size, b.real.dtype)
    limits = np.finfo(rounding.dtype)
    kernels.products.residual(A.indptr, A.indices, A.data, x, b, 1.0, r, rounding)
    found = abs(r) / xp.maximum(rounding, limits.tiny)
    lengths = A.indptr[1:] - A.indptr[:-1] + 1
    error, roundings = float((found * lengths).max()) * float(limits.eps), float(found.max())
    return (error, roundings, r) if error < np.inf and roundings < np.inf else (np.inf, np.inf, r)


def reduction(A: CSR, apply: Callable[[Any], Any], steps: int, enough: float, tried: Trial | None = None) -> float:
    """||v - A x|| / ||v|| after `steps` steps of GMRES, preconditioned by `apply`, for v = A y as in `trial_residual`.

    tried : the result of `trial` with the same `apply`, which saves the first step's application.
    Stops earlier once it is below `enough`. Inf if it is not finite; 0 for v = 0. Unlike `trial_residual` it
    distinguishes a few bad directions, which cost a few steps, from many. Cost: `steps` applications and products, and
    `steps` vectors; no BLAS, whose threads would keep cores busy after it.
    """
    xp, kernels = namespace(A.data), kernels_for(A.data)
    product, real = kernels.products.subtract_product, A.data.real.dtype
    v, left = (None, None) if tried is None else (tried.v, tried.left)
    with np.errstate(all="ignore"):
        r = product(A, trial_vector(A)) if v is None else v
        size = norm(r)
        if not 0 < size < SAFE_NORM:
            r = r / abs(r).max() if bool(abs(r).max() > 0) else r
            size = norm(r)
        if size == 0:
            return 0.0
        at_first = np.zeros(7, real)
        at_first[monitor.NORM], at_first[monitor.CLAIM] = 1, enough
        state, norms, history = xp.zeros(4, np.int32), xp.asarray(at_first), xp.empty(steps + 1, real)
        Q, v = xp.zeros((A.n, steps + 1), A.dtype, order="F"), xp.empty_like(r)
        H, g = xp.zeros((steps + 1, steps), A.dtype, order="F"), xp.zeros(steps + 1, A.dtype)
        c, s = xp.zeros(steps, real), xp.zeros(steps, A.dtype)
        kernels.arnoldi.arnoldi_begin(state, norms, r / size, Q, g, v)
        for _ in range(steps):
            deadline.check()
            image = product(A, apply(v)) if left is None else (r - left) / size
            left = None
            kernels.arnoldi.mgs_step(state, Q, image, H, v)
            kernels.arnoldi.givens_step(state, norms, history, H, c, s, g)
            if int(state[monitor.CODE]) != monitor.RUNNING:  # small enough, not finite, or the space is complete
                break
        return np.inf if int(state[monitor.CODE]) == monitor.NOT_FINITE else float(norms[monitor.NORM])


def trial_vector(A: CSR) -> Any:
    """The y (n,) of `trial_residual`, of A's dtype and on its device."""
    most = 2.0 ** -(4 * kernels_for(A.data).indices.longest(A.indptr)).bit_length()  # so that no sum of v overflows
    random = random_numbers(A.n) if A.n <= KEPT else random_numbers.__wrapped__(A.n)
    return namespace(A.data).asarray((most * random).astype(A.data.real.dtype).astype(A.dtype))


@lru_cache(8)
def random_numbers(n: int) -> Any:
    """(n,) : numbers between -1 and 1, the same in every run; kept for small n, where a generator takes longer."""
    return np.random.default_rng(TRIAL_SEED).uniform(-1, 1, n)


def unstable(size: float) -> str:
    """The result of `trial_residual` in words, for a warning."""
    return f"the factors are unstable: ||A M^-1 v - v|| is {size:.1e} ||v|| for a random v = A y"
