"""The course of a benchmark: one system after the other while the budget lasts, then the record and its page."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import TypeVar

from benchmarks.harness.clock import Budget
from benchmarks.harness.record import Run, RunEnded

T = TypeVar("T")


def carry_out(
    run: Run,
    systems: Iterable[tuple[str, T]],
    measure: Callable[[str, T], str],
    options: Namespace,
    page: Callable[[Run], str],
    summary: Callable[[Run], str],
) -> int:
    """Measure each system, write the record and its page, and print the summary; returns the exit status.

    systems : pairs of a name and the system.  measure(name, system) : adds what it measured to `run`, and returns what
    is to be printed of it.  options : with `budget` and `out`, of `add_budget` and `add_place`.
    The record is saved after each system. Those not begun when the budget is spent are left out, with that reason.
    Ctrl-C and RunEnded end the measurements; what was measured is published, and the status is 1.
    """
    budget, complete = Budget(options.budget), True
    try:
        for name, system in systems:
            if budget.over():
                run.left_out[name] = "the budget was spent"
                continue
            shown = measure(name, system)
            run.save(options.out)
            print(f"{budget.spent():5.0f} s  {name} {shown}".rstrip(), flush=True)
    except (RunEnded, KeyboardInterrupt):
        complete = False
    path = run.publish(options.out, page(run))
    print(f"\n{summary(run)}{len(run.failures)} failures; {path}")
    return 0 if complete else 1
