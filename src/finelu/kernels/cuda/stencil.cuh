// Cells of an I x J x K grid, the places of their blocks and their neighbours, and waiting for those; for the kernels
// of stencil.cu and stencil_warps.cu. Needs finelu.cuh.
#pragma once

namespace fl {

// Axis 0 is k, 1 is j, 2 is i. The block towards the cell before along an axis is kind `axis`, towards the one after 6
// - axis.
constexpr int AXES = 3, DELTA = 3, KINDS = 7;

struct Cell {
    int c, at[AXES], size[AXES], stride[AXES];
    __device__ Cell(int c, int I, int J, int K)
        : c(c), at{c % K, c / K % J, c / K / J}, size{K, J, I}, stride{1, K, J * K} {}
    __device__ Cell(int c, int k, int j, int i, int I, int J, int K)
        : c(c), at{k, j, i}, size{K, J, I}, stride{1, K, J * K} {}
    // the cell one step (1 or -1) along an axis, or -1 outside of the grid
    __device__ int neighbour(int axis, int step) const
    {
        const int to = at[axis] + step;
        return c < 0 || to < 0 || to >= size[axis] ? -1 : c + step * stride[axis];
    }
    __device__ int neighbour_around(int axis, int step) const  // the same with the ends joined
    {
        const int to = at[axis] + step, joined = to < 0 ? size[axis] - 1 : to == size[axis] ? 0 : to;
        return c + (joined - at[axis]) * stride[axis];
    }
    // the cell of which block `kind` of this one is a coefficient, or -1; `periodic` as in stencil_residual
    __device__ int stencil(int kind, int periodic) const
    {
        const int axis = kind < DELTA ? kind : 6 - kind, step = kind < DELTA ? -1 : 1;
        return kind == DELTA ? c : periodic >> axis & 1 ? neighbour_around(axis, step) : neighbour(axis, step);
    }
    // a cell `far` hyperplanes before (step -1) or after (1) on which this one depends, or -1 if there is none
    __device__ int ancestor(int step, int far) const
    {
        int found = c;
#pragma unroll
        for (int a = 0; a < AXES; ++a) {
            const int room = step < 0 ? at[a] : size[a] - 1 - at[a], moved = far < room ? far : room;
            found += step * moved * stride[a];
            far -= moved;
        }
        return c < 0 || far > 0 ? -1 : found;
    }
};

// one item (q, u, v) of count x rows x columns after the other
template <typename F> __device__ inline void for_items(int count, int rows, int columns, F f)
{
    const size_t items = size_t(count) * rows * columns, threads = size_t(gridDim.x) * blockDim.x;
    for (size_t t = size_t(blockIdx.x) * blockDim.x + threadIdx.x; t < items; t += threads)
        f(int(t / columns / rows), int(t / columns % rows), int(t % columns));
}

// Cells far from their turn spare the L2 cache: one thread of a cell polls one value of a cell FAR hyperplanes away;
// afterwards all threads poll for their own values.
constexpr int FAR = 2;

}  // namespace fl
