// Vectors gathered and scattered with a scale for each row: the way into a level of a multilevel factorization and out
// of it (ILUPACK on GPUs, 2019, equation (11)). Twins: kernels/reference/vectors.py, name by name. Vectors are (n,) or
// (n, columns), rows contiguous; blockIdx.y is the column. Each element of the result has one writer.
//
// dot, dotu, size_of_dot, norm, dot_and_norm: sums over (n,), as runtime/sums.cuh forms them; squares in double
// precision. Launch: any 1-D grid, blockDim.x a multiple of 32; room: 4 * gridDim.x doubles, which hold the sums of the
// blocks.
#include "runtime/finelu.cuh"
#include "runtime/sums.cuh"
#include "runtime/stored.cuh"

using namespace fl;

__device__ inline long long stride() { return (long long)gridDim.x * blockDim.x; }

// *out = the sum of term(i) over 0 <= i < n.
template <typename S, typename Term>
__device__ inline void sum_over(long long n, double* room, unsigned* counter, S* out, Term term)
{
    S sum = S(0), *partial = reinterpret_cast<S*>(room);
#pragma unroll 4
    for (long long i = own_item(); i < n; i += stride()) sum += term(i);
    sum = block_sum(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
    if (!last_block(counter)) return;
    sum = sum_of_blocks(partial);
    if (threadIdx.x == 0) *out = sum;
}

template <typename T>
__global__ void dot(long long n, double* room, unsigned* counter, const T* __restrict__ x, const T* __restrict__ y, T* out)
{
    sum_over(n, room, counter, out, [&](long long i) { return conj(x[i]) * y[i]; });
}

template <typename T>
__global__ void dotu(long long n, double* room, unsigned* counter, const T* __restrict__ x, const T* __restrict__ y, T* out)
{
    sum_over(n, room, counter, out, [&](long long i) { return x[i] * y[i]; });
}

template <typename T>
__global__ void size_of_dot(long long n, double* room, unsigned* counter, const T* __restrict__ x, const T* __restrict__ y,
                            Real<T>* out)
{
    sum_over(n, room, counter, out, [&](long long i) { return one_norm(x[i]) * one_norm(y[i]); });
}

template <typename T>
__global__ void norm(long long n, double* room, unsigned* counter, const T* x, Real<T>* out)
{
    double square = 0;
#pragma unroll 4
    for (long long i = own_item(); i < n; i += stride()) square += square_of(x[i]);
    square = block_sum(square);
    if (threadIdx.x == 0) room[blockIdx.x] = square;
    if (!last_block(counter)) return;
    const double length = norm_of_blocks(room, n, x);
    if (threadIdx.x == 0) *out = Real<T>(length);
}

template <typename T>
__global__ void dot_and_norm(long long n, double* room, unsigned* counter, const T* x, const T* __restrict__ y, T* out,
                             Real<T>* size)
{
    T sum = T(0), *partial = reinterpret_cast<T*>(room + gridDim.x);
    double square = 0;
#pragma unroll 4
    for (long long i = own_item(); i < n; i += stride()) {
        const T v = x[i];
        sum += conj(v) * y[i];
        square += square_of(v);
    }
    sum = block_sum(sum);
    square = block_sum(square);
    if (threadIdx.x == 0) {
        partial[blockIdx.x] = sum;
        room[blockIdx.x] = square;
    }
    if (!last_block(counter)) return;
    sum = sum_of_blocks(partial);
    const double length = norm_of_blocks(room, n, x);
    if (threadIdx.x == 0) {
        *out = sum;
        *size = Real<T>(length);
    }
}

// r = b - y; r may be one of them.
template <typename T>
__global__ void difference(long long n, const T* b, const T* y, T* r)
{
    const long long i = own_item();
    if (i < n) r[i] = b[i] - y[i];
}

template <typename T>
__global__ void moved_on(long long n, const T* __restrict__ d, const T* __restrict__ v, T* x, T* r)
{
    const long long i = own_item();
    if (i >= n) return;
    x[i] += d[i];
    r[i] = r[i] - v[i];
}

template <typename T>
__global__ void turned(long long n, Real<T> a, T* d, Real<T> b, const T* __restrict__ z)
{
    const long long i = own_item();
    if (i < n) d[i] = T(a) * d[i] + T(b) * z[i];
}

// r = x + y; r may be one of them.
template <typename T>
__global__ void added(long long n, const T* x, const T* y, T* r)
{
    const long long i = own_item();
    if (i < n) r[i] = x[i] + y[i];
}

// out = factor x for a real factor; out may be x.
template <typename T>
__global__ void scaled(long long n, const Real<T>* __restrict__ factor, const T* x, T* out)
{
    const long long i = own_item();
    if (i < n) out[i] = times(x[i], *factor);
}

// out = x in less precision, V; lost becomes 1 where an element is beyond the range of V.
template <typename T, typename V>
__global__ void rounded(long long n, const T* __restrict__ x, V* out, double* lost)
{
    const long long i = own_item();
    if (i < n) out[i] = narrowed<V>(x[i], lost);
}

// most = the largest magnitude of x in double precision, NaN if one is: by its bits, which have the order of the numbers
// and NaN last. most is 0 before. Launch: any 1-D grid, blockDim.x a multiple of 32.
template <typename T>
__global__ void largest(long long n, const T* __restrict__ x, unsigned long long* most)
{
    unsigned long long own = 0;
    for (long long i = own_item(); i < n; i += stride())
        own = max(own, (unsigned long long)__double_as_longlong(modulus(x[i])));
    own = lanes_max(own);
    if (threadIdx.x % 32 == 0) atomicMax(most, own);
}

// out[i] = x[places[i]], rows of `columns` words, for n words in all.
template <typename W, typename I>
__global__ void gather(long long n, int columns, const I* __restrict__ places, const W* __restrict__ x, W* out)
{
    const long long i = own_item();
    if (i < n) out[i] = x[columns == 1 ? (long long)places[i] : (long long)places[i / columns] * columns + i % columns];
}

// The first i for which the real part of x[places[i]] is not above 0; all ones before, and after if there
// is no such i.
template <typename T, typename I>
__global__ void first_not_positive(long long n, const T* __restrict__ x, const I* __restrict__ places, unsigned long long* first)
{
    const long long i = own_item();
    if (i < n && !(real(x[places[i]]) > 0)) atomicMin(first, (unsigned long long)i);
}

// The first i for which one of x[places[i]] and y[i] is above 0 and the other is not; all ones before, and
// after where there is no such i.
template <typename T, typename I>
__global__ void first_of_other_sign(long long n, const T* __restrict__ x, const I* __restrict__ places, const T* __restrict__ y,
                                    unsigned long long* first)
{
    const long long i = own_item();
    if (i < n && (x[places[i]] > 0) != (y[i] > 0)) atomicMin(first, (unsigned long long)i);
}

// The first place of NaN or Inf; all ones before, and after if there is no such place.
template <typename T>
__global__ void first_not_finite(long long n, const T* __restrict__ x, unsigned long long* first)
{
    const long long i = own_item();
    if (i < n && !is_finite(x[i])) atomicMin(first, (unsigned long long)i);
}

// out[i] = scale[i] r[rows[i]].
template <typename T, typename I>
__global__ void gather_scaled(I n, int columns, const I* __restrict__ rows, const Real<T>* __restrict__ scale,
                      const T* __restrict__ r, T* out)
{
    const I i = I(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) out[size_t(i) * columns + blockIdx.y] = T(scale[i]) * r[size_t(rows[i]) * columns + blockIdx.y];
}

// out[places[i]] = scale[i] (s_i - t_i) for i < pivots, and scale[i] w_(i - pivots) for the others. t may be null: 0.
template <typename T, typename I>
__global__ void scatter_scaled(I n, I pivots, int columns, const I* __restrict__ places,
                      const Real<T>* __restrict__ scale, const T* __restrict__ s, const T* __restrict__ t,
                      const T* __restrict__ w, T* out)
{
    const I i = I(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const size_t at = size_t(i < pivots ? i : i - pivots) * columns + blockIdx.y;
    T v = i < pivots ? s[at] : w[at];
    if (i < pivots && t != nullptr) v = v - t[at];
    out[size_t(places[i]) * columns + blockIdx.y] = T(scale[i]) * v;
}
