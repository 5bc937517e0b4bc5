"""Recipes that factor one triangle: what they take for Hermitian, and what they say of any other A."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, in_dtype, one_line, perturbed

import finelu as fl
from finelu import IC0, ICT, MatrixError, MultilevelILU, ParIC, ParICT, gallery
from finelu.kernels import reference
from finelu.preconditioners import HERMITIAN_RECIPES, RECIPES

HERMITIAN = pytest.mark.parametrize("recipe", [IC0(), ICT(), ParIC(), ParICT()], ids=repr)


def changed(A, i, j, value):
    B = sp.lil_matrix(A)
    B[i, j] = value
    return sp.csr_matrix(B)


def test_all_of_them_are_tried_here():
    assert HERMITIAN_RECIPES == ("ic0", "ict", "paric", "parict")
    assert [RECIPES[name] for name in HERMITIAN_RECIPES] == [IC0, ICT, ParIC, ParICT]


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
def test_one_triangle_alone_is_told_with_how_to_complete_it(backend, recipe, side):
    whole = in_dtype(gallery.poisson5(6, 5), "complex128")
    A = sp.csr_matrix(sp.tril(whole) if side == "lower" else sp.triu(whole))
    with pytest.raises(MatrixError) as error:
        recipe.factor(backend.move(A))
    text = one_line(error)
    assert f"stores its {side} triangle alone" in text
    completed = eval(text.rsplit(": ", 1)[1].rstrip("."), {"A": A, "scipy": __import__("scipy")})
    assert abs(completed - whole).max() == 0


@HERMITIAN
def test_a_complex_symmetric_matrix_is_told_from_a_hermitian_one(backend, recipe):
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
@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_of_the_largest_entry_is_no_asymmetry(backend, recipe, dtype):
    A = in_dtype(gallery.poisson5(6, 5), dtype)
    rounding = float(np.finfo(dtype).eps) * 4
    F = recipe.factor(backend.move(changed(A, 7, 13, A[7, 13] + 900 * rounding)))
    np.testing.assert_array_equal(  # the lower triangle is what is factored
        backend.fetch(F.L.data), backend.fetch(recipe.factor(backend.move(A)).L.data)
    )
    with pytest.raises(MatrixError, match="needs A = A"):
        recipe.factor(backend.move(changed(A, 7, 13, A[7, 13] + 1100 * rounding)))


def test_solve_says_why_it_cannot_use_such_a_recipe():
    A = changed(gallery.poisson5(6, 5), 7, 13, -1.5)
    for name in HERMITIAN_RECIPES:
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
def test_a_matrix_beside_its_transpose_on_either_device(backend, dtype):
    rng = np.random.default_rng(3)
    for n, density in ((1, 1.0), (40, 0.02), (300, 0.05)):
        A = sp.random(n, n, density, random_state=rng, format="csr")
        A = sp.csr_matrix(A + A.T * rng.integers(0, 2))
        A.sort_indices()
        A.data = rng.standard_normal(A.nnz) + (1j * rng.standard_normal(A.nnz) if dtype[0] == "c" else 0)
        A = A.astype(dtype)
        found = fl.as_csr(backend.move(A), diagonal=False).mirrored
        want = reference.mirrored(A.indptr, A.indices, A.data)
        assert found[3] == want[3]
        np.testing.assert_allclose(found[:3], want[:3], rtol=4 * np.finfo(dtype).eps)
