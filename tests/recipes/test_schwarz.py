"""Schwarz methods: their formulas, limits, coarse spaces, overlap, facts, and what is no partition."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, assert_close, in_dtype, one_line, perturbed, values

import finelu as fl
from finelu import MatrixError, ParameterError, gallery
from finelu.errors import ZeroPivot
from finelu.matrix import as_csr


def dense(F, trans="N"):
    return F.solve(np.eye(F.shape[0], dtype=F.dtype), trans)


def pieces(A, F, near=None):
    """M_1^-1 = sum_p R_p^T W B_p^-1 W R_p, Q = Z E^-1 Z^H, and A, all dense, by definition."""
    A, n, parts = A.toarray(), A.shape[0], F.parts
    count = parts.max() + 1
    near = np.ones((n, 1), A.dtype) if near is None else near
    Z = np.zeros((n, count * near.shape[1]), A.dtype)
    for i in range(n):
        Z[i, parts[i] * near.shape[1] : (parts[i] + 1) * near.shape[1]] = near[i]
    blocks = (F.local.L @ F.local.U).toarray()
    R = np.eye(n)[F.rows]
    M = R.T @ np.linalg.inv(blocks) @ R
    return A, M, Z


def combined(A, M, Z, combine, kind):
    adjoint = Z.T if kind == "symmetric" else Z.conj().T
    Q = Z @ np.linalg.inv(adjoint @ A @ Z) @ adjoint
    P = np.eye(A.shape[0]) - A @ Q
    if combine == "additive":
        return M + Q
    if kind == "general":
        return M @ P + Q
    return (P.T if kind == "symmetric" else P.conj().T) @ M @ P + Q


def system(kind, dtype="float64"):
    A = in_dtype(gallery.poisson5(11, 9), dtype)
    if kind == "general":
        return sp.csr_matrix(A + 0.3 * sp.eye(99, k=1)).astype(dtype)
    return A


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("kind", ["hermitian", "general"])
@pytest.mark.parametrize("combine", ["balanced", "additive"])
@pytest.mark.parametrize("vectors", [None, 2])
def test_it_is_its_formula(dtype, kind, combine, vectors):
    A = system(kind, dtype)
    near = None if vectors is None else values((99, vectors), dtype, 4)
    F = fl.Schwarz(size=12, combine=combine, near_nullspace=near).factor(A)
    want = combined(*pieces(A, F, near), combine, kind)
    assert_close(dense(F), want, 1e4, abs(want).max())


@pytest.mark.parametrize("combine", ["balanced", "additive"])
def test_of_a_complex_symmetric_matrix_it_is_symmetric(combine):
    A = sp.csr_matrix(gallery.poisson5(11, 9) + 0.5j * sp.eye(99))
    F = fl.Schwarz(size=12, combine=combine).factor(A)
    M = dense(F)
    assert_close(M, combined(*pieces(A, F), combine, "symmetric"), 1e4, abs(M).max())
    assert_close(M, M.T, 64, abs(M).max())
    assert fl.sqmr(A, values(99, "complex128"), M=F, rtol=1e-8).converged


def test_one_part_without_a_coarse_space_is_the_local_recipe():
    A, r = gallery.convection_diffusion(9, 8, 1, peclet=10), values(72, "float64")
    for local in (fl.ILU0(), fl.ILUK(level=2), fl.ILUT(drop_tol=1e-2), fl.ParILU()):
        F = fl.Schwarz(local=local, size=72, coarse=None).factor(A)
        assert_close(F.solve(r), local.factor(A).solve(r), 64)


def test_parts_of_one_row_without_a_coarse_space_are_jacobi():
    A, r = gallery.poisson5(9, 8), values(72, "float64")
    assert_close(fl.Schwarz(parts=np.arange(72), coarse=None).factor(A).solve(r), r / A.diagonal(), 4)


def test_parts_of_one_row_with_a_coarse_space_are_the_inverse():
    A, r = system("general"), values(99, "float64")
    assert_close(fl.Schwarz(parts=np.arange(99)).factor(A).solve(r), np.linalg.solve(A.toarray(), r), 1e4)


@pytest.mark.parametrize("kind", ["hermitian", "general"])
def test_the_balanced_form_is_exact_in_the_coarse_space(kind):
    A, near = system(kind), values((99, 3), "float64", 4)
    F = fl.Schwarz(size=20, near_nullspace=near).factor(A)
    _, _, Z = pieces(A, F, near)
    assert_close(F.solve(A @ Z), Z, 1e5, abs(Z).max())


@pytest.mark.parametrize("combine", ["balanced", "additive"])
@pytest.mark.parametrize("overlap", [0, 1])
def test_it_is_definite_where_a_is(combine, overlap):
    A = gallery.poisson5(11, 9)
    F = fl.Schwarz(size=12, combine=combine, overlap=overlap).factor(A)
    M = dense(F)
    assert_close(M, M.T, 64, abs(M).max())
    assert np.linalg.eigvalsh((M + M.T) / 2).min() > 0
    assert fl.cg(A, values(99, "float64"), M=F, rtol=1e-10).converged


def test_overlap_is_restricted_for_a_general_matrix_and_weighted_for_a_hermitian_one():
    for kind in ("general", "hermitian"):
        A = system(kind)
        F = fl.Schwarz(size=20, overlap=1, coarse=None).factor(A)
        part = np.repeat(np.arange(F.report.parts), np.diff(F._domains.starts))
        want = np.zeros((99, 99))
        for p in range(F.report.parts):
            rows = F.rows[part == p]
            own = np.flatnonzero(F.parts == p)
            touched = np.flatnonzero(np.asarray((abs(A) + abs(A.T))[own].sum(axis=0)).ravel())
            np.testing.assert_array_equal(rows, np.union1d(own, touched))  # one layer
            block = (F.local.L @ F.local.U).toarray()[np.ix_(part == p, part == p)]
            times = np.bincount(F.rows, minlength=99)[rows]
            after = (F.parts[rows] == p).astype(float) if kind == "general" else times**-0.5
            before = np.ones(rows.size) if kind == "general" else times**-0.5
            want[np.ix_(rows, rows)] += after[:, None] * np.linalg.inv(block) * before
        assert_close(dense(F), want, 1e3, abs(want).max())
        assert_close(dense(F, "T"), want.T, 1e3, abs(want).max())


def test_iterations_hardly_grow_with_the_grid():
    counts, alone = [], []
    for side in (16, 32):
        A = gallery.poisson7(side, side, side)
        b = values(A.shape[0], "float64")
        for coarse, found in (("constant", counts), (None, alone)):
            F = fl.Schwarz(size=216, coarse=coarse).factor(A)
            found.append(fl.cg(A, b, M=F, rtol=1e-8).iterations)
    assert counts[1] <= 1.25 * counts[0] and counts[1] < 0.8 * alone[1]


def test_update_is_a_fresh_factorization():
    A = system("general")
    B = perturbed(A)
    for recipe in (fl.Schwarz(size=12), fl.Schwarz(size=12, overlap=1), fl.Schwarz(size=12, local="ilut")):
        F, r = recipe.factor(A), values(99, "float64")
        np.testing.assert_array_equal(F.update(B).solve(r), recipe.factor(B).solve(r))
        np.testing.assert_array_equal(F.solve(r, "T"), recipe.factor(B).solve(r, "T"))


def test_threads_do_not_change_the_bits():
    A = gallery.poisson7(20, 20, 20)
    r, found = values(8000, "float64"), []
    try:
        for threads in (1, 3):
            fl.set_num_threads(threads)
            F = fl.Schwarz(size=100).factor(A)
            found.append((F.parts, F.solve(r), F.solve(r, "T")))
    finally:
        fl.set_num_threads(fl.threads.available_cores())
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


def test_dependent_vectors_are_left_out():
    A = system("hermitian")
    near = values((99, 2), "float64", 4)
    with_double = np.column_stack([near, near[:, 0] - 2 * near[:, 1], np.zeros(99)])
    F, G = (fl.Schwarz(size=12, near_nullspace=B).factor(A) for B in (near, with_double))
    assert F.report.coarse_rank == G.report.coarse_rank == 2 * F.report.parts
    assert G.report.coarse_dropped == 2 * F.report.parts
    assert_close(dense(G), dense(F), 1e4, abs(dense(F)).max())


@pytest.mark.parametrize("dtype", DTYPES)
def test_of_a_singular_matrix_one_coarse_vector_is_dropped(dtype):
    A = gallery.poisson5(12, 10)
    A = sp.csr_matrix(A - sp.diags(np.asarray(A.sum(axis=1)).ravel())).astype(dtype)  # constants are in the kernel
    F = fl.Schwarz(size=12, local=fl.ILU0(shift=1e-3)).factor(A)
    assert F.report.coarse_dropped == 1
    M = dense(F)
    assert np.isfinite(M).all() and np.linalg.norm(M) < 1e4
    b = A @ values(120, dtype)
    assert fl.gmres(A, b, M=F, rtol=1e-4).converged


def test_an_indefinite_hermitian_matrix_has_a_coarse_space_too():
    A = sp.csr_matrix(gallery.poisson5(12, 10) - 0.3 * sp.eye(120))
    F = fl.Schwarz(size=30, local=fl.ILU0()).factor(A)
    assert F.report.coarse_dropped == 0
    assert fl.gmres(A, values(120, "float64"), M=F, rtol=1e-10).converged


def test_the_report():
    A = gallery.poisson7(12, 12, 12)
    report = fl.Schwarz(size=64, partition="geometric").factor(A).report
    assert (report.parts, report.smallest, report.largest) == (27, 64, 64)
    assert report.partition == "geometric" and report.local == "ILU0()" and report.coarse_rank == 27
    assert report.cut == pytest.approx(12 * 12 * 2 * 2 * 3 / A.nnz)
    assert report.levels == 10  # of a brick of 4 x 4 x 4
    assert "levels" in str(report)


def test_the_facts_are_those_of_the_local_recipe():
    assert fl.Schwarz().keeps_definite and not fl.Schwarz().hermitian
    for local in (fl.IC0(), fl.ILU0(), fl.ILUT(), fl.ICT(), fl.MILU0()):
        recipe = fl.Schwarz(local=local)
        for fact in ("hermitian", "keeps_symmetry", "keeps_hermitian", "keeps_definite"):
            assert getattr(recipe, fact) == getattr(local, fact)


def test_a_recipe_with_arrays_is_a_value():
    parts, near = np.arange(30) // 7, np.ones((30, 2))
    one, two = (fl.Schwarz(parts=parts.copy(), near_nullspace=near.copy()) for _ in range(2))
    parts[0] = 3
    assert one == two and hash(one) == hash(two) and pickle.loads(pickle.dumps(one)) == one
    assert one != fl.Schwarz(parts=parts) and one != replace(one, near_nullspace=None)
    assert "array of shape (30,)" in repr(one) and "\n" not in repr(one)


BAD = [
    ({"size": 0}, "size must be an integer >= 1"),
    ({"size": 5, "parts": 3}, "give one of them"),
    ({"parts": np.zeros(29, int)}, r"parts has shape \(29,\).*each of A's 30 rows"),
    ({"parts": np.zeros(30)}, "dtype float64; an integer for each"),
    ({"parts": np.r_[-1, np.zeros(29, int)]}, r"parts\[0\] is -1"),
    ({"parts": np.r_[np.zeros(15, int), np.full(15, 2)]}, "part 1 has no row"),
    ({"parts": np.r_[np.zeros(29, int), 10**9]}, "more parts, 1000000001, than rows"),
    ({"near_nullspace": np.ones((29, 2))}, r"near_nullspace has shape \(29, 2\)"),
    ({"near_nullspace": np.ones((30, 0))}, "near_nullspace has shape"),
    ({"near_nullspace": np.zeros((30, 2))}, "near_nullspace is 0"),
    ({"near_nullspace": np.full((30, 1), np.nan)}, "near_nullspace holds NaN or Inf in row 0"),
    ({"near_nullspace": np.full((30, 1), 1j)}, "complex, but A is real"),
    ({"near_nullspace": np.ones((30, 1)), "coarse": None}, "a near null space is for a coarse space"),
    ({"coarse": "linear"}, "coarse must be"),
    ({"combine": "ad"}, "combine must be one of|combine must be"),
    ({"partition": "metiss"}, "Did you mean 'metis'"),
    ({"partition": "geometric", "size": 5}, "grid"),
    ({"local": "milu0"}, "coarse=None, or local=ILU0"),
    ({"local": "sparselu"}, "no two triangles"),
    ({"local": "multilevel"}, "no two triangles"),
    ({"local": fl.ParILU(ordering="rcm")}, "with ordering=None"),
    ({"local": "ilu_0x"}, "there is no recipe"),
    ({"overlap": -1}, "overlap must be an integer >= 0"),
    ({"size": 10, "overlap": 30}, "is all of A; take less overlap"),
    ({"precision": "half"}, "precision must be"),
]


@pytest.mark.parametrize(("parameters", "text"), BAD, ids=[str(k) for k in range(len(BAD))])
def test_bad_input(parameters, text):
    A = gallery.arrow(30)
    with pytest.raises((ParameterError, MatrixError), match=text) as error:
        fl.Schwarz(**parameters).factor(A)
    one_line(error)


def test_a_pivot_that_fails_is_named_by_part_and_row():
    A = gallery.poisson5(6, 5).tolil()
    A[17, 17] = -4.0
    with pytest.raises(ZeroPivot, match=r"pivot of row 17 is .*part 1 cannot have") as error:
        fl.Schwarz(parts=np.arange(30) // 10, local="ic0").factor(A.tocsr())
    assert error.value.row == 17
    one_line(error)


def test_a_coarse_matrix_of_zeros_is_an_error():
    A = as_csr(sp.csr_matrix(np.array([[1.0, -1.0], [1.0, -1.0]])))
    with pytest.raises(MatrixError, match=r"coarse matrix .* is 0 in all parts"):
        fl.Schwarz(parts=[0, 0], local=fl.ILU0(shift=1.0)).factor(A)
