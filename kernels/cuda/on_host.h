// CUDA C++ on the host: with this header before it, g++ compiles a .cu file as it is.
//
// Every CUDA thread is a fiber. Blocks run one after another; within a block a thread runs until it
// has to wait, and a seed decides who is next. What CUDA leaves undefined stops the launch with one
// line that says where: a barrier that not all threads reach, a lane that a mask names and that
// does not come, a vector load off its alignment, a shift as wide as its operand. It is stricter
// than CUDA in two things: threads that have returned are missed at a barrier and in a mask.
//
// A thread never runs beside another, so a data race shows only where the order of whole stretches
// between two waits decides, and an access out of bounds only by what it does. A build that is
// sanitized watches every load and store, and stops at both (sanitizer.h). A thread that spins
// until another one writes spins for ever.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __launch_bounds__(...)
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __align__(bytes) __attribute__((aligned(bytes)))

// One copy for all fibers of a launch, for they share a thread of the system; and the one storage
// class with which `extern __shared__ T name[];` is a declaration too.
#define __shared__ thread_local

#define threadIdx (::on_host::self->index)
#define blockIdx (::on_host::block.index)
#define blockDim (::on_host::block.shape)
#define gridDim (::on_host::block.grid)
#define warpSize 32

#include "on_host/vectors.h"

#include "on_host/fibers.h"

#include "on_host/block.h"

#include "on_host/sanitizer.h"

#include "on_host/launch.h"

#include "on_host/warps.h"

#include "on_host/arithmetic.h"

#include "on_host/undefined.h"
