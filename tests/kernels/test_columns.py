"""Several right-hand sides at once: each column has, on the CPU, the bits that it has alone."""

from functools import partial
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, assert_close, in_dtype, values

from finelu import (
    CPR,
    IC0,
    ILU0,
    BlockILU0,
    BlockJacobi,
    Jacobi,
    MultilevelILU,
    Schwarz,
    SparseLU,
    TriangularSolver,
    gallery,
)
from finelu.kernels import cpu, kernels_for
from finelu.kernels.cpu import triangular
from finelu.matrix import as_csr
from finelu.preconditioners import RECIPES

WIDTHS = (2, 3, 8, 9, 16, 17, 33)


@pytest.fixture
def same(backend):
    """Compares columns that were solved together with columns that were solved alone."""

    def compare(solve, R, exactly=True):
        R = backend.move(R)
        alone = [backend.fetch(solve(backend.xp.ascontiguousarray(R[:, c]))) for c in range(R.shape[1])]
        for layout in (R, backend.xp.asfortranarray(R), backend.xp.repeat(R, 2, axis=1)[:, ::2]):
            together = backend.fetch(solve(layout))
            if exactly and backend.name == "cpu":
                np.testing.assert_array_equal(together, np.stack(alone, axis=1))
            else:
                assert_close(together, np.stack(alone, axis=1), 64)

    return compare


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("trans", ["N", "T", "H"])
def test_columns_are_solved_as_if_alone(backend, same, dtype, trans):
    A = in_dtype(gallery.convection_diffusion(7, 6, 5, peclet=30), dtype)
    F = ILU0().factor(backend.move(A))
    for k in WIDTHS:
        same(partial(F.solve, trans=trans), values((A.shape[0], k), dtype, k))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_columns_do_not_depend_on_threads_and_analyses(backend, same, threads, count):
    threads(count)
    A = gallery.poisson7(30)
    F, solver = IC0().factor(backend.move(A)), TriangularSolver(backend.move(A), lower=False, trans="T")
    R = values((A.shape[0], 12), "float64")
    for _ in range(triangular.PAYS // 12 + 2):  # before and after the order of a schedule
        same(F.solve, R)
        same(solver.solve, R)


def test_new_values_reach_columns(backend, same):
    A = gallery.poisson5(9, 8)
    for trans in ("N", "T"):
        F = ILU0().factor(backend.move(A))
        R = values((72, 16), "float64")
        same(partial(F.solve, trans=trans), R)
        before = backend.fetch(F.solve(backend.move(R), trans))
        F.update(backend.move(2 * A))
        same(partial(F.solve, trans=trans), R)
        assert_close(backend.fetch(F.solve(backend.move(R), trans)), before / 2, 16)


@pytest.mark.parametrize("method", ["auto", "levels"])
def test_a_thread_that_solves_while_another_gathers_the_values_has_them(threads, monkeypatch, method):
    threads(1)
    A, R = gallery.poisson5(40, 30), values((1200, 8), "float64")
    solver = TriangularSolver(A, trans="T", method=method)
    for _ in range(triangular.LATER):
        solver.solve(R[:, 0])
    if method == "auto":
        solver.plan._decide()
    assert isinstance(getattr(solver.plan, "_now", solver.plan), triangular.Exact)
    want = np.stack([solver.solve(column) for column in R.T.copy()], axis=1)
    gather, seen = triangular._gather, []

    def interrupted(conjugate, source, given, out):
        out[:] = np.nan
        if not seen:
            seen.append(None)
            seen[0] = solver.solve(R)  # as another thread does before this one has gathered
        gather(conjugate, source, given, out)

    monkeypatch.setattr(triangular, "_gather", interrupted)
    np.testing.assert_array_equal(solver.solve(R), want)
    np.testing.assert_array_equal(seen[0], want)


@pytest.mark.parametrize("recipe", [ILU0(), Jacobi(), BlockJacobi(), BlockJacobi(block_size=5)], ids=str)
@pytest.mark.parametrize("k", [3, 10, 16])
def test_columns_go_where_out_is(backend, recipe, k):
    F = recipe.factor(backend.move(gallery.poisson7(6)))
    R = backend.move(values((216, k), "float64"))
    want = backend.fetch(F.solve(R))
    for order, own in product("CF", (True, False)):
        R_laid = backend.xp.array(R, order=order)
        out = R_laid if own else backend.xp.empty((216, k), order=order)
        assert F.solve(R_laid, out=out) is out
        np.testing.assert_array_equal(backend.fetch(out), want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_with_columns_are_as_if_alone(backend, same, threads, dtype):
    for A, count in product((gallery.poisson7(25), gallery.arrow(40)), (1, 2)):
        threads(count)
        A = as_csr(backend.move(in_dtype(A, dtype)))
        product_of = kernels_for(A.data).products.Product(A)
        for k in WIDTHS:
            same(product_of, values((A.n, k), dtype, k))


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_with_columns_and_inner_products_are_as_if_alone(threads, dtype):
    for A, count in product((gallery.poisson7(25), gallery.arrow(40)), (1, 2)):
        threads(count)
        A = as_csr(in_dtype(A, dtype))
        form = cpu.products.Product(A)
        for k in WIDTHS:
            x, y, out = values((A.n, k), dtype, k), values((A.n, k), dtype, k + 1), np.empty((A.n, k), dtype)
            totals, one = np.zeros(k + 2, dtype), np.zeros(1, dtype)
            cpu.products.columns_with_dots(form, np.arange(k)[::-1] + 1, x, y, totals, out)
            for c in range(k):
                want = form.with_dot(x[:, c].copy(), y[:, c].copy(), one)
                np.testing.assert_array_equal(out[:, c], want)
                assert totals[k - c] == one[0]
            assert totals[0] == totals[-1] == 0


@pytest.mark.parametrize("recipe", [Jacobi(), BlockJacobi(), BlockJacobi(block_size=5)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("trans", ["N", "T", "H"])
def test_a_diagonal_of_any_numbers_solves_columns_as_if_alone(backend, same, recipe, dtype, trans):
    R = values((300, 33), dtype)
    F = recipe.factor(backend.move(sp.diags(values(300, dtype, 7)).tocsr()))
    for k in WIDTHS:
        same(partial(F.solve, trans=trans), R[:, :k])


@pytest.mark.parametrize("size", [1, 2, 4, 7, 32])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("trans", ["N", "T", "H"])
def test_blocks_of_any_size_solve_columns_as_if_alone(backend, same, size, dtype, trans):
    A = in_dtype(gallery.convection_diffusion(7, 6, 5, peclet=30), dtype)
    F = BlockJacobi(block_size=size).factor(backend.move(A))
    for k in (1, 4, *WIDTHS):
        same(partial(F.solve, trans=trans), values((A.shape[0], k), dtype, k))


@pytest.mark.parametrize("recipe", [*RECIPES.values()], ids=[*RECIPES])
@pytest.mark.parametrize("trans", ["N", "T", "H"])
def test_every_recipe_solves_columns_as_if_alone(backend, same, recipe, trans):
    A = in_dtype(gallery.poisson5(9, 8), "complex128")
    F = recipe(**({"block_size": 4} if recipe in (BlockILU0, CPR) else {})).factor(backend.move(A))
    if recipe in (MultilevelILU, SparseLU):  # a dense product, and SuperLU, add up several columns in another order
        same = partial(same, exactly=False)
    for k in (5, 16):
        same(partial(F.solve, trans=trans), values((72, k), "complex128"))


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize(
    "options",
    [
        {"parts": 12},
        {"parts": 9, "overlap": 1},
        {"parts": 5, "combine": "additive"},
        {"parts": 12, "coarse": None},
        {"parts": 7, "near_nullspace": np.stack([np.ones(900), np.arange(900.0)], axis=1)},
        {"size": 16, "levels": 3},
    ],
    ids=str,
)
@pytest.mark.parametrize("hermitian", [True, False])
def test_subdomains_solve_columns_as_if_alone(backend, same, threads, dtype, options, hermitian):
    if "levels" in options and not hermitian:
        options = options | {"local": ILU0()}
    A = in_dtype(gallery.poisson5(30, 30) if hermitian else gallery.convection_diffusion(30, 30, 1, peclet=9), dtype)
    if hermitian and dtype == "complex64":
        A = ((A + A.conj().T) / 2).tocsr()
    F = Schwarz(**options).factor(backend.move(A))
    for count, k in ((1, 3), (2, 9)):
        threads(count)
        for trans in ("N", "H"):
            same(partial(F.solve, trans=trans), values((900, k), dtype, k))
