// Values that are stored in less precision, V, than that of the unknowns, T: read in V, computed with in T.
#pragma once

namespace fl {

template <typename T, typename V> constexpr bool NARROW = sizeof(T) != sizeof(V);

// Whether v is beyond the range in which a float has all its digits; not so of 0, NaN and Inf.
__device__ inline bool lost(double v)
{
    const double size = fabs(v);
    return is_finite(v) && v != 0 && (size > 3.4e38 || size < 1.2e-38);
}

template <typename V, typename T> struct Kept {
    static __device__ inline V of(T v, bool&) { return v; }
    static __device__ inline T widened(V v) { return v; }
};
template <> struct Kept<float, double> {
    static __device__ inline float of(double v, bool& unfit)
    {
        unfit = lost(v);
        return float(v);
    }
    static __device__ inline double widened(float v) { return v; }
};
template <> struct Kept<Complex<float>, Complex<double>> {
    static __device__ inline Complex<float> of(Complex<double> v, bool& unfit)
    {
        unfit = lost(v.re) || lost(v.im);
        return {float(v.re), float(v.im)};
    }
    static __device__ inline Complex<double> widened(Complex<float> v) { return {v.re, v.im}; }
};

template <typename T, typename V> __device__ inline T widened(V v) { return Kept<V, T>::widened(v); }

// v as it is stored; *unfit becomes 1 if it is beyond the range of V. All threads that write it write the same.
template <typename V, typename T, typename F> __device__ inline V narrowed(T v, F* unfit)
{
    bool beyond = false;
    const V kept = Kept<V, T>::of(v, beyond);
    if (beyond) *unfit = F(1);
    return kept;
}

// A number in half precision, by its bits: CUDA's own type needs a header of the toolkit. The values of a row are kept
// times the power of two of the reciprocal of its diagonal: few are out of range then, and only those below 6e-5
// lose digits.
struct Half {
    unsigned short bits;
};
constexpr float LARGEST_HALF = 65504;

__device__ inline float single(Half v)
{
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(v.bits));
    return wide;
}
__device__ inline Half half_of(float v)
{
    Half near;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(near.bits) : "f"(v));
    return near;
}
template <> struct Kept<Half, double> {
    static __device__ inline double widened(Half v) { return single(v); }
};
template <> struct Kept<Half, float> {
    static __device__ inline float widened(Half v) { return single(v); }
};

// a normal number = power_of_two(a) mantissa(a), with 1 <= |mantissa| < 2; of 0 and subnormal numbers the power is 0
__device__ inline double power_of_two(double a) { return __hiloint2double(__double2hiint(a) & 0x7ff00000, 0); }
__device__ inline float power_of_two(float a) { return __int_as_float(__float_as_int(a) & 0x7f800000); }
__device__ inline double mantissa(double a)
{
    return __hiloint2double((__double2hiint(a) & 0x800fffff) | 0x3ff00000, __double2loint(a));
}
__device__ inline float mantissa(float a) { return __int_as_float((__float_as_int(a) & 0x807fffff) | 0x3f800000); }

// (rhs - sum) / d with the sum of terms that are stored as V; inverse: 1 / d.
template <typename V> struct Row {
    template <typename T> static __device__ inline T divided(T rhs, T sum, T inverse) { return (rhs - sum) * inverse; }
};
template <> struct Row<Half> {
    template <typename T> static __device__ inline T divided(T rhs, T sum, T inverse)
    {
        return rhs * inverse - sum * mantissa(inverse);
    }
};

}  // namespace fl
