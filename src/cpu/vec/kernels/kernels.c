/* The tile kernels: one source over the verbs of vec.h, compiled once for each instruction set and each
 * real. Knows tiles, lanes and rows; knows no problem. */
#include "cpu/vec/kernels/product_tmpl.c"
#include "cpu/vec/kernels/rows_tmpl.c"
#include "cpu/vec/kernels/scores_tmpl.c"

#if defined(AGI_KERNELS_AVX512)
#define TABLE agi_kernels_avx512
#define TABLE_NAME "avx512"
#elif defined(AGI_KERNELS_AVX2)
#define TABLE agi_kernels_avx2
#define TABLE_NAME "avx2"
#elif defined(AGI_KERNELS_NEON)
#define TABLE agi_kernels_neon
#define TABLE_NAME "neon"
#else
#define TABLE agi_kernels_scalar
#define TABLE_NAME "scalar"
#endif

const agi_kernels TABLE = {
    .name = TABLE_NAME,
    .lanes = LANES,
    .product = product,
    .product_ahead = product_ahead,
    .few_scores = few_scores,
    .scores = scores,
    .hide = hide,
    .softmax = softmax,
    .softmax_tangent = softmax_tangent,
    .weights = weights,
    .score_tangents = score_tangents,
    .score_gradients = score_gradients,
    .score_gradient_tangents = score_gradient_tangents,
    .softcap_gradients = softcap_gradients,
    .multiply = multiply,
    .put = put,
    .expect = expect,
    .get_bf16 = get_bf16,
    .get_f16 = get_f16,
    .put_bf16 = put_bf16,
    .put_f16 = put_f16,
    .dots = dots,
    .logarithms = logarithms,
    .transpose = transpose,
    .dropout = dropout,
};
