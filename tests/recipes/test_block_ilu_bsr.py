"""BlockILU0 of any block pattern: by definition, by limit, by behaviour, the effect of each parameter, by bad input."""

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg
from block_cases import INSTANCES, block_arrays, dense, own_path
from checks import DTYPES, PATTERNS, assert_close, one_line, refused, values
from hypothesis import given
from hypothesis import strategies as st
from stencil_cases import random_blocks

import finelu as fl
from finelu import ILU0, BlockILU0, BlockMatrix, MatrixError, ParameterError, SingularBlock, StencilMatrix, gallery
from finelu.kernels import kernels_for
from finelu.result import Status


def factored(backend, arrays, **parameters):
    A = BlockMatrix(*(backend.move(v) for v in arrays))
    return A, BlockILU0(**parameters).factor(A)


def product(backend, F):
    """M = L U as a dense array."""
    L, U = (backend.fetch(T.tocsr()).toarray() for T in (F.L, F.U))
    n = F.L.n_block
    for k, T in ((1, L), (-1, U)):  # L is unit lower, U upper block triangular
        block = np.arange(T.shape[0]) // n
        assert not T[k * block[:, None] < k * block].any()
    assert (L.reshape(-1, n, L.shape[0] // n, n)[range(len(L) // n), :, range(len(L) // n)] == np.eye(n)).all()
    return L @ U


def on_the_pattern(M, arrays):
    """The blocks (nb, n, n) of a dense matrix where the arrays have some."""
    data, indices, indptr = arrays
    n, rows = data.shape[1], indptr.size - 1
    return M.reshape(rows, n, rows, n)[np.repeat(np.arange(rows), np.diff(indptr)), :, indices]


def block_tridiagonal(rows, n, dtype="float64"):
    pattern = [np.arange(max(i - 1, 0), min(i + 2, rows)) for i in range(rows)]
    indices = np.concatenate(pattern)
    data = values((indices.size, n, n), dtype)
    data[indices == np.repeat(np.arange(rows), [p.size for p in pattern])] += (6 * n * np.eye(n)).astype(dtype)
    return data, indices, np.cumsum([0, *(p.size for p in pattern)])


# By definition


@pytest.mark.parametrize("pivoting", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "n"), [(1, 3), (14, 1), (12, 3), (6, 9)])
def test_the_product_has_the_blocks_of_a_where_a_stores_some(backend, rows, n, dtype, pivoting):
    own_path(backend, n, dtype)
    arrays = block_arrays(rows, n, dtype=dtype)
    A, F = factored(backend, arrays, pivoting=pivoting)
    M = product(backend, F)
    assert_close(on_the_pattern(M, arrays), arrays[0], 512, scale=abs(arrays[0]).max())
    assert F.dtype == dtype and F.shape == A.shape and F.nnz == A.nnz
    R = values((M.shape[0], 2), dtype)
    for trans, N in (("N", M), ("T", M.T), ("H", M.conj().T)):
        assert_close(N @ backend.fetch(F.solve(backend.move(R), trans)), R, 1024)
        np.testing.assert_array_equal(
            backend.fetch(F.solve(backend.move(R[:, 1]), trans)), backend.fetch(F.solve(backend.move(R), trans))[:, 1]
        )


@PATTERNS
@given(
    rows=st.integers(1, 12),
    density=st.sampled_from([0, 0.1, 0.4, 1]),
    instance=st.sampled_from(INSTANCES),
    seed=st.integers(0, 99),
    pivoting=st.booleans(),
)
def test_the_product_on_any_pattern(backend, rows, density, instance, seed, pivoting):
    n, dtype = instance
    arrays = block_arrays(rows, n, density, dtype, seed)
    _, F = factored(backend, arrays, pivoting=pivoting)
    M = product(backend, F)
    assert_close(on_the_pattern(M, arrays), arrays[0], 1024, scale=abs(arrays[0]).max())
    b = values(M.shape[0], dtype)
    for trans, N in (("N", M), ("T", M.T), ("H", M.conj().T)):
        assert_close(N @ backend.fetch(F.solve(backend.move(b), trans)), b, 2048)


# By limit: where nothing is dropped one solve is exact; with blocks of one number it is ILU0; on a grid it is D


@pytest.mark.parametrize(
    "arrays",
    [
        block_tridiagonal(17, 3),
        block_tridiagonal(1, 8),
        block_tridiagonal(9, 3, "complex64"),
        block_arrays(7, 6, density=1),
        block_arrays(3, 33, density=1),
        block_arrays(9, 2, density=0),
    ],
    ids=["tridiagonal", "one block", "complex", "full", "33", "diagonal"],
)
def test_where_nothing_is_dropped_one_solve_is_exact(backend, arrays):
    if backend.name != "cpu" and arrays[0].shape[1] > 32:
        pytest.skip("blocks of more than 32 rows are factored on the CPU")
    A, F = factored(backend, arrays)
    D, x = dense(*arrays), values(A.shape[0], arrays[0].dtype)
    for trans, M in (("N", D), ("T", D.T), ("H", D.conj().T)):
        assert_close(backend.fetch(F.solve(backend.move(M @ x), trans)), x, 4096)
    if arrays[0].dtype == "float64":
        assert fl.gmres(A, backend.move(D @ x), M=F, rtol=1e-12).iterations <= 2


@pytest.mark.parametrize("problem", gallery.small_spd(), ids=str)
def test_blocks_of_one_number_are_ilu0(backend, problem):
    own_path(backend, 1, problem.A.dtype)
    A, recipe = problem.A, BlockILU0(block_size=1)
    F, G = recipe.factor(backend.move(A)), ILU0().factor(A)
    for ours, theirs in ((F.L, G.L), (F.U, G.U)):
        scale = abs(theirs.data).max()
        assert_close(backend.fetch(ours.tocsr()).toarray(), theirs.toarray(), 512, scale=scale)
    b = values(A.shape[0], A.dtype)
    for trans in ("N", "T", "H"):
        want = G.solve(b, trans)
        assert_close(backend.fetch(F.solve(backend.move(b), trans)), want, 4096)


@pytest.mark.parametrize(("shape", "n"), [((3, 4, 5), 2), ((1, 9, 7), 3), ((13, 1, 1), 6), ((2, 5, 3), 9)], ids=str)
def test_on_a_grid_it_is_the_factorization_of_the_stencil(backend, shape, n):
    host = StencilMatrix(random_blocks(shape, n))
    B = BlockMatrix.from_bsr(host.to_bsr())
    moved = BlockMatrix(*(backend.move(v) for v in (B.data, B.indices, B.indptr)))
    F, G = BlockILU0().factor(moved), BlockILU0().factor(StencilMatrix(backend.move(host.blocks)))
    d = backend.fetch(G.d).reshape(-1, n, n)
    assert_close(backend.fetch(F.lu)[B.diag], d, 256, scale=abs(d).max())
    b = backend.move(values(host.shape[0], "float64"))
    for trans in ("N", "T"):
        assert_close(backend.fetch(F.solve(b, trans)), backend.fetch(G.solve(b, trans)), 1024)
    solutions = [fl.richardson(A, b, M=M, rtol=1e-9, maxiter=20) for A, M in ((moved, F), (G.A, G))]
    assert solutions[0].iterations == solutions[1].iterations and all(s.converged for s in solutions)
    size = np.linalg.norm(backend.fetch(b))
    np.testing.assert_allclose(solutions[0].history, solutions[1].history, rtol=1e-6, atol=1e-13 * size)


def test_blocks_of_more_than_32_rows(backend):
    if backend.name != "cpu":
        pytest.skip("on the CPU")
    arrays = block_arrays(6, 40, density=0.4)
    _, F = factored(backend, arrays)
    assert_close(on_the_pattern(product(backend, F), arrays), arrays[0], 2048, scale=abs(arrays[0]).max())


# By behaviour


def elasticity(m):
    """Two unknowns a point on an m x m grid, coupled at each point and, more weakly, along the grid."""
    T = gallery.problem(f"poisson5:{m},{m}")
    return sp.csr_matrix(sp.kron(T, [[1.0, 0.4], [0.4, 1.0]]) + sp.kron(sp.eye(m * m), [[1.0, 3.0], [-3.0, 1.0]]))


def test_it_takes_the_same_matrix_in_every_form(backend):
    S = elasticity(7)
    b = backend.move(values(98, "float64"))
    forms = [(BlockILU0(block_size=2), backend.move(S)), (BlockILU0(), BlockMatrix.from_csr(backend.move(S), 2))]
    if backend.name == "cpu":
        forms += [(BlockILU0(), S.tobsr((2, 2))), (BlockILU0(block_size=2), sp.bsr_array(S.tobsr((2, 2))))]
        forms += [(BlockILU0(block_size=2), form) for form in (S.tocoo(), S.tocsc(), S.toarray(), fl.as_csr(S))]
    want = backend.fetch(forms[0][0].factor(forms[0][1]).solve(b))
    for recipe, A in forms[1:]:
        np.testing.assert_array_equal(backend.fetch(recipe.factor(A).solve(b)), want)


def test_it_preconditions_krylov_methods_better_than_block_jacobi(backend):
    S = elasticity(15)
    A, b = BlockMatrix.from_csr(backend.move(S), 2), values(450, "float64")
    counts = {}
    for name, M in (("none", None), ("jacobi", fl.BlockJacobi().factor(A)), ("ilu", BlockILU0().factor(A))):
        solution = fl.gmres(A, backend.move(b), M=M, rtol=1e-10)
        counts[name] = solution.iterations
        assert solution.converged
        assert np.linalg.norm(b - S @ backend.fetch(solution.x)) <= 1.01e-10 * np.linalg.norm(b)
    assert counts["ilu"] < counts["jacobi"] < counts["none"]


def test_scipy_bsr_goes_in_everywhere():
    S = elasticity(9).tobsr((2, 2))
    F, b = BlockILU0().factor(S), values(162, "float64")
    ours = fl.gmres(S, b, M=F, rtol=1e-10)
    assert ours.converged and "BlockILU0" in ours.recipe
    assert fl.bicgstab(S, b, M=F, rtol=1e-10).converged
    x, info = scipy.sparse.linalg.gmres(S, b, M=scipy.sparse.linalg.aslinearoperator(F), rtol=1e-10)
    assert info == 0 and np.linalg.norm(b - S @ x) <= 1e-9 * np.linalg.norm(b)


def test_corrections_with_any_pattern(backend):
    arrays = block_arrays(15, 3)
    A, F = factored(backend, arrays)
    b = values(45, "float64")
    solution = fl.richardson(A, backend.move(b), M=F, rtol=1e-11, maxiter=20)
    assert solution.converged and solution.status is Status.CONVERGED
    assert np.linalg.norm(b - dense(*arrays) @ backend.fetch(solution.x)) <= 1.1e-11 * np.linalg.norm(b)


# The effect of each parameter


def test_pivoting_inverts_blocks_with_a_zero_diagonal(backend):
    data, indices, indptr = block_arrays(5, 3, density=0)
    data = data[:, [1, 2, 0], :].copy()
    data[:, [0, 1, 2], [0, 1, 2]] = 0
    with pytest.raises(SingularBlock, match=r"block row 0 \(from row 0 on\).*pivoting=True") as error:
        factored(backend, (data, indices, indptr), pivoting=False)
    assert error.value.condition < 100  # not the block's fault
    one_line(error)
    _, F = factored(backend, (data, indices, indptr))
    assert_close(backend.fetch(F.lu), np.linalg.inv(data), 512, scale=1)


# Bad input


def test_the_condition_is_that_of_the_block_of_the_factorization(backend):
    _, indices, indptr = block_arrays(2, 2, density=1)
    data = np.array([[[2.0, 0], [0, 2]], [[4, 2], [0, 6]], [[1, 3], [5, 7]], [[0, 1], [2, 5]]])
    data[3] += data[2] @ data[1] / 2  # small integers: a zero pivot is left exactly
    with pytest.raises(SingularBlock, match="block row 1") as error:
        factored(backend, (data, indices, indptr), pivoting=False)
    assert error.value.condition == pytest.approx(np.linalg.cond([[0.0, 1], [2, 5]], np.inf))
    factored(backend, (data, indices, indptr))


def test_what_overflows_is_not_returned(backend):
    data, indices, indptr = block_arrays(3, 2, density=1)
    data[1] = 1e300
    data[3] = 1e300
    with np.errstate(over="ignore", invalid="ignore"), pytest.raises(SingularBlock, match="block row 1") as error:
        factored(backend, (data, indices, indptr))
    one_line(error)


def test_a_missing_diagonal_block_is_named(backend):
    data, indices, indptr = block_arrays(7, 3, density=0)
    indices = indices.copy()
    indices[[3, 5]] = 0
    with refused(MatrixError, match=r"block row 3 \(from row 9 on; 2 such block rows\)"):
        factored(backend, (data, indices, indptr))


def test_a_block_size_that_is_missing_or_another_is_reported(backend):
    S = backend.move(sp.csr_matrix(BlockMatrix(*block_arrays(10, 3)).tocsr()))
    with refused(ParameterError, match=r"csr_matrix.*give block_size \(its pattern suggests 3\)"):
        BlockILU0().factor(S)
    with pytest.raises(ParameterError, match="shows no blocks of 2 to 8"):
        BlockILU0().factor(backend.move(gallery.poisson7(3)))
    with pytest.raises(ParameterError, match="A has 3 x 3 blocks; leave block_size out"):
        BlockILU0(block_size=2).factor(BlockMatrix.from_csr(S, 3))
    with pytest.raises(MatrixError, match="not a multiple of the block size 4"):
        BlockILU0(block_size=4).factor(S)


def test_bad_matrices():
    B = sp.bsr_matrix(np.eye(6), blocksize=(2, 2))
    for A, recipe, text in (
        (sp.bsr_matrix(np.eye(6), blocksize=(2, 3)), BlockILU0(), "blocks of 2 x 3; square ones are needed"),
        (sp.bsr_matrix(np.ones((4, 6)), blocksize=(2, 2)), BlockILU0(), "square matrix is needed"),
        (B * np.nan, BlockILU0(), "NaN or Inf in the block of block row 0"),
        (1e300 * B, BlockILU0(precision="float32"), "beyond the range of float32"),
        (sp.csr_matrix((0, 0)), BlockILU0(block_size=2), "empty"),
        ("matrix", BlockILU0(block_size=2), "is needed"),
    ):
        with refused(MatrixError, match=text):
            recipe.factor(A)
    F = BlockILU0().factor(B)
    for wrong in (np.ones(5), np.ones((7, 2)), np.ones(())):
        with pytest.raises(MatrixError, match="the factors have 6 rows"):
            F.solve(wrong)
    with pytest.raises(ParameterError, match="trans"):
        F.solve(np.ones(6), "C")


@pytest.mark.parametrize("n", [2, 3, 5, 6, 8, 12, 20])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_pivots_do_not_depend_on_how_rows_are_scaled(backend, n, dtype):
    own_path(backend, n, dtype)
    powers = np.exp2(np.random.default_rng(n).integers(-40, 40, (9, n))).astype(dtype)
    blocks = values((9, n, n), dtype)
    inverses = []
    for scaled in (blocks, blocks * powers[:, :, None]):
        moved = backend.move(scaled)
        out = backend.xp.empty_like(moved)
        kernels = kernels_for(moved)
        assert kernels.vectors.first_bad(kernels.blocks.invert_blocks(moved, out, True)) == -1
        inverses.append(backend.fetch(out))
    np.testing.assert_array_equal(inverses[1], inverses[0] / powers[:, None, :])  # to the last bit


def test_a_block_whose_rows_differ_in_size_is_inverted(backend):
    block = np.array([[[1, 1e20], [1, 1]]])
    A = fl.BlockMatrix(*(backend.move(v) for v in (block, np.array([0]), np.array([0, 1]))))
    b, grid = backend.move(np.array([1e20, 2.0])), np.zeros((7, 1, 1, 1, 2, 2))
    grid[3, 0, 0, 0] = block[0]
    for M in (A, A.tocsr(), fl.StencilMatrix(backend.move(grid))):
        recipe = BlockILU0(block_size=2)
        np.testing.assert_allclose(backend.fetch(recipe.factor(M).solve(b)), [1, 1], rtol=1e-15)
