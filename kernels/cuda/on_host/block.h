// A block of threads: who may run, who waits for whom, and what happens when nobody can go on.
#pragma once

#include <cstdarg>
#include <string>

namespace on_host {

constexpr unsigned kMostThreads = 1024;

struct Warp;

struct Thread {
    Context context;
    std::byte* stack;
    uint3 index;
    unsigned number, lane;
    Warp* warp;
    unsigned rank;  // its place in the order in which threads get their turn
    bool returned;

    // Where it waits, if it does: an operation, in a line, for the lanes of a mask (0: the block).
    const char* operation;
    int line;
    unsigned mask;

    // What it brought to an operation of its warp, and what it takes from there.
    std::uint64_t operand, result;
    int source;

    bool waits() const { return operation != nullptr; }
};

// Lanes of one warp that have come to one operation with one mask.
struct Meeting {
    const char* operation;
    unsigned mask, arrived;
};

struct Warp {
    Thread* lanes;
    int meetings;  // pending ones
    Meeting meeting[32];
};

// What the watch over a kernel's accesses has to know (sanitizer.h).
namespace sanitizer {

void end_block();
void end_turn();
void order_block();

}  // namespace sanitizer

struct Block {
    uint3 index;
    dim3 shape, grid;
    unsigned threads, running;
    std::uint64_t seed, random;

    Thread thread[kMostThreads];
    Warp warp[kMostThreads / 32];

    // Who can run, by rank.
    Thread* order[kMostThreads];
    std::uint64_t ready[kMostThreads / 64];

    // The barrier that some have reached, and the predicates that they brought.
    const char* barrier;
    int line;
    unsigned arrived;
    int predicates, outcome;

    void (*kernel)(void**);
    void** arguments;
    Context launcher;
    Stacks stacks;
    char failure[1024];
};

inline Block block;
inline Thread* self;

// --- failures ------------------------------------------------------------------------------------

[[gnu::format(printf, 1, 2)]] inline void report(const char* format, ...) {
    const auto [x, y, z] = block.index;
    const int used =
        std::snprintf(block.failure, sizeof block.failure, "block (%u, %u, %u): ", x, y, z);
    std::va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(block.failure + used, sizeof block.failure - used, format, arguments);
    va_end(arguments);
}

// Ends the launch. Whoever called is never resumed, nor is any thread of the block.
[[noreturn]] inline void give_up() {
    switch_context(self->context, block.launcher);
    std::abort();
}

// "0-31, 40": the numbers of the threads for which something holds.
template <class Holds>
std::string numbers(Holds holds) {
    std::string text;
    for (unsigned first = 0; first < block.threads; ++first) {
        if (!holds(block.thread[first])) continue;
        unsigned last = first;
        while (last + 1 < block.threads && holds(block.thread[last + 1])) ++last;
        if (!text.empty()) text += ", ";
        text += std::to_string(first);
        if (last > first) text += "-" + std::to_string(last);
        first = last;
    }
    return text;
}

inline std::string place(const Thread& thread) {
    char mask[16] = "";
    if (thread.mask) std::snprintf(mask, sizeof mask, "0x%x", thread.mask);
    return std::string(thread.operation) + "(" + mask + ") in line " + std::to_string(thread.line);
}

inline bool together(const Thread& a, const Thread& b) {
    return b.waits() && a.operation == b.operation && a.line == b.line && a.mask == b.mask;
}

// No thread can go on: what kind of mistake it is, and where each thread has come.
inline void report_stuck() {
    unsigned places = 0, in_warps = 0;
    std::string where;
    for (unsigned n = 0; n < block.threads; ++n) {
        const Thread& thread = block.thread[n];
        const auto here = [&](const Thread& other) { return together(thread, other); };
        if (!thread.waits() || std::any_of(block.thread, block.thread + n, here)) continue;
        if (places++) where += "; ";
        where += place(thread) + " has threads " + numbers(here);
        in_warps += thread.mask != 0;
    }
    const std::string gone = numbers([](const Thread& thread) { return thread.returned; });
    if (!gone.empty()) where += "; returned have threads " + gone;
    const char* what = in_warps == places ? "lanes that a mask names do not come"
                       : in_warps         ? "deadlock"
                       : places > 1       ? "divergent barrier"
                                          : "a barrier is not reached by threads that returned";
    report("%s: %s", what, where.c_str());
}

// --- turns ---------------------------------------------------------------------------------------

inline std::uint64_t draw(std::uint64_t below) {
    block.random = block.random * 6364136223846793005 + 1442695040888963407;
    return (block.random >> 33) % below;
}

inline void set_ready(const Thread& thread) {
    block.ready[thread.rank / 64] |= std::uint64_t{1} << thread.rank % 64;
}

// All threads may run. Whole warps get their turn one after another, in an order drawn anew, and so
// do the lanes of each: one warp runs as far ahead of the others as it can.
inline void set_all_ready() {
    const unsigned warps = (block.threads + 31) / 32;
    unsigned queue[kMostThreads / 32], rank = 0;
    for (unsigned i = 0; i < warps; ++i) queue[i] = i;
    for (unsigned i = 0; i < warps; ++i) {
        if (block.seed) std::swap(queue[i], queue[i + draw(warps - i)]);
        Thread** const first = block.order + rank;
        const unsigned lanes = std::min(32u, block.threads - queue[i] * 32);
        for (unsigned lane = 0; lane < lanes; ++lane) {
            first[lane] = &block.thread[queue[i] * 32 + lane];
        }
        for (unsigned lane = 0; lane < lanes; ++lane) {
            if (block.seed) std::swap(first[lane], first[lane + draw(lanes - lane)]);
            first[lane]->rank = rank++;
        }
    }
    for (unsigned word = 0; word < kMostThreads / 64; ++word) {
        const unsigned below = word * 64;
        block.ready[word] = rank >= below + 64 ? ~std::uint64_t{0}
                            : rank > below     ? (std::uint64_t{1} << (rank - below)) - 1
                                               : 0;
    }
}

// The first thread in order that can run; it is ready no longer, it runs.
inline Thread* take_ready() {
    for (unsigned word = 0; word < kMostThreads / 64; ++word) {
        if (std::uint64_t& ready = block.ready[word]) {
            const int bit = std::countr_zero(ready);
            ready &= ready - 1;
            return block.order[word * 64 + bit];
        }
    }
    return nullptr;
}

inline void give_way() {
    sanitizer::end_turn();
    Thread* const from = self;
    Thread* const next = take_ready();
    if (next == nullptr) {
        sanitizer::end_block();
        report_stuck();
        give_up();
    }
    if (next == from) return;
    self = next;
    switch_context(from->context, next->context);
}

// --- meetings ------------------------------------------------------------------------------------

inline void come_to(const char* operation, int line, unsigned mask) {
    self->operation = operation;
    self->line = line;
    self->mask = mask;
}

inline void go_on(Thread& thread) {
    thread.operation = nullptr;
    set_ready(thread);
}

// Waits for all threads of the block, at this operation in this line. The sum of the predicates.
inline int meet_block(const char* operation, int line, bool predicate) {
    come_to(operation, line, 0);
    if (block.arrived == 0) {
        block.barrier = operation;
        block.line = line;
        block.predicates = 0;
    }
    if (block.barrier == operation && block.line == line) {
        block.predicates += predicate;
        ++block.arrived;
    }
    if (block.arrived == block.threads) {
        block.arrived = 0;
        sanitizer::order_block();
        block.outcome = block.predicates;
        for (unsigned n = 0; n < block.threads; ++n) block.thread[n].operation = nullptr;
        set_all_ready();
    }
    give_way();
    return block.outcome;
}

// Waits for the lanes of a mask, at this operation. The last one to come works out what each takes
// away: `resolve(lanes, mask)` turns operands into results.
template <class Resolve>
std::uint64_t meet_lanes(
    const char* operation, int line, unsigned mask, std::uint64_t operand, Resolve resolve) {
    Warp& warp = *self->warp;
    const unsigned bit = 1u << self->lane;
    come_to(operation, line, mask);
    if (!(mask & bit)) {
        report("%s(0x%x) in line %d: the mask lacks lane %u of thread %u, which calls it",
               operation, mask, line, self->lane, self->number);
        give_up();
    }
    int at = 0;
    while (at < warp.meetings
           && (warp.meeting[at].mask != mask || warp.meeting[at].operation != operation)) {
        ++at;
    }
    if (at == warp.meetings) warp.meeting[warp.meetings++] = {operation, mask, 0};
    self->operand = operand;
    if ((warp.meeting[at].arrived |= bit) == mask) {
        warp.meeting[at] = warp.meeting[--warp.meetings];
        resolve(warp.lanes, mask);
        for (unsigned rest = mask; rest; rest &= rest - 1) {
            go_on(warp.lanes[std::countr_zero(rest)]);
        }
    }
    give_way();
    return self->result;
}

}  // namespace on_host
