// The pattern of ILU(k). Twin: kernels/reference/fill.py:pattern_iluk. See runtime/growing.cuh; the value of a column
// is its level.
#include "runtime/finelu.cuh"
#include "runtime/growing.cuh"

using namespace fl;

template <typename I, typename N>
__device__ void iluk_row(I i, const I* __restrict__ indptr, const I* __restrict__ cols, int level,
                         const Pool<int, I>& pool, Row<int, I, N>& row)
{
    bool fresh;
    int slot;
    const int pivot_slot = row.fill(i, indptr[i], indptr[i + 1], cols, [](I) { return 0; });
    if (pivot_slot < 0) return pool.end(TABLE_FULL);
    while (row.waiting > 0) {
        int of_k;
        const I k = row.pop(of_k);
        row.keep(of_k);
        const int own = row.value[of_k];
        if (own >= level) continue;  // it brings nothing of that level
        const u64 word = pool.await(k);
        if (word >= FAILED) return pool.give_up(i, word);
        const long long at = (long long)(word >> BEHIND_BITS);
        const int behind = int(word & (BEHIND));
        for (int first = 1; first <= behind; first += 32) {
            const int e = first + row.lane;
            const int brought = e <= behind ? own + pool.values[at + e] + 1 : level + 1;
            const bool has = brought <= level;
            const I j = has ? pool.columns[at + e] : I(-1);
            if (!row.insert(has, j, i, slot, fresh)) return pool.end(TABLE_FULL);
            if (has) row.value[slot] = fresh ? brought : min(row.value[slot], brought);
        }
        __syncwarp();
    }
    row.in_order(row.behind, row.above);  // those before the diagonal are in order as they came
    row.write(pool, i, row.kept, pivot_slot, row.above);
}

// scratch: null, and the rows of a block lie in its shared memory. Launch: GROWING_WARPS warps a block, any number of
// them.
template <typename I, typename N>
__global__ void __launch_bounds__(GROWING_WARPS * 32)
pattern_iluk(I n, const I* __restrict__ indptr, const I* __restrict__ cols, int level, I* columns, int* values,
             u64* ready, int* before, u64* state, long long room, int* pivots, unsigned char* scratch, int size)
{
    const Pool<int, I> pool{columns, values, ready, before, state, room, pivots};
    Row<int, I, N> row(row_memory<int, I, N>(scratch, size), size);
    for (long long t = pool.next(); t < n && !__any_sync(ALL, pool.over()); t = pool.next())
        if (!pool.has(t)) iluk_row(I(t), indptr, cols, level, pool, row);
}

// places[p] = where entry p of A lies in a pattern that has it. A warp a row.
template <typename I>
__global__ void places_in(I n, const I* __restrict__ indptr, const I* __restrict__ cols, const I* __restrict__ larger,
                          const I* __restrict__ larger_cols, I* places)
{
    const I i = own_row<I, 32>();
    if (i >= n) return;
    for (I p = indptr[i] + threadIdx.x % 32; p < indptr[i + 1]; p += 32)
        places[p] = lower_bound(larger_cols, larger[i], larger[i + 1], cols[p]);
}
