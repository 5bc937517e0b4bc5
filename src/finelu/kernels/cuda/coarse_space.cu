// The vectors of a coarse space, cut by parts: restriction and prolongation, A Z, Z^H A Z, and the inverse of a
// Hermitian matrix by blocks. Twins: kernels/reference/subdomains.py.
#include "runtime/finelu.cuh"
#include "runtime/sums.cuh"
#include "runtime/constants.cuh"

using namespace fl;

template <typename W> __device__ inline W widened(float a) { return W(a); }
template <typename W> __device__ inline W widened(double a) { return W(a); }
template <typename W, typename R> __device__ inline W widened(Complex<R> a) { return W(a.re, a.im); }

// g_p = sum of conj(v_k) r[rows[k]] over starts[p] <= k < starts[p + 1], m columns v; null for one of ones. For each of
// gridDim.y right-hand sides: those of r are n apart, those of g side by side. Launch: a block of 128 a part and a column.
template <typename T>
__global__ void __launch_bounds__(128) restrict_to_parts(const int* __restrict__ starts, const int* __restrict__ rows, int m,
                                                         const T* __restrict__ values, int conjugate, long long n, const T* __restrict__ r,
                                                         T* g)
{
    __shared__ T sums[4];
    r += blockIdx.y * n;
    const int first = starts[blockIdx.x], last = starts[blockIdx.x + 1];
    for (int c = 0; c < m; ++c) {
        T sum = T(0);
#pragma unroll 4
        for (int k = first + int(threadIdx.x); k < last; k += 128) {
            T v = r[rows[k]];
            if (values != nullptr) {
                const T z = values[size_t(k) * m + c];
                v = (conjugate ? conj(z) : z) * v;
            }
            sum += v;
        }
        sum = lanes_sum(sum);
        if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
        __syncthreads();
        if (threadIdx.x == 0) g[(size_t(blockIdx.x) * m + c) * gridDim.y + blockIdx.y] = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        __syncthreads();
    }
}

// x_i += Z_i (q - less)_p for i in part p; less may be null: 0. For each of gridDim.y columns: those of x are n apart,
// those of q and less side by side.
template <typename T>
__global__ void prolong_from_parts(long long n, int m, const int* __restrict__ parts, const T* __restrict__ Z,
                                   const T* __restrict__ q, const T* __restrict__ less, T* x)
{
    const long long i = own_item();
    if (i >= n) return;
    const size_t mine = size_t(parts[i]) * m;
    T sum = T(0);
    for (int c = 0; c < m; ++c) {
        const size_t at = (mine + c) * gridDim.y + blockIdx.y;
        const T v = less == nullptr ? q[at] : q[at] - less[at];
        sum += Z == nullptr ? v : Z[size_t(i) * m + c] * v;
    }
    x[blockIdx.y * n + i] += sum;
}

// out_k = the sum of sums over the couplings of coarse vector k = (part, column), or, where `less` is not null, less_k
// minus it: with (part, column) = (k / m, k % m), those couplings are members[starts[part]], ..., each with m sums.
template <typename T>
__global__ void sum_couplings(int K, int m, const int* __restrict__ starts, const int* __restrict__ members,
                              const T* __restrict__ sums, const T* __restrict__ less, T* out)
{
    const int k = int(own_item());
    if (k >= K) return;
    T sum = T(0);
#pragma unroll 4
    for (int c = starts[k / m]; c < starts[k / m + 1]; ++c) sum += sums[size_t(members[c]) * m + k % m];
    out[k] = less == nullptr ? sum : less[k] - sum;
}

// keys[e] = (part of the row of entry e of A Z, part of its vector) as one number.
template <typename K>
__global__ void coupling_keys(int entries, int count, const int* __restrict__ rows, const int* __restrict__ parts,
                              const int* __restrict__ part, K* keys)
{
    const int e = int(own_item());
    if (e < entries) keys[e] = K(parts[rows[e]]) * count + part[e];
}

// first[k] = 1 where a coupling begins at place k of the sorted keys, else 0.
template <typename K>
__global__ void coupling_begins(int entries, const K* __restrict__ keys, const long long* __restrict__ order, int* first)
{
    const int k = int(own_item());
    if (k < entries) first[k] = k == 0 || keys[order[k]] != keys[order[k - 1]];
}

// The couplings, and their entries in the order of the keys. until (entries + 1): until[k + 1] couplings begin up to
// place k. position (n): that of each row. ends, of_parts, of_vectors: by couplings; of_rows, local: by entries.
template <typename K>
__global__ void write_couplings(int entries, int count, const K* __restrict__ keys, const long long* __restrict__ order,
                                const int* __restrict__ until, const int* __restrict__ rows, const int* __restrict__ parts,
                                const int* __restrict__ starts, const int* __restrict__ position, int* ends, int* of_parts,
                                int* of_vectors, int* of_rows, unsigned short* local)
{
    const int k = int(own_item());
    if (k >= entries) return;
    const long long e = order[k];
    const int i = rows[e], coupling = until[k + 1] - 1;
    of_rows[k] = i;
    local[k] = (unsigned short)(position[i] - starts[parts[i]]);
    if (until[k] <= coupling) {
        ends[coupling] = k;
        of_parts[coupling] = int(keys[e] / count);
        of_vectors[coupling] = int(keys[e] % count);
    }
    if (k == entries - 1) ends[coupling + 1] = entries;
}

// weights_k = 1 / sqrt(E_kk), or that of the smallest normal number if E_kk is below it; 0 where k is to be left out.
// Sets unfit where E_kk is not above 0 for another k, or where E (K, K) holds NaN or Inf. Launch: a block of 256 a row.
template <typename W>
__global__ void __launch_bounds__(256) coarse_weights(int K, const W* __restrict__ E, const bool* __restrict__ left_out,
                                                      double* weights, int* unfit)
{
    const W* row = E + size_t(blockIdx.x) * K;
    bool bad = false;
    for (int k = threadIdx.x; k < K; k += 256) bad = bad || !is_finite(row[k]);
    if (threadIdx.x == 0) {
        const double size = real(row[blockIdx.x]);
        bad = bad || !(size > 0 || left_out[blockIdx.x]);
        weights[blockIdx.x] = left_out[blockIdx.x] ? 0.0 : 1 / sqrt(fmax(size, 2.2250738585072014e-308));
    }
    if (bad) *unfit = 1;
}

// q = M g for a dense M (n, n), a warp a row, and *total = v^H q + the sum of dots (count), added up as in
// runtime/sums.cuh. Launch: gridDim.x * blockDim.x >= 32 n, blockDim.x = 256; room: gridDim.x sums of T.
template <typename T>
__global__ void __launch_bounds__(256) product_with_dot(int n, const T* __restrict__ matrix, const T* __restrict__ g,
                                                        const T* __restrict__ v, int count, const T* __restrict__ dots, T* q,
                                                        T* room, unsigned* counter, T* total)
{
    const int i = own_row<int, 32>(), lane = threadIdx.x % 32;
    T sum = T(0);
    if (i < n) {
#pragma unroll 8
        for (int j = lane; j < n; j += 32) sum += matrix[size_t(i) * n + j] * g[j];
    }
    sum = lanes_sum(sum);
    if (i < n && lane == 0) q[i] = sum;
    sum = block_sum(i < n && lane == 0 ? conj(v[i]) * sum : T(0));
    if (threadIdx.x == 0) room[blockIdx.x] = sum;
    if (!last_block(counter)) return;
    sum = sum_of_blocks(room);
    T own = T(0);
    for (int p = threadIdx.x; p < count; p += blockDim.x) own += dots[p];
    own = block_sum(own);
    if (threadIdx.x == 0) *total = sum + own;
}

// p = z + Z q + (rho / rho_old) p, while the iteration runs; Z as in prolong_from_parts.
template <typename T>
__global__ void direction_with_coarse(long long n, int m, const int* __restrict__ state, const T* __restrict__ rho,
                                      const T* __restrict__ rho_old, const int* __restrict__ parts, const T* __restrict__ Z,
                                      const T* __restrict__ q, const T* __restrict__ z, T* p)
{
    const long long i = own_item();
    if (i >= n || state[CODE] != RUNNING) return;
    const size_t mine = size_t(parts[i]) * m;
    T sum = z[i];
    for (int c = 0; c < m; ++c) sum += Z == nullptr ? q[mine + c] : Z[size_t(i) * m + c] * q[mine + c];
    const T beta = real(*rho) / real(*rho_old);
    p[i] = sum + beta * p[i];
}

// The sum of a_ij Z_jc over the places [from, to) of a row whose columns lie in part p, in ascending order.
template <typename T, typename I>
__device__ inline T sum_in_part(I from, I to, int p, int m, int c, const I* __restrict__ indices, const T* __restrict__ data,
                                const int* __restrict__ parts, const T* __restrict__ Z)
{
    T sum = T(0);
    for (I e = from; e < to; ++e) {
        const I j = indices[e];
        if (parts[j] == p) sum += Z == nullptr ? data[e] : data[e] * Z[size_t(j) * m + c];
    }
    return sum;
}
template <typename T, typename I>
__device__ inline bool any_in_part(I from, I to, int p, int m, const I* __restrict__ indices, const T* __restrict__ data,
                                   const int* __restrict__ parts, const T* __restrict__ Z)
{
    for (int c = 0; c < m; ++c) {
        const T sum = sum_in_part<T, I>(from, to, p, m, c, indices, data, parts, Z);
        if (!(real(sum) == 0 && imag(sum) == 0)) return true;
    }
    return false;
}

// A Z by rows: for each part that row i of A meets, in the order in which it meets them, the m sums of a_ij Z_j over
// the j of that part, in ascending order of j; no part whose sums are all 0. LANES threads a row; the thread that has
// the first entry of a part adds up. Rows of more than `longest` entries are left to coarse_products_long. fill = 0:
// how many parts each row has; 1: they are written from pointers[i] on.
template <typename T, typename I, int LANES>
__global__ void coarse_products(long long n, int m, const I* __restrict__ indptr, const I* __restrict__ indices,
                                const T* __restrict__ data, const int* __restrict__ parts, const T* __restrict__ Z, int longest,
                                int fill, int* pointers, int* part, T* values)
{
    const long long i = own_row<long long, LANES>();
    if (i >= n) return;
    const int lane = threadIdx.x % LANES;
    const unsigned group = group_mask<LANES>();
    const I begin = indptr[i], end = indptr[i + 1];
    if (end - begin > longest) return;
    int at = fill ? pointers[i] : 0;
    for (I base = begin; base < end; base += LANES) {
        const I mine = base + lane;
        const int p = mine < end ? parts[indices[mine]] : -1;
        bool first = __ffs(__match_any_sync(group, p)) - 1 == int(threadIdx.x % 32) && p >= 0;
        for (I before = begin; before < base && first; ++before) first = parts[indices[before]] != p;
        const bool kept = first && any_in_part<T, I>(mine, end, p, m, indices, data, parts, Z);
        const unsigned votes = __ballot_sync(group, kept);
        if (fill && kept) {
            const int here = at + votes_before(votes);
            part[here] = p;
            for (int c = 0; c < m; ++c) values[size_t(here) * m + c] = sum_in_part<T, I>(mine, end, p, m, c, indices, data, parts, Z);
        }
        at += __popc(votes);
    }
    if (!fill && lane == 0) pointers[i] = at;
}

// The same for long rows, a block each: first and last (blocks x count) hold the first and the last entry of each part
// in the row, INT_MAX and -1 before, so that no entry is compared with all others. Launch: a block of 256 for each of
// rows.
template <typename T, typename I>
__global__ void __launch_bounds__(256) coarse_products_long(
    const long long* __restrict__ rows, int m, int count, const I* __restrict__ indptr, const I* __restrict__ indices,
    const T* __restrict__ data, const int* __restrict__ parts, const T* __restrict__ Z, int* first, int* last, int fill,
    int* pointers, int* part, T* values)
{
    const long long i = rows[blockIdx.x];
    const I begin = indptr[i], end = indptr[i + 1];
    first += size_t(blockIdx.x) * count;
    last += size_t(blockIdx.x) * count;
    for (I e = begin + I(threadIdx.x); e < end; e += 256) {
        const int p = parts[indices[e]];
        atomicMin(first + p, int(e - begin));
        atomicMax(last + p, int(e - begin));
    }
    __syncthreads();
    int at = fill ? pointers[i] : 0;
    for (I base = begin; base < end; base += 256) {
        const I mine = base + I(threadIdx.x);
        const int p = mine < end ? parts[indices[mine]] : -1;
        bool kept = p >= 0 && first[p] == int(mine - begin);
        if (kept) kept = any_in_part<T, I>(mine, begin + last[p] + 1, p, m, indices, data, parts, Z);
        int all;
        const int before = sum_before<256>(int(kept), all);
        if (fill && kept) {
            const int here = at + before;
            part[here] = p;
            for (int c = 0; c < m; ++c)
                values[size_t(here) * m + c] = sum_in_part<T, I>(mine, begin + last[p] + 1, p, m, c, indices, data, parts, Z);
        }
        at += all;
    }
    if (!fill && threadIdx.x == 0) pointers[i] = at;
}

// E = Z^H A Z in double precision: block (p, q) from the entries of A Z that lie in rows of part p and belong to part
// q, which are order[first[s]], ..., order[first[s + 1] - 1] for one s. A warp adds up each; E (size, size) is 0
// before.
template <typename T, typename W>
__global__ void coarse_matrix(int segments, long long size, int m, const int* __restrict__ first,
                              const long long* __restrict__ order, const int* __restrict__ rows, const int* __restrict__ part,
                              const T* __restrict__ values, const int* __restrict__ parts, const T* __restrict__ Z,
                              int conjugate, W* E)
{
    const int s = own_row<int, 32>(), lane = threadIdx.x % 32;
    if (s >= segments) return;
    const int begin = first[s], end = first[s + 1];
    const int p = parts[rows[order[begin]]], q = part[order[begin]];
    for (int c = 0; c < m; ++c)
        for (int d = 0; d < m; ++d) {
            W sum = W(0);
            for (int k = begin + lane; k < end; k += 32) {
                const long long e = order[k];
                W v = widened<W>(values[size_t(e) * m + d]);
                if (Z != nullptr) {
                    const T z = Z[size_t(rows[e]) * m + c];
                    v = widened<W>(conjugate ? conj(z) : z) * v;
                }
                sum += v;
            }
            sum = lanes_sum(sum);
            if (lane == 0) E[((long long)p * m + c) * size + (long long)q * m + d] = sum;
        }
}

// A_ij *= w_i w_j, and A_ii = 1 where w_i = 0, if `filled`. Launch: gridDim (n, >= n / blockDim.x).
template <typename T>
__global__ void scale_both(int n, const Real<T>* __restrict__ weights, int filled, T* A)
{
    const int i = blockIdx.x, j = int(blockIdx.y * blockDim.x + threadIdx.x);
    if (j >= n) return;
    T* const a = A + size_t(i) * n + j;
    *a = filled && i == j && weights[i] == 0 ? T(1) : times(times(*a, weights[i]), weights[j]);
}

// sizes (2, K) : |A_kk|, and the largest magnitude in row and column k of A (K, K), NaN where there is one. Launch: a
// block of 256 a row.
template <typename T>
__global__ void __launch_bounds__(256) matrix_magnitudes(int K, const T* __restrict__ A, double* sizes)
{
    const int k = blockIdx.x;
    double most = 0;
    bool unknown = false;
    for (int j = threadIdx.x; j < K; j += 256) {
        const double in_row = modulus(A[size_t(k) * K + j]), in_column = modulus(A[size_t(j) * K + k]);
        most = fmax(most, fmax(in_row, in_column));
        unknown = unknown || isnan(in_row) || isnan(in_column);
    }
    most = block_max(most);
    unknown = __syncthreads_or(unknown);
    if (threadIdx.x != 0) return;
    sizes[k] = modulus(A[size_t(k) * K + k]);
    sizes[K + k] = unknown ? nan("") : most;
}

// out_ji = w_i w_j A_ij, and added_i more where i = j; added may be null: 0. Launch: blocks of 32 x 8 threads for
// squares of 32 x 32 places.
template <typename T, typename Out>
__global__ void __launch_bounds__(256) scale_transposed(int n, const T* __restrict__ A, const double* __restrict__ weights,
                                                        const double* __restrict__ added, Out* out)
{
    __shared__ __align__(16) unsigned char room[32 * 33 * sizeof(T)];
    T* square = reinterpret_cast<T*>(room);
    const int rows = blockIdx.y * 32, columns = blockIdx.x * 32, x = threadIdx.x;
    for (int y = threadIdx.y; y < 32; y += 8) {
        const int i = rows + y, j = columns + x;
        if (i < n && j < n) square[y * 33 + x] = times(times(A[size_t(i) * n + j], weights[i]), weights[j]);
    }
    __syncthreads();
    for (int y = threadIdx.y; y < 32; y += 8) {
        const int i = rows + x, j = columns + y;
        if (i >= n || j >= n) continue;
        T a = square[x * 33 + y];
        if (i == j && added != nullptr) a += T(added[i]);
        out[size_t(j) * n + i] = widened<Out>(a);
    }
}

// In place: the inverse of the leading rows x rows block at `block` of a Hermitian positive semidefinite matrix whose
// rows are `stride` apart, rows <= 32 TILE, by Gauss-Jordan elimination in the order of its rows; a thread has TILE x
// TILE elements in registers. A row whose pivot is not above the tolerance depends on those before: it and its column
// become 0, and dropped is 1; 2 where the pivot is below -tolerance. Every element is treated alike, a -= column * row:
// those of the row and the column of the pivot are 0 by then, and the pivot's place is 1 in the row and -1 in the
// column. Launch: one block of 32 x 32 threads.
template <typename T, int TILE>
__global__ void __launch_bounds__(1024) invert_block(int rows, long long stride, T* block, Real<T> tolerance, signed char* dropped)
{
    __shared__ T row[2][32 * TILE], column[2][32 * TILE];
    __shared__ Real<T> reciprocals[2];
    const int x = threadIdx.x, y = threadIdx.y;
    T a[TILE][TILE];
#pragma unroll
    for (int i = 0; i < TILE; ++i)
#pragma unroll
        for (int j = 0; j < TILE; ++j) {
            const int r = y + 32 * i, c = x + 32 * j;
            a[i][j] = r < rows && c < rows ? block[r * stride + c] : T(0);
        }
#pragma unroll
    for (int tile = 0; tile < TILE; ++tile)
        for (int inner = 0; inner < 32; ++inner) {
            const int k = 32 * tile + inner, turn = inner % 2;
            if (k >= rows) break;
            if (x == inner && y == inner) {
                const Real<T> pivot = real(a[tile][tile]);
                const bool kept = pivot > tolerance;
                reciprocals[turn] = kept ? Real<T>(1) / pivot : Real<T>(0);
                dropped[k] = kept ? 0 : pivot < -tolerance ? 2 : 1;
                a[tile][tile] = T(1);  // of the row; that of the column is set below
            }
            if (y == inner)
#pragma unroll
                for (int j = 0; j < TILE; ++j) row[turn][x + 32 * j] = a[tile][j];
            if (x == inner)
#pragma unroll
                for (int i = 0; i < TILE; ++i) {
                    column[turn][y + 32 * i] = y + 32 * i == k ? T(-1) : a[i][tile];
                    a[i][tile] = T(0);
                }
            if (y == inner)
#pragma unroll
                for (int j = 0; j < TILE; ++j) a[tile][j] = T(0);
            __syncthreads();  // that of the next turn comes before these places are written again
            const Real<T> reciprocal = reciprocals[turn];
            T along[TILE];
#pragma unroll
            for (int j = 0; j < TILE; ++j) along[j] = row[turn][x + 32 * j];
#pragma unroll
            for (int i = 0; i < TILE; ++i) {
                const T factor = times(column[turn][y + 32 * i], reciprocal);
#pragma unroll
                for (int j = 0; j < TILE; ++j) a[i][j] -= factor * along[j];
            }
        }
#pragma unroll
    for (int i = 0; i < TILE; ++i)
#pragma unroll
        for (int j = 0; j < TILE; ++j) {
            const int r = y + 32 * i, c = x + 32 * j;
            if (r < rows && c < rows) block[r * stride + c] = a[i][j];
        }
}
