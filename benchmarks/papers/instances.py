"""The template instances of the CUDA kernels in this folder that `make cuda` compiles, by `.cu` file."""

from __future__ import annotations

VALUES = ("float", "double", "Complex<float>", "Complex<double>")
ACC = ("products", "subtract", "scale", "eliminate", "invert_pivot", "gather", "apply")

CL, CL_SIZES = ("factor", "forward", "backward"), (1, 5, 6, 32)

INSTANCES: dict[str, list[str]] = {
    "fgbilu_acc": [f"acc_{name}<{value}>" for name in ACC for value in VALUES],
    "fgbilu_cl": [f"cl_{name}<{value}, {n}>" for name in CL for value in VALUES for n in CL_SIZES],
}
