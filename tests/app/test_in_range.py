"""No public solve returns NaN or Inf silently: x is finite, and solves, or an error or a status says so."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp

import finelu as fl
from finelu import gallery
from finelu.errors import FineluError, MatrixError, ParameterError
from finelu.preconditioners import RECIPES
from finelu.triangular import TriangularSolver

P = sp.csr_matrix(gallery.poisson5(6, 5))
N = P.shape[0]
SIZED = {name: {"block_size": 2} for name in ("block_ilu0", "cpr")}
DTYPES = ["float64", "complex64"]


def recipe(name):
    return RECIPES[name](**SIZED.get(name, {}))


def of_factors(name, how):
    def call(A, b):
        F = recipe(name).factor(A)
        if how == "T":
            return F.solve(b, "T")
        if how == "columns":
            return F.solve(np.stack([b, np.ones_like(b)], axis=1))[:, 0]
        if how == "out":
            return F.solve(b, out=np.empty(b.shape, np.result_type(b.dtype, F.dtype)))
        return {"solve": F.solve, "@": F.__matmul__, "rmatvec": F.rmatvec, "matvec": F.matvec}[how](b)

    return call


def batch(A):
    return fl.Batch(A, np.stack([A.data, A.data]))


def of_batch(A):
    F = fl.ILU0().factor(batch(A))
    if F.failed[0] >= 0:  # so the report says
        raise MatrixError(F.report.warning)
    return F


CALLS = {
    **{f"{name}.solve": of_factors(name, "solve") for name in RECIPES},
    **{f"{name}.{how}": of_factors(name, how) for name in ("schwarz", "sparse_lu") for how in ("T", "columns", "out")},
    **{f"ilu0.{how}": of_factors("ilu0", how) for how in ("T", "columns", "out", "@", "rmatvec", "matvec")},
    "triangular": lambda A, b: TriangularSolver(A).solve(b),
    "spsolve_triangular": lambda A, b: fl.spsolve_triangular(sp.tril(A).tocsr(), b),
    "splu": lambda A, b: fl.splu(sp.csc_matrix(A)).solve(b),
    "spilu": lambda A, b: fl.spilu(sp.csc_matrix(A)).solve(b),
    "factorized": lambda A, b: fl.factorized(sp.csc_matrix(A))(b),
    "spsolve": fl.spsolve,
    "solve": fl.solve,
    "sequence": lambda A, b: fl.Sequence().step(A, b),
    "lstsq": fl.lstsq,
    "batch": lambda A, b: fl.solve(batch(A), b)[0],
    "batch factors": lambda A, b: of_batch(A).solve(b)[0],
}


def entries(kind, dtype):
    """A (N, N) whose entries have extreme sizes, in the range of the dtype."""
    rng, digits = np.random.default_rng(0), 37 if np.dtype(dtype).char in "fF" else 300
    A = P.astype(dtype)
    if np.dtype(dtype).kind == "c":
        A.data = (A.data * (0.8 + 0.6j)).astype(dtype)
    size = {"large": 10.0**digits, "small": 10.0**-digits, "one": 1.0}.get(kind)
    if size is not None:
        A.data = A.data * A.data.real.dtype.type(size)
    elif kind == "subnormal":
        A.data = A.data * np.finfo(dtype).smallest_subnormal * 2**10
    else:  # rows of mixed sizes
        A = sp.csr_matrix(sp.diags((10.0 ** rng.uniform(-digits, digits, N)).astype(A.real.dtype)) @ A)
    return A.astype(dtype)


def right_hand_side(kind, dtype):
    most, rng = np.finfo(dtype), np.random.default_rng(1)
    v = rng.uniform(0.5, 1, N)
    sizes = {
        "largest": v * float(most.max),
        "large": v * float(most.max) * 1e-8,
        "small": v * float(most.tiny) * 1e8,
        "subnormal": v * float(most.tiny),
        "zeros": np.where(v > 0.75, 0.0, -0.0),
        "mixed": v * 10.0 ** rng.uniform(-30, 30, N),
    }
    b = sizes[kind].astype(np.dtype(dtype).char.lower() if np.dtype(dtype).kind == "c" else dtype).astype(dtype)
    return b if b.dtype.kind != "c" else (b * (0.6 + 0.8j)).astype(dtype)


@pytest.mark.parametrize("of_b", ["largest", "large", "subnormal", "zeros", "mixed"])
@pytest.mark.parametrize("of_A", ["one", "large", "small", "subnormal", "mixed"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_x_is_finite_or_an_error_says_that_it_is_not(dtype, of_A, of_b):
    A, b = entries(of_A, dtype), right_hand_side(of_b, dtype)
    silent = []
    for name, call in CALLS.items():
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                found = call(A, b)
            except FineluError:
                continue
        x = getattr(found, "x", found)
        if not np.isfinite(x).all() and not (name == "spsolve" and warned):  # SciPy's NaN, with its warning
            silent.append(name)
        if getattr(found, "converged", False) and b.any() and name != "lstsq":
            wide = np.clongdouble if A.dtype.kind == "c" else np.longdouble
            r = b.astype(wide) - A.toarray().astype(wide) @ x.astype(wide)
            assert np.sqrt((abs(r) ** 2).sum()) <= 1.1e-8 * np.sqrt((abs(b.astype(wide)) ** 2).sum()), name
    assert not silent


@pytest.mark.parametrize("name", [*RECIPES, "triangular", "splu", "spilu", "batch factors"])
def test_sums_that_overflow_do_not_hinder_an_x_in_range(name):
    A = sp.csr_matrix(sp.diags([4.0] * N) + sp.diags([[-4.0] * (N - 1)] * 2, [-1, 1]) / 2)
    b = np.full(N, 1.7e308)
    b[1::2] *= -1  # so that sums cancel, and x is smaller than b
    call = CALLS.get(name, of_factors(name, "solve") if name in RECIPES else None)
    expected = call(A, b * 2.0**-20) * 2.0**20
    np.testing.assert_allclose(call(A, b), expected, rtol=1e-12)


def test_the_error_names_recipe_row_and_remedy():
    F = fl.ILU0().factor(P * 1e-300)
    with pytest.raises(MatrixError, match=r"ILU0.* leaves the range of float64 in row 0; divide the right-hand side"):
        F.solve(np.full(N, 1e10))
    r = np.ones(N)
    r[7] = np.inf
    for how in ("N", "T", "H"):
        with pytest.raises(MatrixError, match="the right-hand side holds NaN or Inf in row 7"):
            F.solve(r, how)
    assert np.isfinite(fl.ILU0().factor(P).solve(np.full(N, 1e154) * 1e100)).all()  # whose square overflows


def test_a_solve_in_place_is_repeated_from_what_was_given():
    A = sp.csr_matrix(sp.diags([1.0] * 3) + sp.diags([[1.0] * 2], [-1]))
    r = np.array([1.7e308, -1.7e308, 1.0])
    F = fl.ILU0().factor(A)
    with pytest.raises(MatrixError, match="leaves the range of float64 in row 1"):
        F.solve(r, out=r)


@pytest.mark.parametrize(
    "name", ["bicg", "bicgstab", "cg", "fgmres", "gmres", "idrs", "minres", "richardson", "sqmr", "solve"]
)
@pytest.mark.parametrize("wrong", [3, "x", [], {}], ids=repr)
def test_what_is_no_function_is_refused_before_any_work(name, wrong):
    for parameter in ("callback", "watch"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of gmres, for callbacks
            with pytest.raises(ParameterError, match=f"{parameter}=.*a function or None is needed"):
                getattr(fl, name)(P, np.ones(N), **{parameter: wrong})


@pytest.mark.parametrize("wrong", [3, "x", [], {}], ids=repr)
def test_least_squares_refuse_what_is_no_function(wrong):
    with pytest.raises(ParameterError, match=r"callback=.*a function or None is needed"):
        fl.lsmr(P, np.ones(N), callback=wrong)


def test_krylov_methods_test_the_results_of_factors_themselves():
    A = P * 1e-300
    solution = fl.gmres(A, np.full(N, 1e20), M=fl.SparseLU().factor(A), rtol=1e-8)
    assert not solution.converged and np.isfinite(solution.x).all()


def test_small_parts_of_a_right_hand_side_survive_where_large_ones_overflow():
    L = sp.csr_matrix([[1e-200, 0, 0], [1e200, 1e250, 0], [0, 0, 1e-200]])
    x = fl.TriangularSolver(L, lower=True).solve(np.array([1e50, 1e10, 1e-150]))
    np.testing.assert_allclose(x, [1e250, -1e200, 1e50], rtol=1e-14)
    F = fl.ILU0(precision="float32").factor(2.0 * sp.identity(3, format="csr"))
    np.testing.assert_allclose(F.solve(np.array([1e45, 1.0, 1e-3])), [5e44, 0.5, 5e-4], rtol=1e-6)


def test_a_system_of_a_batch_without_factors_keeps_none_of_the_others_from_theirs():
    A = fl.gallery.poisson5(4)
    values = np.array([A.data, 0 * A.data, 2 * A.data])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        F = fl.ILU0().factor(fl.Batch(A, values))
    X, one = F.solve(np.ones((3, 16))), fl.ILU0().factor(A).solve(np.ones(16))
    assert F.failed.tolist()[0] < 0 <= F.failed.tolist()[1]
    np.testing.assert_allclose(X[[0, 2]], [one, one / 2], rtol=1e-14)


@pytest.mark.parametrize("scale", [1e6, 1e7, 1e-8])
def test_a_solve_that_ends_early_is_not_repeated_for_a_matrix_of_moderate_size(scale):
    A, b, seen = (fl.gallery.poisson5(30) * scale).astype(np.float32), np.ones(900, np.float32), []
    found = fl.cg(A, b, rtol=1e-12, maxiter=200, callback=lambda x: seen.append(1))
    assert len(seen) == found.iterations and not any("range of numbers" in text for text in found.seen)
