"""Residuals at the rounding of their terms, above the tolerance: the precision ends, and says so at once."""

import itertools
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import finelu as fl
from finelu.result import Status

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
EPS = np.finfo(float).eps


def case(name):
    """(A, b) of a system that a client has solved; the test is skipped where it is not at hand."""
    path = CASES / f"{name}.npz"
    if not path.exists():
        pytest.skip(f"needs {path}")
    z = np.load(path)
    return sp.csr_array((z["data"], z["indices"], z["indptr"]), shape=z["shape"]), z["b"]


def cancelling(n=300):
    """A system whose terms |A| |x| are 1e4 times as large as b: no x in double precision leaves less than 1e-13 b."""
    A = fl.gallery.tridiagonal(n)
    return A, A @ (1e4 * np.sin(np.arange(n) / 40.0))


def backward_error(A, b, x):
    """max |b - A x|_i / (|A| |x| + |b|)_i, with b - A x in extended precision."""
    A = sp.coo_array(A)
    r = b.astype(np.longdouble)
    np.subtract.at(r, A.row, A.data.astype(np.longdouble) * x.astype(np.longdouble)[A.col])
    return float((abs(r) / (abs(A) @ abs(x) + abs(b))).max())


@pytest.mark.parametrize(("name", "rtol"), [("skfem_Ex48", 1e-12), ("fipy_cahnHilliard_tanh1D", 1e-15)])
def test_solve_says_so_after_one_attempt(name, rtol):
    A, b = case(name)
    solution = fl.solve(A, b, rtol=rtol)
    assert solution.status is Status.PRECISION_LIMIT and len(solution.attempts) == 1 and solution.iterations <= 6
    assert "componentwise backward error" in solution.explain()
    assert backward_error(A, b, solution.x) <= 4 * EPS
    assert solution.residual_norm <= solution.attempts[0].residual * np.linalg.norm(b) * 1.01  # the best x that was met


def test_a_tolerance_at_the_rounding_of_factors_has_one_route_whatever_the_clock(everywhere):
    A, b = case("sfepy_mM")
    first = fl.solve(A, b, rtol=1e-12)
    moments = itertools.count(step=0.5)
    for name in ("now", "perf_counter"):
        everywhere(name, lambda: float(next(moments)))
    again = fl.solve(A, b, rtol=1e-12)
    assert (again.x == first.x).all() and again.recipe == first.recipe and len(again.attempts) == len(first.attempts)
    assert first.converged and np.linalg.norm(b - A @ first.x) <= 1e-12 * np.linalg.norm(b)


def test_solve_says_so_of_a_small_system():
    A, b = cancelling()
    reached = fl.solve(A, b, rtol=1e-10).residual_norm / np.linalg.norm(b)
    solution = fl.solve(A, b, rtol=reached / 100)
    assert solution.status is Status.PRECISION_LIMIT and len(solution.attempts) == 1
    assert backward_error(A, b, solution.x) <= 4 * EPS


@pytest.mark.parametrize("form", ["sparse", "dense"])
@pytest.mark.parametrize("method", [fl.cg, fl.minres, fl.gmres, fl.bicgstab, fl.bicg])
def test_a_method_says_so(method, form):
    A, b = cancelling()
    F = fl.SparseLU().factor(A)
    solution = method(A if form == "sparse" else A.toarray(), b, M=F, rtol=1e-17)
    assert solution.status is Status.PRECISION_LIMIT and solution.info == max(solution.iterations, 1)
    assert backward_error(A, b, solution.x) <= 4 * EPS and "backward error" in solution.explain()


def test_a_method_that_stagnates_above_the_rounding_of_its_terms_does_not():
    A = fl.gallery.tridiagonal(100).tolil()
    A[0, 0] = A[-1, -1] = 1  # the sums of all rows are 0
    assert fl.minres(A.tocsr(), np.cos(np.arange(100)) + 0.1, rtol=1e-8).status is Status.STAGNATED


@pytest.mark.parametrize("method", [fl.gmres, fl.fgmres])
@pytest.mark.parametrize("shift", [1e-8, 1e-4])
def test_a_method_whose_x_has_grown_along_a_null_vector_does_not(method, shift):
    A = fl.gallery.tridiagonal(100).tolil()
    A[0, 0] = A[-1, -1] = 1  # the sums of all rows are 0
    A = A.tocsr()
    b = np.random.default_rng(2).standard_normal(100)
    b -= b.mean()
    M = fl.ILU0(shift=shift).factor(A)
    for grown, status in ((1e11, Status.PRECISION_LIMIT), (1e15, Status.STAGNATED)):
        solution = method(A, b, np.full(100, grown), M=M, rtol=1e-12)  # how far x grows from 0 is due to rounding alone
        assert backward_error(A, b, solution.x) <= 4 * EPS and abs(solution.x.mean() / grown - 1) < 0.1
        assert solution.status is status


def test_an_x_with_correct_digits_is_returned_though_x_0_has_a_smaller_residual():
    """A takes x of 1 to 1e24 to b of 1: terms of 1e24 cancel."""
    n = 25
    A = sp.csr_matrix(sp.diags([np.ones(n), np.full(n - 1, -10.0)], [0, -1]))  # x_i = 10 x_(i-1) + b_i
    b = np.where(np.arange(n) % 2, 0.7, 1.3) / 3
    wanted = []
    for value in b:
        wanted.append(Fraction(value) + 10 * (wanted[-1] if wanted else 0))
    solution = fl.solve(A, b)
    residual = np.linalg.norm(
        [
            float(Fraction(v) - Fraction(x) + 10 * Fraction(y))
            for v, x, y in zip(b, solution.x, [0.0, *solution.x[:-1]], strict=True)
        ]
    )
    assert residual > np.linalg.norm(b) and solution.status is Status.PRECISION_LIMIT
    np.testing.assert_allclose(solution.x, np.array(wanted, float), rtol=1e-13)
    assert "larger than that of x = 0" in " ".join(solution.explain().split())
