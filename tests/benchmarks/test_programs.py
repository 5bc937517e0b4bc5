"""Each benchmark once, on systems of some hundred rows: its record, its page, and its errors for wrong arguments."""

import ast
import os
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import numpy_for_cupy
import pytest
import scipy.io
import scipy.sparse as sp
from checks import without_gpu

import finelu
from finelu import gallery
from finelu.errors import FileError, FineluError, ParameterError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.claims import (  # noqa: E402
    batch,
    calls,
    calls_gpu,
    columns,
    elliptic,
    least_squares,
    memory,
    multiblock_scaling,
    multilevel_setup,
    pairs,
    pairs_worker,
    parilut,
    parilut_quality,
    parilut_steps,
    precision,
    programs,
    regret,
    reservoir,
    robustness,
    robustness_tables,
    schwarz,
    sequence,
    solve,
    solve_all,
    solve_first_use,
    solve_gpu,
    spine,
)
from benchmarks.claims import gallery as of_gallery  # noqa: E402
from benchmarks.harness.measure import APPROXIMATE_SOLVES  # noqa: E402
from benchmarks.harness.record import Record, Run, page_of, read  # noqa: E402
from benchmarks.papers import fgbilu, fgbilu_cpu, fgbilu_flow, ilupack, parilut_tables, syncfree  # noqa: E402
from benchmarks.papers import parilut as parilut_papers  # noqa: E402

ONE, TWO = "poisson5:15,15", "poisson5:15,15,convection_diffusion:9,9"
ONE_THREAD, FOLDER = ("--threads", "1"), "--matrix-folder"
GPU = [pytest.mark.gpu, pytest.mark.skipif(bool(without_gpu()), reason=without_gpu())]
# program, what it is arguments besides where to write, and the works or variants that its record must have
PROGRAMS = {
    "calls": (calls, ["--matrices", ONE, *ONE_THREAD], {*calls.WORKS, *calls.TOTALS}),
    "calls_gpu": (calls_gpu, ["--matrices", ONE], {"factor", "update", "solve"}),
    "elliptic": (
        elliptic,
        ["--cpu", "--matrices", f"{ONE},elasticity:2,2,2", "--solvers", "finelu,Schwarz", *ONE_THREAD],
        {"solve", "constants", "near null space found"},
    ),
    "columns": (columns, ["--matrices", ONE, "--recipes", "ILU0,IC0"], {"ILU0", "IC0", "solve"}),
    "gallery": (of_gallery, ["--quick"], {*of_gallery.SOLVERS}),
    "least_squares": (least_squares, ["--rows", "500"], {*least_squares.SOLVERS}),
    "multilevel_setup": (multilevel_setup, ["--cpu", "--matrices", ONE], {multilevel_setup.CROUT}),
    "parilut": (parilut, ["--cpu", "--matrices", TWO, *ONE_THREAD], {*parilut.RECIPES}),
    "parilut_quality": (parilut_quality, ["--cpu", "--matrices", "poisson5:20,20"], {"cg", "gmres"}),
    "parilut_steps": (parilut_steps, ["--cpu", "--matrices", ONE, "--threads", "1,2"], {"ParICT", "ParILUT"}),
    "regret": (
        regret,
        [FOLDER, "--matrices", "poisson", "--seconds", "900", *ONE_THREAD],  # its solvers may have to be compiled
        {"finelu.solve", "IC0() cg", "SparseLU()", "splu"},
    ),
    "batch": (batch, ["--cpu", "--systems", "9", "--matrices", ONE], {batch.BATCH, batch.SPLU, batch.SOLVE}),
    "precision": (
        precision,
        ["--cpu", "--matrices", "red-black:6", "--recipes", "IC0,ILU0-jacobi"],
        {*precision.WORKS, "None", "auto"},
    ),
    "reservoir": (reservoir, ["--cpu", "--matrices", "black_oil:4,4,4", *ONE_THREAD], {*reservoir.VARIANTS}),
    "robustness": (robustness, [FOLDER, "--solvers", "solve,MultilevelILU,ILU0", *ONE_THREAD], {"solve", "ILU0"}),
    "schwarz": (schwarz, ["--cpu", "--matrices", ONE], {"Schwarz", "exact", "MILU0", "adapted"}),
    "sequence": (sequence, ["--matrices", ONE], {sequence.SOLVES, sequence.SEQUENCE}),
    "solve": (solve, [FOLDER, "--solvers", "finelu.solve,splu", "--parts", "systems", *ONE_THREAD], {"splu"}),
    "solve_gpu": (solve_gpu, ["--matrices", ONE], {solve_gpu.GPU, solve_gpu.CPU}),
    "spine": (spine, ["--cpu", "--matrices", ONE, *ONE_THREAD], {"ilu0", "ic0", "trsv_lower", "trsv_upper"}),
    "fgbilu": (
        fgbilu,
        ["--cpu", "--quick", "--edges", "3", "--unknowns", "4", "--threads", "1"],
        {"factor", "solve", "residual", "steps"},
    ),
    "ilupack": (ilupack, ["--cpu", "--matrices", TWO, "--drop-tol", "0.05", *ONE_THREAD], {"gmres"}),
    "parilut_papers": (
        parilut_papers,
        ["--cpu", "--parts", "steps,tables,time", "--matrices", TWO, *ONE_THREAD],
        {"steps", "cg", "gmres", "factor"},
    ),
    "syncfree": (syncfree, ["--cpu", "--matrices", ONE], {"ilu0"}),
}
FIGURES = {"fgbilu": 2, "parilut_papers": 5}
AGAIN = (
    "calls",
    "elliptic",
    "regret",
    "reservoir",
    "solve",
    "robustness",
    "fgbilu",
    "ilupack",
)  # those that make the page from the record alone


def test_systems_of_programs_are_solved_in_turn_and_in_many_columns(tmp_path):
    """As tests/clients/systems.py writes them."""
    A, rng = gallery.convection_diffusion(10).tocsc(), np.random.default_rng(0)
    for example, rights in (
        ("flow", [rng.standard_normal(1000), np.ones(1000)]),
        ("flow, splu", [np.empty(0)]),
        ("transfer", [rng.standard_normal((1000, 3))]),
    ):
        for k, b in enumerate(rights):
            place = tmp_path / "systems" / "program" / example
            place.mkdir(parents=True, exist_ok=True)
            parts = {"data": (1 + k) * A.data, "indices": A.indices, "indptr": A.indptr, "shape": A.shape}
            np.savez(place / f"{k:04d}.npz", format="csc", b=b, **parts)
    out = tmp_path / "out"
    words = [str(tmp_path / "systems"), "--repeats", "1", "--machine", "box", "--out", str(out)]
    assert programs.main(words) == 0
    (path,) = out.glob("*.json.gz")
    run = Run.load(path)
    assert not run.failures and all(r.error <= 1e-14 for r in run.records)
    assert [r.detail["solves"] for r in run.find(work=programs.NEWTON)] == [2, 2, 2]
    assert [r.variant for r in run.find(work=programs.TWICE)] == [programs.FIRST, programs.SECOND]
    columns = {r.matrix: r.detail["columns"] for r in run.find(work=programs.MANY)}
    assert columns == {"program/flow, splu": programs.COLUMNS, "program/transfer": 3}
    text = page_of(path).read_text()
    assert "## program: all systems of an example" in text and "| 401 to 3000" in text


@pytest.fixture
def folder(tmp_path):
    """A folder with two systems, one of them without a full diagonal."""
    for name, S in (("poisson", gallery.poisson5(12)), ("saddle", gallery.stokes(6))):
        scipy.io.mmwrite(tmp_path / f"{name}.mtx", S, symmetry="general")
    return tmp_path


@pytest.mark.parametrize("name", [pytest.param(name, marks=GPU if name.endswith("_gpu") else []) for name in PROGRAMS])
def test_a_program_runs_and_writes_its_record_and_its_page(name, folder, threads, monkeypatch, capsys):
    program, arguments, expected = PROGRAMS[name]
    arguments = [word for given in arguments for word in ((given, str(folder)) if given == FOLDER else (given,))]
    out = folder / "out"
    assert program.main([*arguments, "--machine", "box", "--out", str(out)]) == 0
    (path,) = out.glob("*-box-*.json.gz")
    run, text = Run.load(path), page_of(path).read_text()
    assert run.records and run.failures == []
    assert expected <= {r.work for r in run.records} | {r.variant for r in run.records}
    assert all(r.numeric_ms is None or r.numeric_ms >= 0 for r in run.records)
    exact = [r for r in run.records if r.who == "finelu" and r.variant not in APPROXIMATE_SOLVES]
    unable = [r for r in exact if r.variant.startswith("CPR()")]  # of a matrix without blocks
    assert all(r.error is None or r.error < 0.05 for r in exact if r not in unable)
    assert "box" in text and any(matrix in text for matrix in run.matrices)
    assert len(list(out.glob("*.png"))) == FIGURES.get(name, 0) or name == "syncfree"
    if name in AGAIN:
        monkeypatch.setattr(program, "draw", lambda *_: True, raising=False)  # the same figures
        assert program.main(["--from", str(path), "--out", str(folder / "again")]) == 0
        assert next((folder / "again").glob("*.md")).read_text() == text


def of_robustness(tmp_path, name, limit, **seconds):
    """The file of a record in which solvers take these seconds for "a", "b" and "c"; None: it is not solved."""
    facts = {m: {"n": n, "nnz": 9, "zero diagonal": int(m == "c")} for m, n in (("a", 10_000), ("b", 10_000), ("c", 9))}
    run = Run("robustness", {"name": name, "cpu": "one", "cores": 2}, "2000-01-01", matrices=facts)
    run.options = {"limit, seconds": limit, "threads": 2}
    for variant, times in seconds.items():
        for matrix, s in zip(facts, times, strict=True):
            record = Record(matrix, "gmres", "cpu", variant, variant, s and 1e3 * s)
            record.detail = {"status": "" if s else "time", "iterations": s and int(4 * s)}
            run.records.append(record)
    return run.save(tmp_path)


def test_a_record_of_robustness_in_words(tmp_path):
    recipes = {"ILU0": (1, None, None), "ILUT": (2, 3, None), "ParILUT": (None,) * 3, "MultilevelILU": (4, 9, 2)}
    recipes["splu (direct)"] = (2, 4, None)
    path = of_robustness(tmp_path, "box", 20.0, solve=(0.5, 1, 3), **recipes)
    run = Run.load(path)
    assert robustness_tables.seconds(run)["splu"] == {"a": 2, "b": 4}
    text = robustness_tables.words(run, "box-1")
    (last,) = run.find("c", variant="splu (direct)")
    run.records.remove(last)
    with pytest.raises(FineluError, match=r"box-1: splu \(direct\) was not tried on c\."):
        robustness_tables.words(run, "box-1")
    cells = {c[0]: c[1:] for line in text.splitlines() if (c := [x.strip() for x in line.strip("| ").split(" | ")])[1:]}
    assert cells["finelu solve"] == ["3", "2", "2"] and cells["SciPy splu (direct)"] == ["2", "0", "0"]
    assert cells["finelu MultilevelILU"] == ["3", "1", "0"] and cells["finelu ParILUT"] == ["0", "0", "0"]
    text = " ".join(text.split())
    assert "`box-1`: b = A x with a random x, at most 20 s" in text and "`solve` by what it chooses" in text
    assert "ILUT solves 1 system that ILU0 does not; the two together solve 2." in text
    assert "On the 1 that both solve, ILU0 takes 0.5 times the iterations" in text and "ILUT 2 of its time" in text
    assert "One of ILU0, ILUT, ParILUT, MultilevelILU solves 3." in text
    assert "MultilevelILU** takes 2.4 times as long as ILUT where both work (2 systems)" in text
    assert "it solves 1, ILUT 0, ILU0 0." in text and "Not solved by SciPy splu (direct): c (time)." in text


def test_records_of_robustness_are_joined_if_their_limits_are_the_same(tmp_path):
    one = of_robustness(tmp_path, "one", 20.0, solve=(1, 2, 3), MultilevelILU=(4, 5, 6))
    two = of_robustness(tmp_path, "two", 20.0, MultilevelILU=(7, 8, 9), spilu=(1, None, 1))
    run = robustness.joined([one, two])
    assert [robustness_tables.seconds(run)[name]["a"] for name in ("solve", "MultilevelILU", "spilu")] == [1, 4, 1]
    assert len(run.records) == 9 and run.options["spilu from"] == "two, one, 2000-01-01"
    shorter = of_robustness(tmp_path, "three", 10.0, spilu=(1, 1, 1))
    with pytest.raises(ParameterError, match=r"three.*limit, seconds is 10.*and 20.* in .*one"):
        robustness.joined([one, shorter])


@pytest.mark.parametrize("program", [robustness, solve], ids=["robustness", "solve"])
def test_a_wrong_claim_of_finelu_ends_in_an_error(program, folder, capsys):
    solvers = "MultilevelILU" if program is robustness else "finelu.solve"
    arguments = [FOLDER, str(folder), "--solvers", solvers, "--matrices", "poisson", *ONE_THREAD]
    parts = ["--parts", "systems"] if program is solve else []
    program.main([*arguments, *parts, "--out", str(folder / "out")])
    run = Run.load(next((folder / "out").glob("*.json.gz")))
    run.records[0].detail |= {"claimed": True, "status": "residual 0.1"}
    with pytest.raises(FineluError, match="wrong for poisson"):
        program.main(["--from", str(run.save(folder / "wrong")), "--out", str(folder)])


@pytest.mark.parametrize(
    ("program", "arguments", "said"),
    [
        (robustness, ["--solvers", "ILU9"], "there is no ILU9"),
        (robustness, ["--matrices", "poisson,two"], "there is no matrix two"),
        (solve_all, ["--matrices", "poisson,two"], "there is no matrix two"),
        (solve, ["--solvers", "ILU9"], "there is no ILU9"),
        (solve, ["--parts", "last"], "there is no last"),
    ],
)
def test_what_a_program_does_not_know_is_named(program, arguments, said, folder):
    with pytest.raises(ParameterError, match=said):
        program.main([FOLDER, str(folder), *arguments, "--out", str(folder / "out")])


def test_a_folder_without_matrices_is_named(tmp_path):
    for program in (robustness, solve_all):
        with pytest.raises(FileError, match="FINELU_MATRICES"):
            program.main([FOLDER, str(tmp_path)])


def test_a_spent_budget_names_what_was_left_out(tmp_path, capsys):
    assert spine.main(["--cpu", "--matrices", TWO, "--budget", "0", "--out", str(tmp_path)]) == 0
    left_out = Run.load(next(tmp_path.glob("*.json.gz"))).left_out
    assert left_out == dict.fromkeys(["poisson5:15,15", "convection_diffusion:9,9"], "the budget was spent")


def test_a_stand_in_is_compared_with_no_number_of_the_papers(tmp_path):
    asked = Namespace(matrices="ani6,cage10,anisotropic_triangles:6", quick=False, matrix_folder=tmp_path)
    made = [problem.name for problem in parilut_papers.in_order(asked)]
    assert made == ["anisotropic_triangles:6", "cage10"]  # the gallery's cage10 is the papers'
    assert [parilut_tables.own(name) for name in made] == ["", "CAGE10"]
    sp.save_npz(tmp_path / "ani6.npz", finelu.gallery.poisson5(3))
    assert [problem.name for problem in parilut_papers.in_order(asked)] == ["ani6", "cage10", made[0]]


def test_every_benchmark_is_found_by_name():
    from typer.testing import CliRunner

    from finelu.cli import app

    found = CliRunner().invoke(app, ["bench", "nothing"])
    names = {word.strip(",") for word in str(found.exception or found.output).split()}
    assert names >= {"solve", "robustness", "fgbilu", "ilupack", "syncfree", "pairs"} and "systems" not in names


# Each of these measures in its own way


def test_block_ilu_is_compared_with_its_definition():
    rng = np.random.default_rng(6)
    blocks = rng.standard_normal((7, 3, 4, 2, 6, 6)) / 48
    blocks[3] += 2 * np.eye(6)
    A, b = finelu.StencilMatrix(blocks), rng.standard_normal(144)
    reference, F = fgbilu_cpu.Reference(A, b, timed=False), finelu.BlockILU0(pivoting=False).factor(A)
    x = F.solve(b)
    for work, found in (("factor", F.d), ("solve", x), ("residual", b - A.tocsr() @ x)):
        assert reference.error(work, found) < 1e-13
    assert reference.error("solve", 1.001 * x) == pytest.approx(1e-3)
    assert not reference.error("solve", np.nan * x) <= fgbilu_cpu.AGREE


def test_solve_all_judges_the_residual_itself_and_keeps_to_its_time(folder, meanwhile):
    def outcomes(out, *arguments):
        assert solve_all.main([FOLDER, str(folder), "--out", str(folder / out), *arguments]) == 0
        matrices = read(next((folder / out).glob("*.json.gz")))["matrices"]
        return {name: [(o["recipe"], o["status"]) for o in found["outcomes"]] for name, found in matrices.items()}

    found = outcomes("all")
    assert found["poisson"] == [("IC0()", "converged"), ("ILU0()", "converged")]
    assert {status for _, status in found["saddle"]} == {"no factors"}
    assert {status for _, status in outcomes("late", "--seconds", "0")["poisson"]} == {"time limit"}
    honest = finelu.cg

    def boasting(*arguments, **options):
        solution = honest(*arguments, **options)
        solution.x[0] += 1e-3
        return solution

    meanwhile(finelu, cg=boasting)
    assert solve_all.main([FOLDER, str(folder), "--out", str(folder / "wrong")]) == 1


def test_a_fresh_process_imports_and_solves(tmp_path):
    sp.save_npz(tmp_path / "system.npz", sp.csr_matrix(gallery.poisson5(12)))
    result = solve_first_use.fresh(1, system=tmp_path / "system.npz")
    assert result["converged"] and result["import"] > 0 and 0 < result["again"] < result["solve"]


@pytest.mark.skipif(sys.platform != "linux", reason="the resident memory is read as Linux has it")
def test_memory_is_that_of_a_process_for_each_recipe(tmp_path, meanwhile):
    meanwhile(memory, RECIPES={name: memory.RECIPES[name] for name in ("ILU0()", "IC0()")})
    assert memory.main(["--matrices", "convection_diffusion:40", "--machine", "box", "--out", str(tmp_path)]) == 0
    (record,) = Run.load(next(tmp_path.glob("memory-box-*.json.gz"))).records  # IC0 is for symmetric matrices
    assert record.variant == "ILU0()" and 8 < record.detail["peak"] < 100 and record.detail["nnz"] == 1


def test_grids_of_several_blocks_on_one_process(tmp_path, meanwhile):
    pytest.importorskip("mpi4py")
    meanwhile(
        multiblock_scaling, REPEATS=1, TRIAD=1000, started=lambda name, ranks, task: multiblock_scaling.worker(task)
    )
    arguments = ["--ranks", "1", "--edge", "6", "--whole", "5", "--n", "2", "--machine", "here", "--out", str(tmp_path)]
    assert multiblock_scaling.main(arguments) == 0
    results = read(next(tmp_path.glob("multiblock-scaling-here-*.json.gz")))["results"]
    assert results["weak"][0]["cells"] == 216 and results["strong"][0]["status"] == "CONVERGED"


def test_the_flow_around_a_sphere_by_parts_on_one_process_and_on_two(tmp_path, monkeypatch):
    pytest.importorskip("mpi4py")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    arguments = ["--ranks", "1,2", "--cells", "3", "4", "--steps", "1", "--corrections", "2"]
    assert fgbilu_flow.main([*arguments, "--machine", "here", "--out", str(tmp_path)]) == 0
    record = next(tmp_path.glob("fgbilu-flow-here-*.json.gz"))
    *weak, one, two = read(record)["results"]
    assert [line["cells"] for line in weak] == [216, 432] and one["cells"] == two["cells"] == 432
    assert abs(one["drag"] - two["drag"]) < 1e-9 and one["corrections"] == two["corrections"] == [2]
    assert set(one["parts_ms"]) == {"FACT", "SOLVE", "RHS", "AFILL", "MPI"} and min(one["parts_ms"].values()) >= 0
    page = page_of(record).read_text()
    assert fgbilu_flow.main(["--from", str(record)]) == 0 and page_of(record).read_text() == page


# Two trees compared


def test_a_tree_compared_with_itself(tmp_path, capsys):
    arguments = ["--parts", "spine,solve", "--cases", "poisson5:9,9,absent", *ONE_THREAD, "--runs", "1"]
    pairs.main([str(ROOT), str(ROOT), *arguments, "--out", str(tmp_path), "--machine", "box"])
    assert "left out: spine, absent" in capsys.readouterr().err
    run = Run.load(next(tmp_path.glob("pairs-box-*.json.gz")))
    assert {(r.work, r.who) for r in run.records} == {
        (part, who) for part in ("spine", "solve") for who in ("old", "new")
    }
    assert all(r.detail["differs"] == "" and r.numeric_ms > 0 for r in run.records)


@pytest.mark.parametrize("part", pairs.PARTS)
def test_every_part_makes_its_calls_on_the_cpu_and_as_on_a_gpu(part, tmp_path, monkeypatch):
    for name, module in numpy_for_cupy.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    sp.save_npz(tmp_path / "m.npz", sp.csr_matrix(gallery.poisson5(20)))
    case, found = {"selection": "2^12", "fgbilu": "3^3, 3"}.get(part, "m"), {}
    for gpu in (False, True):
        made = list(pairs_worker.calls_of(part, case, str(tmp_path / "m.npz"), gpu))
        found[gpu] = {call.name: call.answer() for call in made}
        assert all(min(pairs_worker.timed(call, 2, gpu)) >= 0 for call in made)
    assert list(found[False]) == list(found[True])
    for here, there in zip(found[False].values(), found[True].values(), strict=True):
        assert pairs.difference(here, there) == "" and np.isfinite(here[1]).all()


def test_the_worker_uses_public_names_only():
    """It runs with the source of either tree."""
    nodes = list(ast.walk(ast.parse(Path(pairs_worker.__file__).read_text())))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name for name in attributes if name.startswith("_")} <= {"__name__", "__file__"}
    assert not any(module.startswith("finelu") for module in modules)


def test_the_mean_and_each_call_decide_and_what_misses_is_named():
    def pair(name, old, new):
        return pairs.Pair("spine", name, "F.solve(b)", "", (old, new), (old, new))

    assert pair("a", [2.0, 2.0, 10.0, 2.0, 2.0], [1.0, 1.0, 5.0, 5.0, 1.0]).ratio == 2.0  # slow for a while
    fast, slow = pair("fast", [4.0], [1.0]), pair("slow", [1.0], [3.0])
    text, holds = pairs.verdict([fast, slow], 0.98, 0.93)
    assert not holds and "geometric mean 1.155" in text and "below 0.93: spine, slow: F.solve(b) (0.333" in text
    assert pairs.verdict([fast, slow], 0.98, 0.3)[1] and not pairs.verdict([fast, slow], 1.2, 0.3)[1]


def test_a_peer_that_takes_too_long_is_stopped():
    A, b = sp.csr_matrix(gallery.poisson7(6)), np.ones(216)
    seconds, x = solve_gpu.splu_apart(A, b, 60.0, {})
    assert seconds > 0 and np.linalg.norm(A @ x - b) < 1e-10
    assert solve_gpu.splu_apart(sp.csr_matrix(gallery.poisson7(60)), np.ones(60**3), 0.01, {}) is None
