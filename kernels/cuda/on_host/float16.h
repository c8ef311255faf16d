// What __half and __nv_bfloat16 have in common: 16 bits, rounding to nearest even.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

namespace on_host {

template <int exponent_bits>
struct Float16 {
    static constexpr int mantissa_bits = 15 - exponent_bits;
    static constexpr int bias = (1 << (exponent_bits - 1)) - 1;
    static constexpr unsigned infinity = ((1u << exponent_bits) - 1) << mantissa_bits;

    std::uint16_t bits;

    Float16() = default;

    // From any number that a double holds, rounded once; what is too large becomes infinite.
    template <class Number>
        requires std::is_floating_point_v<Number>
                 || (std::is_integral_v<Number> && sizeof(Number) < 8)
    Float16(Number number) : bits(round(static_cast<double>(number))) {}

    operator float() const {
        const std::uint32_t sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
        if (magnitude >= infinity) {
            const std::uint32_t payload = (magnitude - infinity) << (23 - mantissa_bits);
            return std::bit_cast<float>(sign | 0x7f800000u | payload);
        }
        // As the bits of a float it is too small by a power of two, subnormal numbers included.
        const float small = std::bit_cast<float>(magnitude << (23 - mantissa_bits));
        const float size = small * std::bit_cast<float>((254u - bias) << 23);
        return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(size));
    }

    static Float16 of_bits(std::uint16_t bits) {
        Float16 number;
        number.bits = bits;
        return number;
    }

    Float16 operator-() const { return of_bits(bits ^ 0x8000); }
    friend Float16 operator+(Float16 a, Float16 b) { return float(a) + float(b); }
    friend Float16 operator-(Float16 a, Float16 b) { return float(a) - float(b); }
    friend Float16 operator*(Float16 a, Float16 b) { return float(a) * float(b); }
    friend Float16 operator/(Float16 a, Float16 b) { return float(a) / float(b); }
    Float16& operator+=(Float16 other) { return *this = *this + other; }
    Float16& operator-=(Float16 other) { return *this = *this - other; }
    Float16& operator*=(Float16 other) { return *this = *this * other; }
    Float16& operator/=(Float16 other) { return *this = *this / other; }
    friend bool operator==(Float16 a, Float16 b) { return float(a) == float(b); }
    friend bool operator!=(Float16 a, Float16 b) { return float(a) != float(b); }
    friend bool operator<(Float16 a, Float16 b) { return float(a) < float(b); }
    friend bool operator<=(Float16 a, Float16 b) { return float(a) <= float(b); }
    friend bool operator>(Float16 a, Float16 b) { return float(a) > float(b); }
    friend bool operator>=(Float16 a, Float16 b) { return float(a) >= float(b); }

  private:
    static std::uint16_t round(double number) {
        if (std::isnan(number)) return 0x7fff;
        const unsigned sign = std::signbit(number) ? 0x8000 : 0;
        const double size = std::fabs(number);
        if (size >= std::ldexp(1.0, bias + 1)) return static_cast<std::uint16_t>(sign | infinity);
        // The number in units of its last place; subnormal numbers share the smallest exponent.
        const int exponent = size < std::ldexp(1.0, 1 - bias) ? 1 - bias : std::ilogb(size);
        const double units = std::nearbyint(std::ldexp(size, mantissa_bits - exponent));
        // The leading bit of a normal number adds to the exponent, and so does a carry: from the
        // largest number to infinity.
        const int magnitude = ((exponent + bias - 1) << mantissa_bits) + static_cast<int>(units);
        return static_cast<std::uint16_t>(sign | static_cast<unsigned>(magnitude));
    }
};

}  // namespace on_host
