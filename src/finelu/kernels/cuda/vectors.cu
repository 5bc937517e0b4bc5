// Vectors gathered and scattered with a scale for each row: the way into a level of a multilevel factorization and out of
// it (ILUPACK on GPUs, 2019, equation (11)). Twins: kernels/reference/vectors.py, name by name. Vectors are (n,) or
// (n, columns), rows contiguous; blockIdx.y is the column. Each element of the result has one writer.
#include "runtime/finelu.cuh"

using namespace fl;

// out[i] = scale[i] r[rows[i]]. Launch: gridDim.x * blockDim.x >= n.
template <typename T, typename I>
__global__ void gather_scaled(I n, int columns, const I* __restrict__ rows, const typename RealOf<T>::type* __restrict__ scale,
                      const T* __restrict__ r, T* out)
{
    const I i = I(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) out[size_t(i) * columns + blockIdx.y] = T(scale[i]) * r[size_t(rows[i]) * columns + blockIdx.y];
}

// out[places[i]] = scale[i] (s_i - t_i) for i < pivots, and scale[i] w_(i - pivots) for the others. t may be null: 0.
// Launch: gridDim.x * blockDim.x >= n.
template <typename T, typename I>
__global__ void scatter_scaled(I n, I pivots, int columns, const I* __restrict__ places,
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
