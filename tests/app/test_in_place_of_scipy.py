"""spsolve, splu, factorized, spsolve_triangular and install: SciPy's conventions, its own tests, the accuracy of a
direct solve by each way, the kept results, and bad input."""

import copy
import inspect
import pickle
import sys
import threading
import types
import warnings
from pathlib import Path

import client_suites
import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as sla
from checks import DTYPES, EMBEDDED, in_dtype, one_line, values
from scipy.sparse import SparseEfficiencyWarning

import finelu as fl
from finelu import foreign
from finelu.errors import NotConverged, ParameterError, SingularMatrix, WrongType
from finelu.interop.scipy import route
from finelu.interop.scipy.system import Equation, System
from finelu.interop.scipy.triangular import SingularTriangle
from finelu.preconditioners.direct import factors, klu
from finelu.recent import Recent

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
CONTAINERS = (sp.csr_array, sp.csc_matrix, sp.coo_array, sp.lil_matrix, np.asarray)
SIZES = (20, 100, 700)  # by a dense L U; by KLU or SuperLU; by KLU or SparseLU


@pytest.fixture(autouse=True)
def nothing_kept(everywhere):
    everywhere("RECENT", Recent())


def system_of(n, dtype="float64", seed=0):
    """An unsymmetric matrix with rows of other sizes, and gaps and small entries on the diagonal."""
    rng = np.random.default_rng(seed)
    A = sp.random(n, n, 4 / n, random_state=rng) + sp.diags(rng.uniform(1, 2, n))
    A = in_dtype(A, dtype)[np.roll(np.arange(n), 3)]
    return (sp.diags(2.0 ** rng.integers(-6, 6, n)).astype(dtype) @ A).tocsr().astype(dtype)


def roundings(A, x, b):
    """The largest |b - A x|_i in roundings of (|A| |x| + |b|)_i, in the precision of x."""
    wide, eps = np.result_type(A.dtype, x.dtype, np.float64), np.finfo(x.dtype).eps
    A, x, b = A.astype(wide), x.astype(wide), b.astype(wide)
    return (abs(b - A @ x) / (abs(A) @ abs(x) + abs(b))).max() / eps


def quietly(function, *args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SparseEfficiencyWarning)
        return function(*args, **kwargs)


# conventions


@pytest.mark.parametrize("name", ["spsolve", "splu", "factorized", "spilu", "spsolve_triangular"])
def test_signatures_are_those_of_scipy(name):
    ours, theirs = (
        {key: p.default for key, p in inspect.signature(getattr(module, name)).parameters.items()}
        for module in (fl, sla)
    )
    assert ours == theirs and list(ours) == list(theirs)


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("dtype", [*DTYPES, "int32", "bool", "int8"])
def test_x_has_the_kind_shape_and_dtype_of_scipys(container, dtype):
    A = container(sp.identity(30, format="csr").toarray() * 2) if dtype != "bool" else container(np.eye(30))
    A = A.astype(dtype)
    b = np.arange(60.0).reshape(30, 2)
    for given in (b[:, 0], b[:, :1], b, b.astype("float32"), b.astype(int), 1j * b, b.tolist(), np.asmatrix(b)):
        ours, theirs = quietly(fl.spsolve, A, given), quietly(sla.spsolve, A, given)
        assert type(ours) is type(theirs) and ours.shape == theirs.shape and ours.dtype == theirs.dtype
        assert np.allclose(ours, theirs)
    for given in (sp.csc_array(b), sp.csr_matrix(b), sp.coo_array(b[:, :1])):
        ours, theirs = quietly(fl.spsolve, A, given), quietly(sla.spsolve, A, given)
        assert type(ours) is type(theirs) and ours.shape == theirs.shape and ours.dtype == theirs.dtype
        assert np.allclose(*(x.toarray() if sp.issparse(x) else x for x in (ours, theirs)))
        assert not sp.issparse(ours) or ours.nnz == theirs.nnz  # zeros of b stay places without an entry


def test_warnings_are_those_of_scipy_and_name_the_line_of_the_call():
    A, b = system_of(20), np.ones((20, 2))
    for call in (
        lambda: fl.spsolve(A.tocoo(), b),
        lambda: fl.spsolve(A, sp.csr_array(b)),
        lambda: fl.splu(A.tocoo()),
        lambda: fl.factorized(A.toarray()),
        lambda: fl.spsolve_triangular(np.eye(3), np.ones(3)),
    ):
        with pytest.warns(SparseEfficiencyWarning) as found:
            call()
        assert found[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fl.spsolve(A, b)
        fl.spsolve(A.tocsc(), sp.csc_array(b))
        fl.splu(A.tocsc())
    assert fl.interop.scipy.MatrixRankWarning is sla.MatrixRankWarning and fl.interop.scipy.use_solver is sla.use_solver


def test_a_is_not_written_sorted_or_not():
    A, b = system_of(40), np.ones(40)
    backwards = np.concatenate([np.arange(end - 1, start - 1, -1) for start, end in zip(A.indptr, A.indptr[1:])])
    twice = np.repeat(backwards, 2)  # two halves of each entry, in the opposite order
    S = sp.csr_matrix((A.data[twice] / 2, A.indices[twice], 2 * A.indptr), shape=A.shape)
    before = S.data.copy(), S.indices.copy(), S.indptr.copy()
    for call in (fl.spsolve, lambda S, b: fl.splu(S).solve(b)):
        assert np.allclose(A @ call(S, b), b) and (b == 1).all()
        assert all((now == then).all() for now, then in zip((S.data, S.indices, S.indptr), before, strict=True))


def test_nothing_of_no_rows_or_no_columns():
    assert fl.spsolve(sp.csc_array((0, 0)), np.ones(0)).shape == (0,)
    assert fl.spsolve(system_of(20), np.ones((20, 0))).shape == (20, 0)


# accuracy by each way


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["csr", "csc"])
def test_x_is_exact_up_to_rounding(n, dtype, form):
    A = system_of(n, dtype).asformat(form)
    for shape in (n, (n, 3)):
        for of_b in ("float64", dtype):
            b = values(shape, of_b)
            x = fl.spsolve(A, b)
            assert x.shape == b.shape and roundings(A, x, b) <= 30


@pytest.mark.parametrize("permc_spec", ["NATURAL", "MMD_ATA", "MMD_AT_PLUS_A", "COLAMD"])
def test_a_permc_spec_is_that_of_superlu(permc_spec, splu_calls):
    A, b = system_of(100), values(100, "float64")
    for form in ("csr", "csc"):
        assert roundings(A, fl.spsolve(A.asformat(form), b, permc_spec=permc_spec), b) <= 30
    assert [call["permc_spec"] for call in splu_calls] == [permc_spec] * 2


@pytest.fixture
def splu_calls(monkeypatch):
    """The keywords of all calls of SciPy's splu."""
    calls, own = [], foreign.splu

    def looking(*args, **kwargs):
        calls.append(kwargs)
        return own(*args, **kwargs)

    monkeypatch.setattr(foreign, "splu", looking)
    return calls


def test_rows_that_differ_in_size_lose_no_digits(monkeypatch):
    z = np.load(CASES / "devsim_res2.npz") if (CASES / "devsim_res2.npz").exists() else pytest.skip("needs the cases")
    A = sp.csr_matrix((z["data"], z["indices"], z["indptr"]), shape=z["shape"])
    b = np.ones(A.shape[0])
    for dense in (64, 0):
        monkeypatch.setattr(route, "DENSE", dense)
        assert roundings(A, fl.spsolve(A, b), b) <= 30


def test_bad_factors_are_replaced_by_others(monkeypatch):
    A, b = system_of(100), values(100, "float64")

    def wrong(*args):
        x, error = good(*args)
        return x * 1.5, error * 1e9

    way = "_by_superlu" if klu.nbklu() is None else "_by_klu"
    good = getattr(route, way)
    monkeypatch.setattr(route, way, wrong)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert roundings(A, fl.spsolve(A, b), b) <= 30
    recipe = route._by_recipe
    monkeypatch.setattr(route, "_by_recipe", lambda *args, **kwargs: (recipe(*args, **kwargs)[0], 1e5))
    with pytest.warns(sla.MatrixRankWarning, match="100000 roundings in a row; A may be singular") as found:
        fl.spsolve(A, b)
    assert found[0].filename == __file__


def test_iterations_stand_in_for_factors_that_do_not_fit_and_say_so(monkeypatch):
    A = fl.gallery.poisson5(30)
    b = values(900, "float64")
    for limit in ("QUICK", "SHORT"):
        monkeypatch.setattr(route, limit, 0)
    monkeypatch.setattr(factors, "ALWAYS_FREE", 0)
    monkeypatch.setattr(factors, "free_memory", lambda like: 1000)
    with pytest.warns(
        SparseEfficiencyWarning, match=r"iterations? of .* in each row, since complete factors do not fit"
    ):
        x = fl.spsolve(A, b)
    assert roundings(A, x, b) <= 100 * 6
    tested = []
    own = Equation.tested
    monkeypatch.setattr(Equation, "tested", lambda self, x: tested.append(own(self, x)) or tested[-1])
    for given in (b, sp.csc_array(np.stack([b, 2 * b], axis=1))):
        with pytest.warns(SparseEfficiencyWarning, match="do not fit") as found:
            fl.spsolve(A, given)
        assert found[0].filename == __file__ and 0 < tested[-1].max() <= 100
    solve = fl.solve
    monkeypatch.setattr("finelu.auto.solve.solve", lambda *args, **given: solve(*args, **given | {"maxiter": 0}))
    with pytest.raises(NotConverged, match=r"spsolve, by iterations since .* did not converge"):
        fl.spsolve(A, b)


def badly_scaled(dtype="float64"):
    """A matrix whose x needs steps of refinement."""
    scales = 10.0 ** np.random.default_rng(0).uniform(-9, 0, 150)
    return (sp.random(150, 150, 4 / 150, random_state=0) + sp.diags(scales)).tocsr().astype(dtype)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e-300, 1e300])
def test_a_column_is_refined_whatever_its_neighbours_hold(bad):
    A, b = badly_scaled(), np.ones((150, 3))
    b[:, 1] = values(150, "float64")
    b[7, 2] = bad
    alone = fl.spsolve(A, b[:, 0])
    assert roundings(A, alone, b[:, 0]) <= 30
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for given in (b, sp.csc_array(b)):
            x = fl.spsolve(A, given)
            x = x.toarray() if sp.issparse(x) else x
            assert all(roundings(A, x[:, j], b[:, j]) <= 30 for j in (0, 1))
            assert np.isnan(x[:, 2]).any() or np.isfinite(bad)
            if klu.nbklu() is not None:  # whose solves take column by column
                assert (x[:, 0] == alone).all()


@pytest.mark.parametrize("by_rows", [True, False], ids=["rows", "columns"])
def test_an_error_is_compared_with_the_size_of_a_row_whose_sum_is_rounding(by_rows):
    """By definition, in any units of the rows; and no units of the columns excuse a row that is wrong."""
    n, rng, eps = 60, np.random.default_rng(0), np.finfo(float).eps
    A = np.where(rng.random((n, n)) < 0.1, rng.standard_normal((n, n)), 0) + 4 * np.eye(n)
    x = rng.standard_normal((n, 3))
    b = A @ x
    alone = slice(40, n)  # rows that no large element of x reaches, and where b is 0
    A[alone, :40], x[alone, 1], b[alone, 1] = 0, 1e-17 * rng.standard_normal(20), 0
    b[:, [0, 2]] = A @ x[:, [0, 2]]
    b[:40, 1] = (A @ x)[:40, 1]
    b[50, 2] += 1e-9  # too large an error for any row
    sums, unit = abs(A) @ abs(x) + abs(b), ((A != 0).sum(axis=1).max() + 1) * eps
    by_row = abs(A) / abs(A).max(axis=1)[:, None]
    scale = by_row.max(axis=0)
    whole = (abs(A) / scale).sum(axis=1)[:, None] * (abs(x) * scale[:, None]).max(axis=0)
    size = np.where(sums <= 1e3 * n * eps * whole, sums + whole, sums)
    expected = np.maximum(1, (abs(b - A @ x) / (unit * size)).max(axis=0))
    assert expected[1] == 1 < 1e3 < expected[2] and (abs(b - A @ x) > 1e3 * unit * sums)[alone, 1].any()
    ones, rows = np.ones(n), 2.0 ** rng.integers(-60, 60, n)
    for columns in (ones, 2.0 ** rng.integers(-60, 60, n)):
        S = sp.csr_matrix(rows[:, None] * A * columns)
        given = System.of(S if by_rows else S.tocsc(), "", "", 1).in_double()
        equation = Equation(given, by_rows, None, int((A != 0).sum(axis=1).max()))
        found, r = equation.errors(x / columns[:, None], b * rows[:, None])
        assert np.allclose(found[2], expected[2], rtol=1e-3) and (found[: 2 if columns is ones else 1] == 1).all()
        assert np.allclose(r[50, 2], -1e-9 * rows[50], rtol=1e-3)


@pytest.mark.parametrize("k", [40, None], ids=["columns", "one"])
def test_steps_of_refinement_take_only_the_columns_that_need_them(k, monkeypatch):
    A = badly_scaled()
    lu, columns = sla.splu(A.tocsc()), System.of(A, "", "", 1).in_double()
    B = np.zeros((150, k)) if k else values(150, "float64")  # x = 0 needs no step
    for j in (7, 23) if k else ():
        B[:, j] = values(150, "float64", j)
    widths, of_errors, own = [], [], Equation.errors

    def solve(r):
        widths.append(r.reshape(150, -1).shape[1])
        return lu.solve(r)

    def errors(self, x, b, *large):
        of_errors.append(x.reshape(150, -1).shape[1])
        return own(self, x, b, *large)

    monkeypatch.setattr(Equation, "errors", errors)
    x, found = Equation(columns, True, B, 10).refined(solve)
    assert x.shape == B.shape and np.shape(found) == B.shape[1:] and found.max() <= 1
    assert widths == of_errors and len(widths) > 1 and max(widths[1:]) <= 2
    for j in (7, 23) if k else ():
        alone, error = Equation(columns, True, B[:, j].copy(), 10).refined(lu.solve)
        assert (alone == x[:, j]).all() and error == found[j]


def test_many_columns_are_refined_some_at_a_time_with_the_bits_of_all():
    A, B, widths = badly_scaled(), values((150, 7), "float64"), []
    lu, columns = sla.splu(A.tocsc()), System.of(A, "", "", 1).in_double()
    B[:, 4:] = 0  # needs no step

    def solve(r):
        widths.append(r.shape[1])
        return np.stack([lu.solve(column) for column in r.T], axis=1)

    equation = Equation(columns, True, B, 10)
    x, errors = equation.refined(solve)
    assert widths[0] == 7
    widths.clear()
    some, of_some = equation.refined(solve, 300)
    assert (some == x).all() and some.shape == B.shape and (of_some[:4] == errors[:4]).all() and of_some.max() <= 1
    assert max(widths) == 2 and equation.refined(solve, 300)[1].shape == (7,)


def test_a_column_that_stays_bad_is_solved_once_more_and_leaves_the_others_as_they_are(monkeypatch):
    A, b, widths = system_of(100), values((100, 3), "float64"), []
    expected = fl.spsolve(A, b)
    way = "_by_superlu" if klu.nbklu() is None else "_by_klu"
    good, recipe = getattr(route, way), route._by_recipe

    def wrong(function, error, *args):
        x, _ = function(*args)
        widths.append(x.shape[1])
        errors = np.ones(x.shape[1])
        errors[x.shape[1] // 2] = error
        return x, errors

    monkeypatch.setattr(route, way, lambda *args: wrong(good, 1e4, *args))
    monkeypatch.setattr(route, "_by_recipe", lambda *args: wrong(recipe, 1e3, *args))
    for given in (b, sp.csc_array(b)):
        with pytest.warns(sla.MatrixRankWarning, match="1000 roundings in a row"):
            x = fl.spsolve(A, given)
        x = x.toarray() if sp.issparse(x) else x
        assert (x[:, [0, 2]] == expected[:, [0, 2]]).all() and roundings(A, x[:, 1], b[:, 1]) <= 30
    assert widths == [3, 1, 3, 1]


@pytest.mark.parametrize("n", [1, 100, 700])
def test_an_overflow_is_called_so(n):
    A, b = sp.identity(n, format="csr") * 1e-300, np.ones((n, 2))
    b[0, 1] = 1e300
    with pytest.warns(RuntimeWarning, match="overflow: x is not finite") as found:
        x = fl.spsolve(A, b)
    assert found[0].filename == __file__ and np.isinf(x[0, 1]) and np.allclose(x[:, 0], 1e300)


def test_more_entries_than_32_bit_indices_count_are_solved_by_iterations(monkeypatch):
    A, b = fl.gallery.poisson5(30), values((900, 2), "float64")
    b[7, 1] = np.nan
    monkeypatch.setattr(route, "INT32_LIMIT", A.nnz - 1)
    monkeypatch.setattr(System, "in_double", lambda self: pytest.fail("32-bit indices were made of it"))
    for form in ("csr", "csc"):
        with pytest.warns(SparseEfficiencyWarning, match="more entries than the 32-bit indices") as found:
            x = fl.spsolve(A.asformat(form), b)
        assert [w.filename for w in found] == [__file__] and np.isnan(x[:, 1]).all()
        assert roundings(A, x[:, 0], b[:, 0]) <= 100 * 901


# the kept results


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("form", ["csr", "csc"])
def test_kept_results_change_no_bit(n, form, everywhere):
    A, b = system_of(n).asformat(form), values(n, "float64")
    other = A.copy()
    other.data = A.data * (1 + 1e-3 * values(A.nnz, "float64", 5))
    first = fl.spsolve(A, b)
    second, again, last = fl.spsolve(other, b), fl.spsolve(other, b), fl.spsolve(A, b)
    assert (first == last).all() and (second == again).all() and not (first == second).all()
    everywhere("RECENT", Recent())
    assert (fl.spsolve(other, b) == second).all()


@pytest.mark.parametrize("name", ["alike", "dense row"])
def test_the_same_arrays_by_rows_and_by_columns_are_two_matrices(name, everywhere, monkeypatch):
    n = 2744
    A = (fl.gallery.poisson7(14) + sp.random(n, n, 2 / n, random_state=0)).tolil()
    if name == "dense row":
        A[5] = values(n, "float64")
    A, b, made = A.tocsr(), values(n, "float64"), []
    transposed = sp.csc_matrix((A.data, A.indices, A.indptr), shape=A.shape)
    own = route.SparseLUFactors
    monkeypatch.setattr(route, "SparseLUFactors", lambda *args, **kwargs: made.append(own(*args, **kwargs)) or made[-1])
    for first, second in ((A, transposed), (transposed, A)):
        everywhere("RECENT", Recent())
        expected = fl.spsolve(second, b)
        everywhere("RECENT", Recent())
        made.clear()
        fl.spsolve(first, b)
        x = fl.spsolve(second, b)
        assert len(made) == 2 and roundings(second.tocsr(), x, b) <= 30
        assert (x == expected).all() or made[-1].report.backend == "pardiso"  # whose bits differ from call to call


def test_a_sparse_b_is_dense_for_some_columns_at_a_time(monkeypatch):
    from finelu.interop.scipy import system

    A = system_of(100)
    whole = fl.spsolve(A, sp.identity(100, format="csc"))
    monkeypatch.setattr(system, "BLOCK", 700)
    parts = fl.spsolve(A, sp.identity(100, format="csc"))
    assert type(parts) is type(A) and abs(parts - whole).max() <= 1e-12 * abs(whole).max()
    assert klu.nbklu() is None or (parts != whole).nnz == 0  # KLU solves column by column
    assert abs(A @ parts - sp.identity(100)).max() < 1e-10
    assert fl.spsolve(A, 1j * sp.identity(100, format="csc")).dtype == np.complex128


@pytest.mark.parametrize("n", SIZES)
def test_arrays_may_change_in_place(n):
    A, b = system_of(n), values(n, "float64")
    fl.spsolve(A, b)
    A.data *= 3
    assert roundings(A, fl.spsolve(A, b), b) <= 30
    A.indices[:] = n - 1 - A.indices
    A.has_sorted_indices = A.has_canonical_format = False
    assert roundings(A, fl.spsolve(A, b), b) <= 30


@pytest.mark.parametrize("direct_solvers", ["installed"], indirect=True)
def test_a_pattern_is_analysed_once_and_a_matrix_is_factored_once(monkeypatch):
    if klu.nbklu() is None:
        pytest.skip("needs nbklu")
    done = []
    for name in ("_analysed", "factor"):
        own = getattr(klu.KLU, name)
        monkeypatch.setattr(klu.KLU, name, lambda *args, own=own, name=name: (done.append(name), own(*args))[1])
    A, b = system_of(100), values(100, "float64")
    for scale in (1.0, 2.0, 2.0, 2.0):
        fl.spsolve(A * scale, b)
    assert done == ["_analysed", "factor", "factor"]


@pytest.mark.parametrize("direct_solvers", ["installed"], indirect=True)
def test_kept_factors_are_in_the_account_and_apart_from_the_callers_arrays(everywhere):
    A, recent = fl.gallery.poisson7(14), Recent()
    b = np.ones(A.shape[0])

    def kept():
        ((*pattern, plan, size, _),) = (entry for entry in recent._kept.values() if isinstance(entry[2], route.Plan))
        return plan, size, sum(array.nbytes for array in pattern)

    everywhere("RECENT", recent)
    x = fl.spsolve(A, b)
    plan, size, pattern = kept()
    if plan.factors is None:
        pytest.skip("needs a library whose factors are kept")
    held = plan.factors.pattern
    assert size >= pattern + plan.values.nbytes + held.data.nbytes + held.indices.nbytes + 8 * plan.factors.nnz
    for own in (held.data, held.indices, plan.factors._factored.data, plan.values):
        assert not any(np.shares_memory(own, array) for array in (A.data, A.indices))
    recent = Recent(size - 1)
    everywhere("RECENT", recent)
    assert np.allclose(fl.spsolve(A, b), x)
    plan, size, pattern = kept()
    assert plan.factors is plan.values is None and size == 0  # the pattern is counted apart


@pytest.mark.parametrize("n", SIZES)
def test_threads_share_what_is_kept(n):
    A, b, wrong = system_of(n), values(n, "float64"), []
    expected = {scale: fl.spsolve(A * scale, b) for scale in (1.0, 2.0, 3.0, 4.0)}

    def work(scale):
        for _ in range(20):
            if not (fl.spsolve(A * scale, b) == expected[scale]).all():
                wrong.append(scale)

    threads = [threading.Thread(target=work, args=(scale,)) for scale in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# singular


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("kind", ["empty row", "zero", "NaN", "Inf"])
def test_a_singular_a_gives_nan_and_a_warning(n, kind):
    A = system_of(n).tolil()
    A[3] = 0
    if kind != "empty row":
        A[3, 5] = {"zero": 1.0, "NaN": np.nan, "Inf": np.inf}[kind]
    A = A.tocsr()
    if kind == "zero":
        A.data[A.indptr[3]] = 0.0
    begin = "A holds NaN or Inf" if kind in ("NaN", "Inf") else "Matrix is exactly singular"
    with pytest.warns(sla.MatrixRankWarning, match=f"^{begin}") as found:
        x = fl.spsolve(A, np.ones((n, 2)))
    assert x.shape == (n, 2) and np.isnan(x).all() and found[0].filename == __file__
    with pytest.raises(SingularMatrix, match="Factor is exactly singular"):
        fl.spsolve(A, sp.csc_array(np.ones((n, 2))))
    for function in (fl.splu, fl.factorized):
        with pytest.raises(RuntimeError, match="Factor is exactly singular") as error:
            function(A)
        one_line(error)


def test_what_is_not_finite_in_b_is_so_in_x():
    for n in SIZES:
        A, b = system_of(n), np.ones((n, 2))
        b[7, 1] = np.nan
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            x = fl.spsolve(A, b)
        assert np.isnan(x[:, 1]).any() and roundings(A, x[:, 0], b[:, 0]) <= 30


def test_superlu_gets_no_matrix_without_a_full_diagonal(monkeypatch):
    monkeypatch.setattr(foreign, "splu", lambda *args, **kwargs: pytest.fail("SuperLU may write beyond its arrays"))
    A = system_of(100).tolil()
    A[:, 4] = 0
    for form in ("csr", "csc"):
        S = A.asformat(form)
        for given in ({}, {"permc_spec": "NATURAL"}, {"relax": 2}):
            with pytest.raises(SingularMatrix, match="Factor is exactly singular: its pattern"):
                fl.splu(S, **given)
        with pytest.warns(sla.MatrixRankWarning, match="exactly singular"):
            assert np.isnan(fl.spsolve(S, np.ones(100), permc_spec="NATURAL")).all()
    monkeypatch.undo()
    with pytest.raises(SingularMatrix, match="a pivot is 0"):
        fl.splu(sp.csc_array(np.ones((2, 2))), permc_spec="NATURAL")


# bad input


A = system_of(20)
BAD = {
    "not square": (
        lambda: fl.spsolve(A[:, :4], np.ones(20)),
        ValueError,
        r"must be square \(has shape .* finelu.lstsq",
    ),
    "factor not square": (lambda: fl.splu(A[:, :4]), ValueError, "can only factor square matrices .* finelu.lstsq"),
    "an operator": (lambda: fl.spsolve(sla.aslinearoperator(A), np.ones(20)), ValueError, r"not known.*finelu.gmres"),
    "factor an operator": (lambda: fl.splu(sla.aslinearoperator(A)), ValueError, r"not known.*finelu.gmres"),
    "other rows": (lambda: fl.spsolve(A, np.ones(4)), ValueError, r"dimension mismatch \(\(20, 20\) - 4\)"),
    "three dimensions": (lambda: fl.spsolve(A, np.ones((20, 2, 2))), ValueError, r"b has shape \(20, 2, 2\)"),
    "a number": (lambda: fl.spsolve(A, 1.0), ValueError, r"b has shape \(\)"),
    "text": (lambda: fl.spsolve(A, ["a"] * 20), TypeError, "b has dtype <U1"),
    "long doubles": (lambda: fl.spsolve(A, np.ones(20, np.longdouble)), TypeError, "no x is computed"),
    "objects": (lambda: quietly(fl.spsolve, object(), np.ones(20)), ValueError, "A is a object, which is not read"),
    "order": (lambda: fl.spsolve(A, np.ones(20), permc_spec="AMD"), ParameterError, "permc_spec='AMD'; None or one of"),
    "solve rows": (lambda: fl.splu(A).solve(np.ones(4)), ValueError, "b is of incompatible size"),
    "solve depth": (lambda: fl.splu(A).solve(np.ones((20, 2, 2))), ValueError, "object too deep for desired array"),
    "solve dtype": (lambda: fl.splu(A).solve(np.ones(20) * 1j), WrongType, "Cannot cast array data from"),
    "solve trans": (lambda: fl.splu(A).solve(np.ones(20), "X"), ValueError, "trans must be N, T, or H"),
    "triangle shape": (lambda: fl.spsolve_triangular(A[:, :4], np.ones(20)), ValueError, "must be a square matrix"),
    "triangle b": (lambda: fl.spsolve_triangular(A, np.ones(4)), ValueError, "must be equal to the size"),
    "triangle depth": (lambda: fl.spsolve_triangular(A, np.ones((20, 1, 1))), ValueError, "1 or 2 dims"),
    "module": (lambda: fl.install("scipy"), TypeError, "install takes modules, not a str"),
    "rows of b": (lambda: fl.spsolve(A, [[1], [1, 2]]), ValueError, "b is a list, which is not read as an array"),
    "rows of rhs": (lambda: fl.splu(A).solve([[1], [1, 2]]), ValueError, "b is a list, which is not read"),
    "triangle rows": (lambda: fl.spsolve_triangular(A, [[1], [1, 2]]), ValueError, "b is a list, which is not"),
    "orders": (lambda: fl.spsolve(A, np.ones(20), permc_spec=np.array(["a", "b"])), ParameterError, "None or one of"),
    "factor order": (lambda: fl.splu(A, permc_spec="AMD"), ParameterError, "splu: permc_spec='AMD': invalid value"),
    "options": (lambda: fl.splu(A, options="x"), ParameterError, "splu: options='x': dictionary"),
    "an option": (lambda: fl.splu(A, options={"x": 1}), TypeError, "splu: options={'x': 1}: 'x' is an invalid"),
    "relax": (lambda: fl.splu(A, relax="a"), ParameterError, "relax='a'; an integer is needed"),
    "triangle NaN": (lambda: fl.spsolve_triangular(A * np.nan, np.ones(20)), ValueError, "A holds NaN or Inf in row"),
    "triangle keyword": (lambda: fl.spsolve_triangular(A, np.ones(20), lowr=True), TypeError, "Did you mean 'lower'"),
    "spilu keyword": (lambda: fl.spilu(A, fillfactor=2), TypeError, "Did you mean 'fill_factor'"),
    "keyword": (lambda: fl.spsolve(A, np.ones(20), permc="COLAMD"), TypeError, "Did you mean 'permc_spec'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_in_one_line(case):
    call, kind, text = BAD[case]
    with pytest.raises(kind, match=text) as error:
        call()
    assert isinstance(error.value, fl.FineluError) and len(one_line(error)) < 250


# splu


@pytest.mark.parametrize("n", [60, 500])
@pytest.mark.parametrize("dtype", DTYPES)
def test_splu_solves_in_all_directions_with_the_attributes_of_superlu(dtype, n):
    S = system_of(n, dtype).tocsc()
    lu = fl.splu(S)
    assert lu.shape == (n, n) and lu.nnz > 0 and "LU(" in repr(lu)
    S.data[:] = 0  # the caller's array: the object has its own
    S = system_of(n, dtype).tocsc()
    for shape in (n, (n, 1), (n, 3)):
        b = values(shape, dtype)
        for trans, op in (("N", S), ("T", S.T), ("H", S.conj().T)):
            x = lu.solve(b, trans)
            assert x.shape == b.shape and x.dtype == dtype and roundings(op.tocsr(), x, b) <= 1000
    one, rows = np.ones(n), np.arange(n)
    Pr, Pc = sp.csc_array((one, (lu.perm_r, rows))), sp.csc_array((one, (rows, lu.perm_c)))
    moved = Pr @ S @ Pc
    assert abs(moved - lu.L @ lu.U).max() <= 100 * np.finfo(dtype).eps * abs(moved).max()


@pytest.mark.parametrize("n", [60, 500])
def test_splu_can_be_copied_and_pickled(n):
    lu, b = fl.splu(system_of(n)), values(n, "float64")
    x, L = lu.solve(b), lu.L
    for other in (copy.deepcopy(lu), pickle.loads(pickle.dumps(lu))):
        assert other.shape == lu.shape and (other.solve(b) == x).all() and abs(other.L - L).nnz == 0


def test_finelus_own_csr_is_taken():
    S, b = system_of(60), values(60, "float64")
    A = fl.as_csr(S, diagonal=False)
    x = fl.spsolve(S, b)
    assert (fl.spsolve(A, b) == x).all() and (fl.splu(A).solve(b) == fl.splu(S).solve(b)).all()
    assert isinstance(fl.spsolve(A, sp.identity(60, format="csc")), sp.csr_matrix)
    T = sp.tril(S + 9 * sp.identity(60))
    assert np.allclose(fl.spsolve_triangular(fl.as_csr(T), b), quietly(sla.spsolve_triangular, T.tocsr(), b))


@pytest.mark.parametrize(
    ("n", "entries", "by_superlu"), [(400, 9, True), (1000, 3, True), (1001, 3, False), (500, 5, False)]
)
def test_superlu_factors_what_it_factors_before_another_library_is_chosen(n, entries, by_superlu):
    half = entries // 2
    A = sp.diags(np.r_[np.ones(half), 2.0 * entries, np.ones(half)], np.arange(-half, half + 1), (n, n), format="csc")
    lu, b = fl.splu(A), values(n, "float64")
    assert isinstance(lu.factors, sla.SuperLU) == by_superlu and roundings(A.tocsr(), lu.solve(b), b) <= 30


def test_superlus_own_parameters_give_superlus_object(splu_calls):
    S = system_of(60).tocsc()
    for given in ({"permc_spec": "NATURAL"}, {"diag_pivot_thresh": 0.0}, {"relax": 2}, {"panel_size": 2},
                  {"options": {"Equil": False}}):  # fmt: skip
        assert isinstance(fl.splu(S, **given), sla.SuperLU)
        (key, value), *_ = given.items()
        assert splu_calls[-1][key] == value
    assert (fl.splu(S, permc_spec="NATURAL").perm_c == np.arange(60)).all()


def test_superlus_threshold_may_be_above_1_as_in_programs_that_give_a_diagonal():
    S, b = system_of(60).tocsc(), np.arange(60.0)
    given = {"diag_pivot_thresh": 9.97, "permc_spec": 3, "relax": 1, "panel_size": 10}
    assert (fl.splu(S, **given).solve(b) == sla.splu(S, **given).solve(b)).all()
    assert np.allclose(S @ fl.splu(S, **given).solve(b), b)


# spsolve_triangular


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("unit", [True, False])
def test_triangles_are_solved_as_by_scipy(form, lower, unit):
    T = (sp.tril if lower else sp.triu)(system_of(50)[np.roll(np.arange(50), -3)]).asformat(form)
    T.setdiag(np.arange(2.0, 52.0))
    for b in (np.ones(50), np.arange(100).reshape(50, 2), 1j * np.ones(50), np.ones(50, "float32")):
        for S in (T, T.astype("complex64"), T.astype("float32")):
            ours, theirs = (
                f(S, b, lower=lower, unit_diagonal=unit) for f in (fl.spsolve_triangular, sla.spsolve_triangular)
            )
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            assert np.allclose(ours, theirs, rtol=1e-4)


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("lower", [True, False])
def test_what_is_not_read_may_be_nan(form, lower):
    T = np.full((4, 4), np.nan)
    T[np.tril_indices(4, -1) if lower else np.triu_indices(4, 1)] = 2.0
    for unit in (True, False):
        if not unit:
            np.fill_diagonal(T, 3.0)
        x = fl.spsolve_triangular(sp.csr_array(T).asformat(form), np.ones(4), lower=lower, unit_diagonal=unit)
        expected = (np.tril if lower else np.triu)(T)
        np.fill_diagonal(expected, 1.0 if unit else 3.0)
        assert np.allclose(expected @ x, 1)


def test_a_zero_on_the_diagonal_is_a_linalgerror():
    for T in (sp.csr_array((5, 5)), sp.csr_array(np.diag([1.0, 0.0, 1.0, 1.0, 1.0])), sp.csc_array(np.eye(5, k=-1))):
        with pytest.raises(np.linalg.LinAlgError, match="A is singular: zero entry on diagonal") as error:
            fl.spsolve_triangular(T, np.ones(5))
        assert isinstance(error.value, SingularTriangle)


# install


def test_install_replaces_and_puts_back():
    before = {name: getattr(sla, name) for name in ("spsolve", "splu", "spilu", "factorized", "cg", "gmres", "eigsh")}
    client = types.ModuleType("client")
    client.solve, client.other = sla.spsolve, sla.eigsh
    A, b = fl.gallery.poisson5(20), np.ones(400)
    with fl.install(client) as installed:
        assert sla.spsolve is client.solve is fl.spsolve and sla.splu is fl.splu and sla.eigsh is client.other
        assert {"scipy.sparse.linalg.cg", "client.solve"} <= set(installed.replaced) and "cg" in repr(installed)
        result = sla.cg(A, b, rtol=1e-8)
        assert type(result) is tuple and result[1] == 0 and sla.cg.__name__ == "cg"
        with fl.install() as inner:
            assert inner.replaced == tuple(name for name in installed.replaced if "client" not in name)
        assert sla.spsolve is client.solve is fl.spsolve
        assert np.allclose(A @ sla.spsolve(A, b, permc_spec="COLAMD"), b)  # finelu calls SciPy's own, not itself
        assert np.allclose(A @ fl.SparseLU(backend="superlu").factor(A).solve(b), b) and fl.solve(A, b).converged
    assert all(getattr(sla, name) is function for name, function in before.items()) and client.solve is sla.spsolve
    installed.undo()
    assert sla.spsolve is before["spsolve"] and "undone" in repr(installed)


def test_install_warns_of_a_package_whose_submodules_hold_the_functions(monkeypatch):
    package, flow, other = types.ModuleType("mygrid"), types.ModuleType("mygrid.flow"), types.ModuleType("mygrid.other")
    flow.spsolve = sla.spsolve
    for module in (package, flow, other):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    with pytest.warns(UserWarning, match=r"^mygrid holds none of SciPy's solvers. install\(mygrid.flow\) reaches"):
        fl.install(package).undo()
    with pytest.warns(UserWarning, match=r"^mygrid.other holds none of SciPy's solvers.$"):
        fl.install(other).undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fl.install(flow).undo()
        with pytest.raises(UserWarning, match="mygrid holds none"):
            fl.install(package)
        assert sla.spsolve is not fl.spsolve and flow.spsolve is not fl.spsolve
        with fl.install():
            flow.spsolve = sla.spsolve  # finelu's, as if the module was imported now
            fl.install(flow).undo()


def test_the_last_of_several_installs_puts_back():
    own, installs = sla.spsolve, [fl.install() for _ in range(3)]
    installs[0].undo()
    installs[0].undo()  # counts once
    installs[2].undo()
    assert sla.spsolve is fl.spsolve
    installs[1].undo()
    assert sla.spsolve is own
    with fl.install(sla):  # named twice
        assert sla.spsolve is fl.spsolve
    assert sla.spsolve is own


@pytest.mark.parametrize("unit", [np.True_, 1, "yes"])
def test_a_unit_diagonal_may_be_any_truth_value(unit):
    T = sp.csr_matrix(np.array([[5.0, np.nan], [2.0, 7.0]]))
    assert (fl.spsolve_triangular(T, np.ones(2), unit_diagonal=unit) == [1, -1]).all()


@pytest.mark.parametrize("given", [{"panel_size": -1}, {"relax": 0}, {"diag_pivot_thresh": np.nan}])
def test_parameters_that_end_the_process_in_superlu_are_refused(given):
    with pytest.raises(ParameterError, match=next(iter(given))):
        fl.splu(sp.csc_matrix(fl.gallery.poisson5(7)), **given)


@pytest.mark.parametrize("n", [5, 100])
def test_overflow_in_single_precision_is_told(n):
    A, b = (1e-30 * sp.eye(n, format="csc")).astype(np.float32), np.full(n, 1e10, np.float32)
    with pytest.warns(RuntimeWarning, match="range of float32"):
        assert np.isinf(fl.spsolve(A, b)).all()


# SciPy's own tests

OTHERWISE = {
    "test_spilu_drop_rule": "the result of spilu is no instance of the class SuperLU, which has no constructor",
    "test_lu_refcount": "perm_r and perm_c do not hold the object that they came from",
    "test_bad_inputs": "spilu's factors look at the shape of b before its dtype, so the error is a ValueError",
}


@EMBEDDED  # the process that runs them has all that is installed
def test_scipys_own_tests_pass():
    suite = client_suites.SUITES["scipy-direct"]
    if why := suite.missing():
        pytest.skip(why)
    outcome = client_suites.run(suite)
    assert {test.split("::")[-1] for test in outcome.failed} == set(OTHERWISE), outcome.failed
    assert len(outcome.passed) >= 324


def test_an_unknown_keyword_of_an_installed_method_is_named():
    A, b = fl.gallery.problem("poisson5:5"), np.ones(25)
    with fl.install():
        for name in ("gmres", "cg"):
            with pytest.raises(
                TypeError, match=rf"^{name}\(\) got an unexpected keyword argument 'tol'.* Did you mean 'rtol'"
            ):
                getattr(sla, name)(A, b, tol=1e-5)
        with pytest.raises(TypeError, match=r"^lsmr\(\) got an unexpected keyword argument 'rtoll'"):
            sla.lsmr(A, b, rtoll=1e-5)


def test_nan_in_a_matrix_is_not_called_singular():
    A = fl.gallery.problem("poisson5:5").astype(float)
    A.data[A.indptr[7]] = np.nan
    with pytest.warns(sla.MatrixRankWarning, match="NaN or Inf in row 7") as caught:
        assert np.isnan(fl.spsolve(A, np.ones(25))).all()
    assert not any("singular" in str(warning.message) for warning in caught)
