"""Shared by several commands: arguments and options, exit statuses, the matrix, the right-hand side, the outputs."""

from __future__ import annotations

import math
import os
import re
from typing import TYPE_CHECKING, Annotated, Any

import typer

import finelu
from finelu.errors import FileError, MatrixError, ParameterError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from finelu.matrix import CSR

CONVERGED, NOT_CONVERGED, BAD_INPUT, INTERNAL_ERROR, INTERRUPTED = 0, 1, 2, 70, 130  # exit statuses
SEED = 0  # of the default right-hand side

Matrix = Annotated[str, typer.Argument(metavar="A", help="matrix file, or gallery:NAME:ARGS (gallery:poisson7:60)")]
RightHandSide = Annotated[str | None, typer.Option("-b", "--rhs", help="right-hand side file; random if not given")]
Rtol = Annotated[float, typer.Option(help="wanted residual norm, relative to the norm of b")]
Threads = Annotated[int | None, typer.Option(help="CPU threads (default: all cores)")]
Json = Annotated[bool, typer.Option("--json", help="print one JSON object and nothing else")]


def duration(option: str, text: str) -> float:
    """The seconds of "90", "60s", "5m" or "1h", the value of an option."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(s|m|h|)", text.strip().lower())
    value = float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]] if found else 0.0
    if not 0 < value < math.inf:
        raise ParameterError(f"{option} {text}: a time larger than 0 is needed, such as 60s, 5m or 1h.")
    return value


def set_threads(threads: int | None) -> None:
    if threads is not None:
        finelu.set_num_threads(threads)
    finelu.get_num_threads()  # raises for a wrong FINELU_NUM_THREADS, even if no kernel needs the number


def load(matrix: str) -> CSR:
    """The matrix of a file, or of the gallery; its diagonal may have gaps, which the recipe checks."""
    from finelu.matrix import as_csr

    if matrix.startswith("gallery:"):
        return as_csr(finelu.gallery.problem(matrix.removeprefix("gallery:")), diagonal=False)
    if matrix.partition(":")[0] in finelu.gallery.PROBLEMS and not os.path.exists(matrix):
        raise FileError(f"{matrix}: there is no such file; the test problem is gallery:{matrix}.")
    return as_csr(finelu.read_matrix(matrix), diagonal=False)


def right_hand_side(path: str | None, A: CSR, instead: str) -> tuple[NDArray[Any], str, float]:
    """b (n,) or columns (n, k), where it comes from, and its 2-norm, the largest of several.

    instead : what to do with several columns, for the error; "": they are taken.
    """
    import numpy as np
    import scipy.linalg

    from finelu.io import read_vector
    from finelu.matrix import check_vector

    if path is None:
        b: NDArray[Any] = np.random.default_rng(SEED).uniform(-0.5, 0.5, A.n).astype(A.dtype)
        name = f"uniform in [-0.5, 0.5], seed {SEED}"
    else:
        b, name = check_vector(read_vector(path), A.n, A.data), path
        if b.ndim == 2 and instead:
            raise MatrixError(f"{path}: holds {b.shape[1]} columns, and one right-hand side is taken here; {instead}.")
    columns = b.reshape(b.shape[0], -1).T
    return b, name, max(float(scipy.linalg.norm(column)) for column in columns)


def check_outputs(
    *inputs: str | None, output: str | None = None, plot: str | None = None, page: str | None = None
) -> None:
    """Raise, before any work is done, if a file cannot be written, or is an input or another output, too."""
    if output is not None:
        from finelu.io import check_writable

        check_writable(output)
    if plot is not None:
        from finelu.report import check_plot

        check_plot(plot)
    if page is not None:
        from finelu.report import check_page

        check_page(page)
    written = [path for path in (output, plot, page) if path is not None]
    if written:
        from finelu.io import check_apart

        check_apart(written, [path for path in inputs if path is not None])
