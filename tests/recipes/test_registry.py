"""Recipes that finelu does not have: of a program that registers them, or of an installed package."""

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest
from checks import recipe_in_one_file, refused

import finelu as fl
from finelu.errors import ParameterError
from finelu.preconditioners import RECIPES, registry


@pytest.fixture
def with_ssor(installed):
    """The environment of a process in which a package with SSOR, and a broken one, are installed."""
    points = {"ssor": "relaxed:SSOR", "ghost": "ghost_package:Ghost"}
    return installed("relaxed", recipe_in_one_file(), "recipes", points)


def process(environment, *arguments):
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=280)
    return done.returncode, done.stdout, done.stderr


def test_solve_and_compare_take_the_recipe_of_an_installed_package(with_ssor):
    code = """
import json, sys
import numpy as np, finelu as fl
from finelu.compare import compare
from finelu.preconditioners import RECIPES
assert "ssor" in RECIPES and "relaxed" not in sys.modules
A = fl.gallery.poisson5(20, 19)
b = np.ones(A.shape[0])
solution = fl.solve(A, b, recipe="ssor", rtol=1e-8)
F = fl.preconditioners.recipe_of("S-SOR").factor(A)
M = np.tril(A.toarray()) @ np.diag(1 / A.diagonal()) @ np.triu(A.toarray())
assert np.allclose(M @ F.solve(b), b) and F.report["factored_on"] == "CPU"
rows = compare(A, b, recipes=["none", "ssor", "ghost"], device="cpu", budget=200)
print(json.dumps([solution.converged, solution.recipe, *((m.name, m.method, m.outcome) for m in rows.measurements),
                  rows.left_out["ghost"]]))
"""
    status, out, err = process(with_ssor, "-c", code)
    assert status == 0, err
    converged, recipe, *rows, ghost = json.loads(out)
    assert converged and recipe == "SSOR()"
    assert sorted(rows) == [["none", "cg", "converged"], ["ssor", "cg", "converged"]]
    assert "the recipe 'ghost' of ghost_package:Ghost cannot be loaded: ModuleNotFoundError" in ghost


CALLS = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from finelu.cli import main
said = []
for arguments in json.loads(sys.argv[1]):
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = main(arguments)
    said.append((status, out.getvalue(), err.getvalue()))
print(json.dumps(said))
"""


def test_the_command_line_takes_it_with_its_options(with_ssor):
    solve = ["solve", "gallery:poisson5:20"]
    asked = [*solve, "--device", "cpu", "--json", "--recipe", "ssor"]
    calls = [[*asked, "--set", "omega=0.5"], [*asked, "--set", "omaga=0.5"]]
    calls += [[*solve, "--recipe", name] for name in ("ghost", "ssr")]
    status, out, err = process(with_ssor, "-c", CALLS, json.dumps(calls))
    assert status == 0, err
    (status, out, err), misspelt, ghost, unknown = json.loads(out)
    assert status == 0, err
    found = json.loads(out)
    assert found["recipe"] == "SSOR(omega=0.5)" and found["method"] == "cg" and found["converged"]
    status, out, err = misspelt
    assert status == 2 and "recipe ssor has no parameter 'omaga'; it has omega" in out + err
    status, _, err = ghost
    assert status == 2 and "the recipe 'ghost' of ghost_package:Ghost cannot be loaded" in err
    status, _, err = unknown
    assert status == 2 and "Did you mean 'ssor'" in err


def test_a_program_registers_its_own(own_recipes):
    @own_recipes
    @dataclass(frozen=True, kw_only=True, repr=False)
    class Identity(fl.Recipe):
        """M = I, by the factors of Jacobi."""

        name = "identity"
        keeps_definite = True

        def factor(self, A):
            F = fl.Jacobi().factor(A)
            F._inverse[:] = 1
            return F

    A = fl.gallery.poisson5(9, 8)
    assert RECIPES["identity"] is Identity and list(RECIPES)[-1] == "identity"
    assert fl.solve(A, A @ ([1.0] * A.shape[0]), recipe="Identity").converged
    assert registry.register(Identity) is Identity  # once more does no harm


def test_what_cannot_be_registered():
    class ILU0(fl.Recipe):
        """Another one of this name."""

    class Auto(fl.Recipe):
        """A name that means something else."""

    for kind, text in ((ILU0, "'ilu0' is taken"), (Auto, "'auto' is taken"), (int, "a subclass of finelu.Recipe")):
        with refused(ParameterError, match=text):
            registry.register(kind)


def test_the_facts_of_recipes_agree():
    for name, kind in RECIPES.items():
        assert kind.name == name and kind.factored_on in ("device of A", "CPU") and kind.matrices
        assert kind.keeps_definite or not kind.hermitian  # what reads one triangle makes L L^H
        assert kind.keeps_symmetry or not kind.keeps_definite
