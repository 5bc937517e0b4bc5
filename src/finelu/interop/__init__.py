"""finelu in the terms of other packages: `superlu` (SciPy's and CuPy's spilu), `torch`, `jax`, `pyamg`, `petsc`.

Each module needs its own package only, and none is imported with finelu.
"""
