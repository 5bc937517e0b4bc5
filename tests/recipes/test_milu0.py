"""MILU(0): row sums, relaxation, and what test_eliminations.py does not ask."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import (
    ON_GPU,
    PATTERNS,
    assert_is_milu0_of,
    dominant_matrices,
    fetched,
    in_dtype,
    iterations,
    long_rows,
    longest_chain,
    one_line,
    refused,
    values,
    with_index,
)
from hypothesis import given
from hypothesis import strategies as st

import finelu as fl
from finelu import ILU0, MILU0, ZeroPivot, gallery
from finelu.kernels.cpu.elimination import milu0, milu0_analysis

# By definition: (L U) e = A e


@pytest.mark.parametrize("problem", gallery.small(), ids=str)
def test_l_u_has_the_row_sums_of_a(backend, problem):
    F = MILU0().factor(backend.move(problem.A))
    assert_is_milu0_of(problem.A, *fetched(backend, F))
    assert F.nnz == problem.A.nnz and F.dtype == problem.A.dtype


@PATTERNS
@given(A=dominant_matrices(), relax=st.sampled_from([0.0, 0.5, 1.0]))
def test_any_pattern_and_relaxation(backend, A, relax):
    F = MILU0(relax=relax).factor(backend.move(A))
    assert_is_milu0_of(A, *fetched(backend, F), relax)


GPU_MATRICES = {
    "poisson7": sp.csr_matrix(gallery.poisson7(24) + sp.identity(24**3)),
    "27 points": sp.csr_matrix(gallery.poisson27(12) + sp.identity(12**3)),
    "long rows": long_rows(2500),
    "chain": longest_chain(3000),
    "arrow": gallery.arrow(3000),
    "random": gallery.random_dominant(5000, density=0.004, seed=1),
}


@ON_GPU
@pytest.mark.parametrize("variant", ["adapt", "natural", "levs", "table", "auto"])
@pytest.mark.parametrize("name", GPU_MATRICES)
def test_on_a_gpu_it_is_that_of_the_cpu(backend, name, variant):
    for dtype, index in (("float64", "int32"), ("complex64", "int32"), ("float64", "int64")):
        A = with_index(in_dtype(GPU_MATRICES[name], dtype), index)
        eps = np.finfo(A.data.real.dtype).eps
        for relax in (1.0, 0.7):
            want = np.empty_like(A.data)
            assert milu0(milu0_analysis(A, "sequential"), A.data, relax, want) == -1
            on_gpu = backend.move(A)
            F = MILU0(relax=relax, variant=variant).factor(on_gpu)
            for again in (F, F.update(on_gpu), MILU0(relax=relax, variant=variant).factor(on_gpu)):
                got = backend.fetch(again.triangles.data)
                np.testing.assert_allclose(got, want, rtol=1e5 * eps, atol=1e4 * eps * abs(want).max())
            assert F.report.variant == variant or variant == "auto"


# By limit


@pytest.mark.parametrize("problem", gallery.small(), ids=str)
def test_with_relax_0_it_is_ilu0(problem):
    F, G = MILU0(relax=0).factor(problem.A), ILU0().factor(problem.A)
    np.testing.assert_array_equal(F.U.data, G.U.data)
    np.testing.assert_array_equal(F.L.data, G.L.data)


# The effect of each parameter


def test_relax_moves_the_diagonal_between_ilu0_and_milu0():
    A = gallery.poisson7(6)
    diagonals = [MILU0(relax=relax).factor(A).U.diagonal() for relax in (0.0, 0.5, 1.0)]
    assert (diagonals[0] >= diagonals[1]).all() and (diagonals[1] >= diagonals[2]).all()
    assert abs(diagonals[0] - diagonals[1]).max() > 0.1 < abs(diagonals[1] - diagonals[2]).max()


# By behaviour


def test_on_fine_grids_milu0_needs_fewer_iterations_than_ilu0():
    A = gallery.poisson5(100)
    b = values(A.shape[0], "float64")
    needed = [fl.gmres(A, b, M=recipe.factor(A), restart=200).iterations for recipe in (ILU0(), MILU0(relax=0.99))]
    assert needed[1] <= 0.7 * needed[0]


def test_milu0_solves_convection():
    A = gallery.convection_diffusion(12, 12, 12, peclet=20)
    assert iterations(A, MILU0().factor(A), restart=100) <= 25


# By bad input


def test_a_zero_pivot_names_its_row_and_what_to_try(backend):
    A = sp.csr_matrix(np.array([[1.0, 1, 0], [1, 2, 1], [0, 0, 1]]) + 0.0)
    A[1, 1] = 1.0
    with pytest.raises(ZeroPivot, match=r"the pivot of row 1 is 0.*relax=0\.95.*shift=1e-3") as error:
        MILU0().factor(backend.move(A))
    assert error.value.row == 1 and error.value.recipe == MILU0()
    one_line(error)


def test_a_pivot_that_the_dropped_fill_takes_away_names_its_row(backend):
    A = sp.csr_matrix(np.array([[1.0, 0, 1, 1], [0, 1, 0, 0], [1, 0, 3, 0], [0, 0, 0, 1]]))  # 3 - 1, and fill of -2
    A[0, 3] = 2.0
    with pytest.raises(ZeroPivot, match="the pivot of row 2 is 0"):
        MILU0().factor(backend.move(A))
    U = fetched(backend, MILU0(relax=0.5).factor(backend.move(A)))[1]
    np.testing.assert_array_equal(U.diagonal(), [1, 1, 1, 1])


def test_values_that_overflow_are_found():
    with refused(ZeroPivot, match="row 1 "):
        MILU0().factor(sp.csr_matrix(np.array([[1e-300, 1e300], [1e300, 1.0]])))
