"""The kernels that a solve needs last, compiled while another process compiles those that it needs first.

`solve` looks at A, makes factors, iterates, and may count the fill of a direct solve meanwhile. Here the iterations
come first, then that count, then the factors, with the recipe and the method that `choose` finds for A as NumPy sees
it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, cast

import numpy as np

from finelu.auto.background import LIMIT
from finelu.auto.choose import choose
from finelu.auto.first_answer import taken
from finelu.auto.precision import precise
from finelu.compiling import now
from finelu.deadline import limited
from finelu.errors import FineluError
from finelu.krylov import METHODS
from finelu.matrix import CSR
from finelu.matrix.traits import NEARLY_ALL, ROUNDINGS, Diagonal, MatrixTraits, dense_row
from finelu.ordering import with_little_fill
from finelu.preconditioners import Recipe, SparseLU

FEW = 3  # iterations: the first differs from those after it


def compile_last(A: Any, b: Any, rtol: float, **others: Any) -> None:
    """Run a few iterations for A x = b, and with factors a few more, for at most LIMIT seconds without compiling.
    Whatever goes wrong is left to the other process.

    A, b, rtol : as `solve` takes them.  others : the other arguments of the call, which change no kernel here.
    """
    system = taken(A, b)
    if system is None:
        return
    matrix, b = precise(_csr(system[0]), system[1], rtol)
    column, traits = np.ascontiguousarray(b.reshape(matrix.n, -1)[:, 0]), likely_traits(matrix)
    choice = choose(traits)
    iterate, recipe = METHODS[choice.method].solve, cast(Recipe, choice.recipe)
    with suppress(FineluError, ArithmeticError), limited(now() + LIMIT):
        if isinstance(recipe, SparseLU):
            recipe.factor(matrix).solve(column)
            return
        iterate(matrix, column, maxiter=FEW, rtol=rtol)
        if traits.definite:  # else other orders may be looked at
            with_little_fill(matrix, "rcm")  # an order that takes no kernel: the other process compiles that of AMD
        iterate(matrix, column, M=recipe.factor(matrix), maxiter=FEW, rtol=rtol)


def likely_traits(A: CSR) -> MatrixTraits:
    """The traits of A on which the choice of a recipe depends on the CPU, by NumPy alone: entries are equal up to the
    rounding of the largest one, and chains, couplings and the first gaps of the diagonal are not looked at."""
    S, lengths = A.tosparse(), np.diff(A.indptr)
    on_diagonal, n = S.diagonal(), A.n
    missing, zero = A.diag < 0, (on_diagonal == 0) & (A.diag >= 0)
    usable, is_complex = not (missing.any() or zero.any()), A.dtype.kind == "c"
    rounding = ROUNDINGS * float(np.finfo(A.dtype).eps) * float(abs(A.data).max())
    kind = "general"
    if float(abs(S - S.conj().T).max()) <= rounding:
        kind = "hermitian"
    elif float(abs(S - S.T).max()) <= rounding:
        kind = "symmetric"
    m_matrix = False
    if usable and not is_complex:
        rows = np.repeat(np.arange(n), lengths)
        signed = A.data * np.sign(on_diagonal)[rows]
        fine = int((np.bincount(rows, signed, n) >= -1e-8 * abs(on_diagonal)).sum())
        signed[A.diag] = 0
        same, opposite = float(signed[signed > 0].sum()), float(-signed[signed < 0].sum())
        m_matrix = opposite > 0 and same <= (1 - NEARLY_ALL) * opposite and fine >= NEARLY_ALL * n
    positive = usable and bool((on_diagonal.real > 0).all() and not on_diagonal.imag.any())
    pattern = abs(S.sign())
    return MatrixTraits(
        n=n,
        nnz=A.nnz,
        kind=kind,
        diagonal=Diagonal(
            missing=int(missing.sum()),
            first_missing=-1,
            zero=int(zero.sum()),
            first_zero=-1,
            positive=positive,
            usable=usable,
        ),
        definite=kind == "hermitian" and positive,
        m_matrix=m_matrix,
        coupled=0.0,
        levels=1.0,
        paired=pattern.multiply(pattern.T).nnz / A.nnz,
        mean_row=A.nnz / n,
        longest_row=int(lengths.max(initial=0)),
        dense=int(lengths.max()) > dense_row(n),
        mirrored=(0.0,) * 5 + (0,),
        gpu=False,
        complex=is_complex,
    )


def _csr(S: Any) -> CSR:
    """The matrix as kernels take it, with the places of its diagonal."""
    rows = np.repeat(np.arange(S.shape[0]), np.diff(S.indptr))
    diag = np.full(S.shape[0], -1, S.indices.dtype)
    places = np.flatnonzero(S.indices == rows)
    diag[rows[places]] = places
    return CSR(S.indptr, S.indices, S.data, diag)
