"""Recipes that factor one triangle: matrices that count as Hermitian, and the errors for any other A."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, SOME_DTYPES, in_dtype, one_line, perturbed

import finelu as fl
from finelu import IC0, ICT, MatrixError, MultilevelILU, ParIC, ParICT, gallery
from finelu.kernels import reference
from finelu.preconditioners import RECIPES

HERMITIAN = pytest.mark.parametrize("recipe", [IC0(), ICT(), ParIC(), ParICT()], ids=repr)


def changed(A, i, j, value):
    B = sp.lil_matrix(A)
    B[i, j] = value
    return sp.csr_matrix(B)


def test_all_of_them_are_tried_here():
    assert {kind for kind in RECIPES.values() if kind.hermitian} == {IC0, ICT, ParIC, ParICT}


@HERMITIAN
@pytest.mark.parametrize("value", [-1.5, 0.0, 7.0])
def test_an_entry_that_differs_from_its_mirror_is_named(backend, recipe, value):
    A = changed(gallery.poisson5(6, 5), 7, 13, value)
    with pytest.raises(MatrixError) as error:
        recipe.factor(backend.move(A))
    text = one_line(error)
    assert text.startswith(f"{recipe!r} needs A = A^H, but A[7, 13] = {value} and A[13, 7] = -1.0")
    assert "ILU0" in text and "positive" not in text


@HERMITIAN
def test_an_entry_whose_mirror_is_not_stored_is_named(backend, recipe):
    A = gallery.poisson5(6, 5)
    A = sp.csr_matrix(A + sp.coo_matrix(([0.5], ([3], [20])), shape=A.shape))
    with pytest.raises(MatrixError, match=r"A\[3, 20\] = 0\.5 and A\[20, 3\] = 0\.0"):
        recipe.factor(backend.move(A))


@HERMITIAN
def test_an_update_is_looked_at_too(backend, recipe):
    A = gallery.poisson5(6, 5)
    F = recipe.factor(backend.move(A))
    B = A.copy()
    B.data[B.indptr[7]] *= 2
    with pytest.raises(MatrixError, match=r"needs A = A\^H, but A\[1, 7\] = -1\.0 and A\[7, 1\] = -2\.0"):
        F.update(backend.move(B))
    F.update(backend.move(perturbed(A)))
    assert np.isfinite(backend.fetch(F.solve(backend.xp.ones(A.shape[0])))).all()


@HERMITIAN
@pytest.mark.parametrize("side", ["lower", "upper"])
def test_one_triangle_alone_is_reported_with_how_to_complete_it(backend, recipe, side):
    whole = in_dtype(gallery.poisson5(6, 5), "complex128")
    A = sp.csr_matrix(sp.tril(whole) if side == "lower" else sp.triu(whole))
    with pytest.raises(MatrixError) as error:
        recipe.factor(backend.move(A))
    text = one_line(error)
    assert f"stores only its {side} triangle" in text
    completed = eval(text.rsplit(": ", 1)[1].rstrip("."), {"A": A, "scipy": __import__("scipy")})
    assert abs(completed - whole).max() == 0


@HERMITIAN
def test_a_complex_symmetric_matrix_is_distinguished_from_a_hermitian_one(backend, recipe):
    A = sp.csr_matrix(gallery.poisson5(6, 5) * (1 + 0j))
    rows = np.repeat(np.arange(30), np.diff(A.indptr))
    B = A.copy()
    B.data[rows != A.indices] *= 1 + 0.1j
    for M, where in (
        (B, r"A\[0, 1\] = \(-1-0\.1j\) and A\[1, 0\] = \(-1-0\.1j\)"),
        (A + 1j * sp.eye(30), r"\(4\+1j\)"),
    ):
        with pytest.raises(MatrixError, match=f"complex symmetric, A = A\\^T: .*{where}"):
            recipe.factor(backend.move(sp.csr_matrix(M)))


@HERMITIAN
@pytest.mark.parametrize("dtype", SOME_DTYPES)
def test_rounding_is_no_asymmetry_and_a_little_more_is_reported(backend, recipe, dtype):
    A = in_dtype(gallery.poisson5(6, 5), dtype)
    rounding, nearly = float(np.finfo(dtype).eps) * 4, 4 * (1e-3 if dtype in ("float32", "complex64") else 1e-6)
    want = backend.fetch(recipe.factor(backend.move(A)).L.data)
    for difference, warned in ((900 * rounding, False), (1200 * rounding, True), (0.9 * nearly, True)):
        F = recipe.factor(backend.move(changed(A, 7, 13, A[7, 13] + difference)))
        np.testing.assert_array_equal(backend.fetch(F.L.data), want)  # the lower triangle is what is factored
        warning = F.report.get("warning", "")
        assert ("A[7, 13] = " in warning and "A[13, 7] = " in warning) == warned
        F.update(backend.move(A))
        assert "warning" not in F.report
    with pytest.raises(MatrixError, match="needs A = A"):
        recipe.factor(backend.move(changed(A, 7, 13, A[7, 13] + 1.1 * nearly)))


@HERMITIAN
@pytest.mark.parametrize("large", [1e20, 1e-20])
def test_a_row_of_another_size_hides_no_asymmetry(backend, recipe, large):
    A = sp.csr_matrix(sp.block_diag([[[large]], [[2.0, 1.0], [-0.5, 2.0]]]))
    with pytest.raises(MatrixError, match=r"A\[1, 2\] = 1\.0 and A\[2, 1\] = -0\.5"):
        recipe.factor(backend.move(A))
    assert fl.matrix.traits.symmetry(fl.as_csr(A)) == "general"


@HERMITIAN
def test_relative_errors_of_the_entries_are_taken(backend, recipe):
    A = sp.csr_matrix(gallery.tridiagonal(50))
    A.data *= 1 + 1e-12 * np.random.default_rng(3).uniform(-1, 1, A.nnz)
    assert "Hermitian up to" in recipe.factor(backend.move(A)).report["warning"]


@HERMITIAN
def test_a_matrix_that_was_changed_in_place_is_looked_at_anew(backend, recipe):
    A = backend.move(changed(gallery.poisson5(6, 5), 7, 13, -1.5))
    C = fl.as_csr(A)
    with pytest.raises(MatrixError, match=r"A\[7, 13\] = -1\.5"):
        recipe.factor(C)
    wrong = C.data.copy()
    C.data[:] = backend.move(gallery.poisson5(6, 5)).data
    F = recipe.factor(C)
    C.data[:] = wrong
    with pytest.raises(MatrixError, match=r"A\[7, 13\] = -1\.5"):
        F.update(C)
    with pytest.raises(MatrixError, match=r"A\[7, 13\] = -1\.5"):
        recipe.factor(C)


def test_solve_looks_once(calls_of):
    from finelu.kernels import cpu

    calls = calls_of(cpu.inspection, "mirrored")
    C = fl.as_csr(gallery.poisson5(30, 30))
    for recipe in ("ic0", "ict", "paric", "parict"):
        assert fl.solve(C, np.ones(900), recipe=recipe).converged and len(calls) == 1
        calls.clear()
        C.data[:] *= 2
    C.data[1] *= 2
    with pytest.raises(MatrixError):
        fl.solve(C, np.ones(900), recipe="ic0")


@pytest.mark.parametrize("dtype", DTYPES)
def test_any_number_of_threads_finds_the_same(dtype):
    A = in_dtype(gallery.convection_diffusion(60), dtype)
    A = sp.csr_matrix(A - sp.triu(A, 2) + sp.triu(A, 2).multiply(np.arange(A.shape[0]) % 3 == 0))
    A.eliminate_zeros()
    C = fl.as_csr(A)
    threads, found = fl.get_num_threads(), []
    try:
        for number in (1, 2, 5):  # one thread walks along the rows, several search
            fl.set_num_threads(number)
            found.append(C.mirrored())
    finally:
        fl.set_num_threads(threads)
    assert found[0] == found[1] == found[2]
    want = reference.inspection.mirrored(C.indptr, C.indices, C.data, C.diag)
    assert found[0][-1] == want[-1] < C.nnz
    np.testing.assert_allclose(found[0][:-1], want[:-1], rtol=8 * np.finfo(dtype).eps)


def test_the_pair_that_is_bad_is_named_of_a_complex_symmetric_matrix():
    A = sp.csr_matrix(gallery.poisson5(6, 5) * (1 + 0j))
    rows = np.repeat(np.arange(30), np.diff(A.indptr))
    A.data[rows != A.indices] *= 1 + 3j
    A = changed(A, 7, 13, A[13, 7] * (1 + 1e-3))
    with pytest.raises(MatrixError, match=r"A\[7, 13\] = .* and A\[13, 7\]"):
        MultilevelILU(symmetric=True).factor(A)
    assert MultilevelILU().factor(A).report["kind"] == "general"


def test_solve_says_why_it_cannot_use_such_a_recipe():
    A = changed(gallery.poisson5(6, 5), 7, 13, -1.5)
    for name in ("ic0", "ict", "paric", "parict"):
        with pytest.raises(MatrixError, match=r"A\[7, 13\] = -1\.5 and A\[13, 7\] = -1\.0"):
            fl.solve(A, np.ones(30), recipe=name)


def test_the_symmetric_form_of_multilevel_names_the_entry():
    A = changed(gallery.poisson5(6, 5), 7, 13, -1.5)
    with pytest.raises(MatrixError, match=r"A\[7, 13\] = -1\.5 and A\[13, 7\] = -1\.0"):
        MultilevelILU(symmetric=True).factor(A)
    F = MultilevelILU(symmetric=True).factor(gallery.poisson5(6, 5))
    assert F.report["kind"] == "hermitian"
    with pytest.raises(MatrixError, match=r"A\[7, 13\] = -1\.5"):
        F.update(A)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_matrix_compared_with_its_transpose_on_either_device(backend, dtype):
    rng = np.random.default_rng(3)
    for n, density in ((1, 1.0), (40, 0.02), (300, 0.05)):
        A = sp.random(n, n, density, random_state=rng, format="csr")
        A = sp.csr_matrix(A + A.T * rng.integers(0, 2))
        A.sort_indices()
        A.data = rng.standard_normal(A.nnz) + (1j * rng.standard_normal(A.nnz) if dtype[0] == "c" else 0)
        A = A.astype(dtype)
        found = fl.as_csr(backend.move(A), diagonal=False).mirrored()
        C = fl.as_csr(A, diagonal=False)
        want = reference.inspection.mirrored(C.indptr, C.indices, C.data, C.diag)
        assert found[-1] == want[-1]
        np.testing.assert_allclose(found[:-1], want[:-1], rtol=8 * np.finfo(dtype).eps)
