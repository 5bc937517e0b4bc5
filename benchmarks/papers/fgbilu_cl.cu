// The CL style of the block ILU paper (Luo, Edwards, Luo, Mueller: "A fine-grained block ILU scheme on regular structures for
// GPGPUs") as the paper has it, to compare finelu's stencil.cu with, which needs no launch a hyperplane: Algorithms 9 and 10,
// each kernel launched once a hyperplane. Twins: kernels/reference. Arrays as in stencil.cu; `plane` (count) is the
// hyperplane's part of `order`, the paper's W. N up to 32. Deterministic: each thread writes its own element.
// Launch: blockDim.x = L N^2, L cells a thread block, gridDim.x >= count / L; each kernel says what shared memory it needs.
#include "runtime/finelu.cuh"
#include "stencil.cuh"

using namespace fl;

// Algorithm 8: thread (u, v) of the L n^2 of a thread block, for the cell `slot` of it. Columns are next to each other, since
// blocks lie row by row here. The cell is -1 beyond the end of the hyperplane.
template <int N> struct Place {
    int slot, e, u, v;
    Cell cell;
    __device__ Place(int I, int J, int K, int count, const int* plane)
        : slot(threadIdx.x / (N * N)), e(threadIdx.x % (N * N)), u(e / N), v(e % N), cell(of(count, plane), I, J, K) {}
    __device__ static int of(int count, const int* plane)
    {
        const int q = blockIdx.x * (blockDim.x / (N * N)) + threadIdx.x / (N * N);
        return q < count ? plane[q] : -1;
    }
};

template <int N> constexpr int THREADS = N * N > 320 ? N * N : 320;  // of a thread block at most: fgbilu_cl.py

template <int N, typename T> __device__ inline T dot(const T* row, const T* column)
{
    T sum = row[0] * column[0];
    for (int m = 1; m < N; ++m) sum += row[m] * column[m * N];
    return sum;
}

template <int N, typename T> __device__ inline T sum_of_row(const T* row)
{
    T sum = row[0];
    for (int m = 1; m < N; ++m) sum += row[m];
    return sum;
}

// Algorithm 9: d = (delta - alpha d_{k-1} eta_{k-1} - beta d_{j-1} zeta_{j-1} - gamma d_{i-1} epsilon_{i-1})^-1.
// Shared memory: s, 3 L n^2 sizeof(T). bad[0], pending (0xff) before the first launch, becomes the smallest cell with a pivot
// that is zero or not finite, or a value that is not.
template <typename T, int N>
__global__ void __launch_bounds__(THREADS<N>)
cl_factor(int I, int J, int K, int count, const int* __restrict__ plane, const T* __restrict__ blocks, T* d, unsigned* bad)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    constexpr int NN = N * N;
    const size_t cells = size_t(I) * J * K;
    const Place<N> at(I, J, K, count, plane);
    const int u = at.u, v = at.v, e = at.e, c = at.cell.c;
    T* s[AXES];
    for (int a = 0; a < AXES; ++a) s[a] = reinterpret_cast<T*>(shared_bytes) + (a * int(blockDim.x) + at.slot * NN);

    for (int a = 0; a < AXES; ++a) {  // line 2
        const int before = at.cell.neighbour(a, -1);
        s[a][e] = before < 0 ? T(0) : dot<N>(blocks + (a * cells + c) * NN + u * N, d + size_t(before) * NN + v);
    }
    __syncthreads();
    T value = c < 0 ? T(u == v) : blocks[(DELTA * cells + c) * NN + e];
    for (int a = 0; a < AXES; ++a) {  // line 4
        const int before = at.cell.neighbour(a, -1);
        if (before >= 0) value -= dot<N>(s[a] + u * N, blocks + ((6 - a) * cells + before) * NN + v);
    }
    __syncthreads();
    bool good = true;
    for (int r = 0; r < N; ++r) {
        T* const turn = s[r % 2];
        const int a = u == r, b = v == r, rest = (1 - a) * (1 - b);
        if (rest == 0) turn[e] = value;
        __syncthreads();
        value = (T(a * b) + T(a - b) * value - T(rest) * turn[u * N + r] * turn[r * N + v]) / turn[r * N + r] + T(rest) * value;
        if (a * b) good = good && is_finite(value) && !(value == T(0));
    }
    if (c < 0) return;
    d[size_t(c) * NN + e] = value;
    if (!good || !is_finite(value)) atomicMin(bad, unsigned(c));
}

// What both sweeps of Algorithm 10 have in common: the sums over v of the products of three blocks with the vectors of the
// cells before (step -1) or after (1), and d times a vector z of the cell. s (n, n) and z (n) are the cell's shared memory.
template <int N, typename T>
__device__ inline T sum_of_products(const Place<N>& at, int step, size_t cells, const T* blocks, const T* x, T* s)
{
    T product = T(0);
    for (int a = 0; a < AXES; ++a) {
        const int other = at.cell.neighbour(a, step), kind = step < 0 ? a : 6 - a;
        if (other >= 0) product += blocks[(kind * cells + at.cell.c) * (N * N) + at.e] * x[size_t(other) * N + at.v];
    }
    s[at.e] = product;
    __syncthreads();
    return at.v == 0 ? sum_of_row<N>(s + at.u * N) : T(0);
}

template <int N, typename T> __device__ inline T times_diagonal(const Place<N>& at, const T* d, T value, T* s, T* z)
{
    if (at.v == 0) z[at.u] = value;
    __syncthreads();
    s[at.e] = at.cell.c < 0 ? T(0) : d[size_t(at.cell.c) * (N * N) + at.e] * z[at.v];
    __syncthreads();
    return at.v == 0 ? sum_of_row<N>(s + at.u * N) : T(0);
}

// Algorithm 10 (a): x = d (b - alpha x_{k-1} - beta x_{j-1} - gamma x_{i-1}). Shared memory: s and z, L (n^2 + n) sizeof(T).
template <typename T, int N>
__global__ void __launch_bounds__(THREADS<N>)
cl_forward(int I, int J, int K, int count, const int* __restrict__ plane, const T* __restrict__ blocks, const T* __restrict__ d,
           const T* __restrict__ b, T* x)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    const Place<N> at(I, J, K, count, plane);
    T* const s = reinterpret_cast<T*>(shared_bytes) + at.slot * (N * N + N);
    const size_t row = size_t(at.cell.c < 0 ? 0 : at.cell.c) * N + at.u;
    const T sum = sum_of_products<N>(at, -1, size_t(I) * J * K, blocks, x, s);
    const T result = times_diagonal<N>(at, d, at.v == 0 ? b[row] - sum : T(0), s, s + N * N);
    if (at.cell.c >= 0 && at.v == 0) x[row] = result;
}

// Algorithm 10 (b): x -= d (epsilon x_{i+1} + zeta x_{j+1} + eta x_{k+1}). Shared memory as forward.
template <typename T, int N>
__global__ void __launch_bounds__(THREADS<N>)
cl_backward(int I, int J, int K, int count, const int* __restrict__ plane, const T* __restrict__ blocks, const T* __restrict__ d,
            T* x)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    const Place<N> at(I, J, K, count, plane);
    T* const s = reinterpret_cast<T*>(shared_bytes) + at.slot * (N * N + N);
    const T sum = sum_of_products<N>(at, 1, size_t(I) * J * K, blocks, x, s);
    const T result = times_diagonal<N>(at, d, sum, s, s + N * N);
    if (at.cell.c >= 0 && at.v == 0) x[size_t(at.cell.c) * N + at.u] -= result;
}
