"""ParILUT and ParICT: by definition, by limit, by the effect of each parameter, by behaviour, by bad input."""

import re
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from checks import (
    DTYPES,
    KERSHAW,
    PATTERNS,
    assert_close,
    compared,
    dominant_matrices,
    fetched,
    in_dtype,
    iterations,
    long_rows,
    permuted,
    perturbed,
    refused,
    values,
)
from conftest import real_matrix
from hypothesis import example, given
from hypothesis import strategies as st

import finelu as fl
from finelu import IC0, ICT, ILU0, ILUT, MatrixError, ParameterError, ParICT, ParILUT, Sweeps, ZeroPivot, gallery
from finelu.errors import NoFactors
from finelu.preconditioners import parilut

BOTH = pytest.mark.parametrize("Recipe", [ParILUT, ParICT])
EITHER = pytest.mark.parametrize("sweep", ["exact", "synchronous"])
SWEPT = pytest.mark.parametrize("sweep", ["synchronous", "paper"])
ANI = gallery.anisotropic_triangles(3)  # 741 rows, of unit diagonal
MESH = gallery.anisotropic_triangles(3, rcm=False)  # the same in an order that does not depend on how NumPy sorts
SPREAD = {
    ParILUT: ("poisson7:5,4,3", "convection_diffusion:8,7,1,peclet=50", "arrow:70", "random_dominant:60,0.08,3"),
    ParICT: ("poisson7:5,4,3", "arrow:70", "anisotropic_triangles:1"),
}
ALL = 1e3  # a fill that drops nothing
SIZE = {"float64": 12, "complex64": 12, "complex128": 20}  # bytes of a candidate with its column


def residual(backend, A, F):
    """||A - L U||_F / ||A||_F, as the report has it where A's diagonal is one."""
    L, U = fetched(backend, F)
    return sp.linalg.norm(permuted(backend, A, F) - L @ U) / sp.linalg.norm(A)


def wanted(A, fill, cholesky=False):
    """Entries of L + U (of L) that `fill` asks for."""
    below, above = sp.tril(A, -1).nnz, 0 if cholesky else sp.triu(A, 1).nnz
    return A.shape[0] + round(fill * below) + round(fill * above)


# By limit: where nothing is dropped it is the complete factorization


@BOTH
@EITHER
@pytest.mark.parametrize("dtype", DTYPES)
def test_where_nothing_is_dropped_it_tends_to_the_complete_factorization(backend, Recipe, sweep, dtype):
    for name in SPREAD[Recipe]:
        A = in_dtype(gallery.problem(name), dtype)
        for ordering in (None, "rcm"):
            F = Recipe(steps=45, fill=ALL, sweep=sweep, ordering=ordering).factor(backend.move(A))
            assert F.dtype == F.L.dtype == F.U.dtype == dtype
            L, U = fetched(backend, F)
            dense = permuted(backend, A, F).toarray()
            assert_close((L @ U).toarray(), dense, 64, scale=(abs(L) @ abs(U)).toarray().max())
            if Recipe is ParICT:
                assert_close(L.toarray(), np.linalg.cholesky(dense), 256, scale=abs(dense).max())
            else:
                np.testing.assert_array_equal(L.diagonal(), np.ones(A.shape[0]))
                assert sp.triu(L, 1).nnz == sp.tril(U, -1).nnz == 0
            r = values((A.shape[0], 2), dtype)
            assert_close(A @ backend.fetch(F.solve(backend.move(r))), r, 2000)  # A's order, whatever the ordering


@BOTH
@PATTERNS
@given(data=st.data())
def test_any_pattern_is_factored_completely(backend, Recipe, data):
    A = data.draw(dominant_matrices(hermitian=Recipe is ParICT))
    for sweep in ("exact", "synchronous"):
        F = Recipe(steps=2 * A.shape[0] + 2, fill=ALL, sweep=sweep).factor(backend.move(A))
        L, U = fetched(backend, F)
        # without an entry on one side of the diagonal in A there is none there in L and U: `fill` times none
        assert_close((L @ U).toarray(), A.toarray(), 64, scale=(abs(L) @ abs(U)).toarray().max())


# By definition


@BOTH
@EITHER
@pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128"])
def test_the_residual_norms_are_those_of_the_factors(backend, Recipe, sweep, dtype):
    A = in_dtype(ANI, dtype)
    made = [Recipe(steps=s, sweep=sweep).factor(backend.move(A)) for s in range(4)]
    norms, want = made[3].report["residual_norms"], [residual(backend, A, F) for F in made]
    if sweep == "exact":  # the last step, and only that, finds the values on the larger pattern
        assert all(abs(norms[k] / want[k] - 1) > 1e-6 for k in (1, 2))
        assert norms[1] == made[2].report["residual_norms"][1]
        norms, want = norms[::3], want[::3]
    rtol = 1e-3 if dtype == "complex64" else 1e-9  # of the rest where larger numbers cancel
    np.testing.assert_allclose(norms, want, rtol=rtol)
    assert made[3].report["steps"] == 3 and made[3].report["stopped"] == "all steps done"
    L, U = fetched(backend, made[3])
    on_pattern = sp.csr_matrix(permuted(backend, A, made[3]) - L @ U).multiply(abs(L) + abs(U) > 0)
    assert made[3].report["pattern_residual"] == pytest.approx(sp.linalg.norm(on_pattern) / sp.linalg.norm(A), rel=rtol)
    assert made[0].report["residual_norms"] == [] and made[0].nnz == (sp.tril(A) if Recipe is ParICT else A).nnz


@BOTH
@EITHER
def test_the_diagonal_survives_whatever_is_dropped(backend, Recipe, sweep):
    for A in (ANI, gallery.poisson27(4), gallery.arrow(70)):
        F = Recipe(fill=1e-9, sweep=sweep).factor(backend.move(A))
        L, U = fetched(backend, F)
        assert F.nnz == A.shape[0] == U.nnz
        product = (L @ U).diagonal()
        if sweep == "synchronous":
            assert_close(product, A.diagonal(), 8)
        else:  # the pivots of what was dropped: they are smaller
            assert (product > 0).all() and (product <= A.diagonal() * (1 + 1e-15)).all()


@BOTH
def test_the_largest_entries_stay(backend, Recipe):
    F = Recipe(steps=1, fill=0.5).factor(backend.move(ANI))
    G = Recipe(steps=1, fill=ALL).factor(backend.move(ANI))
    kept = sp.triu(fetched(backend, F)[1], 1)
    whole = sp.csr_matrix(sp.triu(fetched(backend, G)[1], 1))
    places = sp.csr_matrix((np.ones(kept.nnz), kept.nonzero()), shape=ANI.shape)
    stay, go = abs(whole.multiply(places)).tocsr().data, abs(whole - whole.multiply(places)).tocsr()
    go.eliminate_zeros()
    assert stay.size == kept.nnz == round(0.5 * sp.triu(ANI, 1).nnz) and go.nnz > stay.size / 2
    size = compared(*fetched(backend, G), ANI.diagonal(), Recipe is ParICT)[1]
    assert size.multiply(places).tocsr().data.min() >= abs(size - size.multiply(places)).max()
    np.testing.assert_array_equal(kept.toarray(), whole.multiply(places).toarray())  # G's values: nothing comes after


def test_of_a_symmetric_matrix_m_is_symmetric(backend):
    A = gallery.anisotropic_triangles(4)
    L, U = fetched(backend, ParILUT().factor(backend.move(A)))
    d = U.diagonal()
    assert abs((L != 0).astype(float) - (U != 0).astype(float).T).nnz <= 4  # where rounding has decided
    assert sp.linalg.norm(sp.diags(1 / d) @ U - L.T) < 1e-2


@pytest.mark.parametrize("name", ["of_pitzDaily_p", "orsirr_1", "cage10", "sherman3"])
def test_real_matrices(backend, name):
    A = real_matrix(name)
    F = ParILUT(sweep="synchronous").factor(backend.move(A))
    norms = F.report["residual_norms"]
    assert min(norms[1:]) < norms[0] and F.report["refused"] == 0 and F.report["shifts"] == []
    G = ParILUT().factor(backend.move(A))
    assert G.report["refused"] == 0 and G.report["shifts"] == [0.0] * 4
    assert F.nnz == G.nnz == wanted(A, 1.0)


@pytest.mark.parametrize("name", ["nasa2146", "bcsstk14", "orsirr_1", "sherman3"])
def test_exact_values_are_at_least_as_good_as_sweeps_and_as_ilu0(backend, name):
    A = real_matrix(name)
    definite = name not in ("orsirr_1", "sherman3")
    Recipe, without, method = (ParICT, ILU0, fl.cg) if definite else (ParILUT, ILU0, fl.gmres)
    b = backend.move(values(A.shape[0], "float64"))
    A = backend.move(A)

    def needed(recipe, how=method):
        more = {"restart": 400} if how is fl.gmres else {}
        solution = how(A, b, M=recipe.factor(A), rtol=1e-8, maxiter=400, **more)
        return solution.iterations if solution.converged else 10_000

    exact = needed(Recipe())
    assert exact < 400
    assert exact <= needed(without(), fl.gmres) * 1.2
    assert exact <= needed(Recipe(sweep="synchronous", steps=5))


# The papers' own algorithm


def of_2018(A, steps, cholesky):
    """L and U of a dense A with a unit diagonal: 2018, Algorithm 2 with equation 5, exact thresholds; L L^T = L U."""
    stored, kept = A != 0, [np.count_nonzero(np.tril(A, -1)), np.count_nonzero(np.triu(A, 1))]
    L = np.tril(A) if cholesky else np.tril(A, -1) + np.eye(len(A))
    U = L.T if cholesky else np.triu(A)
    for _ in range(steps):
        places = stored | (abs(L) @ abs(U) > 0) | (L != 0) | (U != 0)
        R = (A - L @ U) * (places & (L == 0) & (U == 0))
        L, U = L + np.tril(R), L.T + np.triu(R) if cholesky else U + np.triu(R)
        for _ in range(2):
            L, U = sweep_of_2018(A, L, U, places, cholesky)
            places = np.eye(len(A)) > 0
            for T, number in ((np.tril(L, -1), kept[0]), (np.triu(U, 1), kept[1])):
                places |= abs(T) >= np.sort(abs(T), axis=None)[-number]
            L, U = L * places, U * places
    return L, U


def sweep_of_2018(A, L, U, places, cholesky):
    """One sweep: L from the old U, then U from the new L; of Cholesky all entries from the old ones."""
    newL, newU = L.copy(), U.copy()
    for i, j in zip(*np.nonzero(np.tril(places, -1)), strict=True):
        newL[i, j] = (A[i, j] - L[i, :j] @ U[:j, j]) / U[j, j]
    if cholesky:
        for i in range(len(A)):
            newL[i, i] = np.sqrt(A[i, i] - L[i, :i] @ L[i, :i])
        return newL, newL.T
    for i, j in zip(*np.nonzero(np.triu(places)), strict=True):
        newU[i, j] = A[i, j] - newL[i, :i] @ U[:i, j]
    return newL, newU


@BOTH
def test_the_sweeps_of_the_paper_are_its_algorithm(backend, Recipe):
    cholesky = Recipe is ParICT
    B = gallery.random_dominant(40, 0.08, 5, hermitian=cholesky)
    d = sp.diags(1 / np.sqrt(abs(B.diagonal())))
    A = sp.csr_matrix(d @ B @ d)
    A.setdiag(1.0)
    for steps in (1, 2, 3):
        F = Recipe(steps=steps, sweep="paper").factor(backend.move(A))
        for mine, theirs in zip(fetched(backend, F), of_2018(A.toarray(), steps, cholesky), strict=True):
            assert_close(mine.toarray(), theirs, 64, scale=1.0)


@pytest.mark.parametrize(
    ("Recipe", "method", "theirs"),
    [(ParICT, fl.cg, (184, 136, 108, 93, 86)), (ParILUT, fl.gmres, (161, 105, 84, 74, 66))],  # 2018, Tables 2 and 3
)
def test_the_sweeps_of_the_paper_take_its_iterations(backend, Recipe, method, theirs):
    A = real_matrix("ani5")
    b = backend.move(np.random.default_rng(0).uniform(-0.5, 0.5, A.shape[0]))
    A, options = backend.move(A), {} if method is fl.cg else {"restart": 400}
    for steps, count in zip(range(1, 6), theirs, strict=True):
        F = Recipe(steps=steps, sweep="paper").factor(A)
        solution = method(A, b, M=F, rtol=1e-10, maxiter=400, **options)
        assert solution.converged and abs(solution.iterations / count - 1) <= 0.15


# Determinism


@BOTH
@pytest.mark.parametrize("sweep", ["exact", "synchronous", "paper"])
def test_the_bits_are_the_same_on_any_number_of_threads_and_in_every_run(Recipe, sweep, threads, small_blocks):
    for A in (gallery.poisson7(9), ANI, long_rows(300) if Recipe is ParILUT else gallery.arrow(300)):
        made = []
        for count in (1, 2, 4, 2):
            threads(count)
            options = None if sweep == "exact" else Sweeps(add_fraction=0.9)
            F = Recipe(sweep=sweep, sweeps=options, fill=1.5).factor(A)
            made.append((F.L.indices, F.L.data, F.U.indices, F.U.data, np.array(F.report["residual_norms"])))
        for other in made[1:]:
            for mine, theirs in zip(made[0], other, strict=True):
                np.testing.assert_array_equal(mine, theirs)


@BOTH
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_asynchronous_sweeps_converge(backend, Recipe, dtype, threads, small_blocks):
    threads(4)
    for name in SPREAD[Recipe]:
        A = in_dtype(gallery.problem(name), dtype)
        F = Recipe(sweep="asynchronous", steps=60, fill=ALL).factor(backend.move(A))
        assert residual(backend, A, F) < 450 * np.finfo(dtype).eps and F.report["variant"] == "asynchronous"
    F, G = (Recipe(sweep=s, steps=5).factor(backend.move(ANI)) for s in ("asynchronous", "synchronous"))
    assert residual(backend, ANI, F) == pytest.approx(residual(backend, ANI, G), rel=0.1)
    assert F.nnz == G.nnz


# The effect of each parameter


@BOTH
@pytest.mark.parametrize("select", ["exact", "approximate"])
@pytest.mark.parametrize("fill", [0.3, 1.0, 2.0])
def test_fill_is_met_even_where_most_magnitudes_are_equal(backend, Recipe, select, fill):
    A = gallery.poisson7(36)  # sides of more than 100,000 entries
    F = Recipe(fill=fill, sweep="synchronous", sweeps=Sweeps(select=select)).factor(backend.move(A))
    want = wanted(A, fill, Recipe is ParICT)
    assert F.report["nnz"][-1] == F.nnz
    assert F.nnz == want if select == "exact" else abs(F.nnz - want) <= 0.03 * want


@BOTH
def test_nnz_is_met_and_means_what_it_means_in_ilut(backend, Recipe):
    for nnz in (ANI.shape[0], ANI.nnz, 2 * ANI.nnz):
        F = Recipe(nnz=nnz).factor(backend.move(ANI))
        assert abs((F.nnz if Recipe is ParILUT else 2 * F.nnz - ANI.shape[0]) - nnz) <= 2
    diagonal = sp.csr_matrix(sp.diags(np.arange(1.0, 9)))
    assert Recipe(nnz=20).factor(backend.move(diagonal)).nnz == 8


def test_approximate_thresholds_are_others(backend):
    A = gallery.anisotropic_triangles(7)
    want = wanted(A, 1.0)
    F, G = (
        ParILUT(sweep="synchronous", sweeps=Sweeps(select=s), steps=1).factor(backend.move(A))
        for s in ("exact", "approximate")
    )
    assert F.nnz == want != G.nnz and abs(G.nnz - want) <= 0.06 * want  # large entries are not spread evenly here


@BOTH
def test_more_fill_and_more_steps_take_fewer_iterations(backend, Recipe):
    A, method = backend.move(gallery.anisotropic_triangles(4)), fl.cg if Recipe is ParICT else fl.gmres

    def needed(**options):
        b = backend.move(values(A.shape[0], "float64"))
        solution = method(A, b, M=Recipe(**options).factor(A), rtol=1e-8, maxiter=400)
        assert solution.converged
        return solution.iterations

    by_fill = [needed(fill=fill) for fill in (0.5, 1.0, 2.0)]
    assert by_fill[0] > 1.3 * by_fill[1] and by_fill[1] > by_fill[2]
    by_steps = [needed(steps=steps, sweep="synchronous") for steps in (1, 3, 9)]
    assert by_steps[0] > 1.1 * by_steps[1] and by_steps[1] > 1.1 * by_steps[2]
    by_steps = [needed(steps=steps) for steps in (0, 1, 3)]
    assert by_steps[0] > 1.5 * by_steps[1] and by_steps[1] > 1.1 * by_steps[2]


@BOTH
@pytest.mark.parametrize("fill", [0.5, 3.0])
def test_progressive_changes_the_fill_in_equal_parts(backend, Recipe, fill):
    A = gallery.poisson27(7)
    F = Recipe(fill=fill, sweep="paper", sweeps=Sweeps(progressive=True), steps=4).factor(backend.move(A))
    cholesky = Recipe is ParICT
    begin, end = wanted(A, 1.0, cholesky), wanted(A, fill, cholesky)
    np.testing.assert_allclose(F.report["nnz"], begin + np.arange(1, 5) / 4 * (end - begin), atol=2)
    assert F.report["stopped"] == "all steps done" and F.nnz == end
    G = Recipe(fill=fill, sweep="paper", steps=4).factor(backend.move(A))
    assert G.report["nnz"][0 if fill < 1 else 1 :] == [end] * (4 if fill < 1 else 3)


def test_with_less_than_one_factors_that_are_too_large_are_never_the_best(backend):
    A = gallery.poisson7(8)
    for options in ({}, {"sweep": "synchronous", "sweeps": Sweeps(progressive=True)}, {"steps": 1}):
        F = ParILUT(fill=0.3, **options).factor(backend.move(A))
        assert F.nnz == wanted(A, 0.3) and F.report["stopped"] == "all steps done"
    F = ParILUT(start=ILUT(drop_tol=0.0, fill=float("inf")).factor(backend.move(A))).factor(backend.move(A))
    assert F.nnz == wanted(A, 1.0) and F.report["residual_norms"][0] < 1e-15


@BOTH
@SWEPT
def test_add_fraction_limits_what_is_added(backend, Recipe, sweep):
    options = [Sweeps(add_fraction=f) for f in (None, 1.0, 0.4, 1e-9)]
    made = [Recipe(sweep=sweep, sweeps=s, steps=5).factor(backend.move(ANI)) for s in options]
    added = [F.report["candidates"][0] for F in made]
    sides = 1 if Recipe is ParICT else 2
    assert added[0] > added[1] > added[2] > added[3] == sides
    assert sides * 100 < added[1] <= sides * ANI.shape[0]  # one a row of L, one a column of U
    assert added[2] == pytest.approx(0.4 * added[1], abs=1)
    errors = [residual(backend, ANI, F) for F in made[1:]]
    assert errors[0] < errors[2] and errors[1] < errors[2]


def test_of_the_candidates_the_largest_of_a_row_or_column_are_added(backend):
    A = np.eye(6)
    A[1:, 0], A[0, 1:] = [0.1, 0.2, 0.3, 0.4, 0.5], [0.5, 0.4, 0.3, 0.2, 0.1]
    added = {
        f: ParILUT(steps=1, fill=ALL, sweep="paper", sweeps=Sweeps(add_fraction=f)).factor(
            backend.move(sp.csr_matrix(A))
        )
        for f in (0.5, 1.0)
    }
    # r_ij = -l_i0 u_0j: the largest of row i is at j = 1, that of column j at i = j - 1: 0.04, 0.06, 0.06 and 0.04
    for f, lower, upper in (
        (1.0, {(2, 1), (3, 1), (4, 1), (5, 1)}, {(1, 2), (2, 3), (3, 4), (4, 5)}),
        (0.5, {(4, 1), (5, 1)}, {(2, 3), (3, 4)}),
    ):
        L, U = fetched(backend, added[f])
        for T, want in ((sp.tril(L, -1), lower), (sp.triu(U, 1), upper)):
            assert set(zip(*np.nonzero(T.toarray() * (A == 0)), strict=True)) == want


@BOTH
def test_initial_scaled_divides_by_the_pivot(backend, Recipe):
    first, second = (
        Recipe(sweep="synchronous", sweeps=Sweeps(initial=i)).factor(backend.move(ANI)).report["residual_norms"]
        for i in ("residual", "scaled")
    )
    assert first[:2] == pytest.approx(second[:2], rel=1e-12)  # in the first step all pivots are one
    assert abs(first[2] / second[2] - 1) > 1e-3 and max(first[2], second[2]) < 0.2 * first[0]


@BOTH
def test_start_is_a_level_of_fill(backend, Recipe):
    for level in (0, 1, 2):
        F = Recipe(steps=0, start=level).factor(backend.move(ANI))
        G = fl.ILUK(level=level).factor(backend.move(ANI))
        assert F.nnz == (G.nnz if Recipe is ParILUT else (G.nnz + ANI.shape[0]) // 2)
        F = Recipe(start=level).factor(backend.move(ANI))  # which keeps its fill
        assert F.nnz == (G.nnz if Recipe is ParILUT else (G.nnz + ANI.shape[0]) // 2)
        assert F.report["residual_norms"][-1] < 0.04
        F = Recipe(start=level, nnz=ANI.nnz, ordering="rcm").factor(backend.move(ANI))
        assert abs(F.nnz - wanted(ANI, 1.0, Recipe is ParICT)) <= 1 and F.report["residual_norms"][-1] < 0.04
    assert len({Recipe(start=k).factor(backend.move(ANI)).report["candidates"][0] for k in (0, 1, 2)}) == 3


@BOTH
@pytest.mark.parametrize("scale", [True, False])
def test_start_may_be_factors(backend, Recipe, scale):
    A = sp.csr_matrix(sp.diags(np.linspace(1, 9, 741)) @ ANI @ sp.diags(np.linspace(1, 9, 741)))
    maker = {ParILUT: ILUT, ParICT: ICT}[Recipe]
    given = maker(nnz=A.nnz).factor(backend.move(A))
    before = backend.fetch(given.L.data).copy()
    F = Recipe(start=given, steps=1, scale=scale).factor(backend.move(A))
    np.testing.assert_array_equal(backend.fetch(given.L.data), before)
    S = sp.diags(1 / np.sqrt(A.diagonal())) if scale else sp.identity(741)
    L, U = fetched(backend, given)
    want = sp.linalg.norm(S @ (A - L @ U) @ S) / sp.linalg.norm(S @ A @ S)
    assert F.report["residual_norms"][0] == pytest.approx(want, rel=1e-9)
    ordered = Recipe(ordering="rcm").factor(backend.move(A))
    again = Recipe(ordering="rcm", start=ordered, steps=1).factor(backend.move(A))
    assert again.report["residual_norms"][0] <= 1.01 * ordered.report["residual_norms"][-1]


def test_start_that_does_not_fit_is_refused(backend):
    A, small = backend.move(ANI), backend.move(gallery.poisson5(4))
    broken, zero = ILU0().factor(small), gallery.poisson5(4).copy()
    zero[0, 0] = 0
    with pytest.raises(ZeroPivot):
        broken.update(backend.move(zero))
    for start, kind, text in (
        (ILU0().factor(small), MatrixError, "shape"),
        (IC0().factor(A), ParameterError, "two triangles"),
        (fl.Jacobi().factor(A), ParameterError, "two triangles"),
        (ParILUT(ordering="rcm").factor(A), ParameterError, "ordering"),
        (ILU0().factor(backend.move(in_dtype(ANI, "complex128"))), MatrixError, "complex"),
        ("ilu0", ParameterError, "start must be an integer >= 0"),
    ):
        with refused(kind, match=text):
            ParILUT(start=start).factor(A)
    with pytest.raises(NoFactors):
        ParILUT(start=broken).factor(small)


@BOTH
def test_stagnation_stops_where_a_step_brings_little(backend, Recipe):
    whole = Recipe(steps=12, sweep="synchronous").factor(backend.move(ANI))
    F = Recipe(steps=12, sweep="synchronous", sweeps=Sweeps(stagnation=0.2)).factor(backend.move(ANI))
    norms = F.report["residual_norms"]
    assert "stagnates" in F.report["stopped"] and 2 < F.report["steps"] < 12
    assert norms == whole.report["residual_norms"][: len(norms)]
    assert norms[-1] > 0.8 * norms[-2] and all(b <= 0.8 * a for a, b in pairwise(norms[:-1]))
    assert residual(backend, ANI, F) == pytest.approx(min(norms), rel=1e-9)


def test_a_last_step_may_leave_a_residual_that_is_larger_but_not_by_much(backend, monkeypatch):
    A = backend.move(real_matrix("memplus"))
    kept = ParILUT(steps=2).factor(A).report
    assert kept["stopped"] == "all steps done" and kept["residual_norms"][-1] > 1.5 * kept["residual_norms"][1]
    monkeypatch.setattr(parilut, "LAST_DIVERGED", 1.5)
    left = ParILUT(steps=2).factor(A).report
    assert "the residual grew" in left["stopped"] and left["residual_norms"] == kept["residual_norms"]


@BOTH
@pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128"])
def test_memory_limit_bounds_the_candidates_and_what_is_left_out_is_reported(backend, Recipe, dtype):
    A = in_dtype(ANI, dtype)
    free = Recipe(memory_limit=None).factor(backend.move(A))
    assert max(free.report["left_out"]) == 0
    limit = SIZE[dtype] * max(free.report["candidates"]) * 3 // 4
    F = Recipe(memory_limit=limit).factor(backend.move(A))
    assert max(F.report["candidates"]) * SIZE[dtype] <= limit and max(F.report["left_out"]) > 0
    assert F.report["candidates"][1] + F.report["left_out"][1] == free.report["candidates"][1]
    assert residual(backend, A, F) < 1.3 * residual(backend, A, free)
    tight = Recipe(memory_limit=1).factor(backend.move(A))
    assert residual(backend, A, tight) > 2 * residual(backend, A, free)


def test_a_symmetric_scaling_of_a_changes_nothing(backend):
    d = 2.0 ** np.random.default_rng(0).integers(-8, 8, ANI.shape[0])
    B = ANI.copy()
    B.data = ANI.data * d[np.repeat(np.arange(d.size), np.diff(ANI.indptr))] * d[ANI.indices]
    same = fetched(backend, ParILUT().factor(backend.move(ANI)))[1].toarray()
    for scale in (True, False):
        F = ParILUT(scale=scale).factor(backend.move(B))
        scaled_back = sp.csr_matrix(sp.diags(1 / d) @ fetched(backend, F)[1] @ sp.diags(1 / d))
        assert_close(scaled_back.toarray(), same, 0 if backend.name == "cpu" else 64)
        norm = ParILUT(scale=scale).factor(backend.move(ANI)).report["residual_norms"]
        assert (F.report["residual_norms"] == norm) == scale
    if backend.name == "cpu":  # sweeps begin elsewhere without it
        by_scale = (ParILUT(sweep="synchronous", scale=scale).factor(backend.move(B)) for scale in (True, False))
        scaled, plain = (iterations(B, F, restart=200) for F in by_scale)
        assert scaled < plain


@EITHER
@pytest.mark.parametrize("sign", [-1, 1j, "rows"])
def test_the_sign_of_the_diagonal_does_not_matter(backend, sweep, sign):
    A = gallery.convection_diffusion(7, 6, 5, peclet=30).astype("complex64" if sign == 1j else "float64")
    signs = sp.diags(np.where(np.arange(A.shape[0]) % 3, 1.0, -1.0)) if sign == "rows" else sign
    errors = [
        residual(backend, B, ParILUT(sweep=sweep).factor(backend.move(B)))
        for B in (A, sp.csr_matrix(signs @ A if sign == "rows" else sign * A))
    ]
    assert errors[1] == pytest.approx(errors[0], rel=1e-9)


# New values


@BOTH
@EITHER
@pytest.mark.parametrize("ordering", [None, "rcm"])
def test_update_is_about_as_good_as_a_fresh_factorization(backend, Recipe, sweep, ordering):
    B = perturbed(ANI)
    F = Recipe(ordering=ordering, sweep=sweep).factor(backend.move(ANI))
    pattern = fetched(backend, F)[0].indices
    assert F.update(backend.move(B)) is F
    np.testing.assert_array_equal(fetched(backend, F)[0].indices, pattern)
    fresh = residual(backend, B, Recipe(ordering=ordering, sweep=sweep).factor(backend.move(B)))
    assert residual(backend, B, F) < 1.2 * fresh
    assert F.report["steps"] == 0 and F.report["residual_norms"] == []


def indefinite(seed):
    """Rows of a few entries as large as the diagonal: eliminations on larger patterns soon make it worse."""
    rng = np.random.default_rng(seed)
    return sp.csr_matrix(
        sp.random(300, 300, 4 / 300, random_state=rng, data_rvs=rng.standard_normal)
        + sp.diags(rng.choice([-1, 1], 300) * (1.5 + rng.random(300)))
    )


@pytest.mark.parametrize(
    ("Recipe", "options", "matrix"),
    [
        *((R, {"steps": steps}, "ani") for R in (ParILUT, ParICT) for steps in (0, 3)),
        *((R, {"steps": 0}, "bcsstk14") for R in (ParILUT, ParICT)),  # these end with a shift
        (ParILUT, {"steps": 4}, "bfw782a"),
        *((ParILUT, {"steps": 8}, seed) for seed in (18, 82, 31)),  # where the residual grows
        (ParILUT, {"start": True}, "ani"),
    ],
    ids=str,
)
def test_an_exact_update_with_the_same_values_gives_the_same_bits(backend, Recipe, options, matrix):
    A = ANI if matrix == "ani" else indefinite(matrix) if isinstance(matrix, int) else real_matrix(matrix)
    if "start" in options:
        options = {"start": ILU0().factor(backend.move(A)), "steps": 2}
    F = Recipe(**options).factor(backend.move(A))
    before, warning = fetched(backend, F)[1], F.report.get("warning")
    shift = F.report["shifts"][-1]
    B = A.copy()
    B.setdiag(9 * A.diagonal())
    F.update(backend.move(B))
    assert F.report["shifts"] == [0.0]  # as little as it takes
    F.update(backend.move(A))
    same = np.testing.assert_array_equal if backend.name == "cpu" else np.testing.assert_allclose
    same(fetched(backend, F)[1].toarray(), before.toarray())
    assert F.report["stopped"] == "all steps done" and F.report.get("warning") == warning
    if matrix in ("bcsstk14", "bfw782a"):
        assert shift > 0 and F.report["shifts"] == [shift] and f"raised by {shift:.2g} of itself" in warning


def test_a_step_without_pivots_ends_the_steps(backend):
    A = np.eye(4)  # A_22 - 1 is the pivot of row 2 once (2, 1) and (1, 2) are there: whatever the shift, Inf
    A[0, 1:3], A[1:3, 0] = 1e160, 1e160
    A[0, 0] = 1e160
    F = ParILUT(scale=False).factor(backend.move(sp.csr_matrix(A)))
    assert "there are no pivots" in F.report["stopped"] or "not finite" in F.report["stopped"]
    assert F.report["steps"] == 0 and np.isfinite(backend.fetch(F.U.data)).all()


def test_where_no_step_of_sweeps_is_better_the_first_pattern_is_eliminated(backend):
    A = gallery.problem("elasticity:6,3,3,0.45")
    F = ParILUT(sweep="synchronous").factor(backend.move(A))
    assert F.report["shifts"] == [0.0]
    assert "since no step was better, the first pattern was eliminated" in F.report["stopped"]
    G = ILU0().factor(backend.move(A))
    for mine, other in zip(fetched(backend, F), fetched(backend, G), strict=True):
        assert_close(mine.toarray(), other.toarray(), 2**20, scale=abs(other).max())
    assert F.nnz == G.nnz


def test_norms_that_underflow_are_refused(backend):
    A = sp.csr_matrix(1e-170 * ANI)
    with refused(ParameterError, match="squares of A's entries underflow"):
        ParILUT(scale=False).factor(backend.move(A))


def other_anisotropy():
    """ANI's pattern, with the values of a problem whose large entries are elsewhere."""
    A = gallery.anisotropic_triangles(3, ratio=1.0)
    assert (A != 0).nnz <= ANI.nnz
    B = ANI.copy()
    B.data = np.asarray(A[np.repeat(np.arange(741), np.diff(ANI.indptr)), ANI.indices]).ravel()
    return B


@BOTH
def test_update_steps_adapt_the_pattern_and_update_sweeps_the_values(backend, Recipe):
    B = other_anisotropy()
    errors = {}
    for sweeps, steps in ((0, 0), (1, 0), (3, 0), (3, 1), (3, 3)):
        recipe = Recipe(sweep="synchronous", sweeps=Sweeps(update=sweeps), steps=5, update_steps=steps)
        F = recipe.factor(backend.move(ANI))
        F.update(backend.move(B))
        assert F.report["steps"] == steps == len(F.report["nnz"])
        errors[sweeps, steps] = residual(backend, B, F)
    assert errors[0, 0] > errors[1, 0] > errors[3, 0] > 1.2 * errors[3, 1] > 1.2 * 1.02 * errors[3, 3]
    F = Recipe(update_steps=2).factor(backend.move(ANI)).update(backend.move(B))
    assert F.report["steps"] == 2 and len(F.report["shifts"]) == 3
    assert residual(backend, B, F) < 1.1 * residual(backend, B, Recipe().factor(backend.move(B)))


@BOTH
def test_an_update_with_another_size_of_values_changes_nothing_else(backend, Recipe):
    F = Recipe(update_steps=1).factor(backend.move(ANI))
    G = Recipe(update_steps=1).factor(backend.move(ANI))
    F.update(backend.move(ANI))
    G.update(backend.move(2.0**40 * ANI))
    np.testing.assert_array_equal(
        backend.fetch(G.U.data), backend.fetch(F.U.data) * (2.0**20 if Recipe is ParICT else 2.0**40)
    )


@BOTH
@pytest.mark.parametrize("sweep", ["exact", "synchronous", "asynchronous"])
def test_after_an_update_that_failed_there_are_no_factors_until_one_succeeds(backend, Recipe, sweep):
    A = gallery.poisson5(6)
    F = Recipe(sweep=sweep).factor(backend.move(A))
    bad, worse = A.copy(), A.copy()
    bad[5, 5] = 0
    worse[7, 7] = 1e-320  # undoing the scaling overflows, or before that the elimination
    cases = ((bad, "row 5"), (worse, "not finite"))
    for broken, text in cases[
        : 2 if Recipe is ParILUT and sweep != "asynchronous" else 1
    ]:  # what they find depends on timing
        with pytest.raises(ZeroPivot, match=text), np.errstate(all="ignore"):
            F.update(backend.move(broken))
        with pytest.raises(NoFactors):
            F.solve(backend.move(np.ones(36)))
    F.update(backend.move(A))
    assert residual(backend, A, F) < 0.1
    with pytest.raises(MatrixError, match="pattern"):
        F.update(backend.move(gallery.tridiagonal(36)))


# Breakdown


@pytest.mark.parametrize(
    "options",
    [{"sweep": "synchronous"}, {"sweep": "asynchronous"}],
    ids=str,
)
def test_refused_updates_are_counted_and_named_with_their_row(backend, options):
    A = sp.csr_matrix(sp.block_diag([gallery.poisson5(3), np.ones((2, 2))]))
    F = ParILUT(**options).factor(backend.move(A))
    assert F.report["refused"] >= 5 and F.report["refused_row"] == 10
    assert f"{F.report['refused']} updates were refused, the first in row 10" in F.report["warning"]
    assert np.isfinite(backend.fetch(F.solve(backend.move(np.ones(11))))).all()
    F = ParICT(steps=2, **options).factor(backend.move(sp.csr_matrix(KERSHAW - sp.diags(0.4 * np.ones(4)))))
    assert F.report["refused"] > 0 and F.report["refused_row"] < 4 and "not positive" in F.report["warning"]
    for _ in range(2):  # the sweeps of the first begin with bad pivots
        F.update(backend.move(sp.csr_matrix(KERSHAW + sp.diags(3 * np.ones(4)))))
    assert F.report["refused"] == 0 and not {"refused_row", "warning"} & set(F.report)


def test_where_the_residual_grows_the_factors_before_that_are_taken(backend):
    start = ILUT(drop_tol=0.05).factor(backend.move(MESH))
    F = ParILUT(sweep="synchronous", steps=12, start=start).factor(backend.move(MESH))
    norms = F.report["residual_norms"]
    assert "the residual grew" in F.report["stopped"] and F.report["steps"] == len(norms) - 1 < 12
    assert norms[-1] > 1.5 * norms[0] == 1.5 * min(norms)
    np.testing.assert_array_equal(fetched(backend, F)[1].toarray(), fetched(backend, start)[1].toarray())


def test_steps_that_end_early_leave_a_yardstick_for_updates(backend):
    start = ILUT(drop_tol=0.05).factor(backend.move(MESH))
    for stagnation, options in ((0.2, {}), (0.0, {"start": start})):
        sweeps = Sweeps(update=0, stagnation=stagnation)
        F = ParILUT(sweep="synchronous", sweeps=sweeps, steps=12, **options).factor(backend.move(MESH))
        assert F.report["stopped"] != "all steps done"
        first = F.report["pattern_residual"]
        L, U = fetched(backend, F)
        apart = sp.csr_matrix(MESH - L @ U).multiply(abs(L) + abs(U) > 0)
        np.testing.assert_allclose(first, sp.linalg.norm(apart) / sp.linalg.norm(MESH), rtol=1e-6, atol=1e-15)
        B = MESH.copy()
        B.data[np.repeat(np.arange(B.shape[0]), np.diff(B.indptr)) != B.indices] *= -1
        F.update(backend.move(B))
        assert F.report["pattern_residual"] != first
        assert f"it was {first:.1e} when A was factored" in F.report["warning"]


def test_a_residual_of_factors_that_were_left_is_not_reported(backend):
    start = ILUT(drop_tol=0.02).factor(backend.move(ANI))
    kept = ParILUT(start=start, steps=0).factor(backend.move(ANI)).report["pattern_residual"]
    for steps in (1, 2, 3, 4, 5):
        F = ParILUT(start=start, steps=steps, sweep="synchronous").factor(backend.move(ANI))
        if "the residual grew" in F.report["stopped"]:
            assert F.report["pattern_residual"] == kept


def test_a_residual_that_overflows_ends_the_steps(backend):
    A = sp.csr_matrix(np.array([[1.0, 1e200, 1e200], [1e200, 1, 1], [1e200, 1, 1]]))
    with np.errstate(all="ignore"):
        F = ParILUT(sweep="synchronous").factor(backend.move(A))
        assert "not finite" in F.report["stopped"] and F.report["steps"] == 0
        np.testing.assert_array_equal(fetched(backend, F)[1].toarray(), np.triu(A.toarray()))
        with pytest.raises(ZeroPivot, match="not finite"):
            ParILUT().factor(backend.move(A))


# By behaviour


def test_parict_takes_far_fewer_iterations_than_ic0_with_as_many_entries(backend):
    for level, options in ((4, {"sweep": "synchronous", "steps": 5}), (5, {})):
        A = backend.move(gallery.anisotropic_triangles(level))
        b = backend.move(values(A.shape[0], "float64"))
        made = IC0().factor(A), ParICT(**options).factor(A)
        assert made[0].nnz == made[1].nnz
        needed = [fl.cg(A, b, M=F, rtol=1e-8) for F in made]
        assert all(solution.converged for solution in needed)
        assert needed[0].iterations >= 2.5 * needed[1].iterations


def orthogonal_blocks(B, c):
    """[[I, c B], [c B^H, I]] of an orthogonal B (m, m), its two halves interleaved: eigenvalues 1 - c and 1 + c."""
    m = B.shape[0]
    order = np.arange(2 * m).reshape(2, m).T.ravel()
    return sp.csr_matrix(np.block([[np.eye(m), c * B], [c * B.T, np.eye(m)]])[order][:, order])


HADAMARD = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 2


@st.composite
def definite_matrices(draw):
    """Positive definite matrices that are far from diagonally dominant, in any scaling."""
    rng, m = np.random.default_rng(draw(st.integers(0, 2**32 - 1))), draw(st.integers(2, 12))
    B = np.linalg.qr(rng.standard_normal((m, m)))[0] if draw(st.booleans()) else np.eye(m)
    A = orthogonal_blocks(B, 1 - 10.0 ** -draw(st.integers(1, 4)))
    d = sp.diags(2.0 ** rng.integers(-6, 7, 2 * m))
    return sp.csr_matrix(d @ A @ d)


@PATTERNS
@given(A=definite_matrices())
@example(A=orthogonal_blocks(HADAMARD, 0.999))
def test_factors_of_a_definite_matrix_are_definite_or_have_a_warning(backend, A):
    F = ParICT().factor(backend.move(A))
    assert (fetched(backend, F)[0].diagonal() > 0).all()
    said = re.search(r"was raised by (\S+) of itself", F.report.get("warning", ""))
    shifts = F.report["shifts"][-1:] if F.report["stopped"] == "all steps done" else F.report["shifts"]
    assert (said.group(1) if said else "0") in {f"{shift:.2g}" for shift in shifts}  # of the factors that are kept
    F = ParILUT().factor(backend.move(A))
    signs = fetched(backend, F)[1].diagonal() > 0
    assert signs.all() == ("differ in sign" not in F.report.get("warning", ""))
    if not signs.all():
        assert f"the pivot of row {np.flatnonzero(~signs)[0]} and" in F.report["warning"]


def test_pivots_that_lose_their_signs_are_warned_of(backend):
    F = ParILUT().factor(backend.move(orthogonal_blocks(HADAMARD, 0.999)))
    assert "the pivot of row 5 and the diagonal entry of A there differ in sign" in F.report["warning"]


def shuffled():
    """The model of ani5, 12,561 rows, in a random order."""
    A = gallery.problem("ani5")
    order = np.random.default_rng(0).permutation(A.shape[0])
    return A[order][:, order].tocsr()


@pytest.mark.parametrize("matrix", [shuffled, pytest.param(partial(real_matrix, "ani7"), marks=pytest.mark.slow)])
def test_more_steps_take_fewer_iterations_in_the_order_that_inspect_advises(backend, matrix):
    A = matrix()
    found = fl.properties.properties(A)
    assert found.distance_rcm < found.distance
    assert "take ordering='rcm'" in fl.report.properties_in_words(found)["mean |i - j|"]
    A, b = backend.move(A), backend.move(values(A.shape[0], "float64"))
    needed = [fl.cg(A, b, M=ParICT(steps=s, ordering="rcm").factor(A), rtol=1e-8) for s in (1, 2, 3, 5)]
    counts = [solution.iterations for solution in needed]
    assert all(solution.converged for solution in needed) and all(a > 1.1 * b for a, b in pairwise(counts))
    assert 2 * counts[2] < fl.cg(A, b, M=ParICT().factor(A), rtol=1e-8).iterations


# By bad input


def test_the_matrix_follows_when_the_factors_need_longer_indices(everywhere):
    A = gallery.convection_diffusion(12, 11, 1)
    want = ParILUT(steps=2).factor(A)
    everywhere("INT32_LIMIT", A.nnz + want.report["candidates"][0] - 1)
    got = ParILUT(steps=2).factor(A)
    assert got._triangles.indices.dtype == np.int64 and want._triangles.indices.dtype == np.int32
    for mine, other in ((got.L, want.L), (got.U, want.U)):
        assert (mine != other).nnz == 0


# What an update is worth


@BOTH
@pytest.mark.parametrize("scale", [True, False])
def test_an_update_with_a_rescaled_matrix_is_as_good_as_fresh_factors(backend, Recipe, scale):
    A = gallery.poisson5(12, 11)
    n = A.shape[0]
    D = sp.diags(np.exp2(np.random.default_rng(1).integers(-15, 15, n)))
    B = sp.csr_matrix(D @ A @ D)
    F = Recipe(scale=scale).factor(backend.move(A))
    once = F.report["pattern_residual"]
    F.update(backend.move(B))
    G = Recipe(scale=scale).factor(backend.move(A)).update(backend.move(A))
    assert "warning" not in F.report and F.report["pattern_residual"] < 10 * once
    r = values(n, "float64")  # M_B^-1 = D^-1 M_A^-1 D^-1
    want = backend.fetch(G.solve(backend.move(r))) / D.diagonal()
    got = backend.fetch(F.solve(backend.move(r * D.diagonal())))
    np.testing.assert_allclose(got, want, rtol=1e-5 if not scale else 1e-9, atol=1e-3 * abs(want).min())


@BOTH
@pytest.mark.parametrize(
    "options",
    [
        {"sweep": "exact"},
        {"sweep": "synchronous"},
        {"sweep": "synchronous", "sweeps": Sweeps(update=0)},
        {"sweep": "synchronous", "sweeps": Sweeps(update=1)},
        {"sweep": "paper"},
        {"sweep": "asynchronous"},
    ],
    ids=str,
)
def test_an_update_that_does_not_fit_warns(backend, Recipe, options):
    A = gallery.poisson5(12, 11)
    F = Recipe(**options).factor(backend.move(A))
    first = F.report["pattern_residual"]
    assert first < 0.05 and "warning" not in F.report
    F.update(backend.move(A))
    assert F.report["pattern_residual"] < 0.05 and "warning" not in F.report
    if options.get("sweeps", Sweeps()).update:
        return
    B = sp.csr_matrix(2 * sp.diags(A.diagonal()) - A)
    F.update(backend.move(B))
    assert F.report["pattern_residual"] > 10 * first and "Factor A anew" in F.report["warning"]
    F.update(backend.move(A))
    assert "warning" not in F.report


def test_the_default_bound_of_the_candidates_does_not_depend_on_the_free_memory(everywhere):
    A = gallery.poisson5(12, 11)
    want = ParILUT().factor(A)
    everywhere("free_memory", lambda array: 10**5)
    np.testing.assert_array_equal(ParILUT().factor(A).L.data, want.L.data)


def test_candidates_that_find_no_room_are_named_before_they_are_made(everywhere):
    n = 600  # an arrow: all of it is filled, more than room is made for at first
    A = sp.lil_matrix(sp.eye(n) * 4.0)
    A[0, :], A[:, 0] = 0.1, 0.1
    A[0, 0] = 40.0
    A = sp.csr_matrix(A)
    assert max(ParILUT(steps=1).factor(A).report["candidates"]) > 100_000
    everywhere("free_memory", lambda array: 10**5)
    with refused(MemoryError, match=r"candidates take .* GiB, .*free; give memory_limit"):
        ParILUT(steps=1).factor(A)
