"""The command line: what is printed, written and returned, for good input and for bad."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numba
import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from command_line import run, run_json

import finelu
from finelu import compiling, report
from finelu.auto import cost, ladder
from finelu.device import require_gpu
from finelu.krylov import METHODS
from finelu.preconditioners import RECIPES
from finelu.preconditioners.recipe import Recipe
from finelu.progress import Progress

SMALL = "gallery:poisson7:6"
LARGER = "gallery:poisson7:10"  # more entries than are solved directly at once


def write_matrix(path, A):
    scipy.io.mmwrite(path, sp.coo_matrix(A))
    return path


def gpu_is_there():
    try:
        require_gpu()
    except finelu.DeviceError:
        return False
    return True


# Good input


def test_solve_prints_what_it_did(capsys):
    status, out, err = run(capsys, "solve", SMALL, "--recipe", "ic0")
    assert (status, err) == (0, "")
    for text in (SMALL, "216", "IC0(", "cg", "converged", "seed 0", "relative residual", "fill", "cpu", "total time"):
        assert text in out
    assert "tried" not in out and "seen" not in out


def test_solve_prints_what_it_saw_and_chose(capsys, monkeypatch, patient):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, err = run(capsys, "solve", LARGER)
    assert (status, err) == (0, "")
    for text in ("1000 rows", "symmetric", "MILU0(", "row sums", "cg", "converged", "factor time", "total time"):
        assert text in " ".join(out.split())  # lines are broken
    assert "tried" not in out  # one attempt solved it: the other rows tell it
    assert max(map(len, out.splitlines())) <= 80


def test_what_was_tried_is_printed_briefly_and_in_the_json_in_full(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    n = 2100  # its leading block has the pivots 1 and 0
    A = sp.block_diag([np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]), sp.eye(n - 3)], format="csr")
    path = write_matrix(tmp_path / "A.mtx", A)
    status, out, err = run(capsys, "solve", path)
    assert (status, err) == (0, "")
    assert re.search(r"tried +IC0\(\): no factors: .*row 1 ", out)
    assert "Try " not in out  # the advice is for those who name the recipe
    assert max(map(len, out.splitlines())) <= 80
    _, result = run_json(capsys, "solve", path)
    first, last = result["attempts"][0], result["attempts"][-1]
    assert first["recipe"] == "IC0()" and first["method"] == "" and first["outcome"].startswith("no factors: ")
    assert last["outcome"] == "solved" and last["residual"] <= 1e-8
    assert (result["recipe"], result["method"], result["reason"]) == (last["recipe"], last["method"], last["why"])
    assert result["iterations"] == sum(a["iterations"] for a in result["attempts"])
    assert any(line.startswith("Converged: ") for line in result["explanation"])
    assert len(result["explanation"]) == len(result["seen"]) + len(result["attempts"]) + 3
    assert result["total_seconds"] >= result["factor_seconds"] + result["solve_seconds"]


def test_the_progress_shows_the_iterations_of_a_chosen_recipe(capsys, terminal, patient):
    terminal()
    status, out, err = run(capsys, "solve", LARGER)
    assert status == 0 and "converged" in out
    assert re.search(r"solving: iteration \d+, relative residual \d\.\d\de-\d\d", err)


def test_the_residual_in_the_json_is_that_of_the_x_written(capsys, tmp_path):
    x_file = tmp_path / "x.npy"
    status, result = run_json(capsys, "solve", SMALL, "-o", x_file, "--rtol", "1e-10")
    A = finelu.gallery.problem("poisson7:6")
    b = np.random.default_rng(0).uniform(-0.5, 0.5, A.shape[0])
    residual = np.linalg.norm(b - A @ np.load(x_file)) / np.linalg.norm(b)
    assert status == 0
    assert residual <= 1e-10
    assert result["relative_residual"] == pytest.approx(residual, rel=1e-3)
    assert result["converged"] is True
    assert len(result["history"]) == result["iterations"] + 1
    assert os.listdir(tmp_path) == ["x.npy"]


def test_solve_reads_matrix_and_right_hand_side(capsys, tmp_path):
    A = sp.diags([-1.0, 3.0, -1.5], [-1, 0, 1], shape=(20, 20), format="csr")
    x = np.arange(20.0)
    np.save(tmp_path / "b.npy", A @ x)
    matrix = write_matrix(tmp_path / "A.mtx", A)
    arguments = ("-b", tmp_path / "b.npy", "-o", tmp_path / "x.npy")
    status, result = run_json(capsys, "solve", matrix, "--recipe", "ilu0", *arguments)
    assert status == 0
    assert result["recipe"].startswith("ILU0(")
    assert result["method"] == "gmres"
    assert result["iterations"] == 1  # ILU(0) of a tridiagonal matrix is its LU
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), x, atol=1e-6)
    assert run(capsys, "solve", matrix, *arguments)[0] == 0
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), x, atol=1e-6)


@pytest.mark.parametrize("recipe", [*RECIPES, "none"])
def test_every_recipe_by_its_name(capsys, recipe):
    blocks = ("--set", "block_size=3") if recipe in ("block_ilu0", "cpr") else ()
    status, result = run_json(capsys, "solve", SMALL, "--recipe", recipe, *blocks)
    assert status == 0
    assert result["reason"] == "as asked"
    assert result["recipe"].lower().replace("_", "").startswith(recipe.replace("_", ""))


def test_block_ilu0_asks_for_the_size_of_the_blocks(capsys):
    status, _, err = run(capsys, "solve", SMALL, "--recipe", "block_ilu0")
    assert status == 2
    assert "give block_size" in err


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("recipe", ["auto", "jacobi"])
def test_every_method_by_its_name(capsys, method, recipe):
    status, result = run_json(capsys, "solve", LARGER, "--recipe", recipe, "--method", method)
    assert status == 0
    assert result["method"] == method


def test_the_word_about_compiling_is_no_part_of_the_json(capsys, everywhere, monkeypatch, recipe_of):
    monkeypatch.delenv("FINELU_SILENT", raising=False)
    everywhere("_said", False)
    recipe_of(lambda A: compiling.begun() or finelu.Jacobi().factor(A))
    status, out, err = run(capsys, "solve", SMALL, "--recipe", "own", "--json")
    assert status == 0 and err.startswith("finelu: compiling") and out.count("\n") == 1
    assert json.loads(out)["converged"]


def test_parameters_reach_the_recipe(capsys):
    _, option = run_json(capsys, "solve", SMALL, "--recipe", "ilu0", "--shift", "0.25", "--precision", "float32")
    _, setting = run_json(
        capsys, "solve", SMALL, "--recipe", "ilu0", "--set", "shift=0.25", "--set", "precision=float32"
    )
    _, plain = run_json(capsys, "solve", SMALL, "--recipe", "ilu0")
    assert option["recipe"] == setting["recipe"] == repr(finelu.ILU0(shift=0.25, precision="float32"))
    _, stored = run_json(capsys, "solve", SMALL, "--recipe", "ilu0", "--precision", "auto")
    assert stored["recipe"] == repr(finelu.ILU0(precision="auto")) and stored["iterations"] == plain["iterations"]
    assert option["iterations"] > plain["iterations"]  # a shifted factorization is a worse one here
    options = ("--set", "sweep=paper", "--set", "sweeps=add_fraction=0.5, progressive=true")
    _, of_sweeps = run_json(capsys, "solve", SMALL, "--recipe", "parilut", *options)
    sweeps = finelu.Sweeps(add_fraction=0.5, progressive=True)
    assert of_sweeps["recipe"] == repr(finelu.ParILUT(sweep="paper", sweeps=sweeps))


def test_steps_reach_the_recipe(capsys):
    arguments = ("solve", "gallery:ani4", "--recipe", "parict")
    made = {steps: run_json(capsys, *arguments, "--steps", steps)[1] for steps in (1, 5)}
    assert made[1]["recipe"] == repr(finelu.ParICT(steps=1)) and made[1]["method"] == "cg"
    assert made[5]["recipe"] == repr(finelu.ParICT(steps=5))
    assert made[1]["report"]["steps"] == 1 and len(made[5]["report"]["residual_norms"]) == 6
    assert made[1]["iterations"] > 1.1 * made[5]["iterations"]
    _, by_setting = run_json(capsys, *arguments, "--set", "steps=1", "--set", "start=0", "--set", "ordering=none")
    assert by_setting["iterations"] == made[1]["iterations"]


def test_steps_for_a_recipe_without_them_or_that_are_no_number(capsys):
    for arguments, text in (
        (("--recipe", "ilu0", "--steps", 5), "recipe ilu0 has no parameter 'steps'"),
        (("--recipe", "parilut", "--steps", "five"), "steps='five'; int is needed"),
        (("--recipe", "parilut", "--steps", "-1"), "steps must be an integer >= 0"),
    ):
        status, out, err = run(capsys, "solve", SMALL, *arguments)
        assert (status, out) == (2, "") and text in err and err.count("\n") == 1


def test_restart_reaches_gmres(capsys):
    arguments = ("solve", "gallery:poisson7:10", "--recipe", "none", "--method", "gmres")
    _, short = run_json(capsys, *arguments, "--restart", 3)
    _, full = run_json(capsys, *arguments, "--restart", 100)
    assert short["iterations"] > full["iterations"]


def test_rtol_reaches_the_method(capsys, patient):
    _, loose = run_json(capsys, "solve", LARGER, "--rtol", "1e-2")
    _, tight = run_json(capsys, "solve", LARGER, "--rtol", "1e-9")
    assert loose["iterations"] < tight["iterations"]
    assert tight["relative_residual"] <= 1e-9


def test_not_converged_is_status_1_and_says_what_to_try(capsys):
    status, out, _ = run(capsys, "solve", SMALL, "--recipe", "none", "--maxiter", 2)
    assert status == 1
    assert "max_iterations" in out
    assert "use a stronger preconditioner" in " ".join(out.split())


def test_a_time_limit_ends_the_solve_with_status_1_and_what_there_is(capsys, tmp_path):
    limited = ("solve", LARGER, "--time-limit", "0.000001s", "-o", tmp_path / "x.npy", "--plot", tmp_path / "c.svg")
    status, out, err = run(capsys, *limited)
    assert (status, err) == (1, "")
    assert "out_of_time" in out and "nothing: the time limit or the memory left no room" in " ".join(out.split())
    assert np.isfinite(np.load(tmp_path / "x.npy")).all()
    status, result = run_json(capsys, *limited)
    assert (status, result["status"], result["attempts"]) == (1, "out_of_time", [])
    assert run_json(capsys, "solve", LARGER, "--time-limit", "1m")[0] == 0


def test_a_zero_right_hand_side_is_solved(capsys, tmp_path):
    np.save(tmp_path / "b.npy", np.zeros(216))
    status, result = run_json(capsys, "solve", SMALL, "-b", tmp_path / "b.npy")
    assert (status, result["relative_residual"]) == (0, 0.0)


def test_several_columns_are_solved_and_the_worst_is_reported(capsys, tmp_path):
    A = finelu.gallery.problem("poisson7:6")
    B = np.random.default_rng(3).standard_normal((216, 3)) * [1e-3, 1, 0]
    np.save(tmp_path / "B.npy", B)
    status, result = run_json(capsys, "solve", SMALL, "-b", tmp_path / "B.npy", "-o", tmp_path / "X.npy")
    residuals = np.linalg.norm(B - A @ np.load(tmp_path / "X.npy"), axis=0)[:2] / np.linalg.norm(B, axis=0)[:2]
    assert status == 0 and result["rhs"].endswith("B.npy, 3 columns")
    np.testing.assert_allclose(result["relative_residual"], residuals.max(), rtol=1e-3)
    assert residuals.max() <= 1e-8


@pytest.mark.parametrize(("options", "curve"), [((), "cg with MILU0()"), (("--recipe", "ilu0"), "cg with ilu0")])
def test_a_plot_shows_the_residuals_and_no_other_file_is_left(capsys, tmp_path, patient, options, curve):
    pytest.importorskip("matplotlib")
    assert run(capsys, "solve", LARGER, *options, "--plot", tmp_path / "c.svg")[0] == 0
    assert f"<!-- {curve} -->" in (tmp_path / "c.svg").read_text()
    assert os.listdir(tmp_path) == ["c.svg"]


def test_a_plot_names_each_attempt(capsys, tmp_path, patient):
    pytest.importorskip("matplotlib")
    assert run(capsys, "solve", "gallery:helmholtz:40,k=9,absorbing=False", "--plot", tmp_path / "c.svg")[0] == 0
    drawn = (tmp_path / "c.svg").read_text()
    assert "<!-- 1. cg with IC0() -->" in drawn and "<!-- 2. refinement with SparseLU() -->" in drawn


def test_device_auto_takes_what_is_there(capsys):
    status, result = run_json(capsys, "solve", SMALL, "--device", "auto")
    assert status == 0
    assert result["device"] == ("cuda" if gpu_is_there() else "cpu")


@pytest.mark.gpu
def test_device_cuda(capsys, tmp_path):
    if not gpu_is_there():
        pytest.skip("no GPU")
    status, result = run_json(capsys, "solve", SMALL, "--device", "cuda", "-o", tmp_path / "x.npy")
    A = finelu.gallery.problem("poisson7:6")
    b = np.random.default_rng(0).uniform(-0.5, 0.5, A.shape[0])
    assert (status, result["device"]) == (0, "cuda")
    assert np.linalg.norm(b - A @ np.load(tmp_path / "x.npy")) <= 1e-8 * np.linalg.norm(b)


def test_threads_reach_numba(capsys):
    before = finelu.get_num_threads()
    try:
        assert run(capsys, "solve", SMALL, "--threads", 1)[0] == 0
        assert finelu.get_num_threads() == 1
    finally:
        finelu.set_num_threads(before)


def test_info_names_what_is_here_and_what_is_not(capsys, not_installed):
    status, found = run_json(capsys, "info")
    assert status == 0 and found["finelu"] == finelu.__version__ and found["threads"] == finelu.get_num_threads()
    assert found["packages"]["numpy"] == np.__version__
    not_installed("pymetis")
    status, out, _ = run(capsys, "info")
    lines = [line.split() for line in out.splitlines()]
    assert status == 0 and ["numpy", f"{np.__version__}:", "arrays"] in lines
    assert next(line for line in lines if line[:1] == ["pymetis"])[1:3] == ["not", "found:"]
    assert any(line[:1] == ["threads"] for line in lines) and any(line[:1] == ["gpu"] for line in lines)


def test_info_names_what_a_maintainer_asks_for(capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    status, found = run_json(capsys, "info")
    assert status == 0 and found["variables"]["OMP_NUM_THREADS"] == "3" and "PATH" not in found["variables"]
    assert found["processor"] and found["memory"].endswith("GiB free")
    assert any(name.startswith(("openblas", "mkl")) for name in found["libraries"])
    assert "OMP_NUM_THREADS=3" in run(capsys, "info")[1].split()


def test_info_names_a_package_that_is_installed_for_cuda_12(capsys, monkeypatch, tmp_path):
    run(capsys, "info")  # imports all that it needs
    (tmp_path / "cupy.py").touch()
    monkeypatch.setitem(sys.modules, "cupy", None)  # so that the module of this test is forgotten at its end
    del sys.modules["cupy"]
    (tmp_path / "cupy_cuda12x-14.0.1.dist-info").mkdir()
    (tmp_path / "cupy_cuda12x-14.0.1.dist-info" / "METADATA").write_text("Name: cupy-cuda12x\nVersion: 14.0.1\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    packages = run_json(capsys, "info")[1]["packages"]
    assert packages["cupy-cuda13x"] == "14.0.1 (cupy-cuda12x)" and packages["numpy"] == "found"
    assert packages["nvidia-cudss-cu13"] is None


def test_inspect_a_poisson_problem(capsys):
    status, found = run_json(capsys, "inspect", "gallery:poisson7:5")
    assert status == 0
    assert (found["n"], found["nnz"]) == (125, 725)
    assert found["pattern_symmetric"] and found["hermitian"] and found["asymmetry"] == 0
    first = {"first_missing": -1, "first_zero": -1}
    assert found["diagonal"] == {"missing": 0, "zero": 0, "positive": True, "usable": True} | first
    assert found["dominant_rows"] == 1.0
    assert found["bandwidth"] == 25
    assert (found["levels_lower"], found["levels_upper"]) == (13, 13)  # planes i + j + k = const of a 5^3 grid
    assert found["block_size"] == 1


@pytest.mark.parametrize("problem", [SMALL, LARGER, "gallery:ani4", "gallery:convection_diffusion:12"])
def test_inspect_suggests_what_solve_tries_first(capsys, problem):
    _, found = run_json(capsys, "inspect", problem)
    _, solved = run_json(capsys, "solve", problem)
    first = solved["attempts"][0]
    assert found["suggestion"]["recipe"] == first["recipe"]
    assert found["suggestion"]["reason"] == first["why"]
    assert found["suggestion"]["method"] == first["method"] or first["method"] == "refinement"
    _, out, _ = run(capsys, "inspect", problem)
    assert f"finelu solve chooses by itself; first {first['recipe']}" in " ".join(out.split())


def test_inspect_finds_what_is_wrong_and_still_ends_well(capsys, tmp_path):
    A = sp.csr_matrix(np.array([[0.0, 1.0, 0.0], [1.0, 0.0, 2.0], [0.0, 0.0, 1.0]]))
    matrix = write_matrix(tmp_path / "A.mtx", A)
    status, out, err = run(capsys, "inspect", matrix)
    assert (status, err) == (0, "")
    assert "missing in 2 rows (first: row 0)" in out
    _, found = run_json(capsys, "inspect", matrix)
    assert found["suggestion"]["recipe"].startswith("SparseLU(") and found["singular"] == "" and "singular" not in out
    assert found["diagonal"]["positive"] is False
    assert not found["pattern_symmetric"]


def test_inspect_says_that_a_row_of_stored_zeros_is_singular(capsys, tmp_path):
    A = sp.coo_array((np.array([0.0, 0.0, 1.0, 2.0]), (np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1]))), shape=(2, 2))
    matrix = write_matrix(tmp_path / "A.mtx", A)
    assert "row 0" in run_json(capsys, "inspect", matrix)[1]["singular"]
    assert "singular A is structurally singular: " in " ".join(run(capsys, "inspect", matrix)[1].split())


def test_inspect_a_matrix_without_entries(capsys, tmp_path):
    matrix = write_matrix(tmp_path / "A.mtx", sp.csr_matrix((8, 8)))
    status, out, err = run(capsys, "inspect", matrix)
    assert (status, err) == (0, "")
    assert "missing in 8 rows (first: row 0)" in out
    _, found = run_json(capsys, "inspect", matrix)
    assert (found["nnz"], found["row_longest"], found["bandwidth"], found["block_size"]) == (0, 0, 0, 1)
    assert found["diagonal"]["missing"] == 8 and not found["diagonal"]["positive"]
    assert list(found["suggestion"]) == ["recipe", "method", "reason"]


def test_inspect_where_no_memory_is_free(capsys, meanwhile, tmp_path):
    A = sp.random(450, 450, density=0.03, rng=np.random.default_rng(0))
    A = (A + A.T).tolil()
    A.setdiag(0.0)  # without it the cheap factorization comes first, whatever the memory
    path = write_matrix(tmp_path / "A.mtx", A)
    meanwhile(cost, free_memory=lambda array: 0, ALWAYS_FREE=0)  # which is asked for a small matrix, too
    status, out, _ = run(capsys, "inspect", path)
    assert status == 0 and "too little memory is free" in " ".join(out.split())
    assert run_json(capsys, "inspect", path)[1]["suggestion"] == {}


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128"])
def test_inspect_counts_a_row_that_equals_its_diagonal_as_dominant(capsys, tmp_path, dtype):
    A = np.diag(np.full(4, 0.3)) + 0.1 * (1 - np.eye(4))  # in binary, 0.1 + 0.1 + 0.1 > 0.3
    A[3, 3], A[2, 2] = 0.29, 1e17  # the last is not dominant; its neighbours vanish next to the third's diagonal
    sp.save_npz(tmp_path / "A.npz", sp.csr_matrix((A * (1j if dtype == "complex128" else 1)).astype(dtype)))
    _, found = run_json(capsys, "inspect", tmp_path / "A.npz")
    assert found["dominant_rows"] == 0.75


@pytest.mark.parametrize("size", [2, 3, 5])
def test_inspect_finds_blocks(capsys, tmp_path, size):
    A = sp.kron(sp.diags([1.0, 4.0, 1.0], [-1, 0, 1], shape=(12, 12)), np.ones((size, size)) + size * np.eye(size))
    _, found = run_json(capsys, "inspect", write_matrix(tmp_path / "A.mtx", A))
    assert found["block_size"] == size


def test_inspect_asymmetry(capsys, tmp_path):
    A = np.diag([4.0, 4.0, 4.0]) + np.diag([1.0, 1.0], 1) + np.diag([1.0, 3.0], -1)
    _, found = run_json(capsys, "inspect", write_matrix(tmp_path / "A.mtx", A))
    assert found["pattern_symmetric"] and not found["hermitian"]
    assert found["asymmetry"] == 0.5  # |3 - 1| / 4


def test_compiling_is_shown_while_it_lasts_and_counted():
    class Recorded(Progress):
        stages = ["factoring"]
        text = property(lambda self: self.stages[-1])

        def stage(self, text, done=None, of=None):
            self.stages.append(text)

    progress = Recorded()
    with progress.compile_clock() as compiled:
        assert compiled() == 0.0
        numba.njit(lambda x: x + 1)(1)
        assert compiled() > 0.0
    assert "compiling" in progress.stages[1] and progress.stages[-1] == "factoring"


def test_the_command_line_tells_the_seconds_of_compiling_that_the_solution_does(capsys, monkeypatch):
    solved, plain = [], finelu.solve
    monkeypatch.setattr(finelu, "solve", lambda *given, **options: solved.append(plain(*given, **options)) or solved[0])

    def compiles(self, *arguments, **options):
        numba.njit(lambda x: x + 1)(1)
        return solving(self, *arguments, **options)

    solving = ladder.Ladder.solve
    monkeypatch.setattr(ladder.Ladder, "solve", compiles)
    _, found = run_json(capsys, "solve", SMALL)
    assert found["compile_seconds"] == solved[0].timings["compile"] > 0


# Bad input: status 2, one line, no traceback


def bad(name, matrix=SMALL, *options, match):
    return pytest.param(matrix, options, match, id=name)


BAD = [
    bad("no such file", "nowhere.mtx", match="nowhere.mtx: there is no such file"),
    bad("no such recipe", SMALL, "--recipe", "ilu9", match="no recipe 'ilu9'; one of auto, .*ilu0.* is needed"),
    bad("no such parameter", SMALL, "--recipe", "jacobi", "--shift", "1", match="jacobi has no parameter 'shift'"),
    bad("no such setting", SMALL, "--recipe", "ilu0", "--set", "shfit=1", match="no parameter 'shfit'; it has shift, "),
    bad(
        "no such part of a setting",
        *(SMALL, "--recipe", "parilut", "--set", "sweeps=updates=2"),
        match="sweeps='updates=2'; a list such as initial=scaled,update=2, or NoneType is needed",
    ),
    bad("setting without value", SMALL, "--set", "shift", match="NAME=VALUE is needed"),
    bad("not a number", SMALL, "--recipe", "ilu0", "--shift", "much", match="shift='much'; float is needed"),
    bad("no such variant", SMALL, "--recipe", "ilu0", "--variant", "fastest", match="fastest"),
    bad("no such method", SMALL, "--method", "qmr", match="no method 'qmr'; one of auto, cg, minres"),
    bad("no such device", SMALL, "--device", "tpu", match="tpu"),
    bad("no such option", SMALL, "--frob", match="--frob"),
    bad("parameter as an option", SMALL, "--drop-tol", "1", match="--drop-tol.* --set drop_tol=VALUE"),
    bad("problem without gallery", "poisson7:6", match="no such file; the test problem is gallery:poisson7:6"),
    bad("no such problem", "gallery:poison7:6", match="poison7.*poisson7"),
    bad("restart of cg", SMALL, "--recipe", "ic0", "--restart", "5", match="restart has no meaning for cg"),
    bad("parameter of none", SMALL, "--shift", "1", match="shift is a parameter of a recipe; name the recipe with"),
    bad("setting of none", SMALL, "--set", "drop-tol=1", match="drop_tol is a parameter of a recipe"),
    bad("maxiter of none", SMALL, "--maxiter", "5", match="--maxiter is for a named recipe; .* use --time-limit"),
    bad("restart of none", SMALL, "--method", "gmres", "--restart", "5", match="--restart is for a named recipe"),
    bad("time limit of a recipe", SMALL, "--recipe", "ilu0", "--time-limit", "9", match="use --maxiter"),
    bad("no time", SMALL, "--time-limit", "0", match="--time-limit 0: a time larger than 0 is needed"),
    bad("no such time", SMALL, "--time-limit", "soon", match="--time-limit soon: a time larger than 0 is needed"),
    bad("negative rtol", SMALL, "--rtol", "-1", match="rtol=-1"),
    bad("no iterations", SMALL, "--maxiter", "0", match="maxiter=0"),
    bad("no threads", SMALL, "--threads", "0", match="0"),
    bad("too many threads", SMALL, "--threads", "32769", match="32769.*an? positive integer up to 32768"),
    bad("threads without end", SMALL, "--threads", "1" + 20 * "0", match="a positive integer up to 32768"),
    bad("threads that are no integer", SMALL, "--threads", "1e20", match="'--threads'.* integer"),
    bad("a digit that is no number", "gallery:poisson7:²", match="arguments do not fit poisson7"),
    bad("unknown output", SMALL, "-o", "x.xlsx", match="x.xlsx: unknown extension"),
    bad("no output folder", SMALL, "-o", "nowhere/x.npy", match="there is no folder"),
    bad("unknown plot", SMALL, "--plot", "c.npy", match="c.npy: unknown extension"),
]


def test_the_commands_are_listed_for_one_that_does_not_exist(capsys):
    status, out, err = run(capsys, "recipes")
    assert (status, out) == (2, "")
    assert "No such command 'recipes'. The commands are solve, compare, inspect, info, warmup, calibrate, bench." in err
    assert "The commands" not in run(capsys, "slove")[2]  # which a suggestion answers


@pytest.mark.parametrize(("matrix", "options", "match"), BAD)
def test_bad_input_is_one_line_and_status_2(capsys, tmp_path, monkeypatch, matrix, options, match):
    monkeypatch.chdir(tmp_path)
    status, out, err = run(capsys, "solve", matrix, *options)
    assert (status, out) == (2, "")
    assert err.startswith("finelu: ")
    assert err.count("\n") == 1
    status, result = run_json(capsys, "solve", matrix, *options)
    assert (status, list(result)) == (2, ["error"])
    assert err == f"finelu: {result['error']}\n"
    assert re.search(match, err)
    assert os.listdir(tmp_path) == []


def files(tmp_path):
    """name -> (file, what its error says)"""
    whole = tmp_path / "whole.mtx"
    write_matrix(whole, finelu.gallery.problem("poisson7:6"))
    (tmp_path / "truncated.mtx.gz").write_bytes(gzip.compress(whole.read_bytes())[:-200])
    (tmp_path / "text.mtx").write_text("dear diary\n")
    holes = sp.csr_matrix(np.array([[1.0, 2.0], [3.0, 0.0]]))
    zero = sp.csr_matrix(np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [0.0, 1.0, 1.0]]))
    return {
        "truncated": (tmp_path / "truncated.mtx.gz", "truncated.mtx.gz"),
        "text": (tmp_path / "text.mtx", "text.mtx"),
        "nan": (write_matrix(tmp_path / "nan.mtx", np.array([[1.0, 0.0], [np.nan, 1.0]])), "NaN or Inf in row 1"),
        "hole": (write_matrix(tmp_path / "hole.mtx", holes), "no diagonal entry in row 1"),
        "wide": (write_matrix(tmp_path / "wide.mtx", np.ones((2, 3))), "square"),
        "pivot": (write_matrix(tmp_path / "pivot.mtx", zero), "the pivot of row 1"),
    }


@pytest.mark.parametrize("name", ["truncated", "text", "nan", "hole", "wide", "pivot"])
def test_bad_file(capsys, tmp_path, name):
    path, message = files(tmp_path)[name]
    status, out, err = run(capsys, "solve", path, *(["--recipe", "ilu0"] if name in ("hole", "pivot") else []))
    assert (status, out) == (2, "")
    assert message in err
    assert err.startswith("finelu: ") and err.count("\n") == 1


@pytest.mark.parametrize("recipe", ["auto", "none", "multilevel", "sparse_lu"])
def test_a_hole_in_the_diagonal_does_not_hinder_what_needs_none(capsys, tmp_path, recipe):
    path, _ = files(tmp_path)["hole"]
    status, result = run_json(capsys, "solve", path, "--recipe", recipe)
    assert status == 0 and result["relative_residual"] <= 1e-8


def test_a_pivot_that_is_zero_does_not_hinder_where_the_recipe_is_chosen(capsys, tmp_path):
    assert run_json(capsys, "solve", files(tmp_path)["pivot"][0])[0] == 0


def test_a_matrix_that_no_permutation_can_help(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    path = write_matrix(tmp_path / "A.mtx", sp.csr_matrix(np.array([[1.0, 2.0, 3.0], [4.0, 0, 0], [5.0, 0, 0]])))
    status, out, err = run(capsys, "solve", path)
    assert (status, err) == (1, "")
    for text in (
        "A v = 0 to twice the working precision",
        "by the places of its nonzeros 1 row is not independent, row ",
        "tried",
        "status",
        "no x was found that solves A x = b",
    ):
        assert text in " ".join(out.split())
    assert max(map(len, out.splitlines())) <= 80
    status, result = run_json(capsys, "solve", path)
    assert (status, result["status"], result["converged"]) == (1, "singular", False)
    assert any("A v = 0 to twice the working precision" in line for line in result["explanation"])
    status, out, err = run(capsys, "solve", path, "--recipe", "multilevel")
    assert (status, out) == (2, "") and "structurally singular" in err and err.count("\n") == 1


@pytest.mark.parametrize("b", [np.ones(215), np.full(216, np.nan)], ids=["short", "nan"])
def test_bad_right_hand_side(capsys, tmp_path, b):
    np.save(tmp_path / "b.npy", b)
    status, out, err = run(capsys, "solve", SMALL, "-b", tmp_path / "b.npy")
    assert (status, out) == (2, "")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "instead"),
    [(("solve", "--recipe", "ilu0"), "--recipe auto takes several"), (("compare",), "finelu solve takes several")],
)
def test_several_columns_where_one_is_taken(capsys, tmp_path, command, instead):
    np.save(tmp_path / "b.npy", np.ones((216, 2)))
    status, out, err = run(capsys, command[0], SMALL, "-b", tmp_path / "b.npy", *command[1:])
    assert (status, out) == (2, "")
    assert "holds 2 columns" in err and instead in err and err.count("\n") == 1


def test_an_output_that_cannot_be_written_is_said_before_the_matrix_is_read(capsys, tmp_path):
    status, _, err = run(capsys, "solve", "nowhere.mtx", "-o", tmp_path / "nowhere" / "x.npy")
    assert status == 2
    assert "there is no folder" in err


def test_a_gpu_where_there_is_none(capsys):
    if gpu_is_there():
        pytest.skip("there is a GPU")
    status, _, err = run(capsys, "solve", SMALL, "--device", "cuda")
    assert status == 2
    assert "device 'cuda' was asked for" in err
    assert err.count("\n") == 1


def raising(error):
    def factor(A):
        raise error

    return factor


def test_memory_that_is_not_there_is_one_line(capsys, recipe_of):
    recipe_of(raising(MemoryError("Unable to allocate 8 TiB")))
    status, _, err = run(capsys, "solve", SMALL, "--recipe", "own")
    assert (status, err) == (2, "finelu: out of memory: Unable to allocate 8 TiB\n")


@pytest.mark.parametrize("threads", ["many", "²", "32769", 20 * "9", 5000 * "9", "-1", "0"])
def test_a_wrong_number_of_threads_in_the_environment_is_one_line(capsys, monkeypatch, threads):
    monkeypatch.setattr("finelu.threads._wanted", None)
    monkeypatch.setenv("FINELU_NUM_THREADS", threads)
    status, out, err = run(capsys, "solve", SMALL)
    assert (status, out) == (2, "")
    assert err == f"finelu: FINELU_NUM_THREADS={threads!r}; a positive integer up to 32768 is needed.\n"


def test_a_defect_is_neither_bad_input_nor_a_solve_that_did_not_converge(capsys, monkeypatch, recipe_of):
    recipe_of(raising(RuntimeError("can't go\non")))
    words = ("solve", SMALL, "--recipe", "own")
    monkeypatch.delenv("FINELU_DEBUG", raising=False)
    line = "internal error: RuntimeError: can't go on"
    assert run(capsys, *words) == (70, "", f"finelu: {line}; set FINELU_DEBUG=1 for the traceback\n")
    status, result = run_json(capsys, *words)
    assert (status, list(result)) == (70, ["error"]) and line in result["error"]
    monkeypatch.setenv("FINELU_DEBUG", "1")
    status, _, err = run(capsys, *words)
    assert status == 70
    assert err.startswith("Traceback") and "raise error" in err and err.endswith(f"finelu: {line}\n")


def test_a_right_hand_side_whose_squares_underflow_is_measured_all_the_same(capsys, tmp_path):
    np.save(tmp_path / "b.npy", np.full(216, 1e-200))
    status, result = run_json(capsys, "solve", SMALL, "-b", tmp_path / "b.npy")
    assert status == 0 and 0 < result["relative_residual"] <= 1e-8
    assert result["residual_norm"] < 1e-200


def test_a_missing_matplotlib_is_said_before_the_work(capsys, not_installed, tmp_path):
    not_installed("matplotlib.figure")
    status, _, err = run(capsys, "solve", "nowhere.mtx", "--plot", tmp_path / "c.png")
    assert status == 2
    assert "finelu[report]" in err


def test_an_interrupt_leaves_no_file_and_is_one_line(capsys, tmp_path, recipe_of):
    recipe_of(raising(KeyboardInterrupt()))
    words = ("solve", LARGER, "--recipe", "own", "-o", tmp_path / "x.npy")
    assert run(capsys, *words) == (130, "", "finelu: interrupted\n")
    assert os.listdir(tmp_path) == []
    assert run_json(capsys, *words[:4]) == (130, {"error": "interrupted"})


# The program itself


def program(*arguments, **options):
    command = [sys.executable, "-m", "finelu", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_the_program_ends_with_the_status_and_without_a_traceback():
    process = program("solve", "nowhere.mtx")
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (2, "", "finelu: nowhere.mtx: there is no such file.\n")


# Ctrl-C once the iteration has begun
INTERRUPTED = """
import os, signal, sys, threading
from finelu.cli import main
from finelu.krylov import METHODS

plain = METHODS["gmres"].iterate


def gmres(*arguments, **options):
    threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT)).start()
    return plain(*arguments, **options)


METHODS["gmres"].iterate = gmres
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_ends_the_program_cleanly(tmp_path):
    endless = ("--recipe", "none", "--method", "gmres", "--restart", 2, "--rtol", "1e-300", "--maxiter", 10**7)
    # a shell's background job, as the tests may be, ignores SIGINT, and so would what it starts
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    words = ("solve", "gallery:poisson7:60", *endless, "-o", tmp_path / "x.npy")
    command = [sys.executable, "-c", INTERRUPTED, *map(str, words)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (130, "finelu: interrupted\n")
    assert os.listdir(tmp_path) == []


def test_version(capsys):
    assert run(capsys, "--version") == (0, f"finelu {finelu.__version__}\n", "")


def test_help_names_every_recipe_and_method(capsys):
    status, out, _ = run(capsys, "solve", "--help")
    assert status == 0
    for name in (*RECIPES, *METHODS):
        assert name in out


def test_a_recipe_that_is_registered_is_in_the_help_and_can_be_used(capsys, own_recipes):
    for command in ("solve", "compare"):
        assert "weighted" not in run(capsys, command, "--help")[1]

    @own_recipes
    @dataclass(frozen=True, kw_only=True, repr=False)
    class Weighted(Recipe):
        steps: int = 1

        def factor(self, A):
            return finelu.Jacobi().factor(A)

    for command in ("solve", "compare"):
        status, out, _ = run(capsys, command, "--help")
        words = re.sub(r"[│\s]+", " ", out)
        assert status == 0 and "sparse_lu, weighted, none" in words and "{names}" not in words
    _, out, _ = run(capsys, "solve", "--help")
    assert "steps of parilut, parict, cpr, weighted" in re.sub(r"[│\s]+", " ", out)
    status, result = run_json(capsys, "solve", SMALL, "--recipe", "weighted", "--steps", "2")
    assert status == 0 and result["recipe"] == "Weighted(steps=2)"


def test_bench_hands_its_arguments_over_and_knows_its_names(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(finelu, "__file__", str(tmp_path / "src" / "finelu" / "__init__.py"))
    status, _, err = run(capsys, "bench", "syncfree")
    assert status == 2
    assert "checkout" in err
    folder = tmp_path / "benchmarks" / "papers"
    folder.mkdir(parents=True)
    for package in (folder.parent, folder):
        (package / "__init__.py").touch()
    (folder / "toy.py").write_text("def main(arguments):\n    print('measured', arguments)\n")
    (folder.parent / "part.py").write_text("SHARED = 1\n")  # without a main: not a benchmark
    (folder.parent / "claims").mkdir()
    (folder.parent / "claims" / "other.py").write_text("def main(arguments):\n    pass\n")
    for module in [m for m in sys.modules if m.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert run(capsys, "bench", "toy", "--quick") == (0, "measured ['--quick']\n", "")
    status, _, err = run(capsys, "bench", "tyo")
    assert status == 2
    assert "one of other, toy is needed" in err
    for module in [m for m in sys.modules if m.partition(".")[0] == "benchmarks"]:
        del sys.modules[module]  # those of tmp_path


# The report's own pieces


def test_sparkline_falls_as_the_residual_does():
    line = report.sparkline(10.0 ** -np.arange(8))
    assert line == report.tables.BARS[::-1]
    assert report.sparkline([]) == ""
    assert report.sparkline([1.0, 0.0, np.nan]) == "▁▁█"
    assert len(report.sparkline(np.ones(1000), width=40)) == 40


@pytest.mark.parametrize(
    ("t", "text"), [(12.34, "12.3 s"), (0.0123, "12.3 ms"), (4.56e-6, "4.56 µs"), (1234.5, "1234 s")]
)
def test_seconds(t, text):
    assert report.seconds(t) == text


def test_a_plot_that_fails_keeps_the_old_file(tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure")
    target = Path(tmp_path / "c.png")
    target.write_bytes(b"old")

    def failing(self, file, **options):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(figure.Figure, "savefig", failing)
    with pytest.raises(KeyboardInterrupt):
        report.plot_convergence(str(target), {"cg": np.array([1.0, 0.1])}, 1e-8)
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["c.png"]
