"""With --json standard output carries one JSON object alone, whatever the libraries in C have to say."""

import json
import sys

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from conftest import real_matrix
from programs import forked
from scipy.sparse.csgraph import structural_rank
from scipy.sparse.linalg import splu

from finelu import start


# SuperLU goes on with a supernode of fewer rows than columns, and its BLAS says so on standard output, from C.
def superlu():
    splu(scipy.io.mmread(sys.argv[1]).tocsc())


def one_object(path, recipe):
    status, out, _ = forked(start.main, "solve", path, "--recipe", recipe, "--json", "--rtol", "1e-6")
    assert status in (0, 1, 2) and out.count("\n") == 1 and isinstance(json.loads(out), dict), out[:200]


@pytest.fixture(scope="module")
def provoking(tmp_path_factory):
    """A structurally singular matrix that SuperLU stumbles over."""
    A = sp.random_array((44, 44), density=0.05, rng=np.random.default_rng(250)).tocsr()
    path = tmp_path_factory.mktemp("stdout") / "A.mtx"
    scipy.io.mmwrite(path, A, symmetry="general")
    assert structural_rank(A) < 44
    if "illegal value" not in forked(superlu, path)[1]:
        pytest.skip("this SuperLU has nothing to say of it")
    return path


@pytest.mark.parametrize("recipe", ["auto", "multilevel", "sparse_lu"])
def test_of_a_structurally_singular_matrix(provoking, recipe):
    one_object(provoking, recipe)


@pytest.mark.parametrize(
    ("name", "recipe"),
    [
        ("fidapex6", "multilevel"),
        ("hifir_stokes_TH", "auto"),
        pytest.param("fidapex6", "auto", marks=pytest.mark.slow),
        pytest.param("hifir_stokes_TH", "multilevel", marks=pytest.mark.slow),
    ],
)
def test_of_real_matrices(tmp_path, name, recipe):
    scipy.io.mmwrite(tmp_path / "A.mtx", real_matrix(name), symmetry="general")
    one_object(tmp_path / "A.mtx", recipe)


def test_superlu_is_never_given_a_structurally_singular_matrix(splu_is):
    from finelu import FineluError, SparseLU, foreign

    given, plain = [], foreign.splu

    def checked(A, **how):
        given.append(structural_rank(A))
        assert given[-1] == A.shape[0]
        return plain(A, **how)

    splu_is(checked)
    refused = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        A = sp.random_array((30, 30), density=0.07, rng=rng).tocsr()
        A.data[rng.random(A.nnz) < 0.1] = 0  # stored, but nothing to a pivot
        for recipe in (SparseLU(), SparseLU(ordering="colamd"), SparseLU(matching=False), SparseLU(shift=1e-3)):
            try:
                recipe.factor(A)
            except FineluError:
                refused += 1
    assert refused > 60 and len(given) > 60 / 2
