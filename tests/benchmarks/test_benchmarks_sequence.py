"""The benchmark of `Sequence`: the systems, what it measures, and what its tables say."""

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import finelu as fl

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.claims import sequence  # noqa: E402
from benchmarks.claims.sequence import SEQUENCE, SOLVES  # noqa: E402
from benchmarks.harness.record import Record, Run  # noqa: E402


def test_values_change_by_a_percent_and_symmetry_stays():
    S = fl.gallery.poisson5(8)
    found = sequence.systems(S, 5)
    assert len(found) == 5
    for (A, b), (B, c) in pairwise(found):
        change = abs(B.data / A.data - 1)
        assert 0.005 < change.max() <= 0.0101 and abs(B - B.T).max() < 1e-14
        assert 0.001 < np.linalg.norm(c - b) / np.linalg.norm(b) < 0.0101


def test_only_right_answers_are_compared():
    def record(name, variant, ms, error=1e-9, recipe="IC0"):
        detail = {"converged": True, "recipes": [recipe], "decisions": {"reuse": 19, "solve": 1}, "iterations": [3]}
        return Record(name, "steps", "cpu", variant, variant, ms, None, error, detail=detail)

    run = Run(
        "sequence-cpu", {"name": "box", "commit": "0"}, "2026-01-02", matrices={k: {"n": 9, "nnz": 33} for k in "AB"}
    )
    run.records = [record("A", SOLVES, 8.0), record("A", SEQUENCE, 2.0), record("B", SOLVES, 3.0)]
    run.records.append(record("B", SEQUENCE, 1.0, recipe="SparseLU"))
    assert sequence.ratios(run) == {"A": 4.0, "B": 3.0}
    text = sequence.page(run)
    assert "3.46" in text and "3.00 B" in text and "4.00 A" in text and "19 reuse, 1 solve" in text
    run.records[1].error = 1e-3
    assert sequence.ratios(run) == {"A": 0.0, "B": 3.0}


@pytest.mark.parametrize("name", ["poisson5:20,20"])
def test_a_small_matrix(tmp_path, name):
    assert sequence.main(["--matrices", name, "--machine", "box", "--out", str(tmp_path)]) == 0
    run = Run.load(next(tmp_path.glob("sequence-cpu-box-*.json.gz")))
    assert {r.variant for r in run.records} == {SOLVES, SEQUENCE} and not run.failures
    decisions = run.one(matrix=name, variant=SEQUENCE).detail["decisions"]
    assert sum(decisions.values()) == sequence.STEPS and decisions["solve"] == 1
