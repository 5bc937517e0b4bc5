// Several right-hand sides, the columns of vectors (n, count) with contiguous rows: neighbouring threads take
// neighbouring columns, so that a warp reads a row of a vector at once, and an entry of the matrix once for all columns.
//
// A group of threads, a power of two up to 32, takes a row and up to `each` columns, those from blockIdx.y * each on.
// Thread g of the group has column g % width and every share-th entry of the row, width = 1 << lg >= each; the shares
// are added up by shuffles in a fixed order. One column: each = 1, lg = 0. The launchers get each and lg from
// launch.py:across.
#pragma once

namespace fl {

struct Columns {
    int count, each, lg;
};

struct Share {
    size_t column, columns;  // the thread's own, and their number: the distance between rows
    int first, step;         // its entries of the row
    bool alive;              // whether the column exists
};

// For thread `g` of a group of `threads`.
__device__ inline Share share_of(Columns columns, int g, int threads)
{
    const int own = g & ((1 << columns.lg) - 1), column = blockIdx.y * columns.each + own;
    return {size_t(column), size_t(columns.count), g >> columns.lg, threads >> columns.lg, own < columns.each && column < columns.count};
}

// The sum over the shares of a column, in all its threads; all threads of the warp call it.
template <typename T> __device__ inline T sum_of_shares(T v, Columns columns, int threads)
{
    for (int offset = threads / 2; offset >= 1 << columns.lg; offset /= 2) v += shuffle_xor(v, offset);
    return v;
}

}  // namespace fl
