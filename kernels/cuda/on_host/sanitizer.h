// Watches what a kernel loads and stores: nothing outside its tensors, its shared arrays and its
// own variables, and no two accesses that race.
//
// g++ calls a function before every access when it compiles with -fsanitize=thread; these here
// take the place of its library, which knows nothing of blocks and warps, forgets accesses, and
// would have to be loaded before all else. Without that option nothing is watched.
//
// A cell is kept for each byte, and loses none: a race of two accesses is seen whatever the order
// of turns, if both are carried out. Volatile accesses are like all others.
#pragma once

#ifdef __SANITIZE_THREAD__

#include <link.h>
#include <sys/mman.h>

#include "order.h"

namespace on_host::sanitizer {

// --- what is to be watched -----------------------------------------------------------------------

// One byte: the last store, and loads or atomics since; two that are not ordered stand for all
// others, of two warps if there are, for any store races with one of the two.
struct Cell {
    Access store, one, other;
};

// Memory that a kernel may touch. Python has it as well.
struct Region {
    std::byte* begin;             // of a shared array: its offset
    std::uint64_t bytes;
    const std::uint8_t* covered;  // whether each byte may be touched; null: all
    std::uint64_t shared;
    Cell* cells;

    ON_HOST_UNWATCHED bool holds(const std::byte* address, std::size_t size) const {
        const std::size_t at = address - begin;
        if (at >= bytes || size > bytes - at) return false;
        for (std::size_t i = 0; covered && i < size; ++i) {
            if (!covered[at + i]) return false;
        }
        return true;
    }
};

// What was found. Python has it as well, and the words for it.
enum class Fault : std::uint32_t { none, race, outside, foreign };
struct Found {
    struct Point {
        std::uint64_t place;
        unsigned block[3], thread, kind, bytes;
    };
    Fault fault;
    std::uint32_t region;  // where, or what is nearest
    std::int64_t offset;   // from where that begins
    Point first, second;
};

struct Watch {
    bool active = false;  // while a kernel runs
    const Region *regions, *end;
    std::byte* image = nullptr;  // of this library
    std::size_t image_bytes;
    Cell* cells = nullptr;
    std::size_t room = 0;
    std::vector<std::pair<Time, uint3>> blocks;
    Found* found;
};

inline Watch watch;

// A load that races with atomics. What a thread follows up with an atomic of its own is a guess, as
// in the loop around atomicCAS, and no more is made of it; the end of its turn makes it a race.
struct Suspicion {
    const Region* region = nullptr;
    const std::byte* address;
    std::size_t bytes;
    Access first, second;
};

inline Suspicion suspicion;

// While the fiber of a thread does what is no kernel's.
struct Pause {
    ON_HOST_UNWATCHED Pause() { watch.active = false; }
    ON_HOST_UNWATCHED ~Pause() { watch.active = true; }
};

// --- accesses ------------------------------------------------------------------------------------

ON_HOST_UNWATCHED inline bool together(const Access& a, const Access& b) {
    const bool here = b.time >= order.block_began;
    return (a.time >= order.block_began) == here && a.thread / 32 == b.thread / 32;
}

// What is older than `since` was to other memory.
ON_HOST_UNWATCHED inline bool race(const Access& other, const Access& mine, Time since) {
    return other.time >= since && (other.kind != mine.kind || mine.kind == Kind::store)
           && !order.before(other);
}

// The earlier access to a byte that races with this one, if there is any.
ON_HOST_UNWATCHED inline const Access* note(Cell& cell, const Access& mine, Time since) {
    auto& [store, one, other] = cell;
    if (race(store, mine, since)) return &store;
    if (race(one, mine, since)) return &one;
    if (race(other, mine, since)) return &other;
    if (mine.kind == Kind::store) {
        store = mine;
        one = other = {};
    } else if (one.kind != mine.kind || one.time < since || order.before(one)) {
        if (one.kind != mine.kind) other = {};
        one = mine;
    } else if (other.time < since || order.before(other) || together(one, other)) {
        other = mine;
    }
    return nullptr;
}

ON_HOST_UNWATCHED inline bool lies_in(
    const std::byte* address, const void* begin, std::size_t size) {
    return static_cast<std::size_t>(address - static_cast<const std::byte*>(begin)) < size;
}

ON_HOST_UNWATCHED inline const Region* region_of(const std::byte* address, std::size_t bytes) {
    for (const Region* region = watch.regions; region != watch.end; ++region) {
        if (region->holds(address, bytes)) return region;
    }
    return nullptr;
}

inline Found::Point point(const Access& access, std::size_t bytes) {
    const auto after = [](Time time, const auto& block) { return time < block.first; };
    const auto next =
        std::upper_bound(watch.blocks.begin(), watch.blocks.end(), access.time, after);
    const auto [x, y, z] = std::prev(next)->second;
    return {access.place, {x, y, z}, access.thread, static_cast<unsigned>(access.kind),
            static_cast<unsigned>(bytes)};
}

[[noreturn]] inline void stop(Fault fault, const Region& region, const std::byte* address,
                              Found::Point first, Found::Point second) {
    const auto number = static_cast<std::uint32_t>(&region - watch.regions);
    *watch.found = {fault, number, address - region.begin, first, second};
    report("%s", fault == Fault::race ? "a race" : "an access out of bounds");
    give_up();
}

[[noreturn]] inline void stop_race(const Suspicion& race) {
    stop(Fault::race, *race.region, race.address, point(race.first, race.bytes),
         point(race.second, race.bytes));
}

[[noreturn]] inline void stop_outside(const std::byte* address, std::size_t bytes,
                                      const Access& access) {
    const auto distance = [=](const Region& region) {
        const std::ptrdiff_t at = address - region.begin;
        return std::max({-at, at - static_cast<std::ptrdiff_t>(region.bytes), std::ptrdiff_t{0}});
    };
    const Region* const nearest = std::min_element(
        watch.regions, watch.end,
        [=](const Region& a, const Region& b) { return distance(a) < distance(b); });
    const auto owner = block.stacks.owner(address);
    const auto fault = owner < block.threads ? Fault::foreign : Fault::outside;
    Access other = access;
    other.thread = static_cast<std::uint16_t>(owner);
    stop(fault, *nearest, address, point(access, bytes), point(other, bytes));
}

ON_HOST_UNWATCHED inline void touch(
    const volatile void* pointer, std::size_t bytes, Kind kind, const void* from) {
    if (!watch.active) return;
    const Pause pause;
    auto* const address = static_cast<const std::byte*>(const_cast<const void*>(pointer));
    if (lies_in(address, self->stack, Stacks::usable)) return;
    if (lies_in(address, &block, sizeof block) || lies_in(address, &self, sizeof self)) return;
    const auto place = static_cast<const std::byte*>(from) - watch.image;
    const Access mine{order.now, static_cast<std::uint32_t>(place),
                      static_cast<std::uint16_t>(self->number), kind};
    const Region* const region = region_of(address, bytes);
    if (region == nullptr) stop_outside(address, bytes, mine);
    const Time since = region->shared ? order.block_began : order.launch_began;
    Cell* const cells = region->cells + (address - region->begin);
    for (std::size_t i = 0; i < bytes; ++i) {
        if (const Access* rival = note(cells[i], mine, since)) {
            const Suspicion race{region, address + i, bytes, *rival, mine};
            if (kind != Kind::load || rival->kind != Kind::atomic) stop_race(race);
            if (suspicion.region == nullptr) suspicion = race;
            return;
        }
    }
    if (kind != Kind::atomic) return;
    if (address == suspicion.address) suspicion.region = nullptr;
    if (order.fences) order.pass_on(mine, {since, address});
}

// --- the course of a launch ----------------------------------------------------------------------

inline int find_image(dl_phdr_info* library, std::size_t, void*) {
    std::byte* const base = reinterpret_cast<std::byte*>(library->dlpi_addr);
    bool here = false;
    std::size_t bytes = 0;
    for (int i = 0; i < library->dlpi_phnum; ++i) {
        const auto& segment = library->dlpi_phdr[i];
        if (segment.p_type != PT_LOAD) continue;
        std::byte* const begin = base + segment.p_vaddr;
        auto* const known = reinterpret_cast<std::byte*>(&block);
        here |= begin <= known && known < begin + segment.p_memsz;
        bytes = std::max<std::size_t>(bytes, segment.p_vaddr + segment.p_memsz);
    }
    if (here) watch.image = base, watch.image_bytes = bytes;
    return here;
}

// Cells that nothing has touched; those of earlier launches will do, for their times have passed.
inline Cell* reserve(std::size_t count) {
    constexpr Time late = 1u << 31;
    if (count > watch.room || order.now > late) {
        if (watch.cells) munmap(watch.cells, watch.room * sizeof(Cell));
        const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        watch.room = count + count / 2;
        void* mapped =
            mmap(nullptr, watch.room * sizeof(Cell), PROT_READ | PROT_WRITE, kind, -1, 0);
        if (mapped == MAP_FAILED) {
            std::perror("on_host: no memory to watch the accesses of a kernel");
            std::abort();
        }
        watch.cells = static_cast<Cell*>(mapped);
        order.now = 1;
    }
    return watch.cells;
}

// The last region is what the file has in variables of its own, and constants.
inline void begin_launch(Region* regions, std::size_t count, Found* found, std::byte* shared) {
    if (watch.image == nullptr) dl_iterate_phdr(find_image, nullptr);
    watch.regions = regions;
    watch.end = regions + count;
    watch.found = found;
    regions[count - 1].begin = watch.image;
    regions[count - 1].bytes = watch.image_bytes;
    std::size_t bytes = 0;
    for (Region* region = regions; region != watch.end; ++region) {
        if (region->shared) region->begin = shared + reinterpret_cast<std::size_t>(region->begin);
        bytes += region->bytes;
    }
    Cell* cells = reserve(bytes);
    for (Region* region = regions; region != watch.end; ++region) {
        region->cells = cells;
        cells += region->bytes;
    }
    watch.blocks.clear();
    suspicion.region = nullptr;
    order.begin_launch();
}

ON_HOST_UNWATCHED inline void begin_block() {
    order.begin_block();
    watch.blocks.emplace_back(order.block_began, block.index);
    watch.active = true;
}

ON_HOST_UNWATCHED inline void end_block() { watch.active = false; }

ON_HOST_UNWATCHED inline void end_turn() {
    const Pause pause;
    if (suspicion.region) stop_race(suspicion);
}

ON_HOST_UNWATCHED inline void order_block() {
    const Pause pause;
    order.order_block();
}

ON_HOST_UNWATCHED inline void order_lanes(const Thread* lanes, unsigned mask) {
    const Pause pause;
    order.order_lanes(lanes, mask);
}

ON_HOST_UNWATCHED inline void fence() {
    const Pause pause;
    order.fence();
}

}  // namespace on_host::sanitizer

// --- what the compiler calls ---------------------------------------------------------------------

#define ON_HOST_CALLED extern "C" [[gnu::used, gnu::visibility("hidden")]] ON_HOST_UNWATCHED inline
#define ON_HOST_ACCESS(name, size, kind)                                                           \
    ON_HOST_CALLED void __tsan_##name(void* address) {                                             \
        on_host::sanitizer::touch(                                                                 \
            address, size, on_host::sanitizer::Kind::kind, __builtin_return_address(0));           \
    }
#define ON_HOST_ACCESSES(size)              \
    ON_HOST_ACCESS(read##size, size, load)  \
    ON_HOST_ACCESS(write##size, size, store)
#define ON_HOST_UNALIGNED(size)                       \
    ON_HOST_ACCESS(unaligned_read##size, size, load)  \
    ON_HOST_ACCESS(unaligned_write##size, size, store)

ON_HOST_ACCESSES(1)
ON_HOST_ACCESSES(2)
ON_HOST_ACCESSES(4)
ON_HOST_ACCESSES(8)
ON_HOST_ACCESSES(16)
ON_HOST_UNALIGNED(2)
ON_HOST_UNALIGNED(4)
ON_HOST_UNALIGNED(8)
ON_HOST_UNALIGNED(16)

#define ON_HOST_RANGE(name, kind)                                                                  \
    ON_HOST_CALLED void __tsan_##name##_range(void* address, std::size_t size) {                   \
        on_host::sanitizer::touch(                                                                 \
            address, size, on_host::sanitizer::Kind::kind, __builtin_return_address(0));           \
    }
ON_HOST_RANGE(read, load)
ON_HOST_RANGE(write, store)

// The only atomics that this package has.
#define ON_HOST_ATOMICS(bits)                                                                      \
    ON_HOST_CALLED std::uint##bits##_t __tsan_atomic##bits##_load(                                 \
        const volatile void* address, int order) {                                                 \
        on_host::sanitizer::touch(                                                                 \
            address, bits / 8, on_host::sanitizer::Kind::atomic, __builtin_return_address(0));     \
        return *static_cast<const volatile std::uint##bits##_t*>(address);                         \
    }                                                                                              \
    ON_HOST_CALLED bool __tsan_atomic##bits##_compare_exchange_strong(                             \
        volatile void* address, void* expected, std::uint##bits##_t value, int, int) {             \
        on_host::sanitizer::touch(                                                                 \
            address, bits / 8, on_host::sanitizer::Kind::atomic, __builtin_return_address(0));     \
        auto* const stored = static_cast<volatile std::uint##bits##_t*>(address);                  \
        auto* const before = static_cast<std::uint##bits##_t*>(expected);                          \
        const bool same = *stored == *before;                                                      \
        if (same) *stored = value;                                                                 \
        else *before = *stored;                                                                    \
        return same;                                                                               \
    }
ON_HOST_ATOMICS(16)
ON_HOST_ATOMICS(32)
ON_HOST_ATOMICS(64)

ON_HOST_CALLED void __tsan_init() {}

#else

#define ON_HOST_UNWATCHED

namespace on_host::sanitizer {

struct Region;
struct Found;

inline void begin_launch(Region*, std::size_t, Found*, std::byte*) {}
inline void begin_block() {}
inline void end_block() {}
inline void end_turn() {}
inline void order_block() {}
inline void order_lanes(const Thread*, unsigned) {}
inline void fence() {}

}  // namespace on_host::sanitizer

#endif
