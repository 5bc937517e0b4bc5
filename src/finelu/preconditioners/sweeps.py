"""How ParILUT and ParICT compute values by fixed-point sweeps: the options of the two papers.

H. Anzt, E. Chow, J. Dongarra: ParILUT - a new parallel threshold ILU factorization, 2018 ("2018" below);
H. Anzt, T. Ribizel, G. Flegar, E. Chow, J. Dongarra: ParILUT - a parallel threshold ILU for GPUs, 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from finelu.device import namespace
from finelu.kernels.operands import CSR
from finelu.preconditioners.recipe import Parameters
from finelu.validation import choice, count, flag, number

SELECTIONS = ("approximate", "exact")
INITIAL = ("residual", "scaled")


@dataclass(frozen=True, kw_only=True, repr=False)
class Sweeps(Parameters):
    """Options of ParILUT and ParICT for values that are computed by sweeps.

    add_fraction : None adds all candidates. A number considers only the leaders, the largest candidate of each row of
        L and of each column of U, and adds this fraction of them, the largest (2018, section 4.1, delta); 1 adds all
        leaders.
    initial : the values of candidates before the sweeps. "residual": their residual r_ij, in L divided by the sign or
        phase of u_jj (2018, equation 5). "scaled": l_ij = r_ij / u_jj.
    progressive : True changes the fill in equal parts from step to step; False reaches it in the first.
    select : "exact" thresholds meet the fill. "approximate" ones miss it by about a percent, and are found faster on
        the GPU; on the CPU they are slower, and may miss it by 20% if some rows fill much more than others. Among
        entries of equal magnitude only as many are dropped as needed, evenly spread.
    stagnation : stop when a step has lowered the residual norm by less than this part of it; 0: never.
    update : number of sweeps that `update` makes on the present pattern.
    """

    add_fraction: float | None = None
    initial: str = "residual"
    progressive: bool = False
    select: str = "exact"
    stagnation: float = 0.0
    update: int = 3

    def check(self) -> None:
        if self.add_fraction is not None:
            number("add_fraction", self.add_fraction, 0, 1, open_low=True, of=self)
        choice("initial", self.initial, INITIAL, of=self)
        flag("progressive", self.progressive, of=self)
        choice("select", self.select, SELECTIONS, of=self)
        number("stagnation", self.stagnation, 0, 1, of=self)
        count("update", self.update, 0, of=self)


def leaders(F: CSR, found: list[Any], part: float) -> list[Any]:
    """The largest candidate (indptr, indices, values) of each row of L and each column of U, and of these the part with
    the largest magnitudes: 2018, section 4.1."""
    xp = namespace(F.data)
    indptr, indices, values = found
    rows = (xp.searchsorted(indptr, xp.arange(values.size), side="right") - 1).astype(indices.dtype)
    size, keep = abs(values), xp.zeros(values.size, bool)
    for here, group in ((indices < rows, rows), (indices > rows, indices)):
        places = xp.flatnonzero(here)
        if places.size == 0:
            continue
        # by group, then by magnitude: the last of each group is its largest (of equal ones the last in the matrix)
        keys = xp.stack((size[places].astype(np.float64), group[places].astype(np.float64)))
        places = places[xp.lexsort(keys)]
        last = xp.concatenate([group[places[1:]] != group[places[:-1]], xp.ones(1, bool)])
        largest = xp.sort(places[last])
        wanted = max(round(part * largest.size), 1)
        keep[largest[xp.argsort(-size[largest], kind="stable")[:wanted]]] = True
    kept = xp.concatenate([xp.zeros(1, np.int64), xp.cumsum(keep)])
    return [kept[indptr].astype(indptr.dtype), indices[keep], values[keep]]
