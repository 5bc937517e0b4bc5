// Groups of 32 systems of one pattern, a system a lane, a group a thread block: what batch.cu and batch_krylov.cu share.
//
// The numbers of a group are interleaved: entry p of its systems has the places 32 p, ..., 32 p + 31, so that a warp reads
// and writes them at once, and all indices are the same in a warp. A pointer to them has the lane added. The warps of a
// block share the rows, of a triangle those of one level, and meet at a barrier behind each. A row has one writer, and no
// thread reads a row of its own level, so that nothing depends on the order of the warps. The last group has the last
// system in its remaining lanes, too.
#pragma once

namespace fl {

constexpr int GROUP = 32;  // systems, as in batch.py

// As BatchPlan of kernels/operands.py; and the rows in the order of their levels, for L and for U, with the places where
// levels begin; and for each entry the products that are subtracted from it: of entries left[u] and right[u], from
// begin[p] to begin[p + 1].
template <typename T>
struct Plan {
    int n, levels, upper_levels;
    const int *indptr, *indices, *diag, *places;
    const Real<T>* weights;
    const int *rows, *columns;
    const Real<T> *row_scale, *column_scale;
    const int *order, *starts, *upper_order, *upper_starts, *begin, *left, *right;
};

template <typename R> __device__ inline R size_of(R a) { return fabs(a); }
template <typename R> __device__ inline R size_of(Complex<R> a) { return R(modulus(a)); }

__device__ inline int own_warp() { return int(threadIdx.x) / GROUP; }
__device__ inline int own_lane() { return int(threadIdx.x) % GROUP; }
__device__ inline int warps() { return int(blockDim.x) / GROUP; }

// The sum, or the largest, over the warps of the block of a value of each lane, in the order of the warps; in all of them.
template <typename T> __device__ inline T sum_of_warps(T v)
{
    __shared__ __align__(16) unsigned char room[32 * GROUP * sizeof(T)];
    T* const part = reinterpret_cast<T*>(room);
    __syncthreads();
    part[threadIdx.x] = v;
    __syncthreads();
    T total = part[own_lane()];
    for (int w = 1; w < warps(); ++w) total += part[w * GROUP + own_lane()];
    return total;
}
template <typename R> __device__ inline R max_of_warps(R v)
{
    __shared__ R part[32 * GROUP];
    __syncthreads();
    part[threadIdx.x] = v;
    __syncthreads();
    for (int w = 0; w < warps(); ++w) v = max(v, part[w * GROUP + own_lane()]);
    return v;
}

// The factors of a group, with reciprocals of the pivots; twin of kernels/reference/batch.py:factor. first_bad, a row of
// L U, and replaced are the same in all warps.
template <typename T>
__device__ void factor_group(const Plan<T>& plan, const T* a, Real<T> guard, bool positive, T* lu, int& first_bad, int& replaced)
{
    using R = Real<T>;
    int bad = 0x7fffffff, count = 0;
    for (int level = 0; level < plan.levels; ++level) {
        for (int t = plan.starts[level] + own_warp(); t < plan.starts[level + 1]; t += warps()) {
            const int i = plan.order[t], pivot = plan.diag[i];
            R largest = 0;
            T diagonal = T(0);
            for (int p = plan.indptr[i]; p < plan.indptr[i + 1]; ++p) {
                const R weight = plan.weights[p];
                T v = weight == R(0) ? T(0) : T(weight) * a[size_t(plan.places[p]) * GROUP];
                largest = max(largest, size_of(v));
#pragma unroll 4
                for (int u = plan.begin[p]; u < plan.begin[p + 1]; ++u)
                    v -= lu[size_t(plan.left[u]) * GROUP] * lu[size_t(plan.right[u]) * GROUP];
                if (p < pivot) v = v * lu[size_t(plan.diag[plan.indices[p]]) * GROUP];
                if (p == pivot) diagonal = v;
                else lu[size_t(p) * GROUP] = v;
            }
            const R size = size_of(diagonal), least = guard * largest;
            if (size < least) {
                diagonal = size > R(0) ? diagonal * T(least / size) : diagonal + T(least);
                ++count;
            }
            const bool good = is_finite(size) && !(diagonal == T(0)) && (!positive || real(diagonal) > R(0));
            if (!good) bad = min(bad, i);
            lu[size_t(pivot) * GROUP] = T(1) / diagonal;
        }
        __syncthreads();
    }
    first_bad = -max_of_warps(-bad);
    replaced = sum_of_warps(count);
}

// x = (L U)^-1 r in the order and the scaling of A; y: room.
template <typename T>
__device__ void solve_group(const Plan<T>& plan, const T* lu, const T* r, T* y, T* x)
{
    for (int level = 0; level < plan.levels; ++level) {
        for (int t = plan.starts[level] + own_warp(); t < plan.starts[level + 1]; t += warps()) {
            const int i = plan.order[t];
            T s = r[size_t(plan.rows[i]) * GROUP] * T(plan.row_scale[i]);
#pragma unroll 4
            for (int p = plan.indptr[i]; p < plan.diag[i]; ++p) s -= lu[size_t(p) * GROUP] * y[size_t(plan.indices[p]) * GROUP];
            y[size_t(i) * GROUP] = s;
        }
        __syncthreads();
    }
    for (int level = 0; level < plan.upper_levels; ++level) {
        for (int t = plan.upper_starts[level] + own_warp(); t < plan.upper_starts[level + 1]; t += warps()) {
            const int i = plan.upper_order[t], pivot = plan.diag[i];
            T s = y[size_t(i) * GROUP];
#pragma unroll 4
            for (int p = pivot + 1; p < plan.indptr[i + 1]; ++p) s -= lu[size_t(p) * GROUP] * y[size_t(plan.indices[p]) * GROUP];
            s = s * lu[size_t(pivot) * GROUP];
            y[size_t(i) * GROUP] = s;
            x[size_t(plan.columns[i]) * GROUP] = s * T(plan.column_scale[i]);
        }
        __syncthreads();
    }
}

template <typename R>
struct Figures {
    R norm, rounding, error;
};

// r = b - A x, and its figures, the same in all warps; see kernels/reference/batch.py:_residual.
template <typename T>
__device__ Figures<Real<T>> residual_group(int n, const int* indptr, const int* indices, const T* a, const T* b, const T* x,
                                           Real<T> eps, Real<T> tiny, T* r)
{
    using R = Real<T>;
    R squares = 0, roundings = 0, worst = 0;
    for (int i = own_warp(); i < n; i += warps()) {
        T s = b[size_t(i) * GROUP];
        R size = size_of(s);
        const int begin = indptr[i], end = indptr[i + 1];
#pragma unroll 4
        for (int p = begin; p < end; ++p) {
            const T v = a[size_t(p) * GROUP] * x[size_t(indices[p]) * GROUP];
            s -= v;
            size += size_of(v);
        }
        r[size_t(i) * GROUP] = s;
        const R rounding = R(end - begin + 1) * eps * size, length = size_of(s);
        squares += length * length;
        roundings += rounding * rounding;
        worst = max(worst, length / max(size, tiny));
    }
    Figures<R> found;
    found.norm = sqrt(sum_of_warps(squares));
    found.rounding = sqrt(sum_of_warps(roundings));
    found.error = max_of_warps(worst);
    if (!is_finite(found.norm)) found.error = found.norm - found.norm;
    return found;
}

}  // namespace fl

// The first arguments of a kernel, and the Plan of them.
#define PLAN                                                                                                             \
    int n, int levels, int upper_levels, const int *__restrict__ indptr, const int *__restrict__ indices,                \
        const int *__restrict__ diag, const int *__restrict__ places, const Real<T>*__restrict__ weights,                \
        const int *__restrict__ rows, const int *__restrict__ columns, const Real<T>*__restrict__ row_scale,             \
        const Real<T>*__restrict__ column_scale, const int *__restrict__ order, const int *__restrict__ starts,          \
        const int *__restrict__ upper_order, const int *__restrict__ upper_starts, const int *__restrict__ begin,        \
        const int *__restrict__ left, const int *__restrict__ right
#define AS_PLAN                                                                                                          \
    {n,         levels, upper_levels, indptr, indices, diag,        places,       weights, rows, columns, row_scale,     \
     column_scale, order,  starts,       upper_order, upper_starts, begin, left,    right}
