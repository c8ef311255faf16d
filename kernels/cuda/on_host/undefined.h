// What g++ calls, with -fsanitize, where C++ leaves the behaviour undefined. A GPU does something
// of its own there, so the launch stops.
#pragma once

namespace on_host {

// What every report of the compiler begins with.
struct SourceLocation {
    const char* file;
    unsigned line, column;
};

[[noreturn]] inline void undefined(const SourceLocation& at, const char* what) {
    const char* const slash = std::strrchr(at.file, '/');
    const char* const file = slash ? slash + 1 : at.file;
    report("%s in %s, line %u, by thread %u", what, file, at.line, self->number);
    give_up();
}

}  // namespace on_host

#define ON_HOST_UNDEFINED(check, what)                                                             \
    extern "C" [[noreturn, gnu::used, gnu::visibility("hidden")]] inline void                      \
        __ubsan_handle_##check##_abort(const on_host::SourceLocation* at) {                        \
        on_host::undefined(*at, what);                                                             \
    }

ON_HOST_UNDEFINED(type_mismatch_v1, "an access off its alignment")
ON_HOST_UNDEFINED(shift_out_of_bounds, "a shift by as many bits as the operand has, or more,")
ON_HOST_UNDEFINED(add_overflow, "a signed sum that overflows")
ON_HOST_UNDEFINED(sub_overflow, "a signed difference that overflows")
ON_HOST_UNDEFINED(mul_overflow, "a signed product that overflows")
ON_HOST_UNDEFINED(negate_overflow, "a negation that overflows")
ON_HOST_UNDEFINED(divrem_overflow, "a division by zero, or one that overflows,")
ON_HOST_UNDEFINED(float_cast_overflow, "a conversion of a float that the integer cannot hold,")
ON_HOST_UNDEFINED(out_of_bounds, "an index outside its array")
#undef ON_HOST_UNDEFINED
