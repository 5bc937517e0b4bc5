"""ILU(0) as called, and MKL and ilupp: means and losses from made-up records, and a whole run on a small matrix."""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.claims import calls  # noqa: E402
from benchmarks.harness.record import Record, Run, page_of  # noqa: E402
from benchmarks.harness.suite import Problem  # noqa: E402
from benchmarks.peers import mkl  # noqa: E402


def a_run(times):
    """times: matrix -> (ours, MKL's) ms of update."""
    run = Run("calls", {"name": "box", "cpu": "a cpu", "cores": 2}, "2026-01-02", {"threads": 2})
    for name, (ours, theirs) in times.items():
        run.matrices[name] = {"n": 10, "nnz": 50, "apart": name.startswith("tridiagonal")}
        for who, variant, ms in (("finelu", calls.FINELU, ours), ("mkl", calls.MKL, theirs)):
            run.records.append(Record(name, "update", "cpu", who, variant, ms, error=1e-15, threads=2))
    return run


def cells(text, begin):
    line = next(li for li in text.splitlines() if li.startswith(f"| {begin}"))
    return [c.strip() for c in line.strip("|").split("|")]


def test_mean_median_worst_and_losses():
    run = a_run({"a": (1.0, 2.0), "b": (1.0, 4.0), "c": (2.0, 1.0), "tridiagonal:9": (9.0, 1.0)})
    assert cells(calls.summary(run), "`F.update(A)`")[2:] == ["3", "1.59", "2", "0.5", "c", "1"]
    assert cells(calls.work_table(run, "update"), "tridiagonal:9")[3:5] == ["9", "1"]


def test_what_is_wrong_counts_in_no_ratio_and_is_listed():
    run = a_run({"a": (1.0, 2.0), "b": (1.0, 4.0)})
    run.one(matrix="b", who="mkl").error = 0.1
    assert calls.ratios(run, "update", calls.MKL) == {"a": 2.0}
    assert cells(calls.wrong_table(run), "b")[2:] == ["mkl", calls.MKL, "0.1"]


def test_the_check_tells_a_solution_from_another():
    inputs = calls.Inputs(Problem("poisson5:12,12"))
    side = calls.Ours(1)
    side.factor(inputs.matrices[0])
    x = side.solve(inputs.right[0])
    assert inputs.error(x) < calls.SOUND
    assert inputs.error(side.solve(inputs.right[1])) > calls.SOUND  # of another right-hand side
    side.update(inputs.matrices[1])
    assert inputs.error(side.solve(inputs.right[0])) > calls.SOUND  # by the factors of another matrix
    x[3] = np.nan
    assert not inputs.error(x) <= calls.SOUND


def test_every_input_is_taken_and_slow_calls_are_fewer():
    taken, seconds = [], []
    calls.timed(taken.append, list("abcd"), seconds, iter(np.arange(0.0, 1e3, 0.01)).__next__)
    assert len(seconds) == calls.MOST and set(taken) == set("abcd")
    taken, seconds = [], []
    calls.timed(taken.append, list("abcd"), seconds, iter(np.arange(100.0)).__next__)
    assert taken == ["a", "b"] and seconds == [1.0]


def test_it_runs_whole(tmp_path):
    arguments = ["--matrices", "poisson5:15,15", "--out", str(tmp_path), "--machine", "box", "--threads", "1"]
    assert calls.main(arguments) == 0
    (path,) = tmp_path.glob("calls-box-*.json.gz")
    run = Run.load(path)
    ours = run.find(who="finelu")
    assert [r.work for r in ours] == [*calls.WORKS, *calls.TOTALS]
    totals = [r.numeric_ms for r in ours if r.work in calls.TOTALS]
    assert totals == sorted(totals)
    assert not run.failures and all(calls.sound(r) and r.numeric_ms > 0 for r in run.records)
    assert ("mkl" in run.left_out) == (not mkl.available())
    text = page_of(path).read_text()
    assert "as called" in text and "- commit: " in text
    assert calls.main(["--from", str(path), "--out", str(tmp_path / "again")]) == 0
    assert next((tmp_path / "again").glob("*.md")).read_text() == text


@pytest.mark.skipif(not mkl.available(), reason="MKL is not installed (pip install mkl)")
def test_mkl_updates_and_solves_with_the_new_values():
    inputs = calls.Inputs(Problem("poisson5:12,12"))
    side = calls.MKLs(1)
    side.factor(inputs.matrices[1])
    side.solve(inputs.right[0])
    side.update(inputs.matrices[0])
    assert inputs.error(side.solve(inputs.right[0])) < calls.SOUND
