#include "runtime/finelu.cuh"
#include "runtime/row_products.cuh"
#include "runtime/sums.cuh"

// Fixed-point sweeps. Two things keep them from streaming all of U for a few entries: an entry of L whose row of U is
// much longer than the rest of its own row looks its columns up there (for_own), and rows of a few entries have them in
// registers (row_sweeps).
constexpr int WIDE = 8;  // times the own entries: rows of U that are searched
constexpr int LOWER = 1, UPPER = 2;  // `parts`: a sum of those that a sweep makes new; the others keep their values

// use(column, value) for the own entries in places (p, hi), a thread in `threads` each, that row k of U has in [first,
// stop), if that is worth it; else false. All threads decide alike.
template <typename T, typename I, bool SYMMETRIC, bool FRESH, typename Use>
__device__ inline bool for_own(const Factor<T, I, SYMMETRIC>& factor, I p, I hi, I first, I stop, int rank, int threads,
                               const Use& use)
{
    if ((stop - first) / WIDE <= hi - p) return false;
    for (I e = p + 1 + rank; e < hi; e += threads) {
        const I j = factor.indices[e], q = find(SYMMETRIC ? factor.c_rows : factor.indices, first, stop, j);
        if (q >= 0) use(j, factor.template value<FRESH>(q));
    }
    return true;
}

// New value of entry (i, j) from its accumulator, by the fixed-point formulas.
template <typename T, bool SYMMETRIC>
__device__ inline T renewed(bool below, bool pivot, T s, T old, T divisor, Real<T> damping, bool& good)
{
    T v = s;
    if (below) v = s / divisor;
    else if (SYMMETRIC) {
        good = real(s) > 0;
        v = root(T(real(s)));
    }
    if (damping != 1) v = T(damping) * v + T(1 - damping) * old;
    good = good && is_finite(v) && !(pivot && v == T(0));
    return good ? v : old;
}
template <typename T, bool SYMMETRIC>
__device__ inline double residual(bool below, T s, T old, T divisor)
{
    T r;
    if (below) r = s - old * divisor;
    else r = SYMMETRIC ? T(real(s) - abs2(old)) : s - old;
    return SYMMETRIC && below ? 2 * square_of(r) : square_of(r);  // for the other triangle
}

// The entry (i, k) of L at place p renewed in place from its accumulator, by one thread, with the present pivot.
template <typename T, typename I, bool SYMMETRIC>
__device__ inline T renew_in_place(const Factor<T, I, SYMMETRIC>& factor, I i, I p, I k, T s, T* out, long long* refused)
{
    bool good = true;
    const T l = renewed<T, SYMMETRIC>(true, false, s, peek(factor.data + p), peek(factor.data + factor.diag[k]), 1, good);
    post(out + p, l);
    if (!good) refuse(refused, i);
    return l;
}

// The entry (i, j) at place p renewed from its accumulator; where `measured`, the square of its residual, else 0.
template <typename T, typename I, bool SYMMETRIC, bool IN_PLACE>
__device__ inline double renew(const Factor<T, I, SYMMETRIC>& factor, I i, I p, I j, T s, double damping, int parts, T* out,
                               long long* refused, bool measured)
{
    const T* const data = factor.data;
    const T old = IN_PLACE ? peek(data + p) : data[p], divisor = j < i ? data[factor.diag[j]] : T(1);
    bool good = true;
    const T v = parts & (j < i ? LOWER : UPPER)
                    ? renewed<T, SYMMETRIC>(j < i, j == i, s, old, divisor, Real<T>(damping), good)
                    : old;
    if (IN_PLACE) post(out + p, v); else out[p] = v;
    if (!good) refuse(refused, i);
    return measured ? residual<T, SYMMETRIC>(j < i, s, old, divisor) : 0;
}

// A sweep, LANES threads a row; rows with more than MOST entries are left to long_sweep. squares may be null. IN_PLACE:
// out is F's data; l_ik is final before it is used. Launch: gridDim.x * blockDim.x >= n * LANES, blockDim.x == BLOCK;
// dynamic shared memory BLOCK / LANES * SLOTS * (sizeof(I) + sizeof(T)).
template <typename T, typename I, int LANES, int SLOTS, bool SYMMETRIC, bool IN_PLACE>
__global__ void __launch_bounds__(BLOCK) short_sweep(I n, const I* __restrict__ a_indptr, const I* __restrict__ a_indices,
                            const T* __restrict__ a, const I* __restrict__ indptr, const I* __restrict__ indices,
                            const I* __restrict__ diag, const T* data, const I* __restrict__ c_indptr,
                            const I* __restrict__ c_rows, const I* __restrict__ c_places, double damping, T* out,
                            double* squares, long long* refused, int parts, int most)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    constexpr int GROUPS = BLOCK / LANES;
    T* const values = reinterpret_cast<T*>(shared_bytes) + threadIdx.x / LANES * SLOTS;
    I* const keys = reinterpret_cast<I*>(shared_bytes + sizeof(T) * GROUPS * SLOTS) + threadIdx.x / LANES * SLOTS;
    const unsigned mask = group_mask<LANES>();
    const int lane = threadIdx.x % LANES;
    const I i = own_row<I, LANES>();
    if (i >= n) return;  // whole groups
    const I lo = indptr[i], hi = indptr[i + 1], pivot = diag[i];
    if (hi - lo > most) return;
    const Factor<T, I, SYMMETRIC> factor{indptr, indices, diag, c_indptr, c_rows, c_places, data};
    for (int s = lane; s < SLOTS; s += LANES) keys[s] = I(-1);
    __syncwarp(mask);
    for (I p = lo + lane; p < hi; p += LANES) {
        bool fresh = false;
        const int s = insert<SLOTS>(keys, indices[p], fresh);
        values[s] = T(0);
    }
    __syncwarp(mask);
    for (I p = a_indptr[i] + lane; p < a_indptr[i + 1]; p += LANES) {
        const int s = lookup<SLOTS>(keys, a_indices[p]);
        if (s >= 0) values[s] = a[p];
    }
    __syncwarp(mask);
    T l = T(0);
    const bool few = squares == nullptr && parts != LOWER + UPPER;  // other products are not looked at
    const bool upper = few && parts == UPPER;
    if (SYMMETRIC && upper) {
        double sum = 0;
        for (I p = lo + lane; p < pivot; p += LANES) sum += abs2(data[p]);
        sum = lanes_sum<LANES>(sum, mask);
        if (lane == 0) values[lookup<SLOTS>(keys, i)] -= T(Real<T>(sum));
        __syncwarp(mask);
    }
    for_products<T, I, LANES, SYMMETRIC, true, IN_PLACE>(
        factor, mask, lane, i, lo, SYMMETRIC && upper ? lo : pivot, upper ? i : I(0),
        few && !upper ? i - 1 : SYMMETRIC ? i : n,
        [&](I p, I k, T given) {
            l = given;
            if (IN_PLACE) {
                if (lane == 0) l = renew_in_place(factor, i, p, k, values[lookup<SLOTS>(keys, k)], out, refused);
                l = shuffle(mask, l, 0, LANES);
            }
        },
        [&](I j, T v, bool here) {
            if (here) {
                const int s = lookup<SLOTS>(keys, j);
                if (s >= 0) values[s] -= l * v;
            }
        },
        [&](I p, I first, I stop) {
            return for_own<T, I, SYMMETRIC, IN_PLACE>(factor, p, hi, first, stop, lane, LANES,
                                                      [&](I j, T v) { values[lookup<SLOTS>(keys, j)] -= l * v; });
        },
        [] { return true; });
    double sum = 0;
    for (I p = (IN_PLACE ? pivot : lo) + lane; p < hi; p += LANES) {
        const I j = indices[p];
        const T s = values[lookup<SLOTS>(keys, j)];
        sum += renew<T, I, SYMMETRIC, IN_PLACE>(factor, i, p, j, s, damping, parts, out, refused, squares != nullptr);
    }
    if (squares != nullptr) {
        sum = lanes_sum<LANES>(sum, mask);
        if (lane == 0) squares[i] = sum;
    }
}

// The products of a row for a whole block, as for_products: use(column, value) by the threads that have an entry of
// places [lo, hi) in columns up to `upto`, a barrier after each row of U. staged_* are shared.
template <typename T, typename I, bool SYMMETRIC, bool FRESH, typename Begin, typename Use>
__device__ inline void for_block_products(const Factor<T, I, SYMMETRIC>& factor, I lo, I pivot, I hi, I upto,
                                          const Begin& begin, const Use& use, I* staged_k, I* staged_first, I* staged_last, T* staged_l)
{
    const int t = threadIdx.x;
    for (I base = lo; base < pivot; base += LONG_BLOCK) {
        const int steps = pivot - base < I(LONG_BLOCK) ? int(pivot - base) : LONG_BLOCK;
        __syncthreads();
        if (t < steps) {
            const I k = factor.indices[base + t];
            staged_k[t] = k;
            staged_first[t] = factor.first(k);
            staged_last[t] = factor.last(k);
            staged_l[t] = FRESH ? T(0) : factor.data[base + t];
        }
        __syncthreads();
        const auto fetch = [&](int e, I& j, T& v) {
            j = I(-1);
            if (e < steps) {
                const I q = staged_first[e] + t;
                if (q < staged_last[e]) {
                    j = factor.column(q);
                    v = factor.template value<FRESH>(q);
                }
            }
        };
        Ahead<T, I> ahead(fetch);
        for (int e = 0; e < steps; ++e) {
            const T l = begin(base + e, staged_k[e], staged_l[e]);
            I j;
            T v;
            ahead.take(e, j, v, fetch);
            const I begin_e = staged_first[e], last_e = staged_last[e];
            const bool wide = for_own<T, I, SYMMETRIC, FRESH>(factor, base + e, hi, begin_e, last_e, t, LONG_BLOCK,
                                                              [&](I own, T w) { use(own, l * w); });
            const I stop = wide ? begin_e : last_e;
            for (I q = begin_e + t; q < stop;) {
                if (j > upto) break;
                use(j, l * v);
                q += LONG_BLOCK;
                if (q < stop) {
                    j = factor.column(q);
                    v = factor.template value<FRESH>(q);
                }
            }
            __syncthreads();
        }
    }
}

// The rows with more than `most` entries, a block a row. The dense row of a block: its shared memory if `in_shared` (n
// values then), else its part of work (gridDim.x, n), of any values.
template <typename T, typename I, bool SYMMETRIC, bool IN_PLACE>
__global__ void __launch_bounds__(LONG_BLOCK) long_sweep(I n, const I* __restrict__ a_indptr, const I* __restrict__ a_indices,
                           const T* __restrict__ a, const I* __restrict__ indptr, const I* __restrict__ indices,
                           const I* __restrict__ diag, const T* data, const I* __restrict__ c_indptr,
                           const I* __restrict__ c_rows, const I* __restrict__ c_places, double damping, T* out,
                           double* squares, long long* refused, int parts, int most, T* work, int in_shared)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    __shared__ I staged_k[LONG_BLOCK], staged_first[LONG_BLOCK], staged_last[LONG_BLOCK];
    __shared__ __align__(16) unsigned char staged_bytes[LONG_BLOCK * sizeof(T)];
    T* const staged_l = reinterpret_cast<T*>(staged_bytes);
    const Factor<T, I, SYMMETRIC> factor{indptr, indices, diag, c_indptr, c_rows, c_places, data};
    T* const w = in_shared ? reinterpret_cast<T*>(shared_bytes) : work + size_t(blockIdx.x) * n;
    const int t = threadIdx.x;
    for (I i = blockIdx.x; i < n; i += gridDim.x) {
        const I lo = indptr[i], hi = indptr[i + 1], pivot = diag[i];
        if (hi - lo <= most) continue;
        __syncthreads();
        for (I p = lo + t; p < hi; p += LONG_BLOCK) w[indices[p]] = T(0);
        __syncthreads();
        for (I p = a_indptr[i] + t; p < a_indptr[i + 1]; p += LONG_BLOCK) w[a_indices[p]] = a[p];
        for_block_products<T, I, SYMMETRIC, IN_PLACE>(
            factor, lo, pivot, hi, squares == nullptr && parts == LOWER ? i - 1 : SYMMETRIC ? i : n,
            [&](I p, I k, T given) {
                if (!IN_PLACE) return given;
                // its own place: no factors are staged in place
                if (t == 0) staged_l[0] = renew_in_place(factor, i, p, k, w[k], out, refused);
                __syncthreads();
                return staged_l[0];
            },
            [&](I j, T product) { w[j] -= product; }, staged_k, staged_first, staged_last, staged_l);
        __syncthreads();
        double sum = 0;
        for (I p = (IN_PLACE ? pivot : lo) + t; p < hi; p += LONG_BLOCK) {
            const I j = indices[p];
            sum += renew<T, I, SYMMETRIC, IN_PLACE>(factor, i, p, j, w[j], damping, parts, out, refused, squares != nullptr);
        }
        if (squares != nullptr) {
            sum = block_sum(sum);
            if (t == 0) squares[i] = sum;
        }
    }
}

// Every thread of the grid has come here `times` times. arrived: 0 before. Progress: the launch is cooperative.
__device__ inline void all_arrived(unsigned* arrived, unsigned times)
{
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        atomicAdd(arrived, 1u);
        while (unsigned(peek(reinterpret_cast<const int*>(arrived))) < times * gridDim.x) {
        }
    }
    __syncthreads();
    __threadfence();
}

// `sweeps` sweeps where no row of F has more than LANES * PER_LANE entries: entry lo + e * LANES + l of a row stays
// with its l-th lane, accumulator, value and pivot in registers, and each entry of U goes round its lanes. Whole warps
// go on together. Of the buffers, data is only read, the sweeps write to one, other, one...; squares (sweeps, n) as in
// short_sweep. Launch: any 1-D grid, blockDim.x == BLOCK; more than one sweep: cooperative, arrived (1,) zero, else it
// may be null.
template <typename T, typename I, int LANES, int PER_LANE, bool SYMMETRIC>
__global__ void __launch_bounds__(BLOCK, 8) row_sweeps(I n, const I* __restrict__ a_indptr, const I* __restrict__ a_indices,
                           const T* __restrict__ a, const I* __restrict__ indptr, const I* __restrict__ indices,
                           const I* __restrict__ diag, const T* data, const I* __restrict__ c_indptr,
                           const I* __restrict__ c_rows, const I* __restrict__ c_places, double damping, T* one, T* other,
                           double* squares, long long* refused, int parts, int sweeps, unsigned* arrived)
{
    constexpr int ROWS = 32 / LANES;  // of a warp
    const int lane = threadIdx.x % LANES, row_of_warp = threadIdx.x % 32 / LANES;
    const size_t warp = (size_t(blockIdx.x) * BLOCK + threadIdx.x) / 32, warps = size_t(gridDim.x) * (BLOCK / 32);
    const bool same_pattern = a_indices == indices;
    for (int sweep = 0; sweep < sweeps; ++sweep) {
        const Factor<T, I, SYMMETRIC> factor{indptr, indices, diag, c_indptr, c_rows, c_places, data};
        for (size_t base = warp * ROWS; base < size_t(n); base += warps * ROWS) {
            const I i = I(base) + row_of_warp;
            const bool live = base + row_of_warp < size_t(n);
            const I lo = live ? indptr[i] : 0, hi = live ? indptr[i + 1] : 0;
            I mine[PER_LANE], first[PER_LANE], last[PER_LANE];
            T held[PER_LANE], divisor[PER_LANE], sum[PER_LANE];
#pragma unroll
            for (int e = 0; e < PER_LANE; ++e) {
                const I p = lo + e * LANES + lane;
                mine[e] = p < hi ? indices[p] : I(-1);
                held[e] = p < hi ? data[p] : T(0);
                sum[e] = same_pattern && p < hi ? a[p] : T(0);
            }
#pragma unroll
            for (int e = 0; e < PER_LANE; ++e) {
                const bool below = mine[e] >= 0 && mine[e] < i;
                first[e] = below ? factor.first(mine[e]) : 0;
                last[e] = below ? factor.last(mine[e]) : 0;
                divisor[e] = below ? data[SYMMETRIC ? diag[mine[e]] : first[e] - 1] : T(1);
            }
            if (!same_pattern) {
                const I stop = live ? a_indptr[i + 1] : 0;
                for (I q = live ? a_indptr[i] : 0; __any_sync(ALL, q < stop); q += LANES) {
                    const bool here = q + lane < stop;
                    const I j = here ? a_indices[q + lane] : I(-2);
                    const T v = here ? a[q + lane] : T(0);
#pragma unroll
                    for (int u = 0; u < LANES; ++u) {
                        const I column = shuffle(j, u, LANES);
                        const T value = shuffle(v, u, LANES);
#pragma unroll
                        for (int e = 0; e < PER_LANE; ++e)
                            if (mine[e] == column) sum[e] = value;
                    }
                }
            }
#pragma unroll
            for (int e = 0; e < PER_LANE; ++e) {
                const auto fetch = [&](int t, I& j, T& v) {
                    const I q = shuffle(first[e], t % LANES, LANES) + lane, stop = shuffle(last[e], t % LANES, LANES);
                    j = I(-2);
                    v = T(0);
                    if (t < LANES && q < stop) {
                        j = factor.column(q);
                        v = factor.template value<false>(q);
                    }
                };
                Ahead<T, I> ahead(fetch);
                for (int t = 0; t < LANES; ++t) {
                    const I k_first = shuffle(first[e], t, LANES), k_last = shuffle(last[e], t, LANES);
                    const T l = shuffle(held[e], t, LANES);
                    if (!__any_sync(ALL, k_first > 0)) break;  // no row's entry t is below the diagonal
                    I j;
                    T v;
                    ahead.take(t, j, v, fetch);
                    for (I q = k_first;;) {
                        for (int u = 0; u < LANES && __any_sync(ALL, q + u < k_last); ++u) {
                            const I column = shuffle(j, u, LANES);
                            const T value = shuffle(v, u, LANES);
#pragma unroll
                            for (int f = 0; f < PER_LANE; ++f)
                                if (mine[f] == column) sum[f] -= l * value;
                        }
                        q += LANES;
                        if (!__any_sync(ALL, q < k_last)) break;
                        const bool here = q + lane < k_last;
                        j = here ? factor.column(q + lane) : I(-2);
                        v = here ? factor.template value<false>(q + lane) : T(0);
                    }
                }
            }
            double square = 0;
#pragma unroll
            for (int e = 0; e < PER_LANE; ++e) {
                const bool here = mine[e] >= 0;
                bool good = true;
                const T v = parts & (mine[e] < i ? LOWER : UPPER)
                                ? renewed<T, SYMMETRIC>(mine[e] < i, mine[e] == i, sum[e], held[e], divisor[e],
                                                        Real<T>(damping), good)
                                : held[e];
                if (here) {
                    one[lo + e * LANES + lane] = v;
                    square += residual<T, SYMMETRIC>(mine[e] < i, sum[e], held[e], divisor[e]);
                }
                if (here && !good) refuse(refused, i);
            }
            if (squares != nullptr) {
#pragma unroll
                for (int offset = LANES / 2; offset > 0; offset /= 2) square += __shfl_xor_sync(ALL, square, offset);
                if (live && lane == 0) squares[size_t(sweep) * n + i] = square;
            }
        }
        if (sweep + 1 < sweeps) {
            all_arrived(arrived, unsigned(sweep) + 1);
            data = one;
            T* const next = other;
            other = one;
            one = next;
        }
    }
}
