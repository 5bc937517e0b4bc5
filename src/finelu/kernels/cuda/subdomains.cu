// Solves with the diagonal blocks of subdomains: a part is a block of threads, its unknowns lie in shared memory, and a
// level of one of its triangles costs a barrier of that block. Twins: kernels/reference/subdomains.py.
//
// Part p has the local positions starts[p] <= t < starts[p + 1]. What is packed for it begins at places that are multiples
// of 8, so that all of it can be copied 16 bytes at a time: row_base[p] in the arrays by rows, which have room for one row
// more, and entry_base[p] in those by entries. Packed rows are ordered by level: order[k] is the local row (from 0 on),
// its entries lie between ends[k - 1] (0 for the first) and ends[k], counted from entry_base; cols are local rows, too;
// level_ends[l] is the number of rows up to level l, and shape[p] = (levels, most rows of a level, entries).
// A row is summed by LANES threads in a fixed order, so that the bits are the same in every run.
#include "runtime/finelu.cuh"

using namespace fl;

template <typename T> using Real = typename RealOf<T>::type;
using Local = unsigned short;

template <typename T> __device__ inline T shuffle_in(unsigned group, T v, int mask) { return __shfl_xor_sync(group, v, mask); }
template <typename R> __device__ inline Complex<R> shuffle_in(unsigned group, Complex<R> v, int mask)
{
    return {shuffle_in(group, v.re, mask), shuffle_in(group, v.im, mask)};
}

template <typename W> __device__ inline W widened(float a) { return W(a); }
template <typename W> __device__ inline W widened(double a) { return W(a); }
template <typename W, typename R> __device__ inline W widened(Complex<R> a) { return W(a.re, a.im); }

constexpr int GROUP = 8;  // threads that look at the entries of a row of A together

// Pointers (fill = 0: how many entries of each row lie inside its part; 1: where they begin). The position of row j is
// position[j], or where that is null it is looked up among the ascending rows of the part.
// Launch: a block a part, blockDim.x a multiple of 32.
template <typename I>
__global__ void inside(const int* __restrict__ starts, const int* __restrict__ rows, const int* __restrict__ position,
                       const I* __restrict__ indptr, const I* __restrict__ indices, int fill, I* pointers, I* columns, I* places)
{
    const int first = starts[blockIdx.x], last = starts[blockIdx.x + 1];
    const int lane = threadIdx.x % GROUP;
    const unsigned group = ((1u << GROUP) - 1u) << (threadIdx.x % 32 / GROUP * GROUP);
    for (int k = first + int(threadIdx.x) / GROUP; k < last; k += blockDim.x / GROUP) {
        const int i = rows[k];
        const I end = indptr[i + 1];
        I at = fill ? pointers[k] : 0;
        for (I base = indptr[i]; base < end; base += GROUP) {
            const I place = base + lane;
            int found = -1;
            if (place < end) {
                const int j = int(indices[place]);
                if (position != nullptr) {
                    found = position[j];
                    if (found < first || found >= last) found = -1;
                } else {
                    int low = first, high = last;
                    while (low < high) {
                        const int middle = (low + high) / 2;
                        if (rows[middle] < j) low = middle + 1; else high = middle;
                    }
                    if (low < last && rows[low] == j) found = low;
                }
            }
            const unsigned votes = __ballot_sync(group, found >= 0);
            if (fill && found >= 0) {
                const I here = at + __popc(votes & ((1u << threadIdx.x % 32) - 1u));
                columns[here] = found;
                places[here] = place;
            }
            at += __popc(votes);
        }
        if (!fill && lane == 0) pointers[k] = at;
    }
}

// The rows of each part in the order of their levels. begin, end: the strict entries of each position, whose columns are
// positions of the same part. A thread looks again and again at its next row until all rows that this needs have a level,
// and no thread waits for another of its warp inside of that loop.
// Launch: a block a part, dynamic shared memory 2 * (most rows of a part + 1) ints.
template <typename I>
__global__ void order_by_levels(const int* __restrict__ starts, const long long* __restrict__ row_base, int reverse,
                                const I* __restrict__ begin, const I* __restrict__ end, const I* __restrict__ indices,
                                Local* order, int* ends, int* level_ends, int4* shape)
{
    extern __shared__ int shared_ints[];
    const int first = starts[blockIdx.x], rows = starts[blockIdx.x + 1] - first, thread = threadIdx.x;
    volatile int* level = shared_ints;
    int* counts = shared_ints + rows;
    for (int k = thread; k < rows; k += blockDim.x) level[k] = -1;
    for (int k = thread; k <= rows; k += blockDim.x) counts[k] = 0;
    __syncthreads();
    int t = thread, k = 0, awaited = -1, highest = 0;
    I p = 0, stop = 0;
    const auto take = [&]() {  // the next row of this thread
        if (t >= rows) return;
        k = reverse ? rows - 1 - t : t;
        p = begin[first + k];
        stop = end[first + k];
        awaited = p < stop ? int(indices[p]) - first : -1;
        highest = 0;
    };
    take();
    while (t < rows) {
        const int known = awaited < 0 ? 0 : level[awaited];
        if (awaited >= 0 && known >= 0) {
            highest = max(highest, known + 1);
            ++p;
            awaited = p < stop ? int(indices[p]) - first : -1;
        }
        if (awaited < 0) {
            level[k] = highest;
            t += blockDim.x;
            take();
        }
    }
    __syncthreads();
    for (int k = thread; k < rows; k += blockDim.x) atomicAdd(counts + level[k], 1);
    __syncthreads();
    const long long base = row_base[blockIdx.x];
    __shared__ int widest, depth;
    if (thread == 0) {  // sums over the levels, of which there are few
        int before = 0;
        widest = depth = 0;
        for (int l = 0; l < rows && counts[l] > 0; ++l) {
            const int here = counts[l];
            widest = max(widest, here);
            counts[l] = before;
            before += here;
            level_ends[base + l] = before;
            depth = l + 1;
        }
    }
    __syncthreads();
    // in any order within a level: each row is summed in the same way wherever it is
    for (int k = thread; k < rows; k += blockDim.x) {
        const int at = atomicAdd(counts + level[k], 1);
        order[base + at] = Local(k);
    }
    __syncthreads();
    if (thread < 32) {  // sums over the rows, by one warp
        int before = 0;
        for (int k = thread; k - thread < rows; k += 32) {
            int length = 0;
            if (k < rows) {
                const int i = first + order[base + k];
                length = int(end[i] - begin[i]);
            }
            int sum = length;
            for (int d = 1; d < 32; d *= 2) {
                const int other = __shfl_up_sync(0xffffffffu, sum, d);
                if (thread >= d) sum += other;
            }
            if (k < rows) ends[base + k] = before + sum;
            before += __shfl_sync(0xffffffffu, sum, 31);
        }
        if (thread == 0) shape[blockIdx.x] = make_int4(depth, widest, before, 0);
    }
}

// The entries in the order of the packed rows; the inverse diagonal likewise, where it is no null pointer.
// Launch: a block a part.
template <typename T, typename I>
__global__ void pack(const int* __restrict__ starts, const long long* __restrict__ row_base, const long long* __restrict__ entry_base,
                     const I* __restrict__ begin, const I* __restrict__ indices, const T* __restrict__ values,
                     const T* __restrict__ inverse, const Local* __restrict__ order, const int* __restrict__ ends,
                     Local* cols, T* vals, T* inverses)
{
    const int first = starts[blockIdx.x], rows = starts[blockIdx.x + 1] - first, lane = threadIdx.x % GROUP;
    const long long base = row_base[blockIdx.x], entries = entry_base[blockIdx.x];
    for (int k = int(threadIdx.x) / GROUP; k < rows; k += blockDim.x / GROUP) {
        const int i = first + order[base + k], before = k ? ends[base + k - 1] : 0;
        const I source = begin[i];
        for (int q = before + lane; q < ends[base + k]; q += GROUP) {
            cols[entries + q] = Local(int(indices[source + (q - before)]) - first);
            vals[entries + q] = values[source + (q - before)];
        }
        if (inverse != nullptr && lane == 0) inverses[base + k] = inverse[i];
    }
}

// Bytes of shared memory, each array at a multiple of 16.
__host__ __device__ inline size_t room(size_t bytes) { return (bytes + 15) / 16 * 16; }

__device__ inline void copy16(void* to, const void* from)
{
#if __CUDA_ARCH__ >= 800
    const unsigned target = unsigned(__cvta_generic_to_shared(to));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(from) : "memory");
#else
    *reinterpret_cast<int4*>(to) = *reinterpret_cast<const int4*>(from);
#endif
}
__device__ inline void end_of_copies()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int LEFT> __device__ inline void wait_for_copies()
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
#endif
}
template <typename E> __device__ inline E* copied(unsigned char*& top, const E* from, size_t count)
{
    E* const to = reinterpret_cast<E*>(top);
    for (size_t k = threadIdx.x; k < room(count * sizeof(E)) / 16; k += blockDim.x)
        copy16(top + 16 * k, reinterpret_cast<const unsigned char*>(from) + 16 * k);
    top += room(count * sizeof(E));
    return to;
}

template <typename T> struct Packed {
    const Local* order;
    const int* ends;
    const int* level_ends;
    const Local* cols;
    const T* vals;
    const T* inverses;  // null for a unit diagonal
    int4 shape;
};

template <typename T, bool STAGED>
__device__ inline Packed<T> triangle_of(unsigned char*& top, long long base, long long entries, int rows, const Local* order,
                                        const int* ends, const int* level_ends, const Local* cols, const T* vals,
                                        const T* inverses, const int4* shape)
{
    Packed<T> t{order + base, ends + base, level_ends + base, cols + entries, vals + entries,
                inverses == nullptr ? nullptr : inverses + base, shape[blockIdx.x]};
    if (STAGED) {
        t.vals = copied(top, t.vals, t.shape.z);
        if (inverses != nullptr) t.inverses = copied(top, t.inverses, rows);
        t.ends = copied(top, t.ends, rows);
        t.level_ends = copied(top, t.level_ends, t.shape.x);
        t.order = copied(top, t.order, rows);
        t.cols = copied(top, t.cols, t.shape.z);
    }
    end_of_copies();
    return t;
}

// A row of a packed triangle with what of it does not depend on the unknowns: where its level begins, it waits for nothing
// but these. The first entries of each of its LANES threads are there, the others are read when it is their turn.
constexpr int AHEAD = 4;
template <typename T, int LANES> struct Row {
    int from, to, i;
    T own, inverse, vals[AHEAD];
    Local cols[AHEAD];

    __device__ void fetch(const Packed<T>& t, const T* s, int k, int end, int lane)
    {
        i = -1;
        if (k >= end) return;
        from = (k ? t.ends[k - 1] : 0) + lane;
        to = t.ends[k];
        i = t.order[k];
        own = s[i];
        inverse = t.inverses == nullptr ? T(1) : t.inverses[k];
#pragma unroll
        for (int a = 0; a < AHEAD; ++a)
            if (from + a * LANES < to) {
                vals[a] = t.vals[from + a * LANES];
                cols[a] = t.cols[from + a * LANES];
            }
    }
    __device__ void solve(const Packed<T>& t, T* s, unsigned group, int lane) const
    {
        if (i < 0) return;
        T known[AHEAD], sum = T(0);
#pragma unroll
        for (int a = 0; a < AHEAD; ++a)
            if (from + a * LANES < to) known[a] = s[cols[a]];
#pragma unroll
        for (int a = 0; a < AHEAD; ++a)
            if (from + a * LANES < to) sum += vals[a] * known[a];
        for (int q = from + AHEAD * LANES; q < to; q += LANES) sum += t.vals[q] * s[t.cols[q]];
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset /= 2) sum += shuffle_in(group, sum, offset);
        if (lane == 0) s[i] = t.inverses == nullptr ? own - sum : (own - sum) * inverse;
    }
};

// s = T^-1 s, level by level, by as many threads of the block as the widest level needs: by one warp where that will do.
template <typename T, int LANES> __device__ inline void substitute(const Packed<T>& t, T* s)
{
    const int wanted = min((t.shape.y * LANES + 31) / 32 * 32, int(blockDim.x));
    if (int(threadIdx.x) >= wanted) return;
    const int lane = threadIdx.x % LANES, slot = threadIdx.x / LANES, slots = wanted / LANES;
    const unsigned group = LANES == 32 ? 0xffffffffu : ((1u << LANES) - 1u) << (threadIdx.x % 32 / LANES * LANES);
    Row<T, LANES> row;
    int begin = 0, end = t.level_ends[0];
    row.fetch(t, s, slot, end, lane);
    for (int l = 0; l < t.shape.x; ++l) {
        const int next = l + 1 < t.shape.x ? t.level_ends[l + 1] : end;
        row.solve(t, s, group, lane);
        for (int k = begin + slots + slot; k < end; k += slots) {
            row.fetch(t, s, k, end, lane);
            row.solve(t, s, group, lane);
        }
        row.fetch(t, s, end + slot, next, lane);  // its own unknown is written in its own level only
        begin = end;
        end = next;
        if (wanted == 32) __syncwarp();
        else asm volatile("bar.sync 1, %0;" ::"r"(wanted) : "memory");
    }
}

// x = W_after U^-1 L^-1 W_before r in the part of this block. Launch: a block a part, blockDim.x a multiple of 32; dynamic
// shared memory for the rows of the part and, STAGED, for what is packed of both triangles.
template <typename T, int LANES, bool STAGED>
__global__ void __launch_bounds__(512) subdomain_solve(
    const int* __restrict__ starts, const int* __restrict__ rows, const long long* __restrict__ row_base,
    const Real<T>* __restrict__ before, const Real<T>* __restrict__ after, int scattered,
    const long long* __restrict__ entries_1, const Local* __restrict__ order_1, const int* __restrict__ ends_1,
    const int* __restrict__ levels_1, const Local* __restrict__ cols_1, const T* __restrict__ vals_1,
    const T* __restrict__ inverses_1, const int4* __restrict__ shape_1,
    const long long* __restrict__ entries_2, const Local* __restrict__ order_2, const int* __restrict__ ends_2,
    const int* __restrict__ levels_2, const Local* __restrict__ cols_2, const T* __restrict__ vals_2,
    const T* __restrict__ inverses_2, const int4* __restrict__ shape_2,
    const T* __restrict__ r, T* x)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    const int part = blockIdx.x, first = starts[part], m = starts[part + 1] - first;
    const long long base = row_base[part];
    T* const s = reinterpret_cast<T*>(shared_bytes);
    unsigned char* top = shared_bytes + room(m * sizeof(T));
    const Packed<T> one = triangle_of<T, STAGED>(top, base, entries_1[part], m, order_1, ends_1, levels_1, cols_1, vals_1, inverses_1, shape_1);
    const Packed<T> two = triangle_of<T, STAGED>(top, base, entries_2[part], m, order_2, ends_2, levels_2, cols_2, vals_2, inverses_2, shape_2);
    for (int k = threadIdx.x; k < m; k += blockDim.x) {
        const T v = r[rows[first + k]];
        s[k] = before == nullptr ? v : times(v, before[first + k]);
    }
    wait_for_copies<1>();
    __syncthreads();
    substitute<T, LANES>(one, s);
    wait_for_copies<0>();
    __syncthreads();
    substitute<T, LANES>(two, s);
    __syncthreads();
    for (int k = threadIdx.x; k < m; k += blockDim.x) {
        const T v = after == nullptr ? s[k] : times(s[k], after[first + k]);
        x[scattered ? rows[first + k] : first + k] = v;
    }
}

// g_p = sum of conj(v_k) r[rows[k]] over starts[p] <= k < starts[p + 1], m columns v; null for one of ones.
// Launch: a block of 128 a part.
template <typename T>
__global__ void __launch_bounds__(128) restrict_to_parts(const int* __restrict__ starts, const int* __restrict__ rows, int m,
                                                         const T* __restrict__ values, int conjugate, const T* __restrict__ r, T* g)
{
    __shared__ T sums[4];
    const int first = starts[blockIdx.x], last = starts[blockIdx.x + 1];
    for (int c = 0; c < m; ++c) {
        T sum = T(0);
#pragma unroll 4
        for (int k = first + int(threadIdx.x); k < last; k += 128) {
            T v = r[rows[k]];
            if (values != nullptr) {
                const T z = values[size_t(k) * m + c];
                v = (conjugate ? conj(z) : z) * v;
            }
            sum += v;
        }
        for (int offset = 16; offset > 0; offset /= 2) sum += shuffle_xor(sum, offset);
        if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
        __syncthreads();
        if (threadIdx.x == 0) g[size_t(blockIdx.x) * m + c] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        __syncthreads();
    }
}

// x_i += Z_i q_p for i in part p. Launch: gridDim.x * blockDim.x >= n.
template <typename T>
__global__ void prolong_from_parts(long long n, int m, const int* __restrict__ parts, const T* __restrict__ Z,
                                   const T* __restrict__ q, T* x)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const T* const mine = q + size_t(parts[i]) * m;
    T sum = T(0);
    if (Z == nullptr)
        sum = mine[0];
    else
        for (int c = 0; c < m; ++c) sum += Z[size_t(i) * m + c] * mine[c];
    x[i] += sum;
}

// out_i = r_i - sum of (A Z)_ik q_k, where row i of A Z has the parts and values (m a part) from pointers[i] on.
// Launch: gridDim.x * blockDim.x >= n.
template <typename T>
__global__ void coarse_residual(long long n, int m, const int* __restrict__ pointers, const int* __restrict__ parts,
                                const T* __restrict__ values, const T* __restrict__ q, const T* __restrict__ r, T* out)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    T sum = T(0);
    for (int p = pointers[i]; p < pointers[i + 1]; ++p)
        for (int c = 0; c < m; ++c) sum += values[size_t(p) * m + c] * q[size_t(parts[p]) * m + c];
    out[i] = r[i] - sum;
}

// The sum of a_ij Z_jc over the places [from, to) of a row whose columns lie in part p, in ascending order.
template <typename T, typename I>
__device__ inline T sum_in_part(I from, I to, int p, int m, int c, const I* __restrict__ indices, const T* __restrict__ data,
                                const int* __restrict__ parts, const T* __restrict__ Z)
{
    T sum = T(0);
    for (I e = from; e < to; ++e) {
        const I j = indices[e];
        if (parts[j] == p) sum += Z == nullptr ? data[e] : data[e] * Z[size_t(j) * m + c];
    }
    return sum;
}
template <typename T, typename I>
__device__ inline bool any_in_part(I from, I to, int p, int m, const I* __restrict__ indices, const T* __restrict__ data,
                                   const int* __restrict__ parts, const T* __restrict__ Z)
{
    for (int c = 0; c < m; ++c) {
        const T sum = sum_in_part<T, I>(from, to, p, m, c, indices, data, parts, Z);
        if (!(real(sum) == 0 && imag(sum) == 0)) return true;
    }
    return false;
}

// A Z by rows: for each part that row i of A meets, in the order in which it meets them, the m sums of a_ij Z_j over the j
// of that part, in ascending order of j; no part whose sums are all 0. LANES threads a row; the thread that has the first
// entry of a part adds up. Rows of more than `longest` entries are left to coarse_products_long.
// fill = 0: how many parts each row has; 1: they are written from pointers[i] on.
// Launch: gridDim.x * blockDim.x >= n * LANES, blockDim.x a multiple of 32.
template <typename T, typename I, int LANES>
__global__ void coarse_products(long long n, int m, const I* __restrict__ indptr, const I* __restrict__ indices,
                                const T* __restrict__ data, const int* __restrict__ parts, const T* __restrict__ Z, int longest,
                                int fill, int* pointers, int* part, T* values)
{
    const long long i = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / LANES;
    if (i >= n) return;
    const int lane = threadIdx.x % LANES;
    const unsigned group = LANES == 32 ? 0xffffffffu : ((1u << LANES) - 1u) << (threadIdx.x % 32 / LANES * LANES);
    const I begin = indptr[i], end = indptr[i + 1];
    if (end - begin > longest) return;
    int at = fill ? pointers[i] : 0;
    for (I base = begin; base < end; base += LANES) {
        const I mine = base + lane;
        const int p = mine < end ? parts[indices[mine]] : -1;
        bool first = __ffs(__match_any_sync(group, p)) - 1 == int(threadIdx.x % 32) && p >= 0;
        for (I before = begin; before < base && first; ++before) first = parts[indices[before]] != p;
        const bool kept = first && any_in_part<T, I>(mine, end, p, m, indices, data, parts, Z);
        const unsigned votes = __ballot_sync(group, kept);
        if (fill && kept) {
            const int here = at + __popc(votes & ((1u << threadIdx.x % 32) - 1u));
            part[here] = p;
            for (int c = 0; c < m; ++c) values[size_t(here) * m + c] = sum_in_part<T, I>(mine, end, p, m, c, indices, data, parts, Z);
        }
        at += __popc(votes);
    }
    if (!fill && lane == 0) pointers[i] = at;
}

// The same for long rows, a block each: first and last (blocks x count) hold the first and the last entry of each part in
// the row, INT_MAX and -1 before, so that no entry is compared with all others. Launch: a block of 256 for each of rows.
template <typename T, typename I>
__global__ void __launch_bounds__(256) coarse_products_long(
    const long long* __restrict__ rows, int m, int count, const I* __restrict__ indptr, const I* __restrict__ indices,
    const T* __restrict__ data, const int* __restrict__ parts, const T* __restrict__ Z, int* first, int* last, int fill,
    int* pointers, int* part, T* values)
{
    __shared__ int kept_of_warp[8];
    const long long i = rows[blockIdx.x];
    const I begin = indptr[i], end = indptr[i + 1];
    first += size_t(blockIdx.x) * count;
    last += size_t(blockIdx.x) * count;
    for (I e = begin + I(threadIdx.x); e < end; e += 256) {
        const int p = parts[indices[e]];
        atomicMin(first + p, int(e - begin));
        atomicMax(last + p, int(e - begin));
    }
    __syncthreads();
    int at = fill ? pointers[i] : 0;
    for (I base = begin; base < end; base += 256) {
        const I mine = base + I(threadIdx.x);
        const int p = mine < end ? parts[indices[mine]] : -1;
        bool kept = p >= 0 && first[p] == int(mine - begin);
        if (kept) kept = any_in_part<T, I>(mine, begin + last[p] + 1, p, m, indices, data, parts, Z);
        const unsigned votes = __ballot_sync(0xffffffffu, kept);
        if (threadIdx.x % 32 == 0) kept_of_warp[threadIdx.x / 32] = __popc(votes);
        __syncthreads();
        int before = 0, all = 0;
        for (int w = 0; w < 8; ++w) {
            if (w < int(threadIdx.x / 32)) before += kept_of_warp[w];
            all += kept_of_warp[w];
        }
        if (fill && kept) {
            const int here = at + before + __popc(votes & ((1u << threadIdx.x % 32) - 1u));
            part[here] = p;
            for (int c = 0; c < m; ++c)
                values[size_t(here) * m + c] = sum_in_part<T, I>(mine, begin + last[p] + 1, p, m, c, indices, data, parts, Z);
        }
        at += all;
        __syncthreads();
    }
    if (!fill && threadIdx.x == 0) pointers[i] = at;
}

// E = Z^H A Z in double precision: block (p, q) from the entries of A Z that lie in rows of part p and belong to part q,
// which are order[first[s]], ..., order[first[s + 1] - 1] for one s. A warp adds up each; E (size, size) is 0 before.
// Launch: gridDim.x * blockDim.x >= 32 * segments, blockDim.x a multiple of 32.
template <typename T, typename W>
__global__ void coarse_matrix(int segments, long long size, int m, const long long* __restrict__ first,
                              const long long* __restrict__ order, const int* __restrict__ rows, const int* __restrict__ part,
                              const T* __restrict__ values, const int* __restrict__ parts, const T* __restrict__ Z,
                              int conjugate, W* E)
{
    const int s = int((size_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32), lane = threadIdx.x % 32;
    if (s >= segments) return;
    const long long begin = first[s], end = first[s + 1];
    const int p = parts[rows[order[begin]]], q = part[order[begin]];
    for (int c = 0; c < m; ++c)
        for (int d = 0; d < m; ++d) {
            W sum = W(0);
            for (long long k = begin + lane; k < end; k += 32) {
                const long long e = order[k];
                W v = widened<W>(values[size_t(e) * m + d]);
                if (Z != nullptr) {
                    const T z = Z[size_t(rows[e]) * m + c];
                    v = widened<W>(conjugate ? conj(z) : z) * v;
                }
                sum += v;
            }
            for (int offset = 16; offset > 0; offset /= 2) sum += shuffle_xor(sum, offset);
            if (lane == 0) E[((long long)p * m + c) * size + (long long)q * m + d] = sum;
        }
}

// In place: the inverse of the leading rows x rows block at `block` of a Hermitian positive semidefinite matrix whose rows
// are `stride` apart, rows <= 32 TILE, by Gauss-Jordan elimination in the order of its rows; a thread has TILE x TILE
// elements in registers. A row whose pivot is not above the tolerance depends on those before: it and its column become 0,
// and dropped is 1; 2 where the pivot is below -tolerance. Launch: one block of 32 x 32 threads.
template <typename T, int TILE>
__global__ void __launch_bounds__(1024) invert_block(int rows, long long stride, T* block, Real<T> tolerance, signed char* dropped)
{
    __shared__ T row[2][32 * TILE], column[2][32 * TILE];
    const int x = threadIdx.x, y = threadIdx.y;
    T a[TILE][TILE];
#pragma unroll
    for (int i = 0; i < TILE; ++i)
#pragma unroll
        for (int j = 0; j < TILE; ++j) {
            const int r = y + 32 * i, c = x + 32 * j;
            a[i][j] = r < rows && c < rows ? block[r * stride + c] : T(0);
        }
#pragma unroll
    for (int tile = 0; tile < TILE; ++tile)
        for (int inner = 0; inner < 32; ++inner) {
            const int k = 32 * tile + inner, turn = inner % 2;
            if (k >= rows) break;
            if (y == inner)
#pragma unroll
                for (int j = 0; j < TILE; ++j) row[turn][x + 32 * j] = a[tile][j];
            if (x == inner)
#pragma unroll
                for (int i = 0; i < TILE; ++i) column[turn][y + 32 * i] = a[i][tile];
            __syncthreads();  // that of the next turn comes before these places are written again
            const Real<T> pivot = real(row[turn][k]);
            const bool kept = pivot > tolerance;
            const Real<T> reciprocal = kept ? Real<T>(1) / pivot : Real<T>(0);
#pragma unroll
            for (int i = 0; i < TILE; ++i) {
                const int r = y + 32 * i;
                const T factor = times(column[turn][r], reciprocal);
#pragma unroll
                for (int j = 0; j < TILE; ++j) {
                    const int c = x + 32 * j;
                    if (r == k)
                        a[i][j] = c == k ? T(reciprocal) : times(row[turn][c], reciprocal);
                    else
                        a[i][j] = c == k ? -factor : a[i][j] - factor * row[turn][c];
                }
            }
            if (x == 0 && y == 0) dropped[k] = kept ? 0 : pivot < -tolerance ? 2 : 1;
        }
#pragma unroll
    for (int i = 0; i < TILE; ++i)
#pragma unroll
        for (int j = 0; j < TILE; ++j) {
            const int r = y + 32 * i, c = x + 32 * j;
            if (r < rows && c < rows) block[r * stride + c] = a[i][j];
        }
}
