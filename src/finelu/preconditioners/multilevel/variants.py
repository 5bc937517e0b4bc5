"""The settings that MultilevelILU tries, and the cost of complete factors in place of incomplete ones."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from finelu.kernels.operands import CSR
from finelu.matrix import as_csr
from finelu.ordering import ORDERS, Fill, by_subtrees, complete_fill
from finelu.preconditioners.multilevel.level import Limits
from finelu.preconditioners.multilevel.order import Order
from finelu.preconditioners.multilevel.settings import Settings

# The limits of drop_tol=None: at first, and after poor factors, where complete factors cost too much.
LOOSE, TIGHT = Limits(1e-3, 10.0), Limits(1e-5, 100.0)
COMPLETE = Limits(0.0, np.inf)
WORK = 20_000.0  # flops of complete factors, for each entry of A, that take no longer than factors with TIGHT limits
DEFERRING = 2  # times the entries of complete factors that may be made, since rows that are deferred fill in


class Variant(NamedTuple):
    """What a factorization is tried with.

    most : the most entries of complete factors, in which only small pivots are deferred; None for incomplete ones.
    """

    matching: bool
    limits: Limits
    most: int | None = None

    @property
    def complete(self) -> bool:
        return self.most is not None

    def __str__(self) -> str:
        return f"{'with' if self.matching else 'without'} the matching and drop_tol={self.limits.drop_tol:g}"


def variants_of(recipe: Settings) -> list[Variant]:
    """The settings with which A may be factored, in the order in which they are tried."""
    drop_tol, fill, matching = recipe.drop_tol, recipe.fill, recipe.matching
    limits = [LOOSE, TIGHT] if drop_tol is None else [LOOSE._replace(drop_tol=drop_tol)]
    if fill is not None:
        limits = [limit._replace(fill=fill) for limit in limits]
    return [Variant(which, limit) for which in ((True, False) if matching else (False,)) for limit in limits]


class Complete(NamedTuple):
    """A complete factorization, and its cost if no row is deferred."""

    matching: bool
    fill: Fill

    @property
    def variant(self) -> Variant:
        return Variant(self.matching, COMPLETE, DEFERRING * self.fill.nnz)


def complete_of(recipe: Settings, A: CSR, order: Order, matched: bool, most: int) -> Complete | None:
    """The cheaper complete factorization of A, with its own diagonal or that of the matching; None if both are dear.

    order : that of A's first level, with the matching if `matched`.  most : the most entries of the factors.
    A symmetric A keeps its matching, which pairs rows with small diagonal entries; a general one may do without.
    Cost: an ordering, two if that of the first level is bounded or partial, and symbolic factorizations, nearly O(nnz).
    """
    A = A.on(np)
    arranged = as_csr(A.tosparse()[order.rows][:, order.columns], diagonal=False)
    whole = None
    if recipe.ordering is not None and (order.bounded or order.partial):
        whole = by_subtrees(arranged, recipe.ordering).order
    found = [Complete(matched, complete_fill(arranged, whole))]
    if not np.array_equal(order.rows, order.columns):
        own = None if recipe.ordering is None else ORDERS[recipe.ordering](A)
        found.append(Complete(False, complete_fill(A, own)))
    least = min(found, key=lambda complete: complete.fill.flops)
    cheap = least.fill.flops <= WORK * A.nnz and DEFERRING * least.fill.nnz <= most
    return least if cheap else None
