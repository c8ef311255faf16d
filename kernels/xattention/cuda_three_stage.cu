// XAttention's softmax over chunks of keys: statistics of each row, their merge, sums of blocks.
//
// What a row sees is a count. With diagonal = chunk_start - kv_offset, row i sees the keys at hand
// up to diagonal + i (R-X3); where nothing is masked, the diagonal lies past the last key. Nothing
// else is ever read (R-X6).
//
// Neighbouring threads take neighbouring vectors of 128 bits, each in one load. Where a row begins
// within a vector, its last visible key lies within one, or elements have gaps between them, they
// are read one by one.
//
// For statistics a warp takes a row, and no barrier is needed. For sums of blocks a thread takes
// the columns of a vector and walks down the rows of a block of queries, whose statistics lie in
// shared memory: a mask is where the walk begins, and how many of the columns a row sees. The order
// of a sum is that of its terms, whichever thread is first.
//
// All is fp32 and in base e (R-X2), and rounded once, where it is stored. `expf` is within 2 ulp,
// as declared (R-X14), unless a compiler is told to use fast mathematics. Addresses are computed in
// 64 bits (R-X15).

#include <cuda_bf16.h>
#include <cuda_fp16.h>

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kRows = 64;  // rows whose statistics are in shared memory at a time
constexpr unsigned kLanes = 0xffffffff;
constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);

using Wide = long long;

// --- a vector of scores --------------------------------------------------------------------------

// Neighbouring elements, as many as one load reads.
template <class T>
constexpr int kVector = 16 / sizeof(T);

template <class T>
struct __align__(16) Vector {
    T element[kVector<T>];
};

// How many elements lie between the last boundary of a vector and this one.
template <class T>
__device__ int lead(const T* element) {
    return reinterpret_cast<Wide>(element) % sizeof(Vector<T>) / sizeof(T);
}

// Of the vector that begins at `first`, the elements [begin, end). The others may lie outside the
// tensor: they are not read, and 0.
template <class T>
__device__ Vector<T> load(const T* first, Wide stride, int begin, int end) {
    if (begin <= 0 && end >= kVector<T> && stride == 1 && lead(first) == 0) {
        return *reinterpret_cast<const Vector<T>*>(first);
    }
    Vector<T> vector{};
#pragma unroll
    for (int i = 0; i < kVector<T>; ++i) {
        if (begin <= i && i < end) vector.element[i] = first[i * stride];
    }
    return vector;
}

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
    float m = -kInfinity, l = 0.0f;
    const int lane = threadIdx.x % 32;
    // The first vector begins at the boundary before the row.
    for (int j = lane * kVector<T> - lead(row); j < keys; j += 32 * kVector<T>) {
        const auto scores = load(row + j * column_stride, column_stride, -j, keys - j);
        const float m_before = m;
        float x[kVector<T>];
#pragma unroll
        for (int i = 0; i < kVector<T>; ++i) {
            const bool exists = 0 <= j + i && j + i < keys;
            x[i] = exists ? logit(scores.element[i], scale) : -kInfinity;
            m = fmaxf(m, x[i]);
        }
        l *= expf(m_before - base(m));
#pragma unroll
        for (int i = 0; i < kVector<T>; ++i) l += expf(x[i] - base(m));
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

template <class T>
__device__ Weighing weighing_of(const Queries<T>& queries, int row) {
    const float l = queries.l[row * queries.l_stride];
    if (l == 0.0f) return {0.0f, 0.0f};
    return {queries.m[row * queries.m_stride], 1.0f / l};
}

// Adds to `sums` the weights in the columns [begin, end) of a vector whose first is `left`, of the
// `rows` rows from row `top` on.
template <class T>
__device__ void add_columns(
    const Queries<T>& queries, const Weighing* weighing, int top, int rows, int left, int begin,
    int end, float (&sums)[kVector<T>]) {
    // How many of the columns row `top` sees, or how many it lacks: every row sees one more.
    const Wide visible = queries.diagonal + top + 1 - left;
    const int at_top = static_cast<int>(max(min(visible, Wide{kVector<T>}), -Wide{kRows}));
    int row = max(begin + 1 - at_top, 0);  // the first that sees one
    const T* score =
        queries.scores + (top + row) * queries.row_stride + left * queries.column_stride;
    for (; row < rows; ++row, score += queries.row_stride) {
        const int sees = min(at_top + row, end);
        const auto scores = load(score, queries.column_stride, begin, sees);
        const Weighing of_row = weighing[row];
#pragma unroll
        for (int i = 0; i < kVector<T>; ++i) {
            const float x = logit(scores.element[i], queries.scale);
            if (begin <= i && i < sees) sums[i] += of_row.weight(x);
        }
    }
}

// Columns that the threads take at a time.
template <class T>
constexpr int kColumns = kThreads * kVector<T>;

// How many blocks of keys a block of threads sums at a time.
template <class T>
__device__ int blocks_a_tile(int block_size) {
    return max(kColumns<T> / block_size, 1);
}

// The sums of a tile of blocks of keys, from block `first` on, over a block of queries. By all
// threads; what any of them wrote before is there for all from the first barrier on.
//
// Each thread has the slots of a vector: column j of the tile goes to slot (before + j) % kColumns,
// with `before` from the last boundary to column 0. More columns than slots has only a tile that is
// one wide block, and then all slots are part of its sum.
template <class T>
__device__ void sum_tile(
    const Queries<T>& queries, int block_size, int first, int k_blocks, T* sums) {
    __shared__ Weighing weighing[kRows];
    __shared__ float slots[kColumns<T>];
    const int blocks = min(blocks_a_tile<T>(block_size), k_blocks - first);
    const int left = first * block_size, right = left + blocks * block_size;
    const int before = lead(queries.scores + left * queries.column_stride);
    const int thread = threadIdx.x;

    float own[kVector<T>] = {};  // slots
    for (int top = 0; top < block_size; top += kRows) {
        const int rows = min(queries.rows - top, kRows);
        __syncthreads();
        if (thread < rows) weighing[thread] = weighing_of(queries, top + thread);
        __syncthreads();
        for (int j = left - before + thread * kVector<T>; j < right; j += kColumns<T>) {
            add_columns(
                queries, weighing, top, rows, j, max(left - j, 0), min(right - j, kVector<T>), own);
        }
    }

#pragma unroll
    for (int i = 0; i < kVector<T>; ++i) slots[thread * kVector<T> + i] = own[i];
    __syncthreads();
    const int width = min(block_size, kColumns<T>);
    for (int each = thread / 32; each < blocks; each += kWarps) {
        const int begin = before + each * block_size;
        float total = 0.0f;
        for (int i = thread % 32; i < width; i += 32) total += slots[(begin + i) % kColumns<T>];
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
    const int tiles = (k_blocks - 1) / blocks_a_tile<T>(block_size) + 1;
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
    const int first = static_cast<int>(blockIdx.x % tiles) * blocks_a_tile<T>(block_size);
    block_sums += Wide{row_of_blocks} * k_blocks;
    sum_tile(queries, block_size, first, k_blocks, block_sums);
}

// block_sums as above. A block of threads for each block of queries: its warps share out the rows
// for their statistics, and then all sum tile after tile, of what may still be in the cache.
// m_rows, l_rows: room for statistics, [batch, heads, q_len], contiguous. With hope for one more
// block on a multiprocessor, a compiler spills registers.
template <class T>
__global__ void __launch_bounds__(kThreads, sizeof(T) == 4 ? 4 : 3) one_pass_block_sums(
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
    for (int first = 0; first < k_blocks; first += blocks_a_tile<T>(block_size)) {
        sum_tile(queries, block_size, first, k_blocks, block_sums);
    }
}
