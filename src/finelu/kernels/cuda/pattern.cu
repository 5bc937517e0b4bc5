// Changing the pattern of the factors (ParILUT on GPUs, 2019, section III): adding candidates, removing the smallest
// entries, their magnitudes, the values of another matrix at their places, and a lower triangle by columns. Twins: add,
// values_at, remove, magnitudes, columns_of in kernels/reference/pattern.py, the same bits in every run. Launchers, and
// the sequence of kernels of each: pattern.py.
//
// A row has a group of `lanes` neighbouring threads, a power of two given at run time; a row many times as long has all
// of its block, after the others. Kernels that need sums over the rows before are run by a fixed number of blocks of
// about equal work, `parts`: one kernel writes the sums of each block, the next adds up those of the blocks before its
// own. No block waits for another.
//
// Bytes that have to be moved (n rows, N entries of F, C candidates, K entries that stay; float64 and int32), and what
// that takes at the 4.2 TB/s of a copy on an H200 for n = 10^6, where add makes 3 x 10^7 entries of 10^7, and remove
// undoes it:
//   add          24 (N + C) + 20 n           0.74 GB   0.18 ms
//   remove       20 N + 12 K + 84 n          0.80 GB   0.19 ms
//   magnitudes   16 N + 16 n                 0.50 GB   0.12 ms
//   columns_of   32 N + 28 n                 0.35 GB   0.08 ms (N = 10^7), and N atomics that return a value
// These are bounds, not measurements.
#include "runtime/finelu.cuh"
#include "runtime/sums.cuh"

using namespace fl;

typedef long long i64;
typedef unsigned long long u64;

constexpr int BLOCK = 256;    // threads, as in pattern.py
constexpr int AHEAD = 2;      // entries a thread loads before it looks at the first
constexpr int LISTED = 256;   // long rows that a block remembers; the others stay with their group
constexpr int SORTED = 2048;  // entries of a column that a block sorts in shared memory
constexpr int PARTS_EACH = 5;  // blocks of a kernel with `parts` that each multiprocessor must have room for
constexpr int ROW_WORK = 4;   // the cost of a row in addition to its entries, in entries
enum { BELOW, ABOVE };
enum { ROW_PASSES = 16, COLUMN_PASSES = 8 };  // of its group, from which on a row, or a column to be sorted, is long
enum { LONGEST, MOST_BELOW, MOST_ABOVE, ALL_BELOW, FACTS };            // words of `facts`, as in pattern.py
enum { NNZ = FACTS, SPREAD, PARTS = SPREAD + 6 };                      // words of the state of `remove`
enum { LESS_BELOW, LESS_ABOVE, TIES_BELOW, TIES_ABOVE, FIRST, PART };  // words of a block in it; counts of a row

// |v|, as in selection.cu; the one that is compared with thresholds is the one that they are chosen from
__device__ inline float magnitude(float v) { return fabsf(v); }
__device__ inline double magnitude(double v) { return fabs(v); }
__device__ inline float magnitude(Complex<float> v) { return float(sqrt(double(v.re) * v.re + double(v.im) * v.im)); }
__device__ inline double magnitude(Complex<double> v) { return hypot(v.re, v.im); }

__device__ inline int atomic_add(int* at, int v) { return atomicAdd(at, v); }
__device__ inline i64 atomic_add(i64* at, i64 v) { return i64(atomicAdd((u64*)at, u64(v))); }
template <typename T> __device__ inline T least_of(T a, T b) { return a < b ? a : b; }
template <typename T> __device__ inline T most_of(T a, T b) { return a > b ? a : b; }

// The group of neighbouring threads of a warp that has a row. All threads of the group call its collective functions.
struct Lanes {
    int size, rank;
    unsigned mask;  // of the group in its warp
    int first;
    __device__ explicit Lanes(int lanes)
    {
        size = lanes;
        rank = threadIdx.x & (lanes - 1);
        first = int(threadIdx.x % 32) - rank;
        mask = lanes == 32 ? ALL : ((1u << lanes) - 1u) << first;
    }
    __device__ unsigned ballot(bool flag) const { return __ballot_sync(mask, flag) & mask; }
    __device__ int count(bool flag) const { return __popc(ballot(flag)); }
    // how many of the threads before this one have the flag; count: how many of all
    __device__ int before(bool flag, int& count) const
    {
        const unsigned votes = ballot(flag);
        count = __popc(votes);
        return votes_before(votes);
    }
    __device__ int from_first(int v) const { return __shfl_sync(mask, v, first); }
};

// All threads of the block, with the same names.
struct Whole {
    int size = BLOCK, rank = threadIdx.x;
    __device__ int count(bool flag) const { return __syncthreads_count(flag); }
    __device__ int before(bool flag, int& count) const
    {
        __shared__ int votes_of[BLOCK / 32];
        const int warp = threadIdx.x / 32;
        const unsigned votes = __ballot_sync(ALL, flag);
        __syncthreads();  // those of the last time have been read
        if (threadIdx.x % 32 == 0) votes_of[warp] = __popc(votes);
        __syncthreads();
        int mine = votes_before(votes);
        count = 0;
        for (int w = 0; w < BLOCK / 32; ++w) {
            if (w < warp) mine += votes_of[w];
            count += votes_of[w];
        }
        return mine;
    }
};

// visit(team, i) for the rows begin <= i < end: a group has every (BLOCK / lanes)-th of them, and the block those of
// more than `passes` entries a lane. length(i): the entries. All threads of the block call it.
template <typename I, typename Length, typename Visit>
__device__ inline void for_rows(I begin, I end, int lanes, int passes, Length length, Visit visit)
{
    __shared__ I longs[LISTED];
    __shared__ int listed;
    __syncthreads();  // the list of the last time has been read
    if (threadIdx.x == 0) listed = 0;
    __syncthreads();
    const Lanes team(lanes);
    const I step = BLOCK / lanes;
    for (i64 row = i64(begin) + threadIdx.x / lanes; row < end; row += step) {
        const I i = I(row);
        if (length(i) > passes * lanes) {
            int slot = 0;
            if (team.rank == 0) slot = atomicAdd(&listed, 1);
            slot = team.from_first(slot);
            if (slot < LISTED) {
                if (team.rank == 0) longs[slot] = i;
                continue;
            }
        }
        visit(team, i);
    }
    __syncthreads();
    const int count = least_of(listed, LISTED);
    for (int k = 0; k < count; ++k) visit(Whole(), longs[k]);
}

// The rows of this block, where each has `per_block`.
template <typename I>
__device__ inline I rows_until(i64 blocks, I n, int per_block) { return I(least_of(blocks * per_block, i64(n))); }

// The first row of part `part` of about equal work: the first i with indptr[i] + ROW_WORK i >= its share. For a warp.
template <typename I>
__device__ inline I first_row(i64 part, i64 parts, I n, const I* indptr)
{
    const i64 work = i64(indptr[n]) + ROW_WORK * i64(n);
    const i64 share = work / parts * part + work % parts * part / parts;
    i64 low = 0, high = n;  // between them is the row
    while (low < high) {
        const i64 step = (high - low + 31) / 32, probe = low + step * (threadIdx.x % 32);
        const bool before = probe < high && i64(indptr[probe]) + ROW_WORK * probe < share;
        const int count = __popc(__ballot_sync(ALL, before));
        high = count == 0 ? low : least_of(high, low + step * count);
        if (count > 0) low += step * (count - 1) + 1;
    }
    return I(low);
}

// begin and end of the rows of this block, of gridDim.x parts. All threads call it.
template <typename I>
__device__ inline void rows_of_part(I n, const I* indptr, I& begin, I& end)
{
    __shared__ I bounds[2];
    const int warp = threadIdx.x / 32;
    if (warp < 2) {
        const I row = first_row(i64(blockIdx.x) + warp, i64(gridDim.x), n, indptr);
        if (threadIdx.x % 32 == 0) bounds[warp] = row;
    }
    __syncthreads();
    begin = bounds[0];
    end = bounds[1];
}

// Sums over the block of each of `COUNT` values, in every thread. All threads call it.
template <int COUNT>
__device__ inline void block_sums(i64 (&values)[COUNT])
{
    __shared__ i64 sums[BLOCK / 32][COUNT];
    __syncthreads();
    for (int c = 0; c < COUNT; ++c) {
        const i64 sum = lanes_sum(values[c]);
        if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32][c] = sum;
    }
    __syncthreads();
    for (int c = 0; c < COUNT; ++c) {
        values[c] = 0;
        for (int w = 0; w < BLOCK / 32; ++w) values[c] += sums[w][c];
    }
}

// facts of a matrix: the most entries of a row, below and above the diagonal, and the sum of those below. Each thread
// gives the largest that it has met; the block asks for the largest so far before it changes it. All threads call it.
__device__ inline void record(i64* facts, i64 longest, i64 most_below, i64 most_above, i64 all_below)
{
    __shared__ u64 met[FACTS];
    if (threadIdx.x < FACTS) met[threadIdx.x] = 0;
    longest = lanes_max(longest);
    most_below = lanes_max(most_below);
    most_above = lanes_max(most_above);
    all_below = lanes_sum(all_below);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        atomicMax(met + LONGEST, u64(longest));
        atomicMax(met + MOST_BELOW, u64(most_below));
        atomicMax(met + MOST_ABOVE, u64(most_above));
        atomicAdd(met + ALL_BELOW, u64(all_below));
    }
    __syncthreads();
    if (threadIdx.x < FACTS && met[threadIdx.x] > 0) {
        u64* const fact = (u64*)facts + threadIdx.x;
        if (threadIdx.x == ALL_BELOW) {
            atomicAdd(fact, met[threadIdx.x]);
        } else if (met[threadIdx.x] > peek(fact)) {
            atomicMax(fact, met[threadIdx.x]);
        }
    }
}

// The facts of a matrix; zero before. Launch: any 1-D grid.
template <typename I>
__global__ void __launch_bounds__(BLOCK) row_facts(I n, const I* __restrict__ indptr, const I* __restrict__ diag, i64* facts)
{
    i64 longest = 0, most_below = 0, most_above = 0, all_below = 0;
    for (i64 i = i64(blockIdx.x) * BLOCK + threadIdx.x; i < n; i += i64(gridDim.x) * BLOCK) {
        const i64 begin = indptr[i], end = indptr[i + 1], pivot = diag[i];
        longest = most_of(longest, end - begin);
        most_below = most_of(most_below, pivot - begin);
        most_above = most_of(most_above, end - pivot - 1);
        all_below += pivot - begin;
    }
    record(facts, longest, most_below, most_above, all_below);
}

// ---- add

// F with the candidates c. The new indptr is the sum of the two: if entry p of F has its place among the candidates of
// its row at k, then p entries of F and k candidates come before it, and it goes to p + k; a candidate likewise. facts:
// four words, zero before. Launch: gridDim.x * per_block >= n.
template <typename T, typename I>
__global__ void __launch_bounds__(BLOCK) add(I n, int lanes, int per_block, int scaled, const I* __restrict__ indptr,
                    const I* __restrict__ indices, const I* __restrict__ diag, const T* __restrict__ f,
                    const I* __restrict__ c_indptr, const I* __restrict__ c_indices, const T* __restrict__ c,
                    I* out_indptr, I* out_indices, I* out_diag, T* out, i64* facts)
{
    I longest = 0, most_below = 0, most_above = 0, all_below = 0;
    const auto length = [&](I i) { return indptr[i + 1] - indptr[i] + (c_indptr[i + 1] - c_indptr[i]); };
    const auto visit = [&](const auto& team, I i) {
        const I begin = indptr[i], end = indptr[i + 1], pivot = diag[i], c_begin = c_indptr[i], c_end = c_indptr[i + 1];
        const I size = end - begin, c_size = c_end - c_begin;
        for (I k = team.rank; k < size; k += team.size) {
            const I p = begin + k, j = indices[p], place = p + lower_bound(c_indices, c_begin, c_end, j);
            out_indices[place] = j;
            out[place] = f[p];
            if (p == pivot) {
                const I below = place - (begin + c_begin), above = size + c_size - 1 - below;
                out_diag[i] = place;
                longest = most_of(longest, size + c_size);
                most_below = most_of(most_below, below);
                most_above = most_of(most_above, above);
                all_below += below;
            }
        }
        for (I k = team.rank; k < c_size; k += team.size) {
            const I q = c_begin + k, j = c_indices[q];
            const I low = j < i ? begin : pivot + 1, high = j < i ? pivot : end;
            const I place = q + lower_bound(indices, low, high, j);
            out_indices[place] = j;
            if (j > i) {
                out[place] = c[q];
            } else {
                const T d = f[diag[j]];
                out[place] = scaled ? c[q] / d : c[q] * (conj(d) / T(magnitude(d)));
            }
        }
        if (team.rank == 0) {
            out_indptr[i] = begin + c_begin;
            if (i == n - 1) out_indptr[n] = end + c_end;
        }
    };
    const I first = rows_until(i64(blockIdx.x), n, per_block), last = rows_until(i64(blockIdx.x) + 1, n, per_block);
    for_rows(first, last, lanes, ROW_PASSES, length, visit);
    record(facts, longest, most_below, most_above, all_below);
}

// ---- values_at

// The values of b at the places of a pattern, 0 where b has no entry. Launch: gridDim.x * per_block >= n.
template <typename T, typename I>
__global__ void __launch_bounds__(BLOCK) values_at(I n, int lanes, int per_block, const I* __restrict__ b_indptr,
                    const I* __restrict__ b_indices, const T* __restrict__ b, const I* __restrict__ indptr,
                    const I* __restrict__ indices, T* out)
{
    const auto length = [&](I i) { return indptr[i + 1] - indptr[i]; };
    const auto visit = [&](const auto& team, I i) {
        const I begin = indptr[i], size = indptr[i + 1] - begin, b_begin = b_indptr[i], b_end = b_indptr[i + 1];
        for (I k = team.rank; k < size; k += team.size) {
            const I j = indices[begin + k], q = lower_bound(b_indices, b_begin, b_end, j);
            out[begin + k] = q < b_end && b_indices[q] == j ? b[q] : T(0);
        }
    };
    const I first = rows_until(i64(blockIdx.x), n, per_block), last = rows_until(i64(blockIdx.x) + 1, n, per_block);
    for_rows(first, last, lanes, ROW_PASSES, length, visit);
}

// ---- remove

// `want` of the `of` entries equal to the threshold are dropped: those t with (t want) mod of + want >= of. Division by
// multiplication with inverse = (2^64 - 1) / of, rounded down: the quotient is at most one too small. Fewer than 2^32
// entries, so that t want fits.
struct Spread {
    u64 want, of, inverse;
    __device__ Spread(i64 wanted, i64 ties)
    {
        want = u64(wanted < 0 ? 0 : wanted > ties ? ties : wanted);
        of = u64(ties);
        inverse = ties > 0 ? ~0ull / of : 0;
    }
    __device__ explicit Spread(const i64* words) : want(words[0]), of(words[1]), inverse(words[2]) {}
    __device__ void write(i64* words) const
    {
        words[0] = i64(want);
        words[1] = i64(of);
        words[2] = i64(inverse);
    }
    __device__ bool some() const { return 0 < want && want < of; }
    __device__ void divide(u64 t, u64& quotient, u64& rest) const
    {
        quotient = __umul64hi(t * want, inverse);
        rest = t * want - quotient * of;
        if (rest >= of) {
            rest -= of;
            ++quotient;
        }
    }
    // how many of the first t are dropped
    __device__ i64 among(i64 t) const
    {
        if (!some()) return want == 0 ? 0 : t;
        u64 quotient, rest;
        divide(u64(t), quotient, rest);
        return i64(quotient);
    }
    __device__ bool drops(i64 t) const
    {
        if (!some()) return want > 0;
        u64 quotient, rest;
        divide(u64(t), quotient, rest);
        return rest + want >= of;
    }
};

// counts (4, n): entries of each row smaller than and equal to the thresholds, below and above the diagonal; in state
// their sums and the first row of each part. A NaN is neither. Launch: `parts` blocks, as in remove_rows.
template <typename T, typename I>
__global__ void __launch_bounds__(BLOCK, PARTS_EACH) remove_count(I n, int lanes, const I* __restrict__ indptr,
                    const I* __restrict__ diag, const T* __restrict__ f,
                    const Real<T>* __restrict__ least, I* counts, i64* state)
{
    using R = Real<T>;
    const R least_below = least[BELOW], least_above = least[ABOVE];
    I sums[4] = {0, 0, 0, 0};
    const auto length = [&](I i) { return indptr[i + 1] - indptr[i]; };
    const auto visit = [&](const auto& team, I i) {
        const I begin = indptr[i], size = indptr[i + 1] - begin, pivot = diag[i] - begin;
        I counted[4] = {0, 0, 0, 0};
        for (I base = 0; base < size; base += AHEAD * team.size) {
            T values[AHEAD];
#pragma unroll
            for (int a = 0; a < AHEAD; ++a) {
                const I k = base + a * team.size + team.rank;
                values[a] = k < size ? f[begin + k] : T(0);
            }
#pragma unroll
            for (int a = 0; a < AHEAD; ++a) {
                const I k = base + a * team.size + team.rank;
                const R here = magnitude(values[a]);
                const bool below = k < pivot, above = k > pivot && k < size;
                const bool tie = (below && here == least_below) || (above && here == least_above);
                counted[LESS_BELOW] += team.count(below && here < least_below);
                counted[LESS_ABOVE] += team.count(above && here < least_above);
                if (team.count(tie) > 0) {
                    counted[TIES_BELOW] += team.count(tie && below);
                    counted[TIES_ABOVE] += team.count(tie && above);
                }
            }
        }
        if (team.rank == 0) {
            for (int c = 0; c < 4; ++c) {
                counts[i64(c) * n + i] = counted[c];
                sums[c] += counted[c];
            }
        }
    };
    I first, last;
    rows_of_part(n, indptr, first, last);
    for_rows(first, last, lanes, ROW_PASSES, length, visit);
    i64 all[4] = {sums[0], sums[1], sums[2], sums[3]};
    block_sums(all);
    if (threadIdx.x == 0) {
        i64* const part = state + PARTS + i64(blockIdx.x) * PART;
        for (int c = 0; c < 4; ++c) part[c] = all[c];
        part[FIRST] = first;
        if (blockIdx.x == 0) {
            for (int c = 0; c < FACTS; ++c) state[c] = 0;
        }
    }
}

// The new indptr, diagonal and facts, and how ties are dropped, from `counts` and the state; `counts` of ties become
// those of the rows before. drop: as in the twin. Launch: `parts` blocks.
template <typename I>
__global__ void __launch_bounds__(BLOCK, PARTS_EACH) remove_rows(I n, i64 drop_below, i64 drop_above,
                    const I* __restrict__ indptr, const I* __restrict__ diag, I* counts, I* out_indptr,
                    I* out_diag, i64* state)
{
    i64 sums[8] = {0, 0, 0, 0, 0, 0, 0, 0};  // of all parts, and of those before this one
    for (int part = threadIdx.x; part < gridDim.x; part += BLOCK) {
        for (int c = 0; c < 4; ++c) {
            const i64 v = state[PARTS + i64(part) * PART + c];
            sums[c] += v;
            if (part < blockIdx.x) sums[4 + c] += v;
        }
    }
    block_sums(sums);
    const Spread spread_below(drop_below - sums[LESS_BELOW], sums[TIES_BELOW]);
    const Spread spread_above(drop_above - sums[LESS_ABOVE], sums[TIES_ABOVE]);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        const i64 dropped = sums[LESS_BELOW] + sums[LESS_ABOVE] + i64(spread_below.want + spread_above.want);
        spread_below.write(state + SPREAD);
        spread_above.write(state + SPREAD + 3);
        state[NNZ] = i64(indptr[n]) - dropped;
        out_indptr[n] = I(i64(indptr[n]) - dropped);
    }
    const i64 first = state[PARTS + i64(blockIdx.x) * PART + FIRST];
    const i64 last = blockIdx.x + 1 == gridDim.x ? i64(n) : state[PARTS + (i64(blockIdx.x) + 1) * PART + FIRST];
    i64 smaller = sums[4 + LESS_BELOW] + sums[4 + LESS_ABOVE];
    i64 ties_below = sums[4 + TIES_BELOW], ties_above = sums[4 + TIES_ABOVE];
    i64 longest = 0, most_below = 0, most_above = 0, all_below = 0;
    for (i64 tile = first; tile < last; tile += BLOCK) {
        const i64 i = tile + threadIdx.x;
        i64 counted[4] = {0, 0, 0, 0};
        if (i < last) {
            for (int c = 0; c < 4; ++c) counted[c] = counts[i64(c) * n + i];
        }
        i64 before[3] = {counted[LESS_BELOW] + counted[LESS_ABOVE], counted[TIES_BELOW], counted[TIES_ABOVE]}, all[3];
        block_scan<BLOCK>(before, all);
        if (i < last) {
            const i64 t_below = ties_below + before[1], t_above = ties_above + before[2];
            const i64 was_below = spread_below.among(t_below), was_above = spread_above.among(t_above);
            const i64 dropped = smaller + before[0] + was_below + was_above;
            const i64 here_below = counted[LESS_BELOW] + spread_below.among(t_below + counted[TIES_BELOW]) - was_below;
            const i64 here_above = counted[LESS_ABOVE] + spread_above.among(t_above + counted[TIES_ABOVE]) - was_above;
            const i64 begin = indptr[i], pivot = diag[i], end = indptr[i + 1];
            const i64 below = pivot - begin - here_below, above = end - pivot - 1 - here_above;
            out_indptr[i] = I(begin - dropped);
            out_diag[i] = I(pivot - dropped - here_below);
            counts[i64(TIES_BELOW) * n + i] = I(t_below);
            counts[i64(TIES_ABOVE) * n + i] = I(t_above);
            longest = most_of(longest, below + above + 1);
            most_below = most_of(most_below, below);
            most_above = most_of(most_above, above);
            all_below += below;
        }
        smaller += all[0];
        ties_below += all[1];
        ties_above += all[2];
    }
    record(state, longest, most_below, most_above, all_below);
}

// The entries that stay, to their places, with the values of `stays`. Launch: gridDim.x * per_block >= n.
template <typename T, typename I>
__global__ void __launch_bounds__(BLOCK) remove_write(I n, int lanes, int per_block, const I* __restrict__ indptr,
                    const I* __restrict__ indices, const I* __restrict__ diag, const T* __restrict__ f,
                    const T* __restrict__ stays, const Real<T>* __restrict__ least, const I* __restrict__ counts,
                    const I* __restrict__ out_indptr, const i64* __restrict__ state, I* out_indices, T* out)
{
    using R = Real<T>;
    const R least_below = least[BELOW], least_above = least[ABOVE];
    const Spread spread_below(state + SPREAD), spread_above(state + SPREAD + 3);
    const bool rank_below = spread_below.some(), rank_above = spread_above.some();  // else all ties share one fate
    const auto length = [&](I i) { return indptr[i + 1] - indptr[i]; };
    const auto visit = [&](const auto& team, I i) {
        const I begin = indptr[i], size = indptr[i + 1] - begin, pivot = diag[i] - begin;
        I m = out_indptr[i];
        i64 ties_below = rank_below ? counts[i64(TIES_BELOW) * n + i] : 0;
        i64 ties_above = rank_above ? counts[i64(TIES_ABOVE) * n + i] : 0;
        for (I base = 0; base < size; base += AHEAD * team.size) {
            T values[AHEAD];
            I columns[AHEAD];
#pragma unroll
            for (int a = 0; a < AHEAD; ++a) {
                const I k = base + a * team.size + team.rank;
                values[a] = k < size ? f[begin + k] : T(0);
                columns[a] = k < size ? indices[begin + k] : 0;
            }
#pragma unroll
            for (int a = 0; a < AHEAD; ++a) {
                const I k = base + a * team.size + team.rank;
                const R here = magnitude(values[a]);
                const bool below = k < pivot, above = k > pivot && k < size;
                const bool tie_below = below && here == least_below, tie_above = above && here == least_above;
                int met;
                i64 t = 0;
                if (rank_below) {
                    const int before = team.before(tie_below, met);
                    if (tie_below) t = ties_below + before;
                    ties_below += met;
                }
                if (rank_above) {
                    const int before = team.before(tie_above, met);
                    if (tie_above) t = ties_above + before;
                    ties_above += met;
                }
                bool keep = k < size && !(below && here < least_below) && !(above && here < least_above);
                if (tie_below) keep = !spread_below.drops(t);
                if (tie_above) keep = !spread_above.drops(t);
                const int before = team.before(keep, met);
                if (keep) {
                    out_indices[m + before] = columns[a];
                    out[m + before] = stays[begin + k];
                }
                m += met;
            }
        }
    };
    const I first = rows_until(i64(blockIdx.x), n, per_block), last = rows_until(i64(blockIdx.x) + 1, n, per_block);
    for_rows(first, last, lanes, ROW_PASSES, length, visit);
}

// ---- magnitudes

// Entries below the diagonal in each part, and its first row: parts (2, gridDim.x).
template <typename I>
__global__ void __launch_bounds__(BLOCK, PARTS_EACH) sum_below(I n, const I* __restrict__ indptr,
                    const I* __restrict__ diag, i64* parts)
{
    I first, last;
    rows_of_part(n, indptr, first, last);
    i64 sum[1] = {0};
    for (i64 i = i64(first) + threadIdx.x; i < last; i += BLOCK) sum[0] += diag[i] - indptr[i];
    block_sums(sum);
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = sum[0];
        parts[i64(gridDim.x) + blockIdx.x] = first;
    }
}

// |values| of F below and above the diagonal. parts: from sum_below with the same grid; or null, and each block adds up
// all rows before its own, which is faster than another kernel where they are few.
template <typename T, typename I>
__global__ void __launch_bounds__(BLOCK, PARTS_EACH) magnitudes(I n, int lanes, const I* __restrict__ indptr,
                    const I* __restrict__ diag, const T* __restrict__ f, const i64* __restrict__ parts,
                    Real<T>* lower, Real<T>* upper)
{
    __shared__ i64 starts[BLOCK];  // of the rows of a tile in `lower`
    I first, last;
    i64 sum[1] = {0};
    if (parts == nullptr) {
        rows_of_part(n, indptr, first, last);
        for (i64 i = threadIdx.x; i < first; i += BLOCK) sum[0] += diag[i] - indptr[i];
    } else {
        const i64* const firsts = parts + gridDim.x;
        first = I(firsts[blockIdx.x]);
        last = blockIdx.x + 1 == gridDim.x ? n : I(firsts[blockIdx.x + 1]);
        for (int part = threadIdx.x; part < blockIdx.x; part += BLOCK) sum[0] += parts[part];
    }
    block_sums(sum);
    const auto length = [&](I i) { return indptr[i + 1] - indptr[i]; };
    for (i64 tile = first; tile < last; tile += BLOCK) {
        const i64 mine = tile + threadIdx.x;
        i64 all;
        starts[threadIdx.x] = sum[0] + sum_before<BLOCK>(mine < last ? i64(diag[mine] - indptr[mine]) : 0, all);
        sum[0] += all;
        // for_rows begins with __syncthreads
        for_rows(I(tile), I(least_of(tile + BLOCK, i64(last))), lanes, ROW_PASSES, length, [&](const auto& team, I i) {
            const I begin = indptr[i], size = indptr[i + 1] - begin, pivot = diag[i] - begin;
            const i64 start = starts[i - tile];
            auto* const low = lower + start;
            auto* const high = upper + (i64(begin) - i - start);
            for (I k = team.rank; k < size; k += team.size) {
                if (k == pivot) continue;
                const auto here = magnitude(f[begin + k]);
                if (k < pivot) {
                    low[k] = here;
                } else {
                    high[k - pivot - 1] = here;
                }
            }
        });
    }
}

// ---- columns_of

// counts[j] (zero before): entries of column j; ranks[p]: how many of its column were counted before p, in any order.
// Launch: any 1-D grid; AHEAD entries a thread at once.
template <typename I>
__global__ void __launch_bounds__(BLOCK) count_columns(i64 nnz, const I* __restrict__ indices, I* counts, I* ranks)
{
    const i64 threads = i64(gridDim.x) * BLOCK;
    for (i64 p = i64(blockIdx.x) * BLOCK + threadIdx.x; p < nnz; p += AHEAD * threads) {
        I columns[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            if (p + a * threads < nnz) columns[a] = indices[p + a * threads];
        }
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) {
            if (p + a * threads < nnz) ranks[p + a * threads] = atomic_add(counts + columns[a], I(1));
        }
    }
}

template <typename I> __device__ constexpr I most_index() { return I(~0ull >> (65 - 8 * sizeof(I))); }

template <typename I> struct alignas(2 * sizeof(I)) Entry {
    I row, place;
};

// found (nnz,): the entries of each column, in any order. Launch: gridDim.x * per_block >= n.
template <typename I>
__global__ void __launch_bounds__(BLOCK) scatter_columns(I n, int lanes, int per_block, const I* __restrict__ indptr,
                    const I* __restrict__ indices, const I* __restrict__ c_indptr, const I* __restrict__ ranks,
                    Entry<I>* found)
{
    const I first = rows_until(i64(blockIdx.x), n, per_block), last = rows_until(i64(blockIdx.x) + 1, n, per_block);
    const auto length = [&](I i) { return indptr[i + 1] - indptr[i]; };
    for_rows(first, last, lanes, ROW_PASSES, length, [&](const auto& team, I i) {
        const I begin = indptr[i], size = indptr[i + 1] - begin;
        for (I k = team.rank; k < size; k += team.size) {
            const I p = begin + k;
            found[c_indptr[indices[p]] + ranks[p]] = Entry<I>{i, p};
        }
    });
}

// Two ways to hold entries, so that runs can be merged from one to the other.
template <typename I> struct Together {
    Entry<I>* entries;
    __device__ I row(i64 q) const { return entries[q].row; }
    __device__ Entry<I> get(i64 q) const { return entries[q]; }
    __device__ void put(i64 q, Entry<I> e) const { entries[q] = e; }
};
template <typename I> struct Apart {
    I *rows, *places;
    __device__ I row(i64 q) const { return rows[q]; }
    __device__ Entry<I> get(i64 q) const { return Entry<I>{rows[q], places[q]}; }
    __device__ void put(i64 q, Entry<I> e) const
    {
        rows[q] = e.row;
        places[q] = e.place;
    }
};

// Sorted runs of `width` become runs of twice that: an entry goes to its own place plus that among the other run of its
// pair. A row occurs once in a column, so none are equal. All threads of the block call it.
template <typename I, typename From, typename To>
__device__ inline void merge_runs(const From& from, const To& to, i64 begin, i64 size, i64 width)
{
    for (i64 k = threadIdx.x; k < size; k += BLOCK) {
        const Entry<I> e = from.get(begin + k);
        const i64 run = k / width, other = run % 2 == 0 ? (run + 1) * width : (run - 1) * width;
        i64 low = least_of(other, size), high = least_of(other + width, size);
        while (low < high) {
            const i64 middle = low + (high - low) / 2;
            if (from.row(begin + middle) < e.row) low = middle + 1; else high = middle;
        }
        // its place in its own run, and the place found, from the beginning of the pair: both of the runs count once
        const i64 place = run % 2 == 0 ? k + (low - least_of(other, size)) : low + (k - run * width);
        to.put(begin + place, e);
    }
    __syncthreads();
}

// Sorts columns from `found`, which is overwritten, to `result`: an entry of a short column counts the smaller ones; a
// long column is sorted by the block, SORTED entries at a time in shared memory, and these runs are merged.
template <typename I>
struct ColumnSort {
    const I* indptr;
    Together<I> found;
    Apart<I> result;
    Entry<I>* run;  // (SORTED,) in shared memory

    __device__ void operator()(const Lanes& team, I j) const
    {
        const i64 begin = indptr[j];
        const I size = indptr[j + 1] - indptr[j];
        for (I k = team.rank; k < size; k += team.size) {
            const Entry<I> e = found.get(begin + k);
            I smaller = 0;
#pragma unroll 4
            for (I m = 0; m < size; ++m) smaller += found.row(begin + m) < e.row;
            result.put(begin + smaller, e);
        }
    }

    __device__ void operator()(const Whole&, I j) const
    {
        const i64 begin = indptr[j], size = i64(indptr[j + 1]) - begin;
        if (size <= SORTED) return sort_run(begin, int(size), result);
        for (i64 k = 0; k < size; k += SORTED) sort_run(begin + k, int(least_of(size - k, i64(SORTED))), found);
        __syncthreads();
        bool done = false;  // whether the runs are in `result`
        for (i64 width = SORTED; width < size; width *= 2) {
            if (done) {
                merge_runs<I>(result, found, begin, size, width);
            } else {
                merge_runs<I>(found, result, begin, size, width);
            }
            done = !done;
        }
        for (i64 k = done ? size : threadIdx.x; k < size; k += BLOCK) result.put(begin + k, found.get(begin + k));
    }

    // a bitonic sort, of the next power of two
    template <typename To> __device__ void sort_run(i64 begin, int size, const To& to) const
    {
        int width = 1;
        while (width < size) width *= 2;
        for (int k = threadIdx.x; k < width; k += BLOCK) {  // places that no other thread has read in the last run
            run[k] = k < size ? found.get(begin + k) : Entry<I>{most_index<I>(), 0};  // behind all others
        }
        for (int sorted = 2; sorted <= width; sorted *= 2) {
            for (int stride = sorted / 2; stride > 0; stride /= 2) {
                __syncthreads();
                for (int pair = threadIdx.x; pair < width / 2; pair += BLOCK) {
                    const int a = pair / stride * 2 * stride + pair % stride, b = a + stride;
                    const Entry<I> low = run[a], high = run[b];
                    if ((low.row > high.row) == ((a & sorted) == 0)) {
                        run[a] = high;
                        run[b] = low;
                    }
                }
            }
        }
        __syncthreads();
        for (int k = threadIdx.x; k < size; k += BLOCK) to.put(begin + k, run[k]);
    }
};

// Each column in ascending order of rows: found -> rows and places. Launch: gridDim.x * per_block >= n.
template <typename I>
__global__ void __launch_bounds__(BLOCK) sort_columns(I n, int lanes, int per_block, const I* __restrict__ indptr,
                    Entry<I>* found, I* rows, I* places)
{
    __shared__ Entry<I> run[SORTED];
    const I first = rows_until(i64(blockIdx.x), n, per_block), last = rows_until(i64(blockIdx.x) + 1, n, per_block);
    const auto length = [&](I j) { return indptr[j + 1] - indptr[j]; };
    for_rows(first, last, lanes, COLUMN_PASSES, length, ColumnSort<I>{indptr, {found}, {rows, places}, run});
}
