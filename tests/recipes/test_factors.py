"""Factors as an object: what goes in and comes out, other people's solvers, threads, forks and interrupts."""

import inspect
import multiprocessing
import os
import pickle
import signal
import sys
import threading

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from checks import in_dtype, perturbed, run_at_once, values

import finelu as fl
from finelu import IC0, ICT, ILU0, ILUT, BlockJacobi, Jacobi, MultilevelILU, SparseLU, gallery
from finelu.factors import CholeskyFactors, Factors, LUFactors, triangles
from finelu.kernels.cpu.elimination import REPEATED
from finelu.matrix import as_csr

RECIPES = (ILU0(), IC0(), Jacobi(), BlockJacobi())


@pytest.fixture(params=RECIPES, ids=lambda recipe: type(recipe).__name__)
def recipe(request):
    return request.param


# What goes in and comes out


def test_lists_and_matrices_are_taken():
    F = ILU0().factor(gallery.poisson7(4))
    want = F.solve(np.ones(64))
    np.testing.assert_array_equal(F.solve([1] * 64), want)
    np.testing.assert_array_equal(F.solve(sp.csr_matrix(np.ones((64, 1))).todense())[:, 0], want)


@pytest.mark.parametrize(
    "recipe", [ILU0(), IC0(), fl.MILU0(), fl.ILUK(level=0), fl.ILUT(), fl.ParILU(), fl.ParILUT(steps=0)], ids=repr
)
def test_what_is_done_to_a_later_changes_no_solve(recipe):
    A = gallery.poisson5(30, 30)
    pattern = sp.csr_matrix(abs(A) + abs(A @ A))  # some entries of it are zero
    zeros = sp.csr_matrix((np.zeros(pattern.nnz), pattern.indices, pattern.indptr), shape=A.shape)
    zeros[A.nonzero()] = np.asarray(A[A.nonzero()]).ravel()
    F, b = recipe.factor(zeros), values(A.shape[0], "float64")
    want = F.solve(b)
    zeros.eliminate_zeros()
    zeros.data *= 3
    for _ in range(25):  # in natural order, then by levels
        np.testing.assert_array_equal(F.solve(b), want)
    with pytest.raises(fl.MatrixError):
        F.update(zeros)


def test_indices_that_were_changed_in_place_are_found_by_update():
    for recipe in (ILU0(), IC0(), fl.ParILU()):
        A = gallery.poisson5(30, 30)
        F = recipe.factor(A)
        A.indices[A.indptr[10] + 1] = 10**8
        with pytest.raises(fl.MatrixError, match="corrupt"):
            F.update(A)


def test_the_plan_for_many_updates_is_made_once_it_pays_and_gives_the_same_bits(threads):
    threads(2)
    A = gallery.convection_diffusion(12, 11)
    B = gallery.poisson7(8)
    for recipe, S in ((ILU0(), A), (IC0(), B), (fl.ILUK(level=1), A), (fl.ParILUT(), A)):
        F, r = recipe.factor(S), values(S.shape[0], "float64")
        want = recipe.factor(perturbed(S)).solve(r) if not isinstance(recipe, fl.ParILUT) else None
        for _ in range(REPEATED + 2):
            F.update(perturbed(S))
            if want is None:
                want = F.solve(r)
            np.testing.assert_array_equal(F.solve(r), want)


def test_the_report_is_there_after_an_analysis_that_failed(monkeypatch):
    A = gallery.convection_diffusion(9, 8)
    F = fl.ILUT().factor(A)

    def fails(*_, **__):
        raise MemoryError

    with monkeypatch.context() as m:
        m.setattr(triangles, "TriangularSolver", fails)
        with pytest.raises(MemoryError):
            F.update(perturbed(A))
    assert F.report["nnz"] > 0 and F.report["triangular"] == {}


def test_an_update_takes_a_matrix_in_any_form_and_looks_at_all_of_it():
    A = gallery.convection_diffusion(9, 8)
    F, G = ILU0().factor(A), ILU0().factor(perturbed(A))
    r = values(A.shape[0], "float64")
    B = perturbed(A)
    readonly = B.copy()
    for part in (readonly.data, readonly.indices, readonly.indptr):
        part.flags.writeable = False
    shared = sp.csr_matrix((B.data, A.indices, A.indptr), shape=A.shape)
    wide = B.copy()
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    unsorted = B.copy()
    unsorted.indices[:2], unsorted.data[:2] = B.indices[1::-1], B.data[1::-1]
    unsorted.has_sorted_indices = False
    for given in (B, readonly, shared, wide, unsorted, B.tocsc(), sp.csr_array(B), fl.as_csr(B)):
        F.update(A)
        np.testing.assert_array_equal(F.update(given).solve(r), G.solve(r))
    for bad in (np.nan, np.inf):
        broken = shared.copy()
        broken.data[broken.indptr[5]] = bad
        with pytest.raises(fl.MatrixError, match="NaN or Inf in row 5"):
            F.update(broken)
    other = B.tolil()
    other[0, 70], other[0, 1] = other[0, 1], 0
    with pytest.raises(fl.MatrixError, match="needs the pattern"):
        F.update(other.tocsr())
    rows = B.shape[0]
    with pytest.raises(
        fl.MatrixError, match=f"update needs a matrix of {rows} rows, as was factored, but A has {rows - 1}"
    ):
        F.update(B[:-1, :-1])
    outside = B.copy()
    outside.indices[3] = 10**6
    with pytest.raises(fl.MatrixError, match="corrupt"):
        F.update(outside)
    np.testing.assert_array_equal(F.solve(r), G.solve(r))  # none of these has changed the factors


# In other people's solvers


def counted(A):
    """A as an operator, and the list that grows with each product."""
    products = []
    operator = spla.LinearOperator(
        A.shape, matvec=lambda v: (products.append(1), A @ v)[1], rmatvec=lambda v: A.conj().T @ v, dtype=A.dtype
    )
    return operator, products


@pytest.mark.parametrize("dtype", ["float64", "complex64", "float32"])
@pytest.mark.parametrize("method", ["gmres", "lgmres", "gcrotmk", "bicgstab", "bicg", "cgs", "cg"])
def test_scipy_takes_factors_as_m(method, dtype):
    A = in_dtype(gallery.poisson5(20) if method == "cg" else gallery.convection_diffusion(20, 20, 1, peclet=20), dtype)
    x = values(A.shape[0], dtype)
    b = A @ x
    rtol = 1e-9 if dtype == "float64" else 1e-4
    needed = []
    for M in (None, (IC0() if method == "cg" else ILU0()).factor(A)):
        operator, products = counted(A)
        got, info = getattr(spla, method)(operator, b, M=M, rtol=rtol, atol=0)
        assert info == 0
        assert np.linalg.norm(b - A @ got) <= 10 * rtol * np.linalg.norm(b)
        needed.append(len(products))
    assert needed[1] <= 0.67 * needed[0]


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_factors_multiply_from_both_sides_as_a_linear_operator(recipe, backend, dtype):
    F = recipe.factor(backend.move(in_dtype(gallery.poisson5(6), dtype)))
    x, rows = (backend.move(values(shape, dtype)) for shape in (36, (3, 36)))
    assert F.ndim == spla.aslinearoperator(np.eye(2)).ndim
    np.testing.assert_array_equal(backend.fetch(F.dot(x)), backend.fetch(F @ x))
    for left in (x, rows):
        got = F.rdot(left)
        assert got.shape == left.shape
        np.testing.assert_allclose(backend.fetch(got @ rows.T), backend.fetch(left @ F.solve(rows.T)), rtol=1e-10)
        np.testing.assert_array_equal(backend.fetch(got), backend.fetch(left @ F))


COMPLETE = [
    SparseLU(),
    ILUT(drop_tol=0.0, fill=np.inf),
    ICT(drop_tol=0.0, fill=np.inf),
    MultilevelILU(),  # one dense level, for 144 rows
    MultilevelILU(drop_tol=0.0, fill=np.inf, dense_size=50),
]
INCOMPLETE = [
    ILU0(),
    IC0(),
    ILUT(),
    SparseLU(shift=1e-3),
    ILUT(drop_tol=0.0),
    ILUT(drop_tol=0.0, fill=np.inf, shift=1e-3),
    ILUT(drop_tol=0.0, fill=np.inf, triangular="jacobi"),
    MultilevelILU(dense_size=50, drop_tol=1e-3),
]


@pytest.mark.parametrize("recipe", COMPLETE + INCOMPLETE, ids=repr)
@pytest.mark.parametrize("function", [spla.eigsh, spla.eigs])
def test_eigs_takes_the_factors_as_the_inverse_that_are_complete(recipe, function):
    A = gallery.poisson5(12)
    F = recipe.factor(A)
    assert F.complete == (recipe in COMPLETE)
    want = np.sort(np.linalg.eigvalsh(A.toarray()))[:3]
    found = np.sort(function(A, k=3, sigma=0, OPinv=F, return_eigenvectors=False).real)
    if F.complete:
        np.testing.assert_allclose(found, want, rtol=1e-8)
    else:
        assert abs(found - want).max() > 1e-6 * want[0]


def test_eigs_takes_factors_as_the_inverse_that_leave_nothing_out_by_chance():
    A = gallery.tridiagonal(200)  # of which they are exact factors: shift and invert with sigma = 0
    smallest = spla.eigsh(A, k=3, sigma=0, OPinv=ILU0().factor(A), return_eigenvectors=False)
    want = 2 - 2 * np.cos(np.pi * np.arange(1, 4) / 201)
    np.testing.assert_allclose(np.sort(smallest), want, rtol=1e-8)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["gmres", "cg", "cgs"])
def test_cupy_takes_factors_as_m(backend, method):
    if backend.name != "cuda":
        pytest.skip("CuPy's solvers work on the GPU")
    import cupyx.scipy.sparse.linalg as cspla

    A = gallery.poisson5(30)
    b = backend.xp.ones(A.shape[0])
    solver = getattr(cspla, method)
    options = {"rtol" if "rtol" in inspect.signature(solver).parameters else "tol": 1e-8}  # "tol" before CuPy 14
    if method == "gmres":
        options["restart"] = 10  # its callback comes once a restart
    needed = []
    for M in (None, IC0().factor(backend.move(A))):
        seen = []
        x, info = solver(backend.move(A), b, M=M, callback=seen.append, **options)
        assert info == 0
        assert np.linalg.norm(1 - A @ backend.fetch(x)) <= 1e-6 * 30
        needed.append(len(seen))
    assert needed[1] <= 0.67 * needed[0]


# Several threads at once


@pytest.mark.parametrize("inner", [1, 2])
def test_several_threads_solve_with_the_same_factors(recipe, inner, threads):
    threads(inner)
    A = gallery.poisson7(24)
    n = A.shape[0]
    R = values((n, 6), "float64")
    F = recipe.factor(A)
    wanted = {trans: [F.solve(R[:, k], trans=trans) for k in range(6)] for trans in ("N", "T")}
    fresh = recipe.factor(A)  # whose analyses of the transpose are made by the first thread that needs them

    def work(k):
        return [fresh.solve(R[:, k], trans=trans) for trans in ("T", "N", "T", "N")]

    for k, (t1, n1, t2, n2) in enumerate(run_at_once(work)):
        for got, want in ((t1, "T"), (n1, "N"), (t2, "T"), (n2, "N")):
            np.testing.assert_array_equal(got, wanted[want][k])


def test_several_threads_factor_and_update_at_once(recipe, threads):
    threads(2)
    matrices = [gallery.poisson7(16), *(perturbed(gallery.poisson7(16), seed) for seed in range(1, 6))]
    r = values(matrices[0].shape[0], "float64")
    wanted = [recipe.factor(A).solve(r) for A in matrices]

    def work(k):
        F = recipe.factor(matrices[(k + 1) % 6])
        return [F.update(matrices[k]).solve(r) for _ in range(4)]

    for k, answers in enumerate(run_at_once(work)):
        for x in answers:
            np.testing.assert_array_equal(x, wanted[k])


def test_the_number_of_threads_may_change_while_others_solve(threads):
    A = gallery.poisson7(24)
    F = ILU0(triangular="levels").factor(A)
    r = values(A.shape[0], "float64")
    want = F.solve(r)

    def work(k):
        if k == 0:
            for count in (1, 2, 3, 1, 4, 2):
                fl.set_num_threads(count)
        return [F.solve(r) for _ in range(8)]

    for answers in run_at_once(work, 4):
        for x in answers:
            np.testing.assert_array_equal(x, want)


# Forks and interrupts


def factor_and_solve(F, A, r, connection):
    connection.send((F.solve(r), type(F.recipe)().factor(A).solve(r)))
    connection.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("recipe", [ILU0(), IC0()], ids=["ILU0", "IC0"])
def test_a_forked_child_factors_and_solves(recipe, threads, request):
    threads(3)
    A = gallery.poisson7(30)
    r = values(A.shape[0], "float64")
    F = recipe.factor(A)
    want = F.solve(r)  # the threads of this process run by now; the child has none of them
    context = multiprocessing.get_context("fork")
    stop = threading.Event()

    def go_on():
        while not stop.is_set():
            F.solve(r)

    other = threading.Thread(target=go_on)  # in the middle of a solve with the same factors when the fork comes
    other.start()
    request.addfinalizer(other.join)
    request.addfinalizer(stop.set)
    for _ in range(4):
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=factor_and_solve, args=(F, A, r, sender))
        child.start()
        try:
            assert receiver.poll(60), "the child hangs"
            for x in receiver.recv():
                np.testing.assert_array_equal(x, want)
            child.join(60)
            assert child.exitcode == 0
        finally:
            child.kill()
            child.join()
        np.testing.assert_array_equal(F.solve(r), want)


class Interrupted(Exception):
    """What Ctrl-C is in the test below, so that it cannot end the test run."""


@pytest.mark.skipif(os.name != "posix", reason="sends a signal to itself")
def test_an_interrupt_ends_a_solve_and_leaves_the_factors_whole(threads):
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals arrive in the main thread")
    threads(2)
    A = gallery.poisson7(24)
    F = ILU0().factor(A)
    r = values(A.shape[0], "float64")
    want = F.solve(r)

    def interrupt(*_):
        raise Interrupted

    # of this process's own time, and again a second later: Python drops an exception that a signal raises where
    # no caller can catch it, as in what the garbage collector calls
    before = signal.signal(signal.SIGVTALRM, interrupt)
    try:
        for delay in np.linspace(0.001, 0.02, 12):
            with pytest.raises(Interrupted):  # noqa: PT012 - it comes at some point of the loop
                signal.setitimer(signal.ITIMER_VIRTUAL, delay, 1.0)
                while True:
                    F.solve(r)
            signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
            np.testing.assert_array_equal(F.solve(r), want)
            np.testing.assert_array_equal(F.update(A).solve(r), want)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)


# how a factorization is computed: downwards, from the recipe to its numeric part to the factors


def calls(work):
    """(file of the caller, file) of each call of a function of recipes, factors or triangular solves."""
    seen = []

    def profile(frame, event, _):
        file = frame.f_code.co_filename
        ours = f"finelu{os.sep}preconditioners" in file or f"finelu{os.sep}factors" in file
        if event == "call" and (ours or file.endswith(f"finelu{os.sep}triangular.py")):
            seen.append((frame.f_back.f_code.co_filename, file))

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return seen


@pytest.mark.parametrize(("recipe", "most"), [(fl.ILU0(), 22), (fl.ParILUT(), 45)], ids=repr)
def test_a_factorization_changes_little_between_files(recipe, most):
    A = fl.as_csr(gallery.poisson7(10))
    recipe.factor(A)
    changes = sum(caller != file for caller, file in calls(lambda: recipe.factor(A)))
    assert 0 < changes <= most


def test_families_have_no_diamonds():
    below = [Factors]
    for kind in below:
        assert len(kind.__bases__) == 1
        below += [one for one in kind.__subclasses__() if one.__module__.startswith("finelu.")]
    assert {LUFactors, CholeskyFactors} < set(below)


# the report


def test_a_report_is_a_mapping_without_what_did_not_happen():
    F = fl.ILU0().factor(gallery.poisson5(6, 5))
    report = F.report
    assert report["variant"] == report.variant == report.get("variant") and report.warning is None
    assert "warning" not in report and "symbolic_seconds" not in report and report.get("warning", 0) == 0
    assert dict(report) == report == pickle.loads(pickle.dumps(report)) and set(report) == set(dict(report))
    with pytest.raises(KeyError, match="warning"):
        report["warning"]
    report.warn("one")
    report.warn("two")
    assert report["warning"] == "one; two" and report.pop("warning") == "one; two" and "warning" not in report
    report |= {"own": 3}
    assert report["own"] == 3 and "own" in report


def test_a_report_prints_as_a_table():
    text = str(fl.MultilevelILU(dense_size=10).factor(gallery.poisson5(12, 11)).report)
    lines = text.splitlines()
    places = {line.split()[0]: k for k, line in enumerate(lines)}
    assert lines[places["kind"]].split() == ["kind", "hermitian"] and "warning" not in text
    head = lines[places["levels"]].split()[1:]
    assert head[:3] == ["n", "nnz_A", "interface"] and lines[places["levels"] + 1].split()[0] == "132"
    assert max(map(len, lines)) <= 160
    assert "lower: method" in str(fl.IC0().factor(gallery.poisson5(6, 5)).report)


def test_out_that_is_read_only_is_refused_and_updates_are_counted():
    A = fl.gallery.poisson5(6, 5)
    F, out = fl.ILU0().factor(A), np.empty(30)
    out.setflags(write=False)
    with pytest.raises(fl.MatrixError, match="not read-only"):
        F.solve(np.ones(30), out=out)
    assert F.updates == 0 and F.update(A).updates == 1


def test_a_pattern_may_have_indices_of_another_type(backend):
    A = backend.move(as_csr(gallery.poisson5(8)))
    B = A.with_index(np.int64)
    assert A.same_pattern(B) and B.same_pattern(A)
    b = backend.move(values(A.n, "float64"))
    for first, second in ((A, B), (B, A)):
        F = ILU0().factor(first)
        want = backend.fetch(F.solve(b))
        np.testing.assert_array_equal(backend.fetch(F.update(second).solve(b)), want)
