"""Solvers of whole systems for `benchmarks.claims.rivals`: a file for each library. docs/benchmarks.md has the rules."""
