"""The benchmark of finelu.solve: judgement, claims and tables from made-up records; a whole run on small systems."""

import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

import finelu
from finelu.errors import FineluError, ParameterError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.claims import solve, solve_first_use, solve_tables  # noqa: E402
from benchmarks.claims.solve_first_use import EMPTY, IMPORT, LATER, MEASURED  # noqa: E402
from benchmarks.claims.solve_tables import OURS  # noqa: E402
from benchmarks.harness import systems  # noqa: E402
from benchmarks.harness.record import Record, Run, page_of  # noqa: E402


def cells(text: str, begin: str) -> list[str]:
    (line,) = [li for li in text.splitlines() if li.startswith(f"| {begin}")]
    return [c.strip() for c in line.strip("|").split("|")]


def a_run(outcomes_of):
    """outcomes_of: matrix -> (n, {solver: (status, ms)})."""
    run = Run("solve", {"name": "box", "cpu": "a cpu", "cores": 2}, "2026-01-02", {"threads": 2})
    for matrix, (n, outcomes) in outcomes_of.items():
        run.matrices[matrix] = {"n": n, "nnz": 5 * n, "zero diagonal": 0}
        for solver, (status, ms) in outcomes.items():
            detail = {"status": status, "said": status or "converged", "iterations": 3, "seen": ["2 rows", "A v = 0"]}
            run.records.append(Record(matrix, "solve", "cpu", solver, solver, ms, error=1e-9, detail=detail))
    return run


def found(run):
    return {what: rest for what, *rest in solve_tables.claims(run)}


def test_the_share_is_of_what_anything_solves():
    run = a_run(
        {
            "both": (10, {OURS: ("", 1.0), "splu": ("", 1.0)}),
            "theirs": (10, {OURS: ("time", 1.0), "splu": ("", 1.0)}),
            "alone": (10, {OURS: ("", 1.0), "splu": ("memory", 1.0)}),
            "none": (10, {OURS: ("stagnated", 1.0), "splu": ("time", 1.0)}),
        }
    )
    claims = found(run)
    assert claims["finelu.solve: of the 3 systems that anything solves"] == [">= 97%", "2 = 66.7%", "no"]
    assert claims["solved that no other solves"] == [">= 1", "1, alone", "yes"]
    assert cells(solve_tables.failure_table(run), "theirs")[1:] == ["time", "1e-09", "splu"]
    assert cells(solve_tables.failure_table(run), "none")[3] == "none"
    assert cells(systems.matrix_table(run, solve.SOLVERS), "solved of 4")[4:] == ["2", "2"]


def test_times_are_compared_on_large_systems_that_both_solve():
    run = a_run(
        {
            "small": (9999, {OURS: ("", 100.0), "splu": ("", 1.0)}),
            "one": (10000, {OURS: ("", 1.0), "splu": ("", 16.0), "spilu": ("", 8.0), "pyamg": ("", 2.0)}),
            "two": (20000, {OURS: ("", 2.0), "splu": ("time", 0.1), "spilu": ("", 4.0), "ilupp": ("", 1.0)}),
            "lost": (20000, {OURS: ("time", 1.0), "splu": ("", 500.0)}),
        }
    )
    assert solve_tables.ratios(run, solve_tables.SCIPY) == {"one": 8.0, "two": 2.0}
    assert solve_tables.ratios(run, solve_tables.peers(run)) == {"one": 2.0, "two": 0.5}
    what = "time of {} over ours, geometric mean of 2 systems of 10000 rows or more"
    claims = found(run)
    assert claims[what.format("SciPy's best")] == [">= 3", "4, median 5, worst 2 (two), slower on 0", "yes"]
    assert claims[what.format("the best of all others")] == [
        ">= 1.2", "1, median 1.25, worst 0.5 (two), slower on 1", "no"
    ]  # fmt: skip
    what = "time of SciPy's best over ours, geometric mean of 3 systems of any size"
    assert claims[what] == ["-", "0.543, median 2, worst 0.01 (small), slower on 1", ""]
    assert cells(solve_tables.time_table(run), "small")[1:5] == ["9999", "100", "1", "splu"]
    assert cells(solve_tables.time_table(run), "two")[1:] == ["20000", "2", "4", "spilu", "2", "1", "ilupp", "0.5"]


def test_singular_systems_are_listed_with_their_evidence_and_refuted_by_a_solution():
    run = a_run(
        {
            "truly": (10, {OURS: ("singular", 1.0), "splu": ("singular", 1.0)}),
            "not": (10, {OURS: ("singular", 1.0), "splu": ("", 1.0)}),
        }
    )
    assert cells(solve_tables.singular_table(run), "truly")[1:] == ["A v = 0", "none"]
    assert cells(solve_tables.singular_table(run), "not")[2] == "splu"
    assert found(run)["called singular (2), but solved by another"] == ["0", "1, not", "no"]


def test_a_wrong_claim_ends_in_an_error(tmp_path):
    run = a_run({"one": (10, {OURS: ("residual 0.1", 1.0)})})
    run.records[0].detail["claimed"] = True
    assert found(run)["false claims of convergence"] == ["0", "1, one", "no"]
    with pytest.raises(FineluError, match="wrong for one"):
        solve.main(["--from", str(run.save(tmp_path)), "--out", str(tmp_path)])


def test_first_use_is_held_against_its_bars():
    run = a_run({})
    assert all(rest[-1] == "not measured" for rest in found(run).values())
    for what, system, seconds in ((IMPORT, "finelu", 0.1), (EMPTY, "a", 9.0), (EMPTY, "b", 16.0), (LATER, "a", 0.9)):
        detail = {"runs": [seconds]} | ({"said": "compiling, once" if system == "a" else ""} if what == EMPTY else {})
        run.records.append(Record(system, MEASURED, "cpu", "finelu", what, 1e3 * seconds, detail=detail))
    last = [rest[1:] for rest in list(found(run).values())[-4:]]
    assert last == [["0.1", "yes"], ["16", "no"], ["0.9", "yes"], ["1", "no"]]


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


def test_the_median_of_warm_runs_counts_and_an_answer_after_the_limit_does_not():
    S = sp.csr_matrix(finelu.gallery.problem("poisson5:6,6"))
    steps = [0, 0.9, 0, 0, 0.1] + [step for seconds in (0.3, 0.2, 0.2, 0.1) for step in (0, 0, seconds)]
    x = np.linalg.solve(S.toarray(), solve.right_hand_side(36))

    def exact(*_):
        return {"x": x, "iterations": None, "status": ""}

    result = solve.outcome(exact, S, 10.0, clock=iter(np.cumsum(steps)).__next__)
    assert len(result["runs"]) == solve_first_use.RUNS
    np.testing.assert_allclose([result["first"], result["seconds"]], [0.9, 0.2])
    late = solve.once(exact, S, solve.right_hand_side(36), 0.5, clock=iter(np.arange(100.0)).__next__)
    assert late["status"] == "time"


def test_a_run_that_compiled_is_repeated_whatever_it_costs(monkeypatch):
    S = sp.csr_matrix(finelu.gallery.problem("poisson5:6,6"))
    x = np.linalg.solve(S.toarray(), solve.right_hand_side(36))

    def outcome():  # each run takes two seconds, too much to repeat it
        answer = {"x": x, "iterations": None, "status": ""}
        return solve.outcome(lambda *_: dict(answer), S, 10.0, clock=iter(np.arange(0.0, 1e3, 2.0)).__next__)

    assert "runs" not in outcome()
    monkeypatch.setattr(solve, "compile_clock", lambda: nullcontext(lambda: 0.5))
    assert len(outcome()["runs"]) == 1


@pytest.mark.parametrize("solver", solve.SOLVERS)
def test_every_solver_solves_an_easy_system(solver):
    if (package := solver.split()[0]) in systems.PACKAGES.values():
        pytest.importorskip(package)
    S = sp.csr_matrix(finelu.gallery.problem("poisson5:30,30"))
    result = solve.once(solve.SOLVERS[solver], S, solve.right_hand_side(900), 60.0)
    assert result["status"] == "" and result["residual"] <= 1.01e-8 and result["seconds"] > 0
    if solver == OURS:
        assert result["tried"][-1]["outcome"] == "solved" and result["said"] == "converged"


def test_the_best_of_scipy_is_that_of_three_settings():
    run = a_run({"one": (10000, {OURS: ("", 1.0), "splu": ("", 9.0), "splu symmetric": ("", 2.0), "spilu": ("", 5.0)})})
    assert solve_tables.best(run, "one", solve_tables.SCIPY) == (2.0, "splu symmetric")
    S = sp.csc_matrix(finelu.gallery.problem("poisson5:40,40"))
    b = solve.right_hand_side(1600)
    filled = [solve.SOLVERS[name](S, b, np.inf)["fill"] for name in ("splu", "splu symmetric")]
    assert filled[1] < filled[0]  # the setting has an effect


def test_it_runs_whole(tmp_path):
    for name, S in (("poisson", finelu.gallery.poisson5(12)), ("saddle", finelu.gallery.stokes(6))):
        scipy.io.mmwrite(tmp_path / f"{name}.mtx", S, symmetry="general")
    arguments = ["--matrix-folder", str(tmp_path), "--out", str(tmp_path / "out"), "--machine", "box", "--limit", "20"]
    chosen = ["--solvers", "finelu.solve,splu", "--threads", "1", "--parts", "systems"]
    assert solve.main([*arguments, *chosen]) == 0
    (path,) = (tmp_path / "out").glob("solve-box-*.json.gz")
    run = Run.load(path)
    assert {(r.matrix, r.variant): r.detail["status"] for r in run.records} == {
        (matrix, solver): "" for matrix in ("poisson", "saddle") for solver in (OURS, "splu")
    }
    text = page_of(path).read_text()
    assert cells(text, "solved of 2")[4:] == ["2", "2"] and "Nothing." in text and "solved, " in text
    assert solve.main(["--from", str(path), "--out", str(tmp_path / "again")]) == 0
    assert next((tmp_path / "again").glob("*.md")).read_text() == text


def test_a_fresh_process_imports_and_solves(tmp_path):
    sp.save_npz(tmp_path / "system.npz", sp.csr_matrix(finelu.gallery.poisson5(12)))
    result = solve_first_use.fresh(1, system=tmp_path / "system.npz")
    assert result["converged"] and result["import"] > 0 and 0 < result["again"] < result["solve"]
    with pytest.raises(FineluError, match="No such file"):
        solve_first_use.fresh(1, system=tmp_path / "absent.npz")


def test_the_columns_of_the_tables_are_all_solvers():
    assert tuple(solve.SOLVERS) == solve_tables.ORDER


def test_it_refuses_what_it_does_not_know(tmp_path):
    with pytest.raises(ParameterError, match="there is no ILU9"):
        solve.main(["--solvers", "ILU9", "--out", str(tmp_path)])
    with pytest.raises(ParameterError, match="there is no last"):
        solve.main(["--parts", "last", "--out", str(tmp_path)])


def test_it_is_found_by_name():
    from typer.testing import CliRunner

    from finelu.cli import app

    found = CliRunner().invoke(app, ["bench", "nothing"])
    names = {w.strip(",") for w in str(found.exception or found.output).split()}
    assert "solve" in names and "systems" not in names
