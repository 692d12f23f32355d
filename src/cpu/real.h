/* The number that a file of this folder computes in. Files that include this are compiled twice: for
 * float32 (also float16 and bfloat16 problems, converted at the tiles' edges), and, with AGI_REAL64,
 * for float64. NAME() keeps the two apart. */
#ifndef AGI_CPU_REAL_H
#define AGI_CPU_REAL_H

#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef AGI_REAL64
typedef double real;
#define NAME(x) x##_f64
#define REAL_DTYPE AG_F64
#define REAL_MAX DBL_MAX
#define REAL_MIN DBL_MIN
#else
typedef float real;
#define NAME(x) x##_f32
#define REAL_DTYPE AG_F32
#define REAL_MAX FLT_MAX
#define REAL_MIN FLT_MIN
#endif

#endif
