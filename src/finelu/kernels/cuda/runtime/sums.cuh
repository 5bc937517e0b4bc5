// Sums over all threads of a grid within one launch. Each block adds up the values of its threads and writes its sum to
// a place of its own; the block that is the last to do so adds up the places, in their order. So the order of every sum
// is fixed by n, the grid and the block, and does not depend on which block is the last: the same bits in every run.
#pragma once

namespace fl {

// The sum of one value a thread over the block, the same in all its threads; blockDim.x a multiple of 32. Its two
// barriers also keep two sums apart that follow each other.
template <typename T>
__device__ T block_sum(T v)
{
    __shared__ __align__(16) unsigned char room[32 * sizeof(T)];
    T* part = reinterpret_cast<T*>(room);
    for (int offset = 16; offset > 0; offset /= 2) v = v + shuffle_xor(v, offset);
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    T total = part[0];
    for (int w = 1; w < int(blockDim.x) / 32; ++w) total += part[w];
    return total;
}

__device__ inline double block_max(double v)
{
    __shared__ double part[32];
    for (int offset = 16; offset > 0; offset /= 2) v = fmax(v, shuffle_xor(v, offset));
    __syncthreads();
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    for (int w = 0; w < int(blockDim.x) / 32; ++w) v = fmax(v, part[w]);
    return v;
}

// values: their sums over the threads before this one; totals: over all. THREADS = blockDim.x. All threads call it.
template <int THREADS, typename T, int COUNT>
__device__ inline void block_scan(T (&values)[COUNT], T (&totals)[COUNT])
{
    __shared__ T sums[THREADS / 32][COUNT];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads();
    for (int c = 0; c < COUNT; ++c) {
        const T mine = values[c];
        T sum = mine;
        for (int d = 1; d < 32; d *= 2) {
            const T other = __shfl_up_sync(ALL, sum, d);
            if (lane >= d) sum += other;
        }
        if (lane == 31) sums[warp][c] = sum;
        values[c] = sum - mine;
    }
    __syncthreads();
    for (int c = 0; c < COUNT; ++c) {
        totals[c] = 0;
        for (int w = 0; w < THREADS / 32; ++w) {
            if (w < warp) values[c] += sums[w][c];
            totals[c] += sums[w][c];
        }
    }
}
// The same of one value: its sum over the threads before this one.
template <int THREADS, typename T> __device__ inline T sum_before(T v, T& total)
{
    T values[1] = {v}, totals[1];
    block_scan<THREADS>(values, totals);
    total = totals[0];
    return values[0];
}

// Whether this block is the last of the grid to call this. All threads call it. By `peek`, the last block sees all that
// the other blocks wrote before: barriers and the fences of one thread make their writes visible. counter: 0 before a
// launch, and again after it.
__device__ inline bool last_block(unsigned* counter)
{
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        last = atomicInc(counter, gridDim.x - 1) == gridDim.x - 1;
        __threadfence();
    }
    __syncthreads();
    return last;
}

// In the last block: the sum of the sums of all blocks, the same in all its threads.
template <typename T>
__device__ T sum_of_blocks(const T* partial)
{
    T sum = T(0);
    for (unsigned b = threadIdx.x; b < gridDim.x; b += blockDim.x) sum += peek(partial + b);
    return block_sum(sum);
}

__device__ inline double square_of(double re, double im) { return re * re + im * im; }
template <typename T> __device__ inline double square_of(T a) { return square_of(double(real(a)), double(imag(a))); }

// In the last block: ||x||_2 from the blocks' sums of squares, without overflow or underflow where the norm is
// representable. Where the squares leave the range of double precision, this block alone forms them again, relative to
// the largest magnitude.
template <typename T>
__device__ double norm_of_blocks(const double* partial, long long n, const T* x)
{
    const double square = sum_of_blocks(partial);
    if ((square > 1e-270 && square < 1e270) || square != square) return sqrt(square);
    double largest = 0;
    for (long long i = threadIdx.x; i < n; i += blockDim.x) {
        const T v = peek(x + i);
        largest = fmax(largest, fmax(fabs(double(real(v))), fabs(double(imag(v)))));
    }
    largest = block_max(largest);
    if (largest == 0 || !is_finite(largest)) return largest;
    double sum = 0;
    for (long long i = threadIdx.x; i < n; i += blockDim.x) {
        const T v = peek(x + i);
        sum += square_of(double(real(v)) / largest, double(imag(v)) / largest);
    }
    return largest * sqrt(block_sum(sum));
}

}  // namespace fl
