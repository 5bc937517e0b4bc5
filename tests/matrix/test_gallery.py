"""The test problems are what their docstrings say: by definition, by published counts, by spectrum, by bad input."""

import numpy as np
import pytest
import scipy.io
import scipy.linalg
import scipy.sparse as sp
import scipy.sparse.linalg
from conftest import MATRICES
from scipy.sparse.csgraph import connected_components

from finelu import gallery
from finelu.errors import ParameterError
from finelu.gallery import elements, reservoir


def identical(A, B):
    return A.shape == B.shape and abs(A - B).max() == 0


def is_hermitian(A):
    return abs(A - A.conj().T).max() == 0


def is_dominant(A, strict=False):
    diagonal = abs(A.diagonal())
    rest = np.asarray(abs(A).sum(axis=1)).ravel() - diagonal
    return bool((diagonal > rest).all() if strict else (diagonal >= rest * (1 - 1e-14)).all())


def second_difference(n):
    return sp.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(n, n))


# What every problem promises -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", gallery.small(), ids=str)
def test_small_problems_are_sorted_csr_with_a_full_diagonal(p):
    A = p.A
    assert type(A) is sp.csr_matrix
    assert A.indptr.dtype == A.indices.dtype == np.int32
    fresh = sp.csr_matrix((A.data, A.indices, A.indptr), shape=A.shape)  # without A's cached flags
    assert fresh.has_canonical_format
    assert np.isfinite(A.data).all()
    pattern = sp.csr_matrix((np.ones(A.nnz), A.indices, A.indptr), shape=A.shape)
    assert (pattern.diagonal() == 1).all()
    assert identical(gallery.problem(str(p)), A)


@pytest.mark.parametrize("p", gallery.small_spd(), ids=str)
def test_small_spd_problems_are_hermitian_positive_definite(p):
    assert is_hermitian(p.A)
    assert np.linalg.eigvalsh(p.A.toarray())[0] > 0


def test_small_problems_cover_every_dtype_and_start_with_the_spd_ones():
    names = [p.name for p in gallery.small()]
    assert len(set(names)) == len(names)
    assert names[: len(gallery.small_spd())] == [p.name for p in gallery.small_spd()]
    assert {p.A.dtype.name for p in gallery.small()} == {"float32", "float64", "complex64", "complex128"}


@pytest.mark.parametrize(
    ("name", "rows", "entries"),
    [
        ("apache1", 80_800, 542_184),
        ("apache2", 715_176, 4_817_870),
        ("atmosmodd", 1_270_432, 8_814_880),
        ("ecology2", 999_999, 4_995_991),
        ("G3_circuit", 1_585_478, 7_660_826),
    ],
)
def test_look_alikes_have_the_published_counts(name, rows, entries):
    A = gallery.problem(name)
    assert (A.shape, A.nnz) == ((rows, rows), entries)


# Grids ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 3, 5), (1, 1, 1), (2, 1, 3), (1, 4, 1), (2, 2, 2)])
def test_poisson_is_the_kronecker_sum_of_second_differences(shape):
    nx, ny, nz = shape
    Ix, Iy, Iz = sp.identity(nx), sp.identity(ny), sp.identity(nz)
    Tx, Ty, Tz = (second_difference(n) for n in shape)
    plane = sp.kron(Iy, Tx) + sp.kron(Ty, Ix)
    assert identical(gallery.poisson7(nx, ny, nz), sp.kron(Iz, plane) + sp.kron(Tz, sp.identity(nx * ny)))
    assert identical(gallery.poisson5(nx, ny), plane)
    ones = [sp.identity(n) * 3 - second_difference(n) for n in shape]  # 1 where |i - j| <= 1
    neighbours = sp.kron(ones[2], sp.kron(ones[1], ones[0]))
    assert identical(gallery.poisson27(nx, ny, nz), 27 * sp.identity(nx * ny * nz) - neighbours)


def test_grids_are_cubes_when_one_size_is_given():
    assert identical(gallery.poisson7(3), gallery.poisson7(3, 3, 3))
    assert identical(gallery.poisson27(3), gallery.poisson27(3, 3, 3))
    assert identical(gallery.poisson5(3), gallery.poisson5(3, 3))
    assert identical(gallery.convection_diffusion(3), gallery.convection_diffusion(3, 3, 3))


@pytest.mark.parametrize("scheme", ["upwind", "central"])
def test_convection_diffusion_is_exact_for_linear_functions(scheme):
    n, peclet, wind = 5, 40.0, np.array([2.0, -1.0, 0.5])
    A = gallery.convection_diffusion(n, peclet=peclet, wind=wind, scheme=scheme)
    h = 1 / (n + 1)
    z, y, x = np.meshgrid(*3 * [h * np.arange(1, n + 1)], indexing="ij")
    slope = np.array([1.0, 3.0, -2.0])
    u = slope[0] * x + slope[1] * y + slope[2] * z
    inner = (A @ u.ravel()).reshape(n, n, n)[1:-1, 1:-1, 1:-1]
    wanted = h**2 * peclet * (wind @ slope) / np.linalg.norm(wind)
    np.testing.assert_allclose(inner, wanted, atol=1e-12)


def test_convection_diffusion_without_convection_is_poisson():
    assert identical(gallery.convection_diffusion(4, 3, 5, peclet=0.0), gallery.poisson7(4, 3, 5))


def test_upwind_is_an_m_matrix_where_central_is_not():
    upwind, central = (gallery.convection_diffusion(5, peclet=100.0, scheme=s) for s in ("upwind", "central"))
    assert (upwind.data > 0).sum() == upwind.shape[0]
    assert is_dominant(upwind)
    assert (central.data > 0).sum() > central.shape[0]
    assert not is_dominant(central)


def test_atmosmodd_like_is_an_unsymmetric_dominant_m_matrix():
    A = gallery.atmosmodd_like(7, 6, 5)
    assert not is_hermitian(A)
    assert identical(abs(A).sign(), abs(A).sign().T)
    assert is_dominant(A, strict=True)
    assert (A.data > 0).sum() == A.shape[0]


def test_apache2_like_conducts_across_x_and_is_insulated_there():
    A = gallery.apache2_like(4, 6, 6)
    sums = np.asarray(A.sum(axis=1)).reshape(6, 6, 4)
    assert (sums[1:-1, 1:-1] == 0).all()
    assert (A.data.min(), A.data.max()) == (-90000, 180016)


def test_helmholtz_with_closed_boundary_is_a_shifted_poisson():
    n, k = 7, 9.0
    A = gallery.helmholtz(n, k, absorbing=False)
    assert A.dtype == np.float64
    assert abs(A - (gallery.poisson5(n) - (k / (n + 1)) ** 2 * sp.identity(n * n))).max() < 1e-14


def test_helmholtz_annihilates_a_plane_wave_and_lets_it_out():
    n, k = 60, 20.0
    A = gallery.helmholtz(n, k)
    assert A.dtype == np.complex128
    assert abs(A - A.T).max() == 0
    assert not is_hermitian(A)
    kh = k / (n + 1)
    wave = np.exp(1j * kh * np.arange(n))
    residual = abs(A @ np.tile(wave, n)).reshape(n, n)[1:-1]  # runs along x; the rows of the other two sides left out
    assert residual[:, 1:-1].max() <= kh**4 / 12
    assert residual[:, -1].max() <= kh**2  # leaves through the right side: first order
    assert residual[:, 0].min() >= kh  # does not come in through the left one


# Finite elements -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "rows"), [(1, 36), (2, 171), (3, 741), (4, 3081), (5, 12561), (6, 50721), (7, 203841)]
)
def test_ani_has_the_rows_of_the_paper_a_unit_diagonal_and_exact_symmetry(level, rows):
    A = gallery.anisotropic_triangles(level)
    assert A.shape == (rows, rows)
    assert (A.diagonal() == 1).all()
    assert is_hermitian(A)
    assert 5 < A.nnz / rows < 7


@pytest.mark.parametrize("ratio", [1.0, 1000.0])
def test_ani_has_the_lowest_eigenvalue_of_its_operator(ratio):
    A = gallery.anisotropic_triangles(4, ratio=ratio, unit_diagonal=False)
    lowest = scipy.sparse.linalg.eigsh(A, 1, sigma=0, return_eigenvectors=False)[0]
    nodes = (8 * 7 + 1) ** 2  # about one node per 1 / nodes of the area
    assert lowest * nodes == pytest.approx(np.pi**2 * (1 + ratio), rel=0.1)


def test_ani_with_ratio_1000_is_no_m_matrix():
    A = gallery.anisotropic_triangles(3)
    off_diagonal = A - sp.identity(A.shape[0])
    assert (off_diagonal.data > 0.01).mean() > 0.1
    assert np.linalg.eigvalsh(A.toarray())[0] > 0


def test_ani_coarse_mesh_tiles_the_square():
    points, triangles = elements._coarse_mesh()
    a, b, c = points[triangles].transpose(1, 0, 2)
    area = 0.5 * abs((b - a)[:, 0] * (c - a)[:, 1] - (b - a)[:, 1] * (c - a)[:, 0])
    assert len(triangles) == 100
    assert area.min() > 1e-3
    assert area.sum() == pytest.approx(1)
    assert (((points == 0) | (points == 1)).any(axis=1)).sum() == 30


def test_ani_orders_and_scales_the_same_matrix():
    plain = gallery.anisotropic_triangles(3, rcm=False, unit_diagonal=False)
    ordered = gallery.anisotropic_triangles(3, rcm=True, unit_diagonal=False)
    assert np.ptp(plain.diagonal()) > 1
    np.testing.assert_allclose(
        np.linalg.eigvalsh(plain.toarray()), np.linalg.eigvalsh(ordered.toarray()), rtol=1e-10, atol=1e-9
    )
    bandwidth = [abs(np.subtract(*A.nonzero())).max() for A in (plain, ordered)]
    assert bandwidth[1] < bandwidth[0] / 4
    scale = sp.diags(1 / np.sqrt(ordered.diagonal()))
    assert abs(scale @ ordered @ scale - gallery.anisotropic_triangles(3)).max() < 1e-14


def test_elasticity_is_free_of_force_in_rigid_motions_and_held_at_x_0():
    nx, ny, nz = 4, 2, 3
    A = gallery.elasticity(nx, ny, nz)
    assert A.shape[0] == 3 * nx * (ny + 1) * (nz + 1)
    assert abs(A - A.T).max() < 1e-15
    assert np.linalg.eigvalsh(A.toarray())[0] > 1e-3
    z, y, x = (c.ravel() for c in np.meshgrid(range(nz + 1), range(ny + 1), range(1, nx + 1), indexing="ij"))
    zero, one = np.zeros(x.size), np.ones(x.size)
    motions = [(one, zero, zero), (zero, one, zero), (zero, zero, one), (-y, x, zero), (zero, -z, y), (z, zero, -x)]
    for motion in motions:
        force = (A @ np.stack(motion, axis=1).ravel()).reshape(-1, 3)
        assert abs(force[x > 1]).max() < 1e-13  # rows that do not see the held nodes
        if motion[0] is one:
            assert abs(force[x == 1]).max() > 0.1


def test_elasticity_pulls_back_as_hooke_says():
    nx, ny, nz = 3, 2, 4
    x = np.tile(np.arange(1, nx + 1), (ny + 1) * (nz + 1))
    stretch = np.zeros((x.size, 3))
    stretch[:, 0] = 0.01 * x  # and u = 0 at x = 0
    for poisson_ratio, modulus in [(0.0, 1.0), (0.25, 1.2)]:  # of a bar that may not become thinner
        force = (gallery.elasticity(nx, ny, nz, poisson_ratio) @ stretch.ravel()).reshape(-1, 3)
        assert force[x == nx, 0].sum() == pytest.approx(0.01 * modulus * ny * nz)


def test_the_core_of_a_body_has_its_own_modulus():
    nx, ny, nz = 2, 2, 7  # the middle third of the layers: 3 and 4, counted from 0
    plain, soft = (gallery.elasticity(nx, ny, nz, core=core).toarray() for core in (1.0, 0.125))
    layer = np.repeat(np.arange(nz + 1), 3 * nx * (ny + 1))
    for nodes, ratio in ((layer <= 2, 1), (layer == 4, 0.125), (layer >= 6, 1)):
        np.testing.assert_allclose(soft[nodes][:, nodes], ratio * plain[nodes][:, nodes], atol=1e-15)
    assert gallery.elasticity(nx, ny, nz, core=1.0).nnz == gallery.elasticity(nx, ny, nz, core=0.125).nnz


@pytest.mark.parametrize(("name", "unknowns"), [("elasticity:3,2,2", 3), ("elastic_triangles:2", 2)])
def test_by_field_is_an_order_of_the_unknowns(name, unknowns):
    A, B = gallery.problem(name), gallery.problem(f"{name},by_field=True")
    nodes = A.shape[0] // unknowns
    i = np.arange(A.shape[0])
    row = i % nodes * unknowns + i // nodes  # of A, for each row of B
    assert identical(A[row][:, row], B) and A.nnz == B.nnz and B.has_canonical_format


def test_elastic_triangles_are_free_of_force_in_rigid_motions_and_held_at_x_0():
    A = gallery.elastic_triangles(2)
    points, triangles = elements.irregular_triangles(2)
    free = points[:, 0] > 0
    x, y = points[free].T
    assert A.shape[0] == 2 * x.size and triangles.shape == (400, 3)
    assert abs(A - A.T).max() < 1e-14 and np.linalg.eigvalsh(A.toarray())[0] > 1e-3
    near = np.unique(triangles[~free[triangles].all(axis=1)])  # nodes of triangles with a held one
    inside = ~np.isin(np.flatnonzero(free), near)
    zero, one = np.zeros(x.size), np.ones(x.size)
    for motion in ((one, zero), (zero, one), (-y, x)):
        force = (A @ np.stack(motion, axis=1).ravel()).reshape(-1, 2)
        assert abs(force[inside]).max() < 1e-13 < 0.1 < abs(force[~inside]).max()


def test_elastic_triangles_pull_back_as_hooke_says():
    points, _ = elements.irregular_triangles(1)
    x = points[points[:, 0] > 0, 0]
    stretch = np.stack([0.01 * x, 0 * x], axis=1).ravel()  # and u = 0 at x = 0
    for poisson_ratio, modulus in [(0.0, 1.0), (0.25, 1.2)]:  # of a plate that may not become thinner
        force = (gallery.elastic_triangles(1, poisson_ratio) @ stretch).reshape(-1, 2)
        assert force[x == 1, 0].sum() == pytest.approx(0.01 * modulus)


# Networks and saddle points ------------------------------------------------------------------------------------------


def test_ecology2_like_loses_current_only_into_the_held_cell():
    A = gallery.ecology2_like(7, 5)
    sums = np.asarray(A.sum(axis=1)).ravel()
    assert A.shape == (34, 34)
    assert sorted(set(sums)) == [0, 10]
    assert (sums == 10).sum() == 4
    assert is_hermitian(A)


def test_black_oil_flows_downstream_and_keeps_what_flows():
    A = gallery.black_oil(5, 4, 3)
    assert A.shape == (180, 180) and A.nnz == 9 * (60 + 2 * (4 * 12 + 3 * 15 + 2 * 20)) and A.diagonal().all()
    blocks = A.toarray().reshape(60, 3, 60, 3).transpose(0, 2, 1, 3)
    apart = blocks * ~np.eye(60, dtype=bool)[:, :, None, None]
    by_pressure, by_water = abs(apart[..., 0]).sum(axis=2), abs(apart[..., 1]).sum(axis=2)
    assert ((by_pressure > 0) == (by_pressure.T > 0)).all()
    assert not ((by_water > 0) & (by_water.T > 0)).any() and (by_water > 0).sum() == 4 * 12 + 3 * 15 + 2 * 20
    content = blocks.sum(axis=0)  # of the columns of a cell: the fluxes cancel
    cells = np.setdiff1d(np.arange(60), [0, 20, 40, 19, 39, 59])  # no wells
    assert np.allclose(content[cells][:, :, 1:], content[1][:, 1:]) and (content[:, :, 0] > 0).all()
    assert abs(content[cells][:, :, 0]).max() < 1e-4 * abs(blocks[..., 0]).max()


def test_black_oil_has_the_decades_and_the_courant_number_that_are_asked_for():
    rock = reservoir._permeability((4, 20, 20), 3.0, 1)
    assert rock.min() == 1 and abs(rock.max() - 1e3) < 1e-9 and rock.size == 1600
    slow, fast = (gallery.black_oil(8, 8, 2, courant=c) for c in (1.0, 10.0))
    cell = slice(3 * 9, 3 * 10)
    gained = (slow - fast)[cell, cell].toarray()
    assert gained[0, 1] > 0 and np.isclose(gained[0, 1], -gained[1, 1])
    apart = sp.coo_matrix(slow - fast)
    assert (apart.row // 3 == apart.col // 3)[apart.data != 0].all()  # only contents change


def test_g3_circuit_like_is_grounded_everywhere_and_random_by_seed():
    A = gallery.g3_circuit_like(5000)
    ground = np.asarray(A.sum(axis=1)).ravel()
    assert is_hermitian(A)
    assert connected_components(A)[0] == 1
    assert ground.sum() == pytest.approx(5000 / 256, rel=0.3)
    assert scipy.sparse.linalg.eigsh(A, 1, sigma=0, return_eigenvectors=False)[0] > 0
    other = gallery.g3_circuit_like(5000, seed=1)
    assert other.nnz == A.nnz
    assert not identical(A, other)
    assert identical(A, gallery.g3_circuit_like(5000, seed=0))


def test_stokes_is_nonsingular_and_conserves_mass():
    n = 5
    A = gallery.stokes(n)
    velocities = 2 * n * (n - 1)
    assert A.shape[0] == velocities + n**2 - 1
    assert is_hermitian(A)
    eigenvalues = np.linalg.eigvalsh(A.toarray())
    assert (eigenvalues > 1e-3).sum() == velocities
    assert (eigenvalues < -1e-3).sum() == n**2 - 1
    stream = np.zeros((n + 1, n + 1))
    stream[1:-1, 1:-1] = np.random.default_rng(0).standard_normal((n - 1, n - 1))
    u, v = np.diff(stream, axis=0)[:, 1:-1], -np.diff(stream, axis=1)[1:-1]
    B = A[velocities:, :velocities]
    assert abs(B @ np.concatenate([u.ravel(), v.ravel()])).max() < 1e-14


def test_navier_stokes_discretizes_the_linearized_equations():
    n, reynolds = 12, 50.0
    A = gallery.navier_stokes(n, reynolds)
    velocities = 2 * (2 * n - 1) ** 2
    assert A.shape[0] == velocities + (n + 1) ** 2 - 1 and np.linalg.cond(A.toarray()) < 1e6
    assert identical(abs(A).sign(), abs(A).T.tocsr().sign()) and not is_hermitian(A)
    assert not A.diagonal()[velocities:].any()
    y, x = np.pi * np.mgrid[1 : 2 * n, 1 : 2 * n] / (2 * n)

    def eddy(x, y):
        return np.sin(x) ** 2 * np.sin(2 * y), -np.sin(2 * x) * np.sin(y) ** 2

    w = np.concatenate([part.ravel() for part in eddy(x, y)])
    v = np.concatenate([(np.sin(x) * np.sin(y)).ravel(), np.zeros(velocities // 2)])
    V, B = A[:velocities, :velocities], A[velocities:, :velocities]
    assert abs(B @ w).max() < 0.02 * abs(B @ v).max()  # no sources
    assert w @ V @ w == pytest.approx(2 * np.pi**2 / reynolds, rel=2e-3)  # convection does no work
    y, x = np.pi * (np.mgrid[:400, :400] + 0.5) / 400
    first, second = eddy(x, y)
    along, across = np.pi * np.sin(2 * x) * np.sin(2 * y), 2 * np.pi * np.sin(x) ** 2 * np.cos(2 * y)
    force = 2 * (first * along + second * across) * np.sin(x) * np.sin(y)  # once by each part of Newton's method
    gradient = np.pi * (along * np.cos(x) * np.sin(y) + across * np.sin(x) * np.cos(y))
    assert v @ V @ w == pytest.approx((force + gradient / reynolds).mean(), rel=5e-3)


def test_kkt_has_the_inertia_of_a_convex_programme():
    A = gallery.kkt(30, 12, density=0.1)
    eigenvalues = np.linalg.eigvalsh(A.toarray())
    assert ((eigenvalues > 0).sum(), (eigenvalues < 0).sum()) == (30, 12)
    assert abs(eigenvalues).min() > 1e-6
    assert is_hermitian(A)
    assert not identical(A, gallery.kkt(30, 12, density=0.1, seed=7))


@pytest.mark.parametrize(("text", "zero_rows"), [("stokes:4", 15), ("kkt:20,6,0.1", 6)])
def test_saddle_points_store_their_zero_diagonal_on_request(text, zero_rows):
    without, stored = gallery.problem(text), gallery.problem(f"{text},store_zeros=True")
    assert identical(without, stored)
    assert stored.nnz - without.nnz == zero_rows == (stored.data == 0).sum()
    n = stored.shape[0]
    for A, count in ((without, n - zero_rows), (stored, n)):
        assert sum(i in A.indices[A.indptr[i] : A.indptr[i + 1]] for i in range(n)) == count


# Random and simple patterns ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("hermitian", [False, True])
def test_random_dominant_is_dominant_in_every_dtype(dtype, hermitian):
    A = gallery.random_dominant(60, 0.1, seed=5, dtype=dtype, hermitian=hermitian)
    assert A.dtype == dtype
    assert is_dominant(A, strict=True)
    assert is_hermitian(A) == hermitian
    assert A.nnz > 60 * 4
    assert identical(A, gallery.random_dominant(60, 0.1, seed=5, dtype=dtype, hermitian=hermitian))
    assert not identical(A, gallery.random_dominant(60, 0.1, seed=6, dtype=dtype, hermitian=hermitian))


def test_random_dominant_by_limit_of_density():
    assert identical(gallery.random_dominant(9, 0), sp.identity(9))
    assert gallery.random_dominant(30, 1.0).nnz > 0.55 * 900


def test_simple_patterns():
    assert identical(gallery.tridiagonal(6), second_difference(6))
    assert identical(gallery.tridiagonal(4, 1.0, 5.0, 2.0), sp.diags([1.0, 5.0, 2.0], [-1, 0, 1], shape=(4, 4)))
    assert identical(gallery.bidiagonal(4, 1.0, 5.0), sp.diags([1.0, 5.0], [-1, 0], shape=(4, 4)))
    wanted = 2 * np.eye(5)
    wanted[-1, :-1] = wanted[:-1, -1] = -1
    wanted[-1, -1] = 5
    assert (gallery.arrow(5).toarray() == wanted).all()
    assert gallery.arrow(1).toarray() == [[1]]


# Look-up -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("poisson7:3,4,2", gallery.poisson7(3, 4, 2)),
        ("poisson7: nz=2, ny=4, nx=3", gallery.poisson7(3, 4, 2)),
        (
            "convection_diffusion:3,peclet=7.5,wind=(0,-1,0),scheme=central",
            gallery.convection_diffusion(3, peclet=7.5, wind=(0, -1, 0), scheme="central"),
        ),
        ("random_dominant:20,0.2,dtype='complex64'", gallery.random_dominant(20, 0.2, dtype="complex64")),
        ("ani3", gallery.anisotropic_triangles(3)),
        ("apache1", gallery.apache2_like(8, 101, 100)),
    ],
)
def test_a_text_names_a_problem(text, wanted):
    A = gallery.problem(text)
    assert A.dtype == wanted.dtype
    assert identical(A, wanted)


def test_every_paper_size_names_a_problem():
    for text in gallery.PAPER_SIZES.values():
        assert text.partition(":")[0] in gallery.PROBLEMS


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("poison7:100", r"'poison7'; one of poisson5, poisson7, .*G3_circuit is needed. Did you mean 'poisson7'\?"),
        ("", "no test problem is called ''"),
        ("zzz", "'zzz'; one of"),
        ("ani5:3", "'ani5'.* Did you mean"),
        ("poisson7", r"do not fit poisson7\(nx, ny=None, nz=None\)"),
        ("poisson7:1,2,3,4", "do not fit poisson7"),
        ("poisson7:size=3", "do not fit poisson7"),
        ("poisson7:3 4", "do not fit poisson7"),
        ("poisson7:3)+f(4", "do not fit poisson7"),
        ("poisson7:__import__('os').getpid()", "do not fit poisson7"),
        ("poisson7:0", "nx = 0 is not a positive whole number"),
        ("poisson7:3,-2", "ny = -2 is not a positive whole number"),
        ("poisson7:2.5", "nx = 2.5 is not a positive whole number"),
        ("poisson7:True", "nx = True is not"),
        ("anisotropic_triangles:0", "level = 0"),
        ("convection_diffusion:3,scheme=sideways", "'sideways' is neither 'upwind' nor 'central'"),
        ("convection_diffusion:3,wind=(0,0,0)", "not a direction"),
        ("convection_diffusion:3,wind=(1,2)", "not a direction"),
        ("random_dominant:5,2", "density = 2 is outside"),
        ("random_dominant:5,dtype=int8", "dtype = 'int8' is not one of float32"),
        ("elasticity:2,2,2,0.5", "poisson_ratio = 0.5"),
        ("elasticity:2,2,2,core=0", "core = 0"),
        ("elastic_triangles:1,-1", "poisson_ratio = -1"),
        ("elastic_triangles:0", "level = 0"),
        ("kkt:3,4", "4 constraints on 3 variables"),
        ("stokes:1", "n >= 2"),
        ("navier_stokes:1", "n >= 2"),
        ("navier_stokes:4,0", "reynolds > 0"),
        ("ecology2_like:1,1", "at least two cells"),
        ("black_oil:2,courant=0", "courant"),
        ("black_oil:2,decades=-1", "decades"),
        ("black_oil:2,0", "ny = 0"),
    ],
)
def test_a_bad_text_is_a_parameter_error(text, match):
    with pytest.raises(ParameterError, match=match):
        gallery.problem(text)


@pytest.mark.parametrize(("length", "rows", "entries"), [(3, 5, 19), (4, 9, 49), (5, 37, 233), (8, 1015, 11003)])
def test_the_cage_model_has_the_states_and_moves_that_are_published(length, rows, entries):
    A = gallery.cage(length)
    assert A.shape == (rows, rows) and A.nnz == entries and A.has_sorted_indices
    assert A.data.min() > 0 and np.allclose(A.sum(axis=0), 1, rtol=1e-14)
    assert A.diagonal().min() > 0


def test_without_a_field_the_cage_model_is_in_detailed_balance():
    A = gallery.cage(6, field=0.0).toarray()
    probability = scipy.linalg.null_space(A - np.eye(len(A)))[:, 0]
    flow = A * probability
    assert np.allclose(flow, flow.T, atol=1e-14) and abs(A - A.T).max() > 1e-3


@pytest.mark.parametrize("length", [1, 2, 16])
def test_a_polymer_of_the_cage_model_has_3_to_15_monomers(length):
    with pytest.raises(ParameterError, match=f"length={length}; 3 to 15 is needed"):
        gallery.cage(length)


@pytest.mark.parametrize(
    ("given", "match"),
    [((10.0,), "length = 10.0 is not"), (("a",), "length = 'a' is not"), ((5, np.nan), "field=nan; a finite number")],
)
def test_the_cage_model_names_what_it_cannot_take(given, match):
    with pytest.raises(ParameterError, match=match):
        gallery.cage(*given)


def test_the_cage_model_is_that_of_the_collection():
    files = sorted(MATRICES.glob("cage*.mtx.gz")) if MATRICES.is_dir() else []
    if not files:
        pytest.skip("../shared/matrices is absent")
    for file in files:
        A = gallery.cage(int(file.name.removeprefix("cage").removesuffix(".mtx.gz")))
        wanted = sp.csr_matrix(scipy.io.mmread(file))
        wanted.sort_indices()
        assert np.array_equal(A.indptr, wanted.indptr) and np.array_equal(A.indices, wanted.indices)
        assert np.allclose(A.data, wanted.data, rtol=1e-13)
