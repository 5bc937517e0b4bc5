"""The header `runtime/constants.cuh`: the numbers of kernels/monitor.py for the `.cu` files. It can be run alone."""

from __future__ import annotations

from collections.abc import Mapping


def header(numbers: Mapping[str, object]) -> str:
    """The text of the header: an enumerator, or a constant, for each name of `numbers` that is in capitals."""
    named = {name: value for name, value in numbers.items() if name.isupper()}
    whole = ", ".join(f"{name} = {value}" for name, value in named.items() if isinstance(value, int))
    parts = [f"constexpr double {name} = {value};\n" for name, value in named.items() if isinstance(value, float)]
    return f"enum {{ {whole} }};\n{''.join(parts)}"
