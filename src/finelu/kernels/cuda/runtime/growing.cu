// Rows from a pool to where they belong. See growing.cuh.
#include "runtime/finelu.cuh"
#include "runtime/growing.cuh"

using namespace fl;

// The lengths of the rows in the pool.
extern "C" __global__ void pool_lengths(long long n, const u64* ready, const int* before, long long* out)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = before[i] + 1 + (long long)(ready[i] & BEHIND);
}

// Row i to the places from indptr[i] on; diag: the place of its diagonal. values, out_values: null for columns alone.
// A warp a row.
template <typename V, typename I>
__global__ void collect(I n, const u64* ready, const int* before, const I* columns, const V* values,
                        const I* __restrict__ indptr, I* out_columns, V* out_values, I* diag)
{
    const I i = I((size_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32);
    if (i >= n) return;
    const I to = indptr[i], below = I(before[i]), length = indptr[i + 1] - to;
    const long long from = (long long)(ready[i] >> BEHIND_BITS) - below;
    for (I e = threadIdx.x % 32; e < length; e += 32) {
        out_columns[to + e] = columns[from + e];
        if (out_values != nullptr) out_values[to + e] = values[from + e];
    }
    if (threadIdx.x % 32 == 0) diag[i] = to + below;
}
