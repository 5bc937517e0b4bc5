// Checks of a CSR matrix in one pass, a thread a row, and the places of its diagonal. Twin:
// kernels/reference/inspection.py:inspect. found (six words, 0 before):
//   0     the smallest row with a column outside 0..n-1, or with row pointers that descend, leave the arrays or do not
//         span them
//   1     pairs of neighbouring entries that are not in ascending order
//   2, 3  entries that are not finite, and the smallest row with one
//   4, 5  rows without a diagonal entry, and the smallest of them
// A smallest row is kept as its complement, 0 if there is no such row. Sums and maxima of integers by atomics: the same
// in every run.
#include "runtime/finelu.cuh"
#include "runtime/sums.cuh"

using namespace fl;

template <typename T, typename I>
__global__ void inspect(I n, I nnz, const I* __restrict__ indptr, const I* __restrict__ indices, const T* __restrict__ data, I* diag,
                        unsigned long long* found)
{
    const I i = I(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    I place = -1, before = -1;
    unsigned long long unsorted = 0, strange = 0;
    const I start = indptr[i], stop = indptr[i + 1];
    bool corrupt = start < 0 || stop < start || stop > nnz || (i == 0 && (start != 0 || indptr[n] != nnz));
    for (I p = start; p < stop && !corrupt; ++p) {
        const I j = indices[p];
        corrupt = j < 0 || j >= n;
        unsorted += j <= before;
        before = j;
        strange += !is_finite(data[p]);
        if (j == i) place = p;
    }
    diag[i] = place;
    if (corrupt) atomicMax(found + 0, ~(unsigned long long)i);
    if (unsorted) atomicAdd(found + 1, unsorted);
    if (strange) {
        atomicAdd(found + 2, strange);
        atomicMax(found + 3, ~(unsigned long long)i);
    }
    if (place < 0) {
        atomicAdd(found + 4, 1ull);
        atomicMax(found + 5, ~(unsigned long long)i);
    }
}

// root[i] = the root of |a_ii|, or where that is not stored (diag[i] = -1), or at most 1000 eps of it, of the largest
// magnitude of row i.
template <typename T, typename I>
__global__ void roots(I n, const I* __restrict__ indptr, const T* __restrict__ data, const I* __restrict__ diag, double* root)
{
    const I i = I(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const double size = diag[i] < 0 ? 0.0 : modulus(data[diag[i]]);
    const double noise = 1000 * (sizeof(typename RealOf<T>::type) == 4 ? 1.1920928955078125e-07 : 2.220446049250313e-16);
    double largest = size;
    for (I p = indptr[i]; p < indptr[i + 1]; ++p) largest = fmax(largest, modulus(data[p]));
    root[i] = sqrt(size <= noise * largest ? largest : size);
}

// the difference of two numbers in units of `size`
__device__ inline double relative(double difference, double size)
{
    return difference == 0.0 ? 0.0 : isfinite(difference) ? difference / size : difference;
}

// A compared with its transpose: twin kernels/reference/inspection.py:mirrored. A is finite; rows are sorted, without
// duplicates. found (six words, 0 before the launch): the bits of the five magnitudes of the twin, and how many entries
// have a stored a_ji; root: of `roots`. A thread an entry, whose row and partner are searched; bits of numbers that are
// not negative are in the order of the numbers, so maxima are by atomics of integers: the same in every run. Launch:
// any grid, blockDim.x a multiple of 32.
template <typename T, typename I>
__global__ void mirrored(I n, const I* __restrict__ indptr, const I* __restrict__ indices, const T* __restrict__ data,
                         const double* __restrict__ root, unsigned long long* found)
{
    double most[5] = {0.0, 0.0, 0.0, 0.0, 0.0};
    unsigned partners = 0;
    const size_t entries = size_t(indptr[n]), step = size_t(gridDim.x) * blockDim.x;
    for (size_t p = size_t(blockIdx.x) * blockDim.x + threadIdx.x; p < entries; p += step) {
        const I i = list_of(indptr, n, p), j = indices[p], q = find(indices, indptr[j], indptr[j + 1], i);
        const T a = data[p], other = q < 0 ? T(0) : data[q];
        const double adjoint = modulus(a - conj(other)), transposed = modulus(a - other);
        const double size = fmax(root[i] * root[j], fmax(modulus(a), modulus(other)));
        most[0] = fmax(most[0], modulus(a));
        most[1] = fmax(most[1], adjoint);
        most[2] = fmax(most[2], transposed);
        most[3] = fmax(most[3], relative(adjoint, size));
        most[4] = fmax(most[4], relative(transposed, size));
        partners += q >= 0;
    }
    for (int k = 0; k < 5; ++k) most[k] = lanes_max(most[k]);
    partners = lanes_sum(partners);
    if (threadIdx.x % 32) return;
    for (int k = 0; k < 5; ++k) atomicMax(found + k, (unsigned long long)__double_as_longlong(most[k]));
    atomicAdd(found + 5, (unsigned long long)partners);
}

// found (five words, 0 before): 0 rows without a diagonal entry, 1 the smallest, 2 rows where it is 0, 3 the smallest,
// 4 rows where it is not a positive real number, or not stored; of a smallest row as `inspect`. Twin:
// kernels/reference/inspection.py:diagonal.
template <typename T, typename I>
__global__ void diagonal(I n, const T* __restrict__ data, const I* __restrict__ diag, unsigned long long* found)
{
    const I i = I(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const bool missing = diag[i] < 0;
    const T d = missing ? T(0) : data[diag[i]];
    if (real(d) > 0 && imag(d) == 0) return;
    atomicAdd(found + 4, 1ull);
    if (missing || d == T(0)) {
        atomicAdd(found + (missing ? 0 : 2), 1ull);
        atomicMax(found + (missing ? 1 : 3), ~(unsigned long long)i);
    }
}

// sums[0], sums[1]: of the entries off the diagonal with its sign, and of the magnitudes of those with the other;
// rows[0]: how many rows these do not outweigh, rows[1]: where the magnitudes add up to more than share |a_ii|; all 0
// before. LANES threads a row; sums as in runtime/sums.cuh. Twin: kernels/reference/inspection.py:signs. Launch: any
// 1-D grid, blockDim.x = 256; room: 2 gridDim.x doubles.
template <typename T, typename I>
__global__ void __launch_bounds__(256) signs(I n, const I* __restrict__ indptr, const T* __restrict__ data,
                                             const I* __restrict__ diag, double tolerance, double share, double* room,
                                             unsigned* counter, double* sums, unsigned long long* rows)
{
    constexpr int LANES = 8;
    double same = 0, opposite = 0;
    unsigned fine = 0, coupled = 0;
    const size_t step = size_t(gridDim.x) * blockDim.x / LANES, lane = threadIdx.x % LANES;
    for (size_t base = size_t(blockIdx.x) * blockDim.x / LANES; base < size_t(n); base += step) {
        const size_t i = base + threadIdx.x / LANES;
        double positive = 0, negative = 0, d = 0;
        if (i < size_t(n)) {
            d = double(data[diag[i]]);
            for (I p = indptr[i] + I(lane); p < indptr[i + 1]; p += LANES) {
                if (p == diag[i]) continue;
                const double a = d >= 0 ? double(data[p]) : -double(data[p]);
                if (a > 0) positive += a;
                else negative -= a;
            }
        }
        same += positive;
        opposite += negative;
        positive = lanes_sum<LANES>(positive);
        negative = lanes_sum<LANES>(negative);
        if (lane == 0 && i < size_t(n)) {
            fine += fabs(d) + positive - negative >= -tolerance * fabs(d);
            coupled += positive + negative > share * fabs(d);
        }
    }
    fine = lanes_sum(fine);
    coupled = lanes_sum(coupled);
    if (threadIdx.x % 32 == 0) {
        atomicAdd(rows, (unsigned long long)fine);
        atomicAdd(rows + 1, (unsigned long long)coupled);
    }
    same = block_sum(same);
    opposite = block_sum(opposite);
    if (threadIdx.x == 0) {
        room[blockIdx.x] = same;
        room[gridDim.x + blockIdx.x] = opposite;
    }
    if (!last_block(counter)) return;
    same = sum_of_blocks(room);
    opposite = sum_of_blocks(room + gridDim.x);
    if (threadIdx.x == 0) {
        sums[0] = same;
        sums[1] = opposite;
    }
}

// Sets unlike where two lists differ.
template <typename I>
__global__ void same(long long n, const I* __restrict__ a, const I* __restrict__ b, int* unlike)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && a[i] != b[i]) *unlike = 1;
}

// Sets unlike to mark where the places of two matrices differ (rows + 1 pointers, entries columns), or a value is not
// finite. Launch: any 1-D grid.
template <typename T, typename I>
__global__ void alike(long long pointers, long long entries, const I* __restrict__ indptr, const I* __restrict__ indices,
                      const T* __restrict__ data, const I* __restrict__ their_indptr, const I* __restrict__ their_indices,
                      int mark, int* unlike)
{
    const long long step = (long long)gridDim.x * blockDim.x, first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    bool differs = false;
    for (long long p = first; p < entries; p += step) differs |= indices[p] != their_indices[p] || !is_finite(data[p]);
    for (long long i = first; i < pointers; i += step) differs |= indptr[i] != their_indptr[i];
    if (differs) *unlike = mark;
}
