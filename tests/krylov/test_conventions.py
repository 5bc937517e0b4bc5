"""SciPy's ways to call its methods, and to take their results."""

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from checks import refused
from krylov_cases import METHODS, kind_for, name, residual, system

import finelu as fl
from finelu.errors import MatrixError, NotConverged, ParameterError, WrongType
from finelu.result import Status


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_x0_may_be_M_b(method):
    A, b = system(kind_for(method))
    M = sp.diags(1 / A.diagonal())
    answers = [method(A, b, x0=x0, M=M, rtol=1e-9) for x0 in ("Mb", M @ b)]
    np.testing.assert_array_equal(answers[0].x, answers[1].x)
    assert answers[0].converged and answers[0].history[0] == pytest.approx(residual(A, b, M @ b))
    assert method(A, b, x0="Mb", maxiter=0).history[0] == pytest.approx(residual(A, b, b))  # M is the identity
    with refused(ParameterError, match="x0='mb'; one of Mb is needed"):
        method(A, b, x0="mb")


@pytest.mark.parametrize("method", METHODS, ids=name)
@pytest.mark.parametrize("tolerance", [{"rtol": np.inf}, {"atol": np.inf}, {"rtol": np.inf, "atol": np.inf}])
def test_an_infinite_tolerance_asks_for_nothing(method, tolerance):
    A, b = system(kind_for(method))
    for right in (b, 0 * b, 1e-300 * b):
        solution = method(A, right, **tolerance)
        assert solution.converged and solution.iterations == 0
        np.testing.assert_array_equal(solution.x, 0 * b)
    with refused(ParameterError, match="rtol=nan"):
        method(A, b, rtol=np.nan)


@pytest.mark.parametrize("method", METHODS, ids=name)
def test_x_of_a_column_is_a_vector(method):
    A, b = system(kind_for(method))
    column = method(A, b[:, None], x0=np.zeros((b.size, 1)), rtol=1e-9)
    assert column.x.shape == b.shape
    np.testing.assert_array_equal(column.x, method(A, b, rtol=1e-9).x)


def test_a_tolerance_relative_to_the_first_residual():
    A, b = system("general")
    exact = spla.spsolve(A.tocsc(), b)
    x0 = exact + 1e-6 * np.cos(np.arange(b.size))
    first = residual(A, b, x0)
    assert fl.gmres(A, b, x0=x0, rtol=1e-3).iterations == 0
    solution = fl.gmres(A, b, x0=x0, rtol=1e-3, relative_to="initial")
    assert solution.converged and solution.iterations > 0 and residual(A, b, solution.x) <= 1e-3 * first
    assert not fl.gmres(A, b, x0=x0, rtol=1e-3, relative_to="initial", maxiter=1).converged
    plain, without_x0 = (fl.gmres(A, b, rtol=1e-3, **kind) for kind in ({}, {"relative_to": "initial"}))
    np.testing.assert_array_equal(plain.x, without_x0.x)
    for wrong in ("x0", np.array(["b", "b"]), np.array([1, 2]), None):
        with refused(ParameterError, match="relative_to=.*; one of b, initial is needed"):
            fl.gmres(A, b, relative_to=wrong)


def test_a_failure_may_be_raised():
    A, b = system("spd")
    assert fl.cg(A, b, raise_on_failure=True).converged
    with pytest.raises(NotConverged, match="did not converge to rtol=1e-05: cg ended after 2 iterations") as caught:
        fl.cg(A, b, maxiter=2, raise_on_failure=True)
    assert caught.value.solution.status is Status.MAX_ITERATIONS and caught.value.solution.iterations == 2


def test_a_solution_is_the_pair_of_x_and_info():
    A, b = system("spd")
    solution = fl.cg(A, b)
    assert len(solution) == 2 and solution[1] == solution[-1] == 0 and bool(solution)
    assert solution[0] is solution.x is solution[-2] and next(iter(solution)) is solution.x
    assert solution[np.int64(0)] is solution.x and solution[np.array(1)] == 0
    assert fl.cg(A, b, maxiter=3)[1] == 3 and not fl.cg(A, b, maxiter=3)
    for index in (2, -3, True, np.False_, slice(2), [0], np.arange(b.size) < 3, 1.0):
        with pytest.raises(WrongType, match=r"a Solution is no array; use solution\.x"):
            solution[index]
    for use in (
        lambda s: np.asarray(s),
        lambda s: np.linalg.norm(s),
        lambda s: s - b,
        lambda s: b - s,
        lambda s: A @ s,
    ):
        with pytest.raises(WrongType, match=r"use solution\.x"):
            use(solution)


# gmres


def test_a_callback_of_gmres_without_its_type_is_called_with_x_and_a_warning():
    A, b = system("general")
    seen = []
    with pytest.warns(DeprecationWarning, match="gmres called without specifying `callback_type`") as caught:
        assert fl.gmres(A, b, restart=5, maxiter=10, callback=lambda x: seen.append(x.shape)).iterations == 10
    assert seen == [b.shape] * 2 and caught[0].filename == __file__


@pytest.mark.parametrize("kind", ["x", "pr_norm"])
@pytest.mark.parametrize("n", [100, 200])
def test_the_limit_of_gmres_that_counts_cycles_is_10_n_of_them_by_default(kind, n):
    A, b = fl.gallery.tridiagonal(n), np.ones(n)
    solution = fl.gmres(A, b, rtol=1e-8, restart=20, callback_type=kind)
    assert solution.converged and solution.iterations > 10 * n
    assert fl.gmres(A, b, rtol=1e-8, restart=20).status is Status.MAX_ITERATIONS


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["x", "pr_norm", "legacy"])
def test_the_type_of_a_callback_of_gmres_says_what_it_gets_and_what_maxiter_counts(kind):
    A, b = system("general")
    seen, looks = [], []
    options = {"restart": 5, "maxiter": 3, "rtol": 1e-12}
    solution = fl.gmres(
        A, b, callback=lambda v: seen.append(np.copy(v)), callback_type=kind, watch=lambda *look: looks.append(look),
        **options,
    )  # fmt: skip
    iterations = 3 if kind == "legacy" else 15
    assert solution.status is Status.MAX_ITERATIONS and solution.iterations == iterations and solution.info == 3
    np.testing.assert_array_equal(solution.x, fl.gmres(A, b, **options | {"maxiter": iterations}).x)
    assert [iteration for iteration, _ in looks] == list(range(iterations + 1))
    if kind == "x":
        assert len(seen) == 3 and all(x.shape == b.shape for x in seen)
    else:
        np.testing.assert_allclose(seen, [norm / np.linalg.norm(b) for _, norm in looks[1:]])
    assert fl.gmres(A, b, callback_type=kind, **options).info == 3  # without a callback, too


@pytest.mark.parametrize("kind", ["x", "pr_norm", "legacy"])
def test_a_callback_of_any_type_ends_the_solve(kind):
    A, b = system("general")
    for stop in (lambda _: True, lambda _: next(iter(()))):
        solution = fl.gmres(A, b, restart=5, rtol=1e-12, callback=stop, callback_type=kind)
        assert solution.status is Status.INTERRUPTED and solution.iterations == (5 if kind == "x" else 1)
    with refused(ParameterError, match="callback_type='norm'; one of None, 'x', 'pr_norm', 'legacy' is needed"):
        fl.gmres(A, b, callback_type="norm")
    for restart in ("5", 0, 2.5, np.array([3, 4])):
        with refused(ParameterError, match="restart="):
            fl.gmres(A, b, restart=restart, callback_type=kind)


# minres


@pytest.mark.parametrize("form", ["csr", "dense", "operator", "finelu"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128], ids=name)
def test_minres_shifts_the_diagonal(form, dtype):
    A, b = system("spd", dtype)
    moved = A - 1.3 * sp.identity(b.size, dtype=A.real.dtype)
    given = {
        "csr": A,
        "dense": A.toarray(),
        "operator": spla.LinearOperator(A.shape, matvec=lambda x: A @ x, dtype=dtype),
        "finelu": fl.as_csr(A),
    }[form]
    rtol = 1e-4 if dtype is np.float32 else 1e-9
    solution = fl.minres(given, b, shift=1.3, rtol=rtol)
    assert solution.converged and solution.x.dtype == dtype
    assert residual(moved, b, solution.x) <= 1.01 * rtol * np.linalg.norm(b)
    for shift, shown in ((np.inf, "inf"), (np.array([1, 2.0]), "array"), ("1", "'1'"), (1j, "1j")):
        with refused(ParameterError, match=f"shift={shown}"):
            fl.minres(given, b, shift=shift)


def test_minres_raises_for_an_asymmetric_matrix_if_asked():
    A, b = system("general")
    assert fl.minres(A, b).status is Status.NOT_SYMMETRIC
    with refused(MatrixError, match="check=True: A or M is not symmetric"):
        fl.minres(A, b, check=True)
    assert fl.minres(*system("indefinite"), check=True).converged
    with refused(ParameterError, match="check=1"):
        fl.minres(A, b, check=1)


def test_minres_prints_its_norms_if_asked(capsys):
    A, b = system("indefinite")
    norms = []
    solution = fl.minres(A, b, show=True, watch=lambda _, norm: norms.append(norm))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:-1]] == [[f"{k}", f"{norm:.6e}"] for k, norm in enumerate(norms)]
    assert len(norms) == solution.iterations + 1
    assert lines[-1] == f"minres: converged, {Status.CONVERGED.value}"
    fl.minres(A, b)
    assert capsys.readouterr().out == ""
