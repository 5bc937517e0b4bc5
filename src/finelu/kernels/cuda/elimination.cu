// ILU(0), MILU(0) and IC(0), all variants of the paper: see elimination.cuh for who owns what, waiting and determinism.
// Twins: kernels/reference/elimination.py: ilu0 and ic0 (equal to a few ulps: a division by a pivot is a product with its
// reciprocal here). base, table: see match_rows, for UPDATE == TABLE only. order: null for natural order (shared, vect,
// adapt), or the rows in level order (levs, table). Launch: gridDim.x >= n * LANES / blockDim.x; dynamic shared memory
// blockDim.x * sizeof(I) for INTERSECT and VECTOR.
#include "runtime/finelu.cuh"
#include "elimination.cuh"

using namespace fl;

template <typename T, typename I, int LANES, int PER_LANE, int UPDATE, bool AHEAD, bool SHORT>
__global__ void __launch_bounds__(256) ilu0(I n, const I* __restrict__ order, const I* __restrict__ indptr,
                     const I* __restrict__ cols, const I* __restrict__ diag, const long long* __restrict__ base,
                     const I* __restrict__ table, const T* __restrict__ a, T* work, T* lu,
                     T* inverse, unsigned* bad, unsigned* counter)
{
    eliminate_rows<T, I, LANES, PER_LANE, UPDATE, AHEAD, SHORT, false>(n, order, indptr, cols, diag, base, table, a, work, lu, inverse, bad, counter);
}

// MILU(0): relax times what falls outside of the pattern of a row goes to its pivot. sums (n): pending before.
// Twin: kernels/reference/elimination.py:milu0, where dropped products are added up one by one.
template <typename T, typename I, int LANES, int PER_LANE, int UPDATE, bool AHEAD, bool SHORT>
__global__ void __launch_bounds__(256) milu0(I n, const I* __restrict__ order, const I* __restrict__ indptr,
                     const I* __restrict__ cols, const I* __restrict__ diag, const long long* __restrict__ base,
                     const I* __restrict__ table, const T* __restrict__ a, T* work, T* lu,
                     T* inverse, unsigned* bad, unsigned* counter, double relax, T* sums)
{
    eliminate_rows<T, I, LANES, PER_LANE, UPDATE, AHEAD, SHORT, false, true>(n, order, indptr, cols, diag, base, table, a, work, lu, inverse, bad, counter, relax, sums);
}

// All bits of `words` words of 4 bytes become 1; p is a multiple of 16.
__device__ inline void make_all_pending(unsigned* p, long long words)
{
    const uint4 ones = {~0u, ~0u, ~0u, ~0u};
    const long long step = (long long)gridDim.x * blockDim.x, first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (long long q = first; q < words / 4; q += step) reinterpret_cast<uint4*>(p)[q] = ones;
    if (first < words % 4) p[words / 4 * 4 + first] = ~0u;
}

// What an elimination needs before its launch, for a matrix that `alike` (inspection.cu) has looked at: unless that has
// left `mark` in unlike, out, the inverses, sums, counter and bad become pending; else nothing but the counter changes,
// which then gives the `rounds` blocks of the elimination numbers beyond the last row, so that they do nothing.
// Launch: any 1-D grid.
__global__ void pend_unless(int mark, const int* unlike, long long out_words, unsigned* out, long long inverse_words,
                            unsigned* inverse, long long sums_words, unsigned* sums, unsigned rounds, unsigned* counter,
                            unsigned* bad)
{
    const bool refused = *unlike == mark;
    if (blockIdx.x == 0 && threadIdx.x == 0) *counter = refused ? rounds : ~0u;
    if (refused) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) *bad = ~0u;
    make_all_pending(out, out_words);
    make_all_pending(inverse, inverse_words);
    make_all_pending(sums, sums_words);
}

// The places that each row's part of the table may need; 0 for rows of more than `most` entries, which have none.
// Launch: gridDim.x * blockDim.x >= n.
template <typename I>
__global__ void table_sizes(I n, I most, const I* __restrict__ indptr, const I* __restrict__ diag, long long* sizes)
{
    const I i = I(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const long long length = indptr[i + 1] - indptr[i];
    sizes[i] = length > most ? 0 : (diag[i] - indptr[i]) * length;
}

// ILU(0)'s table of places where rows meet: see match_rows. Launch: gridDim.x * blockDim.x / 32 >= n.
template <typename I>
__global__ void ilu0_match(I n, const I* __restrict__ indptr, const I* __restrict__ cols, const I* __restrict__ diag,
                          const long long* __restrict__ base, I* table)
{
    match_rows<I, false>(n, indptr, cols, diag, base, table);
}

// A = L L^H on the pattern of A's lower triangle, which is stored by rows with the diagonal last.
template <typename T, typename I, int LANES, int PER_LANE, int UPDATE, bool AHEAD, bool SHORT>
__global__ void __launch_bounds__(256) ic0(I n, const I* __restrict__ order, const I* __restrict__ indptr,
                    const I* __restrict__ cols, const I* __restrict__ diag, const long long* __restrict__ base,
                     const I* __restrict__ table, const T* __restrict__ a, T* work, T* l,
                    T* inverse, unsigned* bad, unsigned* counter)
{
    eliminate_rows<T, I, LANES, PER_LANE, UPDATE, AHEAD, SHORT, true>(n, order, indptr, cols, diag, base, table, a, work, l, inverse, bad, counter);
}

// IC(0)'s table of places where rows meet: see match_rows. Launch: gridDim.x * blockDim.x / 32 >= n.
template <typename I>
__global__ void ic0_match(I n, const I* __restrict__ indptr, const I* __restrict__ cols, const I* __restrict__ diag,
                          const long long* __restrict__ base, I* table)
{
    match_rows<I, true>(n, indptr, cols, diag, base, table);
}
