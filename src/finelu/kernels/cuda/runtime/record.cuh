// The end of an iteration of a Krylov method with short recurrences; see `record` of kernels/reference/recurrences.py.
// To be included after finelu.cuh and constants.cuh.
#pragma once

namespace fl {

template <typename T> __device__ inline bool zero(T a) { return real(a) == 0 && imag(a) == 0; }
template <typename R> __device__ constexpr R rounding() { return sizeof(R) == 4 ? R(1.1920929e-07) : R(2.220446049250313e-16); }

// What the thread that knows the norm of an iteration writes down.
template <typename R>
__device__ void take(int* state, R* norms, R* history, const R* size = nullptr)
{
    if (state[CODE] != RUNNING) return;
    const R norm = norms[NORM];
    state[IMPROVED] = 0;
    if (!is_finite(norm)) {
        state[CODE] = NOT_FINITE;
        return;
    }
    if (norm < norms[BEST] && norms[DRIFT] <= R(1e-4)) {  // TRUSTED
        norms[BEST] = norm;
        state[IMPROVED] = 1;
    }
    history[++state[ITERATIONS]] = norm;
    if (norm <= norms[CLAIM] || !(norms[DRIFT] <= R(0.1)))  // LOST
        state[CODE] = CLAIMED;
    else if (size && rounding<R>() * *size >= norms[BEST])
        state[CODE] = BROKEN;
    else if (norm / norms[GROWTH] > history[0])
        state[CODE] = DIVERGED;
}

}  // namespace fl
