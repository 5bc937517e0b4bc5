// Krylov methods for many systems of one pattern, each of which ends for itself. Twins:
// kernels/reference/batch_krylov.py, name by name; the driver of all three is `iterate`.
//
// A block takes the groups blockIdx.x, blockIdx.x + gridDim.x, ... of 32 systems, a system a lane; see batch.cuh for the
// layout, and for who writes what. All scalars of a system are the same in all warps: sums are added up in the order of
// the warps, so that the bits are the same in every run. A system whose cycle is over keeps its x until those of the others
// of its group are over, too. No thread waits but at barriers, which all threads of a block reach: whether a loop goes on
// is decided by __syncthreads_or. The host is not asked.
// Launch: any 1-D grid of blocks of whole warps, 1024 threads at most; a block has room for VECTORS vectors, and with gmres
// for m + 1 more; hessenberg: (m + 1) (m + 2) numbers a system, cosines: m + 1.
#include "runtime/finelu.cuh"
#include "runtime/constants.cuh"
#include "batch.cuh"

using namespace fl;

constexpr int CG = 0, BICGSTAB = 1, GMRES = 2;
constexpr int VECTORS = 9;  // as in batch_krylov.py: room, the x that is kept, r, and those of the methods

// What a group consists of; pointers have the lane added.
template <typename T>
struct System {
    Plan<T> plan;
    int n;
    const int *indptr, *indices;
    const T *a, *lu;
    T *room, *x, *r;
    Real<T> tolerance;
    int most;
};

// Each element of the vectors of a group: use(i) for the places i of the own rows.
template <typename Use> __device__ inline void over_rows(int n, const Use& use)
{
    for (int i = own_warp(); i < n; i += warps()) use(size_t(i) * GROUP);
}

template <typename T> __device__ inline void product(const System<T>& of, const T* x, T* y)
{
    for (int i = own_warp(); i < of.n; i += warps()) {
        T s = T(0);
#pragma unroll 4
        for (int p = of.indptr[i]; p < of.indptr[i + 1]; ++p) s += of.a[size_t(p) * GROUP] * x[size_t(of.indices[p]) * GROUP];
        y[size_t(i) * GROUP] = s;
    }
}
template <typename T> __device__ inline T dot(int n, const T* u, const T* v)
{
    T s = T(0);
    over_rows(n, [&](size_t i) { s += conj(u[i]) * v[i]; });
    return sum_of_warps(s);
}
template <typename T> __device__ inline Real<T> real_dot(int n, const T* u, const T* v)
{
    Real<T> s = 0;
    over_rows(n, [&](size_t i) { s += real(u[i]) * real(v[i]) + imag(u[i]) * imag(v[i]); });
    return sum_of_warps(s);
}
template <typename T> __device__ inline Real<T> length_of(int n, const T* v) { return sqrt(real_dot(n, v, v)); }

struct State {
    int steps, reason;
    bool active;
    __device__ void close(int why)
    {
        reason = why;
        active = false;
    }
};

// M^-1 v; `room` and v are complete before, x after it.
template <typename T> __device__ inline void apply(const System<T>& of, const T* v, T* x)
{
    __syncthreads();
    solve_group(of.plan, of.lu, v, of.room, x);
}

template <typename T> __device__ void cg_cycle(const System<T>& of, T* work, State& state)
{
    using R = Real<T>;
    const size_t length = size_t(of.n) * GROUP;
    T *const z = work, *const p = z + length, *const q = p + length;
    apply(of, of.r, z);
    over_rows(of.n, [&](size_t i) { p[i] = z[i]; });
    R rho = real_dot(of.n, of.r, z);
    for (;;) {
        if (state.active && !(rho > R(0))) state.close(INDEFINITE_PRECONDITIONER);
        __syncthreads();
        product(of, p, q);
        const R curvature = real_dot(of.n, p, q);
        if (state.active && !(curvature > R(0))) state.close(INDEFINITE);
        if (!__syncthreads_or(state.active)) return;
        if (state.active) {
            const T alpha = T(rho / curvature);
            over_rows(of.n, [&](size_t i) {
                of.x[i] += alpha * p[i];
                of.r[i] -= alpha * q[i];
            });
        }
        const R norm = length_of(of.n, of.r);
        if (state.active) {
            ++state.steps;
            if (!(norm > of.tolerance) || state.steps >= of.most) state.close(RUNNING);
        }
        if (!__syncthreads_or(state.active)) return;
        apply(of, of.r, z);
        const R old = rho;
        rho = real_dot(of.n, of.r, z);
        const T beta = T(rho / old);
        over_rows(of.n, [&](size_t i) { p[i] = z[i] + beta * p[i]; });
    }
}

template <typename T> __device__ void bicgstab_cycle(const System<T>& of, T* work, State& state)
{
    using R = Real<T>;
    const size_t length = size_t(of.n) * GROUP;
    T *const shadow = work, *const p = shadow + length, *const v = p + length, *const hat = v + length, *const t = hat + length;
    over_rows(of.n, [&](size_t i) { shadow[i] = p[i] = of.r[i]; });
    T rho = dot(of.n, shadow, of.r);
    for (;;) {
        apply(of, p, hat);
        product(of, hat, v);
        const T sigma = dot(of.n, shadow, v);
        if (state.active && !(size_of(sigma) > R(0))) state.close(BREAKDOWN);
        const T alpha = rho / sigma;
        if (state.active) {
            over_rows(of.n, [&](size_t i) {
                of.x[i] += alpha * hat[i];
                of.r[i] -= alpha * v[i];
            });
        }
        R norm = length_of(of.n, of.r);
        if (state.active) {
            ++state.steps;
            if (!(norm > of.tolerance)) state.close(RUNNING);
        }
        if (!__syncthreads_or(state.active)) return;
        apply(of, of.r, hat);
        product(of, hat, t);
        const R size = real_dot(of.n, t, t);
        const T omega = dot(of.n, t, of.r) * T(R(1) / size);
        if (state.active && !(size > R(0))) state.close(BREAKDOWN);
        if (state.active) {
            over_rows(of.n, [&](size_t i) {
                of.x[i] += omega * hat[i];
                of.r[i] -= omega * t[i];
            });
        }
        norm = length_of(of.n, of.r);
        const T old = rho;
        rho = dot(of.n, shadow, of.r);
        if (state.active) {
            if (!(norm > of.tolerance) || state.steps >= of.most) state.close(RUNNING);
            else if (!(size_of(rho * omega) > R(0))) state.close(BREAKDOWN);
        }
        if (!__syncthreads_or(state.active)) return;
        const T beta = rho / old * (alpha / omega);
        over_rows(of.n, [&](size_t i) { p[i] = of.r[i] + beta * (p[i] - omega * v[i]); });
    }
}

// basis (m + 1, n, 32); H (m + 2, m + 1, 32): column j of the Hessenberg matrix, then g; s, c (m + 1, 32). All warps write
// the same numbers to H, g, s and c: each reads back its own.
template <typename T> __device__ void gmres_cycle(const System<T>& of, T* work, int m, T* basis, T* H, Real<T>* c, State& state)
{
    using R = Real<T>;
    const size_t length = size_t(of.n) * GROUP, step = size_t(m + 1) * GROUP;
    T *const z = work, *const w = z + length, *const g = H + m * step, *const s = g + step;
    const bool had = state.active;
    int columns = 0;
    const R first = length_of(of.n, of.r);
    over_rows(of.n, [&](size_t i) { basis[i] = first > R(0) ? of.r[i] * T(R(1) / first) : T(0); });
    if (own_warp() == 0) g[0] = T(first);
    for (int j = 0; j < m; ++j) {
        T* const column = H + j * step;
        apply(of, basis + j * length, z);
        product(of, z, w);
        for (int k = 0; k <= j; ++k) {
            const T* const other = basis + k * length;
            const T h = dot(of.n, other, w);
            over_rows(of.n, [&](size_t i) { w[i] -= h * other[i]; });
            if (own_warp() == 0) column[k * GROUP] = h;
        }
        const R below = length_of(of.n, w);
        __syncthreads();
        if (own_warp() == 0) {  // the rotations of this column, by one warp
            column[(j + 1) * GROUP] = T(below);
            for (int k = 0; k < j; ++k) {
                const T upper = column[k * GROUP], lower = column[(k + 1) * GROUP];
                column[k * GROUP] = T(c[k * GROUP]) * upper + s[k * GROUP] * lower;
                column[(k + 1) * GROUP] = T(c[k * GROUP]) * lower - conj(s[k * GROUP]) * upper;
            }
        }
        __syncthreads();
        const T diagonal = column[j * GROUP], before = g[j * GROUP];
        const R pivot = size_of(diagonal), size = hypot(pivot, below);
        __syncthreads();
        if (state.active && !(size > R(0))) state.close(columns ? RUNNING : BREAKDOWN);
        if (state.active) {
            const R cosine = pivot / size;
            T sine = T(below / size);
            if (pivot > R(0)) sine = sine * (diagonal * T(R(1) / pivot));
            const T after = -(conj(sine) * before);
            if (own_warp() == 0) {
                c[j * GROUP] = cosine;
                s[j * GROUP] = sine;
                column[j * GROUP] = T(cosine) * diagonal + sine * T(below);
                g[(j + 1) * GROUP] = after;
                g[j * GROUP] = T(cosine) * before;
            }
            columns = j + 1;
            ++state.steps;
            if (!(size_of(after) > of.tolerance) || !(below > R(0)) || state.steps >= of.most) state.close(RUNNING);
        }
        if (!__syncthreads_or(state.active)) break;
        T* const next = basis + (j + 1) * length;
        over_rows(of.n, [&](size_t i) { next[i] = below > R(0) ? w[i] * T(R(1) / below) : T(0); });
    }
    __syncthreads();
    if (own_warp() == 0) {
        for (int j = columns - 1; j >= 0; --j) {  // y in place of g
            T y = g[j * GROUP];
            for (int k = j + 1; k < columns; ++k) y -= H[k * step + j * GROUP] * g[k * GROUP];
            g[j * GROUP] = y / H[j * step + j * GROUP];
        }
    }
    __syncthreads();
    over_rows(of.n, [&](size_t i) {
        T sum = T(0);
        for (int j = 0; j < columns; ++j) sum += g[j * GROUP] * basis[j * length + i];
        w[i] = sum;
    });
    apply(of, w, z);
    if (had && columns > 0) over_rows(of.n, [&](size_t i) { of.x[i] += z[i]; });
}

// a (groups, nnz, 32), lu (groups, m, 32), b, x (groups, n, 32); work, basis, hessenberg, cosines: room of each block.
template <typename T, int METHOD>
__global__ void __launch_bounds__(1024)
    iterate(PLAN, int nnz, int k, const int* __restrict__ a_indptr, const int* __restrict__ a_indices, const T* __restrict__ a,
            const T* lu, const T* __restrict__ b, Real<T> eps, Real<T> tiny, const Real<T>* __restrict__ tolerances, int most,
            int m, T* work, T* basis, T* hessenberg, Real<T>* cosines, T* x, Real<T>* norms, Real<T>* roundings,
            Real<T>* errors, long long* iterations, long long* code)
{
    using R = Real<T>;
    const Plan<T> plan AS_PLAN;
    const int lane = own_lane(), entries = indptr[n];
    const size_t length = size_t(n) * GROUP;
    T* const room = work + size_t(blockIdx.x) * VECTORS * length + lane;
    T *const kept = room + length, *const r = kept + length, *const rest = r + length;
    for (int g = int(blockIdx.x); g * GROUP < k; g += int(gridDim.x)) {
        const int own = g * GROUP + lane;
        const T* const rhs = b + g * length + lane;
        const System<T> of{plan, n, a_indptr, a_indices, a + size_t(g) * nnz * GROUP + lane, lu + size_t(g) * entries * GROUP + lane,
                           room, x + g * length + lane, r, tolerances[min(own, k - 1)], most};
        over_rows(n, [&](size_t i) { of.x[i] = kept[i] = T(0); });
        State state{0, RUNNING, false};
        R start = R(1) / R(0);
        bool opened = true;
        Figures<R> found;
        for (;;) {
            __syncthreads();
            found = residual_group(n, a_indptr, a_indices, of.a, rhs, of.x, eps, tiny, r);
            if (opened) {
                const bool goes_on = state.reason == RUNNING || state.reason == BREAKDOWN;
                opened = false;
                if (found.norm <= of.tolerance) state.reason = CONVERGED;
                else if (!is_finite(found.norm)) state.reason = NOT_FINITE;
                else if (goes_on && state.steps < most && found.norm > start / 2) {
                    if (state.reason == RUNNING) state.reason = STAGNATED;
                } else if (goes_on && state.steps < most) {
                    opened = true;
                    state.reason = RUNNING;
                    start = found.norm;
                    over_rows(n, [&](size_t i) { kept[i] = of.x[i]; });
                } else if (state.reason == BREAKDOWN) state.reason = RUNNING;
            }
            if (!__syncthreads_or(opened)) break;
            state.active = opened;
            if (METHOD == CG) cg_cycle(of, rest, state);
            else if (METHOD == BICGSTAB) bicgstab_cycle(of, rest, state);
            else {
                const size_t columns = size_t(blockIdx.x) * (m + 1) * GROUP;
                gmres_cycle(of, rest, m, basis + size_t(blockIdx.x) * (m + 1) * length + lane, hessenberg + columns * (m + 2) + lane,
                            cosines + columns + lane, state);
            }
            state.active = false;
        }
        const bool back = !(found.norm <= start);
        if (back) over_rows(n, [&](size_t i) { of.x[i] = kept[i]; });
        if (__syncthreads_or(back)) found = residual_group(n, a_indptr, a_indices, of.a, rhs, of.x, eps, tiny, r);
        if (own_warp() == 0 && own < k) {
            norms[own] = found.norm;
            roundings[own] = found.rounding;
            errors[own] = found.error;
            iterations[own] = state.steps;
            code[own] = state.reason;
        }
        __syncthreads();
    }
}
