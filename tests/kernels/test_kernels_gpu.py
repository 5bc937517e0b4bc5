"""The CUDA kernels: by twin on every variant, type and size; the same bits in every run; streams, threads, no hang."""

from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from checks import (
    DTYPES,
    PATTERNS,
    assert_close,
    dominant_matrices,
    full,
    in_dtype,
    long_rows,
    longest_chain,
    refused,
    run_at_once,
    values,
    with_index,
)
from hypothesis import given
from hypothesis import strategies as st

from finelu import IC0, ILU0, ParameterError, TriangularSolver, ZeroPivot, gallery
from finelu.kernels import cpu, reference
from finelu.matrix import CSR, as_csr, lower_triangle
from finelu.triangular import triangle

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("cupy")]

IC0_VARIANTS = ("adapt", "natural", "levs", "auto")
ILU0_VARIANTS = ("shared", "vect", *IC0_VARIANTS)
EXACT = ("sync_free", "level_packed", "one_block", "auto")
METHODS = (*EXACT, "jacobi", "isai")
KINDS = list(product((True, False), (True, False), ("N", "T", "H")))  # lower, unit, trans
# Factors of apache2_like remember every rounding; test_eliminations.py looks at them by definition.
WELL_CONDITIONED = [p for p in gallery.small() if not p.name.startswith("apache2")]
WELL_CONDITIONED_SPD = [p for p in gallery.small_spd() if not p.name.startswith("apache2")]
LENGTHS = (1, 2, 3, 4, 5, 31, 32, 33, 63, 64, 65, 127, 128, 129, 257, 1024, 1025, 1500)
SPREAD = ("poisson7:5,4,3", "convection_diffusion:8,7,1,peclet=50", "anisotropic_triangles:2")  # every second Hermitian


def on_gpu(A: CSR) -> CSR:
    import cupy

    return A.on(cupy)


def sizes(A: CSR, lu):
    """The scale of each value of the factors: the largest one of its row on its side of the diagonal."""
    rows = np.repeat(np.arange(A.n), np.diff(A.indptr))
    side = (A.indices < rows).astype(int)
    largest = np.zeros((2, A.n))
    np.maximum.at(largest, (side, rows), abs(lu))
    return largest[side, rows]


def lower_half(A: CSR) -> CSR:
    return lower_triangle(A)[0]


# kernel -> what it factors of A, and the arguments of its specification
ELIMINATIONS = {
    "ilu0": (lambda A: A, lambda A: (A.indptr, A.indices, A.diag, A.data)),
    "ic0": (lower_half, lambda L: (L.indptr, L.indices, L.data)),
}
EACH = pytest.mark.parametrize("name", ELIMINATIONS)


def operand(name, A):
    return ELIMINATIONS[name][0](as_csr(A))


def by_reference(name, A: CSR):
    out = np.empty_like(A.data)
    assert getattr(reference.elimination, name)(*ELIMINATIONS[name][1](A), out) == -1
    return out


def by_cpu(name, A: CSR):
    """The same bits, fast enough for large matrices."""
    out, analysis = np.empty_like(A.data), getattr(cpu.elimination, f"{name}_analysis")
    assert getattr(cpu.elimination, name)(analysis(A, "sequential"), A.data, out) == -1
    return out


def every_variant(cuda, name):
    return (*getattr(cuda.elimination, f"{name.upper()}_VARIANTS"), "auto")


def run(cuda, name, A: CSR, variant):
    """Factors of A by the kernel; every place of the output has a value before, which must not matter."""
    moved, analysis = on_gpu(A), getattr(cuda.elimination, f"{name}_analysis")
    out = moved.data * np.nan
    bad = cuda.vectors.first_bad(getattr(cuda.elimination, name)(analysis(moved, variant), moved.data, out))
    return out.get(), bad


def check(cuda, name, A: CSR, want, ulps=32):
    """Every variant gives these factors."""
    for variant in every_variant(cuda, name):
        got, bad = run(cuda, name, A, variant)
        assert bad == -1 and got.dtype == A.dtype, variant
        assert_close(got, want, ulps, scale=sizes(A, want))


@pytest.mark.parametrize(
    ("problem", "mean", "lanes"),
    [("poisson5:20", 4.8, 8), ("random_dominant:800,density=0.01", 8.9, 16), ("poisson27:9", 21.4, 32)],
)
def test_the_length_of_rows_decides_how_many_threads_of_adapt_share_one(cuda, problem, mean, lanes):
    A = on_gpu(as_csr(gallery.problem(problem)))
    assert A.nnz / A.n == pytest.approx(mean, abs=0.1)
    plans = [cuda.elimination.ilu0_analysis(A, variant) for variant in ("adapt", "natural")]
    assert [plan.lanes for plan in plans] == [lanes, 32]


def row_of(length, dtype="float64"):
    """Tridiagonal, except for one row of `length` entries near the end and one near the beginning; Hermitian."""
    n = length + 40
    A = sp.diags([np.full(n - 1, -1.0), np.full(n, 6.0), np.full(n - 1, -1.0)], [-1, 0, 1], format="lil")
    far = np.linspace(0, n - 4, max(length - 3, 0)).astype(int)
    A[n - 2, far] = -1.0 / length
    A[far, n - 2] = -1.0 / length
    A[n - 2, n - 2] = 6.0
    return in_dtype(sp.csr_matrix(A), dtype)


# ILU(0) and IC(0) by twin


def test_all_variants_of_the_paper_are_offered(cuda):
    assert set(ILU0_VARIANTS) <= {*cuda.elimination.ILU0_VARIANTS, "auto"}
    assert set(IC0_VARIANTS) <= {*cuda.elimination.IC0_VARIANTS, "auto"}


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        pytest.param(name, problem, id=f"{name}-{problem}")
        for name, problems in (("ilu0", WELL_CONDITIONED), ("ic0", WELL_CONDITIONED_SPD))
        for problem in problems
    ],
)
def test_factors_are_those_of_the_reference_on_every_variant(cuda, name, problem):
    A = operand(name, problem.A)
    check(cuda, name, A, by_reference(name, A))


@EACH
@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_factors_are_those_of_the_reference_in_every_dtype(cuda, name, dtype, index):
    for text in SPREAD if name == "ilu0" else SPREAD[::2]:
        A = operand(name, with_index(in_dtype(gallery.problem(text), dtype), index))
        check(cuda, name, A, by_reference(name, A))


@EACH
@PATTERNS
@given(data=st.data())
def test_factors_of_any_pattern(cuda, name, data):
    A = operand(name, data.draw(dominant_matrices(largest=40, hermitian=name == "ic0")))
    check(cuda, name, A, by_reference(name, A))


@EACH
@pytest.mark.parametrize("length", LENGTHS)
def test_rows_of_every_length(cuda, name, length):
    A = operand(name, row_of(length))
    check(cuda, name, A, by_cpu(name, A), 64)


LARGE = {
    "poisson7": lambda: gallery.poisson7(64),
    "convection": lambda: gallery.convection_diffusion(40, 40, 40, peclet=200),
    "long rows": lambda: long_rows(1500),
    "full": lambda: full(200, hermitian=True),
    "arrow": lambda: gallery.arrow(100_000),
    "diagonal": lambda: sp.csr_matrix(sp.identity(300_000)),
    "bidiagonal": lambda: gallery.bidiagonal(20_000),
    "tridiagonal": lambda: gallery.tridiagonal(20_000, diagonal=4.0),
    "chain and a long row": lambda: longest_chain(5000),
    "random": lambda: gallery.random_dominant(30_000, 2e-4, 1),
    "one level": lambda: sp.csr_matrix(sp.triu(gallery.poisson7(40))),
}


HERMITIAN = ("poisson7", "full", "arrow", "diagonal", "tridiagonal")


@pytest.mark.parametrize(
    ("name", "kind"), [*(("ilu0", kind) for kind in LARGE), *(("ic0", kind) for kind in HERMITIAN)]
)
def test_factors_of_large_matrices(cuda, name, kind):
    """Many blocks, more than are resident; deep chains; rows beyond the registers."""
    A = operand(name, LARGE[kind]())
    check(cuda, name, A, by_cpu(name, A), 64)


def test_the_variant_asked_for_is_the_one_that_runs(cuda, cupy):
    A = as_csr(cupy.asarray(gallery.poisson7(5).toarray()))
    for variant in cuda.elimination.ILU0_VARIANTS:
        assert ILU0(variant=variant).factor(A).report["variant"] == variant
    for variant in cuda.elimination.IC0_VARIANTS:
        assert IC0(variant=variant).factor(A).report["variant"] == variant
    assert ILU0().factor(A).report["variant"] in cuda.elimination.ILU0_VARIANTS
    assert IC0().factor(A).report["variant"] in cuda.elimination.IC0_VARIANTS


@pytest.mark.parametrize("variant", ["sequential", "levels", "fastest"])
def test_a_variant_of_the_cpu_is_refused(cuda, cupy, variant):
    A = as_csr(cupy.asarray(gallery.poisson7(3).toarray()))
    for recipe in (ILU0(variant=variant), IC0(variant=variant)):
        with refused(ParameterError, match=f"variant='{variant}' is not offered on the GPU"):
            recipe.factor(A)


# Bad rows


def test_the_first_of_many_bad_rows_is_named_however_many_blocks_there_are(cuda):
    A = gallery.poisson7(40)
    rows = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    bad = np.isin(rows, [30_011, 30_012, 50_000]) & (rows == A.indices)
    A.data[np.isin(rows, [30_011, 30_012, 50_000])] = 0  # rows of zeros: their pivots are zero whatever comes before
    assert bad.sum() == 3
    for name in ELIMINATIONS:
        for variant in every_variant(cuda, name):
            assert run(cuda, name, operand(name, A), variant)[1] == 30_011, variant


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
@pytest.mark.parametrize("word", [0xFF, 0x7F])
def test_nan_of_any_bits_ends_every_wait(cuda, dtype, word):
    """Memory of 0xff bytes means "not computed yet" to the kernels; a NaN with these bits must not be waited for."""
    A = as_csr(in_dtype(gallery.poisson7(6), dtype))
    data = A.data.copy()
    data[A.diag[100] : A.diag[100] + 1].view(np.uint8)[:] = word  # 0x7f: a NaN or a very large number
    damaged = CSR(A.indptr, A.indices, data, A.diag)
    if word == 0xFF:
        for name in ELIMINATIONS:
            for variant in every_variant(cuda, name):
                assert run(cuda, name, operand(name, damaged), variant)[1] == 100, variant
    b = on_gpu(A).data[: A.n].copy()
    for method in METHODS:
        solver = TriangularSolver(on_gpu(damaged), method=method, check=False)
        x = solver.solve(b).get()
        assert np.isfinite(x[:100]).all()
        assert word == 0x7F or not np.isfinite(x[100])


def test_zero_pivots_are_named_through_the_front_door(cupy):
    A = gallery.poisson7(40)
    place = A.indptr[12_345] + np.flatnonzero(A.indices[A.indptr[12_345] : A.indptr[12_346]] == 12_345)[0]
    A.data[A.indptr[12_345] : A.indptr[12_346]] = 0
    A.data[A.indices == 12_345] = 0  # Hermitian, as IC0 needs it
    assert A.data[place] == 0
    for recipe in (ILU0(), IC0()):
        with refused(ZeroPivot, match="row 12345 "):
            recipe.factor(on_gpu(as_csr(A)))


# Triangular solves by twin


def scaled(A: CSR, unit):
    """A itself, or for a unit diagonal A scaled so that its rows are small compared with the ones."""
    if not unit:
        return A
    size = (2 * abs(A.tosparse()).sum(axis=1).max()).astype(A.data.real.dtype)
    return CSR(A.indptr, A.indices, A.data / size, A.diag)


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_method_is_the_reference_in_every_dtype(kind, dtype, index):
    lower, unit, trans = kind
    A = scaled(with_index(in_dtype(gallery.problem("convection_diffusion:8,7,2,peclet=50"), dtype), index), unit)
    operand = triangle(A, lower, unit, trans)
    moved = on_gpu(A)
    for shape in ((), (1,), (3,)):
        b = values((A.n, *shape), dtype)
        exact = reference.triangular.solve_triangular(operand, A.data, b)
        W = reference.triangular.isai(operand, A.data)
        for method in METHODS:
            solver = TriangularSolver(moved, lower=lower, unit=unit, trans=trans, method=method)
            x = solver.solve(on_device(b)).get()
            want = exact
            if method == "jacobi":
                want = reference.triangular.jacobi_sweeps(operand, A.data, b, 10)
            elif method == "isai":
                want = W @ b
            assert x.dtype == dtype
            assert_close(x, want.astype(dtype), 32)


def on_device(b):
    import cupy

    return cupy.asarray(b)


@PATTERNS
@given(data=st.data())
def test_every_method_on_any_pattern(cupy, data):
    A = data.draw(dominant_matrices(largest=40))
    lower, unit, trans = data.draw(st.sampled_from(KINDS))
    A = scaled(as_csr(A), unit)
    b = values(A.n, "float64")
    want = reference.triangular.solve_triangular(triangle(A, lower, unit, trans), A.data, b)
    for method in EXACT:
        solver = TriangularSolver(on_gpu(A), lower=lower, unit=unit, trans=trans, method=method)
        assert_close(solver.solve(on_device(b)).get(), want, 32)


@pytest.mark.parametrize("length", LENGTHS)
def test_solves_with_rows_of_every_length(length):
    A = as_csr(row_of(length))
    b = values(A.n, "float64")
    for lower, trans in product((True, False), ("N", "T")):
        want = TriangularSolver(A, lower=lower, trans=trans, method="sequential").solve(b)
        for method in METHODS:
            solver = TriangularSolver(on_gpu(A), lower=lower, trans=trans, method=method)
            if method in EXACT:
                assert_close(solver.solve(on_device(b)).get(), want, 64)


@pytest.mark.parametrize("name", LARGE)
def test_large_solves(name):
    """Many blocks, more than are resident; deep chains; long rows; several right-hand sides."""
    A = as_csr(LARGE[name]())
    moved = on_gpu(A)
    for (lower, trans), shape in product(((True, "N"), (False, "N"), (True, "T")), ((), (3,))):
        b = values((A.n, *shape), "float64")
        want = TriangularSolver(A, lower=lower, trans=trans, method="sequential").solve(b)
        for method in EXACT:
            if method == "one_block" and A.n > 20_000:
                continue
            solver = TriangularSolver(moved, lower=lower, trans=trans, method=method)
            assert_close(solver.solve(on_device(b)).get(), want, 64)


@pytest.mark.parametrize("columns", [2, 7, 33, 1000])
def test_many_right_hand_sides(columns):
    A = as_csr(gallery.poisson7(12))
    b = values((A.n, columns), "float64")
    want = TriangularSolver(A, method="sequential").solve(b)
    for method in EXACT:
        assert_close(TriangularSolver(on_gpu(A), method=method).solve(on_device(b)).get(), want, 32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_block_takes_what_fits_and_refuses_what_does_not(cupy, dtype):
    from finelu.kernels.cuda.runtime.schedule import one_block_rows

    most = one_block_rows(np.dtype(dtype).itemsize)
    assert most >= 10_000 * 8 // np.dtype(dtype).itemsize
    for n in (most, most + 1):
        A = as_csr(in_dtype(gallery.tridiagonal(n, diagonal=4.0), dtype))
        if n > most:
            with refused(ParameterError, match=rf"holds {most} of them; this system has {n} rows"):
                TriangularSolver(on_gpu(A), method="one_block")
            assert TriangularSolver(on_gpu(A)).method != "one_block"
        else:
            b = values(n, dtype)
            x = TriangularSolver(on_gpu(A), method="one_block").solve(on_device(b)).get()
            assert_close(x, TriangularSolver(A, method="sequential").solve(b), 32)


@pytest.mark.parametrize("method", ["sequential", "levels"])
def test_a_method_of_the_cpu_is_refused(method):
    with pytest.raises(ParameterError, match=rf"'{method}' is not offered on the GPU; one of sync_free"):
        TriangularSolver(on_gpu(as_csr(gallery.poisson7(3))), method=method)


# Levels


@pytest.mark.parametrize("index", [np.int32, np.int64])
@pytest.mark.parametrize("name", LARGE)
def test_levels_are_those_of_the_cpu(cuda, name, index):
    A = with_index(sp.csr_matrix(LARGE[name]()), index)
    moved = on_gpu(A)
    for lower, trans in product((True, False), ("N", "T")):
        want, depth = cpu.levels.levels(triangle(A, lower, True, trans))
        level, found = cuda.levels.levels(triangle(moved, lower, True, trans))
        assert found == depth
        np.testing.assert_array_equal(level.get(), want)


# The same bits in every run


@pytest.mark.parametrize("kind", ["poisson7", "long rows", "full", "random", "tridiagonal"])
def test_factors_have_the_same_bits_in_every_run(cuda, kind):
    for name in ELIMINATIONS if kind in HERMITIAN else ("ilu0",):
        A = operand(name, LARGE[kind]())
        for variant in every_variant(cuda, name):
            first, _ = run(cuda, name, A, variant)  # a new analysis each time
            for _ in range(4):
                np.testing.assert_array_equal(run(cuda, name, A, variant)[0], first)


@pytest.mark.parametrize("name", ["poisson7", "long rows", "full", "random", "tridiagonal", "arrow"])
def test_solves_have_the_same_bits_in_every_run(name):
    A = as_csr(LARGE[name]())
    moved, b = on_gpu(A), on_device(values((A.n, 2), "float64"))
    for method, trans in product(METHODS, ("N", "T")):
        if method == "one_block" and A.n > 20_000:
            continue
        if method == "isai" and name in ("full", "long rows", "arrow"):
            continue  # the cost of a row is the square of its length
        solvers = [TriangularSolver(moved, trans=trans, method=method) for _ in range(2)]
        first = solvers[0].solve(b).get()
        for k in range(5):
            np.testing.assert_array_equal(solvers[k % 2].solve(b).get(), first)


# Memory, streams, threads


def test_a_numeric_factorization_allocates_nothing(cuda, cupy):
    A = as_csr(gallery.poisson7(20))

    def refuse(size):
        raise AssertionError(f"{size} bytes were asked for")

    for name in ELIMINATIONS:
        for variant in every_variant(cuda, name):
            factor, analysis = getattr(cuda.elimination, name), getattr(cuda.elimination, f"{name}_analysis")
            M = on_gpu(operand(name, A))
            plan, out = analysis(M, variant), cupy.empty_like(M.data)
            factor(plan, M.data, out)  # compiles
            want = out.get()
            out[:] = 0
            with cupy.cuda.using_allocator(refuse):
                bad = factor(plan, M.data, out)
            assert cuda.vectors.first_bad(bad) == -1
            np.testing.assert_array_equal(out.get(), want)


def test_two_streams_at_once(cupy):
    A = as_csr(gallery.poisson7(48))
    B = as_csr(gallery.convection_diffusion(48, 48, 48, peclet=50))
    b = on_device(values(A.n, "float64"))
    moved = [on_gpu(A), on_gpu(B)]
    wanted = [ILU0().factor(M).solve(b).get() for M in moved]
    shared = {method: TriangularSolver(moved[0], method=method) for method in ("sync_free", "level_packed", "auto")}
    wanted_shared = {method: solver.solve(b).get() for method, solver in shared.items()}
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    cupy.cuda.Device().synchronize()
    answers = [[], []]
    for _ in range(5):
        for k, stream in enumerate(streams):
            with stream:
                F = ILU0().factor(moved[k])
                for _ in range(5):
                    answers[k].append(F.solve(b))
    same = []
    for _ in range(10):
        for stream in streams:
            with stream:
                same.extend((method, solver.solve(b)) for method, solver in shared.items())
    for stream in streams:
        stream.synchronize()
    for k in range(2):
        for x in answers[k]:
            np.testing.assert_array_equal(x.get(), wanted[k])
    for method, x in same:
        np.testing.assert_array_equal(x.get(), wanted_shared[method])


def test_several_threads_at_once(cupy):
    A, B = as_csr(gallery.poisson7(32)), as_csr(gallery.convection_diffusion(32, 32, 32, peclet=50))
    R = values((A.n, 4), "float64")
    shared = ILU0().factor(on_gpu(A))
    wanted = [shared.solve(on_device(R[:, k])).get() for k in range(4)]
    transposed = [shared.solve(on_device(R[:, k]), trans="T").get() for k in range(4)]
    fresh = ILU0().factor(on_gpu(A))  # whose analyses of the transpose are made by the first thread that needs them
    own = ILU0().factor(on_gpu(B)).solve(on_device(R[:, 0])).get()
    cupy.cuda.Device().synchronize()

    def work(k):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            r = on_device(R[:, k])
            answers = [(fresh.solve(r), fresh.solve(r, trans="T")) for _ in range(10)]
            mine = ILU0().factor(on_gpu(B)).solve(on_device(R[:, 0]))
            stream.synchronize()
            return [(x.get(), y.get()) for x, y in answers], mine.get()

    for k, (answers, mine) in enumerate(run_at_once(work, 4)):
        for x, y in answers:
            np.testing.assert_array_equal(x, wanted[k])
            np.testing.assert_array_equal(y, transposed[k])
        np.testing.assert_array_equal(mine, own)


def test_update_on_the_gpu_is_a_fresh_factorization_of_a_large_matrix(cupy):
    A = gallery.poisson7(40)
    B = A * 1.0
    B.data = B.data * np.random.default_rng(0).uniform(0.9, 1.1, B.nnz)
    r = on_device(values(A.shape[0], "float64"))
    F = ILU0().factor(on_gpu(as_csr(A)))
    for M in (B, A, B):
        F.update(on_gpu(as_csr(M)))
        fresh = ILU0(variant=F.report["variant"]).factor(on_gpu(as_csr(M)))
        np.testing.assert_array_equal(F.solve(r).get(), fresh.solve(r).get())
