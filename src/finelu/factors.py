"""What a recipe makes: `Factors`, a preconditioner ready to be applied, refreshed and looked at."""

from __future__ import annotations

import threading
from copy import deepcopy
from time import perf_counter
from typing import Any

import numpy as np

from finelu.arithmetic import judged
from finelu.device import namespace, on_gpu, same_gpu, synchronize
from finelu.errors import DeviceError, MatrixError, NoFactors, ParameterError, UnstableFactors
from finelu.matrix import CSR, as_csr, dense_numbers, is_number
from finelu.triangular import TriangularSolver

TRANSPOSES = ("N", "T", "H")
PROBE_SEED = 7
USELESS = 10.0  # of `probe`: of some 200 factors of real matrices none with more served, and none with less was harmful


class Factors:
    """An approximation M of A whose inverse can be applied: `F.solve(r)` is M^-1 r, and so is `F @ r`.

    SciPy's and CuPy's iterative solvers take it as `M=F`: it has shape, dtype, matvec and rmatvec.
    recipe : the frozen recipe that made it.  report : dict of what happened (times, levels, variant, warnings).
    Can be pickled and deep-copied, with all that `update` needs; not while another thread updates. What belongs to this
    process (`_bound` names it) is made anew.
    Subclasses give `_apply(R, trans)` for R (n,) or (n, k) of the factors' dtype, `_refresh(A)`, `nnz`.
    """

    _bound: tuple[str, ...] = ("_lock",)  # attributes that stay in this process

    def __init__(self, recipe, A: CSR, dtype=None):
        self.recipe = recipe
        self.pattern = A
        self.dtype = np.dtype(dtype or A.dtype)
        self.report: dict[str, Any] = {}
        self._valid = True  # until an update fails
        self._lock = threading.RLock()

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name not in self._bound}

    def __setstate__(self, state) -> None:
        self.__dict__.update(state)
        self._lock = threading.RLock()

    def __copy__(self):
        """A deep copy: an update of one of two that share arrays would change the other."""
        return deepcopy(self)

    @property
    def shape(self) -> tuple[int, int]:
        return self.pattern.shape

    @property
    def nnz(self) -> int:
        """Stored entries of all factors together, a unit diagonal not counted."""
        raise NotImplementedError

    @judged
    def solve(self, R, trans: str = "N"):
        """M^-1 R (trans "N"), M^-T R ("T") or M^-H R ("H").

        R : (n,) or (n, k), on the device of the factors. Returns a new array of the same shape, of the wider dtype of
        R and the factors. Raises MatrixError for a wrong shape or what holds no numbers. Cost: one pass over the
        factors a column.
        """
        if trans not in TRANSPOSES:
            raise ParameterError(f"trans={trans!r}; one of {', '.join(TRANSPOSES)} is needed.")
        self._require_valid()
        R = dense_numbers(R, "the right-hand side")
        if on_gpu(R) != on_gpu(self.pattern.data):
            raise DeviceError("the right-hand side and the factors are on different devices; move one of them first.")
        same_gpu(R, self.pattern.data)
        if R.ndim not in (1, 2) or R.shape[0] != self.shape[0]:
            raise MatrixError(f"the right-hand side has shape {R.shape}, but the factors have {self.shape[0]} rows.")
        wide = np.result_type(R.dtype, self.dtype)
        if wide.kind == "c" and self.dtype.kind != "c":  # real factors, complex right-hand side: two real solves
            return self.solve(R.real, trans) + 1j * self.solve(R.imag, trans)
        return self._apply(R.astype(self.dtype, copy=False), trans).astype(wide, copy=False)

    @judged
    def update(self, A) -> Factors:
        """Recompute the values for a matrix with the same pattern; analysis and storage are kept. Returns self.

        Raises MatrixError if A stores entries elsewhere or is complex where the factors are real, ZeroPivot if the new
        values break the factorization (the old factors are then no longer valid, and solve says so until an update
        succeeds). Threads take turns at update; nobody may solve meanwhile.
        """
        A = as_csr(A, diagonal=self.pattern.missing == 0)
        if A.dtype.kind == "c" and self.dtype.kind != "c":
            raise MatrixError(f"update was given {A.dtype} values, but the factors are {self.dtype}. Factor A anew.")
        A = as_csr(A, diagonal=False, dtype=self.pattern.dtype)
        if not self.pattern.same_pattern(A):
            raise MatrixError(
                f"update needs the pattern that was factored ({self.pattern.nnz} entries); this A stores {A.nnz} "
                "or has them elsewhere. Factor it anew."
            )
        with self._lock:
            self._valid = False
            self._refresh(A)
            self._valid = True
        return self

    def _probe(self, A: CSR, apply) -> float:
        """`probe` of these factors, kept in the report, with a warning where it is beyond USELESS.

        Raises UnstableFactors where M^-1 v is not finite.
        """
        size, finite = probe(A, apply)
        if not finite:
            raise UnstableFactors(self.recipe)
        self.report["probe"] = size
        if size > USELESS:
            self._warn(f"{unstable(size)}; check A for dependent rows, try a shift, or another recipe")
        return size

    def _warn(self, text: str) -> None:
        self.report["warning"] = "; ".join([*filter(None, [self.report.get("warning")]), text])

    def apply(self, R, trans: str = "N"):
        """`solve` without its checks: for callers that are `judged`, and R on the device and of the dtype of these."""
        self._require_valid()
        return self._apply(R, trans)

    def _require_valid(self) -> None:
        if not self._valid:
            raise NoFactors(self.recipe)

    def _apply(self, R, trans: str):
        raise NotImplementedError

    def _refresh(self, A: CSR) -> None:
        raise NotImplementedError

    # SciPy's and CuPy's LinearOperator protocol
    def matvec(self, r):
        return self.solve(r)

    def rmatvec(self, r):
        return self.solve(r, trans="H")

    def matmat(self, R):
        return self.solve(R)

    def rmatmat(self, R):
        return self.solve(R, trans="H")

    def __matmul__(self, R):
        return self.solve(R)

    def __call__(self, R):
        return self.solve(R)

    def __repr__(self):
        device = "GPU" if on_gpu(self.pattern.data) else "CPU"
        return f"Factors({self.recipe!r}, n={self.shape[0]}, nnz={self.nnz}, {self.dtype}, {device})"


def probe(A: CSR, apply) -> tuple[float, bool]:
    """||A M^-1 v - v|| / ||v|| for v = A y, and whether M^-1 v is finite; y is random but the same in every run.

    v is in the range of A, so that factors of a singular A may pass; apply(v) is M^-1 v, of A's dtype. Inf where
    A M^-1 v, or the norm, is not finite; 0 for v = 0. Cost: two products with A and one application.
    """
    xp, S = namespace(A.data), A.tosparse()
    most = 2.0 ** -(4 * int((A.indptr[1:] - A.indptr[:-1]).max())).bit_length()  # so that no sum of v overflows
    y = np.random.default_rng(PROBE_SEED).uniform(-most, most, A.n).astype(A.data.real.dtype)
    with np.errstate(all="ignore"):
        v = S @ xp.asarray(y)
        size = abs(v).max()
        if not size > 0:
            return 0.0, True
        x = apply(v)
        found = float(xp.linalg.norm((S @ x - v) / size) / xp.linalg.norm(v / size))
        return found if found < np.inf else np.inf, bool(xp.isfinite(x).all())


def unstable(size: float) -> str:
    """What `probe` has found, for a warning."""
    return f"the factors are unstable: ||A M^-1 v - v|| is {size:.1e} ||v|| for a random v = A y"


def checked(recipe, A, *, diagonal: bool = True) -> CSR:
    """A through the door in the precision that the recipe wants, after a look at the recipe's own parameters.

    diagonal : it must be stored in full.
    """
    if not (is_number(recipe.shift) and 0.0 <= recipe.shift < np.inf):
        raise ParameterError(f"{recipe!r}: shift must be a finite number >= 0.")
    if recipe.precision not in (None, "float32", "float64"):
        raise ParameterError(f"{recipe!r}: precision must be None, 'float32' or 'float64'.")
    A = as_csr(A, diagonal=diagonal)
    if recipe.precision is None:
        return A
    single, is_complex = recipe.precision == "float32", A.dtype.kind == "c"
    dtype = np.dtype(("c8" if single else "c16") if is_complex else ("f4" if single else "f8"))
    return as_csr(A, diagonal=diagonal, dtype=dtype)


def shifted(A: CSR, shift: float):
    """A's values with the diagonal moved away from zero by `shift` times |A_ii|; a zero one becomes `shift` times the
    largest magnitude of its row. A's own array if shift is 0."""
    if shift == 0:
        return A.data
    xp = namespace(A.data)
    data = A.data.copy()
    d = data[A.diag]
    zero = d == 0
    if bool(zero.any()):
        largest = xp.asarray(abs(A.tosparse()).max(axis=1).toarray()).ravel()
        d = xp.where(zero, shift * largest.astype(A.dtype), d * (1 + shift))
    else:
        d = d * (1 + shift)
    data[A.diag] = d.astype(A.dtype)
    return data


def on_host(A: CSR, shift: float) -> CSR:
    """A with its diagonal shifted, in the memory of the host."""
    return A.with_values(shifted(A, shift)).on(np)


class TriangularFactors(Factors):
    """Factors that are applied by triangular solves; subclasses say which triangles, and fill their values.

    They give `_triangles` (a CSR whose values are the factors'), `_sequence(trans)` (the solves of M^-1, M^-T or M^-H
    as (lower, unit, trans) in their order), `_analyse(once)`, the plan of the factorization, and `_factorize(A)`, which
    sets the values or raises. The analyses of the solves with M are made with the factors, those for its transpose at
    the first solve that needs them; all are kept. With variant="auto" the first plan weighs its own cost; where another
    is faster from then on, the first update makes it. The report's seconds are the host's: a GPU may still be at work.
    """

    _triangles: CSR
    _plan: Any = None

    def __init__(self, recipe, A: CSR):
        super().__init__(recipe, A)
        self._solvers: dict[tuple[bool, bool, str], TriangularSolver] = {}

    def _refresh(self, A: CSR) -> None:
        if self._plan is None or self._plan.provisional:
            start = perf_counter()
            once, self._plan = self._plan is None, None  # the old plan's memory is free for the new one
            self._plan = self._analyse(once)
            self.report |= {"variant": self._plan.variant, "analysis_seconds": perf_counter() - start}
        start = perf_counter()
        self._factorize(A)
        self.report["numeric_seconds"] = perf_counter() - start
        start = perf_counter()
        for solver in self._solvers.values():
            solver.update(self._triangles.data)
        for key in self._sequence("N"):
            self._solver(key)
        self.report["triangular_seconds"] = perf_counter() - start
        self.report["triangular"] = {
            ("lower" if lower else "upper") + ("" if trans == "N" else f" {trans}"): {
                "method": s.method,
                "levels": s.levels,
            }
            for (lower, _, trans), s in self._solvers.items()
        }

    def _solver(self, key: tuple[bool, bool, str]) -> TriangularSolver:
        if key in self._solvers:  # without the lock: a forked child's copy of it may be held for ever
            return self._solvers[key]
        with self._lock:
            if key not in self._solvers:
                lower, unit, trans = key
                solver = TriangularSolver(
                    self._triangles,
                    lower=lower,
                    unit=unit,
                    trans=trans,
                    method=self.recipe.triangular,
                    sweeps=self._triangular_sweeps,
                    check=False,
                )
                synchronize(self._triangles.data)  # another thread may use it on another stream
                self._solvers[key] = solver
            return self._solvers[key]

    @property
    def _triangular_sweeps(self) -> int | None:
        return self.recipe.sweeps

    def _apply(self, R, trans: str):
        for key in self._sequence(trans):
            R = self._solver(key).apply(R)
        return R

    def _analyse(self, once: bool):
        raise NotImplementedError

    def _factorize(self, A: CSR) -> None:
        raise NotImplementedError

    def _sequence(self, trans: str) -> tuple[tuple[bool, bool, str], ...]:
        raise NotImplementedError
