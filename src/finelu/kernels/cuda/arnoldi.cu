// The Arnoldi process and the small least-squares problem of GMRES. Twins: kernels/reference/arnoldi.py, name by name;
// the meaning of state, norms and history: kernels/monitor.py. Q and H are stored by columns: Q(i, j) = Q[j * n + i],
// H(i, j) = H[j * (m + 1) + i]. The column of a step is read from state[COLUMNS], so that the same launch serves all of
// them. The order of every sum is fixed by n, the grid and the block: the same bits in every run.
#include "runtime/finelu.cuh"
#include "runtime/sums.cuh"
#include "runtime/constants.cuh"

using namespace fl;

template <typename R> __device__ constexpr R rounding() { return sizeof(R) == 4 ? R(1.1920929e-07) : R(2.220446049250313e-16); }
__device__ inline float magnitude(float a) { return fabsf(a); }
__device__ inline double magnitude(double a) { return fabs(a); }
template <typename R> __device__ inline R magnitude(Complex<R> a) { return hypot(a.re, a.im); }

// |h|^2 / incoming^2, 0 where nothing came in
template <typename T> __device__ inline Real<T> share(T h, Real<T> incoming)
{
    const Real<T> part = incoming > 0 ? magnitude(h) / incoming : Real<T>(0);
    return part * part;
}

constexpr int MGS_BLOCK = 512;  // as in arnoldi.py

// The sum of v over all threads of the grid, the same bits in all of them. partial: gridDim.x words that are pending;
// each holds the sum of its block from then on, and is its own ready flag. It is moved past them.
// Progress: every block posts its word before it waits for another's, and all blocks run at the same time because the
// launch is cooperative. Of few blocks one warp waits for all.
template <typename T>
__device__ T grid_sum(T v, T*& partial)
{
    constexpr int WARPS = MGS_BLOCK / 32;
    __shared__ __align__(16) unsigned char room[(WARPS + 1) * sizeof(T)];
    T *const part = reinterpret_cast<T*>(room), *const total = part + WARPS;
    const T* const words = partial;
    const int lane = threadIdx.x % 32;
    v = lanes_sum(v);
    if (lane == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    if (threadIdx.x < 32) {
        v = lanes_sum(lane < WARPS ? part[lane] : T(0));
        if (lane == 0) post(partial + blockIdx.x, v);
        if (gridDim.x <= 32) {
            v = lanes_sum(lane < gridDim.x ? await(words + lane) : T(0));
            if (lane == 0) *total = v;
        }
    }
    partial += gridDim.x;
    if (gridDim.x <= 32) {
        __syncthreads();
        return *total;
    }
    v = T(0);
    for (unsigned b = threadIdx.x; b < gridDim.x; b += MGS_BLOCK) v += await(words + b);
    return block_sum(v);
}

// The entries of the new vector z that a thread owns: every MGS_BLOCK-th of the neighbouring ones that its block has.
// Up to PER of them lie in its registers; with PER = 0 they lie in global memory, at z.

struct Range {
    long long first, last;
    __device__ Range(long long n)
    {
        const long long rows = (n + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * rows;
        first = begin + threadIdx.x;
        last = begin + rows < n ? begin + rows : n;
    }
};

template <typename T, int PER>
struct Own {
    Range rows;
    T value[PER];
    __device__ Own(long long n, T*) : rows(n) {}
    template <typename F> __device__ void each(const F& f)
    {
#pragma unroll
        for (int e = 0; e < PER; ++e) {
            const long long i = rows.first + e * MGS_BLOCK;
            if (i < rows.last) f(i, value[e]);
        }
    }
};

template <typename T>
struct Own<T, 0> {
    Range rows;
    T* z;
    __device__ Own(long long n, T* z) : rows(n), z(z) {}
    template <typename F> __device__ void each(const F& f)
    {
        for (long long i = rows.first; i < rows.last; i += MGS_BLOCK) f(i, z[i]);
    }
};

// The same entries of a column q of Q. Where those of z lie in registers, so do these, from `bring` on.
template <typename T, int PER>
struct Column {
    T value[PER];
    __device__ void bring(const Range& rows, const T* q)
    {
#pragma unroll
        for (int e = 0; e < PER; ++e) {
            const long long i = rows.first + e * MGS_BLOCK;
            if (i < rows.last) value[e] = q[i];
        }
    }
    template <typename F> __device__ void with(Own<T, PER>& own, const F& f) const
    {
#pragma unroll
        for (int e = 0; e < PER; ++e)
            if (own.rows.first + e * MGS_BLOCK < own.rows.last) f(value[e], own.value[e]);
    }
};

template <typename T>
struct Column<T, 0> {
    const T* q;
    __device__ void bring(const Range&, const T* column) { q = column; }
    template <typename F> __device__ void with(Own<T, 0>& own, const F& f) const
    {
        own.each([&](long long i, T& z) { f(q[i], z); });
    }
};

// ||z||, the same bits in all threads of the grid, without overflow or underflow where the norm is representable: where
// the squares leave the range, which every thread sees in the same sum, they are formed again relative to the mean
// magnitude. partial: 3 * gridDim.x words that are pending, or less; it is moved past those that have been used.
template <typename T, int PER>
__device__ Real<T> grid_norm(long long n, Own<T, PER>& own, T*& partial)
{
    using R = Real<T>;
    const R small = sizeof(R) == 4 ? R(1e-24) : R(1e-270), large = R(1) / small;
    T sum = T(0);
    own.each([&](long long, T& z) { sum += T(abs2(z)); });
    const R square = real(grid_sum(sum, partial));
    if ((square > small && square < large) || square != square) return sqrt(square);
    sum = T(0);
    own.each([&](long long, T& z) { sum += T(magnitude(z) / R(n)); });
    const R mean = real(grid_sum(sum, partial));
    if (mean == R(0) || !is_finite(mean)) return mean;
    sum = T(0);
    own.each([&](long long, T& z) {
        const R part = magnitude(z) / mean;
        sum += T(part * part);
    });
    return mean * sqrt(real(grid_sum(sum, partial)));
}

// v = Q(:, j + 1) = z / ||z|| and H(j + 1, j) = ||z||; both 0 where z is only the rounding of the incoming vector.
template <typename T, int PER>
__device__ void unit_vector(long long n, Own<T, PER>& own, Real<T> incoming, T* q, T* v, T* below, T*& partial)
{
    using R = Real<T>;
    R length = grid_norm(n, own, partial);
    const bool none = length <= rounding<R>() * incoming;
    if (none) length = R(0);
    own.each([&](long long i, T& z) { v[i] = q[i] = none ? T(0) : z / T(length); });
    if (blockIdx.x == 0 && threadIdx.x == 0) *below = T(length);
}

// Modified Gram-Schmidt with selective reorthogonalization, Figure 2 of Aliaga et al. 2019, K0 to K5 in one launch: the
// sums are formed by the whole grid, and whether to orthogonalize again is decided by every block from the same bits.
// A thread reads and writes its own entries of w, z = Q(:, j + 1) and v only; w may be v.
// partial: (2 m + 6) * gridDim.x words, set to 0xff before the launch. Launch: cooperative, any 1-D grid of blocks that
// are resident together, blockDim.x = MGS_BLOCK, at most PER * MGS_BLOCK rows a block where PER > 0.
template <typename T, int PER>
__global__ void __launch_bounds__(512) mgs_step(long long n, const int* state, long long ldh, T* Q, const T* w, T* H, T* v,
                                                T* partial)
{
    using R = Real<T>;
    if (state[CODE] != RUNNING) return;  // the same in all blocks
    const int j = state[COLUMNS];
    T *const last = Q + (j + 1) * n, *const column = H + j * ldh;
    const bool writer = blockIdx.x == 0 && threadIdx.x == 0;
    Own<T, PER> own(n, last);
    own.each([&](long long i, T& z) { z = w[i]; });

    const R incoming = grid_norm(n, own, partial);  // K0; what follows is relative to it
    R omega = R(1);
    Column<T, PER> now, next;
    now.bring(own.rows, Q);
    for (int k = 0; k <= j; ++k) {
        if (k < j) next.bring(own.rows, Q + (k + 1) * n);  // on its way while the blocks wait for one another
        T sum = T(0);
        now.with(own, [&](T q, T& z) { sum += conj(q) * z; });
        T h = grid_sum(sum, partial);  // K1
        const bool again = share(h, incoming) > omega * R(0.99);
        sum = T(0);
        now.with(own, [&](T q, T& z) {
            z = z - h * q;  // K2
            if (again) sum += conj(q) * z;
        });
        if (again) {
            const T beta = grid_sum(sum, partial);  // K3
            h += beta;
            now.with(own, [&](T q, T& z) { z -= beta * q; });  // K4
        }
        now = next;
        if (writer) column[k] = h;
        omega -= share(h, incoming);
        if (omega < R(0)) omega = R(0);
    }
    unit_vector(n, own, incoming, last, v, column + j + 1, partial);  // K5
}

// Classical Gram-Schmidt, twice, in one launch. The block's rows of a column of Q are a warp's; the sums of all columns
// go through the grid together. partial: (2 m + 6) * gridDim.x words, set to 0xff before the launch.
// Launch: cooperative as mgs_step; dynamic shared memory m * sizeof(T).
template <typename T>
__global__ void __launch_bounds__(512) cgs2_step(long long n, const int* state, long long ldh, T* Q, const T* w, T* H, T* v,
                                                 T* partial)
{
    extern __shared__ __align__(16) unsigned char dynamic[];
    T* h = reinterpret_cast<T*>(dynamic);
    if (state[CODE] != RUNNING) return;  // the same in all blocks
    const int j = state[COLUMNS], warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    T *const last = Q + (j + 1) * n, *const column = H + j * ldh;
    Own<T, 0> own(n, last);
    own.each([&](long long i, T& z) { z = w[i]; });
    const Real<T> incoming = grid_norm(n, own, partial);
    const long long begin = own.rows.first - threadIdx.x;
    for (int pass = 0; pass < 2; ++pass) {
        __syncthreads();  // z of the whole block is written
        for (int c = warp; c <= j; c += MGS_BLOCK / 32) {
            const T* q = Q + c * n;
            T sum = T(0);
#pragma unroll 8
            for (long long i = begin + lane; i < own.rows.last; i += 32) sum += conj(q[i]) * last[i];
            sum = lanes_sum(sum);
            if (lane == 0) post(partial + (long long)c * gridDim.x + blockIdx.x, sum);
        }
        for (int c = warp; c <= j; c += MGS_BLOCK / 32) {
            T sum = T(0);
            for (unsigned b = lane; b < gridDim.x; b += 32) sum += await(partial + (long long)c * gridDim.x + b);
            sum = lanes_sum(sum);
            if (lane == 0) {
                h[c] = sum;
                if (blockIdx.x == 0) column[c] = pass == 0 ? sum : column[c] + sum;
            }
        }
        partial += (long long)(j + 1) * gridDim.x;
        __syncthreads();
        own.each([&](long long i, T& z) {
            T rest = z;
#pragma unroll 8
            for (int c = 0; c <= j; ++c) rest -= h[c] * Q[c * n + i];
            z = rest;
        });
    }
    unit_vector(n, own, incoming, last, v, column + j + 1, partial);
}

// v = Q(:, 0) = r / ||r|| and g[0] = ||r||.
template <typename T>
__global__ void arnoldi_begin(long long n, const int* state, const Real<T>* norms, const T* r, T* Q, T* g, T* v)
{
    const long long i = own_item();
    if (i >= n || state[CODE] != RUNNING) return;
    if (i == 0) g[0] = T(norms[NORM]);
    v[i] = Q[i] = r[i] / T(norms[NORM]);
}

// Z(:, j) = z.
template <typename T>
__global__ void keep_column(long long n, const int* state, const T* z, T* Z)
{
    const long long i = own_item();
    if (i < n && state[CODE] == RUNNING) Z[state[COLUMNS] * n + i] = z[i];
}

// Rotation j of the QR factorization of H, and the residual norm that follows. The rotations before it go through the
// column one after the other, on one lane; the others fetch its operands. Launch: one warp.
template <typename T>
__global__ void givens_step(int* state, Real<T>* norms, Real<T>* history, long long ldh, T* H, Real<T>* c, T* s, T* g)
{
    using R = Real<T>;
    constexpr int TOGETHER = 128;  // rotations
    __shared__ __align__(16) unsigned char room[2 * TOGETHER * sizeof(T)];
    __shared__ R cosines[TOGETHER];
    T *const entries = reinterpret_cast<T*>(room), *const sines = entries + TOGETHER;
    if (state[CODE] != RUNNING) return;
    const int j = state[COLUMNS], lane = threadIdx.x;
    T* const column = H + j * ldh;
    R length = R(0);
    for (int i = lane; i < j + 2; i += 32) length = hypot(length, magnitude(column[i]));
    for (int offset = 16; offset > 0; offset /= 2) length = hypot(length, shuffle_xor(length, offset));
    T a = column[0];  // of lane 0: the entry that the next rotation begins with
    const T b = column[j + 1];
    for (int base = 0; base < j; base += TOGETHER) {
        const int count = j - base < TOGETHER ? j - base : TOGETHER;
        for (int i = lane; i < count; i += 32) {
            entries[i] = column[base + i + 1];
            cosines[i] = c[base + i];
            sines[i] = s[base + i];
        }
        __syncwarp();
        if (lane == 0)
            for (int i = 0; i < count; ++i) {
                const T below = entries[i];
                entries[i] = T(cosines[i]) * a + sines[i] * below;
                a = T(cosines[i]) * below - conj(sines[i]) * a;
            }
        __syncwarp();
        for (int i = lane; i < count; i += 32) column[base + i] = entries[i];
        __syncwarp();
    }
    if (lane) return;
    column[j] = a;
    const R size = magnitude(a), radius = hypot(size, magnitude(b));
    if (!is_finite(length) || !is_finite(radius)) {
        state[CODE] = NOT_FINITE;
        return;
    }
    if (radius <= R(4 * (j + 1)) * rounding<R>() * length) {
        state[CODE] = BROKEN;
        return;
    }
    const T phase = size > R(0) ? a / T(size) : T(1);
    const T sine = phase * conj(b) / T(radius), before = g[j], after = -(conj(sine) * before);
    c[j] = size / radius;
    s[j] = sine;
    column[j] = phase * T(radius);
    column[j + 1] = T(0);
    g[j + 1] = after;
    g[j] = T(size / radius) * before;
    norms[NORM] = magnitude(after);
    state[COLUMNS] = j + 1;
    history[++state[ITERATIONS]] = norms[NORM];
    if (norms[NORM] <= norms[CLAIM]) state[CODE] = CLAIMED;
}

// y[:k] = R^-1 g[:k], k = state[COLUMNS], and 0 from there to m. By columns: lane t updates rows t, t + 32, ... of the
// right-hand side in shared memory. Launch: one warp; dynamic shared memory m * sizeof(T).
template <typename T>
__global__ void hessenberg_solve(const int* state, int m, const T* H, const T* g, T* y)
{
    extern __shared__ __align__(16) unsigned char room[];
    T* rest = reinterpret_cast<T*>(room);
    const int k = state[COLUMNS];
    for (int i = threadIdx.x; i < m; i += 32) {
        if (i < k)
            rest[i] = g[i];
        else
            y[i] = T(0);
    }
    __syncwarp();
    for (int p = k - 1; p >= 0; --p) {
        const T* column = H + (long long)p * (m + 1);
        const T value = rest[p] / column[p];
        if (threadIdx.x == 0) y[p] = value;
        for (int i = threadIdx.x; i < p; i += 32) rest[i] -= column[i] * value;
        __syncwarp();
    }
}

// u = Q(:, :k) y[:k], k = state[COLUMNS]; later columns are not read.
template <typename T>
__global__ void combine(long long n, const int* state, const T* Q, const T* y, T* u)
{
    const long long i = own_item();
    if (i >= n) return;
    const int k = state[COLUMNS];
    T total = T(0);
    for (int p = 0; p < k; ++p) total += Q[p * n + i] * y[p];
    u[i] = total;
}

// x += u; nothing in a cycle without columns.
template <typename T>
__global__ void update_solution(long long n, const int* state, const T* u, T* x)
{
    const long long i = own_item();
    if (i >= n || state[COLUMNS] == 0) return;
    x[i] += u[i];
}

// The first step of y = Q^H w: partial[c * gridDim.x + b] is the sum over every gridDim.x-th row from those of block b
// on, for the column c = blockIdx.y. Launch: a grid (any, k), blockDim.x a multiple of 32.
template <typename T>
__global__ void partial_moments(long long n, const T* __restrict__ Q, const T* __restrict__ w, T* partial)
{
    const T* const q = Q + blockIdx.y * n;
    const long long stride = (long long)gridDim.x * blockDim.x;
    T sum = T(0);
#pragma unroll 4
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) sum += conj(q[i]) * w[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.y * gridDim.x + blockIdx.x] = sum;
}

// The second step: y[c] is the sum of the `count` partial sums of column c, in their order. Launch: a block a column.
template <typename T>
__global__ void sum_moments(int count, const T* partial, T* y)
{
    T sum = T(0);
    for (int b = threadIdx.x; b < count; b += blockDim.x) sum += partial[blockIdx.x * count + b];
    sum = block_sum(sum);
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}

// w -= Q y. One thread per row, which reads Q by columns. Launch: any 1-D grid with gridDim.x * blockDim.x >= n.
template <typename T>
__global__ void take_off(long long n, const int* state, int k, const T* __restrict__ Q, const T* __restrict__ y, T* w)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n || state[CODE] != RUNNING) return;
    T sum = T(0);
    for (int c = 0; c < k; ++c) sum += Q[c * n + i] * y[c];
    w[i] -= sum;
}
