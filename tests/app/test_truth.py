"""What is claimed is true of the x returned: residuals that rounding cannot fake, verdicts, x without NaN or Inf."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from checks import DTYPES, values
from conftest import real_matrix
from stencil_cases import random_blocks

import finelu
from finelu import IC0, ILU0, Jacobi, Status, gallery, krylov, solve
from finelu.auto import attempt, exact, ladder
from finelu.auto.choose import Rung
from finelu.kernels import kernels_for, reference
from finelu.krylov.operators import as_operator
from finelu.krylov.residual import Residual
from finelu.matrix import as_csr

pytestmark = pytest.mark.usefixtures("patient")
METHODS = {name: getattr(krylov, name) for name in krylov.METHODS}
TRIANGLE = np.array([[0.1 + 0.2, -0.1, -0.2], [-0.1, 0.1 + 0.1, -0.1], [-0.2, -0.1, 0.2 + 0.1]])


def laplacian(weights):
    return np.diag(weights @ np.ones(len(weights))) - weights


def laplacians(count):
    """Weighted Laplacians of 2 to 8 vertices, as rounding leaves them: singular or not."""
    rng = np.random.default_rng(0)
    for k in range(count):
        n = int(rng.integers(2, 9))
        weights = (rng.integers(1, 10, (n, n)) / 10, rng.random((n, n)), 10.0 ** rng.uniform(-3, 3, (n, n)))[k % 3]
        weights = np.triu(weights, 1) * (rng.random((n, n)) >= (0.3 if n > 3 else 0))
        yield laplacian(weights + weights.T)


def exact_residual(A, b, x):
    """||b - A x||, formed without rounding."""
    parts = [Fraction(float(v)) for v in b]
    for i, j in zip(*np.nonzero(A)):
        parts[i] -= Fraction(float(A[i, j])) * Fraction(float(x[j]))
    return math.sqrt(sum(part * part for part in parts))


def exactly_singular(A):
    """By elimination in rational numbers."""
    rows = [[Fraction(float(v)) for v in row] for row in A]
    for k in range(len(rows)):
        pivot = next((i for i in range(k, len(rows)) if rows[i][k]), None)
        if pivot is None:
            return True
        rows[k], rows[pivot] = rows[pivot], rows[k]
        for i in range(k + 1, len(rows)):
            factor = rows[i][k] / rows[k][k]
            rows[i] = [a - factor * c for a, c in zip(rows[i], rows[k])]
    return False


def judged(name, A, b):
    solution = solve(A, b) if name == "solve" else METHODS[name](A, b, rtol=1e-8)
    assert np.isfinite(solution.x).all()
    true = exact_residual(A, b, solution.x)
    assert solution.residual_norm == pytest.approx(true, rel=1e-3, abs=1e-10)
    if name != "solve" or solution.converged:  # else x may be of an attempt before the last, or 0
        assert solution.history[-1] == pytest.approx(solution.residual_norm)
    if solution.converged:
        assert true <= 2e-8
    return solution


@pytest.mark.parametrize("name", ["solve", *METHODS])
def test_laplacians_are_not_solved_by_rounding(name):
    for A in laplacians(45):
        judged(name, A, np.eye(len(A))[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["solve", *METHODS])
def test_three_thousand_laplacians_are_not_solved_by_rounding(name):
    for A in laplacians(3000):
        judged(name, A, np.eye(len(A))[0])


def test_the_triangle_of_which_no_x_is_near():
    b = np.array([1.0, 0.0, 0.0])
    solution = judged("solve", laplacian(np.array([[0, 0.1, 0.1], [0.1, 0, 0.2], [0.1, 0.2, 0]])), b)
    assert not solution.converged and solution.residual_norm > 0.1


def test_the_verdict_on_a_laplacian_is_exact():
    seen = set()
    for A in laplacians(60):
        status = solve(A, np.eye(len(A))[0]).status
        assert (status is Status.SINGULAR) == exactly_singular(A), A
        assert status in (*ladder.HOPELESS, Status.CONVERGED)
        seen.add(status)
    assert seen >= {Status.SINGULAR, Status.NUMERICALLY_SINGULAR}


# residuals


def cancelling(n, dtype, seed=0):
    """(A, x, b) with b = A x rounded and |A| |x| far larger than b."""
    rng = np.random.default_rng(seed)
    A = sp.random(n, n, 0.3, random_state=seed, format="csr") + sp.eye(n, format="csr")
    x = rng.standard_normal(n) * 10.0 ** rng.uniform(-6, 6, n)
    if np.dtype(dtype).kind == "c":
        A, x = A + 0.3j * A.multiply(A), x * np.exp(1j * np.arange(n))
    A, x = A.tocsr().astype(dtype), x.astype(dtype)
    return A, x, A @ x


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("factor", [1.0, 0.25])
@pytest.mark.parametrize("n", [1, 40, 150])
def test_residual_kernels(backend, dtype, factor, n):
    A, x, b = cancelling(n, dtype)
    wanted, got = [], []
    for move, collect, kernels in ((lambda v: v, wanted, reference), (backend.move, got, None)):
        S, y, c = as_csr(move(A), diagonal=False), move(x), move(b)
        kernels = kernels or kernels_for(c)
        r, bound, twice = c * 0, abs(c), c * 0
        kernels.products.residual(S.indptr, S.indices, S.data, y, c, factor, r, bound)
        kernels.products.residual_twice(S.indptr, S.indices, S.data, y, c, factor, twice)
        collect.extend(backend.fetch(v) for v in (r, bound, twice))
    assert (abs(wanted[0] - got[0]) <= 2 * wanted[1]).all() and (abs(got[0] - got[2]) <= got[1]).all()
    np.testing.assert_allclose(got[1], wanted[1], rtol=1e-4)
    eps = float(np.finfo(dtype).eps)
    np.testing.assert_allclose(got[2], wanted[2], rtol=4 * eps, atol=float(np.max(wanted[1])) * max(eps, 1e-16))


def test_residuals_do_not_depend_on_the_number_of_threads():
    A = gallery.poisson7(40)
    x, b = values(A.shape[0], "float64"), values(A.shape[0], "float64")
    S, before, results = as_csr(A), finelu.get_num_threads(), []
    try:
        for threads in (1, 3):
            finelu.set_num_threads(threads)
            r, bound, twice = np.empty_like(b), np.empty_like(b), np.empty_like(b)
            kernels_for(b).products.residual(S.indptr, S.indices, S.data, x, b, 1.0, r, bound)
            kernels_for(b).products.residual_twice(S.indptr, S.indices, S.data, x, b, 1.0, twice)
            results.append((r, bound, twice))
    finally:
        finelu.set_num_threads(before)
    for one, three in zip(*results):
        np.testing.assert_array_equal(one, three)
    np.testing.assert_array_equal(results[0][0], b - A @ x)


FORMS = {
    "sparse": lambda A: A,
    "dense": lambda A: A.toarray(),
    "operator": lambda A: spla.aslinearoperator(A),
    "function": lambda A: spla.LinearOperator(A.shape, matvec=lambda v: A @ v, dtype=A.dtype),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_a_norm_below_the_tolerance_is_none_of_rounding(form, dtype):
    A, x, b = cancelling(30, dtype)
    product = as_operator(FORMS[form](A), "A", b, b.dtype)
    residual = Residual(product, b)
    exact = np.zeros(30, dtype)
    reference.products.residual_twice(A.indptr, A.indices, A.data, x, b, 1.0, exact)
    exact, eps = float(np.linalg.norm(exact)), float(np.finfo(dtype).eps)
    below = exact / 1000  # the plain residual, rounded like b, is exactly 0
    norm = residual(b, x, below)[1]
    assert norm > below
    if form in ("sparse", "dense"):
        assert norm == pytest.approx(exact, rel=1e-3)
    assert residual(b, x, 1e6 * eps * np.linalg.norm(abs(A) @ abs(x)))[1] <= 1e-2 * np.linalg.norm(abs(A) @ abs(x))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("form", FORMS)
def test_no_method_claims_the_triangle_in_any_form(name, form):
    if name == "bicg" and form == "function":
        pytest.skip("bicg needs the transpose")
    A = sp.csr_matrix(laplacian(np.array([[0, 0.1, 0.1], [0.1, 0, 0.2], [0.1, 0.2, 0]])))
    solution = METHODS[name](
        FORMS[form](A),
        np.array([1.0, 0.0, 0.0]),
        M=spla.splu(A.tocsc()).solve if name in ("gmres", "fgmres", "bicgstab") else None,
        rtol=1e-8,
    )
    assert not solution.converged and solution.residual_norm > 1e-8


def test_twice_the_precision_may_be_too_little():
    A = sp.csr_matrix(laplacian(np.array([[0, 0.1, 0.1], [0.1, 0, 0.2], [0.1, 0.2, 0]])))
    b, x = np.array([1.0, 0.0, 0.0]), np.full(3, 2.0**109)
    product = as_operator(A, "A", b, b.dtype)
    size = Residual(product, b)(b, x, 1e-8)[1]
    assert size > 1e-8 and exact_residual(A.toarray(), b, x) > 1e-8


def test_an_ordinary_residual_is_formed_once(calls_of):
    A, b = gallery.poisson5(20), values(400, "float64")
    again = calls_of(kernels_for(b).products, "residual_twice")
    assert krylov.cg(A, b, rtol=1e-8).converged and solve(A, b).converged
    assert krylov.cg(A.toarray(), b, rtol=1e-8).converged and not again


# extremes


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(
    ("dtype", "large", "small"),
    [
        ("float64", 1e200, 1e-150),
        ("complex64", 1e26, 1e-20),
        pytest.param("float32", 1e26, 1e-20, marks=pytest.mark.slow),
    ],
)
def test_an_x0_next_to_which_b_is_negligible_is_no_solution(name, dtype, large, small, backend):
    A = backend.move(sp.diags([large, 2 * large]).tocsr().astype(dtype))
    b = backend.move(np.full(2, small, dtype))
    solution = METHODS[name](A, b, backend.xp.ones(2, dtype))
    assert not solution.converged
    assert solution.residual_norm == pytest.approx(small * math.sqrt(2), rel=1e-5)
    assert not backend.fetch(solution.x).any()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("dtype", "large"), [("float64", 1e300), ("float32", 1e38)])
@pytest.mark.parametrize("second", [0.1, 1.0])
@pytest.mark.parametrize("stored", [True, False])
def test_no_inf_in_x_where_m_leads_out_of_the_range(name, dtype, large, second, stored, backend):
    A = sp.csr_matrix((np.array([1, 0], dtype), [0, 1], [0, 1, 2]), shape=(2, 2))
    if not stored:
        A.eliminate_zeros()
    b = np.array([large, second * large], dtype)
    M = sp.diags([1.0, 1e10]).tocsr().astype(dtype)
    solution = METHODS[name](backend.move(A), backend.move(b), M=backend.move(M))
    assert np.isfinite(backend.fetch(solution.x)).all() and not solution.converged
    assert solution.residual_norm <= 1.0001 * np.linalg.norm(b.astype(np.float64))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("scale", [1e-300, 1e-38, 1e40, 1e300])
def test_factors_of_less_range_than_x(name, scale, backend):
    A, b = gallery.poisson5(12), values(144, "float64")
    F = IC0(precision="float32").factor(backend.move(A))
    plain = METHODS[name](backend.move(A), backend.move(b), M=F, rtol=1e-8)
    solution = METHODS[name](backend.move(A), backend.move(b * scale), M=F, rtol=1e-8)
    assert solution.converged and abs(solution.iterations - plain.iterations) <= 2


# methods that have nothing to divide by


@pytest.mark.parametrize("name", ["sqmr", "bicg", "gmres"])
def test_an_exact_m_of_a_saddle_point_takes_one_step(name, backend):
    B = np.random.default_rng(0).standard_normal((6, 6))
    Z = np.block([[np.zeros((6, 6)), B], [B.T, np.zeros((6, 6))]])
    b = np.eye(12)[0]  # b^T Z^-1 b = 0
    solution = METHODS[name](backend.move(Z), backend.move(b), M=backend.move(np.linalg.inv(Z)), rtol=1e-10)
    assert solution.converged and solution.iterations == 1
    np.testing.assert_allclose(Z @ backend.fetch(solution.x), b, atol=1e-12)


def test_a_step_by_m_is_not_repeated_without_gain():
    swap = np.array([[0.0, 1.0], [1.0, 0.0]])
    solution = krylov.sqmr(np.array([[1.0, 1e3], [1e3, 1.0]]), np.array([1.0, 0.0]), M=1e-9 * swap, rtol=1e-12)
    assert solution.iterations < 10


@pytest.mark.parametrize("name", ["cg", "bicg", "sqmr"])
@pytest.mark.parametrize("recipe", [Jacobi(), IC0()], ids=repr)
def test_breakdowns_do_not_depend_on_the_scaling(name, recipe, backend):
    A, b = gallery.poisson5(12), np.ones(144)
    D = sp.diags(10.0 ** np.linspace(-12, 12, 144))
    scaled = backend.move(sp.csr_matrix(D @ A @ D))
    solution = METHODS[name](scaled, backend.move(D @ b), M=recipe.factor(scaled), rtol=1e-8)
    assert solution.converged and solution.iterations <= 60


# verdicts


@pytest.mark.parametrize("n", [5, 6, 7, 8])
def test_hilbert_in_single_precision_is_not_singular(n):
    A = scipy.linalg.hilbert(n).astype(np.float32)
    for b in (np.ones(n, np.float32), values(n, "float32"), np.eye(n, dtype=np.float32)[0]):
        for rtol in (9.9e-6, 1e-4):
            assert solve(A, b, rtol=rtol).status in (Status.CONVERGED, Status.PRECISION_LIMIT)


@pytest.mark.parametrize("rtol", [1e-4, 1e-8])
def test_two_rows_a_rounding_apart_are_not_singular(rtol):
    A = np.array([[1, 1], [1, 1 + 2.0**-23]], np.float32)
    for b in ([1, 0], [1, 1], [0, 1], [1, -1]):
        status = solve(A, np.array(b, np.float32), rtol=rtol).status
        assert status in (Status.CONVERGED, Status.PRECISION_LIMIT)


def test_small_entries_alone_are_no_singularity():
    A = sp.diags([1.0, 1e-20])
    assert solve(A, np.ones(2)).converged


def structurally_singular():
    """Rows 10, 20 and 30 have entries in column 5 only."""
    A = gallery.poisson5(25).tolil()
    for i in (10, 20, 30):
        A[i, :] = 0
        A[i, 5] = 1.0
    A = A.tocsr()
    A.eliminate_zeros()
    return A


def test_structural_singularity_is_reported_with_its_rows():
    A = structurally_singular()
    solution = solve(A, values(625, "float64"))
    assert solution.status is Status.SINGULAR
    text = solution.explain()
    found = re.search(r"2 rows are not independent, rows (\d+), (\d+): equations are missing", text)
    assert {int(found[1]), int(found[2])} < {10, 20, 30}


def test_the_determinant_modulo_primes():
    rng = np.random.default_rng(3)
    for n in (1, 2, 5, 40):
        A = rng.standard_normal((n, n)) * 10.0 ** rng.uniform(-200, 200, (n, 1))
        assert exact.exactly_singular(as_csr(A, diagonal=False)) is False
        low = rng.integers(-9, 9, (n, max(n - 1, 1))) @ rng.integers(-9, 9, (max(n - 1, 1), n)) * 0.125
        if n > 1:
            assert exact.exactly_singular(as_csr(low, diagonal=False)) is True
            assert exact.exactly_singular(as_csr(low * (1 + 1j), diagonal=False)) is True
    assert exact.exactly_singular(as_csr(np.array([[1, 1j], [-1j, 1]]))) is True
    assert exact.exactly_singular(as_csr(np.array([[1, 1j], [1j, 1]]))) is False
    assert exact.exactly_singular(as_csr(gallery.poisson5(20))) is None  # too large


def test_a_backward_error_at_rounding_ends_the_solve():
    A, b = real_matrix("ccx_thread"), None
    b = np.random.default_rng(0).uniform(-0.5, 0.5, A.shape[0])
    solution = solve(A, b)
    assert solution.status is Status.PRECISION_LIMIT and solution.info > 0
    text = solution.explain()
    assert "condition number" in text and "ask for rtol >=" in text and "backward error" in text
    assert "MultilevelILU" not in text
    reachable = float(text.partition("ask for rtol >= ")[2].split(",")[0])
    assert solve(A, b, rtol=reachable).converged


def test_rows_of_all_sizes_are_at_the_limit_together():
    n = 30
    A = 1 / (np.arange(n)[:, None] + np.arange(n) + 1.0)
    solution = solve(A, values(n, "float64"), rtol=1e-14)
    assert solution.status in (Status.PRECISION_LIMIT, Status.NUMERICALLY_SINGULAR)
    assert len({attempt.recipe for attempt in solution.attempts}) == 1


def test_single_precision_that_is_not_enough_is_left_for_double():
    A, b = scipy.linalg.hilbert(8).astype(np.float32), values(8, "float32")
    solution = solve(A, b, rtol=1e-4)
    assert solution.converged and solution.x.dtype == np.float64
    assert "single precision was not enough" in solution.explain() and len(solution.attempts) >= 2
    assert exact_residual(A, b, solution.x) <= 1e-4 * np.linalg.norm(b)
    assert len(solution.history) == solution.iterations + 1


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_entries_of_which_single_precision_has_a_few_digits_are_no_hindrance(dtype):
    A, b = (gallery.poisson5(4) * 1e-40).astype(dtype), np.full(16, 1e-36, dtype)
    solution = solve(A, b, rtol=1e-4)
    assert solution.converged
    assert np.linalg.norm(b - A.astype("complex128") @ solution.x) <= 1e-4 * np.linalg.norm(b.astype("complex128"))


# history, result and attempts belong together


@pytest.mark.parametrize("name", METHODS)
def test_the_history_ends_with_the_residual_of_x(name, backend):
    A = gallery.poisson5(20)
    A = A + sp.diags(10.0 ** np.linspace(0, 9, 400))
    b = values(400, "float64")
    for rtol, maxiter in ((1e-6, None), (1e-15, 400), (1e-10, 7)):
        solution = METHODS[name](backend.move(sp.csr_matrix(A)), backend.move(b), rtol=rtol, maxiter=maxiter)
        assert solution.history[-1] == pytest.approx(solution.residual_norm)
        assert len(solution.history) == len(solution.recurrence) == solution.iterations + 1
        x = backend.fetch(solution.x)
        assert solution.residual_norm == pytest.approx(np.linalg.norm(b - A @ x), rel=0.1, abs=1e-14)


def test_a_recurrence_that_parts_from_the_truth_is_seen():
    A, b = real_matrix("bcsstk20"), None
    b = np.random.default_rng(0).uniform(-0.5, 0.5, A.shape[0])
    solution = krylov.gmres(A, b, M=ILU0(shift=0.1).factor(A), rtol=1e-12, restart=400, maxiter=400)
    assert solution.parts_from_recurrence
    assert solution.recurrence[-1] < solution.history[-1] / 2
    plain = krylov.cg(gallery.poisson5(10), values(100, "float64"), rtol=1e-6)
    assert not plain.parts_from_recurrence


def test_x_recipe_and_residual_are_of_one_attempt(everywhere, meanwhile):
    """The second attempt makes nothing better, so the answer is the first one's."""
    meanwhile(attempt, MAXITER=3)
    everywhere("at_limit", lambda *_: False)
    rungs = {"cheap": Rung((ILU0(),), ""), "threshold": Rung((Jacobi(),), "")}
    meanwhile(ladder, rungs=lambda traits: rungs)
    original = ladder.Ladder._improve

    def improve(self, column, rung, left):
        found, switch = original(self, column, rung, left)
        if rung == "threshold":
            found = type(found)(
                column.x, Status.STAGNATED, 1, found.residual_norm * 10, found.history, recurrence=found.history
            )
        return found, switch

    meanwhile(ladder.Ladder, _improve=improve)
    A, b = gallery.poisson5(30), values(900, "float64")
    solution = solve(A, b)
    assert [a.recipe for a in solution.attempts] == ["ILU0()", "Jacobi()"] and not solution.converged
    assert solution.recipe == "ILU0()" and solution.method == solution.attempts[0].method
    assert solution.residual_norm == pytest.approx(np.linalg.norm(b - A @ solution.x))


# SciPy's habits


def test_x0_is_begun_with_where_it_helps(backend):
    A, b = gallery.poisson5(36), values(1296, "float64")
    x = solve(A, b, rtol=1e-12).x
    on = {"device": backend.name}
    near = x * (1 + 1e-4 * values(1296, "float64"))
    A_, b_, near_ = (backend.move(v) for v in (A, b, near))
    begun = solve(A_, b_, x0=near_, **on)
    assert begun.converged and begun.iterations < solve(A_, b_, **on).iterations
    assert begun.history[0] == pytest.approx(np.linalg.norm(b - A @ near), rel=1e-6)
    np.testing.assert_array_equal(backend.fetch(near_), near)
    there = solve(A_, b_, x0=backend.move(x), **on)
    assert there.converged and there.iterations == 0 and there.x is not x
    np.testing.assert_array_equal(backend.fetch(there.x), x)
    np.testing.assert_array_equal(
        backend.fetch(solve(A_, b_, x0=1e6 * near_, **on).x), backend.fetch(solve(A_, b_, **on).x)
    )


def test_x0_of_columns():
    A, B = gallery.poisson5(25), values((625, 2), "float64")
    X = solve(A, B, rtol=1e-12).x
    assert solve(A, B, x0=X).iterations == 0
    assert solve(A, X[:, :1], x0=np.zeros(625)).converged
    assert solve(A, B, x0=X[:, 0]).converged
    with pytest.raises(finelu.MatrixError, match=r"x0 has shape \(3,\)"):
        solve(A, B, x0=np.zeros(3))
    with pytest.raises(finelu.MatrixError, match="x0 holds NaN or Inf in row 7"):
        solve(A, B[:, 0], x0=np.where(np.arange(625) == 7, np.nan, 0))


def test_atol_is_heeded():
    A, b = gallery.poisson5(36), values(1296, "float64")
    loose = solve(A, b, rtol=0.0, atol=1e-3)
    assert loose.converged and 1e-8 < loose.residual_norm <= 1e-3
    assert solve(A, b, atol=1e9).iterations == 0 and solve(A, b, rtol=1e-6, atol=1e-9).converged


def test_maxiter_bounds_all_attempts_together():
    A, b = gallery.poisson5(60), values(3600, "float64")
    for most in (0, 1, 7):
        solution = solve(A, b, maxiter=most)
        assert solution.status is Status.MAX_ITERATIONS and solution.iterations <= most
    assert solve(A, b, maxiter=500).converged
    assert solve(gallery.poisson5(5), np.ones(25), maxiter=1).converged


@pytest.mark.parametrize("n", [5, 40])
def test_callbacks(n):
    A, b = gallery.poisson5(n), values(n * n, "float64")
    norms, seen = [], []
    solution = solve(A, b, callback=norms.append, callback_type="pr_norm")
    assert solution.converged and len(norms) >= solution.iterations >= 1
    assert norms[-1] == pytest.approx(solution.residual_norm / np.linalg.norm(b), rel=1e-2)
    solution = solve(A, b, callback=lambda x: seen.append(x.copy()))
    assert seen and np.linalg.norm(b - A @ seen[-1]) <= 1.01e-8 * np.linalg.norm(b)
    with pytest.raises(finelu.ParameterError, match="callback_type='legacy'; one of x, pr_norm"):
        solve(A, b, callback=print, callback_type="legacy")


@pytest.mark.parametrize("kind", ["x", "pr_norm"])
def test_a_callback_may_end_the_solve(kind):
    A, b = gallery.poisson5(60), values(3600, "float64")

    def stop(_):
        raise StopIteration

    for ask in (stop, lambda _: True):
        solution = solve(A, b, recipe="ilu0", method="cg", callback=ask, callback_type=kind)
        assert solution.status is Status.INTERRUPTED and solution.iterations <= 1


# what else claims, and by what ways b and x come


def test_corrections_do_not_converge_out_of_noise():
    wrong = 0
    for A in (A for A in laplacians(600) if len(A) in (3, 6)):  # each size is compiled anew
        n, b = len(A), np.eye(len(A))[0]
        M = finelu.BlockMatrix.from_csr(sp.csr_matrix(A), n)
        try:
            solution = finelu.richardson(M, b, M=finelu.BlockILU0(block_size=n).factor(M), rtol=1e-8, maxiter=20)
        except finelu.SingularBlock:
            continue
        true = exact_residual(A, b, solution.x)
        wrong += true > 0.1
        assert not (solution.converged and true > 2e-8)
        assert solution.residual_norm == pytest.approx(true, rel=1e-3, abs=1e-10)
    assert wrong > 5  # among those there were some to be taken in by


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_columns_and_strided_right_hand_sides(dtype, backend):
    A = sp.csr_matrix(gallery.poisson5(12) + (0.1j * sp.eye(144) if dtype == "complex128" else 0 * sp.eye(144)))
    B = values((144, 3), dtype)
    for X in (backend.move(B), backend.xp.asfortranarray(backend.move(B))):
        solution = solve(backend.move(A), X, device=backend.name)
        assert solution.converged
        assert np.linalg.norm(B - A @ backend.fetch(solution.x), axis=0).max() <= 1.01e-8 * np.linalg.norm(B)
        one = solve(backend.move(A), X[:, 1], device=backend.name)
        assert one.converged
        assert np.linalg.norm(B[:, 1] - A @ backend.fetch(one.x)) <= 1.01e-8 * np.linalg.norm(B[:, 1])


def test_a_callback_may_write_into_what_it_is_given():
    A, b = sp.csr_matrix(np.diag([1.0, 2.0, 3.0]) + 0.1), np.ones(3)
    solution = solve(A, b, callback=lambda x: x.fill(0))
    assert solution.converged and np.linalg.norm(b - A @ solution.x) <= 1e-8


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("factor", [1j, 1 + 2j])
def test_verdicts_do_not_depend_on_the_phase_of_b(factor):
    for A in laplacians(20):
        b = np.eye(len(A))[0]
        assert solve(A, factor * b).status is solve(A, b).status


def test_a_limit_of_the_caller_is_no_verdict_on_a():
    A, b = sp.diags([1.0, 1.0, 0.0]), np.array([1.0, 1.0, 0.0])
    assert solve(A, b, maxiter=0).status is Status.MAX_ITERATIONS and solve(A, b, maxiter=0).attempts == ()
    assert solve(A, b).converged
    chain = sp.csr_matrix(sp.block_diag([gallery.tridiagonal(300), sp.csr_matrix((1, 1))]))
    solution = solve(chain, np.append(np.ones(300), 0.0), recipe=None, method="cg", maxiter=3)
    assert solution.status is Status.MAX_ITERATIONS


@pytest.mark.parametrize("most", [15, 20])
def test_maxiter_counts_both_precisions(most):
    A, b = scipy.linalg.hilbert(8).astype(np.float32), values(8, "float32")
    solution = solve(A, b, rtol=2e-5, recipe=None, method="gmres", maxiter=most)
    assert solution.iterations <= most and len(solution.history) == solution.iterations + 1


def test_an_operator_whose_terms_overflow_claims_nothing():
    n = 16
    A = 1e-292 * (16 * np.eye(n) - np.ones((n, n)))
    x = np.full(n, 1.5e308)
    x[0] = 1.2e308
    b = A @ x
    product = as_operator(spla.aslinearoperator(A), "A", b, b.dtype)
    with np.errstate(all="ignore"):
        _, size = Residual(product, b)(b, x, 1e-8 * np.linalg.norm(b))
    assert not size <= 1e-8 * np.linalg.norm(b)


@pytest.mark.parametrize("name", METHODS)
def test_a_tiny_b_with_a_moderate_x0(name):
    A, b = sp.diags([1.0, 2.0]).tocsr(), np.full(2, 1e-200)
    solution = METHODS[name](A, b, np.ones(2), rtol=1e-8)
    assert solution.converged and np.linalg.norm(b * 1e200 - A @ (solution.x * 1e200)) <= 1e-7


def test_the_worst_column_is_that_of_the_largest_residual():
    A, X = gallery.poisson5(25), values((625, 2), "float64")
    B = A @ X
    solution = solve(A, B, x0=X * np.array([1.0, 1 + 1e-5]))
    sizes = np.linalg.norm(B - A @ solution.x, axis=0) / np.linalg.norm(B, axis=0)
    assert solution.converged and solution.residual_norm == pytest.approx(
        np.linalg.norm(B[:, sizes.argmax()] - A @ solution.x[:, sizes.argmax()]), rel=0.5, abs=1e-13
    )


def test_norms_alone_show_that_dense_and_block_matrices_need_no_second_look(calls_of):
    by_entries = calls_of(Residual, "_by_entries")
    A, b = gallery.poisson5(20), values(400, "float64")
    assert krylov.cg(A.toarray(), b, rtol=1e-8).converged
    blocks = finelu.BlockMatrix.from_csr(A, 4)
    assert krylov.cg(blocks, b, rtol=1e-8).converged
    grid = finelu.StencilMatrix(random_blocks((5, 4, 3), 2))
    ones = np.ones(grid.shape[0])
    F = finelu.BlockILU0().factor(grid)
    called, of_grid = calls_of(finelu.BlockMatrix, "bounds"), calls_of(finelu.StencilMatrix, "bounds")
    for matrix, right, M in ((blocks, b, None), (grid, grid @ ones, F)):
        assert krylov.gmres(matrix, right, M=M, rtol=1e-4, maxiter=300).converged
    assert not called and not of_grid and not by_entries  # one norm is enough where the tolerance is not small
    residual, x = Residual(as_operator(blocks, "A", b, b.dtype), b), np.ones(400)
    eps = np.finfo(float).eps
    lengths = np.sqrt(blocks.bounds()[1] * blocks.bounds()[2]), blocks.norm_bound()
    small, large = ((blocks.most_in_row + 1) * 2 * eps * (size * 20 + np.linalg.norm(b)) for size in lengths)
    for tolerance, looks, harmless in ((1.01 * large, 0, True), (0.99 * large, 1, True), (0.99 * small, 0, False)):
        called.clear()
        assert residual._harmless(b, x, tolerance) == harmless and len(called) == looks
    entries, rows, columns = blocks.bounds()
    sizes = abs(A)
    assert entries >= np.diff(A.indptr).max() and rows >= sizes.sum(axis=1).max() and columns >= sizes.sum(axis=0).max()
