"""Damaged files through `finelu solve`: each ends with an answer or with one line, and nothing else.

Small valid files of every format are changed at random (bytes flipped, lines doubled, headers exchanged, numbers
edited; of compressed files what is inside, too) and solved with. Allowed are status 0 or 1 with a finite x and nothing
on stderr, and status 2 with one line.
"""

from __future__ import annotations

import functools
import gzip
import io
import json
import tempfile
import time
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.io
import scipy.sparse as sp
from judge import Verdict

NUMBERS = (
    b"0 -1 1 2 3 7 12 13 99 1e400 -1e308 1e-320 1.0D+05 2,5 1.5abc 0x10 8e3 nan inf -inf 1e 1e5e5 + . 1_0 "
    b"2147483647 2147483648 4294967296 9223372036854775807 9223372036854775808 99999999999999999999 1.0 1+2j j 0.1 "
    b"1e300"
).split()
WORDS = (
    b"%%MatrixMarket matrix coordinate array vector real integer complex pattern double general symmetric "
    b"skew-symmetric hermitian % # \xc3\xa9 \x00 NaN"
).split()
INTEGERS = (0, 1, 2, 5, 11, 13, -1, -2, 127, 128, 255, 2**15, 2**31 - 1, -(2**31), 2**32 - 1, 2**62, 2**63 - 1)


def matrix(rng: np.random.Generator, n: int = 12, dtype=float) -> sp.csr_matrix:
    A = sp.random(n, n, 0.2, format="csr", random_state=rng) + sp.diags(np.arange(2.0, n + 2))
    if dtype is complex:
        A = A + 0.5j * sp.random(n, n, 0.1, format="csr", random_state=rng)
    return sp.csr_matrix(A)


def saved(write, *arguments, **options) -> bytes:
    file = io.BytesIO()
    write(file, *arguments, **options)
    return file.getvalue()


def petsc(x, index=">i4", scalar=">f8") -> bytes:
    if x.ndim == 1:
        return np.array([1211214, x.size], index).tobytes() + x.astype(scalar).tobytes()
    head = [np.array([1211216, *x.shape, x.nnz], index), np.diff(x.indptr).astype(index), x.indices.astype(index)]
    return b"".join(part.tobytes() for part in (*head, x.data.astype(scalar)))


@functools.cache
def valid_files() -> list[tuple[str, bytes]]:
    """(name, content); a name that begins with b is a right-hand side."""
    rng = np.random.default_rng(0)
    A, C, b = matrix(rng), matrix(rng, dtype=complex), rng.random(12)
    files = []
    for name, X in (
        ("general", A),
        ("symmetric", A + A.T),
        ("skew", A - A.T),
        ("hermitian", C + C.conj().T),
        ("complex", C),
        ("integer", (10 * A).astype(int)),
        ("array", A.toarray()),
        ("arraysym", (A + A.T).toarray()),
    ):
        files.append((f"{name}.mtx", saved(scipy.io.mmwrite, X)))
        files.append((f"{name}.mtx.gz", gzip.compress(files[-1][1])))
    files.append(("pattern.mtx", saved(scipy.io.mmwrite, A, field="pattern")))
    for kind in ("csr", "csc", "coo", "bsr", "dia"):
        files.append((f"as_{kind}.npz", saved(sp.save_npz, A.asformat(kind), compressed=False)))
    files.append(("packed.npz", saved(sp.save_npz, C)))
    files += [("dense.npz", saved(np.savez, A=A.toarray())), ("dense.npy", saved(np.save, A.toarray()))]
    files.append(("fortran.npy", saved(np.save, np.asfortranarray(C.toarray()))))
    for version in ("4", "5"):
        files.append((f"mat{version}.mat", saved(scipy.io.savemat, {"A": A.tocsc()}, format=version)))
    files.append(("packed.mat", saved(scipy.io.savemat, {"A": C.tocsc()}, do_compression=True)))
    problem = {"Problem": {"A": A.tocsc(), "b": b, "name": "HB/x"}}
    files.append(("problem.mat", saved(scipy.io.savemat, problem)))
    files += [("i4.petsc", petsc(A)), ("i8.dat", petsc(A, ">i8")), ("complex.bin", petsc(C, scalar=">c16"))]
    files += [("b.npy", saved(np.save, b)), ("b.npz", saved(np.savez, b=b)), ("b.txt", saved(np.savetxt, b))]
    files += [("bc.txt", saved(np.savetxt, b + 1j)), ("b.mtx", saved(scipy.io.mmwrite, b[:, None]))]
    files += [("bs.mtx", saved(scipy.io.mmwrite, sp.coo_matrix(b[:, None]))), ("b.petsc", petsc(b))]
    files += [("b.mat", saved(scipy.io.savemat, {"b": b})), ("bp.mat", saved(scipy.io.savemat, problem))]
    return files


def changed(rng: np.random.Generator, content: bytes) -> bytes:
    """`content` after one change."""
    data, size = bytearray(content), max(len(content), 1)
    at, length = int(rng.integers(size)), int(min(rng.geometric(0.05), size))
    lines = content.split(b"\n")
    line, other = (int(k) for k in rng.integers(len(lines), size=2))
    match int(rng.integers(14)):
        case 0:
            data[at : at + 1] = bytes([data[at] ^ 1 << int(rng.integers(8))] if data else [0])
        case 1:
            data[at : at + 1] = rng.bytes(1)
        case 2:
            return content[:at]
        case 3:
            del data[at : at + length]
        case 4:
            data[at:at] = data[at : at + length]
        case 5:
            data[at:at] = rng.bytes(length)
        case 6:
            lines.insert(other, lines[line])
        case 7:
            del lines[line]
        case 8:
            lines[line], lines[other] = lines[other], lines[line]
        case 9 | 10:  # a number
            words = lines[line].split(b" ")
            words[int(rng.integers(len(words)))] = NUMBERS[int(rng.integers(len(NUMBERS)))]
            lines[line] = b" ".join(words)
        case 11:  # a word of the header
            words = lines[0].split(b" ")
            words[int(rng.integers(len(words)))] = WORDS[int(rng.integers(len(WORDS)))]
            lines[0] = b" ".join(words)
        case 12:  # a number of a binary format
            width, order = int(rng.choice([1, 2, 4, 8])), str(rng.choice(["little", "big"]))
            value = INTEGERS[int(rng.integers(len(INTEGERS)))] % 2 ** (8 * width)
            data[at : at + width] = value.to_bytes(width, order)  # type: ignore[arg-type]
        case 13:
            lines[line] = [b"", b" ", b"\t" + lines[line], lines[line] + b"\r", lines[line] + b" %"][rng.integers(5)]
    joined = b"\n".join(lines)
    return bytes(data) if joined == content else joined


def mutated(seed: int) -> tuple[str, bytes]:
    """A file and its content after one to four changes, the same for the same seed."""
    rng = np.random.default_rng([0, seed])
    files = valid_files()
    name, content = files[seed % len(files)]
    inside = rng.random() < 0.7  # of a compressed one
    times = int(min(rng.geometric(0.75), 4))
    if inside and name.endswith(".gz"):
        content = gzip.decompress(content)
        for _ in range(times):
            content = changed(rng, content)
        return name, gzip.compress(content)
    if inside and name.endswith(".npz"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {member: archive.read(member) for member in archive.namelist()}
        for _ in range(times):
            member = list(members)[int(rng.integers(len(members)))]
            members[member] = changed(rng, members[member])
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for member, text in members.items():
                archive.writestr(member, text)
        return name, file.getvalue()
    for _ in range(times):
        content = changed(rng, content)
    return name, content


def judged(seed: int, streams: Any) -> Verdict:
    """Solves with the file of this seed by the command line, in this process, which prints to `streams`."""
    from finelu.cli import main

    verdict, as_json = Verdict(), seed % 2 == 1
    title, content = mutated(seed)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("always")
        file, x = Path(folder, title), Path(folder, "x.npy")
        file.write_bytes(content)
        system = ["gallery:random_dominant:12", "-b", str(file)] if title[0] == "b" else [str(file)]
        start = time.perf_counter()
        try:
            status: Any = main(["solve", *system, "-o", str(x), *["--json"] * as_json])
        except BaseException as error:
            status = repr(error)
        verdict.seconds = time.perf_counter() - start
        verdict.outcome = f"status {status}"
        out, err = streams.taken()
        try:
            wrong = found_wrong(status, out, err, x, as_json)
        except (ValueError, OSError, KeyError) as error:
            wrong = f"{error!r}; stdout {out[:200]!r}, stderr {err[:300]!r}"
    if wrong:
        verdict.faults.append(f"{title}: {wrong}")
    return verdict


def found_wrong(status: Any, out: str, err: str, x: Path, as_json: bool) -> str:
    """What is wrong with the end of the command; "" for nothing."""
    if status in (0, 1):
        if err:
            return f"status {status} and on stderr: {err[:300]!r}"
        if as_json:
            json.loads(out)
        return "" if np.isfinite(np.load(x)).all() else f"status {status} and NaN or Inf in x"
    line = json.loads(out)["error"] + "\n" if as_json else err.removeprefix("finelu: ")
    if status != 2 or line.count("\n") != 1 or (err if as_json else out) or not line.strip():
        return f"status {status}: {out[:200]!r} {err[:300]!r}"
    return ""
