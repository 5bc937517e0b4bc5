"""Factors that are of no use say so, and MultilevelILU then goes without its matching."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import in_dtype, values
from conftest import real_matrix

import finelu as fl
from finelu import ICT, ILUT, MultilevelILU, SparseLU, gallery, krylov
from finelu.errors import NoFactors, StructurallySingular, TooManyEntries, UnstableFactors
from finelu.factors import trial_residual
from finelu.factors.base import reduction, trial, trial_vector
from finelu.matrix import as_csr
from finelu.preconditioners.multilevel import factors as multilevel
from finelu.preconditioners.multilevel import variants
from finelu.scaling import matching

TRIED = pytest.mark.parametrize("recipe", [MultilevelILU(dense_size=10), ILUT(), ICT(), SparseLU()], ids=repr)


@TRIED
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_the_probe_is_the_residual_for_a_vector(backend, recipe, dtype):
    A = in_dtype(gallery.poisson5(12, 11), dtype)
    C = as_csr(backend.move(A))
    F = recipe.factor(C)
    assert 0 <= F.report["trial_residual"] < 0.1 and "warning" not in F.report
    seen = []

    def apply(v):
        seen.append(v)
        return F.solve(v)

    found, finite = trial_residual(C, apply)
    np.testing.assert_allclose(F.report["trial_residual"], found, rtol=0.1, atol=50 * np.finfo(dtype).eps)
    assert finite
    v, x = backend.fetch(seen[0]), backend.fetch(F.solve(seen[0]))
    want = np.linalg.norm(A @ x - v) / np.linalg.norm(v)  # all rows of A are of one size
    np.testing.assert_allclose(F.report["trial_residual"], want, rtol=0.1, atol=50 * np.finfo(dtype).eps)


@TRIED
@pytest.mark.parametrize("scale", [1e-290, 1.0, 1e300])
def test_the_probe_does_not_depend_on_the_size_of_the_entries(recipe, scale):
    A = gallery.poisson5(12, 11)
    np.testing.assert_allclose(
        recipe.factor(A * scale).report["trial_residual"],
        recipe.factor(A).report["trial_residual"],
        rtol=1e-3,
        atol=1e-14,
    )


@pytest.mark.parametrize("recipe", [ILUT(), SparseLU(), MultilevelILU(dense_size=1)], ids=repr)
def test_numbers_of_any_range_are_not_called_unstable(recipe):
    d = np.logspace(-200, 200, 30)
    F = recipe.factor(sp.diags(d).tocsr())
    assert F.report["trial_residual"] < 1e-12


def growing(n):
    """L U with a U whose inverse grows like 3^n, and no small pivot."""
    return sp.csr_matrix(sp.eye(n) + 3.0 * sp.eye(n, k=1) + 1e-3 * sp.eye(n, k=-1))


def test_an_inverse_that_is_not_finite_is_an_error_that_says_so():
    A = growing(1200)
    with pytest.raises(UnstableFactors, match="unstable: M\\^-1 v is not finite"):
        ILUT(drop_tol=0.5).factor(A * np.float64(1))
    F = ILUT().factor(sp.csr_matrix(sp.eye(1200) + 1e-3 * sp.eye(1200, k=-1) + 1e-3 * sp.eye(1200, k=1)))
    assert F.report["trial_residual"] < 1e-2


def test_a_matching_does_not_run_through_rounding_where_it_need_not():
    rng = np.random.default_rng(5)
    A = np.where(rng.random((30, 30)) < 0.2, rng.uniform(1, 2, (30, 30)), 0.0)
    order = rng.permutation(30)
    A[np.arange(30), order] = 1e-3  # small, but no rounding: the only matching without what follows
    noisy = A.copy()
    noisy[(A == 0) & (rng.random((30, 30)) < 0.5)] = 1e-17
    m = matching(sp.csr_matrix(noisy))
    assert (noisy[np.arange(30), m.columns] >= 1e-3).all()
    # entries that are small because their row and column are, count: D A D has the matching of A
    d, e = 10.0 ** rng.uniform(-12, 12, (2, 30))
    np.testing.assert_array_equal(
        matching(sp.csr_matrix(d[:, None] * A * e)).columns, matching(sp.csr_matrix(A)).columns
    )


def test_a_matching_through_rounding_is_taken_where_there_is_no_other():
    A = np.array([[1.0, 1.0, 0], [1e-16, 1e-16, 1.0], [1.0, 0, 0]])
    A[1, 2], A[2, 2] = 0.0, 1.0
    A = sp.csr_matrix(np.array([[1.0, 1.0], [1.0, 1.0]]) - np.array([[0, 0], [0, 1.0 - 1e-16]]))
    m = matching(A)
    assert sorted(m.columns) == [0, 1]


def test_fidapex6_is_solved_by_multilevel_factors():
    A = real_matrix("fidapex6")
    b = A @ np.ones(A.shape[0])
    F = MultilevelILU().factor(A)
    assert (
        F.report["trial_residual"] < 0.1
        and F.report["matching"] is False
        and "without the matching and drop_tol=0.001, which" in F.report["warning"]
    )
    solution = krylov.gmres(A, b, M=F)
    assert solution.converged and solution.iterations <= 6
    F.update(A)
    assert F.report["trial_residual"] < 0.1
    assert MultilevelILU(matching=False).factor(A).report["trial_residual"] == F.report["trial_residual"]
    assert fl.solve(A, b).converged


def test_factors_of_no_use_have_a_warning():
    F = SparseLU().factor(real_matrix("fidapex6"))
    assert F.report["trial_residual"] > 10 and "unstable" in F.report["warning"]


def test_only_what_is_not_finite_in_the_inverse_is_an_error(backend):
    C = as_csr(backend.move(sp.csr_matrix(gallery.poisson5(6, 5) * 1e10)))
    for value, want in ((np.nan, False), (np.inf, False), (1e306, True)):  # A x overflows, x does not
        assert trial_residual(C, lambda v, value=value: backend.xp.full_like(v, value)) == (np.inf, want)

    F = ILUT().factor(C)

    class Large(type(F)):
        def _apply(self, R, trans):
            return backend.xp.full_like(R, 1e306)

    F.__class__ = Large
    F.update(C)
    assert F.report["trial_residual"] == np.inf and "||A M^-1 v - v|| is inf ||v||" in F.report["warning"]


@pytest.fixture
def no_complete_factors(monkeypatch):
    """Complete factors cost too much."""
    monkeypatch.setattr(variants, "WORK", 0.0)


@pytest.mark.parametrize("error", [MemoryError, np.linalg.LinAlgError, RecursionError])
def test_the_first_factors_outlive_a_second_try_that_fails(monkeypatch, error):
    A = gallery.poisson5(12, 11)
    want = MultilevelILU(dense_size=10).factor(A)
    made = []

    def fails(self, A):
        made.append((self._variant.matching, self._variant.limits.drop_tol))
        if len(made) > 1:
            self._levels, self._last = [], {}
            raise error("no room" if error is MemoryError else "")
        plain(self, A)

    plain = multilevel.MultilevelFactors._make
    monkeypatch.setattr(multilevel, "USELESS", -1.0)
    monkeypatch.setattr(multilevel, "ENOUGH", -1.0)
    monkeypatch.setattr(multilevel.MultilevelFactors, "_make", fails)
    if error is RecursionError:  # which no factorization raises
        with pytest.raises(RecursionError):
            MultilevelILU(dense_size=10).factor(A)
        return
    F = MultilevelILU(dense_size=10).factor(A)
    assert made == [(True, 1e-3), (True, 0.0), (True, 1e-5), (False, 1e-3), (False, 1e-5)]
    assert F.report["matching"] is True and F.report["drop_tol"] == 1e-3
    assert "without the matching and drop_tol=0.001 there are none: " in F.report["warning"]
    assert "with the matching and drop_tol=0 there are none: " in F.report["warning"]
    assert "with the matching and drop_tol=1e-05 there are none: " in F.report["warning"]
    assert ("no room" if error is MemoryError else "LinAlgError") in F.report["warning"]
    b = np.ones(A.shape[0])
    np.testing.assert_array_equal(F.solve(b), want.solve(b))


POOR = pytest.mark.parametrize(
    "name",
    [
        "hypre_ams_mfem_A",
        "lp_stocfor3_aug",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("ccx_rotor", "ng_maxwell_eddy")),
    ],
)


@POOR
def test_poor_factors_are_made_again_completely(name):
    A = real_matrix(name)
    F = MultilevelILU().factor(A)
    assert F.report["drop_tol"] == 0 and F.report["trial_residual"] < 1e-6
    assert "20 steps of GMRES left" in F.report["warning"]
    assert "drop_tol=0, which were taken" in F.report["warning"]
    solution = krylov.gmres(A, A @ values(A.shape[0], "float64"), M=F)
    assert solution.converged and solution.iterations <= 3


@POOR
def test_poor_factors_are_made_again_with_a_smaller_drop_tol(no_complete_factors, name):
    A = real_matrix(name)
    b = A @ values(A.shape[0], "float64")
    F = MultilevelILU().factor(A)
    assert F.report["drop_tol"] == 1e-5 and F.report["trial_residual"] < 0.2
    assert "20 steps of GMRES left" in F.report["warning"]
    assert "drop_tol=1e-05, which were taken" in F.report["warning"]
    solution = krylov.gmres(A, b, M=F)
    assert solution.converged and solution.iterations <= 40


@pytest.mark.parametrize("low_memory", [True, False])
@pytest.mark.parametrize(("name", "slow"), [("ccx_rotor", True), ("hypre_ams_mfem_A", True), ("lp_dfl001_aat", False)])
def test_what_gmres_would_be_slow_with_is_told_from_what_it_would_not(name, slow, low_memory):
    A = real_matrix(name)
    F = MultilevelILU(drop_tol=1e-3, low_memory=low_memory).factor(A)
    left = reduction(as_csr(A, diagonal=False), F.solve, multilevel.STEPS, multilevel.ENOUGH)
    assert (left > multilevel.ENOUGH) == slow


def test_the_reduction_is_that_of_gmres(backend):
    A = backend.move(gallery.convection_diffusion(5))
    M = as_csr(A, diagonal=False)
    v = A @ trial_vector(M)
    for steps in (1, 4, 9):
        residual = krylov.gmres(A, v, restart=steps, maxiter=steps, rtol=0).history[-1]
        left = reduction(M, lambda r: r.copy(), steps, 0.0)
        assert left == pytest.approx(float(residual / abs(v @ v) ** 0.5), rel=1e-6)
        known = reduction(M, lambda r: r.copy(), steps, 0.0, trial(M, lambda r: r.copy()))
        assert known == pytest.approx(left, rel=1e-9)
    calls = []
    reduction(M, lambda r: calls.append(r) or r.copy(), 4, 0.0, trial(M, lambda r: r.copy()))
    assert len(calls) == 3
    assert reduction(M, lambda r: r * np.nan, 5, 0.0) == np.inf
    blocks = [np.array([[0, d], [-d, 0]]) for d in (1.0, 2.0)]  # for which residuals of GCR do not change at first
    assert (
        reduction(as_csr(backend.move(sp.block_diag(blocks, format="csr")), diagonal=False), lambda r: r, 4, 0.0)
        < 1e-12
    )
    assert reduction(as_csr(sp.csr_matrix((3, 3)), diagonal=False), lambda r: r, 5, 0.0) == 0


def test_the_next_values_begin_in_the_way_of_the_last(monkeypatch):
    monkeypatch.setattr(multilevel, "STEPS", 1)
    monkeypatch.setattr(multilevel, "ENOUGH", 1e-5)
    A, made = sp.csr_matrix(gallery.poisson5(31, 33)), []
    plain = multilevel.MultilevelFactors._make
    monkeypatch.setattr(
        multilevel.MultilevelFactors, "_make", lambda F, A: made.append(F._variant.limits.drop_tol) or plain(F, A)
    )
    F = MultilevelILU(dense_size=10).factor(A)
    assert made == [1e-3, 0.0] and F.report["trial_residual"] < 1e-6
    F.update(sp.csr_matrix(2 * A))
    assert made[2:] == [0.0] and "warning" not in F.report


def test_where_the_next_values_have_no_such_complete_factors_others_are_made():
    A, rng = gallery.navier_stokes(16), np.random.default_rng(0)
    B, C, D = A.copy(), A.copy(), A.copy()
    B.data = rng.standard_normal(A.nnz)
    C.data = A.data * np.exp(3 * rng.standard_normal(A.nnz))
    D.data[D.indptr[7] : D.indptr[8]] = 0
    F, want = MultilevelILU().factor(B), MultilevelILU().factor(C)
    assert F.report["drop_tol"] == 0 and want.report["drop_tol"] == 1e-3
    F.update(C)  # pivots deferred, its complete factors have more entries than those of B may have
    assert F.report["drop_tol"] == 1e-3 and F.report["matching"] is True
    text = F.report["warning"]
    assert "without the matching and drop_tol=0 there are no factors: " in text and "more than" in text
    assert "those with the matching and drop_tol=0.001 were taken" in text
    b = A @ values(A.shape[0], "float64")
    np.testing.assert_array_equal(F.solve(b), want.solve(b))
    F.update(B)
    assert F.report["drop_tol"] == 0
    with pytest.raises(StructurallySingular, match="row 7"):  # as all others
        F.update(D)
    with pytest.raises(NoFactors):
        F.solve(b)
    F.update(C)
    np.testing.assert_array_equal(F.solve(b), want.solve(b))


def test_a_dense_rest_is_left_for_complete_factors(monkeypatch):
    A = gallery.navier_stokes(20, 1000.0)
    b = A @ values(A.shape[0], "float64")
    F = MultilevelILU().factor(A)
    assert F.report["drop_tol"] == 0 and F.report["matching"] is False and F.report["fill"] < 8
    assert "densely coupled, and complete factors of A take less work" in F.report["warning"]
    solution = krylov.gmres(A, b, M=F)
    assert solution.converged and solution.iterations <= 3
    plain = MultilevelILU(drop_tol=1e-3).factor(A)  # what the caller has set is kept
    assert plain.report["drop_tol"] == 1e-3
    monkeypatch.setattr(variants, "DEFERRING", 0.01)  # complete factors then have too many entries
    F = MultilevelILU().factor(A)
    assert F.report["drop_tol"] > 0 and "drop_tol=0 there are none: " in F.report["warning"]
    solution = krylov.gmres(A, b, M=F)
    assert solution.converged


def test_too_many_entries_are_left_for_complete_factors(monkeypatch, no_complete_factors):
    A = gallery.navier_stokes(20, 1000.0)
    monkeypatch.setattr(multilevel, "FEW_ENTRIES", 0)
    monkeypatch.setattr(multilevel, "ROOM", 11)
    with pytest.raises(TooManyEntries, match="11 for each of A"):
        MultilevelILU().factor(A)
    monkeypatch.setattr(variants, "WORK", 20_000.0)
    monkeypatch.setattr(multilevel.MultilevelFactors, "_require_fewer", lambda F, A, rest: None)
    F = MultilevelILU().factor(A)
    assert F.report["drop_tol"] == 0 and "would have more than" in F.report["warning"]
    monkeypatch.setattr(variants, "DEFERRING", 0.01)
    with pytest.raises(TooManyEntries, match="11 for each of A"):
        MultilevelILU().factor(A)


@pytest.mark.parametrize("given", [{"drop_tol": 1e-3}, {"drop_tol": 1e-3, "fill": 10.0}, {"fill": 5.0}])
def test_what_is_kept_is_what_was_asked_for(given):
    ways = [(way.limits.drop_tol, way.limits.fill) for way in variants.variants_of(MultilevelILU(**given))]
    fill = given.get("fill", 10.0)
    assert ways == ([(1e-3, fill)] * 2 if "drop_tol" in given else [(1e-3, fill), (1e-5, fill)] * 2)


def test_factors_that_may_find_no_room_are_not_tried(monkeypatch, no_complete_factors):
    monkeypatch.setattr(multilevel, "ENOUGH", -1.0)
    monkeypatch.setattr(multilevel, "ROOM", 1e30)
    F = MultilevelILU().factor(gallery.poisson5(40, 30))
    assert F.report["drop_tol"] == 1e-3
    text = "; with the matching and drop_tol=1e-05 there are none: factors with a smaller drop_tol take "
    assert text in F.report["warning"]
    fixed = MultilevelILU(drop_tol=1e-5, fill=100.0).factor(gallery.poisson5(40, 30))  # which asks for no room
    assert fixed.report["drop_tol"] == 1e-5 and "there are none" not in fixed.report.get("warning", "")


def test_errors_of_unstable_factors_name_the_recipe_that_was_given():
    with pytest.raises(UnstableFactors) as error:
        fl.spilu(growing(1200), drop_tol=0.5, diag_pivot_thresh=0)
    text = str(error.value)
    assert text.startswith("MatchedILUT(drop_tol=0.5, matching=False): the factors are unstable")
    assert "fill_factor" in text


def test_its_errors_are_names_of_the_package():
    for name in ("SingularMatrix", "StructurallySingular", "UnstableFactors"):
        assert getattr(fl, name) is getattr(fl.errors, name) and name in fl.__all__


@pytest.mark.parametrize("power_of_two", [False, True])
def test_no_scaled_entry_exceeds_one_though_the_matching_leaves_out_rounding(power_of_two):
    A = np.diag([1e-10] * 4 + [1.0] * 2)
    A[[0, 1, 2, 3, 4], [1, 2, 3, 5, 0]] = 1
    A[3, 0] = 1e-17  # rounding of its row and of its column
    m = matching(sp.csr_matrix(A), power_of_two=power_of_two)
    np.testing.assert_array_equal(m.columns, np.arange(6))  # the only one without A[3, 0]
    scaled = m.row_scale[:, None] * A * m.column_scale
    assert 0.2 < scaled.max() <= 1 + 1e-12
