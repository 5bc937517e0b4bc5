"""Linear solves inside PyTorch: `solve(A, b)` can be differentiated with respect to b and the values of A."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from finelu.device import namespace, require_gpu
from finelu.errors import DeviceError, MatrixError
from finelu.interop.adjoint import BatchSystem, Options, System
from finelu.matrix import DTYPES, as_csr, sparse_module
from finelu.matrix.batch import Batch

try:
    import torch
except ImportError as error:
    raise ImportError("finelu.interop.torch needs PyTorch: pip install 'finelu[torch]'.") from error


def solve(
    A: torch.Tensor | tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    b: torch.Tensor,
    *,
    recipe: Any = "auto",
    method: str | Callable[..., Any] = "auto",
    rtol: float | None = None,
    maxiter: int | None = None,
) -> torch.Tensor:
    """x with A x = b, differentiable as often as wanted.

    A : (n, n), a sparse CSR or COO tensor, or a tuple (crow_indices, col_indices, values) of dense tensors. Or k
        matrices with entries at the same places: a CSR tensor (k, n, n), or a tuple whose values are (k, nnz).
    b : (n,) or (n, m), on the device of A; m solves with the same factors. For k matrices (k, n), or (n,) for all.
    recipe, method, rtol, maxiter : as in `finelu.interop.adjoint.Options`; gradients are solved for in the same way.
    Returns x of b's shape, in the wider dtype of A and b. Tensors are read without a copy, through DLPack on a GPU.
    Raises NotConverged instead of returning a wrong solution, or in the backward pass a wrong gradient; MatrixError,
    DeviceError and ParameterError for arguments that it cannot work with; the exceptions of `recipe.factor`.
    Gradients: with x' the gradient of x, b' = A^-H x' by a solve with the same factors, and a_ij' = -b'_i conj(x_j)
    for each entry that A stores. Cost: the factors, m solves, and m more for the gradients; the factors are kept until
    then. k matrices are solved together, as `finelu.solve` does those of a `Batch`, and gradients take as long; recipe
    and method are left out. `torch.vmap` over the values does the same, where recipe and method are left out and b is
    (n,), else it solves one system after the other; over b alone it factors A once.
    """
    crow, columns, values = _parts(A)
    if not isinstance(b, torch.Tensor):
        raise MatrixError(f"b is a {type(b).__name__}; a torch tensor is needed.")
    tensors = {"A's values": values, "A's rows": crow, "A's columns": columns, "b": b}
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided:
            raise MatrixError(f"{name}: a dense tensor is needed; this one is {tensor.layout}.")
        if tensor.device != values.device:
            raise DeviceError(f"{name}: on {tensor.device}, but A's values are on {values.device}; move one of them.")
    for name in ("A's values", "b"):
        if str(tensors[name].dtype).removeprefix("torch.") not in DTYPES:
            raise MatrixError(f"{name}: of {tensors[name].dtype}; one of {', '.join(DTYPES)} is needed.")
    options, places = Options(recipe=recipe, method=method, rtol=rtol, maxiter=maxiter), (crow, columns)
    if values.ndim == 2:
        k, n = values.shape[0], crow.numel() - 1
        return _SolveBatch.apply(values, b.expand(k, n) if b.shape == (n,) else b, options, places, False)
    return _Solve.apply(values, b, _Kept(options), places, False)


class _Kept:
    """The factors of a matrix, once they are made."""

    def __init__(self, options: Options):
        self.options = options
        self._system: System | None = None

    def system(self, values: torch.Tensor, places: tuple[torch.Tensor, torch.Tensor]) -> System:
        if self._system is None:
            self._system = System(as_csr(_matrix(_array(values), places), diagonal=False), self.options)
        return self._system


def _matrix(values: Any, places: tuple[torch.Tensor, torch.Tensor]) -> Any:
    """The sparse matrix with these values (nnz,)."""
    crow, columns = places
    n = crow.numel() - 1
    return sparse_module(values).csr_matrix((values, _array(columns), _array(crow)), shape=(n, n))


class _Solve(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """A^-1 b, or A^-H b if `adjoint`, as a function of A's values and b; its backward pass is another such solve."""

    @staticmethod
    def forward(
        values: torch.Tensor, b: torch.Tensor, kept: _Kept, places: tuple[Any, Any], adjoint: bool
    ) -> torch.Tensor:
        with _device(values):
            return _tensor(kept.system(values, places).solve(_array(b), "H" if adjoint else "N"), b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        values, b, ctx.kept, ctx.places, ctx.adjoint = inputs
        ctx.b_is_complex = b.is_complex()
        ctx.save_for_backward(values, output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, x = ctx.saved_tensors
        of_b = _Solve.apply(values, gradient, ctx.kept, ctx.places, not ctx.adjoint)
        of_values = None
        if ctx.needs_input_grad[0]:
            rows, columns = _coordinates(ctx.places)
            # A' = -b' x^H; where x = A^-H b it is that of A^H, so that A' = -x b'^H
            left, right = (x, of_b) if ctx.adjoint else (of_b, x)
            left, right = (part.reshape(len(part), -1).unbind(1) for part in (left, right))
            of_values = torch.zeros_like(values)
            for u, v in zip(left, right, strict=True):
                product = u[rows] * v[columns].conj()
                of_values = of_values - (product if values.is_complex() else product.real)
            of_values = of_values.to(values.dtype)
        return of_values, of_b if ctx.b_is_complex else of_b.real, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, values: torch.Tensor, b: torch.Tensor, kept: _Kept, places: Any, adjoint: bool
    ) -> tuple[torch.Tensor, int]:
        if in_dims[0] is None:
            b = b.movedim(in_dims[1], -1)
            x = _Solve.apply(values, b.reshape(b.shape[0], -1), kept, places, adjoint)
            return x.reshape(b.shape), b.ndim - 1
        values, b = (_mapped(part, axis, info.batch_size) for part, axis in zip((values, b), in_dims))
        if kept.options.by_the_rules and b.ndim == 2:
            return _SolveBatch.apply(values, b, kept.options, places, adjoint), 0
        each = [_Solve.apply(v, c, _Kept(kept.options), places, adjoint) for v, c in zip(values, b, strict=True)]
        return torch.stack(each), 0


class _SolveBatch(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """A_s^-1 b_s, or A_s^-H b_s if `adjoint`, as a function of the values (k, nnz) and b (k, n)."""

    @staticmethod
    def forward(
        values: torch.Tensor, b: torch.Tensor, options: Options, places: tuple[Any, Any], adjoint: bool
    ) -> torch.Tensor:
        with _device(values):
            of_all = _array(values)
            some = (
                of_all[0] if len(of_all) else namespace(of_all).ones(of_all.shape[1], of_all.dtype)
            )  # Batch refuses it
            system = BatchSystem(Batch(_matrix(some, places), of_all), options)
            return _tensor(system.solve(_array(b), "H" if adjoint else "N"), b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        values, b, ctx.options, ctx.places, ctx.adjoint = inputs
        ctx.b_is_complex = b.is_complex()
        ctx.save_for_backward(values, output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, x = ctx.saved_tensors
        of_b = _SolveBatch.apply(values, gradient, ctx.options, ctx.places, not ctx.adjoint)
        of_values = None
        if ctx.needs_input_grad[0]:
            rows, columns = _coordinates(ctx.places)
            left, right = (x, of_b) if ctx.adjoint else (of_b, x)
            product = left[:, rows] * right[:, columns].conj()
            of_values = -(product if values.is_complex() else product.real).to(values.dtype)
        return of_values, of_b if ctx.b_is_complex else of_b.real, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: Any, values: torch.Tensor, b: torch.Tensor, options: Options, places: Any, adjoint: bool
    ) -> tuple[torch.Tensor, int]:
        values, b = (_mapped(part, axis, info.batch_size) for part, axis in zip((values, b), in_dims))
        x = _SolveBatch.apply(values.flatten(0, 1), b.flatten(0, 1), options, places, adjoint)
        return x.reshape(b.shape), 0


def _mapped(part: torch.Tensor, axis: int | None, size: int) -> torch.Tensor:
    """The tensor with the axis of vmap in front, of this size."""
    return part.expand(size, *part.shape) if axis is None else part.movedim(axis, 0)


def _coordinates(places: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The row and the column of each entry."""
    crow, columns = places
    return torch.repeat_interleave(torch.arange(len(crow) - 1, device=crow.device), crow.diff()), columns


def _parts(A: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(crow_indices, col_indices, values) of A, through which gradients reach A."""
    if isinstance(A, tuple | list):
        if len(A) != 3 or [part.ndim if isinstance(part, torch.Tensor) else -1 for part in A] not in (
            [1, 1, 1],
            [1, 1, 2],
        ):
            raise MatrixError(
                "A as a tuple must be (crow_indices, col_indices, values), one-dimensional tensors; of k matrices "
                "values are (k, nnz)."
            )
        crow, columns, values = A
        if crow.numel() < 2 or columns.shape != values.shape[-1:]:
            raise MatrixError(
                f"A has {crow.numel()} row pointers, {columns.numel()} column indices and {values.shape[-1]} values; "
                "n + 1, nnz and nnz are needed."
            )
        return crow, columns, values
    if not isinstance(A, torch.Tensor) or A.layout not in (torch.sparse_csr, torch.sparse_coo):
        kind = f"{A.layout} tensor" if isinstance(A, torch.Tensor) else type(A).__name__
        raise MatrixError(f"A is a {kind}; a sparse CSR or COO tensor is needed (A.to_sparse_csr()).")
    several = A.ndim == 3 and A.layout is torch.sparse_csr
    if not (several or A.ndim == 2) or A.shape[-2] != A.shape[-1] or A.dense_dim():
        raise MatrixError(f"A has shape {tuple(A.shape)}; one square matrix of numbers is needed, or CSR (k, n, n).")
    if A.layout is torch.sparse_csr:
        crow, columns = A.crow_indices(), A.col_indices()
        return (*_of_all(crow, columns), A.values()) if several else (crow, columns, A.values())
    A = A.coalesce()
    rows, columns = A.indices()
    crow = torch.searchsorted(rows.contiguous(), torch.arange(A.shape[0] + 1, device=A.device))
    return crow, columns, A.values()


def _of_all(crow: torch.Tensor, columns: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The places of the entries of k matrices, which have them in common."""
    if not len(crow):
        raise MatrixError("A has no matrices; (k, n, n) with k >= 1 is needed.")
    same = (crow == crow[:1]).all(dim=1) & (columns == columns[:1]).all(dim=1)
    if not bool(same.all()):
        s = int((~same).to(torch.int8).argmax())
        raise MatrixError(f"matrix {s} of A stores entries at other places than matrix 0; all must have one pattern.")
    return crow[0], columns[0]


def _device(tensor: torch.Tensor) -> AbstractContextManager[Any]:
    """Makes the device of the tensor CuPy's current one."""
    if tensor.device.type == "cpu":
        return nullcontext()
    if tensor.device.type != "cuda" or torch.version.cuda is None:
        raise DeviceError(f"A is on {tensor.device}; finelu works on the CPU and on NVIDIA GPUs: move A and b there.")
    device: AbstractContextManager[Any] = require_gpu().cuda.Device(tensor.device.index)
    return device


def _array(tensor: torch.Tensor) -> Any:
    """The memory of the tensor as a NumPy or CuPy array; a copy if torch conjugates or negates it only when read."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.device.type == "cpu":
        return tensor.numpy()
    return require_gpu().from_dlpack(tensor.contiguous())  # orders the work of torch's stream before that of CuPy's


def _tensor(array: Any, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(array) if like.device.type == "cpu" else torch.from_dlpack(array)
