"""Results that follow from a pattern alone, such as orders and analyses, kept for the last patterns.

So a loop over `solve` or `SparseLU().factor` with new values of one pattern orders and analyses once. Results have the
same bits as computed anew if no value has a part in them. Analyses of PARDISO that scale and match, those of feral of
matrices that are not definite, and pivots of KLU off the diagonal come from earlier values, as in an update, and may be
bad for others: they are used only where the error of solves is looked at, see `Library.from_earlier`. Factors by
PARDISO on several threads differ in their bits from run to run anyway.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeVar
from weakref import ref

import numpy as np

T = TypeVar("T")
MOST = 2**26  # bytes of all that is kept
FEW = 96  # results that are kept: to look through thousands took longer than a small solve
SHORT = 2**14  # bytes of an array whose copy takes less time than a call of NumPy


class _Copy:
    """The arrays of a pattern, and how many results for it are kept."""

    __slots__ = ("indices", "indptr", "uses")

    def __init__(self, indptr: Any, indices: Any):
        self.indptr, self.indices, self.uses = indptr, indices, 1


class Recent:
    """What was found for the last patterns; the least recently used are dropped beyond `most` bytes.

    A pattern is compared by its content, of which a copy is kept: arrays that change in place are other patterns. For
    one kind of result, number of rows and number of entries only the last pattern is kept. Threads may share it.
    A result that is too large, or comes while another thread is here, is not kept. A result that owns memory frees it
    when it is dropped.
    """

    def __init__(self, most: int = MOST):
        self._most = most
        self._kept: OrderedDict[tuple[Hashable, int, int], tuple[Any, Any, Any, int, _Copy]] = OrderedDict()
        self._copies: dict[tuple[int, int], list[_Copy]] = {}  # of patterns, by their numbers of rows and entries
        self._held = 0  # bytes of results and copies
        self._turn = threading.Lock()
        if hasattr(os, "register_at_fork"):  # another thread may have been here, and is not in the child
            os.register_at_fork(after_in_child=partial(_begin_anew, ref(self)))

    def get(self, kind: Hashable, indptr: Any, indices: Any) -> Any:
        """The result of this kind for a pattern, None if there is none. Cost: one pass over the pattern."""
        key = kind, indptr.size, indices.size
        found = self._kept.get(key)
        if found is None or not (equal(found[0], indptr) and equal(found[1], indices)):
            return None
        if self._begun():  # another thread would end the look at the last one with an error
            try:
                if key in self._kept and next(reversed(self._kept)) != key:
                    self._kept.move_to_end(key)
            finally:
                self._turn.release()
        return found[2]

    def keep(
        self,
        kind: Hashable,
        indptr: Any,
        indices: Any,
        result: T,
        size: int,
        *,
        owned: bool = False,
        light: bool = False,
    ) -> T:
        """Keep a result of `size` bytes, and return it. Cost: a copy of the pattern, or a comparison with one.

        owned : whether no one writes to the arrays of the pattern any more, so that they need no copy.
        light : whether it takes little time to find: then no other result for a pattern of its size gives way to it.
        """
        self.keeps(kind, indptr, indices, result, size, owned=owned, light=light)
        return result

    def keeps(
        self,
        kind: Hashable,
        indptr: Any,
        indices: Any,
        result: Any,
        size: int,
        *,
        owned: bool = False,
        light: bool = False,
    ) -> bool:
        """Keep a result as `keep` does. False if it is too large, or if another thread keeps one at the moment."""
        if size + indptr.nbytes + indices.nbytes > self._most:
            return False
        key = kind, indptr.size, indices.size
        if not self._begun():
            return False
        try:
            copy = self._copied(key[1:], indptr, indices, owned)
            if key in self._kept:
                self._without(key)
            self._kept[key] = copy.indptr, copy.indices, result, size, copy
            self._held += size
            if len(self._kept) > FEW:
                self._without(next(iter(self._kept)))
            if self._held > self._most:
                for other in list(self._kept):  # of few, the last one is this one
                    if other == key or not light or other[1:] != key[1:]:
                        self._without(other)
                    if self._held <= self._most:
                        break
        except BaseException:  # Ctrl-C: what is held is not known any more
            self._drop_all()
            raise
        finally:
            self._turn.release()
        return True

    def drop(self, kind: Hashable, indptr: Any, indices: Any) -> None:
        """Keep nothing of this kind for patterns with as many rows and entries."""
        dropped, key = None, (kind, indptr.size, indices.size)
        if self._begun():
            try:
                dropped = self._without(key) if key in self._kept else None
            except BaseException:
                self._drop_all()
                raise
            finally:
                self._turn.release()
        del dropped  # it is freed once others may keep results

    def _copied(self, sizes: tuple[int, int], indptr: Any, indices: Any, owned: bool) -> _Copy:
        """A copy of a pattern: that of another result for it, if there is one, or the arrays, if they are owned."""
        copies = self._copies.setdefault(sizes, [])
        for copy in copies:
            if equal(copy.indptr, indptr) and equal(copy.indices, indices):
                copy.uses += 1
                return copy
        arrays = (indptr, indices) if owned else (indptr.copy(), indices.copy())
        copies.append(_Copy(*arrays))
        self._held += indptr.nbytes + indices.nbytes
        return copies[-1]

    def _without(self, key: tuple[Hashable, int, int]) -> Any:
        """The result of this key, which is no longer kept; its copy of the pattern goes with the last result for it."""
        *_, result, size, copy = self._kept.pop(key)
        copy.uses -= 1
        if not copy.uses:
            copies = self._copies[key[1:]]
            copies.remove(copy)
            self._held -= copy.indptr.nbytes + copy.indices.nbytes
            if not copies:
                del self._copies[key[1:]]
        self._held -= size
        return result

    def forget(self) -> None:
        """Drop all that is kept, so that the next call takes what a first one takes."""
        if self._begun():
            try:
                self._drop_all()
            finally:
                self._turn.release()

    def _drop_all(self) -> None:
        self._kept, self._copies, self._held = OrderedDict(), {}, 0

    def _begun(self) -> bool:
        """Take the lock if no other thread has it, and return whether it is taken: no thread waits for it, since
        nothing has to be kept."""
        return self._turn.acquire(blocking=False)


def _begin_anew(recent: ref[Recent]) -> None:
    found = recent()
    if found is not None:
        found._drop_all()
        found._turn = threading.Lock()


def equal(a: Any, b: Any) -> bool:
    """Whether two arrays (n,) are equal. Bytes of short ones are compared, which takes less time: there 0 and -0
    differ, and NaN equals the same NaN."""
    if a is b or a.size != b.size:
        return a is b
    if a.nbytes <= SHORT and a.dtype == b.dtype:
        return bool(a.tobytes() == b.tobytes())
    return bool(np.count_nonzero(a == b) == a.size)


RECENT = Recent()


def of_pattern(A: Any, find: Callable[[Any], T]) -> T:
    """find(A), a number that follows from the pattern of the CSR A alone; on the host it is kept for the last ones."""
    if not isinstance(A.indptr, np.ndarray):
        return find(A)
    known: dict[Callable[[Any], Any], Any] | None = RECENT.get("facts", A.indptr, A.indices)
    if known is None:
        known = RECENT.keep("facts", A.indptr, A.indices, {}, 0, light=True)
    if find not in known:
        known[find] = find(A)
    found: T = known[find]
    return found
