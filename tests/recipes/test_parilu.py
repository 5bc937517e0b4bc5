"""ParILU and ParIC: by definition, by limit, by twin, by the effect of each parameter, by behaviour, by bad input."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from checks import (
    DTYPES,
    KERSHAW,
    PATTERNS,
    assert_close,
    dominant_matrices,
    fetched,
    in_dtype,
    long_rows,
    one_line,
    permuted,
    refused,
    values,
    with_index,
)
from conftest import Backend, real_matrix
from hypothesis import given
from hypothesis import strategies as st

import finelu as fl
from finelu import IC0, ILU0, ParIC, ParICT, ParILU, ParILUT, ZeroPivot, gallery
from finelu.kernels import reference
from finelu.matrix import as_csr, lower_triangle
from finelu.ordering import repeated_rcm

BOTH = pytest.mark.parametrize("Recipe", [ParILU, ParIC])
SPREAD = {ParILU: ("poisson7:5,4,3", "convection_diffusion:8,7,1,peclet=50", "arrow:70"), ParIC: ("poisson7:5,4,3",)}
ONES = sp.csr_matrix(np.ones((2, 2)))  # its second pivot is 0


def assert_same_values_as(backend, F, G, ulps=256):
    """F has G's factors, each entry to a few ulps of the largest in its row of |L| or |U|."""
    for mine, other in zip(fetched(backend, F), fetched(backend, G), strict=True):
        assert mine.dtype == other.dtype
        scale = np.maximum(abs(other).max(axis=1).toarray(), abs(other).max(axis=0).toarray())
        assert_close(mine.toarray(), other.toarray(), ulps, scale=scale)


def pattern_residual(backend, A, F):
    """||A - L U|| on the pattern of L + U, relative to |L| |U| there."""
    L, U = fetched(backend, F)
    P = abs(L) + abs(U)
    P.data[:] = 1
    R = (permuted(backend, A, F) - L @ U).multiply(P)
    return sp.linalg.norm(R) / sp.linalg.norm((abs(L) @ abs(U)).multiply(P))


def depth(A):
    """How many sweeps it takes until every entry is right: the longest chain of entries that need each other."""
    A, known = as_csr(A), {}
    for i in range(A.n):
        row = [int(j) for j in A.indices[A.indptr[i] : A.indptr[i + 1]]]
        for j in row:
            needed = [known[k, m] for k in row if k < min(i, j) and (k, j) in known for k, m in ((i, k), (k, j))]
            needed += [known[j, j]] if j < i else []
            known[i, j] = 1 + max(needed, default=0)
    return max(known.values())


# By definition


@pytest.mark.parametrize("problem", gallery.small(), ids=str)
def test_after_many_sweeps_l_u_is_a_on_the_pattern(backend, problem):
    A = problem.A
    F = ParILU(sweeps=200).factor(backend.move(A))
    assert pattern_residual(backend, A, F) < 8 * np.finfo(A.dtype).eps
    L, U = fetched(backend, F)
    np.testing.assert_array_equal(L.diagonal(), np.ones(A.shape[0]))
    assert sp.triu(L, 1).nnz == sp.tril(U, -1).nnz == 0
    assert F.nnz == A.nnz == L.nnz + U.nnz - A.shape[0] and F.shape == A.shape and F.dtype == A.dtype
    assert F.report["refused"] == 0 and "warning" not in F.report


@pytest.mark.parametrize("problem", gallery.small_spd(), ids=str)
def test_after_many_sweeps_l_lh_is_a_on_the_pattern(backend, problem):
    A = problem.A
    F = ParIC(sweeps=200).factor(backend.move(A))
    assert pattern_residual(backend, A, F) < 8 * np.finfo(A.dtype).eps
    L, U = fetched(backend, F)
    np.testing.assert_array_equal(U.toarray(), L.toarray().conj().T)
    assert F.nnz == L.nnz == sp.tril(A).nnz


@pytest.mark.parametrize("problem", gallery.small(), ids=str)
def test_after_the_default_sweeps_it_is_near(backend, problem):
    F = ParILU().factor(backend.move(problem.A))
    assert pattern_residual(backend, problem.A, F) < 0.05


@BOTH
@pytest.mark.parametrize("pivots", ["old", "new"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_as_many_sweeps_as_entries_depend_on_each_other_give_the_factorization(backend, Recipe, dtype, pivots):
    exact = {ParILU: ILU0, ParIC: IC0}[Recipe]
    for name in SPREAD[Recipe]:
        A = in_dtype(gallery.problem(name), dtype)
        F = Recipe(sweeps=depth(A), pivots=pivots).factor(backend.move(A))
        assert F.dtype == F.L.dtype == F.U.dtype == dtype
        assert_same_values_as(backend, F, exact().factor(backend.move(A)))


def test_one_sweep_less_is_not_enough(backend):
    A = gallery.bidiagonal(12)
    A = sp.csr_matrix(A + sp.diags([-0.4 * np.ones(11)], [1]))  # one chain of 12 pivots
    exact = fetched(backend, ILU0().factor(backend.move(A)))[1].diagonal()
    for sweeps, same in ((depth(A) - 3, False), (depth(A), True)):
        made = fetched(backend, ParILU(sweeps=sweeps).factor(backend.move(A)))[1].diagonal()
        assert np.allclose(made, exact, rtol=1e-15, atol=0) == same


@BOTH
@PATTERNS
@given(data=st.data())
def test_any_pattern_converges(backend, Recipe, data):
    A = data.draw(dominant_matrices(hermitian=Recipe is ParIC))
    exact = {ParILU: ILU0, ParIC: IC0}[Recipe]
    for ordering in (None, "rcm"):
        F = Recipe(sweeps=3 * A.shape[0], ordering=ordering).factor(backend.move(A))
        assert_same_values_as(backend, F, exact().factor(backend.move(permuted(backend, A, F))))


@pytest.mark.parametrize("name", ["of_pitzDaily_p", "orsirr_1", "cage10"])
def test_real_matrices(backend, name):
    A = real_matrix(name)
    F = ParILU(sweeps=200).factor(backend.move(A))
    assert pattern_residual(backend, A, F) < 1e-12


# By twin


@BOTH
@pytest.mark.parametrize("pivots", ["old", "new"])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("damping", [1.0, 0.75])
def test_the_sweeps_are_those_of_the_reference(backend, Recipe, dtype, pivots, damping):
    A = in_dtype(gallery.poisson27(3, 4, 3), dtype)
    F = Recipe(sweeps=3, pivots=pivots, scale=False, damping=damping).factor(backend.move(A))
    assert F.report["damping"] == damping
    B = as_csr(A) if Recipe is ParILU else lower_triangle(as_csr(A))[0]
    columns = None if Recipe is ParILU else reference.pattern.columns_of(B)
    rows = np.repeat(np.arange(B.n), np.diff(B.indptr))
    pivot = B.data[B.diag] if Recipe is ParILU else np.sqrt(B.data[B.diag].real)
    made = B.with_values(np.where(B.indices < rows, B.data / pivot[B.indices], B.data))
    if Recipe is ParIC:
        made.data[B.diag] = pivot
    squares, refused = np.empty(B.n), np.array([0, 2**62])
    for _ in range(3):
        for part in ("upper", "lower") if pivots == "new" else ("whole",):
            out = np.empty_like(B.data)
            reference.sweeps.sweep(B, made, out, squares, refused, columns, damping, part)
            made = made.with_values(out)
    got = backend.fetch(F.L) if Recipe is ParIC else backend.fetch(F.L) + backend.fetch(F.U) - sp.identity(B.n, dtype)
    got = sp.csr_matrix(got)
    got.sort_indices()
    np.testing.assert_array_equal(got.indices, B.indices)
    assert_close(got.data, made.data, 32)


# Determinism


@BOTH
@pytest.mark.parametrize("pivots", ["old", "new"])
def test_the_bits_are_the_same_on_any_number_of_threads_and_in_every_run(Recipe, pivots, threads, small_blocks):
    for A in (gallery.poisson7(9), long_rows(300) if Recipe is ParILU else gallery.anisotropic_triangles(3)):
        made = []
        for count in (1, 2, 4, 2):
            threads(count)
            F = Recipe(pivots=pivots, track=True).factor(A)
            made.append((F.L.data, F.U.data, np.array(F.report["residual_norms"])))
        for other in made[1:]:
            for mine, theirs in zip(made[0], other, strict=True):
                np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("Recipe", [ParILU, ParIC, ParILUT, ParICT])
def test_every_run_gives_the_same_bits(backend, Recipe):
    A = backend.move(gallery.poisson7(12))
    made = [fetched(backend, Recipe().factor(A)) for _ in range(3)]
    for other in made[1:]:
        for mine, theirs in zip(made[0], other, strict=True):
            np.testing.assert_array_equal(mine.indices, theirs.indices)
            np.testing.assert_array_equal(mine.data, theirs.data)


@BOTH
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_asynchronous_sweeps_converge(backend, Recipe, dtype, threads, small_blocks):
    threads(4)
    exact = {ParILU: ILU0, ParIC: IC0}[Recipe]
    for A in (gallery.poisson7(7), in_dtype(gallery.poisson27(5), dtype), gallery.anisotropic_triangles(2)):
        F = Recipe(asynchronous=True, sweeps=200).factor(backend.move(A))
        assert_same_values_as(backend, F, exact().factor(backend.move(A)))
        assert F.report["variant"] == "asynchronous" and F.report["residual_norms"] == []
        F = Recipe(asynchronous=True).factor(backend.move(A))
        assert pattern_residual(backend, A, F) < 0.02


def test_one_asynchronous_sweep_of_one_thread_is_the_factorization(threads):
    threads(1)
    A = gallery.anisotropic_triangles(3)
    for Recipe, exact in ((ParILU, ILU0), (ParIC, IC0)):
        one = pattern_residual_of(A, Recipe(sweeps=1, asynchronous=True).factor(A))
        assert one < 1e-15 < 1e-3 < pattern_residual_of(A, Recipe(sweeps=1).factor(A))
        assert exact().factor(A).nnz == Recipe(sweeps=1, asynchronous=True).factor(A).nnz


def pattern_residual_of(A, F):
    return pattern_residual(Backend("cpu"), A, F)


# The effect of each parameter


@BOTH
def test_more_sweeps_bring_it_nearer(backend, Recipe):
    A = gallery.anisotropic_triangles(3)
    errors = [pattern_residual(backend, A, Recipe(sweeps=s).factor(backend.move(A))) for s in (0, 1, 3, 9, 27)]
    assert all(a > 1.5 * b for a, b in pairwise(errors))


@BOTH
def test_without_sweeps_it_is_a_itself(backend, Recipe):
    A = gallery.poisson7(4)
    F = Recipe(sweeps=0).factor(backend.move(A))
    L, U = fetched(backend, F)
    D = np.sqrt(6) if Recipe is ParIC else 1.0
    assert_close(U.toarray(), sp.triu(A).toarray() / D, 4)
    assert_close(L.toarray(), sp.tril(A).toarray() * D / 6, 4)


@BOTH
def test_level_extends_the_pattern_to_that_of_iluk(backend, Recipe):
    A = gallery.anisotropic_triangles(2)
    for level in (1, 2):
        for ordering in (None, "rcm"):
            F = Recipe(level=level, sweeps=300, ordering=ordering).factor(backend.move(A))
            G = fl.ILUK(level=level).factor(backend.move(permuted(backend, A, F)))
            L, U = fetched(backend, F)
            if Recipe is ParILU:
                assert_same_values_as(backend, F, G)
            else:
                D = sp.diags(L.diagonal())
                assert_close((D @ U).toarray(), fetched(backend, G)[1].toarray(), 256)
            assert F.nnz == (G.nnz if Recipe is ParILU else (G.nnz + A.shape[0]) // 2)


@BOTH
def test_track_reports_the_residual_before_the_first_and_after_each_sweep(backend, Recipe):
    A = gallery.anisotropic_triangles(2)  # of unit diagonal, so that B = A
    made = [Recipe(sweeps=s).factor(backend.move(A)) for s in range(5)]
    F = Recipe(sweeps=4, track=True).factor(backend.move(A))
    norms = F.report["residual_norms"]
    ones = A.copy()
    ones.data[:] = 1
    want = []
    for G in made:
        L, U = fetched(backend, G)
        want.append(sp.linalg.norm((A - L @ U).multiply(ones)) / sp.linalg.norm(A))
    np.testing.assert_allclose(norms, want, rtol=1e-6)
    np.testing.assert_array_equal(backend.fetch(F.U.data), backend.fetch(made[4].U.data))
    np.testing.assert_allclose(made[4].report["residual_norms"], [norms[0], norms[4]], rtol=1e-12)
    assert len(made[1].report["residual_norms"]) == 2 and made[0].report["residual_norms"] == norms[:1]
    assert Recipe(sweeps=0, track=True).factor(backend.move(A)).report["residual_norms"] == norms[:1]


def tridiagonal_that_grows():
    return gallery.tridiagonal(50, lower=-1.6, diagonal=1.0, upper=-1.6)


def test_where_undamped_sweeps_grow_they_are_damped(backend):
    A = tridiagonal_that_grows()
    undamped = []
    F = ParILU(sweeps=8, track=True).factor(backend.move(A))
    assert F.report["damping"] == 0.5 and F.report["residual_norms"][7] < F.report["residual_norms"][0]
    G = ParILU(sweeps=8, damping=0.5).factor(backend.move(A))
    np.testing.assert_array_equal(backend.fetch(F.U.data), backend.fetch(G.U.data))
    B = as_csr(A)  # what it would have been
    X = B
    for _ in range(8):
        out, squares = np.empty_like(B.data), np.empty(B.n)
        reference.sweeps.sweep(B, X, out, squares, np.array([0, 2**62]))
        undamped.append(squares.sum() ** 0.5)
        X = X.with_values(out)
    assert undamped[-1] > undamped[0]


def test_growth_over_a_single_sweep_is_seen(backend):
    A = gallery.tridiagonal(50, lower=-3.0, diagonal=1.0, upper=-3.0)
    F = ParILU(sweeps=1).factor(backend.move(A))
    norms = F.report["residual_norms"]
    assert F.report["damping"] < 1 and (len(norms) == 1 or norms[-1] <= norms[0])


def test_where_every_damping_grows_the_initial_values_are_taken_and_it_is_said(backend):
    A = gallery.random_dominant(30, 1.0, 0)
    A = sp.csr_matrix(A.toarray() * (1 - np.eye(30)) * 8 + np.eye(30))
    with np.errstate(all="ignore"):
        F = ParILU(sweeps=7).factor(backend.move(A))
    assert F.report["damping"] == 0 and len(F.report["residual_norms"]) == 1
    assert "residual grew" in F.report["warning"] and "damping=0.0625" in F.report["warning"]
    assert F.report["refused"] == 0
    assert_close(fetched(backend, F)[1].toarray(), np.triu(A.toarray()), 4)
    F.update(backend.move(sp.csr_matrix(np.eye(30) + A.toarray() * 1e-3)))
    assert F.report["damping"] == 1 and "warning" not in F.report


def test_damping_takes_part_of_each_update(backend):
    A = gallery.poisson5(6)
    U = [fetched(backend, ParILU(sweeps=1, damping=d).factor(backend.move(A)))[1].toarray() for d in (1.0, 0.25)]
    U0 = np.triu(A.toarray())
    assert abs(U[0] - U0).max() > 0.1
    assert_close(U[1], 0.25 * U[0] + 0.75 * U0, 8)


@BOTH
def test_new_pivots_take_fewer_sweeps(backend, Recipe):
    A = gallery.anisotropic_triangles(3)
    old, new = (
        Recipe(pivots=p, track=True).factor(backend.move(A)).report["residual_norms"][-1] for p in ("old", "new")
    )
    assert new < 0.5 * old


@pytest.mark.parametrize("recipe", [ParILU(sweeps=60), ParIC(sweeps=60), ParILUT(), ParICT()], ids=repr)
def test_rcm_orders_the_rows_first(backend, recipe):
    A = gallery.anisotropic_triangles(3, rcm=False)
    F, G = (replace(recipe, ordering=o).factor(backend.move(A)) for o in (None, "rcm"))
    assert F.permutation is None
    np.testing.assert_array_equal(backend.fetch(G.permutation), repeated_rcm(as_csr(A)))
    assert_same_values_as(backend, G, recipe.factor(backend.move(permuted(backend, A, G))), ulps=8)
    assert abs(fetched(backend, F)[1] - fetched(backend, G)[1]).max() > 0.01


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("sign", [1, -1, 1j])
def test_neither_size_nor_sign_of_the_rows_matters(backend, scale, sign):
    A = gallery.convection_diffusion(7, 6, 5, peclet=30)
    d = 10.0 ** np.random.default_rng(0).uniform(-6, 6, A.shape[0])
    B = sp.csr_matrix(sp.diags(sign * d) @ A)
    assert pattern_residual(backend, B, ParILU(scale=scale).factor(backend.move(B))) < 1e-3
    assert pattern_residual(backend, B, ParILU(scale=scale, sweeps=60).factor(backend.move(B))) < 4e-16


def test_scale_weighs_the_residual(backend):
    A = gallery.convection_diffusion(7, 6, 5, peclet=30)
    d = 10.0 ** np.random.default_rng(0).uniform(-2, 2, A.shape[0])
    norms = [
        ParILU(scale=scale)
        .factor(backend.move(sp.csr_matrix(sp.diags(s) @ A @ sp.diags(s))))
        .report["residual_norms"][0]
        for s in (d, np.ones(d.size))
        for scale in (True, False)
    ]
    assert norms[0] == pytest.approx(norms[2], rel=1e-9) == pytest.approx(norms[3], rel=1e-9)
    assert abs(norms[1] / norms[3] - 1) > 0.05


def test_shift_makes_factors_where_there_are_none(backend):
    F = ParIC(shift=1.0, sweeps=60).factor(backend.move(KERSHAW))
    assert F.report["refused"] == 0 and "warning" not in F.report
    assert_same_values_as(backend, F, IC0(shift=1.0).factor(backend.move(KERSHAW)))


# Breakdown


@pytest.mark.parametrize("ordering", [None, "rcm"])
def test_a_zero_on_the_diagonal_is_named_with_its_row(backend, ordering):
    A = gallery.poisson5(5).copy()
    A[17, 17] = 0
    with pytest.raises(ZeroPivot, match="the pivot of row 17 is") as error:
        ParILU(ordering=ordering).factor(backend.move(A))
    assert error.value.row == 17 and "shift" in one_line(error)
    A[17, 17] = -4
    with pytest.raises(ZeroPivot, match=r"row 17 .*not a positive number"):
        ParIC(ordering=ordering).factor(backend.move(A))
    F = ParILU(ordering=ordering, shift=1e-3).factor(backend.move(A))
    assert np.isfinite(backend.fetch(F.U.data)).all()


@pytest.mark.parametrize("options", [{}, {"pivots": "new"}, {"asynchronous": True}], ids=str)
def test_refused_updates_are_counted_and_named_with_their_row(backend, options):
    A = sp.csr_matrix(sp.block_diag([gallery.poisson5(3), ONES]))
    F = ParILU(**options).factor(backend.move(A))
    assert F.report["refused"] == 5 and F.report["refused_row"] == 10
    assert "5 updates were refused, the first in row 10" in F.report["warning"] and "shift" in F.report["warning"]
    assert np.isfinite(backend.fetch(F.solve(backend.move(np.ones(11))))).all()
    F = ParIC(**options).factor(backend.move(KERSHAW))
    assert F.report["refused"] > 0 and F.report["refused_row"] == 3 and "not positive" in F.report["warning"]
    assert np.isfinite(backend.fetch(F.solve(backend.move(np.ones(4))))).all()
    F.update(backend.move(sp.csr_matrix(KERSHAW + sp.diags(3 * np.ones(4)))))
    assert F.report["refused"] == 0 and not {"refused_row", "warning"} & set(F.report)


def test_the_row_of_a_refused_update_is_that_of_a_whatever_the_order(backend):
    A = sp.csr_matrix(sp.block_diag([KERSHAW, gallery.tridiagonal(9, diagonal=4.0)]))
    F = ParIC(ordering="rcm").factor(backend.move(A))
    assert F.report["refused"] > 0 and F.report["refused_row"] < 4


@pytest.mark.parametrize("asynchronous", [False, True])
def test_where_the_scaling_overflows_there_are_no_factors(backend, asynchronous):
    A = sp.csr_matrix(np.array([[1.0, 0, 0], [0, 1e-320, 1], [0, 1, 1e-320]]))
    with refused(ZeroPivot, match=r"row 1 .*not finite"), np.errstate(all="ignore"):
        ParILU(asynchronous=asynchronous).factor(backend.move(A))


# By behaviour


@BOTH
def test_the_krylov_methods_take_about_as_many_iterations_as_with_the_exact_factors(backend, Recipe):
    A = gallery.poisson7(14)
    b = backend.move(values(A.shape[0], "float64"))
    method, exact = (fl.gmres, ILU0) if Recipe is ParILU else (fl.cg, IC0)
    A = backend.move(A)
    needed = [method(A, b, M=R.factor(A), rtol=1e-8) for R in (Recipe(), exact())]
    assert all(solution.converged for solution in needed)
    assert needed[0].iterations <= 1.1 * needed[1].iterations
    assert needed[0].iterations < 0.6 * method(A, b, rtol=1e-8).iterations


def test_an_int64_matrix_gives_the_same_factors(backend):
    A = gallery.anisotropic_triangles(2)
    F, G = (ParILU(ordering="rcm", level=1).factor(with_index(A, index)) for index in (np.int32, np.int64))
    assert G.L.nnz == F.L.nnz
    np.testing.assert_array_equal(F.U.data, G.U.data)


# By bad input


@BOTH
def test_an_update_of_asynchronous_factors_is_looked_at_too(backend, Recipe):
    A = gallery.poisson5(12, 11)
    F = Recipe(sweeps=0, asynchronous=True).factor(backend.move(sp.csr_matrix(A + 1000 * sp.eye(A.shape[0]))))
    assert F.report["pattern_residual"] < 1e-3 and "warning" not in F.report
    F.update(backend.move(A))
    assert F.report["pattern_residual"] > 1e-2 and "Factor A anew" in F.report["warning"]
    F = Recipe(asynchronous=True).factor(backend.move(A))
    assert F.report["pattern_residual"] < 0.05


@BOTH
def test_an_update_whose_residual_is_much_worse_warns(backend, Recipe):
    A = gallery.poisson5(12, 11)
    F = Recipe(sweeps=2).factor(backend.move(sp.csr_matrix(A + 40 * sp.eye(A.shape[0]))))
    assert F.report["pattern_residual"] == F.report["residual_norms"][-1] < 1e-3
    F.update(backend.move(sp.csr_matrix(A - 1e-3 * sp.eye(A.shape[0]))))
    assert F.report["pattern_residual"] > 1e-2 and "Factor A anew" in F.report["warning"]
