"""ILUT by rows and in Crout's form: by definition, by limit, by twin, by effect, by behaviour, by bad input."""

import itertools
import json

import numpy as np
import pytest
import scipy.sparse as sp
from checks import (
    DTYPES,
    IN_TYPES,
    PATTERNS,
    assert_close,
    compared,
    dominant_matrices,
    fetched,
    full,
    in_dtype,
    iterations,
    long_rows,
    longest_chain,
    one_line,
    refused,
    values,
    with_index,
)
from conftest import real_matrix
from hypothesis import given
from hypothesis import strategies as st

import finelu as fl
from finelu import ILU0, ILUT, ZeroPivot, gallery
from finelu.cli import main
from finelu.kernels import cpu, reference
from finelu.kernels.cpu.runtime.sort import kth_largest, pop, push, sort, strongest
from finelu.matrix import CSR, as_csr, lower_triangle
from finelu.preconditioners.threshold import column_norms, row_norms

FORMS = ("row", "crout")
UNLIMITED = 2**62
SPREAD = ("poisson7:5,4,3", "convection_diffusion:8,7,1,peclet=50", "arrow:70", "random_dominant:60,0.08,3")
NEVER = float("inf")


def assembled(A, L, U, form):
    """L + U - I of the reference, whose L is by rows or by columns, as a csr_matrix."""
    n = A.n
    lower = [(i, j, v) for i, row in enumerate(L) for j, v in row.items()]
    if form == "crout":
        lower = [(i, j, v) for j, i, v in lower]
    i, j, v = zip(*lower, *((i, j, v) for i, row in enumerate(U) for j, v in row.items()))
    return sp.csr_matrix((np.array(v, A.dtype), (i, j)), shape=(n, n))


def by_reference(A, drop_tol, fill, form):
    A = as_csr(A)
    rows = drop_tol * row_norms(A)
    if form == "row":
        L, U = reference.threshold.ilut(A, rows, fill)
    else:
        L, U = reference.threshold.ilut_crout(A, rows, drop_tol * column_norms(A), fill)
    assert len(U) == A.n
    return assembled(A, L, U, form)


def by_kernel(A, drop_tol, fill, form):
    A = as_csr(A)
    rows = drop_tol * row_norms(A)
    if form == "row":
        made = cpu.threshold.ilut(A, rows, fill, UNLIMITED)
    else:
        made = cpu.threshold.ilut_crout(A, rows, drop_tol * column_norms(A), fill, UNLIMITED)
    assert made.rows == A.n and made.stored == made.indptr[-1] == made.indices.size == made.data.size
    np.testing.assert_array_equal(made.indices[made.diag], np.arange(A.n))
    return made


def assert_same_bits(made, want):
    want = sp.csr_matrix(want)
    want.sort_indices()
    np.testing.assert_array_equal(made.indptr, want.indptr)
    np.testing.assert_array_equal(made.indices, want.indices)
    assert made.data.dtype == want.dtype
    np.testing.assert_array_equal(made.data, want.data)


# By definition


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("problem", gallery.small(), ids=str)
def test_l_u_is_near_a_by_what_was_dropped(backend, problem, form):
    A, drop_tol = problem.A, 0.02
    L, U = fetched(backend, ILUT(drop_tol=drop_tol, fill=NEVER, form=form).factor(backend.move(A)))
    np.testing.assert_array_equal(L.diagonal(), np.ones(A.shape[0]))
    assert sp.triu(L, 1).nnz == sp.tril(U, -1).nnz == 0
    rows, columns = row_norms(as_csr(A)), column_norms(as_csr(A))
    off = abs(sp.triu(U, 1, format="csr"))
    assert (off.data > drop_tol * np.repeat(rows, np.diff(off.indptr)) * (1 - 1e-5)).all()
    # (L U - A)_ij sums at most what was dropped at (i, j): once in U, once in L before the division
    bound = drop_tol * (np.maximum.outer(rows, columns) if form == "crout" else np.outer(rows, np.ones(A.shape[0])))
    noise = 64 * np.finfo(A.dtype).eps * (abs(L) @ abs(U)).toarray()
    assert (abs((L @ U - A).toarray()) <= bound * (1 + 1e-5) + noise).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("fill", [0.5, 1.0, 2.0])
def test_no_part_of_a_row_is_longer_than_fill_allows(form, fill):
    A = gallery.random_dominant(200, 0.03, 5)
    F = ILUT(drop_tol=0.0, fill=fill, form=form).factor(A)
    lower, upper = sp.tril(A, -1, format="csr"), sp.triu(A, 1, format="csr")
    L, U = sp.tril(F.L, -1, format="csr"), sp.triu(F.U, 1, format="csr")
    if form == "crout":
        lower, L = lower.tocsc(), L.tocsc()
    for part, own in ((L, lower), (U, upper)):
        most = np.maximum(1, (fill * np.diff(own.indptr)).astype(int))
        length = np.diff(part.indptr)
        assert (length <= most).all() and (length == most).sum() > 100
    assert F.nnz == L.nnz + U.nnz + 200 == F.report["nnz"]


def test_of_a_row_the_largest_are_kept():
    A = sp.csr_matrix(
        np.array([[4.0, 1, -3, 2, 2], [0, 1, 0, 0, 0], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 1]])
    )
    for fill, kept in ((0.3, [0, 2]), (0.5, [0, 2, 3]), (0.75, [0, 2, 3, 4]), (1.0, [0, 1, 2, 3, 4])):
        for form in FORMS:
            U = ILUT(drop_tol=0.0, fill=fill, form=form).factor(A).U
            np.testing.assert_array_equal(U[0].indices, kept)  # of the equal ones the first


@pytest.mark.parametrize("form", FORMS)
def test_the_threshold_is_relative_to_the_norm_of_the_row(form):
    A = sp.csr_matrix(np.array([[3.0, 0, 4], [0.0, 1, 0], [0, 0, 1]]) * 1e5)  # the norm of row 0 is 5e5
    for drop_tol, kept in ((0.79, 2), (0.81, 1)):
        assert ILUT(drop_tol=drop_tol, form=form).factor(A).U[0].nnz == kept


def test_in_the_lower_part_it_is_what_the_pivot_will_divide_that_counts():
    for pivot in (1e-3, 1.0, 1e3):
        A = sp.csr_matrix(np.array([[pivot, 0.0], [3, 4]]))
        for form, norm in (("row", 5.0), ("crout", np.hypot(pivot, 3))):
            assert ILUT(drop_tol=3 / norm * 0.99, form=form).factor(A).L.nnz == 3
            assert ILUT(drop_tol=3 / norm * 1.01, form=form).factor(A).L.nnz == 2


def test_scaling_the_rows_of_a_changes_nothing_but_the_scale():
    A = gallery.convection_diffusion(9, 8, 7, peclet=30)
    d = 2.0 ** np.random.default_rng(0).integers(-40, 40, A.shape[0])
    F, G = (ILUT(drop_tol=0.03, fill=NEVER).factor(B) for B in (A, sp.csr_matrix(sp.diags(d) @ A)))
    np.testing.assert_array_equal((sp.diags(d) @ F.U).toarray(), G.U.toarray())
    np.testing.assert_array_equal((sp.diags(d) @ F.L @ sp.diags(1 / d)).toarray(), G.L.toarray())


def test_in_crouts_form_a_symmetric_matrix_has_symmetric_factors():
    A = gallery.anisotropic_triangles(3, rcm=False)
    F = ILUT(form="crout", drop_tol=3e-3).factor(A)
    D = sp.diags(F.U.diagonal())
    L, U = (F.L @ D).toarray(), F.U.toarray().T
    np.testing.assert_array_equal(L != 0, U != 0)
    np.testing.assert_allclose(L, U, rtol=1e-6, atol=1e-10)
    assert F.nnz > 1.5 * A.nnz


# By limit


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPREAD)
def test_without_dropping_it_is_the_complete_factorization(backend, name, dtype, form):
    A = in_dtype(gallery.problem(name), dtype)
    L, U = fetched(backend, ILUT(drop_tol=0.0, fill=NEVER, form=form).factor(backend.move(A)))
    assert L.dtype == U.dtype == dtype
    assert_close((L @ U).toarray(), A.toarray(), 64, scale=(abs(L) @ abs(U)).toarray().max())
    dense = A.toarray().astype("complex128" if np.dtype(dtype).kind == "c" else "float64")
    for k in range(len(dense)):  # the complete factors, by their definition
        dense[k + 1 :, k] /= dense[k, k]
        dense[k + 1 :, k + 1 :] -= np.outer(dense[k + 1 :, k], dense[k, k + 1 :])
    assert_close(U.toarray(), np.triu(dense).astype(dtype), 256, scale=abs(dense).max())
    assert_close(L.toarray(), (np.tril(dense, -1) + np.eye(len(dense))).astype(dtype), 256, scale=1.0)


def test_where_there_is_no_fill_and_nothing_small_it_is_ilu0():
    for A in (gallery.tridiagonal(60), gallery.arrow(40), full(20), gallery.bidiagonal(30)):
        F, G = ILUT(drop_tol=0.0).factor(A), ILU0().factor(A)
        np.testing.assert_array_equal((F.L - G.L).toarray(), 0)
        np.testing.assert_array_equal((F.U - G.U).toarray(), 0)


@pytest.mark.parametrize("form", FORMS)
def test_with_a_threshold_of_one_only_the_diagonal_is_left(form):
    A = gallery.poisson7(5)
    F = ILUT(drop_tol=1.0, form=form).factor(A)
    assert F.nnz == 125
    np.testing.assert_array_equal(F.U.diagonal(), A.diagonal())


# By twin: the reference's bits


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("problem", gallery.small(), ids=str)
def test_the_bits_are_those_of_the_reference(problem, form):
    for drop_tol, fill in ((1e-3, 1.0), (1e-2, 10.0)):
        want = by_reference(problem.A, drop_tol, fill, form)
        assert_same_bits(by_kernel(problem.A, drop_tol, fill, form), want)


@IN_TYPES
@pytest.mark.parametrize("form", FORMS)
def test_the_bits_are_those_of_the_reference_in_every_dtype(form, dtype, index):
    for name in SPREAD:
        A = with_index(in_dtype(gallery.problem(name), dtype), index)
        made = by_kernel(A, 1e-2, 1.5, form)
        assert made.indices.dtype == index
        assert_same_bits(made, by_reference(A, 1e-2, 1.5, form))


@PATTERNS
@given(A=dominant_matrices(), drop_tol=st.sampled_from([0.0, 1e-3, 0.05]), fill=st.sampled_from([0.4, 1.0, 3.0, NEVER]))
def test_the_bits_are_those_of_the_reference_for_any_pattern(A, drop_tol, fill):
    for form in FORMS:
        assert_same_bits(by_kernel(A, drop_tol, fill, form), by_reference(A, drop_tol, fill, form))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("A", [full(90), longest_chain(200), long_rows(150)], ids=["full", "chain", "long rows"])
def test_the_bits_are_those_of_the_reference_for_long_rows(A, form):
    for fill in (0.5, NEVER):
        assert_same_bits(by_kernel(A, 1e-4, fill, form), by_reference(A, 1e-4, fill, form))


# The parts of the kernels


@PATTERNS
@given(keys=st.lists(st.integers(0, 30), min_size=1, max_size=60), data=st.data())
def test_sort_heap_and_selection(keys, data):
    keys = np.array(keys, np.int32)
    mine = keys.copy()
    sort(mine, mine.size)
    np.testing.assert_array_equal(mine, np.sort(keys))
    heap, size, taken = np.empty_like(keys), 0, []
    for key in keys:
        size = push(heap, size, key)
    while size:
        taken.append(heap[0])
        size = pop(heap, size)
    np.testing.assert_array_equal(taken, np.sort(keys))
    k = data.draw(st.integers(1, keys.size))
    assert kth_largest(keys.astype(float), keys.size, k) == np.sort(keys)[::-1][k - 1]


@PATTERNS
@given(w=st.lists(st.integers(-6, 6), min_size=1, max_size=50), limit=st.integers(1, 50), tau=st.sampled_from([0, 2.5]))
def test_the_strongest_are_those_of_the_reference_with_many_ties(w, limit, tau):
    w = np.array(w, float)
    columns = np.random.default_rng(limit).permutation(w.size).astype(np.int32)
    kept = strongest(columns, w.size, float(tau), limit, w, np.empty(w.size))
    want = reference.threshold.strongest(dict(enumerate(w)), tau, limit)
    np.testing.assert_array_equal(columns[:kept], list(want))


def test_the_strongest_say_where_one_is_not_finite():
    for bad in (np.nan, np.inf, -np.inf):
        assert strongest(np.arange(3, dtype=np.int32), 3, 0.5, 3, np.array([1.0, bad, 0.0]), np.empty(3)) == -1


def test_norms_of_large_and_small_numbers():
    A = as_csr(sp.csr_matrix(np.array([[3e200, 4e200, 0], [0, 3e-200, 4e-200], [0, 0, 1.0]])))
    np.testing.assert_allclose(row_norms(A), [5e200, 5e-200, 1.0], rtol=1e-15)
    np.testing.assert_allclose(column_norms(A), [3e200, 4e200, 1.0], rtol=1e-15)
    zero = CSR(A.indptr, A.indices, A.data * 0, A.diag)
    np.testing.assert_array_equal(row_norms(zero), 0)


def test_a_kernel_stops_at_the_most_entries_it_may_store():
    A = as_csr(gallery.poisson7(8))
    rows, columns, L = 1e-3 * row_norms(A), 1e-3 * column_norms(A), lower_triangle(A)[0]
    for run in (
        lambda most: cpu.threshold.ilut(A, rows, 10.0, most),
        lambda most: cpu.threshold.ilut_crout(A, rows, columns, 10.0, most),
        lambda most: cpu.threshold.ict(L, 1e-3 * row_norms(L), 10.0, most),
    ):
        whole = run(UNLIMITED)
        assert whole.rows == A.n and run(whole.stored).rows == A.n
        short = run(whole.stored - 1)
        assert short.rows == A.n - 1 and short.stored > whole.stored - 1 and short.data.size == 0
        assert 0 < run(L.nnz).rows < A.n


# The effect of each parameter


@pytest.mark.parametrize("form", FORMS)
def test_a_smaller_threshold_gives_more_entries_and_fewer_iterations(form):
    A = gallery.anisotropic_triangles(3)
    made = [ILUT(drop_tol=drop_tol, form=form).factor(A) for drop_tol in (0.1, 0.01, 1e-3, 1e-5)]
    entries = [F.nnz for F in made]
    needed = [iterations(A, F, restart=200) for F in made]
    assert entries == sorted(entries) and len(set(entries)) == 4
    assert needed == sorted(needed, reverse=True) and needed[0] > 3 * needed[3]


def test_the_forms_differ():
    A = gallery.random_dominant(60, 0.08, 3)
    F, G = (ILUT(form=form, drop_tol=0.03).factor(A) for form in FORMS)
    assert (F.report["variant"], G.report["variant"]) == FORMS
    assert all(H.report["drop_tol"] == 0.03 and H.report["factorizations"] == 1 for H in (F, G))
    assert abs(F.U - G.U).max() > 0


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["anisotropic_triangles:3", "random_dominant:300,0.02,3", "elasticity:4,3,3"])
@pytest.mark.parametrize("multiple", [0.7, 1.0, 2.0])
def test_the_wanted_number_of_entries_is_met(form, name, multiple):
    A = gallery.problem(name)
    wanted = int(multiple * A.nnz)
    F = ILUT(nnz=wanted, form=form).factor(A)
    assert F.report["nnz"] == F.nnz == (F.L.nnz - A.shape[0]) + F.U.nnz == wanted == F.report["nnz_wanted"]
    assert "warning" not in F.report and 1 <= F.report["factorizations"] <= 3
    G = ILUT(drop_tol=F.report["drop_tol"], form=form).factor(A)
    assert wanted <= G.nnz <= 3 * wanted
    sizes = compared(G.L, G.U, A.diagonal(), cholesky=False)
    for kept, whole, size in zip(
        (sp.tril(F.L, -1), sp.triu(F.U)), (sp.tril(G.L, -1), sp.triu(G.U)), sizes, strict=True
    ):
        places = sp.csr_matrix((np.ones(kept.nnz), kept.nonzero()), shape=A.shape)
        assert (sp.csr_matrix(whole).multiply(places) != kept).nnz == 0
        gone = size - size.multiply(places)
        off = size.multiply(places).tocsr().data
        assert off.min() >= gone.max() * (1 - 1e-12) and (abs(gone) > 0).nnz == size.nnz - off.size


def test_the_search_begins_with_drop_tol_and_an_update_with_what_was_found():
    A = gallery.anisotropic_triangles(3)
    F = ILUT(nnz=A.nnz, drop_tol=0.3).factor(A)
    assert F.report["factorizations"] > 1
    G = ILUT(nnz=A.nnz, drop_tol=F.report["drop_tol"]).factor(A)
    assert G.report["factorizations"] == 1
    np.testing.assert_array_equal(F.U.data, G.U.data)
    F.update(2 * A)
    assert F.report["factorizations"] == 1
    np.testing.assert_array_equal(F.U.data, 2 * G.U.data)


def test_where_a_number_cannot_be_met_the_report_says_so():
    A = gallery.poisson7(6)
    F = ILUT(nnz=50 * A.nnz, fill=2.0).factor(A)
    assert F.report["drop_tol"] == 0.0 and "fill allows no more" in F.report["warning"]
    assert F.nnz == ILUT(drop_tol=0.0, fill=2.0).factor(A).nnz == F.report["nnz"]
    few = gallery.arrow(200)  # all the fill-in has one magnitude: its number jumps
    few = sp.csr_matrix(few[::-1, ::-1])
    F = ILUT(nnz=2 * few.nnz, fill=NEVER).factor(few)
    assert F.nnz == few.nnz and "no threshold that was tried leaves as many" in F.report["warning"]
    F = ILUT(nnz=8 * few.nnz, fill=NEVER).factor(few)  # all of it is not too much, so that some can be left
    assert F.nnz == 8 * few.nnz and "warning" not in F.report
    F = ILUT(nnz=A.nnz).factor(A)
    assert "warning" not in F.report
    B = gallery.poisson7(8)
    counts = sorted({ILUT(drop_tol=t).factor(B).nnz for t in np.geomspace(1e-3, 0.1, 40)})
    gap = max(itertools.pairwise(counts), key=lambda pair: pair[1] / pair[0])
    assert ILUT(nnz=sum(gap) // 2).factor(B).nnz == sum(gap) // 2  # between two thresholds, too


def test_the_search_finds_thresholds_between_a_breakdown_and_too_few_entries():
    star = sp.lil_matrix(sp.identity(200))
    star[0, 1:] = star[1:, 0] = 1.8e-3
    tiny = sp.csr_matrix(np.array([[1.0, 2.0**-20], [2.0**-20, 2.0**-40]]))  # breaks down if nothing is dropped
    A = sp.csr_matrix(sp.block_diag([tiny, star]))
    with pytest.raises(ZeroPivot):
        ILUT(drop_tol=0.0, fill=NEVER).factor(A)
    assert ILUT(drop_tol=2e-6, fill=NEVER).factor(A).nnz > 20 * A.nnz
    for wanted in (8 * A.nnz, np.int16(8 * A.nnz)):
        F = ILUT(nnz=wanted, fill=NEVER).factor(A)
        assert F.nnz == 8 * A.nnz and "warning" not in F.report


@pytest.mark.parametrize("Recipe", [ILUT, fl.ICT])
def test_what_is_left_of_larger_factors_is_better_than_what_a_threshold_leaves(Recipe):
    A, method = gallery.anisotropic_triangles(4), fl.cg if Recipe is fl.ICT else fl.gmres
    F = Recipe(nnz=A.nnz).factor(A)
    by_threshold = [Recipe(drop_tol=t).factor(A) for t in np.geomspace(0.012, 0.02, 9)]
    same = min(by_threshold, key=lambda G: abs(G.report["nnz"] - A.nnz))
    assert abs(same.report["nnz"] - A.nnz) <= 0.05 * A.nnz
    b = values(A.shape[0], "float64")
    ours, theirs = (method(A, b, M=M, rtol=1e-8, maxiter=400).iterations for M in (F, same))
    assert ours < theirs


# By behaviour


@pytest.mark.parametrize("form", FORMS)
def test_with_as_many_entries_ilut_needs_fewer_iterations_than_ilu0(form):
    A = gallery.anisotropic_triangles(4)
    F = ILUT(nnz=A.nnz, form=form).factor(A)
    assert abs(F.nnz - A.nnz) <= 0.01 * A.nnz
    assert iterations(A, F, restart=300) <= 0.7 * iterations(A, ILU0().factor(A), restart=300)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["of_pitzDaily_U", "orsirr_1", "sherman3", "cage10"])
def test_ilut_preconditions_real_matrices(name, form):
    A = real_matrix(name)
    assert iterations(A, ILUT(drop_tol=1e-4, form=form).factor(A), restart=200) <= 25


@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        (ILUT(drop_tol=0.05, fill=2.0, form="crout"), ("drop_tol=0.05", "fill=2", "form=crout")),
        (ILUT(nnz=1000, fill=NEVER), ("nnz=1000", "fill=inf")),
        (fl.ICT(nnz=1000, shift=0.5), ("nnz=1000", "shift=0.5")),
        (fl.ILUK(level=3), ("level=3",)),
        (fl.MILU0(relax=0.5), ("relax=0.5",)),
    ],
    ids=repr,
)
def test_the_command_line_takes_the_parameters(capsys, recipe, settings):
    name = type(recipe).__name__.lower()
    arguments = [part for setting in settings for part in ("--set", setting)]
    assert main(["solve", "gallery:poisson7:6", "--recipe", name, *arguments, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["recipe"] == repr(recipe)
    assert result["factors_nnz"] == recipe.factor(gallery.poisson7(6)).nnz
    assert result["method"] == ("gmres" if name == "ilut" else "cg")


# By bad input


@pytest.mark.parametrize("form", FORMS)
def test_a_zero_pivot_names_its_row_and_what_to_try(backend, form):
    A = sp.csr_matrix(np.array([[1.0, 0, 0, 0], [0, 2, 4, 0], [0, 1, 2, 0], [0, 0, 0, 1]]))
    with pytest.raises(ZeroPivot, match=r"the pivot of row 2 is 0.*shift=1e-3.*smaller drop_tol") as error:
        ILUT(form=form).factor(backend.move(A))
    assert error.value.row == 2 and error.value.recipe == ILUT(form=form)
    one_line(error)
    assert np.isfinite(backend.fetch(ILUT(form=form, shift=0.1).factor(backend.move(A)).U.data)).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_search_that_finds_no_factors_says_so(form):
    A = gallery.anisotropic_triangles(3)
    A.data[A.indptr[7] : A.indptr[8]] = 0.0
    with refused(ZeroPivot, match=r"the pivot of row 7 is 0.0, which is zero or not finite with drop_tol="):
        ILUT(form=form, nnz=A.nnz).factor(A)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("rows", "dtype"),
    [
        ([[1e-300, 1e300], [1e300, 1.0]], "float64"),
        ([[1.0, 1e30], [1e30, 1.0]], "float32"),
        ([[1.0, 1e30, 0], [1e30, 1.0, 0], [0, 0, 1]], "complex64"),
        ([[1.0, 1e300, 0], [1e300, 1.0, 0], [0, 0, 1]], "complex128"),
    ],
)
def test_values_that_overflow_are_found(rows, dtype, form):
    A = sp.csr_matrix(np.array(rows, dtype))
    with pytest.raises(ZeroPivot) as error:
        ILUT(form=form, drop_tol=1e-30).factor(A)
    assert error.value.row == (1 if form == "row" or rows[0][0] == 1.0 else 0)
    one_line(error)


@pytest.mark.parametrize("form", FORMS)
def test_kernel_and_reference_stop_at_the_same_row(form):
    stopped = set()
    for seed in range(30):
        rng = np.random.default_rng(seed)
        dense = rng.integers(-2, 3, (12, 12)) * (rng.random((12, 12)) < 0.3) * 10.0 ** rng.integers(-200, 200)
        A = sp.csr_matrix(dense - np.diag(np.diag(dense)) + np.eye(12))
        A.setdiag(rng.integers(0, 2, 12).astype(float))
        A = as_csr(A)
        rows, columns = 0.01 * row_norms(A), 0.01 * column_norms(CSR(A.indptr, A.indices, A.data, A.diag))
        with np.errstate(all="ignore"):
            if form == "row":
                made, (_, U) = (
                    cpu.threshold.ilut(A, rows, 1.0, UNLIMITED),
                    reference.threshold.ilut(A, rows, 1.0),
                )
            else:
                made = cpu.threshold.ilut_crout(A, rows, columns, 1.0, UNLIMITED)
                _, U = reference.threshold.ilut_crout(A, rows, columns, 1.0)
        assert made.rows == len(U)
        stopped.add(made.rows)
    assert len(stopped) > 4
