/* The number that a file of this folder computes in. Files that include this are compiled twice: for
 * float32 (also float16 and bfloat16 problems, converted at the tiles' edges), and, with AGI_REAL64,
 * for float64. Names that such files share are written REAL(name),
 * which is name_f32 or name_f64, so that the two can be linked together. */
#ifndef AGI_CPU_REAL_H
#define AGI_CPU_REAL_H

#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef AGI_REAL64
typedef double real;
#define REAL(x) x##_f64
#define REAL_DTYPE AG_F64
#define REAL_MAX DBL_MAX
#define REAL_MIN DBL_MIN
#define REAL_EPSILON DBL_EPSILON
#else
typedef float real;
#define REAL(x) x##_f32
#define REAL_DTYPE AG_F32
#define REAL_MAX FLT_MAX
#define REAL_MIN FLT_MIN
#define REAL_EPSILON FLT_EPSILON
#endif

#define REAL_NAME(x) REAL(x)
#define agi_get_panel REAL(agi_get_panel)
#define agi_kernels_avx2 REAL(agi_kernels_avx2)
#define agi_kernels_avx512 REAL(agi_kernels_avx512)
#define agi_kernels_of REAL(agi_kernels_of)
#define agi_kernels_neon REAL(agi_kernels_neon)
#define agi_kernels_scalar REAL(agi_kernels_scalar)

#endif
