"""The template instances that `make cuda` compiles, and those that a wheel carries, by `.cu` file; importable without
CuPy.

INSTANCES, for `make cuda`, has every kernel with every type of value and every index type. Eliminations, sweeps, blocks
and cells have too many shapes to compile them all: INSTANCES has each shape of the usual sizes with double and int, and
one or two shapes with each other type of value and index.

COMMON has those that `solve` asks for first, in that order: they are compiled ahead.

CARRIED, for a wheel, adds with float and int all shapes of double and int. The rest is compiled at first use: these
kernels with complex numbers or 64-bit indices in other shapes; blocks of sizes from 10 to 15 and from 17 to 31, cells
of these sizes and of 9; grids with no hyperplane that fills a thread block.
"""

from __future__ import annotations

import re
from itertools import product

VALUES = ("float", "double", "Complex<float>", "Complex<double>")
REALS = ("float", "double")
COMPLEX = VALUES[2:]
BOOLEANS = ("false", "true")
INDICES = ("int", "long long")
WORDS = ("unsigned char", "unsigned short", "unsigned", "unsigned long long", "ulonglong2")
LANES = (1, 2, 4, 8, 16, 32)  # threads of a row
# (threads of a row, entries of each)
ROW_SHAPES = ((8, 1), (8, 2), (8, 4), (16, 1), (16, 2), (16, 4), (32, 1), (32, 2), (32, 4))


def _over(functions, *parameters):
    """Each function, of a list or of names in one string, with each combination of template arguments."""
    names = functions.split() if isinstance(functions, str) else functions
    combined = [", ".join(map(str, arguments)) for arguments in product(*parameters)]
    return [f"{name}<{arguments}>" for name in names for arguments in combined]


def _selections():
    """The kernels of selection.cu for each (type, order): of values, by themselves or by magnitude, and of keys."""
    magnitudes, values = _over_pairs(VALUES, "MAGNITUDES"), _over_pairs(REALS, "VALUES")
    elements, keys = magnitudes + values, _over_pairs(("unsigned", "u64"), "KEYS")
    counting = ("LANES", "SHARED", "SHARED_AGGREGATED", "GLOBAL", "GLOBAL_AGGREGATED")
    return (
        _over(["count_buckets"], elements, counting[:1], BOOLEANS)
        + _over(["count_buckets"], ("double, MAGNITUDES",), counting[1:], BOOLEANS)
        + _over(["count_buckets"], keys, counting, ("true",))
        + _over(["extract_bucket"], elements, counting[:1])
        + _over(["extract_bucket"], keys, counting)
        + _over(["partition"], elements, counting[2:3])
        + _over(["partition"], keys, counting[1:])
        + _over(["search_rest"], elements)
    )


def _over_pairs(types, order):
    return tuple(f"{t}, {order}" for t in types)


def _eliminations(kind):
    shapes = [f"{lanes}, {per_lane}" for lanes, per_lane in ROW_SHAPES]
    short = [f"{update}, {ahead}, true, {kind}" for update in ("SEARCH", "TABLE") for ahead in BOOLEANS]
    long = [f"{update}, true, false, {kind}" for update in ("SEARCH", "TABLE")]
    every_shape = _over(["eliminate"], ("double",), ("int",), shapes, short + long)
    return list(dict.fromkeys(every_shape + _over(["eliminate"], VALUES, INDICES, ("32, 2",), short + long)))


def _by_warp():
    short, long = ([f"{update}, false, {fits}, LU" for update in ("INTERSECT", "VECTOR")] for fits in BOOLEANS[::-1])
    every_shape = _over(["eliminate"], ("double",), ("int",), ("32, 1", "32, 2", "32, 4"), short)
    every_type = [_over(["eliminate"], VALUES, INDICES, *how) for how in ((("32, 2",), short), (("32, 4",), long))]
    return list(dict.fromkeys(sum(every_type, every_shape)))


WIDENED = ("float, double", "double, double", "Complex<float>, Complex<double>", "Complex<double>, Complex<double>")
# values of unknowns, and of stored entries
STORED = (*(f"{value}, {value}" for value in VALUES), "double, float", "Complex<double>, Complex<float>")
WITH_REALS = ("float, float", "double, double", "Complex<float>, float", "Complex<double>, double")
FLAGS = tuple(f"{a}, {b}" for a in BOOLEANS for b in BOOLEANS)
TABLES = tuple(f"{lanes}, {slots}" for lanes in (4, 8, 16, 32) for slots in (8 * lanes, 16 * lanes, 32 * lanes))


def _tables(name):
    """Every type of value and index with one table, and each table with double and int."""
    every_table, every_type = (
        _over([name], ("double",), ("int",), TABLES, FLAGS),
        _over([name], VALUES, INDICES, TABLES[7:8], FLAGS),
    )
    return list(dict.fromkeys(every_table + every_type))


def _row_sweeps():
    every_shape = _over(["row_sweeps"], ("double",), ("int",), ("4, 1", "8, 1", "8, 2"), BOOLEANS)
    return list(dict.fromkeys(every_shape + _over(["row_sweeps"], VALUES, INDICES, ("8, 2",), BOOLEANS)))


# block size, cells a thread block: as kernels/cuda/stencil.py:cells_of_a_block chooses them
ALONE = ("1, 96", "2, 24", "3, 32", "4, 6", "5, 5", "7, 5", "6, 8", "8, 2", "16, 1", "32, 1")
BLOCK_SIZES = ("1, 64", "2, 16", "3, 14", "4, 4", "5, 5", "6, 3", "6, 4", "7, 3", "7, 2", "8, 1", "16, 1", "32, 1")


TILES = (2, 3, 4)  # a side of a block of 33 to 128


def _by_tiles(name, *parameters):
    """Each number of tiles with double, and each type of value with one."""
    every_size = _over([name], ("double",), TILES, *parameters)
    return list(dict.fromkeys(every_size + _over([name], VALUES, TILES[:1], *parameters)))


def _by_cells(name, sizes, *parameters):
    """Each block size with double, and each type of value with two."""
    every_size = _over([name], ("double",), sizes, *parameters)
    return list(dict.fromkeys(every_size + _over([name], VALUES, (sizes[-4], "32, 1"), *parameters)))


# block size and elements a thread as kernels/cuda/blocks.py:team_for chooses them
TEAMS = ("1, 1", "2, 1", "3, 1", "4, 1", "5, 2", "6, 3", "7, 2", "8, 2", "9, 2", "16, 2", "32, 4")
EXTREME_TEAMS = ("6, 3", "32, 4")


def _by_teams(name, *parameters, indices=False, batch=False):
    """Each block size with double and int, and each type of value and index with two of them."""
    batches = {"32, 4": {"float": 4, "double": 4, "Complex<float>": 4, "Complex<double>": 2}}
    every = dict.fromkeys(
        [("double", "int", team) for team in TEAMS]
        + [(value, index, team) for value in VALUES for index in INDICES for team in EXTREME_TEAMS]
    )
    found = []
    for value, index, team in every:
        types = f"{value}, {index}" if indices else value
        steps = f", {batches.get(team, {}).get(value, 6)}" if batch else ""
        found += _over([name], (f"{types}, {team}{steps}",), *parameters)
    return list(dict.fromkeys(found))


INSTANCES: dict[str, list[str]] = {
    "batch": _over("factor_groups solve_groups solve_direct_groups interleave separate residual_twice", VALUES),
    "batch_krylov": _over(["iterate"], VALUES, ("CG", "BICGSTAB", "GMRES")),
    "blocks": [
        *_over(["count_intersections", "write_intersections", "parents", "early_rows"], INDICES),
        *_by_teams("bsr_factor", BOOLEANS, indices=True, batch=True),
        *_by_teams("bsr_solve", ("PLAIN", "TRANSPOSED", "ADJOINT"), indices=True),
        *_by_teams("bsr_product", ("RESIDUAL", "ADD", "SUBTRACT"), indices=True),
        *_by_teams("invert_blocks", BOOLEANS),
        *_by_teams("blocks_times", ("PLAIN", "TRANSPOSED", "ADJOINT")),
    ],
    "indices": _over(["progression", "lengths", "sums_of_chunks", "write_pointers", "entries"], INDICES)
    + _over(["inverse", "starts", "longest"], INDICES)
    + _over(["shifted"], INDICES, INDICES),
    "inspection": _over(["inspect", "roots", "mirrored", "diagonal", "alike"], VALUES, INDICES)
    + _over(["signs"], REALS, INDICES)
    + _over(["same"], INDICES),
    "levels": _over(["levels_sync_free"], INDICES, (1, 2, 4, 8)),
    "runtime/growing": ["pool_lengths", *_over(["collect"], (*VALUES, "int"), INDICES)],
    "runtime/packing": ["segment_starts", *_over(["count_rows", "place_rows"], INDICES)],
    "triangular": _over(["trsv_sync_free"], STORED, INDICES, LANES)
    + _over("trsv_level_packed trsv_columns trsv_one_block invert_diagonal jacobi_sweep", STORED, INDICES)
    + _over(["jacobi_sweep"], ("float, Half", "double, Half"), INDICES)
    + _over(["halved"], REALS, INDICES)
    + _over("triangle_product gather_values isai isai_apply triangle_residual", VALUES, INDICES),
    "elimination": [
        *(i for kind in ("LU", "CHOLESKY", "MODIFIED") for i in _eliminations(kind)),
        *_by_warp(),
        *_over(["match_rows"], INDICES, ("LU", "CHOLESKY")),
        *_over(["table_sizes"], INDICES),
        "pend_unless",
    ],
    "arnoldi": _over(["mgs_step"], VALUES, (0, 4))
    + _over("cgs2_step arnoldi_begin keep_column givens_step hessenberg_solve combine update_solution", VALUES)
    + _over("partial_moments sum_moments take_off", VALUES),
    "partition": [
        "count_ends",
        "place_ends",
        "pairs",
        "enumerate",
        "contract",
        "bricks",
        *_over(["scales", "couplings", "grid_couplings"], VALUES),
        *_over(["propose"], (8, 32)),
    ],
    "independent": _over(["decide", "rest_flags", "split", "classify"], INDICES)
    + _over(["weigh", "signs"], WITH_REALS, INDICES)
    + _over(["pivot_rows", "kept_rows"], WITH_REALS, INDICES, BOOLEANS)
    + _over(["remaining_rows"], WITH_REALS, INDICES, WORDS[1:3], BOOLEANS),
    "threshold": [
        *_over(["ilut", "ict"], VALUES, INDICES, WORDS[1:3]),
        *_over(["mark_couplings"], INDICES),
        *("block_begins", "block_starts", "places_in_blocks"),
    ],
    "fill": _over(["pattern_iluk"], INDICES, WORDS[1:3]) + _over(["places_in"], INDICES),
    "pattern": _over(["add", "values_at", "remove_count", "remove_write", "magnitudes"], VALUES, INDICES)
    + _over(
        "row_facts remove_rows sum_below count_columns scatter_columns sort_columns",
        INDICES,
    ),
    "sweeps": _tables("short_sweep") + _over(["long_sweep"], VALUES, INDICES, FLAGS) + _row_sweeps(),
    "candidates": _tables("short_candidates") + _over(["long_candidates"], VALUES, INDICES, FLAGS),
    "vectors": _over(["gather_scaled", "scatter_scaled", "first_not_positive"], VALUES, INDICES)
    + _over(["gather"], WORDS, INDICES)
    + _over(["first_of_other_sign"], REALS, INDICES)
    + _over("dot dotu size_of_dot norm dot_and_norm difference moved_on turned added scaled largest", VALUES)
    + _over(["rounded"], STORED[4:])
    + _over(["first_not_finite"], VALUES),
    "products": _over(["product", "residual", "residual_twice", "subtract_product"], VALUES, INDICES)
    + _over(["magnitudes_of_terms"], REALS, INDICES)
    + _over(["dense_product"], VALUES),
    "scaling": _over(["pivots", "dropping_weights", "scale", "definite_scale"], WITH_REALS, INDICES)
    + _over(["unusable", "divide_by_pivots", "row_norms"], VALUES, INDICES),
    "selection": _selections(),
    "subdomains": _over(["inside", "order_by_levels"], INDICES)
    + _over(["pack"], STORED, INDICES)
    + _over(["subdomain_solve"], ("double, double", "double, float"), LANES, BOOLEANS, (1, 4))
    + _over(["subdomain_solve"], [pair for pair in STORED if not pair.startswith("double")], (1, 4), BOOLEANS, (1,)),
    "coarse_space": _over(
        ["restrict_to_parts", "prolong_from_parts", "sum_couplings", "product_with_dot", "direction_with_coarse"],
        VALUES,
    )
    + _over(["coarse_products"], VALUES, INDICES, (8, 32))
    + _over(["coarse_products_long"], VALUES, INDICES)
    + _over(["coarse_matrix"], WIDENED)
    + _over(["coupling_keys", "coupling_begins", "write_couplings"], INDICES)
    + _over(["scale_both", "coarse_weights", "matrix_magnitudes"], ("double", "Complex<double>"))
    + _over(["scale_transposed"], ("double, double", "double, float"))
    + _over(["scale_transposed"], ("Complex<double>, Complex<double>", "Complex<double>, Complex<float>"))
    + ["invert_block<double, 4>", "invert_block<Complex<double>, 2>"],
    "stencil": [
        "wavefront_order",
        *_by_cells("factor_by_cells", BLOCK_SIZES, BOOLEANS, BOOLEANS),
        *_by_cells("solve_by_cells", BLOCK_SIZES, ("PLAIN", "TRANSPOSED")),
        *_over(["solve_by_cells"], COMPLEX, ("6, 3", "32, 1"), ("ADJOINT",)),
        *_by_cells("stencil_residual", ALONE),
        *_by_tiles("factor_by_tiles", BOOLEANS),
        *_by_tiles("solve_by_tiles", ("PLAIN", "TRANSPOSED")),
        *_over(["solve_by_tiles"], COMPLEX, TILES[:1], ("ADJOINT",)),
        *_by_tiles("residual_by_tiles"),
        *_over(["residual_by_rows"], VALUES),
    ],
    "stencil_warps": _over(["factor_by_warps"], ("5, 5", "6, 1", "6, 5", "7, 5", "8, 5"), BOOLEANS)
    + _over(["solve_by_warps"], ("6, 1", "6, 5", "8, 5"), BOOLEANS, BOOLEANS)
    + _over(["solve_by_warps"], ("5, 5", "7, 5"), BOOLEANS, ("false",)),
    "bicgstabl": _over("direction bicg_step polynomial minimize", VALUES) + _over(["gram"], VALUES, range(1, 9)),
    "idrs": _over("draw begin residual_part direction orthogonality step", VALUES),
    "multishift": _over(
        "coefficients step",
        (*(f"{value}, {value}" for value in VALUES), "float, Complex<float>", "double, Complex<double>"),
    ),
    "cycle": _over(["begin_cycle", "claim_unless_it_follows"], REALS)
    + _over(["keep_verified", "unless_finite"], VALUES),
    "recurrences": _over(["record", "sqmr_smooth"], REALS)
    + _over(["direction"], (*WITH_REALS, *(f"{value}, {value}" for value in COMPLEX)))
    + _over(
        [
            "ratio",
            "advance",
            "cg_step",
            "bicg_step",
            "sqmr_step",
            "bicgstab_half",
            "bicgstab_step",
            "bicgstab_direction",
            "minres_lanczos",
            "minres_rotation",
            "minres_step",
        ],
        VALUES,
    ),
}


def _in_both(listed):
    """These, and those with double alone as their type of values once more, with float."""
    alone = [i for i in listed if "double" in i and not re.search("Complex|float|long long", i)]
    return list(dict.fromkeys([*listed, *(i.replace("double", "float") for i in alone)]))


SHAPED = ("blocks", "elimination", "candidates", "selection", "stencil", "subdomains", "sweeps")
CARRIED = INSTANCES | {stem: _in_both(INSTANCES[stem]) for stem in SHAPED}


# T : values, R : their real type, W : a word of their size, D, S : their types in double and in single precision, I :
# indices
COMMON = (
    ("inspection", "inspect<T, I>; roots<T, I>; mirrored<T, I>; diagonal<T, I>; signs<R, I>"),
    ("vectors", "first_not_finite<T>; norm<T>; first_not_positive<T, I>"),
    ("pattern", "row_facts<I>"),
    ("levels", "levels_sync_free<I, 4>; levels_sync_free<I, 8>"),
    ("elimination", "eliminate<T, I, 8, 1, SEARCH, false, true, LU>"),
    ("elimination", "eliminate<T, I, 8, 1, SEARCH, false, true, CHOLESKY>"),
    ("runtime/packing", "count_rows<I>; segment_starts; place_rows<I>"),
    (
        "indices",
        "shifted<I, long long>; shifted<long long, I>; shifted<I, I>; starts<I>; inverse<I>; sums_of_chunks<I>",
    ),
    ("indices", "write_pointers<I>; longest<I>; entries<I>"),
    ("vectors", "gather<W, long long>; gather<unsigned, long long>; gather<unsigned, I>; gather<W, I>"),
    ("partition", "grid_couplings<T>; bricks"),
    ("elimination", "table_sizes<I>; match_rows<I, LU>; match_rows<I, CHOLESKY>"),
    ("subdomains", "inside<I>; order_by_levels<I>; pack<T, T, I>; pack<T, S, I>"),
    ("triangular", "invert_diagonal<T, T, I>; trsv_one_block<T, T, I>; trsv_sync_free<T, T, I, 4>"),
    ("coarse_space", "coarse_products<T, I, 8>; coupling_keys<I>; coupling_begins<I>; write_couplings<I>"),
    ("coarse_space", "coarse_matrix<T, D>; coarse_weights<D>; scale_both<D>; invert_block<D, N>"),
    ("coarse_space", "matrix_magnitudes<D>; scale_transposed<D, D>; scale_transposed<D, T>"),
    ("cycle", "begin_cycle<R>; claim_unless_it_follows<R>; keep_verified<T>; unless_finite<T>"),
    ("vectors", "dot<T>; dot_and_norm<T>; difference<T>; moved_on<T>; turned<T>; added<T>"),
    ("subdomains", "subdomain_solve<T, S, 1, true, 1>; subdomain_solve<T, T, 1, true, 1>"),
    ("coarse_space", "restrict_to_parts<T>; prolong_from_parts<T>; sum_couplings<T>; product_with_dot<T>"),
    ("coarse_space", "direction_with_coarse<T>"),
    ("products", "dense_product<T>; product<T, I>; residual<T, I>; magnitudes_of_terms<R, I>"),
    ("recurrences", "cg_step<T>; direction<T, R>; bicgstab_half<T>; bicgstab_step<T>; bicgstab_direction<T>"),
    ("scaling", "definite_scale<T, R, I>; pivots<T, R, I>; scale<T, R, I>; dropping_weights<T, R, I>; unusable<T, I>"),
    ("indices", "lengths<I>"),
    ("pattern", "values_at<T, I>; count_columns<I>; scatter_columns<I>; sort_columns<I>; add<T, I>; sum_below<I>"),
    ("elimination", "eliminate<T, I, 16, 1, SEARCH, false, true, CHOLESKY>"),
    ("candidates", "short_candidates<T, I, 4, 32, true, false>; long_candidates<T, I, true, false>"),
    ("candidates", "short_candidates<T, I, 4, 32, true, true>"),
    ("selection", "count_buckets<T, MAGNITUDES, LANES, true>; extract_bucket<T, MAGNITUDES, LANES>"),
    ("selection", "search_rest<T, MAGNITUDES>"),
    ("pattern", "magnitudes<T, I>; remove_count<T, I>; remove_rows<I>; remove_write<T, I>"),
    ("elimination", "eliminate<T, I, 16, 1, SEARCH, true, true, CHOLESKY>"),
    ("triangular", "gather_values<T, I>; trsv_level_packed<T, T, I>"),
)


def common(value: str, index: str) -> list[tuple[str, str]]:
    """(stem, instance) for each of COMMON with these types."""
    double, complex_ = "double" in value, "Complex" in value
    types = {"T": value, "I": index, "R": "double" if double else "float"}
    types |= {"D": "Complex<double>" if complex_ else "double", "N": "2" if complex_ else "4"}
    types["S"] = "Complex<float>" if complex_ else "float"
    types["W"] = WORDS[2 + double + complex_]
    return [
        (stem, re.sub(r"\b[TIRDSNW]\b", lambda match: types[match[0]], instance))
        for stem, instances in COMMON
        for instance in instances.split("; ")
    ]
