"""The entries that show that a matrix is not Hermitian, or not symmetric, for recipes and methods that need it."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from finelu.errors import MatrixError
from finelu.kernels.operands import CSR
from finelu.matrix.traits import NEARLY, ROUNDINGS, symmetry_of


def require_hermitian(recipe: Any, A: CSR) -> str:
    """A MatrixError unless A is Hermitian, with the entries that differ most; for recipes that read one triangle.

    A difference beyond rounding (see `symmetry_of`) of at most 1e-6 (1e-3 in single precision) of the same magnitude is
    accepted, and the text of a warning is returned; "" without one. Cost: as asymmetry, and some transpositions on the
    host if there is a warning.
    """
    mirrored = A.mirrored()
    kind, relative = symmetry_of(mirrored, A.dtype), mirrored[3]
    if kind == "hermitian":
        return ""
    S = A.on(np).tosparse()
    if relative <= NEARLY[np.dtype(A.data.real.dtype).char]:
        return f"A is Hermitian up to {relative:.1e}: {differing(S)}; only the lower triangle is factored"
    below, above = sp.tril(S, -1).nnz, sp.triu(S, 1).nnz
    if bool(below) != bool(above):
        side, fill = ("upper", "triu(A, 1)") if above else ("lower", "tril(A, -1)")
        raise MatrixError(
            f"{recipe!r} needs A = A^H, but A stores only its {side} triangle; complete it: "
            f"A + scipy.sparse.{fill}.conj().T."
        )
    where = differing(S)
    if kind == "symmetric":
        raise MatrixError(
            f"{recipe!r} needs A = A^H, but A is complex symmetric, A = A^T: {where}; use MultilevelILU or ILU0."
        )
    raise MatrixError(f"{recipe!r} needs A = A^H, but {where}; use ILU0, or symmetrize A.")


def asymmetry_of(A: CSR, kind: str, *, transposed: bool) -> str:
    """The entries that show that neither A = A^H nor, if `transposed`, A = A^T holds; "" if one holds, or nearly.

    kind : as in `MatrixTraits`. Nearly: as `require_hermitian` accepts it. Cost: nothing if `kind` decides it.
    """
    if kind == "hermitian" or (transposed and kind == "symmetric"):
        return ""
    _, _, _, *relative, _ = A.mirrored()
    if min(relative[: 1 + transposed]) <= NEARLY[np.dtype(A.data.real.dtype).char]:
        return ""
    return differing(A.on(np).tosparse(), transposed=transposed)


def differing(S: Any, *, transposed: bool = False) -> str:
    """The pair of entries of S, scipy.sparse CSR, that is furthest from conjugate, relative as in `symmetry_of`.

    transposed : the pair that is furthest from both conjugate and equal, if there is one.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # a pair that overflows differs
        adjoint = apart = abs(S - S.conj().T)
        if transposed:
            apart = apart.minimum(abs(S - S.T))
        apart = (apart if apart.count_nonzero() else adjoint).tocoo()
        if apart.nnz == 0:
            return "its values have changed meanwhile"
        magnitudes = abs(S)
        size = abs(S.diagonal()).astype(np.float64)
        largest = magnitudes.max(axis=1).toarray().ravel()
        size = np.sqrt(np.where(size > ROUNDINGS * np.finfo(S.dtype).eps * largest, size, largest))
        either = np.asarray(magnitudes.maximum(magnitudes.T)[apart.row, apart.col]).ravel()
        relative = apart.data / np.maximum(either, size[apart.row] * size[apart.col])
    worst = int(np.argmax(np.where(np.isfinite(apart.data), np.nan_to_num(relative), np.inf)))
    i, j = sorted((int(apart.row[worst]), int(apart.col[worst])))
    return f"A[{i}, {i}] = {S[i, i]}" if i == j else f"A[{i}, {j}] = {S[i, j]} and A[{j}, {i}] = {S[j, i]}"
