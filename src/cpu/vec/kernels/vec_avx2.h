/* The vector primitives for AVX2 and FMA: 8 floats or 4 doubles. */
#include <immintrin.h>

#ifdef AGI_REAL64

#define LANES 4
typedef __m256d vec;
typedef __m256d vmask;
INLINE vec v_load(const real *p)
{
    return _mm256_loadu_pd(p);
}
INLINE void v_store(real *p, vec a)
{
    _mm256_storeu_pd(p, a);
}
INLINE vec v_set1(real a)
{
    return _mm256_set1_pd(a);
}
INLINE vec v_add(vec a, vec b)
{
    return _mm256_add_pd(a, b);
}
INLINE vec v_sub(vec a, vec b)
{
    return _mm256_sub_pd(a, b);
}
INLINE vec v_mul(vec a, vec b)
{
    return _mm256_mul_pd(a, b);
}
INLINE vec v_div(vec a, vec b)
{
    return _mm256_div_pd(a, b);
}
INLINE vec v_max(vec a, vec b)
{
    return _mm256_max_pd(a, b);
}
INLINE vec v_min(vec a, vec b)
{
    return _mm256_min_pd(a, b);
}
INLINE vec v_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_pd(a, b, c);
}
INLINE vec v_fms(vec a, vec b, vec c)
{
    return _mm256_fmsub_pd(a, b, c);
}
INLINE vmask v_less(vec a, vec b)
{
    return _mm256_cmp_pd(a, b, _CMP_LT_OQ);
}
INLINE vec v_select(vmask m, vec a, vec b)
{
    return _mm256_blendv_pd(b, a, m);
}
INLINE bool v_any(vmask m)
{
    return _mm256_movemask_pd(m) != 0;
}
INLINE vec v_floor(vec a)
{
    return _mm256_floor_pd(a);
}
INLINE vec v_iota(void)
{
    return _mm256_set_pd(3, 2, 1, 0);
}
/* The lanes of a and b interleaved: their lower halves in *low, the upper ones in *high. */
INLINE void v_zip(vec a, vec b, vec *low, vec *high)
{
    const vec even = _mm256_unpacklo_pd(a, b), odd = _mm256_unpackhi_pd(a, b);
    *low = _mm256_permute2f128_pd(even, odd, 0x20);
    *high = _mm256_permute2f128_pd(even, odd, 0x31);
}
/* 2^n for integer n in [-1023, 1024], by writing the exponent: 0 and infinity at the ends. */
INLINE vec v_power2(vec n)
{
    const __m256d shifted = _mm256_add_pd(n, _mm256_set1_pd(0x1.8p52 + 1023));
    return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_castpd_si256(shifted), 52));
}
#define MIN_EXPONENT (-1022)

#else

#define LANES 8
typedef __m256 vec;
typedef __m256 vmask;
INLINE vec v_load(const real *p)
{
    return _mm256_loadu_ps(p);
}
INLINE void v_store(real *p, vec a)
{
    _mm256_storeu_ps(p, a);
}
INLINE vec v_set1(real a)
{
    return _mm256_set1_ps(a);
}
INLINE vec v_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}
INLINE vec v_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}
INLINE vec v_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}
INLINE vec v_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}
INLINE vec v_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}
INLINE vec v_min(vec a, vec b)
{
    return _mm256_min_ps(a, b);
}
INLINE vec v_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}
INLINE vec v_fms(vec a, vec b, vec c)
{
    return _mm256_fmsub_ps(a, b, c);
}
INLINE vmask v_less(vec a, vec b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}
INLINE vec v_select(vmask m, vec a, vec b)
{
    return _mm256_blendv_ps(b, a, m);
}
INLINE bool v_any(vmask m)
{
    return _mm256_movemask_ps(m) != 0;
}
INLINE vec v_floor(vec a)
{
    return _mm256_floor_ps(a);
}
INLINE vec v_iota(void)
{
    return _mm256_set_ps(7, 6, 5, 4, 3, 2, 1, 0);
}
INLINE void v_zip(vec a, vec b, vec *low, vec *high)
{
    const vec even = _mm256_unpacklo_ps(a, b), odd = _mm256_unpackhi_ps(a, b);
    *low = _mm256_permute2f128_ps(even, odd, 0x20);
    *high = _mm256_permute2f128_ps(even, odd, 0x31);
}
/* 2^n for integer n in [-127, 128], by writing the exponent: 0 and infinity at the ends. */
INLINE vec v_power2(vec n)
{
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
}
#define MIN_EXPONENT (-126)

#endif

/* Register tile of the product kernel: at most MAX_NV vectors by MAX_MR(nv) rows, so that sums and operands fit in the
 * 16 vector registers. */
#define MAX_NV 2
#define MAX_MR(nv) 6

INLINE vec v_exp2_fraction(vec f);

/* Writing the exponents just below and above the normal range gives 0 and infinity, so x is clamped to them.
 * NaN stays NaN, as min and max then return their second operand. */
INLINE vec v_exp2(vec x)
{
    const vec inside = v_min(v_set1(2 - MIN_EXPONENT), v_max(v_set1(MIN_EXPONENT - 1), x));
    const vec whole = v_floor(inside);
    return v_mul(v_exp2_fraction(v_sub(inside, whole)), v_power2(whole));
}
