"""The comparison of two source trees: its means from made-up times, and a whole run of a tree compared with itself."""

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy_for_cupy
import pytest
import scipy.sparse as sp

from finelu import gallery
from finelu.errors import FileError, FineluError, ParameterError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.claims import pairs, pairs_worker  # noqa: E402
from benchmarks.harness.record import Run, page_of, revision  # noqa: E402


def a_pair(name, old, new):
    """A call of which each run took these ms; the processor's time is twice that of the clock."""
    return pairs.Pair("spine", name, "F.solve(b)", "", (old, new), ([2 * t for t in old], [2 * t for t in new]))


def test_a_machine_that_is_slow_for_a_while_does_not_show():
    pair = a_pair("a", [2.0, 2.0, 10.0, 2.0, 2.0], [1.0, 1.0, 5.0, 5.0, 1.0])
    assert pair.ratio == pair.by_processor == pair.by_minima == 2.0
    assert a_pair("b", [1.0, 1.0, 1.0], [1.0, 9.0, 1.0]).ratio == 1.0


def test_the_mean_and_each_call_decide_and_what_misses_is_named():
    fast, slow = a_pair("fast", [4.0], [1.0]), a_pair("slow", [1.0], [3.0])
    text, holds = pairs.verdict([fast, slow], 0.98, 0.93)
    assert not holds and "geometric mean 1.155" in text and "below 0.93: spine, slow: F.solve(b) (0.333" in text
    text, holds = pairs.verdict([fast, slow], 0.98, 0.3)
    assert holds and text.endswith("none.\n")
    assert not pairs.verdict([fast, slow], 1.2, 0.3)[1]
    rows = [[c.strip() for c in line.strip("|").split("|")] for line in pairs.part_table([fast, slow]).splitlines()[2:]]
    assert [row[0] for row in rows] == ["spine", "all"]
    assert rows[0][1:] == rows[1][1:] == ["2", *["1.155"] * 3, "0.333", "spine, slow: F.solve(b)", "0"]


def test_a_call_that_answers_otherwise_is_named_and_counts_unless_it_may():
    same, other = a_pair("same", [1.0], [1.0]), a_pair("other", [1.0], [1.0])
    other.note = "by 1.0e-16"
    text, holds = pairs.verdict([same, other], 0.98, 0.93)
    assert not holds and "Other answers: spine, other: F.solve(b) (by 1.0e-16)." in text
    assert pairs.verdict([same, other], 0.98, 0.93, alike=False) == (text, True)
    other.part = "solve"
    assert not pairs.verdict([same, other], 0.98, 0.93)[1]
    other.converged = True
    assert pairs.verdict([same, other], 0.98, 0.93)[1]


@pytest.mark.parametrize(("said", "both"), [("converged after 7", True), ("breakdown after 3", False)])
def test_whether_both_trees_have_converged_is_kept(said, both):
    old, new = Answers(*[1.0] * 3), Answers(*[1.0] * 3)
    old.said, new.said = "converged after 3", said
    (pair,) = pairs.measure((old, new), "solve", "m", "", 3, 0.93)
    assert pair.note == f"converged after 3 -> {said}" and pair.converged == both


def test_answers_that_differ_are_described():
    x = np.ones(3)
    assert pairs.difference(("converged after 3", x), ("converged after 3", x.copy())) == ""
    found = pairs.difference(("converged after 3", x), ("singular after 4", np.array([1.0, 1.0, 1.5])))
    assert found == "converged after 3 -> singular after 4, by 5.0e-01"
    assert pairs.difference(("", x), ("", np.ones(2))) == "shape (3,) -> (2,)"


class Answers:
    """Stands in for a tree: calls that take these ms, in turn."""

    def __init__(self, *ms):
        self.ms, self.asked, self.root, self.said = iter(ms), 0, "here", ""

    def ask(self, what, *_):
        if what == "open":
            return {"call": (self.said, np.zeros(1), 10.0)}
        self.asked += 1
        return next(self.ms), 1.0


def test_a_call_that_misses_is_measured_again_and_all_runs_count():
    old, new = Answers(*[1.0] * 9), Answers(*[2.0] * 3, *[1.0] * 6)
    (pair,) = pairs.measure((old, new), "solve", "m", "", 3, 0.93)
    assert pair.ratio == 1.0 and old.asked == new.asked == len(pair.runs[1]) == 9
    old, new = Answers(*[1.0] * 3), Answers(*[1.0] * 3)
    pairs.measure((old, new), "solve", "m", "", 3, 0.93)
    assert old.asked == 3


def test_a_tree_compared_with_itself(tmp_path, capsys):
    arguments = ["--parts", "spine,solve", "--cases", "poisson5:9,9,absent", "--threads", "1", "--runs", "1"]
    pairs.main([str(ROOT), str(ROOT), *arguments, "--out", str(tmp_path), "--machine", "box"])
    said = capsys.readouterr()
    assert "left out: spine, absent" in said.err and "spine, poisson5:9,9" in said.out
    (path,) = tmp_path.glob("pairs-box-*.json.gz")
    run = Run.load(path)
    assert run.machine["commit"] == run.options["old"] == revision(ROOT)
    assert {(r.work, r.who) for r in run.records} == {
        (part, who) for part in ("spine", "solve") for who in ("old", "new")
    }
    assert {"ILU0 F.update(A)", "IC0().factor(A)", "TriangularSolver(L)", "solve(A, b)"} <= {
        r.variant for r in run.records
    }
    assert all(r.detail["differs"] == "" and r.numeric_ms > 0 for r in run.records)
    assert "by CPU time" in page_of(path).read_text()


SMALL = {"selection": "2^12", "fgbilu": "3^3, 3"}


@pytest.mark.parametrize("part", pairs.PARTS)
def test_every_part_makes_its_calls_on_the_cpu_and_as_on_a_gpu(part, tmp_path, monkeypatch):
    for name, module in numpy_for_cupy.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    sp.save_npz(tmp_path / "m.npz", sp.csr_matrix(gallery.poisson5(20)))
    found = {}
    for gpu in (False, True):
        calls = list(pairs_worker.calls_of(part, SMALL.get(part, "m"), str(tmp_path / "m.npz"), gpu))
        found[gpu] = {call.name: call.answer() for call in calls}
        assert all(min(pairs_worker.timed(call, 2, gpu)) >= 0 for call in calls)
    assert list(found[False]) == list(found[True])
    for here, there in zip(found[False].values(), found[True].values(), strict=True):
        assert pairs.difference(here, there) == "" and np.isfinite(here[1]).all()


def test_every_case_can_be_made_or_is_a_name():
    for cases in pairs.CASES.values():
        assert tuple(cases) == pairs.PARTS == (*cases,)
        names = {name for part in pairs_worker.OF_MATRICES for name in cases[part]}
        assert all(name.partition(":")[0] in gallery.PROBLEMS for name in names if ":" in name)
    assert set(pairs_worker.OF_MATRICES) | set(pairs_worker.GENERATED) == set(pairs.PARTS)
    generated = [name for name in pairs.SYSTEMS if ":" in name]
    assert len(generated) > 5 and all(gallery.problem(name).shape[0] >= 400 for name in generated)


def test_each_tree_runs_its_own_source(tmp_path):
    with pytest.raises(FileError, match="no src/finelu here"):
        pairs.main([str(ROOT), str(tmp_path)])
    other = tmp_path / "src" / "finelu"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise SystemExit(7)")
    with pytest.raises(FineluError, match=r"has ended \(status 7\)"):
        pairs.main([str(ROOT), str(tmp_path), "--cases", "poisson5:9,9"])
    with pytest.raises(ParameterError, match="two trees"):
        pairs.main([str(ROOT)])


def test_the_worker_uses_public_names_only():
    """It runs with the source of either tree."""
    nodes = list(ast.walk(ast.parse(Path(pairs_worker.__file__).read_text())))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert {name for name in attributes if name.startswith("_")} <= {"__name__", "__file__"}
    assert not any(module.startswith("finelu") for module in modules)


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
