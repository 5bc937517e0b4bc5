"""Claim: each figure of README.md and docs/ was measured by code that is known and still the same, or its page says so.

    python -m benchmarks.records    # each record that the pages name, and why it is older; status 1 if OLDER differs

A record is current if its page names a commit without "-dirty" that is in the history of the checkout, and the code
that it speaks of (SPEAKS_OF) is the same at that commit and now, apart from comments, docstrings, imports and layout.
Other records that the pages name are listed in OLDER with the reason, and docs/measured.md shows that list. A test
compares OLDER with the records and the history.

If a change makes the test fail, measure again and name the new record. If that cannot be done at once, add the record
to OLDER with what changed; name the record of `finelu bench pairs`, if one shows that the speed is as before. Then run
`python -m benchmarks.figures`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.harness import RESULTS, ROOT
from benchmarks.harness.options import command
from benchmarks.harness.table import table
from finelu.errors import FileError

NAME = re.compile(r"[a-z]\w*-[\w-]*\d{4}-\d\d-\d\d")  # of a record, as pages write it
COMMIT = re.compile(r"\bcommit:? ([0-9a-f]{7,40}(?:-dirty)?)\b")
LIST = re.compile(r"<!-- figures older.*?<!-- end of figures -->", re.DOTALL)

# The code -------------------------------------------------------------------------------------------------------------

# Paths below src/finelu, a folder with all below it; {} is cpu or cuda, by the machine of the record. What all kernels
# share (kernels/*/runtime) is left out: a change there is compared by `finelu bench pairs`.
ELIMINATION = (
    "preconditioners/ilu0.py",
    "preconditioners/ic0.py",
    "kernels/{}/elimination.*",
    "kernels/{}/_ic0_columns.*",
    "kernels/{}/_waiting.*",
    "kernels/{}/levels.*",
)
TRIANGULAR = ("triangular.py", "kernels/{}/triangular.*", "kernels/{}/levels.*")
METHODS = ("krylov/gmres.py", "krylov/cg.py", "krylov/bicgstab.py", "kernels/{}/arnoldi.*", "kernels/{}/recurrences.*")
THRESHOLD = (
    "preconditioners/ilut.py",
    "preconditioners/ict.py",
    "preconditioners/threshold.py",
    "kernels/{}/threshold.*",
)
PARILUT = (
    "preconditioners/parilut.py",
    "preconditioners/sweeps.py",
    "preconditioners/pattern_elimination.py",
    "preconditioners/fixed_point.py",
    "preconditioners/dropping.py",
    "kernels/{}/candidates.*",
    "kernels/{}/pattern.*",
    "kernels/{}/sweeps.*",
    "kernels/{}/elimination.*",
    "kernels/{}/_ic0_columns.*",
    "kernels/{}/_waiting.*",
    "kernels/{}/selection.*",
)
MULTILEVEL = (
    "preconditioners/multilevel",
    "kernels/{}/*crout*",
    "kernels/{}/independent.*",
    "kernels/cpu/matching.py",
    "kernels/cpu/minimum_degree.py",
)
SCHWARZ = (
    "preconditioners/schwarz",
    "kernels/{}/subdomains.*",
    "kernels/{}/_coarse_products.*",
    "kernels/{}/_interleaved.*",
    "kernels/{}/partition.*",
    "kernels/{}/coarse_space.*",
)
BLOCKS = ("preconditioners/block_ilu.py", "kernels/{}/stencil*", "kernels/{}/blocks.*")
ALL = ("preconditioners/*.py", "preconditioners/*/recipe.py", "preconditioners/multilevel", "kernels/{}/*.*")
# the name of a record begins with -> the code that its figures speak of
SPEAKS_OF = {
    "batch": ("auto/batch.py", "preconditioners/batch.py", "kernels/{}/batch.*"),
    "block-gmres": ("krylov/block_gmres.py",),
    "body-flow": (*BLOCKS, "krylov/richardson.py", "matrix/multiblock.py"),
    "busy": ("auto",),
    "calls": (*ELIMINATION, *TRIANGULAR),
    "clients": ("interop/scipy/route.py", "interop/fipy.py", "interop/pymatsolver.py", "interop/lineax.py"),
    "cudss": ("preconditioners/direct/cudss.py", "kernels/cuda/runtime/cudss.py"),
    "elimination-variants": ELIMINATION,
    "elliptic": ("auto", *SCHWARZ),
    "fgbilu": BLOCKS,
    "first_call_gpu": ("kernels/cuda/runtime/nvrtc.py", "kernels/cuda/runtime/instances.py"),
    "fgbilu-flow": (
        *BLOCKS,
        "krylov/richardson.py",
        "matrix/multiblock.py",
        "matrix/interfaces.py",
        "matrix/ghosts.py",
    ),
    "columns": (*TRIANGULAR, *METHODS, "kernels/{}/products.*", "auto/solve.py"),
    "ilupack": (*MULTILEVEL, *TRIANGULAR, *METHODS),
    "gallery": ("auto",),
    "least-squares": (
        "krylov/least_squares.py",
        "krylov/least_squares_course.py",
        "krylov/lsmr.py",
        "preconditioners/icne.py",
        *THRESHOLD,
    ),
    "memory": ALL,
    "multiblock-scaling": (*BLOCKS, "krylov/richardson.py", "matrix/multiblock.py"),
    "multilevel-setup": MULTILEVEL,
    "parilut": PARILUT,
    "petsc-scaling": (*ELIMINATION, *TRIANGULAR, *PARILUT, *MULTILEVEL, "interop/petsc"),
    "precision": ("factors/triangles.py", *TRIANGULAR),
    "programs": ("interop/scipy", "preconditioners/direct/klu.py", "recent.py"),
    "regret": ("auto",),
    "short-recurrences": (
        "krylov/bicgstabl.py",
        "krylov/idrs.py",
        "krylov/shadow.py",
        "kernels/{}/bicgstabl.*",
        "kernels/{}/idrs.*",
        *METHODS,
    ),
    "sizes": ("auto", *SCHWARZ),
    "rates": ("auto/calibrate.py", "auto/rates.py"),
    "second-solve": ("recent.py", "preconditioners/direct/klu.py", "preconditioners/direct/prepared.py"),
    "reservoir": ("auto", "preconditioners/cpr.py", "preconditioners/polynomial.py", *SCHWARZ),
    "rivals": ("auto",),
    "robustness": ("auto", *ELIMINATION, *THRESHOLD, *PARILUT, *MULTILEVEL),
    "schwarz": (*SCHWARZ, *ELIMINATION, *METHODS),
    "selection": ("selection.py", "kernels/{}/selection.*"),
    "sequence": ("auto",),
    "solve": ("auto",),
    "solve-all": (*ELIMINATION, *METHODS),
    "sphere-flow": (*BLOCKS, "krylov/richardson.py", "matrix/multiblock.py"),
    "spine": (*ELIMINATION, *TRIANGULAR, *METHODS),
    "syncfree": ELIMINATION,
    "time-steps": ("auto/sequence.py", "auto/guess.py", "auto/reuse.py"),
}
# The records that pages name although they are not current: the reason, and the records. Shown in docs/measured.md.
NO_COMMIT = "names no commit: finelu 0.1.0 at its date"
UNCOMMITTED = "measured code that is in no commit"
LOST = "its commit is not in the history"
SHARED = "kernels share loops and steps since, and look at limits of time"
OLDER = {
    "`solve` begins with subdomains for more systems since, orders once, and looks at what factors return": (
        "columns-gpu-nvidia-h200-2026-11-28",
    ),
    "results of batches are looked at since; what is computed is the same": (
        "batch-cudss-2026-11-28",
        "batch-gpu-nvidia-h200-2026-11-28",
    ),
    "results kept for the last patterns can be dropped since; what is computed is the same": (
        "programs-amd-epyc-2-cores-2026-11-27",
    ),
    "recipes take a Batch since; what is computed is the same": (
        "petsc-scaling-2-core-amd-epyc-2026-11-27",
        "syncfree-nvidia-h200-2026-11-27",
    ),
    "blocks are conjugated instead of the basis since; the same is computed up to rounding": (
        "block-gmres-2-core-intel-xeon-shared-2026-11-27",
    ),
    "several columns are solved together since; what one column takes is the same": (
        "ilupack-2-core-amd-epyc-2026-11-27",
        "ilupack-nvidia-h200-levels-2026-11-27",
        "multiblock-scaling-nvidia-h200-x2-128-2026-11-27",
        "multiblock-scaling-nvidia-h200-x2-96-2026-11-27",
        "sphere-flow-2-core-amd-epyc-2026-11-27",
    ),
    "factors may be stored in single precision since; what is computed without that is the same": (
        "parilut-gpu-nvidia-h200-large-2026-11-27",
        "parilut-papers-nvidia-h200-tables-2026-11-27",
        "parilut-papers-nvidia-h200-times-2026-11-27",
    ),
    "all matrices keep the analyses of feral and PARDISO, and a wide least-squares problem has its own factors since": (
        "programs-intel-xeon-2-cores-2026-11-27",
    ),
    "a copied matrix belongs to its caller since, and limits of attempts changed; Schwarz computes the same": (
        "elliptic-cpu-16-threads-intel-xeon-16-cores-2026-11-27",
    ),
    "the set-up of Schwarz is shared by threads since, and the grid with a hole is found in less time": (
        "elliptic-cpu-2-threads-intel-xeon-2-cores-2026-11-27",
    ),
    "measured before its code was committed; it is in the history since": (
        "programs-intel-xeon-2-cores-mkl-2026-11-27",
    ),
    "gmres can recycle a space since; without one it computes the same": (
        "short-recurrences-2-core-intel-xeon-shared-2026-11-27",
    ),
    "measured on kernels of a trial; rows are scaled since": ("precision-half-2026-11-28",),
    "exact solves on a GPU are not rounded since": ("precision-gpu-nvidia-h100-2026-11-27",),
    "FiPy gets a failure where a residual is above its tolerance since": ("clients-2-core-amd-epyc-2026-11-27",),
    "least squares end at rounding, and scale by powers of two since": (
        "least-squares-cpu-amd-epyc-2-cores-2026-11-27",
    ),
    "rows wait for each other only where there are cores for it since, as there were": (
        "parilut-cpu-xeon-16-threads-2026-11-27",
    ),
    "the spectrum of a coarse matrix is looked for in another way since, and a solve with it takes fewer steps": (
        "schwarz-levels-nvidia-h200-2026-11-27",
        "elliptic-cpu-1-threads-processor-intel-xeon-2-cores-shared-2026-11-28",
    ),
    "rows that are tied to other processes are parts of their own since; its system has none": (
        "petsc-scaling-2-core-amd-epyc-debian-2026-11-27",
    ),
    NO_COMMIT: (
        "elimination-variants-nvidia-h200-2026-11-21",
        "ilupack-nvidia-h200-2026-11-21",
        "petsc-scaling-2-core-intel-xeon-2026-11-21",
        "petsc-scaling-nvidia-h200-x2-2026-11-22",
        "rates-nvidia-h100-2026-11-25",
        "robustness-2-core-intel-xeon-2026-11-21",
        "selection-gpu-nvidia-h200-2026-11-21",
        "solve-2-core-intel-xeon-2026-11-22",
        "spine-cpu-2-core-amd-epyc-2026-11-21",
        "spine-gpu-gmres-nvidia-h200-2026-11-21",
    ),
    UNCOMMITTED: (
        "reservoir-nvidia-h100-2026-11-28",
        "schwarz-ict-parts-nvidia-h100-2026-11-28",
        "schwarz-cpu-16-core-intel-xeon-2026-11-25",
        "solve-gpu-nvidia-h100-2026-11-25",
    ),
    "threads share more of ParILUT and of eliminations since": ("parilut-quality-2-core-amd-epyc-2026-11-27",),
    "rows of an elimination wait for each other in another way since": ("solve-all-cpu-2026-11-27",),
    "one thread compares A with its transpose in one call since": ("memory-2-core-amd-epyc-2026-11-27",),
    "a single elimination by fewer than eight threads is in order since, and MultilevelILU updates in another way": (
        "parilut-cpu-intel-r-xeon-r-processor-16-cores-2026-11-27",
    ),
    "MultilevelILU updates, orders and tries its factors in other ways since: see multilevel-setup-amd-epyc-2-cores": (
        "robustness-2-core-amd-epyc-2026-11-27",
        "multilevel-setup-2-core-amd-epyc-2026-11-27",
    ),
    "IC(0) on one thread copies columns where that saves products since, with the same bits": (
        "parilut-columns-amd-epyc-2026-11-27",
        "parilut-variants-ani7-2026-11-27",
    ),
    "a triangular solver of a real matrix takes a complex right-hand side since; its kernels are the same": (
        "calls-gpu-nvidia-h200-2026-11-27",
        "spine-gpu-nvidia-h200-2026-11-27",
    ),
    "triangular solves of large levels with long rows are in level order since, see the table": (
        "ilupack-nvidia-h200-2026-11-27",
    ),
    "parameters are checked when a recipe is made since; what is computed is the same": (
        "multilevel-setup-amd-epyc-2-cores-2026-11-27",
        "parilut-gpu-nvidia-h200-2026-11-27",
        "parilut-papers-nvidia-h100-2026-11-27",
        "parilut-papers-nvidia-h200-2026-11-27",
    ),
    "the first exchange of a grid decides how layers go since, and computes the same": (
        "fgbilu-flow-nvidia-h100-x2-64-2026-11-27",
        "fgbilu-flow-nvidia-h200-x2-2026-11-27",
    ),
    "the first answer of a process without compiled kernels is held to its time and memory since": (
        "solve-2-core-amd-epyc-shared-2026-11-27",
    ),
    LOST: ("calls-16-core-intel-xeon-2026-11-23",),
    SHARED: (
        "body-flow-2-core-amd-epyc-2026-11-26",
        "calls-2-core-intel-xeon-2026-11-23",
        "fgbilu-nvidia-h100-2026-11-26",
        "multiblock-scaling-16-core-intel-xeon-2026-11-26",
        "multiblock-scaling-nvidia-h200-x2-64-2026-11-26",
        "multiblock-scaling-nvidia-h200-x2-64-no-nccl-2026-11-26",
        "multiblock-scaling-nvidia-h200-x2-96-no-nccl-2026-11-26",
        "parilut-cpu-2-core-intel-xeon-2026-11-23",
        "parilut-steps-cpu-2-core-intel-xeon-2026-11-23",
        "parilut-steps-gpu-nvidia-h200-2026-11-23",
        "schwarz-gpu-nvidia-h200-2026-11-23",
    ),
    "kernels share loops and steps since; the matching and the factors of the last level are others": (
        "multilevel-setup-16-core-intel-xeon-2026-11-25",
        "multilevel-setup-2-core-amd-epyc-2026-11-26",
        "multilevel-setup-nvidia-h100-2026-11-26",
    ),
    "more kernels are compiled ahead since, by fewer threads": ("first_call_gpu-nvidia-h100-2026-11-26",),
    "an update waits less since, and its factors are tested in another way": ("cudss-nvidia-h100-2026-11-25",),
    "`solve` ends attempts sooner since; ILUT and ICT, for which it is named, compute the same": (
        "regret-amd-epyc-2-cores-counts-superlu-2026-11-27",
    ),
    "traits are looked at only where a rule needs them, and factors of the same entries are kept since": (
        "busy-intel-xeon-2-cores-one-a-core-2026-11-28",
        "busy-intel-xeon-2-cores-two-a-core-2026-11-28",
        "gallery-intel-xeon-1-core-2026-11-28",
    ),
    "`solve` chooses and ends in other ways since": (
        "sequence-gpu-nvidia-h100-2026-11-25",
        "solve-2-core-amd-epyc-with-extras-2026-11-23",
        "solve-2-core-intel-xeon-2026-11-23",
        "solve-gpu-nvidia-h100-cudss-2026-11-25",
    ),
}


# The records ----------------------------------------------------------------------------------------------------------


def pages(root: Path) -> list[Path]:
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def cited(root: Path = ROOT) -> dict[str, list[str]]:
    """record -> the pages that name it outside of the list of older records; FileError if there is no such file."""
    found: dict[str, list[str]] = {}
    for page in pages(root):
        for name in dict.fromkeys(NAME.findall(LIST.sub("", page.read_text()))):
            if not (RESULTS / f"{name}.md").exists():
                raise FileError(f"{page} names a record {name}, which is not in {RESULTS}.")
            found.setdefault(name, []).append(page.name)
    return found


def speaks_of(record: str) -> list[str]:
    """The paths, for git, of the code that the figures of a record speak of; FileError if SPEAKS_OF has none."""
    families = [family for family in SPEAKS_OF if record.startswith(f"{family}-")]
    if not families:
        raise FileError(f"{Path(__file__).name} does not say which code the record {record} speaks of.")
    device = "cuda" if "nvidia" in record else "cpu"
    return [f":(glob)src/finelu/{path.format(device)}" for path in SPEAKS_OF[max(families, key=len)]]


def commit_of(record: str) -> str | None:
    """The commit that its page names first, perhaps with "-dirty"; None if it names none."""
    found = COMMIT.search((RESULTS / f"{record}.md").read_text())
    return found and found[1]


def unknown_code(record: str) -> str | None:
    """Why it is not known which code a record measured, or None."""
    commit = commit_of(record)
    if commit is None:
        return "names no commit"
    return "measured code that is in no commit" if commit.endswith("-dirty") else None


def reasons() -> dict[str, str]:
    """record -> why it is not current, as OLDER says."""
    return {record: reason for reason, records in OLDER.items() for record in records}


# The history ----------------------------------------------------------------------------------------------------------


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", root, *arguments], capture_output=True, text=True, check=True).stdout


def has_history(root: Path = ROOT) -> bool:
    """Whether `root` is a checkout with its whole history. An sdist and a shallow clone are not."""
    try:
        top, shallow = git(root, "rev-parse", "--show-toplevel", "--is-shallow-repository").splitlines()
    except (OSError, subprocess.CalledProcessError):
        return False
    return Path(top).resolve() == root.resolve() and shallow == "false"


def changed(commit: str, paths: Sequence[str], root: Path = ROOT) -> Iterator[str]:
    """The files of these paths whose code is not the same in the working tree as at the commit."""
    for path in git(root, "diff", "--name-only", "--no-renames", commit, "--", *paths).splitlines():
        try:
            before, now = git(root, "show", f"{commit}:{path}"), (root / path).read_text()
        except (subprocess.CalledProcessError, FileNotFoundError):
            yield path  # new or removed
            continue
        if code_of(path, before) != code_of(path, now):
            yield path


def code_of(path: str, text: str) -> str:
    """What a Python or CUDA file computes: its text without comments, docstrings, imports and layout."""
    if path.endswith(".py"):
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
                del node.body[0]
        tree.body = [node for node in tree.body if not isinstance(node, ast.Import | ast.ImportFrom)]
        return ast.dump(tree)
    return " ".join(re.sub(r"//[^\n]*|/\*.*?\*/", " ", text, flags=re.DOTALL).split())


def older(record: str, root: Path = ROOT) -> str | None:
    """Why a record is not current, or None. Needs the history."""
    commit, reason = commit_of(record), unknown_code(record)
    if commit is None or reason:
        return reason
    try:
        git(root, "merge-base", "--is-ancestor", commit, "HEAD")
    except subprocess.CalledProcessError:
        return f"its commit {commit[:7]} is not in the history"
    first = next(changed(commit, speaks_of(record), root), None)
    return first and f"{first} and perhaps others changed since {commit[:7]}"


def main(argv: Sequence[str] | None = None) -> int:
    if not has_history():
        print("This is no checkout with its whole history.", file=sys.stderr)
        return 1
    listed = reasons()
    lines = [(record, older(record) or "", listed.get(record, "")) for record in sorted(cited())]
    print(table(("record", "found", "listed"), lines), end="")
    return int(any(bool(found) != bool(reason) for _, found, reason in lines))


if __name__ == "__main__":
    command(main)
