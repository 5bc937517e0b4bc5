"""Recipes that finelu does not have: of a program that registers them, or of an installed package."""

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest
from checks import one_line

import finelu as fl
from finelu.errors import ParameterError
from finelu.preconditioners import RECIPES, registry

SPAI0 = '''
"""SPAI-0: M^-1 is the diagonal that minimizes ||I - M^-1 A||_F."""

from dataclasses import dataclass
from typing import Any

import finelu as fl


@dataclass(frozen=True, kw_only=True, repr=False)
class SPAI0(fl.Recipe):
    """m_ii = damping a_ii / ||row i||^2. Source: Broeker, Grote 2002."""

    keeps_symmetry = keeps_definite = True

    damping: float = 1.0

    def factor(self, A: Any) -> fl.Factors:
        if not self.damping > 0:
            raise fl.ParameterError(f"{self!r}: damping must be > 0.")
        return SPAI0Factors(self, fl.as_csr(A))


class SPAI0Factors(fl.Factors):
    """A diagonal."""

    def __init__(self, recipe, A):
        super().__init__(recipe, A)
        self._refresh(A)

    def _refresh(self, A):
        squares = (abs(A.tosparse()).power(2) @ (A.data[A.diag] * 0 + 1)).real
        self._m = self.recipe.damping * A.data[A.diag].conj() / squares

    def _apply(self, R, trans):
        return (R.T * (self._m.conj() if trans == "H" else self._m)).T

    @property
    def nnz(self):
        return self.shape[0]
'''


@pytest.fixture
def with_spai0(installed):
    """The environment of a process in which a package with SPAI0, and a broken one, are installed."""
    return installed("spai", SPAI0, "recipes", {"spai0": "spai:SPAI0", "ghost": "ghost_package:Ghost"})


def process(environment, *arguments):
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=280)
    return done.returncode, done.stdout, done.stderr


def test_solve_and_compare_take_the_recipe_of_an_installed_package(with_spai0):
    code = """
import json, sys
import numpy as np, finelu as fl
from finelu.compare import compare
from finelu.preconditioners import RECIPES
assert "spai0" in RECIPES and "spai" not in sys.modules
A = fl.gallery.poisson5(20, 19)
b = np.ones(A.shape[0])
solution = fl.solve(A, b, recipe="spai0", rtol=1e-8)
F = fl.preconditioners.recipe_of("SPAI-0").factor(A)
squares = np.asarray(A.multiply(A).sum(axis=1)).ravel()
assert np.allclose(F.solve(b), A.diagonal() / squares * b) and F.report["factored_on"] == "CPU"
rows = compare(A, b, recipes=["none", "spai0", "ghost"], device="cpu", budget=200)
print(json.dumps([solution.converged, solution.recipe, *((m.name, m.method, m.outcome) for m in rows.measurements),
                  rows.left_out["ghost"]]))
"""
    status, out, err = process(with_spai0, "-c", code)
    assert status == 0, err
    converged, recipe, *rows, ghost = json.loads(out)
    assert converged and recipe == "SPAI0()"
    assert sorted(rows) == [["none", "cg", "converged"], ["spai0", "cg", "converged"]]
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


def test_the_command_line_takes_it_with_its_options(with_spai0):
    solve = ["solve", "gallery:poisson5:20"]
    asked = [*solve, "--device", "cpu", "--json", "--recipe", "spai0"]
    calls = [[*asked, "--set", "damping=0.5"], [*asked, "--set", "dampink=0.5"]]
    calls += [[*solve, "--recipe", name] for name in ("ghost", "spai")]
    status, out, err = process(with_spai0, "-c", CALLS, json.dumps(calls))
    assert status == 0, err
    (status, out, err), misspelt, ghost, unknown = json.loads(out)
    assert status == 0, err
    found = json.loads(out)
    assert found["recipe"] == "SPAI0(damping=0.5)" and found["method"] == "cg" and found["converged"]
    status, out, err = misspelt
    assert status == 2 and "recipe spai0 has no parameter 'dampink'; it has damping" in out + err
    status, _, err = ghost
    assert status == 2 and "the recipe 'ghost' of ghost_package:Ghost cannot be loaded" in err
    status, _, err = unknown
    assert status == 2 and "Did you mean 'spai0'" in err


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
        with pytest.raises(ParameterError, match=text) as error:
            registry.register(kind)
        one_line(error)


def test_the_facts_of_recipes_agree():
    for name, kind in RECIPES.items():
        assert kind.name == name and kind.factored_on in ("device of A", "CPU") and kind.matrices
        assert kind.keeps_definite or not kind.hermitian  # what reads one triangle makes L L^H
        assert kind.keeps_symmetry or not kind.keeps_definite
