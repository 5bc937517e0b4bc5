"""The command line in this process."""

import json

from finelu.cli import main


def run(capsys, *arguments):
    """Exit status, stdout and stderr of one command line."""
    status = main([str(a) for a in arguments])
    return status, *capsys.readouterr()


def run_json(capsys, *arguments):
    status, out, err = run(capsys, *arguments, "--json")
    assert err == ""
    assert out.count("\n") == 1
    return status, json.loads(out)
