"""A `solve` whose complete factors began from those of earlier values ends as it does with nothing kept."""

import gc
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES
from hypothesis import given, settings
from hypothesis import strategies as st

import finelu as fl
from finelu import gallery
from finelu.auto.ladder import Ladder
from finelu.errors import OutOfTime
from finelu.factors import Columns
from finelu.matrix import as_csr
from finelu.preconditioners.direct.factors import SparseLUFactors
from finelu.preconditioners.direct.klu import AMD, KLU

pytest.importorskip("nbklu")
OF_KLU = sys.modules[KLU.__module__]
N = 300


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    """Pivots of small factors are tried again, too."""
    monkeypatch.setattr(OF_KLU, "WORTH", 0)
    OF_KLU.RECENT.forget()


def exchanged(n=N, dtype="float64", seed=0):
    """A matrix like a network's, some pairs of whose rows are exchanged: pivots lie off the diagonal."""
    rows = np.arange(n)
    rows[::7], rows[1::7] = rows[1::7], rows[::7][: rows[1::7].size].copy()
    A = sp.csr_matrix(gallery.random_dominant(n, 6 / n, seed=seed)[rows] + 1e-5 * sp.identity(n)).astype(dtype)
    if np.dtype(dtype).kind == "c":
        A.data *= np.exp(1j * np.random.default_rng(seed).uniform(-1, 1, A.nnz)).astype(dtype)
    return A


def with_values(A, data):
    return sp.csr_matrix((data.astype(A.dtype), A.indices, A.indptr), A.shape)


def near(A, seed=1):
    return with_values(A, A.data * np.random.default_rng(seed).uniform(0.99, 1.01, A.nnz))


def pivots_of(A):
    """The places among A's entries of the pivots of its factors."""
    C = sp.csc_matrix(A)
    found = (
        KLU(Columns(C.indptr, C.indices, C.data, C.shape), AMD)
        .factor(Columns(C.indptr, C.indices, C.data, C.shape), str)
        ._solver.extract()
    )
    places = sp.csr_matrix((np.arange(1, A.nnz + 1), A.indices, A.indptr), A.shape)
    at = np.asarray(places[found["P"], found["Q"]]).ravel() - 1
    OF_KLU.RECENT.forget()
    return at[at >= 0]


def after(first, second, b, **options):
    """(solution of `second` after `first`, the same with nothing kept, whether KLU kept its pivots)."""
    OF_KLU.RECENT.forget()
    alone = fl.solve(second, b, **options)
    OF_KLU.RECENT.forget()
    assert fl.solve(first, b, **options).attempts
    gc.collect()
    made, own = [], KLU.factor

    def factor(self, *rest):
        own(self, *rest)
        made.append(self.from_earlier)
        return self

    KLU.factor = factor
    try:
        found = fl.solve(second, b, **options)
    finally:
        KLU.factor = own
    return found, alone, made


def test_pivots_off_the_diagonal_serve_for_near_values():
    A = exchanged()
    for dtype in DTYPES:
        first = exchanged(dtype=dtype)
        b = np.random.default_rng(0).standard_normal(N).astype(dtype)
        found, alone, made = after(first, near(first), b, rtol=1e-5 if first.real.dtype == np.float32 else 1e-8)
        assert made == [True] and found.converged and alone.converged
        assert (found.iterations, found.recipe, found.seen) == (alone.iterations, alone.recipe, alone.seen)
        np.testing.assert_allclose(found.x, alone.x, rtol=1e-3 if A.real.dtype != first.real.dtype else 1e-9)


@pytest.mark.parametrize("size", [0.0, 1e-300, 1e-18, 1e-12, 1e-6, 1e12])
def test_bad_pivots_of_earlier_values_never_give_a_worse_answer(size):
    first = exchanged()
    b, data = np.random.default_rng(0).standard_normal(N), near(first).data
    data[pivots_of(first)[::5]] *= size
    found, alone, made = after(first, with_values(first, data), b)
    assert (found.status, found.converged) == (alone.status, alone.converged)
    assert found.residual_norm <= max(10 * alone.residual_norm, 1e-8 * np.linalg.norm(b))
    if size < 1e-5:
        assert True not in made  # KLU itself sees that they are bad


@pytest.mark.parametrize("in_range", [True, False])
@pytest.mark.parametrize("exact", [True, False])
def test_a_singular_matrix_is_told_after_a_regular_one_too(in_range, exact):
    first = exchanged()
    second = near(first).tolil()
    row = first.indptr[40:42]
    second[39] = 0
    second = sp.csr_matrix(second)
    weights = np.zeros(N)
    weights[[50, 60, 70]] = 1, 2, (4 if exact else 1 / 3)
    pattern = sp.csr_matrix(first)
    dense = near(first).toarray()
    dense[39] = weights @ dense
    union = sp.csr_matrix((dense != 0) | (pattern.toarray() != 0)).astype(float)
    second = sp.csr_matrix((dense[union.nonzero()], union.nonzero()), union.shape)
    regular = pattern.toarray()
    regular[39] += 1e-3 * (weights @ regular)
    first = sp.csr_matrix((regular[union.nonzero()], union.nonzero()), union.shape)
    assert (first.indices == second.indices).all() and row.size
    b = second @ np.ones(N) if in_range else np.random.default_rng(0).standard_normal(N)
    found, alone, _ = after(first, second, b)
    assert (found.status, found.converged) == (alone.status, alone.converged)
    about = [any(word in text for text in s.seen for word in ("singular", "unique", "A v = 0")) for s in (found, alone)]
    assert about[0] >= about[1]


@settings(deadline=None)
@given(seed=st.integers(0, 2**32 - 1), spread=st.floats(0, 12))
def test_values_of_any_size_end_as_they_do_alone(seed, spread):
    first, rng = exchanged(60, seed=seed % 5), np.random.default_rng(seed)
    second = with_values(first, first.data * 10 ** rng.uniform(-spread, spread, first.nnz))
    b = rng.standard_normal(60)
    found, alone, _ = after(first, second, b)
    assert found.converged >= alone.converged
    if found.converged and alone.converged:
        rest = b - second.astype(np.longdouble) @ found.x  # whose rounding may be more than the tolerance in float64
        assert np.linalg.norm(rest.astype(float)) <= 1.01e-8 * np.linalg.norm(b)


def test_factors_that_do_not_solve_are_made_anew_and_it_is_told(monkeypatch):
    first, b = exchanged(), np.random.default_rng(0).standard_normal(N)
    own = SparseLUFactors._apply

    def bad(self, R, trans):
        return own(self, R, trans) * (0.6 if self.from_earlier else 1)

    monkeypatch.setattr(SparseLUFactors, "_apply", bad)
    found, alone, made = after(first, near(first), b)
    assert made == [True, False] and found.converged
    assert [a.outcome for a in found.attempts] == ["stagnated", "solved"]
    assert "began from those of earlier values" in found.attempts[1].why
    assert found.iterations == sum(a.iterations for a in found.attempts) > alone.iterations
    np.testing.assert_array_equal(found.x, alone.x)  # nothing of the first attempt has a part in x


def test_the_x_of_factors_that_do_not_solve_is_the_answer_if_there_is_no_time_for_new_ones(monkeypatch):
    first, b = exchanged(), np.random.default_rng(0).standard_normal(N)
    own = SparseLUFactors._apply

    def late(self, rung):
        raise OutOfTime

    assert fl.solve(first, b).converged
    gc.collect()
    monkeypatch.setattr(
        SparseLUFactors, "_apply", lambda self, R, trans: own(self, R, trans) * (0.6 if self.from_earlier else 1)
    )
    monkeypatch.setattr(Ladder, "_factor", late)
    found = fl.solve(near(first), b)
    assert found.status is fl.Status.OUT_OF_TIME
    assert [a.outcome for a in found.attempts] == ["stagnated", f"no factors: {OutOfTime()}"]
    rest = np.linalg.norm(b - near(first) @ found.x)
    np.testing.assert_allclose(found.residual_norm, rest, rtol=1e-6)
    np.testing.assert_allclose(found.history[-1], rest, rtol=1e-6)
    assert rest < 0.1 * np.linalg.norm(b)


def test_columns_after_the_first_have_new_factors_too(monkeypatch):
    first = exchanged()
    B = np.random.default_rng(0).standard_normal((N, 3))
    own = SparseLUFactors._apply
    calls = []

    def bad_later(self, R, trans):
        calls.append(self.from_earlier)
        return own(self, R, trans) * (0.1 if self.from_earlier and len(calls) > 1 else 1)

    assert fl.solve(first, B[:, 0]).converged
    gc.collect()
    monkeypatch.setattr(SparseLUFactors, "_apply", bad_later)
    found = fl.solve(near(first), B)
    assert found.converged and calls[0] and not calls[-1]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_pivots_do_not_stand_where_factors_are_not_finite(value):
    A = as_csr(exchanged())
    C = sp.csc_matrix(A.tosparse())
    columns = Columns(C.indptr, C.indices, C.data, C.shape)
    F = KLU(columns, AMD).factor(columns, str)
    assert F._pivots_stand(C.data * 1.001)
    data = C.data.copy()
    data[5] = value
    assert not F._pivots_stand(data)


def test_a_limit_of_iterations_leaves_earlier_values_out():
    first = exchanged()
    b = np.random.default_rng(0).standard_normal(N)
    found, alone, made = after(first, near(first), b, maxiter=1)
    assert made == [False] and found.status is alone.status
    np.testing.assert_array_equal(found.x, alone.x)


def few(seed=0):
    """A small matrix for which the direct rung comes first."""
    return sp.csr_matrix(gallery.poisson5(12) + sp.diags(np.random.default_rng(seed).uniform(0, 1, 144)))


@pytest.fixture
def renewed(calls_of):
    return calls_of(SparseLUFactors, "renew")


def test_small_factors_are_updated_for_new_values_and_taken_as_they_are_for_the_same(renewed, calls_of):
    made, first = calls_of(SparseLUFactors, "__init__"), few()
    b = np.random.default_rng(0).standard_normal(first.shape[0])
    for step in range(3):
        A = near(first, seed=step) + near(first, seed=step).T
        found = fl.solve(A, b)
        assert found.converged and found.recipe == "SparseLU()" and len(renewed) == step and len(made) == 1
        assert np.linalg.norm(b - A @ found.x) <= 1e-8 * np.linalg.norm(b)
        again = fl.solve(A, 2 * b)
        np.testing.assert_allclose(again.x, 2 * found.x, rtol=1e-12)
        assert len(renewed) == step and again.seen == found.seen


@pytest.mark.parametrize("other", ["dtype", "zero", "symmetry", "maxiter", "time_limit", "pattern", "out of range"])
def test_small_factors_are_not_updated_for_matrices_that_may_want_others(renewed, other):
    first, options = sp.csr_matrix(few() + few().T), {}
    second, b = first.copy(), np.random.default_rng(0).standard_normal(144)
    if other == "dtype":
        second = second.astype(complex)
    elif other == "zero":
        second.data[1] = 0
    elif other == "symmetry":
        second.data[1] *= 2
    elif other == "pattern":
        second[3, 77] = 0.1
    elif other == "out of range":
        second.data *= 1e-200
    else:
        second.data *= 1.01
        options = {other: 100}
    found, alone, _ = after(first, second, b, **options)
    assert found.status is alone.status and found.converged and len(renewed) == (other == "out of range")
    np.testing.assert_allclose(found.x, alone.x, rtol=1e-9)


def test_a_small_singular_matrix_is_told_after_a_regular_one(renewed):
    first = few()
    second = sp.csr_matrix(gallery.poisson5(12))
    second = sp.csr_matrix(second - sp.diags(np.asarray(second.sum(axis=1)).ravel()))
    for b in (second @ np.random.default_rng(0).standard_normal(144), np.ones(144)):
        found, alone, _ = after(first, second, b)
        assert found.status is alone.status and found.converged == alone.converged
        assert [text for text in found.seen if "e-" not in text] == [text for text in alone.seen if "e-" not in text]
    assert renewed


def test_threads_do_not_share_factors_that_are_updated():
    matrices = [sp.csr_matrix(few(seed) * (1 + seed)) for seed in range(4)]
    b = np.random.default_rng(0).standard_normal(144)

    def right(k):
        A = matrices[k % 4]
        return np.linalg.norm(b - A @ fl.solve(A, b).x) <= 1e-8 * np.linalg.norm(b)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(right, range(200)))


def test_a_caller_may_change_arrays_in_place():
    A, b = few(), np.random.default_rng(0).standard_normal(144)
    other = sp.csr_matrix(A[np.r_[70:144, :70]][:, np.r_[70:144, :70]])
    for _ in range(2):
        for values, like in ((A.copy(), A), (None, other), (None, A)):
            if values is not None:
                M = values
            else:
                M.data[:], M.indices[:], M.indptr[:] = like.data * 1.5, like.indices, like.indptr
            found = fl.solve(M, b)
            assert np.linalg.norm(b - M @ found.x) <= 1e-8 * np.linalg.norm(b) and found.converged
