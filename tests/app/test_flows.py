"""The flow examples as programs: cases that are computed and drawn, bad input, Ctrl-C."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
if not EXAMPLES.exists():
    pytest.skip("examples/ is not here", allow_module_level=True)
sys.path.insert(0, str(EXAMPLES))  # as for a script

import body_flow as bf  # noqa: E402
import channel_flow as cf  # noqa: E402
import sphere_flow as sf  # noqa: E402

TIMES = "BILU FACT", "SOLV/CORR", "RHS", "AFILL", "MPI"  # the parts that are timed


def call(capsys, program, *arguments):
    try:
        status = program.main([str(a) for a in arguments])
    except SystemExit as end:
        status = end.code
    return status, *capsys.readouterr()


@pytest.mark.parametrize(
    ("program", "arguments", "lines"),
    [
        (bf, "cylinder --cells 24 16 --blocks 3", ("length of the recirculation", *TIMES)),
        (bf, "cylinder --re 100 --cells 24 16 --dt 0.4 --steps 3", ("no periods that repeat", *TIMES)),
        (bf, "airfoil --cells 40 12 --alpha 2 --blocks 5 --tolerance 1e-3", ("lift 0.", *TIMES)),
        (sf, "--re 40 --cells 4 12 --blocks 12 --tolerance 1e-3", ("drag 1.", "Nusselt number 5", *TIMES)),
        (cf, "cavity --cells 16 --every 5", ("largest deviation from Ghia", *TIMES)),
        (cf, "cavity --cells 8 --re 50 --tolerance 1e-3", ("no reference for Re = 50",)),
        (cf, "channel --cells 2 8 1", ("largest deviation from Poiseuille, across the channel",)),
        (cf, "channel --cells 4 6 6 --section duct --drive inflow", ("the series for the duct, where",)),
        (cf, "channel --cells 1 12 1 --unknowns 6 --re 180 --stretch 2 --tolerance 1e-4", ("k from",)),
        (cf, "taylor-green --cells 8 --steps 2 --re 10", ("the energy decays at the rate",)),
    ],
    ids=["steady", "in time", "airfoil", "sphere", "cavity", "no table", "plates", "duct", "scalars", "taylor-green"],
)
def test_the_cases_run_and_are_drawn(capsys, tmp_path, program, arguments, lines):
    pytest.importorskip("matplotlib")
    status, out, err = call(capsys, program, *arguments.split(), "--png", tmp_path / "flow.png")
    assert (status, err) == (0, "") and all(line in out for line in lines)
    assert (tmp_path / "flow.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("program", "arguments", "status", "text"),
    [
        (bf, "cylinder --re 0", 2, "0 is not a finite number above 0"),
        (bf, "cylinder --grid huge", 2, "invalid choice"),
        (bf, "cylinder --cells 8 4 --blocks 5", 2, "5 blocks of 8 cells"),
        (bf, "cylinder --distance 1", 2, "2 or more diameters"),
        (bf, "airfoil --blocks 2", 2, "at least 3"),
        (bf, "airfoil --cells 8 8", 2, "at least 16"),
        (bf, "airfoil --alpha nan", 2, "nan is not between -90 and 90"),
        (bf, "cylinder --png /no/such/folder/a.png", 2, "a folder that exists"),
        (bf, "sphere", 2, "invalid choice"),
        (bf, "cylinder --cells 16 8 --steps 2", 1, "not converged: 2 pseudo steps"),
        (sf, "--blocks 8", 2, "a multiple of 6"),
        (sf, "--cells 4 12 --blocks 36", 2, "6 blocks of 12 cells"),
        (cf, "cavity --re -1", 2, "-1 is not a finite number above 0"),
        (cf, "cavity --cells x", 2, "invalid whole number"),
        (cf, "cavity --cells 3", 2, "3 is below 4"),
        (cf, "channel --cells 4 4", 2, "expected 3 arguments"),
        (cf, "channel --stretch 9", 2, "stretch=9.0"),
        (cf, "cavity --png /no/such/folder/a.png", 2, "a folder that exists"),
        (cf, "river", 2, "invalid choice"),
        (cf, "cavity --cells 8 --steps 2", 1, "not converged: 2 pseudo steps"),
    ],
)
def test_bad_input_is_one_clear_line(capsys, program, arguments, status, text):
    got, _, err = call(capsys, program, *arguments.split())
    assert got == status and text in err
    assert err.count("\n") == 1 and "Traceback" not in err


def test_without_matplotlib_it_says_so(capsys, not_installed, tmp_path):
    not_installed("matplotlib.figure")
    status, _, err = call(capsys, cf, "cavity", "--png", tmp_path / "a.png")
    assert status == 2 and "needs matplotlib" in err


@pytest.mark.parametrize(("program", "case"), [(bf, ["cylinder"]), (sf, []), (cf, ["cavity"])])
def test_ctrl_c_ends_cleanly(capsys, meanwhile, program, case):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    meanwhile(program, run=interrupted)
    assert call(capsys, program, *case)[::2] == (130, "interrupted\n")


def test_it_runs_as_a_script():
    command = [sys.executable, EXAMPLES / "channel_flow.py", "taylor-green", "-h"]
    assert "--dt" in subprocess.run(command, capture_output=True, text=True, check=True).stdout
