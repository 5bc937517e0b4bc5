"""SparseLU by libraries that are not always installed: KLU, through nbklu, feral, and PARDISO, through pypardiso."""

import copy
import gc
import os
import pickle
import subprocess
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, PATTERNS, assert_close, bordered, dominant_matrices, one_line, perturbed, values
from conftest import real_matrix
from hypothesis import given
from hypothesis import strategies as st
from programs import ended

import finelu as fl
from finelu import gallery
from finelu.auto.choose import rungs
from finelu.auto.cost import RATES, Costs
from finelu.auto.ladder import Ladder
from finelu.compare import held_bytes
from finelu.errors import FineluError, MatrixError, NoFactors, ParameterError, SingularMatrix, StructurallySingular
from finelu.factors import Columns
from finelu.interop.scipy import route
from finelu.matrix import as_csr
from finelu.matrix.traits import traits
from finelu.ordering import OrderingJob, with_little_fill
from finelu.preconditioners.direct import pardiso
from finelu.preconditioners.direct.analysis import (
    KLU_FLOPS,
    KLU_WORK,
    WHOLE_WORK,
    analysed,
    light_by_klu,
    may_be_by_blocks,
)
from finelu.preconditioners.direct.factors import SparseLUFactors
from finelu.preconditioners.direct.feral import LDL
from finelu.preconditioners.direct.klu import AMD, GIVEN, KLU
from finelu.preconditioners.direct.pardiso import mkl
from finelu.recent import Recent
from finelu.threads import available_cores

try:
    import nbklu
except ImportError:
    nbklu = None

try:
    import feral
except ImportError:
    feral = None

OF_KLU = sys.modules[KLU.__module__]
OF_FACTORS = sys.modules[SparseLUFactors.__module__]
ldl = pytest.mark.skipif(feral is None, reason="feral-solver is not installed")
klu = pytest.mark.skipif(nbklu is None, reason="nbklu is not installed")
blocks = pytest.mark.skipif(mkl() is None, reason="pypardiso is not installed")
BY_BLOCKS = pytest.mark.parametrize(
    "backend", [pytest.param("feral", marks=ldl), pytest.param("pardiso", marks=blocks)]
)


def solves_in(F, op, trans):
    """F.solve(b, trans) is the solution with op, for a vector, for three, and for a complex one."""
    n, eps = op.shape[0], np.finfo(op.dtype).eps
    for shape in ((n,), (n, 3)):
        b = np.random.default_rng(1).standard_normal(shape).astype(op.dtype)
        x = F.solve(b, trans)
        assert x.dtype == op.dtype and x.shape == b.shape
        assert np.linalg.norm(op @ x - b) <= 1e6 * eps * np.linalg.norm(b)
    z = F.solve(np.full(n, 1 + 2j), trans)
    assert np.linalg.norm(op @ z - (1 + 2j)) <= 1e6 * eps * np.sqrt(n)


@pytest.fixture(autouse=True)
def only_what_is_tested(request, without, monkeypatch):
    """PARDISO would take what the tests of the others are about, and earlier tests leave analyses."""
    recent = Recent()
    for module in (OF_KLU, pardiso, sys.modules[LDL.__module__], route):
        monkeypatch.setattr(module, "RECENT", recent)
    if "pardiso" not in request.node.name:
        without("pardiso")


def network(n=600, seed=0):
    """An unsymmetric pattern with blocks, some gaps on the diagonal, and little fill, as in a circuit."""
    rng = np.random.default_rng(seed)
    ring = sp.coo_matrix((rng.standard_normal(n), (np.arange(n), (np.arange(n) + 1) % n)), shape=(n, n))
    chords = sp.random(n, n, 1.0 / n, random_state=rng)
    rows = np.arange(n)
    rows[:100] = rows[:100].reshape(-1, 2)[:, ::-1].ravel()
    return sp.csr_matrix(ring + sp.tril(chords, -5) + 4 * sp.identity(n))[rows]


@klu
@pytest.mark.parametrize("trans", ["N", "T", "H"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_klu_solves_in_every_dtype_and_direction(dtype, trans):
    A = network().astype(dtype)
    if A.dtype.kind == "c":
        A.data *= np.exp(1j * np.arange(A.nnz)).astype(dtype)
    F = fl.SparseLU(backend="klu").factor(A)
    assert F.report.backend == "klu" and F.report.expected_nnz > 0
    solves_in(F, {"N": A, "T": A.T, "H": A.conj().T}[trans], trans)


@klu
@PATTERNS
@given(A=dominant_matrices(), ordering=st.sampled_from(["auto", "mmd", "rcm", "colamd", None]), matching=st.booleans())
def test_klu_with_every_ordering(A, ordering, matching):
    F = fl.SparseLU(backend="klu", ordering=ordering, matching=matching).factor(A)
    b = np.arange(1.0, A.shape[0] + 1)
    assert_close(F.solve(b), np.linalg.solve(A.toarray(), b), ulps=1e5)
    assert_close(F.update(perturbed(A)).solve(b), np.linalg.solve(perturbed(A).toarray(), b), ulps=1e5)
    assert F.nnz >= A.shape[0] and F.report.matched == matching


@klu
def test_auto_takes_klu_for_a_small_network_whose_factors_are_not_sparse():
    rng = np.random.default_rng(0)
    A = sp.csr_matrix(sp.random(400, 400, 5 / 400, random_state=rng) + sp.diags(rng.uniform(1, 2, 400)))
    F = fl.SparseLU().factor(A)
    work, entries = F.report.expected_flops, F.report.expected_nnz
    assert F.report.backend == "klu" and KLU_WORK * entries < work <= KLU_FLOPS
    heavy = sp.csr_matrix(A + sp.random(400, 400, 8 / 400, random_state=rng))
    assert fl.SparseLU(backend="klu").factor(heavy).report.expected_flops > KLU_FLOPS
    assert fl.SparseLU().factor(heavy).report.backend == "superlu"


@klu
def test_auto_takes_klu_where_factors_stay_sparse_and_superlu_where_they_do_not():
    light, heavy = network(), gallery.convection_diffusion(14)  # with more rows than are left uncounted; not symmetric
    F, G = fl.SparseLU().factor(light), fl.SparseLU().factor(heavy)
    assert (F.report.backend, G.report.backend) == ("klu", "superlu")
    assert G.report.expected_nnz == with_little_fill(heavy)[1].nnz
    for recipe in (fl.SparseLU(ordering="mmd"), fl.SparseLU(matching=True), fl.SparseLU(shift=1e-9)):
        assert recipe.factor(light).report.backend == "superlu"


def flow(n, upstream=1.5):
    """A flow on a grid of n x n cells: neither symmetric nor reducible, with short rows and a strong diagonal."""
    T = sp.diags([-upstream, 2.5, -1.0], [-1, 0, 1], shape=(n, n))
    return sp.csr_matrix(sp.kron(T, sp.identity(n)) + sp.kron(sp.identity(n), T))


def bilinear(n):
    """Bilinear elements on n x n squares: symmetric, with more than five entries a row, all of them alike in length."""
    K, M = (sp.diags([b, a, b], [-1, 0, 1], shape=(n, n)) for a, b in ((2.0, -1.0), (4.0, 1.0)))
    return sp.csr_matrix(sp.kron(K, M) + sp.kron(M, K))


@klu
def test_an_order_at_hand_goes_to_superlu_sooner_than_klu_orders_again():
    A = as_csr(flow(108))
    job = OrderingJob(A, aside=False)
    _, order, fill = job.found()
    assert WHOLE_WORK * fill.nnz < fill.flops < KLU_WORK * fill.nnz and fill.flops > KLU_FLOPS
    found = analysed(fl.SparseLU(), A, counted=True, job=job)
    assert found.library is None and found.fill == fill and np.array_equal(found.arranged.rows, order)
    assert analysed(fl.SparseLU(), A, counted=True).library.name == "klu"  # which then orders first
    weak = as_csr(A.tosparse() - sp.diags(np.where(np.arange(A.n) % 20, 0, 4.99)))  # SuperLU would match its rows
    assert analysed(fl.SparseLU(), weak, counted=True, job=job).library.name == "klu"


@klu
@pytest.mark.parametrize(("split", "library"), [(0.5, "klu"), (0.02, None)], ids=["halves", "a small one"])
def test_blocks_are_worth_an_analysis_by_klu_if_none_has_nearly_all_rows(split, library):
    n = 128
    A = flow(n).tolil()
    last = int(split * n) * n
    A[:last, last:] = 0
    A = as_csr(sp.csr_matrix(A))
    job = OrderingJob(A, aside=False)
    assert WHOLE_WORK * job.found()[2].nnz < job.found()[2].flops
    found = analysed(fl.SparseLU(), A, counted=True, job=job).library
    assert (found and found.name) == library


@klu
def test_klu_counts_first_where_a_symmetric_mesh_has_few_neighbours():
    few, more = as_csr(gallery.poisson5(60)), as_csr(bilinear(48))
    for A in (few, more):
        with A.unchanged(A.mirrored()):
            found = light_by_klu(A)
        assert (found is not None) == (A is few)
        assert found is None or (found.library.name == "klu" and found.arranged.rows is None)


@klu
def test_singular_updates_are_named():
    F = fl.SparseLU(backend="klu").factor(sp.identity(3, format="csr"))
    with pytest.raises(SingularMatrix) as error:
        F.update(sp.csr_matrix((np.array([1.0, 0.0, 1.0]), np.arange(3), np.arange(4)), shape=(3, 3)))
    del F, error
    gc.collect()  # nbklu must not be asked to free objects that it has not made


@klu
def test_solve_counts_what_columns_alone_would_hide():
    A = fl.as_csr(network(1500), diagonal=False)
    assert traits(A).paired < 0.5
    recipes = rungs(traits(A))["direct"].recipes
    assert recipes[0] == fl.SparseLU(backend="klu") and recipes[1].ordering == "colamd"
    solution = fl.solve(A, np.ones(A.shape[0]))
    assert solution.converged and "klu" in solution.recipe


@klu
@pytest.mark.parametrize("light", [True, False])
def test_solve_takes_klu_for_networks_with_gaps_if_its_count_is_light(monkeypatch, light):
    A = network(1500)
    A = A + 1e-3 * sp.csr_matrix((np.ones(A.nnz), A.indices, A.indptr)).T - 1e-3 * sp.identity(1500)  # with partners
    A = sp.csr_matrix(A - sp.diags(np.where(np.arange(1500) < 50, A.diagonal(), 0)))
    A.eliminate_zeros()
    first = rungs(traits(as_csr(A, diagonal=False)))["direct"].recipes
    assert [recipe.backend for recipe in first[:2]] == ["klu", "auto"] and first[1].ordering == "auto"
    monkeypatch.setattr("finelu.auto.cost.is_light", lambda fill: light)
    solution = fl.solve(A, np.ones(1500))
    assert solution.converged and solution.recipe == repr(first[0 if light else 1])


@klu
def test_memory_of_factors_that_are_gone_is_freed(monkeypatch):
    """nbklu frees nothing by itself."""
    made, closed = [], []
    monkeypatch.setattr(OF_KLU, "RECENT", Recent(0))  # which keeps no analysis
    for name, noted in (("__init__", made), ("close", closed)):
        own = getattr(nbklu.KLUSolver32Real, name)
        noting = lambda S, own=own, noted=noted, **how: noted.append(id(S)) or own(S, **how)  # noqa: E731
        monkeypatch.setattr(nbklu.KLUSolver32Real, name, noting)
    F = fl.SparseLU(backend="klu").factor(network())
    F.update(network())
    other = copy.copy(F)
    assert len(made) == 4 and not set(made) & set(closed)  # an analysis and factors, twice
    del F
    gc.collect()
    assert set(made) & set(closed) == set(made[:2])
    G = fl.SparseLU().factor(gallery.convection_diffusion(12))  # an analysis that is not taken
    gc.collect()
    assert set(made[4:]) <= set(closed) and len(made) == 6 and G.report.backend == "superlu"
    del other
    gc.collect()
    assert set(made) == set(closed)


@klu
def test_a_shift_fills_gaps_of_the_diagonal():
    A = sp.csr_matrix(([1.0, 2.0], ([0, 1], [0, 0])), shape=(2, 2))
    F = fl.SparseLU(backend="klu", shift=1e-6).factor(A)
    assert F.report.backend == "klu" and np.isfinite(F.solve(np.ones(2))).all()
    assert F.report.expected_nnz >= F.nnz >= 3


@klu
def test_an_analysis_is_taken_by_the_recipe_that_it_was_made_for_alone():
    A = fl.as_csr(network(3000), diagonal=False)
    costs = Ladder(A, 1e-8).costs
    costs.count_fill()
    first, *others = costs.rungs["direct"].recipes
    assert costs.known(first) is costs.analysis and costs.analysis.library is not None
    assert [costs.known(other) for other in others] == [None, None]
    empty = sp.csr_matrix(network(3000))
    empty.data[empty.indptr[7] : empty.indptr[8]] = 0
    empty.eliminate_zeros()
    costs = Ladder(fl.as_csr(empty, diagonal=False), 1e-8).costs
    costs.count_fill()
    *others, last = costs.rungs["direct"].recipes  # which takes a matching that is not complete
    assert costs.counted and not costs.by_columns and costs.known(last) is costs.analysis is not None
    assert [costs.known(other) for other in others] == [None, None]


@klu
def test_no_room_for_an_analysis_leaves_the_direct_solve_out(meanwhile):
    def full(*_):
        raise nbklu.KLUOutOfMemoryException

    meanwhile(nbklu.KLUSolver32Real, analyze=full)
    meanwhile(OF_KLU, RECENT=Recent(0))
    costs = Ladder(fl.as_csr(network(3000), diagonal=False), 1e-8).costs
    costs.count_fill()
    assert costs.counted and costs.seconds("direct") == np.inf
    with pytest.raises(MemoryError, match="KLU"):
        fl.SparseLU(backend="klu").factor(network())


@pytest.mark.parametrize(("library", "extra"), [("klu", "direct"), ("feral", "direct"), ("pardiso", "mkl")])
def test_what_is_not_installed_is_named_and_auto_does_without(without, library, extra):
    without(library)
    A = gallery.poisson7(14)
    with pytest.raises(ParameterError, match=rf"pip install 'finelu\[{extra}\]'") as error:
        fl.SparseLU(backend=library).factor(A)
    one_line(error)
    without("klu", "feral", "pardiso")
    assert fl.SparseLU().factor(A).report.backend == fl.SparseLU().factor(network()).report.backend == "superlu"
    assert rungs(traits(fl.as_csr(network(), diagonal=False)))["direct"].recipes[0].ordering == "colamd"


def test_a_backend_that_is_none():
    with pytest.raises(ParameterError) as error:
        fl.SparseLU(backend="umfpack").factor(network())
    assert "superlu" in one_line(error)


def indefinite(n=14):
    """Real symmetric, of both signs, with gaps on the diagonal."""
    return sp.csr_matrix(gallery.stokes(n) + sp.diags(np.r_[np.zeros(gallery.stokes(n).shape[0] - 1), 1.0]))


@ldl
@pytest.mark.parametrize("trans", ["N", "T", "H"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("A", [gallery.poisson7(9), indefinite()], ids=["definite", "indefinite"])
def test_feral_solves_symmetric_systems_in_every_direction(A, dtype, trans):
    A = A.astype(dtype)
    F = fl.SparseLU(backend="feral").factor(A)
    assert F.report.backend == "feral" and F.report.expected_nnz == with_little_fill(A, "amd")[1].nnz
    assert A.shape[0] <= F.nnz <= F.report.expected_nnz * 2 and F.report.trial_residual < 1e4 * np.finfo(dtype).eps
    solves_in(F, A, trans)


@ldl
@PATTERNS
@given(A=dominant_matrices(), ordering=st.sampled_from(["auto", "amd", "nd"]), shift=st.sampled_from([0.0, 0.25]))
def test_feral_with_every_ordering(A, ordering, shift):
    A = sp.csr_matrix(A + A.T)
    F = fl.SparseLU(backend="feral", ordering=ordering, shift=shift).factor(A)
    b = np.arange(1.0, A.shape[0] + 1)
    for S in (A, 2 * A):
        want = S.toarray() + shift * np.diag(S.diagonal())
        assert_close(F.update(S).solve(b), np.linalg.solve(want, b), ulps=1e5)


@ldl
def test_auto_takes_feral_for_symmetric_matrices_that_take_much_work():
    light, heavy = gallery.poisson5(50), gallery.poisson7(14)
    assert heavy.shape[0] > 2000 < light.shape[0]
    assert fl.SparseLU().factor(heavy).report.backend == "feral" != fl.SparseLU().factor(light).report.backend
    for recipe in (fl.SparseLU(ordering="mmd"), fl.SparseLU(matching=True), fl.SparseLU(shift=1e-9)):
        assert recipe.factor(heavy).report.backend == "superlu"
    for A in (heavy.astype(complex), gallery.convection_diffusion(14)):
        assert fl.SparseLU().factor(A).report.backend == "superlu"
    costs = Ladder(fl.as_csr(heavy), 1e-8).costs
    costs.count_fill()
    first = costs.rungs["direct"].recipes[0]
    assert costs.known(first) is costs.analysis and costs.analysis.library.name == "feral"


@ldl
def test_an_update_that_is_not_symmetric_is_refused_or_left_to_superlu():
    A, b = gallery.poisson7(14), np.ones(2744)
    other = sp.csr_matrix(A, copy=True)
    other.data[1] *= 1.5
    F, G = fl.SparseLU().factor(A), fl.SparseLU(backend="feral").factor(A)
    assert F.report.backend == G.report.backend == "feral"
    F.update(other)
    assert F.report.backend == "superlu" and np.linalg.norm(other @ F.solve(b) - b) < 1e-8
    with pytest.raises(MatrixError, match=r"not symmetric; backend='superlu'") as error:
        G.update(other)
    one_line(error)
    with pytest.raises(NoFactors):
        G.solve(b)
    assert np.linalg.norm(A @ G.update(A).solve(b) - b) < 1e-8


@ldl
def test_auto_leaves_what_is_symmetric_but_for_more_than_rounding_to_superlu():
    A = sp.csr_matrix(sp.block_diag([1e8 * sp.identity(1), gallery.poisson7(14)]))
    assert fl.SparseLU().factor(A).report.backend == "feral"
    A.data[2] *= 1 + 1e-12  # nothing compared with the largest entry
    assert fl.SparseLU().factor(A).report.backend == "superlu"
    assert fl.SparseLU(backend="feral").factor(A).report.backend == "feral"


@ldl
def test_factors_that_live_to_the_end_of_a_process_leave_quietly():
    text = """
import finelu as fl, numpy as np
A = fl.gallery.poisson7(10)
F, G = (fl.SparseLU(backend="feral").factor(A) for _ in range(2))
F.again = F  # a cycle
print(abs(A @ F.solve(np.ones(1000)) - 1).max() < 1e-10)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


@ldl
def test_a_matrix_takes_the_analysis_of_one_before_it_and_with_the_same_bits_if_all_are_definite(monkeypatch):
    A = gallery.poisson7(9)
    scales = 10.0 ** np.random.default_rng(0).uniform(-3, 3, (3, A.shape[0]))
    others = [sp.csr_matrix(sp.diags(d) @ A @ sp.diags(d)) for d in scales]
    indefinite_one, b = sp.csr_matrix(A - 2.0 * sp.identity(A.shape[0])), np.ones(A.shape[0])
    recipe, made = fl.SparseLU(backend="feral"), []

    def solved(S):
        F = recipe.factor(S)
        made.append(F._lu._state.box)
        return F.solve(b)

    kept = [solved(S) for S in (A, *others, indefinite_one, A)]
    assert all(box is made[0] for box in made)
    for S, x in zip((A, *others), kept[:4], strict=True):
        monkeypatch.setattr("finelu.preconditioners.direct.feral.RECENT", Recent())
        assert (solved(S) == x).all()
    for S, x in ((indefinite_one, kept[4]), (A, kept[5])):
        assert np.linalg.norm(S @ x - b) < 1e-12 * np.linalg.norm(b)


@ldl
def test_a_solver_of_feral_that_fails_for_other_values_gives_way_to_a_new_one(monkeypatch):
    A, recipe = gallery.poisson7(9), fl.SparseLU(backend="feral")
    F, own, failed = recipe.factor(A), LDL._factored, []

    def once(self, box):
        if not failed:
            failed.append(box)
            raise FineluError("SparseLU: feral gave up: a panic")
        return own(self, box)

    monkeypatch.setattr(LDL, "_factored", once)
    b = np.ones(A.shape[0])
    assert np.linalg.norm(2 * A @ F.update(2 * A).solve(b) - b) < 1e-12 and F._lu._state.box is not failed[0]


@ldl
def test_an_interrupt_of_feral_is_one():
    text = """
import finelu as fl, os, signal, threading
from finelu.preconditioners.direct import feral
fl.SparseLU(backend="feral").factor(fl.gallery.poisson7(6))
own = feral.LDL._factored
feral.LDL._factored = lambda self, box: os.kill(os.getpid(), signal.SIGINT) or own(self, box)
try:
    fl.SparseLU(backend="feral").factor(fl.gallery.poisson7(16))
except KeyboardInterrupt:
    print("interrupted")
"""
    assert ended(text) == (0, "interrupted\n", "")


@pytest.mark.parametrize(
    ("backend", "A", "ulps"),
    [
        pytest.param("klu", network(2000), 0, marks=klu),
        pytest.param("feral", gallery.poisson7(12), 1e3, marks=ldl),
        pytest.param("pardiso", gallery.poisson7(12), 1e3, marks=blocks),
    ],
    ids=["klu", "feral", "pardiso"],
)
def test_copies_and_threads(backend, A, ulps):
    F = fl.SparseLU(backend=backend).factor(A)
    b = np.random.default_rng(2).standard_normal((A.shape[0], 16))
    want = F.solve(b)
    for other in (copy.copy(F), pickle.loads(pickle.dumps(F))):
        assert_close(other.solve(b), want, ulps)
        assert other.report.backend == backend
        assert_close(2 * other.update(2 * A).solve(b), want, ulps=1e5)
    assert_close(F.solve(b), want, ulps)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda k: F.solve(b[:, k]), range(16)))
    assert_close(np.column_stack(found), want, ulps)


@BY_BLOCKS
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_child_has_factors_of_its_own(backend):
    A, b = gallery.poisson7(8), np.ones(512)
    F = fl.SparseLU(backend=backend).factor(A)
    child = os.fork()
    if child == 0:
        solved = abs(A @ F.solve(b) - b).max() < 1e-10
        updated = abs(2 * A @ F.update(2 * A).solve(b) - b).max() < 1e-10
        os._exit(0 if solved and updated else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert abs(A @ F.solve(b) - b).max() < 1e-10


GAP = sp.csr_matrix(np.array([[1.0, 2, 0], [0, 0, 0], [0, 1, 3]]))
EQUAL = sp.csr_matrix(np.array([[1.0, 1, 0], [1, 1, 0], [0, 0, 3]]))
COLUMN = sp.csr_matrix(np.array([[1.0, 2, 0], [1, 3, 0], [0, 2, 0]]))


@pytest.mark.parametrize(
    ("backend", "recipe", "A", "kind", "words"),
    [
        pytest.param("feral", {}, GAP.astype(complex), ParameterError, "takes real matrices", marks=ldl),
        pytest.param("feral", {}, gallery.convection_diffusion(6), MatrixError, "not symmetric", marks=ldl),
        pytest.param("feral", {}, EQUAL, SingularMatrix, "singular", marks=ldl),
        pytest.param("pardiso", {}, GAP, StructurallySingular, "singular", marks=blocks),
        pytest.param("pardiso", {}, COLUMN, StructurallySingular, "singular", marks=blocks),
        pytest.param("klu", {}, GAP, StructurallySingular, "singular", marks=klu),
        pytest.param("klu", {}, EQUAL, SingularMatrix, "singular", marks=klu),
        *(
            pytest.param(backend, recipe, gallery.poisson5(6), ParameterError, words, marks=mark)
            for backend, mark in (("feral", ldl), ("pardiso", blocks))
            for recipe, words in (
                ({"matching": True}, "takes no matching=True"),
                ({"ordering": "rcm"}, "takes no ordering='rcm'"),
            )
        ),
    ],
)
def test_what_a_library_cannot_take_is_named(backend, recipe, A, kind, words):
    with pytest.raises(kind, match=words) as error:
        fl.SparseLU(backend=backend, **recipe).factor(A)
    one_line(error)
    del error
    gc.collect()  # before another test has no PARDISO


def skew(A):
    """A with phases, Hermitian still."""
    above = sp.triu(A, 1).tocsr()
    above.data = above.data * np.exp(1j * np.arange(above.nnz))
    return sp.csr_matrix(above + above.conj().T + sp.diags(A.diagonal()))


@blocks
@pytest.mark.parametrize("trans", ["N", "T", "H"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("A", "symmetric"),
    [(gallery.poisson7(9), True), (indefinite(), True), (gallery.convection_diffusion(9), False)],
    ids=["definite", "indefinite", "general"],
)
def test_pardiso_solves_in_every_dtype_and_direction(A, symmetric, dtype, trans):
    if np.dtype(dtype).kind == "c":
        A = skew(A) if symmetric else sp.csr_matrix(A * 1j + sp.triu(A, 1))
    A = A.astype(dtype)
    F = fl.SparseLU(backend="pardiso").factor(A)
    assert (
        F.report.backend == "pardiso"
        and F.report.warning is None
        and F.report.trial_residual < 1e3 * np.finfo(dtype).eps
    )
    with_both = fl.SparseLU(backend="superlu").factor(A).nnz
    assert F.nnz < 0.8 * with_both if symmetric else F.nnz > 0.8 * with_both
    solves_in(F, {"N": A, "T": A.T, "H": A.conj().T}[trans], trans)


@blocks
@PATTERNS
@given(A=dominant_matrices(), ordering=st.sampled_from(["auto", "mmd", "nd"]), symmetric=st.booleans())
def test_pardiso_with_every_ordering_and_new_values(A, ordering, symmetric):
    A = sp.csr_matrix(A + A.T) if symmetric else A
    F = fl.SparseLU(backend="pardiso", ordering=ordering).factor(A)
    b = np.arange(1.0, A.shape[0] + 1)
    for S in (A, 2 * A, -A, perturbed(A)):  # the last two: no longer definite, and no longer symmetric
        assert_close(F.update(S).solve(b), np.linalg.solve(S.toarray(), b), ulps=1e5)


@blocks
def test_auto_takes_pardiso_where_much_work_is_counted(without):
    without("klu")
    light, heavy, wind = gallery.poisson5(50), gallery.poisson7(14), gallery.convection_diffusion(16)
    assert [fl.SparseLU().factor(A).report.backend for A in (light, heavy, wind)] == ["superlu", "pardiso", "pardiso"]
    for recipe in (fl.SparseLU(ordering="mmd"), fl.SparseLU(matching=True), fl.SparseLU(shift=1e-9)):
        assert recipe.factor(heavy).report.backend == "superlu"
    costs = Ladder(fl.as_csr(wind), 1e-8).costs
    costs.count_fill()
    first = costs.rungs["direct"].recipes[0]
    assert costs.known(first) is costs.analysis and costs.analysis.library.name == "pardiso"
    moved = sp.csr_matrix(wind)[np.roll(np.arange(4096), 1)]  # its diagonal is weak or missing
    assert fl.SparseLU().factor(moved).report.backend == "superlu"


@blocks
def test_factors_of_pardiso_follow_what_values_are():
    A, b = gallery.poisson7(16), np.ones(4096)
    other = sp.csr_matrix(A, copy=True)
    other.data[1] *= 1.5
    F = fl.SparseLU().factor(A)
    symmetric = F.nnz
    F.update(other)
    assert F.report.backend == "pardiso" and F.nnz > 1.5 * symmetric
    assert np.linalg.norm(other @ F.solve(b) - b) < 1e-8


@blocks
def test_pivots_that_pardiso_replaces_are_reported_or_left_to_superlu():
    """Rows that are equal up to rounding: no exchange inside of a block helps."""
    A = sp.csr_matrix(np.array([[1.0, 1, 0], [1, 1 - 4e-16, 0], [0, 0, 3]]))
    F = fl.SparseLU(backend="pardiso").factor(A)
    assert "replaced 1 pivots; backend='superlu'" in F.report.warning
    A = sp.csr_matrix(sp.block_diag([A, gallery.convection_diffusion(14)]))
    F = fl.SparseLU().factor(A)
    assert F.report.backend == "superlu"
    b = A @ np.ones(A.shape[0])
    assert np.linalg.norm(A @ F.solve(b) - b) < 1e-10 * np.linalg.norm(b)


@pytest.fixture
def begun(meanwhile, without):
    """(kind, whether by the order that was given, pivots replaced) of each analysis by PARDISO."""
    seen, begin = [], pardiso._Called._begun

    def noted(called, kind, require_room, *, given):
        made = begin(called, kind, require_room, given=given)
        seen.append((kind, given, called.replaced))
        return made

    meanwhile(pardiso._Called, _begun=noted)
    without("klu")  # which would be asked before
    return seen


@blocks
def test_pardiso_takes_the_order_of_the_count_unless_a_dissection_pays_or_the_diagonal_is_weak(begun):
    stokes, wind = gallery.stokes(40), gallery.convection_diffusion(16)
    indefinite = sp.csr_matrix(gallery.poisson5(110) - 0.3 * sp.identity(12_100))
    for A, kinds in (
        (gallery.poisson5(110), [pardiso.DEFINITE]),
        (indefinite, [pardiso.DEFINITE, pardiso.INDEFINITE]),
        (wind, [pardiso.GENERAL]),
        (gallery.poisson7(20), [pardiso.DEFINITE]),
        (stokes, [pardiso.INDEFINITE]),
    ):
        pardiso.RECENT.__init__()
        begun.clear()
        F, b = fl.SparseLU().factor(A), np.ones(A.shape[0])
        given = A.shape[0] in (12_100, wind.shape[0])
        assert begun == [(kind, given, 0) for kind in kinds] and F.report.backend == "pardiso"
        assert not given or F.report.expected_nnz / 2 < F.nnz <= 1.3 * F.report.expected_nnz
        assert np.allclose(pickle.loads(pickle.dumps(F)).solve(b), F.solve(b), rtol=1e-9)
        for S in (A, 2 * A):
            assert np.linalg.norm(S @ F.update(S).solve(b) - b) < 1e-9 * np.linalg.norm(b)


@blocks
def test_pivots_that_are_too_small_for_pardiso_in_a_given_order_are_matched(begun):
    A = gallery.stokes(40)
    columns, b = Columns(A.indptr, A.indices, A.data, A.shape), A @ np.ones(A.shape[0])  # symmetric
    made = pardiso.Pardiso(columns, pardiso.MINIMUM_DEGREE, "hermitian", fl.ordering.amd(A)).factor(columns, str)
    (first, given, replaced), (then, again, left) = begun
    assert first == then == pardiso.INDEFINITE and given and not again and replaced > 0 == left == made.replaced
    assert np.linalg.norm(A @ made.solve(b, "N") - b) < 1e-12 * np.linalg.norm(b)


@blocks
@pytest.mark.parametrize("kind", ["hermitian", "transposed"])
def test_an_order_whose_pivots_pardiso_replaced_is_not_taken_twice_for_new_values(begun, kind):
    S = gallery.stokes(40)
    gaps = sp.diags((S.diagonal() == 0).astype(float))
    strong = sp.csr_matrix(S * (1 + 0.5j if kind == "transposed" else 1.0) - 10.0 * gaps)
    weak = strong.copy()
    weak.setdiag(S.diagonal() * strong[0, 0] / S[0, 0])
    of = {"hermitian": pardiso.INDEFINITE, "transposed": pardiso.COMPLEX_SYMMETRIC}[kind]
    first, second = (Columns(A.indptr, A.indices, A.data, A.shape) for A in (strong, weak))
    made = pardiso.Pardiso(first, pardiso.MINIMUM_DEGREE, kind, fl.ordering.amd(strong)).factor(first, str)
    assert begun == [(of, True, 0)]
    made.factor(second, str)
    assert [given for _, given, _ in begun] == [True, False] and begun[1][0] == of
    b = weak @ np.ones(S.shape[0], weak.dtype)
    assert np.linalg.norm(weak @ made.solve(b, "N") - b) < 1e-10 * np.linalg.norm(b)


@blocks
def test_memory_of_pardiso_is_freed(calls_of):
    freed = calls_of(pardiso._Called, "free")
    F = fl.SparseLU(backend="pardiso").factor(gallery.poisson7(16))
    A = sp.csr_matrix(np.array([[1.0, 1, 0], [1, 1 - 4e-16, 0], [0, 0, 3]]))
    G = fl.SparseLU(backend="pardiso").factor(A)
    assert G._lu.replaced
    freed.clear()
    del G  # an analysis that makes no good factors is not kept
    gc.collect()
    assert len(freed) == 1
    phases = calls_of(pardiso._Called, "_call")
    del F
    gc.collect()
    assert len(freed) == 1 and [phase for _, phase, *_ in phases] == [pardiso.FREE_FACTORS]  # its analysis is kept
    pardiso.RECENT.__init__()
    gc.collect()
    assert [phase for _, phase, *_ in phases] == [pardiso.FREE_FACTORS, pardiso.FREE]


@blocks
@pytest.mark.parametrize(
    ("recipe", "A", "has_same_bits"),
    [
        (fl.SparseLU(), gallery.poisson7(16), True),
        (fl.SparseLU(backend="pardiso"), gallery.poisson7(16), True),
        (fl.SparseLU(), sp.csr_matrix(0.2 * sp.identity(12_100) - gallery.poisson5(110)), True),
        (fl.SparseLU(), sp.csr_matrix(gallery.poisson7(16) - 1.5 * sp.identity(16**3)), False),
        (fl.SparseLU(backend="pardiso"), gallery.convection_diffusion(16), False),
    ],
    ids=["definite", "definite, own order", "negative", "not definite", "general"],
)
def test_factors_by_pardiso_take_the_analysis_of_others_of_their_pattern(
    calls_of, without, threads, recipe, A, has_same_bits
):
    without("klu")
    threads(1)  # on several the bits of PARDISO differ from run to run
    rng = np.random.default_rng(0)
    b, d = rng.standard_normal(A.shape[0]), sp.diags(rng.uniform(0.5, 2, A.shape[0]))
    B = sp.csr_matrix(d @ A @ d)
    first = recipe.factor(B).solve(b)
    pardiso.RECENT.__init__()
    F = recipe.factor(A)
    kept = F.solve(b)
    alive = recipe.factor(B)  # while F has the analysis
    far = wild(A) if not has_same_bits and recipe.backend == "pardiso" else None
    calls = calls_of(pardiso._Called, "_call")
    assert F.report.backend == "pardiso" and np.array_equal(alive.solve(b), first)
    assert np.array_equal(F.solve(b), kept)
    del F, alive
    gc.collect()
    calls.clear()
    again = recipe.factor(B)
    assert pardiso.ANALYSE not in [phase for _, phase, *_ in calls]
    assert np.array_equal(again.solve(b), first) or not has_same_bits  # scaled and matched by the values of A
    assert again.report.backward_error < 1e-13 and np.linalg.norm(again.solve(b) - first) < 1e-9 * np.linalg.norm(first)
    if far is not None:  # values that the scaling and the matching of those before do not fit
        del again
        gc.collect()
        calls.clear()
        last = recipe.factor(far)
        assert pardiso.ANALYSE in [phase for _, phase, *_ in calls]  # from nothing
        assert last.report.tried is None and errors(far, last.solve(b), b) < 1e-12


@blocks
def test_threads_of_pardiso_are_as_many_as_finelu_has_at_its_analysis_and_do_not_wait(meanwhile):
    openmp, seen, at = pardiso._openmp(), [], pardiso._at

    def looked_at(array):  # inside of a call
        seen.append((mkl().MKL_Get_Max_Threads(), openmp.kmp_get_blocktime()))
        return at(array)

    before = mkl().MKL_Get_Max_Threads(), openmp.kmp_get_blocktime()
    meanwhile(pardiso, _at=looked_at)
    try:
        for count, later in ((1, 2), (2, 1)):
            seen.clear()
            fl.set_num_threads(count)
            F = fl.SparseLU(backend="pardiso").factor(gallery.poisson7(20))
            fl.set_num_threads(later)
            F.update(gallery.poisson7(20))  # MKL ends the process if it has fewer threads than at its analysis
            assert set(seen) == {(count, 0)}
            del F
    finally:
        fl.set_num_threads(available_cores())
    assert (mkl().MKL_Get_Max_Threads(), openmp.kmp_get_blocktime()) == before


@blocks
@pytest.mark.parametrize("work", [None, pardiso.ALONE_WORK, 2 * pardiso.ALONE_WORK])
def test_pardiso_works_on_one_thread_where_there_is_little_work(meanwhile, work):
    seen, threads = [], pardiso._threads
    meanwhile(pardiso, _threads=lambda library, count: seen.append(count) or threads(library, count))
    fl.set_num_threads(2)
    try:
        for A in (gallery.poisson5(40), gallery.poisson5(80)):
            S = sp.csc_matrix(A)
            columns = Columns(S.indptr, S.indices, S.data, S.shape)
            pardiso.Pardiso(columns, pardiso.DISSECTION, "hermitian", None, work).factor(columns, str)
    finally:
        fl.set_num_threads(fl.threads.available_cores())
    expected = {1} if work == pardiso.ALONE_WORK else {2} if work else {1, 2}  # without a count the entries decide
    assert set(seen) == expected


@blocks
def test_updates_by_pardiso_that_fail_leave_nothing_behind(pardiso_fails):
    A, b = gallery.convection_diffusion(14), np.ones(14**3)
    zero = sp.csr_matrix(A, copy=True)
    zero.data[zero.indptr[5] : zero.indptr[6]] = 0
    F = fl.SparseLU(backend="pardiso").factor(A)
    with pytest.raises(StructurallySingular, match="row 5"):
        F.update(zero)
    assert np.linalg.norm(A @ F.update(A).solve(b) - b) < 1e-8
    for fault in (-2, lambda: int("one")):  # no memory; any other
        pardiso_fails(fault)
        with pytest.raises((FineluError, ValueError)):
            F.update(2 * A)
        pardiso_fails(None)
        assert np.linalg.norm(A @ F.update(A).solve(b) - b) < 1e-8


@pytest.mark.parametrize("backend", ["klu", "feral", "pardiso"])
def test_factors_of_every_library_count_as_memory(backend):
    A = gallery.poisson7(8)
    try:
        F = fl.SparseLU(backend=backend).factor(A)
    except ParameterError:
        pytest.skip("it is not installed")
    assert held_bytes(F, fl.as_csr(A)) >= 12 * F.nnz


@blocks
@pytest.mark.parametrize("recipe", [fl.SparseLU(), fl.SparseLU(backend="pardiso")], ids=["given order", "matched"])
def test_values_far_from_those_before_lose_no_digits_by_pardiso(begun, recipe):
    rng = np.random.default_rng(5)
    A = gallery.convection_diffusion(16)
    F, other = recipe.factor(A), sp.csr_matrix(A, copy=True)
    other.data = rng.standard_normal(other.nnz)
    other.setdiag(1e-6 * other.diagonal())
    b = rng.standard_normal(A.shape[0])
    F.update(other)
    assert begun[0] == (pardiso.GENERAL, recipe.backend == "auto", 0)
    assert np.linalg.norm(other @ F.solve(b) - b) < 1e-9 * np.linalg.norm(b)
    assert F.solve(np.ones((A.shape[0], 0))).shape == (A.shape[0], 0)


@blocks
def test_pardiso_takes_the_triangle_of_a_complex_symmetric_matrix_for_as_long_as_it_is_one(begun):
    A = gallery.helmholtz(30, 10.0)
    assert abs(A - A.T).max() == 0 < abs(A - A.conj().T).max()
    F, b = fl.SparseLU(backend="pardiso").factor(A), values(A.shape[0], "complex128")
    assert F.nnz < 0.8 * fl.SparseLU(backend="superlu").factor(A).nnz and F.report.backward_error < 1e-14
    hermitian, general = A + A.conj().T, sp.csr_matrix(A + 0.1j * sp.triu(A, 1))
    for S, kind in ((A, pardiso.COMPLEX_SYMMETRIC), (hermitian, pardiso.OF_COMPLEX[pardiso.INDEFINITE]), (general, 13)):
        F.update(S)
        assert begun[-1][0] == kind
        for trans, op in (("N", S), ("T", S.T), ("H", S.conj().T)):
            assert np.linalg.norm(op @ F.solve(b, trans) - b) < 1e-10 * np.linalg.norm(b)


@blocks
@pytest.mark.parametrize("weak", [False, True], ids=["diagonal", "gaps"])
def test_auto_takes_pardiso_for_a_complex_symmetric_matrix(weak):
    A = sp.csr_matrix(gallery.poisson7(12) + 1j * sp.identity(12**3))
    if weak:
        n = A.shape[0]
        A = sp.csr_matrix(sp.block_array([[sp.identity(n) * 1e-9j, A], [A, None]]))
    B = values((A.shape[0], 3), "complex128")
    F = fl.SparseLU().factor(A)
    assert F.report.backend == "pardiso" and F.report.warning is None and F.report.backward_error < 1e-12
    assert np.linalg.norm(A @ F.solve(B) - B) < 1e-9 * np.linalg.norm(B)


@blocks
def test_pardiso_does_not_try_again_what_was_not_definite(calls_of):
    A = sp.csr_matrix(gallery.poisson7(12) - 1.5 * sp.identity(12**3))
    F = fl.SparseLU(backend="pardiso").factor(A)
    calls = calls_of(pardiso._Called, "_call")
    F.update(1.01 * A)
    phases = [phase for _, phase, *_ in calls]
    assert phases[0] == pardiso.FACTOR and pardiso.ANALYSE not in phases


@blocks
@klu
def test_blocks_of_a_triangular_form_go_to_klu_even_with_pardiso():
    """A count of the whole pattern, which does not see them, is large."""
    rng = np.random.default_rng(3)
    diagonal = sp.block_diag([gallery.tridiagonal(10)] * 400)
    A = sp.csr_matrix(diagonal + sp.triu(sp.random(4000, 4000, 2e-3, random_state=rng), 11))
    C = fl.as_csr(A, diagonal=False)
    job = OrderingJob(C, aside=False)
    assert job.found()[2].flops > 1e4 * A.shape[0]
    assert analysed(fl.SparseLU(), C, job=job).library.name == "klu" == analysed(fl.SparseLU(), C).library.name


@klu
def test_klu_is_asked_first_where_a_matrix_is_like_a_circuit(monkeypatch):
    """Then A is not ordered in another way, and a count takes what KLU takes."""
    wind, grid = gallery.convection_diffusion(60, 60, 1), gallery.poisson5(60)
    for A, first in ((wind, True), (grid, True), (bilinear(48), False)):
        costs = Ladder(fl.as_csr(A), 1e-8).costs
        costs.order()
        assert (costs.job is None) is first and costs.counting() == 0
        costs.count_fill()
        assert costs.analysis.library.name == "klu" and costs.fill.nnz > A.nnz
        assert costs.analysis.library.how[0] == (AMD if first else GIVEN)  # KLU takes an order that was counted


@klu
def test_klu_orders_few_rows_by_itself_where_another_library_may_be_wanted(calls_of):
    """Its own count takes less time than ours, and tells whether that library is."""
    ordered = calls_of(OrderingJob, "_here")
    A, heavy = gallery.poisson5(30), gallery.poisson7(12)
    assert fl.SparseLU().factor(A).report.backend == "klu" and not ordered
    assert fl.SparseLU().factor(bilinear(48)).report.backend == "klu"
    assert bool(ordered) is may_be_by_blocks(fl.as_csr(A), symmetric=True, real=True)  # of more rows it may pay
    assert fl.SparseLU().factor(heavy).report.backend != "klu"


# Dense rows, and patterns without a full structural rank, which `solve` counts with KLU and PARDISO there


@klu
def test_klu_is_not_asked_first_for_a_system_with_a_dense_border():
    A = bordered(60)
    first, *_ = rungs(traits(fl.as_csr(A, diagonal=False)))["direct"].recipes
    F = first.factor(A)
    assert first == fl.SparseLU() and F.nnz <= 1.05 * F.report.expected_nnz
    assert fl.SparseLU(backend="klu").factor(A).nnz > 1.5 * F.report.expected_nnz  # its rows are exchanged
    solution = fl.solve(A, np.random.default_rng(0).standard_normal(A.shape[0]))
    assert solution.converged and "klu" not in solution.recipe


@blocks
def test_pardiso_takes_the_order_that_was_counted_for_a_system_with_a_dense_border():
    A = bordered(120)
    F = fl.SparseLU().factor(A)
    assert F.report.backend == "pardiso" and F.nnz <= F.report.expected_nnz
    b = np.random.default_rng(0).standard_normal(A.shape[0])
    assert np.linalg.norm(A @ F.solve(b) - b) <= 1e-9 * np.linalg.norm(b)


@klu
def test_the_count_goes_on_after_klu_has_found_no_full_structural_rank():
    n, rng = 2000, np.random.default_rng(21)
    i, j = rng.integers(2, n, 10 * n), rng.integers(0, n, 10 * n)
    A = sp.csr_matrix((np.r_[rng.random(i.size), 1.0, 1.0], (np.r_[i, 0, 1], np.r_[j, 5, 5])), shape=(n, n))
    matrix = fl.as_csr(A, diagonal=False)
    found = traits(matrix)
    costs = Costs(matrix, found, rungs(found), None, np.inf)
    assert costs.rungs["direct"].recipes[0].backend == "klu"
    costs.count_fill()
    assert costs.known(costs.rungs["direct"].recipes[-1]) is costs.analysis is not None
    assert costs.fill.nnz > 20 * A.nnz and costs.seconds("direct") > RATES.columnwise * A.nnz  # without a count
    assert fl.solve(A, A @ np.ones(n)).converged


@blocks
def test_mkl_is_found_without_the_search_of_pypardiso():
    code = (
        "import sys; from finelu.preconditioners.direct.pardiso import mkl; found = mkl(); "
        "print('pypardiso' in sys.modules); import pypardiso; print(found._name == pypardiso.ps.libmkl._name)"
    )
    assert ended(code) == (0, "False\nTrue\n", "")
    assert ended(code, PYPARDISO_MKL_RT=mkl()._name) == (0, "True\nTrue\n", "")  # the user's choice


@klu
@pytest.mark.parametrize("growth", [1.0, 50.0, 5e4])
def test_klu_keeps_pivots_off_the_diagonal_while_they_are_large_enough(calls_of, growth):
    n = 900
    rows = np.arange(n)
    swapped = rows % 9 < 2
    rows[::9], rows[1::9] = rows[1::9], rows[::9].copy()
    A = sp.csr_matrix(gallery.random_dominant(n, 0.003, seed=5)[rows] + 1e-3 * sp.identity(n))
    OF_KLU.RECENT.__init__()
    F, b = fl.SparseLU(backend="klu").factor(A), np.ones(n)
    assert F._lu._solver.common.noffdiag > 0 and F.nnz >= OF_KLU.WORTH
    made = calls_of(nbklu.KLUSolver32Real, "factor")
    other = sp.csr_matrix(sp.diags(np.where(swapped, 1 / growth, 1.0)) @ A)  # L grows in columns of these pivots
    assert np.linalg.norm(other @ F.update(other).solve(b) - b) < 1e-9 * np.linalg.norm(b)
    assert bool(made) == (growth > 100)


@klu
@pytest.mark.parametrize(("m", "stands"), [(0.4, True), (3.0, False)])
def test_klu_keeps_pivots_off_the_diagonal_only_if_u_does_not_grow(calls_of, m, stands):
    F = fl.SparseLU(backend="klu").factor(cliques(0.3, swapped=True))
    assert F._lu._solver.common.noffdiag > 0 and F.nnz >= OF_KLU.WORTH
    A = cliques(m, swapped=True)
    made = calls_of(nbklu.KLUSolver32Real, "factor")
    b = np.random.default_rng(1).standard_normal(A.shape[0])
    assert errors(A, F.update(A).solve(b), b) < 1e-12 and bool(made) != stands


def cliques(m, *, swapped, count=90, width=12):
    """Cliques (n, n) that are joined to one hub: below the diagonal, in the order in which KLU takes the columns, -m
    everywhere, so that U grows like (1 + m)^10 without exchanges of rows, and L like m.

    swapped : whether a diagonal entry is so small that a pivot is off the diagonal.
    """
    n = count * width + 1
    pattern = sp.block_diag([np.ones((width, width))] * count + [[[1.0]]], format="lil")
    pattern[n - 1, :] = 1
    pattern[:, n - 1] = 1
    C = sp.csc_matrix(pattern)
    plain = sp.csc_matrix((np.where(C.tocoo().row == C.tocoo().col, 1.0, 1e-3), C.indices, C.indptr), C.shape)
    columns = Columns(plain.indptr.astype(np.int32), plain.indices.astype(np.int32), plain.data, plain.shape)
    place = np.argsort(KLU(columns, AMD).factor(columns, str)._solver.extract()["Q"])
    OF_KLU.RECENT.__init__()
    C = C.tocoo()
    inner = (C.row < n - 1) & (C.col < n - 1) & (C.row != C.col)
    by_clique = place[: n - 1].reshape(count, width)
    first, last = (pick(by_clique, axis=1) + width * np.arange(count) for pick in (np.argmin, np.argmax))
    data = np.where(C.row == C.col, 1.0, 1e-280)
    data[inner & (place[C.row] > place[C.col])] = -m
    data[inner & np.isin(C.col, last)] = 1.0
    if swapped:
        data[(C.row == first[0]) & (C.col == first[0])] = 1e-6
    A = sp.csr_matrix((data, (C.row, C.col)), C.shape)
    A.sort_indices()
    return A


def errors(A, x, b):
    return np.max(abs(b - A @ x) / (abs(A) @ abs(x) + abs(b)))


def wild(A, seed=0):
    """A with values that have other sizes and signs."""
    rng = np.random.default_rng(seed)
    A = sp.csr_matrix(A, copy=True)
    A.data *= 10.0 ** rng.uniform(-5, 5, A.nnz) * rng.choice([-1, 1], A.nnz)
    return A


@pytest.fixture
def any_pivots(monkeypatch):
    """KLU takes pivots off the diagonal again, however bad they are."""
    for name, limit in (("STANDS_OFF_DIAGONAL", np.inf), ("GROWN", np.inf), ("LEAST", 0.0)):
        monkeypatch.setattr(OF_KLU, name, limit)


def earlier_and_next(backend):
    """Two matrices of a pattern; the analysis and pivots of the first do not fit the second."""
    if backend == "klu":
        return cliques(0.3, swapped=True), cliques(500.0, swapped=False)
    A = gallery.convection_diffusion(12) if backend == "pardiso" else gallery.poisson7(9) - 2.0 * sp.identity(9**3)
    return sp.csr_matrix(A), wild(A) if backend == "pardiso" else sp.csr_matrix(A * 3 + 0.1 * sp.identity(9**3))


def keep_of(recipe, A):
    """Keep only what factors of A leave."""
    OF_KLU.RECENT.forget()
    recipe.factor(A)
    gc.collect()


EARLIER = pytest.mark.parametrize(
    "backend",
    [pytest.param("klu", marks=klu), pytest.param("feral", marks=ldl), pytest.param("pardiso", marks=blocks)],
    ids="{}, from earlier values".format,
)


@klu
def test_updates_with_kept_pivots_have_backward_errors_like_those_of_new_factors():
    A = sp.csr_matrix(real_matrix("west0497"))
    recipe, rng, found = fl.SparseLU(backend="klu"), np.random.default_rng(0), {True: [], False: []}
    F = recipe.factor(A)
    rounding = np.finfo(float).eps * (np.diff(A.indptr).max() + 1)
    for _ in range(12):
        A.data *= np.exp(1e-3 * rng.standard_normal(A.nnz))
        F.update(A)
        OF_KLU.RECENT.forget()
        b = A @ rng.standard_normal(A.shape[0])
        for G in (F, recipe.factor(A)):
            found[G._lu.from_earlier].append(errors(A, G.solve(b), b))
            assert G.report.backward_error <= 100 * rounding
    kept, new = found[True], found[False]
    assert len(kept) == len(new) == 12
    assert np.median(kept) <= 4 * rounding and np.median(new) <= 4 * rounding
    assert max(*kept, *new) <= 1e4 * rounding


@EARLIER
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda F: pickle.loads(pickle.dumps(F))])
def test_copies_take_nothing_of_other_values(any_pivots, backend, copied):
    first, second = earlier_and_next(backend)
    recipe, b = fl.SparseLU(backend=backend), np.random.default_rng(1).standard_normal(first.shape[0])
    OF_KLU.RECENT.forget()
    F = recipe.factor(second)
    assert errors(second, F.solve(b), b) < 1e-12
    keep_of(recipe, first)
    other = copied(F)
    assert errors(second, other.solve(b), b) < 1e-12 and not other._lu.from_earlier


@EARLIER
def test_a_copy_whose_factors_are_others_is_tested(any_pivots, monkeypatch, backend):
    first, _ = earlier_and_next(backend)
    recipe = fl.SparseLU(backend=backend)
    keep_of(recipe, first)
    F = recipe.factor(first)
    assert F._lu.from_earlier and not F.report.warning
    monkeypatch.setattr(SparseLUFactors, "_judged", lambda self: (1.0, 1e9, 1.0))  # bad
    assert "backward error" in copy.copy(F).report.warning and not F.report.warning


@klu
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda F: pickle.loads(pickle.dumps(F))])
def test_copies_of_splu_take_nothing_of_other_values(any_pivots, copied):
    first, second = (sp.csc_matrix(A) for A in earlier_and_next("klu"))
    b = np.random.default_rng(1).standard_normal(first.shape[0])
    F = fl.splu(second)
    OF_KLU.RECENT.forget()
    fl.splu(first)
    gc.collect()
    assert F.factors.report.backend == "klu" and errors(second, copied(F).solve(b), b) < 1e-12


@EARLIER
@pytest.mark.parametrize("by_update", [False, True])
def test_bad_factors_that_began_from_earlier_values_are_made_from_nothing_before_others(
    any_pivots, monkeypatch, backend, by_update
):
    first, second = earlier_and_next(backend)
    recipe, b, judged = fl.SparseLU(backend=backend), np.ones(first.shape[0]), []
    own = SparseLUFactors._judged

    def one_is_bad(self):
        judged.append(self._lu.from_earlier)
        return (np.inf,) * 3 if self._lu.from_earlier else own(self)

    OF_KLU.RECENT.forget()
    want = recipe.factor(second).report
    F = recipe.factor(first) if by_update else keep_of(recipe, first)
    monkeypatch.setattr(SparseLUFactors, "_judged", one_is_bad)
    F = F.update(second) if by_update else recipe.factor(second)
    assert judged == [True, False] and F.report.tried is None and not F.report.scaled
    assert F.report.backend == backend and F.report.refinements == want.refinements
    assert errors(second, F.solve(b), b) < 1e-12


@EARLIER
def test_factors_made_anew_have_the_bits_of_those_from_nothing(any_pivots, backend):
    first, second = earlier_and_next(backend)
    recipe, b = fl.SparseLU(backend=backend), np.ones(second.shape[0])
    keep_of(recipe, first)
    F = SparseLUFactors(recipe, as_csr(second), trial=None, anew=True)
    assert not F.from_earlier
    x = F.solve(b)
    del F
    OF_KLU.RECENT.forget()
    np.testing.assert_array_equal(x, SparseLUFactors(recipe, as_csr(second), trial=None, anew=True).solve(b))
    assert errors(second, x, b) < 1e-12


@pytest.mark.parametrize(
    "backend", [pytest.param("feral", marks=ldl), pytest.param("pardiso", marks=blocks)], ids="solve, {}".format
)
def test_a_second_solve_begins_from_earlier_values_unless_iterations_are_limited(monkeypatch, without, backend):
    without("klu", *(["pardiso"] if backend == "feral" else []))
    first = sp.csr_matrix(gallery.poisson7(16) - 1.5 * sp.identity(16**3))
    second, b = sp.csr_matrix(1.01 * first), np.ones(16**3)
    factored, found = calls_of_factor(monkeypatch, backend), []
    for most in (None, 9):
        for before in (first, None):
            OF_KLU.RECENT.forget()
            if before is not None:
                assert fl.solve(before, b).converged
                gc.collect()
            factored.clear()
            found.append(fl.solve(second, b, maxiter=most))
            assert found[-1].converged and found[-1].recipe == "SparseLU()"
            assert factored == [before is not None and most is None]
    assert errors(second, found[0].x, b) < 1e-12
    np.testing.assert_array_equal(found[2].x, found[3].x)


def calls_of_factor(monkeypatch, backend):
    """A list of `from_earlier` of the factors that a library makes from now on."""
    library, made = (LDL if backend == "feral" else pardiso.Pardiso), []
    own = library.factor

    def factor(self, *given):
        made.append(own(self, *given).from_earlier)
        return self

    monkeypatch.setattr(library, "factor", factor)
    return made


@klu
@pytest.mark.parametrize("grows", [False, True])
def test_spsolve_makes_factors_anew_if_pivots_of_earlier_values_are_bad(calls_of, monkeypatch, grows):
    first, second = earlier_and_next("klu")
    if not grows:  # KLU itself sees the growth
        monkeypatch.setattr(OF_KLU, "GROWN", np.inf)
    b = np.random.default_rng(1).standard_normal(first.shape[0])
    OF_KLU.RECENT.forget()
    assert errors(first, fl.spsolve(first, b), b) < 1e-12
    solver = nbklu.KLUSolver32Real
    refactored, made = calls_of(solver, "refactor"), calls_of(solver, "factor")
    others = calls_of(SparseLUFactors, "__init__")
    for step in range(3):
        x = fl.spsolve(second * (1 + step), b)
        assert errors(second * (1 + step), x, b) < 1e-12
        assert (len(refactored), len(made), len(others)) == (1 + step, 1, 0)  # the new pivots are on the diagonal


@blocks
def test_factors_by_pardiso_stay_though_numbers_of_b_are_not_finite(calls_of, without):
    without("klu")
    A = sp.csc_matrix(gallery.poisson7(16) - 1.5 * sp.identity(16**3))
    b = np.random.default_rng(1).standard_normal((A.shape[0], 2))
    bad = b.copy()
    bad[3, 1] = np.nan
    calls = calls_of(pardiso._Called, "_call")
    fl.spsolve(A, bad)
    assert pardiso.FACTOR in [phase for _, phase, *_ in calls]
    calls.clear()
    for right in (b, bad[:, 1], b):
        x = fl.spsolve(A, right)
    assert errors(A, x[:, 0], b[:, 0]) < 1e-12
    assert {phase for _, phase, *_ in calls} == {pardiso.SOLVE}


@klu
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("by_update", [False, True])
def test_klu_takes_the_pivots_of_earlier_factors_on_the_diagonal_only_if_it_would_choose_them_again(
    calls_of, dtype, by_update
):
    A, recipe = as_csr(gallery.random_dominant(900, 0.004, seed=5).astype(dtype)), fl.SparseLU(backend="klu")
    b, rng = np.random.default_rng(1).standard_normal(A.n).astype(dtype), np.random.default_rng(0)
    near, far = A.data * rng.uniform(0.9, 1.1, A.nnz), A.data.copy()
    far[A.diag[::50]] *= 1e-6  # too small for pivots
    solver = nbklu.KLUSolver32Complex if dtype == "complex128" else nbklu.KLUSolver32Real
    refactored, made = calls_of(solver, "refactor"), calls_of(solver, "factor")
    for data, stands in (
        (near, True),
        (far, False),
        (near, None),
    ):  # None: after `far`, whose pivots are too small for `near`
        B = A.with_values(data)
        OF_KLU.RECENT.__init__()
        first = recipe.factor(B).solve(b)
        if stands is not None:
            OF_KLU.RECENT.__init__()
            F = recipe.factor(A)
            assert F.nnz >= OF_KLU.WORTH
        refactored.clear(), made.clear()
        if by_update:
            F.update(B)
        else:
            F = None  # its factors are taken
            gc.collect()
            F = recipe.factor(B)
        assert np.array_equal(F.solve(b), first) and (len(refactored), len(made)) == (1, 0 if stands else 1)


@pytest.mark.parametrize(
    "backend", [pytest.param("klu", marks=klu), pytest.param("pardiso", marks=blocks)], ids="{}, pardiso".format
)
def test_threads_do_not_share_what_is_kept_of_factors(threads, backend):
    threads(1)  # on several the bits of PARDISO differ from run to run
    A = as_csr(gallery.poisson7(11))
    b, recipe, systems = np.ones(A.n), fl.SparseLU(backend=backend), [A.with_values(A.data * k) for k in range(1, 5)]
    expected = []
    for S in systems:
        for module in (OF_KLU, pardiso):
            module.RECENT.__init__()
        expected.append(recipe.factor(S).solve(b))

    def right(k):
        return np.array_equal(recipe.factor(systems[k % 4]).solve(b), expected[k % 4])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(right, range(80)))


@klu
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_klu_analyses_a_pattern_once_and_frees_it(monkeypatch, dtype):
    monkeypatch.setattr(OF_KLU, "RECENT", Recent())
    A, made, original = as_csr(gallery.random_dominant(200, 0.02, seed=5).astype(dtype)), [], KLU._analysed

    def analysed(*given):
        made.append(original(*given))
        return made[-1]

    monkeypatch.setattr(KLU, "_analysed", analysed)
    b, recipe = np.random.default_rng(0).standard_normal(A.n).astype(dtype), fl.SparseLU(backend="klu")
    F = recipe.factor(A)
    B = A.with_values(A.data * np.linspace(1, 2, A.nnz))
    G = recipe.factor(B)
    assert len(made) == 1
    for M, S in ((F, A), (G, B)):
        assert np.linalg.norm(S.tosparse() @ M.solve(b) - b) <= 1e-12 * np.linalg.norm(b)
    OF_KLU.RECENT.__init__()
    assert np.array_equal(recipe.factor(B).solve(b), G.solve(b)) and len(made) == 2  # analysed anew: the same bits
    analysis = weakref.ref(made[0])
    del F
    made.clear()
    gc.collect()
    assert analysis() is not None and np.isfinite(G.solve(b)).all()  # G still has it
    del G, M
    OF_KLU.RECENT.__init__()  # which has it again, with the factors of G
    gc.collect()
    assert analysis() is None


@klu
@pytest.mark.parametrize("most", [5_000_000, 200_000], ids=["some fit", "none fits"])
def test_factors_of_klu_that_are_used_no_more_take_only_memory_that_is_counted(monkeypatch, most):
    recent, solvers, recipe = Recent(most), [], fl.SparseLU(backend="klu")
    monkeypatch.setattr(OF_KLU, "RECENT", recent)
    for n in range(40, 46):
        F = recipe.factor(gallery.poisson5(n))
        solvers.append(F._library._solver)
        del F
        gc.collect()
    counted = sum(size for *_, size, _ in recent._kept.values())
    kept = [solver for solver in solvers if solver.numeric is not None]
    assert sum(solver.common.memusage for solver in kept) <= counted <= most
    assert (len(kept) > 0) is (most > 1_000_000) and len(kept) < len(solvers)


@klu
@pytest.mark.parametrize("A", [gallery.poisson5(40), sp.csr_matrix(gallery.convection_diffusion(12))], ids=["2", "3"])
@pytest.mark.parametrize("keeps", [True, False])
def test_solvers_of_klu_that_wait_have_no_pattern_of_their_own(monkeypatch, A, keeps):
    recent, recipe = Recent(), fl.SparseLU(backend="klu")
    monkeypatch.setattr(OF_KLU, "RECENT", recent)
    monkeypatch.setattr(OF_KLU, "_is_worth", lambda *_: keeps)
    expected = recipe.factor(A).solve(np.ones(A.shape[0]))
    gc.collect()
    ((analysis, spare),) = (result for _, _, result, *_ in recent._kept.values())
    waiting = [*analysis.idle, *([spare._state] if spare else [])]
    assert len(waiting) == 1 and (spare is not None) is keeps
    assert all(solver.Ap is None and solver.Ai is None for solver in (analysis.solver, *waiting))
    assert np.array_equal(recipe.factor(A).solve(np.ones(A.shape[0])), expected)  # by the same solver


@klu
def test_factors_of_klu_are_freed_if_another_thread_keeps_something(monkeypatch):
    recent = Recent()
    monkeypatch.setattr(OF_KLU, "RECENT", recent)
    F = fl.SparseLU(backend="klu").factor(gallery.poisson5(40))
    solver = F._library._solver
    assert recent._begun()
    del F
    gc.collect()
    recent._turn.release()
    assert solver.numeric is None
    assert fl.SparseLU(backend="klu").factor(gallery.poisson5(40)).nnz > 0  # by the analysis, which is kept


@klu
def test_klu_makes_factors_anew_where_they_take_much_work(calls_of):
    light, heavy = as_csr(gallery.poisson5(40)), as_csr(gallery.random_dominant(900, 0.006, seed=5))
    refactored = calls_of(nbklu.KLUSolver32Real, "refactor")
    for S, again in ((light, True), (heavy, False)):
        F = fl.SparseLU(backend="klu").factor(S)
        solver = F._library._solver
        work = solver.flops() / (solver.numeric.lnz + solver.numeric.unz + solver.numeric.nzoff)
        assert (work <= OF_KLU.WORTH_WORK) is again
        refactored.clear()
        F.update(S.with_values(2 * S.data))
        assert (len(refactored) == 1) is again


@klu
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("block", [900, 1])
def test_klu_finds_a_zero_pivot_in_every_block_of_kept_pivots(dtype, block):
    """`refactor` looks for a zero pivot in blocks of several rows only."""
    large = gallery.random_dominant(900, 0.004, seed=5)
    S = sp.csc_matrix(sp.block_diag([large, [[2.0]]]), dtype=dtype)
    A = Columns(S.indptr, S.indices, S.data, S.shape)
    made = KLU(A, AMD).factor(A, str)
    assert made._solver.symbolic.nblocks > 1
    data = S.data.copy()
    if block == 1:
        data[-1] = 0
    else:
        data[S.indptr[5] : S.indptr[6]] = 0
    with pytest.raises(SingularMatrix, match="it is singular"):
        made.factor(Columns(S.indptr, S.indices, data, S.shape), lambda: "it is singular")
    x = made.factor(A, str).solve(np.ones((901, 1), dtype), "N")
    assert np.linalg.norm(S @ x - 1) < 1e-10


@blocks
@pytest.mark.parametrize("A", [gallery.poisson7(16), gallery.convection_diffusion(16)], ids=["definite", "general"])
def test_an_update_by_pardiso_needs_no_memory_beside_its_factors(meanwhile, without, A):
    without("klu")
    b, recipe = np.ones(A.shape[0]), fl.SparseLU(backend="pardiso")
    F = recipe.factor(A)
    meanwhile(OF_FACTORS, free_memory=lambda array: 0, ALWAYS_FREE=0)
    assert np.linalg.norm(2 * A @ F.update(2 * A).solve(b) - b) < 1e-8
    with pytest.raises(MemoryError, match="the factors would have"):
        recipe.factor(A)
    del F
    gc.collect()
    with pytest.raises(MemoryError, match="the factors would have"):  # by the analysis that is kept
        recipe.factor(A)
    meanwhile(OF_FACTORS, free_memory=lambda array: 2**40)
    assert np.linalg.norm(A @ recipe.factor(A).solve(b) - b) < 1e-8


@blocks
def test_pardiso_keeps_no_matrix_after_a_factorization_that_fails(pardiso_fails):
    F = fl.SparseLU(backend="pardiso").factor(gallery.poisson7(16))
    state, known = F._library._called, weakref.ref(F)
    pardiso_fails(lambda: int("one"))
    with pytest.raises(ValueError):
        F.update(2 * gallery.poisson7(16))
    pardiso_fails(None)
    del F
    gc.collect()
    assert state is not None and known() is None


@pytest.mark.parametrize(
    ("backend", "ordering"),
    [("superlu", "colamd"), pytest.param("klu", "colamd", marks=klu), pytest.param("klu", None, marks=klu)],
)
def test_factors_that_were_not_counted_keep_to_the_limit(backend, ordering, calls_of):
    A, recipe = gallery.poisson5(25), fl.SparseLU(backend=backend, ordering=ordering)
    entries = recipe.factor(A).nnz
    assert recipe.within(A, entries).nnz == entries
    with pytest.raises(MemoryError, match=f"have {entries} entries; the memory holds"):
        recipe.within(A, entries - 1)
    made = calls_of(SparseLUFactors, "_made")
    assert recipe.within(A, entries) and len(made) == 1
    with pytest.raises(MemoryError, match=f"at least the {A.nnz} entries of A; the memory holds"):
        recipe.within(A, A.nnz - 1)  # which is seen before they are made
    assert len(made) == 1
    b, entry = np.ones(625), 16
    assert fl.solve(A, b, recipe=recipe, memory_limit=entry * entries).converged
    with pytest.raises(MemoryError):
        fl.solve(A, b, recipe=recipe, memory_limit=entry * (entries - 1))


@klu
@pytest.mark.parametrize(("cells", "backend"), [(16, "klu"), (36, "superlu")])
def test_klu_takes_no_order_that_expects_pivots_on_a_diagonal_with_gaps(without, cells, backend):
    """With that order it would fill in more than twice as much as was counted."""
    without("feral", "pardiso")
    A, recipe = gallery.stokes(cells)[:-1, :-1], fl.SparseLU()
    M = as_csr(A, diagonal=False)
    F = SparseLUFactors(recipe, M, known=analysed(recipe, M, counted=True, job=OrderingJob(M, aside=False)))
    assert F.report.backend == backend and F.nnz <= 1.2 * F.report.expected_nnz
    x = np.random.default_rng(0).standard_normal(M.n)
    assert np.linalg.norm(F.solve(A @ x) - x) <= 1e-9 * np.linalg.norm(x)


@klu
def test_a_loop_over_solve_with_the_same_small_matrix_factors_it_once(calls_of):
    A, rng = gallery.poisson5(10), np.random.default_rng(0)
    b, other = rng.standard_normal(100), rng.standard_normal(100)
    looked, made = calls_of(sys.modules["finelu.auto.solve"], "traits"), calls_of(nbklu.KLUSolver32Real, "factor")
    OF_KLU.RECENT.forget()
    first, anew = fl.solve(A, b), fl.solve(sp.csr_matrix(3 * A), other)
    assert first.converged and len(made) == len(looked) == 2
    again = fl.solve(sp.csr_matrix(3 * A), other)
    assert np.array_equal(again.x, anew.x) and again.seen == anew.seen and len(made) == len(looked) == 2
    assert again.attempts[0].recipe == "SparseLU()" and again.converged
    assert fl.solve(sp.csr_matrix(3 * A), b).converged and len(made) == 2  # another right-hand side
    assert np.array_equal(fl.solve(A, b).x, first.x) and len(made) == len(looked) == 3  # other values
    A.data *= 2  # in place
    assert fl.solve(A, b).converged and len(made) == 4
    single = A.astype(np.float32), b.astype(np.float32)
    assert fl.solve(*single, rtol=1e-4).converged and len(made) == 5  # the values of another dtype
    assert fl.solve(A, b, memory_limit=1e9).converged and len(made) == 6  # not by what takes no look at the limit


@klu
def test_klu_counts_the_fill_of_a_symmetric_network_by_itself(calls_of):
    n = 3000
    A = sp.diags([[-1.0] * (n - 1), [2.0] * n, [-1.0] * (n - 1)], [-1, 0, 1], format="lil")
    hub = np.arange(2, n, 100)
    A[0, hub], A[hub, 0] = -0.01, -0.01
    A[0, 0] = 3.0
    A, orders = sp.csr_matrix(A), calls_of(sys.modules["finelu.ordering"], "_amd")
    OF_KLU.RECENT.forget()
    solution = fl.solve(A, np.ones(n))
    assert solution.converged and solution.recipe == "SparseLU()" and not orders
    assert fl.SparseLU().factor(A).report.backend == "klu" and not orders
    path = sp.csr_matrix(A[1:, 1:])  # all rows are short
    assert fl.SparseLU().factor(path).report.backend == "klu" and not orders
    assert fl.SparseLU().factor(bilinear(50)).report.backend == "klu" and orders  # another matrix than of other tests


@PATTERNS
@given(n=st.integers(1, 12), density=st.floats(0, 0.6), seed=st.integers(0, 99), full=st.booleans())
def test_the_triangle_for_pardiso_has_a_place_for_each_gap_of_the_diagonal(n, density, seed, full):
    S = sp.random(n, n, density, random_state=seed, format="csr")
    S = sp.csc_matrix(S + S.T + full * sp.identity(n))
    S.sort_indices()
    S.data = np.arange(1.0, S.nnz + 1)
    starts, indices, places = pardiso._triangle(Columns(S.indptr, S.indices, S.data, S.shape))
    assert all(array.dtype == np.int32 for array in (starts, indices, places))
    rows = [row.tolist() for row in np.split(indices, starts[1:-1])]
    assert starts[-1] == indices.size and all(row == sorted(set(row)) and row[0] == i for i, row in enumerate(rows))
    stored = np.append(0.0, S.data)[places]  # 0 for a gap
    found = sp.csr_matrix((stored, indices, starts), shape=(n, n)).toarray()
    assert np.array_equal(found, np.tril(S.toarray()).T)
