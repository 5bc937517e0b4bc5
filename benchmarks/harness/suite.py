"""The matrices that are measured: the real ones of a folder, and generated ones at the sizes of the papers.

`python -m benchmarks.harness.suite list` names the suite; `... pack FOLDER` writes its real matrices as compressed .npz
(scipy.sparse.save_npz) for a machine to which little can be carried; there FINELU_MATRICES names that folder.
"""

from __future__ import annotations

import argparse
import gzip
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import finelu
from benchmarks.harness import ROOT
from benchmarks.harness.options import command
from finelu.errors import ParameterError

SMALLEST = 10_000  # rows; the papers' own lower limit for a matrix of the suite
GALLERY = (
    "poisson7:100",
    "poisson27:60",
    "poisson5:1000,1000",
    "anisotropic_triangles:5",
    "anisotropic_triangles:6",
    "anisotropic_triangles:7",
    "atmosmodd_like",
    "ecology2_like",
    "g3_circuit_like",
)
QUICK = ("poisson7:24", "poisson5:120,120", "ibmpg1_spd", "of_pitzDaily_U", "memplus")
WORST_CASE = "tridiagonal:100000"  # its factors are bidiagonal, one row a level: reported, but in no mean


class LeftOut(Exception):
    """A matrix that a benchmark cannot use; the text says why."""


@dataclass(frozen=True)
class Problem:
    """A named matrix of the suite, made or read by `read()` and `load()`."""

    name: str
    path: Path | None = None  # None: generated

    @property
    def apart(self) -> bool:
        """Whether it is reported, but in no mean."""
        return self.name.partition(":")[0] in ("tridiagonal", "bidiagonal")

    def read(self) -> sp.csr_matrix:
        """The matrix, CSR, as the file or the gallery has it."""
        return sp.csr_matrix(finelu.read_matrix(self.path) if self.path else finelu.gallery.problem(self.name))

    def load(self) -> sp.csr_matrix:
        """The matrix, CSR with sorted rows, float64; LeftOut if ILU(0) cannot exist without a diagonal."""
        S = sp.csr_matrix(self.read(), dtype=np.float64)
        missing = np.flatnonzero(S.diagonal() == 0)
        if missing.size:
            raise LeftOut(f"the diagonal is zero or not stored in {missing.size} rows (first: {missing[0]})")
        return S


def rows(path: Path) -> int:
    """The number of rows that a matrix file declares; its entries are not read."""
    if path.suffix == ".npz":
        with np.load(path) as archive:
            return int(archive["shape"][0])
    with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as lines:
        return int(next(line for line in lines if not line.startswith("%")).split()[0])


def matrix_folder() -> Path:
    """FINELU_MATRICES, or ../shared/matrices next to the checkout. It need not exist."""
    return Path(os.environ.get("FINELU_MATRICES") or ROOT.parent / "shared" / "matrices")


def files(folder: Path) -> dict[str, Path]:
    """name -> file of each matrix in `folder`; of two files with one name the .npz, which reads faster."""
    found = {}
    for pattern in ("*.mtx", "*.mtx.gz", "*.npz"):
        found |= {re.sub(r"\.(mtx|mtx\.gz|npz)$", "", path.name): path for path in sorted(folder.glob(pattern))}
    return dict(sorted(found.items()))


def suite(folder: Path | None = None, names: Sequence[str] = (), *, quick: bool = False) -> list[Problem]:
    """The problems to measure: those named, the quick ones, or all real matrices of 10^4 rows or more and GALLERY.

    folder : of the real matrices (default `matrix_folder()`); where it is absent only the generated ones remain.
    names : file names without ending, or gallery problems ("poisson7:100"); ParameterError for others.
    """
    real = files(folder or matrix_folder())
    if quick and not names:
        return [Problem(name, real.get(name)) for name in QUICK if ":" in name or name in real]
    if names:
        generated = {*finelu.gallery.PROBLEMS, *finelu.gallery.PAPER_SIZES}
        unknown = [name for name in names if name not in real and name.partition(":")[0] not in generated]
        if unknown:
            raise ParameterError(
                f"there is no matrix {', '.join(unknown)} in {folder or matrix_folder()} or the gallery."
            )
        return [Problem(name, real.get(name)) for name in names]
    chosen = [Problem(name, path) for name, path in real.items() if rows(path) >= SMALLEST]
    return chosen + [Problem(name) for name in (*GALLERY, WORST_CASE)]


def names_of(text: str) -> list[str]:
    """The names in --matrices, parted by commas; a number or name=value after a comma belongs to a gallery problem."""
    return [name for name in re.split(r",(?![\d.]+(?:,|$)|\w+=)", text) if name]


def pack(folder: Path, out: Path, limit_mib: float) -> list[str]:
    """Write the suite's real matrices as .npz into `out`, smallest first, while they fit; returns those left out."""
    out.mkdir(parents=True, exist_ok=True)
    left, total = [], 0
    for problem in sorted((p for p in suite(folder) if p.path), key=lambda p: p.path.stat().st_size):
        try:
            S = problem.load()
        except LeftOut as reason:
            print(f"{problem.name}: {reason}")
            continue
        target = out / f"{problem.name}.npz"
        sp.save_npz(target, S)
        size = target.stat().st_size
        if total + size > limit_mib * 2**20:
            target.unlink()
            left.append(problem.name)
            continue
        total += size
    print(f"{total / 2**20:.1f} MiB in {out}" + (f"; no room for {', '.join(left)}" if left else ""))
    return left


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.harness.suite", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="name the suite")
    packing = commands.add_parser("pack", help="write the real matrices as .npz")
    packing.add_argument("out", type=Path)
    packing.add_argument("--limit", type=float, default=55.0, help="MiB in all (default: %(default)s)")
    options = parser.parse_args(argv)
    if options.command == "list":
        for problem in suite():
            print(problem.name, problem.path or "(generated)")
        return 0
    return 1 if pack(matrix_folder(), options.out, options.limit) else 0


if __name__ == "__main__":
    command(main)
