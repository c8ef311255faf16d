// Stacks, and the switch from one to another.
#pragma once

#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace on_host {

#if defined(__x86_64__)

// Where a suspended fiber goes on: its stack, with the registers that a call preserves on top.
struct Context {
    void* stack;
};

extern "C" [[gnu::visibility("hidden")]] void on_host_switch(Context* from, Context* to);
asm(R"(
.text
.hidden on_host_switch
.globl on_host_switch
.type on_host_switch, @function
on_host_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size on_host_switch, . - on_host_switch
)");

inline void switch_context(Context& from, Context& to) { on_host_switch(&from, &to); }

inline void prepare(Context& context, std::byte* bottom, std::size_t bytes, void (*entry)()) {
    // As after a call: `entry` finds a return address above it, and its stack aligned by 16 there.
    auto** top = reinterpret_cast<void**>(bottom + bytes);
    *--top = nullptr;
    *--top = reinterpret_cast<void*>(entry);
    for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
    context.stack = top;
}

#else

using Context = ucontext_t;

inline void switch_context(Context& from, Context& to) { swapcontext(&from, &to); }

inline void prepare(Context& context, std::byte* bottom, std::size_t bytes, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = bottom;
    context.uc_stack.ss_size = bytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
}

#endif

// A stack for each thread of a block, each above a page that may not be touched. Such a page counts
// against what the system lets a process map, so there is none before its thread is asked for.
class Stacks {
  public:
    static constexpr std::size_t page = 4096, usable = 15 * page;

    std::byte* bottom(unsigned thread) {
        if (memory == nullptr) map();
        for (; guarded <= thread; ++guarded) {
            mprotect(memory + guarded * (page + usable), page, PROT_NONE);
        }
        return memory + thread * (page + usable) + page;
    }

    // Whose stack an address is in, or nobody's: a number past all threads.
    std::size_t owner(const std::byte* address) const {
        return static_cast<std::size_t>(address - memory) / (page + usable);
    }

    // Tops at different places in their pages, or all of them would meet in one set of the cache.
    static std::size_t size(unsigned thread) { return usable - thread % 32 * 128; }

  private:
    void map() {
        const std::size_t bytes = 1024 * (page + usable);
        const int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind, -1, 0);
        if (mapped == MAP_FAILED) {
            std::perror("on_host: no memory for the stacks of a block");
            std::abort();
        }
        memory = static_cast<std::byte*>(mapped);
    }

    std::byte* memory = nullptr;
    unsigned guarded = 0;
};

}  // namespace on_host
