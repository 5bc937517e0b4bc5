"""Recipes that factor a Batch, against the factors of each matrix by itself."""

import re

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, KERSHAW, assert_close, in_dtype, values

import finelu as fl
from finelu import gallery
from finelu.errors import MatrixError, ParameterError

RECIPES = [
    fl.Jacobi(),
    fl.BlockJacobi(block_size=3),
    fl.ILU0(),
    fl.ILU0(shift=0.1),
    fl.IC0(),
    fl.IC0(shift=0.1),
    fl.ILUK(level=2),
    fl.SparseLU(),
]


def batch_of(backend, A, k=11):
    """k matrices D A D with a positive diagonal D each: Hermitian if A is."""
    A = sp.csr_matrix(A)
    scales = np.random.default_rng(0).uniform(0.8, 1.25, (k, A.shape[0])).astype(A.real.dtype)
    rows = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    every = A.data * scales[:, rows] * scales[:, A.indices]
    return fl.Batch(backend.move(A), backend.move(every)), [sp.csr_matrix((v, A.indices, A.indptr)) for v in every]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("recipe", RECIPES, ids=repr)
def test_factors_of_a_batch_are_those_of_its_matrices(backend, recipe, dtype):
    batch, matrices = batch_of(backend, in_dtype(gallery.poisson5(5, 4), dtype))
    F = recipe.factor(batch)
    R = values((11, 20), dtype, 4)
    X = backend.fetch(F.solve(backend.move(R)))
    assert X.shape == R.shape and X.dtype == R.dtype and (F.failed == -1).all() and not F.replaced.any()
    want = np.array([recipe.factor(M).solve(r) for M, r in zip(matrices, R, strict=True)])
    assert_close(X, want, 400, scale=abs(want).max())
    np.testing.assert_array_equal(backend.fetch(F @ backend.move(R)), X)


def test_update_gives_the_bits_of_new_factors(backend):
    batch, _ = batch_of(backend, gallery.convection_diffusion(5, 4, 1, peclet=9))
    R = backend.move(values((11, 20), float, 4))
    other = batch.values * (1 + 0.1 * backend.move(values(batch.values.shape, float, 5)))
    F = fl.ILU0().factor(batch)
    plan = F.plan
    wanted = backend.fetch(fl.ILU0().factor(batch.with_values(other)).solve(R))
    assert F.update(other) is F and F.plan is plan
    np.testing.assert_array_equal(backend.fetch(F.solve(R)), wanted)
    np.testing.assert_array_equal(backend.fetch(F.update(batch.with_values(other)).solve(R)), wanted)


def test_matrices_without_factors_are_named(backend):
    batch, matrices = batch_of(backend, gallery.poisson5(5, 4))
    every = batch.values.copy()
    every[3, 0] = 0  # the first pivot
    every[8, int(matrices[0].indptr[4])] = np.nan
    F = fl.ILU0().factor(batch.with_values(every))
    assert np.flatnonzero(F.failed >= 0).tolist() == [3, 8] and F.failed[3] == 0
    assert F.report.warning == (
        "2 systems of 11 without factors: systems 3, 8; the pivot of row 0 of system 3 is zero or not finite"
    )
    F.update(batch)
    assert F.report.warning is None and (F.failed == -1).all()


def test_a_matrix_without_ic0_is_named(backend):
    batch = fl.Batch(backend.move(KERSHAW), backend.move(np.array([KERSHAW.data + 0, KERSHAW.data])))
    good = sp.csr_matrix(KERSHAW + 3 * sp.identity(4))
    batch = batch.with_values(backend.move(np.array([good.data, KERSHAW.data])))
    F = fl.IC0().factor(batch)
    assert F.failed.tolist() == [-1, 3] and "or not positive" in F.report.warning


def test_complex_right_hand_sides_of_real_factors(backend):
    batch, _ = batch_of(backend, gallery.poisson5(5, 4))
    F, R = fl.ILU0().factor(batch), values((11, 20), complex, 4)
    X = backend.fetch(F.solve(backend.move(R)))
    for part in ("real", "imag"):
        same = backend.fetch(F.solve(backend.move(np.ascontiguousarray(getattr(R, part)))))
        np.testing.assert_array_equal(getattr(X, part), same)


A = sp.csr_matrix(gallery.convection_diffusion(5, 4, 1, peclet=9))
BATCH = fl.Batch(A, np.tile(A.data, (3, 1)))
GAP = sp.csr_matrix(np.array([[0.0, 1], [1, 1]]))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: fl.ILUT().factor(BATCH), "ILUT() does not factor a Batch; Jacobi, BlockJacobi, ILU0, IC0, ILUK"),
        (lambda: fl.ILU0(variant="levels").factor(BATCH), "variant has no effect on a Batch; leave it out"),
        (lambda: fl.SparseLU(matching=True).factor(BATCH), "matching has no effect on a Batch"),
        (lambda: fl.IC0().factor(BATCH), "needs Hermitian matrices, but not Hermitian in the Batch: systems 0, 1, 2"),
        (lambda: fl.ILU0().factor(fl.Batch(GAP, [GAP.data])), "A stores no diagonal entry in row 0"),
        (lambda: fl.ILU0().factor(BATCH).update(BATCH.values[:2]), "2 matrices, but the factors are of 3"),
        (lambda: fl.ILU0().factor(BATCH).update(BATCH.values[:, 1:]), "shape (k, 82) is needed"),
        (lambda: fl.ILU0().factor(BATCH).update(BATCH.values * 1j), "complex128 values, but the factors are float64"),
        (lambda: fl.ILU0().factor(BATCH).update(fl.Batch(GAP, [GAP.data])), "this Batch has another one"),
        (lambda: fl.ILU0().factor(BATCH).solve(np.ones((20, 3))), "the right-hand side has shape (20, 3)"),
    ],
)
def test_bad_input_is_one_line(call, text):
    with pytest.raises((MatrixError, ParameterError), match=re.escape(text)) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_factors_that_do_not_fit_say_how_many_do(everywhere):
    everywhere("free_memory", lambda _: 1500)  # 82 entries of 8 bytes a system
    with pytest.raises(MemoryError, match=r"the factors of 3 systems take .* free; factor 2 at a time"):
        fl.ILU0().factor(BATCH)
