// From level sets to storage in level order: jobs of a warp each (ILUPACK on GPUs, 2019, section 4.2), rows and entries in
// the order in which the solve reads them. A key is level << 3 | log2(threads a row); keys are sorted stably by the
// caller, so rows keep their order within a level and a size class, and the result is the same in every run.
#include "finelu.cuh"

using namespace fl;

// log2 of the threads for a row of `length` entries: about one entry a thread up to 4, then two; with `per_lane` > 0
// that many entries a thread instead.
__device__ inline int lanes_log2(long long length, int per_lane)
{
    const long long lanes = per_lane > 0 ? (length + per_lane - 1) / per_lane : length <= 4 ? length : (length + 1) / 2;
    int lg = 0;
    while (lg < 5 && (1ll << lg) < lanes) ++lg;
    return lg;
}

// Launch of all: gridDim.x * blockDim.x >= n, a thread a row.
template <typename I>
__global__ void pack_keys(I n, int per_lane, const I* __restrict__ begin, const I* __restrict__ end,
                          const int* __restrict__ level, int* key)
{
    const I i = I(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) key[i] = level[i] << 3 | lanes_log2(end[i] - begin[i], per_lane);
}

// order64 is the stable argsort of key. first[r] = 1 if row r (in level order) begins a job; size[r] is its length;
// count[r], where first[r], is the number of rows of the job.
template <typename I>
__global__ void pack_rows(I n, const long long* __restrict__ order64, const int* __restrict__ key, const I* __restrict__ begin,
                          const I* __restrict__ end, I* order, I* size, int* first, int* count)
{
    const I r = I(blockIdx.x) * blockDim.x + threadIdx.x;
    if (r >= n) return;
    const I i = I(order64[r]);
    order[r] = i;
    size[r] = end[i] - begin[i];
    const int mine = key[i];
    I a = 0, z = r;  // the first row with this key, by bisection
    while (a < z) {
        const I mid = a + (z - a) / 2;
        if (key[order64[mid]] < mine) a = mid + 1; else z = mid;
    }
    const int rows = 32 >> (mine & 7);
    const bool begins = (r - a) % rows == 0;
    first[r] = begins;
    if (begins) {
        int c = 1;
        while (c < rows && r + c < n && key[order64[r + c]] == mine) ++c;
        count[r] = c;
    }
}

// place is the inclusive sum of first
template <typename I>
__global__ void pack_jobs(I n, const int* __restrict__ place, const int* __restrict__ first, const int* __restrict__ count,
                          const I* __restrict__ order, const int* __restrict__ key, int2* jobs)
{
    const I r = I(blockIdx.x) * blockDim.x + threadIdx.x;
    if (r < n && first[r]) jobs[place[r] - 1] = make_int2(int(r), count[r] << 8 | (key[order[r]] & 7));
}

// the entries of row order[r] go to ptr[r]...; source says where their values are
template <typename I>
__global__ void pack_entries(I n, const I* __restrict__ order, const I* __restrict__ begin, const I* __restrict__ ptr,
                             const I* __restrict__ indices, const I* __restrict__ values_at, I* cols, I* source)
{
    const I r = I(blockIdx.x) * blockDim.x + threadIdx.x;
    if (r >= n) return;
    const I from = begin[order[r]];
    for (I p = ptr[r]; p < ptr[r + 1]; ++p) {
        const I q = from + p - ptr[r];
        cols[p] = indices[q];
        source[p] = values_at == nullptr ? q : values_at[q];
    }
}
