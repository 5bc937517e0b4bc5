// The value of a given rank, and thresholds (ParILUT on GPUs, 2019, section III): sampleselect, exact and approximate,
// and quickselect. Twin: kernels/reference/selection.py:select. Launchers, and the sequence of kernels of each method:
// selection.py.
//
// Everything works on keys: unsigned integers in the order of the values, or of their magnitudes. Rank r is the number
// of elements before the wanted one, so rank n, which no element has, gives Inf. A bucket is [low, high) in keys. Of
// splitters that are equal the last one is raised by one, so that between the two lies a bucket of one single key: a
// value that occurs often ends the search at once. Every other bucket is smaller than the range that was split, since
// each splitter is an element and lies in a bucket of its own; so the search ends.
//
// The bounds of count_buckets: each value is read once, 16 bytes a load, the next tile under way while this one is
// classified. A row of shared memory (128 bytes) holds one node of the tree as often as it fits, and each lane reads
// its own column: no bank conflicts, whatever the values are. Below the tree a row is a counter, a column a lane again:
// no conflicts either, not even if all values are equal, and the descent ends on the row of the counter itself. Two of
// the 8 levels are in registers. Keys of 64 bits are compared by their upper halves where these tell all splitters
// apart (splitters are rounded down to them, which makes splitters that are as good). Counted from the machine code for
// sm_90, 32 float64 then cost 36 to 40 instructions, 9 to 10 cycles of the four schedulers, and about 9 cycles of the
// load/store unit (6 words of the tree, one counter, the values); the memory of an H200 needs about 14 for them.
// float32: as many cycles, of which the memory needs 7. Whole keys of 64 bits: about 50 instructions and 15 cycles of
// the load/store unit.
//
// Decisions are taken on the device by the last block that is done, from counters it then sets back to 0 for the next
// launch. Blocks take tickets but do not wait. The order of extracted elements differs from run to run, so exact
// searches take different ways to the same result; the approximate one is the same in every run.
#include "runtime/finelu.cuh"

using namespace fl;

typedef unsigned long long u64;

enum { VALUES, MAGNITUDES, KEYS };                                     // the order of the elements
enum { LANES, SHARED, SHARED_AGGREGATED, GLOBAL, GLOBAL_AGGREGATED };  // where and how is counted
// words of `state`; after them 256 counters
enum {
    CODE, NAN_PLACE, BELOW, DONE, RANK, SIZE, COUNT, SOURCE, OFFSET, FROM, BUCKET, LOW, HIGH, TICKET, NAN_SEEN, LEFT,
    RIGHT, COUNTERS
};
enum { FINE, HAS_NAN, BAD_COUNT, BAD_RANK, CHANGED };
enum { COUNT_IS_LONG = 1, RANK_IS_LONG = 2, KEEP = 4 };  // bits of `form`

constexpr int BLOCK = 1024;         // threads, and elements of a sample
constexpr int BUCKETS = 256;
constexpr long long TAIL = 4096;    // elements that one block searches faster than all of them; as in selection.py
constexpr int ORACLE_LOADS = 4;     // of 16 bytes, a thread at once
constexpr int BINS = 1024;          // of search_rest

template <typename R> struct KeyOf;
template <> struct KeyOf<float> { using type = unsigned; };
template <> struct KeyOf<double> { using type = u64; };
template <> struct KeyOf<unsigned> { using type = unsigned; };
template <> struct KeyOf<u64> { using type = u64; };
template <typename R> struct KeyOf<Complex<R>> { using type = typename KeyOf<R>::type; };
template <typename T> using Key = typename KeyOf<T>::type;
template <typename K> struct ValueOf { using type = float; };
template <> struct ValueOf<u64> { using type = double; };
template <typename T> using Result = typename ValueOf<Key<T>>::type;

__device__ inline unsigned bits(float v) { return __float_as_uint(v); }
__device__ inline u64 bits(double v) { return u64(__double_as_longlong(v)); }
__device__ inline float from_bits(unsigned b) { return __uint_as_float(b); }
__device__ inline double from_bits(u64 b) { return __longlong_as_double((long long)b); }
template <typename K> __device__ constexpr K sign_bit() { return K(1) << (8 * sizeof(K) - 1); }
template <typename K> __device__ constexpr K infinity_bits()
{
    return sizeof(K) == 4 ? K(0x7f800000u) : K(0x7ff0000000000000ull);
}

__device__ inline float real_value(float v) { return v; }
__device__ inline double real_value(double v) { return v; }
__device__ inline unsigned real_value(unsigned v) { return v; }
__device__ inline u64 real_value(u64 v) { return v; }
// |v|, correct to rounding and without overflow; NaN if a part is NaN, even if the other is Inf
__device__ inline float real_value(Complex<float> v) { return float(sqrt(double(v.re) * v.re + double(v.im) * v.im)); }
__device__ inline double real_value(Complex<double> v)
{
    const double size = hypot(v.re, v.im);
    return v.re == v.re && v.im == v.im ? size : v.re + v.im;
}

template <int ORDER, typename R>
__device__ inline Key<R> key_of_real(R v)
{
    using K = Key<R>;
    if constexpr (ORDER == KEYS) {
        return v;
    } else if constexpr (ORDER == MAGNITUDES) {
        return bits(v) & ~sign_bit<K>();
    } else {
        const K b = bits(v + R(0));  // -0 becomes 0: they are equal
        return b & sign_bit<K>() ? ~b : b | sign_bit<K>();
    }
}
template <int ORDER, typename T> __device__ inline Key<T> key_of(T v) { return key_of_real<ORDER>(real_value(v)); }

template <typename K> __device__ inline K infinity_key(int order)
{
    return order == MAGNITUDES ? infinity_bits<K>() : infinity_bits<K>() | sign_bit<K>();
}
template <typename K>
__device__ inline typename ValueOf<K>::type value_of(K key, int order)
{
    if (order == VALUES) key = key & sign_bit<K>() ? key ^ sign_bit<K>() : ~key;
    const auto v = from_bits(key);
    return v == v ? v : from_bits(infinity_bits<K>());  // only where NaN is reported too
}

__device__ inline unsigned upper(unsigned key) { return key; }
__device__ inline unsigned upper(u64 key) { return unsigned(key >> 32); }

// NaN once v was NaN; also once |v| was Inf or close to overflow, so a thread that ends with it looks again. One
// instruction a value, in a pipe that is idle otherwise.
template <typename R> __device__ inline float suspicion(float before, R v)
{
    return fmaf(__uint_as_float(upper(bits(v))), 0.0f, before);
}
template <typename T> __device__ inline bool is_nan(T v)
{
    const auto r = real_value(v);
    return !(r == r);
}

// The request: the element of `rank` among the `n` first elements; each from the host, or from the device where there
// is a place.
struct Request {
    long long n, rank;
    int code;
};
__device__ inline Request request(long long n_max, const void* n_at, long long k, const void* k_at, int form)
{
    long long n = n_max, r = k;
    int code = FINE;
    if (n_at) n = form & COUNT_IS_LONG ? *(const long long*)n_at : *(const int*)n_at;
    if (k_at) r = form & RANK_IS_LONG ? *(const long long*)k_at : *(const int*)k_at;
    if (n < 0 || n > n_max) {
        code = BAD_COUNT;
        n = n < 0 ? 0 : n_max;
    }
    if (form & KEEP) r = r < 0 ? -1 : r < n ? n - r : 0;
    if (r < 0 || r > n) {
        if (code == FINE) code = BAD_RANK;
        r = r < 0 ? 0 : n;
    }
    return {n, r, code};
}

// The key of rank threadIdx.x among the first `count` threads' keys, a power of two; the others keep theirs. All call
// it.
template <typename K>
__device__ K sorted(K key, K* buffer, int count = BLOCK)
{
    const int t = threadIdx.x;
    for (int size = 2; size <= count; size *= 2) {
        for (int stride = size / 2; stride > 0; stride /= 2) {
            K other;
            if (stride >= 32) {
                buffer[t] = key;
                __syncthreads();
                other = buffer[t ^ stride];
                __syncthreads();
            } else {
                other = shuffle_xor(key, stride);
            }
            const bool smaller = ((t & stride) == 0) == ((t & size) == 0);
            if (t < count) key = smaller ? (other < key ? other : key) : (key < other ? other : key);
        }
    }
    return key;
}

// Sum of the values of the threads up to this one. All threads of the block call it.
__device__ inline u64 inclusive_sum(u64 mine, u64* warp_sums)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u64 sum = mine;
    for (int d = 1; d < 32; d *= 2) {
        const u64 before = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum += before;
    }
    if (lane == 31) warp_sums[warp] = sum;
    __syncthreads();
    u64 others = lane < warp ? warp_sums[lane] : 0;
    for (int d = 16; d > 0; d /= 2) others += shuffle_xor(others, d);
    __syncthreads();
    return sum + others;
}

// Element number j of a sample of BLOCK: a random one of each of BLOCK equal parts, the same in every run.
__device__ inline long long sample_place(int j, long long n)
{
    unsigned h = (unsigned(j) + 1u) * 0x9e3779b9u;  // mixed as in a hash function
    h = (h ^ h >> 16) * 0x7feb352du;
    h = (h ^ h >> 15) * 0x846ca68bu;
    h ^= h >> 16;
    const long long begin = n * j / BLOCK, end = n * (j + 1) / BLOCK;
    return begin + ((long long)h * (end - begin) >> 32);
}

template <typename T> __device__ inline T element(const uint4& raw, int e)
{
    return reinterpret_cast<const T*>(&raw)[e];
}
template <typename T> constexpr int PER_LOAD = 16 / int(sizeof(T));
template <typename T> constexpr int LOADS = sizeof(T) == 4 ? 2 : 4;  // a thread and tile: as many as fit into registers
template <typename T> constexpr int TILE = BLOCK * LOADS<T> * PER_LOAD<T>;  // at most 8192, as in selection.py

// A thread's part of a tile: load c holds the PER_LOAD elements from (tile * LOADS<T> + c) * BLOCK + threadIdx.x on.
template <typename T>
__device__ inline void load_whole(const T* __restrict__ values, long long tile, bool aligned, uint4 (&raw)[LOADS<T>])
{
    constexpr int PER = PER_LOAD<T>;
    const T* mine = values + tile * TILE<T> + threadIdx.x * PER;
    if (aligned) {
#pragma unroll
        for (int c = 0; c < LOADS<T>; ++c) raw[c] = reinterpret_cast<const uint4*>(mine)[c * BLOCK];
    } else {
#pragma unroll
        for (int c = 0; c < LOADS<T>; ++c) {
#pragma unroll
            for (int e = 0; e < PER; ++e) reinterpret_cast<T*>(&raw[c])[e] = mine[c * BLOCK * PER + e];
        }
    }
}
template <typename T>
__device__ inline void load_last(const T* __restrict__ values, long long tile, long long n, uint4 (&raw)[LOADS<T>])
{
    constexpr int PER = PER_LOAD<T>;
#pragma unroll
    for (int c = 0; c < LOADS<T>; ++c) {
        const long long first = ((tile * LOADS<T> + c) * BLOCK + threadIdx.x) * PER;
        raw[c] = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int e = 0; e < PER; ++e)
            if (first + e < n) reinterpret_cast<T*>(&raw[c])[e] = values[first + e];
    }
}

template <typename T> __device__ inline bool is_aligned(const T* values)
{
    return (reinterpret_cast<u64>(values) & 15) == 0;
}

// place + 128 where word >= splitter. Written out because the compiler makes three instructions of it, not two.
__device__ inline unsigned step_right(unsigned place, unsigned word, unsigned splitter)
{
    asm("{ .reg .pred p; setp.ge.u32 p, %1, %2; @p add.u32 %0, %0, 128; }" : "+r"(place) : "r"(word), "r"(splitter));
    return place;
}
__device__ inline unsigned step_right(unsigned place, u64 word, u64 splitter)
{
    asm("{ .reg .pred p; setp.ge.u64 p, %1, %2; @p add.u32 %0, %0, 128; }" : "+r"(place) : "l"(word), "l"(splitter));
    return place;
}

// The node of the tree in which a value ends, BUCKETS + its bucket, as the place of this lane's column in that row of
// shared memory, in bytes. The tree is in level order, the children of node i are 2 i and 2 i + 1, and a value goes
// right where it is not less than the splitter. In places that is twice the place less the column, and a row more to
// the right. `top`: nodes 1 to 3, in registers.
template <typename W>
__device__ inline unsigned descend(W word, const W (&top)[4], const uint4* rows, unsigned column)
{
    const bool a = word >= top[1];
    unsigned place = step_right(column + (a ? 6 * 128u : 4 * 128u), word, a ? top[3] : top[2]);
#pragma unroll
    for (int level = 2; level < 8; ++level) {
        const W splitter = *reinterpret_cast<const W*>(reinterpret_cast<const char*>(rows) + place);
        place = step_right(place * 2u - column, word, splitter);
    }
    return place;
}

// One element more in a bucket, if it `counts`. All threads of a warp call it together.
template <int COUNTING>
__device__ inline void count_one(unsigned place, unsigned column, bool counts, uint4* rows, u64* counters)
{
    const unsigned lane = threadIdx.x % 32;
    if constexpr (COUNTING == LANES) {
        char* counter = reinterpret_cast<char*>(rows) + (place - column + 4u * lane);
        if (counts) atomicAdd(reinterpret_cast<unsigned*>(counter), 1u);
        return;
    }
    const unsigned bucket = place / 128u - BUCKETS;
    unsigned amount = counts;
    if constexpr (COUNTING == SHARED_AGGREGATED || COUNTING == GLOBAL_AGGREGATED) {
        const unsigned equals = __match_any_sync(0xffffffffu, counts ? bucket : ~0u);
        amount = counts && (equals & ((1u << lane) - 1u)) == 0 ? __popc(equals) : 0u;
    }
    if (amount == 0) return;
    if constexpr (COUNTING == GLOBAL || COUNTING == GLOBAL_AGGREGATED)
        atomicAdd(counters + bucket, u64(amount));
    else
        atomicAdd(reinterpret_cast<unsigned*>(rows) + BUCKETS * 32 + bucket, amount);
}

template <int BYTES> struct Bytes;
template <> struct Bytes<1> { using type = unsigned char; };
template <> struct Bytes<2> { using type = unsigned short; };
template <> struct Bytes<4> { using type = unsigned; };

// Count the bucket of each element of one tile, and with ORACLES note it. W: the compared word, the key or its upper
// half. Returns whether there may be a NaN, see `suspicion`.
template <typename W, typename T, int ORDER, int COUNTING, bool ORACLES, bool WHOLE>
__device__ inline float classify_tile(const uint4 (&raw)[LOADS<T>], long long tile, long long n, const W (&top)[4],
                                      uint4* rows, unsigned column, u64* counters, unsigned char* oracles,
                                      float suspect)
{
    constexpr int PER = PER_LOAD<T>;
    // first all descents, whose latencies overlap, then all counts: the compiler may not swap the two
    unsigned place[LOADS<T>][PER];
#pragma unroll
    for (int c = 0; c < LOADS<T>; ++c) {
#pragma unroll
        for (int e = 0; e < PER; ++e) {
            const auto v = real_value(element<T>(raw[c], e));
            if constexpr (ORDER != KEYS) suspect = suspicion(suspect, v);
            const Key<T> key = key_of_real<ORDER>(v);
            place[c][e] = descend(sizeof(W) < sizeof(key) ? W(upper(key)) : W(key), top, rows, column);
        }
    }
#pragma unroll
    for (int c = 0; c < LOADS<T>; ++c) {
        const long long group = (tile * LOADS<T> + c) * BLOCK + threadIdx.x;
        unsigned packed = 0;
#pragma unroll
        for (int e = 0; e < PER; ++e) {
            count_one<COUNTING>(place[c][e], column, WHOLE || group * PER + e < n, rows, counters);
            packed |= (place[c][e] / 128u & (BUCKETS - 1u)) << (8 * e);
        }
        if constexpr (ORACLES)  // their array is as long as all tiles
            reinterpret_cast<typename Bytes<PER>::type*>(oracles)[group] = typename Bytes<PER>::type(packed);
    }
    return suspect;
}

// The same for all tiles of this block.
template <typename W, typename T, int ORDER, int COUNTING, bool ORACLES>
__device__ float classify(const T* __restrict__ values, long long n, unsigned blocks, uint4* rows, u64* counters,
                          unsigned char* oracles)
{
    const unsigned column = sizeof(W) * (threadIdx.x % (128 / sizeof(W)));
    W top[4];
#pragma unroll
    for (int i = 1; i < 4; ++i)
        top[i] = *reinterpret_cast<const W*>(reinterpret_cast<const char*>(rows) + i * 128 + column);
    const bool aligned = is_aligned(values);
    const long long whole = n / TILE<T>;
    float suspect = 0;
    uint4 next[LOADS<T>];
    long long tile = blockIdx.x;
    if (tile < whole) load_whole(values, tile, aligned, next);
    for (; tile < whole; tile += blocks) {
        uint4 raw[LOADS<T>];
#pragma unroll
        for (int c = 0; c < LOADS<T>; ++c) raw[c] = next[c];
        if (tile + blocks < whole) load_whole(values, tile + blocks, aligned, next);
        suspect = classify_tile<W, T, ORDER, COUNTING, ORACLES, true>(raw, tile, n, top, rows, column, counters,
                                                                    oracles, suspect);
    }
    if (tile * TILE<T> < n) {
        load_last(values, tile, n, next);
        suspect = classify_tile<W, T, ORDER, COUNTING, ORACLES, false>(next, tile, n, top, rows, column, counters,
                                                                    oracles, suspect);
    }
    return suspect;
}

// The place of the first NaN in the tiles of this thread to state[NAN_SEEN]: only after an Inf or NaN was met.
template <typename T>
__device__ void look_for_nan(const T* __restrict__ values, long long n, unsigned blocks, long long* state)
{
    constexpr int PER = PER_LOAD<T>;
    const long long tiles = (n + TILE<T> - 1) / TILE<T>;
    for (long long tile = blockIdx.x; tile < tiles; tile += blocks) {
        for (int c = 0; c < LOADS<T>; ++c) {
            const long long first = ((tile * LOADS<T> + c) * BLOCK + threadIdx.x) * PER;
            for (int e = 0; e < PER && first + e < n; ++e) {
                if (is_nan(values[first + e])) {
                    atomicMin((u64*)state + NAN_SEEN, u64(first + e));
                    return;
                }
            }
        }
    }
}

// One thread of the last block: the search is over, or begins.
template <typename K>
__device__ void finish(long long* state, typename ValueOf<K>::type* out, K key, int order, long long below)
{
    *out = value_of(key, order);
    state[BELOW] = below;
    state[DONE] = 1;
}
template <typename K>
__device__ void begin(long long* state, const Request& wanted)
{
    state[CODE] = wanted.code;
    state[NAN_PLACE] = -1;
    state[BELOW] = state[DONE] = state[SOURCE] = state[OFFSET] = 0;
    state[RANK] = wanted.rank;
    state[SIZE] = state[COUNT] = wanted.n;
    state[LOW] = 0;
    state[HIGH] = (long long)u64(K(~K(0)));
}
// Whether there was a NaN, which ends the search too.
template <typename K>
__device__ bool refuse_nan(long long* state, typename ValueOf<K>::type* out, int order)
{
    const u64 place = __ldcg((const u64*)state + NAN_SEEN);  // written by atomics, of which L1 knows nothing
    if (place == ~0ull) return false;
    state[NAN_SEEN] = -1;
    state[NAN_PLACE] = (long long)place;
    state[CODE] = HAS_NAN;
    finish<K>(state, out, infinity_key<K>(order), order, state[SIZE]);
    return true;
}

// Whether this block is the last of `blocks` to come here; then the writes of the others are visible to it.
__device__ inline bool last_of(unsigned blocks, long long* state)
{
    __shared__ bool last;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd((u64*)state + TICKET, 1ull) == blocks - 1;
        if (last) state[TICKET] = 0;
        __threadfence();
    }
    __syncthreads();
    return last;
}

// 255 splitters of a sample of `values` into splitters[1..255], ends of the range around them, and the tree into
// `rows`. Returns whether the upper halves of the keys tell them apart; then the tree holds these halves.
template <typename T, int ORDER>
__device__ bool make_tree(const T* __restrict__ values, long long n, Key<T> low, Key<T> high, Key<T>* splitters,
                          unsigned* rows)
{
    using K = Key<T>;
    const int t = threadIdx.x;
    K* buffer = reinterpret_cast<K*>(rows);
    const K mine = sorted(key_of<ORDER>(values[sample_place(t, n)]), buffer);
    buffer[t] = mine;
    __syncthreads();
    // the first and the last of the sample are splitters, so that an approximate result is always close to an element
    const auto quantile = [&](int j) { return buffer[(j - 1) * (BLOCK - 1) / (BUCKETS - 2)]; };
    bool apart = true;
    if (t >= 1 && t < BUCKETS) {
        K s = quantile(t);
        const bool again = t > 1 && quantile(t - 1) == s, once_more = t < BUCKETS - 1 && quantile(t + 1) == s;
        if (t > 1) apart = upper(quantile(t - 1)) != upper(s);
        if (again && !once_more) ++s;
        splitters[t] = s;
    }
    if (t == 0) splitters[0] = low;
    if (t == BUCKETS) splitters[BUCKETS] = high;
    const bool narrow = __syncthreads_and(apart) && sizeof(K) == 8;
    if (narrow && t >= 1 && t < BUCKETS) splitters[t] = splitters[t] >> 16 >> 16 << 16 << 16;
    __syncthreads();
    for (int w = 32 + t; w < BUCKETS * 32; w += BLOCK) {
        const int node = w / 32, depth = 31 - __clz(node);
        const K s = splitters[(2 * (node - (1 << depth)) + 1) << (7 - depth)];
        const bool lower_half = sizeof(K) == 8 && !narrow && w % 2 == 0;
        rows[w] = lower_half ? unsigned(s) : upper(s);
    }
    for (int w = t; w < BUCKETS * 32; w += BLOCK) rows[BUCKETS * 32 + w] = 0;
    __syncthreads();
    return narrow;
}

// Bucket sizes of values of which a sample gives the splitters; then the last block takes the bucket that holds the
// rank, or, without ORACLES, the end of it whose rank is nearest: the approximate search ends with this one kernel.
// level 0: `values`, as requested; level 1: keys that extract_bucket left, if it did and there are many.
// oracles (whole tiles): the bucket of each element; block_counts (gridDim.x, 256): the counts of each block.
// capacity : elements for which there is room to be extracted.  order : VALUES or MAGNITUDES, for the result.
// Launch: any number of blocks of 1024 threads, 64 KiB of shared memory.
template <typename T, int ORDER, int COUNTING, bool ORACLES>
__global__ void __launch_bounds__(1024, 1)
count_buckets(long long n_max, const void* n_at, long long k, const void* k_at, int form, int level, int order,
              const T* __restrict__ values, unsigned char* oracles, unsigned* block_counts, long long capacity,
              long long* state, Result<T>* out)
{
    using K = Key<T>;
    extern __shared__ uint4 memory[];
    __shared__ K splitters[BUCKETS + 1];
    __shared__ u64 sums[32];
    unsigned* rows = reinterpret_cast<unsigned*>(memory);
    u64* counters = reinterpret_cast<u64*>(state + COUNTERS);
    const int t = threadIdx.x, lane = t % 32;

    Request wanted;
    K low = 0, high = ~K(0);
    if (level == 0) {
        wanted = request(n_max, n_at, k, k_at, form);
    } else {
        if (state[DONE] || state[SOURCE] != level || state[SIZE] <= TAIL) return;
        wanted = {state[SIZE], state[RANK], FINE};
        low = K(state[LOW]);
        high = K(state[HIGH]);
    }
    const long long n = wanted.n, tiles = (n + TILE<T> - 1) / TILE<T>;
    const unsigned blocks = tiles < 1 ? 1u : tiles < gridDim.x ? unsigned(tiles) : gridDim.x;
    if (blockIdx.x >= blocks) return;

    if (level == 0 && n <= (ORACLES ? TAIL : (long long)BLOCK)) {  // too few for a sample
        if (blockIdx.x != 0) return;
        if (t == 0) begin<K>(state, wanted);
        if (ORACLES) return;  // search_rest does it
        K* buffer = reinterpret_cast<K*>(rows);
        if (t < n && is_nan(values[t])) atomicMin((u64*)state + NAN_SEEN, u64(t));
        const K mine = sorted(t < n ? key_of<ORDER>(values[t]) : ~K(0), buffer);
        buffer[t] = mine;
        __threadfence();
        __syncthreads();
        if (t == 0 && !refuse_nan<K>(state, out, order)) {
            if (wanted.rank == n) {
                finish<K>(state, out, infinity_key<K>(order), order, n);
            } else {
                long long first = wanted.rank;
                while (first > 0 && buffer[first - 1] == buffer[wanted.rank]) --first;
                finish<K>(state, out, buffer[wanted.rank], order, first);
            }
        }
        return;
    }

    const bool narrow = make_tree<T, ORDER>(values, n, low, high, splitters, rows);
    float suspect;
    if (sizeof(K) == 4 || narrow)
        suspect = classify<unsigned, T, ORDER, COUNTING, ORACLES>(values, n, blocks, memory, counters, oracles);
    else
        suspect = classify<K, T, ORDER, COUNTING, ORACLES>(values, n, blocks, memory, counters, oracles);
    if constexpr (ORDER != KEYS)
        if (!(suspect == 0)) look_for_nan(values, n, blocks, state);

    if constexpr (COUNTING != GLOBAL && COUNTING != GLOBAL_AGGREGATED) {
        __syncthreads();
        const unsigned* histogram = rows + BUCKETS * 32;
        for (int b = t / 32; b < BUCKETS; b += BLOCK / 32) {
            unsigned count;
            if constexpr (COUNTING == LANES)
                count = __reduce_add_sync(0xffffffffu, histogram[b * 32 + lane]);
            else
                count = histogram[b];
            if (lane == 0) {
                if (count) atomicAdd(counters + b, u64(count));
                if constexpr (ORACLES) block_counts[(long long)blockIdx.x * BUCKETS + b] = count;
            }
        }
    }
    if (!last_of(blocks, state)) return;

    const u64 mine = t < BUCKETS ? __ldcg(counters + t) : 0;
    const long long after = (long long)inclusive_sum(mine, sums), before = after - (long long)mine;
    const long long rank = wanted.rank;
    __shared__ bool over;
    if (t < BUCKETS) counters[t] = 0;
    if (t == 0) {
        if (level == 0) begin<K>(state, wanted);
        over = refuse_nan<K>(state, out, order);
        if (!over && rank == n) {
            finish<K>(state, out, infinity_key<K>(order), order, n);
            over = true;
        }
    }
    __syncthreads();
    if (over || t >= BUCKETS || rank < before || rank >= after) return;
    const K lower = splitters[t], higher = splitters[t + 1];
    if constexpr (!ORACLES) {
        const bool single = K(higher - lower) == 1;  // then this is no approximation
        const bool nearer = after - rank < rank - before && higher <= infinity_key<K>(order);
        const bool take_higher = !single && (t == 0 || (t < BUCKETS - 1 && nearer));
        finish<K>(state, out, take_higher ? higher : lower, order, take_higher ? after : before);
    } else {
        state[RANK] = rank - before;
        state[BELOW] += before;
        state[COUNT] = after - before;
        state[FROM] = n;
        state[BUCKET] = t;
        state[LOW] = (long long)u64(lower);
        state[HIGH] = (long long)u64(higher);
        state[LEFT] = 0;
        if (K(higher - lower) == 1) {
            finish<K>(state, out, lower, order, state[BELOW]);
        } else if (after - before <= capacity) {
            state[SOURCE] = level + 1;
            state[SIZE] = after - before;
        }
    }
}

// Four bits: which bytes of `oracles` are the bucket, `wanted` in each byte.
__device__ inline unsigned is_bucket(unsigned oracles, unsigned wanted)
{
    return (__vcmpeq4(oracles, wanted) & 0x01010101u) * 0x10204080u >> 28;
}

// The keys of the bucket that count_buckets chose, found by their oracles: of `values` only those are read. Does
// nothing where the search is over, or where there is no room for the bucket (search_rest does without). Each block
// goes over the tiles that it had in count_buckets and writes from where the blocks before it end, which it knows from
// their counts; with GLOBAL counting the next place comes from one cursor for all. Bounded by the latency of the
// scattered reads.
// Launch: as count_buckets, with as many blocks; no dynamic shared memory.
template <typename T, int ORDER, int COUNTING>
__global__ void __launch_bounds__(1024, 1)
extract_bucket(int level, const T* __restrict__ values, const unsigned char* __restrict__ oracles,
               const unsigned* __restrict__ block_counts, long long* state, Key<T>* extracted)
{
    constexpr bool ON_DEVICE = COUNTING == GLOBAL || COUNTING == GLOBAL_AGGREGATED;
    constexpr bool AGGREGATED = COUNTING == SHARED_AGGREGATED || COUNTING == GLOBAL_AGGREGATED;
    constexpr int GROUPS = TILE<T> / 16, TILES_AT_ONCE = BLOCK / GROUPS;  // groups of 16 oracles in a tile
    __shared__ u64 cursor;
    if (state[DONE] || state[SOURCE] != level + 1) return;
    const long long n = state[FROM], tiles = (n + TILE<T> - 1) / TILE<T>;
    const unsigned blocks = tiles < gridDim.x ? unsigned(tiles) : gridDim.x;
    const unsigned bucket = unsigned(state[BUCKET]);
    if (blockIdx.x >= blocks) return;
    if (threadIdx.x == 0) cursor = 0;
    __syncthreads();
    if (!ON_DEVICE)
        for (unsigned b = threadIdx.x; b < blockIdx.x; b += BLOCK) {
            const unsigned count = block_counts[(long long)b * BUCKETS + bucket];
            if (count) atomicAdd(&cursor, u64(count));
        }
    __syncthreads();
    u64* next = ON_DEVICE ? (u64*)state + LEFT : &cursor;
    const unsigned wanted = bucket * 0x01010101u, lane = threadIdx.x % 32;
    const long long group = threadIdx.x % GROUPS, step = (long long)blocks * TILES_AT_ONCE;
    const long long start = blockIdx.x + (long long)blocks * (threadIdx.x / GROUPS);
    for (long long tile = start; tile < tiles; tile += step * ORACLE_LOADS) {
        uint4 raw[ORACLE_LOADS];
#pragma unroll
        for (int c = 0; c < ORACLE_LOADS; ++c)
            if (tile + c * step < tiles)
                raw[c] = reinterpret_cast<const uint4*>(oracles)[(tile + c * step) * GROUPS + group];
#pragma unroll
        for (int c = 0; c < ORACLE_LOADS; ++c) {
            if (tile + c * step >= tiles) break;
            const long long first = ((tile + c * step) * GROUPS + group) * 16;
            unsigned equal = is_bucket(raw[c].x, wanted) | is_bucket(raw[c].y, wanted) << 4
                             | is_bucket(raw[c].z, wanted) << 8 | is_bucket(raw[c].w, wanted) << 12;
            for (; equal; equal &= equal - 1) {
                const long long i = first + __ffs(equal) - 1;
                if (i >= n) break;
                u64 place;
                if constexpr (AGGREGATED) {
                    const unsigned together = __activemask(), leader = __ffs(together) - 1;
                    u64 begin = 0;
                    if (lane == leader) begin = atomicAdd(next, u64(__popc(together)));
                    place = __shfl_sync(together, begin, leader) + __popc(together & ((1u << lane) - 1u));
                } else {
                    place = atomicAdd(next, 1ull);
                }
                extracted[place] = key_of<ORDER>(values[i]);
            }
        }
    }
}

// Places for the elements of a tile that go to one side, from one cursor on the device for all blocks. All threads call
// it with their own elements, as bits of `mine`; `places` receives one for each.
template <int COUNTING, int N>
__device__ inline void reserve(const bool (&mine)[N], u64* cursor, unsigned* in_tile, unsigned* start,
                               unsigned (&places)[N])
{
    constexpr bool ON_DEVICE = COUNTING == GLOBAL || COUNTING == GLOBAL_AGGREGATED;
    constexpr bool AGGREGATED = COUNTING == SHARED_AGGREGATED || COUNTING == GLOBAL_AGGREGATED;
    const unsigned lane = threadIdx.x % 32;
#pragma unroll
    for (int e = 0; e < N; ++e) {
        if constexpr (AGGREGATED) {
            const unsigned together = __ballot_sync(0xffffffffu, mine[e]);
            unsigned first = 0;
            const unsigned amount = __popc(together);
            if (lane == 0 && amount)
                first = ON_DEVICE ? unsigned(atomicAdd(cursor, u64(amount))) : atomicAdd(in_tile, amount);
            places[e] = shuffle(first, 0) + __popc(together & ((1u << lane) - 1u));
        } else {
            places[e] = 0;
            if (mine[e]) places[e] = ON_DEVICE ? unsigned(atomicAdd(cursor, 1ull)) : atomicAdd(in_tile, 1u);
        }
    }
    if constexpr (!ON_DEVICE) {
        __syncthreads();
        if (threadIdx.x == 0) {
            *start = *in_tile ? unsigned(atomicAdd(cursor, u64(*in_tile))) : 0u;
            *in_tile = 0;
        }
        __syncthreads();
#pragma unroll
        for (int e = 0; e < N; ++e) places[e] += *start;
    }
}

// One level of quickselect: elements less than the pivot (the median of a sample) go to the front of `parts` (room
// keys), those greater to its end, those equal are the rest; the last block takes the part that holds the rank.
// level 0: `values`, as requested; later the part that the level before chose, if there is one of more than TAIL keys.
// Reads and writes every element, in half as many levels as bits of n: the memory bounds it.
// Launch: any number of blocks of 1024 threads; no dynamic shared memory.
template <typename T, int ORDER, int COUNTING>
__global__ void __launch_bounds__(1024, 1)
partition(long long n_max, const void* n_at, long long k, const void* k_at, int form, int level, int order,
          const T* __restrict__ values, long long room, long long* state, Key<T>* parts, Result<T>* out)
{
    using K = Key<T>;
    constexpr int PER = PER_LOAD<T>, N = LOADS<T> * PER;
    __shared__ K buffer[BLOCK];
    __shared__ unsigned in_tile[2];
    __shared__ unsigned start[2];
    const int t = threadIdx.x;
    Request wanted;
    if (level == 0) {
        wanted = request(n_max, n_at, k, k_at, form);
    } else {
        if (state[DONE] || state[SOURCE] != level || state[SIZE] <= TAIL) return;
        wanted = {state[SIZE], state[RANK], FINE};
        values += state[OFFSET];
    }
    const long long n = wanted.n, tiles = (n + TILE<T> - 1) / TILE<T>;
    const unsigned blocks = tiles < 1 ? 1u : tiles < gridDim.x ? unsigned(tiles) : gridDim.x;
    if (blockIdx.x >= blocks) return;
    if (level == 0 && n <= TAIL) {  // search_rest does it
        if (blockIdx.x == 0 && t == 0) begin<K>(state, wanted);
        return;
    }
    buffer[t] = sorted(key_of<ORDER>(values[sample_place(t, n)]), buffer);
    if (t < 2) in_tile[t] = 0;
    __syncthreads();
    const K pivot = buffer[BLOCK / 2];
    const bool aligned = is_aligned(values);
    const long long whole = n / TILE<T>;
    float suspect = 0;
    for (long long tile = blockIdx.x; tile < tiles; tile += blocks) {
        uint4 raw[LOADS<T>];
        if (tile < whole)
            load_whole(values, tile, aligned, raw);
        else
            load_last(values, tile, n, raw);
        K keys[N];
        bool less[N], greater[N];
        unsigned places[N];
#pragma unroll
        for (int e = 0; e < N; ++e) {
            const long long i = ((tile * LOADS<T> + e / PER) * BLOCK + t) * PER + e % PER;
            const auto v = real_value(element<T>(raw[e / PER], e % PER));
            if constexpr (ORDER != KEYS) suspect = suspicion(suspect, v);
            keys[e] = key_of_real<ORDER>(v);
            less[e] = keys[e] < pivot && (tile < whole || i < n);
            greater[e] = keys[e] > pivot && (tile < whole || i < n);
        }
        reserve<COUNTING>(less, (u64*)state + LEFT, in_tile, start, places);
#pragma unroll
        for (int e = 0; e < N; ++e)
            if (less[e]) parts[places[e]] = keys[e];
        reserve<COUNTING>(greater, (u64*)state + RIGHT, in_tile + 1, start + 1, places);
#pragma unroll
        for (int e = 0; e < N; ++e)
            if (greater[e]) parts[room - 1 - (long long)places[e]] = keys[e];
    }
    if constexpr (ORDER != KEYS)
        if (!(suspect == 0)) look_for_nan(values, n, blocks, state);
    if (!last_of(blocks, state) || t != 0) return;

    const long long left = (long long)__ldcg((u64*)state + LEFT), right = (long long)__ldcg((u64*)state + RIGHT);
    const long long rank = wanted.rank;
    state[LEFT] = state[RIGHT] = 0;
    if (level == 0) begin<K>(state, wanted);
    if (refuse_nan<K>(state, out, order)) return;
    if (rank == n) {
        finish<K>(state, out, infinity_key<K>(order), order, n);
    } else if (rank < left) {
        state[SOURCE] = level + 1;
        state[OFFSET] = 0;
        state[SIZE] = state[COUNT] = left;
        state[HIGH] = (long long)u64(pivot);
    } else if (rank < n - right) {
        finish<K>(state, out, pivot, order, state[BELOW] + left);
    } else {
        state[SOURCE] = level + 1;
        state[OFFSET] = room - right;
        state[SIZE] = state[COUNT] = right;
        state[RANK] = rank - (n - right);
        state[BELOW] += n - right;
        state[LOW] = (long long)u64(K(pivot + 1));
    }
}

template <int ORDER, typename T, typename F>
__device__ inline void for_each_key(const T* __restrict__ values, long long n, F visit)
{
    for (long long base = threadIdx.x; base < n; base += 4 * BLOCK) {
        Key<T> keys[4];
#pragma unroll
        for (int u = 0; u < 4; ++u)
            if (base + u * BLOCK < n) keys[u] = key_of<ORDER>(values[base + u * BLOCK]);
#pragma unroll
        for (int u = 0; u < 4; ++u)
            if (base + u * BLOCK < n) visit(base + u * BLOCK, keys[u]);
    }
}

// The end of a search, by one block. As long as more than BLOCK elements are in [low, high), this range is cut into up
// to 1024 equal bins, and the bin with the rank is the next range, at most 7 times; then its elements are sorted. The
// loop ends for any elements. It goes over some thousands of them as a rule, over all n where n is small, and over the
// parent of a bucket that was too large to be extracted, which is slow.
// first: no kernel ran before, this is the whole search. odd, even: the keys extracted by levels 0, 2, ... and 1, 3,
// ... Launch: one block of 1024 threads; no dynamic shared memory.
template <typename T, int ORDER>
__global__ void __launch_bounds__(1024, 1)
search_rest(long long n_max, const void* n_at, long long k, const void* k_at, int form, int first,
            const T* __restrict__ values, const Key<T>* __restrict__ odd, const Key<T>* __restrict__ even,
            long long* state, Result<T>* out)
{
    using K = Key<T>;
    __shared__ K buffer[BLOCK];
    __shared__ unsigned bins[BINS];
    __shared__ u64 sums[32];
    __shared__ unsigned found;
    __shared__ u64 range[4];  // rank, count, low, high of the next range
    const int t = threadIdx.x;
    if (first) {
        if (t == 0) begin<K>(state, request(n_max, n_at, k, k_at, form));
        __threadfence_block();
        __syncthreads();
    }
    if (state[DONE]) return;
    const long long n = state[SIZE], source = state[SOURCE];
    const K* keys = (source % 2 ? odd : even) + (source ? state[OFFSET] : 0);
    long long rank = state[RANK], count = state[COUNT], below = state[BELOW];
    K low = K(state[LOW]), high = K(state[HIGH]);
    const auto visit_all = [&](auto visit) {
        if (source)
            for_each_key<KEYS>(keys, n, visit);
        else
            for_each_key<ORDER>(values, n, visit);
    };
    __syncthreads();

    if (source == 0) {  // not yet looked at, or not by everybody: NaN first, since it has no place in any order
        const K top = infinity_key<K>(ORDER), bottom = ORDER == MAGNITUDES ? K(0) : K(~top);  // Inf, and 0 or -Inf
        visit_all([&](long long i, K key) {
            if (K(key - bottom) > K(top - bottom)) atomicMin((u64*)state + NAN_SEEN, u64(i));
        });
        __threadfence();
        __syncthreads();
        if (t == 0) found = refuse_nan<K>(state, out, ORDER);
        __syncthreads();
        if (found) return;
        if (rank == n) {
            if (t == 0) finish<K>(state, out, infinity_key<K>(ORDER), ORDER, n);
            return;
        }
        __syncthreads();  // all have read `found`
    }

    while (count > BLOCK && K(high - low) > 1) {
        int shift = 0;
        while (K(K(high - low) - 1) >> shift >= BINS) ++shift;
        bins[t] = 0;
        if (t == 0) found = 0;
        __syncthreads();
        visit_all([&](long long, K key) {
            if (key >= low && key < high) atomicAdd(bins + unsigned(K(key - low) >> shift), 1u);
        });
        __syncthreads();
        const long long after = (long long)inclusive_sum(bins[t], sums), before = after - bins[t];
        if (rank >= before && rank < after) {
            const K start = low + (K(t) << shift), width = K(1) << shift;
            range[0] = before;
            range[1] = after - before;
            range[2] = start;
            range[3] = K(high - start) < width ? high : K(start + width);
            found = 1;
        }
        __syncthreads();
        if (!found) {
            if (t == 0) {
                state[CODE] = CHANGED;
                finish<K>(state, out, infinity_key<K>(ORDER), ORDER, n);
            }
            return;
        }
        rank -= (long long)range[0];
        below += (long long)range[0];
        count = (long long)range[1];
        low = K(range[2]);
        high = K(range[3]);
        __syncthreads();
    }
    if (K(high - low) == 1) {
        if (t == 0) finish<K>(state, out, low, ORDER, below);
        return;
    }
    buffer[t] = ~K(0);
    if (t == 0) found = 0;
    __syncthreads();
    visit_all([&](long long, K key) {
        if (key < low || key >= high) return;
        const unsigned place = atomicAdd(&found, 1u);
        if (place < BLOCK) buffer[place] = key;
    });
    __syncthreads();
    const K unsorted = buffer[t];
    int size = 2;
    while (size < count) size *= 2;
    __syncthreads();
    const K mine = sorted(unsorted, buffer, size);
    buffer[t] = mine;
    __syncthreads();
    if (t == 0) {
        if (found != count) {
            state[CODE] = CHANGED;
            finish<K>(state, out, infinity_key<K>(ORDER), ORDER, n);
        } else {
            long long place = rank;
            while (place > 0 && buffer[place - 1] == buffer[rank]) --place;
            finish<K>(state, out, buffer[rank], ORDER, below + place);
        }
    }
}
