"""NumPy instead of CuPy, and SciPy instead of cupyx.scipy: every step of a measurement on a GPU but the device."""

import time
from types import ModuleType, SimpleNamespace

import numpy as np
import scipy.sparse as sp


class Event:
    """A point in time of the CPU's clock."""

    def record(self, stream=None):
        self.at = time.perf_counter()

    def synchronize(self):
        """The CPU has waited already."""


def modules(**more):
    """name -> module, for sys.modules: "cupy" and what of cupyx is used; more : attributes of "cupy"."""
    stream = SimpleNamespace(synchronize=lambda: None, ptr=0)
    cupy = ModuleType("cupy")
    cupy.__getattr__ = lambda name: getattr(np, name)
    cupy.cuda = SimpleNamespace(
        Event=Event,
        get_elapsed_time=lambda first, last: 1e3 * (last.at - first.at),
        get_current_stream=lambda: stream,
    )
    cupy.RawKernel = lambda code, name: lambda grid, block, arguments: None
    cupy.get_default_memory_pool = lambda: SimpleNamespace(free_all_blocks=lambda: None)
    vars(cupy).update(more)
    sparse = SimpleNamespace(csr_matrix=sp.csr_matrix)
    scipy = SimpleNamespace(sparse=sparse)
    return {
        "cupy": cupy,
        "cupy.cuda.compiler": SimpleNamespace(compile_using_nvrtc=None),
        "cupy_backends.cuda.libs": SimpleNamespace(nvrtc=None),
        "cupyx": SimpleNamespace(scipy=scipy),
        "cupyx.scipy": scipy,
        "cupyx.scipy.sparse": sparse,
    }
