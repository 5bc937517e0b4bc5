"""What record_sanitizers.py reads in the output of a tool, and what it makes of it."""

import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.append(str(Path(__file__).parent))
from record_sanitizers import Outcome, kernel_of, page, reports
from sanitize import every_kernel

QUIET = """vectors: done, 1.2 s
========= COMPUTE-SANITIZER
launched: vectors:dot 3
========= {} SUMMARY: {}
"""
MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 8 bytes
=========     at void ilu0<double, int, (int)32, (int)1>(T2, const T2 *, T1 *)+0x70
=========     by thread (0,0,0) in block (0,0,0)
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: cuLaunchKernel [0x2e6b5d] in libcuda.so
=========
========= Invalid __global__ read of size 8 bytes
=========     at void cub::DeviceRadixSortOnesweepKernel<int, long>(int *)+0x10
=========     by thread (1,0,0) in block (0,0,0)
=========
========= ERROR SUMMARY: 2 errors
"""
RACECHECK = """========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at void trsv_one_block<Complex<float>, int>(T2, const int *)+0x910
=========     and Read access at void trsv_one_block<Complex<float>, int>(T2, const int *)+0x5e0 [1632 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


@pytest.fixture(scope="module")
def names():
    return {name.partition(":")[2]: name for name in every_kernel()}


def test_every_report_is_counted_for_its_kernel(names):
    found = [kernel_of(report, names) for report in reports(MEMCHECK)]
    assert found == ["elimination:ilu0", "Invalid __global__ read of size 8 bytes"]
    assert [kernel_of(report, names) for report in reports(RACECHECK)] == ["triangular:trsv_one_block"]
    assert not list(reports(QUIET.format("ERROR", "0 errors")))


@pytest.mark.parametrize("kind", [("ERROR", "0 errors"), ("RACECHECK", "0 hazards displayed (0 errors, 0 warnings)")])
def test_only_a_run_without_reports_that_ended_well_is_good(kind):
    text = QUIET.format(*kind)
    assert Outcome("vectors", 0, 1.0, text).good
    assert not Outcome("vectors", 1, 1.0, text).good
    assert not Outcome("vectors", None, 1.0, text).good
    assert not Outcome("vectors", 0, 1.0, RACECHECK).good
    assert not Outcome("vectors", 0, 1.0, text, Counter(["vectors:dot"])).good


def test_the_page_has_a_line_for_every_kernel_whether_or_not_it_was_launched():
    launched = Counter({"elimination:ilu0": 2})
    outcome = Outcome("ilu0", 9, 1.0, MEMCHECK, Counter({"elimination:ilu0": 1, "something else": 1}), launched)
    text = page(
        {"memcheck": [outcome]}, every_kernel(), {"gpu": "GPU"}, SimpleNamespace(plain_loads=False), "Version 1"
    )
    assert f"| memcheck | 1 of {len(every_kernel())} | 2 | 2 | none |" in text
    assert "| `elimination:ilu0` | 2 | 1 |" in text and "| `something else` | 0 | 1 |" in text
    assert text.count("not launched |") == len(every_kernel()) - 1
