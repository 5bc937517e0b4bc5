"""A deferred dataclass is the standard library's: its signature, text, comparisons, refusals, copies and subclasses."""

import dataclasses
import inspect
import pickle
import threading
from dataclasses import FrozenInstanceError, field, fields, replace

import pytest

from finelu.deferred import dataclass

OPTIONS = [{}, {"frozen": True}, {"frozen": True, "kw_only": True}, {"eq": False}, {"frozen": True, "repr": False}]


def pairs(options):
    """The same class twice, by finelu and by the standard library."""
    for kind in (dataclass, dataclasses.dataclass):

        @kind(**options)
        class Point:
            """A point."""

            x: float
            y: float = 2.0
            tags: list = field(default_factory=list, repr=False)

            def __post_init__(self):
                self.__dict__["sum"] = self.x + self.y

        yield Point


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_nothing_differs_from_the_standard_library(options):
    mine, its = pairs(options)
    assert inspect.signature(mine) == inspect.signature(its)
    assert [f.name for f in fields(mine)] == [f.name for f in fields(its)]
    assert mine.__match_args__ == its.__match_args__ and vars(mine).keys() == vars(its).keys()
    for kind in (mine, its):
        p = kind(x=1.0)
        assert (p.x, p.y, p.tags, p.sum) == (1.0, 2.0, [], 3.0) and p.tags is not kind(x=1.0).tags
        assert replace(p, y=5.0).sum == 6.0
        assert (p == kind(x=1.0)) == options.get("eq", True)
        with pytest.raises(TypeError, match=r"Point.__init__\(\) got an unexpected keyword argument 'z'"):
            kind(x=1.0, z=3)
    if options.get("repr", True):
        assert repr(mine(x=1.0)) == repr(its(x=1.0))
    assert (mine.__hash__ is None) == (its.__hash__ is None)


def test_a_frozen_one_takes_no_new_values_whichever_is_looked_up_first():
    for name in ("x", "unknown"):
        mine, _ = pairs({"frozen": True})
        p = object.__new__(mine)  # as copies and pickles make it
        with pytest.raises(FrozenInstanceError, match=f"cannot assign to field '{name}'"):
            setattr(p, name, 1.0)
        with pytest.raises(FrozenInstanceError):
            delattr(p, name)


@dataclass(frozen=True)
class Base:
    """Some numbers."""

    n: int = 1


@dataclass(frozen=True)
class Derived(Base):
    """More numbers."""

    m: int = 2


def test_a_copy_may_be_the_first_instance():
    copy = pickle.loads(pickle.dumps(object.__new__(Base)))
    assert repr(copy) == "Base(n=1)" and copy == Base() and hash(copy) == hash(Base())


def test_classes_may_be_derived_from_it():
    @dataclasses.dataclass(frozen=True)
    class Other(Derived):
        k: int = 3

    class Plain(Derived):
        pass

    assert repr(Derived()) == "Derived(n=1, m=2)" and list(inspect.signature(Other).parameters) == ["n", "m", "k"]
    plain = Plain(5)
    plain.more = 7  # as in the standard library: the class is no dataclass
    assert (plain.n, plain.m, plain.more) == (5, 2, 7)
    with pytest.raises(FrozenInstanceError):
        plain.m = 3


def test_threads_may_make_the_first_instances_together():
    for _ in range(20):
        mine, _ = pairs({"frozen": True})
        barrier, found = threading.Barrier(4), []

        def make(mine=mine, barrier=barrier, found=found):
            barrier.wait()
            found.append(mine(1.0))

        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4 and all(each == found[0] for each in found)
