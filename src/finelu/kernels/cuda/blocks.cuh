// Common code of kernels on n x n blocks: the elements that each thread of a block row owns, products of blocks, the
// in-place inverse, and waiting for values of other rows. To be included after finelu.cuh.
//
// Thread t of a row owns column v = t % N of every block, and of that column the M rows u = t / N + S m, S = THREADS /
// N: then the elements t, t + THREADS, ... of a row-major block are its own, so that loads are contiguous, a factor's
// row is one broadcast for many threads, and an element is only ever changed by its owner. Up to 32 threads a row stay
// inside one warp (PER_WARP rows a warp, barriers of a few cycles, no row waits for another's barrier); larger ones are
// a thread block each. M is the launcher's choice; where S M > N the last rows do not exist (`owns`).
#pragma once

namespace fl {

template <int N, int M> struct Team {
    static constexpr int NN = N * N, S = (N + M - 1) / M, THREADS = S * N;
    static constexpr bool ALONE = THREADS > 32;
    static constexpr int PER_WARP = ALONE ? 1 : 32 / THREADS;
    static constexpr int BLOCK = ALONE ? THREADS : 128, ROWS = ALONE ? 1 : BLOCK / 32 * PER_WARP;  // of a thread block

    int t, u, v, slot;  // slot: which of the rows of the thread block
    unsigned mask;
    bool idle;  // a thread left over in its warp
    __device__ Team()
    {
        const int lane = ALONE ? int(threadIdx.x) : int(threadIdx.x) % 32, team = lane / THREADS;
        t = lane % THREADS;
        u = t / N;
        v = t % N;
        idle = team >= PER_WARP;
        slot = ALONE ? 0 : int(threadIdx.x) / 32 * PER_WARP + team;
        mask = ALONE || THREADS == 32 ? 0xffffffffu : ((1u << THREADS % 32) - 1u) << team * THREADS % 32;
    }
    __device__ int row(int m) const { return u + S * m; }
    __device__ bool owns(int m) const { return S * M == N || u + S * m < N; }
    __device__ int element(int m) const { return t + THREADS * m; }
    __device__ void sync() const
    {
        if (ALONE) __syncthreads();
        else __syncwarp(mask);
    }
};

// *to = *from without a register in between, so that all copies of a thread are under way at once. They have come, for
// this thread, after wait_for_copies.
template <typename T> __device__ inline void copy_to_shared(T* to, const T* from)
{
    asm volatile("{ .reg .u64 place; cvta.to.shared.u64 place, %0; cp.async.ca.shared.global [place], [%1], %2; }"
                 ::"l"(to), "l"(from), "n"(int(sizeof(T))) : "memory");
}
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Replace the pending pattern by another NaN, in a value that was stored before the launch, so that no thread waits for
// it.
__device__ inline void settle(float& a) { if (pending(a)) a = __uint_as_float(0x7fc00000u); }
__device__ inline void settle(double& a) { if (pending(a)) a = __longlong_as_double(0x7ff8000000000000ll); }
template <typename R> __device__ inline void settle(Complex<R>& a) { settle(a.re); settle(a.im); }

// Rows far from their turn spare the L2 cache: one thread of the row polls one value that is due some levels earlier;
// afterwards all threads poll for their own values. polls: whether there is such a value. It is an argument of its own,
// since code of NVRTC 13.0 was seen to test a pointer that may be null before it is set.
template <typename Members, typename T> __device__ inline void wait_for_turn(const Members& team, bool polls, const T* value)
{
    if (team.t == 0 && polls)
        while (pending(peek(value))) {}
    team.sync();
}

// the own elements of a b, row-major blocks
template <int N, int M, typename T>
__device__ inline void product(const Team<N, M>& team, const T* a, const T* b, T (&out)[M])
{
#pragma unroll
    for (int m = 0; m < M; ++m) out[m] = T(0);
#pragma unroll 8
    for (int w = 0; w < N; ++w) {
        const T right = b[w * N + team.v];
#pragma unroll
        for (int m = 0; m < M; ++m)
            if (team.owns(m)) out[m] += a[team.row(m) * N + w] * right;
    }
}

// In-place Gauss-Jordan of a block held by its team, an element a register (Luo et al., Algorithm 8): pivot row and
// column of a step go through two alternating buffers in `cross` (4 N, shared), so there is one barrier a step, and the
// thread that owns the pivot divides for all. With PIVOTING rows are scaled by powers of two, the columns of the
// inverse too, and the largest entry of the column in the rows not yet used is the pivot (two barriers a step); no row
// is moved: element (to_u[m], to_v) of the inverse is what this thread then has in mine[m]. Returns whether the pivots
// have been neither zero nor without a finite reciprocal; goes on in any case. AT_ONCE: steps that are unrolled, 0 for
// the compiler's choice. Members: a Team, or what has t, v, row, owns and sync as it has.
template <bool PIVOTING, int N, int AT_ONCE, typename Members, int M, typename T>
__device__ inline bool invert_in_place(const Members& team, T (&mine)[M], T* cross, int (&to_u)[M], int& to_v)
{
    bool good = true;
    unsigned used = 0;  // rows that have been a pivot row
    const int v = team.v;
    to_v = v;
#pragma unroll
    for (int m = 0; m < M; ++m) to_u[m] = team.row(m);
    int exponent[M];  // of the largest entry of each own row
    if (PIVOTING) {
        int* const largest = reinterpret_cast<int*>(cross);
#pragma unroll
        for (int m = 0; m < M; ++m)
            if (v == 0 && team.owns(m)) largest[team.row(m)] = 0;
        team.sync();
#pragma unroll
        for (int m = 0; m < M; ++m)
            if (team.owns(m)) atomicMax(largest + team.row(m), exponent_of(one_norm(mine[m])));
        team.sync();
#pragma unroll
        for (int m = 0; m < M; ++m) {
            exponent[m] = team.owns(m) ? largest[team.row(m)] : 0;
            mine[m] = times(mine[m], power_against<Real<T>>(exponent[m]));
        }
    }
    const auto eliminate = [&](int r) {
        T* const row = cross + r % 2 * 2 * N;
        T* const column = row + N;
        int q = r;
        if (v == r) {
#pragma unroll
            for (int m = 0; m < M; ++m)
                if (team.owns(m)) column[team.row(m)] = mine[m];
        }
        if (PIVOTING) {
            team.sync();
            q = -1;
            Real<T> largest = 0;
            for (int w = 0; w < N; ++w) {
                if (used >> w & 1u) continue;
                const auto size = one_norm(column[w]);
                if (q < 0 || size > largest) {
                    q = w;
                    largest = size;
                }
            }
            used |= 1u << q;
            if (v == r) to_v = q;
        }
#pragma unroll
        for (int m = 0; m < M; ++m) {
            if (team.row(m) != q) continue;
            to_u[m] = r;
            row[v] = v == r ? T(1) / mine[m] : mine[m];
        }
        team.sync();
        const T inverse = row[r], scaled = row[v] * inverse;
        good = good && is_finite(inverse) && !(inverse == T(0));
#pragma unroll
        for (int m = 0; m < M; ++m) {
            if (!team.owns(m)) continue;
            if (team.row(m) == q) mine[m] = v == r ? inverse : scaled;
            else mine[m] = v == r ? -(mine[m] * inverse) : mine[m] - column[team.row(m)] * scaled;
        }
    };
    if constexpr (AT_ONCE > 0) {
#pragma unroll AT_ONCE
        for (int r = 0; r < N; ++r) eliminate(r);
    } else {
        for (int r = 0; r < N; ++r) eliminate(r);
    }
    if (PIVOTING) {
        int* const largest = reinterpret_cast<int*>(cross + N % 2 * 2 * N);  // the buffers of the last step but one
#pragma unroll
        for (int m = 0; m < M; ++m)
            if (v == 0 && team.owns(m)) largest[team.row(m)] = exponent[m];
        team.sync();
        const auto power = power_against<Real<T>>(largest[to_v]);
#pragma unroll
        for (int m = 0; m < M; ++m) mine[m] = times(mine[m], power);
    }
    return good;
}

// a sum of `count` terms, `stride` apart, four at a time: the next row waits for the latency of these additions
template <typename T> __device__ inline T sum_of(const T* terms, int count, int stride)
{
    T sum[4] = {terms[0], T(0), T(0), T(0)};
#pragma unroll 2
    for (int w = 1; w < count; w += 4) {
#pragma unroll
        for (int c = 0; c < 4; ++c)
            if (w + c < count) sum[c] += terms[(w + c) * stride];
    }
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

}  // namespace fl
