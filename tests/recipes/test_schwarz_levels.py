"""Schwarz on several levels: the coarse matrix is solved by Schwarz again."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
from checks import assert_close, in_dtype, values

import finelu as fl
from finelu import MatrixError, ParameterError, ZeroPivot, gallery
from finelu.preconditioners.schwarz import factors as schwarz_factors
from finelu.preconditioners.schwarz import levels, spectrum

NEAR = {"constant": None, "near": 2}


@pytest.fixture(autouse=True)
def small(meanwhile):
    """The coarse matrices of these tests have levels though they are small."""
    meanwhile(levels, FEWEST=0, PARTS=0)


def dense(F, backend, trans="N"):
    eye = np.eye(F.shape[0], dtype=F.dtype)
    return np.stack([backend.fetch(F.solve(backend.move(column.copy()), trans)) for column in eye], axis=1)


def hermitian(dtype="float64", side=12):
    """A definite matrix; if complex, with couplings of other phases."""
    A = gallery.poisson5(side, side)
    phases = np.exp(1j * np.linspace(0, 5, A.shape[0])) if np.dtype(dtype).kind == "c" else np.ones(A.shape[0])
    D = sp.diags(phases)
    return sp.csr_matrix(D @ A @ D.conj()).astype(dtype)


def solved(A, F, backend, rtol=1e-8):
    b = values(A.shape[0], A.dtype)
    found = fl.cg(backend.move(A), backend.move(b), M=F, rtol=rtol)
    assert found.converged
    return found.iterations


@pytest.mark.parametrize("dtype", ["float64", "complex64", "complex128"])
@pytest.mark.parametrize("near", NEAR)
@pytest.mark.parametrize(("combine", "count"), [("balanced", 3), ("balanced", 4), ("additive", 3)])
def test_it_is_hermitian_and_definite_where_a_is(backend, meanwhile, dtype, near, combine, count):
    meanwhile(levels, SIZE=6, NODES=3)
    A = hermitian(dtype)
    B = None if NEAR[near] is None else values((A.shape[0], 2), dtype, 4)
    F = fl.Schwarz(size=6, levels=count, combine=combine, near_nullspace=B).factor(backend.move(A))
    assert len(F.report.rows_of_levels) == count and F.report.coarse_steps > 1
    M = dense(F, backend)
    assert_close(M, M.conj().T, 1e4, abs(M).max())
    assert np.linalg.eigvalsh((M + M.conj().T) / 2).min() > 0
    assert_close(dense(F, backend, "T"), M.T, 1e4, abs(M).max())


@pytest.mark.parametrize("kind", ["general", "symmetric", "indefinite"])
@pytest.mark.parametrize("near", NEAR)
def test_transposes_of_others_are_those_of_m(backend, meanwhile, kind, near):
    meanwhile(levels, SIZE=6, NODES=3)
    A = gallery.poisson5(12, 12)
    if kind == "general":
        A = sp.csr_matrix(A + 0.3 * sp.eye(144, k=1))
    elif kind == "symmetric":
        A = sp.csr_matrix(A + 0.5j * sp.eye(144))
    else:
        A = sp.csr_matrix(A - 8.0 * sp.diags((np.arange(144) == 7).astype(float)))
    B = None if NEAR[near] is None else values((144, 2), A.dtype, 4)
    F = fl.Schwarz(size=6, levels=3, near_nullspace=B).factor(backend.move(A))
    assert F.report.coarse_steps == 1 and len(F.report.rows_of_levels) == 3
    M = dense(F, backend)
    for trans, want in (("T", M.T), ("H", M.conj().T)):
        assert_close(dense(F, backend, trans), want, 1e4, abs(M).max())
    b = values(144, A.dtype)
    assert fl.gmres(backend.move(A), backend.move(b), M=F, rtol=1e-8, maxiter=200).converged


@pytest.mark.parametrize("near", NEAR)
def test_a_coarse_solve_leaves_a_small_part_of_an_error(backend, meanwhile, near):
    """In the norm of E, as the polynomial of Chebyshev promises; and less of it where cg begins."""
    meanwhile(levels, SIZE=16, NODES=8)
    A = hermitian(side=32)
    B = None if NEAR[near] is None else np.column_stack([np.ones(1024), np.arange(1024) / 1024])
    F = fl.Schwarz(size=8, levels=3, near_nullspace=B).factor(backend.move(A))
    E = backend.fetch(F.coarse.levels._E.tosparse()).toarray()
    exact = values(E.shape[0], "float64")
    g = E @ exact
    for solve, left in ((F.coarse.solve, 1.5 * spectrum.ERROR), (lambda v: F.coarse.closely(v)[0], 1e-5)):
        error = backend.fetch(solve(backend.move(g))) - exact
        assert error @ E @ error <= left**2 * (exact @ g)


@pytest.mark.parametrize("scale", [1e6, 1e14, 1e20])
def test_rows_of_a_large_scale_do_not_hide_the_spectrum_of_others(backend, scale):
    """Rows of a penalty on a face, or an uncoupled piece: an error in the other rows is left as small as elsewhere."""
    face = np.repeat([1.0, 0.0], [400, 7600])
    penalty = sp.csr_matrix(gallery.problem("poisson7:20") + sp.diags(scale * face))
    piece = gallery.problem("poisson5:30")
    pieces = sp.csr_matrix(sp.block_diag([scale * (piece + 2 * sp.eye(900)), piece @ piece]))
    for A, size in ((penalty, 8), (pieces, 4)):
        coarse = fl.Schwarz(size=size, levels=3).factor(backend.move(A)).coarse
        E = backend.fetch(coarse.levels._E.tosparse()).toarray()
        low = E.diagonal() < 1e-3 * scale
        exact = np.where(low, values(low.size, "float64"), 0)
        g = np.where(low, E @ exact, 0)
        error = backend.fetch(coarse.solve(backend.move(g)))[low] - exact[low]
        assert error @ E[np.ix_(low, low)] @ error <= (2 * spectrum.ERROR) ** 2 * (exact @ g)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64"])
def test_the_search_for_a_spectrum_of_one_value_ends(backend, dtype):
    """Without couplings of parts, of any scale: after a step of Lanczos only rounding is left."""
    block = sp.diags([np.full(3, -1.0), np.full(4, 2.0), np.full(3, -1.0)], [-1, 0, 1])
    A = sp.csr_matrix(sp.block_diag([scale * block for scale in np.logspace(-6, 6, 100)])).astype(dtype)
    F = fl.Schwarz(parts=np.arange(400) // 4, levels=3).factor(backend.move(A))
    solver = F.coarse.levels
    least, most = solver._middle - solver._half, solver._middle + solver._half
    np.testing.assert_allclose((least, most), (1, spectrum.MARGIN), rtol=1e-4)
    assert solved(A, F, backend, 1e-5) <= 2


def test_a_coarse_solve_is_definite_where_the_spectrum_is_wider_than_the_interval(backend, meanwhile):
    meanwhile(levels, SIZE=16, NODES=8)
    A = backend.move(hermitian(side=32))
    for middle, half in ((0.6, 0.3), (0.6, 0.4), (0.4, 0.2)):
        meanwhile(levels.CoarseLevels, _spectrum=lambda self, ends=(middle, half): ends)
        solver = fl.Schwarz(size=8, levels=3).factor(A).coarse.levels
        columns = [backend.fetch(solver(backend.move(v.copy()), "N")) for v in np.eye(solver.factors.shape[0])]
        found = np.stack(columns, axis=1)
        assert_close(found, found.T, 1e4, abs(found).max())
        assert np.linalg.eigvalsh((found + found.T) / 2).min() > 0


def test_the_coarse_matrix_is_that_of_two_levels(backend):
    A, B = hermitian(), values((144, 2), "float64", 4)
    F = fl.Schwarz(size=6, levels=3, near_nullspace=B).factor(backend.move(A))
    Z, parts = backend.fetch(F.coarse.Z), backend.fetch(F.parts)
    full = np.zeros((144, F.coarse.size))
    for i in range(144):
        full[i, 2 * parts[i] : 2 * parts[i] + 2] = Z[i]
    E = backend.fetch(F.coarse.levels._E.tosparse()).toarray()
    assert_close(E, full.T @ A.toarray() @ full, 1e3, abs(E).max())
    np.testing.assert_array_equal(E, E.T)
    assert_close(full @ backend.fetch(levels.coefficients(F.coarse, backend.move(B))), B, 1e3)


def test_iterations_do_not_grow_with_the_grid(backend):
    counts = []
    for side in (30, 60):
        A = gallery.problem(f"poisson7:{side}")
        F = fl.Schwarz(size=64, levels=3).factor(backend.move(A))
        counts.append(solved(A, F, backend))
    assert counts[1] <= 1.1 * counts[0] and counts[1] < 30


def test_they_are_as_many_as_on_two_levels(backend):
    """Also with 10^-12, where a coarse solve that is not exact might disturb cg."""
    A = gallery.problem("poisson5:128")
    for rtol in (1e-8, 1e-12):
        two, three = (
            solved(A, fl.Schwarz(size=25, levels=count).factor(backend.move(A)), backend, rtol) for count in (2, 3)
        )
        assert three <= two + 2


def test_auto_takes_levels_where_the_coarse_matrix_is_large(backend, meanwhile):
    A = backend.move(gallery.problem("poisson7:16"))
    few = fl.Schwarz(size=64).factor(A)
    assert few.report.rows_of_levels == (4096, 64) and few.report.coarse_steps is None
    meanwhile(schwarz_factors, MOST_INVERTED=63, MOST_FACTORED=63)
    meanwhile(levels, SPARSE=0)
    many = fl.Schwarz(size=64).factor(A)
    assert many.report.rows_of_levels[:2] == (4096, 64) and many.report.coarse_steps > 1
    assert many.nnz > few.nnz
    general = sp.csr_matrix(gallery.problem("poisson7:16") + 0.3 * sp.eye(4096, k=1))
    assert fl.Schwarz(size=64).factor(backend.move(general)).report.coarse_steps is None
    assert fl.Schwarz(size=64, levels=2).factor(A).report.coarse_steps is None


def test_auto_factors_a_large_coarse_matrix_on_the_cpu_where_its_factors_are_sparse(backend, meanwhile):
    meanwhile(schwarz_factors, MOST_INVERTED=63, MOST_FACTORED=63)
    A, b = gallery.problem("poisson5:64"), np.ones(4096)
    M = fl.Schwarz(size=64).factor(backend.move(A))
    assert (M.report.coarse_steps is None) == (backend.name == "cpu") and M.report.warning is None
    assert fl.Schwarz(size=64, levels=3).factor(backend.move(A)).report.coarse_steps > 1
    meanwhile(levels, SPARSE=1)
    other = fl.Schwarz(size=64).factor(backend.move(A))
    assert other.report.coarse_steps > 1
    M.update(backend.move(2 * A))
    assert_close(backend.fetch(M @ backend.move(b)), backend.fetch(other @ backend.move(b)) / 2, 1e13)
    meanwhile(levels, SPARSE=100, FACTORED=63)
    assert fl.Schwarz(size=64).factor(backend.move(A)).report.coarse_steps > 1


@pytest.mark.parametrize("neumann", [False, True])
def test_levels_end_where_a_coarse_matrix_is_small(backend, meanwhile, neumann):
    """However many are asked for; also of a singular matrix, where only rounding would be left in the end."""
    meanwhile(levels, FEWEST=512, PARTS=4)
    for side, large in ((12, (1728,)), (20, (8000, 1000)), (28, (21952, 2744))):
        A = gallery.problem(f"poisson7:{side}")
        if neumann:
            A = sp.csr_matrix(A - sp.diags(np.asarray(A.sum(axis=1)).ravel()))
        F = fl.Schwarz(size=8, levels=20).factor(backend.move(A))
        rows = F.report.rows_of_levels
        assert rows[:-1] == large and rows[-1] <= 512
        b = A @ values(A.shape[0], A.dtype)
        assert fl.cg(backend.move(A), backend.move(b), M=F, rtol=1e-8).iterations < 40


def test_a_coarse_matrix_of_few_parts_has_no_levels(backend, meanwhile):
    meanwhile(levels, PARTS=4)
    A = backend.move(gallery.problem("poisson5:48"))
    for near, parts, want in ((2, 127, 2), (2, 128, 3), (8, 63, 2), (8, 64, 3)):
        B = values((2304, near), "float64")
        F = fl.Schwarz(parts=np.arange(2304) * parts // 2304, near_nullspace=B, levels=3).factor(A)
        assert len(F.report.rows_of_levels) == want


def test_two_levels_are_auto_where_the_parts_are_given(backend):
    A, r = backend.move(hermitian()), backend.move(values(144, "float64"))
    one, two = (fl.Schwarz(size=12, levels=count).factor(A).solve(r) for count in ("auto", 2))
    np.testing.assert_array_equal(backend.fetch(one), backend.fetch(two))


@pytest.mark.parametrize("near", NEAR)
def test_an_update_keeps_the_levels(backend, near):
    A = hermitian(side=24)
    other = sp.csr_matrix(A + sp.diags(np.linspace(0, 1, 576)))
    B = None if NEAR[near] is None else values((576, 2), "float64", 4)
    r = backend.move(values(576, "float64"))
    F = fl.Schwarz(size=6, levels=3, near_nullspace=B).factor(backend.move(A))
    coarse = F.coarse.levels.factors
    F.update(backend.move(other))
    assert F.coarse.levels.factors is coarse
    fresh = fl.Schwarz(parts=F.parts, levels=3, near_nullspace=B).factor(backend.move(other))
    np.testing.assert_array_equal(backend.fetch(F.solve(r)), backend.fetch(fresh.solve(r)))
    assert F.report.coarse_steps == fresh.report.coarse_steps
    F.update(backend.move(sp.csr_matrix(A + 0.1 * sp.triu(A, 1))))  # no longer Hermitian
    assert F.report.coarse_steps == 1


def test_a_copy_is_the_same(backend):
    A, r = backend.move(hermitian()), backend.move(values(144, "float64"))
    F = fl.Schwarz(size=6, levels=3).factor(A)
    again = pickle.loads(pickle.dumps(F))
    np.testing.assert_array_equal(backend.fetch(again.solve(r)), backend.fetch(F.solve(r)))


@pytest.mark.parametrize("pieces", [1, 2])
def test_singular_consistent_systems_are_solved(backend, pieces):
    """Neumann problems, whose coarse matrices are singular on each level."""
    piece = gallery.poisson5(24, 24)
    piece = sp.csr_matrix(piece - sp.diags(np.asarray(piece.sum(axis=1)).ravel()))
    A = sp.csr_matrix(sp.block_diag([piece] * pieces))
    b = A @ values(A.shape[0], "float64")
    F = fl.Schwarz(size=6, levels=3).factor(backend.move(A))
    found = fl.cg(backend.move(A), backend.move(b), M=F, rtol=1e-8)
    assert found.converged and found.iterations < 40


def test_a_part_that_is_a_singular_piece_has_no_coarse_vector(backend):
    """Its constant has no energy: the coarse matrix has a row of zeros there, or stores none."""
    ring = gallery.poisson5(2, 2) - 2 * sp.eye(4)
    A = sp.csr_matrix(sp.block_diag([ring, gallery.poisson5(8, 8)]))
    F = fl.Schwarz(parts=np.r_[0, 0, 0, 0, 1 + np.arange(64) // 4], levels=3).factor(backend.move(A))
    assert F.report.coarse_dropped == 1 and F.report.coarse_rank == 16
    b = A @ values(68, "float64")
    assert fl.cg(backend.move(A), backend.move(b), M=F, rtol=1e-8).converged
    constant = backend.move((np.arange(68) < 4).astype(float))
    for solve in (F.coarse.solve, lambda g: F.coarse.closely(g)[0]):
        assert not backend.fetch(solve(F.coarse.restrict(constant))).any()
        full = backend.fetch(solve(backend.move(values(17, "float64"))))
        assert full[0] == 0 and full[1:].all()
    want = backend.fetch(fl.Schwarz(parts=F.parts, levels=2).factor(backend.move(A)).solve(constant))
    assert_close(backend.fetch(F.solve(constant)), want, 1e3)


@pytest.mark.parametrize("near", NEAR)
def test_a_part_without_energy_that_others_couple_to_is_an_error(backend, meanwhile, near):
    """Its vector is not in the null space of A, and two levels use it; with "auto" these are taken."""
    meanwhile(schwarz_factors, MOST_INVERTED=10, MOST_FACTORED=10)
    meanwhile(levels, FACTORED=10)
    A = sp.csr_matrix(gallery.problem("poisson7:8") - 3 * sp.eye(512))
    grid = np.arange(8) // 2
    parts = (16 * grid[:, None, None] + 4 * grid[:, None] + grid).ravel()  # no constant of a part has an energy
    weak = sp.diags(np.where(parts < 32, 1.0, 0))
    some = sp.csr_matrix(A + 0.5 * weak)
    B = None if NEAR[near] is None else np.column_stack([np.ones(512), np.tile([1.0, -1.0], 256)])
    for matrix in (A, some):
        with pytest.raises(
            (MatrixError, ZeroPivot), match="not positive"
        ):  # the second if an energy is rounding above 0
            fl.Schwarz(parts=parts, levels=3, near_nullspace=B).factor(backend.move(matrix))
        F, two = (
            fl.Schwarz(parts=parts, levels=count, near_nullspace=B).factor(backend.move(matrix))
            for count in ("auto", 2)
        )
        assert F.coarse.rank == two.coarse.rank > 0 and "no further levels" in F.report.warning
        r = backend.move(values(512, "float64"))
        np.testing.assert_array_equal(backend.fetch(F.solve(r)), backend.fetch(two.solve(r)))


@pytest.mark.parametrize("near", NEAR)
@pytest.mark.parametrize("count", [2, 3, "auto"])
def test_singular_pieces_alone_leave_no_coarse_vector(backend, meanwhile, count, near):
    """Each part is one; the second vector depends on the first, so that energies and couplings are rounding or 0."""
    meanwhile(schwarz_factors, MOST_INVERTED=10, MOST_FACTORED=10)
    ring = gallery.poisson5(2, 2) - 2 * sp.eye(4)
    A = sp.csr_matrix(sp.block_diag([ring] * 20))
    B = None if NEAR[near] is None else np.column_stack([np.ones(80), np.full(80, 0.3)])
    with pytest.raises(MatrixError, match="nothing but rounding is left of the coarse matrix"):
        fl.Schwarz(parts=np.arange(80) // 4, levels=count, near_nullspace=B).factor(backend.move(A))


def test_a_coarse_matrix_that_does_not_suit_levels_is_factored_by_auto_alone(backend, meanwhile):
    meanwhile(schwarz_factors, MOST_INVERTED=10, MOST_FACTORED=10)
    meanwhile(levels, SPARSE=0)
    meanwhile(spectrum, MOST_STEPS=1)
    A = backend.move(hermitian())
    F = fl.Schwarz(size=6).factor(A)
    assert F.report.coarse_steps is None and "no further levels" in F.report.warning
    r = backend.move(values(144, "float64"))
    want = fl.Schwarz(size=6, levels=2).factor(A).solve(r)
    np.testing.assert_array_equal(backend.fetch(F.solve(r)), backend.fetch(want))
    with pytest.raises(MatrixError, match=r"a solve would take \d+ steps"):
        fl.Schwarz(size=6, levels=3).factor(A)


def test_rigid_body_modes_are_those_of_the_levels(backend):
    """With them the iterations of elasticity are those of two levels."""
    A = gallery.elasticity(16, 6, 6)
    z, y, x = np.meshgrid(np.arange(7), np.arange(7), np.arange(1, 17), indexing="ij")
    modes = fl.rigid_body_modes(np.column_stack([x.ravel(), y.ravel(), z.ravel()]))
    two, three = (
        solved(A, fl.Schwarz(size=48, near_nullspace=modes, levels=count).factor(backend.move(A)), backend)
        for count in (2, 3)
    )
    assert three <= two + 3


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"levels": 1}, "levels must be an integer >= 2"),
        ({"levels": "many"}, "levels must be an integer >= 2"),
        ({"levels": 3, "coarse": None}, "levels are those of a coarse space"),
    ],
)
def test_bad_input(parameters, text):
    with pytest.raises(ParameterError, match=text):
        fl.Schwarz(**parameters).factor(hermitian())


def test_single_precision_has_levels_too(backend):
    A = in_dtype(gallery.problem("poisson5:48"), "float32")
    F = fl.Schwarz(size=12, levels=3).factor(backend.move(A))
    assert F.coarse.levels.factors.dtype == np.float32
    assert solved(A, F, backend, 1e-4) <= 25


def test_several_threads_take_fewer_parts_of_a_grid_in_space(threads, everywhere):
    """Fewer, with which the coarse matrix is factored; not of a grid in the plane, and not where a size is given."""
    everywhere("MOST_IN_SPACE", 40)
    everywhere("THICK", 8)
    S, found = gallery.poisson7(16), {}
    for number in (1, 4, 4):
        threads(number)
        F = fl.Schwarz().factor(S)
        b = np.ones(S.shape[0])
        found.setdefault(number, []).append((F.report.parts, F.report.largest, fl.cg(S, b, M=F).x.tobytes()))
    assert found[1][0][:2] == (64, 64) and found[4][0][0] < 40 * 1.3 and found[4][0][1] > 64
    assert found[4][0] == found[4][1]
    assert fl.Schwarz(size=64).factor(S).report.parts == 64
    assert fl.Schwarz().factor(gallery.poisson5(64, 64)).report.parts == 64
