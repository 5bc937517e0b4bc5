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

}  // namespace fl
