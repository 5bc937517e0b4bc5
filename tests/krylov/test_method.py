"""Krylov methods that finelu does not have: what can be registered, and where it is then known."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checks import method_in_one_file, one_line
from krylov_cases import system

import finelu as fl
from finelu.errors import ParameterError
from finelu.krylov import METHODS, method_name
from finelu.krylov.cg import CG


def test_what_cannot_be_registered(own_methods):
    class Cg(fl.Method):
        """Another one of this name."""

        iterate = CG.iterate

    class Refinement(fl.Method):
        """A name that means something else."""

        iterate = CG.iterate

    class Spelt(fl.Method):
        """A name that would be taken for another."""

        name = "bi_cg"
        iterate = CG.iterate

    cases = {Cg: "'cg' is taken", Refinement: "'refinement' is taken", Spelt: "'bi_cg' is taken"}
    cases |= {int: "a subclass of finelu.Method", fl.cg: "a subclass of finelu.Method"}
    for kind, text in cases.items():
        with pytest.raises(ParameterError, match=text) as error:
            own_methods(kind)
        one_line(error)


def test_a_method_that_lacks_something_is_an_error_where_it_is_defined():
    with pytest.raises(ParameterError, match="Idle has no iterate") as error:
        type("Idle", (fl.Method,), {})
    one_line(error)
    with pytest.raises(ParameterError, match="needs='definite'; one of spd, hermitian, symmetric, any") as error:
        type("Odd", (fl.Method,), {"needs": "definite", "iterate": CG.iterate})
    one_line(error)


def test_a_method_is_meant_by_its_name_its_class_and_its_function(own_methods):
    for given in ("cg", "CG", "Cg", CG, fl.cg):
        assert method_name(given) == "cg"
    assert method_name("auto", "auto") == "auto"
    own = own_methods(type("Own", (fl.Method,), {"iterate": CG.iterate}))
    assert list(METHODS)[-1] == "own" and METHODS["own"] is own
    A, b = system("spd")
    for given in ("own", own, own.solve):
        assert fl.solve(A, b, method=given).method == "own"


@pytest.mark.parametrize("given", [fl.richardson, 5, None, len, "cgg"])
def test_what_is_no_registered_method_is_an_error(given):
    with pytest.raises(ParameterError, match=r"there is no method .*; one of auto, cg, minres.* is needed") as error:
        fl.solve(*system("spd"), method=given)
    one_line(error)


def test_the_parameters_of_a_method_come_after_those_of_all():
    common = list(inspect.signature(fl.cg).parameters)
    for kind in METHODS.values():
        names = list(inspect.signature(kind.solve).parameters)
        assert names[: len(common)] == common
        assert names[len(common) :] == list(inspect.signature(kind.iterate).parameters)[1:]
        assert kind.solve.__doc__.startswith("Solve A x = b") or kind.name == "fgmres"


# The method of docs/extend.md, as of an installed package


@pytest.fixture
def installed(tmp_path):
    """The environment of a process in which a package with BiCGStabL, and a broken one, are installed."""
    (tmp_path / "stabilized.py").write_text(method_in_one_file())
    info = tmp_path / "stabilized-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stabilized\nVersion: 1.0\n")
    points = "[finelu.methods]\nbicgstabl = stabilized:BiCGStabL\nghost = ghost_package:Ghost\n"
    (info / "entry_points.txt").write_text(points)
    path = os.pathsep.join([str(tmp_path), str(Path(fl.__file__).parents[1])])
    return os.environ | {"PYTHONPATH": path}


CALLS = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
import numpy as np, finelu as fl
from finelu.cli import main
from finelu.compare import compare, script
from finelu.interop.adjoint import Options, System
from finelu.krylov import METHODS

assert "bicgstabl" in METHODS and "stabilized" not in sys.modules
A = fl.gallery.problem("convection_diffusion:6")
b = np.ones(A.shape[0])
found = fl.solve(A, b, method="BiCGStab-L")
assert found.converged and found.method == "bicgstabl" and "stabilized" in sys.modules
x = System(fl.as_csr(A), Options(recipe=fl.ILU0(), method="bicgstabl")).solve(b, "T")
assert np.allclose(A.T @ x, b, atol=1e-8)

from stabilized import BiCGStabL
names = ["none", "ilu0", "solve", "spilu"]
rows = compare(A, b, recipes=names, method=BiCGStabL, device="cpu", budget=200).measurements
assert all(m.solved for m in rows), rows
measured = sorted((m.name, m.method) for m in rows)
code = script(next(m for m in rows if m.name == "ilu0"), "gallery:convection_diffusion:6", None, 1e-8)
exec(code, {})

said = []
name = "gallery:convection_diffusion:6"
for arguments in (["solve", name, "--method", "bicgstabl", "--recipe", "ilu0", "--json"],
                  ["compare", name, "--method", "bicgstabl", "--recipes", "jacobi", "--json", "--device", "cpu"],
                  ["solve", "gallery:poisson5:9", "--method", "ghost"],
                  ["compare", name, "--method", "cg"]):
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = main(arguments)
    said.append((status, out.getvalue(), err.getvalue()))
print(json.dumps([measured, code, said]))
"""


def test_a_method_of_an_installed_package_is_taken_by_solve_compare_the_gradients_and_the_command_line(installed):
    command = [sys.executable, "-c", CALLS]
    done = subprocess.run(command, env=installed, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    measured, code, (solved, compared, ghost, unfit) = json.loads(done.stdout)
    assert measured[:3] == [["ilu0", "bicgstabl"], ["none", "bicgstabl"], ["solve", "bicgstabl"]]
    assert measured[3:] == [["spilu", "gmres"]]
    assert "from stabilized import BiCGStabL" in code and "BiCGStabL.solve(A, b, M=F, rtol=1e-08)" in code
    status, out, _ = solved
    assert status == 0 and json.loads(out)["method"] == "bicgstabl" and json.loads(out)["converged"]
    status, out, _ = compared
    assert status == 0 and [row["method"] for row in json.loads(out)["measurements"]] == ["bicgstabl"]
    status, _, err = ghost
    assert status == 2 and "the method 'ghost' of ghost_package:Ghost cannot be loaded: ModuleNotFoundError" in err
    status, _, err = unfit
    assert status == 2 and "cg needs A = A^H, but" in err
