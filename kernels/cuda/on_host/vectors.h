// CUDA's vector types, with CUDA's alignment: a load of one is one access.
#pragma once

#define ON_HOST_VECTORS(type, name)                                                       \
    struct name##1 { type x; };                                                           \
    struct alignas(2 * sizeof(type)) name##2 { type x, y; };                              \
    struct name##3 { type x, y, z; };                                                     \
    struct alignas(sizeof(type) < 4 ? 4 * sizeof(type) : 16) name##4 { type x, y, z, w; }; \
    inline name##1 make_##name##1(type x) { return {x}; }                                 \
    inline name##2 make_##name##2(type x, type y) { return {x, y}; }                      \
    inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; }           \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }

ON_HOST_VECTORS(signed char, char)
ON_HOST_VECTORS(unsigned char, uchar)
ON_HOST_VECTORS(short, short)
ON_HOST_VECTORS(unsigned short, ushort)
ON_HOST_VECTORS(int, int)
ON_HOST_VECTORS(unsigned, uint)
ON_HOST_VECTORS(long long, longlong)
ON_HOST_VECTORS(unsigned long long, ulonglong)
ON_HOST_VECTORS(float, float)
ON_HOST_VECTORS(double, double)
#undef ON_HOST_VECTORS

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
