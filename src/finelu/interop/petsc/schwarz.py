"""`Schwarz` for a matrix whose rows are spread over processes: parts on each of them, and one coarse space for all.

The method is that of `finelu.Schwarz`. Each process finds parts among its own rows, and the coarse space has the
vectors of the parts of all processes, so that iterations do not grow with the number of processes. The coarse matrix
E = Z^H A Z is spread as A is. A large one is solved by the same method again, a small one by factors on each process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from petsc4py import PETSc

from finelu.arithmetic import ignore_fp_errors
from finelu.errors import MatrixError, ParameterError, ZeroPivot
from finelu.factors.base import TRIAL_SEED
from finelu.interop.petsc.borders import Borders
from finelu.interop.petsc.processes import Together, together
from finelu.interop.petsc.rows import Product, couplings_of, facts, mirrored_across, own_block, rows_of
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.matrix import as_csr
from finelu.matrix.traits import symmetry_of
from finelu.partition import partition
from finelu.preconditioners import ILU0
from finelu.preconditioners.polynomial import chebyshev
from finelu.preconditioners.recipe import ArrayParameter
from finelu.preconditioners.schwarz.coarse import inverse, orthonormal
from finelu.preconditioners.schwarz.factors import MOST_FACTORED
from finelu.preconditioners.schwarz.levels import has_levels, nodes_of_part
from finelu.preconditioners.schwarz.parts import AUTO, OF_ISLANDS, usual_size
from finelu.preconditioners.schwarz.recipe import Schwarz
from finelu.preconditioners.schwarz.spectrum import spectrum, steps_for


class SharedSchwarz:
    """M of a Schwarz recipe for the matrix of `update`, on all processes of mpi4py's communicator `comm`.

    Set-up and applications are collective. An error that one process meets in `update` is raised on all, as `Together`,
    with the number of that process; any other exception may be on one alone. What fails in an application is kept in
    `failures`, and this process goes on with NaN, as the others would wait for it.

    hermitian, definite : A is Hermitian, and has a positive diagonal besides.
    own : the factors of the parts of this process; None without rows.
    rows_of_levels : the number of rows of A, of its coarse matrix, of that one's coarse matrix, ...
    coarse_steps : steps of Chebyshev of a solve with the coarse matrix; None if that is factored.
    dropped (coarse vectors,) : those that are not used, since they, or A Z, depend on others; None on levels.
    warning : why a large coarse matrix is factored, or "".
    """

    def __init__(self, comm: Any, recipe: Schwarz, failures: list[Exception] | None = None):
        self.comm, self.recipe = comm, recipe
        self.failures = list[Exception]() if failures is None else failures
        self.own: Any = None
        self.hermitian = self.definite = False
        self.rows_of_levels: tuple[int, ...] = ()
        self.coarse_steps: int | None = None
        self.dropped: Any = None
        self.warning = ""
        self._coarse: Any = None
        self._times_AZ: Any = None
        self._borders = Borders(comm)
        self._usual_size = 0  # rows of a part, the same on all processes

    def destroy(self) -> None:
        """Give PETSc's matrices back."""
        for holder in (self._times_AZ, self._coarse, self._borders):
            if holder is not None:
                holder.destroy()
        self._coarse = self._times_AZ = None

    # Set-up -----------------------------------------------------------------------------------------------------------

    def update(self, A: PETSc.Mat, near_nullspace: Any = None, parts: Callable[[CSR], Any] | None = None) -> None:
        """Take the values of A, an AIJ matrix. A process keeps its parts where its diagonal block has the same pattern.

        near_nullspace : (own rows, m), the same m on all processes, or None for the constant.
        parts : finds the parts of the diagonal block of a process; None: the recipe does.
        """
        block = self._agreed(lambda: own_block(A))
        columns = self._agreed(lambda: self._near(near_nullspace, block))
        vectors, columns = self._equal_columns(columns, block)
        self._look_at(A, block)
        if parts is None:
            usual = self._agreed(lambda: self._usual(block, vectors, A.getSize()[0]))
            sizes = self.comm.allgather(usual)
            self._usual_size = OF_ISLANDS if OF_ISLANDS in sizes else max(sizes)
        found = parts is None and not isinstance(self.recipe.parts, ArrayParameter)
        if found and self.recipe.partition not in ("geometric", "natural"):  # which need the rows where they are
            self._borders.decide(A, block, A.getBlockSize())
        if self._borders.moved:
            moved = self._borders.matrix(A)
            try:
                own = self._agreed(lambda: own_block(moved))
                self._take(moved, own, self._borders.there(columns), vectors, parts)
                return
            except Together:
                self._borders.destroy()  # what failed is met again, where rows have the numbers that they have in A
            finally:
                moved.destroy()
        self._take(A, block, columns, vectors, parts)

    def _take(self, A: PETSc.Mat, block: CSR | None, columns: Any, vectors: int, parts: Any) -> None:
        """The set-up for A with the rows where they moved, as `update`."""
        self._agreed(lambda: self._factor(block, parts))
        dependent = self._agreed(lambda: self._take_vectors(columns))
        E = self._coarse_rows(A, dependent)
        self._solve_by(E, dependent, vectors, columns)
        self.failures.clear()

    def _agreed(self, work: Callable[[], Any]) -> Any:
        return together(self.comm, work)

    def _near(self, near_nullspace: Any, block: CSR | None) -> Any:
        given = self.recipe.near_nullspace
        if given == AUTO:
            raise ParameterError(
                f'{self.recipe!r}: near_nullspace="auto" finds vectors on one process; on several give them by '
                "MatSetNearNullSpace."
            )
        B = given.array if isinstance(given, ArrayParameter) else near_nullspace
        if B is None or block is None:
            return None
        if B.ndim != 2 or B.shape[0] != block.n:
            raise ParameterError(f"near_nullspace has shape {B.shape}; a row for each of the {block.n} rows is needed.")
        if not np.isfinite(B).all():
            raise ParameterError("near_nullspace holds NaN or Inf.")
        return B.astype(PETSc.ScalarType)

    def _equal_columns(self, B: Any, block: CSR | None) -> tuple[int, Any]:
        """The number of vectors of a part, 1 for the constant, from all processes that have rows; and B, (0, m) on
        those without rows if others have vectors."""
        own = None if block is None else 0 if B is None else B.shape[1]
        found = sorted({count for count in self.comm.allgather(own) if count is not None})

        def one() -> int:
            if len(found) > 1:
                raise ParameterError(f"near_nullspace has {found[0]} columns on one process, {found[1]} on another.")
            return int(max(found[0], 1))

        columns: int = self._agreed(one)
        return columns, np.empty((0, columns), PETSc.ScalarType) if block is None and max(found) > 0 else B

    def _look_at(self, A: PETSc.Mat, block: CSR | None) -> None:
        couplings, *own = self._agreed(lambda: (couplings_of(A), *facts(block)))
        hermitian, positive = (all(facts) for facts in zip(*self.comm.allgather(own), strict=True))
        mirrored = mirrored_across(self.comm, A.getOwnershipRanges(), *couplings)
        self.hermitian = hermitian and symmetry_of(mirrored, np.dtype(PETSc.ScalarType)) == "hermitian"
        self.definite = self.hermitian and positive

    def _factor(self, block: CSR | None, parts: Callable[[CSR], Any] | None) -> None:
        """The factors of the own parts."""
        if block is None:
            self.own = None
        elif self.own is not None and not self.failures and self.own.pattern.same_pattern(block):
            self.own.update(block)
        else:
            own: dict[str, Any] = {"coarse": None, "near_nullspace": None, "levels": AUTO}
            if not isinstance(self.recipe.parts, ArrayParameter):
                found = self._partition(block) if parts is None else parts(block)
                own |= {"size": None, "parts": found}
            self.own = replace(self.recipe, **own).factor(block)

    def _usual(self, block: CSR | None, vectors: int, n: int) -> int:
        """The rows of a part that suit the block of this process, 0 without rows."""
        recipe: Any = self.recipe
        if block is None or recipe.parts is not None:
            return 0
        levels = self.definite if recipe.levels == AUTO else recipe.levels != 2
        return int(recipe.size or usual_size(block, vectors, levels, n))

    def _partition(self, block: CSR) -> Any:
        """The part of each own row, as the recipe finds it."""
        recipe: Any = self.recipe
        size = self._usual_size if recipe.parts is None else -(-block.n // recipe.parts)
        return partition(block, size, recipe.partition).parts

    def _take_vectors(self, B: Any) -> Any:
        """Set Z; returns a mask of the own vectors that are 0, since they depend on others."""
        self._Z = self._Z_by_parts = None
        if self.own is None:
            self._parts = self._rows = np.empty(0, np.int32)
            self._starts = np.zeros(1, np.int32)
            return np.empty(0, bool)
        self._parts = self.own.parts
        self._rows = np.argsort(self._parts, kind="stable").astype(np.int32)
        self._starts = np.append(0, np.cumsum(np.bincount(self._parts))).astype(np.int32)
        if B is None:
            return np.zeros(self._starts.size - 1, bool)
        self._Z, dependent = orthonormal(self._parts, self._starts, self._rows, B)
        self._Z_by_parts = self._Z[self._rows]
        return dependent

    def _coarse_rows(self, A: PETSc.Mat, dependent: Any) -> Any:
        """The rows of E = Z^H A Z for the vectors of this process (own, all), in double precision."""
        counts = self.comm.allgather(dependent.size)
        self._first, self._size = sum(counts[: self.comm.rank]), sum(counts)
        n = self._parts.size
        columns = np.arange(dependent.size).reshape(self._starts.size - 1, -1) if n else np.empty((0, 1), np.int64)
        m = columns.shape[1]
        values = np.ones(n) if self._Z is None else self._Z.ravel()
        pointers, indices = np.arange(0, n * m + 1, m), columns[self._parts].ravel()
        csr = pointers.astype(PETSc.IntType), (indices + self._first).astype(PETSc.IntType), values
        Z = PETSc.Mat().createAIJ(((n, None), (dependent.size, None)), csr=csr, comm=A.getComm())
        if self._times_AZ is not None:
            self._times_AZ.destroy()
        self._times_AZ = Product(A.matMult(Z))
        Z.destroy()
        AZ = rows_of(self._times_AZ.matrix)
        own = sp.csr_matrix((values, indices, pointers), shape=(n, dependent.size))
        wide = np.result_type(PETSc.ScalarType, np.float64)
        return self._agreed(lambda: (own.conj().T.astype(wide) @ AZ.astype(wide)).tocsr())

    def _solve_by(self, E: Any, dependent: Any, vectors: int, B: Any) -> None:
        """Take the solver of E: levels or factors."""
        levels: Any = self.recipe.levels
        self.warning = ""
        if levels == AUTO:
            wanted = self.definite and self._size > MOST_FACTORED
        else:
            wanted = levels > 2
        n = int(self.comm.allreduce(self._parts.size))
        if wanted and has_levels(self._size // vectors, vectors):
            known = self._coarse
            if not isinstance(known, _Levels) or known.definite != self.definite:
                known = _Levels(self)
            if self._coarse is not None and self._coarse is not known:
                self._coarse.destroy()
            self._coarse = known
            try:
                known.update(E, dependent, vectors, None if B is None else self._coefficients(B))
                self.rows_of_levels = (n, *known.factors.rows_of_levels)
                self.coarse_steps, self.dropped = known.steps, None
                return
            except Together as error:
                if levels != AUTO or not isinstance(error.error, MatrixError | ZeroPivot):
                    raise
                self.warning = f"the coarse matrix of {self._size} vectors has no further levels: {error}"
        if self._coarse is not None:
            self._coarse.destroy()
            self._coarse = None
        rows = self.comm.allgather((E, dependent))
        self._coarse = self._agreed(lambda: _Factored(self, rows))
        self.rows_of_levels, self.coarse_steps = (n, self._size), None

    def _coefficients(self, B: Any) -> Any:
        """(own vectors, m) : Z^H B."""
        return np.stack([self._restrict(np.ascontiguousarray(column)) for column in B.T], axis=1)

    def described(self) -> Iterator[str]:
        """Lines for `-ksp_view`."""
        yield f"coupled by a coarse space over {self.comm.size} processes; rows of levels {self.rows_of_levels}"
        if self._borders.moved:
            yield f"{self._borders.moved} rows moved to processes to which they are coupled more"
        if self.coarse_steps is not None:
            yield f"a coarse solve takes {self.coarse_steps} steps of Chebyshev"
        if self.own is not None:
            report = self.own.report
            yield f"{report.parts} parts of {report.smallest} to {report.largest} rows (of this process)"
        if self.warning:
            yield f"warning: {self.warning}"

    # Application ------------------------------------------------------------------------------------------------------

    def solve(self, r: Any, trans: str = "N") -> Any:
        """M^-1 r in a new array, or with a transpose, for the own rows of a vector."""
        if trans == "T":
            return self.solve(r.conj(), "H").conj()
        return self._borders.back(self._solve(self._borders.there(r), trans))

    def _solve(self, r: Any, trans: str) -> Any:
        """The same where the rows moved."""
        transposed = trans == "H" and not self.hermitian
        q = self._coarse(self._restrict(r), transposed)
        if self.recipe.combine == "additive":
            x = self._solve_own(r, trans)
        else:
            x = self._solve_own(r if transposed else r - self._times(q), trans)
            if transposed or self.hermitian:
                q = q - self._coarse(self._times(x, adjoint=True), True)
        self._prolong(q, x)
        return x

    def deflated(self, r: Any) -> Any:
        """M^-1 r of the balanced form for a Hermitian A and an r with Z^H r = 0, by one solve with E."""
        x = self._solve_own(r, "N")
        self._prolong(self._coarse(self._restrict(r) - self._times(x, adjoint=True), False), x)
        return x

    def start(self, A: Product, g: Any) -> tuple[Any, Any]:
        """x with Z^H (g - A x) = 0, and g - A x."""
        x = np.zeros_like(g)
        self._prolong(self._coarse(self._restrict(g), False), x)
        return x, g - A(x)

    @property
    def exact(self) -> bool:
        """Whether E is factored."""
        return isinstance(self._coarse, _Factored)

    def guarded(self, work: Callable[[], Any], size: int) -> Any:
        """work(), which no other process waits for; NaN if it fails."""
        try:
            return work()
        except Exception as error:
            self.failures.append(error)
            return np.full(size, np.nan, PETSc.ScalarType)

    @ignore_fp_errors
    def _solve_own(self, r: Any, trans: str) -> Any:
        return r.copy() if self.own is None else self.guarded(lambda: self.own.solved(r, trans), r.size)

    def _restrict(self, r: Any) -> Any:
        """Z^H r of the own vectors."""
        if self.own is None:
            return np.empty(0, PETSc.ScalarType)
        return kernels_for(r).subdomains.restrict(self._starts, self._rows, self._Z_by_parts, r, True)

    def _prolong(self, q: Any, x: Any) -> None:
        """x += Z q."""
        if self.own is not None:
            kernels_for(x).subdomains.prolong(self._parts, self._Z, q, x)

    def _times(self, v: Any, adjoint: bool = False) -> Any:
        """A Z v, or (A Z)^H v."""
        return self._times_AZ(v, adjoint)


class _Factored:
    """E^-1 g by factors on each process.  rows : (rows of E, mask of vectors that are 0) of each process."""

    def __init__(self, shared: SharedSchwarz, rows: list[tuple[Any, Any]]):
        E = sp.vstack([own for own, _ in rows]).tocsr()
        dependent = np.concatenate([mask for _, mask in rows])
        self._shared, self._counts = shared, [mask.size for _, mask in rows]
        self._inverse, shared.dropped = inverse(E, dependent, np.dtype(PETSc.ScalarType), shared.definite)

    def __call__(self, g: Any, adjoint: bool) -> Any:
        shared, first = self._shared, self._shared._first
        everything = np.empty(shared._size, g.dtype)
        shared.comm.Allgatherv(g, (everything, self._counts))
        trans = "H" if adjoint and not shared.hermitian else "N"
        return shared.guarded(lambda: self._inverse(everything, trans)[first : first + g.size], g.size)

    def destroy(self) -> None:
        """There is nothing of PETSc's."""


class _Levels:
    """E^-1 g, nearly, by factors of E that are those of the same method, see `finelu.Schwarz`."""

    def __init__(self, shared: SharedSchwarz):
        recipe: Any = shared.recipe
        self._shared, self.definite = shared, shared.definite
        local = ILU0() if recipe.local == AUTO and not self.definite else recipe.local  # "auto" has positive pivots
        levels = AUTO if recipe.levels == AUTO else recipe.levels - 1
        own: dict[str, Any] = {"size": None, "parts": None, "partition": AUTO, "overlap": 0, "combine": "balanced"}
        coarser = replace(recipe, local=local, levels=levels, near_nullspace=None, **own)
        self.factors = SharedSchwarz(shared.comm, coarser, shared.failures)
        self.steps = 1
        self._product: Any = None
        self._borders = Borders(shared.comm)

    def destroy(self) -> None:
        self.factors.destroy()
        self._borders.destroy()
        if self._product is not None:
            self._product.destroy()

    def update(self, E: Any, dependent: Any, m: int, near_nullspace: Any) -> None:
        """Take E, given by the own rows (own, all), and the mask of the own vectors that are 0."""
        shared = self._shared
        first = shared._first
        size = shared._size
        places = np.flatnonzero(dependent)
        ones = np.ones(places.size)
        E = (E + sp.csr_matrix((ones, (places, first + places)), shape=E.shape)).tocsr()
        csr = E.indptr.astype(PETSc.IntType), E.indices.astype(PETSc.IntType), E.data.astype(PETSc.ScalarType)
        layout = (dependent.size, size)
        matrix = PETSc.Mat().createAIJ((layout, layout), csr=csr, comm=shared._times_AZ.matrix.getComm())
        if shared.hermitian:  # exactly, for the recipes of its parts
            adjoint = PETSc.Mat()
            matrix.hermitianTranspose(adjoint)
            matrix.axpy(1.0, adjoint)
            matrix.scale(0.5)
            adjoint.destroy()
        if self._product is not None:
            self._product.destroy()
        self._borders.decide(matrix, shared._agreed(lambda: own_block(matrix)), m)
        if self._borders.moved:
            unmoved, matrix = matrix, self._borders.matrix(matrix)
            unmoved.destroy()
        self._product = Product(matrix)
        self.factors.update(matrix, self._borders.there(near_nullspace), lambda block: _parts_of_nodes(block, m))
        if self.definite:
            if not self.factors.definite:
                raise Together(MatrixError("it is not definite; levels=2."))
            self._deflates = self.factors.exact
            interval = self._spectrum(matrix)
            self.steps = shared._agreed(lambda: steps_for(*interval))
            self._interval = interval

    def __call__(self, g: Any, adjoint: bool) -> Any:
        g = self._borders.there(g)
        if self.definite:
            q = chebyshev(self._product, self._times_M, *self._start(g), *self._interval, self.steps)
        else:
            q = self.factors.solve(g, "H" if adjoint else "N")
        return self._borders.back(q)

    def _start(self, g: Any) -> tuple[Any, Any]:
        return self.factors.start(self._product, g) if self._deflates else (np.zeros_like(g), g.copy())

    def _times_M(self, r: Any) -> Any:
        return self.factors.deflated(r) if self._deflates else self.factors.solve(r)

    def _spectrum(self, matrix: PETSc.Mat) -> tuple[float, float]:
        """As that of `CoarseLevels`, from a vector that is another one on each process."""
        diagonal = matrix.getDiagonal()
        d = diagonal.getArray(readonly=True).real.copy()
        diagonal.destroy()
        comm = self._shared.comm
        v = np.random.default_rng((TRIAL_SEED, comm.rank)).uniform(-1, 1, d.size)
        _, r = self._start(self._product((v / np.sqrt(d)).astype(PETSc.ScalarType)))

        def inner(v: Any, w: Any) -> float:
            return float(sum(comm.allgather(float(np.vdot(v, w).real))))  # the same on all processes

        try:
            return spectrum(self._product, self._times_M, r, inner)
        except MatrixError as error:
            raise Together(error) from error


def _parts_of_nodes(block: CSR, m: int) -> Any:
    """The parts of a diagonal block of E, m consecutive rows of which are the vectors of one part."""
    nodes = block
    if m > 1:
        blocks = sp.csr_matrix((abs(block.data), block.indices, block.indptr), block.shape).tobsr((m, m))
        sums = blocks.data.sum(axis=(1, 2))
        S = sp.csr_matrix((sums, blocks.indices, blocks.indptr), (block.n // m, block.n // m))
        S.sort_indices()
        nodes = as_csr(S)
    return np.repeat(partition(nodes, nodes_of_part(m), "auto").parts, m)
