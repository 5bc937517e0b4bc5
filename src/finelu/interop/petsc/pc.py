"""`PC`, the context of a PETSc preconditioner of type "python": the factors of one block of a matrix."""

from __future__ import annotations

import ctypes
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
from petsc4py import PETSc

from finelu import threads
from finelu.arithmetic import ignore_fp_errors
from finelu.device import namespace, on_gpu, require_gpu, sparse_module
from finelu.errors import (
    FineluError,
    MatrixError,
    ParameterError,
    StructurallySingular,
    UnstableFactors,
    ZeroPivot,
)
from finelu.factors import Factors, TriangularFactors
from finelu.interop.petsc.device import chosen_gpu, has_own_stream, share_cores
from finelu.interop.petsc.memory import (
    borrowed,
    bytes_of,
    call_petsc,
    copy_to_host,
    csr_arrays,
    cuda_array,
    is_on_gpu,
    readable,
    writable,
)
from finelu.interop.petsc.multiblock import of as products_of
from finelu.interop.petsc.options import checked_device, from_options, in_chebyshev, is_inner
from finelu.interop.petsc.processes import Together, mpi, or_abort, together
from finelu.interop.petsc.schwarz import SharedSchwarz
from finelu.kernels.operands import INT32_LIMIT
from finelu.matrix import DTYPES
from finelu.matrix.multiblock import MultiblockMatrix
from finelu.preconditioners import ILU0, BlockILU0, Schwarz

# PCFailedReason, and the exceptions that stand for each.
NO_ERROR, STRUCTURE, PIVOT, MEMORY, OTHER = range(5)
FAILED_REASONS = {StructurallySingular: STRUCTURE, ZeroPivot: PIVOT, UnstableFactors: PIVOT, MemoryError: MEMORY}

FACTOR, UPDATE, SOLVE = (PETSc.Log.Event(f"Finelu{name}") for name in ("Factor", "Update", "Solve"))


class PC:
    """The factors of one block of a matrix as a preconditioner: the context of a PC of PETSc's type "python".

    PETSc makes it without arguments, where `-<prefix>pc_python_type finelu.interop.petsc.PC` says so; a program may
    give its own: `pc.setPythonContext(PC(finelu.ILUT(drop_tol=1e-4)))`. Options take precedence over what the program
    gave:

    -<prefix>finelu_recipe : a name of `finelu.preconditioners.RECIPES`; ilu0 if none is given.
    -<prefix>finelu_<field> : any parameter of that recipe.
    -<prefix>finelu_device : "cpu"; "cuda", the GPU of this process by its number on its machine; "cuda:<number>".

    An option that does not exist, or does not parse, is a ParameterError that lists those that exist. A PC on several
    processes works on their diagonal blocks, which schwarz couples by its coarse space, if it has one, see
    `SharedSchwarz`; for a Mat of `as_mat` it works on each block of the grid, where A lives, by
    block_ilu0 instead of ilu0. With new values at the same places it updates its factors, with entries
    elsewhere it factors anew; it reads the block's arrays where PETSc keeps them, and compares their pattern with its
    own copy, without communication, except for that of schwarz. Where a set-up or a solve fails, the process says why
    on stderr, and the result is NaN, which ends the Krylov method on all of them with PETSc's reason; the next set-up
    begins anew. Where not even NaN can be handed over, or no message printed, all processes end (MPI_Abort).

    Attributes: recipe, device, factors (None if there are none, or the block is empty), shared (the SharedSchwarz that
    couples the blocks instead, or None), error (None, or why the last set-up or solve failed), seconds and calls of
    factor, update and solve.
    """

    def __init__(self, recipe: Any = None, device: str = "cpu"):
        self.recipe: Any = ILU0() if recipe is None else recipe
        self.device = checked_device("device", device)
        self._given = recipe, device
        self.seconds = {"factor": 0.0, "update": 0.0, "solve": 0.0}
        self.calls = {"factor": 0, "update": 0, "solve": 0}
        self.factors: Factors | None = None
        self.shared: SharedSchwarz | None = None
        self.error: str | None = None
        self._pattern: tuple[Any, Any] | None = None  # indptr, indices of the block that was factored
        self._places: tuple[Any, Any] | None = None  # the same on the device of the factors
        self._work: Any = None  # the result of the first of two triangular solves
        self._gpu: Any = None  # cupy, where the factors are on a GPU
        self._number: int | None = None  # of that GPU
        self.reset(None)

    # Called by PETSc --------------------------------------------------------------------------------------------------

    def setFromOptions(self, pc: PETSc.PC) -> None:
        recipe, device = from_options(pc.getOptionsPrefix() or "", *self._given)
        self._report(pc, NO_ERROR)  # of factors that the old options gave
        if (recipe, device) != (self.recipe, self.device):
            self.recipe, self.device = recipe, device
            self.reset(pc)  # PETSc does not call setUp where the matrix is the same

    @or_abort
    def setUp(self, pc: PETSc.PC) -> None:
        """Factors of the matrix as it is now. Raises nothing: the other processes would not know of it."""
        begin = perf_counter()
        self.error, self._reason = None, NO_ERROR
        # PETSc spreads the failure of one process to all of them. If it stayed on this one alone, its solver would end
        # at once while the solvers of the others went on.
        self._report(pc, NO_ERROR)
        coupled = self._couples(pc)
        if coupled != (self.shared is not None):
            self._drop()
        try:
            (self._set_up_coupled if coupled else self._set_up)(pc, begin)
        except Together as error:
            self._fail(pc, error.error)
        except Exception as error:
            if coupled:
                raise  # the other processes do not know of it
            self._fail(pc, error)
        self._ready = True

    def apply(self, pc: PETSc.PC, x: PETSc.Vec, y: PETSc.Vec) -> None:
        self._apply(pc, x, y, "N")

    def applyTranspose(self, pc: PETSc.PC, x: PETSc.Vec, y: PETSc.Vec) -> None:
        self._apply(pc, x, y, "T")

    def matApply(self, pc: PETSc.PC, X: PETSc.Mat, Y: PETSc.Mat) -> None:
        self._apply(pc, X, Y, "N")

    def matApplyTranspose(self, pc: PETSc.PC, X: PETSc.Mat, Y: PETSc.Mat) -> None:
        self._apply(pc, X, Y, "T")

    def reset(self, pc: PETSc.PC | None) -> None:
        self._drop()
        self.error = self._gpu = self._work = self._number = None
        self._ready = False  # whether setUp has run
        self._reason = NO_ERROR

    @or_abort
    def view(self, pc: PETSc.PC, viewer: PETSc.Viewer) -> None:
        if viewer.getType() == "ascii":
            for line in self._described():
                viewer.printfASCII(f"    {line}\n")

    # Set-up -----------------------------------------------------------------------------------------------------------

    def _drop(self) -> None:
        """Drop the factors, so that the next set-up begins anew."""
        if self.shared is not None:
            self.shared.destroy()
        self.factors = self.shared = self._pattern = self._places = None

    def _couples(self, pc: PETSc.PC) -> bool:
        """Whether a coarse space couples the diagonal blocks of several processes."""
        P = pc.getOperators()[1]
        several = P.getComm().getSize() > 1 and products_of(P) is None
        return several and isinstance(self.recipe, Schwarz) and self.recipe.coarse is not None

    def _set_up_coupled(self, pc: PETSc.PC, begin: float) -> None:
        """Factors of all diagonal blocks, and the coarse space; all processes come here together."""
        share_cores()
        self._gpu = None
        P = pc.getOperators()[1]
        try:
            comm = mpi(P.getComm())
        except ImportError as error:  # on all processes alike
            raise Together(error) from error
        dtype = np.dtype(PETSc.ScalarType).name

        def check() -> None:
            if self.device != "cpu":
                raise ParameterError(
                    f"{self.recipe!r} on several processes has its coarse space on the CPU; take device cpu, or "
                    "coarse=None."
                )
            if dtype not in DTYPES:
                raise MatrixError(f"this PETSc has scalars of {dtype}; finelu has {', '.join(DTYPES)}.")

        together(comm, check)
        A = P if P.getType().startswith("mpiaij") else P.convert("mpiaij", PETSc.Mat())
        update = self.shared is not None
        self.shared = self.shared or SharedSchwarz(comm, self.recipe)
        with self._timed(update, begin):
            self.shared.update(A, near_nullspace(P))

    def _set_up(self, pc: PETSc.PC, begin: float) -> None:
        share_cores()
        self._gpu = None if self.device == "cpu" else require_gpu()
        P = pc.getOperators()[1]
        if (products := products_of(P)) is not None:
            self._set_up_blocks(products.A, begin)
            return
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
                self._number = chosen_gpu(self._gpu, self.device, P)
            if has_own_stream():  # where PETSc may still be writing the values
                with self._current():
                    self._gpu.cuda.runtime.deviceSynchronize()
        if not P.getType().startswith("seqaij"):
            P = P.convert("seqaij", PETSc.Mat())
        indptr, indices, data = csr_arrays(P, self._gpu)
        same = self._pattern is not None and all(map(np.array_equal, self._pattern, (indptr, indices)))
        update = same and self.factors is not None
        with self._timed(update, begin):
            if update:
                assert self.factors is not None
                self.factors.update(self._matrix(data))
            else:
                self.factors = None  # its memory is free for the new ones
                self._keep_pattern(indptr, indices)
                self.factors = self._effective(P).factor(self._matrix(data, keep=True))
                self._work = None

    def _set_up_blocks(self, A: MultiblockMatrix, begin: float) -> None:
        """Factors of each block of a grid; all processes come here together."""
        self._gpu = namespace(A.data) if on_gpu(A.data) else None
        self._number = A.data.device.id if on_gpu(A.data) else None
        self._pattern = self._places = self._work = None  # for a matrix that is not of a grid
        old = self.factors.pattern if self.factors is not None else None
        update = isinstance(old, MultiblockMatrix) and old.same_grid(A)
        with self._timed(update, begin):
            if update:
                assert self.factors is not None
                self.factors.update(A)
            else:
                self.factors = None
                recipe = BlockILU0() if self.recipe == ILU0() else self.recipe
                self.factors = recipe.factor(A)

    @contextmanager
    def _timed(self, update: bool, begin: float) -> Iterator[None]:
        """A context whose work on the device of the factors, which is waited for, counts as an update or a
        factorization."""
        event, what = (UPDATE, "update") if update else (FACTOR, "factor")
        event.begin()
        try:
            with self._current():
                yield
                if self._gpu is not None:
                    self._gpu.cuda.get_current_stream().synchronize()
        finally:
            event.end()
        self.seconds[what] += perf_counter() - begin
        self.calls[what] += 1

    def _keep_pattern(self, indptr: Any, indices: Any) -> None:
        index = np.int32 if max(indptr.size, indices.size) <= INT32_LIMIT else np.int64
        self._pattern = self._places = indptr.astype(index), indices.astype(index)
        if self._gpu is not None:
            self._places = self._gpu.asarray(self._pattern[0]), self._gpu.asarray(self._pattern[1])

    def _matrix(self, data: Any, keep: bool = False) -> Any:
        """The block on the device of the factors. keep : with a copy of the values, as factors may keep them."""
        assert self._places is not None
        indptr, indices = self._places
        xp = np if self._gpu is None else self._gpu
        data = xp.array(data) if keep else xp.asarray(data)
        n = indptr.size - 1
        return sparse_module(data).csr_matrix((data, indices, indptr), shape=(n, n))

    def _effective(self, P: PETSc.Mat) -> Any:
        """The recipe, with PETSc's block size, or the near null space of the matrix, where it wants one and none was
        given."""
        if getattr(self.recipe, "near_nullspace", "") is None and getattr(self.recipe, "coarse", None) is not None:
            vectors = near_nullspace(P)
            if vectors is not None:
                return replace(self.recipe, near_nullspace=vectors)
        if getattr(self.recipe, "block_size", 1) is None and P.getBlockSize() > 1:
            return replace(self.recipe, block_size=P.getBlockSize())
        return self.recipe

    # Solve ------------------------------------------------------------------------------------------------------------

    @or_abort
    def _apply(self, pc: PETSc.PC, x: PETSc.Vec | PETSc.Mat, y: PETSc.Vec | PETSc.Mat, trans: str) -> None:
        """y = M^-1 x for vectors, or for dense matrices column by column."""
        if not self._ready:  # options that are set again make a new context, for which PETSc does not call setUp
            self.setUp(pc)
        if self.shared is not None:
            with self._timed_solve():
                self._solve_coupled(pc, self.shared, x, y, trans)
        elif self.error is None:
            with self._timed_solve():
                self._solve_alone(pc, x, y, trans)
        if self.error is not None:
            self._report(pc, self._reason)
            writable(y)[...] = np.nan

    @contextmanager
    def _timed_solve(self) -> Iterator[None]:
        begin = perf_counter()
        SOLVE.begin()
        try:
            yield
        finally:
            SOLVE.end()
        self.calls["solve"] += 1
        self.seconds["solve"] += perf_counter() - begin

    def _solve_alone(self, pc: PETSc.PC, x: PETSc.Vec | PETSc.Mat, y: PETSc.Vec | PETSc.Mat, trans: str) -> None:
        try:
            if self.factors is not None:
                (self._solve if self._gpu is None else self._solve_on_gpu)(x, y, trans)
        except Exception as error:
            self._fail(pc, error)

    def _solve_coupled(
        self, pc: PETSc.PC, shared: SharedSchwarz, x: PETSc.Vec | PETSc.Mat, y: PETSc.Vec | PETSc.Mat, trans: str
    ) -> None:
        """All processes come here together, also those that have failed before: the others would wait for them."""
        b = np.array(readable(x))  # not PETSc's own memory, see `borrowed`
        if b.ndim == 1:
            writable(y)[...] = shared.solve(b, trans)
        else:
            columns = [shared.solve(np.ascontiguousarray(column), trans) for column in b.T]
            writable(y)[...] = np.column_stack(columns)
        if shared.failures and self.error is None:
            self._tell(pc, shared.failures[0])

    def _solve(self, x: PETSc.Vec | PETSc.Mat, y: PETSc.Vec | PETSc.Mat, trans: str) -> None:
        b, out = readable(x), writable(y)  # PETSc gets its memory back when these are deleted: here, on this thread
        if self._on_one_thread(trans):
            self._into(b, out, trans)
        else:
            self._into(borrowed(b), borrowed(out), trans)

    def _on_one_thread(self, trans: str) -> bool:
        """Whether the solves stay on this thread."""
        F = self.factors
        if threads.get_num_threads() == 1:
            return True
        if not isinstance(F, TriangularFactors):
            return False
        return all(getattr(solver.plan, "threads", 2) == 1 for solver in F.solvers(trans))

    def _solve_on_gpu(self, x: PETSc.Vec | PETSc.Mat, y: PETSc.Vec | PETSc.Mat, trans: str) -> None:
        """On vectors that PETSc has on the GPU in place; on others by a copy there and one back."""
        cupy = self._gpu
        with self._current():
            if not (is_on_gpu(x) and is_on_gpu(y)):
                host = writable(y)
                b = cupy.asarray(readable(x))
                found = cupy.empty_like(b)
                self._into(b, found, trans)
                copy_to_host(found, host)
                return
            apart = has_own_stream()
            if apart:
                cupy.cuda.runtime.deviceSynchronize()
            with cuda_array(cupy, x, "r") as b, cuda_array(cupy, y, "w") as out:
                self._into(b, out, trans)
            if apart:
                cupy.cuda.runtime.deviceSynchronize()

    @ignore_fp_errors
    def _into(self, b: Any, out: Any, trans: str) -> None:
        """out = `factors.solved(b, trans)`; where that is two triangular solves, without a further array. PETSc's
        methods see a NaN by themselves."""
        F = self.factors
        assert F is not None
        if isinstance(F, TriangularFactors) and F.only_solves(trans) and F.dtype == b.dtype and b.ndim == 1:
            first, second = F.solvers(trans)
            if self._work is None:
                self._work = (np if self._gpu is None else self._gpu).empty_like(b)
            second.solve(first.solve(b, self._work), out)
        else:
            out[...] = F.solved(b, trans)

    def _current(self) -> AbstractContextManager[None]:
        """Makes the GPU of the factors, if any, the current one, with the default stream, which is PETSc's, too."""
        return nullcontext() if self._gpu is None else self._on_its_gpu()

    @contextmanager
    def _on_its_gpu(self) -> Iterator[None]:
        with self._gpu.cuda.Device(self._number), self._gpu.cuda.Stream.null:
            yield

    # Failure ----------------------------------------------------------------------------------------------------------

    def _fail(self, pc: PETSc.PC, error: Exception) -> None:
        """Keep and print the reason; the factors are dropped, so that the next set-up begins anew."""
        self._drop()
        self._tell(pc, error)

    def _tell(self, pc: PETSc.PC, error: Exception) -> None:
        """Keep and print the reason of a failure."""
        self.error = " ".join((str(error) if isinstance(error, FineluError) else repr(error)).split())
        self._reason = next((reason for kind, reason in FAILED_REASONS.items() if isinstance(error, kind)), OTHER)
        if os.environ.get("FINELU_DEBUG"):
            traceback.print_exception(error)
        where = f"[{PETSc.COMM_WORLD.getRank()}] finelu, -{pc.getOptionsPrefix() or ''}pc, rows of this block from 0"
        print(f"{where}: {self.error}", file=sys.stderr, flush=True)

    def _report(self, pc: PETSc.PC, reason: int) -> None:
        """Set PETSc's reason of a failure, or clear it, where the NaN of the result does not suffice.

        The PC of a solver inside another preconditioner gives NaN only: PETSc never takes back the failure that the
        outer one would record. So does that of PETSc 3.18, which does not take back its own. A smoother of multigrid
        needs the reason all the same: Chebyshev's method estimates infinite eigenvalues from the NaN and weighs the
        smoother's result by 1 / Inf = 0, which PETSc does not multiply with, so the failure would go unnoticed.
        """
        prefix = pc.getOptionsPrefix() or ""
        if in_chebyshev(prefix) or (hasattr(pc, "setFailedReason") and not is_inner(prefix)):
            call_petsc("PCSetFailedReason", ctypes.c_void_p(pc.handle), ctypes.c_int(reason))

    # View -------------------------------------------------------------------------------------------------------------

    def _described(self) -> Iterator[str]:
        """The lines that `-ksp_view` shows."""
        recipe = self.recipe if self.factors is None else self.factors.recipe
        yield f"{recipe!r} on {self.device if self._number is None else f'cuda:{self._number}'}"
        if self.error is not None:
            yield f"failed: {self.error}"
            return
        F = self.factors
        if self.shared is not None:
            yield from self.shared.described()
        elif F is not None:
            yield from self._described_factors(F)
        else:
            yield "an empty block" if self._ready else "not set up"
        if self.shared is not None or F is not None:
            done = (f"{self.calls[what]} {what}, {self.seconds[what]:.3g} s" for what in self.calls)
            yield f"{'; '.join(done)} (of this process)"

    def _described_factors(self, F: Factors) -> Iterator[str]:
        nnz = F.pattern.nnz if self._pattern is None else self._pattern[1].size
        yield (
            f"{F.shape[0]} rows, {nnz} entries; factors: {F.nnz} entries, fill {F.nnz / nnz:.3g}, {F.dtype}, "
            f"{bytes_of(F) / 2**20:.3g} MiB with their plans"
        )
        if isinstance(levels := F.report.get("levels"), list):
            yield f"{len(levels)} levels, of {', '.join(str(level['n']) for level in levels)} rows"
        for name, facts in F.report.get("triangular", {}).items():
            yield f"{name} triangle: {facts['method']}, {facts['levels'] or 'unknown'} levels"
        for name in ("refused", "warning"):
            if F.report.get(name):
                yield f"{name}: {F.report[name]}"


def near_nullspace(P: PETSc.Mat) -> Any:
    """(n, m) : the vectors of MatSetNearNullSpace in the rows of this process, the constant among them; or None."""
    space = P.getNearNullSpace()
    if not space.handle:
        return None
    rows = P.getLocalSize()[0]
    columns = [np.ones(rows)] if space.hasConstant() else []
    for vector in space.getVecs():
        columns.append(vector.getArray(readonly=True).copy())
    return np.column_stack(columns) if columns and rows else None
