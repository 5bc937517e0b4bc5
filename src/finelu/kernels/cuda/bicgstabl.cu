// The steps of BiCGStab(l) between two products. Twins: kernels/reference/bicgstabl.py, name by name; the meaning of state,
// norms and history: kernels/monitor.py. R, U, V and W are stored by columns: R(i, j) = R[j * n + i]; V and W are null
// without a preconditioner. Scalars are read from device memory, and every thread takes the same decision from them. The
// sums are formed as in runtime/sums.cuh: the results are the same in every run.
// Launch: `bicg_step`, `gram` and `minimize`: any 1-D grid, blockDim.x a multiple of 32, with room as they say; `polynomial`: one
// thread; the others: any 1-D grid with gridDim.x * blockDim.x >= n.
#include "runtime/finelu.cuh"
#include "runtime/sums.cuh"
#include "runtime/constants.cuh"
#include "runtime/record.cuh"

using namespace fl;

constexpr int MOST = 8;  // steps

template <typename T> struct WideOf { using type = double; };
template <typename R> struct WideOf<Complex<R>> { using type = Complex<double>; };
template <typename T> using Wide = typename WideOf<T>::type;

__device__ inline double wide(float a) { return a; }
__device__ inline double wide(double a) { return a; }
template <typename R> __device__ inline Complex<double> wide(Complex<R> a) { return {double(a.re), double(a.im)}; }
__device__ inline void narrow(double a, float& b) { b = float(a); }
__device__ inline void narrow(double a, double& b) { b = a; }
template <typename R> __device__ inline void narrow(Complex<double> a, Complex<R>& b) { b = {R(a.re), R(a.im)}; }

template <typename T> __device__ inline bool stopped(const T* sigma, int steps)
{
    for (int i = 0; i < steps; ++i)
        if (zero(sigma[i])) return true;
    return false;
}

template <typename T>
__global__ void direction(long long n, int steps, int j, const int* state, const T* rho, const T* sigma, const T* omega,
                          const T* w, const T* z, T* R, T* U, T* V, T* W)
{
    const long long row = own_item();
    if (row >= n || state[CODE] != RUNNING || stopped(sigma, j)) return;
    const T beta = j == 0 ? -rho[0] / sigma[steps - 1] / *omega : rho[j] / sigma[j - 1];
    if (j > 0) {
        R[j * n + row] = w[row];
        if (V) V[(j - 1) * n + row] = z[row];
    }
    for (int i = 0; i <= j; ++i) {
        const long long at = i * n + row;
        U[at] = R[at] - beta * U[at];
        if (V && i < j) W[at] = V[at] - beta * W[at];
    }
}

template <typename T>
__global__ void bicg_step(long long n, double* room, unsigned* counter, int j, const int* state, const T* rho,
                          const T* sigma, const T* w, const T* z, T* x, T* best, T* R, T* U, T* V, T* W, Real<T>* size)
{
    if (state[CODE] != RUNNING || stopped(sigma, j + 1)) return;  // the same in all blocks
    const T alpha = rho[j] / sigma[j];
    const bool keep = j == 0 && state[IMPROVED];
    double square = 0;
    for (long long row = own_item(); row < n; row += (long long)gridDim.x * blockDim.x) {
        U[(j + 1) * n + row] = w[row];
        if (W) W[j * n + row] = z[row];
        for (int i = 0; i <= j; ++i) {
            const long long at = i * n + row;
            R[at] -= alpha * U[at + n];
            if (V && i < j) V[at] -= alpha * W[at + n];
        }
        if (keep) best[row] = x[row];
        x[row] += alpha * (W ? W : U)[row];
        square += square_of(R[row]);
    }
    square = block_sum(square);
    if (threadIdx.x == 0) room[blockIdx.x] = square;
    if (!last_block(counter)) return;
    const double length = norm_of_blocks(room, n, R);
    if (threadIdx.x == 0 && length > *size) *size = Real<T>(length);
}

// STEPS: l. room: (l + 1) (l + 2) gridDim.x doubles.
template <typename T, int STEPS>
__global__ void gram(long long n, double* room, unsigned* counter, const int* state, const T* sigma, const T* w, const T* R,
                     Wide<T>* G)
{
    using S = Wide<T>;
    constexpr int COLUMNS = STEPS + 1, PAIRS = COLUMNS * (COLUMNS + 1) / 2;
    if (state[CODE] != RUNNING || stopped(sigma, STEPS)) return;
    S sums[PAIRS];
#pragma unroll
    for (int p = 0; p < PAIRS; ++p) sums[p] = S(0);
    for (long long row = own_item(); row < n; row += (long long)gridDim.x * blockDim.x) {
        S value[COLUMNS];
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) value[c] = wide(c < STEPS ? R[c * n + row] : w[row]);
#pragma unroll
        for (int b = 0; b < COLUMNS; ++b)
#pragma unroll
            for (int a = 0; a <= b; ++a) sums[b * (b + 1) / 2 + a] += conj(value[a]) * value[b];
    }
    S* partial = reinterpret_cast<S*>(room);
#pragma unroll
    for (int p = 0; p < PAIRS; ++p) {
        const S sum = block_sum(sums[p]);
        if (threadIdx.x == 0) partial[(long long)p * gridDim.x + blockIdx.x] = sum;
    }
    if (!last_block(counter)) return;
    for (int b = 0; b < COLUMNS; ++b)
        for (int a = 0; a <= b; ++a) {
            const S sum = sum_of_blocks(partial + (long long)(b * (b + 1) / 2 + a) * gridDim.x);
            if (threadIdx.x == 0) {
                G[b * COLUMNS + a] = sum;
                if (a < b) G[a * COLUMNS + b] = conj(sum);
            }
        }
}

// first = Z^-1 first and last = Z^-1 last by L D L^H, Z(a, b) = G(a + 1, b + 1), a, b < count; 0 for a column that depends
// on those before it.
template <typename S>
__device__ void solve(int count, int ld, const S* G, S* first, S* last)
{
    S L[MOST * MOST];
    double d[MOST];
    for (int i = 0; i < count; ++i) {
        const double diagonal = real(G[(i + 1) * ld + i + 1]);
        double rest = diagonal;
        for (int k = 0; k < i; ++k) rest -= abs2(L[i * MOST + k]) * d[k];
        d[i] = rest <= (count + 1) * rounding<double>() * diagonal ? 0.0 : rest;
        for (int a = i + 1; a < count; ++a) {
            S part = G[(i + 1) * ld + a + 1];
            for (int k = 0; k < i; ++k) part -= L[a * MOST + k] * S(d[k]) * conj(L[i * MOST + k]);
            L[a * MOST + i] = d[i] > 0 ? part / S(d[i]) : S(0) * part;
        }
    }
    for (int which = 0; which < 2; ++which) {
        S* y = which ? last : first;
        for (int i = 0; i < count; ++i)
            for (int k = 0; k < i; ++k) y[i] -= L[i * MOST + k] * y[k];
        for (int i = count - 1; i >= 0; --i) {
            y[i] = d[i] > 0 ? y[i] / S(d[i]) : S(0) * y[i];
            for (int k = i + 1; k < count; ++k) y[i] -= conj(L[k * MOST + i]) * y[k];
        }
    }
}

template <typename T>
__global__ void polynomial(int steps, const int* state, const T* sigma, const Wide<T>* G, T* gamma, T* omega)
{
    using S = Wide<T>;
    if (state[CODE] != RUNNING || stopped(sigma, steps)) return;
    const int ld = steps + 1;
    S first[MOST], last[MOST];
    for (int i = 1; i < steps; ++i) {
        first[i - 1] = G[i];
        last[i - 1] = G[steps * ld + i];
    }
    solve(steps - 1, ld, G, first, last);
    double square_first = real(G[0]), square_last = real(G[steps * ld + steps]);
    S product = G[steps];
    for (int i = 0; i < steps - 1; ++i) {
        const S in_last = conj(G[steps * ld + i + 1]);
        square_first -= real(conj(G[i + 1]) * first[i]);
        square_last -= real(in_last * last[i]);
        product -= in_last * first[i];
    }
    S factor = S(0) * product;
    if (!(square_last <= steps * rounding<double>() * real(G[steps * ld + steps]))) {
        factor = product / S(square_last);
        const double cosine = square_first > 0 ? modulus(product) / sqrt(square_last) / sqrt(square_first) : 1.0;
        if (cosine > 0 && cosine < ANGLE) factor = factor * S(ANGLE / cosine);
    }
    for (int i = 0; i < steps - 1; ++i) narrow(first[i] - factor * last[i], gamma[i]);
    narrow(factor, gamma[steps - 1]);
    *omega = gamma[steps - 1];
}

// room: 4 * gridDim.x doubles.
template <typename T>
__global__ void minimize(long long n, double* room, unsigned* counter, int steps, int* state, Real<T>* norms,
                         Real<T>* history, T* rho, const T* sigma, const T* gamma, const T* omega, const T* shadow,
                         const Real<T>* shadow_norm, const T* w, const T* z, T* x, T* R, T* U, const T* V, const Real<T>* size)
{
    if (state[CODE] != RUNNING) return;  // the same in all blocks, which have read it before the last one writes it
    const bool none = zero(sigma[0]), whole = !stopped(sigma, steps);
    T sum = T(0), *partial = reinterpret_cast<T*>(room + gridDim.x);
    double square = 0;
    if (!none) {
        for (long long row = own_item(); row < n; row += (long long)gridDim.x * blockDim.x) {
            T rest = R[row];
            if (whole) {
                T step = gamma[steps - 1] * z[row], turned = U[row];
                for (int i = 0; i < steps - 1; ++i) step += gamma[i] * (V ? V[i * n + row] : R[i * n + row]);
                for (int i = 0; i < steps; ++i) {
                    rest -= gamma[i] * (i == steps - 1 ? w[row] : R[(i + 1) * n + row]);
                    turned -= gamma[i] * U[(i + 1) * n + row];
                }
                x[row] += step;
                R[row] = rest;
                U[row] = turned;
            }
            square += square_of(rest);
            sum += conj(shadow[row]) * rest;
        }
        square = block_sum(square);
        sum = block_sum(sum);
        if (threadIdx.x == 0) {
            room[blockIdx.x] = square;
            partial[blockIdx.x] = sum;
        }
    }
    if (!last_block(counter)) return;
    if (none) {
        if (threadIdx.x == 0) state[CODE] = BROKEN;
        return;
    }
    sum = sum_of_blocks(partial);
    const double length = norm_of_blocks(room, n, R);
    if (threadIdx.x) return;
    rho[0] = sum;
    norms[NORM] = Real<T>(length);
    take(state, norms, history, size);
    if (state[CODE] != RUNNING) return;
    const bool lost = hypot(real(sum), imag(sum)) <= rounding<Real<T>>() * *shadow_norm * norms[NORM];
    if (!whole || lost || zero(*omega) || !is_finite(sum / sigma[steps - 1] / *omega)) state[CODE] = BROKEN;
}
