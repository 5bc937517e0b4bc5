"""What all tests share: the devices, and the real matrices where they are at hand."""

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

MATRICES = Path(os.environ.get("FINELU_MATRICES", Path(__file__).resolve().parents[2] / "shared" / "matrices"))


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU; skipped where there is none")


class Backend:
    """A device: `move` brings arrays and sparse matrices there, `fetch` brings them back to NumPy and SciPy."""

    def __init__(self, name):
        self.name = name

    @property
    def xp(self):
        if self.name == "cpu":
            return np
        import cupy

        return cupy

    def move(self, A):
        if self.name == "cpu":
            return A
        import cupyx.scipy.sparse as csp

        if sp.issparse(A):
            data, indices, indptr = (self.xp.asarray(v) for v in (A.tocsr().data, A.tocsr().indices, A.tocsr().indptr))
            return csp.csr_matrix((data, indices, indptr), shape=A.shape)
        return self.xp.asarray(A)

    def fetch(self, A):
        return A.get() if hasattr(A, "get") and type(A).__module__.startswith("cupy") else A

    def __repr__(self):
        return self.name


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request):
    """The CPU, and the GPU where there is one."""
    if request.param == "cuda":
        from finelu.device import require_gpu
        from finelu.errors import DeviceError

        try:
            require_gpu()
        except DeviceError as error:
            pytest.skip(str(error))
    return Backend(request.param)


@pytest.fixture
def threads(monkeypatch):
    """`set_num_threads`, undone after the test; triangular solves use threads here even where one would be as fast."""
    import finelu
    from finelu.kernels.cpu import triangular

    monkeypatch.setattr(triangular, "schedule", partial(triangular.schedule, required=True))
    before = finelu.get_num_threads()
    yield finelu.set_num_threads
    finelu.set_num_threads(before)


@pytest.fixture
def patient(monkeypatch):
    """No attempt and no factors are given up for others because this machine is busy."""
    from finelu.auto import monitor, sequence

    monkeypatch.setattr(monitor, "worth", lambda cost, elapsed, rest: False)
    monkeypatch.setattr(sequence, "PATIENCE", 1e9)


@pytest.fixture
def small_blocks(monkeypatch):
    """On the CPU several threads share even a small matrix in ParILU and ParILUT, some rows at a time."""
    from finelu.kernels.cpu.runtime import row_blocks

    for name, value in {"ALONE": 0, "GRAIN": 128, "COPY": 64}.items():
        monkeypatch.setattr(row_blocks, name, value)


@pytest.fixture
def look_every(monkeypatch):
    """look_every(k): a Krylov method looks at its progress at every k-th iteration, as on a GPU."""
    from finelu.krylov import progress

    return lambda interval: monkeypatch.setitem(progress.LOOK_EVERY, "numpy", interval)


@pytest.fixture(params=[1, 4])
def every(request, look_every):
    """How often the host looks: at each iteration, or as on a GPU, every few and at something older."""
    look_every(request.param)
    return request.param


@pytest.fixture
def devices_stay(monkeypatch):
    """A rename onto a device is a failure of the test, not the loss of the machine's device."""
    replace = os.replace

    def checked(source, target):
        assert not os.fspath(target).startswith("/dev/"), f"{target} would have been replaced"
        replace(source, target)

    monkeypatch.setattr(os, "replace", checked)


def real_matrix(name):
    """The matrix `name` of the folder of real matrices as CSR; skips the test where the folder is not there."""
    path = MATRICES / f"{name}.mtx.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not in {MATRICES}; set FINELU_MATRICES to the folder that holds it")
    return scipy.io.mmread(path).tocsr()
