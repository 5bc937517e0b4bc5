// One pass over a CSR matrix: is it sound, and where is the diagonal? A thread a row. Twin: kernels/reference.py:inspect.
// found (six counters, set by the launcher): 0 smallest row with a column outside 0..n-1 or row
// pointers that descend, leave the arrays or do not span them, 1 pairs out of order,
// 2 entries that are not finite, 3 smallest such row, 4 rows without a diagonal entry, 5 smallest such row.
// Sums and minima of integers by atomics: the same in every run. Launch: gridDim.x * blockDim.x >= n.
#include "finelu.cuh"

using namespace fl;

template <typename T, typename I>
__global__ void inspect(I n, I nnz, const I* __restrict__ indptr, const I* __restrict__ indices, const T* __restrict__ data, I* diag,
                        unsigned long long* found)
{
    const I i = I(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    I place = -1, before = -1;
    unsigned long long unsorted = 0, strange = 0;
    const I start = indptr[i], stop = indptr[i + 1];
    bool corrupt = start < 0 || stop < start || stop > nnz || (i == 0 && (start != 0 || indptr[n] != nnz));
    for (I p = start; p < stop && !corrupt; ++p) {
        const I j = indices[p];
        corrupt = j < 0 || j >= n;
        unsorted += j <= before;
        before = j;
        strange += !is_finite(data[p]);
        if (j == i) place = p;
    }
    diag[i] = place;
    if (corrupt) atomicMin(found + 0, (unsigned long long)i);
    if (unsorted) atomicAdd(found + 1, unsorted);
    if (strange) {
        atomicAdd(found + 2, strange);
        atomicMin(found + 3, (unsigned long long)i);
    }
    if (place < 0) {
        atomicAdd(found + 4, 1ull);
        atomicMin(found + 5, (unsigned long long)i);
    }
}
