"""What libraries of others are given, how they are found and left, and how their factors are judged."""

import copy
import ctypes
import os
import pickle
import shutil
import subprocess
import sys
import threading
import warnings
from time import perf_counter, sleep

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, assert_close, one_line, refused
from programs import WAIT, ended
from scipy.optimize import newton_krylov
from threadpoolctl import threadpool_info, threadpool_limits

import finelu as fl
from finelu import deadline, foreign, gallery
from finelu.auto.ladder import Ladder
from finelu.errors import FineluError, OutOfTime, ParameterError, SingularMatrix, UnstableFactors
from finelu.ordering import OrderingJob, complete_fill, with_little_fill
from finelu.preconditioners.direct import analysis, factors, feral, klu, library, pardiso, prepared, superlu
from finelu.preconditioners.schwarz import coarse
from finelu.recent import Recent

needs_klu = pytest.mark.skipif(klu.nbklu() is None, reason="nbklu is not installed")
needs_pardiso = pytest.mark.skipif(pardiso.mkl() is None, reason="pypardiso is not installed")
needs_feral = pytest.mark.skipif(feral.feral() is None, reason="feral is not installed")
LIBRARIES = {"superlu": lambda: True, "klu": klu.nbklu, "feral": feral.feral, "pardiso": pardiso.mkl}


@pytest.fixture(params=["superlu", "klu", "pardiso"])
def solver(request):
    """The libraries that take any matrix, where they are installed."""
    if not LIBRARIES[request.param]():
        pytest.skip(f"{request.param} is not installed")
    return request.param


def run(text, *arguments):
    """The words that a process of its own prints, which is to end well."""
    status, out, err = ended(text, *arguments)
    assert (status, err) == (0, ""), (out, err)
    return out.split()


def scaled(n=400, seed=0, decades=8, dtype="float64"):
    """Unsymmetric, with rows and columns of very different size."""
    rng = np.random.default_rng(seed)
    A = sp.random(n, n, 3 / n, random_state=rng, data_rvs=rng.standard_normal) + sp.diags(rng.uniform(0.1, 1, n))
    left, right = (sp.diags(10.0 ** rng.uniform(-decades, decades, n)) for _ in range(2))
    return sp.csr_matrix(left @ A @ right).astype(dtype)


def componentwise(op, x, b):
    """The largest |b - op x|_i / (|op| |x| + |b|)_i, in extended precision."""
    kind = np.clongdouble if np.iscomplexobj(op.data) else np.longdouble
    r = b.astype(kind) - op.astype(kind) @ x.astype(kind)
    sizes = abs(op) @ abs(x) + abs(b)
    return float((abs(r) / np.where(sizes > 0, sizes, 1)).max())


# what factors are worth


def test_klu_takes_no_pivot_that_is_small_in_its_column_because_its_row_is(solver):
    """Rows divided by their largest entries made the second one of this circuit the pivot: 2e-5 ||b|| was left."""
    A = sp.csr_matrix(np.array([[-9.8e-12, 1.6e-20], [-6.4, -3.3e-17]]))
    b = np.array([2.5e-25, 0.0])
    x = fl.SparseLU(backend=solver).factor(A).solve(b)
    assert np.linalg.norm(A @ x - b) <= 1e-11 * np.linalg.norm(b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_solves_are_right_row_by_row_whatever_the_sizes_of_rows_and_columns(solver, dtype):
    decades = 8 if np.finfo(dtype).eps < 1e-10 else 3
    A = scaled(decades=decades, dtype=dtype)
    if A.dtype.kind == "c":
        A.data = A.data * np.exp(1j * np.arange(A.nnz)).astype(dtype)
    F = fl.SparseLU(backend=solver).factor(A)
    eps, rng = float(np.finfo(dtype).eps), np.random.default_rng(1)
    assert F.report.backward_error <= 1e3 * eps and F.report.warning is None
    for trans, op in (("N", A), ("T", A.T), ("H", A.conj().T)):
        op = sp.csr_matrix(op)
        Y = rng.standard_normal((A.shape[0], 3)).astype(dtype)
        B = op @ Y
        X = F.solve(B, trans)
        assert X.dtype == A.dtype
        one = F.solve(np.ascontiguousarray(B[:, 0]), trans)
        assert max(componentwise(op, x, b) for x, b in zip([one, *X.T], [B[:, 0], *B.T], strict=True)) <= 1e4 * eps


def test_a_step_of_refinement_is_taken_where_solves_need_one_and_only_there(solver):
    seen = set()
    for seed in range(12):
        A, b = scaled(seed=seed), np.ones(400)
        F = fl.SparseLU(backend=solver, matching=False if solver == "superlu" else None).factor(A)
        seen.add(F.report.refinements)
        if F.report.refinements:
            rough = F._solved(b, "N")
            assert componentwise(A, F.solve(b), b) < componentwise(A, rough, b)
    assert solver == "pardiso" or 1 in seen  # PARDISO refines by itself
    assert fl.SparseLU(backend=solver).factor(gallery.poisson5(40)).report.refinements == 0


def test_what_is_written_to_A_later_does_not_change_refined_solves():
    A = next(A for A in (scaled(seed=seed) for seed in range(20)) if refined(A))
    F, b = fl.SparseLU(matching=False, backend="superlu").factor(A), np.ones(400)
    want = F.solve(b)
    others = copy.copy(F), pickle.loads(pickle.dumps(F))
    A.data[:] = 1
    for G in (F, *others):
        np.testing.assert_array_equal(G.solve(b), want)


def refined(A):
    return fl.SparseLU(matching=False, backend="superlu").factor(A).report.refinements == 1


@pytest.fixture
def errs(monkeypatch):
    """errs(library, size): its solves are wrong by this part from then on, as pivots that are small would make them,
    whatever is refined."""
    own = {}

    def wrong(kind, size):
        solve = own.setdefault(kind, kind.solve)

        def off(self, r, trans):
            return (solve(self, r, trans).T * (1 + size * np.cos(np.arange(len(r))))).T.astype(r.dtype)

        monkeypatch.setattr(kind, "solve", off)

    return wrong


@needs_klu
def test_bad_factors_are_made_again_by_another_library_or_warn(errs):
    A, b = gallery.convection_diffusion(30, 30, 1), np.ones(900)
    assert fl.SparseLU().factor(A).report.backend == "klu"
    errs(klu.KLU, 1e-3)
    F = fl.SparseLU().factor(A)
    assert F.report.backend == "superlu" and F.report.warning is None
    first, second = F.report.tried
    assert first.startswith("klu: backward error") and second.startswith("klu, scaled: backward error")
    assert np.linalg.norm(A @ F.solve(b) - b) < 1e-9
    G = fl.SparseLU(backend="klu").factor(A)
    assert G.report.backend == "klu" and "backward error" in G.report.warning and len(G.report.tried) == 1
    errs(superlu.SuperLU, 1e-2)
    H = fl.SparseLU().factor(A)  # the better of the two, and no word less
    assert H.report.backend == "klu" and "backward error" in H.report.warning and len(H.report.tried) == 3
    assert "refinement" in H.report.warning or H.report.refinements == 0
    errs(superlu.SuperLU, np.nan)
    errs(klu.KLU, np.nan)
    for asked in ("auto", "klu"):
        with pytest.raises(UnstableFactors):
            fl.SparseLU(backend=asked).factor(A)
    errs(superlu.SuperLU, 0)
    assert np.linalg.norm(A @ fl.SparseLU().factor(A).solve(b) - b) < 1e-9
    errs(klu.KLU, 0)
    assert H.update(A).report.warning is None and H.report.tried is None


def test_factors_of_a_shifted_matrix_are_not_taken_for_those_of_A():
    A = gallery.poisson5(20)
    F = fl.SparseLU(shift=0.5).factor(A)
    assert F.report.refinements is None and F.report.tried is None and F.report.trial_residual > 0.1


@needs_pardiso
def test_what_a_library_gives_up_goes_to_others(pardiso_fails, meanwhile, without):
    A, b = gallery.poisson7(16), np.ones(4096)
    pardiso_fails(-3)
    if feral.feral() is not None:
        assert fl.SparseLU().factor(A).report.backend == "feral"
    without("feral")
    F = fl.SparseLU().factor(A)
    assert F.report.backend == "superlu" and "pardiso" in F.report.tried[0] and "no order" in F.report.tried[0]
    assert np.linalg.norm(A @ F.solve(b) - b) < 1e-8
    for code, kind, words in (
        (-1, FineluError, "inconsistent"),
        (-2, FineluError, "other failures"),
        (-4, SingularMatrix, "singular"),
    ):
        pardiso_fails(code)
        with pytest.raises(kind, match=words) as error:
            fl.SparseLU(backend="pardiso").factor(A)
        assert "out of memory" not in one_line(error)
    meanwhile(pardiso, free_memory=lambda _: 1000)
    pardiso_fails(-2)
    with pytest.raises(MemoryError, match="out of memory"):
        fl.SparseLU(backend="pardiso").factor(A)


# what they are given


def saddle(n=16):
    """Stokes' equations, and the same with the zeros of the pressure's block and of other places stored."""
    K = sp.csr_matrix(gallery.stokes(n) + sp.diags(np.r_[np.zeros(gallery.stokes(n).shape[0] - 1), 1e-3]))
    K.eliminate_zeros()
    i, j = np.arange(K.shape[0]), np.roll(np.arange(K.shape[0]), 7)
    K = K.tocoo()
    places = np.r_[K.row, i, i, j], np.r_[K.col, i, j, i]
    Z = sp.csr_matrix((np.r_[K.data, np.zeros(3 * i.size)], places), shape=K.shape)
    assert Z.nnz > K.nnz + 2 * i.size
    return sp.csr_matrix(K), Z


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
def test_stored_zeros_are_no_entries_of_complete_factors(solver, dtype):
    K, Z = (A.astype(dtype) for A in saddle())
    for recipe in (fl.SparseLU(backend=solver), fl.SparseLU()):
        F, G = recipe.factor(K), recipe.factor(Z)
        assert (F.nnz, F.report.backend, F.report.expected_nnz) == (G.nnz, G.report.backend, G.report.expected_nnz)
        b = np.ones(K.shape[0], dtype)
        assert_close(G.solve(b), F.solve(b), ulps=1e5)
    assert fl.ILU0(shift=1.0).factor(Z).nnz > K.nnz  # of an incomplete one they are, by its definition


def test_stored_zeros_are_in_no_count():
    K, Z = saddle()
    assert complete_fill(K) == complete_fill(Z)
    for ordering in ("auto", "mmd", "amd"):
        (order, fill), (other, same) = with_little_fill(K, ordering), with_little_fill(Z, ordering)
        np.testing.assert_array_equal(order, other)
        assert fill == same
    jobs = [OrderingJob(fl.as_csr(A, diagonal=False), aside=False) for A in (K, Z)]
    assert jobs[0].found()[2] == jobs[1].found()[2]
    costs = [Ladder(fl.as_csr(A, diagonal=False), 1e-8).costs for A in (K, Z)]
    for one in costs:
        one.counted = one.quick = False
        one.count_fill()
    assert costs[0].fill == costs[1].fill


def test_updates_where_zeros_are_stored(solver):
    K, Z = saddle()
    rng, b = np.random.default_rng(3), np.ones(K.shape[0])
    F = fl.SparseLU(backend=solver).factor(Z)
    few = F.nnz
    F.update(2 * Z)  # the same zeros
    assert F.nnz == few
    assert np.linalg.norm(2 * (Z @ F.solve(b)) - b) < 1e-8 * np.linalg.norm(b)
    full = Z.copy()
    full.data = np.where(full.data == 0, 1e-2 * rng.standard_normal(full.nnz), full.data)
    F.update(full)  # which was analysed as if they would stay so
    assert np.linalg.norm(full @ F.solve(b) - b) < 1e-8 * np.linalg.norm(b) and F.nnz > few
    F.update(Z)  # more zeros than were analysed
    assert np.linalg.norm(Z @ F.solve(b) - b) < 1e-8 * np.linalg.norm(b)


@pytest.mark.parametrize("dtype", DTYPES)
def test_libraries_see_no_numbers_from_the_ends_of_their_range(splu_is, dtype):
    """SuperLU has ended processes over a float32 system with subnormal entries and a range of 80 decades."""
    seen, own = [], foreign.splu

    def looked_at(A, **how):
        parts = abs(A.data.view(A.data.real.dtype))
        parts = parts[parts > 0]
        seen.append((A.dtype, parts.min(), parts.max()))
        return own(A, **how)

    splu_is(looked_at)
    limits, rng, n = np.finfo(dtype), np.random.default_rng(5), 60
    ends = np.log2(float(limits.smallest_subnormal)) + 2, float(limits.maxexp) - 4
    T = sp.csr_matrix(gallery.tridiagonal(n)).astype(np.float64)
    left = right = rng.permutation(np.linspace(ends[0] / 2, ends[1] / 2, n))
    rows = np.repeat(np.arange(n), np.diff(T.indptr))
    A = T.astype(dtype)
    A.data = np.ldexp(T.data, np.rint(left[rows] + right[T.indices]).astype(int)).astype(dtype)
    sizes = abs(A.data)
    assert sizes.min() < limits.tiny * 16 and sizes.max() > limits.max / 1e3
    for given in ({}, {"ordering": "colamd"}, {"matching": True}, {"shift": 1e-30}):
        F = fl.SparseLU(backend="superlu", **given).factor(A)
        x = np.ldexp(1.0, -np.rint(right).astype(int)).astype(dtype)
        b = sp.csr_matrix(A).astype(np.result_type(dtype, np.float64)) @ x.astype(np.result_type(dtype, np.float64))
        found = F.solve(b.astype(dtype))
        assert found.dtype == dtype
        assert componentwise(A, found, b.astype(dtype)) < 1e3 * limits.eps
    assert len(seen) == 4 and all(kind.itemsize == A.dtype.itemsize * (1 + (limits.eps > 1e-10)) for kind, *_ in seen)
    assert all(low > 2.0**-511 and high < 2.0**512 for _, low, high in seen)
    plain = gallery.tridiagonal(n).astype(dtype)
    fl.SparseLU(backend="superlu").factor(plain)
    assert seen[-1][0] == dtype  # what is in range is left as it is


def test_updates_in_and_out_of_range():
    A, b = sp.csr_matrix(gallery.convection_diffusion(6).astype(np.float32)), np.ones(216, np.float32)
    wide = A.copy()
    wide.data[wide.indptr[5] : wide.indptr[6]] *= np.float32(1e-30)
    c = b.copy()
    c[5] = 1e-30
    F = fl.SparseLU().factor(A)
    for S, v in ((wide, c), (A, b), (wide, c), (2 * wide, c)):
        x = F.update(S).solve(v)
        assert x.dtype == np.float32 and componentwise(sp.csr_matrix(S), x, v) < 1e-5
        y = F.solve(v, "T")
        assert componentwise(sp.csr_matrix(S.T), y, v) < 1e-3


@pytest.mark.parametrize(("dtype", "noise"), [("float64", 1e-200), ("float32", 1e-25), ("complex64", 1e-25j)])
def test_an_entry_that_is_tiny_beside_its_row_and_column_is_no_reason_to_scale(dtype, noise):
    A = sp.csr_matrix(gallery.convection_diffusion(6).astype(dtype))
    noisy, small = A.copy(), A.copy()
    noisy.data[noisy.indptr[5]] = noise
    small.data[small.indptr[5] : small.indptr[6]] *= noise
    below = A.tocsc()
    below.data[below.indptr[7] : below.indptr[8]] *= noise
    for recipe in (fl.SparseLU(), fl.SparseLU(backend="superlu")):
        F = recipe.factor(noisy)
        assert F.report.scaled is False and F._factored.dtype == A.dtype
        for S in (small, sp.csr_matrix(below)):
            assert F.update(S).report.scaled is True and F._factored.dtype.itemsize == A.dtype.itemsize * (
                1 + (np.finfo(dtype).eps > 1e-10)
            )
        assert F.update(noisy).report.scaled is False


@needs_klu
@pytest.mark.parametrize("analysed", [analysis.analysed, lambda recipe, A: analysis.light_by_klu(A)])
def test_a_matrix_that_was_analysed_is_not_prepared_again(calls_of, analysed):
    S, prepared_for = sp.csr_matrix(gallery.convection_diffusion(60, 60, 1)), calls_of(prepared, "_is_in_range")
    S.data[S.indptr[5] : S.indptr[6]] *= 1e-200
    S.data[S.indptr[9]] = 0
    A = fl.as_csr(S, diagonal=False)
    F = factors.SparseLUFactors(fl.SparseLU(), A, analysed(fl.SparseLU(), A))
    assert len(prepared_for) == 1 and F.report.backend == "klu"
    np.testing.assert_array_equal(F.solve(np.ones(3600)), fl.SparseLU().factor(S).solve(np.ones(3600)))


def test_updates_keep_their_scales_as_long_as_these_fit(calls_of):
    A, asked = sp.csr_matrix(gallery.convection_diffusion(6)), calls_of(prepared, "equilibrate")
    A.data[A.indptr[5] : A.indptr[6]] *= 1e-200
    F = fl.SparseLU().factor(A)
    assert len(asked) == 1 and F.report.scaled
    for S in (2 * A, A.copy()):
        x = F.update(S).solve(S @ np.ones(216))
        assert_close(x, np.ones(216), ulps=1e4)
    assert len(asked) == 1
    for row, power in ((8, 1e-100), (8, 1e100), (5, 1e-50)):
        A.data[A.indptr[row] : A.indptr[row + 1]] *= power
        assert_close(F.update(A).solve(A @ np.ones(216)), np.ones(216), ulps=1e4)
    assert len(asked) == 4
    S = sp.csr_matrix(gallery.poisson7(6) * 1e-200)
    S.data[S.indptr[5] : S.indptr[6]] *= 1e-60
    F = fl.SparseLU().factor(S)
    symmetric = sp.csr_matrix(
        sp.diags(F._prepared.row_scale**-1.0) @ gallery.poisson7(6) @ sp.diags(F._prepared.row_scale**-1.0)
    )
    assert F.update(symmetric)._prepared.matrix.mirrored()[3] == 0


def test_a_second_right_hand_side_is_taken_where_columns_differ_in_size(calls_of):
    A, solves = sp.csr_matrix(gallery.convection_diffusion(6)), calls_of(superlu.SuperLU, "solve")
    for S, wanted in ((A, 1), (2 * A, 1), (sp.csr_matrix(A @ sp.diags(np.where(np.arange(216) % 9, 1.0, 1e-6))), 2)):
        solves.clear()
        fl.SparseLU(backend="superlu", ordering=None).factor(S)
        assert {1 if r.ndim == 1 else r.shape[1] for _, r, _ in solves} == {wanted}


def test_a_complex_matrix_raises_no_warning():
    rng = np.random.default_rng(0)
    A = sp.csr_matrix(sp.random(3000, 3000, 2e-3, random_state=rng) + 10 * sp.identity(3000)).astype(complex)
    A.data *= np.exp(1j * rng.random(A.nnz))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        analysis._has_blocks(fl.as_csr(A))
        assert analysis.analysed(fl.SparseLU(), fl.as_csr(A), counted=True).fill is not None


@pytest.mark.parametrize("dtype", [">f4", ">f8", ">c8", ">c16", ">i4", ">f2"])
def test_numbers_in_the_other_order_of_bytes(dtype):
    D = gallery.tridiagonal(8).toarray() * 4
    A, b = D.astype(dtype), np.arange(1.0, 9).astype(dtype)
    want = np.linalg.solve(D, np.arange(1.0, 9))
    S = sp.csr_matrix(D.astype(np.dtype(dtype).newbyteorder("=").type if dtype != ">f2" else "f4"))
    C, coordinates, diagonals = sp.csc_matrix(S), sp.coo_array(S), sp.dia_array(S)
    for sparse in (S, C, coordinates, diagonals):
        sparse.data = sparse.data.astype(dtype if dtype != ">f2" else ">f4")
    for sparse in (S, C):
        sparse.indices, sparse.indptr = sparse.indices.astype(">i4"), sparse.indptr.astype(">i4")
    tolerance = 1e-5 if dtype in (">f4", ">c8", ">f2") else 1e-8
    for M in (A, S, C, coordinates, diagonals):
        for x in (
            fl.solve(M, b, x0=b).x,
            fl.gmres(M, b, x0=b, rtol=tolerance).x,
            fl.ILU0().factor(M).solve(b),
            fl.SparseLU().factor(D).update(M).solve(b) if np.dtype(dtype).kind != "c" else want,
            fl.SparseLU().factor(M) @ b,
        ):
            assert x.dtype.isnative and np.allclose(x, want, rtol=100 * tolerance)


def test_newton_krylov_takes_factors():
    J = gallery.poisson5(8)

    def f(x):
        return (J @ x.ravel() + x.ravel() ** 3 - 0.1).reshape(x.shape)

    for M in (fl.ILU0().factor(J), fl.SparseLU().factor(J), fl.IC0().factor(J)):
        before = M.updates
        x = newton_krylov(f, np.zeros((8, 8)), inner_M=M, f_tol=1e-7)
        assert abs(f(x)).max() < 1e-7 and M.updates == before
        for wrong in ((J, J), (np.ones(3), np.ones(64)), (1.0, np.ones(64))):
            with pytest.raises(ParameterError, match=r"update\(x, f\)") as error:
                M.update(*wrong)
            one_line(error)
    blocks = fl.BlockILU0().factor(fl.BlockMatrix.from_sparse(J, 2)) if hasattr(fl.BlockMatrix, "from_sparse") else None
    if blocks is not None:
        assert blocks.update(np.ones(64), np.ones(64)) is blocks


# how they are found


STAND_IN = """
#include <stdlib.h>
#define NO(name) void name(void) { abort(); }
"""
NAMES = [f"klu_{kind}{what}" for kind in ("", "z_", "l_", "zl_") for what in ("factor", "solve", "tsolve", "refactor")]
NAMES += [f"klu_{kind}{what}" for kind in ("", "l_") for what in ("analyze", "defaults", "malloc", "free", "realloc")]
NAMES += ["amd_order", "amd_1", "amd_2", "btf_order", "btf_maxtrans", "btf_strongcomp", "SuiteSparse_malloc"]


@needs_klu
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("gcc") is None, reason="a library is made by gcc on Linux")
def test_klu_calls_its_own_functions_where_another_library_has_the_same_for_all(tmp_path):
    source, library = tmp_path / "other.c", tmp_path / "libother.so"
    source.write_text(STAND_IN + "\n".join(f"NO({name})" for name in NAMES))
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    text = """
import ctypes, sys
ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_GLOBAL)
before = sys.getdlopenflags()
import numpy as np, finelu as fl
A = fl.gallery.convection_diffusion(30, 30, 1)
F = fl.SparseLU(backend="klu").factor(A)
print(abs(A @ F.update(A).solve(np.ones(900)) - 1).max() < 1e-8, sys.getdlopenflags() == before)
"""
    assert run(text, str(library)) == ["True", "True"]


@pytest.mark.skipif(not hasattr(os, "RTLD_DEEPBIND"), reason="symbols are bound so on Linux")
def test_what_is_preloaded_stays_in_the_place_of_what_packages_call(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    bound = []
    for name, preloaded in (("some_package", ""), ("another_package", "libjemalloc.so")):
        (tmp_path / f"{name}.py").write_text("import sys\nflags = sys.getdlopenflags()\n")
        monkeypatch.setenv("LD_PRELOAD", preloaded)
        bound.append(foreign.with_own_symbols(name).flags & os.RTLD_DEEPBIND)
    assert bound == [os.RTLD_DEEPBIND, 0] and not sys.getdlopenflags() & os.RTLD_DEEPBIND


def test_a_package_may_call_libraries_as_it_is_imported(tmp_path):
    (tmp_path / "some_package.py").write_text("from finelu import foreign\nfound = foreign.Owner().call(int, '7')")
    text = """
import sys
sys.path.insert(0, sys.argv[1])
from finelu import foreign
print(foreign.with_own_symbols("some_package").found)
"""
    assert run(text, str(tmp_path)) == ["7"]


def test_finelu_in_the_place_of_scipys_functions_calls_scipys():
    text = """
import scipy.sparse.linalg as sla
import finelu as fl, numpy as np
sla.splu = lambda A, **how: fl.SparseLU(backend="superlu").factor(A)
sla.spilu = lambda A, **how: fl.ILUT().factor(A)
A, b = fl.gallery.poisson5(20), np.ones(400)
print(abs(A @ sla.splu(A).solve(b) - b).max() < 1e-9, fl.solve(A, b, recipe=fl.SparseLU(ordering="mmd")).converged)
"""
    assert run(text) == ["True", "True"]


def test_no_depth_of_recursion_is_taken_for_a_matrix(splu_is):
    def deep(*_, **__):
        raise RecursionError("maximum recursion depth exceeded")

    splu_is(deep)
    with pytest.raises(RecursionError):
        fl.SparseLU(backend="superlu").factor(gallery.poisson5(5))


def test_blas_has_one_thread_for_any_number_of_columns(splu_is):
    A, own, counts = gallery.poisson5(40), foreign.splu, []

    class Looking:
        """Factors of SuperLU that look at the threads of its BLAS as they solve."""

        def __init__(self, *given, **options):
            self.made = own(*given, **options)

        def solve(self, *given):
            counts.append({each["num_threads"] for each in threadpool_info() if each["internal_api"] == "openblas"})
            return self.made.solve(*given)

        def __getattr__(self, name):
            return getattr(self.made, name)

    splu_is(Looking)
    with threadpool_limits(2, "blas"):
        F = fl.SparseLU(backend="superlu").factor(A)
        for shape in (1600, (1600, 16)):
            F.solve(np.ones(shape))
    assert F.nnz > superlu.BLAS_SHARES and len(counts) > 2 and all(found == {1} for found in counts)


# how much memory they may take


@pytest.mark.parametrize(
    "recipe",
    [
        fl.SparseLU(backend="superlu"),
        pytest.param(fl.SparseLU(backend="klu"), marks=needs_klu),
        pytest.param(fl.SparseLU(backend="klu", ordering="amd"), marks=needs_klu),
        pytest.param(fl.SparseLU(backend="feral"), marks=needs_feral),
        pytest.param(fl.SparseLU(backend="pardiso"), marks=needs_pardiso),
        fl.ILUT(),
        fl.ILU0(),
    ],
    ids=repr,
)
def test_factors_that_may_not_fit_are_not_begun(recipe, splu_is, calls_of, meanwhile, everywhere):
    def not_begun(*_, **__):
        raise AssertionError("it has begun")

    A, b = gallery.poisson7(14), np.ones(14**3)
    assert fl.solve(A, b, recipe=recipe, memory_limit=1e9).converged
    splu_is(not_begun)
    phases = calls_of(pardiso._Called, "_call")
    meanwhile(klu.KLU, factor=not_begun)
    meanwhile(feral.LDL, factor=not_begun)
    meanwhile(fl.ILUT, factor=not_begun)
    meanwhile(fl.ILU0, factor=not_begun)
    with refused(MemoryError, match="the factors"):
        fl.solve(A, b, recipe=recipe, memory_limit=1e5)
    if isinstance(recipe, fl.SparseLU):
        everywhere("free_memory", lambda array: 1e5)
        everywhere("ALWAYS_FREE", 1e4)
        with refused(MemoryError, match="the factors would have"):
            recipe.factor(A)
    assert pardiso.FACTOR not in [phase for _, phase, *_ in phases]


def test_no_recipe_and_the_diagonal_take_no_memory_worth_a_limit():
    A, b = gallery.poisson7(6), np.ones(216)
    for recipe in (None, fl.Jacobi()):
        assert fl.solve(A, b, recipe=recipe, memory_limit=0).converged


@needs_klu
def test_klu_with_columns_alone_ordered_begins_only_if_the_time_is_enough_for_another_order(calls_of, meanwhile):
    A, recipe = gallery.convection_diffusion(14), fl.SparseLU(backend="klu", ordering="colamd")
    begun = calls_of(type(klu.nbklu().KLUSolver(index_bits=32, complex_values=False)), "factor")
    with deadline.limited(deadline.now() + 60):
        assert recipe.factor(A).report.expected_nnz is None and len(begun) == 1
    begun.clear()
    meanwhile(klu, KLU_RATE=1e4, KLU_ENTRY=0.0)
    with pytest.raises(OutOfTime), deadline.limited(deadline.now() + 60):
        recipe.factor(A)
    assert not begun


# how they are left


@pytest.fixture
def stuck(splu_is):
    """SuperLU does not come back before it is let go."""
    go, own, left = threading.Event(), foreign.splu, []

    def waits(*args, **how):
        go.wait(60)
        left.append(threading.current_thread())
        return own(*args, **how)

    splu_is(waits)
    yield go, left
    go.set()


def test_a_factorization_that_takes_too_long_is_left(stuck):
    go, left = stuck
    A, b = gallery.convection_diffusion(30), np.ones(27000)
    recipe = fl.SparseLU(backend="superlu")
    with pytest.raises(OutOfTime) as error, deadline.limited(deadline.now() + 0.2):
        recipe.factor(A)
    one_line(error)
    assert not left  # it is at it still
    go.set()
    F = recipe.factor(A)  # on another thread
    assert np.linalg.norm(A @ F.solve(b) - b) < 1e-8 and left[-1] is not threading.main_thread()


def test_the_factors_of_a_coarse_matrix_are_left_too(none_left, splu_is, monkeypatch):
    monkeypatch.setattr(coarse, "MOST_FLOPS", 0)  # the library makes them
    A, go, limits, own = gallery.poisson5(150), threading.Event(), [], foreign.splu

    def waits(E, **how):
        limits[0].expire()
        go.wait(60)

    splu_is(waits)
    recipe = fl.Schwarz(size=4)
    with deadline.limited(deadline.now() + 600):
        limits.append(deadline.current())
        with pytest.raises(OutOfTime):
            recipe.factor(A)
    assert left_calls() == 1
    go.set()
    until(lambda: not left_calls())
    splu_is(own)
    assert recipe.factor(A).coarse.rank > library.LONG_ENTRIES / 5


def test_what_cannot_end_in_time_is_not_begun(splu_is):
    splu_is(lambda *_, **__: pytest.fail("it was begun"))
    with pytest.raises(OutOfTime), deadline.limited(deadline.now() + 60):
        superlu.SuperLU(sp.csc_matrix(gallery.convection_diffusion(14)), str, 100 * foreign.FASTEST)


@needs_klu
@pytest.mark.parametrize("ordering", ["auto", "amd"])  # counted by KLU, and before it
def test_klu_which_cannot_be_left_begins_only_where_it_has_the_time(calls_of, meanwhile, ordering):
    A, network = gallery.convection_diffusion(22), gallery.convection_diffusion(60, 60, 1)
    begun = calls_of(type(klu.nbklu().KLUSolver(index_bits=32, complex_values=False)), "factor")
    meanwhile(klu, RECENT=Recent())  # no factors of before
    F = fl.SparseLU(backend="klu", ordering=ordering).factor(gallery.convection_diffusion(6))
    assert F.report.expected_flops > 0 and len(begun) == 1
    assert fl.SparseLU().factor(network).report.backend == "klu" and len(begun) == 2
    begun.clear()
    meanwhile(klu, KLU_RATE=1e6, KLU_ENTRY=0.0)  # far more than 60 s for 9e8 flops
    with pytest.raises(OutOfTime), deadline.limited(deadline.now() + 60):
        fl.SparseLU(backend="klu", ordering=ordering).factor(A)
    meanwhile(klu, KLU_RATE=1e3, KLU_ENTRY=0.0)
    with deadline.limited(deadline.now() + 60):
        assert fl.SparseLU().factor(network).report.backend == "superlu"
    assert not begun


@needs_klu
def test_meanwhile_not_analyse_what_it_has_no_time_for(calls_of, meanwhile):
    begun = calls_of(type(klu.nbklu().KLUSolver(index_bits=32, complex_values=False)), "analyze")
    meanwhile(klu, KLU_RATE=1.0)
    with pytest.raises(OutOfTime), deadline.limited(deadline.now() + 60):
        fl.SparseLU(backend="klu").factor(gallery.convection_diffusion(22))
    assert not begun


@needs_klu
def test_where_klu_has_too_little_time_left_auto_takes_another_library(meanwhile):
    A = gallery.convection_diffusion(60, 60, 1)
    with deadline.limited(deadline.now() + 60):
        known = analysis.analysed(fl.SparseLU(), fl.as_csr(A), counted=True)
        assert known.library.name == "klu"
        meanwhile(klu, KLU_RATE=1e3, KLU_ENTRY=0.0)  # as if most of the time had gone since
        F = factors.SparseLUFactors(fl.SparseLU(), fl.as_csr(A), known)
    assert F.report.backend == "superlu" and F.report.tried == [
        "klu: it is expected to take longer than the time limit leaves"
    ]


def until(condition):
    """Wait for what another thread is about to do."""
    end = perf_counter() + 60
    while not condition():
        assert perf_counter() < end
        sleep(1e-3)


def left_calls():
    return sum(owner.left for owner in foreign._owners)


@pytest.fixture
def none_left():
    """What other tests have left is over."""
    until(lambda: not left_calls())


def test_the_thread_of_a_call_that_was_left_is_free_again_once_that_is_over(none_left):
    before = len(foreign._owners)
    for _ in range(5):
        go = threading.Event()
        with pytest.raises(OutOfTime), deadline.limited(deadline.now() + 0.01):
            foreign.leavable(go.wait, 60)
        go.set()
        until(lambda: not left_calls())
    assert len(foreign._owners) <= before + 1


def test_only_so_many_calls_that_were_left_go_on_at_a_time(none_left, meanwhile):
    meanwhile(foreign, MOST_LEFT=2)
    go, begun = threading.Event(), []
    try:
        for _ in range(2):
            with pytest.raises(OutOfTime), deadline.limited(deadline.now() + 0.2):
                foreign.leavable(go.wait, 60)
        assert left_calls() == 2
        with pytest.raises(OutOfTime), deadline.limited(deadline.now() + 0.2):
            foreign.leavable(begun.append, 1)
        assert not begun
        threading.Timer(0.1, go.set).start()
        foreign.leavable(begun.append, 2)  # once there is room
        assert begun == [2] and left_calls() < 2
    finally:
        go.set()


def test_an_interrupt_as_a_call_begins_leaves_no_thread_at_work_for_others():
    go, begun = threading.Event(), threading.Event()

    class Interrupted:
        def __init__(self, calls):
            self.calls = calls

        def put(self, call):
            self.calls.put(call)
            begun.wait(60)
            raise KeyboardInterrupt

    def works():
        begun.set()
        go.wait(60)

    try:
        with foreign.lent() as owner:
            calls, owner._calls = owner._calls, Interrupted(owner._calls)
            with pytest.raises(KeyboardInterrupt):
                owner.call(works)
            owner._calls = calls
        with foreign.lent() as other:
            assert other is not owner and owner.left
    finally:
        go.set()


@needs_feral
def test_a_call_that_has_not_begun_is_taken_back(calls_of):
    A, go, started = gallery.poisson7(6), threading.Event(), threading.Event()
    F = fl.SparseLU(backend="feral").factor(A)
    owner = F._lu._state.owner

    def works():
        started.set()
        go.wait(60)

    other = threading.Thread(target=owner.call, args=(works,))
    try:
        made = calls_of(feral.LDL, "_factored")
        other.start()
        started.wait(60)
        for call in (lambda: F.solve(np.ones(216)), lambda: fl.SparseLU(backend="feral").factor(A)):
            with pytest.raises(OutOfTime), deadline.limited(deadline.now() + 0.1):
                call()
        assert owner.usable
        go.set()
        other.join()
        assert np.linalg.norm(A @ F.solve(np.ones(216)) - 1) < 1e-10
        assert not made and F._lu._state.owner is owner
    finally:
        go.set()


@needs_feral
def test_factors_of_feral_move_from_a_thread_where_a_call_was_left_only_while_it_goes_on():
    A, go = gallery.poisson7(6), threading.Event()
    F, G = (fl.SparseLU(backend="feral").factor(A) for _ in range(2))
    owner, box = F._lu._state.owner, F._lu._state.box
    assert G._lu._state.owner is owner
    with pytest.raises(OutOfTime), deadline.limited(deadline.now() + 0.2):
        owner.call(go.wait, 60)
    try:
        assert np.linalg.norm(A @ F.solve(np.ones(216)) - 1) < 1e-10 and F._lu._state.owner is not owner
    finally:
        go.set()
    until(lambda: owner.usable and not box)  # what F has had there is dropped
    assert np.linalg.norm(A @ G.solve(np.ones(216)) - 1) < 1e-10 and G._lu._state.owner is owner


def test_small_factorizations_start_no_thread(splu_is):
    own, made_by = foreign.splu, set()
    splu_is(lambda A, **how: made_by.add(threading.current_thread()) or own(A, **how))
    for A in (gallery.poisson5(20), gallery.convection_diffusion(8)):
        fl.SparseLU(backend="superlu").factor(A)
    assert made_by == {threading.main_thread()}


def test_factors_by_klu_may_lie_in_a_cycle_of_references_with_their_analysis():
    """The garbage collector frees the analysis first, where nothing else holds it."""
    pytest.importorskip("nbklu")
    text = """
import gc, finelu as fl
from finelu.recent import RECENT
A = fl.gallery.problem("poisson5:60")
for _ in range(3):
    cycle = [fl.SparseLU(backend="klu").factor(A)]
    cycle.append(cycle)
    RECENT.__init__()
    del cycle
    gc.collect()
print(fl.SparseLU(backend="klu").factor(A).complete)
"""
    assert run(text) == ["True"]


@pytest.mark.skipif(not hasattr(ctypes, "pythonapi"), reason="no CPython")
def test_factors_of_another_thread_are_given_back_there():
    """SciPy leaks the memory of factors that another thread drops than has made them."""
    text = """
import resource, finelu as fl
A = fl.gallery.convection_diffusion(14)
used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
recipe = fl.SparseLU(backend="superlu")
from finelu.preconditioners.direct import superlu
superlu.LONG_WORK = 0
one = recipe.factor(A).nnz * 12
for _ in range(5): recipe.factor(A)
before = used()
for _ in range(40): recipe.factor(A)
print((used() - before) / one < 10)
"""
    assert run(text) == ["True"]


@pytest.mark.parametrize("library", [name for name in LIBRARIES if name != "klu"])
def test_an_interrupt_is_heard_at_once_and_the_process_ends_well(library):
    """At once: before the library begins its work, which goes on as the process ends."""
    if not LIBRARIES[library]():
        pytest.skip(f"{library} is not installed")
    text = """
import finelu as fl, numpy as np, os, signal, sys, threading
from finelu import foreign
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
backend, A, B = sys.argv[1], fl.gallery.poisson7(40), fl.gallery.poisson7(8)
fl.SparseLU(backend=backend).factor(fl.gallery.poisson7(4))
call, go, begun = foreign.Owner.call, threading.Event(), threading.Event()
def waits(function, *args):
    os.kill(os.getpid(), signal.SIGINT)
    go.wait(60)
    begun.set()
    return function(*args)
def once(self, function, *args):
    foreign.Owner.call = call
    return call(self, waits, function, *args)
foreign.Owner.call = once
try:
    fl.SparseLU(backend=backend, ordering=None if backend == "superlu" else "auto").factor(A)
except KeyboardInterrupt:
    print(go.is_set(), begun.is_set())
F = fl.SparseLU(backend=backend).factor(B)
print(abs(B @ F.solve(np.ones(512)) - 1).max() < 1e-8)
go.set()
print(begun.wait(60))
"""
    done = subprocess.run([sys.executable, "-c", text, library], capture_output=True, text=True, timeout=WAIT)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["False", "False", "True", "True"], "")
