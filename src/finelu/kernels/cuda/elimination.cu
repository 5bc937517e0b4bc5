// The row-wise, synchronization-free elimination that ILU(0) and IC(0) share (Freire, Dufrechou, Ezzatti: "A
// synchronization-free incomplete LU factorization for GPUs with level-set analysis", Algorithm 2).
//
// LANES threads own row i. For each lower entry k in turn they wait for row k, turn entry k into l_ik and subtract l_ik
// times row k from the rest of row i, where the patterns meet. Every value is its own ready flag (see finelu.cuh), so
// there is no second array, no fence and no atomic; a reader waits for exactly the values that it needs. out (nnz) and
// inverse (n) are pending (0xff) before the launch; inverse[i] receives 1 / pivot; the pattern and the input are only
// read. bad[0] (pending too) receives the smallest row with a value that is not finite, a zero pivot, or for Cholesky a
// pivot that is not positive: it is never the consequence of a bad row with a larger number, and elimination goes on
// (with NaN) so that no row waits for ever. The result does not depend on the order of events: a value receives its
// updates in the order of k, by one thread at a time.
// Progress: groups of a block take rows of one ticket() in visiting order, and a group waits only for rows before its
// own. Groups of one warp may wait for each other: none polls alone, the warp goes round, polls once for every group
// and lets those go on that have their values. The only spin, await(), is for values of a row whose inverse has been
// seen; these were posted before the inverse was (__syncwarp in between), so it ends however the warps are scheduled.
// Long rows of Cholesky also await rows whose inverse has not been seen; there is one group a warp then (LANES == 32),
// so that the awaited row is another warp's, earlier in order.
// Twins: kernels/reference/elimination.py: ilu0, milu0 and ic0 (equal to a few ulps: a division by a pivot is a product
// with its reciprocal here, and milu0 adds up the products that are dropped one by one there).
#include "runtime/finelu.cuh"

using namespace fl;

enum Kind { LU, MODIFIED, CHOLESKY };  // ILU(0); MILU(0); IC(0) of the lower triangle by rows, the diagonal last

// How the places where two rows meet are found: section IV.A, section IV.B, binary search only, or read from a table
// that match_rows made of the pattern beforehand.
enum Update { INTERSECT, VECTOR, SEARCH, TABLE };
constexpr int BATCH = 4;           // reference rows that are asked for at the same time
constexpr int BY_INTERSECTION = 128;  // entries of two rows together up to which VECTOR intersects them (the paper's)
constexpr int VERY_LONG = 1024;    // entries of a row beyond which it is not looked through for every reference row

// Where row i's entry in column j > k takes its update of step k from: U_kj in row k (places row_lo to row_hi), or for
// Cholesky L_jk (whose conjugate is U_kj / L_kk) in row j. -1: the patterns do not meet. -2: L_ik itself (Cholesky, j =
// i).
template <int KIND, typename I>
__device__ inline I intersection(const I* __restrict__ cols, I i, I k, I j, I row_lo, I row_hi)
{
    if (KIND != CHOLESKY) return find(cols, row_lo, row_hi, j);
    return j == i ? I(-2) : find(cols, row_lo, row_hi, k);
}

// table[base[i] + s * len + e] = intersection(...) of step s and entry e > s of row i; base[i] is the sum of below *
// len of the rows before. A warp a row and every gridDim.y-th step of it, no dependencies. Launch: gridDim.x *
// blockDim.x / 32 >= n.
template <typename I, int KIND>
__global__ void match_rows(I n, const I* __restrict__ indptr, const I* __restrict__ cols, const I* __restrict__ diag,
                           const long long* __restrict__ base, I* table)
{
    const I i = own_row<I, 32>();
    if (i >= n) return;
    const I lo = indptr[i], len = (KIND == CHOLESKY ? diag[i] + 1 : indptr[i + 1]) - lo, below = diag[i] - lo;
    if (indptr[i + 1] - lo > VERY_LONG) return;  // such rows have no part in the table
    for (I s = blockIdx.y; s < below; s += gridDim.y) {
        const I k = cols[lo + s];
        const I row_lo = indptr[k], row_hi = indptr[k + 1];
        for (I e = threadIdx.x % 32; e < len; e += 32) {
            const I j = cols[lo + e];
            I at = -1;
            if (e > s) at = KIND == CHOLESKY && j != i ? intersection<KIND>(cols, i, k, j, indptr[j], diag[j])
                                               : intersection<KIND>(cols, i, k, j, row_lo, row_hi);
            table[base[i] + (long long)s * len + e] = at;
        }
    }
}

// The last step of a row: the pivot as it is stored, and whether it can be used.
template <int KIND, typename T> __device__ inline T finish_pivot(T value, bool& good)
{
    if (KIND != CHOLESKY) {
        good = good && is_finite(value) && !(value == T(0));
        return value;
    }
    good = good && is_finite(value) && real(value) > 0;
    return root(value);
}

// SHORT: every row is resident; the code for long rows, left out, would cost registers and a tenth of the time.
// MODIFIED (SEARCH and TABLE only): row k also posts sums[k], pending before, of its entries above the diagonal, so
// that another row knows the sum of the updates l u_kj outside of its own pattern: l sums[k] less the updates inside.
// `relax` times this sum is subtracted from its pivot. The others read neither relax nor sums. order: null for natural
// order (shared, vect, adapt, natural), or the rows in level order (levs, table). base, table: see match_rows, for TABLE only.
// Launch: gridDim.x >= n * LANES / blockDim.x; dynamic shared memory blockDim.x * sizeof(I) for INTERSECT and VECTOR.
template <typename T, typename I, int LANES, int PER_LANE, int UPDATE, bool AHEAD, bool SHORT, int KIND>
__global__ void __launch_bounds__(256) eliminate(I n, const I* __restrict__ order, const I* __restrict__ indptr,
                               const I* __restrict__ cols, const I* __restrict__ diag, const long long* __restrict__ base,
                               const I* __restrict__ table, const T* __restrict__ a, T* work, T* out, T* inverse,
                               unsigned* bad, unsigned* counter, double relax, T* sums)
{
    constexpr bool SUMS = KIND == MODIFIED;
    extern __shared__ __align__(16) unsigned char shared_bytes[];  // INTERSECT and VECTOR: one column index a thread
    const I t = I(ticket(counter)) * I(blockDim.x / LANES) + I(threadIdx.x) / LANES;
    bool done = t >= n;
    const I i = done ? 0 : order == nullptr ? t : order[t];
    const int lane = threadIdx.x % LANES;
    const unsigned mask = group_mask<LANES>();
    const I lo = indptr[i], len = (KIND == CHOLESKY ? diag[i] + 1 : indptr[i + 1]) - lo, below = diag[i] - lo;
    // in registers, else in work
    const bool resident = SHORT || len <= I(LANES) * PER_LANE;
    constexpr bool BY_WARP = UPDATE == INTERSECT || UPDATE == VECTOR;  // a reference row at a time
    const I* const row_table = UPDATE == TABLE && !done ? table + base[i] : nullptr;
    const bool very_long = !resident && indptr[i + 1] - lo > VERY_LONG;
    bool good = true;
    if (KIND == CHOLESKY && LANES < 32 && !done && !resident) __trap();  // the launcher never asks for it, see Progress

    // a value of the finished row, entry e
    const auto store = [&](I e, T value) {
        if (e == below) value = finish_pivot<KIND>(value, good);
        good = good && is_finite(value);
        if (!(KIND == CHOLESKY && e < below)) post(out + lo + e, value);
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
            if (KIND == CHOLESKY && UPDATE == SEARCH && e < below) {
                j_lo[m] = indptr[j[m]];
                j_hi[m] = diag[j[m]];
            }
        }
    } else if (!done) {
        for (I e = lane; e < len; e += LANES) work[lo + e] = a[lo + e];
        __syncwarp(mask);
    }
    // The values that are awaited from the next BATCH reference rows; for a long row only their inverse pivots. With
    // AHEAD, for rows of several batches, the places of the next batch are looked up while one is awaited, and its
    // values are requested while that one is worked on.
    struct Batch {
        I reference[BATCH], at[PER_LANE][BATCH];
        T d[BATCH], u[PER_LANE][BATCH], sum[SUMS ? BATCH : 1];
    };
    I step = 0;
    T given = T(0), taken = T(0);  // SUMS: of all l sums[k], and of what this thread has subtracted
    Batch now{}, next{};
    bool ahead = false;  // the places of next are known
    const auto locate = [&](Batch& batch, I first) {
#pragma unroll
        for (int s = 0; s < BATCH; ++s)
            batch.reference[s] = first + s < below ? cols[lo + first + s] : I(-1);
#pragma unroll
        for (int s = 0; s < BATCH; ++s) {
            const I k = batch.reference[s];
            I row_lo = 0, row_hi = 0;
            if (KIND != CHOLESKY && UPDATE == SEARCH && resident && k >= 0) {
                row_lo = indptr[k];
                row_hi = indptr[k + 1];
            }
#pragma unroll
            for (int m = 0; m < PER_LANE; ++m) {
                const I e = lane + m * LANES;
                batch.at[m][s] = -1;
                if (!BY_WARP && resident && k >= 0 && e > first + s && e < len) {
                    if (UPDATE == TABLE) batch.at[m][s] = row_table[(long long)(first + s) * len + e];
                    else batch.at[m][s] = KIND == CHOLESKY && j[m] != i ? intersection<KIND>(cols, i, k, j[m], j_lo[m], j_hi[m])
                                                                : intersection<KIND>(cols, i, k, j[m], row_lo, row_hi);
                }
            }
        }
    };
    const auto begin = [&](Batch& batch) {  // nothing of it has been seen
#pragma unroll
        for (int s = 0; s < BATCH; ++s) {
            batch.d[s] = T(0);
            if (batch.reference[s] >= 0) make_pending(batch.d[s]);
            if (SUMS) batch.sum[SUMS ? s : 0] = batch.d[s];
#pragma unroll
            for (int m = 0; m < PER_LANE; ++m) {
                batch.u[m][s] = T(0);
                if (batch.at[m][s] >= 0) make_pending(batch.u[m][s]);
            }
        }
    };
    const auto ask = [&](Batch& batch) {  // for all that is missing at once, so that the latencies overlap
#pragma unroll
        for (int s = 0; s < BATCH; ++s) {
            if (pending(batch.d[s])) batch.d[s] = peek(inverse + batch.reference[s]);
            if (SUMS && pending(batch.sum[SUMS ? s : 0])) batch.sum[SUMS ? s : 0] = peek(sums + batch.reference[s]);
#pragma unroll
            for (int m = 0; m < PER_LANE; ++m)
                if (pending(batch.u[m][s])) batch.u[m][s] = peek(out + batch.at[m][s]);
        }
    };
    const auto waits = [&](const Batch& batch) {
        bool missing = false;
#pragma unroll
        for (int s = 0; s < BATCH; ++s) {
            missing |= pending(batch.d[s]) || (SUMS && pending(batch.sum[SUMS ? s : 0]));
#pragma unroll
            for (int m = 0; m < PER_LANE; ++m) missing |= pending(batch.u[m][s]);
        }
        return missing;
    };
    const auto eliminate_resident = [&](const Batch& batch) {
#pragma unroll
        for (int s = 0; s < BATCH; ++s) {
            const int e = int(step) + s;
            if (e < below) {
                T l = w[0];
#pragma unroll
                for (int m = 1; m < PER_LANE; ++m)
                    if (e / LANES == m) l = w[m];
                l = shuffle(mask, l, e % LANES, LANES) * batch.d[s];
                if (SUMS) given += l * batch.sum[SUMS ? s : 0];
#pragma unroll
                for (int m = 0; m < PER_LANE; ++m) {
                    if (batch.at[m][s] >= 0) w[m] -= l * (KIND == CHOLESKY ? conj(batch.u[m][s]) : batch.u[m][s]);
                    if (SUMS && batch.at[m][s] >= 0) taken += l * batch.u[m][s];
                    if (KIND == CHOLESKY && batch.at[m][s] == -2) w[m] -= l * conj(l);
                    if (lane + m * LANES == e) {
                        w[m] = l;
                        if (KIND == CHOLESKY) post(out + lo + e, l);
                    }
                }
            }
        }
    };
    // The paper's two ways, a reference row at a time. Resident rows: Algorithm 3, its batches of the reference row in
    // shared memory and the row itself in registers, or Algorithm 4, each thread searches for the columns of its own
    // entries.
    const auto eliminate_resident_by_warp = [&](int at_step, T d, I k) {
        T l = w[0];
#pragma unroll
        for (int m = 1; m < PER_LANE; ++m)
            if (at_step / LANES == m) l = w[m];
        l = shuffle(mask, l, at_step % LANES, LANES) * d;
        const I row_hi = indptr[k + 1];
        if (UPDATE == INTERSECT || len + row_hi - indptr[k] <= BY_INTERSECTION) {
            I* shared = reinterpret_cast<I*>(shared_bytes) + threadIdx.x / LANES * LANES;
            for (I ib = diag[k] + 1; ib < row_hi; ib += LANES) {
                shared[lane] = ib + lane < row_hi ? cols[ib + lane] : n;
                __syncwarp(mask);
                const I first = shared[0], last = shared[LANES - 1];
#pragma unroll
                for (int m = 0; m < PER_LANE; ++m) {
                    if (lane + m * LANES <= at_step || j[m] < first || j[m] > last) continue;
                    for (int s = 0; s < LANES; ++s) {
                        if (shared[s] == j[m]) {
                            w[m] -= l * await(out + ib + s);
                            break;
                        }
                    }
                }
                __syncwarp(mask);
            }
        } else {
#pragma unroll
            for (int m = 0; m < PER_LANE; ++m) {
                const I p = lane + m * LANES > at_step && j[m] >= 0 ? find(cols, diag[k] + 1, row_hi, j[m]) : I(-1);
                if (p >= 0) w[m] -= l * await(out + p);
            }
        }
#pragma unroll
        for (int m = 0; m < PER_LANE; ++m)
            if (lane + m * LANES == at_step) w[m] = l;
        __syncwarp(mask);
    };
    // Long rows: the same, ...
    const auto eliminate_by_warp = [&](I at_step, T d, I k) {
        const T l = work[lo + at_step] * d;
        __syncwarp(mask);
        const I row_hi = indptr[k + 1];
        if (UPDATE == INTERSECT || len + row_hi - indptr[k] <= BY_INTERSECTION) {
            // Algorithm 3: both index lists by batches of a warp, one of them shared
            I* shared = reinterpret_cast<I*>(shared_bytes) + threadIdx.x / LANES * LANES;
            I ia = at_step + 1, ib = diag[k] + 1;
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
                const I last_a = shuffle(mask, mine, LANES - 1, LANES), last_b = shared[LANES - 1];
                __syncwarp(mask);
                if (last_a <= last_b) ia += LANES;
                if (last_b <= last_a) ib += LANES;
            }
        } else {  // Algorithm 4: each thread searches the columns of its own entries in the reference row
            for (I e = at_step + 1 + lane; e < len; e += LANES) {
                const I p = find(cols, diag[k] + 1, row_hi, cols[lo + e]);
                if (p >= 0) work[lo + e] -= l * await(out + p);
            }
        }
        __syncwarp(mask);
        if (lane == 0) work[lo + at_step] = l;
        __syncwarp(mask);
    };
    // ... and BATCH reference rows at once. First come the entries of L in their columns: they depend on each other,
    // and every thread computes them for itself. Then each thread updates its own entries of the rest of the row, OWN
    // at a time. All values of such a step are requested together, so that their latencies overlap.
    const auto eliminate_long = [&]() {
        const auto place = [&](int s, I e, I c) -> I {
            const I k = now.reference[s];
            if (k < 0 || e <= step + s) return -1;
            if (UPDATE == TABLE) return row_table[(long long)(step + s) * len + e];
            return KIND == CHOLESKY && c != i ? intersection<KIND>(cols, i, k, c, indptr[c], diag[c])
                                      : intersection<KIND>(cols, i, k, c, indptr[k], indptr[k + 1]);
        };
        constexpr int OWN = sizeof(T) > 8 ? 2 : 4;
        T l[BATCH], own[BATCH], w_own[BATCH][BATCH];
        I at_own[BATCH][BATCH];
#pragma unroll
        for (int e = 0; e < BATCH; ++e) {
            const bool here = now.reference[e] >= 0;
            own[e] = here ? work[lo + step + e] : T(0);
#pragma unroll
            for (int s = 0; s < e; ++s) at_own[e][s] = here ? place(s, step + e, now.reference[e]) : I(-1);
        }
#pragma unroll
        for (int e = 0; e < BATCH; ++e)
#pragma unroll
            for (int s = 0; s < e; ++s) w_own[e][s] = at_own[e][s] >= 0 ? peek(out + at_own[e][s]) : T(0);
        const auto subtract = [&](T& value, int s, I at, T v, bool counts) {
            if (at >= 0) {
                if (pending(v)) v = await(out + at);
                value -= l[s] * (KIND == CHOLESKY ? conj(v) : v);
                if (SUMS && counts) taken += l[s] * v;
            }
            if (KIND == CHOLESKY && at == -2) value -= l[s] * conj(l[s]);
        };
#pragma unroll
        for (int e = 0; e < BATCH; ++e) {
#pragma unroll
            for (int s = 0; s < e; ++s) subtract(own[e], s, at_own[e][s], w_own[e][s], lane == 0);
            l[e] = own[e] * now.d[e];
            if (SUMS) given += l[e] * now.sum[SUMS ? e : 0];
        }
        __syncwarp(mask);  // all have read the entries that change now
        if (lane < BATCH && step + lane < below) {
            T mine = l[0];
#pragma unroll
            for (int s = 1; s < BATCH; ++s)
                if (lane == s) mine = l[s];
            work[lo + step + lane] = mine;
            if (KIND == CHOLESKY) post(out + lo + step + lane, mine);
        }
        const I begin_e = step + BATCH < below ? step + BATCH : below;
        for (I first = begin_e + lane; first < len; first += OWN * LANES) {
            I at[OWN][BATCH];
            T v[OWN][BATCH], value[OWN];
#pragma unroll
            for (int m = 0; m < OWN; ++m) {
                const I e = first + m * LANES;
                const I c = e < len ? cols[lo + e] : I(0);
                value[m] = e < len ? work[lo + e] : T(0);
#pragma unroll
                for (int s = 0; s < BATCH; ++s) at[m][s] = e < len ? place(s, e, c) : I(-1);
            }
#pragma unroll
            for (int m = 0; m < OWN; ++m)
#pragma unroll
                for (int s = 0; s < BATCH; ++s) v[m][s] = at[m][s] >= 0 ? peek(out + at[m][s]) : T(0);
#pragma unroll
            for (int m = 0; m < OWN; ++m) {
#pragma unroll
                for (int s = 0; s < BATCH; ++s) subtract(value[m], s, at[m][s], v[m][s], true);
                if (first + m * LANES < len) work[lo + first + m * LANES] = value[m];
            }
        }
        __syncwarp(mask);
    };

    // A very long row: the entries of the reference row are looked up in it, not its own in the reference row, so that
    // an arrow costs O(n log n) and not O(n^2). ILU(0) subtracts l times row k; Cholesky, which has no columns of L at
    // hand, completes one entry after the other with the products of the rows so far.
    const auto eliminate_very_long = [&](I at_step, T d, I k, T sum_of_k) {
        const T w_k = work[lo + at_step];
        T l = w_k * d, sum = T(0);
        if (SUMS) given += l * sum_of_k;
        if (KIND == CHOLESKY) {
            for (I q = indptr[k] + lane; q < diag[k]; q += LANES) {
                const I p = find(cols, lo, lo + at_step, cols[q]);
                if (p >= 0) sum += work[p] * conj(await(out + q));
            }
            sum = lanes_sum<LANES>(sum, mask);
            l = (w_k - sum) * d;
        } else {
            for (I q = diag[k] + 1 + lane; q < indptr[k + 1]; q += LANES) {
                const I p = find(cols, lo + at_step + 1, lo + len, cols[q]);
                if (p < 0) continue;
                const T product = l * await(out + q);
                work[p] -= product;
                if (SUMS) taken += product;
            }
        }
        __syncwarp(mask);
        if (lane == 0) {
            work[lo + at_step] = l;
            if (KIND == CHOLESKY) {
                work[lo + below] -= l * conj(l);
                post(out + lo + at_step, l);
            }
        }
        __syncwarp(mask);
    };

    if (!done) {
        locate(now, 0);
        begin(now);
    }
    // In natural order with all rows resident, most rows are far from their turn: until their first reference row is
    // there they poll for that alone, and leave the L2 cache to those at the front.
    bool far = SHORT && !AHEAD && order == nullptr && below > 1;
    while (LANES == 32 && !AHEAD ? !done : __any_sync(0xffffffffu, !done)) {
        if (done) continue;
        if (SHORT && !AHEAD && far) {
            now.d[0] = peek(inverse + now.reference[0]);
            far = __any_sync(mask, pending(now.d[0]));
            continue;
        }
        ask(now);
        if (AHEAD && resident && !ahead && step + BATCH < below) {
            locate(next, step + BATCH);
            ahead = true;
        }
        if (__any_sync(mask, waits(now))) continue;
        if (step < below) {
            if (resident) {
                if (AHEAD && ahead) {
                    begin(next);
                    ask(next);
                }
                if (BY_WARP) {
#pragma unroll
                    for (int s = 0; s < BATCH; ++s)
                        if (now.reference[s] >= 0) eliminate_resident_by_warp(int(step) + s, now.d[s], now.reference[s]);
                } else {
                    eliminate_resident(now);
                }
                step += BATCH;
                if (AHEAD) {
                    now = next;
                    ahead = false;
                } else if (step < below) {
                    locate(now, step);
                    begin(now);
                }
            } else {
                if (very_long) {
#pragma unroll
                    for (int s = 0; s < BATCH; ++s)
                        if (now.reference[s] >= 0) eliminate_very_long(step + s, now.d[s], now.reference[s], now.sum[SUMS ? s : 0]);
                } else if (UPDATE == INTERSECT || UPDATE == VECTOR) {
#pragma unroll
                    for (int s = 0; s < BATCH; ++s)
                        if (now.reference[s] >= 0) eliminate_by_warp(step + s, now.d[s], now.reference[s]);
                } else {
                    eliminate_long();
                }
                step += BATCH;
                if (step < below) {
                    locate(now, step);
                    begin(now);
                }
            }
            if (step < below) continue;
        }
        if (SUMS) {
            taken = lanes_sum<LANES>(taken, mask);
            const T dropped = T(typename RealOf<T>::type(relax)) * (given - taken);
            if (resident) {
#pragma unroll
                for (int m = 0; m < PER_LANE; ++m)
                    if (lane + m * LANES == below) w[m] -= dropped;
            } else if (lane == below % LANES) {
                work[lo + below] -= dropped;
            }
        }
        T pivot = T(0), inv = T(0);  // in the thread that owns it
        constexpr bool EARLY = SHORT && !AHEAD && KIND != CHOLESKY;  // the division begins before the row is stored
        if (EARLY) {
#pragma unroll
            for (int m = 0; m < PER_LANE; ++m)
                if (lane + m * LANES == below) inv = T(1) / w[m];
        }
        T above = T(0);  // SUMS: of this thread's entries above the diagonal
        if (resident) {
#pragma unroll
            for (int m = 0; m < PER_LANE; ++m) {
                const I e = lane + m * LANES;
                if (e < len) w[m] = store(e, w[m]);
                if (e == below) pivot = w[m];
                if (SUMS && e > below && e < len) above += w[m];
            }
        } else {
            for (I e = lane; e < len; e += LANES) {
                const T value = store(e, work[lo + e]);
                if (e == below) pivot = value;
                if (SUMS && e > below) above += value;
            }
        }
        if (SUMS) {
            above = lanes_sum<LANES>(above, mask);
            if (lane == 0) post(sums + i, above);
        }
        __syncwarp(mask);  // first the row, then its inverse: see await()
        if (lane == below % LANES) {
            if (!EARLY) inv = T(1) / pivot;
            good = good && is_finite(inv);
            post(inverse + i, inv);
        }
        if (!good) atomicMin(bad, unsigned(i));
        done = true;
    }
}

// All bits of `words` words of 4 bytes become 1; p is a multiple of 16.
__device__ inline void make_all_pending(unsigned* p, long long words)
{
    const uint4 ones = {~0u, ~0u, ~0u, ~0u};
    const long long step = (long long)gridDim.x * blockDim.x, first = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    for (long long q = first; q < words / 4; q += step) reinterpret_cast<uint4*>(p)[q] = ones;
    if (first < words % 4) p[words / 4 * 4 + first] = ~0u;
}

// The preparation of an elimination whose matrix the kernel `alike` (inspection.cu) compares with its pattern. If
// unlike does not hold `mark`, then out, the inverses, sums, counter and bad become pending. If it does, only the
// counter changes: it then gives the `rounds` blocks of the elimination numbers beyond the last row, so that they do
// nothing. Launch: any 1-D grid.
__global__ void pend_unless(int mark, const int* unlike, long long out_words, unsigned* out, long long inverse_words,
                            unsigned* inverse, long long sums_words, unsigned* sums, unsigned rounds, unsigned* counter,
                            unsigned* bad)
{
    const bool refused = *unlike == mark;
    if (blockIdx.x == 0 && threadIdx.x == 0) *counter = refused ? rounds : ~0u;
    if (refused) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) *bad = ~0u;
    make_all_pending(out, out_words);
    make_all_pending(inverse, inverse_words);
    make_all_pending(sums, sums_words);
}

// The places that each row's part of the table may need; 0 for rows of more than `most` entries, which have none.
// Launch: gridDim.x * blockDim.x >= n.
template <typename I>
__global__ void table_sizes(I n, I most, const I* __restrict__ indptr, const I* __restrict__ diag, long long* sizes)
{
    const I i = I(own_item());
    if (i >= n) return;
    const long long length = indptr[i + 1] - indptr[i];
    sizes[i] = length > most ? 0 : (diag[i] - indptr[i]) * length;
}
