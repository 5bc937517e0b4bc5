"""The systems of ../shared/cases, which programs and random calls have made: each is solved, or said not to be."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from programs import ended

import finelu as fl
from finelu.preconditioners.direct import feral, klu, pardiso

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "cases"
FILES = sorted(FOLDER.glob("*.npz"))
PROGRAMS = ("devsim", "fipy", "pandapower", "sfepy", "simpeg", "skfem")
OF_PROGRAMS = [path for path in FILES if path.stem.startswith(PROGRAMS)]
LIBRARIES = {"superlu": lambda: True, "klu": klu.nbklu, "feral": feral.feral, "pardiso": pardiso.mkl}
each = pytest.mark.parametrize("path", FILES or [None], ids=lambda path: getattr(path, "stem", "none"))
of_programs = pytest.mark.parametrize("path", OF_PROGRAMS or [None], ids=lambda path: getattr(path, "stem", "none"))


def system(path):
    """(A, b, rtol) of a file; the test is skipped where the folder is not at hand."""
    if path is None:
        pytest.skip(f"needs {FOLDER}")
    z = np.load(path)
    A = z["A"] if "A" in z else sp.csr_matrix((z["data"], z["indices"], z["indptr"]), shape=z["shape"])
    return A, z["b"] if "b" in z else np.ones(A.shape[0]), float(z["rtol"]) if "rtol" in z else 1e-8


def long(v):
    return v.astype(np.clongdouble if v.dtype.kind == "c" else np.longdouble)


def residual(A, b, x):
    """b - A x in extended precision, and |A| |x| + |b|."""
    A = sp.coo_array(A)
    r, terms = long(np.array(b + 0 * x[:1].sum())), abs(long(b))
    np.subtract.at(r, A.row, long(A.data)[(...,) + (None,) * (x.ndim - 1)] * long(x)[A.col])
    np.add.at(terms, A.row, abs(long(A.data))[(...,) + (None,) * (x.ndim - 1)] * abs(long(x))[A.col])
    return r, terms


@each
def test_solve_ends_with_a_verdict_that_holds(path):
    A, b, rtol = system(path)
    solution = fl.solve(A, b, rtol=rtol)
    r, _ = residual(A, b, solution.x)
    left, size = (float(np.linalg.norm(v.astype(complex) if v.dtype.kind == "c" else v)) for v in (r, long(b)))
    assert np.isfinite(solution.x).all() and len(solution.attempts) <= 12
    assert not solution.converged or left <= 1.0001 * rtol * size
    assert solution.converged or path not in OF_PROGRAMS or solution.status.name == "PRECISION_LIMIT"


@of_programs
@pytest.mark.parametrize("direct_solvers", ["installed"], indirect=True)
@pytest.mark.parametrize("library", LIBRARIES)
def test_factors_of_each_library_lose_no_digits_in_silence(path, library):
    A, b, _ = system(path)
    if not LIBRARIES[library]():
        pytest.skip(f"needs {library}")
    if library == "feral" and (A.dtype.kind == "c" or abs(A - A.T).max() > 0):
        pytest.skip("of a symmetric matrix")
    F = fl.SparseLU(backend=library).factor(A)
    r, terms = residual(A, b, F.solve(b))
    small = abs(r).max() <= max(1e-10 * abs(b).max(), 100 * np.finfo(float).eps * terms.max())
    assert F.report.backend == library and (small or "unstable" in F.report.warning)


@of_programs
@pytest.mark.parametrize("direct_solvers", ["embedded", "installed"], indirect=True)
def test_spsolve_is_exact_for_one_column_and_for_several(path):
    A, b, _ = system(path)
    B = np.stack([b, np.cos(np.arange(b.size)), np.ones(b.size)], axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        X, x = fl.spsolve(A, B), fl.spsolve(A, b)
    r, terms = residual(A, np.column_stack([b, B]), np.column_stack([x, X]))
    assert (abs(r).max(axis=0) <= 30 * np.finfo(float).eps * terms.max(axis=0)).all()
    rows = terms > 1e-9 * terms.max(axis=0)  # of others the sum may be rounding itself
    assert (abs(r)[rows] <= 100 * np.finfo(float).eps * terms[rows]).all()


@pytest.mark.parametrize("backend", ["superlu", "auto"])
def test_no_process_ends_by_numbers_that_superlu_does_not_take(backend):
    path = FOLDER / "superlu_ends_process_float32.npz"
    system(path if path.exists() else None)
    text = f"""
import numpy as np, finelu as fl
z = np.load({str(path)!r})
try:
    print(np.isfinite(fl.SparseLU(backend={backend!r}).factor(z["A"]).solve(z["b"])).all())
except fl.FineluError as error:
    print(True)
"""
    assert ended(text)[:2] == (0, "True\n")
