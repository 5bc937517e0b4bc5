"""Files are read as their formats mean and written whole or not at all; a bad one is a FileError naming the place."""

import errno
import gzip
import io
import os
import re
import stat
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from checks import one_line

import finelu.io.limits
import finelu.io.market
import finelu.io.replace
import finelu.io.write
from finelu import gallery
from finelu.errors import FileError
from finelu.io import (
    MATRIX_FORMATS,
    VECTOR_FORMATS,
    WRITABLE_FORMATS,
    check_writable,
    read_matrix,
    read_vector,
    write_array,
)
from finelu.io.matlab import read_mat

MARKET = "%%MatrixMarket matrix coordinate "
MATRICES = Path(os.environ.get("FINELU_MATRICES", Path(__file__).parents[3] / "shared" / "matrices"))

real = gallery.random_dominant(30, 0.1, dtype="float64")
complex_ = gallery.random_dominant(30, 0.1, dtype="complex128")


def same_bits(A, B):
    """Whether two CSR matrices are equal in every array and dtype."""
    arrays = [(getattr(A, name), getattr(B, name)) for name in ("indptr", "indices", "data")]
    return A.shape == B.shape and all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in arrays)


def text_file(folder, name, *lines):
    path = folder / name
    content = "\n".join(lines).encode() + b"\n"
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path


def petsc(*objects, index=">i4"):
    """The bytes that PETSc writes for these matrices (sparse or dense) and vectors."""
    parts = []
    for x, scalar in objects:
        if x.ndim == 1:
            parts += [np.array([1211214, x.size], index), x.astype(scalar)]
        elif sp.issparse(x):
            parts += [np.array([1211216, *x.shape, x.nnz], index), np.diff(x.indptr).astype(index)]
            parts += [x.indices.astype(index), x.data.astype(scalar)]
        else:
            parts += [np.array([1211216, *x.shape, -1], index), x.astype(scalar)]
    return b"".join(part.tobytes() for part in parts)


# Matrices ------------------------------------------------------------------------------------------------------------


def write_by_its_own_tool(path, A):
    if path.name.endswith(".mtx.gz"):
        with gzip.open(path, "wb") as file:
            scipy.io.mmwrite(file, A)
    elif path.suffix == ".mtx":
        scipy.io.mmwrite(path, A)
    elif path.suffix == ".npz":
        sp.save_npz(path, A)
    elif path.suffix == ".npy":
        np.save(path, A.toarray())
    elif path.suffix in (".rb", ".hb", ".rua", ".rsa"):
        path.write_text(harwell_of(A))
    elif path.suffix == ".mat":
        scipy.io.savemat(path, {"A": A, "b": np.ones(3), "name": "a test"}, do_compression=A.dtype == complex)
    else:
        path.write_bytes(petsc((A, A.dtype.newbyteorder(">"))))


@pytest.mark.parametrize("A", [real, complex_], ids=["real", "complex"])
@pytest.mark.parametrize("extension", MATRIX_FORMATS)
def test_a_matrix_survives_every_format_bit_for_bit(tmp_path, extension, A):
    path = tmp_path / f"A{extension.upper()}"
    lower = path.with_name(path.name.lower())
    write_by_its_own_tool(lower, A)
    for name in (lower, str(lower)):
        B = read_matrix(name)
        assert type(B) is sp.csr_matrix
        assert same_bits(A, B)
    lower.rename(path)
    assert same_bits(A, read_matrix(path))


@pytest.mark.parametrize(
    ("header", "entries", "wanted"),
    [
        ("coordinate real general", ["2 2 3", "1 1 1.5", "2 1 -2", "2 2 3e-1"], [[1.5, 0], [-2, 0.3]]),
        ("coordinate real symmetric", ["2 2 2", "1 1 1.5", "2 1 -2"], [[1.5, -2], [-2, 0]]),
        ("coordinate real skew-symmetric", ["2 2 1", "2 1 -2"], [[0, 2], [-2, 0]]),
        ("coordinate complex hermitian", ["2 2 2", "1 1 1 0", "2 1 2 3"], [[1, 2 - 3j], [2 + 3j, 0]]),
        ("coordinate pattern symmetric", ["2 2 2", "1 1", "2 1"], [[1, 1], [1, 0]]),
        ("coordinate integer general", ["2 2 2", "1 1 4", "2 2 -7"], [[4, 0], [0, -7]]),
        ("array real general", ["2 2", "1", "2", "3", "4"], [[1, 3], [2, 4]]),
        ("coordinate real general", ["% remark", "", "1 1 2", "1 1 1", "1 1 2.5"], [[3.5]]),
        (
            "coordinate real skew-symmetric",
            ["2 2 2", "2 1 1", "2 2 0"],
            [[0, -1], [1, 0]],
        ),
        ("coordinate real symmetric", ["2 2 2", "1 2 0", "2 1 1"], [[0, 1], [1, 0]]),
        ("coordinate real symmetric", ["2 2 2", "2 1 1", "1 2 -0.0"], [[0, 1], [1, 0]]),
        ("coordinate real skew-symmetric", ["2 2 2", "1 2 1", "2 1 0"], [[0, 1], [-1, 0]]),
        ("coordinate real general % as some write it", ["2 2 1", "2 1 1"], [[0, 0], [1, 0]]),
    ],
)
@pytest.mark.parametrize("extension", [".mtx", ".mtx.gz"])
def test_matrix_market_kinds_are_expanded(tmp_path, extension, header, entries, wanted):
    A = read_matrix(text_file(tmp_path, "A" + extension, f"%%MatrixMarket matrix {header}", *entries))
    assert A.dtype == (np.complex128 if "complex" in header else np.float64)
    assert (A.toarray() == np.array(wanted)).all()
    assert A.has_canonical_format


def test_explicit_zeros_stay_entries(tmp_path):
    A = gallery.stokes(3, store_zeros=True)
    write_by_its_own_tool(tmp_path / "A.mtx", A)
    assert same_bits(read_matrix(tmp_path / "A.mtx"), A)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "float64", "complex128"])
def test_npz_keeps_the_precision_and_any_format(tmp_path, dtype):
    A = gallery.random_dominant(20, 0.1, dtype=dtype)
    for number, B in enumerate((A.tocsc(), A.tocoo(), A.tobsr((2, 2)), sp.csr_array(A))):
        sp.save_npz(tmp_path / f"{number}.npz", B)
        C = read_matrix(tmp_path / f"{number}.npz")
        assert C.dtype == dtype
        assert abs(C - A).max() == 0


def test_integers_booleans_and_other_precisions_become_double(tmp_path):
    for dtype, wanted in [("int16", "float64"), ("bool", "float64"), ("float16", "float64"), ("longdouble", "float64"),
                          ("clongdouble", "complex128"), (">f4", "float32"), (">c16", "complex128")]:  # fmt: skip
        np.save(tmp_path / "A.npy", np.eye(3, dtype=dtype))
        A = read_matrix(tmp_path / "A.npy")
        assert A.dtype == wanted
        assert A.dtype.isnative
        assert (A.toarray() == np.eye(3)).all()


def test_mat_takes_the_only_sparse_matrix_or_the_suitesparse_problem(tmp_path):
    path = tmp_path / "A.mat"
    scipy.io.savemat(path, {"Problem": {"A": real.tocsc(), "b": np.arange(3.0), "name": "HB/x"}, "other": sp.eye(2)})
    assert same_bits(read_matrix(path), real)
    assert (read_vector(path) == np.arange(3.0)).all()
    scipy.io.savemat(path, {"A": sp.eye(2), "B": sp.eye(3), "c": np.ones(4)})
    with pytest.raises(
        FileError, match=r"2 variables could be the matrix \(it holds A \(2, 2\) sparse, B \(3, 3\) sparse, c"
    ):
        read_matrix(path)
    assert (read_vector(path) == np.ones(4)).all()
    scipy.io.savemat(path, {"c": np.ones(4)})
    with pytest.raises(FileError, match=r"no variable is a matrix \(it holds c \(1, 4\) float64\)"):
        read_matrix(path)


@pytest.mark.parametrize("options", [{}, {"do_compression": True}, {"format": "4"}], ids=["5", "compressed", "4"])
@pytest.mark.parametrize(
    "x",
    [
        *(np.arange(7.0).astype(dtype) for dtype in ("f4", "f8", "c8", "c16", "i1", "u1", "i2", "u2", "i4", "u4")),
        np.arange(12.0).reshape(3, 4),
        sp.csc_matrix(real),
        sp.csc_matrix(complex_),
        sp.csc_matrix((3, 4)),
    ],
    ids=lambda x: f"{type(x).__name__} {x.dtype} {x.shape}",
)
def test_what_matlab_stores_is_what_scipy_reads(tmp_path, x, options):
    path = tmp_path / "x.mat"
    if options.get("format") == "4":
        scipy.io.savemat(path, {"x": x}, **options)
    else:
        aside = {"text": "finelu", "cells": np.array([1.0, "a"], object), "parts": {"y": np.ones(3), "z": {"A": real}}}
        aside |= {"none": np.zeros((0, 0)), "a_name_of_more_than_8": "b"}
        scipy.io.savemat(path, aside | {"x": x}, **options)
    y, wanted = read_mat(path)["x"], scipy.io.loadmat(path)["x"]
    assert (y.shape, y.dtype) == (wanted.shape, wanted.dtype)
    if sp.issparse(x):
        assert same_bits(sp.csc_matrix(y), sp.csc_matrix(wanted))
    else:
        assert np.array_equal(y, wanted)


def test_a_big_endian_mat_file(tmp_path):
    def element(kind, content):
        return struct.pack(">2I", kind, len(content)) + content + bytes(-len(content) % 8)

    parts = element(6, struct.pack(">2I", 6, 0)) + element(5, struct.pack(">2i", 1, 3))
    parts += struct.pack(">2H", 1, 1) + b"x\0\0\0" + element(9, np.arange(3.0).astype(">f8").tobytes())
    (tmp_path / "x.mat").write_bytes(b"MATLAB".ljust(124) + b"\1\0MI" + element(14, parts))
    assert (read_vector(tmp_path / "x.mat") == np.arange(3.0)).all()


def test_a_mat_file_of_version_7_3_says_what_to_do(tmp_path):
    (tmp_path / "A.mat").write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM" + bytes(512))
    with pytest.raises(FileError, match=r"MATLAB 7\.3 file; save it with MATLAB's '-v7' option"):
        read_matrix(tmp_path / "A.mat")


def test_a_damaged_structure_is_a_file_error(tmp_path):
    path = tmp_path / "A.mat"
    scipy.io.savemat(path, {"Problem": {"A": real.tocsc(), "b": np.arange(30.0), "name": "HB/x"}})
    content = path.read_bytes()
    for at in range(128, len(content), 3):
        path.write_bytes(content[:at] + b"0\n" + content[at:])
        with pytest.raises(FileError, match=r"A\.mat: "):
            read_matrix(path)


@pytest.mark.parametrize("extension", [".npz", ".mat"])
def test_indices_outside_the_matrix_are_found_before_they_are_used(tmp_path, extension):
    path = tmp_path / f"A{extension}"
    A = sp.csc_matrix(real)
    A.indices[7] = 10**6
    write_by_its_own_tool(path, A)
    for read in (read_matrix, read_vector) if extension == ".npz" else (read_matrix,):
        with pytest.raises(FileError, match=r"indices must be < 30"):
            read(path)


# PETSc ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [">i4", ">i8"])
@pytest.mark.parametrize(("scalar", "A"), [(">f8", real), (">c16", complex_)])
def test_petsc_index_and_value_types_are_distinguished(tmp_path, index, scalar, A):
    x = np.arange(30).astype(A.dtype)
    path = tmp_path / "system.petsc"
    for objects in ([A], [x], [A, x], [x, A], [A, A, x], [A.toarray(), x]):
        path.write_bytes(petsc(*((each, scalar) for each in objects), index=index))
        if objects[0] is not x or len(objects) == 2:
            assert same_bits(read_matrix(path), A)
        if any(each is x for each in objects):
            y = read_vector(path)
            assert y.dtype == A.dtype
            assert y.dtype.isnative
            assert (y == x).all()


def test_petsc_bytes_as_documented(tmp_path):
    content = "00127b50 00000002 00000002 00000003 00000001 00000002 00000001 00000000 00000001"
    content += "4000000000000000 bff0000000000000 4008000000000000"
    (tmp_path / "A.bin").write_bytes(bytes.fromhex(content))
    assert (read_matrix(tmp_path / "A.bin").toarray() == [[0, 2], [-1, 3]]).all()


def test_petsc_files_without_what_is_asked_for(tmp_path):
    path = tmp_path / "A.dat"
    path.write_bytes(petsc((real, ">f8")))
    with pytest.raises(FileError, match="holds no Vec"):
        read_vector(path)
    path.write_bytes(petsc((np.ones(3), ">f8")))
    with pytest.raises(FileError, match="holds no Mat"):
        read_matrix(path)
    path.write_text("1.0 2.0\n")
    with pytest.raises(FileError, match="is not a PETSc binary file"):
        read_matrix(path)


@pytest.mark.parametrize("position", [1, 2, 3, 4, 40])  # rows, columns, entries, a row length, a column index
def test_petsc_corrupt_numbers(tmp_path, position):
    path = tmp_path / "A.dat"
    for value in (-5, 7 if position == 2 else 2**31 - 1):
        words = np.frombuffer(petsc((real, ">f8")), ">i4").copy()
        words[position] = value
        path.write_bytes(words.tobytes())
        with pytest.raises(FileError, match="corrupt"):
            read_matrix(path)


# Vectors -------------------------------------------------------------------------------------------------------------

VECTORS = {
    "real": np.array([1.5, np.pi * 1e-300, -0.1, 0.0, 1e308]),
    "complex": np.array([1 + 2j, -1 / 3 - 3e-5j, 0]),
    "single": np.array([0.1, -2.5e-7, 3], np.float32),
    "columns": np.arange(6.0).reshape(3, 2) / 7,
    "integers": np.array([3, -4, 2**53 - 1]),
}


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("extension", WRITABLE_FORMATS)
def test_a_vector_survives_every_written_format(tmp_path, extension, name):
    x = VECTORS[name]
    path = tmp_path / f"x{extension}"
    write_array(path, x)
    y = read_vector(path)
    assert y.shape == x.shape
    assert y.flags.c_contiguous
    assert np.array_equal(y.astype(x.dtype), x)
    keeps = extension in (".npy", ".npz") and x.dtype.kind in "fc"
    assert y.dtype == (x.dtype if keeps else np.result_type(x.dtype, np.float64))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("extension", [".npz", ".mtx"])
@pytest.mark.parametrize(
    "A", [real, complex_, real.tolil(), sp.csr_array(real)], ids=["real", "complex", "lil", "array"]
)
def test_a_sparse_matrix_survives_writing(tmp_path, extension, A):
    write_array(tmp_path / f"A{extension}", A)
    assert same_bits(read_matrix(tmp_path / f"A{extension}"), sp.csr_matrix(A))


def test_vectors_from_sparse_columns_and_rows(tmp_path):
    lines = ["%%MatrixMarket matrix coordinate real general", "4 1 2", "2 1 5", "4 1 -1"]
    assert (read_vector(text_file(tmp_path, "b.mtx", *lines)) == [0, 5, 0, -1]).all()
    lines[1:] = ["1 4 2", "1 2 5", "1 4 -1"]
    assert (read_vector(text_file(tmp_path, "b.mtx.gz", *lines)) == [0, 5, 0, -1]).all()
    np.save(tmp_path / "b.npy", np.arange(3.0)[:, None])
    assert read_vector(tmp_path / "b.npy").shape == (3,)


def test_a_sparse_matrix_is_no_vector(tmp_path):
    write_array(tmp_path / "A.mtx", real)
    with pytest.raises(FileError, match=r"holds a sparse matrix of shape \(30, 30\); a vector is needed"):
        read_vector(tmp_path / "A.mtx")


@pytest.mark.parametrize("kind", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_npz_is_read_however_well_its_members_are_compressed(tmp_path, kind):
    A = sp.diags_array(np.ones(300_000)).tocsr()
    sp.save_npz(tmp_path / "plain.npz", A, compressed=False)
    with zipfile.ZipFile(tmp_path / "plain.npz") as plain, zipfile.ZipFile(tmp_path / "A.npz", "w", kind) as packed:
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
    assert (read_matrix(tmp_path / "A.npz") != A).nnz == 0


def test_npz_with_several_arrays_is_ambiguous(tmp_path):
    np.savez(tmp_path / "b.npz", b=np.ones(3), c=np.ones(4))
    with pytest.raises(FileError, match=r"2 variables could be the vector \(it holds b \(3,\) float64, c \(4,\)"):
        read_vector(tmp_path / "b.npz")


# Bad files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "match"),
    [
        (["hello", "1 2 3"], "line 1: 'hello': not a Matrix Market file"),
        ([f"{MARKET}real"], "line 1: .*: 3 words follow %%MatrixMarket where 4 are needed"),
        ([f"{MARKET}quad general", "1 1 0"], "line 1: 'quad'; real, double, complex"),
        (["%%MatrixMarket matrix array pattern general", "1 1", "1"], "line 1: .*a pattern is coordinate"),
        ([f"{MARKET}real general"], "ends in line 1, before the line with the sizes"),
        ([f"{MARKET}real general", "2 2"], "line 2: '2 2': the sizes are needed: rows, columns, entries"),
        ([f"{MARKET}real general", "2 -2 1", "1 1 1"], "line 2: '2 -2 1': the sizes are needed"),
        ([f"{MARKET}real general", "0 0 0"], "line 2: a matrix of 0 x 0"),
        (["%%MatrixMarket matrix array real general", "0 0"], "line 2: a matrix of 0 x 0"),
        (["%%MatrixMarket matrix array real symmetric", "3 2", "1"], "line 2: 3 x 2 and symmetric"),
        ([f"{MARKET}real general", "2 2 3", "1 1 1", "2 2 2"], "ends in line 4 with 2 of the 3 entries that line 2"),
        ([f"{MARKET}real general", "2 2 1", "1 1 1", "", "% more", "2 2 2"], "line 6: an entry more than the 1 that"),
        (
            [f"{MARKET}real general", "2 2 2", "1 1 abc", "2 2 2"],
            "line 3: '1 1 abc': expected: row, column .*, a real number",
        ),
        ([f"{MARKET}real general", "2 2 2", "", "1 3 1", "2 2 2"], "line 4: '1 3 1': outside of a matrix of 2 x 2"),
        (
            [f"{MARKET}real general", "2 2 2", "0 1 1", "2 2 2"],
            r"line 3: '0 1 1': expected: row, column \(from 1 on\), a",
        ),
        ([f"{MARKET}real general", "2 2 2", "1 1 1", "2 2 1e400"], "line 4: '2 2 1e400': larger than any number"),
        ([f"{MARKET}real general", "2 2 2", "1 1 inf", "2 2 1e400"], "line 4: '2 2 1e400': larger than any number"),
        ([f"{MARKET}real general", "2 2 99999999999999", "1 1 1"], "line 2 declares 99999999999999 entries, more than"),
        ([f"{MARKET}real general", "9" * 15 + " 2 1", "1 1 1"], r"needs about 5e\+07 GB of memory"),
        ([f"{MARKET}real general", "2 2 2", "1 1 1", "2 2 2.\0"], r"line 4: '2 2 2.\\x00': expected: row"),
        (["%%MatrixMarket matrix array real general", "2 2", "1", "2", "3"], "ends in line 5 with 3 of the 4 entries"),
        (["%%MatrixMarket matrix array real general", "2 1", "1 2"], "line 3: '1 2': expected: a real number"),
        ([f"{MARKET}real general", "2 2 1", "1 1 1\f"], r"line 3: '1 1 1\\x0c': expected: row, column"),
        ([f"{MARKET}real general more", "2 2 1", "1 1 1"], "line 1: .*: 5 words follow"),
        ([f"{MARKET}real skew-symmetric", "2 2 2", "2 1 1", "2 2 3"], "line 4: '2 2 3': the diagonal of .* is 0"),
        ([f"{MARKET}complex hermitian", "2 2 2", "2 1 1 1", "2 2 1 1"], "line 4: '2 2 1 1': the diagonal of .* real"),
        (
            ["%%MatrixMarket matrix array complex hermitian", "2 2", "1 0", "2 1", "1 -1"],
            "line 5: '1 -1': the diagonal of .* real",
        ),
    ],
)
@pytest.mark.parametrize("extension", [".mtx", ".mtx.gz"])
def test_bad_matrix_market_names_the_path_and_the_line(tmp_path, extension, lines, match):
    path = text_file(tmp_path, f"bad{extension}", *lines)
    for read in (read_matrix, read_vector):
        with pytest.raises(FileError, match=match) as caught:
            read(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "entry"),
    [
        *(
            ("real", f"1 1 {x}")
            for x in ("2,5", "1.5abc", "0x10", "1 2", "1+100", "1e", ".", "--1", "1_0", "1.0Q+05", "")
        ),
        *(("integer", f"1 1 {x}") for x in ("8e3", "8.0", "nan", "0x10")),
        *(("complex", f"1 1 {x}") for x in ("1", "1 2 3", "1+2j", "(1,2)")),
        *(("pattern", entry) for entry in ("1 1 1", "1", "1.0 1")),
        *(("real", entry) for entry in ("-1 1 1", "1.0 1 1", "1,1 1", "1 1\r1")),
    ],
)
def test_what_is_no_entry_is_refused_with_its_text(tmp_path, kind, entry):
    path = text_file(tmp_path, "A.mtx", f"{MARKET}{kind} general", "2 2 1", entry or " ")
    shown = re.escape(ascii(entry.strip())) if entry else "ends in line 3 with 0 of the 1 entries"
    with pytest.raises(FileError, match=shown if not entry else f"line 3: {shown}: expected: .*"):
        read_matrix(path)


@pytest.mark.parametrize("text", ["1.0D+05", "-1.5d-3", "1D2", ".5", "5.", "+7", "-.5E+00", "007", "1e-400", "1E5"])
@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_numbers_are_read_as_written(tmp_path, text, end):
    (tmp_path / "A.mtx").write_text(f"{MARKET}real general\n2 3 1\n 2\t03 {text} {end}", newline="")
    A = read_matrix(tmp_path / "A.mtx")
    assert (A[1, 2], A.nnz) == (float(text.upper().replace("D", "E")), 1)


@pytest.mark.parametrize("layout", ["coordinate real", "coordinate integer", "array real", "array complex"])
def test_numbers_are_rounded_correctly(tmp_path, layout):
    rng = np.random.default_rng(0)
    if layout.endswith("integer"):
        texts = [str(k) for k in (2**53 + 1, -(2**63) - 1025, 2**80 + 2**27 + 1, *rng.integers(2**62, 2**63, 300))]
    else:
        doubles = np.frombuffer(rng.bytes(8 * 1000))
        texts = [f"{x:.{digits}e}" for x, digits in zip(doubles, rng.integers(0, 40, 1000), strict=True) if x == x]
        texts += [
            "9007199254740993",
            "2.2250738585072011e-308",
            "1.7976931348623158e308",
            "4.9e-324",
            "-0.0",
            "1" * 300,
        ]
    n = len(texts)
    if layout.startswith("array"):
        sizes, lines = f"{n} 1", [text + " 1" * layout.endswith("complex") for text in texts]
    else:
        sizes, lines = f"{n} 1 {n}", [f"{k} 1 {text}" for k, text in enumerate(texts, 1)]
    x = read_vector(text_file(tmp_path, "x.mtx", f"%%MatrixMarket matrix {layout} general", sizes, *lines)).real
    assert [struct.pack("d", a) for a in x] == [struct.pack("d", 0.0 + float(text)) for text in texts]  # -0.0 is 0.0


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize(("symmetry", "mirror"), [("symmetric", 5.0), ("skew-symmetric", -5.0)])
def test_either_triangle_may_be_stored_and_never_both(tmp_path, symmetry, mirror, upper):
    entries = ["1 2 5", "1 3 7"] if upper else ["2 1 5", "3 1 7"]
    A = read_matrix(text_file(tmp_path, "A.mtx", f"{MARKET}real {symmetry}", "3 3 2", *entries)).toarray()
    assert (A[0, 1], A[1, 0]) == ((5, mirror) if upper else (mirror, 5))
    entries.append("2 1 5" if upper else "1 2 5")
    path = text_file(tmp_path, "A.mtx", f"{MARKET}real {symmetry}", "3 3 3", *entries)
    with pytest.raises(FileError, match=r"line 5: '[12] [12] 5': \(2, 1\) and \(1, 2\) are both stored.*" + symmetry):
        read_matrix(path)


def test_the_name_says_whether_a_file_is_compressed(tmp_path):
    text = f"{MARKET}real general\n1 1 1\n1 1 1\n".encode()
    for name, content, match in [
        ("A.mtx", gzip.compress(text), r"A\.mtx: is compressed; name it \.mtx\.gz\."),
        ("A.mtx.gz", text, r"A\.mtx\.gz: is not compressed; name it \.mtx "),
    ]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(FileError, match=match):
            read_matrix(tmp_path / name)


@pytest.mark.parametrize("field", ["real", "complex", "pattern"])
@pytest.mark.parametrize("symmetry", ["general", "symmetric", "both triangles"])
@pytest.mark.parametrize("layout", ["coordinate", "array"])
def test_no_more_memory_is_taken_than_was_asked_for(tmp_path, monkeypatch, chunks, everywhere, layout, symmetry, field):
    if layout == "array" and (field == "pattern" or symmetry == "both triangles"):
        pytest.skip("there is no such file")
    n, value = 400, {"real": " 1", "complex": " 1 2", "pattern": ""}[field]
    stored = [(i, j) for j in range(n) for i in range(j if symmetry != "general" else 0, n)]
    if symmetry == "both triangles":
        stored = [(i, j) if (i + j) % 2 else (j, i) for i, j in stored]
    lines = [f"{i + 1} {j + 1}{value}" if layout == "coordinate" else value.strip() for i, j in stored]
    sizes = f"{n} {n} {len(lines)}" if layout == "coordinate" else f"{n} {n}"
    header = f"%%MatrixMarket matrix {layout} {field} {'general' if symmetry == 'general' else 'symmetric'}"
    path = text_file(tmp_path, "A.mtx", header, sizes, *lines)
    chunk = 2**16
    chunks(chunk)
    asked = []
    everywhere("free_memory", lambda xp: 2**40)
    check = finelu.io.market.check_memory
    monkeypatch.setattr(finelu.io.market, "check_memory", lambda *given: (asked.append(given), check(*given)))
    read_matrix(path)  # SciPy's reader is imported
    asked.clear()
    tracemalloc.start()
    try:
        read_matrix(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    ((_, rows, columns, of_entries), *_) = asked
    assert peak <= finelu.io.limits.ROW * (rows + columns) // 2 + of_entries + 20 * chunk


@pytest.mark.parametrize("field", ["real", "double", "integer", "complex", "unsigned-integer"])
@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric", "hermitian"])
def test_arrays_and_entries_say_the_same(tmp_path, field, symmetry):
    lower = np.array([[2.0, 0, 0], [3, 5, 0], [7, 11, 13]], complex)
    if field == "complex":
        lower += 1j * np.tril(lower, -1)
    mirrored = {"symmetric": lower.T, "skew-symmetric": -lower.T, "hermitian": lower.conj().T}
    first = symmetry == "skew-symmetric"
    stored = [(i, j) for j in range(3) for i in range(j + first, 3)]
    if symmetry == "general":
        stored = [(i, j) for j in range(3) for i in range(3)]
    wanted = np.tril(lower, -1 if first else 0) + np.triu(mirrored.get(symmetry, 0 * lower), 1)
    value = [f"{lower[p].real:.0f}" + f" {lower[p].imag:.0f}" * (field == "complex") for p in stored]
    for layout, sizes, lines in (
        ("Array", "3 3", value),
        ("COORDINATE", f"3 3 {len(stored)}", [f"{i + 1} {j + 1} {x}" for (i, j), x in zip(stored, value, strict=True)]),
    ):
        text = [f"%%matrixmarket MATRIX {layout} {field} {symmetry.title()}", "% a", "", "%", sizes, *lines, "", "%"]
        A = read_matrix(text_file(tmp_path, "A.mtx", *text))
        assert A.dtype == (complex if field == "complex" else float)
        assert (A.toarray() == wanted).all()


@pytest.fixture
def chunks(monkeypatch):
    """chunks(size): the bytes in which a file in the Matrix Market format is read."""
    return lambda size: monkeypatch.setattr(finelu.io.market, "CHUNK", size)


def test_pieces_of_a_file_are_put_together(tmp_path, chunks):
    A = gallery.stokes(6)
    path = tmp_path / "A.mtx"
    write_by_its_own_tool(path, A)
    text = path.read_text()
    for chunk in (100, 1000, 1001):
        chunks(chunk)
        assert same_bits(read_matrix(path), A)
        last = text_file(tmp_path, "B.mtx", text.rstrip().rpartition("\n")[0], f"{A.shape[0]} 1 x")
        with pytest.raises(FileError, match=f"line {text.count(chr(10))}: '{A.shape[0]} 1 x'"):
            read_matrix(last)
    chunks(4)
    with pytest.raises(FileError, match=r"line \d+: \d+ bytes and still no end"):
        read_matrix(path)


@pytest.mark.parametrize("name", ["A.mtx", "A.mtx.gz"])
@pytest.mark.parametrize("chunk", [100, 2**24])
def test_shares_of_the_lines_are_the_whole_file(tmp_path, chunks, name, chunk):
    chunks(chunk)
    entries = [f"{i} {max(i - k, 1)} {i}.{k}D0" for i in range(1, 40) for k in range(2) if i > k]
    entries[30:30] = ["% a comment", "", " "]
    lines = [f"{MARKET}real symmetric", "%", f"40 40 {len(entries) - 3}", *entries]
    path, compressed = text_file(tmp_path, name, *lines), name.endswith(".gz")
    layout = finelu.io.market.read_layout(path, compressed)
    for parts in (1, 2, 3, 7, 200):
        found = [finelu.io.market.read_part(path, compressed, layout, k, parts) for k in range(parts)]
        i, j, value = finelu.io.market.expanded(layout, *(np.concatenate(part) for part in zip(*found, strict=True)))
        assert same_bits(sp.csr_matrix((value, (i, j)), shape=(40, 40)), read_matrix(path))
    for wrong, expected in (("5 6 x", "5 6 x': expected: row, column"), ("41 1 1", "41 1 1': outside of a matrix")):
        path = text_file(tmp_path, name, *lines[:-5], wrong, *lines[-4:])
        with pytest.raises(FileError, match=f"line {len(lines) - 4}: '{expected}"):
            finelu.io.market.read_part(path, compressed, layout, 3, 4)


@pytest.mark.parametrize("place", ["comments", "blank lines", "padding", "one line", "last lines"])
def test_a_gz_that_grows_without_end_is_refused_early(tmp_path, chunks, monkeypatch, place):
    chunks(2**14)
    monkeypatch.setattr(finelu.io.market, "SPARE", 2**14)
    head, entry = f"{MARKET}real general\n", "2 2 1\n1 1 1"
    text = {
        "comments": head + "% so much to say\n" * 20000 + entry,
        "blank lines": head + "2 2 1\n" + "\n" * 300_000 + "1 1 1",
        "padding": head + "2 2 1\n1 1" + " " * 300_000 + "1",
        "one line": "%%" + "x" * 300_000,
        "last lines": head + entry + "\n" + "% and then\n" * 30_000,
    }[place]
    path = tmp_path / "A.mtx.gz"
    path.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(FileError, match=r"line \d+: .*(remove|no end|not a Matrix Market file)"):
        read_matrix(path)


def announced(extension):
    """The bytes of a small file that announces a large matrix."""
    file = io.BytesIO()
    if extension in (".mtx", ".mtx.gz"):
        text = f"{MARKET}real general\n{10**12} {10**12} 1\n1 1 1\n".encode()
        file.write(gzip.compress(text) if extension == ".mtx.gz" else text)
    elif extension == ".npy":
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (10**5, 10**5)})
        file.write(bytes(800))
    elif extension == ".npz":
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr("A.npy", announced(".npy"))
    elif extension == ".mat":
        scipy.io.savemat(file, {"A": sp.csc_matrix(np.eye(3)), "b": np.ones((7, 11))})
        content = file.getvalue()
        return content.replace(struct.pack("2i", 7, 11), struct.pack("2i", 2**31 - 1, 2**31 - 1))
    else:
        file.write(np.array([1211216, 2**31 - 1, 2**31 - 1, -1], ">i4").tobytes() + bytes(800))
    return file.getvalue()


MEASURE = """
import resource, sys
from finelu.errors import FileError
from finelu.io import read_matrix, read_vector
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sys.argv[1:]:
    for read in (read_matrix, read_vector):
        try:
            read(path)
        except FileError as error:
            print(error)
        else:
            print("read")
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_announced_sizes_are_refused_before_100_MB_are_taken(tmp_path):
    paths = []
    for extension in (".mtx", ".mtx.gz", ".npy", ".npz", ".mat", ".petsc"):
        paths.append(tmp_path / f"A{extension}")
        paths[-1].write_bytes(announced(extension))
    for name, A in (("coo", sp.coo_matrix(([1.0], ([0], [0])), (10**12, 10**12))), ("dia", sp.eye(3))):
        paths.append(tmp_path / f"{name}.npz")
        sp.save_npz(paths[-1], A)
    rewritten = dict(np.load(tmp_path / "dia.npz"), shape=np.array([10**12, 10**12]))
    np.savez(tmp_path / "dia.npz", **rewritten)
    bomb = tmp_path / "bomb.mtx.gz"  # 400 MB of comments
    bomb.write_bytes(gzip.compress(f"{MARKET}real general\n".encode()) + 100 * gzip.compress(b"% so it says\n" * 2**18))
    command = [sys.executable, "-c", MEASURE, *map(str, [*paths, bomb])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    *lines, megabytes = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.partition(": ")[0] for line in lines] == [str(path) for path in [*paths, bomb] for _ in range(2)]
    assert int(megabytes) < 100


@pytest.mark.parametrize("wrong", [b"'\\o'", b"'\xcf'"])
@pytest.mark.filterwarnings("error")
def test_a_header_that_numpy_does_not_write(tmp_path, wrong):
    np.save(tmp_path / "x.npy", np.ones(3))
    content = (tmp_path / "x.npy").read_bytes()
    (tmp_path / "x.npy").write_bytes(content.replace(b"'<f8'", wrong.ljust(5)))
    with pytest.raises(FileError, match=r"x\.npy: has a header that NumPy does not write"):
        read_vector(tmp_path / "x.npy")


def test_a_matrix_beyond_the_free_memory_is_refused(tmp_path, everywhere):
    path = text_file(tmp_path, "A.mtx", f"{MARKET}real general", "2000000000 2000000000 1", "1 1 1")
    everywhere("free_memory", lambda array: 100 * 10**9)
    with pytest.raises(FileError, match=r"2000000000 x 2000000000: .* about 200 GB .* 100 GB are free"):
        read_matrix(path)


@pytest.mark.parametrize(
    ("extension", "A"),
    [(".mtx.gz", real), (".npz", real), (".npy", real), (".mat", real), (".mat", complex_), (".petsc", real)],
)
def test_a_truncated_file_is_a_file_error_wherever_it_ends(tmp_path, extension, A):
    path = tmp_path / f"A{extension}"
    write_by_its_own_tool(path, A)
    content = path.read_bytes()
    for end in range(0, len(content), max(1, len(content) // 60)):
        path.write_bytes(content[:end])
        with pytest.raises(FileError, match=f"A{extension}: ") as error:
            read_matrix(path)
    assert "the file is truncated" in str(error.value) or extension != ".mtx.gz"


@pytest.mark.parametrize("extension", VECTOR_FORMATS)
def test_rubbish_and_empty_files_in_every_format(tmp_path, extension):
    path = tmp_path / f"x{extension}"
    path.write_bytes(b"")
    with pytest.raises(FileError, match="the file is empty"):
        read_vector(path)
    for rubbish in (b"rubbish, and more of it\n" * 20, bytes(range(256)) * 4, b"\x93NUMPY", b"PK\x03\x04"):
        path.write_bytes(rubbish)
        with pytest.raises(FileError, match=f"x{extension}: "):
            read_vector(path)


def test_paths_that_are_no_such_file(tmp_path):
    for read in (read_matrix, read_vector):
        with pytest.raises(FileError, match=r"none\.mtx: there is no such file"):
            read(tmp_path / "none.mtx")
        with pytest.raises(FileError, match="is a directory"):
            read(tmp_path)
        (tmp_path / "A.xlsx").write_text("1")
        with pytest.raises(FileError, match=r"unknown extension '.xlsx' for a \w+; known are .mtx, .mtx.gz, .npz"):
            read(tmp_path / "A.xlsx")


def test_packed_files_and_names_without_extension_say_what_to_do(tmp_path):
    for name, match in [
        ("A.mtx.xz", r"A.mtx.xz: unpack it first \(unxz A.mtx.xz\); .mtx.gz is the only"),
        ("A.tar.gz", r"unpack it first \(tar xf A.tar.gz\)"),
        ("A.rb.gz", r"unpack it first \(gunzip A.rb.gz\)"),
        ("A", r"A: the name has no extension, which tells the format, for a \w+; known are .mtx"),
    ]:
        (tmp_path / name).write_text("1")
        for read in (read_matrix, read_vector):
            with pytest.raises(FileError, match=match):
                read(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2.5\n", np.array([2.5])),
        ("# one number, by j. doe\n2.5 # just this\n", np.array([2.5])),
        ("1+2j # complex\n3\n", np.array([1 + 2j, 3])),
        ("(0.5-1j)\n", np.array([0.5 - 1j])),
    ],
)
def test_a_text_vector_has_the_dtype_of_its_numbers_and_not_of_its_comments(tmp_path, text, expected):
    (tmp_path / "x.txt").write_text(text)
    x = read_vector(tmp_path / "x.txt")
    assert x.shape == expected.shape and x.dtype == expected.dtype
    np.testing.assert_array_equal(x, expected)


def test_values_and_shapes_that_are_no_numbers_or_vectors(tmp_path):
    np.save(tmp_path / "x.npy", np.array(["a", "b"]))
    with pytest.raises(FileError, match="values of dtype <U1"):
        read_vector(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(FileError, match="Object arrays cannot be loaded"):
        read_vector(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.ones((2, 2, 2)))
    with pytest.raises(FileError, match=r"an array of shape \(2, 2, 2\)"):
        read_vector(tmp_path / "x.npy")
    np.save(tmp_path / "x.npy", np.ones(4))
    with pytest.raises(FileError, match=r"an array of shape \(4,\), not a matrix"):
        read_matrix(tmp_path / "x.npy")
    (tmp_path / "x.txt").write_text("1.0\n2.0\nthree\n")
    with pytest.raises(FileError, match=r"three.* row 2"):
        read_vector(tmp_path / "x.txt")


# Writing -------------------------------------------------------------------------------------------------------------


def test_unwritable_paths_are_refused_before_any_work(tmp_path):
    (tmp_path / "folder.npy").mkdir()
    for name, match in [
        ("x.pdf", "unknown extension '.pdf' for writing; use one of .npy, .npz, .mtx, .txt, .csv"),
        ("x", "unknown extension ''"),
        ("none/x.npy", "there is no folder"),
        ("folder.npy", "is a directory"),
    ]:
        for ask in (check_writable, lambda path: write_array(path, np.ones(2))):
            with pytest.raises(FileError, match=match):
                ask(tmp_path / name)
    check_writable(tmp_path / "x.npy")
    assert [p.name for p in tmp_path.iterdir()] == ["folder.npy"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(FileError, match="no permission"):
        check_writable(tmp_path / "x.npy")
    tmp_path.chmod(0o700)


@pytest.mark.parametrize(
    "failure", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["disk", "Ctrl-C"]
)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, failure):
    path = tmp_path / "x.npy"
    write_array(path, np.arange(3.0))

    def fail(file, x):
        file.write(b"half of it")
        raise failure

    monkeypatch.setitem(finelu.io.write.WRITERS, ".npy", fail)
    wanted = FileError if isinstance(failure, OSError) else KeyboardInterrupt
    with pytest.raises(
        wanted, match=r"x\.npy: cannot be written \(No space.*\); x was not" if wanted is FileError else None
    ):
        write_array(path, np.ones(4))
    assert (read_vector(path) == np.arange(3.0)).all()
    assert [p.name for p in tmp_path.iterdir()] == ["x.npy"]


def test_writing_replaces_the_target_of_a_link_and_follows_the_umask(tmp_path):
    (tmp_path / "link.npy").symlink_to(tmp_path / "x.npy")
    (tmp_path / "plain").touch()
    for x in (np.ones(2), np.zeros(3)):
        write_array(tmp_path / "link.npy", x)
        assert (tmp_path / "link.npy").is_symlink()
        assert (read_vector(tmp_path / "x.npy") == x).all()
    assert (tmp_path / "x.npy").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("x", [np.ones(2), np.ones(2000)])
def test_writing_keeps_the_mode_of_a_file_and_all_its_names(tmp_path, x):
    path, other = tmp_path / "x.npy", tmp_path / "other.npy"
    write_array(path, np.arange(100.0))
    path.chmod(0o600)
    write_array(path, x)
    assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_nlink) == (0o600, 1)
    other.hardlink_to(path)
    path.chmod(0o640)
    write_array(path, 2 * x)
    assert path.samefile(other) and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert (np.load(other) == 2 * x).all()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.npy", "x.npy"]


@pytest.mark.parametrize("extension", WRITABLE_FORMATS)
def test_a_fifo_is_written_into(tmp_path, extension):
    path, copy = tmp_path / f"x{extension}", tmp_path / f"copy{extension}"
    os.mkfifo(path)
    check_writable(path)
    with ThreadPoolExecutor() as reader:
        content = reader.submit(path.read_bytes)
        write_array(path, np.arange(3.0))
        copy.write_bytes(content.result(timeout=60))
    assert stat.S_ISFIFO(path.stat().st_mode)
    assert (read_vector(copy) == np.arange(3.0)).all()


def test_a_device_is_written_into_and_a_full_one_says_so(tmp_path, devices_stay):
    for device in ("null", "full"):
        (tmp_path / f"{device}.npy").symlink_to(f"/dev/{device}")
        check_writable(tmp_path / f"{device}.npy")
    write_array(tmp_path / "null.npy", np.ones(3))
    with pytest.raises(FileError, match=r"full\.npy: cannot be written \(No space left on device\); x was not written"):
        write_array(tmp_path / "full.npy", np.ones(3))
    assert (tmp_path / "null.npy").is_symlink() and (tmp_path / "full.npy").is_symlink()


@pytest.mark.parametrize("length", [240, 255])
def test_a_long_name_is_written(tmp_path, length):
    path = tmp_path / ("x" * (length - 4) + ".npy")
    write_array(path, np.ones(2))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_names_that_no_file_can_have_are_refused_before_the_work(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "round.npy").symlink_to("round.npy")
    (tmp_path / "lost.npy").symlink_to("nowhere/x.npy")
    for name, match in [
        ("x" * 252 + ".npy", "File name too long"),
        ("file/x.npy", "Not a directory"),
        ("round.npy", "symbolic links"),
        ("lost.npy", "there is no folder .*nowhere"),
        ("x\0.npy", "null"),
    ]:
        with pytest.raises(FileError, match=match):
            check_writable(tmp_path / name)


def test_a_failed_write_of_a_file_of_two_names_leaves_both_as_they_were(tmp_path, monkeypatch):
    path, other = tmp_path / "x.npy", tmp_path / "other.npy"
    write_array(path, np.arange(3.0))
    other.hardlink_to(path)

    def full(descriptor, start, length):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(FileError, match=r"No space left on device.*; x was not written"):
        write_array(path, np.ones(400))
    assert (np.load(other) == np.arange(3.0)).all()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other.npy", "x.npy"]


def test_what_is_written_into_has_a_complete_copy_until_that_is_done(tmp_path, monkeypatch):
    path, other = tmp_path / "x.npy", tmp_path / "other.npy"
    write_array(path, np.arange(3.0))
    other.hardlink_to(path)
    seen = []

    def failing(descriptor, mode):
        if isinstance(descriptor, int):  # what is written into, not the copy
            seen.append({p.name: p.read_bytes() for p in tmp_path.glob(".*.part")})
            os.write(descriptor, b"half of it")
            os.close(descriptor)
            raise OSError(5, "Input/output error")
        return open(descriptor, mode)

    monkeypatch.setattr(finelu.io.replace, "open", failing, raising=False)
    with pytest.raises(FileError, match=r"x\.npy: was left half written \(Input/output error\); x is complete in") as e:
        write_array(path, np.ones(400))
    (part,) = tmp_path.glob(".*.part")
    assert str(part) in str(e.value) and stat.S_IMODE(part.stat().st_mode) == 0o600
    assert (np.load(part) == np.ones(400)).all() and seen == [{part.name: part.read_bytes()}]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_the_owner_of_a_file_stays(tmp_path):
    path = tmp_path / "x.npy"
    path.touch(mode=0o640)
    os.chown(path, 12345, 54321)
    write_array(path, np.ones(3))
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12345, 54321, 0o640)
    assert (np.load(path) == 1).all() and [p.name for p in tmp_path.iterdir()] == ["x.npy"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_what_may_be_written_is_the_file_where_there_is_one(tmp_path):
    path = tmp_path / "x.npy"
    path.touch(mode=0o400)
    with pytest.raises(FileError, match="no permission to write to it"):
        check_writable(path)
    path.chmod(0o600)
    tmp_path.chmod(0o500)
    write_array(path, np.ones(3))
    tmp_path.chmod(0o700)
    assert (np.load(path) == 1).all()


def test_a_file_that_is_mounted_takes_no_other_name(tmp_path, monkeypatch):
    path = tmp_path / "x.npy"
    write_array(path, np.ones(300))

    def busy(source, target):
        raise OSError(errno.EBUSY, "Device or resource busy")

    monkeypatch.setattr(os, "replace", busy)
    write_array(path, np.zeros(3))
    assert (np.load(path) == np.zeros(3)).all()
    assert [p.name for p in tmp_path.iterdir()] == ["x.npy"]


def test_arrays_that_a_format_cannot_hold(tmp_path):
    for name, x, match in [
        ("A.npy", real, "cannot hold a sparse matrix; write .npz or .mtx"),
        ("A.txt", real, "cannot hold a sparse matrix"),
        ("x.npy", np.ones((2, 2, 2)), r"shape \(2, 2, 2\)"),
        ("x.npy", np.array(["a"]), "dtype <U1"),
        ("x.npy", 3.0, r"shape \(\)"),
    ]:
        with pytest.raises(FileError, match=match):
            write_array(tmp_path / name, x)
    assert not list(tmp_path.iterdir())


# Real matrices -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["1138_bus", "bcsstk16", "gre_115", "memplus", "west0479", "ng_helmholtz_k40", "hifir_LE_4"]
)
def test_real_matrices_are_what_scipy_reads(name):
    path = MATRICES / f"{name}.mtx.gz"
    if not path.exists():
        pytest.skip(f"{path} is not there; FINELU_MATRICES names the folder of real matrices")
    A = scipy.io.mmread(path)
    assert same_bits(read_matrix(path), sp.csr_matrix(A, dtype=complex if A.dtype.kind == "c" else float))


def harwell_of(A, forms=("(8I10)", "(8I10)", "(3D25.17)"), kind="", rhs=False):
    """The Rutherford-Boeing file of A, column by column; kind: the type, if A is one triangle or a pattern."""
    C = sp.csc_matrix(A)
    values = [] if kind[:1] == "P" else C.data.view(float).ravel()
    numbers = [[f"{k:10}" for k in C.indptr + 1], [f"{k:10}" for k in C.indices + 1], [f"{v:25.17E}" for v in values]]
    blocks = [["".join(of[k : k + n]) for k in range(0, len(of), n)] for of, n in zip(numbers, (8, 8, 3), strict=True)]
    counts = sum(map(len, blocks)), *map(len, blocks), *((1,) if rhs else ())
    header = [
        f"{'A title':72}{'KEY':8}",
        "".join(f"{k:14}" for k in counts),
        f"{kind or ('CUA' if C.dtype.kind == 'c' else 'RUA'):14}" + "".join(f"{k:14}" for k in (*C.shape, C.nnz, 0)),
        f"{forms[0]:16}{forms[1]:16}{forms[2]:20}",
        *([f"{'F':14}{1:14}{0:14}"] if rhs else []),
    ]
    lines = [*header, *(line.replace("E", "D") for block in blocks for line in block), *(["1.0 2.0"] if rhs else [])]
    return "\n".join(lines) + "\n"


LOWER = sp.csc_matrix(np.array([[1.0, 0, 0], [0, 3, 0], [-2, 0, 4]]))


@pytest.mark.parametrize("rhs", [False, True])
@pytest.mark.parametrize(
    ("kind", "stored", "dense"),
    [
        ("RUA", LOWER, LOWER),
        ("rsa", LOWER, LOWER + sp.tril(LOWER, -1).T),
        ("PSA", LOWER, (LOWER + sp.tril(LOWER, -1).T) != 0),
        ("CHA", LOWER * (1 + 0j) + 1j * sp.tril(LOWER, -1), None),
        ("CSA", LOWER * (1 + 2j), (LOWER + sp.tril(LOWER, -1).T) * (1 + 2j)),
        ("RZA", sp.tril(LOWER, -1), sp.tril(LOWER, -1) - sp.tril(LOWER, -1).T),
    ],
)
def test_rutherford_boeing(tmp_path, kind, stored, dense, rhs):
    path = tmp_path / "a.rb"
    path.write_text(harwell_of(stored, kind=kind, rhs=rhs))
    wanted = stored + sp.tril(stored, -1).conj().T if dense is None else dense
    np.testing.assert_array_equal(read_matrix(path).toarray(), wanted.toarray())


def test_rutherford_boeing_of_the_other_triangle(tmp_path):
    path, symmetric = tmp_path / "a.rb", LOWER + sp.tril(LOWER, -1).T
    path.write_text(harwell_of(LOWER.T, kind="RSA"))
    np.testing.assert_array_equal(read_matrix(path).toarray(), symmetric.toarray())
    path.write_text(harwell_of(symmetric, kind="RSA"))
    with pytest.raises(FileError, match="holds both triangles of a matrix of type RSA"):
        read_matrix(path)


def test_rutherford_boeing_takes_no_memory_for_what_a_header_only_announces(tmp_path):
    path, count = tmp_path / "a.rb", 10**8
    lines = harwell_of(LOWER, (f"({count}I8)", "(8I10)", "(3D25.17)")).splitlines()
    lines[1], lines[2] = f"{3:14}{1:14}{1:14}{1:14}", f"{'RUA':14}{3:14}{3:14}{count:14}{0:14}"
    lines[3] = f"{'(8I10)':16}{f'({count}I8)':16}{'(3D25.17)':20}"
    path.write_text("\n".join(lines))
    tracemalloc.start()
    with pytest.raises(FileError):
        read_matrix(path)
    assert tracemalloc.get_traced_memory()[1] < 10**6
    tracemalloc.stop()


def test_names_that_no_file_has(tmp_path):
    with pytest.raises(FileError, match="cannot be read"):
        read_matrix("z" * 5000 + ".mtx")
    np.savez(tmp_path / "c.npz", K=np.ones(3), b=np.ones(4))
    (tmp_path / "c.npz:K").write_text("another file")
    np.testing.assert_array_equal(read_vector(tmp_path / "c.npz:K"), np.ones(3))


def test_rutherford_boeing_as_scipy_writes_it(tmp_path):
    A = gallery.convection_diffusion(5, 4, 1)
    scipy.io.hb_write(tmp_path / "a.hb", sp.csc_matrix(A))
    np.testing.assert_allclose(read_matrix(tmp_path / "a.hb").toarray(), A.toarray(), rtol=1e-14)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("one line\n", "ends within the header"),
        (harwell_of(LOWER, kind="RUE"), "line 3: holds a matrix of type 'RUE'; assembled ones"),
        (harwell_of(LOWER, kind="XUA"), "line 3: holds a matrix of type 'XUA'"),
        (harwell_of(LOWER, ("(8F10)", "(8I10)", "(3D25.17)")), "line 4: '.8F10.' is no format of integers"),
        (harwell_of(LOWER).replace(" 1.0", " 1,0"), "line 7: '1,0.*', number 1 of the line, does not have the format"),
        (harwell_of(LOWER).replace(" 1.0", " 100"), "line 7: '100.*', number 1 of the line, does not have the format"),
        (harwell_of(LOWER).replace("D+00", "    ", 1).replace("1.0", "   "), "does not have the format .3D25.17."),
        (harwell_of(LOWER).rsplit("\n", 2)[0], "4 numbers in the format .* take 2 lines; .* and 1 are left"),
        (harwell_of(LOWER).replace("         3         4", "         9         4"), "cannot be read as a Rutherford"),
        (
            harwell_of(LOWER).replace("             3             3", "             3             x"),
            "hold 'x', no integer",
        ),
    ],
)
def test_rutherford_boeing_files_that_are_damaged(tmp_path, text, match):
    path = tmp_path / "a.rb"
    path.write_text(text)
    with pytest.raises(FileError, match=match) as error:
        read_matrix(path)
    one_line(error)


@pytest.mark.parametrize("kind", [".mat", ".npz"])
def test_a_variable_of_several(tmp_path, kind):
    path, b, c = tmp_path / f"x{kind}", np.arange(3.0), np.arange(4.0)
    if kind == ".mat":
        scipy.io.savemat(
            path, {"b": b, "c": c, "K": sp.csc_matrix(np.eye(4)), "P": {"A": sp.csc_matrix(2 * np.eye(3))}}
        )
        assert (read_matrix(f"{path}:K") != sp.eye(4)).nnz == 0
        assert (read_matrix(f"{path}:P.A") != 2 * sp.eye(3)).nnz == 0
    else:
        np.savez(path, b=b, c=c)
    np.testing.assert_array_equal(read_vector(f"{path}:c"), c)
    with pytest.raises(FileError, match=r"name one, as in .*x\.\w+:b\."):
        read_vector(path)
    with pytest.raises(FileError, match=r"no variable of numbers is named d \(it holds b"):
        read_vector(f"{path}:d")
    with pytest.raises(FileError, match="there is no such file"):
        read_vector(tmp_path / f"y{kind}:b")


def test_numbers_between_commas(tmp_path):
    (tmp_path / "b.csv").write_text("# x, y\n1.5,2\n3,-4e-3\n")
    np.testing.assert_array_equal(read_vector(tmp_path / "b.csv"), [[1.5, 2], [3, -4e-3]])
    (tmp_path / "c.csv").write_text("x,y\n1,2\n")
    with pytest.raises(FileError, match=r"cannot be read as a text file of numbers .*'x'"):
        read_vector(tmp_path / "c.csv")
