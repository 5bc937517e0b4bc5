"""BlockJacobi of block matrices: by definition, by limit, by the effect of each parameter, by bad input. Its results
with matrices that it cuts into blocks itself is tested in test_jacobi.py."""

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from block_cases import block_arrays, dense, own_path
from checks import DTYPES, PATTERNS, assert_close, refused, values
from hypothesis import given
from hypothesis import strategies as st
from stencil_cases import random_blocks

import finelu as fl
from finelu import BlockILU0, BlockJacobi, BlockMatrix, MatrixError, ParameterError, SingularBlock, StencilMatrix


def diagonal_blocks(D, n):
    return scipy.linalg.block_diag(*(D[i : i + n, i : i + n] for i in range(0, len(D), n)))


def forms(backend, dtype="float64", n=3):
    """The same matrix as a StencilMatrix, a BlockMatrix and CSR, on the device; and dense."""
    S = StencilMatrix(random_blocks((3, 2, 4), n, dtype))
    B = BlockMatrix.from_bsr(S.to_bsr())
    block = BlockMatrix(*(backend.move(v) for v in (B.data, B.indices, B.indptr)))
    return (StencilMatrix(backend.move(S.blocks)), block, backend.move(S.tocsr())), S.tocsr().toarray()


# By definition


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 3, 33])
def test_it_solves_with_the_diagonal_blocks_in_every_form(backend, n, dtype):
    own_path(backend, n, dtype)
    matrices, D = forms(backend, dtype, n)
    M, R = diagonal_blocks(D.astype(np.result_type(dtype, float)), n), values((24 * n, 2), dtype)
    for A, recipe in zip(matrices, (BlockJacobi(), BlockJacobi(), BlockJacobi(block_size=n)), strict=True):
        F = recipe.factor(A)
        assert F.dtype == dtype and F.nnz == 24 * n * n and F.shape == D.shape
        for trans, N in (("N", M), ("T", M.T), ("H", M.conj().T)):
            want = np.linalg.solve(N, R).astype(dtype)
            assert_close(backend.fetch(F.solve(backend.move(R), trans)), want, 1024)
            assert_close(backend.fetch(F.solve(backend.move(R[:, 0]), trans)), want[:, 0], 1024)


@PATTERNS
@given(
    rows=st.integers(1, 12),
    n=st.sampled_from([1, 2, 3, 9]),
    density=st.sampled_from([0, 0.3, 1]),
    seed=st.integers(0, 99),
)
def test_it_solves_with_the_diagonal_blocks_of_any_pattern(backend, rows, n, density, seed):
    arrays = block_arrays(rows, n, density, seed=seed)
    F = BlockJacobi().factor(BlockMatrix(*(backend.move(v) for v in arrays)))
    b = values(rows * n, "float64")
    want = np.linalg.solve(diagonal_blocks(dense(*arrays), n), b)
    assert_close(backend.fetch(F.solve(backend.move(b))), want, 1024)


def test_bsr_goes_in_as_it_is():
    B = BlockMatrix(*block_arrays(6, 3)).to_bsr()
    F, G = BlockJacobi().factor(B), BlockJacobi().factor(BlockMatrix.from_bsr(B))
    b = values(18, "float64")
    np.testing.assert_array_equal(F.solve(b), G.solve(b))
    assert fl.gmres(B, b, M=F, rtol=1e-10).converged


# By limit


def test_of_a_block_diagonal_matrix_it_is_block_ilu(backend):
    A = BlockMatrix(*(backend.move(v) for v in block_arrays(9, 4, density=0)))
    b = values(36, "float64")
    want = backend.fetch(BlockILU0().factor(A).solve(backend.move(b)))
    assert_close(backend.fetch(BlockJacobi().factor(A).solve(backend.move(b))), want, 256)
    assert fl.gmres(A, backend.move(b), M=BlockJacobi().factor(A), rtol=1e-12).iterations == 1


def test_badly_scaled_rows_do_no_harm(backend):
    data, indices, indptr = block_arrays(4, 3, density=0)
    scaled = data * np.array([1e-200, 1e150, 1.0])[:, None]
    x = values(12, "float64")
    F = BlockJacobi().factor(BlockMatrix(*(backend.move(v) for v in (scaled, indices, indptr))))
    np.testing.assert_allclose(backend.fetch(F.solve(backend.move(dense(scaled, indices, indptr) @ x))), x, rtol=1e-10)


# Bad input


@pytest.mark.parametrize("n", [3, 40])
def test_a_block_that_is_singular_to_rounding_is_refused(backend, n):
    data, indices, indptr = block_arrays(4, n, density=0)
    u, _, v = np.linalg.svd(data[2])
    data[2] = u @ np.diag([1e-18] + [1.0] * (n - 1)) @ v
    with pytest.raises(SingularBlock, match=r"block row 2 .*of condition (1|2|3|4|5|6|7|8|9|inf)"):
        BlockJacobi().factor(BlockMatrix(*(backend.move(v) for v in (data, indices, indptr))))


def test_missing_diagonal_blocks_and_bad_parameters(backend):
    data, indices, indptr = block_arrays(5, 2, density=0)
    wrong = indices.copy()
    wrong[3] = 1
    A = BlockMatrix(*(backend.move(v) for v in (data, wrong, indptr)))
    with pytest.raises(MatrixError, match=r"no diagonal block in block row 3 \(from row 6 on; 1 such block row\)"):
        BlockJacobi().factor(A)
    good = BlockMatrix(*(backend.move(v) for v in (data, indices, indptr)))
    for bad in ({"block_size": 3}, {"block_size": -1}, {"precision": "double"}, {"shift": np.inf}, {"shift": "1"}):
        with refused(ParameterError, match=next(iter(bad))):
            BlockJacobi(**bad).factor(good)
    with pytest.raises(MatrixError, match="blocks of 2 x 3"):
        BlockJacobi().factor(sp.bsr_matrix(np.eye(6), blocksize=(2, 3)))
