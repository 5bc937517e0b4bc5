"""The door: every format and dtype comes in as the same checked CSR, untouched; what is bad is named."""

import math
import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import scipy.sparse as sp
from checks import DTYPES, PATTERNS, dominant_matrices, one_line, refused, values, without_gpu
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.linalg import aslinearoperator

import finelu
from finelu import gallery
from finelu.compiling import compile_clock
from finelu.errors import DeviceError, MatrixError, ParameterError
from finelu.kernels import kernels_for, reference
from finelu.krylov import METHODS
from finelu.matrix import CSR, as_csr, check_vector, lower_triangle
from finelu.validation import number

NAMES = ("csr", "csc", "coo", "bsr", "dia", "lil", "dok")
FORMATS = [f"{name}_{kind}" for name in NAMES for kind in ("matrix", "array")]


def example():
    """5 x 5, unsymmetric, with a full diagonal and rows of 1 to 4 entries."""
    return sp.csr_matrix(
        np.array([[4.0, 0, 1, 0, 0], [2, 5, 0, 0, 3], [0, 0, 6, 0, 0], [1, 2, 0, 7, 8], [0, 0, 9, 1, 2]])
    )


def assert_same_csr(got: CSR, want: sp.csr_matrix):
    """`got` has exactly the arrays of the canonical matrix `want`, and finds its diagonal."""
    np.testing.assert_array_equal(got.indptr, want.indptr)
    np.testing.assert_array_equal(got.indices, want.indices)
    np.testing.assert_array_equal(got.data, want.data)
    np.testing.assert_array_equal(want.data[got.diag], want.diagonal())
    np.testing.assert_array_equal(want.indices[got.diag], np.arange(want.shape[0]))


# What comes in


@pytest.mark.parametrize("form", FORMATS)
def test_every_scipy_format_gives_the_same_csr(form):
    got = as_csr(getattr(sp, form)(example()))
    want = example()
    np.testing.assert_array_equal(got.tosparse().toarray(), want.toarray())
    if not form.startswith(("bsr", "dia")):  # these two may store zeros of their blocks and diagonals
        assert_same_csr(got, want)


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["csr_matrix", "csc_matrix", "coo_matrix", "dia_matrix"])
def test_every_cupy_format_gives_the_same_csr(form):
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no GPU can be used here")
    import cupyx.scipy.sparse as csp

    got = as_csr(getattr(csp, form)(getattr(sp, form)(example())))
    assert isinstance(got.data, cupy.ndarray) and isinstance(got.diag, cupy.ndarray)
    np.testing.assert_array_equal(got.tosparse().toarray().get(), example().toarray())


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize(
    "wrap", [np.asarray, np.matrix, np.ndarray.tolist, np.asfortranarray], ids=["array", "matrix", "list", "fortran"]
)
def test_dense_matrices_come_in_by_their_non_zeros(wrap):
    assert_same_csr(as_csr(wrap(example().toarray())), example())


def test_a_dense_array_stays_on_its_device(backend):
    got = as_csr(backend.move(example().toarray()))
    assert isinstance(got.data, backend.xp.ndarray)
    assert_same_csr(got.on(np), example())


def test_one_row(backend):
    got = as_csr(backend.move(sp.csr_matrix([[3.0]]))).on(np)
    assert (got.n, got.nnz, got.shape) == (1, 1, (1, 1))


def test_a_checked_matrix_comes_back_as_it_is(backend):
    A = as_csr(backend.move(example()))
    assert as_csr(A) is A
    assert as_csr(A, dtype="float64") is A


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_four_dtypes_are_kept(backend, dtype):
    assert as_csr(backend.move(example().astype(dtype))).dtype == dtype


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "int64", "uint64", "float16", "longdouble"])
def test_other_real_numbers_become_float64(dtype):
    A = sp.csr_matrix(np.eye(4), dtype="float64")
    dense = np.asarray(A.toarray(), dtype=dtype)
    got = as_csr(dense if dtype == "float16" else sp.csr_matrix(dense))
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got.data, np.ones(4))


@pytest.mark.parametrize("dtype", [*DTYPES, "float16", "int32"])
def test_dense_matrices_in_the_byte_order_of_other_machines(dtype):
    dense = example().toarray().astype(dtype)
    other = dense.astype(dense.dtype.newbyteorder(">"))
    np.testing.assert_array_equal(as_csr(other).tosparse().toarray(), dense)
    assert as_csr(other).dtype == as_csr(dense).dtype
    b = (dense @ np.ones(len(dense))).astype(other.dtype)
    assert finelu.solve(other, b).converged and finelu.gmres(other, b, M=finelu.Jacobi().factor(other)).converged


def test_the_dtype_asked_for_is_given(backend):
    A = as_csr(backend.move(example()), dtype="float32")
    assert A.dtype == np.float32
    assert as_csr(as_csr(backend.move(example())), dtype="complex64").dtype == np.complex64


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_indices_are_as_narrow_as_the_size_allows(index):
    A = example()
    A.indptr, A.indices = A.indptr.astype(index), A.indices.astype(index)
    got = as_csr(A)
    assert got.indptr.dtype == got.indices.dtype == got.diag.dtype == np.int32
    assert_same_csr(got, example())


def test_duplicates_are_summed_and_rows_sorted(backend):
    indptr = np.array([0, 3, 5, 8])
    indices = np.array([2, 0, 2, 1, 1, 2, 0, 2])  # row 1 cancels to an explicit zero, which stays an entry
    data = np.array([1.0, 4, 2, 3, -3, 5, 7, 1])
    A = sp.csr_matrix((data, indices, indptr), shape=(3, 3))
    kept = data.copy(), indices.copy(), indptr.copy()
    got = as_csr(backend.move(A)).on(np)
    np.testing.assert_array_equal(got.indptr, [0, 2, 3, 5])
    np.testing.assert_array_equal(got.indices, [0, 2, 1, 0, 2])
    np.testing.assert_array_equal(got.data, [4, 3, 0, 7, 6])
    np.testing.assert_array_equal(got.diag, [0, 2, 4])
    for now, before in zip((A.data, A.indices, A.indptr), kept, strict=True):
        np.testing.assert_array_equal(now, before)


@PATTERNS
@given(data=st.data())
def test_any_coordinates_become_their_sum_in_ascending_order(data):
    n = data.draw(st.integers(1, 12))
    place = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1), st.integers(-4, 4))
    entries = np.array(data.draw(st.lists(place, max_size=40)) or np.empty((0, 3)), dtype=int).reshape(-1, 3)
    i, j, v = entries.T
    order = np.argsort(i, kind="stable")  # CSR by hand, so that nothing sorts the columns or sums duplicates before
    indptr = np.concatenate([[0], np.cumsum(np.bincount(i, minlength=n))])
    A = sp.csr_matrix((v[order].astype(float), j[order], indptr), shape=(n, n))
    got = as_csr(A, diagonal=False)
    want = np.zeros((n, n))
    np.add.at(want, (i, j), v)
    np.testing.assert_array_equal(got.tosparse().toarray(), want)
    for row in range(n):
        assert (np.diff(got.indices[got.indptr[row] : got.indptr[row + 1]]) > 0).all()
    assert got.nnz == len(set(zip(i, j, strict=True)))


def test_a_sound_matrix_is_not_copied_and_a_read_only_one_is_taken():
    A = example()
    for array in (A.data, A.indices, A.indptr):
        array.flags.writeable = False
    got = as_csr(A)
    assert np.shares_memory(got.data, A.data)
    assert np.shares_memory(got.indices, A.indices)
    assert np.shares_memory(got.tosparse().data, A.data)


def test_rows_out_of_order_are_sorted_in_a_copy_of_a_read_only_matrix():
    A = sp.csr_matrix((np.array([1.0, 2, 3]), np.array([1, 0, 1]), np.array([0, 2, 3])), shape=(2, 2))
    for array in (A.data, A.indices, A.indptr):
        array.flags.writeable = False
    np.testing.assert_array_equal(as_csr(A).data, [2, 1, 3])


# The kernel behind it


@PATTERNS
@given(A=dominant_matrices(), data=st.data())
def test_inspect_is_the_reference(backend, A, data):
    n, nnz = A.shape[0], A.nnz
    for _ in range(data.draw(st.integers(0, 3))):  # damage: NaN, Inf, a missing diagonal, a row out of order
        p = data.draw(st.integers(0, nnz - 1))
        kind = data.draw(st.sampled_from(["nan", "inf", "column"]))
        if kind == "column":
            A.indices[p] = data.draw(st.integers(0, n - 1))
        else:
            A.data[p] = np.nan if kind == "nan" else -np.inf
    want_diag = np.empty(n, np.int32)
    want = reference.inspection.inspect(A.indptr, A.indices, A.data, want_diag)
    arrays = [backend.move(v) for v in (A.indptr, A.indices, A.data, np.empty(n, np.int32))]
    assert tuple(kernels_for(arrays[0]).inspection.inspect(*arrays)) == want
    if want[1] == 0:
        np.testing.assert_array_equal(backend.fetch(arrays[3]), want_diag)


@pytest.mark.parametrize("column", [-1, 5, 2**30])
def test_inspect_names_the_row_of_a_column_that_is_not_there(backend, column):
    A = example()
    A.indices[A.indptr[3]] = column
    arrays = [backend.move(v) for v in (A.indptr, A.indices, A.data, np.empty(5, np.int32))]
    assert kernels_for(arrays[0]).inspection.inspect(*arrays)[0] == 3
    assert reference.inspection.inspect(A.indptr, A.indices, A.data, np.empty(5, np.int32))[0] == 3


# What is refused


@pytest.mark.parametrize("shape", [(3, 4), (1, 2), (0, 3)])
def test_a_matrix_that_is_not_square_is_refused(backend, shape):
    with refused(MatrixError, match=rf"shape \({shape[0]}, {shape[1]}\).*square"):
        as_csr(backend.move(np.ones(shape)))
    with pytest.raises(MatrixError, match="square"):
        as_csr(sp.csr_matrix(np.ones(shape)))


@pytest.mark.parametrize("A", [np.ones(3), np.ones((2, 2, 2)), 3.0], ids=["vector", "cube", "number"])
def test_an_array_that_is_no_matrix_is_refused(A):
    with refused(MatrixError, match="shape"):
        as_csr(A)


def test_an_empty_matrix_is_refused(backend):
    for A in (backend.move(np.empty((0, 0))), sp.csr_matrix((0, 0))):
        with refused(MatrixError, match="empty"):
            as_csr(A)


@pytest.mark.parametrize(
    "A",
    [
        np.array([[1.0, None], [0, 1.0]], dtype=object),
        [["1", "x"], ["0", "1"]],
        np.array([["1"]]),
        np.zeros((2, 2), "datetime64[s]"),
        "poisson",
        None,
        {0: 1.0},
        [[1.0, 2.0], [3.0]],
        object(),
    ],
    ids=["object", "strings", "digits", "dates", "str", "None", "dict", "ragged", "thing"],
)
def test_what_holds_no_numbers_is_refused(A):
    with refused(MatrixError, match=r"^A "):
        as_csr(A)


def test_a_dtype_that_has_no_place_here_is_named():
    with refused(MatrixError, match=str(np.dtype("clongdouble"))):
        as_csr(sp.csr_matrix(np.eye(3, dtype="clongdouble")))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_row_with_nan_or_inf_is_named(backend, dtype, bad):
    A = example().astype(dtype)
    A.data[A.indptr[3] + 1] = bad
    A.data[A.indptr[4]] = bad
    with refused(MatrixError, match=r"NaN or Inf in row 3 \(2 such entries\)"):
        as_csr(backend.move(A))


def test_nan_in_an_imaginary_part_is_found(backend):
    A = example().astype("complex128")
    A.data[0] = complex(1, np.nan)
    with pytest.raises(MatrixError, match=r"row 0 \(1 such entry\)"):
        as_csr(backend.move(A))


def test_infinite_duplicates_are_found_after_they_are_summed(backend):
    A = sp.csr_matrix((np.array([1.7e308, 1.7e308, 1.0]), [0, 0, 1], [0, 2, 3]), shape=(2, 2))
    with pytest.raises(MatrixError, match="row 0"):
        as_csr(backend.move(A))


def test_missing_diagonal_entries_are_counted_and_the_first_is_named(backend):
    A = example().tolil()
    A[1, 1] = A[3, 3] = 0
    A = sp.csr_matrix(A)
    A.eliminate_zeros()
    with pytest.raises(MatrixError, match=r"no diagonal entry in row 1 \(2 such rows\)") as error:
        as_csr(backend.move(A))
    assert "Store it" in one_line(error)
    got = as_csr(backend.move(A), diagonal=False)
    np.testing.assert_array_equal(backend.fetch(got.diag) < 0, [False, True, False, True, False])
    with pytest.raises(MatrixError, match=r"row 1 \(2 such rows\)"):
        as_csr(got)


@PATTERNS
@given(A=dominant_matrices(), data=st.data())
def test_missing_diagonal_entries_of_any_pattern_are_counted(backend, A, data):
    missing = data.draw(st.sets(st.integers(0, A.shape[0] - 1), min_size=1))
    rows = np.repeat(np.arange(A.shape[0]), np.diff(A.indptr))
    kept = ~((rows == A.indices) & np.isin(rows, list(missing)))
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[kept], minlength=A.shape[0]))])
    B = sp.csr_matrix((A.data[kept], A.indices[kept], indptr), shape=A.shape)
    with pytest.raises(MatrixError, match=rf"in row {min(missing)} \({len(missing)} such rows?\)"):
        as_csr(backend.move(B))


def test_an_explicit_zero_is_an_entry(backend):
    A = sp.csr_matrix((np.array([1.0, 0.0]), [0, 1], [0, 1, 2]), shape=(2, 2))
    assert as_csr(backend.move(A)).nnz == 2


@pytest.mark.parametrize("column", [-1, 7])
def test_columns_outside_the_matrix_are_found(backend, column):
    A = backend.move(example())
    A.indices[int(A.indptr[2])] = column
    with refused(MatrixError, match=r"do not fit its arrays in row 2"):
        as_csr(A)


@pytest.mark.parametrize("indptr", [[0, 9, 2, 3], [0, 2, 1, 3], [0, -1, 2, 3]])
def test_row_pointers_that_do_not_ascend_are_found(indptr):
    A = sp.csr_matrix(np.eye(3))
    A.indptr = np.array(indptr, np.int32)
    with pytest.raises(MatrixError, match=r"do not fit its arrays in row [01]"):
        as_csr(A, diagonal=False)


def test_errors_are_value_errors_too():
    assert issubclass(MatrixError, ValueError)
    with pytest.raises(ValueError, match="square"):
        as_csr(np.ones((2, 3)))


# What a CSR can do


@PATTERNS
@given(A=dominant_matrices())
def test_the_lower_triangle_is_that_of_scipy(backend, A):
    L, places = lower_triangle(as_csr(backend.move(A)))
    want = sp.tril(A, format="csr")
    assert_same_csr(L.on(np), want)
    np.testing.assert_array_equal(A.data[backend.fetch(places)], want.data)


def test_patterns_are_the_same_or_not(backend):
    A = as_csr(backend.move(example()))
    other = example()
    other.data = other.data * 3
    assert A.same_pattern(as_csr(backend.move(other)))
    assert A.same_pattern(as_csr(A, dtype="float32"))
    other.indices[1] = 3  # as many entries, one of them elsewhere
    assert not A.same_pattern(as_csr(backend.move(other)))
    assert not A.same_pattern(as_csr(backend.move(sp.csr_matrix(np.eye(5)))))
    assert not A.same_pattern(as_csr(backend.move(sp.csr_matrix(np.eye(A.nnz)))))


def test_every_gallery_matrix_comes_through_untouched(backend):
    for problem in gallery.small():
        before = [v.copy() for v in (problem.A.data, problem.A.indices, problem.A.indptr)]
        assert_same_csr(as_csr(backend.move(problem.A)).on(np), problem.A)
        for now, then in zip((problem.A.data, problem.A.indices, problem.A.indptr), before, strict=True):
            np.testing.assert_array_equal(now, then)


# Right-hand sides


def test_a_sound_vector_is_taken_as_it_is(backend):
    A = as_csr(backend.move(example()))
    for shape in ((5,), (5, 1), (5, 3)):
        b = backend.move(values(shape, "float64"))
        assert check_vector(b, 5, A.data) is b


def test_integers_become_float64(backend):
    b = check_vector(backend.move(np.arange(5)), 5, backend.move(np.ones(1)))
    assert b.dtype == np.float64 and b.shape == (5,)


@pytest.mark.parametrize("b", [np.ones(4), np.ones(6), np.ones((4, 5)), np.ones((5, 1, 1)), np.float64(1)])
def test_a_vector_of_the_wrong_shape_is_refused(b):
    with refused(MatrixError, match=r"shape .* A has 5 rows"):
        check_vector(b, 5, np.ones(1))


@pytest.mark.parametrize("b", [np.array(list("abcde")), np.array([1, 2, 3, 4, None]), ["1", "2", "3", "4", "5"]])
def test_a_vector_of_no_numbers_is_refused(b):
    with refused(MatrixError, match="dtype"):
        check_vector(b, 5, np.ones(1))


def test_a_sparse_vector_is_refused():
    with refused(MatrixError, match=r"toarray"):
        check_vector(sp.csr_matrix(np.ones((5, 1))), 5, np.ones(1))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("shape", [(5,), (5, 2)])
def test_nan_in_a_vector_is_named(backend, bad, shape):
    b = np.ones(shape)
    b[3] = bad
    where = "row 3" if len(shape) == 1 else "column 0, row 3"
    with refused(MatrixError, match=f"rhs holds NaN or Inf in {where}"):
        check_vector(backend.move(b), 5, backend.move(np.ones(1)), "rhs")


@pytest.mark.gpu
def test_a_vector_on_the_other_device_is_refused():
    cupy = pytest.importorskip("cupy")
    if not cupy.cuda.is_available():
        pytest.skip("no GPU can be used here")
    with pytest.raises(DeviceError, match="b is on the host but A is on the GPU"):
        check_vector(np.ones(5), 5, cupy.ones(1))
    with pytest.raises(DeviceError, match="b is on the GPU but A is on the host"):
        check_vector(cupy.ones(5), 5, np.ones(1))


# What a Krylov method takes as A and M


class PyData:
    """What the sparse arrays of PyData have in common with those of SciPy, without being one."""

    def __init__(self, A):
        self.A, self.shape, self.dtype, self.ndim = A, A.shape, A.dtype, 2

    def to_scipy_sparse(self):
        return self.A

    def __array__(self, *_, **__):
        raise RuntimeError("a sparse array is not made dense silently")


def forms_of(A):
    """A in every form that a caller may have it in."""
    entries = A.tocoo()
    twice = (np.tile(entries.data / 2, 2), (np.tile(entries.row, 2), np.tile(entries.col, 2)))
    yield from (getattr(sp, form)(A) for form in FORMATS)
    yield from (sp.coo_matrix(twice, shape=A.shape), sp.coo_array(twice, shape=A.shape))
    yield from (A.toarray(), np.asmatrix(A.toarray()), A.toarray().tolist(), PyData(A), as_csr(A, diagonal=False))
    if A.shape[0] % 2 == 0:
        yield sp.bsr_matrix(A, blocksize=(2, 2))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [1, 6])
def test_methods_take_every_form_of_A_and_of_M(method, n):
    A = sp.diags([-1.0, 4.0, -1.0], [-1, 0, 1], shape=(n, n), format="csr")
    M, b = sp.csr_matrix(np.linalg.inv(A.toarray())), np.arange(1.0, n + 1)
    solve = getattr(finelu, method)
    assert np.allclose(A @ solve(aslinearoperator(A), b.tolist(), M=aslinearoperator(M), rtol=1e-12).x, b)
    for form in forms_of(A):
        assert np.allclose(A @ solve(form, b, rtol=1e-12).x, b), type(form)
        assert np.allclose(A @ finelu.solve(form, b).x, b), type(form)
    for form in forms_of(M):
        solution = solve(A, b, M=form, rtol=1e-10)
        assert np.allclose(A @ solution.x, b) and solution.iterations <= 2, type(form)


@pytest.mark.parametrize("wrong", [sp.coo_array(np.ones(3)), sp.coo_array((2, 2, 2)), PyData(sp.csr_matrix((2, 3)))])
def test_sparse_arrays_of_other_dimensions_are_refused(wrong):
    for take in (as_csr, lambda A: finelu.cg(A, np.ones(3)), lambda A: finelu.solve(A, np.ones(3))):
        with pytest.raises(MatrixError, match=r"A has shape .* a square matrix is needed"):
            take(wrong)


# Numbers as parameters

GOOD = [1e-6, Decimal("1e-6"), Fraction(1, 10**6), np.float32(1e-6), np.float64(1e-6), np.array(1e-6), 0, np.int8(0)]
BAD = [
    10**400,
    -(10**5000),
    True,
    np.True_,
    "1e-6",
    1e-6j,
    np.complex128(1),
    np.array([1e-6]),
    np.ones(3),
    None,
    [1e-6],
]
BAD += [math.nan, math.inf, -1, Decimal("NaN"), Decimal("sNaN"), Decimal("1e999"), sp.identity(2), lambda: 1]


@pytest.mark.parametrize("value", GOOD, ids=lambda v: f"{type(v).__name__}-{v}")
def test_a_tolerance_is_any_real_number(value):
    assert number("rtol", value) == pytest.approx(float(value))
    A = sp.identity(3, format="csr")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert finelu.cg(A, np.ones(3), rtol=value, atol=1e-6).converged
        assert finelu.solve(A, np.ones(3), rtol=value).residual_norm == 0


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("value", BAD, ids=lambda v: f"{type(v).__name__}")
@pytest.mark.parametrize("name", ["rtol", "atol", "maxiter", "restart", "time_limit", "memory_limit", "shift"])
def test_what_is_no_number_is_refused_in_a_line(name, value):
    A, b = sp.identity(3, format="csr"), np.ones(3)
    calls = {
        "rtol": [lambda: finelu.solve(A, b, rtol=value), lambda: finelu.gmres(A, b, rtol=value)],
        "atol": [lambda: finelu.cg(A, b, atol=value)],
        "maxiter": [lambda: finelu.bicgstab(A, b, maxiter=value)],
        "restart": [lambda: finelu.gmres(A, b, restart=value)],
        "time_limit": [lambda: finelu.solve(A, b, time_limit=value)],
        "memory_limit": [lambda: finelu.solve(A, b, memory_limit=value)],
        "shift": [
            lambda: finelu.ILU0(shift=value).factor(A),
            lambda: finelu.ILUT(shift=value).factor(A),
            lambda: finelu.MultilevelILU(shift=value).factor(A),
            lambda: finelu.BlockILU0(block_size=1, shift=value).factor(A),
        ],
    }[name]
    if value is None and name in ("maxiter", "restart", "time_limit", "memory_limit"):
        return  # the default
    if name in ("maxiter", "restart") and isinstance(value, int) and value == 10**400:
        return  # as good as any large number
    if name in ("rtol", "atol") and isinstance(value, float | Decimal) and str(value) in ("inf", "1E+999"):
        assert finelu.gmres(A, b, **{name: value}).iterations == 0  # any x is good enough, as with SciPy's methods
        calls = calls[:1] if name == "rtol" else []
    for call in calls:
        with pytest.raises(ParameterError, match=name) as error:
            call()
        assert len(one_line(error)) < (500 if name == "shift" else 200)


GRID = np.zeros((7, 2, 2, 2, 3, 3))
GRID[3] = 9 * np.eye(3)
SPARSE = gallery.poisson5(6)
LOWER = sp.csr_matrix(sp.tril(SPARSE))
BLOCKS = sp.bsr_matrix(SPARSE, blocksize=(3, 3))
DOORS = {
    "solve": (lambda data, b: finelu.solve(with_data(SPARSE, data), b, recipe="ilu0").x, SPARSE.data, 36),
    "triangle": (lambda data, b: finelu.TriangularSolver(with_data(LOWER, data)).solve(b), LOWER.data, 36),
    "blocks": (lambda data, b: finelu.BlockMatrix(data, BLOCKS.indices, BLOCKS.indptr) @ b, BLOCKS.data, 36),
    "grid": (lambda data, b: finelu.StencilMatrix(data) @ b, GRID, 24),
    "selection": (lambda data, b: np.array(finelu.selection.threshold(data, 9)), np.linspace(0, 1, 2**18 + 1), 36),
}


def with_data(A, data):
    """A with these values; all arrays are read-only where they are."""
    indptr, indices = A.indptr.copy(), A.indices.copy()
    indptr.flags.writeable = indices.flags.writeable = data.flags.writeable
    return sp.csr_matrix((data, indices, indptr), shape=A.shape)


@pytest.mark.parametrize("door", DOORS)
def test_read_only_arrays_compile_no_second_set_of_kernels(door):
    call, data, n = DOORS[door]
    data, b = data.copy(), np.linspace(1, 2, n)
    want, kept = call(data, b), data.copy()
    data.flags.writeable = b.flags.writeable = False
    with compile_clock() as seconds:
        found = call(data, b)
        assert seconds() == 0.0
    np.testing.assert_array_equal(found, want)
    np.testing.assert_array_equal(data, kept)
    assert not data.flags.writeable


@pytest.mark.gpu
@pytest.mark.parametrize("form", ["coo_matrix", "csc_matrix", "toarray", "unsorted"])
def test_subnormal_entries_survive_a_change_of_format_on_a_gpu(form):
    if without_gpu():
        pytest.skip(without_gpu())
    import cupy
    import cupyx.scipy.sparse as csp

    A = sp.csr_matrix(np.array([[3e-45, 1, 0], [0, 1e-40, 2], [1, 0, -1e-39]], np.float32))
    there = csp.csr_matrix(A)
    if form == "unsorted":
        places = ([1, 0, 2, 1, 0, 2], [0, 2, 4, 6])
        there = csp.csr_matrix((cupy.asarray(A.data[[1, 0, 3, 2, 4, 5]]), *map(cupy.asarray, places)), shape=(3, 3))
    elif form == "toarray":
        there = cupy.asarray(A.toarray())
    elif form == "coo_matrix":
        rows, columns = A.nonzero()
        there = csp.coo_matrix((cupy.asarray(A.data), (cupy.asarray(rows), cupy.asarray(columns))), shape=(3, 3))
    else:
        C = A.tocsc()
        there = csp.csc_matrix(tuple(map(cupy.asarray, (C.data, C.indices, C.indptr))), shape=(3, 3))
    assert np.array_equal(as_csr(there).data.get(), A.data)


def test_a_copy_belongs_to_the_caller_who_may_change_its_pattern():
    A = as_csr(gallery.poisson5(12)).copy()
    F = finelu.Schwarz(size=20).factor(A)
    last = A.indptr[1:] - 1
    A.indices[last[A.indices[last] < A.n - 1]] += 1
    with refused(MatrixError, "pattern"):
        F.update(A)


def test_values_stay_unchanged_for_a_block_around_another():
    A = as_csr(gallery.poisson5(6))
    known = (1.0, 2.0, 3.0, 4.0, 5.0, 6)
    with A.unchanged(known):
        with A.unchanged(A.mirrored()):
            pass
        assert A.mirrored() == known
    assert A.mirrored() != known
