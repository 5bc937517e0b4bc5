"""precision="auto": the factors rounded to single precision for the solves, which compute in double. By definition, by
limit, by behaviour, by bad input."""

import copy
import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from checks import dominant_matrices, fetched, in_dtype, iterations, one_line, refused, values, without_gpu
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import hilbert

import finelu as fl
from finelu import ParameterError, TriangularSolver, gallery
from finelu.errors import NoFactors
from finelu.factors import TriangularFactors
from finelu.preconditioners.registry import RECIPES
from finelu.triangular import DEFAULT_SWEEPS

SINGLE = {"float64": "float32", "complex128": "complex64"}
WITH_AUTO = [recipe for recipe in RECIPES.values() if "auto" in recipe.precisions]
LU, CHOLESKY = fl.ILU0(precision="auto"), fl.IC0(precision="auto")
BEYOND = "beyond the range of single precision"


@pytest.fixture(autouse=True)
def exact_solves_count(request, meanwhile):
    """On a GPU the rule that wants sweeps is left out, except in its own test."""
    if not without_gpu() and "only_sweeps" not in request.node.name:
        from finelu.kernels.cuda import triangular

        meanwhile(triangular, bound_by_bytes=lambda plan: True)


def by_rounded_factors(F, r, trans):
    """M^-1 r, M^-T r or M^-H r by solves in double with the factors rounded to single precision."""
    T = F.triangles
    rounded = T.with_values(T.data.astype(SINGLE[T.dtype.name]).astype(T.dtype))
    conjugate = trans == F.CONJUGATED and T.dtype.kind == "c"
    x = r.conj() if conjugate else r
    for solve in F.SOLVES[trans]:
        x = TriangularSolver(rounded, **solve._asdict(), method=F.recipe.triangular).solve(x)
    return x.conj() if conjugate else x


def out_of_range(A):
    """D A D with rows of very different sizes, the matrix of the same system."""
    scale = sp.diags(np.where(np.arange(A.shape[0]) % 2, 1e45, 1e-45))
    return sp.csr_matrix(scale @ A @ scale)


# By definition


@pytest.mark.parametrize("dtype", SINGLE)
@pytest.mark.parametrize("recipe", WITH_AUTO)
def test_solves_are_those_with_the_rounded_factors(backend, recipe, dtype):
    A = in_dtype(gallery.poisson7(9, 8, 7), dtype)
    F = recipe(precision="auto").factor(backend.move(A))
    assert F.report.stored == SINGLE[dtype] and F.report.stored_since is None
    assert 0 < F.report.rounding_change < 1e-6 and F.dtype == dtype
    for trans in "NTH":
        for shape in ((504,), (504, 3), (504, 40)):
            r = backend.move(values(shape, dtype))
            got, want = (backend.fetch(x) for x in (F.solve(r, trans), by_rounded_factors(F, r, trans)))
            np.testing.assert_array_equal(got, want)
            assert got.dtype == dtype


@given(st.data())
@pytest.mark.parametrize("hermitian", [False, True])
def test_of_any_pattern(hermitian, data):
    dtype = data.draw(st.sampled_from([*SINGLE]))
    A = data.draw(dominant_matrices(hermitian=hermitian, dtype=dtype))
    F = (CHOLESKY if hermitian else LU).factor(A)
    r = values((A.shape[0], 2), dtype)
    if F.report.stored == dtype:
        assert BEYOND in F.report.stored_since
        np.testing.assert_array_equal(F.solve(r), type(F.recipe)().factor(A).solve(r))
        return
    for trans in "NTH":
        np.testing.assert_array_equal(F.solve(r, trans), by_rounded_factors(F, r, trans))


def test_the_factors_themselves_stay_in_double(backend):
    A = backend.move(gallery.poisson7(8, 7, 6))
    for recipe in (LU, CHOLESKY):
        F, G = recipe.factor(A), type(recipe)().factor(A)
        for f, g in zip(fetched(backend, F), fetched(backend, G), strict=True):
            np.testing.assert_allclose(f.toarray(), g.toarray(), rtol=1e-14, atol=1e-15)


def test_jacobi_sweeps_read_the_rounded_factors_too(backend):
    A = backend.move(gallery.poisson7(8, 7, 6))
    F = fl.ILU0(precision="auto", triangular="jacobi").factor(A)
    r = backend.move(values(336, "float64"))
    assert F.report.stored == "float32" and F.report.rounding_change < 1e-6  # not the error of the sweeps
    got, want = (backend.fetch(x) for x in (F.solve(r), by_rounded_factors(F, r, "N")))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", SINGLE)
def test_m_stays_hermitian_and_definite(backend, dtype):
    A = in_dtype(gallery.poisson7(9, 8, 7), dtype)
    A = A if dtype == "float64" else sp.csr_matrix(A + A.conj().T + 20 * sp.eye(504))
    F = CHOLESKY.factor(backend.move(A))
    assert F.report.stored == SINGLE[dtype]
    M = backend.fetch(F.solve(backend.move(np.eye(504, dtype=dtype))))
    assert abs(M - M.conj().T).max() <= 1e-14 * abs(M).max()
    assert np.linalg.eigvalsh(M).min() > 0


# By limit


@pytest.mark.parametrize("recipe", [LU, CHOLESKY])
@pytest.mark.parametrize("change", [lambda A: 1e90 * A, lambda A: 1e-90 * A, out_of_range])
def test_entries_beyond_single_precision_stay_in_double(backend, recipe, change):
    A = backend.move(change(gallery.poisson7(8, 7, 6)))
    F, G = recipe.factor(A), type(recipe)().factor(A)
    assert F.report.stored == "float64" and BEYOND in F.report.stored_since and F.report.rounding_change is None
    r = backend.move(values(336, "float64"))
    np.testing.assert_allclose(backend.fetch(F.solve(r)), backend.fetch(G.solve(r)), rtol=1e-11)
    assert BEYOND in str(F.report)


@pytest.mark.parametrize("recipe", [LU, CHOLESKY])
def test_factors_that_rounding_would_change_stay_in_double(backend, recipe):
    A = sp.csr_matrix(hilbert(10))  # their entries have no room for rounding: cond(L) is 4e6
    F = recipe.factor(backend.move(A))
    assert F.report.rounding_change > 1e-3
    assert F.report.stored == "float64" and "changes M too much: by" in F.report.stored_since
    b = A @ values(10, "float64")
    assert np.linalg.norm(A @ backend.fetch(F.solve(backend.move(b))) - b) <= 1e-12 * np.linalg.norm(b)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda"], indirect=True)
def test_on_a_gpu_only_sweeps_are_rounded(backend):
    A = gallery.poisson7(20)
    for recipe in (CHOLESKY, LU):
        F = recipe.factor(backend.move(A))
        assert F.report.stored == "float64", F.report
        assert "time of exact solves is that of rows that wait" in F.report.stored_since
    r = backend.move(values(A.shape[0], "float64"))
    want = fl.ILU0().factor(backend.move(A)).solve(r)
    np.testing.assert_allclose(backend.fetch(F.solve(r)), backend.fetch(want), rtol=1e-12)
    sweeps = fl.ILU0(precision="auto", triangular="jacobi").factor(backend.move(A))
    assert sweeps.report.stored == "float32"


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_single_precision_is_left_as_it_is(backend, dtype):
    A = backend.move(in_dtype(gallery.poisson7(8, 7, 6), dtype))
    F, G = LU.factor(A), fl.ILU0().factor(A)
    r = backend.move(values(336, dtype))
    np.testing.assert_allclose(backend.fetch(F.solve(r)), backend.fetch(G.solve(r)), rtol=1e-5)
    assert F.report.stored == dtype and F.report.stored_since is None and G.report.stored is None


def test_a_diagonal_matrix_and_one_row(backend):
    for A in (sp.diags([3.0, 7.0, 0.1]), sp.eye(1)):
        for recipe in (LU, CHOLESKY):
            F = recipe.factor(backend.move(sp.csr_matrix(A)))
            assert F.report.stored == "float32"
            n = A.shape[0]
            assert backend.fetch(F.solve(backend.move(np.ones(n)))) == pytest.approx(1 / A.diagonal(), rel=1e-7)


def test_complete_factors_are_not_complete_after_rounding():
    for name in ("ILUT", "ICT"):
        recipe = getattr(fl, name)
        assert recipe(drop_tol=0, fill=np.inf).complete
        assert not recipe(drop_tol=0, fill=np.inf, precision="auto").complete


# By behaviour


@pytest.mark.parametrize("name", ["poisson7:16", "anisotropic_triangles:3", "convection_diffusion:12,12,12"])
def test_as_many_iterations_to_1e_8(backend, name):
    A = gallery.problem(name)
    b = A @ values(A.shape[0], "float64")
    moved, right = backend.move(A), backend.move(b)
    hermitian = abs(A - A.T).max() == 0
    counts = []
    for precision in (None, "auto"):
        F = (fl.IC0 if hermitian else fl.ILU0)(precision=precision).factor(moved)
        solution = (fl.cg if hermitian else fl.gmres)(moved, right, M=F, rtol=1e-8)
        assert solution.converged
        assert np.linalg.norm(A @ backend.fetch(solution.x) - b) <= 1.01e-8 * np.linalg.norm(b)
        counts.append(solution.iterations)
    assert F.report.stored == "float32" and abs(counts[0] - counts[1]) <= 1


@pytest.mark.parametrize("recipe", [LU, CHOLESKY, fl.ParILUT(precision="auto"), fl.ICT(precision="auto")])
def test_an_update_decides_anew(backend, recipe):
    A = gallery.poisson7(8, 7, 6)
    F = recipe.factor(backend.move(A))
    r = backend.move(values(336, "float64"))
    F.solve(r, "T")  # these solves take new values, too
    for factor, stored in ((2.0, "float32"), (1e90, "float64"), (1e90, "float64"), (3.0, "float32"), (1.0, "float32")):
        assert F.update(backend.move(factor * A)) is F
        assert F.report.stored == stored and (F.report.stored_since is None) == (stored == "float32")
        for trans in "NT":
            got = backend.fetch(F.solve(r, trans))
            if stored == "float32":
                np.testing.assert_array_equal(got, backend.fetch(by_rounded_factors(F, r, trans)))
            else:
                want = backend.fetch(type(recipe)().factor(backend.move(factor * A)).solve(r, trans))
                np.testing.assert_allclose(got, want, rtol=1e-11)


@pytest.mark.parametrize("recipe", [fl.ILUT, fl.ICT])
@pytest.mark.parametrize("first", [0.05, 1.0])
def test_an_update_with_a_pattern_of_another_size_rounds_its_values(backend, recipe, first):
    A = sp.csr_matrix(gallery.poisson7(12))
    D = sp.diags(A.diagonal())
    made = recipe(drop_tol=1e-2, precision="auto")
    r = backend.move(values(A.shape[0], "float64"))
    small = sp.csr_matrix(D + 0.05 * (A - D))
    before, after = (small, A) if first < 1 else (A, small)
    F = made.factor(backend.move(before))
    sizes = [F.nnz, F.update(backend.move(after)).nnz]
    assert sizes[0] != sizes[1] and F.report.stored == "float32"
    anew = made.factor(backend.move(after))
    for trans in "NT":
        np.testing.assert_array_equal(backend.fetch(F.solve(r, trans)), backend.fetch(anew.solve(r, trans)))


def test_a_failed_update_leaves_no_factors(backend):
    A = gallery.poisson7(4, 4, 4)
    F = LU.factor(backend.move(A))
    broken = A.copy()
    broken.data[broken.indptr[9] : broken.indptr[10]] = 0
    with pytest.raises(fl.ZeroPivot, match="row 9"):
        F.update(backend.move(broken))
    with pytest.raises(NoFactors):
        F.solve(backend.move(np.ones(64)))
    F.update(backend.move(A))
    r = backend.move(np.ones(64))
    np.testing.assert_array_equal(backend.fetch(F.solve(r)), backend.fetch(by_rounded_factors(F, r, "N")))


@pytest.mark.parametrize("again", [lambda F: pickle.loads(pickle.dumps(F)), copy.deepcopy])
def test_copies_solve_with_the_same_bits(backend, again):
    A = backend.move(gallery.poisson7(8, 7, 6))
    F = CHOLESKY.factor(A)
    G, r = again(F), backend.move(values(336, "float64"))
    for _ in range(25):  # "auto" changes its method meanwhile
        np.testing.assert_array_equal(backend.fetch(F.solve(r)), backend.fetch(G.solve(r)))
    G.update(2 * A)
    assert G.report.stored == F.report.stored == "float32"
    np.testing.assert_array_equal(backend.fetch(G.solve(r)), backend.fetch(by_rounded_factors(G, r, "N")))


def test_bits_do_not_depend_on_the_threads_and_the_method(threads):
    A = gallery.poisson7(12, 11, 10)
    r = values(1320, "float64")
    want = None
    for count in (1, 2):
        threads(count)
        for method in ("sequential", "levels", "auto"):
            for recipe in (fl.ILU0, fl.IC0):
                F = recipe(precision="auto", triangular=method).factor(A)
                x = [F.solve(r) for _ in range(25)][-1]
                np.testing.assert_array_equal(x, by_rounded_factors(F, r, "N"))
        want = x if want is None else want
        np.testing.assert_array_equal(x, want)


def test_the_ladder_and_methods_take_it(backend):
    A = gallery.poisson7(16)
    b = A @ np.ones(A.shape[0])
    solution = fl.solve(backend.move(A), backend.move(b), 1e-8, recipe=CHOLESKY, verbose=False)
    assert solution.converged and iterations(A, CHOLESKY.factor(A), method=fl.cg) <= 30


# By bad input


def test_recipes_without_it_refuse_it():
    others = [r for r in RECIPES.values() if "precision" in r.__dataclass_fields__ and "auto" not in r.precisions]
    assert len(WITH_AUTO) == 10 and len(others) >= 5
    for recipe in others:
        with pytest.raises(ParameterError, match="precision must be") as error:
            recipe(precision="auto")
        one_line(error)
    for recipe in WITH_AUTO:
        with pytest.raises(ParameterError, match=r"precision must be .*half"):
            recipe(precision="quarter")
        with pytest.raises(ParameterError, match=r"half precision is for triangular='jacobi'; exact") as error:
            recipe(precision="half")
        one_line(error)
        with pytest.raises(ParameterError, match="isai solves with inverses"):
            recipe(precision="auto", triangular="isai")


def test_where_it_has_no_effect_it_is_refused():
    A = gallery.poisson7(4)
    with refused(ParameterError, "precision has no effect on a Batch"):
        LU.factor(fl.Batch(A, np.stack([A.data, A.data])))
    with refused(ParameterError, "leave triangular and precision of the local recipe"):
        fl.Schwarz(local=LU).factor(A)


# Half precision, which is read on a GPU alone


def in_half(recipe, **options):
    return recipe(precision="half", triangular="jacobi", **options)


def jacobi_sweeps(F, r, trans):
    return by_halved_factors(F, r, trans, halved=lambda v: v)


def by_halved_factors(F, r, trans, halved=lambda v: v.astype(np.float32).astype(np.float16)):
    """The same by Jacobi sweeps in NumPy with N rounded to half precision, row i as a multiple of a power of two near
    its diagonal entry."""
    T = F.triangles.on(np)
    x = r.astype(np.float64)
    for solve in F.SOLVES[trans]:
        M = (sp.tril if solve.lower else sp.triu)(T.tosparse()).toarray().astype(np.float64)
        M = M if solve.trans == "N" else M.T
        D = np.ones(len(M)) if solve.unit else np.diag(M).copy()
        power = np.exp2(np.floor(np.log2(abs(1 / D.astype(F.dtype)))))
        N = halved((M - np.diag(np.diag(M))) * power[:, None]) / power[:, None]
        b, x = x, np.zeros_like(x)
        for _ in range(DEFAULT_SWEEPS["jacobi"] + 1):
            x = ((b - N @ x).T / D).T
    return x


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("recipe", [fl.ILU0, fl.IC0, fl.ILUK, fl.ParILUT])
def test_sweeps_are_those_with_the_halved_factors(cuda, recipe, dtype):
    A = in_dtype(gallery.poisson7(9, 8, 7), dtype)
    F = in_half(recipe).factor(csr(A))
    assert F.report.stored == "float16" and F.report.stored_since is None and F.dtype == dtype
    assert 1e-6 < F.report.rounding_change < 1e-2
    for trans in "NTH":
        for shape in ((504,), (504, 3), (504, 40)):
            r = values(shape, dtype)
            got, want = F.solve(cupy_of(r), trans).get(), by_halved_factors(F, r, trans)
            np.testing.assert_allclose(got, want, rtol=0, atol=1e3 * np.finfo(dtype).eps * abs(want).max())


def test_half_precision_hardly_changes_the_iterations(cuda):
    A = gallery.poisson7(24)
    b = A @ np.ones(A.shape[0])
    for recipe, method in ((fl.IC0, fl.cg), (fl.ILU0, fl.gmres)):
        counts = []
        for precision in (None, "half"):
            F = recipe(triangular="jacobi", precision=precision).factor(csr(A))
            solution = method(csr(A), cupy_of(b), M=F, rtol=1e-8)
            assert solution.converged
            counts.append(solution.iterations)
        assert counts[1] <= counts[0] + 3


def test_half_precision_takes_rows_of_any_size_and_follows_updates(cuda):
    A = gallery.poisson7(9, 8, 7)
    rows = np.exp2(np.random.default_rng(0).integers(-300, 300, A.shape[0]))
    B = sp.csr_matrix(sp.diags(rows) @ A)
    r = values((504,), "float64")
    F = in_half(fl.ILU0)
    with refused(ParameterError, "out of the range of half precision; leave precision out"):
        F.factor(csr(B))  # L_ij is the quotient of two rows
    # U alone has such rows where A is triangular
    U = sp.csr_matrix(sp.triu(B))
    F = F.factor(csr(U))
    np.testing.assert_allclose(F.solve(cupy_of(r)).get(), by_halved_factors(F, r, "N"), rtol=1e-10)
    F.update(csr(2 * U))
    np.testing.assert_allclose(F.solve(cupy_of(r)).get(), by_halved_factors(F, r, "N"), rtol=1e-10)
    G = copy.deepcopy(F)
    np.testing.assert_array_equal(G.solve(cupy_of(r)).get(), F.solve(cupy_of(r)).get())
    for _ in range(2):  # a column of U has entries of all sizes: transposed solves read them as they are
        want = jacobi_sweeps(F, r, "T")
        np.testing.assert_allclose(F.solve(cupy_of(r), "T").get(), want, rtol=1e-10, atol=1e-12 * abs(want).max())
        assert F.report.stored == "float16" and F.report.stored_since.startswith("transposed solves read float64")
        F.update(csr(U))
    F.update(csr(sp.csr_matrix(sp.triu(A))))
    assert F.report.stored_since is None
    np.testing.assert_allclose(F.solve(cupy_of(r), "T").get(), by_halved_factors(F, r, "T"), rtol=1e-10, atol=1e-12)


def test_a_cholesky_factor_whose_columns_are_out_of_the_range_of_half_precision_is_refused(cuda):
    def of(first):
        C = np.diag([first, *7 * [1.0]])
        C[1, 0] = 1e3
        return csr(sp.csr_matrix(C @ C.T))

    F = in_half(fl.IC0).factor(of(1.0))
    assert F.report.stored == "float16"
    for factor in (in_half(fl.IC0).factor, F.update):
        with refused(ParameterError, "out of the range of half precision"):
            factor(of(1e-3))  # L^H has a row with entries of 1e-3 and 1e3, L has not


def test_half_precision_follows_an_update_with_more_or_fewer_entries(cuda):
    A = sp.csr_matrix(gallery.poisson7(12))
    D = sp.diags(A.diagonal())
    small = sp.csr_matrix(D + 0.05 * (A - D))
    r = values(A.shape[0], "float64")
    F = fl.ILUT(drop_tol=1e-2, triangular="jacobi", precision="half").factor(csr(small))
    for S in (A, small):
        before = F.nnz
        F.update(csr(S))
        assert F.nnz != before and F.report.stored == "float16"
        np.testing.assert_allclose(F.solve(cupy_of(r)).get(), by_halved_factors(F, r, "N"), rtol=1e-8)


def test_half_precision_is_refused_where_it_is_not_read(cuda):
    A = gallery.poisson7(4)
    with refused(ParameterError, "A is complex, and half precision is for real matrices on a GPU; take 'auto'"):
        in_half(fl.ILU0).factor(csr(A.astype(complex)))
    far = A.tolil()
    far[5, 6] = 1e9
    F = in_half(fl.ILU0).factor(csr(A))
    with refused(ParameterError, "out of the range of half precision"):
        F.update(csr(sp.csr_matrix(far)))
    with pytest.raises(NoFactors):
        F.solve(cupy_of(np.ones(64)))


def test_half_precision_is_refused_on_the_cpu():
    with refused(ParameterError, "A is on the host, and half precision is for real matrices on a GPU; take 'auto'"):
        in_half(fl.ILU0).factor(gallery.poisson7(4))


def csr(A):
    import cupyx.scipy.sparse

    return cupyx.scipy.sparse.csr_matrix(sp.csr_matrix(A))


def cupy_of(x):
    import cupy

    return cupy.asarray(x)


def test_all_of_them_make_triangles():
    A = gallery.poisson7(4)
    assert all(isinstance(recipe(precision="auto").factor(A), TriangularFactors) for recipe in WITH_AUTO)
