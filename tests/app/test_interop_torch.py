"""finelu.interop.torch: gradients by definition and by twin (dense torch), on every device, by bad input."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import ON_GPU, documented, one_line

import finelu as fl
from finelu.errors import DeviceError, MatrixError, NotConverged, ParameterError, ZeroPivot

torch = pytest.importorskip("torch")
solve = pytest.importorskip("finelu.interop.torch").solve
pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # torch announces its sparse tensors as beta

N = 8
DOUBLE = (torch.float64, torch.complex128)
TIGHT = {"recipe": fl.ILU0(), "method": "gmres", "rtol": 1e-13}


@pytest.fixture
def device(backend):
    if backend.name == "cuda" and not torch.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return backend.name


def parts(device, dtype=torch.float64, n=N):
    """crow, col, values of a dominant matrix without symmetry."""
    S = sp.csr_matrix(sp.random(n, n, 0.3, random_state=0) + sp.diags(np.full(n, 3.0)))
    S.sort_indices()
    values = torch.from_numpy(S.data).to(dtype)
    if dtype.is_complex:
        values = values + (0.3j * torch.from_numpy(np.random.default_rng(1).random(S.nnz))).to(dtype)
    crow, col = (torch.from_numpy(part).long().to(device) for part in (S.indptr, S.indices))
    return crow, col, values.to(device)


def right_hand_side(device, dtype=torch.float64, shape=(N,)):
    torch.manual_seed(0)
    return torch.randn(*shape, dtype=dtype).to(device)


def csr(device, dtype=torch.float64):
    return torch.sparse_csr_tensor(*parts(device, dtype), size=(N, N), check_invariants=True)


def coo(device, dtype=torch.float64):
    return csr(device, dtype).to_sparse_coo()


@pytest.mark.parametrize("shape", [(N,), (N, 3), (N, 1)])
@pytest.mark.parametrize("of_b", DOUBLE)
@pytest.mark.parametrize("of_A", DOUBLE)
def test_gradcheck(device, of_A, of_b, shape):
    crow, col, values = parts(device, of_A)
    b = right_hand_side(device, of_b, shape)
    inputs = values.requires_grad_(), b.requires_grad_()
    # what torch adds up on a GPU differs from run to run
    assert torch.autograd.gradcheck(lambda v, b: solve((crow, col, v), b, **TIGHT), inputs, nondet_tol=1e-9)


@pytest.mark.parametrize("dtype", DOUBLE)
def test_gradgradcheck(device, dtype):
    crow, col, values = parts(device, dtype)
    inputs = values.requires_grad_(), right_hand_side(device, dtype, (N, 2)).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda v, b: solve((crow, col, v), b, **TIGHT), inputs, nondet_tol=1e-9)


@pytest.mark.parametrize("dtype", DOUBLE)
@pytest.mark.parametrize("make", [csr, coo])
def test_gradients_of_a_sparse_tensor_are_those_of_the_dense_one_where_it_has_entries(device, make, dtype):
    A, b = make(device, dtype).requires_grad_(), right_hand_side(device, dtype).requires_grad_()
    weights = right_hand_side(device, dtype).flip(0)
    (solve(A, b, **TIGHT) * weights).abs().sum().backward()
    assert A.grad.layout is A.layout and A.grad.device == A.device
    dense, c = A.detach().to_dense().requires_grad_(), b.detach().clone().requires_grad_()
    (torch.linalg.solve(dense, c) * weights).abs().sum().backward()
    stored = A.detach().to_dense() != 0
    torch.testing.assert_close(A.grad.to_dense(), torch.where(stored, dense.grad, 0))
    torch.testing.assert_close(b.grad, c.grad)


def test_the_solution_is_that_of_torch(device):
    for dtype in (torch.float32, torch.complex64, *DOUBLE):
        A, b = csr(device, dtype), right_hand_side(device, dtype, (N, 2))
        x = solve(A, b)
        assert x.dtype == dtype and x.device == b.device and x.shape == b.shape
        torch.testing.assert_close(x, torch.linalg.solve(A.to_dense(), b), rtol=1e-4, atol=1e-5)


def test_a_duplicate_and_unsorted_entry_counts_as_in_the_sum(device):
    crow = torch.tensor([0, 3, 5], device=device)
    col = torch.tensor([1, 0, 0, 1, 0], device=device)
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 1.0], dtype=torch.float64, device=device).requires_grad_()
    b = torch.tensor([6.0, 5.0], dtype=torch.float64, device=device)
    assert torch.autograd.gradcheck(lambda v: solve((crow, col, v), b, **TIGHT), (values,), nondet_tol=1e-9)
    torch.testing.assert_close(solve((crow, col, values), b), torch.ones_like(b))


def test_a_hermitian_system_is_solved_by_cg_both_ways(device):
    A = fl.gallery.problem("poisson5:12")
    crow, col = (torch.from_numpy(part).to(device) for part in (A.indptr, A.indices))
    values = torch.from_numpy(A.data).to(device).requires_grad_()
    used = []

    def cg(A, b, **options):
        used.append(options["M"].recipe)
        return fl.cg(A, b, **options)

    b = right_hand_side(device, shape=(144,))
    solve((crow, col, values), b, recipe=fl.IC0(), method=cg).sum().backward()
    assert used == [fl.IC0(), fl.IC0()]
    y = solve((crow, col, values.detach()), torch.ones_like(b))
    x = solve((crow, col, values.detach()), b)
    rows = torch.repeat_interleave(torch.arange(144, device=device), crow.diff())
    torch.testing.assert_close(values.grad, -y[rows] * x[col.long()], rtol=1e-6, atol=1e-8)


def test_factors_that_exist_serve_as_the_recipe(device, backend):
    crow, col, values = parts(device)
    F = fl.ILU0().factor(backend.move(sp.csr_matrix(csr("cpu").to_dense().numpy())))
    calls = []
    for name in ("apply", "solve"):  # what Krylov methods call, and what their adjoints do
        plain = getattr(F, name)
        setattr(F, name, lambda r, trans="N", plain=plain: calls.append(trans) or plain(r, trans))
    x = solve((crow, col, values.requires_grad_()), right_hand_side(device), recipe=F)
    assert set(calls) == {"N"}
    x.sum().backward()
    assert set(calls) == {"N", "H"}  # the same factors, transposed


def test_memory_is_shared_with_torch_on_the_cpu():
    from finelu.interop.torch import _array

    values = parts("cpu")[2]
    assert np.shares_memory(_array(values), values.numpy())


@ON_GPU
def test_memory_is_shared_with_torch_on_a_gpu(backend, device):
    from finelu.interop.torch import _array, _tensor

    values = parts(device)[2]
    assert _array(values).data.ptr == values.data_ptr() == _tensor(_array(values), values).data_ptr()


@ON_GPU
def test_a_stream_of_torch_is_waited_for(backend, device):
    A, b = csr(device), right_hand_side(device)
    want = torch.linalg.solve(A.to_dense(), 3 * b)
    with torch.cuda.stream(torch.cuda.Stream()):
        busy = torch.randn(4000, 4000, device=device)
        for _ in range(20):
            busy = busy @ busy / 4000
        c = 3 * b + 0 * busy[0, :N].nan_to_num()  # late
        x = solve(A, c)
        torch.testing.assert_close(x + 0, want)


def test_conjugate_views_are_read_as_what_they_are(device):
    A, b = csr(device, torch.complex128), right_hand_side(device, torch.complex128)
    assert b.conj().is_conj()
    torch.testing.assert_close(solve(A, b.conj()), torch.linalg.solve(A.to_dense(), b.conj()))


def test_what_is_no_solution_is_an_error(device):
    with pytest.raises(
        NotConverged, match=r"A x = b did not converge to rtol=1e-13: gmres with ILU0.*maxiter"
    ) as error:
        solve(csr(device), right_hand_side(device), **TIGHT, maxiter=1)
    one_line(error)
    assert error.value.solution.iterations == 1


def test_what_is_no_gradient_is_an_error(device):
    calls = []

    def twice(A, b, **options):
        calls.append(1)
        return fl.gmres(A, b, **options | ({"maxiter": 1} if len(calls) > 1 else {}))

    b = right_hand_side(device).requires_grad_()
    x = solve(csr(device), b, method=twice, recipe=fl.Jacobi())
    with pytest.raises(NotConverged, match=r"the adjoint system A\^H y = g did not converge"):
        x.sum().backward()
    assert b.grad is None


def test_a_gradient_that_is_not_finite_is_an_error(device):
    b = right_hand_side(device).requires_grad_()
    x = solve(csr(device), b)
    with pytest.raises(MatrixError, match="the gradient that comes in holds NaN or Inf in row 0"):
        (x * float("nan")).sum().backward()


def test_values_changed_before_the_backward_pass_are_an_error(device):
    crow, col, values = parts(device)
    b = right_hand_side(device).requires_grad_()
    x = solve((crow, col, values), b)
    values *= 2
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        x.sum().backward()


def test_there_are_no_factors_says_so(device):
    crow, col, values = parts(device)
    values = torch.zeros_like(values)
    with pytest.raises(ZeroPivot, match="pivot of row 0"):
        solve((crow, col, values), right_hand_side(device), recipe=fl.ILU0(), method="gmres")


@pytest.mark.parametrize(
    ("A", "match"),
    [
        (torch.eye(N), "strided tensor; a sparse CSR or COO tensor"),
        (np.eye(N), "A is a ndarray"),
        (torch.ones(N, N + 1).to_sparse_csr(), r"shape \(8, 9\)"),
        (torch.eye(N).to_sparse_csr().to(torch.float16), "A's values: of torch.float16"),
        ((torch.zeros(N + 1), torch.zeros(3)), r"\(crow_indices, col_indices, values\)"),
        ((torch.arange(N + 1), torch.arange(N), torch.ones(3)), "9 row pointers, 8 column indices and 3 values"),
        ((torch.arange(N + 1), torch.arange(N), torch.full((N,), torch.nan)), "NaN or Inf in row 0"),
    ],
)
def test_what_is_no_matrix_is_refused(A, match):
    with pytest.raises(MatrixError, match=match) as error:
        solve(A, torch.ones(N))
    one_line(error)


def test_wrong_right_hand_sides_are_refused():
    for b, match in ((torch.ones(5), "b has shape"), (np.ones(N), "b is a ndarray"), (torch.ones(N).half(), "b: of")):
        with pytest.raises(MatrixError, match=match):
            solve(csr("cpu"), b)


@ON_GPU
def test_tensors_on_two_devices_are_refused(backend, device):
    with pytest.raises(DeviceError, match="b: on cpu, but A's values are on cuda"):
        solve(csr(device), torch.ones(N, dtype=torch.float64))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"recipe": "ilu9"}, "no recipe 'ilu9'"),
        ({"method": "jacobi"}, "there is no method .jacobi.; .*gmres"),
        ({"rtol": 2.0}, "rtol=2.0"),
        ({"maxiter": 0}, "maxiter=0"),
    ],
)
def test_wrong_options_are_refused(options, match):
    with pytest.raises(ParameterError, match=match):
        solve(csr("cpu"), right_hand_side("cpu"), **options)


PAGES = documented("interop", "torch") + documented("gradients", "torch") + documented("batches", "torch")


@pytest.mark.parametrize("code", PAGES)
def test_documented_examples_run(code):
    exec(code, {})


# Many matrices with one pattern


def several(device, dtype=torch.float64, k=3):
    """crow, col, values (k, nnz), b (k, N)."""
    crow, col, values = parts(device, dtype)
    factors = torch.linspace(1, 2, k, dtype=torch.float64).to(device)
    return crow, col, values * factors[:, None] + values.flip(0) / 50, right_hand_side(device, dtype, (k, N))


def dense_of(crow, col, values):
    rows = torch.repeat_interleave(torch.arange(N, device=crow.device), crow.diff())
    return torch.zeros(N, N, dtype=values.dtype, device=values.device).index_put((rows, col), values)


@pytest.fixture
def batches(monkeypatch):
    """The Batches that are solved together."""
    module, found = pytest.importorskip("finelu.interop.torch"), []

    class Seen(module.BatchSystem):
        def __init__(self, batch, options):
            found.append(batch)
            super().__init__(batch, options)

    monkeypatch.setattr(module, "BatchSystem", Seen)
    return found


@pytest.mark.parametrize("dtype", DOUBLE)
def test_matrices_of_one_pattern_are_solved_together(device, batches, dtype):
    crow, col, values, b = several(device, dtype)
    want = torch.stack([torch.linalg.solve(dense_of(crow, col, v), c) for v, c in zip(values, b, strict=True)])
    torch.testing.assert_close(solve((crow, col, values), b, rtol=1e-12), want)
    torch.testing.assert_close(solve((crow, col, values), b[1], rtol=1e-12)[1], want[1])
    size = {"size": (3, N, N), "check_invariants": True}
    A = torch.sparse_csr_tensor(crow.expand(3, -1).contiguous(), col.expand(3, -1).contiguous(), values, **size)
    torch.testing.assert_close(solve(A, b, rtol=1e-12), want)
    assert [batch.k for batch in batches] == [3, 3, 3]


@pytest.mark.parametrize("of_b", DOUBLE)
@pytest.mark.parametrize("of_A", DOUBLE)
def test_gradcheck_of_matrices_of_one_pattern(device, of_A, of_b):
    crow, col, values, _ = several(device, of_A)
    inputs = values.requires_grad_(), right_hand_side(device, of_b, (3, N)).requires_grad_()
    assert torch.autograd.gradcheck(lambda v, b: solve((crow, col, v), b, rtol=1e-13), inputs, nondet_tol=1e-9)
    assert torch.autograd.gradgradcheck(lambda v, b: solve((crow, col, v), b, rtol=1e-13), inputs, nondet_tol=1e-9)


def test_vmap_over_the_values_solves_the_systems_together(device, batches):
    crow, col, values, b = several(device, k=6)

    def one(v, c):
        return solve((crow, col, v), c, rtol=1e-12)

    want = torch.stack([torch.linalg.solve(dense_of(crow, col, v), c) for v, c in zip(values, b, strict=True)])
    torch.testing.assert_close(torch.vmap(one)(values, b), want)
    pairs = torch.vmap(torch.vmap(one))(values.reshape(2, 3, -1), b.reshape(2, 3, N))
    torch.testing.assert_close(pairs.reshape(6, N), want)
    assert [batch.k for batch in batches] == [6, 6]

    def misfit(v, c, solved):
        return (solved(v, c) ** 2 * torch.arange(1.0, N + 1, device=v.device)).sum()

    found = torch.vmap(torch.func.grad(lambda v, c: misfit(v, c, one)))(values, b)
    twin = torch.func.grad(lambda v, c: misfit(v, c, lambda v, c: torch.linalg.solve(dense_of(crow, col, v), c)))
    torch.testing.assert_close(found, torch.stack([twin(v, c) for v, c in zip(values, b, strict=True)]))
    assert [batch.k for batch in batches] == [6, 6, 6, 6]  # once more for the gradients


def test_vmap_over_b_alone_factors_once_and_with_a_recipe_systems_are_solved_one_by_one(device, batches):
    factored = []

    class Counting(fl.ILU0):
        def factor(self, A):
            factored.append(1)
            return super().factor(A)

    crow, col, values, b = several(device)
    with_recipe = {"recipe": Counting(), "method": "gmres", "rtol": 1e-13}
    X = torch.vmap(lambda c: solve((crow, col, values[0]), c, **with_recipe))(b)
    torch.testing.assert_close(X, torch.linalg.solve(dense_of(crow, col, values[0]), b.T).T)
    assert len(factored) == 1
    X = torch.vmap(lambda v, c: solve((crow, col, v), c, **with_recipe))(values, b)
    torch.testing.assert_close(X[2], torch.linalg.solve(dense_of(crow, col, values[2]), b[2]))
    assert len(factored) == 4 and not batches


def test_what_is_no_batch_is_named(device):
    crow, col, values, b = several(device)
    other = torch.stack([col, col.flip(0), col])
    size = {"size": (3, N, N), "check_invariants": False}
    differs = torch.sparse_csr_tensor(crow.expand(3, -1).contiguous(), other, values, **size)
    with pytest.raises(MatrixError, match="matrix 1 of A stores entries at other places"):
        solve(differs, b)
    with pytest.raises(MatrixError, match=r"b has shape \(2, 8\), but the Batch has 3 systems"):
        solve((crow, col, values), b[:2])
    with pytest.raises(MatrixError, match="a Batch of no matrices; k >= 1 rows are needed"):
        solve((crow, col, values[:0]), b[:0])
    with pytest.raises(ParameterError, match="leave recipe and method out"):
        solve((crow, col, values), b, **TIGHT)
    with pytest.raises(NotConverged, match="system 1 of the batch, A x = b did not converge"):
        solve((crow, col, values * torch.tensor([[1.0], [0.0], [1.0]], device=values.device)), b)
