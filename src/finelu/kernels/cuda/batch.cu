// Many systems of one pattern. Twins: kernels/reference/batch.py, name by name.
//
// factor_groups, solve_groups, solve_direct_groups: a block takes the groups blockIdx.x, blockIdx.x + gridDim.x, ...; see
// batch.cuh for the layout, for who writes what, and why the bits are the same in every run. No thread waits but at
// barriers that all threads of the block reach: levels, steps and groups are counted alike in all of them.
// Launch: any 1-D grid of blocks of whole warps, 1024 threads at most; solve_direct_groups has room for the factors and
// for three vectors of each block.
//
// interleave, separate: blocks of 32 x 8 threads, blockIdx.x of 32 entries, blockIdx.y of a group.
// residual_twice: a block a system of `which`; rows are shared by its threads, in a fixed order.
#include "runtime/finelu.cuh"
#include "runtime/sums.cuh"
#include "runtime/twice.cuh"
#include "batch.cuh"

using namespace fl;

template <typename T>
__global__ void __launch_bounds__(1024) factor_groups(PLAN, int nnz, int k, const T* __restrict__ a, Real<T> guard, int positive,
                                                      T* lu, long long* first_bad, long long* replaced)
{
    const Plan<T> plan AS_PLAN;
    const int lane = own_lane(), m = indptr[n];
    for (int g = int(blockIdx.x); g * GROUP < k; g += int(gridDim.x)) {
        int bad, count;
        factor_group(plan, a + size_t(g) * nnz * GROUP + lane, guard, positive != 0, lu + size_t(g) * m * GROUP + lane, bad, count);
        const int s = g * GROUP + lane;
        if (own_warp() == 0 && s < k) {
            first_bad[s] = bad < n ? rows[bad] : -1;
            replaced[s] = count;
        }
    }
}

// r, y, x (groups, n, 32).
template <typename T>
__global__ void __launch_bounds__(1024) solve_groups(PLAN, int k, const T* lu, const T* r, T* y, T* x)
{
    const Plan<T> plan AS_PLAN;
    const int lane = own_lane(), m = indptr[n];
    for (int g = int(blockIdx.x); g * GROUP < k; g += int(gridDim.x)) {
        const size_t at = size_t(g) * n * GROUP + lane;
        solve_group(plan, lu + size_t(g) * m * GROUP + lane, r + at, y + at, x + at);
    }
}

// a (groups, nnz, 32); b, x (groups, n, 32); lu, work: room for the factors, and for 3 vectors, of a group, each block.
template <typename T>
__global__ void __launch_bounds__(1024)
    solve_direct_groups(PLAN, int nnz, int k, const int* __restrict__ a_indptr, const int* __restrict__ a_indices,
                        const T* __restrict__ a, const T* __restrict__ b, Real<T> guard, Real<T> wanted, int most, Real<T> eps,
                        Real<T> tiny, const Real<T>* __restrict__ tolerance, T* lu, T* work, T* x, Real<T>* norms,
                        Real<T>* roundings, Real<T>* errors, long long* steps, long long* first_bad, long long* replaced)
{
    const Plan<T> plan AS_PLAN;
    const int lane = own_lane(), m = indptr[n];
    const size_t length = size_t(n) * GROUP;
    lu += size_t(blockIdx.x) * m * GROUP + lane;
    T* const room = work + size_t(blockIdx.x) * 3 * length + lane;
    T *const r = room + length, *const better = r + length;
    for (int g = int(blockIdx.x); g * GROUP < k; g += int(gridDim.x)) {
        const int s = g * GROUP + lane;
        const T *const entries = a + size_t(g) * nnz * GROUP + lane, *const rhs = b + g * length + lane;
        T* const y = x + g * length + lane;
        int bad, count, taken = 0;
        factor_group(plan, entries, guard, false, lu, bad, count);
        solve_group(plan, lu, rhs, room, y);
        Figures<Real<T>> known = residual_group(n, a_indptr, a_indices, entries, rhs, y, eps, tiny, r);
        const Real<T> claim = tolerance[min(s, k - 1)];
        bool gains = true;
        for (int step = 0; step < most; ++step) {
            const bool refines = gains && (known.error > wanted || known.norm > claim);
            if (!__syncthreads_or(refines)) break;
            solve_group(plan, lu, r, room, better);
            for (int i = own_warp(); i < n; i += warps()) better[size_t(i) * GROUP] += y[size_t(i) * GROUP];
            __syncthreads();
            const Figures<Real<T>> found = residual_group(n, a_indptr, a_indices, entries, rhs, better, eps, tiny, r);
            gains = refines && found.error < known.error;
            if (!gains) continue;  // no barrier follows in this step
            known = found;
            ++taken;
            for (int i = own_warp(); i < n; i += warps()) y[size_t(i) * GROUP] = better[size_t(i) * GROUP];
        }
        __syncthreads();
        if (own_warp() == 0 && s < k) {
            norms[s] = known.norm;
            roundings[s] = known.rounding;
            errors[s] = known.error;
            steps[s] = taken;
            first_bad[s] = bad < n ? rows[bad] : -1;
            replaced[s] = count;
        }
    }
}

// out (groups, length, 32) of rows (k, length); a group that is not full repeats the last row.
template <typename T>
__global__ void interleave(int k, int length, const T* __restrict__ rows, T* out)
{
    __shared__ __align__(16) unsigned char room[GROUP * (GROUP + 1) * sizeof(T)];
    T* const tile = reinterpret_cast<T*>(room);
    const int first = int(blockIdx.x) * GROUP, lane = int(threadIdx.x);
    for (int s = int(threadIdx.y); s < GROUP; s += int(blockDim.y)) {
        const size_t row = min(int(blockIdx.y) * GROUP + s, k - 1);
        if (first + lane < length) tile[s * (GROUP + 1) + lane] = rows[row * length + first + lane];
    }
    __syncthreads();
    for (int p = int(threadIdx.y); p < GROUP && first + p < length; p += int(blockDim.y))
        out[(size_t(blockIdx.y) * length + first + p) * GROUP + lane] = tile[lane * (GROUP + 1) + p];
}

// The reverse, for the first k systems.
template <typename T>
__global__ void separate(int k, int length, const T* __restrict__ grouped, T* rows)
{
    __shared__ __align__(16) unsigned char room[GROUP * (GROUP + 1) * sizeof(T)];
    T* const tile = reinterpret_cast<T*>(room);
    const int first = int(blockIdx.x) * GROUP, lane = int(threadIdx.x);
    for (int p = int(threadIdx.y); p < GROUP && first + p < length; p += int(blockDim.y))
        tile[lane * (GROUP + 1) + p] = grouped[(size_t(blockIdx.y) * length + first + p) * GROUP + lane];
    __syncthreads();
    for (int s = int(threadIdx.y); s < GROUP; s += int(blockDim.y)) {
        const int row = int(blockIdx.y) * GROUP + s;
        if (row < k && first + lane < length) rows[size_t(row) * length + first + lane] = tile[s * (GROUP + 1) + lane];
    }
}

template <typename T>
__global__ void residual_twice(int n, int nnz, int columns, const int* __restrict__ indptr, const int* __restrict__ indices,
                               const T* __restrict__ values, const T* __restrict__ x, const T* __restrict__ b,
                               const long long* __restrict__ which, double* norms)
{
    const size_t s = which[blockIdx.x];
    const T *const a = values + s * nnz, *const mine = x + s * n, *const rhs = b + (columns == 1 ? 0 : s * n);
    double squares = 0;
    for (int i = int(threadIdx.x); i < n; i += int(blockDim.x)) {
        Twice re = {double(real(rhs[i])), 0.0}, im = {double(imag(rhs[i])), 0.0};
        for (int p = indptr[i]; p < indptr[i + 1]; ++p) {
            const T v = a[p], w = mine[indices[p]];
            re.add_product(-double(real(v)), double(real(w)));
            if (sizeof(T) > sizeof(Real<T>)) {
                re.add_product(double(imag(v)), double(imag(w)));
                im.add_product(-double(real(v)), double(imag(w)));
                im.add_product(-double(imag(v)), double(real(w)));
            }
        }
        const double a_re = re.high + re.low, a_im = im.high + im.low;
        squares += a_re * a_re + a_im * a_im;
    }
    squares = block_sum(squares);
    if (threadIdx.x == 0) norms[blockIdx.x] = sqrt(squares);
}
