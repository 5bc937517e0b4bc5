"""The harness of the benchmarks: the suite of matrices, records and tables, clocks, peers, processes that may crash."""

import gzip
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy_for_cupy
import pytest
import scipy.io
import scipy.sparse as sp

import finelu
from finelu.errors import FileError, ParameterError
from finelu.kernels import cpu

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.claims import robustness, solve, spine  # noqa: E402
from benchmarks.harness import building_blocks, clock, options, record, suite, table, worker  # noqa: E402
from benchmarks.harness.case import SIDES, UNWRITTEN, Case, backward_error, relative_error  # noqa: E402
from benchmarks.harness.course import carry_out  # noqa: E402
from benchmarks.harness.record import Record, Run, page_of, revision  # noqa: E402
from benchmarks.harness.suite import Problem  # noqa: E402
from benchmarks.peers import PeerError, cusparse, mkl  # noqa: E402

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


# Numbers, tables and records ----------------------------------------------------------------------------------------


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


def test_a_run_names_the_commit_it_was_measured_at_and_an_old_one_its_date():
    run, commit = record.new_run("any", gpu=False, machine_name="box"), record.revision()
    assert commit and run.machine["commit"] == commit and f"- commit: {commit}" in run.heading().splitlines()
    old = Run("any", {"name": "box", "finelu": "0.1.0"}, "2026-01-02")
    assert "- commit: not recorded; finelu 0.1.0 at 2026-01-02" in old.heading().splitlines()


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


def git(folder, *arguments):
    names = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    return subprocess.run(["git", "-C", folder, *names, *arguments], check=True, capture_output=True, text=True).stdout


@pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")
def test_the_revision_is_the_commit_and_says_where_the_code_differs(tmp_path, monkeypatch):
    monkeypatch.delenv("FINELU_COMMIT", raising=False)
    assert revision(tmp_path) == "unknown"
    git(tmp_path, "init")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("1")
    (tmp_path / "README.md").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    commit = git(tmp_path, "rev-parse", "HEAD").strip()
    (tmp_path / "README.md").write_text("2")
    assert revision(tmp_path) == commit
    (tmp_path / "src" / "a.py").write_text("2")
    assert revision(tmp_path) == f"{commit}-dirty"
    assert revision(tmp_path / "src") == "unknown"
    monkeypatch.setenv("FINELU_COMMIT", "abc")
    assert revision(tmp_path / "src") == "abc"


# Clocks of building blocks -------------------------------------------------------------------------------------------


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


# Peers and cases ----------------------------------------------------------------------------------------------------


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


# Solvers that are judged --------------------------------------------------------------------------------------------


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


def test_every_run_is_judged_by_the_matrix_as_it_was_read():
    S = sp.csr_matrix(finelu.gallery.problem("poisson5:12,12"))
    x = np.linalg.solve(S.toarray(), solve.right_hand_side(144))
    calls = []

    def failing_later(S, b, end, extra=None):
        calls.append(end)
        S.data[:] = b[:] = 0.0
        return {"x": x if len(calls) < 3 else 0 * x, "iterations": 1, "status": ""}

    result = solve.outcome(failing_later, S, 10.0)
    assert result["status"] == "residual 1" and result["claimed"] and len(calls) == 3


def crash(S, b, end, fill):
    import os

    os._exit(7)


def hang(S, b, end, fill):
    time.sleep(1000)


def serve_with_faults(pipe, threads):
    robustness.WARM_UP = ()
    robustness.SOLVERS |= {"crash": crash, "hang": hang}
    robustness.serve(pipe, threads)


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


def test_a_course_saves_what_it_measured_and_says_how_it_ended(tmp_path, capsys):
    def course(ends, budget=None):
        run = Run("course", {"name": "box"}, "2026-01-02")

        def one(name, value):
            if value == ends:
                raise KeyboardInterrupt
            run.matrices[name] = {"n": value}
            return f"took {value}"

        options = SimpleNamespace(budget=budget, out=tmp_path)
        status = carry_out(run, {"a": 1, "b": 2}.items(), one, options, lambda run: "page", lambda run: "summary ")
        kept = Run.load(next(tmp_path.glob("*.json.gz")))
        assert page_of(next(tmp_path.glob("*.json.gz"))).read_text() == "page"
        return status, list(kept.matrices), kept.left_out, capsys.readouterr().out

    status, kept, left_out, printed = course(ends=None)
    assert (status, kept, left_out) == (0, ["a", "b"], {}) and "b took 2" in printed and "summary 0 failures" in printed
    assert course(ends=2)[:3] == (1, ["a"], {})
    assert course(ends=None, budget=0)[:3] == (0, [], dict.fromkeys("ab", "the budget was spent"))
