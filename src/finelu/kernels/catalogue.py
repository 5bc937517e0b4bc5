"""The families of kernels: which there are, why a kernel has no form where one is missing, and which use others.

A family has the same stem wherever it has a form: reference/<family>.py specifies it in plain Python, cpu/<family>.py
has it in Numba, cuda/<family>.py and .cu have it in CUDA C++; the docstring of the module says what it is for. A kernel
is a public name that two forms have, or that is called from outside of the kernels. Its forms have the same arguments,
unless RELATED says how they relate. Other public names are building blocks of the kernels of one form.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from finelu.threads import import_numba

FORMS = ("reference", "cpu", "cuda")
FAMILIES = frozenset(path.stem for form in FORMS for path in (Path(__file__).parent / form).glob("[!_]*.py"))

SEQUENTIAL = "factored on the CPU, as each row decides what the next ones have to do; applied on the GPU as any factors"
SET_UP = "part of an analysis on the host, once for a pattern; a copy of it is taken there"
PATHS = "augmenting paths are found one after the other; " + SET_UP
NO_ANALYSIS = "it needs no analysis: it visits all rows in natural order"
MADE_ANEW = (
    "the remainder is made anew in each step, some hundred times: on two threads of a CPU that took 5 to 10 times as "
    "long as `crout`, which makes each row once"
)
AT_ONCE = "on a GPU `cg_step` moves x and r at once"
IN_ROWS = "several columns are iterated together on the CPU alone, each with the bits of one"
BLOCK_PLAN = (
    "on the GPU `plan` is the analysis of the pattern; None: that which was made at the first call with these arrays"
)

# (form, family) -> the names of the kernels without that form, and why.
MISSING: dict[tuple[str, str], tuple[str, str]] = {
    ("cuda", "cholesky"): ("Cholesky", "the coarse matrix is inverted densely there"),
    ("reference", "columns"): ("dot", IN_ROWS),
    ("cuda", "columns"): ("dot", IN_ROWS),
    ("cuda", "crout"): ("crout schur_complement", SEQUENTIAL),
    ("cuda", "crout_symmetric"): ("crout_symmetric schur_complement_symmetric", SEQUENTIAL),
    ("reference", "cycle"): ("Snapshot", "it copies two small arrays to the host"),
    ("reference", "elimination"): ("ilu0_analysis ic0_analysis milu0_analysis", NO_ANALYSIS),
    ("cuda", "fill"): ("elimination_tree postorder column_counts subtrees first_coupling", SET_UP),
    ("cuda", "graph"): (
        "transposed transposed_places block block_starts triangles arranged_columns without_small symmetric_graph "
        "permuted_graph level_sets without_diagonal behind_diagonal has_small_line",
        SET_UP,
    ),
    ("cpu", "independent"): ("choose split pivot_rows signs transposed remainder", MADE_ANEW),
    ("cuda", "inspection"): (
        "finite extremes without_zeros",
        "`inspect` looks at all of a matrix there, and values are prepared for complete factors on the host",
    ),
    ("cuda", "matching"): ("lightest_matching cut_cycles connected_parts", PATHS),
    ("cuda", "minimum_degree"): ("minimum_degree", SET_UP),
    ("cuda", "pattern"): ("lower_triangle", "`indices` counts and lists its entries there, and `vectors` gathers them"),
    ("cuda", "partition"): ("settle", "few vertices are left; a copy of them is taken on the host"),
    ("reference", "products"): ("columns_with_dots", IN_ROWS),
    ("cuda", "products"): ("columns_with_dots", IN_ROWS),
    ("cuda", "recurrences"): ("residual_step", AT_ONCE),
    ("reference", "recording"): ("capturing", "it is about launches"),
    ("cpu", "recording"): (
        "capturing",
        "a call of a kernel is no launch that would have to be saved",
    ),
    ("cpu", "subdomains"): (
        "coarse_weights hermitian_inverse magnitudes lu inverse_by_lu product_with_dot",
        "the coarse matrix is sparse there, and `cholesky` or SuperLU factors it",
    ),
    ("cuda", "subdomains"): (
        "step_and_direction couple_rows",
        AT_ONCE + ", and couplings follow from A Z by rows there",
    ),
    ("cuda", "threshold"): ("ilut_crout", SEQUENTIAL),
    ("cpu", "vectors"): ("largest", "NumPy's is taken there, without a compiler"),
    ("reference", "vectors"): ("first_bad", "its kernels return the row itself"),
}

# family -> public names that two forms have, or that others call, without being kernels.
BUILDING_BLOCKS = {
    "batch": "pattern_of",
    "bicgstabl": "stopped",
    "elimination": "refusal",
    "inspection": "queue_alike",
    "minimum_degree": "is_compiled",
    "partition": "is_compiled",
    "recurrences": "stabilizer",
    "subdomains": "coarse_residual",
    "threshold": "allowed",
    "triangular": "ISAI Jacobi",
    "vectors": "length",
}

# "family.kernel" -> form -> the names of its arguments (of a class those of its constructor, *name: by keyword only),
# where they are not those of the first form that there is; and how they relate to these.
RELATED: dict[str, tuple[dict[str, str], str]] = {
    "blocks.bsr_ilu0_factor": ({"cuda": "indptr indices diag lu pivoting plan"}, BLOCK_PLAN),
    "blocks.bsr_ilu0_solve": ({"cuda": "indptr indices places diag lu b x trans plan"}, BLOCK_PLAN),
    "elimination.ilu0": (
        {"cpu": "plan a lu", "cuda": "plan a lu refusal"},
        "plan = ilu0_analysis(A, variant, once), A of the pattern indptr, indices, diag",
    ),
    "elimination.ic0": (
        {"cpu": "plan a l", "cuda": "plan a l"},
        "plan = ic0_analysis(L, variant, once), L of the pattern indptr, indices",
    ),
    "elimination.milu0": (
        {"cpu": "plan a relax lu", "cuda": "plan a relax lu refusal"},
        "plan = milu0_analysis(A, variant, once), A of the pattern indptr, indices, diag",
    ),
    "fill.pattern_iluk": ({}, "the specification does not return where the entries of A lie in the pattern"),
    "selection.Selection": (
        {"cuda": "n_max dtype *order *exact *method *counting *room"},
        "select(values, rank) finds what the specification's function `select` returns, in `out` and `below`; not "
        "exact, the CPU finds `median_of_thresholds`. counting, room: with which atomics the GPU counts, and how much "
        "it extracts",
    ),
    "stencil.block_ilu_factor": ({"cuda": "blocks d pivoting plan"}, BLOCK_PLAN),
    "stencil.block_ilu_solve": ({"cuda": "blocks d b x trans plan"}, BLOCK_PLAN),
    "subdomains.coarse_matrix": ({}, "the CPU's is a sparse matrix, the others' are dense"),
}

# form -> family -> the families of the same form that it imports; all others stand alone.
USES: dict[str, dict[str, str]] = {
    "reference": {
        "arnoldi": "vectors",
        "batch": "products",
        "batch_krylov": "batch",
        "bicgstabl": "recurrences vectors",
        "candidates": "sweeps",
        "crout": "sweeps threshold",
        "crout_symmetric": "crout",
        "idrs": "recurrences vectors",
        "independent": "crout partition sweeps threshold",
        "levels": "triangular",
        "multishift": "recurrences",
        "pattern": "sweeps",
        "products": "vectors",
        "recurrences": "vectors",
        "stencil": "blocks",
        "subdomains": "indices levels",
        "threshold": "sweeps",
    },
    "cpu": {
        "arnoldi": "vectors",
        "batch": "products",
        "batch_krylov": "batch",
        "bicgstabl": "recurrences vectors",
        "_schur": "_crout_rows",
        "blocks": "levels",
        "candidates": "vectors",
        "_coarse_products": "_subdomain_columns indices",
        "columns": "recurrences vectors",
        "_crout_rows": "fill",
        "crout": "_crout_rows _schur",
        "crout_symmetric": "_crout_rows _schur",
        "cycle": "vectors",
        "elimination": "_ic0_columns _waiting levels",
        "idrs": "recurrences vectors",
        "multishift": "vectors",
        "_interleaved": "indices",
        "pattern": "indices",
        "products": "columns vectors",
        "_prolongation": "_subdomain_columns vectors",
        "recurrences": "vectors",
        "_subdomain_columns": "_interleaved",
        "subdomains": "_coarse_products _interleaved _orthonormal _prolongation _subdomain_columns indices levels",
        "threshold": "graph",
        "triangular": "levels",
    },
    "cuda": {
        "batch_krylov": "batch",
        "blocks": "levels",
        "candidates": "indices",
        "elimination": "indices levels",
        "fill": "indices threshold",
        "independent": "indices pattern vectors",
        "indices": "vectors",
        "partition": "indices",
        "pattern": "indices",
        "subdomains": "indices vectors",
        "threshold": "indices pattern vectors",
        "triangular": "levels",
    },
}


def family(package: str, name: str) -> ModuleType:
    """The module of a family, imported at first use; an AttributeError for any other name."""
    if name not in FAMILIES:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    if package.endswith(".cpu"):
        import_numba()
    return import_module(f"{package}.{name}")
