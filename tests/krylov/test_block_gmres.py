"""gmres(block=True): the block Arnoldi relation, residuals that are minimal, directions that wait, and each ending."""

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from checks import DTYPES, in_dtype, refused, values
from hypothesis import given, settings
from hypothesis import strategies as st

from finelu import ILU0, ParameterError, gallery, krylov
from finelu.krylov import RecycledSpace, block_gmres
from finelu.krylov.block_gmres import Cycle, orthonormalized
from finelu.krylov.system import System
from finelu.result import Status


def eps_of(dtype):
    return float(np.finfo(dtype).eps)


def flow(dtype="float64", n=(9, 8)):
    return in_dtype(gallery.convection_diffusion(*n, 1), dtype)


def cycle_of(backend, A, R, steps, reach=0.0):
    """The cycle after that many steps with a dense A, and the widths of its products."""
    dtype, widths = R.dtype, []
    A, R = backend.move(A), backend.move(R)
    cycle = Cycle(R, np.full(R.shape[1], max(reach, eps_of(dtype))), steps)
    for _ in range(steps):
        D = cycle.directions()
        if not D.shape[1] or not cycle.extended(A @ D):
            break
        widths.append(D.shape[1])
    return cycle, widths


# The relation and the residuals, by definition


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reach", [0.0, 0.3])
def test_a_cycle_keeps_the_block_arnoldi_relation(backend, dtype, reach):
    A, R = values((40, 40), dtype), values((40, 4), dtype, 1)
    R[:, 3] = R[:, 0] - R[:, 1]
    A += 20 * np.eye(40, dtype=dtype)
    cycle, widths = cycle_of(backend, A, R, 7, reach)
    assert widths[0] == 3 and (min(widths) < 3) == (reach > 0)  # a direction waits once residuals need it no more
    U, F = backend.fetch(cycle.U), cycle.Q[:, : cycle.multiplied] @ cycle.R
    close = 500 * eps_of(dtype)
    assert abs(U.conj().T @ U - np.eye(cycle.made)).max() <= close
    assert abs(A @ U @ cycle.C - U @ F).max() <= close * np.linalg.norm(A, 2)
    whole = np.hstack([cycle.C, cycle.T])
    assert abs(whole.conj().T @ whole - np.eye(cycle.made)).max() <= 1e-13
    rest = np.linalg.norm(R - A @ backend.fetch(cycle.combination()), axis=0)
    np.testing.assert_allclose(rest, cycle.norms(), rtol=100 * close)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_residuals_are_the_least_in_the_block_krylov_space(backend, dtype):
    A, R = values((30, 30), dtype), values((30, 3), dtype, 1)
    A /= np.linalg.norm(A, 2)
    cycle, widths = cycle_of(backend, A, R, 4)
    space = np.hstack([np.linalg.matrix_power(A, p) @ R for p in range(4)])
    least = np.linalg.norm(R - A @ space @ np.linalg.lstsq(A @ space, R, rcond=None)[0], axis=0)
    assert widths == [3] * 4
    np.testing.assert_allclose(cycle.norms(), least, rtol=1e-8)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_small_matrices_grow_in_their_place(dtype):
    A, R = values((40, 40), dtype), values((40, 3), dtype, 1)
    cycle, sizes = Cycle(R, np.full(3, eps_of(dtype)), 5), []
    places = [m.__array_interface__["data"][0] for m in (cycle.Q, cycle.C, cycle.R)]
    for _ in range(5):
        assert cycle.extended(A @ cycle.directions())
        assert [m.__array_interface__["data"][0] for m in (cycle.Q, cycle.C, cycle.R)] == places
        sizes.append((cycle.Q.shape[0], cycle.C.shape[1], cycle.R.shape[0]))
        assert not np.tril(cycle.R, -1).any()
    assert sizes == [(3 * j + 3, 3 * j, 3 * j) for j in range(1, 6)]


def test_a_residual_without_a_part_in_what_waits_goes_on(backend):
    shift = np.roll(np.eye(12), 1, axis=0)  # whose residuals stay as they are until the last step
    cycle, widths = cycle_of(backend, shift, np.eye(12)[:, :1].copy(), 12)
    assert widths == [1] * 12 and cycle.norms()[0] < 1e-12


def test_a_space_that_is_exhausted_has_no_more_directions(backend):
    A = np.diag([2.0, 3.0, 5.0, 7.0, 11.0, 13.0])
    R = np.zeros((6, 2))
    R[:2, 0], R[1:3, 1] = 1, [1, -1]
    cycle, widths = cycle_of(backend, A, R, 6)
    assert widths == [2, 1] and cycle.made == cycle.multiplied == 3
    assert np.linalg.norm(R - A @ backend.fetch(cycle.combination())) < 1e-14


@pytest.mark.parametrize("dtype", ["float64", "complex128", "float32"])
def test_an_orthonormalization_finds_small_singular_values(backend, dtype):
    eps = eps_of(dtype)
    sizes = np.array([1, 1e-1, eps**0.4, eps**0.6, eps**0.7])  # three have squares near rounding, or below
    left, right = (np.linalg.qr(values((m, 5), dtype, m))[0] for m in (60, 5))
    V = ((left * sizes) @ right.conj().T).astype(dtype)
    N, S = orthonormalized(backend.move(V), 100 * eps)
    N = backend.fetch(N)
    assert N.shape == (60, 5) and abs(N.conj().T @ N - np.eye(5)).max() < 50 * eps
    assert abs(N @ S - V).max() < 50 * eps
    N, S = orthonormalized(backend.move(V), 10 * sizes[3])
    assert N.shape == (60, 3) and abs(backend.fetch(N) @ S - V).max() < 30 * sizes[3]
    assert orthonormalized(backend.move(0 * V), 100 * eps)[0].shape == (60, 0)


# Limits


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("restart", [5, 40])
def test_a_block_of_one_is_gmres(backend, dtype, restart):
    A, b = backend.move(flow(dtype)), backend.move(values(72, dtype))
    rtol = 1e-4 if dtype in ("float32", "complex64") else 1e-9
    alone = krylov.gmres(A, b, rtol=rtol, restart=restart, criterion="residual")
    system = System.checked(A, b)
    target = np.array([rtol * float(backend.xp.linalg.norm(b))])
    x, iterations, histories = block_gmres.block_gmres([system], [backend.xp.zeros_like(b)], target, 400, restart)
    assert iterations[0] == alone.iterations
    np.testing.assert_allclose(histories[0], alone.history, rtol=1e-2 if rtol == 1e-4 else 1e-5)
    assert abs(backend.fetch(x)[:, 0] - backend.fetch(alone.x)).max() <= rtol * abs(backend.fetch(alone.x)).max()


def test_equal_columns_take_the_iterations_and_products_of_one(backend):
    A, b, seen = flow(), values((72, 1), "float64"), []
    one = krylov.gmres(A, b[:, 0].copy(), rtol=1e-8)
    A = spla.LinearOperator(A.shape, matvec=lambda v, S=A: (seen.append(1), S @ v)[1], dtype=np.float64)
    found = krylov.gmres(A, b * np.arange(1.0, 7.0), rtol=1e-8, block=True)
    assert found.all_converged and {s.iterations for s in found.columns} <= {one.iterations, one.iterations + 1}
    assert len(seen) <= found[0].iterations + 6 * (2 + found[0].iterations // 30)  # one direction, and true residuals


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("with_M", [False, True])
def test_columns_that_are_dependent_zero_or_solved_need_no_care(backend, dtype, with_M):
    A, X, B = flow(dtype), values((72, 6), dtype), values((72, 6), dtype, 1)
    B[:, 1], B[:, 3], B[:, 4] = 0, B[:, 2], B[:, 0] + 2 * B[:, 2]
    B[:, 5] = A @ X[:, 5]
    start = np.zeros_like(B)
    start[:, 1], start[:, 5] = 1, X[:, 5]
    A, B, start = (backend.move(v) for v in (A, B, start))
    rtol = 1e-4 if dtype == "complex64" else 1e-10
    M = ILU0().factor(A) if with_M else None
    found = krylov.gmres(A, B, start, M=M, rtol=rtol, restart=12, block=True)
    assert found.all_converged and found[1].iterations == found[5].iterations == 0
    assert not backend.fetch(found[1].x).any()
    for column in found.columns:
        assert column.history.size == column.iterations + 1 and column.method == "gmres"
    R = backend.fetch(B - A @ found.x)
    # R is in the dtype of B: in single precision its rounding is a hundredth of the tolerance
    assert np.all(np.linalg.norm(R, axis=0) <= 1.01 * rtol * np.linalg.norm(backend.fetch(B), axis=0))


# What it gains, and its endings


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_a_block_takes_fewer_iterations_where_cycles_stagnate(backend, dtype):
    A = in_dtype(gallery.poisson5(20, 21), dtype)
    B = values((420, 12), dtype)
    want = spla.spsolve(A.tocsc(), B)
    A, B = backend.move(A), backend.move(B)
    block, alone = (krylov.gmres(A, B, rtol=1e-9, restart=20, maxiter=3000, block=block) for block in (True, False))
    assert block.all_converged and block.iterations <= 0.5 * alone.iterations
    assert abs(backend.fetch(block.x) - want).max() < 1e-6 * abs(want).max()


def test_a_column_that_has_converged_is_multiplied_no_more(backend, monkeypatch):
    A, x, widths = gallery.poisson5(20, 20), values((400, 5), "float64"), []
    start = x.copy()
    start[:, 0] += values(400, "float64", 1)
    start[:, 1:] += 1e-6 * values((400, 4), "float64", 2)
    directions = Cycle.directions
    monkeypatch.setattr(Cycle, "directions", lambda self: (v := directions(self), widths.append(v.shape[1]))[0])
    A, x = backend.move(A), backend.move(x)
    found = krylov.gmres(A, A @ x, backend.move(start), rtol=1e-8, restart=200, criterion="residual", block=True)
    assert found.all_converged and widths[0] == 5 and widths[-1] == 1
    assert found[0].iterations > max(s.iterations for s in found.columns[1:])


@pytest.mark.parametrize("restart", [3, 11])
def test_maxiter_and_restart_hold_for_the_block(backend, monkeypatch, restart):
    steps, extended = [], Cycle.extended
    monkeypatch.setattr(Cycle, "extended", lambda self, W: steps.append(self) or extended(self, W))
    A, B = backend.move(gallery.poisson5(20, 20)), backend.move(values((400, 3), "float64"))
    found = krylov.gmres(A, B, rtol=1e-12, restart=restart, maxiter=25, block=True)
    assert found.status is Status.MAX_ITERATIONS and [s.iterations for s in found.columns] == [25] * 3
    assert len(steps) == 25 and len({id(cycle) for cycle in steps}) == -(-25 // restart)
    assert all(s.history.size == 26 and np.all(np.diff(s.history) <= 1e-12) for s in found.columns)
    assert krylov.gmres(A, B, maxiter=0, block=True).iterations == 0


def test_nothing_but_a_true_residual_counts_as_converged(backend):
    A = flow().toarray()
    A[:, 7] = A[:, 8]  # singular
    A, B = backend.move(sp.csr_matrix(A)), backend.move(values((72, 3), "float64"))
    found = krylov.gmres(A, B, rtol=1e-8, maxiter=300, block=True)
    x, B_host = backend.fetch(found.x), backend.fetch(B)
    R = np.linalg.norm(backend.fetch(B - A @ found.x), axis=0)
    assert np.isfinite(x).all()  # which grows along the null vector, so that rounding shows in R
    for column, b, size, own in zip(found.columns, B_host.T, R, x.T, strict=True):
        assert not column.converged and column.residual_norm <= np.linalg.norm(b)
        assert size == pytest.approx(column.residual_norm, abs=1e-15 * np.linalg.norm(own))
    consistent = krylov.gmres(A, A @ B, rtol=1e-8, block=True)
    assert consistent.all_converged


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_products_that_are_not_finite_end_the_block(broken):
    calls = []

    def product(v):
        calls.append(1)
        return v * (broken if len(calls) > 8 else 2.0 + np.arange(v.size))

    A = spla.LinearOperator((30, 30), matvec=product, dtype=np.float64)
    found = krylov.gmres(A, values((30, 3), "float64"), rtol=1e-10, block=True)
    assert not found.converged and np.isfinite(found.x).all() and found.status is Status.NOT_FINITE


def test_a_tolerance_of_zero_is_told_as_it_is(backend):
    A, B = backend.move(flow()), backend.move(values((72, 3), "float64"))
    found = krylov.gmres(A, B, rtol=0.0, maxiter=200, block=True)
    assert not any(s.status is Status.CONVERGED for s in found.columns)
    assert max(s.residual_norm for s in found.columns) < 1e-12 * np.linalg.norm(backend.fetch(B))


def test_a_block_meets_the_criterion_of_rows(backend):
    A, B = backend.move(flow()), backend.move(values((72, 3), "float64"))
    found = krylov.gmres(A, B, rtol=1e-10, criterion="backward", block=True)
    assert found.all_converged and all(0 < s.row_residual <= 1e-10 for s in found.columns)


def test_a_block_relative_to_the_first_residual_is_done_at_a_larger_one(backend):
    A, B = backend.move(flow()), backend.move(values((72, 3), "float64"))
    start, own = 1000 * B, backend.fetch(B)
    norms, first = np.linalg.norm(own, axis=0), np.linalg.norm(own - backend.fetch(A @ start), axis=0)
    looser, plain = (krylov.gmres(A, B, start, rtol=1e-3, relative_to=what, block=True) for what in ("initial", "b"))
    assert looser.all_converged and plain.all_converged
    left = [np.linalg.norm(own - backend.fetch(A @ found.x), axis=0) for found in (looser, plain)]
    assert np.all(left[0] <= 1.01e-3 * first) and np.any(left[0] > 1e-3 * norms)
    assert np.all(left[1] <= 1.01e-3 * norms) and looser.iterations < plain.iterations


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": "left"}, "block=True has M on the right, and no side='left'"),
        ({"side": "up"}, "side='up'"),
        ({"orthogonalization": "mgs2"}, "orthogonalization='mgs2'"),
        ({"restart": 0}, "restart=0"),
        ({"recycle": RecycledSpace(2)}, "block=True has no recycle"),
        ({"callback": print}, "block=True iterates on all columns as one and has no callback"),
        ({"watch": print}, "block=True iterates on all columns as one and has no watch"),
        ({"callback_type": "x"}, "block=True is not for callback_type"),
        ({"nullspace": "constant"}, "block=True is not for nullspace"),
        ({"block": 2}, "block=2"),
    ],
)
def test_what_a_block_has_not_is_refused(options, message):
    with refused(ParameterError, match=message):
        krylov.gmres(flow(), values((72, 3), "float64"), **({"block": True} | options))


@pytest.mark.parametrize(("size", "k"), [(1e200, 3), (1.0, 1)])
@pytest.mark.parametrize(
    ("options", "message"), [({"side": "left"}, "no side='left'"), ({"orthogonalization": "mgs2"}, "'mgs2'")]
)
def test_columns_that_make_no_block_are_refused_the_same(size, k, options, message):
    B = values((72, k), "float64") * size
    with refused(ParameterError, match=message):
        krylov.gmres(flow(), B, block=True, **options)
    assert krylov.gmres(flow(), B, block=True, orthogonalization="cgs2").converged


@settings(deadline=None)
@given(st.data())
def test_any_shape_and_rank(data):
    n, k = data.draw(st.integers(1, 12)), data.draw(st.integers(2, 6))
    rank = data.draw(st.integers(0, min(n, k)))
    dtype = data.draw(st.sampled_from(DTYPES))
    seed = data.draw(st.integers(0, 99))
    A = values((n, n), dtype, seed) * 0.3 + np.diag(np.linspace(2, 5, n)).astype(dtype)
    B = values((n, rank), dtype, seed + 1) @ values((rank, k), dtype, seed + 2)
    rtol = 1e-4 if dtype in ("float32", "complex64") else 1e-9
    restart = data.draw(st.integers(1, 14))
    found = krylov.gmres(A, B.astype(dtype), rtol=rtol, restart=restart, maxiter=500, block=True)
    assert np.isfinite(found.x).all()
    for column, b in zip(found.columns, B.T, strict=True):
        size = np.linalg.norm(b - A @ column.x)
        # the second term is the rounding of b - A x as it is formed here
        assert not column.converged or size <= 1.01 * rtol * np.linalg.norm(b) + 10 * eps_of(dtype)
        assert column.converged or restart < n


@pytest.mark.parametrize("solve", [krylov.cg, krylov.gmres])
@pytest.mark.parametrize(
    ("dtype", "first", "place", "start"),
    [("float64", 1.0, (1, 1), 1e158), ("float32", 1.0, (1, 1), 1e25), ("float64", 1e300, (0, 1), 1e10)],
)
def test_a_residual_whose_norm_overflows_leaves_the_block(backend, solve, dtype, first, place, start):
    diagonal = np.linspace(1, 2, 100)
    diagonal[0] = first
    A = backend.move(sp.diags(diagonal).tocsr().astype(dtype))
    B, X = values((100, 3), dtype), np.zeros((100, 3), dtype)
    X[place], options = start, {"rtol": 1e-5, "criterion": "residual"}
    found = solve(A, backend.move(B), backend.move(X), block=True, **options)
    for c, column in enumerate(found.columns):
        alone = solve(A, backend.move(B[:, c].copy()), backend.move(X[:, c].copy()), **options)
        assert column.converged or column.status is alone.status
        assert np.isfinite(backend.fetch(column.x)).all()
        assert column.converged or c == 1 or first > 1
