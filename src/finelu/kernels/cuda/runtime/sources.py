"""The text of a `.cu` file for the compiler; importable without CuPy, since code is compiled without a GPU, too."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

from finelu.kernels import monitor
from finelu.kernels.cuda.runtime.constants import header

# Contraction to fused multiply-adds is on (CUDA's default); fast math is never set: it would break NaN tests.
OPTIONS = ("-std=c++17",)


@cache
def source(stem: str) -> str:
    """The text of `<stem>.cu` of kernels/cuda, the headers in place of the includes, so that a cache of compiled code
    notices every change."""
    folder = files("finelu.kernels.cuda")

    def included(match: re.Match[str]) -> str:
        if match.group(1) == "runtime/constants.cuh":
            return header(vars(monitor))
        return (folder / match.group(1)).read_text().replace("#pragma once", "")

    return re.sub(r'#include "([\w/]+\.cuh)"', included, (folder / f"{stem}.cu").read_text())
