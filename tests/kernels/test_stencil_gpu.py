"""Stencil matrices and their block ILU(0) on the GPU: against the CPU's kernels for every size of block, type and way
to solve; against the paper's ACC style; the same bits in every run; what is queued without waiting; bad input."""

import re
from pathlib import Path

import numpy as np
import pytest
from checks import DTYPES, PATTERNS, assert_close, one_line, refused, run_at_once, values
from hypothesis import given
from hypothesis import strategies as st
from stencil_cases import OPEN, random_blocks

import finelu as fl
from finelu import BlockILU0, ParameterError, SingularBlock, StencilMatrix, richardson
from finelu.errors import DeviceError
from finelu.kernels import cpu

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cupy")]

# small and prime sizes, one of each side of a warp, and tiles that are full or have a ragged edge
SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 31, 32, 33, 48, 64, 65, 97, 128)
# every size with float64, and some with each other type: each pair is a kernel to compile
PAIRS = [(n, "float64") for n in SIZES] + [(n, d) for d in DTYPES if d != "float64" for n in (1, 6, 32, 33, 97)]
LONG = (
    (1, 1, 1),
    (1, 1, 501),
    (1, 499, 1),
    (997, 1, 1),
    (2, 211, 1),
    (1, 3, 307),
    (101, 1, 2),
    (31, 37, 2),
    (7, 11, 13),
)


@pytest.fixture
def stencil(cupy):
    from finelu.kernels.cuda import stencil

    return stencil


def grid_for(n):
    """A small grid: six cells with all neighbours for small blocks, fewer cells for large ones."""
    return (3, 4, 5) if n <= 8 else (2, 3, 2) if n <= 33 else (2, 2, 1)


def problem(shape, n, dtype, *, pivots=False, seed=0):
    """Blocks of a matrix on the host, zero outside, and a right-hand side; pivots : they lie off the diagonals."""
    blocks = StencilMatrix(random_blocks(shape, n, dtype, seed)).blocks.copy()
    if pivots:
        blocks[3] = np.roll(blocks[3], 1, axis=-2)
    return blocks, values(int(np.prod(shape)) * n, dtype, seed + 1)


def factor_on_host(blocks, pivoting):
    d = np.empty(blocks.shape[1:], blocks.dtype)
    assert cpu.stencil.block_ilu_factor(blocks, d, pivoting) == -1
    return d


def solve_on_host(blocks, d, b, trans):
    x = np.empty_like(b)
    cpu.stencil.block_ilu_solve(blocks, d, b, x, trans)
    return x


def agree(got, want, blocks):
    assert_close(got.get().reshape(-1), want.reshape(-1), 64 * (8 + blocks.shape[-1]), abs(want).max())


def as_on_the_cpu(cupy, factor, solve, blocks, b, pivoting, transposes):
    """Factors, and solutions with those of the CPU, are the CPU's to rounding."""
    want = factor_on_host(blocks, pivoting)
    there, d, x = cupy.asarray(blocks), cupy.full(want.shape, 7, want.dtype), cupy.full(b.shape, 7, b.dtype)
    assert factor(there, d, pivoting).item() == -1
    agree(d, want, blocks)
    d.set(want)
    for trans in transposes:
        solve(there, d, cupy.asarray(b), x, trans)
        agree(x, solve_on_host(blocks, want, b, trans), blocks)


# By twin: the CPU's kernels


@pytest.mark.parametrize("pivoting", [False, True])
@pytest.mark.parametrize(("n", "dtype"), PAIRS)
def test_factors_and_solves_are_those_of_the_cpu(cupy, stencil, n, dtype, pivoting):
    system = problem(grid_for(n), n, dtype, pivots=pivoting and n > 1)
    as_on_the_cpu(cupy, stencil.block_ilu_factor, stencil.block_ilu_solve, *system, pivoting, "NTH")


def test_rows_in_shared_memory_are_as_far_apart_as_the_kernel_has_them(stencil):
    text = Path(stencil.__file__).with_name("stencil.cu").read_text()
    for name in ("PADDED_FROM", "ONCE_FROM"):
        assert int(re.search(rf"{name} = (\d+);", text)[1]) == getattr(stencil, name)
    for itemsize in (4, 8, 16):
        for n in range(stencil.PADDED_FROM, 33):
            row = n * itemsize
            word = next(w for w in (16, 8, 4) if row % w == 0)
            stride = stencil.row_stride(n, itemsize) * itemsize
            assert stride % word == 0
            if n < stencil.ONCE_FROM or row % 128 == 0:
                assert stride // word % 2 == 1, "rows of an odd number of words, as wide as they allow"
            else:
                assert stride == row


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("n", [2, 6, 33])
def test_negative_zeros_of_a_block_are_small(cupy, stencil, n, dtype):
    blocks, _ = problem(grid_for(n), n, dtype, pivots=True)
    zero = np.random.default_rng(2).random(blocks[3].shape) < 0.5
    zero[..., np.roll(np.eye(n, dtype=bool), 1, axis=0)] = False
    blocks[3][zero] = 0
    blocks = -blocks
    assert np.signbit(blocks[3].real[zero]).all()
    want = factor_on_host(blocks, True)
    d = cupy.empty(want.shape, dtype)
    assert stencil.block_ilu_factor(cupy.asarray(blocks), d, True).item() == -1
    agree(d, want, blocks)


@pytest.mark.parametrize("periodic", [OPEN, (True, True, True), (True, False, False), (False, True, True)], ids=str)
@pytest.mark.parametrize(("n", "dtype"), [*PAIRS, *((129, dtype) for dtype in DTYPES)])
def test_the_residual_is_that_of_the_cpu(cupy, stencil, n, dtype, periodic):
    shape = grid_for(n)
    blocks = StencilMatrix(random_blocks(shape, n, dtype), periodic).blocks
    x, b = values(int(np.prod(shape)) * n, dtype, 1), values(int(np.prod(shape)) * n, dtype, 2)
    there, got = cupy.asarray(blocks), cupy.full(x.shape, 7, dtype)
    for right in (None, b):
        want = np.empty_like(x)
        cpu.stencil.stencil_residual(blocks, periodic, x, right, want)
        stencil.stencil_residual(there, periodic, cupy.asarray(x), None if right is None else cupy.asarray(b), got)
        agree(got, want, blocks)
    over = cupy.asarray(b)
    stencil.stencil_residual(there, periodic, cupy.asarray(x), over, over)
    np.testing.assert_array_equal(over.get(), got.get())


@pytest.mark.parametrize("shape", LONG, ids=str)
@pytest.mark.parametrize("n", [1, 6])
def test_long_thin_and_prime_grids(cupy, stencil, shape, n):
    system = problem(shape, n, "float64")
    as_on_the_cpu(cupy, stencil.block_ilu_factor, stencil.block_ilu_solve, *system, True, "NT")


@PATTERNS
@given(shape=st.tuples(*[st.integers(1, 9)] * 3), n=st.sampled_from([2, 6, 34]), seed=st.integers(0, 99))
def test_any_grid(cupy, stencil, shape, n, seed):
    system = problem(shape if n < 30 else tuple(min(s, 3) for s in shape), n, "float64", seed=seed)
    as_on_the_cpu(cupy, stencil.block_ilu_factor, stencil.block_ilu_solve, *system, False, "H")


@pytest.mark.parametrize("pivoting", [False, True])
@pytest.mark.parametrize("cells", [1, 3, 8, 28])
def test_cells_of_a_thread_block_and_preloading_change_no_bit(cupy, stencil, cells, pivoting):
    blocks, b = problem((7, 5, 6), 6, "float64")
    there, b = cupy.asarray(blocks), cupy.asarray(b)
    results = []
    plans = [stencil.StencilPlan((7, 5, 6), 6)]
    plans.append(stencil.StencilPlan((7, 5, 6), 6, cells_per_block=cells, preload=False))
    assert [plan.preload for plan in plans] == [True, False]
    for plan in plans:
        d, x = cupy.empty(blocks.shape[1:]), cupy.empty_like(b)
        stencil.block_ilu_factor(there, d, pivoting, plan)
        stencil.block_ilu_solve(there, d, b, x, "N", plan)
        results.append((d.get(), x.get()))
    for got, want in zip(*results, strict=True):
        np.testing.assert_array_equal(got, want)


# A warp a cell


def solved(cupy, stencil, blocks, b, pivoting, **arguments):
    """d, and x of each way to solve with it, by a plan of its own."""
    plan = stencil.StencilPlan(blocks.shape[1:4], blocks.shape[-1], **arguments)
    d = cupy.empty(blocks.shape[1:])
    assert stencil.block_ilu_factor(blocks, d, pivoting, plan).item() == -1
    found = [d.get()]
    for trans in ("N", "T"):
        x = cupy.empty_like(b)
        stencil.block_ilu_solve(blocks, d, b, x, trans, plan)
        found.append(x.get())
    return found


@pytest.mark.parametrize("pivoting", [False, True])
@pytest.mark.parametrize("n", [5, 6, 7, 8])
def test_warps_and_threads_of_a_cell_give_the_same(cupy, stencil, n, pivoting):
    blocks, b = problem((33, 30, 29), n, "float64", pivots=pivoting)
    there, right = cupy.asarray(blocks), cupy.asarray(b)
    assert stencil.plan_of(there).by_warps
    by_threads = solved(cupy, stencil, there, right, pivoting, by_warps=False)
    for got, want in zip(solved(cupy, stencil, there, right, pivoting, by_warps=True), by_threads, strict=True):
        assert_close(got.reshape(-1), want.reshape(-1), 64 * (8 + n), abs(want).max())


@pytest.mark.parametrize("cells", [1, 3, 32])
def test_warps_of_a_thread_block_change_no_bit(cupy, stencil, cells):
    blocks, b = problem((7, 5, 40), 6, "float64")
    there, right = cupy.asarray(blocks), cupy.asarray(b)
    for pivoting in (False, True):
        want = solved(cupy, stencil, there, right, pivoting, by_warps=True)
        found = solved(cupy, stencil, there, right, pivoting, by_warps=True, cells_per_block=cells)
        for got, expected in zip(found, want, strict=True):
            np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_warps_are_for_float64_and_their_sizes(cupy, stencil, dtype):
    for n in (4, 9):
        assert not stencil.plan_of(cupy.empty((7, 1, 1, 1, n, n))).by_warps
    blocks = cupy.asarray(problem((3, 4, 5), 6, dtype)[0])
    assert not stencil.plan_of(blocks).by_warps
    plan = stencil.StencilPlan((3, 4, 5), 6, by_warps=True)
    with pytest.raises(ParameterError, match="float64"):
        stencil.block_ilu_factor(blocks, cupy.empty_like(blocks[0]), True, plan)


def test_vectors_and_blocks_may_begin_anywhere(cupy, stencil):
    """Pairs of numbers are read by one load where they are aligned to it, and one by one elsewhere."""
    shape, n = (3, 4, 5), 6
    blocks, b = problem(shape, n, "float64")
    want = solved(cupy, stencil, cupy.asarray(blocks), cupy.asarray(b), True, by_warps=True)
    plan = stencil.StencilPlan(shape, n, by_warps=True)
    for shifted in range(6):  # each alone, all, none
        blocks_, d, b_, x = (
            cupy.empty(v.size + 1)[int(shifted in (k, 4)) :][: v.size].reshape(v.shape)
            for k, v in enumerate((blocks, blocks[0], b, b))
        )
        blocks_[...], b_[...] = cupy.asarray(blocks), cupy.asarray(b)
        stencil.block_ilu_factor(blocks_, d, True, plan)
        found = [d.get()]
        for trans in ("N", "T"):
            stencil.block_ilu_solve(blocks_, d, b_, x, trans, plan)
            found.append(x.get())
        for got, expected in zip(found, want, strict=True):
            np.testing.assert_array_equal(got, expected)


def among_nan(cupy, values):
    """The values with NaN before and after them in memory."""
    room = cupy.full(values.size + 200, np.nan)
    inner = room[100:-100].reshape(values.shape)
    inner[...] = cupy.asarray(values)
    return inner


@pytest.mark.parametrize("n", [5, 6, 7])
def test_what_lies_beyond_the_grid_is_not_read(cupy, stencil, n):
    """Blocks that reach out of the grid, and what lies around the arrays, may hold anything."""
    shape = 3, 4, 5
    blocks, b = problem(shape, n, "float64")
    wild = blocks.copy()
    for kind, axis, end in ((0, 2, 0), (1, 1, 0), (2, 0, 0), (4, 0, -1), (5, 1, -1), (6, 2, -1)):
        place = [kind, slice(None), slice(None), slice(None)]
        place[1 + axis] = end
        wild[tuple(place)] = np.nan
    for by_warps in (False, True):
        plan = stencil.StencilPlan(shape, n, by_warps=by_warps)
        found = []
        for values_of in (lambda a: cupy.asarray(a), lambda a: among_nan(cupy, a)):
            A = values_of(blocks if not found else wild)
            d, right = values_of(np.zeros(blocks.shape[1:])), values_of(b)
            assert stencil.block_ilu_factor(A, d, True, plan).item() == -1
            results = [d.get()]
            for trans in ("N", "T"):
                x = values_of(np.zeros_like(b))
                stencil.block_ilu_solve(A, d, right, x, trans, plan)
                results.append(x.get())
            found.append(results)
        for got, want in zip(*found, strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("n", [5, 6, 7, 8])
def test_threads_of_a_cell_where_there_are_no_warps_for_it(cupy, stencil, n):
    """What GPUs before Ampere take: against the CPU's kernels, and a singular block."""
    blocks, b = problem((3, 4, 5), n, "float64")
    for pivoting in (False, True):
        d, *solutions = solved(cupy, stencil, cupy.asarray(blocks), cupy.asarray(b), pivoting, by_warps=False)
        want = factor_on_host(blocks, pivoting)
        assert_close(d.reshape(-1), want.reshape(-1), 64 * (8 + n), abs(want).max())
        for trans, x in zip(("N", "T"), solutions, strict=True):
            expected = solve_on_host(blocks, want, b, trans)
            assert_close(x, expected, 64 * (8 + n), abs(expected).max())
    blocks[(slice(0, 3), 1, 1, 2)] = 0
    blocks[3, 1, 1, 2] = 1
    plan = stencil.StencilPlan((3, 4, 5), n, by_warps=False)
    bad = stencil.block_ilu_factor(cupy.asarray(blocks), cupy.empty(blocks.shape[1:]), True, plan).item()
    assert bad == (1 * 4 + 1) * 5 + 2


@pytest.mark.parametrize("shape", [(1, 1, 1), (5, 4, 3), (1, 13, 7), (2, 1, 19)], ids=str)
def test_the_plan_lists_every_cell_in_its_hyperplane(stencil, shape):
    plan = stencil.StencilPlan(shape, 6)
    order = plan.order.get()
    assert sorted(order[order >= 0]) == list(range(plan.cells)) and plan.depth == sum(shape) - 2
    for p, (start, count) in enumerate(zip(plan.starts, plan.counts, strict=True)):
        members = np.array(np.unravel_index(order[start : start + count], shape))
        assert (members.sum(axis=0) == p).all()


# The paper's ACC style, and its CL style with a launch a hyperplane, give the same


@pytest.fixture
def styles(cupy, monkeypatch):
    """What factors and solves in the paper's styles, called as the kernels of stencils are."""
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[2])
    from benchmarks.papers.fgbilu_acc import block_ilu_factor_acc, block_ilu_solve_acc
    from benchmarks.papers.fgbilu_cl import block_ilu_factor_cl, block_ilu_solve_cl

    pairs = {"acc": (block_ilu_factor_acc, block_ilu_solve_acc), "cl": (block_ilu_factor_cl, block_ilu_solve_cl)}
    return {
        style: (lambda A, d, _, factor=factor: factor(A, d), lambda A, d, b, x, _, solve=solve: solve(A, d, b, x))
        for style, (factor, solve) in pairs.items()
    }


@pytest.mark.parametrize(
    ("style", "n", "dtype"),
    [
        *(("acc", n, dtype) for n in (1, 6, 33, 129) for dtype in DTYPES),
        *(("cl", n, "float64") for n in (2, 3, 5, 7, 12, 17)),
        *(("cl", n, dtype) for n in (1, 6, 32) for dtype in DTYPES),
    ],
)
def test_the_styles_of_the_paper_give_the_same_to_rounding(cupy, styles, style, n, dtype):
    system = problem((2, 2, 2) if n > 32 else grid_for(n), n, dtype)
    as_on_the_cpu(cupy, *styles[style], *system, False, "N")


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 40), (13, 12, 11)], ids=str)
def test_hyperplanes_of_any_number_of_cells_are_filled(cupy, styles, shape):
    as_on_the_cpu(cupy, *styles["cl"], *problem(shape, 6, "float64"), False, "N")


@pytest.mark.parametrize("n", [1, 6])
def test_a_launch_a_hyperplane_says_which_cell_is_bad_and_how_large_a_block_may_be(cupy, styles, n):
    blocks, _ = problem((2, 3, 4), n, "float64")
    blocks[:, 1, 1, 1] = 0  # cell 17
    factor, _ = styles["cl"]
    assert factor(cupy.asarray(blocks), cupy.empty(blocks.shape[1:]), False).item() == 17
    large = cupy.empty((7, 1, 1, 1, 33, 33))
    with pytest.raises(ParameterError, match="at most 32"):
        factor(large, large[0], False)


# Behaviour


@pytest.mark.parametrize("n", [1, 6, 32, 40])
def test_the_same_bits_in_every_run(cupy, stencil, n):
    shape = (13, 12, 11) if n <= 6 else (4, 3, 5)
    blocks, b = problem(shape, n, "float64")
    there, b = cupy.asarray(blocks), cupy.asarray(b)
    seen = set()
    for _ in range(10):
        d, x, r = cupy.empty(blocks.shape[1:]), cupy.empty_like(b), cupy.empty_like(b)
        stencil.block_ilu_factor(there, d, True)
        stencil.block_ilu_solve(there, d, b, x, "N")
        stencil.stencil_residual(there, OPEN, x, b, r)
        seen.add(b"".join(v.get().tobytes() for v in (d, x, r)))
    assert len(seen) == 1


@pytest.mark.parametrize("n", [4, 6])
def test_streams_and_threads_share_a_plan(cupy, n):
    A = StencilMatrix(cupy.asarray(random_blocks((9, 8, 7), n)))
    b = cupy.asarray(values(A.shape[0], "float64"))
    F = BlockILU0().factor(A)
    want = F.solve(b).get()
    cupy.cuda.Device().synchronize()

    def work(_):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            results = [F.solve(b, trans) for trans in ("N", "T", "N")]
            stream.synchronize()
        return results[0].get(), results[2].get()

    for results in run_at_once(work, 4):
        for got in results:
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("n", [3, 6])
def test_columns_are_solved_one_by_one_and_a_solve_can_be_recorded(cupy, n):
    from finelu.kernels.cuda.recording import Recorded

    A = StencilMatrix(cupy.asarray(random_blocks((5, 4, 6), n)))
    F = BlockILU0().factor(A)
    B = cupy.asarray(values((A.shape[0], 4), "float64"))
    X, R = F.solve(B), A.residual(B, B)
    assert X.shape == B.shape and X.flags.c_contiguous
    for c in range(4):
        np.testing.assert_array_equal(X[:, c].get(), F.solve(B[:, c]).get())
        column = cupy.ascontiguousarray(B[:, c])
        np.testing.assert_array_equal(R[:, c].get(), A.residual(column, column).get())
    # what waits for the host cannot be recorded
    step = Recorded(lambda r: A.residual(r, F.solve(r)), A.shape[0], A.dtype)
    for c in range(4):
        column = cupy.ascontiguousarray(B[:, c])
        np.testing.assert_array_equal(step(column).get(), A.residual(column, F.solve(column)).get())


@pytest.mark.parametrize("n", [1, 4, 6, 35])
def test_corrections_and_krylov_methods_are_those_of_the_cpu(cupy, n):
    shape = (6, 5, 7) if n < 30 else (3, 2, 3)
    blocks = random_blocks(shape, n)
    A, there = StencilMatrix(blocks), StencilMatrix(cupy.asarray(blocks))
    b = values(A.shape[0], "float64")
    F, G = BlockILU0().factor(A), BlockILU0().factor(there)
    for steps, rtol in ((20, 1e-10), (3, 0.0), (0, 0.0)):
        host, device = (
            richardson(A, b, M=F, maxiter=steps, rtol=rtol),
            richardson(there, cupy.asarray(b), M=G, maxiter=steps, rtol=rtol),
        )
        assert (device.iterations, device.status) == (host.iterations, host.status)
        np.testing.assert_allclose(device.history, host.history, rtol=1e-8, atol=1e-13 * host.history[0])
        np.testing.assert_allclose(device.x.get(), host.x, rtol=1e-9, atol=1e-11)
    for method in (fl.gmres, fl.bicgstab, fl.bicg, fl.fgmres):
        solution = method(there, cupy.asarray(b), M=G, rtol=1e-10)
        assert solution.converged
        assert np.linalg.norm(b - A @ solution.x.get()) <= 2e-10 * np.linalg.norm(b)
    with pytest.raises(DeviceError):
        fl.gmres(there, b, M=G)


# Bad input


@pytest.mark.parametrize("what", [0.0, 1.0], ids=["zero", "ones"])
@pytest.mark.parametrize("pivoting", [False, True])
@pytest.mark.parametrize("n", [2, 6, 32, 33, 64])
def test_a_singular_block_names_its_cell(cupy, n, pivoting, what):
    shape = (2, 3, 4)
    blocks = random_blocks(shape, n)
    for cell in ((1, 1, 2), (1, 2, 3)):  # the first is named
        blocks[(slice(0, 3), *cell)] = 0
        blocks[(3, *cell)] = what
    with pytest.raises(SingularBlock, match=r"cell \(1, 1, 2\)") as error:
        BlockILU0(pivoting=pivoting).factor(StencilMatrix(cupy.asarray(blocks)))
    assert error.value.cell == (1, 1, 2) and error.value.row == 18 * n
    one_line(error)


def test_a_block_that_overflows_ends_and_is_named(cupy, stencil):
    for n in (3, 6, 40):
        blocks = cupy.asarray(random_blocks((3, 2, 2), n))
        blocks[3, 1, 0, 1] = cupy.nan
        d = cupy.empty(blocks.shape[1:])
        for pivoting in (False, True):
            assert stencil.block_ilu_factor(blocks, d, pivoting).item() == 5
        blocks[:3, 1, 0, 1] = 0
        blocks[3, 1, 0, 1] = cupy.eye(n)
        blocks[3, 1, 0, 1, n // 2, n // 2] = cupy.inf  # whose inverse is finite
        for pivoting in (False, True):
            assert stencil.block_ilu_factor(blocks, d, pivoting).item() == 5


def test_blocks_beyond_the_limit_say_what_else_there_is(cupy, styles):
    A = StencilMatrix(cupy.asarray(random_blocks((1, 1, 2), 129)))
    with refused(ParameterError, match=r"n is at most 128\. Factor on the CPU"):
        BlockILU0().factor(A)
    d, x = cupy.empty(A.blocks.shape[1:]), cupy.empty(258)
    factor, solve = styles["acc"]
    assert factor(A.blocks, d, False).item() == -1  # of any size
    b = cupy.asarray(values(258, "float64"))
    solve(A.blocks, d, A @ b, x, "N")
    assert_close(x.get(), b.get(), 4096)  # along a line a solve is exact


def test_arrays_that_do_not_fit(cupy, stencil):
    blocks = cupy.asarray(random_blocks((2, 3, 4), 2))
    d, b = cupy.empty(blocks.shape[1:]), cupy.zeros(48)
    for call in (
        lambda: stencil.block_ilu_factor(blocks, d[1:], True),
        lambda: stencil.block_ilu_factor(blocks[..., ::-1], d, True),
        lambda: stencil.block_ilu_factor(blocks[:3], d, True),
        lambda: stencil.block_ilu_solve(blocks, d, b.astype("float32"), b, "N"),
        lambda: stencil.block_ilu_solve(blocks, d, b, cupy.zeros(47), "N"),
        lambda: stencil.block_ilu_solve(blocks, d, b, cupy.zeros(48), "X"),
        lambda: stencil.stencil_residual(blocks, OPEN, b, None, cupy.zeros(96)[::2]),
        lambda: stencil.StencilPlan((2, 0, 2), 3),
        lambda: stencil.StencilPlan((4000, 4000, 4000), 3),
        lambda: stencil.StencilPlan((2, 2, 2), 6, cells_per_block=29),
        lambda: stencil.StencilPlan((2, 2, 2), 6, by_warps=True, cells_per_block=33),
        lambda: stencil.StencilPlan((2, 2, 2), 4, by_warps=True),
        lambda: stencil.StencilPlan((2, 2, 2), 40, cells_per_block=2),
    ):
        with refused(ParameterError):
            call()
