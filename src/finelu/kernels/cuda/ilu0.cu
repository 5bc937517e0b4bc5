// ILU(0), all variants of the paper: see elimination.cuh for who owns what, waiting and determinism.
// Twin: kernels/reference.py:ilu0 (equal to a few ulps: here a division by a pivot is a product with its reciprocal).
// order: null for natural order (shared, vect, adapt), or the rows in level order (levs).
// Launch: gridDim.x >= n * LANES / blockDim.x; dynamic shared memory blockDim.x * sizeof(I) unless UPDATE == SEARCH.
#include "finelu.cuh"
#include "elimination.cuh"

using namespace fl;

template <typename T, typename I, int LANES, int PER_LANE, int UPDATE>
__global__ void __launch_bounds__(256) ilu0(I n, const I* __restrict__ order, const I* __restrict__ indptr,
                     const I* __restrict__ cols, const I* __restrict__ diag, const T* __restrict__ a, T* work, T* lu,
                     T* inverse, int* bad, unsigned* counter)
{
    eliminate_rows<T, I, LANES, PER_LANE, UPDATE, false>(n, order, indptr, cols, diag, a, work, lu, inverse, bad, counter);
}
