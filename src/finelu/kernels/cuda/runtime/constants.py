"""The header `runtime/constants.cuh`: the numbers of kernels/monitor.py for the `.cu` files. It can be run alone."""

from __future__ import annotations

from collections.abc import Mapping


def header(numbers: Mapping[str, object]) -> str:
    """The text of the header: an enumerator for each name of `numbers` that is in capitals."""
    return "enum { " + ", ".join(f"{name} = {value}" for name, value in numbers.items() if name.isupper()) + " };\n"
