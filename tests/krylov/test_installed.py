"""The Krylov methods that `install` puts in place of SciPy's: SciPy's results and conventions."""

import pickle
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from checks import refused
from krylov_cases import system

import finelu as fl
from finelu import foreign
from finelu.errors import ParameterError
from finelu.interop.scipy import iterative
from finelu.result import Status

NAMES = ("bicg", "bicgstab", "cg", "gmres", "minres")
KINDS = {"cg": "spd", "minres": "indefinite"}  # the others: general


def both(name):
    return getattr(iterative, name), getattr(foreign, name)


def cases():
    """name -> (method, A, b, options) that finelu's methods refuse, and SciPy's do not."""
    A, b = system("spd")
    B, c = system("general")
    return {
        "cg, negative definite": ("cg", -A, b, {}),
        "cg, indefinite": ("cg", A - 0.3 * sp.eye(b.size), b, {"maxiter": 1000}),
        "cg, M negative definite": ("cg", A, b, {"M": -sp.eye(b.size)}),
        "minres, not symmetric": ("minres", B, c, {"maxiter": 7}),
        "minres, NaN": ("minres", A, np.full(b.size, np.nan), {"maxiter": 3}),
        "cg, NaN": ("cg", A, np.full(b.size, np.nan), {"maxiter": 3}),
        "gmres, no rows": ("gmres", sp.csr_matrix((0, 0)), np.zeros(0), {}),
        "cg, no rows": ("cg", sp.csr_matrix((0, 0)), np.zeros(0), {}),
    }


@pytest.mark.parametrize("case", cases())
def test_what_finelu_refuses_scipys_own_solves(case):
    name, A, b, options = cases()[case]
    ours, theirs = both(name)
    seen = [], []
    for f, xs in zip((ours, theirs), seen, strict=True):
        extra = {"callback_type": "x"} if name == "gmres" else {}
        x, info = f(A, b, **options, **extra, callback=lambda x, xs=xs: xs.append(x.copy()))
        xs.append(x)
        xs.append(info)
    np.testing.assert_equal(seen[0][-2:], seen[1][-2:])
    assert len(seen[0]) == len(seen[1])
    for one, other in zip(*seen, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)


def test_a_callback_that_finelu_has_called_is_not_called_again_for_the_same_iterations():
    n = 60
    A = sp.diags(np.where(np.arange(n) == 7, -1e-3, np.linspace(1, 30, n))).tocsr()  # cg sees it after some iterations
    b = np.ones(n)
    early = []
    assert fl.cg(A, b, rtol=1e-12, callback=lambda x: early.append(x)).status is Status.INDEFINITE and early
    counts = []
    for f in both("cg"):
        xs = []
        assert f(A, b, rtol=1e-12, callback=lambda x, xs=xs: xs.append(x.copy()))[1] == 0
        counts.append(len(xs))
    assert counts[0] == counts[1] > len(early)


def test_minres_raises_as_scipys_does():
    A, b = system("general")
    for f in both("minres"):
        with pytest.raises(ValueError, match="non-symmetric matrix"):
            f(A, b, check=True)
        with pytest.raises(ValueError, match="indefinite preconditioner"):
            f(*system("indefinite"), M=-sp.eye(b.size))


def test_minres_takes_flags_and_shifts_in_scipys_forms(capsys):
    A, b = system("indefinite")
    want = iterative.minres(A, b, shift=0.1, rtol=1e-9)[0]
    got = iterative.minres(A, b, shift=np.array([0.1]), show=0, check=1, rtol=1e-9)[0]
    np.testing.assert_array_equal(got, want)
    assert capsys.readouterr().out == ""
    iterative.minres(A, b, show=1)
    assert "minres: converged" in capsys.readouterr().out
    with refused(ParameterError, match="shift="):
        iterative.minres(A, b, shift=np.array([0.1, 0.2]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("error", [StopIteration("enough"), KeyError("k"), fl.errors.MatrixError("of the callback")])
def test_an_exception_of_a_callback_passes_through_and_its_result_has_no_meaning(name, error):
    A, b = system(KINDS.get(name, "general"))
    options = {"callback_type": "pr_norm"} if name == "gmres" else {}

    def fail(_):
        raise error

    for f in both(name):
        with pytest.raises(type(error)) as caught:
            f(A, b, callback=fail, **options)
        assert caught.value is error and error.__context__ is None
        assert f(A, b, callback=lambda _: True, **options)[1] == 0


@pytest.mark.parametrize("name", NAMES)
def test_an_installed_method_can_be_pickled(name):
    with fl.install():
        installed = getattr(spla, name)
        assert pickle.loads(pickle.dumps(installed)) is installed is getattr(iterative, name)
        with fl.install():
            assert getattr(spla, name) is installed
    assert installed.__name__ == name and installed.__doc__ == getattr(spla, name).__doc__
    with pytest.raises(TypeError, match="shfit"):
        installed(np.eye(2), np.ones(2), shfit=1)


@pytest.mark.parametrize("n", [100, 200])
def test_gmres_has_scipys_limit(n):
    A, b = fl.gallery.tridiagonal(n), np.ones(n)
    for f in both("gmres"):
        x, info = f(A, b, rtol=1e-8)
        assert info == 0 and np.linalg.norm(b - A @ x) <= 1.01e-8 * np.linalg.norm(b)


def test_gmres_counts_and_calls_as_scipys_does():
    A, b = system("general")
    ours, theirs = both("gmres")
    for options in ({"maxiter": 2}, {"maxiter": 2, "restart": 5}, {"maxiter": 3, "callback_type": "legacy"}):
        assert [f(A, b, rtol=1e-12, **options)[1] for f in (ours, theirs)] == [options["maxiter"]] * 2
        np.testing.assert_allclose(ours(A, b, rtol=1e-12, **options)[0], theirs(A, b, rtol=1e-12, **options)[0])
    norms = [], []
    for f, seen in zip((ours, theirs), norms, strict=True):
        with pytest.warns(DeprecationWarning, match="gmres called without specifying `callback_type`") as caught:
            assert f(A, b, rtol=1e-12, maxiter=7, callback=seen.append)[1] == 7
        assert f is theirs or caught[0].filename == __file__
    np.testing.assert_allclose(*norms)
    for f in (ours, theirs):
        with pytest.raises(ValueError, match="callback_type"), warnings.catch_warnings(action="error"):
            f(A, b, callback=print, callback_type="norm")


def test_an_error_of_the_callers_operator_passes_through():
    A, calls = fl.gallery.poisson5(10), []

    def product(x):
        calls.append(1)
        if len(calls) == 5:
            raise fl.errors.MatrixError("of the caller")
        return A @ x

    with fl.install(), pytest.raises(fl.errors.MatrixError, match="of the caller"):
        spla.cg(spla.LinearOperator((100, 100), matvec=product, dtype=float), np.ones(100))
    assert len(calls) < 10


LEAST_SQUARES = ("lsmr", "lsqr")


@pytest.mark.parametrize("name", LEAST_SQUARES)
def test_least_squares_methods_have_scipys_arguments_and_tuples(name):
    ours, theirs = both(name)
    rng = np.random.default_rng(0)
    A = sp.csr_matrix(sp.random(40, 12, 0.3, random_state=rng) + sp.eye(40, 12))
    b, x0 = rng.standard_normal(40), rng.standard_normal(12)
    limit = "maxiter" if name == "lsmr" else "iter_lim"
    for given in (b, b[:, None], b[None], list(b)):
        got, want = (f(A, given, 0.3, 1e-14, 1e-14, **{limit: 5}, x0=x0) for f in (ours, theirs))
        assert type(got) is tuple and len(got) == len(want) and got[1:3] == want[1:3] == (7, 5)
        np.testing.assert_allclose(got[0], want[0], rtol=1e-10)
    if name == "lsqr":  # by position: iter_lim, show, calc_var, x0
        got, want = (f(A, b, 0.3, 0, 0, 0, 6, 0, 1, x0) for f in (ours, theirs))
        np.testing.assert_allclose(got[9], want[9], rtol=1e-8)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(ours))(A, b)[0], ours(A, b)[0])


@pytest.mark.parametrize("name", LEAST_SQUARES)
def test_least_squares_take_a_matrix_of_finelu_without_iterations_too(name):
    ours, theirs = both(name)
    S, b = sp.csr_matrix(np.diag([1.0, 2.0, 3.0])), np.ones(3)
    limit = {"maxiter" if name == "lsmr" else "iter_lim": 0}
    got, want = ours(fl.as_csr(S), b, **limit), theirs(S, b, **limit)
    np.testing.assert_array_equal(got[0], want[0])
    assert got[1:3] == want[1:3]


@pytest.mark.parametrize("name", LEAST_SQUARES)
def test_least_squares_problems_that_finelu_refuses_get_scipys_answer(name):
    ours, theirs = both(name)
    A = sp.csr_matrix(np.eye(5, 3))
    got, want = (f(A, np.full(5, np.nan), maxiter=2) if name == "lsmr" else f(A, np.full(5, np.nan), iter_lim=2)
                 for f in (ours, theirs))  # fmt: skip
    np.testing.assert_array_equal(got[0], want[0])
    errors = []
    for f in (ours, theirs):
        with pytest.raises(Exception) as caught:
            f(A, np.ones((5, 2)))
        errors.append(type(caught.value))
    assert errors[0] is errors[1]

    def fails(x):
        raise fl.MatrixError("of the caller")

    operator = spla.LinearOperator((5, 3), matvec=fails, rmatvec=fails, dtype=float)
    with refused(fl.MatrixError, match="of the caller"):
        ours(operator, np.ones(5))


@pytest.mark.parametrize("name", LEAST_SQUARES)
def test_limits_that_finelu_refuses_get_scipys_answer(name):
    ours, theirs = both(name)
    A, b = sp.csr_matrix(np.eye(5, 3) + np.arange(15).reshape(5, 3) % 4), np.arange(5.0)
    limit = "maxiter" if name == "lsmr" else "iter_lim"
    for options in ({limit: 1e3}, {limit: 0}, {"damp": -0.1}, {"atol": -1.0}, {"btol": -1.0}, {"conlim": -1}):
        got, want = (f(A, b, **options) for f in (ours, theirs))
        np.testing.assert_array_equal(got[0], want[0])
        assert got[1:3] == want[1:3]
    got, want = (f(A, b, x0=np.ones(3), **{limit: 0}) for f in (ours, theirs))
    assert got[1:3] == want[1:3] == (0, 0) and (got[0] == 1).all()

    def fails(x):
        raise ParameterError("of the caller")

    operator = spla.LinearOperator((5, 3), matvec=fails, rmatvec=fails, dtype=float)
    with refused(ParameterError, match="of the caller"):
        ours(operator, b)


@pytest.mark.parametrize("name", LEAST_SQUARES)
def test_least_squares_are_solved_in_double_precision(name):
    """SciPy's x has that precision, too, though its products of float32 do not."""
    ours, theirs = both(name)
    A = sp.random(40, 12, 0.3, format="csr", random_state=np.random.default_rng(0)) + sp.eye(40, 12)
    b = np.random.default_rng(1).standard_normal(40)
    for dtype in (np.float32, np.int32):
        S, c = A.astype(np.float32), (9 * b).astype(dtype)
        found = ours(S, c, atol=1e-12, btol=1e-12)[0]
        assert found.dtype == theirs(S, c)[0].dtype == np.float64
        np.testing.assert_allclose(found, np.linalg.lstsq(S.toarray().astype(float), c, rcond=None)[0], rtol=1e-8)
    assert ours(A.astype(np.float32), b.astype(np.complex64))[0].dtype == np.complex128


def test_install_puts_least_squares_methods_in_place_and_back():
    theirs = spla.lsmr
    with fl.install() as installed:
        assert spla.lsmr is iterative.lsmr and "scipy.sparse.linalg.lsqr" in installed.replaced
    assert spla.lsmr is theirs is foreign.lsmr
