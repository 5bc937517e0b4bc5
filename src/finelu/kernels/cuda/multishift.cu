// The shifted systems of multi-shift cg and COCG. Twins: kernels/reference/multishift.py, name by name; the meaning of state
// and norms: kernels/monitor.py. T: the type of the seed system; C: of the shifts, T or the complex type of T.
// sizes (k, room), by rows. Every thread of `step` takes the decision of its row from device memory; no kernel writes what another thread of it still
// has to read.
// Launch: `coefficients`: one block; `step`: any 2-D grid with gridDim.x * blockDim.x >= n and gridDim.y = k.
#include "runtime/finelu.cuh"
#include "runtime/constants.cuh"
#include "runtime/record.cuh"

using namespace fl;

template <typename T, typename C>
__global__ void coefficients(int k, int* state, Real<T>* norms, long long room, Real<T>* sizes, int definite, const T* rho,
                             const T* rho_old, const T* curvature, T* past, const C* sigma, C* theta, C* zeta, C* alpha,
                             C* beta, int* moving, int* ended)
{
    for (int j = threadIdx.x; j < k; j += blockDim.x) moving[j] = 0;
    if (state[CODE] != RUNNING) return;
    const Real<T> norm = norms[NORM];
    const bool finite = is_finite(*curvature) && is_finite(*rho) && is_finite(norm);
    const bool curved = !zero(*curvature) && !(definite && real(*curvature) <= 0);
    const int iteration = state[ITERATIONS] + 1;
    bool left = false;
    const T seed_alpha = *rho_old / *curvature, seed_beta = *rho / *rho_old;
    const bool possible = finite && curved && !zero(seed_alpha);  // it is 0 where rho_old is, or by underflow
    const C first = C(seed_alpha * past[1] / past[0]);
    if (possible)
        for (int j = threadIdx.x; j < k; j += blockDim.x) {
            if (ended[j]) continue;
            const C inverse = C(1) + sigma[j] * C(seed_alpha) + first * (C(1) - theta[j]);
            const C ratio = C(1) / inverse;
            if (zero(inverse) || !is_finite(inverse) || !is_finite(ratio)) {
                ended[j] = -iteration;
                continue;
            }
            theta[j] = ratio;
            zeta[j] = zeta[j] * ratio;
            alpha[j] = C(seed_alpha) * ratio;
            beta[j] = C(seed_beta) * ratio * ratio;
            const Real<T> size = Real<T>(modulus(zeta[j])) * norm;
            sizes[j * room + iteration] = size;
            const bool done = size <= norms[CLAIM];
            moving[j] = done ? 1 : 2;
            ended[j] = done ? iteration : 0;
            left |= !done;
        }
    left = __syncthreads_or(left);
    if (threadIdx.x) return;
    if (!possible) {
        state[CODE] = !finite ? NOT_FINITE : definite && !curved ? INDEFINITE : BROKEN;
        return;
    }
    state[ITERATIONS] = iteration;
    past[0] = seed_alpha;
    past[1] = seed_beta;
    if (!left)
        state[CODE] = CLAIMED;
    else if (Real<T>(modulus(*rho)) <= rounding<Real<T>>() * norm * norm)
        state[CODE] = BROKEN;
}

template <typename T, typename C>
__global__ void step(long long n, const int* moving, const C* zeta, const C* alpha, const C* beta, const T* r, C* P, C* X)
{
    const long long i = own_item(), at = blockIdx.y * n + i;
    const int how = moving[blockIdx.y];
    if (i >= n || how == 0) return;
    const C p = P[at];
    X[at] += alpha[blockIdx.y] * p;
    if (how == 2) P[at] = zeta[blockIdx.y] * C(r[i]) + beta[blockIdx.y] * p;
}
