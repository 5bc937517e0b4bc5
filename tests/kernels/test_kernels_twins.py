"""Small kernels against their specifications, on every device: scaling, pivots, magnitudes, sums, solves in turn."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, assert_close, in_dtype, values

from finelu import gallery
from finelu.kernels import kernels_for, reference
from finelu.matrix import as_csr
from finelu.triangular import triangle


def mixed(dtype):
    """Rows of one entry and of several, and a diagonal that is not positive throughout."""
    A = in_dtype(gallery.convection_diffusion(5, 4, 1, peclet=9), dtype)
    return sp.csr_matrix(sp.block_diag([A, sp.diags(np.array([3, 2, -2, 0.5], dtype))], format="csr"))


def twins(backend, A, changed=()):
    """(kernels, A) of the device, and of the specification; changed: places in A's data, and values for them."""
    data = A.data.copy()
    for place, value in changed:
        data[place] = value
    there, here = as_csr(backend.move(A)), as_csr(A)
    yield kernels_for(there.data), there.with_values(backend.xp.asarray(data))
    yield reference, here.with_values(data)


@pytest.mark.parametrize("dtype", DTYPES)
def test_row_norms_neither_overflow_nor_underflow(backend, dtype):
    A = mixed(dtype)
    limits = np.finfo(A.dtype)
    size = np.resize([1, limits.max / 16, limits.tiny * 4, 1e3], A.shape[0]).astype(A.real.dtype)
    A.data *= np.repeat(size, np.diff(A.indptr))
    A.data[A.indptr[5] : A.indptr[6]] = 0
    got, want = (backend.fetch(form.scaling.row_norms(B.indptr, B.data)) for form, B in twins(backend, A))
    assert got.dtype == np.float64 and np.isfinite(want).all() and np.flatnonzero(want == 0).tolist() == [5]
    assert_close(got, want, 16, scale=want)
    largest = abs(A).max(axis=1).toarray().ravel().astype(float)
    assert (0.999999 * largest <= want).all() and (want / 3 <= largest).all()  # of at most five entries


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cholesky", [False, True])
@pytest.mark.parametrize("odd", [None, 0, np.nan, np.inf])
def test_pivots_and_the_first_that_cannot_be_one(backend, dtype, cholesky, odd):
    for A in (mixed(dtype), in_dtype(gallery.poisson5(6, 4), dtype)):
        changed = [] if odd is None else [(as_csr(A).diag[i], odd) for i in (7, 9)]
        with np.errstate(all="ignore"):
            (d, bad, plain), (want, first, positive) = (
                form.scaling.pivots(B, cholesky) for form, B in twins(backend, A, changed)
            )
        assert (int(bad), bool(plain)) == (first, positive)
        negative = A.diagonal().real.min() < 0
        assert first == (7 if odd is not None else 22 if cholesky and negative else -1)
        assert positive == (not negative and odd in (None, np.inf))
        d, sound = backend.fetch(d), np.isfinite(want)
        assert d.dtype == want.dtype == A.real.dtype
        assert_close(d[sound], want[sound], 4, scale=want[sound])


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_unusable_row(backend, dtype):
    A = mixed(dtype)
    diag, indptr = as_csr(A).diag, A.indptr
    for row, changed in {
        -1: [(indptr[4] + (diag[4] == indptr[4]), 0)],  # an entry off the diagonal may be 0
        7: [(diag[7], 0), (diag[9], np.nan)],
        9: [(diag[9], np.nan), (indptr[11], np.inf)],
        23: [(indptr[24] - 1, -np.inf)],
    }.items():
        assert [int(form.scaling.first_unusable(B)) for form, B in twins(backend, A, changed)] == [row, row]


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_scale_of_what_may_be_definite(backend, dtype):
    A = in_dtype(gallery.poisson5(6, 5), dtype)
    size = np.ldexp(1.0, np.resize([0, 9, -14, 3], 30)).astype(A.real.dtype)
    A = sp.csr_matrix(sp.diags(size) @ A @ sp.diags(size))
    places, real = as_csr(A).diag, A.real.dtype
    off = A.indptr[8] + (A.indices[A.indptr[8]] == 8)
    large = 1.01 * np.sqrt(abs(A[8, 8] * A[A.indices[off], A.indices[off]]))
    cases = [([], True), ([(places[3], -1)], False), ([(places[3], 0)], False), ([(off, large)], False)]
    if A.dtype.kind == "c":
        cases.append(([(places[3], A[3, 3] * (1 + 1e-3j))], False))
    for changed, definite in cases:
        found = []
        for form, B in twins(backend, A, changed):
            out = (np if form is reference else backend.xp).empty(30, real)
            assert bool(form.scaling.definite_scale(B, out)) == definite
            found.append(backend.fetch(out))
        if definite:
            np.testing.assert_array_equal(*found)
            scaled = found[0] ** 2 * A.diagonal().real
            assert (scaled >= 0.5).all() and (scaled <= 2).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_vector_times_a_number_and_its_largest_magnitude(backend, dtype):
    x = values(1000, dtype)
    factor = np.full(1, 0.3, x.real.dtype)
    kernels = kernels_for(backend.move(x))
    for form, moved in ((reference, lambda v: v), (kernels, backend.move)):
        given, out = moved(x.copy()), moved(np.zeros_like(x))
        form.vectors.scaled(moved(factor), given, out)
        assert_close(backend.fetch(out), factor * x, 4)
        form.vectors.scaled(moved(factor), given, given)
        assert_close(backend.fetch(given), factor * x, 4)
        if form is not reference and backend.name == "cpu":
            continue
        for part in (x, x[:1], x.reshape(20, 50), 0 * x):
            assert_close(form.vectors.largest(moved(part)), np.abs(part).max(), 4)
        for value in (np.nan, np.inf, -np.inf):
            for place in (0, 517, 999):
                special = x.copy()
                special[place] = value
                assert str(form.vectors.largest(moved(special))) == str(abs(value))
        both = x.copy()
        both[3], both[700] = np.inf, np.nan
        assert np.isnan(form.vectors.largest(moved(both)))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("n", [1, 1000, 70_000])
def test_values_in_single_precision(backend, dtype, n):
    """Rounded to the nearest; numbers that a float has no digits for are reported, wherever they are."""
    single = {"float64": "float32", "complex128": "complex64"}[dtype]
    fine = [0.0, -0.0, 1.2e-38, -1.2e-38, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan]
    beyond = [1.1e-38, -1.1e-38, 5e-324, 3.5e38, -1e300]
    numbers = [*fine, *beyond] if dtype == "float64" else [*fine, *beyond, *(complex(1, v) for v in (*fine, *beyond))]
    kernels = kernels_for(backend.move(np.zeros(1)))
    for number in [*numbers, None]:
        for place in {0, n // 2, n - 1}:
            x = values(n, dtype)
            if number is not None:
                x[place] = number
            want, lost = np.empty(n, single), np.empty(1)
            if n <= 1000:
                reference.vectors.rounded(x, want, lost)
            else:
                with np.errstate(all="ignore"):
                    want[:], lost[0] = x, any(number in (b, complex(1, b)) for b in beyond)
            out, found = backend.move(np.empty(n, single)), backend.move(np.full(1, 7.0))
            kernels.vectors.rounded(backend.move(x), out, found)
            assert backend.fetch(found)[0] == lost[0] == any(number in (b, complex(1, b)) for b in beyond)
            if not lost[0]:
                np.testing.assert_array_equal(backend.fetch(out), want)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("index", ["int32", "int64"])
def test_the_magnitudes_of_the_terms_of_a_row(backend, dtype, index):
    bound = abs(values(400, dtype))
    indptr = np.cumsum(np.r_[0, np.arange(400) % 7]).astype(index)
    got = kernels_for(backend.move(bound)).products.magnitudes_of_terms(*map(backend.move, (indptr, bound)), 1024.0)
    want = reference.products.magnitudes_of_terms(indptr, bound, 1024.0)
    assert_close(want, bound.astype(np.float64) * 1024 / (np.diff(indptr) + 1), 4)
    assert_close(backend.fetch(got), want, 0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_of_vectors(backend, dtype):
    x, y = values(1000, dtype), values(1000, dtype, 1)
    kernels = kernels_for(backend.move(x))
    got = backend.fetch(kernels.vectors.added(backend.move(x), backend.move(y)))
    want = reference.vectors.added(x, y)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_vectors_of_a_step_of_chebyshev(backend, dtype):
    d, v, x, r = (values(1000, dtype, seed) for seed in range(4))
    for form, moved in ((reference, lambda v: v), (kernels_for(backend.move(x)), backend.move)):
        own = [moved(vector.copy()) for vector in (d, v, x, r)]
        form.vectors.moved_on(*own)
        for got, want in zip(own, (d, v, x + d, r - v), strict=True):
            np.testing.assert_array_equal(backend.fetch(got), want)
        form.vectors.turned(0.3, own[0], -1.7, own[1])
        assert_close(backend.fetch(own[0]), 0.3 * d - 1.7 * v, 4, 2.0)
        np.testing.assert_array_equal(backend.fetch(own[1]), v)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", ["sequential", "levels", "auto", "jacobi", "isai"])
@pytest.mark.parametrize("columns", [(), (3,)])
def test_solves_in_turn(backend, dtype, method, columns):
    A = in_dtype(gallery.poisson5(9, 8), dtype)
    b = values((72, *columns), dtype)
    sides = [(True, False), (False, False), (True, True)]  # lower, unit
    for count in (1, 2, 3):
        found = []
        for form, B in twins(backend, A):
            xp = np if form is reference else backend.xp
            plans = [form.triangular.triangular_plan(triangle(B, *side), method, 2) for side in sides[:count]]
            assert all(plan.load(B.data) == -1 for plan in plans)
            x = xp.array(b)
            form.triangular.solve_in_turn(plans, x if count > 1 else xp.array(b), x)  # b itself, where it may overlap
            found.append(backend.fetch(x))
        assert_close(*found, 64 if method == "isai" or backend.name == "cuda" else 0)
