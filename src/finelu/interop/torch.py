"""Linear solves inside PyTorch: `solve(A, b)` can be differentiated with respect to b and the values of A."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from finelu.device import require_gpu
from finelu.errors import DeviceError, MatrixError
from finelu.interop.adjoint import Options, System
from finelu.matrix import DTYPES, as_csr, sparse_module

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

    A : (n, n), a sparse CSR or COO tensor, or a tuple (crow_indices, col_indices, values) of dense tensors.
    b : (n,) or (n, k), on the device of A; k solves with the same factors.
    recipe, method, rtol, maxiter : as in `finelu.interop.adjoint.Options`; gradients are solved for in the same way.
    Returns x of b's shape, in the wider dtype of A and b. Tensors are read without a copy, through DLPack on a GPU.
    Raises NotConverged instead of returning a wrong solution, or in the backward pass a wrong gradient; MatrixError,
    DeviceError and ParameterError for arguments that it cannot work with; the exceptions of `recipe.factor`.
    Gradients: with x' the gradient of x, b' = A^-H x' by a solve with the same factors, and a_ij' = -b'_i conj(x_j)
    for each entry that A stores. Cost: the factors, k solves, and k more for the gradients; the factors are kept until
    then.
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
    n = crow.numel() - 1
    options = Options(recipe=recipe, method=method, rtol=rtol, maxiter=maxiter)
    with _device(values):
        arrays = tuple(_array(part) for part in (values, columns, crow))
        module = sparse_module(arrays[0])
        system = System(as_csr(module.csr_matrix(arrays, shape=(n, n)), diagonal=False), options)
    return _Solve.apply(values, b, system, (crow, columns), False)


class _Solve(torch.autograd.Function):  # type: ignore[misc, unused-ignore]
    """A^-1 b, or A^-H b if `adjoint`, as a function of A's values and b; its backward pass is another such solve."""

    @staticmethod
    def forward(
        values: torch.Tensor, b: torch.Tensor, system: System, places: tuple[Any, Any], adjoint: bool
    ) -> torch.Tensor:
        with _device(values):
            return _tensor(system.solve(_array(b), "H" if adjoint else "N"), b)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        values, b, ctx.system, ctx.places, ctx.adjoint = inputs
        ctx.b_is_complex = b.is_complex()
        ctx.save_for_backward(values, output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        values, x = ctx.saved_tensors
        of_b = _Solve.apply(values, gradient, ctx.system, ctx.places, not ctx.adjoint)
        of_values = None
        if ctx.needs_input_grad[0]:
            crow, columns = ctx.places
            rows = torch.repeat_interleave(torch.arange(len(crow) - 1, device=crow.device), crow.diff())
            # A' = -b' x^H; where x = A^-H b it is that of A^H, so that A' = -x b'^H
            left, right = (x, of_b) if ctx.adjoint else (of_b, x)
            left, right = (part.reshape(len(part), -1).unbind(1) for part in (left, right))
            of_values = torch.zeros_like(values)
            for u, v in zip(left, right, strict=True):
                product = u[rows] * v[columns].conj()
                of_values = of_values - (product if values.is_complex() else product.real)
            of_values = of_values.to(values.dtype)
        return of_values, of_b if ctx.b_is_complex else of_b.real, None, None, None


def _parts(A: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(crow_indices, col_indices, values) of A, through which gradients reach A."""
    if isinstance(A, tuple | list):
        if len(A) != 3 or not all(isinstance(part, torch.Tensor) and part.ndim == 1 for part in A):
            raise MatrixError("A as a tuple must be (crow_indices, col_indices, values), one-dimensional tensors.")
        crow, columns, values = A
        if crow.numel() < 2 or columns.shape != values.shape:
            raise MatrixError(
                f"A has {crow.numel()} row pointers, {columns.numel()} column indices and {values.numel()} values; "
                "n + 1, nnz and nnz are needed."
            )
        return crow, columns, values
    if not isinstance(A, torch.Tensor) or A.layout not in (torch.sparse_csr, torch.sparse_coo):
        kind = f"{A.layout} tensor" if isinstance(A, torch.Tensor) else type(A).__name__
        raise MatrixError(f"A is a {kind}; a sparse CSR or COO tensor is needed (A.to_sparse_csr()).")
    if A.ndim != 2 or A.shape[0] != A.shape[1] or A.dense_dim():
        raise MatrixError(f"A has shape {tuple(A.shape)}; one square matrix of numbers is needed.")
    if A.layout is torch.sparse_csr:
        return A.crow_indices(), A.col_indices(), A.values()
    A = A.coalesce()
    rows, columns = A.indices()
    crow = torch.searchsorted(rows.contiguous(), torch.arange(A.shape[0] + 1, device=A.device))
    return crow, columns, A.values()


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
