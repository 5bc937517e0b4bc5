"""Results for the last patterns: the same as computed anew, for the same content only, within a number of bytes."""

import sys
import threading

import numpy as np
import pytest
import scipy.sparse as sp
from checks import values

from finelu import gallery, ordering
from finelu.factors import Arrangement
from finelu.matrix import as_csr, of_nonzeros
from finelu.preconditioners import SparseLU
from finelu.preconditioners.direct import factors, prepared
from finelu.recent import FEW, RECENT, Recent, of_pattern

PATTERN = np.arange(5), np.arange(7, dtype=np.int32)


def test_a_result_is_found_by_the_content_of_its_pattern():
    recent = Recent(10_000)
    indptr, indices = PATTERN[0].copy(), PATTERN[1].copy()
    assert recent.get("order", indptr, indices) is None
    assert recent.keep("order", indptr, indices, "found", 8) == "found" == recent.get("order", *PATTERN)
    assert recent.get("other", *PATTERN) is None
    indices[3] = 9  # in place: the arrays are another pattern now
    assert recent.get("order", indptr, indices) is None and recent.get("order", *PATTERN) == "found"


def test_the_least_recently_used_go_first():
    recent, patterns = Recent(3 * 1000), [(np.arange(k), np.arange(20)) for k in range(10, 15)]
    for k, pattern in enumerate(patterns):
        recent.keep("order", *pattern, k, 600)
        recent.get("order", *patterns[0])
    kept = [k for k, pattern in enumerate(patterns) if recent.get("order", *pattern) is not None]
    assert kept[0] == 0 and kept[-1] == 4 and len(kept) == 3
    recent.keep("order", np.arange(30), np.arange(31), "large", 4000)
    assert recent.get("order", np.arange(30), np.arange(31)) is None and recent.get("order", *patterns[0]) == 0


def test_nobody_waits_for_another_thread():
    recent = Recent()
    assert recent._begun()
    thread = threading.Thread(target=lambda: recent.keep("order", *PATTERN, "found", 8))
    thread.start()
    thread.join(10)
    assert not thread.is_alive() and recent.get("order", *PATTERN) is None
    recent._turn.release()
    assert recent.keep("order", *PATTERN, "found", 8) == recent.get("order", *PATTERN)


def test_many_threads_at_once_meet_no_error():
    kept, patterns = Recent(), [(np.arange(n), np.arange(2 * n)) for n in range(3, 9)]
    before, failures = sys.getswitchinterval(), []
    sys.setswitchinterval(1e-6)

    def work(first):
        try:
            for i in range(3000):
                indptr, indices = patterns[(first + i) % len(patterns)]
                assert kept.get("order", indptr, indices) in (None, indptr.size)
                kept.keep("order", indptr, indices, indptr.size, 8)
        except BaseException as error:  # whatever it is, the test names it
            failures.append(error)

    try:
        threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not failures


@pytest.mark.parametrize("name", ["amd", "metis"])
def test_a_pattern_is_ordered_once(monkeypatch, name):
    function = {"amd": "_amd", "metis": "_nested_dissection"}[name]
    if name == "metis":
        pytest.importorskip("pymetis")
        monkeypatch.setattr(ordering, "METIS_WORK", 0.0)
    A, made, original = gallery.random_dominant(300, 0.01, seed=11), [], getattr(ordering, function)
    monkeypatch.setattr(ordering, "RECENT", Recent())
    monkeypatch.setattr(ordering, function, lambda *given: made.append(1) or original(*given))
    first, fill = ordering.with_little_fill(A)
    B = A.copy()
    B.data = values(A.nnz, "float64") + 2.0
    again, same = ordering.with_little_fill(B)
    assert len(made) == 1 and np.array_equal(first, again) and fill == same
    B = sp.csr_matrix(A + sp.eye(300, k=7))
    assert not np.array_equal(ordering.with_little_fill(B)[0], first) and len(made) == 2


def test_results_for_one_pattern_share_a_copy_of_it():
    recent, size = Recent(3 * 800), 800
    indptr, indices = np.arange(50), np.arange(40)  # 720 bytes
    assert recent.keeps("order", indptr, indices, 1, size) and recent.keeps("other", indptr, indices, 2, size)
    assert recent.get("order", indptr, indices) == 1 and recent.get("other", indptr, indices) == 2
    recent.keep("order", np.arange(50), np.arange(40) + 1, 3, 80)  # a second copy is too much for all three
    assert recent.get("other", indptr, indices) == 2 and recent.get("order", indptr, indices) is None


def test_a_number_of_a_pattern_is_found_once():
    RECENT.forget()
    calls = []

    def entries(A):
        calls.append(A.nnz)
        return A.nnz

    A, B = as_csr(gallery.poisson5(12, 10)), as_csr(gallery.poisson5(10, 12))
    assert A.nnz == B.nnz and A.n == B.n
    assert of_pattern(A, entries) == of_pattern(A.with_values(2 * A.data), entries) == A.nnz and len(calls) == 1
    assert of_pattern(B, entries) == B.nnz and len(calls) == 2


def test_a_pattern_is_sorted_once_and_given_to_each_caller():
    RECENT.forget()
    S = sp.csr_matrix(gallery.random_dominant(60, 0.1, seed=3))
    order = np.concatenate([np.arange(a, b)[::-1] for a, b in zip(S.indptr, S.indptr[1:], strict=False)])
    for factor in (1.0, 2.0, 3.0):
        A = as_csr(sp.csr_matrix((factor * S.data[order], S.indices[order], S.indptr.copy()), shape=S.shape))
        assert (A.tosparse() != factor * S).nnz == 0 and (np.diff(A.indices)[A.diag[:-1]] != 0).all()
        A.indices[:], A.data[:] = 0, 0  # the caller's own arrays
    twice = sp.csr_matrix((np.ones(4), [1, 0, 0, 1], [0, 3, 4]), shape=(2, 2))
    for _ in range(2):
        assert as_csr(twice).tosparse().toarray().tolist() == [[2, 1], [0, 1]]


def test_the_places_of_zeros_are_kept_while_they_are_the_same():
    RECENT.forget()
    S = sp.csr_matrix(gallery.poisson5(9, 7))
    for zeros in (slice(3, 5), slice(3, 5), slice(2, 4), slice(3, 7), slice(0, 0)):
        S.data[:] = np.arange(1, S.nnz + 1)
        S.data[zeros] = 0
        found, kept = of_nonzeros(as_csr(S), np.count_nonzero(S.data))
        want = S.copy()
        want.eliminate_zeros()
        assert (found.tosparse() != want).nnz == 0 and found.nnz == want.nnz
        assert kept is None if zeros.stop == 0 else np.array_equal(kept, np.flatnonzero(S.data))
        assert np.array_equal(found.diag, as_csr(want, diagonal=False).diag)


def test_few_zeros_that_move_leave_the_pattern_as_it_is(calls_of):
    S = sp.csr_matrix(gallery.convection_diffusion(20))
    rng, rows = np.random.default_rng(5), np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))
    off = np.flatnonzero(rows != S.indices)
    calls, F = calls_of(factors, "analyse"), None
    for _ in range(4):
        A = S.copy()
        A.data[rng.choice(off, 8, replace=False)] = 0
        assert prepared.prepared(as_csr(A)).kept is None
        F = SparseLU().factor(A) if F is None else F.update(A)
        b = A @ np.ones(S.shape[0])
        np.testing.assert_allclose(F.solve(b), 1, rtol=1e-10)
    assert len(calls) <= 1
    A.data[off[: S.nnz // 20]] = 0  # many: complete factors fill in less without them
    assert prepared.prepared(as_csr(A)).kept is not None
    B = S.copy()
    B.data[np.flatnonzero(rows == S.indices)[0]] = 0  # on the diagonal: it may show that A is singular
    assert prepared.prepared(as_csr(B)).kept is not None


@pytest.mark.parametrize(
    ("S", "kept"),
    [
        (gallery.random_dominant(80, 0.05, seed=2), False),
        (gallery.random_dominant(400, 0.05, seed=2), True),
        (gallery.convection_diffusion(8), True),  # of a symmetric pattern
    ],
    ids=["few", "many", "symmetric"],
)
def test_a_transposed_pattern_gives_the_columns_that_scipy_has(S, kept):
    RECENT.forget()
    S = sp.csr_matrix(S)
    for factor in (1.0, -2.0):
        A = as_csr(factor * S)
        found, want = Arrangement().by_columns(A), (factor * S).tocsc()
        for name in ("indptr", "indices", "data"):
            assert np.array_equal(getattr(found, name), getattr(want, name))
            getattr(found, name)[:] = 0  # of this caller alone
        place = ("transposed", A.indices.dtype.char), A.indptr, A.indices
        assert (RECENT.get(*place) is not None) == kept


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_the_columns_of_a_symmetric_matrix_are_its_rows(dtype):
    RECENT.forget()
    S = sp.csr_matrix(gallery.poisson5(40), dtype=dtype)
    S.data *= 2 - (1j if dtype is np.complex128 else 0)  # complex symmetric, not Hermitian
    A = as_csr(S)
    with A.unchanged(A.mirrored()):
        found = Arrangement().by_columns(A)
    for name, want in (("indptr", S.indptr), ("indices", S.indices), ("data", S.data)):
        assert np.array_equal(getattr(found, name), want) and not np.shares_memory(getattr(found, name), want)
    assert RECENT.get(("transposed", A.indices.dtype.char), A.indptr, A.indices) is None
    S.data[1] *= 1 + 4 * np.finfo(dtype).eps  # symmetric up to rounding only
    A = as_csr(S)
    with A.unchanged(A.mirrored()):
        assert np.array_equal(Arrangement().by_columns(A).data, S.tocsc().data)
    assert RECENT.get(("transposed", A.indices.dtype.char), A.indptr, A.indices) is not None


def test_a_light_result_takes_the_room_of_other_patterns_alone():
    recent, own, other = Recent(2000), (np.arange(20), np.arange(30)), (np.arange(21), np.arange(30))
    recent.keep("factors", *other, 1, 600)
    recent.keep("factors", *own, 2, 900)  # each copy of a pattern takes 400 bytes
    assert recent.get("factors", *other) is None
    recent.keep("facts", *own, 3, 800, light=True)
    assert recent.get("facts", *own) is None and recent.get("factors", *own) == 2
    recent.keep("facts", *own, 3, 500, light=True)
    assert recent.get("facts", *own) == 3 and recent.get("factors", *own) == 2
    recent.keep("facts", *other, 4, 500, light=True)
    assert recent.get("facts", *other) == 4 and recent.get("factors", *own) is None


def test_few_results_are_kept_however_small_they_are():
    RECENT.forget()
    for n in range(2, 300):
        A = as_csr(sp.identity(n, format="csr"))
        RECENT.keep("a fact", A.indptr, A.indices, n, 8)
        assert RECENT.get("a fact", A.indptr, A.indices) == n and len(RECENT._kept) <= FEW


@pytest.mark.parametrize("call", ["keep", "drop", "forget"])
def test_what_a_ctrl_c_interrupts_leaves_the_account_true(call):
    """At each line of `recent`: the results kept afterwards add up to the bytes counted, and more can be kept."""
    module = sys.modules["finelu.recent"].__file__
    for line in range(1, 60):
        recent = Recent(4000)
        patterns = [(np.arange(n), np.arange(2 * n)) for n in (20, 21, 21, 22)]
        for kind, pattern in enumerate(patterns):
            recent.keep(kind, *pattern, f"result {kind}", 100 + kind)
        left = [line]

        def trace(frame, event, _, left=left):
            if frame.f_code.co_filename != module:
                return None
            left[0] -= event == "line"
            if left[0] == 0:
                left[0] = -1
                raise KeyboardInterrupt
            return trace

        given = {"keep": (9, *patterns[0], "another", 2000), "drop": (1, *patterns[1]), "forget": ()}[call]
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            getattr(recent, call)(*given)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        copies = {id(entry[4]): entry[4] for entry in recent._kept.values()}
        bytes_of_copies = sum(copy.indptr.nbytes + copy.indices.nbytes for copy in copies.values())
        assert recent._held == bytes_of_copies + sum(entry[3] for entry in recent._kept.values())
        if not recent._turn.locked():  # else it came between the lock and the work: nothing is kept any more
            assert recent.keep("more", *patterns[3], "found", 10) == recent.get("more", *patterns[3])
        if left[0] > 0:  # the call ended before
            break
    assert line < 59
