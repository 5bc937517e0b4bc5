"""A row and a column that couple with all others, at the front: work, bits, orders, and the direct solve."""

import math

import numpy as np
import pytest
import scipy.sparse as sp
from checks import assert_close, bordered

import finelu as fl
from finelu.auto.choose import rungs
from finelu.auto.cost import COSTLY, Costs
from finelu.auto.rates import RATES
from finelu.kernels import kernels_for, reference
from finelu.matrix import as_csr, lower_triangle
from finelu.matrix.traits import traits
from finelu.ordering import dense_last, products
from finelu.preconditioners.direct.analysis import needs_matching
from finelu.preconditioners.iluk import pattern_of

MANY = 400_000  # rows of which all pairs would take minutes
NO_FILL = (fl.ILU0(), fl.MILU0(), fl.ParILU(sweeps=2), fl.ParILU(sweeps=1, asynchronous=True))
NO_FILL_HERMITIAN = (fl.IC0(), fl.ParIC(sweeps=2), fl.ParIC(sweeps=1, asynchronous=True))
FILL = (
    fl.ILUT(),
    fl.ILUT(form="crout"),
    fl.ILUT(nnz=20_000),
    fl.ICT(),
    fl.ILUK(),
    fl.ILUK(level=2, shift=1e-3),
    fl.ParILUT(),
    fl.ParILUT(sweep="synchronous"),
    fl.ParICT(),
    fl.ParILU(level=1),
    fl.ParIC(level=1),
)


def arrow(n):
    """4 on the diagonal, n in the first place, -1/2 in the first row and column."""
    i = np.arange(1, n)
    row = sp.csr_matrix((np.full(n - 1, -0.5), (np.zeros(n - 1, int), i)), shape=(n, n))
    return sp.csr_matrix(row + row.T + sp.diags(np.r_[float(n), np.full(n - 1, 4.0)]))


def hub(side, first=True, symmetric=True):
    """A grid all of whose cells exchange with one node, which is the first or the last."""
    n, rng = side**2, np.random.default_rng(side)
    grid, w = fl.gallery.poisson5(side), rng.uniform(0.5, 1.5, n)
    back = w if symmetric else 0.3 * w
    parts = [[sp.csr_matrix([[w.sum() + 1]]), -sp.csr_matrix(w)], [-sp.csr_matrix(back).T, grid + sp.diags(w)]]
    A = sp.csr_matrix(sp.bmat(parts))
    order = np.r_[1 : n + 1, 0]
    return A if first else sp.csr_matrix(A[order][:, order])


def network(n=1500, sources=150):
    """A symmetric network of conductances with ideal sources, whose rows have no diagonal entry."""
    rng = np.random.default_rng(0)
    i, j = rng.integers(0, n, (2, 2 * n))
    G = sp.coo_matrix((-rng.random(i.size), (i, j)), shape=(n, n))
    G = G + G.T
    G = G - sp.diags(G.diagonal())
    ends, k = rng.permutation(n)[: 2 * sources], np.arange(sources)
    B = sp.coo_matrix((np.repeat([1.0, -1.0], sources), (ends, np.r_[k, k])), shape=(n, sources))
    return sp.csr_matrix(sp.bmat([[G + sp.diags(1e-3 - np.asarray(G.sum(axis=1)).ravel()), B], [B.T, None]]))


def without_rank(n=1000, entries=10):
    """Random, without a diagonal, and one row and another have their only entry in one column."""
    rng = np.random.default_rng(21)
    i, j = rng.integers(2, n, n * entries), rng.integers(0, n, n * entries)
    return sp.csr_matrix((np.r_[rng.random(i.size), 1.0, 1.0], (np.r_[i, 0, 1], np.r_[j, 5, 5])), shape=(n, n))


# On A's own pattern: what two rows share costs as much as the shorter


@pytest.mark.parametrize("recipe", [*NO_FILL, *NO_FILL_HERMITIAN], ids=str)
def test_a_dense_first_row_takes_no_more_work_than_its_entries(recipe):
    F = recipe.factor(arrow(MANY))
    if recipe.hermitian:
        assert_close(F.L.diagonal()[1:], np.full(MANY - 1, math.sqrt(4 - 0.25 / MANY)), 4)
    else:
        dropped = MANY - 2 if isinstance(recipe, fl.MILU0) else 0
        assert_close(F.U.diagonal()[1:], np.full(MANY - 1, 4 - 0.25 / MANY * (1 + dropped)), 4)


def test_a_solve_with_a_dense_first_row_ends_as_soon_as_with_a_dense_last():
    A = arrow(MANY)
    solution = fl.solve(A, np.ones(MANY))
    assert solution.converged and solution.recipe == repr(fl.MILU0())


@pytest.mark.parametrize("cholesky", [False, True])
@pytest.mark.parametrize("part", ["whole", "upper", "lower"])
@pytest.mark.parametrize("squares", [False, True])
def test_sweeps_have_the_bits_of_the_reference_where_rows_are_looked_up(cholesky, part, squares):
    A = as_csr(hub(14, symmetric=cholesky))
    A = lower_triangle(A)[0] if cholesky else A
    columns = kernels_for(A.data).pattern.columns_of(A) if cholesky else None
    found = []
    for kernels in (kernels_for(A.data), reference):
        out, sums, refused = np.empty(A.nnz), np.empty(A.n) if squares else None, np.array([0, 2**62])
        kernels.sweeps.sweep(A, A, out, sums, refused, columns, 1.0, part)
        found.append((out, sums, refused))
    (got, got_sums, got_refused), (want, want_sums, want_refused) = found
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(got_refused, want_refused)
    if squares:
        np.testing.assert_allclose(got_sums, want_sums, rtol=1e-12)


@pytest.mark.parametrize("cholesky", [False, True])
def test_a_sweep_in_place_has_the_bits_of_the_reference_where_rows_are_looked_up(threads, cholesky):
    threads(1)
    A = as_csr(hub(14, symmetric=cholesky))
    A = lower_triangle(A)[0] if cholesky else A
    columns = kernels_for(A.data).pattern.columns_of(A) if cholesky else None
    got, want = A.copy(), A.copy()
    kernels_for(A.data).sweeps.sweep_in_place(A, got, np.array([0, 2**62]), columns)
    reference.sweeps.sweep_in_place(A, want, np.array([0, 2**62]), columns)
    np.testing.assert_array_equal(got.data, want.data)


def test_the_longest_column_is_looked_for_once_of_all_sweeps(calls_of):
    A = lower_triangle(as_csr(hub(14, symmetric=True)))[0]
    kernels = kernels_for(A.data)
    columns, looks = kernels.pattern.columns_of(A), calls_of(np, "diff")
    kernels.sweeps.sweeps(A, A, 4, None, np.array([0, 2**62]), columns)
    kernels.sweeps.sweep_in_place(A, A.copy(), np.array([0, 2**62]), columns)
    assert len(looks) == 1


@pytest.mark.parametrize("variant", ["sequential", "levels"])
def test_milu0_drops_the_rest_of_a_dense_row_as_one_sum(variant):
    A, want = as_csr(hub(14, symmetric=False)), np.empty(5 * 14**2 + 2 * 14**2 - 4 * 14 + 1)
    assert reference.elimination.milu0(A.indptr, A.indices, A.diag, A.data, np.float64(1), want) == -1
    F = fl.MILU0(variant=variant).factor(A.tosparse())
    assert_close(F.triangles.data, want, 64)
    rows = np.repeat(np.arange(A.n), np.diff(A.indptr))
    below = A.indices < rows
    np.testing.assert_array_equal(F.triangles.data[below & (A.indices == 0)], want[below & (A.indices == 0)])
    assert_close(F.L @ (F.U @ np.ones(A.n)), A.tosparse() @ np.ones(A.n), 64, scale=abs(A.tosparse()).sum(axis=1).A1)


@pytest.mark.parametrize("large", [1.0, 1e8, 1e12, 1e16, 1e20])
def test_what_milu0_drops_of_a_dense_row_does_not_depend_on_what_it_keeps(large):
    n, met = 600, (77, 301, 599)
    A = sp.lil_matrix((n, n))
    A.setdiag(4.0 * n)
    A[0, 1:] = 1e-3 * (1 + np.arange(1, n))
    for j in met:
        A[0, j], A[5, j] = large, 1.0
    A[5, 0] = A[7, 0] = 1.0
    A = fl.as_csr(sp.csr_matrix(A))
    U = fl.MILU0().factor(A).U
    row = A.tosparse()[[0]].toarray().ravel()
    for i, own in ((5, (0, 5, *met)), (7, (0, 7))):
        dropped = math.fsum(row[j] for j in range(n) if j not in own) / (4 * n)
        assert U[i, i] == pytest.approx(4 * n - dropped - row[i] / (4 * n), rel=1e-14)


# With fill: dense rows come last


def test_dense_rows_that_would_fill_in_come_last():
    A = hub(36)
    order, moved = dense_last(as_csr(A))
    np.testing.assert_array_equal(order, np.r_[1 : A.shape[0], 0])
    assert moved == 1
    assert dense_last(as_csr(hub(36, first=False))) is None
    assert dense_last(as_csr(fl.gallery.poisson5(30))) is None
    assert dense_last(as_csr(sp.csr_matrix(np.eye(1500) * 1500 + 1))) is None  # no order takes less
    assert dense_last(as_csr(hub(30))) is None  # takes a millisecond either way
    two = sp.csr_matrix(sp.bmat([[A, None], [None, A]]))  # each is dense in a part of the rows alone, still
    assert dense_last(as_csr(two))[1] == 2


def test_products_before_any_fill_are_counted_with_dense_rows_last():
    A = as_csr(fl.gallery.poisson5(20))
    rows = np.repeat(np.arange(A.n), np.diff(A.indptr))
    behind = np.diff(A.indptr) - (A.diag - A.indptr[:-1]) - 1
    assert products(A) == behind[A.indices[A.indices < rows]].sum()
    assert products(as_csr(hub(36))) == products(as_csr(hub(36, first=False))) < 5 * as_csr(hub(36)).nnz


@pytest.mark.parametrize("recipe", FILL, ids=str)
def test_factors_with_fill_are_those_of_the_matrix_with_its_dense_row_last(backend, recipe):
    A = hub(36, symmetric=recipe.hermitian)
    n, order = A.shape[0], np.r_[1 : A.shape[0], 0]
    F, G = recipe.factor(backend.move(A)), recipe.factor(backend.move(sp.csr_matrix(A[order][:, order])))
    np.testing.assert_array_equal(backend.fetch(F.permutation), order)
    assert F.report.dense_last == 1 and "dense_last" not in G.report and G.permutation is None
    assert F.nnz < 30 * n
    np.testing.assert_array_equal(backend.fetch(F.triangles.data), backend.fetch(G.triangles.data))
    r = np.random.default_rng(0).standard_normal(n)
    for trans in ("N", "T"):
        got, want = (backend.fetch(M.solve(backend.move(v), trans)) for M, v in ((F, r), (G, r[order])))
        np.testing.assert_array_equal(got[order], want)
    B = A.copy()
    B.setdiag(1.5 * A.diagonal())
    F.update(backend.move(B))
    G.update(backend.move(sp.csr_matrix(B[order][:, order])))
    np.testing.assert_array_equal(backend.fetch(F.triangles.data), backend.fetch(G.triangles.data))


@pytest.mark.parametrize("recipe", [fl.ILUT(), fl.ICT(), fl.ILUK()], ids=str)
def test_a_zero_pivot_is_named_by_its_row_of_a(recipe):
    A = hub(36)
    A[7] *= 0.0
    A[:, 7] *= 0.0
    A.setdiag(np.where(np.arange(A.shape[0]) == 7, 0.0, A.diagonal()))
    with pytest.raises(fl.ZeroPivot, match="row 7") as error:
        recipe.factor(A)
    assert error.value.row == 7


def test_parilut_begins_with_factors_in_their_own_order():
    A = hub(36, symmetric=False)
    assert fl.ParILUT(start=fl.ILU0().factor(A), steps=0).factor(A).permutation is None
    first = fl.ParILUT().factor(A)
    assert fl.ParILUT(start=first).factor(A).report.dense_last == 1


def test_a_pattern_that_finds_no_room_is_refused_before_any_work():
    n = 200_000
    with pytest.raises(MemoryError, match=rf"{(n - 1) ** 2 + n} entries or more of ILU\(1\) take .* GiB"):
        pattern_of(as_csr(arrow(n)), 1)


@pytest.mark.parametrize("recipe", [fl.ILUK(), fl.ILUT(), fl.ParILUT(), fl.MultilevelILU(), None], ids=str)
def test_an_unsymmetric_grid_with_a_lumped_node_first_is_solved(recipe):
    A = hub(150, symmetric=False)
    b = np.random.default_rng(0).standard_normal(A.shape[0])
    assert fl.solve(A, b, recipe="auto" if recipe is None else recipe).converged


# The direct solve


def test_borders_need_no_matching_and_fill_in_as_counted():
    A = bordered(60)
    assert not needs_matching(as_csr(A, diagonal=False))
    F = fl.SparseLU(backend="superlu").factor(A)
    assert not F.report.matched and F.nnz <= 1.05 * F.report.expected_nnz
    b = np.random.default_rng(0).standard_normal(A.shape[0])
    assert np.linalg.norm(b - A @ F.solve(b)) < 1e-9 * np.linalg.norm(b)


def test_a_bordered_system_takes_the_work_that_was_counted():
    A = bordered(120)
    b = np.random.default_rng(0).standard_normal(A.shape[0])
    solution = fl.solve(A, b)
    assert solution.converged and len(solution.attempts) == 1
    assert solution.recipe in (repr(fl.SparseLU()), repr(fl.MultilevelILU()))


def test_columns_alone_are_ordered_neither_for_symmetric_patterns_nor_with_dense_rows():
    def orderings(A):
        return {recipe.ordering for recipe in rungs(traits(as_csr(A, diagonal=False)))["direct"].recipes}

    flow = sp.triu(fl.gallery.poisson5(30), format="lil")
    assert orderings(flow) == {"auto"}  # with a diagonal to take the pivots from
    flow[7, 7] = 0
    assert orderings(flow) == {"auto", "colamd"}
    flow[5, :] = 1
    assert orderings(flow) == orderings(network()) == orderings(bordered(30)) == {"auto"}


def test_a_symmetric_network_is_expected_to_take_what_its_symmetric_order_takes():
    A = network(2700, 270)
    matrix = as_csr(A, diagonal=False)
    found = traits(matrix)
    costs = Costs(matrix, found, rungs(found), None, math.inf)
    costs.count_fill()
    F = costs.known(costs.rungs["direct"].recipes[0])
    assert F is not None and not costs.by_columns
    made, by_columns = (fl.SparseLU(ordering=ordering).factor(A).nnz for ordering in ("auto", "colamd"))
    assert made <= 1.05 * costs.fill.nnz and by_columns > 2 * costs.fill.nnz
    solution = fl.solve(A, np.ones(A.shape[0]))
    assert solution.converged and "colamd" not in solution.recipe


def test_fill_is_counted_without_a_full_structural_rank():
    A = without_rank(2000)
    matrix = as_csr(A, diagonal=False)
    found = traits(matrix)
    costs = Costs(matrix, found, rungs(found), None, math.inf)
    costs.count_fill()
    known = costs.known(costs.rungs["direct"].recipes[-1])
    assert costs.fill is not None and known is not None and not costs.by_columns
    assert costs.fill.nnz > 20 * A.nnz and costs.seconds("direct") > 10 * RATES.columnwise * A.nnz
    solution = fl.solve(A, A @ np.ones(A.shape[0]))
    assert solution.converged
    F = fl.SparseLU(matching=True, shift=1e-10).factor(A)
    assert F.nnz <= 1.2 * costs.fill.nnz


def test_what_dense_rows_meet_counts_in_the_cost_of_factors_with_fill():
    n = 1000
    scattered = sp.random(n, n, 0.2, random_state=0, format="csr")
    A = scattered + scattered.T + n * sp.identity(n)
    for B, more in ((sp.csr_matrix(A), True), (hub(30), False)):
        matrix = as_csr(B)
        found = traits(matrix)
        costs = Costs(matrix, found, rungs(found), None, math.inf)
        want = products(matrix) / (COSTLY * B.nnz) if more else 1.0
        assert found.dense and costs.filling == want and (want > 1) is more
        assert costs.seconds("multilevel") == pytest.approx(RATES.multilevel * B.nnz * want)


def test_a_pattern_without_pairs_counts_in_the_cost_of_factors_with_fill():
    A = as_csr(sp.random(500, 500, 0.01, random_state=0, format="csr") + 500 * sp.identity(500))
    found = traits(A)
    costs = Costs(A, found, rungs(found), None, math.inf)
    assert found.paired < 0.5 and costs.seconds("multilevel") == pytest.approx(10 * RATES.multilevel * A.nnz)
    assert {recipe.ordering for recipe in costs.rungs["direct"].recipes} == {"auto"}  # so that its cost is counted
