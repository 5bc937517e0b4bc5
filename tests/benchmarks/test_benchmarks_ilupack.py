"""The benchmarks of the multilevel ILU: its baseline, its GMRES by stages, its tables; which systems who solves."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy_for_cupy
import pytest
import scipy.io
import scipy.sparse as sp
import scipy.sparse.linalg as splinalg

import finelu
from finelu.errors import FileError, FineluError, ParameterError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.claims import robustness  # noqa: E402
from benchmarks.harness import clock as clocks  # noqa: E402
from benchmarks.harness import systems, worker  # noqa: E402
from benchmarks.harness.record import Record, Run, page_of  # noqa: E402
from benchmarks.harness.suite import Problem, names_of  # noqa: E402
from benchmarks.papers import ilupack, ilupack_baseline, ilupack_tables  # noqa: E402
from benchmarks.peers import cusparse  # noqa: E402


def a_run(name="ilupack", gpu="NVIDIA H200"):
    return Run(name, {"name": "box", "cpu": "a cpu", "gpu": gpu, "cores": 2}, "2026-01-02", {"threads": 2})


def cells(text: str, begin: str) -> list[str]:
    (line,) = [li for li in text.splitlines() if li.startswith(f"| {begin}")]
    return [c.strip() for c in line.strip("|").split("|")]


class HostSpSV:
    """Stands in for cuSPARSE's: the same arguments and contract, by SciPy."""

    def __init__(self, T, pairs, *, lower: bool, unit: bool):
        n = pairs[0][1].size
        S = sp.csr_matrix((T.data, T.indices, T.indptr), shape=(n, n))
        assert (sp.triu(S, 0) if lower else sp.tril(S, -1)).nnz == 0 < S.nnz, "one triangle, not an empty one"
        self.S, self.pairs, self.lower, self.unit = S, pairs, lower, unit
        self.analysed = False

    def analyse(self):
        self.analysed = True

    def solve(self, i=0):
        assert self.analysed
        b, y = self.pairs[i % len(self.pairs)]
        S = self.S + sp.identity(b.size, format="csr") if self.unit else self.S
        y[:] = splinalg.spsolve_triangular(S, b, lower=self.lower)

    def close(self):
        self.analysed = False


def on_host(F):
    return ilupack_baseline.Baseline(F, np, HostSpSV, lambda matrix: matrix)


# The baseline -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("low_memory", [True, False])
@pytest.mark.parametrize(
    "name", ["poisson5:17,13", "convection_diffusion:16,14", "helmholtz:14,k=9,absorbing=False", "stokes:8"]
)
def test_the_baseline_applies_the_same_M(name, low_memory):
    S = sp.csr_matrix(finelu.gallery.problem(name))
    F = finelu.MultilevelILU(condest=2, dense_size=20, low_memory=low_memory).factor(S)
    assert sum(level["n"] > 0 for level in F.report["levels"]) >= 2, "levels are needed to say anything"
    baseline = on_host(F)
    rng = np.random.default_rng(1)
    for _ in range(2):  # the vectors that are kept hold the last result
        b = rng.standard_normal(S.shape[0])
        assert ilupack.agreement(baseline, F, b) < 1e-9
    baseline.close()


@pytest.mark.parametrize("symmetric", [None, False])
def test_the_baseline_does_without_triangles_that_are_empty(symmetric):
    n = 60
    S = sp.diags_array(np.concatenate([np.arange(1.0, n), [0.0]])).tolil()
    S[n - 1, 0] = S[0, n - 1] = 2.0  # a pair, or a zero pivot that is deferred
    F = finelu.MultilevelILU(matching=False, dense_size=1, symmetric=symmetric).factor(sp.csr_matrix(S))
    parts = ilupack_baseline.Parts(F)
    assert parts.levels[0].L.nnz == 0 and F.report["kind"] == ("hermitian" if symmetric is None else "general")
    assert ilupack.agreement(on_host(F), F, np.arange(1.0, n + 1)) < 1e-12


def test_another_M_is_an_error():
    S = finelu.gallery.problem("poisson5:12,12")
    F = finelu.MultilevelILU(dense_size=20).factor(S)
    other = on_host(finelu.MultilevelILU(dense_size=20, drop_tol=0.3).factor(S))
    with pytest.raises(RuntimeError, match="another M"):
        ilupack.agreement(other, F, np.ones(144))


# GMRES by stages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("by_host", "by_blas"), [(False, False), (True, False), (False, True)])
def test_the_loop_takes_the_steps_of_gmres(by_host, by_blas):
    S = Problem("poisson5:30,30").load()
    F = finelu.ILU0().factor(S)
    b = S @ np.random.default_rng(0).standard_normal(900)
    solution = finelu.gmres(S, b, M=F, rtol=1e-8, restart=5, maxiter=500)
    clock = ilupack_baseline.Clock(gpu=False)
    x, iterations = ilupack_baseline.staged(S, F.solve, b, clock, on_host=by_host, by_blas=by_blas, restart=5)
    assert iterations == solution.iterations > 10, "restarts are needed"
    np.testing.assert_allclose(x, solution.x, rtol=1e-9, atol=1e-9)
    ms = clock.ms()
    assert set(ms) == set(ilupack_baseline.STAGES) and all(
        ms[s] > 0 for s in ilupack_baseline.STAGES if s != ilupack_baseline.COPIES
    )
    assert (ms[ilupack_baseline.COPIES] > 0) == by_host


def test_the_loop_ends_at_its_limit_and_when_nothing_is_gained():
    S = Problem("poisson5:20,20").load()
    b = np.ones(400)
    clock = ilupack_baseline.Clock(gpu=False, off=True)
    assert ilupack_baseline.staged(S, lambda r: r, b, clock, maxiter=7, restart=4)[1] == 7
    assert ilupack_baseline.staged(S, lambda r: r * np.nan, b, clock)[1] == 0
    assert sum(clock.ms().values()) == 0


@pytest.fixture
def seconds(monkeypatch):
    """The seconds that the clock shows, which stands still unless a test turns it: [seconds]."""
    shown = [0.0]
    monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter=lambda: shown[0]))
    return shown


def test_a_stage_has_the_time_spent_in_it(seconds):
    S = Problem("poisson5:9,9").load()

    def slowly(r):
        seconds[0] += 0.01
        return r

    clock = ilupack_baseline.Clock(gpu=False)
    _, iterations = ilupack_baseline.staged(S, slowly, np.ones(81), clock)
    ms = clock.ms()
    assert ms[ilupack_baseline.PREC] == pytest.approx(10 * (iterations + 1))
    assert ms[ilupack_baseline.SPMV] == ms[ilupack_baseline.MGSO] == 0


def test_iterations_that_do_not_count_are_forgotten(seconds):
    clock = ilupack_baseline.Clock(gpu=False)
    for clock.iteration in range(4):
        with clock(ilupack_baseline.PREC):
            seconds[0] += 0.005
    clock.forget(2)
    assert clock.ms()[ilupack_baseline.PREC] == pytest.approx(10)


def test_on_a_gpu_the_time_between_events_counts(monkeypatch):
    ticks = iter(range(100))

    class Event(numpy_for_cupy.Event):
        def record(self):
            self.at = 1e-3 * next(ticks)

    cupy = numpy_for_cupy.modules()["cupy"]
    cupy.cuda.Event = Event
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    clock = ilupack_baseline.Clock(gpu=True)
    with clock(ilupack_baseline.MGSO):
        pass
    with clock(ilupack_baseline.MGSO):
        Event().record()
    assert clock.ms()[ilupack_baseline.MGSO] == pytest.approx(3.0)


def test_all_variants_are_measured_where_there_is_a_gpu(monkeypatch):
    """With NumPy instead of CuPy, SciPy's triangular solve instead of cuSPARSE's: every step but the device."""
    for name, module in numpy_for_cupy.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(cusparse, "SpSV", HostSpSV)
    run = a_run()
    recipe = finelu.MultilevelILU(dense_size=10)
    ilupack.measure_one(run, "cage11", sp.csr_matrix(finelu.gallery.problem("poisson5:12,12")), recipe, gpu=True)
    assert run.failures == [] and [r.variant for r in run.records] == ["a", "b", "p", "c"]
    iterations = {r.detail["iterations"] for r in run.records}
    assert len(iterations) == 1 and all(r.detail["converged"] and r.numeric_ms > 0 for r in run.records)
    assert [r.detail["stages"]["copies"] > 0 for r in run.records] == [False, True, False, False]
    assert run.records[3].detail["application by SpSV"]["ms"] > 0 and run.records[1].detail["apart"] < 1e-9
    text = ilupack_tables.page(run)
    assert (
        "(b) baseline" in text
        and "(p) the paper's own" in text
        and "Maxwell" in text
        and "Absent" not in text
        and "not measured" not in text
    )


# Its tables ---------------------------------------------------------------------------------------------------------


def solve(matrix, variant, total, prec, mgso, copies=0.0, *, converged=True, iterations=5):
    stages = dict(zip(ilupack_baseline.STAGES, (1.0, prec, mgso, copies, 0.5), strict=True))
    detail = {"iterations": iterations, "converged": converged, "stages": stages, "application": {"ms": prec / 5}}
    if variant == "c":
        detail["application by SpSV"] = {"ms": 2.0}
    return Record(matrix, "gmres", "gpu", "finelu", variant, total, error=1e-9, detail=detail)


def three_matrices():
    run = a_run()
    for name in ("cage11", "memplus", "ani5"):
        run.matrices[name] = {"n": 10, "nnz": 50, "levels": [10, 2], "fill": 2.0, "kind": "general", "seconds": 0.1}
    run.records += [solve("cage11", "b", 80.0, 32.0, 20.0, 10.0), solve("cage11", "c", 10.0, 4.0, 2.0)]
    run.records += [solve("memplus", "b", 4.0, 2.0, 1.0, 1.0), solve("memplus", "c", 2.0, 1.0, 1.0)]
    run.records += [solve("ani5", "b", 90.0, 9.0, 9.0), solve("ani5", "c", 1.0, 1.0, 1.0, converged=False)]
    return run


def test_claims_are_means_over_what_can_be_compared():
    lines = [
        [c.strip() for c in line.strip("|").split("|")]
        for line in ilupack_tables.claim_table(three_matrices()).splitlines()
    ]
    found = {(li[0], li[1]): li[2:] for li in lines[2:]}
    assert found["application of M^-1", "all"] == ["2", "3", "4", "2", "memplus", "yes"]
    assert found["application of M^-1", "the paper's"] == ["1", "3", "8", "8", "cage11", "yes"]
    assert found["Gram-Schmidt, copies not counted", "all"][-1] == "no"
    assert found["Gram-Schmidt with its copies", "the paper's"][2:5] == ["15", "15", "cage11"]
    assert found["whole GMRES", "all"] == ["2", "3", "4", "2", "memplus", "yes"]
    assert "not measured" in ilupack_tables.claim_table(a_run())


def test_the_papers_numbers_stand_below_its_matrices_and_their_kind():
    run = three_matrices()
    text = ilupack_tables.stage_table(run)
    assert text.count("| paper") == 2
    assert next(c for c in text.splitlines() if "i7-6700" in c).split("|")[3].strip() == "7"
    assert next(c for c in text.splitlines() if "(c) finelu" in c and "ani5" in c).split("|")[3].strip() == ">5"
    text = ilupack_tables.gain_table(run)
    assert text.count("Maxwell") == text.count("Pascal") == 1 and "ani5" not in text
    assert cells(text, "cage11 ~ cage13")[6:9] == ["32", "4", "8"]
    assert "445315" in ilupack_tables.matrix_table(run)
    assert cells(ilupack_tables.application_table(run), "cage11")[3:] == ["2", "0.8", "8", "2.5", "0"]


def test_the_papers_rows_are_whole():
    papers = set(ilupack_tables.TABLE_2)
    assert (
        papers
        == set(ilupack_tables.ITERATIONS)
        == set(ilupack_tables.TABLE_3)
        == set(ilupack_tables.TABLE_4)
        == set(ilupack_tables.TABLE_5)
    )
    rows = [
        *ilupack_tables.TABLE_3.values(),
        *(row for t in (ilupack_tables.TABLE_4, ilupack_tables.TABLE_5) for p in t.values() for row in p),
    ]
    assert len(rows) == 50
    for *parts, total in rows:
        assert sum(parts) == pytest.approx(total, abs=0.0035)  # the paper's own rounding
    assert set(ilupack_tables.OWN.values()) | set(ilupack_tables.LIKE.values()) <= papers
    assert all(n.partition(":")[0] in finelu.gallery.PROBLEMS for n in ilupack.FIRST if n.endswith("_like"))


def test_ilupack_on_the_cpu(tmp_path, capsys):
    arguments = ["--cpu", "--matrices", "poisson5:15,15,stokes:6", "--drop-tol", "0.05", "--threads", "1"]
    assert ilupack.main([*arguments, "--machine", "box", "--out", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("ilupack-box-*.json.gz")
    run = Run.load(path)
    assert [(r.matrix, r.variant, r.detail["converged"]) for r in run.records] == [
        ("poisson5:15,15", "a", True),
        ("stokes:6", "a", True),
    ]
    assert "drop_tol=0.05" in run.options["recipe"] and "no GPU" in run.left_out["(b) and (c)"]
    text = page_of(path).read_text()
    assert "Table 2" in text and "not measured in this run" in text
    again = tmp_path / "again"
    assert ilupack.main(["--from", str(path), "--out", str(again)]) == 0
    assert next(again.glob("*.md")).read_text() == text
    assert "stokes:6" in capsys.readouterr().out


# Robustness ---------------------------------------------------------------------------------------------------------


def robust(matrix, solver, status="", *, setup=None, fill=None, iterations=3):
    detail = {"status": status, "iterations": iterations, "fill": fill}
    return Record(matrix, "gmres", "cpu", solver, solver, 1000.0, setup, error=1e-9, detail=detail)


def robust_run(lines):
    run = a_run("robustness", None)
    for matrix, n, outcomes in lines:
        run.matrices[matrix] = {"n": n, "nnz": 5 * n, "zero diagonal": 0}
        run.records += [robust(matrix, solver, *rest[:1], **dict(*rest[1:])) for solver, *rest in outcomes]
    return run


def test_only_what_something_solves_is_counted():
    ours, matched = robustness.OURS, robustness.MATCHED
    run = robust_run(
        [
            ("one", 10, [(ours, ""), ("ILU0", "breakdown"), ("pyamg SA", ""), ("pyamg RS", "time")]),
            ("two", 10, [(ours, "pivot of row 3"), ("ILU0", ""), ("pyamg SA", "time"), ("pyamg RS", "")]),
            ("three", 10, [(ours, "time"), ("ILU0", "time"), ("pyamg SA", "time"), ("pyamg RS", "time")]),
        ]
    )
    found = {what: rest for what, *rest in robustness.claims(run)}
    assert found["MultilevelILU: of the 2 matrices that anything solves"] == ["> 90%", "1 = 50.0%", "no"]
    assert found["MultilevelILU against ILU0"] == ["> 1", "1", "no"]
    assert found["MultilevelILU against pyamg (SA or RS)"] == ["> 2", "1", "no"]  # each of the two solves another
    assert not any(matched in what or "spilu" in what for what in found)
    assert cells(robustness.failure_table(run), "two")[1:] == ["pivot of row 3", "1e-09", "-", "ILU0, pyamg RS"]
    assert cells(systems.matrix_table(run, robustness.SOLVERS), "solved of 3")[4:] == ["1", "1", "1", "1"]
    assert cells(systems.reason_counts(run, robustness.SOLVERS), "pyamg SA")[1] == "2 time"
    assert cells(systems.reason_counts(run, robustness.SOLVERS), ours)[1] == "1 pivot, 1 time"


def test_set_up_times_are_compared_at_near_fill_only():
    def both(ours, theirs, fill, other):
        return [
            (robustness.OURS, "", {"setup": ours, "fill": fill}),
            (robustness.MATCHED, "", {"setup": theirs, "fill": other}),
        ]

    run = robust_run(
        [
            ("large", 6000, both(8.0, 2.0, 2.0, 2.2)),
            ("also", 9000, both(1.0, 1.0, 2.0, 1.8)),
            ("small", 600, both(90.0, 1.0, 2.0, 2.0)),
            ("elsewhere", 6000, both(90.0, 1.0, 2.0, 4.0)),
        ]
    )
    assert [name for name, *_ in robustness.setups(run)] == ["large", "also"]
    assert robustness.claims(run)[-1][2:] == ("2", "yes")
    assert cells(robustness.setup_table(run), "large")[6] == "4"


def test_a_solver_is_judged_by_the_matrix_as_it_was_read():
    S = sp.csr_matrix(finelu.gallery.problem("poisson5:12,12"))
    before = S.copy()

    def boasting(S, b, end, fill):
        S.data[:] = 1.0
        return {"x": np.zeros(b.size), "iterations": 1, "status": ""}

    found = robustness.outcome(boasting, S, 10.0, None)
    assert found["status"] == "residual 1" and found["claimed"] and abs(S - before).nnz == 0

    def raising(*_):
        raise RuntimeError("exactly singular")

    assert robustness.outcome(raising, S, 10.0, None)["status"] == "singular"


@pytest.mark.parametrize("solver", [s for s in robustness.SOLVERS if s.split()[0] not in ("ilupp", "pyamg")])
def test_every_solver_solves_an_easy_system_and_keeps_to_its_time(solver):
    S = sp.csr_matrix(finelu.gallery.problem("convection_diffusion:20,20"))
    found = robustness.outcome(robustness.SOLVERS[solver], S, 60.0, None)
    assert found["status"] == "" and found["residual"] <= 1.01e-8 and found["seconds"] > 0 and found["setup"][0] > 0
    if solver != "splu (direct)":
        assert (
            found["iterations"] > 0 and robustness.outcome(robustness.SOLVERS[solver], S, 0.0, None)["status"] == "time"
        )


def test_ilupp_reaches_the_fill_that_is_asked_for():
    pytest.importorskip("ilupp")
    S = sp.csr_matrix(finelu.gallery.problem("convection_diffusion:40,40,1"))
    for fill in (1.5, 3.0):
        found = robustness.outcome(robustness.SOLVERS[robustness.MATCHED], S, 60.0, fill)
        assert found["status"] == "" and abs(found["fill"] / fill - 1) < 0.15
    assert robustness.outcome(robustness.SOLVERS[robustness.MATCHED], S, 60.0, None)["status"] == "no MultilevelILU"


@pytest.mark.parametrize("solver", robustness.AMG)
def test_pyamg_solves_and_counts(solver):
    pytest.importorskip("pyamg")
    S = sp.csr_matrix(finelu.gallery.problem("poisson5:30,30"))
    found = robustness.outcome(robustness.SOLVERS[solver], S, 60.0, None)
    assert found["status"] == "" and 2 < found["iterations"] < 30


def crash(S, b, end, fill):
    import os

    os._exit(7)


def hang(S, b, end, fill):
    time.sleep(1000)


def test_a_crash_or_a_solver_without_end_stops_only_itself(tmp_path):
    path = tmp_path / "one.mtx"
    scipy.io.mmwrite(path, finelu.gallery.poisson5(6), symmetry="general")
    child = worker.Worker(1, serve_with_faults, grace=0.2)
    try:
        assert child.ask(path, "crash", 250.0, None)["status"] == "crashed"
        assert child.ask(path, "hang", 0.3, None) == {"status": "time", "seconds": 0.3}
        assert child.ask(path, "ILU0", 250.0, None)["status"] == ""
    finally:
        child.stop()


def serve_with_faults(pipe, threads):
    robustness.WARM_UP = ()
    robustness.SOLVERS |= {"crash": crash, "hang": hang}
    robustness.serve(pipe, threads)


def test_robustness_runs_whole(tmp_path, capsys):
    for name, S in (("poisson", finelu.gallery.poisson5(12)), ("saddle", finelu.gallery.stokes(6))):
        scipy.io.mmwrite(tmp_path / f"{name}.mtx", S, symmetry="general")
    arguments = ["--matrix-folder", str(tmp_path), "--out", str(tmp_path / "out"), "--machine", "box", "--limit", "20"]
    assert robustness.main([*arguments, "--solvers", "MultilevelILU,ILU0,spilu", "--threads", "1"]) == 0
    (path,) = (tmp_path / "out").glob("robustness-box-*.json.gz")
    run = Run.load(path)
    assert {(r.matrix, r.variant): r.detail["status"] for r in run.records} == {
        ("poisson", "MultilevelILU"): "",
        ("poisson", "ILU0"): "",
        ("poisson", "spilu"): "",
        ("saddle", "MultilevelILU"): "",
        ("saddle", "ILU0"): "no diagonal",
        ("saddle", "spilu"): "",
    }
    text = page_of(path).read_text()
    assert cells(text, "solved of 2")[4:] == ["2", "1", "2"] and "Nothing." in text
    assert robustness.main(["--from", str(path), "--out", str(tmp_path / "again")]) == 0
    assert next((tmp_path / "again").glob("*.md")).read_text() == text


def test_robustness_refuses_what_it_does_not_know(tmp_path):
    with pytest.raises(FileError, match="FINELU_MATRICES"):
        robustness.main(["--matrix-folder", str(tmp_path)])
    scipy.io.mmwrite(tmp_path / "one.mtx", finelu.gallery.poisson5(3))
    with pytest.raises(ParameterError, match="there is no matrix two"):
        robustness.main(["--matrix-folder", str(tmp_path), "--matrices", "one,two"])
    with pytest.raises(ParameterError, match="there is no ILU9"):
        robustness.main(["--matrix-folder", str(tmp_path), "--solvers", "ILU9"])


def test_a_wrong_claim_of_finelu_ends_in_an_error(tmp_path):
    run = robust_run([("one", 10, [("ILU0", "residual 1e-03")])])
    run.records[0].detail["claimed"] = True
    with pytest.raises(FineluError, match="wrong for one"):
        robustness.main(["--from", str(run.save(tmp_path)), "--out", str(tmp_path)])


def test_both_are_found_by_name():
    assert names_of("stokes:6,cage10") == ["stokes:6", "cage10"]
    from typer.testing import CliRunner

    from finelu.cli import app

    found = CliRunner().invoke(app, ["bench", "nothing"])
    assert {"ilupack", "robustness"} <= {w.strip(",") for w in str(found.exception or found.output).split()}
