"""`finelu warmup`: compile the kernels of the CPU before they are needed."""

from __future__ import annotations

from typing import Annotated

import typer

from finelu.cli.arguments import CONVERGED, NOT_CONVERGED, Json
from finelu.cli.output import print_json, write_out
from finelu.progress import progress


def warmup(
    every: Annotated[bool, typer.Option("--all", help="for all four dtypes, not float64 alone")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="remove the kernels from the disk, and compile none")] = False,
    as_json: Json = False,
) -> int:
    """Compile the kernels of the CPU now, not at their first use; they are kept on the disk."""
    from finelu import warmup as warming
    from finelu.report import seconds

    if clear:
        from finelu import machine_code

        removed = machine_code.clear()
        if as_json:
            print_json({"folder": str(machine_code.folder()), "removed_bytes": removed})
        else:
            write_out(f"removed {removed / 1e6:.1f} MB from {machine_code.folder()}\n")
        return CONVERGED

    with progress(as_json) as shown:
        done = warming.warmup(warming.DTYPES if every else warming.DTYPES[:1], shown.stage)
    if as_json:
        print_json(done)
        return CONVERGED
    took, compiling = seconds(done["seconds"]), seconds(done["compile_seconds"])
    write_out(f"took {took}, compiling kernels {compiling} of it\n")
    if done["folder"] is None:
        write_out("no folder for the kernels can be written, so none is kept; set FINELU_CACHE to one\n")
        return NOT_CONVERGED
    write_out(f"the kernels are kept in {done['folder']}\n")
    return CONVERGED
