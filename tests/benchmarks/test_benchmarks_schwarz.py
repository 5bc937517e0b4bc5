"""The benchmark of Schwarz methods: what it measures, and what its tables say."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.claims import schwarz  # noqa: E402
from benchmarks.harness.record import Record, Run  # noqa: E402


def test_every_recipe_solves_and_the_best_peer_is_compared(tmp_path):
    arguments = ["--cpu", "--matrices", "poisson5:20,20", "--machine", "box", "--out", str(tmp_path)]
    assert schwarz.main(arguments) == 0
    run = Run.load(next(tmp_path.glob("schwarz-cpu-box-*.json.gz")))
    assert {r.variant for r in run.records} == {"Schwarz", "exact", "MILU0", "adapted"} and not run.failures
    assert all(r.detail["converged"] for r in run.records)
    ((ratio, name),) = schwarz.ratios(run, "Schwarz", ["poisson5:20,20"])
    best = min(r.numeric_ms for r in run.records if r.variant != "Schwarz")
    assert name == "poisson5:20,20" and ratio == best / run.one(variant="Schwarz").numeric_ms
    page = next(tmp_path.glob("*.md")).read_text()
    assert "all others" in page and f"{ratio:.2f}" in page


def test_what_does_not_converge_counts_as_lost_or_won():
    def record(variant, ms, converged):
        return Record("A", "solution", "gpu", "finelu", variant, ms, detail={"converged": converged})

    def found(*records):
        run = Run("schwarz", {}, "2026-01-02", records=[*records])
        return schwarz.ratios(run, "Schwarz", ["A"])

    fast, slow = record("Schwarz", 2.0, True), record("exact", 8.0, True)
    assert found(fast, slow, record("MILU0", 1.0, False)) == [(4.0, "A")]
    assert found(record("Schwarz", 1.0, False), slow) == [(0.0, "A")]
    assert found(fast, record("exact", 1.0, False)) == [(float("inf"), "A")]
    assert found(record("Schwarz", 1.0, False), record("exact", 1.0, False)) == []
