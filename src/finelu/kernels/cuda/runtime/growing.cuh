// Rows whose pattern is found while they are eliminated (ILUT, ICT, the pattern of ILU(k)): a warp takes a row, in
// natural order, or in any other in which it comes after all that it may need. There is no analysis, since the columns of
// a row are not known beforehand.
// A warp holds its row in a hash table of columns and their values. Columns before the diagonal wait in a list; the
// smallest is taken from it until the list is empty. Then the row is sorted and written to a free place of the pool.
// ready[i], pending before, receives this place and the number of entries behind the diagonal, in one word that is
// released after the row. The result does not depend on the order of events: the columns of a subtracted row are
// distinct, and rows are subtracted one after the other. Progress: a warp has one row at a time, by ticket, and waits
// only for rows of smaller tickets; the warps that hold these are running. A row that cannot be finished is posted as
// FAILED, and so are the rows that need it. Where a table or the pool is full, all warps end; finished rows stay, and
// another launch with more memory goes on with the others.
#pragma once

namespace fl {

using u64 = unsigned long long;

constexpr u64 UNKNOWN = ~0ull, FAILED = ~0ull - 1;
constexpr int BEHIND_BITS = 24;  // of a word: entries behind the diagonal; its place in the other bits
constexpr u64 BEHIND = (1ull << BEHIND_BITS) - 1;
constexpr int GROWING_WARPS = 4;  // of a block
enum Ended { TABLE_FULL = 1, POOL_FULL = 2 };

__device__ inline u64 acquire(const u64* p)
{
    u64 v;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ inline void release(u64* p, u64 v) { asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory"); }

__device__ inline int claim(int* key, int j) { return atomicCAS(key, -1, j); }
__device__ inline long long claim(long long* key, long long j)
{
    return (long long)atomicCAS(reinterpret_cast<u64*>(key), ~0ull, u64(j));
}

// The most entries that a row may keep in a part where A has `entries`.
__device__ inline int allowed(double fill, long long entries)
{
    if (fill >= double(1 << 30)) return 1 << 30;  // Inf, too
    return max(1, int(fmin(fill * double(entries), double(1 << 30))));
}

// The memory that all rows share. room: entries of the pool. state: the entries asked for, the reason why all ended, the
// ticket counter (pending before each launch), the first bad row (pending before the first), and where the entries end
// if the pool was full. pivots (n): of bad rows.
template <typename V, typename I>
struct Pool {
    I* columns;
    V* values;
    u64* ready;
    int* before;  // (n) entries before the diagonal, once a row is written
    u64* state;
    long long room;
    V* pivots;

    __device__ unsigned* ended() const { return reinterpret_cast<unsigned*>(state + 1); }
    __device__ unsigned* tickets() const { return reinterpret_cast<unsigned*>(state + 2); }
    __device__ unsigned* first_bad() const { return reinterpret_cast<unsigned*>(state + 3); }
    __device__ bool over() const { return peek(reinterpret_cast<const int*>(ended())) != 0; }

    // The next ticket for this warp, n or more: none.
    __device__ long long next() const
    {
        unsigned t = 0;
        if (threadIdx.x % 32 == 0) t = atomicAdd(tickets(), 1u) + 1u;
        return __shfl_sync(ALL, t, 0);
    }

    // Whether a row is there already, from an earlier launch.
    __device__ bool has(long long i) const { return peek(ready + i) != UNKNOWN; }

    // The word of row k once it is there; UNKNOWN: all ended.
    __device__ u64 await(I k) const
    {
        for (unsigned tries = 1;; ++tries) {
            const u64 word = acquire(ready + k);
            if (__all_sync(ALL, word != UNKNOWN)) return word;
            if (tries % 16 == 0 && __any_sync(ALL, over())) return UNKNOWN;
            __nanosleep(40);
        }
    }

    __device__ void fail(I i) const
    {
        if (threadIdx.x % 32 == 0) release(ready + i, FAILED);
    }

    __device__ void bad(I i, V pivot) const
    {
        if (threadIdx.x % 32 == 0) {
            pivots[i] = pivot;
            atomicMin(first_bad(), unsigned(i));
        }
        fail(i);
    }

    // A row that needs one that failed fails; where all ended, nothing is said of it.
    __device__ void give_up(I i, u64 word) const
    {
        if (word == FAILED) fail(i);
    }

    __device__ void end(unsigned why) const
    {
        if (threadIdx.x % 32 == 0) atomicOr(ended(), why);
    }

    // A place for this number of entries; -1 if the pool is full, and all end. Those who find no room have counted on:
    // only the first of them began within the pool, where the entries of the others end. Exchanges would succeed one
    // at a time, a round trip to the L2 cache each.
    __device__ long long take(int entries) const
    {
        u64 place = 0;
        if (threadIdx.x % 32 == 0) {
            place = atomicAdd(state, u64(entries));
            if (place + entries > u64(room)) {
                if (place <= u64(room)) state[4] = place;
                place = UNKNOWN;
            }
        }
        place = __shfl_sync(ALL, place, 0);
        if (place == UNKNOWN) end(POOL_FULL);
        return (long long)place;
    }

    // Row i is written, `behind` entries of it after its diagonal.
    __device__ void publish(I i, long long place, int below, int behind) const
    {
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            before[i] = below;
            release(ready + i, u64(place + below) << BEHIND_BITS | u64(behind));
        }
    }
};

// A row of a warp, with room for size * 3 / 4 columns. N: numbers of slots.
template <typename V, typename I, typename N>
struct Row {
    V* value;
    I* key;
    N* list;     // slots: from the begin those before the diagonal that are kept, from the end those that wait
    N* behind;   // slots of columns behind the diagonal
    int size, lane, filled, kept, waiting, above;

    static __device__ constexpr size_t bytes(int size) { return size * (sizeof(V) + sizeof(I) + 2 * sizeof(N)); }

    __device__ Row(unsigned char* memory, int size)
        : value(reinterpret_cast<V*>(memory)), key(reinterpret_cast<I*>(value + size)),
          list(reinterpret_cast<N*>(key + size)), behind(list + size), size(size), lane(threadIdx.x % 32)
    {
    }

    __device__ I column(int slot) const { return *const_cast<const volatile I*>(key + slot); }

    __device__ void clear()
    {
        __syncwarp();
        for (int s = lane; s < size; s += 32) key[s] = I(-1);
        filled = kept = waiting = above = 0;
        __syncwarp();
    }

    __device__ int first_slot(I j) const
    {
        const unsigned h = unsigned(j) * 2654435769u;
        return int((h ^ h >> 15) & unsigned(size - 1));
    }

    // The slot of column j for those threads that have one, no two the same; fresh: it is new. One before i waits from
    // now on, one behind i is in the list of these. False: there is no room. The whole warp calls it.
    __device__ bool insert(bool has, I j, I i, int& slot, bool& fresh)
    {
        fresh = false;
        slot = 0;
        if (filled + 32 > size / 4 * 3) return false;
        if (has) {
            slot = first_slot(j);
            for (;;) {
                const I there = claim(key + slot, j);
                fresh = there == I(-1);
                if (fresh || there == j) break;
                slot = slot + 1 & size - 1;
            }
        }
        const bool waits = fresh && j < i, follows = fresh && j > i;
        const unsigned waits_all = __ballot_sync(ALL, waits), follow_all = __ballot_sync(ALL, follows);
        if (waits) list[size - 1 - waiting - votes_before(waits_all)] = N(slot);
        if (follows) behind[above + votes_before(follow_all)] = N(slot);
        filled += __popc(__ballot_sync(ALL, fresh));
        waiting += __popc(waits_all);
        above += __popc(follow_all);
        __syncwarp();
        return true;
    }

    // The entries begin to end of row i, of(p) the value of entry p, into the empty table: the slot of its diagonal, or
    // -1: there is no room. The whole warp calls it.
    template <typename Of> __device__ int fill(I i, I begin, I end, const I* __restrict__ cols, Of of)
    {
        bool fresh;
        int slot, pivot_slot = 0;
        clear();
        for (I first = begin; first < end; first += 32) {
            const I p = first + lane;
            const bool has = p < end;
            const I j = has ? cols[p] : I(-1);
            if (!insert(has, j, i, slot, fresh)) return -1;
            if (has) value[slot] = of(p);
            const unsigned own = __ballot_sync(ALL, j == i);
            if (own != 0) pivot_slot = __shfl_sync(ALL, slot, __ffs(own) - 1);
        }
        __syncwarp();
        return pivot_slot;
    }

    // Row i to the pool: `below` slots of the list, the diagonal's, and `above` slots behind it.
    __device__ void write(const Pool<V, I>& pool, I i, int below, int pivot_slot, int above) const
    {
        const long long place = pool.take(below + 1 + above);
        if (place < 0) return;
        for (int e = lane; e < below + 1 + above; e += 32) {
            const int s = e < below ? list[e] : e == below ? pivot_slot : behind[e - below - 1];
            pool.columns[place + e] = column(s);
            pool.values[place + e] = value[s];
        }
        pool.publish(i, place, below, above);
    }

    // The smallest waiting column, which leaves the list, and its slot. waiting > 0.
    __device__ I pop(int& slot)
    {
        I least = 0;
        int at = -1;
        for (int e = lane; e < waiting; e += 32) {
            const I j = column(list[size - 1 - e]);
            if (at < 0 || j < least) {
                least = j;
                at = e;
            }
        }
        for (int d = 16; d > 0; d /= 2) {
            const I other = __shfl_xor_sync(ALL, least, d);
            const int its = __shfl_xor_sync(ALL, at, d);
            if (its >= 0 && (at < 0 || other < least)) {
                least = other;
                at = its;
            }
        }
        slot = list[size - 1 - at];
        __syncwarp();
        if (lane == 0) list[size - 1 - at] = list[size - waiting];
        --waiting;
        __syncwarp();
        return least;
    }

    // The slot is kept, after those that are.
    __device__ void keep(int slot)
    {
        if (lane == 0) list[kept] = N(slot);
        ++kept;
    }

    // The columns behind the diagonal for which `holds` stay in their list; the others leave it.
    template <typename Holds> __device__ void keep_behind(Holds holds)
    {
        int found = 0;
        for (int first = 0; first < above; first += 32) {
            const int e = first + lane;
            const N s = e < above ? behind[e] : N(0);
            const bool stays = e < above && holds(value[s]);
            const unsigned all = __ballot_sync(ALL, stays);
            __syncwarp();
            if (stays) behind[found + votes_before(all)] = s;
            found += __popc(all);
            __syncwarp();
        }
        above = found;
    }

    // The columns of a list ascend: a few count the smaller ones, many are sorted.
    __device__ void in_order(N* slots, int count)
    {
        constexpr int OWN = 4;  // of each thread
        if (count > 32 * OWN) return sort(slots, count, [&](int a, int b) { return column(a) < column(b); });
        I own[OWN];
        N slot[OWN];
        int smaller[OWN];
#pragma unroll
        for (int m = 0; m < OWN; ++m) {
            const int e = lane + 32 * m;
            slot[m] = e < count ? slots[e] : N(0);
            own[m] = e < count ? column(slot[m]) : I(-1);
            smaller[m] = 0;
        }
#pragma unroll
        for (int m = 0; m < OWN; ++m) {
            const int there = min(32, count - 32 * m);
            for (int other = 0; other < there; ++other) {
                const I j = __shfl_sync(ALL, own[m], other);
#pragma unroll
                for (int k = 0; k < OWN; ++k) smaller[k] += j < own[k];
            }
        }
        __syncwarp();
#pragma unroll
        for (int m = 0; m < OWN; ++m)
            if (lane + 32 * m < count) slots[smaller[m]] = slot[m];
        __syncwarp();
    }

    // Bitonic, every comparison upwards, so that any count will do.
    template <typename Less> __device__ void sort(N* slots, int count, Less less)
    {
        for (int width = 2; width < 2 * count; width *= 2) {
            for (int stride = width / 2; stride > 0; stride /= 2) {
                for (int t = lane; 2 * t - (t & stride - 1) < count; t += 32) {
                    const int off = t & stride - 1, first = 2 * t - off;
                    const int second = stride == width / 2 ? first - off + width - 1 - off : first + stride;
                    if (second >= count) continue;
                    const N a = slots[first], b = slots[second];
                    if (less(b, a)) {
                        slots[first] = b;
                        slots[second] = a;
                    }
                }
                __syncwarp();
            }
        }
    }

    // The `most` largest of these slots, of equals those with smaller columns; how many. In the order of columns where
    // they were or are too many.
    __device__ int largest(N* slots, int count, int most)
    {
        __syncwarp();
        if (count <= most) return count;
        sort(slots, count, [&](int a, int b) {
            const double x = modulus(value[a]), y = modulus(value[b]);
            return x > y || (x == y && column(a) < column(b));
        });
        in_order(slots, most);
        return most;
    }
};

// The memory of this warp: of the block, or of `scratch` where that is not null.
template <typename V, typename I, typename N> __device__ inline unsigned char* row_memory(unsigned char* scratch, int size)
{
    extern __shared__ __align__(16) unsigned char of_block[];
    const int warp = threadIdx.x / 32;
    if (scratch == nullptr) return of_block + warp * Row<V, I, N>::bytes(size);
    return scratch + (size_t(blockIdx.x) * GROWING_WARPS + warp) * Row<V, I, N>::bytes(size);
}

}  // namespace fl
