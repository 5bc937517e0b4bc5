"""Every kernel of the CPU is compared with its specification: a run of all tests in which one is not fails, by name.

Compared means here that a test asks for both, `reference.<family>.<kernel>` and that of `cpu`, in whatever way.
"""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

import pytest
from families import public

from finelu.kernels.catalogue import BUILDING_BLOCKS, FAMILIES

FORMS = ("reference", "cpu")
PAIRS = {
    f"{family}.{name}"
    for family in FAMILIES
    for name in set.intersection(*(set(public(form, family)) for form in FORMS))
    if name not in BUILDING_BLOCKS.get(family, "").split()
}


class Listening(ModuleType):
    """Stands in for the module of a family: it reports which kernel is asked for, and hands out what the module has."""

    def __init__(self, module, listener):
        own(self).update(module=module, listener=listener)

    def __getattribute__(self, name):
        if not name.startswith("_"):
            own(self)["listener"](name)
        return getattr(own(self)["module"], name)

    def __setattr__(self, name, value):
        setattr(own(self)["module"], name, value)

    def __delattr__(self, name):
        delattr(own(self)["module"], name)


def own(listening):
    """The attributes of the object itself."""
    return object.__getattribute__(listening, "__dict__")


class Pairs:
    """A plugin of pytest. Each process tells which pairs it has seen, and the one that waits for all of them judges."""

    def __init__(self):
        self.asked = {form: set() for form in FORMS}  # by the test that runs
        self.compared = set()
        places = [(form, family) for form in FORMS for family in FAMILIES]
        places = [place for place in places if find_spec("finelu.kernels.{}.{}".format(*place))]
        modules = {place: import_module("finelu.kernels.{}.{}".format(*place)) for place in places}
        for (form, family), module in modules.items():  # all are imported: kernels find one another, not a listener
            listening = Listening(module, lambda name, form=form, family=family: self._ask(form, f"{family}.{name}"))
            setattr(import_module(f"finelu.kernels.{form}"), family, listening)

    def _ask(self, form, name):
        self.asked[form].add(name)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self):
        for names in self.asked.values():
            names.clear()
        done = yield
        self.compared |= PAIRS & set.intersection(*self.asked.values())
        return done

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node):
        self.compared |= set(getattr(node, "workeroutput", {}).get("pairs", ()))  # a process that died has none

    def pytest_sessionfinish(self, session):
        config = session.config
        if hasattr(config, "workeroutput"):
            config.workeroutput["pairs"] = sorted(self.compared)
        elif self.missing(config) and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def missing(self, config):
        """The pairs that no test has compared; none where it was not asked for all tests."""
        chosen = any(config.getoption(name, None) for name in ("keyword", "deselect", "collectonly", "lf"))
        whole = config.args == config.getini("testpaths") and config.getoption("markexpr") in ("", "not slow")
        return sorted(PAIRS - self.compared) if whole and not chosen else []

    def pytest_terminal_summary(self, terminalreporter, config):
        if found := self.missing(config):
            line = f"No test compares these kernels of the CPU with their specifications: {', '.join(found)}"
            terminalreporter.write_line(line, red=True)
