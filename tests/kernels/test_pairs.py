"""What fails a run of all tests in which a kernel is not compared with its specification."""

from types import SimpleNamespace

import numpy as np
import pairs
import pytest

from finelu.kernels import cpu, reference


@pytest.fixture
def listeners(request):
    """The plugin of this run: `asked` holds the kernels of this test."""
    (plugin,) = (found for found in request.config.pluginmanager.get_plugins() if isinstance(found, pairs.Pairs))
    return plugin


def test_both_forms_are_heard_of_by_the_test_that_asks_for_them(listeners):
    assert "vectors.added" not in listeners.asked["reference"] | listeners.asked["cpu"]
    x = np.ones(2)
    assert (reference.vectors.added(x, x) == cpu.vectors.added(x, x)).all()
    assert all("vectors.added" in names for names in listeners.asked.values())
    assert cpu.vectors.__name__ == "finelu.kernels.cpu.vectors" and "dot" in dir(cpu.vectors)


def test_what_a_test_replaces_is_replaced_in_the_family(monkeypatch):
    from finelu.kernels.cpu.vectors import added

    monkeypatch.setattr(cpu.vectors, "added", None)
    assert cpu.vectors.added is None and vars(cpu.vectors)["added"] is None
    monkeypatch.undo()
    assert cpu.vectors.added is added


@pytest.mark.parametrize(
    ("chosen", "judged"),
    [
        ({}, True),
        ({"markexpr": ""}, True),
        ({"markexpr": "gpu"}, False),
        ({"keyword": "ilu"}, False),
        ({"deselect": ["tests/x.py"]}, False),
        ({"collectonly": True}, False),
        ({"lf": True}, False),
        ({"args": ["tests/kernels"]}, False),
    ],
)
def test_a_pair_that_no_test_compares_fails_a_run_of_all_and_no_other(chosen, judged):
    options = {
        "markexpr": "not slow",
        "keyword": "",
        "deselect": None,
        "collectonly": False,
        "args": ["tests"],
    } | chosen
    config = SimpleNamespace(args=options["args"], getini=lambda name: ["tests"], getoption=options.get)
    session, written = SimpleNamespace(config=config, exitstatus=pytest.ExitCode.OK), []
    plugin = object.__new__(pairs.Pairs)
    plugin.compared = pairs.PAIRS - {"vectors.dot"}
    plugin.pytest_sessionfinish(session)
    plugin.pytest_terminal_summary(SimpleNamespace(write_line=lambda line, **_: written.append(line)), config)
    assert session.exitstatus == (pytest.ExitCode.TESTS_FAILED if judged else pytest.ExitCode.OK)
    assert [line.rpartition(": ")[2] for line in written] == ["vectors.dot"] * judged
    session.exitstatus = pytest.ExitCode.OK
    plugin.pytest_testnodedown(SimpleNamespace(workeroutput={"pairs": ["vectors.dot"]}))  # a process that has seen it
    plugin.pytest_sessionfinish(session)
    assert session.exitstatus == pytest.ExitCode.OK
