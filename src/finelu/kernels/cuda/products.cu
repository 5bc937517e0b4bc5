// Products of matrices with vectors, and residuals. Twins: kernels/reference/products.py, name by name.
//
// residual, residual_twice: b - factor A x for a CSR matrix, with a bound of its rounding error, and the same in twice
// the precision. `lanes` neighbouring threads take a row, a power of two up to 32, in residual_twice 32: each takes
// every lanes-th entry, and they add up by shuffles in a fixed order, so that the bits are the same in every run. Each
// row of r and bound has one writer, and no thread reads them.
//
// product: A x, and on request y^H A x, added up as in runtime/sums.cuh. A block takes `rows` neighbouring rows at a
// time, a power of two. All its threads bring the terms of these rows into shared memory, AT_ONCE at a time and in the
// order of global memory, and request the next ones meanwhile. Then lanes = blockDim.x / rows threads add up each row,
// every `lanes`-th term each. Where the rows are long, each warp adds up a row by itself, and the whole block a row of
// more than LONG entries. The order of every sum is fixed by the pattern and `rows`: the same bits in every run. Each
// y_i has one writer.
// Launch: any 1-D grid, blockDim.x = THREADS.
//
// subtract_product, dense_product: vectors are (n,) or (n, count), see runtime/columns.cuh. The order of a sum depends on
// the number of columns.
#include "runtime/finelu.cuh"
#include "runtime/columns.cuh"
#include "runtime/sums.cuh"
#include "runtime/twice.cuh"

using namespace fl;

template <typename T> __device__ inline Real<T> size_of(T a) { return fabs(real(a)) + fabs(imag(a)); }
__device__ inline void assign(float& to, double re, double) { to = float(re); }
__device__ inline void assign(double& to, double re, double) { to = re; }
template <typename R> __device__ inline void assign(Complex<R>& to, double re, double im) { to = Complex<R>(R(re), R(im)); }

template <typename T, typename I>
__global__ void residual(I n, int lanes, const I* __restrict__ indptr, const I* __restrict__ indices, const T* __restrict__ data,
                         const T* __restrict__ x, const T* __restrict__ b, Real<T> factor, Real<T> eps, T* r, Real<T>* bound)
{
    const long long i = ((long long)blockIdx.x * blockDim.x + threadIdx.x) / lanes;
    const int lane = int(threadIdx.x) & (lanes - 1);
    T total = T(0);
    Real<T> size = 0;
    I start = 0, stop = 0;
    if (i < n) {
        start = indptr[i];
        stop = indptr[i + 1];
    }
    for (long long p = (long long)start + lane; p < stop; p += lanes) {
        const T a = data[p], v = x[indices[p]];
        total += a * v;
        size += size_of(a) * size_of(v);
    }
    total = group_sum(total, lanes);
    size = group_sum(size, lanes);
    if (lane || i >= n) return;
    r[i] = b[i] - T(factor) * total;
    bound[i] = Real<T>(stop - start + 1) * eps * (factor * size + size_of(b[i]));
}

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

constexpr int THREADS = 256;    // as in products.py
constexpr int AT_ONCE = 2048;   // as in products.py: terms of a block in shared memory
constexpr int STREAMED = 8192;  // entries of the rows of a block up to which they pass through shared memory
constexpr int LONG = 4096;      // entries of a row up to which one warp adds it up

template <typename T, typename I>
__device__ inline T part_of_row(I first, I stop, int step, const I* __restrict__ indices, const T* __restrict__ data,
                                const T* __restrict__ x)
{
    T sum = T(0);
#pragma unroll 4
    for (I p = first; p < stop; p += step) sum += data[p] * x[indices[p]];
    return sum;
}

// y may be null: then A x alone. room: gridDim.x sums of T; counter, total: as in runtime/sums.cuh.
template <typename T, typename I>
__global__ void __launch_bounds__(256) product(I n, int rows, const I* __restrict__ indptr, const I* __restrict__ indices,
                                               const T* __restrict__ data, const T* __restrict__ x, T* out,
                                               const T* __restrict__ y, T* room, unsigned* counter, T* total)
{
    __shared__ __align__(16) unsigned char shared[AT_ONCE * sizeof(T)];
    T* const terms = reinterpret_cast<T*>(shared);
    T dot = T(0);
    constexpr int EACH = AT_ONCE / THREADS;
    const int t = threadIdx.x, lanes = THREADS / rows;
    const I groups = n / rows + (n % rows != 0);
    I column[EACH];  // of the entries that come next
    T value[EACH];
    const auto fetch = [&](I base, I end) {
#pragma unroll
        for (int k = 0; k < EACH; ++k)
            if (base + k * THREADS + t < end) {
                column[k] = indices[base + k * THREADS + t];
                value[k] = data[base + k * THREADS + t];
            }
    };
    const auto begin_of = [&](I group) { return indptr[group < groups ? group * rows : n]; };
    const auto end_of = [&](I group) { return indptr[group < groups && n - group * rows > rows ? group * rows + rows : n]; };
    I begin = begin_of(blockIdx.x), end = end_of(blockIdx.x);
    if (end - begin <= STREAMED) fetch(begin, end);
    for (I group = blockIdx.x; group < groups; group += gridDim.x) {
        const I first = group * rows, last = n - first < rows ? n : first + I(rows);
        const I next_begin = begin_of(group + gridDim.x), next_end = end_of(group + gridDim.x);
        const bool next_streamed = next_end - next_begin <= STREAMED;
        if (end - begin <= STREAMED) {
            const I i = first + I(t / lanes);
            I next = end, stop = end;
            if (i < last) {
                next = indptr[i] + I(t % lanes);
                stop = indptr[i + 1];
            }
            T sum = T(0);
            I base = begin;
            do {  // of an empty group nothing is fetched here, but of the next
                const I upto = end - base < AT_ONCE ? end : base + AT_ONCE;
#pragma unroll
                for (int k = 0; k < EACH; ++k)
                    if (base + k * THREADS + t < upto) terms[k * THREADS + t] = value[k] * x[column[k]];
                if (upto < end) fetch(upto, end);  // while these are added up
                else if (next_streamed) fetch(next_begin, next_end);
                __syncthreads();
                const I until = stop < upto ? stop : upto;
                for (; next < until; next += lanes) sum += terms[next - base];
                __syncthreads();
                base = upto;
            } while (base < end);
            sum = group_sum(sum, lanes);
            if (i < last && t % lanes == 0) {
                out[i] = sum;
                if (y != nullptr) dot += conj(y[i]) * sum;
            }
        } else {
            const int lane = threadIdx.x % 32;
            for (I i = first + I(threadIdx.x / 32); i < last; i += THREADS / 32) {
                const I start = indptr[i], stop = indptr[i + 1];
                if (stop - start > LONG) continue;
                const T sum = lanes_sum(part_of_row<T, I>(start + lane, stop, 32, indices, data, x));
                if (lane == 0) {
                    out[i] = sum;
                    if (y != nullptr) dot += conj(y[i]) * sum;
                }
            }
            for (I i = first; i < last; ++i) {
                const I start = indptr[i], stop = indptr[i + 1];
                if (stop - start <= LONG) continue;
                const T sum = block_sum(part_of_row<T, I>(start + I(threadIdx.x), stop, THREADS, indices, data, x));
                if (threadIdx.x == 0) {
                    out[i] = sum;
                    if (y != nullptr) dot += conj(y[i]) * sum;
                }
            }
            if (next_streamed) fetch(next_begin, next_end);
        }
        begin = next_begin;
        end = next_end;
    }
    if (y == nullptr) return;
    dot = block_sum(dot);
    if (threadIdx.x == 0) room[blockIdx.x] = dot;
    if (!last_block(counter)) return;
    dot = sum_of_blocks(room);
    if (threadIdx.x == 0) *total = dot;
}

// out = y - M x, or M x where y is null; M (n rows) by rows, groups of `threads` neighbouring threads, a power of two
// up to 32.
template <typename T, typename I>
__global__ void subtract_product(I n, int count, int each, int lg, int threads, const I* __restrict__ indptr,
                                 const I* __restrict__ indices, const T* __restrict__ data, const T* __restrict__ x,
                                 const T* __restrict__ y, T* out)
{
    const Columns columns = {count, each, lg};
    const long long i = own_item() / threads;
    const Share own = share_of(columns, int(threadIdx.x) & (threads - 1), threads);
    T sum = T(0);
    if (i < n && own.alive)
        for (I p = indptr[i] + own.first; p < indptr[i + 1]; p += own.step)
            sum += data[p] * x[size_t(indices[p]) * own.columns + own.column];
    sum = sum_of_shares(sum, columns, threads);
    if (i < n && own.alive && own.first == 0) {
        const size_t at = size_t(i) * own.columns + own.column;
        out[at] = y == nullptr ? sum : y[at] - sum;
    }
}

// out_i = bound_i / (the number of entries of row i + 1) factor, a thread a row.
template <typename R, typename I>
__global__ void magnitudes_of_terms(long long n, const I* __restrict__ indptr, const R* __restrict__ bound, double factor, double* out)
{
    const long long i = own_item();
    if (i < n) out[i] = double(bound[i]) / double(indptr[i + 1] - indptr[i] + 1) * factor;
}

// out = M x with M (n, n) by rows, a warp a row.
template <typename T>
__global__ void dense_product(int n, int count, int each, int lg, const T* __restrict__ matrix, const T* __restrict__ x, T* out)
{
    const Columns columns = {count, each, lg};
    const long long i = own_item() / 32;
    if (i >= n) return;
    const Share own = share_of(columns, threadIdx.x % 32, 32);
    T sum = T(0);
    if (own.alive) {
#pragma unroll 8
        for (int j = own.first; j < n; j += own.step) sum += matrix[size_t(i) * n + j] * x[size_t(j) * own.columns + own.column];
    }
    __syncwarp();
    sum = sum_of_shares(sum, columns, 32);
    if (own.alive && own.first == 0) out[size_t(i) * own.columns + own.column] = sum;
}
