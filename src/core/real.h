/* The type `real` that a file computes in. A file that includes this is compiled twice: for float32 (used for
 * float16 and bfloat16 problems too, converted when tiles are loaded and stored) and, with AGI_REAL64
 * defined, for float64. It writes REAL(name) for external names, which the two objects would otherwise define
 * twice. */
#ifndef AGI_REAL_H
#define AGI_REAL_H

#include <float.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef AGI_REAL64
typedef double real;
#define REAL(name) name##_f64
#define REAL_DTYPE AG_F64
#define REAL_MAX DBL_MAX
#define REAL_MIN DBL_MIN
#define REAL_EPSILON DBL_EPSILON
#else
typedef float real;
#define REAL(name) name##_f32
#define REAL_DTYPE AG_F32
#define REAL_MAX FLT_MAX
#define REAL_MIN FLT_MIN
#define REAL_EPSILON FLT_EPSILON
#endif

#endif
