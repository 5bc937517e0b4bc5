"""`finelu calibrate`: measure what the rungs of `solve` take on this machine."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from finelu.cli.arguments import CONVERGED, Json
from finelu.cli.output import print_json, write_out
from finelu.cli.progress import progress


def calibrate(
    reset: Annotated[bool, typer.Option("--reset", help="go back to the rates that are shipped")] = False,
    as_json: Json = False,
) -> int:
    """Measure, in ten seconds, what `solve` may expect of its rungs here, and keep it in the user's cache."""
    from finelu.auto import rates
    from finelu.auto.calibrate import calibrate as measured

    if reset:
        gone = rates.forget()
        if as_json:
            print_json({"file": None if gone is None else str(gone), "rates": asdict(rates.SHIPPED)})
        else:
            write_out("no rates were kept\n" if gone is None else f"{gone} is gone\n")
        return CONVERGED
    with progress(as_json) as shown:
        found = measured(shown.stage)
    file = rates.keep(found)
    if as_json:
        print_json({"file": str(file), "rates": asdict(found)})
        return CONVERGED
    shipped = asdict(rates.SHIPPED)
    write_out("seconds, and how many times the shipped ones, of an Intel Xeon:\n")
    for name, value in asdict(found).items():
        write_out(f"  {name:15} {value:9.2e}  {value / shipped[name]:6.2f}\n")
    write_out(f"later processes take them from {file}\n")
    return CONVERGED
