"""Lists of integers: the CPU's and the GPU's form against the specification; gathers and searches in vectors."""

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, PATTERNS, in_dtype, own_types, values, with_index
from hypothesis import given
from hypothesis import strategies as st

from finelu import gallery
from finelu.kernels import cpu, kernels_for, reference
from finelu.kernels.operands import CSR
from finelu.matrix import as_csr

INDICES = ("int32", "int64")
LARGE = (1, 31, 4096, 4097, 300_001)  # of the second and later: a chunk of a sum, one more, more chunks than threads


def kernels(backend):
    return kernels_for(backend.move(np.zeros(1)))


def same(backend, got, want):
    got = backend.fetch(got)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("index", INDICES)
@PATTERNS
@given(counts=st.lists(st.integers(0, 5), max_size=40), seed=st.integers(0, 2**16))
def test_against_the_specification(backend, index, counts, seed):
    rng, want, got = np.random.default_rng(seed), reference.indices, kernels(backend).indices
    counts = np.array(counts, index)
    n, move = counts.size, backend.move
    pointers, total = want.pointers(counts)
    found, all_of_them = got.pointers(move(counts))
    same(backend, found, pointers)
    assert all_of_them == total == counts.sum()
    begin = rng.integers(0, 100, n).astype(index)
    for mine, its in zip(got.entries(found, total, move(begin)), want.entries(pointers, total, begin), strict=True):
        same(backend, mine, its)
    same(backend, got.rows_of_entries(found, total), want.rows_of_entries(pointers, total))
    assert got.longest(found) == want.longest(pointers) == max(counts, default=0)
    order = rng.permutation(n).astype(index)
    same(backend, got.inverse(move(order)), want.inverse(order))
    numbers = np.sort(rng.integers(0, max(n, 1), 2 * n)).astype(index)
    same(backend, got.starts(move(numbers), n), want.starts(numbers, n))
    numbers = rng.permutation(numbers)
    for mine, its in zip(got.grouped(move(numbers), n), want.grouped(numbers, n), strict=True):
        same(backend, mine, its)
    end = begin + counts
    same(backend, got.lengths(move(begin), move(end)), want.lengths(begin, end))
    for by, dtype in ((0, None), (1, None), (-1, index), (0, "int32"), (0, "int64")):
        same(backend, got.shifted(move(begin), by, dtype), want.shifted(begin, by, dtype))
    for first, step in ((0, 1), (1, 0), (-3, 2)):
        same(backend, got.progression(n, first, step, index, found), want.progression(n, first, step, index, pointers))


@pytest.mark.parametrize("n", LARGE)
@pytest.mark.parametrize("count", [1, 7, 5000])
def test_the_places_of_equal_numbers(backend, n, count):
    numbers = np.random.default_rng(0).integers(0, count, n).astype(np.int32)
    order, starts = kernels(backend).indices.grouped(backend.move(numbers), count)
    same(backend, order, np.argsort(numbers, kind="stable").astype(np.int32))
    same(backend, starts, np.searchsorted(np.sort(numbers), np.arange(count + 1)).astype(np.int32))


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("n", LARGE)
def test_many_chunks(backend, index, n):
    counts = np.random.default_rng(0).integers(0, 7, n).astype(index)
    got = kernels(backend).indices
    for _ in range(2):  # the second call finds what the first one has left of the counter
        found, total = got.pointers(backend.move(counts))
        same(backend, found, np.concatenate([[0], np.cumsum(counts)]).astype(index))
        assert total == counts.sum()
    same(backend, got.rows_of_entries(found, total), np.repeat(np.arange(n, dtype=index), counts))
    assert got.longest(found) == counts.max()


def test_more_places_than_the_index_counts(backend):
    counts = np.full(3, 2**30, np.int32)
    _, total = kernels(backend).indices.pointers(backend.move(counts))
    assert total == 3 * 2**30


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("dtype", [*DTYPES, "bool", "uint16", "int32", "int64"])
def test_gather(backend, index, dtype):
    own_types(backend, dtype if index == "int64" else "float64", index)
    rng = np.random.default_rng(1)
    for shape in ((50,), (50, 1), (50, 3)):
        x = (100 * values(int(np.prod(shape)), "float64", 2)).reshape(shape).astype(dtype)
        for count in (777, 0, 2**18 + 9 if shape == (50,) else 1):
            places = rng.integers(0, 50, count).astype(index)
            got = kernels(backend).vectors.gather(backend.move(x), backend.move(places))
            same(backend, got, x[places])
            np.testing.assert_array_equal(reference.vectors.gather(x, places[:300]), x[places[:300]])


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_that_is_not_positive(backend, index, dtype):
    own_types(backend, dtype, index)
    found = kernels(backend).vectors
    places = np.random.default_rng(3).permutation(10_000)[:5000].astype(index)
    x = abs(values(10_000, dtype, 4)).astype(dtype) + np.dtype(dtype).type(1)

    def first():
        got = found.first_not_positive(backend.move(x), backend.move(places))
        assert got == reference.vectors.first_not_positive(x, places)
        return got

    assert first() == -1
    for k, bad in ((4321, 0), (1234, -1), (77, np.nan)):
        x[places[k]] = bad
        assert first() == k
    if x.dtype.kind != "c":
        y = np.ones(5000, dtype)
        want = reference.vectors.first_of_other_sign(x, places, y)
        assert found.first_of_other_sign(backend.move(x), backend.move(places), backend.move(y)) == want == 77
        y[77], y[1234], y[4321] = -1, 0, np.nan
        assert found.first_of_other_sign(backend.move(x), backend.move(places), backend.move(y)) == -1


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cholesky", [False, True])
def test_dropping_weights(backend, dtype, index, cholesky):
    own_types(backend, dtype, index)
    A = with_index(in_dtype(gallery.random_dominant(200, seed=2), dtype), index)
    diagonal = 3 * values(A.n, dtype, 7)
    want = reference.scaling.dropping_weights(A, diagonal, cholesky)
    moved = backend.move(A)
    got = kernels(backend).scaling.dropping_weights(moved, backend.move(diagonal), cholesky)
    for mine, its in zip(got, want, strict=True):
        mine = backend.fetch(mine)
        assert mine.dtype == its.dtype == A.data.real.dtype
        np.testing.assert_allclose(mine, its, rtol=8 * np.finfo(mine.dtype).eps)


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_diagonal_and_the_signs(backend, dtype, index):
    own_types(backend, dtype, index)
    rng = np.random.default_rng(8)
    for n, density in ((1, 1.0), (50, 0.2), (3000, 0.002)):
        S = sp.random(n, n, density, "csr", random_state=rng) + sp.diags(rng.choice([-1.0, 0.0, 2.0], n))
        S = sp.csr_matrix(S).astype(dtype)
        S.data *= rng.choice([-1, 1], S.nnz).astype(dtype)
        if np.dtype(dtype).kind == "c":
            S.data += 1j * rng.integers(0, 2, S.nnz).astype(dtype)
        S.eliminate_zeros()
        S = S + 0 * sp.diags((rng.random(n) < 0.3).astype(dtype))  # zeros that are stored
        A = as_csr(S, diagonal=False)
        A = CSR(A.indptr.astype(index), A.indices.astype(index), A.data, A.diag.astype(index))
        moved = [backend.move(a) for a in (A.indptr, A.indices, A.data, A.diag)]
        found = kernels(backend).inspection
        assert found.diagonal(moved[2], moved[3]) == reference.inspection.diagonal(A.data, A.diag)
        if A.dtype.kind != "c" and n > 1:
            A = with_index(in_dtype(gallery.random_dominant(n, seed=n), dtype), index)
            arguments = [A.indptr, A.data, A.diag]
            want = reference.inspection.signs(*arguments, 0.5, 0.8)
            got = found.signs(*map(backend.move, arguments), 0.5, 0.8)
            np.testing.assert_allclose(got[:2], want[:2], rtol=1e-6 if dtype == "float32" else 1e-12)
            assert got[2:] == want[2:] or dtype == "float32"


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_extremes_of_values(dtype):
    rng = np.random.default_rng(3)
    for given_values in (rng.standard_normal(999), [0.0, -3.0, 0.0, 1e-30], [0.0], []):
        v = np.asarray(given_values, dtype)
        if v.dtype.kind == "c":
            v += 1j * np.where(v == 0, 0, 2 - v.real).astype(dtype)
        assert cpu.inspection.extremes(v) == reference.inspection.extremes(v)


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("dtype", DTYPES)
@PATTERNS
@given(n=st.integers(1, 30), density=st.floats(0, 0.3), seed=st.integers(0, 99))
def test_a_matrix_without_its_stored_zeros(dtype, index, n, density, seed):
    S = sp.random(n, n, density, random_state=seed, format="csr")
    S.data = np.random.default_rng(seed).integers(-1, 2, S.nnz).astype(dtype)
    A = as_csr(S, diagonal=False).with_index(np.dtype(index))
    m, found = int(np.count_nonzero(A.data)), []
    for form in (cpu, reference):
        sizes = (n + 1, index), (m, index), (m, dtype), (n, index), (m, np.int64)
        out = [np.full(size, 77, kind) for size, kind in sizes]
        form.inspection.without_zeros(A.indptr, A.indices, A.data, *out)
        found.append(out)
    for got, want in zip(*found, strict=True):
        np.testing.assert_array_equal(got, want)
    S.eliminate_zeros()
    np.testing.assert_array_equal(found[0][0], S.indptr)
    np.testing.assert_array_equal(found[0][2], S.data)


@pytest.mark.parametrize("dtype", DTYPES)
@PATTERNS
@given(n=st.integers(1, 12), density=st.floats(0, 1), seed=st.integers(0, 99))
def test_a_row_or_column_of_small_numbers(dtype, n, density, seed):
    rng = np.random.default_rng(seed)
    S = sp.random(n, n, density, random_state=seed, format="csr")
    S.data = rng.choice([0, 1e-30, -1e-20, 1, -2], S.nnz).astype(dtype)
    if S.dtype.kind == "c":
        S.data *= rng.choice([1, 1j, 1 + 1j], S.nnz)
    sizes = np.maximum(abs(S.data.real), abs(S.data.imag))
    dense = np.zeros((n, n))
    dense[np.repeat(np.arange(n), np.diff(S.indptr)), S.indices] = sizes
    lines = np.concatenate([dense.max(axis=0), dense.max(axis=1)])
    want = bool(((lines > 0) & (lines < 1e-10)).any())
    for form in (cpu, reference):
        assert form.graph.has_small_line(S.indptr, S.indices, S.data, 1e-10) == want


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [1, 3])
def test_a_lower_triangle(dtype, index, number, threads):
    threads(number)
    for S in (sp.eye(1), gallery.random_dominant(7, 0.4), gallery.random_dominant(9000, 0.002)):
        S = sp.csr_matrix(S).astype(dtype)
        A = as_csr(S).with_index(np.dtype(index))
        found = [f.pattern.lower_triangle(A.indptr, A.indices, A.data, A.diag) for f in (cpu, reference)]
        for got, want in zip(*found, strict=True):
            assert got.dtype == want.dtype
            np.testing.assert_array_equal(got, want)
        want = sp.tril(S).tocsr()
        np.testing.assert_array_equal(found[0][0], want.indptr)
        np.testing.assert_array_equal(found[0][1], want.indices)
        np.testing.assert_array_equal(found[0][2], want.data)
        np.testing.assert_array_equal(found[0][2], A.data[found[0][3]])


@pytest.mark.parametrize("dtype", [*DTYPES, "int32", "int64"])
def test_a_copy(backend, threads, dtype):
    """Short and long vectors, odd numbers of halves of words, vectors with gaps, off a word, or read-only."""
    rng = np.random.default_rng(5)
    for n, size in ((0, 0), (1, 1), (70_001, 70_001), (300_001, 300_001)):
        given = rng.integers(-9, 9, size + 1).astype(dtype)
        for x in (given[:n], given[1 : n + 1], given[: n + 1][::-1][:n], given[:n].reshape(1, -1)):
            for number in (1, 3):
                threads(number)
                mine, out = backend.move(x), backend.move(np.full_like(x, 77))
                want = np.full_like(x, 77)
                reference.vectors.copy(x, want)
                kernels(backend).vectors.copy(mine, out)
                np.testing.assert_array_equal(backend.fetch(out), want)
                np.testing.assert_array_equal(want, x)
    if backend.xp is np:
        with pytest.raises(ValueError):
            cpu.vectors.copy(given, np.zeros(given.size + 5, given.dtype))
        given.flags.writeable = False
        out = np.zeros_like(given)
        cpu.vectors.copy(given, out)
        np.testing.assert_array_equal(out, given)


def test_signs_and_diagonal_do_not_depend_on_the_number_of_threads(threads):
    A = as_csr(gallery.anisotropic_triangles(6))
    arguments = A.indptr, A.data, A.diag
    gaps = A.diag.copy()
    gaps[[30_000, 9, 40_001]] = -1
    zero = A.data.copy()
    zero[A.diag[[41_000, 20_001]]] = 0
    signs, diagonals = [], []
    for number in (1, 2, 3):
        threads(number)
        signs.append(cpu.inspection.signs(*arguments, 1e-8, 0.9))
        diagonals.append(cpu.inspection.diagonal(zero, gaps))
    want = reference.inspection.signs(*arguments, 1e-8, 0.9)
    assert signs[0] == signs[1] == signs[2] and signs[0][2:] == want[2:]
    np.testing.assert_allclose(signs[0][:2], want[:2], rtol=1e-12)
    assert diagonals == 3 * [(3, 9, 2, 20_001, 5)]


@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_alike(backend, dtype, index):
    own_types(backend, dtype, index)
    for name in ("poisson7:7", "arrow:1", "random_dominant:3000,0.002,1"):
        A = with_index(as_csr(in_dtype(gallery.problem(name), dtype)), index)
        given = [backend.move(v) for v in (A.indptr, A.indices, A.data)]
        pattern = [v.copy() for v in given[:2]]

        def alike(data=given[2], pattern=pattern, given=given, A=A):
            theirs = [backend.fetch(v) for v in pattern]
            want = reference.inspection.alike(A.indptr, A.indices, backend.fetch(data), *theirs)
            got = kernels(backend).inspection.alike(*given[:2], data, *pattern)
            assert got is want
            return got

        assert alike()
        for part in range(2):
            for place in (0, -1):
                other = [v.copy() for v in pattern]
                other[part][place] += 1
                assert not alike(pattern=other)
        for place in (0, -1):
            for bad in (np.nan, np.inf):
                data = given[2].copy()
                data[place] = bad
                assert not alike(data)
        assert not alike(pattern=[pattern[0], pattern[1][:-1]])
        wide = [v.astype("int64" if index == "int32" else "int32") for v in pattern]
        assert not alike(pattern=wide)


@pytest.mark.parametrize("index", INDICES)
def test_same(backend, index):
    def found(a, b):
        got = kernels(backend).inspection.same(backend.move(a), backend.move(b))
        assert got == reference.inspection.same(a, b)
        return got

    for n in LARGE:
        a = np.random.default_rng(n).integers(0, 9, n).astype(index)
        assert found(a, a)
        assert not found(a, a[:-1])
        assert not found(a, a.astype("int64" if index == "int32" else "int32"))
        for place in {0, n // 2, n - 1}:
            b = a.copy()
            b[place] += 1
            assert not found(a, b)
