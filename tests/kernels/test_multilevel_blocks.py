"""The building blocks that apply a multilevel factorization, by twin, on every backend."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, assert_close, own_types, values

from finelu.device import sparse_module
from finelu.kernels import kernels_for, reference

TYPES = pytest.mark.parametrize("dtype", DTYPES)
INDEX = pytest.mark.parametrize("index", ["int32", "int64"])
COLUMNS = pytest.mark.parametrize("shape", [(), (1,), (3,)], ids=["vector", "one", "three"])


def vector(n, shape, dtype, seed=0):
    return values((n, *shape), dtype, seed)


def kernels(backend):
    return kernels_for(backend.xp.empty(0))


@TYPES
@INDEX
@COLUMNS
def test_the_way_in_and_out_are_their_twins(backend, dtype, index, shape):
    own_types(backend, dtype, index)
    n, pivots = 300, 170
    rng = np.random.default_rng(1)
    order = rng.permutation(n).astype(index)
    scale = np.exp2(rng.integers(-9, 9, n)).astype(np.dtype(dtype).char.lower())
    r = vector(n, shape, dtype)
    there = [backend.move(x) for x in (order, scale, r)]
    np.testing.assert_array_equal(
        backend.fetch(kernels(backend).vectors.gather_scaled(*there)), reference.vectors.gather_scaled(order, scale, r)
    )
    s, t, w = vector(pivots, shape, dtype, 2), vector(pivots, shape, dtype, 3), vector(n - pivots, shape, dtype, 4)
    got = kernels(backend).vectors.scatter_scaled(*there[:2], *(backend.move(x) for x in (s, t, w)))
    np.testing.assert_array_equal(backend.fetch(got), reference.vectors.scatter_scaled(order, scale, s, t, w))
    got = kernels(backend).vectors.scatter_scaled(*there[:2], there[2], None, None)
    np.testing.assert_array_equal(backend.fetch(got), reference.vectors.scatter_scaled(order, scale, r, None, None))


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_many_columns_in_any_order_go_in_and_out_as_one_alone(backend, threads, dtype):
    threads(3)
    n, pivots, rng = 6000, 5000, np.random.default_rng(5)  # enough numbers for threads to share them
    order, scale = rng.permutation(n), np.exp2(rng.integers(-9, 9, n)).astype(np.dtype(dtype).char.lower())
    r, t = vector(n, (16,), dtype), vector(pivots, (16,), dtype, 6)
    s, w = r[:pivots], r[pivots:]
    order_there, scale_there = backend.move(order), backend.move(scale)
    want = reference.vectors.gather_scaled(order, scale, r), reference.vectors.scatter_scaled(order, scale, s, t, w)
    for lie in (np.ascontiguousarray, np.asfortranarray):
        there = [backend.move(lie(x)) for x in (r, s, t, w)]
        got = kernels(backend).vectors.gather_scaled(order_there, scale_there, there[0])
        np.testing.assert_array_equal(backend.fetch(got), want[0])
        if lie is np.ascontiguousarray or backend.name == "cpu":
            got = kernels(backend).vectors.scatter_scaled(order_there, scale_there, *there[1:])
            np.testing.assert_array_equal(backend.fetch(got), want[1])


def test_a_vector_with_gaps_comes_in_as_well(backend):
    order, scale, wide = np.arange(50)[::-1].copy(), np.ones(50), vector(50, (4,), "float64")
    got = kernels(backend).vectors.gather_scaled(backend.move(order), backend.move(scale), backend.move(wide)[:, 1])
    np.testing.assert_array_equal(backend.fetch(got), wide[::-1, 1])


@TYPES
@INDEX
@COLUMNS
@pytest.mark.parametrize("density", [0.002, 0.05, 0.6])
def test_products_with_blocks_are_their_twins(backend, dtype, index, shape, density):
    own_types(backend, dtype, index)
    M = sp.random(150, 90, density, "csr", random_state=np.random.default_rng(5))
    M = sp.csr_matrix((vector(M.nnz, (), dtype, 6), M.indices, M.indptr), shape=M.shape)
    M.indptr, M.indices = M.indptr.astype(index), M.indices.astype(index)
    x, y = vector(90, shape, dtype), vector(150, shape, dtype, 1)
    there = sparse_module(backend.xp.empty(0)).csr_matrix(M)
    for given, moved in ((None, None), (y, backend.move(y))):
        got = backend.fetch(kernels(backend).products.subtract_product(there, backend.move(x), moved))
        assert_close(got, reference.products.subtract_product(M, x, given), 64, 90.0)


@TYPES
@COLUMNS
@pytest.mark.parametrize("n", [1, 31, 100])
def test_the_dense_product_is_its_twin(backend, dtype, shape, n):
    matrix, x = vector(n, (n,), dtype), vector(n, shape, dtype, 1)
    got = backend.fetch(kernels(backend).products.dense_product(backend.move(matrix), backend.move(x)))
    assert_close(got, reference.products.dense_product(matrix, x), 64, float(n))
