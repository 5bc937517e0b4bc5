"""ILU(0): by definition, by limit, by twin, by the effect of each parameter, by behaviour, by bad input."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import (
    DTYPES,
    IN_TYPES,
    PATTERNS,
    assert_close,
    assert_is_ilu0_of,
    dominant_matrices,
    fetched,
    full,
    in_dtype,
    iterations,
    long_rows,
    longest_chain,
    one_line,
    perturbed,
    reference_factors,
    values,
    with_index,
)
from conftest import real_matrix
from hypothesis import given
from hypothesis import strategies as st

import finelu as fl
from finelu import ILU0, MatrixError, ParameterError, ZeroPivot, gallery
from finelu.errors import NoFactors
from finelu.kernels.cpu.elimination import _cut_apart, ic0, ic0_analysis, ilu0, ilu0_analysis
from finelu.kernels.cpu.runtime.row_blocks import COPY
from finelu.matrix import as_csr, lower_triangle

VARIANTS = ("sequential", "levels", "auto")
SPREAD = ("poisson7:5,4,3", "convection_diffusion:8,7,1,peclet=50", "arrow:70")  # taken through all dtypes


# By definition


@pytest.mark.parametrize("problem", gallery.small(), ids=str)
def test_ilu0_reproduces_a_where_a_has_entries(backend, problem):
    F = ILU0().factor(backend.move(problem.A))
    assert_is_ilu0_of(problem.A, *fetched(backend, F))
    assert F.nnz == problem.A.nnz and F.shape == problem.A.shape and F.dtype == problem.A.dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPREAD)
def test_ilu0_reproduces_a_in_every_dtype(backend, name, dtype):
    A = in_dtype(gallery.problem(name), dtype)
    F = ILU0().factor(backend.move(A))
    assert F.dtype == F.L.dtype == F.U.dtype == dtype
    assert_is_ilu0_of(A, *fetched(backend, F))


@PATTERNS
@given(A=dominant_matrices())
def test_ilu0_reproduces_a_of_any_pattern(backend, A):
    F = ILU0().factor(backend.move(A))
    assert_is_ilu0_of(A, *fetched(backend, F))


REAL = ("of_pitzDaily_p", "orsirr_1", "memplus", "cage10", "sherman3", "mcca", "fv2", "watt_1")


@pytest.mark.parametrize("name", REAL)
def test_ilu0_reproduces_real_matrices(backend, name):
    A = real_matrix(name)
    F = ILU0().factor(backend.move(A))
    assert_is_ilu0_of(A, *fetched(backend, F))


def test_the_solve_is_that_with_l_and_u(backend):
    A = gallery.problem("convection_diffusion:8,7,1,peclet=50")
    F = ILU0().factor(backend.move(A))
    L, U = fetched(backend, F)
    for trans, M in (("N", L @ U), ("T", (L @ U).T), ("H", (L @ U).conj().T)):
        r = values((A.shape[0], 2), "float64")
        assert_close(M @ backend.fetch(F.solve(backend.move(r), trans=trans)), r, 256)


# By limit: without fill the incomplete factors are the factors


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "A",
    [
        gallery.tridiagonal(50),
        gallery.arrow(50),
        gallery.bidiagonal(40),
        sp.csr_matrix(gallery.bidiagonal(40).T),
        full(30),
        sp.csr_matrix(np.diag(np.arange(1.0, 9))),
        sp.csr_matrix([[2.0]]),
    ],
    ids=["tridiagonal", "arrow", "lower", "upper", "dense", "diagonal", "one row"],
)
def test_where_there_is_no_fill_one_solve_is_exact(backend, A, dtype):
    A = in_dtype(A, dtype)
    F = ILU0().factor(backend.move(A))
    L, U = fetched(backend, F)
    dense = A.toarray()
    assert_close((L @ U).toarray(), dense, 32)
    x = values(A.shape[0], dtype)
    assert_close(backend.fetch(F.solve(backend.move(A @ x))), x, 2000)


def test_of_a_triangular_matrix_one_factor_is_diagonal(backend):
    A = gallery.bidiagonal(30)
    L, U = fetched(backend, ILU0().factor(backend.move(A)))
    np.testing.assert_allclose(U.toarray(), np.diag(A.diagonal()))
    L, U = fetched(backend, ILU0().factor(backend.move(sp.csr_matrix(A.T))))
    np.testing.assert_allclose(L.toarray(), np.eye(30))
    np.testing.assert_allclose(U.toarray(), A.T.toarray())


# By twin: the CPU gives the reference's bits


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("problem", gallery.small(), ids=str)
def test_the_bits_are_those_of_the_reference(problem, variant):
    F = ILU0(variant=variant).factor(problem.A)
    lu = sp.csr_matrix((reference_factors(problem.A), problem.A.indices, problem.A.indptr), shape=problem.A.shape)
    np.testing.assert_array_equal(F.U.data, sp.triu(lu, format="csr").data)
    np.testing.assert_array_equal(sp.tril(F.L, -1, format="csr").data, sp.tril(lu, -1, format="csr").data)


@IN_TYPES
@pytest.mark.parametrize("name", SPREAD)
def test_the_bits_are_those_of_the_reference_in_every_dtype(name, dtype, index):
    A = with_index(in_dtype(gallery.problem(name), dtype), index)
    want = reference_factors(A)
    for variant in VARIANTS:
        lu = np.full_like(A.data, np.nan)
        assert ilu0(ilu0_analysis(A, variant), A.data, lu) == -1
        np.testing.assert_array_equal(lu, want)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("A", [full(130), gallery.arrow(70_000)], ids=["full", "arrow"])
def test_the_bits_are_those_of_the_reference_however_rows_meet(A, variant):
    A = as_csr(A)  # nearly all entries of two rows meet; a row has more than 2^16 entries
    lu = np.full_like(A.data, np.nan)
    assert ilu0(ilu0_analysis(A, variant), A.data, lu) == -1
    np.testing.assert_array_equal(lu, reference_factors(A))


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@PATTERNS
@given(A=dominant_matrices())
def test_the_bits_are_those_of_the_reference_for_any_pattern(dtype, A):
    A = as_csr(in_dtype(A, dtype))
    want = reference_factors(A)
    for variant in ("sequential", "levels"):
        lu = np.full_like(A.data, np.nan)
        assert ilu0(ilu0_analysis(A, variant), A.data, lu) == -1
        np.testing.assert_array_equal(lu, want)


@pytest.mark.parametrize(
    "A",
    [
        gallery.poisson7(24),
        gallery.random_dominant(4000, 0.001, 3),
        long_rows(2500),
        longest_chain(3000),
        gallery.arrow(3000),
        sp.csr_matrix(sp.identity(6000)),
        full(200),
    ],
    ids=["poisson7", "random", "long rows", "chain", "arrow", "diagonal", "full"],
)
def test_the_bits_do_not_depend_on_the_number_of_threads(A, threads):
    A = as_csr(A)
    want = np.empty_like(A.data)
    assert ilu0(ilu0_analysis(A, "sequential"), A.data, want) == -1
    for count in (1, 2, 3):
        threads(count)
        for variant in ("levels", "auto"):
            plan = ilu0_analysis(A, variant)
            assert variant == "auto" or plan.schedule.threads == count
            for _ in range(3):
                lu = np.full_like(A.data, np.nan)
                assert ilu0(plan, A.data, lu) == -1
                np.testing.assert_array_equal(lu, want)


def blocks(sizes, seed=0):
    """Dense blocks, some of which are triangular, so that rows of a block need nothing of each other."""
    rng = np.random.default_rng(seed)
    made = [rng.uniform(-1, 1, (m, m)) + 2 * m * np.eye(m) for m in sizes]
    return sp.csr_matrix(sp.block_diag([np.triu(b) if k % 3 == 2 else b for k, b in enumerate(made)], "csr"))


@PATTERNS
@given(st.lists(st.integers(1, 9), min_size=1, max_size=12), st.integers(1, 40))
def test_items_of_rows_that_need_nothing_of_each_other(sizes, least):
    """No row of an item has a column before it, and they are as many as can be where the last is short enough."""
    A = as_csr(blocks(sizes))
    items = np.zeros(A.n + 2, np.int64)
    count = _cut_apart(A.indptr.view("u4"), A.indices.view("u4"), least, A.n - A.n // 8, items)
    found, nearest = items[: count + 1], np.minimum.accumulate(A.indices[A.indptr[:-1]][::-1])[::-1]
    assert found[0] == A.n and found[-1] == 0 and (np.diff(found) < 0).all()
    assert (nearest[found[1:]] == found[1:]).all()
    assert (A.indptr[found[:-2]] - A.indptr[found[1:-1]] >= least).all()
    apart = np.flatnonzero(nearest == np.arange(A.n))
    if least == 1 and apart[-1] >= A.n - A.n // 8:
        np.testing.assert_array_equal(found[:0:-1], apart)


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("largest", [30, 45])
def test_blocks_of_rows_are_shared_out_as_they_are(threads, dtype, largest):
    """From the first factorization on, with the bits, and the first bad row, of one thread."""
    sizes = np.random.default_rng(2).integers(1, largest + 1, 500)
    A = as_csr(in_dtype(blocks(sizes), dtype))
    assert A.nnz > 8 * COPY
    zero = np.sort(np.random.default_rng(3).integers(0, A.n, 5))
    bad = A.data.copy()
    for i in zero:
        bad[A.indptr[i] : A.indptr[i + 1]] = 0
    want, lu = np.empty_like(A.data), np.empty_like(A.data)
    assert ilu0(ilu0_analysis(A, "sequential"), A.data, want) == -1
    L, l = lower_triangle(A)[0], {}
    for count in (1, 2, 3):
        threads(count)
        plan, other = ilu0_analysis(A, once=True), ic0_analysis(L, once=True)
        assert (plan.variant, plan.schedule.threads) == ("levels" if count > 1 else "sequential", count)
        assert (other.variant == "levels") == (count > 1)
        for _ in range(3):
            assert ilu0(plan, A.data, lu) == -1
            np.testing.assert_array_equal(lu, want)
            assert ilu0(plan, bad, lu) == zero[0]
        l[count] = np.empty_like(L.data)
        assert ic0(other, L.data, l[count]) == -1
        np.testing.assert_array_equal(l[count], l[1])
        with pytest.raises(ZeroPivot, match=f"row {zero[0]} "):
            ILU0().factor(sp.csr_matrix((bad, A.indices, A.indptr)))
    for connected in (gallery.poisson5(120), blocks([100, 100, 200])):
        assert ilu0_analysis(as_csr(connected), once=True).variant == "sequential"


# The effect of each parameter


@pytest.mark.parametrize("problem", gallery.small()[-8:], ids=str)
def test_shift_moves_the_diagonal_by_a_share_of_itself(backend, problem):
    A = problem.A
    F = ILU0(shift=0.25).factor(backend.move(A))
    moved = A.copy()
    moved.setdiag(A.diagonal() * np.asarray(1.25, A.real.dtype))
    assert_is_ilu0_of(sp.csr_matrix(moved), *fetched(backend, F))


def test_shift_replaces_a_zero_on_the_diagonal_by_a_share_of_its_row(backend):
    A = sp.csr_matrix(np.array([[1.0, -8, 3], [0, 5, 0], [0, 0, 2]]))
    A = sp.csr_matrix((A.data, A.indices, A.indptr), shape=A.shape)
    A.data[0] = 0.0
    U = fetched(backend, ILU0(shift=0.5).factor(backend.move(A)))[1]
    np.testing.assert_allclose(U.diagonal(), [4.0, 7.5, 3.0])
    assert A.data[0] == 0.0


def test_shift_makes_factors_where_there_are_none(backend):
    A = sp.csr_matrix(np.array([[1.0, 1], [1, 1]]))
    with pytest.raises(ZeroPivot):
        ILU0().factor(backend.move(A))
    x = ILU0(shift=1e-2).factor(backend.move(A)).solve(backend.move(np.ones(2)))
    assert np.isfinite(backend.fetch(x)).all()


@pytest.mark.parametrize(("dtype", "single"), [("float64", "float32"), ("complex128", "complex64")])
def test_precision_float32_gives_the_factors_of_the_rounded_matrix(backend, dtype, single):
    A = in_dtype(gallery.poisson7(5, 4, 3), dtype)
    F = ILU0(precision="float32").factor(backend.move(A))
    G = ILU0().factor(backend.move(A.astype(single)))
    assert F.dtype == F.U.dtype == single
    np.testing.assert_array_equal(backend.fetch(F.U.data), backend.fetch(G.U.data))
    r = values(A.shape[0], dtype)
    z = backend.fetch(F.solve(backend.move(r)))
    assert z.dtype == dtype  # a float64 Krylov method gets float64 back
    np.testing.assert_array_equal(z, backend.fetch(G.solve(backend.move(r.astype(single)))))
    exact = backend.fetch(ILU0().factor(backend.move(A)).solve(backend.move(r)))
    assert 0 < abs(z - exact).max() < 1e-5 * abs(exact).max()


def test_precision_float64_widens_a_float32_matrix(backend):
    A = gallery.poisson7(5, 4, 3).astype("float32")
    F = ILU0(precision="float64").factor(backend.move(A))
    assert F.dtype == np.float64
    assert_is_ilu0_of(A.astype("float64"), *fetched(backend, F))
    F.update(backend.move(A * np.float32(2)))
    assert_is_ilu0_of(A.astype("float64") * 2, *fetched(backend, F))


def test_every_exact_triangular_method_gives_the_same_solution(backend):
    from finelu.kernels import kernels_for

    A = gallery.poisson7(5, 4, 3)
    move = backend.move
    r = values(A.shape[0], "float64")
    L, U = fetched(backend, ILU0().factor(move(A)))
    want = np.linalg.solve(U.toarray(), np.linalg.solve(L.toarray(), r))
    methods = [m for m in kernels_for(move(r)).triangular.TRIANGULAR_METHODS if m not in ("jacobi", "isai")]
    for method in methods:
        F = ILU0(triangular=method).factor(move(A))
        assert {part["method"] for part in F.report["triangular"].values()} == {method}
        assert_close(backend.fetch(F.solve(move(r))), want, 64)
    assert ILU0().factor(move(A)).report["triangular"]["lower"]["method"] in methods


@pytest.mark.parametrize("method", ["jacobi", "isai"])
def test_sweeps_bring_an_iterative_triangular_method_nearer(backend, method):
    A = gallery.poisson7(6)
    r = values(A.shape[0], "float64")
    exact = backend.fetch(ILU0().factor(backend.move(A)).solve(backend.move(r)))
    errors = []
    for sweeps in (1, 3, 6, 40):
        F = ILU0(triangular=method, sweeps=sweeps).factor(backend.move(A))
        errors.append(abs(backend.fetch(F.solve(backend.move(r))) - exact).max())
    assert errors[0] > errors[1] > errors[2] > errors[3]
    assert errors[0] > 1e-3 and errors[3] < 1e-12


def test_the_variant_asked_for_is_the_one_that_runs():
    A = gallery.poisson7(5)
    assert [ILU0(variant=v).factor(A).report["variant"] for v in ("sequential", "levels")] == ["sequential", "levels"]
    assert ILU0().factor(A).report["variant"] in ("sequential", "levels")


def test_the_report_says_what_happened(backend):
    F = ILU0().factor(backend.move(gallery.poisson7(5, 4, 3)))
    for key in ("analysis_seconds", "numeric_seconds", "triangular_seconds"):
        assert 0 <= F.report[key] < 600
    assert set(F.report["triangular"]) == {"lower", "upper"}
    for part in F.report["triangular"].values():
        assert part["levels"] in (5 + 4 + 3 - 2, None)


# Update


@pytest.mark.parametrize("variant", ["auto", "levels or levs"])
def test_update_keeps_the_analysis_and_the_storage(backend, variant):
    A = gallery.poisson7(5, 4, 3)
    if variant == "auto":
        F = ILU0().factor(backend.move(A))
        F.update(backend.move(A))  # makes the plan for all later ones
    else:
        F = ILU0(variant="levels" if backend.name == "cpu" else "levs").factor(backend.move(A))
    plan, storage, solvers = F._numeric.plan, F._triangles.data, dict(F._solvers)
    plans = {key: solver._plan for key, solver in solvers.items()}
    F.update(backend.move(perturbed(A)))
    assert F._numeric.plan is plan and F._triangles.data is storage and F._solvers == solvers
    assert all(F._solvers[key]._plan is plans[key] for key in plans)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("recipe", [ILU0(), ILU0(shift=0.1), fl.MILU0(relax=0.9), fl.ILUK(level=1), fl.IC0()], ids=repr)
def test_an_update_gives_the_factors_of_the_new_values(backend, recipe, dtype):
    A = in_dtype(gallery.poisson7(9, 8, 7), dtype)
    B = sp.csr_matrix((A.data * (1 + 0.25 * (A.indices % 2 == 0)), A.indices.copy(), A.indptr.copy()), A.shape)
    B = B if not recipe.hermitian else sp.csr_matrix(A * A.dtype.type(1.5))
    F, r = recipe.factor(backend.move(A)), backend.move(values(A.shape[0], dtype))
    F.update(backend.move(A))
    for matrix in (B, A, B):
        F.update(backend.move(matrix))
        want = recipe.factor(backend.move(matrix))
        eps = np.finfo(dtype).eps
        np.testing.assert_allclose(backend.fetch(F.U.data), backend.fetch(want.U.data), rtol=64 * eps, atol=64 * eps)
        for trans in "NTH":
            x, y = (backend.fetch(G.solve(r, trans)) for G in (F, want))
            np.testing.assert_allclose(x, y, rtol=1e4 * eps, atol=1e3 * eps)


@pytest.mark.parametrize("recipe", [ILU0(), fl.MILU0(), fl.ILUK(level=1)], ids=repr)
def test_a_refused_update_leaves_the_factors_as_they_were(backend, recipe):
    A = sp.csr_matrix(gallery.poisson7(9, 8, 7))
    F, r = recipe.factor(backend.move(A)), backend.move(values(A.shape[0], "float64"))
    for _ in range(3):
        F.update(backend.move(sp.csr_matrix(A * 1.25)))
    x, factors, pattern = backend.fetch(F.solve(r)), backend.fetch(F._triangles.data), A.nnz
    for name, change in (("NaN", np.nan), ("Inf", np.inf)):
        B = A.copy()
        B.data[1000] = change
        with pytest.raises(MatrixError, match=f"(?s)NaN or Inf in row {np.searchsorted(A.indptr, 1000, 'right') - 1}"):
            F.update(backend.move(B))
        np.testing.assert_array_equal(backend.fetch(F._triangles.data), factors, err_msg=name)
    elsewhere = A.tolil()
    elsewhere[3, 4], elsewhere[3, 200] = 0, 1.0  # as many entries, one of them in another place
    elsewhere = sp.csr_matrix(elsewhere)
    assert elsewhere.nnz == pattern
    with pytest.raises(MatrixError, match="needs the pattern"):
        F.update(backend.move(elsewhere))
    np.testing.assert_array_equal(backend.fetch(F._triangles.data), factors)
    np.testing.assert_array_equal(backend.fetch(F.solve(r)), x)
    F.update(backend.move(A))
    np.testing.assert_allclose(backend.fetch(F.solve(r)), 1.25 * x, rtol=1e-12)


def test_an_update_with_a_zero_pivot_leaves_no_factors(backend):
    A = sp.csr_matrix(gallery.poisson7(6))
    F, r = ILU0().factor(backend.move(A)), backend.move(values(A.shape[0], "float64"))
    F.update(backend.move(A))
    B = A.copy()
    B.data[B.indptr[7] : B.indptr[8]] = 0
    for _ in range(2):
        with pytest.raises(ZeroPivot, match="row 7"):
            F.update(backend.move(B))
        with pytest.raises(NoFactors):
            F.solve(r)
    F.update(backend.move(A))
    np.testing.assert_allclose(
        backend.fetch(F.solve(r)), backend.fetch(ILU0().factor(backend.move(A)).solve(r)), rtol=1e-12
    )


@pytest.mark.parametrize("columns", [None, 1, 3, 7])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_solve_into_its_right_hand_side(backend, columns, dtype):
    A = in_dtype(gallery.poisson7(5, 4, 3), dtype)
    n = A.shape[0]
    r = values(n, dtype) if columns is None else values(n * columns, dtype).reshape(n, columns)
    for method in ("auto", *(["sync_free", "level_packed", "one_block"] if backend.name != "cpu" else ["levels"])):
        F = ILU0(triangular=method).factor(backend.move(A))
        for trans in "NTH":
            want, b = backend.fetch(F.solve(backend.move(r), trans)), backend.move(r.copy())
            assert F.solve(b, trans, out=b) is b
            np.testing.assert_array_equal(backend.fetch(b), want)


# By behaviour


def test_ilu0_needs_far_fewer_iterations_than_jacobi():
    A = gallery.convection_diffusion(12, 12, 12, peclet=20)
    with_ilu0 = iterations(A, ILU0().factor(A), restart=100)
    with_jacobi = iterations(A, fl.Jacobi().factor(A), restart=100)
    assert with_ilu0 <= 25
    assert with_ilu0 <= 0.5 * with_jacobi


def test_ilu0_preconditions_real_matrices():
    for name, most in (("orsirr_1", 60), ("sherman3", 110), ("of_pitzDaily_U", 22)):
        A = real_matrix(name)
        assert iterations(A, ILU0().factor(A), restart=200) <= most


def test_gmres_with_exact_factors_needs_one_iteration():
    A = gallery.arrow(200)
    assert iterations(A, ILU0().factor(A)) == 1


# By bad input


@pytest.mark.parametrize("row", [0, 1, 37])
def test_a_zero_pivot_names_its_row_and_what_to_try(backend, row):
    A = gallery.tridiagonal(60).tolil()
    A[row] = 0
    if row:
        A[row, row - 1], A[row - 1, row - 1], A[row - 1, row], A[row, row] = 1, 1, 1, 1
        if row > 1:
            A[row - 1, row - 2] = 0
    else:
        A[0, 1] = 1
    A = sp.csr_matrix(A)
    A = sp.csr_matrix(A + sp.diags(np.full(60, 1e-300)))  # every diagonal entry is stored
    A.data[abs(A.data) < 1e-200] = 0
    with pytest.raises(ZeroPivot, match=rf"the pivot of row {row} is 0.*shift=1e-3") as error:
        ILU0().factor(backend.move(A))
    assert error.value.row == row and error.value.recipe == ILU0()
    one_line(error)


def test_the_first_of_many_bad_rows_is_named(backend):
    A = sp.block_diag([np.eye(3)] + [np.ones((2, 2))] * 200, format="csr")
    for variant in VARIANTS if backend.name == "cpu" else ("auto", "adapt", "levs", "shared", "vect"):
        with pytest.raises(ZeroPivot) as error:
            ILU0(variant=variant).factor(backend.move(A))
        assert error.value.row == 4


def test_values_that_overflow_are_found(backend):
    A = sp.csr_matrix(np.array([[1e-300, 1e300], [1e300, 1.0]]))
    with pytest.raises(ZeroPivot, match="row 1 ") as error:
        ILU0().factor(backend.move(A))
    one_line(error)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"shift": -0.1}, "shift"),
        ({"shift": np.nan}, "shift"),
        ({"shift": np.inf}, "shift"),
        ({"shift": "much"}, "shift"),
        ({"precision": "float16"}, "precision"),
        ({"variant": "fastest"}, "variant"),
        ({"triangular": "direct"}, "direct"),
        ({"sweeps": 3}, "sweeps"),
        ({"triangular": "jacobi", "sweeps": 0}, "sweeps"),
        ({"triangular": "isai", "sweeps": -1}, "sweeps"),
    ],
    ids=str,
)
def test_parameters_without_a_meaning_are_refused(backend, options, named):
    with pytest.raises(ParameterError, match=named) as error:
        ILU0(**options).factor(backend.move(gallery.poisson7(3)))
    one_line(error)


@pytest.mark.parametrize("variant", ["shared", "vect", "adapt", "levs"])
def test_a_variant_of_the_other_device_is_refused(variant):
    with pytest.raises(ParameterError, match=variant):
        ILU0(variant=variant).factor(gallery.poisson7(3))


@pytest.mark.parametrize("name", ["lhr01", "west0479", "bayer10"])
def test_real_matrices_without_a_diagonal_are_refused_by_name(backend, name):
    A = real_matrix(name)
    missing = np.flatnonzero([i not in A.indices[A.indptr[i] : A.indptr[i + 1]] for i in range(A.shape[0])])
    with pytest.raises(MatrixError, match=rf"row {missing[0]} \({missing.size} such rows\)"):
        ILU0().factor(backend.move(A))


def test_fidapex6_has_zero_pivots_until_it_is_shifted(backend):
    A = real_matrix("fidapex6")
    first = int(np.flatnonzero(A.diagonal() == 0)[0])
    with pytest.raises(ZeroPivot) as error:
        ILU0().factor(backend.move(sp.csr_matrix(A)[first : first + 1, first : first + 1]))
    assert error.value.row == 0
