// Solves with the diagonal blocks of subdomains: a part is a block of threads, its unknowns lie in shared memory, and a
// level of one of its triangles costs a barrier of that block. Twins: kernels/reference/subdomains.py.
//
// Part p has the local positions starts[p] <= t < starts[p + 1]. Its packed arrays begin at multiples of 8 elements, so
// that they can be copied 16 bytes at a time: row_base[p] in the arrays by rows, which have room for one row more, and
// entry_base[p] in those by entries. Packed rows are ordered by level: order[k] is the local row (from 0 on). A level
// is cut into slices of as many rows as a warp takes, LANES threads each: with (x, y) = slices[c], slice c begins with
// packed row y & 0xffff and entry x, and each of its threads has y >> 16 entries, which lie as far apart as there are
// threads; shorter rows are filled up with zeros in column `rows`. Slices are solved `warps` at a time, a step; a level
// that needs fewer for its last step has empty ones, and after the last slice comes the place where another would
// begin. shape[p] = (levels, warps, entries, slices).
// A row is summed by LANES threads in a fixed order, so that the bits are the same in every run.
#include "runtime/finelu.cuh"
#include "runtime/sums.cuh"
#include "runtime/stored.cuh"

using namespace fl;

using Local = unsigned short;

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
    const unsigned group = group_mask<GROUP>();
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
                    found = find(rows, first, last, j);
                }
            }
            const unsigned votes = __ballot_sync(group, found >= 0);
            if (fill && found >= 0) {
                const I here = at + votes_before(votes);
                columns[here] = found;
                places[here] = place;
            }
            at += __popc(votes);
        }
        if (!fill && lane == 0) pointers[k] = at;
    }
}

// The rows of each part in the order of their levels, and in slices. begin, end: the strict entries of each position,
// whose columns are positions of the same part. A thread looks again and again at its next row until all rows that this
// needs have a level, and no thread waits for another of its warp inside of that loop. Within a level of up to SORTED
// rows those with the most entries come first, so that the rows of a slice are about equally long; those of a larger
// one come in any order, which changes how much is filled up, but no result.
// Launch: a block a part, dynamic shared memory ints for the most rows of a part and one more, and three Locals a row.
constexpr int SORTED = 1024, MOST_WARPS = 4;
template <typename I>
__global__ void order_by_levels(const int* __restrict__ starts, const long long* __restrict__ row_base, int reverse, int lanes,
                                const I* __restrict__ begin, const I* __restrict__ end, const I* __restrict__ indices,
                                Local* order, int2* slices, int4* shape)
{
    extern __shared__ int counts[];
    const int first = starts[blockIdx.x], rows = starts[blockIdx.x + 1] - first, thread = threadIdx.x;
    Local* const level = reinterpret_cast<Local*>(counts + rows + 1);
    Local* const members = level + rows;  // the rows by levels
    Local* const lengths = members + rows;
    constexpr int UNKNOWN = 0xffff;
    for (int k = thread; k < rows; k += blockDim.x) {
        level[k] = Local(UNKNOWN);
        lengths[k] = Local(end[first + k] - begin[first + k]);
    }
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
        const int known = awaited < 0 ? 0 : peek_shared(level + awaited);
        if (awaited >= 0 && known != UNKNOWN) {
            highest = max(highest, known + 1);
            ++p;
            awaited = p < stop ? int(indices[p]) - first : -1;
        }
        if (awaited < 0) {
            post_shared(level + k, Local(highest));
            t += blockDim.x;
            take();
        }
    }
    __syncthreads();
    for (int k = thread; k < rows; k += blockDim.x) atomicAdd(counts + level[k], 1);
    __syncthreads();
    const long long base = row_base[blockIdx.x];
    const int rows_a_slice = 32 / lanes;
    __shared__ int warps, depth;
    if (thread == 0) {  // sums over the levels, of which there are few
        int before = 0, most = 1, steps[MOST_WARPS] = {};
        depth = 0;
        for (int l = 0; l < rows && counts[l] > 0; ++l) {
            const int here = counts[l], needed = (here + rows_a_slice - 1) / rows_a_slice;
            most = max(most, needed);
            for (int w = 1; w <= MOST_WARPS; ++w) steps[w - 1] += (needed + w - 1) / w;
            counts[l] = before;
            before += here;
            depth = l + 1;
        }
        warps = min(most, MOST_WARPS);
        while (warps > 1 && steps[warps - 1] * warps > rows) --warps;  // else there is no room for the empty ones
    }
    __syncthreads();
    for (int k = thread; k < rows; k += blockDim.x) members[atomicAdd(counts + level[k], 1)] = Local(k);
    __syncthreads();  // counts[l] is where level l ends now
    for (int m = thread; m < rows; m += blockDim.x) {
        const int k = members[m], l = level[k], from = l ? counts[l - 1] : 0, upto = counts[l], length = lengths[k];
        int at = m;
        if (upto - from <= SORTED) {
            at = from;
            for (int o = from; o < upto; ++o) {
                const int other = members[o], its = lengths[other];
                at += its > length || (its == length && other < k);
            }
        }
        order[base + at] = Local(k);
    }
    __syncthreads();
    if (thread < 32) {  // by one warp: a slice a thread, then where they begin
        int slice = 0, entry = 0;
        for (int l = 0; l < depth; ++l) {
            const int from = l ? counts[l - 1] : 0, upto = counts[l];
            const bool sorted = upto - from <= SORTED;
            const int needed = (upto - from + rows_a_slice - 1) / rows_a_slice;
            const int count = (needed + warps - 1) / warps * warps;
            for (int c = thread; c - thread < count; c += 32, slice += 32) {
                const int row = min(from + c * rows_a_slice, upto), end = min(row + rows_a_slice, upto);
                const int looked_at = sorted ? min(row + 1, end) : end;
                int longest = 0;
                if (c < count)
                    for (int o = row; o < looked_at; ++o) longest = max(longest, int(lengths[order[base + o]]));
                const int each = (longest + lanes - 1) / lanes, mine = each * (end - row) * lanes;
                int sum = mine;
                for (int d = 1; d < 32; d *= 2) {
                    const int other = __shfl_up_sync(ALL, sum, d);
                    if (thread >= d) sum += other;
                }
                if (c < count) slices[base + slice + thread] = make_int2(entry + sum - mine, int(unsigned(row) | unsigned(each) << 16));
                entry += __shfl_sync(ALL, sum, 31);
            }
            slice += count - (count + 31) / 32 * 32;
        }
        if (thread == 0) {
            slices[base + slice] = make_int2(entry, rows);
            shape[blockIdx.x] = make_int4(depth, warps, entry, slice);
        }
    }
}

// The entries slice by slice; the inverse diagonal in the order of the rows, where it is no null pointer. Entries of less
// precision than the unknowns are relative to the diagonal entry of their row, so that those of D^-1 U do not depend on
// the scale of the rows. unfit: 1 where an entry is out of the range of V. Launch: a block a part, blockDim.x a multiple of 32.
template <typename T, typename V, typename I>
__global__ void pack(const int* __restrict__ starts, const long long* __restrict__ row_base, const long long* __restrict__ entry_base,
                     int lanes, const I* __restrict__ begin, const I* __restrict__ end, const I* __restrict__ indices,
                     const T* __restrict__ values, const T* __restrict__ inverse, const Local* __restrict__ order,
                     const int2* __restrict__ slices, const int4* __restrict__ shape, Local* cols, V* vals, T* inverses, int* unfit)
{
    const int first = starts[blockIdx.x], rows = starts[blockIdx.x + 1] - first, count = shape[blockIdx.x].w;
    const int thread = threadIdx.x % 32, lane = thread % lanes;
    const long long base = row_base[blockIdx.x], entries = entry_base[blockIdx.x];
    for (int c = int(threadIdx.x) / 32; c < count; c += blockDim.x / 32) {
        const int2 slice = slices[base + c];
        const int row = slice.y & 0xffff, width = ((slices[base + c + 1].y & 0xffff) - row) * lanes;
        if (thread >= width) continue;
        const int k = row + thread / lanes, i = first + order[base + k];
        I source = begin[i] + lane;
        const I last = end[i];
        long long at = entries + slice.x + thread;
        const T scale = NARROW<T, V> && inverse != nullptr ? inverse[i] : T(1);
        for (int a = int(unsigned(slice.y) >> 16); a > 0; --a, at += width, source += lanes) {
            cols[at] = Local(source < last ? int(indices[source]) - first : rows);
            vals[at] = source >= last ? V(0) : narrowed<V>(NARROW<T, V> ? values[source] * scale : values[source], unfit);
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

template <typename T, typename V> struct Packed {
    const Local* order;
    const int2* slices;
    const Local* cols;
    const V* vals;
    const T* inverses;  // null for a unit diagonal
    int4 shape;
};

template <typename T, typename V, bool STAGED>
__device__ inline Packed<T, V> triangle_of(unsigned char*& top, long long base, long long entries, int rows, const Local* order,
                                           const int2* slices, const Local* cols, const V* vals, const T* inverses,
                                           const int4* shape)
{
    Packed<T, V> t{order + base, slices + base, cols + entries, vals + entries,
                inverses == nullptr ? nullptr : inverses + base, shape[blockIdx.x]};
    if (STAGED) {
        t.vals = copied(top, t.vals, t.shape.z);
        if (inverses != nullptr) t.inverses = copied(top, t.inverses, rows);
        t.slices = copied(top, t.slices, t.shape.w + 1);
        t.order = copied(top, t.order, rows);
        t.cols = copied(top, t.cols, t.shape.z);
    }
    end_of_copies();
    return t;
}

// One unknown of COLUMNS right-hand sides by LANES threads, each with the entries at, at + width, ...: EACH of them are
// asked for at once, before any unknown is; those after are read when it is their turn. The unknowns of the columns lie
// `pitch` apart.
template <typename T, typename V, int LANES, int COLUMNS, int EACH>
__device__ inline void solve_row(const Packed<T, V>& t, T* s, int pitch, int row, int at, int width, int each, unsigned group,
                                 int lane)
{
    V vals[EACH + 1];
    T sum[COLUMNS], own[COLUMNS];
    int cols[EACH + 1];
#pragma unroll
    for (int a = 0; a < EACH; ++a) cols[a] = t.cols[at + a * width];
    const int i = t.order[row];
#pragma unroll
    for (int a = 0; a < EACH; ++a) vals[a] = t.vals[at + a * width];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
        own[c] = s[c * pitch + i];
        sum[c] = T(0);
    }
#pragma unroll
    for (int a = 0; a < EACH; ++a)
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) sum[c] += widened<T>(vals[a]) * s[c * pitch + cols[a]];
    for (int a = EACH; a < each; ++a) {
        const T value = widened<T>(t.vals[at + a * width]);
        const int col = t.cols[at + a * width];
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) sum[c] += value * s[c * pitch + col];
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) sum[c] = lanes_sum<LANES>(sum[c], group);
    if (lane) return;
    const T inverse = t.inverses == nullptr ? T(1) : t.inverses[row];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {
        if (t.inverses == nullptr) s[c * pitch + i] = own[c] - sum[c];
        else s[c * pitch + i] = NARROW<T, V> ? own[c] * inverse - sum[c] : (own[c] - sum[c]) * inverse;
    }
}

// The barrier between two steps: the first `warps` warps of the block wait for each other. compute-sanitizer's
// racecheck reported races in `block_sum`, whose accesses barriers of the whole block keep apart in the machine code,
// but only in kernels with such a barrier of some warps. So with FINELU_RACECHECK all warps of the block wait; those
// without rows do so in `let_others_solve`.
__device__ inline void end_of_step(int warps)
{
#ifdef FINELU_RACECHECK
    __syncthreads();
#else
    if (warps == 1) __syncwarp();
    else asm volatile("bar.sync 1, %0;" ::"r"(32 * warps) : "memory");
#endif
}
__device__ inline void let_others_solve([[maybe_unused]] int slices, [[maybe_unused]] int warps)
{
#ifdef FINELU_RACECHECK
    for (int c = 0; c < slices; c += warps) end_of_step(warps);
#endif
}

// s = T^-1 s, a step after the other; slices are filled up with s[rows] = 0, for each column. Where the next slice lies is looked up
// while one is solved.
template <typename T, typename V, int LANES, int COLUMNS>
__device__ inline void substitute(const Packed<T, V>& t, T* s, int pitch)
{
    const int warps = t.shape.y, warp = threadIdx.x / 32, thread = threadIdx.x % 32, lane = thread % LANES;
    if (warp >= warps) return let_others_solve(t.shape.w, warps);
    const unsigned group = group_mask<LANES>();
    int2 slice = t.slices[warp];
    int next_row = t.slices[warp + 1].y;
    for (int c = warp; c < t.shape.w; c += warps) {
        const int first = slice.y & 0xffff, each = int(unsigned(slice.y) >> 16), rows = (next_row & 0xffff) - first;
        const int at = slice.x + thread, row = first + thread / LANES, width = rows * LANES;
        if (c + warps < t.shape.w) {
            slice = t.slices[c + warps];
            next_row = t.slices[c + warps + 1].y;
        }
        if (thread < width) {
            if (each == 0) solve_row<T, V, LANES, COLUMNS, 0>(t, s, pitch, row, at, width, 0, group, lane);
            else if (each == 1) solve_row<T, V, LANES, COLUMNS, 1>(t, s, pitch, row, at, width, 1, group, lane);
            else if (each == 2) solve_row<T, V, LANES, COLUMNS, 2>(t, s, pitch, row, at, width, 2, group, lane);
            else if (each == 3) solve_row<T, V, LANES, COLUMNS, 3>(t, s, pitch, row, at, width, 3, group, lane);
            else solve_row<T, V, LANES, COLUMNS, 4>(t, s, pitch, row, at, width, each, group, lane);
        }
        end_of_step(warps);
    }
}

// x = W_after U^-1 L^-1 W_before (r - A Z q) in the part of this block; row i of A Z has the parts and values (m a
// part) from pointers[i] on; no A Z q where they are null. For `count` right-hand sides: r and x (n, count) have their
// columns n apart, all other arrays theirs side by side: q (K, count). A block takes COLUMNS of them, blockIdx.y * COLUMNS
// and those after. Launch: blocks of 128, (parts, count / COLUMNS, rounded up); dynamic shared memory for COLUMNS times
// the unknowns of the part and one more and, STAGED, for the packed arrays of both triangles.
// Where couplings is not null, the sums that a coarse space needs besides, while x lies in shared memory: for each
// coupling c of this part, couplings[part] <= c < couplings[part + 1], the `vectors` sums of conj(v) x over its entries
// from ends[c] to ends[c + 1], of which each has a local row and `vectors` values v; and restricted = Z^H r and dots =
// r^H x of the part, Z by positions, null for the constant. conj of v and Z: where `conjugate`.
template <typename T, typename V, int LANES, bool STAGED, int COLUMNS>
__global__ void __launch_bounds__(128, COLUMNS == 1 ? 6 : 3) subdomain_solve(
    const int* __restrict__ starts, const int* __restrict__ rows, const long long* __restrict__ row_base,
    const Real<T>* __restrict__ before, const Real<T>* __restrict__ after, int scattered,
    const long long* __restrict__ entries_1, const Local* __restrict__ order_1, const int2* __restrict__ slices_1,
    const Local* __restrict__ cols_1, const V* __restrict__ vals_1, const T* __restrict__ inverses_1,
    const int4* __restrict__ shape_1,
    const long long* __restrict__ entries_2, const Local* __restrict__ order_2, const int2* __restrict__ slices_2,
    const Local* __restrict__ cols_2, const V* __restrict__ vals_2, const T* __restrict__ inverses_2,
    const int4* __restrict__ shape_2,
    int m, const int* __restrict__ pointers, const int* __restrict__ parts, const T* __restrict__ values,
    const T* __restrict__ q,
    int vectors, const int* __restrict__ couplings, const int* __restrict__ ends, const Local* __restrict__ coupled,
    const T* __restrict__ weights, const T* __restrict__ Z, int conjugate, T* sums, T* restricted, T* dots,
    int count, long long n, const T* __restrict__ r, T* x)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    const int part = blockIdx.x, first = starts[part], size = starts[part + 1] - first, pitch = size + 1;
    const int column = int(blockIdx.y) * COLUMNS, live = min(COLUMNS, count - column);
    const long long base = row_base[part];
    T* const s = reinterpret_cast<T*>(shared_bytes);
    unsigned char* top = shared_bytes + room(size_t(pitch) * COLUMNS * sizeof(T));
    const Packed<T, V> one = triangle_of<T, V, STAGED>(top, base, entries_1[part], size, order_1, slices_1, cols_1, vals_1, inverses_1, shape_1);
    const Packed<T, V> two = triangle_of<T, V, STAGED>(top, base, entries_2[part], size, order_2, slices_2, cols_2, vals_2, inverses_2, shape_2);
    constexpr int BATCH = 4, FIRST = 3;  // rows that a thread asks for at a time, and entries of a row of A Z
    for (int item = threadIdx.x; item < size * COLUMNS; item += BATCH * blockDim.x) {
        int i[BATCH], p[BATCH], end[BATCH], c[BATCH], k[BATCH];  // row, places in A Z, column and position
        T v[BATCH];
#pragma unroll
        for (int u = 0; u < BATCH; ++u) {
            const int at = item + u * int(blockDim.x);
            c[u] = COLUMNS == 1 ? 0 : at / size;
            k[u] = COLUMNS == 1 ? at : at - c[u] * size;
            i[u] = at < size * COLUMNS ? rows[first + k[u]] : -1;
        }
#pragma unroll
        for (int u = 0; u < BATCH; ++u) {
            p[u] = end[u] = 0;
            v[u] = T(0);
            if (i[u] < 0 || (COLUMNS > 1 && c[u] >= live)) continue;
            c[u] += column;
            v[u] = r[c[u] * n + i[u]];
            if (pointers == nullptr) continue;
            p[u] = pointers[i[u]];
            end[u] = pointers[i[u] + 1];
        }
        if (m == 1) {
            int other[BATCH][FIRST];
            T value[BATCH][FIRST];
#pragma unroll
            for (int u = 0; u < BATCH; ++u)
#pragma unroll
                for (int e = 0; e < FIRST; ++e)
                    if (p[u] + e < end[u]) {
                        other[u][e] = parts[p[u] + e];
                        value[u][e] = values[p[u] + e];
                    }
#pragma unroll
            for (int u = 0; u < BATCH; ++u)
#pragma unroll
                for (int e = 0; e < FIRST; ++e)
                    if (p[u] + e < end[u]) v[u] -= value[u][e] * q[size_t(other[u][e]) * count + c[u]];
#pragma unroll
            for (int u = 0; u < BATCH; ++u) p[u] += FIRST;
        }
#pragma unroll
        for (int u = 0; u < BATCH; ++u) {
            for (; p[u] < end[u]; ++p[u])
                for (int a = 0; a < m; ++a)
                    v[u] -= values[size_t(p[u]) * m + a] * q[(size_t(parts[p[u]]) * m + a) * count + c[u]];
            if (i[u] < 0) continue;
            const int at = item + u * int(blockDim.x);  // with a place more for each column before
            const T weighted = before == nullptr ? v[u] : times(v[u], before[first + k[u]]);
            s[COLUMNS == 1 ? at : at + at / size] = weighted;
        }
    }
    if (threadIdx.x < COLUMNS) s[threadIdx.x * pitch + size] = T(0);
    wait_for_copies<1>();
    __syncthreads();
    substitute<T, V, LANES, COLUMNS>(one, s, pitch);
    wait_for_copies<0>();
    __syncthreads();
    substitute<T, V, LANES, COLUMNS>(two, s, pitch);
    __syncthreads();
    for (int c = 0; c < live; ++c) {
        T* const of_column = s + c * pitch;
        const T* const given = r + (column + c) * n;
        T* const found = x + (column + c) * (scattered ? n : (long long)starts[gridDim.x]);
        T dot = T(0), own = T(0);
#pragma unroll 4
        for (int k = threadIdx.x; k < size; k += blockDim.x) {
            const T v = after == nullptr ? of_column[k] : times(of_column[k], after[first + k]);
            const int i = rows[first + k];
            found[scattered ? i : first + k] = v;
            if (couplings != nullptr) {
                of_column[k] = v;  // seen by all after the barrier of a sum
                const T b = given[i];
                dot += conj(b) * v;
                own += b;
            }
        }
        if (couplings == nullptr) continue;
        dot = block_sum(dot);
        if (threadIdx.x == 0) dots[size_t(part) * count + column + c] = dot;
        for (int a = 0; a < vectors; ++a) {
            if (Z != nullptr) {
                own = T(0);
                for (int k = threadIdx.x; k < size; k += blockDim.x) {
                    const T z = Z[size_t(first + k) * vectors + a];
                    own += (conjugate ? conj(z) : z) * given[rows[first + k]];
                }
            }
            own = block_sum(own);
            if (threadIdx.x == 0) restricted[(size_t(part) * vectors + a) * count + column + c] = own;
        }
    }
    if (couplings == nullptr) return;
    constexpr int AHEAD = 4;  // entries that a thread asks for at a time
    const int lane = threadIdx.x % 32;
    for (int c = couplings[part] + int(threadIdx.x / 32); c < couplings[part + 1]; c += int(blockDim.x) / 32)
        for (int vector = 0; vector < vectors; ++vector) {
            T sum[COLUMNS];
#pragma unroll
            for (int b = 0; b < COLUMNS; ++b) sum[b] = T(0);
            for (int e = ends[c] + lane; e < ends[c + 1]; e += 32 * AHEAD) {
                int row[AHEAD];
                T value[AHEAD];
#pragma unroll
                for (int u = 0; u < AHEAD; ++u)
                    if (e + 32 * u < ends[c + 1]) {
                        row[u] = coupled[e + 32 * u];
                        value[u] = weights[size_t(e + 32 * u) * vectors + vector];
                    }
#pragma unroll
                for (int u = 0; u < AHEAD; ++u)
                    if (e + 32 * u < ends[c + 1]) {
                        const T v = conjugate ? conj(value[u]) : value[u];
#pragma unroll
                        for (int b = 0; b < COLUMNS; ++b) sum[b] += v * s[b * pitch + row[u]];
                    }
            }
#pragma unroll
            for (int b = 0; b < COLUMNS; ++b) {
                sum[b] = lanes_sum(sum[b]);
                if (lane == 0 && b < live) sums[(size_t(c) * vectors + vector) * count + column + b] = sum[b];
            }
        }
}
