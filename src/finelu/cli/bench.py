"""`finelu bench`: the benchmarks of a checkout."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

import finelu
from finelu.errors import FileError, ParameterError, meant


def bench(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="a paper's benchmark (syncfree, parilut, ilupack, fgbilu)")],
) -> int:
    """Run a benchmark of a checkout: its tables and figures; further arguments are handed to it."""
    root = Path(finelu.__file__).resolve().parents[2]
    # of two with one name that of the papers, which comes last, counts
    files = [path for where in (".", "claims", "papers") for path in (root / "benchmarks" / where).glob("[!_]*.py")]
    # the files without a main are parts of the others
    programs = [path for path in files if re.search(r"^def main\(", path.read_text(), re.MULTILINE)]
    modules = {path.stem: ".".join(path.relative_to(root).with_suffix("").parts) for path in programs}
    if not modules:
        raise FileError(
            f"{root / 'benchmarks'}: no benchmarks here; they come with a checkout of finelu, not the package."
        )
    if name not in modules:
        raise ParameterError(
            f"there is no benchmark {name!r}; one of {', '.join(sorted(modules))} is needed." + meant(name, modules)
        )
    sys.path.insert(0, str(root))
    return int(import_module(modules[name]).main(context.args) or 0)
