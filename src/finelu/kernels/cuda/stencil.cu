// Block ILU(0) of 7-point block matrices on an I x J x K grid (Luo, Edwards, Luo, Mueller: "A fine-grained block ILU
// scheme on regular structures for GPGPUs"): factorization, solve and residual, each one launch.
// Twins: kernels/reference/stencil.py. Blocks of up to 32 are worked by n^2 threads (by_cells), up to 128 in tiles
// (by_tiles).
//
// blocks (7, cells, n, n): alpha, beta, gamma, delta, epsilon, zeta, eta of cell c = (i J + j) K + k; blocks that reach
// out of the grid are never read, except by stencil_residual where the grid is periodic. d (cells, n, n) holds the
// INVERSES of the factorized diagonal blocks. M = (D + E) D^-1 (D + F), E = (alpha, beta, gamma), F = (epsilon, zeta,
// eta).
//
// Order. Cells of a hyperplane p = i + j + k do not depend on each other. `order` lists the cells by hyperplane, each
// hyperplane filled up with -1 to a multiple of CELLS: a thread block takes CELLS places of one hyperplane and n^2
// threads a cell (Algorithm 8), in lockstep, and waits for other blocks only, never for itself.
// Progress: blocks take their places by ticket(), so each waits for blocks that have begun; every value is its own
// ready flag (see finelu.cuh): no fence, no second array, no launch a hyperplane.
//
// Layout. The blocks of each kind lie in natural order, each contiguous and read by the n^2 threads of its cell,
// whatever the order in which cells are visited; at n = 6 in float64 it is 288 bytes, 9 whole sectors of 32. Memory
// gives a little less by wavefronts than in natural order; blocks in the order of wavefronts could save that, and would
// need a second copy of A. Where a block is smaller than a sector (n = 1, and float32 at n = 2) the rest of the sector
// belongs to the next hyperplanes, which read it a few microseconds later from L2.
//
// Bytes a cell, w = bytes of a value, and the bound in float64 at 65^3 and n = 6 (274625 cells, 193 hyperplanes) with 4
// TB/s:
//   factorization  8 n^2 w       (7 blocks of A once, d once; d is read back 3 times from L2)  0.63 GB  0.16 ms
//                  + n^2 w       (d made pending)                                               0.08 GB  0.02 ms
//   solve          8 n^2 w + O(n) (6 blocks of A once, d twice)                                 0.68 GB  0.17 ms
//   residual       7 n^2 w + 3 n w                                                              0.59 GB  0.15 ms
// Latency: a hyperplane costs a round trip to L2 and the arithmetic of one cell. Values that do not depend on other
// cells are requested before the wait, so bytes and latency overlap. Beyond 65^3 the time is that of a cell over the
// number of cells at work at once, which barriers and instructions make long: float64 with n = 5 to 8 has kernels
// without barriers in stencil_warps.cu.
#include "runtime/finelu.cuh"
#include "stencil.cuh"
#include "blocks.cuh"

using namespace fl;

enum Trans { PLAIN, TRANSPOSED, ADJOINT };

// values[place], or 0 where there is nothing. The load is made in any case (of place 0 then), since a branch around
// each load would make the next one wait for it.
template <typename T> __device__ inline T load_or_zero(const T* __restrict__ values, bool there, size_t place)
{
    const T value = values[there ? place : 0];
    return there ? value : T(0);
}

// *to = *from, or 0 where there is nothing, without a register in between, so that all copies of a thread are under way
// at once; `from` is a valid address in any case. They have come after wait_for_copies, for other threads after a
// barrier too.
template <typename T> __device__ inline void copy_to_shared(T* to, const T* from, bool there)
{
    const int bytes = there ? int(sizeof(T)) : 0;
    asm volatile("{ .reg .u64 place; cvta.to.shared.u64 place, %0; cp.async.ca.shared.global [place], [%1], %2, %3; }"
                 ::"l"(to), "l"(from), "n"(int(sizeof(T))), "r"(bytes) : "memory");
}

// The threads of a cell for wait_for_turn and invert_in_place of blocks.cuh: thread t owns element (u, v) of a block of
// N, and all cells of a thread block go on together.
struct CellTeam {
    int t, u, v;
    __device__ int row(int) const { return u; }
    __device__ bool owns(int) const { return true; }
    __device__ void sync() const { __syncthreads(); }
};

// value[a] = pending where it is wanted, else 0
template <int COUNT, typename T> __device__ inline void want(const bool (&wanted)[COUNT], T (&value)[COUNT])
{
#pragma unroll
    for (int a = 0; a < COUNT; ++a) {
        value[a] = T(0);
        if (wanted[a]) make_pending(value[a]);
    }
}

// value[a] = *from[a] once it is there, or 0 where nothing is wanted.
template <int COUNT, typename T>
__device__ inline void await_all(const T* const (&from)[COUNT], const bool (&wanted)[COUNT], T (&value)[COUNT])
{
    want(wanted, value);
    await_each(value, [&](int a) { return peek(from[a]); });
}

// an element of the product of two row-major N x N blocks: its row of one, its column of the other
template <int N, typename T> __device__ inline T element_of_product(const T* row, const T* column)
{
    T sum = row[0] * column[0];
#pragma unroll(N <= 8 ? N : 4)
    for (int m = 1; m < N; ++m) sum += row[m] * column[m * N];
    return sum;
}

// a sum of N, four at a time: a hyperplane waits for the latency of its additions, one after the other
template <int N, typename T> __device__ inline T sum_of(const T* terms)
{
    T sum[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) sum[m] = m < N ? terms[m] : T(0);
#pragma unroll
    for (int m = 4; m < N; ++m) sum[m % 4] += terms[m];
    return N == 1 ? sum[0] : (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// Rows of N numbers in shared memory, of which a warp sums one a thread: the distance from one to the next. Rows of an
// odd number of words (of 16 bytes, 8 or 4: as wide as the rows let loads be) begin in different banks; those of N = 32
// in float64 would all begin in the same. kernels/cuda/stencil.py:row_stride is the twin.
constexpr int PADDED_FROM = 9;  // n, from which all threads of a warp belong to a cell
// n, from which a sum that all threads of a cell need is taken by one thread for all, and one barrier more is faster
// than N threads that take the same. Rows are then read so seldom that only those that all begin in one bank are set
// apart: at n = 24 in float64 a solve takes 31 ns a cell without, 51 with (H100); at n = 32 81 without, 67 with, 205
// before both.
constexpr int ONCE_FROM = 16;
template <typename T, int N> constexpr int ROW_STRIDE =
    N + (N >= PADDED_FROM && N * sizeof(T) % (N < ONCE_FROM ? 32 : 128) == 0 ? int(16 / sizeof(T)) : 0);

// order[start[p] + q] = the q-th cell of hyperplane p, by rising i, then j: a thread a cell. diagonals[s] is the number
// of (j, k) with j + k < s. order is set to 0xff before the launch, so that the places left over say -1.
__global__ void wavefront_order(int I, int J, int K, const int* __restrict__ start, const int* __restrict__ diagonals,
                                int* order)
{
    const unsigned place = blockIdx.x * blockDim.x + threadIdx.x;
    if (place >= unsigned(I * J * K)) return;
    const int c = int(place);
    const Cell cell(c, I, J, K);
    const int k = cell.at[0], j = cell.at[1], i = cell.at[2], s = j + k, p = s + i;
    const int top = p < J + K - 2 ? p : J + K - 2;           // j + k of the first i that has cells in this hyperplane
    const int before = diagonals[top + 1] - diagonals[s + 1];  // cells of this hyperplane with a smaller i
    order[start[p] + before + j - (s < K ? 0 : s - K + 1)] = c;
}

// Algorithm 9 without a launch a hyperplane: d = (delta - alpha d_{k-1} eta_{k-1} - beta d_{j-1} zeta_{j-1} - gamma
// d_{i-1} epsilon_{i-1})^-1. Thread (u, v) owns that element of the cell from the products to the inverse. d, bad[0]
// and counter are pending (0xff) before the launch. bad[0] receives the smallest cell with a pivot that is zero or
// without a finite reciprocal, or a value that is not finite; a cell depends on smaller cells only, so that one is
// never the consequence of another. Elimination goes on with NaN so that no cell waits for ever. The result is the same
// in every run. Launch: gridDim.x = places of order / CELLS, blockDim.x = CELLS n^2, shared memory CELLS (9 n^2 + 4 n)
// sizeof(T). PRELOAD: the own row of `lower` is in registers before the cell's turn. That is faster as long as all
// cells of a hyperplane fit on the device with these registers.
template <typename T, int N, int CELLS, bool PIVOTING, bool PRELOAD>
__global__ void __launch_bounds__(CELLS * N * N)
factor_by_cells(int I, int J, int K, const int* __restrict__ order, const T* __restrict__ blocks, T* d, unsigned* bad,
                unsigned* counter)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    constexpr int NN = N * N;
    const size_t cells = size_t(I) * J * K;
    const int slot = threadIdx.x / NN, e = threadIdx.x % NN, u = e / N, v = e % N;
    T* const lower = reinterpret_cast<T*>(shared_bytes) + slot * (9 * NN + 4 * N);
    T* const upper = lower + 3 * NN;
    T* const product = upper + 3 * NN;
    T* const cross = product + 3 * NN;

    const Cell cell(order[size_t(ticket(counter)) * CELLS + slot], I, J, K);
    const int c = cell.c;
    const T* from[AXES];
    bool wanted[AXES];
    T before[AXES];
#pragma unroll
    for (int a = 0; a < AXES; ++a) {
        const int q = cell.neighbour(a, -1);
        wanted[a] = q >= 0;
        from[a] = d + (q < 0 ? 0 : size_t(q)) * NN + e;
        copy_to_shared(lower + a * NN + e, q < 0 ? blocks : blocks + (a * cells + c) * NN + e, q >= 0);
        copy_to_shared(upper + a * NN + e, q < 0 ? blocks : blocks + ((6 - a) * cells + q) * NN + e, q >= 0);
    }
    T mine[1] = {load_or_zero(blocks, c >= 0, (DELTA * cells + c) * NN + e)};
    if (c < 0) mine[0] = T(u == v);  // places left over invert the identity
    const CellTeam team{e, u, v};
    const int early = cell.ancestor(-1, FAR);
    wait_for_turn(team, early >= 0, d + size_t(early < 0 ? 0 : early) * NN);
    T left[AXES][PRELOAD ? N : 1];  // the own row of lower
    if (PRELOAD) {
        wait_for_copies();
        __syncthreads();
#pragma unroll
        for (int a = 0; a < AXES; ++a)
#pragma unroll
            for (int m = 0; m < N; ++m) left[a][m] = lower[a * NN + u * N + m];
    }
    await_all(from, wanted, before);
#pragma unroll
    for (int a = 0; a < AXES; ++a) product[a * NN + e] = before[a];
    if (!PRELOAD) wait_for_copies();
    __syncthreads();
#pragma unroll
    for (int a = 0; a < AXES; ++a)
        before[a] = element_of_product<N>(PRELOAD ? left[a] : lower + a * NN + u * N, product + a * NN + v);
    if (!PRELOAD) __syncthreads();  // else rows of lower are in registers by now
#pragma unroll
    for (int a = 0; a < AXES; ++a) lower[a * NN + e] = before[a];
    __syncthreads();
#pragma unroll
    for (int a = 0; a < AXES; ++a) before[a] = element_of_product<N>(lower + a * NN + u * N, upper + a * NN + v);
    mine[0] -= before[0] + before[1] + before[2];

    int to_u[1], to_v;  // where this thread's element belongs
    const bool good = invert_in_place<PIVOTING, N, N <= 8 ? N : 1>(team, mine, cross, to_u, to_v);
    if (c < 0) return;
    post(d + size_t(c) * NN + to_u[0] * N + to_v, mine[0]);
    if (!good || !is_finite(mine[0])) atomicMin(bad, unsigned(c));
}

// M x = b, M^T x = b or M^H x = b (TRANS): Algorithm 10, both sweeps in one launch, the blocks of the backward sweep
// after those of the forward sweep in the order of tickets. Thread (u, v) owns one element of each block, and loads all
// of them before it waits. M^T = (D + F)^T D^-T (D + E)^T has the same sweeps with the blocks of the neighbour,
// transposed: the threads of a cell then swap u and v, and memory is read in the same order.
// y (cells n) is scratch; y, x and counter are pending before the launch; b, y and x do not overlap. Sums are taken in
// a fixed order. Launch: gridDim.x = 2 n_blocks, n_blocks = places of order / CELLS, blockDim.x = CELLS n^2, shared
// memory CELLS 2 n ROW_STRIDE sizeof(T).
template <typename T, int N, int CELLS, int TRANS>
__global__ void __launch_bounds__(CELLS * N * N)
solve_by_cells(int I, int J, int K, int n_blocks, const int* __restrict__ order, const T* __restrict__ blocks,
               const T* __restrict__ d, const T* __restrict__ b, T* y, T* x, unsigned* counter)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    constexpr int NN = N * N, STRIDE = ROW_STRIDE<T, N>;
    const size_t cells = size_t(I) * J * K;
    const int slot = threadIdx.x / NN, e = threadIdx.x % NN;
    const int u = TRANS == PLAIN ? e / N : e % N, v = TRANS == PLAIN ? e % N : e / N;
    T* const first = reinterpret_cast<T*>(shared_bytes) + slot * 2 * N * STRIDE;
    T* const second = first + N * STRIDE;
    const auto element = [](T a) { return TRANS == ADJOINT ? conj(a) : a; };

    const int t = int(ticket(counter));
    const bool backward = t >= n_blocks;
    const int step = backward ? 1 : -1;
    const Cell cell(order[size_t(backward ? 2 * n_blocks - 1 - t : t) * CELLS + slot], I, J, K);
    const int c = cell.c;
    T* const out = backward ? x : y;
    const T* from[AXES + 1];
    bool wanted[AXES + 1];
    T value[AXES + 1], coefficient[AXES];
#pragma unroll
    for (int a = 0; a < AXES; ++a) {
        const int q = cell.neighbour(a, step);
        const int kind = backward == (TRANS == PLAIN) ? 6 - a : a;
        wanted[a] = q >= 0;
        from[a] = out + (q < 0 ? 0 : size_t(q)) * N + v;
        coefficient[a] = element(load_or_zero(blocks, q >= 0, (kind * cells + (TRANS == PLAIN ? c : q)) * NN + e));
    }
    wanted[AXES] = backward && c >= 0;
    from[AXES] = y + (c < 0 ? 0 : size_t(c)) * N + u;
    const T diagonal = element(load_or_zero(d, c >= 0, size_t(c) * NN + e));
    const T rhs = load_or_zero(b, c >= 0 && !backward, size_t(c) * N + v);
    const int early = cell.ancestor(step, FAR);
    wait_for_turn(CellTeam{e, u, v}, early >= 0, out + size_t(early < 0 ? 0 : early) * N);
    await_all(from, wanted, value);
    first[u * STRIDE + v] = coefficient[0] * value[0] + coefficient[1] * value[1] + coefficient[2] * value[2];
    __syncthreads();
    T z;  // z_v of Algorithm 10
    if (N < ONCE_FROM) z = rhs - sum_of<N>(first + v * STRIDE);  // by every thread that needs it: no barrier more
    else {
        if (u == 0) first[v * STRIDE] = rhs - sum_of<N>(first + v * STRIDE);  // no other thread reads this row
        __syncthreads();
        z = first[v * STRIDE];
    }
    second[u * STRIDE + v] = diagonal * z;
    __syncthreads();
    if (c >= 0 && v == 0) post(out + size_t(c) * N + u, value[AXES] + sum_of<N>(second + u * STRIDE));
}

// Algorithm 7, an element a thread: out = b - A x, or A x if b is null. Bits 0, 1, 2 of `periodic` join the ends of k,
// j, i. Natural order of the cells: the loads of a block are 7 contiguous runs, each block of A once; no dependencies.
// out may be b, but not x. Launch: gridDim.x * CELLS >= cells, blockDim.x = CELLS n^2, shared memory CELLS n^2
// sizeof(T).
template <typename T, int N, int CELLS>
__global__ void __launch_bounds__(CELLS * N * N)
stencil_residual(int I, int J, int K, int periodic, const T* __restrict__ blocks, const T* __restrict__ x, const T* b, T* out)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    T* const terms = reinterpret_cast<T*>(shared_bytes);
    constexpr int NN = N * N;
    const size_t cells = size_t(I) * J * K, first = size_t(blockIdx.x) * CELLS;
    const int slot = threadIdx.x / NN, e = threadIdx.x % NN, v = e % N;
    T sum = T(0);
    if (first + slot < cells) {
        const Cell cell(int(first) + slot, I, J, K);
        T a[KINDS], value[KINDS];
#pragma unroll
        for (int kind = 0; kind < KINDS; ++kind) {
            const int q = cell.stencil(kind, periodic);
            a[kind] = load_or_zero(blocks, q >= 0, (kind * cells + cell.c) * NN + e);
            value[kind] = load_or_zero(x, q >= 0, size_t(q) * N + v);
        }
#pragma unroll
        for (int kind = 0; kind < KINDS; ++kind) sum += a[kind] * value[kind];
    }
    terms[threadIdx.x] = sum;
    __syncthreads();
    const size_t row = first * N + threadIdx.x;
    if (threadIdx.x >= CELLS * N || row >= cells * N) return;
    sum = sum_of<N>(terms + threadIdx.x * N);
    out[row] = b == nullptr ? sum : b[row] - sum;
}

// Blocks of n > 32, in tiles. A thread block takes one cell with edge^2 threads, edge = ceil(n / TILES) <= 32, and its
// thread (s, f) owns the TILES^2 elements (s + i edge, f + j edge): those of a tile lie next to each other in memory,
// and a product reads 2 TILES numbers of shared memory for TILES^2 multiply-adds. Where a thread's registers do not
// hold them (n > 96, and n > 64 with numbers of 16 bytes) the compiler keeps a part in local memory. Elements beyond n
// are zero, or unused.

// into += left right: left holds `edge` columns of a block by rows, right the rows of another that belong to them, each
// of `width` elements.
template <int TILES, typename T>
__device__ inline void multiply_add(T (&into)[TILES][TILES], const T* left, const T* right, int edge, int width, int s, int f)
{
#pragma unroll(TILES > 2 ? 1 : 4)  // the registers are needed for the elements
    for (int m = 0; m < edge; ++m) {
        T l[TILES], r[TILES];
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            l[i] = left[(s + i * edge) * edge + m];
            r[i] = right[m * width + f + i * edge];
        }
#pragma unroll
        for (int i = 0; i < TILES; ++i)
#pragma unroll
            for (int j = 0; j < TILES; ++j) into[i][j] += l[i] * r[j];
    }
}

// The row of the largest magnitude of column[0..n) that is not used yet, the first of equals; NaN counts as 0. One
// warp; bit w of `used` stands for row threadIdx.x + 32 w and is kept by that thread. All of its threads get the row.
template <typename T> __device__ inline int pivot_row(const T* column, int n, unsigned& used)
{
    using R = Real<T>;
    const int lane = threadIdx.x;
    R largest = R(-1);
    int q = n;
    for (int w = 0; lane + 32 * w < n; ++w) {
        if (used >> w & 1u) continue;
        const R size = one_norm(column[lane + 32 * w]);
        if (size > largest || (q == n && !(size >= R(0)))) {
            q = lane + 32 * w;
            largest = size >= R(0) ? size : R(0);
        }
    }
    for (int mask = 16; mask > 0; mask /= 2) {
        const R other = shuffle_xor(largest, mask);
        const int row = shuffle_xor(q, mask);
        if (other > largest || (other == largest && row < q)) {
            largest = other;
            q = row;
        }
    }
    if (q % 32 == lane) used |= 1u << q / 32;
    return q;
}

// factor_by_cells for n > 32. The products alpha d_{k-1} and so on are made `edge` columns of the left block and rows
// of the right one after the other. Gauss-Jordan is the same, with a third barrier a step where the first warp looks
// for the pivot. Launch: gridDim.x = cells, blockDim.x = edge^2, shared memory width (2 edge + 4) sizeof(T), width =
// TILES edge.
template <typename T, int TILES, bool PIVOTING>
__global__ void __launch_bounds__(1024, 1)
factor_by_tiles(int I, int J, int K, int n, const int* __restrict__ order, const T* __restrict__ blocks, T* d, unsigned* bad,
                unsigned* counter)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    __shared__ int pivot;
    const int edge = (n + TILES - 1) / TILES, width = TILES * edge, s = threadIdx.x / edge, f = threadIdx.x % edge;
    const size_t cells = size_t(I) * J * K, nn = size_t(n) * n;
    T* const left = reinterpret_cast<T*>(shared_bytes);
    T* const right = left + width * edge;
    T* const cross = right + width * edge;

    const Cell cell(order[ticket(counter)], I, J, K);
    const int c = cell.c;
    T mine[TILES][TILES];
    const T* const delta = blocks + (DELTA * cells + c) * nn;
#pragma unroll
    for (int i = 0; i < TILES; ++i)
#pragma unroll
        for (int j = 0; j < TILES; ++j) {
            const int u = s + i * edge, v = f + j * edge;
            mine[i][j] = load_or_zero(delta, u < n && v < n, size_t(u) * n + v);
        }
#pragma unroll 1
    for (int a = 0; a < AXES; ++a) {
        const int q = cell.neighbour(a, -1);
        if (q < 0) continue;
        const T* const lower = blocks + (a * cells + c) * nn;
        const T* const upper = blocks + ((6 - a) * cells + q) * nn;
        const T* const before = d + q * nn;
        T product[TILES][TILES];
#pragma unroll
        for (int i = 0; i < TILES; ++i)
#pragma unroll
            for (int j = 0; j < TILES; ++j) product[i][j] = T(0);
        wait_for_turn(CellTeam{int(threadIdx.x), s, f}, true, before);  // the others spare the L2 cache until then
#pragma unroll 1
        for (int k = 0; k < width; k += edge) {
#pragma unroll
            for (int i = 0; i < TILES; ++i) {
                const int u = s + i * edge, v = f + i * edge;
                left[u * edge + f] = load_or_zero(lower, u < n && k + f < n, size_t(u) * n + k + f);
                right[s * width + v] = k + s < n && v < n ? await(before + size_t(k + s) * n + v) : T(0);
            }
            __syncthreads();
            multiply_add(product, left, right, edge, width, s, f);
            __syncthreads();
        }
#pragma unroll
        for (int k = 0; k < TILES; ++k) {
#pragma unroll
            for (int i = 0; i < TILES; ++i) {
                const int u = k * edge + s, v = f + i * edge;
                left[(s + i * edge) * edge + f] = -product[i][k];
                right[s * width + v] = load_or_zero(upper, u < n && v < n, size_t(u) * n + v);
            }
            __syncthreads();
            multiply_add(mine, left, right, edge, width, s, f);
            __syncthreads();
        }
    }

    bool good = true;
    unsigned used = 0;
    int to_u[TILES], to_v[TILES];  // where this thread's elements belong
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
        to_u[i] = s + i * edge;
        to_v[i] = f + i * edge;
    }
    int exponent[TILES];  // PIVOTING: of the largest entry of each own row
    if (PIVOTING) {
        int* const largest = reinterpret_cast<int*>(cross);
        for (int u = threadIdx.x; u < width; u += blockDim.x) largest[u] = 0;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            exponent[i] = 0;
#pragma unroll
            for (int j = 0; j < TILES; ++j)
                if (f + j * edge < n) exponent[i] = max(exponent[i], exponent_of(one_norm(mine[i][j])));
            atomicMax(largest + s + i * edge, exponent[i]);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            exponent[i] = largest[s + i * edge];
            const auto power = power_against<Real<T>>(exponent[i]);
#pragma unroll
            for (int j = 0; j < TILES; ++j) mine[i][j] = times(mine[i][j], power);
        }
    }
    for (int r = 0; r < n; ++r) {
        T* const row = cross + r % 2 * 2 * width;
        T* const column = row + width;
        int q = r;
#pragma unroll
        for (int j = 0; j < TILES; ++j)
            if (f + j * edge == r)
#pragma unroll
                for (int i = 0; i < TILES; ++i) column[s + i * edge] = mine[i][j];
        if (PIVOTING) {
            __syncthreads();
            if (threadIdx.x < 32) {
                q = pivot_row(column, n, used);
                if (threadIdx.x == 0) pivot = q;
            }
            __syncthreads();
            q = pivot;
#pragma unroll
            for (int i = 0; i < TILES; ++i) {
                if (s + i * edge == q) to_u[i] = r;
                if (f + i * edge == r) to_v[i] = q;
            }
        }
        bool divides = false;
        T divisor = T(1);
#pragma unroll
        for (int i = 0; i < TILES; ++i)
            if (s + i * edge == q)
#pragma unroll
                for (int j = 0; j < TILES; ++j) {
                    const int v = f + j * edge;
                    if (v != r) row[v] = mine[i][j];
                    else {
                        divides = true;
                        divisor = mine[i][j];
                    }
                }
        if (divides) row[r] = T(1) / divisor;
        __syncthreads();
        const T inverse = row[r];
        good = good && is_finite(inverse) && !(inverse == T(0));
#pragma unroll
        for (int j = 0; j < TILES; ++j) {
            const int v = f + j * edge;
            const T scaled = v == r ? inverse : row[v] * inverse;
#pragma unroll
            for (int i = 0; i < TILES; ++i) {
                const int u = s + i * edge;
                if (u == q) mine[i][j] = scaled;
                else mine[i][j] = (v == r ? T(0) : mine[i][j]) - column[u] * scaled;
            }
        }
    }
    if (PIVOTING) {
        int* const largest = reinterpret_cast<int*>(cross + n % 2 * 2 * width);  // the buffers of the last step but one
#pragma unroll
        for (int i = 0; i < TILES; ++i)
            if (f == 0) largest[s + i * edge] = exponent[i];
        __syncthreads();
#pragma unroll
        for (int j = 0; j < TILES; ++j) {
            const auto power = power_against<Real<T>>(largest[to_v[j]]);
#pragma unroll
            for (int i = 0; i < TILES; ++i) mine[i][j] = times(mine[i][j], power);
        }
    }
#pragma unroll
    for (int i = 0; i < TILES; ++i)
#pragma unroll
        for (int j = 0; j < TILES; ++j) {
            if (s + i * edge >= n || f + j * edge >= n) continue;
            post(d + c * nn + size_t(to_u[i]) * n + to_v[j], mine[i][j]);
            good = good && is_finite(mine[i][j]);
        }
    if (!good) atomicMin(bad, unsigned(c));
}

// The part of block x of a thread whose rows are s + i edge and columns f + j edge; of the transposed block where TRANS
// says so. x is zero from n on.
template <int TILES, int TRANS, typename T>
__device__ inline void block_times(T (&sum)[TILES], const T* __restrict__ block, const T* x, int n, int edge, int s, int f)
{
#pragma unroll
    for (int j = 0; j < TILES; ++j)
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
            const int u = s + i * edge, v = f + j * edge;
            const T a = load_or_zero(block, u < n && v < n, TRANS == PLAIN ? size_t(u) * n + v : size_t(v) * n + u);
            sum[i] += (TRANS == ADJOINT ? conj(a) : a) * x[v];
        }
}

// sums over f of the threads' parts: that of row threadIdx.x, of the threads below n. `terms` (TILES edge, edge | 1).
template <int TILES, typename T>
__device__ inline T sum_over_row(const T (&part)[TILES], T* terms, int n, int edge, int s, int f)
{
    const int stride = edge | 1;  // odd: the rows of a column lie in different banks
#pragma unroll
    for (int i = 0; i < TILES; ++i) terms[(s + i * edge) * stride + f] = part[i];
    __syncthreads();
    T even = T(0), odd = T(0);
    if (int(threadIdx.x) < n) {
        const T* const row = terms + threadIdx.x * stride;
        for (int m = 0; m + 1 < edge; m += 2) {
            even += row[m];
            odd += row[m + 1];
        }
        if (edge % 2) even += row[edge - 1];
    }
    return even + odd;
}

// Bring a block into the L2 cache.
template <typename T> __device__ inline void ask_for(const T* block, size_t elements)
{
    constexpr int LINE = 128 / sizeof(T);
    for (size_t e = size_t(threadIdx.x) * LINE; e < elements; e += size_t(blockDim.x) * LINE)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(block + e));
}

// solve_by_cells for n > 32: the blocks that a cell needs are on their way to the L2 cache while it waits.
// Launch: gridDim.x = 2 cells, blockDim.x = edge^2, shared memory width ((edge | 1) + 3) sizeof(T).
template <typename T, int TILES, int TRANS>
__global__ void __launch_bounds__(1024, 1)
solve_by_tiles(int I, int J, int K, int n, const int* __restrict__ order, const T* __restrict__ blocks, const T* __restrict__ d,
               const T* __restrict__ b, T* y, T* x, unsigned* counter)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    const int edge = (n + TILES - 1) / TILES, width = TILES * edge, thread = threadIdx.x;
    const int s = TRANS == PLAIN ? thread / edge : thread % edge, f = TRANS == PLAIN ? thread % edge : thread / edge;
    const size_t cells = size_t(I) * J * K, nn = size_t(n) * n;
    T* const terms = reinterpret_cast<T*>(shared_bytes);
    T* const values = terms + width * (edge | 1);

    const unsigned t = ticket(counter);
    const bool backward = t >= cells;
    const Cell cell(order[backward ? 2 * cells - 1 - t : t], I, J, K);
    const int c = cell.c;
    T* const out = backward ? x : y;
    const T* block[AXES];
    int other[AXES];
#pragma unroll
    for (int a = 0; a < AXES; ++a) {
        const int q = cell.neighbour(a, backward ? 1 : -1), kind = backward == (TRANS == PLAIN) ? 6 - a : a;
        other[a] = q;
        block[a] = q < 0 ? nullptr : blocks + (kind * cells + (TRANS == PLAIN ? c : q)) * nn;
        if (q >= 0) ask_for(block[a], nn);
    }
    ask_for(d + c * nn, nn);
#pragma unroll
    for (int a = 0; a < AXES; ++a)
        for (int v = thread; v < width; v += blockDim.x)
            values[a * width + v] = other[a] >= 0 && v < n ? await(out + size_t(other[a]) * n + v) : T(0);
    T own = T(0);
    if (thread < n) own = backward ? await(y + size_t(c) * n + thread) : b[size_t(c) * n + thread];
    __syncthreads();
    T part[TILES];
#pragma unroll
    for (int i = 0; i < TILES; ++i) part[i] = T(0);
#pragma unroll
    for (int a = 0; a < AXES; ++a)
        if (other[a] >= 0) block_times<TILES, TRANS>(part, block[a], values + a * width, n, edge, s, f);
    const T sum = sum_over_row<TILES>(part, terms, n, edge, s, f);
    if (thread < n) values[thread] = (backward ? T(0) : own) - sum;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < TILES; ++i) part[i] = T(0);
    block_times<TILES, TRANS>(part, d + c * nn, values, n, edge, s, f);
    const T result = sum_over_row<TILES>(part, terms, n, edge, s, f);
    if (thread < n) post(out + size_t(c) * n + thread, backward ? own + result : result);
}

// stencil_residual for n > 32. Launch: gridDim.x = cells, blockDim.x = edge^2, shared memory width ((edge | 1) + 7)
// sizeof(T).
template <typename T, int TILES>
__global__ void __launch_bounds__(1024, 1)
residual_by_tiles(int I, int J, int K, int n, int periodic, const T* __restrict__ blocks, const T* __restrict__ x, const T* b,
                  T* out)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    const int edge = (n + TILES - 1) / TILES, width = TILES * edge, s = threadIdx.x / edge, f = threadIdx.x % edge;
    const size_t cells = size_t(I) * J * K, nn = size_t(n) * n;
    T* const terms = reinterpret_cast<T*>(shared_bytes);
    T* const values = terms + width * (edge | 1);
    const Cell cell(int(blockIdx.x), I, J, K);
    int other[KINDS];
#pragma unroll
    for (int kind = 0; kind < KINDS; ++kind) {
        other[kind] = cell.stencil(kind, periodic);
        for (int v = threadIdx.x; v < width; v += blockDim.x)
            values[kind * width + v] = load_or_zero(x, other[kind] >= 0 && v < n, size_t(other[kind]) * n + v);
    }
    __syncthreads();
    T part[TILES];
#pragma unroll
    for (int i = 0; i < TILES; ++i) part[i] = T(0);
#pragma unroll
    for (int kind = 0; kind < KINDS; ++kind)
        if (other[kind] >= 0)
            block_times<TILES, PLAIN>(part, blocks + (kind * cells + cell.c) * nn, values + kind * width, n, edge, s, f);
    const T sum = sum_over_row<TILES>(part, terms, n, edge, s, f);
    const size_t row = size_t(cell.c) * n + threadIdx.x;
    if (int(threadIdx.x) < n) out[row] = b == nullptr ? sum : b[row] - sum;
}

// stencil_residual for n > 128, Algorithm 7 as it is in the paper, a row a thread: out = b - A x, or A x if b is null.
// A grid that is too small for the rows goes round.
template <typename T>
__global__ void residual_by_rows(int I, int J, int K, int n, int periodic, const T* __restrict__ blocks, const T* __restrict__ x,
                             const T* b, T* out)
{
    const size_t cells = size_t(I) * J * K;
    for_items(int(cells), 1, n, [&](int c, int, int u) {
        const Cell cell(c, I, J, K);
        T sum = T(0);
        for (int kind = 0; kind < KINDS; ++kind) {
            const int other = cell.stencil(kind, periodic);
            if (other < 0) continue;
            const T* const row = blocks + ((kind * cells + c) * n + u) * n;
            for (int m = 0; m < n; ++m) sum += row[m] * x[size_t(other) * n + m];
        }
        const size_t place = size_t(c) * n + u;
        out[place] = b == nullptr ? sum : b[place] - sum;
    });
}
