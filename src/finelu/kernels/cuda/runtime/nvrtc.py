"""Compilation by NVRTC: of the instance that a call waits for, and meanwhile of those that calls ask for next.

Once an instance for a type of values is compiled in a process, other threads compile the instances of COMMON for this
type, one a core besides that of the caller; NVRTC runs without Python's lock. Each instance is compiled by one thread.
All code is kept in the user's cache folder. With FINELU_BACKGROUND=0 no thread is begun, nor is one in a child that was
forked, where CUDA does not work. At its end a process waits for the instances that are being compiled, each a fraction
of a second, since NVRTC may not be unloaded before.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from contextlib import suppress
from functools import cache

import cupy
from cupy.cuda.compiler import compile_using_nvrtc
from cupy_backends.cuda.libs import nvrtc

from finelu import compiling
from finelu.kernels.cuda.runtime.binaries import Kept, archive
from finelu.kernels.cuda.runtime.instances import VALUES, common
from finelu.kernels.cuda.runtime.sources import OPTIONS, source
from finelu.machine_code import background_is_wanted
from finelu.threads import Task, available_cores

MOST_THREADS = 8  # that compile; 16 took no less time on 16 cores
OF_CUPY = ("-ftz=true",)  # which CuPy adds to the options of a RawModule
TYPE_OF_VALUES = re.compile(rf"<({'|'.join(map(re.escape, VALUES))})[,>]")

_ahead: dict[tuple[int, str, str], Task] = {}  # by device and instance, until a call asks for it
_begun: set[tuple[int, str, str]] = set()  # devices and types that are compiled ahead
_waiting: deque[Task] = deque()
_allowed = True


def machine_code(stem: str, template_id: str) -> tuple[bytes, str]:
    """The code of an instance for the current device and its name there, kept or compiled now."""
    device = cupy.cuda.runtime.getDevice()
    found = kept(stem, device).find(template_id)
    if found is not None:
        return found
    key = device, stem, template_id
    compiling.begin()
    try:
        compiling.begun()
        _compile_ahead(device, template_id)
        task = _ahead.pop(key, None)
        if task is None and (found := kept(stem, device).find(template_id)) is not None:
            return found  # compiled ahead meanwhile
        if task is None or task.cancel():
            return _compiled(*key)
        task.wait()
        return task.result()
    finally:
        compiling.end()


@cache
def kept(stem: str, device: int) -> Kept:
    """The code of the instances of `<stem>.cu` for a device that was compiled before."""
    return Kept(stem, _made_by(device))


@cache
def _made_by(device: int) -> tuple[object, ...]:
    """All that decides the code of a source on a device, CuPy's own options included."""
    capability = cupy.cuda.Device(device).compute_capability
    as_ptx = os.environ.get("CUPY_COMPILE_WITH_PTX", "")
    return cupy.__version__, nvrtc.getVersion(), _build(), OPTIONS, OF_CUPY, capability, as_ptx


@cache
def _build() -> str:
    """The compiler's own name of its build, from the head of the PTX of an empty program."""
    program = nvrtc.createProgram("", "empty.cu", (), ())
    try:
        nvrtc.compileProgram(program, ())
        return "".join(line for line in nvrtc.getPTX(program).decode().splitlines() if line.startswith("//"))
    finally:
        nvrtc.destroyProgram(program)


def _compiled(device: int, stem: str, template_id: str) -> tuple[bytes, str]:
    with cupy.cuda.Device(device):
        code, names = compile_using_nvrtc(
            source(stem), (*OPTIONS, *OF_CUPY), None, "", (template_id,), cache_in_memory=True
        )
    if not kept(stem, device).put(template_id, code, names[template_id]):
        compiling.not_kept()
    return code, names[template_id]


def _compile_ahead(device: int, template_id: str) -> None:
    """Begin with the common instances of the type of values of an instance, once a device and type."""
    type_of_values = TYPE_OF_VALUES.search(template_id)
    if type_of_values is None or not _allowed or not background_is_wanted():
        return
    value, index = type_of_values[1], "long long" if "long long" in template_id else "int"
    if (device, value, index) in _begun:
        return
    _begun.add((device, value, index))
    carried = archive(int(cupy.cuda.Device(device).compute_capability))
    for stem, instance in dict.fromkeys(common(value, index)):
        key = device, stem, instance
        known = key in _ahead or (carried and carried.holds(stem, instance)) or kept(stem, device).find(instance)
        if not known:
            _ahead[key] = task = Task(_keep_ahead, (key,))
            _waiting.append(task)
    with suppress(RuntimeError):  # no further thread can be begun: each call compiles its own
        for _ in range(min(available_cores() - 1, MOST_THREADS, len(_waiting))):
            threading.Thread(target=_work, name="finelu_nvrtc").start()


def _keep_ahead(key: tuple[int, str, str]) -> tuple[bytes, str]:
    """Compile an instance that no call has asked for. Once it is kept, nothing else needs to hold it."""
    found = _compiled(*key)
    if kept(key[1], key[0]).find(key[2]) is not None:
        _ahead.pop(key, None)
    return found


def _work() -> None:
    """Compile what is waiting, while the process goes on."""
    while threading.main_thread().is_alive():
        try:
            task = _waiting.popleft()
        except IndexError:
            return
        task.run()


def _after_fork() -> None:
    global _allowed
    _allowed = False
    _ahead.clear()
    _waiting.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
