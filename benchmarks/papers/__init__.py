"""The tables and figures of the papers, measured anew: one module a paper."""
