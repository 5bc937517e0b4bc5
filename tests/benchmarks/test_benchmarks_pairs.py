"""The comparison of two source trees: its means from made-up times, and a whole run of a tree beside itself."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from finelu.errors import FileError, FineluError, ParameterError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.common import Run, revision  # noqa: E402

from benchmarks import common, pairs  # noqa: E402


def a_pair(name, old, new):
    """A pair with one call a round; the processor's time is twice that of the clock."""
    return pairs.Pair(name, 10, "", tuple([[(t, 2 * t)] for t in side] for side in (old, new)))


def test_a_machine_that_is_slow_for_a_while_does_not_show():
    pair = a_pair("a", [1.0, 1.0, 5.0, 5.0, 1.0], [2.0, 2.0, 10.0, 10.0, 2.0])
    assert pair.ratio == pair.by_processor == pair.by_minima == 2.0
    assert a_pair("b", [1.0, 1.0, 1.0], [1.0, 9.0, 1.0]).ratio == 1.0


def test_the_mean_decides_and_the_worst_system_is_named():
    fast, slow = a_pair("fast", [4.0], [1.0]), a_pair("slow", [1.0], [3.0])
    text, holds = pairs.summary([fast, slow], 1.03)
    assert holds and "geometric mean 0.866" in text and "worst 3.000 (slow" in text and "2 systems" in text
    text, holds = pairs.summary([slow], 1.03)
    assert not holds and text.endswith("wanted: no.\n")


def test_answers_that_differ_are_told():
    x = np.ones(3)
    assert pairs.difference([("converged", 3, x), ("converged", 3, x.copy())]) == ""
    told = pairs.difference([("converged", 3, x), ("singular", 4, np.array([1.0, 1.0, 1.5]))])
    assert told == "converged -> singular, 3 -> 4 iterations, x by 5.0e-01"


def test_a_tree_beside_itself(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(common, "revision", lambda root=None: f"commit of {root}")
    arguments = ["--systems", "poisson5:9,9,absent", "--seconds", "0", "--threads", "1", "--out", str(tmp_path)]
    pairs.main([str(ROOT), str(ROOT), *arguments, "--machine", "box"])
    said = capsys.readouterr()
    assert "left out: absent" in said.err and "1 systems" in said.out
    (path,) = tmp_path.glob("pairs-box-*.json")
    run = Run.load(path)
    assert run.machine["commit"] == run.options["old"] == f"commit of {ROOT}"
    assert [(r.matrix, r.who, len(r.detail["rounds, ms"])) for r in run.records] == [
        ("poisson5:9,9", who, pairs.LEAST) for who in ("old", "new")
    ]
    assert all(r.detail["differs"] == "" for r in run.records)


def test_every_system_can_be_made_or_is_a_name():
    import finelu

    generated = [name for name in pairs.SYSTEMS if ":" in name]
    assert len(generated) > 5 and all(finelu.gallery.problem(name).shape[0] >= 400 for name in generated)


def test_each_tree_runs_its_own_source(tmp_path):
    with pytest.raises(FileError, match="no src/finelu here"):
        pairs.main([str(ROOT), str(tmp_path)])
    other = tmp_path / "src" / "finelu"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise SystemExit(7)")
    with pytest.raises(FineluError, match=r"has ended \(status 7\)"):
        pairs.main([str(ROOT), str(tmp_path), "--systems", "poisson5:9,9"])
    with pytest.raises(ParameterError, match="two trees"):
        pairs.main([str(ROOT)])


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
