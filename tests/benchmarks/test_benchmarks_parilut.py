"""The benchmarks of ParILUT on the CPU: clocks of the building blocks, tables next to the papers', small whole runs."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy_for_cupy
import pytest
import scipy.sparse as sp

import finelu

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.claims import memory, parilut, parilut_quality, parilut_steps  # noqa: E402
from benchmarks.harness import building_blocks, clock  # noqa: E402
from benchmarks.harness.record import Record, Run, page_of  # noqa: E402
from benchmarks.harness.suite import Problem  # noqa: E402
from benchmarks.papers import parilut as paper  # noqa: E402
from benchmarks.papers import parilut_measure as paper_measure  # noqa: E402
from benchmarks.papers import parilut_tables as paper_tables  # noqa: E402
from benchmarks.peers import PeerError, ginkgo  # noqa: E402
from finelu.kernels import cpu  # noqa: E402


def a_run(name="parilut-gpu", gpu="NVIDIA H200"):
    return Run(name, {"name": "box", "cpu": "a cpu", "gpu": gpu, "cores": 2}, "2026-01-02", {"threads": 2})


def cells(text: str, begin: str) -> list[str]:
    (line,) = [li for li in text.splitlines() if li.startswith(f"| {begin}")]
    return [c.strip() for c in line.strip("|").split("|")]


# Clocks -------------------------------------------------------------------------------------------------------------


def test_blocks_see_every_call_and_leave_the_kernels_as_they_were():
    A = finelu.as_csr(Problem("poisson5:20,20").load())
    places = building_blocks.Blocks.PLACES
    before = {place: getattr(getattr(cpu, place[0]), place[1]) for place in places}
    with building_blocks.Blocks(A.data) as blocks:
        finelu.ParILUT(steps=2, sweep="synchronous").factor(A)
    assert {place: getattr(getattr(cpu, place[0]), place[1]) for place in before} == before
    labels = [label for label, _ in blocks.calls]
    assert all(labels.count(label) == 2 for label in ("add", "remove")) and labels.count("candidates") == 3
    assert labels.index("sweep after add") < labels.index("remove") < labels.index("sweep after remove")
    assert labels.count("sweep after add") == labels.count("sweep after remove") == 4  # U, then L
    assert {"select"} <= set(labels) <= set(building_blocks.BLOCKS)
    second, last = [k for k, label in enumerate(labels) if label == "candidates"][1:]
    in_step = sum(ms for _, ms in blocks.calls[second:last])
    assert 0 < in_step <= blocks.step_ms(2) and sum(blocks.ms().values()) >= in_step


def test_blocks_on_a_gpu_take_the_time_between_events(monkeypatch):
    now = iter(range(1000))

    class Event(numpy_for_cupy.Event):
        def record(self):
            self.at = 1e-3 * next(now)

    cupy = numpy_for_cupy.modules()["cupy"]
    cupy.cuda.Event = Event
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    blocks = building_blocks.Blocks(np.zeros(1))
    blocks.gpu = True
    A = finelu.as_csr(Problem("poisson5:5,5").load())
    with blocks:
        finelu.ParICT(steps=1, sweep="synchronous").factor(A)
    assert all(ms >= 0.99 for _, ms in blocks.calls) and blocks.step_ms(1) > len(blocks.calls) - 2


def test_without_solves_the_factors_are_the_same_but_not_analysed():
    A = finelu.as_csr(Problem("poisson5:9,9").load())
    F = finelu.ParICT().factor(A)
    with building_blocks.without_solves(type(F)):
        bare = finelu.ParICT().factor(A)
        assert bare.report["triangular"] == {} and F.report["triangular"] != {}
    assert np.array_equal(bare.L.data, F.L.data)
    b = np.ones(A.n)
    np.testing.assert_array_equal(bare.solve(b), F.solve(b))  # the solves are back


def test_the_rest_of_a_factorization_is_other(monkeypatch):
    A = finelu.as_csr(Problem("poisson5:9,9").load())
    F = finelu.ParILUT().factor(A)
    shown = [0.0]

    def slowly(A):
        shown[0] += 0.05
        return finelu.ParILUT().factor(A)

    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter=lambda: shown[0]))
    found = building_blocks.profile(SimpleNamespace(factor=slowly), A, type(F))
    assert found["other"] == pytest.approx(50) and all(ms == 0 for name, ms in found.items() if name != "other")


# The speed of it ----------------------------------------------------------------------------------------------------


def timed(work, matrix, ms, device="gpu", threads=0, error=0.0):
    detail = {"first_ms": 1.0, "numeric": {"low": ms, "high": ms}, "nnz": 100, "asked": 100, "left_out": 0}
    return Record(
        matrix, work, device, "finelu", work, ms, error=error, threads=threads, detail=detail | {"blocks": {"add": ms}}
    )


def test_claims_are_held_against_the_worst_case():
    run = a_run()
    for matrix, ms in (("cage11", 31.8 / 8), ("memplus", 40.3 / 2)):
        run.matrices[matrix] = {"n": 10, "nnz": 50, "spd": False}
        run.records.append(timed("ParILUT", matrix, ms))
    run.matrices["poisson7:100"] = {"n": 10, "nnz": 50, "spd": True}
    run.records += [timed("ParILUT", "poisson7:100", 100.0), timed("ParICT", "poisson7:100", 55.0, error=-0.03)]
    text = parilut.claim_table(run)
    assert cells(text, "ParILUT, GPU")[1:] == ["3", "4", "3.99", "2", "memplus", "no"]
    assert cells(text, "ParICT, GPU")[1:] == ["1", "4", "4", "4", "poisson7:100", "yes"]
    assert cells(text, "ParICT over")[1:] == ["1", "0.6", "0.55", "0.55", "poisson7:100", "yes"]
    assert cells(text, "entries off")[1:] == ["4", "0.02", "0.0075", "-0.03", "poisson7:100", "no"]


def test_ginkgo_is_compared_on_machines_like_its_own_only():
    run = a_run(gpu="NVIDIA A100")
    assert parilut.peer_ms(run, timed("ParILUT", "cage11", 1.0)) is None
    assert parilut.peer_ms(run, timed("ParILUT", "cage11", 1.0, "cpu", 1)) is None
    assert parilut.peer_ms(run, timed("ParILUT", "cage11", 1.0, "cpu", 2)) == 2500.0
    assert parilut.peer_ms(a_run(), timed("ParICT", "poisson7:100", 1.0)) == 220.0
    assert parilut.peer_ms(a_run(), timed("ParICT", "cage11", 1.0)) is None


def test_the_speed_on_the_cpu(tmp_path, capsys):
    arguments = ["--cpu", "--matrices", "poisson5:15,15,convection_diffusion:9,9", "--threads", "1"]
    assert parilut.main([*arguments, "--machine", "box", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("parilut-cpu-box-*.json.gz")
    run = Run.load(path)
    assert [(r.matrix, r.work) for r in run.records] == [
        *(("poisson5:15,15", work) for work in parilut.RECIPES),
        *(("convection_diffusion:9,9", work) for work in ("ParILUT", "ParILUT by sweeps", "ParILU")),
    ]
    assert all(abs(r.error) < 0.05 and r.numeric_ms > 0 for r in run.records)
    assert "### Share of each building block" in page_of(path).read_text()
    assert "ParICT over ParILUT" in capsys.readouterr().out


def test_iterations_are_compared_where_either_side_converges(tmp_path, capsys, threads, monkeypatch):
    monkeypatch.setattr(ginkgo, "available", lambda: False)
    arguments = ["--cpu", "--matrices", "poisson5:20,20,convection_diffusion:8", "--out", str(tmp_path)]
    assert parilut_quality.main([*arguments, "--machine", "box"]) == 0
    (path,) = tmp_path.glob("parilut-quality-box-*.json.gz")
    run = Run.load(path)
    names = list(parilut_quality.recipes(False, 1))
    assert [(r.work, r.variant) for r in run.records if r.matrix == "poisson5:20,20"] == [
        (method, who) for method in ("cg", "gmres") for who in names
    ]
    assert all(r.detail["converged"] and 0 < r.detail["iterations"] < 40 for r in run.records)
    lines = [li for li in capsys.readouterr().out.splitlines() if li.startswith("| in place")]
    assert [[c.strip() for c in li.split("|")[2:4]] for li in lines] == [["gmres", "2"], ["cg", "1"]]
    counts = {"default": 30, "in place": 40, "ILUT": 10}
    made = Run("q", {"name": "box"}, "2026-01-02", {}, {"a": {"n": 1}, "b": {"n": 1}})
    for matrix, converged in (("a", True), ("b", False)):
        for who, count in counts.items():
            detail = {"iterations": count if converged else 300, "converged": converged, "why": "MAX_ITERATIONS"}
            made.records.append(Record(matrix, "gmres", "cpu", "finelu", who, 1.0, detail=detail))
    assert parilut_quality.ratios(made, "gmres", "in place") == [(0.75, "a")]
    assert cells(parilut_quality.claim_table(made), "in place")[2:] == ["1", "-", "0.750", "0.75", "a", "-"]
    made.records[1].variant = "Ginkgo"
    assert cells(parilut_quality.claim_table(made), "Ginkgo")[2:] == ["1", "0.92", "0.750", "0.75", "a", "yes"]
    assert cells(parilut_quality.claim_table(made), "ILUT")[2:] == ["1", "1.1", "3.000", "3.00", "a", "no"]


def test_ginkgo_is_asked_for_as_many_steps_and_entries(monkeypatch):
    asked = []

    class Stub:
        matrix = SimpleNamespace(
            Csr_double_int32=lambda executor, shape, data, indices, indptr: sp.csr_matrix(
                (data, indices, indptr), shape
            ),
            dense_double=lambda executor, values: values,
        )

        @staticmethod
        def device(name):
            return name

        @staticmethod
        def generate_solver(A, config):
            asked.append(config)
            if config["solver"]["type"] == "preconditioner::Ic":
                raise RuntimeError("not positive")
            return SimpleNamespace(apply=lambda b, x: np.copyto(x, b / A.diagonal()[:, None]))

    monkeypatch.setitem(sys.modules, "pyGinkgo", Stub)
    monkeypatch.setattr(ginkgo, "available", lambda: True)
    S = finelu.gallery.poisson5(9, 8)
    made = parilut_quality.preconditioners(S, S, False, "cpu")
    np.testing.assert_array_equal(made["Ginkgo"]()(np.ones(72)), 1 / S.diagonal())
    inner = asked[0]["solver"]
    assert inner["factorization"] == {
        "type": "factorization::ParIlut",
        "iterations": 5,
        "fill_in_limit": 1.0,
        "approximate_select": False,
    }
    assert asked[0]["criteria"] == [{"type": "Iteration", "max_iters": 1}]
    with pytest.raises(PeerError, match="Ginkgo: not positive"):
        parilut_quality.preconditioners(S, S, True, "cpu")["Ginkgo"]()
    assert "Ginkgo" not in parilut_quality.preconditioners(S, S, True, "gpu")


# The papers' tables and figures -------------------------------------------------------------------------------------


def test_the_papers_numbers_have_all_columns():
    assert {len(row) for row in (*paper_tables.TABLE_2.values(), *paper_tables.TABLE_3.values())} == {9}
    swept, exact = paper_tables.columns("cg")
    assert swept[3:] == [str(k) for k in paper_measure.STEPS] and exact == [f"exact {k}" for k in paper_measure.STEPS]
    assert [*swept, *exact] == list(paper_measure.recipes(True, 10**9))
    assert set(paper_tables.OWN.values()) | set(paper_tables.LIKE.values()) <= {*paper_tables.TABLE_4, "ANI3", "ANI4"}


def test_a_case_is_ordered_scaled_and_symmetric():
    case = paper_measure.Case.load(Problem("poisson7:6,5,4"), "cpu")
    assert case.spd and case.order == "RCM here"
    np.testing.assert_allclose(case.S.diagonal(), 1.0, rtol=1e-15)
    assert abs(case.S - case.S.T).nnz == 0 and (abs(case.b) <= 0.5).all()
    rows, columns = case.S.nonzero()
    assert abs(rows - columns).max() < 30  # a plane of the grid; in another order up to 119


def test_iterations_stand_next_to_the_papers_for_their_own_matrix_only():
    run = a_run()
    for name in ("ani5", "anisotropic_triangles:5"):
        run.matrices[name] = {"n": 1, "nnz": 1, "order": "RCM"}
        for variant, k in zip(
            paper_measure.recipes(True, 10**9),
            (951, 113, None, 297, 184, 136, 108, 93, 172, 148, 92, 68, 54, 31, 43),
            strict=True,
        ):
            status = "CONVERGED" if k else "no factors"
            detail = {"status": status, "iterations": k}
            run.records.append(Record(name, "cg", "cpu", "finelu", variant, 1.0, error=1e-11, detail=detail))
    run.one(matrix="ani5", variant="none").detail["status"] = "MAX_ITERATIONS"
    text = paper_tables.iteration_table(run, "cg", paper_tables.TABLE_2)
    assert cells(text, "ani5 = ANI5")[2:] == [">951", "113", "-", "297", "184", "136", "108", "93", "172"]
    assert cells(text, "paper")[2:5] == ["951", "226", "-"]
    assert cells(text, "deviation")[2:] == ["", "-50%", "", "+0%", "+0%", "+0%", "+0%", "+0%", "+100%"]
    assert cells(text, "anisotropic_triangles:5 ~ ANI5")[2] == "951"
    exact = [line for line in text.splitlines() if line.startswith("| by eliminations")]
    assert len(exact) == 3 and exact[0].split()[8:13:2] == ["148", "92", "68"]
    assert exact[1].split("|")[6].strip() == "-50%" and text.count("| paper") == 1


def test_a_claim_of_convergence_that_the_residual_contradicts_is_no_number():
    record = Record("m", "cg", "cpu", "finelu", "none", 1.0, error=1e-6)
    record.detail = {"status": "CONVERGED", "iterations": 7}
    assert paper_measure.shown(record) == "-"
    run = a_run()
    run.records.append(record)
    assert "1e-06" in paper_tables.reason_table(run)


def test_discrepancy_counts_places_that_one_pattern_has():
    P = sp.csr_matrix([[1.0, 0, 2], [0, 3, 0], [0, 0, 4]])
    Q = sp.csr_matrix([[-5.0, 1, 0], [0, 3, 0], [1, 0, 4]])
    assert paper_measure.discrepancy(P, Q) == 3 and paper_measure.discrepancy(P, 2 * P) == 0


def test_superlu_finds_the_entries_asked_for_and_ends_at_its_limit():
    S = Problem("poisson5:40,40").load()
    found = paper_measure.superlu(S, S.nnz, 60.0)
    assert abs(found["nnz"] / S.nnz - 1) < 0.1 and found["seconds"] > 0
    assert paper_measure.superlu(S, S.nnz, -10.0) == {"reason": "SuperLU took more than -10 s"}


def test_every_table_and_figure_of_the_cpu(tmp_path, capsys):
    arguments = ["--cpu", "--parts", "steps,tables,time", "--matrices", "poisson5:12,12,convection_diffusion:8,8"]
    assert paper.main([*arguments, "--threads", "1", "--machine", "box", "--out", str(tmp_path)]) == 0
    run = Run.load(next(tmp_path.glob("parilut-papers-box-*.json.gz")))
    assert run.failures == [] and "no GPU" in run.left_out["selection"]
    (steps,) = run.find(work="steps", variant="1")
    iterations, places = steps.detail["iterations"], steps.detail["discrepancy"]
    assert len(iterations) == 16 and iterations[5] < iterations[0] / 2  # as in the paper's Figure 1
    assert places[-1] < places[0] / 2 and all(a >= b for a, b in zip(places, steps.detail["most"], strict=True))
    assert {r.work for r in run.find(matrix="convection_diffusion:8,8")} == {"gmres", "factor"}
    figures = {p.name.partition("-2018-fig")[2] or p.name.partition("-2019-fig")[2] for p in tmp_path.glob("*.png")}
    assert figures == {"1.png", "2.png", "11.png", "12.png", "13.png"}
    assert "poisson5:12,12" in capsys.readouterr().out
    text = next(tmp_path.glob("*.md")).read_text()
    assert "2019, Figure 8" in text and "no GPU here" in text


def test_a_second_file_gives_the_other_device(tmp_path):
    first, second = a_run(), a_run()
    second.machine = {"name": "desk", "cpu": "another cpu"}
    first.records = [timed("factor", "m", 2.0)]
    second.records = [timed("factor", "m", 8.0), timed("factor", "m", 8.0, "cpu", 2)]
    run = paper.merged([first.save(tmp_path / "a"), second.save(tmp_path / "b")])
    assert [(r.device, r.numeric_ms) for r in run.records] == [("gpu", 2.0), ("cpu", 8.0)]
    assert run.options["cpu from"] == "desk, another cpu, 2026-01-02"


def test_selection_kernels_are_timed_by_name(monkeypatch):
    launched, marks = [], []
    module = SimpleNamespace(kernel=lambda file, name, *kinds: lambda *a, **k: launched.append((name, kinds, a, k)))
    before = module.kernel
    stand_ins = numpy_for_cupy.modules() | {"finelu.kernels.cuda": SimpleNamespace(selection=module)}
    for name, stand_in in stand_ins.items():
        monkeypatch.setitem(sys.modules, name, stand_in)
    with paper_measure.timed_kernels(marks):
        module.kernel("selection", "count_buckets", "float64")((1,), (2,), shared_mem=3)
    assert launched == [("count_buckets", ("float64",), ((1,), (2,)), {"shared_mem": 3})]
    assert [name for name, *_ in marks] == ["count_buckets"] and module.kernel is before


def test_the_names_that_both_benchmarks_take_exist():
    assert set(paper.FIRST) | {n for n in paper.SERIES if ":" not in n} <= set(paper_tables.OWN)
    generated = {n for n in (*parilut.NAMES, *paper.SERIES, *paper.EXACTNESS) if ":" in n}
    assert all(n.partition(":")[0] in finelu.gallery.PROBLEMS for n in generated)


def test_all_steps_are_timed_where_the_recipe_would_stop(tmp_path):
    S = sp.csr_matrix(Problem("elasticity:6,3,3,0.45").load())
    run = a_run("parilut-cpu")
    run.matrices["m"] = {"n": S.shape[0], "nnz": S.nnz, "spd": True}
    usual = finelu.ParICT(steps=5, sweep="synchronous").factor(finelu.as_csr(S)).report
    assert usual["steps"] < 5, "a matrix is needed on which the residual grows"
    parilut.measure_one(run, "m", S, "cpu", 2)
    record = run.one(work="ParICT by sweeps")
    assert record.detail["steps"] > record.detail["stops"]["after"] == usual["steps"]
    assert min(record.detail["stops"]["numeric"]["ms"], record.numeric_ms) > 0
    assert building_blocks.adaption.DIVERGED < 10  # the rule is back
    short = timed("ParILUT by sweeps", "poisson7:100", 1.0)
    short.detail["steps"] = 3
    assert parilut.peer_ms(a_run(), short) == pytest.approx(398.0 * 3 / 5)


def test_steps_are_compared_by_recipe_and_by_threads(tmp_path, threads):
    arguments = [
        "--cpu",
        "--threads",
        "1,2",
        "--matrices",
        "poisson5:15,15",
        "--machine",
        "box",
        "--out",
        str(tmp_path),
    ]
    assert parilut_steps.main(arguments) == 0
    run = Run.load(next(tmp_path.glob("parilut-steps-cpu-box-*.json.gz")))
    assert len(run.records) == 2 * 2 * 5 and not run.failures  # threads, ParICT and ParILUT, recipes
    text = page_of(next(tmp_path.glob("*.json.gz"))).read_text()
    found = parilut_steps.ratios(run, parilut_steps.SWEEPS, parilut_steps.EXACT, parilut_steps.per_step, 2)
    assert len(found) == 2 and f"{1 / found[0][0]:.2f}" in text and "Speed-up over one thread" in text


@pytest.mark.skipif(sys.platform != "linux", reason="the resident memory is read as Linux has it")
def test_memory_is_that_of_a_process_for_each_recipe(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "RECIPES", {name: memory.RECIPES[name] for name in ("ILU0()", "IC0()")})
    assert memory.main(["--matrices", "convection_diffusion:40", "--machine", "box", "--out", str(tmp_path)]) == 0
    run = Run.load(next(tmp_path.glob("memory-box-*.json.gz")))
    (record,) = run.records  # IC0 is for symmetric matrices
    assert record.variant == "ILU0()" and 8 < record.detail["peak"] < 100 and record.detail["nnz"] == 1
    assert "`" not in memory.claim_table(run) and "convection_diffusion:40" in memory.claim_table(run)
