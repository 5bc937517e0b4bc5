"""Measurements of finelu beside its peers; run from the repository root, for instance `python -m benchmarks.spine`."""
