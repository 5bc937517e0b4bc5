"""Systems near the largest and the smallest numbers: all that is finite is solved, and nothing becomes NaN or Inf."""

import math
import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import finelu as fl
from finelu import gallery
from finelu.result import Status

DTYPES = ["float32", "float64", "complex64", "complex128"]
RTOL = 1e-4  # which single precision reaches
WIDE = {"f": np.longdouble, "c": np.clongdouble}  # whose range is far larger


def relative(A, b, x):
    """||b - A x|| / ||b|| in extended precision."""
    A, b, x = (np.asarray(v).astype(WIDE[v.dtype.kind]) for v in (A.toarray(), b, x))
    return float(np.sqrt((abs(b - A @ x) ** 2).sum() / (abs(b) ** 2).sum()))


def in_dtype(A, dtype):
    A = sp.csr_matrix(A)
    return A.astype(dtype) if np.dtype(dtype).kind == "f" else sp.csr_matrix(A * (0.8 + 0.6j)).astype(dtype)


def calls(A, b):
    """What a user may do with A and b, by name: each gives a Solution, or the first one of a batch."""
    batch = fl.Batch(A, np.stack([A.data, A.data]))
    return {
        "solve": lambda: fl.solve(A, b, RTOL),
        "certify": lambda: fl.solve(A, b, RTOL, certify=True),
        "columns": lambda: fl.solve(A, np.stack([b, b], axis=1), RTOL)[0],
        "sequence": lambda: fl.Sequence(rtol=RTOL).step(A, b),
        "batch": lambda: fl.solve(batch, b, RTOL)[0],
        "lstsq": lambda: fl.lstsq(A, b, rtol=RTOL),
        "gmres": lambda: fl.gmres(A, b, rtol=RTOL),
        "bicgstab": lambda: fl.bicgstab(A, b, rtol=RTOL),
        "cg": lambda: fl.cg(A, b, rtol=RTOL),
        "ilu0": lambda: fl.gmres(A, b, rtol=RTOL, M=fl.ILU0().factor(A)),
    }


def is_finite(solution):
    return all(np.isfinite(v).all() for v in (solution.x, solution.residual_norm, solution.history))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["solve", "sequence", "gmres", "bicgstab", "cg", "lstsq"])
def test_a_b_whose_norm_overflows_is_solved(name, dtype):
    A, most = sp.eye(40, dtype=dtype, format="csr"), np.finfo(dtype).max
    b = (np.random.default_rng(0).choice([-1, 1], 40) * most).astype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = calls(A, b)[name]()
    assert solution.converged and (abs(solution.x / most - b / most) <= RTOL).all()
    assert is_finite(solution) or name == "lstsq"  # whose history begins with ||b||


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [4, 12, 30])
def test_sums_that_overflow_though_all_entries_and_x_are_finite(n, dtype):
    A = in_dtype(gallery.poisson5(n), dtype)
    A.data *= np.finfo(dtype).max / 5
    x = 1 + np.random.default_rng(0).random(n * n)
    b = (A.astype(WIDE[A.dtype.kind]).toarray() @ x.astype(np.longdouble)).astype(dtype)  # A x in float64 may overflow
    assert np.isfinite(b).all()
    for name in ("solve", "columns", *(["sequence", "gmres"] if A.dtype.kind == "f" else [])):
        solution = calls(A, b)[name]()
        assert solution.converged and relative(A, b, solution.x) <= RTOL and is_finite(solution), name


@pytest.mark.parametrize("n", [2, 12, 20])
def test_complex_entries_whose_magnitude_overflows(n):
    A = sp.csr_matrix(gallery.poisson5(n) / 4).astype(complex)
    A.data = A.data.real * 1.7e308 + 1j * (A.data.real * 1.6e308)
    seen, b = [], np.random.default_rng(0).standard_normal(n * n) * (1 + 2j) * 1e300
    solution = fl.solve(A, b, x0=b * 1e-308, callback=seen.append, certify=True)
    assert solution.converged and relative(A, b, solution.x) <= 1e-8 and is_finite(solution)
    assert not seen or (seen[-1] == solution.x).all()
    assert solution.certificate.componentwise < 1e-6 and solution.certificate.condition >= 1


METHODS = ["bicg", "bicgstab", "bicgstabl", "fgmres", "gmres", "idrs", "sqmr", "cg", "minres"]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("of_A", "of_b"), [(1.7e308, 1e300), (1.7e308, 1.0), (1e-307, 1e-300), (3e-310, 1.0)])
@pytest.mark.parametrize("kind", ["real", "complex", "dense", "factors"])
def test_methods_called_directly_bring_entries_to_about_1(kind, of_A, of_b, name):
    P, b = sp.csr_matrix(gallery.poisson5(8)) / 4, np.random.default_rng(0).standard_normal(64) * of_b
    A = P * of_A
    if kind == "complex":
        if name in ("cg", "minres"):  # as A is not Hermitian
            return
        A = P.astype(complex)
        A.data = A.data.real * of_A + 1j * (A.data.real * (0.96 * of_A))  # whose magnitude may overflow
        b = b * (1 + 2j)
    M = fl.ILU0().factor(P) if kind == "factors" else None  # of another size, which a method does not mind
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solution = getattr(fl, name)(A.toarray() if kind == "dense" else A, b, rtol=1e-8, M=M)
    assert is_finite(solution)
    if 1e-300 <= of_b / of_A <= 1e300:
        assert solution.converged and relative(sp.csr_matrix(A), b, solution.x) <= 1.01e-8
    else:  # x is out of range, or too small for all its digits
        assert not solution.converged or relative(sp.csr_matrix(A), b, solution.x) <= 1.01e-8


def test_callbacks_see_x_of_a_system_that_is_solved_in_another_size():
    A, seen = sp.csr_matrix(gallery.poisson5(8)).astype(complex) / 4, []
    A.data = A.data.real * 1.7e308 + 1j * (A.data.real * 1.6e308)
    b = np.random.default_rng(0).standard_normal(64) * 1e300
    solution = fl.bicgstab(A, b, rtol=1e-8, callback=lambda x: seen.append(x.copy()))
    assert solution.converged and (seen[-1] == solution.x).all()
    assert "products with A left the range of numbers" in solution.explain()


def test_an_x_out_of_range_is_named():
    A, b = sp.csr_matrix(gallery.poisson5(6)), np.full(36, 1.5e308)  # x is more than 7 times as large as b
    for name in ("solve", "sequence", "gmres", "cg"):
        solution = calls(A, b)[name]()
        assert solution.status is Status.NOT_FINITE and not solution.x.any() and is_finite(solution)


def test_the_callback_and_the_watch_see_x_and_norms_of_the_system_that_was_given():
    A, seen, watched = gallery.poisson5(6), [], []
    b = np.random.default_rng(0).standard_normal(36) * 1e307
    solution = fl.gmres(
        A, b, rtol=1e-8, callback=lambda x: seen.append(x.copy()), watch=lambda k, size: watched.append(size)
    )
    assert solution.converged and (seen[-1] == solution.x).all()
    assert watched[0] == pytest.approx(np.linalg.norm(b / 1e307) * 1e307) and min(watched) <= solution.tolerance


def test_a_certificate_near_the_largest_numbers_is_that_of_smaller_ones():
    A, b = sp.csr_matrix(gallery.poisson5(12)), np.random.default_rng(0).standard_normal(144)
    one, other = (fl.solve(size * A, size * b, certify=True).certificate for size in (1.0, 2.0**1020))
    for name in ("normwise", "componentwise", "condition", "error", "least_residual"):
        assert getattr(other, name) == pytest.approx(getattr(one, name), rel=0.5), name


@st.composite
def systems(draw):
    """Rows, columns, or single entries of 1e-300 to 1e300, or what single precision has of that."""
    dtype = draw(st.sampled_from(DTYPES))
    n, seed = draw(st.integers(1, 24)), draw(st.integers(0, 2**32 - 1))
    rng, most = np.random.default_rng(seed), 37 if dtype in ("float32", "complex64") else 300
    A = sp.csr_matrix(sp.random(n, n, 0.2, random_state=rng) + 4 * sp.eye(n))
    if dtype.startswith("complex"):
        A.data = A.data * np.exp(2j * np.pi * rng.random(A.nnz))
    low, high = sorted(draw(st.tuples(st.integers(-most, most), st.integers(-most, most))))
    kind = draw(st.sampled_from(["all entries", "rows", "one size"]))
    if kind == "all entries":
        A.data = A.data * 10.0 ** rng.uniform(low, high, A.nnz)
    elif kind == "rows":
        A = sp.csr_matrix(sp.diags(10.0 ** rng.uniform(low, high, n)) @ A)
    else:
        A.data = A.data * 10.0**high
    b = rng.standard_normal(n) * 10.0 ** draw(st.integers(-most, most))
    A, b = A.astype(dtype), b.astype(dtype)
    return A, b


@settings(max_examples=60, deadline=None)
@given(systems(), st.sampled_from(sorted(calls(sp.eye(2, format="csr"), np.ones(2)))))
def test_nothing_becomes_nan_or_inf(system, name):
    A, b = system
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            solution = calls(A, b)[name]()
        except fl.errors.FineluError:
            if name == "ilu0":  # which such an A may not have
                return
            raise
    finite = np.isfinite(solution.x).all() and (math.isfinite(solution.residual_norm) or name == "lstsq")
    assert finite and not np.isnan(solution.history).any()
    if solution.converged and name != "lstsq" and b.any():
        assert relative(A, b, solution.x) <= 1.01 * RTOL
