"""lstsq: the solution of least norm for any shape and rank, and what `explain` says of it."""

from importlib import import_module

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from checks import PATTERNS, refused, values
from hypothesis import given
from hypothesis import strategies as st

import finelu as fl
from finelu.errors import NotConverged

course_module = import_module("finelu.krylov.least_squares_course")
lstsq_module = import_module("finelu.auto.lstsq")


def of_rank(m, n, dependent, dtype=np.float64):
    """A (m, n) with this number of dependent rows, or columns, whichever are fewer."""
    A = (sp.random(m, n, density=0.1, random_state=2) + sp.eye(m, n)).tolil()
    for k in range(dependent):
        if m >= n:
            A[:, k] = A[:, k + 10] * 2
        else:
            A[k] = A[k + 10] * 2
    return sp.csr_matrix(A).astype(dtype)


def off(x, A, b):
    expected = np.linalg.lstsq(A.toarray(), b, rcond=None)[0]
    return np.linalg.norm(x - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("shape", [(300, 100), (100, 300), (100, 100)], ids=str)
@pytest.mark.parametrize("dependent", [0, 1, 3])
@pytest.mark.parametrize("inside", [True, False], ids=["consistent", "inconsistent"])
def test_x_is_of_least_norm_for_any_rank(backend, shape, dependent, inside):
    A = of_rank(*shape, dependent)
    B = A @ values((shape[1], 2), float) if inside else values((shape[0], 2), float)
    for b in (B, B[:, 0]):
        found = fl.lstsq(backend.move(A), backend.move(b), rtol=1e-10)
        assert found.converged and found.method == "lstsq" and off(backend.fetch(found.x), A, b) <= 1e-6
    text = found.explain()
    if shape[0] >= shape[1]:
        said = {0: "no null vector", 1: "1 null vector of A was found", 3: "3 null vectors of A were found"}[dependent]
        assert said in text
    else:
        assert "x = A^H y is of least norm" in text and ("lsmr without factors" in text) == (bool(dependent) > inside)


def test_without_the_least_norm_x_is_one_of_the_solutions_in_fewer_iterations():
    A, b = of_rank(300, 100, 3), values(300, float)
    least, some = fl.lstsq(A, b), fl.lstsq(A, b, minimum_norm=False)
    assert some.iterations < least.iterations and least.x_norm < some.x_norm
    assert np.linalg.norm(A @ (least.x - some.x)) <= 1e-6 * np.linalg.norm(b)


def test_large_problems_have_incomplete_factors():
    A = sp.csr_matrix(sp.random(6000, 2000, density=1e-3, random_state=0) + sp.eye(6000, 2000))
    for S in (A, A.T.tocsr()):
        found = fl.lstsq(S, values(S.shape[0], float))
        assert found.converged and found.recipe == "ICNE()"


def test_of_long_rows_the_columns_are_only_scaled():
    A = sp.csr_matrix(sp.random(3000, 1100, density=0.06, random_state=0) @ sp.diags(np.logspace(0, 3, 1100)))
    for S in (A, A.T.tocsr()):
        found = fl.lstsq(S, values(S.shape[0], float))
        assert found.converged and "columns are only scaled" in found.explain() and "ICNE" not in found.recipe
    assert found.iterations < fl.lsmr(S, values(S.shape[0], float), atol=1e-8, btol=1e-8, conlim=0).iterations


@pytest.mark.parametrize("shape", [(60, 20), (20, 60)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.complex128], ids=lambda d: d.__name__)
def test_damp_and_other_precisions(shape, dtype):
    A, b = of_rank(*shape, 0, dtype), values(shape[0], dtype)
    n, tol = shape[1], 1e3 * float(np.finfo(dtype).eps)
    for damp in (0.0, 0.5):
        found = fl.lstsq(A, b, damp, rtol=tol)
        assert found.converged and found.x.dtype == dtype
        stacked = sp.csr_matrix(np.vstack([A.toarray(), damp * np.eye(n)])).astype(np.complex128)
        assert off(found.x, stacked, np.r_[b, np.zeros(n)]) <= 1e3 * tol


@pytest.mark.parametrize("dependent", [0, 1])
@pytest.mark.parametrize("shape", [(300, 100), (100, 300)], ids=str)
def test_of_single_precision_a_strict_tolerance_is_met_in_double(backend, shape, dependent):
    A, b = of_rank(*shape, dependent, np.float32), values(shape[0], np.float32)
    found = fl.lstsq(backend.move(A), backend.move(b))
    assert found.converged and found.x.dtype == np.float64 and off(backend.fetch(found.x), A.astype(float), b) <= 1e-6
    assert fl.lstsq(A, b, rtol=1e-4).x.dtype == np.float32


@pytest.mark.parametrize("size", [1e-200, 1e160])
@pytest.mark.parametrize("shape", [(300, 100), (100, 300), (3000, 1100)], ids=str)
def test_numbers_whose_squares_over_or_underflow(size, shape):
    A, b = of_rank(*shape, 1), values(shape[0], float)
    b = A @ values(shape[1], float) if shape[0] < shape[1] else b
    usual, found = fl.lstsq(A, b, rtol=1e-10), fl.lstsq(A * size, b, rtol=1e-10)
    assert found.converged and np.linalg.norm(found.x * size - usual.x) <= 1e-6 * np.linalg.norm(usual.x * 1.0)
    assert fl.lstsq(A, b, damp=1e155).converged


def of_sizes(kind, low, high, shape, seed):
    """A whose entries, columns or rows have sizes from 10^low to 10^high, and b = A z with z of about 1."""
    rng = np.random.default_rng(seed)
    A = sp.csr_matrix(sp.random(*shape, 0.15, random_state=rng) + 4 * sp.eye(*shape))
    if kind == "entries":
        A.data = A.data * 10.0 ** rng.uniform(low, high, A.nnz)
    elif kind == "two sizes":
        A.data = A.data * 10.0 ** rng.choice([low, high], A.nnz)
    elif kind == "rows":
        A = sp.csr_matrix(sp.diags(10.0 ** rng.uniform(low, high, shape[0])) @ A)
    else:
        A = sp.csr_matrix(A @ sp.diags(10.0 ** rng.uniform(low, high, shape[1])))
    return A, A @ rng.standard_normal(shape[1])


@pytest.mark.parametrize("kind", ["entries", "two sizes", "rows", "columns"])
@pytest.mark.parametrize(("low", "high"), [(-300, 300), (0, 300), (-300, 0), (-150, 150), (-20, 20)])
@pytest.mark.parametrize("shape", [(30, 30), (40, 25), (25, 40)], ids=str)
def test_entries_of_any_sizes_are_solved_or_x_is_no_worse_than_0(shape, low, high, kind):
    converged = 0
    for seed in range(4):
        A, b = of_sizes(kind, low, high, shape, seed)
        found = fl.lstsq(A, b)
        r = b.astype(np.longdouble) - A.toarray().astype(np.longdouble) @ found.x.astype(np.longdouble)
        relative = float(np.sqrt((r**2).sum() / (b.astype(np.longdouble) ** 2).sum()))
        assert relative <= (1e-7 if found.converged else 1.0)  # which is that of x = 0
        assert np.isfinite(found.residual_norm) and np.isfinite(found.x_norm)
        converged += found.converged
    assert converged >= 3


def test_columns_are_scaled_only_where_it_did_not_converge_without():
    A, b = of_sizes("entries", -300, 300, (30, 30), 0)
    assert "columns of A were scaled" in fl.lstsq(A, b).explain()
    A, b = of_rank(300, 100, 0), values(300, float)
    assert "columns of A were scaled" not in fl.lstsq(A, b).explain()


def test_a_longer_residual_than_that_of_another_x_is_no_least_squares_solution():
    A, b = of_rank(300, 100, 0), values(300, float)
    best = fl.lsmr(A, b, atol=1e-12).x
    problem = course_module.LeastSquares(A, b, None, None, 0.0)
    limits = course_module.Limits(1e30, 0.0, np.inf, 10)  # whose test any x passes by its normal residual
    least = np.linalg.norm(b - A @ best)
    for x, passed in ((best, 2), (best + 1, 0)):
        assert course_module.measured(problem, b, x, 0 * x, limits, least).passed == passed


def test_nearly_dependent_rows_are_solved_with_their_factors():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((40, 100))
    A[39] = A[0] + 1e-8 * rng.standard_normal(100)
    b = rng.standard_normal(40)
    found = fl.lstsq(A, b)
    assert found.converged and found.passed == 1 and np.linalg.norm(b - A @ found.x) <= 1.001e-8 * np.linalg.norm(b)
    x = np.linalg.lstsq(A, b, rcond=None)[0]
    assert np.linalg.norm(found.x - x) <= 1e-6 * np.linalg.norm(x)


def test_b_out_of_the_range_does_not_count_as_solved_for_a_long_x():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((60, 20))
    A[:, 19] = A[:, 0] + 1e-10 * rng.standard_normal(60)
    b = rng.standard_normal(60)
    found = fl.lstsq(A, b)
    assert found.passed != 1 and not (found.converged and found.passed != 2)
    least = np.linalg.norm(b - A @ np.linalg.lstsq(A, b, rcond=None)[0])
    assert found.residual_norm <= 1.0001 * least
    wide = of_rank(100, 300, 2)
    assert "of ||b||: b is out of A's range" in fl.lstsq(wide, values(100, float)).explain()


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("condition", [1e8, 1e10, 1e12])
def test_a_wide_matrix_of_any_condition_is_solved_with_least_norm(condition, dtype):
    m, n = 40, 110
    U, V = (np.linalg.qr(values((k, m), dtype, k))[0] for k in (m, n))
    A = sp.csr_matrix((U * np.logspace(0, -np.log10(condition), m)) @ V.conj().T)
    for b, in_range in ((A @ values(n, dtype), True), (values(m, dtype), False)):
        found = fl.lstsq(A, b, rtol=1e-12)
        residual = np.linalg.norm(b - A @ found.x) / np.linalg.norm(b)
        least = np.linalg.lstsq(A.toarray(), b, rcond=1e-16)[0]
        assert np.linalg.norm(found.x - least) <= 1e-14 * condition * np.linalg.norm(least)
        if in_range:
            assert found.converged and found.passed == 1 and residual <= 1e-12
        else:  # x is so long that its own rounding leaves more
            assert not found.converged and residual <= 1e-14 * condition
        by_factors = "complete factors of [alpha I, A^H; A, 0] gave a closer x" in found.explain()
        assert by_factors == (condition > 1e8 or not in_range)


def with_combined_rows(m, n, more):
    """A (m + more, n) whose last rows combine the others: they are dependent up to rounding."""
    A = sp.csr_matrix(sp.random(m, n, 10 / n, random_state=1) + sp.eye(m, n))
    return sp.csr_matrix(sp.vstack([A, sp.random(more, m, 5 / m, random_state=2) @ A]))


@pytest.mark.parametrize("shape", [(20, 50, 3), (100, 300, 5)], ids=str)
@pytest.mark.parametrize("noise", [1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 3e-8, 1e-8, 3e-9, 1e-9])
def test_noise_in_b_does_not_lengthen_x_where_rows_are_dependent_up_to_rounding(shape, noise):
    A = with_combined_rows(*shape)
    b = A @ values(A.shape[1], float)
    b += noise * np.linalg.norm(b) * values(b.size, float, 5) / np.sqrt(b.size)
    expected = np.linalg.pinv(A.toarray(), rcond=1e-12) @ b
    least = np.linalg.norm(b - A @ expected)
    found = fl.lstsq(A, b)
    assert found.converged and np.linalg.norm(found.x - expected) <= 1e-5 * np.linalg.norm(expected)
    assert np.linalg.norm(b - A @ found.x) <= 1.0001 * max(least, 1e-8 * np.linalg.norm(b))
    assert "gave a closer x" not in found.explain()


def of_condition(m, n, condition):
    U, V = (np.linalg.qr(values((k, m), float, k))[0] for k in (m, n))
    return sp.csr_matrix((U * np.logspace(0, -np.log10(condition), m)) @ V.T)


def test_columns_whose_x_the_factors_replace_are_counted():
    A = of_condition(40, 110, 1e10)
    V = np.linalg.svd(A.toarray(), full_matrices=False)[2]
    easy = A @ V[0]
    found = fl.lstsq(A, np.column_stack([easy, values(40, float), values(40, float, 2)]))
    assert "complete factors of [alpha I, A^H; A, 0] gave a closer x of 2 columns" in found.explain()
    assert np.allclose(found.x[:, 0], V[0], atol=1e-6)
    rejected = fl.lstsq(of_condition(40, 110, 1e18), values(40, float))
    assert not rejected.converged and "gave no x that is closer beyond its own rounding" in rejected.explain()
    assert "gave a closer x" not in rejected.explain()


def wide(m, n):
    """A whose random pattern has much fill, and is badly conditioned by two nearly equal rows."""
    A = sp.random(m, n, 0.01, random_state=3, format="csr")
    near = A[0] + 1e-11 * sp.csr_matrix((values(A[0].nnz, float), A[0].indices, A[0].indptr), A[0].shape)
    return sp.csr_matrix(sp.vstack([A, near]))


def factored(monkeypatch):
    """The entries of the complete factors that `lstsq` makes from now on."""
    made, within = [], fl.SparseLU.within

    def noted(recipe, K, most):
        F = within(recipe, K, most)
        made.append((recipe.ordering, F.nnz, F.nnz / K.nnz))
        return F

    monkeypatch.setattr(fl.SparseLU, "within", noted)
    return made


@pytest.mark.parametrize("fill", [100.0, 5.0])
def test_entries_of_complete_factors_are_counted_before_they_are_made(monkeypatch, fill):
    made, A = factored(monkeypatch), wide(600, 3000)
    monkeypatch.setattr(lstsq_module, "FILL", fill)
    b = values(601, float)
    found = fl.lstsq(A, b)
    if fill == 100:
        assert [ordering for ordering, *_ in made] == ["amd"] and made[0][2] <= fill
        assert "gave a closer x" in found.explain() and np.linalg.norm(b - A @ found.x) <= 1e-4 * np.linalg.norm(b)
    else:
        assert not made and "there are no complete factors of [alpha I, A^H; A, 0]: they would have" in found.explain()
        assert "more than 5 times as many as that matrix" in found.explain()


def test_factors_that_the_memory_does_not_hold_are_not_made(monkeypatch):
    made = factored(monkeypatch)
    monkeypatch.setattr(lstsq_module, "free_memory", lambda _: 1e5)
    found = fl.lstsq(of_condition(40, 110, 1e10), values(40, float))
    assert not made and "more than as many as the memory holds" in found.explain()


def test_no_factors_are_made_once_the_residual_is_out_of_the_range(monkeypatch):
    made, A = factored(monkeypatch), of_rank(100, 300, 3)
    found = fl.lstsq(A, values(100, float))
    assert found.converged and found.passed == 2 and not made and "complete factors" not in found.explain()


def test_columns_of_0_take_no_solve_of_their_own():
    A = of_rank(300, 100, 1).tolil()
    A[:, 50:70] = 0
    A, b = sp.csr_matrix(A), values(300, float)
    found = fl.lstsq(A, b, rtol=1e-10)
    assert found.converged and off(found.x, A, b) <= 1e-6 and not found.x[50:70].any()
    assert "1 null vector of A was found" in found.explain()
    regular = fl.lstsq(A[:, 50:], b)
    assert regular.converged and "20 columns of A are 0, and so is x there" in regular.explain()


def test_x_has_no_part_along_the_null_vectors_that_were_found():
    rng = np.random.default_rng(0)
    A = rng.standard_normal((60, 20))
    A[:, 19] = A[:, 0]
    v = np.zeros(20)
    v[0], v[19] = 1, -1
    for rtol in (1e-8, 1e-14):
        found = fl.lstsq(A, rng.standard_normal(60), rtol=rtol)
        assert found.converged and abs(v @ found.x) <= 1e-13 * np.linalg.norm(found.x)


def test_limits_and_failures():
    A = sp.csr_matrix(sp.random(6000, 2000, density=2e-3, random_state=0) + sp.eye(6000, 2000))
    b = values(6000, float)
    assert not fl.lstsq(A, b, maxiter=1, rtol=1e-12).converged
    with pytest.raises(NotConverged, match="the least-squares problem did not converge to rtol=1e-12"):
        fl.lstsq(A, b, maxiter=1, rtol=1e-12, raise_on_failure=True)
    loose, strict = fl.lstsq(A, b, rtol=1e-3), fl.lstsq(A, b, rtol=1e-10)
    assert loose.converged and strict.converged and loose.iterations < strict.iterations


@PATTERNS
@given(st.integers(1, 10), st.integers(1, 10), st.floats(0, 1), st.integers(0, 2**31))
def test_random_patterns_of_any_rank(m, n, density, seed):
    rng = np.random.default_rng(seed)
    A = sp.csr_matrix(rng.integers(-3, 4, (m, n)) * (rng.random((m, n)) < density), dtype=float)
    b = rng.integers(-5, 6, m).astype(float)
    found = fl.lstsq(A, b, rtol=1e-9)
    expected = np.linalg.lstsq(A.toarray(), b, rcond=None)[0]
    assert found.converged
    assert np.linalg.norm(A @ (found.x - expected)) <= 1e-7 * max(np.linalg.norm(b), 1)
    if n - np.linalg.matrix_rank(A.toarray()) < 8 or m < n:
        assert np.linalg.norm(found.x - expected) <= 1e-5 * max(np.linalg.norm(expected), 1)


A = of_rank(12, 5, 0)
WRONG = {
    "b of another length": (lambda: fl.lstsq(A, np.ones(5)), r"b has shape \(5,\), but A has 12 rows"),
    "an operator": (lambda: fl.lstsq(spla.aslinearoperator(A), np.ones(12)), "finelu.lsmr"),
    "a negative rtol": (lambda: fl.lstsq(A, np.ones(12), rtol=-1), "rtol=-1"),
    "minimum_norm": (lambda: fl.lstsq(A, np.ones(12), minimum_norm=2), "minimum_norm=2; True or False is needed"),
    "a misspelt keyword": (lambda: fl.lstsq(A, np.ones(12), tol=1), "Did you mean 'rtol'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named_in_one_line(what):
    call, match = WRONG[what]
    with refused(fl.FineluError, match=match):
        call()
