"""Multi-block matrices: by the one block that they were cut from, whatever way the parts are turned; by bad input."""

import copy
import pickle
import re

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, ON_GPU, PATTERNS, assert_close, one_line, refused, values
from hypothesis import assume, given
from hypothesis import strategies as st
from multiblock_cases import AS_IT_IS, TURNS, Cut
from stencil_cases import dense, random_blocks

import finelu as fl
from finelu.errors import MatrixError, ParameterError

N = 2


@st.composite
def cuts(draw):
    """A Cut, the shape of the grid, and whether it is closed along the axis that is cut."""
    shape = tuple(draw(st.integers(1, 4)) for _ in range(3))
    axis, closed = draw(st.integers(0, 2)), draw(st.booleans())
    places = draw(st.sets(st.integers(1, max(shape[axis] - 1, 1)), max_size=shape[axis] - 1))
    turns = [draw(st.sampled_from(TURNS)) for _ in range(len(places) + 1)]
    return Cut(shape, axis, sorted(places), turns, closed), shape, closed, axis


def whole(cut, A, x, shape):
    """x of a grid (I, J, K, n) as the vector of the blocks."""
    return A.join(cut.parts(x.reshape(*shape, -1)))


@PATTERNS
@given(cuts())
def test_products_are_those_of_the_uncut_grid(case):
    cut, shape, closed, axis = case
    periodic = tuple(closed and a == axis for a in range(3))
    blocks = random_blocks(shape, N)
    D, x, b = (
        dense(blocks, periodic),
        values(np.prod(shape) * N, "float64", 1),
        values(np.prod(shape) * N, "float64", 2),
    )
    parts = cut.blocks(blocks)
    A = fl.MultiblockMatrix(cut.grid(parts), parts)
    assert_close(A @ whole(cut, A, x, shape), whole(cut, A, D @ x, shape), 200)
    assert_close(A.rmatvec(whole(cut, A, x, shape)), whole(cut, A, D.T @ x, shape), 200)
    assert_close(A.residual(*(whole(cut, A, v, shape) for v in (b, x))), whole(cut, A, b - D @ x, shape), 200)
    own = np.array([whole(cut, A, column, shape) for column in np.eye(x.size)]).T  # a permutation matrix
    assert_close(A.tocsr().toarray(), own @ D @ own.T, 8)
    assert A.nnz == fl.StencilMatrix(blocks, periodic).nnz
    entries, row, column = A.bounds()
    assert entries == A.most_in_row == 7 * N
    assert np.linalg.norm(D) <= A.norm_bound() * (1 + 1e-12)
    stored = np.concatenate([S.blocks.ravel() for S in A.stencils.values()])
    np.testing.assert_allclose(A.norm_bound(), np.sqrt(7) * np.linalg.norm(stored), rtol=1e-6)
    assert abs(D).sum(axis=1).max() <= row * (1 + 1e-12)
    assert abs(D).sum(axis=0).max() <= column * (1 + 1e-12)


@PATTERNS
@given(cuts(), st.integers(1, 2))
def test_exchange_continues_the_block(case, depth):
    cut, shape, closed, axis = case
    cells = np.arange(np.prod(shape)).reshape(shape)
    parts = cut.parts(cells)
    assume(all(part.shape[cut.turns[k][0].index(axis)] >= depth for k, part in parts.items()))
    ghosts = cut.grid(cut.blocks(random_blocks(shape, 1))).exchange(parts, depth)
    around = np.take(cells, range(-depth, shape[axis] + depth), axis=axis, mode="wrap" if closed else "clip")
    for k, own in enumerate(cut.slices):
        wanted = np.moveaxis(np.moveaxis(around, axis, 0)[own.start : own.stop + 2 * depth], 0, axis)
        a = cut.turns[k][0].index(axis)
        got, low, high = parts[k], f"{'ijk'[a]}-", f"{'ijk'[a]}+"
        first, last = own.start == 0 and not closed, own.stop == shape[axis] and not closed
        wanted = np.moveaxis(wanted, axis, 0)
        wanted = np.moveaxis(wanted[depth * first : len(wanted) - depth * last], 0, axis)
        axes, flips = cut.turns[k]
        wanted = wanted.transpose(axes)[tuple(slice(None, None, f) for f in flips)]
        got = np.concatenate([ghosts[k][f] for f in (low,) if f in ghosts[k]] + [got], axis=a)
        got = np.concatenate([got] + [ghosts[k][f] for f in (high,) if f in ghosts[k]], axis=a)
        assert np.array_equal(got, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("recipe", [fl.BlockILU0(), fl.BlockJacobi()])
def test_factors_are_those_of_each_block(dtype, recipe):
    blocks = random_blocks((5, 4, 3), N, dtype)
    cut = Cut((5, 4, 3), 0, [2], [AS_IT_IS, TURNS[17]])
    parts = cut.blocks(blocks)
    A = fl.MultiblockMatrix(cut.grid(parts), parts)
    F, r = recipe.factor(A), values(A.shape[0], dtype, 5)
    ends = np.cumsum([fl.StencilMatrix(part).shape[0] for part in parts.values()])
    for trans in "NTH":
        pieces = [recipe.factor(fl.StencilMatrix(part)).solve(piece, trans)
                  for part, piece in zip(parts.values(), np.split(r, ends[:-1]), strict=True)]  # fmt: skip
        assert_close(F.solve(r, trans), np.concatenate(pieces), 0)
        assert_close(F.solve(np.stack((r, 2 * r), axis=1), trans)[:, 1], F.solve(2 * r, trans), 0)
    other = {k: 2 * part for k, part in parts.items()}
    F.update(fl.MultiblockMatrix(A.grid, other))
    assert_close(F.solve(2 * r), recipe.factor(A).solve(r), 8)


@ON_GPU
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_gpu_gives_what_the_host_gives(backend, dtype):
    blocks = random_blocks((5, 4, 3), N, dtype)
    cut = Cut((5, 4, 3), 0, [1, 3], [TURNS[9], AS_IT_IS, TURNS[33]], closed=True)
    parts = cut.blocks(blocks)
    host = fl.MultiblockMatrix(cut.grid(parts), parts)
    A = fl.MultiblockMatrix(cut.grid(parts), {k: backend.move(part) for k, part in parts.items()})
    x, b = (values(host.shape[0], dtype, seed) for seed in (1, 2))
    X, B = backend.move(x), backend.move(b)
    assert_close(backend.fetch(A @ X), host @ x, 50)
    assert_close(backend.fetch(A.residual(B, X)), host.residual(b, x), 50)
    assert_close(backend.fetch(A.rmatvec(X)), host.rmatvec(x), 50)
    assert_close(backend.fetch(A.tocsr()).toarray(), host.tocsr().toarray(), 8)
    F, G = fl.BlockILU0().factor(A), fl.BlockILU0().factor(host)
    assert_close(backend.fetch(F.solve(B)), G.solve(b), 200)
    rtol = 1e-4 if dtype in ("float32", "complex64") else 1e-10
    for method in (fl.richardson, fl.gmres):
        here, there = method(A, B, M=F, rtol=rtol), method(host, b, M=G, rtol=rtol)
        assert here.converged and abs(here.iterations - there.iterations) <= 1
    fields = {k: values(part.shape[1:4], dtype, 7) for k, part in parts.items()}
    ghosts = A.grid.exchange({k: backend.move(field) for k, field in fields.items()})
    for k, faces in host.grid.exchange(fields).items():
        for face, layers in faces.items():
            assert np.array_equal(backend.fetch(ghosts[k][face]), layers)


def test_methods_solve_with_blocks_as_with_one():
    shape = (6, 5, 4)
    blocks = random_blocks(shape, N, seed=3)
    cut = Cut(shape, 1, [2], [TURNS[5], TURNS[40]], closed=True)
    parts = cut.blocks(blocks)
    A, S = fl.MultiblockMatrix(cut.grid(parts), parts), fl.StencilMatrix(blocks, (False, True, False))
    x = values(S.shape[0], "float64", 4)
    b, F = whole(cut, A, S @ x, shape), fl.BlockILU0().factor(A)
    for method in (fl.richardson, fl.gmres, fl.bicgstab, fl.bicg):
        solution = method(A, b, M=F, rtol=1e-12, maxiter=200)
        assert solution.converged, method
        assert np.linalg.norm(solution.x - whole(cut, A, x, shape)) < 1e-10 * np.linalg.norm(x)
    assert fl.solve(A, b, rtol=1e-10).converged
    single = fl.richardson(S, S @ x, M=fl.BlockILU0().factor(S), rtol=1e-12, maxiter=200)
    assert single.converged and fl.richardson(A, b, M=F, rtol=1e-12).iterations <= 3 * single.iterations


def test_lists_of_numbers_couple_too():
    fine = {name: random_blocks(shape, N) for name, shape in TWO.items()}
    grid = fl.MultiblockGrid(TWO, A_B)
    A, B = (fl.MultiblockMatrix(grid, blocks) for blocks in (fine, {k: v.tolist() for k, v in fine.items()}))
    x = values(A.shape[0], "float64", 1)
    assert_close(B @ x, A @ x, 0)


def test_the_order_of_the_blocks_counts():
    fine = {name: random_blocks(shape, N) for name, shape in TWO.items()}
    F = fl.BlockILU0().factor(fl.MultiblockMatrix(fl.MultiblockGrid(TWO, A_B), fine))
    other = fl.MultiblockGrid(dict(reversed(TWO.items())), A_B)
    with pytest.raises(MatrixError, match="update needs the grid"):
        F.update(fl.MultiblockMatrix(other, fine))


def test_copies_are_whole():
    fine = {name: random_blocks(shape, N) for name, shape in TWO.items()}
    A = fl.MultiblockMatrix(fl.MultiblockGrid(TWO, A_B), fine)
    F, x = fl.BlockILU0().factor(A), values(A.shape[0], "float64", 1)
    for B, G in (pickle.loads(pickle.dumps((A, F))), copy.deepcopy((A, F))):
        assert_close(B @ x, A @ x, 0)
        assert_close(G.solve(x), F.solve(x), 0)
        G.update(B)


def test_layers_of_neighbours_are_copies():
    grid = fl.MultiblockGrid(TWO, A_B)
    fields = {name: np.ones(shape) for name, shape in TWO.items()}
    ghosts = grid.exchange(fields)
    fields["b"][:] = 7
    assert (ghosts["a"]["i+"] == 1).all()
    for depth in (0, -1, 1.5, True):
        with pytest.raises(ParameterError, match="depth"):
            grid.exchange(fields, depth)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_the_bound_of_the_norm_is_one_where_all_blocks_fall_on_one_place(dtype):
    blocks = np.ones((7, 1, 1, 1, 2, 2), dtype)
    closed = [fl.Interface(0, f"{axis}+", 0, f"{axis}-") for axis in "ijk"]
    several = fl.MultiblockMatrix(fl.MultiblockGrid([(1, 1, 1)], closed), [blocks])
    for A in (fl.StencilMatrix(blocks, (True, True, True)), several):
        size = np.linalg.norm(A.tocsr().toarray().astype(np.complex128), 2)
        assert size == pytest.approx(14) and 14 <= A.norm_bound() <= 14 * (1 + 1e-6)
    B = fl.BlockMatrix.from_csr(sp.csr_matrix(np.ones((4, 4), dtype)), 2)
    assert 4 <= B.norm_bound() <= 4 * (1 + 1e-6)


def test_bounds_that_overflow_are_infinite():
    blocks = np.full((7, 2, 2, 1, 2, 2), 1.5e308 * (1 + 1j))
    grid = fl.MultiblockGrid([(2, 2, 1)], [fl.Interface(0, "i+", 0, "i-")])
    with np.errstate(all="ignore"):
        for A in (fl.StencilMatrix(blocks), fl.MultiblockMatrix(grid, [blocks])):
            assert A.bounds()[1:] == (np.inf, np.inf)
            assert A.norm_bound() == np.inf


def test_entries_beyond_a_precision_are_found_in_every_block():
    fine = {name: random_blocks(shape, N) for name, shape in TWO.items()}
    fine["b"][3, 0, 0, 0, 0, 1] = 1e300
    A = fl.MultiblockMatrix(fl.MultiblockGrid(TWO, A_B), fine)
    for recipe in (fl.BlockILU0(precision="float32"), fl.BlockJacobi(precision="float32")):
        with pytest.raises(MatrixError, match="beyond the range of float32"):
            recipe.factor(A)


def test_one_block_is_the_stencil_matrix():
    blocks = random_blocks((4, 3, 2), N)
    A, S = fl.MultiblockMatrix(fl.MultiblockGrid([(4, 3, 2)]), [blocks]), fl.StencilMatrix(blocks)
    x = values(S.shape[0], "float64", 1)
    assert_close(A @ x, S @ x, 0)
    assert_close(fl.BlockILU0().factor(A).solve(x), fl.BlockILU0().factor(S).solve(x), 0)
    assert [part.shape for part in A.split(x).values()] == [(4, 3, 2, N)]
    assert repr(A) == "MultiblockMatrix(1 blocks, 24 cells, n=2, float64, CPU)"


def test_blocks_that_point_outside_are_not_looked_at():
    cut = Cut((4, 3, 2), 0, [2], [AS_IT_IS] * 2)
    parts = cut.blocks(random_blocks((4, 3, 2), N))
    A = fl.MultiblockMatrix(cut.grid(parts), parts)
    outside = {k: part.copy() for k, part in parts.items()}
    outside[0][2, 0] = outside[1][4, -1] = outside[0][0, :, :, 0] = np.nan
    B = fl.MultiblockMatrix(A.grid, outside)
    x = values(A.shape[0], "float64", 1)
    assert_close(B @ x, A @ x, 0)
    assert_close(B.rmatvec(x), A.rmatvec(x), 0)


A_B = [fl.Interface("a", "i+", "b", "i-")]
TWO = {"a": (2, 3, 4), "b": (5, 3, 4)}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fl.Interface("a", "i", "b", "i-"), "'i' is no face"),
        (lambda: fl.Interface("a", "i-", "a", "i-"), "joins a face with itself"),
        (lambda: fl.Interface("a", "i-", "b", "j-", ("j", "k")), "along=('j', 'k'); the two axes of face j-, i and k"),
        (lambda: fl.MultiblockGrid(TWO | {"b": (5, 3, 3)}, A_B), "does not match: block 'a' has 4 cells along k"),
        (lambda: fl.MultiblockGrid(TWO, [fl.Interface("a", "i+", "b", "i-", ("k", "j"))]), "'a' has 3 cells along j"),
        (lambda: fl.MultiblockGrid(TWO, A_B * 2), "face i+ of block 'a' is in two interfaces"),
        (lambda: fl.MultiblockGrid(TWO, [fl.Interface("a", "i+", "c", "i-")]), "there is no block 'c'"),
        (lambda: fl.MultiblockGrid(TWO, ["a"]), "interfaces holds a str"),
        (lambda: fl.MultiblockGrid({"a": (2, 0, 1)}), "block 'a' has shape (2, 0, 1)"),
        (lambda: fl.MultiblockGrid({}), "process 0 of 1 has no block"),
    ],
)
def test_grids_that_do_not_fit(make, words):
    with refused(MatrixError, match=re.escape(words)):
        make()


def test_matrices_that_do_not_fit():
    grid = fl.MultiblockGrid(TWO, A_B)
    fine = {name: random_blocks(shape, N) for name, shape in TWO.items()}

    def misfit(blocks, words):
        with refused(MatrixError, match=re.escape(words)):
            fl.MultiblockMatrix(grid, blocks)

    misfit({"a": fine["a"]}, "blocks has no block 'b'; the grid has 'a', 'b' here")
    misfit(fine | {"c": fine["a"]}, "blocks has a block 'c'")
    misfit(fine | {"b": fine["a"]}, "block 'b' has (2, 3, 4) cells")
    misfit(fine | {"b": random_blocks(TWO["b"], 3)}, "need the same n")
    misfit(fine | {"b": fine["b"].astype(np.float32)}, "need the same n, dtype")
    misfit(fine | {"b": fine["b"][:6]}, "block 'b': blocks has shape")
    for place, cell in ((3, (1, 2, 3)), (2, (0, 1, 1))):
        broken = fine["b"].copy()
        broken[(place, *cell)] = np.inf
        misfit(fine | {"b": broken}, "block 'b': blocks holds NaN or Inf in " + ("delta" if place == 3 else "gamma"))
    A = fl.MultiblockMatrix(grid, fine)
    with pytest.raises(MatrixError, match="the part of block 'a' has shape"):
        A.join({"a": np.zeros((2, 3, 4)), "b": np.zeros((5, 3, 4, N))})
    with pytest.raises(ParameterError, match="depth=3: block 'a' has 2 cells across face"):
        grid.exchange({name: np.zeros(shape) for name, shape in TWO.items()}, depth=3)
    with pytest.raises(MatrixError, match="the array of block 'b' has shape"):
        grid.exchange({"a": np.zeros(TWO["a"]), "b": np.zeros((1, 3, 4))})
    with pytest.raises(MatrixError, match="'b' holds Python objects; numbers are needed"):
        grid.exchange({"a": np.zeros(TWO["a"]), "b": np.zeros(TWO["b"], object)})


def test_a_singular_block_is_named():
    fine = {name: random_blocks(shape, N) for name, shape in TWO.items()}
    fine["b"][3, 0, 1, 2] = 0
    fine["b"][:3, 0, 1, 2] = 0
    A = fl.MultiblockMatrix(fl.MultiblockGrid(TWO, A_B), fine)
    for recipe in (fl.BlockILU0(), fl.BlockJacobi()):
        with pytest.raises(fl.ZeroPivot, match=r"block 'b': the diagonal block of cell \(0, 1, 2\)") as caught:
            recipe.factor(A)
        assert one_line(caught) and pickle.loads(pickle.dumps(caught.value)).cell == (0, 1, 2)
    F = fl.BlockILU0().factor(fl.MultiblockMatrix(A.grid, {n: random_blocks(s, N) for n, s in TWO.items()}))
    with pytest.raises(MatrixError, match="update needs the grid"):
        F.update(fl.MultiblockMatrix(fl.MultiblockGrid(TWO), {n: random_blocks(s, N) for n, s in TWO.items()}))
