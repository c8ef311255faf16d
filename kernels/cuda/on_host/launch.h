// Runs a grid, block after block.
#pragma once

#include <link.h>

#include <mutex>
#include <utility>
#include <vector>

namespace on_host {

// --- shared memory -------------------------------------------------------------------------------

// The most dynamic shared memory that a block of any architecture can have, and what follows it
// here to catch a store too far. The generated source defines it, under each name that is declared
// `extern __shared__`.
constexpr std::size_t kMostShared = 227 * 1024, kRedZone = 1024;
#define ON_HOST_SHARED_AND_RED_ZONE "(227 + 1) * 1024"
extern "C" [[gnu::visibility("hidden")]] thread_local std::byte on_host_dynamic_shared[];

// Not a number as fp32, fp16 and bf16, and no likely index.
constexpr std::uint16_t kPoison = 0x7fc0;

inline void poison(std::byte* begin, std::byte* end) {
    std::fill(reinterpret_cast<std::uint16_t*>(begin),
              reinterpret_cast<std::uint16_t*>(begin) + (end - begin) / 2, kPoison);
}

// All that is `__shared__`, as the linker laid it out and the calling thread of the system has it:
// nothing else in this library is local to a thread.
class Shared {
  public:
    explicit Shared(std::size_t bytes) : dynamic(on_host_dynamic_shared), used(bytes + bytes % 2) {
        dynamic[0] = {};  // makes the system provide it
        dl_iterate_phdr(find, this);
    }

    void poison_all() const {
        poison(begin, dynamic);
        poison(dynamic, dynamic + used + kRedZone);
        poison(dynamic + kMostShared + kRedZone, end);
    }

    std::byte* variables() const { return begin; }

    bool overrun() const {
        const auto* zone = reinterpret_cast<const std::uint16_t*>(dynamic + used);
        return std::any_of(zone, zone + kRedZone / 2, [](auto word) { return word != kPoison; });
    }

  private:
    static int find(dl_phdr_info* library, std::size_t, void* self) {
        auto& shared = *static_cast<Shared*>(self);
        for (int i = 0; i < library->dlpi_phnum; ++i) {
            const auto& segment = library->dlpi_phdr[i];
            auto* const begin = static_cast<std::byte*>(library->dlpi_tls_data);
            if (segment.p_type != PT_TLS || shared.dynamic < begin
                || shared.dynamic >= begin + segment.p_memsz) {
                continue;
            }
            shared.begin = begin;
            shared.end = begin + segment.p_memsz;
            return 1;
        }
        return 0;
    }

    std::byte *dynamic, *begin, *end;
    std::size_t used;
};

// --- threads and blocks --------------------------------------------------------------------------

inline void run_thread() {
    block.kernel(block.arguments);
    sanitizer::end_turn();
    self->returned = true;
    if (--block.running == 0) switch_context(self->context, block.launcher);
    give_way();
    std::abort();
}

inline void begin_block(std::uint64_t number) {
    block.index.x = static_cast<unsigned>(number % block.grid.x);
    block.index.y = static_cast<unsigned>(number / block.grid.x % block.grid.y);
    block.index.z = static_cast<unsigned>(number / block.grid.x / block.grid.y);
    block.running = block.threads;
    block.arrived = 0;
    for (unsigned n = 0; n < block.threads; ++n) {
        Thread& thread = block.thread[n];
        thread.index = {n % block.shape.x, n / block.shape.x % block.shape.y,
                        n / block.shape.x / block.shape.y};
        thread.number = n;
        thread.lane = n % 32;
        thread.warp = &block.warp[n / 32];
        thread.returned = false;
        thread.operation = nullptr;
        thread.stack = block.stacks.bottom(n);
        prepare(thread.context, thread.stack, Stacks::size(n), run_thread);
    }
    for (unsigned n = 0; n < block.threads; n += 32) {
        block.warp[n / 32].lanes = &block.thread[n];
        block.warp[n / 32].meetings = 0;
    }
    set_all_ready();
}

// The numbers of all blocks, in an order drawn from the seed.
inline std::vector<std::uint64_t> order_of_blocks() {
    std::vector<std::uint64_t> order(std::uint64_t{block.grid.x} * block.grid.y * block.grid.z);
    for (std::uint64_t i = 0; i < order.size(); ++i) {
        const std::uint64_t j = block.seed ? draw(i + 1) : i;
        order[i] = order[j];
        order[j] = i;
    }
    return order;
}

inline void run_blocks(const Shared& shared, std::size_t shared_bytes) {
    for (const std::uint64_t number : order_of_blocks()) {
        shared.poison_all();
        begin_block(number);
        self = take_ready();
        sanitizer::begin_block();
        switch_context(block.launcher, self->context);
        sanitizer::end_block();
        if (block.failure[0]) return;
        if (shared.overrun()) {
            report("a store past its %zu bytes of dynamic shared memory", shared_bytes);
            return;
        }
    }
}

template <class T>
[[gnu::noinline]] ON_HOST_UNWATCHED T argument(void** arguments, std::size_t place) {
    return *static_cast<T*>(arguments[place]);
}

template <class... Parameters>
void spread(void (*kernel)(Parameters...), void** arguments) {
    [&]<std::size_t... i>(std::index_sequence<i...>) {
        kernel(argument<Parameters>(arguments, i)...);
    }(std::index_sequence_for<Parameters...>());
}

inline std::mutex one_launch_at_a_time;

// What a launch is, for the caller beyond the C boundary.
struct Launch {
    unsigned grid[3], shape[3];
    std::uint64_t shared_bytes, seed;
    void** arguments;  // a pointer to each
    sanitizer::Region* regions;
    std::uint64_t region_count;
    sanitizer::Found* found;
    char failure[sizeof block.failure];
};

// Runs a kernel over a grid. `failure` becomes the one line that says why it did not come to its
// end, or empty.
template <auto kernel>
void run(Launch& launch) {
    const std::scoped_lock lock(one_launch_at_a_time);
    block.grid = {launch.grid[0], launch.grid[1], launch.grid[2]};
    block.shape = {launch.shape[0], launch.shape[1], launch.shape[2]};
    block.threads = block.shape.x * block.shape.y * block.shape.z;
    block.seed = block.random = launch.seed;
    block.kernel = [](void** arguments) { spread(kernel, arguments); };
    block.arguments = launch.arguments;
    block.failure[0] = '\0';
    const Shared shared(launch.shared_bytes);
    sanitizer::begin_launch(launch.regions, launch.region_count, launch.found, shared.variables());
    run_blocks(shared, launch.shared_bytes);
    std::memcpy(launch.failure, block.failure, sizeof launch.failure);
}

}  // namespace on_host
