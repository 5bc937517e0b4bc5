"""Richardson's iteration; and what all methods share: one name, one door."""

import pickle
import sys
from importlib import import_module
from inspect import isfunction

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from checks import DTYPES
from krylov_cases import METHODS, kind_for, name, residual, system

import finelu
from finelu import ILU0, Jacobi
from finelu.device import on_gpu
from finelu.krylov import METHODS as NAMES
from finelu.krylov import richardson
from finelu.krylov.operators import as_operator
from finelu.krylov.system import System
from finelu.result import Status

# One name, one thing; one door


@pytest.mark.parametrize("method", [*NAMES, "richardson"])
def test_a_method_is_a_function_that_hides_the_module_of_its_name(method):
    function = getattr(finelu.krylov, method)
    module = import_module(f"finelu.krylov.{method}")
    assert function is getattr(module, method) is getattr(finelu, method) is function.method.solve
    assert isfunction(function) and function.__name__ == method and pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize("method", METHODS, ids=name)
@pytest.mark.parametrize("dtype", [np.float64, np.complex64], ids=name)
def test_a_system_that_was_checked_is_solved_as_at_the_door(backend, method, dtype):
    A, b = (backend.move(v) for v in system(kind_for(method), dtype))
    F = Jacobi().factor(A)
    expected = method(A, b, M=F, rtol=1e-5)
    operators = as_operator(A, "A", b, dtype), b, as_operator(F, "M", b, dtype)
    for _ in range(2):  # nothing is left behind in the operators
        checked = finelu.krylov.iterate(method.__name__, System(*operators), rtol=1e-5)
        np.testing.assert_array_equal(backend.fetch(checked.x), backend.fetch(expected.x))
        np.testing.assert_array_equal(checked.history, expected.history)
        assert (checked.status, checked.recipe, checked.method) == (
            expected.status, expected.recipe, expected.method,
        )  # fmt: skip


def test_operators_are_shared_by_systems_of_any_size():
    A, b = system("spd")
    op = as_operator(A, "A", b, b.dtype)
    for scale in (1e-300, 1.0, 1e200):
        solution = finelu.krylov.iterate("cg", System(op, b * scale), rtol=1e-9)
        assert solution.converged and op.factor == 1
        assert residual(A, b, solution.x / scale) <= 1e-8 * np.linalg.norm(b)


@pytest.mark.parametrize("method", [*METHODS, richardson], ids=name)
def test_the_device_is_looked_up_at_the_door_and_not_in_each_iteration(method):
    A, b = system("spd")
    A = A + sp.eye(b.size)
    M = ILU0().factor(A)
    M.solve(b), M.solve(b, "H")  # the analysis of each is made at its first use
    looked, calls = [], []
    for maxiter in (3, 6):  # with 8 bicgstabl has ended
        looked.clear()
        sys.setprofile(lambda frame, event, _: looked.append(event) if frame.f_code is on_gpu.__code__ else None)
        try:
            solution = method(A, b, M=M, rtol=0, maxiter=maxiter)
        finally:
            sys.setprofile(None)
        assert solution.iterations == maxiter
        calls.append(len(looked))
    assert calls[0] == calls[1]


# Richardson's iteration; with block factors, see test_block_ilu.py


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_richardson_makes_corrections_until_the_true_residual_meets_the_tolerance(backend, dtype):
    A, b = system("spd", dtype)
    A = (A + 4 * sp.eye(b.size)).tocsr().astype(dtype)
    M = Jacobi().factor(backend.move(A))
    solution = richardson(backend.move(A), backend.move(b), M=M, rtol=1e-4)
    x, steps = np.zeros_like(b), [np.linalg.norm(b)]
    while steps[-1] > 1e-4 * steps[0]:
        x = x + (b - A @ x) / A.diagonal()
        steps.append(np.linalg.norm(b - A @ x))
    assert solution.converged and solution.iterations == len(steps) - 1 and solution.method == "richardson"
    np.testing.assert_allclose(solution.history, steps, rtol=3e-3)
    np.testing.assert_allclose(backend.fetch(solution.x), x, rtol=1e-3, atol=1e-4)


def test_richardson_keeps_to_the_arguments_of_all_methods(every):
    A, b = system("spd")
    A = A + 4 * sp.eye(b.size)
    M = sp.diags(1 / A.diagonal())
    seen, watched = [], []
    x0 = 0.9 * spla.spsolve(A.tocsc(), b)
    solution = richardson(A, b, x0, M=M, rtol=1e-9, callback=lambda x: seen.append(residual(A, b, x)))
    assert solution.history[0] == pytest.approx(0.1 * np.linalg.norm(b)) and len(seen) == solution.iterations
    np.testing.assert_allclose(seen, solution.history[1:], rtol=1e-5)
    stopped = richardson(A, b, M=M, rtol=0.0, watch=lambda i, norm: watched.append(i) or i == 4)
    assert stopped.status is Status.INTERRUPTED and max(watched) == 4
    fixed = richardson(A, b, M=M, rtol=0.0, maxiter=7)
    assert (fixed.status, fixed.iterations) == (Status.MAX_ITERATIONS, 7)
    assert richardson(A, b, M=M, atol=1e-3 * np.linalg.norm(b)).converged
    assert richardson(A, b, M=M, rtol=1e-30, maxiter=500).status is Status.MAX_ITERATIONS


def test_richardson_that_grows_ends_and_gives_the_best_back(backend):
    A, b = (backend.move(v) for v in system("general"))
    for maxiter, bound in ((1000, 1e8), (5, 1)):  # at once beyond 1e8 times the first residual; at the end beyond it
        solution = richardson(A, b, maxiter=maxiter)
        assert solution.status is Status.DIVERGED and not backend.fetch(solution.x).any()
        assert solution.recurrence[-1] > bound * solution.history[0] == bound * solution.residual_norm
        assert solution.recurrence[-2] <= 1e8 * solution.history[0]
