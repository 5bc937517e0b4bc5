"""Solvers of whole systems for `benchmarks.claims.rivals`, a file a library; the rules are in docs/benchmarks.md."""
