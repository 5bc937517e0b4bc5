// Sums in twice the precision of double: Dot2 of Ogita, Rump & Oishi 2005.
#pragma once

namespace fl {

// A number as the sum of two, of which the second is below the rounding of the first.
struct Twice {
    double high, low;
    // Every step rounds by itself: a contraction to fused multiply-adds would lose the errors that are summed here.
    __device__ void add(double v)
    {
        const double sum = __dadd_rn(high, v), part = __dsub_rn(sum, high);
        low = __dadd_rn(low, __dadd_rn(__dsub_rn(high, __dsub_rn(sum, part)), __dsub_rn(v, part)));
        high = sum;
    }
    __device__ void add_product(double a, double b)
    {
        const double product = __dmul_rn(a, b);
        const double rounding = __fma_rn(a, b, -product);
        add(product);
        low = __dadd_rn(low, rounding);
    }
    __device__ void add_lanes()
    {
        for (int offset = 16; offset > 0; offset /= 2) {
            const double other = shuffle_xor(high, offset), rest = shuffle_xor(low, offset);
            add(other);
            low = __dadd_rn(low, rest);
        }
    }
};

}  // namespace fl
