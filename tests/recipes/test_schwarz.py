"""Schwarz methods: their formulas, limits, coarse spaces, overlap, facts, and what is no partition."""

import pickle
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, ON_GPU, assert_close, in_dtype, one_line, perturbed, refused, values

import finelu as fl
from finelu import MatrixError, ParameterError, gallery
from finelu.errors import ZeroPivot
from finelu.kernels import kernels_for, monitor
from finelu.kernels.cpu.runtime import row_blocks
from finelu.matrix import as_csr
from finelu.matrix.looks import has_strong_pairs
from finelu.partition import partition
from finelu.preconditioners.schwarz import coarse as coarse_spaces
from finelu.preconditioners.schwarz import parts
from finelu.preconditioners.schwarz.coarse import inverse


def dense(F, trans="N", backend=None):
    eye = np.eye(F.shape[0], dtype=F.dtype)
    return F.solve(eye, trans) if backend is None else backend.fetch(F.solve(backend.move(eye), trans))


def pieces(A, F, near=None, fetch=lambda a: a):
    """A, M_1^-1 = sum_p R_p^T B_p^-1 R_p, and Z, all dense, by definition."""
    A, n, parts = A.toarray(), A.shape[0], fetch(F.parts)
    count = parts.max() + 1
    near = np.ones((n, 1), A.dtype) if near is None else near
    Z = np.zeros((n, count * near.shape[1]), A.dtype)
    for i in range(n):
        Z[i, parts[i] * near.shape[1] : (parts[i] + 1) * near.shape[1]] = near[i]
    blocks = fetch(F.local.L).toarray() @ fetch(F.local.U).toarray()
    R = np.eye(n)[fetch(F.rows)]
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


@pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128"])
@pytest.mark.parametrize("kind", ["hermitian", "general"])
@pytest.mark.parametrize("combine", ["balanced", "additive"])
@pytest.mark.parametrize("vectors", [None, 2])
def test_it_is_its_formula(backend, dtype, kind, combine, vectors):
    A = system(kind, dtype)
    near = None if vectors is None else values((99, vectors), dtype, 4)
    precision = "float32" if dtype == "complex64" else "float64"
    F = fl.Schwarz(size=12, combine=combine, near_nullspace=near, precision=precision).factor(backend.move(A))
    want = combined(*pieces(A, F, near, backend.fetch), combine, kind).astype(dtype)
    for trans, M in (("N", want), ("T", want.T), ("H", want.conj().T)):
        assert_close(dense(F, trans, backend), M, 1e4, abs(want).max())


@pytest.mark.parametrize(("dtype", "rtol"), [("complex64", 1e-4), ("complex128", 1e-8)])
@pytest.mark.parametrize("combine", ["balanced", "additive"])
@pytest.mark.parametrize("vectors", [None, 2])
def test_of_a_complex_symmetric_matrix_it_is_symmetric(backend, dtype, rtol, combine, vectors):
    A = sp.csr_matrix(gallery.poisson5(11, 9) + 0.5j * sp.eye(99)).astype(dtype)
    near = None if vectors is None else values((99, vectors), dtype, 4)
    F = fl.Schwarz(size=12, combine=combine, near_nullspace=near).factor(backend.move(A))
    M = dense(F, "N", backend)
    want = combined(*pieces(A, F, near, backend.fetch), combine, "symmetric").astype(dtype)
    assert_close(M, want, 1e4, abs(M).max())
    assert_close(M, M.T, 256, abs(M).max())
    assert fl.sqmr(backend.move(A), backend.move(values(99, dtype)), M=F, rtol=rtol).converged


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
@pytest.mark.parametrize("local", ["auto", "ic0"])
def test_it_is_definite_where_a_is(backend, combine, overlap, local):
    A = gallery.poisson5(11, 9)
    F = fl.Schwarz(size=12, combine=combine, overlap=overlap, local=local).factor(backend.move(A))
    M = dense(F, "N", backend)
    assert_close(M, M.T, 64, abs(M).max())
    assert np.linalg.eigvalsh((M + M.T) / 2).min() > 0
    assert fl.cg(backend.move(A), backend.move(values(99, "float64")), M=F, rtol=1e-10).converged


def test_overlap_is_restricted_for_a_general_matrix_and_weighted_for_a_hermitian_one():
    for kind in ("general", "hermitian"):
        A = system(kind)
        F = fl.Schwarz(size=20, overlap=1, coarse=None, precision="float64").factor(A)
        part = np.repeat(np.arange(F.report.parts), np.diff(F._local.starts))
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


@pytest.mark.parametrize(("family", "sides", "most"), [("poisson5", (32, 64, 128), 72), ("poisson7", (16, 24, 32), 38)])
def test_iterations_of_the_default_are_bounded(family, sides, most):
    """Those of the parts alone grow beyond the bound."""
    counts = []
    for side in sides:
        A = gallery.problem(f"{family}:{side}")
        b = values(A.shape[0], "float64")
        found = [fl.cg(A, b, M=fl.Schwarz(coarse=c).factor(A), rtol=1e-8) for c in ("constant", None)]
        assert all(solution.converged for solution in found)
        counts.append([solution.iterations for solution in found])
    assert max(count for count, _ in counts) <= most < counts[-1][1]


def test_parts_grow_where_the_coarse_space_would_be_too_large(meanwhile):
    """With several vectors a part sooner, since these fill the factors of the coarse matrix."""
    A, two = gallery.poisson5(40), values((1600, 2), "float64", 4)
    meanwhile(parts, MOST_COARSE=6, MOST_SPARSE=10, LARGEST=128)
    counts = [fl.Schwarz(near_nullspace=near, levels=2).factor(A).report.parts for near in (None, two)]
    assert counts[1] <= 4 < 6 < counts[0] <= 10


@ON_GPU
def test_aggregates_are_smaller_by_default_on_a_gpu(backend):
    """If A is definite, with one vector a part. Bricks, and parts with several vectors or without any, are as large as
    they fit."""
    A = as_csr(gallery.anisotropic_triangles(6))
    usual = parts.usual_size(backend.move(A), 1, True)
    smaller = parts.size_of_aggregates(A, usual)
    assert smaller == 128 < usual
    two = backend.move(values((A.n, 2), "float64", 4))
    for options, size in (
        ({}, smaller),
        ({"partition": "aggregate"}, smaller),
        ({"partition": "natural"}, usual),
        ({"coarse": None, "local": fl.ILU0()}, usual),
        ({"near_nullspace": two, "local": fl.ILU0()}, usual),
    ):
        F = fl.Schwarz(**options).factor(backend.move(A))
        assert F.report.parts == partition(A, size, options.get("partition", "auto")).count
    flow = as_csr(sp.csr_matrix(A.tosparse() + sp.diags_array([np.full(A.n - 1, 0.01)], offsets=[1])))
    F = fl.Schwarz().factor(backend.move(flow))
    assert F.report.parts == partition(flow, parts.usual_size(backend.move(flow), 1, False, general=True)).count
    bricks = as_csr(gallery.poisson7(40))
    F = fl.Schwarz().factor(backend.move(bricks))
    assert F.report.partition == "geometric"
    assert F.report.parts == partition(bricks, parts.usual_size(backend.move(bricks), 1, True)).count


def test_the_blocks_of_the_parts_share_their_pattern_with_the_factors_and_nothing_with_the_caller():
    S = gallery.poisson5(30)
    F = fl.Schwarz(size=50).factor(S)
    blocks = F._local._blocks
    assert blocks.with_own_pattern() is blocks and F.local.pattern.indices is blocks.indices
    assert F.pattern.with_own_pattern() is F.pattern and not np.shares_memory(F.pattern.indices, S.indices)
    own = as_csr(S).with_own_pattern()
    assert own.with_values(2 * own.data).with_own_pattern().indices is own.indices
    assert not np.shares_memory(own.indices, S.indices) and not np.shares_memory(own.indptr, S.indptr)


def test_an_update_after_a_failed_one_makes_the_form_that_its_matrix_needs():
    A, C = system("hermitian"), system("general")
    full = sp.csr_matrix(abs(A) + abs(C))
    patterned = [sp.csr_matrix((np.asarray(B[full.nonzero()]).ravel(), full.nonzero()), full.shape) for B in (A, C)]
    A, C = (fl.as_csr(B) for B in patterned)
    bad = C.with_values(C.data.copy())
    bad.data[bad.indptr[40] : bad.indptr[41]] = 0
    recipe, r = fl.Schwarz(parts=np.arange(99) // 12), values(99, "float64")
    F = recipe.factor(A)
    with pytest.raises(ArithmeticError):
        F.update(bad)
    F.update(C)
    fresh = recipe.factor(C)
    for trans in ("N", "T"):
        np.testing.assert_array_equal(F.solve(r, trans), fresh.solve(r, trans))


def test_threads_do_not_change_the_bits(monkeypatch, threads):
    A = gallery.poisson7(12, 12, 12)
    r, found = values(1728, "float64"), []
    monkeypatch.setattr(row_blocks, "COPY", 64)
    monkeypatch.setattr(row_blocks, "threads_for", lambda work, alone=0: fl.threads.get_num_threads())
    for number in (1, 3):
        fl.set_num_threads(number)
        F = fl.Schwarz(size=40, near_nullspace=values((1728, 2), "float64", 4)).factor(A)
        assert (row_blocks.even_items(F.report.parts, 1728).size > 3) == (number > 1)
        found.append((F.parts, F.solve(r), F.solve(r, "T")))
    for one, two in zip(*found, strict=True):
        np.testing.assert_array_equal(one, two)


def test_rigid_body_modes_cost_no_energy():
    nx, ny, nz = 5, 3, 4
    A = gallery.elasticity(nx, ny, nz)
    z, y, x = np.meshgrid(np.arange(nz + 1), np.arange(ny + 1), np.arange(1, nx + 1), indexing="ij")
    modes = fl.rigid_body_modes(np.column_stack([x.ravel(), y.ravel(), z.ravel()]))
    assert modes.shape == (A.shape[0], 6) and np.linalg.matrix_rank(modes) == 6
    away = np.repeat(x.ravel() > 1, 3)  # from the nodes that are held
    assert abs((A @ modes)[away]).max() < 1e-12 * abs(A).max()
    iterations = []
    for near in (None, modes[:, :3], modes):
        F = fl.Schwarz(size=60, near_nullspace=near).factor(A)
        iterations.append(fl.cg(A, values(A.shape[0], "float64"), M=F, rtol=1e-8).iterations)
    assert iterations[2] < iterations[1] < iterations[0]
    flat = fl.rigid_body_modes([[0, 0], [2, 0], [0, 2]])
    np.testing.assert_allclose(flat[:, 2], [2 / 3, -2 / 3, 2 / 3, 4 / 3, -4 / 3, -2 / 3])
    for bad, text in ((np.zeros((3, 4)), "shape"), (np.full((3, 2), np.nan), "NaN or Inf at node 0")):
        with refused(ParameterError, match=text):
            fl.rigid_body_modes(bad)


def test_dependent_vectors_are_left_out():
    A = system("hermitian")
    near = values((99, 2), "float64", 4)
    with_double = np.column_stack([near, near[:, 0] - 2 * near[:, 1], np.zeros(99)])
    F, G = (fl.Schwarz(size=12, near_nullspace=B).factor(A) for B in (near, with_double))
    assert F.report.coarse_rank == G.report.coarse_rank == 2 * F.report.parts
    assert G.report.coarse_dropped == 2 * F.report.parts
    assert_close(dense(G), dense(F), 1e4, abs(dense(F)).max())


def neumann(dtype, seed=0):
    """Weights from 0.1 to 10 on the edges of a grid of 12 x 10 nodes, and constants in the kernel."""
    A = sp.triu(gallery.poisson5(12, 10), 1).tocsr()
    A.data = -np.random.default_rng(seed).uniform(0.1, 10, A.nnz)
    A = sp.csr_matrix(A + A.T)
    return sp.csr_matrix(A - sp.diags(np.asarray(A.sum(axis=1)).ravel())).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("local", ["auto", "ilut"])
def test_of_a_singular_matrix_one_coarse_vector_is_dropped(backend, dtype, local):
    A = neumann(dtype)
    F = fl.Schwarz(size=12, local=local).factor(backend.move(A))
    assert F.report.coarse_dropped == 1
    M = dense(F, "N", backend)
    assert np.isfinite(M).all() and np.linalg.norm(M) < 1e4
    b = backend.move(A @ values(120, dtype))
    assert fl.gmres(backend.move(A), b, M=F, rtol=1e-4).converged


@pytest.mark.parametrize("seed", range(4))
def test_nearly_singular_factors_in_single_precision_stay_definite(backend, seed):
    A = sp.csr_matrix(neumann("float64", seed) + 1e-8 * sp.eye(120))
    F = fl.Schwarz(size=12, precision="float32").factor(backend.move(A))
    M = dense(F, "N", backend).astype(float)
    assert np.linalg.eigvalsh((M + M.T) / 2).min() > -1e-5 * np.linalg.norm(M, 2)
    assert fl.cg(backend.move(A), backend.move(A @ values(120, "float64")), M=F, rtol=1e-6).converged


@pytest.mark.parametrize(
    "E",
    [
        [[4, 1, 0], [1, 2, 0], [0, 0, 3]],
        [[1, 0.3, 0.2], [0.3, -2, 0.1], [0.2, 0.1, 1]],  # indefinite, and its diagonal shows it
        [[0, 1, 0], [1, 2, 0], [0, 0, 3]],
        [[1, 2, 0], [2, 1, 0], [0, 0, 3]],  # only the pivots do
    ],
    ids=["definite", "negative", "zero", "negative pivot"],
)
def test_a_coarse_matrix_that_may_be_indefinite_loses_no_vector(backend, E):
    """With `definite` A is Hermitian with a positive diagonal, which leaves E free to be indefinite."""
    E = np.array(E, float)
    moved = backend.move(E) if backend.name == "cuda" else sp.csr_matrix(E)
    none, g = backend.move(np.zeros(3, bool)), np.array([1.0, 2.0, 3.0])
    found, dropped = inverse(moved, none, np.dtype(np.float64), True)
    assert not dropped.any()
    np.testing.assert_allclose(backend.fetch(found(backend.move(g), "N")), np.linalg.solve(E, g), atol=1e-14)
    found, dropped = inverse(moved, backend.move(np.array([False, True, False])), np.dtype(np.float64), True)
    if E[0, 0] > 0:
        rest = np.linalg.solve(E[::2, ::2], g[::2])
        np.testing.assert_allclose(backend.fetch(found(backend.move(g), "N")), [rest[0], 0, rest[1]], atol=1e-14)
        assert backend.fetch(dropped).tolist() == [False, True, False]


def test_copies_of_a_singular_piece_drop_a_vector_each(backend):
    """E is exactly singular, in each of many blocks."""
    piece = sp.csr_matrix([[1.0, -1, 0, 0], [-1, 2, -1, 0], [0, -1, 2, -1], [0, 0, -1, 1]])
    A = sp.block_diag([piece] * 30, format="csr")
    F = fl.Schwarz(parts=np.arange(120) // 2, local=fl.ILU0(shift=1e-2)).factor(backend.move(A))
    assert F.report.coarse_dropped == 30
    assert np.isfinite(dense(F, "N", backend)).all()


@pytest.mark.parametrize("kind", ["hermitian", "general"])
def test_an_indefinite_matrix_has_a_coarse_space_too(backend, kind):
    A = sp.csr_matrix(gallery.poisson5(12, 10) - 0.3 * sp.eye(120))
    A = A if kind == "hermitian" else sp.csr_matrix(A + 0.2 * sp.eye(120, k=1))
    F = fl.Schwarz(size=30, local=fl.ILU0()).factor(backend.move(A))
    assert F.report.coarse_dropped == 0
    assert fl.gmres(backend.move(A), backend.move(values(120, "float64")), M=F, rtol=1e-10).converged


def test_a_coarse_matrix_with_zeros_on_its_diagonal_is_used(backend):
    A = sp.csr_matrix(
        np.array([[1.0, -1, 2, 0], [-1, 1, 0, 0], [-2, 0, 1, -1], [0, 0, -1, 1]])
    )  # E = [[0, 2], [-2, 0]]
    F = fl.Schwarz(parts=[0, 0, 1, 1], local=fl.ILU0(shift=0.5)).factor(backend.move(A))
    assert F.report.coarse_rank == 2
    _, _, Z = pieces(A, F, None, backend.fetch)
    assert_close(backend.fetch(F.solve(backend.move(A @ Z))), Z, 64, 1)


def test_what_the_local_factors_warn_of_is_in_the_report():
    A = sp.csr_matrix(3 * np.tril(np.ones((60, 60))) - np.triu(np.ones((60, 60))))
    F = fl.Schwarz(local=fl.ParILU(sweeps=1), size=60, coarse=None).factor(A)
    assert "of the factors of the parts" in F.report.warning and F.local.report.warning in F.report.warning


def test_an_update_may_change_the_symmetry():
    A, r = gallery.poisson5(11, 9), values(99, "float64")
    B = perturbed(A)
    recipe = fl.Schwarz(size=12, overlap=1)
    F = recipe.factor(A).update(B)
    np.testing.assert_array_equal(F.solve(r), recipe.factor(B).solve(r))
    np.testing.assert_array_equal(F.update(A).solve(r), recipe.factor(A).solve(r))


def test_nearly_hermitian_counts_as_hermitian_where_the_local_recipe_reads_one_triangle():
    A = gallery.poisson5(11, 9).astype(float)
    A.data *= 1 + 1e-9 * values(A.nnz, "float64")
    F = fl.Schwarz(size=12, local="ic0").factor(A)
    M = dense(F)
    assert "lower triangle" in F.report.warning and np.linalg.norm(M - M.T) < 1e-7 * np.linalg.norm(M)


def test_the_scale_of_a_near_null_vector_does_not_matter():
    near = values((99, 2), "float64", 4)
    for dtype, scale in (("float64", 1e170), ("float64", 1e-170), ("complex64", 1e25)):
        A, r = system("hermitian", dtype), values(99, dtype)
        recipes = (fl.Schwarz(size=12, near_nullspace=B) for B in (near, near * scale))
        one, two = (recipe.factor(A).solve(r) for recipe in recipes)
        assert_close(two, one, 1e4 if dtype == "float64" else 1e13, abs(one).max())


def test_the_cut_counts_couplings_of_rows_of_different_parts():
    A = gallery.poisson5(11, 9)
    cuts = [fl.Schwarz(size=12, overlap=overlap).factor(A).report.cut for overlap in (0, 1)]
    assert cuts[0] == cuts[1] > 0.1


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
        recipe = fl.Schwarz(local=local, coarse=None)
        for fact in ("hermitian", "keeps_symmetry", "keeps_hermitian", "keeps_definite"):
            assert getattr(recipe, fact) == getattr(local, fact)


def test_auto_is_auto_in_letters_of_any_size():
    assert fl.Schwarz(local="Auto") == fl.Schwarz()
    with pytest.raises(ParameterError, match=r"Schwarz\(parts=...\): an array is needed"):
        fl.Schwarz(parts=[[1], [1, 2]])


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
    ({"combine": "ad"}, "combine must be"),
    ({"parts": 31}, "parts must be an integer from 1 to 30"),
    ({"local": fl.ILU0(precision="float32")}, "leave triangular and precision of the local recipe"),
    ({"local": fl.ILU0(triangular="jacobi")}, "leave triangular and precision of the local recipe"),
    ({"partition": "metiss"}, "Did you mean 'metis'"),
    ({"partition": "geometric", "size": 5}, "grid"),
    ({"local": "milu0"}, "coarse=None, or local=ILU0"),
    ({"local": "sparselu"}, "no two triangles"),
    ({"local": "multilevel"}, "no two triangles"),
    ({"local": fl.ICNE()}, "those of A\\^H A, for least squares"),
    ({"local": fl.ParILU(ordering="rcm")}, "with ordering=None"),
    ({"local": "ilu_0x"}, "there is no recipe"),
    ({"overlap": -1}, "overlap must be an integer >= 0"),
    ({"size": 10, "overlap": 30}, "is all of A; take less overlap"),
    ({"precision": "half"}, "precision must be"),
]


@pytest.mark.parametrize(("parameters", "text"), BAD, ids=[str(k) for k in range(len(BAD))])
def test_bad_input(parameters, text):
    A = gallery.arrow(30)
    with refused((ParameterError, MatrixError), match=text):
        fl.Schwarz(**parameters).factor(A)


def test_a_pivot_that_fails_is_named_by_part_and_row():
    A = gallery.poisson5(6, 5).tolil()
    A[17, 17] = -4.0
    with pytest.raises(ZeroPivot, match=r"pivot of row 17 is .*part 1 cannot have") as error:
        fl.Schwarz(parts=np.arange(30) // 10, local="ic0").factor(A.tocsr())
    assert error.value.row == 17
    one_line(error)


def test_a_coarse_matrix_of_zeros_is_an_error():
    A = as_csr(sp.csr_matrix(np.array([[1.0, -1.0], [1.0, -1.0]])))
    with pytest.raises(MatrixError, match="nothing but rounding is left of the coarse matrix"):
        fl.Schwarz(parts=[0, 0], local=fl.ILU0(shift=1.0)).factor(A)


# In cg: one product with E^-1


class _Plain:
    """Factors as they are to anyone who knows nothing of their coarse space."""

    def __init__(self, F):
        self.F, self.shape, self.dtype = F, F.shape, F.dtype

    def matvec(self, r):
        return self.F.solve(r)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("near", [False, True])
def test_where_the_coarse_space_sees_nothing_the_deflated_form_is_m(backend, dtype, near):
    A = backend.move(in_dtype(system("hermitian"), dtype))
    B = backend.move(values((A.shape[0], 2), dtype)) if near else None
    F = fl.Schwarz(size=12, near_nullspace=B).factor(A)
    b = backend.move(values(A.shape[0], dtype))
    x, r = backend.xp.zeros_like(b), b.copy()
    assert F.deflated.start(A, x, r)
    size = float(abs(b).max())
    scale = 1e3 * float(np.finfo(dtype).eps)
    assert float(abs(F.coarse.restrict(r)).max()) < 10 * scale * size
    assert_close(backend.fetch(b - A @ x), backend.fetch(r), 1e3, size)
    want = backend.fetch(F.solve(r))
    assert_close(backend.fetch(F.deflated @ r), want, 1e4, abs(want).max())


@pytest.mark.parametrize("local", ["auto", "IC0"])
def test_cg_takes_the_deflated_form_and_as_many_iterations(backend, local):
    A = gallery.problem("poisson7:16")
    b = values(A.shape[0], "float64")
    F = fl.Schwarz(size=64, local=local).factor(backend.move(A))
    runs = [fl.cg(backend.move(A), backend.move(b), M=M, rtol=1e-10) for M in (F, _Plain(F))]
    assert all(run.converged for run in runs)
    assert abs(runs[0].iterations - runs[1].iterations) <= 1
    assert np.linalg.norm(b - A @ backend.fetch(runs[0].x)) <= 1.001e-10 * np.linalg.norm(b)
    # from elsewhere, and with a limit that ends it early
    x0 = backend.move(values(A.shape[0], "float64", 5))
    assert fl.cg(backend.move(A), backend.move(b), x0, M=F, rtol=1e-10).converged
    assert not fl.cg(backend.move(A), backend.move(b), M=F, rtol=1e-10, maxiter=2).converged


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["plain", "near", "overlap"])
def test_a_turn_of_cg_is_its_three_lines(backend, dtype, form):
    A = backend.move(in_dtype(system("hermitian"), dtype))
    n = A.shape[0]
    B = backend.move(values((n, 2), dtype)) if form == "near" else None
    F = fl.Schwarz(size=12, near_nullspace=B, overlap=int(form == "overlap")).factor(A)
    M, k, xp = F.deflated, kernels_for(F.pattern.data), backend.xp
    r, p = (backend.move(values(n, dtype, seed)) for seed in (0, 3))
    assert M.start(A, xp.zeros_like(r), r)
    rho, rho_old, state = xp.zeros(1, dtype), xp.full(1, 0.5, dtype), xp.zeros(4, np.int32)
    z, want, turned = M @ r, p.copy(), p.copy()
    k.vectors.dot(r, z, rho)
    k.recurrences.direction(state, rho.real, rho_old.real, z, want, None, None)
    square = backend.fetch(rho).copy()
    M.turn(state, r, rho, rho_old, turned)
    assert_close(backend.fetch(rho), square, 1e3)
    want = backend.fetch(want)
    assert_close(backend.fetch(turned), want, 1e3, abs(want).max())
    state[monitor.CODE] = monitor.CLAIMED
    M.turn(state, r, rho, rho_old, turned)  # over: p stays
    assert_close(backend.fetch(turned), want, 1e3, abs(want).max())


def test_parts_of_a_definite_matrix_are_read_in_single_precision(backend):
    A = gallery.problem("poisson7:16")
    b = values(A.shape[0], "float64")
    F, G = (fl.Schwarz(size=64, precision=p).factor(backend.move(A)) for p in (None, "float64"))
    x, y = (backend.fetch(H.solve(backend.move(b))) for H in (F, G))
    assert G.report.stored == "float64"
    assert F.dtype == np.float64
    assert F.report.stored == "float32"
    assert 0 < abs(x - y).max() < 1e-6 * abs(y).max()
    np.testing.assert_array_equal(x, backend.fetch(F.solve(backend.move(b), "T")))
    runs = [fl.cg(backend.move(A), backend.move(b), M=H, rtol=1e-10) for H in (F, G)]
    assert all(run.converged for run in runs) and abs(runs[0].iterations - runs[1].iterations) <= 1
    other = sp.csr_matrix(A - 20 * sp.eye(A.shape[0]))
    assert fl.Schwarz(size=64).factor(backend.move(other)).report.stored == "float64"  # not definite
    indefinite = A - 20 * sp.diags((np.arange(A.shape[0]) == 5).astype(float))
    F.update(backend.move(sp.csr_matrix(indefinite.tocsr())))
    assert F.report.stored == "float64"


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_parts_of_a_general_matrix_are_read_in_single_precision_on_the_cpu(backend, dtype):
    """M is that of rounded L and D^-1 U, its transposes are of the same numbers, also after an update."""
    A, B = (sp.csr_matrix(c * sp.diags(1 + np.arange(99) % 7 / c) @ system("general", dtype)) for c in (1.0, 3.0))
    F = fl.Schwarz(size=12, coarse=None).factor(backend.move(A))
    single = {"float64": "float32", "complex128": "complex64"}[dtype]
    if backend.name != "cpu":
        assert F.report.stored == dtype
        return
    assert F.report.stored == single and F.local.dtype == dtype
    for S in (A, B):
        F.update(S)
        assert F.report.stored == single and F.report.stored_since is None
        L, U = F.local.L.toarray(), F.local.U.toarray()
        pivots = U.diagonal()[:, None]
        own = np.linalg.inv((L.astype(single).astype(dtype)) @ (pivots * (U / pivots).astype(single).astype(dtype)))
        want = np.empty_like(own)
        want[np.ix_(F.rows, F.rows)] = own
        for trans, M in (("N", want), ("T", want.T), ("H", want.conj().T)):
            assert_close(dense(F, trans, backend), M, 1e3, abs(want).max())
    precise = fl.Schwarz(parts=F.parts, coarse=None, precision="float64").factor(B)
    change = abs(dense(F, "N", backend) - dense(precise, "N", backend)).max()
    assert 1e-10 < change / abs(want).max() < 1e-6


def test_a_general_matrix_takes_as_many_iterations_in_single_precision():
    A = gallery.problem("convection_diffusion:12,peclet=10")
    b = values(A.shape[0], "float64")
    runs = [fl.bicgstab(A, b, M=fl.Schwarz(precision=p).factor(A), rtol=1e-10) for p in (None, "float64")]
    assert all(run.converged for run in runs) and abs(runs[0].iterations - runs[1].iterations) <= 1
    adjoint = fl.bicg(A, b, M=fl.Schwarz().factor(A), rtol=1e-10)
    assert adjoint.converged


def test_general_factors_with_small_pivots_keep_double():
    """Cells of two fields, the first with a tiny diagonal: rounded factors would change M by more than 1."""
    rng, k = np.random.default_rng(0), 12
    T = sp.diags([-1.3 * np.ones(k), 2.3 * np.ones(k), -np.ones(k)], [-1, 0, 1], (k, k))
    flow = sp.kron(sp.eye(k), T) + sp.kron(T, sp.eye(k))
    coupling = [sp.diags(5 * rng.uniform(0.8, 1.2, k * k)) for _ in range(2)]
    order = np.arange(2 * k * k).reshape(2, -1).T.ravel()

    def cells(tiny):
        A = sp.bmat([[sp.diags(tiny * rng.uniform(0.5, 1.5, k * k)), coupling[0]], [-coupling[1], flow]])
        return fl.as_csr(sp.csr_matrix(sp.csr_matrix(A)[order][:, order]))

    A, b, regular = cells(1e-10), rng.standard_normal(order.size), cells(10.0)
    F, G = fl.Schwarz(size=60).factor(A), fl.Schwarz(size=60, local=fl.ILU0()).factor(A)
    assert F.report.stored == "float64" and "changes M too much" in F.report.stored_since
    assert np.array_equal(F.solve(b), G.solve(b)) and np.array_equal(F.solve(b, "T"), G.solve(b, "T"))
    F.update(regular)
    assert F.report.stored == "float32" and F.report.stored_since is None
    assert_close(F.solve(b), fl.Schwarz(size=60).factor(regular).solve(b), 0)
    F.update(A)
    assert F.report.stored == "float64" and np.array_equal(F.solve(b), G.solve(b))
    for scale in (1e160, 1e-155, 1e-300):  # of A alone, not of L and D^-1 U
        assert fl.Schwarz(size=60).factor(regular.with_values(scale * regular.data)).report.stored == "float32"


def test_general_entries_beyond_single_precision_keep_double():
    """D^-1 U of 1e-45 would lose digits; the transposes are those of M all the same, and of an update that fits."""
    A = sp.lil_matrix(system("general"))
    A[0, 1] = A[1, 0] = 1e-45
    r = values(99, "float64")
    F, G = (fl.Schwarz(size=12, partition="natural", precision=p).factor(sp.csr_matrix(A)) for p in (None, "float64"))
    assert F.report.stored == "float64" and "beyond the range of single precision" in F.report.stored_since
    for trans in ("N", "T"):
        np.testing.assert_array_equal(F.solve(r, trans), G.solve(r, trans))
    A[0, 1] = A[1, 0] = -1.0
    F.update(sp.csr_matrix(A))
    assert F.report.stored == "float32"
    q = values(99, "float64", 1)
    assert abs(q @ F.solve(r) - F.solve(q, "T") @ r) < 1e-13 * np.linalg.norm(q) * np.linalg.norm(F.solve(r))


def test_entries_beyond_single_precision_keep_double(backend):
    """A coupling of 1e-45 of its diagonal would lose digits; the transposes are those of M all the same."""
    A = sp.lil_matrix(gallery.poisson5(11, 9))
    A[0, 1] = A[1, 0] = 1e-45
    A, r = sp.csr_matrix(A), values(99, "float64")
    F, G = (fl.Schwarz(size=12, precision=p).factor(backend.move(A)) for p in (None, "float64"))
    assert F.report.stored == G.report.stored == "float64"
    assert "beyond the range of single precision" in F.report.stored_since and G.report.stored_since is None
    for trans in ("N", "T"):
        x, y = (backend.fetch(H.solve(backend.move(r), trans)) for H in (F, G))
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(("dtype", "scale"), [("float64", 1e-309), ("float64", 2e307), ("complex128", 2e307)])
def test_pivots_without_an_inverse_keep_double(dtype, scale):
    """1 / pivot would overflow, and all entries with it, or would lose digits."""
    A = in_dtype(gallery.poisson5(11, 9), dtype)
    r = values(99, dtype)
    F = fl.Schwarz(size=12, coarse=None).factor(A)
    assert F.report.stored_since is None
    scaled = fl.Schwarz(size=12, coarse=None).factor(A * scale)
    assert scaled.report.stored == dtype and "single precision" in scaled.report.stored_since
    want = fl.Schwarz(size=12, coarse=None, precision="float64").factor(A * scale).solve(r * scale)
    assert np.isfinite(want).all()
    np.testing.assert_array_equal(scaled.solve(r * scale), want)
    F.update(A * scale)
    assert F.report.stored == dtype and F.report.stored_since


def near_ties(rng, blocks, m):
    """Definite blocks of m rows, of which the factors' entries lie in the middle of two numbers of single precision."""
    A = np.tile(np.eye(m) * 4, (blocks, 1, 1)) + np.diag(np.arange(m))
    A[:, range(m), range(m)] += rng.random((blocks, m))
    unit = np.float64(np.finfo(np.float32).eps)
    for j in range(m):
        for i in range(j + 1, m):
            middle = np.float64(rng.random((blocks,)).astype(np.float32)) / 8 + 1 / 4
            middle = np.float64(middle.astype(np.float32)) + unit / 8
            U = [np.linalg.cholesky(block[: j + 1, : j + 1]).T for block in A]
            pivots = np.array([u[j, j] ** 2 for u in U])
            sums = np.zeros(blocks)
            if j:
                inverse = np.linalg.inv(A[:, :j, :j])
                sums = np.einsum("bi,bij,bj->b", A[:, i, :j], inverse, A[:, :j, j])
            A[:, i, j] = A[:, j, i] = middle * pivots + sums
    return sp.csr_matrix(sp.block_diag(list(A)))


@pytest.mark.parametrize("m", [2, 4])
def test_rounding_to_single_precision_keeps_m_hermitian(m):
    """Each m x m block of M is symmetric to the rounding of the solves, though entries are ties."""
    A = near_ties(np.random.default_rng(2), 4000, m)
    F = fl.Schwarz(size=64, partition="natural", coarse=None).factor(A)
    assert F.report.stored == "float32"
    columns = [F.solve(np.tile(np.eye(m)[k], 4000)).reshape(4000, m) for k in range(m)]
    M = np.stack(columns, axis=2)
    np.testing.assert_allclose(M, M.transpose(0, 2, 1), rtol=1e-11, atol=1e-13)


def test_an_application_that_is_recorded_gives_the_same_bits(backend):
    """Also after an update, into an array of the caller's, and for the transpose."""
    A, B = (backend.move(sp.csr_matrix(c * system("general"))) for c in (1.0, 2.0))
    F = fl.Schwarz(size=12).factor(A)
    for S in (A, B):
        fresh = fl.Schwarz(size=12).factor(S)
        for trans in ("N", "T"):
            r = [backend.move(values(99, "float64", seed)) for seed in range(12)]
            want = [backend.fetch(fresh.solve(v.reshape(-1, 1), trans))[:, 0] for v in r]  # never recorded
            for v, x in zip(r, want, strict=True):
                np.testing.assert_array_equal(backend.fetch(F.solve(v, trans)), x)
            out = r[0].copy()
            assert F.solve(out, trans, out=out) is out
            np.testing.assert_array_equal(backend.fetch(out), want[0])
            assert (trans in F._recorded._graphs) == (backend.name == "cuda")
        again = pickle.loads(pickle.dumps(F))
        np.testing.assert_array_equal(backend.fetch(again.solve(r[0], "T")), want[0])
        F.update(B)


def test_factors_of_another_matrix_are_taken_as_they_are(backend):
    A = gallery.problem("poisson7:16")
    other = (A + sp.diags(np.linspace(0, 0.5, A.shape[0]))).tocsr()
    b = values(A.shape[0], "float64")
    F = fl.Schwarz(size=64).factor(backend.move(A))
    r = backend.move(b)
    assert not F.deflated.start(backend.move(other), backend.xp.zeros_like(r), r.copy())
    runs = [fl.cg(backend.move(other), backend.move(b), M=M, rtol=1e-10) for M in (F, _Plain(F))]
    assert all(run.converged for run in runs)
    assert abs(runs[0].iterations - runs[1].iterations) <= 2


@pytest.mark.parametrize(
    ("settings", "kind"), [({"combine": "additive"}, "hermitian"), ({"coarse": None}, "hermitian"), ({}, "general")]
)
def test_there_is_no_deflated_form_of_others(settings, kind):
    assert fl.Schwarz(size=12, **settings).factor(system(kind)).deflated is None


def test_parts_of_a_general_matrix_are_small_on_the_cpu(everywhere):
    general = gallery.convection_diffusion(24, 24, 24, peclet=50)
    assert fl.Schwarz().factor(general).report.parts == pytest.approx(24**3 / 64, rel=0.2)
    assert fl.Schwarz(coarse=None).factor(general).report.parts < 24**3 / 300
    everywhere("MOST_COARSE", 54)
    assert fl.Schwarz().factor(general).report.parts <= 60
    b = values(24**3, "float64")
    small, large = (
        fl.bicgstab(general, b, M=M.factor(general), rtol=1e-8) for M in (fl.Schwarz(size=64), fl.Schwarz(size=448))
    )
    assert small.converged and small.iterations < large.iterations


@pytest.mark.parametrize("kind", ["definite", "general", "complex", "one-sided"])
def test_a_coarse_matrix_has_factors_without_pivoting_on_the_cpu(monkeypatch, kind):
    A = gallery.poisson5(40, 40)
    if kind in ("general", "complex"):
        A = gallery.convection_diffusion(40, 40, 1, peclet=20)
    if kind == "complex":
        A = sp.csr_matrix(A + 0.1j * sp.eye(1600) + 0.2j * sp.tril(A, -1))
    if kind == "one-sided":  # the pattern of the coarse matrix is not symmetric
        A = sp.csr_matrix(sp.diags([3.0, -1, -1], [0, -1, -40], shape=(1600, 1600)))
    space = fl.Schwarz(size=32).factor(A).coarse
    solver = space._inverse
    assert type(solver).__name__ == "_Shared"
    with monkeypatch.context() as changed:
        changed.setattr(coarse_spaces, "MOST_FLOPS", 0)
        other = fl.Schwarz(size=32).factor(A).coarse._inverse
    assert type(other).__name__ == "_Sparse"
    g = values(space.size, A.dtype)
    for trans in "N" if kind == "definite" else "NH":
        np.testing.assert_allclose(solver(g, trans), other(g, trans), rtol=1e-10)


def test_a_coarse_matrix_that_needs_pivots_has_those_of_superlu(monkeypatch):
    rng = np.random.default_rng(2)
    indefinite = sp.csr_matrix(gallery.poisson5(40, 40) - 0.5 * sp.eye(1600))
    assert type(fl.Schwarz(size=32).factor(indefinite).coarse._inverse).__name__ == "_Sparse"
    monkeypatch.setattr(coarse_spaces, "GROWTH", 0.0)
    monkeypatch.setattr(coarse_spaces, "ROUNDINGS", 0.0)
    general = gallery.convection_diffusion(40, 40, 1, peclet=20)
    assert type(fl.Schwarz(size=32).factor(general).coarse._inverse).__name__ == "_Sparse"
    monkeypatch.undo()
    swaps = sp.kron(sp.eye(50), [[1e-13, 1.0], [-1.0, 1e-13]])  # by no order without pivots
    E = sp.csr_matrix(swaps + 1e-3 * sp.random(100, 100, 0.05, random_state=3))
    found, dropped = coarse_spaces.inverse(E, np.zeros(100, bool), np.dtype("float64"), False)
    assert type(found).__name__ == "_Sparse" and not dropped.any()
    g = rng.standard_normal(100)
    np.testing.assert_allclose(E @ found(g, "N"), g, atol=1e-9)


def scattered(n=14, dtype="float64"):
    """A diffusion of n^3 cells with conductivities from 10^-3 to 10^3 at random; complex: with other phases."""
    k = 10 ** np.random.default_rng(0).uniform(-3, 3, n**3)
    S = sp.triu(gallery.poisson7(n, n, n), 1).tocsr()
    i, j = S.nonzero()
    S.data[:] = -2 / (1 / k[i] + 1 / k[j])
    S = sp.csr_matrix(S + S.T)
    S = (S - sp.diags(np.asarray(S.sum(axis=1)).ravel() - 1e-3)).astype(dtype)
    if S.dtype.kind == "c":
        D = sp.diags(np.exp(1j * np.arange(n**3)))
        S = D @ S @ D.conj()
        S.setdiag(S.diagonal().real)
    S = sp.csr_matrix(S)
    S.sort_indices()
    return S


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_parts_of_scattered_strong_couplings_have_factors_by_threshold(dtype):
    """They save iterations; M stays Hermitian, and nearly the same, in single precision."""
    A = scattered(dtype=dtype)
    b = values(A.shape[0], dtype)
    F, G, H = (fl.Schwarz(**given).factor(A) for given in ({}, {"precision": "float64"}, {"local": "ILU0"}))
    assert F.report.local == G.report.local == repr(fl.ICT(drop_tol=1e-2)) and F.report.warning is None
    assert (F.report.stored, G.report.stored) == ({"float64": "float32", "complex128": "complex64"}[dtype], dtype)
    counts = [fl.cg(A, b, M=M, rtol=1e-8).iterations for M in (F, G, H)]
    assert abs(counts[0] - counts[1]) <= 1 and counts[0] < 0.75 * counts[2]
    x, y = F.solve(b), G.solve(b)
    assert 0 < abs(x - y).max() < 1e-5 * abs(y).max()
    c = values(A.shape[0], dtype, 1)
    one, two = np.vdot(c, x), np.vdot(F.solve(c), b)
    assert abs(one - two) < 1e-12 * np.linalg.norm(c) * np.linalg.norm(x)
    np.testing.assert_array_equal(F.solve(b, "H"), x)
    B = A * 3 + 0.1 * sp.diags(A.diagonal())
    F.update(sp.csr_matrix(B))
    np.testing.assert_array_equal(F.solve(b), fl.Schwarz(parts=F.parts).factor(sp.csr_matrix(B)).solve(b))


def test_factors_by_threshold_are_left_where_a_pivot_is_not_positive():
    """An indefinite A whose ILU0 has positive pivots: the parts have these, and the report says why."""
    A = scattered(6)
    block = np.array([[1, -0.7, 0, 0.6], [-0.7, 1, 0.4, 0], [0, 0.4, 1, -0.5], [0.6, 0, -0.5, 1]])
    A = sp.csr_matrix(sp.block_diag([sp.csr_matrix(block), A]))
    F = fl.Schwarz(size=50, coarse=None).factor(A)
    assert F.report.local == "ILU0()" and "ILU0 instead" in F.report.warning and "pivot" in F.report.warning
    F.update(A)
    assert "ILU0 instead" in F.report.warning
    plain = fl.Schwarz(size=50, coarse=None, local="ILU0", precision="float64").factor(A)
    b = values(A.shape[0], "float64")
    np.testing.assert_allclose(F.solve(b), plain.solve(b), rtol=1e-4)
    tame = A.copy()
    first = slice(tame.indptr[4])
    tame.data[first] = np.where(tame.data[first] == 1, 1, 0.3 * tame.data[first])
    F = fl.Schwarz(size=50, coarse=None).factor(tame)
    assert "ICT" in F.report.local and F.report.warning is None
    F.update(A)  # as factoring anew
    assert F.report.local == "ILU0()" and "ILU0 instead" in F.report.warning
    np.testing.assert_allclose(F.solve(b), plain.solve(b), rtol=1e-4)


def test_factors_by_threshold_are_left_where_they_would_move_dense_rows():
    A = sp.lil_matrix(scattered(20))
    n = A.shape[0]
    A[0, 1:], A[1:, 0], A[0, 0] = -1e-3, -1e-3, 1e-2 * n
    F = fl.Schwarz(parts=2).factor(sp.csr_matrix(A))
    assert F.report.local == "ILU0()" and "dense rows" in F.report.warning


@pytest.mark.parametrize("contrast", [1e2, 1e4, 1e15, 1e20])
def test_strong_pairs_are_seen_at_any_contrast(contrast):
    n = 400
    strong = np.where(np.arange(n - 1) % 20 == 0, contrast, 1.0)
    A = as_csr(
        sp.diags_array(
            [-strong, np.full(n, 3.0) + np.append(strong, 0) + np.append(0, strong), -strong], offsets=[-1, 0, 1]
        )
    )
    assert has_strong_pairs(A)
    assert not has_strong_pairs(as_csr(gallery.poisson5(20)))


@pytest.mark.parametrize("kind", ["hermitian", "general"])
@pytest.mark.parametrize("near", [False, True])
def test_any_number_of_columns_has_the_bits_of_each(kind, near):
    A = gallery.poisson5(30) if kind == "hermitian" else gallery.convection_diffusion(30, 30, 1, peclet=3)
    B = np.column_stack([np.ones(900), np.arange(900.0) / 900]) if near else None
    F = fl.Schwarz(size=64, near_nullspace=B).factor(A)
    R = values((900, 11), "float64")
    for k, trans in product((2, 3, 4, 7, 8, 9, 11), "NT"):
        X = F.apply(R[:, :k], trans=trans)
        for c in range(k):
            np.testing.assert_array_equal(X[:, c], F.apply(np.ascontiguousarray(R[:, c]), trans=trans))


def test_singular_coarse_matrices_that_need_pivots_lose_a_vector(monkeypatch):
    """Without pivoting the last pivot of such a matrix is rounding times growth: no pivot alone shows it."""
    rng, lost = np.random.default_rng(0), []
    for _ in range(40):
        E = sp.random(60, 60, density=0.1, random_state=rng, data_rvs=rng.standard_normal).toarray()
        np.fill_diagonal(E, np.where(rng.random(60) < 0.3, 10 ** rng.uniform(-2, -1, 60), rng.uniform(0.5, 2, 60)))
        for i in range(60):
            j = next((j for j in np.flatnonzero(E[i]) if j != i), (i + 1) % 60)
            E[i, j] = 0
            E[i, j] = -E[i].sum()
        given = sp.csr_matrix(E), np.zeros(60, bool), np.dtype(float), False
        with monkeypatch.context() as pivots:
            pivots.setattr(coarse_spaces, "_without_pivoting", lambda *_: None)
            expected = inverse(*given)[1]
        np.testing.assert_array_equal(inverse(*given)[1], expected)
        lost.append(expected.sum())
    assert np.mean(lost) > 0.9
