"""Triangular solves: by definition, by limit, by twin, by the effect of each parameter, by bad input; levels."""

from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from checks import (
    DTYPES,
    IN_TYPES,
    PATTERNS,
    assert_close,
    dominant_matrices,
    in_dtype,
    long_rows,
    longest_chain,
    one_line,
    perturbed,
    refused,
    values,
    with_index,
)
from conftest import real_matrix
from hypothesis import given
from hypothesis import strategies as st

from finelu import DeviceError, MatrixError, ParameterError, TriangularSolver, ZeroPivot, gallery
from finelu.kernels import cpu, kernels_for, reference
from finelu.matrix import as_csr
from finelu.triangular import levels, triangle

TRANSPOSES = ("N", "T", "H")
KINDS = list(product((True, False), (True, False), TRANSPOSES))  # lower, unit, trans
SHAPES = ((), (1,), (3,))
EXACT_ON_CPU = ("sequential", "levels", "auto")


def kind_name(kind):
    lower, unit, trans = kind
    return f"{'lower' if lower else 'upper'}-{'unit' if unit else 'diagonal'}-{trans}"


@pytest.fixture(params=KINDS, ids=kind_name)
def kind(request):
    lower, unit, trans = request.param
    return {"lower": lower, "unit": unit, "trans": trans}


def exact_methods(backend):
    methods = kernels_for(backend.move(np.ones(1))).triangular.TRIANGULAR_METHODS
    return [*(m for m in methods if m not in ("jacobi", "isai")), "auto"]


def dense_triangle(A, lower, unit, trans):
    T = (np.tril if lower else np.triu)(A.toarray())
    if unit:
        np.fill_diagonal(T, 1)
    return {"N": T, "T": T.T, "H": T.conj().T}[trans]


def by_reference(A, b, lower, unit, trans):
    A = as_csr(A, diagonal=not unit)
    return reference.triangular.solve_triangular(triangle(A, lower, unit, trans), A.data, b)


def well_conditioned(A, unit):
    """A itself, or for a unit diagonal A scaled so that its rows are small compared with the ones."""
    if not unit:
        return A
    size = (2 * abs(A).sum(axis=1).max()).astype(A.real.dtype)
    return sp.csr_matrix((A.data / size, A.indices, A.indptr), shape=A.shape)


# By definition


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_solution_solves_the_system(backend, kind, dtype):
    A = well_conditioned(in_dtype(gallery.convection_diffusion(8, 7, 2, peclet=50), dtype), kind["unit"])
    T = dense_triangle(A, **kind)
    for method, shape in product(exact_methods(backend), SHAPES):
        solver = TriangularSolver(backend.move(A), method=method, **kind)
        b = values((A.shape[0], *shape), dtype)
        x = backend.fetch(solver.solve(backend.move(b)))
        assert x.shape == b.shape and x.dtype == dtype == solver.dtype
        assert_close(T @ x, b, 64)
        assert solver.nnz == np.count_nonzero(T) - (A.shape[0] if kind["unit"] else 0)
        if method != "auto":
            assert solver.method == method


@pytest.mark.parametrize("name", ["of_pitzDaily_U", "memplus", "cage10", "sherman3"])
def test_real_matrices_are_solved(backend, name):
    A = sp.csr_matrix(real_matrix(name))
    A.setdiag(abs(A).sum(axis=1).A1 + abs(A).sum(axis=0).A1)  # the triangles of real matrices overflow
    for lower, trans in product((True, False), ("N", "T")):
        T = sp.tril(A) if lower else sp.triu(A)
        T = T if trans == "N" else T.T
        b = values(A.shape[0], "float64")
        for method in exact_methods(backend):
            if method == "one_block":  # holds some 28,000 rows
                continue
            x = backend.fetch(
                TriangularSolver(backend.move(A), lower=lower, trans=trans, method=method).solve(backend.move(b))
            )
            assert_close(T @ x, b, 64)


def test_only_the_wanted_triangle_is_looked_at(backend, kind):
    A = well_conditioned(gallery.poisson7(4), kind["unit"])
    B = A.copy()
    rows = np.repeat(np.arange(64), np.diff(A.indptr))
    B.data[rows < A.indices if kind["lower"] else rows > A.indices] = 1e9
    if kind["unit"]:
        B.data[rows == A.indices] = 0
    b = backend.move(values(64, "float64"))
    for method in exact_methods(backend):
        x, y = (TriangularSolver(backend.move(M), method=method, **kind).solve(b) for M in (A, B))
        np.testing.assert_array_equal(backend.fetch(x), backend.fetch(y))


@pytest.mark.parametrize("lower", [True, False])
def test_a_unit_diagonal_need_not_be_stored(backend, lower):
    A = well_conditioned(gallery.poisson7(4), True)
    strict = sp.csr_matrix(A - sp.diags(A.diagonal()))
    strict.eliminate_zeros()
    half = strict.copy().tolil()
    half[3, 3] = half[60, 60] = 5.0  # a diagonal with gaps
    b = backend.move(values(64, "float64"))
    for trans, method in product(TRANSPOSES, exact_methods(backend)):
        options = {"lower": lower, "unit": True, "trans": trans, "method": method}
        want = backend.fetch(TriangularSolver(backend.move(A), **options).solve(b))
        for M in (strict, sp.csr_matrix(half)):
            got = TriangularSolver(backend.move(M), **options).solve(b)
            assert_close(backend.fetch(got), want, 16)


# By limit


def test_a_diagonal_matrix_divides(backend):
    d = np.linspace(1, 2, 500)
    b = values(500, "float64")
    for method, trans in product(exact_methods(backend), TRANSPOSES):
        solver = TriangularSolver(backend.move(sp.csr_matrix(sp.diags(d))), method=method, trans=trans)
        np.testing.assert_allclose(backend.fetch(solver.solve(backend.move(b))), b / d, rtol=1e-15)


def test_one_row(backend):
    A = backend.move(sp.csr_matrix([[4.0]]))
    for method in (*exact_methods(backend), "jacobi", "isai"):
        assert backend.fetch(TriangularSolver(A, method=method).solve(backend.move(np.array([2.0]))))[0] == 0.5


def test_nilpotent_triangles_are_exact_after_as_many_sweeps_as_levels(backend, kind):
    A = well_conditioned(gallery.poisson7(4, 3, 2), kind["unit"])
    b = values((24, 2), "float64")
    want = by_reference(A, b, **kind)
    depth = 4 + 3 + 2 - 2
    for sweeps, exact in ((depth - 1, True), (1, False)):
        solver = TriangularSolver(backend.move(A), method="jacobi", sweeps=sweeps, **kind)
        error = abs(backend.fetch(solver.solve(backend.move(b))) - want).max()
        assert (error <= 1e-14 * abs(want).max()) == exact


def test_the_sparse_approximate_inverse_of_a_full_triangle_is_the_inverse(backend, kind):
    A = sp.csr_matrix(np.random.default_rng(0).uniform(-1, 1, (30, 30)) + 30 * np.eye(30))
    A = well_conditioned(A, kind["unit"])
    b = values(30, "float64")
    x = TriangularSolver(backend.move(A), method="isai", **kind).solve(backend.move(b))
    assert_close(backend.fetch(x), by_reference(A, b, **kind), 64)


# By twin: the CPU gives the reference's bits


@IN_TYPES
def test_the_bits_are_those_of_the_reference_in_every_dtype(kind, dtype, index):
    A = with_index(well_conditioned(in_dtype(gallery.arrow(70), dtype), kind["unit"]), index)
    for method, shape in product(EXACT_ON_CPU, SHAPES):
        b = values((70, *shape), dtype)
        np.testing.assert_array_equal(TriangularSolver(A, method=method, **kind).solve(b), by_reference(A, b, **kind))


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("sweeps", [1, 2, 5])
def test_jacobi_sweeps_have_the_bits_of_the_reference(kind, sweeps, dtype):
    A = as_csr(well_conditioned(in_dtype(gallery.convection_diffusion(8, 7, 2, peclet=50), dtype), kind["unit"]))
    for shape in SHAPES:
        b = values((A.n, *shape), dtype)
        want = reference.triangular.jacobi_sweeps(triangle(A, **kind), A.data, b, sweeps)
        np.testing.assert_array_equal(TriangularSolver(A, method="jacobi", sweeps=sweeps, **kind).solve(b), want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sparse_approximate_inverse_is_that_of_the_reference(backend, kind, dtype):
    A = as_csr(well_conditioned(in_dtype(gallery.poisson7(5, 4, 3), dtype), kind["unit"]))
    want = reference.triangular.isai(triangle(A, **kind), A.data)
    solver = TriangularSolver(backend.move(A.tosparse()), method="isai", **kind)
    W = backend.fetch(solver.solve(backend.move(np.eye(A.n, dtype=dtype))))
    assert_close(W, want, 64, scale=abs(want).max())


@PATTERNS
@given(data=st.data())
def test_the_sparse_approximate_inverse_of_any_pattern(backend, data):
    A = data.draw(dominant_matrices())
    lower, unit, trans = data.draw(st.sampled_from(KINDS))
    A = well_conditioned(A, unit)
    solver = TriangularSolver(backend.move(A), lower=lower, unit=unit, trans=trans, method="isai")
    W = backend.fetch(solver.solve(backend.move(np.eye(A.shape[0]))))
    T = dense_triangle(A, lower, unit, trans)
    pattern = dense_triangle(A.astype(bool), lower, False, trans)
    assert not W[~pattern].any()  # the pattern of T, and on it W T = I: the definition
    assert_close((W @ T)[pattern], np.eye(A.shape[0])[pattern], 256)


@pytest.mark.parametrize(
    "A",
    [
        gallery.poisson7(30),
        gallery.random_dominant(6000, 0.001, 3),
        long_rows(4000),
        longest_chain(4000),
        gallery.arrow(20000),
        sp.csr_matrix(sp.identity(30000)),
    ],
    ids=["poisson7", "random", "long rows", "chain", "arrow", "diagonal"],
)
def test_the_bits_do_not_depend_on_the_number_of_threads(A, threads):
    n = A.shape[0]
    for (lower, trans), shape in product(((True, "N"), (False, "N"), (True, "T")), ((), (2,))):
        b = values((n, *shape), "float64")
        want = TriangularSolver(A, lower=lower, trans=trans, method="sequential").solve(b)
        for count in (1, 2, 3):
            threads(count)
            for method in ("levels", "auto"):
                solver = TriangularSolver(A, lower=lower, trans=trans, method=method)
                assert method == "auto" or min(count, 2) <= solver.plan.threads <= count
                for _ in range(3 if method == "levels" else cpu.triangular.LATER + 1):
                    np.testing.assert_array_equal(solver.solve(b), want)


@pytest.mark.parametrize("method", ["jacobi", "isai"])
def test_sweeps_do_not_depend_on_the_number_of_threads(method, threads):
    A = gallery.poisson7(30)
    b = values((A.shape[0], 2), "float64")
    answers = []
    for count in (1, 2, 3):
        threads(count)
        answers.append(TriangularSolver(A, method=method, sweeps=4).solve(b))
    np.testing.assert_array_equal(answers[0], answers[1])
    np.testing.assert_array_equal(answers[0], answers[2])


# Right-hand sides


def test_right_hand_sides_of_every_layout(backend, kind):
    A = well_conditioned(gallery.poisson7(4), kind["unit"])
    b = backend.move(values((64, 6), "float64"))
    xp = backend.xp
    for method in (*exact_methods(backend), "jacobi", "isai"):
        solver = TriangularSolver(backend.move(A), method=method, **kind)
        want = backend.fetch(solver.solve(b))
        for layout in (xp.asfortranarray(b), xp.repeat(b, 2, axis=1)[:, ::2], xp.repeat(b, 2, axis=0)[::2]):
            np.testing.assert_array_equal(backend.fetch(solver.solve(layout)), want)
        columns = [backend.fetch(solver.solve(xp.ascontiguousarray(b[:, k]))) for k in range(6)]
        if backend.name == "cpu":
            np.testing.assert_array_equal(np.stack(columns, axis=1), want)
        else:
            assert_close(np.stack(columns, axis=1), want, 16)
        assert solver.solve(b[:, :0]).shape == (64, 0)


def test_out_is_filled_and_returned(backend):
    solver = TriangularSolver(backend.move(gallery.poisson7(4)))
    b = backend.move(values((64, 2), "float64"))
    kept = backend.fetch(b).copy()
    out = backend.xp.full((64, 2), np.nan)
    assert solver.solve(b, out=out) is out
    np.testing.assert_array_equal(backend.fetch(out), backend.fetch(solver.solve(b)))
    np.testing.assert_array_equal(backend.fetch(b), kept)


def test_an_out_that_does_not_fit_is_refused(backend):
    solver = TriangularSolver(backend.move(gallery.poisson7(4)))
    b = backend.move(values(64, "float64"))
    xp = backend.xp
    for out in (b, xp.empty(63), xp.empty((64, 1)), xp.empty(64, "float32"), xp.empty(128)[::2]):
        with refused(MatrixError, match=r"out must be .* shape \(64,\)"):
            solver.solve(b, out=out)


def test_numbers_that_fit_are_converted(backend):
    A = gallery.poisson7(4)
    solver = TriangularSolver(backend.move(A))
    want = backend.fetch(solver.solve(backend.move(np.ones(64))))
    for dtype in ("float32", "int64", "bool"):
        x = solver.solve(backend.move(np.ones(64, dtype)))
        assert x.dtype == np.float64
        np.testing.assert_array_equal(backend.fetch(x), want)


@pytest.mark.parametrize("trans", ["N", "T", "H"])
@pytest.mark.parametrize("shape", [(64,), (64, 1), (64, 3), (64, 0)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_real_triangle_takes_a_complex_right_hand_side(backend, trans, shape, dtype):
    solver = TriangularSolver(backend.move(gallery.poisson7(4).astype(dtype)), trans=trans)
    real, imag = (values(shape, dtype, seed) for seed in (1, 2))
    b = backend.move(real + 1j * imag)
    x = solver.solve(b)
    assert x.dtype == np.result_type(dtype, np.complex64) and x.shape == shape
    for part, one in ((x.real, real), (x.imag, imag)):
        np.testing.assert_array_equal(backend.fetch(part), backend.fetch(solver.solve(backend.move(one))))
    out = backend.xp.empty(shape, x.dtype)
    assert solver.solve(b, out=out) is out
    np.testing.assert_array_equal(backend.fetch(out), backend.fetch(x))
    if out.size:
        with refused(MatrixError, match=f"out must be a C-contiguous {x.dtype} array"):
            solver.solve(b, out=backend.xp.empty(shape, dtype))


@pytest.mark.parametrize("b", [np.array(["1"] * 64), np.array([None] * 64), sp.csr_matrix(np.ones((64, 1)))])
def test_what_holds_no_numbers_is_refused(b):
    with refused(MatrixError, match="right-hand side"):
        TriangularSolver(gallery.poisson7(4)).solve(b)


@pytest.mark.parametrize("shape", [(), (63,), (65,), (1, 64), (64, 2, 2)], ids=str)
def test_a_right_hand_side_of_the_wrong_shape_is_refused(backend, shape):
    with refused(MatrixError, match="64 rows"):
        TriangularSolver(backend.move(gallery.poisson7(4))).solve(backend.move(np.ones(shape)))


def test_nan_in_the_right_hand_side_comes_out_and_nothing_hangs(backend):
    A = gallery.poisson7(4)
    ones = np.full(64, -1, np.int64).view("float64")  # a NaN of all ones, as memory set to 0xff
    for method, bad in product((*exact_methods(backend), "jacobi", "isai"), (np.nan, np.inf, ones[0])):
        b = values(64, "float64")
        b[10] = bad
        solver = TriangularSolver(backend.move(A), method=method)
        x = backend.fetch(solver.apply(backend.move(b)))
        assert not np.isfinite(x[10])
        assert np.isfinite(x[:10]).all()
        if backend.name == "cpu":
            with pytest.raises(MatrixError, match="NaN or Inf in row 10"):
                solver.solve(b)


# Update


def test_update_is_a_fresh_solver(backend, kind):
    A = well_conditioned(gallery.convection_diffusion(8, 7, 2, peclet=50), kind["unit"])
    B = perturbed(A)
    b = backend.move(values((A.shape[0], 2), "float64"))
    for method in (*exact_methods(backend), "jacobi", "isai"):
        solver = TriangularSolver(backend.move(A), method=method, **kind)
        plan = solver.plan
        assert solver.update(backend.move(B.data)) is solver and solver.plan is plan
        want = TriangularSolver(backend.move(B), method=method, **kind).solve(b)
        np.testing.assert_array_equal(backend.fetch(solver.solve(b)), backend.fetch(want))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_values_in_single_precision_are_computed_with_in_double(backend, kind, dtype):
    single = {"float64": "float32", "complex128": "complex64"}[dtype]
    A = well_conditioned(in_dtype(gallery.convection_diffusion(8, 7, 2, peclet=50), dtype), kind["unit"])
    rounded = A.data.astype(single)
    widened = sp.csr_matrix((rounded.astype(dtype), A.indices, A.indptr), shape=A.shape)
    for method in [*exact_methods(backend), "jacobi"]:
        solver = TriangularSolver(backend.move(A), method=method, **kind)
        want = TriangularSolver(backend.move(widened), method=method, **kind)
        for shape in ((), (1,), (3,), (40,)):
            b = backend.move(values((A.shape[0], *shape), dtype))
            in_double = backend.fetch(solver.solve(b))
            x = backend.fetch(solver.update(backend.move(rounded)).solve(b))
            assert x.dtype == dtype == solver.dtype
            np.testing.assert_array_equal(x, backend.fetch(want.solve(b)))
            np.testing.assert_array_equal(backend.fetch(solver.update(backend.move(A.data)).solve(b)), in_double)
            assert abs(x - in_double).max() > 1e-12  # the numbers were rounded
        solver.update(backend.move(rounded))
        for _ in range(25):  # "auto" changes its method meanwhile
            x = backend.fetch(solver.solve(b))
        np.testing.assert_array_equal(x, backend.fetch(want.solve(b)))


def test_shorter_values_pay_on_a_cpu_by_every_method(backend):
    """On a GPU only sweeps are faster by it."""
    A = gallery.poisson7(4)
    plan = reference.triangular.triangular_plan(triangle(as_csr(A), True, False, "N"), "auto", 1)
    assert reference.triangular.bound_by_bytes(plan)
    kernel = kernels_for(backend.move(A.data)).triangular.bound_by_bytes
    for method in [*exact_methods(backend), "jacobi"]:
        bound = kernel(TriangularSolver(backend.move(A), method=method).plan)
        assert bound == (backend.name == "cpu" or method == "jacobi"), method


def test_values_in_single_precision_are_checked_and_refused_where_they_do_not_serve(backend):
    A = backend.move(gallery.poisson7(4))
    rounded = A.data.astype("float32")
    with refused(MatrixError, "new values have .* dtype float32"):
        TriangularSolver(A, method="isai").update(rounded)
    with refused(MatrixError, "new values have .* dtype complex64"):
        TriangularSolver(A).update(A.data.astype("complex64"))
    solver = TriangularSolver(A)
    rounded[as_csr(A).diag[17]] = 0
    with pytest.raises(ZeroPivot, match="row 17"):
        solver.update(rounded)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_product_is_that_of_the_reference(backend, dtype):
    for S in (gallery.convection_diffusion(9, 7, 2, peclet=50), long_rows(300)):
        A = as_csr(in_dtype(S, dtype))
        x = values(A.n, dtype)
        for lower, unit in product((True, False), (True, False)):
            want = reference.triangular.triangle_product(triangle(A, lower, unit), A.data, x)
            solver = TriangularSolver(backend.move(A), lower=lower, unit=unit)
            got = backend.fetch(solver.multiply(backend.move(A.data), backend.move(x)))
            assert got.dtype == dtype
            assert_close(got, want, 64, abs(want).max() * 10)


def test_update_with_values_that_do_not_fit_is_refused(backend):
    A = gallery.poisson7(4)
    solver = TriangularSolver(backend.move(A))
    for data in (A.data[:-1], A.data.astype("int64"), A.data.astype(complex), A.data[:, None]):
        with refused(MatrixError, match=rf"\({A.nnz},\) of float64"):
            solver.update(backend.move(data))


def test_the_matrix_and_the_right_hand_side_are_not_written(backend, kind):
    A = well_conditioned(gallery.poisson7(4), kind["unit"])
    b = values(64, "float64")
    moved, rhs = backend.move(A.copy()), backend.move(b.copy())
    for method in (*exact_methods(backend), "jacobi", "isai"):
        TriangularSolver(moved, method=method, **kind).solve(rhs)
    for now, then in ((moved.data, A.data), (moved.indices, A.indices), (moved.indptr, A.indptr), (rhs, b)):
        np.testing.assert_array_equal(backend.fetch(now), then)


# The effect of each parameter


@pytest.mark.parametrize("method", ["jacobi", "isai"])
def test_more_sweeps_come_nearer_and_the_default_is_as_documented(backend, method):
    A = gallery.poisson7(6)
    b = values(A.shape[0], "float64")
    want = by_reference(A, b, True, False, "N")

    def solution(**options):
        return backend.fetch(TriangularSolver(backend.move(A), method=method, **options).solve(backend.move(b)))

    errors = [abs(solution(sweeps=sweeps) - want).max() for sweeps in (1, 2, 4, 8)]
    assert errors[0] > errors[1] > errors[2] > errors[3] > 0
    default = {"jacobi": 10, "isai": 1}[method]
    np.testing.assert_array_equal(solution(), solution(sweeps=default))


def test_auto_takes_an_exact_method_and_says_which(backend):
    for A in (gallery.poisson7(6), gallery.tridiagonal(300), sp.csr_matrix(sp.identity(300))):
        solver = TriangularSolver(backend.move(A))
        for _ in range(cpu.triangular.LATER if backend.name == "cpu" else 0):  # before that nothing is analysed there
            assert solver.method == "sequential" and solver.levels is None
            solver.solve(np.ones(A.shape[0]))
        assert solver.method in exact_methods(backend)[:-1]
        assert solver.levels == levels(A)[0]
        assert repr(solver).startswith(f"TriangularSolver(n={A.shape[0]}, lower, unit=False, trans='N', method=")


def test_check_decides_who_looks_for_zeros(backend):
    A = gallery.poisson7(4)
    A.data[A.indptr[5] + np.flatnonzero(A.indices[A.indptr[5] : A.indptr[6]] == 5)] = 0
    for method in (*exact_methods(backend), "jacobi", "isai"):
        with pytest.raises(ZeroPivot, match="row 5 "):
            TriangularSolver(backend.move(A), method=method)
        x = TriangularSolver(backend.move(A), method=method, check=False).solve(backend.move(np.ones(64)))
        np.testing.assert_array_equal(np.isfinite(backend.fetch(x))[:6], [True] * 5 + [False])


# By bad input


@pytest.mark.parametrize("bad", [0.0, 1e-310])
@pytest.mark.parametrize("row", [0, 33])
def test_a_diagonal_without_a_reciprocal_is_named(backend, row, bad):
    A = gallery.poisson7(4)
    place = A.indptr[row] + int(np.flatnonzero(A.indices[A.indptr[row] : A.indptr[row + 1]] == row)[0])
    good = A.data.copy()
    A.data[place] = bad
    for lower, trans, method in product((True, False), TRANSPOSES, exact_methods(backend)):
        options = {"lower": lower, "trans": trans, "method": method}
        with pytest.raises(ZeroPivot, match=f"row {row} ") as error:
            TriangularSolver(backend.move(A), **options)
        assert error.value.row == row
        one_line(error)
        solver = TriangularSolver(backend.move(sp.csr_matrix((good, A.indices, A.indptr))), **options)
        with pytest.raises(ZeroPivot):
            solver.update(backend.move(A.data))
        TriangularSolver(backend.move(A), unit=True, **options)  # which does not look at the diagonal


def test_a_missing_diagonal_is_named_where_it_is_needed(backend):
    A = gallery.poisson7(4).tolil()
    A[7, 7] = A[9, 9] = 0
    A = sp.csr_matrix(A)
    A.eliminate_zeros()
    with pytest.raises(MatrixError, match=r"no diagonal entry in row 7 \(2 such rows\)"):
        TriangularSolver(backend.move(A))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"trans": "C"}, "trans='C'"),
        ({"trans": None}, "trans=None"),
        ({"method": "direct"}, "method='direct'"),
        ({"method": None}, "method=None"),
        ({"sweeps": 3}, "sweeps=3"),
        ({"method": "jacobi", "sweeps": 0}, "sweeps=0"),
        ({"method": "isai", "sweeps": -2}, "sweeps=-2"),
    ],
    ids=str,
)
def test_parameters_without_a_meaning_are_refused(backend, options, named):
    with refused(ParameterError, match=named):
        TriangularSolver(backend.move(gallery.poisson7(3)), **options)


@pytest.mark.parametrize("method", ["sync_free", "level_packed", "one_block"])
def test_a_method_of_the_gpu_is_refused_on_the_cpu(method):
    with pytest.raises(ParameterError, match=rf"'{method}' is not offered on the CPU; one of sequential"):
        TriangularSolver(gallery.poisson7(3), method=method)


@pytest.mark.gpu
def test_devices_are_not_mixed():
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no GPU can be used here")
    A = gallery.poisson7(4)
    solver = TriangularSolver(A)
    with pytest.raises(DeviceError):
        solver.solve(cupy.ones(64))
    with pytest.raises(DeviceError):
        solver.update(cupy.asarray(A.data))
    with pytest.raises(ParameterError, match="not offered on the GPU"):
        TriangularSolver(cupy.asarray(A.toarray()), method="levels")


# Levels


@pytest.mark.parametrize(
    ("A", "want"),
    [
        (gallery.tridiagonal(100), (100, 100)),
        (gallery.bidiagonal(100), (100, 1)),
        (sp.csr_matrix(sp.identity(100)), (1, 1)),
        (gallery.arrow(100), (2, 2)),
        (gallery.poisson5(9, 7), (9 + 7 - 1,) * 2),
        (gallery.poisson7(7, 5, 3), (7 + 5 + 3 - 2,) * 2),
        (gallery.poisson27(3, 4, 5), (3 + 2 * 3 + 4 * 4,) * 2),
        (sp.csr_matrix(np.ones((50, 50))), (50, 50)),
        (longest_chain(60), (60, 1)),
        (sp.csr_matrix([[1.0]]), (1, 1)),
        (sp.csr_matrix(np.eye(40, k=-3)), (14, 1)),
    ],
    ids=["tridiagonal", "bidiagonal", "diagonal", "arrow", "5", "7", "27", "full", "chain", "one row", "no diagonal"],
)
def test_the_number_of_levels_is_the_longest_chain(backend, A, want):
    assert levels(backend.move(A)) == want


@PATTERNS
@given(A=dominant_matrices())
def test_the_levels_of_any_pattern_are_those_of_the_reference(backend, A):
    A = as_csr(A)
    on_device = as_csr(backend.move(A.tosparse()))
    for lower, trans in product((True, False), ("N", "T")):
        want, depth = reference.levels.levels(triangle(A, lower, True, trans))
        operand = triangle(on_device, lower, True, trans)
        level, found = kernels_for(on_device.data).levels.levels(operand)
        assert found == depth
        np.testing.assert_array_equal(backend.fetch(level), want)
