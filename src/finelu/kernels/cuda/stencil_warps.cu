// The block ILU(0) of stencil.cu for float64 and blocks of 5 x 5 to 8 x 8, with a warp a cell: its products by the
// tensor cores' m8n8k4, its sums and Gauss-Jordan by shuffles, so that no barrier and no shared memory is needed inside
// of a cell.
//
// Layout. Lane (g, h) = (lane / 4, lane % 4) owns the elements (g, 2 h) and (g, 2 h + 1) of an 8 x 8 block whose first
// N rows and columns are the cell's: that is where m8n8k4 leaves a product. It takes column h of 4 of the left factor,
// row h of 4 of the right one. A sum over k may be taken in any order: where the left factor is itself a product, its
// columns 2 h are taken first, then 2 h + 1, which are where they are needed already.
//
// Each sum is taken in a fixed order: the same result in every run, that of stencil.cu to rounding. On an
// H200 the time is that of a cell over the number of cells at work at once: few registers and few instructions are
// wanted, so addresses and predicates are kept simple, and the division by K is a multiplication.
#include "runtime/finelu.cuh"
#include "stencil.cuh"

using namespace fl;

constexpr int HALVES = 2;  // the two k4 of a product, or the two columns of a lane

// into += left right, for one half of the sum over k
__device__ inline void multiply_add(double (&into)[HALVES], double left, double right)
{
    asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                 : "+d"(into[0]), "+d"(into[1]) : "d"(left), "d"(right));
}

// *value, or 0 where there is nothing, by one load under a predicate; peek_if as peek
__device__ inline double load_if(bool there, const double* value)
{
    double v;
    asm("{ .reg .pred p; setp.ne.s32 p, %2, 0; mov.f64 %0, 0d0000000000000000; @p ld.global.nc.f64 %0, [%1]; }"
        : "=d"(v) : "l"(value), "r"(int(there)));
    return v;
}
__device__ inline double peek_if(bool there, const double* value)
{
    double v;
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0; mov.f64 %0, 0d0000000000000000; @p ld.relaxed.gpu.global.f64 %0, [%1]; }"
                 : "=d"(v) : "l"(value), "r"(int(there)) : "memory");
    return v;
}

// the same for two neighbours in memory, of which both are there or none; by one load where they are ALIGNED to 16
// bytes
template <bool ALIGNED> __device__ inline void load_pair_if(bool there, const double* from, double* pair)
{
    if constexpr (ALIGNED)
        asm("{ .reg .pred p; setp.ne.s32 p, %3, 0; mov.f64 %0, 0d0000000000000000; mov.f64 %1, 0d0000000000000000;"
            " @p ld.global.nc.v2.f64 {%0, %1}, [%2]; }"
            : "=&d"(pair[0]), "=&d"(pair[1]) : "l"(from), "r"(int(there)));
    else
        for (int s = 0; s < HALVES; ++s) pair[s] = load_if(there, from + s);
}
template <bool ALIGNED> __device__ inline void peek_pair_if(bool there, const double* from, double* pair)
{
    if constexpr (ALIGNED)
        asm volatile("{ .reg .pred p; setp.ne.s32 p, %3, 0; mov.f64 %0, 0d0000000000000000; mov.f64 %1, 0d0000000000000000;"
                     " @p ld.relaxed.gpu.global.v2.f64 {%0, %1}, [%2]; }"
                     : "=&d"(pair[0]), "=&d"(pair[1]) : "l"(from), "r"(int(there)) : "memory");
    else
        for (int s = 0; s < HALVES; ++s) pair[s] = peek_if(there, from + s);
}

// a row or column of a block, the last if there is none
template <int N> __device__ inline int inside(int u) { return N == 8 || u < N ? u : N - 1; }

// c / divisor by a product: magic = ceil(2^(31 + l) / divisor), l = ceil(log2 divisor); exact for 0 <= c < 2^31;
// of c = -1 a cell comes that is not used
__device__ inline int quotient(int c, int divisor, unsigned magic)
{
    int zeros;
    asm("clz.b32 %0, %1;" : "=r"(zeros) : "r"(divisor - 1));
    return int((unsigned long long)(unsigned(c)) * magic >> (63 - zeros));
}
__device__ inline Cell cell_of(int c, int I, int J, int K, unsigned by_J, unsigned by_K)
{
    const int row = quotient(c, K, by_K), i = quotient(row, J, by_J);
    return Cell(c, c - row * K, row - i * J, i, I, J, K);
}

// order[place]; the places of later tickets are asked for, so that they are in the L2 cache by then.
constexpr int LATER = 8192;
__device__ inline int take(const int* __restrict__ order, int places, int place, int step)
{
    const int later = place + step * LATER;
    if (threadIdx.x == 0 && later >= 0 && later < places) asm volatile("prefetch.global.L2 [%0];" ::"l"(order + later));
    return order[place];
}

// value[a] = *from[a] once it is there, where it is pending. Where one is, one lane first waits for a cell FAR
// hyperplanes away (step 1 or -1), whose values begin at values_of(cell). All lanes call it.
template <int COUNT, typename F>
__device__ inline void await_all(const double* const (&from)[COUNT], double (&value)[COUNT], const Cell& cell, int step, F values_of)
{
    bool waits = false;
#pragma unroll
    for (int a = 0; a < COUNT; ++a) waits |= pending(value[a]);
    if (!__any_sync(0xffffffffu, waits)) return;
    const int early = cell.ancestor(step, FAR);
    if (threadIdx.x % 32 == 0 && early >= 0)
        while (pending(peek(values_of(early)))) {}
    __syncwarp();
    await_each(value, [&](int a) { return peek(from[a]); });
    __syncwarp();
}

// The row of the largest magnitude among those not used, the first of equals; NaN counts as 0. `own` is the element of
// row g = lane / 4, the same for its four lanes. All lanes get the row.
template <int N> __device__ inline int pivot_row(double own, unsigned used)
{
    int q = threadIdx.x % 32 / 4;
    const double size = own < 0 ? -own : own;
    double largest = q >= N || used >> q & 1u ? -1.0 : size >= 0 ? size : 0.0;
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) {
        const double other = shuffle_xor(largest, mask);
        const int row = shuffle_xor(q, mask);
        if (other > largest || (other == largest && row < q)) {
            largest = other;
            q = row;
        }
    }
    return q;
}

// factor_by_cells of stencil.cu. d, bad[0] and counter are pending before the launch.
// Launch: gridDim.x = places of order / WARPS, blockDim.x = 32 WARPS.
template <int N, int WARPS, bool PIVOTING>
__global__ void __launch_bounds__(32 * WARPS)
factor_by_warps(int I, int J, int K, unsigned by_J, unsigned by_K, int n_blocks, const int* __restrict__ order,
                const double* __restrict__ blocks, double* d, unsigned* bad, unsigned* counter)
{
    static_assert(N > 4 && N <= 8, "a product takes two k4");
    constexpr int NN = N * N;
    const int lane = threadIdx.x % 32, g = lane / 4, h = lane % 4;
    const int place = int(ticket(counter)) * WARPS + threadIdx.x / 32;
    const Cell cell = cell_of(take(order, n_blocks * WARPS, place, 1), I, J, K, by_J, by_K);
    if (cell.c < 0) return;
    const long long kind = (long long)I * J * K * NN, first = (long long)cell.c * NN;  // of a kind of block, of the cell
    const int row = inside<N>(g);  // rows and columns from N on repeat the last: they are computed, and not used

    double left[AXES][HALVES], right[AXES][HALVES], before[AXES * HALVES], mine[HALVES];
    const double* from[AXES * HALVES];
    bool there[AXES];
#pragma unroll
    for (int a = 0; a < AXES; ++a) {
        there[a] = cell.at[a] > 0;
        const long long other = first - (long long)cell.stride[a] * NN;
#pragma unroll
        for (int s = 0; s < HALVES; ++s) {
            const int k = h + 4 * s;
            left[a][s] = load_if(there[a] && k < N, blocks + a * kind + first + row * N + k);
            from[a * HALVES + s] = d + other + inside<N>(k) * N + row;
        }
#pragma unroll
        for (int s = 0; s < HALVES; ++s) {
            const int k = 2 * h + s;
            right[a][s] = load_if(there[a] && k < N, blocks + (6 - a) * kind + other + k * N + row);
        }
    }
#pragma unroll
    for (int s = 0; s < HALVES; ++s) mine[s] = blocks[DELTA * kind + first + row * N + inside<N>(2 * h + s)];
#pragma unroll
    for (int m = 0; m < AXES * HALVES; ++m) before[m] = peek_if(there[m / HALVES], from[m]);
    await_all(from, before, cell, -1, [&](int early) { return d + (long long)early * NN; });

    double product[AXES][HALVES];
#pragma unroll
    for (int a = 0; a < AXES; ++a) {
        product[a][0] = product[a][1] = 0.0;
#pragma unroll
        for (int s = 0; s < HALVES; ++s) multiply_add(product[a], left[a][s], before[a * HALVES + s]);
    }
    mine[0] = -mine[0];
    mine[1] = -mine[1];
#pragma unroll
    for (int a = 0; a < AXES; ++a)
#pragma unroll
        for (int s = 0; s < HALVES; ++s) multiply_add(mine, product[a][s], right[a][s]);
    mine[0] = -mine[0];
    mine[1] = -mine[1];

    double wrong = 0.0;                               // NaN once a pivot is not finite; a zero pivot leaves an Inf
    unsigned used = 0;                                // PIVOTING: rows that have been a pivot row
    int to_u = g, to_v[HALVES] = {2 * h, 2 * h + 1};  // where this lane's elements belong
    int exponent = 0;                                 // PIVOTING: of the largest element of row g, which is scaled by it
    if (PIVOTING) {
        exponent = max(exponent_of(one_norm(mine[0])), exponent_of(one_norm(mine[1])));
        exponent = max(exponent, shuffle_xor(exponent, 1));
        exponent = max(exponent, shuffle_xor(exponent, 2));
#pragma unroll
        for (int s = 0; s < HALVES; ++s) mine[s] *= power_against<double>(exponent);
    }
#pragma unroll
    for (int r = 0; r < N; ++r) {
        const double own = shuffle(mine[r % 2], (lane & 28) + r / 2);  // column r
        int q = r;
        if (PIVOTING) {
            q = pivot_row<N>(own, used);
            used |= 1u << q;
            if (g == q) to_u = r;
            if (r / 2 == h) to_v[r % 2] = q;
        }
        const double pivot = shuffle(own, 4 * q), inverse = 1.0 / pivot;
        wrong += pivot * 0.0;
        // row q times the inverse is taken from all rows, with that of column r, and minus once from nothing for row q
        const double times = g == q ? -1.0 : own;
        if (r / 2 == h) mine[r % 2] = g == q ? 1.0 : 0.0;
#pragma unroll
        for (int s = 0; s < HALVES; ++s) {
            const double scaled = shuffle(mine[s], 4 * q + h) * inverse;
            mine[s] = (g == q ? 0.0 : mine[s]) - times * scaled;
        }
    }
    if (PIVOTING)  // and the columns of the inverse by the same
#pragma unroll
        for (int s = 0; s < HALVES; ++s) mine[s] *= power_against<double>(shuffle(exponent, 4 * to_v[s]));
    if (g >= N) return;
    bool good = wrong == 0.0;
#pragma unroll
    for (int s = 0; s < HALVES; ++s)
        if (2 * h + s < N) {
            post(d + first + to_u * N + to_v[s], mine[s]);
            good = good && is_finite(mine[s]);
        }
    if (!good) atomicMin(bad, unsigned(cell.c));
}

// One sweep's part of solve_by_warps: a cell.
template <int N, bool MIRRORED, bool ALIGNED, bool BACKWARD>
__device__ inline void solve_cell(const Cell& cell, long long kind, const double* __restrict__ blocks,
                                  const double* __restrict__ d, const double* __restrict__ b, const double* y, double* out)
{
    constexpr int NN = N * N, STEP = BACKWARD ? 1 : -1, VALUES = AXES * HALVES;
    const int lane = threadIdx.x % 32, g = lane / 4, h = lane % 4;
    const long long first = (long long)cell.c * NN, own = (long long)cell.c * N + g;
    // row g and columns 2 h, 2 h + 1 of a block, or 0
    const auto elements = [&](const double* block, bool there, double* into) {
        if constexpr (N % 2 == 0 && !MIRRORED) {
            load_pair_if<ALIGNED>(there && g < N && 2 * h < N, block + g * N + 2 * h, into);
        } else {
#pragma unroll
            for (int s = 0; s < HALVES; ++s) {
                const int v = 2 * h + s;
                into[s] = load_if(there && g < N && v < N, block + (MIRRORED ? v * N + g : g * N + v));
            }
        }
    };
    double coefficient[VALUES], diagonal[HALVES], value[VALUES + BACKWARD];  // backward, and y of the cell
    const double* from[VALUES + BACKWARD];
    bool there[AXES];
#pragma unroll
    for (int a = 0; a < AXES; ++a) {
        there[a] = BACKWARD ? cell.at[a] + 1 < cell.size[a] : cell.at[a] > 0;
        const int other = cell.c + STEP * cell.stride[a];
        const double* const of_kind = blocks + (BACKWARD == MIRRORED ? a : 6 - a) * kind;
        elements(of_kind + (MIRRORED ? (long long)other * NN : first), there[a], coefficient + a * HALVES);
#pragma unroll
        for (int s = 0; s < HALVES; ++s) from[a * HALVES + s] = out + (long long)other * N + 2 * h + s;
    }
    elements(d + first, true, diagonal);
    const double rhs = BACKWARD ? 0.0 : load_if(g < N, b + own);

#pragma unroll
    for (int a = 0; a < AXES; ++a) {
        double* const pair = value + a * HALVES;
        if constexpr (N % 2 == 0) {
            peek_pair_if<ALIGNED>(there[a] && 2 * h < N, from[a * HALVES], pair);
        } else {
#pragma unroll
            for (int s = 0; s < HALVES; ++s) pair[s] = peek_if(there[a] && 2 * h + s < N, from[a * HALVES + s]);
        }
    }
    if constexpr (BACKWARD) {
        from[VALUES] = y + own;
        value[VALUES] = peek_if(g < N, y + own);
    }
    await_all(from, value, cell, STEP, [&](int early) { return out + (long long)early * N; });

    // sum of the terms of a row's four lanes; all four get it
    const auto over_row = [](double term) {
        term += shuffle_xor(term, 1);
        return term + shuffle_xor(term, 2);
    };
    double sum = 0.0;
#pragma unroll
    for (int m = 0; m < VALUES; ++m) sum += coefficient[m] * value[m];
    const double z = rhs - over_row(sum);  // z_g of Algorithm 10
    sum = over_row(diagonal[0] * shuffle(z, 8 * h) + diagonal[1] * shuffle(z, 8 * h + 4));
    if constexpr (BACKWARD) sum += value[VALUES];
    if (g < N && h == 0) post(out + own, sum);
}

// solve_by_cells of stencil.cu, M x = b, or M^T x = b (MIRRORED); y, x and counter are pending before the launch.
// ALIGNED: blocks, d, y and x begin at multiples of 16 bytes.
// Launch: gridDim.x = 2 n_blocks, n_blocks = places of order / WARPS, blockDim.x = 32 WARPS.
template <int N, int WARPS, bool MIRRORED, bool ALIGNED>
__global__ void __launch_bounds__(32 * WARPS)
solve_by_warps(int I, int J, int K, unsigned by_J, unsigned by_K, int n_blocks, const int* __restrict__ order,
               const double* __restrict__ blocks, const double* __restrict__ d, const double* __restrict__ b, double* y,
               double* x, unsigned* counter)
{
    const int t = int(ticket(counter));
    const bool backward = t >= n_blocks;
    const int place = (backward ? 2 * n_blocks - 1 - t : t) * WARPS + threadIdx.x / 32;
    const Cell cell = cell_of(take(order, n_blocks * WARPS, place, backward ? -1 : 1), I, J, K, by_J, by_K);
    if (cell.c < 0) return;
    const long long kind = (long long)I * J * K * N * N;
    if (backward) solve_cell<N, MIRRORED, ALIGNED, true>(cell, kind, blocks, d, b, y, x);
    else solve_cell<N, MIRRORED, ALIGNED, false>(cell, kind, blocks, d, b, y, y);
}
