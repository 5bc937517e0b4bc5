// The steps of the Krylov methods between two products. Twins: kernels/reference/recurrences.py, name by name; the meaning of
// state, norms and history: kernels/monitor.py. Scalars are read from device memory, and every thread takes the same
// decision from them, so that the host waits for nothing. No kernel here writes what another thread of it still has to
// read. The sums in cg_step and bicgstab_step are formed as in runtime/sums.cuh: the results are the same in every run.
// Launch: kernels over vectors: any 1-D grid with gridDim.x * blockDim.x >= n; those with a counter: any 1-D grid,
// blockDim.x a multiple of 32, room for 4 * gridDim.x doubles; the others: one thread.
#include "runtime/finelu.cuh"
#include "runtime/sums.cuh"
#include "runtime/constants.cuh"
#include "runtime/record.cuh"

using namespace fl;

__device__ inline long long own_row() { return (long long)blockIdx.x * blockDim.x + threadIdx.x; }

template <typename R>
__global__ void record(int* state, R* norms, R* history, const R* size)
{
    take(state, norms, history, size);
}

template <typename T>
__global__ void ratio(int* state, const T* rho, const T* sigma, const Real<T>* size, T* alpha)
{
    if (state[CODE] != RUNNING) return;
    if (!is_finite(*rho) || !is_finite(*sigma))
        state[CODE] = NOT_FINITE;
    else if (zero(*sigma) || !is_finite(*rho / *sigma) ||
             hypot(real(*rho), imag(*rho)) <= rounding<Real<T>>() * *size)
        state[CODE] = BROKEN;
    else
        *alpha = *rho / *sigma;
}

template <typename T>
__global__ void advance(long long n, const int* state, const T* z, T* x, T* best)
{
    const long long i = own_row();
    if (i >= n || state[CODE] != RUNNING) return;
    if (state[IMPROVED]) best[i] = x[i];
    x[i] += z[i];
}

// C: T or its real type.
template <typename T, typename C>
__global__ void direction(long long n, const int* state, const C* rho, const C* rho_old, const T* z, T* p,
                          const T* z_shadow, T* p_shadow)
{
    const long long i = own_row();
    if (i >= n || state[CODE] != RUNNING) return;
    const T beta = *rho / *rho_old;
    p[i] = z[i] + beta * p[i];
    if (z_shadow) p_shadow[i] = z_shadow[i] + conj(beta) * p_shadow[i];
}

template <typename T>
__device__ void cg_record(int* state, Real<T>* norms, Real<T>* history, const T* rho, const T* curvature, T* rho_old)
{
    if (!is_finite(*rho) || !is_finite(*curvature))
        state[CODE] = NOT_FINITE;
    else if (real(*rho) <= 0)
        state[CODE] = INDEFINITE_PRECONDITIONER;
    else if (real(*curvature) <= 0)
        state[CODE] = INDEFINITE;
    else
        take(state, norms, history);
    *rho_old = *rho;
}

template <typename T>
__global__ void cg_step(long long n, double* room, unsigned* counter, int* state, Real<T>* norms, Real<T>* history,
                        const T* rho, const T* curvature, T* rho_old, const T* p, const T* q, T* x, T* best, T* r)
{
    if (state[CODE] != RUNNING) return;  // the same in all blocks, which have read it before the last one writes it
    const bool possible = real(*rho) > 0 && real(*curvature) > 0 && is_finite(*rho) && is_finite(*curvature);
    const bool keep = state[IMPROVED];
    double square = 0;
    if (possible) {
        const T alpha = real(*rho) / real(*curvature);
#pragma unroll 2
        for (long long i = own_row(); i < n; i += (long long)gridDim.x * blockDim.x) {
            const T before = x[i], rest = r[i] - alpha * q[i];
            if (keep) best[i] = before;
            x[i] = before + alpha * p[i];
            r[i] = rest;
            square += square_of(rest);
        }
        square = block_sum(square);
        if (threadIdx.x == 0) room[blockIdx.x] = square;
    }
    if (!last_block(counter)) return;
    const double length = possible ? norm_of_blocks(room, n, r) : 0;
    if (threadIdx.x) return;
    if (possible) norms[NORM] = Real<T>(length);
    cg_record(state, norms, history, rho, curvature, rho_old);
}

template <typename T>
__global__ void bicg_step(long long n, const int* state, const T* alpha, const T* p, const T* q, const T* q_shadow, T* x,
                          T* best, T* r, T* r_shadow)
{
    const long long i = own_row();
    if (i >= n || state[CODE] != RUNNING) return;
    if (state[IMPROVED]) best[i] = x[i];
    x[i] += *alpha * p[i];
    r[i] -= *alpha * q[i];
    r_shadow[i] -= conj(*alpha) * q_shadow[i];
}

template <typename R>
__global__ void sqmr_smooth(int* state, R* smoothing, const R* size)
{
    if (state[CODE] != RUNNING) return;
    if (!is_finite(*size)) {
        state[CODE] = NOT_FINITE;
        return;
    }
    const R theta_old = smoothing[THETA], theta = *size / smoothing[TAU];
    const R hypotenuse = hypot(R(1), theta), c = R(1) / hypotenuse, s = theta / hypotenuse;
    smoothing[THETA] = theta;
    smoothing[TAU] *= s;
    smoothing[KEPT] = (c * theta_old) * (c * theta_old);
    smoothing[TAKEN] = c * c;
    smoothing[LEFT] = s * s;
}

template <typename T>
__global__ void sqmr_step(long long n, const int* state, const Real<T>* smoothing, const T* alpha, const T* p, const T* r,
                          T* d, T* x, T* best, T* s)
{
    const long long i = own_row();
    if (i >= n || state[CODE] != RUNNING) return;
    const T kept = smoothing[KEPT], taken = smoothing[TAKEN], left = smoothing[LEFT];
    if (state[IMPROVED]) best[i] = x[i];
    d[i] = kept * d[i] + taken * *alpha * p[i];
    x[i] += d[i];
    s[i] = left * s[i] + taken * r[i];
}

template <typename T>
__global__ void bicgstab_half(long long n, const int* state, const T* rho, const T* sigma, const T* v, T* r)
{
    const long long i = own_row();
    if (i >= n || state[CODE] != RUNNING || zero(*sigma)) return;
    const T alpha = *rho / *sigma;
    r[i] -= alpha * v[i];
}

// omega = t^H s / ||t||^2, the step along s that leaves least of s - omega t; 0 where t is 0, or by underflow.
template <typename T>
__device__ T stabilizer(const T* ts, const Real<T>* t_norm)
{
    return *t_norm == 0 ? *ts : *ts / T(*t_norm) / T(*t_norm);  // ts is 0 where t is
}

template <typename T>
__global__ void bicgstab_step(long long n, double* room, unsigned* counter, int* state, Real<T>* norms, Real<T>* history,
                              T* rho, const T* sigma, const T* ts, const Real<T>* t_norm, const T* __restrict__ shadow,
                              const Real<T>* shadow_norm, const T* p, const T* s, const T* t, T* x, T* best, T* r)
{
    if (state[CODE] != RUNNING) return;  // the same in all blocks, which have read it before the last one writes it
    const bool possible = !zero(*sigma), keep = state[IMPROVED];
    const T alpha = *rho / *sigma;
    const T omega = stabilizer<T>(ts, t_norm);
    T sum = T(0), *partial = reinterpret_cast<T*>(room + gridDim.x);
    double square = 0;
    if (possible) {
#pragma unroll 2
        for (long long i = own_row(); i < n; i += (long long)gridDim.x * blockDim.x) {
            const T before = x[i], rest = r[i] - omega * t[i];
            if (keep) best[i] = before;
            x[i] = before + (alpha * p[i] + omega * s[i]);
            r[i] = rest;
            square += square_of(rest);
            sum += conj(shadow[i]) * rest;
        }
        square = block_sum(square);
        sum = block_sum(sum);
        if (threadIdx.x == 0) {
            room[blockIdx.x] = square;
            partial[blockIdx.x] = sum;
        }
    }
    if (!last_block(counter)) return;
    if (!possible) {
        if (threadIdx.x == 0) state[CODE] = BROKEN;
        return;
    }
    sum = sum_of_blocks(partial);
    const double length = norm_of_blocks(room, n, r);
    if (threadIdx.x) return;
    *rho = sum;
    norms[NORM] = Real<T>(length);
    take(state, norms, history);
    if (state[CODE] != RUNNING) return;
    const bool lost = hypot(real(sum), imag(sum)) <= rounding<Real<T>>() * *shadow_norm * norms[NORM];
    if (lost || zero(omega) || !is_finite(sum / *sigma / omega)) state[CODE] = BROKEN;
}

template <typename T>
__global__ void bicgstab_direction(long long n, const int* state, const T* rho, const T* sigma, const T* ts,
                                   const Real<T>* t_norm, const T* r, const T* v, T* p)
{
    const long long i = own_row();
    if (i >= n || state[CODE] != RUNNING) return;
    const T omega = stabilizer<T>(ts, t_norm);
    const T beta = *rho / *sigma / omega;
    p[i] = r[i] + beta * (p[i] - omega * v[i]);
}

template <typename T>
__global__ void minres_lanczos(long long n, const int* state, const Real<T>* lanczos, const T* alpha, const T* p,
                               const T* v, T* v_old)
{
    const long long i = own_row();
    if (i >= n || state[CODE] != RUNNING) return;
    const T a = real(*alpha), beta = lanczos[BETA];
    v_old[i] = p[i] - a * v[i] - beta * v_old[i];
}

template <typename T>
__global__ void minres_rotation(int* state, Real<T>* norms, Real<T>* lanczos, const T* alpha, const T* square)
{
    using R = Real<T>;
    if (state[CODE] != RUNNING) return;
    if (!is_finite(*alpha) || !is_finite(*square)) {
        state[CODE] = NOT_FINITE;
        return;
    }
    if (real(*square) < 0) {
        state[CODE] = INDEFINITE_PRECONDITIONER;
        return;
    }
    const R a = real(*alpha), beta = lanczos[BETA], beta_next = sqrt(real(*square));
    const R above = lanczos[COS_OLD] * beta;
    const R gamma_bar = lanczos[COS] * a - lanczos[SIN] * above;
    const R gamma = hypot(gamma_bar, beta_next);
    const R column = hypot(hypot(beta, a), beta_next);
    if (gamma <= R(4) * rounding<R>() * column) {
        state[CODE] = BROKEN;
        return;
    }
    const R epsilon = lanczos[SIN_OLD] * beta, delta = lanczos[COS] * above + lanczos[SIN] * a;
    lanczos[EPSILON] = epsilon;
    lanczos[DELTA] = delta;
    lanczos[GAMMA] = gamma;
    lanczos[COS_OLD] = lanczos[COS];
    lanczos[SIN_OLD] = lanczos[SIN];
    lanczos[COS] = gamma_bar / gamma;
    lanczos[SIN] = beta_next / gamma;
    const R phi = lanczos[COS] * lanczos[PHI_BAR];
    lanczos[PHI] = phi / lanczos[SCALE];
    lanczos[PHI_BAR] *= -lanczos[SIN];
    lanczos[BETA] = beta_next;
    lanczos[INVERSE] = beta_next > 0 ? R(1) / beta_next : R(0);
    // Norms in that of M^-1, in which z is a unit vector, orthogonal to x and to the directions w before it.
    if (lanczos[UNIT] == R(0)) lanczos[UNIT] = column;
    const R unit = lanczos[UNIT], beta_1 = lanczos[BETA_1];
    const R fresh = unit / gamma, d = delta / gamma, e = epsilon / gamma;  // w = fresh z - d w - e w_old
    const R step = phi / beta_1;
    const R ww = lanczos[WW], ww_old = lanczos[WW_OLD], cross = lanczos[WW_CROSS];
    lanczos[WW_OLD] = ww;
    lanczos[WW_CROSS] = -(d * ww + e * cross);
    lanczos[WW] = fresh * fresh + d * d * ww + R(2) * d * e * cross + e * e * ww_old;
    const R xw = lanczos[XW], along = -(d * xw + e * lanczos[XW_OLD]);
    lanczos[XX] += R(2) * step * along + step * step * lanczos[WW];
    lanczos[XW_OLD] = xw + step * lanczos[WW_CROSS];
    lanczos[XW] = along + step * lanczos[WW];
    const R relative = column / unit;
    lanczos[SIZE] = lanczos[SIZE] > relative ? lanczos[SIZE] : relative;
    const R rest = rounding<R>() * lanczos[SIZE] * sqrt(fabs(lanczos[XX]));
    norms[DRIFT] = rest != R(0) ? rest / (fabs(lanczos[PHI_BAR]) / beta_1) : R(0);
}

template <typename T>
__global__ void minres_step(long long n, const int* state, const Real<T>* lanczos, const T* y, T* v, T* z, const T* w,
                            T* w_old, T* x, T* best, T* r)
{
    using R = Real<T>;
    const long long i = own_row();
    if (i >= n || state[CODE] != RUNNING) return;
    const T epsilon = lanczos[EPSILON], delta = lanczos[DELTA], inverse = lanczos[INVERSE], phi = lanczos[PHI];
    const T gamma = lanczos[GAMMA], damped = lanczos[SIN] * lanczos[SIN], fresh = lanczos[PHI_BAR] * lanczos[COS];
    const T direction = (z[i] - epsilon * w_old[i] - delta * w[i]) / gamma;
    w_old[i] = direction;
    if (state[IMPROVED]) best[i] = x[i];
    x[i] += phi * direction;
    z[i] = inverse * y[i];  // before v, which y is where there is no preconditioner
    v[i] = inverse * v[i];
    r[i] = damped * r[i] + fresh * v[i];
}
