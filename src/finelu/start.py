"""The start of the `finelu` command: from here on Ctrl-C prints one line and ends with status 130, also in imports."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130  # exit status, as in cli/arguments.py, which is not imported yet


def main() -> None:
    """Run the command line and end with its status."""
    listening = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where a shell has it ignored
    if listening:
        signal.signal(signal.SIGINT, _leave)
    # SciPy's C code imports these if NumPy 1.26 has not yet, and makes an ImportError of a Ctrl-C meanwhile.
    import numpy._core.multiarray
    import numpy._core.umath  # noqa: F401

    from finelu import cli

    try:
        if listening:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status = cli.main()
        if listening:
            signal.signal(signal.SIGINT, _leave)
    except KeyboardInterrupt:  # before cli.main catches it, or after
        _leave()
    sys.exit(status)


def _leave(number: int = signal.SIGINT, frame: FrameType | None = None) -> NoReturn:
    """End at once: an exception raised in the middle of an import could be printed or swallowed there."""
    as_json = "--json" in sys.argv
    try:
        os.write(1 if as_json else 2, b'{"error": "interrupted"}\n' if as_json else b"finelu: interrupted\n")
    finally:
        os._exit(INTERRUPTED)
