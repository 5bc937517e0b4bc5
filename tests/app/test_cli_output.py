"""What the program prints, wherever stdout and stderr lead: full, closed, ASCII alone, or a reader that has gone."""

import json
import os
import re
import stat
import subprocess
import sys

import numpy as np
import pytest
from programs import WAIT, forked

from finelu import start
from finelu.cli import main
from finelu.cli.output import ASCII

SOLVE = ["solve", "gallery:poisson7:4"]
FULL = "stdout: cannot be written (No space left on device)."


def shell(redirection, *arguments, **environment):
    """Exit status of finelu, stdout and stderr; `redirection` is the shell's and comes after the arguments."""
    return forked(start.main, *arguments, redirection=redirection, **environment)


def new_shell(redirection, *arguments, **environment):
    """The same of a new Python, including its start and its end."""
    command = ["sh", "-c", f'"$@" {redirection}', "sh", sys.executable, "-m", "finelu", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, env=os.environ | environment, timeout=WAIT)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize("arguments", [[*SOLVE, "--json"], SOLVE, ["--version"]])
def test_a_full_stdout_is_one_line_and_status_2(arguments):
    run = new_shell if arguments == ["--version"] else shell
    assert run("> /dev/full", *arguments) == (2, "", f"finelu: {FULL}\n")


def test_an_error_that_stdout_cannot_take_goes_to_stderr():
    line = "finelu: nowhere.mtx: there is no such file.\n"
    assert shell("> /dev/full", "solve", "nowhere.mtx", "--json") == (2, "", line)
    assert shell("> /dev/full", "solve", "nowhere.mtx") == (2, "", line)


def test_help_on_a_full_disk_is_one_line():
    assert shell("> /dev/full", "--help") == (2, "", "finelu: No space left on device\n")


@pytest.mark.parametrize(("run", "redirection"), [(shell, ">&-"), (new_shell, ">&- 2>&- <&-")])
def test_closed_streams_do_no_harm(tmp_path, run, redirection):
    x = tmp_path / "x.npy"
    assert run(redirection, *SOLVE, "-o", x) == (0, "", "")
    assert np.isfinite(np.load(x)).all()


def test_what_a_closed_stderr_would_have_shown_does_not_turn_up_on_stdout():
    assert shell("2>&-", "solve", "nowhere.mtx") == (2, "", "")
    assert shell("2> /dev/full", "solve", "nowhere.mtx") == (2, "", "")
    status, out, _ = shell("2>&-", *SOLVE, "--json")
    assert status == 0 and json.loads(out)["converged"]


@pytest.mark.parametrize(
    ("run", "environment"),
    [
        (shell, {"PYTHONIOENCODING": "ascii"}),
        (new_shell, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    ],
    ids=["PYTHONIOENCODING", "LC_ALL"],
)
def test_a_terminal_without_unicode_gets_ascii(run, environment):
    status, out, err = run("", *SOLVE, "--recipe", "jacobi", **environment)
    assert (status, err) == (0, "") and out.isascii()
    assert re.search(r"residual norms +#[#*+=\-:._]+ *\n", out)


def test_names_and_messages_that_a_stream_cannot_encode(tmp_path):
    name = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xc3\xbc.mtx")
    assert shell("", "solve", name) == (2, "", f"finelu: {name}: there is no such file.\n")
    status, out, err = shell("", "solve", name, PYTHONIOENCODING="ascii")
    assert (status, out) == (2, "") and os.fsencode(err).endswith(b"\xff\\xfc.mtx: there is no such file.\n")


def test_every_character_has_a_likeness_in_ascii():
    assert all(len(key) == 1 and not key.isascii() and value.isascii() for key, value in ASCII.items())


@pytest.mark.parametrize(("run", "arguments"), [(shell, SOLVE), (new_shell, [*SOLVE, "--json"])])
def test_a_reader_that_has_gone_is_no_error(run, arguments):
    read, write = os.pipe()
    os.close(read)
    os.set_inheritable(write, True)
    assert run(f"> /proc/{os.getpid()}/fd/{write}", *arguments) == (0, "", "")
    os.close(write)


# Files that are written


@pytest.mark.parametrize("option", ["-o", "--plot"])
def test_a_full_disk_after_the_work_is_one_line_that_says_what_is_lost(capsys, tmp_path, devices_stay, option):
    pytest.importorskip("matplotlib")
    path = tmp_path / ("x.npy" if option == "-o" else "c.png")
    path.symlink_to("/dev/full")
    status = main([*SOLVE, option, str(path)])
    what = "x" if option == "-o" else "the plot"
    line = f"finelu: {path}: cannot be written (No space left on device); {what} was not written.\n"
    assert (status, *capsys.readouterr()) == (2, "", line)


@pytest.mark.parametrize("command", ["solve", "compare", "inspect"])
def test_a_name_that_is_too_long_is_refused_before_the_work(capsys, tmp_path, command):
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    options = {"solve": ("-o", ".npy"), "compare": ("--html", ".html"), "inspect": ("--plot", ".svg")}
    option, extension = options[command]
    path = tmp_path / ("x" * 256 + extension)
    assert main([command, "nowhere.mtx", option, str(path)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err == f"finelu: {path}: cannot be written (File name too long).\n"


def test_plots_keep_the_mode_and_the_names_of_a_file_too(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    plot, other = tmp_path / ("c" * 240 + ".svg"), tmp_path / "other.svg"
    for links in (1, 2):
        plot.touch()
        plot.chmod(0o600)
        if links == 2:
            other.hardlink_to(plot)
        assert main(["inspect", SOLVE[1], "--plot", str(plot)]) == 0
        found = plot.stat()
        assert (stat.S_IMODE(found.st_mode), found.st_nlink) == (0o600, links) and found.st_size > 1000
    assert sorted(p.name for p in tmp_path.iterdir()) == [plot.name, "other.svg"]


def test_what_is_read_is_not_written_over_and_no_two_outputs_are_one(capsys, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    monkeypatch.chdir(tmp_path)
    assert main([*SOLVE, "-o", "b.npy"]) == 0
    (tmp_path / "A.mtx").write_text("%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 2\n")
    os.link("A.mtx", "link.mtx")
    os.symlink("b.npy", "c.npy")
    os.symlink("x.npy", "page.html")
    os.symlink("page.html", "plot.svg")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.exists()}
    capsys.readouterr()
    for words, said in [
        (["solve", "A.mtx", "-o", "A.mtx"], "A.mtx: is an input, too; name"),
        (["solve", "A.mtx", "-o", "link.mtx"], "link.mtx: is an input, too, as A.mtx; name"),
        (["solve", "A.mtx", "-o", "./A.mtx"], "./A.mtx: is an input, too, as A.mtx; name"),
        ([*SOLVE, "-b", "b.npy", "-o", "c.npy"], "c.npy: is an input, too, as b.npy; name"),
        ([*SOLVE, "-o", "x.npy", "--plot", "plot.svg"], "plot.svg: is an output, too, as x.npy; name"),
        (["compare", "page.html", "--html", "page.html"], "page.html: is an input, too; name"),
        (["inspect", "plot.svg", "--plot", "plot.svg"], "plot.svg: is an input, too; name"),
    ]:
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert out == "" and err == f"finelu: {said} another file to write.\n"
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.exists()} == before


def test_a_device_may_be_written_twice(capsys, tmp_path, devices_stay):
    pytest.importorskip("matplotlib")
    for name in ("x.npy", "plot.svg"):
        (tmp_path / name).symlink_to("/dev/null")
    assert main([*SOLVE, "-o", str(tmp_path / "x.npy"), "--plot", str(tmp_path / "plot.svg")]) == 0
