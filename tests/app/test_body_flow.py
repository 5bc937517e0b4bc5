"""The example examples/body_flow.py: by definition, by exact solutions, by values of others, by bad input."""

import sys
from pathlib import Path

import numpy as np
import pytest
from launched import launched

from finelu.errors import ParameterError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
if not EXAMPLES.exists():
    pytest.skip("examples/ is not here", allow_module_level=True)
sys.path.insert(0, str(EXAMPLES))  # as for a script

import body_flow as bf  # noqa: E402
from pseudo_time import PseudoTime  # noqa: E402


def on_every_cut():
    return [bf.cylinder((12, 5), 1, 8.0), bf.cylinder((12, 5), 3, 8.0), bf.airfoil((24, 5), 4, 8.0)]


def annulus(cells, blocks=2, twist=0.3):
    """Between cylinders of radius 1/2 and 1 that turn with the velocities 1 and 1/4; grid lines bend by `twist`."""
    t, s = (np.linspace(0, 1, c + 1) for c in cells)
    r = 0.5 + 0.5 * (s + 0.1 * np.sin(2 * np.pi * s))
    hump = np.sin(np.pi * s) ** 2 * (1 + 0.5 * np.cos(2 * np.pi * t))[:, None]  # orthogonal at the walls
    angle = -2 * np.pi * t[:, None] + 0.2 * np.sin(2 * np.pi * t)[:, None] + twist * hump
    nodes = np.stack((r * np.cos(angle), r * np.sin(angle)))
    nodes[:, -1] = nodes[:, 0]
    blocks = bf.ring(nodes, blocks)
    for name, part in blocks.nodes.items():  # the velocity of the walls is that at the middle of each face
        for face, j, speed in (("j-", 0, 1.0), ("j+", -1, 0.25)):
            x, y = (part[:, 1:, j] + part[:, :-1, j]) / 2
            blocks.ends[name][face] = speed * np.stack((-y, x)) / np.hypot(x, y)
    return blocks


def couette(flow):
    """u = A r + B / r around the axis, dp/dr = u^2 / r: (3, cells)."""
    x, y = np.concatenate([b.centre.reshape(2, -1) for b in flow.blocks], axis=1)
    r, B = np.hypot(x, y), (1.0 - 0.25 * 0.5) / (2 - 0.5)
    A = 0.25 - B
    u = A * r + B / r
    return np.stack((A**2 * r**2 / 2 + 2 * A * B * np.log(r) - B**2 / (2 * r**2), -u * y / r, u * x / r))


# By definition


@pytest.mark.parametrize("case", range(3))
def test_a_uniform_flow_stays_as_it_is(case):
    flow = bf.flow_on(on_every_cut()[case], viscosity=0.1, stream=(0.8, 0.6))
    for block in flow.blocks:
        for end in block.ends:  # of walls that move with the flow too
            end.keeps[:] = np.array((1.0, 0.0, 0.0))[:, None]
            end.given[:] = np.array((0.0, 0.8, 0.6))[:, None]
    q = np.zeros((3, flow.cells)) + np.array((0.3, 0.8, 0.6))[:, None]
    for order in (1, 2):
        assert abs(flow.residual(q, order)).max() < 1e-12


@pytest.mark.parametrize("case", range(3))
def test_the_jacobian_is_the_derivative_of_the_first_order_residual(case):
    flow = bf.flow_on(on_every_cut()[case], viscosity=0.07, stream=(0.9, 0.2), beta=1.3)
    q = np.random.default_rng(0).standard_normal((3, flow.cells))
    blocks = flow.new_blocks()
    for values in blocks.values():
        values[...] = np.nan
    flow.jacobian(q, blocks)
    A = flow.matrix(blocks)

    def residual(x):
        return flow.residual(np.ascontiguousarray(x.reshape(-1, 3).T), order=1, at=q).T.ravel()

    x, step = q.T.ravel(), 1e-6
    for k in range(0, x.size, 7):
        e = np.zeros(x.size)
        e[k] = 1.0
        wanted = (residual(x + step * e) - residual(x - step * e)) / (2 * step)
        assert abs(A @ e - wanted).max() <= 1e-7 * abs(wanted).max()


@pytest.mark.parametrize(
    ("blocks", "inside"),  # next to a boundary lines hold copies here
    [(annulus((12, 6)), np.s_[:, :, 1:-1]), (bf.airfoil((32, 6), 3), np.s_[:, 1:-1, :-1])],
    ids=["around", "across the wake"],
)
def test_gradients_are_those_of_a_linear_velocity(blocks, inside):
    flow = bf.flow_on(blocks, viscosity=1.0)
    q = np.zeros((3, flow.cells))
    q[1:] = np.array(((1.0, 2.0), (-3.0, 0.5))) @ np.concatenate([b.centre.reshape(2, -1) for b in flow.blocks], 1)
    for block, pair in zip(flow.blocks, flow._lines(flow.parts(q), bf.DEPTH), strict=True):
        if not block.name.startswith("airfoil"):
            found = block.gradient(pair)[inside]
            assert np.allclose(found, np.array((1.0, -3.0, 2.0, 0.5))[:, None, None], atol=1e-9)


@pytest.mark.parametrize("blocks", [(2, 5), (1, 3)])
def test_the_residual_is_the_same_on_every_cutting(blocks):
    def residual(count):
        flow = bf.flow_on(bf.cylinder((20, 6), count, 10.0), viscosity=0.05)
        q = flow.start()
        q += [np.sin(x + 2 * y) + x * y for x, y in [np.concatenate([b.centre.reshape(2, -1) for b in flow.blocks], 1)]]
        return np.concatenate(flow.parts(flow.residual(q)), axis=1)

    one, other = (residual(count) for count in blocks)
    assert abs(one - other).max() <= 1e-12 * abs(one).max()


# By exact solutions and values of others


def test_couette_flow_on_a_bent_grid_by_second_order():
    errors = []
    for cells in ((24, 8), (48, 16), (96, 32)):
        flow = bf.flow_on(annulus(cells), viscosity=0.1)
        exact = couette(flow)
        q, _ = PseudoTime(flow, cfl=20.0, method="gmres").steady(0 * exact, tolerance=1e-6)
        volume = np.concatenate([b.volume.ravel() for b in flow.blocks])
        off = q - exact
        off[0] -= (off[0] * volume).sum() / volume.sum()  # the pressure is known up to a constant
        errors.append(np.sqrt((off**2 * volume).sum(axis=1)))
    orders = np.log2(errors[1] / errors[2])
    assert (orders > 1.7).all() and (errors[2] < 2e-3).all()


def test_the_flow_around_a_cylinder_at_40():
    drags, states = [], []
    for count in (1, 4):
        blocks = bf.cylinder((48, 36), count)
        flow = bf.flow_on(blocks, viscosity=1 / 40)
        q, _ = PseudoTime(flow).steady(flow.start(), tolerance=1e-9)
        drag, lift = bf.coefficients(flow, q)
        assert abs(lift) < 1e-6
        assert 1.45 < drag < 1.6 and 1.9 < bf.bubble(blocks, bf.gathered(flow, q)) < 2.4
        drags.append(drag)
        states.append(np.concatenate(flow.parts(q), axis=1))
    assert abs(drags[0] - drags[1]) < 1e-6 and abs(states[0] - states[1]).max() < 1e-5


@pytest.mark.parametrize("method", ["gmres", "correct"])
def test_time_steps_solve_their_equations_and_combining_states_saves_pseudo_steps(meanwhile, method):
    flow = bf.flow_on(bf.cylinder((40, 28), 2), viscosity=0.01)
    dt, start = 0.2, flow.start()
    bf.disturb(flow, start)

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
    flow = bf.flow_on(bf.cylinder((40, 28), 2), viscosity=0.01, beta=10.0)
    start, counts = flow.start(), []
    start[1:] *= 5
    march = PseudoTime(flow, method="gmres", rtol=0.2, corrections=60, cfl=1000.0)
    march.in_time(start, 5.0, 2, watch=lambda time, q, done: counts.append(len(done)))
    assert max(counts) < 100  # with one matrix a time step 130


def test_states_are_combined_to_the_smallest_residual_there_is():
    flow = bf.flow_on(bf.cylinder((6, 5), 1), viscosity=0.01)
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
    found = bf.cycle(t, 1.3 + 0.02 * np.cos(4 * np.pi * 0.165 * t), 0.1 + 0.33 * np.sin(2 * np.pi * 0.165 * t))
    assert found.periods == 5 and found.drift < 1e-3
    np.testing.assert_allclose((found.strouhal, found.drag, found.lift), (0.165, 1.3, 0.33), rtol=1e-3)
    for lift in (np.exp(-t), np.exp(-t / 10) * np.sin(t)):  # no crossings; none that repeat themselves
        assert bf.cycle(t, 1 + 0 * t, lift) is None


# Blocks


def test_a_folded_cell_is_named():
    nodes = bf.cylinder((12, 5), 1).nodes["o1"].copy()
    nodes[:, 9, 2] = 0.0
    with pytest.raises(ParameterError, match=r"block o2: cell \(2, 1\) has the volume -"):
        bf.ring(nodes, 2)


@pytest.mark.parametrize(
    ("processes", "blocks", "more"), [(2, 3, ""), (2, 3, "--re 100 --dt 0.4 --steps 3 --every 1"), (2, 1, "")]
)
def test_processes_share_the_blocks(capsys, monkeypatch, processes, blocks, more):
    pytest.importorskip("mpi4py")
    monkeypatch.setenv("FINELU_NUM_THREADS", "1")
    arguments = ["cylinder", "--cells", "24", "12", "--blocks", str(blocks), "--method", "correct", *more.split()]
    done = launched(processes, sys.executable, EXAMPLES / "body_flow.py", *arguments, "--mpi")
    if blocks < processes:
        assert done.stderr.count("error: 2 processes for 1 blocks") == 1 and "Traceback" not in done.stderr
        assert done.returncode != 0
    else:
        assert done.returncode == 0, done.stderr
        bf.main(arguments)
        out = capsys.readouterr().out

        def results(text):  # the lines of a steady flow, or of its time steps
            return [line for line in text.splitlines() if line.startswith(("drag", "  "))]

        assert results(done.stdout) == results(out) != []
