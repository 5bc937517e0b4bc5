"""The benchmarks on the CPU: the suite, the records and tables, the peers that run here, and small whole runs."""

import gzip
import math
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

import finelu
from finelu.errors import FileError, ParameterError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.claims import solve_all, spine  # noqa: E402
from benchmarks.harness import clock, measure, options, record, suite, table  # noqa: E402
from benchmarks.harness.case import SIDES, UNWRITTEN, Case, backward_error, relative_error  # noqa: E402
from benchmarks.harness.record import Record, Run, page_of  # noqa: E402
from benchmarks.harness.suite import Problem  # noqa: E402
from benchmarks.papers import syncfree  # noqa: E402
from benchmarks.peers import PeerError, cupy_spilu, cusparse, mkl  # noqa: E402

needs_mkl = pytest.mark.skipif(not mkl.available(), reason="MKL is not installed (pip install mkl)")


# The suite ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A folder of matrices: one too small, one large enough, one without a diagonal entry, one as .npz."""
    large = sp.diags_array([np.full(10_000, 2.0), np.full(9_999, -1.0)], offsets=[0, -1]).tocsr()
    hollow = large.copy()
    hollow[77, 77] = 0.0
    for name, S in (("small", large[:50, :50]), ("large", large), ("hollow", hollow)):
        with gzip.open(tmp_path / f"{name}.mtx.gz", "wb") as file:
            scipy.io.mmwrite(file, S)
    sp.save_npz(tmp_path / "packed.npz", sp.csr_matrix(large))
    return tmp_path


def test_suite_takes_the_large_matrices_and_the_gallery(folder):
    names = [p.name for p in suite.suite(folder)]
    assert {"large", "hollow", "packed"} <= set(names) and "small" not in names
    assert set(suite.GALLERY) <= set(names) and names[-1] == suite.WORST_CASE


def test_only_the_worst_case_stands_apart(folder):
    assert [p.name for p in suite.suite(folder) if p.apart] == [suite.WORST_CASE]


def test_suite_by_name_reaches_small_matrices_and_gallery_problems(folder):
    problems = suite.suite(folder, ["small", "poisson5:7,9"])
    assert [p.load().shape[0] for p in problems] == [50, 63]


def test_suite_refuses_an_unknown_name(folder):
    with pytest.raises(ParameterError, match="no matrix smal in"):
        suite.suite(folder, ["smal"])


def test_quick_suite_needs_no_folder(tmp_path):
    assert [p.name for p in suite.suite(tmp_path / "absent", quick=True)] == ["poisson7:24", "poisson5:120,120"]


def test_a_matrix_without_diagonal_is_left_out_with_the_row(folder):
    (problem,) = suite.suite(folder, ["hollow"])
    with pytest.raises(suite.LeftOut, match=r"in 1 rows \(first: 77\)"):
        problem.load()


def test_folder_of_the_environment_comes_first(monkeypatch, folder):
    monkeypatch.setenv("FINELU_MATRICES", str(folder))
    assert suite.matrix_folder() == folder
    monkeypatch.delenv("FINELU_MATRICES")
    assert suite.matrix_folder() == ROOT.parent / "shared" / "matrices"


def test_a_run_names_the_commit_it_was_measured_at_and_an_old_one_its_date():
    run, commit = record.new_run("any", gpu=False, machine_name="box"), record.revision()
    assert commit and run.machine["commit"] == commit and f"- commit: {commit}" in run.heading().splitlines()
    old = Run("any", {"name": "box", "finelu": "0.1.0"}, "2026-01-02")
    assert "- commit: not recorded; finelu 0.1.0 at 2026-01-02" in old.heading().splitlines()


def test_pack_keeps_the_matrices_and_their_names(folder, tmp_path):
    assert suite.pack(folder, tmp_path / "out", limit_mib=1.0) == []
    packed = suite.files(tmp_path / "out")
    assert set(packed) == {"large", "packed"}
    assert (Problem("large", packed["large"]).load() != suite.suite(folder, ["large"])[0].load()).nnz == 0


def test_pack_stops_at_the_limit(folder, tmp_path):
    left = suite.pack(folder, tmp_path / "out", limit_mib=1e-3)
    assert set(left) == {"large", "packed"} and not list((tmp_path / "out").glob("*.npz"))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("memplus,1138_bus", ["memplus", "1138_bus"]),
        ("poisson5:100,200,memplus", ["poisson5:100,200", "memplus"]),
        ("ani5,helmholtz:20,k=4,cage10", ["ani5", "helmholtz:20,k=4", "cage10"]),
    ],
)
def test_names_keep_the_arguments_of_gallery_problems(text, names):
    assert suite.names_of(text) == names


# Numbers and tables -------------------------------------------------------------------------------------------------


def test_table_is_aligned_and_marks_what_is_absent():
    text = table.table(("name", "ms"), [("a|b", 0.123456), ("c", None), ("d", float("nan")), ("e", 12345.6), ("f", 7)])
    lines = text.splitlines()
    assert len({len(line) for line in lines}) == 1
    assert [line.split(" | ")[1].strip(" |") for line in lines[2:]] == ["0.123", "-", "-", "12346", "7"]
    assert "a\\|b" in lines[2]


def test_mean_and_ratio_skip_what_is_absent():
    assert table.mean([2.0, None, 8.0]) == pytest.approx(4.0)
    assert table.mean([None]) is None
    assert table.ratio(6.0, 2.0) == 3.0 and table.ratio(None, 2.0) is None and table.ratio(6.0, None) is None
    assert table.smallest([3, None, 2]) == 2 and table.smallest([]) is None


def test_backward_error_sees_a_wrong_entry_and_nan():
    T = sp.csr_matrix(np.tril(np.arange(1.0, 17.0).reshape(4, 4)))
    x = np.array([1.0, -2.0, 3.0, -4.0])
    assert backward_error(T, T @ x, x) == 0.0
    x[2] += 1e-3
    assert 1e-6 < backward_error(T, T @ np.array([1.0, -2.0, 3.0, -4.0]), x) < 1e-3
    x[3] = np.nan
    assert math.isnan(backward_error(T, np.ones(4), x))
    assert math.isnan(relative_error(x, np.ones(4)))


def test_cpu_time_warms_up_and_takes_the_median():
    calls = []
    timing = clock.cpu_time(calls.append, repeats=5)
    assert calls == [0, 1, 0, 1, 2, 3, 4] and timing.repeats == 5 and timing.low <= timing.ms <= timing.high


def test_budget_is_over_once_spent():
    assert clock.Budget(0).over() and not clock.Budget(None).over() and not clock.Budget(100).over()


def a_run(name="spine-gpu", gpu="NVIDIA H200"):
    return Run(name, {"name": "box", "cpu": "a cpu", "gpu": gpu, "cores": 2}, "2026-01-02")


def test_run_survives_saving_and_loading(tmp_path):
    run = a_run()
    run.records.append(Record("m", "ilu0", "gpu", "finelu", "auto", 1.5, 0.5, float("nan"), chosen="vect"))
    run.matrices["m"] = {"n": np.int64(3), "levels": 2, "apart": False}
    page = run.publish(tmp_path, "text")
    path = tmp_path / "spine-gpu-box-2026-01-02.json.gz"
    assert page == page_of(path) and page.read_text() == "text"
    assert record.read(path)["records"][0]["error"] is None  # JSON has no NaN
    assert path.read_bytes() == run.save(tmp_path / "again").read_bytes()  # no time stamp in it
    again = Run.load(path)
    assert again.one(matrix="m").total_ms == 2.0 and again.matrices["m"]["n"] == 3
    assert [p.name for p in tmp_path.iterdir() if p.name.endswith(".part")] == []


@pytest.mark.parametrize("content", [b"", b"[1]", b'{"records": []}', b'{"records": [{"x": 1}]}'])
@pytest.mark.parametrize("packed", [gzip.compress, bytes, lambda content: gzip.compress(content)[:-9]])
def test_loading_something_else_says_so(tmp_path, content, packed):
    path = tmp_path / "x.json.gz"
    path.write_bytes(packed(content))
    with pytest.raises(FileError, match="not the record of a benchmark"):
        Run.load(path)


def test_a_record_that_is_not_there_is_named(tmp_path):
    with pytest.raises(FileError, match=r"absent.json.gz: No such file"):
        Run.load(tmp_path / "absent.json.gz")


def test_a_failed_attempt_is_written_down_and_the_run_goes_on(capsys):
    run = a_run()
    with run.attempt("m", "a peer"):
        raise PeerError("out of order\nsecond line")
    assert run.failures == [{"matrix": "m", "what": "a peer", "error": "PeerError: out of order"}]
    assert "a peer failed" in capsys.readouterr().err
    assert "out of order" in run.footing()
    with pytest.raises(record.RunEnded), run.attempt("m", "the device", fatal=True):
        raise RuntimeError("gone")


# Peers --------------------------------------------------------------------------------------------------------------


@needs_mkl
@pytest.mark.parametrize("name", ["poisson7:9", "convection_diffusion:20,20", "random_dominant:300"])
def test_mkl_agrees_with_finelu(name):
    case = Case.load(Problem(name))
    lu = mkl.ILU0(case.A).factor()
    np.testing.assert_allclose(lu, case.lu, rtol=1e-11, atol=1e-13)
    b = np.random.default_rng(0).standard_normal(case.A.n)
    for side in SIDES:
        lower = side == "lower"
        peer = mkl.TriangularSolve(case.triangle(side), lower=lower, unit=lower)
        x = peer.solve(b, np.full_like(b, UNWRITTEN))
        peer.close()
        ours = finelu.TriangularSolver(case.factors, lower=lower, unit=lower).solve(b)
        np.testing.assert_allclose(x, ours, rtol=1e-10, atol=1e-12)
        assert backward_error(case.full_triangle(side), b, x) < 1e-14


@needs_mkl
def test_mkl_says_which_matrix_it_refuses():
    S = sp.csr_matrix([[0.0, 1.0], [1.0, 2.0]])
    with pytest.raises(PeerError, match="stores no diagonal"):
        mkl.ILU0(S).factor()
    S = sp.csr_matrix((np.array([0.0, 1.0, 1.0, 2.0]), [0, 1, 0, 1], [0, 2, 4]), shape=(2, 2))
    with pytest.raises(PeerError, match="pivot is zero"):
        mkl.ILU0(S).factor()


@needs_mkl
def test_mkl_names_its_version():
    assert mkl.version()[:2] == "20"


def test_mkl_that_is_not_there_is_an_error_with_advice(monkeypatch, tmp_path):
    monkeypatch.setenv("FINELU_MKL", str(tmp_path))
    assert not mkl.available()
    with pytest.raises(PeerError, match="pip install mkl"):
        mkl.library.__wrapped__()


def test_cusparse_without_csrilu02_is_named():
    class Newer:  # a later cuSPARSE from which the deprecated functions are gone
        def __getattr__(self, name):
            if "csrilu02" in name.lower():
                raise AttributeError(name)
            return type("function", (), {})()

    with pytest.raises(PeerError, match="cusparseDcsrilu02_analysis"):
        cusparse.declare(Newer(), cusparse.SIGNATURES)


@pytest.mark.skipif(options.have_gpu(), reason="for a machine without a GPU")
def test_a_gpu_asked_for_where_there_is_none_is_one_line(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        options.command(lambda: spine.main(["--gpu", "--out", str(tmp_path)]))
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and not list(tmp_path.iterdir())


def test_right_hand_side_of_gmres_is_the_same_for_everyone():
    S = Problem("poisson5:12").load()
    assert np.array_equal(cupy_spilu.right_hand_side(S), cupy_spilu.right_hand_side(S.copy()))


# Cases and whole runs -----------------------------------------------------------------------------------------------


def test_case_knows_its_levels_and_factors():
    case = Case.load(Problem("poisson5:6,9"))
    facts = case.facts()
    assert facts["levels"] == 6 + 9 - 1 and facts["n"] == 54 and facts["ic0"] and facts["symmetric"]
    LU = (case.full_triangle("lower") @ case.full_triangle("upper")).toarray()
    i, j = case.S.nonzero()
    np.testing.assert_allclose(LU[i, j], case.S.toarray()[i, j], rtol=1e-13, atol=1e-13)
    L = sp.csr_matrix((case.cholesky, case.lower_triangle.indices, case.lower_triangle.indptr)).toarray()
    np.testing.assert_allclose((L @ L.T)[i, j], case.S.toarray()[i, j], rtol=1e-13, atol=1e-13)


def test_case_without_symmetry_has_no_ic0():
    case = Case.load(Problem("convection_diffusion:8,8"))
    assert not case.symmetric and case.cholesky is None


def test_a_zero_pivot_leaves_the_matrix_out(tmp_path):
    sp.save_npz(tmp_path / "pivot.npz", sp.csr_matrix([[1.0, 1.0], [1.0, 1.0]]))
    with pytest.raises(suite.LeftOut, match="zero pivot in row 1"):
        Case.load(Problem("pivot", tmp_path / "pivot.npz"))


def test_spine_on_the_cpu(tmp_path, capsys):
    arguments = ["--cpu", "--matrices", "poisson5:20,20", "--threads", f"1,{os.cpu_count() + 1}", "--machine", "box"]
    assert spine.main([*arguments, "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("spine-cpu-box-*.json.gz")
    run = Run.load(path)
    assert run.failures == []
    assert f"{os.cpu_count() + 1}" in run.left_out["threads"]
    direct = [r for r in run.records if r.variant not in measure.APPROXIMATE_SOLVES]
    assert {r.work for r in direct} == {"ilu0", "ic0", "trsv_lower", "trsv_upper"}
    assert max(r.error for r in direct) < 1e-14 and min(r.numeric_ms for r in direct) > 0
    assert {r.who for r in direct} == ({"finelu", "mkl"} if mkl.available() else {"finelu"})
    assert "poisson5:20,20: 39 levels" in capsys.readouterr().out
    assert "## Every variant of ilu0, CPU, 1 thread" in page_of(path).read_text()


def test_a_spent_budget_names_what_was_left_out(tmp_path):
    arguments = ["--cpu", "--matrices", "poisson5:20,20,poisson7:5", "--budget", "0", "--out", str(tmp_path)]
    assert spine.main(arguments) == 0
    (path,) = tmp_path.glob("*.json.gz")
    assert Run.load(path).left_out == dict.fromkeys(["poisson5:20,20", "poisson7:5"], "the budget was spent")


def gpu_run():
    """A run as a GPU would give it: three matrices whose ratios are known, and the worst case, which must not count."""
    run = a_run()
    names = ("few", "some", "many", "tridiagonal:9")
    for name, levels, factor in zip(names, (10, 100, 1000, 10_000), (4.0, 2.0, 1.0, 1e-3), strict=True):
        run.matrices[name] = {
            "n": 10_000, "nnz": 50_000 * levels, "levels": levels, "rows_per_level": 1e4 / levels, "row_mean": 5.0,
            "apart": name.startswith("tri"),
        }  # fmt: skip
        for variant, ms in (("shared", 2.0), ("vect", 1.0), ("adapt", 4.0), ("levs", 1.5), ("auto", 1.25)):
            run.records.append(Record(name, "ilu0", "gpu", "finelu", variant, ms, 0.5, 1e-16, chosen="vect"))
        for policy, ms in (("NO_LEVEL", 1.25 * factor), ("USE_LEVEL", 3 * factor)):
            run.records.append(Record(name, "ilu0", "gpu", "cusparse", policy, ms, 2.0, 1e-16))
        run.records.append(Record(name, "ilu0", "cpu", "mkl", "dcsrilu0", 1.1, 0.0, 1e-16, threads=1))
    return run


def test_bars_take_the_better_policy_and_leave_the_worst_case_out():
    found = dict(spine.ratios(gpu_run(), "ilu0", "gpu", "numeric_ms"))
    assert found == pytest.approx({"few": 4.0, "some": 2.0, "many": 1.0})
    (line,) = [li for li in spine.bar_table(gpu_run()).splitlines() if li.startswith("| ILU0 numeric, GPU")]
    cells = [c.strip() for c in line.strip("|").split("|")]
    assert cells[2:] == ["3", "1.7", "2", "0.8", "1", "many", "yes"]


def test_a_single_slow_matrix_misses_the_bar():
    run = gpu_run()
    for slow in run.find(matrix="many", who="cusparse"):
        slow.numeric_ms /= 2
    (line,) = [li for li in spine.bar_table(run).splitlines() if li.startswith("| ILU0 numeric, GPU")]
    assert line.rstrip(" |").endswith("no")


def test_a_wrong_result_is_named_and_in_no_ratio():
    run = gpu_run()
    run.one(matrix="some", who="finelu", variant="auto").error = 1e-2  # ours was wrong: no speed-up to speak of
    run.one(matrix="few", who="cusparse", variant="NO_LEVEL").error = None  # NaN in a file: the other policy counts
    assert dict(spine.ratios(run, "ilu0", "gpu", "numeric_ms")) == pytest.approx({"few": 9.6, "many": 1.0})
    text = spine.page(run).partition("## Wrong results")[2]
    assert "some" in text and "0.01" in text and "few" in text and "many" not in text.partition("\n## ")[0]
    assert syncfree.record(run, "some", "auto") is None


def test_a_peer_stopped_at_its_limit_counts_as_a_lower_bound():
    run = a_run()
    run.matrices["m"] = {"apart": False, "levels": 3}
    run.records.append(
        Record("m", "gmres", "gpu", "finelu", "ILU0", 100.0, detail={"converged": True, "iterations": 9})
    )
    run.records.append(Record("m", "gmres", "gpu", "cupy", "spilu", 6e4, detail={"stopped": True}))
    assert spine.ratios(run, "gmres", "gpu", "numeric_ms") == [("m", pytest.approx(600.0))]
    assert ">600" in spine.gmres_table(run) and ">60" in spine.gmres_table(run)
    run.one(who="finelu").detail["converged"] = False
    assert spine.ratios(run, "gmres", "gpu", "numeric_ms") == []


def test_ginkgo_is_compared_on_its_own_device_only():
    run = a_run()
    run.records.append(Record("memplus", "trsv_lower", "gpu", "finelu", "auto", 0.11, 1.0, 1e-16))
    assert spine.against_ginkgo(run) == [("memplus", pytest.approx(2.0))]
    run.machine["gpu"] = "NVIDIA A100"
    assert spine.against_ginkgo(run) == []


def test_regret_is_auto_over_the_best_variant():
    (line,) = [li for li in spine.regret_table(gpu_run(), "gpu").splitlines() if li.startswith("| ilu0")]
    assert [c.strip() for c in line.strip("|").split("|")][1:4] == ["3", "1.25", "1.25"]


def test_syncfree_tables_count_as_the_paper_does():
    run = gpu_run()
    lines = [[c.strip() for c in li.strip("|").split("|")] for li in syncfree.table_1(run).splitlines()]
    table = {row[0]: dict(zip(lines[0][1:], row[1:], strict=True)) for row in lines[2:]}
    assert table["N"]["shared"] == "3" and table["N"]["vect"] == "0" and table["N"]["cusparse"] == "3"
    assert table["median rows per level"]["shared"] == "100" and table["median rows per level"]["vect"] == "-"
    second = syncfree.table_2(run, syncfree.WITHOUT_ANALYSIS).splitlines()
    assert [c.strip() for c in second[2].strip("|").split("|")] == ["Total", "0", "0", "3", "0"]
    third = [[c.strip() for c in li.strip("|").split("|")] for li in syncfree.table_3(run).splitlines()]
    vect = third[0].index("vect")
    assert third[2][vect] == "3" and float(third[3][vect]) == pytest.approx(1.25 * 7 / 3, rel=1e-2)


def test_syncfree_draws_every_figure_from_a_measurement(tmp_path, capsys):
    source = gpu_run().save(tmp_path / "in")
    assert syncfree.main(["--from", str(source), "--out", str(tmp_path)]) == 0
    assert sorted(p.name[-8:-4] for p in tmp_path.glob("*.png")) == [f"fig{k}" for k in range(4, 10)]
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in tmp_path.glob("*.png"))
    page = next(tmp_path.glob("syncfree-box-*.md")).read_text()
    assert "Absent" not in page and "tridiagonal:9" in page.split("## Milliseconds")[1]
    assert "Table III" in capsys.readouterr().out


def test_syncfree_takes_mkl_from_another_machine_and_says_so(tmp_path):
    both = gpu_run()
    gpu, cpu = gpu_run(), gpu_run()
    gpu.records = gpu.find(device="gpu")
    cpu.records, cpu.machine = cpu.find(device="cpu"), {"name": "desk", "cpu": "another cpu"}
    paths = [gpu.save(tmp_path / "gpu"), cpu.save(tmp_path / "cpu")]
    alone = syncfree.merged(paths[:1])
    assert syncfree.table_1(alone) is None and "MKL" in syncfree.absent(alone)
    run = syncfree.merged(paths)
    assert syncfree.table_1(run) == syncfree.table_1(both)
    assert run.options["mkl (cpu) from"] == "desk, another cpu, 2026-01-02"


def test_syncfree_without_a_gpu_says_what_is_absent(tmp_path, capsys):
    arguments = ["--cpu", "--matrices", "poisson5:20,20", "--machine", "box", "--out", str(tmp_path)]
    assert syncfree.main(arguments) == 0
    out = capsys.readouterr().out
    assert "no GPU" in out and "finelu on a GPU and cuSPARSE" in out
    run = Run.load(next(tmp_path.glob("syncfree-box-*.json.gz")))
    assert run.failures == [] and {r.device for r in run.records} == {"cpu"}
    assert bool(list(tmp_path.glob("*-fig4.png"))) == mkl.available()


# Every real matrix --------------------------------------------------------------------------------------------------


def solved_all(folder: Path, out: Path, *arguments: str):
    assert solve_all.main(["--matrix-folder", str(folder), "--out", str(out), *arguments]) == 0
    (path,) = out.glob("solve-all-cpu-*.json.gz")
    return record.read(path)["matrices"], page_of(path).read_text()


def test_solve_all_follows_the_rule_and_says_why_there_are_no_factors(tmp_path):
    poisson = finelu.gallery.poisson5(20)
    hollow = sp.lil_matrix(poisson)
    hollow[7, 7] = 0
    # positive definite; its IC(0) is not: the 2 x 2 pivot block that remains is indefinite (Kershaw 1978)
    kershaw = np.array([[3.0, -2, 0, 2], [-2, 3, -2, 0], [0, -2, 3, -2], [2, 0, -2, 3]])
    convection = finelu.gallery.convection_diffusion(6)
    cases = {"poisson": poisson, "hollow": sp.csr_matrix(hollow), "kershaw": kershaw, "convection": convection}
    for name, S in cases.items():
        scipy.io.mmwrite(tmp_path / f"{name}.mtx", sp.csr_matrix(S), symmetry="general")
    results, page = solved_all(tmp_path, tmp_path / "out")
    seen = {
        name: [(o["part"], o["recipe"], o["method"], o["status"]) for o in r["outcomes"]] for name, r in results.items()
    }
    alternative = ("alternative", "ILU0()", "bicgstab", "converged")
    assert seen["poisson"] == [("rule", "IC0()", "cg", "converged"), alternative]
    assert seen["convection"] == [("rule", "ILU0()", "gmres(30)", "converged"), alternative]
    broken, fallback, _ = seen["kershaw"]
    assert broken == ("rule", "IC0()", "cg", "no factors") and fallback == (
        "fallback",
        "ILU0()",
        "gmres(30)",
        "converged",
    )
    assert all(status == "no factors" for *_, status in seen["hollow"])
    assert "no diagonal entry in 1 rows (first: 7)" in page and "the pivot of row 3 is not positive" in page
    counts = dict(line.strip("| ").rsplit("|", 1) for line in page.split("## Counts")[1].splitlines() if "|" in line)
    counts = {what.strip(): number.strip() for what, number in counts.items()}
    assert counts["matrices"] == "4" and counts["with an ILU(0) or IC(0)"] == "3"
    assert counts["solved by the rule"] == "2" and counts["solved by the rule or its fallback"] == "3"


def test_solve_all_judges_the_residual_itself_and_keeps_to_its_time(tmp_path, monkeypatch):
    scipy.io.mmwrite(tmp_path / "poisson.mtx", finelu.gallery.poisson5(40), symmetry="general")
    results, _ = solved_all(tmp_path, tmp_path / "late", "--seconds", "0")
    assert {o["status"] for o in results["poisson"]["outcomes"]} == {"time limit"}
    honest = finelu.cg

    def boasting(*arguments, **options):
        solution = honest(*arguments, **options)
        solution.x[0] += 1e-3
        return solution

    monkeypatch.setattr(finelu, "cg", boasting)
    assert solve_all.main(["--matrix-folder", str(tmp_path), "--out", str(tmp_path / "wrong")]) == 1


def test_solve_all_refuses_a_folder_without_matrices_and_unknown_names(tmp_path):
    with pytest.raises(FileError, match="FINELU_MATRICES"):
        solve_all.main(["--matrix-folder", str(tmp_path)])
    scipy.io.mmwrite(tmp_path / "one.mtx", finelu.gallery.poisson5(3))
    with pytest.raises(ParameterError, match="there is no matrix two"):
        solve_all.main(["--matrix-folder", str(tmp_path), "--matrices", "one,two"])
