"""How the threads of a call share its items: the loops that every kernel with several threads runs.

A kernel is called on the same arguments by each thread. It works through items 0, 1, ..., m - 1, each of which one of
the threads claims: state[0] is the next item, and done[t] is set once item t is complete.

    t = claim(state)                                    # items that do not depend on each other
    while t < done.size:
        ...
        t = complete(state, done, t)
    wait_until_done(done, 0, done.size)

    known, t = 0, claim(state)                          # item t needs the results of the items before after[t] <= t
    while t < after.size:
        known = wait_until_done(done, known, after[t])
        ...
        t = complete(state, done, t)
    wait_until_done(done, known, after.size)

These are plain functions, as a generator of Numba's keeps a reference to each of its arrays for ever.

With a workspace for each thread, a kernel takes `workspace[fetch_add(state, 1, 1)]` before the loop; it must not write
to it before the first item is claimed, as a thread that comes too late for any may find it in other use.

Behind the loop every item is complete, whichever thread has run it. Progress: look at the first item that is not done.
If a thread has claimed it, that thread waits for no other, since all items before it are done. If none has, all claimed
items are done, so no thread waits for an `after`, and the next claim takes it. The calling thread always claims; so
everything ends, even if no other thread ever comes, and none that has claimed an item leaves before it is done.
"""

from __future__ import annotations

from numba import njit

from finelu.kernels.cpu.runtime.atomics import fetch_add, load_acquire, relax, store_release


@njit(nogil=True)
def claim(state):
    """The next item, which this thread has to work on; beyond the last where none is left."""
    return fetch_add(state, 0, 1)


@njit(nogil=True)
def complete(state, done, t):
    """Item t is complete, for all threads to see; the next item."""
    store_release(done, t, 1)
    return fetch_add(state, 0, 1)


@njit(nogil=True)
def wait_until_done(done, first, stop):
    """Return `stop` once done[first:stop] are all set; the caller knows that done[:first] are."""
    rounds = 0
    while first < stop:
        if load_acquire(done, first) != 0:
            first += 1
            rounds = 0
        else:
            relax(rounds)
            rounds += 1
    return first
