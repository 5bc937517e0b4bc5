"""How record_sanitizers.py reads the output of a tool, and summarizes it."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.append(str(Path(__file__).parent))
from record_sanitizers import LONG, OTHERS, Outcome, kernel_of, page, reports
from sanitize import PARTS, every_kernel

QUIET = """vectors: done, 1.2 s
========= COMPUTE-SANITIZER
launched: vectors:dot 3
========= {} SUMMARY: {}
"""
MEMCHECK = """========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 8 bytes
=========     at void eliminate<double, int, (int)32, (int)1>(T2, const T2 *, T1 *)+0x70
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


FOREIGN = """========= COMPUTE-SANITIZER
========= Warning: Race reported between Read access at cupy_nonzero_kernel_incomplete_scan+0x460
=========     and Write access at cupy_nonzero_kernel_incomplete_scan+0x630 [192 hazards]
=========
adapted: done, 1.0 s
========= RACECHECK SUMMARY: 1 hazard displayed (0 errors, 1 warning)
"""
INITCHECK = """========= COMPUTE-SANITIZER
========= Host API memory access error at host access to 0x7ff3be80f200 of size 50,336 bytes
=========     Uninitialized access to 0x7ff3be81b680 on access by cudaMemcpy source
=========     Saved host backtrace up to driver entry point at error
=========         Host Frame: cudaMemcpyAsync [0xb101c] in runtime.cpython-312-x86_64-linux-gnu.so
=========         Host Frame: ilu0(long, long) in runtime.cpp:16986 [0x1b6f8] in runtime.cpython-312-x86_64-linux-gnu.so
=========         Host Frame: to_host in device.py:41
=========         Host Frame: grow in threshold.py:83
=========         Host Frame: main in sanitize.py:837
=========
========= ERROR SUMMARY: 1 error
"""


@pytest.fixture(scope="module")
def names():
    return {name.partition(":")[2]: name for name in every_kernel()}


def outcome_of(text, status, names, part="vectors"):
    outcome = Outcome(part, status)
    outcome.read(text, names)
    return outcome


def test_every_report_is_counted_for_its_kernel(names):
    found = [kernel_of(report, names) for report in reports(MEMCHECK)]
    assert found == ["elimination:eliminate", OTHERS + "cub::DeviceRadixSortOnesweepKernel"]
    assert [kernel_of(report, names) for report in reports(RACECHECK)] == ["triangular:trsv_one_block"]
    assert [kernel_of(report, names) for report in reports(FOREIGN)] == [OTHERS + "cupy_nonzero_kernel_incomplete_scan"]
    copy = "a copy by to_host in device.py:41, grow in threshold.py:83"  # whatever functions the frames before name
    assert [kernel_of(report, names) for report in reports(INITCHECK)] == [copy]
    assert not list(reports(QUIET.format("ERROR", "0 errors")))


@pytest.mark.parametrize("kind", [("ERROR", "0 errors"), ("RACECHECK", "0 hazards displayed (0 errors, 0 warnings)")])
def test_only_a_run_that_ended_well_without_reports_of_its_own_is_good(kind, names):
    text = QUIET.format(*kind)
    assert outcome_of(text, 0, names).good
    assert not outcome_of(text, 1, names).good
    assert not outcome_of(text, None, names).good
    assert not outcome_of(text, 0, names, "indices").good  # another part has ended
    assert not outcome_of(text + RACECHECK, 9, names).good
    assert not outcome_of(text + INITCHECK, 9, names).good
    assert not outcome_of(text.replace("SUMMARY: 0", "SUMMARY: 1"), 9, names).good  # that was not printed


def test_reports_of_other_libraries_are_kept_but_are_no_fault_of_finelu(names):
    outcome = outcome_of(FOREIGN, 9, names, "adapted")
    assert outcome.good and outcome.own == 0 and outcome.reports.total() == 1
    assert FOREIGN.splitlines()[1] in outcome.excerpt()
    assert not outcome_of(FOREIGN.replace("done", "FAILED: AssertionError"), 9, names, "adapted").good
    assert not outcome_of(FOREIGN, 1, names, "adapted").good


def test_the_first_report_of_a_kernel_is_kept_with_their_number(names):
    report = "\n".join(RACECHECK.splitlines()[1:4])
    outcome = outcome_of(RACECHECK.replace(report, "\n".join([report] * 3)), 9, names)
    assert outcome.excerpt().count("Race reported") == 1 and "3 of triangular:trsv_one_block" in outcome.excerpt()


def test_the_page_has_a_line_for_every_kernel_whether_or_not_it_was_launched(names):
    outcome = outcome_of("ilu0: done, 1.0 s\n" + MEMCHECK, 9, names, "ilu0")
    outcome.launched.update({"elimination:eliminate": 2})
    text = page(
        {"memcheck": [outcome]}, every_kernel(), {"gpu": "GPU"}, SimpleNamespace(plain_loads=False), "Version 1"
    )
    assert f"| memcheck | 1 of {len(every_kernel())} | 2 | 1 | 1 | none |" in text
    assert "| `elimination:eliminate` | 2 | 1 |" in text
    outcome.text = MEMCHECK
    assert "| 2 | 1 | 1 | ilu0 |" in page({"memcheck": [outcome]}, every_kernel(), {}, None, "Version 1")
    assert f"| `{OTHERS}cub::DeviceRadixSortOnesweepKernel` | 0 | 1 |" in text
    assert text.count("not launched |") == len(every_kernel()) - 1


def test_the_parts_that_take_long_are_parts():
    assert set(LONG) <= set(PARTS) and len(set(LONG)) == len(LONG)
