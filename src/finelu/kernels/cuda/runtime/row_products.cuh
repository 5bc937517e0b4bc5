// Row by row products of sparse factors, for the sweeps and the candidates of ParILUT (2018, 2019); the papers'
// separate symbolic product, residual and sweep kernels are one kind of kernel here. Twins:
// kernels/reference/sweeps.py, and candidates in kernels/reference/candidates.py.
//
// Row i of A - L U: for each k < i of row i of L, in ascending order, l_ik times row k of U (of Cholesky: conj(l_jk)
// for the j of column k up to i) is subtracted from the accumulators of its columns. The columns of one k are distinct
// and the k go one after the other, so no two threads share an accumulator, and the bits are the same in every run
// wherever the accumulator of a column lies. Short rows: LANES threads a row, accumulators in a hash table in shared
// memory; where a sweep meets few of them, in registers (sweeps.cu: row_sweeps). Long rows: a block a row, accumulators
// in a dense row of global memory (of the L2 cache), where products outside of the pattern do no harm. Shared memory
// bounds short rows: about three accesses a multiply-add; the data of U comes from L2.
#pragma once

using namespace fl;

constexpr int BLOCK = 128;       // threads for short rows
constexpr int LONG_BLOCK = 512;  // and for long ones
constexpr int AT_ONCE = 4;       // entries of a row of U that a thread asks for at a time
constexpr int AHEAD = 3;         // rows of U whose first entries are asked for before they are needed

// The second factor of a product, U, by rows (LU), or L^H, by columns of L (Cholesky): entry q has a column and a
// value.
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

// The first entries of the next AHEAD rows, on their way while one row is worked on. fetch(e, column, value): of row e.
template <typename T, typename I> struct Ahead {
    I column[AHEAD];
    T value[AHEAD];
    template <typename Fetch> __device__ explicit Ahead(const Fetch& fetch)
    {
#pragma unroll
        for (int a = 0; a < AHEAD; ++a) fetch(a, column[a], value[a]);
    }
    // j, v: those of row e, in the order of rows
    template <typename Fetch> __device__ void take(int e, I& j, T& v, const Fetch& fetch)
    {
        j = column[0];
        v = value[0];
#pragma unroll
        for (int a = 1; a < AHEAD; ++a) {
            column[a - 1] = column[a];
            value[a - 1] = value[a];
        }
        fetch(e + AHEAD, column[AHEAD - 1], value[AHEAD - 1]);
    }
};

// use(step, column, value, here) for LANES entries of a row of U at a time, the rows in the order of the entries of L
// in places [lo, pivot); begin(p, k, l) before each row gives the factor; here: this lane has an entry of columns
// [from, upto]. No thread waits for a row of U when it is its turn: its bounds are known by then, and the first entries
// of the next AHEAD rows are on their way. more(): whether to go on. wide(p, q, stop) before what a row of U has beyond
// its first LANES entries, in places [q, stop): whether it has done with them by itself. All lanes of the group call
// all of them. For Cholesky pass upto <= i.
template <typename T, typename I, int LANES, bool SYMMETRIC, bool VALUES, bool FRESH, typename Begin, typename Use,
          typename Wide, typename More>
__device__ inline void for_products(const Factor<T, I, SYMMETRIC>& factor, unsigned mask, int lane, I i, I lo, I pivot,
                                    I from, I upto, const Begin& begin, const Use& use, const Wide& wide, const More& more)
{
    const bool bounded = upto <= i;
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
        const auto fetch = [&](int e, I& j, T& v) {
            const I q = shuffle(mask, first, e % LANES, LANES) + lane, stop = shuffle(mask, last, e % LANES, LANES);
            j = I(-1);
            if (e < steps && q < stop) {
                j = factor.column(q);
                if (VALUES) v = factor.template value<FRESH>(q);
            }
        };
        Ahead<T, I> ahead(fetch);
        for (int e = 0; e < steps && more(); ++e) {
            begin(base + e, shuffle(mask, k, e, LANES), shuffle(mask, l, e, LANES));
            I j;
            T v;
            ahead.take(e, j, v, fetch);
            use(j, v, j >= from && j <= upto);
            const I rest = shuffle(mask, first, e, LANES) + LANES, last_e = shuffle(mask, last, e, LANES);
            const I stop = rest < last_e && !wide(base + e, rest, last_e) ? last_e : rest;
            for (I base_q = rest; base_q < stop && more(); base_q += AT_ONCE * LANES) {
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
                if (bounded && __all_sync(mask, columns[0] > upto || columns[0] < 0)) break;
#pragma unroll
                for (int b = 0; b < AT_ONCE; ++b)
                    if (more()) use(columns[b], values[b], columns[b] >= from && columns[b] <= upto);
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
        const I there = peek_shared(keys + s);
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
