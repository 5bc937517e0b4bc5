"""The template instances that `make cuda` compiles, by `.cu` file; importable without CuPy.

Every kernel with every type of value and every index type. The eliminations have many more instances than are worth a
compiler's time: each row shape of elimination.py:_row_shape and each way to find where rows meet is there with double
and int, and each type of value and index with one shape.
"""

from __future__ import annotations

VALUES = ("float", "double", "Complex<float>", "Complex<double>")
REALS = ("float", "double")
INDICES = ("int", "long long")
LANES = (1, 2, 4, 8, 16, 32)
ROW_SHAPES = ((8, 1), (8, 2), (8, 4), (16, 1), (16, 2), (16, 4), (32, 1), (32, 2), (32, 4))


def _over(functions, *parameters):
    ids = [()]
    for choices in parameters:
        ids = [(*head, choice) for head in ids for choice in choices]
    return [f"{name}<{', '.join(str(a) for a in arguments)}>" for name in functions for arguments in ids]


def _selections():
    """(type, order) of what is searched: the values, by themselves or by magnitude, and extracted keys."""
    magnitudes, values = _over_pairs(VALUES, "MAGNITUDES"), _over_pairs(REALS, "VALUES")
    elements, keys = magnitudes + values, _over_pairs(("unsigned", "u64"), "KEYS")
    counting = ("LANES", "SHARED", "SHARED_AGGREGATED", "GLOBAL", "GLOBAL_AGGREGATED")
    return (
        _over(["count_buckets"], elements, counting[:1], ("false", "true"))
        + _over(["count_buckets"], ("double, MAGNITUDES",), counting[1:], ("false", "true"))
        + _over(["count_buckets"], keys, counting, ("true",))
        + _over(["extract_bucket"], elements, counting[:1])
        + _over(["extract_bucket"], keys, counting)
        + _over(["partition"], elements, counting[2:3])
        + _over(["partition"], keys, counting[1:])
        + _over(["search_rest"], elements)
    )


def _over_pairs(types, order):
    return tuple(f"{t}, {order}" for t in types)


def _eliminations(name, updates):
    shapes = [f"{lanes}, {per_lane}" for lanes, per_lane in ROW_SHAPES]
    short = [f"{update}, {ahead}, true" for update in updates for ahead in ("false", "true")]
    long = [f"{update}, true, false" for update in updates]
    every_shape = _over([name], ("double",), ("int",), shapes, short + long)
    every_type = _over([name], VALUES, INDICES, ("32, 2",), short + long)
    return every_shape + [i for i in every_type if i not in every_shape]


FLAGS = tuple(f"{a}, {b}" for a in ("false", "true") for b in ("false", "true"))
TABLES = tuple(f"{lanes}, {slots}" for lanes in (4, 8, 16, 32) for slots in (8 * lanes, 16 * lanes, 32 * lanes))


def _tables(name):
    """Every type of value and index with one table, and each table with double and int."""
    every_table, every_type = (
        _over([name], ("double",), ("int",), TABLES, FLAGS),
        _over([name], VALUES, INDICES, TABLES[7:8], FLAGS),
    )
    return list(dict.fromkeys(every_table + every_type))


def _row_sweeps():
    every_shape = _over(["row_sweeps"], ("double",), ("int",), ("4, 1", "8, 1", "8, 2"), ("false", "true"))
    return list(dict.fromkeys(every_shape + _over(["row_sweeps"], VALUES, INDICES, ("8, 2",), ("false", "true"))))


INSTANCES: dict[str, list[str]] = {
    "inspect": _over(["inspect"], VALUES, INDICES),
    "levels": _over(["levels_sync_free"], INDICES, (1, 2, 4, 8)),
    "packing": ["segment_starts", *_over(["count_rows", "place_rows"], INDICES)],
    "triangular": _over(["trsv_sync_free"], VALUES, INDICES, LANES)
    + _over(
        [
            "trsv_level_packed",
            "trsv_one_block",
            "gather_values",
            "invert_diagonal",
            "jacobi_sweep",
            "isai",
            "isai_apply",
            "triangle_residual",
        ],
        VALUES,
        INDICES,
    ),
    "ilu0": _eliminations("ilu0", ("SEARCH", "TABLE"))
    + _over(["ilu0"], VALUES, INDICES, ("32, 1",), ("INTERSECT, false, false", "VECTOR, false, false"))
    + _over(["ilu0_match"], INDICES),
    "ic0": _eliminations("ic0", ("SEARCH", "TABLE")) + _over(["ic0_match"], INDICES),
    "arnoldi": _over(
        [
            "mgs_step",
            "unit_step",
            "arnoldi_begin",
            "givens_step",
            "hessenberg_solve",
            "combine",
            "update_solution",
        ],
        VALUES,
    ),
    "patterns": _over(["add", "remove_count", "remove_write", "magnitudes"], VALUES, INDICES)
    + _over(
        [
            "row_facts",
            "remove_rows",
            "sum_below",
            "count_columns",
            "sum_columns",
            "start_columns",
            "scatter_columns",
            "sort_columns",
        ],
        INDICES,
    ),
    "sweeps": _tables("short_sweep") + _over(["long_sweep"], VALUES, INDICES, FLAGS) + _row_sweeps(),
    "candidates": _tables("short_candidates") + _over(["long_candidates"], VALUES, INDICES, FLAGS),
    "multilevel": _over(["enter", "leave", "subtract_product"], VALUES, INDICES) + _over(["dense_product"], VALUES),
    "scaling": _over(
        ["pivots"], ("float, float", "double, double", "Complex<float>, float", "Complex<double>, double"), INDICES
    )
    + _over(["unusable"], VALUES, INDICES)
    + _over(["use_new_pivots"], VALUES, INDICES)
    + _over(["scale"], ("float, float", "double, double", "Complex<float>, float", "Complex<double>, double"), INDICES),
    "selection": _selections(),
    "recurrences": _over(["begin_cycle", "minres_record", "bicg_record", "sqmr_begin", "sqmr_smooth"], REALS)
    + _over(
        [
            "keep_verified",
            "cg_step",
            "cg_record",
            "cg_direction",
            "bicg_alpha",
            "bicg_step",
            "bicg_direction",
            "sqmr_residual",
            "sqmr_step",
            "sqmr_direction",
            "bicgstab_half",
            "bicgstab_step",
            "bicgstab_record",
            "bicgstab_direction",
            "minres_begin",
            "minres_start",
            "minres_lanczos",
            "minres_rotation",
            "minres_step",
        ],
        VALUES,
    ),
}
