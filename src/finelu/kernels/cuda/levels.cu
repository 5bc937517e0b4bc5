// Level sets of a triangular pattern: level(i) = 1 + max level(j) over the entries j of row i, 0 for an empty row.
// Twin: kernels/reference/levels.py:levels. Operand and visiting order as in triangular.cu. Integers only: the result
// does not depend on the order of events. level and counter are set to 0xff (pending) before the launch.
#include "runtime/finelu.cuh"

using namespace fl;

// The sync-free analysis (Dufrechou & Ezzatti 2018b), LANES threads a row, rows in natural order; levels of the own
// block go through shared memory. deepest[0] (set to 0xff) receives the largest level. Progress: see ticket(). Launch:
// gridDim.x >= n * LANES / blockDim.x; dynamic shared memory (blockDim.x / LANES) ints.
template <typename I, int LANES>
__global__ void __launch_bounds__(1024) levels_sync_free(I n, int reverse, const I* __restrict__ begin, const I* __restrict__ end,
                                 const I* __restrict__ cols, int* level, int* deepest, unsigned* counter)
{
    extern __shared__ int own[];
    const int rows = blockDim.x / LANES;
    const int slot = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    if (lane == 0) own[slot] = -1;
    const I first = I(ticket(counter)) * rows;
    if (first >= n) return;
    const I t = first + slot;
    const I i = reverse ? n - 1 - t : t;
    int highest = 0;
    I p = lane, stop = 0, origin = 0;  // entries in visiting order, as in triangular.cu
    if (t < n) {
        stop = end[i] - begin[i];
        origin = reverse ? end[i] - 1 : begin[i];
    }
    const auto column = [&]() { return cols[reverse ? origin - p : origin + p]; };
    bool done = t >= n;
    I j = p < stop ? column() : 0;
    while (__any_sync(ALL, !done)) {
        while (p < stop) {  // goes on while levels are there; leaves at the first that is not
            const I at = (reverse ? n - 1 - j : j) - first;
            const int v = at >= 0 ? peek_shared(own + at) : peek(level + j);
            if (pending(v)) break;
            highest = max(highest, v + 1);
            p += LANES;
            if (p < stop) j = column();
        }
        __syncwarp();
        bool ready = !done && p >= stop;
        if (LANES > 1) {
            const unsigned votes = __ballot_sync(ALL, ready);
            ready = (votes & group_mask<LANES>()) == group_mask<LANES>();
            const int total = lanes_max<LANES>(highest);
            if (ready) highest = total;
        }
        if (ready) {
            if (lane == 0) {
                post_shared(own + slot, highest);
                post(level + i, highest);
            }
            done = true;
        }
    }
    const int top = lanes_max(t < n ? highest : 0);
    if (threadIdx.x % 32 == 0 && top > peek(deepest)) atomicMax(deepest, top);
}
