"""Options that the command lines of the benchmarks share."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import RESULTS
from finelu.device import require_gpu
from finelu.errors import DeviceError, FineluError


def add_place(parser: argparse.ArgumentParser) -> None:
    """The folder of the results, and the name of the machine there."""
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results (default: %(default)s)")
    parser.add_argument("--machine", default="", help="a name for this machine in file names and tables")


def add_budget(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--budget", type=float, help="seconds after which no further matrix is begun")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of every benchmark that runs over matrices."""
    add_place(parser)
    add_budget(parser)
    parser.add_argument("--matrices", default="", help="names with commas between them: memplus,poisson5:100,100")
    parser.add_argument("--matrix-folder", type=Path, help="folder of the real matrices (.mtx.gz or .npz)")
    parser.add_argument("--quick", action="store_true", help="a handful of small matrices")


def add_device(parser: argparse.ArgumentParser, gpu: str, cpu: str) -> None:
    """--gpu or --cpu, with their meaning."""
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--gpu", action="store_true", help=f"{gpu} (default if there is a GPU)")
    where.add_argument("--cpu", action="store_true", help=cpu)


def wants_gpu(options: argparse.Namespace) -> bool:
    """Whether the options of `add_device` mean the GPU here."""
    return options.gpu or (not options.cpu and have_gpu())


def add_source(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--from", dest="source", type=Path, metavar="RECORD", help="the tables of what was measured")


def add_sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from", dest="sources", type=Path, nargs="+", metavar="RECORD", help="draw what was measured before"
    )


def chosen_parts(
    parser: argparse.ArgumentParser, text: str, known: tuple[str, ...], option: str = "--parts"
) -> list[str]:
    """The parts that an option names; an error of the command line for one that is not known."""
    parts = text.split(",")
    if unknown := sorted(set(parts) - set(known)):
        parser.error(f"{option}: there is no {', '.join(unknown)}; choose from {','.join(known)}")
    return parts


def have_gpu() -> bool:
    try:
        require_gpu()
    except DeviceError:
        return False
    return True


def command(main: Callable[[], int]) -> None:
    """Run a benchmark as a program: an error of finelu is one line and exit status 2."""
    try:
        sys.exit(main())
    except FineluError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
