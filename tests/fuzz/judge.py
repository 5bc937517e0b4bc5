"""What finelu may answer: `judged(case)` calls it and returns what is wrong with the answer, apart from finelu.

Residuals are formed exactly, as sums of integers times a power of two, or, of many entries, in extended precision with
a bound of its rounding for each row. Whether A is singular is decided by elimination modulo a large prime.

Faults are what must not happen: a claim that is false, NaN, an exception other than FineluError, a warning, output, a
changed argument, a time limit exceeded. Weak points are counted apart: systems that could have been solved and were
not, and calls that took long.
"""

from __future__ import annotations

import math
import re
import traceback
import warnings
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import scipy.sparse as sp
import systems
from systems import Case

import finelu as fl
from finelu.compiling import compile_clock
from finelu.errors import FineluError
from finelu.preconditioners import RECIPES

EXACT = 20_000  # products that are summed exactly
EXTENDED = np.finfo(np.longdouble).nmant >= 63
SLACK = {"float64": 1e-6, "float32": 1e-5}  # of a claim, relative: norms are rounded, too
MOST_EXACT = 60  # rows up to which the rank is computed
DIFFER = 1.01e4  # times by which rows differ in size from which on each is looked at by itself, too
SIZES = 2.0  # times by which the backward error of a row may be larger where sizes of complex numbers are sums of parts
LONG = 5.0  # seconds that a small system may take
COMPILING = 0.5  # seconds of compiling in a call from which on its time is not judged
NO_NUMBER = re.compile(r"\b(nan|inf) (or more|s|of|GB|MB|bytes|entries|roundings)\b|(residual|error|norm) (nan|inf)\b")
REACHABLE = 1e8  # condition number of the equilibrated matrix below which a solution is expected


@dataclass
class Verdict:
    outcome: str = ""
    faults: list[str] = field(default_factory=list)
    weak: list[str] = field(default_factory=list)
    seconds: float = 0.0
    late: bool = False  # the only fault is the time


# Residuals -----------------------------------------------------------------------------------------------------------


def real_system(A: sp.csr_matrix, b: Any, x: Any) -> tuple[sp.csr_matrix, Any, Any]:
    """A, b, x as real ones of twice the size where one is complex: norms and products are the same."""
    b, x = np.asarray(b), np.asarray(x)
    if not any(v.dtype.kind == "c" for v in (A, b, x)):
        return A, b, x
    if A.dtype.kind == "c":
        A = sp.bmat([[A.real, -A.imag], [A.imag, A.real]], format="csr")
    else:
        A = sp.block_diag([A, A], format="csr")
    return A, np.r_[b.real, b.imag], np.r_[x.real, x.imag]


def integers(v: Any) -> tuple[list[int], list[int]]:
    """(m, e) with v = m 2^e, exactly."""
    mantissa, exponent = np.frexp(np.asarray(v, np.float64))
    return (mantissa * 2.0**53).astype(np.int64).tolist(), (exponent - 53).astype(int).tolist()


def extended(k: int, exponent: int) -> Any:
    """k 2^exponent, rounded to extended precision."""
    shift = max(k.bit_length() - 62, 0)
    return np.ldexp(np.longdouble(k >> shift), shift + exponent)


def absolute(v: Any) -> Any:
    """Magnitudes in extended precision, of a matrix or a vector."""
    if sp.issparse(v):
        return sp.csr_matrix((absolute(v.data), v.indices, v.indptr), shape=v.shape)
    return np.hypot(v.real.astype(np.longdouble), v.imag.astype(np.longdouble))


class Measured:
    """b - A x of one column, without rounding that matters.

    size, size_b : 2-norms, as numbers that may be 0 or Inf where they leave the range of a double.  relative : their
    quotient.  r : |b - A x|_i, terms : (|A| |x| + |b|)_i, both in extended precision.  rows : their quotients, 0 where
    both are.
    """

    def __init__(self, A: sp.csr_matrix, b: Any, x: Any):
        b, x, L = np.asarray(b), np.asarray(x), absolute(A)
        self.terms = L @ absolute(x) + absolute(b)
        real, c, y = real_system(A, b, x)
        self.exact = real.nnz + c.size <= EXACT or not EXTENDED
        r = (self._exactly if self.exact else self._extended)(real, c, y)
        self.r = np.hypot(r[: b.size], r[b.size :]) if r.size > b.size else abs(r)
        self.rows = np.divide(self.r, self.terms, out=np.zeros_like(self.r), where=self.terms > 0).astype(float)

    def _exactly(self, A: sp.csr_matrix, b: Any, x: Any) -> Any:
        a, at = integers(A.data)
        v, vt = integers(x)
        c, ct = integers(b)
        indptr, indices = A.indptr.tolist(), A.indices.tolist()
        low = min([0, *ct, *(e + vt[j] for e, j in zip(at, indices))])
        r = []
        for i in range(len(c)):
            total = c[i] << (ct[i] - low)
            for p in range(indptr[i], indptr[i + 1]):
                j = indices[p]
                total -= (a[p] * v[j]) << (at[p] + vt[j] - low)
            r.append(total)
        self.unit = Fraction(2) ** low
        self.square = sum(k * k for k in r)
        self.square_b = sum((m << (e - low)) ** 2 for m, e in zip(c, ct))
        self.size, self.size_b = (root(s * self.unit**2) for s in (self.square, self.square_b))
        self.relative = math.sqrt(min(ratio(self.square, self.square_b), 1e300))
        return np.array([extended(k, low) for k in r], np.longdouble)

    def _extended(self, A: sp.csr_matrix, b: Any, x: Any) -> Any:
        L = sp.csr_matrix((A.data.astype(np.longdouble), A.indices, A.indptr), shape=A.shape)
        b, x = b.astype(np.longdouble), x.astype(np.longdouble)
        sizes = abs(L) @ abs(x) + abs(b)
        rounding = (np.diff(A.indptr) + 2) * np.finfo(np.longdouble).eps * sizes
        r = np.maximum(abs(b - L @ x) - rounding, 0)  # no more than the true one
        self.square, self.square_b = (r**2).sum(), (b**2).sum()
        self.size, self.size_b = float(np.sqrt(self.square)), float(np.sqrt(self.square_b))
        self.relative = float(np.sqrt(self.square / self.square_b)) if self.square_b else math.inf
        return r

    def meets(self, rtol: float, atol: float, slack: float) -> bool:
        """||b - A x|| <= max(rtol ||b||, atol) (1 + slack)."""
        if not self.exact:
            wanted = max(np.longdouble(rtol) * np.sqrt(self.square_b), np.longdouble(atol))
            return bool(np.sqrt(self.square) <= wanted * (1 + slack))
        wanted = max(Fraction(rtol) ** 2 * self.square_b, (Fraction(atol) / self.unit) ** 2)
        return bool(self.square <= wanted * Fraction(1 + slack) ** 2)


def ratio(k: int, s: int) -> float:
    if not s:
        return math.inf if k else 0.0
    try:
        return k / s
    except OverflowError:
        return math.inf


def root(square: Fraction) -> float:
    """Its square root, as a double."""
    if not square:
        return 0.0
    shift = (square.numerator.bit_length() - square.denominator.bit_length()) // 2 * 2
    part = float(square / Fraction(2) ** shift)
    try:
        return math.ldexp(math.sqrt(part), shift // 2)
    except OverflowError:
        return math.inf


def felt(found: Measured, dtype: Any) -> Any:
    """Rows whose terms are normal numbers with all digits in this dtype: in others products underflow."""
    limits = np.finfo(dtype)
    return found.terms >= np.longdouble(limits.tiny) / np.longdouble(limits.eps)


def meets_by_rows(
    A: sp.csr_matrix, b: Any, found: Measured, dtype: Any, rtol: float, atol: float, slack: float
) -> bool:
    """Whether ||D (b - A x)|| <= max(rtol, atol / ||b||) ||D b||, D the reciprocals of the sums of |A| over its rows,
    where these sums differ by more than 1e4, and the terms |A| |x| + |b| of the rows do, too; else True.

    Rows that are not `felt` are left out on the left, and True where D b leaves the range of the dtype: then finelu
    knows no rows.
    """
    limits = np.finfo(dtype)
    sums = np.asarray(absolute(A).sum(axis=1)).ravel()
    sums[sums == 0] = sums.max(initial=0.0) or 1.0
    rounded = found.terms * (np.diff(A.indptr) + 1) * limits.eps
    scaled_b = np.sqrt(np.sum((absolute(b) / sums) ** 2))
    if not scaled_b < limits.max / 2 or not scaled_b > limits.tiny or not sums.max(initial=0.0) < limits.max / 2:
        return True
    if not uneven(sums) or not uneven(rounded[rounded > limits.tiny]):
        return True
    length = np.sqrt(np.sum(np.where(felt(found, dtype) & (sums > limits.tiny), found.r / sums, 0) ** 2))
    wanted = max(rtol, atol / found.size_b if found.size_b else 0.0) * scaled_b
    return bool(length <= wanted * (1 + slack))


def uneven(sizes: Any) -> bool:
    return bool(np.max(sizes, initial=0.0) > DIFFER * np.min(sizes, initial=np.inf))


# Singular matrices ---------------------------------------------------------------------------------------------------


def prime_one_modulo_four() -> tuple[int, int]:
    """(p, i) with i^2 = -1 modulo p."""
    p = 2**127 + 29  # the first candidates above 2^127 are tried in turn
    while p % 4 != 1 or pow(3, p - 1, p) != 1 or pow(5, p - 1, p) != 1 or pow(7, p - 1, p) != 1:
        p += 1
    for g in range(2, 100):
        i = pow(g, (p - 1) // 4, p)
        if i * i % p == p - 1:
            return p, i
    raise ArithmeticError("there is no root of -1")


PRIME, ROOT = (
    prime_one_modulo_four()
)  # Gaussian integers map to the numbers modulo it, sums to sums, products to products


def nonsingular(A: sp.csr_matrix) -> bool | None:
    """Whether A has an inverse: True is certain, False as good as that; None of a matrix that is too large.

    Elimination modulo a prime: each number is an integer times a power of two, and two has an inverse.
    """
    n, p = A.shape[0], PRIME
    if n > MOST_EXACT:
        return None
    dense = A.toarray()

    def residues(part: Any) -> list[list[int]]:
        m, e = integers(part.ravel())
        powers = {exponent: pow(2, exponent, p) for exponent in set(e)}
        flat = [mantissa * powers[exponent] % p for mantissa, exponent in zip(m, e)]
        return [flat[i * n : (i + 1) * n] for i in range(n)]

    rows = residues(dense.real)
    if dense.dtype.kind == "c":
        rows = [[(a + ROOT * c) % p for a, c in zip(u, v)] for u, v in zip(rows, residues(dense.imag))]
    for k in range(n):
        pivot = next((i for i in range(k, n) if rows[i][k]), None)
        if pivot is None:
            return False
        rows[k], rows[pivot] = rows[pivot], rows[k]
        inverse = pow(rows[k][k], -1, p)
        for i in range(k + 1, n):
            if rows[i][k]:
                factor = rows[i][k] * inverse % p
                rows[i] = [(a - factor * c) % p for a, c in zip(rows[i], rows[k])]
    return True


def within_reach(A: sp.csr_matrix, b: Any, rtol: float, atol: float, dtype: Any) -> bool:
    """Whether a solution to this tolerance is expected: A is well conditioned once it is equilibrated, x is in the
    range of its dtype, and rounding x leaves a residual far below the tolerance."""
    n = A.shape[0]
    if n > 200:
        return False
    dense = A.toarray().astype(complex if A.dtype.kind == "c" else float)
    rows, columns, B = np.zeros(n), np.zeros(n), dense
    for _ in range(4):
        for axis in (1, 0):
            largest = abs(B).max(axis=axis)
            if not np.all(largest > 0):
                return False
            exponent = -np.floor(np.log2(largest))
            rows, columns = (rows + exponent, columns) if axis else (rows, columns + exponent)
            B = scaled(dense, rows, columns)
    if not np.isfinite(B).all() or np.linalg.cond(B) >= REACHABLE:
        return False
    of_b = np.max(abs(b), initial=0.0)
    if of_b == 0:
        return True
    unit = np.floor(np.log2(of_b))
    try:
        y = np.linalg.solve(B, np.ldexp(1.0, rows.astype(int)) * (b / of_b)) * (of_b / 2.0**unit)
    except np.linalg.LinAlgError:
        return False
    with np.errstate(all="ignore"):
        log_x = np.log2(abs(y), where=y != 0, out=np.full(n, -np.inf)) + columns + unit
        terms = abs(dense) @ np.exp2(log_x)
    limits = np.finfo(dtype)
    in_range = np.all((log_x < limits.maxexp - 10) & ((log_x > limits.minexp + 60) | ~np.isfinite(log_x)))
    wanted = max(rtol * float(np.linalg.norm(b / of_b)) * of_b, atol)
    with np.errstate(all="ignore"):
        rounding = float(np.finfo(dtype).eps) * float(np.linalg.norm(terms))
    normal = of_b > 1e3 * float(limits.tiny / limits.eps) and np.all(np.isfinite(terms)) and np.max(terms) < 1e290
    return bool(in_range and normal and rounding <= wanted / 100)


def scaled(dense: Any, rows: Any, columns: Any) -> Any:
    """2^(rows_i + columns_j) A_ij, in two steps, since the powers themselves may leave the range."""
    exponent = (rows[:, None] + columns[None, :]).astype(int)
    if dense.dtype.kind == "c":
        return np.ldexp(dense.real, exponent) + 1j * np.ldexp(dense.imag, exponent)
    return np.ldexp(dense, exponent)


# The call and its verdict --------------------------------------------------------------------------------------------


def recipe_of(text: str) -> Any:
    """The recipe that a text like "ILU0(shift=0.1)" makes; None of ""."""
    return eval(text, {kind.__name__: kind for kind in RECIPES.values()}) if text else None


def snapshot(v: Any) -> bytes:
    """All that is stored in a matrix or vector."""
    if sp.issparse(v):
        names = ("data", "indices", "indptr", "row", "col", "offsets", "rows")
        arrays = [np.asarray(getattr(v, name)) for name in names if hasattr(v, name)]
        return b"".join(repr(a.tolist()).encode() if a.dtype == object else a.tobytes() for a in arrays)
    return repr(v).encode() if isinstance(v, list) else np.asarray(v).tobytes()


def answer(case: Case) -> Any:
    """What finelu returns: a Solution, several of a sequence, or (F, b, x) of a recipe."""
    system, call = case.system, case.call
    A, b, options = system.A, system.b, dict(call.options)
    if call.kind == "solve":
        recipe = call.recipe if call.recipe == "auto" else recipe_of(call.recipe)
        return fl.solve(A, b, recipe=recipe, method=call.method, **options)
    if call.kind == "method":
        M = recipe_of(call.recipe)
        M = None if M is None else M.factor(A)
        return getattr(fl, call.method)(A, b, M=M, **options)
    if call.kind == "sequence":
        sequence = fl.Sequence(**options)
        first = sequence.step(A, b)
        with np.errstate(all="ignore"):
            later = system.stored * 1.5
        second = sequence.step(later, b)
        return first, second, sequence.step(None, b)
    F = recipe_of(call.recipe).factor(A)
    x = F.solve(b, call.options["trans"])
    F.update(A)
    return F, x, F.solve(b, call.options["trans"])


def case_of(seed: int) -> Case:
    return systems.case(seed)


def judged(case: Case | int) -> Verdict:
    """Calls finelu with a case, or that of a seed, and looks at what comes of it. Time is that of the clock on the
    wall, so that waiting counts: who runs several cases at once repeats what was late alone."""
    case = case_of(case) if isinstance(case, int) else case
    system, call, verdict = case.system, case.call, Verdict()
    before = snapshot(system.A), snapshot(system.b)
    fl.set_num_threads(call.threads)
    result = None
    try:
        with np.errstate(all="raise" if call.strict else "warn"), warnings.catch_warnings():
            warnings.simplefilter("error")
            with compile_clock() as compiling:
                start = perf_counter()
                result = answer(case)
        verdict.outcome = named(result)
    except FineluError as error:
        verdict.outcome = type(error).__name__
        if "\n" in str(error) or not str(error).strip():
            verdict.faults.append(f"a message that is not one line: {str(error)!r}")
    except Exception as error:
        verdict.outcome = type(error).__name__
        verdict.faults.append(f"{type(error).__name__}: {error}, from {where(error)}")
    verdict.seconds = perf_counter() - start
    for name, old, new in zip("Ab", before, (snapshot(system.A), snapshot(system.b))):
        if old != new:
            verdict.faults.append(f"{name} was changed")
    with np.errstate(all="ignore"):
        if result is not None:
            look(case, result, verdict)
        timed(case, compiling(), verdict)
    return verdict


def named(result: Any) -> str:
    if isinstance(result, fl.Solution):
        return result.status.name
    return " ".join(s.status.name for s in result if isinstance(s, fl.Solution)) or "factors"


def where(error: BaseException) -> str:
    """The last places, innermost first."""
    places = traceback.extract_tb(error.__traceback__)[:-4:-1]
    return " < ".join(f"{Path(place.filename).name}:{place.lineno}" for place in places)


def look(case: Case, result: Any, verdict: Verdict) -> None:
    system, call = case.system, case.call
    b = np.asarray(system.b)
    if isinstance(result, fl.Solution):
        look_at_solution(system.stored, b, result, case, verdict)
    elif call.kind == "sequence":
        later = system.stored * 1.5
        for A, solution in zip((system.stored, later, later), result):
            look_at_solution(A, b, solution, case, verdict)
    else:
        look_at_factors(case, result, verdict)


def look_at_solution(A: sp.csr_matrix, b: Any, s: fl.Solution, case: Case, verdict: Verdict) -> None:
    call, faults = case.call, verdict.faults
    x, n = np.asarray(s.x), A.shape[0]
    if x.shape != b.shape:
        faults.append(f"x has shape {x.shape}, b has {b.shape}")
        return
    if not np.isfinite(x).all():
        faults.append(f"NaN or Inf in x, {s.status.name}")
        return
    if (s.info == 0) != s.converged or not s.iterations >= 0:
        faults.append(f"info {s.info}, {s.iterations} iterations, {s.status.name}")
    if "maxiter" in call.options and s.iterations > call.options["maxiter"] * max(1, b.size // n):
        faults.append(f"{s.iterations} iterations of {call.options['maxiter']}")
    if (words := NO_NUMBER.search(s.explain() + repr(s))) is not None:
        verdict.weak.append(f"words: {words.group()!r} in explain()")
    rtol = call.options.get("rtol", 1e-8 if call.kind != "method" else 1e-5)
    atol = call.options.get("atol", 0.0)
    slack = SLACK[np.zeros(0, x.dtype).real.dtype.name]
    columns = [Measured(A, v, y) for v, y in zip(b.reshape(n, -1).T, x.reshape(n, -1).T)]
    criterion = call.options.get("criterion", "auto")
    of_rows = 1.0 if A.dtype.kind == x.dtype.kind == "f" else SIZES  # of a complex number the sum of both parts
    for found, v in zip(columns, b.reshape(n, -1).T):
        if not s.converged:
            continue
        if criterion == "backward":
            worst = float(np.max(found.rows, where=felt(found, x.dtype), initial=0.0))
            if worst > 0 and worst > max(rtol, atol / found.size_b) * of_rows * (1 + slack):
                faults.append(f"false claim: backward error of a row {worst:.3e}, rtol={rtol:.2e}")
        elif not found.meets(rtol, atol, slack):
            faults.append(f"false claim: ||b - A x|| / ||b|| = {found.relative:.3e}, rtol={rtol:.2e}, atol={atol:g}")
        elif criterion == "auto" and not meets_by_rows(A, v, found, x.dtype, rtol, atol, of_rows * 1.01 - 1):
            faults.append(f"false claim: rows up to {found.rows.max():.3e}, rtol={rtol:.2e}, atol={atol:g}")
    if len(columns) == 1:
        reported, found = s.residual_norm, columns[0]
        limits, terms = np.finfo(x.dtype), float(np.sqrt(np.sum(found.terms**2)))
        allowed = 2e-2 * found.size + n * (8 * float(limits.eps) * terms + 4 * float(limits.smallest_subnormal))
        overflows = reported == math.inf and np.max(found.terms, initial=0.0) > limits.max / 4
        if math.isnan(reported) or (
            math.isfinite(found.size) and not overflows and abs(reported - found.size) > allowed
        ):
            faults.append(f"residual_norm={reported:.6e}, but it is {found.size:.6e}")
    if s.status is fl.result.Status.SINGULAR and nonsingular(A):
        faults.append("false verdict: SINGULAR, but A has an inverse")
    plain = call.kind == "solve" and call.recipe == call.method == "auto" and not call.options.keys() & LIMITS
    unsolved = plain and not s.converged and len(columns) == 1
    if unsolved and within_reach(A, b.reshape(-1), max(rtol, 1e-14), atol, np.float64):
        verdict.weak.append(f"not solved: {s.status.name}")


LIMITS = {"maxiter", "time_limit", "memory_limit", "x0"}


def look_at_factors(case: Case, result: Any, verdict: Verdict) -> None:
    """Complete factors are held to a small residual, or to one that is rounding of the terms of each row; of all others
    x is looked at alone."""
    _, first, second = result
    b, A, call = np.asarray(case.system.b), case.system.stored, case.call
    for x in (first, second):
        x = np.asarray(x)
        if x.shape != b.shape:
            verdict.faults.append(f"x has shape {x.shape}, b has {b.shape}")
            return
    if not call.recipe.startswith("SparseLU") or b.size != A.shape[0]:
        return
    op = {"N": A, "T": A.T.tocsr(), "H": A.conj().T.tocsr()}[call.options["trans"]]
    v, x = b.reshape(-1), np.asarray(second).reshape(-1)
    single = A.dtype.name in ("float32", "complex64")
    if within_reach(op, v, 1e-2 if single else 1e-8, 0.0, np.float32 if single else np.float64):
        if not np.isfinite(x).all():
            verdict.faults.append("NaN or Inf in the x of complete factors")
        elif not (found := Measured(op, v, x)).meets(1e-2 if single else 1e-7, 0.0, 0.0) and not (
            found.rows.max() <= 4 * np.finfo(A.dtype).eps
        ):
            verdict.faults.append(f"complete factors leave {found.relative:.2e}, rows {found.rows.max():.2e}")


def timed(case: Case, compiling: float, verdict: Verdict) -> None:
    limit = case.call.options.get("time_limit")
    if compiling > COMPILING:
        return
    if limit is not None and verdict.seconds - compiling > 1.2 * limit + 0.05:
        verdict.late = not verdict.faults
        verdict.faults.append(f"{verdict.seconds - compiling:.3f} s, with time_limit={limit:g}")
    elif verdict.seconds - compiling > LONG:
        verdict.weak.append(f"long: {verdict.seconds:.1f} s of {case.system.n} rows")
