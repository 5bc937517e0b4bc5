"""What all recipes do alike: directions, dtypes, right-hand sides, updates, threads, zero pivots, parameters."""

import re
import warnings
from dataclasses import fields, replace

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from checks import DTYPES, assert_close, fetched, in_dtype, perturbed, refused, values
from contract_cases import (
    DIRECTIONS,
    EVERY_RECIPE,
    EVERY_RECIPE_AND_MATRIX,
    LINES,
    WITH_OPTIONS_AND_MATRIX,
    applied,
    assert_same_parts,
    inverse,
    line,
    made,
    registered,
    singular,
)

import finelu as fl
from finelu import DeviceError, MatrixError, ParameterError, gallery
from finelu.device import on_gpu
from finelu.errors import FineluError, NoFactors, ZeroPivot
from finelu.factors import CholeskyFactors, LUFactors


def test_every_line_is_that_of_a_recipe():
    assert set(LINES) <= set(registered())


# Directions and dtypes


@WITH_OPTIONS_AND_MATRIX
def test_t_and_h_solve_with_the_transpose_and_the_adjoint(backend, name, case):
    F = made(name).factor(backend.move(case.A))
    assert F.shape == case.A.shape and F.dtype == case.A.dtype and F.nnz >= 0
    M = inverse(backend, F)
    R = values((case.A.shape[0], 2), case.A.dtype)
    scale = np.linalg.norm(M, 2) * np.linalg.norm(R)
    for z, operator in zip(applied(backend, F, R), (M, M.T, M.conj().T), strict=True):
        assert_close(z, operator @ R, 64, scale)
    if isinstance(F, LUFactors | CholeskyFactors):
        L, U = fetched(backend, F)
        order = slice(None) if F.permutation is None else backend.fetch(F.permutation)
        P = np.eye(F.shape[0], dtype=F.dtype)
        assert_close(L @ (U @ M[order][:, order]), P, 64, abs(L).dot(abs(U)).max() * np.linalg.norm(M, 2) * len(M))


@EVERY_RECIPE_AND_MATRIX
def test_it_serves_gmres(backend, name, case):
    A, b = case.A, case.b
    F = made(name).factor(backend.move(A))
    with_it, plain = (fl.gmres(backend.move(A), backend.move(b), M=M, rtol=1e-4) for M in (F, None))
    assert np.linalg.norm(b - A @ backend.fetch(with_it.x)) <= 1.01e-4 * np.linalg.norm(b)
    assert with_it.converged and with_it.iterations <= plain.iterations + 1


@pytest.mark.parametrize("dtype", DTYPES)
@EVERY_RECIPE
def test_the_solution_has_the_wider_dtype(backend, name, dtype):
    F = made(name).factor(backend.move(in_dtype(gallery.poisson5(6, 5), dtype)))
    M = inverse(backend, F)
    assert F.dtype == M.dtype == dtype
    eps = np.finfo(dtype).eps
    for right in DTYPES:
        for shape in ((30,), (30, 1), (30, 3), (30, 0)):
            R = values(shape, right)
            z = backend.fetch(F.solve(backend.move(R)))
            assert z.dtype == np.result_type(dtype, right) and z.shape == shape
            assert (abs(z - M @ R) <= 256 * eps * np.linalg.norm(M, 2) * np.linalg.norm(R)).all()


@EVERY_RECIPE
def test_a_complex_right_hand_side_of_real_factors_is_two_real_ones(backend, name):
    F = made(name).factor(backend.move(gallery.poisson5(6, 5)))
    R = values((30, 2), "complex128")
    real, imag = (applied(backend, F, np.ascontiguousarray(part)) for part in (R.real, R.imag))
    np.testing.assert_array_equal(applied(backend, F, R), np.array(real) + 1j * np.array(imag))


# A right-hand side


@EVERY_RECIPE_AND_MATRIX
def test_what_krylov_methods_take_unseen_is_well_formed(backend, name, case):
    F, r = made(name).factor(backend.move(case.A)), backend.move(case.b.astype(case.A.dtype))
    if not F.well_formed:
        pytest.skip(f"{type(F).__name__} says so itself: its results are looked at")
    for trans in DIRECTIONS:
        z = F.apply(r, trans)
        assert z.shape == r.shape and z.dtype == r.dtype and on_gpu(z) == on_gpu(r) and z.flags.c_contiguous
        assert not backend.xp.shares_memory(z, r)


@EVERY_RECIPE
def test_right_hand_sides_of_every_layout_and_number_type(backend, name):
    F = made(name).factor(backend.move(gallery.poisson5(6, 5)))
    R, xp = backend.move(values((30, 6), "float64")), backend.xp
    kept = backend.fetch(R.copy())
    for trans in DIRECTIONS:
        want = backend.fetch(F.solve(R, trans=trans))
        for layout in (xp.asfortranarray(R), xp.repeat(R, 2, axis=1)[:, ::2], xp.repeat(R, 2, axis=0)[::2]):
            z = F.solve(layout, trans=trans)
            assert not xp.shares_memory(z, layout)
            assert_close(backend.fetch(z), want, 16)
        columns = [backend.fetch(F.solve(R[:, k], trans=trans)) for k in range(6)]
        assert_close(np.stack(columns, axis=1), want, 16)
    np.testing.assert_array_equal(backend.fetch(R), kept)
    zeros = xp.zeros(30)
    assert F.solve(zeros) is not zeros and not backend.fetch(F.solve(zeros)).any()
    r = np.arange(30) % 2
    want = backend.fetch(F.solve(backend.move(r.astype(float))))
    for dtype in ("bool", "int8", "int64", "float16"):
        z = F.solve(backend.move(r.astype(dtype)))
        assert z.dtype == np.float64
        np.testing.assert_array_equal(backend.fetch(z), want)
    if backend.name == "cpu":
        np.testing.assert_array_equal(F.solve(r.tolist()), want)


@EVERY_RECIPE
def test_all_spellings_of_the_solve_agree(backend, name):
    F = made(name).factor(backend.move(in_dtype(gallery.poisson5(6, 5), "complex64")))
    r = backend.move(values(30, "complex64"))
    want, adjoint = backend.fetch(F.solve(r)), backend.fetch(F.solve(r, trans="H"))
    for use in (F.matvec, F.matmat, F.__matmul__, F):
        np.testing.assert_array_equal(backend.fetch(use(r)), want)
    for use in (F.rmatvec, F.rmatmat):
        np.testing.assert_array_equal(backend.fetch(use(r)), adjoint)
    if backend.name == "cpu":
        operator = spla.aslinearoperator(F)
        assert operator.shape == F.shape and operator.dtype == F.dtype
        np.testing.assert_array_equal(operator @ r, want)
        np.testing.assert_array_equal(operator.H @ r, adjoint)


@EVERY_RECIPE
def test_a_solution_goes_where_it_is_wanted(backend, name):
    F = made(name).factor(backend.move(gallery.poisson5(6, 5)))
    xp = backend.xp
    for right in ("float32", "float64", "complex64"):
        for shape in ((30,), (30, 3)):
            R = backend.move(values(shape, right))
            for trans in "NTH":
                want = backend.fetch(F.solve(R, trans))
                for out in (xp.empty(shape, want.dtype), xp.empty(shape, want.dtype, order="F"), R.astype(want.dtype)):
                    assert F.solve(R if out.dtype != R.dtype else R.copy(), trans, out=out) is out
                    np.testing.assert_array_equal(backend.fetch(out), want)
    r = backend.move(values(30, "float64"))
    want = backend.fetch(F.solve(r))
    assert F.solve(r, out=r) is r
    np.testing.assert_array_equal(backend.fetch(r), want)
    for out in (xp.empty(29), xp.empty((30, 1)), xp.empty(30, np.float32), [0.0] * 30):
        with refused(MatrixError, match=r"out is a .*; the solution needs an array of shape \(30,\)"):
            F.solve(r, out=out)
    if backend.name == "cuda":
        with pytest.raises(MatrixError, match="on the GPU"):
            F.solve(r, out=np.empty(30))


WRONG = [np.ones(shape) for shape in ((), (29,), (31,), (1, 30), (30, 2, 2))]
NUMBERLESS = [np.array(["1"] * 30), np.array([1.0] * 30, dtype=object), np.zeros(30, "datetime64[s]")]


@EVERY_RECIPE
def test_a_wrong_right_hand_side_is_refused(backend, name):
    F = made(name).factor(backend.move(gallery.poisson5(6, 5)))
    for r in WRONG:
        with refused(MatrixError, match=rf"shape \({r.shape[0] if r.shape else ''}.*30 rows"):
            F.solve(backend.move(r))
    for trans in ("C", "n", None, 0, ""):
        with refused(ParameterError, match="one of N, T, H"):
            F.solve(backend.move(np.ones(30)), trans=trans)
    if backend.name == "cpu":
        for r in NUMBERLESS:
            with refused(MatrixError, match=r"right-hand side has dtype .* numbers are needed"):
                F.solve(r)
        for form in (sp.csr_matrix, sp.coo_array, sp.csc_matrix):
            with refused(MatrixError, match=r"right-hand side is a sparse .*toarray"):
                F.solve(form(np.ones((30, 1))))


@pytest.mark.gpu
@EVERY_RECIPE
def test_devices_are_not_mixed(backend, name):
    if backend.name != "cuda":
        pytest.skip("needs both devices")
    A = gallery.poisson5(6, 5)
    on_host, on_gpu = made(name).factor(A), made(name).factor(backend.move(A))
    for F, r in ((on_host, backend.xp.ones(30)), (on_gpu, np.ones(30))):
        with refused(DeviceError, match="different devices"):
            F.solve(r)
    with pytest.raises(MatrixError, match=r"update needs (the (block )?pattern|a matrix of \d+ rows)"):
        on_host.update(backend.move(A))


# Update


@WITH_OPTIONS_AND_MATRIX
def test_update_is_a_fresh_factorization(backend, name, case):
    B = perturbed(case.A)
    R = values((B.shape[0], 2), B.dtype)
    F = made(name).factor(backend.move(case.A))
    first = applied(backend, F, R)  # with analyses of all directions, which have to be refreshed, too
    assert F.update(backend.move(B)) is F
    G = made(name).factor(backend.move(B))
    exact = 0 if backend.name == "cpu" else 64
    for got, want, before in zip(applied(backend, F, R), applied(backend, G, R), first, strict=True):
        if line(name).same_update:
            assert_close(got, want, exact)
            assert_same_parts(backend, F, G, exact)
        assert case.A.shape == (1, 1) or abs(got - before).max() > 1e-3 * abs(before).max()


@EVERY_RECIPE
def test_an_update_that_is_refused_changes_nothing(backend, name):
    A, R = gallery.poisson5(6, 5), values((30, 2), "float64")
    F = made(name).factor(backend.move(A))
    before = applied(backend, F, R)
    for other in (gallery.tridiagonal(30), gallery.poisson5(5, 6), gallery.poisson5(6, 4)):
        with refused(MatrixError, match=r"update needs (the (block )?pattern|a matrix of \d+ rows)"):
            F.update(backend.move(other))
    elsewhere = A.tolil()
    elsewhere[3, 2], elsewhere[3, 20] = 0, 1.0  # as many entries
    with pytest.raises(MatrixError, match=r"update needs (the (block )?pattern|a matrix of \d+ rows)"):
        F.update(backend.move(sp.csr_matrix(elsewhere)))
    with pytest.raises(MatrixError, match="complex"):
        F.update(backend.move(in_dtype(A, "complex128")))
    for bad in (np.nan, np.inf):
        spoilt = A.copy()
        spoilt.data[A.indptr[7]] = bad
        with pytest.raises(MatrixError, match=r"NaN or Inf in (row 7|block row 2|the block of block row 2)"):
            F.update(backend.move(spoilt))
    np.testing.assert_array_equal(applied(backend, F, R), before)


@EVERY_RECIPE
def test_update_takes_a_narrower_dtype_and_any_format(name):
    A, R = gallery.poisson5(6, 5), values((30, 2), "float64")
    B = perturbed(A).astype("float32")
    want = made(name).factor(A).update(B.astype("float64")).solve(R)
    for form in (sp.csr_matrix, sp.csc_matrix, sp.coo_array, np.asarray):
        F = made(name).factor(A).update(form(B.toarray() if form is np.asarray else B))
        assert F.dtype == np.float64
        np.testing.assert_array_equal(F.solve(R), want)


@EVERY_RECIPE
def test_after_a_failed_update_there_are_no_factors_until_a_good_one(backend, name):
    A = gallery.poisson5(6, 5)
    F = made(name).factor(backend.move(A))
    r = backend.move(values(30, "float64"))
    before = backend.fetch(F.solve(r))
    broken = A.copy()
    broken.data[(A.indptr[5] <= np.arange(A.nnz)) & (np.arange(A.nnz) < A.indptr[6])] = 0  # all of row 5
    broken.data[A.indices == 5] = 0  # and of column 5
    with pytest.raises((FineluError, ArithmeticError)) as error:
        F.update(backend.move(broken))
    if isinstance(error.value, ZeroPivot):
        first = 5 - 5 % getattr(F.recipe, "block_size", 1)  # of the block that has row 5
        assert error.value.row == first and f"row {first}" in str(error.value)
    parts = [lambda r, part=part: getattr(F, part) for part in ("L", "U") if hasattr(type(F), part)]
    for use in (F.solve, F.matvec, F.rmatvec, F.__matmul__, lambda r: F.solve(r, trans="T"), *parts):
        with refused(NoFactors, match="the last update failed"):
            use(r)
    F.update(backend.move(A))
    if line(name).same_update:
        assert_close(backend.fetch(F.solve(r)), before, 0 if backend.name == "cpu" else 16)
    assert np.isfinite(backend.fetch(F.solve(r))).all()


# The caller's arrays


@EVERY_RECIPE
def test_nothing_of_the_caller_is_written_or_kept_and_nothing_of_the_factors_given_away(backend, name):
    A, R = gallery.poisson5(6, 5), values((30, 2), "float64")
    moved = backend.move(A.copy())
    if backend.name == "cpu":
        for array in (moved.data, moved.indices, moved.indptr, R):
            array.flags.writeable = False  # which is good enough
    kept = R.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        F = made(name).factor(moved)
        before = applied(backend, F, R)
        F.update(moved)
    for now, then in ((moved.data, A.data), (moved.indices, A.indices), (moved.indptr, A.indptr)):
        np.testing.assert_array_equal(backend.fetch(now), then)
    np.testing.assert_array_equal(R, kept)
    for part in ("L", "U"):
        if hasattr(F, part):
            getattr(F, part).data[:] = 0
    B = backend.move(A.copy())
    G = made(name).factor(B)
    B.data[:] = 0
    if line(name).same_update:
        np.testing.assert_array_equal(applied(backend, F, R), before)
    for got, want in zip(applied(backend, G, R), before, strict=True):
        assert_close(got, want, 0 if backend.name == "cpu" else 16)


# Threads


@EVERY_RECIPE
def test_one_and_two_threads_give_the_same_bits(name, threads):
    A, B = gallery.poisson7(12), perturbed(gallery.poisson7(12))
    R = values((A.shape[0], 2), "float64")
    found = []
    for count in (1, 2):
        threads(count)
        F = made(name).factor(A)
        found.append([F.solve(R, trans=trans) for trans in DIRECTIONS])
        F.update(B)
        found[-1] += [F.solve(R, trans=trans) for trans in DIRECTIONS]
    np.testing.assert_array_equal(*found)


# Zero pivots


@pytest.mark.parametrize("dtype", DTYPES)
@EVERY_RECIPE
def test_a_zero_pivot_is_an_error_that_names_it_or_there_are_factors(backend, name, dtype):
    A, facts = singular(dtype), line(name)
    if facts.warning is None:
        with refused((FineluError, ArithmeticError), match=facts.zero_pivot):
            made(name).factor(backend.move(A))
        return
    F = made(name).factor(backend.move(A))
    assert np.isfinite(applied(backend, F, values((A.shape[0], 2), dtype))).all()
    assert re.search(facts.warning, F.report.get("warning", ""))


@EVERY_RECIPE
def test_a_row_without_a_diagonal_entry_is_named_or_does_no_harm(backend, name):
    A = gallery.tridiagonal(12).tolil()
    A[4, 4] = 0
    A = sp.csr_matrix(A)
    A.eliminate_zeros()
    if not line(name).needs_diagonal:
        assert np.isfinite(inverse(backend, made(name).factor(backend.move(A)))).all()
        return
    with refused(MatrixError, match="row 4 "):
        made(name).factor(backend.move(A))


@EVERY_RECIPE
def test_a_matrix_that_cannot_be_factored_is_refused(backend, name):
    spoilt = gallery.poisson5(6, 5)
    spoilt.data[spoilt.indptr[7]] = np.nan
    for bad, text in ((gallery.poisson5(6, 5)[:24], "square"), (spoilt, "NaN or Inf in row 7")):
        with refused(MatrixError, match=text):
            made(name).factor(backend.move(bad))


# Parameters


@EVERY_RECIPE
def test_a_misspelt_parameter_is_an_error_that_names_it(name):
    for parameter in fields(registered()[name]):
        misspelt = parameter.name[:-1] + "_"
        with pytest.raises((TypeError, ParameterError), match=misspelt):
            registered()[name](**{misspelt: parameter.default})


@EVERY_RECIPE
def test_a_recipe_prints_as_the_call_that_makes_it_and_cannot_be_changed(backend, name):
    kind, recipe = registered()[name], made(name)
    assert repr(kind()) == f"{kind.__name__}()"
    assert eval(repr(recipe), {kind.__name__: kind}) == recipe
    assert repr(recipe).count("=") == len(line(name).cheap)
    assert recipe == replace(recipe) and hash(recipe) == hash(replace(recipe))
    with pytest.raises(AttributeError):
        recipe.anything = 1
    F = recipe.factor(backend.move(gallery.poisson5(6, 5)))
    device = "CPU" if backend.name == "cpu" else "GPU"
    assert repr(F) == f"Factors({recipe!r}, n=30, nnz={F.nnz}, float64, {device})"
    assert F.shape == (30, 30) and F.recipe is recipe
