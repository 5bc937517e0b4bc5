"""`SparseOperator` and `Solver`: sparse linear solves for lineax, with jit, vmap, jvp and grad."""

from __future__ import annotations

from typing import Any

from finelu.errors import MatrixError
from finelu.interop.adjoint import Options
from finelu.interop.jax import NO_TOKEN, _expected, _parts, _solve

try:
    import equinox.internal
    import jax
    import lineax
    from jax.experimental import sparse
except ImportError as error:
    raise ImportError("finelu.interop.lineax needs lineax: pip install lineax.") from error


class SparseOperator(lineax.AbstractLinearOperator):  # type: ignore[misc]
    """A sparse matrix as an operator: `lineax.linear_solve(SparseOperator(A), b, Solver())`.

    matrix : (n, n), a BCOO of jax.experimental.sparse, without batch and dense dimensions.
    """

    matrix: sparse.BCOO

    def mv(self, vector: Any) -> Any:
        return self.matrix @ vector

    def as_matrix(self) -> Any:
        return self.matrix.todense()

    def transpose(self) -> SparseOperator:
        return SparseOperator(self.matrix.T)

    def in_structure(self) -> Any:
        return jax.ShapeDtypeStruct(self.matrix.shape[1:], self.matrix.dtype)

    def out_structure(self) -> Any:
        return jax.ShapeDtypeStruct(self.matrix.shape[:1], self.matrix.dtype)


def _conjugate(operator: SparseOperator) -> SparseOperator:
    A = operator.matrix
    return SparseOperator(sparse.BCOO((A.data.conj(), A.indices), shape=A.shape))


lineax.conj.register(SparseOperator, _conjugate)
for _form in (lineax.linearise, lineax.materialise):
    _form.register(SparseOperator, lambda operator: operator)
for _question in (
    *(lineax.is_symmetric, lineax.is_diagonal, lineax.is_tridiagonal, lineax.has_unit_diagonal),
    *(lineax.is_lower_triangular, lineax.is_upper_triangular),
    *(lineax.is_positive_semidefinite, lineax.is_negative_semidefinite),
):
    _question.register(SparseOperator, lambda operator: False)  # not known


class Solver(lineax.AbstractLinearSolver):  # type: ignore[misc]
    """A x = b for a `SparseOperator`, as by `finelu.interop.jax.solve`.

    options : a `finelu.interop.adjoint.Options`: recipe, method, rtol and maxiter.
    Solves with one state, those for derivatives included, share the factors as long as these are among the last 4 made.
    Raises NotConverged instead of returning a wrong solution, and MatrixError for another operator.
    """

    options: Options = Options()

    def init(self, operator: Any, options: dict[str, Any]) -> Any:
        if not isinstance(operator, SparseOperator):
            raise MatrixError(f"finelu solves with a SparseOperator, not with a {type(operator).__name__}.")
        A = operator.matrix
        data, places = jax.lax.stop_gradient(_parts(A))
        how = self.options, _expected((data, *places))
        _, token = _solve(how, "N", data, places, jax.numpy.zeros(A.shape[0], A.dtype), NO_TOKEN)
        return (data, places, token), equinox.internal.Static((how, "N"))

    def compute(self, state: Any, vector: Any, options: dict[str, Any]) -> Any:
        (data, places, token), static = state
        how, trans = static.value
        x, _ = _solve(how, trans, data, places, vector.astype(data.dtype), token)
        return x, lineax.RESULTS.successful, {}

    def transpose(self, state: Any, options: dict[str, Any]) -> Any:
        arrays, static = state
        how, trans = static.value
        return (arrays, equinox.internal.Static((how, "T" if trans == "N" else "N"))), options

    def conj(self, state: Any, options: dict[str, Any]) -> Any:
        (data, places, _), static = state
        return ((data.conj(), places, NO_TOKEN), static), options

    def assume_full_rank(self) -> bool:
        return True
