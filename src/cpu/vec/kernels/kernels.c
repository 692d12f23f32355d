/* The table of kernels.h for one instruction set: CMake compiles this file once for each set (AGI_KERNELS_AVX512 and
 * so on) and each real (AGI_REAL64), over the vector primitives of vec.h.
 *
 * The functions are in the parts below, included here because a table is one object made from one source with one set
 * of compiler flags. Parts use the headers that they include, not each other. */
#include "cpu/vec/kernels/kernels.h"

#include "cpu/vec/kernels/product_tmpl.c"
#include "cpu/vec/kernels/rows_tmpl.c"
#include "cpu/vec/kernels/scores_tmpl.c"

#if defined(AGI_KERNELS_AVX512)
const agi_kernels REAL(agi_kernels_avx512) = {
    .name = "avx512",
#elif defined(AGI_KERNELS_AVX2)
const agi_kernels REAL(agi_kernels_avx2) = {
    .name = "avx2",
#elif defined(AGI_KERNELS_NEON)
const agi_kernels REAL(agi_kernels_neon) = {
    .name = "neon",
#else
const agi_kernels REAL(agi_kernels_scalar) = {
    .name = "scalar",
#endif
    .lanes = LANES,
    .product = product,
    .product_prefetch = product_prefetch,
    .scores_by_dot = scores_by_dot,
    .scores = scores,
    .mask_band = mask_band,
    .softmax = softmax,
    .softmax_tangent = softmax_tangent,
    .weights = weights,
    .score_tangents = score_tangents,
    .tangent_weights = tangent_weights,
    .second_score_tangents = second_score_tangents,
    .second_weights = second_weights,
    .score_gradients = score_gradients,
    .score_gradient_tangents = score_gradient_tangents,
    .softcap_gradients = softcap_gradients,
    .multiply = multiply,
    .store_rows = store_rows,
    .prefetch_write = prefetch_write,
    .load_bf16 = load_bf16,
    .load_f16 = load_f16,
    .store_bf16 = store_bf16,
    .store_f16 = store_f16,
    .store_low_bf16 = store_low_bf16,
    .store_low_f16 = store_low_f16,
    .dots = dots,
    .log2_array = log2_array,
    .transpose = transpose,
    .dropout = dropout,
};
