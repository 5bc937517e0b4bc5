"""`spsolve`, `splu` and `factorized` with the signatures and conventions of SciPy's, by complete factors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse import SparseEfficiencyWarning

from finelu import foreign
from finelu.arithmetic import ignore_fp_errors
from finelu.errors import MatrixError, ParameterError, SingularMatrix, WrongType
from finelu.factors import Factors
from finelu.foreign import MatrixRankWarning
from finelu.interop.scipy.route import RECIPE, SINGULAR, SINGULARITIES, solved
from finelu.interop.scipy.system import FLOATING, Corrupt, System, numbers, of_scipy
from finelu.matrix import as_csr
from finelu.matrix.in_range import in_range
from finelu.preconditioners.direct.analysis import TINY
from finelu.preconditioners.direct.superlu import structurally_singular
from finelu.validation import count, number

ANY_SHAPE = "; finelu.lstsq(A, b) takes a matrix of any shape"
# Rows, and entries a row, up to which SuperLU takes 0.1 to 0.8 ms, and the choice of another library 0.15 to 0.35 ms,
# if its factors have little fill. With four entries a row in random places that choice saves 19 ms.
FEW, THIN = 1000, 3
PERMC_SPECS = ("NATURAL", "MMD_ATA", "MMD_AT_PLUS_A", "COLAMD")


@ignore_fp_errors
def spsolve(A: Any, b: Any, permc_spec: str | None = None, use_umfpack: bool = True) -> Any:
    """Solve A x = b with the accuracy of a direct method. Instead of `scipy.sparse.linalg.spsolve`.

    A : (n, n), sparse; CSR and CSC are taken as they are, others are converted, with a SparseEfficiencyWarning. A is
        not written, and need not be sorted.
    b : (n,), (n, 1) or (n, k), dense or sparse.
    permc_spec : None: finelu chooses library and order. "NATURAL", "MMD_ATA", "MMD_AT_PLUS_A" or "COLAMD": the factors
        are SuperLU's, with the columns in that order.
    use_umfpack : accepted for programs that pass it; UMFPACK is not used.
    Returns x as SciPy does: (n,) for b (n,) or (n, 1), also if b is sparse; (n, k) for a dense b (n, k); a sparse
    object of A's class for a sparse b (n, k). Its dtype is the one to which A, as floating point, and b are promoted.
    For a singular A it is filled with NaN, and a MatrixRankWarning is given; with a sparse b (n, k) a singular A is a
    SingularMatrix, which is a RuntimeError.

    The way depends on A alone as long as the factors fit in memory. They are complete, and each column of x is refined
    until its backward error in each row is a few roundings, of the size of the row if its sum is rounding itself; a
    MatrixRankWarning is given if it stays far above, and a
    RuntimeWarning if x is not finite though A and b are. Factors that do not fit 80% of the free memory are not begun:
    then iterations of `finelu.solve` reach a direct method's accuracy, with a SparseEfficiencyWarning that says so, or
    raise NotConverged.
    The analyses of the last patterns, and the factors of the last matrix of a pattern, are kept, in up to 64 MiB: with
    new values of a known pattern only the numbers are computed, and with the same values only x is. The bits are those
    for a new pattern unless analysis or pivots depend on values, as for matrices that are not definite. Threads may
    call it at the same time.
    Raises MatrixError, a ValueError, for shapes that do not fit.
    """
    system = System.of(
        A, "spsolve requires A be CSC or CSR matrix format", f"matrix must be square (has shape {{}}){ANY_SHAPE}", 5
    )
    given, b = b, of_scipy(b)
    is_sparse = sp.issparse(b)
    if not is_sparse:
        b = numbers(b)
    if b.ndim not in (1, 2):
        raise MatrixError(f"b has shape {b.shape}; (n,) or (n, k) is needed.")
    if system.n != b.shape[0]:
        raise MatrixError(f"matrix - rhs dimension mismatch ({system.S.shape} - {b.shape[0]})")
    if b.dtype.kind not in "biufc" or (dtype := np.promote_types(system.dtype, b.dtype)).char not in FLOATING:
        raise WrongType(f"b has dtype {b.dtype}, and A {system.dtype}; no x is computed in a dtype that holds both.")
    if permc_spec is not None and not (isinstance(permc_spec, str) and permc_spec in PERMC_SPECS):
        raise ParameterError(f"permc_spec={permc_spec!r}; None or one of {', '.join(PERMC_SPECS)} is needed.")
    is_vector = b.ndim == 1 or b.shape[1] == 1
    if is_sparse and not is_vector and b.format != "csc":
        text = "spsolve is more efficient when sparse b is in the CSC matrix format"
        warnings.warn(text, SparseEfficiencyWarning, stacklevel=3)
    if is_vector:
        b = (b.toarray() if is_sparse else b).ravel()
        is_sparse = False
    elif is_sparse:
        b = b.tocsc()
    b = b.astype(np.complex128 if b.dtype.kind == "c" else np.float64, copy=False)
    try:
        if 0 in b.shape:
            x = b
        elif b.dtype.kind == "c" and system.dtype.kind != "c":
            x = solved(system, b.real.copy(), permc_spec) + 1j * solved(system, b.imag.copy(), permc_spec)
        else:
            wide = np.complex128 if system.dtype.kind == "c" else np.float64
            x = solved(system, b.astype(wide, copy=False), permc_spec)
    except Corrupt:
        raise
    except SINGULARITIES as error:
        if is_sparse:
            raise SingularMatrix(f"{SINGULAR}: {error}") from error
        finite = bool(np.isfinite(system.S.data).all())
        begin = "Matrix is exactly singular: " if finite else "" if "NaN" in str(error) else "A holds NaN or Inf: "
        warnings.warn(f"{begin}{error}", MatrixRankWarning, stacklevel=3)
        return np.full(b.shape, np.nan, dtype)
    x = _narrowed(x, dtype)
    if not is_sparse:
        return x
    x = type(system.S)(x)
    return type(given).from_scipy_sparse(x) if hasattr(given, "to_scipy_sparse") else x


def _narrowed(x: Any, dtype: np.dtype[Any]) -> Any:
    """x in `dtype`, with a RuntimeWarning if elements of it overflow there."""
    found = x.astype(dtype, copy=False)
    if found.dtype != x.dtype:
        given: Any = x
        before = given.data if sp.issparse(x) else given
        if (np.isfinite(before) & ~np.isfinite(before.astype(dtype))).any():
            text = f"overflow: x leaves the range of {dtype}; give A or b in double precision"
            warnings.warn(text, RuntimeWarning, stacklevel=4)
    return found


@ignore_fp_errors
def splu(
    A: Any,
    permc_spec: str | None = None,
    diag_pivot_thresh: float | None = None,
    relax: int | None = None,
    panel_size: int | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """The complete L U of A, for repeated solves. Instead of `scipy.sparse.linalg.splu`.

    A : (n, n), sparse; others than CSR and CSC are converted, with a SparseEfficiencyWarning. A is not written.
    permc_spec, diag_pivot_thresh, relax, panel_size, options : SuperLU's own. If one of them is given, the result is
        SciPy's SuperLU object, made with them. Without them `finelu.SparseLU` chooses library and order,
        except for up to 400 rows, or up to 1000 rows with up to 4 entries each in the mean, where SuperLU factors.
    Returns an `LU`, with the attributes and conventions of SciPy's object.
    Raises SingularMatrix, which is a RuntimeError, for a singular A, and for one with NaN or Inf; MatrixError, a
    ValueError, if A is not square; MemoryError if the factors do not fit.
    """
    given = {
        "permc_spec": permc_spec,
        "diag_pivot_thresh": diag_pivot_thresh,
        "relax": relax,
        "panel_size": panel_size,
        "options": options,
    }
    return _factored(A, {name: value for name, value in given.items() if value is not None})


@ignore_fp_errors
def factorized(A: Any) -> Callable[[Any], Any]:
    """The function b -> x for solves with A, which is factored once: `splu(A).solve`.

    Instead of `scipy.sparse.linalg.factorized`, with the errors of `splu`.
    """
    return _factored(A, {}).solve  # type: ignore[no-any-return]


def _factored(A: Any, given: Mapping[str, Any]) -> Any:
    """An `LU`, or SciPy's SuperLU object if some of its own parameters are given."""
    converted, not_square = (
        "splu converted its input to CSC format",
        f"can only factor square matrices (has shape {{}}){ANY_SHAPE}",
    )
    system = System.of(A, converted, not_square, depth=6)
    system.require_indices()
    S = system.S
    try:
        if not np.isfinite(S.data).all():
            as_csr(S, diagonal=False)  # raises, naming the row
        if not given and not _is_for_superlu(S):
            return LU(RECIPE.factor(S), S)
    except SINGULARITIES as error:
        raise SingularMatrix(f"{SINGULAR}: {error}") from error
    factors = _by_superlu(S, given)
    return factors if given else LU(factors, S)


def _is_for_superlu(S: Any) -> bool:
    """Whether SuperLU is expected to factor S in less time than the choice of another library and the trial of its
    factors take."""
    n = S.shape[0]
    return bool(n <= TINY or (n <= FEW and S.nnz <= THIN * n))


def _by_superlu(S: Any, given: Mapping[str, Any]) -> Any:
    """SciPy's SuperLU object, made with these of its parameters."""
    if structurally_singular(S):
        raise SingularMatrix(f"{SINGULAR}: its pattern has no full diagonal in any order of the rows.")
    for name in given.keys() & {"relax", "panel_size"}:
        count(name, given[name], 1)  # SuperLU does not look at them
    if "diag_pivot_thresh" in given:
        number("diag_pivot_thresh", given["diag_pivot_thresh"])  # above 1 as 1
    named = ", ".join(f"{name}={value!r}" for name, value in given.items())
    try:
        return foreign.splu(S.tocsc(), **given)
    except RecursionError:
        raise
    except RuntimeError as error:
        why = "a pivot is 0" if str(error) == SINGULAR else f"SuperLU gave up: {error}"
        raise SingularMatrix(f"{SINGULAR}: {why}.") from error
    except (ValueError, OverflowError) as error:
        raise ParameterError(f"splu: {named}: {error}.") from error
    except TypeError as error:
        raise WrongType(f"splu: {named}: {error}.") from error


class LU:
    """Complete factors with the attributes and conventions of `scipy.sparse.linalg.SuperLU`.

    shape : (n, n).  nnz : the number of entries of the factors.
    L, U, perm_r, perm_c : those of SuperLU for this matrix, Pr A Pc = L U, made when first asked for unless `factors`
        has them.
    factors : what solves: `Factors`, with `report` and `update`; or, of matrices as small as `splu` says, SciPy's own
        SuperLU object.
    """

    def __init__(self, factors: Any, A: Any):
        """A : CSR or CSC, whose arrays are copied: SciPy's own copy takes as long as ten of them."""
        self.factors, self.shape, self._kind = factors, A.shape, type(A)
        self._arrays = A.data.copy(), A.indices.copy(), A.indptr.copy()

    def _columns(self) -> Any:
        """A by columns."""
        return self._kind(self._arrays, shape=self.shape).tocsc()

    @property
    def nnz(self) -> int:
        return int(self.factors.nnz)

    @ignore_fp_errors
    def solve(self, rhs: Any, trans: str = "N") -> Any:
        """x with A x = rhs, A^T x = rhs (trans "T") or A^H x = rhs ("H"), in a new array of the factors' dtype.

        rhs : (n,) or (n, k), of a dtype that goes into that of the factors without loss.
        Raises WrongType, a TypeError, for another dtype; MatrixError, a ValueError, for another shape, for NaN or Inf
        in rhs, and for an x that leaves the range of its dtype.
        """
        rhs, dtype = numbers(rhs), self._arrays[0].dtype
        if not np.can_cast(rhs.dtype, dtype, "safe"):
            raise WrongType(f"Cannot cast array data from {rhs.dtype!r} to {dtype!r} according to the rule 'safe'")
        if rhs.ndim not in (1, 2):
            raise MatrixError(f"object {'too deep' if rhs.ndim else 'of too small depth'} for desired array")
        if rhs.shape[0] != self.shape[0]:
            raise MatrixError(f"b is of incompatible size: it has shape {rhs.shape}, and A {self.shape[0]} rows")
        if trans not in ("N", "T", "H"):
            raise ParameterError(f"trans must be N, T, or H, not {trans!r}")
        rhs = rhs.astype(dtype, copy=False)
        if isinstance(self.factors, Factors):
            return self.factors.solve(rhs, trans)
        return in_range(self.factors.solve(rhs, trans), rhs, lambda v: self.factors.solve(v, trans), "splu")

    @cached_property
    def _superlu(self) -> Any:
        return foreign.splu(self._columns()) if isinstance(self.factors, Factors) else self.factors

    @property
    def L(self) -> Any:
        return self._superlu.L

    @property
    def U(self) -> Any:
        return self._superlu.U

    @property
    def perm_r(self) -> Any:
        return self._superlu.perm_r

    @property
    def perm_c(self) -> Any:
        return self._superlu.perm_c

    def __getstate__(self) -> dict[str, Any]:
        """Without SciPy's objects, which cannot leave the process: a copy makes them anew, with the same bits."""
        factors = self.factors if isinstance(self.factors, Factors) else None
        return vars(self) | {"factors": factors, "_superlu": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        del self._superlu
        if self.factors is None:
            self.factors = foreign.splu(self._columns())

    def __repr__(self) -> str:
        return f"LU({self.factors!r})"
