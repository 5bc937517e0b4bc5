// Products of matrices with vectors, and residuals. Twins: kernels/reference/products.py, name by name.
//
// residual, residual_twice: b - factor A x for a CSR matrix, with a bound on what rounding puts into it, and the same in
// twice the precision. A warp takes a row: its lanes take every 32nd entry and add up by shuffles in a fixed order, so that
// the bits are the same in every run. Each row of r and bound has one writer, and no thread reads them.
// Launch: gridDim.x * blockDim.x >= 32 n, blockDim.x a multiple of 32.
//
// subtract_product, dense_product: vectors are (n,) or (n, columns), rows contiguous; blockIdx.y is the column.
#include "runtime/finelu.cuh"

using namespace fl;

template <typename T> using Real = typename RealOf<T>::type;

template <typename T> __device__ inline Real<T> size_of(T a) { return fabs(real(a)) + fabs(imag(a)); }
__device__ inline void assign(float& to, double re, double) { to = float(re); }
__device__ inline void assign(double& to, double re, double) { to = re; }
template <typename R> __device__ inline void assign(Complex<R>& to, double re, double im) { to = Complex<R>(R(re), R(im)); }

template <typename T, typename I>
__global__ void residual(I n, const I* __restrict__ indptr, const I* __restrict__ indices, const T* __restrict__ data,
                         const T* __restrict__ x, const T* __restrict__ b, Real<T> factor, Real<T> eps, T* r, Real<T>* bound)
{
    const long long i = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (i >= n) return;  // the same in all lanes of a warp
    const int lane = threadIdx.x % 32;
    T total = T(0);
    Real<T> size = 0;
    const I start = indptr[i], stop = indptr[i + 1];
    for (long long p = (long long)start + lane; p < stop; p += 32) {
        const T a = data[p], v = x[indices[p]];
        total += a * v;
        size += size_of(a) * size_of(v);
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        total = total + shuffle_xor(total, offset);
        size += shuffle_xor(size, offset);
    }
    if (lane) return;
    r[i] = b[i] - T(factor) * total;
    bound[i] = Real<T>(stop - start + 1) * eps * (factor * size + size_of(b[i]));
}

// A number as the sum of two, of which the second is below the rounding of the first.
struct Twice {
    double high, low;
    // Every step rounds by itself: a contraction to fused multiply-adds would lose what is measured here.
    __device__ void add(double v)
    {
        const double sum = __dadd_rn(high, v), part = __dsub_rn(sum, high);
        low = __dadd_rn(low, __dadd_rn(__dsub_rn(high, __dsub_rn(sum, part)), __dsub_rn(v, part)));
        high = sum;
    }
    __device__ void add_product(double a, double b)
    {
        const double product = __dmul_rn(a, b);
        const double rounding = __fma_rn(a, b, -product);
        add(product);
        low = __dadd_rn(low, rounding);
    }
    __device__ void add_lanes()
    {
        for (int offset = 16; offset > 0; offset /= 2) {
            const double other = shuffle_xor(high, offset), rest = shuffle_xor(low, offset);
            add(other);
            low = __dadd_rn(low, rest);
        }
    }
};

template <typename T, typename I>
__global__ void residual_twice(I n, const I* __restrict__ indptr, const I* __restrict__ indices, const T* __restrict__ data,
                               const T* __restrict__ x, const T* __restrict__ b, double factor, T* r)
{
    const long long i = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (i >= n) return;
    const int lane = threadIdx.x % 32;
    // b goes to the first lane alone; factor is a power of two
    Twice re = {lane ? 0.0 : double(real(b[i])) / factor, 0.0}, im = {lane ? 0.0 : double(imag(b[i])) / factor, 0.0};
    for (long long p = (long long)indptr[i] + lane; p < indptr[i + 1]; p += 32) {
        const T a = data[p], v = x[indices[p]];
        re.add_product(-double(real(a)), double(real(v)));
        if (sizeof(T) > sizeof(Real<T>)) {
            re.add_product(double(imag(a)), double(imag(v)));
            im.add_product(-double(real(a)), double(imag(v)));
            im.add_product(-double(imag(a)), double(real(v)));
        }
    }
    re.add_lanes();
    im.add_lanes();
    if (lane == 0) assign(r[i], (re.high + re.low) * factor, (im.high + im.low) * factor);
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
