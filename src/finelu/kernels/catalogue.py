"""The families of kernels: the purpose of each, its kernels in each form, and the reason for a missing form.

A family has the same stem wherever it has a form: reference/<family>.py specifies it in plain Python, cpu/<family>.py
has it in Numba, cuda/<family>.py and .cu have it in CUDA C++. The three forms of a kernel have one name and the same
arguments; where they do not, the kernel's entry says how a plan relates to its specification.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType

from finelu.threads import import_numba

FORMS = ("reference", "cpu", "cuda")


@dataclass(frozen=True)
class Kernel:
    """A public function or class of a family, in three forms.

    missing : form -> the reason why it is missing.
    arguments : form -> the names of its arguments (of a class those of its constructor, *name: by keyword only), if
        they differ from those of the first existing form.  relation : how they correspond to these.
    """

    missing: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, str] = field(default_factory=dict)
    relation: str = ""


@dataclass(frozen=True)
class Family:
    """A family: what it is for, and its kernels by name.

    helpers : form -> other public names of that form, of which the kernels are made: plans, results, building blocks.
    uses : (form, family) -> what it imports from another family of the same form.
    """

    purpose: str
    kernels: Mapping[str, Kernel]
    helpers: Mapping[str, str] = field(default_factory=dict)
    uses: Mapping[tuple[str, str], str] = field(default_factory=dict)


def _all(names: str, **missing: str) -> dict[str, Kernel]:
    return dict.fromkeys(names.split(), Kernel(missing))


SEQUENTIAL = "factored on the CPU, as each row decides what the next ones have to do; applied on the GPU as any factors"
SET_UP = "part of an analysis on the host, once for a pattern; a copy of it is taken there"
MADE_ANEW = (
    "the rest is made anew in each step, some hundred times: on two threads of a CPU that took 5 to 10 times as "
    "long as `crout`, which makes each row once"
)
NO_ANALYSIS = "it needs no analysis: it visits all rows in natural order"
BLOCK_PLAN = (
    "on the GPU `plan` is the analysis of the pattern; None: that which was made at the first call with these arrays"
)

FAMILIES: dict[str, Family] = {
    "arnoldi": Family(
        "The Arnoldi process and the least-squares problem of GMRES.",
        _all("arnoldi_begin keep_column mgs_step cgs2_step givens_step hessenberg_solve combine update_solution"),
        uses={("reference", "vectors"): "lengths", ("cpu", "vectors"): "inner products and lengths inside a kernel"},
    ),
    "blocks": Family(
        "Block matrices of any pattern: residual, block ILU(0) and its solves; inverses of many blocks.",
        {
            "bsr_ilu0_factor": Kernel(arguments={"cuda": "indptr indices diag lu pivoting plan"}, relation=BLOCK_PLAN),
            "bsr_ilu0_solve": Kernel(
                arguments={"cuda": "indptr indices places diag lu b x trans plan"}, relation=BLOCK_PLAN
            ),
        }
        | _all("bsr_residual bsr_accumulate invert_blocks blocks_times"),
        helpers={
            "reference": "subtract_block_product gauss_jordan power_against",
            "cpu": "Sweeps",
            "cuda": "Team team_for batch_for Order FactorPlan factor_plan SolvePlan solve_plan",
        },
        uses={("cpu", "levels"): "block rows that do not depend on each other"},
    ),
    "candidates": Family(
        "What ParILUT may add to its factors, and how far these are from A.",
        _all("candidates"),
        uses={
            ("cuda", "indices"): "other types of indices",
            ("reference", "sweeps"): "rows of A, and of the product of the factors",
        },
    ),
    "crout": Family(
        "The factorization of a level of the multilevel ILU in Crout's form, and its Schur complement.",
        _all("crout schur_complement", cuda=SEQUENTIAL),
        helpers={
            "reference": "farthest ahead usable",
            "cpu": "CroutFactors",
        },
        uses={("reference", "sweeps"): "rows of A", ("reference", "threshold"): "the largest entries of a row"},
    ),
    "crout_symmetric": Family(
        "The same for symmetric and Hermitian matrices, with pivots of one or two rows.",
        _all("crout_symmetric schur_complement_symmetric", cuda=SEQUENTIAL),
        helpers={"cpu": "SymmetricCroutFactors"},
        uses={("reference", "crout"): "the signs of the estimates, and what is a pivot"},
    ),
    "cycle": Family(
        "Where a cycle of a Krylov method begins, what it records, and what it keeps.",
        {
            "Snapshot": Kernel({"reference": "it copies two small arrays to the host"}),
            "record": Kernel({"cuda": "`take` in recurrences.cu, a part of the kernels that record"}),
        }
        | _all("begin_cycle keep_verified unless_finite"),
    ),
    "elimination": Family(
        "ILU(0), IC(0) and MILU(0).",
        {
            "ilu0_analysis": Kernel({"reference": NO_ANALYSIS}),
            "ic0_analysis": Kernel({"reference": NO_ANALYSIS}),
            "milu0_analysis": Kernel({"reference": NO_ANALYSIS}),
            "ilu0": Kernel(
                arguments={"cpu": "plan a lu", "cuda": "plan a lu refusal"},
                relation="plan = ilu0_analysis(A, variant, once), A of the pattern indptr, indices, diag",
            ),
            "ic0": Kernel(
                arguments={"cpu": "plan a l", "cuda": "plan a l"},
                relation="plan = ic0_analysis(L, variant, once), L of the pattern indptr, indices",
            ),
            "milu0": Kernel(
                arguments={"cpu": "plan a relax lu", "cuda": "plan a relax lu refusal"},
                relation="plan = milu0_analysis(A, variant, once), A of the pattern indptr, indices, diag",
            ),
        },
        helpers={"cpu": "Elimination ModifiedElimination", "cuda": "EliminationPlan Refusal refusal"},
        uses={("cuda", "indices"): "where lists begin", ("cpu", "levels"): "rows that do not depend on each other"},
    ),
    "fill": Family(
        "Fill, without its values: the pattern of ILU(k), the columns of a Cholesky factor, and their tree.",
        {"pattern_iluk": Kernel(relation="the specification does not return where the entries of A lie in the pattern")}
        | _all("elimination_tree postorder column_counts subtrees", cuda=SET_UP),
        uses={
            ("cuda", "indices"): "other types of indices",
            ("cuda", "threshold"): "rows whose pattern is found while they are eliminated",
        },
    ),
    "graph": Family(
        "Transposes; blocks; matrices from triangles, or in another order; the graph of A + A^T; level sets.",
        _all("transposed block triangles arranged_columns symmetric_graph permuted_graph level_sets", cuda=SET_UP),
    ),
    "independent": Family(
        "Elimination of many pivots at a time, none of which is coupled to another.",
        _all("choose split pivot_rows signs transposed remainder", cpu=MADE_ANEW),
        uses={
            ("reference", "crout"): "the signs of the estimates, and what is a pivot",
            ("reference", "partition"): "the hash that decides between equals",
            ("reference", "sweeps"): "rows of a matrix",
            ("reference", "threshold"): "the largest entries of a row",
            ("cuda", "indices"): "where lists begin",
            ("cuda", "pattern"): "transposes",
            ("cuda", "vectors"): "gathers",
        },
    ),
    "indices": Family(
        "Lists of integers, of which analyses are made: their places, lengths, starts and inverses.",
        _all("progression shifted lengths pointers entries rows_of_entries inverse starts longest"),
    ),
    "inspection": Family(
        "Whether a matrix is valid, where its diagonal is, and how it compares with its transpose.",
        _all("inspect mirrored diagonal signs same alike")
        | _all("finite", cuda="`inspect` looks at all of a matrix there"),
        helpers={"cuda": "queue_alike"},
    ),
    "levels": Family(
        "Level sets of a triangular pattern.",
        _all("levels"),
        uses={("reference", "triangular"): "the order in which rows are visited"},
    ),
    "matching": Family(
        "Matching of rows with columns, its cycles cut into pairs, and what is connected.",
        _all(
            "lightest_matching cut_cycles connected_parts",
            cuda="augmenting paths are found one after the other; " + SET_UP,
        ),
    ),
    "minimum_degree": Family(
        "The approximate minimum degree order of a symmetric pattern.",
        _all("minimum_degree", cuda=SET_UP),
        helpers={"cpu": "is_compiled"},
    ),
    "partition": Family(
        "Parts of about the same size: graphs of couplings, their matchings and contractions; grids.",
        _all("couplings both_directions propose contract grid_couplings bricks")
        | _all("settle", cuda="few vertices are left; a copy of them is taken on the host"),
        helpers={"reference": "magnitude diagonal_sizes mixed key partner", "cpu": "is_compiled"},
        uses={("cuda", "indices"): "where lists begin"},
    ),
    "pattern": Family(
        "The pattern of the factors grows and shrinks; magnitudes; a triangle by columns.",
        _all("columns_of facts add values_at magnitudes remove"),
        uses={("reference", "sweeps"): "rows of a matrix"},
    ),
    "products": Family(
        "Products of a matrix with vectors, and residuals.",
        _all("residual residual_twice subtract_product dense_product Product"),
        helpers={"cuda": "rows_of_a_block"},
        uses={("reference", "vectors"): "the inner product with a product", ("cpu", "vectors"): "the same"},
    ),
    "recording": Family(
        "A whole application, or the step of an iteration, recorded, and then started as one.",
        _all(
            "Recorded Repeated capturing",
            reference="it is about launches",
            cpu="a call of a kernel is no launch that would have to be saved",
        ),
    ),
    "recurrences": Family(
        "The steps of the Krylov methods between two products.",
        _all(
            "cg_step cg_direction bicg_alpha bicg_step bicg_record bicg_direction sqmr_begin sqmr_residual "
            "sqmr_smooth sqmr_step sqmr_direction bicgstab_half bicgstab_step bicgstab_direction "
            "minres_begin minres_start minres_lanczos minres_rotation minres_step minres_record richardson_step "
            "richardson_record"
        ),
        helpers={"reference": "running keep eps_of stabilizer", "cpu": "stabilizer"},
        uses={
            ("reference", "cycle"): "the record of an iteration",
            ("cpu", "cycle"): "the same",
            ("reference", "vectors"): "lengths",
            ("cpu", "vectors"): "inner products and lengths inside a kernel",
        },
    ),
    "scaling": Family(
        "Scaling of entries by vectors over rows and columns, and by pivots.",
        _all("scale divide_by_pivots pivots dropping_weights first_unusable row_norms definite_scale"),
    ),
    "selection": Family(
        "The value of a given rank.",
        {
            "Selection": Kernel(
                arguments={"cuda": "n_max dtype *order *exact *method *counting *room"},
                relation="select(values, rank) finds what the specification's function `select` returns, in `out` and "
                "`below`; not exact, the CPU finds `median_of_thresholds`. counting, room: with which atomics the GPU "
                "counts, and how much it extracts",
            )
        },
        helpers={"reference": "select median_of_thresholds"},
    ),
    "stencil": Family(
        "Block matrices on the 7-point stencil of a grid: residual, block ILU(0) and its solves.",
        {
            "block_ilu_factor": Kernel(arguments={"cuda": "blocks d pivoting plan"}, relation=BLOCK_PLAN),
            "block_ilu_solve": Kernel(arguments={"cuda": "blocks d b x trans plan"}, relation=BLOCK_PLAN),
        }
        | _all("stencil_residual"),
        helpers={
            "reference": "neighbour",
            "cpu": "tiles",
            "cuda": "StencilPlan plan_of cells_of_a_block row_stride tiles_of",
        },
        uses={("reference", "blocks"): "products with blocks, and their inverses"},
    ),
    "subdomains": Family(
        "Solves with the diagonal blocks of subdomains; the vectors of a coarse space.",
        _all("inside SubdomainSolve restrict prolong sum_couplings direction_with_coarse coarse_products couple")
        | {"coarse_matrix": Kernel(relation="the CPU's is a sparse matrix, the others' are dense")}
        | _all(
            "coarse_weights hermitian_inverse product_with_dot",
            cpu="the coarse matrix is sparse there, and SuperLU factors it",
        ),
        helpers={"reference": "coarse_residual", "cpu": "coarse_residual"},
        uses={
            ("reference", "indices"): "starts and inverses of lists",
            ("cuda", "indices"): "the same",
            ("cuda", "vectors"): "gathers",
            ("reference", "levels"): "the levels inside of parts",
            ("cpu", "levels"): "the same",
            ("cpu", "vectors"): "the chunks that threads share",
        },
    ),
    "sweeps": Family(
        "Fixed-point sweeps of ParILU and ParILUT.",
        _all("sweep sweeps sweep_in_place"),
        helpers={"reference": "row_of product_row"},
    ),
    "threshold": Family(
        "ILUT by rows, ILUT in Crout's form, and ICT.",
        _all("ilut ict") | _all("ilut_crout", cuda=SEQUENTIAL),
        helpers={"reference": "strongest allowed finite exceeds", "cpu": "allowed", "cuda": "Grown grow"},
        uses={
            ("cpu", "graph"): "transposes",
            ("cuda", "indices"): "other types of indices",
            ("cuda", "pattern"): "transposes",
            ("cuda", "vectors"): "gathers",
            ("reference", "sweeps"): "rows of A",
        },
    ),
    "triangular": Family(
        "Triangular solves T x = b, exact and approximate.",
        _all("triangular_plan solve_in_turn"),
        helpers={
            "reference": "rows_in_order value entries pivot first_bad_diagonal dense solve_triangular jacobi_sweeps "
            "isai Plan",
            "cpu": "Deferred Exact ISAI Jacobi Natural",
            "cuda": "SyncFree LevelPacked OneBlock Jacobi ISAI gather",
        },
        uses={("cpu", "levels"): "rows that do not depend on each other"},
    ),
    "vectors": Family(
        "Inner products, norms, scaled gathers and scatters of vectors.",
        _all(
            "dot dotu norm dot_and_norm size_of_dot gather difference added first_not_finite first_not_positive "
            "first_of_other_sign gather_scaled scatter_scaled"
        )
        | _all("first_bad", reference="its kernels return the row itself"),
        helpers={
            "reference": "length",
            "cpu": "inner bilinear sum_of_squares sum_of_scaled_squares length sum_of_products chunks shared",
        },
    ),
}


def family(package: str, name: str) -> ModuleType:
    """The module of a family, imported at first use; an AttributeError for any other name."""
    if name not in FAMILIES:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    if package.endswith(".cpu"):
        import_numba()
    return import_module(f"{package}.{name}")
