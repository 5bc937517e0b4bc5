"""Damaged files of every format through `finelu solve`, in a process of its own: a crash is a failure of the test."""

import os
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "tools" / "fuzz_files.py"


def test_damaged_files_end_with_an_answer_or_with_one_line():
    command = [sys.executable, SCRIPT, "120", "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=os.environ | {"PYTHONWARNINGS": ""})
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.fullmatch(r"status 0: (\d+), status 1: (\d+), status 2: (\d+) of 120 files in \d+ s\n", done.stdout)
    assert counts is not None and min(map(int, counts.groups())) > 0
    assert sum(map(int, counts.groups())) == 120
