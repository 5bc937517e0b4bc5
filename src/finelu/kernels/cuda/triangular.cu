// Sparse triangular solves: T x = b with T = D + N, N strictly triangular, D diagonal (or the identity). Twins:
// kernels/reference/triangular.py:solve_triangular. A row's terms are summed in a fixed order (per lane, then a tree
// over the lanes), so the result is the same in every run.
//
// Operand of the kernels in natural order: row i owns places begin[i] <= p < end[i] of cols and vals; inverse[i] is 1 /
// D_ii, or inverse is null for D = I. Rows are visited as t = 0, 1, ..., n - 1 with i = t, or i = n - 1 - t if
// `reverse`, and N_ij is non-zero only where j is visited before i. x and counter are set to 0xff (pending) before the
// launch. Right-hand sides are the columns of b and x, (n, k) row-major; where a kernel has no `columns`, k = gridDim.y,
// and blockIdx.y is the column. The entries of a row are taken in visiting order too (descending columns if `reverse`):
// those that are awaited longest come last. Values may be stored in less precision, V, than that of the unknowns, T.
#include "runtime/finelu.cuh"
#include "runtime/columns.cuh"
#include "runtime/stored.cuh"

using namespace fl;

constexpr int BATCH = 4;  // entries of a row whose unknowns are asked for at the same time, to overlap their latencies

// Synchronization-free solve without analysis (Dufrechou & Ezzatti 2018), LANES threads a row, rows in natural order.
// Unknowns of the own block are exchanged in shared memory (some 30 ns), all others through L2 (some 700 ns).
// Threads never spin alone: a warp's loop polls once for every lane and goes round, so that rows of one warp may depend
// on each other. Progress: see ticket(). Launch: blockDim.x = BLOCK (multiple of 32), gridDim.x >= n * LANES / BLOCK,
// dynamic shared memory (BLOCK / LANES) * sizeof(T).
template <typename T, typename V, typename I, int LANES>
__global__ void __launch_bounds__(1024) trsv_sync_free(I n, int reverse, const I* __restrict__ begin, const I* __restrict__ end,
                               const I* __restrict__ cols, const V* __restrict__ vals, const T* __restrict__ inverse,
                               const T* __restrict__ b, T* x, unsigned* counter)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    T* own = reinterpret_cast<T*>(shared_bytes);
    const int rows = blockDim.x / LANES;
    const int slot = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    if (lane == 0) make_pending(own[slot]);
    const I first = I(ticket(counter + blockIdx.y)) * rows;  // also the barrier after which own[] is set
    if (first >= n) return;
    const I t = first + slot;
    const bool alive = t < n;
    const I i = reverse ? n - 1 - t : t;
    const size_t k = gridDim.y, c = blockIdx.y;

    T sum = T(0), rhs = T(0), inv = T(1);
    I p = lane, stop = 0, origin = 0;
    if (alive) {
        stop = end[i] - begin[i];
        origin = reverse ? end[i] - 1 : begin[i];
        if (lane == 0) {
            rhs = b[i * k + c];
            if (inverse != nullptr) inv = inverse[i];
        }
    }
    bool done = !alive;
    I col = 0;
    V val = V(0);
    const auto fetch = [&]() {
        if (p < stop) {
            const I place = reverse ? origin - p : origin + p;
            col = cols[place];
            val = vals[place];
        }
    };
    fetch();
    while (__any_sync(ALL, !done)) {
        while (p < stop) {
            const I at = (reverse ? n - 1 - col : col) - first;
            const T v = at >= 0 ? peek_shared(own + at) : peek(x + col * k + c);
            if (pending(v)) break;
            sum += widened<T>(val) * v;
            p += LANES;
            fetch();
        }
        __syncwarp();
        bool ready = !done && p >= stop;
        if (LANES > 1) {
            const unsigned votes = __ballot_sync(ALL, ready);
            ready = (votes & group_mask<LANES>()) == group_mask<LANES>();
            if (__any_sync(ALL, ready)) {
                const T total = lanes_sum<LANES>(sum);
                if (ready) sum = total;
            }
        }
        if (ready) {
            if (lane == 0) {
                const T value = (rhs - sum) * inv;
                post_shared(own + slot, value);
                post(x + i * k + c, value);
            }
            done = true;
        }
    }
}

// One warp's share of a solve in level order: job = (first row in order, rows << 8 | log2 of threads a row), rows of
// one level. `look(j)` polls the unknown j, `tell(i, value)` announces it. Rows of a job never wait for each other, so
// a lane may spin by itself until all that it asked for is there.
template <typename T, typename V, typename I, typename Look, typename Tell>
__device__ inline void solve_job(int2 job, size_t k, size_t c, int reverse, const I* __restrict__ order, const I* __restrict__ begin,
                                 const I* __restrict__ end, const I* __restrict__ cols, const V* __restrict__ vals,
                                 const T* __restrict__ inverse, const T* __restrict__ b, Look look, Tell tell)
{
    const int lg = job.y & 0xff, count = job.y >> 8, lanes = 1 << lg;
    const int slot = (threadIdx.x % 32) >> lg, lane = threadIdx.x & (lanes - 1);
    const bool alive = slot < count;
    T sum = T(0), rhs = T(0), inv = T(1);
    I i = 0;
    if (alive) {
        i = order[job.x + slot];
        const I stop = end[i] - begin[i], origin = reverse ? end[i] - 1 : begin[i];
        if (lane == 0) {
            rhs = b[i * k + c];
            if (inverse != nullptr) inv = inverse[i];
        }
        for (I p = lane; p < stop; p += BATCH * lanes) {
            I col[BATCH];
            V val[BATCH];
            T v[BATCH];
#pragma unroll
            for (int q = 0; q < BATCH; ++q) {
                const bool have = p + q * lanes < stop;
                const I place = reverse ? origin - (p + q * lanes) : origin + (p + q * lanes);
                col[q] = have ? cols[place] : -1;
                val[q] = have ? vals[place] : V(0);
                v[q] = T(0);
                if (have) make_pending(v[q]);
            }
            await_each(v, [&](int q) { return look(col[q]); });
#pragma unroll
            for (int q = 0; q < BATCH; ++q) sum += widened<T>(val[q]) * v[q];
        }
    }
    __syncwarp();
    sum = group_sum(sum, lanes);
    if (alive && lane == 0) tell(i, (rhs - sum) * inv);
}

// Level-packed solve (ILUPACK on GPUs, 2019, section 4.2): rows in level order; a warp takes rows of one level and of
// one size class, 1 to 32 threads a row, see solve_job. Progress: see ticket(). Launch: gridDim.x * blockDim.x / 32 >=
// *n_jobs.
template <typename T, typename V, typename I>
__global__ void __launch_bounds__(256) trsv_level_packed(const int* __restrict__ n_jobs, const int2* __restrict__ jobs, int reverse,
                                  const I* __restrict__ order, const I* __restrict__ begin, const I* __restrict__ end,
                                  const I* __restrict__ cols, const V* __restrict__ vals, const T* __restrict__ inverse,
                                  const T* __restrict__ b, T* x, unsigned* counter)
{
    const int w = int(ticket(counter + blockIdx.y) * (blockDim.x / 32) + threadIdx.x / 32);
    if (w >= *n_jobs) return;
    const size_t k = gridDim.y, c = blockIdx.y;
    solve_job(jobs[w], k, c, reverse, order, begin, end, cols, vals, inverse, b, [&](I j) { return peek(x + j * k + c); },
              [&](I i, T value) { post(x + i * k + c, value); });
}

// The same jobs, all in one block: no dependency leaves the SM, unknowns are exchanged in shared memory (some 0.1 to
// 0.25 us a level). For deep systems with few rows a level. x needs no preparation. Warp w of W takes the jobs w, w +
// W, ... in this order. Progress: all earlier jobs of the warp that holds the first unfinished job are finished, so it
// works on that job, whose dependencies are finished, too.
// Launch: gridDim = (1, k), dynamic shared memory n * sizeof(T).
template <typename T, typename V, typename I>
__global__ void __launch_bounds__(512) trsv_one_block(I n, const int* __restrict__ n_jobs, const int2* __restrict__ jobs, int reverse,
                               const I* __restrict__ order, const I* __restrict__ begin, const I* __restrict__ end,
                               const I* __restrict__ cols, const V* __restrict__ vals, const T* __restrict__ inverse,
                               const T* __restrict__ b, T* x)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    T* own = reinterpret_cast<T*>(shared_bytes);
    const size_t k = gridDim.y, c = blockIdx.y;
    for (I i = threadIdx.x; i < n; i += blockDim.x) make_pending(own[i]);
    __syncthreads();
    const int stop = *n_jobs;
    for (int w = threadIdx.x / 32; w < stop; w += blockDim.x / 32) {
        solve_job(jobs[w], k, c, reverse, order, begin, end, cols, vals, inverse, b, [&](I j) { return peek_shared(own + j); },
                  [&](I i, T value) {
                      post_shared(own + i, value);
                      x[i * k + c] = value;
                  });
    }
}

// Several right-hand sides at once: a warp takes a row, of which all its threads wait for the same unknowns, so each may
// spin by itself; see runtime/columns.cuh. Rows in the order `order`, in natural order where it is null: each after
// those that it needs. A level costs one round trip for up to 32 columns. x is pending before the launch, as is a
// counter for each blockIdx.y. Progress: see ticket(). Launch: gridDim.x * blockDim.x / 32 >= n.
template <typename T, typename V, typename I>
__global__ void __launch_bounds__(256) trsv_columns(I n, int count, int each, int lg, int reverse, const I* __restrict__ order,
                               const I* __restrict__ begin, const I* __restrict__ end, const I* __restrict__ cols,
                               const V* __restrict__ vals, const T* __restrict__ inverse, const T* __restrict__ b, T* x,
                               unsigned* counter)
{
    const Columns columns = {count, each, lg};
    const long long t = (long long)ticket(counter + blockIdx.y) * (blockDim.x / 32) + threadIdx.x / 32;
    if (t >= n) return;
    const Share own = share_of(columns, threadIdx.x % 32, 32);
    const I i = order != nullptr ? order[t] : reverse ? n - 1 - I(t) : I(t);
    const I stop = end[i] - begin[i], origin = reverse ? end[i] - 1 : begin[i];
    T sum = T(0), rhs = T(0), inv = T(1);
    if (own.alive && own.first == 0) {
        rhs = b[i * own.columns + own.column];
        if (inverse != nullptr) inv = inverse[i];
    }
    for (I p = own.first; own.alive && p < stop; p += BATCH * own.step) {
        I col[BATCH];
        V val[BATCH];
        T v[BATCH];
#pragma unroll
        for (int q = 0; q < BATCH; ++q) {
            const bool have = p + q * own.step < stop;
            const I place = reverse ? origin - (p + q * own.step) : origin + (p + q * own.step);
            col[q] = have ? cols[place] : -1;
            val[q] = have ? vals[place] : V(0);
            v[q] = T(0);
            if (have) make_pending(v[q]);
        }
        await_each(v, [&](int q) { return peek(x + col[q] * own.columns + own.column); });
#pragma unroll
        for (int q = 0; q < BATCH; ++q) sum += widened<T>(val[q]) * v[q];
    }
    __syncwarp();
    sum = sum_of_shares(sum, columns, 32);
    if (own.alive && own.first == 0) post(x + i * own.columns + own.column, (rhs - sum) * inv);
}

// y = (D + N) x, diag[i] being the place of D_ii, or diag null for D = I. A thread a row.
template <typename T, typename I>
__global__ void triangle_product(I n, const I* __restrict__ begin, const I* __restrict__ end, const I* __restrict__ cols,
                                 const I* __restrict__ diag, const T* __restrict__ vals, const T* __restrict__ x, T* y)
{
    const I i = I(own_item());
    if (i >= n) return;
    T sum = diag == nullptr ? x[i] : vals[diag[i]] * x[i];
    for (I p = begin[i]; p < end[i]; ++p) sum += vals[p] * x[cols[p]];
    y[i] = sum;
}

// out[p] = vals[source[p]], conjugated if `conjugate`: values in the order of an analysis, or of a transpose.
template <typename T, typename I>
__global__ void gather_values(I nnz, int conjugate, const I* __restrict__ source, const T* __restrict__ vals, T* out)
{
    const long long p = own_item();
    if (p >= nnz) return;
    const T v = vals[source[p]];
    out[p] = conjugate ? conj(v) : v;
}

// inverse[r] = 1 / vals[place[r]]; bad[0] = the smallest r whose reciprocal is not finite. bad is set to 0xff bytes
// before the launch: no row; or null.
template <typename T, typename V, typename I>
__global__ void invert_diagonal(I n, int conjugate, const I* __restrict__ place, const V* __restrict__ vals, T* inverse, unsigned* bad)
{
    const I r = I(own_item());
    if (r >= n) return;
    const T d = widened<T>(vals[place[r]]), q = T(1) / (conjugate ? conj(d) : d);
    inverse[r] = q;
    if (bad != nullptr && !is_finite(q)) atomicMin(bad, unsigned(r));
}

// The values of N in half precision, see runtime/stored.cuh: out[p] for the places p of row r, of vals[source[p]], or of
// vals[p] where source is null. lost becomes 1 where one is out of range, or a reciprocal has no such power of two.
// inverse: of the diagonal, null for D = I. A thread a row.
template <typename T, typename I>
__global__ void halved(I n, const I* __restrict__ begin, const I* __restrict__ end, const I* __restrict__ source,
                       const T* __restrict__ vals, const T* __restrict__ inverse, Half* out, double* lost)
{
    const I r = I(own_item());
    if (r >= n) return;
    const T scale = inverse == nullptr ? T(1) : power_of_two(inverse[r]);
    bool fits = scale > 0 && is_finite(scale);
    for (I p = begin[r]; p < end[r]; ++p) {
        const T v = vals[source == nullptr ? p : source[p]] * scale;
        fits = fits && fabs(v) <= T(LARGEST_HALF);
        out[p] = half_of(float(v));
    }
    if (!fits) *lost = 1;
}

// One Jacobi sweep: y = D^-1 (b - N x). A thread a row and column; x and y are different arrays, so there is no race.
// It and the next kernels are launched with 1 << lg threads for each of n rows, see runtime/columns.cuh.
template <typename T, typename V, typename I>
__global__ void jacobi_sweep(I n, int count, int each, int lg, const I* __restrict__ begin, const I* __restrict__ end, const I* __restrict__ cols,
                             const V* __restrict__ vals, const T* __restrict__ inverse, const T* __restrict__ b,
                             const T* __restrict__ x, T* y)
{
    const long long item = own_item();
    const Share own = share_of({count, each, lg}, int(item & ((1 << lg) - 1)), 1 << lg);
    const I i = I(item >> lg);
    const size_t k = own.columns, c = own.column;
    if (item >> lg >= n || !own.alive) return;
    T sum = T(0);
    for (I p = begin[i]; p < end[i]; ++p) sum += widened<T>(vals[p]) * x[cols[p] * k + c];
    const T rhs = b[i * k + c];
    y[i * k + c] = inverse == nullptr ? rhs - sum : Row<V>::divided(rhs, sum, inverse[i]);
}

// Incomplete sparse approximate inverse (Anzt, Huckle, Braeckle, Dongarra 2018): W with the pattern of T and
// (W T)_ij = I_ij on it. Row i of W solves a small triangular system in the columns J of row i; entry j of it needs
// T_mj for m in J between j and i, found by binary search in row m. A thread a row, each writing only its own row.
// w has the layout of cols (strict part), w_diag (n) holds the diagonal of W. Cost: O(len^2 log len) a row.
template <typename T, typename I>
__global__ void isai(I n, int reverse, const I* __restrict__ begin, const I* __restrict__ end, const I* __restrict__ cols,
                     const T* __restrict__ vals, const T* __restrict__ inverse, T* w, T* w_diag)
{
    const I i = I(own_item());
    if (i >= n) return;
    const T wii = inverse == nullptr ? T(1) : inverse[i];
    w_diag[i] = wii;
    const I lo = begin[i], len = end[i] - lo;
    for (I step = 0; step < len; ++step) {  // from the column nearest to the diagonal outwards
        const I p = reverse ? lo + step : lo + len - 1 - step;
        const I j = cols[p];
        T sum = wii * vals[p];
        for (I before = 0; before < step; ++before) {
            const I q = reverse ? lo + before : lo + len - 1 - before;
            const I m = cols[q];
            const I meets = find(cols, begin[m], end[m], j);
            if (meets >= 0) sum += w[q] * vals[meets];
        }
        w[p] = inverse == nullptr ? -sum : -sum * inverse[j];
    }
}

// x = W b, or x += W b if `add`, for the W of isai: a thread a row and column.
template <typename T, typename I>
__global__ void isai_apply(I n, int count, int each, int lg, const I* __restrict__ begin, const I* __restrict__ end, const I* __restrict__ cols,
                           const T* __restrict__ w, const T* __restrict__ w_diag, const T* __restrict__ b, int add, T* x)
{
    const long long item = own_item();
    const Share own = share_of({count, each, lg}, int(item & ((1 << lg) - 1)), 1 << lg);
    const I i = I(item >> lg);
    const size_t k = own.columns, c = own.column;
    if (item >> lg >= n || !own.alive) return;
    T sum = w_diag[i] * b[i * k + c];
    for (I p = begin[i]; p < end[i]; ++p) sum += w[p] * b[cols[p] * k + c];
    x[i * k + c] = add ? x[i * k + c] + sum : sum;
}

// r = b - (D + N) x: a thread a row and column.
template <typename T, typename I>
__global__ void triangle_residual(I n, int count, int each, int lg, const I* __restrict__ begin, const I* __restrict__ end, const I* __restrict__ cols,
                                  const T* __restrict__ vals, const T* __restrict__ inverse, const T* __restrict__ b,
                                  const T* __restrict__ x, T* r)
{
    const long long item = own_item();
    const Share own = share_of({count, each, lg}, int(item & ((1 << lg) - 1)), 1 << lg);
    const I i = I(item >> lg);
    const size_t k = own.columns, c = own.column;
    if (item >> lg >= n || !own.alive) return;
    T sum = b[i * k + c] - (inverse == nullptr ? x[i * k + c] : x[i * k + c] / inverse[i]);
    for (I p = begin[i]; p < end[i]; ++p) sum -= vals[p] * x[cols[p] * k + c];
    r[i * k + c] = sum;
}
