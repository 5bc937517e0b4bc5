"""The benchmark that rivals can amend: a file takes part, and no x is timed that does not solve the system."""

import re
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp

import finelu
from benchmarks import losses
from benchmarks.claims import rivals
from benchmarks.harness.record import Record, Run
from benchmarks.harness.worker import ROUNDING
from benchmarks.peers.solvers import RTOL

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks.md"
TOY = '''"""A toy: NumPy's dense solver, and three that are wrong."""
import numpy as np
PACKAGES = ("numpy",)
def dense(A, b, rtol):
    return np.linalg.solve(A.toarray(), b)
def wrong(A, b, rtol):
    A.data[:], b[:] = 0, 0  # its copies
    return np.zeros_like(b)
SETTINGS = {"dense": dense, "wrong": wrong, "nan": lambda A, b, rtol: b * np.nan, "fails": lambda A, b, rtol: 1 / 0}
'''


@pytest.fixture
def toy(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "toy.py").write_text(TOY)
    return folder


def test_a_file_in_a_folder_takes_part_and_a_wrong_x_has_no_time(toy, tmp_path):
    assert len(TOY.splitlines()) <= 10
    arguments = ["--peers", str(toy), "--only", "toy", "--matrices", "poisson5:9,8", "--rounds", "1"]
    assert rivals.main([*arguments, "--out", str(tmp_path), "--machine", "here"]) == 0
    (path,) = tmp_path.glob("rivals-*.json.gz")
    run = Run.load(path)
    found = {(r.who, r.variant): r for r in run.records}
    assert set(found) == {("finelu", "solve"), *(("toy", name) for name in ("dense", "wrong", "nan", "fails"))}
    for good in (("finelu", "solve"), ("toy", "dense")):
        assert found[good].numeric_ms > 0 and found[good].error <= ROUNDING * RTOL and not found[good].detail["status"]
    assert found["toy", "wrong"].numeric_ms is None and found["toy", "wrong"].detail["status"] == "residual 1"
    assert found["toy", "nan"].numeric_ms is None and found["toy", "nan"].detail["status"] == "residual nan"
    assert found["toy", "fails"].detail["status"].startswith("ZeroDivisionError")
    page = path.with_name(path.name.removesuffix(".json.gz") + ".md").read_text()
    assert f"numpy {np.__version__}" in page and "a toy: " in page.lower() and "residual nan" in page
    assert set(rivals.pairs(run)) == {"poisson5:9,8"} and rivals.pairs(run)["poisson5:9,8"][2] == "toy dense"
    assert rivals.main(["--from", str(path), "--out", str(tmp_path)]) == 0


@pytest.mark.parametrize(
    ("x", "status"),
    [
        (lambda x: x, ""),
        (lambda x: x * (1 + 1e-6), "residual"),
        (lambda x: x[:-1], "shape"),
        (lambda x: x[:, None], "shape"),
        (lambda x: x * np.inf, "residual"),
        (lambda x: x.astype(object), "object"),
        (lambda x: None, "not for such a matrix"),
    ],
)
def test_the_verdict_is_by_the_matrix_that_was_read(x, status):
    A = finelu.gallery.problem("poisson5:9,8")
    b = np.ones(A.shape[0])
    found = rivals.verdict(A, b, x(sp.linalg.spsolve(A.tocsc(), b)))["status"]
    assert found == "" if not status else status in found


def test_a_tolerance_is_halved_until_the_true_residual_passes():
    asked = []

    class Early:
        """In place of a process: a solver that ends at five times its tolerance."""

        def ask(self, path, setting, limit, rtol):
            asked.append(rtol)
            residual = 5 * rtol
            return {"seconds": 1.0, "residual": residual, "status": "" if residual <= ROUNDING * RTOL else "residual"}

    rival = rivals.Rival(rivals.Peer("toy", Path("toy.py"), ""), "early")
    rival.call(Early(), Path("A.npz"), 1.0, warm=True)
    assert asked == [RTOL, RTOL / 2, RTOL / 4, RTOL / 8] and rival.times == [] and not rival.status
    rival.call(Early(), Path("A.npz"), 1.0, warm=False)
    assert asked[4:] == [RTOL / 8] and rival.seconds == 1.0


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("SETTINGS = {}", "toy.py: SETTINGS has to be a dictionary"),
        ("SETTINGS = {'a': 1}", "toy.py: SETTINGS has to be"),
        ("def (", "toy.py, line 1: "),
    ],
)
def test_a_file_that_is_no_peer_is_named(toy, text, match):
    (toy / "toy.py").write_text(text)
    with pytest.raises(finelu.FileError, match=match):
        rivals.peers([toy])


def test_a_library_that_is_not_installed_is_left_out(toy):
    (toy / "toy.py").write_text('"""A toy."""\nimport no_such_library\n')
    (found,) = rivals.peers([toy])
    assert found.missing == "No module named 'no_such_library'" and found.about == "A toy."


def test_every_peer_of_the_repository_says_what_it_is():
    for path in sorted(rivals.PEERS.glob("[!_]*.py")):
        text = path.read_text()
        assert re.match(r'""".+: .+\."""\n', text) and "SETTINGS = {" in text and "PACKAGES = " in text


def test_the_example_of_the_page_is_a_peer_in_twenty_lines(toy):
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(code.splitlines()) <= 20
    (toy / "toy.py").write_text(code)
    (peer,) = rivals.peers([toy])
    A = finelu.gallery.problem("poisson5:9,8")
    found = rivals.outcome(rivals.loaded(peer.path).SETTINGS, peer.settings[0], A, 10.0, 1e-9)
    assert found["status"] == "" and found["seconds"] > 0
    unsymmetric = finelu.gallery.problem("convection_diffusion:4")
    assert rivals.outcome(rivals.loaded(peer.path).SETTINGS, "cg", unsymmetric, 10.0, 1e-9)["status"]


def test_symmetry_is_tested_once_and_outside_of_the_clock(monkeypatch):
    ahead, tests, given = [0.0], [], []

    class Slow(sp.csr_matrix):
        """A matrix whose transpose takes a hundred seconds."""

        @property
        def T(self):
            tests.append(self)
            ahead[0] += 100.0
            return sp.csr_matrix(self.toarray().T)

    def solve(A, b, rtol, symmetric):
        given.append((symmetric, type(A)))
        return sp.linalg.spsolve(A.tocsc(), b)

    monkeypatch.setattr(rivals.time, "perf_counter", lambda: ahead[0])
    settings = {"asks": solve, "does not": lambda A, b, rtol: sp.linalg.spsolve(A.tocsc(), b), "of C": min}
    for problem, symmetric in (("poisson5:9,8", True), ("convection_diffusion:4", False)):
        S = Slow(finelu.gallery.problem(problem))
        tests.clear(), given.clear()
        assert rivals.outcome(settings, "does not", S, 10.0, 1e-8)["status"] == "" and not tests
        for _ in range(3):
            found = rivals.outcome(settings, "asks", S, 10.0, 1e-8)
            assert found["status"] == "" and found["seconds"] == 0.0
        assert given == [(symmetric, sp.csr_matrix)] * 3 and len(tests) == 1
        assert rivals.outcome(settings, "of C", S, 10.0, 1e-8)["status"]


@pytest.mark.parametrize("problem", ["poisson5:9,8", "convection_diffusion:4"])
def test_the_peers_that_are_installed_form_no_transpose(problem, monkeypatch):
    S = finelu.gallery.problem(problem)
    rivals.is_symmetric(S)
    monkeypatch.setattr(type(S), "T", property(lambda A: pytest.fail("a rival tests symmetry in its time")))
    for peer in rivals.peers([rivals.PEERS]):
        if peer.name in ("feral", "pardiso", "pyamg") and not peer.missing:
            for setting in peer.settings:
                status = rivals.outcome(rivals.loaded(peer.path).SETTINGS, setting, S, 10.0, 1e-9)["status"]
                for_it = problem[0] == "p" or peer.name == "pyamg" or setting == "general"
                assert status == ("" if for_it else rivals.NOT_FOR_IT), (peer.name, setting)


def test_a_loss_in_a_record_comes_first(tmp_path, monkeypatch):
    def record(who, variant, name, ms):
        return Record(name, "solution", "cpu", who, variant, ms, detail={"ended": ""})

    run = Run("elliptic-cpu-16-threads", {"name": "m", "cpu": "a processor", "cores": 16}, "2026-11-27")
    run.matrices = {"layers": {"n": 9}, "jumps": {"n": 9}}
    run.records = [
        *(record("finelu", "solve", "layers", 10.0), record("AMGCL", "ruge_stuben", "layers", 4.78)),
        *(record("finelu", "solve", "jumps", 10.0), record("pyamg", "aggregation", "jumps", 20.0)),
    ]
    path = run.save(tmp_path)
    monkeypatch.setattr(losses, "RESULTS", tmp_path)
    monkeypatch.setattr(losses, "NAMED", {})
    monkeypatch.setattr(losses, "load", lambda name: Run.load(tmp_path / f"{name}.json.gz"))
    lines = losses.lost().splitlines()
    assert lines[0].startswith("Another solver is sooner 1 times")
    assert [cell.strip() for cell in lines[4].split("|")[1:-1]][:6] == [
        *("layers", "9", "10", "4.78", "0.478"), "AMGCL ruge_stuben"]  # fmt: skip
    assert path.name.removesuffix(".json.gz") in lines[4] and len(lines) == 5
    assert "0.478 (layers)" in losses.compared()
