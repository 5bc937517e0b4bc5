// Shared by every kernel of finelu: complex numbers, and values that say by themselves whether they have been computed.
//
// A word whose bits are all ones is a NaN; memory set to 0xff is "pending", and a value is its own ready flag: one
// relaxed load tells both, with no fence and no second array.
// `peek` goes to the L2 cache (relaxed, scope gpu), never to L1, so that it cannot see a stale value for ever.
// `post` replaces the pending pattern by another NaN where a computed value has it, so that no reader waits for ever.
//
// A kernel that says nothing of its launch has a thread, or LANES or 32 neighbouring threads, for each item, whose
// number is its first argument: any 1-D grid that is large enough, blocks of whole warps; see for_each of launch.py.
#pragma once

namespace fl {

template <typename R>
struct Complex {
    R re, im;
    __device__ Complex() {}
    __device__ Complex(R re, R im = R(0)) : re(re), im(im) {}
};
template <typename R> __device__ inline Complex<R> operator+(Complex<R> a, Complex<R> b) { return {a.re + b.re, a.im + b.im}; }
template <typename R> __device__ inline Complex<R> operator-(Complex<R> a, Complex<R> b) { return {a.re - b.re, a.im - b.im}; }
template <typename R> __device__ inline Complex<R> operator-(Complex<R> a) { return {-a.re, -a.im}; }
template <typename R> __device__ inline Complex<R> operator*(Complex<R> a, Complex<R> b)
{
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
template <typename R> __device__ inline Complex<R> operator/(Complex<R> a, Complex<R> b)
{   // Smith's division: no overflow where the quotient is representable
    if ((b.re < R(0) ? -b.re : b.re) >= (b.im < R(0) ? -b.im : b.im)) {
        const R r = b.im / b.re, d = b.re + b.im * r;
        return {(a.re + a.im * r) / d, (a.im - a.re * r) / d};
    }
    const R r = b.re / b.im, d = b.re * r + b.im;
    return {(a.re * r + a.im) / d, (a.im * r - a.re) / d};
}
template <typename R> __device__ inline bool operator==(Complex<R> a, Complex<R> b) { return a.re == b.re && a.im == b.im; }
template <typename R> __device__ inline Complex<R>& operator+=(Complex<R>& a, Complex<R> b) { a = a + b; return a; }
template <typename R> __device__ inline Complex<R>& operator-=(Complex<R>& a, Complex<R> b) { a = a - b; return a; }

template <typename T> struct RealOf { using type = T; };
template <typename R> struct RealOf<Complex<R>> { using type = R; };

template <typename T> using Real = typename RealOf<T>::type;

template <typename R> __device__ inline R conj(R a) { return a; }
template <typename R> __device__ inline Complex<R> conj(Complex<R> a) { return {a.re, -a.im}; }
template <typename R> __device__ inline R real(R a) { return a; }
template <typename R> __device__ inline R real(Complex<R> a) { return a.re; }
template <typename R> __device__ inline R imag(R) { return R(0); }
template <typename R> __device__ inline R imag(Complex<R> a) { return a.im; }
template <typename T> __device__ inline Real<T> abs2(T a) { return real(a) * real(a) + imag(a) * imag(a); }

// x - x is 0 for a finite x and NaN for Inf and NaN; holds without -use_fast_math, which finelu never sets
template <typename R> __device__ inline bool is_finite(R a) { return a - a == R(0); }
template <typename R> __device__ inline bool is_finite(Complex<R> a) { return is_finite(a.re) && is_finite(a.im); }

template <typename T> __device__ inline Real<T> one_norm(T a)
{
    const auto re = real(a), im = imag(a);
    return (re < 0 ? -re : re) + (im < 0 ? -im : im);
}
// |a| in double precision
template <typename R> __device__ inline double modulus(R a) { return fabs(double(a)); }
template <typename R> __device__ inline double modulus(Complex<R> a) { return hypot(double(a.re), double(a.im)); }

// the square root of a number whose imaginary part is 0
template <typename R> __device__ inline R root(R a) { return sqrt(a); }
template <typename R> __device__ inline Complex<R> root(Complex<R> a) { return {sqrt(a.re), R(0)}; }

// Rows are scaled by powers of two before pivots are chosen among them: the exponent's bits of a magnitude, which may
// be -0, in the order of magnitudes, and the power of two that brings numbers with this exponent to 1 to 2.
__device__ inline int exponent_of(float a) { return __float_as_int(a) >> 23 & 0xff; }
__device__ inline int exponent_of(double a) { return __double2hiint(a) >> 20 & 0x7ff; }
template <typename R> __device__ inline R power_against(int exponent);
template <> __device__ inline float power_against<float>(int exponent) { return __int_as_float(max(254 - exponent, 1) << 23); }
template <> __device__ inline double power_against<double>(int exponent)
{
    return __hiloint2double(max(2046 - exponent, 1) << 20, 0);
}
template <typename R> __device__ inline R times(R a, R power) { return a * power; }
template <typename R> __device__ inline Complex<R> times(Complex<R> a, R power) { return {a.re * power, a.im * power}; }

__device__ inline bool pending(int a) { return a == -1; }
__device__ inline bool pending(float a) { return __float_as_uint(a) == 0xffffffffu; }
__device__ inline bool pending(double a) { return __double_as_longlong(a) == -1ll; }
template <typename R> __device__ inline bool pending(Complex<R> a) { return pending(a.re) || pending(a.im); }

__device__ inline void make_pending(int& a) { a = -1; }
__device__ inline void make_pending(float& a) { a = __uint_as_float(0xffffffffu); }
__device__ inline void make_pending(double& a) { a = __longlong_as_double(-1ll); }
template <typename R> __device__ inline void make_pending(Complex<R>& a) { make_pending(a.re); make_pending(a.im); }

__device__ inline int peek(const int* p)
{
    int v;
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
__device__ inline unsigned long long peek(const unsigned long long* p)
{
    unsigned long long v;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}
__device__ inline float peek(const float* p)
{
    float v;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}
__device__ inline double peek(const double* p)
{
    double v;
    asm volatile("ld.relaxed.gpu.global.f64 %0, [%1];" : "=d"(v) : "l"(p) : "memory");
    return v;
}
// the parts are polled each by itself, so a torn pair cannot be taken for a value
template <typename R> __device__ inline Complex<R> peek(const Complex<R>* p) { return {peek(&p->re), peek(&p->im)}; }
// The value at p, once it is there; the caller says why the wait ends.
template <typename T> __device__ inline T await(const T* p)
{
    T v = peek(p);
    while (pending(v)) v = peek(p);
    return v;
}

// ask(a) again for each value[a] that is pending, until none is: for all of them at once, so that their latencies overlap.
template <int COUNT, typename T, typename Ask> __device__ inline void await_each(T (&value)[COUNT], const Ask& ask)
{
    bool waits;
    do {
        waits = false;
#pragma unroll
        for (int a = 0; a < COUNT; ++a)
            if (pending(value[a])) value[a] = ask(a);
#pragma unroll
        for (int a = 0; a < COUNT; ++a) waits |= pending(value[a]);
    } while (waits);
}

__device__ inline void post(int* p, int v) { asm volatile("st.relaxed.gpu.global.s32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
__device__ inline void post(float* p, float v)
{
    if (pending(v)) v = __uint_as_float(0x7fc00000u);
    asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(p), "f"(v) : "memory");
}
__device__ inline void post(double* p, double v)
{
    if (pending(v)) v = __longlong_as_double(0x7ff8000000000000ll);
    asm volatile("st.relaxed.gpu.global.f64 [%0], %1;" ::"l"(p), "d"(v) : "memory");
}
template <typename R> __device__ inline void post(Complex<R>* p, Complex<R> v) { post(&p->re, v.re); post(&p->im, v.im); }

// The same two for shared memory of the own block, by volatile loads and stores: PTX takes these for relaxed accesses,
// so a word that one thread polls and another sets is no data race. Instructions of relaxed scope cta took 1.00 to 1.12
// times as long (benchmarks/results/shared-words-nvidia-h200-2026-11-26.md), and compute-sanitizer's racecheck, which
// looks at the machine code, reports either form. With FINELU_RACECHECK each access is an atomic operation there, too,
// with the same result and slower: it reads a word by exchanging all ones for all ones, and sets one that was all ones.
#ifndef FINELU_RACECHECK
template <typename W> __device__ inline W load_shared(const W* p) { return *const_cast<const volatile W*>(p); }
template <typename W> __device__ inline void store_shared(W* p, W v) { *const_cast<volatile W*>(p) = v; }
#else
__device__ inline unsigned load_shared(const unsigned* p) { return atomicCAS(const_cast<unsigned*>(p), ~0u, ~0u); }
__device__ inline unsigned long long load_shared(const unsigned long long* p)
{
    return atomicCAS(const_cast<unsigned long long*>(p), ~0ull, ~0ull);
}
// of the word of 32 bits that it is a half of, the upper one if 16
__device__ inline int half_of(const unsigned short* p) { return int(reinterpret_cast<size_t>(p) & 2) * 8; }
__device__ inline unsigned short load_shared(const unsigned short* p)
{
    const int half = half_of(p);
    return static_cast<unsigned short>(load_shared(reinterpret_cast<const unsigned*>(p - half / 16)) >> half);
}
__device__ inline void store_shared(unsigned* p, unsigned v) { atomicExch(p, v); }
__device__ inline void store_shared(unsigned long long* p, unsigned long long v) { atomicExch(p, v); }
__device__ inline void store_shared(unsigned short* p, unsigned short v)
{
    const int half = half_of(p);
    atomicAnd(reinterpret_cast<unsigned*>(p - half / 16), unsigned(v) << half | ~(0xffffu << half));
}
#endif

__device__ inline unsigned short peek_shared(const unsigned short* p) { return load_shared(p); }
__device__ inline int peek_shared(const int* p) { return int(load_shared(reinterpret_cast<const unsigned*>(p))); }
__device__ inline long long peek_shared(const long long* p)
{
    return (long long)load_shared(reinterpret_cast<const unsigned long long*>(p));
}
__device__ inline float peek_shared(const float* p) { return __uint_as_float(load_shared(reinterpret_cast<const unsigned*>(p))); }
__device__ inline double peek_shared(const double* p)
{
    return __longlong_as_double((long long)load_shared(reinterpret_cast<const unsigned long long*>(p)));
}
template <typename R> __device__ inline Complex<R> peek_shared(const Complex<R>* p) { return {peek_shared(&p->re), peek_shared(&p->im)}; }

__device__ inline void post_shared(unsigned short* p, unsigned short v) { store_shared(p, v); }
__device__ inline void post_shared(int* p, int v) { store_shared(reinterpret_cast<unsigned*>(p), unsigned(v)); }
__device__ inline void post_shared(float* p, float v)
{
    store_shared(reinterpret_cast<unsigned*>(p), pending(v) ? 0x7fc00000u : __float_as_uint(v));
}
__device__ inline void post_shared(double* p, double v)
{
    store_shared(reinterpret_cast<unsigned long long*>(p),
                 pending(v) ? 0x7ff8000000000000ull : (unsigned long long)__double_as_longlong(v));
}
template <typename R> __device__ inline void post_shared(Complex<R>* p, Complex<R> v) { post_shared(&p->re, v.re); post_shared(&p->im, v.im); }

constexpr unsigned ALL = 0xffffffffu;  // all threads of a warp

// The v of another thread; `threads`: those of the warp that call it.
template <typename T> __device__ inline T shuffle(unsigned threads, T v, int lane, int width) { return __shfl_sync(threads, v, lane, width); }
template <typename R> __device__ inline Complex<R> shuffle(unsigned threads, Complex<R> v, int lane, int width)
{
    return {shuffle(threads, v.re, lane, width), shuffle(threads, v.im, lane, width)};
}
template <typename T> __device__ inline T shuffle(T v, int lane, int width = 32) { return shuffle(ALL, v, lane, width); }
template <typename T> __device__ inline T shuffle_xor(T v, int mask, unsigned threads = ALL) { return __shfl_xor_sync(threads, v, mask); }
template <typename R> __device__ inline Complex<R> shuffle_xor(Complex<R> v, int mask, unsigned threads = ALL)
{
    return {shuffle_xor(v.re, mask, threads), shuffle_xor(v.im, mask, threads)};
}

// Groups of LANES neighbouring threads of a warp, LANES a power of two.
template <int LANES> __device__ inline unsigned group_mask()
{
    return LANES == 32 ? ALL : ((1u << LANES) - 1u) << (threadIdx.x % 32 / LANES * LANES);
}
// The sum or the largest of a value over each group, in a fixed order, in all its threads; `threads` as in shuffle.
template <int LANES = 32, typename T> __device__ inline T lanes_sum(T v, unsigned threads = ALL)
{
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) v += shuffle_xor(v, offset, threads);
    return v;
}
template <int LANES = 32, typename T> __device__ inline T lanes_max(T v, unsigned threads = ALL)
{
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) v = max(v, shuffle_xor(v, offset, threads));
    return v;
}
// lanes_sum where the size of a group is known at run time; all threads of the warp call it.
template <typename T> __device__ inline T group_sum(T v, int lanes)
{
    for (int offset = lanes / 2; offset > 0; offset /= 2) v += shuffle_xor(v, offset);
    return v;
}
// How many of the threads before this one have voted.
__device__ inline int votes_before(unsigned votes) { return __popc(votes & ((1u << threadIdx.x % 32) - 1u)); }

// One value of this row more has been refused: refused[0] counts them, refused[1] is the least row.
__device__ inline void refuse(long long* refused, long long row)
{
    atomicAdd(reinterpret_cast<unsigned long long*>(refused), 1ull);
    atomicMin(refused + 1, row);
}

// The number of this thread in a 1-D grid, and of its group in one of groups of LANES threads.
__device__ inline long long own_item() { return (long long)blockIdx.x * blockDim.x + threadIdx.x; }
template <typename I, int LANES> __device__ inline I own_row() { return I((size_t(blockIdx.x) * blockDim.x + threadIdx.x) / LANES); }

// The first place in [low, high) of ascending numbers that is not below j, or high.
template <typename I, typename J> __device__ inline J lower_bound(const I* __restrict__ numbers, J low, J high, I j)
{
    while (low < high) {
        const J middle = low + (high - low) / 2;
        if (numbers[middle] < j) low = middle + 1; else high = middle;
    }
    return low;
}
// The place of j in them, or -1.
template <typename I, typename J> __device__ inline J find(const I* __restrict__ numbers, J low, J high, I j)
{
    const J place = lower_bound(numbers, low, high, j);
    return place < high && numbers[place] == j ? place : J(-1);
}
// The list of place p, where list i has the places starts[i] to starts[i + 1] of n lists.
template <typename I, typename P> __device__ inline I list_of(const I* __restrict__ starts, I n, P p)
{
    I low = 0, high = n;
    while (high - low > 1) {
        const I middle = low + (high - low) / 2;
        (P(starts[middle]) <= p ? low : high) = middle;
    }
    return low;
}

// Number of this block in the order in which blocks began to run. Work handed out by it never waits for work of a block
// that has not begun, whatever order the hardware takes, and so every wait in finelu ends: the block with the lowest
// number waits for no other. `counter` is memory set to 0xff, like everything that is pending. All threads call it.
__device__ inline unsigned ticket(unsigned* counter)
{
    __shared__ unsigned mine;
    if (threadIdx.x == 0) mine = atomicAdd(counter, 1u) + 1u;
    __syncthreads();
    return mine;
}

}  // namespace fl
