// What is applied of a multilevel factorization besides its triangular solves (ILUPACK on GPUs, 2019, equation (11)):
// the way into a level and out of it, products with its blocks, and with the dense inverse that ends it.
// Twins: kernels/reference.py, name by name. Vectors are (n,) or (n, columns), rows contiguous; blockIdx.y is the column.
#include "finelu.cuh"

using namespace fl;

// out[i] = scale[i] r[rows[i]]. Launch: gridDim.x * blockDim.x >= n.
template <typename T, typename I>
__global__ void enter(I n, int columns, const I* __restrict__ rows, const typename RealOf<T>::type* __restrict__ scale,
                      const T* __restrict__ r, T* out)
{
    const I i = I(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) out[size_t(i) * columns + blockIdx.y] = T(scale[i]) * r[size_t(rows[i]) * columns + blockIdx.y];
}

// out[places[i]] = scale[i] (s_i - t_i) for i < pivots, and scale[i] w_(i - pivots) for the others. t may be null: 0.
// Launch: gridDim.x * blockDim.x >= n.
template <typename T, typename I>
__global__ void leave(I n, I pivots, int columns, const I* __restrict__ places,
                      const typename RealOf<T>::type* __restrict__ scale, const T* __restrict__ s, const T* __restrict__ t,
                      const T* __restrict__ w, T* out)
{
    const I i = I(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const size_t at = size_t(i < pivots ? i : i - pivots) * columns + blockIdx.y;
    T v = i < pivots ? s[at] : w[at];
    if (i < pivots && t != nullptr) v = v - t[at];
    out[size_t(places[i]) * columns + blockIdx.y] = T(scale[i]) * v;
}

template <typename T> __device__ inline T lanes_sum(T v, int lanes)
{
    for (int offset = lanes / 2; offset > 0; offset /= 2) v += shuffle_xor(v, offset);
    return v;
}

// out = y - M x, or M x where y is null; M (n rows) by rows, `lanes` neighbouring threads each, a power of two up to 32.
// Launch: gridDim.x * blockDim.x >= n * lanes, blockDim.x a multiple of 32.
template <typename T, typename I>
__global__ void subtract_product(I n, int columns, int lanes, const I* __restrict__ indptr, const I* __restrict__ indices,
                                 const T* __restrict__ data, const T* __restrict__ x, const T* __restrict__ y, T* out)
{
    const size_t thread = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
    const I i = I(thread / lanes);
    const int lane = int(threadIdx.x) & (lanes - 1);
    T sum = T(0);
    if (i < n)
        for (I p = indptr[i] + lane; p < indptr[i + 1]; p += lanes)
            sum += data[p] * x[size_t(indices[p]) * columns + blockIdx.y];
    sum = lanes_sum(sum, lanes);
    if (i < n && lane == 0) {
        const size_t at = size_t(i) * columns + blockIdx.y;
        out[at] = y == nullptr ? sum : y[at] - sum;
    }
}

// out = M x with M (n, n) by rows, a warp a row. Launch: gridDim.x * blockDim.x >= 32 n, blockDim.x a multiple of 32.
template <typename T>
__global__ void dense_product(int n, int columns, const T* __restrict__ matrix, const T* __restrict__ x, T* out)
{
    const int i = int((size_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32);
    if (i >= n) return;
    T sum = T(0);
    for (int j = int(threadIdx.x % 32); j < n; j += 32) sum += matrix[size_t(i) * n + j] * x[size_t(j) * columns + blockIdx.y];
    sum = lanes_sum(sum, 32);
    if (threadIdx.x % 32 == 0) out[size_t(i) * columns + blockIdx.y] = sum;
}
