// The witness policy: a block a row, one pass over its slots.
//
// Occupancy is one 64-bit mask. A thread marks the segments of the slots that it reads; warps join
// their masks with two reductions, the block with one barrier, and from then on every thread knows
// which segments are missing: the rank of a witness is a population count. Each slot is stored
// once, so no barrier has to order two stores.
//
// Segments are computed in unsigned 64 bits, which hold every product of a token and a number of
// segments (R-W1); so are addresses (R-W5).

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kBits = 64;

using Mask = unsigned long long;
using Wide = unsigned long long;

// --- one row's segments --------------------------------------------------------------------------

// At most 64 consecutive segments of a row; bit i of a mask is segment `first` + i.
struct Segments {
    Wide length;     // L, at least 1
    Wide effective;  // S_eff = min(S, L)
    Wide last;       // S - 1
    Wide first;
    Wide present;  // how many of these the row has; none where L <= 0

    __device__ Segments(long long context, int segments, int first_segment)
        : length(context > 0 ? context : 1),
          effective(min(length, static_cast<Wide>(segments))),
          last(segments - 1),
          first(first_segment),
          present(0) {
        if (context > 0 && effective > first) present = min(effective - first, Wide{kBits});
    }

    // The segment that a learned entry marks; none for padding.
    __device__ Mask mark(int token) const {
        if (token < 0) return 0;
        const Wide segment = min(static_cast<Wide>(token) * effective / length, last);
        return segment >= first && segment - first < kBits ? Mask{1} << (segment - first) : 0;
    }

    __device__ Mask mark(int4 tokens) const {
        return mark(tokens.x) | mark(tokens.y) | mark(tokens.z) | mark(tokens.w);
    }

    __device__ Mask missing(Mask occupied) const {
        const Mask all = present == kBits ? ~Mask{0} : (Mask{1} << present) - 1;
        return all & ~occupied;
    }

    // e_s = ceil(s * L / S_eff), the first token of segment s = `first` + bit.
    __device__ int edge(int bit) const {
        return static_cast<int>(((first + bit) * length + effective - 1) / effective);
    }
};

// --- the block -----------------------------------------------------------------------------------

// The union of the masks of all threads, for all threads. A block calls it once.
__device__ Mask block_union(Mask mask) {
    __shared__ Mask warp_masks[kWarps];
    const unsigned low = __reduce_or_sync(0xffffffff, static_cast<unsigned>(mask));
    const unsigned high = __reduce_or_sync(0xffffffff, static_cast<unsigned>(mask >> 32));
    if (threadIdx.x % 32 == 0) warp_masks[threadIdx.x / 32] = Mask{high} << 32 | low;
    __syncthreads();
    mask = 0;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) mask |= warp_masks[warp];
    return mask;
}

__device__ bool has(Mask mask, int bit) { return mask >> bit & 1; }

// How many bits of the mask come before this one.
__device__ int rank(Mask mask, int bit) { return __popcll(mask & ((Mask{1} << bit) - 1)); }

// Hands this thread its share of the slots: `quad(slot, tokens)` for four at once where the row
// allows 128-bit loads, `one(slot, token)` for what is left over, and for all of a row with gaps.
// The loops stay rolled: each body has a division a slot.
template <class Quad, class One>
__device__ void for_each_slot(const int* row, int topk, long long stride, Quad quad, One one) {
    int head = topk;  // slots before the first 16-byte boundary
    int quads = 0;
    if (stride == 1) {
        head = min(static_cast<int>(-(reinterpret_cast<Wide>(row) / sizeof(int)) % 4), topk);
        quads = (topk - head) / 4;
    }
    const int4* aligned = reinterpret_cast<const int4*>(row + head);
#pragma unroll 1
    for (int i = threadIdx.x; i < quads; i += kThreads) quad(head + 4 * i, aligned[i]);
    const int tail = head + 4 * quads;
#pragma unroll 1
    for (int slot = threadIdx.x; slot < head; slot += kThreads) one(slot, row[slot * stride]);
#pragma unroll 1
    for (int slot = tail + threadIdx.x; slot < topk; slot += kThreads) one(slot, row[slot]);
}

// The segments that a row occupies, known to all threads.
__device__ Mask occupied_by(const int* row, int topk, long long stride, const Segments& segments) {
    Mask marks = 0;
    for_each_slot(
        row, topk, stride,
        [&](int, int4 tokens) { marks |= segments.mark(tokens); },
        [&](int, int token) { marks |= segments.mark(token); });
    return block_union(marks);
}

// --- the kernels ---------------------------------------------------------------------------------

// witnesses: [rows, segments], contiguous. A block for each row and each 64 of its segments.
template <class Length>
__global__ void __launch_bounds__(kThreads) witness_indices(
    const int* __restrict__ learned, const Length* __restrict__ context_lens,
    int* __restrict__ witnesses, int topk, int segments, long long row_stride,
    long long slot_stride, long long context_stride) {
    const int blocks_a_row = (segments - 1) / kBits + 1;
    const long long row = blockIdx.x / blocks_a_row;
    const int first = static_cast<int>(blockIdx.x % blocks_a_row) * kBits;
    const Segments part(context_lens[row * context_stride], segments, first);

    const Mask occupied = occupied_by(learned + row * row_stride, topk, slot_stride, part);

    const Mask missing = part.missing(occupied);
    const int bit = threadIdx.x;
    if (bit < min(segments - first, kBits)) {
        witnesses[row * segments + first + bit] = has(missing, bit) ? part.edge(bit) : -1;
    }
}

// merged: [rows, topk], contiguous. `width` = min(B, S): only the slots [keep, keep + width) can
// receive a witness. They wait for the mask; every other slot is copied as it is read.
template <class Length>
__global__ void __launch_bounds__(kThreads) witness_merge(
    const int* __restrict__ learned, const Length* __restrict__ context_lens,
    int* __restrict__ merged, int topk, int keep, int width, int segments, long long row_stride,
    long long slot_stride, long long context_stride) {
    const long long row = blockIdx.x;
    const Segments all(context_lens[row * context_stride], segments, 0);
    learned += row * row_stride;
    merged += row * topk;

    Mask marks = 0;
    const auto copy = [&](int slot, int token) {
        if (slot < keep || slot >= keep + width) merged[slot] = token;
    };
    for_each_slot(
        learned, topk, slot_stride,
        [&](int slot, int4 tokens) {
            marks |= all.mark(tokens);
            const bool clear = slot + 4 <= keep || slot >= keep + width;
            if (clear && reinterpret_cast<Wide>(merged + slot) % sizeof(int4) == 0) {
                *reinterpret_cast<int4*>(merged + slot) = tokens;
            } else {
                copy(slot, tokens.x);
                copy(slot + 1, tokens.y);
                copy(slot + 2, tokens.z);
                copy(slot + 3, tokens.w);
            }
        },
        [&](int slot, int token) {
            marks |= all.mark(token);
            copy(slot, token);
        });

    const Mask missing = all.missing(block_union(marks));
    const int bit = threadIdx.x;
    if (bit < kBits && has(missing, bit) && rank(missing, bit) < width) {
        merged[keep + rank(missing, bit)] = all.edge(bit);
    }
    const int reserved = threadIdx.x;
    if (reserved >= __popcll(missing) && reserved < width) {
        merged[keep + reserved] = learned[(keep + reserved) * slot_stride];
    }
}

// In place. The first store comes after the barrier in `block_union`, and so after every load.
template <class Length>
__global__ void __launch_bounds__(kThreads) witness_serve(
    int* __restrict__ topk_indices, const Length* __restrict__ context_lens, int topk, int keep,
    int width, int segments, long long row_stride, long long slot_stride,
    long long context_stride) {
    const long long row = blockIdx.x;
    const Segments all(context_lens[row * context_stride], segments, 0);
    topk_indices += row * row_stride;

    const Mask missing = all.missing(occupied_by(topk_indices, topk, slot_stride, all));
    const int bit = threadIdx.x;
    if (bit < kBits && has(missing, bit) && rank(missing, bit) < width) {
        topk_indices[(keep + rank(missing, bit)) * slot_stride] = all.edge(bit);
    }
}
