"""Factors, matrices, solvers, results and exceptions go through pickle and copy, as workers and checkpoints need it."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from checks import perturbed, values

import finelu as fl
from finelu import (
    ILU0,
    BlockILU0,
    BlockJacobi,
    MatrixError,
    MultilevelILU,
    ParIC,
    ParILUT,
    Sequence,
    SparseLU,
    StencilMatrix,
    TriangularSolver,
    errors,
    gallery,
)
from finelu.matrix.blocks import BlockMatrix
from finelu.preconditioners import RECIPES, SingularBlock

N = 240
CASES = {name: Recipe(block_size=3) if name in ("block_ilu0", "cpr") else Recipe() for name, Recipe in RECIPES.items()}
CASES |= {
    "multilevel, several levels": MultilevelILU(dense_size=20, drop_tol=1e-2, ordering="rcm"),
    "multilevel, low memory": MultilevelILU(dense_size=20, drop_tol=1e-2, ordering="rcm", low_memory=True),
    "paric, ordered": ParIC(ordering="rcm", level=1),
    "parilut, ordered": ParILUT(ordering="rcm", update_steps=1),
    "sparse_lu, by columns": SparseLU(ordering="colamd"),
    "ilu0, jacobi": ILU0(triangular="jacobi", sweeps=5),
    "ilu0, isai": ILU0(triangular="isai", sweeps=2),
}
RECIPE = pytest.mark.parametrize("recipe", CASES.values(), ids=CASES.keys())
COPIED = pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda F: pickle.loads(pickle.dumps(F))], ids=["copy", "deepcopy", "pickle"]
)


def applied(backend, F, r):
    return [backend.fetch(F.solve(backend.move(r), trans=trans)) for trans in "NTH"]


@RECIPE
@COPIED
def test_copied_factors_give_the_same_bits_and_are_their_own(backend, recipe, copied):
    A, r = gallery.poisson5(16, 15), values((N, 2), "float64")
    B = perturbed(A)
    F = recipe.factor(backend.move(A))
    early = copied(F)  # before there is anything for transposed solves
    want = applied(backend, F, r)
    late = copied(F)
    for G in (early, late):
        assert repr(G) == repr(F) and G.report == F.report and G.recipe == F.recipe
        np.testing.assert_array_equal(applied(backend, G, r), want)
    for G in (early, late):
        G.update(backend.move(B))
        np.testing.assert_array_equal(applied(backend, F, r), want)  # they have nothing in common
    F.update(backend.move(B))
    new = applied(backend, F, r)
    assert abs(np.stack(new) - np.stack(want)).max() > 1e-3 * abs(np.stack(want)).max()
    for G in (early, late):
        np.testing.assert_array_equal(applied(backend, G, r), new)
    again = copied(early)
    again.update(backend.move(A))
    np.testing.assert_array_equal(applied(backend, again, r), applied(backend, early.update(backend.move(A)), r))


@pytest.mark.parametrize("recipe", [BlockILU0(), BlockJacobi()], ids=repr)
@COPIED
def test_factors_of_block_matrices_too(backend, recipe, copied):
    blocks = np.random.default_rng(0).uniform(-0.1, 0.1, (7, 4, 3, 3, 3, 3))
    blocks[3] += 2 * np.eye(3)
    A = StencilMatrix(backend.move(blocks))
    r = values((108, 1), "float64")
    for M in (A, BlockMatrix.from_csr(A.tocsr(), 3)):
        N = copied(M)
        np.testing.assert_array_equal(backend.fetch(N @ backend.move(r)), backend.fetch(M @ backend.move(r)))
        F = recipe.factor(M)
        G = copied(F)
        np.testing.assert_array_equal(applied(backend, G, r), applied(backend, F, r))
        G.update(N)
        np.testing.assert_array_equal(applied(backend, G, r), applied(backend, F, r))


@pytest.mark.parametrize("name", ["ilu0", "sparse_lu", "multilevel"])
@COPIED
def test_a_copy_of_factors_whose_update_failed_has_none_either(name, copied):
    A = gallery.poisson5(16, 15)
    F = RECIPES[name]().factor(A)
    with pytest.raises((fl.FineluError, ArithmeticError)):
        F.update(A * 0)
    G = copied(F)
    with pytest.raises(errors.NoFactors):
        G.solve(np.ones(N))
    np.testing.assert_array_equal(G.update(A).solve(np.ones(N)), F.update(A).solve(np.ones(N)))


@COPIED
@pytest.mark.parametrize("method", ["auto", "jacobi", "isai"])
def test_triangular_solvers(backend, method, copied):
    A, b = gallery.poisson5(16, 15), values(N, "float64")
    S = TriangularSolver(backend.move(A), trans="T", method=method)
    T = copied(S)
    np.testing.assert_array_equal(backend.fetch(T.solve(backend.move(b))), backend.fetch(S.solve(backend.move(b))))
    new = backend.move(perturbed(A).data)
    T.update(new)
    S.update(new)
    np.testing.assert_array_equal(backend.fetch(T.solve(backend.move(b))), backend.fetch(S.solve(backend.move(b))))


@COPIED
def test_sequences_and_solutions(copied):
    A, b = gallery.poisson5(16, 15), values(N, "float64")
    S = Sequence(A, recipe="ilu0")
    first = S.step(None, b)
    T = copied(S)
    found = T.step(A, 2 * b)
    assert T.decisions == ["solve", "reuse"] and S.decisions == ["solve"] and found.converged
    same = copied(first)
    assert same.status is first.status and same.explain() == first.explain()
    np.testing.assert_array_equal(same.x, first.x)


@RECIPE
@COPIED
def test_recipes(recipe, copied):
    assert copied(recipe) == recipe


def made() -> dict:
    """One exception of each class."""
    A = gallery.poisson5(16, 15)
    special = {
        errors.StructurallySingular: errors.StructurallySingular([3, 4]),
        errors.ZeroPivot: errors.ZeroPivot(ILU0(shift=0.1), 3, 0.0),
        errors.NoFactors: errors.NoFactors(ILU0()),
        errors.NoThread: errors.NoThread("keep a time limit", RuntimeError("can't start new thread")),
        errors.NotConverged: errors.NotConverged("it", fl.krylov.gmres(A, np.ones(N), maxiter=1), 1e-8),
        errors.OutOfTime: errors.OutOfTime(),
        errors.TooManyEntries: errors.TooManyEntries(1000),
        errors.UnknownParameter: errors.UnknownParameter("solve", "tol", ["rtol"]),
        SingularBlock: SingularBlock(BlockILU0(block_size=2), (1, 2, 3), 4, 1e20),
    }

    def all_of(kind):
        return [kind] + [k for sub in kind.__subclasses__() for k in all_of(sub)]

    return {kind: special[kind] if kind in special else kind("what came, where") for kind in all_of(errors.FineluError)}


@COPIED
def test_exceptions_keep_text_class_and_attributes(copied):
    for kind, error in made().items():
        found = copied(error)
        assert type(found) is kind and str(found) == str(error) and found.args == error.args
        assert found.__dict__.keys() == error.__dict__.keys()
        for name, value in error.__dict__.items():
            assert name == "solution" or getattr(found, name) == value


def test_another_process_solves_with_them(tmp_path):
    A, r = gallery.poisson5(16, 15), values(N, "float64")
    F = ILU0().factor(A)
    (tmp_path / "F").write_bytes(pickle.dumps(F))
    np.save(tmp_path / "r.npy", r)
    text = "import numpy, pickle; F = pickle.load(open('F', 'rb')); numpy.save('x.npy', F.solve(numpy.load('r.npy')))"
    subprocess.run([sys.executable, "-c", text], cwd=tmp_path, check=True, timeout=300)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), F.solve(r))


def test_an_exception_of_a_worker_arrives():
    with pytest.raises(MatrixError, match="structurally singular") as error:
        SparseLU().factor(sp.csr_matrix(([1.0, 1.0], ([0, 1], [0, 0])), shape=(2, 2)))
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)
