"""lstsq(A, b): the least-squares solution of an A of any shape and rank, by a preconditioner chosen for it."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from finelu.arithmetic import ignore_fp_errors
from finelu.auto.null_space import RANGE
from finelu.auto.precision import SINGLE
from finelu.device import USABLE, free_memory, namespace, sparse_module, to_host
from finelu.errors import FineluError, NotConverged, counted
from finelu.krylov.cg import cg
from finelu.krylov.least_squares import LeastSquares, Limits
from finelu.krylov.least_squares_course import beyond, out_of_range, solved, unscaled
from finelu.krylov.lsmr import steps
from finelu.matrix import norm
from finelu.matrix.rectangular import as_rows, scaled
from finelu.matrix.traits import dense_row
from finelu.matrix.vectors import ldexp
from finelu.ordering import amd, complete_fill
from finelu.preconditioners import ICNE, SparseLU
from finelu.preconditioners.direct.library import INDEX
from finelu.result import LeastSquaresSolution, Status
from finelu.scaling import even_exponents, with_columns_times
from finelu.validation import flag, number

SMALL = 1000  # unknowns up to which the factors are complete, if they are not ten times as large as A
LONG_ROWS = 40.0  # entries of a row, in the mean over the entries, beyond which A^H A is not factored
MOST = 8  # null vectors that are looked for
SUSPECT = 1e-4  # ||A v|| / (||A|| ||v||), up to which v is refined, as it may lead to a null vector
REFINED = 3  # corrections of A^H y, at most
ALPHA = 2e-10  # of the longest column: the smallest singular values of A are expected above that
FILL = 100.0  # entries of complete factors of [alpha I, A^H; A, 0] for each of its entries, at most
MORE = 20.0  # times the entries that minimum degree has, of SuperLU's order of columns
OWN = 0.1  # of ||b - A x|| of another x, up to which rounding of a longer x leaves b - A x its meaning
GAIN = 0.1  # of its ||A v||, that the next v has at most if there is a null vector


@ignore_fp_errors
def lstsq(
    A: Any,
    b: Any,
    damp: float = 0.0,
    *,
    rtol: float = 1e-8,
    maxiter: int | None = None,
    minimum_norm: bool = True,
    raise_on_failure: bool = False,
) -> LeastSquaresSolution:
    """Minimize ||b - A x||^2 + damp^2 ||x||^2, and of all such x take the one of least norm.

    A : (m, n), m and n of any size, of any rank: scipy.sparse or cupyx.scipy.sparse in any format, or a dense array.
    b : (m,) or (m, k), on the device of A.
    rtol : atol and btol of `finelu.lsmr`, whose tests the returned x passes. Below 1e-5 the work, and x, are in double
        precision, as in `finelu.solve`. A x = b counts as solved if ||b - A x|| <= rtol ||b||, however long x is.
    maxiter : the largest number of iterations for a column; None: as `lsmr`.
    minimum_norm : True makes x the solution of least norm, if A leaves x open, up to 8 dependent columns. For m >= n
        another solve finds whether columns are dependent; each null vector takes two to three more. `explain()` tells
        what was found. False spares that: x is one of the solutions.
    raise_on_failure : True raises NotConverged unless it converged.
    How it is solved:
        m >= n, or damp: `lsmr` with factors of the normal equations, `finelu.ICNE`; complete ones up to 1000 unknowns;
            columns are only scaled if rows have more than 40 entries, as A^H A then has too many. Where that does
            not converge, or columns differ in size by more than 1 / eps, and damp is 0, columns of A are brought to
            about the same size by powers of two, and the better x of the two is taken.
        m < n: conjugate gradients for A A^H y = b with such factors of A^H; x = A^H y has the least norm. If that does
            not solve A x = b, `lsmr` without factors goes on from there. If b - A x is then not orthogonal to A's range
            up to rounding, A A^H may be too badly conditioned: complete factors of the augmented matrix
            [alpha I, A^H; A, 0], whose condition number is about that of A, give another x. It is taken if its b - A x
            is smaller, and its own rounding at most a tenth of the other b - A x. The factors are made if a count shows
            at most 100 times the entries of their matrix, which the memory must hold.
    A is not made dense. Returns a LeastSquaresSolution. Source of the augmented matrix: A. Bjorck: Numerical Methods
    for Least Squares Problems, 1996, section 2.5.3.
    Raises MatrixError for wrong shapes, NaN or Inf, ParameterError for meaningless numbers.
    """
    start, rtol = perf_counter(), number("rtol", rtol)
    flag("minimum_norm", minimum_norm)
    flag("raise_on_failure", raise_on_failure)
    S = as_rows(A)
    if rtol < SINGLE:
        S = as_rows(S, np.result_type(S.dtype, np.float64))
    given = S
    S, damp, power = scaled(S, number("damp", damp))
    problem = LeastSquares(S, b, None, None, damp)
    m, n = problem.shape
    limits = Limits.checked(rtol, rtol, 0.0, maxiter, usual=min(m, n))
    limits = limits._replace(of_x=0.0)
    if m < n and problem.damp == 0:
        found = _of_wide(problem, S, limits)
    else:
        found = _of_tall(problem, S, limits)
        if minimum_norm and problem.damp == 0:
            found = _of_least_norm(problem, found, limits)
    at = partial(solved, "lsmr", steps, problem, limits)
    found = unscaled(found, power, 0, problem.xp.zeros_like(found.x), lambda x: at(at=x))
    if m >= n and not damp and found.status is not Status.MAX_ITERATIONS and (not found.converged or _is_uneven(given)):
        found = _of_even_columns(given, problem.b, found, limits, minimum_norm)
    found = replace(found, method="lstsq", timings={"solve": perf_counter() - start})
    if raise_on_failure and not found.converged:
        raise NotConverged("the least-squares problem", found, rtol)
    return found


def _preconditioner(S: Any, damp: float = 0.0) -> tuple[Any, str]:
    """M for the normal equations of S (m, n), and why it is no factor, in words."""
    n, lengths = S.shape[1], np.diff(to_host(S.indptr)).astype(np.float64)
    lengths = lengths[lengths <= dense_row(n)]
    mean = float((lengths**2).sum() / max(lengths.sum(), 1.0))
    if n > SMALL and mean > LONG_ROWS:
        why = f"rows of A have {mean:.0f} entries, so that A^H A has too many to be factored: columns are only scaled"
        return _scaling(S, damp), why
    try:
        complete: dict[str, Any] = {"drop_tol": 0.0, "fill": 10.0, "ordering": "amd"} if n <= SMALL else {}
        return ICNE(damp=damp, **complete).factor(S), ""
    except (FineluError, MemoryError) as error:
        return _scaling(S, damp), f"there are no factors of A^H A, and columns are only scaled: {error}"


def _scaling(S: Any, damp: float) -> Any:
    """The inverse of the diagonal of S^H S + damp^2 I, as a matrix."""
    xp, n = namespace(S.data), S.shape[1]
    squares = xp.bincount(S.indices, abs(S.data).astype(np.float64) ** 2, n) + damp**2
    diagonal = (1 / xp.where(squares > 0, squares, 1)).astype(S.data.real.dtype)
    return sparse_module(S.data).diags(diagonal, format="csr")


def _of_tall(problem: LeastSquares, S: Any, limits: Limits) -> LeastSquaresSolution:
    M, why = _preconditioner(S, problem.damp)
    problem.precondition(M)
    return _with(why, solved("lsmr", steps, problem, limits))


def _is_uneven(S: Any) -> bool:
    """Whether columns of S differ in size by more than 1 / eps: the norm of A^H (b - A x) is that of the largest."""
    exponents = even_exponents(S)
    return int(exponents.max() - exponents.min()) > np.finfo(S.dtype).nmant


def _of_even_columns(S: Any, b: Any, first: LeastSquaresSolution, limits: Limits, least: bool) -> LeastSquaresSolution:
    """x = D y for the solution y of min ||b - A D y||, D powers of two that bring the largest entry of each column to
    between 1/2 and 1: small columns then count in the norm of A^H (b - A x), too. `first`, the solution without that,
    if it alone converged, or if both or none did and its b - A x is no longer.

    least : whether x is to be of least norm.
    """
    exponents = even_exponents(S)
    E = with_columns_times(S, exponents)
    problem = LeastSquares(E, b, None, None, 0.0)
    M, why = _preconditioner(E)
    problem.precondition(M)
    y = solved("lsmr", steps, problem, limits)
    xp, Y = problem.xp, y.x.reshape(problem.n, -1)
    X = ldexp(Y, exponents[:, None])
    X = xp.where(xp.isfinite(X), X, 0)
    back = ldexp(X, -exponents[:, None])
    if bool((back != Y).any()):
        again = solved("lsmr", steps, problem, limits, at=back)
        lost = y.converged and not again.converged
        status, seen = (Status.PRECISION_LIMIT, (out_of_range(X),)) if lost else (y.status, ())
        kept: dict[str, Any] = {"iterations": y.iterations, "condition": y.condition, "history": y.history}
        y = replace(again, status=status, seen=seen, **kept)
    taken = first.iterations + y.iterations
    if first.converged > y.converged or (first.converged == y.converged and first.residual_norm <= y.residual_norm):
        return replace(first, iterations=taken)
    text = "columns of A were scaled to about the same size by powers of two"
    text += "" if first.converged else ", as it did not converge without that"
    if least and (k := null_vectors(problem, limits)[0].shape[1]):
        text += f"; A v = 0 for {counted(k, 'vector')} v, so that x is one of several solutions"
    columns = problem.b.reshape(problem.m, -1)
    rest = [
        problem.residual(xp.ascontiguousarray(c), xp.ascontiguousarray(v), 0.0)[0]
        for c, v in zip(columns.T, back.T, strict=True)
    ]
    normal = max(norm(ldexp(problem.H @ r, -exponents)) for r in rest)
    history = np.append(y.history[:-1], normal)
    figures: dict[str, Any] = {
        "iterations": taken,
        "history": history,
        "normal_residual_norm": normal,
        "x_norm": norm(X.reshape(-1)),
    }
    return replace(_with(text, _with(why, y)), x=X.reshape(y.x.shape), matrix_norm=first.matrix_norm, **figures)


def _of_wide(problem: LeastSquares, S: Any, limits: Limits) -> LeastSquaresSolution:
    """x = A^H y with A A^H y = b; then lsmr, which begins there, and keeps x in the range of A^H; then `_closer`."""
    F, why = _preconditioner(as_rows(S.conj().T))
    normal, columns = Normal(problem), problem.b.reshape(problem.m, -1)
    first = [_corrected(problem, normal, F, columns[:, c], limits) for c in range(columns.shape[1])]
    done, recipe = sum(iterations for _, iterations, _ in first), first[0][-1]
    found = _by_lsmr(problem, [x for x, *_ in first], limits)
    guesses, taken, said = _closer(problem, S, found, limits)
    taken += found.iterations
    if guesses:
        found = _by_lsmr(problem, guesses, limits)
        taken += found.iterations
    text = f"x = A^H y is of least norm, from {counted(done, 'iteration')} of cg for A A^H y = b with {recipe}"
    if taken:
        text += f"; {counted(taken, 'iteration')} of lsmr without factors followed, as A x = b was not solved"
    text += said
    if found.passed == 2:
        of_b = found.residual_norm / norm(problem.b.reshape(-1))
        text += (
            f"; ||b - A x|| is {of_b:.1e} of ||b||: b is out of A's range, or rows of A are dependent to the digits "
            "of rtol"
        )
    return _with(text, _with(why, replace(found, iterations=done + taken, recipe=recipe)))


def _by_lsmr(problem: LeastSquares, guesses: list[Any], limits: Limits) -> LeastSquaresSolution:
    problem.x0 = problem.xp.stack(guesses, axis=1).reshape(problem.n, *problem.b.shape[1:])
    return solved("lsmr", steps, problem, limits)


def _closer(
    problem: LeastSquares, S: Any, found: LeastSquaresSolution, limits: Limits
) -> tuple[list[Any] | None, int, str]:
    """The columns of x after complete factors of [alpha I, A^H; A, 0], None if they replaced none; iterations; words.

    They are made if b - A x of some column is neither small nor settled at the part of b that is out of A's range: then
    it has parts along singular vectors that are too short in A for other methods.
    """
    columns, X = problem.b.reshape(problem.m, -1), found.x.reshape(problem.n, -1)
    guesses, left, taken = [X[:, c] for c in range(X.shape[1])], [], 0
    eps = float(np.finfo(problem.dtype).eps)
    for c, x in enumerate(guesses):
        b = problem.xp.ascontiguousarray(columns[:, c])
        target = limits.btol * norm(b)
        r, size = problem.residual(b, problem.xp.ascontiguousarray(x), target)
        if size <= target or _settled(problem, r):
            continue
        more = problem.with_right_hand_side(b)
        more.x0 = x
        further = solved("lsmr", steps, more, limits._replace(atol=min(RANGE * eps, limits.atol)))
        taken += further.iterations
        if not _settled(problem, problem.residual(b, further.x, target)[0]):
            left.append((c, b, size))
    if not left:
        return None, taken, ""
    factors, why = _augmented(problem, S)
    if factors is None:
        return None, taken, f"; there are no complete factors of [alpha I, A^H; A, 0]: {why}"
    replaced = 0
    for c, b, size in left:
        other = _by_factors(problem, factors, b, size, limits)
        if other is not None:
            guesses[c], replaced = other, replaced + 1
    of_b = "" if len(guesses) == 1 else f" of {counted(replaced, 'column')}"
    if replaced:
        return guesses, taken, f"; complete factors of [alpha I, A^H; A, 0] gave a closer x{of_b}"
    return None, taken, "; complete factors of [alpha I, A^H; A, 0] gave no x that is closer beyond its own rounding"


def _settled(problem: LeastSquares, r: Any) -> bool:
    """Whether r = b - A x is out of A's range up to rounding, as far as A^H r shows it."""
    rounding = float(np.finfo(problem.dtype).eps) * problem.longest * norm(r)
    return bool(norm(problem.H @ problem.xp.ascontiguousarray(r)) <= RANGE * rounding)


def _augmented(problem: LeastSquares, S: Any) -> tuple[Any, str]:
    """Complete factors of [alpha I, A^H; A, 0], or None and why there are none. With (0, b) on the right the first n
    unknowns are the solution of least norm, whatever alpha is.

    Their entries are counted first, in the order of minimum degree with pivots from the diagonal. SuperLU's order of
    the columns alone, with which pivots are the largest of their columns, may have MORE times as many. Where these are
    too many, the factors are in the order of minimum degree; their pivots may be smaller, and x less accurate.
    """
    sparse = sparse_module(S.data)
    unit = ALPHA * problem.longest * sparse.identity(problem.n, S.dtype, "csr")
    K = sparse.bmat([[unit, S.conj().T], [S, None]], format="csr")
    room = USABLE * free_memory(np.empty(0)) / (K.dtype.itemsize + INDEX)
    most = min(FILL * K.nnz, room)
    limit = "as many as the memory holds" if most == room else f"{FILL:.0f} times as many as that matrix"
    try:
        expected = complete_fill(K, amd(K)).nnz
        if expected > most:
            return None, f"they would have {expected:.2g} entries, more than {limit}"
        ordering = "colamd" if MORE * expected <= most else "amd"
        return SparseLU(matching=False, ordering=ordering, backend="superlu").within(K, most), ""
    except MemoryError:
        return None, f"they would have more than {most:.2g} entries, {limit}"
    except FineluError as error:
        return None, str(error)


def _by_factors(problem: LeastSquares, F: Any, b: Any, size: float, limits: Limits) -> Any:
    """The solution by `_augmented`'s factors, corrected while that at least halves b - A x; None if it is not better
    than another x, with b - A x of this size.

    Where rows of A are dependent up to rounding, the factors make an x so long that its own rounding has the size of
    the part of b which it is to reach: it is not better, however small b - A x turns out.
    """
    zeros = problem.xp.zeros(problem.n, problem.dtype)
    target, found, rest, left = limits.btol * norm(b), zeros, b, norm(b)
    for _ in range(1 + REFINED):
        longer = found + F.solved(problem.xp.concatenate([zeros, rest]))[: problem.n]
        r, length = problem.residual(b, longer, target)
        if not length <= left / 2:
            break
        found, rest, left = longer, r, length
        if left <= target:
            break
    return found if left < size and problem.residual.rounding(b, found) <= OWN * size else None


def _corrected(problem: LeastSquares, normal: Normal, F: Any, b: Any, limits: Limits) -> tuple[Any, int, str]:
    """x = A^H y, the iterations of cg for A A^H y = b, and the name of F.

    Where rounding of a long y leaves a residual of A x = b, up to 3 solves for it follow, while they at least halve it.
    """
    b = problem.xp.ascontiguousarray(b)
    x, r, taken = problem.xp.zeros(problem.n, problem.dtype), b, 0
    size = norm(b)
    target = limits.btol * size
    for k in range(1 + REFINED):
        rtol = limits.btol if k == 0 else min(target / size / 2, 0.1)
        y = cg(normal, r, M=F, rtol=rtol, maxiter=limits.maxiter)
        taken += y.iterations
        longer = x + problem.H @ problem.xp.ascontiguousarray(y.x)
        rest, left = problem.residual(b, longer, target)
        if k and not left <= size / 2:
            break
        x, r, size = longer, rest, left
        if size <= target or taken >= limits.maxiter:
            break
    return x, taken, y.recipe


class Normal:
    """A A^H as a LinearOperator."""

    def __init__(self, problem: LeastSquares):
        self.problem, self.shape, self.dtype = problem, (problem.m, problem.m), problem.dtype

    def matvec(self, y: Any) -> Any:
        return self.problem.A @ (self.problem.H @ y)


def _of_least_norm(problem: LeastSquares, found: LeastSquaresSolution, limits: Limits) -> LeastSquaresSolution:
    """The solution without a part along null vectors of A.  A column of 0 is one, along which x has no part anyway."""
    V, taken = null_vectors(problem, limits)
    k = V.shape[1]
    if k == 0:
        text = "no null vector of A was found (a solve of A y = A z, z random, gave z again)"
        if empty := int((entries_of_columns(problem) == 0).sum()):
            text += f"; {counted(empty, 'column')} of A {'is' if empty == 1 else 'are'} 0, and so is x there"
        return replace(_with(text, found), iterations=found.iterations + taken)
    problem.x0 = found.x - V @ (V.conj().T @ found.x)
    last = solved("lsmr", steps, problem, limits)
    final = solved("lsmr", steps, problem, limits, at=last.x - V @ (V.conj().T @ last.x))
    if not final.converged and (found.converged or not final.residual_norm <= beyond(problem) * found.residual_norm):
        text = f"A v is about 0 for {counted(k, 'vector')} v, but without a part along v the residual of x is longer"
        return replace(_with(text, found), iterations=found.iterations + taken + last.iterations)
    if not final.converged:  # as may be by rounding
        final = replace(final, status=Status.STAGNATED if last.converged else last.status)
    history = np.append(last.history[:-1], final.normal_residual_norm)
    final = replace(final, history=history, condition=last.condition)
    more = f"; there may be more, as no more than {MOST} are looked for" if k == MOST else ""
    text = (
        f"the columns of A are dependent: {counted(k, 'null vector')} of A {'was' if k == 1 else 'were'} found, and x "
        f"is the solution without a part along {'it' if k == 1 else 'them'}{more}"
    )
    return replace(_with(text, final), iterations=found.iterations + taken + last.iterations)


def entries_of_columns(problem: LeastSquares) -> Any:
    """The number (n,) of entries other than 0."""
    S = problem.A.matrix
    return problem.xp.bincount(S.indices, (S.data != 0).astype(np.float64), problem.n)


def null_vectors(problem: LeastSquares, limits: Limits) -> tuple[Any, int]:
    """(V, iterations): V (n, k) orthonormal with A V = 0 up to rounding, k at most MOST, 0 where a column of A is.

    z - y for the solution y of A y = A z, z random, is a null vector of A up to the accuracy of y; another such step,
    from there, gives it to rounding. If A has full rank, it is the error of y, which A does not take to 0.
    """
    xp, random, taken = problem.xp, np.random.default_rng(0), 0
    entries = entries_of_columns(problem)
    V = xp.zeros((problem.n, 0), problem.dtype)
    while V.shape[1] < MOST:
        v = xp.asarray(random.standard_normal(problem.n)).astype(problem.dtype)
        v[entries == 0] = 0
        most = math.inf  # of ||A v||, beyond which v does not lead to a null vector
        while True:
            v -= V @ (V.conj().T @ v)
            size = norm(v)
            if not size > 0:
                return V, taken
            v /= size
            image = problem.A @ v
            size = norm(image)
            if size <= RANGE * problem.residual.rounding(xp.zeros_like(image), v):
                break
            if not size <= most:
                return V, taken
            solution = solved("lsmr", steps, problem.with_right_hand_side(image), limits)
            taken += solution.iterations
            v = v - solution.x
            most = min(SUSPECT * problem.longest, GAIN * size)
        V = xp.concatenate([V, v[:, None]], axis=1)
    return V, taken


def _with(text: str, found: LeastSquaresSolution) -> LeastSquaresSolution:
    return replace(found, method="lstsq", seen=(*found.seen, *filter(None, [text])))
