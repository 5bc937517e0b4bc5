"""Building blocks on the GPU: same names, arguments and meaning as in kernels/cpu and kernels/reference.py."""

from finelu.kernels.cuda.arnoldi import (
    arnoldi_begin,
    cgs2_step,
    combine,
    givens_step,
    hessenberg_solve,
    mgs_step,
    update_solution,
)
from finelu.kernels.cuda.candidates import candidates
from finelu.kernels.cuda.elimination import IC0_VARIANTS, ILU0_VARIANTS, ic0, ic0_analysis, ilu0, ilu0_analysis
from finelu.kernels.cuda.inspect import inspect
from finelu.kernels.cuda.memory import empty, reusing_memory
from finelu.kernels.cuda.patterns import add, columns_of, facts, magnitudes, remove
from finelu.kernels.cuda.recurrences import (
    Snapshot,
    begin_cycle,
    bicgstab_direction,
    bicgstab_half,
    bicgstab_record,
    bicgstab_step,
    cg_direction,
    cg_record,
    cg_step,
    dot,
    keep_verified,
    minres_begin,
    minres_lanczos,
    minres_record,
    minres_rotation,
    minres_start,
    minres_step,
    norm,
)
from finelu.kernels.cuda.scaling import first_unusable, pivots, scale, use_new_pivots
from finelu.kernels.cuda.schedule import levels
from finelu.kernels.cuda.selection import Selection
from finelu.kernels.cuda.sweeps import sweep, sweep_in_place, sweeps
from finelu.kernels.cuda.triangular import TRIANGULAR_METHODS, first_bad, triangular_plan

__all__ = [
    "IC0_VARIANTS",
    "ILU0_VARIANTS",
    "TRIANGULAR_METHODS",
    "Selection",
    "Snapshot",
    "add",
    "arnoldi_begin",
    "begin_cycle",
    "bicgstab_direction",
    "bicgstab_half",
    "bicgstab_record",
    "bicgstab_step",
    "candidates",
    "cg_direction",
    "cg_record",
    "cg_step",
    "cgs2_step",
    "columns_of",
    "combine",
    "dot",
    "empty",
    "facts",
    "first_bad",
    "first_unusable",
    "givens_step",
    "hessenberg_solve",
    "ic0",
    "ic0_analysis",
    "ilu0",
    "ilu0_analysis",
    "inspect",
    "keep_verified",
    "levels",
    "magnitudes",
    "mgs_step",
    "minres_begin",
    "minres_lanczos",
    "minres_record",
    "minres_rotation",
    "minres_start",
    "minres_step",
    "norm",
    "pivots",
    "remove",
    "reusing_memory",
    "scale",
    "sweep",
    "sweep_in_place",
    "sweeps",
    "triangular_plan",
    "update_solution",
    "use_new_pivots",
]
