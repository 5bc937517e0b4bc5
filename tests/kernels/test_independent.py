"""Elimination of independent sets: the specification by definition, and its forms by twin."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, PATTERNS, assert_close
from hypothesis import given
from hypothesis import strategies as st

from finelu import gallery
from finelu.device import to_host
from finelu.kernels.operands import CSR
from finelu.kernels.reference import independent as reference
from finelu.matrix import as_csr

NEVER, UNLIMITED = float("inf"), 2**62
CHOSEN = reference.CHOSEN


def stored(M, index="int32"):
    M = sp.csr_matrix(M)
    M.sort_indices()
    return CSR(M.indptr.astype(index), M.indices.astype(index), M.data, None)


def sparse(A):
    return sp.csr_matrix((A.data, A.indices, A.indptr), shape=A.shape)


def moved(A, xp):
    return CSR(*(xp.asarray(part) for part in (A.indptr, A.indices, A.data)), None)


@st.composite
def problems(draw):
    """A matrix, whether it is symmetric, and the sums of the estimates."""
    rng, n = np.random.default_rng(draw(st.integers(0, 2**32))), draw(st.integers(1, 40))
    dtype, kind = np.dtype(draw(st.sampled_from(DTYPES))), draw(st.sampled_from(["general", "symmetric", "hermitian"]))
    M = np.where(rng.random((n, n)) < draw(st.sampled_from([0.03, 0.1, 0.4])), rng.uniform(-2, 2, (n, n)), 0)
    if dtype.kind == "c":
        M = M * np.exp(1j * rng.uniform(0, 6, (n, n)))
    M = M + np.diag(rng.choice([0, 1.0, 3.0], n))
    if kind != "general":
        M = M + (M.conj().T if kind == "hermitian" else M.T)
    nu = rng.uniform(-9, 9, (2, n)).astype(dtype)
    if draw(st.booleans()):
        nu = np.zeros_like(nu)
    return M.astype(dtype), kind, nu


def step(kernels, A, kind, l_nu, u_nu, condest, drop_tol, most, schur_tol):
    """All that a step makes, as `eliminated` calls it."""
    T = kernels.transposed(A)
    state, d = kernels.choose(A, T, l_nu, u_nu, condest, 0.01, 1e-6)
    number, rest, pivots = kernels.split(state, A.indices.dtype)
    U, dropped = kernels.pivot_rows(A, state, d, u_nu, drop_tol, most)
    if kind == "general":
        LT, _ = kernels.pivot_rows(T, state, d, l_nu, drop_tol, most)
    else:
        LT = U if kind == "symmetric" else U.with_values(U.data.conj())
    L = kernels.transposed(LT)
    S, bad = kernels.remainder(A, L, U, d, state, number, schur_tol, kind != "general")
    return state, d, number, rest, pivots, U, dropped, L, kernels.signs(U, state, u_nu), S, bad


@PATTERNS
@given(
    problem=problems(),
    condest=st.sampled_from([5.0, NEVER]),
    drop_tol=st.sampled_from([0.0, 0.05]),
    most=st.sampled_from([0, 2, UNLIMITED]),
    schur_tol=st.sampled_from([0.0, 0.1]),
    index=st.sampled_from(["int32", "int64"]),
)
@pytest.mark.gpu
def test_a_step_is_its_twin(cupy, cuda, problem, condest, drop_tol, most, schur_tol, index):
    M, kind, (l_nu, u_nu) = problem
    l_nu = l_nu if kind == "general" else u_nu
    A, xp = stored(M, index), cupy
    given_ = condest, drop_tol, most, schur_tol
    want = step(reference, A, kind, l_nu, u_nu, *given_)
    made = step(cuda.independent, moved(A, xp), kind, xp.asarray(l_nu), xp.asarray(u_nu), *given_)
    for ours, theirs in zip(made, want, strict=True):
        if isinstance(theirs, CSR):
            for part in ("indptr", "indices"):
                np.testing.assert_array_equal(to_host(getattr(ours, part)), getattr(theirs, part))
                assert getattr(ours, part).dtype == index
            assert ours.data.dtype == M.dtype
            assert_close(to_host(ours.data), theirs.data, 1e4)
        elif np.asarray(theirs).dtype.kind in "fc":
            assert_close(to_host(ours), theirs, 1e4)
        else:
            np.testing.assert_array_equal(to_host(ours), theirs)
    if kind != "general":  # to the last bit
        S = sparse(CSR(*(to_host(part) for part in (made[9].indptr, made[9].indices, made[9].data)), None))
        mirrored = S.conj().T if kind == "hermitian" else S.T
        assert (mirrored != S).nnz == 0


@PATTERNS
@given(problem=problems())
def test_what_is_chosen_is_independent_and_no_other_usable_row_is(problem):
    M, _, _ = problem
    A, none = stored(M), np.zeros(M.shape[0], M.dtype)
    state, _ = reference.choose(A, stored(M.T), none, none, NEVER, 0.01)
    chosen = state == CHOSEN
    coupled = (M != 0) | (M.T != 0)
    np.fill_diagonal(coupled, False)
    assert not coupled[np.ix_(chosen, chosen)].any()
    usable = state == reference.USABLE
    assert coupled[np.ix_(usable, chosen)].any(axis=1).all()


@PATTERNS
@given(problem=problems())
def test_without_dropping_a_step_is_a_block_of_gauss_elimination(problem):
    M, kind, _ = problem
    none = np.zeros(M.shape[0], M.dtype)
    _, d, _, rest, pivots, _, _, _, _, S, bad = step(reference, stored(M), kind, none, none, NEVER, 0.0, UNLIMITED, 0.0)
    B, F = M[np.ix_(pivots, pivots)], M[np.ix_(pivots, rest)]
    G, C = M[np.ix_(rest, pivots)], M[np.ix_(rest, rest)]
    assert bad == -1
    assert_close(B, np.diag(d[pivots]), 1)
    want = C - G @ np.linalg.inv(B) @ F if pivots.size else C
    assert_close(sparse(S).toarray(), want, 1e4, 1e2 * max(1, abs(M).max() ** 2))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_row_that_is_not_finite_is_reported(request, device):
    M = np.array([[1e-3, 0, 1e200], [0, 1.0, 0], [1e200, 0, 1.0]])
    xp, A = np if device == "cpu" else request.getfixturevalue("cupy"), stored(M)
    by = reference if device == "cpu" else request.getfixturevalue("cuda").independent
    state, number = np.array([CHOSEN, 0, 0], np.uint8), np.array([0, 0, 1, 2], np.int32)
    U = stored(np.array([[0, 0, 1e203], [0, 0, 0], [0, 0, 0]]))
    L = stored(np.array([[0, 0, 0], [0, 0, 0], [1e203, 0, 0]]))
    given_ = (moved(B, xp) for B in (A, L, U))
    with np.errstate(over="ignore"):
        _, bad = by.remainder(*given_, *(xp.asarray(x) for x in (M.diagonal(), state, number)), 1e-3, False)
    assert bad == 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_long_rows_are_made_too(cupy, cuda, dtype):
    """Rows for which the small tables of a GPU are too small, and a room that is."""
    n, rng = 1500, np.random.default_rng(3)
    M = sp.random(n, n, 0.002, random_state=4) + sp.diags(np.full(n, 4.0))
    M = sp.csr_matrix(M.astype(dtype)).tolil()
    M[7, :] = rng.uniform(0.1, 0.2, n)
    M[:, 11] = rng.uniform(0.1, 0.2, (n, 1))
    M[7, 7] = M[11, 11] = 4
    A, xp = stored(sp.csr_matrix(M)), cupy
    none = np.zeros(n, dtype)
    want = step(reference, A, "general", none, none, NEVER, 0.0, UNLIMITED, 0.0)
    made = step(
        cuda.independent,
        *(moved(A, xp), "general", xp.asarray(none), xp.asarray(none), NEVER, 0.0, UNLIMITED, 0.0),
    )
    np.testing.assert_array_equal(to_host(made[9].indices), want[9].indices)
    assert_close(to_host(made[9].data), want[9].data, 1e4)


def test_the_order_of_choice_is_by_entries_first():
    A = as_csr(gallery.poisson5(4))  # corners have the fewest entries, and are not coupled
    none = np.zeros(16)
    state, _ = reference.choose(A, A, none, none, NEVER, 0.01)
    assert (state[[0, 3, 12, 15]] == CHOSEN).all()
