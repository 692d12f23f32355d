/* The kernels of amx_kernels.h. Compiled for AVX-512 and AMX, and reached only where the processor has both. */
#include "cpu/amx/kernels/amx_kernels.h"

#include "cpu/amx/kernels/amx_gradients_tmpl.c"
#include "cpu/amx/kernels/amx_operands_tmpl.c"
#include "cpu/amx/kernels/amx_product_tmpl.c"
#include "cpu/amx/kernels/amx_softmax_tmpl.c"

static void begin(amx_config *before)
{
    amx_begin(before);
}

static void end(const amx_config *before)
{
    amx_end(before);
}

const agi_amx_kernels agi_amx_table = {
    .begin = begin,
    .end = end,
    .product = product,
    .scores = scores,
    .columns = columns,
    .far_pairs = far_pairs,
    .turned = turned,
    .clean = clean,
    .column_norms = column_norms,
    .largest_norm = largest_norm,
    .turn = turn,
    .put_turned = put_turned,
    .put_rows = put_rows,
    .round_pairs = round_pairs,
    .round_rows = round_rows,
    .hide_rows = hide_rows,
    .hide_pairs = hide_pairs,
    .softmax = softmax,
    .weights = weights,
    .softmax_tangent = softmax_tangent,
    .gradients = gradients,
    .gradient_tangents = gradient_tangents,
    .dots = dots,
};
