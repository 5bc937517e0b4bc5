"""`finelu calibrate`: measure the rates of this machine for the expected times of `solve`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from finelu.cli.arguments import CONVERGED, Json
from finelu.cli.output import print_json, write_out
from finelu.progress import progress
from finelu.validation import choice


def calibrate(
    reset: Annotated[bool, typer.Option("--reset", help="go back to the rates that are shipped")] = False,
    device: Annotated[str, typer.Option("--device", help="cpu, or cuda for what runs on the GPU")] = "cpu",
    as_json: Json = False,
) -> int:
    """Measure, in ten seconds, how fast this machine is, so that `solve` expects the right times; kept in the cache."""
    from finelu.auto import calibrate as measured
    from finelu.auto import rates

    choice("device", device, ("cpu", "cuda"))
    on_gpu = device == "cuda"
    shipped: Any = rates.SHIPPED_ON_GPU if on_gpu else rates.SHIPPED
    if reset:
        gone = rates.forget(shipped)
        if as_json:
            print_json({"file": None if gone is None else str(gone), "rates": asdict(shipped)})
        else:
            write_out("no rates were kept\n" if gone is None else f"{gone} is gone\n")
        return CONVERGED
    with progress(as_json) as shown:
        found: Any = (measured.calibrate_gpu if on_gpu else measured.calibrate)(shown.stage)
    file = rates.keep(found)
    if as_json:
        print_json({"file": str(file), "rates": asdict(found)})
        return CONVERGED
    write_out(f"seconds, and how many times the shipped ones, of an {'NVIDIA H100' if on_gpu else 'AMD EPYC'}:\n")
    for name, value in asdict(found).items():
        write_out(f"  {name:18} {value:9.2e}  {value / getattr(shipped, name):6.2f}\n")
    write_out(f"later processes take them from {file}\n")
    return CONVERGED
