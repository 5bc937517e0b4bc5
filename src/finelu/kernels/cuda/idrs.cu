// The steps of IDR(s) between two products. Twins: kernels/reference/idrs.py, name by name; the meaning of state, norms and
// history: kernels/monitor.py. P, G, U and Q are stored by columns: P(i, j) = P[j * n + i], Q(i, j) = Q[j * s + i]. The step
// of the cycle is read from state[COLUMNS], so that the same launch serves all of them. The sums are formed as in
// runtime/sums.cuh: the results are the same in every run.
// Launch: `begin`, `orthogonality` and `step`: any 1-D grid, blockDim.x a multiple of 32, with room for 2 (s + 2) gridDim.x
// doubles; the others: any 1-D grid with gridDim.x * blockDim.x >= n.
#include "runtime/finelu.cuh"
#include "runtime/sums.cuh"
#include "runtime/constants.cuh"
#include "runtime/record.cuh"

using namespace fl;

constexpr int MOST = 32;  // columns

__device__ inline double between(unsigned long long key)
{
    unsigned long long z = key * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    return double(z >> 11) * 2.220446049250313e-16 - 1.0;
}
__device__ inline void take_number(float& a, unsigned long long key) { a = float(between(key)); }
__device__ inline void take_number(double& a, unsigned long long key) { a = between(key); }
template <typename R> __device__ inline void take_number(Complex<R>& a, unsigned long long key)
{
    a = {R(between(key)), R(between(key + 1))};
}

template <typename T>
__global__ void draw(long long n, int s, long long seed, long long first, T* P)
{
    const long long row = own_item();
    if (row >= n) return;
    for (int j = 0; j < s; ++j) take_number(P[j * n + row], 2ull * ((first + row) * s + j + seed * (1ll << 40)));
}

template <typename T>
__device__ void weights(int k, int s, const T* Q, const T* f, T* c)
{
    for (int i = k; i < s; ++i) {
        T total = f[i];
        for (int p = k; p < i; ++p) total -= Q[p * s + i] * c[p];
        c[i] = total / Q[i * s + i];
    }
}

template <typename T>
__global__ void begin(long long n, double* room, unsigned* counter, int s, const int* state, const T* P, const T* r,
                      const T* Q, T* f, T* c)
{
    if (state[CODE] != RUNNING || state[COLUMNS] != 0) return;  // the same in all blocks
    T* partial = reinterpret_cast<T*>(room);
    for (int j = 0; j < s; ++j) {
        T sum = T(0);
        for (long long row = own_item(); row < n; row += (long long)gridDim.x * blockDim.x)
            sum += conj(P[j * n + row]) * r[row];
        sum = block_sum(sum);
        if (threadIdx.x == 0) partial[(long long)j * gridDim.x + blockIdx.x] = sum;
    }
    if (!last_block(counter)) return;
    for (int j = 0; j < s; ++j) {
        const T sum = sum_of_blocks(partial + (long long)j * gridDim.x);
        if (threadIdx.x == 0) f[j] = sum;
    }
    if (threadIdx.x == 0) weights(0, s, Q, f, c);
}

template <typename T>
__global__ void residual_part(long long n, int s, const int* state, const T* G, const T* c, const T* r, T* v)
{
    const long long row = own_item();
    if (row >= n || state[CODE] != RUNNING) return;
    T rest = r[row];
    for (int j = state[COLUMNS]; j < s; ++j) rest -= c[j] * G[j * n + row];
    v[row] = rest;
}

template <typename T>
__global__ void direction(long long n, int s, const int* state, const T* omega, const T* U, const T* c, const T* z, T* u)
{
    const long long row = own_item();
    if (row >= n || state[CODE] != RUNNING) return;
    const int k = state[COLUMNS];
    T sum = k < s ? *omega * z[row] : z[row];
    for (int j = k; j < s; ++j) sum += c[j] * U[j * n + row];
    u[row] = sum;
}

template <typename T>
__global__ void orthogonality(long long n, double* room, unsigned* counter, int s, int* state, const T* P, const T* w,
                              const T* r, T* Q, T* f, T* c, T* omega)
{
    using R = Real<T>;
    if (state[CODE] != RUNNING) return;  // the same in all blocks, which have read it before the last one writes it
    const int k = state[COLUMNS];
    const long long grid = gridDim.x;
    double *const squares = room, *const others = room + grid;
    T* const partial = reinterpret_cast<T*>(room + 2 * grid);
    double square = 0, other = 0;
    T sum = T(0);
    for (long long row = own_item(); row < n; row += grid * blockDim.x) {
        square += square_of(w[row]);
        if (k == s) {
            other += square_of(r[row]);
            sum += conj(w[row]) * r[row];
        }
    }
    square = block_sum(square);
    other = block_sum(other);
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        squares[blockIdx.x] = square;
        others[blockIdx.x] = other;
        if (k == s) partial[blockIdx.x] = sum;
    }
    if (k < s)
        for (int j = 0; j < s; ++j) {
            sum = T(0);
            for (long long row = own_item(); row < n; row += grid * blockDim.x) sum += conj(P[j * n + row]) * w[row];
            sum = block_sum(sum);
            if (threadIdx.x == 0) partial[j * grid + blockIdx.x] = sum;
        }
    if (!last_block(counter)) return;
    const double size = norm_of_blocks(squares, n, w);
    if (k == s) {
        const double rest = norm_of_blocks(others, n, r);
        const T product = sum_of_blocks(partial);
        if (threadIdx.x) return;
        // NaN goes on, to `record`
        const double cosine = size != 0 && rest != 0 ? modulus(product) / size / rest : 0.0;
        if (cosine == 0)
            state[CODE] = BROKEN;
        else
            *omega = product / T(R(size)) / T(R(size)) * T(R(cosine < ANGLE ? ANGLE / cosine : 1.0));
        return;
    }
    __shared__ __align__(16) unsigned char memory[MOST * sizeof(T)];
    T* d = reinterpret_cast<T*>(memory);
    for (int j = 0; j < s; ++j) {
        sum = sum_of_blocks(partial + j * grid);
        if (threadIdx.x == 0) d[j] = sum;
    }
    if (threadIdx.x) return;
    for (int i = 0; i < k; ++i) {
        c[i] = d[i] / Q[i * s + i];
        for (int p = i + 1; p < s; ++p) d[p] -= c[i] * Q[i * s + p];
    }
    if (modulus(d[k]) <= rounding<R>() * size && is_finite(size)) {  // Inf and NaN go on, to `record`
        state[CODE] = BROKEN;
        return;
    }
    for (int i = k; i < s; ++i) Q[k * s + i] = d[i];
    c[k] = f[k] / d[k];
    for (int i = k + 1; i < s; ++i) f[i] -= c[k] * d[i];
}

template <typename T>
__global__ void step(long long n, double* room, unsigned* counter, int s, int* state, Real<T>* norms, Real<T>* history,
                     const T* Q, const T* f, T* c, const T* omega, const T* u, const T* w, T* G, T* U, T* x, T* best, T* r,
                     Real<T>* size)
{
    if (state[CODE] != RUNNING) return;  // the same in all blocks, which have read it before the last one writes it
    const int k = state[COLUMNS];
    const bool keep = state[IMPROVED];
    double square = 0;
    for (long long row = own_item(); row < n; row += (long long)gridDim.x * blockDim.x) {
        const T before = x[row];
        T g = w[row], d = u[row];
        if (k < s) {
            for (int i = 0; i < k; ++i) {
                g -= c[i] * G[i * n + row];
                d -= c[i] * U[i * n + row];
            }
            G[k * n + row] = g;
            U[k * n + row] = d;
        }
        const T length = k < s ? c[k] : *omega, rest = r[row] - length * g;
        if (keep) best[row] = before;
        x[row] = before + length * d;
        r[row] = rest;
        square += square_of(rest);
    }
    square = block_sum(square);
    if (threadIdx.x == 0) room[blockIdx.x] = square;
    if (!last_block(counter)) return;
    const double length = norm_of_blocks(room, n, r);
    if (threadIdx.x) return;
    norms[NORM] = Real<T>(length);
    if (norms[NORM] > *size) *size = norms[NORM];
    take(state, norms, history, size);
    if (state[CODE] != RUNNING) return;
    const int next = (k + 1) % (s + 1);
    state[COLUMNS] = next;
    if (next > 0 && next < s) weights(next, s, Q, f, c);
}
