/* The vector primitives over which the kernels are written. One of the headers included below defines, for `real`, the
 * type vec of LANES elements, the type vmask, and primitives named v_*; the rest follows from them. */
#ifndef AGI_CPU_KERNELS_VEC_H
#define AGI_CPU_KERNELS_VEC_H

#include <math.h>
#include <string.h>

#include "core/real.h"

#define INLINE static inline __attribute__((always_inline))

/* Loops with a constant count are unrolled, so that every element of an array of vectors is a register. */
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* The same for the kernels of scores and rows; but not under clang's AddressSanitizer, whose checks of the unrolled
 * accesses take minutes to compile. */
#if defined(__clang__)
#if __has_feature(address_sanitizer)
#define UNROLL_STAGE
#endif
#endif
#ifndef UNROLL_STAGE
#define UNROLL_STAGE UNROLL
#endif

/* Tells the compiler that no iteration of a loop reads what another one writes. */
#if defined(__clang__)
#define INDEPENDENT /* clang would warn about each loop that it does not vectorise */
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* Eight doubles, whatever vec is. */
typedef double double8 __attribute__((vector_size(8 * sizeof(double))));

#if defined(AGI_KERNELS_AVX512)
#include "cpu/vec/kernels/vec_avx512.h"
#elif defined(AGI_KERNELS_AVX2)
#include "cpu/vec/kernels/vec_avx2.h"
#else
#include "cpu/vec/kernels/vec_portable.h"
#endif

#ifndef HAS_DOUBLE8
/* *to = p[0 .. 7], converted to double. */
INLINE void v_double8(const real *p, double8 *to)
{
    real a __attribute__((vector_size(8 * sizeof(real))));
    memcpy(&a, p, sizeof a);
    *to = __builtin_convertvector(a, double8);
}
#endif

/* 2^f for f in [0, 1), with a relative error of 7.5e-8 (float) and 3.1e-18 (double) before rounding: the minimax
 * polynomials of degree 5 and 11. */
INLINE vec v_exp2_fraction(vec f)
{
#ifdef AGI_REAL64
    static const double c[] = {6.27243446480288956e-10, 6.55445716265483915e-9, 1.02544573790145502e-7,
                               1.32081934957471215e-6,  1.52531902488312434e-5, 1.54035114464905525e-4,
                               1.33335586615757574e-3,  9.61812909879262171e-3, 5.55041086657111406e-2,
                               2.40226506959054714e-1,  6.93147180559946235e-1, 9.99999999999999997e-1};
#else
    static const float c[] = {1.87757670001998899e-3f, 8.98934002358190677e-3f, 5.58263181162334998e-2f,
                              2.40153617021126324e-1f, 6.93153073202626053e-1f, 9.99999925063587772e-1f};
#endif
    vec p = v_set1(c[0]);
    for (int i = 1; i < (int)(sizeof c / sizeof c[0]); i++) {
        p = v_fma(p, f, v_set1(c[i]));
    }
    return p;
}

/* Transposes LANES x LANES elements, one row per vector: in each of log2(LANES) steps, vector r is interleaved with
 * vector r + LANES / 2. */
INLINE void v_transpose(vec *a)
{
    vec b[LANES];
    for (int step = 1; step < LANES; step *= 2) {
        UNROLL_STAGE for (int r = 0; r < LANES / 2; r++)
        {
            v_zip(a[r], a[r + LANES / 2], &b[2 * r], &b[2 * r + 1]);
        }
        UNROLL_STAGE for (int r = 0; r < LANES; r++)
        {
            a[r] = b[r];
        }
    }
}

#endif
