"""What README.md and the documentation claim, measured: one program a claim, `python -m benchmarks.claims.NAME`."""
