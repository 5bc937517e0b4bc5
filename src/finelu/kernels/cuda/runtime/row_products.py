"""Common code of the launchers of sweeps.cu and candidates.cu: operands, and the number of threads of a row."""

from __future__ import annotations

from finelu.kernels.cuda.runtime.launch import NULL, device_limits

BLOCK, LONG_BLOCK = 128, 512  # as in row_products.cuh
LEAST_SLOTS = {4: 32, 8: 64, 16: 128, 32: 256}
MOST_SLOTS = {4: 128, 8: 256, 16: 512, 32: 1024}
WORK_BYTES = 2**30  # that dense rows may take


def shape(mean: float, wanted: float) -> tuple[int, int]:
    """(threads a row, slots of its table) for `mean` entries of a row of U and tables of about `wanted` entries."""
    lanes = 4 if mean <= 5 else 8 if mean <= 12 else 16 if mean <= 24 else 32
    slots = 32
    while slots < 1024 and slots < 2 * wanted:
        slots *= 2
    while slots > MOST_SLOTS[lanes]:
        lanes *= 2
    return lanes, max(slots, LEAST_SLOTS[lanes])


def long_grid(n: int, bytes_a_row: int) -> int:
    """Blocks for long rows: two a multiprocessor, as far as their dense rows find room."""
    return max(1, min(2 * device_limits()["processors"], WORK_BYTES // max(n * bytes_a_row, 1)))


def operands(A, F, columns):
    by_columns = (NULL,) * 3 if columns is None else columns
    return (F.indices.dtype.type(F.n), A.indptr, A.indices, A.data, F.indptr, F.indices, F.diag, F.data, *by_columns)
