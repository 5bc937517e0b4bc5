"""Flows on Cartesian grids: by definition, by exact solutions, by tables, by behaviour, by bad input."""

import sys
from pathlib import Path

import numpy as np
import pytest

import finelu
from finelu.errors import ParameterError
from finelu.krylov import richardson
from finelu.matrix.stencil import StencilMatrix
from finelu.preconditioners.block_ilu import BlockILU0

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "benchmarks").exists():
    pytest.skip("benchmarks/ is not here", allow_module_level=True)
sys.path.insert(0, str(ROOT))

from benchmarks.papers.flow import cartesian, channel, pseudo_time  # noqa: E402
from benchmarks.papers.flow.pseudo_time import PseudoTime  # noqa: E402

leaving = cartesian.outflow


def boundaries(kind, n):
    """Boundaries of the three axes, `kind` together with walls."""
    moving = cartesian.wall(n, (0.3, -0.2, 0.1), 2.0)
    entering = cartesian.inflow(np.array((9.0, 1.0, 0.3, -0.4, 0.2, 1.5)[:n]))
    return {
        "wall": [(moving, moving)] * 3,
        "periodic": ["periodic"] * 3,
        "inflow": [(entering, moving), (moving, entering), "periodic"],
        "outflow": [
            (cartesian.outflow(n, 0.3), moving),
            (moving, cartesian.outflow(n)),
            (cartesian.outflow(n), cartesian.outflow(n, 0.1)),
        ],
        "symmetry": [(cartesian.symmetry(n, a), moving if a else cartesian.symmetry(n, a)) for a in range(3)],
        "mixed": [(entering, cartesian.outflow(n, 0.3)), (moving, cartesian.symmetry(n, 1)), "periodic"],
    }[kind]


def random_flow(kind, n, shape, seed=0):
    """A flow on cells of random widths, and a state with positive scalars."""
    rng = np.random.default_rng(seed)
    flow = cartesian.Flow(
        [rng.uniform(0.5, 1.5, s) for s in shape],
        boundaries(kind, n),
        n=n,
        viscosity=0.07,
        force=(1.0, 0.2, 0.0),
        beta=1.3,
    )
    q = rng.standard_normal((n, *shape))
    q[4:] = rng.uniform(0.5, 2.0, (n - 4, *shape))
    return flow, q


def steady(flow, q, tolerance=1e-7, **parameters):
    return PseudoTime(flow, **parameters).steady(q, tolerance=tolerance)


# By definition


@pytest.mark.parametrize("shape", [(3, 2, 3), (1, 3, 2), (4, 1, 1)], ids=str)
@pytest.mark.parametrize("n", [4, 6])
@pytest.mark.parametrize("kind", ["wall", "periodic", "inflow", "outflow", "symmetry", "mixed"])
def test_the_jacobian_is_the_derivative_of_the_first_order_residual(kind, n, shape):
    flow, q = random_flow(kind, n, shape)
    blocks = np.full((7, *shape, n, n), np.nan)
    flow.jacobian(q, blocks)
    A = StencilMatrix(blocks, flow.periodic)

    def residual(x):
        state = np.moveaxis(x.reshape(*shape, n), -1, 0)
        return np.moveaxis(flow.residual(state, order=1, at=q), 0, -1).ravel()

    x, step = np.moveaxis(q, 0, -1).ravel(), 1e-6
    columns = [(residual(x + step * e) - residual(x - step * e)) / (2 * step) for e in np.eye(x.size)]
    wanted = np.array(columns).T
    assert abs(A.to_bsr().toarray() - wanted).max() <= 1e-8 * abs(wanted).max()


@pytest.mark.parametrize(("order", "least", "most"), [(1, 0.8, 1.3), (2, 1.7, 3.2)])
@pytest.mark.parametrize("widening", [0.0, 0.3])
def test_the_residual_has_the_order_it_claims(order, least, most, widening):
    # Taylor-Green: R(u) = -du/dt = 2 nu u, on cells of equal and of smoothly varying widths
    errors = []
    for cells in (24, 48):
        line = np.linspace(0, 2 * np.pi, cells + 1)
        h = np.diff(line + widening * np.sin(line))
        symmetry = (cartesian.symmetry(4, 2),) * 2
        flow = cartesian.Flow([h, h, [1.0]], ["periodic", "periodic", symmetry], viscosity=0.1)
        x, y = channel.centres(h)[:, None, None], channel.centres(h)[:, None]
        q = np.zeros((4, *flow.shape))
        q[0] = (np.cos(2 * x) + np.cos(2 * y)) / 4
        q[1], q[2] = np.sin(x) * np.cos(y), -np.cos(x) * np.sin(y)
        off = flow.residual(q, order) - 2 * 0.1 * np.concatenate((0 * q[:1], q[1:]))
        errors.append(np.sqrt((off**2 * h[:, None, None] * h[:, None]).sum()))
    assert least < np.log2(errors[0] / errors[1]) < most


def test_a_chequered_pressure_is_seen_by_the_continuity_equation():
    flow, q = random_flow("periodic", 4, (4, 4, 4))
    q = 0 * q
    q[0] = (-1.0) ** np.indices(flow.shape).sum(axis=0)
    assert abs(flow.residual(q)[0]).min() > 0.1


def test_mass_and_momentum_are_conserved():
    flow, q = random_flow("periodic", 4, (4, 3, 5))
    flow.force = (0.0, 0.0, 0.0)
    volume = np.einsum("i,j,k->ijk", *flow.widths)
    R = flow.residual(q)
    assert abs((R * volume).sum(axis=(1, 2, 3))).max() <= 1e-13 * abs(R * volume).sum()


# By tables and exact solutions


@pytest.mark.parametrize(("re", "cells"), [(100, 32), (400, 64)])
def test_the_cavity_is_that_of_ghia(re, cells):
    flow, q = channel.cavity(cells, re)
    q, done = steady(flow, q, 1e-6)
    assert max(channel.ghia_deviation(flow, q, re)) < 0.01
    assert sum(step.corrections for step in done) > len(done)
    if re == 400:  # the value that is left out is off by far more than ours are from any other
        _, v = channel.centre_lines(flow, q)
        assert abs(v(0.9063) - channel.GHIA_V[400][channel.GHIA_X.index(0.9063)]) > 0.1


def test_gmres_and_corrections_lead_to_the_same_flow():
    flow, start = channel.cavity(16, 100)
    (a, first), (b, second) = (steady(flow, start, method=method) for method in ("correct", "gmres"))
    assert abs(a - b)[1:].max() < 1e-5  # the pressure of a closed cavity is known up to a constant
    assert sum(s.corrections for s in second) < sum(s.corrections for s in first)


@pytest.mark.parametrize(("section", "drive"), [("plates", "force"), ("duct", "force"), ("duct", "inflow")])
def test_poiseuille_by_second_order(section, drive):
    errors = []
    for cells in (6, 12):
        depth = cells if section == "duct" else 2
        flow, q, profile = channel.channel((4 if drive == "force" else cells, cells, depth), 20.0, 4, section, drive)
        assert abs(q[1] - profile).max() > 0.05  # it starts disturbed
        q, _ = steady(flow, q)
        errors.append(abs(q[1, -1] - profile).max() / profile.max())
    assert errors[1] < 0.02
    assert 3.0 < errors[0] / errors[1] < 5.0


def test_the_series_for_the_duct_solves_its_equation():
    s = np.linspace(0.3, 1.7, 15)
    h = 1e-3
    u = [
        channel.laminar_profile(s[:, None] + a, s[None, :] + b, "duct")
        for a, b in ((0, 0), (h, 0), (-h, 0), (0, h), (0, -h))
    ]
    np.testing.assert_allclose((sum(u[1:]) - 4 * u[0]) / h**2, -2.0, atol=1e-5)
    np.testing.assert_allclose(channel.laminar_profile(s, 0.0, "duct"), 0.0, atol=1e-4)


def test_taylor_green_vortices_decay_at_the_exact_rate():
    flow, q = channel.taylor_green(24, 10.0)
    start, rows = channel.energy(q), []
    q = PseudoTime(flow).in_time(q, 0.1, 6, watch=lambda time, q, done: rows.append((time, channel.energy(q))))
    times, energies = np.array(rows).T
    np.testing.assert_allclose(times, 0.1 * np.arange(1, 7))
    np.testing.assert_allclose(-np.log(energies / start) / times, 0.4, rtol=0.03)


def decay(cells, re, dt, steps, skipped):
    """The rate at which the energy decays over the exact one, less 1, after `skipped` of the steps."""
    flow, q = channel.taylor_green(cells, re)
    energies = []
    PseudoTime(flow).in_time(q, dt, steps, watch=lambda time, q, done: energies.append(channel.energy(q)))
    rate = np.log(energies[skipped - 1] / energies[-1]) / (dt * (steps - skipped))
    return rate * re / 4 - 1


def test_the_rate_of_decay_is_of_second_order():
    coarse, fine = (decay(cells, 10.0, 0.1, 6, 3) for cells in (24, 48))
    assert -0.01 < coarse < fine < 0 and 1.6 < np.log2(coarse / fine) < 2.3


def test_where_convection_dominates_the_upwinding_damps_by_a_high_order():
    coarse, fine = (decay(cells, 100.0, 0.2, 5, 2) for cells in (12, 24))
    assert 0.05 < coarse < 0.3 and abs(fine) < 0.005  # of parabolas 1.4 and 0.19


@pytest.mark.parametrize("ends", ["periodic", "wall"])
def test_states_on_faces_are_of_fifth_order_where_cells_are_equal(ends):
    errors = []
    for cells in (16, 32):
        h = np.full(cells, 2 * np.pi / cells)
        flow = cartesian.Flow([h, [1.0], [1.0]], boundaries(ends, 4), viscosity=1.0)
        nodes = np.cumsum(h)
        averages = (np.cos(nodes - h) - np.cos(nodes)) / h  # of sin
        at_faces = np.sin(nodes if ends == "periodic" else nodes[:-1])
        inside = slice(None) if ends == "periodic" else slice(2, -2)
        errors.append([abs(s - at_faces)[inside].max() for s in flow._reconstructed(averages, 0)])
    orders = np.log2(np.divide(*errors))
    assert (orders > 4.8).all() and (orders < 5.3).all()


def test_bdf2_is_second_order_in_time():
    ends = []
    for steps in (3, 6, 12):
        flow, q = channel.taylor_green(6, 2.0)
        ends.append(PseudoTime(flow, method="gmres").in_time(q, 1.0 / steps, steps, tolerance=1e-6)[1:])
    assert 3.2 < abs(ends[0] - ends[1]).max() / abs(ends[1] - ends[2]).max() < 5.0


# Six unknowns


def test_k_and_omega_converge_and_stay_positive():
    flow, q, law = channel.channel((2, 32, 1), 395.0, 6, stretch=2.5)
    march = PseudoTime(flow, method="gmres")
    first, lowest = None, []
    for _ in range(80):
        q, step = march.step(q)
        first = first or step
        lowest.append(float(q[4:].min()))
    assert min(lowest) > 0
    assert max(step.levels) < 1e-5 and min(first.levels) > 100
    assert step.held == 0
    shear = 395.0**-1 * q[1, :, 0].mean() / (flow.widths[1][0] / 2)
    assert abs(shear - 1) < 1e-4  # the walls carry the force, each its half
    assert abs(q[1, 0, :, 0] - law[:, 0]).max() < 0.05 * law.max()  # near the law of the wall
    assert (q[4] / q[5]).max() > 10 * flow.viscosity


def test_momentum_feels_the_eddy_viscosity():
    flow, q = random_flow("periodic", 6, (4, 3, 4))
    q[4], q[5] = 0.6, 2.0
    plain, _ = random_flow("periodic", 4, (4, 3, 4))
    plain.viscosity += 0.3
    np.testing.assert_allclose(flow.residual(q)[:4], plain.residual(q[:4]), rtol=1e-12, atol=1e-12)


def test_the_sources_of_k_and_omega():
    # Couette flow u = 3 y between walls that move with it: S^2 = 9 in every cell, also on unequal ones
    low, high = cartesian.wall(6, (0, 0, 0), 2.0), cartesian.wall(6, (6.0, 0, 0), 2.0)
    widths = [np.ones(2), np.array([0.3, 0.5, 0.7, 0.5]), np.ones(1)]
    flow = cartesian.Flow(widths, ["periodic", (low, high), "periodic"], n=6, viscosity=0.1)
    q = np.zeros((6, 2, 4, 1))
    q[1], q[4], q[5] = 3 * channel.centres(widths[1])[:, None], 0.6, 2.0
    R = flow.residual(q)[4:, :, 1:3]  # away from the walls nothing is diffused
    np.testing.assert_allclose(R[0], 0.09 * 0.6 * 2.0 - 0.3 * 9, rtol=1e-12)
    np.testing.assert_allclose(R[1], 3 / 40 * 2.0**2 - 5 / 9 * 9, rtol=1e-12)


# Its matrices


@pytest.mark.parametrize("n", [4, 6])
def test_the_system_of_a_channel_is_solved_by_corrections(backend, n):
    A, b = channel.channel_system((7, 6, 5), n, xp=backend.xp)
    assert A.shape_cells == (7, 6, 5) and A.n_block == n and A.periodic == (False, False, False)
    assert type(b) is type(A.data)
    solution = richardson(A, b, M=BlockILU0().factor(A), maxiter=40, rtol=1e-8)
    assert solution.converged
    host, right = channel.channel_system((7, 6, 5), n)
    np.testing.assert_allclose(backend.fetch(A.blocks), host.blocks, rtol=1e-9, atol=1e-9 * abs(host.blocks).max())
    np.testing.assert_allclose(backend.fetch(b), right, rtol=1e-9, atol=1e-9 * abs(right).max())


def test_six_unknowns_couple_each_other():
    A, _ = channel.channel_system((5, 5, 5), 6)
    inside = abs(A.blocks[:, 2, 2, 2]).sum(axis=0)
    assert (inside[:, 1:4] > 0).all()  # every equation feels the velocity,
    assert (inside[1:, 4:] > 0).all() and (inside[1:, 0] > 0).all()  # all but continuity the scalars


def test_more_pseudo_steps_and_a_larger_cfl_give_another_system():
    shape = (4, 4, 4)
    base, _ = channel.channel_system(shape, 4)
    assert abs(channel.channel_system(shape, 4, steps=4)[0].blocks - base.blocks).max() > 1e-6
    larger, _ = channel.channel_system(shape, 4, cfl=500.0)
    assert larger.blocks[3, ..., 0, 0].sum() < base.blocks[3, ..., 0, 0].sum()


# By behaviour


def test_a_step_without_a_solution_is_left_out_and_the_cfl_number_halved(monkeypatch):
    flow, start = channel.cavity(8, 100)
    march = PseudoTime(flow, cfl=10.0)

    def failing(A, b, **parameters):
        return finelu.result.Solution(0 * b, finelu.result.Status.NOT_FINITE, 1, 1.0, np.ones(2))

    monkeypatch.setattr("benchmarks.papers.flow.pseudo_time.richardson", failing)
    q, step = march.step(start)
    assert q is start and march.cfl == 5.0 and step.reduction >= 1
    with pytest.raises(pseudo_time.Diverged, match="does not solve the linear systems"):
        march.steady(start)


def test_the_cfl_number_grows_to_its_largest():
    flow, q = channel.cavity(8, 100)
    _, done = steady(flow, q, 1e-3, cfl=2.0, cfl_max=6.0)
    assert [step.cfl for step in done[:4]] == [2.0, 3.0, 4.5, 6.0] and max(step.cfl for step in done) == 6.0


def test_scalars_change_by_a_factor_of_four_at_most_and_it_is_counted():
    flow, q = channel.cavity(8, 100, n=6)
    q[5] = 1.0  # far below what the walls ask for
    new, step = PseudoTime(flow).step(q)
    assert new[5].max() == 4.0 and step.held >= int((new[5] == 4.0).sum()) > 0


# The command line


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: channel.cavity(8, 100, n=5), "4 unknowns a cell"),
        (lambda: cartesian.wall(6), "omega=0.0 at a wall"),
        (lambda: PseudoTime(channel.cavity(8, 100)[0], method="lu"), "'correct' or 'gmres'"),
        (lambda: PseudoTime(channel.cavity(8, 100)[0], cfl=0.0), "cfl=0.0"),
        (lambda: PseudoTime(channel.cavity(8, 100)[0], corrections=0), "corrections=0"),
    ],
)
def test_bad_parameters_are_named(make, match):
    with pytest.raises(ParameterError, match=match):
        make()
