"""What a release rests on: one version in all places, the oldest dependencies, workflows that call what exists."""

import re
import runpy
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml

import finelu

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MINIMUM = runpy.run_path(str(ROOT / "tools" / "minimum.py"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
VARIABLES = set(re.findall(r"^(?:override )?([A-Z_]+) [?:]?=", (ROOT / "Makefile").read_text(), re.MULTILINE))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def loaded(path):
    return yaml.safe_load(path.read_text())


def steps(path):
    """The steps of all jobs of a workflow that has its own, not another's."""
    return [step for job in loaded(path)["jobs"].values() for step in job.get("steps", [])]


def made(command):
    """The targets that the lines of a shell script make."""
    lines = [shlex.split(line, comments=True) for line in command.splitlines()]
    lines = [[word for word in line if not re.match(r"[A-Z_]+=", word)] for line in lines]
    return {word for line in lines if line[:1] == ["make"] for word in line[1:] if not word.startswith("-")}


def test_every_place_names_the_same_version():
    citation = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1]
    newest = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert citation == newest == finelu.__version__


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_what_exists(path):
    workflow = loaded(path)
    assert workflow[True]  # "on", which YAML reads as a boolean
    assert "permissions" in workflow
    for job in workflow["jobs"].values():
        if "uses" in job:
            assert True in loaded(ROOT / job["uses"]) and "workflow_call" in loaded(ROOT / job["uses"])[True]
        else:
            assert job["runs-on"] and job["steps"]
        needed = job.get("needs", [])
        assert {*([needed] if isinstance(needed, str) else needed)} <= workflow["jobs"].keys()
    assert workflow.get("env", {}).keys() <= VARIABLES
    for step in steps(path):
        assert ("run" in step) != ("uses" in step)
        assert made(step.get("run", "")) <= TARGETS


def test_the_workflows_run_all_that_a_change_must_pass():
    called = set().union(*(made(step.get("run", "")) for path in WORKFLOWS for step in steps(path)))
    environments = {"installed", "interop-venv"}  # which the other targets make for themselves
    required = made((ROOT / ".ci" / "run").read_text()) - environments
    assert {"lint", "test"} <= required <= called and {"test-minimum", "coverage", "wheel"} <= called


def test_the_versions_of_python_that_are_tested_are_those_that_are_promised():
    promised = [name.rpartition(" ")[2] for name in PROJECT["project"]["classifiers"] if "Python :: 3." in name]
    jobs = loaded(ROOT / ".github" / "workflows" / "test.yml")["jobs"]
    assert jobs["test"]["strategy"]["matrix"]["python"] == promised
    (oldest,) = {step["with"]["python-version"] for step in jobs["minimum"]["steps"] if "with" in step}
    assert PROJECT["project"]["requires-python"] == f">={oldest}" and oldest == promised[0]


def test_the_oldest_versions_are_the_lower_bounds_of_pyproject():
    constraints = MINIMUM["oldest"](["report", "test"])
    assert {"numpy==1.26.4", "setuptools==77.0.1", "jinja2==3.1"} <= set(constraints)
    names = [re.match(r"[\w-]+", text)[0] for text in PROJECT["project"]["dependencies"]]
    assert set(names) <= {line.partition("==")[0] for line in constraints}


def test_a_dependency_without_a_lower_bound_is_named():
    with pytest.raises(SystemExit, match=r"'scipy-stubs' in pyproject\.toml has no lower bound"):
        MINIMUM["oldest"](["lint"])


def test_the_hooks_of_a_commit_run_what_lint_runs():
    (repository,) = loaded(ROOT / ".pre-commit-config.yaml")["repos"]
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    for hook in repository["hooks"]:
        command = hook["entry"].removeprefix(".venv/bin/").removesuffix(" --force-exclude")
        assert hook["language"] == "system" and f"$(BIN)/{command}" in lint


@pytest.mark.parametrize("path", [path for path in FORMS if path.stem != "config"], ids=lambda path: path.stem)
def test_a_form_of_an_issue_asks_for_what_is_needed(path):
    form = loaded(path)
    fields = form["body"]
    assert form["name"] and form["description"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["type"] in ("input", "textarea") and field["attributes"]["label"] for field in fields)
    if path.stem != "wish":
        (info,) = [field for field in fields if "finelu info --json" in field["attributes"]["label"]]
        assert info["validations"]["required"]
