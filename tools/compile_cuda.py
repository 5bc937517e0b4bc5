"""Compile every CUDA kernel of finelu for every type it is used with; no GPU is needed.

Usage: python tools/compile_cuda.py [--compiler nvcc|nvrtc] [--arch sm_80 ...] [--jobs N] [--known FOLDER] [STEM ...]

The template instances come from `kernels/cuda/runtime/instances.py` and `benchmarks/papers/instances.py`. Each
`<stem>.cu` is compiled alone, once for each architecture, by nvcc where one is found (PATH, or /usr/local/cuda/bin),
else by NVRTC from nvidia-cuda-nvrtc: to machine code with few optimizations, since it is not run. Ends with status 1 if
a file does not compile, has no instances, or holds a kernel that none of them names, and with status 2 if there is no
compiler. With --known a file that has compiled before, from the same text by the same compiler, is not compiled again.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
KERNELS = ROOT / "src" / "finelu" / "kernels" / "cuda"
PAPERS = ROOT / "benchmarks" / "papers"
TABLES = {KERNELS: KERNELS / "runtime" / "instances.py", PAPERS: PAPERS / "instances.py"}  # of the .cu files below
ARCHITECTURES = ("sm_80",)  # the oldest: no kernel asks which one it is compiled for
FAST = "--Ofast-compile=max"  # in a quarter of the time, where the compiler knows it
KERNEL_NAME = re.compile(
    r"__global__\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\("
)
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)

# (stem, instances, architecture, include paths) -> what is wrong, "" if nothing
Compile = Callable[[str, Sequence[str], str, Sequence[str]], str]


def is_writable(folder: Path) -> bool:
    """Whether files can be kept in a folder, which is made if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


@contextmanager
def generated_headers() -> Iterator[str]:
    """A folder with what `kernels/cuda/runtime/constants.py` generates, for the compiler's include path."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "runtime").mkdir()
        header = runpy.run_path(str(KERNELS / "runtime" / "constants.py"))["header"]
        numbers = runpy.run_path(str(KERNELS.parent / "monitor.py"))
        (Path(folder) / "runtime" / "constants.cuh").write_text(header(numbers))
        yield folder


def find_nvcc() -> str | None:
    """The path of nvcc, or None."""
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


@cache
def nvcc_options() -> tuple[str, ...]:
    known = subprocess.run([str(find_nvcc()), "--help"], capture_output=True, text=True).stdout
    return ("-std=c++17", "-cubin", *([FAST] if FAST.partition("=")[0] in known else []))


def compile_by_nvcc(stem: str, instances: Sequence[str], architecture: str, includes: Sequence[str]) -> str:
    """The address of each instance is taken, so that nvcc has to make code for it; none is made for the host."""
    lines = [f'#include "{stem}.cu"']
    lines += [f"void* instance_{k} = (void*)&{name};" for k, name in enumerate(instances)]
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "instances.cu"
        source.write_text("\n".join(lines) + "\n")
        paths = [f"-I{path}" for path in includes]
        command = [str(find_nvcc()), *nvcc_options(), f"-arch={architecture}", *paths, str(source)]
        done = subprocess.run([*command, "-o", os.path.join(folder, "out.cubin")], capture_output=True, text=True)
    return "" if done.returncode == 0 else (done.stderr + done.stdout).strip()


def load_nvrtc(major: int | None = None) -> ctypes.CDLL | None:
    """NVRTC of a major version, else the newest, from the nvidia-cuda-nvrtc wheels of this Python, or from the system;
    None if neither has it."""
    ending = "" if major is None else f".{major}"
    wheels = (Path(sysconfig.get_path("platlib")) / "nvidia").glob(f"**/libnvrtc.so{ending or '.*'}")
    newest_first = sorted(wheels, key=lambda path: int(path.suffix[1:]), reverse=True)
    for path in (*newest_first, f"libnvrtc.so{ending}"):
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            continue
    return None


def compile_by_nvrtc(stem: str, instances: Sequence[str], architecture: str, includes: Sequence[str]) -> str:
    """Each instance is a name expression of one NVRTC program, as at run time."""
    options = ["--std=c++17", *fast_nvrtc(), f"--gpu-architecture={architecture}", *(f"-I{path}" for path in includes)]
    return compile_program(nvrtc(), f'#include "{stem}.cu"\n', instances, options)


@cache
def nvrtc() -> ctypes.CDLL:
    library = load_nvrtc()
    assert library is not None
    return library


@cache
def fast_nvrtc() -> tuple[str, ...]:
    return () if compile_program(nvrtc(), "", (), [FAST]) else (FAST,)


def compile_program(
    nvrtc: ctypes.CDLL,
    source: str,
    instances: Sequence[str],
    options: Sequence[str],
    take: Callable[[ctypes.c_void_p], None] = lambda program: None,
) -> str:
    """What is wrong with a program for NVRTC, "" if nothing: then `take` is called with what was compiled."""
    program = ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"instances.cu", 0, None, None)
    try:
        for name in instances:
            nvrtc.nvrtcAddNameExpression(program, name.encode())
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        code = nvrtc.nvrtcCompileProgram(program, len(options), given)
        if code == 0:
            take(program)
            return ""
        size = ctypes.c_size_t()
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        return log.value.decode().strip() or f"NVRTC ended with code {code}"
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def kernel_names(stem: str) -> list[str]:
    """The names of the `__global__` functions that `<stem>.cu` defines."""
    (path,) = [path for folder in TABLES for path in folder.glob(f"{stem}.cu")]
    return KERNEL_NAME.findall(COMMENT.sub("", path.read_text()))


def missing_instances(stems: Sequence[str], instances: dict[str, Sequence[str]]) -> list[str]:
    """A line for each file or kernel that the table of instances forgets or invents."""
    problems = [
        f"{stem}.cu is named in instances.py, but there is no such file" for stem in instances if stem not in stems
    ]
    for stem in stems:
        named = {template_id.partition("<")[0] for template_id in instances.get(stem, ())}
        problems += [
            f"{stem}.cu: no instance of the kernel {name} in instances.py"
            for name in kernel_names(stem)
            if name not in named
        ]
    return problems


def version_of(compiler: str) -> str:
    """What tells a compiler and the options that it is given from any other."""
    if compiler == "nvcc":
        return subprocess.run([str(find_nvcc()), "--version"], capture_output=True, text=True).stdout + repr(
            nvcc_options()
        )
    numbers = (ctypes.c_int * 2)()
    nvrtc().nvrtcVersion(ctypes.byref(numbers), ctypes.byref(numbers, ctypes.sizeof(ctypes.c_int)))
    return f"nvrtc {numbers[0]}.{numbers[1]} {fast_nvrtc()}"


def digest(compiler: str, stem: str, instances: Sequence[str], architecture: str, includes: Sequence[str]) -> str:
    """A digest of all that decides whether a file compiles: program, compiler, file, instances, all headers."""
    paths = [Path(folder) for folder in includes]
    files = [Path(__file__), *(path / f"{stem}.cu" for path in paths if (path / f"{stem}.cu").exists())]
    files += sorted(header for path in paths for header in path.rglob("*.cuh"))
    texts = [version_of(compiler), stem, *instances, architecture, *(file.read_text() for file in files)]
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Compile every CUDA kernel for every type it is used with.")
    parser.add_argument("stems", nargs="*", metavar="STEM", help="only these files (default: all)")
    parser.add_argument("--compiler", choices=("nvcc", "nvrtc"), help="default: nvcc where there is one, else nvrtc")
    parser.add_argument("--arch", nargs="+", default=ARCHITECTURES, metavar="SM", help="default: sm_80")
    parser.add_argument("--jobs", type=int, default=2, help="compilations at a time (default 2)")
    parser.add_argument(
        "--known", type=Path, metavar="FOLDER", help="where to keep what has compiled, and not to again"
    )
    options = parser.parse_args(arguments)

    compiler = options.compiler or ("nvcc" if find_nvcc() else "nvrtc")
    if (find_nvcc() if compiler == "nvcc" else load_nvrtc()) is None:
        print(f"no {compiler} was found; install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc`", file=sys.stderr)
        return 2
    compile_one: Compile = compile_by_nvcc if compiler == "nvcc" else compile_by_nvrtc

    instances: dict[str, Sequence[str]] = {}
    for table in TABLES.values():
        instances |= runpy.run_path(str(table))["INSTANCES"]
    stems = sorted(str(path.relative_to(folder).with_suffix("")) for folder in TABLES for path in folder.rglob("*.cu"))
    problems = missing_instances(stems, instances)
    unknown = set(options.stems) - set(stems)
    problems += [f"there is no {stem}.cu in {' or '.join(map(str, TABLES))}" for stem in sorted(unknown)]
    if not stems:
        problems.append(f"there is no .cu file in {' or '.join(map(str, TABLES))}")
    chosen = [stem for stem in stems if not options.stems or stem in options.stems]

    chosen.sort(key=lambda stem: -len(instances.get(stem, ())))  # the longest first, so that all end at about one time
    jobs = [(stem, tuple(instances.get(stem, ())), arch) for stem in chosen for arch in options.arch]
    start = time.perf_counter()
    with generated_headers() as folder, ThreadPoolExecutor(options.jobs) as pool:
        includes = (*map(str, TABLES), folder)
        if options.known and not is_writable(options.known):
            options.known = None
        if options.known:
            marks = {job: options.known / digest(compiler, *job, includes) for job in jobs}
            print(f"{sum(mark.exists() for mark in marks.values())} of {len(jobs)} files have compiled before")
            jobs = [job for job in jobs if not marks[job].exists()]
        for job, log in zip(jobs, pool.map(lambda job: compile_one(*job, includes), jobs), strict=True):
            stem, names, arch = job
            print(f"{'ok    ' if not log else 'FAILED'} {stem}.cu {arch} ({len(names)} instances)", flush=True)
            if log:
                problems.append(f"{stem}.cu does not compile for {arch}:\n{log}")
            elif options.known:
                marks[job].touch()
    for problem in problems:
        print(problem, file=sys.stderr)
    verdict = f"{len(problems)} problems" if problems else "no problems"
    print(f"{compiler}: {len(chosen)} files, {verdict}, {time.perf_counter() - start:.1f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
