"""ANI3 and ANI6 of the ParILUT papers, which no file has: `python -m benchmarks.papers.ani FOLDER` writes them there.

`../shared/generators/ani_refine.py` recovers the coarse mesh from ANI4 and refines it. In the reverse Cuthill-McKee
order of SciPy it gives ANI5 and ANI7 as they are stored, to the last bit; ANI3 and ANI6 are made in the same way.
`finelu.gallery.anisotropic_triangles` has another mesh, and is compared with no number of the papers.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest.mock import patch

import scipy.sparse as sp
from scipy.sparse.csgraph import reverse_cuthill_mckee

from benchmarks.harness.options import command
from benchmarks.harness.suite import files, matrix_folder

PIECES = {"ani3": 4, "ani6": 32}  # of each edge of the coarse mesh


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.ani", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the two .npz go")
    options = parser.parse_args(argv)
    generator = matrix_folder().parent / "generators" / "ani_refine.py"
    with patch.object(sys, "argv", [str(generator), str(files(matrix_folder())["ani4"])]):
        build = runpy.run_path(str(generator))["build"]
    options.folder.mkdir(parents=True, exist_ok=True)
    for name, pieces in PIECES.items():
        A = sp.csr_matrix(build(pieces)[0])
        order = reverse_cuthill_mckee(A, symmetric_mode=True)
        A = sp.csr_matrix(A[order][:, order])
        A.sort_indices()
        sp.save_npz(options.folder / f"{name}.npz", A)
        print(f"{name}: {A.shape[0]} rows, {A.nnz} entries")
    return 0


if __name__ == "__main__":
    command(main)
