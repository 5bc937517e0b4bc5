"""CPR, the constrained pressure residual: two stages for the systems of reservoir simulation.

J. R. Wallis, 1983; J. R. Wallis, R. P. Kendall, T. E. Little, 1985; the weights: S. Lacroix, Yu. V. Vassilevski, J. A.
Wheeler, M. F. Wheeler, 2003, and S. Gries, K. Stüben, G. L. Brown, D. Chen, D. A. Collins, 2014.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from finelu.device import namespace, on_gpu, sparse_module, synchronize
from finelu.errors import ParameterError, UnstableFactors, ZeroPivot
from finelu.factors import Factors
from finelu.factors.base import trial_vector
from finelu.factors.report import Report
from finelu.kernels import kernels_for
from finelu.kernels.operands import CSR
from finelu.matrix import full_csr
from finelu.matrix.blocks import BlockMatrix
from finelu.matrix.looks import LARGEST_BLOCK, likely_block_size, two_way
from finelu.preconditioners.block_ilu import BlockILU0, SingularBlock, check_block_size
from finelu.preconditioners.block_jacobi import BlockJacobi, inverted
from finelu.preconditioners.ilu0 import ILU0
from finelu.preconditioners.polynomial import chebyshev, ritz_values
from finelu.preconditioners.recipe import Recipe, checked
from finelu.preconditioners.registry import recipe_of
from finelu.preconditioners.schwarz import Schwarz
from finelu.validation import choice, count

AUTO = "auto"
QUASI, TRUE = "quasi-impes", "true-impes"
PART = 64  # rows of a part of the pressure's subdomains
ARNOLDI, MARGIN = 8, 1.1  # steps that look for the spectrum of the pressure; times the largest value found
WIDTH = 2.0  # of the interval for steps of Chebyshev: the ratio of its ends, as a multiple of the steps' square


@dataclass(frozen=True, kw_only=True, repr=False)
class CPR(Recipe):
    """Two stages: the pressure alone, then the whole system.

    A has an equation for each unknown of a cell, and one unknown is a pressure. With C, which puts a pressure into its
    place among the unknowns, and W, whose row for a cell combines the cell's equations,

        A_p = W A C,    M^-1 r = C q + B^-1 (r - A C q)    with    q = A_p^-1 W r:

    A_p is an elliptic matrix with a row for each cell, and the factors B of A are good for the other part of the error,
    which is transported from cell to cell.

    block_size : unknowns of a cell, in consecutive rows, in which their equations are, too. None: that of a BSR matrix
        or a BlockMatrix, else what A's pattern shows.
    unknown : the place of the pressure in a cell, from 0 on. "auto": the unknown whose couplings have opposite ones of
        the most similar size: what flows carries saturations in one direction only.
    weights : the rows of W. "quasi-impes": W_c A_cc = e_p for the diagonal block A_cc, so that the other unknowns of
        the cell are eliminated; "true-impes": the same of the sum of the blocks in the cell's columns, where the fluxes
        between cells cancel, and the change of its content in time remains, if A's rows are balances, not scaled. Each
        row is scaled so that its largest magnitude is 1.
    pressure : the recipe for A_p, or its name. "auto" is Schwarz(size=64).
    steps : applications of the factors of A_p: with more than one, A_p^-1 is replaced by as many steps of Chebyshev.
        One if the factors are complete.
    whole : the recipe for A, or its name: BlockILU0(), ILUK(level=1), ... "auto" is ILU0, on a GPU BlockILU0, which has
        fewer levels; where all blocks are stored full, both are the same up to rounding.
    precision : "float32" or "float64" for all factors, None for A's own.
    Facts: M is not symmetric, even if A is. It is the same in each application.
    Cost: that of both recipes; a solve also reads the columns of A that belong to pressures, and for each step but the
    first A_p. Memory: these columns, A_p and the weights.
    """

    matrices = ("CSR", "BlockMatrix")

    block_size: int | None = None
    unknown: int | str = AUTO
    weights: str = QUASI
    pressure: Recipe | str = AUTO
    steps: int = 3
    whole: Recipe | str = AUTO
    precision: str | None = None

    def __post_init__(self) -> None:
        for stage in ("pressure", "whole"):
            object.__setattr__(self, stage, recipe_of(getattr(self, stage), AUTO))
        super().__post_init__()

    def check(self) -> None:
        super().check()
        check_block_size(self)
        if self.unknown != AUTO:
            count("unknown", self.unknown, 0, of=self)
        choice("weights", self.weights, (QUASI, TRUE), of=self)
        count("steps", self.steps, 1, of=self)
        stages: Any = (("pressure", self.pressure), ("whole", self.whole))
        for name, recipe in stages:
            if recipe == AUTO:
                continue
            if recipe.normal or recipe.hermitian or isinstance(recipe, CPR):
                raise ParameterError(f"{self!r}: {name}={recipe!r} does not fit a matrix that is not symmetric.")
            if getattr(recipe, "precision", None) is not None:
                raise ParameterError(f"{self!r}: leave precision of {name} as it is, and set CPR(precision=...).")

    def factor(self, A: Any) -> CPRFactors:
        """Factor A (n, n), a BSR matrix, a BlockMatrix, or anything that `finelu.as_csr` takes, where it lives. A is
        not written.

        Raises MatrixError if A has no full diagonal; ParameterError if its blocks are not known, or do not fit;
        ZeroPivot if a cell has no weights, or a stage no factors.
        """
        size = A.n_block if isinstance(A, BlockMatrix) else max(getattr(A, "blocksize", (1,)))
        C = checked(self, A).with_own_pattern()
        return CPRFactors(self, C, self._size(C, size))

    def _size(self, A: CSR, known: int) -> int:
        """The unknowns of a cell.  known : those that the form of A shows, else 1."""
        size = self.block_size or (known if known > 1 else likely_block_size(A))
        if known > 1 and size != known:
            raise ParameterError(
                f"{self!r}: A has {known} x {known} blocks; leave block_size out, or give A.tocsr() to cut it."
            )
        if self.block_size is None and size == 1:
            raise ParameterError(
                f"{self!r}: A's pattern shows no blocks of 2 to {LARGEST_BLOCK} unknowns; give block_size, or a BSR "
                "matrix or a BlockMatrix."
            )
        if A.n % size:
            raise ParameterError(f"{self!r}: A has {A.n} rows, which is not a multiple of the block size {size}.")
        if self.unknown != AUTO:
            count("unknown", self.unknown, 0, size - 1, of=self)
        return size


@dataclass(eq=False, repr=False)
class CPRReport(Report):
    """block_size, unknown : of a cell, and the place of the pressure in it.
    pressure, whole : the recipes of the two stages.
    steps : applications of the factors of the pressure in a solve.
    spectrum : the interval in which the steps of Chebyshev expect it; None for one step.
    analysis_seconds : of finding the cells.
    pressure_seconds, whole_seconds : of the factors of the two stages.
    """

    block_size: int = 0
    unknown: int = 0
    pressure: str | None = None
    whole: str | None = None
    steps: int = 1
    spectrum: tuple[float, float] | None = None
    analysis_seconds: float = 0.0
    pressure_seconds: float = 0.0
    whole_seconds: float = 0.0


class Cells:
    """The cells of A, of `size` rows each, and the places of their entries in A's data.

    pattern : of the blocks of A.  rows (nb,) : the cell of each block's rows.
    places (nb, size, size) : of the entries of each block, -1 for those that A does not store.
    """

    def __init__(self, A: CSR, size: int):
        xp = namespace(A.data)
        numbered = BlockMatrix.from_csr(A.with_values(xp.arange(1, A.nnz + 1, dtype=np.float64)), size)
        self.size, self.count, self.pattern = size, numbered.rows, numbered.pattern
        self.rows = self.pattern.row_of()
        self.places = (numbered.data - 1).astype(A.indices.dtype)
        self._full = A.nnz == self.places.size

    def values(self, data: Any, places: Any) -> Any:
        """The entries of A's data at these places, 0 where it is -1."""
        values = data[places]
        if not self._full:
            values[places < 0] = 0
        return values

    def blocks(self, data: Any) -> BlockMatrix:
        """A as a BlockMatrix."""
        return BlockMatrix(self.values(data, self.places), self.pattern.indices, self.pattern.indptr)


class CPRFactors(Factors):
    """M, see `CPR`.  pressure, whole : the factors of A_p and of A.  weights (cells, size) : the rows of W."""

    well_formed = True
    _bound = ("_lock", "_products")
    pressure: Any = None
    whole: Any = None

    def __init__(self, recipe: CPR, A: CSR, size: int):
        self._recipes: tuple[Any, Any] = (
            Schwarz(size=PART) if recipe.pressure == AUTO else recipe.pressure,
            (BlockILU0() if on_gpu(A.data) else ILU0()) if recipe.whole == AUTO else recipe.whole,
        )
        pressure, whole = map(repr, self._recipes)
        self._facts = CPRReport(block_size=size, pressure=pressure, whole=whole)
        super().__init__(recipe, A, report=self._facts)
        start = perf_counter()
        self._cells, self.unknown = Cells(A, size), -1
        self._facts.analysis_seconds = perf_counter() - start
        self._refresh(A)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._products: dict[str, Any] = {}

    def _refresh(self, A: CSR) -> None:
        recipe, cells, report, start = self.recipe, self._cells, self._facts, perf_counter()
        found = int(np.argmax(two_way(A, cells.size))) if recipe.unknown == AUTO else recipe.unknown
        if found != self.unknown:
            self.unknown, self.pressure = found, None
        report.unknown, report.warning = found, None
        self._products = {}
        self.weights = self._weights(A)
        self._factor_pressure(A)
        report.pressure_seconds = perf_counter() - start
        before, of_whole = perf_counter(), self._recipes[1]
        whole: Any = A if "CSR" in of_whole.matrices else cells.blocks(A.data)
        self.whole = of_whole.factor(whole) if self.whole is None else self.whole.update(whole)
        report.whole_seconds = perf_counter() - before
        for name, F in (("pressure", self.pressure), ("whole", self.whole)):
            if text := F.report.get("warning"):
                report.warn(f"of the factors of the {name}: {text}")
        for name in ("W", "A C", "A_p"):
            self._product(name)
        report.numeric_seconds = perf_counter() - start

    def _weights(self, A: CSR) -> Any:
        cells, xp = self._cells, namespace(A.data)
        if self.recipe.weights == QUASI:
            blocks = cells.values(A.data, cells.places[cells.pattern.diag])
        else:
            ones = xp.tile(xp.eye(cells.size, dtype=A.dtype), (cells.count, 1))
            sums = kernels_for(A.data).products.subtract_product(A.tosparse().T.tocsr(), ones)
            blocks = xp.ascontiguousarray(sums.reshape(-1, cells.size, cells.size).transpose(0, 2, 1))
        try:
            found = inverted(BlockJacobi(), blocks, int)[:, self.unknown]
        except SingularBlock as error:
            advice = f"Try weights={TRUE if self.recipe.weights == QUASI else QUASI!r}, or another recipe."
            value = f"rounding of a block of condition {error.condition:.1e}"
            raise ZeroPivot(self.recipe, error.row, value, "leaves its cell without weights", advice) from None
        return xp.ascontiguousarray(found / abs(found).max(axis=1)[:, None])

    def _factor_pressure(self, A: CSR) -> None:
        """A C and A_p, its factors, and the interval for the steps of Chebyshev."""
        cells, recipe, report = self._cells, self.recipe, self._facts
        entries = cells.values(A.data, cells.places[:, :, self.unknown])
        data = (self.weights[cells.rows] * entries).sum(axis=1)
        self._columns = entries.T.reshape(-1)
        if self.pressure is None:
            self.system = full_csr(cells.pattern.indptr, cells.pattern.indices, data)
            self.pressure = self._recipes[0].factor(self.system)
        else:
            self.system = self.system.with_values(data)
            self.pressure.update(self.system)
        report.steps, report.spectrum = 1 if self.pressure.complete else recipe.steps, None
        if report.steps == 1:
            return
        product = self._product("A_p")
        values = ritz_values(lambda v: self.pressure.apply(product(v)), trial_vector(self.system), ARNOLDI)
        if values.size == 0:
            raise UnstableFactors(self.recipe)
        if values.real.min() <= 0:
            report.steps = 1
            report.warn("the pressure has one step: the spectrum of M^-1 A_p is not in the right half-plane")
            return
        end = MARGIN * float(abs(values).max())
        report.spectrum = end / (WIDTH * report.steps**2), end

    def _product(self, name: str) -> Any:
        """The product with W, A C, A_p, or with "H" behind the name the adjoint of one of the latter two. The rows of
        A C are ordered by equations, then by cells."""
        found = self._products.get(name)
        if found is None:
            found = self._products[name] = kernels_for(self.weights).products.Product(self._matrix(name))
        return found

    def _matrix(self, name: str) -> Any:
        xp, cells = namespace(self.weights), self._cells
        if name == "W":
            pointers = xp.arange(0, cells.size * cells.count + 1, cells.size, dtype=cells.rows.dtype)
            columns = xp.arange(cells.size * cells.count, dtype=cells.rows.dtype)
            shape = cells.count, cells.size * cells.count
            return sparse_module(self.weights).csr_matrix((self.weights.reshape(-1), columns, pointers), shape=shape)
        if name.startswith("A C"):  # the first equations of all cells, then the second ones, ...
            pattern, size = cells.pattern, cells.size
            starts = [pattern.indptr[:-1] + k * pattern.indices.size for k in range(size)]
            pointers = xp.append(xp.concatenate(starts), pattern.indptr.dtype.type(self._columns.size))
            arrays = self._columns, xp.tile(pattern.indices, size), pointers
            S = sparse_module(self.weights).csr_matrix(arrays, shape=(size * cells.count, cells.count))
        else:
            S = self.system.tosparse()
        if name.endswith("H"):
            S = S.conj().T.tocsr()
            S.sort_indices()
            synchronize(S.data)  # another thread may use it on another stream
        return S

    @property
    def nnz(self) -> int:
        """Stored entries of the factors of both stages."""
        return int(self.pressure.nnz + self.whole.nnz)

    @property
    def capturable(self) -> bool:
        return on_gpu(self.weights) and self.pressure.capturable and self.whole.capturable

    def _apply(self, R: Any, trans: str) -> Any:
        xp = namespace(R)
        if trans == "T" and self.dtype.kind == "c":
            return self._apply(R.conj(), "H").conj()
        one = self._plain if trans == "N" else self._adjoint
        if R.ndim == 1:
            return one(xp.ascontiguousarray(R))
        X = xp.empty_like(R)
        for k in range(R.shape[1]):
            X[:, k] = one(xp.ascontiguousarray(R[:, k]))
        return X

    def _plain(self, r: Any) -> Any:
        """M^-1 r."""
        xp, cells = namespace(r), self._cells
        q = self._pressures(self._product("W")(r, xp.empty(cells.count, r.dtype)), "")
        moved = self._product("A C")(q, xp.empty_like(r)).reshape(cells.size, -1)
        x = self.whole.apply((r.reshape(-1, cells.size) - moved.T).reshape(-1))
        x[self.unknown :: cells.size] += q
        return x

    def _adjoint(self, r: Any) -> Any:
        """M^-H r."""
        xp, cells = namespace(r), self._cells
        x = self.whole.apply(r, "H")
        by_equations = xp.ascontiguousarray(x.reshape(-1, cells.size).T).reshape(-1)
        of_x = self._product("A C H")(by_equations, xp.empty(cells.count, r.dtype))
        q = self._pressures(r[self.unknown :: cells.size] - of_x, "H")
        x += (self.weights.conj() * q[:, None]).reshape(-1)
        return x

    def _pressures(self, g: Any, adjoint: str) -> Any:
        """A_p^-1 g, or with "H" A_p^-H g, by the factors; g is overwritten."""
        trans = adjoint or "N"
        if self._facts.spectrum is None:
            return self.pressure.apply(g, trans)
        low, high = self._facts.spectrum
        product = self._product("A_p H" if adjoint else "A_p")
        steps, x = self._facts.steps, namespace(g).zeros_like(g)
        middle, half = (high + low) / 2, (high - low) / 2
        return chebyshev(product, lambda v: self.pressure.apply(v, trans), x, g, middle, half, steps)
