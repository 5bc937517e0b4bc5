"""MultilevelILU: by definition, by limit, by symmetry, by behaviour, by bad input."""

import pickle
import re

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, PATTERNS, assert_close, in_dtype, perturbed, refused, values
from hypothesis import example, given
from hypothesis import strategies as st
from threadpoolctl import threadpool_info, threadpool_limits

import finelu as fl
from finelu import ILU0, MatrixError, MultilevelILU, ParameterError, ZeroPivot, gallery, ordering
from finelu.device import to_host
from finelu.errors import FineluError, NoFactors, StructurallySingular
from finelu.factors.base import trial_vector
from finelu.matrix import as_csr
from finelu.preconditioners.multilevel import dense
from finelu.preconditioners.multilevel.dense import magnitude_of_inverse
from finelu.preconditioners.multilevel.level import LONG_ROWS, ORDERED_ROWS, in_own_order, inverse_of, magnitude_of
from finelu.preconditioners.multilevel.variants import complete_of

NEVER = float("inf")
EXACT = {"drop_tol": 0.0, "condest": NEVER, "fill": NEVER}
ROUGH = {"drop_tol": 0.1, "condest": 1.2, "dense_size": 4}  # several levels, and entries that are dropped


def real(A, dtype):
    return sp.csr_matrix(A.astype(dtype))


def complex_symmetric(dtype):
    return sp.csr_matrix((gallery.poisson5(14, 13) - sp.diags(np.linspace(1, 5, 182) * (1 - 0.2j))).astype(dtype))


KINDS = {
    "general": ("general", DTYPES, lambda dtype: in_dtype(gallery.convection_diffusion(14, 13, 1, peclet=50), dtype)),
    "spd": ("hermitian", DTYPES, lambda dtype: in_dtype(gallery.poisson5(14, 13), dtype)),
    "indefinite": ("hermitian", DTYPES[:2], lambda dtype: real(gallery.stokes(9), dtype)),
    "complex symmetric": ("symmetric", DTYPES[2:], complex_symmetric),
    "hermitian": ("hermitian", DTYPES[2:], lambda dtype: in_dtype(gallery.kkt(120, 50, 0.03), dtype)),
}
CASES = [pytest.param(kind, dtype, id=f"{kind} {dtype}") for kind, (_, dtypes, _) in KINDS.items() for dtype in dtypes]


def case(kind, dtype):
    found, _, make = KINDS[kind]
    return found, make(dtype)


def applied(backend, F, trans="N"):
    """M^-1, or its transpose, as a dense matrix."""
    return backend.fetch(F.solve(backend.move(np.eye(F.shape[0], dtype=F.dtype)), trans=trans))


def condition(M, inverse):
    """||M|| ||M^-1||, in the norm that costs least."""
    return abs(M).sum(axis=0).max() * abs(inverse).sum(axis=0).max()


def backward_error(A, x, b):
    """The backward error of x, in units of the rounding of A's dtype."""
    size = abs(A).sum(axis=1).max() * abs(x).max() + abs(b).max()
    return abs(A @ x - b).max() / size / np.finfo(A.dtype).eps


def iterations(backend, A, F, method=fl.gmres, **options):
    b, rtol = values(A.shape[0], A.dtype), 1e-8 if A.dtype.char in "dD" else 1e-4
    solution = method(backend.move(A), backend.move(b), M=F, rtol=rtol, maxiter=400, **options)
    assert solution.converged
    x = backend.fetch(solution.x)
    # b - A x is in the dtype of A: in single precision its rounding is a hundredth of the tolerance
    assert np.linalg.norm(b - A @ x) <= 1.01 * rtol * np.linalg.norm(b)
    return solution.iterations


def inside(backend, level):
    """L_B, D_B U_B, F and G of a level, dense; of a level with low_memory=False, F is D_B U_F and G is L_G."""
    B, D, F, G = (backend.fetch(x) for x in (level.B, level.D, level.F("N"), level.G("N")))
    if D is None:
        lower, upper = np.tril(B.toarray(), -1) + np.eye(B.shape[0]), np.triu(B.toarray())
    else:
        lower = (B.conj().T if level.hermitian else B.T).toarray()
        upper = np.linalg.solve(D.toarray(), B.toarray())
    return lower, upper, F.toarray(), G.toarray()


def assembled(backend, F, low_memory, depth=0):
    """M by its definition: what is factored of each level with what is not, put back in place."""
    if depth == len(F._levels):
        return np.linalg.inv(backend.fetch(F._last["N"]))
    level = F._levels[depth]
    lower, upper, right, under = inside(backend, level)
    S = assembled(backend, F, low_memory, depth + 1)
    if low_memory:  # L_G = G (D_B U_B)^-1, D_B U_F = L_B^-1 F
        right, under = np.linalg.solve(lower, right), np.linalg.solve(upper.T, under.T).T
    whole = np.block([[lower @ upper, lower @ right], [under @ upper, under @ right + S]])
    rows, columns, r, c = (
        backend.fetch(getattr(level.arranged, name)) for name in ("rows", "columns", "row_scale", "column_scale")
    )
    M = np.empty_like(whole)
    M[np.ix_(rows, columns)] = whole / r[:, None] / c
    return M


# By definition


@pytest.mark.parametrize("low_memory", [True, False])
@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_an_application_is_that_of_the_assembled_levels(backend, kind, dtype, low_memory):
    found, A = case(kind, dtype)
    F = MultilevelILU(**ROUGH, low_memory=low_memory).factor(backend.move(A))
    assert F.report["kind"] == found and F.dtype == dtype and len(F._levels) >= 2
    M, inverse = assembled(backend, F, low_memory), applied(backend, F)
    assert_close(M @ inverse, np.eye(A.shape[0], dtype=dtype), 64 * condition(M, inverse))
    assert abs(M - A).max() > 1e-4  # something was dropped


@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_every_permutation_is_one_and_the_numbers_of_the_report_agree(backend, kind, dtype):
    _, A = case(kind, dtype)
    F = MultilevelILU(**ROUGH).factor(backend.move(A))
    *levels, last = F.report["levels"]
    assert len(levels) == len(F._levels)
    n = A.shape[0]
    for level, facts in zip(F._levels, levels, strict=True):
        rows, columns = backend.fetch(level.arranged.rows), backend.fetch(level.arranged.columns)
        np.testing.assert_array_equal(np.sort(rows), np.arange(n))
        np.testing.assert_array_equal(np.sort(columns), np.arange(n))
        assert facts["n"] == n and facts["pivots"] == level.pivots > 0
        by_estimate, by_pivot = facts["put_off"]
        n = n - facts["pivots"]
        assert n == by_estimate + by_pivot + facts["interface"]
        assert 1 <= facts["estimate"] <= 1.2 * 2 ** len(levels)
        assert 0 < facts["smallest_pivot"] <= 2.5 and min(facts["dropped"]) >= 0
        stored = [backend.fetch(x) for x in (level.B, level.D, level.F("N"), level.G("N")) if x is not None]
        assert facts["nnz"] == sum(x.nnz for x in stored)
        matrices = sum(x.indptr.nbytes + x.indices.nbytes + x.data.nbytes for x in stored)
        scales = level.arranged.row_scale, level.arranged.column_scale
        vectors = rows.nbytes + columns.nbytes + sum(scale.nbytes for scale in scales)
        assert facts["bytes"] == matrices + vectors
    assert last["n"] == n and last["nnz"] == n * n and last["bytes"] == n * n * A.dtype.itemsize
    assert 0 < last["rcond"] <= 1
    assert F.nnz == sum(facts["nnz"] for facts in F.report["levels"]) == round(F.report["fill"] * A.nnz)
    assert F.report["bytes"] == sum(facts["bytes"] for facts in F.report["levels"])
    assert F.report["factored_on"] == "CPU" and F.report["applied_on"] == ("CPU" if backend.name == "cpu" else "GPU")


@pytest.mark.parametrize(("kind", "dtype"), CASES)
def test_the_transposes_are_those_of_the_operator(backend, kind, dtype):
    _, A = case(kind, dtype)
    F = MultilevelILU(**ROUGH).factor(backend.move(A))
    inverse = applied(backend, F)
    ulps = 64 * condition(A, inverse)
    assert_close(applied(backend, F, "T"), inverse.T, ulps, scale=abs(inverse).max())
    assert_close(applied(backend, F, "H"), inverse.conj().T, ulps, scale=abs(inverse).max())


@pytest.mark.parametrize(("kind", "dtype"), [c for c in CASES if c.values[0] != "general"])
@pytest.mark.parametrize("options", [ROUGH, EXACT | {"dense_size": 0}, {"matching": False}], ids=str)
def test_a_symmetric_matrix_has_a_symmetric_preconditioner(backend, kind, dtype, options):
    found, A = case(kind, dtype)
    inverse = applied(backend, MultilevelILU(**options, symmetric=True).factor(backend.move(A)))
    other = inverse.T if found == "symmetric" else inverse.conj().T
    assert_close(inverse, other, 64 * condition(A, inverse), scale=abs(inverse).max())


def test_triangles_that_only_rounding_sets_apart_count_as_one():
    for dtype in ("float64", "complex64"):
        A, eps = in_dtype(gallery.stokes(6), dtype), np.finfo(dtype).eps
        B = A.copy()
        B.data = A.data * (1 + eps * np.random.default_rng(0).uniform(-3, 3, A.nnz))
        imaginary = 4j * eps if dtype == "complex64" else 0
        B = sp.csr_matrix(B + sp.identity(A.shape[0]) * imaginary, dtype=dtype)
        F = MultilevelILU(symmetric=True, **ROUGH).factor(B)
        assert F.report["kind"] == "hermitian"
        inverse = applied(Host, F)
        assert_close(inverse, inverse.conj().T, 64 * condition(B, inverse), scale=abs(inverse).max())


class Host:
    """What `applied` needs of a backend."""

    move = fetch = staticmethod(lambda x: x)


def test_asymmetry_that_is_tiny_next_to_one_huge_entry_counts():
    A = gallery.convection_diffusion(9, 8, 1, peclet=50)
    A[0, 0] = 1e20
    F = MultilevelILU(**EXACT, dense_size=0).factor(A)
    assert F.report["kind"] == "general"
    x = np.ones(72)
    assert_close(F.solve(A @ x), x, 1e4)


# By limit


@pytest.mark.parametrize("definite", [False, True])
def test_lapack_takes_one_thread_for_a_small_rest(definite, monkeypatch):
    counts, A = [], gallery.poisson5(12)

    def listened(function):
        def call(M):
            counts.append({each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"})
            return function(M)

        return call

    for name in ("inv", "eigh"):
        monkeypatch.setattr(np.linalg, name, listened(getattr(np.linalg, name)))
    with threadpool_limits(2, "blas"):
        given = {
            each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"
        }  # 1 where tests run together
        MultilevelILU(definite=definite).factor(A)
        assert counts == [{1}] * (2 if definite else 1)
        monkeypatch.setattr(dense, "ALONE", A.shape[0] - 1)
        MultilevelILU(definite=definite).factor(A)
        assert counts[-1] == given


@pytest.mark.parametrize(("kind", "dtype"), CASES)
@pytest.mark.parametrize("dense_size", [0, 20, 500])
def test_without_dropping_it_is_an_exact_lu(backend, kind, dtype, dense_size):
    _, A = case(kind, dtype)
    F = MultilevelILU(**EXACT, dense_size=dense_size).factor(backend.move(A))
    assert (len(F._levels) == 0) == (dense_size == 500)
    assert all(facts["dropped"] == (0, 0) for facts in F.report["levels"][:-1])
    for trans, B in (("N", A), ("T", A.T), ("H", A.conj().T)):
        b = values(A.shape[0], dtype)
        assert backward_error(B, backend.fetch(F.solve(backend.move(b), trans=trans)), b) < 2000


@pytest.mark.parametrize(("kind", "dtype"), [c for c in CASES if c.values[1] != "float32"])
def test_with_condest_1_most_is_deferred_and_it_still_solves(backend, kind, dtype):
    _, A = case(kind, dtype)
    F, G = (MultilevelILU(condest=c, dense_size=10).factor(backend.move(A)) for c in (1, NEVER))
    facts = F.report["levels"][0]
    assert facts["put_off"][0] > 0.4 * A.shape[0] and facts["estimate"] == 1
    assert len(F._levels) >= len(G._levels) and facts["pivots"] < G.report["levels"][0]["pivots"]
    assert iterations(backend, A, F) < 15


def test_a_smaller_tolerance_gives_a_better_preconditioner_with_more_entries(backend):
    A = gallery.convection_diffusion(14, 13, 5, peclet=30)
    made = [MultilevelILU(drop_tol=t, dense_size=20).factor(backend.move(A)) for t in (0.1, 1e-2, 1e-4)]
    needed = [iterations(backend, A, F) for F in made]
    assert needed[0] > needed[1] > needed[2]
    inside = [F.nnz for F in made]
    assert inside[0] < inside[1] < inside[2]


def test_fill_bounds_the_rows_of_a_level():
    A = gallery.convection_diffusion(14, 13, 5, peclet=30)
    free, tight = (MultilevelILU(drop_tol=0, condest=NEVER, dense_size=0, fill=f).factor(A) for f in (NEVER, 1.0))
    assert free.report["levels"][0]["dropped"][1] == 0 < tight.report["levels"][0]["dropped"][1]
    most = np.ceil(A.nnz / A.shape[0])
    B = tight._levels[0].B
    assert np.diff(sp.triu(B, 1, format="csr").indptr).max() == most
    assert np.diff(sp.tril(B, -1, format="csc").indptr).max() == most


@pytest.mark.parametrize("levels", [1, 2, 30])
@pytest.mark.parametrize("dense_size", [0, 7])
def test_levels_and_dense_size_say_where_lapack_begins(backend, levels, dense_size):
    for kind in ("general", "indefinite"):
        _, A = case(kind, "float64")
        recipe = MultilevelILU(drop_tol=0.05, condest=2, levels=levels, dense_size=dense_size)
        F = recipe.factor(backend.move(A))
        assert len(F.report["levels"]) <= levels and len(F._levels) == len(F.report["levels"]) - 1
        n = F.report["levels"][-1]["n"]
        if levels == 1:
            assert n == A.shape[0]
            assert_close(applied(backend, F) @ A.toarray(), np.eye(n), 1e4 * n)
        elif levels == 2:
            assert n > 7 and len(F._levels) == 1
        assert iterations(backend, A, F) < 20


def test_rows_without_pivots_do_not_become_levels(backend):
    A = sp.csr_matrix(np.fliplr(np.eye(50)) * np.arange(1, 51))  # no diagonal, and nothing that brings one
    F = MultilevelILU(matching=False, dense_size=0, symmetric=False).factor(backend.move(A))
    assert len(F._levels) == 0 and F.report["levels"][-1]["n"] == 50
    assert_close(applied(backend, F) @ A.toarray(), np.eye(50), 64)


def test_a_positive_diagonal_alone_does_not_make_it_definite():
    block = sp.identity(300)
    A = sp.csr_matrix(sp.block_array([[1e-8 * block, block], [block, 1e-8 * block]]))
    F = MultilevelILU(dense_size=0).factor(A)
    assert F.report["levels"][0]["pairs"] == 300
    assert_close(F.solve(A @ np.ones(600)), np.ones(600), 64)


# Pivots of two rows


@pytest.mark.parametrize("hermitian", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (0, 1, 0), (1, 1e-200, 1), (1e-9, 1e3, 1e200), (1e-200, 1e-170, 1e-190)])
def test_the_inverse_of_d(dtype, hermitian, sizes):
    a, e, c = sizes * np.array([1.0, 0.7 if dtype == "float64" else 0.5 - 0.4j, -2.0])
    a, c = (a, c) if hermitian else (a * (1 + 0.5j if dtype == "complex128" else 1), c)
    d, off = np.array([3.0, a, c, -4.0]).astype(dtype), np.array([0, e, 0, 0]).astype(dtype)
    inverse = inverse_of(d, off, hermitian).toarray()
    np.testing.assert_array_equal(inverse, inverse.conj().T if hermitian else inverse.T)
    np.testing.assert_array_equal(inverse[[0, 3], [0, 3]], [1 / d[0], -0.25])
    size = 2.0 ** np.round(np.log2(np.max(sizes)))
    block = np.array([[a, e], [np.conj(e) if hermitian else e, c]]) / size
    want = np.linalg.inv(block) / size
    assert_close(inverse[1:3, 1:3], want.astype(dtype), 64 * np.linalg.cond(block))


# Accuracy, scales, precision


@pytest.mark.parametrize("kind", ["general", "spd", "indefinite"])
def test_scaling_by_powers_of_two_changes_little(kind):
    found, A = case(kind, "float64")
    rng = np.random.default_rng(0)
    r = 2.0 ** rng.integers(-200, 200, A.shape[0])
    c = 2.0 ** rng.integers(-200, 200, A.shape[0]) if found == "general" else r
    B = sp.csr_matrix(sp.diags(r) @ A @ sp.diags(c))
    F = MultilevelILU(drop_tol=1e-3, dense_size=6).factor(B)
    assert F.report["kind"] == found
    b = values(A.shape[0], "float64")
    x = c * F.solve(r * b)
    assert np.linalg.norm(A @ x - b) < 0.2 * np.linalg.norm(b)


def test_the_default_order_is_approximate_minimum_degree(backend):
    A = gallery.poisson5(40)
    F, G, H = (MultilevelILU(**o).factor(backend.move(A)) for o in ({}, {"ordering": "amd"}, {"ordering": "rcm"}))
    assert MultilevelILU().ordering == "auto" and F.nnz == G.nnz != H.nnz
    b = backend.move(values(A.shape[0], "float64"))
    np.testing.assert_array_equal(backend.fetch(F.solve(b)), backend.fetch(G.solve(b)))


@pytest.mark.parametrize("ordering", [None, "rcm", "mmd", "nd"])
def test_orderings(backend, ordering):
    if ordering == "nd":
        pytest.importorskip("pymetis")
    for kind in ("general", "indefinite"):
        _, A = case(kind, "float64")
        F = MultilevelILU(ordering=ordering, dense_size=6).factor(backend.move(A))
        assert iterations(backend, A, F) < 20
    natural, ordered = (
        MultilevelILU(**EXACT, ordering=o, dense_size=0).factor(gallery.poisson5(20)).nnz for o in (None, "mmd")
    )
    assert ordered < 0.7 * natural


# Saddle points, indefinite systems


SADDLES = [
    lambda stored: gallery.stokes(12, store_zeros=stored),
    lambda stored: gallery.kkt(200, 80, 0.03, store_zeros=stored),
]


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("make", SADDLES)
@pytest.mark.parametrize("symmetric", [None, False])
def test_saddle_points_which_have_no_ilu0(backend, make, stored, symmetric):
    A = make(stored)
    if not stored:
        with refused(MatrixError, match="no diagonal entry"):
            ILU0().factor(backend.move(A))
    F = MultilevelILU(symmetric=symmetric, dense_size=20).factor(backend.move(A))
    assert F.report["kind"] == ("general" if symmetric is False else "hermitian")
    assert symmetric is False or sum(facts.get("pairs", 0) for facts in F.report["levels"]) > 20
    assert iterations(backend, A, F) < 25


@pytest.mark.parametrize("make", SADDLES)
def test_sqmr_solves_indefinite_systems_with_a_symmetric_preconditioner(backend, make):
    A = make(False)
    F = MultilevelILU(symmetric=True, dense_size=20).factor(backend.move(A))
    assert iterations(backend, A, F, fl.sqmr) < 40
    B = complex_symmetric("complex128")
    F = MultilevelILU(symmetric=True, dense_size=20).factor(backend.move(B))
    assert iterations(backend, B, F, fl.sqmr) < 40


def test_minres_and_cg_take_a_definite_one(backend):
    A = gallery.poisson5(25)
    F = MultilevelILU(drop_tol=1e-2, dense_size=20).factor(backend.move(A))
    assert iterations(backend, A, F, fl.cg) < 25
    shifted = sp.csr_matrix(A - 0.1 * sp.identity(625))  # indefinite, with the M of a definite one
    assert np.linalg.eigvalsh(shifted.toarray())[0] < 0
    assert iterations(backend, shifted, F, fl.minres) < 60


# definite=True: |D| for D (Gill, Murray, Ponceleon, Saunders 1992)

HERMITIAN = [case for case in CASES if case.values[0] in ("spd", "indefinite", "hermitian")]


def of_definite(backend, A, **options):
    """The factors with |D|, and M^-1 as a dense matrix that is seen to be Hermitian positive definite."""
    F = MultilevelILU(definite=True, **options).factor(backend.move(A))
    M = applied(backend, F)
    assert abs(M - M.conj().T).max() <= 1e3 * np.finfo(A.dtype).eps * abs(M).max()
    assert np.linalg.eigvalsh(M).min() > 0
    return F, M


@pytest.mark.parametrize(("kind", "dtype"), HERMITIAN)
@pytest.mark.parametrize("low_memory", [True, False])
@pytest.mark.parametrize("options", [ROUGH, ROUGH | {"matching": False}, {}], ids=["rough", "unmatched", "default"])
def test_the_magnitude_is_hermitian_positive_definite(backend, kind, dtype, low_memory, options):
    _, A = case(kind, dtype)
    F, M = of_definite(backend, A, low_memory=low_memory, **options)
    for trans, want in (("T", M.T), ("H", M.conj().T)):
        assert_close(applied(backend, F, trans), want, 1e4, abs(M).max())
    G = MultilevelILU(low_memory=low_memory, **options).factor(backend.move(A))
    assert F.report.trial_residual == G.report.trial_residual and len(F.report.levels) == len(
        G.report.levels
    )  # of M with D
    assert F.nnz >= G.nnz


@pytest.mark.parametrize(("kind", "dtype"), [case for case in HERMITIAN if case.values[1] in ("float64", "complex128")])
@pytest.mark.parametrize("dense_size", [0, 60, 500])
@pytest.mark.parametrize("low_memory", [True, False])
def test_with_complete_factors_a_has_the_eigenvalues_1_and_minus_1(backend, kind, dtype, dense_size, low_memory):
    _, A = case(kind, dtype)
    F, M = of_definite(backend, A, **EXACT, dense_size=dense_size, low_memory=low_memory)
    found = np.linalg.eigvals(A @ M)
    assert abs(abs(found.real) - 1).max() < 1e-6 and abs(found.imag).max() < 1e-6
    assert (found.real < 0).sum() == (np.linalg.eigvalsh(A.toarray()) < 0).sum()  # Sylvester's law of inertia
    assert iterations(backend, A, F, fl.minres) <= 3


@pytest.mark.parametrize(
    "make", [lambda: gallery.stokes(12), lambda: gallery.kkt(120, 50, 0.03)], ids=["stokes", "kkt"]
)
def test_minres_takes_the_magnitude_where_it_cannot_take_an_indefinite_m(backend, make):
    A = make()
    b = backend.move(values(A.shape[0], "float64"))
    F, G = (MultilevelILU(definite=definite).factor(backend.move(A)) for definite in (True, False))
    solution = fl.minres(backend.move(A), b, M=F, rtol=1e-8)
    assert solution.converged and solution.iterations < 40
    assert fl.minres(backend.move(A), b, M=G, rtol=1e-8).status is fl.Status.INDEFINITE_PRECONDITIONER
    assert F.update(backend.move(sp.csr_matrix(A * 2.0))) is F
    assert fl.minres(backend.move(sp.csr_matrix(A * 2.0)), b, M=F, rtol=1e-8).converged
    found = fl.solve(backend.move(A), b, recipe=MultilevelILU(definite=True))
    assert found.converged and found.method == "minres"


@PATTERNS
@given(n=st.integers(2, 12), dtype=st.sampled_from(["float64", "complex128"]), seed=st.integers(0, 2**16))
def test_the_magnitude_of_blocks(n, dtype, seed):
    rng = np.random.default_rng(seed)
    D, e, k = np.zeros((n, n), dtype), np.zeros(n, dtype), 0
    while k < n:
        size = 2 if k + 1 < n and rng.random() < 0.6 else 1
        block = values((size, size), dtype, seed + k) * 10.0 ** rng.integers(-100, 100)
        D[k : k + size, k : k + size] = block + block.conj().T
        if size == 2:
            e[k] = D[k, k + 1]
        k += size
    got = magnitude_of(sp.csr_matrix(D), e).toarray()
    for k in range(n):
        if k == 0 or e[k - 1] == 0:
            block = slice(k, k + 2) if e[k] != 0 else slice(k, k + 1)
            w, V = np.linalg.eigh(D[block, block])
            want = (V * abs(w)) @ V.conj().T
            np.testing.assert_allclose(got[block, block], want, rtol=0, atol=1e-12 * abs(w).max())
    assert not (got - got.conj().T).any()


def test_the_magnitude_of_an_inverse_in_any_scale():
    B = values((20, 20), "float64")
    scale = 10.0 ** np.random.default_rng(0).integers(-60, 60, 20)
    S = scale[:, None] * (B + B.T) * scale
    M = magnitude_of_inverse(S)
    np.testing.assert_array_equal(M, M.T)
    found = np.linalg.eigvals(np.linalg.solve(S / scale / scale[:, None], M / scale / scale[:, None]))
    np.testing.assert_allclose(abs(found), 1, rtol=1e-8)
    assert magnitude_of_inverse(np.zeros((0, 0))).shape == (0, 0)


def test_the_magnitude_is_of_hermitian_matrices_only(backend):
    for A in (gallery.convection_diffusion(6, 6, 6), complex_symmetric("complex128")):
        with refused(MatrixError, match="A is not Hermitian, and so M cannot be"):
            MultilevelILU(definite=True).factor(backend.move(A))
    with pytest.raises(ParameterError, match="symmetric=False"):
        MultilevelILU(definite=True, symmetric=False).factor(backend.move(gallery.poisson5(5)))
    F = MultilevelILU(definite=True).factor(backend.move(gallery.stokes(6)))
    unlike = gallery.stokes(6)
    unlike.data[1] += 1.0  # right of the diagonal, whose entry comes first
    with pytest.raises(MatrixError, match="not Hermitian"):
        F.update(backend.move(unlike))


@pytest.mark.parametrize(("kind", "dtype"), [c for c in CASES if c.values[1] in ("float64", "complex64")])
def test_update_keeps_the_order_and_is_as_good_as_a_fresh_factorization(backend, kind, dtype):
    _, A = case(kind, dtype)
    B = perturbed(A)
    recipe = MultilevelILU(drop_tol=1e-2, dense_size=6)
    F = recipe.factor(backend.move(A))
    before = applied(backend, F)
    rows = np.sort(backend.fetch(F._levels[0].arranged.rows)[: F._levels[0].pivots])
    assert F.update(backend.move(B)) is F and rows.size
    fresh = recipe.factor(backend.move(B))
    assert iterations(backend, B, F) <= 1.5 * iterations(backend, B, fresh) + 2
    F.update(backend.move(A))
    np.testing.assert_array_equal(applied(backend, F), before)


def test_update_does_not_mind_missing_diagonal_entries_but_another_pattern(backend):
    A = gallery.kkt(50, 20, 0.1)
    F = MultilevelILU(**ROUGH).factor(backend.move(A))
    assert F.update(backend.move(2 * A)) is F
    with refused(MatrixError, match="pattern"):
        F.update(backend.move(gallery.kkt(50, 20, 0.1, store_zeros=True)))
    np.testing.assert_array_equal(np.isfinite(applied(backend, F)), True)


def test_update_from_and_to_a_symmetric_matrix(backend):
    general = gallery.convection_diffusion(9, 8, 1, peclet=50)
    general[0, 0] = 1e-3  # so that the matching moves columns
    rows = np.repeat(np.arange(72), np.diff(general.indptr))
    symmetric = general.copy()
    symmetric.data = np.asarray(gallery.poisson5(9, 8)[rows, general.indices]).ravel()
    for first, second, kinds in (
        (general, symmetric, ("general", "general")),
        (symmetric, general, ("hermitian", "general")),
    ):
        F = MultilevelILU(**EXACT, dense_size=0).factor(backend.move(first))
        assert F.report["kind"] == kinds[0]
        F.update(backend.move(second))
        assert F.report["kind"] == kinds[1]
        x = np.ones(72)
        assert_close(backend.fetch(F.solve(backend.move(second @ x))), x, 1e6)
    F = MultilevelILU(symmetric=True, dense_size=0).factor(backend.move(symmetric))
    with pytest.raises(MatrixError, match="neither symmetric"):
        F.update(backend.move(general))
    with pytest.raises(NoFactors):
        F.solve(backend.move(np.ones(72)))
    F.update(backend.move(symmetric))
    assert iterations(backend, symmetric, F) < 20


# Parts and threads


def test_the_parts_of_an_order_hold_for_entries_that_are_zero_at_first(monkeypatch):
    monkeypatch.setattr(ordering, "LEAST_ROWS", 100)  # so that there are parts
    A = gallery.poisson5(30)
    far = sp.coo_matrix((np.ones(40), np.random.default_rng(0).integers(0, 900, (2, 40))), shape=A.shape)
    later = sp.csr_matrix(A + 0.1 * (far + far.T))
    first = later.copy()
    first.data[np.asarray(abs(later - A)[later.nonzero()]).ravel() > 0] = 0  # stored all the same
    first.data[0] = 4.0
    first[0, 1] *= 1 + 1e-15  # symmetric up to rounding
    assert first.nnz == later.nnz
    F = MultilevelILU(symmetric=None).factor(first)
    assert len(F._first.above) > 4
    b = later @ np.ones(900)
    F.update(later)
    assert fl.gmres(later, b, M=F, rtol=1e-8).converged


def test_the_bits_do_not_depend_on_the_number_of_threads(threads, monkeypatch):
    monkeypatch.setattr(ordering, "LEAST_ROWS", 100)
    for A in (gallery.convection_diffusion(15, 14, 13, peclet=20), gallery.stokes(24), gallery.poisson7(13)):
        found = []
        for count in (1, 2, 4):
            threads(count)
            F = MultilevelILU().factor(A)
            assert len(F._first.above) > 4
            found.append(F.solve(np.sin(np.arange(A.shape[0]))))
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(found[0], found[2])


@pytest.mark.parametrize("kind", ["general", "symmetric"])
def test_parts_give_the_same_bits_on_any_number_of_threads(threads, kind):
    pytest.importorskip("pymetis")
    A = gallery.poisson5(40) if kind == "symmetric" else gallery.convection_diffusion(40, 40, 1, peclet=20)
    b, solutions = values(1600, "float64"), []
    for count in (1, 2, 4):
        threads(count)
        F = MultilevelILU(parts=4, dense_size=20, drop_tol=1e-2).factor(A)
        assert 0 < F.report["levels"][0]["interface"] < 400
        solutions.append([F.solve(b), *(level.B.data for level in F._levels), F._last["N"]])
    for other in solutions[1:]:
        for mine, first in zip(other, solutions[0], strict=True):
            np.testing.assert_array_equal(mine, first)


@pytest.mark.parametrize("kind", ["general", "symmetric", "indefinite"])
def test_parts_make_as_good_a_preconditioner(backend, kind):
    pytest.importorskip("pymetis")
    A = {
        "general": lambda: gallery.convection_diffusion(40, 40, 1, peclet=20),
        "symmetric": lambda: gallery.poisson5(40),
        "indefinite": lambda: gallery.stokes(20),
    }[kind]()
    needed = [
        iterations(backend, A, MultilevelILU(parts=p, dense_size=20, drop_tol=1e-2).factor(backend.move(A)))
        for p in (1, 4)
    ]
    assert needed[1] <= 2 * needed[0]
    F = MultilevelILU(**EXACT, parts=4, dense_size=20).factor(backend.move(A))
    b = values(A.shape[0], "float64")
    assert backward_error(A, backend.fetch(F.solve(backend.move(b))), b) < 2000


def test_more_parts_than_rows():
    pytest.importorskip("pymetis")
    A = gallery.poisson5(3)
    F = MultilevelILU(**EXACT, parts=100, dense_size=0).factor(A)
    b = values(9, "float64")
    assert backward_error(A, F.solve(b), b) < 100


# Singular matrices


@pytest.mark.parametrize(
    "options", [{}, {"dense_size": 0}, {"matching": False, "dense_size": 0}, {"symmetric": False}], ids=str
)
def test_a_structurally_singular_matrix_names_a_row(backend, options):
    A = gallery.convection_diffusion(6, 5, 1, peclet=5).tolil()
    A[:, 7] = 0
    A[3, 8] = 0.5
    A = sp.csr_matrix(A)
    B = sp.lil_matrix(gallery.poisson5(5))
    B[[3, 4, 5], :] = 0
    B[:, [3, 4, 5]] = 0
    B[[3, 4, 5], 20] = B[20, [3, 4, 5]] = 1
    for singular, count in ((A, 1), (sp.csr_matrix(B), 2)):
        with refused(StructurallySingular, match=f"{count} row") as error:
            MultilevelILU(**options).factor(backend.move(singular))
        assert error.value.count == count and 0 <= error.value.row < singular.shape[0]


def test_a_matrix_that_is_hermitian_up_to_rounding_is_not_singular_for_that():
    A = np.array([[0, 1, 1], [1, 0, 0], [1, 0, 0]]) + 1e-8j * np.eye(3)
    A, b = sp.csr_matrix(A.astype(np.complex64)), np.ones(3, np.complex64)
    F = MultilevelILU().factor(A)  # of A made symmetric, which is singular: A itself is not
    assert "singular to working precision, or nearly" in F.report["warning"] and fl.solve(A, b).converged
    assert backward_error(A, MultilevelILU(symmetric=False).factor(A).solve(b), b) < 100


@pytest.mark.parametrize("dense_size", [0, 3, 500])
@pytest.mark.parametrize("symmetric", [None, False])
@pytest.mark.parametrize("low_memory", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
def test_of_a_singular_matrix_the_null_space_is_found(backend, dtype, dense_size, symmetric, low_memory):
    part = np.exp(1j * np.arange(3)) if np.dtype(dtype).kind == "c" else np.array([1.0, -2.0, 3.0])
    A = sp.block_diag([gallery.poisson5(4), np.outer(part, part.conj()), gallery.poisson5(3)], format="csr").astype(
        dtype
    )
    F = MultilevelILU(**EXACT, dense_size=dense_size, symmetric=symmetric, low_memory=low_memory).factor(
        backend.move(A)
    )
    eps = np.finfo(dtype).eps
    for V, B in ((F.null_space, A), (F.left_null_space, A.conj().T)):
        V = to_host(V)
        assert V.shape == (28, 2) and V.dtype == dtype
        assert abs(V.conj().T @ V - np.eye(2)).max() < 100 * eps and abs(B @ V).max() < 1000 * eps
        assert abs(V[:16]).max() < 1000 * eps and abs(V[19:]).max() < 1000 * eps
    assert re.search(r"as row (16|17|18) of A does", F.report["warning"]) and "\n" not in F.report["warning"]
    assert "null_space gives the vectors" in F.report["warning"] and F.report.levels[-1]["nullity"] == 2
    b = A @ values(28, dtype)
    x = to_host(F.solve(backend.move(b)))
    assert np.linalg.norm(A @ x - b) < 1e4 * eps * np.linalg.norm(b)  # M^-1 is exact on A's range


def singular_and_coupled(kind):
    """A matrix of rank n - 2 whose null vectors reach through all levels."""
    rng = np.random.default_rng(2)
    A = (
        sp.csr_matrix(gallery.poisson5(16))
        if kind == "general"
        else sp.csr_matrix(gallery.poisson5(16) - 2.1 * sp.identity(256))
    )
    if kind == "symmetric":
        A = sp.csr_matrix(A + 1j * sp.diags(rng.uniform(0, 1, 256)))
    B = sp.random(30, 256, 0.05, random_state=1)
    R = np.triu(rng.random((30, 30)), 1) / 30 + np.eye(30)
    C = R @ np.diag([*np.ones(28), 0, 0]) @ R.T
    mirrored = B.T if kind != "general" else 0.5 * sp.random(256, 30, 0.05, random_state=7)
    solved = (
        sp.csr_matrix(mirrored)
        if mirrored.nnz == 0
        else sp.csr_matrix(np.linalg.solve(A.toarray(), mirrored.toarray()))
    )
    return sp.csr_matrix(sp.bmat([[A, mirrored], [B, C + B @ solved]]))  # whose Schur complement is C


@pytest.mark.parametrize("kind", ["general", "hermitian", "symmetric"])
@pytest.mark.parametrize("low_memory", [True, False])
def test_null_vectors_are_completed_through_the_levels(backend, kind, low_memory):
    A = singular_and_coupled(kind)
    F = MultilevelILU(**EXACT | {"condest": 3.0}, dense_size=40, low_memory=low_memory).factor(backend.move(A))
    assert F.report["kind"] == kind and len(F.report.levels) > 1
    V, U = to_host(F.null_space), to_host(F.left_null_space)
    size = 1e-11 * abs(A).max()
    assert V.shape == U.shape == (286, 2) and abs(A @ V).max() < size and abs(A.conj().T @ U).max() < size
    lifted = to_host(F._lifted(F._null[1], "N"))
    assert abs(A @ lifted).max() < 1e-8 * abs(lifted).max()  # before it is refined


def test_the_null_space_is_that_of_valid_factors(backend):
    A = sp.block_diag([gallery.poisson5(4), np.ones((3, 3))], format="csr")
    F = MultilevelILU().factor(backend.move(A))
    assert F.null_space is F.null_space and F.null_space.shape == (19, 2)
    twin = pickle.loads(pickle.dumps(F))
    np.testing.assert_array_equal(to_host(twin.null_space), to_host(F.null_space))
    F.update(backend.move(sp.csr_matrix(A + sp.diags(np.arange(1.0, 20)))))
    assert F.null_space.shape == (19, 0)
    with pytest.raises(MatrixError):
        F.update(backend.move(0 * A))
    with pytest.raises(NoFactors):
        _ = F.null_space


def test_a_regular_matrix_has_no_null_space(backend):
    F = MultilevelILU().factor(backend.move(gallery.poisson5(9)))
    assert F.null_space.shape == F.left_null_space.shape == (81, 0) and F.report.levels[-1]["nullity"] == 0


def test_lapack_names_a_row_that_depends_on_others():
    A = sp.csr_matrix(np.array([[1.0, 1.0, 0.0], [2.0, -1.0, 0.0], [0.0, 0.0, 1.0]]))
    A = sp.csr_matrix(sp.block_diag([A, np.array([[1.0, 2, 3], [8, 16, 24], [0, 0, 5]])]))
    F = MultilevelILU(symmetric=False).factor(A)
    assert re.search(r"row [34] of A", F.report["warning"]) and F.null_space.shape == (6, 1)


def test_minres_takes_the_definite_form_of_singular_factors():
    A = sp.csr_matrix(sp.block_diag([gallery.poisson5(4), -np.ones((3, 3))]))
    F = MultilevelILU(definite=True).factor(A)
    M = F.solve(np.eye(19))
    assert np.linalg.eigvalsh(M).min() > 0 and F.null_space.shape == (19, 2)
    assert abs(A @ F.null_space).max() < 1e-13
    assert (magnitude_of_inverse(np.zeros((3, 3))) == np.eye(3)).all()


def test_what_has_no_inverse_in_the_range_of_numbers_names_its_row():
    with refused(ZeroPivot, match="row 1 "):
        MultilevelILU().factor(sp.diags([1.0, 1e-320, 1.0], format="csr"))


def test_a_nearly_singular_matrix_is_factored_and_the_report_tells():
    A = sp.block_diag([gallery.poisson5(4), np.array([[1.0, 1], [1, 1 + 1e-13]])], format="csr")
    F = MultilevelILU().factor(A)
    assert F.report["levels"][-1]["rcond"] < 1e-12
    F = MultilevelILU(dense_size=0).factor(A)
    smallest = [facts.get("smallest_pivot", facts.get("rcond")) for facts in F.report["levels"]]
    assert min(smallest) < 1e-12 and np.isfinite(F.solve(np.ones(18))).all()


def laplacian(dtype):
    """The Laplacian of a graph with weights: its rows sum to 0, up to rounding."""
    A = gallery.poisson5(9, 8)
    W = sp.triu(A, 1)
    W.data = 1 + np.random.default_rng(3).random(W.nnz)
    W = W + W.T
    return real(sp.diags(W @ np.ones(72)) - W, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dense_size", [0, 500])
@pytest.mark.parametrize("symmetric", [None, False])
def test_a_matrix_that_is_singular_but_for_rounding_has_a_warning(backend, dtype, dense_size, symmetric):
    A = laplacian(dtype)
    F = MultilevelILU(**EXACT, dense_size=dense_size, symmetric=symmetric).factor(backend.move(A))
    warning = F.report["warning"]
    assert warning.startswith("A is singular to working precision, or nearly: ") and "\n" not in warning
    assert "null_space gives the vectors that A takes to 0" in warning and "shift" in warning
    assert F.null_space.shape == F.left_null_space.shape == (72, 1)
    F.update(backend.move(real(A + 0.1 * sp.identity(72), dtype)))
    assert "warning" not in F.report
    F.update(backend.move(A))
    assert F.report["warning"] == warning


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dense_size", [0, 500])
def test_the_warning_begins_at_100_rounding_errors(dtype, dense_size):
    eps = np.finfo(dtype).eps
    for distance, warned in ((10 * eps, True), (1e4 * eps, False)):
        A = sp.block_diag([gallery.poisson5(4), np.array([[1.0, 1], [1, 1 + distance]])])
        F = MultilevelILU(dense_size=dense_size).factor(real(A, dtype))
        assert ("warning" in F.report) == warned


@pytest.mark.parametrize("symmetric", [None, False])
def test_a_regular_matrix_in_bad_scale_has_no_warning(backend, symmetric):
    d = sp.diags(10.0 ** np.random.default_rng(0).uniform(-100, 100, 182))
    F = MultilevelILU(symmetric=symmetric, dense_size=4).factor(
        backend.move(real(d @ gallery.poisson5(14, 13) @ d, "f8"))
    )
    assert "warning" not in F.report


@pytest.mark.parametrize("symmetric", [None, False])
@pytest.mark.parametrize("condest", [1.0, 20.0, NEVER])
def test_a_row_that_is_small_without_cancellation_is_no_rounding(backend, condest, symmetric):
    e = 1e-61
    small = np.array([[1, 0, 1], [0, 1, e], [0, 1, 0]])  # equilibrated; without the pivots of columns 0 and 1 e is left
    mirrored = np.array([[0, e, 0, 1], [e, e, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0]])
    for block in (small, small.T, mirrored):
        n = block.shape[0] + 12
        A = sp.csr_matrix(sp.block_diag([block, sp.identity(12)]))
        F = MultilevelILU(**EXACT | {"condest": condest}, matching=False, dense_size=0, symmetric=symmetric).factor(
            backend.move(A)
        )
        assert "warning" not in F.report and F.null_space.shape == (n, 0)
        inverse = np.linalg.inv(block)
        np.testing.assert_allclose(applied(backend, F)[: n - 12, : n - 12], inverse, rtol=1e-13)


def test_entries_that_a_matching_avoids_are_no_rounding_of_what_is_left(backend):
    """A matching of entries of about 1 runs through some that look like rounding of their rows; another avoids them."""
    N = np.array([[3, 0, 0, 0, 1], [3, 3, 1, 2, 0], [0, 0, 1, 1, 0], [1, 0, 0, 1, 0], [1, 3, 3, 0, 0]])
    r, c = 10.0 ** np.array([60, 30, -60, -30, -60]), 10.0 ** np.array([60, 30, -60, -30, 30])
    A = sp.csr_matrix(sp.block_diag([r[:, None] * N * c, sp.identity(10)]))
    F = MultilevelILU(**EXACT, dense_size=0).factor(backend.move(A))
    assert F.report["matching"] and F.report.levels[-1]["nullity"] == 0
    b = np.append(np.arange(1.0, 6), np.zeros(10))
    x = backend.fetch(F.solve(backend.move(np.append(r, np.ones(10)) * b)))
    assert_close(N @ (c * x[:5]), b[:5], 1e3)


def test_what_is_left_is_inverted_in_a_scale_in_which_rounding_is_no_pivot(backend):
    N = np.array([[0.1, 0.3, 0, 0], [0.3, 0.9, 1, 0], [0, 1, 0, 1], [0, 0, 1, 1]])  # 0.9 - 3 * 0.3 is rounding
    r, c = np.array([1, 1, 1e-61, 1e-61]), np.array([1, 1, 1, 1e61])  # and larger than what is below it
    F = MultilevelILU(matching=False).factor(backend.move(sp.csr_matrix(r[:, None] * N * c)))
    assert F.report.levels[-1]["rcond"] > 1e-3 and F.report.levels[-1]["nullity"] == 0
    b = np.arange(1.0, 5)
    assert_close(N @ (c * backend.fetch(F.solve(backend.move(r * b)))), b, 100)


def test_what_is_mirrored_makes_no_matching(backend):
    """An A without a matching, whose transpose it equals except for entries that are rounding."""
    A = sp.csr_matrix(np.array([[0, 0, 1e-28, 0], [0, 0, 0, 1e-249], [0, 0, 1e-11, 1e-172], [0, 0, 1e-38, 0]]))
    for matching in (True, False):
        with pytest.raises(StructurallySingular, match="rows 2, 3"):
            MultilevelILU(matching=matching).factor(backend.move(A))


@pytest.mark.parametrize("low_memory", [True, False, None])
def test_the_report_says_what_is_kept(backend, low_memory):
    F = MultilevelILU(**ROUGH, low_memory=low_memory).factor(backend.move(gallery.poisson5(14, 13)))
    assert F.report["low_memory"] is (backend.name == "cpu" if low_memory is None else low_memory)


# By fuzz


@st.composite
def scaled_matrices(draw):
    """(rows' factors, N, columns' factors): N of any pattern with entries of about 1, some of them singular.

    The factors of rows and columns are one array where N is symmetric.
    """
    n = draw(st.integers(1, 16))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    symmetric = draw(st.booleans())
    N = np.where(rng.random((n, n)) < draw(st.sampled_from([0.1, 0.3, 0.6])), rng.uniform(0.5, 2, (n, n)), 0)
    N = N * rng.choice([-1, 1], (n, n))
    if draw(st.booleans()):
        N[np.arange(n), rng.permutation(n)] = 1.5
    if symmetric:
        N = np.triu(N) + np.triu(N, 1).T
    if draw(st.booleans()):
        N = N * np.exp(1j * np.round(rng.uniform(0, 6, (n, n)), 2)) if not symmetric else N * np.exp(1j)
    r, c = 10.0 ** rng.uniform(-150, 150, (2, n))
    return r, N, r if symmetric else c


def without_matching():
    """As `scaled_matrices`: equilibrated, a column that others leave is small without a rounding."""
    rows, columns = (
        [0, 0, 1, 1, 1, 2, 2, 3, 4, 4, 5, 5, 5, 6, 6, 7, 8, 9, 9],
        [2, 3, 1, 3, 8, 0, 4, 7, 2, 8, 3, 5, 9, 1, 2, 6, 0, 2, 9],
    )
    r, c = [65, 120, -47, -78, 96, 25, -7, -73, -129, -145], [24, -93, 143, -118, -14, -32, -80, 75, 43, 68]
    N = sp.csr_matrix((values(19, "complex128"), (rows, columns))).toarray()
    return 10.0 ** np.array(r), N, 10.0 ** np.array(c)


@PATTERNS
@example(scaled=without_matching(), dense_size=3, condest=5.0, matching=False, drop_tol=0.0, symmetric=None)
@given(
    scaled=scaled_matrices(),
    dense_size=st.sampled_from([0, 3]),
    condest=st.sampled_from([1.0, 5.0, NEVER]),
    matching=st.booleans(),
    drop_tol=st.sampled_from([0.0, 1e-3]),
    symmetric=st.sampled_from([None, False]),
)
def test_any_pattern_in_any_scale_has_a_finite_inverse_or_a_clear_error(scaled, drop_tol, **options):
    r, N, c = scaled
    A = sp.csr_matrix(r[:, None] * N * c)
    options |= {"drop_tol": drop_tol}
    refused = None
    try:
        F = MultilevelILU(**options, fill=NEVER).factor(A)
    except FineluError as error:
        refused = str(error)
    if refused is not None:
        assert refused and "\n" not in refused
        assert drop_tol > 0 or np.linalg.cond(N) > 1e12, refused
        return
    b, size = values(N.shape[0], N.dtype), np.linalg.cond(N)
    # an entry that is no more than rounding in A may be large in N: then A counts as symmetric, and N is not
    if drop_tol > 0 or not (r is c or F.report["kind"] == "general"):
        # M is not A, and parts of M^-1 may be beyond the range of numbers: finite is what the factors were tried with
        assert np.isfinite(F.solve(A @ trial_vector(as_csr(A, diagonal=False)))).all()
        return
    for trans, M, into, out in (("N", N, r, c), ("T", N.T, c, r), ("H", N.conj().T, c, r)):
        z = F.solve(into * b, trans=trans)
        assert np.isfinite(z).all()
        if size < 1e9:
            x = out * z
            relative = abs(M @ x - b).max() / (abs(M).sum(axis=1).max() * abs(x).max() + abs(b).max())
            assert relative < 1e4 * size * np.finfo(float).eps


# By bad input


def test_a_matrix_that_cannot_be_factored_is_refused(backend):
    for bad, text in (
        (sp.csr_matrix(np.ones((2, 3))), "square"),
        (sp.csr_matrix(np.array([[1.0, np.nan], [1, 1]])), "NaN or Inf in row 0"),
    ):
        with refused(MatrixError, match=text):
            MultilevelILU().factor(backend.move(bad))
    with refused(MatrixError, match="neither symmetric nor Hermitian"):
        MultilevelILU(symmetric=True).factor(backend.move(gallery.convection_diffusion(5, peclet=5)))
    with refused(MatrixError, match="too large for float32"), np.errstate(over="ignore"):
        MultilevelILU(precision="float32").factor(backend.move(sp.csr_matrix(np.diag([1e300, 1.0]))))
    with pytest.raises(TypeError, match="dropp"):
        MultilevelILU(dropp=1.0)


def test_what_is_too_large_for_lapack_is_named():
    A = gallery.tridiagonal(6001)
    with refused(MatrixError, match="6001 rows are left after 0 levels"):
        MultilevelILU(levels=1).factor(A)
    A = sp.csr_matrix((np.ones(6002), (np.arange(6002), np.arange(6002)[::-1])))
    with refused(MatrixError, match="none of the 6002 rows that are left has a pivot"):
        MultilevelILU(matching=False).factor(A)


def test_complete_factors_take_an_order_that_the_fill_does_not_bound():
    A, recipe = as_csr(gallery.poisson7(22)), MultilevelILU()
    F = recipe.factor(A)
    whole = ordering.complete_fill(A, ordering.amd(A))
    assert F._first.bounded and ordering.complete_fill(A, F._first.rows).flops > 1.2 * whole.flops
    complete = complete_of(recipe, A, F._first, True, 10**9)
    assert complete.fill.flops < 1.1 * whole.flops
    assert F._order_for(F._variant) is F._first and F._order_for(complete.variant) is None
    assert not MultilevelILU(fill=1e3).factor(A)._first.bounded


def graded(n=90, small=1e-9):
    """A mesh whose rows are coupled by small entries, too, which fill in."""
    rng = np.random.default_rng(3)
    A = gallery.poisson5(n)
    between = sp.random(n * n, n * n, 4 / n**2, rng=rng, format="csr")
    return sp.csr_matrix(A + small * between)


def test_small_entries_are_left_out_unless_nothing_is_dropped():
    A, alone = graded(), gallery.poisson5(90)
    F, G = (MultilevelILU(symmetric=False, fill=NEVER).factor(M) for M in (A, alone))
    first = F.report["levels"][0]
    assert A.nnz > 1.5 * alone.nnz and first["nnz_A"] == alone.nnz and first["small"] == A.nnz - alone.nnz
    assert abs(F.nnz - G.nnz) < 0.01 * G.nnz  # ties of entries are decided by rounding
    b = np.ones(A.shape[0])
    iterations = [fl.gmres(M, b, M=N, rtol=1e-8).iterations for M, N in ((A, F), (alone, G))]
    assert iterations[0] <= iterations[1] + 1
    exact = MultilevelILU(**EXACT, symmetric=False).factor(graded(30))
    assert exact.report["levels"][0]["nnz_A"] == graded(30).nnz and exact.report["levels"][0]["small"] == 0


@pytest.mark.parametrize("drop_tol", [9.9, 10.0, 100.0])
def test_matched_entries_are_not_small_whatever_the_tolerance(drop_tol):
    rng = np.random.default_rng(0)
    A = sp.random(400, 400, 0.01, rng=rng, format="csr") + sp.diags(rng.uniform(5, 9, 400))
    A = sp.csr_matrix(A[rng.permutation(400)])
    F = MultilevelILU(drop_tol=drop_tol, dense_size=0).factor(A)
    assert F.nnz <= 4 * 400 and F.report.trial_residual < 1 and not F.report.warning


def test_update_with_entries_between_parts_that_were_small_before():
    A, large = graded(), graded(small=0.1)
    F = MultilevelILU(symmetric=False, condest=NEVER).factor(A)
    assert F._first.partial and F._first.starts.size > 2
    kept = F._first.rows.copy()
    F.update(large)
    np.testing.assert_array_equal(F._first.rows, kept)
    G = MultilevelILU(symmetric=False, condest=NEVER).factor(large)
    b = np.ones(A.shape[0])
    mine, other = (fl.gmres(large, b, M=M, rtol=1e-8) for M in (F, G))
    assert mine.converged and mine.iterations <= 2 * other.iterations


def test_an_order_of_large_entries_is_for_the_same_drop_tol():
    F = MultilevelILU().factor(graded())
    loose = F._variant
    assert F._order_for(loose._replace(limits=loose.limits._replace(drop_tol=1e-5))) is None
    assert F._order_for(loose) is F._first


@pytest.mark.parametrize(
    ("rows", "entries", "own"),
    [
        (ORDERED_ROWS + 1, (LONG_ROWS - 1) * (ORDERED_ROWS + 1), True),
        (ORDERED_ROWS + 1, LONG_ROWS * (ORDERED_ROWS + 1), False),
        (ORDERED_ROWS, 0, False),
    ],
)
def test_large_triangles_of_short_rows_are_solved_in_their_own_order_on_a_gpu(rows, entries, own):
    assert in_own_order(rows, entries) == own


@pytest.mark.gpu
@pytest.mark.parametrize("long", [1, 1000])
@pytest.mark.parametrize("symmetric", [True, False])
def test_the_order_of_a_solve_on_a_gpu_is_that_of_the_rule(cupy, meanwhile, long, symmetric):
    import cupyx.scipy.sparse as csp

    from finelu.preconditioners.multilevel import level

    meanwhile(level, ORDERED_ROWS=0, LONG_ROWS=long)
    A = gallery.poisson5(200) if symmetric else gallery.convection_diffusion(200, 200)
    F = MultilevelILU(drop_tol=1e-2).factor(csp.csr_matrix(A))
    first = F._levels[0]
    methods = {first._solver(solve).method for solve in first._solves["N"]}
    assert (methods == {"sync_free"}) == (long == 1000)
