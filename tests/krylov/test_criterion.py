"""What `criterion` asks of x: with penalties, which hide all other rows from one norm, with chains, whose x spans 90
decades, and with right-hand sides of the smallest numbers."""

from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import aslinearoperator

import finelu as fl
from finelu import Status
from finelu.errors import ParameterError
from finelu.krylov import underflow
from finelu.krylov.criterion import Criterion
from finelu.krylov.operators import matrix_operator
from finelu.krylov.residual import Residual
from finelu.matrix import norm, vectors

METHODS = ("cg", "minres", "sqmr", "gmres", "fgmres", "bicgstab", "bicg")


def laplacian(m, end):
    """The Laplacian of one dimension; `end` is the first and the last diagonal entry."""
    return sp.diags([-np.ones(m - 1), np.r_[end, 2 * np.ones(m - 2), end], -np.ones(m - 1)], [-1, 0, 1])


def penalty(value, m=40, skew=0.0):
    """Laplace's equation, u = x + 2 y on the boundary by a penalty: A, b, u. skew : adds a flow, so that A is not
    symmetric; u is then not the solution."""
    A = sp.kron(laplacian(m, 1), sp.identity(m)) + sp.kron(sp.identity(m), laplacian(m, 1))
    if skew:
        A = A + skew * sp.kron(sp.diags([-np.ones(m - 1), np.ones(m - 1)], [-1, 1]), sp.identity(m))
    x, y = np.mgrid[0:m, 0:m] / (m - 1)
    u, edge = (x + 2 * y).ravel(), np.zeros((m, m), bool)
    edge[[0, -1]] = edge[:, [0, -1]] = True
    at = np.flatnonzero(edge)
    b = np.zeros(m * m)
    b[at] = value * u[at]
    return (A + sp.csr_matrix((np.full(at.size, value), (at, at)), shape=A.shape)).tocsr(), b, u


def of_rows(A, b, x):
    """The relative residual of the row-equilibrated system, in extended precision."""
    A = A.tocsr()
    sizes = np.asarray(abs(A).sum(axis=1)).ravel().astype(np.longdouble)
    r = b.astype(np.longdouble) - A.astype(np.longdouble) @ x.astype(np.longdouble)
    return float(np.linalg.norm((r / sizes).astype(float)) / np.linalg.norm((b / sizes).astype(float)))


def backward(A, b, x):
    """The componentwise backward error, in extended precision."""
    A, b, x = A.tocsr().astype(np.longdouble), b.astype(np.longdouble), x.astype(np.longdouble)
    terms = abs(A) @ abs(x) + abs(b)
    return float((abs(b - A @ x) / np.where(terms > 0, terms, 1)).max())


@pytest.mark.parametrize("value", [1e5, 1e9, 1e12, 1e30, 1e100])
def test_solve_sees_every_row_of_a_system_with_penalties(value, backend):
    A, b, u = penalty(value)
    solution = fl.solve(backend.move(A), backend.move(b))
    x = backend.fetch(solution.x)
    assert solution.converged and of_rows(A, b, x) <= 1e-8
    assert abs(x - u).max() < 3 / value * 10 + 1e-6
    assert solution.row_residual == pytest.approx(of_rows(A, b, x), rel=1e-2, abs=1e-14)
    assert "rows of A differ in size" in solution.explain()


@pytest.mark.parametrize("recipe", ["ic0", "ilu0", "milu0", "ict", "sparse_lu", "jacobi"])
def test_every_recipe_sees_every_row(recipe):
    A, b, u = penalty(1e12)
    solution = fl.solve(A, b, recipe=recipe)
    assert solution.converged and of_rows(A, b, solution.x) <= 1e-8 and abs(solution.x - u).max() < 1e-5


@pytest.mark.parametrize("method", METHODS)
def test_every_method_sees_every_row(method, backend):
    A, b, u = penalty(1e12)
    moved, rhs = backend.move(A), backend.move(b)
    M = fl.IC0().factor(moved)
    solution = getattr(fl, method)(moved, rhs, M=M, rtol=1e-8, maxiter=2000)
    x = backend.fetch(solution.x)
    assert solution.converged and of_rows(A, b, x) <= 1e-8 and abs(x - u).max() < 1e-4
    blind = getattr(fl, method)(moved, rhs, M=M, rtol=1e-8, criterion="residual")
    assert blind.converged and blind.iterations < solution.iterations and blind.row_residual is None
    assert of_rows(A, b, backend.fetch(blind.x)) > 1e-4


def test_richardson_sees_every_row():
    A, b, _ = penalty(1e12, m=8)
    solution = fl.richardson(A, b, M=fl.ILU0().factor(A), rtol=1e-8, maxiter=2000)
    assert solution.converged and of_rows(A, b, solution.x) <= 1e-8


def test_systems_that_are_not_symmetric_and_dense_ones():
    A, b, _ = penalty(1e12, skew=0.7)
    assert of_rows(A, b, fl.solve(A, b).x) <= 1e-8
    dense = fl.gmres(A.toarray(), b, M=fl.ILU0().factor(A), rtol=1e-8, maxiter=500)
    assert dense.converged and dense.row_residual <= 1e-8 and of_rows(A, b, dense.x) <= 1e-8


def test_complex_and_single_precision():
    A, b, u = penalty(1e12)
    phase = np.exp(0.3j)
    solution = fl.solve(A.astype(complex), b * phase)
    assert solution.converged and abs(solution.x - phase * u).max() < 1e-5
    single = fl.cg(A.astype("f"), b.astype("f"), M=fl.IC0().factor(A.astype("f")), rtol=1e-4)
    assert single.converged and single.x.dtype == np.float32 and of_rows(A.astype("f"), b.astype("f"), single.x) <= 1e-4


def test_what_the_precision_ends_before_is_said_with_both_figures():
    A, b, _ = penalty(1e12)
    A, b = A.astype("f"), b.astype("f")
    limited = fl.cg(A, b, M=fl.IC0().factor(A), rtol=5e-8)
    assert limited.status is Status.PRECISION_LIMIT
    assert limited.row_residual > 5e-8 and limited.residual_norm < 5e-8 * np.linalg.norm(b)
    assert f"{limited.row_residual:.1e}" in limited.explain()


@pytest.mark.parametrize("problem", ["poisson5:30", "poisson7:10", "helmholtz:20,5.0", "elasticity:5,5,5"])
def test_on_even_rows_nothing_changes(problem):
    A = fl.gallery.problem(problem)
    b = np.random.default_rng(0).standard_normal(A.shape[0])
    M = fl.ILU0().factor(A)
    auto, plain = (fl.bicgstab(A, b, M=M, rtol=1e-8, criterion=c) for c in ("auto", "residual"))
    assert auto.iterations == plain.iterations and np.array_equal(auto.x, plain.x) and auto.row_residual is None


def test_rows_differ_but_their_terms_do_not():
    """Columns are scaled the other way: one norm is fair to all rows, and nothing else is asked."""
    A = fl.gallery.problem("poisson5:20")
    scale = np.logspace(0, 8, A.shape[0])
    x = 1 / scale
    B = (A @ sp.diags(scale)).tocsr()
    solution = fl.solve(B, B @ x)
    assert solution.converged


@pytest.mark.parametrize("method", METHODS)
def test_backward_bounds_each_row(method):
    A, b, _ = penalty(1e9)
    b[A.shape[0] // 2 + 7] = 3e-3
    solution = getattr(fl, method)(A, b, M=fl.IC0().factor(A), rtol=1e-6, criterion="backward", maxiter=3000)
    assert solution.converged and backward(A, b, solution.x) <= 1e-6
    assert solution.row_residual == pytest.approx(backward(A, b, solution.x), rel=1e-3)
    assert "componentwise backward error" in solution.explain()


def test_solve_and_sequence_take_the_criterion():
    A, b, _ = penalty(1e9)
    s = fl.solve(A, b, 1e-6, criterion="backward")
    assert s.converged and backward(A, b, s.x) <= 1e-6
    blind = fl.solve(A, b, recipe="ic0", criterion="residual")
    assert blind.converged and of_rows(A, b, blind.x) > 1e-4
    sequence = fl.Sequence(rtol=1e-8, recipe="ic0")
    for k in range(4):
        step = sequence.step(A * (1 + 0.01 * k), b * (1 + k))
        assert step.converged and of_rows(A * (1 + 0.01 * k), b * (1 + k), step.x) <= 1e-8
    assert sequence.decisions[1:] != ["solve"] * 3
    blind = fl.Sequence(A, recipe="ic0", criterion="residual")
    assert of_rows(A, b, blind.step(b=b).x) > 1e-4


@pytest.mark.parametrize("criterion", ["auto", "backward"])
def test_columns_of_a_matrix_and_reversed_vectors_are_read_as_they_are(criterion, backend):
    A, b, _ = penalty(1e9)
    wide = backend.move(np.stack([b, np.full_like(b, 1e18)], axis=1))
    for given in (wide[:, 0], backend.move(b[::-1].copy())[::-1]):
        sequence, plain = (fl.Sequence(rtol=1e-8, recipe="ic0", criterion=criterion) for _ in range(2))
        steps = [sequence.step(backend.move(A), given) for _ in range(3)]
        wanted = [plain.step(backend.move(A), backend.move(b)) for _ in range(3)]
        assert [step.status for step in steps] == [step.status for step in wanted]
        assert [step.row_residual for step in steps] == [step.row_residual for step in wanted]


def chain(n=31, factor=1000.0):
    """x_k = factor x_(k-1): of 90 decades."""
    A = sp.diags([np.ones(n), -factor * np.ones(n - 1)], [0, -1]).tocsr()
    return A, np.eye(n)[0], np.array([float(Fraction(factor) ** k) for k in range(n)])


@pytest.mark.parametrize("recipe", ["auto", "ilu0", "ilut", "sparse_lu"])
def test_x_is_not_thrown_away_for_the_norm_of_its_rounding(recipe):
    A, b, exact = chain()
    solution = fl.solve(A, b, recipe=recipe)
    assert (abs(solution.x - exact) <= 1e-13 * exact).all()
    assert solution.status is Status.PRECISION_LIMIT and "componentwise backward error" in solution.explain()
    size = exact_residual(A.toarray(), b, solution.x) * np.linalg.norm(b)
    assert solution.residual_norm == pytest.approx(size, rel=1e-6)
    asked = fl.solve(A, b, recipe=recipe, criterion="backward")
    assert asked.converged and (abs(asked.x - exact) <= 1e-13 * exact).all()


def test_an_x_that_has_grown_along_a_null_vector_is_thrown_away():
    """Its residual is rounding of its terms, too."""
    A = fl.gallery.problem("poisson5:12").tolil()
    A[:, 0] = A[:, 1]
    A = A.tocsr() + 1e-17 * sp.identity(A.shape[0])
    b = np.random.default_rng(1).standard_normal(A.shape[0])
    solution = fl.solve(A, b)
    assert not solution.converged and solution.residual_norm <= np.linalg.norm(b) * (1 + 1e-12)


def exact_residual(A, b, x):
    """||b - A x|| / ||b|| by rational numbers."""

    def rational(z):
        return Fraction(float(np.real(z))), Fraction(float(np.imag(z)))

    def square(z):
        return z[0] ** 2 + z[1] ** 2

    rows, total, size = np.asarray(A), Fraction(0), Fraction(0)
    for i in range(rows.shape[0]):
        re, im = rational(b[i])
        size += square((re, im))
        for j in range(rows.shape[1]):
            (a, c), (u, v) = rational(rows[i, j]), rational(x[j])
            re, im = re - (a * u - c * v), im - (a * v + c * u)
        total += square((re, im))
    return float(total / size) ** 0.5


@pytest.mark.parametrize("size", [1e-318, 1e-310, 1e-305, 1e-295])
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_a_right_hand_side_of_the_smallest_numbers_is_not_claimed(size, dtype):
    random = np.random.default_rng(3)
    A = (random.standard_normal((5, 5)) + 4 * np.eye(5)).astype(dtype)
    b = (random.standard_normal(5) * size).astype(dtype)
    if dtype == np.complex128:
        A, b = A + 0.3j * random.standard_normal((5, 5)), b + 1j * random.standard_normal(5) * size
    S = sp.csr_matrix(A)
    M = fl.ILU0().factor(S)
    solutions = [
        fl.solve(S, b),
        *(getattr(fl, m)(S, b, M=M, rtol=1e-8) for m in ("gmres", "bicgstab", "fgmres", "bicg")),
    ]
    for s in solutions:
        assert np.isfinite(s.x).all() and s.x.any()
        left = exact_residual(A, b, s.x)
        assert left <= 1e-8 if s.converged else left < 1e-1
        if size < 1e-315:
            assert s.status is Status.PRECISION_LIMIT and "b is so small" in s.explain()
        if size >= 1e-300:
            assert s.converged


def test_a_small_right_hand_side_in_single_precision():
    A = sp.csr_matrix(np.array([[3, 1], [1, 2]], np.float32))
    b = np.array([1e-43, 3e-44], np.float32)
    s = fl.cg(A, b, rtol=1e-4)
    assert s.status is Status.PRECISION_LIMIT and exact_residual(A.toarray(), b, s.x) > 1e-4
    seen = []
    fl.cg(A, b, rtol=1e-4, callback=lambda x: seen.append(float(abs(x).max())), watch=lambda k, norm: seen.append(norm))
    assert 0 < max(seen) < 1e-42
    guess = fl.cg(A, b, x0=s.x, rtol=1e-4)
    assert np.array_equal(guess.x, s.x)


def test_every_step_of_a_sequence_looks_at_the_smallest_numbers():
    statuses = set()
    for seed in range(15):
        random, sequence = np.random.default_rng(seed), fl.Sequence(rtol=1e-8)
        A, b = random.standard_normal((5, 5)) + 2 * np.eye(5), random.standard_normal(5) * 1e-315
        for factor in (1.0, 1.5, 1.5):
            solution = sequence.step(sp.csr_matrix(factor * A), b)
            assert solution.converged == (exact_residual(factor * A, b, solution.x) <= 1e-8)
            assert solution.converged or "b is so small" in solution.explain()
            statuses.add(solution.status)
    assert statuses == {Status.CONVERGED, Status.PRECISION_LIMIT}


def test_the_residual_norm_of_a_first_guess_is_not_its_backward_error():
    A, b = fl.gallery.convection_diffusion(5, 5, 1, peclet=9.0), np.ones(25)
    x = fl.solve(A, b).x * (1 + 1e-3)
    for options, status in (
        ({"rtol": 1e-2}, Status.CONVERGED),
        ({"maxiter": 0}, Status.MAX_ITERATIONS),
        ({"method": "cg"}, Status.NOT_SYMMETRIC),
    ):
        solution = fl.solve(A, b, x0=x, criterion="backward", **options)
        assert solution.status is status and solution.iterations == 0
        assert solution.residual_norm == pytest.approx(np.linalg.norm(b - A @ x))


@pytest.mark.parametrize("name", ["solve", *METHODS])
def test_a_first_guess_that_makes_a_small_right_hand_side_negligible(name):
    A, b = fl.gallery.problem("poisson5:4"), np.full(16, 1e-308)
    solution = getattr(fl, name)(A, b, x0=np.full(16, 0.7), rtol=1e-8)  # times 2^1023 a number, the norm of A x0 is not
    assert solution.converged and solution.residual_norm <= 1e-8 * 4e-308 and np.isfinite(solution.history).all()
    solution = getattr(fl, name)(A * 1e200, b, x0=np.full(16, 1e-200), rtol=1e-8)
    assert np.isfinite(solution.residual_norm) and solution.status is not Status.NOT_FINITE


def test_words_that_name_no_criterion():
    A = fl.gallery.problem("poisson5:4")
    for call in (fl.solve, fl.cg):
        with pytest.raises(ParameterError, match=r"criterion='backwards'; one of .* Did you mean 'backward'"):
            call(A, np.ones(16), criterion="backwards")
    with pytest.raises(ParameterError, match="by its products only"):
        fl.cg(aslinearoperator(A), np.ones(16), criterion="backward")
    assert fl.cg(aslinearoperator(A), np.ones(16)).converged


def test_a_callback_sees_x_in_corrections_too():
    A, b, u = penalty(1e12)
    seen, counted = [], []
    solution = fl.cg(
        A,
        b,
        M=fl.IC0().factor(A),
        rtol=1e-8,
        callback=lambda x: seen.append(x.copy()),
        watch=lambda k, _: counted.append(k),
    )
    assert abs(seen[-1] - u).max() < 1e-5 and max(counted) == solution.iterations == len(seen)
    assert len(solution.history) == solution.iterations + 1 and solution.history[-1] == solution.residual_norm
    stopped = fl.cg(A, b, M=fl.IC0().factor(A), rtol=1e-8, watch=lambda k, _: k >= 20)
    assert stopped.status is Status.INTERRUPTED and stopped.iterations == 20


def test_power_of_two_is_exact():
    for b in (np.array([5e-324, 1e-310]), np.array([1e-45], np.float32)):
        power = underflow.power_for(b, None)
        assert np.array_equal(vectors.times_power(vectors.times_power(b, power), -power), b)
    assert underflow.power_for(np.ones(3), None) == underflow.power_for(np.zeros(3), None) == 0


def test_a_matrix_as_small_as_b_is_no_reason_to_magnify():
    """x of 1 would overflow."""
    A = sp.diags([-np.ones(49), 2 * np.ones(50), -np.ones(49)], [-1, 0, 1]).tocsr() * 1e-310
    b = A @ np.ones(50)
    for solution in (fl.solve(A, b), fl.cg(A, b, rtol=1e-8)):
        assert solution.converged and abs(solution.x - 1).max() < 1e-3
    assert underflow.power_for(b, fl.as_csr(A)) < 10


def test_rows_so_small_that_their_rounding_underflows_are_looked_at():
    P = fl.gallery.problem("poisson5:6")
    A, b = sp.block_diag([P, 1e-309 * P]).tocsr(), np.r_[np.ones(36), np.full(36, 1e-309)]
    solutions = [fl.gmres(A, b, rtol=1e-8, criterion=c) for c in ("auto", "backward")]
    solutions.append(fl.solve(A, b, recipe=None, criterion="backward"))
    for s in solutions:
        small = np.linalg.norm(1e300 * (b - A @ s.x)[36:]) * 1e9 if s.converged else 0
        assert small <= 1e-2, s


def test_a_certificate_of_the_smallest_numbers_knows_how_coarse_they_are():
    found = fl.solve(sp.csr_matrix(3 * np.eye(2)), np.full(2, 1.2345e-318), certify=True).certificate
    assert found.error > 1e-7 and found.componentwise > 1e-7 and found.least_residual > 1e-7


@pytest.mark.parametrize("method", ["gmres", "fgmres", "bicgstab", "richardson"])
def test_backward_finds_what_the_norm_throws_away(method):
    A, b, exact = chain()
    solution = getattr(fl, method)(A, b, M=fl.ILU0().factor(A), rtol=1e-8, criterion="backward")
    assert solution.converged and (abs(solution.x - exact) <= 1e-13 * exact).all()


def test_the_most_iterations_are_those_of_all_corrections():
    A, b, _ = penalty(1e12)
    for most in (1, 2, 20):
        solution = fl.gmres(A, b, M=fl.ILU0().factor(A), rtol=1e-8, maxiter=most)
        assert solution.status is Status.MAX_ITERATIONS and solution.iterations == most


def test_a_sequence_corrects_nothing_that_is_good_enough():
    A, b, _ = penalty(1e9)
    sequence = fl.Sequence(A, rtol=1e-8, recipe="ic0")
    assert [sequence.step(b=b).iterations > 0 for _ in range(3)] == [True, False, False]


def test_terms_that_overflow_are_not_taken_for_large_ones():
    """Sums of |A| over rows, and |A| |x| + |b|, next to the largest numbers."""
    P = fl.gallery.problem("poisson5:4")
    A, b = sp.block_diag([P * 4e307 / 4, P * 1e-3]).tocsr(), np.r_[np.full(16, 8e306), np.full(16, 1e-3)]
    s = fl.solve(A, b, recipe="jacobi")
    assert not s.converged or np.linalg.norm((b - A @ s.x)[16:]) <= 1e-8 * np.linalg.norm(b[16:]) * 40
    huge = fl.solve(sp.csr_matrix(np.diag([1e120, 1e120])), np.full(2, 1.2e308), criterion="backward", rtol=1e-12)
    assert np.isfinite(huge.x).all() and (not huge.converged or huge.x == pytest.approx(1.2e188, rel=1e-10))


SUBNORMAL = np.array([1e-45, 1.2345e-40, 1.1754942e-38], np.float32)  # the last is the largest


def test_single_precision_is_known_by_its_bits(backend):
    """CuPy takes subnormal numbers for 0 in arithmetic."""
    for v in (np.r_[SUBNORMAL, -SUBNORMAL, np.float32(0), np.float32(3)], (SUBNORMAL + 1j * SUBNORMAL[::-1])):
        there = backend.move(v)
        double = vectors.as_dtype(there, np.dtype("D" if v.dtype.kind == "c" else "d"))
        assert np.array_equal(backend.fetch(double), v.astype(double.dtype))
        assert np.array_equal(backend.fetch(vectors.in_single(double)), v)
        assert vectors.exponents(there)[0] == -127
    assert vectors.exponents(backend.move(SUBNORMAL)) == (-127, -127)
    assert vectors.exponents(backend.move(np.array([0, -6, 0.25], np.float32))) == (-2, 2)
    assert vectors.exponents(backend.move(np.zeros(2, np.float32))) == (0, 0)
    assert vectors.underflows(backend.move(SUBNORMAL)) == (backend.name == "cuda")
    assert not vectors.underflows(backend.move(np.array([0, 1e-20, 1e20], np.float32)))


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize(("of_A", "of_b"), [(1, 1e-40), (1e-40, 1), (1e-40, 1e-40), (1e-36, 1e-36), (1e37, 1e-3)])
@pytest.mark.parametrize("call", ["solve", "loose", "cg", "sequence"])
def test_no_claim_of_the_smallest_numbers_is_false(backend, dtype, of_A, of_b, call):
    P = fl.gallery.problem("poisson5:6")
    A = (of_A * P).astype(dtype)
    b = (of_b * (1 + np.arange(36) % 3)).astype(dtype)
    moved, rtol = (backend.move(A), backend.move(b)), 1e-4 if call == "loose" else 1e-8
    if call == "cg":
        found = fl.cg(*moved, rtol=1e-4)
    else:
        found = fl.Sequence(rtol=rtol).step(*moved) if call == "sequence" else fl.solve(*moved, rtol=rtol)
    x = backend.fetch(found.x)
    wide = np.result_type(dtype, np.float64)
    left, rounding = np.linalg.norm(b.astype(wide) - A.astype(wide) @ x.astype(wide)), 16 * np.finfo(x.dtype).eps
    coarse = rounding * np.linalg.norm(b.astype(wide)) + 36 * 1.4e-45  # the smallest number of single precision
    assert left == pytest.approx(found.residual_norm, rel=1e-2, abs=coarse)
    assert found.converged or call == "cg" or of_b > 1e3 * of_A, found.explain()
    if found.converged:
        assert left <= (1e-4 if call == "cg" else rtol) * np.linalg.norm(b.astype(wide)) * 1.001


def test_single_precision_becomes_complex_without_loss(backend):
    there, dtype = backend.move(SUBNORMAL), np.dtype(np.complex64)
    assert np.array_equal(backend.fetch(vectors.as_dtype(there, dtype)), SUBNORMAL.astype(dtype))
    blocks = backend.move(np.full((7, 1, 1, 5, 1, 1), 1e-40, np.float32))
    wide = fl.StencilMatrix(blocks).astype(np.float64)
    assert float(wide.blocks.max()) == float(np.float32(1e-40))


@pytest.mark.parametrize("criterion", ["auto", "residual", "backward"])
@pytest.mark.parametrize("problem", ["penalty", "chain", "plain"])
def test_what_rounding_reaches_is_told_by_the_last_bound_or_else_by_a_pass(criterion, problem, monkeypatch):
    """By definition: at least that much is the rounding. A pass over A is made only where the bound is not below it."""
    A, b = {
        "penalty": lambda: penalty(1e12)[:2],
        "chain": lambda: (laplacian(300, 2).tocsr(), np.ones(300)),
        "plain": lambda: (sp.identity(50, format="csr") * 2.0, np.ones(50)),
    }[problem]()
    A, x = fl.as_csr(A), np.random.default_rng(0).standard_normal(b.size) * 1e3
    check = Criterion(criterion, Residual(matrix_operator(A), b), b)
    size = check.rounding(b, x)
    assert size > 0
    for tolerance in (0.0, 1e-8 * norm(b)):
        for least in size * np.array([1e-3, 0.99, 1.01, 1e3]):
            check(b, x, tolerance)
            assert check.reaches(b, x, least) == (least < size), (tolerance, least)
    check(b, x, 0.0)
    by_norm = not check.by_rows
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(Residual, "_rounding", None)  # no pass is possible
        if by_norm:
            assert not check.reaches(b, x, 1e3 * size * A.n)
        with pytest.raises(TypeError):
            check.reaches(b, x, size)
        with pytest.raises(TypeError):  # the last call was for another x
            check.reaches(b, x.copy(), 1e3 * size * A.n)


@pytest.mark.parametrize("method", ["cg", "bicgstab", "minres", "gmres"])
def test_a_solve_that_is_stopped_forms_one_residual_of_the_best_x(method, monkeypatch):
    A = fl.gallery.poisson5(30)
    b, formed, residual = np.ones(A.shape[0]), [], Residual.__call__

    def counted(self, b, x, *others):
        formed.append(x)
        return residual(self, b, x, *others)

    monkeypatch.setattr(Residual, "__call__", counted)
    found = getattr(fl, method)(A, b, M=fl.ILU0().factor(A), rtol=1e-10, watch=lambda k, _: k >= 12)
    assert found.status is Status.INTERRUPTED and found.iterations == 12 and not found.converged
    assert len(formed) <= 2  # of the best x, and for the result
    assert found.residual_norm == pytest.approx(norm(b - A @ found.x), rel=1e-10)
    assert found.residual_norm <= 1.01 * found.history[1:].min()
