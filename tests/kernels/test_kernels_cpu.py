"""The CPU kernels: the bits of kernels/reference for every schedule and number of threads, and by definition."""

import contextlib
import gc
import itertools
import os
import signal
import sys
import threading
import weakref
from dataclasses import replace

import numba
import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, SOME_DTYPES, TYPES, in_dtype
from hypothesis import given, settings
from hypothesis import strategies as st
from numba.core.registry import cpu_target
from threadpoolctl import threadpool_info, threadpool_limits

import finelu as fl
from finelu import gallery, threads
from finelu.errors import ParameterError
from finelu.kernels import cpu, reference
from finelu.kernels.cpu import inspection, triangular
from finelu.kernels.cpu.inspection import CHUNK
from finelu.kernels.cpu.recurrences import compiled
from finelu.kernels.cpu.runtime import atomics, jit, schedule, workers
from finelu.kernels.cpu.runtime.arithmetic import divide
from finelu.kernels.cpu.runtime.schedule import Blocks, Levels, in_level_order, makespan, sequential
from finelu.kernels.cpu.runtime.sharing import STEPS, shared_out
from finelu.matrix import CSR, as_csr
from finelu.triangular import triangle


@pytest.fixture(autouse=True)
def two_threads():
    """Every test begins with two threads, whatever the machine has."""
    before = threads._wanted
    threads.set_num_threads(2)
    yield
    threads.set_num_threads(before or threads.available_cores())


def numbers(rng, size, dtype):
    values = rng.uniform(-1, 1, size)
    return (values + 1j * rng.uniform(-1, 1, size) if np.dtype(dtype).kind == "c" else values).astype(dtype)


def matrix(pattern, dtype="float64", index="int32", seed=0, dominant=True):
    """A CSR with random values in `pattern` and on the diagonal, which is the sum of its row if `dominant`."""
    rng = np.random.default_rng(seed)
    S = sp.csr_matrix(pattern, dtype=bool) + sp.identity(pattern.shape[0], dtype=bool, format="csr")
    S.sort_indices()
    S = sp.csr_matrix((numbers(rng, S.nnz, dtype), S.indices, S.indptr), shape=S.shape)
    if dominant:
        S.setdiag((1 + np.asarray(abs(S).sum(axis=1)).ravel()).astype(dtype))
    A = as_csr(S)
    return CSR(A.indptr.astype(index), A.indices.astype(index), A.data, A.diag.astype(index))


def shapes():
    """Patterns with a name: each strains another part of the schedules."""
    rng = np.random.default_rng(5)
    dense_row, dense_column = np.eye(1500, dtype=bool), np.eye(1500, dtype=bool)
    dense_row[1400] = dense_row[3] = True
    dense_column[:, 3] = dense_column[:, 1400] = True
    return {
        "one_row": np.ones((1, 1), bool),
        "diagonal": np.eye(50, dtype=bool),
        "chain": np.eye(300, k=-1, dtype=bool) | np.eye(300, k=1, dtype=bool),
        "full": np.ones((40, 40), bool),
        "long_rows": dense_row,
        "long_columns": dense_column,
        "two_halves": sp.block_diag([np.ones((30, 30))] * 2).toarray().astype(bool),
        "empty_strict_rows": (rng.random((80, 80)) < 0.1) & (rng.random(80) < 0.5)[:, None],
        "grid": gallery.poisson7(6, 5, 4).toarray() != 0,
    }


@st.composite
def matrices(draw):
    n = draw(st.integers(1, 60))
    density = draw(st.sampled_from([0.0, 0.03, 0.1, 0.4, 1.0]))
    seed = draw(st.integers(0, 2**16))
    dtype, index = draw(st.sampled_from([t for t in TYPES if t[0] in SOME_DTYPES]))
    pattern = np.random.default_rng(seed).random((n, n)) < density
    return matrix(pattern, dtype, index, seed, dominant=draw(st.booleans()))


def schedules(T, grain=20.0, threads=4):
    """One of each kind, with items so small that even these systems have many."""
    level, _ = cpu.levels.levels(T)
    cost = np.ones(T.n, np.float32)
    sets = Levels(T, cost, grain, level, in_level_order(T, level))
    return {
        "sequential": sequential(T),
        "blocks": Blocks(T, cost, grain).schedule(True, threads),
        "natural_blocks": Blocks(T, cost, grain).schedule(False, threads),
        "sets": sets.schedule(True, threads),
    }


def solve(plan, b):
    x = np.full_like(b, np.nan)
    plan.solve(b, x)
    return x


def triangles(A):
    return [triangle(A, lower, unit, trans) for lower in (True, False) for unit in (True, False) for trans in "NTH"]


def check_solves(A, seed=0):
    """Every triangle, method and schedule against the reference, one right-hand side, a column of it, and six."""
    rng = np.random.default_rng(seed)
    for T in triangles(A):
        assert np.array_equal(cpu.levels.levels(T)[0], reference.levels.levels(T)[0])
        assert cpu.levels.levels(T)[1] == reference.levels.levels(T)[1]
        for b in (numbers(rng, A.n, A.dtype), numbers(rng, (A.n, 6), A.dtype), numbers(rng, (A.n, 1), A.dtype)):
            with np.errstate(all="ignore"):
                expected = reference.triangular.solve_triangular(T, A.data, b)
            plans = [cpu.triangular.triangular_plan(T, method, 1) for method in ("sequential", "levels", "auto")]
            plans += [triangular.Exact(T, s, None) for s in schedules(T).values()]
            for plan in plans:
                plan.load(A.data)
                assert np.array_equal(solve(plan, b), expected, equal_nan=True)


def lower_part(A):
    L = as_csr(sp.tril(sp.csr_matrix((A.data, A.indices, A.indptr), shape=A.shape), format="csr"))
    index = A.indices.dtype
    return CSR(L.indptr.astype(index), L.indices.astype(index), L.data, L.diag.astype(index))


# name -> what is factored of A, its places of the diagonal if they are an argument, and the numbers before the output
ELIMINATIONS = {
    "ilu0": (lambda A: A, lambda A: (A.diag,), ()),
    "ic0": (lower_part, lambda A: (), ()),
    "milu0": (lambda A: A, lambda A: (A.diag,), (0.9,)),
}


def eliminations(A, name):
    """Plans with every kind of schedule, with and without the list of intersections where there is one."""
    analysis = getattr(cpu.elimination, f"{name}_analysis")
    below, plan = triangle(A, True, True), analysis(A, "sequential")
    for listed in (plan, replace(plan, first=None)) if hasattr(plan, "first") else (plan,):
        yield from (replace(listed, schedule=s) for s in schedules(below).values())
    yield analysis(A, "levels")
    yield analysis(A, "auto")


def check_elimination(A, name):
    """Every plan gives the bits of the reference, or its first bad row, and what comes before that."""
    operand, places, more = ELIMINATIONS[name]
    A = operand(A)
    expected, more = np.empty_like(A.data), [A.dtype.type(x) for x in more]
    with np.errstate(all="ignore"):
        factor = getattr(reference.elimination, name)
        bad = factor(A.indptr, A.indices, *places(A), A.data, *more, expected)
    stop = A.indptr[bad] if bad >= 0 else A.data.size
    for plan in eliminations(A, name):
        values, before = np.full_like(A.data, np.nan), A.data.copy()
        assert getattr(cpu.elimination, name)(plan, A.data, *more, values) == bad
        assert np.array_equal(A.data, before)
        assert np.array_equal(values[:stop], expected[:stop])


# The bits of the reference -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("problem", gallery.small(), ids=str)
def test_gallery_solves_have_the_bits_of_the_reference(problem):
    check_solves(as_csr(problem.A))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        pytest.param(name, problem, id=f"{name}-{problem}")
        for name in ELIMINATIONS
        for problem in (gallery.small_spd() if name == "ic0" else gallery.small())
    ],
)
def test_gallery_eliminations_have_the_bits_of_the_reference(name, problem):
    check_elimination(as_csr(problem.A), name)


@pytest.mark.parametrize("name", shapes())
def test_shapes_have_the_bits_of_the_reference(name):
    A = matrix(shapes()[name])
    for elimination in ELIMINATIONS:
        check_elimination(A, elimination)
    if A.n < 1000:
        check_solves(A)
    else:
        T, b = triangle(A, True, False), np.ones(A.n)
        for s in schedules(T).values():
            plan = triangular.Exact(T, s, None)
            plan.load(A.data)
            assert np.array_equal(solve(plan, b), reference.triangular.solve_triangular(T, A.data, b))


@given(matrices())
@settings(max_examples=40, deadline=None)
def test_random_patterns_solve_with_the_bits_of_the_reference(A):
    check_solves(A)


@given(matrices())
@settings(max_examples=60, deadline=None)
def test_random_patterns_factor_with_the_bits_of_the_reference(A):
    for elimination in ELIMINATIONS:
        check_elimination(A, elimination)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
def test_division_rounds_as_numpy_and_never_raises(dtype):
    rng = np.random.default_rng(1)
    a, b = (np.concatenate([numbers(rng, 500, dtype), np.array([0, 1, np.nan, np.inf], dtype)]) for _ in "ab")
    b[:4] = 0, 1e-30, np.inf, np.nan
    out = np.empty_like(a)
    _divide_all(a, b, out)
    with np.errstate(all="ignore"):
        assert np.array_equal(out, np.array([p / q for p, q in zip(a, b, strict=True)]), equal_nan=True)


@compiled
def _divide_all(a, b, out):
    for i in range(a.size):
        out[i] = divide(a[i], b[i])


# Schedules, and solves by sweeps --------------------------------------------------------------------------------------


def exact_schedules_are_topological(T, s):
    visited, ready = np.zeros(T.n, bool), np.zeros(T.n, bool)
    for t in range(s.after.size):
        if s.after[t]:
            ready[s.order[: s.items[s.after[t]]]] = True
        inside = np.zeros(T.n, bool)
        for i in s.order[s.items[t] : s.items[t + 1]]:
            columns = T.indices[T.begin[i] : T.end[i]]
            assert (ready | inside)[columns].all()
            inside[i] = visited[i] = True
        assert s.after[t] <= t
    assert visited.all() and s.order.size == T.n


@given(matrices(), st.sampled_from([1.0, 7.0, 1000.0]))
@settings(max_examples=40, deadline=None)
def test_an_item_finds_what_it_needs_in_the_items_it_waits_for(A, grain):
    for T in (triangle(A, True, True), triangle(A, False, True)):
        for s in schedules(T, grain).values():
            exact_schedules_are_topological(T, s)


def test_blocks_of_a_grid_leave_work_for_two_threads_and_those_of_a_chain_do_not():
    grid = triangle(as_csr(gallery.poisson7(20)), True, True)
    chain = triangle(as_csr(gallery.tridiagonal(8000)), True, True)
    cost = np.full(8000, 100.0, np.float32)
    speedups = []
    for T in (grid, chain):
        blocks = Blocks(T, cost, 20_000.0)
        speedups.append(makespan(blocks.work, blocks.after, 1) / makespan(blocks.work, blocks.after, 2))
    assert speedups[0] > 1.7
    assert speedups[1] <= 1.0


@pytest.mark.parametrize("columns", [(), (3,)])
def test_isai_inverts_on_the_pattern(columns):
    A = matrix(np.random.default_rng(6).random((60, 60)) < 0.15, "complex64")
    b = numbers(np.random.default_rng(7), (A.n, *columns), A.dtype)
    for T in triangles(A):
        W = reference.triangular.isai(T, A.data)
        dense = reference.triangular.dense(T, A.data)
        pattern = (W != 0) | np.eye(A.n, dtype=bool)
        assert np.allclose((W @ dense)[pattern], np.eye(A.n)[pattern], atol=1e-5)
        x = W @ b
        for sweeps in (1, 2, 3):
            plan = cpu.triangular.triangular_plan(T, "isai", sweeps)
            plan.load(A.data)
            assert np.allclose(solve(plan, b), x, rtol=1e-4, atol=1e-5)
            x = x + W @ (b - dense @ x)


def test_sweeps_over_several_chunks_agree_with_the_reference():
    n = 3 * triangular.ROWS_AN_ITEM + 17
    T = triangle(as_csr(gallery.tridiagonal(n, -0.3, 2.0, -0.4)), True, False)
    values, b = np.asarray(gallery.tridiagonal(n, -0.3, 2.0, -0.4).tocsr().data), np.ones(n)
    plan = cpu.triangular.triangular_plan(T, "jacobi", 2)
    plan.load(values)
    assert np.array_equal(solve(plan, b), reference.triangular.jacobi_sweeps(T, values, b, 2))


# What a plan takes and reports ----------------------------------------------------------------------------------------


def test_the_first_bad_pivot_is_named_whatever_the_schedule():
    pattern = np.random.default_rng(8).random((200, 200)) < 0.02
    A = matrix(pattern)
    for rows in ([150, 40, 199], [0], [199]):
        data = A.data.copy()
        for i in rows:
            data[A.indptr[i] : A.indptr[i + 1]] = 0
        B = CSR(A.indptr, A.indices, data, A.diag)
        for name, (operand, _, more) in ELIMINATIONS.items():
            C = operand(B)
            for plan in eliminations(C, name):
                bad = getattr(cpu.elimination, name)(plan, C.data, *more, np.empty_like(C.data))
                assert cpu.vectors.first_bad(bad) == min(rows)


@pytest.mark.parametrize(("dtype", "tiny"), [("float64", 1e-300), ("complex64", 1e-30)])
def test_overflow_is_a_bad_row(dtype, tiny):
    A = matrix(np.ones((3, 3), bool), dtype)
    data = A.data.copy()
    data[:] = [tiny, 1, 1, 1e10, 1, 1, 1, 1, 1]
    assert cpu.elimination.ilu0(cpu.elimination.ilu0_analysis(A), data, np.empty_like(data)) == 1


@pytest.mark.parametrize("shape", [(), (3,)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_auto_goes_over_to_levels_once_its_solves_have_taken_as_long_as_the_analysis(dtype, shape):
    A = as_csr(in_dtype(gallery.convection_diffusion(9, 8, 1, peclet=50), dtype))
    b = numbers(np.random.default_rng(0), A.n * (shape or (1,))[0], dtype).reshape(A.n, *shape)
    for lower, unit, trans in itertools.product((True, False), (True, False), "NTH"):
        T = triangle(A, lower, unit, trans)
        want = reference.triangular.solve_triangular(T, A.data, b)
        plan = cpu.triangular.triangular_plan(T, "auto", 1)
        assert plan.load(A.data) == -1
        solves = -(-triangular.LATER // (shape or (1,))[0])
        seen = []
        for _ in range(solves + 2):
            assert np.array_equal(solve(plan, b), want)
            seen.append(plan.method)
        assert seen == ["sequential"] * (solves - 1) + ["levels"] * 3
        assert plan.depth == cpu.levels.levels(T)[1]
        plan.load(3 * A.data)
        assert np.array_equal(solve(plan, b), reference.triangular.solve_triangular(T, 3 * A.data, b))
    chain = cpu.triangular.triangular_plan(triangle(as_csr(gallery.bidiagonal(500)), True, True), "auto", 1)
    chain.load(gallery.bidiagonal(500).data)
    for _ in range(triangular.LATER + 1):
        solve(chain, np.ones(500))
    assert (chain.method, chain.depth) == ("sequential", 500)


def test_the_analysis_comes_later_for_few_rows_and_for_long_ones(threads):
    """Its gain is small there. Where threads may share the work, it comes soon."""

    def solves(A, count, loads=1):
        threads(count)
        A = as_csr(A)
        plan = cpu.triangular.triangular_plan(triangle(A, True, False), "auto", 1)
        for _ in range(loads):
            plan.load(A.data)
        seen = []
        while plan.method == "sequential":
            seen.append(solve(plan, np.ones(A.n)))
        assert np.array_equal(seen[0], solve(plan, np.ones(A.n)))
        return len(seen)

    few, many = gallery.poisson5(70), gallery.poisson5(71)
    long = sp.kron(gallery.poisson5(22, 24), np.ones((10, 10))) + 100 * sp.identity(5_280)
    assert few.shape[0] < triangular.MANY <= many.shape[0] <= long.shape[0]
    assert (solves(few, 1), solves(many, 1), solves(long, 1)) == (triangular.LATER, triangular.PAYS, triangular.LATER)
    wide = sp.kron(gallery.poisson5(40), np.ones((10, 10))) + 100 * sp.identity(16_000)
    assert (solves(wide, 1), solves(wide, 2)) == (triangular.LATER, triangular.PAYS)
    assert solves(few, 1, loads=2) == triangular.PAYS  # new values come: fewer solves than LATER may follow each time


@pytest.mark.parametrize("trans", "NTH")
def test_new_values_are_copied_into_levels_once_that_pays(calls_of, trans):
    A = as_csr(gallery.poisson7(6))
    T = triangle(A, True, False, trans)
    plan = cpu.triangular.triangular_plan(T, "auto", 1)
    plan.load(A.data)
    b = numbers(np.random.default_rng(0), A.n, np.float64)
    for _ in range(triangular.LATER):
        solve(plan, b)
    assert plan.method == "levels"
    copied = calls_of(triangular, "_gather")
    for scale in (3, 5):
        copied.clear()
        plan.load(scale * A.data)
        want, seen = reference.triangular.solve_triangular(T, scale * A.data, b), []
        for _ in range(triangular.COPY_PAYS + 2):
            assert np.array_equal(solve(plan, b), want) and plan.method == "levels"
            seen.append(len(copied))
        at_load = 2 if trans != "N" else 0  # of a transpose the values are copied in any case: entries and diagonal
        assert seen == [at_load] * (triangular.COPY_PAYS - 1) + [2] * 3


@pytest.mark.parametrize("before", [True, False])
def test_the_collector_pauses_while_a_kernel_compiles_and_is_as_it_was_afterwards(before):
    inside = []

    @jit.no_collection()
    def fails():
        inside.append(gc.isenabled())
        return int("one")

    def elsewhere():
        with pytest.raises(ValueError, match="one"):
            fails()

    enabled = gc.isenabled()
    (gc.enable if before else gc.disable)()
    try:
        with jit.no_collection():
            other = threading.Thread(target=elsewhere)
            other.start()
            other.join()
            inside.append(gc.isenabled())
        assert inside == [False, False] and gc.isenabled() is before and jit._paused == 0
    finally:
        (gc.enable if enabled else gc.disable)()


@pytest.fixture
def never_compiled(monkeypatch):
    """Schedules as in a process that finds none of their kernels compiled, and has done nothing so far."""
    monkeypatch.setattr(schedule, "ready", lambda kernel: False)
    monkeypatch.setattr(schedule, "_forgone", 0.0)
    return lambda seconds: monkeypatch.setattr(schedule, "COMPILES", 1e9 * seconds)


@pytest.mark.parametrize("gone", [b"cfinelu_gone\nRow\n.", b"cfinelu.kernels.cpu\nRow\n."], ids=["module", "name"])
def test_code_that_names_a_type_of_an_earlier_version_is_as_none(monkeypatch, gone):
    cache = jit.Cache(lambda: None)
    monkeypatch.setattr(cache.store, "library", lambda signature: gone)
    assert cache.load_overload((numba.int64,), cpu_target.target_context) is None


def test_solves_wait_for_levels_that_must_be_compiled_until_they_have_taken_as_long(never_compiled):
    A = as_csr(gallery.poisson7(8))
    plans = [cpu.triangular.triangular_plan(triangle(A, lower, False), "auto", 1) for lower in (True, False)]
    for plan in plans:
        plan.load(A.data)
    rounds = 4 * triangular.LATER * (triangular.ROW * A.n + triangular.ENTRY * plans[0].triangle.entries)
    never_compiled(1e-9 * (rounds - 1))
    want, seen = solve(plans[0], np.ones(A.n)), []
    for _ in range(3 * triangular.LATER):  # the time of all plans of a process is added up
        assert np.array_equal(solve(plans[0], np.ones(A.n)), want)
        solve(plans[1], np.ones(A.n))
        seen.append([plan.method for plan in plans])
    below, above = zip(*seen, strict=True)
    # one solve was made before; the fourth round of LATER solves is the second plan's second
    assert (below.index("levels"), above.index("levels")) == (3 * triangular.LATER - 2, 2 * triangular.LATER - 1)
    assert cpu.triangular.triangular_plan(triangle(A, True, False), "levels", 1).method == "levels"


@pytest.mark.parametrize(("kind", "short"), [(fl.ILU0, False), (fl.ILU0, True), (fl.MILU0, True)])
def test_factorizations_wait_for_a_schedule_that_must_be_compiled(never_compiled, threads, kind, short):
    threads(2)
    bands = range(-100, 101)  # rows as long as these pay for a schedule even if there is one factorization by ILU0
    block = sp.diags([400.0 if k == 0 else -1.0 for k in bands], bands, shape=(300, 300))
    S = gallery.poisson7(40) if short else sp.kron(sp.eye(6), block, format="csr")
    never_compiled(0.5)
    F = kind().factor(S)
    assert F.report.variant == "sequential"
    assert kind(variant="levels").factor(S).report.variant == "levels"
    first = F._numeric.plan.provisional
    assert 12 < first < 1000
    values = F.L.data.copy()
    F._numeric._factorizations = first - 1
    F.update(S)
    assert F.report.variant == "sequential"
    F.update(S)
    assert F.report.variant == "levels" and np.array_equal(F.L.data, values)


def test_what_counts_before_a_schedule_is_compiled_is_the_work_that_was_done(never_compiled, threads):
    threads(2)
    never_compiled(1.0)
    n = 30_000
    chain = sp.diags([-1.0, 3.0, -1.0], [-1, 0, 1], shape=(n, n), format="lil")
    chain[n - 1] = 1e-3  # a bound by the longest row is far beyond what the elimination takes
    chain[n - 1, n - 1] = 3.0
    fl.MILU0().factor(chain.tocsr())
    assert schedule._forgone < 2e6
    A = as_csr(gallery.poisson7(8))
    plan = cpu.triangular.triangular_plan(triangle(A, True, False), "auto", 1)
    plan.load(A.data)
    before = schedule._forgone
    for _ in range(2):
        solve(plan, np.ones((A.n, 500)))
    each = triangular.ROW * A.n + triangular.ENTRY * plan.triangle.entries
    assert schedule._forgone - before == pytest.approx(1000 * each)


def test_an_analysis_that_fails_leaves_the_solves_as_they_were(monkeypatch):
    A = as_csr(gallery.poisson7(5))
    T = triangle(A, True, False)
    want = reference.triangular.solve_triangular(T, A.data, np.ones(A.n))

    def fails(error):
        def raises(*_):
            raise error

        return raises

    plan = cpu.triangular.triangular_plan(T, "auto", 1)
    plan.load(A.data)
    plan._solved = triangular.LATER - 1
    with monkeypatch.context() as m:
        m.setattr(triangular, "levels", fails(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            solve(plan, np.ones(A.n))
        assert np.array_equal(solve(plan, np.ones(A.n)), want) and plan.method == "sequential"
        m.setattr(triangular, "levels", fails(MemoryError()))
        plan._solved = triangular.LATER - 1
        for _ in range(2):
            assert np.array_equal(solve(plan, np.ones(A.n)), want) and plan.method == "sequential"


def test_elimination_is_shared_where_it_pays_only():
    small, large = as_csr(gallery.poisson7(8)), as_csr(gallery.poisson7(40))
    chain = as_csr(gallery.tridiagonal(60_000))
    assert cpu.elimination.ilu0_analysis(small, "auto").variant == "sequential"
    assert cpu.elimination.ilu0_analysis(large, "auto").variant == "levels"
    assert cpu.elimination.ilu0_analysis(chain, "auto").variant == "sequential"
    assert cpu.elimination.ilu0_analysis(large, "sequential").variant == "sequential"
    assert cpu.elimination.ilu0_analysis(small, "levels").variant == "levels"
    threads.set_num_threads(1)
    assert cpu.elimination.ilu0_analysis(large, "auto").variant == "sequential"
    with pytest.raises(
        ParameterError, match="variant='levs' is not offered on the CPU; one of sequential, levels, auto"
    ):
        cpu.elimination.ilu0_analysis(small, "levs")


def test_a_long_list_of_intersections_is_not_made():
    assert cpu.elimination.ilu0_analysis(matrix(np.ones((60, 60), bool))).first is not None
    A = matrix(np.ones((110, 110), bool))  # an entry meets 37 others
    assert cpu.elimination.ilu0_analysis(A).first is None
    for elimination in ELIMINATIONS:
        check_elimination(A, elimination)


def test_a_single_factorization_makes_the_list_only_where_scattering_is_hopeless():
    arrow = np.eye(2000, dtype=bool)
    arrow[0] = arrow[:, 0] = True
    for pattern, listed in ((np.eye(300, k=-1, dtype=bool), False), (arrow, True)):
        A = matrix(pattern)
        plan = cpu.elimination.ilu0_analysis(A, once=True)
        assert (plan.first is not None) == listed
        assert cpu.elimination.ilu0_analysis(A, once=False).first is not None
        values, expected = np.empty_like(A.data), np.empty_like(A.data)
        assert (
            cpu.elimination.ilu0(plan, A.data, values)
            == cpu.elimination.ilu0(cpu.elimination.ilu0_analysis(A), A.data, expected)
            == -1
        )
        assert np.array_equal(values, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_finite_sees_every_number(dtype):
    for size in (1, 7, CHUNK, CHUNK + 1, 3 * CHUNK - 1):
        sound = numbers(np.random.default_rng(size), size, dtype)
        sound[0] = np.finfo(dtype).max
        assert cpu.inspection.finite(sound) and reference.inspection.finite(sound)
        for place in {0, size // 2, size - 1}:
            for bad in (np.nan, np.inf, -np.inf, 1j * np.inf):
                if np.dtype(dtype).kind == "c" or bad.imag == 0:
                    v = sound.copy()
                    v[place] = bad
                    assert not cpu.inspection.finite(v) and not reference.inspection.finite(v)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_large_matrix_is_inspected_as_by_one_thread(count):
    threads.set_num_threads(count)
    A = as_csr(gallery.poisson7(32))
    n, nnz = A.n, A.nnz
    rng = np.random.default_rng(count)

    def compared(indptr, indices, data):
        places = np.full(n, -7, np.int32), np.full(n, -7, np.int32)
        found = cpu.inspection.inspect(indptr, indices, data, places[0])
        assert tuple(found) == tuple(inspection._inspect_by_one(indptr, indices, data, places[1]))
        if found[0] < 0:
            np.testing.assert_array_equal(*places)
        return found

    assert compared(A.indptr, A.indices, A.data) == (-1, 0, 0, -1, 0, -1)
    for _ in range(6):
        row, entry = int(rng.integers(1, n - 1)), int(rng.integers(nnz))
        for value in (-1, n, 2**31 - 1):
            indices = A.indices.copy()
            indices[entry] = value
            assert compared(A.indptr, indices, A.data)[0] >= 0
        for value in (-1, -(2**31), 2**31 - 1, nnz + 1, A.indptr[row + 1] + 1):
            indptr = A.indptr.copy()
            indptr[row] = value
            assert compared(indptr, A.indices, A.data)[0] >= 0
        data = A.data.copy()
        data[entry] = np.nan
        assert compared(A.indptr, A.indices, data)[2] == 1
        keep = np.ones(nnz, bool)
        keep[A.diag[[row, row + 1]]] = False
        S = sp.csr_matrix((A.data[keep], A.indices[keep], np.concatenate([[0], np.cumsum(keep)])[A.indptr]))
        assert compared(S.indptr, S.indices, S.data)[4:] == (2, row)
    swapped = A.indices.copy()
    swapped[[0, 1]] = swapped[[1, 0]]
    assert compared(A.indptr, swapped, A.data)[1] > 0


# Threads -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shared_work():
    """A problem whose plans several threads share, with the factors and solutions of one thread."""
    A = as_csr(gallery.poisson7(16))
    lu, x = np.empty_like(A.data), np.empty((2, A.n))
    cpu.elimination.ilu0(cpu.elimination.ilu0_analysis(A, "sequential"), A.data, lu)
    b = numbers(np.random.default_rng(0), A.n, "float64")
    for row, lower in zip(x, (True, False), strict=True):
        plan = cpu.triangular.triangular_plan(triangle(A, lower, lower), "sequential", 1)
        plan.load(lu)
        plan.solve(b, row)
    return A, lu, b, x


def plans_for(A, lu, count):
    factor = [
        replace(cpu.elimination.ilu0_analysis(A, "levels"), schedule=s)
        for s in schedules(triangle(A, True, True), 50, count).values()
    ]
    solvers = []
    for lower in (True, False):
        T = triangle(A, lower, lower)
        solvers.append([triangular.Exact(T, s, None) for s in schedules(T, 50, count).values()])
        for plan in solvers[-1]:
            plan.load(lu)
    return factor, solvers


def agree(A, lu, b, x, factor, solvers):
    values = np.full_like(lu, np.nan)
    for plan in factor:
        assert cpu.elimination.ilu0(plan, A.data, values) == -1
        assert np.array_equal(values, lu)
    for row, plans in zip(x, solvers, strict=True):
        for plan in plans:
            assert np.array_equal(solve(plan, b), row)


@pytest.mark.parametrize("n", [300, 40_000])
def test_rows_are_shared_out_evenly(n):
    """Where some rows are long, and others empty; and the many rows of a large matrix without a look at each."""
    lengths = np.random.default_rng(0).integers(0, 30, n)
    lengths[:: n // 10], lengths[n // 2 : n // 2 + n // 8] = 100_000 // (n // 100), 0
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    items = shared_out(indptr, 60 * int(indptr[-1]))
    assert items[0] == 0 and items[-1] == n and items.size > 4 and (np.diff(items.astype(np.int64)) >= 0).all()
    share = items + indptr[items]
    steps = max(n // STEPS, 1) * (1 + lengths.max())
    assert np.diff(share).max() <= share[-1] / (items.size - 1) + steps


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_the_bits_do_not_depend_on_the_number_of_threads(shared_work, count):
    threads.set_num_threads(count)
    plans = plans_for(*shared_work[:2], count)
    for _ in range(20):
        agree(*shared_work, *plans)


def test_several_python_threads_use_the_same_plans_at_once(shared_work):
    plans = plans_for(*shared_work[:2], 3)
    threads.set_num_threads(3)
    errors = []

    def work():
        try:
            for _ in range(10):
                agree(*shared_work, *plans)
        except BaseException as error:
            errors.append(error)

    callers = [threading.Thread(target=work) for _ in range(4)]
    for caller in callers:
        caller.start()
    for _ in range(20):
        threads.set_num_threads(3)  # a new pool, while the old one is in use
    for caller in callers:
        caller.join()
    assert not errors


def test_a_task_is_done_by_a_thread_or_cancelled_and_never_both():
    started, release, done = threading.Event(), threading.Event(), []

    def holds():
        started.set()
        return release.wait(60)

    threads.set_num_threads(2)  # one other thread
    first = threads.begin(holds)
    assert started.wait(60) and not first.cancel() and not first.done()
    second, third = threads.begin(done.append, 2), threads.begin(int, "one")
    assert second.cancel() and second.cancel() and second.done() and not third.done()
    release.set()
    assert first.result() is True and first.done() and not first.cancel()
    with pytest.raises(ValueError, match="one"):
        third.result()
    assert done == [] and threads.Task.over_with(5).result() == 5


def test_threads_that_are_set_anew_do_what_they_were_asked_for_and_end():
    threads.set_num_threads(3)
    tasks = [threads.begin(threading.current_thread) for _ in range(6)]
    threads.set_num_threads(2)
    for thread in {task.result() for task in tasks}:
        thread.join(60)
        assert not thread.is_alive() and thread.name.startswith("finelu")


@pytest.mark.skipif(os.name != "posix", reason="sends a signal to itself")
def test_no_signal_leaves_a_lock_taken():
    """Exceptions out of signals at all points of many calls: the threads still do what they are asked for."""
    threads.set_num_threads(2)

    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    before = signal.signal(signal.SIGVTALRM, interrupt)
    gc.disable()  # hypothesis has it call a function, in which Python ignores exceptions
    try:
        for delay in np.random.default_rng(0).uniform(2e-5, 5e-3, 200):
            with contextlib.suppress(Interrupted):
                signal.setitimer(signal.ITIMER_VIRTUAL, delay, 0.05)  # again where Python ignores an exception
                while True:
                    task = threads.begin(int)
                    if not task.cancel():
                        task.wait()
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            assert threads.begin(int).result() == 0
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)
        gc.enable()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_forked_child_makes_its_own_threads(shared_work):
    plans = plans_for(*shared_work[:2], 2)
    agree(*shared_work, *plans)  # the parent's threads are alive
    child = os.fork()
    if child == 0:
        try:
            agree(*shared_work, *plans)
            os._exit(0 if threads._pool is not None or workers._present is not None else 3)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    agree(*shared_work, *plans)


@compiled
def _meet_all(count, counts, seen):
    """Wait until `count` threads are here."""
    seen[atomics.fetch_add(counts, 0, 1)] = 1
    rounds = 0
    while atomics.load_acquire(counts, 0) < count:
        atomics.relax(rounds)
        rounds += 1


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_kernel_runs_on_as_many_threads_as_are_set(count):
    threads.set_num_threads(count)
    assert threads.get_num_threads() == count
    counts, seen = np.zeros(1, np.int64), np.zeros(count, np.int8)
    threads.run(_meet_all, 100, count, counts, seen)
    assert seen.all()


def test_an_exception_in_the_caller_waits_for_the_helpers():
    threads.set_num_threads(2)
    caller, begun, finished = threading.get_ident(), threading.Event(), []

    def kernel():
        if threading.get_ident() == caller:
            begun.wait(10)
            raise KeyboardInterrupt
        begun.set()
        threading.Event().wait(0.2)
        finished.append(True)

    with pytest.raises(KeyboardInterrupt):
        threads.run(kernel, 2)
    assert finished == [True]


def test_the_number_of_threads_comes_from_the_environment(monkeypatch):
    monkeypatch.setattr(threads, "_wanted", None)
    monkeypatch.delenv("FINELU_NUM_THREADS", raising=False)
    assert threads.get_num_threads() == threads.available_cores()
    monkeypatch.setenv("FINELU_NUM_THREADS", "7")
    assert threads.get_num_threads() == 7
    monkeypatch.setenv("FINELU_NUM_THREADS", "many")
    with pytest.raises(ParameterError, match="FINELU_NUM_THREADS='many'"):
        threads.get_num_threads()
    for wrong in (0, -1, 1.5, True, "2"):
        with pytest.raises(ParameterError, match="a positive integer"):
            threads.set_num_threads(wrong)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, np.inf),
        ({"quota": "400000\n", "period": "100000\n"}, 4),
        ({"quota": "-1\n", "period": "100000\n"}, np.inf),
        ({"cpu.max": "a line of another form\n"}, np.inf),
        ({}, np.inf),
    ],
)
def test_a_container_gets_its_share_of_the_cores(monkeypatch, tmp_path, files, cores):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    quotas = ((str(tmp_path / "cpu.max"),), (str(tmp_path / "quota"), str(tmp_path / "period")))
    monkeypatch.setattr(threads, "QUOTAS", quotas)
    monkeypatch.setattr(threads, "_bound_cores", lambda: 3)
    threads._quota.cache_clear()
    try:
        assert threads._quota() == cores
        assert threads.available_cores() == min(3, np.ceil(cores))
    finally:
        threads._quota.cache_clear()


def test_fetch_min_keeps_the_smallest():
    array = np.array([9, 9], np.int64)
    _lower(array)
    assert array.tolist() == [9, 4]


@compiled
def _lower(array):
    for value in (7, 4, 8):
        atomics.fetch_min(array, 1, value)


def test_importing_the_kernels_starts_no_thread():
    code = "import threading, finelu.kernels.cpu; assert threading.active_count() == 1"
    assert os.spawnl(os.P_WAIT, sys.executable, sys.executable, "-c", code) == 0


def test_kernels_of_several_threads_keep_none_of_their_arrays(threads):
    threads(2)
    A = fl.gallery.poisson7(20)
    F = fl.ILU0(variant="levels", triangular="levels").factor(A)
    plans = [solver.plan for solver in F.solvers("N")]
    owners = [*plans, *(plan.schedule for plan in plans)]
    kept = [weakref.ref(v) for owner in owners for v in vars(owner).values() if isinstance(v, np.ndarray)]
    for _ in range(3):
        F.solve(np.ones(A.shape[0]))
        F.update(A)
    assert len(kept) > 4 and all(array() is not None for array in kept)
    del F, plans, owners
    gc.collect()
    assert [array() for array in kept] == [None] * len(kept)


def test_blas_has_one_thread_while_any_caller_wants_it_so():
    def counts():
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    with threadpool_limits(2, "blas"):
        assert set(counts()) == {2}
        with threads.one_blas_thread():
            with threads.one_blas_thread():
                assert set(counts()) == {1}
            assert set(counts()) == {1}
            with pytest.raises(KeyboardInterrupt), threads.one_blas_thread():
                raise KeyboardInterrupt
            assert set(counts()) == {1}
        assert set(counts()) == {2}


def test_blas_is_limited_again_after_a_limit_that_was_interrupted(monkeypatch):
    class Interrupted:
        def limit(self, **_):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threads, "_blas", Interrupted)
        with pytest.raises(KeyboardInterrupt), threads.one_blas_thread():
            pass
    test_blas_has_one_thread_while_any_caller_wants_it_so()
