"""`Batch`: its values, its bad input, and solve(batch, b) against dense solves."""

import re

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, PATTERNS, in_dtype, values
from hypothesis import given
from hypothesis import strategies as st

import finelu as fl
from finelu import gallery
from finelu.errors import DeviceError, FineluError, MatrixError, NotConverged, ParameterError, StructurallySingular
from finelu.result import Status


def batch_of(backend, A, k, seed=0, spread=0.1):
    """k matrices near A, as (Batch, list of matrices)."""
    A = sp.csr_matrix(A)
    change = 1 + spread * values((k, A.nnz), A.real.dtype, seed)
    every = A.data * change
    found = [sp.csr_matrix((v, A.indices, A.indptr), shape=A.shape) for v in every]
    return fl.Batch(backend.move(A), backend.move(every)), found


def network(n=30, seed=0):
    """An unsymmetric matrix without dominance and with gaps in its diagonal, as in a power flow."""
    rng = np.random.default_rng(seed)
    A = sp.random(n, n, 4 / n, random_state=rng, data_rvs=rng.standard_normal) + sp.diags(np.arange(n) % 3 * 1.0)
    turn = rng.permutation(n)
    return sp.csr_matrix((A + sp.csr_matrix((2 + rng.random(n), (np.arange(n), turn)), shape=(n, n))).astype(float))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", [1, 7, 40])
def test_every_system_has_the_solution_that_it_has_alone(backend, dtype, k):
    A = in_dtype(network(), dtype)
    batch, matrices = batch_of(backend, A, k)
    b = values((k, 30), dtype, 1)
    rtol = 1e-4 if np.finfo(dtype).eps > 1e-10 else 1e-10
    solution = fl.solve(batch, backend.move(b), rtol)
    assert solution.all_converged and bool(solution) and len(solution) == k
    x = backend.fetch(solution.x)
    assert x.shape == (k, 30) and x.dtype == np.dtype(dtype)
    for s, M in enumerate(matrices):
        size = np.linalg.norm(b[s] - M @ x[s])
        assert size <= 1.01 * rtol * np.linalg.norm(b[s])
        np.testing.assert_allclose(size, solution.residual_norm[s], atol=30 * np.finfo(dtype).eps * 100)
        assert solution[s].converged and solution[s].residual_norm == solution.residual_norm[s]
        np.testing.assert_array_equal(backend.fetch(solution[s].x), x[s])


@given(
    st.integers(1, 12),
    st.integers(1, 20),
    st.integers(0, 10**6),
    st.floats(0, 1),
)
@PATTERNS
def test_any_pattern(backend, n, k, seed, density):
    rng = np.random.default_rng(seed)
    pattern = (rng.random((n, n)) < density) | np.eye(n, dtype=bool)[rng.permutation(n)]
    A = sp.csr_matrix(pattern.astype(float))
    every = rng.standard_normal((k, A.nnz))
    b = rng.standard_normal((k, n))
    solution = fl.solve(fl.Batch(backend.move(A), backend.move(every)), backend.move(b), 1e-8)
    x = backend.fetch(solution.x)
    assert np.isfinite(x).all()
    for s in range(k):
        M = sp.csr_matrix((every[s], A.indices, A.indptr), shape=A.shape).toarray()
        small = np.linalg.norm(b[s] - M @ x[s]) <= 1.01e-8 * np.linalg.norm(b[s])
        assert small or not solution.converged[s]
        if np.linalg.cond(M) < 1e5:
            assert solution.converged[s]


def test_a_system_does_not_depend_on_its_neighbours(backend):
    """Neither its lane nor its group nor the values of others change a bit, as all have the plan of the first."""
    batch, _ = batch_of(backend, network(), 19)
    b = backend.move(values((19, 30), float, 3))
    together = fl.solve(batch, b)
    order = backend.xp.asarray(np.random.default_rng(0).permutation(19))
    turned = fl.solve(batch.with_values(batch.values[order]), b[order])
    np.testing.assert_array_equal(backend.fetch(turned.x), backend.fetch(together.x[order]))
    few = fl.solve(batch.with_values(batch.values[3:5]), b[3:5])
    np.testing.assert_array_equal(backend.fetch(few.x), backend.fetch(together.x[3:5]))


def test_one_right_hand_side_for_all(backend):
    batch, _ = batch_of(backend, network(), 9)
    b = values(30, float, 3)
    shared, repeated = fl.solve(batch, backend.move(b)), fl.solve(batch, backend.move(np.tile(b, (9, 1))))
    np.testing.assert_array_equal(backend.fetch(shared.x), backend.fetch(repeated.x))


def test_singular_systems_are_named_and_the_others_solved(backend):
    batch, matrices = batch_of(backend, network(), 12)
    every, b = batch.values.copy(), values((12, 30), float, 2)
    rows = np.repeat(np.arange(30), np.diff(matrices[0].indptr))
    every[4, backend.xp.asarray(rows == 7)] = 0
    every[9, 3] = np.nan
    b[10, 5] = np.inf
    batch = batch.with_values(every)
    solution = fl.solve(batch, backend.move(b), verbose=False)
    assert np.flatnonzero(~solution.converged).tolist() == [4, 9, 10]
    assert solution.status[4] in (Status.SINGULAR, Status.NUMERICALLY_SINGULAR)
    assert solution.status[9] is solution.status[10] is Status.NOT_FINITE
    text = solution.explain()
    assert "system 4: factors without row exchanges" in text and "system 9: its values hold NaN" in text
    assert "system 10: its right-hand side holds NaN or Inf" in text
    assert np.isnan(solution.residual_norm[[9, 10]]).all() and not backend.fetch(solution.x[9]).any()
    assert any("hold NaN" in sentence for sentence in solution[9].seen) and not solution[3].seen
    with pytest.raises(NotConverged, match="system 4 of the Batch did not converge"):
        fl.solve(batch, backend.move(b), raise_on_failure=True, verbose=False)


def test_a_system_that_needs_row_exchanges_is_solved_by_itself(backend):
    """The plan is that of a typical matrix; in one the matched entry is gone, and the LU without exchanges breaks."""
    A = sp.csr_matrix(np.array([[2.0, 1, 0], [1, 2, 1], [0, 1, 2]]))
    every = np.tile(A.data, (40, 1))
    every[33, [0, 3]] = 0  # a_00 and a_11
    every[33, 6] = 0  # a_22
    every[33] = [0, 1, 1, 0, 0, 0, 1]  # of the permutation of rows 0 and 1
    b = values((40, 3), float, 1)
    solution = fl.solve(fl.Batch(backend.move(A), backend.move(every)), backend.move(b), verbose=False)
    assert solution.all_converged
    np.testing.assert_allclose(backend.fetch(solution.x[33]), b[33][[1, 0, 2]])


def test_what_double_precision_solves_alone_is_rounded_before_it_is_claimed(backend):
    """x of a badly conditioned matrix lacks digits in single precision, although `solve` finds it in double."""
    n = 12
    i = np.arange(n)
    hilbert = 1 / (i + i[:, None] + 1.0)
    A = sp.csr_matrix(hilbert.astype(np.float32))
    batch = fl.Batch(backend.move(A), backend.move(np.tile(A.data, (3, 1))))
    b = values((3, n), np.float32, 1)
    solution = fl.solve(batch, backend.move(b), 2e-5, verbose=False)
    x = backend.fetch(solution.x)
    assert x.dtype == np.float32
    for s in range(3):
        size = np.linalg.norm(b[s] - A.astype(float) @ x[s].astype(float))
        assert not solution.converged[s] or size <= 2.02e-5 * np.linalg.norm(b[s])
        np.testing.assert_allclose(size, solution.residual_norm[s], rtol=1e-3)


def test_values_follow_the_order_of_the_given_matrix(backend):
    A = network()
    every = np.array([A.data, 2 * A.data])
    wanted = fl.Batch(A, every)
    for other in (A.tocsc(), A.tocoo()):
        numbered = other.copy()
        numbered.data = np.arange(1.0, A.nnz + 1)
        np.testing.assert_array_equal(fl.Batch(other, [other.data, 2 * other.data]).values, wanted.values)
    loose = A.copy()
    loose.indices, loose.data = loose.indices[::-1].copy(), loose.data[::-1].copy()
    loose.indptr = (A.nnz - loose.indptr[::-1]).astype(loose.indptr.dtype)
    loose.has_sorted_indices = False
    assert abs(fl.Batch(loose, [loose.data])[0] - loose).max() == 0
    assert abs(wanted[1] - 2 * A).max() == 0 and len(wanted) == 2 and wanted.shape == (2, 30, 30)


def test_a_batch_of_matrices(backend):
    batch, matrices = batch_of(backend, network(), 5)
    made = fl.Batch.of([backend.move(M) for M in matrices])
    np.testing.assert_array_equal(backend.fetch(made.values), backend.fetch(batch.values))
    assert repr(made) == f"<Batch of 5 matrices 30 x 30 with {batch.nnz} entries each, float64>"


A4 = sp.csr_matrix(np.array([[2.0, 1, 0, 0], [0, 2, 0, 1], [1, 0, 2, 0], [0, 0, 1, 2]]))
V4 = np.tile(A4.data, (3, 1))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: fl.Batch(A4, V4[:0]), "of no matrices; k >= 1 rows are needed"),
        (lambda: fl.Batch(A4, V4[:, :-1]), "shape (3, 7), but the pattern has 8 entries; shape (k, 8) is needed"),
        (lambda: fl.Batch(A4, V4[0]), "shape (8,), but the pattern has 8 entries"),
        (lambda: fl.Batch(A4[:, :3], V4), "A has shape (4, 3); a square matrix is needed"),
        (lambda: fl.Batch(A4.toarray(), V4), "a sparse matrix is needed"),
        (lambda: fl.Batch([A4, A4], V4), "Batch.of(matrices) takes a list"),
        (lambda: fl.Batch.of([]), "a Batch of no matrices"),
        (lambda: fl.Batch.of([A4, A4, gallery.poisson5(2, 2)]), "matrix 2 of a Batch stores entries in row 0 at other"),
        (lambda: fl.Batch.of([A4, gallery.poisson5(2, 3)]), "matrix 1 of a Batch has 6 rows, but matrix 0 has 4"),
        (lambda: fl.Batch(sp.coo_matrix(([1.0, 2], ([0, 0], [0, 0])), shape=(1, 1)), [[1.0, 2]]), "an entry twice"),
        (lambda: fl.solve(fl.Batch(A4, V4), np.ones(3)), "b has shape (3,), but the Batch has 3 systems of 4 rows"),
        (lambda: fl.solve(fl.Batch(A4, V4), np.ones((4, 3))), "It seems to be transposed"),
        (lambda: fl.solve(fl.Batch(A4, V4), np.ones((2, 4))), "shape (3, 4) is needed, or (4,) for all systems."),
        (lambda: fl.solve(fl.Batch(A4, V4), np.ones(4), x0=np.ones(4)), "solve(batch, b) takes rtol, atol, verbose"),
        (lambda: fl.solve(fl.Batch(A4, V4), np.ones(4), rtol=-1), "rtol=-1"),
        (lambda: fl.Batch(A4, [["a"] * 8]), "numbers are needed"),
    ],
)
def test_bad_input_is_one_line(call, text):
    with pytest.raises((MatrixError, ParameterError), match=re.escape(text)) as caught:
        call()
    assert isinstance(caught.value, FineluError) and "\n" not in str(caught.value)


def test_a_pattern_without_a_matching():
    A = sp.csr_matrix(np.array([[1.0, 1], [0, 0]]))
    with pytest.raises(StructurallySingular, match="row 1"):
        fl.solve(fl.Batch(A, [[1.0, 2.0]]), np.ones(2))


def test_the_devices_have_to_be_the_same(backend):
    if backend.name == "cuda":
        with pytest.raises(DeviceError, match="different devices"):
            fl.Batch(A4, backend.move(V4))


def test_refinement_reaches_a_small_backward_error(backend):
    """A dominance that is lost in some systems makes pivots small, and one step more than none."""
    batch, _ = batch_of(backend, network(60, 3), 64, spread=0.7)
    b = values((64, 60), float, 1)
    solution = fl.solve(batch, backend.move(b), 1e-13, verbose=False)
    found = solution.converged & ~np.isnan(solution.backward_error)
    assert found.sum() > 40 and solution.iterations[found].max() >= 1
    assert (solution.backward_error[found] <= 1e-13).all()
    loose = fl.solve(batch, backend.move(b), 1e-6, verbose=False)
    assert loose.iterations.sum() < solution.iterations.sum()


def test_entries_that_are_zero_in_all_systems_are_left_out(backend):
    """An arrow that points the wrong way would fill in, were its entries not all zero; later they are not."""
    A = sp.csr_matrix(gallery.tridiagonal(40) + sp.random(40, 40, 0.3, random_state=np.random.default_rng(1)))
    every = np.array([A.data, 2 * A.data, 3 * A.data])
    zero = abs(A.indices - np.repeat(np.arange(40), np.diff(A.indptr))) > 1
    few = every * ~zero
    batch = fl.Batch(backend.move(A), backend.move(few))
    assert (
        fl.SparseLU().factor(batch).nnz
        == 40 + 2 * 39
        < fl.SparseLU().factor(batch.with_values(backend.move(every))).nnz
    )
    for values_of in (few, every, few):
        solution = fl.solve(batch.with_values(backend.move(values_of)), backend.move(np.ones(40)), 1e-10)
        assert solution.all_converged
        dense = [sp.csr_matrix((v, A.indices, A.indptr)).toarray() for v in values_of]
        wanted = np.linalg.solve(np.array(dense), np.ones((3, 40, 1)))[:, :, 0]
        np.testing.assert_allclose(backend.fetch(solution.x), wanted, rtol=1e-7)


def test_replaced_pivots_are_told(backend):
    """In one system the other entries cancel the last pivot to four fifths of what is replaced."""
    A = sp.csr_matrix(np.array([[2.0, 1.0], [1.0, 2.0]]))
    every = np.tile(A.data, (40, 1))
    every[7] = [1.0, 1.0, 1.0, 1.0 + 0.8 * np.sqrt(np.finfo(float).eps)]
    batch = fl.Batch(backend.move(A), backend.move(every))
    assert np.flatnonzero(fl.SparseLU().factor(batch).replaced).tolist() == [7]
    solution = fl.solve(batch, backend.move(np.ones(2)), verbose=False)
    assert solution.all_converged and [systems for systems, _ in solution.notes] == [(7,)]
    assert "system 7: pivots that were too small were replaced by larger ones" in solution.explain()
