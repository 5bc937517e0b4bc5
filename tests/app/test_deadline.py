"""A limit of time: set-ups end early, `solve` returns the best x so far, and nothing but OutOfTime is raised inside."""

import math
import os
import re
import threading
from time import perf_counter, sleep

import numpy as np
import pytest
import scipy.sparse as sp

import finelu as fl
from finelu import deadline, gallery, threads
from finelu.auto import choose
from finelu.errors import FineluError, NoThread, OutOfTime, TooManyEntries
from finelu.kernels import cpu, reference
from finelu.preconditioners.direct import analysis
from finelu.result import Status

FAR = 1e6  # s
LIMIT, SOON = 0.2, 15.0  # s: a limit, and when what takes far longer without one has ended on a busy machine, too


@pytest.fixture
def halted(meanwhile):
    """Kernels find that the time is over, and no caller is given OutOfTime."""
    meanwhile(deadline, halt=lambda: np.ones(1, np.int64), check=lambda: None)


def random_matrix(n, entries, dtype=float, symmetric=False):
    """Random entries, whose factors fill in, and a diagonal."""
    rng = np.random.default_rng(3)
    i, j = rng.integers(0, n, (2, n * entries))
    A = sp.csr_matrix((rng.random(n * entries).astype(dtype), (i, j)), shape=(n, n))
    A = A + A.T if symmetric else A
    return sp.csr_matrix(A + sp.diags(np.asarray(abs(A).sum(axis=1)).ravel() + 1))


# The limit


def test_of_nested_limits_the_earlier_one_counts():
    now = deadline.now()
    assert deadline.remaining() == math.inf and deadline.halt() is deadline.NEVER
    with deadline.limited(math.inf):
        assert deadline.current() is None
    with deadline.limited(now + FAR):
        outer = deadline.current()
        with deadline.limited(now + 2 * FAR):
            assert deadline.current() is outer
        with deadline.limited(now - 1):
            assert deadline.remaining() == 0
            with pytest.raises(OutOfTime, match="the time limit was reached"):
                deadline.check()
        deadline.check()
        assert 0.9 * FAR < deadline.remaining() < FAR
    assert deadline.current() is None


def waited_for(true):
    """Whether it becomes true, soon."""
    begin = perf_counter()
    while not true() and perf_counter() < begin + 10:
        sleep(1e-3)
    return true()


def test_one_thread_of_the_process_sets_the_numbers_that_kernels_look_at():
    with deadline.limited(deadline.now() + FAR):
        far = deadline.halt()
        with deadline.limited(deadline.now() + 0.02):  # the thread, asleep until the first, is woken
            near = deadline.halt()
            assert near is deadline.halt() and waited_for(lambda: near[0] == 1)
        with deadline.limited(deadline.now() - 1):
            assert deadline.halt()[0] == 1
        assert far[0] == 0 and deadline.NEVER[0] == 0
    for _ in range(20):
        with deadline.limited(deadline.now() + FAR):
            deadline.halt()
    assert [thread.name for thread in threading.enumerate()].count("finelu_deadline") == 1
    assert id(far) not in deadline._watchdog._watched and id(near) not in deadline._watchdog._watched


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_limit_is_kept_in_a_forked_process():
    with deadline.limited(deadline.now() + 1.0):
        deadline.halt()
        child = os.fork()
        if not child:
            halt = deadline.halt()
            os._exit(0 if waited_for(lambda: halt[0] == 1) else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_where_no_thread_can_be_started_for_a_limit_that_is_an_error_of_finelu(meanwhile, monkeypatch):
    def start(_):
        raise RuntimeError("can't start new thread")

    meanwhile(deadline, _watchdog=deadline.Watchdog())
    with monkeypatch.context() as patch, deadline.limited(deadline.now() + FAR):
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(NoThread, match=r"no thread can be started to keep a time limit \(can't start new thread\)"):
            fl.ILU0().factor(gallery.poisson5(5, 5))
    with deadline.limited(deadline.now() + FAR):
        assert deadline.halt()[0] == 0  # it is tried again


def test_what_threads_do_for_a_caller_is_under_its_limit():
    def look(_=None):
        deadline.check()

    with deadline.limited(deadline.now() - 1):
        with pytest.raises(OutOfTime):
            threads.each(3, look)
        with pytest.raises(OutOfTime):
            threads.begin(look).result()
        goes_on = threading.Event()
        task = threads.begin(goes_on.wait)
        with pytest.raises(OutOfTime):  # it is not waited for
            task.result()
        goes_on.set()
    assert task.result() and threads.begin(deadline.current).result() is None


# Recipes


SET_UPS = {
    "ilut": (fl.ILUT(drop_tol=0, fill=math.inf), {}),
    "ilut by Crout": (fl.ILUT(drop_tol=0, fill=math.inf, form="crout"), {}),
    "ict": (fl.ICT(drop_tol=0, fill=math.inf), {"symmetric": True}),
    "iluk": (fl.ILUK(level=3), {}),
    "ilu0": (fl.ILU0(), {}),
    "milu0": (fl.MILU0(), {}),
    "ic0": (fl.IC0(), {"symmetric": True}),
    "parilu": (fl.ParILU(), {}),
    "paric": (fl.ParIC(), {"symmetric": True}),
    "parilut": (fl.ParILUT(start=2), {}),
    "parict": (fl.ParICT(), {"symmetric": True}),
    "multilevel": (fl.MultilevelILU(drop_tol=0, condest=math.inf, matching=False, dense_size=20), {}),
    "multilevel, symmetric": (
        fl.MultilevelILU(drop_tol=0, condest=math.inf, matching=False, dense_size=20),
        {"symmetric": True},
    ),
    "multilevel, LAPACK": (fl.MultilevelILU(drop_tol=1e-3, levels=1), {}),
}


@pytest.mark.parametrize("kind", SET_UPS)
def test_a_set_up_ends_wherever_a_kernel_finds_that_the_time_is_over(kind, meanwhile):
    """What a kernel has left is never taken for factors; that it leaves early, the tests of kernels look at."""
    recipe, options = SET_UPS[kind]
    A = fl.as_csr(random_matrix(150, 6, **options))
    count, last, halt = [0], [math.inf], deadline.halt

    def over_at_last():
        count[0] += 1
        if count[0] >= last[0]:
            deadline.current().expire()
        return halt()

    meanwhile(deadline, halt=over_at_last)
    with deadline.limited(deadline.now() + FAR):
        recipe.factor(A)
    number = count[0]
    assert number >= 1
    for k in np.unique(np.linspace(1, number, 6).astype(int)):
        count[0], last[0] = 0, k
        with deadline.limited(deadline.now() + FAR), pytest.raises(OutOfTime):
            recipe.factor(A)


# Kernels


def test_a_kernel_of_a_factorization_ends_early_where_the_time_is_over(halted):
    A = fl.as_csr(random_matrix(40, 4))
    S = fl.as_csr(random_matrix(40, 4, symmetric=True))
    tau = np.zeros(40)
    assert cpu.threshold.ilut(A, tau, math.inf, 2**40).rows < 20  # the first one that needs another
    assert cpu.threshold.ilut_crout(A, tau, tau, math.inf, 2**40).rows == 0
    assert cpu.threshold.ict(S, tau, math.inf, 2**40).rows == 0
    out = np.full(A.nnz, np.nan)
    for plan_of, kernel in (("ilu0_analysis", "ilu0"), ("milu0_analysis", "milu0")):
        plan = getattr(cpu.elimination, plan_of)(A)
        getattr(cpu.elimination, kernel)(plan, A.data, *((1.0,) if kernel == "milu0" else ()), out)
        assert np.isnan(out).all(), kernel
    refused = np.array([0, 40])
    cpu.sweeps.sweep(A, A, out, None, refused)
    assert np.isnan(out).all()
    before = A.data.copy()
    cpu.sweeps.sweep_in_place(A, A, refused)
    np.testing.assert_array_equal(A.data, before)
    room = np.full(40, 40)
    made = cpu.crout.crout(A, A, [0, 40], 0.0, math.inf, 0.0, room, room)
    assert not made.d.any() and made.nnz == 40
    pairs = np.zeros(40, np.uint8)
    made = cpu.crout_symmetric.crout_symmetric(S, pairs, [0, 40], 0.0, math.inf, 0.0, room, False)
    assert not made.d.any()


def test_a_matching_and_a_pattern_end_where_the_time_is_over(halted):
    n = 30
    A = sp.csr_matrix(sp.random(n, n, 0.1, random_state=1) + sp.eye(n))[::-1]
    columns = np.empty(n, np.int64)
    weights = np.random.default_rng(0).random(A.nnz)
    cpu.matching.lightest_matching(A.indptr, A.indices, weights, columns, np.empty(n))
    assert (columns < 0).any()  # those that need a search
    B = fl.as_csr(random_matrix(n, 4))
    indptr, *_ = cpu.fill.pattern_iluk(B.indptr, B.indices, 3)
    assert indptr[-1] < B.nnz


@pytest.mark.parametrize("symmetric", [False, True])
def test_factors_of_a_level_have_no_more_entries_than_they_may(symmetric):
    A = fl.as_csr(random_matrix(24, 3, symmetric=True))
    room = np.full(24, 24)

    def level(form, most, most_left):
        """The entries of the factors, and of the rest."""
        if symmetric:
            kernels, pairs = form.crout_symmetric, np.zeros(24, np.uint8)
            F = kernels.crout_symmetric(A, pairs, [0, 18], 0.0, math.inf, 0.0, room, False, most=most)
            S = cpu.crout_symmetric.crout_symmetric(A, pairs, [0, 18], 0.0, math.inf, 0.0, room, False)
            left = kernels.schur_complement_symmetric(A, S, 0.1, False, most_left)
            upper = (left[0][-1] + left[0].size - 1) // 2
            return (sum(map(len, F[3])) if form is reference else F.indices.size), int(upper)
        F = form.crout.crout(A, A, [0, 18], 0.0, math.inf, 0.0, room, room, most=most)
        S = cpu.crout.crout(A, A, [0, 18], 0.0, math.inf, 0.0, room, room)
        left = form.crout.schur_complement(A, S, 0.1, most_left)
        own = sum(map(len, F[2] + F[3])) if form is reference else F.l_indices.size + F.u_indices.size
        return own, int(left[0][-1])

    entries = level(cpu, None, None)
    assert level(reference, None, None) == entries and min(entries) > 5
    for form in (cpu, reference):
        assert level(form, *entries) == entries
        for few in ((entries[0] - 1, None), (None, entries[1] - 1), (5, None), (None, 5)):
            with pytest.raises(TooManyEntries, match=f"more than {few[0] or few[1]} entries"):
                level(form, *few)


@pytest.mark.parametrize("wave", [2, 64])
def test_what_a_schur_complement_may_have_is_judged_by_what_is_kept(wave, meanwhile, calls_of):
    from finelu.kernels.cpu import _schur as schur

    m = 120  # all entries are small, and dropped, except those of the first row and column
    D = 1e-3 * (0.5 + np.random.default_rng(0).random((m, m)))
    D = D + D.T
    D[0], D[:, 0] = 1, 1
    A = np.eye(m + 1)
    A[1:, 1:], A[0, 1:], A[1:, 0] = D, 1e-9, 1e-9
    A, room = fl.as_csr(sp.csr_matrix(A)), np.full(m + 1, m + 1)
    pairs = np.zeros(m + 1, np.uint8)
    symmetric = cpu.crout_symmetric.crout_symmetric(A, pairs, [0, 1], 0.0, math.inf, 0.0, room, False)
    general = cpu.crout.crout(A, A, [0, 1], 0.0, math.inf, 0.0, room, room)
    meanwhile(schur, BLOCK=200, WAVE=wave, SHARE=0)  # many blocks
    made = calls_of(schur, "_rows")
    for left, entries in (
        (lambda tol, most: cpu.crout_symmetric.schur_complement_symmetric(A, symmetric, tol, False, most), 2 * m - 1),
        (lambda tol, most: cpu.crout.schur_complement(A, general, tol, most), 3 * m - 2),
    ):
        whole = left(0.1, None)
        for most in (entries, 2 * entries):
            for one, other in zip(left(0.1, most)[:3], whole[:3], strict=True):
                np.testing.assert_array_equal(one, other)
        with pytest.raises(TooManyEntries):
            left(0.1, entries - 1)
        made.clear()
        left(0.0, None)
        blocks = len(made)
        with pytest.raises(TooManyEntries):
            left(0.0, m)
        assert blocks > 20 and (len(made) <= 1.5 * blocks or wave == 64)


def test_multilevel_factors_without_limits_of_the_callers_have_a_bound_of_their_own(meanwhile):
    from finelu.preconditioners.multilevel import factors as recipe

    A = random_matrix(300, 6)
    meanwhile(recipe, FEW_ENTRIES=0, ROOM=2)
    for dense_size in (500, 20):  # LAPACK's, and those of levels
        small = fl.MultilevelILU(dense_size=dense_size)
        with pytest.raises(
            TooManyEntries, match=r"MultilevelILU\(.*more than \d+ entries, 2 for each of A and some; a"
        ):
            small.factor(A)
    for own in ({"fill": 10.0}, {"drop_tol": 1e-3}):
        assert fl.MultilevelILU(**own).factor(A).nnz > 2 * A.nnz
    meanwhile(recipe, ROOM=25)
    assert fl.MultilevelILU(dense_size=20).factor(A).nnz < 25 * A.nnz


# solve


def systems():
    rng = np.random.default_rng(1)
    poisson, convection = gallery.poisson5(12, 9), gallery.convection_diffusion(12, 9, 1, peclet=30)
    gaps = sp.csr_matrix(sp.random(90, 90, 0.08, random_state=2) + 1e-3 * sp.eye_array(90, k=1))
    neumann = sp.csr_matrix(poisson - sp.diags(np.asarray(poisson.sum(axis=1)).ravel()))
    return {
        "definite": (poisson, rng.random(108)),
        "unsymmetric": (convection, rng.random(108)),
        "gaps": (gaps, rng.random(90)),
        "singular": (neumann, rng.random(108)),
        "indefinite": (sp.csr_matrix(poisson - 2.5 * sp.eye_array(108)), rng.random(108)),
    }


@pytest.mark.parametrize("name", systems())
@pytest.mark.parametrize("asked", ["auto", "multilevel", "ilut"])
def test_wherever_the_time_is_over_solve_returns_the_best_x(name, asked, looks, meanwhile):
    meanwhile(choose, SMALL=0, LIGHT=0)  # so that all rungs are climbed
    meanwhile(analysis, QUICK=0)
    A, b = systems()[name]
    if asked == "ilut" and name in ("gaps", "singular"):
        pytest.skip("ILUT has no factors then")

    def solved():
        s = fl.solve(A, b, time_limit=FAR, recipe=asked)
        assert s.residual_norm == pytest.approx(np.linalg.norm(b - A @ s.x), rel=1e-6, abs=1e-12)
        assert s.residual_norm <= np.linalg.norm(b) * (1 + 1e-12)
        return s

    count = looks(math.inf)
    whole = solved().status
    number = count[0]
    assert number >= 1
    seen = set()
    for k in np.unique(np.linspace(1, number, 12).astype(int)):
        looks(k)
        seen.add(solved().status)
    assert Status.OUT_OF_TIME in seen and seen <= {whole, Status.OUT_OF_TIME, Status.CONVERGED}


def test_what_is_told_of_a_set_up_that_was_ended(looks):
    A, b = systems()["definite"]
    looks(2)
    s = fl.solve(A, b, time_limit=FAR, recipe="ict")
    assert s.status is Status.OUT_OF_TIME and not s.x.any()
    assert "no factors: the time limit was reached" in s.explain()


def test_solve_ends_with_its_limit_where_the_set_up_takes_seconds():
    A = random_matrix(7000, 20)
    b = np.ones(7000)
    fl.solve(random_matrix(600, 20), np.ones(600), recipe=fl.ILUT(drop_tol=0, fill=math.inf))
    begin = perf_counter()
    s = fl.solve(A, b, time_limit=LIMIT, recipe=fl.ILUT(drop_tol=0, fill=math.inf))
    assert perf_counter() - begin < SOON and s.status is Status.OUT_OF_TIME
    assert s.residual_norm == pytest.approx(np.linalg.norm(b))


@pytest.mark.parametrize(
    ("method", "needed"), [("cg", "A = A.H"), ("minres", "A = A.H"), ("sqmr", "A = A.H or A = A.T")]
)
def test_a_method_for_symmetric_matrices_says_at_once_which_entries_differ(backend, method, needed):
    A, b = gallery.convection_diffusion(12, 9, 1, peclet=30), np.ones(108)
    s = fl.solve(backend.move(A), backend.move(b), method=method, x0=backend.move(1e-3 * b))
    assert s.status is Status.NOT_SYMMETRIC and s.iterations == 0 and s.method == method
    assert s.residual_norm <= np.linalg.norm(b) and len(s.attempts) == 0
    text = rf"{method} needs {needed}, but A\[(\d+), (\d+)\] = (\S+) and A\[(\d+), (\d+)\] = (\S+)\.\n"
    i, j, a_ij, m, n, a_mn = re.search(text, s.explain()).groups()
    i, j, m, n = map(int, (i, j, m, n))
    assert (m, n) == (j, i) and float(a_ij) == A[i, j] and float(a_mn) == A[j, i] and A[i, j] != A[j, i]


@pytest.mark.parametrize("method", ["cg", "minres", "sqmr"])
def test_a_matrix_that_is_nearly_symmetric_is_taken(method):
    A = sp.csr_matrix(gallery.poisson5(12, 9))
    A.data = A.data * (1 + 1e-9 * np.random.default_rng(0).random(A.nnz))
    assert fl.solve(A, np.ones(108), 1e-6, method=method).converged
    C = sp.csr_matrix(gallery.poisson5(12, 9) + 1j * sp.eye_array(108))  # complex symmetric
    status = fl.solve(C, np.ones(108), recipe=None, method=method).status
    assert (status is Status.NOT_SYMMETRIC) == (method != "sqmr")


def test_cycles_that_take_nothing_off_the_residual_end():
    n = 400  # a cyclic shift: GMRES finds nothing before step n
    A = sp.csr_matrix(sp.eye_array(n, k=1) + sp.eye_array(n, k=1 - n))
    b = np.eye(n)[0]
    s = fl.solve(A, b, recipe=None, method="gmres")
    assert s.status is Status.STAGNATED and s.iterations <= 200
    assert "3 cycles took nothing off the residual" in s.explain()


def test_out_of_time_is_an_error_of_finelu():
    assert issubclass(OutOfTime, FineluError) and issubclass(TooManyEntries, FineluError)


def test_a_limit_beyond_what_a_thread_can_wait_for_is_none():
    with deadline.limited(deadline.now() + 1e12):
        assert deadline.halt() is deadline.NEVER and deadline.remaining() == math.inf
