"""ILU(k): its pattern, and what test_eliminations.py does not ask."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import (
    PATTERNS,
    assert_close,
    assert_is_ilu0_of,
    dominant_matrices,
    extended,
    fetched,
    iterations,
    long_rows,
    longest_chain,
    one_line,
    reference_factors,
    with_index,
)
from conftest import real_matrix
from hypothesis import given
from hypothesis import strategies as st

from finelu import ILU0, ILUK, ZeroPivot, gallery
from finelu.kernels import reference
from finelu.kernels.cpu.fill import pattern_iluk
from finelu.matrix import CSR
from finelu.preconditioners.iluk import pattern_of


def levels_by_paths(A):
    """level (n, n) : the fewest inner vertices, all smaller than i and j, on a path from i to j (Hysom & Pothen)."""
    n = A.shape[0]
    edges = A.astype(bool).toarray()
    level = np.where(edges, 0.0, np.inf)
    for k in range(n):  # paths through 0..k, as by Floyd and Warshall
        through = level[:, [k]] + level[[k], :] + 1
        after = np.arange(n) > k
        level = np.where(np.outer(after, after), np.minimum(level, through), level)
    return level


# By definition


@PATTERNS
@given(A=dominant_matrices(), level=st.integers(0, 6))
def test_the_pattern_is_that_of_short_paths(A, level):
    n = A.shape[0]
    indptr, indices, places = pattern_iluk(A.indptr, A.indices, level)
    pattern = sp.csr_matrix((np.ones(indices.size), indices, indptr), shape=(n, n)).toarray()
    np.testing.assert_array_equal(pattern != 0, levels_by_paths(A) <= level)
    rows = np.repeat(np.arange(n), np.diff(indptr))
    np.testing.assert_array_equal(indices[places], A.indices)
    np.testing.assert_array_equal(rows[places], np.repeat(np.arange(n), np.diff(A.indptr)))


@PATTERNS
@given(A=dominant_matrices(), level=st.integers(0, 4))
def test_iluk_of_any_pattern(A, level):
    F = ILUK(level=level).factor(A)
    assert_is_ilu0_of(extended(A, level), F.L, F.U)


# By limit


@pytest.mark.parametrize("problem", gallery.small(), ids=str)
def test_of_level_zero_it_is_ilu0(backend, problem):
    F, G = (recipe.factor(backend.move(problem.A)) for recipe in (ILUK(level=0), ILU0()))
    for part in ("L", "U"):
        for array in ("indptr", "indices", "data"):
            got, want = (backend.fetch(getattr(getattr(X, part), array)) for X in (F, G))
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("problem", gallery.small(), ids=str)
def test_of_the_highest_level_it_is_the_complete_factorization(backend, problem):
    A = problem.A
    for level in (A.shape[0], 2**62):
        L, U = fetched(backend, ILUK(level=level).factor(backend.move(A)))
        assert_close((L @ U).toarray(), A.toarray(), 64, scale=(abs(L) @ abs(U)).toarray().max())


# By twin


@pytest.mark.parametrize("level", [0, 1, 2, 3, 5, 10**6])
@pytest.mark.parametrize("problem", gallery.small(), ids=str)
def test_the_pattern_is_that_of_the_reference(problem, level):
    A = problem.A
    indptr, indices, _ = pattern_iluk(A.indptr, A.indices, level)
    want_indptr, want_indices = reference.fill.pattern_iluk(A.indptr, A.indices, level)
    np.testing.assert_array_equal(indptr, want_indptr)
    np.testing.assert_array_equal(indices, want_indices)


@pytest.mark.parametrize("A", [longest_chain(300), long_rows(200), gallery.arrow(300)], ids=["chain", "long", "arrow"])
def test_the_pattern_of_long_rows_and_both_index_types(A):
    for index in (np.int32, np.int64):
        B = with_index(A, index)
        for level in (1, 4):
            indptr, indices, _ = pattern_iluk(B.indptr, B.indices, level)
            assert indices.dtype == index
            for got, want in zip((indptr, indices), reference.fill.pattern_iluk(B.indptr, B.indices, level)):
                np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("variant", ["sequential", "levels", "auto"])
@pytest.mark.parametrize("name", ["poisson7:5,4,3", "random_dominant:120,0.03,4,complex64"])
def test_the_bits_are_those_of_the_reference_on_the_pattern(name, variant):
    A = gallery.problem(name)
    F = ILUK(level=2, variant=variant).factor(A)
    pattern = extended(A, 2)
    want = sp.csr_matrix((reference_factors(pattern), pattern.indices, pattern.indptr), shape=A.shape)
    np.testing.assert_array_equal(F.U.data, sp.triu(want, format="csr").data)
    np.testing.assert_array_equal(sp.tril(F.L, -1, format="csr").data, sp.tril(want, -1, format="csr").data)


def test_the_pattern_as_a_matrix_has_its_diagonal_and_the_type_of_its_indices():
    A = with_index(gallery.poisson7(5), np.int64)
    pattern, places = pattern_of(A, 1)
    assert isinstance(pattern, CSR)
    assert pattern.indptr.dtype == pattern.indices.dtype == pattern.diag.dtype == np.int64
    np.testing.assert_array_equal(pattern.indices[pattern.diag], np.arange(125))
    np.testing.assert_array_equal(pattern.indices[places], A.indices)


# The effect of each parameter


def test_a_higher_level_gives_more_entries_and_fewer_iterations():
    A = gallery.convection_diffusion(12, 12, 12, peclet=20)
    made = [ILUK(level=level).factor(A) for level in range(4)]
    assert all(F.report["symbolic_seconds"] > 0 for F in made)
    entries, needed = [F.nnz for F in made], [iterations(A, F, restart=100) for F in made]
    assert entries == sorted(entries) and len(set(entries)) == 4
    assert needed == sorted(needed, reverse=True) and needed[3] <= 0.6 * needed[0]


# By behaviour


def test_iluk_preconditions_a_real_matrix():
    A = real_matrix("sherman3")
    needed = [iterations(A, ILUK(level=level).factor(A), restart=200) for level in (0, 2)]
    assert needed[1] <= 0.6 * needed[0]


# By bad input


def test_a_zero_pivot_names_its_row_and_what_to_try(backend):
    A = sp.csr_matrix(np.array([[1.0, 0, 0, 0], [0, 2, 4, 0], [0, 1, 2, 0], [0, 0, 0, 1]]))
    with pytest.raises(ZeroPivot, match=r"the pivot of row 2 is 0.*shift=1e-3") as error:
        ILUK().factor(backend.move(A))
    assert error.value.row == 2 and error.value.recipe == ILUK()
    one_line(error)
