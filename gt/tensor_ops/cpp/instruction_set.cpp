// Every kernel for the instruction set that the compiler's flags name. Compiled once for each, with GT_TABLE as the name
// under which kernels.cpp finds the result.
#if defined(__GNUC__) && !defined(__clang__)
// GCC's own intrinsics pass operands that they leave undefined.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#ifdef __SSE2__
#include <immintrin.h>
#endif
#ifdef __ARM_NEON
#include <arm_neon.h>
#endif

#include "table.h"

// Everything has internal linkage: a function that two sets shared would be linked in one set's instructions for both.
namespace {
#include "simd.h"
#include "maths.h"
#include "loops.h"
}  // namespace

extern "C" const Kernels GT_TABLE;
const Kernels GT_TABLE = kTable;
