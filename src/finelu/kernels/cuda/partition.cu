// Couplings, matchings and contractions of graphs, and the grid that a pattern shows. Twins:
// kernels/reference/partition.py, name by name. A graph has the neighbours of vertex i at begin[i] <= p < end[i]; lists
// may lie apart. The order inside a list that `contract` or `place_ends` writes may differ from run to run; no result
// depends on it, as weights are integers and every choice is that of the largest of distinct keys. Each element of the
// other results has one writer. No kernel waits.
#include "runtime/finelu.cuh"

using namespace fl;

constexpr double ONE = 1048576.0, LARGEST = 1073741824.0;  // as in kernels/cpu/partition.py
constexpr unsigned long long NONE = 1ull << 32;  // the keys of weights that are not 0 are larger, the others smaller
constexpr unsigned ALIKE = ~0u << 20;            // the bits of a score that are compared before the hash
constexpr int LONG = 256;   // entries of a list, from which on a warp looks at it
constexpr int SLOTS = 256;  // of a table in shared memory; as in partition.py
constexpr int WARPS = 8;    // of a block of `contract`; as in partition.py

template <typename T> __device__ inline double size_of(T a) { return double(fabs(real(a))) + double(fabs(imag(a))); }

// The entries of 32 rows, those from `first` on, which the lanes of a warp take in turn: each in one row, of any
// length.
struct Rows {
    int first;
    long long start;      // of this lane's row; that of the last row's end where there is no such row
    long long begin, end;  // of the entries of all 32 rows

    __device__ Rows(int n, const long long* __restrict__ indptr)
    {
        const int lane = threadIdx.x % 32;
        first = (int(blockIdx.x) * (int(blockDim.x) / 32) + int(threadIdx.x) / 32) * 32;
        start = first < n ? indptr[min(first + lane, n)] : 0;
        begin = __shfl_sync(ALL, start, 0);
        end = first < n ? indptr[min(first + 32, n)] : 0;
    }
    // which of the 32 rows place p lies in; all lanes call it
    __device__ int row_of(long long p) const
    {
        int row = 0;
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
            if (__shfl_sync(ALL, start, row + step) <= p) row += step;
        return row;
    }
};

// |a_ii| of this thread's row, or the largest magnitude of the row where that is 0 or not stored. All lanes of a warp
// call it.
template <typename T>
__device__ inline double row_size(int n, int i, const long long* __restrict__ indptr, const T* __restrict__ data,
                                  const long long* __restrict__ diag)
{
    double size = i < n && diag[i] >= 0 ? size_of(data[diag[i]]) : 0.0;
    for (unsigned rows = __ballot_sync(ALL, i < n && size == 0.0); rows; rows &= rows - 1) {
        const int lane = __ffs(rows) - 1, row = __shfl_sync(ALL, i, lane);
        double largest = 0.0;
        for (long long p = indptr[row] + threadIdx.x % 32; p < indptr[row + 1]; p += 32) largest = fmax(largest, size_of(data[p]));
        largest = lanes_max(largest);
        if (threadIdx.x % 32 == lane) size = largest;
    }
    return size;
}

// scale[i] = 1 / sqrt(|a_ii|), see row_size; 0 for a row of zeros.
template <typename T>
__global__ void scales(int n, const long long* __restrict__ indptr, const T* __restrict__ data, const long long* __restrict__ diag,
                       double* scale)
{
    const int i = int(own_item());
    const double size = row_size(n, i, indptr, data, diag);
    if (i < n) scale[i] = size > 0.0 ? 1.0 / sqrt(size) : 0.0;
}

// weights[p], and unpaired[0] += the entries (i, j) without an entry (j, i); a warp for 32 rows.
template <typename T>
__global__ void couplings(int n, const long long* __restrict__ indptr, const int* __restrict__ indices, const T* __restrict__ data,
                          const double* __restrict__ scale, long long* weights, unsigned long long* unpaired)
{
    const Rows rows(n, indptr);
    if (rows.first >= n) return;
    unsigned alone = 0;
    for (long long base = rows.begin; base < rows.end; base += 32) {
        const long long p = base + threadIdx.x % 32;
        const int i = rows.first + rows.row_of(p);
        if (p >= rows.end) continue;  // of the last round
        const int j = indices[p];
        long long w = 0;
        if (j != i) {
            double size = size_of(data[p]);
            const long long mirror = find(indices, indptr[j], indptr[j + 1], i);
            if (mirror >= 0) size = __dadd_rn(size, size_of(data[mirror])); else ++alone;
            const double ratio = __dmul_rn(__dmul_rn(0.5 * size, __dmul_rn(scale[i], scale[j])), ONE);
            if (size != 0.0) w = ratio < LARGEST ? (long long)__dadd_rn(ratio, 0.5) : (long long)LARGEST;
        }
        weights[p] = w;
    }
    alone = __reduce_add_sync(ALL, alone);
    if (alone && threadIdx.x % 32 == 0) atomicAdd(unpaired, (unsigned long long)alone);
}

// count[i] (0 before) = the entries in row i and in column i, those of the diagonal twice.
__global__ void count_ends(int n, const long long* __restrict__ indptr, const int* __restrict__ indices, unsigned long long* count)
{
    const Rows rows(n, indptr);
    if (rows.first >= n) return;
    const int own = rows.first + int(threadIdx.x) % 32;
    if (own < n) atomicAdd(count + own, (unsigned long long)(indptr[own + 1] - rows.start));
    for (long long p = rows.begin + threadIdx.x % 32; p < rows.end; p += 32) atomicAdd(count + indices[p], 1ull);
}

// Each entry at both of its ends; end[i] = begin[i] before, and the end of the list of i after.
__global__ void place_ends(int n, const long long* __restrict__ indptr, const int* __restrict__ indices,
                           const long long* __restrict__ weights, unsigned long long* end, int* neighbours, long long* both)
{
    const Rows rows(n, indptr);
    if (rows.first >= n) return;
    for (long long base = rows.begin; base < rows.end; base += 32) {
        const long long p = base + threadIdx.x % 32;
        const int i = rows.first + rows.row_of(p);
        if (p >= rows.end) continue;
        const int j = indices[p];
        const unsigned long long here = atomicAdd(end + i, 1ull), there = atomicAdd(end + j, 1ull);
        neighbours[here] = j;
        both[here] = weights[p];
        neighbours[there] = i;
        both[there] = weights[p];
    }
}

// a hash of the pair {i, j}
__device__ inline unsigned mixed(int i, int j)
{
    unsigned h = unsigned(min(i, j)) * 0x9E3779B1u ^ unsigned(max(i, j));
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    return h ^ h >> 16;
}

struct Best {
    unsigned long long key;
    int vertex;
    __device__ void take(unsigned long long other, int j)
    {
        if (other > key || (other == key && j < vertex)) {
            key = other;
            vertex = j;
        }
    }
    template <int LANES> __device__ void reduce()
    {
#pragma unroll
        for (int d = LANES / 2; d > 0; d /= 2) {
            const unsigned long long other = __shfl_xor_sync(ALL, key, d);
            take(other, __shfl_xor_sync(ALL, vertex, d));
        }
    }
};

// the neighbour at place p, if i may propose to it
__device__ inline void consider(Best& best, int i, float own, long long room, long long p, const int* __restrict__ neighbours,
                                const long long* __restrict__ weights, const int* __restrict__ sizes, const int* __restrict__ before)
{
    const int j = neighbours[p], size = sizes[j];
    const float score = __fdiv_rn(__ll2float_rn(weights[p]), __fmul_rn(own, __int2float_rn(size)));
    const unsigned long long key = (unsigned long long)(__float_as_uint(score) & ALIKE) << 32 | mixed(i, j);
    if (size > room || key < best.key) return;
    const int t = before[j];
    if (t == j || before[t] != j) best.take(key, j);
}

// wish[i], LANES threads a vertex, a warp where its list is long. `before` is not written to.
template <int LANES>
__global__ void propose(int n, const long long* __restrict__ begin, const long long* __restrict__ end,
                        const int* __restrict__ neighbours, const long long* __restrict__ weights, const int* __restrict__ sizes, long long most,
                        const int* __restrict__ before, int* wish)
{
    const int i = own_row<int, LANES>(), lane = threadIdx.x % LANES;
    bool searching = false;
    Best best = {NONE, i};
    long long first = 0, stop = 0, room = 0;
    float own = 0.0f;
    if (i < n) {
        const int t = before[i], u = before[t];
        if (t != i && (u == i || u == t || before[u] != t)) {
            best.vertex = t;
        } else {
            searching = true;
            first = begin[i];
            stop = end[i];
            room = most - sizes[i];
            own = __int2float_rn(sizes[i]);
        }
    }
    const bool shared_out = LANES < 32 && stop - first > LONG;
    if (!shared_out)
        for (long long p = first + lane; p < stop; p += LANES) consider(best, i, own, room, p, neighbours, weights, sizes, before);
    best.reduce<LANES>();
    for (unsigned lists = __ballot_sync(ALL, shared_out && lane == 0); lists; lists &= lists - 1) {
        const int from = __ffs(lists) - 1, vertex = __shfl_sync(ALL, i, from);
        const long long at = __shfl_sync(ALL, first, from), last = __shfl_sync(ALL, stop, from);
        const long long left = __shfl_sync(ALL, room, from);
        const float size = __shfl_sync(ALL, own, from);
        Best found = {NONE, vertex};
        for (long long p = at + threadIdx.x % 32; p < last; p += 32)
            consider(found, vertex, size, left, p, neighbours, weights, sizes, before);
        found.reduce<32>();
        if (vertex == i) best = found;
    }
    if (i < n && lane == 0) wish[i] = best.vertex;
}

// the vertex that i is matched with; i itself if there is none
__device__ inline int partner(int i, const int* __restrict__ wish)
{
    const int j = wish[i];
    return wish[j] == i ? j : i;
}

// marks (2 n): whether i is the lower vertex of its pair, or alone; and then how many entries the two have. counts[2]
// (0 before) = the most of a pair that does not fit in shared memory.
__global__ void pairs(int n, const long long* __restrict__ begin, const long long* __restrict__ end, const int* __restrict__ wish,
                      long long* marks, unsigned long long* counts)
{
    const int i = int(own_item());
    unsigned entries = 0;
    if (i < n) {
        const int j = partner(i, wish);
        if (j >= i) entries = unsigned(end[i] - begin[i] + (j > i ? end[j] - begin[j] : 0));
        marks[i] = j >= i;
        marks[size_t(n) + i] = entries;
    }
    entries = __reduce_max_sync(ALL, entries);
    if (threadIdx.x % 32 == 0 && 2 * entries > SLOTS) atomicMax(counts + 2, (unsigned long long)entries);
}

// Coarse vertices in the order of their lower vertices. until (2 n): the inclusive sums of marks. counts[0]: their
// number. lower[c]: the lower vertex; starts[c]: where the entries of c may begin.
__global__ void enumerate(int n, const long long* __restrict__ begin, const long long* __restrict__ end, const int* __restrict__ sizes,
                          const int* __restrict__ wish, const long long* __restrict__ until, int* owner, int* lower, int* totals,
                          long long* starts, long long* counts)
{
    const int i = int(own_item());
    if (i >= n) return;
    const int j = partner(i, wish), c = int(until[min(i, j)]) - 1;
    owner[i] = c;
    if (i == n - 1) {
        counts[0] = until[n - 1];
        counts[1] = until[2 * size_t(n) - 1] - until[n - 1];
    }
    if (j < i) return;
    lower[c] = i;
    totals[c] = sizes[i] + (j > i ? sizes[j] : 0);
    starts[c] = i == 0 ? 0 : until[size_t(n) + i - 1] - until[n - 1];
}

// The lists of coarse vertices, a warp each, by a hash table of twice as many slots as the two lists have entries: in
// shared memory where it fits, else at 2 starts[c] of keys and values, which none other than this warp touches. So a
// free slot is always found. Launch: WARPS warps a block, gridDim.x * WARPS >= count.
__global__ void __launch_bounds__(32 * WARPS) contract(
    int count, const long long* __restrict__ begin, const long long* __restrict__ end, const int* __restrict__ neighbours,
    const long long* __restrict__ weights, const int* __restrict__ wish, long long most, const int* __restrict__ owner,
    const int* __restrict__ lower, const int* __restrict__ totals, const long long* __restrict__ starts, int* keys,
    unsigned long long* values, long long* stops, int* adjacent, long long* sums)
{
    __shared__ int own_keys[WARPS][SLOTS];
    __shared__ unsigned long long own_values[WARPS][SLOTS];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int c = int(blockIdx.x) * WARPS + warp;
    if (c >= count) return;
    const int i = lower[c], j = partner(i, wish);
    const long long room = most - totals[c], start = starts[c], first = begin[i], second = begin[j];
    const unsigned half = unsigned(end[i] - first), entries = half + (j > i ? unsigned(end[j] - second) : 0u), slots = 2 * entries;
    if (slots <= SLOTS) {
        keys = own_keys[warp];
        values = own_values[warp];
    } else {
        keys += 2 * start;
        values += 2 * start;
    }
    for (unsigned s = lane; s < slots; s += 32) {
        keys[s] = -1;
        values[s] = 0;
    }
    __syncwarp();
    for (unsigned e = lane; e < entries; e += 32) {
        const long long p = e < half ? first + e : second + (e - half);
        const long long w = weights[p];
        const int d = owner[neighbours[p]];
        if (w == 0 || d == c || totals[d] > room) continue;
        unsigned s = __umulhi(unsigned(d) * 0x9E3779B1u, slots);
        while (true) {
            const int there = atomicCAS(keys + s, -1, d);
            if (there == -1 || there == d) break;
            s = s + 1 == slots ? 0 : s + 1;
        }
        atomicAdd(values + s, (unsigned long long)w);
    }
    __syncwarp();
    long long found = start;
    for (unsigned base = 0; base < slots; base += 32) {
        const unsigned s = base + lane;
        const int d = s < slots ? keys[s] : -1;
        const unsigned there = __ballot_sync(ALL, d >= 0);
        if (d >= 0) {
            const long long q = found + votes_before(there);
            adjacent[q] = d;
            sums[q] = (long long)values[s];
        }
        found += __popc(there);
    }
    if (lane == 0) stops[c] = found;
}

// found (7): sums of the couplings along x, y and z, how many entries they are, and the first row with an entry that
// does not fit the grid (all bits set if there is none), 0 and all bits before. Rows after such a one may be left out.
template <typename T>
__global__ void grid_couplings(int n, const long long* __restrict__ indptr, const int* __restrict__ indices, const T* __restrict__ data,
                               const long long* __restrict__ diag, int nx, int ny, int hole, unsigned long long* found)
{
    __shared__ unsigned long long block[6];
    if (threadIdx.x < 6) block[threadIdx.x] = 0;
    __syncthreads();
    const Rows rows(n, indptr);
    const int own = rows.first + int(threadIdx.x) % 32, own_node = own + (own >= hole), own_x = own_node % nx, own_y = own_node / nx % ny;
    const double size = row_size(n, own, indptr, data, diag), own_scale = size > 0.0 ? ONE / size : 0.0;
    const long long plane = (long long)nx * ny;
    unsigned long long sums[3] = {0, 0, 0};
    unsigned counts[3] = {0, 0, 0};
    bool fits = true;
    for (long long base = rows.begin; base < rows.end; base += 32) {
        const long long p = base + threadIdx.x % 32;
        const int row = rows.row_of(p);
        const int x = __shfl_sync(ALL, own_x, row), y = __shfl_sync(ALL, own_y, row);
        const double scale = __shfl_sync(ALL, own_scale, row);
        if (p >= rows.end) continue;
        const int i = rows.first + row, j = indices[p];
        if (j == i) continue;
        long long r = (long long)j + (j >= hole) - i - (i >= hole);
        int dy = 0, dz = 0;
        if (r > plane / 2) r -= plane, dz = 1;
        else if (r < -(plane / 2)) r += plane, dz = -1;
        if (r > nx / 2) r -= nx, dy = 1;
        else if (r < -(nx / 2)) r += nx, dy = -1;
        if (x + r >= nx) r -= nx, ++dy;
        else if (x + r < 0) r += nx, --dy;
        if (y + dy >= ny) dy -= ny, ++dz;
        else if (y + dy < 0) dy += ny, --dz;
        if (r > 1 || r < -1 || dy > 1 || dy < -1 || dz > 1 || dz < -1) {
            if (fits) atomicMin(found + 6, (unsigned long long)(rows.first + row));
            fits = false;
            continue;
        }
        const double ratio = __dmul_rn(size_of(data[p]), scale);
        const unsigned long long w = ratio < ONE ? (unsigned long long)__dadd_rn(ratio, 0.5) : (unsigned long long)ONE;
        if (r != 0) sums[0] += w, ++counts[0];
        if (dy != 0) sums[1] += w, ++counts[1];
        if (dz != 0) sums[2] += w, ++counts[2];
    }
#pragma unroll
    for (int k = 0; k < 3; ++k) {
        sums[k] = lanes_sum(sums[k]);
        const unsigned all = __reduce_add_sync(ALL, counts[k]);
        if (threadIdx.x % 32 == 0 && all) {
            atomicAdd(block + k, sums[k]);
            atomicAdd(block + 3 + k, (unsigned long long)all);
        }
    }
    __syncthreads();
    if (threadIdx.x < 6 && block[threadIdx.x]) atomicAdd(found + threadIdx.x, block[threadIdx.x]);
}

// parts (n): the brick of the node of each row, of a grid that is cut into kx, ky, kz along its directions.
__global__ void bricks(int n, int nx, int ny, int nz, int kx, int ky, int kz, int hole, int* parts)
{
    const int row = int(own_item()), node = row + (row >= hole);
    if (row >= n) return;
    const long long i = node % nx, j = node / nx % ny, k = node / (nx * ny);
    parts[row] = int(i * kx / nx + kx * (j * ky / ny + ky * (k * kz / nz)));
}
