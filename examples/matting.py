"""Image matting: how much of each pixel belongs to the foreground, from an image and a few marked pixels.

    python examples/matting.py --height 120 --png build/matting.png

The matrix is the matting Laplacian of A. Levin, D. Lischinski and Y. Weiss, "A closed-form solution to natural image
matting", 2008: symmetric and positive semidefinite, with up to 25 entries a row; opacities that are linear in the
colours are near its null space. The image is made by the program: a dandelion in front of a meadow.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.lib.stride_tricks import sliding_window_view

import finelu as fl

EPSILON = 1e-5  # how far the colours of a window may be from a line
TRUST = 100.0  # in the marked pixels


def dandelion(height: int, seed: int = 0) -> tuple[Any, Any]:
    """(image (h, w, 3), opacity (h, w)): seeds on thin stalks in front of a meadow."""
    rng = np.random.default_rng(seed)
    width = 4 * height // 3
    y, x = np.mgrid[:height, :width] / height
    angle, radius = np.arctan2(y - 0.5, x - 0.66), np.hypot(y - 0.5, x - 0.66)
    rays = 0.5 + 0.5 * np.cos(40 * angle + 3 * np.sin(7 * angle))
    opacity = np.clip(1.3 - 4 * radius, 0, 1) + np.clip(1.9 - 5 * radius, 0, 1) * rays**3
    opacity = np.clip(opacity, 0, 1)[..., None]
    meadow = np.stack([0.2 + 0.2 * y, 0.5 - 0.2 * y + 0.05 * np.sin(9 * x), 0.2 + 0.1 * x], axis=2)
    flower = np.stack([0.95 - 0.2 * radius, 0.9 - 0.3 * radius, 0.8 - 0.4 * radius], axis=2)
    return opacity * flower + (1 - opacity) * meadow + 0.003 * rng.standard_normal((height, width, 3)), opacity[..., 0]


def laplacian(image: Any) -> Any:
    """The matting Laplacian of an image (h, w, 3), from its windows of 3 x 3 pixels."""
    height, width, _ = image.shape
    number = np.arange(height * width).reshape(height, width)
    windows = sliding_window_view(number, (3, 3)).reshape(-1, 9)
    colours = image.reshape(-1, 3)[windows]
    apart = colours - colours.mean(axis=1, keepdims=True)
    spread = np.einsum("wik,wil->wkl", apart, apart) / 9 + EPSILON / 9 * np.eye(3)
    alike = (1 + np.einsum("wik,wkl,wjl->wij", apart, np.linalg.inv(spread), apart)) / 9
    rows, columns = np.repeat(windows, 9, axis=1).ravel(), np.tile(windows, 9).ravel()
    return sp.csr_matrix(((np.eye(9) - alike).ravel(), (rows, columns)), shape=(number.size, number.size))


def matte(image: Any, marked: Any, value: Any) -> fl.Solution:
    """The opacities of all pixels, where those of the pixels `marked` (h, w) are close to `value` (h, w)."""
    D = TRUST * marked.ravel()
    return fl.solve(sp.csr_matrix(laplacian(image) + sp.diags(D)), D * value.ravel())


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--height", type=int, default=120, help="pixels")
    parser.add_argument("--png", help="file for a picture, by matplotlib")
    given = parser.parse_args(arguments)
    image, opacity = dandelion(given.height)
    marked = (opacity > 0.999) | (opacity < 1e-3)
    solution = matte(image, marked, opacity > 0.5)
    print(solution.explain())
    found = solution.x.reshape(opacity.shape)
    off = abs(found - opacity)[~marked].mean()
    print(f"{np.mean(~marked):.0%} of the pixels were open; their opacity is off by {off:.3f} in the mean")
    if given.png:
        draw(image, np.where(marked, opacity > 0.5, 0.5), found, given.png)


def draw(image: Any, given: Any, found: Any, name: str) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 2.4), layout="constrained")
    new = found[..., None] * image + (1 - found[..., None]) * np.array([0.15, 0.2, 0.45])
    shown = ((image, "image"), (given, "marked, and open (grey)"), (found, "opacity"), (new, "another background"))
    for axis, (picture, title) in zip(figure.subplots(1, 4), shown, strict=True):
        axis.imshow(np.clip(picture, 0, 1), cmap="gray", vmin=0, vmax=1)
        axis.set(title=title, xticks=[], yticks=[])
    figure.savefig(name, dpi=133)


if __name__ == "__main__":
    main()
