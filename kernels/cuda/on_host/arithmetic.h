// Bits, atomics, and the functions of one number.
#pragma once

// --- bits ----------------------------------------------------------------------------------------

inline int __popc(unsigned x) { return std::popcount(x); }
inline int __popcll(unsigned long long x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __clzll(long long x) { return std::countl_zero(static_cast<unsigned long long>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }

inline unsigned __brev(unsigned x) {
    unsigned reversed = 0;
    for (int bit = 0; bit < 32; ++bit) reversed |= (x >> bit & 1) << (31 - bit);
    return reversed;
}

inline unsigned long long __brevll(unsigned long long x) {
    return static_cast<unsigned long long>(__brev(static_cast<unsigned>(x))) << 32
           | __brev(static_cast<unsigned>(x >> 32));
}

inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>(static_cast<std::uint64_t>(a) * b >> 32);
}
inline int __mulhi(int a, int b) {
    return static_cast<int>(static_cast<std::int64_t>(a) * b >> 32);
}

inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline long long __mul64hi(long long a, long long b) {
    return static_cast<long long>(static_cast<__int128>(a) * b >> 64);
}

inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }
inline double __longlong_as_double(long long x) { return std::bit_cast<double>(x); }

// --- memory --------------------------------------------------------------------------------------

inline void __threadfence_block() { on_host::sanitizer::fence(); }
inline void __threadfence() { on_host::sanitizer::fence(); }
inline void __threadfence_system() { on_host::sanitizer::fence(); }

// Loads and stores that say how they want to be cached.
template <class T>
T __ldg(const T* address) { return *address; }
template <class T>
T __ldcs(const T* address) { return *address; }
template <class T>
T __ldcg(const T* address) { return *address; }
template <class T>
void __stcs(T* address, std::type_identity_t<T> value) { *address = value; }
template <class T>
void __stcg(T* address, std::type_identity_t<T> value) { *address = value; }

namespace on_host {

// The value before; `change` gives the one after.
template <class T, class Change>
[[gnu::always_inline]] inline T exchange(T* address, Change change) {
    T before, after;
    __atomic_load(address, &before, __ATOMIC_RELAXED);
    do {
        after = change(before);
    } while (!__atomic_compare_exchange(
        address, &before, &after, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return before;
}

// Sums and differences that wrap where CUDA's do.
template <class T>
T add(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
        using Unsigned = std::make_unsigned_t<T>;
        return static_cast<T>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    } else {
        return a + b;
    }
}

template <class T>
T subtract(T a, T b) {
    using Unsigned = std::make_unsigned_t<T>;
    return static_cast<T>(static_cast<Unsigned>(a) - static_cast<Unsigned>(b));
}

}  // namespace on_host

// For the types that CUDA has them for, and no others.
#define ON_HOST_ATOMIC(name, after, ...)                                                           \
    template <on_host::OneOf<__VA_ARGS__> T>                                                       \
    [[gnu::always_inline]] inline T name(T* address, std::type_identity_t<T> value) {              \
        return on_host::exchange(address, [=](T before) { return static_cast<T>(after); });        \
    }

#define ON_HOST_WORDS int, unsigned, unsigned long long
ON_HOST_ATOMIC(atomicAdd, on_host::add(before, value), ON_HOST_WORDS, float, double)
ON_HOST_ATOMIC(atomicSub, on_host::subtract(before, value), int, unsigned)
ON_HOST_ATOMIC(atomicExch, value, ON_HOST_WORDS, float)
ON_HOST_ATOMIC(atomicMin, value < before ? value : before, ON_HOST_WORDS, long long)
ON_HOST_ATOMIC(atomicMax, value > before ? value : before, ON_HOST_WORDS, long long)
ON_HOST_ATOMIC(atomicAnd, before & value, ON_HOST_WORDS)
ON_HOST_ATOMIC(atomicOr, before | value, ON_HOST_WORDS)
ON_HOST_ATOMIC(atomicXor, before ^ value, ON_HOST_WORDS)
ON_HOST_ATOMIC(atomicInc, before >= value ? 0 : before + 1, unsigned)
ON_HOST_ATOMIC(atomicDec, before == 0 || before > value ? value : before - 1, unsigned)
#undef ON_HOST_WORDS
#undef ON_HOST_ATOMIC

template <on_host::OneOf<int, unsigned, unsigned long long, unsigned short> T>
[[gnu::always_inline]] inline T atomicCAS(
    T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
    __atomic_compare_exchange(
        address, &expected, &value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

// --- numbers -------------------------------------------------------------------------------------

using std::isfinite, std::isinf, std::isnan, std::signbit;

// Of two numbers; a NaN loses against a number.
#define ON_HOST_MIN_MAX(type)                                             \
    inline type min(type a, type b) { return b < a ? b : a; }             \
    inline type max(type a, type b) { return a < b ? b : a; }
ON_HOST_MIN_MAX(int)
ON_HOST_MIN_MAX(unsigned)
ON_HOST_MIN_MAX(long)
ON_HOST_MIN_MAX(unsigned long)
ON_HOST_MIN_MAX(long long)
ON_HOST_MIN_MAX(unsigned long long)
#undef ON_HOST_MIN_MAX
inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float __saturatef(float x) { return x > 0.0f ? x < 1.0f ? x : 1.0f : 0.0f; }

// Rounded to nearest, never contracted.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }

// Where a GPU approximates. The C library keeps some of these names to itself.
inline float __fdividef(float a, float b) { return a / b; }
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __powf(x, y) powf(x, y)
