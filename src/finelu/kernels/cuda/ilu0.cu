// ILU(0), all variants of the paper: see elimination.cuh for who owns what, waiting and determinism.
// Twin: kernels/reference.py:ilu0 (equal to a few ulps: here a division by a pivot is a product with its reciprocal).
// base, table: see match_rows, for UPDATE == TABLE only. order: null for natural order (shared, vect, adapt), or the rows
// in level order (levs, table). Launch: gridDim.x >= n * LANES / blockDim.x; dynamic shared memory blockDim.x * sizeof(I)
// for INTERSECT and VECTOR.
#include "finelu.cuh"
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

// The table of places where rows meet: see match_rows. Launch: gridDim.x * blockDim.x / 32 >= n.
template <typename I>
__global__ void ilu0_match(I n, const I* __restrict__ indptr, const I* __restrict__ cols, const I* __restrict__ diag,
                          const long long* __restrict__ base, I* table)
{
    match_rows<I, false>(n, indptr, cols, diag, base, table);
}
