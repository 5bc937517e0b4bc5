"""Collective operations that only PETSc's processes need, besides finelu.processes: end all, and name errors."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Generator, Iterable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from petsc4py import PETSc

from finelu.errors import FineluError, ParameterError
from finelu.processes import DEFECT, agreed, agreed_steps

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def mpi(comm: PETSc.Comm) -> Any:
    """The communicator as mpi4py's."""
    try:
        import mpi4py  # noqa: F401
    except ImportError as error:
        raise ImportError("solve_mtx, and schwarz on several processes, need mpi4py: pip install mpi4py.") from error
    return comm.tompi4py()


def or_abort(callback: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`callback`; where it raises on one of several processes all are ended, as the others would wait for this one."""

    @wraps(callback)
    def guarded(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return callback(*args, **kwargs)
        except Exception:
            if PETSc.COMM_WORLD.getSize() > 1:
                _abort()
            raise

    return guarded


def _abort() -> None:
    """Print the traceback if that is possible, and end all processes."""
    try:
        traceback.print_exc()
        PETSc.COMM_WORLD.tompi4py().Abort(DEFECT)
    finally:  # without mpi4py, or without a stderr: a launcher ends all where one dies
        os._exit(DEFECT)


def in_one_line(work: Callable[[], Any]) -> None:
    """work(), with an error of PETSc's as a ParameterError of one line."""
    try:
        work()
    except PETSc.Error as error:
        if isinstance(error.__cause__, FineluError):  # of PC.setFromOptions
            raise ParameterError(str(error.__cause__)) from error
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise ParameterError(f"PETSc: {lines[-1] if lines else error}") from error


class Together(Exception):
    """`error`, which all processes have raised."""

    def __init__(self, error: Exception):
        super().__init__(str(error))
        self.error = error


def together(comm: Any, work: Callable[[], Any]) -> Any:
    """work() on each process; an exception on one of them is raised on all, as `Together`."""
    try:
        return agreed(comm, work, named=True)
    except Exception as error:
        raise Together(error) from error


def together_in_steps(comm: Any, steps: Generator[Iterable[Any], list[Any], Any]) -> Any:
    """The same for a generator, see `agreed_steps`."""
    try:
        return agreed_steps(comm, steps)
    except Exception as error:
        raise Together(error) from error
