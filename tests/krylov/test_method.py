"""Krylov methods that finelu does not have: what can be registered, and where it is then known."""

import inspect
import json
import subprocess
import sys

import numpy as np
import pytest
from checks import method_in_one_file, refused
from krylov_cases import DTYPES, name, stranger, system

import finelu as fl
from finelu.errors import ParameterError
from finelu.kernels import monitor
from finelu.krylov import METHODS, method_name
from finelu.krylov.cg import CG
from finelu.krylov.conventions import ARGUMENTS
from finelu.krylov.loop import Loop
from finelu.krylov.system import System
from finelu.result import Status


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
        with refused(ParameterError, match=text):
            own_methods(kind)


def test_a_method_that_lacks_something_is_an_error_where_it_is_defined():
    with refused(ParameterError, match="Idle has no iterate"):
        type("Idle", (fl.Method,), {})
    with refused(ParameterError, match="needs='definite'; one of spd, hermitian, symmetric, any"):
        type("Odd", (fl.Method,), {"needs": "definite", "iterate": CG.iterate})


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
    with refused(ParameterError, match=r"there is no method .*; one of auto, cg, minres.* is needed"):
        fl.solve(*system("spd"), method=given)


def test_the_parameters_of_a_method_come_after_those_of_all():
    common = list(inspect.signature(fl.bicgstab).parameters)
    for kind in METHODS.values():
        names = list(inspect.signature(kind.solve).parameters)
        assert names[: len(common)] == common
        assert names[len(common) :] == [
            *list(inspect.signature(kind.iterate).parameters)[1:],
            *ARGUMENTS.get(kind.name, ()),
        ]
        assert kind.solve.__doc__.startswith("Solve A x = b") or kind.name == "fgmres"


# The steps of a method without kernels, and the method of docs/extend.md


def test_a_step_of_one_direction_breaks_down_where_one_of_two_solves():
    A, b = np.array([[0.0, 1.0], [-1.0, 0.0]]), np.array([1.0, 2.0])  # A r is orthogonal to r
    one, two = (stranger().solve(A, b, steps=steps, rtol=1e-10) for steps in (1, 2))
    assert one.status is Status.BREAKDOWN and one.iterations == 1
    np.testing.assert_array_equal(one.x, np.zeros(2))
    assert two.converged and two.iterations == 1
    np.testing.assert_allclose(two.x, np.linalg.solve(A, b))


@pytest.mark.parametrize("dtype", DTYPES, ids=name)
def test_what_comes_after_the_end_of_a_cycle_changes_nothing_that_counts(backend, dtype):
    A, b = (backend.move(v) for v in system("general", dtype))
    loop = Loop(stranger(), System.checked(A, b), rtol=1e-3, atol=0.0, maxiter=9, callback=None, watch=None)
    (r,) = loop.vectors(1)
    assert loop.cycle(r)
    one = loop.xp.ones(1, loop.dtype)
    assert complex(loop.dot(b, b)[0]) == pytest.approx(float(loop.length(b)[0]) ** 2)
    loop.advance(b)
    loop.record(b / 2)  # the best so far, so that x is kept before it changes
    loop.restart(one == 2)
    loop._look(wait=True)  # a GPU may be behind
    assert loop.goes_on() and loop.iterations == 1
    loop.advance(b)
    loop.record(2 * b)
    loop.restart(one == 1)
    loop._look(wait=True)
    assert not loop.goes_on() and loop.iterations == 2
    for _ in range(2):
        loop.advance(b)
        loop.record(b)
    loop._look(wait=True)
    assert loop.iterations == 2 and loop.code == monitor.BROKEN
    np.testing.assert_array_equal(backend.fetch(loop.x), backend.fetch(2 * b))
    np.testing.assert_array_equal(backend.fetch(loop.best), backend.fetch(b))


def test_the_parameters_of_a_stranger_are_checked_by_it():
    A, b = system("general")
    for steps in (0, 9, "two", None):
        with pytest.raises(ParameterError, match=r"steps=.*; 1 to 8 are needed"):
            stranger().solve(A, b, steps=steps)


# The same, from an installed package


@pytest.fixture
def with_hybridbicg(installed):
    """The environment of a process in which a package with HybridBiCG, and a broken one, are installed."""
    points = {"hybridbicg": "stabilized:HybridBiCG", "ghost": "ghost_package:Ghost"}
    return installed("stabilized", method_in_one_file(), "methods", points)


CALLS = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
import numpy as np, finelu as fl
from finelu.cli import main
from finelu.compare import compare, script
from finelu.interop.adjoint import Options, System
from finelu.krylov import METHODS

assert "hybridbicg" in METHODS and "stabilized" not in sys.modules
A = fl.gallery.problem("convection_diffusion:6")
b = np.ones(A.shape[0])
found = fl.solve(A, b, method="Hybrid-BiCG")
assert found.converged and found.method == "hybridbicg" and "stabilized" in sys.modules
x = System(fl.as_csr(A), Options(recipe=fl.ILU0(), method="hybridbicg")).solve(b, "T")
assert np.allclose(A.T @ x, b, atol=1e-8)

from stabilized import HybridBiCG
names = ["none", "ilu0", "solve", "spilu"]
rows = compare(A, b, recipes=names, method=HybridBiCG, device="cpu", budget=200).measurements
assert all(m.solved for m in rows), rows
measured = sorted((m.name, m.method) for m in rows)
code = script(next(m for m in rows if m.name == "ilu0"), "gallery:convection_diffusion:6", None, 1e-8)
exec(code, {})

said = []
name = "gallery:convection_diffusion:6"
for arguments in (["solve", name, "--method", "hybridbicg", "--recipe", "ilu0", "--json"],
                  ["compare", name, "--method", "hybridbicg", "--recipes", "jacobi", "--json", "--device", "cpu"],
                  ["solve", "gallery:poisson5:9", "--method", "ghost"],
                  ["compare", name, "--method", "cg"]):
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = main(arguments)
    said.append((status, out.getvalue(), err.getvalue()))
print(json.dumps([measured, code, said]))
"""


def test_a_method_of_an_installed_package_is_taken_by_solve_compare_the_gradients_and_the_command_line(with_hybridbicg):
    command = [sys.executable, "-c", CALLS]
    done = subprocess.run(command, env=with_hybridbicg, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    measured, code, (solved, compared, ghost, unfit) = json.loads(done.stdout)
    assert measured[:3] == [["ilu0", "hybridbicg"], ["none", "hybridbicg"], ["solve", "hybridbicg"]]
    assert measured[3:] == [["spilu", "gmres"]]
    assert "from stabilized import HybridBiCG" in code and "HybridBiCG.solve(A, b, M=F, rtol=1e-08)" in code
    status, out, _ = solved
    assert status == 0 and json.loads(out)["method"] == "hybridbicg" and json.loads(out)["converged"]
    status, out, _ = compared
    assert status == 0 and [row["method"] for row in json.loads(out)["measurements"]] == ["hybridbicg"]
    status, _, err = ghost
    assert status == 2 and "the method 'ghost' of ghost_package:Ghost cannot be loaded: ModuleNotFoundError" in err
    status, _, err = unfit
    assert status == 2 and "cg needs A = A^H, but" in err


def test_parameters_that_no_function_of_a_method_can_have_are_refused():
    for parameters, message in (
        ("**options", "needs a name"),
        ("*rest", "needs a name"),
        ("steps", "steps needs a default"),
        ("rtol=1", "all methods have rtol already"),
    ):
        iterate = eval(f"lambda loop, {parameters}: None")
        with pytest.raises(ParameterError, match=message):
            type("Other", (fl.Method,), {"iterate": staticmethod(iterate)})
    for fact, parameter in (("restarts", "restart"), ("in_block", "block")):
        with pytest.raises(ParameterError, match=f"needs the parameter {parameter}"):
            type("Other", (fl.Method,), {"iterate": staticmethod(lambda loop: None), fact: True})


def test_a_function_for_blocks_that_cannot_be_called_is_refused():
    own = {"iterate": staticmethod(lambda loop, *, block=False, steps=3: CG.iterate(loop))}
    with pytest.raises(ParameterError, match="and, by name, steps, but it is True; give a function, or None"):
        type("Other", (fl.Method,), own | {"in_block": True})
    with pytest.raises(ParameterError, match="unexpected keyword argument 'steps'; define it with these"):
        type("Other", (CG,), own | {"recycles": False})
    with pytest.raises(ParameterError, match="multiple values for argument 'steps'"):
        type("Other", (CG,), own | {"recycles": False, "in_block": staticmethod(lambda systems, steps=3: None)})
    A, b = system("spd")
    alone = type("Other", (CG,), own | {"recycles": False, "in_block": None})
    assert alone.solve(A, np.stack([b, 2 * b], axis=1), rtol=1e-6).all_converged


def test_a_parameter_block_of_another_meaning_is_the_methods_own():
    seen = []

    class Sized(fl.Method):
        @staticmethod
        def iterate(loop, *, block=4):
            seen.append(block)
            return CG.iterate(loop)

    A, b = system("spd")
    B = np.stack([b, 2 * b], axis=1)
    assert Sized.solve(A, B, rtol=1e-6).all_converged and Sized.solve(A, B, rtol=1e-6, block=3).all_converged
    assert seen == [4, 4, 3, 3]
    with refused(ParameterError, match="block"):
        fl.bicgstab(A, B, block=True)
    with refused(ParameterError, match="block=2"):
        fl.cg(A, b, block=2)


def test_a_parameter_of_any_name_survives_a_correction():
    """Rows of very different size, so that the criterion asks for corrections."""

    class Named(fl.Method):
        """cg with parameters that finelu has, too."""

        @staticmethod
        def iterate(loop, *, kind=0, found=0, method=0, system=0):
            assert (kind, found, method, system) == (1, 2, 3, 4)
            return fl.cg.method.iterate(loop)

    A = fl.gallery.problem("poisson5:8").tolil()
    for i in range(8):
        A[i, i] = 1e12
    A, b = A.tocsr(), np.ones(64)
    b[:8] *= 1e12
    assert Named.solve(A, b, rtol=1e-8, kind=1, found=2, method=3, system=4).converged


def test_a_name_is_registered_once_by_many_threads(monkeypatch, own_methods):
    from concurrent.futures import ThreadPoolExecutor

    kind = type("Late", (fl.Method,), {"iterate": staticmethod(lambda loop: None)})
    point = type("Point", (), {"name": "late", "value": "late:Late", "load": lambda self: kind})()
    monkeypatch.setitem(METHODS.__dict__, "_installed", {"late": point})
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            for _ in range(50):
                METHODS.registered.pop("late", None)
                assert set(pool.map(lambda _: METHODS["late"], range(8))) == {kind}
        METHODS.registered.pop("late")
        assert method_name(kind) == "late"  # though no one has asked for the name
    finally:
        sys.setswitchinterval(interval)
