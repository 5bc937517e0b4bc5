"""Multi-block matrices on several processes: as on one process; what one of them meets ends, or is raised on, all.

The cases are in multiblock_processes.py, which mpiexec runs.
"""

import re
import sys
from pathlib import Path

import pytest
from launched import MPIEXEC, launched, result

from finelu.kernels.cuda.runtime import nccl

pytest.importorskip("mpi4py")
pytestmark = [pytest.mark.skipif(MPIEXEC is None, reason="there is no mpiexec"), pytest.mark.mpi]


def run(case, processes=2, script="multiblock_processes.py"):
    """The CompletedProcess of a case."""
    return launched(processes, sys.executable, Path(__file__).with_name(script), case)


@pytest.fixture(scope="module")
def errors():
    """{case: the text of the error on each process}."""
    done = run("errors")
    assert done.returncode == 0, done.stderr
    return result(done)


def by_nccl(cupy):
    """Whether two processes have a GPU each, and NCCL."""
    return cupy.cuda.runtime.getDeviceCount() > 1 and nccl.library() is not None


ON_GPU = [pytest.param(case, 2, marks=pytest.mark.gpu) for case in ("same_on_gpu", "same_on_both")]


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["gpu_then_both", "preconditioned_on_both"])
def test_gpus_and_hosts_together(cupy, case):
    done = run(case)
    assert done.returncode == 0, done.stderr
    assert result(done) == [[True, True]] * 2


@pytest.mark.parametrize(("case", "processes"), [("same", 2), ("same", 4), *ON_GPU])
def test_the_same_as_on_one_process(request, case, processes):
    cupy = request.getfixturevalue("cupy") if "gpu" in request.node.keywords else None
    done = run(case, processes)
    assert done.returncode == 0, done.stderr
    found = result(done)
    exactly = case == "same"
    assert max(found["differences"]) <= (0 if exactly else 1e-12)
    assert found["histories"] < 1e-12 and found["iterations"][0] == found["iterations"][1] > 5
    assert found["statuses"] == ["CONVERGED"] * processes
    assert found["looked"][-1] == 3
    assert found["stopped"] == [["INTERRUPTED"] * processes, [3] * processes]
    assert len(set(found["exact"][1])) == 1 and found["exact"][1][0] < 1e-13 and "CONVERGED" not in found["exact"][0]
    assert found["residual"][0] == pytest.approx(found["residual"][1], rel=1e-3)
    assert found["bounds"] and found["threads"]
    ways = {"same": ["Room"], "same_on_both": ["Direct", "Staged"]}
    ways["same_on_gpu"] = ["Queued"] if cupy and by_nccl(cupy) else ways["same_on_both"]
    assert found["way"] in ways[case]
    assert found["layers_by_nccl"] == (found["way"] == "Queued")


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("not_matching", "does not match: block 0 has 4 cells along k, block 1 has 5 along k"),
        ("without_a_block", "process 1 of 2 has no block"),
        ("twice", "block 0 is on processes 0 and 1"),
        ("other_interfaces", "processes 0 and 1 were given different interfaces"),
        ("other_kinds", "those of process 1 n=3"),
        ("not_a_number", "process 1: block 1: blocks holds NaN or Inf in delta of cell (0, 0, 0)"),
        ("singular", "process 1: BlockILU0(): block 1: the diagonal block of cell (0, 0, 0)"),
        ("bad_b", "process 1: b holds NaN or Inf in row 3"),
        ("other_rtol", "rtol is 1e-05 on process 0 and 2e-05 on process 1"),
        ("too_large", "process 1: BlockILU0(precision='float32'): A has entries beyond the range of float32"),
        ("other_update", "process 0: A is a str"),
        ("too_deep", "depth=4: block 0 has 3 cells across face i"),
        ("no_list", "'NoneType' object is not iterable"),
        ("pickled", "cannot be pickled or copied"),
        ("other_dtype", "differ in kind between processes 0 and 1"),
        ("gmres", "spread over 2 processes, where of these methods only richardson works"),
        ("as_csr", "spread over 2 processes, so it is no single CSR matrix"),
    ],
)
def test_what_one_meets_is_raised_on_all(errors, case, words):
    first, *others = errors[case]
    assert words in first and "\n" not in first
    assert others == [first]


def test_what_a_process_does_by_itself_disturbs_no_other():
    found = result(run("apart", 4))
    assert found == [[True, [1000.0] * 4, "Strange: of the last"]] * 4


@pytest.mark.parametrize("case", ["other_numbers", pytest.param("other_numbers_on_gpu", marks=pytest.mark.gpu)])
def test_numbers_of_different_dtypes_are_no_result(request, case):
    if "gpu" in request.node.keywords:
        request.getfixturevalue("cupy")
    done = run(case)
    assert done.returncode != 0
    assert "all processes need numbers of one dtype" in done.stderr


def test_the_examples_of_the_page():
    assert result(run("of_the_page")) == [2, [["above"], ["below"]]]


@pytest.fixture(scope="module")
def by_other_means():
    """{case: what each of four processes found}, with NumPy for CuPy and MPI for NCCL."""
    done = run("", 4, script="multiblock_nccl.py")
    assert done.returncode == 0, done.stderr
    return result(done)


OTHER = "process {} sent {} where {} bytes of {} were due; all processes need numbers of one dtype."
WIDER = OTHER.format(1, "32 bytes", 16, "float32")
NARROWER = OTHER.format(0, "16 bytes", 32, "float64")
AS_WIDE = [OTHER.format(k, "numbers of another dtype", 32, kind) for k, kind in ((0, "float64"), (1, "complex64"))]
TWO_DEVICES = "the arrays of blocks (3, 0) and (3, 1) are on different devices; move one of them first."
NOT_CURRENT = (
    "process 3: arrays of GPU 1 and GPU 1 met while GPU 0 is current; put them on one, and make it current "
    "(with cupy.cuda.Device(...))."
)
ELSEWHERE = (
    "process 3 has its arrays on the host, but had those of the first exchange on GPU 0; move them there, or make "
    "another grid for them."
)
FAILED = "process 0: NCCL: broken. Cells at interfaces go another way, which takes longer."
LAYERS = [OTHER.format(1, "64 bytes", 32, "float32"), OTHER.format(0, "32 bytes", 64, "float64")]
SWITCH = "FINELU_NCCL='no'; 0, or 1, or nothing, is needed."


@pytest.mark.parametrize(
    ("case", "found"),
    [
        ("connected", [[True, True, True, 1, "Queued"]] * 4),
        *((f"{why}", [True] * 4) for why in ("on_one_gpu", "nothing_to_send", "without_it_on_the_last")),
        *((f"{where}_on_the_last", [True] * 4) for where in ("on_the_host", "switched_off")),
        ("wrong_switch_on_the_last", [SWITCH] * 4),
        ("that_fails", [[True, 2, [FAILED] * 2]] + [[True, 2, []]] * 3),
        ("other_numbers_on_the_first",
         [[WIDER, AS_WIDE[1], True], [NARROWER, AS_WIDE[0], True], [True] * 3, [NARROWER, AS_WIDE[0], True]]),
        ("work_ahead", [[["work", 5.0], [5.0]]] * 4),
        ("one_level", [[0.5, 2.0]] * 4),
        ("layers_of_cells", [[True, True, True, True, True, False]] * 4),
        ("layers_of_a_matrix", [[4.0, 2.0], [1.0, 3.0], [2.0, 4.0], [3.0, 1.0]]),
        ("layers_without_interfaces", [True] * 4),
        ("layers_of_two_dtypes",
         [[True, True, said, True, True] for said in (LAYERS[0], LAYERS[1], True, LAYERS[1])]),
        ("layers_of_two_devices",
         [["process 3: " + TWO_DEVICES, 2, *later, 2, True] for later in ([], [], [], [TWO_DEVICES])]),
        ("layers_elsewhere", [[NOT_CURRENT, True, *later, True] for later in ([], [], [], [ELSEWHERE])]),
        ("devices_that_change", [[[0] * 4, [-1, 0, 0, 0]]] * 4),
    ],
)  # fmt: skip
def test_how_processes_come_to_nccl(by_other_means, case, found):
    assert by_other_means[case] == found


def test_what_is_kept_for_a_communicator_is_closed_with_it():
    assert result(run("kept")) == [True, [[0], [1]]]


def test_a_process_that_dies_ends_all():
    done = run("dies")
    assert done.returncode != 0 and re.search(r"signal 9|KILLED|Killed", done.stdout + done.stderr)


def test_an_error_that_nothing_catches_ends_all():
    done = run("fails")
    assert done.returncode != 0
    assert "RuntimeError: the last process has had enough" in done.stderr
    assert "process 1 of 2 met an error; all of them end." in done.stderr
