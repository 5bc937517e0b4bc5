"""Launchers of subdomains.cu and coarse_space.cu: solves with the diagonal blocks of subdomains; the coarse space."""

from __future__ import annotations

import math

import cupy
import numpy as np
from cupy_backends.cuda.libs import cublas, cusolver

from finelu.errors import ParameterError
from finelu.kernels.cuda.indices import inverse, longest, rows_of_entries, shifted
from finelu.kernels.cuda.indices import pointers as pointers_of
from finelu.kernels.cuda.indices import starts as starts_among
from finelu.kernels.cuda.runtime.launch import (
    BLOCK,
    NULL,
    blocks,
    device_limits,
    for_each,
    kernel,
    optional,
    over_elements,
)
from finelu.kernels.cuda.runtime.memory import counter
from finelu.kernels.cuda.vectors import gather
from finelu.kernels.operands import Couplings, narrowed, require_indices

ALIGNED = 8  # the packed arrays of a part begin at multiples of this
THREADS = 128  # of a part
MOST_ROWS = 2**16 - 1  # of a part: rows are numbered by 16 bits
AT_ONCE = 4  # entries that a thread has, at most, of a row of mean length
LONG, ROOM = 512, 2**26  # entries from which a row has a block of its own; places of its parts, for all such rows
SOLVERS = {"d": "d", "D": "z"}  # the letters of cuSOLVER's functions
TILE = {"d": 4, "D": 2}  # a block of 32 times as many rows is inverted in registers
RESIDENT = 2  # blocks of a multiprocessor below which triangles are left in global memory
# Right-hand sides that a block solves for at once. With 4 of 16 `F.solve` took 0.81 to 0.86 of the time with one for
# 7-point grids of 64^3 and 100^3 on an H200, 0.71 for a 27-point grid of 40^3, and 1.0 for a 5-point grid of 300^2.
TOGETHER = 4


def inside(starts, rows, indptr, indices):
    """The block-diagonal matrix of the parts; see kernels/reference/subdomains.py."""
    index = indices.dtype
    position = inverse(rows) if rows.size == indptr.size - 1 else None  # each row has one position
    launch = kernel("subdomains", "inside", index)
    grid = (starts.size - 1,), (THREADS,)
    A = starts, rows, optional(position), indptr, indices
    counts = cupy.empty(rows.size, index)
    launch(*grid, (*A, np.int32(0), counts, NULL, NULL))
    pointers, total = pointers_of(counts)
    require_indices("the diagonal blocks", total, index)
    columns, places = (cupy.empty(total, index) for _ in range(2))
    launch(*grid, (*A, np.int32(1), pointers, columns, places))
    return pointers, columns, places


def _aligned_starts(sizes):
    """(len(sizes) + 1,) int64, on the host: where each begins if all are rounded up to multiples of ALIGNED."""
    return np.concatenate([[0], np.cumsum(-(-sizes.astype(np.int64) // ALIGNED) * ALIGNED)])


class _Packed:
    """A triangle with its rows in level order, part by part."""

    def __init__(self, starts, row_base, rows, most, lanes, plan):
        self.plan, t = plan, plan.triangle
        self.starts, self.row_base, self.rows, self.lanes = starts, row_base, rows, np.int32(lanes)
        parts = starts.size - 1
        # zeros: the gaps between the parts are copied with them, 16 bytes at a time
        self.order, self.slices = cupy.zeros(rows, np.uint16), cupy.zeros((rows, 2), np.int32)
        self.shape = cupy.empty((parts, 4), np.int32)
        index = t.indices.dtype
        kernel("subdomains", "order_by_levels", index)(
            (parts,),
            (THREADS,),
            (
                *(starts, row_base, np.int32(t.reverse), self.lanes, t.begin, t.end, t.indices),
                *(self.order, self.slices, self.shape),
            ),
            shared_mem=4 * (most + 1) + 3 * 2 * most,
        )

    def lay_out(self, sizes, narrow):
        """Make room for the entries. Returns (parts,) : the bytes of the packed arrays of each part.

        sizes : of the parts, on the host, which waits for the order of the rows.  narrow : as SubdomainSolve has it.
        """
        given = self.plan.values.dtype
        self.stored = narrowed(given) if narrow else given
        shape, dtype = self.shape.get().astype(np.int64), self.plan.values.dtype
        self.levels = int(shape[:, 0].max())
        base = _aligned_starts(shape[:, 2])
        self.entry_base, entries = cupy.asarray(base), int(base[-1]) + ALIGNED
        self.cols, self.vals = cupy.zeros(entries, np.uint16), cupy.zeros(entries, self.stored)
        self.inverses = None if self.plan.triangle.diag is None else cupy.zeros(self.rows, dtype)
        arrays = [(shape[:, 2], self.stored.itemsize), (shape[:, 2], 2), (sizes, 2), (shape[:, 3] + 1, 8)]
        if self.inverses is not None:
            arrays.append((sizes, dtype.itemsize))
        return sum(-(-count * size // 16) * 16 for count, size in arrays)

    def load(self, unfit):
        """The plan has new values. unfit (1,) : set to 1 if they are out of the range of the stored dtype."""
        t, dtype = self.plan.triangle, self.plan.values.dtype
        kernel("subdomains", "pack", dtype, self.stored, t.indices.dtype)(
            (self.starts.size - 1,),
            (THREADS,),
            (
                *(self.starts, self.row_base, self.entry_base, self.lanes, t.begin, t.end, t.indices),
                *(self.plan.values, optional(self.plan.inverse), self.order, self.slices, self.shape),
                *(self.cols, self.vals, optional(self.inverses), unfit),
            ),
        )

    def arguments(self):
        return (
            *(self.entry_base, self.order, self.slices, self.cols, self.vals),
            *(optional(self.inverses), self.shape),
        )


class SubdomainSolve:
    """Two triangular solves in each part, a block of threads a part; see kernels/reference/subdomains.py.

    plans : `SyncFree`, of two triangles, whose values are copied into the order of the levels of each part.
    narrow : "", or else the copies of double precision are of single, if all fit its range; entries are rounded
        relative to the diagonal entry of their row.
    Raises ParameterError where the rows of a part do not fit into the shared memory of a block.
    """

    def __init__(self, starts, plans, narrow=""):
        self.starts, self.plans = starts, plans
        sizes = np.diff(starts.get()).astype(np.int64)
        most, shared = int(sizes.max()), device_limits()["shared"] - 1024
        itemsize = plans[0].values.dtype.itemsize
        limit = min(MOST_ROWS, shared // itemsize - 1, (shared - 4) // 10)
        if most > limit:
            raise ParameterError(
                f"the largest part has {most} rows, and the shared memory in which a block of threads puts them in "
                f"order and solves holds {limit}; take more or smaller parts."
            )
        row_base = _aligned_starts(sizes + 1)
        self.row_base, rows = cupy.asarray(row_base), int(row_base[-1]) + ALIGNED
        mean = max(plan.triangle.entries for plan in plans) / max(int(sizes.sum()), 1)
        self.lanes = min(2 ** max(math.ceil(math.log2(max(mean, 1) / AT_ONCE)), 0), 32)
        self._packed = [_Packed(starts, self.row_base, rows, most, self.lanes, plan) for plan in plans]
        self._sizes, self._unknowns = sizes, -(-(most + 1) * itemsize // 16) * 16
        self._lay_out(narrow)
        self.load()

    def _lay_out(self, narrow):
        """Make room for the packed arrays, and decide whether a block copies them into shared memory."""
        staged = self._unknowns + int(sum(packed.lay_out(self._sizes, narrow) for packed in self._packed).max())
        self.staged = staged <= (device_limits()["shared"] - 1024) // RESIDENT
        self.shared = staged if self.staged else self._unknowns

    @property
    def levels(self) -> int:
        """The most level sets of a triangle of a part."""
        return max(packed.levels for packed in self._packed)

    def load(self):
        """The plans have new values. Waits for the device where they are rounded."""
        unfit = cupy.zeros(1, np.int32)
        for packed in self._packed:
            packed.load(unfit)
        if any(packed.stored != packed.plan.values.dtype for packed in self._packed) and unfit.item():
            self._lay_out(narrow="")
            self.load()

    @property
    def stored(self):
        """The dtype of the entries that a solve reads."""
        return self._packed[0].stored

    def solve(self, r, x, rows, before=None, after=None, scattered=True, correction=None, sums=None):
        """See kernels/reference/subdomains.py. Of several columns r and x are Fortran-contiguous; all other arrays have
        theirs side by side."""
        one, two = self._packed
        count = columns_of(r, x)
        at_once, shared = self._at_once(count)
        coarse = np.int32(1), NULL, NULL, NULL, NULL
        if correction is not None:
            products = correction.products
            coarse = np.int32(products[2].shape[1]), *products, correction.q
        besides = np.int32(1), *(NULL,) * 5, np.int32(0), *(NULL,) * 3
        if sums is not None:
            c = sums.couplings
            besides = (
                *(np.int32(sums.of.shape[1] // count), c.starts, c.ends, c.rows, c.values, optional(sums.Z)),
                *(np.int32(sums.conjugate), sums.of, sums.restricted, sums.dots),
            )
        kernel("subdomains", "subdomain_solve", x.dtype, self.stored, self.lanes, self.staged, at_once)(
            (self.starts.size - 1, -(-count // at_once)),
            (THREADS,),
            (
                *(self.starts, rows, self.row_base, optional(before), optional(after), np.int32(scattered)),
                *(*one.arguments(), *two.arguments(), *coarse, *besides, np.int32(count), np.int64(len(r)), r, x),
            ),
            shared_mem=shared,
        )
        if correction is not None and correction.added:
            prolong(correction.parts, correction.Z, correction.q, x)

    def _at_once(self, count):
        """How many of the right-hand sides a block takes, and the shared memory that it needs."""
        shared = self.shared + (TOGETHER - 1) * self._unknowns
        if count < TOGETHER or shared > (device_limits()["shared"] - 1024) // RESIDENT:
            return 1, self.shared
        return TOGETHER, shared


def columns_of(r, *others):
    """The number of columns of r, which is (n,), or (n, k) and Fortran-contiguous, as others are, too."""
    if r.ndim == 1:
        return 1
    if not all(v.flags.f_contiguous for v in (r, *others)):
        raise ValueError("several columns must be Fortran-contiguous")
    return r.shape[1]


def restrict(starts, rows, values, r, conjugate):
    """Sums of conj(v_k) r[rows_k] in each part; see kernels/reference/subdomains.py. r as `columns_of` takes it."""
    parts, m = starts.size - 1, 1 if values is None else values.shape[1]
    g, count = cupy.empty((parts * m, *r.shape[1:]), r.dtype), columns_of(r)
    given = starts, rows, np.int32(m), optional(values), np.int32(conjugate), np.int64(len(r)), r, g
    kernel("coarse_space", "restrict_to_parts", r.dtype)((parts, count), (128,), given)
    return g


def orthonormal(parts, starts, rows, B, least):
    """The columns of B, orthonormal in each part; see kernels/reference/subdomains.py."""

    def norms(v):
        """The norm of v in each part."""
        v = v.astype(cupy.complex128 if v.dtype.kind == "c" else cupy.float64, copy=False)  # squares of 1e-25, too
        return cupy.sqrt(restrict(starts, rows, None, (v * v.conj()).real.copy(), True))

    Z = cupy.zeros(B.shape, B.dtype)
    dependent = cupy.zeros((starts.size - 1, B.shape[1]), bool)
    for c in range(B.shape[1]):
        v = cupy.ascontiguousarray(B[:, c])
        before = norms(v)
        v = (v / cupy.where(before > 0, before, 1)[parts]).astype(B.dtype)
        for _ in range(2):
            if c:
                known = cupy.ascontiguousarray(Z[:, :c])
                along = restrict(starts, rows, known[rows], v, True)
                prolong(parts, known, -along, v)
        left = norms(v)
        dependent[:, c] = ~(left > least) | (before == 0)
        Z[:, c] = cupy.where(dependent[parts, c], 0, v / cupy.where(left > 0, left, 1)[parts])
    return Z, dependent.reshape(-1)


def prolong(parts, Z, q, x, less=None):
    """x_i += Z_i (q - less)_p for i in part p; see kernels/reference/subdomains.py. x as `columns_of` takes it."""
    m, n = np.int32(1 if Z is None else Z.shape[1]), np.int64(len(x))
    given = m, parts, optional(Z), q, optional(less), x
    for_each("coarse_space", "prolong_from_parts", (x.dtype,), n, *given, columns=columns_of(x))


def coarse_products(indptr, indices, data, parts, count, Z):
    """A Z by rows; see kernels/reference/subdomains.py."""
    n, m = indptr.size - 1, 1 if Z is None else Z.shape[1]
    lanes = 32 if data.size > 24 * n else 8
    dtypes = data.dtype, indices.dtype
    A = indptr, indices, data, parts, optional(Z)
    long_rows = cupy.flatnonzero(indptr[1:] - indptr[:-1] > LONG) if longest(indptr) > LONG else indptr[:0]
    at_once = max(1, ROOM // count)  # long rows for which there is room

    def run(*how):
        given = np.int64(n), np.int32(m), *A, np.int32(LONG), *how
        for_each("coarse_space", "coarse_products", (*dtypes, lanes), *given, lanes=lanes)
        for begin in range(0, long_rows.size, at_once):
            rows = long_rows[begin : begin + at_once]
            first = cupy.full((rows.size, count), np.iinfo(np.int32).max, np.int32)
            last = cupy.full((rows.size, count), -1, np.int32)
            kernel("coarse_space", "coarse_products_long", *dtypes)(
                (rows.size,), (256,), (rows, np.int32(m), np.int32(count), *A, first, last, *how)
            )

    counts = cupy.empty(n, np.int32)
    run(np.int32(0), counts, NULL, NULL)
    pointers, entries = pointers_of(counts)
    require_indices("A Z", entries, np.int32)
    part, values = cupy.empty(entries, np.int32), cupy.empty((entries, m), data.dtype)
    run(np.int32(1), pointers, part, values)
    return pointers, part, values


def sum_couplings(couplings, sums, less=None):
    """The sums of each coarse vector over its couplings; see kernels/reference/subdomains.py."""
    m = sums.shape[1]
    out = cupy.empty((couplings.vector_starts.size - 1) * m, sums.dtype)
    given = np.int32(m), couplings.vector_starts, couplings.members, sums, optional(less), out
    for_each("coarse_space", "sum_couplings", (sums.dtype,), np.int32(out.size), *given)
    return out


def product_with_dot(matrix, g, v, dots, total):
    """matrix g, and total[0] = v^H matrix g + the sum of dots; see kernels/reference/subdomains.py."""
    n = matrix.shape[0]
    q, grid = cupy.empty(n, g.dtype), blocks(32 * n, BLOCK)
    kernel("coarse_space", "product_with_dot", g.dtype)(
        (grid,),
        (BLOCK,),
        (np.int32(n), matrix, g, v, np.int32(dots.size), dots, q, cupy.empty(grid, g.dtype), counter(), total),
    )
    return q


def direction_with_coarse(state, rho, rho_old, parts, Z, q, z, p):
    """p = z + Z q + (rho / rho_old) p; see kernels/reference/subdomains.py."""
    m = np.int32(1 if Z is None else Z.shape[1])
    over_elements("coarse_space", "direction_with_coarse", p, m, state, rho, rho_old, parts, optional(Z), q, z, p)


def couple(products, rows, parts, starts, members):
    """The couplings of A Z, and which of its entries theirs are; see kernels/reference/subdomains.py."""
    _, part, values = products
    entries, count = part.size, starts.size - 1
    kind = np.int32 if count**2 < 2**31 else np.int64
    keys, first = cupy.empty(entries, kind), cupy.empty(entries, np.int32)
    sizes, types = (np.int32(entries), np.int32(count)), (keys.dtype,)
    for_each("coarse_space", "coupling_keys", types, *sizes, rows, parts, part, keys)
    order = cupy.argsort(keys, kind="stable")
    for_each("coarse_space", "coupling_begins", types, sizes[0], keys, order, first)
    until, couplings = pointers_of(first)
    of_parts, of_vectors = (cupy.empty(couplings, np.int32) for _ in range(2))
    ends, of_rows, local = cupy.zeros(couplings + 1, np.int32), cupy.empty_like(rows), cupy.empty(entries, np.uint16)
    given, made = (
        (keys, order, until, rows, parts, starts, inverse(members)),
        (ends, of_parts, of_vectors, of_rows, local),
    )
    for_each("coarse_space", "write_couplings", types, *sizes, *given, *made)
    by_vectors = shifted(cupy.argsort(of_vectors, kind="stable"), 0, np.int32)
    found = Couplings(
        starts=starts_among(of_parts, count),
        ends=ends,
        rows=local,
        of_rows=of_rows,
        vectors=None,
        values=gather(values, order),
        vector_starts=starts_among(gather(of_vectors, by_vectors), count),
        members=by_vectors,
    )
    return found, order


def coarse_blocks(products, rows, Z, conjugate, couplings, order):
    """The blocks of Z^H A Z; see kernels/reference/subdomains.py.

    By the kernel of `coarse_matrix`, for which all rows are those of one part, and each coupling is a part of vectors
    of its own.
    """
    pointers, part, values = products
    count, m = couplings.members.size, values.shape[1]
    of_couplings = cupy.empty_like(part)
    of_couplings[order] = rows_of_entries(couplings.ends, part.size)
    one_part = cupy.zeros(pointers.size - 1, np.int32)
    E = _coarse_matrix((m, count * m), of_couplings, one_part, products, rows, Z, conjugate, couplings, order)
    return cupy.ascontiguousarray(E.reshape(m, count, m).transpose(1, 0, 2))


def coarse_matrix(products, rows, parts, count, Z, conjugate, couplings, order):
    """Z^H A Z, dense; see kernels/reference/subdomains.py."""
    shape = (count * products[2].shape[1],) * 2
    return _coarse_matrix(shape, products[1], parts, products, rows, Z, conjugate, couplings, order)


def _coarse_matrix(shape, part, parts, products, rows, Z, conjugate, couplings, order):
    """The dense matrix whose block (p, q) is the sum over the coupling of part p of rows and part q of vectors.

    part (entries,) : the part of vectors of each entry of A Z.  parts (n,) : the part of rows of each row.
    """
    values = products[2]
    m, wide = values.shape[1], np.result_type(values.dtype, np.float64)
    E = cupy.zeros(shape, wide)
    given = np.int64(shape[1]), np.int32(m), couplings.ends, order, rows, part, values, parts, optional(Z)
    segments = np.int32(couplings.members.size)
    for_each("coarse_space", "coarse_matrix", (values.dtype, wide), segments, *given, np.int32(conjugate), E, lanes=32)
    return E


def coarse_weights(E, left_out):
    """The weights of `hermitian_inverse`, None where E is not definite; see kernels/reference/subdomains.py. Waits for
    the device."""
    n, unfit = E.shape[0], cupy.zeros(1, np.int32)
    weights = cupy.empty(n)
    kernel("coarse_space", "coarse_weights", E.dtype)((n,), (BLOCK,), (np.int32(n), E, left_out, weights, unfit))
    return None if unfit.item() else weights


def hermitian_inverse(S, weights, tolerance):
    """W (W S W)^-1 W, and the rows that are left out; see kernels/reference/subdomains.py.

    In place, for S C-contiguous. By blocks, which are inverted in registers; their Schur complements are products of
    dense matrices by cuBLAS, which sees S^T.
    """
    n, dropped = S.shape[0], cupy.zeros(S.shape[0], np.int8)
    scale = kernel("coarse_space", "scale_both", S.dtype)
    grid = (n, blocks(n, BLOCK)), (BLOCK,)
    scale(*grid, (np.int32(n), weights, np.int32(1), S))
    _Inverse(S, tolerance, dropped).run(0, n)
    scale(*grid, (np.int32(n), weights, np.int32(0), S))
    return S, dropped


def magnitudes(A):
    """(2, n), on the host: |A_kk|, and the largest of row and column k; see kernels/reference/subdomains.py."""
    n = A.shape[0]
    sizes = cupy.empty((2, n))
    kernel("coarse_space", "matrix_magnitudes", A.dtype)((n,), (BLOCK,), (np.int32(n), A, sizes))
    return sizes.get()


def lu(A, weights, added):
    """LU factors of W A W + diag(added), as `inverse_by_lu` takes them; see kernels/reference/subdomains.py."""
    n, solver = A.shape[0], cupy.cuda.device.get_cusolver_handle()
    factors, order = _scaled_transposed(A, weights, added, A.dtype), cupy.empty(n, np.int32)
    letter = SOLVERS[A.dtype.char]
    size = getattr(cusolver, f"{letter}getrf_bufferSize")(solver, n, n, factors.data.ptr, n)
    room, zero_pivot = cupy.empty(size, A.dtype), cupy.empty(1, np.int32)
    pointers = factors.data.ptr, n, room.data.ptr, order.data.ptr, zero_pivot.data.ptr
    getattr(cusolver, f"{letter}getrf")(solver, n, n, *pointers)
    sizes = magnitudes(factors)
    return (factors, order), sizes[0], bool(np.isfinite(sizes).all())


def inverse_by_lu(factored, weights, dtype):
    """W A^-1 W of this dtype, for the result of `lu`; see kernels/reference/subdomains.py."""
    factors, order = factored
    n, solver = factors.shape[0], cupy.cuda.device.get_cusolver_handle()
    X, failed = _scaled_transposed(factors, np.zeros(n), np.ones(n), factors.dtype), cupy.empty(1, np.int32)
    pointers = factors.data.ptr, n, order.data.ptr, X.data.ptr, n, failed.data.ptr
    getattr(cusolver, f"{SOLVERS[factors.dtype.char]}getrs")(solver, cublas.CUBLAS_OP_N, n, n, *pointers)
    return _scaled_transposed(X, weights, None, dtype)


def _scaled_transposed(A, weights, added, dtype):
    """(W A W + diag(added))^T; weights, added (n,) : on the host."""
    n, out = A.shape[0], cupy.empty(A.shape, dtype)
    added = None if added is None else cupy.asarray(added, np.float64)
    given = np.int32(n), A, cupy.asarray(weights), optional(added), out
    kernel("coarse_space", "scale_transposed", A.dtype, out.dtype)((blocks(n, 32),) * 2, (32, 8), given)
    return out


class _Inverse:
    """Places of S are (row, column) as cuBLAS counts them, column by column."""

    def __init__(self, S, tolerance, dropped):
        self.S, self.tolerance, self.dropped = S, np.float64(tolerance), dropped
        self.n, self.itemsize, self.pointer = S.shape[0], S.itemsize, S.data.ptr
        self.tile = TILE[S.dtype.char]
        self.block = kernel("coarse_space", "invert_block", S.dtype, self.tile)
        self.handle = cupy.cuda.device.get_cublas_handle()
        kind = {"d": "d", "D": "z"}[S.dtype.char]
        self.gemm, self.geam = getattr(cublas, kind + "gemm"), getattr(cublas, kind + "geam")
        self.numbers = np.array([0, 1, -1], S.dtype)
        self.zero, self.one, self.minus = (self.numbers.ctypes.data + k * S.itemsize for k in range(3))

    def place(self, row, column):
        return self.pointer + (row + column * self.n) * self.itemsize

    def run(self, first, size):
        """Invert the diagonal block of `size` rows from `first` on."""
        base = 32 * self.tile
        if size <= base:
            where = np.uintp(self.place(first, first)), self.tolerance, np.uintp(self.dropped.data.ptr + first)
            self.block((1,), (32, 32), (np.int32(size), np.int64(self.n), *where))
            return
        h = base * max(-(-size // (2 * base)), 1)
        k, middle, ld = size - h, first + h, self.n
        A, B, C, D = (self.place(i, j) for i in (first, middle) for j in (first, middle))
        N, H = cublas.CUBLAS_OP_N, cublas.CUBLAS_OP_C
        self.run(first, h)
        room = cupy.empty(h * k, self.S.dtype)
        T = room.data.ptr
        self.gemm(self.handle, N, N, h, k, h, self.one, A, ld, B, ld, self.zero, T, h)  # T = A^-1 B
        self.gemm(self.handle, H, N, k, k, h, self.minus, B, ld, T, h, self.one, D, ld)  # D -= B^H T
        self.run(middle, k)
        self.gemm(self.handle, N, N, h, k, k, self.minus, T, h, D, ld, self.zero, B, ld)  # B = -T D^-1
        self.gemm(self.handle, N, H, h, h, k, self.minus, B, ld, T, h, self.one, A, ld)  # A^-1 -= B T^H
        self.geam(self.handle, H, H, k, h, self.one, B, ld, self.zero, B, ld, C, ld)  # C = B^H
