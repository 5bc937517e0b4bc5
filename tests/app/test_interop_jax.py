"""finelu.interop.jax: gradients by definition, under jit and vmap, by twin (dense JAX), by bad input."""

import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from checks import documented, one_line

import finelu as fl
from finelu.errors import MatrixError, NotConverged, ParameterError

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # memory of a GPU is left to CuPy
jax = pytest.importorskip("jax")
interop = pytest.importorskip("finelu.interop.jax")
import jax.numpy as jnp  # noqa: E402 - what follows needs JAX
from jax.experimental import sparse  # noqa: E402
from jax.test_util import check_grads  # noqa: E402

solve = interop.solve
N = 8
TIGHT = {"recipe": fl.ILU0(), "method": "gmres", "rtol": 1e-13}


@pytest.fixture(autouse=True)
def double_precision_on_the_cpu():
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.fixture
def device(backend):
    """Where JAX puts its arrays."""
    if backend.name == "cuda" and jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    with jax.default_device(jax.devices("cpu" if backend.name == "cpu" else "gpu")[0]):
        yield backend.name


def matrix():
    S = sp.csr_matrix(sp.random(N, N, 0.3, random_state=0) + sp.diags(np.full(N, 3.0)))
    S.sort_indices()
    return S


def parts(dtype="float64"):
    S = matrix()
    data = S.data + (0.3j * np.random.default_rng(1).random(S.nnz) if dtype == "complex128" else 0)
    return jnp.asarray(data.astype(dtype)), jnp.asarray(S.indices), jnp.asarray(S.indptr)


def dense(data):
    S = matrix()
    rows = np.repeat(np.arange(N), np.diff(S.indptr))
    return jnp.zeros((N, N), data.dtype).at[rows, S.indices].add(data)


def right_hand_side(dtype="float64", shape=(N,), seed=0):
    rng = np.random.default_rng(seed)
    b = rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype == "complex128" else 0)
    return jnp.asarray(b.astype(dtype))


def of_values(data, b):
    """The solution as a function of A's values and b."""
    return solve((data, *parts()[1:]), b, **TIGHT)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize("shape", [(N,), (N, 2)])
@pytest.mark.parametrize("of_b", ["float64", "complex128"])
@pytest.mark.parametrize("of_A", ["float64", "complex128"])
def test_gradients_are_those_of_differences(device, of_A, of_b, shape, compiled):
    f = jax.jit(of_values) if compiled else of_values
    check_grads(f, (parts(of_A)[0], right_hand_side(of_b, shape)), order=1, modes=["rev"])


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_second_derivatives_are_those_of_differences(device, dtype):
    check_grads(of_values, (parts(dtype)[0], right_hand_side(dtype)), order=2, modes=["rev"])


def test_gradients_are_those_of_the_dense_solve_where_A_has_entries(device):
    data, b, weights = parts("complex128")[0], right_hand_side("complex128"), right_hand_side(seed=1)
    got = jax.grad(lambda d, b: (abs(of_values(d, b)) * weights).sum(), (0, 1))(data, b)
    want = jax.grad(lambda d, b: (abs(jnp.linalg.solve(dense(d), b)) * weights).sum(), (0, 1))(data, b)
    for ours, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_bcoo_and_bcsr_are_taken_and_have_gradients(device, compiled):
    A, b = sparse.BCOO.from_scipy_sparse(matrix()), right_hand_side()
    want = jnp.linalg.solve(A.todense(), b)
    gradient = jax.grad(lambda d: jnp.linalg.solve(dense(d), b).sum())(parts()[0])
    for of in (A, sparse.BCSR.from_bcoo(A)):
        f = jax.jit(solve) if compiled else solve
        np.testing.assert_allclose(f(of, b), want, rtol=1e-8)
        got = jax.grad(lambda A, f=f: f(A, b).sum(), allow_int=True)(of)
        np.testing.assert_allclose(got.data, gradient, rtol=1e-6, atol=1e-8)


def test_padding_of_a_bcoo_is_no_entry_and_has_no_gradient(device):
    A = sparse.BCOO.from_scipy_sparse(matrix())
    twice = sparse.BCOO((jnp.tile(A.data, 2) / 2, jnp.tile(A.indices, (2, 1))), shape=A.shape)
    padded = sparse.bcoo_sum_duplicates(twice, nse=twice.nse)
    assert (padded.indices[-1] == N).all()
    b = right_hand_side()
    for of in (twice, padded):
        np.testing.assert_allclose(solve(of, b), solve(A, b), rtol=1e-8)
    gradient = jax.grad(lambda A: solve(A, b).sum(), allow_int=True)(padded).data
    np.testing.assert_allclose(gradient[: A.nse], jax.grad(lambda d: of_values(d, b).sum())(parts()[0]), rtol=1e-6)
    assert (gradient[A.nse :] == 0).all()


def test_vmap_over_b_factors_once(device):
    factored = []

    class Counting(fl.ILU0):
        def factor(self, A):
            factored.append(1)
            return super().factor(A)

    data, *places = parts()
    B = right_hand_side(shape=(5, N))
    X = jax.vmap(lambda b: solve((data, *places), b, recipe=Counting(), method="gmres", rtol=1e-13))(B)
    assert len(factored) == 1
    np.testing.assert_allclose(X, jnp.linalg.solve(dense(data), B.T).T, rtol=1e-9)


def test_vmap_over_A_and_b_and_of_gradients(device):
    data = parts()[0] * jnp.asarray(np.random.default_rng(2).uniform(1, 2, (3, 1)))
    B = right_hand_side(shape=(3, N))
    want = [of_values(d, b) for d, b in zip(data, B, strict=True)]
    np.testing.assert_allclose(jax.vmap(of_values)(data, B), jnp.stack(want), rtol=1e-9)
    both = jax.vmap(jax.vmap(of_values, (None, 0)), (0, None))(data, B)
    np.testing.assert_allclose(both[1, 2], of_values(data[1], B[2]), rtol=1e-9)
    gradient = jax.grad(lambda d, b: of_values(d, b).sum())
    np.testing.assert_allclose(jax.vmap(gradient)(data, B)[1], gradient(data[1], B[1]), rtol=1e-7, atol=1e-10)


@pytest.fixture
def batches(monkeypatch):
    """The Batches that are solved together."""
    found = []

    class Seen(interop.BatchSystem):
        def __init__(self, batch, options):
            found.append(batch)
            super().__init__(batch, options)

    monkeypatch.setattr(interop, "BatchSystem", Seen)
    return found


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_vmap_over_the_values_solves_the_systems_together(device, batches, compiled, dtype):
    data, *places = parts(dtype)
    data = data * jnp.asarray(np.random.default_rng(2).uniform(1, 2, (2, 3, 1)))
    B = right_hand_side(shape=(2, 3, N)).astype(dtype)
    each = jax.vmap(jax.vmap(lambda d, b: solve((d, *places), b, rtol=1e-12)))
    X = (jax.jit(each) if compiled else each)(data, B)
    assert [batch.k for batch in batches] == [6]
    np.testing.assert_allclose(X, jnp.linalg.solve(jax.vmap(jax.vmap(dense))(data), B[..., None])[..., 0], rtol=1e-9)
    weights = jnp.arange(1.0, N + 1)

    def misfit(d, b):
        return (abs(solve((d, *places), b, rtol=1e-12)) * weights).sum()

    def dense_misfit(d, b):
        return (abs(jnp.linalg.solve(dense(d), b)) * weights).sum()

    both = [jax.vmap(jax.grad(f, (0, 1)))(data[0], B[0]) for f in (misfit, dense_misfit)]
    assert [batch.k for batch in batches] == [6, 3, 3]  # once more for the gradients
    for of_values, of_dense in zip(*both, strict=True):
        np.testing.assert_allclose(of_values, of_dense, rtol=1e-7, atol=1e-10)


def test_one_right_hand_side_for_all_systems_of_a_batch(device, batches):
    data, *places = parts()
    data, b = data * jnp.asarray([[1.0], [2.0], [3.0]]), right_hand_side()
    X = jax.vmap(lambda d: solve((d, *places), b))(data)
    assert [batch.k for batch in batches] == [3]
    np.testing.assert_allclose(X, X[0] / jnp.asarray([[1.0], [2.0], [3.0]]), rtol=1e-9)


def test_systems_that_are_no_batch_are_solved_one_by_one(device, batches):
    data, indices, indptr = parts()
    data, b = data * jnp.asarray([[1.0], [2.0]]), right_hand_side()
    twice = jnp.repeat(data, 2, axis=1) / 2, jnp.repeat(indices, 2), 2 * indptr  # stored twice: they are added up
    want = jax.vmap(lambda d: jnp.linalg.solve(dense(d), b))(data)
    for X in (
        jax.vmap(lambda d: solve((d, indices, indptr), b, **TIGHT))(data),
        jax.vmap(lambda d: solve((d, *twice[1:]), b))(twice[0]),
        jax.vmap(lambda d, j: solve((d, j, indptr), b))(data, jnp.stack([indices, indices])),
        jax.vmap(lambda d: solve((d, indices, indptr), jnp.stack([b, b], axis=1)))(data)[..., 1],
    ):
        np.testing.assert_allclose(X, want, rtol=1e-8)
    assert not batches


def test_a_system_of_a_batch_without_a_solution_is_named(device):
    data, *places = parts()
    data = jnp.stack([data, 0 * data, data])
    with pytest.raises(Exception, match="system 1 of the batch, A x = b did not converge"):
        jax.block_until_ready(jax.vmap(lambda d: solve((d, *places), right_hand_side()))(data))


def test_the_jacobian_is_the_inverse(device):
    data, b = parts()[0], right_hand_side()
    np.testing.assert_allclose(jax.jacrev(lambda b: of_values(data, b))(b), jnp.linalg.inv(dense(data)), atol=1e-9)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "jit"])
def test_gradients_use_the_factors_of_the_solve(device, compiled):
    factored = []

    class Counting(fl.ILU0):
        def factor(self, A):
            factored.append(1)
            return super().factor(A)

    recipe = Counting()
    gradient = jax.grad(lambda d, i, p, b: solve((d, i, p), b, recipe=recipe, method="gmres").sum())
    gradient = jax.jit(gradient) if compiled else gradient
    gradient(*parts(), right_hand_side()).block_until_ready()
    assert len(factored) == 1


def test_gradients_come_out_where_the_factors_are_gone(device):
    data, b = parts()[0], right_hand_side()
    want = jax.grad(lambda d: of_values(d, b).sum())(data)
    _, pull_back = jax.vjp(of_values, data, b)
    interop._systems.clear()
    np.testing.assert_allclose(pull_back(jnp.ones(N))[0], want, rtol=1e-9)
    for k in range(2 * interop.KEPT):
        of_values(data * (k + 1), b)
    assert len(interop._systems) == interop.KEPT


def test_single_precision(device):
    with jax.enable_x64(False):
        data, *places = (jnp.asarray(part) for part in (matrix().data, matrix().indices, matrix().indptr))
        x = solve((data, *places), jnp.ones(N))
        assert x.dtype == jnp.float32
        np.testing.assert_allclose(x, np.linalg.solve(matrix().toarray(), np.ones(N)), rtol=1e-4)


def test_the_solution_and_the_gradients_are_on_the_device_of_the_system():
    program = """
import jax, jax.numpy as jnp, numpy as np
jax.config.update("jax_num_cpu_devices", 2)
jax.config.update("jax_enable_x64", True)
from finelu.interop.jax import _expected, solve
first, second = jax.devices("cpu")
parts = [jax.device_put(x, second) for x in (np.array([2.0, 3.0]), np.arange(2), np.arange(3))]
b = jax.device_put(np.ones(2), second)
f = lambda data, b: solve((data, *parts[1:]), b)
x = f(parts[0], b)
gradients = jax.grad(lambda data, b: f(data, b).sum(), (0, 1))(parts[0], b)
for y in (x, *gradients, jax.jit(f)(parts[0], b)):
    assert y.devices() == {second}, y.devices()
np.testing.assert_allclose(x, [1 / 2, 1 / 3])
seen = []
jax.jit(lambda data: seen.append(_expected((data, *parts[1:]))) or data)(parts[0])
with jax.default_device(second):
    jax.jit(lambda data: seen.append(_expected((data,))) or data)(np.ones(2))
jax.jit(lambda data: seen.append(_expected((data,))) or data)(np.ones(2))
assert seen == [second, second, None], seen
"""
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ | {"JAX_PLATFORMS": "cpu"})


def test_the_callback_of_a_gpu_works_on_the_device_that_was_expected(meanwhile):
    used = []

    class Device:
        def __init__(self, number):
            self.number = number

        def __enter__(self):
            used.append(self.number)

        def __exit__(self, *_):
            used.append("left")

    cupy = SimpleNamespace(cuda=SimpleNamespace(Device=Device))
    meanwhile(interop, require_gpu=lambda: cupy, _solved_each=lambda *_: used.append("solved"))
    third = SimpleNamespace(platform="gpu", local_hardware_id=3)
    interop._on_host(None, third, "N", (), True)
    assert used == [3, "solved", "left"]
    interop._on_host(None, third, "N", (), False)
    interop._on_host(None, None, "N", (), True)
    assert used[3:] == ["solved", "solved"]


def test_memory_is_shared_with_jax_on_the_cpu():
    x = jnp.arange(100.0)
    view = interop._array(x, jax.devices("cpu")[0])
    assert np.shares_memory(view, np.asarray(x)) and view.flags.writeable


def test_what_is_no_solution_is_an_error_with_and_without_jit(device):
    data, b = parts()[0], right_hand_side()

    def short(data, b):
        return solve((data, *parts()[1:]), b, **TIGHT, maxiter=1)

    with pytest.raises(NotConverged, match="A x = b did not converge to rtol=1e-13: gmres with ILU0") as error:
        short(data, b)
    one_line(error)
    with pytest.raises(Exception, match="A x = b did not converge to rtol=1e-13: gmres with ILU0"):
        jax.jit(short)(data, b).block_until_ready()


def test_what_is_no_gradient_is_an_error(device):
    calls = []

    def twice(A, b, **options):
        calls.append(1)
        return fl.gmres(A, b, **options | ({"maxiter": 1} if len(calls) > 1 else {}))

    with pytest.raises(NotConverged, match=r"the adjoint system A\^H y = g did not converge"):
        jax.grad(lambda b: solve(parts(), b, method=twice, recipe=fl.Jacobi()).sum())(right_hand_side())


@pytest.mark.parametrize(
    ("A", "match"),
    [
        (lambda: jnp.eye(N), "A is a ArrayImpl; a BCSR, a BCOO or"),
        (lambda: sparse.BCOO.fromdense(jnp.ones((N, N + 1))), r"shape \(8, 9\)"),
        (lambda: sparse.BCOO.fromdense(jnp.ones((3, N, N)), n_batch=1), "n_batch=1"),
        (lambda: (jnp.ones(3), jnp.zeros(4, int), jnp.zeros(N + 1, int)), r"shapes \(3,\), \(4,\) and \(9,\)"),
        (lambda: sparse.BCOO.fromdense(jnp.eye(N, dtype=jnp.float16)), "A holds float16"),
        (lambda: sparse.BCOO.fromdense(jnp.eye(5)), "A has 5 rows"),
        (lambda: (parts()[0] * jnp.nan, *parts()[1:]), "NaN or Inf in row 0"),
        (lambda: sparse.BCOO((jnp.ones(1), jnp.full((1, 2), N)), shape=(N, N)), "outside of its shape"),
    ],
)
def test_what_is_no_matrix_is_refused(A, match):
    with pytest.raises(MatrixError, match=match) as error:
        solve(A(), jnp.ones(N))
    one_line(error)


def test_wrong_right_hand_sides_are_refused():
    for b in (jnp.ones(()), jnp.ones((0,)), jnp.ones((N, 2, 2)), jnp.ones(5)):
        with pytest.raises(MatrixError, match="b has shape"):
            solve(parts(), b)


def test_wrong_options_are_refused():
    with pytest.raises(ParameterError, match="no recipe 'ilu9'"):
        solve(parts(), right_hand_side(), recipe="ilu9")
    with pytest.raises(ParameterError, match="rtol=0"):
        solve(parts(), right_hand_side(), rtol=0)


@pytest.mark.parametrize("code", documented("interop", "jax"))
def test_documented_examples_run(code):
    exec(code, {})
