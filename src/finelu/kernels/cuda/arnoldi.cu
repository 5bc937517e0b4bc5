// The Arnoldi process and the small least-squares problem of GMRES. Twins: kernels/reference/arnoldi.py, name by name; the
// meaning of state, norms and history: kernels/monitor.py. Q and H are stored by columns: Q(i, j) = Q[j * n + i],
// H(i, j) = H[j * (m + 1) + i]. The order of every sum is fixed by n, the grid and the block: the same bits in every run.
#include "runtime/finelu.cuh"
#include "runtime/constants.cuh"

using namespace fl;

template <typename T> using Real = typename RealOf<T>::type;

template <typename R> __device__ constexpr R rounding() { return sizeof(R) == 4 ? R(1.1920929e-07) : R(2.220446049250313e-16); }
__device__ inline long long own_row() { return (long long)blockIdx.x * blockDim.x + threadIdx.x; }
template <typename T> __device__ inline Real<T> magnitude(T a) { return hypot(real(a), imag(a)); }

// |h|^2 / incoming^2, 0 where nothing came in
template <typename T> __device__ inline Real<T> share(T h, Real<T> incoming)
{
    const Real<T> part = incoming > 0 ? magnitude(h) / incoming : Real<T>(0);
    return part * part;
}

// The sum of one value a thread over the block, the same in all its threads; blockDim.x a multiple of 32. Its two
// barriers also keep two sums apart that follow each other.
template <typename T>
__device__ T block_sum(T v)
{
    __shared__ __align__(16) unsigned char room[32 * sizeof(T)];
    T* part = reinterpret_cast<T*>(room);
    for (int offset = 16; offset > 0; offset /= 2) v = v + shuffle_xor(v, offset);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    T total = part[0];
    for (int w = 1; w < int(blockDim.x) / 32; ++w) total += part[w];
    return total;
}

// The sum of v over all threads of the grid, the same bits in all of them. partial: gridDim.x words that are pending;
// each holds the sum of its block from then on, and is its own ready flag.
// Progress: every block posts its word before it waits for another's, and all blocks run at the same time because the
// launch is cooperative.
template <typename T>
__device__ T grid_sum(T v, T* partial)
{
    const T own = block_sum(v);
    if (gridDim.x == 1) return own;
    if (threadIdx.x == 0) post(partial + blockIdx.x, own);
    T seen = T(0);
    for (unsigned b = threadIdx.x; b < gridDim.x; b += blockDim.x) {
        T word = peek(partial + b);
        while (pending(word)) word = peek(partial + b);
        seen += word;
    }
    return block_sum(seen);
}

// ||z||, the same bits in all threads of the grid, without overflow or underflow where the norm is representable: where
// the squares leave the range, which every thread sees in the same sum, they are formed again relative to the mean
// magnitude. partial: 3 * gridDim.x words that are pending; it is moved past those that have been used.
template <typename T>
__device__ Real<T> grid_norm(long long n, const T* z, T*& partial)
{
    using R = Real<T>;
    const R small = sizeof(R) == 4 ? R(1e-24) : R(1e-270), large = R(1) / small;
    const long long first = own_row(), stride = (long long)gridDim.x * blockDim.x;
    T sum = T(0);
    for (long long i = first; i < n; i += stride) sum += T(abs2(z[i]));
    const R square = real(grid_sum(sum, partial));
    partial += gridDim.x;
    if ((square > small && square < large) || square != square) return sqrt(square);
    sum = T(0);
    for (long long i = first; i < n; i += stride) sum += T(magnitude(z[i]) / R(n));
    const R mean = real(grid_sum(sum, partial));
    partial += gridDim.x;
    if (mean == R(0) || !is_finite(mean)) return mean;
    sum = T(0);
    for (long long i = first; i < n; i += stride) {
        const R share = magnitude(z[i]) / mean;
        sum += T(share * share);
    }
    const R total = real(grid_sum(sum, partial));
    partial += gridDim.x;
    return mean * sqrt(total);
}

// Modified Gram-Schmidt with selective reorthogonalization, Figure 2 of Aliaga et al. 2019, K0 to K5 in one launch: the
// sums are formed by the whole grid, and whether to orthogonalize again is decided by every block from the same bits.
// A thread reads and writes its own entries of z = Q(:, j + 1) only.
// partial: (2 j + 8) * gridDim.x words, set to 0xff before the launch. Launch: cooperative, any 1-D grid of blocks that
// are resident together, blockDim.x a multiple of 32.
template <typename T>
__global__ void __launch_bounds__(512) mgs_step(long long n, const int* state, int j, long long ldh, T* Q, T* H, T* partial)
{
    using R = Real<T>;
    if (state[CODE] != RUNNING) return;  // the same in all blocks
    const long long first = own_row(), stride = (long long)gridDim.x * blockDim.x;
    T* z = Q + (j + 1) * n;
    T* h_out = H + j * ldh;
    const bool writer = blockIdx.x == 0 && threadIdx.x == 0;

    const R incoming = grid_norm(n, z, partial);  // K0; what follows is relative to it
    R omega = R(1);
    for (int k = 0; k <= j; ++k) {
        const T* q = Q + k * n;
        T sum = T(0);
        for (long long i = first; i < n; i += stride) sum += conj(q[i]) * z[i];
        T h = grid_sum(sum, partial);  // K1
        partial += gridDim.x;
        const bool again = share(h, incoming) > omega * R(0.99);
        sum = T(0);
        for (long long i = first; i < n; i += stride) {
            const T rest = z[i] - h * q[i];  // K2
            z[i] = rest;
            if (again) sum += conj(q[i]) * rest;
        }
        if (again) {
            const T beta = grid_sum(sum, partial);  // K3
            partial += gridDim.x;
            h += beta;
            for (long long i = first; i < n; i += stride) z[i] -= beta * q[i];  // K4
        }
        if (writer) h_out[k] = h;
        omega -= share(h, incoming);
        if (omega < R(0)) omega = R(0);
    }
    R length = grid_norm(n, z, partial);
    const bool none = length <= rounding<R>() * incoming;
    if (none) length = R(0);
    for (long long i = first; i < n; i += stride) z[i] = none ? T(0) : z[i] / T(length);  // K5
    if (writer) h_out[j + 1] = T(length);
}

// H(j + 1, j) = ||z|| and z /= ||z||, z = Q(:, j + 1), from before = ||z|| as it came in and after = ||z|| now; both 0
// where z is only the rounding of what came in. Launch: any 1-D grid with gridDim.x * blockDim.x >= n.
template <typename T>
__global__ void unit_step(long long n, const int* state, int j, long long ldh, const Real<T>* before, const Real<T>* after,
                          T* Q, T* H)
{
    using R = Real<T>;
    const long long i = own_row();
    if (i >= n || state[CODE] != RUNNING) return;
    const R length = *after <= rounding<R>() * *before ? R(0) : *after;
    T* z = Q + (j + 1) * n;
    z[i] = length == R(0) ? T(0) : z[i] / T(length);
    if (i == 0) H[j * ldh + j + 1] = T(length);
}

// Q(:, 0) = r / ||r|| and g[0] = ||r||. Launch: any 1-D grid with gridDim.x * blockDim.x >= n.
template <typename T>
__global__ void arnoldi_begin(long long n, const int* state, const Real<T>* norms, const T* r, T* Q, T* g)
{
    const long long i = own_row();
    if (i >= n || state[CODE] != RUNNING) return;
    if (i == 0) g[0] = T(norms[NORM]);
    Q[i] = r[i] / T(norms[NORM]);
}

// Rotation j of the QR factorization of H, and the residual norm that follows. Launch: one thread.
template <typename T>
__global__ void givens_step(int* state, Real<T>* norms, Real<T>* history, long long ldh, T* H, Real<T>* c, T* s, T* g, int j)
{
    using R = Real<T>;
    if (state[CODE] != RUNNING) return;
    T* column = H + j * ldh;
    R length = R(0);
    for (int i = 0; i < j + 2; ++i) length = hypot(length, magnitude(column[i]));
    for (int i = 0; i < j; ++i) {
        const T a = column[i], b = column[i + 1];
        column[i] = T(c[i]) * a + s[i] * b;
        column[i + 1] = T(c[i]) * b - conj(s[i]) * a;
    }
    const T a = column[j], b = column[j + 1];
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
    c[j] = size / radius;
    s[j] = phase * conj(b) / T(radius);
    column[j] = phase * T(radius);
    column[j + 1] = T(0);
    g[j + 1] = -(conj(s[j]) * g[j]);
    g[j] = T(c[j]) * g[j];
    norms[NORM] = magnitude(g[j + 1]);
    state[COLUMNS] = j + 1;
    history[++state[ITERATIONS]] = norms[NORM];
    if (norms[NORM] <= norms[CLAIM]) state[CODE] = CLAIMED;
}

// y[:k] = R^-1 g[:k], k = state[COLUMNS], and 0 from there to m. By columns: lane t holds row t, t + 32, ... of what is
// left of the right-hand side, in shared memory. Launch: one warp; dynamic shared memory m * sizeof(T).
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

// u = Q(:, :k) y[:k], k = state[COLUMNS]; later columns are not read. Launch: gridDim.x * blockDim.x >= n.
template <typename T>
__global__ void combine(long long n, const int* state, const T* Q, const T* y, T* u)
{
    const long long i = own_row();
    if (i >= n) return;
    const int k = state[COLUMNS];
    T total = T(0);
    for (int p = 0; p < k; ++p) total += Q[p * n + i] * y[p];
    u[i] = total;
}

// x += u; nothing in a cycle without columns. Launch: gridDim.x * blockDim.x >= n.
template <typename T>
__global__ void update_solution(long long n, const int* state, const T* u, T* x)
{
    const long long i = own_row();
    if (i >= n || state[COLUMNS] == 0) return;
    x[i] += u[i];
}
