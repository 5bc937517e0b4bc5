"""Compile the CPU's kernels to the machine code that a wheel carries.

Usage: python tools/build_cpu_kernels.py [--processor x86-64-v3] [--jobs N] [--dtypes float64 ...] [--int64]

Writes `src/finelu/kernels/cpu/binaries/<processor>-<Python>-numba<version>.zip`, see kernels/cpu/runtime/store.py: what
Numba makes of each kernel for all types of arguments that the public calls of finelu.warmup give it, in four dtypes.
What `solve`, the recipes and the methods take by default in float64 comes first: a line says when it is there, and from
then on it is used. Indices are int32; those of matrices with more than 2^31 entries, whose solution takes far longer
than the compilation of its kernels, are int64.

The code is for the operating system, the Python and the Numba that make it, since it uses their data: the offsets in
Numba's objects of Python, its tables of functions, its pickled types. Archives for several Pythons may lie side by
side; each process looks at those of its own only. So a release runs this once for each Python that it supports, and on
each system: code that never ran is not shipped, so nothing is compiled for another system.

The sums of the vectors' kernels have the order that the vector unit of the processor likes: that of x86-64-v3 is that
of all processors with AVX2 or AVX-512 that LLVM takes 256 bits at a time for, and so of the code that Numba makes on
these machines. Ends with status 1 if a kernel cannot be kept, and with status 2 for an unknown processor, or one whose
code this machine cannot run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
import zipfile
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))  # the kernels of this checkout, whatever is installed

# What a processor of this name has beyond the least of its family.
FEATURES = {
    "x86-64-v3": ["avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "lzcnt", "movbe", "popcnt", "sse4.2", "xsave"],
    "generic": ["neon"],  # aarch64
}
BLOCKS = range(1, 10)  # rows of the blocks of block matrices: more than 8 all have the kernels of 9
DTYPES = ("float64", "float32", "complex128", "complex64")
COMMON = ("float64", False)  # dtype, and whether indices are int64: they come first


def main() -> int:
    default = "generic" if platform.machine().lower() in ("aarch64", "arm64") else "x86-64-v3"
    parser = argparse.ArgumentParser(description="Compile the CPU's kernels to the machine code that a wheel carries.")
    parser.add_argument("--processor", default=default, help=f"default: {default}")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilations at a time (default: all cores)")
    parser.add_argument(
        "--dtypes", nargs="+", default=DTYPES, choices=DTYPES, metavar="DTYPE", help="default: all four"
    )
    parser.add_argument("--int64", action="store_true", help="also the code for more than 2^31 entries")
    options = parser.parse_args()
    if options.processor not in FEATURES:
        print(f"--processor {options.processor}: one of {', '.join(FEATURES)} is needed", file=sys.stderr)
        return 2
    import llvmlite.binding as llvm

    wanting = [each for each in FEATURES[options.processor] if not llvm.get_host_cpu_features().get(each)]
    if wanting:
        print(f"this machine has no {', '.join(wanting)}, which {options.processor} has", file=sys.stderr)
        return 2
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {
            "FINELU_CACHE": folder,
            "FINELU_RATES": os.devnull,
            "FINELU_SILENT": "1",
            "NUMBA_CPU_NAME": options.processor,
            "NUMBA_CPU_FEATURES": ",".join(f"+{each}" for each in FEATURES[options.processor]),
        }
        usual, rest = work([(dtype, long) for long in (False, True)[: 1 + options.int64] for dtype in options.dtypes])
        for pieces, what in ((usual, "the usual kernels"), (rest, "all kernels")):
            if pieces:
                if not compile_all(pieces, options.jobs):
                    return 1
                path, count = pack(Path(folder) / "kernels", options.processor, FEATURES[options.processor])
                size, seconds = path.stat().st_size / 1e6, time.perf_counter() - start
                print(f"{what}: {count} signatures, {size:.1f} MB in {path}, {seconds:.0f} s", flush=True)
    return 0


def work(kinds: list[tuple[str, bool]]) -> tuple[list[tuple[str, bool, int]], list[tuple[str, bool, int]]]:
    """The usual pieces in float64 with int32 indices, and all others; each as the arguments of `run`.

    kinds : (dtype, whether indices are int64).
    """
    from finelu.warmup import pieces, usual_pieces  # after the environment of Numba is set

    first = len(list(usual_pieces(COMMON[0]))) if COMMON in kinds else 0
    everything = [(dtype, long, k) for dtype, long in kinds for k in range(len(list(pieces(dtype, BLOCKS))))]
    usual = [(*COMMON, k) for k in range(first)]
    return from_both_ends(usual), from_both_ends([piece for piece in everything if piece not in usual])


def from_both_ends(pieces: list[tuple[str, bool, int]]) -> list[tuple[str, bool, int]]:
    """The first, the last, the second: neighbours take many of the same kernels, which several processes that ran them
    at the same time would each compile."""
    return [pieces[-1 - k // 2 if k % 2 else k // 2] for k in range(len(pieces))]


def compile_all(pieces: list[tuple[str, bool, int]], jobs: int) -> bool:
    """Whether all pieces ran."""
    context = multiprocessing.get_context("spawn")  # not forked: threads of Numba and LLVM
    with context.Pool(jobs) as pool:
        failed = [each for each in pool.starmap(run, pieces, chunksize=1) if each]
    for each in failed:
        print(each, file=sys.stderr)
    return not failed


def run(dtype: str, long: bool, number: int) -> str:
    """One piece of the work; what went wrong, or nothing."""
    import numpy as np

    from finelu.warmup import long_indices, pieces

    name = f"piece {number}, {dtype}"
    try:
        with np.errstate(all="ignore"), long_indices() if long else nullcontext():
            name, piece = list(pieces(dtype, BLOCKS))[number]
            piece()
    except Exception as error:
        return f"{name}: {type(error).__name__}: {error}"
    return ""


def pack(folder: Path, processor: str, features: list[str], into: Path | None = None) -> tuple[Path, int]:
    """The archive of all that lies in a folder of kernels, and the number of signatures."""
    import llvmlite.binding as llvm

    from finelu.kernels.cpu.runtime.store import BINARIES, KERNELS, MADE_FOR, sources
    from finelu.machine_code import INDEX

    members, digests, count = defaultdict(bytes), {}, 0
    for kernel in sorted(os.listdir(folder)):
        name = kernel.rpartition("-")[0]
        codes = sorted((folder / kernel).glob("*.code"))
        if not codes:
            continue  # only other kernels call it, which hold its code
        members[name] += b"".join(file.read_bytes() for file in codes)
        count += len(codes)
        module = name.rpartition(".")[0]
        digests[module] = sources(str(KERNELS.joinpath("cpu", *module.split("."))) + ".py")
    index = {"made_for": MADE_FOR, "triple": llvm.get_process_triple(), "features": features, "sources": digests}
    into = BINARIES if into is None else into
    into.mkdir(exist_ok=True)
    path = into / f"{processor}-{MADE_FOR}.zip"
    unfinished = path.with_suffix(".part")
    with zipfile.ZipFile(unfinished, "w") as archive:
        for name, content in {INDEX: json.dumps(index).encode(), **members}.items():
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)  # a ZipInfo is of 1980
    unfinished.replace(path)
    return path, count


if __name__ == "__main__":
    sys.exit(main())
