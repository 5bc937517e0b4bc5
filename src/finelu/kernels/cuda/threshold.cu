// ILUT by rows and ICT by columns: factorizations that find their pattern while they go. Twins:
// kernels/reference/threshold.py. See runtime/growing.cuh.
#include "runtime/finelu.cuh"
#include "runtime/growing.cuh"

using namespace fl;

// ILUT by rows (Saad 1994), one row. tau: its threshold. fill: as in `allowed`.
template <typename T, typename I, typename N>
__device__ void ilut_row(I i, const I* __restrict__ indptr, const I* __restrict__ cols, const I* __restrict__ diag,
                         const T* __restrict__ a, double tau, double fill, const Pool<T, I>& pool, Row<T, I, N>& row)
{
    const I end = indptr[i + 1];
    bool fresh;
    int slot;
    const int pivot_slot = row.fill(i, indptr[i], end, cols, [&](I p) { return a[p]; });
    if (pivot_slot < 0) return pool.end(TABLE_FULL);
    while (row.waiting > 0) {
        int of_k;
        const I k = row.pop(of_k);
        const T v = row.value[of_k];
        if (modulus(v) <= tau) continue;
        const u64 word = pool.await(k);
        if (word >= FAILED) return pool.give_up(i, word);
        const long long at = (long long)(word >> BEHIND_BITS);
        const int behind = int(word & (BEHIND));
        const T l = v / pool.values[at];
        if (!is_finite(l)) return pool.bad(i, l);
        __syncwarp();  // every thread has read v
        if (row.lane == 0) row.value[of_k] = l;
        if (!(l == T(0))) row.keep(of_k);
        for (int first = 1; first <= behind; first += 32) {
            const int e = first + row.lane;
            const bool has = e <= behind;
            const I j = has ? pool.columns[at + e] : I(-1);
            const T u = has ? pool.values[at + e] : T(0);
            if (!row.insert(has, j, i, slot, fresh)) return pool.end(TABLE_FULL);
            if (has) row.value[slot] = (fresh ? T(0) : row.value[slot]) - l * u;
        }
        __syncwarp();
    }
    const T pivot = row.value[pivot_slot];
    bool good = is_finite(pivot) && !(pivot == T(0));
    row.keep_behind([&](T v) {
        good = good && is_finite(v);
        return modulus(v) > tau;
    });
    if (!__all_sync(ALL, good)) return pool.bad(i, pivot);
    const int below = row.largest(row.list, row.kept, allowed(fill, diag[i] - indptr[i]));  // in order as they came
    const int above = row.largest(row.behind, row.above, allowed(fill, end - 1 - diag[i]));
    row.in_order(row.behind, above);
    row.write(pool, i, below, pivot_slot, above);
}

// crossing[k] += 1, or -1, where the couplings of a row begin, or no longer cross the border before row k: a sum up to k
// of 0 means that no entry crosses it. crossing (n + 1): zeros. Sums of integers: the same in every run.
template <typename I>
__global__ void mark_couplings(I n, const I* __restrict__ indptr, const I* __restrict__ cols, int* crossing)
{
    const long long i = own_item();
    if (i >= n || indptr[i] == indptr[i + 1]) return;
    const long long first = min((long long)cols[indptr[i]], i), last = max((long long)cols[indptr[i + 1] - 1], i);
    if (first == last) return;
    atomicAdd(crossing + first + 1, 1);
    atomicAdd(crossing + last + 1, -1);
}

// begins[i]: 1 if a diagonal block begins with row i, else 0.
__global__ void block_begins(int n, const int* __restrict__ crossing, int* begins)
{
    const long long i = own_item();
    if (i < n) begins[i] = crossing[i] == 0;
}

// until (n + 1): the blocks that begin before a row. starts: where they do.
__global__ void block_starts(int n, const int* __restrict__ until, int* starts)
{
    const long long i = own_item();
    if (i < n && until[i] < until[i + 1]) starts[until[i]] = int(i);
}

// The place of each row in its block.
__global__ void places_in_blocks(int n, const int* __restrict__ until, const int* __restrict__ starts, int* places)
{
    const long long i = own_item();
    if (i < n) places[i] = int(i) - starts[until[i + 1] - 1];
}

// turns (n): the rows in the order in which warps take them, each after all that it may need; null: in their own order.
// scratch: null, and the rows of a block lie in its shared memory. Launch: GROWING_WARPS warps a block, any number of
// them.
template <typename T, typename I, typename N>
__global__ void __launch_bounds__(GROWING_WARPS * 32)
ilut(I n, const I* __restrict__ indptr, const I* __restrict__ cols, const I* __restrict__ diag, const T* __restrict__ a,
     const double* __restrict__ tau, double fill, const int* __restrict__ turns, I* columns, T* values, u64* ready,
     int* before, u64* state, long long room, T* pivots, unsigned char* scratch, int size)
{
    const Pool<T, I> pool{columns, values, ready, before, state, room, pivots};
    Row<T, I, N> row(row_memory<T, I, N>(scratch, size), size);
    for (long long t = pool.next(); t < n && !__any_sync(ALL, pool.over()); t = pool.next()) {
        const I i = turns == nullptr ? I(t) : I(turns[t]);
        if (!pool.has(i)) ilut_row(i, indptr, cols, diag, a, tau[i], fill, pool, row);
    }
}

// ICT, column i: its entries of A from c_* (the lower triangle by columns, at `places` of a), less the products of
// earlier columns. A column k may have an entry in row i if row i of A does, or a column that has one has another in
// row k.
template <typename T, typename I, typename N>
__device__ void ict_column(I i, const I* __restrict__ indptr, const I* __restrict__ cols, const T* __restrict__ a,
                           const I* __restrict__ c_indptr, const I* __restrict__ c_rows, const I* __restrict__ places,
                           double tau, double fill, const Pool<T, I>& pool, Row<T, I, N>& row)
{
    using R = Real<T>;
    const I lower_end = indptr[i + 1] - 1, begin = c_indptr[i], end = c_indptr[i + 1];  // the diagonal is last, and first
    bool fresh;
    int slot;
    row.clear();
    for (I first = indptr[i]; first < lower_end; first += 32) {
        const bool has = first + row.lane < lower_end;
        if (!row.insert(has, has ? cols[first + row.lane] : I(-1), i, slot, fresh)) return pool.end(TABLE_FULL);
    }
    R square = real(a[places[begin]]);
    for (I first = begin + 1; first < end; first += 32) {
        const bool has = first + row.lane < end;
        if (!row.insert(has, has ? c_rows[first + row.lane] : I(-1), i, slot, fresh)) return pool.end(TABLE_FULL);
        if (has) row.value[slot] = a[places[first + row.lane]];
    }
    __syncwarp();
    while (row.waiting > 0) {
        int of_k;
        const u64 word = pool.await(row.pop(of_k));
        if (word >= FAILED) return pool.give_up(i, word);
        const long long at = (long long)(word >> BEHIND_BITS);
        const int behind = int(word & (BEHIND));
        // where column k has row i
        int own = 0;
        for (int first = 1; first <= behind && own == 0; first += 32) {
            const int e = first + row.lane;
            const I j = e <= behind ? pool.columns[at + e] : I(-1);
            const unsigned here = __ballot_sync(ALL, j == i);
            if (here != 0) own = first + __ffs(here) - 1;
            else if (__any_sync(ALL, j > i)) break;
        }
        if (own == 0) continue;  // it was dropped
        const T l = pool.values[at + own], factor = conj(l);
        square -= real(l * factor);
        for (int first = 1; first <= behind; first += 32) {
            const int e = first + row.lane;
            const bool has = e <= behind && e != own;
            const I j = has ? pool.columns[at + e] : I(-1);
            if (!row.insert(has, j, i, slot, fresh)) return pool.end(TABLE_FULL);
            if (has && e > own) row.value[slot] = (fresh ? T(0) : row.value[slot]) - pool.values[at + e] * factor;
        }
        __syncwarp();
    }
    bool good = is_finite(square) && square > R(0);
    row.keep_behind([&](T v) {
        good = good && is_finite(v);
        return modulus(v) > tau;
    });
    if (!__all_sync(ALL, good)) return pool.bad(i, T(square));
    const int under = row.largest(row.behind, row.above, allowed(fill, end - 1 - begin));
    row.in_order(row.behind, under);
    const R root = sqrt(square);
    for (int e = row.lane; e < under; e += 32) {
        const T v = row.value[row.behind[e]] / T(root);
        good = good && is_finite(v);
        row.value[row.behind[e]] = v;
    }
    if (!__all_sync(ALL, good)) return pool.bad(i, T(square));
    __syncwarp();
    const long long place = pool.take(1 + under);
    if (place < 0) return;
    for (int e = row.lane; e <= under; e += 32) {
        pool.columns[place + e] = e == 0 ? i : row.column(row.behind[e - 1]);
        pool.values[place + e] = e == 0 ? T(root) : row.value[row.behind[e - 1]];
    }
    pool.publish(i, place, 0, under);
}

// indptr, cols, a: the lower triangle by rows, the diagonal last. Launch: as ilut.
template <typename T, typename I, typename N>
__global__ void __launch_bounds__(GROWING_WARPS * 32)
ict(I n, const I* __restrict__ indptr, const I* __restrict__ cols, const T* __restrict__ a,
    const I* __restrict__ c_indptr, const I* __restrict__ c_rows, const I* __restrict__ places,
    const double* __restrict__ tau, double fill, const int* __restrict__ turns, I* columns, T* values, u64* ready,
    int* before, u64* state, long long room, T* pivots, unsigned char* scratch, int size)
{
    const Pool<T, I> pool{columns, values, ready, before, state, room, pivots};
    Row<T, I, N> row(row_memory<T, I, N>(scratch, size), size);
    for (long long t = pool.next(); t < n && !__any_sync(ALL, pool.over()); t = pool.next()) {
        const I i = turns == nullptr ? I(t) : I(turns[t]);
        if (!pool.has(i)) ict_column(i, indptr, cols, a, c_indptr, c_rows, places, tau[i], fill, pool, row);
    }
}
