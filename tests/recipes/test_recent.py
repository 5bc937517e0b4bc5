"""Results for the last patterns: the same as computed anew, for the same content only, within a number of bytes."""

import sys
import threading

import numpy as np
import pytest
import scipy.sparse as sp
from checks import values

from finelu import gallery, ordering
from finelu.recent import Recent

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
    with recent._alone() as mine:
        thread = threading.Thread(target=lambda: recent.keep("order", *PATTERN, "found", 8))
        thread.start()
        thread.join(10)
        assert mine and not thread.is_alive() and recent.get("order", *PATTERN) is None


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
