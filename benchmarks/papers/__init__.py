"""The tables and figures of the papers, measured again: one program a paper, `finelu bench NAME`."""
