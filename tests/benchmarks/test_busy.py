"""The benchmark of time under load: series of calls, interleaved states, and what a record says of them."""

import math
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.claims import busy  # noqa: E402
from benchmarks.claims.solve_tables import OURS  # noqa: E402
from benchmarks.harness.record import Run  # noqa: E402


def outcomes(*seconds):
    return iter([s if isinstance(s, dict) else {"status": "", "seconds": s} for s in seconds])


def test_a_run_is_a_series_of_calls(monkeypatch):
    results = outcomes(*[busy.SERIES / 4, 3 * busy.SERIES / 4 - 1e-9, 1e-3 * busy.SERIES, 9.0])
    monkeypatch.setattr(busy, "once", lambda *_, **__: next(results))
    found = busy.series("splu", None, 1.0)
    assert found["calls"] == 3 and found["seconds"] == pytest.approx(1.001 * busy.SERIES / 3)


def test_a_series_ends_at_its_first_failure(monkeypatch):
    results = outcomes(busy.SERIES / 4, {"status": "singular", "seconds": 1.0}, 9.0)
    monkeypatch.setattr(busy, "once", lambda *_, **__: next(results))
    assert busy.series("splu", None, 1.0) == {"status": "singular", "seconds": 1.0}


class Process:
    def __init__(self):
        self.runs, self.sent = False, []

    def send_signal(self, given):
        self.runs = given == signal.SIGCONT


class Scripted:
    """A worker whose solvers take a second without load and the given seconds under it, or fail."""

    def __init__(self, process, under_load):
        self.process, self.under_load, self.asked = process, under_load, []

    def ask(self, path, solver, limit):
        self.asked.append((solver, self.process.runs))
        found = self.under_load[solver]
        if isinstance(found, str):
            return {"status": found}
        return {"status": "", "seconds": found if self.process.runs else 1.0, "tried": []}


def test_each_round_has_each_solver_in_both_states_and_failures_once():
    process = Process()
    worker = Scripted(process, {OURS: 2.0, "splu": 4.0, "splu symmetric": "singular"})
    results = busy.rounds(worker, "path", [process], 1.0, math.inf)
    assert not process.runs
    first, rest = worker.asked[:6], worker.asked[6:]
    assert set(first) == {(solver, runs) for solver in (OURS, *busy.SPLU) for runs in (False, True)}
    assert len(rest) == 4 * busy.ROUNDS and "splu symmetric" not in dict(rest)
    assert [r["seconds"] for r in results[OURS, "busy"]] == [2.0] * (1 + busy.ROUNDS)
    assert [r["seconds"] for r in results["splu", "quiet"]] == [1.0] * (1 + busy.ROUNDS)


def test_when_the_seconds_are_spent_the_round_after_the_first_is_still_made():
    process = Process()
    worker = Scripted(process, {OURS: 2.0, "splu": 4.0, "splu symmetric": 4.0})
    busy.rounds(worker, "path", [process], 1.0, 0.0)
    assert len(worker.asked) == 12


@pytest.fixture
def run():
    """On A `solve` loses 3 times and splu 2, on B `solve` 2 and splu 2, with another route; splu symmetric fails."""
    made = Run("busy", {"name": "box"}, "2026-01-02", matrices={"A": {"n": 5, "nnz": 9}, "B": {"n": 7, "nnz": 9}})
    for name, lost, route in (("A", 3.0, "IC0()"), ("B", 2.0, "ILUT()")):
        for solver, factor in ((OURS, lost), ("splu", 2.0)):
            of_state = {
                "quiet": [{"status": "", "seconds": s, "tried": attempts("IC0()")} for s in (9.0, 1.0, 1.5, 1.1)],
                "busy": [{"status": "", "seconds": factor * s, "tried": attempts(route)} for s in (9.0, 1.0, 1.1, 1.5)],
            }
            made.records.append(busy.record_of(name, solver, of_state, 2))
        failed = {"quiet": [{"status": "singular"}], "busy": [{"status": ""}]}
        made.records.append(busy.record_of(name, "splu symmetric", failed, 2))
    return made


def attempts(recipe):
    return [{"recipe": recipe, "method": "cg", "iterations": 9, "setup_s": 0.1}]


def test_what_a_solver_loses_follows_from_the_record(run):
    assert busy.losses(run, "splu") == pytest.approx({"A": 1.5, "B": 1.0})
    assert busy.losses(run, "splu symmetric") == {}
    assert run.one(matrix="A", variant=OURS).numeric_ms == 1100.0
    (_, _, found, holds, least), (*_, of_none, _), (_, _, routes, same, _) = busy.claims(run)
    assert (found, holds, least) == ("1.22 on 2, 1.5 (A)", "no", "1.22 on 2, 1.5 (A)")
    assert of_none == "not measured" and (routes, same) == ("1 of 2", "no")
    assert "A" in busy.page(run) and busy.in_words(run, "A") == f"{OURS} x3.00, splu x2.00, splu symmetric not solved"
