"""Krylov methods with several right-hand sides: each column is solved as if alone, and ends by itself."""

from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from checks import DTYPES, assert_close, in_dtype, refused, values

from finelu import IC0, ILU0, Jacobi, MatrixError, ParameterError, Schwarz, gallery, krylov
from finelu.errors import NotConverged
from finelu.krylov import METHODS, loop, rows
from finelu.krylov.bicg import FirstCorrection
from finelu.krylov.columns import Columns
from finelu.krylov.loop import Loop
from finelu.krylov.system import System
from finelu.result import Status

METHOD = pytest.mark.parametrize("name", [*METHODS, "richardson"])


def system(dtype="float64"):
    A = in_dtype(gallery.poisson5(9, 8), dtype)
    B = values((72, 5), dtype)
    B[:, 1] = 0
    B[:, 3] = B[:, 2]
    return A, B


def assert_as_alone(backend, found, alone):
    for one, other in zip(found.columns, alone, strict=True):
        assert one.status is other.status and one.method == other.method
        if backend.name == "cpu":
            assert one.iterations == other.iterations and one.residual_norm == other.residual_norm
            np.testing.assert_array_equal(one.history, other.history)
            np.testing.assert_array_equal(one.x, other.x)
        else:
            assert abs(one.iterations - other.iterations) <= 1


@METHOD
@pytest.mark.parametrize("dtype", DTYPES)
def test_columns_are_solved_as_if_alone(backend, name, dtype):
    method, (A, B) = getattr(krylov, name), system(dtype)
    A, B = backend.move(A), backend.move(B)
    recipe = IC0() if name == "minres" else ILU0()
    for M in (recipe.factor(A), None) if name != "richardson" else (recipe.factor(A),):
        found = method(A, B, M=M, rtol=1e-4, maxiter=60)
        alone = [method(A, backend.xp.ascontiguousarray(B[:, c]), M=M, rtol=1e-4, maxiter=60) for c in range(5)]
        assert_as_alone(backend, found, alone)
        assert found.x.shape == B.shape and len(found) == 5 and found[2] is found.columns[2]
        assert found.all_converged == all(s.converged for s in alone)
        assert found.iterations == sum(s.iterations for s in found.columns)


@pytest.mark.parametrize("options", [{"restart": 4}, {"restart": 7, "orthogonalization": "cgs2"}, {"side": "left"}])
def test_cycles_of_gmres_that_end_at_different_times(backend, options):
    A, B = backend.move(gallery.convection_diffusion(8, 7, 1)), backend.move(values((56, 6), "float64"))
    B[:, 0] = A @ backend.xp.ones(56)
    B[:, 4] *= 1e-3
    found = krylov.gmres(A, B, rtol=1e-6, atol=1e-5, **options)
    alone = [krylov.gmres(A, backend.xp.ascontiguousarray(B[:, c]), rtol=1e-6, atol=1e-5, **options) for c in range(6)]
    assert_as_alone(backend, found, alone)
    assert found.all_converged and len({s.iterations for s in alone}) > 1


@pytest.mark.parametrize("name", ["cg", "bicgstab", "gmres"])
def test_a_column_that_is_done_takes_no_part_in_products(backend, monkeypatch, name):
    monkeypatch.setattr(rows, "FEWEST", 4)
    A, B = system()
    d = A.diagonal()
    D = backend.move(sp.diags(d).tocsr())  # with which the columns need different numbers of iterations
    F = ILU0().factor(D)
    seen = []
    apply = F._apply
    F._apply = lambda R, trans, *out: (seen.append(1 if R.ndim == 1 else R.shape[1]), apply(R, trans, *out))[1]
    B = backend.move(np.stack([np.eye(72)[0], *(values((3, 72), "float64"))], axis=1))
    found = getattr(krylov, name)(backend.move(A), B, M=F, rtol=1e-9)
    assert found.all_converged
    products = 2 if name == "bicgstab" else 1
    assert max(seen) == 4 and sum(seen) < products * 4 * (max(s.iterations for s in found.columns) + 4)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("name", ["cg", "bicgstab"])
def test_columns_in_rows_have_the_bits_of_one(threads, monkeypatch, name, dtype):
    monkeypatch.setattr(loop, "ROOM", 4)  # histories grow
    monkeypatch.setattr(rows, "ROOM", 4)
    method, A = getattr(krylov, name), in_dtype(gallery.poisson5(70, 66), dtype)  # more rows than a sum has at once
    B = values((A.shape[0], 11), dtype)
    B[:, 3] = A @ np.ones(A.shape[0])
    B[:, 5] = 0
    B[:, 7] *= 1e-3  # and is at its tolerance far sooner
    made, guess = [], values((A.shape[0], 11), dtype, 5)
    suits = rows.ColumnsInRows.suits
    monkeypatch.setattr(rows.ColumnsInRows, "suits", staticmethod(lambda loops: made.append(suits(loops)) or made[-1]))
    rtol = 1e-3 if dtype in ("float32", "complex64") else 1e-7
    schwarz = Schwarz(parts=20).factor(A)  # whose coarse space holds the solution of column 3
    for count, M, x0 in ((1, ILU0().factor(A), guess), (2, schwarz, guess), (2, schwarz, None), (2, None, guess)):
        threads(count)
        limits = {"M": M, "rtol": rtol, "atol": rtol * np.linalg.norm(B[:, 7]) * 50, "maxiter": 40}
        found = method(A, B, x0, **limits)
        alone = [method(A, B[:, c].copy(), None if x0 is None else x0[:, c].copy(), **limits) for c in range(11)]
        for one, other in zip(found.columns, alone, strict=True):
            assert one.status is other.status and one.iterations == other.iterations
            np.testing.assert_array_equal(one.history, other.history)
            np.testing.assert_array_equal(one.x, other.x)
    assert made == [True] * 4


def symmetric_case(name, dtype):
    """(A, M): for minres indefinite and Hermitian, for sqmr indefinite too, and complex symmetric if complex."""
    A = in_dtype(gallery.poisson5(70, 66), dtype)  # more rows than a sum has at once
    if name == "richardson":
        return A + 2 * sp.eye(A.shape[0], dtype=dtype, format="csr"), ILU0()
    shift = np.linspace(-0.4, 1.5, A.shape[0]) + (0.3j if name == "sqmr" and A.dtype.kind == "c" else 0)
    if name == "sqmr" and A.dtype.kind == "c":
        A = A.real
    return (A + sp.diags(shift)).tocsr().astype(dtype), Jacobi() if name == "minres" else ILU0()


@pytest.mark.parametrize("in_rows", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["minres", "sqmr", "richardson"])
def test_short_recurrences_together_have_the_bits_of_one(monkeypatch, name, dtype, in_rows):
    method, (A, recipe), n = getattr(krylov, name), symmetric_case(name, dtype), 70 * 66
    B, guess = values((n, 9), dtype), values((n, 9), dtype, 5)
    B[:, 3] = A @ guess[:, 3]  # solved at its guess
    B[:, 5] = 0
    B[:, 7] *= 1e-3  # and is at its tolerance far sooner
    made, kind = [], rows.ColumnsInRows if in_rows else Columns
    if not in_rows:
        monkeypatch.setattr(rows.ColumnsInRows, "alone", staticmethod(lambda loop: False))
    begin = kind.__init__
    monkeypatch.setattr(kind, "__init__", lambda self, loops: made.append(len(loops)) or begin(self, loops))
    rtol = 1e-3 if dtype in ("float32", "complex64") else 1e-7
    for M, x0 in ((recipe.factor(A), guess), (recipe.factor(A), None), (None, guess)):
        if M is None and name == "richardson":
            continue
        limits = {"M": M, "rtol": rtol, "atol": rtol * np.linalg.norm(B[:, 7]) * 50, "maxiter": 40}
        found = method(A, B, x0, **limits)
        alone = [method(A, B[:, c].copy(), None if x0 is None else x0[:, c].copy(), **limits) for c in range(9)]
        assert_as_alone(SimpleNamespace(name="cpu"), found, alone)
        assert len({s.iterations for s in alone}) > 1
    assert made == [9] * (2 if name == "richardson" else 3)


@pytest.mark.parametrize("in_rows", [True, False])
@pytest.mark.parametrize("name", ["minres", "sqmr"])
def test_columns_fail_and_are_corrected_each_by_itself(monkeypatch, name, in_rows):
    if not in_rows:
        monkeypatch.setattr(rows.ColumnsInRows, "alone", staticmethod(lambda loop: False))
    method, A = getattr(krylov, name), gallery.poisson5(9, 8).tolil()
    A[0, 1] = 5.0  # not symmetric, which shows in columns that reach row 0
    A, B = A.tocsr(), values((72, 9), "float64")
    B[:30, 4:] = 0
    alone = [method(A, B[:, c].copy(), maxiter=30) for c in range(9)]
    assert {s.status for s in alone} > {Status.NOT_SYMMETRIC}
    assert_as_alone(SimpleNamespace(name="cpu"), method(A, B, maxiter=30), alone)
    D = sp.diags([1.0, -1.0] * 36).tocsr()
    F = Jacobi().factor(D)  # with which r^T M r = 0 for two equal numbers
    A, B = gallery.poisson5(9, 8), values((72, 9), "float64")
    B[:, 2], B[:, 6] = 0, 1
    B[:2, 2] = 1
    corrected, step = [], FirstCorrection.__call__
    monkeypatch.setattr(FirstCorrection, "__call__", lambda *args: corrected.append(step(*args)) or corrected[-1])
    alone = [method(A, B[:, c].copy(), M=F, maxiter=30) for c in range(9)]
    if name == "sqmr":  # whose columns 2 and 6 begin with a step x += M r
        assert sum(corrected) == 2 and all(s.converged for s in alone)
    else:
        assert {s.status for s in alone} == {Status.INDEFINITE_PRECONDITIONER}
    assert_as_alone(SimpleNamespace(name="cpu"), method(A, B, M=F, maxiter=30), alone)
    assert sum(corrected) == (4 if name == "sqmr" else 0)


@pytest.mark.parametrize("in_rows", [True, False])
def test_a_matrix_known_by_its_products_is_tested_in_each_column(monkeypatch, in_rows):
    if not in_rows:
        monkeypatch.setattr(rows.ColumnsInRows, "alone", staticmethod(lambda loop: False))
    S = gallery.poisson5(9, 8) * 1e200
    A, B = spla.aslinearoperator(S), values((72, 9), "float64")
    B[:, 4] = S @ np.ones(72) / 1e200
    M = IC0().factor(S)
    found = krylov.minres(A, B, M=M, rtol=1e-8)
    assert_as_alone(SimpleNamespace(name="cpu"), found, [krylov.minres(A, b.copy(), M=M, rtol=1e-8) for b in B.T])
    assert found.all_converged
    S = sp.block_diag([gallery.poisson5(9, 7), sp.csr_matrix(np.arange(1.0, 82).reshape(9, 9))]).tocsr()
    A, M, B = spla.aslinearoperator(S), Jacobi().factor(S), values((72, 9), "float64")
    B[63:, [0, 1, 2, 4, 5, 6, 7, 8]] = 0  # only column 3 reaches the rows that are not symmetric
    found = krylov.minres(A, B, M=M, rtol=1e-8)
    assert_as_alone(SimpleNamespace(name="cpu"), found, [krylov.minres(A, b.copy(), M=M, rtol=1e-8) for b in B.T])
    assert [s.status is Status.NOT_SYMMETRIC for s in found.columns] == [c == 3 for c in range(9)]


def test_a_stationary_column_that_has_ended_costs_no_product(monkeypatch):
    A = gallery.poisson5(9, 8) + 3 * sp.eye(72)
    F, seen = ILU0().factor(A.tocsr()), []
    apply = F._apply
    F._apply = lambda R, trans, *out: (seen.append(1 if R.ndim == 1 else R.shape[1]), apply(R, trans, *out))[1]
    x = values((72, 9), "float64")
    start = x + 10.0 ** -np.arange(9.0) * values((72, 9), "float64", 1)
    found = krylov.richardson(A.tocsr(), A @ x, start, M=F, rtol=1e-10)
    most = max(s.iterations for s in found.columns)
    assert found.all_converged and seen[0] == 9 and seen[-1] < 5 and sum(seen) < 0.8 * 9 * most


@pytest.mark.parametrize("recipe", [ILU0(), Schwarz(parts=20)], ids=str)
def test_products_of_columns_in_rows_use_the_memory_of_those_before(monkeypatch, recipe):
    A, B, arrays = gallery.poisson5(30, 31), values((930, 9), "float64"), []
    room = rows.ColumnsInRows.room
    monkeypatch.setattr(rows.ColumnsInRows, "room", lambda self: arrays.append((v := room(self)).array) or v)
    found = krylov.cg(A, B, M=recipe.factor(A), rtol=1e-6)
    widths = {array.shape[1] for array in arrays}
    assert found.all_converged and len(arrays) > 20 and len({id(array) for array in arrays}) <= 3 * len(widths)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("name", ["cg", "bicgstab"])
def test_columns_with_a_complex_jacobi_are_solved_as_if_alone(name, dtype):
    n, rng = 400, np.random.default_rng(0)
    off = rng.uniform(0, 1, n - 1) * (1 if name == "cg" else 1 + 0.4j)
    diagonal = 3 + rng.uniform(0, 1, n) + (0 if name == "cg" else 1j * rng.uniform(0, 1, n))
    A = sp.diags([off.conj(), diagonal, off], [-1, 0, 1]).tocsr().astype(dtype)
    M, B, method = Jacobi().factor(A), values((n, 9), dtype), getattr(krylov, name)
    found = method(A, B, M=M, rtol=1e-5)
    alone = [method(A, B[:, c].copy(), M=M, rtol=1e-5) for c in range(9)]
    assert_as_alone(SimpleNamespace(name="cpu"), found, alone)
    assert found.all_converged


@pytest.mark.parametrize("M", [IC0, Schwarz])
def test_few_columns_are_the_single_ones(M):
    A = gallery.poisson5(30, 31)
    F, B = M().factor(A), values((930, 2), "float64")
    for c, found in enumerate(krylov.cg(A, B, M=F, rtol=1e-9).columns):
        np.testing.assert_array_equal(found.x, krylov.cg(A, B[:, c].copy(), M=F, rtol=1e-9).x)


@pytest.mark.parametrize("backend", ["cuda"], indirect=True)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("name", ["cg", "bicgstab"])
@pytest.mark.parametrize("k", [8, 11, 40])  # more than a recorded step has branches
def test_columns_with_subdomains_on_a_gpu_are_solved_together_as_if_alone(backend, name, dtype, k):
    A = gallery.poisson5(40, 41) if name == "cg" else gallery.convection_diffusion(40, 41, 1, peclet=3)
    A, method = backend.move(in_dtype(A, dtype)), getattr(krylov, name)
    B = values((1640, k), dtype)
    B[:, 3], B[:, 5] = 0, 1e-3 * B[:, 5]
    F, seen = Schwarz(parts=20).factor(A), []
    apply = F._apply_one
    F._apply_one = lambda r, trans, x: (seen.append(r.shape[1:]), apply(r, trans, x))[1]
    found = method(A, backend.move(B), M=F, rtol=1e-8)
    assert found.all_converged and seen[0] == (k - 1,)  # a column of zeros takes part in no step
    for c, one in enumerate(found.columns):
        alone = method(A, backend.move(B[:, c].copy()), M=F, rtol=1e-8)
        assert abs(one.iterations - alone.iterations) <= 2 + alone.iterations // 10
        rest = B[:, c] - backend.fetch(A @ one.x)
        assert np.linalg.norm(rest) <= 1.01e-8 * np.linalg.norm(B[:, c])


def test_a_watch_sees_the_norms_of_columns_in_rows_and_ends_one(monkeypatch):
    monkeypatch.setattr(rows, "FEWEST", 4)
    A, B, seen = gallery.poisson5(9, 8), values((72, 4), "float64"), []

    def watch(iteration, norm):
        seen.append(iteration)
        return iteration == 3 and seen.count(3) == 2

    found = krylov.cg(A, B, rtol=1e-8, watch=watch)
    assert [s.status for s in found.columns].count(Status.INTERRUPTED) == 1
    assert seen.count(2) == 4 and max(s.iterations for s in found.columns) == max(seen)


@pytest.mark.parametrize("name", ["cg", "minres", "sqmr", "bicgstab", "richardson"])
def test_one_of_many_columns_in_rows_is_interrupted_where_it_would_be_alone(name):
    A, B, seen = gallery.poisson5(9, 8), values((72, 9), "float64"), []
    M, method = IC0().factor(A), getattr(krylov, name)

    def watch(iteration, norm):
        seen.append(iteration)
        return iteration == 3 and seen.count(3) == 2

    found = method(A, B, M=M, rtol=1e-8, watch=watch)
    alone = method(A, B[:, 1].copy(), M=M, rtol=1e-8, watch=lambda iteration, norm: iteration == 3)
    assert [s.status for s in found.columns].count(Status.INTERRUPTED) == 1
    assert found[1].iterations == alone.iterations == 3
    np.testing.assert_array_equal(found[1].x, alone.x)


def test_a_recorded_step_is_dropped_once_the_factors_are_updated(monkeypatch):
    A, B = system()
    F, seen = IC0().factor(A), []

    class Repeated:
        def __init__(self, step):
            self.step = step

        def __call__(self):
            seen.append("step")

        def forget(self):
            seen.append("forgotten")

    limits = {"rtol": 1e-8, "atol": 0.0, "maxiter": 9, "callback": None, "watch": None}
    columns = Columns([Loop(METHODS["cg"], one, **limits) for one in System.of_columns(A, B, M=F)])
    for operator in {columns.A.shared, columns.M.shared}:
        monkeypatch.setattr(operator, "capturable", True)
    columns.loops[0].kernels = SimpleNamespace(recording=SimpleNamespace(Repeated=Repeated))
    launch = columns.repeated(lambda: None)
    launch()
    launch()
    F.update(2 * A)
    launch()
    assert seen == ["forgotten", "step", "step", "forgotten", "step"]


def test_guesses_and_callbacks_are_those_of_the_columns(backend):
    A, B = system()
    A, x = backend.move(A), backend.move(values((72, 5), "float64"))
    B = A @ x
    assert krylov.cg(A, B, x).iterations == 0
    found = krylov.cg(A, B, x[:, 2])
    assert found[2].iterations == 0 < found[0].iterations
    seen = []
    krylov.cg(A, B, x0="Mb", M=IC0().factor(A), callback=lambda v: seen.append(v.shape), maxiter=2)
    assert seen == [(72,)] * 10


@pytest.mark.parametrize("criterion", ["residual", "backward"])
def test_each_column_meets_the_criterion(backend, criterion):
    A, B = system()
    A, B = backend.move(A), backend.move(B)
    found = krylov.gmres(A, B, M=ILU0().factor(A), rtol=1e-10, criterion=criterion)
    assert found.all_converged
    want = np.linalg.solve(backend.fetch(A.toarray()), backend.fetch(B))
    assert_close(backend.fetch(found.x), want, 2e6)


def test_a_column_of_extreme_size_is_solved_among_others(backend):
    A, B = system()
    B[:, 2] *= 1e-200
    B[:, 4] *= 1e180
    found = krylov.cg(backend.move(A), backend.move(B), rtol=1e-8)
    assert found.all_converged


def test_a_null_space_holds_for_all_columns(backend):
    A = gallery.poisson5(6, 5)
    A = (A - sp.diags(np.asarray(A.sum(axis=1)).ravel())).tocsr()
    found = krylov.cg(backend.move(A), backend.move(values((30, 3), "float64")), nullspace="constant", rtol=1e-8)
    assert found.all_converged and all(s.outside > 0 for s in found.columns)
    assert abs(backend.fetch(found.x).sum(axis=0)).max() < 1e-10


def test_with_a_null_space_wrong_shapes_and_a_block_are_refused(backend):
    A, B = system()
    A, B, singular = backend.move(A), backend.move(B), {"nullspace": "constant"}
    with refused(MatrixError, match=r"b has shape \(72, 0\): no columns"):
        krylov.cg(A, B[:, :0], **singular)
    with refused(MatrixError, match=r"x0 has shape \(72, 2\), but b has \(72, 5\)"):
        krylov.cg(A, B, B[:, :2], **singular)
    with refused(ParameterError, match="block=True is not for nullspace"):
        krylov.cg(A, B, block=True, **singular)


def test_the_worst_column_speaks_for_all(backend):
    A, B = system()
    A, B = backend.move(A), backend.move(B)
    found = krylov.cg(A, B, maxiter=3)
    assert not found and not found.all_converged and found.status is Status.MAX_ITERATIONS
    assert found[1].converged and found.residual_norm == max(s.residual_norm for s in found.columns)
    x, info = found
    assert x is found.x and info > 0 and "1 of 5 columns converged" in repr(found)
    with pytest.raises(NotConverged):
        krylov.cg(A, B, maxiter=3, raise_on_failure=True)


def test_wrong_shapes_and_values_are_refused(backend):
    A, B = system()
    A = backend.move(A)
    with refused(
        MatrixError, match=r"b has shape \(5, 72\), but A has 72 rows; .* its right-hand sides are rows, .*b\.T"
    ):
        krylov.cg(A, backend.move(B.T.copy()))
    with refused(MatrixError, match=r"b has shape \(72, 0\): no columns"):
        krylov.cg(A, backend.move(B[:, :0]))
    with refused(MatrixError, match=r"x0 has shape \(72, 2\), but b has \(72, 5\)"):
        krylov.cg(A, backend.move(B), backend.move(B[:, :2].copy()))
    B[7, 3] = np.nan
    with refused(MatrixError, match="b holds NaN or Inf in column 3, row 7"):
        krylov.cg(A, backend.move(B))


# Block conjugate gradients


@pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128"])
@pytest.mark.parametrize("with_M", [False, True])
def test_a_block_takes_fewer_iterations(backend, dtype, with_M):
    A = in_dtype(gallery.poisson5(16, 15), dtype)
    B = values((240, 8), dtype)
    B[:, 1], B[:, 3], B[:, 6] = 0, B[:, 2], B[:, 4] - B[:, 5]
    A, B = backend.move(A), backend.move(B)
    M = IC0().factor(A) if with_M else None
    rtol = 1e-4 if dtype == "complex64" else 1e-10
    block, alone = (krylov.cg(A, B, M=M, rtol=rtol, block=block) for block in (True, False))
    assert block.all_converged and alone.all_converged and block[1].iterations == 0
    assert block.iterations <= 0.85 * alone.iterations
    for column in block.columns:
        assert column.history.size == column.iterations + 1 and column.method == "cg"
    R = backend.fetch(B - A @ block.x)
    # R is in the dtype of B: in single precision its rounding is a hundredth of the tolerance
    assert np.all(np.linalg.norm(R, axis=0) <= 1.01 * rtol * np.linalg.norm(backend.fetch(B), axis=0))


def test_a_block_of_dependent_columns_has_their_rank(backend):
    A = gallery.poisson5(9, 8)
    seen = []
    A = spla.LinearOperator((72, 72), matvec=lambda v, S=A: (seen.append(1), S @ v)[1], dtype=np.float64)
    b = values((72, 1), "float64")
    found = krylov.cg(A, b * np.arange(1.0, 7.0), rtol=1e-8, block=True)
    assert found.all_converged and len(seen) < 2 * found[0].iterations + 6 * 6  # one direction, and a check of each


def test_a_block_that_cannot_go_on_leaves_columns_to_the_method(backend):
    A = backend.move(sp.diags([1.0] * 30 + [-1.0] * 2).tocsr())
    B = backend.move(values((32, 3), "float64"))
    found = krylov.cg(A, B, block=True)
    assert found.status is Status.INDEFINITE
    limited = krylov.cg(
        backend.move(gallery.poisson5(9, 8)), backend.move(values((72, 3), "float64")), block=True, maxiter=2
    )
    assert limited.status is Status.MAX_ITERATIONS and limited.iterations == 6
    with refused(ParameterError, match="block=2"):
        krylov.cg(A, B, block=2)


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_a_block_does_not_stagnate_where_rows_are_of_uneven_size(backend, dtype):
    A = in_dtype(gallery.poisson5(16, 15), dtype).tolil()
    A[0, 0], A[7, 7], A[100, 100] = 1e12, 1e10, 1e15
    A, B = backend.move(A.tocsr()), backend.move(values((240, 8), dtype))
    block, alone = (krylov.cg(A, B, rtol=1e-8, maxiter=900, block=block) for block in (True, False))
    assert block.all_converged and block.iterations <= 0.5 * alone.iterations


def test_columns_of_a_block_that_converge_early_do_not_hold_up_the_others(backend):
    A, x = gallery.poisson5(30, 30), values((900, 4), "float64")
    x0 = backend.move(x + 10.0 ** -np.arange(0, 12, 3) * values((900, 4), "float64", 1))
    A = backend.move(A)
    B = A @ backend.move(x)
    block, alone = (krylov.cg(A, B, x0, rtol=1e-10, criterion="residual", block=block) for block in (True, False))
    assert block.all_converged and len({s.iterations for s in block.columns}) > 2
    for one, other in zip(block.columns, alone.columns, strict=True):
        assert one.iterations <= other.iterations
    assert block[0].iterations <= 0.8 * alone[0].iterations


def test_a_zero_column_of_a_block_needs_no_iterations_from_any_guess(backend):
    A, B = system()
    found = krylov.cg(backend.move(A), backend.move(B), backend.move(np.ones(72)), block=True)
    assert found.all_converged and found[1].iterations == 0 and not backend.fetch(found[1].x).any()


@pytest.mark.parametrize("name", ["callback", "watch"])
def test_a_block_refuses_what_is_called_for_a_column(name):
    A, B = system()
    with refused(ParameterError, match=f"block=True iterates on all columns as one and has no {name}"):
        krylov.cg(A, B, block=True, **{name: lambda *seen: None})


def test_a_block_begins_at_the_guess_and_meets_the_criterion(backend):
    A, B = system()
    A, x = backend.move(A), backend.move(values((72, 5), "float64"))
    assert krylov.cg(A, A @ x, x, block=True).iterations == 0
    found = krylov.cg(A, backend.move(B), x, rtol=1e-10, criterion="backward", block=True)
    assert found.all_converged and max(s.row_residual or 0 for s in found.columns) <= 1e-10
