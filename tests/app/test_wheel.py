"""The wheel holds what the source tree holds: an editable install hides what a wheel forgets."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
SUFFIXES = (".py", ".pyi", ".cu", ".cuh", ".html", ".json", ".zip")  # the last by `make kernels`, if at all
BUILD = """
import sys
from setuptools.build_meta import build_wheel

print(build_wheel(sys.argv[1]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The names of the files in the wheel of a copy of the tree, built as pip would with what is installed here."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "tests", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    # Without the list that an editable install leaves in src, by which files could come along that nothing else names.
    shutil.copytree(SOURCE, folder / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    (folder / "out").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", BUILD, str(folder / "out")], cwd=folder, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (folder / "out").glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        return set(archive.namelist())


def wanted():
    """The files of the package, as a wheel names them."""
    files = [path for path in (SOURCE / "finelu").rglob("*") if path.suffix in SUFFIXES or path.name == "py.typed"]
    return {path.relative_to(SOURCE).as_posix() for path in files if "__pycache__" not in path.parts}


def test_the_wheel_holds_every_file_of_the_package(wheel):
    there = wanted()
    assert {Path(name).suffix for name in there} >= {".py", ".cu", ".cuh", ".html"} and "finelu/py.typed" in there
    assert there - wheel == set()


def test_the_wheel_holds_nothing_else(wheel):
    others = {name for name in wheel - wanted() if ".dist-info/" not in name}
    assert others == set()  # no tests, no benchmarks, nothing compiled
