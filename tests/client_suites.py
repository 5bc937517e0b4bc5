"""The test suites of other packages, run as they are installed, with functions of finelu instead of their own.

    python tests/client_suites.py [NAME ...]          # counts, and each failure with the line that failed
    python tests/client_suites.py --own [NAME ...]    # the same tests with the package's own functions

`SUITES` names what is run. Nothing stands between a suite and finelu: the functions are set as attributes of the
modules from which the tests import them, in a process of its own, before the tests are imported.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

LIMIT = 1200  # s that a suite may take, kernels compiled at first use included


@dataclass(frozen=True)
class Suite:
    """A package's tests, and the functions of finelu that replace its own.

    modules : the test modules, by their dotted names.
    places : the modules whose attributes are set, in this order.
    functions : the name of an attribute, to the dotted name of finelu's function; None: `finelu.install(*places)`.
    left_out : words in brackets, and names, of tests that call none of these functions.
    version : how the version of the package begins whose tests are known.
    """

    modules: tuple[str, ...]
    places: tuple[str, ...]
    functions: dict[str, str] | None
    left_out: tuple[str, ...] = ()
    version: str = "1.17."

    def missing(self) -> str:
        """Why the suite cannot be run here; "" if it can."""
        for module in self.modules:
            package = module.split(".")[0]
            if find_spec(package) is None:
                return f"{package} is not installed"
            try:
                found = find_spec(module)
            except ModuleNotFoundError:
                found = None
            if found is None:
                return f"{package} is installed without its tests ({module})"
            if not (present := version(package)).startswith(self.version):
                return f"the tests of {package} {self.version}* are known, and {present} is installed"
        return ""


@dataclass
class Outcome:
    """The tests of a suite by how they ended. failed : the id of a test, to the line of its error."""

    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)


METHODS = ("bicg", "bicgstab", "cg", "gmres", "minres")
DIRECT = ("factorized", "spilu", "splu", "spsolve", "spsolve_triangular")
ITERATIVE = Suite(
    modules=("scipy.sparse.linalg._isolve.tests.test_iterative", "scipy.sparse.linalg._isolve.tests.test_minres"),
    places=("scipy.sparse.linalg._isolve", "scipy.sparse.linalg"),
    functions={name: f"finelu.{name}" for name in METHODS},
    left_out=("cgs", "gcrotmk", "lgmres", "qmr", "tfqmr", "TestQMR", "test_show"),
)
SUITES = {
    "scipy-iterative": ITERATIVE,
    "scipy-iterative-installed": replace(ITERATIVE, functions=None),
    "scipy-least-squares-installed": Suite(
        modules=tuple(f"scipy.sparse.linalg._isolve.tests.test_{name}" for name in ("lsmr", "lsqr")),
        places=("scipy.sparse.linalg._isolve", "scipy.sparse.linalg"),
        functions=None,
    ),
    "scipy-direct": Suite(
        modules=("scipy.sparse.linalg._dsolve.tests.test_linsolve",),
        places=("scipy.sparse.linalg._dsolve", "scipy.sparse.linalg"),
        functions={name: f"finelu.{name}" for name in DIRECT},
        left_out=("test_gssv_badinput", "TestGstrsErrors", "test_is_sptriangular_and_spbandwidth"),
    ),
    "pyamg-krylov": Suite(
        modules=tuple(f"pyamg.krylov.tests.{name}" for name in ("test_krylov", "test_scipy", "test_simple_iterations")),
        places=("pyamg.krylov", "pyamg.krylov._gmres_mgs"),
        functions={
            **{name: f"finelu.interop.pyamg.{name}" for name in ("cg", "bicgstab", "gmres", "fgmres")},
            "gmres_mgs": "finelu.interop.pyamg.gmres",
        },
        version="5.4.",
    ),
}


def run(suite: Suite, own: bool = False) -> Outcome:
    """Run a suite in a new process. own : with the package's own functions."""
    with tempfile.TemporaryDirectory() as folder:
        order = Path(folder, "order.json")
        order.write_text(json.dumps({**vars(suite), "functions": {} if own else suite.functions}))
        command = [sys.executable, __file__, "--in", folder]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT, env=environment)
        answer = Path(folder, "answer.json")
        if not answer.exists():
            raise RuntimeError(f"the suite did not end:\n{ended.stdout[-4000:]}\n{ended.stderr[-4000:]}")
        return Outcome(**json.loads(answer.read_text()))


class Recorder:
    """A plugin of pytest that leaves out tests of other functions, and records how each test ended."""

    def __init__(self, left_out: list[str]):
        self.left_out, self.outcome = left_out, Outcome()

    def pytest_collection_modifyitems(self, config, items):
        others = [item for item in items if self._is_of_others(item.nodeid.split("::", 1)[1])]
        items[:] = [item for item in items if item not in others]
        config.hook.pytest_deselected(items=others)

    def _is_of_others(self, test: str) -> bool:
        name, _, parameters = test.partition("[")
        words = {*name.split("::"), *parameters.rstrip("]").split("-")}
        return not words.isdisjoint(self.left_out)

    def pytest_collectreport(self, report):
        if report.failed:
            self.outcome.failed[report.nodeid] = str(report.longrepr).splitlines()[-1]

    def pytest_runtest_logreport(self, report):
        test = "::".join([Path(report.location[0]).stem, *report.nodeid.split("::")[1:]])
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.outcome.failed[test] = (crash.message if crash else str(report.longrepr)).splitlines()[0]
        elif report.skipped:
            self.outcome.skipped.append(test)
        elif report.when == "call":
            self.outcome.passed.append(test)


def _in_this_process(folder: Path) -> None:
    """Set the functions, run the tests, and write the outcome: the other side of `run`."""
    import pytest

    order = json.loads((folder / "order.json").read_text())
    places = [import_module(place) for place in order["places"]]
    if order["functions"] is None:
        import_module("finelu").install(*places)
    for name, dotted in (order["functions"] or {}).items():
        module, _, attribute = dotted.rpartition(".")
        for place in places:
            setattr(place, name, getattr(import_module(module), attribute))
    recorder = Recorder(order["left_out"])
    options = ["-q", "-c", os.devnull, "--noconftest", "-p", "no:cacheprovider", f"--rootdir={folder}", "--pyargs"]
    pytest.main([*options, *order["modules"]], plugins=[recorder])
    (folder / "answer.json").write_text(json.dumps(vars(recorder.outcome)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *SUITES], metavar="NAME", help=", ".join(SUITES))
    parser.add_argument("--own", action="store_true", help="with the package's own functions")
    parser.add_argument("--in", dest="folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder is not None:
        _in_this_process(given.folder)
        return
    for name in given.names or SUITES:
        suite = SUITES[name]
        if why := suite.missing():
            print(f"{name}: not run: {why}")
            continue
        outcome = run(suite, given.own)
        total = len(outcome.passed) + len(outcome.failed)
        print(f"{name}: {len(outcome.passed)} of {total} pass, {len(outcome.skipped)} skipped or expected to fail")
        for test, reason in outcome.failed.items():
            print(f"  {test}: {reason}")


if __name__ == "__main__":
    main()
