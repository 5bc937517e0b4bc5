"""solve_shifted: each x by definition, one space for all shifts, factors of a few, bad input."""

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from krylov_cases import residual, system
from threadpoolctl import threadpool_limits

import finelu as fl
from finelu.auto import recycling
from finelu.auto.recycling import SpaceOverShifts
from finelu.auto.shifted import Shifted, checked_shifts
from finelu.errors import NotConverged
from finelu.kernels import kernels_for, reference
from finelu.kernels.monitor import BROKEN, CLAIM, CLAIMED, CODE, INDEFINITE, ITERATIONS, NORM, NOT_FINITE, RUNNING
from finelu.krylov import multishift
from finelu.krylov.operators import Operator
from finelu.krylov.system import System
from finelu.result import Status

DTYPES = (np.float32, np.float64, np.complex64, np.complex128)
REAL, COMPLEX = np.linspace(0, 2, 7), 1j * np.linspace(0.1, 2, 7)


def holds(A, b, solution, rtol=1e-8):
    """x by definition: the true residual of each shift, formed in extended precision."""
    x = np.asarray(solution.x)
    for j, shift in enumerate(solution.shifts):
        S = A + shift * sp.eye(A.shape[0])
        assert residual(S.tocsr(), b, x[:, j]) <= 1.01 * rtol * np.linalg.norm(b)
    assert solution.all_converged and solution.x.shape == (b.size, len(solution.shifts))


def alone(A, b, shifts, method, rtol=1e-8):
    """Products with A of one solve a shift."""
    return sum(method((A + s * sp.eye(A.shape[0])).tocsr(), b, rtol=rtol).iterations for s in shifts)


@pytest.mark.parametrize(
    ("kind", "method", "shifts", "name", "single"),
    [
        ("spd", "auto", REAL, "multi-shift cg", fl.cg),
        ("spd", "cg", COMPLEX, "multi-shift cg", None),
        ("spd", "cocg", REAL, "multi-shift cocg", fl.cg),
        ("spd", "cocg", COMPLEX, "multi-shift cocg", None),
        ("spd", "gmres", REAL, "shifted gmres", fl.cg),
        ("indefinite", "auto", COMPLEX, "multi-shift cocg", None),
        ("general", "auto", REAL, "shifted gmres", fl.gmres),
        ("general", "auto", COMPLEX, "shifted gmres", None),
    ],
)
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_one_space_serves_all_shifts(kind, method, shifts, name, single, dtype):
    A, b = system(kind, dtype)
    if np.dtype(dtype).kind == "c" and name == "multi-shift cocg":
        A = sp.csr_matrix(A.real + 0.3j * sp.eye(b.size))  # complex symmetric
    solution = fl.solve_shifted(A, b, shifts, method=method)
    holds(A, b, solution)
    assert {s.method for s in solution.columns} == {name} and solution.factorizations == 0
    assert solution.iterations == sum(s.iterations for s in solution.columns)
    if single is not None:
        assert solution.products < 0.6 * alone(A, b, shifts, single)
    for s in solution.columns:
        assert s.history.shape == s.recurrence.shape == (s.iterations + 1,)
        assert np.isfinite(s.history).all() and s.history[-1] == pytest.approx(s.residual_norm, rel=1e-6)


def test_multi_shift_cg_takes_the_products_of_its_hardest_shift_and_one_a_shift(backend):
    A, b = system("spd")
    shifts = np.array([0.5, 0.0, 3.0, 1.0])
    solution = fl.solve_shifted(backend.move(A), backend.move(b), shifts)
    single = [fl.cg((A + s * sp.eye(b.size)).tocsr(), b, rtol=1e-8).iterations for s in shifts]
    assert abs(np.array([s.iterations for s in solution.columns]) - single).max() <= 1  # the same iterates
    most = max(single) + 1 if backend.name == "cpu" else max(single) + 9  # the host looks every 8 iterations
    assert solution.products <= most + len(shifts)
    np.testing.assert_array_equal(solution.shifts, shifts)
    X = backend.fetch(solution.x)
    for j, s in enumerate(shifts):
        assert residual((A + s * sp.eye(b.size)).tocsr(), b, X[:, j]) <= 1.01e-8 * np.linalg.norm(b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_x_has_the_dtype_that_the_system_and_the_shifts_need(dtype):
    A, b = system("spd", dtype)
    for shifts in (REAL, COMPLEX):
        solution = fl.solve_shifted(A, b, shifts, rtol=1e-4)
        wanted = np.result_type(dtype, np.complex64) if shifts is COMPLEX else np.dtype(dtype)
        assert solution.x.dtype == wanted
        holds(A.astype(np.complex128), b, solution, 1.1e-4)


def test_shifts_of_an_indefinite_matrix_and_negative_shifts():
    A, b = system("indefinite")
    solution = fl.solve_shifted(A, b, np.array([1.4, 2.0, 3.0]))  # A + 1.4 I is positive definite
    holds(A, b, solution)
    assert solution[0].method == "multi-shift cg"
    solution = fl.solve_shifted(A, b, np.array([-0.2, 0.1]))
    holds(A, b, solution)
    assert solution[0].method == "multi-shift cocg"


def test_a_shift_that_its_space_has_not_solved_goes_on_by_itself(monkeypatch):
    A, b = system("spd")
    family, plain = multishift.lanczos_family, fl.solve_shifted(A, b, REAL).products

    def short(seed, sigma, definite, tolerance, maxiter):
        return family(seed, sigma, definite, 1e3 * tolerance, maxiter)

    monkeypatch.setattr("finelu.auto.shifted.lanczos_family", short)
    solution = fl.solve_shifted(A, b, REAL)
    holds(A, b, solution)
    assert solution.products > plain + 3


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_cocg_leaves_a_b_without_bilinear_norm_to_each_shift(dtype, backend):
    n, rtol = 30, 1e-4 if dtype == np.complex64 else 1e-8
    A = sp.csr_matrix(sp.diags([-np.ones(n - 1), np.full(n, 2 + 1j), -np.ones(n - 1)], [-1, 0, 1]).astype(dtype))
    b = np.zeros(n, dtype)
    b[:2] = 1, 1j  # b^T b = 0
    for b_j in (b, 3 * b + np.finfo(dtype).eps * np.eye(n, dtype=dtype)[0]):  # or only rounding
        solution = fl.solve_shifted(backend.move(A), backend.move(b_j), [0.1, 1j], rtol)
        assert [s.method for s in solution.columns] == ["multi-shift cocg"] * 2 and solution.all_converged
        X = backend.fetch(solution.x)
        for j, s in enumerate(solution.shifts):
            S = (A + s * sp.eye(n)).tocsr().astype(np.complex128)
            assert residual(S, b_j, X[:, j]) <= 1.1 * rtol * np.linalg.norm(b_j)


def test_what_does_not_converge_is_told():
    A, b = system("spd")
    for method in ("cg", "cocg", "gmres"):
        solution = fl.solve_shifted(A, b, REAL, method=method, maxiter=3)
        assert not solution.all_converged and solution[0].status is Status.MAX_ITERATIONS
        assert solution[0].residual_norm == pytest.approx(residual(A, b, solution.x[:, 0]), rel=1e-6)
        assert np.isfinite(solution.x).all()
    with pytest.raises(NotConverged):
        fl.solve_shifted(A, b, REAL, maxiter=3, raise_on_failure=True)
    singular = fl.solve_shifted(sp.diags(np.arange(1.0, 31)).tocsr(), np.ones(30), [-3.0, 0.0], method="gmres")
    assert not singular[0].converged and singular[1].converged


@pytest.mark.parametrize("restart", [8, 12])
def test_shifted_gmres_restarts_with_residuals_that_stay_multiples(restart):
    A, b = system("general")
    solution = fl.solve_shifted(A, b, np.array([0.3, 1.0, 4.0]), restart=restart)
    holds(A, b, solution)
    longer = fl.solve_shifted(A, b, np.array([0.3, 1.0, 4.0]), restart=144)
    assert longer.products < solution.products


def test_shifted_gmres_ends_after_a_cycle_that_gains_nothing():
    n = 300
    A = sp.csr_matrix((np.ones(n), (np.arange(n), np.r_[1:n, 0])), shape=(n, n))  # no gain in less than n columns
    for b in (np.eye(n)[0], np.random.default_rng(0).standard_normal(n)):
        family = multishift.arnoldi_family(System.checked(A, b), np.array([0.0, 0.5]), 1e-8, 3000, 20)
        assert family.products <= 300 and np.isfinite(family.X).all()
        for x, shift, sizes in zip(family.X, (0.0, 0.5), family.sizes, strict=True):
            assert np.linalg.norm(b - A @ x - shift * x) == pytest.approx(sizes[-1], rel=1e-6)
    full = fl.solve_shifted(A, b, [0.0, 0.5], method="gmres", restart=n)
    assert full.all_converged and full.products <= n + 2


@pytest.mark.parametrize("options", [{"method": "gmres", "restart": 20}, {"recipe": "jacobi"}], ids=str)
def test_x_does_not_depend_on_the_threads_of_blas(options):
    n = 60_000
    A = sp.diags([-1.3 * np.ones(n - 1), 2.2 * np.ones(n), -0.7 * np.ones(n - 1)], [-1, 0, 1]).tocsr()
    b, shifts, found = np.random.default_rng(0).standard_normal(n), [0.3, 0.5, 0.6, 0.7], []
    for threads in (1, 2):
        with threadpool_limits(threads, "blas"):
            found.append(fl.solve_shifted(A, b, shifts, **options).x)
    np.testing.assert_array_equal(*found)


def test_zero_b_and_extreme_b():
    A, b = system("spd")
    solution = fl.solve_shifted(A, 0 * b, REAL)
    assert solution.all_converged and not solution.x.any() and solution.iterations == 0
    for factor in (2.0**-600, 2.0**600):
        for method in ("cg", "gmres"):
            far = fl.solve_shifted(A, b * factor, REAL, method=method)
            near = fl.solve_shifted(A, b, REAL, method=method)
            np.testing.assert_allclose(far.x / factor, near.x, rtol=1e-6, atol=1e-9)
            assert far.all_converged


def test_a_linear_operator_and_a_dense_matrix():
    A, b = system("general")
    op = spla.LinearOperator(A.shape, matvec=lambda v: A @ v, dtype=A.dtype)
    for form in (op, A.toarray()):
        for shifts in (REAL, COMPLEX):
            holds(A, b, fl.solve_shifted(form, b, shifts))
    with pytest.raises(fl.MatrixError, match="a recipe needs the entries of A"):
        fl.solve_shifted(op, b, REAL, recipe=fl.ILU0())


@pytest.mark.parametrize("options", [{}, {"method": "gmres", "restart": 20}, {"method": "cg"}], ids=str)
def test_the_products_of_an_operator_are_counted_each(options):
    A, b = system("spd")
    calls = []
    op = spla.LinearOperator(A.shape, matvec=lambda v: calls.append(1) or A @ v, dtype=A.dtype)
    for rtol, maxiter in ((1e-8, None), (1e-14, 40), (1e-8, 4)):
        calls.clear()
        solution = fl.solve_shifted(op, b, [0.0, 0.5, 2.0], rtol, maxiter=maxiter, **options)
        assert solution.products == len(calls) > 4


def test_its_repr_speaks_of_shifts():
    A, b = system("spd")
    solution = fl.solve_shifted(A, b, REAL)
    assert repr(solution).startswith("SolutionOfShifts(multi-shift cg: 7 of 7 shifts converged, ")
    assert repr(fl.cg(A, np.stack([b, b], axis=1))).startswith("SolutionOfColumns(cg: 2 of 2 columns converged, ")


# By factors


@pytest.mark.parametrize(
    ("kind", "recipe", "shifts", "method"),
    [
        ("spd", fl.IC0(), REAL, "cg"),
        ("spd", fl.ILU0(), COMPLEX, "gmres"),
        ("general", fl.ILU0(), REAL, "gmres"),
        ("general", fl.ILU0(), COMPLEX, "gmres"),
        ("general", fl.SparseLU(), COMPLEX, "gmres"),
    ],
)
def test_factors_of_a_few_shifts_serve_those_near_them(kind, recipe, shifts, method):
    A, b = system(kind)
    solution = fl.solve_shifted(A, b, shifts, recipe=recipe)
    holds(A, b, solution)
    assert solution.factorizations == 3 and {s.method for s in solution.columns} == {method}
    assert all(s.recipe == repr(recipe) for s in solution.columns)


@pytest.mark.parametrize(
    ("diagonal", "shifts", "method"),
    [
        (5.0, [-1.0, -0.5], "cg"),  # the rows show that 2 < 4
        (5.0, [-3.5, 0.0], "gmres"),  # indefinite
        (-1.0, [3.5, 4.0], "cg"),
        (-1.0, [2.5, 4.0], "gmres"),
        (2.0, [0.0, 0.1], "cg"),  # a positive diagonal
        (5.0, [-1.0, 1j], "gmres"),
    ],
)
def test_cg_takes_what_may_be_definite_with_its_shifts(diagonal, shifts, method, backend):
    n = 60
    A = sp.diags([-np.ones(n - 1), np.full(n, diagonal), -np.ones(n - 1)], [-1, 0, 1]).tocsr()
    recipe = fl.IC0() if method == "cg" else fl.Jacobi()
    solution = fl.solve_shifted(backend.move(A), backend.move(np.ones(n)), shifts, recipe=recipe)
    assert {s.method for s in solution.columns} == {method} and solution.all_converged


def test_more_factors_and_guesses_take_fewer_iterations(monkeypatch):
    A, b = system("general", m=20)
    shifts = 1j * np.linspace(0, 4, 12)
    one, all_of_them = (fl.solve_shifted(A, b, shifts, recipe=fl.ILU0(), factorizations=k) for k in (1, 12))
    assert (one.factorizations, all_of_them.factorizations) == (1, 12)
    assert all_of_them.iterations < one.iterations
    monkeypatch.setattr(Shifted, "guess", lambda self, j, known, space=None: None)
    assert one.iterations < 0.8 * fl.solve_shifted(A, b, shifts, recipe=fl.ILU0(), factorizations=1).iterations


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("shifts", [REAL, COMPLEX], ids=["real", "complex"])
@pytest.mark.parametrize("kind", ["general", "symmetric"])
def test_a_recycled_space_serves_all_shifts(kind, dtype, shifts, backend):
    """Also a complex symmetric A. Products fall, by those of the space itself not at all."""
    A, b = system("spd" if kind == "symmetric" else kind, dtype, m=20)
    A = sp.csr_matrix(A.real + 0.05j * sp.eye(b.size)) if kind == "symmetric" and dtype == np.complex128 else A
    with_it, without = (
        fl.solve_shifted(
            backend.move(A), backend.move(b), 0.1 * shifts, recipe=fl.Jacobi(), method="gmres", recycle=recycle
        )
        for recycle in (True, False)
    )
    X = backend.fetch(with_it.x)
    for j, s in enumerate(with_it.shifts):
        assert residual((A + s * sp.eye(b.size)).tocsr(), b, X[:, j]) <= 1.01e-8 * np.linalg.norm(b)
    assert with_it.all_converged and with_it.products < 0.8 * without.products
    assert with_it.products == with_it.iterations + len(shifts)
    # the first shift that is solved has no vectors yet, and takes the most; a guess that is good enough needs none
    taken = [s.iterations for s in with_it.columns]
    said = ["recycled vectors" in s.explain() for s in with_it.columns]
    assert said == [0 < k < max(taken) for k in taken]
    assert not any("recycled" in s.explain() for s in without.columns)


def test_the_products_of_a_recycled_space_are_no_more_than_counted(monkeypatch):
    A, b = system("general", m=20)
    calls, product = [], Operator.__matmul__

    def counted(self, v):
        calls.append(self.name == "A")
        return product(self, v)

    monkeypatch.setattr(Operator, "__matmul__", counted)
    found = fl.solve_shifted(A, b, 0.1 * REAL, recipe=fl.ILU0(), method="gmres", recycle=True)
    # one for the true residual of each shift; each but the first begins with the residual of its guess
    assert found.all_converged and sum(calls) == found.iterations + 2 * len(REAL) - 1


def test_a_guess_with_a_space_leaves_no_more_than_one_without():
    A, b = system("general")
    work = Shifted(System.checked(fl.as_csr(A), b), fl.as_csr(A), REAL, 1e-8, 0.0, 100, 50)
    known = [(s, spla.spsolve((A + s * sp.eye(b.size)).tocsc(), b)) for s in (0.2, 0.7)]
    space = fl.RecycledSpace(5)
    fl.gmres((A + 0.2 * sp.eye(b.size)).tocsr(), b, recycle=space, restart=20)
    space.shift(REAL[3] - 0.2)
    S = (A + REAL[3] * sp.eye(b.size)).tocsr()
    np.testing.assert_allclose(S @ space.W, space.image, atol=1e-10 * abs(space.image).max())
    images = np.hstack([np.stack([S @ x for _, x in known], axis=1), space.image])
    best = np.linalg.lstsq(images, b, rcond=None)[1]
    size = np.linalg.norm(b - S @ work.guess(3, known, space))
    assert size == pytest.approx(best[0] ** 0.5, rel=1e-6)
    assert size < np.linalg.norm(b - S @ work.guess(3, known))


def test_the_space_is_kept_where_it_pays_and_dropped_where_it_does_not(monkeypatch):
    A = sp.csr_matrix(fl.gallery.elasticity(8, 4, 4))
    b, shifts = np.random.default_rng(0).standard_normal(A.shape[0]), 1e-3j * np.arange(1, 9)
    options = {"recipe": fl.Jacobi(), "method": "gmres", "factorizations": 1}
    own, without = (fl.solve_shifted(A, b, shifts, recycle=r, **options) for r in (None, False))
    assert own.all_converged and own.iterations < 0.8 * without.iterations
    assert sum("recycled vectors" in s.explain() for s in own.columns) >= 6
    shift = fl.RecycledSpace.shift

    def spoiled(self, change):  # vectors that keep nothing away
        shift(self, change)
        if self.W is not None:
            self.W[:], self.follows = np.random.default_rng(0).standard_normal(self.W.shape), False

    monkeypatch.setattr(fl.RecycledSpace, "shift", spoiled)
    own = fl.solve_shifted(A, b, shifts, **options)
    said = [[text for text in s.seen if "recycled" in text] for s in own.columns]
    assert own.all_converged and sum("were dropped" in text for texts in said for text in texts) == 1
    near = np.argsort(abs(shifts - shifts[4]), kind="stable")  # the way of the solves
    last = max(i for i, j in enumerate(near) if said[j])
    assert last < len(shifts) - 1 and "were dropped" in said[near[last]][0]  # then all go on without


def test_where_gmres_was_chosen_and_does_not_converge_idrs_goes_on():
    n = 200
    A, b = sp.csr_matrix(np.roll(np.eye(n), 1, axis=0)), np.eye(n)[0]  # gmres(50) hardly moves
    shifts = np.array([0.1, 0.2, 0.3])
    solution = fl.solve_shifted(A, b, shifts, recipe=fl.Jacobi())
    holds(A, b, solution)
    assert {s.method for s in solution.columns} == {"idrs"}
    said = ["gmres(50) did not converge in 500 iterations" in s.explain() for s in solution.columns]
    assert said == [True, False, False]
    first = solution.columns[0]
    assert len(first.history) == len(first.recurrence) == first.iterations + 1 and first.iterations > 500
    assert solution.products == solution.iterations + 4  # for true residuals, of gmres too
    few = fl.solve_shifted(A, b, shifts, recipe=fl.Jacobi(), maxiter=120)  # three cycles are not even allowed
    assert {(s.method, s.status) for s in few.columns} == {("gmres", Status.MAX_ITERATIONS)}
    asked = fl.solve_shifted(A, b, shifts[:1], recipe=fl.Jacobi(), method="gmres", maxiter=700)
    assert asked.columns[0].method == "gmres" and asked.iterations == 700


def test_a_solve_that_doubts_the_space_has_a_bound():
    n = 300
    D = np.concatenate([[1e-4, 1e-3, 1e-2, 1e-1], np.linspace(1, 3, n - 4)])
    A, b = sp.csr_matrix(np.diag(D) + 0.01 * np.triu(np.ones((n, n)), 1)), np.ones(n)
    shifts = np.r_[0, np.geomspace(1e-4, 1e8, 11)]
    options = {"recipe": fl.Jacobi(), "method": "gmres", "restart": 10, "factorizations": 1}
    own, asked, without = (fl.solve_shifted(A, b, shifts, recycle=r, **options) for r in (None, True, False))
    holds(A, b, own)
    assert not without.all_converged and own.iterations < 2 * asked.iterations
    assert own.products >= own.iterations + len(shifts)
    ended = [any("was ended after" in text for text in s.seen) for s in own.columns]
    assert any(ended)
    for s in own.columns:
        assert len(s.history) == len(s.recurrence) == s.iterations + 1
    few = fl.solve_shifted(A, b, shifts, maxiter=12, **options)
    assert max(s.iterations for s in few.columns) <= 12


@pytest.mark.parametrize("asked", [True, None])
def test_an_emptied_space_is_filled_again(asked, monkeypatch):
    monkeypatch.setattr(recycling, "GROWN", np.inf)  # a ripe space is left as it is
    A = fl.as_csr(fl.gallery.elasticity(8, 4, 4))
    b = np.random.default_rng(0).standard_normal(A.n)
    F = fl.Jacobi().factor(A)
    recycled = SpaceOverShifts(F, A, 50, asked)

    def solve(shift, between=lambda space: None):
        space = recycled.space_for(shift)
        between(space)
        found = fl.gmres((A.tosparse() + shift * sp.eye(A.n)).tocsr(), b, M=F, recycle=space, restart=50)
        recycled.seen(found.iterations, np.log(found.history[0] / found.residual_norm))

    for shift in np.arange(5) * 1e-6:  # more than those after which it is left as it is
        solve(shift)
    assert recycled.space.size and not recycled.space.renew
    recycled.space.drop()
    solve(1e-5)
    assert recycled.space.size  # filled
    for shift in 1e-5 + np.arange(5) * 1e-6:
        solve(shift)
    assert not recycled.space.renew
    solve(2e-5, lambda space: space.drop())  # as a solve does with which the method fails
    assert "were dropped" in recycled.why and (recycled.space is not None) == bool(asked)
    if asked:
        solve(3e-5)
        assert recycled.space.size


def test_wide_bases_are_left_to_idrs():
    A, b = fl.gallery.problem("poisson5:60"), np.ones(3600)
    with_few, with_many = (
        fl.solve_shifted(A, b, 1j * REAL[1:3], recipe=recipe, factorizations=1)
        for recipe in (fl.Jacobi(), fl.SparseLU())
    )
    assert {s.method for s in with_few.columns} == {"idrs"} and {s.method for s in with_many.columns} == {"gmres"}


def test_a_guess_is_the_best_combination_of_earlier_solutions():
    A, b = system("general")
    work = Shifted(System.checked(fl.as_csr(A), b), fl.as_csr(A), REAL, 1e-8, 0.0, 100, 50)
    known = [(s, spla.spsolve((A + s * sp.eye(b.size)).tocsc(), b)) for s in (0.2, 0.7, 1.5)]
    guess = work.guess(3, known)
    S = A + REAL[3] * sp.eye(b.size)
    best = np.linalg.lstsq(np.stack([S @ x for _, x in known], axis=1), b, rcond=None)[1]
    assert np.linalg.norm(b - S @ guess) == pytest.approx(best[0] ** 0.5, rel=1e-6)
    assert work.guess(3, []) is None


def test_a_matrix_without_a_full_diagonal_is_shifted():
    A = sp.csr_matrix(np.array([[0.0, 1, 0], [-1, 0, 1], [0, -1, 2]]))
    holds(A, np.ones(3), fl.solve_shifted(A, np.ones(3), [1.0, 2.0], recipe=fl.ILU0()))
    holds(A, np.ones(3), fl.solve_shifted(A, np.ones(3), [1.0, 2.0]))


@pytest.mark.parametrize(
    ("shifts", "match"),
    [
        ([], r"shifts has shape \(0,\); \(k,\) with k >= 1"),
        ([[1.0, 2.0]], r"shifts has shape \(1, 2\)"),
        ([0.0, np.nan], r"shifts\[1\] is NaN or Inf"),
        (["a"], "shifts is .*an array of k numbers is needed"),
        (None, "shifts is None"),
    ],
)
def test_bad_shifts_are_named(shifts, match):
    A, b = system("spd")
    with pytest.raises(fl.ParameterError, match=match):
        fl.solve_shifted(A, b, shifts)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"method": "bicg"}, "method='bicg'"),
        ({"method": "cgg", "recipe": "ilu0"}, "there is no method 'cgg'|cgg"),
        ({"recipe": "ilu00"}, "ilu00"),
        ({"recipe": "ilu0", "factorizations": 0}, "factorizations=0"),
        ({"rtol": -1}, "rtol=-1"),
        ({"restart": 0}, "restart=0"),
        ({"factorizations": 3}, "factorizations has no effect without a recipe"),
        ({"restart": 50, "method": "cg"}, "restart has no effect with method='cg'"),
        ({"restart": 50, "method": "cocg"}, "restart has no effect with method='cocg'"),
        ({"restart": 50, "recipe": "ilu0"}, "restart has no effect with method='auto'"),
        ({"restart": 0, "recipe": "ilu0", "method": "gmres"}, "restart=0"),
        ({"recycle": True}, "recycle has an effect with a recipe"),
        ({"recycle": False, "recipe": "ilu0", "method": "idrs"}, "recycle has an effect with a recipe"),
        ({"recycle": 3, "recipe": "ilu0"}, "recycle"),
    ],
)
def test_bad_parameters_are_named(options, match):
    A, b = system("spd")
    with pytest.raises(fl.ParameterError, match=match):
        fl.solve_shifted(A, b, REAL, **options)


def test_a_complex_shift_is_one_number():
    np.testing.assert_array_equal(checked_shifts(2j), [2j])
    assert checked_shifts(np.float32(2)).dtype == np.float64


# The kernels


def values(dtype, wide, k, seed, n=40):
    rng = np.random.default_rng(seed)

    def numbers(kind, *shape):
        v = rng.uniform(0.5, 1.5, shape)
        return (v + 0.3j * v if np.dtype(kind).kind == "c" else v).astype(kind)

    real = np.empty(0, dtype).real.dtype
    return {
        "state": np.array([RUNNING, 2, 0, 0], np.int32),
        "norms": np.array([0.5, 0, 0.3, 0, 0, 0, 0], real),
        "sizes": np.zeros((k, 5), real),
        "definite": 0,
        **{name: numbers(dtype, 1) for name in ("rho", "rho_old", "curvature")},
        "past": numbers(dtype, 2),
        **{name: numbers(wide, k) for name in ("sigma", "theta", "zeta", "alpha", "beta")},
        "moving": np.full(k, 3, np.int32),
        "ended": (rng.uniform(size=k) < 0.3).astype(np.int32),
    }, {
        "moving": rng.integers(0, 3, k).astype(np.int32),
        **{name: numbers(wide, k) for name in ("zeta", "alpha", "beta")},
        "r": numbers(dtype, n),
        "P": numbers(wide, k, n),
        "X": numbers(wide, k, n),
    }


def called(kernels, name, given_, move=lambda v: v, fetch=lambda v: v):
    moved = {k: move(v.copy()) if isinstance(v, np.ndarray) else v for k, v in given_.items()}
    with np.errstate(all="ignore"):
        getattr(kernels.multishift, name)(*moved.values())
    return {k: fetch(v) for k, v in moved.items() if not isinstance(v, int)}


def agree(backend, name, given_):
    want = called(reference, name, given_)
    got = called(kernels_for(backend.xp.empty(0)), name, given_, backend.move, backend.fetch)
    for key, value in want.items():
        if value.dtype.kind == "i":
            np.testing.assert_array_equal(got[key], value, err_msg=key)
        else:
            tolerance = 200 * np.finfo(value.dtype).eps  # terms cancel
            largest = np.max(abs(value[np.isfinite(value)]), initial=1.0)
            np.testing.assert_allclose(got[key], value, rtol=tolerance, atol=tolerance * largest, err_msg=key)
    return want


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("complex_shifts", [False, True])
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(k=st.integers(1, 300), seed=st.integers(0, 2**32 - 1), n=st.sampled_from([1, 40, 2**14 + 3]))
def test_the_kernels_are_those_of_the_specification(backend, dtype, complex_shifts, k, seed, n):
    wide = np.result_type(dtype, np.complex64) if complex_shifts else np.dtype(dtype)
    scalars, vectors = values(dtype, wide, k, seed, n if k < 9 else 40)
    after = agree(backend, "coefficients", scalars)
    agree(backend, "step", vectors)
    assert (after["moving"] == 3).sum() == 0 and ((after["moving"] > 0) == (scalars["ended"] == 0)).all()


@pytest.mark.parametrize(
    ("changed", "definite", "code"),
    [
        ({"curvature": 0}, 0, BROKEN),
        ({"curvature": 0}, 1, INDEFINITE),
        ({"curvature": -1}, 1, INDEFINITE),
        ({"curvature": -1}, 0, RUNNING),
        ({"curvature": np.nan}, 1, NOT_FINITE),
        ({"rho": np.inf}, 0, NOT_FINITE),
        ({"rho": 1e-20}, 0, BROKEN),
        ({"rho_old": 0}, 0, BROKEN),
        ({"rho_old": 0}, 1, BROKEN),
        ({"rho_old": 1e-200, "curvature": 1e200}, 0, BROKEN),
        ({"zeta": 1e-9}, 1, CLAIMED),
    ],
)
def test_the_end_of_a_family_is_named(backend, changed, definite, code):
    scalars, _ = values(np.float64, np.float64, 5, 1)
    scalars["definite"], scalars["norms"][CLAIM] = definite, 1e-6
    for name, value in changed.items():
        scalars[name][:] = value
    after = agree(backend, "coefficients", scalars)
    assert after["state"][CODE] == code
    if code in (INDEFINITE, NOT_FINITE) or "rho_old" in changed:
        assert after["state"][ITERATIONS] == 2 and not after["moving"].any()


def test_a_shift_whose_recurrence_breaks_down_ends_alone(backend):
    scalars, _ = values(np.float64, np.float64, 3, 2)
    scalars["ended"][:], scalars["theta"][:], scalars["norms"][CLAIM] = 0, 1, 0
    for name in ("rho_old", "curvature"):
        scalars[name][:] = 1
    scalars["sigma"][1] = -1  # 1 + sigma alpha = 0
    after = agree(backend, "coefficients", scalars)
    assert list(after["ended"]) == [0, -3, 0] and list(after["moving"]) == [2, 0, 2]
    assert after["state"][CODE] == RUNNING and after["norms"][NORM] == 0.5
