// The row-wise, synchronization-free elimination that ILU(0) and IC(0) share (Freire, Dufrechou, Ezzatti: "A
// synchronization-free incomplete LU factorization for GPUs with level-set analysis", Algorithm 2).
//
// LANES threads own row i. For each lower entry k in turn they wait for row k, turn entry k into l_ik and subtract l_ik
// times row k from the rest of row i, where the patterns meet. Every value is its own ready flag (see finelu.cuh), so
// there is no second array, no fence and no atomic; a reader waits for exactly the values that it needs.
// out (nnz) and inverse (n) are pending (0xff) before the launch; inverse[i] receives 1 / pivot; the pattern and the input
// are only read. bad[0] (0x7f bytes before the launch) receives the smallest row with a value that is not finite, a zero
// pivot, or for Cholesky a pivot that is not positive: it is never the consequence of a bad row with a larger number, and
// elimination goes on (with NaN) so that nobody waits for ever. The result does not depend on the order of events: a
// value receives its updates in the order of k, by one thread at a time.
// Progress: groups of a block take rows of one ticket() in visiting order, and a group waits only for rows before its own.
// Groups of one warp may wait for each other: nobody spins alone, the warp goes round, polls once for every group and lets
// those go on that have what they need. The only spin, await(), is for values of a row whose inverse has been seen; these
// were posted before the inverse was (__syncwarp in between), so it ends however the warps are scheduled.
#pragma once

enum Update { INTERSECT, VECTOR, SEARCH };  // section IV.A, IV.B, and binary search only
constexpr int BATCH = 4;                    // reference rows that are asked for at the same time

namespace fl {

// place of column j in cols[a, z), or -1
template <typename I>
__device__ inline I find(const I* __restrict__ cols, I a, I z, I j)
{
    const I stop = z;
    while (a < z) {
        const I mid = (a + z) >> 1;
        if (cols[mid] < j) a = mid + 1; else z = mid;
    }
    return a < stop && cols[a] == j ? a : I(-1);
}

template <typename T> __device__ inline T await(const T* p)
{
    T v = peek(p);
    while (pending(v)) v = peek(p);
    return v;
}

template <int LANES> __device__ inline unsigned group_mask()
{
    return LANES == 32 ? 0xffffffffu : ((1u << LANES) - 1u) << (threadIdx.x % 32 / LANES * LANES);
}
template <typename T> __device__ inline T from_lane(unsigned mask, T v, int lane, int width) { return __shfl_sync(mask, v, lane, width); }
template <typename R> __device__ inline Complex<R> from_lane(unsigned mask, Complex<R> v, int lane, int width)
{
    return {__shfl_sync(mask, v.re, lane, width), __shfl_sync(mask, v.im, lane, width)};
}

__device__ inline float root(float a) { return sqrtf(a); }
__device__ inline double root(double a) { return sqrt(a); }
template <typename R> __device__ inline Complex<R> root(Complex<R> a) { return {root(a.re), R(0)}; }

// The last step of a row: the pivot as it is stored, and whether it can be used.
template <bool CHOLESKY, typename T> __device__ inline T finish_pivot(T value, bool& good)
{
    if (!CHOLESKY) {
        good = finite(value) && !(value == T(0));
        return value;
    }
    good = finite(value) && real(value) > 0;
    return root(value);
}

template <typename T, typename I, int LANES, int PER_LANE, int UPDATE, bool CHOLESKY>
__device__ void eliminate_rows(I n, const I* __restrict__ order, const I* __restrict__ indptr, const I* __restrict__ cols,
                               const I* __restrict__ diag, const T* __restrict__ a, T* work, T* out, T* inverse, int* bad,
                               unsigned* counter)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];  // INTERSECT and VECTOR: one column index a thread
    const I t = I(ticket(counter)) * I(blockDim.x / LANES) + I(threadIdx.x) / LANES;
    bool done = t >= n;
    const I i = done ? 0 : order == nullptr ? t : order[t];
    const int lane = threadIdx.x % LANES;
    const unsigned mask = group_mask<LANES>();
    const I lo = indptr[i], len = (CHOLESKY ? diag[i] + 1 : indptr[i + 1]) - lo, below = diag[i] - lo;
    const bool resident = UPDATE == SEARCH && len <= I(LANES) * PER_LANE;  // in registers, else in work
    bool good = true;

    // Where row i's entry in column j > k takes its update of step k from: U_kj in row k, or L_jk (whose conjugate is
    // U_kj / L_kk) in row j. -1: patterns do not meet. -2 (Cholesky, j = i): L_ik itself.
    const auto source = [&](I k, I j, I row_lo, I row_hi) -> I {
        if (!CHOLESKY) return find(cols, row_lo, row_hi, j);
        return j == i ? I(-2) : find(cols, row_lo, row_hi, k);
    };
    // a value of the finished row, entry e
    const auto store = [&](I e, T value) {
        if (e == below) value = finish_pivot<CHOLESKY>(value, good);
        good = good && finite(value);
        if (!(CHOLESKY && e < below)) post(out + lo + e, value);
        return value;
    };

    // a resident row: PER_LANE entries a thread
    I j[PER_LANE], j_lo[PER_LANE], j_hi[PER_LANE];
    T w[PER_LANE];
    if (!done && resident) {
#pragma unroll
        for (int m = 0; m < PER_LANE; ++m) {
            const I e = lane + m * LANES;
            j[m] = e < len ? cols[lo + e] : I(-1);
            w[m] = e < len ? a[lo + e] : T(0);
            if (CHOLESKY && e < below) {
                j_lo[m] = indptr[j[m]];
                j_hi[m] = diag[j[m]];
            }
        }
    } else if (!done) {
        for (I e = lane; e < len; e += LANES) work[lo + e] = a[lo + e];
        __syncwarp(mask);
    }
    // what the next reference rows must give: BATCH of them for a resident row, else one
    I step = 0;
    T u[PER_LANE][BATCH], d[BATCH];
    I at[PER_LANE][BATCH], reference[BATCH];
    const auto prepare = [&]() {
#pragma unroll
        for (int s = 0; s < BATCH; ++s) {
            d[s] = T(0);
            reference[s] = step + s < below && (resident || s == 0) ? cols[lo + step + s] : I(-1);
            if (reference[s] >= 0) make_pending(d[s]);
        }
#pragma unroll
        for (int s = 0; s < BATCH; ++s) {
            I row_lo = 0, row_hi = 0;
            if (!CHOLESKY && resident && reference[s] >= 0) {
                row_lo = indptr[reference[s]];
                row_hi = indptr[reference[s] + 1];
            }
#pragma unroll
            for (int m = 0; m < PER_LANE; ++m) {
                at[m][s] = -1;
                u[m][s] = T(0);
                if (resident && reference[s] >= 0 && j[m] > reference[s]) {
                    at[m][s] = CHOLESKY && j[m] != i ? source(reference[s], j[m], j_lo[m], j_hi[m])
                                                     : source(reference[s], j[m], row_lo, row_hi);
                    if (at[m][s] >= 0) make_pending(u[m][s]);
                }
            }
        }
    };
    const auto eliminate_resident = [&]() {
#pragma unroll
        for (int s = 0; s < BATCH; ++s) {
            const int e = int(step) + s;
            if (e < below) {
                T l = w[0];
#pragma unroll
                for (int m = 1; m < PER_LANE; ++m)
                    if (e / LANES == m) l = w[m];
                l = from_lane(mask, l, e % LANES, LANES) * d[s];
#pragma unroll
                for (int m = 0; m < PER_LANE; ++m) {
                    if (at[m][s] >= 0) w[m] -= l * (CHOLESKY ? conj(u[m][s]) : u[m][s]);
                    if (CHOLESKY && at[m][s] == -2) w[m] -= l * conj(l);
                    if (lane + m * LANES == e) {
                        w[m] = l;
                        if (CHOLESKY) post(out + lo + e, l);
                    }
                }
            }
        }
        step += BATCH;
    };
    const auto eliminate_long = [&]() {
        const I k = reference[0];
        const T l = work[lo + step] * d[0];
        __syncwarp(mask);
        const I row_lo = indptr[k], row_hi = indptr[k + 1];
        const bool intersect = UPDATE == INTERSECT || (UPDATE == VECTOR && len - step + row_hi - diag[k] <= 128);
        if (UPDATE != SEARCH && intersect) {  // Algorithm 3: both index lists by batches of a warp, one of them shared
            I* shared = reinterpret_cast<I*>(shared_bytes) + threadIdx.x / LANES * LANES;
            I ia = step + 1, ib = diag[k] + 1;
            while (ia < len && ib < row_hi) {
                const I mine = ia + lane < len ? cols[lo + ia + lane] : n;
                shared[lane] = ib + lane < row_hi ? cols[ib + lane] : n;
                __syncwarp(mask);
                if (mine < n) {
                    for (int s = 0; s < LANES; ++s) {
                        if (shared[s] == mine) {
                            work[lo + ia + lane] -= l * await(out + ib + s);
                            break;
                        }
                    }
                }
                const I last_a = from_lane(mask, mine, LANES - 1, LANES), last_b = shared[LANES - 1];
                __syncwarp(mask);
                if (last_a <= last_b) ia += LANES;
                if (last_b <= last_a) ib += LANES;
            }
        } else {  // Algorithm 4: each thread searches the columns of its own entries in the reference row
            for (I e = step + 1 + lane; e < len; e += LANES) {
                const I c = cols[lo + e];
                const I p = CHOLESKY && c != i ? source(k, c, indptr[c], diag[c]) : source(k, c, row_lo, row_hi);
                if (p >= 0) {
                    const T v = await(out + p);
                    work[lo + e] -= l * (CHOLESKY ? conj(v) : v);
                }
                if (CHOLESKY && p == -2) work[lo + e] -= l * conj(l);
            }
        }
        __syncwarp(mask);
        if (lane == 0) {
            work[lo + step] = l;
            if (CHOLESKY) post(out + lo + step, l);
        }
        __syncwarp(mask);
        ++step;
    };

    if (!done) prepare();
    while (__any_sync(0xffffffffu, !done)) {
        if (done) continue;
        bool waits = false;
#pragma unroll
        for (int s = 0; s < BATCH; ++s) {  // all that are missing at once, so that their latencies overlap
            if (pending(d[s])) d[s] = peek(inverse + reference[s]);
#pragma unroll
            for (int m = 0; m < PER_LANE; ++m)
                if (pending(u[m][s])) u[m][s] = peek(out + at[m][s]);
        }
#pragma unroll
        for (int s = 0; s < BATCH; ++s) {
            waits |= pending(d[s]);
#pragma unroll
            for (int m = 0; m < PER_LANE; ++m) waits |= pending(u[m][s]);
        }
        if (__any_sync(mask, waits)) continue;
        if (step < below) {
            if (resident) eliminate_resident(); else eliminate_long();
            if (step < below) {
                prepare();
                continue;
            }
        }
        T pivot = T(0);  // in the thread that owns it
        if (resident) {
#pragma unroll
            for (int m = 0; m < PER_LANE; ++m) {
                const I e = lane + m * LANES;
                if (e < len) w[m] = store(e, w[m]);
                if (e == below) pivot = w[m];
            }
        } else {
            for (I e = lane; e < len; e += LANES) {
                const T value = store(e, work[lo + e]);
                if (e == below) pivot = value;
            }
        }
        __syncwarp(mask);  // first the row, then its inverse: see await()
        if (lane == below % LANES) {
            const T inv = T(1) / pivot;
            good = good && finite(inv);
            post(inverse + i, inv);
        }
        if (!good) atomicMin(bad, int(i));
        done = true;
    }
}

}  // namespace fl
