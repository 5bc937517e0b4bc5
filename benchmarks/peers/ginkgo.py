"""Ginkgo's ParILUT and ParICT as preconditioners, through PyPI's `pyginkgo`, on its reference executor (one thread).

Ginkgo does not give the factors away here, but it applies them: one step of its Richardson iteration from x = 0.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.peers import PeerError


def available() -> bool:
    return find_spec("pyGinkgo") is not None


def version() -> str:
    from importlib.metadata import version as installed

    return f"Ginkgo of pyGinkgo {installed('pyginkgo')}"


def preconditioner(S: sp.csr_matrix, cholesky: bool, steps: int, fill: float = 1.0) -> Callable[[Any], Any]:
    """r -> M^-1 r with the factors of `steps` steps, of at most `fill` times A's entries, exactly selected.

    S : (n, n) float64 with fewer than 2^31 entries. Raises PeerError with Ginkgo's message where it finds no factors.
    """
    import pyGinkgo  # ty: ignore

    kind = ("Ic", "ParIct") if cholesky else ("Ilu", "ParIlut")
    factorization = {"type": f"factorization::{kind[1]}", "iterations": steps, "fill_in_limit": fill}
    factorization["approximate_select"] = False
    apart = {} if cholesky else {"reverse_apply": False}
    one_step = {
        "type": "solver::Ir",
        "solver": {"type": f"preconditioner::{kind[0]}", "factorization": factorization, **apart},
        "criteria": [{"type": "Iteration", "max_iters": 1}],
    }
    executor, n = pyGinkgo.device("cpu"), S.shape[0]
    arrays = S.data.astype(np.float64), S.indices.astype(np.int32), S.indptr.astype(np.int32)
    A = pyGinkgo.matrix.Csr_double_int32(executor, S.shape, *arrays)
    try:
        M = pyGinkgo.generate_solver(A, one_step)
    except RuntimeError as error:
        raise PeerError(f"Ginkgo: {error}") from error

    def apply(r: Any) -> Any:
        b, x = (pyGinkgo.matrix.dense_double(executor, v) for v in (np.array(r).reshape(n, 1), np.zeros((n, 1))))
        M.apply(b, x)
        return np.array(x).reshape(n)

    return apply
