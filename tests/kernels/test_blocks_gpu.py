"""The building blocks for block matrices of any pattern on the GPU: by definition, by limit, by twin, by bad input."""

import gc

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, assert_close, values
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from finelu.device import require_gpu
from finelu.errors import DeviceError, ParameterError
from finelu.kernels import cpu
from finelu.kernels.reference import blocks as reference_blocks

pytestmark = pytest.mark.gpu

SIZES = (1, 2, 3, 5, 6, 8, 9, 16, 32)  # parts of a warp, a warp, a thread block
TYPES = pytest.mark.parametrize(
    ("n", "dtype"),
    [(n, "float64") for n in SIZES] + [(n, dtype) for n in (3, 17) for dtype in DTYPES if dtype != "float64"],
)
INDEX = pytest.mark.parametrize("index", ["int32", "int64"])
ANY = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture
def cuda():
    """The launchers of blocks.cu; skips the test where there is no GPU."""
    try:
        require_gpu()
    except DeviceError as error:
        pytest.skip(str(error))
    from finelu.kernels.cuda import blocks

    return blocks


def there(array):
    import cupy

    return cupy.asarray(array)


def here(array):
    return array.get() if hasattr(array, "get") else array


def bad_row(bad):
    return int(bad[0])


def scattered(rows, density, seed=0):
    return np.random.default_rng(seed).random((rows, rows)) < density


def banded(rows, width):
    return abs(np.subtract.outer(np.arange(rows), np.arange(rows))) <= width


def arrow(rows):
    pattern = np.zeros((rows, rows), bool)
    pattern[-1] = pattern[:, -1] = True
    return pattern


def on_grid(side, reach):
    """7 points (reach 1) or 27 points (reach 3) on side^3 cells."""
    at = np.stack(np.unravel_index(np.arange(side**3), (side,) * 3))
    distance = abs(at[:, :, None] - at[:, None, :])
    return (distance.max(axis=0) <= 1) & (distance.sum(axis=0) <= reach)


class Blocks:
    """Random blocks at the places of a dense pattern, diagonally dominant; the arrays of A and of its transpose."""

    def __init__(self, pattern, n, dtype="float64", index="int32", seed=0):
        pattern = pattern | np.eye(len(pattern), dtype=bool)
        self.rows, self.n, self.dtype = len(pattern), n, np.dtype(dtype)
        self.row, self.column = np.nonzero(pattern)
        self.indptr, self.indices, self.diag = self._pattern(self.row, self.column, index)
        self.data = values((self.row.size, n, n), dtype, seed)
        self.data[self.diag] += (3 * n * np.sqrt(pattern.sum(axis=1).max()) * np.eye(n)).astype(dtype)
        self.places = np.lexsort((self.row, self.column)).astype(index)
        self.transposed = self._pattern(self.column[self.places], self.row[self.places], index)

    def _pattern(self, row, column, index):
        indptr = np.searchsorted(row, np.arange(self.rows + 1))
        return indptr.astype(index), column.astype(index), np.flatnonzero(row == column).astype(index)

    def matrix(self, data=None):
        data = self.data if data is None else data
        return sp.bsr_matrix((data, self.indices, self.indptr), shape=(self.rows * self.n,) * 2)

    def dense(self, keep, data):
        A = np.zeros((self.rows, self.n, self.rows, self.n), self.dtype)
        A[self.row[keep], :, self.column[keep], :] = data[keep]
        return A.reshape(self.rows * self.n, self.rows * self.n)

    def product(self, lu):
        """L U of a factored lu, dense, the diagonal blocks inverted by NumPy."""
        whole = lu.copy()
        whole[self.diag] = np.linalg.inv(lu[self.diag])
        return (np.eye(self.rows * self.n, dtype=self.dtype) + self.dense(self.column < self.row, whole)) @ self.dense(
            self.column >= self.row, whole
        )

    def factored(self, cuda, pivoting=True, data=None):
        """(lu on the host, first bad row) of the GPU."""
        lu = there((self.data if data is None else data).copy())
        bad = cuda.bsr_ilu0_factor(there(self.indptr), there(self.indices), there(self.diag), lu, pivoting)
        return here(lu), bad_row(bad)

    def solved(self, cuda, lu, b, trans):
        pattern = (self.indptr, self.indices, np.arange(self.row.size, dtype=self.indices.dtype), self.diag)
        if trans != "N":
            pattern = (*self.transposed[:2], self.places, self.transposed[2])
        x = there(np.zeros_like(b))
        cuda.bsr_ilu0_solve(*(there(v) for v in pattern), there(lu), there(b), x, trans)
        return here(x)


def residual(cuda, A, x, b=None):
    out = there(np.zeros_like(x))
    pattern = there(A.indptr), there(A.indices), there(A.data)
    cuda.bsr_residual(*pattern, there(x), None if b is None else there(b), out)
    return here(out)


def accepts(A, lu, dtype):
    """(L U)_ij = A_ij wherever A stores a block."""
    got = A.product(lu).reshape(A.rows, A.n, A.rows, A.n)[A.row, :, A.column, :]
    assert_close(got, A.data, 64 * A.n, abs(A.data).max())


@TYPES
def test_residual_and_product_are_scipys(cuda, n, dtype):
    A = Blocks(scattered(13, 0.3), n, dtype)
    x, b = values(13 * n, dtype, 1), values(13 * n, dtype, 2)
    scale = abs(A.matrix()) @ abs(x) + abs(b)
    assert_close(residual(cuda, A, x), A.matrix() @ x, 64, scale)
    assert_close(residual(cuda, A, x, b), b - A.matrix() @ x, 64, scale)


def test_the_residual_may_overwrite_b(cuda):
    A, x, b = Blocks(scattered(40, 0.1), 6), values(240, "float64", 1), values(240, "float64", 2)
    out = there(b.copy())
    cuda.bsr_residual(there(A.indptr), there(A.indices), there(A.data), there(x), out, out)
    assert_close(here(out), b - A.matrix() @ x, 64, abs(A.matrix()) @ abs(x) + abs(b))


@TYPES
@pytest.mark.parametrize("pivoting", [False, True])
def test_factors_reproduce_A_where_it_stores_blocks(cuda, n, dtype, pivoting):
    A = Blocks(scattered(11, 0.4, n), n, dtype)
    lu, bad = A.factored(cuda, pivoting)
    assert bad == -1
    accepts(A, lu, dtype)


@INDEX
@pytest.mark.parametrize(
    "pattern",
    [
        scattered(30, 0.2),
        banded(30, 4),
        arrow(30),
        arrow(30)[::-1, ::-1],
        banded(30, 30),
        np.tril(scattered(30, 0.4)),
        np.triu(scattered(30, 0.4)),
        np.zeros((30, 30), bool),
        banded(40, 1),
        np.ones((1, 1), bool),
    ],
    ids=["scattered", "band", "arrow", "arrow up", "full", "lower", "upper", "diagonal", "chain", "one"],
)
@pytest.mark.parametrize("n", [2, 6])
def test_every_pattern_is_factored_and_solved(cuda, pattern, n, index):
    A = Blocks(pattern, n, index=index)
    lu, bad = A.factored(cuda)
    assert bad == -1
    accepts(A, lu, "float64")
    b, M = values(A.rows * n, "float64", 3), A.product(lu)
    for trans, matrix in (("N", M), ("T", M.T)):
        assert_close(A.solved(cuda, lu, b, trans), np.linalg.solve(matrix, b), 2000)


@given(st.integers(1, 24), st.sampled_from([0.03, 0.1, 0.3, 0.7]), st.sampled_from([1, 2, 3, 5, 6]), st.integers(0, 99))
@ANY
def test_any_pattern_gives_what_its_twin_gives(cuda, rows, density, n, seed):
    A = Blocks(scattered(rows, density, seed), n, seed=seed)
    lu, bad = A.factored(cuda)
    want = A.data.copy()
    assert bad == reference_blocks.bsr_ilu0_factor(A.indptr, A.indices, A.diag, want, True) == -1
    assert_close(lu, want, 64, abs(want).max())
    b, x = values(rows * n, "float64", seed), np.empty(rows * n)
    for trans in "NT":
        places = np.arange(A.row.size) if trans == "N" else A.places
        indptr, indices, diag = (A.indptr, A.indices, A.diag) if trans == "N" else A.transposed
        reference_blocks.bsr_ilu0_solve(indptr, indices, places, diag, want, b, x, trans)
        assert_close(A.solved(cuda, want, b, trans), x, 500)


@TYPES
@pytest.mark.parametrize("trans", ["N", "T", "H"])
def test_solves_undo_the_product_of_the_factors(cuda, n, dtype, trans):
    A = Blocks(scattered(11, 0.3, 5), n, dtype)
    lu = A.data.copy()
    cpu.blocks.bsr_ilu0_factor(A.indptr, A.indices, A.diag, lu, True)
    M = A.product(lu)
    M = M if trans == "N" else M.T if trans == "T" else M.conj().T
    x = values(11 * n, dtype, 1)
    assert_close(A.solved(cuda, lu, M @ x, trans), x, 2000)


def test_b_may_be_x(cuda):
    A = Blocks(scattered(20, 0.3), 3)
    lu, _ = A.factored(cuda)
    b = values(60, "float64")
    places = there(np.arange(A.row.size, dtype="int32"))
    x = there(b.copy())
    cuda.bsr_ilu0_solve(there(A.indptr), there(A.indices), places, there(A.diag), there(lu), x, x, "N")
    np.testing.assert_array_equal(here(x), A.solved(cuda, lu, b, "N"))


@pytest.mark.parametrize(("side", "reach", "n"), [(7, 1, 6), (5, 3, 4), (9, 1, 1), (4, 1, 16)])
def test_grids_agree_with_the_cpu(cuda, side, reach, n):
    A = Blocks(on_grid(side, reach), n)
    lu, bad = A.factored(cuda)
    want = A.data.copy()
    assert bad == cpu.blocks.bsr_ilu0_factor(A.indptr, A.indices, A.diag, want, True) == -1
    assert_close(lu, want, 64, abs(want).max())
    b, x = values(A.rows * n, "float64", 4), np.empty(A.rows * n)
    for trans in "NTH":
        places = np.arange(A.row.size, dtype="int32") if trans == "N" else A.places
        indptr, indices, diag = (A.indptr, A.indices, A.diag) if trans == "N" else A.transposed
        cpu.blocks.bsr_ilu0_solve(indptr, indices, places, diag, want, b, x, trans)
        assert_close(A.solved(cuda, want, b, trans), x, 500)
    out = np.empty_like(x)
    cpu.blocks.bsr_residual(A.indptr, A.indices, A.data, x, b, out)
    assert_close(residual(cuda, A, x, b), out, 64, abs(A.matrix()) @ abs(x) + abs(b))


def test_every_run_has_the_same_bits_however_much_of_a_row_is_in_shared_memory(cuda, monkeypatch):
    A = Blocks(on_grid(5, 3), 6)
    first, _ = A.factored(cuda)
    np.testing.assert_array_equal(A.factored(cuda)[0], first)
    n, team = 6, cuda.team_for(6)
    for room in (0, 3):
        fixed = (cuda.batch_for(n, A.dtype) + 1 + room) * n * n + 4 * n
        shared = 2 * (team.rows * A.dtype.itemsize * fixed + 1024)
        monkeypatch.setattr(cuda, "device_limits", lambda shared=shared: {"shared": shared})
        np.testing.assert_array_equal(A.factored(cuda)[0], first)


def test_long_chains_and_dense_rows_come_to_an_end(cuda):
    rows = 3000
    ones = np.ones(rows - 1)
    chain = sp.diags([ones, np.ones(rows), ones], [-1, 0, 1]).tolil()
    chain[rows - 1, :] = chain[:, rows - 1] = chain[0, :] = 1.0
    chain = sp.csr_matrix(chain)
    chain.sort_indices()
    n, rng = 2, np.random.default_rng(0)
    row = np.repeat(np.arange(rows), np.diff(chain.indptr))
    diag = np.flatnonzero(row == chain.indices).astype("int32")
    data = rng.uniform(-1, 1, (chain.nnz, n, n)) / np.where(np.diff(chain.indptr) > 3, rows, 1)[row][:, None, None]
    data[diag] += 8 * np.eye(n)
    pattern = there(chain.indptr.astype("int32")), there(chain.indices.astype("int32")), there(diag)
    lu, want = there(data.copy()), data.copy()
    assert bad_row(cuda.bsr_ilu0_factor(*pattern, lu, True)) == -1
    cpu.blocks.bsr_ilu0_factor(chain.indptr.astype("int32"), chain.indices.astype("int32"), diag, want, True)
    assert_close(here(lu), want, 500, abs(want).max())


@pytest.mark.parametrize("place", [0, 7, 19])
@pytest.mark.parametrize("value", [0.0, np.nan, np.inf])
@pytest.mark.parametrize("pivoting", [False, True])
def test_the_first_bad_row_is_named(cuda, place, value, pivoting):
    A = Blocks(banded(20, 2), 6)
    data = A.data.copy()
    data[A.indptr[place] : A.diag[place]] = 0
    data[A.diag[[place, 19]]] = value
    assert A.factored(cuda, pivoting, data)[1] == place


@TYPES
@pytest.mark.parametrize("pivoting", [False, True])
def test_inverses_are_numpys(cuda, n, dtype, pivoting):
    blocks = values((37, n, n), dtype) + 6 * n * np.eye(n, dtype=dtype)
    out = there(np.zeros_like(blocks))
    assert bad_row(cuda.invert_blocks(there(blocks), out, pivoting)) == -1
    assert_close(here(out), np.linalg.inv(blocks), 64, abs(np.linalg.inv(blocks)).max())
    again = there(blocks.copy())
    cuda.invert_blocks(again, again, pivoting)
    np.testing.assert_array_equal(here(again), here(out))


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("n", [2, 5, 17])
def test_negative_zeros_of_a_block_are_small(cuda, n, dtype):
    blocks = np.where(np.random.default_rng(2).random((37, n, n)) < 0.5, 0, values((37, n, n), dtype)).astype(dtype)
    blocks += np.roll(np.eye(n), 1, axis=1).astype(dtype) * 3 * n
    negative = -blocks  # -0 - 0j where blocks are zero
    assert np.signbit(negative.real[blocks == 0]).all()
    out, want = there(np.empty_like(blocks)), np.empty_like(blocks)
    assert (
        bad_row(cuda.invert_blocks(there(negative), out, True)) == cpu.blocks.invert_blocks(negative, want, True) == -1
    )
    assert_close(here(out), want, 64, abs(want).max())
    assert bad_row(cuda.invert_blocks(there(blocks), out, True)) == -1
    assert_close(-here(out), want, 64, abs(want).max())


def test_the_first_singular_block_is_named(cuda):
    blocks = values((50, 4, 4), "float64") + 9 * np.eye(4)
    blocks[31] = 1.0
    blocks[40] = np.nan
    blocks[12] = np.roll(np.eye(4), 1, axis=1)
    out = there(np.zeros_like(blocks))
    assert bad_row(cuda.invert_blocks(there(blocks), out, True)) == 31
    assert_close(here(out)[12], np.linalg.inv(blocks[12]), 4)
    assert bad_row(cuda.invert_blocks(there(blocks), out, False)) == 12


@TYPES
@pytest.mark.parametrize("trans", ["N", "T", "H"])
def test_products_with_many_blocks_are_numpys(cuda, n, dtype, trans):
    blocks, x = values((37, n, n), dtype), values(37 * n, dtype, 1)
    B = blocks if trans == "N" else blocks.transpose(0, 2, 1)
    want = ((B.conj() if trans == "H" else B) @ x.reshape(37, n, 1)).reshape(-1)
    out = there(np.zeros_like(x))
    cuda.blocks_times(there(blocks), there(x), out, trans)
    assert_close(here(out), want, 64, n * abs(x).max() * abs(blocks).max())
    several = there(np.stack([x, 2 * x, x], axis=1))
    cuda.blocks_times(there(blocks), several, several, trans)
    np.testing.assert_array_equal(here(several), np.stack([here(out), 2 * here(out), here(out)], axis=1))


def test_a_plan_is_made_once_and_goes_with_its_pattern(cuda):
    from finelu.kernels.cuda.runtime import memory

    gc.collect()
    A, made = Blocks(scattered(20, 0.2), 3), len(memory._kept)
    pattern = [there(v) for v in (A.indptr, A.indices, A.diag)]
    for _ in range(2):
        cuda.bsr_ilu0_factor(*pattern, there(A.data.copy()), True)
        assert len(memory._kept) == made + 1
    del pattern
    gc.collect()
    assert len(memory._kept) == made


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"n": 33}, "1 to 32"),
        ({"dtype": "float32"}, "float32"),
        ({"size": 5}, "C-contiguous"),
        ({"trans": "C"}, "'N', 'T' or 'H'"),
    ],
)
def test_bad_input_is_refused_in_one_line(cuda, change, text):
    A = Blocks(np.ones((2, 2), bool), change.get("n", 3))
    b = np.zeros(change.get("size", A.rows * A.n), change.get("dtype", "float64"))
    with pytest.raises(ParameterError, match=text) as error:
        A.solved(cuda, A.data, b, change.get("trans", "N"))
    assert "\n" not in str(error.value)
