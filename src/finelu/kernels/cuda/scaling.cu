// Scaling by rows and columns, apart below the diagonal and on and above it. Twin: kernels/reference/scaling.py:scale,
// the same bits. LANES threads a row, none waits; out may be a. A null vector means ones.
#include "runtime/finelu.cuh"

using namespace fl;

constexpr int LANES = 8;

template <typename T, typename R, typename I>
__global__ void scale(I n, const I* __restrict__ indptr, const I* __restrict__ indices, const T* a,
                      const R* __restrict__ lower_left, const R* __restrict__ lower_right,
                      const R* __restrict__ upper_left, const R* __restrict__ upper_right, T* out)
{
    const I i = own_row<I, LANES>();
    if (i >= n) return;
    const R below = lower_left == nullptr ? R(1) : lower_left[i], above = upper_left == nullptr ? R(1) : upper_left[i];
    for (I p = indptr[i] + threadIdx.x % LANES; p < indptr[i + 1]; p += LANES) {
        const I j = indices[p];
        const R* const right = j < i ? lower_right : upper_right;
        T v = a[p] * T(j < i ? below : above);
        if (right != nullptr) v = v * T(right[j]);
        out[p] = v;
    }
}

// Below the diagonal out_ij / out_jj; pivots are only read. An entry whose quotient is not finite keeps its value and
// is counted, see `refuse`. Twin: kernels/reference/scaling.py:divide_by_pivots, to an ulp or two.
template <typename T, typename I>
__global__ void divide_by_pivots(I n, const I* __restrict__ indptr, const I* __restrict__ indices,
                                 const I* __restrict__ diag, T* out, long long* refused)
{
    const I i = own_row<I, LANES>();
    if (i >= n) return;
    for (I p = indptr[i] + threadIdx.x % LANES; p < diag[i]; p += LANES) {
        const T v = out[p] / out[diag[indices[p]]];
        if (is_finite(v)) out[p] = v; else refuse(refused, i);
    }
}

// d[i] = 1 / sqrt(|a_ii|), 1 where a_ii is 0. found[0]: the smallest row whose pivot is not finite or zero, of Cholesky
// not positive; found[1]: the smallest whose pivot is not a positive real number. Both 0x7f bytes before the launch.
// Twin: kernels/reference/scaling.py:pivots.
template <typename T, typename R, typename I>
__global__ void pivots(I n, const I* __restrict__ diag, const T* __restrict__ a, int cholesky, R* d, long long* found)
{
    const I i = I(own_item());
    if (i >= n) return;
    const T p = a[diag[i]];
    const R size = R(hypot(double(real(p)), double(imag(p))));
    d[i] = size > 0 ? R(1) / sqrt(size) : R(1);
    if (!is_finite(p) || (cholesky ? !(real(p) > 0) : p == T(0))) atomicMin(found, (long long)i);
    if (!(real(p) > 0) || imag(p) != 0) atomicMin(found + 1, (long long)i);
}

// roots, 1 / weights and 1 / roots of each row. Twin: kernels/reference/scaling.py:dropping_weights, to an ulp or two.
template <typename T, typename R, typename I>
__global__ void dropping_weights(I n, const I* __restrict__ diag, const T* __restrict__ f, const T* __restrict__ diagonal,
                                 int cholesky, R* roots, R* by_weights, R* by_roots)
{
    const I i = I(own_item());
    if (i >= n) return;
    const R pivot = R(modulus(f[diag[i]])), root = cholesky ? pivot : sqrt(pivot), own = sqrt(R(modulus(diagonal[i])));
    roots[i] = root;
    by_weights[i] = R(1) / sqrt(root * (own > root ? own : root));
    by_roots[i] = R(1) / root;
}

// found[0] (0x7f bytes before): the smallest row with a value that is not finite or with a zero pivot. LANES threads a
// row. Twin: kernels/reference/scaling.py:first_unusable.
template <typename T, typename I>
__global__ void unusable(I n, const I* __restrict__ indptr, const I* __restrict__ diag, const T* __restrict__ a, long long* found)
{
    const I i = own_row<I, LANES>();
    if (i >= n) return;
    bool good = !(a[diag[i]] == T(0));
    for (I p = indptr[i] + threadIdx.x % LANES; p < indptr[i + 1]; p += LANES) good = good && is_finite(a[p]);
    if (!good) atomicMin(found, (long long)i);
}

// The 2-norm of each row, its entries first divided by the largest. Twin: kernels/reference/scaling.py:row_norms, to an
// ulp or two.
template <typename T, typename I>
__global__ void row_norms(I n, const I* __restrict__ indptr, const T* __restrict__ a, double* norms)
{
    const I i = own_row<I, LANES>();
    const int rank = threadIdx.x % LANES;
    const I begin = i < n ? indptr[i] : I(0), end = i < n ? indptr[i + 1] : I(0);
    const auto size = [&](I p) { return hypot(double(real(a[p])), double(imag(a[p]))); };
    double largest = 0, sum = 0;
    for (I p = begin + rank; p < end; p += LANES) largest = fmax(largest, size(p));
    largest = lanes_max<LANES>(largest);
    const double scale = largest > 0 ? largest : 1;
    for (I p = begin + rank; p < end; p += LANES) sum += size(p) / scale * (size(p) / scale);
    sum = lanes_sum<LANES>(sum);
    if (i < n && rank == 0) norms[i] = scale * sqrt(sum);
}

// Whether A may be positive definite (bad stays 0), and scales for its diagonal. Twin:
// kernels/reference/scaling.py:definite_scale.
template <typename T, typename R, typename I>
__global__ void definite_scale(I n, const I* __restrict__ indptr, const I* __restrict__ indices, const I* __restrict__ diag,
                               const T* __restrict__ a, R limit, R* out, unsigned* bad)
{
    const I i = own_row<I, LANES>();
    if (i >= n) return;
    const T d = a[diag[i]];
    bool fine = real(d) > 0 && imag(d) == 0;
    if (fine) {
        const R root = sqrt(real(d));
        for (I p = indptr[i] + threadIdx.x % LANES; p < indptr[i + 1]; p += LANES) {
            const R there = real(a[diag[indices[p]]]);
            const T v = a[p];
            fine = fine && there > 0 && R(hypot(real(v), imag(v))) <= root * sqrt(there) * limit;
        }
        int exponent;
        frexp(real(d), &exponent);
        if (threadIdx.x % LANES == 0) out[i] = ldexp(R(1), -(exponent >= 0 ? exponent / 2 : -((1 - exponent) / 2)));
    }
    if (!fine) *bad = 1;
}
