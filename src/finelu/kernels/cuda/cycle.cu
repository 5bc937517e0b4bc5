// The start of a cycle of a Krylov method, and the copy of a verified x. Twins: kernels/reference/cycle.py, name by
// name; the meaning of state, norms and history: kernels/monitor.py. Every thread takes the same decision from device
// memory, so that the host waits for nothing. Launch: begin_cycle and claim_unless_it_follows one thread; the others any 1-D grid with gridDim.x *
// blockDim.x >= n.
#include "runtime/finelu.cuh"
#include "runtime/constants.cuh"

using namespace fl;

template <typename R>
__global__ void begin_cycle(int* state, R* norms, R* history, R* checks)
{
    const int code = state[CODE];
    state[COLUMNS] = 0;
    state[IMPROVED] = 0;
    if (code > BROKEN) return;
    const R norm = norms[NORM];
    if (!is_finite(norm)) {
        state[CODE] = NOT_FINITE;
        return;
    }
    checks[state[ITERATIONS]] = norm;
    if (state[ITERATIONS] == 0) history[0] = norm;
    const bool halved = norm <= R(0.5) * norms[START];
    if (norm <= norms[TOLERANCE])
        state[CODE] = CONVERGED;
    else if (code == CLAIMED && !halved)
        state[CODE] = STAGNATED;
    else if (code == BROKEN && !halved)
        state[CODE] = BREAKDOWN;
    else
        state[CODE] = RUNNING;
    if (norm < norms[START]) {
        norms[START] = norm;
        norms[BEST] = norm;
        state[IMPROVED] = 1;
    }
}

template <typename R>
__global__ void claim_unless_it_follows(int* state, R* norms, const R* norm)
{
    const R found = *norm;
    if (state[CODE] == RUNNING && found >= norms[START] && found > R(DRIFTED) * norms[NORM]) state[CODE] = CLAIMED;
    norms[NORM] = found;
}

template <typename T>
__global__ void keep_verified(long long n, const int* state, const T* x, T* verified)
{
    const long long i = own_item();
    if (i < n && state[IMPROVED]) verified[i] = x[i];
}

// Whichever threads write, they write the same.
template <typename T>
__global__ void unless_finite(long long n, const T* __restrict__ x, Real<T>* norm)
{
    const long long i = own_item();
    if (i < n && !is_finite(x[i])) *norm = Real<T>(__longlong_as_double(0x7ff8000000000000ll));
}
