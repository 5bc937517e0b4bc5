"""lineax: a sparse operator with the solver of finelu, and the dense matrix with lineax's own choice."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import lineax
import numpy as np
from harness import CLOCK, Example
from jax.experimental import sparse

import finelu
from finelu.interop.lineax import Solver, SparseOperator

jax.config.update("jax_enable_x64", True)
A = sparse.BCOO.from_scipy_sparse(finelu.gallery.problem("convection_diffusion:10"))
b = jnp.linspace(1.0, 2.0, A.shape[0])
B, DATA = jnp.stack([b, b**2, b**3]), jnp.stack([A.data, 2 * A.data, 3 * A.data])
TANGENTS = jnp.cos(A.data), jnp.sin(b)


def matrix(data: Any) -> Any:
    return sparse.BCOO((data, A.indices), shape=A.shape)


def by_lineax(data: Any, b: Any) -> Any:
    return lineax.linear_solve(lineax.MatrixLinearOperator(matrix(data).todense()), b).value


def by_finelu(data: Any, b: Any) -> Any:
    return lineax.linear_solve(SparseOperator(matrix(data)), b, Solver()).value


def timed(function: Any, *arguments: Any) -> Any:
    function(*arguments)  # compiles
    with CLOCK.running(A):
        found = jax.block_until_ready(function(*arguments))
    return [np.asarray(part) for part in jax.tree.leaves(found)]


def directional(solve: Any, *arguments: Any) -> Any:
    return jax.jvp(solve, arguments, TANGENTS)[1]


def gradient(solve: Any) -> Any:
    return jax.grad(lambda data, b: (solve(data, b) ** 2).sum(), (0, 1))


def examples() -> list[Example]:
    runs = {
        "solve": (lambda solve: solve, A.data, b),
        "jit": (jax.jit, A.data, b),
        "jit, vmap over b": (lambda solve: jax.jit(jax.vmap(solve, (None, 0))), A.data, B),
        "jit, vmap over A and b": (lambda solve: jax.jit(jax.vmap(solve)), DATA, B),
        "jit, jvp": (lambda solve: jax.jit(partial(directional, solve)), A.data, b),
        "jit, grad": (lambda solve: jax.jit(gradient(solve)), A.data, b),
    }
    return [
        Example(name, partial(timed, of(by_lineax), *arguments), partial(timed, of(by_finelu), *arguments))
        for name, (of, *arguments) in runs.items()
    ]
