// From level sets to jobs of a warp each (ILUPACK on GPUs, 2019, section 4.2): rows ordered by level and, within a
// level, by size class, and cut into warps. A counting sort: the rows of one level and class are in the order in which
// they were counted, which may differ from run to run; no result depends on it, since rows of a level do not depend on
// each other and a row is summed the same way wherever it is.
#include "runtime/finelu.cuh"
#include "runtime/sums.cuh"

using namespace fl;

constexpr int CLASSES = 6;  // log2 of the threads a row

// log2 of the threads for a row of `length` entries: about one entry a thread up to 4, then two; with `per_lane` > 0
// that many entries a thread instead.
__device__ inline int lanes_log2(long long length, int per_lane)
{
    const long long lanes = per_lane > 0 ? (length + per_lane - 1) / per_lane : length <= 4 ? length : (length + 1) / 2;
    int lg = 0;
    while (lg < CLASSES - 1 && (1ll << lg) < lanes) ++lg;
    return lg;
}

// rank[t] of the row visited as number t among those of its level and class; counts (depth * CLASSES, zero before) how
// many they are.
template <typename I>
__global__ void count_rows(I n, int reverse, int per_lane, const I* __restrict__ begin, const I* __restrict__ end,
                           const int* __restrict__ level, int* rank, int* counts)
{
    const I t = I(own_item());
    const unsigned present = __ballot_sync(ALL, t < n);
    if (t >= n) return;
    const I i = reverse ? n - 1 - t : t;
    const int segment = level[i] * CLASSES + lanes_log2(end[i] - begin[i], per_lane);
    const unsigned alike = __match_any_sync(present, segment);  // counted together, by one of them
    const int lane = threadIdx.x % 32, first = __ffs(alike) - 1;
    const int before = lane == first ? atomicAdd(counts + segment, __popc(alike)) : 0;
    rank[t] = __shfl_sync(alike, before, first) + votes_before(alike);
}

// starts[s]: rows and jobs before segment s (a level and class), exclusive sums by one block; totals[0] = all jobs.
// deepest[0]: the largest level.
// Launch: one block of 1024.
__global__ void __launch_bounds__(1024) segment_starts(const int* __restrict__ deepest, const int* __restrict__ counts, int2* starts, int* totals)
{
    const int segments = (deepest[0] + 1) * CLASSES;
    int2 before = make_int2(0, 0);
    for (int base = 0; base < segments; base += 1024) {
        const int s = base + threadIdx.x;
        int inside[2] = {0, 0}, all[2];
        if (s < segments) {
            const int per_job = 32 >> (s % CLASSES);
            inside[0] = counts[s];
            inside[1] = (counts[s] + per_job - 1) / per_job;
        }
        block_scan<1024>(inside, all);
        if (s < segments) starts[s] = make_int2(before.x + inside[0], before.y + inside[1]);
        before = make_int2(before.x + all[0], before.y + all[1]);
    }
    if (threadIdx.x == 0) totals[0] = before.y;
}

// order (n): the rows, sorted. jobs: see solve_job in triangular.cu; null for the order only.
template <typename I>
__global__ void place_rows(I n, int reverse, int per_lane, const I* __restrict__ begin, const I* __restrict__ end,
                           const int* __restrict__ level, const int* __restrict__ rank, const int* __restrict__ counts,
                           const int2* __restrict__ starts, I* order, int2* jobs)
{
    const I t = I(own_item());
    if (t >= n) return;
    const I i = reverse ? n - 1 - t : t;
    const int lg = lanes_log2(end[i] - begin[i], per_lane), segment = level[i] * CLASSES + lg, r = rank[t];
    const int2 start = starts[segment];
    order[start.x + r] = i;
    const int per_job = 32 >> lg;
    if (jobs != nullptr && r % per_job == 0)
        jobs[start.y + r / per_job] = make_int2(start.x + r, min(per_job, counts[segment] - r) << 8 | lg);
}
