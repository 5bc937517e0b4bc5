"""Where the `finelu` command begins: Ctrl-C is one line and status 130 from here on, in the imports, too."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130  # exit status, as cli.py has it, which is not imported yet


def main() -> None:
    """Run the command line and end with its status."""
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not where a shell has it ignored
    if heard:
        signal.signal(signal.SIGINT, _leave)
    from finelu import cli

    try:
        if heard:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        status = cli.main()
        if heard:
            signal.signal(signal.SIGINT, _leave)
    except KeyboardInterrupt:  # where cli.main does not listen any more, or not yet
        _leave()
    sys.exit(status)


def _leave(number: int = signal.SIGINT, frame: FrameType | None = None) -> NoReturn:
    """End at once: an exception would be printed by whatever import it came in, or be lost there."""
    as_json = "--json" in sys.argv
    try:
        os.write(1 if as_json else 2, b'{"error": "interrupted"}\n' if as_json else b"finelu: interrupted\n")
    finally:
        os._exit(INTERRUPTED)
