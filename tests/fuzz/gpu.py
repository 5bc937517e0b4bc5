"""The random systems of systems.py on a GPU, judged as on the CPU, for `run.py --kind gpu`.

A and b are moved to the GPU, or, for one `solve` in four, left on the host; `solve` is asked for device="cuda".
Kernels for float32 and complex128 are compiled for many minutes at first: a seed stands for the first of seed,
seed + 10^9, ... whose system is of float64 or complex64, unless FINELU_FUZZ_TYPES=all is set.
"""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import replace
from functools import cache
from typing import Any

import judge
import numpy as np
import scipy.sparse as sp
import systems

import finelu as fl
from finelu.device import require_gpu, to_host

USUAL = ("float64", "complex64")
NEXT = 10**9
on_host = judge.answer
LOST = (700, 702, 709, 715, 716, 717, 718, 719)  # CUDA's errors after which a process can no longer use the GPU
DIED = 70


def case_of(seed: int) -> systems.Case:
    case = systems.case(seed)
    while os.environ.get("FINELU_FUZZ_TYPES") != "all" and case.system.stored.dtype.name not in USUAL:
        seed += NEXT
        case = systems.case(seed)
    return case


def moved(A: Any, stored: sp.csr_matrix, form: str) -> Any:
    """A on the GPU, in the form in which it came where CuPy has it."""
    cupy = require_gpu()
    import cupyx.scipy.sparse as csp

    if isinstance(A, np.ndarray) and A.dtype.isnative:
        return cupy.asarray(A)
    if form in ("coo", "duplicates"):
        places = cupy.asarray(A.row), cupy.asarray(A.col)
        return csp.coo_matrix((cupy.asarray(A.data), places), shape=A.shape)
    if form == "csc":
        return csp.csc_matrix(tuple(cupy.asarray(v) for v in (A.data, A.indices, A.indptr)), shape=A.shape)
    S = A if form == "unsorted" else stored
    return csp.csr_matrix(tuple(cupy.asarray(v) for v in (S.data, S.indices, S.indptr)), shape=S.shape)


def content(v: Any) -> bytes:
    """All that is stored in a matrix or vector on the GPU."""
    names = [name for name in ("data", "indices", "indptr", "row", "col") if hasattr(v, name)]
    arrays = [getattr(v, name) for name in names] if hasattr(v, "nnz") else [v]
    return b"".join(array.get().tobytes() for array in arrays)


def here(result: Any) -> Any:
    """An answer with its vectors on the host, where they are judged."""
    if isinstance(result, fl.Solution):
        return replace(result, x=to_host(result.x))
    return tuple(here(part) for part in result) if isinstance(result, tuple) else to_host(result)


def answer(case: systems.Case) -> Any:
    """What judge.answer returns, of the same system on the GPU."""
    warnings.filterwarnings("ignore", module="cupy")  # of what CuPy says about itself; finelu's own are faults
    cupy, system, call = require_gpu(), case.system, case.call
    A, b, options = moved(system.A, system.stored, system.words[-1]), cupy.asarray(system.b), dict(call.options)
    if "x0" in options:
        options["x0"] = cupy.asarray(options["x0"])
    if call.kind == "solve":
        options["device"] = "cuda"
        if case.seed % 4 == 0:
            A, b, options["x0"] = system.A, system.b, call.options.get("x0")
    before = None if A is system.A else (content(A), content(b))
    asked = replace(case, system=replace(system, A=A, b=b), call=replace(call, options=options))
    if call.kind == "sequence":
        with np.errstate(all="ignore"):
            later = system.stored * 1.5
        sequence = fl.Sequence(**options)
        result = tuple(sequence.step(*given) for given in ((A, b), (moved(later, later, "csr"), b), (None, b)))
    else:
        result = on_host(asked)
    if before is not None and before != (content(A), content(b)):
        raise AssertionError("A or b was changed on the GPU")
    return here(result)


def survived(case: systems.Case) -> Any:
    """`answer`; ends the process where the GPU is lost to it, so that another one goes on."""
    from cupy_backends.cuda.api.driver import CUDADriverError
    from cupy_backends.cuda.api.runtime import CUDARuntimeError

    try:
        return answer(case)
    except (CUDADriverError, CUDARuntimeError) as error:
        if error.status in LOST:
            print(error, file=sys.stderr, flush=True)
            os._exit(DIED)
        raise


@cache
def judges_gpu() -> None:
    """judge.judged asks finelu on the GPU from now on, and does not count what NVRTC takes."""
    require_gpu()
    from finelu import compiling
    from finelu.kernels.cuda.runtime import launch

    made = launch._made

    def timed(*arguments: Any) -> Any:
        compiling._clock.begin()
        try:
            return made(*arguments)
        finally:
            compiling._clock.end()

    launch._made, judge.answer = timed, survived


def judged(seed: int) -> judge.Verdict:
    judges_gpu()
    return judge.judged(case_of(seed))
