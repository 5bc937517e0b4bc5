"""How the threads of a call share its items: the loop that every kernel with several threads runs.

A kernel is called on the same arguments by each thread. It works through items 0, 1, ..., m - 1: state[0] is the next
item, and done[t] is set once item t is complete. `by_items` and `by_ordered_items` make such a kernel of its work with
one item. One that needs memory of its own for all its items writes the loop out:

    known, t = 0, next_item(state)                      # item t needs the results of the items before after[t] <= t
    while t < after.size:
        known = wait_until_done(done, known, after[t])
        ...
        t = complete(state, done, t)
    wait_until_done(done, known, after.size)

These are plain functions, as a generator of Numba's keeps a reference to each of its arrays for ever.

With a workspace for each thread, a kernel takes `workspace[fetch_add(state, 1, 1)]` before the loop; it must not write
to it before it has its first item, as a thread that comes too late for any may find it in other use.

Behind the loop every item is complete, whichever thread has run it. Progress: look at the first item that is not done.
If a thread has taken it, that thread waits for no other, since all items before it are done. If none has, all items
taken are done, so no thread waits for an `after`, and the next thread takes it. The calling thread always takes items;
so everything ends, even if no other thread ever comes, and none that has taken an item leaves before it is done.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

from numba import njit

from finelu.kernels.cpu.runtime.atomics import fetch_add, load_acquire, relax, store_release
from finelu.kernels.cpu.runtime.jit import compiled, nested

LOOP = """def {name}({after}state, done, {arguments}):
    known, t = 0, next_item(state)
    while t < {items}.size:
        {wait}
        body(t, {operands})
        t = complete(state, done, t)
    wait_until_done(done, known, {items}.size)
"""


@nested
def next_item(state):
    """The next item, which this thread has to work on; beyond the last where none is left."""
    return fetch_add(state, 0, 1)


@nested
def complete(state, done, t):
    """Item t is complete, for all threads to see; the next item."""
    store_release(done, t, 1)
    return fetch_add(state, 0, 1)


@nested
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


def by_items(body: Callable, *, ordered: bool = False) -> Callable:
    """The kernel (state, done, *arguments) that runs body(t, *arguments) for each item t.

    A body that names `state` or `after` is given that of the kernel. Its code becomes a part of the kernel's.
    """
    operands = list(inspect.signature(body).parameters)[1:]
    text = LOOP.format(
        name=body.__name__,
        after="after, " if ordered else "",
        arguments=", ".join(name for name in operands if name not in ("state", "after")),
        items="after" if ordered else "done",
        wait="known = wait_until_done(done, known, after[t])" if ordered else "pass",
        operands=", ".join(operands),
    )
    code = body.__code__
    names = {"body": njit(inline="always")(body), "__name__": body.__module__}
    names |= {f.__name__: f for f in (next_item, complete, wait_until_done)}
    # With the place of the body, under which Numba keeps compiled code.
    exec(compile("\n" * (code.co_firstlineno - 1) + text, code.co_filename, "exec"), names)
    kernel = names[body.__name__]
    kernel.__doc__ = body.__doc__
    return compiled(kernel)


by_ordered_items = partial(by_items, ordered=True)
"""Likewise the kernel (after, state, done, *arguments), in which item t waits for the items before after[t] <= t."""
