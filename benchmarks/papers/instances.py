"""The template instances of the CUDA kernels in this folder that `make cuda` compiles, by `.cu` file."""

from __future__ import annotations

VALUES = ("float", "double", "Complex<float>", "Complex<double>")
ACC = ("products", "subtract", "scale", "eliminate", "invert_pivot", "gather", "apply")

INSTANCES: dict[str, list[str]] = {"fgbilu_acc": [f"acc_{name}<{value}>" for name in ACC for value in VALUES]}
