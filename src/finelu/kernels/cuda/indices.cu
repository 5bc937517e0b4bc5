// Lists of integers: their places, lengths and starts. Twins: kernels/reference/indices.py.
#include "runtime/finelu.cuh"
#include "runtime/sums.cuh"

using namespace fl;

constexpr int CHUNK = 4096;  // counts of a block of 256 that is to add them up

// out_i = first + i step.
template <typename I>
__global__ void progression(long long n, long long first, long long step, I* out)
{
    const long long i = own_item();
    if (i < n) out[i] = I(first + i * step);
}

// y = x + by.
template <typename From, typename To>
__global__ void shifted(long long n, long long by, const From* __restrict__ x, To* y)
{
    const long long i = own_item();
    if (i < n) y[i] = To((long long)x[i] + by);
}

// out = end - begin.
template <typename I>
__global__ void lengths(long long n, const I* __restrict__ begin, const I* __restrict__ end, I* out)
{
    const long long i = own_item();
    if (i < n) out[i] = end[i] - begin[i];
}

// sums[c] = the sum of the counts before chunk c of CHUNK; *total = that of all.
// Launch: a block of 256 a chunk; counter: see last_block.
template <typename I>
__global__ void __launch_bounds__(256) sums_of_chunks(long long n, const I* __restrict__ counts, long long* sums,
                                                      unsigned* counter, long long* total)
{
    const long long first = (long long)blockIdx.x * CHUNK;
    long long sum = 0;
#pragma unroll 4
    for (int k = threadIdx.x; k < CHUNK; k += 256)
        if (first + k < n) sum += counts[first + k];
    sum = block_sum(sum);
    if (threadIdx.x == 0) sums[blockIdx.x] = sum;
    if (!last_block(counter)) return;
    long long before = 0;
    for (unsigned base = 0; base < gridDim.x; base += 256) {
        const unsigned c = base + threadIdx.x;
        long long all;
        const long long inside = sum_before<256>(c < gridDim.x ? __ldcg(sums + c) : 0ll, all);
        if (c < gridDim.x) sums[c] = before + inside;
        before += all;
    }
    if (threadIdx.x == 0) *total = before;
}

// pointers[i + 1] = the sum of counts[0], ..., counts[i]; pointers[0] = 0. Launch: a block of 256 a chunk.
template <typename I>
__global__ void __launch_bounds__(256) write_pointers(long long n, const I* __restrict__ counts,
                                                      const long long* __restrict__ sums, I* pointers)
{
    const long long first = (long long)blockIdx.x * CHUNK;
    long long before = sums[blockIdx.x];
    if (first == 0 && threadIdx.x == 0) pointers[0] = 0;
    for (int k = threadIdx.x; k < CHUNK; k += 256) {
        const long long i = first + k;
        const long long mine = i < n ? (long long)counts[i] : 0;
        long long all;
        const long long inside = sum_before<256>(mine, all);
        if (i < n) pointers[i + 1] = I(before + inside + mine);
        before += all;
    }
}

// For each place e of n lists: its list i, and begin[i] + its place in that; begin and places may be null.
template <typename I>
__global__ void entries(long long total, I n, const I* __restrict__ pointers, const I* __restrict__ begin, I* rows, I* places)
{
    const long long e = own_item();
    if (e >= total) return;
    const I i = list_of(pointers, n, e);
    rows[e] = i;
    if (places != nullptr) places[e] = begin[i] + (I(e) - pointers[i]);
}

// out[order[k]] = k.
template <typename I>
__global__ void inverse(long long n, const I* __restrict__ order, int* out)
{
    const long long k = own_item();
    if (k < n) out[order[k]] = int(k);
}

// out[i] = how many of `count` numbers, which ascend, are below i.
template <typename I>
__global__ void starts(long long n, long long count, const I* __restrict__ numbers, I* out)
{
    const long long i = own_item();
    if (i < n) out[i] = I(lower_bound(numbers, 0ll, count, I(i)));
}

// *most, 0 before: the most places of a list. Launch: any 1-D grid, blockDim.x a multiple of 32.
template <typename I>
__global__ void longest(long long n, const I* __restrict__ pointers, long long* most)
{
    long long mine = 0;
    for (long long i = own_item(); i < n; i += (long long)gridDim.x * blockDim.x)
        mine = max(mine, (long long)(pointers[i + 1] - pointers[i]));
    mine = lanes_max(mine);
    if (threadIdx.x % 32 == 0) atomicMax(most, mine);
}
