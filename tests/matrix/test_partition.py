"""Parts of a matrix: by definition, by twin, by behaviour, by bad input; the same ones everywhere."""

import math
from functools import cache

import numpy as np
import pytest
import scipy.sparse as sp
from checks import (
    DTYPES,
    ON_GPU,
    PATTERNS,
    dominant_matrices,
    in_dtype,
    long_rows,
    longest_chain,
    refused,
    values,
    with_index,
)
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

import finelu as fl
import finelu.partition
from finelu import MatrixError, ParameterError, gallery
from finelu.device import on_gpu
from finelu.kernels import cpu, kernels_for, reference
from finelu.matrix import as_csr
from finelu.matrix.looks import ISLANDS, OFTEN, has_strong_pairs, jumping, uneven
from finelu.partition import METHODS, TOLERATED, grid_of, partition

SIZES = (1, 2, 7, 30, 500)


def isolated(rows=5000):
    """A grid, and rows with nothing but a diagonal, as boundary conditions leave them, in between."""
    n = 900 + rows
    where = np.sort(np.random.default_rng(0).permutation(n)[:900])
    S = sp.csr_matrix((np.ones(900), (where, np.arange(900))), shape=(n, 900))
    rest = np.ones(n)
    rest[where] = 0
    return sp.csr_matrix(S @ gallery.poisson5(30) @ S.T + sp.diags(rest))


def one_sided(n=400):
    """Couplings above and below the diagonal at places that do not match."""
    A = sp.random(n, n, 3 / n, random_state=1, format="csr")
    return sp.csr_matrix(A + sp.diags(np.where(np.arange(n) % 3, 2.0, 0.0)))


def without_diagonal(n=60):
    A = sp.diags([np.ones(n - 1), -np.ones(n - 1)], [-1, 1], format="csr")
    A.data[::7] = 0  # stored zeros
    return A


@cache
def matrices():
    """name -> matrix; what partitioners stumble over."""
    found = {
        "isolated": isolated(),
        "pairs": sp.csr_matrix(sp.kron(sp.identity(4000), np.array([[2.0, -1], [-1, 2]]))),
        "diagonal": sp.identity(3000, format="csr"),
        "arrow": gallery.arrow(3000),
        "dense rows": long_rows(700),
        "chain": longest_chain(700),
        "one-sided": one_sided(),
        "without diagonal": without_diagonal(),
        "triangular": sp.csr_matrix(sp.tril(gallery.poisson7(9))),
        "ani4": gallery.anisotropic_triangles(4),
        "elasticity": gallery.elasticity(5, 4, 3),
        "circuit": gallery.g3_circuit_like(3000),
        "poisson7": gallery.poisson7(13, 11, 12),
        "complex": in_dtype(gallery.anisotropic_triangles(4), "complex64"),
        "single": in_dtype(gallery.convection_diffusion(20, 18, 1), "float32"),
        "huge and tiny": sp.csr_matrix(gallery.poisson5(20) * 1e-300 + sp.diags(np.logspace(-300, 300, 400))),
    }
    return found | {str(problem): problem.A for problem in gallery.small()}


NAMES = pytest.mark.parametrize("name", matrices())


def found(backend, S, size, method="aggregate"):
    """The parts on the host, and how many there are; of which what every partition promises is asserted."""
    A = as_csr(S, diagonal=False)
    result = partition(backend.move(A), size, method)
    assert isinstance(result.parts, backend.xp.ndarray)
    parts = backend.fetch(result.parts)
    assert parts.shape == (A.n,) and parts.dtype == np.int32 and type(result.count) is int
    used, first = np.unique(parts, return_index=True)
    np.testing.assert_array_equal(used, np.arange(result.count))
    assert (np.diff(first) > 0).all()  # in the order of their first rows
    assert result.method in METHODS[1:] and method in (result.method, "auto")
    return parts, result


def weights_of(S):
    """The couplings that count, as a symmetric matrix."""
    A = as_csr(S, diagonal=False)
    w = np.empty(A.nnz, np.int64)
    kernels_for(w).partition.couplings(A.indptr.astype(np.int64), A.indices, A.data, A.diag.astype(np.int64), w)
    W = sp.csr_matrix((w.astype(float), A.indices, A.indptr), shape=A.shape)
    W.eliminate_zeros()
    return sp.csr_matrix((W + W.T) / 2)


def dropped(S, parts):
    """The share of the couplings that lies between parts."""
    W = weights_of(S).tocoo()
    return W.data[parts[W.row] != parts[W.col]].sum() / W.data.sum()


# By definition


@NAMES
@pytest.mark.parametrize("size", SIZES)
def test_aggregates_are_connected_and_no_larger_than_promised(backend, name, size):
    S = matrices()[name]
    parts, result = found(backend, S, size)
    rows = np.bincount(parts)
    assert rows.max() <= size + size // 4
    W = weights_of(S).tocoo()
    inside = parts[W.row] == parts[W.col]
    _pieces, label = connected_components(sp.coo_matrix((W.data[inside], (W.row[inside], W.col[inside])), S.shape))
    several = np.bincount(parts[np.unique(label, return_index=True)[1]], minlength=result.count) > 1
    assert rows[several].max(initial=0) <= size  # packed ones
    assert (4 * np.bincount(label)[label[several[parts]]] < size).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ["isolated", "poisson7", "elasticity"])
def test_consecutive_parts_are_balanced(backend, name, size):
    parts, result = found(backend, matrices()[name], size, "natural")
    rows = np.bincount(parts)
    assert (np.diff(parts) >= 0).all() and rows.max() - rows.min() <= 1 and rows.max() <= size
    assert result.count == -(-parts.size // size)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shape", [(40,), (31, 17), (9, 50, 1), (13, 11, 12), (2, 2, 60), (3, 40, 2)])
def test_bricks_are_boxes_of_about_equal_sides(backend, shape, size):
    S = {1: gallery.tridiagonal, 2: gallery.poisson5, 3: gallery.poisson7}[len(shape)](*shape)
    parts, result = found(backend, S, size, "geometric")
    rows = np.bincount(parts)
    assert rows.max() <= TOLERATED * size
    assert rows.min() >= rows.max() / 8  # n // k and n // k + 1, in each direction
    nodes = parts.reshape(shape[::-1])
    for part in range(result.count):
        assert math.prod(np.ptp(w) + 1 for w in np.nonzero(nodes == part)) == rows[part]


def test_bricks_are_as_large_as_asked_for(backend):
    for S, size, most in (
        (gallery.poisson7(24), 512, 1.0),
        (gallery.poisson5(60), 400, 1.1),
        (gallery.poisson7(30), 500, 1.3),
    ):
        rows = np.bincount(found(backend, S, size, "geometric")[0])
        assert 0.7 * size <= rows.mean() and rows.max() <= most * size


@pytest.mark.parametrize("name", ["isolated", "dense rows", "one-sided", "ani4", "without diagonal", "complex"])
def test_metis_makes_as_many_parts_as_asked_for(backend, name):
    pytest.importorskip("pymetis")
    S = matrices()[name]
    parts, result = found(backend, S, 50, "metis")
    assert result.count <= max(1, round(S.shape[0] / 50))
    if name == "ani4":
        assert result.count == round(S.shape[0] / 50) and np.bincount(parts).max() <= 1.2 * 50
        assert dropped(S, parts) < 0.6 * dropped(S, found(backend, S, 50, "natural")[0])


# The same parts everywhere


@NAMES
def test_the_kernels_do_what_the_specification_does(monkeypatch, name):
    S = matrices()[name]
    if S.shape[0] > 1500:
        S = sp.csr_matrix(S[:1500, :1500])
    A = as_csr(S, diagonal=False)
    compiled = [partition(A, size, "aggregate") for size in SIZES], grid_of(A)
    monkeypatch.setattr(finelu.partition, "kernels_for", lambda array: reference)
    for result, size in zip(compiled[0], SIZES):
        want = partition(A, size, "aggregate")
        np.testing.assert_array_equal(result.parts, want.parts)
        assert result.count == want.count
    assert compiled[1] == grid_of(A)


def graph_of(draw_rows, seed):
    """A random symmetric graph as the kernels take it, and random wishes along its edges."""
    rng = np.random.default_rng(seed)
    S = sp.random(draw_rows, draw_rows, min(1.0, 4 / draw_rows), random_state=seed)
    W = sp.csr_matrix(sp.triu(S + S.T, 1))
    W.data = rng.integers(0, 4, W.nnz).astype(float)
    W = sp.csr_matrix(W + W.T)
    W.data = np.round(W.data)
    sizes = rng.integers(1, 6, draw_rows).astype(np.int32)
    wish = np.arange(draw_rows, dtype=np.int32)
    for i in range(draw_rows):
        near = W.indices[W.indptr[i] : W.indptr[i + 1]]
        if near.size and rng.random() < 0.8:
            wish[i] = rng.choice(near)
    starts = W.indptr.astype(np.int64)
    return (starts[:-1], starts[1:], W.indices.astype(np.int32), W.data.astype(np.int64), sizes), wish


@PATTERNS
@given(n=st.integers(1, 200), seed=st.integers(0, 1000), most=st.integers(2, 12))
def test_proposals_and_contractions_are_those_of_the_specification(backend, n, seed, most):
    graph, wish = graph_of(n, seed)
    xp, outcomes = backend.xp, []
    for kernels, move in ((reference, lambda v: v), (kernels_for(xp.empty(0)), backend.move)):
        given, before = [move(v) for v in graph], move(wish)
        zeros = [(np if kernels is reference else xp).zeros] * 2
        after = zeros[0](n, np.int32)
        kernels.partition.propose(*given, most, before, after)
        owner, totals = zeros[0](n, np.int32), zeros[0](n, np.int32)
        starts, stops = zeros[0](n, np.int64), zeros[0](n, np.int64)
        adjacent, sums = zeros[0](graph[2].size, np.int32), zeros[0](graph[2].size, np.int64)
        count = kernels.partition.contract(*given, after, most, owner, starts, stops, adjacent, sums, totals)
        lists = [backend.fetch(v) for v in (starts, stops, adjacent, sums)]
        edges = [sorted(zip(lists[2][a:z].tolist(), lists[3][a:z].tolist())) for a, z in zip(*lists[:2])][:count]
        outcomes.append((*(backend.fetch(v).tolist() for v in (after, owner, totals[:count])), edges))
    assert outcomes[0] == outcomes[1]


@PATTERNS
@given(n=st.integers(1, 200), seed=st.integers(0, 1000))
def test_a_graph_without_gaps_has_the_same_lists(backend, n, seed):
    graph, wish = graph_of(n, seed)
    graph, wish = [backend.move(v) for v in graph], backend.move(wish)
    contracted, _ = finelu.partition._contracted(graph, wish, 10)
    found, want = ([backend.fetch(v) for v in of] for of in (finelu.partition._without_gaps(contracted), contracted))
    begin, end, neighbours, weights, sizes = found
    assert begin[0] == 0 and end[-1] == neighbours.size == weights.size and np.array_equal(begin[1:], end[:-1])
    for i in range(begin.size):
        for got, of in ((neighbours, want[2]), (weights, want[3])):
            assert np.array_equal(got[begin[i] : end[i]], of[want[0][i] : want[1][i]])
    assert np.array_equal(sizes, want[4])


@ON_GPU
@NAMES
def test_a_gpu_finds_the_same_parts(backend, name):
    A = as_csr(matrices()[name], diagonal=False)
    assert grid_of(backend.move(A)) == grid_of(A)
    for method in ("aggregate", "auto"):
        for size in SIZES:
            parts, result = found(backend, A, size, method)
            np.testing.assert_array_equal(parts, partition(A, size, result.method).parts)


@ON_GPU
@PATTERNS
@given(A=dominant_matrices(largest=80), size=st.integers(1, 40))
def test_a_gpu_finds_the_same_parts_of_any_pattern(backend, A, size):
    parts, result = found(backend, A, size, "auto")
    np.testing.assert_array_equal(parts, partition(as_csr(A), size, result.method).parts)


@ON_GPU
@pytest.mark.parametrize("name", ["poisson7:60", "anisotropic_triangles:6", "arrow:200_000", "g3_circuit_like:100_000"])
def test_a_gpu_finds_the_same_parts_of_what_is_large(backend, name):
    A = as_csr(gallery.problem(name))
    first = found(backend, A, 500)[0]
    np.testing.assert_array_equal(first, partition(A, 500, "aggregate").parts)
    np.testing.assert_array_equal(first, found(backend, A, 500)[0])  # in every run


@PATTERNS
@given(A=dominant_matrices(), size=st.integers(1, 30))
def test_parts_of_any_pattern_are_parts(backend, A, size):
    for method in ("auto", "aggregate", "natural"):
        parts, _ = found(backend, A, size, method)
        assert np.bincount(parts).max() <= max(1.3 * size, size + size // 4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_parts_depend_on_neither_dtype_nor_index_type(backend, dtype, index):
    S = gallery.anisotropic_triangles(3)
    S.data = np.round(S.data * 2**10) / 2**10
    A = with_index(S.astype(dtype), index)
    np.testing.assert_array_equal(found(backend, A, 40)[0], found(backend, S, 40)[0])


def test_parts_do_not_depend_on_the_number_of_threads(threads):
    S, results = gallery.poisson7(30), []
    for count in (1, 2, 3):
        threads(count)
        results.append(partition(as_csr(S), 100, "aggregate").parts)
    assert all((parts == results[0]).all() for parts in results)


def test_parts_do_not_depend_on_the_units_of_unknowns(backend):
    S = gallery.anisotropic_triangles(4)
    D = sp.diags(2.0 ** np.random.default_rng(0).integers(-30, 30, S.shape[0]))
    np.testing.assert_array_equal(found(backend, S, 60)[0], found(backend, sp.csr_matrix(D @ S @ D), 60)[0])


# Behaviour


@pytest.mark.parametrize("name", ["isolated", "pairs", "diagonal", "arrow", "dense rows", "circuit", "one-sided"])
def test_what_is_small_is_packed_together(backend, name):
    S = matrices()[name]
    for size in (30, 200):
        _, result = found(backend, S, size)
        assert result.count <= 5 * S.shape[0] / size + 2, (size, result.count)


def test_couplings_that_grow_steadily_take_few_rounds(monkeypatch):
    """Each vertex of the chain would wish the next one, and one pair a round would match; 80 rounds, not some 900."""
    n, counted = 2000, []
    grown = 1.002 ** np.arange(n - 1)
    S = sp.diags_array([-grown, np.full(n, 3.0) * np.append(grown, grown[-1]), -grown], offsets=[-1, 0, 1]).tocsr()
    kernel = cpu.partition.propose
    monkeypatch.setattr(cpu.partition, "propose", lambda *a: (counted.append(0), kernel(*a)))
    assert partition(as_csr(S), 16, "aggregate").method == "aggregate"
    assert len(counted) < 30


def test_strong_couplings_stay_inside(backend):
    for S in (gallery.anisotropic_triangles(5), gallery.apache2_like(8, 30, 30)):
        aggregates, natural = (dropped(S, found(backend, S, 256, method)[0]) for method in ("aggregate", "natural"))
        assert aggregates < 0.5 * natural


def test_fewer_strong_couplings_are_cut_than_by_the_pattern_alone(backend):
    pytest.importorskip("pymetis")
    S = gallery.apache2_like(8, 30, 30)
    ones = sp.csr_matrix((np.ones(S.nnz), S.indices, S.indptr), shape=S.shape)
    assert dropped(S, found(backend, S, 256)[0]) < 0.5 * dropped(S, found(backend, ones, 256, "metis")[0])


def test_size_is_what_parts_come_near_to(backend):
    S = gallery.anisotropic_triangles(5)
    for size in (64, 256, 1024):
        rows = np.bincount(found(backend, S, size)[0])
        assert 0.5 * size <= rows.mean() <= size and rows.min() >= size / 4


def test_auto_takes_bricks_of_a_grid_and_on_a_gpu_where_couplings_are_alike(backend):
    of_unlike = "geometric" if backend.name == "cpu" else "aggregate"
    for S, method in (
        (gallery.poisson7(9), "geometric"),
        (gallery.poisson27(6), "geometric"),
        (gallery.helmholtz(12, 6), "geometric"),
        (gallery.atmosmodd_like(9, 8, 7), of_unlike),  # 10 times as large along z
        (gallery.apache2_like(8, 9, 10), of_unlike),
        (gallery.anisotropic_triangles(3), "aggregate"),
        (gallery.elasticity(4, 4, 4), "aggregate"),
        (gallery.random_dominant(200, 0.03), "aggregate"),
        (sp.identity(50, format="csr"), "aggregate"),
    ):
        assert found(backend, S, 50, "auto")[1].method == method


def stretched(shape, weights):
    """-div(k grad u) with k = weights along x, y, z, on a grid of this shape."""
    lines = [w * sp.diags([-1.0, 2.0, -1.0], [-1, 0, 1], (n, n)) for w, n in zip(weights, shape, strict=True)]
    x, y, z = (sp.identity(n) for n in shape)
    S = sp.kron(z, sp.kron(y, lines[0])) + sp.kron(z, sp.kron(lines[1], x)) + sp.kron(lines[2], sp.kron(y, x))
    return sp.csr_matrix(S)


@pytest.mark.parametrize(
    ("shape", "weights", "sides"),
    [
        ((24, 24, 24), (1.0, 1.0, 64.0), {(2, 2, 12)}),
        ((24, 24, 24), (64.0, 1.0, 1.0), {(12, 2, 2)}),
        ((24, 24, 24), (1.0, 1.0, 1 / 64), {(8, 8, 1)}),
        ((64, 64, 1), (100.0, 1.0, 1.0), {(22, 3, 1)}),
        ((64, 64, 1), (1e6, 1.0, 1.0), {(64, 1, 1)}),
        ((64, 8, 8), (1.0, 1e6, 1.0), {(3, 8, 3)}),
        ((24, 24, 24), (1.0, 2.0, 3.0), {(4, 4, 4)}),
    ],
)
def test_sides_of_bricks_are_as_the_roots_of_the_couplings(backend, shape, weights, sides):
    S = stretched(shape, weights)
    parts, result = found(backend, S, 64, "geometric")
    nodes, rows = parts.reshape(shape[::-1]), np.bincount(parts)
    boxes = [tuple(int(np.ptp(w)) + 1 for w in np.nonzero(nodes == p))[::-1] for p in range(result.count)]
    assert [math.prod(box) for box in boxes] == rows.tolist()
    assert tuple(max(box[k] for box in boxes) for k in range(3)) in sides
    assert rows.mean() >= 0.6 * 64 and rows.max() <= TOLERATED * 64


@pytest.mark.parametrize("weights", [(1.0, 1.0, 100.0), (1.0, 1.0, 0.01), (10.0, 1.0, 1.0)])
def test_bricks_of_unlike_sides_take_fewer_iterations_than_aggregates(weights):
    S = stretched((24, 24, 24), weights)
    b, counts = np.random.default_rng(1).uniform(-0.5, 0.5, S.shape[0]), []
    for method in ("auto", "aggregate"):
        F = fl.Schwarz(size=64, partition=method).factor(S)
        counts.append(fl.cg(S, b, M=F, rtol=1e-8).iterations)
    assert F.report.partition == "aggregate" and counts[0] < 0.9 * counts[1]


def conducting(conductivity):
    """A diffusion of 24^3 cells with the conductivities (24^3,)."""
    S = sp.triu(gallery.poisson7(24, 24, 24), 1).tocsr()
    i, j = S.nonzero()
    S.data[:] = -2 / (1 / conductivity[i] + 1 / conductivity[j])
    S = sp.csr_matrix(S + S.T)
    return sp.csr_matrix(S - sp.diags(np.asarray(S.sum(axis=1)).ravel() - 1e-3))


def test_auto_takes_bricks_where_couplings_jump_from_layer_to_layer():
    """Then they need no more iterations, each of which takes less time."""
    S = conducting(np.where(np.arange(24**3) // 24**2 // 3 % 2 == 0, 1.0, 1e4))
    assert partition(as_csr(S), 64).method == "geometric"
    b, counts = np.random.default_rng(1).uniform(-0.5, 0.5, S.shape[0]), []
    for method in ("auto", "aggregate"):
        F = fl.Schwarz(size=64, partition=method).factor(S)
        counts.append(fl.cg(S, b, M=F, rtol=1e-8).iterations)
    assert counts[0] <= 1.05 * counts[1]


def test_auto_takes_aggregates_on_the_cpu_where_bricks_tear_strong_couplings():
    """A tenth of the cells conducts far better, too few for couplings that jump from cell to cell."""
    rng, n = np.random.default_rng(3), 24
    conductivity = np.where(rng.uniform(size=n**3) < 0.1, 1e4, 1.0)
    S = sp.coo_array(gallery.poisson7(n))
    S.data = np.where(S.row == S.col, 0, -2 / (1 / conductivity[S.row] + 1 / conductivity[S.col]))
    S = S.tocsr()
    S = sp.csr_array(S + sp.diags_array(1 - np.asarray(S.sum(axis=1)).ravel()))
    S.sort_indices()
    assert not uneven(as_csr(S))
    assert partition(as_csr(S), 64).method == "aggregate"
    assert partition(as_csr(S), 64, "geometric").method == "geometric"
    assert partition(as_csr(gallery.poisson7(n)), 1).method == "geometric"  # every row is alone in its part


def test_auto_takes_aggregates_where_couplings_jump_from_cell_to_cell(backend):
    """Then they need fewer iterations: bricks cut strong couplings."""
    A = backend.move(conducting(10 ** np.random.default_rng(0).uniform(-3, 3, 24**3)))
    assert uneven(as_csr(A)) and partition(as_csr(A), 216).method == "aggregate"
    b, counts = backend.move(np.random.default_rng(1).uniform(-0.5, 0.5, 24**3)), []
    for method in ("auto", "geometric"):
        F = fl.Schwarz(size=216, partition=method).factor(A)
        counts.append(fl.cg(A, b, M=F, rtol=1e-8).iterations)
    assert counts[0] < 0.7 * counts[1]


def test_islands_of_well_conducting_cells_get_small_aggregates(backend):
    """A brick holds parts of several islands, each of which has a constant of its own; an aggregate seldom two."""
    conductivity = np.ones((24, 24, 24))
    for z, y, x in np.random.default_rng(2).integers(0, 24, (24**3 // 120, 3)):
        conductivity[z : z + 2, y : y + 2, x : x + 2] = 1e4
    A = backend.move(conducting(conductivity.ravel()))
    assert ISLANDS < jumping(as_csr(A)) <= OFTEN
    assert partition(as_csr(A), 64).method == "aggregate"
    b = backend.move(np.random.default_rng(1).uniform(-0.5, 0.5, 24**3))
    small = {"size": 32} if on_gpu(A.data) else {}  # on a GPU larger ones take less time
    aggregates, bricks = (fl.Schwarz(**more).factor(A) for more in (small, {"partition": "geometric", "size": 64}))
    assert aggregates.report.largest <= 1.25 * 32
    counts = [fl.cg(A, b, M=F, rtol=1e-8).iterations for F in (aggregates, bricks)]
    assert counts[0] < 0.25 * counts[1]


def test_aggregates_may_have_another_size_than_bricks(backend):
    for S, sizes in ((gallery.anisotropic_triangles(5), (64, 256)), (gallery.poisson7(24), (256, 64))):
        A = backend.move(as_csr(S))
        found = partition(A, 256, of_aggregates=64)
        assert found.count == partition(A, sizes[0]).count
        assert found.method == partition(A, 256).method and found.count != partition(A, sizes[1]).count


# Grids


def nine_points(nx, ny):
    """Bilinear elements, rows on the boundary being those of the identity."""
    line = lambda n: sp.diags([1.0, 4.0, 1.0], [-1, 0, 1], (n, n)) / 6  # noqa: E731
    second = lambda n: sp.diags([-1.0, 2.0, -1.0], [-1, 0, 1], (n, n))  # noqa: E731
    A = sp.csr_matrix(sp.kron(line(ny), second(nx)) + sp.kron(second(ny), line(nx)))
    inner = np.zeros((ny, nx), bool)
    inner[1:-1, 1:-1] = True
    D = sp.diags(inner.ravel().astype(float))
    A = sp.csr_matrix(D @ A @ D + sp.diags(1.0 - inner.ravel()))
    A.eliminate_zeros()
    return A


def without(S, *nodes):
    kept = np.delete(np.arange(S.shape[0]), nodes)
    return sp.csr_matrix(S[kept][:, kept])


@pytest.mark.parametrize(
    ("S", "shape"),
    [
        (gallery.ecology2_like(30, 30), (30, 30, 1)),
        *((without(gallery.poisson5(40, 30), node), (40, 30, 1)) for node in (0, 1, 39, 40, 617, 1160, 1198, 1199)),
        *((without(gallery.poisson27(9, 8, 7), node), (9, 8, 7)) for node in (0, 71, 72, 250, 503)),
        (gallery.tridiagonal(90), (90, 1, 1)),
        (gallery.bidiagonal(90), (90, 1, 1)),
        (gallery.poisson5(40, 30), (40, 30, 1)),
        (gallery.poisson5(2, 300), (2, 300, 1)),
        (gallery.poisson7(9, 8, 7), (9, 8, 7)),
        (gallery.poisson7(3, 2, 70), (3, 2, 70)),
        (gallery.poisson27(9, 8, 7), (9, 8, 7)),
        (gallery.poisson27(3, 3, 50), (3, 3, 50)),
        (gallery.convection_diffusion(20, 15, 10), (20, 15, 10)),
        (nine_points(30, 20), (30, 20, 1)),
        (nine_points(130, 140), (130, 140, 1)),
        (sp.csr_matrix(sp.tril(gallery.poisson7(9, 8, 7))), (9, 8, 7)),
        (in_dtype(gallery.poisson27(6, 7, 8), "complex64"), (6, 7, 8)),
    ],
    ids=str,
)
def test_a_grid_is_found(backend, S, shape):
    grid = grid_of(backend.move(as_csr(S)))
    assert grid is not None and grid.shape == shape and grid.alike


def test_the_search_for_a_hole_looks_at_few_rows(monkeypatch):
    """It looks at three lines of a grid of one plane, and before that at some windows, not at all rows."""
    looked_at, at = [], finelu.partition._at
    monkeypatch.setattr(
        finelu.partition, "_at", lambda v, ranges: (looked_at.append(sum(z - a for a, z in ranges)), at(v, ranges))[1]
    )
    for node in (0, 39, 40, 617, 1160, 1198):
        looked_at.clear()
        A = as_csr(without(gallery.poisson5(40, 300), node))
        assert grid_of(A).shape == (40, 300, 1)
        assert max(looked_at) <= 2000 < A.n


@pytest.mark.parametrize("node", [0, 7, 617, 1199])
def test_bricks_of_a_grid_without_a_node(backend, node):
    """Those of the whole grid, if they are two nodes wide: then none of them is empty."""
    S = gallery.poisson5(40, 30)
    want, whole = found(backend, S, 64, "geometric")
    parts, result = found(backend, without(S, node), 64, "geometric")
    np.testing.assert_array_equal(parts, np.delete(want, node))
    assert result.count == whole.count and result.shape == whole.shape
    assert found(backend, without(S, node), 1, "auto")[1].method == "aggregate"


def test_couplings_of_a_grid_are_those_of_its_directions(backend):
    grid = grid_of(backend.move(as_csr(gallery.apache2_like(8, 9, 10))))
    diagonal = gallery.apache2_like(8, 9, 10).diagonal().max()
    assert grid.couplings[0] > 0.4 and grid.couplings[1] == pytest.approx(4 / diagonal, rel=0.5)
    assert not grid.alike


def periodic(n):
    line = sp.diags([-1.0, -1.0, -1.0, -1.0], [-n + 1, -1, 1, n - 1], (n, n))
    return sp.csr_matrix(sp.kron(sp.identity(n), line) + sp.kron(line, sp.identity(n)) + 4 * sp.identity(n * n))


def with_entry(A, i, j):
    A = sp.lil_matrix(A)
    A[i, j] = -0.25
    return sp.csr_matrix(A)


@pytest.mark.parametrize(
    "S",
    [
        sp.identity(90, format="csr"),
        gallery.arrow(90),
        gallery.anisotropic_triangles(4),
        gallery.elasticity(4, 3, 3),
        gallery.random_dominant(300, 0.02),
        periodic(20),
        without(gallery.poisson7(9, 8, 7), 100, 300),
        with_entry(gallery.poisson7(10), 999, 0),
        with_entry(gallery.poisson7(10), 9, 10),
        with_entry(gallery.poisson5(40), 3, 5),
        sp.csr_matrix(gallery.poisson5(40)[::-1]),
    ],
    ids=str,
)
def test_what_is_no_grid_is_none(backend, S):
    A = backend.move(as_csr(S, diagonal=False))
    assert grid_of(A) is None
    with refused(MatrixError, match="not that of a grid"):
        partition(A, 10, "geometric")


def test_threads_that_look_for_a_grid_find_the_same(threads):
    """The same sums, or the same first row that does not fit, though a thread may meet another such row before it."""
    S = gallery.convection_diffusion(200, 190, 1, peclet=3)
    for far in ([], [37_999], [0], [20_000, 20_001, 37_000], [12_345, 7]):
        A = as_csr(with_entry(S, far, (np.array(far, int) + 19_000) % S.shape[0]))
        operands = A.indptr.astype(np.int64), A.indices, A.data, A.diag.astype(np.int64), 200, 190, A.n
        want, sums = np.zeros(6, np.int64), np.zeros(6, np.int64)
        if far in ([], [12_345, 7]):
            assert reference.partition.grid_couplings(*operands, want) == min(far, default=-1)
        for count in (1, 2, 3):
            threads(count)
            sums[:] = 0
            assert kernels_for(A.data).partition.grid_couplings(*operands, sums) == min(far, default=-1)
            assert far or (sums == want).all()


def test_bricks_are_made_of_unequal_couplings_where_they_are_asked_for(backend):
    parts, result = found(backend, gallery.apache2_like(8, 16, 16), 512, "geometric")
    assert result.method == "geometric" and result.count == 4
    assert np.bincount(parts).tolist() == [512] * 4


# Bad input


@pytest.mark.parametrize("size", [0, -3, 2.5, "500", None, True])
def test_a_size_that_is_none(size):
    with refused(ParameterError, match="size="):
        partition(as_csr(gallery.poisson5(5)), size)


def test_a_method_that_does_not_exist():
    with refused(ParameterError, match="Did you mean 'aggregate'"):
        partition(as_csr(gallery.poisson5(5)), 10, "agregate")


def test_metis_that_is_not_installed(not_installed):
    not_installed("pymetis")
    with refused(ParameterError, match=r"finelu\[metis\].*use 'aggregate'"):
        partition(as_csr(gallery.poisson5(5)), 10, "metis")


def test_the_matrix_stays_as_it_is(backend):
    S = in_dtype(gallery.anisotropic_triangles(3), "float64")
    A = backend.move(as_csr(S))
    copies = [backend.fetch(v).copy() for v in (A.indptr, A.indices, A.data, A.diag)]
    for method in ("aggregate", "natural", "auto"):
        partition(A, 20, method)
    for before, after in zip(copies, (A.indptr, A.indices, A.data, A.diag)):
        np.testing.assert_array_equal(before, backend.fetch(after))


@pytest.mark.parametrize("method", ["aggregate", "geometric", "natural"])
def test_a_size_beyond_all_rows_makes_one_part(backend, method):
    for size in (300, 10**30):
        assert found(backend, gallery.poisson5(15), size, method)[1].count == 1


@pytest.mark.parametrize("size", [10, 100])
def test_values_decide(backend, size):
    S = gallery.anisotropic_triangles(4)
    other = S.copy()
    other.data = np.where(other.data == 1, 1.0, abs(values(S.nnz, "float64")))
    assert (found(backend, S, size)[0] != found(backend, other, size)[0]).any()


@pytest.mark.parametrize("hole", [None, 0, 17, -1])
@pytest.mark.parametrize("shape", [(7, 5, 3), (40, 1, 1), (12, 30, 1), (64, 64, 33)])
def test_bricks(backend, shape, hole):
    cuts, nodes = [min(n, k) for n, k in zip(shape, (3, 4, 2), strict=True)], int(np.prod(shape))
    want = np.empty(nodes - (hole is not None), np.int32)
    hole = nodes if hole is None else hole % nodes
    reference.partition.bricks(*shape, *cuts, hole, want)
    got = backend.move(np.empty_like(want))
    kernels_for(got).partition.bricks(*shape, *cuts, hole, got)
    np.testing.assert_array_equal(backend.fetch(got), want)
    whole = np.empty(nodes, np.int32)
    reference.partition.bricks(*shape, *cuts, nodes, whole)
    assert set(whole) == set(range(np.prod(cuts)))
    np.testing.assert_array_equal(want, np.delete(whole, hole) if hole < nodes else whole)


@pytest.mark.parametrize("hole", [0, 5, 6, 7, 20, 41])
def test_couplings_of_a_grid_with_a_hole_are_those_of_the_specification(backend, hole):
    A = as_csr(without(gallery.convection_diffusion(7, 6, 1, peclet=3), hole))
    indptr, indices, diag = A.indptr.astype(np.int64), A.indices, A.diag.astype(np.int64)
    for assumed in (hole, 41):
        want, sums = np.zeros(6, np.int64), np.zeros(6, np.int64)
        row = reference.partition.grid_couplings(indptr, indices, A.data, diag, 7, 6, assumed, want)
        operands = (backend.move(v) for v in (indptr, indices, A.data, diag))
        got = kernels_for(backend.move(A.data)).partition.grid_couplings(*operands, 7, 6, assumed, sums)
        assert got == row and (assumed != hole or row == -1)
        assert row >= 0 or (sums == want).all()


def test_strong_pairs_are_those_of_scattered_strong_couplings():
    """Regions of strong couplings have rows with several of them; the order of the rows does not count."""
    rng = np.random.default_rng(1)
    islands = conducting(np.where(rng.uniform(size=24**3) < 0.1, 1e4, 1.0))
    jumps = conducting(10 ** rng.uniform(-3, 3, 24**3))
    order = rng.permutation(24**3)
    for S in (islands, jumps, sp.csr_matrix(islands[order][:, order])):
        S.sort_indices()
        assert has_strong_pairs(as_csr(S))
    layers = conducting(np.where(np.arange(24**3) // 24**2 // 3 % 2 == 0, 1.0, 1e4))
    halves = conducting(np.where(np.arange(24**3) < 24**3 // 2, 1.0, 1e4))
    chain = sp.diags([[-1.0] * 99, [2.0] * 100, [-1.0] * 99], [-1, 0, 1], format="csr")
    for S in (layers, halves, gallery.poisson7(24, 24, 24), chain, sp.identity(5, format="csr")):
        assert not has_strong_pairs(as_csr(S))
