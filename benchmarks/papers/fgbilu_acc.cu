// The ACC style of the block ILU paper (Luo, Edwards, Luo, Mueller: "A fine-grained block ILU scheme on regular structures
// for GPGPUs"), to compare finelu's stencil.cu with: the kernels of Algorithms 4 and 6, each launched once a hyperplane (or
// once a hyperplane and step r), so that the end of a launch is the only barrier. Twins: kernels/reference. Arrays as in
// stencil.cu; `plane` (count) is the hyperplane's part of `order`; any n. Deterministic: each item writes its own element.
// Launch: any 1-D grid; one that is too small for the items (q, u, v) goes round.
#include "runtime/finelu.cuh"
#include "stencil.cuh"

using namespace fl;

// kernel #1: s_a = (alpha, beta, gamma)_a d_before; s is (3, count, n, n), zero where there is nothing before
template <typename T>
__global__ void acc_products(int I, int J, int K, int n, int count, const int* __restrict__ plane, const T* __restrict__ blocks,
                             const T* __restrict__ d, T* s)
{
    const size_t cells = size_t(I) * J * K, nn = size_t(n) * n;
    for_items(count, n, n, [&](int q, int u, int v) {
        const Cell cell(plane[q], I, J, K);
        for (int a = 0; a < AXES; ++a) {
            const int other = cell.neighbour(a, -1);
            T sum = T(0);
            if (other >= 0) {
                const T* const lower = blocks + (a * cells + cell.c) * nn + u * n;
                for (int m = 0; m < n; ++m) sum += lower[m] * d[other * nn + m * n + v];
            }
            s[(size_t(a) * count + q) * nn + u * n + v] = sum;
        }
    });
}

// kernel #2: d = delta - s_1 eta_{k-1} - s_2 zeta_{j-1} - s_3 epsilon_{i-1}
template <typename T>
__global__ void acc_subtract(int I, int J, int K, int n, int count, const int* __restrict__ plane, const T* __restrict__ blocks,
                             const T* __restrict__ s, T* d)
{
    const size_t cells = size_t(I) * J * K, nn = size_t(n) * n;
    for_items(count, n, n, [&](int q, int u, int v) {
        const Cell cell(plane[q], I, J, K);
        T sum = T(0);
        for (int a = 0; a < AXES; ++a) {
            const int other = cell.neighbour(a, -1);
            if (other < 0) continue;
            const T* const left = s + (size_t(a) * count + q) * nn + u * n;
            const T* const upper = blocks + ((6 - a) * cells + other) * nn + v;
            for (int m = 0; m < n; ++m) sum += left[m] * upper[size_t(m) * n];
        }
        d[cell.c * nn + u * n + v] = blocks[(DELTA * cells + cell.c) * nn + u * n + v] - sum;
    });
}

// kernel #3 of step r: row r times, column r minus, 1 / pivot; side 0 is the row, 1 the column
template <typename T>
__global__ void acc_scale(int n, int r, int count, const int* __restrict__ plane, T* d, unsigned* bad)
{
    for_items(count, 2, n - 1, [&](int q, int side, int w) {
        w += w >= r;
        T* const block = d + size_t(plane[q]) * n * n;
        T& element = side == 0 ? block[r * n + w] : block[w * n + r];
        const T scaled = element / block[r * n + r];
        element = side == 0 ? scaled : -scaled;
        if (!is_finite(scaled)) atomicMin(bad, unsigned(plane[q]));
    });
}

// kernel #4 of step r: the rest of the block
template <typename T>
__global__ void acc_eliminate(int n, int r, int count, const int* __restrict__ plane, T* d, unsigned* bad)
{
    for_items(count, n - 1, n - 1, [&](int q, int u, int v) {
        u += u >= r;
        v += v >= r;
        T* const block = d + size_t(plane[q]) * n * n;
        const T value = block[u * n + v] + block[u * n + r] * (block[r * n + v] * block[r * n + r]);
        block[u * n + v] = value;
        if (!is_finite(value)) atomicMin(bad, unsigned(plane[q]));
    });
}

// kernel #5 of step r: the pivot
template <typename T>
__global__ void acc_invert_pivot(int n, int r, int count, const int* __restrict__ plane, T* d, unsigned* bad)
{
    for_items(count, 1, 1, [&](int q, int, int) {
        T& pivot = d[size_t(plane[q]) * n * n + r * n + r];
        const T inverse = T(1) / pivot;
        if (!is_finite(inverse) || inverse == T(0)) atomicMin(bad, unsigned(plane[q]));
        pivot = inverse;
    });
}

// first kernel of Algorithm 6: z = b - alpha x_{k-1} - beta x_{j-1} - gamma x_{i-1}; backward
// z = -(epsilon x_{i+1} + zeta x_{j+1} + eta x_{k+1}). z is (count, n).
template <typename T>
__global__ void acc_gather(int I, int J, int K, int n, int count, int backward, const int* __restrict__ plane,
                           const T* __restrict__ blocks, const T* __restrict__ b, const T* __restrict__ x, T* z)
{
    const size_t cells = size_t(I) * J * K;
    for_items(count, 1, n, [&](int q, int, int u) {
        const Cell cell(plane[q], I, J, K);
        T sum = backward ? T(0) : b[size_t(cell.c) * n + u];
        for (int a = 0; a < AXES; ++a) {
            const int other = cell.neighbour(a, backward ? 1 : -1);
            if (other < 0) continue;
            const T* const row = blocks + (((backward ? 6 - a : a) * cells + cell.c) * n + u) * n;
            for (int m = 0; m < n; ++m) sum -= row[m] * x[size_t(other) * n + m];
        }
        z[size_t(q) * n + u] = sum;
    });
}

// second kernel of Algorithm 6: x = d z; backward x += d z
template <typename T>
__global__ void acc_apply(int n, int count, int backward, const int* __restrict__ plane, const T* __restrict__ d,
                          const T* __restrict__ z, T* x)
{
    for_items(count, 1, n, [&](int q, int, int u) {
        const size_t row = size_t(plane[q]) * n + u;
        T sum = backward ? x[row] : T(0);
        for (int m = 0; m < n; ++m) sum += d[row * n + m] * z[size_t(q) * n + m];
        x[row] = sum;
    });
}
