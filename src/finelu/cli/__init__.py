"""finelu solve | compare | inspect | info | warmup | calibrate | bench: from a matrix file to a solution.

Exit status: 0 converged; 1 not converged, or A is singular and has no solution (warmup: no folder keeps the kernels);
2 bad input, or an output that cannot be written; 70 an error in finelu itself; 130 interrupted.

Errors are one line on stderr, or with --json one object {"error": ...} on stdout (on stderr if stdout cannot be
written); with FINELU_DEBUG=1 in the environment the traceback of an error in finelu itself comes before it. A reader
that closes the pipe early is no error, output to a closed stream is dropped, and characters that a stream cannot encode
are replaced by similar ASCII ones. Slow imports are inside the functions that need them.
"""

from finelu.cli.program import app, main

__all__ = ["app", "main"]
