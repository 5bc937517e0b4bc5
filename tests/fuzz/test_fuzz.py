"""A short run of each kind of case, with fixed seeds, and the judge itself: what it must find, it finds."""

import itertools
import math
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import judge
import numpy as np
import pytest
import run
import scipy.sparse as sp
import systems

import finelu
from finelu import Status, gallery

QUICK, PARTS = 150, 5  # systems, and tests that they are spread over
RUN = Path(__file__).with_name("run.py")


def quick():
    return itertools.islice((case for case in map(systems.case, itertools.count()) if case.quick), QUICK)


@pytest.mark.parametrize("part", range(PARTS))
def test_random_systems(part):
    for case in itertools.islice(quick(), part, None, PARTS):
        verdict = judge.judged(case)
        assert verdict.late or verdict.faults == [], case.seed  # other tests may have had the cores meanwhile


def command(*arguments):
    words = [sys.executable, RUN, *map(str, arguments), "--processes", "1"]
    environment = os.environ | {"PYTHONWARNINGS": ""}
    return subprocess.run(words, capture_output=True, text=True, timeout=280, env=environment)


def test_damaged_files_end_with_an_answer_or_with_one_line():
    done = command("--files", 120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("files: 120 cases from seed 0 on, 0 faults")
    counts = dict(re.findall(r"(status \d): (\d+)", done.stdout))
    assert counts.keys() == {"status 0", "status 1", "status 2"} and sum(map(int, counts.values())) == 120


@pytest.mark.slow
def test_unusual_calls():
    done = command("--calls", 22)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_record_and_a_replay(tmp_path):
    done = command("--systems", 3, "--first", 7, "--out", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (record,) = tmp_path.glob("fuzz-*.md")
    assert "systems: 3 cases from seed 7 on, 0 faults" in record.read_text() and "- cpu: " in record.read_text()
    assert '"first seed": 7' in record.with_suffix(".json").read_text()
    assert "Verdict(outcome=" in command("--seed", 7).stdout


def test_a_seed_makes_the_same_case():
    for seed in range(40):
        one, two = systems.case(seed), systems.case(seed)
        assert judge.snapshot(one.system.A) == judge.snapshot(two.system.A)
        assert judge.snapshot(one.system.b) == judge.snapshot(two.system.b) and str(one.call) == str(two.call)
        np.testing.assert_array_equal(one.system.stored.toarray(), two.system.stored.toarray())


def test_every_base_change_right_hand_side_and_format_comes_up():
    words = set(itertools.chain.from_iterable(systems.case(seed).system.words for seed in range(500)))
    assert words >= {*systems.BASES, *systems.CHANGES, *systems.RIGHT_HAND_SIDES, *systems.DTYPES, *systems.FORMATS}


# The judge


def by_fractions(A, b, x):
    """The squares of ||b - A x|| and ||b||."""
    real = [[Fraction(float(v)) for v in row] for row in A]
    r = [Fraction(float(c)) - sum(a * Fraction(float(v)) for a, v in zip(row, x)) for row, c in zip(real, b)]
    return sum(v * v for v in r), sum(Fraction(float(c)) ** 2 for c in b)


@pytest.mark.parametrize("exponent", [0, 8, 150])
def test_residuals_are_exact(exponent):
    rng = np.random.default_rng(exponent)
    A = rng.standard_normal((7, 7)) * 10.0 ** rng.uniform(-exponent, exponent, (7, 7))
    x = rng.standard_normal(7)
    b = A @ x
    found = judge.Measured(sp.csr_matrix(A), b, x)
    square, square_b = by_fractions(A, b, x)
    assert square > 0 and found.square * found.unit**2 == square and found.square_b * found.unit**2 == square_b
    rtol = found.relative
    assert found.meets(rtol * (1 + 1e-9), 0.0, 0.0) and not found.meets(rtol * (1 - 1e-9), 0.0, 0.0)
    assert found.meets(0.0, found.size * (1 + 1e-9), 0.0) and not found.meets(0.0, found.size * (1 - 1e-9), 0.0)


def test_residuals_of_complex_and_of_large_systems(meanwhile):
    rng = np.random.default_rng(0)
    A = sp.random(50, 50, 0.3, random_state=rng, format="csr")
    A.data = A.data + 1j * rng.random(A.nnz)
    x = rng.standard_normal(50) * 1j
    b = A @ x + 1e-9
    exact = judge.Measured(A, b, x)
    meanwhile(judge, EXACT=0)
    extended = judge.Measured(A, b, x)
    assert exact.exact and extended.exact is not judge.EXTENDED
    assert exact.relative == pytest.approx(np.linalg.norm(b - A @ x) / np.linalg.norm(b), rel=1e-3)
    assert extended.relative == pytest.approx(exact.relative, rel=1e-6)
    np.testing.assert_allclose(extended.rows, exact.rows, rtol=1e-4, atol=1e-16)


def test_of_the_smallest_numbers():
    A, tiny = sp.csr_matrix([[3.0]]), 5e-324
    found = judge.Measured(A, np.array([2 * tiny]), np.array([tiny]))
    assert found.relative == 0.5 and not found.meets(0.4, 0.0, 0.0) and found.size == tiny


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_singular_matrices_are_known(dtype):
    rng = np.random.default_rng(1)
    phase = np.exp(1j) if dtype == "complex128" else 1.0
    for n in (1, 2, 9):
        low = rng.integers(-9, 10, (n, max(n - 1, 1))) @ rng.integers(-9, 10, (max(n - 1, 1), n)) * (n > 1) * 0.125
        A = low.astype(dtype) * (1 + 2j if dtype == "complex128" else 1)
        assert judge.nonsingular(sp.csr_matrix(A)) is False
        assert judge.nonsingular(sp.csr_matrix(np.diag(phase * 1e-300 ** np.linspace(-1, 1, n)))) is True
        assert judge.nonsingular(sp.csr_matrix(rng.standard_normal((n, n)) * 10.0 ** rng.uniform(-200, 200, (n, 1))))
    assert judge.nonsingular(sp.csr_matrix([[1, 1j], [1j, -1]])) is False
    assert judge.nonsingular(sp.csr_matrix([[1, 1j], [1j, 1]])) is True


def case_of(A, b, **options):
    A = sp.csr_matrix(A)
    system = systems.System(A, b, A, ("test",))
    return systems.Case(0, system, systems.Call("solve", options=options))


FALSE = {
    "false claim": lambda s: replace(s, x=s.x * (1 + 1e-6)),
    "NaN or Inf in x": lambda s: replace(s, x=s.x * math.nan),
    "x has shape": lambda s: replace(s, x=s.x[:, None]),
    "residual_norm=": lambda s: replace(s, residual_norm=1.0),
    "false verdict": lambda s: replace(s, status=Status.SINGULAR),
    "iterations of 9": lambda s: replace(s, iterations=1000),
}


@pytest.mark.parametrize("fault", FALSE)
def test_a_false_answer_is_a_fault(fault, meanwhile):
    A, solve = gallery.poisson5(5), finelu.solve
    case = case_of(A, np.ones(25), maxiter=9)
    assert judge.judged(case).faults == []
    meanwhile(finelu, solve=lambda *a, **k: FALSE[fault](solve(*a, **k)))
    assert fault in " ".join(judge.judged(case).faults)


def test_a_time_limit_is_of_the_clock_on_the_wall(meanwhile):
    solve = finelu.solve

    def waiting(*args, **options):
        time.sleep(0.3)
        return solve(*args, **options)

    meanwhile(finelu, solve=waiting)
    meanwhile(os, getloadavg=lambda: (1e6, 1e6, 1e6))
    verdict = judge.judged(case_of(gallery.poisson5(4), np.ones(16), time_limit=0.1))
    assert verdict.late and "s, with time_limit=0.1" in verdict.faults[0]


def raising(error):
    def solve(A, b, **options):
        raise error

    return solve


def changing(A, b, **options):
    A.data[0] += 1
    return finelu.krylov.cg(A, b)


@pytest.mark.parametrize(
    ("fault", "solve"),
    [
        ("ValueError: odd", raising(ValueError("odd"))),
        ("LinAlgError: SVD", raising(np.linalg.LinAlgError("SVD"))),
        ("RuntimeWarning: late", lambda A, b, **_: __import__("warnings").warn("late", RuntimeWarning, stacklevel=1)),
        ("not one line", raising(finelu.MatrixError("one\ntwo"))),
        ("A was changed", changing),
    ],
)
def test_what_else_is_a_fault(fault, solve, meanwhile):
    meanwhile(finelu, solve=solve)
    assert fault in " ".join(judge.judged(case_of(gallery.poisson5(4), np.ones(16))).faults)


def test_a_system_that_could_be_solved_is_a_weak_point(meanwhile):
    solve, unsolved = finelu.solve, {"x": np.zeros(16), "status": Status.STAGNATED, "residual_norm": 4.0}
    meanwhile(finelu, solve=lambda *a, **k: replace(solve(*a, **k), **unsolved))
    D = sp.diags(10.0 ** np.linspace(-100, 100, 16))
    assert judge.judged(case_of(D @ gallery.poisson5(4), D @ np.ones(16))).weak == ["not solved: STAGNATED"]
    hopeless = 1 / (np.arange(16)[:, None] + np.arange(16) + 1.0)
    assert judge.judged(case_of(hopeless, np.ones(16))).weak == []


def test_rows_of_different_size_are_looked_at_each():
    A, b = sp.csr_matrix(np.diag([1e12, 1.0])), np.array([1e12, 1.0])
    x = np.array([1.0, 0.9])
    found = judge.Measured(A, b, x)
    assert found.meets(1e-8, 0.0, 0.0) and not judge.meets_by_rows(A, b, found, float, 1e-8, 0.0, 0.0)
    assert judge.meets_by_rows(A, b, found, float, 0.1, 0.0, 0.0) and judge.meets_by_rows(
        A, b, found, float, 1e-8, 1e12, 0.0
    )
    exact = judge.Measured(A, b, np.ones(2))
    assert judge.meets_by_rows(A, b, exact, float, 1e-8, 0.0, 0.0)


# The processes

DYING = """
import os, sys, time
for line in sys.stdin:
    begin, end = map(int, line.split())
    for seed in range(begin, end):
        print(seed, flush=True)
        if seed == 1:
            print("last words", file=open(sys.argv[1], "w"))
            os.abort()
        if seed == 3:
            time.sleep(100)
        print('{"outcome": "fine"}', flush=True)
    print("over", flush=True)
"""


def test_a_case_that_dies_or_hangs_is_reported_and_the_next_goes_on(tmp_path, meanwhile):
    (tmp_path / "err").write_text("")
    started = run.Worker._start

    def start(worker):
        worker.command = [sys.executable, "-c", DYING, str(tmp_path / "err")]
        started(worker)

    meanwhile(run.Worker, _start=start)
    meanwhile(run, PATIENCE=5.0)
    worker = run.Worker("systems", tmp_path)
    found = dict(worker.tried(0, 6))
    worker.close()
    assert [seed for seed, verdict in found.items() if verdict == {"outcome": "fine"}] == [0, 2, 4, 5]
    assert found[1] == "died: the process ended with -6: last words" and found[3].startswith("hung")
