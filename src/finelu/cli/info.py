"""`finelu info`: the machine as finelu sees it, and which optional packages it finds."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from finelu.cli.arguments import CONVERGED, Json
from finelu.cli.output import console, print_json

# module ("" if there is none), the name to install it by, its purpose
PACKAGES = (
    ("numpy", "numpy", "arrays"),
    ("scipy", "scipy", "sparse matrices, SuperLU and its orderings"),
    ("numba", "numba", "the kernels of the CPU"),
    ("threadpoolctl", "threadpoolctl", "one thread of BLAS inside SuperLU"),
    ("pymetis", "pymetis", "nested dissection: SparseLU of large meshes; without it their minimum degree serves"),
    ("nbklu", "nbklu", "KLU: SparseLU of circuits and networks, finelu[direct]"),
    ("feral", "feral-solver", "L D L^T: SparseLU of symmetric matrices, finelu[direct]"),
    ("pypardiso", "pypardiso", "PARDISO of MKL: SparseLU where factors fill in, finelu[mkl]"),
    ("cupy", "cupy-cuda13x", "the kernels of the GPU"),
    ("", "nvidia-cudss-cu13", "cuDSS: SparseLU on the GPU, finelu[cudss13]; for CUDA 12 finelu[cudss12]"),
    ("", "nvidia-nccl-cu13", "NCCL: grids of several blocks on several GPUs; for CUDA 12 nvidia-nccl-cu12"),
    ("typer", "typer", "the command line"),
    ("rich", "rich", "its tables"),
    ("matplotlib", "matplotlib", "plots"),
    ("jinja2", "jinja2", "the page of finelu compare"),
    ("torch", "torch", "finelu.interop.torch"),
    ("jax", "jax", "finelu.interop.jax"),
    ("pyamg", "pyamg", "finelu.interop.pyamg"),
    ("petsc4py", "petsc4py", "finelu.interop.petsc, finelu solve --petsc"),
)
VARIABLES = ("CUDA_", "CUPY_", "FINELU_", "MKL_", "NUMBA_", "OMP_", "OPENBLAS_")  # beginnings of names that matter


def info(as_json: Json = False) -> int:
    """Show versions, threads, the folder of compiled kernels, the GPU, and which optional packages are found."""
    import numpy as np
    import scipy.linalg  # noqa: F401 - loads its BLAS, which is shown
    from threadpoolctl import threadpool_info

    import finelu
    from finelu import machine_code
    from finelu.auto.rates import processor
    from finelu.device import free_memory, require_gpu
    from finelu.errors import DeviceError
    from finelu.kernels.cpu.runtime import store
    from finelu.report import table
    from finelu.threads import available_cores, get_num_threads
    from finelu.warmup import kernel_folder

    carried = store.archive()
    found = {name: _version(module, name) for module, name, _ in PACKAGES}
    machine = {
        "finelu": finelu.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor(),
        "cores": available_cores(),
        "threads": get_num_threads(),
        "memory": f"{free_memory(np.empty(0)) / 2**30:.1f} GiB free",
        "kernels": kernel_folder(),
        "kernels_mb": round(machine_code.size() / 1e6, 1),
        "carried_kernels": None if carried is None else str(carried.path),
    }
    libraries = sorted({f"{each['internal_api']} {each['version'] or ''}".strip() for each in threadpool_info()})
    variables = {name: os.environ[name] for name in sorted(os.environ) if name.startswith(VARIABLES)}
    try:
        cupy = require_gpu()
    except DeviceError as error:
        gpu = f"none: {str(error.__cause__ or error).splitlines()[0]}"
    else:
        runtime = cupy.cuda.runtime
        name = runtime.getDeviceProperties(runtime.getDevice())["name"].decode()
        driver, library = (
            f"{v // 1000}.{v % 1000 // 10}" for v in (runtime.driverGetVersion(), runtime.runtimeGetVersion())
        )
        gpu = f"{name}, driver of CUDA {driver}, CUDA {library}, {free_memory(cupy.empty(0)) / 2**30:.1f} GiB free"
    if as_json:
        more = {"gpu": gpu, "libraries": libraries, "variables": variables, "packages": found}
        print_json({**machine, **more})
        return CONVERGED
    words = {key: str(value) for key, value in machine.items()} | {"gpu": gpu, "libraries": ", ".join(libraries)}
    if variables:
        words["variables"] = "\n".join(f"{name}={value}" for name, value in variables.items())
    size = words.pop("kernels_mb")
    if machine["kernels"] is None:
        words["kernels"] = "no folder for compiled kernels can be written; set FINELU_CACHE to one"
    else:
        words["kernels"] += f", {size} MB"
    carries = words.pop("carried_kernels")
    words["carried kernels"] = carries if carried else "none: kernels are compiled at their first use"
    packages = {name: f"{found[name] or 'not found'}: {purpose}" for _, name, purpose in PACKAGES}
    with console() as out:
        out.print(table("this machine", words))
        out.print(table("packages", packages))
    return CONVERGED


def _version(module: str, name: str) -> str | None:
    """The version of an installed package; with its name if that is another, as for CUDA 12. None if not found."""
    if module and find_spec(module) is None:
        return None
    for known in dict.fromkeys((name, name.replace("cuda13", "cuda12").replace("cu13", "cu12"))):
        with suppress(PackageNotFoundError):
            return version(known) if known == name else f"{version(known)} ({known})"
    return "found" if module else None
