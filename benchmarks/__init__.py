"""Measurements of finelu and of the libraries it is compared with; run from the root of a checkout."""

from finelu.compiling import compile_eagerly

compile_eagerly()  # what is measured is what a machine does that has compiled all it needs
