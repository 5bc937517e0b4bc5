"""Krylov methods that finelu does not have: what can be registered, and where it is then known."""

import inspect

import pytest
from checks import one_line
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
