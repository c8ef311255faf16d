// XAttention's softmax over chunks of keys: statistics of each row, their merge, sums of blocks.
//
// What a row sees is a count. With diagonal = chunk_start - kv_offset, row i sees the keys at hand
// up to diagonal + i (R-X3); where nothing is masked, the diagonal lies past the last key. Nothing
// else is ever read (R-X6).
//
// For statistics a warp takes a row: its lanes read neighbouring keys, and no barrier is needed.
// For sums of blocks a thread takes a column and walks down the rows of a block of queries, whose
// statistics lie in shared memory: threads read neighbouring keys, and a mask is nothing but where
// a walk begins. The order of a sum is that of its terms, whichever thread is first.
//
// All is fp32 and in base e (R-X2), and rounded once, where it is stored. `expf` is within 2 ulp,
// as declared (R-X14), unless a compiler is told to use fast mathematics. Addresses are computed in
// 64 bits (R-X15).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kLoads = 8;  // scores that a lane has under way at a time
constexpr int kRows = 64;  // rows whose statistics are in shared memory at a time
constexpr unsigned kLanes = 0xffffffff;
constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);

using Wide = long long;

// --- one row -------------------------------------------------------------------------------------

// x. Its product is not to be fused with what is subtracted from it: at a row's maximum x - m is 0.
template <class T>
__device__ float logit(T score, float scale) {
    return __fmul_rn(static_cast<float>(score), scale);
}

// What is subtracted from every x: the maximum. Of -inf alone there is none, and no weight either.
__device__ float base(float m) { return m == -kInfinity ? 0.0f : m; }

// How many of `keys` a row sees, the last of them at `last`.
__device__ int seen(Wide last, int keys) {
    return static_cast<int>(max(min(last + 1, Wide{keys}), Wide{0}));
}

__device__ float warp_max(float x) {
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2) x = fmaxf(x, __shfl_xor_sync(kLanes, x, bits));
    return x;
}

__device__ float warp_sum(float x) {
#pragma unroll
    for (int bits = 16; bits > 0; bits /= 2) x += __shfl_xor_sync(kLanes, x, bits);
    return x;
}

struct Statistics {
    float m, l;
};

// m = max x and l = sum exp(x - m) of the first `keys` of a row, by a warp and for all its lanes;
// -inf and 0 of none (R-X4). A maximum drops NaN, so that one shows in l, and is in both at last.
template <class T>
__device__ Statistics row_statistics(const T* row, Wide column_stride, int keys, float scale) {
    const int lane = threadIdx.x % 32;
    const T* score = row + lane * column_stride;
    float m = -kInfinity, l = 0.0f;
    for (int j = lane; j < keys + lane; j += 32 * kLoads, score += 32 * kLoads * column_stride) {
        const float m_before = m;
        float x[kLoads];
#pragma unroll
        for (int load = 0; load < kLoads; ++load) {
            const bool exists = j + 32 * load < keys;
            x[load] = exists ? logit(score[32 * load * column_stride], scale) : -kInfinity;
            m = fmaxf(m, x[load]);
        }
        l *= expf(m_before - base(m));
#pragma unroll
        for (int load = 0; load < kLoads; ++load) l += expf(x[load] - base(m));
    }
    const float m_lane = m;
    m = warp_max(m);
    l = warp_sum(l * expf(m_lane - base(m)));
    return {l == l ? m : l, l};
}

// --- a block of queries --------------------------------------------------------------------------

// Rows of one head; row 0 is the first of them.
template <class T>
struct Queries {
    const T* scores;
    Wide row_stride, column_stride;
    const float *m, *l;
    Wide m_stride, l_stride;
    int rows;  // that count: the ones after them are padding (R-X7)
    Wide diagonal;
    float scale;
};

// What makes a weight of an x: exp(x - m) / l, or 0 in a row without mass (R-X4). l is at least 1
// otherwise, for its maximum has weight 1, and to multiply by its inverse is as good.
struct __align__(8) Weighing {
    float m, inverse;

    __device__ float weight(float x) const {
        return expf(inverse == 0.0f ? -kInfinity : x - m) * inverse;
    }
};

// The weighing of a row; one that does not exist is a row without mass.
template <class T>
__device__ Weighing weighing_of(const Queries<T>& queries, int row, bool exists) {
    const float l = exists ? queries.l[row * queries.l_stride] : 0.0f;
    if (l == 0.0f) return {0.0f, 0.0f};
    return {queries.m[row * queries.m_stride], 1.0f / l};
}

// The sum of the weights in column j, of the `rows` rows from row `top` on.
template <class T>
__device__ float column_sum(
    const Queries<T>& queries, const Weighing* weighing, int top, int rows, Wide j) {
    // The first of them that sees j: j <= diagonal + row.
    int row = static_cast<int>(min(max(j - queries.diagonal - top, Wide{0}), Wide{kRows}));
    const T* score =
        queries.scores + (top + row) * queries.row_stride + j * queries.column_stride;
    float sum = 0.0f;
    for (; row < rows; row += kLoads, score += kLoads * queries.row_stride) {
        float x[kLoads];
#pragma unroll
        for (int load = 0; load < kLoads; ++load) {
            const bool exists = row + load < rows;
            x[load] = exists ? logit(score[load * queries.row_stride], queries.scale) : 0.0f;
        }
#pragma unroll
        for (int load = 0; load < kLoads; ++load) sum += weighing[row + load].weight(x[load]);
    }
    return sum;
}

// How many blocks of keys a block of threads sums at a time.
__device__ int blocks_a_tile(int block_size) { return max(kThreads / block_size, 1); }

// The sums of a tile of blocks of keys, from block `first` on, over a block of queries. By all
// threads; what any of them wrote before is there for all from the first barrier on.
template <class T>
__device__ void sum_tile(
    const Queries<T>& queries, int block_size, int first, int k_blocks, T* sums) {
    __shared__ Weighing weighing[kRows + kLoads];  // loads come in whole groups, past the last row
    __shared__ float partial[kThreads];
    const int width = min(block_size, kThreads);  // threads a block of keys
    const int blocks = min(blocks_a_tile(block_size), k_blocks - first);
    const int thread = threadIdx.x, block = thread / width;

    float sum = 0.0f;
    for (int top = 0; top < block_size; top += kRows) {
        const int rows = min(queries.rows - top, kRows);
        __syncthreads();
        if (thread < kRows + kLoads) {
            weighing[thread] = weighing_of(queries, top + thread, thread < rows);
        }
        __syncthreads();
        if (block >= blocks) continue;
        const Wide left = Wide{first + block} * block_size;
        for (int column = thread % width; column < block_size; column += width) {
            sum += column_sum(queries, weighing, top, rows, left + column);
        }
    }

    partial[thread] = sum;
    __syncthreads();
    for (int each = thread / 32; each < blocks; each += kWarps) {
        float total = 0.0f;
        for (int i = thread % 32; i < width; i += 32) total += partial[each * width + i];
        total = warp_sum(total);
        if (thread % 32 == 0) sums[first + each] = static_cast<T>(total);
    }
}

// --- the kernels ---------------------------------------------------------------------------------

// m_partial, l_partial: [batch, heads, q_len], contiguous; `rows` of them. A warp for each.
template <class T>
__global__ void __launch_bounds__(kThreads) partial_statistics(
    const T* __restrict__ scores, float* __restrict__ m_partial, float* __restrict__ l_partial,
    Wide rows, int heads, int q_len, int k_len, Wide batch_stride, Wide head_stride,
    Wide row_stride, Wide column_stride, Wide diagonal, float scale) {
    const Wide row = Wide{blockIdx.x} * kWarps + threadIdx.x / 32;
    if (row >= rows) return;
    const Wide i = row % q_len, head = row / q_len % heads, batch = row / q_len / heads;
    scores += batch * batch_stride + head * head_stride + i * row_stride;
    const auto [m, l] = row_statistics(scores, column_stride, seen(diagonal + i, k_len), scale);
    if (threadIdx.x % 32 == 0) {
        m_partial[row] = m;
        l_partial[row] = l;
    }
}

// m_chunks, l_chunks: [chunks, rows], m_global, l_global: [rows], all contiguous. A thread a row.
__global__ void __launch_bounds__(kThreads) merge_statistics(
    const float* __restrict__ m_chunks, const float* __restrict__ l_chunks,
    float* __restrict__ m_global, float* __restrict__ l_global, int chunks, Wide rows) {
    const Wide row = Wide{blockIdx.x} * kThreads + threadIdx.x;
    if (row >= rows) return;
    float m = -kInfinity, l = 0.0f;
    for (Wide chunk = 0; chunk < chunks; ++chunk) m = fmaxf(m, m_chunks[chunk * rows + row]);
    for (Wide chunk = 0; chunk < chunks; ++chunk) {
        l += l_chunks[chunk * rows + row] * expf(m_chunks[chunk * rows + row] - base(m));
    }
    m_global[row] = l == l ? m : l;
    l_global[row] = l;
}

// block_sums: [batch, heads, q_len / block_size, k_len / block_size], contiguous. A block of
// threads for each block of queries and each tile of blocks of keys. `real_rows`: those of a head
// that are no padding.
template <class T>
__global__ void __launch_bounds__(kThreads) normalised_block_sums(
    const T* __restrict__ scores, const float* __restrict__ m_global,
    const float* __restrict__ l_global, T* __restrict__ block_sums, int heads, int q_len, int k_len,
    Wide batch_stride, Wide head_stride, Wide row_stride, Wide column_stride, Wide m_batch_stride,
    Wide m_head_stride, Wide m_stride, Wide l_batch_stride, Wide l_head_stride, Wide l_stride,
    int block_size, int real_rows, Wide diagonal, float scale) {
    const int q_blocks = q_len / block_size, k_blocks = k_len / block_size;
    const int tiles = (k_blocks - 1) / blocks_a_tile(block_size) + 1;
    const int row_of_blocks = blockIdx.x / tiles;
    const int head = row_of_blocks / q_blocks % heads, batch = row_of_blocks / q_blocks / heads;
    const int i = row_of_blocks % q_blocks * block_size;
    const Queries<T> queries{
        scores + batch * batch_stride + head * head_stride + i * row_stride,
        row_stride,
        column_stride,
        m_global + batch * m_batch_stride + head * m_head_stride + i * m_stride,
        l_global + batch * l_batch_stride + head * l_head_stride + i * l_stride,
        m_stride,
        l_stride,
        seen(real_rows - 1 - i, block_size),
        diagonal + i,
        scale};
    const int first = static_cast<int>(blockIdx.x % tiles) * blocks_a_tile(block_size);
    block_sums += Wide{row_of_blocks} * k_blocks;
    sum_tile(queries, block_size, first, k_blocks, block_sums);
}

// block_sums as above. A block of threads for each block of queries: its warps share out the rows
// for their statistics, and then all sum tile after tile, of what may still be in the cache.
// m_rows, l_rows: room for statistics, [batch, heads, q_len], contiguous. Four blocks, or a
// compiler that hopes for five spills registers (sm_80).
template <class T>
__global__ void __launch_bounds__(kThreads, 4) one_pass_block_sums(
    const T* __restrict__ scores, float* m_rows, float* l_rows, T* __restrict__ block_sums,
    int heads, int q_len, int k_len, Wide batch_stride, Wide head_stride, Wide row_stride,
    Wide column_stride, int block_size, int real_rows, Wide diagonal, float scale) {
    const int q_blocks = q_len / block_size, k_blocks = k_len / block_size;
    const int row_of_blocks = blockIdx.x;
    const int head = row_of_blocks / q_blocks % heads, batch = row_of_blocks / q_blocks / heads;
    const int i = row_of_blocks % q_blocks * block_size;
    scores += batch * batch_stride + head * head_stride + i * row_stride;
    m_rows += Wide{row_of_blocks} * block_size;
    l_rows += Wide{row_of_blocks} * block_size;
    block_sums += Wide{row_of_blocks} * k_blocks;

    const int rows = seen(real_rows - 1 - i, block_size);
    for (Wide row = threadIdx.x / 32; row < rows; row += kWarps) {
        const int keys = seen(diagonal + i + row, k_len);
        const auto [m, l] = row_statistics(scores + row * row_stride, column_stride, keys, scale);
        if (threadIdx.x % 32 == 0) {
            m_rows[row] = m;
            l_rows[row] = l;
        }
    }

    const Queries<T> queries{
        scores, row_stride, column_stride, m_rows, l_rows, 1, 1, rows, diagonal + i, scale};
    for (int first = 0; first < k_blocks; first += blocks_a_tile(block_size)) {
        sum_tile(queries, block_size, first, k_blocks, block_sums);
    }
}
