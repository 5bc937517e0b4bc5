"""BlockMatrix and its kernels: by definition, by twin, by conversions there and back, by bad input."""

import gc

import numpy as np
import pytest
import scipy.sparse as sp
from block_cases import block_arrays, dense, own_path
from checks import DTYPES, PATTERNS, assert_close, refused, values
from hypothesis import given
from hypothesis import strategies as st
from stencil_cases import random_blocks

import finelu as fl
from finelu import BlockMatrix, DeviceError, MatrixError, StencilMatrix
from finelu.kernels import kernels_for
from finelu.kernels.cpu import blocks as cpu_blocks
from finelu.kernels.cpu.runtime import schedule as schedules
from finelu.kernels.cpu.runtime.schedule import Blocks, Levels, in_level_order
from finelu.kernels.reference import blocks as reference_blocks
from finelu.matrix import blocks as blocks_module


def block_matrix(backend, *args, **kwargs):
    return BlockMatrix(*(backend.move(v) for v in block_arrays(*args, **kwargs)))


# By definition


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "n"), [(1, 1), (1, 3), (7, 1), (11, 3), (5, 9), (3, 40)])
def test_products_are_those_of_the_dense_matrix(backend, rows, n, dtype):
    own_path(backend, n, dtype)
    if backend.name != "cpu" and n > 32:
        pytest.skip("blocks of more than 32 rows are multiplied on the CPU")
    arrays = block_arrays(rows, n, dtype=dtype)
    A, D = BlockMatrix(*(backend.move(v) for v in arrays)), dense(*arrays)
    assert A.shape == D.shape and A.dtype == dtype and A.rows == rows and A.n_block == n and A.nnz == arrays[0].size
    x, X = values(D.shape[0], dtype, 1), values((D.shape[0], 3), dtype, 2)
    for v in (x, X):
        moved = backend.move(v)
        for product, want in (
            (A @ moved, D @ v),
            (A.matvec(moved), D @ v),
            (A.rmatvec(moved), D.conj().T @ v),
            (A.T @ moved, D.T @ v),
            (A.H @ moved, D.conj().T @ v),
        ):
            assert_close(backend.fetch(product), want, 256)
        b = values(v.shape, dtype, 3)
        assert_close(backend.fetch(A.residual(backend.move(b), moved)), b - D @ v, 256)


@PATTERNS
@given(
    rows=st.integers(1, 12),
    n=st.sampled_from([1, 2, 3, 9]),
    density=st.sampled_from([0, 0.2, 0.7, 1]),
    seed=st.integers(0, 99),
)
def test_products_conversions_and_places_on_any_pattern(backend, rows, n, density, seed):
    arrays = block_arrays(rows, n, density, seed=seed)
    A, D = BlockMatrix(*(backend.move(v) for v in arrays)), dense(*arrays)
    x = values(D.shape[0], "float64", 1)
    assert_close(backend.fetch(A @ backend.move(x)), D @ x, 128)
    assert_close(backend.fetch(A.rmatvec(backend.move(x))), D.T @ x, 128)
    csr = backend.fetch(A.tocsr())
    np.testing.assert_array_equal(csr.toarray(), D)
    assert csr.nnz == A.nnz and csr.has_canonical_format
    np.testing.assert_array_equal(backend.fetch(A.T.tocsr()).toarray(), D.T)
    data, diag = backend.fetch(A.data), backend.fetch(A.diag)
    blocks = D.reshape(rows, n, rows, n)
    for i in range(rows):
        np.testing.assert_array_equal(data[diag[i]], blocks[i, :, i])
    sweep = [backend.fetch(v) for v in A.pattern.sweep("T")]
    for i in range(rows):
        where = slice(sweep[0][i], sweep[0][i + 1])
        for j, p in zip(sweep[1][where], sweep[2][where], strict=True):
            np.testing.assert_array_equal(data[p], blocks[j, :, i])
        assert sweep[1][sweep[3][i]] == i and (np.diff(sweep[1][where]) > 0).all()


def test_a_wider_right_hand_side_widens_the_product(backend):
    arrays = block_arrays(5, 2, dtype="float32")
    A, D = BlockMatrix(*(backend.move(v) for v in arrays)), dense(*arrays)
    x = values(10, "complex128")
    got = A @ backend.move(x)
    assert got.dtype == "complex128"
    assert_close(backend.fetch(got), D.astype("complex128") @ x, 64)
    assert (A @ backend.move(np.arange(10))).dtype == "float64"


# By twin: the same bits, on any number of threads


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 3, 8, 9])
def test_the_kernels_are_their_twins(backend, n, dtype):
    own_path(backend, n, dtype)
    data, indices, indptr = block_arrays(9, n, dtype=dtype)
    A = BlockMatrix(data, indices, indptr)
    exact, kernels = backend.name == "cpu", kernels_for(backend.move(data))
    x, b = values(9 * n, dtype, 1), values(9 * n, dtype, 2)
    moved = [backend.move(v) for v in (A.indptr, A.indices, A.diag)]
    for right in (b, None):
        want, got = np.empty_like(x), backend.move(np.empty_like(x))
        reference_blocks.bsr_residual(indptr, indices, data, x, right, want)
        own = [v if v is None else backend.move(v) for v in (data, x, right)]
        kernels.blocks.bsr_residual(moved[0], moved[1], *own, got)
        assert_close(backend.fetch(got), want, 0 if exact else 64)
    rows = np.random.default_rng(3).permutation(14)[:9]
    for subtract in (False, True):
        want = values(14 * n, dtype, 3)
        got = backend.move(want.copy())
        reference_blocks.bsr_accumulate(rows, indptr, indices, data, x, want, subtract)
        operands = (backend.move(v) for v in (rows, A.indptr, A.indices, data, x))
        kernels.blocks.bsr_accumulate(*operands, got, subtract)
        assert_close(backend.fetch(got), want, 0 if exact else 64)
    for pivoting in (False, True):
        lu, ours = data.copy(), backend.move(data.copy())
        assert reference_blocks.bsr_ilu0_factor(indptr, indices, A.diag, lu, pivoting) == -1
        assert kernels.vectors.first_bad(kernels.blocks.bsr_ilu0_factor(*moved, ours, pivoting)) == -1
        assert_close(backend.fetch(ours), lu, 0 if exact else 256, scale=abs(lu).max())
    for trans in ("N", "T", "H"):
        sweep = A.pattern.sweep(trans)
        want, got = np.empty_like(b), backend.move(np.empty_like(b))
        reference_blocks.bsr_ilu0_solve(*sweep, lu, b, want, trans)
        kernels.blocks.bsr_ilu0_solve(*(backend.move(v) for v in sweep), backend.move(lu), backend.move(b), got, trans)
        assert_close(backend.fetch(got), want, 0 if exact else 256)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 3, 9, 32])
def test_the_kernels_of_many_blocks_are_their_twins(backend, n, dtype):
    own_path(backend, n, dtype)
    B = values((6, n, n), dtype) + (2 * n * np.eye(n)).astype(dtype)
    B[2] = B[2][::-1]  # the large entries are off the diagonal
    kernels, exact = kernels_for(backend.move(B)), backend.name == "cpu"
    want, got = np.empty_like(B), backend.move(np.empty_like(B))
    assert reference_blocks.invert_blocks(B, want, True) == -1
    assert kernels.vectors.first_bad(kernels.blocks.invert_blocks(backend.move(B), got, True)) == -1
    assert_close(backend.fetch(got), want, 0 if exact else 256, scale=abs(want).max())
    assert_close(want @ B, np.broadcast_to(np.eye(n, dtype=dtype), B.shape), 4096, scale=1)
    x = values(6 * n, dtype, 1)
    for trans, M in (("N", B), ("T", B.transpose(0, 2, 1)), ("H", B.conj().transpose(0, 2, 1))):
        want, got = np.empty_like(x), backend.move(np.empty_like(x))
        reference_blocks.blocks_times(B, x, want, trans)
        kernels.blocks.blocks_times(backend.move(B), backend.move(x), got, trans)
        assert_close(backend.fetch(got), want, 0 if exact else 256)
        assert_close(want, (M @ x.reshape(6, n, 1)).ravel(), 512)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 4, 5])
@pytest.mark.parametrize("columns", [2, 5, 8, 16, 19])
def test_products_of_many_columns_are_their_twins(backend, n, columns, dtype):
    own_path(backend, n, dtype)
    m = 40 // n + 3
    B, x = values((m, n, n), dtype), values((m * n, columns), dtype, 1)
    for trans in ("N", "T", "H"):
        want = np.empty_like(x)
        reference_blocks.blocks_times(B, x, want, trans)
        for order in ("C", "F") if backend.name == "cpu" else ("C",):
            for taken in ("C", "F") if backend.name == "cpu" else ("C",):
                got = backend.move(np.full_like(x, np.nan, order=taken))
                kernels_for(got).blocks.blocks_times(
                    backend.move(B), backend.move(np.asarray(x, order=order)), got, trans
                )
                assert_close(backend.fetch(got), want, 0 if backend.name == "cpu" else 256)


@pytest.mark.parametrize("pivoting", [False, True])
def test_the_first_bad_block_is_reported(backend, pivoting):
    B = np.stack([np.eye(3)] * 7)
    B[4], B[5] = 0, np.nan
    kernels, moved = kernels_for(backend.move(B)), backend.move(B)
    with np.errstate(all="ignore"):
        assert reference_blocks.invert_blocks(B, np.empty_like(B), pivoting) == 4
    assert kernels.vectors.first_bad(kernels.blocks.invert_blocks(moved, backend.xp.empty_like(moved), pivoting)) == 4


@pytest.mark.parametrize("most", [1, 2, 3, 16])
def test_threads_are_called_where_they_take_off_more_than_the_call(monkeypatch, most):
    monkeypatch.setattr(schedules, "get_num_threads", lambda: most)
    works = np.arange(1, 200) * 1e-2 * schedules.CALL
    found = [schedules.sharers(work, 1000) for work in works]
    assert found == [most if work - work / most >= schedules.CALL else 1 for work in works]
    assert schedules.sharers(1e9, 1) == 1 and schedules.sharers(1e9, 5) == min(most, 5)


@pytest.mark.parametrize("n", [2, 9])
@pytest.mark.parametrize("kind", ["grid", "scattered"])
def test_the_same_bits_on_any_number_of_threads_and_by_any_schedule(threads, monkeypatch, kind, n):
    A = BlockMatrix.from_bsr(StencilMatrix(random_blocks((11, 7, 5), n)).to_bsr())
    if kind == "scattered":
        A = BlockMatrix(*block_arrays(385, n, density=0.01))
    x = values(A.shape[0], "float64")
    monkeypatch.setattr(schedules, "CALL", 0.0)
    monkeypatch.setattr(cpu_blocks, "CHUNK", 1000.0)

    def outcome():
        lu, y, inverse = A.data.copy(), [np.empty_like(x) for _ in range(7)], np.empty((385, n, n))
        assert cpu_blocks.bsr_ilu0_factor(A.indptr, A.indices, A.diag, lu, True) == -1
        cpu_blocks.bsr_residual(A.indptr, A.indices, A.data, x, x, y[0])
        cpu_blocks.bsr_ilu0_solve(*A.pattern.sweep("N"), lu, x, y[1], "N")
        cpu_blocks.bsr_ilu0_solve(*A.pattern.sweep("T"), lu, x, y[2], "T")
        assert cpu_blocks.invert_blocks(A.data[A.diag], inverse, True) == -1
        cpu_blocks.blocks_times(inverse, x, y[3], "N")
        cpu_blocks.blocks_times(inverse, x, y[4], "T")
        y[5][:] = x
        cpu_blocks.bsr_ilu0_solve(*A.pattern.sweep("N"), lu, y[5], y[5], "N")
        np.testing.assert_array_equal(y[5], y[1])
        y[6][:] = x
        cpu_blocks.bsr_accumulate(np.arange(385)[::-1], A.indptr, A.indices, A.data, x, y[6], True)
        return [lu, inverse, *y]

    def by_blocks(triangle, cost, level, **_):
        return Blocks(triangle, cost, cost.sum() / 20).schedule(False, 4)

    def by_levels(triangle, cost, level, **_):
        return Levels(triangle, cost, cost.sum() / 50, level, in_level_order(triangle, level)).schedule(False, 4)

    threads(1)
    want = outcome()
    for schedule in (by_blocks, by_levels):
        monkeypatch.setattr(cpu_blocks, "schedule", schedule)
        monkeypatch.setattr(cpu_blocks, "_kept", {})
        for count in (1, 2, 4):
            threads(count)
            for got, one in zip(outcome(), want, strict=True):
                np.testing.assert_array_equal(got, one)
        plans = [kept[0] for kept in cpu_blocks._kept.values()]
        assert len(plans) == 9 and all(plan.after.size > 5 for plan in plans)


def test_a_schedule_is_made_once_and_forgotten_with_its_pattern():
    A = BlockMatrix(*block_arrays(30, 2))
    x, before = values(60, "float64"), set(cpu_blocks._kept)
    F = fl.BlockILU0().factor(A)
    F.solve(x)
    made = set(cpu_blocks._kept) - before
    assert len(made) == 2  # of the elimination and of the solves
    F.update(A.with_values(2 * A.data)).solve(x)
    assert set(cpu_blocks._kept) - before == made
    del F, A
    gc.collect()
    assert not made & set(cpu_blocks._kept)


# There and back


@pytest.mark.parametrize("form", [sp.bsr_matrix, sp.bsr_array], ids=["matrix", "array"])
def test_bsr_there_and_back(form):
    data, indices, indptr = block_arrays(8, 3)
    B = form((data, indices, indptr), shape=(24, 24))
    A = BlockMatrix.from_bsr(B)
    assert A.data is B.data or np.shares_memory(A.data, B.data)  # no copy where nothing has to be done
    again = A.to_bsr()
    assert isinstance(again, sp.bsr_matrix) and np.shares_memory(again.data, A.data)
    np.testing.assert_array_equal(again.toarray(), dense(data, indices, indptr))


@PATTERNS
@given(size=st.sampled_from([1, 2, 3]), rows=st.integers(1, 8), seed=st.integers(0, 99))
def test_from_csr_fills_the_blocks_up_with_zeros(backend, size, rows, seed):
    S = sp.random(rows * size, rows * size, 0.2, random_state=seed, format="csr") + sp.eye_array(rows * size)
    A = BlockMatrix.from_csr(backend.move(sp.csr_matrix(S)), size)
    np.testing.assert_array_equal(backend.fetch(A.tocsr()).toarray(), S.toarray())
    touched = (abs(S.toarray()).reshape(rows, size, rows, size).max(axis=(1, 3)) > 0).sum()
    assert A.nnz == touched * size**2
    data, pattern = blocks_module._cut(np, fl.as_csr(S), size)  # as it is done on the GPU
    host = BlockMatrix.from_csr(S, size)
    for got, want in ((data, host.data), (pattern.indices, host.indices), (pattern.indptr, host.indptr)):
        np.testing.assert_array_equal(got, want)


def test_unsorted_blocks_are_sorted_and_duplicates_added_in_a_copy(backend):
    data = values((7, 2, 2), "float64")
    indices, indptr = np.array([2, 0, 2, 2, 1, 0, 1]), np.array([0, 4, 4, 7])
    moved = [backend.move(v.copy()) for v in (data, indices, indptr)]
    A = BlockMatrix(*moved)
    np.testing.assert_array_equal(backend.fetch(A.indices), [0, 2, 0, 1])
    np.testing.assert_array_equal(backend.fetch(A.indptr), [0, 2, 2, 4])
    np.testing.assert_array_equal(backend.fetch(A.data)[1], data[0] + data[2] + data[3])
    assert_close(backend.fetch(A.tocsr()).toarray(), dense(data, indices, indptr), 4)
    for now, then in zip(moved, (data, indices, indptr), strict=True):
        np.testing.assert_array_equal(backend.fetch(now), then)
    assert A.pattern.missing == (2, 1)


def test_arrays_that_are_longer_than_what_they_hold_are_taken_as_scipy_does():
    data, indices, indptr = block_arrays(4, 2)
    longer = BlockMatrix(np.concatenate([data, data]), np.concatenate([indices, indices + 9]), indptr)
    np.testing.assert_array_equal(longer.tocsr().toarray(), dense(data, indices, indptr))


def test_it_prints_what_it_is():
    assert repr(BlockMatrix(*block_arrays(4, 3, 0))) == "BlockMatrix(4 rows, 4 blocks, n=3, float64, CPU)"


# Bad input


@pytest.mark.parametrize("shape", [(4, 2, 3), (4, 2), (4, 0, 0), (4, 2, 2, 2)], ids=str)
def test_blocks_that_are_not_square(shape):
    with refused(MatrixError, match=r"\(nb, n, n\) is needed"):
        BlockMatrix(np.ones(shape), np.arange(4), np.arange(5))


@pytest.mark.parametrize(
    ("indices", "indptr", "text"),
    [
        ([0, 1], [0, 1, 3], "within the 2 blocks"),
        ([0, 1], [1, 1, 2], "begin with 0"),
        ([0, 1], [0, 2, 1], "descends"),
        ([0, 2], [0, 1, 2], "block column 2 in block row 1"),
        ([-1, 1], [0, 1, 2], "block column -1 in block row 0"),
        ([], [0], "empty"),
        ([], [], "empty"),
        ([0.0, 1.0], [0, 1, 2], "integers"),
        ([[0, 1]], [0, 1, 2], "integers"),
    ],
    ids=str,
)
def test_corrupt_patterns(backend, indices, indptr, text):
    with refused(MatrixError, match=text):
        BlockMatrix(*(backend.move(np.array(v)) for v in (np.ones((2, 3, 3)), indices, indptr)))


def test_not_finite_names_block_row_and_column(backend):
    data, indices, indptr = block_arrays(5, 2, density=1)
    data[13, 1, 0], data[20, 0, 0] = np.nan, np.inf
    with refused(MatrixError, match=r"block row 2 and column 3 \(2 such blocks\)"):
        BlockMatrix(*(backend.move(v) for v in (data, indices, indptr)))


def test_dtypes():
    _, indices, indptr = block_arrays(3, 2, 0)
    A = BlockMatrix(np.ones((3, 2, 2), int), indices.astype("int64"), indptr.astype("uint8"))
    assert A.dtype == "float64" and A.indices.dtype == A.indptr.dtype == "int32"
    for dtype in ("float16", "object", "U1", "longdouble"):
        with pytest.raises(MatrixError, match="has dtype"):
            BlockMatrix(np.ones((3, 2, 2)).astype(dtype), indices, indptr)
    with pytest.raises(MatrixError, match="cannot be made"):
        A.astype("complex128").astype("float64")


def test_bad_vectors():
    A = BlockMatrix(*block_arrays(4, 2))
    for bad in (np.ones(7), np.ones((8, 1, 1)), np.array(1.0)):
        with pytest.raises(MatrixError, match="A has 8 rows"):
            A @ bad
    with pytest.raises(MatrixError, match="b has shape"):
        A.residual(np.ones((8, 2)), np.ones(8))
    with pytest.raises(MatrixError, match="numbers"):
        A @ np.array(["1"] * 8)


def test_conversions_say_what_does_not_fit():
    S = sp.csr_matrix(np.eye(12))
    for call, text in (
        (lambda: BlockMatrix.from_bsr(S), r"from_csr\(B, n\)"),
        (lambda: BlockMatrix.from_bsr(S.tobsr((2, 3))), "blocks of 2 x 3"),
        (lambda: BlockMatrix.from_bsr(sp.bsr_matrix(np.ones((4, 6)), blocksize=(2, 2))), "a square matrix is needed"),
        (lambda: BlockMatrix.from_csr(S, 5), "not a multiple of the block size 5"),
        (lambda: BlockMatrix.from_csr(S, 0), "n=0"),
        (lambda: BlockMatrix.from_csr(S, 2.0), "n=2.0"),
        (lambda: BlockMatrix.from_csr(sp.csr_matrix((4, 6)), 2), "square"),
        (lambda: BlockMatrix.from_csr(S * np.nan, 2), "NaN or Inf in row 0"),
    ):
        with refused(MatrixError, match=text):
            call()


@pytest.mark.gpu
def test_there_is_no_bsr_on_the_gpu(backend):
    if backend.name == "cpu":
        pytest.skip("of the GPU")
    A = block_matrix(backend, 4, 2)
    with pytest.raises(DeviceError, match="tocsr"):
        A.to_bsr()
    with pytest.raises(DeviceError, match="different devices"):
        A @ np.ones(8)
    with pytest.raises(DeviceError, match="different devices"):
        BlockMatrix(A.data, *block_arrays(4, 2)[1:])
