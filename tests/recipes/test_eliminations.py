"""Eliminations on a given pattern, ILU(0), IC(0), MILU(0) and ILU(k), by one table: what each of them is held to.

What is special to one of them stands in its own file.
"""

from dataclasses import dataclass, field

import numpy as np
import pytest
import scipy.sparse as sp
from checks import (
    DTYPES,
    IN_TYPES,
    PATTERNS,
    assert_close,
    assert_is_ic0_of,
    assert_is_ilu0_of,
    assert_is_milu0_of,
    dominant_matrices,
    extended,
    fetched,
    full,
    in_dtype,
    long_rows,
    longest_chain,
    perturbed,
    refused,
    values,
    with_index,
)
from hypothesis import given
from hypothesis import strategies as st

from finelu import IC0, ILU0, ILUK, MILU0, ParameterError, gallery
from finelu.kernels import cpu, reference
from finelu.matrix import as_csr, lower_triangle


@dataclass(frozen=True)
class Elimination:
    """A recipe with parameters, and its definition: an assertion about A and the factors."""

    recipe: type
    definition: object
    options: dict = field(default_factory=dict)
    kernel: str = ""  # of the family `elimination`, where the recipe has one of its own

    def made(self, **options):
        return self.recipe(**self.options, **options)

    @property
    def hermitian(self):
        return self.recipe.hermitian

    @property
    def problems(self):
        return gallery.small_spd() if self.hermitian else gallery.small()

    @property
    def spread(self):
        """Matrices that are taken through all dtypes."""
        second = "anisotropic_triangles:2" if self.hermitian else "convection_diffusion:8,7,1,peclet=50"
        return ("poisson7:5,4,3", second, "arrow:70")

    def assert_defined(self, backend, A, F):
        self.definition(A, *fetched(backend, F))

    def operand(self, A):
        """What its kernel factors."""
        A = as_csr(A)
        return lower_triangle(A)[0] if self.hermitian else A

    def by_cpu(self, plan, A):
        """The values of the factors of an operand by a plan."""
        out = np.full_like(A.data, np.nan)
        assert getattr(cpu.elimination, self.kernel)(plan, A.data, *self.options.values(), out) == -1
        return out

    def plan(self, A, variant):
        return getattr(cpu.elimination, f"{self.kernel}_analysis")(A, variant)

    def by_specification(self, A):
        out = np.empty_like(A.data)
        places = () if self.hermitian else (A.diag,)
        more = map(A.dtype.type, self.options.values())
        assert getattr(reference.elimination, self.kernel)(A.indptr, A.indices, *places, A.data, *more, out) == -1
        return out


TABLE = {
    "ilu0": Elimination(ILU0, assert_is_ilu0_of, kernel="ilu0"),
    "ic0": Elimination(IC0, assert_is_ic0_of, kernel="ic0"),
    "milu0": Elimination(MILU0, lambda A, L, U: assert_is_milu0_of(A, L, U, 0.9), {"relax": 0.9}, "milu0"),
    "iluk": Elimination(ILUK, lambda A, L, U: assert_is_ilu0_of(extended(A, 2), L, U), {"level": 2}),
}
KERNELS = [name for name, elimination in TABLE.items() if elimination.kernel]
EACH = pytest.mark.parametrize("name", TABLE)
EACH_KERNEL = pytest.mark.parametrize("name", KERNELS)
OF_EACH = pytest.mark.parametrize(
    ("name", "problem"),
    [pytest.param(name, problem, id=f"{name}-{problem}") for name, e in TABLE.items() for problem in e.problems],
)
SPREAD = [(name, text) for name, elimination in TABLE.items() for text in elimination.spread]
VARIANTS = ("sequential", "levels", "auto")


# By definition


@OF_EACH
def test_it_is_its_definition(backend, name, problem):
    elimination, A = TABLE[name], problem.A
    F = elimination.made().factor(backend.move(A))
    elimination.assert_defined(backend, A, F)
    assert F.nnz == (extended(A, 2).nnz if name == "iluk" else elimination.operand(A).nnz)
    assert F.shape == A.shape and F.dtype == A.dtype


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("name", "text"), SPREAD)
def test_it_is_its_definition_in_every_dtype(backend, name, text, dtype):
    A = in_dtype(gallery.problem(text), dtype)
    F = TABLE[name].made().factor(backend.move(A))
    assert F.dtype == F.L.dtype == F.U.dtype == dtype
    TABLE[name].assert_defined(backend, A, F)


@EACH
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@PATTERNS
@given(data=st.data())
def test_it_is_its_definition_for_any_pattern(backend, name, dtype, data):
    A = data.draw(dominant_matrices(hermitian=TABLE[name].hermitian, dtype=dtype))
    TABLE[name].assert_defined(backend, A, TABLE[name].made().factor(backend.move(A)))


# By limit: without fill the incomplete factors are the factors

WITHOUT_FILL = {
    "tridiagonal": gallery.tridiagonal(50),
    "arrow": gallery.arrow(50),
    "dense": full(30, hermitian=True),
    "diagonal": sp.csr_matrix(np.diag(np.arange(1.0, 9))),
    "one row": sp.csr_matrix([[2.0]]),
    "lower": gallery.bidiagonal(40),
    "upper": sp.csr_matrix(gallery.bidiagonal(40).T),
    "general": full(30),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", WITHOUT_FILL)
@EACH
def test_where_there_is_no_fill_one_solve_is_exact(backend, name, kind, dtype):
    A = in_dtype(WITHOUT_FILL[kind], dtype)
    if TABLE[name].hermitian and kind in ("lower", "upper", "general"):
        pytest.skip("A = A^H is needed")
    F = TABLE[name].made().factor(backend.move(A))
    L, U = fetched(backend, F)
    assert_close((L @ U).toarray(), A.toarray(), 64, scale=abs(A).max())
    x = values(A.shape[0], dtype)
    assert_close(backend.fetch(F.solve(backend.move(A @ x))), x, 2000)


# By twin: the CPU gives the bits of the specification, on any number of threads


@IN_TYPES
@pytest.mark.parametrize(("name", "text"), [(name, text) for name, text in SPREAD if name in KERNELS])
def test_the_bits_are_those_of_the_specification_in_every_dtype(name, text, dtype, index):
    A = TABLE[name].operand(with_index(in_dtype(gallery.problem(text), dtype), index))
    assert A.indices.dtype == index
    want = TABLE[name].by_specification(A)
    for variant in VARIANTS:
        np.testing.assert_array_equal(TABLE[name].by_cpu(TABLE[name].plan(A, variant), A), want)


@pytest.mark.parametrize("kind", ["full", "arrow"])
@pytest.mark.parametrize("name", ["ilu0", "ic0"])
def test_the_bits_are_those_of_the_specification_however_rows_meet(name, kind):
    """Nearly all entries of two rows meet; a row has more than 2^16 entries."""
    A = TABLE[name].operand(full(130, hermitian=True) if kind == "full" else gallery.arrow(70_000))
    want = TABLE[name].by_specification(A)
    for variant in VARIANTS:
        np.testing.assert_array_equal(TABLE[name].by_cpu(TABLE[name].plan(A, variant), A), want)


LARGE = {
    "poisson7": lambda: sp.csr_matrix(gallery.poisson7(24) + sp.identity(24**3)),
    "random": lambda: gallery.random_dominant(4000, 0.001, 3, hermitian=True),
    "long rows": lambda: sp.csr_matrix(long_rows(2500) + long_rows(2500).T),
    "chain": lambda: longest_chain(3000),
    "tridiagonal": lambda: gallery.tridiagonal(3000),
    "arrow": lambda: gallery.arrow(3000),
    "diagonal": lambda: sp.csr_matrix(sp.identity(6000)),
    "full": lambda: full(200, hermitian=True),
}


@pytest.mark.parametrize("kind", LARGE)
@EACH_KERNEL
def test_the_bits_do_not_depend_on_the_number_of_threads(name, kind, threads):
    if TABLE[name].hermitian and kind == "chain":
        pytest.skip("A = A^H is needed")
    A = TABLE[name].operand(LARGE[kind]())
    want = TABLE[name].by_cpu(TABLE[name].plan(A, "sequential"), A)
    for count in (1, 2, 3):
        threads(count)
        for variant in ("levels", "auto"):
            plan = TABLE[name].plan(A, variant)
            assert variant == "auto" or plan.schedule.threads == count
            for _ in range(3):
                np.testing.assert_array_equal(TABLE[name].by_cpu(plan, A), want)


# The effect of each parameter


@EACH
def test_the_variant_asked_for_is_the_one_that_runs(name):
    A, made = gallery.poisson7(5), TABLE[name].made
    assert [made(variant=v).factor(A).report["variant"] for v in ("sequential", "levels")] == ["sequential", "levels"]
    assert made().factor(A).report["variant"] in ("sequential", "levels")


# Update


@EACH
@pytest.mark.parametrize("variant", ["auto", "levels or levs"])
def test_update_keeps_the_analysis_and_the_storage(backend, name, variant):
    A = gallery.poisson7(5, 4, 3)
    if variant == "auto":
        F = TABLE[name].made().factor(backend.move(A))
        F.update(backend.move(A))  # makes the plan for all later ones
    else:
        F = TABLE[name].made(variant="levels" if backend.name == "cpu" else "levs").factor(backend.move(A))
    plan, storage, solvers = F._numeric.plan, F._triangles.data, dict(F._solvers)
    plans = {key: solver.plan for key, solver in solvers.items()}
    B = perturbed(A)
    F.update(backend.move(B))
    assert F._numeric.plan is plan and F._triangles.data is storage and F._solvers == solvers
    assert all(F._solvers[key].plan is plans[key] for key in plans)
    TABLE[name].assert_defined(backend, B, F)


# By bad input


@pytest.mark.parametrize(
    ("recipe", "options", "named"),
    [
        *((MILU0, {"relax": relax}, "relax") for relax in (-0.1, 1.1, np.nan, True, "half")),
        *((ILUK, {"level": level}, "level") for level in (-1, 1.5, True, "two")),
        *((recipe, {"variant": variant}, variant) for recipe in (ILU0, MILU0) for variant in ("vect", "levs")),
        *((ILU0, {"variant": variant}, variant) for variant in ("shared", "adapt", "natural")),
        (IC0, {"variant": "shared"}, "variant"),
    ],
)
def test_a_parameter_of_one_of_them_and_variants_of_the_other_device(recipe, options, named):
    with refused(ParameterError, match=named):
        recipe(**options).factor(gallery.poisson7(3))
