"""What several test files share: closeness in ulps, matrices in every dtype and index type, random patterns."""

import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

import finelu as fl
from finelu.device import require_gpu
from finelu.errors import DeviceError
from finelu.kernels import reference
from finelu.matrix import CSR, as_csr

# For a test that takes `backend`: it runs only on a GPU.
ON_GPU = pytest.mark.parametrize("backend", [pytest.param("cuda", marks=pytest.mark.gpu)], indirect=True)
# For a test of finelu without other direct solvers.
EMBEDDED = pytest.mark.parametrize("direct_solvers", ["embedded"], indirect=True)
DTYPES = ("float32", "float64", "complex64", "complex128")
CLIENTS = ("pandapower", "skfem", "pymatsolver", "fipy", "lineax")  # whose examples in docs/programs.md run
EXAMPLES = int(os.environ.get("FINELU_EXAMPLES", 20))  # of random patterns a test; `make test-all` takes many more
MANY = 100  # examples from which random ones are of every dtype, which the CPU compiles for minutes


@cache
def without_gpu():
    """Why there is no GPU, in words; "" where there is one."""
    try:
        require_gpu()
    except DeviceError as error:
        return str(error)
    return ""


SOME_DTYPES = DTYPES if EXAMPLES >= MANY or not without_gpu() else ("float64", "complex64")
# Every dtype and every index type. Kernels know both by their types alone: the CPU is not asked to compile all pairs.
TYPES = [*((dtype, "int32") for dtype in DTYPES), ("float64", "int64")]
IN_TYPES = pytest.mark.parametrize(("dtype", "index"), TYPES, ids=["-".join(t) for t in TYPES])
# The `backend` fixture keeps no state, so hypothesis may use one for all examples; a first example may compile kernels.
PATTERNS = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def assert_close(got, want, ulps, scale=None):
    """|got - want| <= ulps * eps * scale, eps of want's dtype; scale: the largest |want| of each column if left out.

    No ulps at all: the same bits.
    """
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    if not want.size:
        return
    scale = abs(want).max(axis=0) if scale is None else np.asarray(scale)
    if ulps == 0:
        np.testing.assert_array_equal(got, want)
        return
    bound = ulps * np.finfo(want.dtype).eps * scale
    excess = abs(got - want) / np.where(bound > 0, bound, np.finfo(want.dtype).tiny)
    assert np.isfinite(got).all()
    assert excess.max() <= 1, f"off by {excess.max() * ulps:.3g} ulps where {ulps} are allowed"


# Positive definite, of which Kershaw 1978 shows that it has no IC(0): row 3.
KERSHAW = sp.csr_matrix(np.array([[3.0, -2, 0, 2], [-2, 3, -2, 0], [0, -2, 3, -2], [2, 0, -2, 3]]))


def permuted(backend, A, F):
    """A in the order in which F has it."""
    if F.permutation is None:
        return A
    order = backend.fetch(F.permutation)
    return sp.csr_matrix(A[order][:, order])


def values(shape, dtype, seed=0):
    """Normally distributed numbers."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def in_dtype(A, dtype):
    """A real A in `dtype`; for a complex one D A D^H with |D_ii| = 1, which is Hermitian where A is symmetric."""
    if np.dtype(dtype).kind == "c":
        D = sp.diags(np.exp(1j * np.arange(A.shape[0])))
        A = D @ A @ D.conj()
    return sp.csr_matrix(A.astype(dtype))


def perturbed(A, seed=1):
    """A with other values at the same places, about as dominant as A; Hermitian where A is."""
    B = A.copy()
    d = np.random.default_rng(seed).uniform(0.8, 1.25, A.shape[0]).astype(A.real.dtype)
    rows = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    B.data = A.data * d[rows] * d[A.indices]
    return B


def own_types(backend, dtype, index):
    """Skips a pair that is not one of TYPES on the CPU; a GPU has an instance of its own for each."""
    if backend.name == "cpu" and (dtype, np.dtype(index).name) not in TYPES:
        pytest.skip("the CPU takes this index type in another dtype")


def with_index(A, index):
    """The checked CSR of A with index arrays of the dtype `index`, as a matrix with that many entries would have."""
    A = as_csr(A)
    return CSR(A.indptr.astype(index), A.indices.astype(index), A.data, A.diag.astype(index))


def one_line(error):
    """The text of a raised exception, of which it is asserted that it is one clear line."""
    text = str(error.value)
    assert text and "\n" not in text
    return text


def documented(page, what):
    """The examples of docs/<page>.md that begin with ```python {.<what>}, which need that package."""
    text = (Path(__file__).resolve().parents[1] / "docs" / f"{page}.md").read_text()
    found = re.findall(rf"^```python {{\.{what}}}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found
    return found


@contextmanager
def refused(kind, match=None):
    """A block that raises this error, with a text like this in one clear line."""
    with pytest.raises(kind, match=match) as error:
        yield error
    one_line(error)


def in_one_file(first):
    """The recipe or the method of docs/extend.md whose code begins so, without the calls that follow it there."""
    text = (Path(__file__).resolve().parents[1] / "docs" / "extend.md").read_text()
    (code,) = re.findall(rf"^```python\n({re.escape(first)}\n.*?)\n\n\n# ", text, re.M | re.S)
    return code


def recipe_in_one_file():
    return in_one_file("from dataclasses import dataclass")


def method_in_one_file():
    return in_one_file("import finelu as fl\nfrom finelu.krylov import register")


def run_at_once(work, count=6):
    """[work(0), work(1), ...] of `count` threads that begin together."""
    barrier = threading.Barrier(count)

    def begin(k):
        barrier.wait()
        return work(k)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(begin, range(count)))


def bordered(side):
    """The 5-point equation without boundary values, and a mean value: a dense row, a gap at the end of the diagonal."""
    T = sp.diags([-np.ones(side - 1), np.r_[1, 2 * np.ones(side - 2), 1], -np.ones(side - 1)], [-1, 0, 1])
    grid, one = sp.kron(T, sp.eye(side)) + sp.kron(sp.eye(side), T), np.ones((side**2, 1))
    return sp.csr_matrix(sp.bmat([[grid, one], [one.T, None]]))


def longest_chain(n, dtype="float64"):
    """(n, n) with a full last row and a subdiagonal: n levels below the diagonal, and a row as long as the matrix."""
    A = sp.diags([np.full(n - 1, -1.0), np.full(n, 4.0)], [-1, 0], format="lil")
    A[n - 1, :] = -1.0 / n
    A[n - 1, n - 1] = 4.0
    return in_dtype(sp.csr_matrix(A), dtype)


def full(n, dtype="float64", hermitian=False):
    """(n, n), every entry stored, diagonally dominant."""
    R = np.random.default_rng(n).uniform(-1, 1, (n, n))
    R = (R + R.T) / 2 if hermitian else R
    return in_dtype(sp.csr_matrix(R + n * np.eye(n)), dtype)


def long_rows(n, dense=3, density=0.002, seed=0, dtype="float64"):
    """(n, n), random and diagonally dominant, `dense` of its rows full at the end, at the beginning and in between."""
    rng = np.random.default_rng(seed)
    A = sp.random(n, n, density, random_state=rng, format="lil")
    for i in np.linspace(0, n - 1, dense).astype(int):
        A[i, :] = rng.uniform(-1, 1, n)
    return _dominant(sp.csr_matrix(A), dtype)


def _dominant(A, dtype):
    A = sp.csr_matrix(A - sp.diags(A.diagonal()))
    A.eliminate_zeros()
    size = np.maximum(abs(A).sum(axis=1).A1, abs(A).sum(axis=0).A1)
    return in_dtype(sp.csr_matrix(A + sp.diags(1.0 + size)), dtype)


@st.composite
def dominant_matrices(draw, hermitian=False, dtype="float64", largest=24):
    """Diagonally dominant CSR matrices of 1 to `largest` rows of any pattern.

    Rows with nothing but the diagonal, full rows and columns, chains with one row a level, diagonal matrices.
    """
    n = draw(st.integers(1, largest))
    kind = draw(st.sampled_from(["scattered", "scattered", "scattered", "chain", "diagonal"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    pattern = np.zeros((n, n), bool)
    if kind != "diagonal":
        pattern = rng.random((n, n)) < draw(st.sampled_from([0.0, 0.05, 0.2, 0.6, 1.0]))
        pattern[draw(st.lists(st.integers(0, n - 1), max_size=2)), :] = True
        pattern[:, draw(st.lists(st.integers(0, n - 1), max_size=2))] = True
        pattern[draw(st.lists(st.integers(0, n - 1), max_size=3)), :] = False
    if kind == "chain":
        pattern |= np.eye(n, k=-1, dtype=bool) | np.eye(n, k=1, dtype=bool)
    dense = np.where(pattern, rng.uniform(-1, 1, (n, n)), 0.0)
    if hermitian:
        dense = dense + dense.T
    return _dominant(sp.csr_matrix(dense), dtype)


def reference_factors(A):
    """The values of L and U in A's order, by kernels/reference.py."""
    A = as_csr(A)
    lu = np.empty_like(A.data)
    assert reference.elimination.ilu0(A.indptr, A.indices, A.diag, A.data, lu) == -1
    return lu


def assert_is_ilu0_of(A, L, U, ulps=64):
    """L unit lower, U upper, both inside the pattern of A; (L U)_ij = A_ij there, to a few ulps of (|L| |U|)_ij."""
    pattern = sp.csr_matrix((np.ones(A.nnz), A.indices, A.indptr), shape=A.shape)
    for triangle, want in ((L, sp.tril(pattern)), (U, sp.triu(pattern))):
        got = sp.csr_matrix((np.ones(triangle.nnz), triangle.indices, triangle.indptr), shape=A.shape)
        assert abs(got - want).sum() == 0
    np.testing.assert_array_equal(L.diagonal(), np.ones(A.shape[0]))
    rows = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    product = np.asarray((L @ U)[rows, A.indices]).ravel()
    size = np.asarray((abs(L) @ abs(U))[rows, A.indices]).ravel()
    assert_close(product, A.data, ulps, scale=size)


def assert_is_ic0_of(A, L, U, ulps=64):
    """L has the pattern of A's lower triangle, a positive diagonal, and (L L^H)_ij = A_ij to some ulps of |L| |L|^T."""
    assert abs(U - L.conj().T).max() == 0
    lower = sp.tril(A, format="csr")
    np.testing.assert_array_equal(L.indptr, lower.indptr)
    np.testing.assert_array_equal(L.indices, lower.indices)
    assert (L.diagonal().real > 0).all() and (L.diagonal().imag == 0).all()
    rows = np.repeat(np.arange(A.shape[0]), np.diff(lower.indptr))
    product = np.asarray((L @ L.conj().T)[rows, lower.indices]).ravel()
    size = np.asarray((abs(L) @ abs(L).T)[rows, lower.indices]).ravel()
    assert_close(product, lower.data, ulps, scale=size)


def assert_is_milu0_of(A, L, U, relax=1.0, ulps=256):
    """L U has A's entries off the diagonal of A's pattern, and A's row sums after `relax` of the fill is taken away."""
    n = A.shape[0]
    product, size = L @ U, abs(L) @ abs(U)
    rows = np.repeat(np.arange(n), np.diff(A.indptr))
    off = rows != A.indices
    got = np.asarray(product[rows, A.indices]).ravel()[off]
    assert_close(got, A.data[off], ulps, scale=np.asarray(size[rows, A.indices]).ravel()[off])
    pattern = sp.csr_matrix((np.ones(A.nnz), A.indices, A.indptr), shape=A.shape)
    fill = product - product.multiply(pattern)  # what L U has and A has not
    want = A.diagonal() - relax * np.asarray(fill.sum(axis=1)).ravel()
    scale = np.asarray(size.sum(axis=1)).ravel()
    assert_close(product.diagonal(), want.astype(A.dtype), ulps, scale=scale)
    if relax == 1:
        assert_close(L @ (U @ np.ones(n, A.dtype)), A @ np.ones(n, A.dtype), ulps, scale=scale)
    return fill


def extended(A, level):
    """A with zeros stored where ILU(level) has entries besides, by the reference."""
    A = as_csr(A)
    indptr, indices = reference.fill.pattern_iluk(A.indptr, A.indices, level)
    rows = np.repeat(np.arange(A.n), np.diff(indptr))
    dense = A.tosparse().toarray()
    return sp.csr_matrix((dense[rows, indices], indices, indptr), shape=A.shape)


def fetched(backend, F):
    return sp.csr_matrix(backend.fetch(F.L)), sp.csr_matrix(backend.fetch(F.U))


def iterations(A, M, method=fl.gmres, **options):
    solution = method(A, np.ones(A.shape[0]), M=M, rtol=1e-8, **options)
    assert solution.converged
    return solution.iterations


def compared(L, U, diagonal, cholesky):
    """(below, above): the magnitudes by which the smallest entries of factors, of Cholesky L and L^H, are dropped."""
    roots = abs(U.diagonal()) if cholesky else np.sqrt(abs(U.diagonal()))
    weights = np.sqrt(roots * np.maximum(roots, np.sqrt(abs(diagonal))))
    ones = np.ones(roots.size)
    left, right = sp.diags(1 / weights), sp.diags(ones if cholesky else roots)
    below = left @ abs(sp.tril(L, -1)) @ right
    above = sp.diags(ones if cholesky else 1 / roots) @ abs(sp.triu(U, 1)) @ sp.diags(1 / weights)
    return sp.csr_matrix(below), sp.csr_matrix(above)


def tree_of_parts(parts, n, rng):
    """A random forest above the parts parts[t]..parts[t + 1] - 1 of n rows: `above`, and which entries it forbids."""
    count = len(parts) - 1
    above = np.array([rng.choice([-1, *range(t + 1, count)]) for t in range(count)], np.int64)
    related = np.eye(count + 1, dtype=bool)
    related[count] = related[:, count] = True  # the interface
    for t in range(count):
        s = above[t]
        while s >= 0:
            related[s, t] = related[t, s] = True
            s = above[s]
    owner = np.minimum(np.searchsorted(parts, np.arange(n), side="right") - 1, count)
    return above, ~related[owner[:, None], owner]
