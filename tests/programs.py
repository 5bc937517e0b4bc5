"""Programs that tests run: in children of this process, or of one that has imported Numba and SciPy but not finelu."""

import codecs
import multiprocessing
import os
import select
import signal
import sys
import tempfile
import traceback
from contextlib import suppress
from functools import partial

WAIT = 120  # s that a program may take
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["pytest", "numba", "scipy.sparse.linalg", "scipy.sparse.csgraph", "typer", "rich.table"])


def forked(program, *words, redirection="", **environment):
    """(status, stdout, stderr) of program() in a child, like a new Python with these words and this environment.

    redirection : as a shell's, of the three streams: "> /dev/full", ">&- 2>&- <&-".  What ends a Python, as the
    functions of atexit, is not done.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = os.fork()
        if not child:
            status = 1
            try:
                _begin((os.open(os.devnull, os.O_RDONLY), out.fileno(), err.fileno()), redirection, words, environment)
                status = _run(program)
            finally:
                os._exit(status)
        _, ended = os.waitpid(child, 0)
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(os.fsdecode(file.read()))
    return os.waitstatus_to_exitcode(ended), *said


class New:
    """A process that runs this code as a new Python does, but has imported Numba and SciPy; without this one's NUMBA_*.

    stderr : the name of a terminal, which takes its place.
    """

    def __init__(self, code, *words, stderr=None, **environment):
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("NUMBA_")}
        self._pipes, ends = zip(multiprocessing.Pipe(duplex=False), multiprocessing.Pipe(duplex=False), strict=True)
        self._process = SERVER.Process(target=_new, args=(ends, stderr, code, words, inherited | environment))
        self._process.start()
        for end in ends:
            end.close()

    def communicate(self, timeout):
        left = {pipe.fileno(): pipe for pipe in self._pipes}
        said = dict.fromkeys(left, b"")
        while left:
            ready = select.select(list(left), [], [], timeout)[0]
            assert ready, f"nothing is heard of it for {timeout} s"
            for number in ready:
                piece = os.read(number, 2**16)
                said[number] += piece
                if not piece:
                    left.pop(number).close()
        return tuple(text.decode() for text in said.values())

    def wait(self, timeout):
        self._process.join(timeout)
        return self._process.exitcode

    @property
    def returncode(self):
        return self.wait(WAIT)


def ended(code, *words, **environment):
    """(status, stdout, stderr) of such a process. What ends a Python, as the functions of atexit, is not done."""
    process = New(code, *words, **environment)
    said = process.communicate(WAIT)
    return process.returncode, *said


def _new(ends, terminal, code, words, environment):
    from numba.core import config

    out, err = (end.fileno() for end in ends)
    os.environ.clear()
    files = os.open(os.devnull, os.O_RDONLY), out, err if terminal is None else os.open(terminal, os.O_WRONLY)
    _begin(files, "", words, environment)
    for end in ends:
        end.close()
    config.reload_config()
    os._exit(_run(partial(exec, code, {"__name__": "__main__"})))


def _begin(files, redirection, words, environment):
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(WAIT)  # ends the child
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, file in enumerate(files):
        os.dup2(file, number)
    for word in redirection.replace("> ", ">").split():
        number = 0 if "<" in word else int(word.partition(">")[0] or 1)
        path = word.partition(">")[2]
        if word.endswith("&-"):
            os.close(number)
        else:
            os.dup2(os.open(path, os.O_WRONLY), number)
    sys.argv = ["finelu", *(os.fsdecode(word) if isinstance(word, bytes) else str(word) for word in words)]
    os.environ.update(environment)
    sys.stdin, sys.stdout, sys.stderr = (_stream(number, mode) for number, mode in enumerate("rww"))


def _stream(number, mode):
    """As Python makes them: None of a closed file, errors by the kind of stream."""
    try:
        os.fstat(number)
    except OSError:
        return None
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
    errors = "backslashreplace" if number == 2 else "strict" if "PYTHONIOENCODING" in os.environ else "surrogateescape"
    return open(number, mode, encoding=codecs.lookup(encoding).name, errors=errors, closefd=False)


def _run(program):
    """The status with which a Python ends."""
    status = 0
    try:
        program()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):  # None, or closed
            try:
                stream.flush()
            except OSError:
                status = 120
    return status
