"""ICNE: incomplete Cholesky of the normal equations, by its limits, its bounds of memory, and iterations it saves."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from checks import PATTERNS, assert_close, refused, values
from hypothesis import given
from hypothesis import strategies as st

import finelu as fl
from finelu import ICNE

COMPLETE = {"drop_tol": 0.0, "fill": float("inf"), "shift": 0.0}


def random_problem(m=120, n=40, dtype=np.float64, seed=1):
    A = sp.random(m, n, density=0.1, random_state=seed, format="csr") + sp.eye(m, n)
    A = sp.csr_matrix(A @ sp.diags(np.logspace(0, 3, n))).astype(dtype)
    if A.dtype.kind == "c":
        A.data *= np.exp(1j * np.arange(A.nnz))
    return A


def fixed_effects(m=20_000, workers=2000, firms=200, move=0.2, seed=0):
    """Two ones a row, of a worker and of a firm; most moves are to a firm nearby."""
    rng = np.random.default_rng(seed)
    moves = (rng.random((workers, m // workers)) < move) * rng.integers(-3, 4, (workers, m // workers))
    firm = (np.arange(workers) * firms // workers)[:, None] + np.cumsum(moves, axis=1)
    columns = np.stack([np.repeat(np.arange(workers), m // workers), workers + np.clip(firm, 0, firms - 1).ravel()], 1)
    return sp.csr_matrix((np.ones(2 * m), columns.ravel(), np.arange(0, 2 * m + 1, 2)), shape=(m, workers + firms))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128], ids=lambda d: d.__name__)
@pytest.mark.parametrize("ordering", ["degree", "amd", None])
@pytest.mark.parametrize("damp", [0.0, 3.0])
def test_without_dropping_M_is_the_inverse_of_the_normal_equations(backend, dtype, ordering, damp):
    A = random_problem(dtype=dtype)
    F = ICNE(**COMPLETE, ordering=ordering, damp=damp).factor(backend.move(A))
    normal = (A.conj().T @ A).toarray() + damp**2 * np.eye(40)
    v = values(40, dtype)
    scale = np.sqrt(np.diag(normal).real)
    found = normal @ backend.fetch(F.solve(backend.move(v))) / scale
    assert_close(found, (v / scale).astype(dtype), 1e4)
    assert F.shape == (40, 40) and F.dtype == dtype and F.report.left_out == F.report.dense_rows == 0
    assert_close(backend.fetch(F.solve(backend.move(v), "H")), backend.fetch(F.solve(backend.move(v))), 0)


def test_fixed_effects_take_a_third_of_the_iterations(backend):
    A = fixed_effects()
    b = A @ values(A.shape[1], float) + values(A.shape[0], float, 1)
    F = ICNE().factor(backend.move(A))
    plain, found = (fl.lsmr(backend.move(A), backend.move(b), atol=1e-8, btol=1e-8, conlim=0, M=M) for M in (None, F))
    assert plain.converged and found.converged and 3 * found.iterations <= plain.iterations
    fitted = A @ backend.fetch(plain.x)
    assert np.linalg.norm(A @ backend.fetch(found.x) - fitted) <= 1e-5 * np.linalg.norm(fitted)


def test_each_parameter_has_an_effect():
    A = fixed_effects(4000, 400, 40)
    usual = ICNE().factor(A)
    assert ICNE(drop_tol=0.1).factor(A).nnz < usual.nnz < ICNE(drop_tol=0.0).factor(A).nnz
    few = ICNE(fill=0.1).factor(A)
    assert few.nnz <= 0.1 * A.nnz + A.shape[1] < usual.nnz and few.report.left_out > 0
    firms_first = ICNE(fill=0.2, drop_tol=0.0, ordering=None).factor(A[:, ::-1])  # L alone has too many entries
    assert firms_first.report.left_out == 0 and firms_first.report.drop_tol > 0
    assert ICNE(shift=0.5).factor(A).report.shift == 0.5
    assert np.array_equal(ICNE(ordering=None).factor(A).permutation, np.arange(A.shape[1]))
    assert not np.array_equal(ICNE(ordering="amd").factor(A).permutation, usual.permutation)
    v = values(A.shape[1], float)
    assert np.linalg.norm(ICNE(damp=100.0).factor(A) @ v) < 1e-3 * np.linalg.norm(usual @ v)
    assert usual.report.triangular != ICNE(triangular="jacobi", sweeps=3).factor(A).report.triangular
    assert (
        ICNE(triangular="jacobi", sweeps=3).factor(A) @ v != ICNE(triangular="jacobi", sweeps=1).factor(A) @ v
    ).any()


def test_columns_that_depend_on_others_have_factors():
    A = random_problem(300, 100)
    A = sp.csr_matrix(sp.hstack([A, A[:, :10]]))
    F = ICNE().factor(A)
    b = values(300, float)
    found = fl.lsmr(A, b, M=F, atol=1e-10, btol=1e-10)
    assert found.converged and F.report.shift > 0
    assert_close(A @ found.x, A @ np.linalg.lstsq(A.toarray(), b, rcond=None)[0], 1e7)


def test_a_bad_pivot_raises_the_shift():
    rng = np.random.default_rng(3)
    A = sp.csr_matrix(rng.standard_normal((6, 30)))
    F = ICNE(drop_tol=0.3, shift=0.0).factor(A)  # of an indefinite matrix, since so much is dropped
    assert F.report.shift >= 1e-3
    v = values(30, float)
    assert v @ (F @ v) > 0


def test_dense_rows_are_left_out():
    n = 400
    grid = sp.vstack([sp.eye(n), sp.diags([1.0, -1.0], [0, 1], shape=(n, n)), np.ones((1, n))]).tocsr()
    F = ICNE(drop_tol=0.0).factor(grid)
    assert F.report.dense_rows == 1 and F.nnz <= 3 * n
    b = values(2 * n + 1, float)
    found = fl.lsmr(grid, b, M=F, atol=1e-10, btol=1e-10)
    assert found.converged and found.iterations <= 8
    assert_close(found.x, np.linalg.lstsq(grid.toarray(), b, rcond=None)[0], 1e7)


def test_columns_without_entries_keep_their_first_value():
    A = random_problem(60, 20).tolil()
    A[:, 7] = 0
    A, x0 = sp.csr_matrix(A), values(20, float)
    F = ICNE().factor(A)
    assert F.report.warning == "1 column of A is 0"
    assert fl.lsmr(A, values(60, float), M=F, x0=x0).x[7] == x0[7]


def test_the_normal_equations_are_formed_by_parts_with_the_largest_entries(monkeypatch):
    from finelu.preconditioners import icne

    A = fixed_effects(4000, 400, 40)
    whole = icne.normal_equations(A, 0.0, np.inf)
    monkeypatch.setattr(icne, "AT_ONCE", 500)
    parts = icne.normal_equations(A, 0.0, np.inf)
    assert_close(parts.matrix.data, whole.matrix.data, 0)
    some = icne.normal_equations(A, 0.0, 800)
    lower = sp.tril(some.matrix.tosparse(), -1)
    assert 0 < lower.nnz <= 800 - 440 and some.left_out == sp.tril(whole.matrix.tosparse(), -1).nnz - lower.nnz
    everything = np.sort(abs(sp.tril(whole.matrix.tosparse(), -1).data))[::-1]
    assert abs(lower.data).min() >= everything[lower.nnz - 1]


@pytest.mark.parametrize("size", [2.0**-600, 2.0**600])
def test_numbers_whose_squares_over_or_underflow(size):
    A, v = random_problem(), values(40, float)
    for damp in (0.0, 3.0):
        usual, F = ICNE(damp=damp).factor(A), ICNE(damp=damp * size).factor(A * size)
        assert F.nnz == usual.nnz and F.report.warning is None
        assert_close(F @ (v * size) * size, usual @ v, 0)


def test_of_equal_entries_as_many_are_kept_as_have_room():
    n = 40  # edges of a torus: all entries of A^H A off the diagonal are equal
    at = np.arange(n * n).reshape(n, n)
    edges = np.concatenate([np.stack([at, np.roll(at, -1, axis)], axis=2).reshape(-1, 2) for axis in (0, 1)])
    A = sp.csr_matrix((np.tile([1.0, -1.0], 2 * n * n), edges.ravel(), np.arange(0, 4 * n * n + 1, 2)))
    from finelu.preconditioners.icne import normal_equations

    some = normal_equations(A, 0.0, n * n + 2560)
    assert sp.tril(some.matrix.tosparse(), -1).nnz == 1280 and some.left_out == 3200 - 1280


@pytest.mark.parametrize("ordering", ["degree", "amd"])
def test_an_update_factors_another_matrix_in_the_order_of_the_first(backend, ordering):
    A, v = random_problem(), values(40, float)
    F = ICNE(**COMPLETE, ordering=ordering).factor(backend.move(A))
    order = backend.fetch(F._arranged.rows)
    for other in (sp.csr_matrix(sp.diags(np.linspace(1, 2, 120)) @ A), random_problem(m=90, seed=2)):
        assert F.update(backend.move(other)) is F
        assert (backend.fetch(F._arranged.rows) == order).all()
        x = np.linalg.solve((other.T @ other).toarray(), v)
        assert_close(backend.fetch(F @ backend.move(v)), x, 1e6)
    assert F.updates == 2 and F.update(np.zeros(40), np.zeros(40)) is F and F.updates == 2
    with refused(fl.FineluError, match="NaN or Inf"):
        F.update(backend.move(A * np.nan))
    assert_close(backend.fetch(F @ backend.move(v)), x, 1e6)  # the factors before stay


def test_factors_are_pickled_and_print_their_recipe():
    F = ICNE(drop_tol=0.01).factor(random_problem())
    again, v = pickle.loads(pickle.dumps(F)), values(40, float)
    assert_close(again @ v, F @ v, 0)
    assert "ICNE(drop_tol=0.01)" in repr(F)


@PATTERNS
@given(st.integers(1, 12), st.integers(1, 12), st.floats(0, 1), st.integers(0, 2**31))
def test_M_is_positive_definite_for_any_pattern(m, n, density, seed):
    rng = np.random.default_rng(seed)
    A = sp.csr_matrix(rng.integers(-3, 4, (m, n)) * (rng.random((m, n)) < density), dtype=float)
    F = ICNE(drop_tol=0.1).factor(A)
    M = F @ np.eye(n)
    assert np.linalg.eigvalsh((M + M.T) / 2).min() > 0


A = random_problem()
WRONG = {
    "a negative drop_tol": (lambda: ICNE(drop_tol=-1).factor(A), r"ICNE\(drop_tol=-1\): drop_tol must be"),
    "no fill": (lambda: ICNE(fill=0).factor(A), "fill must be a number > 0"),
    "a negative shift": (lambda: ICNE(shift=-1).factor(A), "shift must be"),
    "a negative damp": (lambda: ICNE(damp=-1).factor(A), "damp must be"),
    "another ordering": (lambda: ICNE(ordering="adm").factor(A), "Did you mean 'amd'"),
    "an operator": (lambda: ICNE().factor(sp.linalg.aslinearoperator(A)), "entries are not known.*lsmr"),
    "NaN": (lambda: ICNE().factor(A * np.nan), "NaN or Inf in row 0"),
    "an update with other columns": (lambda: ICNE().factor(A).update(A.T), "given .* columns, but the factors have"),
    "an update with complex values": (lambda: ICNE().factor(A).update(A * 1j), "complex128 values, but the factors"),
    "a recipe of solve": (
        lambda: fl.solve(A.T @ A, np.ones(40), recipe=ICNE()),
        r"for least squares: finelu.lsmr\(A, b, M=",
    ),
    "its class": (lambda: fl.Sequence(recipe=ICNE), "for least squares"),
    "a recipe as M": (lambda: fl.lsmr(A, np.ones(120), M=ICNE()), r"M=finelu\.ICNE\(\)\.factor\(A\)|for least squares"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named_in_one_line(what):
    call, match = WRONG[what]
    with refused(fl.FineluError, match=match):
        call()
