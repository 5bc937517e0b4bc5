// Block matrices of any pattern (BSR): residual, block ILU(0) and its solves, each one launch; inverses of many blocks
// and products with them. Twins: kernels/reference/blocks.py. Threads, products and inverses: blocks.cuh.
//
// data (nb, N, N): block p of block row i, indptr[i] <= p < indptr[i + 1], stands in block column indices[p],
// ascending; diag[i] is the place of the diagonal block. Rows are taken in level order (`order`, each level filled up
// with -1 to the rows of a warp, the end to those of a thread block), so a row waits for other warps only, never for
// its own; thread blocks take their places by ticket(), so each waits for some that have begun. That holds for every
// pattern: a level has only rows of lower levels to wait for, and rows without dependencies do not wait.
//
// lu is factored in place, so its values cannot say whether they are the factors' or still A's. Blocks that other rows
// need go through a second array `fresh`, where every value is its own ready flag (see finelu.cuh): the inverse of the
// diagonal block, and the upper blocks that the elimination changes. A flag for each row instead would add two fences
// to the latency of every level. Upper blocks that no update reaches (all of them on a 7-point stencil) are read from
// lu at any time.
//
// Where rows meet is looked up once a pattern (`count_intersections`, `write_intersections`): the program of row i is,
// for each lower block k, FINISH (L_ik = A_ik U_kk^-1), then an update of A_ij for each j > k where rows i and k both
// store a block.
//
// Bytes a row, w = bytes of a value, and the bound with 4 TB/s, of a 7-point matrix in float64 at 65^3 and n = 6
// (274625 rows, 193 levels):
//   factorization  7 n^2 w read, 3 n^2 w of L and n^2 w of the inverse written      0.87 GB  0.22 ms
//                  fresh: set pending, written, read 3 times from L2: 2 n^2 w       0.16 GB  0.04 ms
//                  pattern, order, program: about 110 bytes                         0.03 GB  0.01 ms
//   solve          7 n^2 w + O(n), 60 bytes of pattern and order                     0.57 GB  0.15 ms
//   residual       7 n^2 w + 3 n w + 32                                              0.60 GB  0.15 ms
// Latency: a level costs an L2 round trip (about 0.7 us) and the arithmetic of a row, about 1 us in a sweep of the
// solve, 2 us in the factorization (six products of blocks, n steps of Gauss-Jordan): 193 levels are 0.4 ms, and 0.2 ms
// for each sweep. These are estimates, not measurements.
#include "runtime/finelu.cuh"
#include "blocks.cuh"

using namespace fl;

enum Trans { PLAIN, TRANSPOSED, ADJOINT };
enum Result { RESIDUAL, ADD, SUBTRACT };  // of bsr_product
constexpr int FINISH = -1, DIAGONAL = -2;  // else the update of the changing block with that number, see bsr_factor
constexpr int FAR = 2;                     // levels from its turn from where on a row polls for all that it needs
constexpr int CHUNK = 4;                   // blocks of a row that solve and residual ask for at the same time

// Calls f(place in row i, place in row k, how many before it) for each j > k that rows i and k both store, j ascending;
// at(p) is a lower block of row i, k its column. The lanes of a warp share the shorter of the two lists, and search the
// longer one. Returns how many there are.
template <typename I, typename F>
__device__ inline int intersections(I p, I end_i, I begin_k, I end_k, const I* __restrict__ indices, F f)
{
    const bool by_reference = end_k - begin_k <= end_i - p - 1;  // row k is the shorter one
    const I first = by_reference ? begin_k : p + 1, stop = by_reference ? end_k : end_i;
    int found = 0;
    for (I base = first; base < stop; base += 32) {
        const I mine = base + I(threadIdx.x % 32);
        I other = -1;
        if (mine < stop)
            other = by_reference ? find(indices, p + 1, end_i, indices[mine])
                                 : find(indices, begin_k, end_k, indices[mine]);
        const unsigned all = __ballot_sync(0xffffffffu, other >= 0);
        if (other >= 0) f(by_reference ? other : mine, by_reference ? mine : other, found + votes_before(all));
        found += __popc(all);
    }
    return found;
}

// length[p] = the steps of lower block p in the program of its row, 0 for other blocks; changed[i] (0 before the
// launch) = how far behind the diagonal the last upper block is that an update reaches. A warp a block.
// Launch: gridDim.x * blockDim.x / 32 >= nb, blockDim.x a multiple of 32.
template <typename I>
__global__ void count_intersections(I rows, const I* __restrict__ indptr, const I* __restrict__ indices,
                               const I* __restrict__ diag, int* length, int* changed)
{
    const I p = own_row<I, 32>();
    if (p >= indptr[rows]) return;
    const I i = list_of(indptr, rows, p), centre = diag[i];
    int steps = 0;
    if (p < centre) {
        const I k = indices[p];
        int last = 0;
        steps = 1 + intersections(p, indptr[i + 1], diag[k] + 1, indptr[k + 1], indices,
                             [&](I target, I, int) { last = max(last, int(target - centre)); });
        if (last > 0) atomicMax(changed + i, last);
    }
    if (threadIdx.x % 32 == 0) length[p] = steps;
}

// codes and operands of the programs: FINISH and ~(place of row k's inverse in fresh), then for each update which block
// it changes and where U_kj is: a place of lu, or ~ a place of fresh. ends[p] = steps up to and with block p;
// fresh_start[i] = where row i begins in fresh. Launch: as count_intersections.
template <typename I>
__global__ void write_intersections(I rows, const I* __restrict__ indptr, const I* __restrict__ indices,
                               const I* __restrict__ diag, const int* __restrict__ length,
                               const long long* __restrict__ ends, const long long* __restrict__ fresh_start,
                               int* codes, I* operands)
{
    const I p = own_row<I, 32>();
    if (p >= indptr[rows] || length[p] == 0) return;
    const I i = list_of(indptr, rows, p), lo = indptr[i], centre = diag[i], k = indices[p];
    const long long at = ends[p] - length[p], fresh_k = fresh_start[k];
    const I changed_k = I(fresh_start[k + 1] - fresh_k - 1);
    if (threadIdx.x % 32 == 0) {
        codes[at] = FINISH;
        operands[at] = I(~fresh_k);
    }
    intersections(p, indptr[i + 1], diag[k] + 1, indptr[k + 1], indices, [&](I target, I reference, int number) {
        const I behind = reference - diag[k];
        codes[at + 1 + number] = target == centre ? DIAGONAL : int(target - lo) - (target > centre);
        operands[at + 1 + number] = behind > changed_k ? reference : I(~(fresh_k + behind));
    });
}

// parent[i] = a row of the level before that row i waits for, -1 for a row of the first level. A thread a row.
template <typename I>
__global__ void parents(I rows, const I* __restrict__ begin, const I* __restrict__ end, const I* __restrict__ indices,
                        const int* __restrict__ level, int* parent)
{
    const I i = I(own_item());
    if (i >= rows) return;
    int found = -1;
    for (I p = begin[i]; p < end[i] && found < 0; ++p)
        if (level[indices[p]] == level[i] - 1) found = int(indices[p]);
    parent[i] = found;
}

// early[q] = the row whose end tells row order[q] that its turn comes: FAR levels before it, and one more for each
// batch of `batch` steps but the first, since a long row has work to do before its last dependency. steps: where the
// rows of the program begin, or null for the blocks of the triangle. -1 if there is none. A thread a place.
template <typename I>
__global__ void early_rows(int places, const int* __restrict__ order, const I* __restrict__ begin,
                           const I* __restrict__ end, const long long* __restrict__ steps, int batch,
                           const int* __restrict__ parent, int* early)
{
    const int q = int(own_item());
    if (q >= places) return;
    int at = order[q];
    if (at >= 0) {
        const long long count = steps == nullptr ? (long long)(end[at] - begin[at]) : steps[at + 1] - steps[at];
        for (long long far = FAR + (count > 0 ? (count - 1) / batch : 0); far > 0 && at >= 0; --far) at = parent[at];
    }
    early[q] = at;
}

// ILU(0), in place: twin bsr_ilu0_factor. A team a row (see blocks.cuh); steps of the program in batches of BATCH,
// whose operands are asked for all at once and awaited together. The blocks of row i that change (lower ones, then
// upper ones as far as fresh has room for them; numbered without the diagonal) are in shared memory up to number
// `room`, else in lu; the diagonal one is in registers. Each element is changed by its owner alone, k ascending: the
// result is the same in every run and for every `room`. Finished L and U go to lu, which no other row reads there; what
// others read is in fresh. fresh, bad[0] and counter are pending (0xff) before the launch. bad[0] receives the smallest
// row with a value that is not finite or a pivot that is zero or without a finite reciprocal; a row depends on smaller
// rows only, so that one is never the consequence of another. Elimination goes on with NaN so that no row waits for
// ever. Launch: gridDim.x = places of order / ROWS, blockDim.x = BLOCK, shared memory ROWS ((room + BATCH + 1) N^2 + 4
// N) sizeof(T).
template <typename T, typename I, int N, int M, int BATCH, bool PIVOTING>
__global__ void __launch_bounds__(Team<N, M>::BLOCK)
bsr_factor(const int* __restrict__ order, const int* __restrict__ early, const I* __restrict__ indptr,
           const I* __restrict__ diag, const long long* __restrict__ program, const int* __restrict__ codes,
           const I* __restrict__ operands, const long long* __restrict__ fresh_start, int room, T* lu, T* fresh,
           unsigned* bad, unsigned* counter)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    using Row = Team<N, M>;
    constexpr int NN = N * N;
    const Row team;
    const size_t place = size_t(ticket(counter)) * Row::ROWS + team.slot;
    if (team.idle) return;
    const int i = order[place];
    if (i < 0) return;
    T* const kept = reinterpret_cast<T*>(shared_bytes) + size_t(team.slot) * ((size_t(room) + BATCH + 1) * NN + 4 * N);
    T* const staged = kept + size_t(room) * NN;
    T* const current = staged + BATCH * NN;  // L_ik
    T* const cross = current + NN;

    const I lo = indptr[i], below = diag[i] - lo;
    const long long fresh_i = fresh_start[i], last = program[i + 1];
    const I above = I(fresh_start[i + 1] - fresh_i - 1);
    T* const row = lu + size_t(lo) * NN + team.t;  // own elements of the row's first block
    const auto in_lu = [&](I number) { return row + size_t(number < below ? number : number + 1) * NN; };
    for (I number = 0; number < below + above && number < room; ++number)
#pragma unroll
        for (int m = 0; m < M; ++m)
            if (team.owns(m)) copy_to_shared(kept + number * NN + team.element(m), in_lu(number) + Row::THREADS * m);
    T centre[M], term[M];
#pragma unroll
    for (int m = 0; m < M; ++m) centre[m] = team.owns(m) ? row[size_t(below) * NN + Row::THREADS * m] : T(0);

    bool good = true, first = true;
    I s = 0;  // the lower block in work
    int now = below > 0 ? codes[program[i]] : 0;
    for (long long step = program[i]; step < last; step += BATCH) {
        const T* from[BATCH];
        T value[BATCH * M];
        unsigned original = 0;  // operands that are there from the beginning
#pragma unroll
        for (int b = 0; b < BATCH; ++b) {
            const bool there = step + b < last;
            const I operand = there ? operands[step + b] : 0;
            const T* const block = operand < 0 ? fresh + size_t(~operand) * NN : lu + size_t(operand) * NN;
            from[b] = block + team.t;  // a valid address in any case
            if (operand >= 0) original |= 1u << b;
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b)
#pragma unroll
            for (int m = 0; m < M; ++m)
                value[b * M + m] = step + b < last && team.owns(m) ? peek(from[b] + Row::THREADS * m) : T(0);
        if (first) {
            const int turn = early[place];
            wait_for_turn(team, turn >= 0, fresh + size_t(fresh_start[turn < 0 ? 0 : turn]) * NN);
        }
#pragma unroll
        for (int b = 0; b < BATCH; ++b)
#pragma unroll
            for (int m = 0; m < M; ++m)
                if (original >> b & 1u) settle(value[b * M + m]);
        await_each(value, [&](int e) { return peek(from[e / M] + Row::THREADS * (e % M)); });
        if (first) wait_for_copies();
        first = false;
        team.sync();  // no thread reads the batch before any more
#pragma unroll
        for (int b = 0; b < BATCH; ++b)
#pragma unroll
            for (int m = 0; m < M; ++m)
                if (team.owns(m)) staged[b * NN + team.element(m)] = value[b * M + m];
        team.sync();
        const int steps = last - step < BATCH ? int(last - step) : BATCH;
        // not unrolled: the instruction cache is small, and teams are at different steps
#pragma unroll 1
        for (int b = 0; b < steps; ++b) {
            const T* const operand = staged + b * NN;
            const int code = now;
            if (step + b + 1 < last) now = codes[step + b + 1];
            if (code == FINISH) {
                if (b > 0) team.sync();  // the updates of A_ik by their owners
                if (s < room) product(team, kept + s * NN, operand, term);
                else product(team, lu + size_t(lo + s) * NN, operand, term);
                team.sync();  // all have read A_ik, and L_i,k-1
#pragma unroll
                for (int m = 0; m < M; ++m) {
                    if (!team.owns(m)) continue;
                    good = good && is_finite(term[m]);
                    current[team.element(m)] = term[m];
                    row[size_t(s) * NN + Row::THREADS * m] = term[m];
                }
                team.sync();
                ++s;
                continue;
            }
            product(team, current, operand, term);
            if (code == DIAGONAL) {
#pragma unroll
                for (int m = 0; m < M; ++m) centre[m] -= term[m];
            } else if (code < room) {
#pragma unroll
                for (int m = 0; m < M; ++m)
                    if (team.owns(m)) kept[code * NN + team.element(m)] -= term[m];
            } else {
                T* const target = in_lu(code);
#pragma unroll
                for (int m = 0; m < M; ++m)
                    if (team.owns(m)) target[Row::THREADS * m] -= term[m];
            }
        }
    }
    for (I behind = 1; behind <= above; ++behind) {
        const I number = below + behind - 1;
        T* const to = row + size_t(below + behind) * NN;
#pragma unroll
        for (int m = 0; m < M; ++m) {
            if (!team.owns(m)) continue;
            const T value = number < room ? kept[number * NN + team.element(m)] : to[Row::THREADS * m];
            good = good && is_finite(value);
            post(fresh + size_t(fresh_i + behind) * NN + team.element(m), value);
            if (number < room) to[Row::THREADS * m] = value;
        }
    }
    int to_u[M], to_v;
    good = invert_in_place<PIVOTING, N, 0>(team, centre, cross, to_u, to_v) && good;
#pragma unroll
    for (int m = 0; m < M; ++m) {
        if (!team.owns(m)) continue;
        const int to = to_u[m] * N + to_v;
        post(fresh + size_t(fresh_i) * NN + to, centre[m]);
        lu[size_t(lo + below) * NN + to] = centre[m];
        good = good && is_finite(centre[m]);
    }
    if (!good) atomicMin(bad, unsigned(i));
}

// The own part of sum_j B_ij x_j over places first <= p < stop: PLAIN sum[m] is of row u of the result, with column v;
// else B_ij^T or B_ij^H is taken, and sum[0] is of row v of the result, over the own rows of the blocks. Blocks lie at
// source[p], or at p if source is null, and are asked for one chunk ahead; `begun()` is called after the first, `look`
// gives the element of x, or a pending value if it is not there yet.
template <int TRANS, typename T, typename I, int N, int M, typename Begun, typename Look>
__device__ inline void row_times(const Team<N, M>& team, I first, I stop, const I* __restrict__ indices,
                                 const I* __restrict__ source, const T* __restrict__ data, Begun begun, Look look,
                                 T (&sum)[M])
{
    using Row = Team<N, M>;
    constexpr int X = TRANS == PLAIN ? 1 : M;  // elements of x_j a thread
    struct Chunk {
        I column[CHUNK];
        T block[CHUNK][M];
    };
    const auto fetch = [&](Chunk& chunk, I p) {
        I at[CHUNK];
#pragma unroll
        for (int c = 0; c < CHUNK; ++c) {
            const bool there = p + c < stop;
            chunk.column[c] = there ? indices[p + c] : I(-1);
            at[c] = !there ? I(0) : source == nullptr ? p + c : source[p + c];
        }
#pragma unroll
        for (int c = 0; c < CHUNK; ++c)
#pragma unroll
            for (int m = 0; m < M; ++m)
                chunk.block[c][m] =
                    chunk.column[c] >= 0 && team.owns(m) ? data[size_t(at[c]) * Row::NN + team.element(m)] : T(0);
    };
#pragma unroll
    for (int m = 0; m < M; ++m) sum[m] = T(0);
    Chunk now, next;
    fetch(now, first);
    begun();
    for (I p = first; p < stop; p += CHUNK) {
        T x[CHUNK * X];
#pragma unroll
        for (int c = 0; c < CHUNK; ++c)
#pragma unroll
            for (int m = 0; m < X; ++m) {
                x[c * X + m] = T(0);
                if (now.column[c] >= 0 && (TRANS == PLAIN || team.owns(m)))
                    x[c * X + m] = look(now.column[c], TRANS == PLAIN ? team.v : team.row(m));
            }
        if (p + CHUNK < stop) fetch(next, p + CHUNK);
        await_each(x, [&](int e) { return look(now.column[e / X], TRANS == PLAIN ? team.v : team.row(e % X)); });
#pragma unroll
        for (int c = 0; c < CHUNK; ++c)
#pragma unroll
            for (int m = 0; m < M; ++m) {
                if (TRANS == PLAIN) sum[m] += now.block[c][m] * x[c * X];
                else sum[0] += (TRANS == ADJOINT ? conj(now.block[c][m]) : now.block[c][m]) * x[c * X + m];
            }
        now = next;
    }
}

// The sum over columns or rows of the own parts of row_times, or of products like it, in a fixed order; part is N^2 of
// shared memory. Thread t < N gets element t of the result; the barrier before part is used again is the caller's.
template <int TRANS, int N, int M, typename T>
__device__ inline T gathered(const Team<N, M>& team, const T (&sum)[M], T* part)
{
#pragma unroll
    for (int m = 0; m < (TRANS == PLAIN ? M : 1); ++m)
        if (team.owns(m)) part[team.element(m)] = sum[m];
    team.sync();
    if (team.t >= N) return T(0);
    return TRANS == PLAIN ? sum_of(part + team.t * N, N, 1) : sum_of(part + team.t, Team<N, M>::S, N);
}

// the same of block z, block^T z or block^H z: `block` the own elements, z in shared memory
template <int TRANS, int N, int M, typename T>
__device__ inline T block_times(const Team<N, M>& team, const T (&block)[M], const T* z, T* part)
{
    T sum[M];
    sum[0] = T(0);
#pragma unroll
    for (int m = 0; m < M; ++m) {
        if (TRANS == PLAIN) sum[m] = block[m] * z[team.v];
        else if (team.owns(m)) sum[0] += (TRANS == ADJOINT ? conj(block[m]) : block[m]) * z[team.row(m)];
    }
    return gathered<TRANS>(team, sum, part);
}

// M x = b, M^T x = b or M^H x = b: twin bsr_ilu0_solve; both sweeps in one launch, the thread blocks of the backward
// sweep after those of the forward sweep in the order of tickets. Thread (u, v) owns elements of each block, and loads
// those of its first CHUNK blocks before it waits. source: null for PLAIN. n_forward: thread blocks of the forward
// sweep, whose order is order_lower; the other sweep's is order_upper. y (rows N) is scratch; y, x and counter are
// pending before the launch; b, y and x do not overlap. Sums are taken in a fixed order: the result is the same in
// every run. Launch: gridDim.x = n_forward + places of order_upper / ROWS, blockDim.x = BLOCK, shared memory ROWS (N^2
// + N) sizeof(T).
template <typename T, typename I, int N, int M, int TRANS>
__global__ void __launch_bounds__(Team<N, M>::BLOCK)
bsr_solve(int n_forward, const int* __restrict__ order_lower, const int* __restrict__ early_lower,
          const int* __restrict__ order_upper, const int* __restrict__ early_upper, const I* __restrict__ indptr,
          const I* __restrict__ indices, const I* __restrict__ source, const I* __restrict__ diag,
          const T* __restrict__ lu, const T* __restrict__ b, T* y, T* x, unsigned* counter)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    using Row = Team<N, M>;
    const Row team;
    const int number = int(ticket(counter));
    const bool backward = number >= n_forward;
    const size_t place = size_t(backward ? number - n_forward : number) * Row::ROWS + team.slot;
    if (team.idle) return;
    const int i = (backward ? order_upper : order_lower)[place];
    if (i < 0) return;
    T* const part = reinterpret_cast<T*>(shared_bytes) + team.slot * (Row::NN + N);
    T* const z = part + Row::NN;

    const I centre = diag[i];
    T* const out = backward ? x : y;
    const bool divides = backward == (TRANS == PLAIN);  // this sweep has the diagonal blocks
    T inverse[M], sum[M], rhs = T(0);
    const T* const stored = lu + size_t(source == nullptr ? centre : source[centre]) * Row::NN;
#pragma unroll
    for (int m = 0; m < M; ++m) inverse[m] = divides && team.owns(m) ? stored[team.element(m)] : T(0);
    if (team.t < N) rhs = backward ? peek(y + size_t(i) * N + team.t) : b[size_t(i) * N + team.t];
    const int turn = (backward ? early_upper : early_lower)[place];
    row_times<TRANS>(
        team, backward ? centre + 1 : indptr[i], backward ? indptr[i + 1] : centre, indices, source, lu,
        [&]() { wait_for_turn(team, turn >= 0, out + size_t(turn < 0 ? 0 : turn) * N); },
        [&](I j, int w) { return peek(out + size_t(j) * N + w); }, sum);
    T value = gathered<TRANS>(team, sum, part);
    if (team.t < N) {
        if (backward)
            while (pending(rhs)) rhs = peek(y + size_t(i) * N + team.t);
        value = rhs - value;
    }
    if (divides) {
        if (team.t < N) z[team.t] = value;
        team.sync();
        value = block_times<TRANS>(team, inverse, z, part);
    }
    if (team.t < N) post(out + size_t(i) * N + team.t, value);
}

// RESIDUAL: out = b - A x, or A x if b is null; out may be b, but not x; twin bsr_residual. ADD, SUBTRACT: out_rows[i]
// += (A x)_i, or -=, rows distinct; twin bsr_accumulate. A team a row of A in natural order, no dependencies, so the
// order of the sums is fixed. Launch: gridDim.x * ROWS >= count, blockDim.x = BLOCK, shared memory ROWS N^2 sizeof(T).
template <typename T, typename I, int N, int M, int RESULT>
__global__ void __launch_bounds__(Team<N, M>::BLOCK)
bsr_product(I count, const long long* __restrict__ rows, const I* __restrict__ indptr, const I* __restrict__ indices,
            const T* __restrict__ data, const T* __restrict__ x, const T* b, T* out)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    using Row = Team<N, M>;
    const Row team;
    const size_t i = size_t(blockIdx.x) * Row::ROWS + team.slot;
    if (team.idle || i >= size_t(count)) return;
    T sum[M];
    row_times<PLAIN>(
        team, indptr[i], indptr[i + 1], indices, static_cast<const I*>(nullptr), data, []() {},
        [&](I j, int w) {
            T value = x[size_t(j) * N + w];
            settle(value);
            return value;
        },
        sum);
    const T value = gathered<PLAIN>(team, sum, reinterpret_cast<T*>(shared_bytes) + team.slot * Row::NN);
    if (team.t >= N) return;
    T* const own = out + (RESULT == RESIDUAL ? i : size_t(rows[i])) * N + team.t;
    if (RESULT == RESIDUAL) *own = b == nullptr ? value : b[i * N + team.t] - value;
    else *own = RESULT == SUBTRACT ? *own - value : *own + value;
}

// out[i] = blocks[i]^-1: twin invert_blocks. out may be blocks. bad[0] (pending before the launch) as in bsr_factor.
// Launch: gridDim.x * ROWS >= count, blockDim.x = BLOCK, shared memory ROWS 4 N sizeof(T).
template <typename T, int N, int M, bool PIVOTING>
__global__ void __launch_bounds__(Team<N, M>::BLOCK)
invert_blocks(long long count, const T* blocks, T* out, unsigned* bad)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    using Row = Team<N, M>;
    const Row team;
    const long long i = (long long)blockIdx.x * Row::ROWS + team.slot;
    if (team.idle || i >= count) return;
    T mine[M];
#pragma unroll
    for (int m = 0; m < M; ++m) mine[m] = team.owns(m) ? blocks[i * Row::NN + team.element(m)] : T(0);
    T* const cross = reinterpret_cast<T*>(shared_bytes) + team.slot * 4 * N;
    int to_u[M], to_v;
    bool good = invert_in_place<PIVOTING, N, 0>(team, mine, cross, to_u, to_v);
#pragma unroll
    for (int m = 0; m < M; ++m) {
        if (!team.owns(m)) continue;
        out[i * Row::NN + to_u[m] * N + to_v] = mine[m];
        good = good && is_finite(mine[m]);
    }
    if (!good) atomicMin(bad, unsigned(i));
}

// out_i = B_i x_i, B_i^T x_i or B_i^H x_i: twin blocks_times. x and out are (count N, columns), rows contiguous; a block
// is read once for all columns, each of which has the bits that it has alone. out may be x. Launch: gridDim.x * ROWS >=
// count, blockDim.x = BLOCK, shared memory ROWS (N^2 + N) sizeof(T).
template <typename T, int N, int M, int TRANS>
__global__ void __launch_bounds__(Team<N, M>::BLOCK)
blocks_times(long long count, int columns, const T* __restrict__ blocks, const T* x, T* out)
{
    extern __shared__ __align__(16) unsigned char shared_bytes[];
    using Row = Team<N, M>;
    const Row team;
    const long long i = (long long)blockIdx.x * Row::ROWS + team.slot;
    if (team.idle || i >= count) return;
    T* const part = reinterpret_cast<T*>(shared_bytes) + team.slot * (Row::NN + N);
    T* const z = part + Row::NN;
    T block[M];
#pragma unroll
    for (int m = 0; m < M; ++m) block[m] = team.owns(m) ? blocks[i * Row::NN + team.element(m)] : T(0);
    for (int c = 0; c < columns; ++c) {
        const long long place = (i * N + team.t) * columns + c;
        if (team.t < N) z[team.t] = x[place];
        team.sync();
        const T value = block_times<TRANS>(team, block, z, part);
        if (team.t < N) out[place] = value;
        team.sync();  // before z and part hold the next column
    }
}
