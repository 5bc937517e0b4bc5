"""lsmr, lsqr and cgls: the least-squares solution by definition, its limits, and claims that rounding cannot make."""

import inspect

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla
from checks import PATTERNS, assert_close, refused, values
from hypothesis import given
from hypothesis import strategies as st

import finelu as fl
from finelu.errors import NotConverged
from finelu.result import Status

METHODS = [fl.lsmr, fl.lsqr, fl.cgls]
SHAPES = [(60, 20), (20, 60), (30, 30)]
every_method = pytest.mark.parametrize("method", METHODS, ids=lambda f: f.__name__)


def problem(m, n, dtype=np.float64, seed=1):
    """A (m, n) of full rank, sparse, and b outside of its range unless m <= n."""
    A = sp.random(m, n, density=0.2, random_state=seed, format="csr") + sp.eye(m, n)
    A = A.astype(dtype)
    if A.dtype.kind == "c":
        A = A @ sp.diags(np.exp(1j * np.arange(n))).astype(dtype)
    return sp.csr_matrix(A), values(m, dtype, seed)


def exact(A, b, damp=0.0):
    """NumPy's solution of least norm, in double precision."""
    n = A.shape[1]
    dense = np.vstack([A.toarray(), damp * np.eye(n)]) if damp else A.toarray()
    right = np.concatenate([b, np.zeros((n, *b.shape[1:]))]) if damp else b
    wide = np.result_type(dense.dtype, np.float64)
    return np.linalg.lstsq(dense.astype(wide), right.astype(wide), rcond=None)[0]


def tight(dtype=np.float64):
    """Arguments for a solution as good as the precision allows."""
    tol = 200 * float(np.finfo(dtype).eps)
    return {"atol": tol, "btol": tol, "conlim": 0, "maxiter": 2000}


@every_method
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("damp", [0.0, 0.5])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128], ids=lambda d: d.__name__)
def test_x_is_the_least_squares_solution_of_least_norm(backend, method, shape, damp, dtype):
    A, b = problem(*shape, dtype)
    found = method(backend.move(A), backend.move(b), damp=damp, **tight(dtype))
    assert found.converged and found.x.dtype == dtype
    x = exact(A, b, damp)
    assert np.linalg.norm(backend.fetch(found.x) - x) <= 1e5 * np.finfo(dtype).eps * np.linalg.norm(x)


@every_method
def test_norms_are_those_of_the_returned_x(method):
    A, b = problem(60, 20)
    x0 = values(20, float, 3)
    found = method(A, b, damp=0.3, x0=x0)
    r = b - A @ found.x
    s = A.T @ r - 0.3**2 * (found.x - x0)
    assert_close(found.residual_norm, np.linalg.norm(r), 100)
    assert_close(found.normal_residual_norm, np.linalg.norm(s), 1e4, np.linalg.norm(r))
    assert_close(found.damped_residual_norm, np.hypot(np.linalg.norm(r), 0.3 * np.linalg.norm(found.x - x0)), 100)
    assert_close(found.x_norm, np.linalg.norm(found.x), 100)
    assert found.history.size == found.iterations + 1 and found.history[-1] == found.normal_residual_norm
    largest = np.sqrt((A.power(2).sum(axis=0) + 0.3**2).max())
    assert_close(found.matrix_norm, largest, 100)


@pytest.mark.parametrize(("method", "theirs"), [(fl.lsmr, spla.lsmr), (fl.lsqr, spla.lsqr)], ids=["lsmr", "lsqr"])
@pytest.mark.parametrize("damp", [0.0, 0.4])
def test_iterates_and_tuple_are_scipys(method, theirs, damp):
    A, b = problem(60, 20)
    limit = {"iter_lim" if method is fl.lsqr else "maxiter": 6}
    ours, known = method(A, b, damp, 1e-14, 1e-14, maxiter=6), theirs(A, b, damp, 1e-14, 1e-14, **limit)
    assert len(ours) == len(known) == len(tuple(ours)) and ours[2] == known[2] == 6 and ours[1] == known[1] == 7
    assert_close(ours[0], known[0], 1e4)
    if method is fl.lsqr:
        x, _, _, r1norm, r2norm, anorm, _, arnorm, xnorm, var = ours
        assert_close(np.array([r2norm, arnorm, xnorm]), np.array([known[k] for k in (4, 7, 8)]), 1e5)
        assert_close(r1norm, np.linalg.norm(b - A @ x), 100)  # theirs is an estimate, with damp
        assert anorm <= known[5] and not var.any()
    else:
        _, _, _, _, normar, _, conda, normx = ours
        assert_close(np.array([normar, conda, normx]), np.array([known[k] for k in (4, 6, 7)]), 1e5)


def test_the_variances_are_the_diagonal_of_the_inverse_of_the_normal_equations():
    A, b = problem(60, 6)
    for damp in (0.0, 0.7):
        normal = A.toarray().T @ A.toarray() + damp**2 * np.eye(6)
        found = fl.lsqr(A, b, damp=damp, calc_var=True, atol=0, btol=0, conlim=0, maxiter=6)
        assert abs(found.variance - np.diag(np.linalg.inv(normal))).max() <= 1e-6
        assert found[9] is found.variance


@every_method
def test_a_complete_factorization_as_M_takes_few_iterations(backend, method):
    A, b = problem(200, 80)
    for damp in (0.0, 2.0):
        normal = sp.csr_matrix(A.T @ A + damp**2 * sp.eye(80))
        F = fl.ICT(drop_tol=0, fill=float("inf")).factor(backend.move(normal))
        found = method(backend.move(A), backend.move(b), damp=damp, M=F, **tight())
        assert found.converged and found.iterations <= 3 and found.recipe.startswith("ICT")
        assert_close(backend.fetch(found.x), exact(A, b, damp), 1e4)


@every_method
def test_M_may_be_a_function_or_an_operator_and_is_of_the_normal_equations(method):
    A, b = problem(300, 100)
    scale = np.exp(np.random.default_rng(5).uniform(-5, 5, 100))
    A = sp.csr_matrix(A @ sp.diags(scale))
    d = 1 / np.asarray(A.power(2).sum(axis=0)).ravel()
    plain, limits = method(A, b), tight()
    for M in (lambda s: d * s, spla.aslinearoperator(sp.diags(d)), sp.diags(d).tocsr()):
        found = method(A, b, M=M, **limits)
        assert found.converged and found.iterations < max(plain.iterations, 60)
        assert np.linalg.norm(A @ (found.x - exact(A, b))) <= 1e-9 * np.linalg.norm(b)


@every_method
def test_an_operator_gives_the_iterates_of_the_matrix(method):
    A, b = problem(60, 20, np.complex128)
    found = method(spla.aslinearoperator(A), b, **tight(np.complex128))
    assert found.converged
    assert_close(found.x, exact(A, b), 1e4)
    assert found.matrix_norm <= np.linalg.norm(A.toarray(), 2) * 1.001


@every_method
def test_several_right_hand_sides(backend, method):
    A, _ = problem(60, 20)
    B, X0 = values((60, 3), float, 2), values((20, 3), float, 4)
    found = method(backend.move(A), backend.move(B), x0=backend.move(X0), **tight())
    assert found.converged and found.x.shape == (20, 3)
    assert_close(backend.fetch(found.x), exact(A, B), 1e4)
    alone = [method(A, B[:, c], x0=X0[:, c], **tight()) for c in range(3)]
    on_host = backend.name == "cpu"  # a GPU rounds in another way, and may take an iteration more or less for a column
    assert abs(found.iterations - sum(s.iterations for s in alone)) <= (0 if on_host else 3)
    assert found.residual_norm in [s.residual_norm for s in alone] or not on_host
    column = method(A, B[:, :1])
    assert column.x.shape == (20, 1)


@every_method
def test_the_formats_of_A_make_no_difference(method):
    A, b = problem(60, 20)
    expected = method(A, b).x
    doubled = sp.coo_matrix((np.r_[A.data / 2, A.data / 2], (np.r_[A.tocoo().row, A.tocoo().row],
                             np.r_[A.indices, A.indices])), shape=A.shape)  # fmt: skip
    for given_A in (A.tocsc(), A.tocoo(), doubled, A.toarray(), sp.csr_array(A)):
        assert_close(method(given_A, b).x, expected, 0 if given_A is not doubled else 100)


@every_method
def test_b_and_x0_are_not_written_and_a_zero_right_hand_side_is_solved_at_once(method):
    A, b = problem(60, 20)
    x0 = values(20, float, 3)
    kept = b.copy(), x0.copy(), A.copy()
    method(A, b, x0=x0, damp=0.1)
    np.testing.assert_array_equal(b, kept[0])
    np.testing.assert_array_equal(x0, kept[1])
    assert (kept[2] != A).nnz == 0
    nothing = method(A, 0 * b)
    assert nothing.converged and nothing.istop == 0 and nothing.iterations == 0 and not nothing.x.any()
    solved = method(A, A @ x0, x0=x0)
    assert solved.converged and solved.iterations == 0 and solved.x is not x0


@every_method
def test_damp_pulls_x_towards_x0(method):
    A, b = problem(60, 20)
    x0 = values(20, float, 3)
    found = method(A, b, damp=1e6, x0=x0, **tight())
    assert np.linalg.norm(found.x - x0) <= 1e-9 * np.linalg.norm(b)


@every_method
def test_rounding_is_not_called_converged(method):
    A, b = problem(60, 20)
    A = sp.csr_matrix(A @ sp.diags(np.logspace(0, -7, 20)))
    found = method(A, b, atol=1e-18, btol=1e-18, conlim=0, maxiter=999)
    assert not found.converged and found.status in (Status.PRECISION_LIMIT, Status.STAGNATED, Status.MAX_ITERATIONS)
    assert found.istop in (5, 7) and np.isfinite(found.x).all()


def two_effects(dtype):
    """Rows of a worker and a firm: a number may be added to all workers and subtracted from all firms."""
    rng = np.random.default_rng(0)
    columns = np.stack([np.arange(2000) // 10, 200 + rng.integers(0, 20, 2000)], axis=1)
    A = sp.csr_matrix((np.ones(4000, dtype), columns.ravel(), np.arange(0, 4001, 2)))
    return A, rng.standard_normal(2000).astype(dtype)


@every_method
@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=lambda d: d.__name__)
@pytest.mark.parametrize("rtol", [0.0, 0.1], ids=["0", "a tenth of eps"])
@pytest.mark.parametrize("dropped", [1e-3, 0.0])
def test_beyond_rounding_x_does_not_grow_along_null_vectors(method, dtype, rtol, dropped):
    A, b = two_effects(dtype)
    F = fl.ICNE(drop_tol=dropped, fill=10.0).factor(A)
    tol = rtol * float(np.finfo(dtype).eps)
    found = method(A, b, M=F, **{**tight(), "atol": tol, "btol": tol})
    x = exact(A, b)
    assert np.linalg.norm(found.x) <= 1.01 * np.linalg.norm(x) and found.iterations <= 30
    fitted = A.astype(float) @ found.x
    assert np.linalg.norm(fitted - A.astype(float) @ x) <= 1e4 * np.finfo(dtype).eps * np.linalg.norm(b)
    assert found.status in (Status.CONVERGED, Status.PRECISION_LIMIT)


@every_method
def test_of_all_x_that_were_measured_the_best_is_returned(method):
    A, b = two_effects(np.float64)
    good = exact(A, b)
    found = method(A, b, x0=good, atol=0, btol=0, M=fl.ICNE().factor(A))
    assert np.linalg.norm(found.x) <= 1.01 * np.linalg.norm(good)
    assert found.normal_residual_norm <= np.linalg.norm(A.T @ (b - A @ good)) + 1e-12


def test_a_long_x_does_not_pass_with_a_residual_above_that_of_x0():
    from finelu.krylov.least_squares import LeastSquares, Limits
    from finelu.krylov.least_squares_course import measured

    A = sp.csr_matrix([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]])
    b, x = np.array([1.0, 1.0, 0.0]), np.array([1e9, -1e9]) + 2
    for least, passed in ((np.inf, 1), (np.linalg.norm(b), 0)):
        limits = Limits.checked(1e-8, 1e-8, 0, 9, usual=9)
        assert measured(LeastSquares(A, b, None, None, 0.0), b, x, 0 * x, limits, least).passed == passed


@every_method
@pytest.mark.parametrize("dtype", [np.float32, np.complex128], ids=lambda d: d.__name__)
@pytest.mark.parametrize(("of_A", "of_b"), [(-0.8, 0), (0.8, 0), (0, -0.6), (0, 0.6), (0.7, 0.1)])
@pytest.mark.parametrize("preconditioned", [False, True])
def test_numbers_whose_squares_over_or_underflow(method, dtype, of_A, of_b, preconditioned):
    A, b = problem(60, 20, dtype)
    p, q = (int(k * np.finfo(dtype).maxexp) for k in (of_A, of_b))
    S, c = A * dtype(2.0**p), b * dtype(2.0**q)
    for damp in (0.0, 0.5):
        F = fl.ICNE(damp=damp * 2.0**p).factor(S) if preconditioned else None
        assert preconditioned or method(S, c, M=lambda s: s / 4, damp=damp * 2.0**p, **tight(dtype)).converged
        found = method(S, c, M=F, damp=damp * 2.0**p, **tight(dtype))
        x = exact(A, b, damp)
        assert found.converged and found.x.dtype == dtype
        of_x = np.ldexp(1.0, p - q)
        assert np.linalg.norm(found.x * of_x - x) <= 1e5 * np.finfo(dtype).eps * np.linalg.norm(x)
        norms = found.residual_norm, found.matrix_norm, found.x_norm
        known = method(A, b, damp, **tight(dtype))
        usual = known.residual_norm, known.matrix_norm, known.x_norm
        ratios = np.ldexp(norms, [-q, -p, p - q]) / usual
        assert abs(ratios - 1).max() <= 1e5 * np.finfo(dtype).eps
        assert found.history[-1] == found.normal_residual_norm
        assert np.ldexp(found.normal_residual_norm, -p - q) <= 1e5 * np.finfo(dtype).eps * np.linalg.norm(b)


@every_method
def test_an_x_that_the_precision_cannot_hold_is_told(method):
    A, b = problem(60, 20)
    for size in (1e-200, 1e200):
        found = method(A * size, b / size)
        assert found.status is Status.PRECISION_LIMIT and "cannot hold it" in found.explain()
        assert np.isfinite(found.x).all()


@every_method
def test_an_M_of_another_size_than_A_has_no_effect(method):
    A, b = problem(60, 20, np.float32)
    for size in (1e-25, 1.0):
        found = method(A * np.float32(1e-25), b, M=lambda s, size=size: s * np.float32(size), **tight(np.float32))
        assert found.converged
        assert np.linalg.norm(found.x * 1e-25 - exact(A, b)) <= 1e-2 * np.linalg.norm(exact(A, b))


def test_variances_of_large_and_small_numbers():
    A, b = problem(60, 20)
    known = fl.lsqr(A, b, calc_var=True, atol=1e-9, btol=1e-9).variance
    for size in (2.0**-200, 2.0**200):
        found = fl.lsqr(A * size, b, calc_var=True, atol=1e-9, btol=1e-9)
        assert_close(found.variance * size**2, known, 0)


@every_method
def test_an_M_that_takes_the_residual_to_0_is_told_at_once(method):
    A, b = sp.csr_matrix([[1.0, 0], [0, 1], [0, 1]]), np.array([0.0, 1, 2])
    for M in (lambda s: 0 * s, np.diag([1.0, 0.0])):
        found = method(A, b, M=M)
        assert found.status is Status.INDEFINITE_PRECONDITIONER and found.iterations == 0 and not found.x.any()


@every_method
def test_limits_end_the_iterations(method):
    A, b = problem(300, 100)
    found = method(A, b, atol=1e-14, btol=0, maxiter=3)
    assert found.status is Status.MAX_ITERATIONS and found.iterations == 3 and found.istop == 7 and found.info == 3
    assert method(A, b, maxiter=0).status is Status.MAX_ITERATIONS
    with pytest.raises(NotConverged, match="did not converge") as error:
        method(A, b, atol=1e-14, btol=0, maxiter=3, raise_on_failure=True)
    assert error.value.solution.iterations == 3
    loose, strict = method(A, b, atol=1e-2, btol=0), method(A, b, atol=1e-9, btol=0)
    assert loose.converged and loose.istop == 2 and loose.iterations < strict.iterations
    inside = A @ np.ones(100)
    loose, strict = (method(A, inside, atol=0, btol=t) for t in (1e-2, 1e-9))
    assert loose.converged and loose.istop == 1 and loose.iterations < strict.iterations


@every_method
def test_conlim_ends_the_iterations(method):
    A, b = problem(300, 100)
    A = sp.csr_matrix(A @ sp.diags(np.logspace(0, -6, 100)))
    found = method(A, b, atol=1e-14, btol=1e-14, conlim=50)
    assert found.status is Status.CONDITION_LIMIT and found.istop == 3 and found.condition >= 50


def test_all_have_one_signature_which_begins_with_scipys():
    ours = [list(inspect.signature(f).parameters.items()) for f in METHODS]
    known = list(inspect.signature(spla.lsmr).parameters.items())
    assert [(name, p.default) for name, p in ours[0][: len(known)]] == [(name, p.default) for name, p in known]
    assert ours[0] == ours[2] == ours[1][:-1] and ours[1][-1][0] == "calc_var"
    of_lsqr = dict(inspect.signature(spla.lsqr).parameters)
    assert all(p.default == of_lsqr["iter_lim" if name == "maxiter" else name].default for name, p in ours[1][2:9])


def test_cgls_and_lsqr_have_the_same_iterates_and_condition():
    A, b = problem(60, 20)
    for damp in (0.0, 0.4):
        for maxiter in (1, 5):
            of_lsqr, of_cgls = (f(A, b, damp, 0, 0, 0, maxiter) for f in (fl.lsqr, fl.cgls))
            assert_close(of_cgls.x, of_lsqr.x, 1e5)
            assert_close(of_cgls.condition, of_lsqr.condition, 1e5)


@every_method
def test_the_callback_gets_each_iterate_and_may_end_the_iterations(backend, method):
    A, b = problem(60, 20)
    moved = backend.move(A), backend.move(b)
    for scale in (1.0, 1e-200):
        seen = []
        options = {"atol": 1e-9, "maxiter": 60}
        found = method(moved[0] * scale, moved[1], **options, callback=lambda x, seen=seen: seen.append(x))
        assert found.converged and len(seen) == found.iterations
        assert_close(backend.fetch(seen[-1]), backend.fetch(found.x), 1)
        for k in (1, 4):
            short = method(moved[0] * scale, moved[1], atol=1e-9, maxiter=k)
            assert_close(backend.fetch(seen[k - 1]), backend.fetch(short.x), 1)

    def at_third(x):
        calls.append(x)
        return len(calls) == 3

    def stop(x):
        raise StopIteration

    calls = []
    found = method(*moved, callback=at_third)
    assert found.status is Status.INTERRUPTED and found.iterations == 3 and found.istop == -1
    assert_close(backend.fetch(found.x), backend.fetch(calls[-1]), 1)
    assert method(*moved, callback=stop).iterations == 1
    both = method(moved[0], backend.move(np.stack([b, -b], axis=1)), callback=stop)
    assert both.status is Status.INTERRUPTED and both.iterations == 2


@every_method
def test_an_M_that_is_not_positive_definite_is_told(method):
    A, b = problem(60, 20)
    found = method(A, b, M=lambda s: -s)
    assert found.status is Status.INDEFINITE_PRECONDITIONER and "not positive definite" in found.explain()
    assert found.istop == -1 and not found.x.any()


@every_method
def test_show_prints_the_norms_of_each_iteration(method, capsys):
    A, b = problem(60, 20)
    found = method(A, b, show=True)
    assert len(capsys.readouterr().out.splitlines()) == found.iterations
    method(A, b)
    assert not capsys.readouterr().out


@every_method
@PATTERNS
@given(st.integers(1, 12), st.integers(1, 12), st.floats(0, 1), st.integers(0, 2**31))
def test_random_patterns_of_any_rank(method, m, n, density, seed):
    rng = np.random.default_rng(seed)
    A = sp.csr_matrix(rng.integers(-3, 4, (m, n)) * (rng.random((m, n)) < density), dtype=float)
    b = rng.integers(-5, 6, m).astype(float)
    found = method(A, b, **tight())
    x, r = exact(A, b), b - A @ found.x
    assert found.converged
    assert abs(A.T @ r).max(initial=0) <= 1e-9 * max(np.linalg.norm(b), 1)
    assert np.linalg.norm(found.x - x) <= 1e-6 * max(np.linalg.norm(x), 1)


A, b = problem(12, 5)
WRONG = {
    "b of another length": (lambda f: f(A, np.ones(5)), r"b has shape \(5,\), but A has 12 rows"),
    "NaN in b": (lambda f: f(A, np.r_[np.nan, np.ones(11)]), "b holds NaN or Inf in row 0"),
    "NaN in A": (lambda f: f(A * np.nan, b), "A holds NaN or Inf in row 0"),
    "no columns": (lambda f: f(sp.csr_matrix((12, 0)), b), r"A has shape \(12, 0\)"),
    "a vector as A": (lambda f: f(np.ones(12), b), r"A is a ndarray of shape \(12,\)"),
    "text as A": (lambda f: f("abc", b), "A is a str"),
    "x0 of another length": (lambda f: f(A, b, x0=np.ones(12)), r"x0 has shape \(12,\), but A has 5 rows"),
    "M of A's rows": (lambda f: f(A, b, M=sp.identity(12)), r"M has shape \(12, 12\), but the system needs \(5, 5\)"),
    "a negative damp": (lambda f: f(A, b, damp=-1), "damp=-1.*; a finite number, zero or larger, is needed"),
    "a negative atol": (lambda f: f(A, b, atol=-1), "atol=-1"),
    "show": (lambda f: f(A, b, show=2), "show=2; True or False is needed"),
    "a misspelt keyword": (lambda f: f(A, b, dmap=1), "Did you mean 'damp'"),
    "no rmatvec": (lambda f: f(spla.LinearOperator((12, 5), matvec=lambda x: A @ x), b), "A has no rmatvec"),
    "wrong indices": (lambda f: f(_with_index_9(), b), "do not fit its shape"),
}


def _with_index_9():
    broken = A.copy()
    broken.indices = broken.indices.copy()
    broken.indices[0] = 9
    return broken


@every_method
@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_named_in_one_line(method, what):
    call, match = WRONG[what]
    with refused(fl.FineluError, match=match):
        call(method)


def test_variances_take_one_column():
    with refused(fl.MatrixError, match="calc_var=True takes one column, but b has 2"):
        fl.lsqr(A, np.ones((12, 2)), calc_var=True)
