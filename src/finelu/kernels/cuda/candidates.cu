#include "runtime/finelu.cuh"
#include "runtime/row_products.cuh"
#include "runtime/sums.cuh"

constexpr unsigned char OWN = 1, WANTED = 2;

// Whether the product l v is large enough. The count and the fill must agree, so there is nothing to contract in it.
template <typename T> __device__ inline bool large(T l, T v, double least)
{
    return !(least > 0) || modulus(l) * modulus(v) >= least;
}

// The square of the residual at the stored entry (i, j) in place p; for Cholesky also that of its mirror image.
// accumulated: a_ij less the products of L U, except the one with the entry itself.
template <typename T, typename I, bool SYMMETRIC>
__device__ inline double own_square(const Factor<T, I, SYMMETRIC>& factor, I i, I p, I j, T accumulated)
{
    const T* const data = factor.data;
    const T held = j < i ? data[p] * data[factor.diag[j]] : SYMMETRIC ? T(abs2(data[p])) : data[p];
    return (SYMMETRIC && j < i ? 2.0 : 1.0) * square_of(accumulated - held);
}

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
    const unsigned mask = group_mask<LANES>();
    const int lane = threadIdx.x % LANES;
    const I i = own_row<I, LANES>();
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
    const auto total = [&]() { return lanes_sum<LANES>(used, mask); };
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
            if (!(flags[s] & (OWN | WANTED)) && large(l, v, least)) flags[s] |= WANTED;
        }
        if (!FILL) full = total() > ROOM - LANES;  // so that the table is never filled to the last slot
    };
    const auto take = [&](I, I, T given) { l = given; };
    const auto wide = [](I, I, I) { return false; };
    const auto more = [&] { return !full; };
    if (FILL || least > 0) for_products<T, I, LANES, SYMMETRIC, true, false>(factor, mask, lane, i, lo, pivot, 0, SYMMETRIC ? i : n, take, search, wide, more);
    else for_products<T, I, LANES, SYMMETRIC, false, false>(factor, mask, lane, i, lo, pivot, 0, SYMMETRIC ? i : n, take, search, wide, more);
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
        own += own_square(factor, i, p, j, values[lookup<SLOTS>(keys, j)]);
    }
    int m = 0;
    for (int s = lane; s < SLOTS; s += LANES) {
        const bool here = flags[s] == WANTED && keys[s] != I(-1);
        const unsigned votes = __ballot_sync(mask, here);
        if (here) list[m + votes_before(votes)] = (unsigned short)s;
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
        others += square_of(r);
    }
    if (least > 0) {  // those left out: in the order of the table, so that the last bits of the sum are not the same in every run
        for (int s = lane; s < SLOTS; s += LANES) {
            const bool left = keys[s] != I(-1) && !(flags[s] & (OWN | WANTED));
            const T r = left ? values[s] : T(0);
            others += square_of(r);
        }
    }
    own = lanes_sum<LANES>(own, mask);
    others = (SYMMETRIC ? 2.0 : 1.0) * lanes_sum<LANES>(others, mask);
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
                const T v = factor.template value<false>(q);
                if (FILL) w[j] -= l * v;
                if (large(l, v, least)) mark(j);
            }
            if (FILL) __syncthreads();
        }
        __syncthreads();
        double own = 0;
        for (I p = lo + t; p < hi; p += LONG_BLOCK) {
            const I j = indices[p];
            atomicAnd(mine + j / 32, ~(1u << (j % 32)));
            if (FILL) {
                own += own_square(factor, i, p, j, w[j]);
                w[j] = T(0);
            }
        }
        __syncthreads();
        // each thread a piece of the bitmap: how many candidates there are before it
        const size_t piece = (words + LONG_BLOCK - 1) / LONG_BLOCK, first = piece * t;
        const size_t last = first + piece < words ? first + piece : words;
        int found = 0;
        for (size_t b = first; b < last; ++b) found += __popc(mine[b]);
        int all;
        const int before = sum_before<LONG_BLOCK>(found, all);
        if (!FILL && t == 0) counts[i] = all;
        if (FILL) {
            double others = 0;
            I place = starts[i] + before;
            for (size_t b = first; b < last; ++b) {
                for (unsigned word = mine[b]; word != 0; word &= word - 1) {
                    const I j = I(b * 32 + __ffs(word) - 1);
                    const T v = w[j];
                    out_indices[place] = j;
                    out[place] = v;
                    w[j] = T(0);
                    others += square_of(v);
                    ++place;
                }
            }
            if (least > 0) {  // values that are not zero yet belong to candidates that were left out
                __syncthreads();
                for (I p = lo; p < pivot; ++p) {
                    const I k = indices[p], stop = factor.last(k);
                    for (I q = factor.first(k) + t; q < stop; q += LONG_BLOCK) {
                        const I j = factor.column(q);
                        if (SYMMETRIC && j > i) break;
                        const T v = w[j];
                        w[j] = T(0);
                        others += square_of(v);
                    }
                    __syncthreads();
                }
            }
            own = block_sum(own);
            others = (SYMMETRIC ? 2.0 : 1.0) * block_sum(others);
            if (t == 0) {
                squares[i] = own;
                squares[size_t(n) + i] = others;
            }
        }
        __syncthreads();
    }
}
