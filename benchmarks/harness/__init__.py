"""Shared by the benchmarks: matrices, clocks, records, tables, and processes that solve."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of the checkout
RESULTS = ROOT / "benchmarks" / "results"
