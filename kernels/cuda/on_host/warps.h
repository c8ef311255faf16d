// Barriers, and what the lanes of a warp do together.
#pragma once

// Where a call stands in the source: the default of a last parameter that no CUDA function has.
#define ON_HOST_LINE int line = __builtin_LINE()

// --- the block -----------------------------------------------------------------------------------

inline void __syncthreads(ON_HOST_LINE) { on_host::meet_block("__syncthreads", line, false); }

inline int __syncthreads_count(int predicate, ON_HOST_LINE) {
    return on_host::meet_block("__syncthreads_count", line, predicate != 0);
}

inline int __syncthreads_or(int predicate, ON_HOST_LINE) {
    return on_host::meet_block("__syncthreads_or", line, predicate != 0) != 0;
}

inline int __syncthreads_and(int predicate, ON_HOST_LINE) {
    return on_host::meet_block("__syncthreads_and", line, predicate == 0) == 0;
}

// --- the warp ------------------------------------------------------------------------------------

namespace on_host {

template <class T, class... Ts>
concept OneOf = (std::is_same_v<T, Ts> || ...);

template <class T>
concept Shuffled =
    std::is_trivially_copyable_v<T> && (sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8);

template <class T>
concept Matched = OneOf<T, int, unsigned, long, unsigned long, long long, unsigned long long, float,
                        double>;

template <class T>
std::uint64_t to_bits(T value) {
    std::uint64_t bits = 0;
    std::memcpy(&bits, &value, sizeof value);
    return bits;
}

template <class T>
T from_bits(std::uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

template <class Visit>
void for_each_lane(unsigned mask, Visit visit) {
    for (; mask; mask &= mask - 1) visit(std::countr_zero(mask));
}

// Every lane takes what its source lane brought.
template <Shuffled T>
T shuffle(const char* operation, int line, unsigned mask, T value, int source) {
    self->source = source;
    if (!(mask >> source & 1)) {
        report("%s(0x%x) in line %d: thread %u reads from lane %d, which is not in the mask",
               operation, mask, line, self->number, source);
        give_up();
    }
    return from_bits<T>(
        meet_lanes(operation, line, mask, to_bits(value), [](Thread* lanes, unsigned mask) {
            for_each_lane(mask, [&](int lane) {
                lanes[lane].result = lanes[lanes[lane].source].operand;
            });
        }));
}

// Every lane takes the fold of what all lanes brought.
template <class T, class Fold>
T reduce(const char* operation, int line, unsigned mask, T value, Fold fold) {
    return from_bits<T>(
        meet_lanes(operation, line, mask, to_bits(value), [=](Thread* lanes, unsigned mask) {
            T folded = from_bits<T>(lanes[std::countr_zero(mask)].operand);
            for_each_lane(mask & (mask - 1), [&](int lane) {
                folded = fold(folded, from_bits<T>(lanes[lane].operand));
            });
            for_each_lane(mask, [&](int lane) { lanes[lane].result = to_bits(folded); });
        }));
}

// Every lane takes the lanes of the mask that brought what it brought.
inline unsigned matching(const char* operation, int line, unsigned mask, std::uint64_t value) {
    return static_cast<unsigned>(
        meet_lanes(operation, line, mask, value, [](Thread* lanes, unsigned mask) {
            for_each_lane(mask, [&](int lane) {
                lanes[lane].result = 0;
                for_each_lane(mask, [&](int other) {
                    const bool same = lanes[other].operand == lanes[lane].operand;
                    lanes[lane].result |= std::uint64_t{same} << other;
                });
            });
        }));
}

inline unsigned ballot(const char* operation, int line, unsigned mask, bool predicate) {
    const unsigned bit = predicate ? 1u << self->lane : 0;
    return reduce(operation, line, mask, bit, [](unsigned a, unsigned b) { return a | b; });
}

}  // namespace on_host

// The one of these that orders what its lanes load and store; a shuffle or a vote does not.
inline void __syncwarp(unsigned mask = 0xffffffff, ON_HOST_LINE) {
    on_host::meet_lanes("__syncwarp", line, mask, 0, on_host::sanitizer::order_lanes);
}

// The threads that happen to run together; here, as CUDA permits, each of them alone.
inline unsigned __activemask() { return 1u << on_host::self->lane; }

// A lane past the end of its section of `width` lanes reads from itself; __shfl_sync goes round.

template <on_host::Shuffled T>
T __shfl_sync(unsigned mask, T value, int source, int width = warpSize, ON_HOST_LINE) {
    const int first = static_cast<int>(on_host::self->lane) & -width;
    return on_host::shuffle("__shfl_sync", line, mask, value, first | (source & (width - 1)));
}

template <on_host::Shuffled T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize, ON_HOST_LINE) {
    const int lane = static_cast<int>(on_host::self->lane);
    const int source = lane - static_cast<int>(delta & 31);
    const bool inside = source >= (lane & -width);
    return on_host::shuffle("__shfl_up_sync", line, mask, value, inside ? source : lane);
}

template <on_host::Shuffled T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize, ON_HOST_LINE) {
    const int lane = static_cast<int>(on_host::self->lane);
    const int source = lane + static_cast<int>(delta & 31);
    const bool inside = source <= (lane | (width - 1));
    return on_host::shuffle("__shfl_down_sync", line, mask, value, inside ? source : lane);
}

template <on_host::Shuffled T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = warpSize, ON_HOST_LINE) {
    const int lane = static_cast<int>(on_host::self->lane);
    const int source = lane ^ (bits & 31);
    const bool inside = source <= (lane | (width - 1));
    return on_host::shuffle("__shfl_xor_sync", line, mask, value, inside ? source : lane);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, ON_HOST_LINE) {
    return on_host::ballot("__ballot_sync", line, mask, predicate != 0);
}

inline int __any_sync(unsigned mask, int predicate, ON_HOST_LINE) {
    return on_host::ballot("__any_sync", line, mask, predicate != 0) != 0;
}

inline int __all_sync(unsigned mask, int predicate, ON_HOST_LINE) {
    return on_host::ballot("__all_sync", line, mask, predicate == 0) == 0;
}

template <on_host::Matched T>
unsigned __match_any_sync(unsigned mask, T value, ON_HOST_LINE) {
    return on_host::matching("__match_any_sync", line, mask, on_host::to_bits(value));
}

template <on_host::Matched T>
unsigned __match_all_sync(unsigned mask, T value, int* all, ON_HOST_LINE) {
    const auto bits = on_host::to_bits(value);
    *all = on_host::matching("__match_all_sync", line, mask, bits) == mask;
    return *all ? mask : 0;
}

#define ON_HOST_REDUCE(name, fold, ...)                                                            \
    template <on_host::OneOf<__VA_ARGS__> T>                                                       \
    T __reduce_##name##_sync(unsigned mask, T value, ON_HOST_LINE) {                               \
        const auto step = [](T a, T b) { return static_cast<T>(fold); };                           \
        return on_host::reduce("__reduce_" #name "_sync", line, mask, value, step);                \
    }

ON_HOST_REDUCE(add, static_cast<unsigned>(a) + static_cast<unsigned>(b), int, unsigned)
ON_HOST_REDUCE(min, a < b ? a : b, int, unsigned)
ON_HOST_REDUCE(max, a > b ? a : b, int, unsigned)
ON_HOST_REDUCE(and, a & b, unsigned)
ON_HOST_REDUCE(or, a | b, unsigned)
ON_HOST_REDUCE(xor, a ^ b, unsigned)
#undef ON_HOST_REDUCE
