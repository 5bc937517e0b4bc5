"""Measurements of finelu and of the libraries it is compared with; run from the root of a checkout."""
