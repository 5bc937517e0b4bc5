"""Linear solves inside JAX: `solve(A, b)` can be differentiated in reverse mode, compiled by jit and mapped by vmap."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from finelu.device import as_any_other, namespace, require_gpu
from finelu.errors import DeviceError, MatrixError
from finelu.interop.adjoint import BatchSystem, Options, System
from finelu.matrix import CSR, DTYPES, as_csr, sparse_module
from finelu.matrix.batch import Batch

try:
    import jax
    import jax.numpy as jnp
    from jax.experimental import sparse
except ImportError as error:
    raise ImportError("finelu.interop.jax needs JAX: pip install 'finelu[jax]'.") from error

KEPT = 4  # factorizations that are kept for gradients
NO_TOKEN = np.zeros(2, np.uint32)

How = tuple[Options, Any]

_systems: OrderedDict[bytes, System] = OrderedDict()  # by token, those used last at the end
_lock = threading.Lock()


def solve(
    A: sparse.BCSR | sparse.BCOO | tuple[Any, Any, Any],
    b: Any,
    *,
    recipe: Any = "auto",
    method: str | Callable[..., Any] = "auto",
    rtol: float | None = None,
    maxiter: int | None = None,
) -> jax.Array:
    """x with A x = b, differentiable in reverse mode as often as wanted.

    A : (n, n), a BCSR or BCOO of jax.experimental.sparse, or a tuple (data, indices, indptr) of arrays, as in SciPy.
    b : (n,) or (n, k); k solves with the same factors.
    recipe, method, rtol, maxiter : as in `finelu.interop.adjoint.Options`; gradients are solved for in the same way.
    Returns x of b's shape, in the wider dtype of A and b.
    Raises NotConverged instead of returning a wrong solution or gradient; MatrixError, DeviceError and ParameterError
    for arguments that it cannot work with; the exceptions of `recipe.factor`. Under jit, JAX wraps exceptions of the
    running program into an error of its own, which has the same text.
    Outside of jit and vmap, arrays are read without a copy, through DLPack on a GPU. Under jit and vmap the solve is a
    `jax.pure_callback`, which gets arrays on the host. If the program runs on a GPU they are copied to a GPU, and
    solved there: the GPU of the arrays that are constants of the program, else that of `jax.default_device` when it is
    traced, else CuPy's current one. Systems are always solved on this one, also if arrays are committed to another GPU.
    vmap over b alone factors A once. vmap over the values of A, with its places kept and b (n,), solves the systems
    together, as `finelu.solve` does those of a `Batch`, unless `recipe` or `method` is given; gradients take as long.
    Cost: the factors, k solves, and k more for the gradients, with the same factors if these are among the last 4 made.
    """
    data, places = _parts(A)
    b = jnp.asarray(b)
    n = b.shape[0] if b.ndim in (1, 2) else -1
    if n < 1:
        raise MatrixError(f"b has shape {b.shape}; (n,) or (n, k) is needed.")
    if isinstance(A, sparse.BCSR | sparse.BCOO):
        rows = A.shape[0]
    else:
        rows = places[1].shape[0] - 1
    if rows != n:
        raise MatrixError(f"b has shape {b.shape}, but A has {rows} rows; shape ({rows},) or ({rows}, k) is needed.")
    data = data.astype(jnp.promote_types(data.dtype, jnp.float32)) if data.dtype.kind in "biu" else data
    dtype = jnp.promote_types(data.dtype, b.dtype)
    for name, found in (("A", data.dtype), ("b", dtype)):
        if found.name not in DTYPES:
            raise MatrixError(f"{name} holds {found.name}; one of {', '.join(DTYPES)} is needed.")
    options = Options(recipe=recipe, method=method, rtol=rtol, maxiter=maxiter)
    how = options, _expected((data, *places, b))
    return _solve(how, "N", data, places, b.astype(dtype), NO_TOKEN)[0]


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _solve(how: How, trans: str, data: Any, places: Any, b: Any, token: Any) -> tuple[Any, Any]:
    """(A^-1 b, or A^-T b if trans is "T"; the token of the factors).

    how : the options, and the device that a program is expected to run on.  token : names factors, so that they can be
    found again; NO_TOKEN: they are yet to be made.
    """
    return _call(how, trans, data, places, b, token)


def _forward(how: How, trans: str, data: Any, places: Any, b: Any, token: Any) -> tuple[Any, Any]:
    x, token = _solve(how, trans, data, places, b, token)  # itself: a second derivative goes through it
    return (x, token), (data, places, x, token)


def _backward(how: How, trans: str, residual: Any, gradients: Any) -> tuple[Any, ...]:
    """JAX's gradients are not conjugated: b' = A^-T x' and A' = -b' x^T; of x = A^-T b, A' = -x b'^T."""
    (data, places, x, token), (gradient, _) = residual, gradients
    of_b, _ = _solve(how, "T" if trans == "N" else "N", data, places, gradient, token)
    left, right = (of_b, x) if trans == "N" else (x, of_b)
    rows, columns = _coordinates(places, data.shape[0])
    take = partial(jnp.take, axis=0, mode="fill", fill_value=0)  # padding of a BCOO lies outside: no gradient
    of_data = -(take(left, rows) * take(right, columns)).reshape(data.shape[0], -1).sum(axis=1)
    of_data = of_data if jnp.iscomplexobj(data) else of_data.real
    return of_data.astype(data.dtype), None, of_b, None


_solve.defvjp(_forward, _backward)


def _call(how: How, trans: str, data: Any, places: Any, b: Any, token: Any) -> tuple[Any, Any]:
    """(x, the token of the factors)."""
    arguments = (data, *places, b, token)
    if not any(isinstance(part, jax.core.Tracer) for part in arguments):
        device = _device(data)
        with _current(device):
            arrays = [_array(part, device) for part in arguments[:-1]]
            x, token = _solved(how[0], trans, arrays, np.asarray(token))
            return jax.device_put(x, device) if isinstance(x, np.ndarray) else jnp.from_dlpack(x), token
    shapes = jax.ShapeDtypeStruct(b.shape, b.dtype), jax.ShapeDtypeStruct(token.shape, token.dtype)
    ranks = tuple(part.ndim for part in arguments)

    def callback(on_gpu: bool, *arguments: Any) -> Any:
        return jax.pure_callback(
            partial(_on_host, *how, trans, ranks, on_gpu), shapes, *arguments, vmap_method="expand_dims"
        )

    where = {"cpu": partial(callback, False), "cuda": partial(callback, True)}
    found: tuple[Any, Any] = jax.lax.platform_dependent(*arguments, **where)
    return found


def _expected(arguments: tuple[Any, ...]) -> Any:
    """The device on which a program will run, as far as it is known when it is traced: that of constants of the
    program, or JAX's default device, or None. JAX does not report where traced arrays will be, not even to a callback.
    """
    for part in arguments:
        if isinstance(part, jax.Array) and not isinstance(part, jax.core.Tracer) and len(part.devices()) == 1:
            return next(iter(part.devices()))
    default = jax.config.jax_default_device
    return jax.local_devices(backend=default)[0] if isinstance(default, str) else default


def _on_host(
    options: Options, device: Any, trans: str, ranks: tuple[int, ...], on_gpu: bool, *arguments: Any
) -> tuple[np.ndarray, np.ndarray]:
    """The callback: its arguments have the axes of vmap in front, of length 1 where they are not mapped over."""
    with _current(device) if on_gpu else nullcontext():
        return _solved_each(options, trans, ranks, on_gpu, arguments)


def _solved_each(
    options: Options, trans: str, ranks: tuple[int, ...], on_gpu: bool, arguments: tuple[Any, ...]
) -> tuple[np.ndarray, np.ndarray]:
    given = [as_any_other(np.asarray(part)) for part in arguments]
    batches = [part.shape[: part.ndim - rank] for part, rank in zip(given, ranks, strict=True)]
    batch, b = np.broadcast_shapes(*batches), given[-2]
    x = np.empty((*batch, *b.shape[len(batch) :]), b.dtype)
    tokens = np.zeros((*batch, 2), np.uint32)  # NO_TOKEN: of systems solved together no factors are kept
    if (together := _batch(options, given, batches, ranks, batch, on_gpu)) is not None:
        rows = np.broadcast_to(b, x.shape).reshape(-1, x.shape[-1])
        solution = BatchSystem(together, options).solve(require_gpu().asarray(rows) if on_gpu else rows, trans)
        x[...] = (solution.get() if on_gpu else solution).reshape(x.shape)
        return x, tokens
    made: dict[Any, np.ndarray] = {}  # the tokens of this call, by the matrix
    for at in np.ndindex(batch):
        own = [tuple(i if long > 1 else 0 for i, long in zip(at, axes, strict=True)) for axes in batches]
        *arrays, known = (part[i] for part, i in zip(given, own, strict=True))
        matrix = tuple(own[:-2])
        known = made.get(matrix, known)
        if on_gpu:
            arrays = [require_gpu().asarray(part) for part in arrays]
        solution, made[matrix] = _solved(options, trans, arrays, known)
        x[at] = solution.get() if on_gpu else solution
        tokens[at] = made[matrix]
    return x, tokens


def _batch(
    options: Options, given: list[Any], batches: list[Any], ranks: tuple[int, ...], batch: tuple[int, ...], on_gpu: bool
) -> Batch | None:
    """The Batch of the matrices, if they have values of their own at the same places, each with one right-hand side;
    else None."""
    data, *places, _, _ = given
    mapped = batches[0] == batch and int(np.prod(batch)) > 1
    if not (mapped and options.by_the_rules and len(places) == 2 and ranks[-2] == 1):
        return None
    if any(int(np.prod(axes)) > 1 for axes in batches[1:-2]):
        return None
    indices, indptr = (part.reshape(-1) for part in places)
    values = data.reshape(-1, data.shape[-1])
    if on_gpu:
        values, indices, indptr = (require_gpu().asarray(part) for part in (values, indices, indptr))
    n = indptr.size - 1
    pattern = sparse_module(values).csr_matrix((values[0], indices, indptr), shape=(n, n))
    repeated = as_csr(pattern, diagonal=False).nnz < values.shape[1]
    return None if repeated else Batch(pattern, values)


def _solved(options: Options, trans: str, arrays: list[Any], token: np.ndarray) -> tuple[Any, np.ndarray]:
    """(x, token), for (data, *places, b) on one device."""
    *matrix, b = arrays
    with _lock:
        system = _systems.get(token.tobytes())
    if system is None:
        system = System(_matrix(*matrix, n=b.shape[0]), options)
        token = np.frombuffer(os.urandom(NO_TOKEN.nbytes), NO_TOKEN.dtype).copy()
    x = system.solve(b, trans).astype(b.dtype, copy=False)
    with _lock:
        _systems[token.tobytes()] = system
        _systems.move_to_end(token.tobytes())
        while len(_systems) > KEPT:
            _systems.popitem(last=False)
    return x, token


def _matrix(data: Any, indices: Any, indptr: Any = None, *, n: int) -> CSR:
    module = sparse_module(data)
    if indptr is not None:
        return as_csr(module.csr_matrix((data, indices, indptr), shape=(n, n)), diagonal=False)
    xp = namespace(data)
    inside = (indices >= 0).all(axis=1) & (indices < n).all(axis=1)
    if not bool(inside.all()):
        if bool(xp.asarray(data[~inside] != 0).any()):
            raise MatrixError("A stores entries other than zero outside of its shape.")
        data, indices = data[inside], indices[inside]
    return as_csr(module.coo_matrix((data, (indices[:, 0], indices[:, 1])), shape=(n, n)), diagonal=False)


def _parts(A: Any) -> tuple[Any, tuple[Any, ...]]:
    """(data, places): places (indices, indptr) by rows, or (indices (nse, 2),)."""
    if isinstance(A, sparse.BCSR | sparse.BCOO):
        if A.ndim != 2 or A.shape[0] != A.shape[1] or A.n_batch or A.n_dense:
            raise MatrixError(
                f"A has shape {A.shape}, n_batch={A.n_batch}, n_dense={A.n_dense}; "
                "one square matrix of numbers is needed."
            )
        return A.data, (A.indices, A.indptr) if isinstance(A, sparse.BCSR) else (A.indices,)
    if not isinstance(A, tuple | list) or len(A) != 3:
        raise MatrixError(f"A is a {type(A).__name__}; a BCSR, a BCOO or (data, indices, indptr) is needed.")
    data, indices, indptr = (jnp.asarray(part) for part in A)
    if {part.ndim for part in (data, indices, indptr)} != {1} or data.shape != indices.shape:
        raise MatrixError(
            f"data, indices and indptr have shapes {data.shape}, {indices.shape} and {indptr.shape}; "
            "(nnz,), (nnz,) and (n + 1,) are needed."
        )
    return data, (indices, indptr)


def _coordinates(places: tuple[Any, ...], nnz: int) -> tuple[Any, Any]:
    """The row and the column of each entry."""
    if len(places) == 1:
        return places[0][:, 0], places[0][:, 1]
    indices, indptr = places
    return jnp.repeat(jnp.arange(indptr.shape[0] - 1), jnp.diff(indptr), total_repeat_length=nnz), indices


def _device(x: Any) -> Any:
    """The one device that a JAX array lies on, which finelu can work on."""
    if len(x.devices()) != 1:
        raise DeviceError(f"A lies on {len(x.devices())} devices; put A and b on one.")
    (device,) = x.devices()
    if device.platform not in ("cpu", "gpu", "cuda"):
        raise DeviceError(f"A is on {device}; finelu works on the CPU and on NVIDIA GPUs: move A and b there.")
    return device


def _current(device: Any) -> AbstractContextManager[Any]:
    """Makes the device of JAX CuPy's current one, unless it is None."""
    on_cpu = device is None or device.platform == "cpu"
    current: AbstractContextManager[Any] = (
        nullcontext() if on_cpu else require_gpu().cuda.Device(device.local_hardware_id)
    )
    return current


def _array(x: Any, device: Any) -> Any:
    """The memory of x as a NumPy or CuPy array. An array that is committed to no device moves to this one."""
    x = x if isinstance(x, jax.Array) and x.committed else jax.device_put(x, device)
    if _device(x) != device:
        raise DeviceError(f"A's values are on {device}, but an array that belongs to them is on {_device(x)}.")
    return as_any_other(np.asarray(x)) if device.platform == "cpu" else require_gpu().from_dlpack(x)
