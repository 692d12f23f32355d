/* The vector primitives for AVX-512: 16 floats or 8 doubles. */
#include <immintrin.h>

#ifdef AGI_REAL64

#define LANES 8
typedef __m512d vec;
typedef __mmask8 vmask;
INLINE vec v_load(const real *p)
{
    return _mm512_loadu_pd(p);
}
INLINE void v_store(real *p, vec a)
{
    _mm512_storeu_pd(p, a);
}
INLINE vec v_set1(real a)
{
    return _mm512_set1_pd(a);
}
INLINE vec v_add(vec a, vec b)
{
    return _mm512_add_pd(a, b);
}
INLINE vec v_sub(vec a, vec b)
{
    return _mm512_sub_pd(a, b);
}
INLINE vec v_mul(vec a, vec b)
{
    return _mm512_mul_pd(a, b);
}
INLINE vec v_div(vec a, vec b)
{
    return _mm512_div_pd(a, b);
}
INLINE vec v_max(vec a, vec b)
{
    return _mm512_max_pd(a, b);
}
INLINE vec v_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_pd(a, b, c);
}
INLINE vec v_fms(vec a, vec b, vec c)
{
    return _mm512_fmsub_pd(a, b, c);
}
INLINE vmask v_less(vec a, vec b)
{
    return _mm512_cmp_pd_mask(a, b, _CMP_LT_OQ);
}
INLINE vec v_select(vmask m, vec a, vec b)
{
    return _mm512_mask_blend_pd(m, b, a);
}
/* v_fraction: a - floor(a), 0 for infinities. v_scale2: a 2^floor(x), with 2^-infinity = 0. */
INLINE vec v_fraction(vec a)
{
    return _mm512_reduce_pd(a, 1);
}
INLINE vec v_scale2(vec a, vec x)
{
    return _mm512_scalef_pd(a, x);
}
INLINE vec v_iota(void)
{
    return _mm512_set_pd(7, 6, 5, 4, 3, 2, 1, 0);
}

/* The lanes of a and b interleaved: their lower halves in *low, the upper ones in *high. */
INLINE void v_zip(vec a, vec b, vec *low, vec *high)
{
    *low = _mm512_permutex2var_pd(a, _mm512_set_epi64(11, 3, 10, 2, 9, 1, 8, 0), b);
    *high = _mm512_permutex2var_pd(a, _mm512_set_epi64(15, 7, 14, 6, 13, 5, 12, 4), b);
}

#else

#define LANES 16
typedef __m512 vec;
typedef __mmask16 vmask;
INLINE vec v_load(const real *p)
{
    return _mm512_loadu_ps(p);
}
INLINE void v_store(real *p, vec a)
{
    _mm512_storeu_ps(p, a);
}
INLINE vec v_set1(real a)
{
    return _mm512_set1_ps(a);
}
INLINE vec v_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}
INLINE vec v_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}
INLINE vec v_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}
INLINE vec v_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}
INLINE vec v_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
}
INLINE vec v_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
}
INLINE vec v_fms(vec a, vec b, vec c)
{
    return _mm512_fmsub_ps(a, b, c);
}
INLINE vmask v_less(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
INLINE vec v_select(vmask m, vec a, vec b)
{
    return _mm512_mask_blend_ps(m, b, a);
}
INLINE vec v_fraction(vec a)
{
    return _mm512_reduce_ps(a, 1);
}
INLINE vec v_scale2(vec a, vec x)
{
    return _mm512_scalef_ps(a, x);
}
/* One instruction; of the generic v_double8 of vec.h compilers make two, one per half. */
#define HAS_DOUBLE8
INLINE void v_double8(const real *p, double8 *to)
{
    *to = (double8)_mm512_cvtps_pd(_mm256_loadu_ps(p));
}
INLINE vec v_iota(void)
{
    return _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
}

INLINE void v_zip(vec a, vec b, vec *low, vec *high)
{
    const __m512i first = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    *low = _mm512_permutex2var_ps(a, first, b);
    *high = _mm512_permutex2var_ps(a, _mm512_add_epi32(first, _mm512_set1_epi32(8)), b);
}

#endif

/* Register tile of the product kernel: at most MAX_NV vectors by MAX_MR(nv) rows, so that sums and operands fit in the
 * 32 vector registers. */
#define MAX_NV 4
#define MAX_MR(nv) ((nv) == 4 ? 6 : (nv) == 3 ? 8 : 12)

INLINE bool v_any(vmask m)
{
    return m != 0;
}
INLINE vec v_exp2_fraction(vec f);
INLINE vec v_exp2(vec x)
{
    return v_scale2(v_exp2_fraction(v_fraction(x)), x);
}
