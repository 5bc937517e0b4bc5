"""The records that the pages name measured code that is known and still the same, or are listed as older."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from finelu.errors import FileError

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import records  # noqa: E402
from benchmarks.harness import RESULTS  # noqa: E402
from benchmarks.records import (  # noqa: E402
    changed,
    cited,
    code_of,
    commit_of,
    has_history,
    older,
    reasons,
    speaks_of,
    unknown_code,
)

needs_git = pytest.mark.skipif(not shutil.which("git"), reason="git is not installed")


def test_older_records_are_listed_once_and_named_by_a_page():
    listed = [record for names in records.OLDER.values() for record in names]
    assert len(listed) == len(set(listed)) == len(reasons())
    assert set(listed) <= set(cited()), "no page names these: take them out of OLDER"


@pytest.mark.parametrize("record", cited())
def test_a_record_that_a_page_names_has_a_clean_commit_or_is_listed_as_older(record):
    assert speaks_of(record)
    reason = unknown_code(record)
    assert not reason or record in reasons(), f"{record} {reason}: measure again, or list it in benchmarks/records.py"


@pytest.mark.parametrize("record", cited())
def test_the_code_that_a_record_speaks_of_is_as_it_was_or_the_record_is_listed_as_older(record):
    if not has_history():
        pytest.skip("the history of the code is not here: this is no checkout, or a shallow one")
    reason = older(record)
    if record in reasons():
        assert reason, f"{record} is current: take it out of OLDER in benchmarks/records.py"
    else:
        assert not reason, f"{record}: {reason}: measure again, or list it in benchmarks/records.py"


def test_a_page_cannot_name_a_record_that_is_not_there(tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("`spine-gpu-nvidia-h200-2026-11-21`")
    assert cited(tmp_path) == {"spine-gpu-nvidia-h200-2026-11-21": ["README.md"]}
    (tmp_path / "docs" / "a.md").write_text("benchmarks/results/spine-gpu-nvidia-h200-2026-11-31.md")
    with pytest.raises(FileError, match="2026-11-31"):
        cited(tmp_path)
    with pytest.raises(FileError, match="does not say"):
        speaks_of("unheard-of-2026-11-21")


@pytest.mark.parametrize("family", records.SPEAKS_OF)
def test_the_code_that_records_speak_of_is_there(family):
    for path in records.SPEAKS_OF[family]:
        here = [found for device in ("cpu", "cuda") for found in (ROOT / "src/finelu").glob(path.format(device))]
        assert here, f"{path} is no code any more: name what took its place in benchmarks/records.py"


def test_the_code_of_a_record_is_that_of_its_device():
    assert ":(glob)src/finelu/kernels/cuda/selection.*" in speaks_of("selection-gpu-nvidia-h200-2026-11-21")
    assert ":(glob)src/finelu/kernels/cpu/selection.*" in speaks_of("selection-2-core-2026-11-21")
    assert speaks_of("solve-all-cpu-2026-11-27") != speaks_of("solve-2-core-2026-11-21")


def test_the_commit_of_a_record_is_the_first_that_its_page_names(tmp_path, meanwhile):
    meanwhile(records, RESULTS=tmp_path)
    for text, commit, reason in (
        ("- commit: 0123456789abcdef-dirty\n", "0123456789abcdef-dirty", "is in no commit"),
        ("an H100, commit 0123456. Before it commit 7654321", "0123456", None),
        ("- commit: unknown\n", None, "names no commit"),
    ):
        (tmp_path / "a-2026-01-01.md").write_text(text)
        assert commit_of("a-2026-01-01") == commit
        found = unknown_code("a-2026-01-01")
        assert found == reason or reason in found


def test_words_and_layout_are_not_code():
    python = 'def f(a):\n    """Words."""\n    return a + 1  # more\n'
    assert code_of("a.py", python) == code_of("a.py", "import b\ndef f(a): return (a +\n 1)\n")
    assert code_of("a.py", python) != code_of("a.py", python.replace("1", "2"))
    cuda = "// words\nif (a)  /* more\n words */ b();"
    assert code_of("a.cu", cuda) == code_of("a.cu", "if (a)\n    b();\n")
    assert code_of("a.cu", cuda) != code_of("a.cu", "if (a) c();")


@needs_git
def test_a_change_of_code_makes_a_record_older(tmp_path, meanwhile):
    results, code = tmp_path / "results", tmp_path / "src/finelu/selection.py"
    record = "selection-2-core-2026-01-01"
    for folder in (results, code.parent):
        folder.mkdir(parents=True)
    meanwhile(records, RESULTS=results)

    def git(*arguments):
        names = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(["git", "-C", tmp_path, *names, *arguments], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def measured(text):
        (results / f"{record}.md").write_text(text)
        return older(record, tmp_path)

    assert not has_history(tmp_path)
    git("init")
    code.write_text("a = 1\n")
    git("add", ".")
    git("commit", "-m", "one")
    commit = git("rev-parse", "HEAD")
    assert has_history(tmp_path) and not has_history(tmp_path / "src")
    assert measured(f"commit {commit}") is None and measured("") == "names no commit"
    assert "no commit" in measured(f"commit {commit}-dirty")
    assert "not in the history" in measured(f"commit {commit[::-1]}")
    code.write_text("a = 1  # the first number\n")
    assert measured(f"commit {commit}") is None
    code.write_text("a = 2\n")
    assert "selection.py" in measured(f"commit {commit}")
    git("commit", "-am", "two")
    assert measured(f"commit {git('rev-parse', 'HEAD')}") is None
    code.unlink()
    assert list(changed(commit, speaks_of(record), tmp_path)) == ["src/finelu/selection.py"]
    shallow = tmp_path / "shallow"
    git("clone", "--depth", "1", f"file://{tmp_path}", str(shallow))
    assert not has_history(shallow)


def test_the_pages_of_results_are_all_records():
    assert all(records.NAME.fullmatch(path.stem) for path in RESULTS.glob("*.md"))
