// Row by row products of sparse factors, for the sweeps and the candidates of ParILUT (2018, 2019); the papers' separate
// symbolic product, residual and sweep kernels are one kind of kernel here. Twins: kernels/reference.py: sweep,
// sweep_in_place, candidates.
//
// Row i of A - L U: for each k < i of row i of L, in ascending order, l_ik times row k of U (of Cholesky: conj(l_jk) for
// the j of column k up to i) is subtracted from the accumulators of its columns. The columns of one k are distinct and the
// k go one after the other, so nobody shares an accumulator, and the bits are the same in every run wherever a column's
// accumulator lies. Short rows: LANES threads a row, accumulators in a hash table in shared memory. Long rows: a block a
// row, accumulators in a dense row of global memory (of the L2 cache), where it never matters what falls beside the
// pattern. What bounds short rows is the shared memory: about three accesses a multiply-add; the data of U comes from L2.
#include "finelu.cuh"

using namespace fl;

constexpr int BLOCK = 128;       // threads for short rows
constexpr int LONG_BLOCK = 512;  // and for long ones
constexpr int AT_ONCE = 4;       // entries of a row of U that a thread asks for at a time
constexpr int AHEAD = 3;         // rows of U whose first entries are asked for before they are needed

__device__ inline float root(float a) { return sqrtf(a); }
__device__ inline double root(double a) { return sqrt(a); }
template <typename R> __device__ inline Complex<R> root(Complex<R> a) { return {root(a.re), R(0)}; }

template <int LANES> __device__ inline unsigned lanes_mask()
{
    return LANES == 32 ? 0xffffffffu : ((1u << LANES) - 1u) << (threadIdx.x % 32 / LANES * LANES);
}
template <int LANES> __device__ inline double lanes_sum(unsigned mask, double v)
{
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) v += __shfl_xor_sync(mask, v, offset);
    return v;
}

// One entry of what row k of the row's L is multiplied with: columns[q], value at q. By columns (Cholesky) or by rows (LU).
template <typename T, typename I, bool SYMMETRIC>
struct Factor {
    const I* __restrict__ indptr;
    const I* __restrict__ indices;
    const I* __restrict__ diag;
    const I* __restrict__ c_indptr;
    const I* __restrict__ c_rows;
    const I* __restrict__ c_places;
    const T* data;
    __device__ I first(I k) const { return SYMMETRIC ? c_indptr[k] + 1 : diag[k] + 1; }
    __device__ I last(I k) const { return SYMMETRIC ? c_indptr[k + 1] : indptr[k + 1]; }
    __device__ I column(I q) const { return SYMMETRIC ? c_rows[q] : indices[q]; }
    template <bool FRESH> __device__ T value(I q) const
    {
        const T* const p = SYMMETRIC ? data + c_places[q] : data + q;
        const T v = FRESH ? peek(p) : *p;
        return SYMMETRIC ? conj(v) : v;
    }
};

template <typename V> __device__ inline V of_lane(unsigned mask, V v, int lane, int width) { return __shfl_sync(mask, v, lane, width); }
template <typename R> __device__ inline Complex<R> of_lane(unsigned mask, Complex<R> v, int lane, int width)
{
    return {__shfl_sync(mask, v.re, lane, width), __shfl_sync(mask, v.im, lane, width)};
}

// use(step, column, value, here) for LANES entries of a row of U at a time, the rows in the order of the entries of L in
// places [lo, pivot); begin(p, k, l) before each row gives the factor; here: this lane has an entry. Nobody waits for
// a row of U when it is its turn: its bounds are known by then, and the first entries of the next AHEAD rows are on their
// way. more(): whether to go on. All lanes of the group call both; columns of Cholesky beyond i are not passed on.
template <typename T, typename I, int LANES, bool SYMMETRIC, bool VALUES, bool FRESH, typename Begin, typename Use, typename More>
__device__ inline void for_products(const Factor<T, I, SYMMETRIC>& factor, unsigned mask, int lane, I i, I lo, I pivot,
                                    const Begin& begin, const Use& use, const More& more)
{
    for (I base = lo; base < pivot && more(); base += LANES) {
        const int steps = pivot - base < I(LANES) ? int(pivot - base) : LANES;
        I k = 0, first = 0, last = 0;
        T l = T(0);
        if (lane < steps) {
            k = factor.indices[base + lane];
            if (VALUES && !FRESH) l = factor.data[base + lane];
            first = factor.first(k);
            last = factor.last(k);
        }
        I column[AHEAD];
        T value[AHEAD];
        const auto fetch = [&](int e, I& j, T& v) {
            const I q = of_lane(mask, first, e % LANES, LANES) + lane, stop = of_lane(mask, last, e % LANES, LANES);
            j = I(-1);
            if (e < steps && q < stop) {
                j = factor.column(q);
                if (VALUES) v = factor.template value<FRESH>(q);
            }
        };
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) fetch(a, column[a], value[a]);
        for (int e = 0; e < steps && more(); ++e) {
            begin(base + e, of_lane(mask, k, e, LANES), of_lane(mask, l, e, LANES));
            I j = column[0];
            T v = value[0];
#pragma unroll
            for (int a = 1; a < AHEAD; ++a) {
                column[a - 1] = column[a];
                value[a - 1] = value[a];
            }
            fetch(e + AHEAD, column[AHEAD - 1], value[AHEAD - 1]);
            use(j, v, j >= 0 && !(SYMMETRIC && j > i));
            const I stop = of_lane(mask, last, e, LANES);
            for (I base_q = of_lane(mask, first, e, LANES) + LANES; base_q < stop && more(); base_q += AT_ONCE * LANES) {
                I columns[AT_ONCE];
                T values[AT_ONCE];
#pragma unroll
                for (int b = 0; b < AT_ONCE; ++b) {
                    const I q = base_q + b * LANES + lane;
                    columns[b] = I(-1);
                    if (q < stop) {
                        columns[b] = factor.column(q);
                        if (VALUES) values[b] = factor.template value<FRESH>(q);
                    }
                }
                if (SYMMETRIC && __all_sync(mask, columns[0] > i || columns[0] < 0)) break;
#pragma unroll
                for (int b = 0; b < AT_ONCE; ++b)
                    if (more()) use(columns[b], values[b], columns[b] >= 0 && !(SYMMETRIC && columns[b] > i));
            }
            __syncwarp(mask);
        }
    }
}

// The hash table of a group: keys (columns, -1 where empty), SLOTS a power of two.
template <int SLOTS> __device__ inline int home(long long column) { return int((unsigned(column) * 2654435769u) >> 8) & (SLOTS - 1); }

// slot of the column, or -1
template <int SLOTS, typename I> __device__ inline int lookup(const I* keys, I column)
{
    int s = home<SLOTS>(column);
    for (int t = 0; t < SLOTS; ++t, s = (s + 1) & (SLOTS - 1)) {
        if (keys[s] == column) return s;
        if (keys[s] == I(-1)) return -1;
    }
    return -1;
}
__device__ inline int swap_if(int* p, int old, int v) { return atomicCAS(p, old, v); }
__device__ inline long long swap_if(long long* p, long long old, long long v)
{
    return (long long)atomicCAS(reinterpret_cast<unsigned long long*>(p), (unsigned long long)old, (unsigned long long)v);
}
// slot of the column, put there if it is new (then fresh is set); -1 if the table is full
template <int SLOTS, typename I> __device__ inline int insert(I* keys, I column, bool& fresh)
{
    int s = home<SLOTS>(column);
    for (int t = 0; t < SLOTS; ++t, s = (s + 1) & (SLOTS - 1)) {
        const I there = *const_cast<volatile I*>(keys + s);
        if (there == column) return s;
        if (there == I(-1)) {
            const I was = swap_if(keys + s, I(-1), column);
            if (was == I(-1)) {
                fresh = true;
                return s;
            }
            if (was == column) return s;
        }
    }
    return -1;
}

// New value of entry (i, j) from its accumulator, by the fixed-point formulas.
template <typename T, bool SYMMETRIC>
__device__ inline T renewed(bool below, bool pivot, T s, T old, T divisor, typename RealOf<T>::type damping, bool& good)
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
    return double(real(r)) * double(real(r)) + double(imag(r)) * double(imag(r));
}

// A sweep, LANES threads a row; rows with more than MOST entries are left to long_sweep. squares may be null.
// IN_PLACE: out is F's data; l_ik is final before it is used. Launch: gridDim.x * blockDim.x >= n * LANES, blockDim.x ==
// BLOCK; dynamic shared memory BLOCK / LANES * SLOTS * (sizeof(I) + sizeof(T)).
template <typename T, typename I, int LANES, int SLOTS, bool SYMMETRIC, bool IN_PLACE>
__global__ void __launch_bounds__(BLOCK) short_sweep(I n, const I* __restrict__ a_indptr, const I* __restrict__ a_indices,
                            const T* __restrict__ a, const I* __restrict__ indptr, const I* __restrict__ indices,
                            const I* __restrict__ diag, const T* data, const I* __restrict__ c_indptr,
                            const I* __restrict__ c_rows, const I* __restrict__ c_places, double damping, T* out,
                            double* squares, long long* refused, int most)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    constexpr int GROUPS = BLOCK / LANES;
    T* const values = reinterpret_cast<T*>(shared_bytes) + threadIdx.x / LANES * SLOTS;
    I* const keys = reinterpret_cast<I*>(shared_bytes + sizeof(T) * GROUPS * SLOTS) + threadIdx.x / LANES * SLOTS;
    const unsigned mask = lanes_mask<LANES>();
    const int lane = threadIdx.x % LANES;
    const I i = I((size_t(blockIdx.x) * BLOCK + threadIdx.x) / LANES);
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
    for_products<T, I, LANES, SYMMETRIC, true, IN_PLACE>(
        factor, mask, lane, i, lo, pivot,
        [&](I p, I k, T given) {
            l = given;
            if (IN_PLACE) {
                const T old = peek(data + p);
                bool good = true;
                l = renewed<T, SYMMETRIC>(true, false, values[lookup<SLOTS>(keys, k)], old, peek(data + diag[k]), 1, good);
                l = of_lane(mask, l, 0, LANES);  // another pivot may have come between two lanes' looks
                if (lane == 0) {
                    post(out + p, l);
                    if (!good) {
                        atomicAdd(reinterpret_cast<unsigned long long*>(refused), 1ull);
                        atomicMin(refused + 1, (long long)i);
                    }
                }
            }
        },
        [&](I j, T v, bool here) {
            if (here) {
                const int s = lookup<SLOTS>(keys, j);
                if (s >= 0) values[s] -= l * v;
            }
        },
        [] { return true; });
    double sum = 0;
    for (I p = (IN_PLACE ? pivot : lo) + lane; p < hi; p += LANES) {
        const I j = indices[p];
        const T s = values[lookup<SLOTS>(keys, j)], old = IN_PLACE ? peek(data + p) : data[p];
        const T divisor = j < i ? data[diag[j]] : T(1);
        bool good = true;
        const T v = renewed<T, SYMMETRIC>(j < i, j == i, s, old, divisor, typename RealOf<T>::type(damping), good);
        if (IN_PLACE) post(out + p, v);
        else out[p] = v;
        if (squares != nullptr) sum += residual<T, SYMMETRIC>(j < i, s, old, divisor);
        if (!good) {
            atomicAdd(reinterpret_cast<unsigned long long*>(refused), 1ull);
            atomicMin(refused + 1, (long long)i);
        }
    }
    if (squares != nullptr) {
        sum = lanes_sum<LANES>(mask, sum);
        if (lane == 0) squares[i] = sum;
    }
}

__device__ inline double block_sum(double v)
{
    __shared__ double sums[LONG_BLOCK / 32];
    for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
    __syncthreads();
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
    __syncthreads();
    double total = 0;
    for (int w = 0; w < LONG_BLOCK / 32; ++w) total += sums[w];
    __syncthreads();
    return total;
}

// The products of a row for a whole block, as for_products: use(column, value) by the threads that have an entry, a barrier
// after each row of U. staged_* are shared.
template <typename T, typename I, bool SYMMETRIC, bool FRESH, typename Begin, typename Use>
__device__ inline void for_block_products(const Factor<T, I, SYMMETRIC>& factor, I i, I lo, I pivot, const Begin& begin,
                                          const Use& use, I* staged_k, I* staged_first, I* staged_last, T* staged_l)
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
        I column[AHEAD];
        T value[AHEAD];
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
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) fetch(a, column[a], value[a]);
        for (int e = 0; e < steps; ++e) {
            const T l = begin(base + e, staged_k[e], staged_l[e]);
            I j = column[0];
            T v = value[0];
#pragma unroll
            for (int a = 1; a < AHEAD; ++a) {
                column[a - 1] = column[a];
                value[a - 1] = value[a];
            }
            fetch(e + AHEAD, column[AHEAD - 1], value[AHEAD - 1]);
            const I stop = staged_last[e];
            for (I q = staged_first[e] + t; q < stop;) {
                if (SYMMETRIC && j > i) break;
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
                           double* squares, long long* refused, int most, T* work, int in_shared)
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
            factor, i, lo, pivot,
            [&](I p, I k, T given) {
                if (!IN_PLACE) return given;
                if (t == 0) {
                    const T old = peek(data + p);
                    bool good = true;
                    const T l = renewed<T, SYMMETRIC>(true, false, w[k], old, peek(data + diag[k]), 1, good);
                    post(out + p, l);
                    if (!good) {
                        atomicAdd(reinterpret_cast<unsigned long long*>(refused), 1ull);
                        atomicMin(refused + 1, (long long)i);
                    }
                    staged_l[0] = l;  // its own place: no factors are staged in place
                }
                __syncthreads();
                return staged_l[0];
            },
            [&](I j, T product) { w[j] -= product; }, staged_k, staged_first, staged_last, staged_l);
        __syncthreads();
        double sum = 0;
        for (I p = (IN_PLACE ? pivot : lo) + t; p < hi; p += LONG_BLOCK) {
            const I j = indices[p];
            const T s = w[j], old = IN_PLACE ? peek(data + p) : data[p], divisor = j < i ? data[diag[j]] : T(1);
            bool good = true;
            const T v = renewed<T, SYMMETRIC>(j < i, j == i, s, old, divisor, typename RealOf<T>::type(damping), good);
            if (IN_PLACE) post(out + p, v);
            else out[p] = v;
            if (squares != nullptr) sum += residual<T, SYMMETRIC>(j < i, s, old, divisor);
            if (!good) {
                atomicAdd(reinterpret_cast<unsigned long long*>(refused), 1ull);
                atomicMin(refused + 1, (long long)i);
            }
        }
        if (squares != nullptr) {
            sum = block_sum(sum);
            if (t == 0) squares[i] = sum;
        }
    }
}

__device__ inline double magnitude(float a) { return fabsf(a); }
__device__ inline double magnitude(double a) { return fabs(a); }
template <typename R> __device__ inline double magnitude(Complex<R> a) { return hypot(double(a.re), double(a.im)); }

constexpr unsigned char OWN = 1, WANTED = 2;

// The candidates of each row, LANES threads a row: with FILL their columns (ascending), values and squares, else their
// number. Rows that do not fit into the table are listed for long_candidates by the count, and left out by both.
// Launch: gridDim.x * blockDim.x >= n * LANES, blockDim.x == BLOCK; dynamic shared memory BLOCK / LANES * SLOTS *
// (sizeof(T) + sizeof(I) + 3).
template <typename T, typename I, int LANES, int SLOTS, bool SYMMETRIC, bool FILL>
__global__ void __launch_bounds__(BLOCK) short_candidates(I n, const I* __restrict__ a_indptr, const I* __restrict__ a_indices,
                            const T* __restrict__ a, const I* __restrict__ indptr, const I* __restrict__ indices,
                            const I* __restrict__ diag, const T* __restrict__ data, const I* __restrict__ c_indptr,
                            const I* __restrict__ c_rows, const I* __restrict__ c_places, double least,
                            long long* counts, unsigned char* is_long, I* long_rows, unsigned long long* n_long,
                            const I* __restrict__ starts, I* out_indices, T* out, double* squares)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    constexpr int GROUPS = BLOCK / LANES;
    const int slot_group = threadIdx.x / LANES;
    T* const values = reinterpret_cast<T*>(shared_bytes) + slot_group * SLOTS;
    I* const keys = reinterpret_cast<I*>(shared_bytes + sizeof(T) * GROUPS * SLOTS) + slot_group * SLOTS;
    unsigned short* const list =
        reinterpret_cast<unsigned short*>(shared_bytes + (sizeof(T) + sizeof(I)) * GROUPS * SLOTS) + slot_group * SLOTS;
    unsigned char* const flags = shared_bytes + (sizeof(T) + sizeof(I) + 2) * GROUPS * SLOTS + slot_group * SLOTS;
    const unsigned mask = lanes_mask<LANES>();
    const int lane = threadIdx.x % LANES;
    const I i = I((size_t(blockIdx.x) * BLOCK + threadIdx.x) / LANES);
    if (i >= n) return;
    if (FILL && is_long[i]) return;
    const I lo = indptr[i], hi = indptr[i + 1], pivot = diag[i];
    const Factor<T, I, SYMMETRIC> factor{indptr, indices, diag, c_indptr, c_rows, c_places, data};
    constexpr int ROOM = SLOTS - SLOTS / 4;
    int used = 0;        // of this lane
    bool full = hi - lo > ROOM;
    for (int s = lane; s < SLOTS; s += LANES) {
        keys[s] = I(-1);
        flags[s] = 0;
    }
    __syncwarp(mask);
    if (!full) {
        for (I p = lo + lane; p < hi; p += LANES) {
            bool fresh = false;
            const int s = insert<SLOTS>(keys, indices[p], fresh);
            values[s] = T(0);
            flags[s] = OWN;
            ++used;
        }
    }
    __syncwarp(mask);
    const auto total = [&]() {
        int sum = used;
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(mask, sum, offset);
        return sum;
    };
    if (!full) {
        full = total() + (long long)(a_indptr[i + 1] - a_indptr[i]) > ROOM - LANES;
        if (!full) {
            for (I p = a_indptr[i] + lane; p < a_indptr[i + 1]; p += LANES) {
                bool fresh = false;
                const int s = insert<SLOTS>(keys, a_indices[p], fresh);
                values[s] = a[p];
                if (fresh) {
                    flags[s] = WANTED;
                    ++used;
                }
            }
        }
    }
    __syncwarp(mask);
    T l = T(0);
    const auto search = [&](I j, T v, bool here) {
        if (here) {
            bool fresh = false;
            const int s = insert<SLOTS>(keys, j, fresh);
            const T product = l * v;
            if (fresh) {
                ++used;
                flags[s] = 0;
            }
            if (FILL) values[s] = fresh ? -product : values[s] - product;
            if (!(flags[s] & (OWN | WANTED)) && (!(least > 0) || magnitude(product) >= least)) flags[s] |= WANTED;
        }
        if (!FILL) full = total() > ROOM - LANES;  // so that the table is never filled to the last slot
    };
    const auto take = [&](I, I, T given) { l = given; };
    const auto more = [&] { return !full; };
    if (FILL || least > 0) for_products<T, I, LANES, SYMMETRIC, true, false>(factor, mask, lane, i, lo, pivot, take, search, more);
    else for_products<T, I, LANES, SYMMETRIC, false, false>(factor, mask, lane, i, lo, pivot, take, search, more);
    if (!FILL) {
        if (full) {
            if (lane == 0) {
                is_long[i] = 1;
                long_rows[atomicAdd(n_long, 1ull)] = i;
            }
            return;
        }
        int found = 0;
        for (int s = lane; s < SLOTS; s += LANES) found += flags[s] == WANTED && keys[s] != I(-1);
        used = found;
        found = total();
        if (lane == 0) {
            counts[i] = found;
            is_long[i] = 0;
        }
        return;
    }
    double own = 0, others = 0;
    for (I p = lo + lane; p < hi; p += LANES) {
        const I j = indices[p];
        const T held = j < i ? data[p] * data[diag[j]] : SYMMETRIC ? T(abs2(data[p])) : data[p];
        const T r = values[lookup<SLOTS>(keys, j)] - held;
        own += double(real(r)) * double(real(r)) + double(imag(r)) * double(imag(r));
    }
    int m = 0;
    for (int s = lane; s < SLOTS; s += LANES) {
        const bool here = flags[s] == WANTED && keys[s] != I(-1);
        const unsigned votes = __ballot_sync(mask, here);
        if (here) list[m + __popc(votes & ((1u << (threadIdx.x % 32)) - 1u))] = (unsigned short)s;
        m += __popc(votes);
    }
    __syncwarp(mask);
    const I start = starts[i];
    for (int t = lane; t < m; t += LANES) {
        const int s = list[t];
        const I j = keys[s];
        int rank = 0;
        for (int u = 0; u < m; ++u) rank += keys[list[u]] < j;
        out_indices[start + rank] = j;
        out[start + rank] = values[s];
    }
    __syncwarp(mask);
    for (int t = lane; t < m; t += LANES) {  // in ascending order of columns: the same sum in every run
        const T r = out[start + t];
        others += double(real(r)) * double(real(r)) + double(imag(r)) * double(imag(r));
    }
    own = lanes_sum<LANES>(mask, own);
    others = lanes_sum<LANES>(mask, others);
    if (lane == 0) {
        squares[i] = own;
        squares[size_t(n) + i] = others;
    }
}

// The same for the rows that were listed, a block a row: the columns as a bitmap of n bits (in bits, gridDim.x times
// (n + 31) / 32 words), the values in a dense row of work (gridDim.x, n) of any values. work is only used with FILL.
template <typename T, typename I, bool SYMMETRIC, bool FILL>
__global__ void __launch_bounds__(LONG_BLOCK) long_candidates(I n, const I* __restrict__ a_indptr, const I* __restrict__ a_indices,
                           const T* __restrict__ a, const I* __restrict__ indptr, const I* __restrict__ indices,
                           const I* __restrict__ diag, const T* __restrict__ data, const I* __restrict__ c_indptr,
                           const I* __restrict__ c_rows, const I* __restrict__ c_places, double least,
                           long long* counts, const I* __restrict__ long_rows, const unsigned long long* __restrict__ n_long,
                           const I* __restrict__ starts, I* out_indices, T* out, double* squares, T* work, unsigned* bits)
{
    __shared__ int sums[LONG_BLOCK];
    const Factor<T, I, SYMMETRIC> factor{indptr, indices, diag, c_indptr, c_rows, c_places, data};
    const size_t words = (size_t(n) + 31) / 32;
    unsigned* const mine = bits + blockIdx.x * words;
    T* const w = FILL ? work + size_t(blockIdx.x) * n : nullptr;
    const int t = threadIdx.x;
    for (unsigned long long r = blockIdx.x; r < *n_long; r += gridDim.x) {
        const I i = long_rows[r];
        const I lo = indptr[i], hi = indptr[i + 1], pivot = diag[i];
        for (size_t b = t; b < words; b += LONG_BLOCK) mine[b] = 0;
        __syncthreads();
        const auto mark = [&](I j) { atomicOr(mine + j / 32, 1u << (j % 32)); };
        if (FILL) {
            for (I p = lo + t; p < hi; p += LONG_BLOCK) w[indices[p]] = T(0);
            for (I p = lo; p < pivot; ++p) {
                const I k = indices[p], stop = factor.last(k);
                for (I q = factor.first(k) + t; q < stop; q += LONG_BLOCK) {
                    const I j = factor.column(q);
                    if (SYMMETRIC && j > i) break;
                    w[j] = T(0);
                }
            }
            __syncthreads();
            for (I p = a_indptr[i] + t; p < a_indptr[i + 1]; p += LONG_BLOCK) w[a_indices[p]] = a[p];
        }
        for (I p = a_indptr[i] + t; p < a_indptr[i + 1]; p += LONG_BLOCK) mark(a_indices[p]);
        __syncthreads();
        for (I p = lo; p < pivot; ++p) {
            const I k = indices[p], stop = factor.last(k);
            const T l = data[p];
            for (I q = factor.first(k) + t; q < stop; q += LONG_BLOCK) {
                const I j = factor.column(q);
                if (SYMMETRIC && j > i) break;
                if (!FILL && !(least > 0)) {
                    mark(j);
                    continue;
                }
                const T product = l * factor.template value<false>(q);
                if (FILL) w[j] -= product;
                if (!(least > 0) || magnitude(product) >= least) mark(j);
            }
            if (FILL) __syncthreads();
        }
        __syncthreads();
        double own = 0;
        for (I p = lo + t; p < hi; p += LONG_BLOCK) {
            const I j = indices[p];
            atomicAnd(mine + j / 32, ~(1u << (j % 32)));
            if (FILL) {
                const T held = j < i ? data[p] * data[diag[j]] : SYMMETRIC ? T(abs2(data[p])) : data[p];
                const T d = w[j] - held;
                own += double(real(d)) * double(real(d)) + double(imag(d)) * double(imag(d));
            }
        }
        __syncthreads();
        // each thread a piece of the bitmap: how many candidates there are before it
        const size_t piece = (words + LONG_BLOCK - 1) / LONG_BLOCK, first = piece * t;
        const size_t last = first + piece < words ? first + piece : words;
        int found = 0;
        for (size_t b = first; b < last; ++b) found += __popc(mine[b]);
        sums[t] = found;
        __syncthreads();
        for (int offset = 1; offset < LONG_BLOCK; offset *= 2) {
            const int before = t >= offset ? sums[t - offset] : 0;
            __syncthreads();
            sums[t] += before;
            __syncthreads();
        }
        if (!FILL && t == 0) counts[i] = sums[LONG_BLOCK - 1];
        if (FILL) {
            double others = 0;
            I place = starts[i] + sums[t] - found;
            for (size_t b = first; b < last; ++b) {
                for (unsigned word = mine[b]; word != 0; word &= word - 1) {
                    const I j = I(b * 32 + __ffs(word) - 1);
                    const T v = w[j];
                    out_indices[place] = j;
                    out[place] = v;
                    others += double(real(v)) * double(real(v)) + double(imag(v)) * double(imag(v));
                    ++place;
                }
            }
            own = block_sum(own);
            others = block_sum(others);
            if (t == 0) {
                squares[i] = own;
                squares[size_t(n) + i] = others;
            }
        }
        __syncthreads();
    }
}
