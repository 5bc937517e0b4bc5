"""The kernels of subdomains against their specification, and that against its definition."""

from itertools import pairwise

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, assert_close, in_dtype, values
from hypothesis import given, settings
from hypothesis import strategies as st

import finelu as fl
from finelu import gallery
from finelu.kernels import kernels_for, monitor
from finelu.kernels.cpu import _interleaved
from finelu.kernels.cpu import subdomains as cpu
from finelu.kernels.operands import Correction, Sums
from finelu.kernels.reference import subdomains as reference
from finelu.matrix import as_csr


def split(n, size, seed=0, overlap=False):
    """Random parts of about `size` rows, as (parts, starts, rows); with overlap, rows of a part and some of others."""
    rng = np.random.default_rng(seed)
    parts = np.unique(rng.integers(0, -(-n // size), n), return_inverse=True)[1].astype(np.int32)
    members = [np.flatnonzero(parts == p) for p in range(parts.max() + 1)]
    if overlap:
        members = [np.union1d(m, rng.integers(0, n, 3)) for m in members]
    starts = np.concatenate([[0], np.cumsum([m.size for m in members])]).astype(np.int32)
    return parts, starts, np.concatenate(members).astype(np.int32)


def matrix(dtype, name="general"):
    A = {
        "general": lambda: gallery.convection_diffusion(9, 8, 1, peclet=10),
        "arrow": lambda: gallery.arrow(70),
        "long arrow": lambda: gallery.arrow(1500),
    }[name]()
    return as_csr(in_dtype(A, dtype))


def parts_of(A, starts, rows):
    """A's entries inside each part, in positions among the rows."""
    indptr, indices, places = reference.inside(starts, rows, A.indptr, A.indices)
    return as_csr(sp.csr_matrix((A.data[places], indices, indptr), shape=(rows.size, rows.size)))


def apart(parts, Z, dtype):
    """Z, or ones, with columns of its own for each part."""
    m = 1 if Z is None else Z.shape[1]
    full = np.zeros((parts.size, (parts.max() + 1) * m), dtype)
    for i, part in enumerate(parts):
        full[i, part * m : (part + 1) * m] = 1 if Z is None else Z[i]
    return full


def on(backend, *arrays):
    return [None if a is None else backend.move(a) for a in arrays]


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("name", ["general", "arrow"])
def test_inside(backend, name, overlap):
    A = matrix("float64", name)
    _, starts, rows = split(A.n, 12, overlap=overlap)
    want = reference.inside(starts, rows, A.indptr, A.indices)
    dense = A.tosparse().toarray()
    B = sp.csr_matrix((A.data[want[2]], want[1], want[0]), shape=(rows.size, rows.size)).toarray()
    for a, b in pairwise(starts):  # by definition
        np.testing.assert_array_equal(B[a:b, a:b], dense[np.ix_(rows[a:b], rows[a:b])])
        B[a:b, a:b] = 0
    assert not B.any()
    moved = on(backend, starts, rows, A.indptr, A.indices)
    for got, expected in zip(kernels_for(moved[0]).subdomains.inside(*moved), want, strict=True):
        np.testing.assert_array_equal(backend.fetch(got), expected)


@given(st.integers(1, 40), st.integers(1, 15), st.floats(0, 0.4), st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_inside_of_any_pattern(n, size, density, seed):
    A = as_csr(sp.csr_matrix(sp.random(n, n, density, random_state=seed) + sp.eye(n)))
    _, starts, rows = split(n, size, seed, overlap=seed % 2 == 1)
    got = kernels_for(A.data).subdomains.inside(starts, rows, A.indptr, A.indices)
    for one, two in zip(got, reference.inside(starts, rows, A.indptr, A.indices), strict=True):
        np.testing.assert_array_equal(one, two)


def solvers(backend, B, trans):
    """The plans of L and U of an ILU(0) in local positions, those of the backend and of the specification."""
    F = fl.ILU0(triangular="sync_free" if backend.name == "cuda" else "sequential").factor(backend.move(B.tosparse()))
    mine = [solver.plan for solver in F.solvers(trans)]
    return F, mine


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("trans", ["N", "T", "H"])
@pytest.mark.parametrize("scattered", [True, False])
def test_subdomain_solve(backend, dtype, trans, scattered):
    A = matrix(dtype)
    _, starts, rows = split(A.n, 20)
    B = parts_of(A, starts, rows)
    F, plans = solvers(backend, B, trans)
    L, U = (backend.fetch(part).toarray() for part in (F.L, F.U))
    M = {"N": L @ U, "T": (L @ U).T, "H": (L @ U).conj().T}[trans]
    r, weights = values(A.n, dtype), abs(values(A.n, dtype, 3)).astype(A.data.real.dtype) + 0.5
    for before, after in ((None, None), (weights, None), (None, weights)):
        moved = on(backend, r, rows, before, after)
        solve = kernels_for(moved[0]).subdomains.SubdomainSolve(backend.move(starts), plans)
        x = backend.move(np.zeros(A.n, dtype))
        solve.solve(moved[0], x, moved[1], moved[2], moved[3], scattered)
        want = np.linalg.solve(M, r[rows] * (1 if before is None else before)) * (1 if after is None else after)
        if scattered:
            want[rows] = want.copy()
        assert_close(backend.fetch(x), want, 512, np.linalg.norm(want))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [None, 2])
def test_subdomain_solve_of_a_corrected_residual(backend, dtype, columns):
    """W U^-1 L^-1 (r - A Z q), where rows of A Z have up to a dozen parts."""
    A = matrix(dtype, "arrow")
    parts, starts, rows = split(A.n, 6)
    Z = None if columns is None else values((A.n, columns), dtype, 5)
    products = reference.coarse_products(A.indptr, A.indices, A.data, parts, starts.size - 1, Z)
    assert np.diff(products[0]).max() > 6
    B = parts_of(A, starts, rows)
    F, plans = solvers(backend, B, "N")
    r, q = values(A.n, dtype), values((starts.size - 1) * (columns or 1), dtype, 2)
    want = np.empty(A.n, dtype)
    want[rows] = backend.fetch(F.solve(backend.move(reference.coarse_residual(products, q, r)[rows])))
    moved = on(backend, starts, r, rows, q, parts, Z)
    kernels, AZ = kernels_for(moved[1]), tuple(on(backend, *products))
    by_rows = kernels.indices.rows_of_entries(AZ[0], AZ[1].size)
    couplings, _ = kernels.subdomains.couple(AZ, by_rows, moved[4], moved[0], moved[2])
    solve, size = kernels.subdomains.SubdomainSolve(moved[0], plans), np.linalg.norm(want)
    added = want.copy()
    reference.prolong(parts, Z, q, added)
    for correction, result in (
        (Correction(AZ, couplings, moved[3], *moved[4:], added=False), want),
        (Correction(AZ, couplings, moved[3], *moved[4:], added=True), added),
    ):
        x = backend.move(np.zeros(A.n, dtype))
        solve.solve(moved[1], x, moved[2], None, None, True, correction)
        assert_close(backend.fetch(x), result, 2048, size + np.linalg.norm(q))


LARGE = {
    "wide levels": lambda: gallery.poisson5(60, 50),
    "one level": lambda: sp.diags(np.linspace(1, 2, 3000)),
    "one row a level": lambda: gallery.tridiagonal(3000),
    "long rows": lambda: sp.kron(sp.diags(np.ones(30)), 0.02 * np.ones((100, 100)) + np.diag(np.linspace(3, 5, 100))),
    "a row of all": lambda: gallery.arrow(3000),
}


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("count", [1, 2, 11])
def test_subdomain_solve_with_large_parts(backend, name, dtype, count):
    """Several threads a row, several rows a thread, named barriers, and triangles that stay in global memory."""
    A = as_csr(sp.csr_matrix(LARGE[name]()).astype(dtype))
    starts = np.linspace(0, 3000, count + 1).astype(np.int32)
    rows = np.arange(3000, dtype=np.int32)
    B = parts_of(A, starts, rows)
    _, plans = solvers(backend, B, "N")
    moved = on(backend, starts, rows, values(3000, dtype))
    solve = kernels_for(moved[0]).subdomains.SubdomainSolve(moved[0], plans)
    x = backend.move(np.zeros(3000, dtype))
    solve.solve(moved[2], x, moved[1])
    want = fl.ILU0().factor(B).solve(values(3000, dtype))
    assert_close(backend.fetch(x), want, 4096, abs(want).max())
    assert solve.levels == max(kernels_for(A.data).levels.levels(plan.triangle)[1] for plan in reference_plans(B))
    again = backend.move(np.zeros(3000, dtype))
    solve.solve(moved[2], again, moved[1])
    np.testing.assert_array_equal(backend.fetch(again), backend.fetch(x))


def reference_plans(B):
    return [solver.plan for solver in fl.ILU0(triangular="sequential").factor(B).solvers("N")]


def test_the_specification_of_subdomain_solve():
    A = matrix("float64")
    _, starts, rows = split(A.n, 20)
    B = parts_of(A, starts, rows)
    F = fl.ILU0(triangular="sequential").factor(B)
    plans = [solver.plan for solver in F.solvers("N")]
    r = values(A.n, "float64")
    got, want = np.empty(A.n), np.empty(A.n)
    kernels_for(r).subdomains.SubdomainSolve(starts, plans).solve(r, got, rows)
    reference.SubdomainSolve(starts, plans).solve(r, want, rows)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", [[20], [7, 1, 48, 3, 12], [1] * 5, [0, 9, 0, 0, 25, 1, 0], [60, 2, 2]], ids=str)
@pytest.mark.parametrize("overlap", [False, True])
def test_parts_that_are_solved_together_have_the_bits_of_each(monkeypatch, threads, dtype, sizes, overlap):
    """An odd number of them, of very different sizes, or empty; on any number of threads."""
    A, rng = matrix(dtype), np.random.default_rng(1)
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    order = rng.permutation(A.n)
    cuts = zip(sizes, starts)
    members = [np.sort(rng.permutation(A.n)[:m] if overlap else order[first : first + m]) for m, first in cuts]
    rows = np.concatenate(members).astype(np.int32)
    B = parts_of(A, starts, rows)
    F = fl.ILU0(triangular="sequential").factor(B)
    r, weights = values(A.n, dtype), abs(values(rows.size, dtype, 3)).astype(A.data.real.dtype)
    monkeypatch.setattr(cpu, "COPY", 16)
    monkeypatch.setattr(cpu, "threads_for", lambda work, alone: fl.threads.get_num_threads())
    for trans in ("N", "T"):
        plans = [solver.plan for solver in F.solvers(trans)]
        want = np.empty(rows.size, dtype)
        reference.SubdomainSolve(starts, plans).solve(r, want, rows, weights, None, False)
        for number in (1, 2, 3):
            threads(number)
            solve, got = cpu.SubdomainSolve(starts, plans), np.empty(rows.size, dtype)
            solve.solve(r, got, rows, weights, None, False)
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("narrow", ["", "adjoint", "each"])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_the_groups_of_parts_do_not_change_the_bits(monkeypatch, threads, dtype, narrow):
    """Full groups of eight parts, parts alone, and both, in double and in single precision."""
    A = as_csr(in_dtype(gallery.poisson7(9, 8, 7), dtype))
    starts = np.array([0, 40, 45, 85, 125, 127, 167, 207, 247, 287, 327, 367, 407, 447, 450, 504], np.int32)
    rows = np.random.default_rng(3).permutation(A.n).astype(np.int32)
    plans = reference_plans(parts_of(A, starts, rows))
    r, found, groups = values(A.n, dtype), [], []
    monkeypatch.setattr(cpu, "COPY", 16)
    monkeypatch.setattr(cpu, "threads_for", lambda work, alone: fl.threads.get_num_threads())
    for cost in (0, _interleaved.FULL, 100):  # all parts in full groups; the default; all alone
        monkeypatch.setattr(_interleaved, "FULL", cost)
        for number in (1, 5):
            threads(number)
            solve, x = cpu.SubdomainSolve(starts, plans, narrow), np.empty(A.n, dtype)
            solve.solve(r, x, rows)
            found.append(x)
            groups.append(tuple(solve._lanes))
    assert groups[0] == (8, 8) and groups[2] == (8,) + (1,) * 7 and groups[4] == (1,) * 15
    assert groups[3] == (1,) * 15  # two groups are too few for five threads
    for x in found[1:]:
        np.testing.assert_array_equal(x, found[0])


def test_parts_of_one_pattern_come_first_and_the_others_in_groups_of_neighbours(monkeypatch):
    monkeypatch.setattr(_interleaved, "WINDOW", 16)
    sizes, keys = np.arange(1, 101) * 7 % 23 + 1, np.arange(100, dtype=np.uint64)
    sizes[40:52], keys[40:52] = 9, 5000
    order = _interleaved._order(sizes, keys)
    assert sorted(order) == list(range(100)) and list(order[:12]) == list(range(40, 52))
    for window in np.split(order[12:], range(16, 88, 16)):
        assert np.ptp(window) < 16 + 12 and (np.diff(sizes[window]) <= 0).all()


@pytest.mark.parametrize("sizes", [[3000], [1500] * 2, [2800] + [20] * 10, [20] * 150], ids=str)
def test_copies_of_parts_hold_few_zeros(sizes):
    """The copies of few or unequal parts have at most twice the entries of the parts."""
    A = as_csr(gallery.poisson5(60, 50))
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int32)
    plans = reference_plans(parts_of(A, starts, np.arange(A.n, dtype=np.int32)))
    solve = cpu.SubdomainSolve(starts, plans)
    entries = sum(plan.triangle.entries for plan in plans)
    assert entries <= sum(triangle.values.size for triangle in solve._triangles) <= 2 * (entries + A.n)
    assert solve._room <= 8 * 3001


@pytest.mark.parametrize("backend", ["cuda"], indirect=True)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("vectors", [None, 2])
@pytest.mark.parametrize("name", ["general", "arrow", "long arrow"])
@pytest.mark.parametrize("k", [2, 4, 7])  # fewer than a block takes at once, as many, and some more
def test_columns_on_a_gpu_have_the_sums_and_solves_of_each(backend, name, dtype, vectors, k):
    A = matrix(dtype, name)
    parts, starts, rows = split(A.n, 9 if A.n < 100 else 150)
    count, m = starts.size - 1, vectors or 1
    Z = None if vectors is None else values((A.n, vectors), dtype, 5)
    products = reference.coarse_products(A.indptr, A.indices, A.data, parts, count, Z)
    _, plans = solvers(backend, parts_of(A, starts, rows), "N")
    move, weights = backend.move, abs(values(A.n, dtype, 3)).astype(A.data.real.dtype) + 0.5
    arrays = [move(a) for a in (starts, rows, parts)]
    AZ, at = tuple(move(a) for a in products), move(np.repeat(np.arange(A.n, dtype=np.int32), np.diff(products[0])))
    kernels = kernels_for(at).subdomains
    couplings, _ = kernels.couple(AZ, at, arrays[2], arrays[0], arrays[1])
    solve, near = kernels.SubdomainSolve(arrays[0], plans), None if Z is None else move(Z[rows])
    R, Q = values((A.n, k), dtype, 8), values((count * m, k), dtype, 2)

    def found(columns):
        """x in rows and in positions, and all that is summed, for some of the columns together."""
        more = () if isinstance(columns, int) else (len(columns),)
        r = move(np.asfortranarray(R[:, columns])) if more else move(R[:, columns].copy())
        q, out = move(Q[:, columns].copy()), []
        width = more[0] if more else 1
        for scattered, added in ((True, True), (False, False)):
            rooms = [(couplings.members.size, m * width), (count * m, *more), (count, *more)]
            sums = Sums(couplings, near, True, *(move(np.full(shape, 7, dtype)) for shape in rooms))
            x = move(np.zeros(r.shape, dtype, order="F"))
            correction = Correction(AZ, couplings, q, arrays[2], None if Z is None else move(Z), added=added)
            solve.solve(r, x, arrays[1], move(weights), None, scattered, correction, sums if scattered else None)
            moments = kernels.sum_couplings(couplings, sums.of) if scattered else None
            out += [x] if moments is None else [x, moments.reshape(sums.restricted.shape), sums.restricted, sums.dots]
        less = move(values((count * m, k), dtype, 6)[:, columns].copy())
        kernels.prolong(arrays[2], None if Z is None else move(Z), q, out[0], less)
        return [backend.fetch(a) for a in (*out, kernels.restrict(arrays[0], arrays[1], near, r, True))]

    together = found(list(range(k)))
    for c in range(k):
        for got, alone in zip(together, found(c), strict=True):
            assert_close(got[:, c], alone, 64, np.linalg.norm(alone))


@pytest.mark.parametrize("backend", ["cuda"], indirect=True)
def test_rows_of_several_columns_are_refused_on_a_gpu(backend):
    _, starts, rows = split(300, 70)
    moved = on(backend, starts, rows, values((300, 3), "float64"))
    with pytest.raises(ValueError, match="Fortran"):
        kernels_for(moved[2]).subdomains.restrict(moved[0], moved[1], None, moved[2], False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [None, 1, 3])
def test_restrict_and_prolong(backend, dtype, columns):
    parts, starts, rows = split(300, 70)
    r = values(300, dtype)
    Z = None if columns is None else values((300, columns), dtype, 5)
    dense = apart(parts, Z, dtype)
    for conjugate in (True, False):
        moved = on(backend, starts, rows, None if Z is None else Z[rows], r)
        got = backend.fetch(kernels_for(moved[3]).subdomains.restrict(*moved, conjugate))
        assert_close(got, (dense.conj() if conjugate else dense).T @ r, 64, np.linalg.norm(r) * 30)
        assert_close(reference.restrict(starts, rows, None if Z is None else Z[rows], r, conjugate), got, 64, 300)
    q, x = values(dense.shape[1], dtype, 9), values(300, dtype, 11)
    for less in (None, values(dense.shape[1], dtype, 12)):
        want = x + dense @ (q if less is None else q - less)
        moved = on(backend, parts, Z, q, x.copy(), less)
        kernels_for(moved[3]).subdomains.prolong(*moved)
        assert_close(backend.fetch(moved[3]), want, 64, 30)
        again = x.copy()
        reference.prolong(parts, Z, q, again, less)
        assert_close(again, want, 64, 30)


@pytest.mark.parametrize("dtype", DTYPES)
def test_vectors_are_made_orthonormal_in_each_part(backend, threads, dtype):
    """A column of zeros in a part, one that repeats another, one that does so up to a little: those are left out."""
    parts = np.random.default_rng(2).integers(0, 90, 3000).astype(np.int32)
    parts[:90] = np.arange(90)
    parts[parts == 7] = 8  # a part of one row
    parts[5] = 7
    rows, starts = kernels_for(parts).indices.grouped(parts, 90)
    B = values((3000, 5), dtype, 3)
    B[parts < 40, 1] = 0
    B[:, 3] = 2 * B[:, 0] - B[:, 2]
    B[parts > 60, 4] = B[parts > 60, 2] + np.dtype(dtype).type(1e-8) * B[parts > 60, 4]
    least = 1e-3 if np.dtype(dtype).char in "fF" else 1e-6
    want, none = reference.orthonormal(parts, starts, rows, B, least)
    assert none.reshape(90, 5)[:40, 1].all() and none.reshape(90, 5)[:, 3].all() and none.reshape(90, 5)[61:, 4].all()
    found = []
    for number in (1, 3):
        threads(number)
        given = [backend.move(v) for v in (parts, starts, rows, B)]
        Z, dependent = kernels_for(given[3]).subdomains.orthonormal(*given, least)
        Z = backend.fetch(Z)
        np.testing.assert_array_equal(backend.fetch(dependent), none)
        assert Z.dtype == B.dtype
        assert_close(Z, want, 1e4)
        found.append(Z)
    np.testing.assert_array_equal(*found)
    for p in range(90):
        gram = want[parts == p].conj().T @ want[parts == p]
        assert_close(gram, np.diag(~none.reshape(90, 5)[p]).astype(dtype), 100)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_columns_whose_squares_are_zero_in_single_precision_are_made_orthonormal(backend, dtype):
    parts = np.repeat(np.arange(4, dtype=np.int32), 50)
    rows, starts = kernels_for(parts).indices.grouped(parts, 4)
    B = values((200, 2), dtype, 3)
    B[parts == 1] *= np.dtype(dtype).type(1e-25)
    given = [backend.move(v) for v in (parts, starts, rows, B)]
    Z, dependent = kernels_for(given[3]).subdomains.orthonormal(*given, 1e-3)
    assert not backend.fetch(dependent).any()
    assert_close(backend.fetch(Z), reference.orthonormal(parts, starts, rows, B, 1e-3)[0], 100)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [None, 2])
@pytest.mark.parametrize("name", ["general", "arrow", "long arrow"])
def test_coarse_products(backend, name, dtype, columns):
    A = matrix(dtype, name)
    parts, starts, _ = split(A.n, 9 if A.n < 100 else 150)
    count, m = starts.size - 1, columns or 1
    Z = None if columns is None else values((A.n, columns), dtype, 5)
    full = apart(parts, Z, dtype)
    want = reference.coarse_products(A.indptr, A.indices, A.data, parts, count, Z)
    moved = on(backend, A.indptr, A.indices, A.data, parts)
    kernels = kernels_for(moved[2]).subdomains
    given_Z = None if Z is None else backend.move(Z)
    got = kernels.coarse_products(*moved, count, given_Z)
    for found in ([backend.fetch(a) for a in got], want):
        rows = np.repeat(np.arange(A.n), np.diff(found[0]))
        AZ = np.zeros((A.n, count, m), dtype)
        AZ[rows, found[1]] = found[2]
        assert_close(AZ.reshape(A.n, -1), A.tosparse().toarray() @ full, 1024, 30)
        assert found[2].any(axis=1).all() and np.unique(rows * count + found[1]).size == rows.size
    np.testing.assert_array_equal(backend.fetch(got[0]), want[0])
    np.testing.assert_array_equal(backend.fetch(got[1]), want[1])
    q, r = values(count * m, dtype, 2), values(A.n, dtype, 3)
    residual = r - A.tosparse().toarray() @ (full @ q)
    assert_close(reference.coarse_residual(want, q, r), residual, 1024, 60)
    if backend.name == "cpu":
        assert_close(kernels.coarse_residual(got, q, r), residual, 1024, 60)
    rows = np.repeat(np.arange(A.n, dtype=np.int32), np.diff(want[0]))
    members = np.argsort(parts, kind="stable").astype(np.int32)
    here = kernels.couple(got, *on(backend, rows, parts, starts, members))
    there = reference.couple(want, rows, parts, starts, members)
    for name_of in ("starts", "ends", "rows", "of_rows", "vector_starts", "members"):
        mine, its = (getattr(c, name_of) for c in (here[0], there[0]))
        np.testing.assert_array_equal(backend.fetch(mine), its)
    assert_close(backend.fetch(here[0].values), there[0].values, 1024, 30)
    if backend.name == "cpu":
        at_once = kernels.couple_rows(A.indptr, A.indices, A.data, parts, starts, members, Z)
        for name_of in ("starts", "ends", "rows", "of_rows", "vectors", "values", "vector_starts", "members"):
            np.testing.assert_array_equal(getattr(at_once, name_of), getattr(here[0], name_of))
        specified = reference.couple_rows(A.indptr, A.indices, A.data, parts, starts, members, Z)
        for name_of in ("starts", "ends", "rows", "of_rows", "vectors", "vector_starts", "members"):
            np.testing.assert_array_equal(getattr(at_once, name_of), getattr(specified, name_of))
        assert_close(at_once.values, specified.values, 1024, 30)
    for conjugate in (True, False):
        E = (full.conj() if conjugate else full).T @ A.tosparse().toarray() @ full
        blocks = kernels.coarse_blocks(got, backend.move(rows), given_Z, conjugate, *here)
        specified = reference.coarse_blocks(want, rows, Z, conjugate, *there)
        c = there[0]
        of_parts = np.repeat(np.arange(count), np.diff(c.starts))
        of_vectors = np.empty(of_parts.size, int)
        of_vectors[c.members] = np.repeat(np.arange(count), np.diff(c.vector_starts))
        expected = E.reshape(count, m, count, m)[of_parts, :, of_vectors, :]
        assert_close(backend.fetch(blocks), expected, 1024, 200)
        assert_close(specified, expected, 1024, 200)
        mine = kernels.coarse_matrix(got, backend.move(rows), moved[3], count, given_Z, conjugate, *here)
        mine = mine.toarray() if sp.issparse(mine) else backend.fetch(mine)
        assert mine.dtype == np.result_type(dtype, np.float64)
        assert_close(mine, E, 1024, 200)
        assert_close(reference.coarse_matrix(want, rows, parts, count, Z, conjugate, *there), E, 1024, 200)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [None, 2])
@pytest.mark.parametrize("name", ["general", "arrow", "long arrow"])
def test_sums_of_a_solve(backend, name, dtype, columns):
    """(A Z)^H x, Z^H r and r^H x of a solve with the parts, by definition."""
    A = matrix(dtype, name)
    parts, starts, rows = split(A.n, 9 if A.n < 100 else 150)
    count, m = starts.size - 1, columns or 1
    Z = None if columns is None else values((A.n, columns), dtype, 5)
    full = apart(parts, Z, dtype)
    products = reference.coarse_products(A.indptr, A.indices, A.data, parts, count, Z)
    entry_rows = np.repeat(np.arange(A.n, dtype=np.int32), np.diff(products[0]))
    B = parts_of(A, starts, rows)
    _, plans = solvers(backend, B, "N")
    r = values(A.n, dtype)
    for conjugate in (True, False):
        found = []
        for b in (backend, None):
            move = (lambda a: a) if b is None else backend.move
            moved = [None if a is None else move(a) for a in (starts, rows, r, None if Z is None else Z[rows])]
            arrays = [move(a) for a in (entry_rows, parts, starts, rows)]
            couple = (reference if b is None else kernels_for(arrays[0]).subdomains).couple
            couplings, _ = couple(tuple(move(a) for a in products), *arrays)
            rooms = [move(np.full(s, 7, dtype)) for s in ((couplings.members.size, m), count * m, count)]
            sums = Sums(couplings, moved[3], conjugate, *rooms)
            x = move(np.zeros(A.n, dtype))
            if b is None:  # the specification, which solves on the CPU
                _, own = solvers(OnCPU, B, "N")
                reference.SubdomainSolve(starts, own).solve(r, x, rows, sums=sums)
                moments = [reference.sum_couplings(couplings, sums.of, less) for less in (None, sums.restricted)]
            else:
                kernels = kernels_for(moved[2]).subdomains
                kernels.SubdomainSolve(moved[0], plans).solve(moved[2], x, moved[1], sums=sums)
                moments = [kernels.sum_couplings(couplings, sums.of, less) for less in (None, sums.restricted)]
            fetch = np.asarray if b is None else backend.fetch
            found.append([fetch(a) for a in (x, *moments, sums.restricted, sums.dots)])
        for x, moments, rest, restricted, dots in found:
            adjoint = (full.conj() if conjugate else full).T
            AZ = A.tosparse().toarray() @ full
            want = (AZ.conj() if conjugate else AZ).T @ x
            size = 1 + abs(AZ).sum(axis=0).max() * abs(x).max()
            assert_close(moments, want, 1024, size)
            assert_close(restricted, adjoint @ r, 1024, 200)
            assert_close(rest, adjoint @ r - want, 1024, 200 + size)
            assert_close(dots, [np.vdot(r[rows[a:b]], x[rows[a:b]]) for a, b in pairwise(starts)], 1024, 200)


class OnCPU:
    """A backend, for the specification next to that of the GPU."""

    name = "cpu"
    move = staticmethod(lambda a: a)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("columns", [None, 2])
@pytest.mark.parametrize("n", [70, 2**18 + 5])  # by one thread, and by several
def test_a_direction_with_its_coarse_part(backend, dtype, columns, n):
    parts, _, _ = split(n, 50 if n < 100 else 20_000)
    m = columns or 1
    Z = None if columns is None else values((n, columns), dtype, 5)
    q, z, p = (values(size, dtype, seed) for size, seed in (((parts.max() + 1) * m, 1), (n, 2), (n, 3)))
    rho, rho_old = np.full(1, 0.75, dtype), np.full(1, 0.5, dtype)
    added = q[parts] if Z is None else (Z * q.reshape(-1, m)[parts]).sum(axis=1)
    for code, want in ((monitor.RUNNING, z + added + dtype_of(1.5, dtype) * p), (monitor.CLAIMED, p)):
        state = np.full(4, code, np.int32)
        moved = on(backend, state, rho, rho_old, parts, Z, q, z, p.copy())
        kernels_for(moved[1]).subdomains.direction_with_coarse(*moved)
        assert_close(backend.fetch(moved[-1]), want, 16, 10)
        again = p.copy()
        reference.direction_with_coarse(state, rho, rho_old, parts, Z, q, z, again)
        assert_close(again, want, 16, 10)


def dtype_of(number, dtype):
    return np.dtype(dtype).type(number)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 31, 200, 700])
def test_product_with_dot(backend, dtype, n):
    M, g, v, dots = values((n, n), dtype), values(n, dtype, 2), values(n, dtype, 3), values(37, dtype, 4)
    want = M @ g
    forms = [(reference.product_with_dot, lambda a: a, np.asarray)]
    if backend.name == "cuda":
        kernels = kernels_for(backend.move(g)).subdomains
        forms.append((kernels.product_with_dot, backend.move, backend.fetch))
    for form, move, fetch in forms:
        total = move(np.zeros(1, dtype))
        assert_close(fetch(form(*(move(a) for a in (M, g, v, dots)), total)), want, 64, n)
        assert_close(fetch(total)[0], np.vdot(v, want) + dots.sum(), 1024, n**1.5 + 40)


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda"], indirect=True)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200])
def test_a_narrow_solve_reads_rounded_entries_and_computes_in_double(backend, dtype, scale):
    A = as_csr(scale * in_dtype(gallery.poisson7(12, 12, 12), dtype))
    starts, rows = np.array([0, 800, 1728], np.int32), np.arange(1728, dtype=np.int32)
    B = parts_of(A, starts, rows)
    F, plans = solvers(backend, B, "N")
    D = F.U.diagonal().get()
    L, U = sp.tril(F.L.get(), -1), sp.triu(F.U.get(), 1)
    narrow = {"float64": "float32", "complex128": "complex64"}[dtype]
    L = L.astype(narrow).astype(dtype) + sp.eye(1728)
    U = (sp.diags(1 / D) @ U).astype(narrow).astype(dtype) + sp.eye(1728)
    r = values(1728, dtype)
    want = sp.linalg.spsolve_triangular(L.tocsr(), r) / D
    want = sp.linalg.spsolve_triangular(U.tocsr(), want, lower=False)
    moved = on(backend, starts, r, rows)
    solve = kernels_for(moved[1]).subdomains.SubdomainSolve(moved[0], plans, narrow="adjoint")
    assert solve.stored == narrow
    x = backend.move(np.zeros(1728, dtype))
    solve.solve(moved[1], x, moved[2])
    assert_close(backend.fetch(x), want, 1e4, abs(want).max())  # a tie may round otherwise


@pytest.mark.gpu
@pytest.mark.parametrize("backend", ["cuda"], indirect=True)
def test_entries_beyond_single_precision_are_not_rounded(backend):
    """Rows scaled so differently that L has entries of 1e-60; after an update, too."""
    A = as_csr(gallery.poisson7(8, 8, 8))
    starts, rows = np.array([0, 512], np.int32), np.arange(512, dtype=np.int32)
    scale = np.where(np.arange(512) % 2, 1e30, 1e-30)
    scaled = as_csr(sp.csr_matrix(sp.diags(scale) @ A.tosparse() @ sp.diags(scale)))
    r = values(512, "float64")
    for first, then in ((scaled, None), (A, scaled)):
        F, plans = solvers(backend, first, "N")
        solve = kernels_for(backend.move(r)).subdomains.SubdomainSolve(backend.move(starts), plans, narrow="adjoint")
        assert solve.stored == ("float64" if first is scaled else "float32")
        if then is not None:
            F.update(backend.move(then.tosparse()))
            solve.load()
        assert solve.stored == "float64"
        x = backend.move(np.zeros(512))
        solve.solve(backend.move(r / scale), x, backend.move(rows))
        want = backend.fetch(F.solve(backend.move(r / scale)))
        assert_close(backend.fetch(x) * scale, want * scale, 1e4, abs(want * scale).max())


@pytest.mark.parametrize("n", [1, 31, 64, 65, 200, 400])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_hermitian_inverse(backend, n, dtype):
    B = values((n, n), dtype)
    S = B @ B.conj().T + 0.1 * np.eye(n)
    weights = 1 / np.sqrt(S.diagonal().real)
    if n > 40:
        S[37] = S[11]
        S[:, 37] = S[:, 11]
        weights[37] = weights[11]
        weights[5] = 0  # not looked at
    forms = [reference.hermitian_inverse]
    if backend.name == "cuda":
        forms.append(kernels_for(backend.move(S)).subdomains.hermitian_inverse)
    for form in forms:
        moved = (S.copy(), weights) if form is reference.hermitian_inverse else on(backend, S, weights)
        X, dropped = (backend.fetch(a) for a in form(*moved, 1e-9))
        assert np.flatnonzero(dropped).tolist() == ([37] if n > 40 else [])
        kept = (dropped == 0) & (weights > 0)
        assert not X[~kept].any() and not X[:, ~kept].any()
        inverse = np.linalg.inv(S[np.ix_(kept, kept)])
        assert_close(X[np.ix_(kept, kept)], inverse, 1e6, np.linalg.norm(inverse))
    S = np.diag([1.0, -1.0, 2.0]).astype(dtype)
    for form in forms:
        moved = (S, np.ones(3)) if form is reference.hermitian_inverse else on(backend, S, np.ones(3))
        assert backend.fetch(form(*moved, 1e-9)[1]).tolist() == [0, 2, 0]


@pytest.mark.parametrize("n", [1, 31, 33, 200])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_inverse_by_lu(backend, n, dtype):
    A = values((n, n), dtype)
    weights, added = 1 + abs(values(n, "float64")), abs(values(n, "float64", 2))
    weights[n // 2] = 0 if n > 1 else 1
    S = weights[:, None] * A * weights + np.diag(added)
    for form in [reference, *([kernels_for(backend.move(A)).subdomains] if backend.name == "cuda" else [])]:
        moved = A if form is reference else backend.move(A)
        factored, pivots, finite = form.lu(moved, weights, added)
        assert finite
        assert_close(np.prod(pivots / n), abs(np.linalg.det(S / n)), 1e6)
        for narrow in (dtype, {"float64": "float32", "complex128": "complex64"}[dtype]):
            X = backend.fetch(form.inverse_by_lu(factored, weights, np.dtype(narrow)))
            want = weights[:, None] * np.linalg.inv(S) * weights
            assert X.dtype == narrow
            assert_close(X, want.astype(narrow), 1e6, np.linalg.norm(want))
        singular = np.zeros((n, n), dtype) if form is reference else backend.move(np.zeros((n, n), dtype))
        assert form.lu(singular, weights, np.zeros(n))[1][0] == 0


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_magnitudes_of_a_dense_matrix(backend, dtype):
    A = values((300, 300), dtype)
    A[7, 40], A[100, 3] = np.inf, np.nan
    for form in [reference, *([kernels_for(backend.move(A)).subdomains] if backend.name == "cuda" else [])]:
        diagonal, most = form.magnitudes(A if form is reference else backend.move(A))
        assert_close(diagonal, abs(A.diagonal()), 4)
        size = abs(A)
        want = np.maximum(size.max(axis=0), size.max(axis=1))
        np.testing.assert_allclose(most, want, rtol=1e-15)
        assert np.isnan(most[[3, 100]]).all() and np.isinf(most[[7, 40]]).all()


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_coarse_weights(backend, dtype):
    forms = [reference.coarse_weights]
    if backend.name == "cuda":
        forms.append(kernels_for(backend.move(np.zeros(1))).subdomains.coarse_weights)
    E = values((300, 300), dtype)
    E[np.diag_indices(300)] = np.linspace(1, 9, 300)
    left_out = np.zeros(300, bool)
    left_out[17], E[17, 17] = True, -1
    E[18, 18] = 1e-310
    for form in forms:

        def weights(E, form=form):
            return form(E, left_out) if form is reference.coarse_weights else form(*on(backend, E, left_out))

        found = backend.fetch(weights(E))
        size = np.maximum(E.diagonal().real, np.finfo(np.float64).tiny)
        np.testing.assert_allclose(found, np.where(left_out, 0, size**-0.5), rtol=1e-15)
        for row, column, value in ((5, 5, 0), (299, 299, -1), (3, 250, np.nan), (299, 0, np.inf)):
            bad = E.copy()
            bad[row, column] = value
            assert weights(bad) is None
