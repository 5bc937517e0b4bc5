"""Singular systems: what is found of null vectors, the verdict on b, and x, which is that of least squares."""

import re

import numpy as np
import pytest
import scipy.sparse as sp
import scipy.sparse.linalg as spla

import finelu as fl
from finelu import Status, gallery, solve
from finelu.auto import exact, null_space, singular, solvability
from finelu.errors import DecompositionError
from finelu.matrix import as_csr
from finelu.preconditioners.direct.factors import SparseLUFactors
from finelu.preconditioners.multilevel import dense

SINGULARS = (Status.SINGULAR, Status.NUMERICALLY_SINGULAR)


def random(n, seed=0):
    return np.random.default_rng(seed).standard_normal(n)


def neumann(*shape):
    """The Laplacian of a grid of cells without flow through its boundary; integers."""
    A = None
    for k, m in enumerate(shape):
        T = sp.diags([-np.ones(m - 1), np.r_[1, 2 * np.ones(m - 2), 1], -np.ones(m - 1)], [-1, 0, 1])
        term = sp.kron(sp.kron(sp.identity(int(np.prod(shape[:k]))), T), sp.identity(int(np.prod(shape[k + 1 :]))))
        A = term if A is None else A + term
    return A.tocsr()


def cells(m, spread):
    """A Laplacian with random coefficients: row sums are 0 up to rounding."""
    weights = sp.triu(abs(neumann(m, m)), 1).tocoo()
    values = 10 ** np.random.default_rng(0).uniform(-spread, spread, weights.nnz)
    W = sp.coo_matrix((values, (weights.row, weights.col)), weights.shape)
    W = (W + W.T).tocsr()
    return (sp.diags(np.asarray(W.sum(axis=1)).ravel()) - W).tocsr()


def graded(m):
    """-u'' in two dimensions on a graded grid, each row divided by its volume; and these volumes."""
    h = 1.05 ** np.arange(m)
    h /= h.sum()
    t = 2 / (h[1:] + h[:-1])
    S = sp.diags(1 / h) @ sp.diags([-t, np.r_[t, 0] + np.r_[0, t], -t], [-1, 0, 1])
    return (sp.kron(S, sp.identity(m)) + sp.kron(sp.identity(m), S)).tocsr(), np.kron(h, h)


def elastic(nx, ny):
    """A body of bilinear elements without supports, and its translations and rotation as orthonormal columns."""
    D, g = np.array([[1.1, 0.4, 0.0], [0.4, 1.1, 0.0], [0.0, 0.0, 0.35]]), 1 / np.sqrt(3)
    K = np.zeros((8, 8))
    for s in (-g, g):
        for t in (-g, g):
            dN = 0.5 * np.array([[-(1 - t), 1 - t, 1 + t, -(1 + t)], [-(1 - s), -(1 + s), 1 + s, 1 - s]])
            B = np.zeros((3, 8))
            B[0, ::2], B[1, 1::2], B[2, ::2], B[2, 1::2] = dN[0], dN[1], dN[1], dN[0]
            K += B.T @ D @ B / 4
    ids = np.arange((nx + 1) * (ny + 1)).reshape(nx + 1, ny + 1)
    corners = np.stack([ids[:-1, :-1], ids[1:, :-1], ids[1:, 1:], ids[:-1, 1:]], -1).reshape(-1, 4)
    d = np.stack([2 * corners, 2 * corners + 1], -1).reshape(-1, 8)
    n = 2 * ids.size
    where = np.repeat(d, 8, 1).ravel(), np.tile(d, 8).ravel()
    A = sp.csr_matrix((np.tile(K.ravel(), len(d)), where), shape=(n, n))
    X, Y = (v.ravel().astype(float) for v in np.mgrid[: nx + 1, : ny + 1])
    R = np.zeros((n, 3))
    R[::2, 0], R[1::2, 1], R[::2, 2], R[1::2, 2] = 1, 1, Y.mean() - Y, X - X.mean()
    return A, np.linalg.qr(R)[0]


def relative(A, b, x):
    return np.linalg.norm(b - A @ x) / np.linalg.norm(b)


# b outside of the range


@pytest.mark.parametrize("shape", [(20, 20, 20), (40, 40), (15, 15), (2000,)])
def test_b_slightly_off_the_range(shape):
    A, n = neumann(*shape), int(np.prod(shape))
    b = random(n)
    b += 3e-7 - b.mean()
    least = abs(b.mean()) * np.sqrt(n) / np.linalg.norm(b)
    solution = solve(A, b)
    assert solution.status is Status.SINGULAR
    assert relative(A, b, solution.x) <= 1.01 * least
    assert abs(solution.x).max() < 1e5 and abs(solution.x.mean()) < 1e-9 * abs(solution.x).max()
    assert solution.residual_norm == pytest.approx(np.linalg.norm(b - A @ solution.x), rel=1e-3)
    assert solution.history[-1] == solution.residual_norm and len(solution.history) == solution.iterations + 1
    text = solution.explain()
    assert "the constant vector v" in text and "rescale" not in text
    share = float(re.search(r"b lies partly outside of A's range, by (\S+) of its length", text)[1])
    assert share == pytest.approx(least, rel=0.1)


def test_that_takes_no_more_than_a_system_that_has_a_solution():
    A = neumann(30, 30, 30)
    b = random(A.shape[0])
    b -= b.mean()
    within, off = solve(A, b), solve(A, b + 3e-7)
    assert within.converged and off.status is Status.SINGULAR
    assert off.iterations <= 1.2 * within.iterations + 5 and len(off.attempts) == len(within.attempts)


@pytest.mark.parametrize("method", ["cg", "gmres", "bicgstab"])
def test_a_recipe_that_was_asked_for(method):
    A = neumann(12, 12, 12)
    b = random(A.shape[0])
    solution = solve(A, b, recipe="ic0", method=method)
    assert solution.status is Status.SINGULAR and {a.recipe for a in solution.attempts} == {"IC0()"}
    assert relative(A, b, solution.x) == pytest.approx(abs(b.mean()) * np.sqrt(b.size) / np.linalg.norm(b), rel=1e-3)


@pytest.mark.parametrize("spread", [0.0, 1.0, 3.0])
def test_row_sums_that_are_rounding(spread):
    A = cells(40, spread)
    b = random(A.shape[0])
    solution = solve(A, b)
    assert solution.status in SINGULARS
    assert relative(A, b, solution.x) == pytest.approx(abs(b.mean()) * 40 / np.linalg.norm(b), rel=1e-3)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
def test_other_dtypes(dtype):
    A = neumann(30, 30).astype(dtype)
    b = (random(900) + (1j * random(900, 1) if A.dtype.kind == "c" else 0)).astype(dtype)
    solution = solve(A, b, rtol=1e-4)
    assert solution.status is Status.SINGULAR
    assert relative(A, b, solution.x) == pytest.approx(abs(b.mean()) * 30 / np.linalg.norm(b), rel=1e-3)


def test_each_connected_part_has_a_constant():
    A = sp.block_diag([neumann(30, 30), 3 * neumann(40, 20)]).tocsr()
    b = random(1700)
    b -= b.mean()
    solution = solve(A, b)
    assert solution.status is Status.SINGULAR and "2 vectors v that are constant on a set" in solution.explain()
    least = np.sqrt(900 * b[:900].mean() ** 2 + 800 * b[900:].mean() ** 2) / np.linalg.norm(b)
    assert relative(A, b, solution.x) == pytest.approx(least, rel=1e-3)
    b[:900] -= b[:900].mean()
    b[900:] -= b[900:].mean()
    assert solve(A, b).converged


def test_a_body_under_gravity_without_supports():
    A, _ = elastic(20, 15)
    b = np.zeros(A.shape[0])
    b[1::2] = -1
    solution = solve(A, b)
    assert solution.status in SINGULARS and not solution.x.any() and solution.iterations == 0
    assert solution.residual_norm == pytest.approx(np.linalg.norm(b))


@pytest.mark.parametrize("torque", [1e-4, 1.0])
def test_a_rotation_is_found_by_the_factors(torque):
    A, R = elastic(20, 15)
    b = random(A.shape[0])
    b -= R @ (R.T @ b)
    assert solve(A, b).converged
    b += torque * np.linalg.norm(b) * R[:, 2]
    solution = solve(A, b)
    assert solution.status in SINGULARS
    assert relative(A, b, solution.x) == pytest.approx(np.linalg.norm(R.T @ b) / np.linalg.norm(b), rel=1e-3)
    assert np.linalg.norm(R.T @ solution.x) < 1e-6 * np.linalg.norm(solution.x)  # the least norm


def test_left_null_vectors_of_rows_of_different_size():
    A, volumes = graded(40)
    u = volumes / np.linalg.norm(volumes)
    b = random(1600)
    b += 1e-3 - volumes @ b
    solution = solve(A, b)
    assert solution.status in SINGULARS
    assert relative(A, b, solution.x) <= 1.01 * abs(u @ b) / np.linalg.norm(b) + 1e-8
    assert solve(A, b - u * (u @ b)).converged


def test_constants_of_the_columns_alone():
    A = neumann(30, 30) + sp.diags([np.ones(899)], [1]) - sp.diags([np.r_[0, np.ones(899)]], [0])
    assert not np.asarray(A.sum(axis=0)).any() and np.asarray(A.sum(axis=1)).any()
    b = random(900)
    solution = solve(A.tocsr(), b)
    assert solution.status is Status.SINGULAR
    assert relative(A, b, solution.x) == pytest.approx(abs(b.mean()) * 30 / np.linalg.norm(b), rel=1e-3)


def test_null_vectors_are_looked_for_once_and_not_for_what_is_solved(backend, calls_of):
    looks = calls_of(solvability, "constants")
    A = neumann(30, 30)
    within = A @ random(900)
    solution = solve(backend.move(A), backend.move(within), device=backend.name)
    assert solution.converged and "for the constant vector v): x is not unique" in solution.explain()
    skew = sp.diags([-np.ones(899), np.ones(899)], [-1, 1]).tocsr()  # whose entries add up to 0
    assert solve(backend.move(skew), backend.move(random(900)), device=backend.name).converged
    assert not looks
    solution = solve(backend.move(A), backend.move(random(2700).reshape(900, 3)), device=backend.name)
    assert solution.status is Status.SINGULAR and len(looks) == 1


@pytest.mark.parametrize("shape", [(30, 30), (8, 9, 10)])
def test_parts_that_one_constant_does_not_tell_are_looked_for_after_one_attempt(shape):
    """b is off the range of both halves, and its sum is 0."""
    A = sp.block_diag([neumann(*shape)] * 2).tocsr()
    b = random(A.shape[0])
    b += np.repeat([1, -1], b.size // 2) - b.mean()
    solution = solve(A, b)
    assert solution.status is Status.SINGULAR and "2 vectors v that are constant on a set" in solution.explain()
    least = np.linalg.norm(b.reshape(2, -1).mean(axis=1)) * np.sqrt(b.size / 2) / np.linalg.norm(b)
    assert relative(A, b, solution.x) == pytest.approx(least, rel=1e-3)
    assert "the part of b in A's range" in solution.attempts[1].why
    assert solution.attempts[-1].outcome == "solved for the part of b in A's range"


@pytest.mark.parametrize("size", [1, 1e-36])
def test_a_sequence_in_single_precision_goes_on_in_double(size):
    n = 500
    A, wave = neumann(n).astype("float32"), np.cos(np.pi * (np.arange(n) + 0.5) / n)
    sequence = fl.Sequence(A, rtol=1e-4)
    for amplitude in (0.01, 0.1):
        b = (size * (wave + amplitude * random(n))).astype("float32")
        solution = sequence.step(b=b)
        assert solution.residual_norm == pytest.approx(np.linalg.norm((b - A @ solution.x) / size) * size, rel=1e-3)
        assert solution.status is solve(A, b, rtol=1e-4).status and solution.x.dtype == np.float64
        assert solution.iterations == sum(attempt.iterations for attempt in solution.attempts)
        assert len(solution.history) == solution.iterations + 1
    assert solution.status is Status.SINGULAR and "then A and b were taken in double" not in solution.explain()
    b = (size * wave).astype("float64")
    b -= b.mean()
    for decision in ("solve", "reuse"):
        assert sequence.step(b=b).converged and sequence.decisions[-1] == decision


# what is not claimed


@pytest.mark.parametrize("spread", [0, 1, 6])
@pytest.mark.parametrize("seed", range(3))
def test_the_least_residual_of_many_null_vectors(seed, spread):
    """Ten parts, each with a null vector of its own, of which some are not found."""
    rng, blocks = np.random.default_rng(seed), []
    for k in rng.integers(20, 60, 10):
        D = sp.diags(2.0 ** rng.integers(-3, 4, k))
        blocks.append(D @ neumann(k) @ D * 10.0 ** rng.integers(-spread - 1, spread + 1))
    A = sp.block_diag(blocks).tocsr()
    b = rng.standard_normal(A.shape[0])
    solution = solve(A, b)
    assert solution.status in SINGULARS
    size, least = relative(A, b, solution.x), relative(A, b, np.linalg.lstsq(A.toarray(), b, rcond=1e-13)[0])
    assert solution.residual_norm == pytest.approx(size * np.linalg.norm(b), rel=1e-3)
    text = solution.explain()
    assert "x has the smallest residual that was found" in text or size <= 1.001 * least
    assert size <= 0.99 or not solution.x.any()  # else x = 0 is as good as some x of 1e29


def test_a_matrix_a_rounding_from_singular_is_solved_where_x_can_be_held():
    n = 50
    A = neumann(n).tolil()
    A[n - 1, n - 1] = 1 + 2.0**-52
    solution = solve(A.tocsr(), np.eye(n)[0])  # x = 2^52 + n - 1 - i
    assert solution.converged and abs(solution.x - 2.0**52).max() < 2 * n


def with_a_weak_spring(n, weight):
    """A regular matrix whose row sums are 0 except for one of `weight`; A x = e_0 for x = -1 / weight."""
    A = sp.block_diag([neumann(n), weight]).tolil()
    A[0, n] = A[n, 0] = -weight
    return A.tocsr()


@pytest.mark.parametrize(("n", "dtype", "power"), [(300, "float64", -110), (3, "float32", -40), (2, "float64", -130)])
def test_a_matrix_less_than_twice_the_precision_from_singular_is_not_called_so(n, dtype, power):
    A = with_a_weak_spring(n, 2.0**power).astype(dtype)
    solution = solve(A, np.eye(n + 1, dtype=dtype)[0], rtol=1e-4)
    assert solution.status is not Status.SINGULAR
    assert (A @ np.full(n + 1, -(2.0**-power)) == np.eye(n + 1)[0]).all()  # the x that there is
    assert solution.converged or n > exact.MOST_EXACT or power < -106
    if n <= exact.MOST_EXACT:
        assert exact.exactly_singular(as_csr(A)) is False


@pytest.mark.parametrize("phase", [1, -1, 1j])
def test_null_vectors_of_units_that_factors_find(phase):
    """A large A with the null vector v = (1, phase, phase^2, ...), exactly or up to a weak spring."""
    n, U = 300, sp.diags(np.array([1.0, phase, phase * phase, phase**3])[np.arange(300) % 4])
    A, b = (U @ neumann(n) @ U.conj().T).tocsr(), random(n)
    assert solve(A, b).status is Status.SINGULAR
    U, A = sp.block_diag([U, [[1]]]), with_a_weak_spring(n, 2.0**-110)
    assert solve((U @ A @ U.conj().T).tocsr(), np.r_[b, 0]).status is Status.NUMERICALLY_SINGULAR


@pytest.mark.parametrize("ordered", [False, True])
def test_sums_of_rows_are_0_without_rounding_or_not(ordered):
    """1 + 2^-60 - 1 - 2^-60 is, 1 + 2^-120 - 1 is not, in whatever order twice the precision adds them up."""
    row = np.array([2.0**-120, 1, 2.0**-60, -1, -(2.0**-60)])
    A = np.array([np.roll(row if ordered else row[::-1], k) for k in range(5)])
    found = null_space.constants(as_csr(A, diagonal=False), hermitian=False)
    assert not found.right.exact and not found.left.exact and not found.singular
    A = np.where(abs(A) == 2.0**-120, 0, A)
    assert null_space.constants(as_csr(A, diagonal=False), hermitian=False).singular


@pytest.mark.parametrize("share", [1.1e-8, 1e-6])
def test_a_part_outside_of_the_range_that_rounding_may_reach_is_no_verdict_at_once(share):
    """A v of a rounding reaches that part with a c v whose terms have roundings as large."""
    A = as_csr(cells(30, 1.0), diagonal=False)
    found = null_space.constants(A, hermitian=True)
    b = random(900)
    b -= b.mean()
    b += share * np.linalg.norm(b) / 30
    assert (found.evidence(b, 1e-8, small=False) is None) == (share < 1e-7)
    assert found.evidence(b, 1e-8, small=True) is None


@pytest.mark.parametrize("shift", [1e-6, 1e-10])
def test_nearly_singular_systems_are_solved(shift):
    A = (neumann(30, 30) + shift * sp.identity(900)).tocsr()
    solution = solve(A, random(900), rtol=1e-4)
    assert solution.converged and "singular" not in solution.explain()


def test_constants_are_exact_or_rounding_or_none():
    def found(A):
        return null_space.constants(as_csr(A, diagonal=False), hermitian=True)

    assert found(neumann(9, 9)).right.exact
    assert not found(cells(9, 1.0)).right.exact
    assert found(fl.gallery.poisson5(9)) is None
    A, R = elastic(4, 3)
    pieces = found(A).right
    assert pieces.count == 2
    np.testing.assert_allclose(pieces.part(R[:, 0]), R[:, 0], atol=1e-12)
    x = random(A.shape[0])
    np.testing.assert_allclose(pieces.part(x)[::2], x[::2].mean())
    shell = sp.block_diag([neumann(3, 3), sp.identity(9)]).tocsr()  # two kinds of unknowns, one without supports
    order = np.arange(18).reshape(2, 9).T.ravel()
    shell = shell[order][:, order]
    assert found(shell).right.count == 1  # a connected part


def test_all_rows_may_be_null(backend, meanwhile):
    """CuPy's bincount takes no empty array."""
    bincount = np.bincount

    def of_some(x, weights=None, minlength=0):
        if x.size == 0:
            raise ValueError("The length of the array must be larger than 0")
        return bincount(x, weights, minlength)

    meanwhile(np, bincount=of_some)
    A = as_csr(backend.move(neumann(30, 30)), diagonal=False)
    assert null_space.constants(A, hermitian=True).right.exact
    b = random(900)
    solution = solve(backend.move(neumann(30, 30)), backend.move(b), device=backend.name)
    assert solution.status is Status.SINGULAR
    assert solution.residual_norm == pytest.approx(abs(b.mean()) * 30, rel=1e-3)


@pytest.mark.parametrize(("size", "of_b"), [(1e-300, 1e-200), (1e-150, 1e-180), (1.1e300, 1e-200)])
def test_evidence_is_not_one_of_underflow(size, of_b):
    A = neumann(3, 3) * size  # rounded, row by row, so that A 1 is not 0
    assert exact.exactly_singular(as_csr(A)) is False
    solution = solve(A, of_b * np.arange(9.0))
    assert solution.status is Status.NUMERICALLY_SINGULAR, solution.explain()


def test_evidence_is_not_one_of_rows_that_leave_the_range():
    A = np.diag([1.0, 1.0, -2e-130, 3e282, 1.0, 1.0, 1.0])
    A[0, 1], A[1, 4], A[4, 6], A[5, 0], A[6, 5] = 8.0, -2e94, -9e224, -2e-106, -1e-44
    b = 1e108 * np.array([5.2, 5.6, -2.7, -1.0, 2.7, -5.0, 4.9])
    assert exact.exactly_singular(as_csr(A)) is False
    assert solve(A, b).status is not Status.SINGULAR


@pytest.mark.parametrize("size", [1e302, 3e-306])
def test_x_without_a_part_along_v_is_finite_and_accurate_where_sums_leave_the_range(size):
    n = 400
    A, wave = neumann(n), np.cos(np.pi * (np.arange(n) + 0.5) / n)
    solution = solve(A, size * (wave + 0.01))
    assert solution.status is Status.SINGULAR and np.isfinite(solution.x).all()
    np.testing.assert_allclose(solution.x / size, wave / (2 - 2 * np.cos(np.pi / n)), atol=1e-3)


@pytest.mark.parametrize("size", [1.0, 2.0**1022, 2.0**-1060])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_projections_of_the_largest_and_smallest_numbers(size, dtype):
    x = np.array([1, 1, 1, 1, 1, 1, 1, 0, 1.5], dtype) * (1 + 1j if dtype == "complex128" else 1)
    pieces = null_space.Pieces(np.array([0] * 8 + [-1]), 1, True)
    wanted = np.array([0.875] * 8 + [0]) * x[0] * size
    assert (pieces.part(x * size) == wanted).all()
    rest = null_space.Vectors.together(np.eye(9, dtype=dtype)[:, 8:], pieces)
    assert (rest.part(x * size) == wanted + np.eye(9)[8] * x[8] * size).all()


def test_numbers_whose_sum_overflows():
    A = np.array([[1.2e308 + 0.9e308j, 1e300], [1e300, 1.2e308 + 0.9e308j]])
    assert np.isfinite(solve(A, np.ones(2)).x).all()


def test_a_null_vector_of_unknowns_without_diagonal():
    """A pressure: constant where the diagonal has gaps."""
    B = neumann(400)[:, :-1].T  # (399, 400), B 1 = 0
    K = sp.bmat([[fl.gallery.tridiagonal(399), B], [B.T, None]]).tocsr()
    b = random(799)
    solution = solve(K, b)
    assert solution.status in SINGULARS
    assert relative(K, b, solution.x) == pytest.approx(abs(b[399:].mean()) * 20 / np.linalg.norm(b), rel=1e-3)
    b[399:] -= b[399:].mean()
    assert solve(K, b).converged


def test_the_criterion_of_rows_by_themselves_is_left_alone():
    A = neumann(30, 30)
    solution = solve(A, random(900), criterion="backward")
    assert solution.converged == (solution.row_residual is not None and solution.row_residual <= 1e-8)


# a solution that is not unique


@pytest.mark.parametrize("shape", [(12, 12), (15, 15, 15)])
def test_a_solvable_singular_system_has_more_than_one_solution(shape):
    A = neumann(*shape)
    b = random(A.shape[0])
    solution = solve(A, b - b.mean())
    assert solution.converged
    assert "A is singular (A v = 0 for the constant vector v): x is not unique" in solution.explain()
    assert "unique" not in solve(A + sp.identity(A.shape[0]), b).explain()


def test_an_empty_row_that_is_consistent():
    A, b = sp.csr_matrix(np.diag([1.0, 2.0, 0.0])), np.array([1.0, 1.0, 0.0])
    solution = solve(A, b)
    assert solution.converged and "x is not unique" in solution.explain()


def test_incomplete_factors_that_keep_row_sums_are_left_out_where_these_are_0():
    A = neumann(15, 15, 15)
    b = random(A.shape[0])
    solution = solve(A, b - b.mean())
    assert solution.converged and all("MILU0" not in attempt.recipe for attempt in solution.attempts)
    assert "MILU0" in solve(fl.gallery.poisson7(15), b).attempts[0].recipe


# structure


def test_structural_singularity_beats_a_limit_of_an_attempt():
    A = sp.random(100, 100, 0.01, format="csr", random_state=42)
    b = np.random.default_rng(42).standard_normal(100)
    solution = solve(A, b)
    assert solution.status is Status.SINGULAR
    text = solution.explain()
    assert (
        "A is structurally singular: by the places of its nonzeros 41 rows are not independent" in text
        and "raise" not in text
    )
    assert "x has the smallest residual that was found" in text  # factors that are of no use do not find it
    assert solve(A, b, maxiter=3).status is Status.MAX_ITERATIONS  # the caller's


def test_the_empty_row_with_the_source_is_named():
    A = fl.gallery.poisson5(25).tolil()
    empty = [5, 50, 100, 150, 200, 250, 300, 350, 400, 450, 500, 600]
    for i in empty:
        A[i, :] = 0
    A = A.tocsr()
    A.eliminate_zeros()
    b = random(625)
    b[empty] = 0
    b[500] = 1.0
    solution = solve(A, b)
    assert solution.status is Status.SINGULAR
    assert "1 row of A without an entry has a right-hand side that is not 0: row 500" in solution.explain()


def test_no_bound_of_the_condition_number_and_no_useless_tolerance():
    assert singular.condition_in_words(np.inf) == (
        "the condition number of A has no bound (a vector v was met with A v = 0)"
    )
    assert singular.condition_in_words(3e17) == "the condition number of A is 3e+17 or more"
    for status in Status:
        assert "inf or more" not in status.value


# LAPACK


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [4, 7])
def test_ranges_that_overflow_in_small_dense_matrices(n, seed):
    rng = np.random.default_rng(seed)
    small = 10.0 ** rng.uniform(-320, -250, n)
    A = np.diag(small) + np.diag(10.0 ** rng.uniform(-10, 50, n - 1), 1)
    solution = solve(A, rng.standard_normal(n))
    assert np.isfinite(solution.x).all()
    assert not solution.converged or solution.residual_norm <= 1e-7


def test_factors_of_such_a_matrix_know_no_null_space_that_is_not_finite():
    A = np.diag([2.461e-254, 1.092e-286, 1.511e-292, 2.032e-308]) + np.diag([1.639e30, 1.285e11, 1.752], 1)
    try:
        F = fl.MultilevelILU().factor(A)
    except fl.FineluError:
        return
    assert np.isfinite(F.null_space).all() and np.isfinite(F.left_null_space).all()


def failing(*_, **__):
    raise np.linalg.LinAlgError("SVD did not converge")


def test_what_lapack_does_not_find_is_an_error_of_finelu(meanwhile):
    meanwhile(np.linalg, eigh=np.linalg.cholesky)  # which an indefinite matrix does not have
    with pytest.raises(DecompositionError, match="not positive definite") as caught:
        fl.MultilevelILU(definite=True).factor(fl.gallery.poisson5(5) - 1.7 * sp.identity(25))
    assert isinstance(caught.value, fl.FineluError) and isinstance(caught.value.__cause__, np.linalg.LinAlgError)


def test_singular_values_by_another_way(meanwhile):
    M = np.random.default_rng(0).standard_normal((6, 3))
    wanted = np.linalg.svd(M, full_matrices=False)[1]
    meanwhile(np.linalg, svd=failing)
    left, values, right = dense.svd(M)
    np.testing.assert_allclose(values, wanted)
    np.testing.assert_allclose((left * values) @ right, M, atol=1e-12)


def test_an_error_of_the_caller_s_function_stays_what_it_is():
    operator = spla.LinearOperator((9, 9), matvec=failing, dtype=float)
    with pytest.raises(np.linalg.LinAlgError, match="SVD did not converge"):
        fl.gmres(operator, np.ones(9))


def dependent_constraints(m, p, copies, seed):
    """A saddle point of the Laplacian of m x m cells and p constraints with about 30 unknowns each, of which the last
    `copies` repeat the first ones."""
    K = gallery.poisson5(m)
    B = sp.random(p - copies, m * m, 30 / m**2, random_state=np.random.RandomState(seed), format="csr")
    B = sp.vstack([B, B[:copies]])
    return sp.csr_matrix(sp.bmat([[K, B.T], [B, None]]))


@pytest.mark.parametrize(("copies", "seed"), [(1, 5), (1, 10), (30, 6), (30, 8)])
def test_an_x_that_has_grown_along_null_vectors_is_no_limit_of_the_precision(copies, seed):
    """Complete factors of A, singular up to rounding, lead to such an x; other factors to one that solves."""
    A = dependent_constraints(30, 60, copies, seed)
    b = A @ np.ones(A.shape[0])
    solution = solve(A, b)
    assert solution.converged and np.linalg.norm(b - A @ solution.x) <= 1.01e-8 * np.linalg.norm(b)
    assert abs(solution.x).max() <= 1e7


def test_a_limit_of_the_precision_stays_one_after_other_factors_failed():
    """The answer is the x of the complete factors, whose componentwise backward error is small."""
    n = 60
    A = sp.csr_matrix(sp.identity(n) - 2 * sp.eye(n, k=1) + 1e-3 * sp.eye(n, k=-1))
    b = random(n)
    solution = solve(A, b)
    assert solution.status is Status.PRECISION_LIMIT and len(solution.attempts) > 1
    assert (abs(b - A @ solution.x) <= 1e-15 * (abs(A) @ abs(solution.x) + abs(b))).all()
    assert "SparseLU" in solution.recipe and abs(solution.x).max() > 1e15


@pytest.mark.parametrize("m", [20, 60])
def test_a_structurally_singular_pattern_says_nothing_of_the_range(m):
    """30 constraints of 5 unknowns, of which b meets all; a random b has a part outside of the range."""
    unknowns, constraints = m * m, 30
    B = sp.csr_matrix(([1.0] * 150, (np.repeat(np.arange(30), 5), np.tile(np.arange(5), 30))), (constraints, unknowns))
    A = sp.csr_matrix(sp.bmat([[gallery.poisson5(m), B.T], [B, None]]))
    solution = solve(A, A @ np.ones(A.shape[0]))
    assert solution.converged and "x is not unique" in solution.explain()
    assert solve(A, random(A.shape[0])).status in SINGULARS


def saddle_point(n, constraints, twice):
    """[[H, B^T], [B, 0]] with a grid of n^2 rows, and the first constraints twice."""
    rng = np.random.default_rng(0)
    B = sp.random(constraints, n**2, 10 / n**2, random_state=rng, data_rvs=rng.standard_normal)
    B = B + sp.csr_matrix(
        (np.ones(constraints), (np.arange(constraints), rng.permutation(n**2)[:constraints])), B.shape
    )
    B = sp.vstack([B, B.tocsr()[:twice]])
    return sp.csr_matrix(sp.bmat([[gallery.poisson5(n), B.T], [B, None]]))


@pytest.mark.parametrize("shape", [(21, 60, 30), (30, 100, 10), (8, 10, 3)])
@pytest.mark.parametrize("multilevel", [True, False])
def test_a_saddle_point_with_constraints_twice_is_solved_and_not_unique(multilevel, shape, no_multilevel):
    A = saddle_point(*shape)
    if not multilevel:
        no_multilevel()
    b = A @ random(A.shape[0])
    solution = solve(A, b)
    assert solution.converged and np.linalg.norm(b - A @ solution.x) <= 1.01e-8 * np.linalg.norm(b)
    assert abs(solution.x).max() < 1e3 and "A is singular" in solution.explain() and "unique" in solution.explain()
    outside = solve(A, random(A.shape[0], 1))  # the doubled rows contradict each other
    r = random(A.shape[0], 1) - A @ outside.x
    assert outside.status in SINGULARS and np.linalg.norm(A @ r) <= 1e-6 * np.linalg.norm(r)


@pytest.mark.parametrize("several", [False, True])
def test_that_x_is_not_unique_is_a_fact_of_a_and_so_of_each_column(several):
    A = saddle_point(21, 60, 30)
    B = A @ np.column_stack([random(A.shape[0], seed) for seed in range(4)])
    solution = solve(A, B if several else B[:, 0])
    assert solution.converged and "unique" in solution.explain()
    if several:
        assert all("unique" in solution[j].explain() for j in range(4))


def test_shifted_factors_that_cannot_be_made_are_tried_once(monkeypatch):
    """After complete factors of an A that is singular up to rounding."""
    made, begin = [], SparseLUFactors.__init__

    def begin_without_shift(self, recipe, *arguments, **options):
        if recipe.shift:
            made.append(recipe)
            raise MemoryError("no room")
        begin(self, recipe, *arguments, **options)

    monkeypatch.setattr(SparseLUFactors, "__init__", begin_without_shift)
    scales = sp.diags(np.exp(0.3 * np.random.default_rng(2).standard_normal(990)))
    ended = []
    for seed in range(3):
        A = saddle_point(30, 80, 10)
        A = sp.csr_matrix(scales @ A @ scales)
        ended.append(solve(A, random(A.shape[0], seed), 1e-10).status)
        assert len(made) <= 2 * (seed + 1)
    assert made and Status.CONVERGED not in ended


def test_an_unsymmetric_saddle_point_with_constraints_twice_is_solved(no_multilevel):
    """Complete factors of few rows have a pivot that is rounding instead of 0; those with a shift come after."""
    no_multilevel()
    for shape in ((21, 60, 30), (8, 10, 3)):
        A = saddle_point(*shape)
        A = sp.csr_matrix(sp.diags(np.random.default_rng(0).uniform(0.5, 2.0, A.shape[0])) @ A)
        solution = solve(A, A @ random(A.shape[0], 1))
        assert solution.converged and "shift=1e-10" in solution.recipe and abs(solution.x).max() < 1e3


def test_a_pivot_of_0_is_named_where_no_other_factors_solve(no_multilevel):
    """Rows in another order: those with a shift, after a matching, find an x that grows along null vectors."""
    no_multilevel()
    A = saddle_point(30, 100, 10)
    A = A[np.random.default_rng(1).permutation(A.shape[0])]
    solution = solve(A, A @ random(A.shape[0], 1))
    assert solution.status is Status.NUMERICALLY_SINGULAR
    assert "A is singular; its complete L U has a pivot that is 0" in solution.explain()


@pytest.fixture
def no_multilevel(monkeypatch):
    def without_factors(self, A):
        raise fl.ZeroPivot(self, 0, 0.0)

    return lambda: monkeypatch.setattr(fl.MultilevelILU, "factor", without_factors)


def test_a_pivot_that_cancels_is_no_singular_matrix_if_x_solves_each_row():
    A = np.array([[1, 1e17, 1e17], [1, 1, 2], [1, 2, 1]])
    solution = solve(A, np.array([0.0, 1.0, 2.0]))
    np.testing.assert_allclose(solution.x, [1.5, 0.5, -0.5], rtol=1e-12)
    assert solution.status is not Status.NUMERICALLY_SINGULAR and "A is singular" not in solution.explain()


def test_the_unknowns_that_the_equations_leave_free_are_named():
    """Three voltage sources in a loop: any current may run around it."""
    G, n = gallery.problem("poisson5:20"), 400
    places = np.array([5, 17, 17, 40, 40, 5]), np.array([0, 0, 1, 1, 2, 2])
    loop = sp.csr_matrix((np.tile([1.0, -1.0], 3), places), shape=(n, 3))
    A = sp.bmat([[G, loop], [loop.T, None]], format="csr")
    b = random(n + 3)
    for rhs in (b, np.stack([b, A @ b], axis=1), np.r_[b[:n], 0, 0, 0]):
        solution = solve(A, rhs)
        v = solution.null_vector
        assert v.shape == (n + 3,) and np.linalg.norm(v) == pytest.approx(1) and np.linalg.norm(A @ v) <= 1e-12
        assert set(np.flatnonzero(abs(v) > 0.5)) == {n, n + 1, n + 2}
        named = re.search(r"v of length 1, largest at unknowns ([0-9, ]*)", solution.explain())
        assert sorted(map(int, named[1].rstrip(", ").split(", "))) == [n, n + 1, n + 2]


def test_a_null_vector_is_kept_if_one_was_found():
    A = neumann(20, 20)
    for b in (random(400), random(400) - random(400).mean()):
        found = solve(A, b)
        np.testing.assert_allclose(found.null_vector, 0.05)
        assert solve(A, b, nullspace=found.null_vector).converged
    assert null_space.where_largest(np.array([0.1, -2, 0, 3])) == "largest at unknowns 3, 1"
    nine = np.arange(100) % 10 == 0
    nine[0] = False
    assert null_space.where_largest(0.4 + nine) == "largest at unknowns 10, 20, 30, 40, 50, 60, 70, 80 and others"
    assert null_space.where_largest(np.ones(9)) == "of about the same size at 9 unknowns"
    assert solve(gallery.problem("poisson5:20"), random(400)).null_vector is None
