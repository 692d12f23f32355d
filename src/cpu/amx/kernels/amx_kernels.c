/* The table of amx_kernels.h: the only file of the attention maps that is compiled with AMX instructions; reached only
 * if the processor has them.
 *
 * Its functions are in the parts below, included here so that they are one translation unit: stages are inlined into
 * the loop of tile products. A part uses the headers that it includes and the parts above it. */
#include "cpu/amx/kernels/amx_kernels.h"

#include "cpu/amx/kernels/amx_product_tmpl.c"
#include "cpu/amx/kernels/amx_operands_tmpl.c"
#include "cpu/amx/kernels/amx_sums_tmpl.c"
#include "cpu/amx/kernels/amx_dots_tmpl.c"
#include "cpu/amx/kernels/amx_rounding_tmpl.c"
#include "cpu/amx/kernels/amx_interleave_tmpl.c"
#include "cpu/amx/kernels/amx_softmax_tmpl.c"
#include "cpu/amx/kernels/amx_gradients_tmpl.c"
#include "cpu/amx/kernels/amx_given_tmpl.c"

static void begin(amx_config *saved)
{
    amx_begin(saved);
}

static void end(const amx_config *saved)
{
    amx_end(saved);
}

const agi_amx_kernels agi_amx_table = {
    .begin = begin,
    .end = end,
    .product = product,
    .score_blocks = score_blocks,
    .round_row = round_row,
    .transpose_to_vnni = transpose_to_vnni,
    .vnni_pairs_split16 = vnni_pairs_split16,
    .transpose_tile = transpose_tile,
    .zero_masked_keys = zero_masked_keys,
    .transpose_sums = transpose_sums,
    .store_transposed = store_transposed,
    .store_transposed_low = store_transposed_low,
    .store_rows = store_rows,
    .dots = dots,
    .round_to_vnni = round_to_vnni,
    .round_to_rows = round_to_rows,
    .keep_rest = keep_rest,
    .round_weights = round_weights,
    .mask_band_rows = mask_band_rows,
    .mask_band_vnni = mask_band_vnni,
    .softmax = softmax,
    .weights = weights,
    .softmax_tangent = softmax_tangent,
    .gradients = gradients,
    .gradient_tangents = gradient_tangents,
    .given_tangents = given_tangents,
    .second_tangents = second_tangents,
};
