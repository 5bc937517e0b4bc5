"""The iteration of a Krylov method as a graph: the same bits and the same count, and only where it can be one."""

import gc
import weakref

import numpy as np
import pytest
import scipy.sparse as sp
from krylov_cases import kind_for, name, stranger, system
from stencil_cases import random_blocks

from finelu import (
    IC0,
    ILU0,
    BlockILU0,
    BlockJacobi,
    Jacobi,
    MultilevelILU,
    ParILU,
    Schwarz,
    SparseLU,
    StencilMatrix,
    gallery,
)
from finelu.kernels import kernels_for
from finelu.krylov import bicgstab, bicgstabl, cg, fgmres, gmres, idrs
from finelu.krylov.cg import CG
from finelu.krylov.loop import Loop
from finelu.krylov.operators import as_operator
from finelu.krylov.system import System
from finelu.result import Status

RECORDED = (cg, bicgstab, bicgstabl, idrs, gmres, fgmres, stranger().solve)
RECIPES = (
    *(None, Jacobi(), BlockJacobi(block_size=4), IC0(), ILU0(), ILU0(triangular="jacobi"), ILU0(triangular="isai")),
    *(ParILU(ordering="rcm"), MultilevelILU(), Schwarz(size=60), Schwarz(size=60, overlap=1)),
)


@pytest.fixture
def recorded_from():
    """recorded_from(k): the call of a step after which it is recorded."""
    from finelu.kernels.cuda import recording

    before = recording.RECORDED_FROM
    yield lambda k: setattr(recording, "RECORDED_FROM", k)
    recording.RECORDED_FROM = before


def same(a, b):
    assert (a.status, a.iterations, a.residual_norm) == (b.status, b.iterations, b.residual_norm)
    np.testing.assert_array_equal(a.x.get(), b.x.get())
    np.testing.assert_array_equal(a.history, b.history)
    np.testing.assert_array_equal(a.recurrence, b.recurrence)


def on_gpu(backend, method, dtype=np.float64, m=30):
    A, b = system(kind_for(method), dtype, m)
    return backend.move(A), backend.move(b)


def test_on_the_cpu_nothing_is_recorded():
    A, b = system("spd")
    assert not any(as_operator(op, "M", b, b.dtype).capturable for op in (A, ILU0().factor(A), lambda r: r))
    step = lambda: None  # noqa: E731
    run = Loop(CG, System.checked(A, b), rtol=0.1, atol=0, maxiter=9, callback=None, watch=None)
    assert run.repeated(step) is step


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda"], indirect=True)
class TestOnTheGPU:
    @pytest.mark.parametrize("recipe", RECIPES, ids=str)
    @pytest.mark.parametrize("method", RECORDED, ids=name)
    def test_the_answer_is_that_of_the_single_launches(self, backend, method, recipe, recorded_from):
        A, b = on_gpu(backend, method)
        if isinstance(recipe, IC0) and method is not cg:
            pytest.skip("A is not symmetric")
        M = None if recipe is None else recipe.factor(A)
        answers = []
        for first in (2, 4, 10**9):
            recorded_from(first)
            answers.append(method(A, b, M=M, rtol=1e-10, maxiter=100))
        assert answers[0].converged or answers[0].iterations == 100
        for answer in answers[1:]:
            same(answer, answers[0])

    @pytest.mark.parametrize("dtype", [np.float32, np.complex64, np.complex128], ids=name)
    @pytest.mark.parametrize("method", RECORDED, ids=name)
    def test_for_every_type(self, backend, method, dtype, recorded_from):
        A, b = on_gpu(backend, method, dtype)
        M = Jacobi().factor(A)
        answers = []
        for first in (4, 10**9):
            recorded_from(first)
            answers.append(method(A, b, M=M, rtol=1e-4, maxiter=200))
        same(*answers)

    @pytest.mark.parametrize("orthogonalization", ["mgs", "cgs2"])
    @pytest.mark.parametrize("restart", [1, 5, 30])
    def test_one_graph_serves_all_columns(self, backend, restart, orthogonalization, recorded_from):
        A, b = on_gpu(backend, gmres)
        answers = []
        for first in (2, 10**9):
            recorded_from(first)
            answers.append(gmres(A, b, rtol=1e-8, restart=restart, maxiter=400, orthogonalization=orthogonalization))
        same(*answers)
        assert answers[0].iterations > 30

    @pytest.mark.parametrize("maxiter", [0, 1, 2, 3, 4, 5, 9, 40])
    @pytest.mark.parametrize("method", RECORDED, ids=name)
    def test_as_many_iterations_as_asked_for(self, backend, method, maxiter):
        A, b = on_gpu(backend, method)
        solution = method(A, b, rtol=1e-14, maxiter=maxiter)
        assert solution.iterations == maxiter and solution.history.size == maxiter + 1
        assert solution.status is Status.MAX_ITERATIONS

    def test_a_history_that_grows(self, backend, recorded_from):
        n = 3000
        A = sp.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(n, n)).tocsr()
        b = np.random.default_rng(2).standard_normal(n)
        answers = []
        for first in (4, 10**9):
            recorded_from(first)
            answers.append(cg(backend.move(A), backend.move(b), rtol=1e-10, maxiter=5000))
        same(*answers)
        assert answers[0].iterations > 2048

    @pytest.mark.parametrize("method", RECORDED, ids=name)
    def test_callback_and_watch_see_each_iterate(self, backend, method):
        A, b = on_gpu(backend, method)
        plain, seen, watched = method(A, b, rtol=1e-8), [], []
        look = {"callback": lambda x: seen.append(x.copy()), "watch": lambda k, _: watched.append(k)}
        solution = method(A, b, rtol=1e-8, **look)
        same(solution, plain)
        assert watched == sorted(set(watched)) and watched[-1] == plain.iterations
        if method in (cg, bicgstab):
            assert len(seen) == plain.iterations
        np.testing.assert_array_equal(seen[-1].get(), plain.x.get())
        stopped = method(A, b, rtol=1e-8, watch=lambda k, _: k >= 7)
        assert stopped.status is Status.INTERRUPTED and 7 <= stopped.iterations < plain.iterations

    def test_breakdowns_are_named(self, backend):
        A = sp.diags(np.where(np.arange(200) % 7 == 6, -1.0, 2.0 + np.arange(200) / 50)).tocsr()
        b = np.ones(200)
        b[np.arange(200) % 7 == 6] = 1e-3
        solution = cg(backend.move(A), backend.move(b), rtol=1e-12)
        host = cg(A, b, rtol=1e-12)
        assert solution.status is host.status is Status.INDEFINITE
        assert solution.iterations == host.iterations

    def test_functions_of_the_caller_and_host_factors_are_called_each_time(self, backend):
        A, b = on_gpu(backend, cg)
        calls = []
        solution = cg(A, b, rtol=1e-8, M=lambda r: (calls.append(1), r / 4)[1])
        assert solution.converged and len(calls) > solution.iterations
        same(solution, cg(A, b, rtol=1e-8, M=lambda r: r / 4))
        F = SparseLU().factor(A)
        assert not F.capturable and cg(A, b, M=F, rtol=1e-8).converged

    def test_what_the_documentation_lists_is_recorded(self, backend):
        A, b = on_gpu(backend, cg)
        stencil = StencilMatrix(backend.move(random_blocks((9, 10, 10), 1)))
        yes = [None, A, stencil, ILU0().factor(A), BlockILU0().factor(stencil), BlockJacobi(block_size=32).factor(A)]
        no = [A.toarray(), lambda r: r, ILU0(precision="float32").factor(A), BlockJacobi(block_size=33).factor(A)]
        for op in yes:
            assert as_operator(op, "M", b, b.dtype).capturable, op
        for op in [*no, SparseLU().factor(A)]:
            assert not as_operator(op, "M", b, b.dtype).capturable, op

    def test_solves_in_threads_and_on_streams(self, backend):
        from concurrent.futures import ThreadPoolExecutor

        cupy = backend.xp
        A, b = on_gpu(backend, cg)
        M = Jacobi().factor(A)
        plain = cg(A, b, M=M, rtol=1e-10)
        cupy.cuda.get_current_stream().synchronize()

        def solve(_):
            with cupy.cuda.Stream(non_blocking=True) as stream:
                solution = cg(A, b, M=M, rtol=1e-10)
                stream.synchronize()
                return solution

        with ThreadPoolExecutor(4) as pool:
            for solution in pool.map(solve, range(12)):
                same(solution, plain)

    @pytest.mark.parametrize("method", RECORDED, ids=name)
    def test_a_stream_that_was_set_by_use_stays_current(self, backend, method, recorded_from, everywhere):
        from finelu.kernels.cuda import recording

        launched_on = []

        class Watched(recording._Graph):
            def launch(self, stream):
                launched_on.append(stream)
                super().launch(stream)

        everywhere("_Graph", Watched)
        cupy = backend.xp
        A, b = on_gpu(backend, method)
        M = Jacobi().factor(A)
        plain = method(A, b, M=M, rtol=1e-6, maxiter=400)
        host = system(kind_for(method), m=30)
        before, stream = cupy.cuda.get_current_stream(), cupy.cuda.Stream(non_blocking=True)
        before.synchronize()
        launched_on.clear()
        stream.use()
        try:
            recorded_from(2)
            solution = method(A, b, M=M, rtol=1e-6, maxiter=400)
            assert cupy.cuda.get_current_stream() == stream
            stream.synchronize()
        finally:
            before.use()
        assert launched_on and all(there == stream for there in launched_on)
        same(solution, plain)
        assert solution.converged
        assert np.linalg.norm(host[1] - host[0] @ solution.x.get()) <= 1.01e-6 * np.linalg.norm(host[1])

    def test_the_memory_of_a_graph_is_of_the_allocator_and_the_stream_of_the_caller(self, backend):
        from finelu.kernels.cuda.recording import RECORDED_FROM, Repeated

        cupy = backend.xp
        pool, sizes, streams = cupy.get_default_memory_pool(), [], []

        def allocator(size):
            sizes.append(size)
            streams.append(cupy.cuda.get_current_stream())
            return pool.malloc(size)

        with cupy.cuda.Stream(non_blocking=True) as stream, cupy.cuda.using_allocator(allocator):
            x = cupy.zeros(1000)

            def step():
                x[:] = x + 1

            repeated = Repeated(step)
            for _ in range(RECORDED_FROM - 1):
                repeated()
            before = len(sizes)
            repeated()
            assert max(sizes[before:]) >= x.nbytes  # else the recording would have had it from elsewhere
            after = len(sizes)
            for _ in range(10):
                repeated()
            assert len(sizes) == after  # a launch makes no array
            stream.synchronize()
        assert all(there == stream for there in streams)
        np.testing.assert_array_equal(x.get(), RECORDED_FROM + 10)

    def test_the_plan_of_a_grid_lives_as_long_as_the_factors(self, backend):
        from finelu.kernels.cuda import stencil

        A = StencilMatrix(backend.move(random_blocks((5, 4, 6), 3)))
        F = BlockILU0().factor(A)
        r = backend.xp.ones(A.shape[0])
        want = F.solve(r).get()
        plan = weakref.ref(stencil.plan_of(A.blocks))
        for k in range(1, 13):  # more than the plans that are kept in any case
            stencil.plan_of(backend.xp.empty((7, k, 2, 2, 3, 3)))
        gc.collect()
        assert plan() is not None and stencil.plan_of(A.blocks) is not plan()
        np.testing.assert_array_equal(F.solve(r).get(), want)
        del F
        gc.collect()
        assert plan() is None

    @pytest.mark.parametrize("method", RECORDED, ids=name)
    def test_extreme_systems(self, backend, method, recorded_from):
        A, b = on_gpu(backend, method)
        plain = method(A, b, rtol=1e-8, maxiter=60)
        for power in (-900, 900):
            answers = []
            for first in (4, 10**9):
                recorded_from(first)
                answers.append(method(A, b * 2.0**power, rtol=1e-8, maxiter=60))
            same(*answers)
            np.testing.assert_allclose(answers[0].history[:20] / 2.0**power, plain.history[:20], rtol=1e-6)

    @pytest.mark.parametrize("size", [1.0, 1e-180, 1e180, 1e-320])
    @pytest.mark.parametrize("n", [1, 1000, 300_000])
    def test_norms_of_many_blocks(self, backend, n, size):
        x = np.random.default_rng(1).standard_normal(n) * size
        out = backend.xp.zeros(1)
        kernels_for(out).vectors.norm(backend.move(x), out)
        exact = float(np.sqrt(np.sum(np.square(x, dtype=np.longdouble))))
        assert float(out[0]) == pytest.approx(exact, rel=1e-13 if size > 1e-300 else 1e-3)

    @pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128], ids=name)
    @pytest.mark.parametrize("index", [np.int32, np.int64], ids=name)
    def test_a_product_with_rows_of_all_lengths(self, backend, dtype, index):
        rng = np.random.default_rng(4)
        n = 12_000
        lengths = rng.integers(0, 12, n)
        lengths[[5, 700, 11_999]] = 11_000, 5000, 3000
        lengths[300:340] = 900
        rows = np.repeat(np.arange(n), lengths)
        columns = np.concatenate([np.sort(rng.choice(n, k, replace=False)) for k in lengths])
        data = rng.standard_normal(rows.size)
        if np.dtype(dtype).kind == "c":
            data = data + 1j * rng.standard_normal(rows.size)
        A = sp.csr_matrix((data.astype(dtype), columns, np.concatenate([[0], np.cumsum(lengths)])), shape=(n, n))
        x = rng.standard_normal(n).astype(dtype)
        moved = backend.move(A)
        moved.indices, moved.indptr = moved.indices.astype(index), moved.indptr.astype(index)
        product = kernels_for(moved.data).products.Product(moved)
        got, again = (product(backend.move(x)).get() for _ in range(2))
        np.testing.assert_array_equal(got, again)
        bound = 200 * np.finfo(dtype).eps * (abs(A) @ abs(x)) + np.finfo(dtype).tiny
        assert (abs(got - (A.astype(complex) @ x.astype(complex))) <= bound).all()
        total = backend.xp.zeros(1, dtype)
        product.with_dot(backend.move(x), backend.move(x), total)
        assert complex(total[0]) == pytest.approx(complex(np.vdot(x, got)), rel=1e-3)

    def test_gallery_problems_by_rows_of_a_block(self, backend):
        for problem in gallery.small():
            A = problem.A
            x = np.random.default_rng(1).standard_normal(A.shape[0]).astype(A.dtype)
            moved = backend.move(A)
            got = kernels_for(moved.data).products.Product(moved)(backend.move(x)).get()
            np.testing.assert_allclose(got, A @ x, atol=1e3 * np.finfo(A.dtype).eps * abs(A).sum(axis=1).max())
