"""The short examples: small runs as a user starts them, and what their results must satisfy."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.sparse.linalg import spsolve

import finelu

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
if not EXAMPLES.exists():
    pytest.skip("examples/ is not here", allow_module_level=True)
SMALL = {
    "poisson": ["--cells", "8"],
    "heat": ["--cells", "12", "--steps", "3"],
    "bratu": ["--cells", "12"],
    "circuit": ["--width", "10"],
    "power_flow": ["--samples", "5", "--buses", "12"],
    "fem": ["--refine", "2"],
    "resistivity": ["--cells", "8", "--sources", "4"],
    "frequency_sweep": ["--cells", "8", "--frequencies", "5", "--each"],
    "tower": ["--width", "3", "--steps", "3"],
    "room": ["--frequency", "80"],
    "reservoir": ["--cells", "16"],
    "power_grid": ["--width", "20"],
    "beam": ["--width", "2"],
    "matting": ["--height", "24"],
    "torch_layer": ["--width", "4", "--steps", "3"],
}
NEEDS = {"fem": "skfem", "torch_layer": "torch"}


def example(name):
    """The module examples/<name>.py; skips the test where a package that it needs is not installed."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SMALL)
def test_it_runs_as_its_first_lines_say(name, capsys):
    module = example(name)
    assert f"python examples/{name}.py {SMALL[name][0]}" in module.__doc__
    module.main(SMALL[name])
    assert capsys.readouterr().out.strip()


def test_every_example_is_tested():
    own = {
        "body_flow",
        "channel_flow",
        "petsc_convection_diffusion",
        "petsc_snes",
        "sphere_flow",
    }  # have their own tests
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*SMALL, *own}


def test_it_runs_as_a_program():
    out = subprocess.run(
        [sys.executable, EXAMPLES / "poisson.py", "--cells", "6"], capture_output=True, text=True, check=True
    ).stdout
    assert "Converged: " in out


def test_the_error_of_poisson_falls_with_the_square_of_the_width():
    poisson = example("poisson").poisson
    (first, coarse), (second, fine) = poisson(7), poisson(15)  # widths 1/8 and 1/16
    assert first.converged and second.converged
    assert 3.8 < coarse / fine < 4.2


def test_heat_follows_the_decay_of_its_mode():
    cells, steps = 15, 12
    solutions = []
    u, times = example("heat").heat(cells, steps, report=lambda k, time, solution: solutions.append(solution))
    h = 1 / (cells + 1)
    rate = 8 * np.sin(np.pi * h / 2) ** 2 / h**2  # of this mode, of the 5-point stencil
    s = np.sin(np.pi * h * np.arange(1, cells + 1))
    expected = np.outer(s, s) / np.prod(1 + np.diff(times) * rate)
    assert abs(u - expected).max() <= 1e-8 * expected.max()
    assert len(solutions) == steps and all("Converged: " in solution.explain() for solution in solutions)


def test_bratu_is_solved_with_newtons_order():
    module = example("bratu")
    cells, c = 20, 6.0
    u, norms = module.bratu(cells, c)
    padded = np.pad(u, 1)
    laplacian = 4 * u - padded[:-2, 1:-1] - padded[2:, 1:-1] - padded[1:-1, :-2] - padded[1:-1, 2:]
    assert np.linalg.norm(laplacian - c / (cells + 1) ** 2 * np.exp(u)) <= 1e-9 * norms[0]
    assert abs(u - u.T).max() <= 1e-6 * u.max() and u.min() > 0
    assert len(norms) <= 9


def test_sound_takes_the_same_way_in_both_directions():
    module = example("room")
    A, inside = module.room(150.0)
    assert inside.any() and abs(A - A.T).max() == 0 and A.dtype.kind == "c"
    here, there = np.flatnonzero(~inside.ravel())[[40, -90]]
    heard = []
    for source, ear in ((here, there), (there, here)):
        b = np.zeros(A.shape[0], complex)
        b[source] = 1
        solution = finelu.solve(A, b, 1e-10)
        assert solution.converged
        heard.append(solution.x[ear])
    assert abs(heard[0] - heard[1]) <= 1e-7 * abs(heard[0]) > 0


def test_the_wells_of_the_reservoir_give_what_is_pumped_in():
    module = example("reservoir")
    k = module.permeability(24)
    assert np.array_equal(k, module.permeability(24)) and k.max() / k.min() > 1e3
    A, b, corners = module.five_spot(k)
    solution = finelu.solve(A, b)
    assert solution.converged and abs(module.WELL * solution.x[corners].sum() - 1) < 1e-6
    assert solution.x.argmax() == b.argmax() and solution.x.min() > 0  # the largest pressure is at the injection


def test_the_pads_of_the_power_grid_give_what_the_blocks_take():
    module = example("power_grid")
    A, b, held = module.grid(30)
    assert b.sum() == pytest.approx(sum(block[-1] for block in module.BLOCKS))
    solution = finelu.solve(A, b)
    assert solution.converged and module.PAD * solution.x[held].sum() == pytest.approx(b.sum(), rel=1e-6)
    assert solution.x.min() > 0


def test_the_beam_sinks_as_beam_theory_says():
    module = example("beam")
    solution, u = module.bend(4)
    assert solution.converged and not u[:, :, 0].any()
    weight, long = module.WEIGHT / 4, module.LENGTH * 4  # the weight of a unit of the length, and the length
    euler = weight * long**4 / (8 * 4**4 / 12)  # q L^4 / (8 E I)
    assert 0.7 < -u[:, :, -1, 2].mean() / euler < 1.1  # trilinear elements are stiff in bending


def test_the_matte_is_that_of_the_image():
    module = example("matting")
    image, opacity = module.dandelion(48)
    A = module.laplacian(image)
    assert abs(A - A.T).max() <= 1e-10 * abs(A).max() and abs(A.sum(axis=1)).max() <= 1e-10 * abs(A).max()
    marked = (opacity > 0.999) | (opacity < 1e-3)
    solution = module.matte(image, marked, opacity > 0.5)
    assert solution.converged
    assert abs(solution.x.reshape(opacity.shape) - opacity)[~marked].mean() < 0.05


@pytest.mark.parametrize("name", ["heat", "circuit", "room", "reservoir", "power_grid", "beam", "matting"])
def test_it_draws_a_picture(name, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.png"
    example(name).main([*SMALL[name], "--png", str(path)])
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_potentials_of_the_ground_are_reciprocal_and_their_currents_leave_by_the_sides():
    module = example("resistivity")
    A, places = module.ground(module.conductivity(10)), module.electrodes(10, 5)
    assert abs(A - A.T).max() == 0 and places.size == 5 == np.unique(places).size and (places < 100).all()
    out = np.asarray(A.sum(axis=1)).reshape(10, 10, 10)  # the conductance to the sides that are held at 0
    inner = np.s_[:-1, 1:-1, 1:-1]
    assert abs(out[inner]).max() <= 1e-12 * out.max() and (out[-1] > 0).all() and (out[0, 0] > 0).all()
    B = np.zeros((1000, 5))
    B[places, np.arange(5)] = 1.0
    found = finelu.solve(A, B, 1e-10)
    assert found.all_converged and np.allclose(found.x[places], found.x[places].T, rtol=1e-7)
    np.testing.assert_allclose(out.ravel() @ found.x, np.ones(5), rtol=1e-7)


def test_a_tower_in_the_wind_softens_and_its_slow_motions_are_recycled():
    module = example("tower")
    tower = module.Tower(6)
    K = tower.stiffness(np.ones(len(tower.places)))
    assert abs(K - K.T).max() <= 1e-12 * abs(K).max()
    kept, hand = finelu.Sequence(rtol=module.RTOL), module.by_hand()
    (u, d, found), (v, _, plain) = (module.stand(tower, 10, solve) for solve in (kept.step, hand))
    # each step is solved to RTOL in the residual; what that leaves in u is far below a thousandth
    np.testing.assert_allclose(u, v, rtol=0, atol=1e-3 * abs(v).max())
    assert 0 < d.min() < 1e-3 and 0.3 < d.max() < module.MOST  # the foot softens, the top does not
    assert sum(s.iterations for s in found) < 0.7 * sum(s.iterations for s in plain)
    assert "recycled vectors keep" in found[-1].explain()


def test_a_brick_has_the_energy_of_its_strain_and_none_of_motions_as_a_whole():
    module = example("tower")
    K = module.brick()
    corners = np.array([[i >> 2 & 1, i >> 1 & 1, i & 1] for i in range(8)], float)
    assert np.isclose(np.linalg.eigvalsh(K), 0, atol=1e-12).sum() == 6  # three shifts and three turns
    stretched = corners * [1, -module.POISSON, -module.POISSON]  # a bar of modulus 1 that is pulled by 1
    assert stretched.ravel() @ K @ stretched.ravel() == pytest.approx(1, rel=1e-12)


def test_bratu_says_so_where_there_is_no_solution():
    with pytest.raises(RuntimeError, match="did not converge"):
        example("bratu").bratu(10, 12.0, steps=6)


def test_the_layer_learns_and_its_gradient_is_that_of_differences():
    module = example("torch_layer")
    losses = module.fit(5, 60)
    assert losses[-1] < 0.2 * losses[0]
    import torch

    network, currents = module.Network(3), torch.linspace(-1, 1, 9, dtype=torch.float64)
    network(currents).square().sum().backward()
    step = 1e-5
    with torch.no_grad():
        values = []
        for change in (step, -2 * step):
            network.logarithms[4] += change
            values.append(float(network(currents).square().sum()))
    difference = (values[0] - values[1]) / (2 * step)
    assert abs(float(network.logarithms.grad[4]) - difference) <= 1e-5 * abs(difference)


def test_finite_elements_agree_with_a_direct_solve():
    module = example("fem")
    basis, u, solution = module.membrane(3)
    assert solution.converged
    A, b = module.laplace.assemble(basis), module.unit_load.assemble(basis)
    inner, right, expected, inside = module.skfem.condense(A, b, D=basis.get_dofs())
    expected[inside] = spsolve(sp.csc_matrix(inner), right)
    assert abs(u - expected).max() <= 1e-7 * expected.max()


def test_the_circuit_takes_the_power_that_it_is_given():
    module = example("circuit")
    circuit = module.sheet(12)
    with pytest.raises(finelu.MatrixError, match="row 144"):
        finelu.ILU0().factor(circuit.A)
    solution = finelu.solve(circuit.A, circuit.b, 1e-10)
    assert solution.converged
    taken, given = module.powers(circuit, solution.x)
    assert abs(taken - given) <= 1e-6 * given
    assert np.allclose(solution.x[circuit.sources[:, 0] - 1], circuit.volts, rtol=1e-8)


def test_power_flows_have_the_wanted_powers():
    module = example("power_flow")
    grid = module.Grid(40)
    wanted = grid.loads(9)
    x, steps, solved, _ = module.power_flows(grid, wanted)
    assert 2 <= steps <= 6 and 9 * 2 <= solved <= 9 * steps
    assert abs(grid.powers(x)[0] - wanted).max() <= module.TOLERANCE
    assert (x[:, 39:] > 0.8).all()
