// Elimination of many pivots at a time, none of which is coupled to another; see kernels/reference/independent.py.
#include "runtime/finelu.cuh"
#include "runtime/growing.cuh"

using namespace fl;

enum State : unsigned char { USABLE, ESTIMATE, PIVOT, CHOSEN, UNDECIDED };

constexpr int LANES = 8;  // threads of a row, where rows are only looked at
constexpr int CLASSES = 7;  // of sizes of tables

template <typename T> __device__ inline Real<T> size_of(T a) { return Real<T>(modulus(a)); }

// 1 - nu or -1 - nu, the larger, and the smaller
template <typename T> __device__ inline T farthest(T nu) { return real(nu) <= 0 ? T(1) - nu : T(-1) - nu; }
template <typename T> __device__ inline T nearest(T nu) { return real(nu) <= 0 ? T(-1) - nu : T(1) - nu; }

template <typename R>
__device__ inline bool usable(R pivot, R right, R under, R pivot_tol, R least)
{
    const R spare = 4, largest = max(right, under);
    if (!(is_finite(spare * pivot) && is_finite(spare * largest)) || pivot <= max(least, pivot_tol * largest)) return false;
    return is_finite(R(1) / pivot) && is_finite(spare * (largest / pivot)) && is_finite(spare * (right / pivot) * under);
}

__device__ inline unsigned mixed(unsigned i)
{
    unsigned h = i * 0x9E3779B1u ^ i;
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    return h ^ h >> 16;
}

// The state of each row before the choice, its pivot d and its key in the order of choice.
template <typename T, typename R, typename I>
__global__ void weigh(I m, const I* __restrict__ indptr, const I* __restrict__ indices, const T* __restrict__ data,
                      const I* __restrict__ t_indptr, const I* __restrict__ t_indices, const T* __restrict__ t_data,
                      const T* __restrict__ l_nu, const T* __restrict__ u_nu, R condest, R pivot_tol, R least, T* d, u64* keys,
                      unsigned char* state)
{
    const I i = own_row<I, LANES>();
    const bool here = i < m;
    R right = 0, under = 0;
    int odd = 0, own = 0;
    T pivot = T(0);
    if (here) {
        for (I p = indptr[i] + threadIdx.x % LANES; p < indptr[i + 1]; p += LANES) {
            const T v = data[p];
            odd |= !is_finite(size_of(v));
            if (indices[p] == i) {
                pivot = v;
                own = 1;
                d[i] = v;
            } else right = max(right, size_of(v));
        }
        for (I p = t_indptr[i] + threadIdx.x % LANES; p < t_indptr[i + 1]; p += LANES) {
            const T v = t_data[p];
            odd |= !is_finite(size_of(v));
            if (t_indices[p] != i) under = max(under, size_of(v));
        }
    }
    right = lanes_max<LANES>(right);
    under = lanes_max<LANES>(under);
    odd = lanes_max<LANES>(odd);
    own = lanes_max<LANES>(own);
    const R size = lanes_max<LANES>(size_of(pivot));
    if (!here || threadIdx.x % LANES != 0) return;
    if (!own) d[i] = T(0);
    const bool small = size_of(farthest(l_nu[i])) <= condest && size_of(farthest(u_nu[i])) <= condest;
    state[i] = !small ? ESTIMATE : odd || !usable(size, right, under, pivot_tol, least) ? PIVOT : UNDECIDED;
    const u64 entries = min(u64(indptr[i + 1] - indptr[i]) + u64(t_indptr[i + 1] - t_indptr[i]), u64(0xffffffffu));
    keys[i] = entries << 32 | mixed(unsigned(i));
}

__device__ inline unsigned char look(const unsigned char* p)
{
    unsigned v;
    asm volatile("ld.relaxed.gpu.global.u8 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return (unsigned char)v;
}

// An undecided row is chosen once no neighbour with a smaller key is undecided or chosen. The result does not depend on
// the order of events. left: 1 if a row is still undecided.
template <typename I>
__global__ void decide(I m, const I* __restrict__ indptr, const I* __restrict__ indices, const I* __restrict__ t_indptr,
                       const I* __restrict__ t_indices, const u64* __restrict__ keys, unsigned char* state, unsigned* left)
{
    const I i = own_row<I, LANES>();
    const bool here = i < m && look(state + i) == UNDECIDED;
    int waits = 0, taken = 0;
    if (here) {
        const u64 key = keys[i];
        const auto meet = [&](I j) {
            const unsigned char s = look(state + j);
            if (s == CHOSEN) taken = 1;
            if (s == UNDECIDED && j != i) waits |= keys[j] < key || (keys[j] == key && j < i);
        };
        for (I p = indptr[i] + threadIdx.x % LANES; p < indptr[i + 1]; p += LANES) meet(indices[p]);
        for (I p = t_indptr[i] + threadIdx.x % LANES; p < t_indptr[i + 1]; p += LANES) meet(t_indices[p]);
    }
    waits = lanes_max<LANES>(waits);
    taken = lanes_max<LANES>(taken);
    if (!here || threadIdx.x % LANES != 0) return;
    if (taken || !waits) {
        asm volatile("st.relaxed.gpu.global.u8 [%0], %1;" ::"l"(state + i), "r"(unsigned(taken ? USABLE : CHOSEN)) : "memory");
    } else {
        *left = 1;
    }
}

// 1 for each row that is not chosen.
template <typename I> __global__ void rest_flags(I m, const unsigned char* __restrict__ state, I* flags)
{
    const I i = I(own_item());
    if (i < m) flags[i] = state[i] != CHOSEN;
}

// The numbers of the rows that are not chosen, and of those that are. number (m + 1): how many of the first there are
// before each.
template <typename I> __global__ void split(I m, const unsigned char* __restrict__ state, const I* __restrict__ number, I* rest, I* pivots)
{
    const I i = I(own_item());
    if (i >= m) return;
    if (state[i] == CHOSEN) pivots[i - number[i]] = i;
    else rest[number[i]] = i;
}

// Rows of D^-1 S off the diagonal, a warp a row that is chosen: their lengths, or with FILL their entries. At most
// `most` entries of a row are kept: a bisection over the bits of a double finds the smallest magnitude that is kept.
// cut (m): this magnitude, or 0 if the row is short enough. ties (m): how many entries of this magnitude are kept, the
// first ones. dropped: the numbers of entries dropped by tolerance and by the limit.
template <typename T, typename R, typename I, bool FILL>
__global__ void pivot_rows(I m, const I* __restrict__ indptr, const I* __restrict__ indices, const T* __restrict__ data,
                           const unsigned char* __restrict__ state, const T* __restrict__ d, const T* __restrict__ nu,
                           R drop_tol, long long most, I* lengths, double* cut, long long* ties, u64* dropped,
                           const I* __restrict__ starts, I* out_indices, T* out)
{
    const I k = own_row<I, 32>();
    if (k >= m) return;
    const int lane = threadIdx.x % 32;
    if (state[k] != CHOSEN) {
        if (!FILL && lane == 0) lengths[k] = 0;
        return;
    }
    const T pivot = d[k];
    const R weight = max(R(1), size_of(farthest(nu[k])));
    const I first = indptr[k], last = indptr[k + 1];
    const auto value = [&](I p) { return data[p] / pivot; };
    const auto large = [&](I p, T v) { return indices[p] != k && size_of(v) * weight > drop_tol; };
    if (!FILL) {
        long long kept = 0, lost = 0;
        for (I p = first + lane; p < last; p += 32) {
            const bool is = large(p, value(p));
            kept += is;
            lost += !is && indices[p] != k && size_of(data[p]) != 0;
        }
        kept = lanes_sum(kept);
        lost = lanes_sum(lost);
        double smallest = 0;
        long long equal = 0;
        if (kept > most) {
            // the largest number of which at least `most` entries are not below it
            u64 low = 0, high = 0x7ff0000000000000ull;
            const auto count = [&](double least, bool above) {
                long long found = 0;
                for (I p = first + lane; p < last; p += 32) {
                    const T v = value(p);
                    const double size = double(size_of(v));
                    found += large(p, v) && (above ? size > least : size >= least);
                }
                return lanes_sum(found);
            };
            while (high - low > 1) {
                const u64 middle = low + (high - low) / 2;
                if (count(__longlong_as_double((long long)middle), false) >= max(most, 1ll)) low = middle;
                else high = middle;
            }
            smallest = __longlong_as_double((long long)low);
            equal = most - count(smallest, true);
        }
        if (lane == 0) {
            lengths[k] = I(min(kept, most));
            cut[k] = smallest;
            ties[k] = equal;
            if (lost) atomicAdd(dropped, u64(lost));
            if (kept > most) atomicAdd(dropped + 1, u64(kept - most));
        }
        return;
    }
    I to = starts[k];
    const double smallest = cut[k];
    long long equal = ties[k];
    for (I base = first; base < last; base += 32) {
        const I p = base + lane;
        T v = T(0);
        bool is = false, tie = false;
        if (p < last) {
            v = value(p);
            is = large(p, v);
            if (smallest > 0) {
                const double size = double(size_of(v));
                tie = is && size == smallest;
                is = is && size > smallest;
            }
        }
        const unsigned tied = __ballot_sync(ALL, tie);
        if (tie) is = votes_before(tied) < equal;
        equal -= __popc(tied);
        const unsigned votes = __ballot_sync(ALL, is);
        if (is) {
            const I q = to + votes_before(votes);
            out_indices[q] = indices[p];
            out[q] = v;
        }
        to += __popc(votes);
    }
}

// -xi of each row that is chosen, 0 of others; a warp a row.
template <typename T, typename R, typename I>
__global__ void signs(I m, const I* __restrict__ indptr, const I* __restrict__ indices, const T* __restrict__ data,
                      const unsigned char* __restrict__ state, const T* __restrict__ nu, T* out)
{
    const I k = own_row<I, 32>();
    if (k >= m) return;
    const int lane = threadIdx.x % 32;
    if (state[k] != CHOSEN) {
        if (lane == 0) out[k] = T(0);
        return;
    }
    const T best = farthest(nu[k]), other = nearest(nu[k]);
    R far = 0, near = 0;
    for (I p = indptr[k] + lane; p < indptr[k + 1]; p += 32) {
        const T there = nu[indices[p]];
        far += size_of(there + best * data[p]);
        near += size_of(there + other * data[p]);
    }
    far = lanes_sum(far) + size_of(best);
    near = lanes_sum(near) + size_of(other);
    if (lane == 0) out[k] = T(0) - (near > far ? other : best);
}

// Rows by the size of the table that they will need, as far as that can be guessed: lists (CLASSES, m), counts
// (CLASSES). sizes: of the tables.
template <typename I>
__global__ void classify(I m, const I* __restrict__ indptr, const I* __restrict__ l_indptr, const I* __restrict__ l_indices,
                         const I* __restrict__ u_indptr, const unsigned char* __restrict__ state, const int* __restrict__ sizes,
                         I* lists, unsigned* counts)
{
    const I i = I(own_item());
    int mine = -1;
    if (i < m && state[i] != CHOSEN) {
        const long long own = indptr[i + 1] - indptr[i];
        long long most = own + 1, likely = 2 * own + 32;
        for (I p = l_indptr[i]; p < l_indptr[i + 1] && most < likely; ++p) most += u_indptr[l_indices[p] + 1] - u_indptr[l_indices[p]];
        likely = min(likely, most);
        for (mine = 0; mine < CLASSES - 1 && likely + 32 > sizes[mine] / 4 * 3; ++mine) {}
    }
    for (int c = 0; c < CLASSES; ++c) {
        const unsigned votes = __ballot_sync(ALL, mine == c);
        unsigned base = 0;
        if (votes && threadIdx.x % 32 == 0) base = atomicAdd(counts + c, unsigned(__popc(votes)));
        base = __shfl_sync(ALL, base, 0);
        if (mine == c) lists[size_t(c) * m + base + votes_before(votes)] = i;
    }
}

// Products that do not depend on the order of the factors, and become conjugate where both factors do.
__device__ inline float mirrored(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double mirrored(double a, double b) { return __dmul_rn(a, b); }
__device__ inline Complex<float> mirrored(Complex<float> a, Complex<float> b)
{
    return {__fsub_rn(__fmul_rn(a.re, b.re), __fmul_rn(a.im, b.im)), __fadd_rn(__fmul_rn(a.re, b.im), __fmul_rn(a.im, b.re))};
}
__device__ inline Complex<double> mirrored(Complex<double> a, Complex<double> b)
{
    return {__dsub_rn(__dmul_rn(a.re, b.re), __dmul_rn(a.im, b.im)), __dadd_rn(__dmul_rn(a.re, b.im), __dmul_rn(a.im, b.re))};
}

__device__ inline void raise(float* p, float v)
{
    if (peek(p) < v) atomicMax(reinterpret_cast<unsigned*>(p), __float_as_uint(v));
}
__device__ inline void raise(double* p, double v)
{
    if (peek(p) < v) atomicMax(reinterpret_cast<u64*>(p), u64(__double_as_longlong(v)));
}

// The rows of a class of S - L D U, in new numbers, a warp a row; those for which the table is too small go to the next
// class. The pool has `room`; used: the entries that were taken or would have been. place, length (r): of each row in
// the pool. row_size, column_size (r): the largest magnitudes. bad: the complement of the first row that is not finite,
// as the largest. Launch: any grid, blockDim.x 32 to 32 * GROWING_WARPS, which it is with scratch; dynamic shared
// memory blockDim.x / 32 * Row::bytes(size) if scratch is null.
template <typename T, typename R, typename I, typename N, bool SYMMETRIC>
__global__ void remaining_rows(I m, const I* __restrict__ indptr, const I* __restrict__ indices, const T* __restrict__ data,
                               const I* __restrict__ l_indptr, const I* __restrict__ l_indices, const T* __restrict__ l_data,
                               const I* __restrict__ u_indptr, const I* __restrict__ u_indices, const T* __restrict__ u_data,
                               const T* __restrict__ d, const unsigned char* __restrict__ state, const I* __restrict__ number,
                               const I* __restrict__ list, unsigned* counts, I* next, I* columns, T* values, long long room,
                               u64* used, long long* place, I* length, R* row_size, R* column_size, u64* bad,
                               unsigned char* scratch, int size)
{
    Row<T, I, N> row(row_memory<T, I, N>(scratch, size), size);
    const unsigned count = counts[0], of_block = blockDim.x / 32, warps = gridDim.x * of_block;
    for (unsigned e = blockIdx.x * of_block + threadIdx.x / 32; e < count; e += warps) {
        const I i = list[e], r = number[i];
        row.clear();
        int slot;
        bool fresh, fits = row.insert(row.lane == 0, r, I(-1), slot, fresh);  // the diagonal is stored always
        if (row.lane == 0) row.value[slot] = T(0);
        const I last = indptr[i + 1];
        for (I base = indptr[i]; fits && base < last; base += 32) {
            const I p = base + row.lane;
            const bool has = p < last && state[indices[p]] != CHOSEN;
            fits = row.insert(has, has ? number[indices[p]] : I(0), I(-1), slot, fresh);
            if (fits && has) row.value[slot] = data[p];
        }
        for (I q = l_indptr[i]; fits && q < l_indptr[i + 1]; ++q) {
            const I k = l_indices[q], stop = u_indptr[k + 1];
            const T l = l_data[q], pivot = d[k], factor = l * pivot;
            for (I base = u_indptr[k]; fits && base < stop; base += 32) {
                const I p = base + row.lane;
                const bool has = p < stop;
                fits = row.insert(has, has ? number[u_indices[p]] : I(0), I(-1), slot, fresh);
                if (fits && has) {
                    const T term = SYMMETRIC ? mirrored(mirrored(l, u_data[p]), pivot) : factor * u_data[p];
                    row.value[slot] = (fresh ? T(0) : row.value[slot]) - term;
                }
                __syncwarp();
            }
        }
        if (!fits) {
            if (row.lane == 0) next[atomicAdd(counts + 1, 1u)] = i;
            continue;
        }
        __syncwarp();
        row.in_order(row.behind, row.above);
        u64 to = 0;
        if (row.lane == 0) to = atomicAdd(used, u64(row.above));
        to = __shfl_sync(ALL, to, 0);
        const bool writes = to + row.above <= u64(room);
        R largest = 0;
        int odd = 0;
        for (int s = row.lane; s < row.above; s += 32) {
            const int at = row.behind[s];
            const T v = row.value[at];
            const I j = row.column(at);
            const R magnitude_of = size_of(v);
            odd |= !is_finite(magnitude_of);
            largest = max(largest, magnitude_of);
            if (writes) {
                columns[to + s] = j;
                values[to + s] = v;
            }
            if (!SYMMETRIC) raise(column_size + j, magnitude_of);
        }
        largest = lanes_max(largest);
        odd = lanes_max(odd);
        if (row.lane == 0) {
            place[r] = (long long)to;
            length[r] = row.above;
            row_size[r] = largest;
            if (odd) atomicMax(bad, ~u64(r));
        }
    }
}

// The kept entries of the rows in the pool, LANES threads a row: lengths, or with FILL the rows.
template <typename T, typename R, typename I, bool FILL>
__global__ void kept_rows(I r, const long long* __restrict__ place, const I* __restrict__ length, const I* __restrict__ columns,
                          const T* __restrict__ values, const R* __restrict__ row_size, const R* __restrict__ column_size,
                          R drop_tol, I* lengths, const I* __restrict__ starts, I* out_indices, T* out)
{
    const I i = own_row<I, LANES>();
    const bool here = i < r;
    const int lane = threadIdx.x % LANES, first = threadIdx.x % 32 / LANES * LANES;
    const long long from = here ? place[i] : 0;
    const I count = here ? length[i] : I(0);
    const R own = here ? row_size[i] : R(0);
    I kept = FILL && here ? starts[i] : I(0);
    const I most = lanes_max(count);
    for (I base = 0; base < most; base += LANES) {
        const I e = base + lane;
        bool is = false;
        if (e < count) {
            const I j = columns[from + e];
            is = j == i || !(size_of(values[from + e]) <= drop_tol * min(own, column_size[j]));
        }
        const unsigned votes = __ballot_sync(ALL, is) >> first & ((1u << LANES) - 1u);
        if (FILL && is) {
            const I q = kept + __popc(votes & ((1u << lane) - 1u));
            out_indices[q] = columns[from + e];
            out[q] = values[from + e];
        }
        kept += __popc(votes);
    }
    if (!FILL && here && lane == 0) lengths[i] = kept;
}
