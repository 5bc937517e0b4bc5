"""finelu inside PETSc: `PC`, a preconditioner for each subdomain that two options choose, and `solve_mtx`.

    mpiexec -n 4 ./application -pc_type asm -sub_pc_type python -sub_pc_python_type finelu.interop.petsc.PC \
        -sub_finelu_recipe parilut -sub_finelu_steps 5

PETSc imports this module by name in each process and makes one PC for each block. Works with petsc4py 3.18 and later.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import traceback
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from functools import wraps
from time import perf_counter
from typing import Any, get_args, get_type_hints

import numpy as np

from finelu import threads
from finelu.device import require_gpu, sparse_module
from finelu.errors import (
    DeviceError,
    FineluError,
    MatrixError,
    ParameterError,
    StructurallySingular,
    UnstableFactors,
    ZeroPivot,
    meant,
)
from finelu.factors import Factors, TriangularFactors
from finelu.interop.petsc_solve import Outcome, solve_mtx
from finelu.kernels.operands import INT32_LIMIT
from finelu.matrix import DTYPES
from finelu.preconditioners import ILU0, RECIPES
from finelu.preconditioners.recipe import value_of

try:
    from petsc4py import PETSc
except ImportError as error:
    raise ImportError(
        f"finelu.interop.petsc needs petsc4py, the one of your PETSc: see docs/petsc.md ({error})."
    ) from error

__all__ = ["PC", "Outcome", "solve_mtx"]

ANY_DEVICE = re.compile(r"cpu|cuda(:\d+)?")
TRUE, FALSE = ("", "1", "true", "yes", "on"), ("0", "false", "no", "off")
# Prefixes of solvers that belong to another preconditioner.
INNER = re.compile(r"(sub|coarse|mg_levels_\d+|mg_fine|mg_coarse|fieldsplit_\w+)_$")
SMOOTHER = re.compile(r"mg_levels_\d+_(sub_)?$")
NUMBER = re.compile(r"(?<=_)\d+_")  # what PETSc leaves out of a prefix in search of options that hold for all levels
# What launchers call the number of a process on its machine, and how many there are ("4(x2),3" with SLURM).
LOCAL_RANK = (
    "MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "PMIX_LOCAL_RANK",
    "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID", "SLURM_LOCALID",
)  # fmt: skip
LOCAL_SIZE = (
    "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "PALS_LOCAL_SIZE",
    "SLURM_STEP_TASKS_PER_NODE",
)  # fmt: skip
DEFECT = 70  # exit status where the processes cannot go on together: EX_SOFTWARE
ON_HOST, ON_CUDA = 0, 1  # PetscMemType
OF_TYPE = {int: "an integer", float: "a number", bool: "true or false", str: "a name", type(None): "none"}
# PCFailedReason, and what stands for which.
NO_ERROR, STRUCTURE, PIVOT, MEMORY, OTHER = range(5)
FAILED_REASONS = {StructurallySingular: STRUCTURE, ZeroPivot: PIVOT, UnstableFactors: PIVOT, MemoryError: MEMORY}

FACTOR, UPDATE, SOLVE = (PETSc.Log.Event(f"Finelu{name}") for name in ("Factor", "Update", "Solve"))


def _or_abort(callback):
    """`callback`; where it raises on one process of several all are ended, for the others would wait for it."""

    @wraps(callback)
    def guarded(*arguments):
        try:
            return callback(*arguments)
        except Exception:
            if PETSc.COMM_WORLD.getSize() > 1:
                _abort()
            raise

    return guarded


def _abort() -> None:
    """Say what can still be said, and end the processes of all."""
    try:
        traceback.print_exc()
        PETSc.COMM_WORLD.tompi4py().Abort(DEFECT)
    finally:  # without mpi4py, or without a stderr: a launcher ends all where one dies
        os._exit(DEFECT)


class PC:
    """The factors of one block of a matrix as a preconditioner: the context of a PC of PETSc's type "python".

    PETSc makes it without arguments, where `-<prefix>pc_python_type finelu.interop.petsc.PC` says so; a program may
    give its own: `pc.setPythonContext(PC(finelu.ILUT(drop_tol=1e-4)))`. Options, which go before what the program gave:

    -<prefix>finelu_recipe : a name of `finelu.preconditioners.RECIPES`; ilu0 if none is given.
    -<prefix>finelu_<field> : any parameter of that recipe.
    -<prefix>finelu_device : "cpu"; "cuda", the GPU of this process by its number on its machine; "cuda:<number>".

    One that does not exist, or does not parse, is a ParameterError that lists those that exist. A PC on several
    processes works on their diagonal blocks. With new values at the same places it updates its factors, with entries
    elsewhere it factors anew; the block's arrays are read where PETSc keeps them, and its own copy of the pattern is
    what tells, without communication. Where a set-up or a solve fails, the process says why on stderr, and the result
    is NaN, which ends the Krylov method on all of them with PETSc's reason; the next set-up begins anew. Where not even
    NaN can be handed over, or nothing said, all processes end (MPI_Abort).

    Attributes: recipe, device, factors (None where there are none, or the block is empty), error (None, or why the last
    set-up or solve failed), seconds and calls of factor, update and solve.
    """

    def __init__(self, recipe=None, device: str = "cpu"):
        self.recipe = ILU0() if recipe is None else recipe
        self.device = _checked_device("device", device)
        self._given = recipe, device
        self.seconds = {"factor": 0.0, "update": 0.0, "solve": 0.0}
        self.calls = {"factor": 0, "update": 0, "solve": 0}
        self.factors: Factors | None = None
        self.error: str | None = None
        self._pattern: tuple[Any, Any] | None = None  # indptr, indices of what was factored
        self._places: tuple[Any, Any] | None = None  # the same on the device of the factors
        self._work: Any = None  # what the first of two triangular solves gives
        self._gpu: Any = None
        self._number: int | None = None  # of that GPU
        self.reset(None)

    # What PETSc calls -------------------------------------------------------------------------------------------------

    def setFromOptions(self, pc) -> None:
        recipe, device = _from_options(pc.getOptionsPrefix() or "", *self._given)
        self._report(pc, NO_ERROR)  # of factors that the old options gave
        if (recipe, device) != (self.recipe, self.device):
            self.recipe, self.device = recipe, device
            self.reset(pc)  # PETSc does not call setUp where the matrix is the same

    @_or_abort
    def setUp(self, pc) -> None:
        """Factors of the matrix as it is now. Raises nothing: on the other processes nobody would know of it."""
        begin = perf_counter()
        self.error, self._reason = None, NO_ERROR
        # PETSc keeps the failure of any process on all of them. Where it stayed on this one alone, its solver would end
        # at once, and not those of the others.
        self._report(pc, NO_ERROR)
        try:
            self._set_up(pc, begin)
        except Exception as error:
            self._fail(pc, error)
        self._ready = True

    def apply(self, pc, x, y) -> None:
        self._apply(pc, x, y, "N")

    def applyTranspose(self, pc, x, y) -> None:
        self._apply(pc, x, y, "T")

    def matApply(self, pc, X, Y) -> None:
        self._apply(pc, X, Y, "N")

    def matApplyTranspose(self, pc, X, Y) -> None:
        self._apply(pc, X, Y, "T")

    def reset(self, pc) -> None:
        self.factors = self.error = self._pattern = self._places = self._gpu = None
        self._work = self._number = None
        self._ready = False  # whether setUp has run
        self._reason = NO_ERROR

    @_or_abort
    def view(self, pc, viewer) -> None:
        if viewer.getType() == "ascii":
            for line in self._described():
                viewer.printfASCII(f"    {line}\n")

    # Set-up -----------------------------------------------------------------------------------------------------------

    def _set_up(self, pc, begin: float) -> None:
        _share_cores()
        self._gpu = None if self.device == "cpu" else require_gpu()
        P = pc.getOperators()[1]
        if P.getComm().getSize() > 1:
            P = P.getDiagonalBlock()
        rows, columns = P.getSize()
        if rows != columns:
            raise MatrixError(f"the block of this process has shape {(rows, columns)}; a square one is needed.")
        if np.dtype(PETSc.ScalarType).name not in DTYPES:
            raise MatrixError(
                f"this PETSc has scalars of {np.dtype(PETSc.ScalarType)}; finelu has {', '.join(DTYPES)}."
            )
        if rows == 0:
            self.factors = self._pattern = self._places = None
            return
        if self._gpu is not None:
            if self._number is None:
                self._number = self._chosen(P)
            if _own_stream():  # the values may be on their way
                with self._current():
                    self._gpu.cuda.runtime.deviceSynchronize()
        if not P.getType().startswith("seqaij"):
            P = P.convert("seqaij", PETSc.Mat())
        indptr, indices, data = _csr(P, self._gpu)
        same = self._pattern is not None and all(map(np.array_equal, self._pattern, (indptr, indices)))
        event, what = (UPDATE, "update") if same and self.factors is not None else (FACTOR, "factor")
        event.begin()
        try:
            with self._current():
                if what == "update":
                    self.factors.update(self._matrix(data))  # type: ignore[union-attr]
                else:
                    self.factors = None  # its memory is free for the new ones
                    self._keep_pattern(indptr, indices)
                    self.factors = self._effective(P).factor(self._matrix(data, keep=True))
                    self._work = None
                if self._gpu is not None:
                    self._gpu.cuda.get_current_stream().synchronize()
        finally:
            event.end()
        self.seconds[what] += perf_counter() - begin
        self.calls[what] += 1

    def _keep_pattern(self, indptr, indices) -> None:
        index = np.int32 if max(indptr.size, indices.size) <= INT32_LIMIT else np.int64
        self._pattern = self._places = indptr.astype(index), indices.astype(index)
        if self._gpu is not None:
            self._places = self._gpu.asarray(self._pattern[0]), self._gpu.asarray(self._pattern[1])

    def _matrix(self, data, keep: bool = False):
        """The block on the device of the factors; `keep`: with values of its own, for factors keep them."""
        assert self._places is not None
        indptr, indices = self._places
        xp = np if self._gpu is None else self._gpu
        data = xp.array(data) if keep else xp.asarray(data)
        n = indptr.size - 1
        return sparse_module(data).csr_matrix((data, indices, indptr), shape=(n, n))

    def _effective(self, P):
        """The recipe, with PETSc's block size where it wants one and none was given."""
        if getattr(self.recipe, "block_size", 1) is None and P.getBlockSize() > 1:
            return replace(self.recipe, block_size=P.getBlockSize())
        return self.recipe

    # Solve ------------------------------------------------------------------------------------------------------------

    @_or_abort
    def _apply(self, pc, x, y, trans: str) -> None:
        """y = M^-1 x for vectors, or for dense matrices column by column."""
        if not self._ready:  # options set once more make a new context, for which PETSc calls no setUp
            self.setUp(pc)
        if self.error is None:
            begin = perf_counter()
            SOLVE.begin()
            try:
                if self.factors is not None:
                    (self._solve if self._gpu is None else self._solve_on_gpu)(x, y, trans)
            except Exception as error:
                self._fail(pc, error)
            finally:
                SOLVE.end()
            self.calls["solve"] += 1
            self.seconds["solve"] += perf_counter() - begin
        if self.error is not None:
            self._report(pc, self._reason)
            _writable(y)[...] = np.nan

    def _solve(self, x, y, trans: str) -> None:
        b, out = _readable(x), _writable(y)  # PETSc has its memory back when these go, which is here, on this thread
        if self._alone(trans):
            self._into(b, out, trans)
        else:
            self._into(_borrowed(b), _borrowed(out), trans)

    def _alone(self, trans: str) -> bool:
        """Whether the solves stay on this thread."""
        F = self.factors
        if threads.get_num_threads() == 1:
            return True
        if not isinstance(F, TriangularFactors):
            return False
        return all(getattr(solver._plan, "threads", 2) == 1 for solver in F.solvers(trans))

    def _solve_on_gpu(self, x, y, trans: str) -> None:
        """By a copy each way, or where PETSc has the vectors on the GPU by none."""
        cupy = self._gpu
        with self._current():
            if not (_on_gpu(x) and _on_gpu(y)):
                host = _writable(y)
                b = cupy.asarray(_readable(x))
                found = cupy.empty_like(b)
                self._into(b, found, trans)
                _to_host(found, host)
                return
            apart = _own_stream()
            if apart:
                cupy.cuda.runtime.deviceSynchronize()
            with _handed(cupy, x, "r") as b, _handed(cupy, y, "w") as out:
                self._into(b, out, trans)
            if apart:
                cupy.cuda.runtime.deviceSynchronize()

    def _into(self, b, out, trans: str) -> None:
        """out = what `factors.solve` gives; of two triangles straight into its memory."""
        F = self.factors
        assert F is not None
        if (
            isinstance(F, TriangularFactors)
            and F.only_solves(trans)
            and F.dtype == b.dtype
            and b.ndim == 1
        ):
            first, second = F.solvers(trans)
            if self._work is None:
                self._work = (np if self._gpu is None else self._gpu).empty_like(b)
            second.solve(first.solve(b, self._work), out)
        else:
            out[...] = F.solve(b, trans)

    def _chosen(self, P) -> int:
        """The number of the GPU: where PETSc has the block, else as given, or that of this process on its machine.

        PETSc counts processes over all machines, and this module those of each: they need not come to the same.
        """
        cupy = self._gpu
        there = _number_of(cupy, P)
        given = self.device.partition(":")[2]
        if given and there is not None and int(given) != there:
            raise DeviceError(f"device {self.device} was given, but PETSc has this block on cuda:{there}; give cuda.")
        count = cupy.cuda.runtime.getDeviceCount()
        if given and int(given) >= count:
            raise DeviceError(f"device {self.device} was given, and the last GPU here is cuda:{count - 1}; give cuda.")
        if given:
            return int(given)
        return _local_rank() % count if there is None else there

    def _current(self):
        """The GPU of the factors, if any, made the current one, with the default stream, which is PETSc's, too."""
        return nullcontext() if self._gpu is None else self._on_its_gpu()

    @contextmanager
    def _on_its_gpu(self):
        with self._gpu.cuda.Device(self._number), self._gpu.cuda.Stream.null:
            yield

    # Failure ----------------------------------------------------------------------------------------------------------

    def _fail(self, pc, error: Exception) -> None:
        """Remember why, and tell it; the factors are dropped, so that the next set-up begins anew."""
        self.factors = self._pattern = self._places = None
        self.error = " ".join((str(error) if isinstance(error, FineluError) else repr(error)).split())
        self._reason = next((reason for kind, reason in FAILED_REASONS.items() if isinstance(error, kind)), OTHER)
        if os.environ.get("FINELU_DEBUG"):
            traceback.print_exception(error)
        where = f"[{PETSc.COMM_WORLD.getRank()}] finelu, -{pc.getOptionsPrefix() or ''}pc, rows of this block from 0"
        print(f"{where}: {self.error}", file=sys.stderr, flush=True)

    def _report(self, pc, reason: int) -> None:
        """PETSc's own reason, where the NaN of the result need not tell of a failure alone, or that there is none.

        The PC of a solver inside another preconditioner keeps to the NaN: PETSc never takes back the failure that the
        outer one would note. So does that of PETSc 3.18, which does not take back its own. Multigrid's smoother
        needs the reason all the same: Chebyshev's method estimates eigenvalues from the NaN, finds infinite ones, and
        weighs what the smoother gives by 1 / Inf = 0, with which PETSc does not multiply: nothing would be seen of it.
        """
        prefix = pc.getOptionsPrefix() or ""
        if _in_chebyshev(prefix) or (hasattr(pc, "setFailedReason") and not INNER.search(prefix)):
            _call("PCSetFailedReason", ctypes.c_void_p(pc.handle), ctypes.c_int(reason))

    # View -------------------------------------------------------------------------------------------------------------

    def _described(self):
        """What `-ksp_view` shows."""
        yield f"{self.recipe!r} on {self.device if self._number is None else f'cuda:{self._number}'}"
        if self.error is not None:
            yield f"failed: {self.error}"
            return
        F = self.factors
        if F is None:
            yield "an empty block" if self._ready else "not set up"
            return
        assert self._pattern is not None
        nnz = self._pattern[1].size
        yield (
            f"{F.shape[0]} rows, {nnz} entries; factors: {F.nnz} entries, fill {F.nnz / nnz:.3g}, {F.dtype}, "
            f"{_bytes(F) / 2**20:.3g} MiB with their plans"
        )
        if isinstance(levels := F.report.get("levels"), list):
            yield f"{len(levels)} levels, of {', '.join(str(level['n']) for level in levels)} rows"
        for name, facts in F.report.get("triangular", {}).items():
            yield f"{name} triangle: {facts['method']}, {facts['levels'] or 'unknown'} levels"
        for name in ("refused", "warning"):
            if F.report.get(name):
                yield f"{name}: {F.report[name]}"
        done = (f"{self.calls[what]} {what}, {self.seconds[what]:.3g} s" for what in self.calls)
        yield f"{'; '.join(done)} (of this process)"


# Options --------------------------------------------------------------------------------------------------------------


def _from_options(prefix: str, recipe, device: str):
    """The recipe and the device that `-<prefix>finelu_*` ask for, beside what the program gave."""
    given: dict[str, str] = {}
    named: dict[str, str] = {}  # as the user calls them
    for place in reversed(list(_prefixes(prefix))):
        options = PETSc.Options(f"{place}finelu_")
        for key in options.getAll():
            given[key] = options.getString(key, "")  # asked for: none is left over
            named[key] = f"-{place}finelu_{key}"
    device = _checked_device(named.get("device", "device"), given.pop("device", device))
    name = given.pop("recipe", None)
    if name is not None and name not in RECIPES:
        raise ParameterError(
            f"{named['recipe']} {name}: no such recipe; one of {', '.join(RECIPES)} is needed." + meant(name, RECIPES)
        )
    if name is None:
        recipe = ILU0() if recipe is None else recipe
        name = next((key for key, kind in RECIPES.items() if type(recipe) is kind), type(recipe).__name__)
    elif type(recipe) is not RECIPES[name]:
        recipe = RECIPES[name]()
    hints = get_type_hints(type(recipe))
    offered = [field.name for field in fields(recipe)]
    for key in given:
        if key not in offered:
            known = ", ".join(f"-{prefix}finelu_{key}" for key in ("recipe", "device", *offered))
            raise ParameterError(f"{named[key]}: no such option with recipe {name}; there are {known}.")
    values = {key: _converted(named[key], text, hints[key]) for key, text in given.items()}
    return replace(recipe, **values), device


def _in_chebyshev(prefix: str) -> bool:
    """Whether the PC of this prefix smooths by Chebyshev's method, multigrid's default, as far as options tell."""
    smoother = SMOOTHER.search(prefix) is not None
    return smoother and PETSc.Options(prefix.removesuffix("sub_")).getString("ksp_type", "chebyshev") == "chebyshev"


def _prefixes(prefix: str):
    """Where PETSc looks for an option, in its order: "mg_levels_1_sub_", then "mg_levels_sub_"."""
    yield prefix
    for number in NUMBER.finditer(prefix):
        yield from _prefixes(prefix[: number.start()] + prefix[number.end() :])


def _converted(option: str, text: str, hint) -> Any:
    kinds = get_args(hint) or (hint,)
    try:
        if not text and bool not in kinds:
            raise ValueError(text)
        return value_of(text, hint, TRUE, FALSE)
    except ValueError:
        names = (OF_TYPE[kind] for kind in kinds if kind in OF_TYPE)
        raise ParameterError(f"{option} {text}: {' or '.join(names)} is needed.") from None


def _checked_device(name: str, device: str) -> str:
    if not isinstance(device, str) or not ANY_DEVICE.fullmatch(device):
        raise ParameterError(f"{name} {device}: cpu, cuda or cuda:<number> is needed.")
    return device


# Processes of one machine ---------------------------------------------------------------------------------------------


def _from_launcher(names) -> int | None:
    found = (re.match(r"\d+", os.environ.get(name, "")) for name in names)
    return next((int(number[0]) for number in found if number), None)


def _local_rank() -> int:
    """The number of this process on its machine, by the launcher: no process is asked, for some may not come."""
    rank = _from_launcher(LOCAL_RANK)
    return PETSc.COMM_WORLD.getRank() if rank is None else rank


def _share_cores() -> None:
    """Let the threads of the processes of a machine be no more than its cores, where nobody has set their number."""
    if threads._wanted is not None or os.environ.get("FINELU_NUM_THREADS"):
        return
    cores = threads.available_cores()
    if cores == os.cpu_count():  # bound to none, so that all share them
        size = _from_launcher(LOCAL_SIZE) or PETSc.COMM_WORLD.getSize()
        threads.set_num_threads(max(cores // size, 1))


# Memory of PETSc ------------------------------------------------------------------------------------------------------


def _csr(P, cupy):
    """indptr, indices, data of a seqaij matrix, as views where PETSc has them: the values on the GPU where both are."""
    pointers = i, j, a, kind = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_int()
    _call("MatSeqAIJGetCSRAndMemType", ctypes.c_void_p(P.handle), *map(ctypes.byref, pointers))
    n = P.getSize()[0]
    if kind.value == ON_HOST:
        indptr = _view(i.value, n + 1, PETSc.IntType)
        nnz = int(indptr[-1])
        return indptr, _view(j.value, nnz, PETSc.IntType), _view(a.value, nnz, PETSc.ScalarType)
    if kind.value != ON_CUDA or cupy is None:
        return P.getValuesCSR()
    indptr, indices = P.getRowIJ()  # the pattern is on the host in any case
    return indptr, indices, _device_view(cupy, a.value, int(indptr[-1]), P)


def _call(name: str, *arguments) -> None:
    """A function of the libpetsc that petsc4py has loaded, which petsc4py itself does not offer."""
    status = getattr(ctypes.CDLL(PETSc.__file__), name)(*arguments)
    if status:
        raise PETSc.Error(status)


def _view(address: int | None, count: int, dtype):
    dtype = np.dtype(dtype)
    if count == 0:
        return np.empty(0, dtype)
    memory = (ctypes.c_char * (count * dtype.itemsize)).from_address(address)
    return np.frombuffer(memory, dtype, count)  # not read-only: for such arrays kernels would be compiled once more


def _device_view(cupy, address: int, count: int, owner):
    dtype = np.dtype(PETSc.ScalarType)
    memory = cupy.cuda.UnownedMemory(address, count * dtype.itemsize, owner)
    return cupy.ndarray(count, dtype, cupy.cuda.MemoryPointer(memory, 0))


def _readable(v):
    """The numbers of a vector, or of a dense matrix; PETSc locks those that a preconditioner is applied to."""
    return v.getDenseArray(readonly=True) if isinstance(v, PETSc.Mat) else v.getArray(readonly=True)


def _writable(v):
    return v.getDenseArray() if isinstance(v, PETSc.Mat) else v.getArray()


class _Borrowed:
    """The memory of an array, but no reference to it.

    A thread of a kernel may keep its arguments for a moment after the kernel has returned. With PETSc's own array it
    would be the one that hands the memory back to PETSc, which takes that from one thread only.
    """

    def __init__(self, array):
        interface = array.__array_interface__
        # Not read-only: for such arrays kernels would be compiled once more.
        self.__array_interface__ = interface | {"data": (interface["data"][0], False)}


def _borrowed(array):
    return np.asarray(_Borrowed(array))


def _to_host(found, host) -> None:
    """host = found, an array of the GPU; straight into its memory where that can be."""
    if found.dtype == host.dtype and found.flags.c_contiguous and host.flags.c_contiguous:
        found.get(out=host)
    else:
        host[...] = found.get()


def _on_gpu(v) -> bool:
    return isinstance(v, PETSc.Vec) and "cuda" in v.getType() and not v.boundToCPU()


@contextmanager
def _handed(cupy, v, mode: str):
    """The memory of a CUDA vector as a CuPy array."""
    handle = v.getCUDAHandle(mode)
    try:
        yield _device_view(cupy, handle, v.getLocalSize(), v)
    finally:
        v.restoreCUDAHandle(handle, mode)


def _own_stream() -> bool:
    """Whether PETSc was told to leave CUDA's default stream, which orders its work and ours."""
    return "nonblocking" in PETSc.Options().getString("root_device_context_stream_type", "default")


def _number_of(cupy, P) -> int | None:
    """The number of the GPU on which PETSc has the vectors of a matrix; None where they are on the host."""
    v = P.createVecRight()
    if not _on_gpu(v):
        return None
    with _handed(cupy, v, "w") as memory:
        return int(cupy.cuda.runtime.pointerGetAttributes(memory.data.ptr).device)


def _bytes(thing, known: set[int] | None = None) -> int:
    """Memory of the arrays that belong to factors, each counted once."""
    known = set() if known is None else known
    if id(thing) in known:
        return 0
    known.add(id(thing))
    if hasattr(thing, "nbytes") and hasattr(thing, "dtype"):
        base = getattr(thing, "base", None)
        return _bytes(base, known) if hasattr(base, "nbytes") else int(thing.nbytes)
    parts: Any
    if isinstance(thing, dict):
        parts = thing.values()
    elif isinstance(thing, list | tuple):
        parts = thing
    elif isinstance(thing, Factors) or type(thing).__module__.startswith("finelu."):
        slots = (getattr(thing, name, None) for name in getattr(type(thing), "__slots__", ()))
        parts = (*vars(thing).values(), *slots) if hasattr(thing, "__dict__") else tuple(slots)
    else:
        return 0
    return sum(_bytes(part, known) for part in parts)
