"""Flows on grids of several blocks, in 2D and 3D: by definition, exact solutions, values of others, bad input."""

import sys
from pathlib import Path

import numpy as np
import pytest
from launched import launched

from finelu import BlockILU0, richardson
from finelu.errors import ParameterError

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "examples").exists():
    pytest.skip("examples/ is not here", allow_module_level=True)
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

import body_flow  # noqa: E402
import sphere_flow  # noqa: E402

from benchmarks.papers.flow import body, grids, turbulence  # noqa: E402
from benchmarks.papers.flow import sphere as around_sphere  # noqa: E402
from benchmarks.papers.flow.curved import CurvedFlow, flow_on, gathered  # noqa: E402
from benchmarks.papers.flow.grids import airfoil, cylinder, ring, sphere  # noqa: E402
from benchmarks.papers.flow.pseudo_time import PseudoTime  # noqa: E402

PLANE, SPACE = (0.8, 0.6), (0.8, 0.6, 0.2)
GRIDS = [  # blocks, and the stream: velocities, or with temperature and turbulence
    (cylinder((12, 5), 1, 8.0), PLANE),
    (cylinder((12, 5), 3, 8.0), PLANE),
    (airfoil((24, 5), 4, 8.0), PLANE),
    (sphere((3, 6), 2, 8.0), SPACE),
    (sphere((3, 4), 1, 8.0), (*SPACE, 0.3, 2.0)),
]


def on_whole_lines(flow, blocks, q):
    """A state of a cylinder's O-grid, (n, I, J), however that is cut."""
    parts = flow.by_name(q)
    return np.concatenate([parts[name] for name in blocks.nodes], axis=1)


def annulus(cells, blocks=2, twist=0.3):
    """Between cylinders of radius 1/2 and 1 that turn with the velocities 1 and 1/4; grid lines bend by `twist`."""
    t, s = (np.linspace(0, 1, c + 1) for c in cells)
    r = 0.5 + 0.5 * (s + 0.1 * np.sin(2 * np.pi * s))
    hump = np.sin(np.pi * s) ** 2 * (1 + 0.5 * np.cos(2 * np.pi * t))[:, None]  # orthogonal at the walls
    angle = -2 * np.pi * t[:, None] + 0.2 * np.sin(2 * np.pi * t)[:, None] + twist * hump
    nodes = np.stack((r * np.cos(angle), r * np.sin(angle)))
    nodes[:, -1] = nodes[:, 0]
    blocks = ring(nodes, blocks)
    for name, part in blocks.nodes.items():  # the velocity of the walls is that at the middle of each face
        for face, j, speed in (("j-", 0, 1.0), ("j+", -1, 0.25)):
            x, y = (part[:, 1:, j] + part[:, :-1, j]) / 2
            blocks.ends[name][face] = speed * np.stack((-y, x)) / np.hypot(x, y)
    return blocks


def couette(flow):
    """u = A r + B / r around the axis, dp/dr = u^2 / r: (3, cells)."""
    x, y = flow.centres
    r, B = np.hypot(x, y), (1.0 - 0.25 * 0.5) / (2 - 0.5)
    A = 0.25 - B
    u = A * r + B / r
    return np.stack((A**2 * r**2 / 2 + 2 * A * B * np.log(r) - B**2 / (2 * r**2), -u * y / r, u * x / r))


# By definition


@pytest.mark.parametrize(("blocks", "stream"), GRIDS)
def test_a_uniform_flow_stays_as_it_is(blocks, stream):
    flow = flow_on(blocks, viscosity=0.1, stream=stream)
    for group in flow.groups:
        for end in group.ends:  # of walls that move with the flow too
            end.keeps[:], end.keeps[0] = 0, 1
            end.given[:] = np.array((0.0, *stream)).reshape(-1, *[1] * (end.given.ndim - 1))
    q = np.zeros((flow.n, flow.cells)) + np.array((0.3, *stream))[:, None]
    for order in (1, 2):
        R = flow.residual(q, order)
        if flow.scalars:  # a uniform chi is destroyed near walls
            (group,), (values,) = flow.groups, flow.parts(q)
            R[-1] += turbulence.source(values[-1], 0 * group.distance, group.distance, 0.1).ravel()
        assert abs(R).max() < 1e-12


@pytest.mark.parametrize(("blocks", "stream"), GRIDS)
def test_the_jacobian_is_the_derivative_of_the_first_order_residual(blocks, stream):
    flow = flow_on(blocks, viscosity=0.07, stream=stream, beta=1.3)
    rng, n = np.random.default_rng(0), flow.n
    q = rng.standard_normal((n, flow.cells))
    if flow.scalars:  # where chi falls by itself: what makes it rise is left out
        q[-1] = rng.uniform(5.0, 9.0, flow.cells)
    memory = flow.new_blocks()
    for values in memory:
        values[...] = np.nan
    flow.jacobian(q, memory)
    A = flow.matrix(memory)

    def residual(x):
        return flow.residual(np.ascontiguousarray(x.reshape(-1, n).T), order=1, at=q).T.ravel()

    x, step = q.T.ravel(), 1e-6
    for k in range(0, x.size, 7 if flow.d == 2 else 41):
        e = np.zeros(x.size)
        e[k] = 1.0
        wanted = (residual(x + step * e) - residual(x - step * e)) / (2 * step)
        difference = A @ e - wanted
        if flow.scalars and k % n == n - 1:
            assert difference[k] > -1e-6 * abs(wanted).max()
            difference[k] = 0
        assert abs(difference).max() <= 1e-7 * abs(wanted).max()


@pytest.mark.parametrize(
    ("blocks", "inside"),  # next to a boundary lines hold copies here
    [
        (annulus((12, 6)), np.s_[..., 1:-1]),
        (airfoil((32, 6), 3), np.s_[..., 1:-1, :-1]),
        (sphere((4, 5), 1, 4.0), np.s_[..., 1:-1]),
    ],
    ids=["around", "across the wake", "in space"],
)
def test_gradients_are_those_of_a_linear_velocity(blocks, inside):
    d = next(iter(blocks.nodes.values())).ndim - 1
    flow, slope = flow_on(blocks, viscosity=1.0, stream=np.eye(d)[0]), np.array([[1.0, 2, 4], [-3, 0.5, 1], [2, 6, 7]])
    q = np.zeros((d + 1, flow.cells))
    q[1:] = slope[:d, :d] @ flow.centres
    for group, lines in zip(flow.groups, flow._lines(flow.parts(q), grids.DEPTH), strict=True):
        if not group.names[0].startswith("airfoil"):
            found = group.gradient(lines, grids.DEPTH)[inside]
            wanted = slope[:d, :d].T.reshape(d, d, *[1] * (found.ndim - 2))
            assert np.allclose(found, wanted, atol=1e-9)


@pytest.mark.parametrize("counts", [(2, 5), (1, 3)])
def test_the_residual_is_the_same_on_every_cutting(counts):
    def residual(count):
        blocks = cylinder((20, 6), count, 10.0)
        flow = flow_on(blocks, viscosity=0.05)
        x, y = flow.centres
        return on_whole_lines(flow, blocks, flow.residual(flow.start() + np.sin(x + 2 * y) + x * y))

    one, other = (residual(count) for count in counts)
    assert abs(one - other).max() <= 1e-12 * abs(one).max()


def test_the_residual_is_the_same_on_every_cutting_in_space():
    def residual(shells):
        flow = flow_on(sphere((4, 12), shells, 4.0), viscosity=0.05, stream=(1.0, 0.0, 0.0, 0.0, 3.0))
        x, y, z = flow.centres
        parts = flow.by_name(flow.residual(flow.start() + np.sin(x + 2 * y) * z + x * y))
        return np.stack([np.concatenate([parts[f"{face} {s + 1}"] for s in range(shells)], axis=-1) for face in FACES])

    FACES = ("+x", "-x", "+y", "-y", "+z", "-z")
    one, other, third = (residual(shells) for shells in (1, 2, 4))
    for cut in (other, third):
        assert (abs(one - cut).max(axis=(0, 2, 3, 4)) <= 1e-11 * abs(one).max(axis=(0, 2, 3, 4))).all()


# By exact solutions and values of others


def test_couette_flow_on_a_bent_grid_by_second_order():
    errors = []
    for cells in ((24, 8), (48, 16), (96, 32)):
        flow = flow_on(annulus(cells), viscosity=0.1)
        exact = couette(flow)
        q, _ = PseudoTime(flow, cfl=20.0, method="gmres").steady(0 * exact, tolerance=1e-6)
        volume = flow.volumes
        off = q - exact
        off[0] -= (off[0] * volume).sum() / volume.sum()  # the pressure is known up to a constant
        errors.append(np.sqrt((off**2 * volume).sum(axis=1)))
    orders = np.log2(errors[1] / errors[2])
    assert (orders > 1.7).all() and (errors[2] < 2e-3).all()


def test_the_flow_around_a_cylinder_at_40():
    drags, states = [], []
    for count in (1, 4):
        blocks = cylinder((48, 36), count)
        flow = flow_on(blocks, viscosity=1 / 40)
        q, _ = PseudoTime(flow).steady(flow.start(), tolerance=1e-9)
        drag, lift = body.coefficients(flow, q)
        assert abs(lift) < 1e-6
        assert 1.45 < drag < 1.6 and 1.9 < body.bubble(blocks, gathered(flow, q)) < 2.4
        drags.append(drag)
        states.append(on_whole_lines(flow, blocks, q))
    assert abs(drags[0] - drags[1]) < 1e-6 and abs(states[0] - states[1]).max() < 1e-5


def slopes(f, x, h=1e-3):
    """df/dx_m of f at points x (3, cells), (3, ...), by differences of fourth order."""
    sides = [h * e[:, None] for e in np.eye(3)]
    return np.stack([(8 * (f(x + s) - f(x - s)) - f(x + 2 * s) + f(x - 2 * s)) / (12 * h) for s in sides])


def manufactured(x):
    """All six unknowns at points x (3, cells): the flow of Arnold and Childress, whose vorticity is its velocity."""
    X, Y, Z = x
    u = np.stack((np.sin(Z) + np.cos(Y), np.sin(X) + np.cos(Z), np.sin(Y) + np.cos(X)))
    r = np.sqrt(X**2 + Y**2 + Z**2)
    T = np.sin(X) * np.cos(2 * Y) + Z
    chi = 20 * (r - 0.5) * (1.5 - r) * (1 + 0.3 * np.sin(X + Y))
    return np.concatenate((-(u**2).sum(axis=0, keepdims=True) / 2, u, [T, chi]))


def left_over(x, distance, nu):
    """What the equations, as the papers print them, leave of `manufactured` (6, cells)."""

    def fluxes(x):
        q, slope = manufactured(x), slopes(manufactured, x)
        u, by, nu_t = q[1:4], slope[:, 1:4], nu * q[5] * np.maximum(q[5], 0) ** 3 / (q[5] ** 3 + 7.1**3)
        flux = np.stack([u, *(u * v for v in q[1:])])  # (unknown, direction, cells)
        flux[1:4] += q[0] * np.eye(3)[:, :, None] - nu * by.swapaxes(0, 1) - nu_t * (by + by.swapaxes(0, 1))
        flux[4] -= (nu / turbulence.PRANDTL + nu_t / turbulence.PRANDTL_T) * slope[:, 4]
        flux[5] -= 1.5 * nu * (1 + q[5]) * slope[:, 5]
        return flux

    q, slope = manufactured(x), slopes(manufactured, x)
    found = np.einsum("mrmc->rc", slopes(fluxes, x))
    speed = np.sqrt((q[1:4] ** 2).sum(axis=0))
    found[5] -= turbulence.source(q[5], speed, distance, nu) + 1.5 * nu * 0.622 * (slope[:, 5] ** 2).sum(axis=0)
    return found


class Manufactured(CurvedFlow):
    """A flow with the solution `manufactured`, up to the mean of what the continuity equation leaves."""

    def residual(self, q, order=2, at=None):
        R = super().residual(q, order, at) - self.known
        R[0] -= (R[0] * self.volumes).sum() / self.volumes.sum()
        return R


def test_a_manufactured_turbulent_flow_is_met_with_the_order_that_is_claimed():
    errors = []
    for cells in ((4, 8), (8, 16)):
        blocks, s = sphere(cells), np.linspace(0, 1, cells[1] + 1)
        for name, X in blocks.nodes.items():  # a shell between radii of 0.5 and 1.5
            X *= (0.5 + s + 0.08 * np.sin(2 * np.pi * s)) / np.sqrt((X**2).sum(axis=0))
            for face, k in (("k-", 0), ("k+", -1)):
                middle = grids.means(X[..., k], (-1, -2))
                blocks.ends[name][face] = manufactured(middle.reshape(3, -1))[1:].reshape(5, *middle.shape[1:])
        flow = flow_on(blocks, kind=Manufactured, viscosity=0.02, stream=(1.0, 0.0, 0.0, 0.0, 0.0))
        exact = manufactured(flow.centres)
        flow.known = left_over(flow.centres, flow.groups[0].distance.ravel(), 0.02)
        march = PseudoTime(flow, cfl=10.0, method="gmres", rtol=0.05, cfl_max=300.0)
        q, _ = march.steady(exact * (1 + 0.1 * np.sin(5 * flow.centres[0])), tolerance=1e-4)
        off = q - exact
        off[0] -= (off[0] * flow.volumes).sum() / flow.volumes.sum()
        errors.append(np.sqrt((off**2 * flow.volumes).sum(axis=1) / flow.volumes.sum()))
    orders = np.log2(errors[0] / errors[1])  # lines have kinks at the edges of the cube
    assert orders[0] > 1.2 and (orders[1:] > 1.5).all() and (errors[1] < 0.015).all()


def test_the_flow_around_a_sphere_at_40():
    flow = flow_on(sphere((6, 16)), viscosity=1 / 40, stream=(1.0, 0.0, 0.0, 0.0, 0.1))
    q, _ = PseudoTime(flow, rtol=0.05, corrections=60).steady(flow.start(), tolerance=1e-7)
    found = around_sphere.measured(flow, q)
    assert abs(found.drag / around_sphere.clift_drag(40) - 1) < 0.02
    assert abs(found.nusselt / around_sphere.clift_nusselt(40) - 1) < 0.03
    assert max(map(abs, found.sideways)) < 1e-7
    parts = flow.by_name(q)
    up, down = parts["+y 1"], parts["-y 1"].swapaxes(1, 2)  # i and j of opposite blocks are exchanged
    mirrored = up * np.array((1, 1, -1, 1, 1, 1))[:, None, None, None]
    assert abs(mirrored - down).max() < 1e-6


def test_the_system_of_a_sphere_is_that_of_the_host_and_solved_by_corrections(backend):
    def system(xp):
        flow = flow_on(sphere((4, 9), 3), viscosity=0.02, stream=(1.0, 0.0, 0.0, 0.0, 3.0), xp=xp)
        march = PseudoTime(flow)
        q, _ = march.step(flow.start())
        return *march.system(q, march.residual(q)), flow.through_walls(q)

    (A, b, through), (A_host, b_host, through_host) = system(backend.xp), system(np)
    assert type(b) is type(A.data)
    assert richardson(A, b, M=BlockILU0().factor(A), maxiter=60, rtol=1e-8).converged
    np.testing.assert_allclose(backend.fetch(b), b_host, rtol=1e-9, atol=1e-9 * abs(b_host).max())
    np.testing.assert_allclose(through, through_host, rtol=1e-9, atol=1e-9)
    x = np.sin(np.arange(b_host.size))
    product = A_host @ x
    np.testing.assert_allclose(backend.fetch(A @ backend.move(x)), product, rtol=1e-9, atol=1e-9 * abs(product).max())


def test_a_free_stream_with_turbulence_thickens_the_flow():
    drags = []
    for chi in (0.0, 20.0):
        flow = flow_on(sphere((4, 10)), viscosity=1 / 40, stream=(1.0, 0.0, 0.0, 0.0, chi))
        q, _ = PseudoTime(flow, rtol=0.05, corrections=60).steady(flow.start(), tolerance=1e-3)
        drags.append(around_sphere.measured(flow, q).drag)
    assert 1.04 < drags[1] / drags[0] < 1.3


def test_the_sources_of_chi():
    chi, one = np.array([-2.0, 0.0, 0.3, 5.0, 50.0]), np.ones(5)
    found = turbulence.source(chi, 3 * one, 0.5 * one, 0.01)
    for value, got in zip(chi, found, strict=True):  # as the paper prints them, in nu~
        nut, S, d, nu, k2 = value * 0.01, 3.0, 0.5, 0.01, 0.41**2
        cw1 = 0.1355 / k2 + 1.622 * 1.5
        if value < 0:
            wanted = 0.1355 * (1 - 1.2) * S * nut + cw1 * (nut / d) ** 2
        else:
            fv1 = value**3 / (value**3 + 7.1**3)
            strain = S + nut / (k2 * d * d) * (1 - value / (1 + value * fv1))
            r = min(nut / (strain * k2 * d * d), 10)
            g, ft2 = r + 0.3 * (r**6 - r), 1.2 * np.exp(-0.5 * value**2)
            fw = g * (65 / (g**6 + 64)) ** (1 / 6)
            wanted = 0.1355 * (1 - ft2) * strain * nut - (cw1 * fw - 0.1355 / k2 * ft2) * (nut / d) ** 2
        np.testing.assert_allclose(got, wanted / nu, rtol=1e-12, atol=1e-15)
    slope = (turbulence.source(chi + 1e-5, 3 * one, 0.5 * one, 0.01) - found) / 1e-5
    np.testing.assert_allclose(
        turbulence.damping(chi, 3 * one, 0.5 * one, 0.01)[3:], np.maximum(-slope, 0)[3:], rtol=1e-3
    )


@pytest.mark.parametrize("function", [turbulence.eddy, turbulence.spread])
def test_the_derivatives_by_chi(function):
    chi = np.array([-8.0, -1.0, 0.5, 7.0, 90.0])
    slope = (function(chi + 1e-5)[0] - function(chi - 1e-5)[0]) / 2e-5
    np.testing.assert_allclose(function(chi)[1], slope, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("method", ["gmres", "correct"])
def test_time_steps_solve_their_equations_and_combining_states_saves_pseudo_steps(meanwhile, method):
    flow = flow_on(cylinder((24, 16), 2), viscosity=0.01)
    dt, start = 0.2, flow.start()
    body.disturb(flow, start)

    def flown():
        states, counts = [], []
        march = PseudoTime(flow, method=method, rtol=0.1, corrections=60, cfl=1000.0)
        march.in_time(
            start, dt, 4, tolerance=1e-5, watch=lambda time, q, done: (states.append(q), counts.append(len(done)))
        )
        return states, sum(counts)

    states, combined = flown()
    for before, old, new in zip(states, states[1:], states[2:], strict=False):
        sizes = []
        for q in (old, new):
            R = flow.residual(q)
            R[1:] += (1.5 * q - 2 * old + 0.5 * before)[1:] / dt
            sizes.append(np.linalg.norm(R))
        assert sizes[1] < 2e-5 * sizes[0]
    meanwhile(PseudoTime, _combined=lambda march, q, b: (q, b))
    assert combined < 0.9 * flown()[1]


def test_a_matrix_that_leads_no_further_is_made_anew():
    flow = flow_on(cylinder((40, 28), 2), viscosity=0.01, beta=10.0)
    start, counts = flow.start(), []
    start[1:] *= 5
    march = PseudoTime(flow, method="gmres", rtol=0.2, corrections=60, cfl=1000.0)
    march.in_time(start, 5.0, 2, watch=lambda time, q, done: counts.append(len(done)))
    assert max(counts) < 100  # with one matrix a time step 130


def test_states_are_combined_to_the_smallest_residual_there_is():
    flow = flow_on(cylinder((6, 5), 1), viscosity=0.01)
    march = PseudoTime(flow)
    random = np.random.default_rng(1)
    J, b0 = random.standard_normal((90, 90)), random.standard_normal(90)
    march.seen = []
    directions = random.standard_normal((5, 3, 30))
    for k, q in enumerate(np.cumsum(directions, axis=0)):
        got, b = march._combined(q, b0 - J @ q.ravel())
        np.testing.assert_allclose(b, b0 - J @ got.ravel(), atol=1e-8)
        base, span = directions[0].ravel(), directions[1 : k + 1].reshape(k, 90).T
        best = np.linalg.lstsq(J @ span, b0 - J @ base, rcond=None)[0] if k else []
        np.testing.assert_allclose(np.linalg.norm(b), np.linalg.norm(b0 - J @ (base + span @ best)), rtol=1e-9)


def test_the_cycle_of_a_history():
    t = 0.3 * np.arange(400)
    found = body.cycle(t, 1.3 + 0.02 * np.cos(4 * np.pi * 0.165 * t), 0.1 + 0.33 * np.sin(2 * np.pi * 0.165 * t))
    assert found.periods == 5 and found.drift < 1e-3
    np.testing.assert_allclose((found.strouhal, found.drag, found.lift), (0.165, 1.3, 0.33), rtol=1e-3)
    for lift in (np.exp(-t), np.exp(-t / 10) * np.sin(t)):  # no crossings; none that repeat themselves
        assert body.cycle(t, 1 + 0 * t, lift) is None


# Blocks


def test_a_face_that_meets_no_other_is_named():
    nodes = sphere((3, 4)).nodes
    with pytest.raises(ParameterError, match=r"face i- of block \+x 1 meets no other"):
        grids.Blocks({"+x 1": nodes["+x 1"]}, {"+x 1": {"k-": grids.HOT_WALL, "k+": None}})


def test_a_stream_of_another_length_is_named():
    with pytest.raises(ParameterError, match="4 values of the stream; 3, or 5 with T and chi"):
        flow_on(sphere((3, 4)), viscosity=1.0, stream=(1.0, 0.0, 0.0, 0.0))


def test_a_folded_cell_is_named():
    nodes = cylinder((12, 5), 1).nodes["o1"].copy()
    nodes[:, 9, 2] = 0.0
    with pytest.raises(ParameterError, match=r"block o2: cell \(2, 1\) has the volume -"):
        ring(nodes, 2)


CYLINDER = "cylinder --cells 24 12 --method correct --blocks"


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (body_flow, f"{CYLINDER} 3"),
        (body_flow, f"{CYLINDER} 3 --re 100 --dt 0.4 --steps 3 --every 1"),
        (sphere_flow, "--cells 4 9 --blocks 6 --tolerance 1e-3"),
    ],
    ids=["steady", "in time", "sphere"],
)
def test_processes_share_the_blocks(capsys, monkeypatch, program, arguments):
    pytest.importorskip("mpi4py")
    monkeypatch.setenv("FINELU_NUM_THREADS", "1")
    done = launched(2, sys.executable, program.__file__, *arguments.split(), "--mpi")
    assert done.returncode == 0, done.stderr
    program.main(arguments.split())

    def results(text):  # the lines of a steady flow, or of its time steps
        return [line for line in text.splitlines() if line.startswith(("drag", "Nusselt", "  "))]

    assert results(done.stdout) == results(capsys.readouterr().out) != []


def test_more_processes_than_blocks_are_an_error_of_all(monkeypatch):
    pytest.importorskip("mpi4py")
    monkeypatch.setenv("FINELU_NUM_THREADS", "1")
    done = launched(2, sys.executable, body_flow.__file__, *CYLINDER.split(), "1", "--mpi")
    assert done.stderr.count("error: 2 processes for 1 blocks") == 1 and "Traceback" not in done.stderr
    assert done.returncode != 0
