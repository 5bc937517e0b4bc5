"""Wheel and sdist hold what the source tree holds: an editable install hides what they forget."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
SUFFIXES = (".py", ".pyi", ".cu", ".cuh", ".html", ".json", ".zip")  # the last by `make kernels`, if at all
BUILD = "import sys, setuptools.build_meta as backend; getattr(backend, sys.argv[1])(sys.argv[2])"


def build(kind, folder):
    """The path of the wheel or sdist of the tree in `folder`, built as pip does, with what is installed here."""
    (folder / "out").mkdir()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", BUILD, f"build_{kind}", str(folder / "out")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (folder / "out").iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The names of the files in the wheel of a copy of the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in ("pyproject.toml", "README.md", "LICENSE", "tests", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    # Without the list that an editable install leaves in src, by which files could come along that nothing else names.
    shutil.copytree(SOURCE, folder / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
    path = build("wheel", folder)
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


def test_an_sdist_holds_the_repository_and_no_machine_code(tmp_path):
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a checkout: what belongs to the repository is not known")
    files = {name for name in listed.stdout.splitlines() if (ROOT / name).exists()}
    archives = {f"src/finelu/kernels/{name}.zip" for name in ("cuda/binaries/sm_90", "cpu/binaries/x86-64-v3-numba0")}
    left = {*archives, "src/finelu/__pycache__/solve.cpython-311.pyc"}
    for name in files | left:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes() if name in files else b"")
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    made = {"PKG-INFO", "setup.cfg", *(name for name in names if ".egg-info/" in name)}
    assert names - made == files
    assert "LICENSE" in names and any(name.endswith(".cu") for name in names)
