"""Compile every CUDA kernel of finelu to the machine code that a wheel carries; no GPU is needed.

Usage: python tools/build_kernels.py [--arch sm_90 ...] [--jobs N]

Writes `src/finelu/kernels/cuda/binaries/<arch>.zip`, see kernels/cuda/runtime/binaries.py: each instance of CARRIED in
kernels/cuda/runtime/instances.py by itself, with the options that CuPy gives at run time, so that it is the code that
the same NVRTC makes there. NVRTC is that of CUDA 12, from 12.8 on, of nvidia-cuda-nvrtc-cu12: its code runs with the
drivers of CUDA 12 and later ones. It puts the number of its process into some names, and seldom orders instructions in
another way; else the same compiler and sources give the same files. Ends with status 1 if an instance does not compile,
and with status 2 if there is no such NVRTC or no such architecture.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import runpy
import sys
import time
import zipfile
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))  # the kernels of this checkout, whatever is installed

from finelu.kernels.cuda.runtime.binaries import FOLDER, digest  # noqa: E402
from finelu.kernels.cuda.runtime.instances import CARRIED  # noqa: E402
from finelu.kernels.cuda.runtime.sources import OPTIONS, source  # noqa: E402
from finelu.machine_code import INDEX  # noqa: E402

COMPILER = runpy.run_path(str(ROOT / "tools" / "compile_cuda.py"))
# Code of one runs on every GPU of the same major number whose minor number is not below. Some kernels need 8.0.
ARCHITECTURES = ("sm_80", "sm_90", "sm_100", "sm_120")
OF_CUPY = ("-ftz=true", "--device-as-default-execution-space")  # which CuPy adds to the options it is given
LEAST_VERSION = (12, 8)  # the first that knows all of them
NO_TYPE = re.compile(r"\d+|true|false|[A-Z_]*")  # among template arguments: numbers, booleans, names of constants


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compile every CUDA kernel to the machine code that a wheel carries.")
    parser.add_argument("--arch", nargs="+", default=ARCHITECTURES, metavar="SM", help="default: all that are carried")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilations at a time (default: all cores)")
    options = parser.parse_args(arguments)
    if unusable := [a for a in options.arch if not re.fullmatch(r"sm_\d+", a)]:
        print(f"--arch {' '.join(unusable)}: sm_ and a number are needed, as sm_90", file=sys.stderr)
        return 2
    if nvrtc() is None:
        print("no NVRTC of CUDA 12, from 12.8 on, was found; `pip install nvidia-cuda-nvrtc-cu12`", file=sys.stderr)
        return 2
    start, paths = time.perf_counter(), []
    FOLDER.mkdir(exist_ok=True)
    with ProcessPoolExecutor(options.jobs) as pool:
        for architecture in options.arch:
            try:
                paths.append(build(architecture, pool))
            except SyntaxError as error:
                pool.shutdown(cancel_futures=True)
                print(error, file=sys.stderr)
                return 1
    sizes = ", ".join(f"{path.name} {path.stat().st_size / 1e6:.1f} MB" for path in paths)
    version = ".".join(map(str, version_of(nvrtc())))
    print(f"NVRTC {version}: {sizes} in {FOLDER}, {time.perf_counter() - start:.0f} s")
    return 0


@cache
def nvrtc() -> ctypes.CDLL | None:
    library = COMPILER["load_nvrtc"](LEAST_VERSION[0])
    return None if library is None or version_of(library) < LEAST_VERSION else library


def version_of(library: ctypes.CDLL) -> tuple[int, int]:
    major, minor = ctypes.c_int(), ctypes.c_int()
    library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def build(architecture: str, pool: ProcessPoolExecutor) -> Path:
    """Write the zip of an architecture, and a line on stdout for each `.cu` file; SyntaxError where one is wrong."""
    jobs = [(stem, name, architecture) for stem, ids in CARRIED.items() for name in ids]
    compiled = pool.map(machine_code, *zip(*jobs), chunksize=4)
    made = {}
    for stem, ids in CARRIED.items():
        start = time.perf_counter()
        made[stem] = {name: next(compiled) for name in ids}
        print(f"{architecture} {stem}.cu: {len(ids)} instances, {time.perf_counter() - start:.1f} s", flush=True)
    path, unfinished = FOLDER / f"{architecture}.zip", FOLDER / f"{architecture}.part"
    write(unfinished, made)
    unfinished.replace(path)
    return path


class Instance(NamedTuple):
    """name : in the machine code.  source : what `digest` says of the text that was compiled."""

    name: str
    code: bytes
    source: str


def machine_code(stem: str, template_id: str, architecture: str) -> Instance:
    """SyntaxError if it does not compile."""
    library, found = nvrtc(), []

    def take(program: ctypes.c_void_p) -> None:
        name, size = ctypes.c_char_p(), ctypes.c_size_t()
        library.nvrtcGetLoweredName(program, template_id.encode(), ctypes.byref(name))
        library.nvrtcGetCUBINSize(program, ctypes.byref(size))
        if not size.value:
            raise SyntaxError(f"{template_id} of {stem}.cu: NVRTC makes no machine code for {architecture}")
        code = ctypes.create_string_buffer(size.value)
        library.nvrtcGetCUBIN(program, code)
        found.append(Instance(name.value.decode(), code.raw, digest(stem)))

    options = (*OPTIONS, *OF_CUPY, f"-arch={architecture}")
    log = COMPILER["compile_program"](library, source(stem), (template_id,), options, take)
    if log:
        raise SyntaxError(f"{template_id} of {stem}.cu does not compile for {architecture}:\n{log}")
    return found[0]


def write(path: Path, made: dict[str, dict[str, Instance]]) -> None:
    """The zip of {stem: {template id: instance}}."""
    index, members = {}, defaultdict(bytes)
    for stem, instances in made.items():
        codes, (text, *others) = {}, {instance.source for instance in instances.values()}
        if others:
            raise SyntaxError(f"{stem}.cu, or a header, has changed meanwhile; run this again")
        for template_id, instance in instances.items():
            member = f"{stem}/{types_of(template_id)}"
            codes[template_id] = [member, instance.name, len(members[member]), len(instance.code)]
            members[member] += instance.code
        index[stem] = {"source": text, "codes": codes}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {INDEX: json.dumps(index).encode(), **members}.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_LZMA)  # a ZipInfo is of 1980


def types_of(template_id: str) -> str:
    """'double,int' of 'eliminate<double, int, 16, 1, SEARCH, false, true, LU>'; 'plain' if there are none."""
    arguments = template_id.partition("<")[2].removesuffix(">").split(", ")
    return ",".join(a for a in arguments if not NO_TYPE.fullmatch(a)) or "plain"


if __name__ == "__main__":
    sys.exit(main())
