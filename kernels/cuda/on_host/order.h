// Which access of one thread comes before which of another, as CUDA has it: what barriers, warp
// barriers, and fences with atomics order, and nothing else. That one thread of the host carries
// all of them out, in some order, orders nothing.
//
// A counter is the time of everything; it moves on wherever threads synchronise. An access is known
// by its thread and its time, and who knows a time of another thread comes after all that thread
// did until then.
#pragma once

#include <deque>
#include <map>
#include <utility>
#include <vector>

// The compiler leaves the accesses of a function alone, for they are not the kernel's.
#define ON_HOST_UNWATCHED [[gnu::no_sanitize("thread")]]

namespace on_host::sanitizer {

using Time = std::uint32_t;  // 0: never

enum class Kind : std::uint16_t { load, store, atomic };

struct Access {
    Time time;
    std::uint32_t place;  // in the code: an offset
    std::uint16_t thread;
    Kind kind;
};

using Location = std::pair<Time, const void*>;  // since when it is there, and its address

// Of the releases at a location, the first ones: those that a thread has acquired.
struct Seen {
    Location location;
    std::size_t releases;
};

// What a thread makes known to whoever comes upon its atomic: of each thread of its block, the time
// until which that is; and what it had acquired itself.
struct Release {
    Time began;  // its block
    Access atomic;
    std::vector<Time> published;
    std::vector<Seen> seen;
};

struct Order {
    Time now = 1;
    Time launch_began, block_began;
    Time barrier;  // the block's last one

    // What a thread knows of each lane of its warp, since that barrier.
    Time lanes[kMostThreads][32];

    // Of fences, which few kernels have: what each thread has made known, and acquired.
    bool fences;
    std::vector<Time> published[kMostThreads];
    std::vector<Seen> seen[kMostThreads];
    std::map<Location, std::deque<Release>> releases;

    ON_HOST_UNWATCHED Time known(unsigned thread) const {
        if (thread == self->number) return now;
        if (thread / 32 != self->number / 32) return barrier;
        const Time lane = lanes[self->number][thread % 32];
        return lane > barrier ? lane : barrier;
    }

    // Whether an access comes before what the running thread does now.
    ON_HOST_UNWATCHED bool before(const Access& access) const {
        if (access.time >= block_began && access.time <= known(access.thread)) return true;
        return fences && released(access);
    }

    bool released(const Access& access) const {
        std::map<Location, std::size_t> searched;
        std::vector<Seen> open = seen[self->number];
        while (!open.empty()) {
            const Seen next = open.back();
            open.pop_back();
            for (std::size_t& i = searched[next.location]; i < next.releases; ++i) {
                const Release& release = releases.at(next.location)[i];
                if (covers(release, access)) return true;
                open.insert(open.end(), release.seen.begin(), release.seen.end());
            }
        }
        return false;
    }

    // An atomic that releases is itself seen by those who acquire.
    bool covers(const Release& release, const Access& access) const {
        if (access.time < release.began || access.time > release.atomic.time) return false;
        if (access.thread >= release.published.size()) return false;
        return access.time <= release.published[access.thread]
               || (access.kind == Kind::atomic && access.thread == release.atomic.thread);
    }

    void begin_launch() {
        launch_began = ++now;
        fences = false;
        releases.clear();
    }

    void begin_block() {
        block_began = barrier = ++now;
        if (fences) forget_fences();
        ++now;
    }

    void forget_fences() {
        for (unsigned n = 0; n < block.threads; ++n) {
            published[n].clear();
            seen[n].clear();
        }
    }

    void order_block() {
        if (fences) share([](unsigned) { return true; });
        barrier = now++;
    }

    void order_lanes(const Thread* first, unsigned mask) {
        const unsigned warp = first->number;
        const auto named = [=](unsigned n) { return n / 32 == warp / 32 && mask >> n % 32 & 1; };
        if (fences) share(named);
        Time joined[32] = {};
        for (unsigned lane = 0; lane < 32; ++lane) {
            for (unsigned rest = mask; rest; rest &= rest - 1) {
                joined[lane] = std::max(joined[lane], lanes[warp + std::countr_zero(rest)][lane]);
            }
            if (mask >> lane & 1) joined[lane] = now;
        }
        for (unsigned rest = mask; rest; rest &= rest - 1) {
            std::copy(joined, joined + 32, lanes[warp + std::countr_zero(rest)]);
        }
        ++now;
    }

    // Threads that meet know what each of them published and saw.
    template <class Meets>
    void share(Meets meets) {
        std::vector<Time> joined(block.threads);
        std::map<Location, std::size_t> all;
        for (unsigned n = 0; n < block.threads; ++n) {
            if (!meets(n)) continue;
            for (unsigned of = 0; of < published[n].size(); ++of) {
                joined[of] = std::max(joined[of], published[n][of]);
            }
            for (const Seen& each : seen[n]) {
                all[each.location] = std::max(all[each.location], each.releases);
            }
        }
        for (unsigned n = 0; n < block.threads; ++n) {
            if (!meets(n)) continue;
            published[n] = joined;
            seen[n].clear();
            for (const auto& [location, count] : all) seen[n].push_back({location, count});
        }
    }

    void fence() {
        if (!fences) forget_fences();
        fences = true;
        auto& mine = published[self->number];
        mine.resize(block.threads);
        for (unsigned n = 0; n < block.threads; ++n) mine[n] = std::max(mine[n], known(n));
        ++now;
    }

    // After a fence an atomic releases; each acquires what those at its address have released.
    void pass_on(const Access& atomic, const Location& location) {
        auto& mine = seen[self->number];
        if (!published[self->number].empty()) {
            releases[location].push_back({block_began, atomic, published[self->number], mine});
        }
        const auto at = releases.find(location);
        if (at == releases.end()) return;
        std::erase_if(mine, [&](const Seen& each) { return each.location == location; });
        mine.push_back({location, at->second.size()});
    }
};

inline Order order;

}  // namespace on_host::sanitizer
