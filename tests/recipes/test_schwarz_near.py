"""Near null spaces that Schwarz finds: the nodes of a matrix, their constants, and smoothed random vectors."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import assert_close, in_dtype, values

import finelu as fl
from finelu import ParameterError, gallery
from finelu.matrix import as_csr
from finelu.preconditioners.schwarz.adaptive import ADDED, SLOW, constants, nodes_of, smoothed, smoothed_together


def rotations(nx, ny, nz):
    axes = np.arange(nz + 1), np.arange(ny + 1), np.arange(1, nx + 1)
    z, y, x = np.meshgrid(*axes, indexing="ij")
    return fl.rigid_body_modes(np.column_stack([x.ravel(), y.ravel(), z.ravel()]))[:, 3:]


def iterations(A, F, move=np.asarray):
    solution = fl.cg(A, move(values(A.shape[0], "float64", 3)), M=F, rtol=1e-8)
    assert solution.converged
    return solution.iterations


def distance(v, F, near, parts):
    """The part of v that no combination of near's columns in each part makes."""
    left = 0.0
    for part in range(F.report.parts):
        B, w = near[parts == part], v[parts == part]
        left += np.linalg.norm(w - B @ np.linalg.lstsq(B, w, rcond=None)[0]) ** 2
    return np.sqrt(left) / np.linalg.norm(v)


def test_nodes_are_rows_with_the_same_columns(backend):
    A = gallery.elasticity(4, 3, 3)
    nodes = nodes_of(as_csr(backend.move(A)))
    assert nodes.size == 3
    assert_close(nodes.starts, np.arange(0, A.shape[0] + 1, 3), ulps=0)
    kept = np.delete(np.arange(A.shape[0]), [0, 5, 7, 8])  # nodes of two, two and one unknowns
    nodes = nodes_of(as_csr(backend.move(sp.csr_matrix(A[kept][:, kept]))))
    assert nodes.size == 3
    assert_close(nodes.starts[:4], [0, 2, 4, 5], ulps=0)
    assert nodes_of(as_csr(backend.move(gallery.poisson7(5)))) is None


@pytest.mark.parametrize("name", ["elasticity:4,3,3", "elastic_triangles:3"])
def test_the_unknowns_of_a_node_may_lie_anywhere(backend, name):
    """Field by field, and in an order at random: the nodes come in the order of their first rows."""
    A, by_field = gallery.problem(name), gallery.problem(f"{name},by_field=True")
    size = 3 if name.startswith("elasticity") else 2
    count = A.shape[0] // size
    device = as_csr(backend.move(by_field))
    nodes = nodes_of(device)
    assert nodes.size == size
    assert_close(backend.fetch(nodes.of_rows(device)), np.tile(np.arange(count), size), ulps=0)
    assert_close(backend.fetch(constants(nodes, device)), np.repeat(np.eye(size), count, axis=0), ulps=0)
    order = np.random.default_rng(0).permutation(A.shape[0])
    device = as_csr(backend.move(sp.csr_matrix(A[order][:, order])))
    found = backend.fetch(nodes_of(device).of_rows(device))
    firsts = np.unique(found, return_index=True)[1]
    assert (np.diff(firsts) > 0).all() and firsts.size == count
    assert (order[firsts][found] // size == order // size).all()


def test_iterations_do_not_depend_on_the_order_of_the_unknowns(backend):
    counts = []
    for by_field in (False, True):
        A = gallery.elasticity(60, 4, 4, by_field=by_field)
        F = fl.Schwarz(near_nullspace="auto").factor(backend.move(A))
        assert F.report.near_null_vectors == 3 + 2 * ADDED
        counts.append(iterations(backend.move(A), F, backend.move))
    assert counts[1] <= 1.2 * counts[0]


@pytest.mark.parametrize("by_field", [False, True])
def test_the_matrix_of_nodes_has_the_sums_of_magnitudes(backend, by_field):
    A = gallery.elasticity(4, 3, 3)
    device = as_csr(backend.move(gallery.elasticity(4, 3, 3, by_field=by_field)))
    found = backend.fetch(nodes_of(device).matrix(device).tosparse()).toarray()
    count = A.shape[0] // 3
    assert_close(found, abs(A.toarray()).reshape(count, 3, count, 3).sum(axis=(1, 3)), ulps=64)


def test_parts_consist_of_nodes_and_the_coarse_space_spans_their_constants(backend):
    A = gallery.elasticity(8, 5, 5)
    F = fl.Schwarz(near_nullspace="auto", size=60).factor(backend.move(A))
    parts = backend.fetch(F.parts)
    assert (parts.reshape(-1, 3) == parts[::3, None]).all() and F.report.parts > 8
    for unknown in range(3):
        x = np.tile(np.eye(3)[unknown], parts.size // 3) * (parts == 2)
        assert_close(backend.fetch(F.solve(backend.move(A @ x))), x, ulps=2**18)  # so is M A x = x in the balanced form


@pytest.mark.parametrize("make", [lambda B: B, fl.BlockMatrix.from_bsr], ids=["bsr", "BlockMatrix"])
def test_the_blocks_of_the_input_are_its_nodes(make):
    A = gallery.elasticity(9, 3, 3)
    for size, given in ((3, A), (6, make(A.tobsr((6, 6))))):
        F = fl.Schwarz(near_nullspace="auto", size=60).factor(given)
        assert (F.parts.reshape(-1, size) == F.parts[::size, None]).all()
        np.testing.assert_array_equal(F._near[:, :size], np.tile(np.eye(size), (A.shape[0] // size, 1)))


def test_without_nodes_and_with_fast_convergence_the_factors_are_those_of_the_constant(backend):
    A = backend.move(gallery.poisson7(12))
    F, G = (fl.Schwarz(near_nullspace=near).factor(A) for near in ("auto", None))
    r = backend.move(values(1728, "float64", 1))
    np.testing.assert_array_equal(backend.fetch(F.solve(r)), backend.fetch(G.solve(r)))
    assert F.report.near_null_vectors == 1 and F.report.expected_iterations <= SLOW
    assert G.report.expected_iterations is None


def test_vectors_are_added_to_a_long_bar_and_are_near_to_rotations(backend):
    shape = 60, 4, 4
    A = gallery.elasticity(*shape)
    F = fl.Schwarz(near_nullspace="auto").factor(backend.move(A))
    assert F.report.near_null_vectors == 3 + 2 * ADDED
    near, parts = backend.fetch(F._near), backend.fetch(F.parts)
    random = np.column_stack([near[:, :3], values((A.shape[0], 6), "float64", 2)])
    for mode in rotations(*shape).T:
        before = distance(mode, F, near[:, :3], parts)
        assert distance(mode, F, near, parts) < 0.25 * before
        assert distance(mode, F, random, parts) > 0.8 * before


def test_iterations_hardly_grow_with_the_length_of_a_bar():
    counts = [iterations(A, fl.Schwarz(near_nullspace="auto").factor(A)) for A in map(bar, (40, 120))]
    assert counts[1] <= 1.5 * counts[0]
    A = bar(120)
    translations = np.tile(np.eye(3), (A.shape[0] // 3, 1))
    assert iterations(A, fl.Schwarz(near_nullspace=translations).factor(A)) > 2.5 * counts[1]


def bar(length):
    return gallery.elasticity(length, 4, 4)


def test_few_iterations_are_expected_of_good_factors_and_many_of_bad_ones():
    A = as_csr(bar(60))
    translations = constants(nodes_of(A), A)
    exact = np.column_stack([translations, rotations(60, 4, 4)])
    few, many = (smoothed(fl.Schwarz(near_nullspace=B).factor(A), A, 0)[1] for B in (exact, translations))
    assert few < SLOW < many


@pytest.mark.parametrize("levels", [2, 3])
@pytest.mark.parametrize("combine", ["balanced", "additive"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_vectors_smoothed_together_are_those_of_each_alone(dtype, combine, levels):
    A = as_csr(in_dtype(bar(60), dtype))
    F = fl.Schwarz(near_nullspace="auto", size=12, combine=combine, levels=levels).factor(A)
    assert (F.report.coarse_steps is not None) == (levels == 3)
    together = smoothed_together(F, A, (1, 4, 2))
    assert len(together) == 3
    for v, number in zip(together, (1, 4, 2), strict=True):
        np.testing.assert_array_equal(v, smoothed(F, A, number)[0])


def test_a_vector_that_ends_early_ends_alone():
    """On a matrix that is not definite a curvature is negative, at another step for each vector."""
    A = as_csr(bar(20))
    F = fl.Schwarz(near_nullspace=constants(nodes_of(A), A), size=60).factor(A)
    C = A.with_values(A.data - 0.02 * np.bincount(A.diag, minlength=A.nnz))
    alone = [smoothed(F, C, number) for number in (1, 2)]
    assert all(iterations == np.inf for _, iterations in alone)
    for v, (x, _) in zip(smoothed_together(F, C, (1, 2)), alone, strict=True):
        np.testing.assert_array_equal(v, x)


def test_the_matrix_of_nodes_is_made_once():
    A = as_csr(bar(10))
    nodes = nodes_of(A)
    assert nodes.matrix(A) is nodes.matrix(A)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_other_dtypes(backend, dtype):
    A = bar(16).astype(dtype)
    D = sp.diags(np.exp(1j * np.arange(A.shape[0]))) if dtype == "complex128" else sp.identity(A.shape[0], dtype=dtype)
    A = sp.csr_matrix(D @ A @ D.conj().T).astype(dtype)
    b = values(A.shape[0], dtype, 3)
    counts = []
    for near in (None, "auto"):
        F = fl.Schwarz(near_nullspace=near).factor(backend.move(A))
        solution = fl.cg(backend.move(A), backend.move(b), M=F, rtol=1e-3)
        assert solution.converged
        counts.append(solution.iterations)
    assert counts[1] < 0.7 * counts[0]


def test_a_general_matrix_takes_the_constants_alone(backend):
    A = gallery.elasticity(8, 5, 5)
    A.data *= np.random.default_rng(0).uniform(0.999, 1, A.nnz)
    F = fl.Schwarz(near_nullspace="auto").factor(backend.move(A))
    assert F.report.near_null_vectors == 3 and F.report.expected_iterations is None
    assert fl.gmres(backend.move(A), backend.move(values(A.shape[0], "float64", 3)), M=F, rtol=1e-8).converged


def test_update_keeps_the_vectors_and_the_bits_are_those_of_any_run():
    A = bar(60)
    F, G = (fl.Schwarz(near_nullspace="auto").factor(A) for _ in range(2))
    near, r = F._near.copy(), values(A.shape[0], "float64", 1)
    np.testing.assert_array_equal(F.solve(r), G.solve(r))
    F.update(2 * A)
    np.testing.assert_array_equal(F._near, near)
    assert_close(F.solve(r), G.solve(r) / 2, ulps=2**30)


@pytest.fixture
def threads():
    """finelu.set_num_threads; afterwards as many threads as before."""
    before = fl.get_num_threads()
    yield fl.set_num_threads
    fl.set_num_threads(before)


def test_bits_do_not_depend_on_threads(threads):
    A, found = bar(60), []
    for number in (1, 2):
        threads(number)
        found.append(fl.Schwarz(near_nullspace="auto").factor(A)._near)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize("wrong", ["modes", 3, True])
def test_what_is_no_near_null_space(wrong):
    with pytest.raises(ParameterError, match="must be an array"):
        fl.Schwarz(near_nullspace=wrong)
    with pytest.raises(ParameterError, match="a near null space is for a coarse space"):
        fl.Schwarz(near_nullspace="auto", coarse=None)
