/* The vector primitives in the compiler's own vectors of 16 bytes: any machine, NEON on aarch64. v_fma is fused on
 * aarch64, whose baseline has the instruction, and nowhere else. */
#include <string.h>

#ifdef AGI_REAL64

#define LANES 2
typedef double vec __attribute__((vector_size(16)));
typedef int64_t vmask __attribute__((vector_size(16)));
#define MIN_EXPONENT (-1022)
#define EXPONENT_SHIFT 52
#define EXPONENT_BIAS 1023

#else

#define LANES 4
typedef float vec __attribute__((vector_size(16)));
typedef int32_t vmask __attribute__((vector_size(16)));
#define MIN_EXPONENT (-126)
#define EXPONENT_SHIFT 23
#define EXPONENT_BIAS 127

#endif

INLINE vec v_load(const real *p)
{
    vec a;
    memcpy(&a, p, sizeof a);
    return a;
}
INLINE void v_store(real *p, vec a)
{
    memcpy(p, &a, sizeof a);
}
INLINE vec v_set1(real a)
{
    const vec zero = {0};
    return a - zero;
}
INLINE vec v_add(vec a, vec b)
{
    return a + b;
}
INLINE vec v_sub(vec a, vec b)
{
    return a - b;
}
INLINE vec v_mul(vec a, vec b)
{
    return a * b;
}
INLINE vec v_div(vec a, vec b)
{
    return a / b;
}
INLINE vec v_select(vmask m, vec a, vec b)
{
    return (vec)(((vmask)a & m) | ((vmask)b & ~m));
}
INLINE vmask v_less(vec a, vec b)
{
    return a < b;
}
INLINE vec v_max(vec a, vec b)
{
    return v_select(b < a, a, b);
}

/* v_fma, and the register tile of the product kernel: at most MAX_NV vectors by MAX_MR(nv) rows, so that sums and
 * operands fit in the vector registers, 32 on aarch64 and 16 elsewhere. */
#if defined(__aarch64__)
#include <arm_neon.h>
#ifdef AGI_REAL64
INLINE vec v_fma(vec a, vec b, vec c)
{
    return (vec)vfmaq_f64((float64x2_t)c, (float64x2_t)a, (float64x2_t)b);
}
#else
INLINE vec v_fma(vec a, vec b, vec c)
{
    return (vec)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
#endif
#define MAX_NV 4
#define MAX_MR(nv) ((nv) == 4 ? 6 : 8)
#else
INLINE vec v_fma(vec a, vec b, vec c)
{
    return a * b + c;
}
#define MAX_NV 2
#define MAX_MR(nv) 6
#endif
INLINE vec v_fms(vec a, vec b, vec c)
{
    return v_fma(a, b, -c);
}

INLINE bool v_any(vmask m)
{
    bool any = false;
    for (int i = 0; i < LANES; i++) {
        any |= m[i] != 0;
    }
    return any;
}

INLINE vec v_iota(void)
{
    vec a = {0};
    for (int i = 0; i < LANES; i++) {
        a[i] = (real)i;
    }
    return a;
}

/* The lanes of a and b interleaved: their lower halves in *low, the upper ones in *high. */
INLINE void v_zip(vec a, vec b, vec *low, vec *high)
{
#ifdef AGI_REAL64
    *low = (vec){a[0], b[0]};
    *high = (vec){a[1], b[1]};
#else
    *low = (vec){a[0], b[0], a[1], b[1]};
    *high = (vec){a[2], b[2], a[3], b[3]};
#endif
}

INLINE vec v_exp2_fraction(vec f);

/* Returns 0 below the smallest exponent and infinity above the largest one; NaN stays NaN. */
INLINE vec v_exp2(vec x)
{
    const vec lowest = v_set1(MIN_EXPONENT), highest = v_set1(-MIN_EXPONENT + 1);
    const vec inside = v_select(v_less(x, lowest), lowest, v_select(v_less(highest, x), highest, x));
    vmask whole = __builtin_convertvector(inside, vmask);  /* rounded towards zero */
    whole += __builtin_convertvector(whole, vec) > inside; /* rounded down, as a true comparison is -1 */
    const vec fraction = inside - __builtin_convertvector(whole, vec);
    const vec power = v_mul(v_exp2_fraction(fraction), (vec)((whole + EXPONENT_BIAS) << EXPONENT_SHIFT));
    return v_select(v_less(x, lowest), v_set1(0),
                    v_select(v_less(highest, x), v_set1((real)INFINITY), power));
}
