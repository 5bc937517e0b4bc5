"""The near null space of elasticity: the motions of a rigid body."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from finelu.errors import ParameterError


def rigid_body_modes(coordinates: Any) -> NDArray[np.float64]:
    """(d n, d (d + 1) / 2) float64 : the translations of n nodes, and their rotations about the middle of all.

    coordinates : (n, d), d 2 or 3. Rows are those of a displacement with d unknowns a node, u_x, u_y, ... in turn.
    They are the `near_nullspace` of an elasticity matrix for `Schwarz`. Raises ParameterError for another shape, and
    for numbers that are not finite.
    """
    points = np.asarray(coordinates)
    if points.ndim != 2 or points.shape[1] not in (2, 3) or points.dtype.kind not in "iuf":
        raise ParameterError(
            f"coordinates have shape {points.shape} and dtype {points.dtype}; numbers (n, 2) or (n, 3) are needed."
        )
    points = points.astype(np.float64)
    if not np.isfinite(points).all():
        raise ParameterError(f"coordinates hold NaN or Inf at node {int(np.argmin(np.isfinite(points).all(axis=1)))}.")
    n, d = points.shape
    points = points - points.mean(axis=0) if n else points
    modes = np.zeros((n, d, d * (d + 1) // 2))
    for axis in range(d):
        modes[:, axis, axis] = 1
    for k, (i, j) in enumerate(combinations(range(d), 2)):  # the rotation in the plane of axes i and j
        modes[:, i, d + k] = -points[:, j]
        modes[:, j, d + k] = points[:, i]
    return modes.reshape(d * n, -1)
